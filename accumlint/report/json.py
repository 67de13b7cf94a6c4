"""``--format json``: the versioned document that other programs read (schema ``accumlint/findings/v1``)."""

from __future__ import annotations

import json

from accumlint.findings import Finding, Fix, Probed, Span
from accumlint.report.model import Report, count_by_rule, count_by_severity, count_probed

SCHEMA = "accumlint/findings/v1"


def _place(report: Report, span: Span) -> dict:
    """A place: in a notebook, the cell and lines in it."""
    place: dict = {"path": span.path}
    line, end_line = span.line, span.end_line or span.line
    cell = report.cell(span.path, line)
    if cell is not None:
        place["cell"], first = cell
        line, end_line = first, first + end_line - line
    return {
        **place,
        "line": line,
        "column": span.column,
        "end_line": end_line,
        "end_column": span.end_column or span.column,
    }


def _fix(report: Report, fix: Fix | None) -> dict | None:
    if fix is None:
        return None
    edits = [{**_place(report, edit.span), "replacement": edit.replacement} for edit in fix.edits]
    return {"title": fix.title, "safe": fix.safe, "why_unsafe": fix.why_unsafe, "edits": edits}


def _probed(probed: Probed | None) -> dict | None:
    if probed is None:
        return None
    return {"verdict": probed.verdict, "reason": probed.reason, "receipt": probed.receipt}


def finding_object(report: Report, finding: Finding) -> dict:
    """One finding as plain JSON; columns are 1-based and count code points, ends are exclusive."""
    return {
        "rule": finding.rule,
        "name": finding.name,
        "clause": finding.clause,
        "severity": finding.severity.label,
        "confidence": finding.confidence.label,
        **_place(report, finding.span),
        "message": finding.message,
        "evidence": dict(finding.evidence),
        "related": [{**_place(report, each.span), "message": each.message} for each in finding.related],
        "fix": _fix(report, finding.fix),
        "probed": _probed(finding.probed),
    }


def summary_object(report: Report) -> dict:
    """The counts of the run as plain JSON."""
    summary = report.summary
    return {
        "findings": len(report.findings),
        "by_severity": count_by_severity(report.findings),
        "by_rule": count_by_rule(report.findings),
        "probed": count_probed(report.findings),
        "suppressed": summary.suppressed,
        "baselined": summary.baselined,
        "stale_baseline": summary.stale_baseline,
        "outside_diff": summary.outside_diff,
        "files_checked": summary.files_checked,
        "files_simulated": summary.files_simulated,
        "configurations": summary.configurations,
        "files_without_accumulation": dict(summary.files_without_accumulation),
        "files_skipped": dict(summary.files_skipped),
        "loops": summary.loops,
        "errors": [{"path": path, "message": message} for path, message in summary.errors],
    }


def render(report: Report) -> str:
    """The whole document.

    Non-ASCII text is escaped, so that any terminal or pipe carries it unharmed. A number in the evidence that JSON
    lacks (a fraction) is written as text.
    """
    document = {
        "schema": SCHEMA,
        "findings": [finding_object(report, finding) for finding in report.findings],
        "summary": summary_object(report),
    }
    return json.dumps(document, indent=1, allow_nan=False, default=str) + "\n"
