"""Interprets the intermediate representation with small numbers and writes a trace.

Bounded and deterministic: every loop has a cap by its role, every call a depth, every run a budget of steps.
What ``x.step()`` means is decided here, from the abstract value of ``x``, never from its spelling alone.
A *scouting* run walks both arms of every undecided condition once, to learn which loops carry microbatches,
which conditions gate a step and which unknown number is K; the runs after it use what was learned.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from accumlint.contract.events import Event, Horizon, Kind, Subject
from accumlint.contract.quantity import RANKS, Quantity, quantity
from accumlint.static import frameworks, tensors
from accumlint.static import syntax as ir
from accumlint.static.evidence import Outputs
from accumlint.static.placeholders import reserved
from accumlint.static.values import (
    MISSING, Batches, ClassValue, Closure, Context, External, Gradient, Imported, Instance, Method, Parameters, Partial, Stream, Tensor,
    Test, Thing, Unknown, last_name,
)  # fmt: skip
from accumlint.static.vocabulary import Vocabulary

K = 3  # microbatches of a window, unless the script fixes it
MAX_DEPTH = 10
EPOCHS = 2
UPDATES = 4
VALID_TARGETS = ((3, 2), (6, 5), (1, 4), (4, 1), (4, 6), (4, 3), (2, 3), (5, 4))  # per microbatch: rank 0, rank 1
ROWS = 8  # rows (targets where their number is fixed) of a loader's batch
CONTEXT = 3  # attended positions of a microbatch that are no targets
SHIFT = 2  # label positions that the causal shift removes from a microbatch
PERIOD = 2  # period of a test that gates no step and whose own period does not matter

# iterating over these gives names, not microbatches
_NO_DATA = re.compile(r"(?i)listdir|glob|scandir|walk\(|\.split\(|readlines|modules\(|children\(|tracker|callback|hooks?\b|layers?\b|blocks?\b|param_groups|(^|\.)(dirs|files|paths|names|keys|lines|args|argv|groups|modules|metrics|losses)$")
_EPOCH = re.compile(r"(?i)(^|_)epochs?(_?(i|idx|index|no|num|number))?$")
_ENDLESS = re.compile(r"(?i)stream|infinite|endless|forever|cycle")

NUMBERS = (int, Fraction, Quantity)


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


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_CONTRARY = {"<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


class Interpreter:
    """One run over one script. Make a new one for every path."""

    def __init__(
        self,
        module: ir.Module,
        vocabulary: Vocabulary,
        learned: Learned,
        *,
        scouting: bool = False,
        polarity: bool = True,
        decisions: dict[str, Any] | None = None,
        length: int = 8,
        budget: int = 60_000,
        receivers: dict[str, frozenset[str]] | None = None,
        rebound: frozenset[str] = frozenset(),
        outputs: dict[str, Outputs] | None = None,
        perplexed: frozenset[str] = frozenset(),
    ) -> None:
        self.module = module
        self.vocabulary = vocabulary
        self.learned = learned
        self.scouting = scouting
        self.polarity = polarity
        self.assigned: dict[str, Any] = dict(decisions or {})
        self.decided: list[tuple[str, Any, bool]] = []  # key, value, may be disturbed for one microbatch only
        self._told: set[str] = set()  # their keys
        self._plain: set[str] = set()  # paths of which nothing but the key is known
        self.ignoring: set[str] = set()  # unseen losses that were asked for their ignore_index
        self.telling: dict[str, int] = {}  # decisions on which something depends: 2 where updates do, 1 elsewhere
        self.asked: list[str] | None = None  # keys that the condition at hand asks for
        self.led_by: list[list[str]] = []  # what led to each block around, outermost first
        self.set_behind: dict[str, list[str]] = {}  # numbers that nobody knows: the condition behind which they were set
        self.blinding: set[str] = set()  # decisions without which nothing would have to be assumed
        self.blocked: list[str] = []  # what led to the place where the run was ended, innermost condition first
        self.weighing = 1  # what depends on the condition that is being decided: nothing, something, an update
        self.length = length
        self.budget = budget
        self.receivers = receivers or {}
        self.outputs = outputs or {}  # by name of a model: how its outputs belong together
        self.perplexed = perplexed  # names of models that return a perplexity
        self.rebound = rebound  # spellings of K that are assigned more than once: their first value is a fallback
        self.events: list[Event] = []
        self.subjects: dict[int, Subject] = {}
        self.things: dict[str, Any] = {}  # one object per unresolved access path
        self.numbers = 0
        self.batches = 0
        self.batch_of: dict[int, int] = {}
        self.rows: dict[int, Quantity] = {}
        self.batch_sizes: dict[str, tuple[int, Fraction | None]] = {}  # what a loader was given as its batch size -> (site, rows)
        self.counts: dict[tuple[int, str], Quantity] = {}
        self.microbatch = -1
        self.epoch = 0
        self.gates: list[int] = []
        self.tests: dict[str, int] = {}  # variables that hold a condition -> where it was computed
        self.computed: dict[str, tuple[int, Any]] = {}  # attributes that hold a result of arithmetic -> (site, module)
        self.rank_gates = 0
        self.loops: list[int] = []
        self.loop_roles: list[str] = []
        self.stack: list[int] = []
        self.functions: list[ir.Function] = []
        self.silenced: list[frozenset[int] | None] = []  # models whose communication is off (None: all)
        self.no_grad = 0
        self.evaluating = 0  # functions around that put a model into evaluation and train nothing
        self.sync_flags: dict[int, Any] = {}
        self.sync_site = -1  # where communication was last switched
        self.return_site = -1  # the return that was executed last
        self.distributed = False
        self.window_names: dict[str, int] = {}  # spelling of K -> site where it was first read
        self.assumptions: set[str] = set()
        self.unseen_starts: set[str] = set()  # counters whose start is not shown
        self.counted: set[str] | None = None  # tags of the numbers that the test at hand compares
        self.gaps: dict[str, int] = {}
        self.traits: set[str] = set()
        self.loader_depth: list[tuple[int, int | None, Any]] = []  # (index, length) of the loaders being iterated
        self.disturbed: tuple[int, int, bool] | None = None
        self.globals: dict[str, Frame] = {}
        self.scout_stack: list[tuple[str, int, set[str]]] = []  # (kind, site, effects below)
        self.scouted: dict[tuple[int, int], set[str]] = {}
        self.asking: list[Any] = []  # while scouting: the conditions around, outermost first
        self.filled: dict[int, list[Any]] = {}  # what a generator yielded -> the conditions behind which it did
        self.moments = 0
        self.registry = frameworks.registry()
        self._eval = {
            ir.Const: self._const, ir.Name: self._name, ir.Attr: self._attr, ir.Call: self._call,
            ir.Binary: self._binary, ir.Logic: self._logic, ir.Compare: self._compare, ir.Unary: self._unary,
            ir.Choice: self._choice, ir.Subscript: self._subscript, ir.Slice: self._slice,
            ir.Sequence: self._sequence, ir.Starred: lambda n, f: self.eval(n.value, f), ir.Mapping: self._mapping,
            ir.Lambda: lambda n, f: Closure(n.function, f), ir.Comprehension: self._comprehension,
            ir.Walrus: self._walrus, ir.Text: self._text, ir.Yield: self._yield,
            ir.Await: lambda n, f: self.eval(n.value, f),
        }  # fmt: skip
        self._exec = {
            ir.Assign: self._assign, ir.Augment: self._augment, ir.Evaluate: self._evaluate, ir.If: self._if,
            ir.For: self._for, ir.While: self._while, ir.With: self._with, ir.Try: self._try,
            ir.Jump: self._jump, ir.Import: self._import, ir.Assertion: self._assertion, ir.Delete: self._nothing,
            ir.Match: self._match, ir.Define: self._define, ir.DefineClass: self._define_class,
        }  # fmt: skip

    # what happened

    def emit(self, kind: Kind, site: int, subject: int = -1, **details: Any) -> Event:
        """Record one event at this moment."""
        event = Event(
            kind, site, self.microbatch, self.epoch, subject, tuple(self.gates), tuple(self.loops),
            tuple(self.stack), details,
        )  # fmt: skip
        if self.rank_gates:
            event.details["rank_gated"] = True
        self.events.append(event)
        if self.scouting:
            for _, _, effects in self.scout_stack:
                effects.add(kind.value)
        return event

    def told(self, what: str) -> None:
        """Something happened that a condition around it may decide."""
        if self.scouting:
            for _, _, effects in self.scout_stack:
                effects.add(what)

    def gap(self, reason: str, site: int) -> None:
        """Something could not be followed."""
        self.gaps.setdefault(reason, site)

    def key(self, node: ir.Expr) -> str:
        """The canonical text of an expression (remembered)."""
        found = node.text
        if not found:
            found = ir.render(node)
            if len(found) > 160:
                found = found[:156] + "..." + (found[-1] if found[-1] in ")]" else "")  # what ends in a bracket was called or taken out
            node.text = found
        return found

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def start_again(self) -> None:
        """Give this run up for one that knows what was just learned."""
        raise Relearn

    def spend(self, amount: int = 1) -> None:
        self.budget -= amount
        if self.budget < 0:
            raise OutOfBudget

    # data

    def new_batch(self, rows: Quantity | None = None) -> int:
        """A fresh microbatch of data; its valid targets follow the fixed list of the design."""
        number = self.batches
        self.batches += 1
        valid = VALID_TARGETS[number % len(VALID_TARGETS)]
        # an empty slice is an accident of the simulation: real microbatches have rows
        self.rows[number] = rows if rows is not None and all(rows.ranks) else Quantity.of(ROWS, "rows")
        self.counts[number, "valid"] = Quantity.per_rank(valid, "count")
        self.counts[number, "unshifted"] = Quantity.per_rank(tuple(v + SHIFT for v in valid), "count", "unshifted")
        self.counts[number, "attended"] = Quantity.per_rank(tuple(v + CONTEXT for v in valid), "count", "attended")
        self.counts[number, "attended unshifted"] = Quantity.per_rank(tuple(v + CONTEXT + SHIFT for v in valid), "count", "attended")
        self.counts[number, "fixed"] = self.rows[number]
        self.batch_of[self.microbatch] = number
        return number

    def know_batch_size(self, size: Quantity, site: int) -> None:
        """A number that a loader is built with as its batch size: its symbol stands for the rows of a microbatch.

        Two loaders that disagree about it leave it unknown; one that is built anew speaks for itself.
        """
        if len(size.symbols) != 1 or size.symbols[0][1] != 1 or not size.uniform or not size.ranks[0]:
            return
        symbol, rows = size.symbols[0][0], ROWS / size.ranks[0]
        first, held = self.batch_sizes.get(symbol, (site, rows))
        self.batch_sizes[symbol] = (first, rows if first == site or held == rows else None)

    def group_length(self, value: Any) -> Quantity | None:
        """``len(window)`` of something unseen that a loop takes as the microbatches of one window: as many as it takes."""
        if isinstance(value, (Unknown, Tensor)) and _stem(value) in self.learned.groups:
            return Quantity.of(K, "length", "K")
        return None

    def current_batch(self) -> int:
        """The data of this microbatch where nothing shows which data is used."""
        found = self.batch_of.get(self.microbatch)
        return found if found is not None else self.new_batch()

    def count(self, batch: int, basis: str) -> Quantity:
        """Number of targets of a microbatch under a basis (per rank)."""
        if batch < 0:
            return Quantity.of(ROWS, "rows")
        return self.counts[batch, basis]

    def batch_data(self, key: str = "batch", rows: Quantity | None = None) -> Tensor:
        number = self.new_batch(rows)
        return Tensor("data", f"{key}#{number}", number)

    def thing(self, kind: str, name: str, site: int, **state: Any) -> Thing:
        """A new object of a kind."""
        made = Thing(kind, name, self.number(), site, state=dict(state))
        self.told("object")
        self.subjects[made.number] = Subject(made.number, kind, name, site)
        return made

    def known_as(self, value: Unknown, kind: str, site: int) -> Thing:
        """The one object behind an unresolved access path, now that its kind is clear."""
        found = self.things.get(value.key)
        if isinstance(found, Thing):
            return found
        made = self.thing(kind, value.last, site)
        made.guessed = True
        if kind in ("model", "data_parallel", "sharded"):
            made.models = frozenset({made.number})
        self._note_length(made, value)
        self.things[value.key] = made
        return made

    def _note_length(self, made: Any, value: Unknown) -> None:
        """A scheduler that was made by something unseen, which was told how many batches there are."""
        if isinstance(made, Thing) and made.kind == "scheduler" and "len" in value.tags and self.subjects[made.number].horizon is None:
            self.subjects[made.number].horizon = Horizon(made.site, Quantity.symbol(value.key, *value.tags), made.name)

    # decisions

    def decide(self, key: str, default: Any, disturbable: bool = False) -> Any:
        """The value of an atom on this path: assigned, or the default; remembered for later flips."""
        if self.asked is not None:
            self.asked.append(key)
        if self.weighing:
            self.telling[key] = max(self.weighing, self.telling.get(key, 0))
        if key not in self.assigned:
            self.assigned[key] = default
            self.decided.append((key, default, disturbable))
            self._told.add(key)
        elif key not in self._told:
            self.decided.append((key, self.assigned[key], disturbable))
            self._told.add(key)
        # `use_deepspeed` holds, or the plugin is there
        if "deepspeed" in key.lower() and self.assigned[key] is (not key.endswith(" is None")):
            self.traits.add("under deepspeed")
        return self.assigned[key]

    def truth(self, value: Any, default: bool | None = None) -> bool:
        """The truth of a value on this path."""
        kind = type(value)
        if kind is bool:
            return value
        if kind is Test:
            return self._truth_of_test(value, default)
        if kind is Unknown:
            if "rank" in value.tags:
                return not self.vocabulary.named("rank", value.last)  # seen from the main rank, whose number is 0
            if self.assigned.get(f"{value.key} is None") is True:
                return False
            if value.batch >= 0:
                return self._momentary(value.key, value.batch, self.polarity if default is None else default, value.local)
            return bool(self.decide(value.key, self._default_of(value) if default is None else default))
        if kind is Quantity:
            if value.known:
                return value.ranks[0] != 0
            return bool(self.decide(str(value), True))
        if kind is Tensor:
            return self._momentary(value.key, value.batch, True if default is None else default, value.local)
        if kind is Thing and value.maybe_none:
            return not self.decide(value.maybe_none, False)
        if kind in (list, Batches, tuple, dict, str, int, Fraction):
            return bool(value)
        return value is not None and value is not ...

    def _default_of(self, value: Unknown) -> bool:
        # a thing that trains is there unless the script says otherwise
        if self.vocabulary.kind_of_name(value.last):
            return True
        return self.polarity

    def _momentary(self, key: str, batch: int, default: bool, local: bool) -> bool:
        """A condition that the data of one microbatch decides: on a flipped path it differs at one microbatch only."""
        stem = "~" + key.split("#")[0] + "".join(key.split("#")[1:]).lstrip("0123456789")
        at = self.decide(stem, None, True)
        if at is not None and self.microbatch == at:
            if self.disturbed is None:
                self.disturbed = (self.gates[-1] if self.gates else -1, self.microbatch, local)
            return not default
        return default

    def _truth_of_test(self, test: Test, default: bool | None) -> bool:
        op, parts = test.op, test.parts
        if op == "known":
            return parts[0]
        if op == "not":
            return not self.truth(parts[0], None if default is None else not default)
        if op == "checks":
            # `if args.do_train and os.listdir(args.output_dir): raise`: it takes one of them to get by, the last, if none is
            # about the data of a microbatch, which is as it should be
            first = all([self.truth(part, False if _facts(part)[0] >= 0 else None) for part in parts[:-1]])
            return self.truth(parts[-1], False if first else None) and first
        if op == "and":
            return all([self.truth(part, default) for part in parts])
        if op == "or":
            return any([self.truth(part, default) for part in parts])
        if op == "none":
            subject = parts[0]
            if self.assigned.get(subject) is True:
                return False
            fallback = False if default is None else default
            return bool(self.decide(f"{subject} is None", self.assigned.get(subject) is False or fallback))
        if op == "equal":
            subject, constant = parts
            for key, value in self.assigned.items():
                if value is True and key.startswith(f"{subject} == ") and key != f"{subject} == {constant!r}":
                    return False
            # a mode that is compared with a word is taken to be that word on the path where flags are on
            fallback = self.polarity and isinstance(constant, str) if default is None else default
            return bool(self.decide(f"{subject} == {constant!r}", fallback))
        if op == "far":
            return parts[0]
        if "rank" in test.tags and op in ("atom", "equal"):
            return True  # seen from the main rank
        if op == "missing":
            return self._momentary(test.key, test.batch, False, test.local)
        if test.batch >= 0:
            return self._momentary(test.key, test.batch, self.polarity if default is None else default, test.local)
        return bool(self.decide(test.key, self.polarity if default is None else default))

    # running

    def run_module(self) -> None:
        """Execute the module as a script."""
        frame = self.module_frame(self.module)
        self.block(self.module.body, frame)

    def module_frame(self, module: ir.Module) -> Frame:
        frame = self.globals.get(module.path)
        if frame is None:
            frame = Frame(module=module)
            frame.names["__name__"] = "__main__" if module is self.module else module.name
            frame.names["__file__"] = module.path
            self.globals[module.path] = frame
        return frame

    def prepare_module(self, module: ir.Module) -> Frame:
        """Definitions, imports and constants of a module, without running what it does at top level."""
        frame = self.module_frame(module)
        if "__prepared__" in frame.names:
            return frame
        frame.names["__prepared__"] = True
        for statement in module.body:
            try:
                if isinstance(statement, (ir.Define, ir.DefineClass, ir.Import)):
                    self.execute(statement, frame)
                elif isinstance(statement, ir.Assign) and not _may_run(statement.value):
                    self.execute(statement, frame)
                elif isinstance(statement, ir.Try):
                    for inner in statement.body:
                        if isinstance(inner, (ir.Define, ir.DefineClass, ir.Import)):
                            self.execute(inner, frame)
            except (Abort, Relearn):
                raise
        return frame

    def block(self, body: list[ir.Stmt], frame: Frame) -> Any:
        """Run statements; returns None, "break", "continue" or ("return", value)."""
        passed = 0
        behind: list[tuple[ir.Expr, set[str]]] = []  # the tests that were passed while scouting, and what follows each
        try:
            for statement in body:
                outcome = self.execute(statement, frame)
                if outcome is not None:
                    return outcome
                if type(statement) is ir.If and not statement.orelse and _ends(statement.body) == "continue":
                    # `if …: continue` decides about what follows it
                    self.gates.append(statement.site)
                    passed += 1
                    if self.scouting:
                        behind.append((statement.test, set()))
                        self.scout_stack.append(("rest", statement.site, behind[-1][1]))
            return None
        finally:
            if passed:
                del self.gates[-passed:]
            for test, effects in reversed(behind):
                self.scout_stack.pop()
                if "step" in effects and "backward" not in effects and not _may_run(test):
                    self._learn_window(self.eval(test, frame))

    def execute(self, statement: ir.Stmt, frame: Frame) -> Any:
        self.budget -= 1
        if self.budget < 0:
            raise OutOfBudget
        return self._exec[type(statement)](statement, frame)

    def eval(self, node: ir.Expr, frame: Frame) -> Any:
        return self._eval[type(node)](node, frame)

    # statements

    def _nothing(self, statement: ir.Stmt, frame: Frame) -> None:
        return None

    def _evaluate(self, statement: ir.Evaluate, frame: Frame) -> None:
        self.eval(statement.value, frame)

    def _assign(self, statement: ir.Assign, frame: Frame) -> None:
        value = self.eval(statement.value, frame)
        for target in statement.targets:
            if isinstance(target, (ir.Name, ir.Attr)):
                if isinstance(statement.value, (ir.Compare, ir.Logic)) or isinstance(statement.value, ir.Unary) and statement.value.op == "not":
                    self.tests[self.key(target)] = statement.site
                else:
                    self.tests.pop(self.key(target), None)
                self._note_computed(target, statement.value, frame)
            if isinstance(value, Unknown) and isinstance(statement.value, ir.Call) and isinstance(target, ir.Sequence):
                # model, optimizer = wrap(model, optimizer=optimizer): an unseen function hands back what it was given
                value = self._handed_back(statement.value, target, value, frame)
            self.assign(target, value, frame, statement.site)

    def _note_computed(self, target: ir.Name | ir.Attr, value: ir.Expr, frame: Frame) -> None:
        """Remember where a number was worked out; a name that is only passed on stands for the place where it was."""
        place = self.computed_at(value, frame) if isinstance(value, (ir.Name, ir.Attr)) else None
        if place is None and (isinstance(value, ir.Binary) or isinstance(value, ir.Call) and _holds_arithmetic(value)):
            place = value.site
        computed = frame.computed if isinstance(target, ir.Name) else self.computed
        if place is None:
            computed.pop(self.key(target), None)
        else:
            computed[self.key(target)] = (place, frame.module)

    def computed_at(self, node: ir.Expr, frame: Frame) -> int | None:
        """Where the number behind a name was worked out, as far as that is in the same file."""
        scope: Frame | None = frame
        while scope is not None and isinstance(node, (ir.Name, ir.Attr)):
            computed = scope.computed if isinstance(node, ir.Name) else self.computed
            place, module = computed.get(self.key(node), (None, None))
            if place is not None and module is frame.module:
                return place
            if isinstance(node, ir.Attr) or node.id in scope.names:
                return None
            scope = scope.parent
        return None

    def _handed_back(self, call: ir.Call, target: ir.Sequence, result: Unknown, frame: Frame) -> Any:
        given = {ir.dotted(a.value) for a in call.args if isinstance(a.value, (ir.Name, ir.Attr))}
        names = [ir.dotted(item) if isinstance(item, (ir.Name, ir.Attr)) else "" for item in target.items]
        held = [self.eval(item, frame) if name and name in given else None for name, item in zip(names, target.items)]
        if not any(isinstance(one, (Thing, Instance)) for one in held):
            return result
        return [one if isinstance(one, (Thing, Instance)) else self.item_of(result, i, f"[{i}]") for i, one in enumerate(held)]

    def _augment(self, statement: ir.Augment, frame: Frame) -> None:
        target = statement.target
        current = self.eval(target, frame)
        change = self.eval(statement.value, frame)
        if isinstance(current, Gradient):
            self.rescale(current, change if statement.op in ("/", "*") else None, statement.op == "/", statement.site)
            return
        key = self.key(target)
        value = self.binary(statement.op, current, change, statement.site, f"{key} {statement.op} {self.key(statement.value)}")
        # a running total is still known by the name of its variable
        if statement.op in ("+", "-") and isinstance(change, int) and not isinstance(change, bool):
            if isinstance(value, (int, Quantity)) or isinstance(current, Unknown):
                if isinstance(value, Unknown) or (isinstance(value, Quantity) and not value.known):
                    value = self._counter_start(current, key, change)
                value = quantity(value).tagged(f"counter:{key}") if isinstance(value, (int, Quantity)) else value
                if isinstance(value, Quantity) and change:
                    self.emit(Kind.COUNT, statement.site, name=key, value=value.integer, by=change)
        elif isinstance(current, list) and isinstance(change, (list, tuple)):
            current.extend(change)
            value = current
        self.assign(target, value, frame, statement.site)

    def _counter_start(self, current: Any, key: str, change: int) -> Quantity:
        """A counter whose start is not shown: taken to start at zero, and said so where it tells one microbatch from another."""
        tags = tuple(getattr(current, "tags", ()))
        self.unseen_starts.add(key)
        self.blinding.update(self.set_behind.get(key, ()))
        return Quantity.of(change, *tags)

    def _rest_on_starts(self, tags: set[str] | frozenset[str]) -> None:
        """Updates depend on these numbers: what was taken for granted about their start matters."""
        self.assumptions |= {f"`{key}` starts at 0" for key in self.unseen_starts if f"counter:{key}" in tags}

    def _note_counted(self, tags: frozenset[str]) -> None:
        if self.counted is None:
            self._rest_on_starts(tags)
        else:
            self.counted |= tags

    def rescale(self, gradient: Gradient, factor: Any, divide: bool, site: int) -> None:
        """``p.grad`` multiplied or divided by a number (once per loop over parameters)."""
        number = self.numeric(factor) if factor is not None else None
        if number is not None and divide:
            try:
                number = Quantity.of(1) / number
            except ZeroDivisionError:
                number = None
        self.emit(Kind.RESCALE, site, factor=number, models=gradient.models)

    def _if(self, statement: ir.If, frame: Frame) -> Any:
        around, self.counted = self.counted, set()
        try:
            value = self.eval(statement.test, frame)
        finally:
            counted, self.counted = self.counted, around
        if _ends(statement.body) or _ends(statement.orelse) or self._weight(statement.site) == 2:
            self._rest_on_starts(counted)
        if self.scouting and (not _settled(value) or isinstance(value, list)):  # what a list holds by then is not known yet
            return self._scout_if(statement, frame, value)
        body_ends, else_ends = _ends(statement.body), _ends(statement.orelse)
        default: bool | None = None
        if isinstance(value, Test) and value.op == "far" and value.parts[0] and body_ends == "continue" and self.loop_roles[-1:] == ["micro"]:
            return None  # `if step < done: continue`: a limit that is far away would leave every microbatch out
        if isinstance(value, Unknown) and "K" in value.tags and self.microbatch >= 0 and "step" in self.learned.arms.get((statement.site, 0), frozenset()):
            # `if self.due("update", K, progress)`: who is told K and lets step or not counts to K
            self.assumptions.add(f"`{value.last}` holds at the last microbatch of a window")
            value = (self.microbatch + 1) % K == 0
        if not _settled(value):
            trains = [bool(self.learned.arms.get((statement.site, arm), frozenset()) & {"step", "backward"}) for arm in (0, 1)]
            if trains[0] != trains[1]:
                # the usual course is the one that trains
                default = trains[0]
            elif body_ends == "raise" and else_ends != "raise":
                default = False
                if isinstance(value, Test) and value.op == "and":
                    value = Test("checks", value.parts, value.key, value.batch, value.local, value.tags)
            elif else_ends == "raise" and statement.orelse:
                default = True
            elif body_ends and not statement.orelse:
                default = False  # early exits are the exception
        before = self.disturbed
        around, self.asked = self.asked, []
        chosen = self._weighed(value, default, self._weight(statement.site))
        led, self.asked = self.asked, around
        rank_test = chosen and isinstance(value, (Test, Unknown)) and "rank" in value.tags
        if self.disturbed is not before and self.disturbed is not None:
            # the place to look at is the jump that leaves the microbatch out
            arm = statement.body if chosen else statement.orelse
            jump = next((s.site for s in arm if isinstance(s, ir.Jump)), statement.site)
            self.disturbed = (jump, *self.disturbed[1:])
        tags = getattr(value, "tags", frozenset())
        if chosen and "period" in tags and not self.learned.effects.get(statement.site, frozenset()) & {"step", "backward"}:
            counters = tuple(sorted(tag for tag in tags if tag.startswith(("counter:", "index:"))))
            self.emit(
                Kind.PERIODIC, statement.site, counters=counters, effect=self._effect(statement.body),
                value=next((tag[6:] for tag in tags if tag.startswith("value:")), ""), whole="multiple of K" in tags,
                period=next((last_name(tag[5:].rpartition("%")[2]) for tag in tags if tag.startswith("text:")), ""),
            )  # fmt: skip
        body = statement.body if chosen else statement.orelse
        if not body:
            return None
        self._note_test(statement)
        self.gates.append(statement.site)
        self.led_by.append(led)
        self.rank_gates += rank_test
        try:
            return self.block(body, frame)
        except Abort:
            self.blocked.extend(led)
            raise
        finally:
            self.gates.pop()
            self.led_by.pop()
            self.rank_gates -= rank_test

    def _weight(self, site: int) -> int:
        if site in self.learned.inert:
            return 0
        return 2 if self.learned.effects.get(site, frozenset()) & _UPDATE_EFFECTS else 1

    def _note_test(self, statement: ir.If) -> None:
        """Where the condition was computed: ``is_boundary = …`` above ``if is_boundary``."""
        test = statement.test
        while isinstance(test, ir.Unary) and test.op == "not":
            test = test.value
        if isinstance(test, (ir.Name, ir.Attr)) and self.key(test) in self.tests:
            self.traits.add(f"test of {statement.site}@{self.tests[self.key(test)]}")

    def _effect(self, body: list[ir.Stmt]) -> str:
        """What a body is for, by the names it calls: evaluate, checkpoint, log or other."""
        names: set[str] = set()
        for statement in ir.walk_statements(body):
            for node in _calls_of(statement):
                names.add(node)
        found = [group for group in ("evaluate", "checkpoint") if any(self.vocabulary.matches(group, n) for n in names)]
        if found:
            return found[0]
        if "save" in names or "save_pretrained" in names or "save_state" in names:
            return "checkpoint"
        if all(self.vocabulary.matches("log", name) or name in _HARMLESS for name in names):
            return "log"
        return "other"

    def _scout_if(self, statement: ir.If, frame: Frame, value: Any) -> Any:
        """Both arms, one after the other, so that all events below the condition are seen."""
        effects: set[str] = set()
        outcomes = []
        for arm, body in enumerate((statement.body, statement.orelse)):
            own: set[str] = set()
            self.scout_stack.append(("if", statement.site, effects))
            self.scout_stack.append(("arm", statement.site, own))
            self.gates.append(statement.site)
            self.asking.append(value)
            before = {name: held for name, held in frame.names.items()}
            try:
                outcomes.append(self.block(body, frame) if body else None)
            except Abort:
                outcomes.append("abort")
            finally:
                self.gates.pop()
                self.asking.pop()
                self.scout_stack.pop()
                self.scout_stack.pop()
            effects |= own
            known_arm = self.learned.arms.get((statement.site, arm), frozenset())
            self.learned.arms[statement.site, arm] = known_arm | frozenset(own)
            if arm == 0 and statement.orelse:
                # the second arm must not lose what the first one made: keep the richer value of each name
                after = frame.names
                for name, held in before.items():
                    if isinstance(after.get(name), (Unknown, type(None))) and not isinstance(held, (Unknown, type(None))):
                        after[name] = held
        known = self.learned.effects.get(statement.site, frozenset())
        self.learned.effects[statement.site] = known | frozenset(effects)
        # what raises ends the run: a path that stops at a check of arguments shows nothing
        jumps = any(isinstance(s, ir.Jump) and s.kind != "raise" for s in (*statement.body, *statement.orelse))
        if effects or known or jumps:
            self.learned.inert.discard(statement.site)
        else:
            self.learned.inert.add(statement.site)
        for _, _, outer in self.scout_stack:
            outer |= effects
        if effects & {"step", "clear", "scaler"}:
            self._learn_window(value)
            if "step" in effects and _speaks_of_window(value):
                self.learned.window_gates.add(statement.site)
        returned = [o for o in outcomes if isinstance(o, tuple)]
        if len(returned) == 2 and statement.orelse:
            first, second = returned
            return first if not isinstance(first[1], Unknown) and first[1] is not None else second
        return None

    def _learn_window(self, value: Any) -> None:
        """A condition gates a step: the number it counts to is K."""
        if not isinstance(value, Test):
            return
        if value.op in ("not", "and", "or"):
            for part in value.parts:
                self._learn_window(part)
        elif value.op == "modulo":
            period = value.parts[1]
            if isinstance(period, Unknown):
                if period.batch < 0 and not self.vocabulary.is_world(period.last):
                    self.learned.windows.add(period.key)
            elif isinstance(period, int) and 1 < period <= 4096 and self.learned.literal is None:
                self.learned.literal = period

    def _for(self, statement: ir.For, frame: Frame) -> Any:
        source = self.eval(statement.iterable, frame)
        stream = self.stream(source, statement.iterable)
        if stream.loader and not isinstance(stream.thing, Thing) and isinstance(statement.target, ir.Name) and _EPOCH.search(statement.target.id):
            # `for epoch in self.hparams.epoch_counter`: a number, not the data of a microbatch
            number = Unknown(statement.target.id)
            stream = dataclasses.replace(stream, item=lambda index: number)
        outcome = self._loop(statement, frame, stream, None)
        if self.learned.roles.get(statement.site) == "window":
            # `if len(buffer) == n: yield buffer`, and somebody takes that for a window: as large as it is filled
            for test in self.filled.get(id(source), ()):
                self._learn_window(test)
        return outcome

    def _while(self, statement: ir.While, frame: Frame) -> Any:
        return self._loop(statement, frame, None, statement.test)

    def _loop(self, statement: Any, frame: Frame, stream: Stream | None, test: ir.Expr | None) -> Any:
        site = statement.site
        if self.scouting:
            return self._scout_loop(statement, frame, stream, test)
        role = self.learned.roles.get(site, "plain")
        if role == "plain" and frame.yields is not None:
            role = "generator"
        if stream is not None and stream.literal and role in ("micro", "window") and not stream.loader:
            # a loop over known elements (optimizers, losses) is no microbatch loop unless they are microbatches
            if stream.length and _is_object(stream.item(0)):
                role = "plain"
        count, whole, infinite = self._iterations(stream, role, site)
        usual = count
        if role == "outer" and "outer" in self.loop_roles:
            count = max(count, self._inner_passes(stream))
        carrying = role in ("micro", "window")
        told = carrying or role == "update"
        if told:
            self.emit(Kind.LOOP, site, phase="enter", role=role)
        self.loops.append(site)
        self.loop_roles.append(role)
        broke = False
        outcome = None
        index = 0
        try:
            while index < count:
                self.spend()
                if test is not None:
                    value = self.eval(test, frame)
                    if role in ("plain", "generator") and not _settled(value):
                        going = index == 0
                    elif index >= usual and not _settled(value):
                        break  # nothing shows how often
                    else:
                        going = self.truth(value, True)
                    if not going:
                        whole = True
                        infinite = infinite and not _settled(value)  # counted to its end: `while i < len(loader)`
                        break
                else:
                    assert stream is not None
                    item = stream.item(stream.position + index if stream.loader and stream.position else index)
                    if stream.loader:
                        self.loader_depth.append((index, None if stream.infinite else stream.length, stream.thing))
                    self.assign(statement.target, item, frame, site)
                index += 1
                if carrying:
                    self.microbatch += 1
                    self.emit(Kind.MICROBATCH, site)
                elif role == "outer":
                    self.epoch += 1
                    self.emit(Kind.EPOCH, site)
                try:
                    result = self.block(statement.body, frame)
                finally:
                    if stream is not None and stream.loader:
                        self.loader_depth.pop()
                if result == "continue" or result is None:
                    continue
                if result == "break":
                    broke = True
                    break
                outcome = result
                break
        finally:
            self.loops.pop()
            self.loop_roles.pop()
        if told:
            self.emit(
                Kind.LOOP, site, phase="exit", role=role, whole=whole and not infinite, infinite=infinite, broke=broke,
                ended=outcome is not None, known_length=bool(stream is not None and stream.length is not None and not stream.infinite),
            )  # fmt: skip
        if outcome is not None:
            return outcome
        if not broke and statement.orelse:
            return self.block(statement.orelse, frame)
        return None

    def _iterations(self, stream: Stream | None, role: str, site: int) -> tuple[int, bool, bool]:
        """How often a loop runs here: (iterations, the iterable ends by itself, it never ends)."""
        if stream is None:
            caps = {
                "micro": 2 * self.length + 2, "window": 2 * self.length, "update": UPDATES, "outer": EPOCHS,
                "generator": 4 * self.length,
            }  # fmt: skip
            return caps.get(role, 2), False, role in ("micro", "window")
        if stream.infinite:
            caps = {
                "micro": 2 * self.length + 2, "window": K, "update": UPDATES, "outer": EPOCHS, "generator": 4 * self.length,
            }  # fmt: skip
            return caps.get(role, 1), False, True
        length = stream.length
        if role == "generator":
            return (self.length if length is None else min(length, 2 * self.length)), True, False
        if stream.literal and length is not None and not (role == "micro" and length == 0):
            return min(length, 24), length <= 24, False
        if role == "micro":
            if length is None:
                if stream.bound:
                    self.learned.lengths.add(stream.bound)
                    raise Relearn
                return self.length, True, False
            if length <= K and not isinstance(stream.thing, int):
                # a list that the script fills from data: as long as a loader
                return self.length, True, False
            return min(length, 2 * self.length), length <= 2 * self.length, False
        if role == "window":
            if length is None:
                return K, True, False
            return min(length, 64), True, False
        if role == "outer" and stream.loader and isinstance(stream.thing, Thing):
            return (self.length if length is None else min(length, self.length)), True, False  # batches, not epochs
        if role in ("update", "outer") and length == 0 and stream.thing == 0 and isinstance(stream.thing, int):
            self.traits.add(f"empty loop@{site}")
        if role == "update" and stream.loader:
            return (self.length if length is None else min(length, self.length)), True, False
        if role == "update":
            return (UPDATES if length is None else min(length, UPDATES)), length is not None and length <= UPDATES, False
        if role == "outer":
            return (EPOCHS if length is None else min(length, EPOCHS)), length is None or length <= EPOCHS, False
        return (1 if length is None else min(length, 1 if self.evaluating else 4)), True, False

    def _inner_passes(self, stream: Stream | None) -> int:
        """How often a loop runs that stands between the epochs and the microbatches, as over lists of batches: to its end."""
        if stream is None:
            return self.length  # `while window := list(islice(...))`, or a test inside that ends it
        return 0 if stream.length is None or stream.infinite else min(stream.length, self.length)

    def _scout_loop(self, statement: Any, frame: Frame, stream: Stream | None, test: ir.Expr | None) -> Any:
        site = statement.site
        effects: set[str] = set()
        if test is not None:
            self.eval(test, frame)
        self.scout_stack.append(("for", site, effects))
        self.loops.append(site)
        outcome = None
        try:
            # a list of known elements is walked whole: its objects may differ
            rounds = min(stream.length or 1, 4) if stream is not None and stream.literal else 1
            for index in range(rounds):
                if stream is not None:
                    self.assign(statement.target, stream.item(index), frame, site)
                outcome = self.block(statement.body, frame)
        finally:
            self.scout_stack.pop()
            self.loops.pop()
        for _, _, outer in self.scout_stack:
            outer |= effects
        self.learned.loop_effects[site] = self.learned.loop_effects.get(site, frozenset()) | frozenset(effects)
        carrying = "backward" in effects
        if carrying:
            effects.add("carrying")
            self._scout_role(site, stream, effects)
            for _, _, outer in self.scout_stack:
                outer.add("carrying loop")
                outer.add("carrying")
        if isinstance(outcome, tuple):
            return outcome
        return self.block(statement.orelse, frame) if statement.orelse else None

    def _scout_role(self, site: int, stream: Stream | None, effects: set[str]) -> None:
        """The role of a loop, from what happens inside it, and what that teaches about its bound."""
        literal = stream is not None and stream.literal and not stream.loader and stream.length
        if literal and _is_object(stream.item(0)):
            self.learned.roles[site] = "plain"
            return
        if "carrying loop" not in effects:
            role = "micro" if "step" in effects else "window"
        elif "windowed" in effects and "step" in effects and "stepping loop" not in effects:
            role = "update"
        else:
            role = "outer"
        if role == "window":
            if stream is not None and stream.length is None and isinstance(stream.thing, (Unknown, Tensor)):
                self.learned.groups.add(_stem(stream.thing))
            for _, _, outer in self.scout_stack:
                outer.add("windowed")
        elif role in ("micro", "update"):
            for _, _, outer in self.scout_stack:
                outer.add("stepping loop")
        self.learned.roles[site] = role
        self.learned.own_loop = True
        if role in ("outer", "update"):
            self.learned.outer_loop = True
        bound = stream.bound if stream is not None else ""
        if bound:
            group = {"window": self.learned.windows, "outer": self.learned.epochs, "update": self.learned.updates}.get(role)
            if group is not None:
                group.add(bound)
        if role == "window" and stream is not None and stream.length is not None and not stream.loader and bound == "":
            if isinstance(stream.thing, int) and 1 < stream.thing <= 4096 and self.learned.literal is None:
                self.learned.literal = stream.thing

    def _with(self, statement: ir.With, frame: Frame) -> Any:
        entered: list[Any] = []
        switched: list[int] = []
        try:
            for item, target in statement.items:
                value = self.eval(item, frame)
                bound = self.enter(value, statement.site, entered)
                if isinstance(value, Context) and value.kind == "no_sync":
                    # kept in a variable: where it was made is where it is spoken of; of several the first speaks for all
                    switched.append(value.site if isinstance(item, (ir.Name, ir.Attr)) else self.sync_site)
                    self.sync_site = switched[0]
                if target is not None:
                    self.assign(target, bound, frame, statement.site)
            return self.block(statement.body, frame)
        finally:
            self.leave(entered)

    def enter(self, value: Any, site: int, entered: list[Any]) -> Any:
        """Enter a context manager; what must be undone goes into ``entered``. Returns what ``as`` binds."""
        if isinstance(value, Method):
            value = Context("plain", site=site)
        if isinstance(value, Instance):
            method = self.method_of(value, "__enter__")
            if method is not None:
                result = self.call_closure(method, [], {}, site)
                entered.append(("instance", value))
                return result
            return value
        if not isinstance(value, Context):
            return value
        if value.kind == "no_sync":
            models, stack = value.data if value.data is not None else (None, tuple(self.stack))
            self.silenced.append(models)
            self.sync_site = site if stack == tuple(self.stack) else value.site
            self.traits.add("no_sync")
            entered.append(("no_sync", models))
        elif value.kind == "no_grad":
            self.no_grad += 1
            entered.append(("no_grad", None))
        elif value.kind == "several":
            for inner in value.data:
                self.enter(inner, site, entered)
        elif value.kind == "stack":
            entered.append(("stack", value))
            return value
        elif value.kind == "generated":
            closure, args, kwargs = value.data
            return self._enter_generated(closure, args, kwargs, entered, site)
        elif value.kind == "handler":
            # a framework's own context: (enter, leave)
            result = value.data[0](self, site)
            entered.append(("handler", value.data[1]))
            return result
        elif value.kind == "value":
            return value.data
        return value

    def leave(self, entered: list[Any]) -> None:
        for kind, data in reversed(entered):
            if kind == "no_sync":
                self.silenced.remove(data)
            elif kind == "no_grad":
                self.no_grad -= 1
            elif kind == "stack":
                inner = data.data or []
                data.data = []
                self.leave(inner)
            elif kind == "handler" and data is not None:
                data(self)
            elif kind == "instance":
                method = self.method_of(data, "__exit__")
                if method is not None:
                    self.call_closure(method, [None, None, None], {}, method.function.site)
            elif kind == "final":
                self.block(*data)
        entered.clear()

    def _enter_generated(self, closure: Closure, args: list[Any], kwargs: dict[str, Any], entered: list[Any], site: int) -> Any:
        """A ``@contextmanager`` function: run its body up to the yield, keep what is entered around it."""
        frame = self.bind(closure, args, kwargs)
        result: list[Any] = [None]
        self._until_yield(closure.function.body, frame, entered, site, result)
        return result[0]

    def _until_yield(self, body: list[ir.Stmt], frame: Frame, entered: list[Any], site: int, result: list[Any]) -> bool:
        for position, statement in enumerate(body):
            self.spend()
            if _yield_of(statement) is not None:
                inner = _yield_of(statement)
                result[0] = self.eval(inner.value, frame) if inner.value is not None else None
                rest = body[position + 1 :]
                if rest:
                    entered.append(("final", (rest, frame)))
                return True
            if isinstance(statement, ir.If):
                stops = _ends(statement.body) == "raise"  # a check of what the context was given, as in `_if`
                arm = statement.body if self.truth(self.eval(statement.test, frame), False if stops else None) else statement.orelse
                if self._until_yield(arm, frame, entered, site, result):
                    return True
            elif isinstance(statement, ir.With):
                inner_entered: list[Any] = []
                for item, target in statement.items:
                    bound = self.enter(self.eval(item, frame), site, inner_entered)
                    if target is not None:
                        self.assign(target, bound, frame, statement.site)
                if self._until_yield(statement.body, frame, inner_entered, site, result):
                    entered.extend(inner_entered)
                    return True
                self.leave(inner_entered)
            elif isinstance(statement, ir.Try):
                if statement.final:
                    entered.append(("final", (statement.final, frame)))
                if self._until_yield(statement.body, frame, entered, site, result):
                    return True
                if statement.final:
                    entered.pop()
            elif self.execute(statement, frame) is not None:
                return True
        return False

    def _try(self, statement: ir.Try, frame: Frame) -> Any:
        if not self.scouting and self._fails(statement):
            return self.block(statement.handlers[0].body, frame)
        effects: set[str] = set()
        if self.scouting:
            self.scout_stack.append(("try", statement.site, effects))
        try:
            outcome = self.block(statement.body, frame)
        finally:
            if self.scouting:
                self.scout_stack.pop()
                for _, _, outer in self.scout_stack:
                    outer |= effects
                self.learned.effects[statement.site] = self.learned.effects.get(statement.site, frozenset()) | frozenset(effects)
        if self.scouting:
            for handler in statement.handlers:
                try:
                    self.block(handler.body, frame)
                except Abort:
                    pass
        if outcome is None and statement.orelse:
            outcome = self.block(statement.orelse, frame)
        if statement.final:
            final = self.block(statement.final, frame)
            outcome = final if final is not None else outcome
        return outcome

    def _fails(self, statement: ir.Try) -> bool:
        """On a flipped path the body raises for one microbatch and the handler goes on with the next."""
        if not statement.handlers or _ends(statement.handlers[0].body) not in ("continue", "return", ""):
            return False
        if "backward" not in self.learned.effects.get(statement.site, frozenset()) or self.microbatch < 0:
            return False
        at = self.decide(f"~except@{statement.site}", None, True)
        if at is None or at != self.microbatch or self.disturbed is not None:
            return False
        body = statement.handlers[0].body
        jump = next((s.site for s in reversed(body) if isinstance(s, ir.Jump)), body[-1].site if body else statement.site)
        self.disturbed = (jump, self.microbatch, True)
        return True

    def _jump(self, statement: ir.Jump, frame: Frame) -> Any:
        if statement.kind == "return":
            self.return_site = statement.site
            return ("return", self.eval(statement.value, frame) if statement.value is not None else None)
        if statement.kind == "raise":
            raise Abort
        return statement.kind

    def _import(self, statement: ir.Import, frame: Frame) -> None:
        for local, origin in statement.names:
            if frame.module is None or frame.module.resolve is None:
                if local != "*":
                    frame.names[local] = External(origin)
            elif local == "*":
                self._import_all(origin, frame)
            else:
                frame.names[local] = Imported(origin, frame.module)

    def held(self, names: dict[str, Any], name: str) -> Any:
        """What a name holds, MISSING if nothing; what was only imported so far is looked for now.

        Most of what a script imports has no part in its windows, and files are read for nothing else.
        """
        value = names.get(name, MISSING)
        if type(value) is Imported:
            names[name] = External(value.origin)  # for those who ask while two files import each other
            value = names[name] = self._imported(value)
        return value

    def _imported(self, name: Imported) -> Any:
        """A module or a name out of a file of the checked tree; External if it comes from anywhere else."""
        module, origin = name.importer, name.origin
        whole = module.resolve(module, origin)
        if whole is not None:
            self.prepare_module(whole)
            return ("module", whole)
        head, _, tail = origin.rpartition(".")
        if origin.startswith(".") and not head.strip("."):
            head, tail = origin[: len(origin) - len(origin.lstrip("."))], origin.lstrip(".")
        target = module.resolve(module, head) if head else None
        found = self.held(self.prepare_module(target).names, tail) if target is not None and target is not self.module else MISSING
        return found if found is not MISSING else External(origin)

    def _import_all(self, origin: str, frame: Frame) -> None:
        target = frame.module.resolve(frame.module, origin)
        if target is not None and target is not self.module:
            for name, value in self.prepare_module(target).names.items():
                if not name.startswith("_"):
                    frame.names.setdefault(name, value)

    def _assertion(self, statement: ir.Assertion, frame: Frame) -> None:
        value = self.eval(statement.test, frame)
        self.registry.assertion(self, statement.test, value, frame)

    def _match(self, statement: ir.Match, frame: Frame) -> Any:
        self.eval(statement.subject, frame)
        if not statement.cases:
            return None
        key = f"match {self.key(statement.subject)}"
        chosen = self.decide(key, 0)
        if self.scouting:
            for body in statement.cases:
                self.block(body, frame)
            return None
        index = chosen if isinstance(chosen, int) and 0 <= chosen < len(statement.cases) else 0
        return self.block(statement.cases[index], frame)

    def _define(self, statement: ir.Define, frame: Frame) -> None:
        function = statement.function
        names = function.decorator_names
        value: Any = Closure(function, frame)
        if "property" in names or "cached_property" in names:
            value = value
        frame.names[function.name] = value

    def _define_class(self, statement: ir.DefineClass, frame: Frame) -> None:
        frame.names[statement.cls.name] = ClassValue(statement.cls, frame)

    # names and places

    def lookup(self, name: str, frame: Frame) -> Any:
        scope: Frame | None = frame
        while scope is not None:
            if name in scope.names:
                value = scope.names[name]
                return value if type(value) is not Imported else self.held(scope.names, name)
            scope = scope.parent
        return MISSING

    def _name(self, node: ir.Name, frame: Frame) -> Any:
        value = self.lookup(node.id, frame)
        if value is not MISSING:
            return value
        module = frame.module
        if module is not None:
            top = self.module_frame(module)
            if node.id in top.names:
                return self.held(top.names, node.id)
            if node.id in module.classes:
                return ClassValue(module.classes[node.id], top)
            for function in module.functions:
                if function.name == node.id and function.owner is None and "." not in function.qualname:
                    return Closure(function, top)
        return self.unknown(node.id, node.site)

    def unknown(self, key: str, site: int, **fields: Any) -> Any:
        """An unresolved access path: a learned or conventional number, a known object, or an unknown."""
        found = self.things.get(key)
        if found is not None:
            return found
        if "resume" in fields.get("tags", ()):
            return Unknown(key, **fields)  # state["epoch"] is where an earlier run stopped, not how long this one lasts
        if key not in self._plain or key in self.learned.windows:
            number = self._conventional(key, last_name(key), site, fields)
            if number is not None:
                return number
            if not self.scouting and not fields.get("tags"):  # while scouting, numbers are still being learned
                self._plain.add(key)
        return Unknown(key, **fields)

    def _conventional(self, key: str, name: str, site: int, fields: dict[str, Any]) -> Quantity | None:
        """The number that a path stands for, as was learned or by its name; ranks are marked in the fields."""
        if key in self.learned.windows or self.vocabulary.is_window(name):
            self.window_names.setdefault(key, site)
            return Quantity.of(K, "K")
        if key in self.learned.epochs or self.vocabulary.named("epochs", name):
            return Quantity.of(EPOCHS, "epochs")
        if key in self.learned.updates:
            return Quantity.of(UPDATES, "updates")
        if key in self.learned.lengths:
            return Quantity.of(self.length, "len")
        if self.vocabulary.is_world(name):
            return Quantity.of(RANKS, "world")
        if self.vocabulary.named("loader_length", name):
            return Quantity.of(self.length, "len")
        if self.vocabulary.named("rank", name) or self.vocabulary.named("main_rank", name):
            fields["tags"] = fields.get("tags", frozenset()) | {"rank"}
        return None

    def assign(self, target: ir.Expr, value: Any, frame: Frame, site: int) -> None:
        kind = type(target)
        if self.scouting and type(value) is bool and kind in (ir.Name, ir.Attr) and any(where == "if" for where, _, _ in self.scout_stack):
            # a switch that only one arm throws: whoever is scouted next must not take it for thrown
            value = Unknown(self.key(target))
        if kind is ir.Name and isinstance(value, Tensor) and value.form == "data" and last_name(value.key) != target.id:
            # what a reader calls a part of the batch tells labels and masks apart
            value = self.registry.table.roles["named_data"](self, value, target.id)
        if isinstance(value, Unknown) and "resume" in value.tags and kind in (ir.Name, ir.Attr) and "[" in value.key:
            self.emit(Kind.RESUME, site, key=last_name(value.key), into=self.key(target), use="counter")
        if type(value) is int and not self.scouting:
            self._note_restart(target, frame, site)
        if kind in (ir.Name, ir.Attr) and not self.scouting:
            if isinstance(value, Unknown) and self.led_by or isinstance(value, Quantity) and self.led_by and not value.known:
                self.set_behind[self.key(target)] = next((led for led in reversed(self.led_by) if led), [])
        if kind is ir.Name:
            value = self.named(target.id, value, target.site)
            if target.id in frame.outer:
                scope = frame.parent
                while scope is not None:
                    if target.id in scope.names:
                        scope.names[target.id] = value
                        return
                    scope = scope.parent
                if frame.module is not None:
                    self.module_frame(frame.module).names[target.id] = value
                return
            frame.names[target.id] = value
        elif kind is ir.Attr:
            owner = self.eval(target.value, frame)
            if type(value) is int and value == 1 and isinstance(target.value, ir.Attr) and isinstance(owner, Unknown) and self.vocabulary.is_window(target.name):
                value = Unknown(self.key(target))  # _C.TRAIN.ACCUMULATION_STEPS = 1: what a configuration starts with
            self.set_attribute(owner, target.name, self.named(target.name, value, target.site), target, frame)
        elif kind is ir.Sequence:
            self._unpack(target.items, value, frame, site)
        elif kind is ir.Starred:
            self.assign(target.value, value, frame, site)
        elif kind is ir.Subscript:
            owner = self.eval(target.value, frame)
            index = self.eval(target.index, frame)
            if isinstance(index, Quantity) and index.integer is not None:
                index = index.integer
            if isinstance(owner, dict) and isinstance(index, (str, int)):
                owner[index] = value
            elif isinstance(owner, dict):
                owner[f"?{len(owner)}"] = value  # under a key that is not shown
            elif isinstance(owner, list) and isinstance(index, int) and -len(owner) <= index < len(owner):
                owner[index] = value
            elif isinstance(owner, Unknown) and isinstance(index, (str, int)):
                self.things[f"{owner.key}[{index!r}]"] = value
            elif isinstance(owner, Tensor) and owner.form == "data" and isinstance(index, (str, Tensor)):
                # labels[mask] = -100 and batch["labels"] = … : counts of valid targets vary from here on
                if value == -100 or "-100" in str(value):
                    self.traits.add("ignored labels")

    def _note_restart(self, target: ir.Expr, frame: Frame, site: int) -> None:
        """A name that holds a count so far is given a constant."""
        held: Any = None
        if isinstance(target, ir.Name):
            held = self.lookup(target.id, frame)
        elif isinstance(target, ir.Attr) and isinstance(target.value, (ir.Name, ir.Attr)):
            owner = self.eval(target.value, frame)
            held = owner.attributes.get(target.name) if isinstance(owner, Instance) else None
        if isinstance(held, Quantity):
            name = self.key(target)
            if f"counter:{name}" in held.tags:
                self.emit(Kind.RESTART, site, name=name)

    def _unpack(self, targets: list[ir.Expr], value: Any, frame: Frame, site: int) -> None:
        stars = [i for i, t in enumerate(targets) if isinstance(t, ir.Starred)]
        if isinstance(value, Stream) and value.literal and value.length is not None:
            value = [value.item(i) for i in range(value.length)]
        if isinstance(value, (list, tuple)):
            if not stars and len(value) == len(targets):
                for target, item in zip(targets, value):
                    self.assign(target, item, frame, site)
                return
            if stars and len(value) >= len(targets) - 1:
                at = stars[0]
                tail = len(targets) - at - 1
                for target, item in zip(targets[:at], value[:at]):
                    self.assign(target, item, frame, site)
                self.assign(targets[at], list(value[at : len(value) - tail]), frame, site)
                for target, item in zip(targets[at + 1 :], value[len(value) - tail :]):
                    self.assign(target, item, frame, site)
                return
        for index, target in enumerate(targets):
            self.assign(target, self.item_of(value, index, f"[{index}]"), frame, site)

    def item_of(self, value: Any, index: int, suffix: str) -> Any:
        """Element ``index`` of something that is not a known sequence."""
        if isinstance(value, Tensor):
            return self.registry.tensor_item(self, value, index)
        if isinstance(value, Unknown):
            return self.unknown(value.key + suffix, -1, batch=value.batch, local=value.local, tags=value.tags)
        if isinstance(value, Thing):
            return self.registry.thing_item(self, value, index)
        return Unknown(f"?{suffix}")

    def named(self, name: str, value: Any, site: int) -> Any:
        """The name of a target teaches what a value that shows nothing may be."""
        if isinstance(value, list) and value and all(type(one) is int for one in value) and self.vocabulary.is_window(name):
            return [Quantity.of(K, "K")] * len(value)  # a window for every stage of the training
        if isinstance(value, bool) or not isinstance(value, (int, Unknown, Quantity)):
            if isinstance(value, Thing) and value.name[:1].isupper():
                value.name = name
                if value.number in self.subjects:
                    self.subjects[value.number].name = name
            return value
        if isinstance(value, Unknown) and value.batch < 0 and value.key.endswith((")", "]")) and not value.tags:
            used = self.receivers.get(name, frozenset())
            kind = self.vocabulary.kind_of_name(name)
            if not kind and {"step", "zero_grad"} <= used and "backward" not in used:
                kind = "optimizer"  # whatever it is called, it is stepped and cleared
            if kind and not self.vocabulary.kind_of_name(value.last) and self._used_as(name, kind):
                made = self.known_as(value, kind, site)
                made.name = name
                made.state.setdefault("constructor", last_name(value.key.partition("(")[0]))
                if made.number in self.subjects:
                    self.subjects[made.number].name = name
                return made
        if isinstance(value, Unknown) and value.batch < 0 and self.vocabulary.is_world(name) and not value.tags:
            return Quantity.of(RANKS, "world")
        if isinstance(value, int) and value > EPOCHS and self.vocabulary.named("epochs", name):
            return Quantity.of(EPOCHS, "epochs")
        if self.vocabulary.is_window(name):
            if isinstance(value, Unknown) and value.batch < 0 or isinstance(value, int) and (value > 1 or value == 1 and name in self.rebound):
                self.window_names.setdefault(name, site)
                if isinstance(value, int):
                    self.traits.add(f"window literal {value}")
                return Quantity.of(K, "K")
            if isinstance(value, Quantity) and not value.known:
                self.window_names.setdefault(name, site)
                return Quantity.of(K, "K")
            if isinstance(value, Quantity) and "K" not in value.tags and not _counters(value) and value.integer is not None and value.integer > 1:
                return Quantity.of(K, "K", *value.tags)
        return value

    def _used_as(self, name: str, kind: str) -> bool:
        """The script treats what this name holds as that kind: names alone lie too often."""
        used = self.receivers.get(name, frozenset())
        if kind == "optimizer":
            return bool(used & {"step", "zero_grad"}) or not used
        if kind == "scheduler":
            return "step" in used and not used & {"add_noise", "set_timesteps"}
        return kind in ("model", "loader", "scaler")

    # attributes

    def _attr(self, node: ir.Attr, frame: Frame) -> Any:
        return self.attribute(self.eval(node.value, frame), node.name, node, frame)

    def attribute(self, value: Any, name: str, node: Any, frame: Frame | None = None) -> Any:
        site = node.site if node is not None else -1
        kind = type(value)
        if kind is Instance:
            return self._instance_attribute(value, name, site)
        if kind is External:
            return self.registry.external_attribute(self, value, name, site)
        if kind is tuple and len(value) == 2 and value[0] == "module":
            return self._module_attribute(value[1], name, site)
        if kind is Thing:
            if name in value.attributes:
                return value.attributes[name]
            return self.registry.attribute(self, value, name, site)
        if kind is Tensor:
            return self.registry.tensor_attribute(self, value, name, site)
        if kind is Parameters:
            if name == "data":
                return value
            return Gradient(value.models) if name == "grad" else Unknown(f"parameter.{name}")
        if kind is Gradient:
            return value if name in ("data", "grad") else Unknown(f"gradient.{name}")
        if kind is ClassValue:
            method = self.find_method(value.cls, name)
            if method is not None:
                return Closure(method, self._class_frame(value.cls))
            found = self._class_attribute(value.cls, name)
            return found if found is not MISSING else self.unknown(f"{value.cls.name}.{name}", site)
        if kind is Unknown:
            key = f"{value.key}.{name}"
            if name == "grad":
                return Gradient(None)
            if name == "ignore_index":
                self.ignoring.add(value.key)  # the script asks a loss which label it leaves out
            thing = self.things.get(value.key)
            if isinstance(thing, (Thing, Instance)):
                return self.attribute(thing, name, node, frame)
            return self.unknown(key, site, batch=value.batch, local=value.local, tags=value.tags & {"rank", "resume"})
        if kind is dict and name in value and not name.startswith("__") and name not in ("items", "keys", "values", "get", "update", "pop"):
            return value[name]
        return Method(value, name, site)

    def _module_attribute(self, module: ir.Module, name: str, site: int) -> Any:
        found = self.held(self.prepare_module(module).names, name)
        if found is not MISSING:
            return found
        return self.unknown(f"{module.name}.{name}", site)

    def _class_frame(self, cls: ir.Class) -> Frame:
        return self.module_frame(cls.module) if cls.module is not None else Frame()

    def mro(self, cls: ir.Class, depth: int = 0) -> list[ir.Class]:
        """The class and its bases as far as the checked files show them (depth first, bounded)."""
        out = [cls]
        if depth > 6:
            return out
        for base in cls.bases:
            value = self.eval(base.value if isinstance(base, ir.Subscript) else base, self._class_frame(cls))
            if isinstance(value, ClassValue) and value.cls is not cls:
                out.extend(c for c in self.mro(value.cls, depth + 1) if c not in out)
        return out

    def find_method(self, cls: ir.Class, name: str) -> ir.Function | None:
        for candidate in self.mro(cls):
            if name in candidate.methods:
                return candidate.methods[name]
        return None

    def _class_attribute(self, cls: ir.Class, name: str) -> Any:
        for candidate in self.mro(cls):
            for statement in candidate.body:
                if isinstance(statement, ir.Assign):
                    for target in statement.targets:
                        if isinstance(target, ir.Name) and target.id == name:
                            return self.named(name, self.eval(statement.value, self._class_frame(candidate)), statement.site)
        return MISSING

    def method_of(self, value: Instance, name: str) -> Closure | None:
        function = self.find_method(value.cls, name)
        if function is None:
            return None
        static = "staticmethod" in function.decorator_names
        frame = self.module_frame(function.module) if function.module is not None else Frame()
        return Closure(function, frame, None if static else value)

    def _instance_attribute(self, value: Instance, name: str, site: int) -> Any:
        if name in value.attributes:
            return value.attributes[name]
        method = self.method_of(value, name)
        if method is not None:
            if {"property", "cached_property"} & method.function.decorator_names:
                return self.call_closure(method, [], {}, site)
            return method
        found = self._class_attribute(value.cls, name)
        if found is not MISSING:
            return found
        special = self.registry.instance_attribute(self, value, name, site)
        if special is not MISSING:
            return special
        return self.unknown(f"{value.cls.name}.{name}", site)

    def set_attribute(self, owner: Any, name: str, value: Any, target: ir.Attr, frame: Frame) -> None:
        if self.registry.set_attribute(self, owner, name, value, target):
            return
        if isinstance(owner, (Instance, Thing)):
            owner.attributes[name] = value
        elif isinstance(owner, Unknown):
            self.things[f"{owner.key}.{name}"] = value if not isinstance(value, Unknown) else Unknown(
                value.key, value.batch, value.local, value.tags
            )
        elif isinstance(owner, dict):
            owner[name] = value
        elif isinstance(owner, ClassValue):
            self.things[f"{owner.cls.name}.{name}"] = value

    # expressions

    def _const(self, node: ir.Const, frame: Frame) -> Any:
        return node.value

    def _text(self, node: ir.Text, frame: Frame) -> Any:
        for part in node.parts:
            if _may_run(part):
                self.eval(part, frame)
        return Unknown(f"text@{node.site}")

    def _sequence(self, node: ir.Sequence, frame: Frame) -> Any:
        out: list[Any] = []
        for item in node.items:
            if isinstance(item, ir.Starred):
                value = self.eval(item.value, frame)
                if isinstance(value, (list, tuple)):
                    out.extend(value)
                elif isinstance(value, Stream) and value.length is not None and value.length < 64:
                    out.extend(value.item(i) for i in range(value.length))
                else:
                    out.append(value)
            else:
                out.append(self.eval(item, frame))
        return tuple(out) if node.kind == "tuple" else out

    def _mapping(self, node: ir.Mapping, frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for key, value in node.items:
            if key is None:
                inner = self.eval(value, frame)
                if isinstance(inner, dict):
                    out.update(inner)
                elif isinstance(inner, Tensor):
                    return inner
                continue
            name = self.eval(key, frame)
            held = self.eval(value, frame)
            out[name if isinstance(name, (str, int)) else self.key(key)] = held
        return out

    def _walrus(self, node: ir.Walrus, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        self.assign(node.target, value, frame, node.site)
        return value

    def _yield(self, node: ir.Yield, frame: Frame) -> Any:
        value = self.eval(node.value, frame) if node.value is not None else None
        scope: Frame | None = frame
        while scope is not None and scope.yields is None:
            scope = scope.parent
        if scope is not None and scope.yields is not None:
            if node.delegate:
                stream = self.stream(value, node.value)
                count = self.length if stream.length is None or stream.infinite else min(stream.length, 64)
                for index in range(count):
                    scope.yields.append(stream.item(index))
            else:
                scope.yields.append(list(value) if isinstance(value, list) else value)
                self.filled[id(scope.yields[-1])] = list(self.asking)
            if len(scope.yields) >= 3 * self.length:
                raise _EnoughYields
        return Unknown(f"sent@{node.site}")

    def _comprehension(self, node: ir.Comprehension, frame: Frame) -> Any:
        inner = Frame(frame)
        first_source = self.eval(node.clauses[0][1], inner)
        if node.kind == "dict" and isinstance(first_source, (Method, Stream, Tensor)):
            # {k: v.to(device) for k, v in batch.items()} is the batch again
            origin = first_source.thing if isinstance(first_source, Stream) else first_source
            if isinstance(origin, Tensor):
                self.assign(node.clauses[0][0], (Unknown("key"), origin), inner, node.site)
                element = self.eval(node.element, inner)
                return element if isinstance(element, Tensor) and element.form == "data" else origin
        if isinstance(first_source, Parameters) or (isinstance(first_source, Stream) and isinstance(first_source.thing, Parameters)):
            origin = first_source if isinstance(first_source, Parameters) else first_source.thing
            target = node.clauses[0][0]
            self.assign(target, origin if not isinstance(target, ir.Sequence) else (Unknown("name"), origin), inner, node.site)
            return self._over_parameters(node, origin, inner)
        if isinstance(first_source, Tensor) and first_source.form == "data":
            element_data = dict(zip((render_target(node.clauses[0][0]),), (first_source,)))
            inner.names.update(element_data)
            value = self.eval(node.element, inner)
            if isinstance(value, Unknown) and "counted" in value.tags:
                return [value]  # numbers of the pieces, no longer the pieces
            return value if isinstance(value, Tensor) else first_source
        out: list[Any] = []
        keys: list[Any] = []
        self._comprehend(node, 0, inner, out, keys, first_source)
        if node.kind == "dict":
            return {k if isinstance(k, (str, int)) else f"?{i}": v for i, (k, v) in enumerate(zip(keys, out))}
        return out

    def _over_parameters(self, node: ir.Comprehension, origin: Parameters, frame: Frame) -> Any:
        value = self.eval(node.element, frame)
        if node.kind == "dict" and isinstance(value, Thing) and node.key is not None and self.eval(node.key, frame) is origin:
            return {origin: value}  # an optimizer for each parameter
        if isinstance(value, (Parameters, Gradient)):
            return origin if isinstance(value, Parameters) else [value]
        if isinstance(value, (dict, tuple)):
            return origin
        return [value]

    def _comprehend(self, node: ir.Comprehension, depth: int, frame: Frame, out: list[Any], keys: list[Any], source: Any) -> None:
        target, iterable, conditions = node.clauses[depth]
        if depth:
            source = self.eval(iterable, frame)
        stream = self.stream(source, iterable)
        count = stream.length if stream.length is not None and not stream.infinite else (self.length if stream.loader else 1)
        if stream.bound and stream.length is None:
            # [next(it) for _ in range(accum)]: how many is what makes the window
            produces = stream.loader or "next" in _calls_in_expression(node.element)
            if produces and not self.vocabulary.is_window(last_name(stream.bound)):
                self.learned.windows.add(stream.bound)
                if not self.scouting:
                    raise Relearn
            count = K if produces else 1
        if self.scouting and stream.bound == "" and isinstance(stream.thing, int) and stream.thing > 1:
            if "next" in _calls_in_expression(node.element) and self.learned.literal is None and 1 < stream.thing <= 4096:
                self.learned.literal = stream.thing
        role = self.learned.roles.get(node.site, "plain") if depth == 0 else "plain"
        if role in ("window", "micro") and stream.length is None:
            count = K if role == "window" else self.length
        effects: set[str] = set()
        if self.scouting:
            self.scout_stack.append(("for", node.site, effects))
            count = min(count, 2)
        for index in range(min(count, 24)):
            self.spend()
            if role in ("window", "micro"):
                self.microbatch += 1
                self.emit(Kind.MICROBATCH, node.site)
            self.assign(target, stream.item(index), frame, node.site)
            if not all(self._weighed(self.eval(c, frame), True, self._weight(node.site)) for c in conditions):
                continue
            if depth + 1 < len(node.clauses):
                self._comprehend(node, depth + 1, frame, out, keys, None)
            else:
                if node.key is not None:
                    keys.append(self.eval(node.key, frame))
                out.append(self.eval(node.element, frame))
        if self.scouting:
            self.scout_stack.pop()
            self._note_inert(node.site, not effects)
            for _, _, outer in self.scout_stack:
                outer |= effects
            if "backward" in effects and depth == 0:
                effects.add("carrying")
                self._scout_role(node.site, stream, effects)
                for _, _, outer in self.scout_stack:
                    outer |= {"carrying loop", "carrying"}

    def _choice(self, node: ir.Choice, frame: Frame) -> Any:
        value = self.eval(node.test, frame)
        if self.scouting and not _settled(value):
            first, second = self.eval(node.body, frame), self.eval(node.orelse, frame)
            self._note_inert(node.site, self._dull(first) and self._dull(second))
            return second if isinstance(first, (Unknown, type(None))) else first
        chosen = self._weighed(value, None, self._weight(node.site))
        return self.eval(node.body if chosen else node.orelse, frame)

    def _dull(self, value: Any) -> bool:
        """Whether nothing is known of a value that updates could depend on: words, and unknowns without a telling name."""
        if isinstance(value, Unknown):
            name = value.last
            return value.batch < 0 and not value.tags and not (
                self.vocabulary.kind_of_name(name) or self.vocabulary.is_window(name) or self.vocabulary.is_world(name)
            )  # fmt: skip
        return isinstance(value, str)

    def _note_inert(self, site: int, nothing: bool) -> None:
        """Remember that nothing depends on a choice, as long as no other call shows that something does."""
        if nothing and site not in self.learned.effects:
            self.learned.inert.add(site)
        elif not nothing:
            self.learned.effects.setdefault(site, frozenset())
            self.learned.inert.discard(site)

    def _weighed(self, value: Any, default: bool | None, weight: int) -> bool:
        """The truth of a condition on which so much depends: see ``weighing``."""
        outer, self.weighing = self.weighing, weight
        chosen = self.truth(value, default)
        self.weighing = outer
        return chosen

    def _unary(self, node: ir.Unary, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        if node.op == "not":
            if _settled(value):
                return not self.truth(value)
            return Test("not", (value,), f"not {self.key(node.value)}", *_facts(value))
        if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
            return -value if node.op == "-" else value
        if isinstance(value, Quantity):
            return -value if node.op == "-" else value
        if isinstance(value, Tensor):
            if node.op == "~" and value.form == "mask":
                return value
            # the sign of a loss does not change what a target weighs
            return value
        return Unknown(self.key(node), *_facts(value))

    def _logic(self, node: ir.Logic, frame: Frame) -> Any:
        undecided: list[Any] = []
        last: Any = None
        periods: frozenset[str] = frozenset()  # `args.do_eval and step % n == 0` is due every n steps, whatever else it asks
        for operand in node.values:
            value = self.eval(operand, frame)
            last = value
            if not _settled(value):
                undecided.append(value)
                continue
            held = self.truth(value)
            if node.op == "and" and not held:
                return value if not undecided else False
            if node.op == "and" and isinstance(value, Test) and "period" in value.tags:
                periods |= value.tags
            if node.op == "or" and held:
                # `args.x or default`: what an unknown left operand would be, nobody knows
                return value if not undecided or not isinstance(value, bool) else True
        if not undecided:
            return Test("known", (self.truth(last),), self.key(node), tags=periods) if periods and not isinstance(last, Test) else last
        if len(undecided) == 1 and not periods and not isinstance(undecided[0], Test) and undecided[0] is last:
            return last
        facts = [_facts(value) for value in undecided]
        batch = max(fact[0] for fact in facts)
        tags = frozenset().union(periods, *(fact[2] for fact in facts))
        return Test(node.op, tuple(undecided), self.key(node), batch, any(fact[1] for fact in facts), tags)

    def _compare(self, node: ir.Compare, frame: Frame) -> Any:
        left = self.eval(node.left, frame)
        left_node = node.left
        results = []
        for op, right_node in zip(node.ops, node.rights):
            right = self.eval(right_node, frame)
            results.append(self.compare(op, left, right, node, left_node, right_node))
            left, left_node = right, right_node
        if len(results) == 1:
            return results[0]
        if any(result is False for result in results):
            return False
        open_results = tuple(result for result in results if result is not True)
        if not open_results:
            return True
        return Test("and", open_results, self.key(node), *_facts(open_results[0]))

    def compare(self, op: str, left: Any, right: Any, node: Any, left_node: Any, right_node: Any) -> Any:
        """One comparison: a bool where it is known, else a test with structure."""
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            tensor = self.registry.tensor_compare(self, op, left, right, self.key(node))
            if tensor is not None:
                return tensor
        if op in ("is", "is not") or (op in ("==", "!=") and (left is None or right is None)):
            return self._compare_none(op, left, right, node)
        if op in ("in", "not in"):
            if isinstance(right, (list, tuple, dict)) and isinstance(left, (str, int)):
                if all(isinstance(x, (str, int)) for x in right):
                    return (left in right) == (op == "in")
            test = Test("atom", (), f"{self.key(left_node)} in {self.key(right_node)}", *_facts(left, right))
            return test if op == "in" else Test("not", (test,), f"not {test.key}", *_facts(test))
        if isinstance(left, NUMBERS) and isinstance(right, NUMBERS) and not (isinstance(left, bool) and isinstance(right, bool)):
            return self._compare_numbers(op, left, right, node, left_node, right_node)
        if isinstance(left, (str, bool)) and isinstance(right, (str, bool)):
            try:
                return _COMPARE[op](left, right)
            except TypeError:
                return op == "!="
        if isinstance(left, Test) or isinstance(right, Test):
            test, other = (left, right) if isinstance(left, Test) else (right, left)
            if isinstance(other, (bool, int)) and op in ("==", "!=") and test.op != "modulo":
                same = bool(other) == (op == "==")
                return test if same else Test("not", (test,), f"not {test.key}", *_facts(test))
            if test.op == "modulo":
                return test
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return self._compare_unknown(op, left, right, node, left_node, right_node)
        if isinstance(left, (list, tuple, dict)) and isinstance(right, (list, tuple, dict)):
            try:
                return bool(_COMPARE[op](left, right))
            except (TypeError, RecursionError):
                pass
        return Test("atom", (), self.key(node), *_facts(left, right))

    def _compare_none(self, op: str, left: Any, right: Any, node: Any) -> Any:
        negative = op in ("is not", "!=")
        if left is None or right is None:
            other = right if left is None else left
            if other is None:
                return not negative
            if isinstance(other, Thing) and other.maybe_none:
                test = Test("none", (other.maybe_none.removesuffix(" is None"),), other.maybe_none)
            elif isinstance(other, Unknown):
                test = Test("none", (other.key,), f"{other.key} is None", *_facts(other))
            elif isinstance(other, Tensor) and other.form == "data" and other.batch >= 0:
                # a loader may hand out nothing for one microbatch
                test = Test("missing", (), f"{_stem(other)} is None", other.batch, True)
            else:
                return negative
            return Test("not", (test,), f"not {test.key}", *_facts(test)) if negative else test
        if isinstance(left, bool) and isinstance(right, bool):
            return (left is right) != negative
        if isinstance(left, (Thing, Instance)) and isinstance(right, (Thing, Instance)):
            return (left is right) != negative
        test = Test("atom", (), self.key(node).replace(" is not ", " is "), *_facts(left, right))
        if isinstance(right, bool) and isinstance(left, (Unknown, Test)):
            inner: Any = left
            same = right != negative
            return inner if same else Test("not", (inner,), f"not {self.key(node)}", *_facts(inner))
        return Test("not", (test,), f"not {test.key}", *_facts(test)) if negative else test

    def _compare_numbers(self, op: str, left: Any, right: Any, node: Any, left_node: Any, right_node: Any) -> Any:
        one, two = quantity(left), quantity(right)
        tags = one.tags | two.tags
        one, two = self._as_window(one, two), self._as_window(two, one)
        if "period" in tags and op in ("==", "!="):  # update % 1000 == 999
            one, two = (value if "period" in value.tags else _remainder(value) for value in (one, two))
        if op in ("<", "<=", ">", ">=") and self.loop_roles[-1:] == ["micro"]:
            self._note_resumed(one, two, node)
        if one.known and two.known:
            results = {_COMPARE[op](a, b) for a, b in zip(one.ranks, two.ranks)}
            if len(results) > 1:
                return Test("known", (_COMPARE[op](one.ranks[0], two.ranks[0]),), self.key(node), -1, True, tags)
            held = results.pop()
            written = isinstance(left_node, ir.Const) or isinstance(right_node, ir.Const)
            if "period" not in tags:
                self._note_counted(tags)
            if self.scouting and "K" in tags and not {"len", "world"} & tags and one.tags != two.tags and not (written and not _counters(one) + _counters(two)):
                return self._scout_counter(op, one, two, node)
            if self.scouting and any(t.startswith(("counter:", "index:")) for t in tags) and op in ("==", "!=", ">=", ">", "<", "<="):
                return self._scout_counter(op, one, two, node)
            if "modulo" in tags and self.scouting:
                return Test("modulo", (one, self._period(tags)), self.key(node), tags=tags)
            if "period" in tags:
                return Test("known", (held,), self.key(node), tags=tags)
            if any(t.startswith("counter:") for t in tags):
                self._note_limit(one, two, node, left_node, right_node)
            elif "positions" in tags and not tags - {"positions", "rows"}:
                return self._by_size(held, node)
            return held
        if one.symbols == two.symbols and op in ("==", "!=") and one.ranks == two.ranks:
            return op == "=="
        now = f"batch {self.batch_of.get(self.microbatch)}"
        if "moment" in tags or now in tags:
            return Test("atom", (), self.key(node), max(self.microbatch, 0), "local" in tags, tags)
        # a counter against a limit that nobody knows: the limit is far away
        open_side, known_side, mirrored = (two, one, False) if one.known else (one, two, True)
        direction = _MIRROR[op] if mirrored else op
        if any(t.startswith(("counter:", "index:")) for t in known_side.tags):
            self.emit(Kind.LIMIT, node.site, counters=_counters(known_side), limit=dict(open_side.symbols), name=_limit_name(left_node, right_node, mirrored), in_microbatches="K" in open_side.tags)
        if "remainder" in open_side.tags and not _counters(known_side):
            return Test("atom", (), self.key(node), tags=tags)  # a position in an epoch may well be zero
        if known_side.known:
            return Test("far", (direction in ("<", "<=", "!="),), self.key(node), tags=tags)
        return Test("atom", (), self.key(node), tags=tags)

    def _note_resumed(self, one: Quantity, two: Quantity, node: Any) -> None:
        """``if step < done: continue``: as many microbatches are passed over as a checkpoint says."""
        for index, number in ((one, two), (two, one)):
            key = next((tag[8:] for tag in number.tags if tag.startswith("resumed:")), None)
            if key is not None and any(tag.startswith("index:") for tag in index.tags):
                self.emit(Kind.RESUME, node.site, key=key, into="", use="skip")

    def _by_size(self, held: bool, node: Any) -> Test:
        """``batch.numel() > 4000``: the data of one microbatch on one rank may come out the other way."""
        other = Test("missing", (), self.key(node), max(self.microbatch, 0), True)
        return Test("not", (other,), f"not {other.key}", *_facts(other)) if held else other

    def _note_limit(self, one: Quantity, two: Quantity, node: Any, left_node: Any, right_node: Any) -> None:
        first = any(t.startswith("counter:") for t in one.tags)
        counter, limit, limit_node = (one, two, right_node) if first else (two, one, left_node)
        name = last_name(ir.dotted(limit_node)) if isinstance(limit_node, (ir.Name, ir.Attr)) else ""
        if name and "K" not in limit.tags and not any(t.startswith("counter:") for t in limit.tags):
            self.emit(Kind.LIMIT, node.site, counters=_counters(counter), limit={name: 1}, name=name)

    def _as_window(self, value: Quantity, other: Quantity) -> Quantity:
        """A number that was learned to be K is simulated as K where it meets a counter."""
        if self.learned.literal is not None and not value.tags and value.integer == self.learned.literal:
            if any(t.startswith(("counter:", "index:", "modulo", "len")) for t in other.tags):
                return Quantity.of(K, "K")
        if self.learned.literal is not None and not value.tags and value.integer == self.learned.literal - 1:
            if "modulo" in other.tags or any(t.startswith("index:") for t in other.tags):
                return Quantity.of(K - 1, "K")
        return value

    def _scout_counter(self, op: str, one: Quantity, two: Quantity, node: Any) -> Any:
        counter, limit = (one, two) if _counters(one) or "K" in two.tags else (two, one)
        period: Any = limit
        if not limit.tags and limit.integer is not None:
            period = limit.integer + (1 if op in (">",) else 0)
        return Test("modulo", (counter, period), self.key(node), tags=one.tags | two.tags)

    @staticmethod
    def _period(tags: frozenset[str]) -> Any:
        return next((int(t[7:]) for t in tags if t.startswith("period=")), None)

    def _compare_unknown(self, op: str, left: Any, right: Any, node: Any, left_node: Any, right_node: Any) -> Any:
        unknown, other = (left, right) if isinstance(left, Unknown) else (right, left)
        facts = _facts(left, right)
        if op in ("==", "!="):
            member = _member(left_node) or _member(right_node)
            if member and unknown.batch < 0:  # a member of an enumeration: what equals one equals no other
                subject = self.key(right_node if _member(left_node) else left_node)
                test = Test("equal", (subject, member), f"{subject} == {member!r}", *facts)
                return test if op == "==" else Test("not", (test,), f"not {test.key}", *_facts(test))
            if isinstance(other, (str, bool)) or isinstance(other, int) and not _counters_of(other):
                if "rank" in unknown.tags and other == -1:
                    # -1 stands for a run that is not distributed
                    test = Test("equal", (unknown.key, other), f"{unknown.key} == {other!r}")
                elif "rank" in unknown.tags:
                    test = Test("atom", (), f"{unknown.key} == {other!r}", *facts)
                else:
                    test = Test("equal", (unknown.key, other), f"{unknown.key} == {other!r}", *facts)
                return test if op == "==" else Test("not", (test,), f"not {test.key}", *_facts(test))
            if "rank" in unknown.tags and isinstance(node, ir.Compare) and _deals_out(left_node, right_node):
                # `i % ranks == rank` deals the batches out: the ones that are followed are this rank's
                return Test("known", (op == "==",), self.key(node))
            if isinstance(other, Quantity) and _counters(other):
                # a counter meets a number that nobody knows: never, unless that number is K
                if self.scouting:
                    return Test("modulo", (other, unknown), self.key(node), *facts)
                return Test("far", (op == "!=",), self.key(node), *facts)
            test = Test("atom", (), self.key(node), *facts)
            return test
        if "rank" in unknown.tags and type(other) is int:
            return self._compare_rank(op if unknown is left else _MIRROR[op], unknown, other, facts)
        if isinstance(other, (int, Fraction, Quantity)) and not isinstance(other, bool):
            counters = _counters_of(other)
            if counters and "resume" in unknown.tags:
                one, two = (self.numeric(left), self.numeric(right))
                return self._compare_numbers(op, one, two, node, left_node, right_node)
            if counters:
                if self.scouting:
                    return Test("modulo", (other, unknown), self.key(node), *facts)
                self.emit(Kind.LIMIT, node.site, counters=counters, limit={unknown.key: 1}, name=unknown.last)
                direction = op if other is left else _MIRROR[op]
                return Test("far", (direction in ("<", "<="),), self.key(node), *facts)
            if "resume" in unknown.tags:
                return Test("atom", (), self.key(node), *facts)
            if unknown.batch < 0 and not isinstance(other, Quantity) and self.numeric(unknown) is not None:
                # `if args.max_grad_norm > 0`: settings are on when flags are on
                return Test("atom", (), self.key(node), *facts)
        if isinstance(left, Unknown) and isinstance(right, Unknown):
            for one, two, direction in ((left, right, op), (right, left, _MIRROR.get(op, op))):
                if two.key in self.learned.lengths or "len" in two.tags:
                    return Test("far", (direction in ("<", "<="),), self.key(node), *facts)
        return Test("atom", (), self.key(node), *facts)

    def _compare_rank(self, op: str, unknown: Unknown, other: int, facts: tuple[int, bool, frozenset[str]]) -> Test:
        """A rank and a number, seen from the main rank."""
        if (op, other) in ((">=", 0), ("<", 0), (">", -1), ("<=", -1)):
            # whether the run is distributed at all: the same on every rank
            test = Test("atom", (), f"{unknown.key} >= 0", facts[0])
            return test if op in (">=", ">") else Test("not", (test,), f"not {test.key}", *_facts(test))
        holds = _COMPARE[op](0, other)
        test = Test("atom", (), f"{unknown.key} {op if holds else _CONTRARY[op]} {other}", *facts)
        return test if holds else Test("not", (test,), f"not {test.key}", *_facts(test))

    def _subscript(self, node: ir.Subscript, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        index = self.eval(node.index, frame)
        return self.subscript(value, index, node)

    def subscript(self, value: Any, index: Any, node: ir.Subscript) -> Any:
        if isinstance(index, Quantity) and index.integer is not None:
            index = index.integer
        if isinstance(value, (list, tuple)) and not (isinstance(value, tuple) and value[:1] == ("module",)):
            if isinstance(index, int) and -len(value) <= index < len(value):
                return value[index]
            if isinstance(index, slice):
                try:
                    return value[_plain_slice(index)]
                except (TypeError, ValueError):
                    return value
            if value:
                return value[0]
        if isinstance(value, dict):
            if isinstance(index, (str, int)) and index in value:
                return value[index]
            if isinstance(index, str):
                return self.unknown(f"{self.key(node.value)}[{index!r}]", node.site)
            if isinstance(index, int) and "loss" in value:  # outputs[0] of what a model returns, which leaves out what is None
                held = [one for one in value.values() if one is not None]
                if -len(held) <= index < len(held):
                    return held[index]
            if value and not isinstance(index, int):
                return next(iter(value.values()))
        if isinstance(value, Tensor):
            return self.registry.tensor_subscript(self, value, index, node)
        if isinstance(value, Stream):
            if isinstance(index, int) and value.literal and value.length and -value.length <= index < value.length:
                return value.item(index % value.length)
            if value.loader:
                return self.batch_data()
        if isinstance(value, Thing):
            return self.registry.thing_item(self, value, index)
        if isinstance(value, Unknown):
            suffix = f"[{index!r}]" if isinstance(index, (str, int)) else f"[{self.key(node.index)}]"
            local = value.local or isinstance(index, Unknown) and index.local
            return self.unknown(value.key + suffix, node.site, batch=value.batch, local=local, tags=value.tags)
        if isinstance(value, Gradient) or isinstance(value, Parameters):
            return value
        if isinstance(value, External):
            return self.unknown(self.key(node), node.site) if value.origin != "os.environ" else self.registry.environment(self, index, node.site)
        return Unknown(self.key(node), *_facts(value))

    def _slice(self, node: ir.Slice, frame: Frame) -> Any:
        parts = [self.eval(part, frame) if part is not None else None for part in (node.lower, node.upper, node.step)]
        return slice(*parts)

    # arithmetic

    def numeric(self, value: Any) -> Quantity | None:
        """A value as a quantity; an unknown becomes a symbol of its own name."""
        if isinstance(value, bool):
            return None
        if isinstance(value, (int, Fraction)):
            return quantity(value)
        if isinstance(value, Quantity):
            return value
        if isinstance(value, Unknown):
            tags = set(value.tags)
            if "resume" in tags and value.batch < 0:
                # whatever was saved, simulation goes on from the start of a window
                return Quantity.of(0, "resume", f"resumed:{last_name(value.key)}")
            if value.batch >= 0:
                tags.add(f"batch {value.batch}")
                if value.local:
                    tags.add("local")
            return Quantity.symbol(value.key, *tags)
        return None

    def _binary(self, node: ir.Binary, frame: Frame) -> Any:
        left, right = self.eval(node.left, frame), self.eval(node.right, frame)
        return self.binary(node.op, left, right, node.site, self.key(node), node)

    def binary(self, op: str, left: Any, right: Any, site: int, key: str, node: ir.Binary | None = None) -> Any:
        if isinstance(left, int) and isinstance(right, int) and not isinstance(left, bool) and not isinstance(right, bool):
            return self._integers(op, left, right, key, site)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return self.registry.tensor_binary(self, op, left, right, site, key, node)
        if isinstance(left, (list, tuple)) and op == "+" and type(left) is type(right):
            return left + right if len(left) + len(right) < 256 else left
        if isinstance(left, list) and op == "*" and isinstance(right, (int, Quantity)):
            times = quantity(right).integer
            return left * times if times is not None and 0 <= times * len(left) < 64 else left
        if isinstance(left, Parameters) and isinstance(right, Parameters) and op == "+":
            both = None if left.models is None or right.models is None else left.models | right.models
            return Parameters(both)
        if isinstance(left, str) or isinstance(right, str):
            return left + right if isinstance(left, str) and isinstance(right, str) and op == "+" else Unknown(key)
        if isinstance(left, Gradient) or isinstance(right, Gradient):
            return left if isinstance(left, Gradient) else right
        if isinstance(left, Test) or isinstance(right, Test):
            if op in ("&", "|"):
                return Test("and" if op == "&" else "or", (left, right), key, *_facts(left, right))
            return Unknown(key, *_facts(left, right))
        one, two = self.numeric(left), self.numeric(right)
        if one is None or two is None:
            return Unknown(key, *_facts(left, right))
        return self._quantities(op, one, two, left, right, key, site)

    def _integers(self, op: str, left: int, right: int, key: str, site: int) -> Any:
        if op == "/":
            return Fraction(left, right) if right else Unknown(key)
        if op in ("**", "<<") and (abs(right) > 64 or abs(left) > 10**6):
            return Unknown(key)
        try:
            value = _BINARY[op](left, right) if op in _BINARY else None
        except (ArithmeticError, ValueError):
            return Unknown(key)
        if value is None or isinstance(value, int) and abs(value) > 10**24:
            return Unknown(key)
        return Fraction(value) if isinstance(value, float) else value

    def _quantities(self, op: str, one: Quantity, two: Quantity, left: Any, right: Any, key: str, site: int) -> Any:
        try:
            if op == "%":
                return self._modulo(one, two, left, right, key, site)
            two = self._as_window(two, one)
            if op in ("*", "/", "//") and "K" in one.tags | two.tags:
                # microbatches over K are updates, updates times K are microbatches: the unit is another one
                one, two = _without_unit(one), _without_unit(two)
            tags = one.tags | two.tags
            if op == "*":
                return one * two
            if op == "/":
                return one / two
            if op in ("+", "-") and one.symbols != two.symbols:
                shifted = _shifted(one, two, 1 if op == "+" else -1)
                if shifted is not None:
                    return shifted
            if op in ("+", "-"):
                total = one.plus(two, 1 if op == "+" else -1)
                if total is not None:
                    return total.tagged("clamped") if op == "+" and _is_guard(one, two) else total
                return self._opaque(key, tags, one, two)
            if op == "//":
                if "K" in one.tags and not one.symbols and ("world" in two.tags or not two.known):
                    return one  # K //= world size: still the K of this script
                exact = one.pointwise(two, operator.floordiv)
                if exact is not None:
                    return exact
                return self._floor(one, two, key, tags)
            if op == "**" and two.integer is not None and abs(two.integer) <= 8:
                out = Quantity.of(1)
                for _ in range(abs(two.integer)):
                    out = out * one
                return out if two.integer >= 0 else Quantity.of(1) / out
        except ArithmeticError:
            pass
        return self._opaque(key, one.tags | two.tags, one, two)

    def _floor(self, one: Quantity, two: Quantity, key: str, tags: frozenset[str]) -> Any:
        """A floor division with a symbol in it: the ratio, as far as a monomial can say it."""
        ratio = one / two
        # updates // (len(loader) // K) are epochs: nothing says that those are whole windows
        return Quantity(ratio.ranks, ratio.symbols, tags if "len" in two.tags else tags | {"floored"})

    def _opaque(self, key: str, tags: frozenset[str], *operands: Quantity) -> Quantity:
        if key in self.learned.windows:
            return Quantity.of(K, "K", *tags)
        if key in self.learned.lengths:
            return Quantity.of(self.length, "len", *tags)
        if key in self.learned.epochs:
            return Quantity.of(EPOCHS, "epochs", *tags)
        if key in self.learned.updates:
            return Quantity.of(UPDATES, "updates", *tags)
        return Quantity.symbol(key, *tags)

    def _modulo(self, one: Quantity, two: Quantity, left: Any, right: Any, key: str, site: int) -> Any:
        counting = bool(_counters(one))
        two = self._as_window(two, one) if counting else two
        literal = isinstance(right, int)
        if literal and self.learned.literal == right and counting:
            two = Quantity.of(K, "K")
        if self.scouting and (counting or "K" in two.tags or isinstance(right, Unknown) and right.batch < 0):
            period = right if isinstance(right, (int, Unknown)) else two
            if isinstance(right, Quantity) and not right.known and len(right.symbols) == 1:
                period = Unknown(right.symbols[0][0], tags=right.tags)
            return Test("modulo", (one, period), key, tags=one.tags | two.tags)
        if one.known and two.known:
            if counting and not two.tags & {"K", "len", "updates", "epochs", "world"} and two.integer is not None and two.integer > 1:
                value = one.pointwise(Quantity.of(PERIOD), operator.mod)
                whole = literal and self.learned.literal is not None and right % self.learned.literal == 0
                return value.tagged("period", f"value:{one.integer}", f"text:{key}", *(("multiple of K",) if whole else ())) if value is not None else value
            self._note_counted(one.tags | two.tags)
            try:
                value = one.pointwise(two, operator.mod)
            except ArithmeticError:
                return self._opaque(key, one.tags | two.tags, one, two)
            return value.tagged("modulo") if value is not None and counting else value
        if counting and one.known:
            value = one.pointwise(Quantity.of(PERIOD), operator.mod)
            return value.tagged("period", f"value:{one.integer}", f"text:{key}", *two.tags) if value is not None else None
        if "K" in two.tags and not one.known and self.microbatch >= 0 and len(one.symbols) == 1:
            # a counter kept elsewhere is assumed to count microbatches
            self.assumptions.add(f"`{one.symbols[0][0]}` counts microbatches")
            offset = sum(int(t[7:]) for t in one.tags if t.startswith("offset:"))
            return Quantity.of(Fraction((self.microbatch + 1 + offset) % K), *one.tags, "K", "modulo")
        return self._opaque(key, (one.tags | two.tags) - {"len"} | {"remainder"}, one, two)

    # iteration

    def stream(self, value: Any, node: ir.Expr | None) -> Stream:
        """Anything as something to iterate over."""
        if isinstance(value, Stream):
            return value
        if isinstance(value, (list, tuple)):
            if isinstance(value, tuple) and value[:1] == ("module",):
                return Stream(lambda i: Unknown("item"))
            held = list(value)
            if isinstance(value, Batches):
                return Stream(lambda i: held[i] if i < len(held) else self.batch_data("item"), len(held), loader=True)
            # scouting looks into the body of a loop over nothing, too
            return Stream(lambda i: held[i] if i < len(held) else self.batch_data("item"), len(held), literal=True)
        if isinstance(value, dict):
            keys = list(value)
            return Stream(lambda i: keys[i] if i < len(keys) else Unknown("key"), len(keys), literal=True)
        if isinstance(value, Thing):
            return self.registry.iterate(self, value)
        if isinstance(value, Tensor):
            return Stream(lambda i: tensors_part(self, value, i), None, thing=value)
        if isinstance(value, Parameters):
            return Stream(lambda i: value, 1, literal=True, thing=value)
        if isinstance(value, Instance):
            method = self.method_of(value, "__iter__")
            if method is not None and method.function.generator:
                return self.stream(self.call_closure(method, [], {}, node.site if node is not None else -1), node)
            return self._unknown_stream(value.cls.name)
        if isinstance(value, Unknown):
            return self._unknown_stream(value.key, value)
        if isinstance(value, (Method, External)):
            return self._unknown_stream(self.key(node) if node is not None else "items")
        return Stream(lambda i: Unknown("item"))

    def _unknown_stream(self, key: str, value: Unknown | None = None) -> Stream:
        def item(index: int) -> Any:
            if value is not None and self.vocabulary.kind_of_name(value.last) in ("optimizer", "scheduler", "model"):
                kind = self.vocabulary.kind_of_name(value.last)
                return self.known_as(Unknown(f"{value.key}[{index}]"), kind, -1)
            if _NO_DATA.search(key):
                return Unknown(f"{key}[{index}]")
            return self.batch_data(last_name(key))

        endless = bool(_ENDLESS.search(last_name(key)))
        finite = value is not None and not endless and self.vocabulary.kind_of_name(value.last) == "loader"
        return Stream(item, self.length if finite else None, infinite=endless, loader=True, thing=value)

    # calls

    def _call(self, node: ir.Call, frame: Frame) -> Any:
        self.spend()
        func = node.func
        if isinstance(func, ir.Attr):
            if isinstance(func.value, ir.Call) and isinstance(func.value.func, ir.Name) and func.value.func.id == "super":
                return self._call_super(node, func, frame)
            receiver = self.eval(func.value, frame)
            args, kwargs = self.arguments(node, frame)
            call = Call(node.site, func.name, args, kwargs, node, self.key(node), frame)
            return self.call_method(receiver, call, func)
        callee = self.eval(func, frame)
        args, kwargs = self.arguments(node, frame)
        name = func.id if isinstance(func, ir.Name) else last_name(self.key(func))
        return self.call_value(callee, Call(node.site, name, args, kwargs, node, self.key(node), frame))

    def arguments(self, node: ir.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in node.args:
            value = self.eval(argument.value, frame)
            if argument.star == "*":
                if isinstance(value, (list, tuple)):
                    args.extend(value)
                elif isinstance(value, Stream) and value.literal and value.length is not None:
                    args.extend(value.item(i) for i in range(value.length))
                else:
                    args.append(value)
            elif argument.star == "**":
                if isinstance(value, dict):
                    kwargs.update({k: v for k, v in value.items() if isinstance(k, str)})
                else:
                    kwargs.setdefault("**", value)
            elif argument.keyword is not None:
                kwargs[argument.keyword] = value
            else:
                args.append(value)
        return args, kwargs

    def _call_super(self, node: ir.Call, func: ir.Attr, frame: Frame) -> Any:
        args, kwargs = self.arguments(node, frame)
        scope: Frame | None = frame
        while scope is not None and (scope.function is None or scope.function.owner is None):
            scope = scope.parent
        call = Call(node.site, func.name, args, kwargs, node, self.key(node), frame)
        if scope is not None and scope.function is not None and scope.function.owner is not None:
            owner = scope.function.owner
            first = scope.function.parameters[0].name if scope.function.parameters else "self"
            instance = scope.names.get(first)
            if isinstance(instance, Instance):
                order = self.mro(instance.cls)
                start = order.index(owner) + 1 if owner in order else 1
                for candidate in order[start:]:
                    if func.name in candidate.methods:
                        function = candidate.methods[func.name]
                        return self.call_closure(Closure(function, self._class_frame(candidate), instance), args, kwargs, node.site)
                return self.registry.inherited(self, instance, call)
        return self.unknown_call(call)

    def call_method(self, receiver: Any, call: Call, func: ir.Attr) -> Any:
        """``receiver.name(...)``: what it means depends on what the receiver is."""
        kind = type(receiver)
        if kind is Instance:
            target = self._instance_attribute(receiver, call.name, func.site)
            nowhere = isinstance(target, Unknown) and target.key == f"{receiver.cls.name}.{call.name}"  # else a property gave it
            if nowhere and call.name not in receiver.attributes:
                return self.registry.inherited(self, receiver, call)
            if isinstance(target, Method) and target.receiver is receiver:  # the framework's own, by the role of the class
                return self.registry.method(self, receiver, call, func)
            return self.call_value(target, call)
        if kind is ClassValue:
            target = self.attribute(receiver, call.name, func)
            if isinstance(target, Closure) and "classmethod" in target.function.decorator_names:
                target = Closure(target.function, target.frame, receiver)
            return self.call_value(target, call)
        if kind is External:
            return self.call_value(self.registry.external_attribute(self, receiver, call.name, func.site), call)
        if kind is tuple and len(receiver) == 2 and receiver[0] == "module":
            return self.call_value(self._module_attribute(receiver[1], call.name, func.site), call)
        if kind is dict and call.name in receiver and isinstance(receiver[call.name], (Closure, Thing, Instance)):
            return self.call_value(receiver[call.name], call)
        if kind is Thing and call.name in receiver.attributes:
            held = receiver.attributes[call.name]
            if isinstance(held, Method) and held.receiver is receiver and held.name == call.name:
                return self.registry.method(self, receiver, call, func)  # optimizer.step = compile(optimizer.step)
            return self.call_value(held, call)
        if kind is Unknown and receiver.batch < 0:
            instance = self._instance_behind(receiver, call.name)
            if instance is not None:
                return self.call_method(instance, call, func)
        return self.registry.method(self, receiver, call, func)

    def _instance_behind(self, receiver: Unknown, method: str) -> Instance | None:
        """The object of the script's own class behind an unresolved name, when only one class has that method."""
        held = self.things.get(receiver.key)
        if isinstance(held, Instance):
            return held
        if held is not None or self.registry.kind_by_use(self, receiver):
            return None
        owners = [cls for cls in self.module.classes.values() if method in cls.methods]
        if len(owners) != 1:
            return None
        cls = owners[0]
        name = receiver.last.lower().strip("_")
        alike = len(name) > 2 and (name in cls.name.lower() or cls.name.lower() in name)
        if method in _EVERYDAY and not alike:
            return None
        if self.registry.role_of_class(self, cls) in ("dataset", "record", "function", "optimizer", "scheduler"):
            return None
        made = self.blank_instance(cls)
        self.things[receiver.key] = made
        return made

    def call_value(self, callee: Any, call: Call) -> Any:
        kind = type(callee)
        if kind is Closure:
            return self.call_closure(callee, call.args, call.kwargs, call.site, call)
        if kind is ClassValue:
            return self.instantiate(callee, call)
        if kind is External:
            return self.registry.external(self, callee, call)
        if kind is Partial:
            merged = Call(call.site, call.name, [*callee.args, *call.args], {**callee.kwargs, **call.kwargs}, call.node, call.key, call.frame)
            return self.call_value(callee.target, merged)
        if kind is Method:
            inner = Call(call.site, callee.name, call.args, call.kwargs, call.node, call.key, call.frame)
            node = ir.Attr(callee.site, ir.Const(callee.site, None), callee.name)
            return self.call_method(callee.receiver, inner, node)
        if kind is Thing:
            return self.registry.call_thing(self, callee, call)
        if kind is Instance:
            return self.call_instance(callee, call)
        if kind is Unknown:
            if not self.scouting and self.assigned.get(f"{callee.key} is None") is True:
                raise Abort  # on this path it was None a moment ago
            return self.registry.call_unknown(self, callee, call)
        if kind is Tensor:
            return self.unknown_call(call)
        return self.unknown_call(call)

    def call_instance(self, callee: Instance, call: Call) -> Any:
        for name in ("__call__", "forward"):
            method = self.method_of(callee, name)
            if method is not None:
                if callee.role == "model" or name == "forward":
                    return self.registry.forward(self, callee, call, method)
                return self.call_closure(method, call.args, call.kwargs, call.site, call)
        if callee.role == "model":
            return self.registry.forward(self, callee, call, None)
        return self.unknown_call(call)

    def momentary(self, key: str) -> Unknown:
        """A value that is new at every moment and differs between ranks: a clock, a random number."""
        self.moments += 1
        return Unknown(f"{key}#{self.moments}", max(self.microbatch, 0), True, frozenset({"moment"}))

    def unknown_call(self, call: Call) -> Any:
        """A call of something unseen: what goes in decides what may come out, callbacks are called once."""
        return self.registry.unseen(self, call)

    def call_closure(self, callee: Closure, args: list[Any], kwargs: dict[str, Any], site: int, call: Call | None = None) -> Any:
        function = callee.function
        if len(self.functions) >= MAX_DEPTH or self.functions.count(function) >= 2:
            self.gap("calls nest too deeply or recurse", site)
            return self._stand_in(function, args, kwargs, site)
        names = function.decorator_names
        if "contextmanager" in names or "asynccontextmanager" in names:
            return Context("generated", (callee, args, kwargs), site)
        if self.scouting:
            self.learned.covered.add(function)
            memory = (id(function), 0)
            runs = self.scouted.get(memory)
            # the same function is scouted four times at most; after that its effects are known
            seen = self.scouted.setdefault((id(function), 1), set())
            seen.add(str(len(seen)))
            if len(seen) > 4 and runs is not None:
                for _, _, effects in self.scout_stack:
                    effects |= runs
                return self._stand_in(function, args, kwargs, site)
        self.learned.covered.add(function)
        before = len(self.events)
        frame = self.bind(callee, args, kwargs)
        quiet = {"no_grad", "inference_mode"} & names
        self.no_grad += bool(quiet)
        evaluates = not self.scouting and "eval" in function.calls and function not in self.learned.training
        self.evaluating += evaluates
        self.functions.append(function)
        self.stack.append(site)
        effects: set[str] = set()
        if self.scouting:
            self.scout_stack.append(("function", site, effects))
        try:
            if function.generator:
                return self._run_generator(function, frame)
            outcome = self.block(function.body, frame)
        finally:
            self.functions.pop()
            self.stack.pop()
            self.no_grad -= bool(quiet)
            self.evaluating -= evaluates
            if self.scouting:
                if not effects.isdisjoint(_UPDATE_EFFECTS):
                    self.learned.training.add(function)
                self.scout_stack.pop()
                self.scouted.setdefault((id(function), 0), set()).update(effects)
                for _, _, outer in self.scout_stack:
                    outer |= effects
        value = outcome[1] if isinstance(outcome, tuple) else None
        if self.vocabulary.matches("rescale", function.name):
            self._trust_name(function.name, [*args, *kwargs.values()], before, site)
        if quiet and isinstance(value, Tensor):
            value = tensors.detached(value)
        return value

    def _trust_name(self, name: str, values: list[Any], before: int, site: int) -> None:
        """A function that is named after scaling gradients was run, and how it does so was not understood: it does."""
        given = next((v for v in values for v in (v if isinstance(v, list) else [v]) if isinstance(v, (Parameters, Gradient))), None)
        number = next((n for n in map(self.numeric, values) if n is not None), None)
        if given is not None and number is not None and not any(e.kind is Kind.RESCALE for e in self.events[before:]):
            multiplies = "mul" in name or "scale" in name and "unscale" not in name
            self.emit(Kind.RESCALE, site, factor=number if multiplies else None, models=given.models)

    def _stand_in(self, function: ir.Function, args: list[Any], kwargs: dict[str, Any], site: int) -> Any:
        inputs = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        if inputs:
            out = tensors.joined(inputs, "output", f"{function.name}()")
            out.scale = None
            return out
        return Unknown(f"{function.name}()")

    def _run_generator(self, function: ir.Function, frame: Frame) -> Stream:
        """A generator is run to its end (or to enough items) at once; its items are what the loop will see."""
        frame.yields = []
        infinite = False
        try:
            self.block(function.body, frame)
        except _EnoughYields:
            infinite = True
        items = frame.yields or []
        loader = any(_carries_data(item) for item in items[:4])
        if not items:
            return Stream(lambda i: self.batch_data(function.name), None, loader=True)
        if not loader and all(isinstance(item, (Unknown, tuple)) and not _is_object(item) for item in items[:2]) and infinite:
            # data made by hand, without end
            return Stream(lambda i: self.batch_data(function.name), None, infinite=True, loader=True)
        return Stream(
            lambda i: items[i] if i < len(items) else items[i % len(items)], len(items), infinite=infinite, loader=loader,
            literal=not loader,
        )  # fmt: skip

    def bind(self, callee: Closure, args: list[Any], kwargs: dict[str, Any]) -> Frame:
        """A frame with the parameters bound; what is not given is its default, or unknown by its name."""
        function = callee.function
        frame = Frame(callee.frame, function, function.module)
        parameters = list(function.parameters)
        positional = list(args)
        if callee.bound is not None:
            positional.insert(0, callee.bound)
        rest = dict(kwargs)
        spread = rest.pop("**", None)
        for parameter in parameters:
            name = parameter.name
            if parameter.kind == "*":
                frame.names[name] = list(positional)
                positional = []
            elif parameter.kind == "**":
                frame.names[name] = dict(rest) if rest or spread is None else spread
                rest = {}
            elif positional and parameter.kind == "":
                frame.names[name] = self._adopt(name, positional.pop(0), parameter)
            elif name in rest:
                frame.names[name] = self._adopt(name, rest.pop(name), parameter)
            elif spread is not None and isinstance(spread, Tensor):
                frame.names[name] = spread
            elif parameter.default is not None:
                value = self.eval(parameter.default, callee.frame if callee.frame is not None else Frame(module=function.module))
                frame.names[name] = self.named(name, value, function.site)
            else:
                frame.names[name] = self.parameter(name, parameter)
        return frame

    def _adopt(self, name: str, value: Any, parameter: ir.Parameter) -> Any:
        """An argument under its parameter's name: an unknown may gain a kind, a number may turn out to be K."""
        if isinstance(value, Unknown) and value.batch < 0 and not self.vocabulary.kind_of_name(value.last):
            kind = self.vocabulary.kind_of_name(name)
            if kind and kind not in ("model", "loader"):
                known = self.things.get(value.key)
                if known is None:
                    known = self.things[value.key] = self.parameter(name, parameter, value.key)
                    self._note_length(known, value)
                return known
        return self.named(name, value, -1)

    def parameter(self, name: str, parameter: ir.Parameter | None, key: str | None = None) -> Any:
        """The value of a parameter that nobody passes (an entry point)."""
        return self.registry.parameter(self, name, parameter, key or name)

    def instantiate(self, value: ClassValue, call: Call) -> Any:
        made = self.registry.instantiate(self, value, call)
        if made is not None:
            return made
        cls = value.cls
        if cls.name.endswith("Loader"):
            self.registry.table.roles["batch size"](self, call)
        instance = Instance(cls, self.number(), site=call.site, role=self.registry.role_of_class(self, cls))
        self.subjects[instance.number] = Subject(instance.number, instance.role or "instance", cls.name, call.site)
        init = self.method_of(instance, "__init__")
        if init is not None:
            self.call_closure(init, call.args, call.kwargs, call.site)
        else:
            self._dataclass_fields(instance, call)
        return instance

    def _dataclass_fields(self, instance: Instance, call: Call) -> None:
        """A dataclass (or any class without a constructor of its own): arguments by field order and keyword."""
        fields: list[str] = []
        for candidate in reversed(self.mro(instance.cls)):
            for statement in candidate.body:
                if isinstance(statement, ir.Assign) and isinstance(statement.targets[0], ir.Name):
                    fields.append(statement.targets[0].id)
        for name, argument in zip(fields, call.args):
            instance.attributes[name] = self.named(name, argument, call.site)
        for name, argument in call.kwargs.items():
            instance.attributes[name] = self.named(name, argument, call.site)

    def run_root(self, function: ir.Function, times: int, callback: bool = False) -> None:
        """Call a function whose callers are not shown, ``times`` times, with what its parameter names say.

        ``callback``: it holds one microbatch and no loop, so it is called once for each.
        """
        frame = self.prepare_module(function.module or self.module)
        bound: Any = None
        if function.owner is not None and "staticmethod" not in function.decorator_names:
            bound = self.blank_instance(function.owner)
            for name in reserved({n: f for cls in reversed(self.mro(function.owner)) for n, f in cls.methods.items()}, function):
                if isinstance(bound.attributes.get(name), (bool, int, str, type(None))):
                    bound.attributes[name] = self.unknown(f"self.{name}", function.site)
        callee = Closure(function, self._enclosing_frame(function, frame), bound)
        args = self._root_arguments(function, bound, frame)
        if callback:
            self.assumptions.add(f"`{function.name}` is called once per microbatch")
            for _ in range(2 * self.length if not self.scouting else 1):
                self.microbatch += 1
                self.emit(Kind.MICROBATCH, function.site)
                self.call_closure(callee, self._root_arguments(function, bound, frame), {}, function.site)
            return
        for _ in range(times):
            self.call_closure(callee, list(args), {}, function.site)
            self.epoch += 1
            if times > 1:
                self.emit(Kind.EPOCH, function.site, synthetic=True)

    def _free_parameters(self, function: ir.Function, bound: Any) -> list[ir.Parameter]:
        parameters = [p for p in function.parameters if p.kind == ""]
        parameters = parameters[1:] if bound is not None else parameters
        # a default shows what kind of value is meant, so it is used; what has none is taken by its name, and so is
        # what a default of one process without accumulation would make pointless
        while parameters and not self._left_open(parameters[-1]):
            parameters.pop()
        return parameters

    def _left_open(self, parameter: ir.Parameter) -> bool:
        """Whoever calls the entry point decides this parameter: it has no default, or one that switches the matter off."""
        if parameter.default is None or _is_none(parameter.default):
            return True
        if not isinstance(parameter.default, ir.Const) or type(parameter.default.value) is not int:
            return False
        one = parameter.default.value == 1 and (self.vocabulary.is_window(parameter.name) or self.vocabulary.is_world(parameter.name))
        return one or self.vocabulary.named("rank", parameter.name)

    def _root_arguments(self, function: ir.Function, bound: Any, frame: Frame) -> list[Any]:
        out = []
        for parameter in self._free_parameters(function, bound):
            if self._left_open(parameter):
                out.append(self.parameter(parameter.name, parameter))
            else:
                out.append(self.named(parameter.name, self.eval(parameter.default, frame), function.site))
        return out

    def _enclosing_frame(self, function: ir.Function, frame: Frame) -> Frame:
        return frame

    def blank_instance(self, cls: ir.Class) -> Instance:
        """An object of a class, constructed with unknown arguments."""
        instance = Instance(cls, self.number(), site=cls.site, role=self.registry.role_of_class(self, cls))
        self.subjects[instance.number] = Subject(instance.number, instance.role or "instance", cls.name, cls.site)
        init = self.method_of(instance, "__init__")
        if init is not None:
            try:
                frame = self.module_frame(cls.module) if cls.module is not None else Frame()
                self.call_closure(init, self._root_arguments(init.function, instance, frame), {}, cls.site)
            except Abort:
                # an argument check that the unknown arguments did not pass: what was set so far is kept
                self.traits.add("constructor raised")
        return instance


