"""Gradient scalers of torch, apex and timm."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.static.frameworks.base import models_of
from accumlint.static.frameworks.torch.backward import backward, unseen_loss
from accumlint.static.frameworks.torch.optimizers import state_dict, step_optimizer, thing_other
from accumlint.static.frameworks.torch.table import TABLE, function, method
from accumlint.static.values import Context, Gradient, Instance, Parameters, Tensor, Thing, Unknown, changed

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


@method("scaler", "scale")
def _scale(run: Interpreter, receiver: Thing, call: Call) -> Any:
    value = call.get(0, "outputs")
    if isinstance(value, (Unknown, Quantity)):
        value = unseen_loss(run, value)
    if isinstance(value, Tensor):
        return changed(value, scaled=True)
    return value


@method("scaler", "step")
def _scaler_step(run: Interpreter, receiver: Thing, call: Call) -> Any:
    optimizer = _held_optimizer(call.get(0, "optimizer"))
    if isinstance(optimizer, Unknown):
        optimizer = run.known_as(optimizer, "optimizer", call.site)
    if isinstance(optimizer, Thing):
        step_optimizer(run, optimizer, call.site, scaler=receiver.number)
    else:
        run.emit(Kind.STEP, call.site, -1, models=None, scaler=receiver.number)
    return None


@method("scaler", "unscale_")
def _unscale(run: Interpreter, receiver: Thing, call: Call) -> Any:
    optimizer = _held_optimizer(call.get(0, "optimizer"))
    models = optimizer.models if isinstance(optimizer, Thing) else None
    run.emit(Kind.UNSCALE, call.site, getattr(optimizer, "number", -1), models=models)
    return None


def _held_optimizer(value: Any) -> Any:
    """The optimizer in an object of the script's own that wraps one (``Noam(params).optimizer``); else the value itself."""
    if not isinstance(value, Instance):
        return value
    held = [v for v in value.attributes.values() if isinstance(v, Thing) and v.kind == "optimizer"]
    return held[0] if len(held) == 1 else value


@method("scaler", "update")
def _scaler_update(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.emit(Kind.SCALER_UPDATE, call.site, receiver.number)
    return None


@method("scaler", "get_scale")
def _get_scale(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.traits.add("reads scale")
    return Quantity.symbol("loss scale", "loss scale")


@function("scale_loss")
def _scale_loss(run: Interpreter, call: Call) -> Any:
    """``with amp.scale_loss(loss, optimizer) as scaled``: apex unscales when the block is left."""
    loss, optimizer = call.get(0, "loss"), call.get(1, "optimizer")
    if isinstance(loss, (Unknown, Quantity)):
        loss = unseen_loss(run, loss)
    scaled = changed(loss, scaled=True) if isinstance(loss, Tensor) else loss

    def leave(inner: Interpreter) -> None:
        models = optimizer.models if isinstance(optimizer, Thing) else None
        inner.emit(Kind.UNSCALE, call.site, -1, models=models, apex=True)

    return Context("handler", (lambda inner, site: scaled, leave), call.site)


@function("apex.amp.initialize", "amp.initialize")
def _amp_initialize(run: Interpreter, call: Call) -> Any:
    return tuple(call.args[:2]) if len(call.args) > 1 else (call.args[0] if call.args else Unknown(call.key))


@function("master_params")
def _master_params(run: Interpreter, call: Call) -> Any:
    optimizer = call.get(0, "optimizer")
    return Parameters(optimizer.models if isinstance(optimizer, Thing) else None)


def call_scaler(run: Interpreter, receiver: Any, call: Call) -> Any:
    """``loss_scaler(loss, optimizer, clip_grad=…, parameters=…, update_grad=…)`` (timm/utils/cuda.py, MAE misc.py)."""
    loss, optimizer = call.get(0, "loss"), call.get(1, "optimizer")
    if isinstance(loss, (Parameters, Gradient)) or models_of(loss) is not None:
        # a name like grad_scaler may also hold a function that multiplies gradients
        number = next((n for n in (run.numeric(v) for v in call.values[1:]) if n is not None), None)
        run.emit(Kind.RESCALE, call.site, factor=number, models=models_of(loss))
        return None
    if isinstance(optimizer, Unknown):
        optimizer = run.known_as(optimizer, "optimizer", call.site)
    if isinstance(loss, Tensor):
        loss = changed(loss, scaled=True)
    backward(run, loss, call.site, owner="scaler")
    gate = call.kwargs.get("update_grad", call.kwargs.get("need_update", True))
    if run.scouting and not isinstance(gate, bool):
        effects: set[str] = set()
        run.learned.effects[call.site] = run.learned.effects.get(call.site, frozenset()) | frozenset({"step"})
        run._learn_window(gate)
        going = True
        del effects
    else:
        going = run.truth(gate)
    if going:
        run.gates.append(call.site)
        models = optimizer.models if isinstance(optimizer, Thing) else None
        run.emit(Kind.UNSCALE, call.site, -1, models=models)
        if call.kwargs.get("clip_grad") is not None or "max_norm" in call.kwargs:
            run.emit(Kind.CLIP, call.site, models=models, measures_only=False, through="scaler")
        run.emit(Kind.STEP, call.site, getattr(optimizer, "number", -1), models=models, scaler=-1)
        run.emit(Kind.SCALER_UPDATE, call.site, -1)
        run.gates.pop()
    return Unknown(call.key)


TABLE.calls["callable_scaler"] = call_scaler
TABLE.calls["scaler"] = call_scaler
TABLE.methods["callable_scaler", "state_dict"] = state_dict
TABLE.methods["callable_scaler", "*"] = thing_other
