"""PyTorch Lightning and Fabric.

Facts (lightning 2.6, ``loops/optimization/automatic.py``, ``loops/training_epoch_loop.py``): under automatic optimization the loss
that ``training_step`` returns is divided by ``accumulate_grad_batches``, the step happens on the boundary and on the last
batch of an epoch, schedulers with ``interval: step`` move once per step; ``on_after_backward`` runs on every microbatch,
``on_before_optimizer_step`` on the boundary. Under manual optimization nothing is done for the script.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import RANKS, Quantity
from accumlint.static.frameworks.base import Table, models_of, subject
from accumlint.static.frameworks.torch.backward import backward
from accumlint.static.frameworks.torch.clipping import clip
from accumlint.static.values import MISSING, Closure, Context, Instance, Parameters, Test, Thing, Unknown, on_main_rank, rank_number

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

TABLE = Table()
TABLE.bases = {"LightningModule": "lightning", "LightningDataModule": "dataset", "Callback": "record"}
inherited = partial(TABLE.inherit, "lightning")


@inherited("manual_backward")
def _manual_backward(run: Interpreter, receiver: Instance, call: Call) -> Any:
    backward(run, call.get(0, "loss"), call.site, owner="lightning")
    return None


@inherited("optimizers")
def _optimizers(run: Interpreter, receiver: Instance, call: Call) -> Any:
    made = configured(run, receiver)["optimizers"]
    return made[0] if len(made) == 1 else list(made)


@inherited("lr_schedulers")
def _schedulers(run: Interpreter, receiver: Instance, call: Call) -> Any:
    made = configured(run, receiver)["schedulers"]
    if not made:
        held = run.things.get(f"scheduler of {receiver.number}")
        if held is None:
            held = run.things[f"scheduler of {receiver.number}"] = run.thing("scheduler", "self.lr_schedulers()", call.site)
        return held
    return made[0] if len(made) == 1 else list(made)


@inherited("clip_gradients")
def _clip(run: Interpreter, receiver: Instance, call: Call) -> Any:
    optimizer = call.get(0, "optimizer")
    models = optimizer.models if isinstance(optimizer, Thing) else None
    run.emit(Kind.CLIP, call.site, models=models, measures_only=False, through="framework")
    return None


@inherited("parameters", "named_parameters")
def _parameters(run: Interpreter, receiver: Instance, call: Call) -> Any:
    # the networks inside the module are found one by one while it runs: all of them belong to it
    return Parameters(None)


@inherited("zero_grad")
def _zero_grad(run: Interpreter, receiver: Instance, call: Call) -> Any:
    run.emit(Kind.CLEAR, call.site, -1, models=models_of(receiver), by="model")
    return None


@inherited("toggle_optimizer", "untoggle_optimizer", "toggle_model")
def _toggle(run: Interpreter, receiver: Instance, call: Call) -> Any:
    """The parameters of all other optimizers need no gradient from here on (``lightning/pytorch/core/module.py``)."""
    run.traits.add("toggles optimizers")
    return Context("plain") if call.name == "toggle_model" else None


# with optimizer.toggle_model(sync_grad=…): the same as a context (``lightning/pytorch/core/optimizer.py``)
TABLE.methods["optimizer", "toggle_model"] = _toggle


@inherited("log", "log_dict", "save_hyperparameters", "print", "all_gather", "freeze", "unfreeze", "to", "cuda", "train", "eval")
def _inert(run: Interpreter, receiver: Instance, call: Call) -> Any:
    if call.name in ("to", "cuda", "train", "eval"):
        return receiver
    return None


TABLE.attributes["lightning", "trainer"] = lambda run, value, site: _trainer(run, value)


def _trainer(run: Interpreter, value: Any) -> Thing:
    held = run.things.get("lightning trainer")
    if held is None:
        held = run.things["lightning trainer"] = run.thing("lightning_trainer", "trainer", -1)
    return held


TABLE.attributes["lightning_trainer", "estimated_stepping_batches"] = lambda run, thing, site: Quantity.of(2 * -(-run.length // 3), "updates")
TABLE.attributes["lightning_trainer", "num_training_batches"] = lambda run, thing, site: Quantity.of(run.length, "len")
TABLE.attributes["lightning_trainer", "accumulate_grad_batches"] = lambda run, thing, site: run.unknown("trainer.accumulate_grad_batches", site)
TABLE.attributes["lightning_trainer", "max_epochs"] = lambda run, thing, site: Quantity.of(2, "epochs")
TABLE.attributes["lightning_trainer", "world_size"] = lambda run, thing, site: Quantity.of(RANKS, "world")
TABLE.attributes["lightning_trainer", "global_step"] = lambda run, thing, site: _global_step(run)
TABLE.attributes["lightning", "global_step"] = lambda run, thing, site: _global_step(run)
TABLE.attributes["lightning", "automatic_optimization"] = lambda run, value, site: True
TABLE.attributes["lightning_trainer", "is_last_batch"] = lambda run, thing, site: _is_last(run)
TABLE.attributes["lightning_trainer", "train_dataloader"] = lambda run, thing, site: run.known_as(Unknown("trainer.train_dataloader"), "loader", site)
TABLE.attributes["lightning_trainer", "is_global_zero"] = lambda run, thing, site: on_main_rank()
for _name in ("local_rank", "global_rank"):
    TABLE.attributes["lightning_trainer", _name] = lambda run, thing, site: rank_number()
TABLE.methods["lightning_trainer", "*"] = lambda run, receiver, call: Unknown(call.key)


def _global_step(run: Interpreter) -> Quantity:
    """Lightning counts optimizer steps (of all optimizers)."""
    steps = sum(1 for event in run.events if event.kind is Kind.STEP)
    return Quantity.of(steps, "counter:global_step")


def _is_last(run: Interpreter) -> Any:
    if run.scouting:
        return Test("atom", (), "trainer.is_last_batch")
    return run.things.get("last batch", False)


def configured(run: Interpreter, instance: Instance) -> dict[str, Any]:
    """What ``configure_optimizers`` makes, once per module."""
    key = f"configured {instance.number}"
    held = run.things.get(key)
    if held is not None:
        return held
    optimizers: list[Thing] = []
    schedulers: list[Thing] = []
    intervals: dict[int, str] = {}
    method = run.method_of(instance, "configure_optimizers")
    run.things[key] = {"optimizers": optimizers, "schedulers": schedulers, "intervals": intervals}
    value = run.call_closure(method, [], {}, method.function.site) if method is not None else None

    def look(item: Any, interval: str = "epoch") -> None:
        if isinstance(item, Thing) and item.kind == "optimizer":
            optimizers.append(item)
        elif isinstance(item, Thing) and item.kind == "scheduler":
            schedulers.append(item)
            intervals[item.number] = interval
        elif isinstance(item, dict):
            inner = item.get("interval", interval)
            for name, held_item in item.items():
                if name in ("optimizer", "lr_scheduler", "scheduler"):
                    look(held_item, inner if isinstance(inner, str) else "step")
        elif isinstance(item, (list, tuple)):
            for held_item in item:
                look(held_item, interval)

    look(value)
    if not optimizers:
        made = run.thing("optimizer", "configure_optimizers()", method.function.site if method is not None else instance.site)
        optimizers.append(made)
    for optimizer in optimizers:
        subject(run, optimizer)
    return run.things[key]


def drive(run: Interpreter, instance: Instance, length: int) -> None:
    """What the Trainer does around the hooks of a module: two epochs, windows of K, the tail flushed."""
    hooks = {name: run.method_of(instance, name) for name in ("training_step", "on_train_epoch_start", "on_train_epoch_end", "on_after_backward",
             "on_before_optimizer_step", "on_train_batch_end", "on_train_batch_start", "optimizer_step", "on_before_zero_grad", "optimizer_zero_grad",
             "lr_scheduler_step", "configure_gradient_clipping")}  # fmt: skip
    step = hooks["training_step"]
    if step is None:
        return
    run.traits.add("framework lightning")
    run.distributed = True
    held = configured(run, instance)
    manual = _is_manual(run, instance)
    if manual:
        run.traits.add("manual optimization")
    site = step.function.site
    epochs = 1 if run.scouting else 2
    count = 1 if run.scouting else length
    instance.state["parallel"] = "framework"
    for epoch in range(epochs):
        run.epoch += 1
        run.emit(Kind.EPOCH, site)
        run.emit(Kind.LOOP, site, phase="enter", role="micro")
        _hook(run, hooks["on_train_epoch_start"], [], site)
        for index in range(count):
            run.microbatch += 1
            run.emit(Kind.MICROBATCH, site)
            run.things["last batch"] = index == count - 1
            number = Quantity.of(index, f"index:{site}")
            batch = run.batch_data("batch")
            _hook(run, hooks["on_train_batch_start"], [batch, number], site)
            run.return_site = site
            loss = _hook(run, step, [batch, number, *([Quantity.of(0)] if len(step.function.parameters) > 3 else [])], site)
            if not manual:
                _automatic(run, hooks, held, loss, index, count, site)
            _hook(run, hooks["on_train_batch_end"], [loss, batch, number], site)
        for scheduler in held["schedulers"]:
            if not manual and held["intervals"].get(scheduler.number) == "epoch":
                run.emit(Kind.SCHEDULE, site, scheduler.number, absolute=False, plateau=False, owner="lightning")
        _hook(run, hooks["on_train_epoch_end"], [], site)
        run.emit(Kind.LOOP, site, phase="exit", role="micro", whole=True, infinite=False, broke=False, ended=False, known_length=False, framework=not manual)


def _is_manual(run: Interpreter, instance: Instance) -> bool:
    value = instance.attributes.get("automatic_optimization")
    if value is None:
        found = run._class_attribute(instance.cls, "automatic_optimization")
        value = found if found is not MISSING else True
    return value is False


def _automatic(run: Interpreter, hooks: dict[str, Any], held: dict[str, Any], loss: Any, index: int, count: int, site: int) -> None:
    if isinstance(loss, dict):
        loss = loss.get("loss")
    if loss is None:
        return
    where = run.return_site
    backward(run, loss, where, owner="lightning", divisor=Quantity.of(3, "K", "framework"))
    _hook(run, hooks["on_after_backward"], [], site)
    boundary = run.scouting or (index + 1) % 3 == 0 or index == count - 1
    if not boundary:
        return
    optimizer = held["optimizers"][0]
    _hook(run, hooks["on_before_optimizer_step"], [optimizer], site)
    if hooks["configure_gradient_clipping"] is not None:
        _hook(run, hooks["configure_gradient_clipping"], [optimizer, Unknown("clip_val"), Unknown("clip_algorithm")], site)
    run.emit(Kind.STEP, site, optimizer.number, models=optimizer.models, owner="lightning")
    run.emit(Kind.CLEAR, site, optimizer.number, models=optimizer.models, by="lightning")
    for scheduler in held["schedulers"]:
        if held["intervals"].get(scheduler.number) == "step":
            run.emit(Kind.SCHEDULE, site, scheduler.number, absolute=False, plateau=False, owner="lightning")


def _hook(run: Interpreter, method: Closure | None, args: list[Any], site: int) -> Any:
    if method is None:
        return None
    wanted = [p for p in method.function.parameters if p.kind == ""]
    return run.call_closure(method, args[: max(0, len(wanted) - 1)], {}, site)


TABLE.roles["drive lightning"] = drive


def _configure(run: Interpreter, call: Call) -> Any:
    """``Trainer(accumulate_grad_batches=…)``: K is spoken of in this file."""
    steps = call.kwargs.get("accumulate_grad_batches")
    made = run.thing("lightning_trainer", "trainer", call.site)
    run.things["lightning trainer"] = made
    if isinstance(steps, int) and steps > 1 and run.learned.literal is None:
        run.learned.literal = steps
    if isinstance(steps, (Unknown, Quantity)) or isinstance(steps, int) and steps > 1:
        run.window_names.setdefault("accumulate_grad_batches", call.site)
        run.traits.add("lightning accumulates")
    limit = call.kwargs.get("limit_train_batches")
    if isinstance(limit, Quantity) and ({"floored", "K"} <= limit.tags or limit.integer is not None and limit.integer % 3 == 0 and "K" in limit.tags):
        run.traits.add("whole windows")
    if isinstance(limit, int) and isinstance(steps, int) and steps > 0 and limit % steps == 0:
        run.traits.add("whole windows")
    return made


for _origin in ("pytorch_lightning.Trainer", "lightning.Trainer", "lightning.pytorch.Trainer", "pytorch_lightning.trainer.Trainer", "lightning.pytorch.trainer.Trainer"):
    TABLE.functions[_origin] = _configure


# Fabric


fabric_method = partial(TABLE.method, "fabric")


def _fabric(run: Interpreter, call: Call) -> Any:
    made = run.thing("fabric", "fabric", call.site)
    run.traits.add("framework fabric")
    run.distributed = True
    strategy = call.kwargs.get("strategy")
    made.state["alone"] = call.kwargs.get("devices") in (1, "1") and call.kwargs.get("num_nodes", 1) == 1
    if isinstance(strategy, str) and strategy.startswith("ddp"):
        run.traits.add("fabric ddp")
    made.state["sharded"] = "FSDP" in str(getattr(strategy, "key", strategy)) or "fsdp" in str(strategy)
    return made


TABLE.functions["Fabric"] = _fabric


@fabric_method("setup", "setup_module", "setup_optimizers", "setup_dataloaders")
def _setup(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.distributed = True
    run.traits.add("framework fabric")
    out = []
    for value in call.args:
        if isinstance(value, Unknown):
            kind = run.registry.kind_by_use(run, value) or ("model" if call.name in ("setup", "setup_module") and not out else "")
            value = run.known_as(value, kind, call.site) if kind else value
        if isinstance(value, Thing) and value.kind == "model" or isinstance(value, Instance) and value.role in ("model", "lightning"):
            made = run.thing("sharded" if receiver.state.get("sharded") else "data_parallel", getattr(value, "name", "model"), call.site)
            made.models = models_of(value)
            made.attributes["module"] = value
            made.state["fabric"] = receiver
            made.state["alone"] = receiver.state.get("alone", False)
            subject(run, made)
            value = made
        out.append(value)
    return out[0] if len(out) == 1 else tuple(out) if out else Unknown(call.key)


@fabric_method("backward")
def _fabric_backward(run: Interpreter, receiver: Thing, call: Call) -> Any:
    backward(run, call.get(0, "tensor"), call.site, owner="fabric")
    return None


@fabric_method("no_backward_sync")
def _no_backward_sync(run: Interpreter, receiver: Thing, call: Call) -> Any:
    enabled = call.get(1, "enabled", True)
    run.traits.add("no_sync")
    run.distributed = True
    if run.scouting:
        return Context("plain", site=call.site)
    if not run.truth(enabled):
        return Context("plain", site=call.site)
    return Context("no_sync", (models_of(call.get(0, "module")), tuple(run.stack)), call.site)


@fabric_method("clip_gradients")
def _fabric_clip(run: Interpreter, receiver: Thing, call: Call) -> Any:
    model = call.get(0, "module")
    run.emit(Kind.CLIP, call.site, models=models_of(model), measures_only=False, through="framework")
    return Unknown(call.key)


@fabric_method("all_reduce")
def _fabric_reduce(run: Interpreter, receiver: Thing, call: Call) -> Any:
    value = call.get(0, "data")
    average = call.kwargs.get("reduce_op", "mean") == "mean"
    if isinstance(value, Quantity):
        return value.reduced(average)
    return value


@fabric_method("launch")
def _launch(run: Interpreter, receiver: Thing, call: Call) -> Any:
    target = call.get(0, "function")
    if isinstance(target, Closure):
        return run.call_closure(target, [receiver, *call.args[1:]], call.kwargs, call.site)
    return None


@fabric_method("autocast", "init_module", "init_tensor", "rank_zero_first", "sharded_model")
def _fabric_context(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return Context("plain", site=call.site)


@fabric_method("save")
def _fabric_save(run: Interpreter, receiver: Thing, call: Call) -> Any:
    from accumlint.static.frameworks.torch.unseen import checkpoint

    return checkpoint(run, call, "save_fabric", "fabric.save")


@fabric_method("*")
def _fabric_other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    if call.name in run.vocabulary.clip:
        return clip(run, call, "framework")
    return Unknown(call.key)


TABLE.attributes["fabric", "world_size"] = lambda run, thing, site: Quantity.of(RANKS, "world")
TABLE.attributes["fabric", "is_global_zero"] = lambda run, thing, site: on_main_rank()
for _name in ("global_rank", "local_rank", "node_rank"):
    TABLE.attributes["fabric", _name] = lambda run, thing, site: rank_number()
TABLE.attributes["fabric", "device"] = lambda run, thing, site: Unknown("device")