class _Bare(str):
    """A word that is shown as it is written."""

    __repr__ = str.__str__


def _member(node: Any) -> _Bare | None:
    """``Precision.HALF``: the constant of a class."""
    if isinstance(node, ir.Attr) and isinstance(node.value, ir.Name) and node.value.id[:1].isupper() and node.name.isupper():
        return _Bare(f"{node.value.id}.{node.name}")
    return None


# what a window consists of: a condition over these is tried both ways before others
_UPDATE_EFFECTS = frozenset(kind.value for kind in (
    Kind.BACKWARD, Kind.REDUCE, Kind.RESCALE, Kind.UNSCALE, Kind.CLIP, Kind.STEP, Kind.SCALER_UPDATE, Kind.SCHEDULE, Kind.CLEAR,
))  # fmt: skip


def _deals_out(*sides: Any) -> bool:
    return any(isinstance(side, ir.Binary) and side.op == "%" for side in sides)


class _EnoughYields(Exception):
    """A generator has yielded as much as any loop will ask for."""


# method names that many classes of many libraries have
_EVERYDAY = frozenset(
    "step backward forward train eval update run zero_grad get put pop append add close open save load to items keys values parameters "
    "state_dict load_state_dict fit reset write log join start stop sample generate call apply copy".split()
)
_HARMLESS = frozenset(
    "int float str len round min max sum mean format time perf_counter synchronize keys items values join get isinstance "
    "all_reduce gather barrier reduce detach cpu numpy tolist memory_allocated max_memory_allocated sqrt exp log10 range "
    "enumerate zip sorted list dict set type getattr hasattr is_main_process get_rank avg average_loss reset clear".split()
)


