"""PyTorch: optimizers, schedulers, scalers, data-parallel wrappers, losses, clipping, checkpoints.

Facts used here (torch 2.13): DDP decides whether to reduce in the forward (``torch/nn/parallel/distributed.py``,
``_pre_forward``); FSDP decides in the backward; ``set_requires_gradient_sync`` of FSDP2 is sticky.
"""

from __future__ import annotations

import dataclasses
import re
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Horizon, Kind, Part, Subject
from accumlint.contract.quantity import RANKS, Quantity
from accumlint.static import syntax as ir
from accumlint.static import evidence, tensors
from accumlint.static.frameworks.base import Table, joined, models_of, subject, tensors_in
from accumlint.static.frameworks.tensor_operations import LANGUAGE_MODELS
from accumlint.static.values import (
    ClassValue, Closure, Context, External, Gradient, Instance, Method, Parameters, Partial, Stream, Tensor, Test,
    Thing, Unknown, changed, last_name, on_main_rank, rank_number,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

TABLE = Table()
TABLE.bases = {
    "Module": "model", "PreTrainedModel": "model", "ModelMixin": "model", "Optimizer": "optimizer", "LRScheduler": "scheduler",
    "_LRScheduler": "scheduler", "Dataset": "dataset", "IterableDataset": "dataset", "Sampler": "dataset", "BatchSampler": "dataset",
    "DataLoader": "loader", "GradScaler": "scaler", "Function": "function", "NamedTuple": "record", "Enum": "record",
}  # fmt: skip

MODELS = ("model", "data_parallel", "sharded")

function = TABLE.function
method = TABLE.method


# backward


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


# optimizers


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


def _step_optimizer(run: Interpreter, optimizer: Thing, site: int, **details: Any) -> None:
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
            _step_optimizer(run, receiver, call.site)
            return return_value
    if "scale" in call.kwargs:
        run.emit(Kind.RESCALE, call.site, factor=None, models=receiver.models)
    if receiver.state.get("engine") is not None:
        return None  # the engine steps it
    if owned_and_idle(run, receiver):
        return None
    owner = {"owner": "accelerate"} if receiver.state.get("accelerator") is not None and "accumulate" in run.traits else {}
    _step_optimizer(run, receiver, call.site, **owner)
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
    run.emit(Kind.CLIP, call.site, models=receiver.models, measures_only=_measures_only(run, call, 0), through="optimizer")
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
def _state_dict(run: Interpreter, receiver: Thing, call: Call) -> Any:
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
def _thing_other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return Unknown(call.key)


# schedulers

# constructor -> where its length stands: (position, keyword); OneCycleLR may give it as a product
_HORIZONS: dict[str, tuple[int, str]] = {
    "CosineAnnealingLR": (1, "T_max"), "LinearLR": (3, "total_iters"), "PolynomialLR": (1, "total_iters"),
    "OneCycleLR": (2, "total_steps"), "get_linear_schedule_with_warmup": (2, "num_training_steps"),
    "get_cosine_schedule_with_warmup": (2, "num_training_steps"),
    "get_cosine_with_hard_restarts_schedule_with_warmup": (2, "num_training_steps"),
    "get_polynomial_decay_schedule_with_warmup": (2, "num_training_steps"), "get_scheduler": (3, "num_training_steps"),
    "get_inverse_sqrt_schedule": (1, "num_warmup_steps"), "get_constant_schedule_with_warmup": (1, "num_warmup_steps"),
    "WarmupLinearSchedule": (2, "t_total"), "WarmupCosineSchedule": (2, "t_total"), "CosineLRScheduler": (1, "t_initial"),
    "WarmupDecayLR": (1, "total_num_steps"), "get_wsd_schedule": (2, "num_decay_steps"), "CosineAnnealingWarmRestarts": (1, "T_0"),
}  # fmt: skip
_HORIZON_WORDS = ("num_training_steps", "total_steps", "t_total", "T_max", "max_steps", "total_iters", "num_steps", "t_initial",
                  "total_num_steps", "max_iters", "max_epochs")  # fmt: skip


def make_scheduler(run: Interpreter, call: Call) -> Thing:
    made = run.thing("scheduler", call.name, call.site)
    entry = subject(run, made)
    optimizer = call.get(0, "optimizer")
    if not isinstance(optimizer, Thing):
        optimizer = next((v for v in call.values if isinstance(v, Thing) and v.kind == "optimizer"), None)
    if isinstance(optimizer, Thing) and optimizer.kind == "optimizer":
        entry.optimizer = optimizer.number
        made.state["optimizer"] = optimizer
    made.state["constructor"] = call.name
    if _is_placed(run, call):
        entry.traits |= {"placed"}
    entry.horizon = _horizon(run, call)
    inner = [v for v in call.values if isinstance(v, Thing) and v.kind == "scheduler"]
    for value in call.values:
        if isinstance(value, list):
            inner.extend(v for v in value if isinstance(v, Thing) and v.kind == "scheduler")
    if inner and (entry.horizon is None or entry.horizon.value is None):
        horizons = [run.subjects[v.number].horizon for v in inner if run.subjects[v.number].horizon is not None]
        entry.horizon = horizons[-1] if horizons else entry.horizon
    made.state["inner"] = [v.number for v in inner]
    if entry.horizon is not None:
        warmup = call.kwargs.get("num_warmup_steps", call.args[1] if len(call.args) > 1 and "warmup" in call.name else None)
        if warmup is not None:
            entry.horizon.warmup = run.numeric(warmup)
            entry.horizon.warmup_site = _argument_site(run, call, "num_warmup_steps", call.site, 1)
    return made


def _is_placed(run: Interpreter, call: Call) -> bool:
    """Whether a schedule is built where a resumed run left it: ``last_epoch`` is worked out, not merely handed on."""
    written = next((a.value for a in call.node.args if a.keyword == "last_epoch"), None)
    handed_on = {p.name for p in call.frame.function.parameters} if call.frame.function is not None else set()
    number = run.numeric(call.kwargs.get("last_epoch", -1))
    if number is None or number.integer != -1:
        return True
    return written is not None and not isinstance(written, (ir.Const, ir.Unary)) and getattr(written, "id", "") not in handed_on


def _horizon(run: Interpreter, call: Call) -> Horizon | None:
    """The length that a schedule is built with, and where it stands in the script."""
    name = call.name
    site = call.site
    if name == "OneCycleLR" and "steps_per_epoch" in call.kwargs:
        epochs, per_epoch = run.numeric(call.kwargs.get("epochs")), run.numeric(call.kwargs["steps_per_epoch"])
        site = _argument_site(run, call, "steps_per_epoch", site)
        if epochs is not None and per_epoch is not None:
            return Horizon(site, epochs * per_epoch, name, "epochs × steps_per_epoch")
        return Horizon(site, None, name)
    if name in ("LambdaLR", "MultiplicativeLR"):
        return _lambda_horizon(run, call)
    position, keyword = _HORIZONS.get(name, (-1, ""))
    value = call.get(position, keyword) if keyword else None
    if value is None:
        for word in _HORIZON_WORDS:
            if word in call.kwargs:
                value, keyword = call.kwargs[word], word
                break
    if value is None:
        # get_scheduler(optimizer, epoch_steps=len(loader)): as long as so many of some unit
        told = next((v for v in call.values if isinstance(v, Quantity) and "len" in v.tags), None)
        return Horizon(site, Quantity.symbol(call.key, *told.tags), name) if told is not None else None
    number = run.numeric(value)
    return Horizon(_argument_site(run, call, keyword, site, position), number, name, keyword)


def _argument_site(run: Interpreter, call: Call, keyword: str, default: int, position: int = -1) -> int:
    """Where an argument was worked out, which is the line to change; else where it is handed over."""
    for index, argument in enumerate(call.node.args):
        if argument.keyword == keyword or (argument.keyword is None and index == position):
            place = run.computed_at(argument.value, call.frame)
            return place if place is not None else argument.value.site
    return default


def _lambda_horizon(run: Interpreter, call: Call) -> Horizon | None:
    """The longest number that a learning-rate function mentions, among those that count something of the run."""
    target = call.get(1, "lr_lambda")
    if isinstance(target, list) and target:
        target = target[0]
    if isinstance(target, Partial):
        target = target.target
    if not isinstance(target, Closure):
        return None
    best: Horizon | None = None
    for node in _numbers_mentioned(target.function):
        value = run.eval(node, _definition_frame(target))
        number = run.numeric(value)
        if number is None or not (number.tags & {"len", "updates", "epochs"} or number.symbols):
            continue
        if not number.symbols and not number.tags & {"len", "updates"}:
            continue
        size = number.ranks[0] if not number.symbols else Fraction(0)
        if best is None or best.value is None or (size > (best.value.ranks[0] if not best.value.symbols else 0)):
            best = Horizon(call.site, number, call.name, run.key(node))
    return best


def _definition_frame(target: Closure) -> Any:
    from accumlint.static.interpreter import Frame

    frame = Frame(target.frame, target.function, target.function.module)
    for parameter in target.function.parameters:
        frame.names[parameter.name] = Unknown(f"{parameter.name}@schedule")
    return frame


def _numbers_mentioned(function_: ir.Function) -> list[ir.Expr]:
    """Names and attribute chains that a learning-rate function reads from around it."""
    own = {p.name for p in function_.parameters}
    out: list[ir.Expr] = []
    stack: list[Any] = list(function_.body)
    while stack:
        node = stack.pop()
        if isinstance(node, ir.Name) and node.id not in own:
            out.append(node)
        elif isinstance(node, ir.Attr):
            if ir.dotted(node) and ir.dotted(node).split(".")[0] not in own | {"math", "np", "torch"}:
                out.append(node)
            continue
        elif isinstance(node, ir.Assign):
            stack.append(node.value)
            continue
        for name in getattr(type(node), "__dataclass_fields__", ()):
            value = getattr(node, name)
            if isinstance(value, (ir.Expr, ir.Stmt, ir.Argument)):
                stack.append(value)
            elif isinstance(value, list):
                stack.extend(v for v in value if isinstance(v, (ir.Expr, ir.Stmt, ir.Argument)))
    return out


@method("scheduler", "step", "step_update", "step_batch")
def _scheduler_step(run: Interpreter, receiver: Thing, call: Call) -> Any:
    metric = call.get(0, "metrics")
    plateau = receiver.state.get("constructor") == "ReduceLROnPlateau" or isinstance(metric, (Tensor, Unknown)) and not _is_index(metric)
    absolute = call.name == "step_update" or (bool(call.args or call.kwargs) and not plateau)
    if receiver.state.get("engine") is not None:
        return None  # moved by the engine
    accelerator = receiver.state.get("accelerator")
    free = accelerator is not None and accelerator.state.get("free scheduler")
    if not free and owned_and_idle(run, receiver):
        return None
    times = RANKS if accelerator is not None and not free and not accelerator.state.get("split_batches") else 1
    run.emit(Kind.SCHEDULE, call.site, receiver.number, absolute=absolute, plateau=plateau, times=times)
    return None


def _is_index(value: Any) -> bool:
    return isinstance(value, (int, Quantity)) or isinstance(value, Unknown) and any(
        w in value.last.lower() for w in ("step", "iter", "epoch", "update")
    )


# scaler


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
        _step_optimizer(run, optimizer, call.site, scaler=receiver.number)
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


# apex


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


# timm-style scalers: one call that hides backward, unscale, clip, step and update


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
TABLE.methods["callable_scaler", "state_dict"] = _state_dict
TABLE.methods["callable_scaler", "*"] = _thing_other


# models, wrappers


def make_model(run: Interpreter, call: Call) -> Thing:
    made = run.thing("model", call.name, call.site, constructor=call.name)
    made.models = frozenset({made.number})
    return made


def wrap(run: Interpreter, call: Call, kind: str) -> Any:
    """DDP(model), FSDP(model): the same parameters behind a forward that synchronises."""
    inner = call.get(0, "module")
    if isinstance(inner, Unknown):
        inner = run.known_as(inner, "model", call.site)
    made = run.thing(kind, call.name, call.site)
    made.models = models_of(inner) or frozenset({made.number})
    made.attributes["module"] = inner
    if isinstance(inner, Thing):
        made.state["constructor"] = inner.state.get("constructor")
    run.distributed = True
    subject(run, made).traits = frozenset({kind})
    run.traits.add(kind)
    return made


@function("fully_shard")
def _fully_shard(run: Interpreter, call: Call) -> Any:
    """FSDP2 changes the module in place."""
    module = call.get(0, "module")
    run.distributed = True
    run.traits.add("fsdp2")
    if isinstance(module, Unknown):
        module = run.known_as(module, "model", call.site)
    if isinstance(module, Thing):
        module.state["sharded"] = True
    elif isinstance(module, Instance):
        module.state["sharded"] = True
    return module


@function("convert_sync_batchnorm", "freeze", "checkpoint_wrapper", "prepare_model_for_kbit_training", "get_peft_model", "apply_activation_checkpointing",
          "torch.compile", "compile", "maybe_compile", "script", "DataParallel", "BalancedDataParallel", "EMA_wrap")
def _same_model(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "model", call.get(0, "module"))
    return value if isinstance(value, (Thing, Instance, Closure, Unknown, Method, Partial)) else Unknown(call.key)


@method("model data_parallel sharded", "parameters", "trainable_parameters", "get_parameters", "named_parameters", "get_trainable_params")
def _parameters(run: Interpreter, receiver: Any, call: Call) -> Any:
    found = Parameters(models_of(receiver))
    if call.name == "named_parameters":
        return Stream(lambda i: (Unknown("name"), found), 1, literal=True, thing=found)
    return found


@method("unknown", "parameters", "named_parameters")
def _unknown_parameters(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    if receiver.batch >= 0:
        return Parameters(None)
    return _parameters(run, run.known_as(receiver, "model", call.site), call)


@method("model data_parallel sharded", "zero_grad", "zero_grad_buffer")
def _model_clear(run: Interpreter, receiver: Any, call: Call) -> Any:
    run.emit(Kind.CLEAR, call.site, -1, models=models_of(receiver), by="model")
    return None


@method("model data_parallel sharded", "no_sync")
def _no_sync(run: Interpreter, receiver: Any, call: Call) -> Any:
    run.distributed = True
    run.traits.add("no_sync")
    if isinstance(receiver, Thing) and receiver.kind == "model":
        receiver.kind = "data_parallel"
    elif isinstance(receiver, Instance):
        receiver.state["parallel"] = "ddp"
    return Context("no_sync", (models_of(receiver), tuple(run.stack)), call.site)


@method("model data_parallel sharded", "set_requires_gradient_sync", "set_requires_all_reduce")
def _set_sync(run: Interpreter, receiver: Any, call: Call) -> Any:
    run.distributed = True
    run.traits.update({"fsdp2", "sync flag"})
    value = call.get(0, "requires_gradient_sync", True)
    run.sync_site = call.site
    for model in models_of(receiver) or ():
        run.sync_flags[model] = run.truth(value)
    return None


@method("model data_parallel sharded unknown", "set_gradient_divide_factor", "set_reduce_scatter_divide_factor", "set_force_sum_reduction_for_comms")
def _divide_factor(run: Interpreter, receiver: Any, call: Call) -> Any:
    """FSDP2 then sums over ranks instead of averaging (torch/distributed/fsdp/_fully_shard/_fully_shard.py)."""
    if call.get(0, "factor") in (1, True):
        run.traits.add("sums over ranks")
    return None


@method("unknown", "set_requires_gradient_sync", "set_is_last_backward", "set_reshard_after_backward")
def _unknown_set_sync(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    thing = run.known_as(receiver, "model", call.site)
    if call.name == "set_requires_gradient_sync":
        thing.state["sharded"] = True
        return _set_sync(run, thing, call)
    return None


@method("model data_parallel sharded", "clip_grad_norm_")
def _model_clip(run: Interpreter, receiver: Any, call: Call) -> Any:
    run.emit(Kind.CLIP, call.site, models=models_of(receiver), measures_only=_measures_only(run, call, 0), through="model")
    return Unknown(call.key)


@method("model data_parallel sharded", "to", "cuda", "train", "eval", "half", "float", "bfloat16", "double", "cpu", "requires_grad_", "compile",
        "to_empty", "share_memory", "apply", "npu", "xpu", "type")
def _model_same(run: Interpreter, receiver: Any, call: Call) -> Any:
    if call.name == "requires_grad_":
        _freeze(run, Parameters(models_of(receiver)), call.get(0, "requires_grad", True))
    return receiver


@method("model data_parallel sharded", "register_full_backward_hook", "register_forward_hook", "register_comm_hook", "gradient_checkpointing_enable",
        "enable_input_require_grads", "save_pretrained", "resize_token_embeddings", "print_trainable_parameters", "load_pretrained", "named_modules",
        "modules", "children", "get_input_embeddings", "num_parameters", "reset_parameters", "init_weights", "set_is_last_backward",
        "set_reshard_after_backward", "enable_gradient_checkpointing", "enable_xformers_memory_efficient_attention", "push_to_hub")
def _model_inert(run: Interpreter, receiver: Any, call: Call) -> Any:
    return Unknown(call.key)


@method("model data_parallel sharded", "update_parameters")
def _model_average(run: Interpreter, receiver: Any, call: Call) -> Any:
    """``AveragedModel(model).update_parameters(model)``: the average is a model of its own."""
    run.emit(Kind.AVERAGE, call.site, name=call.name, models=models_of(receiver))


@method("average", "update", "step", "update_parameters", "update_average")
def _average_moves(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.emit(Kind.AVERAGE, call.site, name=receiver.name)


@method("average", "*")
def _average_other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return receiver if call.name in ("to", "cuda", "eval") else Unknown(call.key)


@method("model data_parallel sharded", "*")
def _model_method(run: Interpreter, receiver: Any, call: Call) -> Any:
    """Any other method of a model may be its forward (``model.compute_loss(batch)``)."""
    if isinstance(receiver, Instance):
        return run.unknown_call(call)
    if call.name == "forward" or tensors_in(call.values):
        return forward(run, receiver, call, None)
    return Unknown(call.key)


TABLE.attributes["data_parallel", "module"] = lambda run, thing, site: thing.attributes.get("module") or _inner(run, thing)
TABLE.attributes["sharded", "module"] = TABLE.attributes["data_parallel", "module"]
TABLE.attributes["model", "module"] = lambda run, thing, site: thing
TABLE.attributes["model", "no_sync"] = lambda run, thing, site: Method(thing, "no_sync", site)
TABLE.attributes["*", "training"] = lambda run, thing, site: True
TABLE.attributes["*", "state"] = lambda run, thing, site: Unknown(f"{thing.name}.state")
TABLE.attributes["*", "param_groups"] = lambda run, thing, site: (
    [{"params": Parameters(thing.models), "lr": Unknown("lr")}] if isinstance(thing, Thing) and thing.kind == "optimizer" else Unknown("param_groups")
)
TABLE.attributes["model", "require_backward_grad_sync"] = lambda run, thing, site: run.sync_flags.get(thing.number, True)
TABLE.attributes["data_parallel", "require_backward_grad_sync"] = TABLE.attributes["model", "require_backward_grad_sync"]
TABLE.attributes["loader", "dataset"] = lambda run, thing, site: Unknown(f"{thing.name}.dataset")
TABLE.attributes["loader", "sampler"] = lambda run, thing, site: Unknown(f"{thing.name}.sampler")
TABLE.attributes["loader", "batch_size"] = lambda run, thing, site: Unknown(f"{thing.name}.batch_size")


def _inner(run: Interpreter, thing: Thing) -> Thing:
    made = run.thing("model", f"{thing.name}.module", thing.site)
    made.models = models_of(thing)
    thing.attributes["module"] = made
    return made


def _set_flag(run: Interpreter, owner: Any, value: Any, target: ir.Attr) -> bool:
    """``model.require_backward_grad_sync = last``: DDP reads it in the next forward."""
    thing = run.known_as(owner, "data_parallel", target.site) if isinstance(owner, Unknown) else owner
    run.distributed = True
    run.traits.update({"sync flag", "no_sync"})
    held = run.truth(value)
    run.sync_site = target.site
    numbers = models_of(thing) or ({thing.number} if isinstance(thing, (Thing, Instance)) else set())
    for number in numbers:
        run.sync_flags[number] = held
    if isinstance(thing, Thing) and thing.kind == "model":
        thing.kind = "data_parallel"
    return True


TABLE.setters["require_backward_grad_sync"] = _set_flag


def _set_grad(run: Interpreter, owner: Any, value: Any, target: ir.Attr) -> bool:
    """``p.grad = None`` clears, ``p.grad = something`` rewrites."""
    models = owner.models if isinstance(owner, (Parameters, Tensor)) else None
    if value is None:
        run.emit(Kind.CLEAR, target.site, -1, models=models, by="gradient")
    elif not isinstance(value, Gradient):
        run.emit(Kind.RESCALE, target.site, factor=None, models=models)
    elif isinstance(value, Gradient) and not getattr(run, "_augmenting", False):
        run.emit(Kind.RESCALE, target.site, factor=None, models=models)
    return True


TABLE.setters["grad"] = _set_grad


def _set_requires_grad(run: Interpreter, owner: Any, value: Any, target: ir.Attr) -> bool:
    if isinstance(owner, Tensor) and owner.form == "data":
        owner.leaf = run.truth(value, True)
    _freeze(run, owner, value)
    return True


TABLE.setters["requires_grad"] = _set_requires_grad


def _set_last_epoch(run: Interpreter, owner: Any, value: Any, target: ir.Attr) -> bool:
    """``scheduler.last_epoch = start_epoch - 1``: a schedule that is told where a resumed run left it."""
    if isinstance(owner, Thing) and owner.kind == "scheduler":
        run.subjects[owner.number].traits |= {"placed"}
    return False


TABLE.setters["last_epoch"] = _set_last_epoch


def _freeze(run: Interpreter, owner: Any, value: Any) -> None:
    if isinstance(owner, Parameters) and owner.models:
        held = run.truth(value, True)
        for model in owner.models:
            run.things[f"frozen {model}"] = not held


@method("parameters", "requires_grad_")
def _parameters_freeze(run: Interpreter, receiver: Parameters, call: Call) -> Any:
    _freeze(run, receiver, call.get(0, "requires_grad", True))
    return receiver


@method("parameters", "register_post_accumulate_grad_hook", "register_hook")
def _hook(run: Interpreter, receiver: Parameters, call: Call) -> Any:
    """A hook that steps an optimizer runs once per backward."""
    hook = call.get(0, "hook")
    if isinstance(hook, Closure) and call.name == "register_post_accumulate_grad_hook":
        hooks = run.things.setdefault("gradient hooks", [])
        if not any(site == call.site for _, site, _ in hooks):
            hooks.append((hook, call.site, receiver.models))
    return Unknown(call.key)


@method("tensor", "requires_grad_")
def _tensor_requires_grad(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    """Data that asks for its own gradient: an attack, a penalty, a saliency map."""
    if run.truth(call.get(0, "requires_grad", True), True):
        return changed(receiver, leaf=True)
    return receiver


@method("tensor", "register_hook", "register_post_accumulate_grad_hook")
def _tensor_hook(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return Unknown(call.key)


@function("_apply_optimizer_in_backward", "register_optim_in_bwd_hooks", "create_optim_in_bwd_wrapper")
def _optimizer_in_backward(run: Interpreter, call: Call) -> Any:
    run.traits.add(f"steps in backward@{call.site}")
    return Unknown(call.key)


def forward(run: Interpreter, model: Any, call: Call, found: Closure | None) -> Any:
    """Call a model: one forward event; what comes out reaches its parameters."""
    models = models_of(model) or frozenset()
    parallel = _parallel_kind(model)
    sync: Any = None
    if parallel:
        on = not silenced(run, models) and all(run.sync_flags.get(m, True) for m in models)
        sync = frozenset((m, on) for m in models)
    if isinstance(model, Thing) and not run.no_grad and (model.state.get("bypasses") or _past_the_wrapper(run, call)):
        parallel, sync = "ddp", frozenset((m, False) for m in models)
        run.sync_site = call.site
    outermost = not run.things.get("inside forward")
    if outermost and not run.no_grad:
        run.emit(Kind.FORWARD, call.site, getattr(model, "number", -1), sync=forward_sync(sync), parallel=parallel)
    target = model
    inner_parallel = parallel
    while isinstance(target, Thing) and isinstance(target.attributes.get("module"), (Thing, Instance)):
        target = target.attributes["module"]
    if found is None and isinstance(target, Instance):
        found = run.method_of(target, "forward") or run.method_of(target, "__call__")
    inputs = tensors_in(call.values)
    result: Any = None
    if found is not None and not run.no_grad:  # what is computed without gradients trains nothing
        run.things["inside forward"] = True
        try:
            result = run.call_closure(found, call.args, call.kwargs, call.site)
        finally:
            if outermost:
                run.things["inside forward"] = False
    if not _has_tensor(result):
        # a mask that is one of the model's inputs (where to paint) selects no targets of its loss
        shown = [*call.args, *(v for k, v in call.kwargs.items() if "mask" not in k or k in ("attention_mask", "loss_mask"))]
        result = tensors.joined(tensors_in(shown) or inputs, "output", f"{getattr(model, 'name', 'model')}()")
        if not inputs:
            result.batch = run.current_batch()
        result.local = True
        if not outermost:
            # a layer inside the model: what was masked on its way in selects none of the targets of its output
            result.basis, result.varies = "fixed", False
        result.padded = call.site if _padded_targets(run, target, call) else -1
        items = call.kwargs.get("num_items_in_batch")
        if isinstance(items, Quantity):
            result.count = items  # the model divides its summed loss by this count
        elif call.name in run.outputs:
            result = _counted(run, result, run.outputs[call.name], call.site)
    graph = not run.no_grad
    frozen = all(run.things.get(f"frozen {m}") for m in models) if models else False
    reached = frozenset() if frozen else frozenset(m for m in models if not run.things.get(f"frozen {m}"))
    from_inputs = [t for t in inputs if t.graph]
    flows = bool(from_inputs) and graph
    constructor = (target.state.get("constructor") if isinstance(target, Thing) else target.cls.name if isinstance(target, Instance) else "") or ""

    def attach(value: Any) -> Any:
        if isinstance(value, Tensor):
            carried = joined(list(inputs), "output", "")
            known = carried.models if flows else frozenset()
            all_models = None if known is None else (reached | known)
            out = changed(
                value, graph=graph and (bool(reached) or flows or not models), models=all_models,
                sync=_joint_sync(sync, carried.sync if flows else value.sync),
                parallel=inner_parallel or value.parallel or carried.parallel,
            )  # fmt: skip
            if value.form == "data":
                out = changed(out, form="output")
            out.cut = out.cut | carried.cut | (frozenset() if graph else models)
            out.role = f"model:{constructor}"
            return out
        if isinstance(value, (list, tuple)):
            return type(value)(attach(v) for v in value)
        if isinstance(value, dict):
            return {k: attach(v) for k, v in value.items()}
        return value

    return attach(result)


def _padded_targets(run: Interpreter, model: Any, call: Call) -> bool:
    """The script shows that what this model predicts is padded: a mask of it, or sequences that are filled up by hand."""
    positional = [(last_name(v.key), v) for v in call.args if isinstance(v, Tensor)]
    if evidence.masks_its_targets([*positional, *call.kwargs.items()]):
        return True
    constructor = model.state.get("constructor") if isinstance(model, Thing) else ""
    writes_text = evidence.writes_text(constructor or "") or call.name in run.perplexed
    return "shows padding" in run.traits and writes_text and not any(name.endswith("labels") for name in call.kwargs)


def _counted(run: Interpreter, output: Tensor, outputs: evidence.Outputs, site: int) -> tuple[Any, ...]:
    """The outputs of a model that returns its loss as a mean, as a sum and with the count that lies between the two."""
    part = Part(output.batch, "valid", Quantity.of(1), varies=True)
    items: list[Any] = [changed(output, padded=site) for _ in range(outputs.number)]
    items[outputs.summed] = changed(output, form="scalar", parts=(part,), basis="valid", varies=True)
    items[outputs.count] = run.count(output.batch, "valid").tagged("count", "single")
    return tuple(items)


def _joint_sync(one: Any, two: Any) -> Any:
    return (one or frozenset()) | (two or frozenset()) or None


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    if isinstance(value, (list, tuple)):
        return any(_has_tensor(v) for v in value)
    if isinstance(value, dict):
        return any(_has_tensor(v) for v in value.values())
    return False


def _past_the_wrapper(run: Interpreter, call: Call) -> bool:
    """``model.module(x)`` of a model that the script wrapped for several ranks: its own forward decides what is reduced."""
    func = call.node.func
    if not isinstance(func, ir.Attr) or func.name != "module" or call.frame is None:
        return False
    owner = run.eval(func.value, call.frame)
    return isinstance(owner, Thing) and owner.kind == "data_parallel" and not owner.guessed and not owner.state.get("alone")


def _parallel_kind(model: Any) -> str:
    if isinstance(model, Thing):
        if model.state.get("sharded"):
            return "fsdp2"
        return {"data_parallel": "ddp", "sharded": "fsdp"}.get(model.kind, model.state.get("parallel", ""))
    if isinstance(model, Instance):
        return "fsdp2" if model.state.get("sharded") else model.state.get("parallel", "")
    return ""


TABLE.roles["forward"] = forward


def _call_model(run: Interpreter, thing: Thing, call: Call) -> Any:
    return forward(run, thing, call, None)


for _kind in MODELS:
    TABLE.calls[_kind] = _call_model


def _model_loss(run: Interpreter, value: Tensor) -> Tensor:
    """The loss that a model returns: a mean; over valid targets where it is a language model fed with padding."""
    if value.count is not None:
        part = Part(value.batch, "valid", Quantity.of(1) / value.count, varies=True)
        return changed(value, form="scalar", parts=(part,), basis="valid", varies=True, count=None)
    if any(word in value.role for word in LANGUAGE_MODELS) and "padding" in run.traits:
        return changed(value, basis="valid" if "Token" not in value.role and "Masked" not in value.role else "unshifted", varies=True)
    return value


TABLE.roles["model_loss"] = _model_loss


# losses


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


def _loss_function(run: Interpreter, call: Call) -> Any:
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
TABLE.methods["loss", "*"] = _thing_other
TABLE.methods["loss", "forward"] = _call_loss


# clipping and rescaling


def _measures_only(run: Interpreter, call: Call, position: int = 1) -> bool:
    """Clipping to an infinite (or absurdly large) norm only measures it."""
    limit = call.get(position, "max_norm")
    if isinstance(limit, (int, Fraction)) and not isinstance(limit, bool):
        return limit >= 10**5
    text = getattr(limit, "origin", getattr(limit, "key", ""))
    return last_name(str(text)) == "inf" or "float('inf')" in str(text) or "float(inf)" in str(text)


def clip(run: Interpreter, call: Call, through: str = "torch") -> Any:
    limit = call.get(1, "max_norm")
    if "loss scale" in getattr(limit, "tags", ()):
        through = "scaled limit"
    source = call.get(0, "parameters")
    models = source.models if isinstance(source, (Parameters, Gradient)) else models_of(source)
    run.emit(Kind.CLIP, call.site, models=models, measures_only=_measures_only(run, call), through=through)
    return Unknown(call.key)


# collectives


@function("all_reduce", "all_reduce_coalesced", "reduce_tensor", "all_reduce_sum", "all_reduce_mean")
def _all_reduce(run: Interpreter, call: Call) -> Any:
    """A number is summed (or averaged) over ranks in place; a gradient is reduced by hand."""
    value = call.get(0, "tensor")
    how = call.get(1, "op")
    average = "AVG" in str(getattr(how, "origin", getattr(how, "key", how))) or "mean" in call.name
    run.distributed = True
    if isinstance(value, (Gradient, Parameters)):
        run.emit(Kind.REDUCE, call.site, average=average)
        return None
    reduced = _reduced(value, average)
    node = call.node.args[0].value if call.node.args else None
    if isinstance(node, (ir.Name, ir.Attr, ir.Subscript)):
        run.assign(node, reduced, call.frame, call.site)
    return reduced


def _reduced(value: Any, average: bool = False) -> Any:
    if isinstance(value, Quantity):
        return value.reduced(average)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if average else value * RANKS
    if isinstance(value, Tensor):
        return changed(value, local=False)
    if isinstance(value, list):
        return [_reduced(v, average) for v in value]
    if isinstance(value, Unknown):
        return Unknown(f"reduced({value.key})", -1, False, value.tags)
    return value


@function("broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "all_gather_into_tensor", "reduce_scatter_tensor")
def _broadcast(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "tensor")
    node = call.node.args[0].value if call.node.args else None
    run.distributed = True
    if isinstance(value, (Tensor, Unknown)) and isinstance(node, (ir.Name, ir.Attr)):
        made = changed(value, local=False) if isinstance(value, Tensor) else Unknown(value.key, -1, False, value.tags)
        run.assign(node, made, call.frame, call.site)
    return value


@function("get_world_size", "get_data_parallel_world_size", "device_count_total", "xrt_world_size")
def _world(run: Interpreter, call: Call) -> Any:
    run.distributed = True
    return Quantity.of(RANKS, "world")


@function("get_rank", "get_local_rank", "get_global_rank")
def _rank(run: Interpreter, call: Call) -> Any:
    return rank_number()


@function("is_main_process", "is_primary", "is_master", "is_rank_zero", "is_rank_0", "is_global_primary", "is_main", "main_process")
def _main_rank(run: Interpreter, call: Call) -> Any:
    return on_main_rank()


@function("init_process_group", "init_distributed_mode", "init_distributed", "setup_distributed")
def _init_group(run: Interpreter, call: Call) -> Any:
    run.distributed = True
    return None


# loaders


def make_loader(run: Interpreter, call: Call) -> Thing:
    made = run.thing("loader", call.name, call.site)
    note_batch_size(run, call)
    rows = known_rows(call.get(0, "dataset"))
    size = call.get(1, "batch_size", 1)
    if rows is not None and isinstance(size, int) and size > 0:
        batches = rows // size if call.kwargs.get("drop_last") is True else -(-rows // size)
        made.state["batches"] = batches
        run.traits.add(f"batches {batches}")
    if any(isinstance(v, Unknown) and "whole" in v.tags for v in call.values):
        run.traits.add("whole windows")
    collate = call.kwargs.get("collate_fn")
    if isinstance(collate, Closure):
        _read_collate(run, collate)
    return made


def note_batch_size(run: Interpreter, call: Call) -> None:
    """What a loader is built with as its batch size, by keyword or by the only argument of that name."""
    size = call.kwargs.get("batch_size")
    if size is None:
        named = [v for v in call.args if isinstance(v, (Unknown, Quantity)) and "batch_size" in _named_by(v)]
        size = named[0] if len(named) == 1 else None
    number = run.numeric(size) if isinstance(size, (Unknown, Quantity)) else None
    if number is not None:
        run.know_batch_size(number, call.site)


TABLE.roles["batch size"] = note_batch_size


def _named_by(value: Unknown | Quantity) -> str:
    if isinstance(value, Unknown):
        return value.last
    return last_name(value.symbols[0][0]) if value.symbols else ""


def known_rows(value: Any) -> int | None:
    """The number of rows of data that the script itself makes (``torch.randn(60, 12)``)."""
    for tag in getattr(value, "tags", ()):
        if tag.startswith("rows="):
            return int(tag[5:])
    if isinstance(value, Stream) and value.literal is False and value.length is not None and not value.loader and value.thing is not None:
        return value.length
    return len(value) if isinstance(value, list) and len(value) > 4 else None


@function("randn", "rand", "ones", "empty", "randint", "normal", "arange", "TensorDataset", "zeros_rows")
def _made_data(run: Interpreter, call: Call) -> Any:
    if call.name == "TensorDataset":
        rows = known_rows(call.get(0, "tensors"))
    else:
        sizes = [a for a in call.args if isinstance(a, (int, tuple, list)) and not isinstance(a, bool)]
        if call.name == "randint":
            sizes = [a for a in sizes if isinstance(a, (tuple, list))]
        first = sizes[0] if sizes else None
        rows = first[0] if isinstance(first, (tuple, list)) and first else first
    tags = frozenset({f"rows={rows}"}) if isinstance(rows, int) and not isinstance(rows, bool) and rows > 4 else frozenset()
    return Unknown(call.key, tags=tags)


def _read_collate(run: Interpreter, collate: Closure) -> None:
    names = collate.function.calls
    if "pad_sequence" in names or "pad" in names:
        run.traits.add("padding")


def _iterate_loader(run: Interpreter, thing: Thing) -> Stream:
    return Stream(lambda i: run.batch_data(thing.name), run.length, loader=True, thing=thing, position=0)


TABLE.roles["iterate loader"] = _iterate_loader


@method("loader", "next_batch", "get_batch", "next", "__next__", "get_next", "sample", "fetch")
def _loader_next(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return run.batch_data(receiver.name)


@method("loader", "*")
def _loader_other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    if call.name == "__len__":
        return Quantity.of(run.length, "len")
    return Unknown(call.key)


@function("skip_first_batches")
def _skip_batches(run: Interpreter, call: Call) -> Any:
    number = run.numeric(call.get(1, "num_batches", 0))
    skipped = next((t[8:] for t in (number.tags if number is not None else ()) if t.startswith("resumed:")), None)
    if skipped is not None:
        run.emit(Kind.RESUME, call.site, key=skipped, into="", use="skip")
    return call.get(0, "dataloader")


@function("pad_sequence")
def _pad_sequence(run: Interpreter, call: Call) -> Any:
    run.traits.add("padding")
    if call.kwargs.get("padding_value") == -100:
        run.traits.add("ignored labels")
    return Unknown(call.key)


# the rest


_OUTPUTS = ("Output", "Outputs", "OutputWithPast", "OutputWithPooling", "OutputWithCrossAttentions", "OutputWithNoAttention")


def _named_call(run: Interpreter, origin: str, call: Call) -> Any:
    """Constructors and groups of names; anything else is unseen."""
    name = call.name
    vocabulary = run.vocabulary
    if name in vocabulary.clip or vocabulary.matches("clip_names", name) and call.values:
        return clip(run, call)
    if name in vocabulary.loss_functions and call.args:
        return _loss_function(run, call)
    if name in vocabulary.loss_modules:
        return make_loss_module(run, call)
    if vocabulary.matches("average_classes", name) and any(isinstance(v, Parameters) or models_of(v) for v in call.values):
        return run.thing("average", name, call.site)
    kind = vocabulary.kind_of_constructor(name)
    if kind == "optimizer":
        return make_optimizer(run, call)
    if kind == "scheduler":
        return make_scheduler(run, call)
    if kind in ("scaler", "callable_scaler"):
        made = run.thing(kind, name, call.site)
        if call.kwargs.get("enabled", True) is not True:
            run.subjects[made.number].traits = frozenset({"may be disabled"})
        return made
    if kind in ("data_parallel", "sharded"):
        return wrap(run, call, kind)
    if kind == "loader":
        return make_loader(run, call)
    if vocabulary.is_window(name):
        return run.unknown(name, call.site)
    if vocabulary.is_world(name):
        return Quantity.of(RANKS, "world")
    if name == "from_pretrained" or name == "from_config":
        maker = origin.split(".")[-2] if "." in origin else name
        if "Token" not in maker.split("For")[0] and not any(w in maker for w in ("Tokenizer", "Config", "Processor", "Scheduler", "Extractor")):
            made = make_model(run, call)
            made.state["constructor"] = maker
            return made
        return Unknown(call.key)
    if kind == "model" and not tensors_in(call.values):
        return make_model(run, call)
    if origin.startswith(("torch.nn.", "nn.")) and name[:1].isupper() and "functional" not in origin:
        if name in ("Parameter", "ParameterList", "init"):
            return Unknown(call.key)
        return make_model(run, call)
    if name[:1].isupper() and name.endswith(_OUTPUTS) and not call.args and "loss" in call.kwargs:
        return dict(call.kwargs)  # CausalLMOutputWithPast(loss=…, logits=…): what a model of transformers returns
    if name.startswith("DataCollator"):
        run.traits.add("padding")
        if name in ("DataCollatorForSeq2Seq", "DataCollatorForLanguageModeling", "DataCollatorForCompletionOnlyLM", "DataCollatorForTokenClassification"):
            run.traits.add("ignored labels")
        return Unknown(call.key)
    if vocabulary.matches("rescale", name):
        number = next((n for n in (run.numeric(v) for v in call.values) if n is not None), None)
        run.emit(Kind.RESCALE, call.site, factor=number, models=None)
        return Unknown(call.key)
    if vocabulary.matches("reduce", name):
        run.distributed = True
        run.emit(Kind.REDUCE, call.site, average=True)
        return Unknown(call.key)
    if _is_average(run, origin, name):
        run.emit(Kind.AVERAGE, call.site, name=name)
        return Unknown(call.key)
    if name in ("save", "save_state") or vocabulary.matches("checkpoint", name):
        return checkpoint(run, call, name, origin)
    return _unseen(run, call, None)


TABLE.roles["named_call"] = _named_call


def _is_average(run: Interpreter, origin: str, name: str) -> bool:
    base = origin.rpartition(".")[0]
    if run.vocabulary.matches("average", name):
        return True
    return name in ("update", "step", "update_parameters", "update_average", "__call__") and bool(base) and run.vocabulary.matches("average_objects", last_name(base))


_WHOLE_STATE = ("save_state", "save_checkpoint_full")


def checkpoint(run: Interpreter, call: Call, name: str, origin: str) -> Any:
    """Something is saved: which states and counters go in, as far as the call shows."""
    holds: set[int] = set()
    kinds: set[str] = set()
    keys: dict[str, Any] = {}
    opaque = False

    def look(value: Any, key: str = "") -> None:
        nonlocal opaque
        if isinstance(value, Unknown):
            states = [t for t in value.tags if t.startswith("state:")]
            holds.update(int(t[6:]) for t in states)
            kinds.update(t[9:] for t in value.tags if t.startswith("state of "))
            if key:
                keys[key] = "state" if states else "?"
        elif isinstance(value, dict):
            for inner_key, inner in value.items():
                look(inner, str(inner_key))
        elif isinstance(value, (Thing, Instance)):
            holds.add(value.number)
            kinds.add(value.kind if isinstance(value, Thing) else value.role or "instance")
            opaque |= name != "save"
        elif isinstance(value, Quantity):
            keys[key] = sorted(value.tags)
        elif isinstance(value, (Gradient, Parameters)):
            kinds.add("gradients")
        elif isinstance(value, (list, tuple)) and value[:1] != ("module",):
            for inner in value:
                look(inner, key)
        elif key:
            keys[key] = "value"

    for value in call.args:
        look(value)
    for key, value in call.kwargs.items():
        look(value, key)
    run.emit(
        Kind.CHECKPOINT, call.site, resumable="optimizer" in kinds or name in _WHOLE_STATE, holds=frozenset(holds), kinds=frozenset(kinds),
        keys=keys, opaque=opaque or name in _WHOLE_STATE or name != "save", name=name,
    )  # fmt: skip
    return Unknown(call.key)


@function("torch.load", "load_checkpoint", "torch.hub.load_state_dict_from_url")
def _load(run: Interpreter, call: Call) -> Any:
    run.traits.add("resumes")
    return Unknown("checkpoint", tags=frozenset({"resume"}))


def _unseen(run: Interpreter, call: Call, receiver: Any) -> Any:
    """A call that nobody explains. Callbacks given to a launcher run; tensors pass through as one output."""
    values = [*([receiver] if receiver is not None else []), *call.values]
    closures = [v for v in values if isinstance(v, (Closure, Partial)) and not (isinstance(v, Closure) and v.function.name == "<lambda>")]
    if closures and (call.name in _LAUNCHERS or run.vocabulary.kind_of_name(call.name)):
        rest = call.get(1, "args")
        return run.call_value(closures[0], type(call)(call.site, call.name, _launch_arguments(run, closures[0], call, rest), {}, call.node, call.key, call.frame))
    found = tensors_in(values)
    if found:
        graph = [t for t in found if t.graph]
        form = "output"
        if not graph and all(t.form in ("data", "mask") for t in found):
            if "loss" in call.name.lower() or call.name in ("criterion", "forward", "objective"):
                return changed(tensors.joined(found, "output", call.key), graph=not run.no_grad, models=None)
            if _COUNTS.search(call.name):
                return Unknown(call.key, found[0].batch, True, frozenset({"counted"}))
            return changed(found[0], key=call.key, role=found[0].role)
        out = tensors.joined(found, form, call.key)
        if graph and graph[0].form in ("elements", "scalar") and len(found) == 1:
            out = changed(graph[0], key=call.key)
            if call.name not in _ELEMENTWISE and out.form == "scalar":
                out.parts = tuple(dataclasses.replace(p, weight=None, reason=f"passes through {call.name}()") for p in out.parts)
        if run.things.get("inside forward") and not _LOSS_NAME.search(call.name) and all(t.form in ("output", "data", "mask") for t in found):
            out.basis, out.varies = "fixed", False  # a layer, as in `forward`
        else:
            out.basis = next((t.basis for t in found if t.basis != "fixed"), out.basis)
            out.varies |= out.basis != "fixed"
        told = any(isinstance(v, Quantity) and "K" in v.tags for v in call.values) or _NORMALISES.search(call.name)
        if graph and told:
            # whoever is given K, or says that it normalises, may well divide
            out.scale = None
            out.parts = tuple(dataclasses.replace(p, weight=None, reason=f"passes through {call.name}()") for p in out.parts)
        elif not _LOSS_NAME.search(call.name):
            out.role = f"unseen {call.name}"
        return out
    if any(isinstance(v, Thing) and v.kind == "optimizer" for v in values) and any(isinstance(v, (Thing, Instance)) for v in values if v is not receiver):
        if call.name not in _INNOCENT and not call.name.startswith(("save", "load", "get_", "print", "log", "count", "resume", "restore", "set_", "init")):
            run.gap(f"{call.name}() receives the optimizer and is not followed", call.site)
    if call.name[:1].isupper():
        kind = run.vocabulary.kind_of_constructor(call.name)
        if kind:
            return run.thing(kind, call.name, call.site)
    batch = max((v.batch for v in values if isinstance(v, (Unknown, Test))), default=-1)
    local = any(v.local for v in values if isinstance(v, (Unknown, Test)))
    tags = frozenset()
    for value in values:
        if isinstance(value, Unknown):
            tags |= value.tags & {"resume", "rank"}
        elif isinstance(value, Quantity):
            tags |= value.tags & {"len", "K"}
            if call.name.endswith("Sampler") and "K" in value.tags:
                tags |= {"whole"}  # num_samples=micro * K * updates
        elif isinstance(value, Stream) and call.name in ("Subset", "select", "take", "narrow") and "whole windows" in run.traits:
            tags |= {"whole"}
    return run.unknown(call.key, call.site, batch=batch, local=local, tags=frozenset(tags)) if call.node is not None else Unknown(call.key)


# get_num_tokens_in_batch(batch) is a number that the batch decides, no data
_COUNTS = re.compile(r"(?i)^_?(get_|compute_|calc_|calculate_)?(num|count|batch_size)(_|$)")
_NORMALISES = re.compile(r"(?i)normali[sz]e|scale|average|reduce|reweight")
_LOSS_NAME = re.compile(r"(?i)loss|crit|objective|^forward$")
_LAUNCHERS = frozenset("spawn launch notebook_launcher run main fit Process elastic_launch start_processes train execute Fire fire parallel run_exp hydra_main".split())
_ELEMENTWISE = frozenset("exp log sqrt relu sigmoid softplus tanh abs pow square neg log_softmax softmax".split())
_INNOCENT = frozenset("print isinstance len type id append prepare initialize setup clip_grad_norm_ SummaryWriter watch".split())


def _launch_arguments(run: Interpreter, callee: Any, call: Call, rest: Any) -> list[Any]:
    given = list(rest) if isinstance(rest, (list, tuple)) and rest[:1] != ("module",) else []
    if call.name in ("spawn", "start_processes"):
        return [rank_number(), *given]
    return given


TABLE.roles["unseen"] = _unseen


@method("tensor", "__call__")
def _call_tensor(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return run.unknown_call(call)


@method("unknown", "to", "cuda", "cpu", "float", "half", "bfloat16", "detach", "clone", "contiguous", "view", "reshape", "item", "eval", "train", "long", "double", "type",
        "mean", "sum", "squeeze", "unsqueeze", "flatten", "abs", "max", "min", "clamp", "clamp_", "log", "exp", "sqrt", "numpy", "tolist", "any", "all", "wait")
def _unknown_same(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    kind = run.vocabulary.kind_of_name(receiver.last)
    if call.name in ("train", "eval", "to", "cuda", "half", "float") and kind == "model":
        return run.known_as(receiver, run.registry.kind_by_use(run, receiver) or "model", call.site)
    return receiver


@method("unknown", "mul_", "div_", "mul", "div", "add_", "sub_", "add", "sub", "true_divide")
def _unknown_arithmetic(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    """Arithmetic on something unseen: the factors on it are still factors."""
    op = {"mul": "*", "div": "/", "add": "+", "sub": "-", "true_divide": "/"}[call.name.rstrip("_")]
    value = run.binary(op, receiver, call.get(0, "other", 1), call.site, call.key)
    if call.name.endswith("_") and isinstance(call.node.func, ir.Attr) and isinstance(call.node.func.value, (ir.Name, ir.Attr)):
        run.assign(call.node.func.value, value, call.frame, call.site)
    return value


@method("unknown", "requires_grad_")
def _unknown_freeze(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    return receiver


@method("unknown", "step")
def _unknown_step(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    """``x.step()`` where neither name nor use tells what ``x`` is."""
    if _is_average(run, f"{receiver.key}.step", "step"):
        run.emit(Kind.AVERAGE, call.site, name=receiver.key)
        return None
    if tensors_in(call.values):
        return joined(call.values, "output", call.key)
    return run.registry.unseen(run, call, receiver)


@method("unknown", "update", "add_scalar", "log", "write", "append", "set_postfix", "info")
def _unknown_update(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    if call.name == "update" and _is_average(run, f"{receiver.key}.update", "update"):
        run.emit(Kind.AVERAGE, call.site, name=receiver.key)
    return None


def _parameter(run: Interpreter, name: str, parameter: ir.Parameter | None, key: str) -> Any:
    """The value of a parameter that nobody passes: by its annotation, then by its name."""
    note = parameter.annotation if parameter is not None else ""
    optional = "None" in note or "Optional" in note or parameter is not None and isinstance(parameter.default, ir.Const) and parameter.default.value is None
    kind = ""
    for word, meaning in _ANNOTATIONS:
        if word in note:
            kind = meaning
            break
    if not kind and not note:
        kind = ""
    by_name = run.vocabulary.kind_of_name(name)
    if not kind and by_name in ("accelerator", "fabric"):
        kind = by_name
    if kind in ("list", "str"):
        return Unknown(key)
    held = run.things.get(key)
    if isinstance(held, Thing):
        return held
    if kind or (optional and by_name in ("optimizer", "scheduler", "scaler")):
        value = run.known_as(Unknown(key), kind or by_name, -1)
        if optional:
            value.maybe_none = f"{key} is None"
        return value
    if note and note.split("[")[0].split(".")[-1] in ("Tensor", "Batch"):
        return run.batch_data(name)
    if note.split(".")[-1] in (run.module.classes or {}) and run.module.classes[note.split(".")[-1]].methods:
        cls = run.module.classes[note.split(".")[-1]]
        if not run.registry.role_of_class(run, cls) in ("dataset", "record"):
            made = Instance(cls, run.number(), site=cls.site, role=run.registry.role_of_class(run, cls))
            run.subjects[made.number] = Subject(made.number, made.role or "instance", cls.name, cls.site)
            return made
    return run.unknown(key, -1)


_ANNOTATIONS = (
    ("Optimizer", "optimizer"), ("GradScaler", "scaler"), ("LRScheduler", "scheduler"), ("LambdaLR", "scheduler"), ("DataLoader", "loader"),
    ("DistributedDataParallel", "data_parallel"), ("DDP", "data_parallel"), ("FullyShardedDataParallel", "sharded"), ("FSDP", "sharded"),
    ("Accelerator", "accelerator"), ("Fabric", "fabric"), ("nn.Module", "model"),
)  # fmt: skip

TABLE.roles["parameter"] = _parameter


def _instantiate_data(run: Interpreter, value: ClassValue, call: Call) -> Any:
    module = value.cls.module
    if module is not None and "ignored labels" not in run.traits and evidence.class_ignores_labels(module.source, value.cls.name):
        run.traits.add("ignored labels")
    return Unknown(f"{value.cls.name}()")


def _instantiate_optimizer(run: Interpreter, value: ClassValue, call: Call) -> Any:
    call.name = value.cls.name
    return make_optimizer(run, call)


def _instantiate_scheduler(run: Interpreter, value: ClassValue, call: Call) -> Any:
    call.name = value.cls.name
    return make_scheduler(run, call)


def _instantiate_loader(run: Interpreter, value: ClassValue, call: Call) -> Any:
    call.name = value.cls.name
    return make_loader(run, call)


def _instantiate_scaler(run: Interpreter, value: ClassValue, call: Call) -> Any:
    return run.thing("scaler", value.cls.name, call.site)


TABLE.roles["instantiate dataset"] = _instantiate_data
TABLE.roles["instantiate function"] = _instantiate_data
TABLE.roles["instantiate record"] = lambda run, value, call: None
TABLE.roles["instantiate optimizer"] = _instantiate_optimizer
TABLE.roles["instantiate scheduler"] = _instantiate_scheduler
TABLE.roles["instantiate loader"] = _instantiate_loader
TABLE.roles["instantiate scaler"] = _instantiate_scaler


TABLE.attributes["external", "math.inf"] = lambda run, value, site: External("math.inf")
