"""Whole-output snapshots: each format on a finding, a syntax error, an empty run, non-ASCII, awkward paths.

``ACCUMLINT_UPDATE_SNAPSHOTS=1 pytest tests/report`` writes them anew; read the difference before committing it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import pytest
from fake_engine import TIMELINE

from accumlint.findings import Confidence, Edit, Finding, Fix, Related, Severity, Span
from accumlint.knowledge import parse_page
from accumlint.own_findings import syntax_error
from accumlint.report.github import CAP, escape_data, escape_property
from accumlint.report.model import Report, Summary
from accumlint.report.present import render
from accumlint.settings import FORMATS
from accumlint.static.notebooks import read as read_notebook

SNAPSHOTS = Path(__file__).parent / "snapshots"

SOURCE = """\
import torch

def train(model, loader):
    for i, batch in enumerate(loader):
        loss = model(batch) / 3
        loss.backward()
        scheduler.step()
        if (i + 1) % 3 == 0:
            optimizer.step()
"""


def finding(path="train.py", line=7, column=9, end=25, severity=Severity.ERROR, **more):
    values = {
        "rule": "ACC202",
        "name": "scheduler-per-microbatch",
        "clause": "C2",
        "severity": severity,
        "confidence": Confidence.CERTAIN,
        "span": Span(path, line, column, line, end),
        "message": "the scheduler moves 3 times per update. It is stepped on every microbatch",
        **more,
    }
    return Finding(**values)


FIX = Fix(
    "move it into the boundary",
    True,
    (Edit(Span("train.py", 7, 1, 8, 1), ""), Edit(Span("train.py", 10, 1, 10, 1), "            scheduler.step()\n")),
)

NOTEBOOK = read_notebook(
    json.dumps(
        {
            "cells": [
                {"cell_type": "markdown", "source": "# Training"},
                {"cell_type": "code", "source": ["import torch\n"]},
                {"cell_type": "code", "source": ["if last:\n", "\té = 1; scheduler.step()"]},
            ]
        },
        indent=1,
    ).encode()
)

CASES = {
    "finding": Report(
        (
            finding(
                evidence={"timeline": TIMELINE, "windows": [3, 1], "weights": ["1/9", "1/18", "1/3"]},
                related=(Related(Span("train.py", 8, 9, 8, 28), "the [gate] of the window"),),
                fix=FIX,
            ),
            finding(
                rule="ACC502",
                name="tail-leaks-into-next-epoch",
                clause="C5",
                line=9,
                column=13,
                end=29,
                severity=Severity.WARNING,
                confidence=Confidence.CONDITIONAL,
                message="one microbatch is carried into the next epoch",
                evidence={"windows": [3, 3, 1], "flags": ["args.amp"], "note": "len(loader) is unknown"},
                fix=Fix("flush it", False, (), "it adds an update"),
            ),
        ),
        Summary(3, 1, {"no-accumulation": 2}, {"test-code": 4}, 1, 1, 2, 3, 0, 1, ()),
        {"train.py": SOURCE},
        {"train.py": "train.py"},
    ),
    "syntax-error": Report(
        (syntax_error("broken.py", "cannot be parsed: '(' was never closed", 2, 12),),
        Summary(1),
        {"broken.py": "import torch\nbackward = (\n"},
    ),
    "empty": Report((), Summary(2, 0, {"no-accumulation": 2})),
    "nothing-checked": Report((), Summary(files_skipped={"excluded": 3})),
    "broken-file": Report((), Summary(1, errors=(("gone.py", "cannot be read: Permission denied"),))),
    "non-ascii": Report(
        (finding(path="größe.py", line=2, column=11, end=27, message="100 % wrong:\n\tline, two → 漢字 <&>"),),
        Summary(1, 1),
        {"größe.py": 'import torch\né = "漢"; \tscheduler.step()  # 漢字\n'},
        {"größe.py": "src/größe.py"},
    ),
    "notebook": Report(
        (
            finding(
                path="my nb.ipynb",
                line=NOTEBOOK.text.split("\n").index("\té = 1; scheduler.step()") + 1,
                related=(Related(Span("my nb.ipynb", 1, 1, 1, 9), "the [gate] of the window"),),
                fix=Fix("take it out", True, (Edit(Span("my nb.ipynb", 3, 1, 3, 2), ""),)),
            ),
        ),
        Summary(1, 1),
        {"my nb.ipynb": NOTEBOOK.text},
        {"my nb.ipynb": "src/my nb.ipynb"},
        {"my nb.ipynb": NOTEBOOK},
    ),
    "awkward-path": Report(
        (finding(path="my scripts/100%,a:b[1].py", line=1, column=1, end=17),),
        Summary(1, 1),
        {"my scripts/100%,a:b[1].py": "scheduler.step()\n"},
    ),
}


PAGE = """\
---
code: ACC202
name: scheduler-per-microbatch
clause: C2
severity: error
witnesses: [static]
fix: safe
since: 0.1.0
---