def _ends(body: list[ir.Stmt]) -> str:
    """How a body ends when it ends early: raise, return, break, continue, or ''."""
    if not body:
        return ""
    last = body[-1]
    if isinstance(last, ir.Jump):
        return last.kind
    if isinstance(last, ir.Evaluate) and isinstance(last.value, ir.Call):
        if ir.dotted(last.value.func) in ("sys.exit", "exit", "os._exit", "quit"):
            return "raise"
    return ""


def _settled(value: Any) -> bool:
    """No decision is needed to know the truth of the value."""
    if isinstance(value, Test):
        return value.op == "known" or value.op == "far"
    if isinstance(value, Thing):
        return not value.maybe_none
    return not isinstance(value, (Unknown, Tensor)) and not (isinstance(value, Quantity) and not value.known)


def _remainder(value: Quantity) -> Quantity:
    """The number that a period test waits for, under the period that is simulated."""
    return Quantity.of(value.integer % PERIOD) if value.integer is not None else value


def _facts(*values: Any) -> tuple[int, bool, frozenset[str]]:
    """(microbatch, rank-local, tags) of what goes into an expression."""
    batch, local, tags = -1, False, frozenset()
    for value in values:
        if isinstance(value, (Unknown, Test)):
            batch = max(batch, value.batch)
            local |= value.local
            tags |= value.tags
        elif isinstance(value, Tensor):
            batch = max(batch, value.batch)
            local |= value.local
        elif isinstance(value, Quantity):
            tags |= value.tags
            local |= not value.uniform
    return batch, local, tags


