"""Where a loop stands: in the module, in main(), in a function for training or for one epoch, in a class."""

from __future__ import annotations

from ..plan import OBJECTS, Plan, State
from ..script import Lines, indented, mark
from . import dialects, lightning, tasks, trainer, windows

EPOCHS = 2


def settings(plan: Plan) -> None:
    """How K and the number of epochs are spelled where the loop stands."""
    r, n = plan.recipe, plan.n
    bare, epochs = n.bare("k"), n.bare("epochs")
    if r.k == "constant":
        n.spelled["k"], n.spelled["epochs"] = bare.upper(), epochs.upper()
    elif r.k == "argument" and r.scaffold != "class":
        n.spelled["k"], n.spelled["epochs"] = f"args.{bare}", f"args.{epochs}"
    if r.framework == "lightning":
        n.held = frozenset(("model", "criterion"))
    if r.scaffold == "class":
        own = {"model", "optimizer", "scheduler", "scaler", "loader", "ema", "criterion", "val_loader", "critic", "critic_optimizer", "accelerator", "fabric"}
        n.held = frozenset(own | ({"k", "epochs"} if r.k != "constant" else set()))
    plan.k = n.k


def objects(plan: Plan) -> None:
    """Expressions of everything that is built once, in the order of building."""
    r, n = plan.recipe, plan.n
    plan.imports |= {"import torch"}
    data = tasks.dataset_name(plan)
    dialect = dialects.of(plan)
    plan.imports |= dialect.imports(plan)
    rank = "rank" if r.ddp != "none" and not dialect.sharded else ""
    size = tasks.ROWS[r.varies] if dialect.sharded else None
    first = {**dialect.objects(plan), "loader": dialect.loader(plan, f"DataLoader({data}({rank}), batch_size={size})"), "model": dialect.model(plan, tasks.model(plan))}
    if "val_loader" in plan.objects:
        first["val_loader"] = dialect.loader(plan, f"DataLoader({data}({rank}), batch_size={size})")
    later = {what: e for what, e in plan.objects.items() if what not in first}
    optimizer = ("torch.optim.SGD({}, lr=0.01)", "torch.optim.AdamW({}, lr=1e-3)", "torch.optim.Adam({}, lr=1e-3, betas=(0.9, 0.95))")[r.names % 3]
    first["optimizer"] = optimizer.format(f"{n.model}.parameters()")
    if r.schedule != "none":
        if r.schedule == "cosine":
            if "math." in plan.total_updates:
                plan.imports.add("import math")
            first["scheduler"] = mark(f"torch.optim.lr_scheduler.CosineAnnealingLR({n.optimizer}, T_max={plan.total_updates})", "horizon")
        elif r.schedule == "lambda":
            first["scheduler"] = f"torch.optim.lr_scheduler.LambdaLR({n.optimizer}, lambda done: min(1.0, (done + 1) / 10))"
        else:
            first["scheduler"] = f"torch.optim.lr_scheduler.StepLR({n.optimizer}, step_size=100, gamma=0.5)"
    if r.amp == "scaler":
        first["scaler"] = 'torch.amp.GradScaler("cpu", init_scale=1024.0)'
    plan.objects = {**first, **later}


def write(plan: Plan) -> Lines:
    """All lines of the script."""
    r = plan.recipe
    _fold(plan)
    body = {"lightning": lightning.write, "trainer": trainer.write}.get(r.framework, _SCAFFOLDS[r.scaffold])(plan)
    data = tasks.dataset(plan)
    head: Lines = sorted(plan.imports, key=lambda line: (line.startswith("from"), line))
    if r.k == "argument":
        head = ["import argparse", *head]
    out = [*head, ""]
    if r.k == "constant":
        out += [f"{plan.n.bare('k')} = 3", f"{plan.n.bare('epochs')} = {EPOCHS}"]
    if r.window == "stream":
        out.append("TOTAL_UPDATES = 4")
    if r.count == "limit":
        out.append("MAX_UPDATES = 1000")
    out += ["", "", *data, *plan.definitions]
    if r.window == "stream":
        out += ["", "", "def forever(loader):", "    while True:", "        yield from loader"]
    return [*out, "", "", *body]


