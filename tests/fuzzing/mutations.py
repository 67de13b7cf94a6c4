"""Ways of breaking a correct loop, each with the rules that may be said of it and the lines at which.

A mutation changes the plan of a loop, never its text, and says whether it applies. Lines are named by marks: ``fault``
is what a mutation wrote itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .idioms import dialects, tasks, trainer, updates
from .plan import Plan
from .recipes import AHEAD, COUNTED
from .script import Lines, indented, mark, unmarked


@dataclass(frozen=True)
class Mutation:
    """``rules``: any of them is right; ``marks``: where. ``apply`` changes the plan; False where it does not apply."""

    name: str
    rules: frozenset[str]
    marks: tuple[str, ...]
    apply: Callable[[Plan], bool]


ALL: dict[str, Mutation] = {}


def _mutation(name: str, rules: str, *marks: str) -> Callable[[Callable[[Plan], bool]], Callable[[Plan], bool]]:
    def register(apply: Callable[[Plan], bool]) -> Callable[[Plan], bool]:
        ALL[name] = Mutation(name, frozenset(rules.split()), marks, apply)
        return apply

    return register


def _managed(plan: Plan) -> bool:
    """Accelerate gates steps and clears by itself."""
    return plan.recipe.window in ("accumulate", "automatic", "compute_loss")


def _driven(plan: Plan) -> bool:
    """A Trainer does everything that belongs to an update."""
    return plan.recipe.window in ("automatic", "compute_loss")


def _moved(plan: Plan, *pieces: str, into: Lines | None = None) -> bool:
    """Pieces of the update run in every microbatch instead."""
    if any(piece not in plan.update for piece in pieces):
        return False
    for piece in pieces:
        (plan.after if into is None else into).extend(mark(line, "fault") for line in plan.update.pop(piece))
    return True


def _bare(plan: Plan) -> bool:
    """Nothing but the gate decides about communication."""
    return plan.recipe.ddp in ("none", "always")


def _without(lines: Lines, name: str) -> Lines:
    return [line for line in lines if not re.search(rf"#@.*\b{name}\b", line)]


# ---- clocks


@_mutation("scheduler in every microbatch", "ACC202", "fault")
def _(plan: Plan) -> bool:
    if "schedule" not in plan.update or _managed(plan):
        return False
    del plan.update["schedule"]
    plan.after.append(mark(f"{plan.n.scheduler}.step()", "fault"))
    return True


@_mutation("optimizer step in every microbatch", "ACC201", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.amp != "no" or _managed(plan):
        return False
    return _moved(plan, "step")


@_mutation("cleared in every microbatch", "ACC204", "fault")
def _(plan: Plan) -> bool:
    if _driven(plan):
        return False
    plan.before.append(mark(f"{plan.n.optimizer}.zero_grad()", "fault"))
    return True


@_mutation("cleared before every backward", "ACC204", "fault")
def _(plan: Plan) -> bool:
    if _driven(plan):
        return False
    plan.forward.append(mark(f"{plan.n.optimizer}.zero_grad(set_to_none=True)", "fault"))
    return True


@_mutation("never cleared", "ACC205", "step", "call")
def _(plan: Plan) -> bool:
    if _driven(plan):
        return False
    plan.window_start = _without(plan.window_start, "clear")
    plan.epoch_batch = _without(plan.epoch_batch, "clear")
    plan.update.pop("clear", None)
    return True


@_mutation("boundary one off", "ACC206", "gate")
def _(plan: Plan) -> bool:
    r, n, k = plan.recipe, plan.n, plan.k
    if not _bare(plan) or r.clear == "begin" or plan.tail == "drop":
        return False
    tail = f" or {plan.last}" if plan.tail == "flush" else ""
    if r.window in ("modulo", "manual"):
        plan.instead = f"{n.i} % {k} == 0{tail}"
    elif r.window == "one based":
        plan.instead = f"({n.i} + 1) % {k} == 0{tail}"
    elif r.window == "skip":
        plan.instead = f"{n.i} % {k} != 0" + (f" and {n.i} + 1 < len({n.loader})" if tail else "")
    elif r.window == "total" and r.gate == "plain":
        plan.instead = f"{n.seen} % {k} == 1"
    else:
        return False
    return True


@_mutation("boundary negated", "ACC207", "gate")
def _(plan: Plan) -> bool:
    r, n, k = plan.recipe, plan.n, plan.k
    if not _bare(plan) or r.clear == "begin" or r.window not in ("modulo", "one based", "skip") or plan.tail == "behind":
        return False
    one = n.i if r.window == "one based" else f"({n.i} + 1)"
    if r.window == "skip":
        plan.instead = f"{one} % {k} == 0"
    else:
        plan.instead = f"{one} % {k} != 0" + (f" or {plan.last}" if plan.tail == "flush" else "")
    return True


@_mutation("the counter of the gate stands still", "ACC213", "gate")
def _(plan: Plan) -> bool:
    if plan.recipe.window != "counter" or plan.recipe.gate != "plain" or plan.tail == "behind":
        return False
    plan.after = _without(plan.after, "count")
    return True


@_mutation("scaler updated in every microbatch", "ACC212", "fault")
def _(plan: Plan) -> bool:
    if "scaler" not in plan.update:
        return False
    *before, line = plan.update.pop("scaler")
    if before:
        plan.update = {name: held for piece, lines in plan.update.items() for name, held in ([("before", before)] if piece == "step" else []) + [(piece, lines)]}
    plan.after.append(mark(line, "fault"))
    return True


@_mutation("scheduler follows a skipped step", "ACC203", "fault")
def _(plan: Plan) -> bool:
    if "schedule" not in plan.update or plan.recipe.amp == "no":
        return False
    plan.update["scaler"] = plan.update["scaler"][-1:]
    plan.update["schedule"] = [mark(f"{plan.n.scheduler}.step()", "fault")]
    return True


@_mutation("a microbatch is left out", "ACC208 ACC601", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.window not in ("modulo", "one based", "skip") or plan.recipe.ddp != "none" or plan.tail == "flush":
        return False
    plan.forward += [mark(f"if not torch.isfinite({plan.n.loss}):", "fault"), mark("    continue", "fault")]
    return True


# ---- weights


def _single(plan: Plan, divisor: str | None) -> None:
    """The mean loss of each microbatch, divided by ``divisor`` (or not at all), with nothing done to gradients."""
    plan.window_start = _without(_without(plan.window_start, "total"), "reduce total")
    plan.after = _without(plan.after, "total")
    plan.update.pop("rescale", None)
    plan.definitions = _without_helper(plan.definitions)
    plan.forward = tasks.loss(plan, "mean")
    plan.backward = [updates.backward(plan, plan.n.loss)]
    if divisor is not None and not plan.divides:
        updates.divide(plan, divisor)


def _without_helper(lines: Lines) -> Lines:
    start = next((i for i, line in enumerate(lines) if line.startswith("def compute_loss")), None)
    if start is None:
        return lines
    stop = next((i for i in range(start + 1, len(lines)) if lines[i] and not lines[i].startswith(" ")), len(lines))
    return [*lines[: max(start - 2, 0)], *lines[stop:]] if stop == len(lines) else [*lines[:start], *lines[stop:]]


@_mutation("mean losses summed", "ACC102", "backward", "loss")
def _(plan: Plan) -> bool:
    if plan.recipe.varies or plan.divides:
        return False
    _single(plan, None)
    return True


@_mutation("divided twice", "ACC103", "fault", "divide", "backward")
def _(plan: Plan) -> bool:
    if plan.recipe.framework == "trainer":
        return False
    plan.forward.append(mark(f"{plan.n.loss} = {plan.n.loss} / {plan.k}", "fault"))
    return True


@_mutation("mean of means", "ACC101", "backward", "loss", "divide")
def _(plan: Plan) -> bool:
    if not plan.recipe.varies or plan.recipe.framework == "trainer":
        return False
    _single(plan, plan.size)
    return True


@_mutation("counted before the shift", "ACC104", "total", "divide")
def _(plan: Plan) -> bool:
    if plan.recipe.task != "causal" or plan.recipe.norm == "share" or plan.recipe.framework == "trainer":
        return False
    _, _, labels = tasks.inputs(plan)
    right, wrong = tasks.valid(plan, labels), tasks.valid(plan, labels, shifted=False)
    plan.window_start = [line.replace(right, wrong) for line in plan.window_start]
    plan.after = [line.replace(right, wrong) for line in plan.after]
    return True


@_mutation("every rank divides by its own targets", "ACC106", "divide", "backward", "total")
def _(plan: Plan) -> bool:
    r, n = plan.recipe, plan.n
    if r.ddp == "none" or not r.varies:
        return False
    plan.window_start = _without(plan.window_start, "reduce total")
    ranks = dialects.of(plan).world(plan)

    def local(lines: Lines) -> Lines:
        out = [line.replace(f"({n.total} / {ranks})", n.total).replace(f" * {ranks}", "") for line in lines]
        return [line.replace(f"(everyone / {ranks})", n.total) for line in _without(out, "reduce total") if not line.startswith("everyone")]

    plan.forward, plan.backward = local(plan.forward), local(plan.backward)
    if "rescale" in plan.update:
        plan.update["rescale"] = local(plan.update["rescale"])
    return True


@_mutation("the average over ranks is not undone", "ACC107", "divide", "backward")
def _(plan: Plan) -> bool:
    r, n = plan.recipe, plan.n
    if r.ddp == "none" or not r.varies:
        return False

    ranks = dialects.of(plan).world(plan)

    def averaged(lines: Lines) -> Lines:
        out = [line.replace(f"({n.total} / {ranks})", n.total).replace(f" * {ranks}", "") for line in lines]
        return [line.replace(f"(everyone / {ranks})", "everyone") for line in out]

    plan.forward, plan.backward = averaged(plan.forward), averaged(plan.backward)
    if "rescale" in plan.update:
        plan.update["rescale"] = averaged(plan.update["rescale"])
    return True


# ---- precision and clipping


@_mutation("clipped in every microbatch", "ACC401", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.amp != "no" or plan.recipe.norm == "gradients" or _driven(plan):
        return False
    if _managed(plan) and "clip" in plan.update:
        plan.update["clip"] = [mark(line.strip(), "fault") for line in plan.update["clip"][1:]]
        return True
    return _moved(plan, "clip")


@_mutation("clipped before the last backward", "ACC403", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.amp != "no" or _driven(plan):
        return False
    return _moved(plan, "clip", into=plan.forward)


@_mutation("clipped before unscaling", "ACC402", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.amp == "no" or "clip" not in plan.update:
        return False
    clip = [mark(line, "fault") for line in plan.update.pop("clip")]
    plan.update = {name: held for piece, lines in plan.update.items() for name, held in ([("clip", clip)] if piece == "unscale" else []) + [(piece, lines)]}
    return True


@_mutation("clipped without unscaling", "ACC402", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.amp == "no" or "clip" not in plan.update or plan.recipe.norm == "gradients":
        return False
    del plan.update["unscale"]
    plan.update["clip"] = [mark(line, "fault") for line in plan.update["clip"]]
    return True


@_mutation("unscaled in every microbatch", "ACC404", "fault")
def _(plan: Plan) -> bool:
    return _moved(plan, "unscale")


# ---- communication


def _sync(name: str, into: str, rules: str, *only: str) -> None:
    def apply(plan: Plan) -> bool:
        if plan.ddp not in only:
            return False
        plan.ddp = into
        return True

    ALL[name] = Mutation(name, frozenset(rules.split()), ("sync",), apply)


_sync("no_sync around the backward only", "context backward", "ACC302", "context")
_sync("the flag is set after the forward", "late flag", "ACC303", "flag")
_sync("never synchronised", "never", "ACC303", "context", "branch", "flag")
_sync("no_sync on the last microbatch", "inverted", "ACC303", "context", "branch")


@_mutation("the step depends on the rank", "ACC601", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.ddp == "none" or plan.recipe.scaffold not in ("flat", "main") or plan.recipe.amp != "no" or plan.recipe.update == "helper":
        return False
    plan.update["step"] = [mark(f"if {dialects.of(plan).first_rank(plan)}:", "fault"), *("    " + line for line in plan.update["step"])]
    return True


# ---- the tail


def _leaks(plan: Plan) -> bool:
    """The tail is neither flushed nor left out any more."""
    r = plan.recipe
    if r.window not in (*COUNTED, "counter", "manual") or plan.tail not in ("flush", "behind", "drop") or r.gate == "remainder":
        return False
    if plan.tail == "flush":
        plan.gate = plan.gate.removesuffix(f" or {plan.last}")
        plan.sync = plan.sync.removesuffix(f" or {plan.last}")
    plan.tail = "leak"
    return True


@_mutation("the tail leaks into the next epoch", "ACC502", "gate")
def _(plan: Plan) -> bool:
    return plan.recipe.clear != "begin" and _leaks(plan)


@_mutation("the tail is computed and dropped", "ACC501", "gate")
def _(plan: Plan) -> bool:
    if plan.recipe.window == "manual" or not _leaks(plan):
        return False
    if plan.recipe.clear != "begin":
        plan.epoch_start.append(mark(f"{plan.n.optimizer}.zero_grad()", "fault"))
    if plan.recipe.decoy == "critic":
        plan.epoch_start.append(f"{plan.n.critic_optimizer}.zero_grad()")
    return True


@_mutation("the tail is divided as if it were full", "ACC503", "gate", "flush", "divide")
def _(plan: Plan) -> bool:
    r, n = plan.recipe, plan.n
    if r.varies or plan.tail not in ("flush", "behind") or plan.size == plan.k or _managed(plan):  # there the framework does that
        return False

    def full(lines: Lines) -> Lines:
        return [line.replace(f"size = {plan.size}", f"size = {plan.k}").replace(plan.size if r.window in AHEAD else "\0", plan.k) for line in lines]

    if r.norm == "gradients":
        plan.update["rescale"] = [line.replace(n.pending, plan.k).replace(f"len({n.window})", plan.k) for line in plan.update["rescale"]]
    else:
        plan.forward, plan.backward = full(plan.forward), full(plan.backward)
    return True


# ---- books


@_mutation("the average moves in every microbatch", "ACC703", "fault")
def _(plan: Plan) -> bool:
    return _moved(plan, "average")


@_mutation("updates counted in every microbatch", "ACC701", "limit", "fault", "periodic")
def _(plan: Plan) -> bool:
    return plan.recipe.count == "limit" and _moved(plan, "count")


@_mutation("due every so many updates, tested in every microbatch", "ACC702", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.window not in (*COUNTED, "counter", "total", "accumulate") or plan.recipe.window == "skip":
        return False
    return _moved(plan, "checkpoint", into=plan.afterwards)


@_mutation("checkpoint in the middle of a window", "ACC705", "fault")
def _(plan: Plan) -> bool:
    if "checkpoint" not in plan.update or plan.recipe.window not in ("modulo", "one based"):
        return False
    save = plan.update.pop("checkpoint")[-1]
    plan.after += [mark(f"if {plan.n.i} % 4 == 0:", "fault"), mark(save, "fault")]
    return True


def _forgets(name: str, key: str) -> None:
    def apply(plan: Plan) -> bool:
        pattern = re.compile(rf'"{key}": [\w.]+\.state_dict\(\), |, "{key}": [\w.]+\.state_dict\(\)')
        found = False
        for lines in (plan.epoch_end, *plan.update.values()):
            for i, line in enumerate(lines):
                if "torch.save" in line and pattern.search(line):
                    lines[i] = pattern.sub("", line)
                    found = True
        return found

    ALL[name] = Mutation(name, frozenset({"ACC704"}), ("checkpoint",), apply)


_forgets("the checkpoint lacks the scheduler", "scheduler")
_forgets("the checkpoint lacks the scaler", "scaler")


@_mutation("the schedule is as long as the microbatches", "ACC801", "horizon")
def _(plan: Plan) -> bool:
    if plan.recipe.schedule != "cosine" or plan.recipe.window == "stream":
        return False
    length = "self.trainer.num_training_batches" if plan.recipe.framework == "lightning" else f"len({plan.n.loader})"
    plan.total_updates = f"{length} * {plan.n.epochs}"
    return True


# ---- frameworks


@_mutation("backward without the accelerator", "ACC102", "backward")
def _(plan: Plan) -> bool:
    if plan.recipe.window != "accumulate" or plan.recipe.norm != "loss":
        return False
    plan.backward = [mark(f"{plan.n.loss}.backward()", "backward")]
    return True


@_mutation("the optimizer is not prepared", "ACC201", "step", "call")
def _(plan: Plan) -> bool:
    if plan.recipe.window != "accumulate":
        return False
    plan.raw.add("optimizer")
    return True


@_mutation("the scheduler is not prepared", "ACC202", "schedule", "call")
def _(plan: Plan) -> bool:
    if plan.recipe.window != "accumulate" or "schedule" not in plan.update:
        return False
    plan.raw.add("scheduler")
    return True


@_mutation("cleared past the accelerator", "ACC204", "fault")
def _(plan: Plan) -> bool:
    if plan.recipe.window != "accumulate":
        return False
    plan.epoch_batch.append(mark(f"{plan.n.model}.zero_grad()", "fault"))
    return True


@_mutation("counted again inside of accumulate", "ACC209 ACC501 ACC502", "fault")
def _(plan: Plan) -> bool:
    """The windows are the same ones, but for the tail, of which only the accelerator knows."""
    if plan.recipe.window != "accumulate" or plan.recipe.update == "helper" or plan.recipe.tail == "carry":
        return False
    held = {name: lines for name, lines in plan.update.items() if name in ("step", "schedule", "clear")}
    first = True
    for name, lines in held.items():
        test = f"if ({plan.n.i} + 1) % {plan.k} == 0:"
        plan.update[name] = [mark(test, "fault") if first else test, *indented(lines)]
        first = False
    return True


@_mutation("the forward goes past the wrapper", "ACC303", "loss", "fault", "backward")
def _(plan: Plan) -> bool:
    if plan.recipe.ddp == "none" or plan.recipe.loss == "helper":
        return False
    whole = f"{plan.n.model}("
    plan.forward = [mark(line.replace(whole, f"{dialects.of(plan).bare(plan)}("), "fault") if whole in line else line for line in plan.forward]
    return True


@_mutation("the schedule is as long as the microbatches of all epochs times K", "ACC801", "horizon")
def _(plan: Plan) -> bool:
    if plan.recipe.window != "accumulate" or plan.recipe.schedule != "cosine" or plan.recipe.tail == "carry":  # there it is the microbatches
        return False
    plan.total_updates = f"{plan.total_updates} * {plan.k}"
    return True


def _automatic(name: str, rules: str, line: str, ahead: bool = False) -> None:
    """A call in ``training_step`` of what the Trainer does by itself."""

    def apply(plan: Plan) -> bool:
        if plan.recipe.window != "automatic" or "scheduler" in line and plan.recipe.schedule == "none":
            return False
        if line.endswith("optimizers().step()") and plan.recipe.clip != "no":
            return False  # the hook that clips is called by every step, here before there are gradients
        (plan.before if ahead else plan.after).append(mark(line, "fault"))
        return True

    ALL[name] = Mutation(name, frozenset(rules.split()), ("fault",), apply)


_automatic("the module steps the optimizer as well", "ACC201", "self.optimizers().step()")
_automatic("the module steps the scheduler as well", "ACC202", "self.lr_schedulers().step()")
_automatic("the module clears in every microbatch", "ACC204", "self.zero_grad()", ahead=True)


@_mutation("clipped after every backward of the trainer", "ACC401", "clip")
def _(plan: Plan) -> bool:
    if plan.recipe.window != "automatic" or "clip" not in plan.update:
        return False
    plan.traits.add("clip in every backward")
    plan.update["clip"] = [line.replace(f"self.clip_gradients({plan.n.optimizer}", "self.clip_gradients(self.optimizers()") for line in plan.update["clip"]]
    return True


@_mutation("a mean of its own in compute_loss", "ACC102", "loss", "backward")
def _(plan: Plan) -> bool:
    if plan.recipe.framework != "trainer":
        return False
    plan.forward = ['labels = inputs["labels"]', "outputs = model(**inputs)", *trainer.cross_entropy(plan, "")]
    return True


@_mutation("super().compute_loss without the count", "ACC102", "loss", "backward")
def _(plan: Plan) -> bool:
    if plan.recipe.framework != "trainer" or plan.recipe.norm != "framework":
        return False
    plan.forward = [line.replace(", num_items_in_batch=num_items_in_batch", "") for line in plan.forward]
    return True


@_mutation("divided by K in compute_loss", "ACC103", "fault", "divide", "backward")
def _(plan: Plan) -> bool:
    if plan.recipe.framework != "trainer":
        return False
    plan.forward.append(mark(f"{plan.n.loss} = {plan.n.loss} / self.args.gradient_accumulation_steps", "fault"))
    return True


def named(name: str) -> Mutation:
    return ALL[name]


__all__ = ["ALL", "Mutation", "named", "unmarked"]
