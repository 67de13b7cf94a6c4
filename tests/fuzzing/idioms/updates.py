"""What happens in an update, and the arithmetic that makes every valid target of a window weigh the same."""

from __future__ import annotations

from ..plan import Plan, State
from ..recipes import AHEAD
from ..script import Lines, indented, mark
from . import dialects, tasks, trainer


def normalise(plan: Plan) -> None:
    """Forward, backward and the division that belongs to the recipe."""
    r, n = plan.recipe, plan.n
    if r.framework == "trainer":
        plan.forward = trainer.loss(plan)
        return
    dialect = dialects.of(plan)
    ranks = dialect.world(plan)
    world = f" * {ranks}" if r.ddp != "none" else ""
    loss = n.loss
    if r.norm == "gradients":
        plan.forward = tasks.loss(plan, "sum" if r.varies else "mean")
        _divide_gradients(plan)
        plan.backward = [backward(plan, loss)]
        return
    if r.varies:
        _, _, labels = tasks.inputs(plan)
        count_window(plan)
        reduction = "mean" if r.norm == "share" else "sum"
        plan.forward = tasks.loss(plan, reduction)
        if r.norm == "share":
            own = tasks.valid(plan, labels)
            again = f" * {plan.k}" if plan.divides else ""
            plan.forward.append(mark(f"{loss} = {loss} * {own}{again}{world} / {n.total}", "divide"))
            plan.backward = [backward(plan, loss)]
            return
        divisor = n.total if not world else f"({n.total} / {ranks})"
        if r.norm == "framework":
            # what the framework divides by and what it averages over is undone
            plan.forward.append(mark(f"{loss} = {loss} * {plan.k}{world} / {n.total}", "divide"))
            plan.backward = [backward(plan, loss)]
            return
    else:
        plan.forward = tasks.loss(plan, "mean")
        divisor = plan.size
        if plan.divides and r.norm == "reciprocal":
            # the last window of an epoch is shorter than the K that the framework divides by
            plan.forward += [f"size = {divisor}", mark(f"{loss} = {loss} * {plan.k} / size", "divide")]
        if plan.divides:
            plan.backward = [backward(plan, loss)]
            return
    divide(plan, divisor)


def divide(plan: Plan, divisor: str) -> None:
    """The loss divided, in the way of the recipe, and its backward."""
    r, loss = plan.recipe, plan.n.loss
    if divisor.startswith("min("):
        plan.forward.append(f"size = {divisor}")
        divisor = "size"
    if r.norm == "inline":
        plan.backward = [backward(plan, f"{loss} / {divisor}", "divide")]
        return
    if r.norm == "augmented":
        plan.forward.append(mark(f"{loss} /= {divisor}", "divide"))
    elif r.norm == "reciprocal":
        plan.forward.append(mark(f"{loss} = {loss} * (1 / {divisor})", "divide"))
    else:
        plan.forward.append(mark(f"{loss} = {loss} / {divisor}", "divide"))
    plan.backward = [backward(plan, loss)]


def backward(plan: Plan, expression: str, *marks: str) -> str:
    line = mark(dialects.of(plan).backward(plan, expression), "backward")
    for name in marks:
        line = mark(line, name)
    return line


def guarded_by_sync(plan: Plan, lines: Lines) -> Lines:
    """Where the window is the framework's, what it does not gate itself is gated by its own test."""
    if plan.recipe.window != "accumulate":
        return lines
    return [f"if {plan.n.accelerator}.sync_gradients:", *indented(lines)]


def count_window(plan: Plan) -> None:
    """The valid targets of a window, before its first backward; over all ranks where there are several."""
    r, n = plan.recipe, plan.n
    target, _, labels = tasks.inputs(plan)
    unused = target.replace(n.x + ",", "_,") if r.batch == "pair" else target
    valid = tasks.valid(plan, labels)
    if r.ddp != "none":
        plan.window_start += [mark(f"{n.total} = sum({valid} for {unused} in {n.window})", "total"), mark(dialects.of(plan).reduced(plan, n.total), "reduce total")]
    else:
        item = ".item()" if r.names % 2 else ""
        plan.window_start.append(mark(f"{n.total} = sum({valid}{item} for {unused} in {n.window})", "total"))


def _divide_gradients(plan: Plan) -> None:
    r, n = plan.recipe, plan.n
    _, _, labels = tasks.inputs(plan)
    parameters = f"{n.model}.parameters()"
    scope = "run" if r.tail == "carry" else "epoch"
    lines: Lines = []
    if r.varies:
        plan.states.append(State("total", "0", scope))
        plan.after.append(mark(f"{n.total} += {tasks.valid(plan, labels)}.item()", "total"))
        divisor = n.total
        if r.ddp != "none":
            dialect = dialects.of(plan)
            lines += [f"everyone = torch.tensor(float({n.total}))", mark(dialect.reduced(plan, "everyone"), "reduce total")]
            divisor = f"(everyone / {dialect.world(plan)})"
        reset = f"{n.total} = 0"
    else:
        divisor = n.pending
        reset = f"{n.pending} = 0"
        if r.window in AHEAD:
            divisor, reset = plan.size, ""
        elif r.window != "counter":
            plan.states.append(State("pending", "0", scope))
            plan.after.append(f"{n.pending} += 1")
    if r.names % 2:
        lines += [f"for p in {parameters}:", mark(f"    p.grad /= {divisor}", "divide")]
    else:
        lines += [f"for p in {parameters}:", "    if p.grad is not None:", mark(f"        p.grad.div_({divisor})", "divide")]
    plan.piece("rescale", lines)
    if reset:
        plan.piece("reset", [reset])


