"""From one script to its traces: which functions are run, on which paths, with which data lengths."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from accumlint.contract.events import Event, Kind, Trace
from accumlint.static import syntax as ir
from accumlint.static.evidence import counted_outputs, perplexed
from accumlint.static.interpreter import Abort, Interpreter, Learned, OutOfBudget, Relearn
from accumlint.static.vocabulary import Vocabulary

LENGTH = 8  # microbatches per epoch: not a multiple of K = 3, rest 2
EVEN_LENGTH = 6  # the control: a multiple of K
SHIFTED_LENGTH = 7  # leaves a rest where windows begin one microbatch late: there the usual length leaves none
# Paths of one root: as many where nothing breaks, unless updates depend on what waits; and as many where something does,
# so that it can be said under which conditions. 40 public scripts and 365 files of twelve repositories report the same
# with 20.
FIRST_PATHS = 4
MAX_PATHS = 12
BLINDING = 3  # so much earlier is a condition turned round behind which a counter of unknown start was set: a resumed run
GATE = 2  # how much a condition tells on which updates depend: see Interpreter.telling
UPDATES_DEPEND = 1  # the rank of a path on which a condition over updates is turned round
MAX_ROOTS = 12
MAX_CHECKS = 5  # checks of arguments that are avoided one after the other
# For all runs of one file together. The largest public training scripts take a quarter of it; steps are counted and not
# seconds, so that a slow machine says the same.
MAX_STEPS = 400_000
BACKWARD_WORDS = frozenset({"backward", "manual_backward", "loss_scaler", "backward_step"})
STEP_WORDS = frozenset({"step", "loss_scaler", "optimizer_step"})


@dataclass(frozen=True)
class Root:
    """Where a run starts: the module itself, or a function that the module never calls."""

    function: ir.Function | None
    times: int = 1
    cls: ir.Class | None = None  # a class whose hooks a framework calls
    role: str = ""
    callback: bool = False  # holds one microbatch and no loop: somebody calls it once for each

    @property
    def name(self) -> str:
        if self.cls is not None:
            return self.cls.name
        return self.function.qualname if self.function is not None else "<module>"


@dataclass
class Explored:
    """All distinct traces of one root at the usual length, and what it takes to repeat one at an even length."""

    root: Root
    traces: list[Trace] = field(default_factory=list)
    controls: list[tuple[bool, dict[str, Any]] | None] = field(default_factory=list)  # how to run each trace at an even length
    learned: Learned | None = None
    cut: str = ""
    window_names: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, int] = field(default_factory=dict)


def receivers_of(module: ir.Module) -> dict[str, frozenset[str]]:
    """For every name or attribute on which methods are called: which methods. It tells kinds where names don't."""
    found: dict[str, set[str]] = {}
    for node in module.sites:
        func = getattr(node, "func", None)
        if func is None or type(node).__name__ != "Call" or type(func).__name__ != "Attribute":
            continue
        value = func.value
        name = getattr(value, "attr", None) or value
        name = getattr(name, "value", None)
        if isinstance(name, str):
            found.setdefault(name, set()).add(func.attr.value)
    # context = model.no_sync if accumulating else nullcontext: no call, still a use
    for node in module.sites:
        if type(node).__name__ == "Attribute" and node.attr.value in ("no_sync", "require_backward_grad_sync"):
            value = node.value
            name = getattr(value, "attr", None) or value
            name = getattr(name, "value", None)
            if isinstance(name, str):
                found.setdefault(name, set()).add("no_sync")
    return {name: frozenset(methods) for name, methods in found.items()}


def _reaches(module: ir.Module) -> dict[ir.Function, set[str]]:
    """For every function which of backward and step it may reach, following calls by last name."""
    by_name: dict[str, list[ir.Function]] = {}
    for function in module.functions:
        by_name.setdefault(function.name, []).append(function)
        if function.name == "__call__" and function.owner is not None:
            by_name.setdefault(function.owner.name, []).append(function)  # who makes one calls it, under some name
    reach: dict[ir.Function, set[str]] = {}
    for function in module.functions:
        own = set()
        if function.calls & BACKWARD_WORDS:
            own.add("backward")
        if function.calls & STEP_WORDS:
            own.add("step")
        reach[function] = own
    changed = True
    while changed:
        changed = False
        for function in module.functions:
            for name in function.calls:
                for callee in by_name.get(name, ()):
                    if callee is not function and not reach[callee] <= reach[function]:
                        reach[function] |= reach[callee]
                        changed = True
    return reach


