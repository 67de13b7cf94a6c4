"""Hugging Face Accelerate: the window belongs to ``accumulate()``, the division to ``backward``.

Facts (accelerate 1.14, ``src/accelerate/accelerator.py``, ``optimizer.py``, ``scheduler.py``): ``accumulate`` advances the
counter on entry and syncs on the last batch of the active prepared loader; ``backward`` always divides by the
configured steps; prepared optimizers and schedulers move only while ``sync_gradients`` is true, the scheduler
``num_processes`` times; ``sync_gradients`` stays true if ``accumulate`` is never entered.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import RANKS, Quantity
from accumlint.static import tensors
from accumlint.static.frameworks.base import Table, models_of, subject
from accumlint.static.frameworks.torch.backward import backward
from accumlint.static.frameworks.torch.clipping import clip
from accumlint.static.frameworks.torch.unseen import checkpoint
from accumlint.static.values import Context, Instance, Stream, Tensor, Test, Thing, Unknown, changed, on_main_rank, rank_number

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

TABLE = Table()
function = TABLE.function
method = partial(TABLE.method, "accelerator")


@function("Accelerator")
def _accelerator(run: Interpreter, call: Call) -> Any:
    made = run.thing("accelerator", "accelerator", call.site)
    steps = call.kwargs.get("gradient_accumulation_steps")
    plugin = call.kwargs.get("gradient_accumulation_plugin")
    if steps is None and plugin is not None:
        steps = plugin.state.get("num_steps") if isinstance(plugin, Thing) else Quantity.of(3, "K")
    setup(run, made, steps)
    made.state["carries"] = isinstance(plugin, Thing) and plugin.state.get("carries", False)
    if "deepspeed_plugin" in call.kwargs or "deepspeed_plugins" in call.kwargs:
        made.state["deepspeed"] = True
        run.traits.add("under deepspeed")
    if call.kwargs.get("step_scheduler_with_optimizer") is False:
        made.state["free scheduler"] = True
    made.state["split_batches"] = call.kwargs.get("split_batches") is True
    return made


def setup(run: Interpreter, made: Thing, steps: Any) -> None:
    """The state of a fresh Accelerator: K, the counter, whether gradients sync."""
    run.traits.add("framework accelerate")
    run.distributed = True
    made.state.update(steps=_steps(run, steps), step=0, sync=True, entered=[])


def _steps(run: Interpreter, steps: Any) -> Quantity:
    if steps is None or steps == 1 and isinstance(steps, int):
        return Quantity.of(1)
    number = run.numeric(steps)
    if number is None or number.integer is None or "K" not in number.tags:
        # whatever its name, it is what the framework accumulates
        if isinstance(steps, Unknown):
            run.learned.windows.add(steps.key)
            run.window_names.setdefault(steps.key, -1)
        elif isinstance(steps, int) and steps > 1:
            if run.learned.literal is None:
                run.learned.literal = steps
            run.window_names.setdefault("gradient_accumulation_steps", -1)
        return Quantity.of(3, "K")
    return number


def _ready(run: Interpreter, thing: Thing) -> dict[str, Any]:
    """State of an accelerator that was handed in and not built here: K is not known, so it is simulated."""
    if "steps" not in thing.state:
        setup(run, thing, Quantity.of(3, "K"))
        thing.state["handed in"] = True
        run.window_names.setdefault(f"{thing.name}.gradient_accumulation_steps", thing.site)
    return thing.state


@function("GradientAccumulationPlugin")
def _plugin(run: Interpreter, call: Call) -> Any:
    made = run.thing("plugin", call.name, call.site)
    made.state["num_steps"] = call.get(0, "num_steps")
    made.state["carries"] = call.kwargs.get("sync_with_dataloader") is False
    return made


_PREPARED = {"prepare_model": "model", "prepare_optimizer": "optimizer", "prepare_scheduler": "scheduler", "prepare_data_loader": "loader"}


@method("prepare", "prepare_model", "prepare_optimizer", "prepare_scheduler", "prepare_data_loader")
def _prepare(run: Interpreter, receiver: Thing, call: Call) -> Any:
    state = _ready(run, receiver)
    kind = _PREPARED.get(call.name, "")
    out = []
    for value in call.args:
        if kind and isinstance(value, (Unknown, Tensor)):
            value = run.known_as(Unknown(value.key.split("#")[0]), kind, call.site)
        out.append(prepared(run, receiver, value, call.site))
        if isinstance(out[-1], Thing) and out[-1].kind == "optimizer":
            state["optimizers"] = state.get("optimizers", 0) + 1
    if not out:
        return Unknown(call.key)
    return out[0] if len(out) == 1 else tuple(out)


def prepared(run: Interpreter, accelerator: Thing, value: Any, site: int) -> Any:
    """What ``prepare`` makes of one object."""
    if isinstance(value, Unknown):
        kind = run.registry.kind_by_use(run, value)
        if not kind:
            return value
        value = run.known_as(value, kind, site)
    if isinstance(value, (list, tuple)) and value[:1] != ("module",):
        return type(value)(prepared(run, accelerator, v, site) for v in value)
    if isinstance(value, Thing) and value.kind == "loader":
        if value.site not in run.learned.prepared:
            run.learned.prepared.add(value.site)
            if not run.scouting:
                run.start_again()  # lengths that were taken before this call are those of all ranks
    if isinstance(value, Thing) and value.kind in ("optimizer", "scheduler", "loader"):
        value.state["accelerator"] = accelerator
        return value
    if isinstance(value, Thing) and value.kind in ("model",) or isinstance(value, Instance) and value.role == "model":
        made = run.thing("data_parallel", getattr(value, "name", "model"), site)
        made.models = models_of(value)
        made.attributes["module"] = value
        made.state["accelerator"] = accelerator
        if isinstance(value, Thing):
            made.state["constructor"] = value.state.get("constructor")
        subject(run, made).traits = frozenset({"prepared"})
        return made
    if isinstance(value, Stream):
        return dataclasses.replace(value, loader=True)
    return value


@method("accumulate")
def _accumulate(run: Interpreter, receiver: Thing, call: Call) -> Any:
    state = _ready(run, receiver)
    covered = models_of(list(call.args)) if call.args else frozenset()

    def enter(inner: Interpreter, site: int) -> Any:
        inner.traits.add("accumulate")
        state["entries"] = state.get("entries", 0) + 1
        if inner.scouting:
            state["entered"].append(0)
            return None
        end = not state.get("carries") and _end_of_loader(inner, receiver)
        if end:
            state["step"] = 0
            state["sync"] = True
        else:
            state["step"] += 1
            state["sync"] = state["step"] % (state["steps"].integer or 1) == 0
        silent = not state["sync"]
        if silent:
            inner.silenced.append(covered)
            inner.sync_site = call.site
        around = inner.things.get("covered")  # with accumulate(one), accumulate(other): both are covered
        both = covered | around[0] if around and around[0] and covered else covered
        inner.things["covered"] = (both, call.site)
        inner.things["accumulating"] = receiver
        state["entered"].append(covered if silent else 0)
        return None

    def leave(inner: Interpreter) -> None:
        held = state["entered"].pop() if state["entered"] else 0
        inner.things.pop("covered", None)
        inner.things.pop("accumulating", None)
        if held != 0:
            inner.silenced.remove(held)

    return Context("handler", (enter, leave), call.site)


def _end_of_loader(run: Interpreter, accelerator: Thing) -> bool:
    """The last batch of a loader is known only to a loader that was prepared."""
    if not run.loader_depth:
        return False
    index, length, source = run.loader_depth[-1]
    if isinstance(source, Thing):
        prepared_loader = "accelerator" in source.state
    else:
        # a loader that was handed in together with the accelerator
        prepared_loader = bool(accelerator.state.get("handed in")) or source is None
    return length is not None and index == length - 1 and prepared_loader


@method("no_sync")
def _no_sync(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.traits.add("no_sync")
    return Context("no_sync", (models_of(call.get(0, "model")), tuple(run.stack)), call.site)


@method("trigger_sync_in_backward")
def _trigger(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.traits.add("sync triggered")
    return Context("plain", site=call.site)


@method("backward")
def _backward(run: Interpreter, receiver: Thing, call: Call) -> Any:
    state = _ready(run, receiver)
    divisor = None if state.get("deepspeed") else state["steps"].tagged("framework")
    backward(run, call.get(0, "loss"), call.site, owner="accelerate", divisor=divisor if divisor is not None and divisor.integer != 1 else None)
    return None


@method("clip_grad_norm_", "clip_grad_value_")
def _clip(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return clip(run, call, "accelerator")


@method("unscale_gradients")
def _unscale(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.emit(Kind.UNSCALE, call.site, -1, models=None, apex=True)
    return None


@method("unwrap_model", "unwrap")
def _unwrap(run: Interpreter, receiver: Thing, call: Call) -> Any:
    model = call.get(0, "model")
    if isinstance(model, Thing) and model.kind == "data_parallel" and "accelerator" in model.state:
        inner = model.attributes.get("module")
        if isinstance(inner, Thing):
            made = run.thing("model", f"unwrapped {model.name}", call.site)
            made.models = model.models
            made.attributes["module"] = inner
            made.state["bypasses"] = True
            return made
        return inner
    return model


@method("gather", "gather_for_metrics", "pad_across_processes")
def _gather(run: Interpreter, receiver: Thing, call: Call) -> Any:
    value = call.get(0, "tensor", call.get(0, "input_data"))
    if isinstance(value, Quantity) and call.name == "gather":
        return value.reduced().tagged("gathered")
    if isinstance(value, Tensor):
        return changed(tensors.detached(value), local=False)
    return value


@method("reduce")
def _reduce(run: Interpreter, receiver: Thing, call: Call) -> Any:
    value = call.get(0, "tensor")
    average = call.get(1, "reduction", "sum") == "mean"
    if isinstance(value, Quantity):
        return value.reduced(average)
    if isinstance(value, Tensor):
        return changed(tensors.detached(value), local=False)
    return value


@method("save_state", "save_model")
def _save(run: Interpreter, receiver: Thing, call: Call) -> Any:
    if call.name == "save_state":
        return checkpoint(run, call, "save_state", "accelerator.save_state")
    return None


@method("load_state")
def _load(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.traits.add("resumes")
    return None


@method("autocast", "main_process_first", "local_main_process_first", "profile", "join_uneven_inputs", "maybe_context_parallel")
def _context(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return Context("plain", site=call.site)


@method("skip_first_batches")
def _skip(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return call.get(0, "dataloader")


@method("print", "log", "wait_for_everyone", "end_training", "init_trackers", "free_memory", "save", "get_state_dict", "register_for_checkpointing", "set_trigger",
        "check_trigger", "on_main_process", "clear", "get_tracker")
def _inert(run: Interpreter, receiver: Thing, call: Call) -> Any:
    if call.name == "check_trigger":
        return Test("atom", (), call.key)
    return Unknown(call.key)


@method("*")
def _other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return Unknown(call.key)


def _sync_gradients(run: Interpreter, thing: Thing, site: int) -> Any:
    state = _ready(run, thing)
    if run.scouting:
        return Test("atom", (), f"{thing.name}.sync_gradients")
    return state["sync"]


TABLE.attributes["accelerator", "sync_gradients"] = _sync_gradients
TABLE.attributes["accelerator", "num_processes"] = lambda run, thing, site: Quantity.of(RANKS, "world")
TABLE.attributes["accelerator", "gradient_accumulation_steps"] = lambda run, thing, site: _ready(run, thing)["steps"]
for _name in ("is_main_process", "is_local_main_process", "is_last_process"):
    TABLE.attributes["accelerator", _name] = lambda run, thing, site: on_main_rank()
for _name in ("process_index", "local_process_index"):
    TABLE.attributes["accelerator", _name] = lambda run, thing, site: rank_number()
TABLE.attributes["accelerator", "optimizer_step_was_skipped"] = lambda run, thing, site: Test("atom", (), "optimizer step was skipped", 0, False)
TABLE.attributes["accelerator", "device"] = lambda run, thing, site: Unknown("device")


def _set_steps(run: Interpreter, owner: Any, value: Any, target: Any) -> bool:
    if isinstance(owner, Thing) and owner.kind == "accelerator":
        _ready(run, owner)["steps"] = _steps(run, value)
        return True
    return False


TABLE.setters["gradient_accumulation_steps"] = _set_steps


def moves(run: Interpreter, thing: Thing) -> bool:
    """A prepared optimizer or scheduler moves only where gradients sync."""
    accelerator = thing.state.get("accelerator")
    if accelerator is None or run.scouting:
        return True
    return bool(_ready(run, accelerator)["sync"])
