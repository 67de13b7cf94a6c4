"""``--format rdjsonl``: the diagnostics of rdjson, one a line."""

from __future__ import annotations

import json

from accumlint.report.model import Report
from accumlint.report.rdjson import diagnostic


def render(report: Report) -> str:
    """One JSON object a line; nothing at all where nothing was found."""
    source = {"source": {"name": "accumlint"}}
    rows = ({**diagnostic(report, finding), **source} for finding in report.findings)
    return "".join(json.dumps(row) + "\n" for row in rows)
