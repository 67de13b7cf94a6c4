"""Exact numbers of a trace: one rational per rank, times symbols that nobody knows.

A quantity is a monomial: ``rational × symbol^exponent × …``. The rational differs between ranks where the
data does (valid targets), so that one simulation speaks for all ranks. What cannot be written as a monomial
is not a quantity; the caller then keeps an unknown with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

RANKS = 2  # simulated data-parallel ranks: the smallest number that can disagree

# what is added to a count to keep a division alive (1e-8) is no part of the count
EPSILON = Fraction(1, 1000)

Number = "int | Fraction | Quantity"


@dataclass(frozen=True, slots=True)
class Quantity:
    """``ranks[r] × Π symbol^exponent``; ``tags`` say where the number comes from (``K``, ``world``, …)."""

    ranks: tuple[Fraction, ...]
    symbols: tuple[tuple[str, int], ...] = ()
    tags: frozenset[str] = frozenset()

    @staticmethod
    def of(value: int | Fraction, *tags: str) -> Quantity:
        """The same known number on every rank."""
        return Quantity((Fraction(value),) * RANKS, (), frozenset(tags))

    @staticmethod
    def per_rank(values: tuple[int | Fraction, ...], *tags: str) -> Quantity:
        """A known number that differs between ranks."""
        return Quantity(tuple(map(Fraction, values)), (), frozenset(tags))

    @staticmethod
    def symbol(name: str, *tags: str) -> Quantity:
        """A number that nobody knows, by the name under which the script speaks of it."""
        return Quantity((Fraction(1),) * RANKS, ((name, 1),), frozenset(tags))

    @property
    def known(self) -> bool:
        """No symbol is left."""
        return not self.symbols

    @property
    def uniform(self) -> bool:
        """The same on every rank (as far as known)."""
        return all(value == self.ranks[0] for value in self.ranks)

    @property
    def exact(self) -> Fraction | None:
        """The number itself where it is known and the same on every rank."""
        return self.ranks[0] if not self.symbols and self.uniform else None

    @property
    def integer(self) -> int | None:
        """The number as an int, where it is one on every rank."""
        value = self.exact
        return int(value) if value is not None and value.denominator == 1 else None

    def tagged(self, *tags: str) -> Quantity:
        return Quantity(self.ranks, self.symbols, self.tags | frozenset(tags))

    def __mul__(self, other: int | Fraction | Quantity) -> Quantity:
        other = quantity(other)
        return Quantity(
            tuple(a * b for a, b in zip(self.ranks, other.ranks)),
            _merge(self.symbols, other.symbols, 1),
            self.tags | other.tags,
        )

    def __truediv__(self, other: int | Fraction | Quantity) -> Quantity:
        """Raises ZeroDivisionError when the divisor is zero on some rank."""
        other = quantity(other)
        return Quantity(
            tuple(a / b for a, b in zip(self.ranks, other.ranks)),
            _merge(self.symbols, other.symbols, -1),
            self.tags | other.tags,
        )

    def __neg__(self) -> Quantity:
        return Quantity(tuple(-a for a in self.ranks), self.symbols, self.tags)

    def plus(self, other: int | Fraction | Quantity, sign: int = 1) -> Quantity | None:
        """The sum (or difference), or None where it is no monomial."""
        other = quantity(other)
        tags = self.tags | other.tags
        if not any(other.ranks) or not other.symbols and max(map(abs, other.ranks)) < EPSILON and min(map(abs, self.ranks)) >= 1:
            return Quantity(self.ranks, self.symbols, tags)
        if not any(self.ranks):
            return Quantity(tuple(sign * b for b in other.ranks), other.symbols, tags)
        if "single" in tags:
            # the counts of several microbatches added up are the count of none of them
            tags = tags - {"single"} | {"several"} | ({"clamped several"} if "clamped single" in tags else set())
        if self.symbols != other.symbols:
            return None
        return Quantity(tuple(a + sign * b for a, b in zip(self.ranks, other.ranks)), self.symbols, tags)

    def pointwise(self, other: int | Fraction | Quantity, operation) -> Quantity | None:
        """``operation`` applied rank by rank; None where a symbol is in the way. May raise ArithmeticError."""
        other = quantity(other)
        if self.symbols or other.symbols:
            return None
        return Quantity(
            tuple(Fraction(operation(a, b)) for a, b in zip(self.ranks, other.ranks)), (), self.tags | other.tags
        )

    def reduced(self, average: bool = False) -> Quantity:
        """What an all-reduce leaves on every rank: the sum over ranks, or their mean."""
        total = sum(self.ranks, Fraction(0))
        if average:
            total /= len(self.ranks)
        return Quantity((total,) * len(self.ranks), self.symbols, self.tags - {"single"} | {"reduced"})

    def __str__(self) -> str:
        value = str(self.ranks[0]) if self.uniform else "/".join(f"[{v}]" for v in self.ranks)
        return value + "".join(f"·{name}" + (f"^{power}" if power != 1 else "") for name, power in self.symbols)


def quantity(value: int | Fraction | Quantity) -> Quantity:
    """``value`` as a quantity."""
    return value if isinstance(value, Quantity) else Quantity((Fraction(value),) * RANKS)


def _merge(
    left: tuple[tuple[str, int], ...], right: tuple[tuple[str, int], ...], sign: int
) -> tuple[tuple[str, int], ...]:
    if not right:
        return left
    powers = dict(left)
    for name, power in right:
        powers[name] = powers.get(name, 0) + sign * power
    return tuple(sorted((name, power) for name, power in powers.items() if power))
