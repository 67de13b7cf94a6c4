"""Recomputing a window in float64: as the script accumulated it, and as one full batch.

Both are computed from the tapes of the window's microbatches with copies of the modules in float64, dropout off and
batch statistics frozen. *Accumulated*: the gradient of every microbatch's own loss, scale taken out, added up.
*Full batch*: the modules are called once on the rows of all microbatches, every loss term's numerator is added up and
divided once by the number of valid targets. Neither touches the user's parameters, buffers or random state.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge
from torch.overrides import TorchFunctionMode

from accumlint.probe.child import losses
from accumlint.probe.child.tape import Constant, Microbatch, Operation, Reference, Untaped, pick

MAX_BYTES = 2 << 30  # of float64 copies; larger models are not recomputed


def replay(
    window: Sequence[Microbatch], parameters: Sequence[nn.Parameter], sharded: bool, picks: Sequence[tuple[int, torch.Tensor]] = ()
) -> dict[str, Any]:
    """``{total, worst, full, telling, reason}``: relative L2 of accumulated against full batch, over all and per tensor.

    A reason means that the window could not be recomputed. ``picks`` (parameter number and elements of it) are given as
    ``accumulated`` and ``numerators`` with the rank's ``targets``, so that ranks can be added up afterwards.
    """
    if sharded:
        return {"reason": "parameters are sharded over ranks"}
    for microbatch in window:
        if microbatch.reason:
            return {"reason": microbatch.reason}
    size = sum(p.numel() for p in parameters) * 8
    if size * 4 > MAX_BYTES:
        return {"reason": "the model is too large to be copied in float64"}
    try:
        with _undisturbed():
            return _replay(window, parameters, picks)
    except Untaped as untaped:
        return {"reason": str(untaped)}
    except (RuntimeError, TypeError, ValueError, NotImplementedError, AttributeError, KeyError, IndexError) as error:
        return {"reason": f"could not be played again: {type(error).__name__}: {str(error)[:160]}"}


@contextmanager
def _undisturbed() -> Any:
    """Random states of Python, numpy, CPU and devices are put back, autocast is off, gradients are on."""
    state, python, default = torch.get_rng_state(), random.getstate(), torch.get_default_dtype()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    numbers = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules and hasattr(sys.modules["numpy"], "random") else None
    try:
        with torch.enable_grad(), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), _InDouble():
            torch.set_default_dtype(torch.float64)
            yield
    finally:
        torch.set_default_dtype(default)
        torch.set_rng_state(state)
        random.setstate(python)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        if numbers is not None:
            sys.modules["numpy"].random.set_state(numbers)


_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_DROPOUTS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "dropout_"})


class _InDouble(TorchFunctionMode):
    """Keeps what models convert by themselves (``logits.float()``) in float64, and dropout functions out."""

    def __torch_function__(self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name in ("float", "half", "bfloat16") and args:
            return args[0].double()
        if name in _DROPOUTS and args:
            return args[0]
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        if kwargs.get("dtype") in _NARROW:
            kwargs["dtype"] = torch.float64
        if any(isinstance(a, torch.dtype) for a in args):
            args = tuple(torch.float64 if isinstance(a, torch.dtype) and a in _NARROW else a for a in args)
        if name in ("to", "type_as") and len(args) > 1 and torch.is_tensor(args[1]) and args[1].dtype in _NARROW:
            return args[0].to(args[1].device).double()
        return function(*args, **kwargs)


class _Copies:
    """Float64 copies of the modules, with a map from the user's parameters to the copies."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules: dict[int, nn.Module] = {}
        self.parameters: dict[int, nn.Parameter] = {}
        memo: dict[int, Any] = {}
        for module in modules:
            if id(module) in self.modules:
                continue
            if any(type(p).__name__ == "DTensor" for p in module.parameters()):
                raise Untaped("parameters are sharded over ranks")
            bare = _without_hooks(module, memo)
            self.modules[id(module)] = bare
            # one deepcopy memo for all: parameters that modules share stay shared
            for original, copied in zip(module.parameters(), bare.parameters()):
                self.parameters[id(original)] = copied

    def of(self, module: nn.Module) -> nn.Module:
        return self.modules[id(module)]