def _fold(plan: Plan) -> None:
    """The pieces that deal with objects become a function of their own."""
    if plan.recipe.update != "helper":
        return
    names = [name for name in plan.update if name in OBJECTS]
    if not names:
        return
    start = list(plan.update).index(names[0])
    run = [name for name in list(plan.update)[start:] if name in OBJECTS or name.startswith("moved")]
    following = list(plan.update)[start : start + len(run)]
    if following != run:
        return  # something else stands in between
    lines = [line for name in run for line in plan.update[name]]
    n = plan.n
    name = n.bare("update")
    text = "\n".join(lines)
    used = [what for what in plan.objects if n.__getattr__(what) in text]
    if plan.recipe.scaffold == "class":
        call = f"self.{name}()"
        plan.methods = ["", f"def {name}(self):", *indented(lines)]
    elif plan.recipe.scaffold in ("flat", "main"):
        call = f"{name}()"
        plan.closure = [f"def {name}():", *indented(lines), ""]
    else:
        given = ", ".join(n.bare(what) for what in used)
        call = f"{name}({given})"
        plan.definitions += ["", "", f"def {name}({given}):", *indented(lines)]
    order = {}
    for piece, held in plan.update.items():
        if piece == run[0]:
            order["call"] = [mark(call, "call")]
        elif piece not in run:
            order[piece] = held
    plan.update = order


def _arguments(plan: Plan) -> Lines:
    flag = plan.n.bare("k").replace("_", "-")
    names = plan.n
    return [
        "parser = argparse.ArgumentParser()",
        f'parser.add_argument("--{flag}", type=int, default=3)',
        f'parser.add_argument("--{names.bare("epochs").replace("_", "-")}", type=int, default={EPOCHS})',
        "args = parser.parse_args()",
    ]


def _built(plan: Plan, *only: str) -> Lines:
    n = plan.n
    out = []
    if not only or "model" in only:
        out += dialects.of(plan).opening(plan)
    for what, expression in plan.objects.items():
        if only and what not in only:
            continue
        out.append(f"{n.bare(what) if only else n.__getattr__(what)} = {expression}")
        if what == "fabric":
            out.append(f"{n.bare(what)}.launch()")
    if not only:
        out += dialects.of(plan).closing(plan)
    return out


def _states(plan: Plan, scope: str) -> Lines:
    return [f"{plan.n.__getattr__(state.name)} = {state.start}" for state in plan.states if state.scope == scope]


def _first(plan: Plan) -> Lines:
    out: Lines = []
    n = plan.n
    if plan.recipe.decoy == "warmup":
        _, x, _ = tasks.inputs(plan)
        target, *_ = tasks.inputs(plan)
        out += [f"{target} = next(iter({n.loader}))", "with torch.no_grad():", f"    {n.model}({x})"]
    if plan.recipe.clear == "first":
        out.append(f"{n.optimizer}.zero_grad()")
    return out


def _buffer(plan: Plan) -> Lines:
    return [f"{plan.n.window} = []"] if plan.recipe.window == "buffer" and plan.tail == "carry" else []


def _epochs(plan: Plan) -> Lines:
    """The whole course of training, from counters to the last epoch."""
    n = plan.n
    out = [*_states(plan, "run"), *_buffer(plan), *_first(plan)]
    if plan.recipe.window == "stream":
        return [*out, *_states(plan, "epoch"), *windows.epoch(plan)]
    return [*out, f"for epoch in range({n.epochs}):", *indented([*_states(plan, "epoch"), *windows.epoch(plan)])]


def _flat(plan: Plan) -> Lines:
    arguments = _arguments(plan) if plan.recipe.k == "argument" else []
    return [*arguments, *_built(plan), "", *plan.closure, *_epochs(plan)]


def _main(plan: Plan) -> Lines:
    n = plan.n
    arguments = _arguments(plan) if plan.recipe.k == "argument" else []
    given = f"{n.bare('k')}=3, {n.bare('epochs')}={EPOCHS}" if plan.recipe.k == "parameter" else ""
    body = [*arguments, *_built(plan), "", *plan.closure, *_epochs(plan)]
    return [f"def main({given}):", *indented(body), *_guard()]


def _guard() -> Lines:
    return ["", "", 'if __name__ == "__main__":', "    main()"]


def _given(plan: Plan) -> tuple[list[str], list[str]]:
    """Parameters of a training function and what main passes."""
    n = plan.n
    names = [n.bare(what) for what in plan.objects]
    if plan.recipe.k == "argument":
        return [*names, "args"], [*names, "args"]
    if plan.recipe.k == "parameter":
        return [*names, f"{n.bare('k')}=3", f"{n.bare('epochs')}={EPOCHS}"], names
    return names, names


