"""Numbers as their decimal text says them: exact rationals, no rounding on the way.

``1.2`` in a manifest means 12/10, not the nearest double: ``fsum([1.2, 4.8, 0.4]) / 10`` is 0.6399999999999999
in doubles and 16/25 here. In memory a *measured* value is

- an ``int``,
- a ``float`` whose shortest text (``repr``) has the same decimal value as the text that was read, so that
  nothing is lost although a double needs half the memory of its text, or
- a ``str`` with the grammar of a JSON number (:class:`NumberText` where a number token was read).
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Union

from accumlint.receipt.limits import (
    MAX_COMMON_BITS,
    MAX_DIGITS,
    MAX_EXPONENT,
    MAX_INTEGER,
    MAX_RATIONAL_DIGITS,
)

Measured = Union[int, float, str]

NUMBER_PATTERN = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_NUMBER = re.compile(NUMBER_PATTERN + r"\Z", re.ASCII)

# Enough digits for a sum of eight million numbers of 64 digits with exponents of +-400; a result that would
# need rounding raises instead (decimal.Inexact), so "exact" is enforced and not assumed.
EXACT = decimal.Context(
    prec=4_000,
    Emax=decimal.MAX_EMAX,
    Emin=decimal.MIN_EMIN,
    traps=[decimal.Inexact, decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
)
_ROUND_100 = decimal.Context(
    prec=100, rounding=decimal.ROUND_HALF_EVEN, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[]
)
_ROUND_17 = decimal.Context(
    prec=17, rounding=decimal.ROUND_HALF_EVEN, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, traps=[]
)


class NumberText(str):
    """A number token whose value is not the shortest text of a double; the text itself is kept."""

    __slots__ = ()


class NonFinite:
    """Stands for NaN, Infinity or -Infinity in a document until the validator refuses it at its place."""

    __slots__ = ("token",)

    def __init__(self, token: str):
        self.token = token

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NonFinite) and other.token == self.token

    def __hash__(self) -> int:
        return hash(self.token)


class _Small(dict):
    def __missing__(self, text: str) -> int:
        value = self[text] = int(text)
        return value


_small = _Small()


def read_integer(text: str) -> int | NumberText:
    """The value of an integer token. Short ones are shared objects; very long ones stay text, to be refused."""
    if len(text) <= 4:
        return _small[text]
    return int(text) if len(text) <= MAX_DIGITS + 1 else NumberText(text)


def read_decimal(text: str) -> float | NumberText:
    """The value of a number token with a fraction or an exponent, without losing a digit."""
    if len(text) > 1_024:
        return NumberText(text)  # to be refused; not worth the conversion
    value = float(text)
    if repr(value) == text:
        return value
    if len(text) <= 32 and math.isfinite(value) and _bounded(text) and Decimal(text) == Decimal(repr(value)):
        return value
    return NumberText(text)


def _bounded(text: str) -> bool:
    """Whether digits and exponent of a number text are within the caps (checked on the text, so it is cheap)."""
    mantissa, _, exponent = text.replace("E", "e").partition("e")
    if len(exponent.lstrip("+-").lstrip("0")) > 3 or (exponent and abs(int(exponent)) > MAX_EXPONENT):
        return False
    return len(mantissa.lstrip("-").replace(".", "").lstrip("0")) <= MAX_DIGITS and len(mantissa) <= 512


def refusal(value: Any) -> str | None:
    """The reason code with which ``value`` is refused as a measured number, None when it is one."""
    kind = type(value)
    if kind is float:
        return None if math.isfinite(value) else "number-nonfinite"
    if kind is int:
        return None if value.bit_length() <= 212 else "number-unsafe"  # 212 bits: at most 64 digits
    if kind is bool:
        return "boolean-as-number"
    if kind is NonFinite:
        return "number-nonfinite"
    if isinstance(value, str):
        if len(value) > 1_024:
            return "number-unsafe" if kind is NumberText else "type"
        if not _NUMBER.match(value):
            return "type"
        if not math.isfinite(float(value)):
            return "number-nonfinite"
        return None if _bounded(value) else "number-unsafe"
    return "type"


def to_decimal(value: Measured) -> Decimal:
    """The exact value of a measured number (which :func:`refusal` lets pass)."""
    return Decimal(repr(value)) if type(value) is float else Decimal(value)


def to_fraction(value: Measured) -> Fraction:
    """The exact value of a measured number as a rational."""
    return Fraction(value) if type(value) is int else Fraction(to_decimal(value))


def exact_sum(values: Iterable[Measured]) -> Fraction:
    """The exact sum of measured numbers, in linear time (one decimal accumulator, never rounded)."""
    add = EXACT.add
    total = Decimal(0)
    for value in values:
        total = add(total, Decimal(repr(value)) if type(value) is float else Decimal(value))
    return Fraction(total)


def sum_of_quotients(pairs: Sequence[tuple[Fraction, int]]) -> Fraction:
    """``sum(value / count)`` over pairs with counts above 0.

    Exact as long as the counts have a common multiple of at most 8,192 bits (a few hundred different counts).
    Beyond, the common denominator would grow with every count and the cost with its square: each quotient is
    then rounded once to 100 significant digits, half to even, and the rounded ones are summed exactly.
    """
    common = 1
    for _, count in pairs:
        common = math.lcm(common, count)
        if common.bit_length() > MAX_COMMON_BITS:
            add, divide = EXACT.add, _ROUND_100.divide
            total = Decimal(0)
            for value, by in pairs:
                total = add(total, divide(Decimal(value.numerator), Decimal(value.denominator * by)))
            return Fraction(total)
    scale = math.lcm(*(value.denominator for value, _ in pairs))
    whole = sum(value.numerator * (scale // value.denominator) * (common // count) for value, count in pairs)
    return Fraction(whole, common * scale)


def canonical(value: Measured) -> Measured:
    """The one form in which a measured number stands in a receipt.

    An integer within 2^53 - 1 is an integer; a value that is the shortest text of a double is that double;
    everything else is decimal text, coefficient and exponent (``"123e-30"``), which no reader rounds.
    """
    if type(value) is float and not value.is_integer():
        return value
    number = to_decimal(value)
    if number == 0:
        return 0
    if number == number.to_integral_value() and abs(number) <= MAX_INTEGER:
        return int(number)
    nearest = float(number)
    if math.isfinite(nearest) and not nearest.is_integer() and Decimal(repr(nearest)) == number:
        return nearest
    sign, digits, exponent = number.as_tuple()
    coefficient = "".join(map(str, digits)).lstrip("0")
    short = coefficient.rstrip("0")
    return f"{'-' if sign else ''}{short}e{exponent + len(coefficient) - len(short)}"


def decimal_text(value: Fraction) -> str:
    """``value`` with up to 17 significant digits, half to even; exact whenever the expansion ends before that."""
    rounded = _ROUND_17.divide(Decimal(value.numerator), Decimal(value.denominator))
    if rounded == 0:
        return "0"
    text = format(rounded, "f") if -7 <= rounded.adjusted() < 21 else format(rounded, "E").lower()
    mantissa, mark, exponent = text.partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return mantissa + mark + exponent


def exact(value: Fraction | None) -> dict[str, str | None] | None:
    """An exact result as it stands in a receipt: ``{"decimal": "0.64", "rational": "16/25"}``.

    A rational with more than 64 digits above or below the line is given as None: it can be derived from the
    rows, and a window of hundreds of different counts has denominators of thousands of digits.
    """
    if value is None:
        return None
    # 213 bits hold every number of 64 digits; the bit length is known without writing the number down
    long = max(value.numerator.bit_length(), value.denominator.bit_length()) > 213
    rational = None if long else str(value)
    if rational is not None and max(map(len, rational.lstrip("-").split("/"))) > MAX_RATIONAL_DIGITS:
        rational = None
    return {"decimal": decimal_text(value), "rational": rational}
