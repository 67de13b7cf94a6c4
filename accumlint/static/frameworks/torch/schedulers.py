"""Schedulers: their clocks, and the lengths that they are built with."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Horizon, Kind
from accumlint.contract.quantity import Quantity, RANKS
from accumlint.static import syntax as ir
from accumlint.static.frameworks.base import subject
from accumlint.static.frameworks.torch.optimizers import owned_and_idle
from accumlint.static.frameworks.torch.table import method
from accumlint.static.values import Closure, Partial, Tensor, Thing, Unknown

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

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
