"""Fixes of one file: offered beside its findings, or applied one after another."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from accumlint.findings import FileReport, Finding, Fix
from accumlint.static.engine import EngineSettings, Examination, Project
from accumlint.static.fixes import editing, verify
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.registry import FIXERS
from accumlint.static.fixes.script import Script, Unfixable

_LOG = logging.getLogger(__name__)

# Every candidate costs a simulation of the file, so they are bounded: the fixers put the likely ones first.
MAX_CANDIDATES = 8
# A change may uncover what the finding hid (a clear that is moved leaves a tail behind); how far that is followed.
MAX_UNCOVERED = 2
# Passes over the findings of a file: a finding that can't be fixed may be after others were.
MAX_PASSES = 5
# A first look at a candidate follows this many paths of each root: most that fail are seen to fail there.
GLANCE = 2
# What offering fixes may cost beside a report, in steps of the simulation: a script of 100 lines takes a few thousand of
# them, 40,000 a second on a slow core.
OFFER_WORK = 200_000


class Applied(NamedTuple):
    """One finding that was fixed."""

    finding: Finding
    fix: Fix


class Fixed(NamedTuple):
    """A source after its fixes, and what they were."""

    source: bytes
    applied: tuple[Applied, ...]


def fixes_for(
    source: bytes,
    path: str,
    findings: Iterable[Finding],
    project: Project,
    settings: EngineSettings,
    max_work: int | None = OFFER_WORK,
) -> list[Fix | None]:
    """A fix, or None, for each of the findings of one file as it is now.

    ``source`` are the bytes that the findings were made from, ``path`` the name that they carry. ``project`` is one
    that is used for this file alone: afterwards it tells what the answer rests on. ``max_work`` bounds the simulations,
    in steps (None: no bound); beyond it nothing more is tried. Each fix stands for itself: applying one makes the others
    stale. Findings of other rules, in other files, or that the engine doesn't make of this source get None. Never
    raises for what the file holds.
    """
    wanted = list(findings)
    nothing: list[Fix | None] = [None] * len(wanted)
    if not any(finding.rule in FIXERS and finding.span.path == path for finding in wanted):
        return nothing
    workshop = _Workshop(path, project, settings, max_work)
    bench = workshop.bench(source)
    if bench is None:
        return nothing
    found = {verify.key(finding): finding for finding in bench.report.findings}
    out: list[Fix | None] = []
    for finding in wanted:
        own = found.get(verify.key(finding))
        change = workshop.change(bench, own) if own is not None else None
        out.append(change.fix(bench) if change is not None else None)
    return out


def with_fixes(
    source: bytes, path: str, findings: Sequence[Finding], project: Project, settings: EngineSettings
) -> list[Finding]:
    """The findings of one file, each with its fix where there is one."""
    fixes = fixes_for(source, path, findings, project, settings)
    return [
        finding if fix is None else dataclasses.replace(finding, fix=fix)
        for finding, fix in zip(findings, fixes)
    ]


def fix_file(
    source: bytes,
    path: str,
    findings: Sequence[Finding],
    project: Project,
    settings: EngineSettings,
    unsafe: bool = False,
) -> Fixed:
    """Apply the fixes of these findings, one after another, each to what the one before it left.

    After each, the file is simulated again; what is no longer found needs no fix. ``unsafe``: unsafe ones too.
    """
    workshop = _Workshop(path, Project(project.root), settings)
    bench = workshop.bench(source)
    if bench is None:
        return Fixed(source, ())
    applied: list[Applied] = []
    waiting = [verify.key(finding) for finding in findings]
    for _ in range(MAX_PASSES):
        before = len(applied)
        failed: list[verify.Key] = []
        while waiting:
            place = waiting.pop(0)
            finding = next((each for each in bench.report.findings if verify.key(each) == place), None)
            change = workshop.change(bench, finding, safe_only=not unsafe) if finding is not None else None
            if finding is None or change is None:
                failed += [place] * (finding is not None)
                continue
            applied.append(Applied(finding, change.fix(bench)))
            mapping = editing.Mapping(bench.script.text, change.bench.script.text)
            held = verify.remaining(bench.report, change.bench.report, mapping)
            waiting = [verify.key(held[each]) for each in waiting if each in held]
            failed = [verify.key(held[each]) for each in failed if each in held]
            bench = change.bench
        waiting = failed
        if len(applied) == before:
            break
    return Fixed(bench.script.source, tuple(applied))


def _proposals(script: Script, finding: Finding) -> Iterator[Proposal]:
    """What the fixers of the rule propose; one that breaks costs what it would have proposed, and is said."""
    for fixer in FIXERS.get(finding.rule, ()):
        try:
            yield from fixer(script, finding)
        except Exception as error:  # noqa: BLE001 - a fix that can't be made must not take the report along
            place = f"{script.path}:{finding.span.line}: {finding.rule}"
            _LOG.warning("accumlint: %s: no fix could be made (%r); please report it", place, error)


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
    """Tries changes of one file out; ``tired`` once that has cost more steps than it may."""

    def __init__(
        self, path: str, project: Project, settings: EngineSettings, max_work: int | None = None
    ) -> None:
        self.path, self.project, self.settings = path, project, settings
        self.max_work = max_work
        self.work = 0

    @property
    def tired(self) -> bool:
        return self.max_work is not None and self.work >= self.max_work

    def _examined(self, source: bytes, **how: int) -> Examination | None:
        examined = verify.simulate(source, self.path, self.project, self.settings, **how)
        self.work += examined.work if examined is not None else 0
        return examined

    def bench(self, source: bytes) -> _Bench | None:
        """The source parsed and simulated, None where that isn't possible."""
        examined = self._examined(source)
        if examined is None:
            return None
        try:
            return _Bench(Script(source, self.path, examined), examined.report)
        except Unfixable:
            return None

    def change(
        self, bench: _Bench, finding: Finding, depth: int = 0, safe_only: bool = False
    ) -> _Change | None:
        """The first change that holds: a safe one before an unsafe one, one by itself before one that needs another."""
        if finding.span.path != self.path:
            return None
        fallback = None
        uncovering: list[tuple[Proposal, _Change, list[Finding]]] = []
        tried: set[tuple[Change, ...]] = set()
        for proposal in _proposals(bench.script, finding):
            if len(tried) >= MAX_CANDIDATES or self.tired:
                return None if safe_only else fallback
            if proposal.changes in tried or proposal.why_unsafe and (safe_only or fallback is not None):
                continue  # it was tried, or can't be what is wanted however it turns out
            tried.add(proposal.changes)
            made = self._made(bench, finding, proposal)
            if made is None:
                continue
            change, uncovered = made
            if uncovered:
                uncovering.append((proposal, change, uncovered))
                continue
            settled = self._settled(bench, proposal, change)
            if settled is not None and settled.safe:
                return settled
            fallback = fallback or settled
        for proposal, change, uncovered in uncovering if fallback is None else ():
            settled = self._settled(bench, proposal, self._with(change, uncovered, depth))
            if settled is not None and settled.safe:
                return settled
            fallback = fallback or settled
        return None if safe_only else fallback

    def _made(
        self, bench: _Bench, finding: Finding, proposal: Proposal
    ) -> tuple[_Change, list[Finding]] | None:
        """(the change, what it uncovers), None where the finding stays or the windows are no longer followed."""
        try:
            text = editing.apply(bench.script.text, proposal.changes)
        except editing.Overlap:
            return None
        source = editing.encoded(text, bench.script.encoding)
        if source is None or source == bench.script.source:
            return None
        mapping = editing.Mapping(bench.script.text, text)
        if len(bench.script.traces) > 2 * GLANCE:
            glance = self._examined(source, max_paths=GLANCE)
            if glance is None or verify.key(finding) in verify.remaining(
                bench.report, glance.report, mapping
            ):
                return None
        after = self.bench(source)
        if after is None or not verify.still_sees(bench.report, after.report):
            return None
        if verify.key(finding) in verify.remaining(bench.report, after.report, mapping):
            return None
        change = _Change(proposal.title, not proposal.why_unsafe, proposal.why_unsafe, after)
        return change, verify.new(bench.report, after.report, mapping)

    def _with(self, change: _Change, uncovered: list[Finding], depth: int) -> _Change | None:
        """The change together with fixes of all that it uncovered."""
        together: _Change | None = change
        for finding in uncovered:
            together = self._and_then(together, finding, depth) if together is not None else None
        return together

    def _settled(self, bench: _Bench, proposal: Proposal, change: _Change | None) -> _Change | None:
        """The change as it may be offered: nothing new, no call lost, and safe only where K = 1 stays as it was."""
        if change is None:
            return None
        before, after = bench.script.traces, change.bench.script.traces
        mapping = editing.Mapping(bench.script.text, change.bench.script.text)
        if verify.new(bench.report, change.bench.report, mapping) or verify.loses_calls(before, after):
            return None
        if verify.idle_steps(after) > verify.idle_steps(before):
            return None
        if change.safe and not proposal.moves_boundary and not verify.same_at_boundaries(before, after):
            change = change._replace(safe=False, why_unsafe=proposal.if_reordered)
        return change

    def _and_then(self, change: _Change, uncovered: Finding, depth: int) -> _Change | None:
        """The change together with a fix of what it uncovered."""
        if depth >= MAX_UNCOVERED:
            return None
        found = next(
            (
                f
                for f in change.bench.report.findings
                if (f.rule, f.message) == (uncovered.rule, uncovered.message)
            ),
            None,
        )
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
