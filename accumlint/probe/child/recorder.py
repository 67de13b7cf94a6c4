"""The recorder: watches one process train and writes its ledger. See ``records.py`` for what a record holds."""

from __future__ import annotations

import atexit
import faulthandler
import functools
import gc
import json
import os
import platform
import signal
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accumlint.probe import records
from accumlint.probe.child import losses
from accumlint.probe.child.books import Balance, Books
from accumlint.probe.child.frames import Frames
from accumlint.probe.child.patching import Patches

MAX_PROBLEMS = 50
CHEAP = 1.0  # seconds of recomputing that are never too many
PATIENCE = 20.0  # seconds that a rank waits for its peers before it leaves


@dataclass(frozen=True)
class Options:
    """What the child was asked to do. ``updates``: leave after so many; 0 runs the script to its end."""

    folder: str = ""
    updates: int = 0
    gradients: bool = True  # judge integrity, not only weights and clocks
    replay: int = 2  # windows to recompute in float64; 0 none
    save: bool = True  # let checkpoint functions write
    names: tuple[str, ...] = ()  # names under which the script knows its window
    leave: bool = True  # leave the process when the updates are done (False inside a test)


class Memory:
    """A ledger kept in memory: what a test's fixture uses."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def write(self, record: dict[str, Any]) -> None:
        self.records.append(json.loads(json.dumps(record, default=str)))


class File:
    """A ledger in a file, opened with its first record; every line is flushed, so a kill loses nothing."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._stream: Any = None
        self._process = 0
        self._stack: Any = None

    def write(self, record: dict[str, Any]) -> None:
        if self._process != os.getpid():  # first record, or a forked worker
            self._process = os.getpid()
            name = f"{records.PREFIX}{self._process}{records.SUFFIX}"
            self._stream = open(os.path.join(self.folder, name), "a", buffering=1, encoding="utf-8")
            if hasattr(signal, "SIGUSR1"):
                self._stack = open(os.path.join(self.folder, f"stack-{self._process}.txt"), "w")
                faulthandler.register(signal.SIGUSR1, file=self._stack, all_threads=False)
        self._stream.write(json.dumps(record, default=str) + "\n")


