"""The tape of a microbatch: which modules and torch functions led from its inputs to its loss.

A torch function mode (torch/overrides.py) sees the calls that the script itself makes; calls inside a module are the
module's own and are played again by calling the module. Only what depends on a module's output is kept; every other
tensor is a constant of the tape. Playing a tape in float64, with dropout off and normalisation frozen, gives the
script's own loss again: its divisions, masks and counts included.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

MAX_OPERATIONS = 2000  # of one microbatch outside of modules; a longer tape is a loss that belongs into a module
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "OptimizedModule")


class Untaped(Exception):
    """A microbatch cannot be played again; the message says why."""


@dataclass
class Reference:
    """A tensor that an earlier operation of the tape made."""

    operation: int
    path: tuple


@dataclass
class Constant:
    """A tensor from outside of the tape, with the version that it had."""

    tensor: torch.Tensor
    version: int


@dataclass
class Operation:
    """A call: of a module (``module``), or of a torch function (``function``)."""

    function: Callable | None
    module: nn.Module | None
    arguments: tuple
    keywords: dict
    grad: bool = True


@dataclass
class Microbatch:
    """One backward: its tape, the reference to its loss, and the loss scale that was on it."""

    operations: list[Operation] = field(default_factory=list)
    root: Reference | None = None
    scale: float = 1.0
    reason: str = ""


class Tape:
    """Records microbatches as they happen. Holds inputs, never activations."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.depth = 0
        self.made: Any = WeakIdKeyDictionary()  # tensor -> (tape number, operation, path)
        self.number = 0
        self.current = Microbatch()
        self.window: list[Microbatch] = []
        self.mode: _Mode | None = None
        self._call: Any = None
        self.active = True

    def install(self) -> None:
        self._call = nn.Module.__call__
        original = self._call
        tape = self

        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if tape.depth or not tape.active or tape.recorder.busy or not torch.is_grad_enabled() or _is_loss(module):
                return original(module, *args, **kwargs)
            if _is_wrapper(module):
                out = original(module, *args, **kwargs)
                with tape.recorder.working("tape"):
                    tape.through_wrapper(out)
                return out
            taped = None
            with tape.recorder.working("tape"):
                taped = tape.before_module(module, args, kwargs)
            tape.depth += 1
            try:
                out = original(module, *args, **kwargs)
            finally:
                tape.depth -= 1
            if taped is not None:
                with tape.recorder.working("tape"):
                    tape.after(taped, out)
            return out

        nn.Module.__call__ = call  # type: ignore[method-assign]
        self.mode = _Mode(self)
        self.mode.__enter__()

    def remove(self) -> None:
        if self.mode is not None:
            self.mode.__exit__(None, None, None)
            self.mode = None
        if self._call is not None:
            nn.Module.__call__ = self._call  # type: ignore[method-assign]
            self._call = None

    # ---- recording

    def before_module(self, module: nn.Module, args: tuple, kwargs: dict) -> Operation | None:
        # a frozen module is only called to make constants, unless what it is given is being trained
        if not any(p.requires_grad for p in module.parameters()) and not any(t in self.made for t in _tensors((args, kwargs))):
            return None
        return Operation(None, module, self._abstract(args, copy=True), self._abstract(kwargs, copy=True))

    def before_function(self, function: Callable, args: tuple, kwargs: dict) -> Operation | None:
        for tensor in _tensors((args, kwargs)):
            held = self.made.get(tensor)
            if held is not None and held[0] == self.number:
                return Operation(function, None, self._abstract(args), self._abstract(kwargs))
        return None

    def after(self, operation: Operation, out: Any) -> None:
        if len(self.current.operations) >= MAX_OPERATIONS:
            self.current.reason = self.current.reason or "too many operations outside of modules"
            return
        self.current.operations.append(operation)
        index = len(self.current.operations) - 1
        for path, tensor in _leaves(out):
            if tensor.requires_grad or tensor in self.made:
                self.made[tensor] = (self.number, index, path)

    def through_wrapper(self, out: Any) -> None:
        """DDP may hand on new tensors for the outputs of the module that it wraps (``_DDPSink``)."""
        index = len(self.current.operations) - 1
        if index < 0 or self.current.operations[index].module is None:
            return
        for path, tensor in _leaves(out):
            if tensor.requires_grad and tensor not in self.made:
                self.made[tensor] = (self.number, index, path)

    def _abstract(self, value: Any, copy: bool = False) -> Any:
        """The arguments of a call with tensors as references or constants. Inputs of modules are small: they are copied."""
        if torch.is_tensor(value):
            held = self.made.get(value)
            if held is not None and held[0] == self.number:
                return Reference(held[1], held[2])
            if isinstance(value, nn.Parameter):
                return value
            if copy and not value.requires_grad:
                return Constant(value.detach().clone(), -1)
            return Constant(value, value._version if not value.is_inference() else -1)
        if isinstance(value, (list, tuple)):
            items = [self._abstract(v, copy) for v in value]
            if hasattr(value, "_fields"):
                return type(value)(*items)
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, dict):
            return {k: self._abstract(v, copy) for k, v in value.items()}
        return value

    def close_microbatch(self, roots: list[torch.Tensor], graph: Any, scale: float) -> None:
        """A backward begins: what was taped so far is its microbatch."""
        microbatch, self.current = self.current, Microbatch()
        microbatch.scale = scale
        if len(roots) != 1:
            microbatch.reason = microbatch.reason or "several losses in one backward call"
        else:
            held = self.made.get(roots[0])
            if held is None or held[0] != self.number:
                microbatch.reason = microbatch.reason or "the loss was made in a way that is not taped"
            else:
                microbatch.root = Reference(held[1], held[2])
        self.number += 1
        self.made = WeakIdKeyDictionary()
        if self.recorder.replayed < self.recorder.options.replay:
            self.window.append(microbatch)
        else:
            self.active = False

    def cleared(self) -> None:
        self.window.clear()

    def stepped(self) -> None:
        self.window.clear()

    def replay(self, books: Any, optimizer: int) -> dict[str, Any] | None:
        """Recompute the open window in float64. None where there is nothing to say."""
        from accumlint.probe.child.replay import replay

        if not self.window:
            return None
        several = self.recorder.place()[1] > 1
        return replay(self.window, [books.parameters[key] for key in books.of(optimizer) if key in books.sums], books.sharded, books.picks() if several else ())


