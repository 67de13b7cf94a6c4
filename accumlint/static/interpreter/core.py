"""One run over one script: what happened in it, which data it has seen, and how it is run."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from accumlint.contract.events import Event, Horizon, Kind, Subject
from accumlint.contract.quantity import Quantity
from accumlint.static import frameworks
from accumlint.static import syntax as ir
from accumlint.static.evidence import Outputs
from accumlint.static.interpreter.arithmetic import Arithmetic
from accumlint.static.interpreter.attributes import Attributes
from accumlint.static.interpreter.blocks import Blocks
from accumlint.static.interpreter.calls import Calls
from accumlint.static.interpreter.comparing import Comparisons
from accumlint.static.interpreter.conditions import Conditions
from accumlint.static.interpreter.expressions import Expressions
from accumlint.static.interpreter.facts import ending_of, may_run, stem_of
from accumlint.static.interpreter.loops import Loops
from accumlint.static.interpreter.names import Names
from accumlint.static.interpreter.state import Abort, Frame, K, Learned, OutOfBudget, Relearn
from accumlint.static.interpreter.statements import Statements
from accumlint.static.values import Closure, Tensor, Thing, Unknown
from accumlint.static.vocabulary import Vocabulary


VALID_TARGETS = ((3, 2), (6, 5), (1, 4), (4, 1), (4, 6), (4, 3), (2, 3), (5, 4))  # per microbatch: rank 0, rank 1
ROWS = 8  # rows (targets where their number is fixed) of a loader's batch
CONTEXT = 3  # attended positions of a microbatch that are no targets
SHIFT = 2  # label positions that the causal shift removes from a microbatch


class Interpreter(Conditions, Statements, Blocks, Loops, Names, Attributes, Expressions, Comparisons, Arithmetic, Calls):
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
        if isinstance(value, (Unknown, Tensor)) and stem_of(value) in self.learned.groups:
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
                elif isinstance(statement, ir.Assign) and not may_run(statement.value):
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
                if type(statement) is ir.If and not statement.orelse and ending_of(statement.body) == "continue":
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
                if "step" in effects and "backward" not in effects and not may_run(test):
                    self._learn_window(self.eval(test, frame))

    def execute(self, statement: ir.Stmt, frame: Frame) -> Any:
        self.budget -= 1
        if self.budget < 0:
            raise OutOfBudget
        return self._exec[type(statement)](statement, frame)

    def eval(self, node: ir.Expr, frame: Frame) -> Any:
        return self._eval[type(node)](node, frame)