def _function(plan: Plan) -> Lines:
    parameters, passed = _given(plan)
    name = plan.n.bare("train")
    body = _epochs(plan)
    arguments = _arguments(plan) if plan.recipe.k == "argument" else []
    main = [*arguments, *_horizon_names(plan), *_built(plan), f"{name}({', '.join(passed)})"]
    return [f"def {name}({', '.join(parameters)}):", *indented(body), "", "", "def main():", *indented(main), *_guard()]


def _horizon_names(plan: Plan) -> Lines:
    """Names that the length of a schedule is written with, where K is a parameter of the training function."""
    r, n = plan.recipe, plan.n
    if r.k == "parameter" and (r.schedule == "cosine" and r.window != "stream" or plan.divides):
        return [f"{n.bare('k')}, {n.bare('epochs')} = 3, {EPOCHS}"]
    return []


def _epoch(plan: Plan) -> Lines:
    n = plan.n
    parameters, passed = _given(plan)
    kept = [n.bare(state.name) for state in plan.states if state.scope == "run"]
    if plan.recipe.k == "parameter":
        parameters = [*parameters[:-2], "epoch", *kept, *parameters[-2:-1]]
        passed = [*passed, "epoch", *kept]
        epochs = str(EPOCHS)
    else:
        parameters, passed = [*parameters, "epoch", *kept], [*passed, "epoch", *kept]
        epochs = n.epochs
    body = [*_states(plan, "epoch"), *windows.epoch(plan), *([f"return {', '.join(kept)}"] if kept else [])]
    call = f"train_epoch({', '.join(passed)})"
    if kept:
        call = f"{', '.join(kept)} = {call}"
    arguments = _arguments(plan) if plan.recipe.k == "argument" else []
    main = [*arguments, *_horizon_names(plan), *_built(plan), *_states(plan, "run"), *_first(plan), f"for epoch in range({epochs}):", f"    {call}"]
    return [f"def train_epoch({', '.join(parameters)}):", *indented(body), "", "", "def main():", *indented(main), *_guard()]


def _class(plan: Plan) -> Lines:
    n = plan.n
    outside = [what for what in plan.objects if what in ("loader", "model", "val_loader", "fabric")]
    given = [n.bare(what) for what in outside]
    stores = [f"self.{name} = {name}" for name in given]
    parameters, passed = list(given), list(given)
    arguments: Lines = []
    if plan.recipe.k != "constant":
        both = [n.bare("k"), n.bare("epochs")]
        stores += [f"self.{name} = {name}" for name in both]
        if plan.recipe.k == "argument":
            parameters += both
            passed += [f"args.{name}" for name in both]
            arguments = _arguments(plan)
        else:
            parameters += [f"{both[0]}=3", f"{both[1]}={EPOCHS}"]
    run = [state for state in plan.states if state.scope == "run"]
    n.held = n.held | {state.name for state in run}
    init = [*stores, *(f"{n.__getattr__(what)} = {e}" for what, e in plan.objects.items() if what not in outside)]
    init += dialects.of(plan).closing(plan)
    init += [f"self.{n.bare(state.name)} = {state.start}" for state in run]
    if plan.recipe.window == "buffer" and plan.tail == "carry":
        init.append(f"{n.window} = []")
    first = _first(plan)
    body = [*_states(plan, "epoch"), *windows.epoch(plan)]
    train = n.bare("train")
    if plan.recipe.window == "stream":
        methods = ["", f"def {train}(self):", *indented([*first, *body])]
    else:
        methods = ["", "def train_epoch(self, epoch):", *indented(body), "", f"def {train}(self):", *indented([*first, f"for epoch in range({n.epochs}):", "    self.train_epoch(epoch)"])]
    main = [*arguments, *_built(plan, *outside), f"trainer = Trainer({', '.join(passed)})", f"trainer.{train}()"]
    return [
        "class Trainer:", *indented([f"def __init__(self, {', '.join(parameters)}):", *indented(init), *plan.methods, *methods]),
        "", "", "def main():", *indented(main), *_guard(),
    ]  # fmt: skip


_SCAFFOLDS = {"flat": _flat, "main": _main, "function": _function, "epoch": _epoch, "class": _class}
__all__ = ["State", "objects", "settings", "write"]
