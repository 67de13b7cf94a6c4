"""DeepSpeed: the engine counts microbatches itself; ``backward`` divides, ``step`` acts on the boundary.

Facts (deepspeed 0.19, ``runtime/engine.py``): ``engine.step()`` advances ``micro_steps`` on every call and steps, moves the
scheduler and clears only on the boundary; ``engine.backward`` divides by ``gradient_accumulation_steps``; windows carry
across epochs; ``no_sync`` is refused under ZeRO stage 2 and 3.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.static.frameworks.base import Table, models_of, subject
from accumlint.static.frameworks.torch.backward import backward
from accumlint.static.frameworks.torch.models import forward
from accumlint.static.frameworks.torch.unseen import checkpoint
from accumlint.static.values import Context, Test, Thing, Unknown, rank_number

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

TABLE = Table()
method = partial(TABLE.method, "engine")


def make_engine(run: Interpreter, model: Any, optimizer: Any, scheduler: Any, site: int) -> Thing:
    """An engine around a model, with the optimizer and scheduler that it moves."""
    engine = run.thing("engine", "engine", site)
    if isinstance(model, Unknown):
        model = run.known_as(model, "model", site)
    engine.models = models_of(model) or frozenset({engine.number})
    engine.attributes["module"] = model
    made = optimizer if isinstance(optimizer, Thing) else run.thing("optimizer", "engine.optimizer", site)
    made.models = engine.models
    made.state["engine"] = engine
    engine.state.update(optimizer=made, scheduler=scheduler if isinstance(scheduler, Thing) else None, calls=0, stage=None)
    if isinstance(scheduler, Thing):
        scheduler.state["engine"] = engine
    subject(run, made)
    subject(run, engine)
    run.traits.add("framework deepspeed")
    run.distributed = True
    return engine


def _ready(run: Interpreter, engine: Thing) -> dict[str, Any]:
    """An engine that was handed in."""
    if "calls" not in engine.state:
        made = run.thing("optimizer", f"{engine.name}.optimizer", engine.site)
        made.models = engine.models = engine.models or frozenset({engine.number})
        made.state["engine"] = engine
        engine.state.update(optimizer=made, scheduler=None, calls=0, stage=None)
        subject(run, made)
        run.traits.add("framework deepspeed")
        run.distributed = True
    run.window_names.setdefault("gradient_accumulation_steps of the DeepSpeed configuration", engine.site)
    return engine.state


def _initialize(run: Interpreter, call: Call) -> Any:
    """``deepspeed.initialize(model=…)`` -> engine, optimizer, loader, scheduler."""
    config = call.kwargs.get("config", call.kwargs.get("config_params"))
    scheduler = call.kwargs.get("lr_scheduler")
    engine = make_engine(run, call.get(1, "model"), call.kwargs.get("optimizer"), scheduler, call.site)
    if isinstance(config, dict):
        _read_config(run, engine, config)
    loader = run.thing("loader", "training_dataloader", call.site)
    held = scheduler if isinstance(scheduler, Thing) else run.thing("scheduler", "engine.lr_scheduler", call.site)
    held.state["engine"] = engine
    if scheduler is not None:
        engine.state["scheduler"] = held
    return (engine, engine.state["optimizer"], loader, held)


def _read_config(run: Interpreter, engine: Thing, config: dict[Any, Any]) -> None:
    steps = config.get("gradient_accumulation_steps")
    if steps == 1 and isinstance(steps, int):
        engine.state["one"] = True
    elif isinstance(steps, int) and run.learned.literal is None:
        run.learned.literal = steps
    elif isinstance(steps, Unknown):
        run.learned.windows.add(steps.key)
    zero = config.get("zero_optimization")
    if isinstance(zero, dict):
        engine.state["stage"] = zero.get("stage")
        if zero.get("stage") in (2, 3):
            run.traits.add("zero sharded")


TABLE.functions["deepspeed.initialize"] = _initialize
TABLE.functions["deepspeed.init_inference"] = lambda run, call: run.thing("model", "inference", call.site)


def _call_initialize(run: Interpreter, call: Call) -> Any:
    """``initialize`` without an import to go by: apex's has the model first, DeepSpeed's has keywords."""
    if "model" in call.kwargs or "config" in call.kwargs:
        return _initialize(run, call)
    return tuple(call.args[:2]) if len(call.args) > 1 else Unknown(call.key)


TABLE.functions["initialize"] = _call_initialize


def _call_engine(run: Interpreter, thing: Thing, call: Call) -> Any:
    _ready(run, thing)
    return forward(run, thing, call, None)


TABLE.calls["engine"] = _call_engine


@method("backward")
def _backward(run: Interpreter, receiver: Thing, call: Call) -> Any:
    state = _ready(run, receiver)
    divisor = None if state.get("one") or call.kwargs.get("scale_wrt_gas") is False else Quantity.of(3, "K", "framework")
    backward(run, call.get(0, "loss"), call.site, owner="deepspeed", divisor=divisor)
    return call.get(0, "loss")


@method("step")
def _step(run: Interpreter, receiver: Thing, call: Call) -> Any:
    state = _ready(run, receiver)
    state["calls"] += 1
    optimizer = state["optimizer"]
    period = 1 if state.get("one") else 3
    if run.scouting or state["calls"] % period == 0:
        run.emit(Kind.STEP, call.site, optimizer.number, models=optimizer.models, owner="deepspeed")
        if state["scheduler"] is not None:
            run.emit(Kind.SCHEDULE, call.site, state["scheduler"].number, absolute=False, plateau=False)
        run.emit(Kind.CLEAR, call.site, optimizer.number, models=optimizer.models, by="deepspeed")
    return None


@method("is_gradient_accumulation_boundary")
def _boundary(run: Interpreter, receiver: Thing, call: Call) -> Any:
    state = _ready(run, receiver)
    if run.scouting:
        return Test("atom", (), call.key)
    return (state["calls"] + 1) % (1 if state.get("one") else 3) == 0


@method("no_sync")
def _no_sync(run: Interpreter, receiver: Thing, call: Call) -> Any:
    _ready(run, receiver)
    run.traits.add(f"engine no_sync@{call.site}")
    return Context("no_sync", (models_of(receiver), tuple(run.stack)), call.site)


@method("zero_grad")
def _clear(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return None  # the engine clears at its boundary; ZeRO optimizers ignore it inside the window


@method("train_batch")
def _train_batch(run: Interpreter, receiver: Thing, call: Call) -> Any:
    """The pipeline engine runs a whole window."""
    return Unknown(call.key)


@method("save_checkpoint")
def _save(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return checkpoint(run, call, "save_state", "engine.save_checkpoint")


@method("train", "eval", "to", "cuda", "half", "bfloat16")
def _same(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return receiver


@method("parameters", "named_parameters")
def _parameters(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return run.registry.table.methods["model", call.name](run, receiver, call)


@method("gradient_accumulation_steps")
def _steps(run: Interpreter, receiver: Thing, call: Call) -> Any:
    _ready(run, receiver)
    return Quantity.of(1) if receiver.state.get("one") else Quantity.of(3, "K")


@method("set_gradient_accumulation_boundary")
def _set_boundary(run: Interpreter, receiver: Thing, call: Call) -> Any:
    run.gap("the DeepSpeed boundary is set by hand", call.site)
    return None


@method("*")
def _other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return Unknown(call.key)


TABLE.attributes["engine", "module"] = lambda run, thing, site: thing.attributes.get("module", thing)
TABLE.attributes["engine", "optimizer"] = lambda run, thing, site: _ready(run, thing)["optimizer"]
TABLE.attributes["engine", "lr_scheduler"] = lambda run, thing, site: _ready(run, thing)["scheduler"] or Unknown("engine.lr_scheduler")
TABLE.attributes["engine", "global_steps"] = lambda run, thing, site: Unknown("engine.global_steps")
TABLE.attributes["engine", "local_rank"] = lambda run, thing, site: rank_number()
TABLE.attributes["engine", "device"] = lambda run, thing, site: Unknown("device")