def _counters(value: Quantity) -> tuple[str, ...]:
    return tuple(sorted(tag for tag in value.tags if tag.startswith(("counter:", "index:"))))


def _counters_of(value: Any) -> tuple[str, ...]:
    return _counters(value) if isinstance(value, Quantity) else ()


def _stem(value: Unknown | Tensor) -> str:
    """The key that is the same in every pass of a loop."""
    return value.key.split("#")[0]


def _plain_slice(value: slice) -> slice:
    def plain(part: Any) -> Any:
        if isinstance(part, Quantity):
            if part.integer is None:
                raise TypeError
            return part.integer
        if part is not None and not isinstance(part, int):
            raise TypeError
        return part

    return slice(plain(value.start), plain(value.stop), plain(value.step))


def _is_guard(one: Quantity, two: Quantity) -> bool:
    """``mask.sum() + 1e-8``: a count that is kept from being zero."""
    count, small = (one, two) if "count" in one.tags else (two, one)
    return "count" in count.tags and small.known and all(0 < value < 1 for value in small.ranks)


def _shifted(one: Quantity, two: Quantity, sign: int) -> Quantity | None:
    """An unknown number plus a constant: still that number, with an offset."""
    if len(one.symbols) == 1 and one.symbols[0][1] == 1 and one.ranks[0] == 1 and two.known and two.integer is not None and not two.tags:
        return one.tagged(f"offset:{sign * two.integer}")
    if sign > 0 and len(two.symbols) == 1 and two.symbols[0][1] == 1 and two.ranks[0] == 1 and one.known and one.integer is not None and not one.tags:
        return two.tagged(f"offset:{one.integer}")
    return None


