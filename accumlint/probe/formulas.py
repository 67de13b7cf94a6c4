"""What the weights of a window amount to, by name, and how far apart the formulas are on its counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

TOKEN_MEAN = "token mean"
MEAN_OF_MEANS = "mean of means"
SUM_OF_MEANS = "sum of means"
TOKEN_SUM = "token sum"


@dataclass(frozen=True)
class Named:
    """A formula that explains all weights of a window; ``factor``: what every weight is multiplied with beside it."""

    formula: str
    factor: Fraction = Fraction(1)

    @property
    def right(self) -> bool:
        return self.formula == TOKEN_MEAN and self.factor == 1

    def __str__(self) -> str:
        if self.factor == 1:
            return self.formula
        return f"{self.formula} × {self.factor}"


def name(counts: Sequence[Sequence[Fraction]], ratios: Sequence[Sequence[Fraction]], size: int, k: int) -> Named | None:
    """The formula of a window; None when none fits.

    ``counts`` and ``ratios`` (``weight × N`` with N over all ranks) are per rank and microbatch; ``size`` microbatches of
    the window, ``k`` the configured number. Microbatches without targets say nothing.
    """
    flat = [(rank, n, r) for rank, (ns, rs) in enumerate(zip(counts, ratios)) for n, r in zip(ns, rs) if n]
    if not flat:
        return None
    whole = sum((n for _, n, _ in flat), Fraction(0))
    world = len(counts)
    local = [sum(ns, Fraction(0)) for ns in counts]
    shapes = {
        TOKEN_MEAN: [Fraction(1) for _ in flat],
        "mean over ranks of the ranks' token means": [whole / (local[rank] * world) for rank, _, _ in flat],
        MEAN_OF_MEANS: [whole / (n * size * world) for _, n, _ in flat],
        TOKEN_SUM: [whole for _ in flat],
    }
    measured = [r for _, _, r in flat]
    for formula, wanted in shapes.items():
        if measured == wanted:
            return Named(formula)
    factors = {Fraction(1, k): "", Fraction(1, size): ""}
    for formula in (TOKEN_MEAN, MEAN_OF_MEANS):
        wanted = shapes[formula]
        quotients = {a / b for a, b in zip(measured, wanted)}
        if len(quotients) == 1:
            factor = quotients.pop()
            if formula == MEAN_OF_MEANS and factor == size:
                return Named(SUM_OF_MEANS)
            if formula == TOKEN_MEAN and len({n for _, n, _ in flat}) == 1 and factor == size:
                return Named(SUM_OF_MEANS)
            if formula == TOKEN_MEAN or factor in factors or factor.numerator < 1000:
                return Named(formula, factor)
    return None


def separation(counts: Sequence[Sequence[Fraction]]) -> float:
    """Relative L2 distance between the weights of the token mean and of the mean of means, over all targets; 0 is none."""
    flat = [n for ns in counts for n in ns if n]
    if len(flat) < 2:
        return 0.0
    whole = sum(flat, Fraction(0))
    square = sum((n * (whole / (n * len(flat)) - 1) ** 2 for n in flat), Fraction(0)) / whole
    return float(square) ** 0.5