def clock(plan: Plan) -> None:
    """Unscale, clip, step, update, schedule and clear, in this order."""
    r, n = plan.recipe, plan.n
    held = plan.update.pop("reset", None)
    if r.window == "counter" and f"{n.pending} = 0" not in (held or []):
        held = [*(held or []), f"{n.pending} = 0"]
    amp = r.amp == "scaler"
    if amp and r.clip != "no":
        plan.piece("unscale", [mark(f"{n.scaler}.unscale_({n.optimizer})", "unscale")])
    if amp and "rescale" in plan.update:
        # gradients are divided where they are no longer scaled
        lines = plan.update.pop("rescale")
        plan.update.setdefault("unscale", [mark(f"{n.scaler}.unscale_({n.optimizer})", "unscale")])
        plan.piece("rescale", lines)
    if r.clip != "no":
        plan.piece("clip", guarded_by_sync(plan, [mark(dialects.of(plan).clip(plan), "clip")]))
    guarded = amp and r.schedule != "none"
    if amp:
        before = [f"scale_before = {n.scaler}.get_scale()"] if guarded else []
        plan.piece("step", [mark(f"{n.scaler}.step({n.optimizer})", "step")])
        plan.piece("scaler", [*before, mark(f"{n.scaler}.update()", "scaler")])
    else:
        plan.piece("step", [mark(f"{n.optimizer}.step()", "step")])
    if r.schedule != "none":
        line = mark(f"{n.scheduler}.step()", "schedule")
        if "scheduler" in plan.raw:
            plan.piece("schedule", guarded_by_sync(plan, [line]))
        else:
            plan.piece("schedule", [f"if {n.scaler}.get_scale() >= scale_before:", "    " + line] if guarded else [line])
    owner = n.model if r.clear == "model" else n.optimizer
    line = mark(f"{owner}.zero_grad({'set_to_none=True' if r.clear == 'none' else ''})", "clear")
    if r.clear == "begin" and r.window == "accumulate":
        plan.epoch_batch.append(line)
    elif r.clear == "begin":
        plan.window_start.insert(0, line)
    else:
        plan.piece("clear", [line])
    if held:
        plan.piece("reset", held)


def books(plan: Plan) -> None:
    """Averages, counters, logs, checkpoints and evaluation, counted in updates."""
    r, n = plan.recipe, plan.n
    dialect = dialects.of(plan)
    inner = dialect.bare(plan)
    built = n.model if dialect.sharded else inner  # what a framework wraps is wrapped last
    if r.average == "hand":
        plan.imports.add("import copy")
        plan.objects["ema"] = f"copy.deepcopy({built})"
        lines = ["with torch.no_grad():", f"    for kept, p in zip({n.ema}.parameters(), {inner}.parameters()):", mark("        kept.lerp_(p, 0.01)", "average")]
        plan.piece("average", lines)
    elif r.average == "class":
        plan.imports.add("from torch.optim.swa_utils import AveragedModel")
        plan.objects["ema"] = f"AveragedModel({built})"
        plan.piece("average", [mark(f"{n.ema}.update_parameters({inner})", "average")])
    if r.count != "none":
        plan.states.append(State("updates", "0", "run"))
        plan.piece("count", [mark(f"{n.updates} += 1", "counter")])
    if r.log == "updates":
        plan.piece("log", [f"if {n.updates} % 10 == 0:", f'    print(f"update {{{n.updates}}} loss {{{n.loss}.item():.4f}}")'])
    elif r.log == "loss":
        plan.epoch_end.append(f'print(f"epoch {{epoch}} loss {{{n.loss}.item():.4f}}")')
    if r.checkpoint == "updates":
        plan.piece("checkpoint", [mark(f"if {n.updates} % 2 == 0:", "periodic"), *("    " + line for line in _save(plan))])
    elif r.checkpoint == "epoch":
        plan.epoch_end += _save(plan)
    if r.evaluate == "updates":
        plan.piece("evaluate", [f"if {n.updates} % 2 == 0:", *("    " + line for line in _evaluate(plan))])
    elif r.evaluate == "epoch":
        plan.epoch_end += _evaluate(plan)


def _save(plan: Plan) -> Lines:
    r, n = plan.recipe, plan.n
    kept = {"model": n.model, "optimizer": n.optimizer}
    if r.schedule != "none":
        kept["scheduler"] = n.scheduler
    if r.amp == "scaler":
        kept["scaler"] = n.scaler
    if r.average != "no":
        kept["ema"] = n.ema
    held = ", ".join(f'"{key}": {name}.state_dict()' for key, name in kept.items())
    if r.count != "none":
        held += f', "updates": {n.updates}'
    return [mark(f'torch.save({{{held}}}, "last.pt")', "checkpoint")]


def _evaluate(plan: Plan) -> Lines:
    n = plan.n
    _, x, y = tasks.inputs(plan)
    if "evaluate" not in plan.traits:
        plan.traits.add("evaluate")
        target, *_ = tasks.inputs(plan)
        task = "sum" if plan.recipe.varies else "mean"
        held = dict(plan.objects)
        body = tasks._formula(plan, task, "network", x, y, False)  # noqa: SLF001 - the same formula, without a window
        plan.objects = held
        plan.definitions += [
            "", "", "@torch.no_grad()", "def evaluate(network, loader):", "    network.eval()", "    total = 0.0",
            f"    for {target} in loader:", *("        " + line for line in body), f"        total += {n.bare('loss')}.item()", "    network.train()",
            "    return total / len(loader)",
        ]  # fmt: skip
        plan.objects["val_loader"] = ""
    return [f'print(f"validation {{evaluate({n.model}, {n.val_loader}):.4f}}")']
