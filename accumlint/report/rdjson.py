"""``--format rdjson``: one DiagnosticResult for reviewdog; safe fixes become suggestions on the pull request."""

from __future__ import annotations

import json
from typing import Any

from accumlint import HOME, rule_page
from accumlint.findings import Finding, Severity, Span
from accumlint.report.model import Report
from accumlint.static.fixes.editing import Change, Lines, apply, as_changes, as_edits

_SEVERITIES = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING", Severity.ADVICE: "INFO"}


SOURCE = {"name": "accumlint", "url": HOME}


def byte_column(report: Report, path: str, line: int, column: int) -> int:
    """A code point column of a file as the format counts it: in UTF-8 bytes, from 1."""
    notebook = report.notebooks.get(path)
    text = report.line(path, line) if notebook is None else notebook.raw_line(line)
    if text is None:
        return column
    return len(text[: column - 1].encode("utf-8", "surrogatepass")) + 1


def _range(report: Report, span: Span) -> dict:
    span = report.in_file(span)
    start = {"line": span.line, "column": byte_column(report, span.path, span.line, span.column)}
    if not span.end_column:
        return {"start": start}
    end_line = span.end_line or span.line
    end = {"line": end_line, "column": byte_column(report, span.path, end_line, span.end_column)}
    return {"start": start, "end": end}


def _suggestion(report: Report, finding: Finding) -> dict:
    """A safe fix as one replacement: several would be offered one by one, and half a fix is none.

    It covers everything from the first edit to the last. Empty where there is none, or where it would reach into
    another file.
    """
    fix = finding.fix
    path = finding.span.path
    if fix is None or not fix.safe or not fix.edits or path in report.notebooks:
        return {}
    if any(edit.span.path != path for edit in fix.edits):
        return {}
    text = report.sources.get(path)
    if text is None:
        return {}
    lines = Lines(text)
    changes = sorted(as_changes(fix.edits, lines))
    start, end = changes[0].start, max(change.end for change in changes)
    inner = apply(text[start:end], (Change(c.start - start, c.end - start, c.new) for c in changes))
    (edit,) = as_edits([Change(start, end, inner)], lines, path)
    return {"range": _range(report, edit.span), "text": edit.replacement}


def diagnostic(report: Report, finding: Finding) -> dict:
    """One Diagnostic."""
    span = finding.span
    found: dict[str, Any] = {
        "message": f"{finding.name}: {finding.message}",
        "location": {"path": report.place(span.path), "range": _range(report, span)},
        "severity": _SEVERITIES[finding.severity],
        "code": {"value": finding.rule, "url": rule_page(finding.rule)},
    }
    suggestion = _suggestion(report, finding)
    if suggestion:
        found["suggestions"] = [suggestion]
    if finding.related:
        found["related_locations"] = [
            {
                "message": each.message,
                "location": {"path": report.place(each.span.path), "range": _range(report, each.span)},
            }
            for each in finding.related
        ]
    return found


def render(report: Report) -> str:
    """The whole result."""
    document = {
        "source": SOURCE,
        "diagnostics": [diagnostic(report, finding) for finding in report.findings],
    }
    return json.dumps(document, indent=1) + "\n"