## What it finds

A schedule that moves on every microbatch.

It follows the object.

## Why it changes training

The schedule ends K times too early.
"""


@pytest.fixture(autouse=True)
def pages_of_the_tests(monkeypatch):
    """Snapshots must not change with the prose of the real pages; a rule without a page is covered too."""
    page = parse_page(PAGE, Path("page.md"))
    monkeypatch.setattr("accumlint.knowledge.find_rule", lambda code: page if code == page.code else None)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format_name", FORMATS)
def test_snapshot(format_name, case):
    path = SNAPSHOTS / f"{case}.{format_name}"
    output = render(format_name, CASES[case])
    if os.environ.get("ACCUMLINT_UPDATE_SNAPSHOTS"):
        path.write_bytes(output.encode())
    assert output == path.read_bytes().decode()


@pytest.mark.parametrize("case", CASES)
def test_every_format_can_be_read_by_a_machine(case):
    report = CASES[case]
    number = len(report.findings)
    assert len(json.loads(render("json", report))["findings"]) == number
    assert len(json.loads(render("gitlab", report))) == number
    assert len(json.loads(render("rdjson", report))["diagnostics"]) == number
    assert len([json.loads(line) for line in render("rdjsonl", report).splitlines()]) == number
    suite = ElementTree.fromstring(render("junit", report).encode())[0]
    assert len(suite.findall("testcase")) == int(suite.get("tests")) == max(number + len(report.summary.errors), 1)
    assert render("github", report).count("\n::") + render("github", report).startswith("::") == number


def test_columns_of_rdjson_count_bytes():
    (diagnostic,) = json.loads(render("rdjson", CASES["non-ascii"]))["diagnostics"]
    line = CASES["non-ascii"].line("größe.py", 2)
    span = diagnostic["location"]["range"]
    raw = line.encode()
    assert raw[span["start"]["column"] - 1 : span["end"]["column"] - 1] == b"scheduler.step()"


def test_gitlab_fingerprints_are_unique_and_stable_under_line_shifts():
    twice = CASES["finding"]._replace(findings=(finding(), finding()))
    first, second = (entry["fingerprint"] for entry in json.loads(render("gitlab", twice)))
    assert first != second
    shifted = twice._replace(
        findings=(finding(line=10), finding(line=10)), sources={"train.py": "\n\n\n" + SOURCE}
    )
    assert [entry["fingerprint"] for entry in json.loads(render("gitlab", shifted))] == [first, second]


def test_github_shows_the_worst_first_and_counts_what_is_beyond_the_cap():
    many = [finding(line=n, severity=Severity.WARNING, confidence=Confidence.POSSIBLE) for n in range(1, 13)]
    many += [finding(line=40), finding(line=30, severity=Severity.WARNING)]
    lines = render("github", Report(tuple(many), Summary(1))).splitlines()
    assert lines[0].startswith("::error file=train.py,line=40,")
    assert lines[1].startswith("::warning file=train.py,line=30,")
    assert sum(line.startswith("::warning") for line in lines) == CAP
    assert "3 more at level warning: GitHub shows 10 annotations of a level." in lines
    assert sum(line.startswith("  train.py:") for line in lines) == 3


def test_github_escapes():
    assert escape_data("50 %\r\n") == "50 %25%0D%0A"
    assert escape_property("a:b,c%") == "a%3Ab%2Cc%25"


def test_github_gives_columns_only_for_one_line():
    span = Span("a.py", 1, 5, 3, 2)
    (line,) = [x for x in render("github", Report((finding(span=span),))).splitlines() if x.startswith("::")]
    assert line.startswith("::error file=a.py,line=1,title=")


def test_advice_does_not_fail_a_junit_suite():
    suite = ElementTree.fromstring(render("junit", Report((finding(severity=Severity.ADVICE),))))[0]
    assert suite.get("failures") == "0" and suite.find("testcase")[0].tag == "system-out"


def test_junit_survives_characters_that_xml_forbids():
    report = Report((finding(message="a\0b\x1b[31m"),))
    ElementTree.fromstring(render("junit", report))


def test_a_source_cannot_write_to_the_terminal():
    report = Report(
        (finding(path="a\x1b[31m.py", line=1, column=1, end=3, message="see \x1b]0;title\x07"),),
        Summary(1),
        {"a\x1b[31m.py": "x\t=\x1b[2J\x9b1m\0\n"},
    )
    output = render("text", report)
    assert not any(ord(c) < 32 and c != "\n" or 0x7F <= ord(c) < 0xA0 for c in output)
    assert "x    =?[2J?1m?" in output
