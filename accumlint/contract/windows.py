"""From events to windows: which microbatches' gradients meet in which optimizer step.

One ledger per group of optimizers that step together. The gradient buffer is simulated: a backward adds to it,
a clear empties it, a rescale multiplies it, a step uses whatever lies in it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property

from accumlint.contract.events import Event, Kind, Trace
from accumlint.contract.quantity import Quantity


@dataclass
class Contribution:
    """One backward's share of the gradient buffer, with the factors that were applied to it later."""

    event: Event
    order: int
    factors: list[tuple[Quantity | None, Event]] = field(default_factory=list)
    stepped: bool = False
    foreign: bool = False  # another optimizer already stepped on it, for parameters that are not this group's


@dataclass
class Window:
    """Everything between two steps of one group of optimizers.

    ``fresh``: contributions added since the previous step and still there at the step; ``erased``: added and
    cleared before the step (with the event that cleared them); ``stale``: still there from before the previous
    step; ``foreign``: left there by another optimizer's backward. ``events``: all events since the previous step, in order, the step included.
    """

    index: int
    step: Event | None
    events: list[Event]
    fresh: list[Contribution]
    erased: list[tuple[Contribution, Event]]
    stale: list[Contribution]
    foreign: list[Contribution] = field(default_factory=list)

    @cached_property
    def microbatches(self) -> list[int]:
        """Microbatches whose backward belongs to the window, erased ones included, in order."""
        seen = dict.fromkeys(c.event.microbatch for c in self.contributions)
        return list(seen)

    @cached_property
    def contributions(self) -> list[Contribution]:
        return sorted([*self.fresh, *(c for c, _ in self.erased)], key=lambda c: c.order)

    @cached_property
    def size(self) -> int:
        """Number of microbatches."""
        return len(self.microbatches)

    @cached_property
    def batches(self) -> int:
        """Number of microbatches of data in the losses: more than one where a single backward takes their sum."""
        return len({part.batch for c in self.fresh for part in c.event.details["parts"] if part.weight is not None})

    @cached_property
    def alive(self) -> int:
        """Number of microbatches whose gradient reaches the step."""
        return len({c.event.microbatch for c in self.fresh})

    @cached_property
    def crosses(self) -> bool:
        """The window holds microbatches from both sides of the end of a microbatch loop."""
        inside = False
        left = False
        for event in self.events:
            if event.kind is Kind.BACKWARD:
                if left:
                    return True
                inside = True
            elif event.kind is Kind.LOOP and event.details["phase"] == "exit" and inside and event.details["role"] == "micro":
                left = True
        return False

    @cached_property
    def after_loop(self) -> bool:
        """The step stands after the end of the microbatch loop: a flush."""
        for event in reversed(self.events[:-1]):
            if event.kind is Kind.BACKWARD:
                return False
            if event.kind is Kind.LOOP and event.details["phase"] == "exit" and event.details["role"] == "micro":
                return True
        return False

    def between_backwards(self, kind: Kind) -> list[Event]:
        """Events of a kind that stand between the first and the last backward of the window."""
        positions = [i for i, e in enumerate(self.events) if e.kind is Kind.BACKWARD]
        if len(positions) < 2:
            return []
        first, last = positions[0], positions[-1]
        return [e for e in self.events[first + 1 : last] if e.kind is kind]

    def left_loop_between(self, backward: Event, clear: Event, *, epochs: bool = False) -> bool:
        """The microbatch loop ended (with ``epochs``: or a new epoch began) after the backward and before the clear."""
        inside = False
        for event in self.events:
            if event is backward:
                inside = True
            elif event is clear:
                return False
            elif inside and (epochs and event.kind is Kind.EPOCH or event.kind is Kind.LOOP and event.details["phase"] == "exit" and event.details["role"] == "micro"):
                return True
        return False

    def of(self, kind: Kind) -> list[Event]:
        return [event for event in self.events if event.kind is kind]


