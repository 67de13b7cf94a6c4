"""The rule pages of clauses C0 to C8 are complete and well formed.

What the examples make the engine say is tested elsewhere; here only their structure is.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from accumlint.findings import Severity
from accumlint.knowledge import KnowledgeError, Rule, parse_page, root

FOLDERS = {
    "C0": "C0-audit",
    "C1": "C1-denominator",
    "C2": "C2-clock",
    "C3": "C3-sync",
    "C4": "C4-precision",
    "C5": "C5-tail",
    "C6": "C6-ranks",
    "C7": "C7-bookkeeping",
    "C8": "C8-schedule",
}

# Names are what people suppress and search for: a change here breaks their files.
RULES = {
    "ACC001": "syntax-error",
    "ACC002": "unused-suppression",
    "ACC003": "analysis-incomplete",
    "ACC101": "mean-of-means",
    "ACC102": "loss-not-normalized",
    "ACC103": "double-division",
    "ACC104": "count-before-shift",
    "ACC105": "zero-denominator-masked",
    "ACC106": "local-denominator-across-ranks",
    "ACC107": "ddp-average-not-undone",
    "ACC108": "denominator-mismatch",
    "ACC201": "optimizer-step-per-microbatch",
    "ACC202": "scheduler-per-microbatch",
    "ACC203": "scheduler-advances-on-skipped-step",
    "ACC204": "zero-grad-inside-window",
    "ACC205": "zero-grad-missing",
    "ACC206": "window-off-by-one",
    "ACC207": "window-gate-inverted",
    "ACC208": "skip-breaks-window",
    "ACC209": "nested-gating",
    "ACC210": "foreign-gradient-in-window",
    "ACC211": "optimizer-in-backward",
    "ACC212": "scaler-update-per-microbatch",
    "ACC213": "gate-counter-stuck",
    "ACC301": "no-sync-missing",
    "ACC302": "no-sync-misses-forward",
    "ACC303": "sync-never-happens",
    "ACC304": "no-sync-with-sharded-grads",
    "ACC305": "accumulate-misses-model",
    "ACC401": "clip-per-microbatch",
    "ACC402": "clip-before-unscale",
    "ACC403": "clip-before-backward",
    "ACC404": "unscale-per-microbatch",
    "ACC501": "tail-dropped-silently",
    "ACC502": "tail-leaks-into-next-epoch",
    "ACC503": "tail-divided-as-full",
    "ACC504": "accum-exceeds-epoch",
    "ACC601": "rank-divergent-window",
    "ACC701": "step-counter-per-microbatch",
    "ACC702": "update-event-repeats",
    "ACC703": "ema-per-microbatch",
    "ACC704": "checkpoint-missing-state",
    "ACC705": "checkpoint-mid-window",
    "ACC706": "resume-step-unit-mismatch",
    "ACC801": "schedule-length-in-microbatches",
}

SECTIONS = ["What it finds", "Why it changes training", "How to fix it", "When it stays silent"]

FILES = sorted(path for folder in FOLDERS.values() for path in (root() / folder).glob("*.md"))


def load(path: Path) -> Rule:
    return parse_page(path.read_text(encoding="utf-8"), path)


@pytest.fixture(params=FILES, ids=lambda path: path.stem)
def page(request) -> Rule:
    return load(request.param)


def test_every_rule_has_exactly_one_page():
    pages = [load(path) for path in FILES]
    assert sorted((page.code, page.name) for page in pages) == sorted(RULES.items())


def test_front_matter_agrees_with_file_and_folder(page):
    assert page.path.name == f"{page.code}-{page.name}.md"
    assert page.clause == f"C{page.code[3]}"
    assert page.path.parent.name == FOLDERS[page.clause]


def test_front_matter_values(page):
    assert page.severity in Severity
    assert page.witnesses and set(page.witnesses) <= {"static", "probe"}
    assert page.fix in {"safe", "unsafe", "none"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", page.since)
    assert all(re.fullmatch(r"https://\S+", link) for link in page.references)
    assert len(set(page.references)) == len(page.references)


def test_sections_are_complete_and_in_order(page):
    assert list(page.sections) == SECTIONS
    assert all(text.strip() for text in page.sections.values())


def test_summary_is_one_sentence(page):
    assert page.summary.endswith(".")
    assert not re.search(r"[.!?] [A-Z]", page.summary)
    assert len(page.summary) <= 260


def test_examples_of_both_kinds(page):
    kinds = [example.kind for example in page.examples]
    assert kinds.count("bad") >= 1
    assert kinds.count("good") >= 1
    assert kinds == sorted(kinds), "bad examples come first"
    titles = [example.title for example in page.examples]
    assert all(titles) and len(set(titles)) == len(titles)


def test_examples_are_python(page):
    for example in page.examples:
        if page.code == "ACC001" and example.kind == "bad":
            with pytest.raises(SyntaxError):
                ast.parse(example.code)
        else:
            ast.parse(example.code, filename=f"{page.path.name}:{example.page_line}")


def test_one_marked_line_per_bad_example(page):
    for example in page.examples:
        lines = example.code.split("\n")
        assert "<- here" not in example.code
        if example.kind == "bad":
            assert len(example.lines) == 1
            assert lines[example.lines[0] - 1].strip()


def test_no_example_is_used_twice():
    codes = [example.code for path in FILES for example in load(path).examples]
    assert len(set(codes)) == len(codes)


def test_links_between_pages_lead_somewhere(page):
    known = set(RULES)
    for text in page.sections.values():
        assert set(re.findall(r"\[(ACC[0-8]\d\d)\]", text)) <= known


def test_a_page_without_marks_is_rejected():
    text = (root() / FOLDERS["C2"] / "ACC202-scheduler-per-microbatch.md").read_text(encoding="utf-8")
    with pytest.raises(KnowledgeError, match="marks its lines"):
        parse_page(text.replace("  # <- here", ""), Path("page.md"))


def test_a_page_without_front_matter_is_rejected():
    with pytest.raises(KnowledgeError, match="no front matter"):
        parse_page("## What it finds\n", Path("page.md"))


def test_labels_of_the_fixture_scripts_name_rules_and_lines():
    folder = Path(__file__).parent.parent / "fixtures" / "scripts"
    labels = yaml.safe_load((folder / "labels.yaml").read_text(encoding="utf-8"))
    assert sorted(labels["scripts"]) == sorted(path.name for path in folder.glob("*.py"))
    for name, expected in labels["scripts"].items():
        text = (folder / name).read_text(encoding="utf-8")
        ast.parse(text, filename=name)
        lines = text.split("\n")
        for label in expected:
            assert label["rule"] in RULES.values()
            assert lines[label["line"] - 1].strip()
