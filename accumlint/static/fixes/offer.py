"""Fixes of one file: offered beside its findings, or applied one after another."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import libcst as cst

from accumlint.findings import FileReport, Finding, Fix
from accumlint.static.engine import EngineSettings, Project
from accumlint.static.fixes import editing, verify
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.registry import FIXERS
from accumlint.static.fixes.script import Script, Unfixable

# Every candidate costs a simulation of the file, so they are bounded: the fixers put the likely ones first.
MAX_CANDIDATES = 8
# A change may uncover what the finding hid (a clear that is moved leaves a tail behind); how far that is followed.
MAX_UNCOVERED = 2
MAX_ROUNDS = 60


class Applied(NamedTuple):
    """One finding that was fixed."""

    finding: Finding
    fix: Fix


class Fixed(NamedTuple):
    """A source after its fixes, and what they were."""

    source: bytes
    applied: tuple[Applied, ...]


def fixes_for(
    source: bytes, path: str, findings: Iterable[Finding], project: Project, settings: EngineSettings
) -> list[Fix | None]:
    """A fix, or None, for each of the findings of one file as it is now.

    ``source`` are the bytes that the findings were made from, ``path`` the name that they carry. ``project`` is one
    that is used for this file alone: afterwards it tells what the answer rests on. Each fix stands for itself: applying
    one makes the others stale. Findings of other rules, in other files, or that the engine doesn't make of this source
    get None. Never raises for what the file holds.
    """
    wanted = list(findings)
    if not any(finding.rule in FIXERS and finding.span.path == path for finding in wanted):
        return [None] * len(wanted)
    workshop = _Workshop(path, project, settings)
    bench = workshop.bench(source)
    if bench is None:
        return [None] * len(wanted)
    found = {verify.key(finding): finding for finding in bench.report.findings}
    out: list[Fix | None] = []
    for finding in wanted:
        own = found.get(verify.key(finding))
        change = workshop.change(bench, own) if own is not None else None
        out.append(change.fix(bench) if change is not None else None)
    return out


def fix_file(
    source: bytes, path: str, findings: Sequence[Finding], project: Project, settings: EngineSettings, unsafe: bool = False
) -> Fixed:
    """Apply the fixes of these findings, one after another, each to what the one before it left.

    After each, the file is simulated again; what is no longer found needs no fix. ``unsafe``: unsafe ones too.
    """
    workshop = _Workshop(path, Project(project.root), settings)
    bench = workshop.bench(source)
    if bench is None:
        return Fixed(source, ())
    waiting = {verify.key(finding) for finding in findings}
    wanted = {id(finding) for finding in bench.report.findings if verify.key(finding) in waiting}
    applied: list[Applied] = []
    for _ in range(MAX_ROUNDS):
        step = next(workshop.changes(bench, wanted, unsafe), None)
        if step is None:
            break
        finding, change = step
        applied.append(Applied(finding, change.fix(bench)))
        following = change.bench
        held = verify.remaining(bench.report, following.report, editing.Mapping(bench.script.text, following.script.text))
        known = {verify.key(each): id(each) for each in bench.report.findings}
        wanted = {id(each) for place, each in held.items() if known[place] in wanted}
        bench = following
    return Fixed(bench.script.source, tuple(applied))


class _Bench(NamedTuple):
    """A source with what the engine says of it."""

    script: Script
    report: FileReport


class _Change(NamedTuple):
    """A change that was tried out: where it leads, and what is to be said of it."""

    title: str
    safe: bool
    why_unsafe: str
    bench: _Bench

    def fix(self, before: _Bench) -> Fix:
        """The change as edits of the source before it."""
        changes = editing.between(before.script.text, self.bench.script.text)
        edits = editing.as_edits(changes, before.script.lines, before.script.path)
        return Fix(self.title, self.safe, edits, self.why_unsafe)


class _Workshop:
    """Tries changes of one file out, and remembers what it tried."""

    def __init__(self, path: str, project: Project, settings: EngineSettings) -> None:
        self.path, self.project, self.settings = path, project, settings
        self._benches: dict[bytes, _Bench | None] = {}

    def bench(self, source: bytes) -> _Bench | None:
        """The source parsed and simulated, None where that isn't possible."""
        if source not in self._benches:
            self._benches[source] = self._made(source)
        return self._benches[source]

    def _made(self, source: bytes) -> _Bench | None:
        report = verify.simulate(source, self.path, self.project, self.settings)
        if report is None or report.skipped:
            return None
        try:
            return _Bench(Script(source, self.path, self.project, self.settings), report)
        except (Unfixable, cst.ParserSyntaxError, RecursionError):
            return None

    def changes(self, bench: _Bench, wanted: set[int], unsafe: bool) -> Iterator[tuple[Finding, _Change]]:
        """(finding, change) for the findings that can be fixed as asked."""
        for finding in bench.report.findings:
            if id(finding) in wanted:
                change = self.change(bench, finding)
                if change is not None and (change.safe or unsafe):
                    yield finding, change

    def change(self, bench: _Bench, finding: Finding, depth: int = 0) -> _Change | None:
        """The first change that holds, a safe one before an unsafe one of the same fixer's list."""
        if finding.span.path != self.path:
            return None
        fallback = None
        tried = 0
        for fixer in FIXERS.get(finding.rule, ()):
            for proposal in fixer(bench.script, finding):
                if tried >= MAX_CANDIDATES:
                    return fallback
                tried += 1
                change = self._try(bench, finding, proposal, depth)
                if change is not None and change.safe:
                    return change
                fallback = fallback or change
        return fallback

    def _try(self, bench: _Bench, finding: Finding, proposal: Proposal, depth: int) -> _Change | None:
        try:
            text = editing.apply(bench.script.text, proposal.changes)
        except editing.Overlap:
            return None
        source = editing.encoded(text, bench.script.encoding)
        if source is None or source == bench.script.source:
            return None
        after = self.bench(source)
        if after is None or not verify.still_sees(bench.report, after.report):
            return None
        mapping = editing.Mapping(bench.script.text, text)
        if verify.key(finding) in verify.remaining(bench.report, after.report, mapping):
            return None
        change = _Change(proposal.title, not proposal.why_unsafe, proposal.why_unsafe, after)
        for uncovered in verify.new(bench.report, after.report, mapping):
            change = self._and_then(change, uncovered, depth)
            if change is None:
                return None
        mapping = editing.Mapping(bench.script.text, change.bench.script.text)
        if verify.new(bench.report, change.bench.report, mapping):
            return None
        if verify.idle_steps(change.bench.script.traces) > verify.idle_steps(bench.script.traces):
            return None
        if change.safe and not proposal.moves_boundary and not verify.same_at_boundaries(bench.script.traces, change.bench.script.traces):
            change = change._replace(safe=False, why_unsafe=proposal.if_reordered)
        return change

    def _and_then(self, change: _Change, uncovered: Finding, depth: int) -> _Change | None:
        """The change together with a fix of what it uncovered."""
        if depth >= MAX_UNCOVERED:
            return None
        found = next((f for f in change.bench.report.findings if (f.rule, f.message) == (uncovered.rule, uncovered.message)), None)
        if found is None:
            return change
        following = self.change(change.bench, found, depth + 1)
        if following is None:
            return None
        reasons = [reason for reason in (change.why_unsafe, following.why_unsafe) if reason]
        return _Change(
            f"{change.title}, and {following.title[:1].lower()}{following.title[1:]}",
            change.safe and following.safe,
            "; ".join(dict.fromkeys(reasons)),
            following.bench,
        )


def with_fixes(
    source: bytes, path: str, findings: Sequence[Finding], project: Project, settings: EngineSettings
) -> list[Finding]:
    """The findings of one file, each with its fix where there is one."""
    fixes = fixes_for(source, path, findings, project, settings)
    return [finding if fix is None else dataclasses.replace(finding, fix=fix) for finding, fix in zip(findings, fixes)]
