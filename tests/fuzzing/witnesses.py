"""What the two witnesses tell of one script, in a form in which it can be compared event by event."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from fractions import Fraction

from accumlint.contract import weights
from accumlint.contract.clauses.c3_sync import synchronised
from accumlint.contract.events import Kind, Trace
from accumlint.contract.windows import Ledger, ledgers
from accumlint.probe.assemble import assemble
from accumlint.probe.records import Recording
from accumlint.static.engine import EngineSettings, Places, Project, spoken_of
from accumlint.static.explore import Explorer

from .generate import K

COMPARED = (Kind.BACKWARD, Kind.STEP, Kind.CLEAR, Kind.SCHEDULE, Kind.UNSCALE, Kind.CLIP, Kind.SCALER_UPDATE, Kind.CHECKPOINT)


@dataclass
class Told:
    """One witness: events as (kind, line, microbatch), windows as microbatches with the weight of a target of each.

    Microbatches are numbered by their backwards; an event carries the number of the last one before it. ``sync`` says
    for each microbatch whether its gradients meet those of other ranks. A ledger is one group of optimizers, found by
    the lines of its steps.
    """

    events: list[tuple[str, int, int]] = field(default_factory=list)
    windows: dict[tuple[int, ...], list[dict[int, Fraction | None]]] = field(default_factory=dict)
    whole: dict[tuple[int, ...], list[bool]] = field(default_factory=dict)  # windows that lost and inherited nothing
    counts: dict[tuple[int, ...], list[dict[int, Fraction]]] = field(default_factory=dict)
    ratios: dict[tuple[int, ...], list[set[Fraction | None]]] = field(default_factory=dict)
    pending: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    sync: list[bool | str | None] = field(default_factory=list)
    flags: tuple = ()


def told(trace: Trace, line) -> Told:
    """A trace in comparable form; ``line`` turns a site into a line."""
    out = Told(flags=trace.flags)
    numbers: dict[int, int] = {}
    for event in trace.events:
        if event.kind is Kind.BACKWARD:
            numbers.setdefault(event.microbatch, len(numbers))
            out.sync.append(synchronised(event) if event.details.get("parallel") else None)
        if event.kind in COMPARED:
            out.events.append((event.kind.value, line(event.site), len(numbers) - 1))
    for ledger in ledgers(trace):
        key = tuple(sorted({line(w.step.site) for w in ledger.windows if w.step is not None}))
        out.windows[key] = [_weights(ledger, window, trace, numbers) for window in ledger.windows]
        out.whole[key] = [not window.stale and not window.erased for window in ledger.windows]
        out.counts[key] = [{numbers[s.microbatch]: s.count[0] for s in weights.shares(window, trace)} for window in ledger.windows]
        out.ratios[key] = [{r for s in weights.shares(w, trace) for r in (s.ratio or (None,))} for w in ledger.windows]
        out.pending[key] = sorted({numbers[c.event.microbatch] for c in ledger.pending.fresh})
    return out


def _weights(ledger: Ledger, window, trace: Trace, numbers: dict[int, int]) -> dict[int, Fraction | None]:
    found: dict[int, Fraction | None] = {}
    for share in weights.shares(window, trace):
        number = numbers[share.microbatch]
        own = share.weight[0] if share.weight is not None else None
        before = found.get(number, Fraction(0))
        found[number] = None if own is None or before is None else before + own
    for contribution in window.stale:
        found.setdefault(numbers[contribution.event.microbatch], None)  # it reaches the step once more
    return found


def read(source: str) -> list[Told]:
    """All paths that the simulation takes through a script, one after the other."""
    project = Project(".")
    module = project.parse(source.encode(), "script.py", "script")
    places = Places(module, project)
    explorer = Explorer(module, EngineSettings().names(), spoken=spoken_of(source.encode()))
    return [told(trace, places.line) for root in explorer.explore() for trace in root.traces]


def recorded(recordings: tuple[Recording, ...]) -> Told | None:
    """What a run did; None without a backward."""
    made = assemble(recordings, 3)
    if made is None:
        return None

    def line(site: int) -> int:
        place = made.sites.place(site)
        return place[1] if place is not None else 0

    return told(made.trace, line)


def _strange(ours: list[dict[int, Fraction]], theirs: list[dict[int, Fraction]]) -> set[int]:
    """Microbatches with other data in the run than in the simulation, whose data only ever go on: a run begins anew
    where a loop leaves an epoch early, or looks at a batch beforehand."""
    one, two = ({number: count for window in told for number, count in window.items()} for told in (ours, theirs))
    return {number for number in one.keys() | two.keys() if one.get(number) != two.get(number)}


def _around(numbers: Iterable[int]) -> range:
    """The microbatches that a count of targets can be over: a window of K, even where steps come more often."""
    held = sorted(numbers)
    more = max(0, K - len(held))
    return range(held[0] - more, held[-1] + more + 1) if held else range(0)


def without(told: Told, lines: set[int]) -> Told:
    """Without what happens at some lines: the Trainer of Lightning clears once before it begins."""
    return replace(told, events=[event for event in told.events if event[1] not in lines])


def placeless(told: Told) -> Told:
    """What a framework drives happens at no line of the script, and it clears before a window or after one."""
    events = [(kind, 0, number) for kind, _, number in told.events if kind != Kind.CLEAR.value]
    return replace(told, events=events, **{name: {(0,): held for held in getattr(told, name).values()} for name in ("windows", "whole", "counts", "ratios", "pending")})


def differences(ours: Told, theirs: Told, tolerance: float = 1e-9) -> list[str]:
    """Where two tellings part, most telling first; empty when they agree."""
    out = []
    if ours.events != theirs.events:
        at = next((i for i, (a, b) in enumerate(zip(ours.events, theirs.events)) if a != b), min(len(ours.events), len(theirs.events)))
        mine = ours.events[at] if at < len(ours.events) else "the end"
        other = theirs.events[at] if at < len(theirs.events) else "the end"
        out.append(f"event {at}: simulated {mine}, run {other}")
    if ours.sync != theirs.sync:
        out.append(f"sync: simulated {ours.sync}, run {theirs.sync}")
    if set(ours.windows) != set(theirs.windows):
        return [*out, f"optimizers: simulated {sorted(ours.windows)}, run {sorted(theirs.windows)}"]
    for key, windows in ours.windows.items():
        mine, other = [sorted(w) for w in windows], [sorted(w) for w in theirs.windows[key]]
        if mine != other:
            out.append(f"windows: simulated {mine}, run {other}")
            continue
        mine_right, other_right = (all(r == {1} for r, whole in zip(t.ratios[key], t.whole[key]) if whole) for t in (ours, theirs))
        if mine_right != other_right:
            out.append(f"all weights right: simulated {mine_right}, run {other_right}")
        strange = _strange(ours.counts[key], theirs.counts[key])
        for index, (a, b) in enumerate(zip(windows, theirs.windows[key])):
            if not (ours.whole[key][index] and theirs.whole[key][index]):
                continue  # gradients of other windows are in it: what a target weighs there is not said by both in one way
            if not strange.isdisjoint(_around(a)):
                continue
            for number in a:
                one, two = a[number], b[number]
                if (one is None) != (two is None) or one is not None and two is not None and abs(one - two) > tolerance:
                    out.append(f"weight of microbatch {number} in window {index}: simulated {one}, run {two}")
                    break
            else:
                continue
            break
    return out

