"""``--format rdjsonl``: the diagnostics of rdjson, one a line."""

from __future__ import annotations

import json

from accumlint.report.model import Report
from accumlint.report.rdjson import SOURCE, diagnostic


def render(report: Report) -> str:
    """One JSON object a line; nothing at all where nothing was found."""
    rows = ({**diagnostic(report, finding), "source": SOURCE} for finding in report.findings)
    return "".join(json.dumps(row) + "\n" for row in rows)
