"""What a backward pass means: the part of a loss that each valid target receives, and which models it reaches."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static import tensors
from accumlint.static.frameworks.torch.table import function, method
from accumlint.static.values import Parameters, Tensor, Unknown, last_name

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


def backward(run: Interpreter, loss: Any, site: int, **details: Any) -> None:
    """A backward pass through a loss: what each valid target receives, and which models it reaches."""
    if run.no_grad:
        return
    if isinstance(loss, (list, tuple)):
        for item in loss:
            backward(run, item, site, **details)
        return
    if isinstance(loss, (Unknown, Quantity)):
        loss = unseen_loss(run, loss)
    if isinstance(loss, Tensor):
        scalar = tensors.as_scalar(loss, run.count, site)
        parts, models, scaled = scalar.parts, loss.models if loss.graph else None, loss.scaled
        sync, parallel = forward_sync(loss.sync), loss.parallel
        divisions = scalar.divisions
    else:
        parts, models, scaled, sync, parallel, divisions = (), None, False, None, "", ()
    run.emit(
        Kind.BACKWARD, site, parts=parts, models=models, scaled=scaled, forward_sync=sync, backward_sync=_sync_now(run, models),
        parallel=parallel, divisions=divisions, loss=getattr(loss, "key", ""), sync_site=run.sync_site,
        covered=run.things.get("covered"), cut=loss.cut if isinstance(loss, Tensor) else frozenset(),
        decided=loss.sync if isinstance(loss, Tensor) else None, sums="sums over ranks" in run.traits, **details,
    )  # fmt: skip
    if isinstance(loss, Tensor) and loss.leaf:
        run.events[-1].details["through data"] = True
    _run_hooks(run, models)


def _run_hooks(run: Interpreter, models: frozenset[int] | None) -> None:
    """Hooks that the script hung on gradients run within every backward."""
    for hook, site, owners in run.things.get("gradient hooks", ()):
        if models is None or owners is None or models & owners:
            run.things["in hook"] = site
            try:
                run.call_closure(hook, [Parameters(owners)], {}, site)
            finally:
                run.things.pop("in hook", None)


_SCALINGS = frozenset({"mul", "mul_", "multiply", "multiply_", "div", "div_", "divide", "divide_", "true_divide"})


def unseen_loss(run: Interpreter, value: Any) -> Tensor:
    """A loss that nothing explains: taken for a mean, with the factors that the script puts on it."""
    scale: Quantity | None = Quantity.of(1)
    key = getattr(value, "key", str(value))
    if isinstance(value, Quantity):
        lonely = len(value.symbols) == 1 and value.symbols[0][1] == 1
        scale = Quantity(value.ranks, (), value.tags) if lonely else None
        key = value.symbols[0][0] if value.symbols else key
    if last_name(key) in _SCALINGS:
        scale = None  # loss.mul_(share): scaled in place by something that is not known
    return Tensor("output", key, run.current_batch(), scale=scale, models=None, graph=True)


def _sync_now(run: Interpreter, models: frozenset[int] | None) -> bool:
    """Whether communication is on for these models at this moment."""
    flags = [run.sync_flags[m] for m in (models or ()) if m in run.sync_flags] or list(run.sync_flags.values())
    return not silenced(run, models) and all(flags)


def silenced(run: Interpreter, models: frozenset[int] | None) -> bool:
    """A no_sync() that covers one of these models is open."""
    return any(quiet is None or models is None or quiet & models for quiet in run.silenced)


def forward_sync(sync: Any) -> Any:
    """What the forwards of a loss decided: True, False, None (nobody decides), "mixed" (some models only)."""
    if not sync:
        return None
    values = {held for _, held in sync}
    return values.pop() if len(values) == 1 else "mixed"


@method("tensor", "backward")
def _tensor_backward(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    given = next((a.value for a in call.node.args if not a.star and a.keyword in (None, "gradient")), None)
    if given is not None:
        scalar = tensors.as_scalar(receiver, run.count, call.site)
        receiver = tensors.times(scalar, _starting_gradient(run, given, call), call.site)
    backward(run, receiver, call.site)
    return None


def _starting_gradient(run: Interpreter, node: ir.Expr, call: Call) -> Quantity | None:
    """The factor that ``loss.backward(gradient)`` puts on the loss; None where it is not known."""
    if isinstance(node, ir.Const) and node.value is None:
        return Quantity.of(1)
    if isinstance(node, ir.Call):
        name = last_name(ir.dotted(node.func)) if isinstance(node.func, (ir.Name, ir.Attr)) else ""
        numbers = [a.value for a in node.args if not a.star and a.keyword in (None, "fill_value", "data")]
        if name in ("ones_like", "ones"):
            return Quantity.of(1)
        if name in ("full_like", "full") and len(numbers) > 1:
            return run.numeric(run.eval(numbers[1], call.frame))
        if name in ("tensor", "as_tensor") and numbers:
            return run.numeric(run.eval(numbers[0], call.frame))
    return run.numeric(run.eval(node, call.frame))


@method("number", "backward")
def _number_backward(run: Interpreter, receiver: Any, call: Call) -> Any:
    if isinstance(receiver, Quantity):
        backward(run, receiver, call.site)
    return None


@method("unknown", "backward")
def _unknown_backward(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    if call.args and isinstance(call.args[0], Tensor) and call.args[0].form != "data":
        # optimizer.backward(loss), strategy.backward(loss): somebody else's backward of our loss
        backward(run, call.args[0], call.site, owner=receiver.last)
    elif call.args and isinstance(call.args[0], Unknown) and ("loss" in call.args[0].last.lower()):
        backward(run, call.args[0], call.site, owner=receiver.last)
    else:
        backward(run, receiver, call.site)
    return None


@function("torch.autograd.backward", "autograd.backward")
def _autograd_backward(run: Interpreter, call: Call) -> Any:
    backward(run, call.get(0, "tensors"), call.site)
    return None


@function("torch.distributed.autograd.backward", "dist_autograd.backward")
def _rpc_backward(run: Interpreter, call: Call) -> Any:
    run.gap("gradients of torch.distributed.autograd live in a context, not in .grad", call.site)
    return None
