"""What happens in a training loop, as both witnesses tell it: events in order, and the trace they make.

Places are ``site`` numbers: the witness that made the trace can turn one into a line; the contract only
compares them.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from accumlint.contract.quantity import Quantity


class Kind(enum.Enum):
    """The kinds of event; the value is the lane in which reports draw it."""

    LOOP = "loop"  # a loop that carries microbatches begins or ends (phase: enter, exit)
    EPOCH = "epoch"  # an iteration of a loop around the microbatch loop begins
    MICROBATCH = "microbatch"
    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCE = "reduce"  # the script itself reduces gradients over ranks
    RESCALE = "rescale"  # the script multiplies gradients by a factor
    UNSCALE = "unscale"
    CLIP = "clip"
    STEP = "step"
    SCALER_UPDATE = "scaler"
    SCHEDULE = "schedule"
    CLEAR = "clear"
    COUNT = "counter"
    RESTART = "restart"  # the script sets a counter back to a constant
    AVERAGE = "ema"
    CHECKPOINT = "checkpoint"
    PERIODIC = "periodic"  # a test `counter % n == 0` held, outside of any step gate
    LIMIT = "limit"  # a counter was compared with a limit
    RESUME = "resume"  # a number from a checkpoint goes into a counter or decides what is skipped


@dataclass(frozen=True, slots=True)
class Part:
    """One additive part of a loss: which targets it sums and with which coefficient each of them counts.

    ``batch`` is the microbatch whose targets they are; ``basis`` is ``fixed`` (every microbatch has the same
    number of targets), ``valid`` (valid targets after shift and mask) or ``unshifted`` (label positions before
    the shift). ``weight`` is what each target receives, None when unknown (``reason`` says why). ``assumed``:
    that the loss is a mean rests on convention only. ``divisions``: sites where it was divided or multiplied.
    """

    batch: int
    basis: str
    weight: Quantity | None
    assumed: bool = False
    reason: str = ""
    reduced_at: int = -1
    divisions: tuple[int, ...] = ()
    varies: bool = False  # there is evidence that the number of targets differs between microbatches


@dataclass(slots=True)
class Event:
    """One thing that happened.

    ``subject``: the optimizer, scheduler or model (a stable number within the trace), -1 when unknown.
    ``gates``: sites of the enclosing conditions, outermost first. ``loops``: sites of the enclosing loops.
    ``stack``: call sites, outermost first. ``details`` depend on the kind and are listed in TRACE_DETAILS.
    """

    kind: Kind
    site: int
    microbatch: int
    epoch: int
    subject: int = -1
    gates: tuple[int, ...] = ()
    loops: tuple[int, ...] = ()
    stack: tuple[int, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


# kind -> what its details hold
TRACE_DETAILS = {
    Kind.LOOP: "phase, role, whole (the loader's own end was reached), infinite",
    Kind.FORWARD: "sync (True, False, None unknown), parallel",
    Kind.BACKWARD: "parts, models (or None), cut (models whose outputs were detached on the way), scaled, forward_sync, backward_sync, parallel, averages, rank_gated",
    Kind.RESCALE: "factor (Quantity or None), models",
    Kind.REDUCE: "average",
    Kind.CLIP: "models, measures_only, through (who clips)",
    Kind.STEP: "models (or None), scaler, applied, owner, rank_gated",
    Kind.SCHEDULE: "absolute (an index is passed), optimizer, horizon",
    Kind.CLEAR: "models (or None)",
    Kind.COUNT: "name, value, by",
    Kind.RESTART: "name (of the counter)",
    Kind.CHECKPOINT: "resumable, holds (subjects), lacks",
    Kind.PERIODIC: "counters, value, effect, period (its name), whole (the period is a multiple of K)",
    Kind.LIMIT: "counters, limit (symbols), name",
    Kind.RESUME: "key (in the checkpoint), into (counter), use (counter, skip)",
}


@dataclass
class Horizon:
    """The length that a schedule was built with."""

    site: int
    value: Quantity | None
    constructor: str
    text: str = ""
    warmup: Quantity | None = None
    warmup_site: int = -1


@dataclass
class Subject:
    """An optimizer, scheduler, model or scaler of a trace."""

    number: int
    kind: str
    name: str
    site: int = -1
    models: frozenset[int] | None = None
    horizon: Horizon | None = None
    optimizer: int = -1
    traits: frozenset[str] = frozenset()


@dataclass
class Trace:
    """One simulated (or recorded) run of a training script.

    ``window``: the configured K; ``length``: microbatches per epoch; ``flags``: the decisions on this path, as
    (text, value); ``assumptions``: what had to be assumed, in words; ``gaps``: what could not be followed;
    ``boundaries``: sites of the conditions that count to K before a step.
    """

    events: list[Event]
    subjects: dict[int, Subject]
    window: int
    window_text: str
    length: int
    counts: dict[int, tuple[int, ...]]
    ranks: int
    distributed: bool
    flags: tuple[tuple[str, Any], ...] = ()
    assumptions: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()
    boundaries: frozenset[int] = frozenset()
    aborted: bool = False
    disturbed: tuple[int, int, bool] | None = None  # (site, microbatch, rank-local) of a one-off decision