def roots(module: ir.Module, covered: set[ir.Function]) -> list[ir.Function]:
    """Functions with a backward that nothing covered so far, outermost first."""
    reach = _reaches(module)
    wanted = [f for f in module.functions if "backward" in reach[f] and f not in covered and f.name != "backward"]
    called: set[str] = set()
    for function in wanted:
        called |= {name for name in function.calls if name != function.name}

    def rank(function: ir.Function) -> tuple:
        both = {"backward", "step"} <= reach[function]
        test = function.name.startswith("test_") or function.name.startswith("_test")
        name = function.owner.name if function.name == "__call__" and function.owner is not None else function.name
        return (test, not both, name in called, function.site)

    return sorted(wanted, key=rank)


def rebound_windows(module: ir.Module, vocabulary: Vocabulary) -> frozenset[str]:
    """Spellings of K that a script assigns in several places (``accum = 1``, then something computed)."""
    seen: dict[str, int] = {}
    for node in module.sites:
        if type(node).__name__ == "Assign":
            for target in node.targets:
                name = getattr(target.target, "value", None)
                if isinstance(name, str) and vocabulary.is_window(name):
                    seen[name] = seen.get(name, 0) + 1
    return frozenset(name for name, count in seen.items() if count > 1)


class Explorer:
    """Explores one module; the findings are judged elsewhere."""

    def __init__(
        self, module: ir.Module, vocabulary: Vocabulary, *, max_paths: int = MAX_PATHS, spoken: frozenset[str] = frozenset(),
        breaks: Callable[[Trace], bool] = lambda trace: True,
    ) -> None:  # fmt: skip
        self.module = module
        self.vocabulary = vocabulary
        self.max_paths = max_paths
        self.breaks = breaks  # whether a trace breaks the contract: a root where none does gets fewer paths
        self.receivers = receivers_of(module)
        self.rebound = rebound_windows(module, vocabulary)
        self.outputs = counted_outputs(module)
        self.perplexed = perplexed(module)
        self.spoken = spoken  # traits that the text of the script has
        self.steps_left = MAX_STEPS
        self.covered: set[ir.Function] = set()
        self.around: set[str] = set()  # traits that hold for hooks of a framework
        self.around_names: dict[str, int] = {}

    def explore(self) -> list[Explored]:
        """All roots of the module, each with its traces."""
        out = []
        first = self._root(Root(None))
        if first is not None:
            out.append(first)
        driven = self._driven()
        if driven:
            self._look_around()
        for cls, role in driven:
            found = self._root(Root(None, 1, cls, role))
            if found is not None:
                out.append(found)
        for _ in range(MAX_ROOTS):
            waiting = roots(self.module, self.covered)
            if not waiting or self.exhausted:
                break
            root = waiting[0]
            self.covered.add(root)
            found = self._root(Root(root))
            if found is not None:
                out.append(found)
        return out

    @property
    def exhausted(self) -> bool:
        """Whether the file has used up its steps: what was not simulated by then is not."""
        return self.steps_left <= 0

    def _driven(self) -> list[tuple[ir.Class, str]]:
        """Classes whose hooks are called by a framework that we know how to play."""
        probe = self._interpreter(Learned())
        out = []
        for cls in self.module.classes.values():
            if not cls.methods.keys() & {"training_step", "compute_loss"}:
                continue
            probe.prepare_module(self.module)
            role = probe.registry.role_of_class(probe, cls)
            if f"drive {role}" in probe.registry.table.roles:
                out.append((cls, role))
        return out

    def _look_around(self) -> None:
        """What the script says to a framework outside of the hooks: ``Trainer(accumulate_grad_batches=…)``."""
        learned = Learned()
        callers = [None, *(f for f in self.module.functions if "Trainer" in f.calls and f.owner is None)]
        for function in (*callers, *callers):  # a window that one call names is known to the next
            run = self._interpreter(learned, budget=20_000)
            run.traits.discard("ignored labels")
            try:
                self._run(run, Root(function))
            except Relearn:
                continue
            self.around |= run.traits & {"whole windows", "lightning accumulates", "padding", "ignored labels"}
            for name, site in run.window_names.items():
                self.around_names.setdefault(name, site)

    def _interpreter(self, learned: Learned, **options: Any) -> Interpreter:
        run = Interpreter(
            self.module, self.vocabulary, learned, receivers=self.receivers, rebound=self.rebound, outputs=self.outputs,
            perplexed=self.perplexed, **options,
        )  # fmt: skip
        run.budget = min(run.budget, max(self.steps_left, 0))
        run.traits |= self.spoken
        return run

    def _run(self, run: Interpreter, root: Root) -> str:
        """Run to the end; returns how it ended: '', budget, abort."""
        budget = run.budget
        try:
            if root.cls is not None:
                run.traits |= self.around
                if "lightning accumulates" in self.around:
                    run.window_names.update(self.around_names)
                run.prepare_module(self.module)
                run.registry.table.roles[f"drive {root.role}"](run, run.blank_instance(root.cls), run.length)
            elif root.function is None:
                run.run_module()
            else:
                run.run_root(root.function, root.times, root.callback)
        except OutOfBudget:
            return "budget"
        except Abort:
            return "abort"
        finally:
            self.steps_left -= budget - max(run.budget, 0)
        return ""

    def _root(self, root: Root) -> Explored | None:
        learned = Learned()
        backwards = steps = False
        for _ in range(4):
            before = learned.size()
            run = self._interpreter(learned, scouting=True, budget=40_000)
            try:
                self._run(run, root)
            except Relearn:
                continue
            backwards = backwards or any(e.kind is Kind.BACKWARD for e in run.events)
            steps = steps or any(e.kind is Kind.STEP for e in run.events)
            if learned.size() == before:
                break
        self.covered |= learned.covered
        if not backwards:
            return None
        # who calls a loop calls it once per epoch, unless it makes its optimizer itself or finds it in a checkpoint
        again = not learned.builds_optimizer and "restores optimizer" not in run.traits
        if root.function is not None and not learned.outer_loop and learned.own_loop and again:
            root = Root(root.function, 2)
        elif root.function is not None and not learned.own_loop and steps and root.cls is None:
            root = Root(root.function, callback=True)
        out = Explored(root, learned=learned)
        self._paths(root, learned, out)
        return out

    def _paths(self, root: Root, learned: Learned, out: Explored) -> None:
        seen: dict[tuple, int] = {}
        # what decides over updates is tried before what decides over objects, one flip before two
        queue: list[tuple[int, int, dict[str, Any], bool, bool]] = [(0, 0, {}, True, True), (0, 1, {}, False, True)]
        pushed = 2
        done = 0
        limit = min(FIRST_PATHS, self.max_paths)
        idle: set[str] = set()  # conditions that changed nothing where they alone were turned round
        while queue and not self.exhausted and done < (self.max_paths if queue[0][0] <= UPDATES_DEPEND else limit):
            taken = heapq.heappop(queue)
            _, _, decisions, polarity, deepen = taken
            run, ending = self._complete(root, learned, LENGTH, polarity, decisions)
            if self.exhausted:  # this one was cut off: what it lacks would look like a fault
                heapq.heappush(queue, taken)
                break
            if run is None:
                continue
            around = _ways_around(run, decisions) if ending == "abort" else []
            for way in around:
                heapq.heappush(queue, (-1, pushed, way, polarity, deepen))
                pushed += 1
            done += not around
            for name, site in run.window_names.items():
                out.window_names.setdefault(name, site)
            trace = make_trace(run, ending, polarity)
            if "whole windows" in run.traits:
                run, ending = self._complete(root, learned, EVEN_LENGTH, polarity, decisions)
                if run is None or self.exhausted:
                    continue
                trace = make_trace(run, ending, polarity)
            print_ = fingerprint(trace)
            for reason, site in run.gaps.items():
                out.gaps.setdefault(reason, site)
            control = None if "whole windows" in run.traits else (polarity, dict(decisions))
            same = seen.get(print_)
            if same is None:
                seen[print_] = len(out.traces)
                out.traces.append(trace)
                out.controls.append(control)
            else:
                if len(decisions) == 1:
                    idle.update(decisions)
                if not set(trace.assumptions) < set(out.traces[same].assumptions):
                    continue
                # the same without having to assume as much: more can be said of it
                out.traces[same], out.controls[same] = trace, control
            if limit < self.max_paths and self.breaks(trace):
                limit = self.max_paths
            if same is not None or not deepen or not _accumulates(trace):
                continue
            settled = set(decisions)
            for key, value, disturbable in run.decided:
                blinding = key in run.blinding
                if key in settled or key not in run.telling and not blinding or key in idle:
                    continue
                # what happens at one microbatch only (it is skipped, its loss is no number) says as much as a gate
                telling = GATE if disturbable else run.telling.get(key, 0)
                rank = len(decisions) - telling - BLINDING * blinding
                if disturbable:
                    flips: list[Any] = [2, 1]
                else:
                    flips = [not value] if isinstance(value, bool) else []
                for flip in flips:
                    heapq.heappush(queue, (rank + 3, pushed, {**decisions, key: flip}, polarity, not disturbable and not decisions))
                    pushed += 1
        if queue:
            out.cut = f"{len(queue)} further combinations of conditions were not simulated"

    def control(self, explored: Explored, index: int, length: int = EVEN_LENGTH) -> Trace | None:
        """The same path with a loader whose length is a multiple of K: what is gone there is conditional."""
        wanted = explored.controls[index]
        if self.exhausted:
            return None
        if wanted is None or explored.learned is None:
            return explored.traces[index]
        polarity, decisions = wanted
        run, ending = self._complete(explored.root, explored.learned, length, polarity, decisions)
        return make_trace(run, ending, polarity) if run is not None else None

    def _complete(self, root: Root, learned: Learned, length: int, polarity: bool, decisions: dict[str, Any]) -> tuple[Interpreter | None, str]:
        """One run; restarts while something is still being learned."""
        for _ in range(5):
            run = self._interpreter(learned, polarity=polarity, decisions=dict(decisions), length=length)
            try:
                return run, self._run(run, root)
            except Relearn:
                continue
        return None, "relearn"


