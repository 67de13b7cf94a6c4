"""Optimizers: what steps, clears, scales and keeps."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind
from accumlint.static.frameworks.base import models_of, subject
from accumlint.static.frameworks.torch.backward import backward
from accumlint.static.frameworks.torch.clipping import measures_only
from accumlint.static.frameworks.torch.table import method
from accumlint.static.values import Closure, Partial, Thing, Unknown

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


def make_optimizer(run: Interpreter, call: Call) -> Thing:
    made = run.thing("optimizer", call.name, call.site)
    run.learned.builds_optimizer = True
    source = call.get(0, "params")
    if isinstance(source, Thing) and source.kind == "optimizer":
        # a wrapper around an optimizer (FP16_Optimizer, LARS, SAM)
        made.models = source.models
        made.state["inner"] = source.number
    else:
        made.models = models_of(source)
    subject(run, made)
    return made


def step_optimizer(run: Interpreter, optimizer: Thing, site: int, **details: Any) -> None:
    hook = run.things.get("in hook")
    if hook is not None:
        details["hook"] = hook
    run.emit(Kind.STEP, site, optimizer.number, models=optimizer.models, **details)


@method("optimizer", "step")
def _optimizer_step(run: Interpreter, receiver: Thing, call: Call) -> Any:
    for value in call.values:
        if isinstance(value, (Closure, Partial)):
            # the closure runs forward and backward before the step
            return_value = run.call_value(value, type(call)(call.site, "closure", [], {}, call.node, call.key, call.frame))
            step_optimizer(run, receiver, call.site)
            return return_value
    if "scale" in call.kwargs:
        run.emit(Kind.RESCALE, call.site, factor=None, models=receiver.models)
    if receiver.state.get("engine") is not None:
        return None  # the engine steps it
    if owned_and_idle(run, receiver):
        return None
    owner = {"owner": "accelerate"} if receiver.state.get("accelerator") is not None and "accumulate" in run.traits else {}
    step_optimizer(run, receiver, call.site, **owner)
    return None


def owned_and_idle(run: Interpreter, thing: Thing) -> bool:
    """A framework holds this optimizer or scheduler and its window is not complete: the call does nothing."""
    accelerator = thing.state.get("accelerator")
    if accelerator is None and thing.guessed:
        # taken out of a dict or a list in which this accelerator prepared optimizers, or handed in together with it
        around = run.things.get("accumulating")
        if isinstance(around, Thing) and (around.state.get("optimizers") or around.state.get("handed in")):
            accelerator = thing.state["accelerator"] = around
    return accelerator is not None and not run.scouting and not accelerator.state.get("sync", True)


@method("optimizer", "zero_grad", "clear_grad")
def _optimizer_clear(run: Interpreter, receiver: Thing, call: Call) -> Any:
    if receiver.state.get("engine") is not None or owned_and_idle(run, receiver):
        return None
    run.emit(Kind.CLEAR, call.site, receiver.number, models=receiver.models, by="optimizer")
    return None


@method("optimizer", "backward")
def _optimizer_backward(run: Interpreter, receiver: Thing, call: Call) -> Any:
    backward(run, call.get(0, "loss"), call.site, owner=receiver.name)
    return None


@method("optimizer", "clip_grad_norm", "clip_master_grads", "clip_grad_norm_", "clip_gradients")
def _optimizer_clip(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.emit(Kind.CLIP, call.site, models=receiver.models, measures_only=measures_only(run, call, 0), through="optimizer")
    return Unknown(call.key)


@method("optimizer", "multiply_grads")
def _multiply_grads(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.emit(Kind.RESCALE, call.site, factor=run.numeric(call.get(0, "c")), models=receiver.models)
    return None


@method("optimizer", "state_dict")
@method("scheduler", "state_dict")
@method("scaler", "state_dict")
@method("model data_parallel sharded", "state_dict")
@method("loader", "state_dict")
def state_dict(run: Interpreter, receiver: Thing, call: Call) -> Any:
    kind = receiver.kind if isinstance(receiver, Thing) else receiver.role
    return Unknown(call.key, tags=frozenset({f"state:{receiver.number}", f"state of {kind}"}))


@method("optimizer scheduler scaler model data_parallel sharded loader", "load_state_dict")
def _load_state(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.traits.add(f"restores {receiver.kind if isinstance(receiver, Thing) else receiver.role}")
    return None


@method("optimizer scheduler scaler", "to", "cuda", "train", "eval")
def _same_thing(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return receiver


@method("optimizer scheduler", "*")
@method("scaler", "*")
def thing_other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return Unknown(call.key)
