"""Reading the loss terms of a backward off the autograd graph.

A *term* is one additive part of the loss: a node at which the gradient that arrives during the user's own backward
says what each of its targets weighs. Loss functions of ``torch.nn.functional`` leave a note on their output's node
(``Node.metadata``, torch/autograd/graph.py); losses that were reached in another way (C++, TorchScript) are
recognised by their node, which saves what it needs for its own backward (tools/autograd/derivatives.yaml); losses
written by hand are followed through sums, means, products with masks and views down to where they stop being
linear. What is none of these is *opaque* and named.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

NOTE = "accumlint.loss"
SCALED = "accumlint.scale"

# at::Reduction::Reduction (aten/src/ATen/core/Reduction.h)
_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}

# nodes whose output is linear in the gradient-carrying input, element by element or as a sum: a loss passes through
_LINEAR = frozenset(
    "Mul Div Neg Add Sub Rsub View Reshape ReshapeAlias UnsafeView Squeeze Unsqueeze Where MaskedFill MaskedSelect Sum Mean "
    "ToCopy Clone Expand Transpose Permute T Select Slice Stack Cat Alias Nansum Split Unbind AsStrided IndexSelect "
    "_DDPSink Flatten Detach Index Narrow MaskedScale SumToSize Copy CopySlices".split()
)
_REDUCING = frozenset({"Sum", "Mean", "Nansum"})
# elementwise picks that end a hand-written loss: one element per target
_PICKS = frozenset({"Gather", "Index", "TakeAlongDim"})
_VIEWS = frozenset("View Reshape ReshapeAlias UnsafeView Squeeze Unsqueeze Transpose Permute T ToCopy Slice Clone Expand Alias Neg".split())
MAX_NODES = 400_000
MAX_TERMS = 4096


@dataclass
class Term:
    """One additive part of a loss.

    ``kind``: cross_entropy, nll_loss, mse_loss, … or pattern (hand-written) or opaque. ``count``: valid targets (None:
    the non-zero elements of what arrives). ``mass``: what the mean divides by (differs from the count under class
    weights). ``total``: summed loss of the valid targets as a tensor that needs no graph. ``arrived``: the gradient
    at the node, filled in by the backward.
    """

    node: Any
    output: int
    kind: str
    reduction: str
    count: int | None
    mass: float | None
    source: str
    total: Callable[[], float | None] | None = None
    ignore_index: int | None = None
    smoothing: float = 0.0
    valid: torch.Tensor | None = None
    frames: list[Any] = field(default_factory=list)
    unit: str = "element"
    labels: int | None = None
    arrived: torch.Tensor | None = None
    reason: str = ""


@dataclass
class Graph:
    """What a walk over the graph of a backward found."""

    terms: list[Term]
    leaves: list[torch.Tensor]
    python_nodes: set[str]
    scale: float | None
    size: int
    names: dict[str, int]


def base_name(node: Any) -> str:
    """``NllLossBackward0`` -> ``NllLoss``."""
    return node.name().rpartition("::")[2].split("Backward")[0]


# ---- notes left by the loss functions -------------------------------------------------------------------------


def _bound(signature: inspect.Signature, args: tuple, kwargs: dict) -> dict[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _reduction(values: dict[str, Any]) -> str:
    if values.get("size_average") is not None or values.get("reduce") is not None:
        # torch/nn/_reduction.py: the deprecated pair of flags
        reduce = True if values.get("reduce") is None else values["reduce"]
        average = True if values.get("size_average") is None else values["size_average"]
        return ("mean" if average else "sum") if reduce else "none"
    return str(values.get("reduction", "mean"))


def _note(name: str, values: dict[str, Any], out: torch.Tensor) -> dict[str, Any]:
    """The facts of one call of a loss function, from its bound arguments."""
    reduction = _reduction(values)
    target = values.get("target", values.get("targets"))
    ignore, count, mass, valid, unit = None, None, None, None, "element"
    smoothing = float(values.get("label_smoothing") or 0.0)
    with torch.no_grad():
        if name in ("cross_entropy", "nll_loss", "linear_cross_entropy") and torch.is_tensor(target):
            unit = "token"
            if target.is_floating_point():
                classes = values["input"].shape[1] if values["input"].dim() > 1 else values["input"].shape[0]
                count = target.numel() // max(int(classes), 1)
                mass = float(count)
            else:
                ignore = int(values.get("ignore_index", -100))
                valid = target != ignore
                count = int(valid.sum())
                weight = values.get("weight")
                mass = float(weight.detach().double()[target[valid].long()].sum()) if weight is not None else float(count)
        elif name == "ctc_loss":
            unit, count = "sequence", int(values["input_lengths"].numel() if torch.is_tensor(values["input_lengths"]) else len(values["input_lengths"]))
            mass = float(count)
        elif name == "kl_div" and reduction == "batchmean":
            unit, count = "sample", int(values["input"].shape[0])
            mass = float(count)
        elif name in ("cosine_embedding_loss", "margin_ranking_loss", "triplet_margin_loss", "gaussian_nll_loss", "multi_margin_loss"):
            first = next(v for v in values.values() if torch.is_tensor(v))
            unit, count = "sample", int(first.shape[0]) if first.dim() else 1
            mass = float(count)
        else:
            first = values.get("input")
            # broadcasting: the loss has as many elements as the larger of the two
            shape = torch.broadcast_shapes(first.shape, target.shape) if torch.is_tensor(target) else first.shape
            count = 1
            for size in shape:
                count *= int(size)
            mass = float(count)
    if reduction == "none" and valid is None:
        count = mass = None  # what arrives says which elements are targets
    return {
        "kind": name, "reduction": reduction, "count": count, "mass": mass, "ignore": ignore, "valid": valid,
        "smoothing": smoothing, "unit": unit, "value": out.detach(), "labels": int(target.numel()) if torch.is_tensor(target) else None,
    }  # fmt: skip


FUNCTIONS = (
    "cross_entropy", "nll_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss", "l1_loss",
    "smooth_l1_loss", "huber_loss", "kl_div", "ctc_loss", "poisson_nll_loss", "gaussian_nll_loss", "soft_margin_loss",
    "cosine_embedding_loss", "margin_ranking_loss", "triplet_margin_loss", "multilabel_soft_margin_loss", "multi_margin_loss",
    "linear_cross_entropy",
)  # fmt: skip


def noting(name: str, original: Callable, frames: Callable[[], list], guard: Callable[[str, Exception], None]) -> Callable:
    """The loss function ``original`` with a note on the node of what it returns; its value is untouched."""
    try:
        signature = inspect.signature(original)
    except (TypeError, ValueError):
        signature = None

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        out = original(*args, **kwargs)
        try:
            if signature is not None and torch.is_tensor(out) and out.grad_fn is not None and not torch.jit.is_scripting():
                metadata = out.grad_fn.metadata
                if NOTE not in metadata:  # multi-layer losses call others: the innermost speaks
                    note = _note(name, _bound(signature, args, kwargs), out)
                    note["frames"] = frames()
                    note["output"] = out.output_nr
                    metadata[NOTE] = note
        except Exception as error:  # noqa: BLE001
            guard(f"note on {name}", error)
        return out

    return wrapper


# ---- the walk -----------------------------------------------------------------------------------------------------


def read(roots: Iterable[torch.Tensor]) -> Graph:
    """Terms and leaves of the graph below ``roots``. Nothing is kept alive beyond the returned object."""
    starts = [t.grad_fn for t in roots if torch.is_tensor(t) and t.grad_fn is not None]
    terms = _terms(starts)
    leaves, python_nodes, names, size = _leaves(starts)
    scale = None
    for start in starts:
        node = start
        # accelerate and others may view or convert between scaler.scale() and backward()
        for _ in range(4):
            if node is None:
                break
            if SCALED in node.metadata:
                scale = float(node.metadata[SCALED])
                break
            node = node.next_functions[0][0] if len(node.next_functions) else None
    return Graph(terms, leaves, python_nodes, scale, size, names)


def _leaves(starts: list[Any]) -> tuple[list[torch.Tensor], set[str], dict[str, int], int]:
    seen: set[Any] = set()
    stack = list(starts)
    leaves: list[torch.Tensor] = []
    python_nodes: set[str] = set()
    names: dict[str, int] = {}
    while stack and len(seen) < MAX_NODES:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None:
            leaves.append(variable)
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            python_nodes.add(base_name(node))
        stack.extend(following for following, _ in node.next_functions)
    return leaves, python_nodes, names, len(seen)


def _terms(starts: list[Any]) -> list[Term]:
    found: list[Term] = []
    seen: set[tuple[Any, int]] = set()
    # (node, output number, a reduction was passed on the way)
    stack: list[tuple[Any, int, bool]] = [(start, 0, False) for start in reversed(starts)]
    while stack and len(found) < MAX_TERMS:
        node, output, reduced = stack.pop()
        if node is None or (node, output) in seen:
            continue
        seen.add((node, output))
        if NOTE in node.metadata:
            found.append(_from_note(node, node.metadata[NOTE]))
            continue
        name = base_name(node)
        known = _from_node(node, name)
        if known is not None:
            found.append(known)
            continue
        if name in _PICKS and _under_log_softmax(node):
            found.append(Term(node, output, "gathered log-softmax", "none", None, None, "pattern", unit="token"))
            continue
        smoothed = _smoothed(node, name)
        if smoothed is not None:
            found.append(smoothed)
            continue
        inner = [(f, n) for f, n in node.next_functions if f is not None]
        if name == "_DDPSink":  # one input for each output (torch/nn/parallel/distributed.py)
            inner = [pair for pair in node.next_functions[output : output + 1] if pair[0] is not None]
        if name in _LINEAR and inner:
            for following, number in reversed(inner):
                stack.append((following, number, reduced or name in _REDUCING))
            continue
        if getattr(node, "variable", None) is not None:
            if len(found) == 0 and not stack:
                found.append(_hand_written(node, output, "parameter", reduced))
            continue  # a penalty on a parameter: no targets
        found.append(_hand_written(node, output, name, reduced))
    return found


def _hand_written(node: Any, output: int, name: str, reduced: bool) -> Term:
    # a function that gives one number reduces within itself; one that the script reduces afterwards (log-probabilities of
    # tokens) shows its targets by what arrives at its output
    opaque = not reduced
    reason = f"{name} is a loss that cannot be read" if opaque else ""
    return Term(node, output, "opaque" if opaque else f"hand-written over {name}", "none", None, None, "pattern", reason=reason)


def _from_note(node: Any, note: dict[str, Any]) -> Term:
    reduction, mass, value, valid = note["reduction"], note["mass"], note["value"], note["valid"]

    def total() -> float | None:
        if reduction in ("mean", "batchmean"):
            return float(value) * float(mass) if mass is not None else None
        if reduction == "none" and valid is not None:
            return float((value.reshape(-1) * valid.reshape(-1)).sum()) if value.numel() == valid.numel() else None
        return float(value.sum())

    return Term(
        node, note["output"], note["kind"], reduction, note["count"], mass, "call", total, note["ignore"], note["smoothing"], valid,
        note["frames"], note["unit"], note["labels"],
    )  # fmt: skip


def _from_node(node: Any, name: str) -> Term | None:
    """A loss that is its own node: it saved its targets and its reduction."""
    if name in ("NllLoss", "NllLoss2D"):
        return _nll(node)
    kinds = {
        "MseLoss": "mse_loss", "BinaryCrossEntropy": "binary_cross_entropy", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss",
        "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits", "KlDiv": "kl_div", "SoftMarginLoss": "soft_margin_loss",
        "MultiMarginLoss": "multi_margin_loss",
    }  # fmt: skip
    if name not in kinds:
        return None
    reduction = _REDUCTIONS.get(getattr(node, "_saved_reduction", -1), "")
    saved = getattr(node, "_saved_self", None)
    if not reduction or saved is None:
        return Term(node, 0, "opaque", "", None, None, "graph", reason=f"{name} does not say how it reduces")
    target = getattr(node, "_saved_target", saved)
    count = max(saved.numel(), target.numel()) if reduction != "none" else None
    return Term(node, 0, kinds[name], reduction, count, float(count) if count is not None else None, "graph")


def _nll(node: Any) -> Term:
    ignore = int(node._saved_ignore_index)
    if ignore >= 1 << 63:
        ignore -= 1 << 64  # saved as an unsigned number
    reduction = _REDUCTIONS[node._saved_reduction]
    target, log_probabilities = node._saved_target, node._saved_self
    with torch.no_grad():
        valid = target != ignore
        count = int(valid.sum())
        weight = node._saved_weight
        mass = float(weight.double()[target[valid]].sum()) if weight is not None else float(count)

    def total() -> float:
        with torch.no_grad():
            axis = 1 if log_probabilities.dim() > 1 else 0
            picked = log_probabilities.gather(axis, target.clamp(min=0).unsqueeze(axis)).squeeze(axis)
            scale = weight[target.clamp(min=0)] if weight is not None else 1.0
            return float(-(picked * scale * valid).double().sum())

    return Term(node, 0, "nll_loss", reduction, count, mass, "graph", total, ignore, 0.0, valid, unit="token", labels=int(target.numel()))


def _under_log_softmax(node: Any) -> bool:
    following = node.next_functions[0][0] if node.next_functions else None
    for _ in range(5):
        if following is None:
            return False
        name = base_name(following)
        if "LogSoftmax" in name:
            return True
        if name not in _VIEWS:
            return False
        following = following.next_functions[0][0] if following.next_functions else None
    return False


def _smoothed(node: Any, name: str) -> Term | None:
    """Label smoothing that was reached without a note: (1-e)·nll + e/C·rest, both off one log-softmax.

    aten/src/ATen/native/LossNLL.cpp, cross_entropy_loss_label_smoothing.
    """
    if name != "Add" or len(node.next_functions) != 2:
        return None
    left, right = (f for f, _ in node.next_functions)
    if left is None or right is None or base_name(left) != "Mul" or base_name(right) != "Mul":
        return None
    inner = left.next_functions[0][0]
    if inner is None or base_name(inner) not in ("NllLoss", "NllLoss2D") or NOTE in inner.metadata:
        return None
    source = inner.next_functions[0][0]
    other = right.next_functions[0][0]
    for _ in range(8):
        if other is None:
            return None
        if other == source:
            term = _nll(inner)
            term.node, term.total, term.smoothing = node, None, -1.0
            return term
        other = other.next_functions[0][0] if other.next_functions else None
    return None


# ---- what arrived -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weighed:
    """What a term's targets weighed in one backward, before any average over ranks.

    ``weight``: of each target (None when it can't be told, with the reason); ``count``: targets; ``mass``: their
    number, weighted by class weights where there are some; ``spread``: relative difference between the heaviest and
    the lightest target; ``precision``: unit roundoff of the type in which the gradient arrived.
    """

    weight: float | None
    count: int
    mass: float
    spread: float
    precision: float
    reason: str = ""
    unit_factor: float = 1.0  # cotangent of the summed loss = weight; d(term)/d(sum) for gradients


def weigh(term: Term, scale: float) -> Weighed:
    """The weight of each valid target of a term from the gradient that arrived at its node.

    ``scale``: the loss scale to be taken out.
    """
    arrived = term.arrived
    if arrived is None:
        return Weighed(0.0, term.count or 0, term.mass or 0.0, 0.0, 0.0, "no gradient arrived")
    precision = torch.finfo(arrived.dtype).eps if arrived.is_floating_point() else 0.0
    if term.kind == "opaque":
        return Weighed(None, 0, 0.0, 0.0, precision, term.reason)
    if term.reduction in ("mean", "batchmean") and term.mass is not None:
        value = float(arrived.double().sum()) / scale
        if term.mass == 0:
            return Weighed(0.0, 0, 0.0, 0.0, precision, "no valid target")
        return Weighed(value / term.mass, term.count or 0, term.mass, 0.0, precision)
    if term.reduction == "sum" and term.mass is not None:
        return Weighed(float(arrived.double().sum()) / scale, term.count or 0, term.mass, 0.0, precision)
    if term.reduction not in ("none",):
        return Weighed(None, term.count or 0, term.mass or 0.0, 0.0, precision, f"the reduction {term.reduction!r} is not known")
    values = arrived.detach().double().abs().reshape(-1)
    if term.valid is not None and term.valid.numel() == values.numel():
        values = values[term.valid.reshape(-1)]
    values = values[values != 0]
    count = int(values.numel())
    if count == 0:
        return Weighed(0.0, 0, 0.0, 0.0, precision, "no valid target")
    low, high = float(values.min()), float(values.max())
    spread = (high - low) / high if high else 0.0
    return Weighed(float(values.mean()) / scale, count, float(count), spread, precision)