def _ways_around(run: Interpreter, decisions: dict[str, Any]) -> list[dict[str, Any]]:
    """Decisions that avoid the check of arguments that stopped a run before anything was trained, the innermost first."""
    if len(decisions) >= MAX_CHECKS or any(event.kind is Kind.BACKWARD for event in run.events):
        return []
    keys = [key for key in run.blocked[:2] if key not in decisions and isinstance(run.assigned.get(key), bool)]
    return [{**decisions, key: not run.assigned[key]} for key in keys]


def _accumulates(trace: Trace) -> bool:
    """Some step of the trace is preceded by more than one microbatch, or K is spoken of."""
    if trace.window_text:
        return True
    since = 0
    last = None
    for event in trace.events:
        if event.kind is Kind.BACKWARD and event.microbatch != last:
            since += 1
            last = event.microbatch
        elif event.kind is Kind.STEP:
            if since > 1:
                return True
            since = 0
    return False


def make_trace(run: Interpreter, ending: str, polarity: bool) -> Trace:
    """The record of a run as the contract wants it."""
    counts = {}
    for (batch, basis), value in run.counts.items():
        counts[batch, basis] = value.ranks
    steps = any(event.kind is Kind.STEP for event in run.events)
    if not steps and run.learned.window_gates and len({e.microbatch for e in run.events if e.kind is Kind.BACKWARD}) >= 6 and ending != "abort" and not run.assumptions and not run.things.get("gradient hooks"):
        run.traits.add(f"stuck gate@{min(run.learned.window_gates)}")
    names = in_order(run.window_names, run.module)
    flags = tuple((key, value) for key, value, _ in run.decided)
    return Trace(
        events=run.events, subjects=run.subjects, window=3, window_text=names[0] if names else "", length=run.length, counts=counts,  # type: ignore[arg-type]
        ranks=2, distributed=run.distributed, flags=flags, assumptions=tuple(sorted(run.assumptions)), gaps=tuple(sorted(run.gaps)),
        traits=frozenset(run.traits), boundaries=frozenset(run.learned.window_gates), aborted=ending == "abort", disturbed=run.disturbed,
    )  # fmt: skip


def in_order(window_names: dict[str, int], module: ir.Module) -> list[str]:
    """Spellings of K: those of the checked file by their place, then those of followed files as they were read."""
    return sorted(window_names, key=lambda name: (0, window_names[name]) if module.owns(window_names[name]) else (1, 0))


def fingerprint(trace: Trace) -> tuple:
    """Two paths with the same fingerprint are the same to the contract."""
    return tuple(_mark(event) for event in trace.events if event.kind not in (Kind.LIMIT, Kind.RESTART))


def _mark(event: Event) -> tuple:
    details = event.details
    extra: Any = None
    if event.kind is Kind.BACKWARD:
        extra = (details["forward_sync"], details["backward_sync"], details["scaled"], tuple((p.batch, str(p.weight)) for p in details["parts"]))
    elif event.kind is Kind.RESCALE:
        extra = str(details["factor"])
    elif event.kind is Kind.FORWARD:
        extra = details["sync"]
    return (event.kind.value, event.site, event.microbatch, event.epoch, extra)
