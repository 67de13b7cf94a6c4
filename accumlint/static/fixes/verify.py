"""Whether a changed script keeps the contract better than before: it is simulated again, and nothing new may be found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

import libcst as cst

from accumlint.contract.events import Event, Kind, Trace
from accumlint.findings import FileReport, Finding
from accumlint.static.engine import EngineSettings, Examination, Project, examination
from accumlint.static.explore import MAX_PATHS
from accumlint.static.fixes.editing import Mapping

Key = tuple[str, str, int | None]  # rule, path, line before the change (None: on a line that is new)


def simulate(
    source: bytes, path: str, project: Project, settings: EngineSettings, max_paths: int = MAX_PATHS
) -> Examination | None:
    """What the engine says of a source, None where it can't be read."""
    try:
        return examination(source, path, project, settings, max_paths, evenly=True)
    except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, RecursionError):
        return None


def key(finding: Finding) -> Key:
    return finding.rule, finding.span.path, finding.span.line


def _mapped(finding: Finding, mapping: Mapping, path: str) -> Key:
    if finding.span.path != path:
        return key(finding)
    return finding.rule, path, mapping.back(finding.span.line)


def remaining(before: FileReport, after: FileReport, mapping: Mapping) -> dict[Key, Finding]:
    """Findings of ``before``, by key, that are still found ``after``, told as they are found there.

    A finding on a line that the change moved or rewrote is the one of its rule that stood on a line it removed.
    """
    known = {key(finding): finding for finding in before.findings}
    out: dict[Key, Finding] = {}
    loose = []
    for finding in after.findings:
        place = _mapped(finding, mapping, before.path)
        if place in known and place not in out:
            out[place] = finding
        elif place[2] is None:
            loose.append(finding)
    for finding in loose:
        moved = next(
            (
                k
                for k in known
                if k[0] == finding.rule and k[1] == before.path and k not in out and k[2] in mapping.removed
            ),
            None,
        )
        if moved is not None:
            out[moved] = finding
    return out


def new(before: FileReport, after: FileReport, mapping: Mapping) -> list[Finding]:
    """Findings after the change that were not there before it."""
    held = Counter(id(finding) for finding in remaining(before, after, mapping).values())
    return [finding for finding in after.findings if not held[id(finding)]]


def still_sees(before: FileReport, after: FileReport) -> bool:
    """Whether the windows are still followed as far as before: a change that blinds the simulation proves nothing."""
    if len(_drawn(after)) < len(_drawn(before)):
        return False
    gaps = {gap for loop in before.loops for gap in loop.not_followed}
    if any(gap not in gaps for loop in after.loops for gap in loop.not_followed):
        return False
    return all(size >= k for size, k in map(_largest, _drawn(after)) if k) or not _drawn(before)


def _drawn(report: FileReport) -> list[Sequence[dict]]:
    return [loop.timelines for loop in report.loops if loop.timelines]


def _largest(timelines: Iterable[dict]) -> tuple[int, int]:
    """(the most microbatches that a window holds, K) of one loop."""
    sizes = [len(window["microbatches"]) for timeline in timelines for window in timeline["windows"]]
    return max(sizes, default=0), max((timeline["k"] for timeline in timelines), default=0)


_CALLS = (
    Kind.BACKWARD, Kind.REDUCE, Kind.RESCALE, Kind.UNSCALE, Kind.CLIP, Kind.STEP, Kind.SCALER_UPDATE, Kind.SCHEDULE, Kind.AVERAGE, Kind.CHECKPOINT,
)  # fmt: skip


def boundaries(trace: Trace) -> tuple:
    """What happens, in which order, on every microbatch whose optimizer step comes: all that a run with K = 1 does.

    Where a clear stands between a step and the next backward makes no difference, so it shows only in what it
    leaves or takes.
    """
    out: list[tuple] = []
    stepped = {event.microbatch for event in trace.events if event.kind is Kind.STEP}
    old = False  # gradients that a step has used are still there
    fresh = -1  # the microbatch whose backward has not been stepped or cleared
    numbers: dict[int, int] = {}  # subjects by their first appearance here: their names are the witness's own

    def add(event: Event, remark: str = "") -> None:
        out.append((event.microbatch, event.kind, numbers.setdefault(event.subject, len(numbers)), remark))

    for event in trace.events:
        if event.kind is Kind.CLEAR:
            if fresh == event.microbatch and fresh in stepped:
                add(event, "of what was just computed")
            old, fresh = False, -1
        elif event.kind in _CALLS and event.microbatch in stepped:
            add(event, "onto old gradients" if old and event.kind is Kind.BACKWARD else "")
        if event.kind is Kind.BACKWARD:
            fresh = event.microbatch
        elif event.kind is Kind.STEP:
            old, fresh = True, -1
    return tuple(out)


def same_at_boundaries(before: Iterable[Trace], after: Iterable[Trace]) -> bool:
    """Whether the last microbatch of every window does the same as before, in the same order, on all paths."""
    return {boundaries(trace) for trace in before} == {boundaries(trace) for trace in after}


_ONCE = frozenset({Kind.UNSCALE, Kind.CLIP, Kind.SCALER_UPDATE, Kind.SCHEDULE, Kind.CLEAR, Kind.AVERAGE})


def _kinds(trace: Trace) -> frozenset[Kind]:
    return frozenset(event.kind for event in trace.events) & _ONCE


def loses_calls(before: Iterable[Trace], after: Iterable[Trace]) -> bool:
    """Whether something that happened on a path with steps no longer does on any path that agrees with it in all decisions."""
    later = [(dict(trace.flags), _kinds(trace)) for trace in after]
    for trace in before:
        if not any(event.kind is Kind.STEP for event in trace.events):
            continue
        flags = dict(trace.flags)
        alike = [
            kinds
            for decided, kinds in later
            if all(flags.get(key, value) == value for key, value in decided.items())
        ]
        if alike and _kinds(trace) - frozenset().union(*alike):
            return True
    return False


def idle_steps(traces: Iterable[Trace]) -> int:
    """The most steps of one path that come without a backward since the step before: they apply nothing, or old gradients."""
    most = 0
    for trace in traces:
        idle = 0
        stepped: set[int] = set()
        for event in trace.events:
            if event.kind is Kind.BACKWARD:
                stepped.clear()
            elif event.kind is Kind.STEP:
                idle += event.subject in stepped
                stepped.add(event.subject)
        most = max(most, idle)
    return most
