"""The joint report as JSON (schema ``accumlint/audit-merge/v1``): the ranks and counts, not the findings again."""

from __future__ import annotations

import json

from accumlint.report.audit.merge import SCHEMA, Joined


def render(joined: Joined) -> str:
    """The whole document."""
    repositories = [
        {
            "name": each.name,
            "commit": each.audit.revision.commit if each.audit.revision else None,
            "committed": each.audit.revision.committed if each.audit.revision else None,
            "version": each.audit.version,
            "errors": each.errors,
            "warnings": each.warnings,
            "advice": each.advice,
            "accumulating_loops": each.audit.coverage.accumulating,
            "affected_loops": each.affected,
            "files": each.audit.coverage.files,
        }
        for each in joined.repositories
    ]
    rules = [
        {
            "rule": each.rule,
            "name": each.name,
            "findings": each.findings,
            "errors": each.errors,
            "warnings": each.warnings,
            "repositories": list(each.repositories),
        }
        for each in joined.rules
    ]
    document = {
        "schema": SCHEMA,
        "version": joined.version,
        "repositories": repositories,
        "rules": rules,
        "unused": [{"report": each.report, "reason": each.reason} for each in joined.unused],
        "replaced": [{"name": each.report, "reason": each.reason} for each in joined.replaced],
    }
    return json.dumps(document, indent=1) + "\n"