@dataclass
class Ledger:
    """The windows of one group of optimizers, and what was left when the run ended."""

    trace: Trace
    optimizers: frozenset[int]
    models: frozenset[int] | None
    windows: list[Window]
    pending: Window
    alone: bool  # no other group of optimizers takes part in the trace
    certain_models: bool  # it is known which backward feeds which optimizer

    @cached_property
    def sizes(self) -> list[int]:
        return [window.size for window in self.windows]

    @property
    def outer_gates(self) -> frozenset[int]:
        """Conditions around every backward (``if __name__ == "__main__"``): they decide nothing about windows.

        One that counts to K does, even if both of its arms hold a backward.
        """
        backwards = [c.event for w in [*self.windows, self.pending] for c in w.contributions]
        around = frozenset.intersection(*(frozenset(e.gates) for e in backwards)) if backwards else frozenset()
        return around - self.trace.boundaries

    @cached_property
    def usual(self) -> int:
        """The size of most windows (the larger one of equals); 0 without windows."""
        sizes = [size for size in self.sizes if size]
        if not sizes:
            return 0
        counts = Counter(sizes)
        best = max(counts.values())
        return max(size for size, count in counts.items() if count == best)

    @cached_property
    def accumulates(self) -> bool:
        return any(size > 1 for size in self.sizes) or len({c.event.microbatch for w in self.windows for c in w.stale}) > 1

    def whole(self) -> list[Window]:
        """Windows of the usual size that lost and inherited nothing and do not cross the end of an epoch."""
        return [w for w in self.windows if w.size == self.usual and not w.erased and not w.stale and not w.crosses]


def ledgers(trace: Trace) -> list[Ledger]:
    """All ledgers of a trace. Warm-up passes before the loop that owns the first step are left out."""
    events = _after_warm_up(trace.events)
    groups = _groups(events)
    if not groups:
        return []
    phases = _phases(events, groups)
    if phases is not None and len(groups) > 1:
        return [_ledger(trace, part, group, alone=True, certain=True) for group, part in phases]
    out = []
    for group in groups:
        models = _models(events, group)
        others = [g for g in groups if g is not group]
        certain = models is not None or not others
        out.append(_ledger(trace, events, group, alone=not others, certain=certain))
    return out


def _after_warm_up(events: list[Event]) -> list[Event]:
    """Drop what stands before the loop that owns the first step, when that loop repeats later on."""
    first_step = next((i for i, e in enumerate(events) if e.kind is Kind.STEP), None)
    if first_step is None:
        return events
    loops = set(events[first_step].loops)
    if not loops:
        return events
    start = next((i for i, e in enumerate(events) if loops & set(e.loops)), 0)
    kept = [e for e in events[:start] if e.kind not in (Kind.BACKWARD, Kind.CLIP, Kind.UNSCALE)]
    return [*kept, *events[start:]]


def _groups(events: list[Event]) -> list[frozenset[int]]:
    """Optimizers that step without a backward in between belong together, unless no backward feeds both."""
    parent: dict[int, int] = {}

    def find(x: int) -> int:
        while parent[x] != x:
            x = parent[x]
        return x

    together: list[int] = []
    runs: list[list[int]] = []
    for event in events:
        if event.kind is Kind.STEP:
            parent.setdefault(event.subject, event.subject)
            together.append(event.subject)
        elif event.kind is Kind.BACKWARD and together:
            runs.append(together)
            together = []
    runs.append(together)
    pairs = sorted({(min(a, b), max(a, b)) for run in runs for a in run for b in run if a != b})
    for one, other in pairs:
        if find(one) != find(other) and _fed_together(events, _models(events, frozenset({one})), _models(events, frozenset({other}))):
            parent[find(other)] = find(one)
    found: dict[int, set[int]] = {}
    for subject in parent:
        found.setdefault(find(subject), set()).add(subject)
    return [frozenset(found[key]) for key in sorted(found)]


def _fed_together(events: list[Event], one: frozenset[int] | None, other: frozenset[int] | None) -> bool:
    """Some backward reaches the parameters of both optimizers, or it is not known that none does."""
    if not one or not other or one & other:
        return True
    if _kept_apart(events, one, other) or _kept_apart(events, other, one):
        return False
    reached = [event.details.get("models") for event in events if event.kind is Kind.BACKWARD]
    return any(models is None or models & one and models & other for models in reached)


def _kept_apart(events: list[Event], one: frozenset[int], other: frozenset[int]) -> bool:
    """A loss of one of them takes what the other made, and is kept from it: a critic that judges detached samples."""
    for event in events:
        if event.kind is Kind.BACKWARD:
            models = event.details.get("models")
            if models is not None and models & one and not models & other and event.details.get("cut", frozenset()) & other:
                return True
    return False


