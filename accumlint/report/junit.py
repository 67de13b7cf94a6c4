"""``--format junit``: test cases for CI systems that show nothing else.

A finding is a failed case; advice is a passing one that says its piece, since advice never fails. A file that
broke is a case in error, and a run without findings one passing case, so that it isn't taken for no run.
"""

from __future__ import annotations

import re
from xml.sax.saxutils import escape, quoteattr

from accumlint.findings import Finding, Severity
from accumlint.report.model import Report

# what XML 1.0 can't hold, whatever the escape
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


def _attributes(**values: str) -> str:
    return "".join(f" {key}={quoteattr(_clean(value))}" for key, value in values.items())


def _case(report: Report, finding: Finding) -> str:
    span = finding.span
    place = report.place(span.path)
    cell = report.cell(span.path, span.line)
    where = f"line {span.line}" if cell is None else f"cell {cell[0]}, line {cell[1]}"
    name = f"{finding.rule} {finding.name} at {where}"
    line = str(report.in_file(span).line)
    head = "  <testcase" + _attributes(name=name, classname=place, file=place, line=line) + ">"
    text = escape(_clean(f"{place}{report.where(span.path, span.line, span.column)}: {finding.message}"))
    if finding.severity is Severity.ADVICE:
        body = f"   <system-out>{text}</system-out>"
    else:
        kind = _attributes(message=finding.message, type=finding.severity.label)
        body = f"   <failure{kind}>{text}</failure>"
    return f"{head}\n{body}\n  </testcase>\n"


def render(report: Report) -> str:
    """One suite."""
    cases = [_case(report, finding) for finding in report.findings]
    for path, message in report.summary.errors:
        head = "  <testcase" + _attributes(name="can be checked", classname=path) + ">"
        cases.append(f"{head}\n   <error{_attributes(message=message)}/>\n  </testcase>\n")
    if not cases:
        cases = ["  <testcase" + _attributes(name="nothing found", classname="accumlint") + "/>\n"]
    failures = sum(1 for finding in report.findings if finding.severity > Severity.ADVICE)
    counts = _attributes(
        name="accumlint",
        tests=str(len(cases)),
        failures=str(failures),
        errors=str(len(report.summary.errors)),
    )
    summary = report.summary
    hidden = {"suppressed": summary.suppressed, "baselined": summary.baselined, "outside-diff": summary.outside_diff}
    properties = "".join(
        f"   <property{_attributes(name=name, value=str(number))}/>\n" for name, number in hidden.items()
    )
    body = f"  <properties>\n{properties}  </properties>\n" + "".join(cases)
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f"<testsuites{counts}>\n <testsuite{counts}>\n{body} </testsuite>\n</testsuites>\n"
    )
