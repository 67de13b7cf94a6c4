"""Every example of a rule page is a test: bad ones are reported at their marks, good ones are silent."""

from __future__ import annotations

import pytest

from accumlint import knowledge
from accumlint.static.engine import EngineSettings, Project, analyse

SLACK = 2  # lines: a marked statement may be named by its header or by the gate beside it
PAGES = [rule for rule in knowledge.rules().values() if rule.clause not in ("C0", "C9")]
BAD = [(rule, example) for rule in PAGES for example in rule.examples if example.kind == "bad"]
GOOD = [(rule, example) for rule in PAGES for example in rule.examples if example.kind == "good"]


def _name(value: object) -> str:
    return value.code if isinstance(value, knowledge.Rule) else str(getattr(value, "page_line", ""))


def _findings(example: knowledge.Example, tmp_path) -> list:
    path = tmp_path / "example.py"
    path.write_text(example.code, encoding="utf-8")
    return list(analyse(example.code.encode(), str(path), Project(tmp_path), EngineSettings()).findings)


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_name)
def test_bad_example_is_reported_and_nothing_else(rule, example, tmp_path):
    findings = _findings(example, tmp_path)
    own = [f.span.line for f in findings if f.rule == rule.code]
    for line in example.lines:
        assert any(abs(line - found) <= SLACK for found in own), f"{rule.name} not at line {line}: {_told(findings)}"
    other = [f for f in findings if f.rule != rule.code]
    assert not other, f"also reported: {_told(other)}"


@pytest.mark.parametrize(("rule", "example"), GOOD, ids=_name)
def test_good_example_is_silent(rule, example, tmp_path):
    findings = _findings(example, tmp_path)
    assert not findings, _told(findings)


def _told(findings: list) -> str:
    return "; ".join(f"{f.name}:{f.span.line} ({f.confidence.label}) {f.message}" for f in findings) or "nothing"
