"""Models and their wrappers: forward passes, synchronisation, gradients that are set by hand."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind, Part
from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static import evidence, tensors
from accumlint.static.frameworks.base import joined, models_of, subject, tensors_in
from accumlint.static.frameworks.tensor_operations import LANGUAGE_MODELS
from accumlint.static.frameworks.torch.backward import forward_sync, silenced
from accumlint.static.frameworks.torch.clipping import measures_only
from accumlint.static.frameworks.torch.table import MODELS, TABLE, function, method
from accumlint.static.values import (
    Closure, Context, Gradient, Instance, Method, Parameters, Partial, Stream, Tensor, Thing, Unknown, changed, last_name,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


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
    run.emit(Kind.CLIP, call.site, models=models_of(receiver), measures_only=measures_only(run, call, 0), through="model")
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
