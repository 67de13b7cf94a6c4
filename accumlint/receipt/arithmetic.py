"""The arithmetic of the contract, in exact rationals: full batch, accumulated, and the mean of means.

Three views of one window. The *reference* is the full batch: all numerators over all valid targets. The
*accumulated* view follows the run's own loss policy, microbatch by microbatch and rank by rank. The *naive*
view is the mean of microbatch means, whatever the policy: it shows whether the data could tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from accumlint.receipt.manifest import Manifest, Rows, Window
from accumlint.receipt.numbers import Measured, exact_sum, sum_of_quotients, to_fraction
from accumlint.receipt.plan import rank_factor


@dataclass(frozen=True)
class View:
    """Loss and gradient components of one window under one formula; None where it is undefined."""

    loss: Fraction | None
    gradients: tuple[Fraction, ...] | None


@dataclass(frozen=True)
class Weights:
    """Weight of a valid target: smallest, largest, and the mass (sum over all valid targets; right: 1)."""

    smallest: Fraction | None
    largest: Fraction | None
    mass: Fraction


@dataclass(frozen=True)
class WindowSums:
    """Exact sums of one window over all ranks, its three views, and the weights of two of them.

    ``gradients`` is None when a component was not recorded (nonfinite window). ``naive`` is None when a
    microbatch has no valid target: its mean does not exist.
    """

    window: Window
    targets: int
    loss: Fraction
    gradients: tuple[Fraction, ...] | None
    reference: View
    accumulated: View
    naive: View | None
    accumulated_weights: Weights
    naive_weights: Weights | None


def divisor(policy: str, window: Window, steps: int, count: int, rank_targets: int, targets: int) -> int:
    """What the run divides the loss sum of one microbatch by, before ranks are combined.

    ``count`` is the microbatch's number of valid targets, ``rank_targets`` its rank's and ``targets`` the
    window's over all ranks; ``steps`` is K. 0 when the run divides by nothing it has (an empty microbatch).
    """
    if policy == "window-targets":
        return targets
    if policy == "rank-targets":
        return rank_targets
    if policy == "microbatch-mean":
        return count * window.size
    if policy == "microbatch-mean-fixed":
        return count * steps
    return 1  # undivided


def quotient_sum(values: Sequence[Measured], counts: Sequence[int]) -> Fraction:
    """``sum(value / count)`` (see :func:`~accumlint.receipt.numbers.sum_of_quotients` on exactness).

    Pairs with count 0 must have value 0 and contribute nothing.
    """
    by_count: dict[int, list[Measured]] = {}
    for value, count in zip(values, counts):
        if count:
            by_count.setdefault(count, []).append(value)
    return sum_of_quotients([(exact_sum(group), count) for count, group in by_count.items()])


def window_sums(manifest: Manifest, window: Window) -> WindowSums:
    """Everything the receipt says about one window, exact."""
    settings = manifest.document
    policy, steps = settings["loss_policy"], settings["accumulation_steps"]
    factor = rank_factor(settings)
    rows, world = window.rows, len(manifest.ranks)
    counts = [rank.valid_targets[rows] for rank in manifest.ranks]
    rank_targets = [sum(column) for column in counts]
    targets = sum(rank_targets)
    flat_counts = [n for column in counts for n in column]
    has_empty = 0 in flat_counts

    def view_of(columns: list[Sequence[Measured]]) -> tuple[Fraction | None, ...]:
        """(sum, reference, accumulated, naive) of one quantity, given its rows by rank."""
        flat = [x for column in columns for x in column]
        by_rank = [exact_sum(column) for column in columns]  # what each rank holds after its last backward
        total = sum(by_rank, Fraction(0))
        reference = exact_sum(flat) / targets if targets else None
        means = quotient_sum(flat, flat_counts)
        naive = None if has_empty else means / (window.size * world)
        accumulated: Fraction | None
        if policy == "window-targets":
            accumulated = factor * total / targets if targets else None
        elif policy == "rank-targets":
            accumulated = None
            if 0 not in rank_targets:
                accumulated = factor * sum_of_quotients(list(zip(by_rank, rank_targets)))
        elif policy == "undivided":
            accumulated = factor * total
        else:
            by = window.size if policy == "microbatch-mean" else steps
            accumulated = None if has_empty else factor * means / by
        return total, reference, accumulated, naive

    loss = view_of([rank.loss[rows] for rank in manifest.ranks])
    gradients: list[tuple] | None = []
    for component in range(manifest.components):
        columns = [rank.gradients[component][rows] for rank in manifest.ranks]
        if any(None in column for column in columns):
            gradients = None
            break
        gradients.append(view_of(columns))  # type: ignore[arg-type]

    def pick(position: int) -> View:
        if gradients is None or any(g[position] is None for g in gradients):
            return View(loss[position], None)
        return View(loss[position], tuple(g[position] for g in gradients))

    return WindowSums(
        window=window,
        targets=targets,
        loss=loss[0],
        gradients=None if gradients is None else tuple(g[0] for g in gradients),
        reference=pick(1),
        accumulated=pick(2),
        naive=None if has_empty else pick(3),
        accumulated_weights=_weights(policy, window, steps, counts, rank_targets, targets, factor),
        naive_weights=None
        if has_empty
        else _weights("microbatch-mean", window, steps, counts, rank_targets, targets, Fraction(1, world)),
    )


def _weights(
    policy: str,
    window: Window,
    steps: int,
    counts: list[Sequence[int]],
    rank_targets: list[int],
    targets: int,
    factor: Fraction,
) -> Weights:
    """Extremes and mass of the weights; a microbatch without targets weighs nothing and is left out."""
    filled = 0
    smallest = largest = 0
    for column, of_rank in zip(counts, rank_targets):
        for count in set(column):
            if count:
                by = divisor(policy, window, steps, count, of_rank, targets)
                smallest = min(smallest, by) if smallest else by
                largest = max(largest, by)
        filled += sum(map(bool, column))
    if not filled:
        return Weights(None, None, Fraction(0))
    # the sum of count / divisor over the microbatches, without a common denominator of all counts
    mass = {
        "window-targets": Fraction(1),
        "rank-targets": Fraction(sum(map(bool, rank_targets))),
        "microbatch-mean": Fraction(filled, window.size),
        "microbatch-mean-fixed": Fraction(filled, steps),
        "undivided": Fraction(targets),
    }[policy]
    return Weights(factor / largest, factor / smallest, factor * mass)


def microbatch_weight(
    manifest: Manifest, window: Window, rows: Rows, position: int, naive: bool = False
) -> Fraction | None:
    """Weight that each valid target of one microbatch gets; None for a microbatch without any.

    ``naive`` asks for the mean of means instead of the run's policy. Costs the size of the window: meant for
    pictures and short listings.
    """
    count = rows.valid_targets[position]
    if count == 0:
        return None
    settings = manifest.document
    policy = "microbatch-mean" if naive else settings["loss_policy"]
    factor = Fraction(1, len(manifest.ranks)) if naive else rank_factor(settings)
    of_rank = sum(rows.valid_targets[window.rows]) if policy == "rank-targets" else 1
    targets = (
        sum(sum(rank.valid_targets[window.rows]) for rank in manifest.ranks)
        if policy == "window-targets"
        else 1
    )
    return factor / divisor(policy, window, settings["accumulation_steps"], count, of_rank, targets)


def accept_scalar(accumulated: Fraction, reference: Fraction, tolerances: Mapping[str, Any]) -> bool:
    """The scalar acceptance expression of the plan, evaluated exactly."""
    absolute, relative = to_fraction(tolerances["absolute"]), to_fraction(tolerances["relative"])
    return abs(accumulated - reference) <= absolute + relative * abs(reference)


def accept_vector(
    accumulated: Sequence[Fraction], reference: Sequence[Fraction], tolerances: Mapping[str, Any]
) -> bool:
    """The vector acceptance expression of the plan (largest component), evaluated exactly."""
    if not reference:
        return True
    absolute, relative = to_fraction(tolerances["absolute"]), to_fraction(tolerances["relative"])
    return max(abs(a - r) for a, r in zip(accumulated, reference)) <= absolute + relative * max(
        abs(r) for r in reference
    )


def accept_weight(weight: Fraction, targets: int, tolerances: Mapping[str, Any]) -> bool:
    """The weight acceptance expression of the plan, evaluated exactly."""
    return abs(weight * targets - 1) <= to_fraction(tolerances["weight"])


def accept(view: View, reference: View, tolerances: Mapping[str, Any]) -> bool | None:
    """Whether a view agrees with the reference; None when either is undefined."""
    if view.loss is None or reference.loss is None:
        return None
    agreed = accept_scalar(view.loss, reference.loss, tolerances)
    if view.gradients is not None and reference.gradients is not None:
        agreed = agreed and accept_vector(view.gradients, reference.gradients, tolerances)
    return agreed
