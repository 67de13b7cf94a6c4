"""``--format rdjson``: one DiagnosticResult for reviewdog; safe fixes become suggestions on the pull request."""

from __future__ import annotations

import json
from typing import Any

from accumlint.findings import Finding, Severity, Span
from accumlint.report.model import Report

_SEVERITIES = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING", Severity.ADVICE: "INFO"}


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


def diagnostic(report: Report, finding: Finding) -> dict:
    """One Diagnostic."""
    span = finding.span
    found: dict[str, Any] = {
        "message": f"{finding.name}: {finding.message}",
        "location": {"path": report.place(span.path), "range": _range(report, span)},
        "severity": _SEVERITIES[finding.severity],
        "code": {"value": finding.rule},
    }
    if finding.fix is not None and finding.fix.safe and span.path not in report.notebooks:
        edits = [edit for edit in finding.fix.edits if edit.span.path == span.path]
        if len(edits) == len(finding.fix.edits):  # a suggestion can't reach into another file
            found["suggestions"] = [
                {"range": _range(report, edit.span), "text": edit.replacement} for edit in edits
            ]
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
        "source": {"name": "accumlint"},
        "diagnostics": [diagnostic(report, finding) for finding in report.findings],
    }
    return json.dumps(document, indent=1) + "\n"
