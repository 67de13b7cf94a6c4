"""Losses: reductions, and targets that are ignored."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any, TYPE_CHECKING

from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static import tensors
from accumlint.static.frameworks.base import tensors_in
from accumlint.static.frameworks.torch.optimizers import thing_other
from accumlint.static.frameworks.torch.table import TABLE
from accumlint.static.values import Tensor, Thing

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


def _loss_of(run: Interpreter, call: Call, name: str, reduction: Any, ignore: Any, explicit_ignore: bool) -> Tensor:
    inputs = tensors_in(call.values)
    out = tensors.joined(inputs, "elements", call.key)
    graphs = [t for t in inputs if t.graph]
    if not graphs:
        # the prediction is something that nobody could follow: it is taken to reach unknown parameters
        out.graph, out.models = not run.no_grad, None
        out.batch = max((t.batch for t in inputs), default=-1)
    labels = next((t for t in reversed(inputs) if not t.graph), None)
    if out.batch < 0:
        out.batch = run.current_batch()
    # a loss over several microbatches at once (contrastive, recomputed) has its own idea of a target
    out.scale = None if out.several else Quantity.of(1)
    out.divisions = ()
    out.basis = next((t.basis for t in inputs if t.basis != "fixed"), "fixed")
    out.varies = out.basis != "fixed"
    # an ignore_index written as a number, or torch's own -100, is boilerplate of many models; a name stands for padding
    named = explicit_ignore and not isinstance(ignore, (int, Fraction)) or explicit_ignore and _is_named(call, ignore) and ignore != -100
    if isinstance(ignore, int) and abs(ignore) > 1 and ignore != -100 and run.module.numbers.get(abs(ignore), 0) > 1:
        named = True  # the same number stands elsewhere, where targets are counted or made
    if name in run.vocabulary.ignorable and (named or "ignored labels" in run.traits or explicit_ignore and "padding" in run.traits):
        shifted = labels.shifted if labels is not None else any(t.shifted for t in inputs)
        out.basis, out.varies = ("valid" if shifted else "unshifted"), True
    if reduction is None or reduction == "mean":
        return tensors.reduce_mean(out, run.count, call.site)
    if reduction == "sum" and name in ("CTCLoss", "ctc_loss"):
        out.basis, out.varies = "unshifted", True  # the targets of an utterance are as many as it has labels
    if reduction == "sum":
        return tensors.reduce_sum(out, call.site)
    if reduction == "batchmean":
        return tensors.reduce_mean(out, run.count, call.site)
    if reduction == "none":
        return out
    # a reduction that the script decides elsewhere
    out.scale = None
    return tensors.reduce_mean(out, run.count, call.site)


def _is_named(call: Call, ignore: Any) -> bool:
    """The ``ignore_index`` of a call (or of the constructor that was called earlier) is given by a name."""
    argument = next((a.value for a in call.node.args if a.keyword == "ignore_index"), None)
    if argument is not None:
        return not isinstance(argument, ir.Const)
    return isinstance(ignore, Named)


class Named(int):
    """A number that a name stood for when a loss module was built."""


def _reduction(call: Call) -> Any:
    """``reduction``, also as it was said before torch 0.4.1 (``reduce``, ``size_average``)."""
    reduction = call.kwargs.get("reduction", "mean")
    if call.kwargs.get("reduce") is False:
        reduction = "none"
    if call.kwargs.get("size_average") is False and reduction == "mean":
        reduction = "sum"
    return reduction


def loss_function(run: Interpreter, call: Call) -> Any:
    ignore = call.kwargs.get("ignore_index")
    return _loss_of(run, call, call.name, _reduction(call), ignore, ignore is not None)


def _ignoring_loss(run: Interpreter, call: Call) -> Any:
    """A loss that nobody shows, which leaves out some labels: taken for a mean over the others, and says so."""
    out = _loss_of(run, call, "cross_entropy", None, "ignore_index", True)
    out.parts = tuple(dataclasses.replace(part, assumed=True) for part in out.parts)
    return out


TABLE.roles["ignoring_loss"] = _ignoring_loss


def make_loss_module(run: Interpreter, call: Call) -> Thing:
    made = run.thing("loss", call.name, call.site)
    reduction = _reduction(call)
    ignore = call.kwargs.get("ignore_index")
    if isinstance(ignore, int) and _is_named(call, ignore):
        ignore = Named(ignore)
    made.state.update(constructor=call.name, reduction=reduction, ignore=ignore)
    return made


def _call_loss(run: Interpreter, thing: Thing, call: Call) -> Any:
    ignore = thing.state.get("ignore")
    return _loss_of(run, call, thing.state["constructor"], thing.state["reduction"], ignore, ignore is not None)


TABLE.calls["loss"] = _call_loss
TABLE.methods["loss", "to"] = TABLE.methods["loss", "cuda"] = lambda run, receiver, call: receiver
TABLE.methods["loss", "train"] = TABLE.methods["loss", "eval"] = lambda run, receiver, call: receiver
TABLE.methods["loss", "*"] = thing_other
TABLE.methods["loss", "forward"] = _call_loss
