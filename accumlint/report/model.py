"""What every format is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from accumlint.findings import Finding


class Summary(NamedTuple):
    """Counts of one run: what was looked at, what was hidden, what went wrong.

    ``files_checked`` were read and decided upon; ``files_simulated`` of them went through the simulation,
    ``configurations`` were read by the audit of configurations, the others were ended by a sieve
    (``files_without_accumulation``: sieve -> files). ``files_skipped`` were not looked at (reason -> files).
    ``errors`` are (file, message) of what could not be read or broke.
    """

    files_checked: int = 0
    files_simulated: int = 0
    files_without_accumulation: Mapping[str, int] = {}
    files_skipped: Mapping[str, int] = {}
    configurations: int = 0
    loops: int = 0
    suppressed: int = 0
    baselined: int = 0
    outside_diff: int = 0
    stale_baseline: int = 0
    errors: tuple[tuple[str, str], ...] = ()


class Report(NamedTuple):
    """One run, ready to be shown.

    ``sources`` has the text of every file that a finding stands in; ``places`` leads from a finding's path
    to the path relative to the repository, which is what code hosts want.
    """

    findings: tuple[Finding, ...] = ()
    summary: Summary = Summary()
    sources: Mapping[str, str] = {}
    places: Mapping[str, str] = {}

    def place(self, path: str) -> str:
        return self.places.get(path, path)

    def line(self, path: str, number: int) -> str | None:
        """One line of a source without its end, None where there is no such line."""
        text = self.sources.get(path)
        if text is None or number < 1:
            return None
        lines = split_lines(text)
        return lines[number - 1] if number <= len(lines) else None


def split_lines(text: str) -> list[str]:
    """Lines as Python counts them: form feeds and Unicode separators don't end one."""
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def count_by_severity(findings) -> dict[str, int]:
    """Findings per severity, the gravest first; every severity has an entry."""
    counts = {"error": 0, "warning": 0, "advice": 0}
    for finding in findings:
        counts[finding.severity.label] += 1
    return counts


def count_by_rule(findings) -> dict[str, int]:
    """Findings per rule code, by code."""
    counts: dict[str, int] = {}
    for finding in sorted(findings, key=lambda each: each.rule):
        counts[finding.rule] = counts.get(finding.rule, 0) + 1
    return counts
