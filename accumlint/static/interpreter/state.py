"""What a run knows and leaves: its bounds, what scouting learned, frames and evaluated calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accumlint.contract.events import Kind
from accumlint.static import syntax as ir

K = 3  # microbatches of a window, unless the script fixes it
EPOCHS = 2
UPDATES = 4
PERIOD = 2  # period of a test that gates no step and whose own period does not matter
# what a window consists of: a condition over these is tried both ways before others
UPDATE_EFFECTS = frozenset(kind.value for kind in (
    Kind.BACKWARD, Kind.REDUCE, Kind.RESCALE, Kind.UNSCALE, Kind.CLIP, Kind.STEP, Kind.SCALER_UPDATE, Kind.SCHEDULE, Kind.CLEAR,
))  # fmt: skip


class OutOfBudget(Exception):
    """The run used up its steps; what was recorded so far stands."""


class Abort(Exception):
    """The path ends in an exception that the script raises or in an exit."""


class Relearn(Exception):
    """Something was learned that changes earlier values: the run starts again."""


@dataclass
class Learned:
    """What scouting found out about a script; it only grows."""

    windows: set[str] = field(default_factory=set)  # keys of unknowns that play K
    epochs: set[str] = field(default_factory=set)  # keys of unknowns that bound an outer loop
    updates: set[str] = field(default_factory=set)  # keys of unknowns that bound a loop over updates
    lengths: set[str] = field(default_factory=set)  # keys of unknowns that bound the microbatch loop
    slices: set[str] = field(default_factory=set)  # keys of unknown slice sizes: rows / K
    loaders: set[str] = field(default_factory=set)  # keys of unknowns that are iterated as microbatches
    groups: set[str] = field(default_factory=set)  # keys of what is iterated as the microbatches of one window
    literal: int | None = None  # a K written as a number
    inert: set[int] = field(default_factory=set)  # If sites whose arms hold nothing that a trace could show
    window_gates: set[int] = field(default_factory=set)  # If sites that gate a step by counting to K
    prepared: set[int] = field(default_factory=set)  # loaders that a framework will shard over ranks
    builds_optimizer: bool = False
    roles: dict[int, str] = field(default_factory=dict)  # loop site -> micro, window, update, outer, plain
    effects: dict[int, frozenset[str]] = field(default_factory=dict)  # If site -> kinds of event below it
    arms: dict[tuple[int, int], frozenset[str]] = field(default_factory=dict)  # (If site, arm) -> the same for one arm
    loop_effects: dict[int, frozenset[str]] = field(default_factory=dict)
    covered: set[ir.Function] = field(default_factory=set)
    training: set[ir.Function] = field(default_factory=set)  # functions below which something is trained
    own_loop: bool = False  # a backward was seen inside a loop
    outer_loop: bool = False  # and that loop inside another

    def size(self) -> int:
        return (
            len(self.windows) + len(self.epochs) + len(self.updates) + len(self.lengths) + len(self.slices)
            + len(self.loaders) + len(self.groups) + (self.literal is not None) + len(self.roles)
        )  # fmt: skip


@dataclass(slots=True)
class Call:
    """An evaluated call: what handlers of frameworks get to see."""

    site: int
    name: str
    args: list[Any]
    kwargs: dict[str, Any]
    node: ir.Call
    key: str
    frame: Any

    def get(self, position: int, keyword: str, default: Any = None) -> Any:
        """The argument at that position or with that keyword."""
        if keyword in self.kwargs:
            return self.kwargs[keyword]
        return self.args[position] if 0 <= position < len(self.args) else default

    @property
    def values(self) -> list[Any]:
        return [*self.args, *self.kwargs.values()]


class Frame:
    """Local names of a function call, a module or a class body."""

    __slots__ = ("names", "parent", "outer", "function", "module", "yields", "computed")

    def __init__(self, parent: Frame | None = None, function: ir.Function | None = None, module: ir.Module | None = None):
        self.names: dict[str, Any] = {}
        self.parent = parent
        self.outer = function.outer_names if function is not None else frozenset()
        self.function = function
        self.module = module if module is not None else (parent.module if parent is not None else None)
        self.yields: list[Any] | None = None
        self.computed: dict[str, tuple[int, Any]] = {}  # names that hold a result of arithmetic -> (site, module)