def _without_hooks(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    gradients = [(p, p.grad) for p in module.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None  # not copied
    try:
        made = copy.deepcopy(module, memo)
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
    made = made.double()
    for part in made.modules():
        if "forward" in vars(part):
            if "_original_forward" not in vars(part):
                raise Untaped(f"the forward of {type(part).__name__} was replaced on the instance")
            # Accelerate's wrapper closes over the user's own module; the class's forward is what it wraps
            del vars(part)["forward"]
        part._forward_hooks.clear()
        part._forward_pre_hooks.clear()
        part._backward_hooks.clear()
        if isinstance(part, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)):
            part.eval()
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0  # attention reads the number and not the mode
        for name, value in list(vars(part).items()):
            # dropout that is a number handed to a function (attention)
            if "dropout" in name and isinstance(value, float) or "dropout" in name and name.endswith("_prob") and isinstance(value, (int, float)):
                setattr(part, name, 0.0)
    if any(isinstance(m, nn.RNNBase) and m.dropout for m in made.modules()):
        for part in made.modules():
            if isinstance(part, nn.RNNBase):
                part.dropout = 0.0
    for parameter in made.parameters():
        parameter._backward_hooks = None  # type: ignore[assignment]
    return made


def _replay(
    window: Sequence[Microbatch], parameters: Sequence[nn.Parameter], picks: Sequence[tuple[int, torch.Tensor]]
) -> dict[str, Any]:
    modules = [m.operations[i].module for m in window for i in sorted(_needed(m)) if m.operations[i].module is not None]
    if not modules:
        raise Untaped("no module was called in the window")
    copies = _Copies(modules)  # type: ignore[arg-type]
    trained = [p for p in parameters if id(p) in copies.parameters and p.requires_grad]
    leaves = [copies.parameters[id(p)] for p in trained]
    if len(leaves) < sum(p.requires_grad for p in parameters):
        raise Untaped("some parameters belong to no module that was called")
    accumulated = [torch.zeros_like(leaf) for leaf in leaves]
    masses: list[list[float]] = []
    for microbatch in window:
        values = _play(microbatch, copies)
        root = _root(microbatch, values)
        graph = losses.read([root])
        masses.append([_check(term) for term in graph.terms])
        _add(accumulated, torch.autograd.grad(root.sum(), leaves, allow_unused=True), 1.0 / microbatch.scale)
        del values, root, graph
    if len({len(m) for m in masses}) != 1 or not masses[0]:
        raise Untaped("the loss terms differ between microbatches")
    if len(masses[0]) != 1:
        raise Untaped("several loss terms: their factors are the script's own choice")
    full, whole, counts = _full_batch(window, copies, leaves)
    total = _distance(accumulated, full)
    worst = 0.0
    norm = _norm(full)
    if not norm:
        raise Untaped("the gradient of the full batch is zero")
    for a, f in zip(accumulated, full):
        size = float(torch.linalg.vector_norm(f))
        if size > 1e-6 * norm:
            worst = max(worst, float(torch.linalg.vector_norm(a - f)) / size)
    square = sum(float((f * f).sum()) for f in full)
    factor = sum(float((a * f).sum()) for a, f in zip(accumulated, full)) / square
    residual = _norm([a - factor * f for a, f in zip(accumulated, full)]) / norm
    out = {"total": total, "worst": worst, "factor": factor, "residual": residual, "full": whole, "telling": len({c for c in counts if c}) > 1, "tensors": len(full)}
    if picks:
        targets = sum(counts)
        numbers = {id(p): i for i, p in enumerate(trained)}
        chosen = [(numbers[key], index) for key, index in picks if key in numbers]
        out["accumulated"] = [v for n, index in chosen for v in accumulated[n].reshape(-1)[index].tolist()]
        out["numerators"] = [v * targets for n, index in chosen for v in full[n].reshape(-1)[index].tolist()]
        out["targets"] = targets
    return out


def _check(term: losses.Term) -> float:
    if term.kind == "opaque" or term.reduction not in ("mean", "batchmean", "sum", "none"):
        raise Untaped(term.reason or "a loss that cannot be read")
    return float(term.mass) if term.mass is not None else -1.0


def _add(sums: list[torch.Tensor], gradients: Sequence[torch.Tensor | None], factor: float) -> None:
    for held, gradient in zip(sums, gradients):
        if gradient is not None:
            held.add_(gradient.detach(), alpha=factor)


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return float(sum(float(torch.linalg.vector_norm(t)) ** 2 for t in tensors)) ** 0.5


def _distance(ours: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> float:
    size = _norm(reference)
    apart = _norm([a - b for a, b in zip(ours, reference)])
    return apart / size if size else (0.0 if not apart else float("inf"))


# ---- playing a tape -----------------------------------------------------------------------------------------------


def _concrete(value: Any, outputs: list[Any], copies: _Copies) -> Any:
    if isinstance(value, Reference):
        return pick(outputs[value.operation], value.path)
    if isinstance(value, Constant):
        if value.version >= 0 and value.tensor._version != value.version:
            raise Untaped("a tensor of the loss was changed in place afterwards")
        tensor = value.tensor.detach()
        return tensor.double() if tensor.is_floating_point() else tensor
    if isinstance(value, nn.Parameter):
        if id(value) not in copies.parameters:
            raise Untaped("the loss uses a parameter of no module that was called")
        return copies.parameters[id(value)]
    if isinstance(value, tuple):
        items = [_concrete(v, outputs, copies) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [_concrete(v, outputs, copies) for v in value]
    if isinstance(value, dict):
        return {k: _concrete(v, outputs, copies) for k, v in value.items()}
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return torch.float64  # conversions to another precision are what the replay leaves out
    return value


def _call(operation: Operation, outputs: list[Any], copies: _Copies) -> Any:
    arguments = _concrete(operation.arguments, outputs, copies)
    keywords = _concrete(operation.keywords, outputs, copies)
    if operation.module is not None:
        return copies.of(operation.module)(*arguments, **keywords)
    name = getattr(operation.function, "__name__", "")
    if name in ("float", "half", "bfloat16") and arguments:
        return arguments[0].double()
    return operation.function(*arguments, **keywords)  # type: ignore[misc]


def _play(microbatch: Microbatch, copies: _Copies) -> list[Any]:
    outputs: list[Any] = []
    needed = _needed(microbatch)
    for index, operation in enumerate(microbatch.operations):
        outputs.append(_call(operation, outputs, copies) if index in needed else None)
    return outputs


def _needed(microbatch: Microbatch) -> set[int]:
    """The operations that the loss depends on: metrics and the like are not played again."""
    needed: set[int] = set()
    assert microbatch.root is not None
    stack = [microbatch.root.operation]
    while stack:
        index = stack.pop()
        if index in needed:
            continue
        needed.add(index)
        operation = microbatch.operations[index]
        stack += list(_references((operation.arguments, operation.keywords)))
    return needed


def _references(value: Any) -> Any:
    if isinstance(value, Reference):
        yield value.operation
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _references(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _references(item)


def _root(microbatch: Microbatch, values: list[Any]) -> torch.Tensor:
    assert microbatch.root is not None
    root = pick(values[microbatch.root.operation], microbatch.root.path)
    if not torch.is_tensor(root) or not root.requires_grad:
        raise Untaped("the loss does not depend on the modules when played again")
    return root


# ---- the full batch -----------------------------------------------------------------------------------------------


def _full_batch(window: Sequence[Microbatch], copies: _Copies, leaves: list[nn.Parameter]) -> tuple[list[torch.Tensor], bool, list[float]]:
    """(gradient of the summed numerators over the window's targets, the modules were called once on all rows, targets)."""
    together = _lockstep(window, copies)
    whole = together is not None
    if together is None:
        together = [_play(microbatch, copies) for microbatch in window]
    edges, weights, counts = [], [], []
    for microbatch, values in zip(window, together):
        term = losses.read([_root(microbatch, values)]).terms[0]
        edge, weight, count = _numerator(term, _root(microbatch, values), leaves)
        counts.append(count)
        if count:
            edges.append(edge)
            weights.append(weight)
    targets = sum(counts)
    if not targets:
        raise Untaped("the window has no valid target")
    gradients = torch.autograd.grad(edges, leaves, grad_outputs=weights, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g.detach() / targets for leaf, g in zip(leaves, gradients)], whole, counts


def _numerator(term: losses.Term, root: torch.Tensor, leaves: list[nn.Parameter]) -> tuple[GradientEdge, torch.Tensor, float]:
    """The edge at which a term leaves its node, the gradient of its summed loss there, and its number of targets."""
    edge = GradientEdge(term.node, term.output)
    if term.reduction in ("mean", "batchmean"):
        mass = float(term.mass or 0.0)
        return edge, root.new_tensor(mass), mass
    if term.reduction == "sum" and term.mass is not None:
        return edge, root.new_tensor(1.0), float(term.mass)
    # masked or hand-written: the targets are where the script's own loss lets a gradient through
    (arrived,) = torch.autograd.grad(root.sum(), [edge], retain_graph=True)
    mask = (arrived != 0).to(arrived.dtype) * torch.sign(arrived)
    if term.valid is not None and term.valid.numel() == mask.numel():
        mask = mask * term.valid.reshape(mask.shape)
    return edge, mask, float((mask != 0).sum())


def _lockstep(window: Sequence[Microbatch], copies: _Copies) -> list[list[Any]] | None:
    """All tapes side by side, each module called once on the rows of every microbatch; None where rows don't fit."""
    first = window[0].operations
    if len(window) < 2 or any(len(m.operations) != len(first) for m in window):
        return None
    if any((a.module is not b.module) for m in window for a, b in zip(first, m.operations)):
        return None
    played: list[list[Any]] = [[] for _ in window]
    needed = _needed(window[0])
    if any(_needed(m) != needed for m in window):
        return None
    for index, operation in enumerate(first):
        if index not in needed:
            for outputs in played:
                outputs.append(None)
            continue
        if operation.module is None:
            for microbatch, outputs in zip(window, played):
                outputs.append(_call(microbatch.operations[index], outputs, copies))
            continue
        inputs = [
            (_concrete(m.operations[index].arguments, o, copies), _concrete(m.operations[index].keywords, o, copies)) for m, o in zip(window, played)
        ]
        joined = _join(inputs)
        if joined is None:
            return None
        (arguments, keywords), rows = joined
        out = copies.of(operation.module)(*arguments, **keywords)
        parts = _split(out, rows)
        if parts is None:
            return None
        for outputs, part in zip(played, parts):
            outputs.append(part)
    return played


def _join(inputs: list[Any]) -> tuple[Any, list[int]] | None:
    """One input out of several, tensors joined along their rows; None when they have different shapes otherwise."""
    rows: list[int] | None = None

    def join(values: list[Any]) -> Any:
        nonlocal rows
        first = values[0]
        if torch.is_tensor(first):
            if first.dim() == 0 or any(v.shape[1:] != first.shape[1:] for v in values):
                if first.dim() == 0 and all(torch.equal(v, first) for v in values):
                    return first
                raise Untaped("rows do not fit")
            own = [int(v.shape[0]) for v in values]
            if rows is None:
                rows = own
            elif rows != own:
                if all(torch.equal(v, first) for v in values if v.shape == first.shape) and len(set(own)) == 1:
                    return first  # the same table for every microbatch (positions)
                raise Untaped("rows do not fit")
            return torch.cat(values)
        if isinstance(first, (list, tuple)):
            items = [join(list(column)) for column in zip(*values)]
            return type(first)(*items) if hasattr(first, "_fields") else type(first)(items)
        if isinstance(first, dict):
            return {key: join([v[key] for v in values]) for key in first}
        if any(v is not first and v != first for v in values):
            raise Untaped("arguments differ")
        return first

    try:
        joined = join(inputs)
    except (Untaped, KeyError):
        return None
    return (joined, rows) if rows is not None else None


def _split(out: Any, rows: list[int]) -> list[Any] | None:
    total = sum(rows)
    if torch.is_tensor(out):
        if out.dim() == 0 or out.shape[0] != total:
            return None  # a loss inside the model: its rows are gone
        return list(out.split(rows))
    if isinstance(out, dict):
        columns = {}
        for key, value in out.items():
            part = _split(value, rows) if torch.is_tensor(value) or isinstance(value, (dict, list, tuple)) else [value] * len(rows)
            if part is None:
                return None
            columns[key] = part
        return [{key: columns[key][i] for key in columns} for i in range(len(rows))]
    if isinstance(out, (list, tuple)):
        parts = [_split(value, rows) for value in out]
        if any(p is None for p in parts):
            return None
        return [tuple(p[i] for p in parts) for i in range(len(rows))]  # type: ignore[index]
    return [out] * len(rows)
