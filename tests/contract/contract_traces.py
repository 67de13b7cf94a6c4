"""Traces written by hand: a recorder that plays a training loop and notes its events.

Every statement of the imagined script has a site number of its own, so that a test can say where a clause
should point. Numbers of the seed: valid targets 3, 6, 1; summed losses 1.2, 4.8, 0.4; gradient numerators
1.5, -0.6, 0.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction

from accumlint.contract.clauses import judge
from accumlint.contract.events import Event, Horizon, Kind, Part, Subject, Trace
from accumlint.contract.quantity import Quantity
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger

SEED = (3, 6, 1)
SEED_LOSSES = (Fraction("1.2"), Fraction("4.8"), Fraction("0.4"))
SEED_GRADIENTS = (Fraction("1.5"), Fraction("-0.6"), Fraction("0.1"))
USUAL = (3, 6, 1, 4, 4, 4, 2, 5)  # eight microbatches: two windows of three and a rest of two

# sites: the lines of the imagined script
EPOCHS, BATCHES, LOSS, DIVISION, FORWARD, BACKWARD, GATE, UNSCALE, CLIP, STEP, UPDATE, SCHEDULE, CLEAR = range(100, 113)
COUNTER, AVERAGE, SAVE, DUE, LIMIT, RESUME, HORIZON, NO_SYNC, HOOK, SKIP, FLUSH, FLUSH_STEP, REDUCE, RESCALE = range(113, 127)
OTHER_STEP, OTHER_BACKWARD = 127, 128

# subjects
OPTIMIZER, SCHEDULER, SCALER, MODEL, OTHER_OPTIMIZER, OTHER_MODEL = range(1, 7)


class Recorder:
    """Plays one rank's view of a training run. ``counts`` holds valid targets per microbatch, or a pair per rank."""

    def __init__(self, counts=SEED, *, k: int = 3, parallel: str = "", spoken: str = "accum_steps") -> None:
        self.counts = [c if isinstance(c, tuple) else (c, c) for c in counts]
        self.k = k
        self.parallel = parallel
        self.spoken = spoken
        self.events: list[Event] = []
        self.targets: dict[tuple[int, str], tuple[Fraction, ...]] = {}
        self.subjects = {
            OPTIMIZER: Subject(OPTIMIZER, "optimizer", "optimizer", models=frozenset({MODEL})),
            SCHEDULER: Subject(SCHEDULER, "scheduler", "scheduler", optimizer=OPTIMIZER),
            SCALER: Subject(SCALER, "scaler", "scaler"),
            MODEL: Subject(MODEL, "model", "model"),
        }
        self.traits: set[str] = set()
        self.assumptions: tuple[str, ...] = ()
        self.gaps: tuple[str, ...] = ()
        self.disturbed: tuple[int, int, bool] | None = None
        self.microbatch = -1
        self.epoch = 0
        self.position = 0  # within the epoch
        self.gates: tuple[int, ...] = ()
        self.loops: tuple[int, ...] = ()

    # events

    def emit(self, kind: Kind, site: int, subject: int = -1, **details) -> Event:
        event = Event(kind, site, self.microbatch, self.epoch, subject, self.gates, self.loops, (), details)
        self.events.append(event)
        return event

    @contextmanager
    def gate(self, site: int = GATE) -> Iterator[None]:
        self.gates += (site,)
        yield
        self.gates = self.gates[:-1]

    def forward(self, *, sync: bool | None = None) -> None:
        self.emit(Kind.FORWARD, FORWARD, MODEL, sync=sync, parallel=self.parallel)

    def backward(self, *parts: Part, site: int = BACKWARD, models=frozenset({MODEL}), sync=True, backward_sync=None, scaled=False, **details) -> None:
        sync = sync if self.parallel else None
        self.emit(
            Kind.BACKWARD, site, parts=parts or (self.mean(self.k),), models=models, scaled=scaled, forward_sync=sync,
            backward_sync=sync if backward_sync is None else backward_sync, parallel=self.parallel, rank_gated=False, **details,
        )  # fmt: skip

    def step(self, site: int = STEP, subject: int = OPTIMIZER, models=frozenset({MODEL}), scaler: int = -1, **details) -> None:
        self.emit(Kind.STEP, site, subject, models=models, scaler=scaler, **details)

    def clear(self, site: int = CLEAR, subject: int = OPTIMIZER, models=frozenset({MODEL})) -> None:
        self.emit(Kind.CLEAR, site, subject, models=models)

    def schedule(self, **details) -> None:
        self.emit(Kind.SCHEDULE, SCHEDULE, SCHEDULER, absolute=False, optimizer=OPTIMIZER, **details)

    def clip(self, site: int = CLIP, models=frozenset({MODEL}), **details) -> None:
        self.emit(Kind.CLIP, site, models=models, **details)

    def unscale(self) -> None:
        self.emit(Kind.UNSCALE, UNSCALE, SCALER)

    def update(self) -> None:
        self.emit(Kind.SCALER_UPDATE, UPDATE, SCALER)

    def count(self, name: str, value: int = 0, site: int = COUNTER) -> None:
        self.emit(Kind.COUNT, site, name=name, value=value, by=1)

    def save(self, *kinds: str, keys: dict | None = None, holds=frozenset(), opaque=False, resumable=True) -> None:
        self.emit(
            Kind.CHECKPOINT, SAVE, resumable=resumable, kinds=frozenset(kinds), holds=frozenset(holds), keys=keys or {k: "state" for k in kinds},
            opaque=opaque, lacks=(),
        )  # fmt: skip

    # losses of the current microbatch

    def own(self) -> tuple[int, ...]:
        return self.counts[self.position]

    def mean(self, divided_by: int | Quantity = 1, **more) -> Part:
        """The mean over the microbatch's own valid targets, divided once more."""
        divisor = divided_by if isinstance(divided_by, Quantity) else Quantity.of(divided_by, *(("K",) if divided_by == self.k else ()))
        weight = Quantity.per_rank(tuple(Fraction(1, n) for n in self.own())) / divisor
        return Part(self.microbatch, "valid", weight, **{"divisions": (DIVISION,), "varies": True, **more})

    def sum(self, divided_by: int | Quantity = 1, **more) -> Part:
        """The sum over valid targets, divided by a count."""
        divisor = divided_by if isinstance(divided_by, Quantity) else Quantity.of(divided_by)
        return Part(self.microbatch, "valid", Quantity.of(1) / divisor, **{"divisions": (DIVISION,), "varies": True, **more})

    # loops

    def train(self, body: Callable[[int], None], *, epochs: int = 1, after: Callable[[], None] | None = None, synthetic: bool = False, **ends) -> Recorder:
        """Runs ``body(i)`` for every microbatch of every epoch, and ``after()`` at the end of each."""
        for self.epoch in range(epochs):
            self.loops = (EPOCHS,)
            self.emit(Kind.EPOCH, EPOCHS, synthetic=synthetic)
            self.emit(Kind.LOOP, BATCHES, phase="enter", role="micro", whole=True, infinite=False)
            self.loops = (EPOCHS, BATCHES)
            for self.position in range(len(self.counts)):
                self.microbatch += 1
                self.targets[self.microbatch, "valid"] = tuple(map(Fraction, self.own()))
                self.targets[self.microbatch, "unshifted"] = tuple(Fraction(n + 1) for n in self.own())
                self.emit(Kind.MICROBATCH, BATCHES)
                body(self.position)
            self.loops = (EPOCHS,)
            self.emit(Kind.LOOP, BATCHES, phase="exit", role="micro", **{"whole": True, "infinite": False, **ends})
            if after is not None:
                after()
        return self

    def boundary(self, position: int) -> bool:
        return (position + 1) % self.k == 0

    def horizon(self, value: Quantity, **more) -> None:
        self.subjects[SCHEDULER].horizon = Horizon(HORIZON, value, "LambdaLR", **more)

    def trace(self) -> Trace:
        return Trace(
            events=self.events, subjects=self.subjects, window=self.k, window_text=self.spoken, length=len(self.counts), counts=self.targets,
            ranks=2, distributed=bool(self.parallel), assumptions=self.assumptions, gaps=self.gaps, traits=frozenset(self.traits),
            disturbed=self.disturbed,
        )  # fmt: skip

    # verdicts

    def judged(self) -> list[tuple[Ledger, Judgement]]:
        return judge(self.trace())

    @property
    def ledger(self) -> Ledger:
        ((ledger, _),) = self.judged()
        return ledger

    def violations(self) -> dict[str, Violation]:
        """By rule; a rule that speaks twice fails the test."""
        found: dict[str, Violation] = {}
        for _, judgement in self.judged():
            for violation in judgement.violations:
                assert violation.rule not in found, violation
                found[violation.rule] = violation
        return found

    def applied(self) -> set[str]:
        return set().union(*(judgement.applied for _, judgement in self.judged()))


def usual(recorder: Recorder, **options) -> Callable[[int], None]:
    """The body of a correct loop, one piece of which a test replaces: ``clip=None`` leaves it out."""

    def body(i: int) -> None:
        recorder.backward(recorder.sum(window_total(recorder, i)), **options)
        if recorder.boundary(i):
            with recorder.gate():
                recorder.clip()
                recorder.step()
                recorder.schedule()
                recorder.clear()

    return body


def window_total(recorder: Recorder, i: int, average_undone: bool = False) -> Quantity:
    """Valid targets of the window that holds microbatch ``i`` of the epoch, over this process or all ranks."""
    start = i - i % recorder.k
    mine = [sum(n[r] for n in recorder.counts[start : start + recorder.k]) for r in (0, 1)]
    return Quantity.per_rank(tuple(mine), "count") if not average_undone else Quantity.of(sum(mine), "count") / 2
