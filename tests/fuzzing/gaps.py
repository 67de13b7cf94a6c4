"""What is known to go wrong, by kind, with the reason. Strict: a gap that covers a case which no longer fails is reported.

An entry is removed when its reason is; it is never made wider to silence something that nobody has looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import mutations
from .recipes import Recipe


@dataclass(frozen=True)
class Gap:
    """``mutations``: those that are missed (empty string: the correct loop). ``covers``: for exactly which recipes.

    ``example``: the plainest of them.
    """

    mutations: tuple[str, ...]
    covers: Callable[[Recipe], bool]
    example: Recipe
    reason: str


STATIC: tuple[Gap, ...] = (  # what the checker misses, or says of a correct loop
    Gap(
        ("the scheduler is not prepared",), lambda r: r.schedule == "cosine" and r.tail == "flush",
        Recipe(framework="accelerate", window="accumulate", tail="flush", ddp="always", schedule="cosine"),
        "the updates of all ranks together, ceil(16 / 3) * 2, are as many as the microbatches of one rank where the last window "
        "is not counted, 8 // 3 * 3 * 2: a schedule of that length may well be meant to move in every microbatch",
    ),
)  # fmt: skip
RUN: tuple[Gap, ...] = (  # between simulation and run
    Gap(
        ("optimizer step in every microbatch",), lambda r: r.window in ("nested", "stream"), Recipe(window="nested"),
        "with the step inside of it, `for _ in range(K)` is taken for the microbatch loop and walked as far as an epoch, not K times",
    ),
    Gap(
        ("clipped before the last backward",), lambda r: r.clip == "value" and r.window != "accumulate", Recipe(clip="value"),
        "clip_grad_value_ refuses a model without gradients: the run ends there, at the first microbatch",
    ),
    Gap(
        ("boundary one off",), lambda r: r.clip == "value" and r.window == "one based" and r.tail == "behind",
        Recipe(window="one based", tail="behind", clip="value"),
        "clip_grad_value_ refuses a model without gradients: nothing is left for the flush behind the loop",
    ),
    Gap(
        ("clipped before the last backward",), lambda r: r.clip == "norm" and r.norm == "gradients",
        Recipe(task="tokens", norm="gradients", clip="norm"),
        "a division of gradients is told by one factor over the window, and a clip in its middle leaves none",
    ),
    Gap(
        ("clipped before unscaling",), lambda r: r.clip == "norm" and r.norm == "gradients", Recipe(norm="gradients", amp="scaler", clip="norm"),
        "gradients are measured where they are clipped, before that changes their direction: what divides them after it is not seen",
    ),
    Gap(
        ("checkpoint in the middle of a window",), lambda r: True, Recipe(count="updates", checkpoint="updates"),
        "what happens every so many microbatches is simulated every second one, since real periods are longer than what is simulated",
    ),
    Gap(
        ("every rank divides by its own targets",), lambda r: r.norm == "gradients", Recipe(task="tokens", norm="gradients", ddp="always"),
        "a division of gradients over ranks is told by one factor, and every rank has its own",
    ),
    Gap(
        ("", *mutations.ALL), lambda r: r.decoy == "critic", Recipe(decoy="critic"),
        "of two optimizers side by side the recorder weighs the main loss only, and takes their two clears for one more that nobody called",
    ),
    Gap(
        ("the step depends on the rank",), lambda r: True, Recipe(ddp="always"),
        "ranks that do different things have ledgers that cannot be laid over each other: the recorder knows no weights there, by design",
    ),
    Gap(
        ("never synchronised", "no_sync on the last microbatch", "the forward goes past the wrapper"), lambda r: r.norm == "gradients", Recipe(norm="gradients", ddp="context"),
        "a division of gradients over ranks is told by their average, and these gradients were not averaged",
    ),
    Gap(
        ("the flag is set after the forward",), lambda r: r.norm == "gradients", Recipe(norm="gradients", ddp="flag"),
        "a division of gradients over ranks is told by their average, and these gradients were not averaged",
    ),
)  # fmt: skip


def of(recipe: Recipe, mutation: str) -> Gap | None:
    """The gap that explains a wrong answer of the checker."""
    return next((gap for gap in STATIC if mutation in gap.mutations and gap.covers(recipe)), None)


def of_run(recipe: Recipe, mutation: str) -> Gap | None:
    """The gap that explains a disagreement between the simulation and a run."""
    return next((gap for gap in RUN if mutation in gap.mutations and gap.covers(recipe)), None)
