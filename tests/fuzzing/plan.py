"""A loop before it is written down: what happens in each microbatch and in each update, in pieces that can be moved."""

from __future__ import annotations

from dataclasses import dataclass, field

from .idioms.names import Names
from .recipes import Recipe
from .script import Lines

OBJECTS = ("unscale", "clip", "step", "scaler", "schedule", "clear")  # pieces that a helper function can take along


@dataclass
class State:
    """A variable that the loop keeps: ``scope`` is window, epoch or run."""

    name: str
    start: str
    scope: str


@dataclass
class Plan:
    """Everything that a layout writes down. Mutations move, drop or rewrite pieces.

    ``update``: the pieces of an update in order, by name. ``gate``: the boundary test, ``last``: the test for the last
    microbatch of an epoch, ``sync``: the test for the last microbatch of a window before its forward; all over the
    loop's own index. ``size``: the number of microbatches of the window at hand.
    """

    recipe: Recipe
    n: Names
    k: str = "accumulation_steps"
    setup: Lines = field(default_factory=list)  # runs before anything is built
    definitions: Lines = field(default_factory=list)  # functions and classes above it
    imports: set[str] = field(default_factory=set)
    objects: dict[str, str] = field(default_factory=dict)  # what the loop uses -> the expression that builds it
    states: list[State] = field(default_factory=list)
    epoch_start: Lines = field(default_factory=list)
    epoch_end: Lines = field(default_factory=list)
    epoch_batch: Lines = field(default_factory=list)  # in every microbatch, before the context of a framework
    window_start: Lines = field(default_factory=list)
    before: Lines = field(default_factory=list)  # in every microbatch, before the forward
    forward: Lines = field(default_factory=list)
    backward: Lines = field(default_factory=list)
    after: Lines = field(default_factory=list)  # in every microbatch, after the backward
    update: dict[str, Lines] = field(default_factory=dict)
    afterwards: Lines = field(default_factory=list)  # in every microbatch, after the update
    gate: str = ""
    instead: str = ""  # the test that a mutation puts in the place of the right one
    last: str = ""
    sync: str = ""
    size: str = ""
    total_updates: str = ""
    tail: str = ""  # as the recipe says, until a mutation changes it
    ddp: str = ""
    closure: Lines = field(default_factory=list)  # a function that is defined where main code stands
    methods: Lines = field(default_factory=list)  # methods of the trainer beside those for training
    traits: set[str] = field(default_factory=set)
    raw: set[str] = field(default_factory=set)  # objects that the framework is not told of

    @property
    def divides(self) -> bool:
        """The framework divides the loss by K."""
        r = self.recipe
        return r.window == "automatic" or r.framework == "accelerate" and (r.window == "accumulate" or r.norm == "framework")

    def piece(self, name: str, lines: Lines) -> None:
        self.update[name] = lines

    def lines(self, *without: str) -> Lines:
        """The lines of an update, in order."""
        return [line for name, lines in self.update.items() if name not in without for line in lines]