def _models(events: list[Event], group: frozenset[int]) -> frozenset[int] | None:
    models: frozenset[int] | None = frozenset()
    for event in events:
        if event.kind is Kind.STEP and event.subject in group:
            inner = event.details.get("models")
            models = None if models is None or inner is None else models | inner
    return models


def _phases(events: list[Event], groups: list[frozenset[int]]) -> list[tuple[frozenset[int], list[Event]]] | None:
    """One group after the other (folds, stages): each with its stretch of the trace; None when they interleave."""
    order: list[frozenset[int]] = []
    for event in events:
        if event.kind is Kind.STEP:
            group = next(g for g in groups if event.subject in g)
            if not order or order[-1] is not group:
                order.append(group)
    if len({id(g) for g in order}) != len(order):
        return None
    out = []
    start = 0
    for index, group in enumerate(order):
        last = max(i for i, e in enumerate(events) if e.kind is Kind.STEP and e.subject in group)
        stop = len(events) if index == len(order) - 1 else last + 1
        out.append((group, events[start:stop]))
        start = stop
    return out


def _concerns(models: frozenset[int] | None, group: frozenset[int] | None) -> bool:
    return models is None or group is None or bool(models & group)


def _ledger(trace: Trace, events: list[Event], group: frozenset[int], alone: bool, certain: bool) -> Ledger:
    models = _models(events, group)
    if alone and models is not None:
        reached = [e.details.get("models") for e in events if e.kind is Kind.BACKWARD]
        if not any(r is None or r & models for r in reached):
            models = None  # the only optimizer there is: it trains what is trained, whatever it was given
    buffer: list[Contribution] = []
    windows: list[Window] = []
    current: list[Event] = []
    erased: list[tuple[Contribution, Event]] = []
    order = 0
    closed = True  # the previous event of interest was a step of this group
    for event in events:
        kind = event.kind
        if kind is Kind.STEP and event.subject in group:
            if closed and windows and not any(e.kind is Kind.BACKWARD for e in current):
                windows[-1].events.append(event)  # stepped together with the one before
                continue
            current.append(event)
            # what is done to gradients after the step is no part of it
            fresh = [replace(c, factors=list(c.factors)) for c in buffer if not c.stepped and not c.foreign]
            stale = [c for c in buffer if c.stepped and not c.foreign]
            foreign = [c for c in buffer if c.foreign]
            windows.append(Window(len(windows), event, current, fresh, erased, stale, foreign))
            for contribution in buffer:
                contribution.stepped = True
            current, erased, closed = [], [], True
            continue
        if kind is Kind.STEP:
            # nobody knows what such a backward reached, and another optimizer was the first to use it: it is theirs
            buffer = [c for c in buffer if c.stepped or c.event.details.get("models") is not None]
            theirs = event.details.get("models")
            if theirs is not None and models is not None and not theirs & models:
                for contribution in buffer:
                    reached = contribution.event.details.get("models")
                    if reached is not None and reached & theirs:
                        contribution.foreign = True
        if kind is Kind.BACKWARD:
            if not _concerns(event.details.get("models"), models):
                continue
            order += 1
            buffer.append(Contribution(event, order))
            closed = False
        elif kind is Kind.CLEAR:
            own = event.subject in group
            if event.subject >= 0 and not own and not _same_models(event, models):
                current.append(event)
                continue
            if not own and not _concerns(event.details.get("models"), models):
                continue
            lost = [c for c in buffer if not c.stepped and not c.foreign]
            erased.extend((c, event) for c in lost)
            buffer = []
        elif kind is Kind.RESCALE and _concerns(event.details.get("models"), models):
            for contribution in buffer:
                contribution.factors.append((event.details["factor"], event))
        current.append(event)
    pending = Window(
        len(windows), None, current, [c for c in buffer if not c.stepped and not c.foreign], erased, [c for c in buffer if c.stepped]
    )
    return Ledger(trace, group, models, windows, pending, alone, certain)


def _same_models(event: Event, models: frozenset[int] | None) -> bool:
    """Another optimizer's zero_grad clears this group's gradients only if it holds the same parameters."""
    theirs = event.details.get("models")
    return theirs is not None and models is not None and bool(theirs & models)
