"""Labelled scripts: every fault is found where it stands, and nothing else is said of them.

A label names the line to blame and the rule; a script without labels is right, however it may look.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from accumlint import knowledge
from accumlint.static.engine import EngineSettings, Project, analyse

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
FOLDERS = tuple(name for name in ("scripts", "frameworks") if (FIXTURES / name / "labels.yaml").exists())
LABELS = {folder: yaml.safe_load((FIXTURES / folder / "labels.yaml").read_text(encoding="utf-8")) for folder in FOLDERS}
CASES = [(folder, name) for folder in FOLDERS for name in LABELS[folder]["scripts"]]
RULES = {rule.name: rule for rule in knowledge.rules().values()}

# what the engine does not read yet: each of these turns red as soon as it does
WAITING = {
    "asr_ctc_ddp.py": "a local count that is summed over a list of pairs is not followed into the denominator",
    "contrastive_cached.py": "a loss over the whole window, recomputed for every chunk of it, is taken for a chunk's own mean",
    "llm_sft_padded.py": "labels that a collator class pads are not seen to vary",
    "accelerate_gene_tagger.py": "the rows of a list made from a generator are taken for the rows of the data set",
    "trainer_reviews_divided_twice.py": "the Trainer's count and the loss are told in two units where nothing says that labels are masked",
}
CASES = [
    pytest.param(*case, id="-".join(case), marks=[pytest.mark.xfail(strict=True, reason=WAITING[case[1]])] if case[1] in WAITING else [])
    for case in CASES
]


def told(findings) -> str:
    return "; ".join(f"{f.name}:{f.span.line} ({f.confidence.label}) {f.message}" for f in findings) or "nothing"


@pytest.mark.parametrize(("folder", "name"), CASES)
def test_a_script_is_reported_for_its_faults_and_for_nothing_else(folder, name):
    path = FIXTURES / folder / name
    tolerance = LABELS[folder]["tolerance"]
    open_labels = list(LABELS[folder]["scripts"][name])
    found = list(analyse(path.read_bytes(), str(path), Project(path.parent), EngineSettings()).findings)
    extra = []
    for finding in found:
        label = next((w for w in open_labels if w["rule"] == finding.name and abs(w["line"] - finding.span.line) <= tolerance), None)
        if label is None:
            extra.append(finding)
        else:
            open_labels.remove(label)
    assert not open_labels, f"not found: {open_labels}; found: {told(found)}"
    assert not extra, f"also reported: {told(extra)}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_script_is_labelled_and_every_label_is_a_rule(folder):
    labelled = LABELS[folder]["scripts"]
    assert {path.name for path in (FIXTURES / folder).glob("*.py")} == set(labelled)
    for name, labels in labelled.items():
        lines = (FIXTURES / folder / name).read_text(encoding="utf-8").splitlines()
        for label in labels:
            assert label["rule"] in RULES and lines[label["line"] - 1].strip(), (name, label)


def test_both_kinds_of_script_are_there():
    for folder in FOLDERS:
        kinds = {bool(labels) for labels in LABELS[folder]["scripts"].values()}
        assert kinds == {True, False}
