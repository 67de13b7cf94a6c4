"""Measured numbers back to the exact ones that they came from, within what the number type can tell apart."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction

ROUNDOFFS = 16  # unit roundoffs that a weight may be off: a few divisions, each rounded once
COARSEST = 1e-4  # a type that is coarser than this cannot tell the usual formulas apart


def simplest_between(low: Fraction, high: Fraction) -> Fraction:
    """The fraction with the smallest denominator in ``[low, high]``, 0 < low <= high (Stern-Brocot)."""
    whole = low.numerator // low.denominator
    if Fraction(whole) == low:
        return low
    if whole + 1 <= high:
        return Fraction(whole + 1)
    rest = simplest_between(1 / (high - whole), 1 / (low - whole))
    return whole + 1 / rest


def tolerance(roundoff: float) -> float:
    """Relative error within which two weights are the same, from the roundoff of the type that carried them."""
    return max(ROUNDOFFS * roundoff, 1e-12)


def snapped(value: float, candidates: Iterable[Fraction], relative: float) -> Fraction:
    """The first candidate within ``relative`` of ``value``, else the simplest fraction there; 0 stays 0."""
    if value == 0:
        return Fraction(0)
    exact = Fraction(value)
    width = abs(exact) * Fraction(relative)
    for candidate in candidates:
        if abs(candidate - exact) <= width:
            return candidate
    if exact < 0:
        return -snapped(-value, (), relative)
    return simplest_between(exact - width, exact + width)