def _without_unit(value: Quantity) -> Quantity:
    """The number without the memory of which counter it is."""
    kept = frozenset(t for t in value.tags if not t.startswith(("counter:", "index:", "resumed:")))
    return value if len(kept) == len(value.tags) else Quantity(value.ranks, value.symbols, kept)


def _limit_name(left_node: Any, right_node: Any, mirrored: bool) -> str:
    node = left_node if mirrored else right_node
    return last_name(ir.dotted(node)) if isinstance(node, (ir.Name, ir.Attr)) else ""


def _is_none(node: ir.Expr) -> bool:
    return isinstance(node, ir.Const) and node.value is None


def _speaks_of_window(value: Any) -> bool:
    """A condition that compares a count with K."""
    if not isinstance(value, Test):
        return False
    if value.op in ("not", "and", "or"):
        return any(_speaks_of_window(part) for part in value.parts)
    return value.op == "modulo"


def _carries_data(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    if isinstance(value, (list, tuple)):
        return any(_carries_data(item) for item in value[:3])
    if isinstance(value, dict):
        return any(isinstance(item, Tensor) for item in value.values())
    return False


def _is_object(value: Any) -> bool:
    """An optimizer, a model, a loss: a loop over such things is no loop over microbatches."""
    if isinstance(value, (tuple, list)) and value:
        return any(_is_object(item) for item in value)
    return isinstance(value, (Thing, Instance, Parameters, str)) or isinstance(value, Tensor) and value.graph


def render_target(target: ir.Expr) -> str:
    return target.id if isinstance(target, ir.Name) else ir.render(target)


def tensors_part(interpreter: Interpreter, value: Tensor, index: int) -> Any:
    return interpreter.registry.tensor_item(interpreter, value, index)


def _may_run(node: ir.Expr) -> bool:
    """Evaluating the expression could call something."""
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, (ir.Call, ir.Await, ir.Walrus)):
            return True
        stack.extend(_children(item))
    return False