class Recorder:
    """Hooks torch and writes what happens. One per process; :meth:`install`, then :meth:`remove`."""

    def __init__(self, options: Options, sink: Any) -> None:
        self.options = options
        self.sink = sink
        self.frames = Frames()
        self.patches = Patches()
        self.books = Books(keep=options.gradients)
        self.number = 0
        self.problems = 0
        self.busy = False  # inside the recorder's own work: its torch calls are not the user's
        self.backward_depth = 0
        self.scaler_depth = 0
        self.scaler_enabled = False
        self.schedule_depth = 0
        self.clear_depth = 0
        self.optimizers: list[Optimizer] = []
        self.aliases: list[tuple[Any, int]] = []
        self.schedulers: list[Any] = []
        self.loaders: list[Any] = []
        self.iterators = 0
        self.updates = 0
        self.backwards = 0
        self.lying = False  # a backward brought gradients, and no call has cleared all of them since
        self.fresh = False  # a backward happened since the last step
        self.ended = False
        self.window_told = False
        self.parallel: Any = None
        self.wrapped: list[weakref.ref] = []  # DistributedDataParallel models whose forward was never called in training
        self.forward_flags: list[bool] = []
        self.scales: dict[int, float] = {}
        self.scale = 1.0
        self.unscaled: set[int] = set()
        self.before_clip: dict[int, tuple[int, Balance | None, list[float]]] = {}
        self.stepped: set[int] = set()
        self.tape: Any = None
        self.replayed = 0
        self.replay_seconds = 0.0
        self.started = time.perf_counter()
        self._told: tuple[int, int] | None = None

    # ---- writing

    def emit(self, kind: str, frames: list | None = None, **data: Any) -> None:
        self.number += 1
        rank, world = self.place()
        record: dict[str, Any] = {"k": kind, "s": self.number, **data}
        if frames is not None:
            record["f"] = frames
        if self._told != (rank, world):
            self._told = (rank, world)
            record["rank"], record["world"] = rank, world
        self.sink.write(record)

    def place(self) -> tuple[int, int]:
        """(rank, world size); read late, since spawned workers learn theirs after torch was imported."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        try:
            return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        except ValueError:
            return 0, 1

    def problem(self, where: str, error: BaseException) -> None:
        """Say that something inside the recorder failed; the user's run goes on."""
        self.problems += 1
        if self.problems <= MAX_PROBLEMS:
            try:
                self.emit("problem", text=f"{where}: {type(error).__name__}: {str(error)[:200]}")
            except Exception:  # noqa: BLE001 - nothing is left to tell it to
                pass

    @contextmanager
    def working(self, where: str) -> Any:
        """The recorder's own work: its torch calls are not recorded, and its errors stay here."""
        before = self.busy
        self.busy = True
        try:
            yield
        except Exception as error:  # noqa: BLE001 - never into the user's code
            self.problem(where, error)
        finally:
            self.busy = before

    # ---- installing

    def install(self) -> None:
        self._losses()
        self._backward()
        self._optimizers()
        self._scalers()
        self._clips()
        self._schedulers()
        self._data()
        self._parallel()
        self._saving()
        if self.options.replay and self.options.gradients:
            with self.working("replay"):
                from accumlint.probe.child.tape import Tape

                self.tape = Tape(self)
                self.tape.install()
        device = "cpu"
        if torch.cuda.is_available():
            device = torch.cuda.get_device_name(torch.cuda.current_device())
        self.emit(
            "run", format=records.FORMAT, python=platform.python_version(), torch=torch.__version__, device=device,
            hooks=dict(self.patches.manifest), gradients=self.options.gradients, replay=self.options.replay, software=_software(),
            argv0=os.path.realpath(sys.argv[0]) if sys.argv and sys.argv[0] else "",
        )  # fmt: skip

    def remove(self) -> None:
        if self.tape is not None:
            self.tape.remove()
        self.books.release()
        self.patches.undo()

    def adopt(self) -> None:
        """Watch the optimizers that were made before the recorder was there."""
        gc.collect()  # optimizers that nobody holds any more are not this loop's
        for thing in gc.get_objects():
            # not isinstance: it would wake up lazy attributes of whatever lives in the process
            if issubclass(type(thing), Optimizer) and "param_groups" in vars(thing):
                self.optimizer(thing)

    def optimizer(self, optimizer: Any) -> int:
        """The number of an optimizer; wrappers (Accelerate) stand for what they wrap."""
        for number, known in enumerate(self.optimizers):
            if known is optimizer:
                return number
        for known, number in self.aliases:
            if known is optimizer:
                return number
        own = {id(p) for group in getattr(optimizer, "param_groups", ()) for p in group.get("params", ())}
        for number in range(len(self.optimizers)):
            if own and own == set(self.books.of(number)):
                self.aliases.append((optimizer, number))  # kept, so that its identity is not given to another
                return number
        self.optimizers.append(optimizer)
        number = len(self.optimizers) - 1
        self._watch(optimizer, number)
        return number

    def _watch(self, optimizer: Any, number: int) -> None:
        for group in getattr(optimizer, "param_groups", ()):
            self.books.watch(group.get("params", ()), number)

    # ---- losses

    def _losses(self) -> None:
        for name in losses.FUNCTIONS:
            self.patches.replace(
                nn.functional, name, lambda original, name=name: losses.noting(name, original, lambda: self.frames.here(), self.problem), f"functional.{name}"
            )

    # ---- backward

    def _backward(self) -> None:
        def make(original: Callable) -> Callable:
            @functools.wraps(original)
            def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
                if self.backward_depth or self.busy:
                    return original(tensors, *args, **kwargs)
                return self._run_backward(original, tensors, args, kwargs)

            return backward

        self.patches.replace(torch.autograd, "backward", make)

        def make_grad(original: Callable) -> Callable:
            @functools.wraps(original)
            def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
                if not self.busy and not self.backward_depth:
                    with self.working("grad"):
                        wanted = [inputs] if torch.is_tensor(inputs) else list(inputs)
                        if any(id(t) in self.books.parameters for t in wanted):
                            self.emit("grad", self.frames.here())
                return original(outputs, inputs, *args, **kwargs)

            return grad

        self.patches.replace(torch.autograd, "grad", make_grad)

    def _run_backward(self, original: Callable, tensors: Any, args: tuple, kwargs: dict) -> Any:
        self.leave_when_done()
        state: dict[str, Any] = {}
        with self.working("backward"):
            self._open_backward(tensors, state)
        self.backward_depth += 1
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self.backward_depth -= 1
            with self.working("backward"):
                if "graph" in state:
                    self._close_backward(state)

    def _open_backward(self, tensors: Any, state: dict[str, Any]) -> None:
        roots = [tensors] if torch.is_tensor(tensors) else list(tensors)
        graph = losses.read(roots)
        if not graph.terms and not graph.leaves:
            return
        state["frames"] = self.frames.here()
        state["direct"] = self.frames.direct
        unknown = [leaf for leaf in graph.leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in self.books.parameters]
        self.books.watch(unknown, -1)  # their owner becomes known when an optimizer steps on them
        state["hooks"] = []
        for term in graph.terms:
            state["hooks"].append(term.node.register_prehook(_catch(term)))
            if term.source == "graph" and term.total is not None:
                value = term.total()  # what the node saved is gone after the backward
                term.total = lambda value=value: value
        state["leaves"] = {id(leaf) for leaf in graph.leaves}
        state["clean"] = self._clean(state)
        state["reductions"] = self._reductions()
        state["backward_flag"] = _flag(self.parallel)
        self.scale = graph.scale if graph.scale is not None else 1.0
        state["scaled"] = graph.scale is not None
        state["root"] = [float(t.detach()) if torch.is_tensor(t) and t.numel() == 1 else None for t in roots][:1]
        if self.tape is not None:
            self.tape.close_microbatch(roots, graph, self.scale)
        self.books.begin()
        state["graph"] = graph

    def _clean(self, state: dict[str, Any]) -> bool | None:
        """No gradient lies there yet. Where contributions were expected, they were cleared without a call."""
        if self.books.sharded:
            return None
        if self.options.gradients:
            clean = self.books.untouched()
        else:
            clean = all(self.books.parameters[key].grad is None for key in self.books.trained)
        if clean and self.lying:
            pending = self.books.has_sums() if self.options.gradients else self.fresh
            self.emit("clear", state["frames"], optimizers=None, by="state", pending=pending)
            self.books.forget(list(self.books.sums))
            if pending:
                self._tape_cleared()
        self.lying = True
        return clean

    def _tape_cleared(self) -> None:
        if self.tape is not None:
            self.tape.cleared()

    def _close_backward(self, state: dict[str, Any]) -> None:
        graph = state["graph"]
        for handle in state["hooks"]:
            handle.remove()
        self.books.end(self.scale)
        reductions = self._reductions()
        before = state["reductions"]
        if self.options.gradients and not self.books.sharded:
            reached = self.books.reached()
        else:
            reached = sorted({owner for key in state["leaves"] for owner in self.books.owners.get(key, ())})
            self.books.trained |= state["leaves"] & set(self.books.parameters)
        rows = [self._row(term) for term in graph.terms]
        self.backwards += 1
        self.fresh = True
        self.unscaled.clear()
        parallel = ""
        forward_sync = self.forward_flags[-1] if self.forward_flags else None
        if self.parallel is not None:
            parallel = self.parallel[1]
        elif self._past_the_wrapper(state["leaves"]):
            parallel, forward_sync = "ddp", False
        self.emit(
            "backward", state["frames"], terms=rows, scale=self.scale, scaled=state["scaled"],
            reached=None if not reached or -1 in reached else reached, clean=state["clean"], parallel=parallel,
            forward_sync=forward_sync, backward_sync=state["backward_flag"],
            reductions=None if before is None or reductions is None else reductions - before,
            direct=state["direct"], python=sorted(graph.python_nodes), root=state["root"][0] if state["root"] else None,
            components=self.books.components("arrived", self.scale) if self.options.gradients and not self.books.sharded else None,
        )  # fmt: skip
        self.forward_flags = []
        for term in graph.terms:
            term.arrived = None

    def _past_the_wrapper(self, leaves: set[int]) -> bool:
        """Gradients go to parameters whose wrapper would reduce them, had the forward not gone past it."""
        models = [held() for held in self.wrapped]
        return any(id(p) in leaves for model in models if model is not None for p in model.module.parameters())

    def _row(self, term: losses.Term) -> dict[str, Any]:
        weighed = losses.weigh(term, self.scale)
        total = None
        if weighed.count and term.total is not None:
            try:
                total = term.total()
            except RuntimeError:  # what it needs was freed with the graph
                total = None
        frames = term.frames
        return {
            "kind": term.kind, "reduction": term.reduction, "n": weighed.count, "mass": weighed.mass, "w": weighed.weight,
            "spread": weighed.spread, "eps": weighed.precision, "total": total, "reason": weighed.reason, "ignore": term.ignore_index,
            "labels": term.labels, "smoothing": term.smoothing, "unit": term.unit, "source": term.source, "f": frames,
        }  # fmt: skip

    def _reductions(self) -> int | None:
        """How many collectives this rank has issued so far; None without a process group."""
        distributed = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        try:
            group = getattr(self.parallel[0](), "process_group", None) if self.parallel is not None else None
            group = group if group is not None else distributed.group.WORLD
            return int(group._get_sequence_number_for_group())
        except Exception:  # noqa: BLE001 - a private number that not every backend keeps
            return None

    # ---- optimizers

    def _optimizers(self) -> None:
        def adding(original: Callable) -> Callable:
            @functools.wraps(original)
            def add_param_group(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(optimizer, *args, **kwargs)
                with self.working("add_param_group"):
                    number = self.optimizer(optimizer)
                    self._watch(optimizer, number)
                return result

            return add_param_group

        self.patches.replace(Optimizer, "add_param_group", adding)

        def clearing(by: str) -> Callable:
            def make(original: Callable) -> Callable:
                @functools.wraps(original)
                def zero_grad(owner: Any, *args: Any, **kwargs: Any) -> Any:
                    if self.busy or self.clear_depth:
                        return original(owner, *args, **kwargs)
                    with self.working("zero_grad"):
                        self._cleared(owner, by)
                    self.clear_depth += 1
                    try:
                        return original(owner, *args, **kwargs)
                    finally:
                        self.clear_depth -= 1

                return zero_grad

            return make

        self.patches.replace(Optimizer, "zero_grad", clearing("optimizer"))
        self.patches.replace(nn.Module, "zero_grad", clearing("model"))
        # subclasses that bring their own zero_grad call the inherited one or are seen by state
        self.patches.on_undo(register_optimizer_step_pre_hook(self._before_step).remove)
        self.patches.manifest["optimizer.step"] = True

    def _cleared(self, owner: Any, by: str) -> None:
        if by == "optimizer":
            numbers = [self.optimizer(owner)]
            keys = self.books.of(numbers[0])
        else:
            parameters = list(owner.parameters())
            numbers = [n for n in self.books.owners_of(parameters) if n >= 0]
            keys = [id(p) for p in parameters if id(p) in self.books.parameters]
            if not keys:
                return  # a model that nobody trains
        pending = self.books.has_sums(keys) if self.options.gradients else self.fresh
        self.emit("clear", self.frames.here(), optimizers=numbers or None, by=by, pending=pending)
        self.books.forget(keys)
        if {key for key in self.books.trained if any(o >= 0 for o in self.books.owners.get(key, ()))} <= set(keys):
            self.lying = False
        if pending:
            self._tape_cleared()

    def _before_step(self, optimizer: Any, args: tuple, kwargs: dict) -> tuple | None:
        if self.busy:
            return None
        closure = kwargs.get("closure") if kwargs.get("closure") is not None else (args[1] if len(args) > 1 else None)
        if not callable(closure):
            with self.working("step"):
                self._check_step(optimizer, 0)
            return None
        calls = [0]

        def recorded(*inner: Any, **more: Any) -> Any:
            # forward, backward and clear run inside the closure: what is stepped on is there only after it
            loss = closure(*inner, **more)
            calls[0] += 1
            with self.working("step"):
                self._check_step(optimizer, calls[0])
            return loss

        if "closure" in kwargs:
            return args, {**kwargs, "closure": recorded}
        return (args[0], recorded, *args[2:]), kwargs

    def _check_step(self, optimizer: Any, closure_calls: int) -> None:
        number = self.optimizer(optimizer)
        self._watch(optimizer, number)
        applied = True
        found_inf = getattr(optimizer, "found_inf", None)
        if torch.is_tensor(found_inf) and self.scaler_depth:
            applied = not bool(found_inf.sum() > 0)
        divisor = 1.0
        fused_scale = getattr(optimizer, "grad_scale", None)
        scaled_at_step = False
        if torch.is_tensor(fused_scale) and self.scaler_depth:
            divisor = float(fused_scale)
        elif self.scale != 1.0 and number not in self.unscaled:
            divisor = self.scale
            scaled_at_step = True
        self._write_step(number, optimizer, applied, divisor, scaled_at_step, closure_calls)

    def _write_step(self, number: int, optimizer: Any, applied: bool, divisor: float, scaled: bool, closure_calls: int) -> None:
        frames = self.frames.here()
        if not self.window_told and self.options.names:
            self.window_told = True
            value = self.frames.value_of(self.options.names)
            if value is not None:
                self.emit("window", value=value)
        balance = self.books.balance(number, divisor)
        clipped = self.before_clip.pop(number, None)
        after_clip = balance
        gradient: list[float] | None = None
        own_sum: list[float] | None = None
        if balance is not None:
            gradient, own_sum = self.books.components("grad", divisor), self.books.components("sums")
            if clipped is not None and clipped[0] == self.backwards:
                balance, gradient = clipped[1], clipped[2]
        self.emit(
            "step", frames, optimizer=number, name=type(optimizer).__name__, applied=applied, closures=closure_calls,
            scaler=bool(self.scaler_depth) and self.scaler_enabled, scaled=scaled, integrity=_plain(balance), at_step=_plain(after_clip), clipped=clipped is not None,
            gradient=gradient, own_sum=own_sum, rates=[g.get("lr") if not torch.is_tensor(g.get("lr")) else float(g["lr"]) for g in optimizer.param_groups][:8],
        )  # fmt: skip
        step_record = self.number
        self.stepped.add(number)
        if self.tape is not None and applied and self.replayed < self.options.replay and self.fresh and self._replay_is_affordable():
            with self.working("replay"):
                started = time.perf_counter()
                outcome = self.tape.replay(self.books, number)
                self.replay_seconds += time.perf_counter() - started
                if outcome is not None:
                    self.replayed += 1
                    self.emit("replay", step=step_record, optimizer=number, seconds=round(time.perf_counter() - started, 4), **outcome)
        if self.tape is not None:
            self.tape.stepped()
        self.books.forget(self.books.of(number))
        if self.fresh:
            self.updates += 1
            self.fresh = False

    def _replay_is_affordable(self) -> bool:
        """The first window always; a further one when recomputing has taken no more time than the run itself."""
        own = time.perf_counter() - self.started - self.replay_seconds
        return self.replayed == 0 or self.replay_seconds < CHEAP or self.replay_seconds <= own

    # ---- loss scaling

    def _scalers(self) -> None:
        scaler_class = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler

        def scaling(original: Callable) -> Callable:
            @functools.wraps(original)
            def scale(scaler: Any, outputs: Any) -> Any:
                scaled = original(scaler, outputs)
                with self.working("scale"):
                    if scaler.is_enabled() and torch.is_tensor(scaled) and scaled.grad_fn is not None:
                        scaled.grad_fn.metadata[losses.SCALED] = float(scaler._scale)
                return scaled

            return scale

        def unscaling(original: Callable) -> Callable:
            @functools.wraps(original)
            def unscale_(scaler: Any, optimizer: Any) -> Any:
                result = original(scaler, optimizer)
                with self.working("unscale_"):
                    number = self.optimizer(optimizer)
                    if scaler.is_enabled():
                        self.unscaled.add(number)
                    if not self.scaler_depth:
                        self.emit("unscale", self.frames.here(), optimizer=number, enabled=scaler.is_enabled())
                return result

            return unscale_

        def stepping(original: Callable) -> Callable:
            @functools.wraps(original)
            def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
                self.stepped.clear()
                self.scaler_depth += 1
                self.scaler_enabled = scaler.is_enabled()
                try:
                    return original(scaler, optimizer, *args, **kwargs)
                finally:
                    with self.working("scaler.step"):
                        number = self.optimizer(optimizer)
                        if scaler.is_enabled() and number not in self.stepped and sys.exc_info()[0] is None:
                            self._write_step(number, optimizer, False, 1.0, False, 0)
                    self.scaler_depth -= 1

            return step

        def updating(original: Callable) -> Callable:
            @functools.wraps(original)
            def update(scaler: Any, *args: Any, **kwargs: Any) -> Any:
                before = scaler.get_scale() if scaler.is_enabled() else 1.0
                result = original(scaler, *args, **kwargs)
                with self.working("update"):
                    after = scaler.get_scale() if scaler.is_enabled() else 1.0
                    self.emit("update", self.frames.here(), before=before, after=after, enabled=scaler.is_enabled())
                return result

            return update

        self.patches.replace(scaler_class, "scale", scaling)
        self.patches.replace(scaler_class, "unscale_", unscaling)
        self.patches.replace(scaler_class, "step", stepping)
        self.patches.replace(scaler_class, "update", updating)

    # ---- clipping

    def _clips(self) -> None:
        from torch.nn.utils import clip_grad

        def make(kind: str) -> Callable:
            def wrap(original: Callable) -> Callable:
                @functools.wraps(original)
                def clip(parameters: Any, *args: Any, **kwargs: Any) -> Any:
                    if self.busy:
                        return original(parameters, *args, **kwargs)
                    # a generator can be read once
                    parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
                    state: dict[str, Any] = {}
                    with self.working("clip"):
                        self._open_clip(parameters, state)
                    result = original(parameters, *args, **kwargs)
                    with self.working("clip"):
                        limit = args[0] if args else kwargs.get("max_norm", kwargs.get("clip_value"))
                        norm = float(result) if torch.is_tensor(result) and type(result).__name__ != "DTensor" else None
                        self.emit(
                            "clip", self.frames.here(), how=kind, optimizers=state.get("owners"), limit=float(limit) if limit is not None else None,
                            norm=norm, scaled=state.get("scaled", False),
                        )  # fmt: skip
                    return result

                return clip

            return wrap

        for name in ("clip_grad_norm_", "clip_grad_value_"):
            self.patches.replace(clip_grad, name, make(name), f"clip.{name}")
            if hasattr(torch.nn.utils, name):
                wrapped = getattr(clip_grad, name)
                self.patches.replace(torch.nn.utils, name, lambda _, wrapped=wrapped: wrapped, f"utils.{name}")

    def _open_clip(self, parameters: list, state: dict[str, Any]) -> None:
        owners = [n for n in self.books.owners_of(parameters) if n >= 0]
        state["owners"] = owners or None
        state["scaled"] = self.scale != 1.0 and not all(n in self.unscaled for n in owners)
        for number in owners:
            divisor = self.scale if self.scale != 1.0 and number not in self.unscaled else 1.0
            balance = self.books.balance(number, divisor)
            self.before_clip[number] = (self.backwards, balance, self.books.components("grad", divisor) if balance is not None else [])

    # ---- schedules

    def _schedulers(self) -> None:
        module = torch.optim.lr_scheduler
        base = getattr(module, "LRScheduler", None) or module._LRScheduler

        def make(original: Callable) -> Callable:
            @functools.wraps(original)
            def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
                outermost = self.schedule_depth == 0 and not getattr(scheduler, "_is_initial", False)
                self.schedule_depth += 1
                try:
                    return original(scheduler, *args, **kwargs)
                finally:
                    self.schedule_depth -= 1
                    if outermost and not self.busy and getattr(scheduler, "_accumlint_ready", False):
                        with self.working("scheduler"):
                            self._scheduled(scheduler, args, kwargs)

            return step

        def wrap(cls: type) -> None:
            if "step" in vars(cls):
                self.patches.replace(cls, "step", make, f"{cls.__name__}.step")

        def starting(original: Callable) -> Callable:
            @functools.wraps(original)
            def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
                # the constructor takes a first step of its own, which is none of the user's
                self.schedule_depth += 1
                try:
                    original(scheduler, *args, **kwargs)
                finally:
                    self.schedule_depth -= 1
                object.__setattr__(scheduler, "_accumlint_ready", True)

            return __init__

        pending = [base]
        seen: set[type] = set()
        while pending:
            cls = pending.pop()
            if cls in seen:
                continue
            seen.add(cls)
            wrap(cls)
            if "__init__" in vars(cls):
                self.patches.replace(cls, "__init__", starting, f"{cls.__name__}.__init__")
            pending.extend(cls.__subclasses__())
        known = seen

        def subclassing(original: Any) -> Any:
            def __init_subclass__(cls: type, **kwargs: Any) -> None:
                super(base, cls).__init_subclass__(**kwargs)
                if cls not in known:
                    known.add(cls)
                    wrap(cls)

            return classmethod(__init_subclass__)

        self.patches.replace(base, "__init_subclass__", subclassing, "LRScheduler subclasses")

    def _scheduled(self, scheduler: Any, args: tuple, kwargs: dict) -> None:
        number = next((i for i, known in enumerate(self.schedulers) if known is scheduler), None)
        if number is None:
            self.schedulers.append(scheduler)
            number = len(self.schedulers) - 1
        optimizer = getattr(scheduler, "optimizer", None)
        plateau = type(scheduler).__name__ == "ReduceLROnPlateau"
        absolute = not plateau and (bool(args) and args[0] is not None or kwargs.get("epoch") is not None)
        self.emit(
            "schedule", self.frames.here(), scheduler=number, name=type(scheduler).__name__, plateau=plateau, absolute=bool(absolute),
            optimizer=self.optimizer(optimizer) if isinstance(optimizer, Optimizer) else None,
        )  # fmt: skip

    # ---- data

    def _data(self) -> None:
        from torch.utils.data import dataloader

        def make(original: Callable) -> Callable:
            @functools.wraps(original)
            def __next__(iterator: Any) -> Any:
                self.leave_when_done()
                try:
                    batch = original(iterator)
                except StopIteration:
                    with self.working("data"):
                        self.emit("data", self.frames.here(), loader=self._loader(iterator), iterator=self._iterator(iterator), end=True)
                    raise
                with self.working("data"):
                    self.emit("data", self.frames.here(), loader=self._loader(iterator), iterator=self._iterator(iterator), end=False, counts=_counts(batch))
                return batch

            return __next__

        self.patches.replace(dataloader._BaseDataLoaderIter, "__next__", make, "DataLoader")

    def _iterator(self, iterator: Any) -> int:
        number = getattr(iterator, "_accumlint_number", None)
        if number is None:
            self.iterators += 1
            number = iterator._accumlint_number = self.iterators
        return int(number)

    def _loader(self, iterator: Any) -> int:
        dataset = getattr(iterator, "_dataset", None)
        for number, known in enumerate(self.loaders):
            if known is dataset:
                return number
        self.loaders.append(dataset)
        return len(self.loaders) - 1

    # ---- data parallel

    def _parallel(self) -> None:
        def make(original: Callable) -> Callable:
            @functools.wraps(original)
            def forward(model: Any, *args: Any, **kwargs: Any) -> Any:
                with self.working("forward"):
                    if torch.is_grad_enabled() and model.training:
                        self.wrapped = [held for held in self.wrapped if held() not in (None, model)]
                        self.parallel = (lambda: model, "ddp")
                        self.forward_flags.append(bool(model.require_backward_grad_sync))
                return original(model, *args, **kwargs)

            return forward

        try:
            from torch.nn.parallel import DistributedDataParallel

            self.patches.replace(DistributedDataParallel, "forward", make, "DistributedDataParallel.forward")

            def building(original: Callable) -> Callable:
                @functools.wraps(original)
                def init(model: Any, *args: Any, **kwargs: Any) -> None:
                    original(model, *args, **kwargs)
                    with self.working("wrapping"):
                        self.wrapped.append(weakref.ref(model))

                return init

            self.patches.replace(DistributedDataParallel, "__init__", building, "DistributedDataParallel.__init__")
        except ImportError:
            self.patches.manifest["DistributedDataParallel.forward"] = False

        def reducing(original: Callable) -> Callable:
            @functools.wraps(original)
            def all_reduce(tensor: Any, op: Any = None, *args: Any, **kwargs: Any) -> Any:
                with self.working("all_reduce"):
                    if self._is_gradient(tensor):
                        self.emit("reduce", self.frames.here(), op=str(op) if op is not None else "SUM")
                return original(tensor, *args, **kwargs) if op is None else original(tensor, op, *args, **kwargs)

            return all_reduce

        distributed = getattr(torch, "distributed", None)
        if distributed is not None and distributed.is_available():
            self._sharded()
            self.patches.replace(distributed, "all_reduce", reducing, "distributed.all_reduce")

    def _sharded(self) -> None:
        """FSDP2 decides in the backward whether to reduce; its mark is sticky, so it is read when a backward begins.

        torch/distributed/fsdp/_fully_shard/_fully_shard.py: ``set_requires_gradient_sync`` sets ``reduce_grads``.
        """

        def making(original: Callable) -> Callable:
            @functools.wraps(original)
            def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
                made = original(module, *args, **kwargs)
                with self.working("fully_shard"):
                    self.parallel = (lambda: made, "fsdp2")
                return made

            return fully_shard

        try:
            from torch.distributed import fsdp
        except ImportError:
            self.patches.manifest["fully_shard"] = False
            return
        self.patches.replace(fsdp, "fully_shard", making, "fsdp.fully_shard")

    def _is_gradient(self, tensor: Any) -> bool:
        """The tensor is (or is as large as) the gradients that lie there: the script reduces them by hand."""
        if not torch.is_tensor(tensor) or self.backward_depth:
            return False
        gradients = [p.grad for p in self.books.parameters.values() if p.grad is not None]
        if any(g is tensor or g.data_ptr() == tensor.data_ptr() for g in gradients if not hasattr(g, "_local_tensor")):
            return True
        total = sum(g.numel() for g in gradients)
        return total > 1 and tensor.numel() == total

    # ---- checkpoints

    def _saving(self) -> None:
        def make(original: Callable) -> Callable:
            @functools.wraps(original)
            def save(obj: Any, *args: Any, **kwargs: Any) -> Any:
                with self.working("save"):
                    self.emit("save", self.frames.here(), written=self.options.save, **_holds(obj))
                if self.options.save:
                    return original(obj, *args, **kwargs)
                return None

            return save

        self.patches.replace(torch, "save", make)

    # ---- the end

    def leave_when_done(self) -> None:
        """Leave the process once the asked number of updates was recorded, without raising into the user's code."""
        if not self.options.updates or self.updates < self.options.updates or self.busy or not self.options.leave:
            return
        self.end("updates")
        self._wait_for_peers()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def _wait_for_peers(self) -> None:
        """Leave together: a rank that goes first would make the others fail in their next collective."""
        rank, world = self.place()
        if world < 2 or not self.options.folder:
            return
        open(os.path.join(self.options.folder, f"done-{rank}"), "w").close()
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE:
            if all(os.path.exists(os.path.join(self.options.folder, f"done-{r}")) for r in range(world)):
                return
            time.sleep(0.02)

    def end(self, reason: str, **more: Any) -> None:
        if self.ended:
            return
        self.ended = True
        self.emit("end", reason=reason, backwards=self.backwards, updates=self.updates, **more)

    def at_exit(self) -> None:
        """Record how the script ends by itself: normally, or by an error of its own with its line."""
        hook = sys.excepthook

        def excepthook(kind: type, value: BaseException, trace: Any) -> None:
            try:
                line = None
                while trace is not None:
                    path = self.frames.files.name(trace.tb_frame.f_code.co_filename)
                    line = [path, trace.tb_lineno] if path else line
                    trace = trace.tb_next
                self.end("error", error=kind.__name__, text=str(value)[:300], line=line)
            finally:
                hook(kind, value, value.__traceback__)

        sys.excepthook = excepthook
        atexit.register(lambda: self.end("finished"))


def _catch(term: losses.Term) -> Callable:
    def hook(gradients: tuple) -> None:
        gradient = gradients[term.output] if term.output < len(gradients) else None
        if gradient is not None:
            held = gradient.detach()
            held = held.clone() if held.numel() <= 1 else held
            # a node may be reached several times when its backward is re-entered
            term.arrived = held if term.arrived is None else term.arrived + held

    return hook


def _flag(parallel: Any) -> bool | None:
    if parallel is None:
        return None
    model = parallel[0]()
    if parallel[1] == "fsdp2":
        groups = [part._get_fsdp_state()._fsdp_param_group for part in model.modules() if hasattr(part, "_get_fsdp_state")]
        marks = [bool(group.reduce_grads) for group in groups if group is not None and hasattr(group, "reduce_grads")]
        return all(marks) if marks else None
    flag = getattr(model, "require_backward_grad_sync", None)
    return bool(flag) if flag is not None else None


def _plain(balance: Balance | None) -> dict[str, Any] | None:
    return None if balance is None else dict(vars(balance))


def _counts(batch: Any, depth: int = 0) -> list[list[int]]:
    """[elements, elements that are no ignored label, ones] of the integer tensors of a batch."""
    out: list[list[int]] = []
    if torch.is_tensor(batch):
        if not batch.is_floating_point() and not batch.is_complex() and 0 < batch.numel() <= 1 << 20 and batch.dim() <= 2 and batch.device.type == "cpu":
            out.append([batch.numel(), int((batch != -100).sum()), int((batch == 1).sum()), int(batch.shape[0]) if batch.dim() else 1])
        return out
    if depth < 3:
        values = batch.values() if hasattr(batch, "values") else batch if isinstance(batch, (list, tuple)) else ()
        for value in values:
            out += _counts(value, depth + 1)
    return out[:8]


def _holds(obj: Any) -> dict[str, Any]:
    """Which kinds of state a saved object holds, by its shape; no value of it."""
    if not isinstance(obj, dict):
        return {"keys": [], "optimizer": False, "opaque": True}
    states = [v for v in obj.values() if isinstance(v, dict)]
    optimizer = any("param_groups" in v and "state" in v for v in [*states, obj])
    return {"keys": sorted(str(k) for k in obj)[:40], "optimizer": optimizer, "opaque": False}


def _software() -> dict[str, str]:
    """Versions of the libraries that matter and are installed; nothing is imported for it."""
    from importlib import metadata

    out = {}
    for name in ("accelerate", "transformers", "lightning", "deepspeed", "datasets", "numpy", "peft", "trl", "tokenizers"):
        try:
            out[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return out
