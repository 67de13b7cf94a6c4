"""The joint report as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from accumlint.report.audit.markdown import code, escape, place, table
from accumlint.report.audit.merge import Joined, verdict_line
from accumlint.report.audit.model import Finding, by_rule, say
from accumlint.report.audit.model import verdict_line as own_verdict

PLACES_SHOWN = 3


def render(joined: Joined) -> str:
    """The whole document."""
    parts = [
        "# Gradient accumulation audit of many repositories",
        f"**{verdict_line(joined)}**",
        "## Repositories, worst first",
        table(
            ("", "repository", "errors", "warnings", "advice", "accumulating loops", "affected", "revision"),
            (
                [str(n), escape(each.name), str(each.errors), str(each.warnings), str(each.advice), str(each.audit.coverage.accumulating),
                 str(each.affected), code(each.audit.revision.commit[:12]) if each.audit.revision else ""]
                for n, each in enumerate(joined.repositories, 1)
            ),
        ),
        "## Rules, worst first",
        table(
            ("rule", "name", "findings", "errors", "warnings", "repositories"),
            ([each.rule, escape(each.name), str(each.findings), str(each.errors), str(each.warnings), escape(", ".join(each.repositories))] for each in joined.rules),
        ),
    ]  # fmt: skip
    for each in joined.repositories:
        parts += [f"## {escape(each.name)}", escape(own_verdict(each.audit)), *_findings(each.audit.findings)]
    notes = [f"- {escape(each.report)}: {escape(each.reason)}" for each in (*joined.unused, *joined.replaced)]
    if notes:
        parts += ["## Reports that were not used", "\n".join(notes)]
    parts.append(f"Made by accumlint {joined.version}.")
    return "\n\n".join(parts) + "\n"


def _findings(findings: Sequence[Finding]) -> list[str]:
    """A line for each rule, the worst first, with its first places. What others wrote is shown, never rendered."""
    lines = []
    for rule, here in by_rule(findings).items():
        more = f" and {len(here) - PLACES_SHOWN} more" if len(here) > PLACES_SHOWN else ""
        places = ", ".join(place(each) for each in here[:PLACES_SHOWN])
        lines.append(
            f"- {here[0].severity} {rule} {escape(here[0].name)}, {say(len(here), 'place')}: {places}{more}"
        )
    return ["\n".join(lines)] if lines else []