class _Mode(TorchFunctionMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()
        self.tape = tape

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        tape = self.tape
        if tape.depth or not tape.active or tape.recorder.busy or not torch.is_grad_enabled():
            return function(*args, **kwargs)
        name = getattr(function, "__name__", "")
        if name in _SILENT:
            return function(*args, **kwargs)
        operation = None
        with tape.recorder.working("tape"):
            operation = tape.before_function(function, args, kwargs)
        out = function(*args, **kwargs)
        if operation is not None:
            with tape.recorder.working("tape"):
                tape.after(operation, out)
        return out


# reads of a tensor that make no tensor, and calls that end a tape
_SILENT = frozenset(
    "backward grad item tolist __repr__ __format__ __bool__ __len__ size dim numel detach __get__ is_floating_point __hash__ data_ptr "
    "requires_grad_ retain_grad register_hook __deepcopy__ __float__ __int__ cpu numpy is_complex".split()
)


def _is_wrapper(module: nn.Module) -> bool:
    return type(module).__name__ in _WRAPPERS


def _is_loss(module: nn.Module) -> bool:
    """A module without state: what it calls is taped instead, its loss function among it."""
    return next(module.parameters(), None) is None and next(module.buffers(), None) is None


def _tensors(value: Any) -> Any:
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _leaves(value: Any, path: tuple = ()) -> Any:
    """(path, tensor) of a call's outputs: lists, tuples, dicts and their kind (model outputs)."""
    if torch.is_tensor(value):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))


def pick(value: Any, path: tuple) -> Any:
    """The part of a call's output that a path leads to."""
    for key in path:
        value = value[key]
    return value
