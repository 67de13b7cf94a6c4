"""From a recipe to a script: a correct training loop, or one with a known fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from .idioms import scaffolds, tasks, updates, windows
from .idioms.names import names
from .plan import Plan, State
from .recipes import Recipe
from .script import Script, finished, mark

K = 3
LENGTH = tasks.LENGTH
EPOCHS = scaffolds.EPOCHS


def planned(recipe: Recipe) -> Plan:
    """The pieces of the correct loop of a recipe."""
    plan = Plan(recipe, names(recipe.names))
    scaffolds.settings(plan)
    runs = recipe.scaffold == "class"
    if runs:
        # counters that outlive an epoch are attributes
        carried = {"counter": {"pending"} if recipe.tail == "carry" else set(), "total": {"seen"}}.get(recipe.window, set())
        kept = set(carried)
        if recipe.tail == "carry" and recipe.norm == "gradients":
            kept |= {"total", "pending"}
        if recipe.tail == "carry" and recipe.window == "buffer":
            kept.add("window")
        if recipe.count != "none":
            kept.add("updates")
        plan.n.held = plan.n.held | kept
    windows.prepare(plan)
    updates.normalise(plan)
    updates.clock(plan)
    _decoys(plan)
    updates.books(plan)
    return plan


def _decoys(plan: Plan) -> None:
    """Things that look like accumulation gone wrong and are not."""
    r, n = plan.recipe, plan.n
    if r.decoy == "probe":
        line = f"norm = sum(p.grad.norm() ** 2 for p in {n.model}.parameters() if p.grad is not None) ** 0.5"
        place = "step" if r.amp == "no" else None
        plan.update = {name: lines for piece, held in plan.update.items() for name, lines in ([("probe", [line])] if piece == place else []) + [(piece, held)]}
    elif r.decoy == "critic":
        _, x, _ = tasks.inputs(plan)
        plan.objects["critic"] = "nn.Linear(4, 1)"
        plan.objects["critic_optimizer"] = f"torch.optim.SGD({n.critic}.parameters(), lr=0.01)"
        plan.after += [f"critic_loss = {n.critic}({x}.detach()).pow(2).mean() / {plan.k}", "critic_loss.backward()"]
        plan.piece("critic", [f"{n.critic_optimizer}.step()", f"{n.critic_optimizer}.zero_grad()"])


def script(recipe: Recipe, mutate: Callable[[Plan], bool] | None = None) -> Script | None:
    """The script of a recipe; with a mutation, None where it does not apply."""
    plan = planned(recipe)
    if mutate is not None and not mutate(plan):
        return None
    scaffolds.objects(plan)
    return finished(scaffolds.write(plan))


@dataclass(frozen=True)
class Truth:
    """What a correct loop does in a run of two epochs: microbatches (counted by their backwards) of every window."""

    windows: tuple[tuple[int, ...], ...]
    pending: tuple[int, ...]
    tail: Fraction = Fraction(1)  # times what it should be weighs a target of a short window


def truth(recipe: Recipe) -> Truth:
    """The windows of the correct loop, from the recipe alone."""
    if recipe.window == "stream":
        return _cut(4 * K, [K] * 4)
    epoch = {"drop": [K] * (LENGTH // K), "flush": [K, K, LENGTH - 2 * K], "behind": [K, K, LENGTH - 2 * K]}.get(recipe.tail)
    if epoch is not None:
        made = _cut(sum(epoch) * EPOCHS, epoch * EPOCHS)
        framework = recipe.window in ("accumulate", "automatic") and recipe.norm == "loss"  # it divides by K whatever the window holds
        return replace(made, tail=Fraction(epoch[-1], K)) if framework else made
    total = LENGTH * EPOCHS
    if recipe.window == "buffer":
        return _cut(total // K * K, [K] * (total // K))  # what is left in the list is never back-propagated
    return _cut(total, [K] * (total // K))


def _cut(total: int, sizes: list[int]) -> Truth:
    out, start = [], 0
    for size in sizes:
        out.append(tuple(range(start, start + size)))
        start += size
    return Truth(tuple(out), tuple(range(start, total)))


__all__ = ["Plan", "Script", "State", "Truth", "mark", "planned", "script", "truth"]
