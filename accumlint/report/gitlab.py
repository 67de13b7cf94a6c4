"""``--format gitlab``: a Code Quality report for the widget of a merge request."""

from __future__ import annotations

import json

from accumlint.findings import Severity
from accumlint.report.fingerprints import content_fingerprints
from accumlint.report.model import Report

_SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.ADVICE: "info"}


def render(report: Report) -> str:
    """A JSON array, one entry per finding; the rule stands in the description, where the widget shows it."""
    entries = [
        {
            "description": f"{finding.rule} {finding.name}: {' '.join(finding.message.split())}",
            "check_name": finding.rule,
            "fingerprint": fingerprint,
            "severity": _SEVERITIES[finding.severity],
            "location": {
                "path": report.place(finding.span.path),
                "lines": {"begin": report.in_file(finding.span).line},
            },
        }
        for finding, fingerprint in zip(report.findings, content_fingerprints(report))
    ]
    return json.dumps(entries, indent=1) + "\n"