def _holds_arithmetic(node: ir.Expr) -> bool:
    """``int(0.1 * total)``: a number, not an object that is made with one."""
    name = node.func.id if isinstance(node, ir.Call) and isinstance(node.func, ir.Name) else ""
    dotted = ir.dotted(node.func) if isinstance(node, ir.Call) and isinstance(node.func, ir.Attr) else ""
    return name in ("int", "round", "max", "min") or dotted in ("math.ceil", "math.floor")


def _children(node: Any) -> list[Any]:
    out: list[Any] = []
    for name in getattr(type(node), "__dataclass_fields__", ()):
        value = getattr(node, name)
        if isinstance(value, (ir.Expr, ir.Argument)):
            out.append(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, (ir.Expr, ir.Argument)):
                    out.append(item)
                elif isinstance(item, tuple):
                    out.extend(part for part in item if isinstance(part, ir.Expr))
    return out


def _calls_in_expression(node: ir.Expr) -> set[str]:
    names: set[str] = set()
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, ir.Call):
            func = item.func
            names.add(func.name if isinstance(func, ir.Attr) else func.id if isinstance(func, ir.Name) else "")
        stack.extend(_children(item))
    return names


def _calls_of(statement: ir.Stmt) -> set[str]:
    names: set[str] = set()
    for child in _children(statement):
        names |= _calls_in_expression(child)
    return names


def _yield_of(statement: ir.Stmt) -> ir.Yield | None:
    if isinstance(statement, ir.Evaluate) and isinstance(statement.value, ir.Yield):
        return statement.value
    if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Yield):
        return statement.value
    return None
