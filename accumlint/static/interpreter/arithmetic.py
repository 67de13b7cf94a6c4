"""Arithmetic on quantities, tensors and the unknown."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from accumlint.contract.quantity import Quantity, quantity
from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import counters_in, facts_of
from accumlint.static.interpreter.state import EPOCHS, Frame, K, PERIOD, UPDATES
from accumlint.static.values import Gradient, Parameters, Tensor, Test, Unknown, last_name

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "&": operator.and_, "|": operator.or_, "^": operator.xor,
    "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip


class Arithmetic:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def numeric(self, value: Any) -> Quantity | None:
        """A value as a quantity; an unknown becomes a symbol of its own name."""
        if isinstance(value, bool):
            return None
        if isinstance(value, (int, Fraction)):
            return quantity(value)
        if isinstance(value, Quantity):
            return value
        if isinstance(value, Unknown):
            tags = set(value.tags)
            if "resume" in tags and value.batch < 0:
                # whatever was saved, simulation goes on from the start of a window
                return Quantity.of(0, "resume", f"resumed:{last_name(value.key)}")
            if value.batch >= 0:
                tags.add(f"batch {value.batch}")
                if value.local:
                    tags.add("local")
            return Quantity.symbol(value.key, *tags)
        return None

    def _binary(self, node: ir.Binary, frame: Frame) -> Any:
        left, right = self.eval(node.left, frame), self.eval(node.right, frame)
        return self.binary(node.op, left, right, node.site, self.key(node), node)

    def binary(self, op: str, left: Any, right: Any, site: int, key: str, node: ir.Binary | None = None) -> Any:
        if isinstance(left, int) and isinstance(right, int) and not isinstance(left, bool) and not isinstance(right, bool):
            return self._integers(op, left, right, key, site)
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            return self.registry.tensor_binary(self, op, left, right, site, key, node)
        if isinstance(left, (list, tuple)) and op == "+" and type(left) is type(right):
            return left + right if len(left) + len(right) < 256 else left
        if isinstance(left, list) and op == "*" and isinstance(right, (int, Quantity)):
            times = quantity(right).integer
            return left * times if times is not None and 0 <= times * len(left) < 64 else left
        if isinstance(left, Parameters) and isinstance(right, Parameters) and op == "+":
            both = None if left.models is None or right.models is None else left.models | right.models
            return Parameters(both)
        if isinstance(left, str) or isinstance(right, str):
            return left + right if isinstance(left, str) and isinstance(right, str) and op == "+" else Unknown(key)
        if isinstance(left, Gradient) or isinstance(right, Gradient):
            return left if isinstance(left, Gradient) else right
        if isinstance(left, Test) or isinstance(right, Test):
            if op in ("&", "|"):
                return Test("and" if op == "&" else "or", (left, right), key, *facts_of(left, right))
            return Unknown(key, *facts_of(left, right))
        one, two = self.numeric(left), self.numeric(right)
        if one is None or two is None:
            return Unknown(key, *facts_of(left, right))
        return self._quantities(op, one, two, left, right, key, site)

    def _integers(self, op: str, left: int, right: int, key: str, site: int) -> Any:
        if op == "/":
            return Fraction(left, right) if right else Unknown(key)
        if op in ("**", "<<") and (abs(right) > 64 or abs(left) > 10**6):
            return Unknown(key)
        try:
            value = _BINARY[op](left, right) if op in _BINARY else None
        except (ArithmeticError, ValueError):
            return Unknown(key)
        if value is None or isinstance(value, int) and abs(value) > 10**24:
            return Unknown(key)
        return Fraction(value) if isinstance(value, float) else value

    def _quantities(self, op: str, one: Quantity, two: Quantity, left: Any, right: Any, key: str, site: int) -> Any:
        try:
            if op == "%":
                return self._modulo(one, two, left, right, key, site)
            two = self._as_window(two, one)
            if op in ("*", "/", "//") and "K" in one.tags | two.tags:
                # microbatches over K are updates, updates times K are microbatches: the unit is another one
                one, two = _without_unit(one), _without_unit(two)
            tags = one.tags | two.tags
            if op == "*":
                return one * two
            if op == "/":
                return one / two
            if op in ("+", "-") and one.symbols != two.symbols:
                shifted = _shifted(one, two, 1 if op == "+" else -1)
                if shifted is not None:
                    return shifted
            if op in ("+", "-"):
                total = one.plus(two, 1 if op == "+" else -1)
                if total is not None:
                    return total.tagged("clamped") if op == "+" and _is_guard(one, two) else total
                return self._opaque(key, tags, one, two)
            if op == "//":
                if "K" in one.tags and not one.symbols and ("world" in two.tags or not two.known):
                    return one  # K //= world size: still the K of this script
                exact = one.pointwise(two, operator.floordiv)
                if exact is not None:
                    return exact
                return self._floor(one, two, key, tags)
            if op == "**" and two.integer is not None and abs(two.integer) <= 8:
                out = Quantity.of(1)
                for _ in range(abs(two.integer)):
                    out = out * one
                return out if two.integer >= 0 else Quantity.of(1) / out
        except ArithmeticError:
            pass
        return self._opaque(key, one.tags | two.tags, one, two)

    def _floor(self, one: Quantity, two: Quantity, key: str, tags: frozenset[str]) -> Any:
        """A floor division with a symbol in it: the ratio, as far as a monomial can say it."""
        ratio = one / two
        # updates // (len(loader) // K) are epochs: nothing says that those are whole windows
        return Quantity(ratio.ranks, ratio.symbols, tags if "len" in two.tags else tags | {"floored"})

    def _opaque(self, key: str, tags: frozenset[str], *operands: Quantity) -> Quantity:
        if key in self.learned.windows:
            return Quantity.of(K, "K", *tags)
        if key in self.learned.lengths:
            return Quantity.of(self.length, "len", *tags)
        if key in self.learned.epochs:
            return Quantity.of(EPOCHS, "epochs", *tags)
        if key in self.learned.updates:
            return Quantity.of(UPDATES, "updates", *tags)
        return Quantity.symbol(key, *tags)

    def _modulo(self, one: Quantity, two: Quantity, left: Any, right: Any, key: str, site: int) -> Any:
        counting = bool(counters_in(one))
        two = self._as_window(two, one) if counting else two
        literal = isinstance(right, int)
        if literal and self.learned.literal == right and counting:
            two = Quantity.of(K, "K")
        if self.scouting and (counting or "K" in two.tags or isinstance(right, Unknown) and right.batch < 0):
            period = right if isinstance(right, (int, Unknown)) else two
            if isinstance(right, Quantity) and not right.known and len(right.symbols) == 1:
                period = Unknown(right.symbols[0][0], tags=right.tags)
            return Test("modulo", (one, period), key, tags=one.tags | two.tags)
        if one.known and two.known:
            if counting and not two.tags & {"K", "len", "updates", "epochs", "world"} and two.integer is not None and two.integer > 1:
                value = one.pointwise(Quantity.of(PERIOD), operator.mod)
                whole = literal and self.learned.literal is not None and right % self.learned.literal == 0
                return value.tagged("period", f"value:{one.integer}", f"text:{key}", *(("multiple of K",) if whole else ())) if value is not None else value
            self._note_counted(one.tags | two.tags)
            try:
                value = one.pointwise(two, operator.mod)
            except ArithmeticError:
                return self._opaque(key, one.tags | two.tags, one, two)
            return value.tagged("modulo") if value is not None and counting else value
        if counting and one.known:
            value = one.pointwise(Quantity.of(PERIOD), operator.mod)
            return value.tagged("period", f"value:{one.integer}", f"text:{key}", *two.tags) if value is not None else None
        if "K" in two.tags and not one.known and self.microbatch >= 0 and len(one.symbols) == 1:
            # a counter kept elsewhere is assumed to count microbatches
            self.assumptions.add(f"`{one.symbols[0][0]}` counts microbatches")
            offset = sum(int(t[7:]) for t in one.tags if t.startswith("offset:"))
            return Quantity.of(Fraction((self.microbatch + 1 + offset) % K), *one.tags, "K", "modulo")
        return self._opaque(key, (one.tags | two.tags) - {"len"} | {"remainder"}, one, two)


def _is_guard(one: Quantity, two: Quantity) -> bool:
    """``mask.sum() + 1e-8``: a count that is kept from being zero."""
    count, small = (one, two) if "count" in one.tags else (two, one)
    return "count" in count.tags and small.known and all(0 < value < 1 for value in small.ranks)


def _shifted(one: Quantity, two: Quantity, sign: int) -> Quantity | None:
    """An unknown number plus a constant: still that number, with an offset."""
    if len(one.symbols) == 1 and one.symbols[0][1] == 1 and one.ranks[0] == 1 and two.known and two.integer is not None and not two.tags:
        return one.tagged(f"offset:{sign * two.integer}")
    if sign > 0 and len(two.symbols) == 1 and two.symbols[0][1] == 1 and two.ranks[0] == 1 and one.known and one.integer is not None and not one.tags:
        return two.tagged(f"offset:{one.integer}")
    return None


def _without_unit(value: Quantity) -> Quantity:
    """The number without the memory of which counter it is."""
    kept = frozenset(t for t in value.tags if not t.startswith(("counter:", "index:", "resumed:")))
    return value if len(kept) == len(value.tags) else Quantity(value.ranks, value.symbols, kept)
