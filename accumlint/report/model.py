"""What every format is made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from accumlint.findings import Finding, Span
    from accumlint.static.notebooks import Notebook


# Files with findings up to which the text report tells fixes: a hook or a pull request has fewer, and whoever sees a whole
# tree for the first time does not wait for hundreds of simulations.
FILES_WITH_FIXES = 10


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


def count_probed(findings) -> dict[str, int]:
    """Findings per verdict of a probe; both verdicts have an entry."""
    counts = {"confirmed": 0, "refuted": 0}
    for finding in findings:
        if finding.probed is not None:
            counts[finding.probed.verdict] += 1
    return counts


class Report(NamedTuple):
    """One run, ready to be shown.

    ``sources`` has the text of every file that a finding stands in; ``places`` leads from a finding's path
    to the path relative to the repository, which is what code hosts want. In a notebook (``notebooks``: path ->
    its map) the text is that of its code cells joined, and spans are places in it: :meth:`where` and
    :meth:`in_file` translate them for people and for programs that know only files. ``loops`` has the loop
    reports of every script that has any, ``ended`` the sieve that ended a file early.
    """

    findings: tuple[Finding, ...] = ()
    summary: Summary = Summary()
    sources: Mapping[str, str] = {}
    places: Mapping[str, str] = {}
    notebooks: Mapping[str, Notebook] = {}
    loops: Mapping[str, tuple[Any, ...]] = {}
    ended: Mapping[str, str] = {}

    def place(self, path: str) -> str:
        return self.places.get(path, path)

    def cell(self, path: str, line: int) -> tuple[int, int] | None:
        """The cell and the line in it, both from 1, None where the file is no notebook."""
        notebook = self.notebooks.get(path)
        return None if notebook is None else notebook.cell(line)

    def where(self, path: str, line: int, column: int = 0) -> str:
        """``:line:column`` as people read it behind a path, with the cell of a notebook in front."""
        cell = self.cell(path, line)
        text = f":{line}" if cell is None else f":cell {cell[0]}:{cell[1]}"
        return f"{text}:{column}" if column else text

    def in_file(self, span: Span) -> Span:
        """The place in the file itself: another one than ``span`` only in a notebook."""
        notebook = self.notebooks.get(span.path)
        return span if notebook is None else notebook.in_file(span)

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
