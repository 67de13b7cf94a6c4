"""``check --receipts``: what runs confirmed and refuted, without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from accumlint import receipt
from accumlint.cli.main import main
from accumlint.probe.remembered import beside, document
from accumlint.probe.verdicts import OnFinding

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = (ROOT / "tests" / "hook_scripts" / "bad.py").read_bytes()


def finding(rule, line):
    from accumlint.findings import Confidence, Finding, Severity, Span

    return Finding(rule, "n", "C2", Severity.ERROR, Confidence.CERTAIN, Span("train.py", line), "m")


def run(capsys, *arguments):
    """(exit code, findings by rule, summary)"""
    code = main(["check", "--isolated", "--format", "json", *arguments])
    document = json.loads(capsys.readouterr().out)
    return code, {each["rule"]: each for each in document["findings"]}, document["summary"]


@pytest.fixture
def script(tree, capsys):
    folder = tree({"train.py": SCRIPT, "runs/notes.txt": ""})
    _, found, _ = run(capsys, "train.py")
    assert {"ACC202", "ACC502"} == set(found)
    lines = {rule: each["line"] for rule, each in found.items()}
    given = json.loads((ROOT / "fixtures" / "receipts" / "equal-control.receipt.json").read_text())[
        "manifest"
    ]
    made = receipt.build(given, bound_files=[receipt.bind(folder / "train.py", "script", folder)])

    def write(name="a", **verdicts):
        path = folder / "runs" / f"{name}.receipt.json"
        path.write_bytes(made.data)
        told = [
            OnFinding(finding(rule, lines[rule]), verdict, "so it was") for rule, verdict in verdicts.items()
        ]
        data = document(SCRIPT, made.hashes["receipt_sha256"], told, [], "train.py")
        Path(beside(str(path))).write_bytes(data)
        return folder

    return write


def test_confirmed_and_refuted(script, capsys):
    script(ACC202="refuted", ACC502="confirmed")
    code, found, summary = run(capsys, "train.py", "--receipts", "runs")
    assert code == 1 and summary["probed"] == {"confirmed": 1, "refuted": 1}
    assert found["ACC202"]["probed"] == {
        "verdict": "refuted",
        "reason": "so it was",
        "receipt": "a.receipt.json",
    }
    assert found["ACC202"]["severity"] == "advice"
    assert found["ACC502"]["confidence"] == "certain", "it was conditional before a run showed it"
    main(["check", "--isolated", "train.py", "--receipts", "runs"])
    text = capsys.readouterr().out
    assert "\n  refuted by receipt a.receipt.json: so it was\n" in text
    assert "\nBy receipts of runs: 1 confirmed, 1 refuted.\n" in text


def test_what_is_refuted_does_not_fail(script, capsys):
    script(ACC202="refuted", ACC502="refuted")
    assert run(capsys, "train.py")[0] == 1
    assert run(capsys, "train.py", "--receipts", "runs")[0] == 0


def test_a_run_that_saw_the_fault_counts_more(script, capsys):
    script("a", ACC202="refuted", ACC502="not reached")
    script("b", ACC202="confirmed", ACC502="refuted")
    _, found, _ = run(capsys, "train.py", "--receipts", "runs")
    assert {
        rule: each["probed"]["receipt"][0] + each["probed"]["verdict"][0] for rule, each in found.items()
    } == {
        "ACC202": "bc",
        "ACC502": "br",
    }


def test_another_script_is_not_spoken_of(script, capsys):
    folder = script(ACC202="refuted", ACC502="refuted")
    (folder / "train.py").write_bytes(SCRIPT + b"\n")
    code, found, summary = run(capsys, "train.py", "--receipts", "runs")
    assert code == 1 and summary["probed"] == {"confirmed": 0, "refuted": 0}
    assert all(each["probed"] is None for each in found.values())


@pytest.mark.parametrize("form", ["github", "sarif"])
def test_annotations_say_so(script, capsys, form):
    script(ACC202="confirmed")
    main(["check", "--isolated", "train.py", "--receipts", "runs", "--format", form])
    assert "(confirmed by receipt a.receipt.json: so it was)" in capsys.readouterr().out


def test_a_folder_that_is_not_there_is_said(script, capsys):
    script()
    assert main(["check", "--isolated", "train.py", "--receipts", "gone"]) == 2
    assert "--receipts: gone: No such file or directory" in capsys.readouterr().err


def test_torch_is_not_imported(script):
    folder = script(ACC202="confirmed")
    program = (
        "import sys; from accumlint.cli.main import main; main(['check', '--isolated', 'train.py', '--receipts', 'runs']);"
        " assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
