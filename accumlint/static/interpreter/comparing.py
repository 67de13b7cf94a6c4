"""Comparisons: of numbers, of counts with K, of what nobody knows."""

from __future__ import annotations

import operator
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity, quantity
from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import counters_in, facts_of, stem_of
from accumlint.static.interpreter.state import Frame, K, PERIOD
from accumlint.static.values import Instance, Tensor, Test, Thing, Unknown, last_name

NUMBERS = (int, Fraction, Quantity)
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_CONTRARY = {"<": ">=", ">": "<=", "<=": ">", ">=": "<"}
_MIRROR = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "==", "!=": "!="}


class _Bare(str):
    """A word that is shown as it is written."""

    __repr__ = str.__str__


class Comparisons:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def _compare(self, node: ir.Compare, frame: Frame) -> Any:
        left = self.eval(node.left, frame)
        left_node = node.left
        results = []
        for op, right_node in zip(node.ops, node.rights):
            right = self.eval(right_node, frame)
            results.append(self.compare(op, left, right, node, left_node, right_node))
            left, left_node = right, right_node
        if len(results) == 1:
            return results[0]
        if any(result is False for result in results):
            return False
        open_results = tuple(result for result in results if result is not True)
        if not open_results:
            return True
        return Test("and", open_results, self.key(node), *facts_of(open_results[0]))

    def compare(self, op: str, left: Any, right: Any, node: Any, left_node: Any, right_node: Any) -> Any:
        """One comparison: a bool where it is known, else a test with structure."""
        if isinstance(left, Tensor) or isinstance(right, Tensor):
            tensor = self.registry.tensor_compare(self, op, left, right, self.key(node))
            if tensor is not None:
                return tensor
        if op in ("is", "is not") or (op in ("==", "!=") and (left is None or right is None)):
            return self._compare_none(op, left, right, node)
        if op in ("in", "not in"):
            if isinstance(right, (list, tuple, dict)) and isinstance(left, (str, int)):
                if all(isinstance(x, (str, int)) for x in right):
                    return (left in right) == (op == "in")
            test = Test("atom", (), f"{self.key(left_node)} in {self.key(right_node)}", *facts_of(left, right))
            return test if op == "in" else Test("not", (test,), f"not {test.key}", *facts_of(test))
        if isinstance(left, NUMBERS) and isinstance(right, NUMBERS) and not (isinstance(left, bool) and isinstance(right, bool)):
            return self._compare_numbers(op, left, right, node, left_node, right_node)
        if isinstance(left, (str, bool)) and isinstance(right, (str, bool)):
            try:
                return _COMPARE[op](left, right)
            except TypeError:
                return op == "!="
        if isinstance(left, Test) or isinstance(right, Test):
            test, other = (left, right) if isinstance(left, Test) else (right, left)
            if isinstance(other, (bool, int)) and op in ("==", "!=") and test.op != "modulo":
                same = bool(other) == (op == "==")
                return test if same else Test("not", (test,), f"not {test.key}", *facts_of(test))
            if test.op == "modulo":
                return test
        if isinstance(left, Unknown) or isinstance(right, Unknown):
            return self._compare_unknown(op, left, right, node, left_node, right_node)
        if isinstance(left, (list, tuple, dict)) and isinstance(right, (list, tuple, dict)):
            try:
                return bool(_COMPARE[op](left, right))
            except (TypeError, RecursionError):
                pass
        return Test("atom", (), self.key(node), *facts_of(left, right))

    def _compare_none(self, op: str, left: Any, right: Any, node: Any) -> Any:
        negative = op in ("is not", "!=")
        if left is None or right is None:
            other = right if left is None else left
            if other is None:
                return not negative
            if isinstance(other, Thing) and other.maybe_none:
                test = Test("none", (other.maybe_none.removesuffix(" is None"),), other.maybe_none)
            elif isinstance(other, Unknown):
                test = Test("none", (other.key,), f"{other.key} is None", *facts_of(other))
            elif isinstance(other, Tensor) and other.form == "data" and other.batch >= 0:
                # a loader may hand out nothing for one microbatch
                test = Test("missing", (), f"{stem_of(other)} is None", other.batch, True)
            else:
                return negative
            return Test("not", (test,), f"not {test.key}", *facts_of(test)) if negative else test
        if isinstance(left, bool) and isinstance(right, bool):
            return (left is right) != negative
        if isinstance(left, (Thing, Instance)) and isinstance(right, (Thing, Instance)):
            return (left is right) != negative
        test = Test("atom", (), self.key(node).replace(" is not ", " is "), *facts_of(left, right))
        if isinstance(right, bool) and isinstance(left, (Unknown, Test)):
            inner: Any = left
            same = right != negative
            return inner if same else Test("not", (inner,), f"not {self.key(node)}", *facts_of(inner))
        return Test("not", (test,), f"not {test.key}", *facts_of(test)) if negative else test

    def _compare_numbers(self, op: str, left: Any, right: Any, node: Any, left_node: Any, right_node: Any) -> Any:
        one, two = quantity(left), quantity(right)
        tags = one.tags | two.tags
        one, two = self._as_window(one, two), self._as_window(two, one)
        if "period" in tags and op in ("==", "!="):  # update % 1000 == 999
            one, two = (value if "period" in value.tags else _remainder(value) for value in (one, two))
        if op in ("<", "<=", ">", ">=") and self.loop_roles[-1:] == ["micro"]:
            self._note_resumed(one, two, node)
        if one.known and two.known:
            results = {_COMPARE[op](a, b) for a, b in zip(one.ranks, two.ranks)}
            if len(results) > 1:
                return Test("known", (_COMPARE[op](one.ranks[0], two.ranks[0]),), self.key(node), -1, True, tags)
            held = results.pop()
            written = isinstance(left_node, ir.Const) or isinstance(right_node, ir.Const)
            if "period" not in tags:
                self._note_counted(tags)
            if self.scouting and "K" in tags and not {"len", "world"} & tags and one.tags != two.tags and not (written and not counters_in(one) + counters_in(two)):
                return self._scout_counter(op, one, two, node)
            if self.scouting and any(t.startswith(("counter:", "index:")) for t in tags) and op in ("==", "!=", ">=", ">", "<", "<="):
                return self._scout_counter(op, one, two, node)
            if "modulo" in tags and self.scouting:
                return Test("modulo", (one, self._period(tags)), self.key(node), tags=tags)
            if "period" in tags:
                return Test("known", (held,), self.key(node), tags=tags)
            if any(t.startswith("counter:") for t in tags):
                self._note_limit(one, two, node, left_node, right_node)
            elif "positions" in tags and not tags - {"positions", "rows"}:
                return self._by_size(held, node)
            return held
        if one.symbols == two.symbols and op in ("==", "!=") and one.ranks == two.ranks:
            return op == "=="
        now = f"batch {self.batch_of.get(self.microbatch)}"
        if "moment" in tags or now in tags:
            return Test("atom", (), self.key(node), max(self.microbatch, 0), "local" in tags, tags)
        # a counter against a limit that nobody knows: the limit is far away
        open_side, known_side, mirrored = (two, one, False) if one.known else (one, two, True)
        direction = _MIRROR[op] if mirrored else op
        if any(t.startswith(("counter:", "index:")) for t in known_side.tags):
            self.emit(Kind.LIMIT, node.site, counters=counters_in(known_side), limit=dict(open_side.symbols), name=_limit_name(left_node, right_node, mirrored), in_microbatches="K" in open_side.tags)
        if "remainder" in open_side.tags and not counters_in(known_side):
            return Test("atom", (), self.key(node), tags=tags)  # a position in an epoch may well be zero
        if known_side.known:
            return Test("far", (direction in ("<", "<=", "!="),), self.key(node), tags=tags)
        return Test("atom", (), self.key(node), tags=tags)

    def _note_resumed(self, one: Quantity, two: Quantity, node: Any) -> None:
        """``if step < done: continue``: as many microbatches are passed over as a checkpoint says."""
        for index, number in ((one, two), (two, one)):
            key = next((tag[8:] for tag in number.tags if tag.startswith("resumed:")), None)
            if key is not None and any(tag.startswith("index:") for tag in index.tags):
                self.emit(Kind.RESUME, node.site, key=key, into="", use="skip")

    def _by_size(self, held: bool, node: Any) -> Test:
        """``batch.numel() > 4000``: the data of one microbatch on one rank may come out the other way."""
        other = Test("missing", (), self.key(node), max(self.microbatch, 0), True)
        return Test("not", (other,), f"not {other.key}", *facts_of(other)) if held else other

    def _compare_rank(self, op: str, unknown: Unknown, other: int, facts: tuple[int, bool, frozenset[str]]) -> Test:
        """A rank and a number, seen from the main rank."""
        if (op, other) in ((">=", 0), ("<", 0), (">", -1), ("<=", -1)):
            # whether the run is distributed at all: the same on every rank
            test = Test("atom", (), f"{unknown.key} >= 0", facts[0])
            return test if op in (">=", ">") else Test("not", (test,), f"not {test.key}", *facts_of(test))
        holds = _COMPARE[op](0, other)
        test = Test("atom", (), f"{unknown.key} {op if holds else _CONTRARY[op]} {other}", *facts)
        return test if holds else Test("not", (test,), f"not {test.key}", *facts_of(test))

    def _note_limit(self, one: Quantity, two: Quantity, node: Any, left_node: Any, right_node: Any) -> None:
        first = any(t.startswith("counter:") for t in one.tags)
        counter, limit, limit_node = (one, two, right_node) if first else (two, one, left_node)
        name = last_name(ir.dotted(limit_node)) if isinstance(limit_node, (ir.Name, ir.Attr)) else ""
        if name and "K" not in limit.tags and not any(t.startswith("counter:") for t in limit.tags):
            self.emit(Kind.LIMIT, node.site, counters=counters_in(counter), limit={name: 1}, name=name)

    def _as_window(self, value: Quantity, other: Quantity) -> Quantity:
        """A number that was learned to be K is simulated as K where it meets a counter."""
        if self.learned.literal is not None and not value.tags and value.integer == self.learned.literal:
            if any(t.startswith(("counter:", "index:", "modulo", "len")) for t in other.tags):
                return Quantity.of(K, "K")
        if self.learned.literal is not None and not value.tags and value.integer == self.learned.literal - 1:
            if "modulo" in other.tags or any(t.startswith("index:") for t in other.tags):
                return Quantity.of(K - 1, "K")
        return value

    def _scout_counter(self, op: str, one: Quantity, two: Quantity, node: Any) -> Any:
        counter, limit = (one, two) if counters_in(one) or "K" in two.tags else (two, one)
        period: Any = limit
        if not limit.tags and limit.integer is not None:
            period = limit.integer + (1 if op in (">",) else 0)
        return Test("modulo", (counter, period), self.key(node), tags=one.tags | two.tags)

    @staticmethod
    def _period(tags: frozenset[str]) -> Any:
        return next((int(t[7:]) for t in tags if t.startswith("period=")), None)

    def _compare_unknown(self, op: str, left: Any, right: Any, node: Any, left_node: Any, right_node: Any) -> Any:
        unknown, other = (left, right) if isinstance(left, Unknown) else (right, left)
        facts = facts_of(left, right)
        if op in ("==", "!="):
            member = _member(left_node) or _member(right_node)
            if member and unknown.batch < 0:  # a member of an enumeration: what equals one equals no other
                subject = self.key(right_node if _member(left_node) else left_node)
                test = Test("equal", (subject, member), f"{subject} == {member!r}", *facts)
                return test if op == "==" else Test("not", (test,), f"not {test.key}", *facts_of(test))
            if isinstance(other, (str, bool)) or isinstance(other, int) and not _counters_of(other):
                if "rank" in unknown.tags and other == -1:
                    # -1 stands for a run that is not distributed
                    test = Test("equal", (unknown.key, other), f"{unknown.key} == {other!r}")
                elif "rank" in unknown.tags:
                    test = Test("atom", (), f"{unknown.key} == {other!r}", *facts)
                else:
                    test = Test("equal", (unknown.key, other), f"{unknown.key} == {other!r}", *facts)
                return test if op == "==" else Test("not", (test,), f"not {test.key}", *facts_of(test))
            if "rank" in unknown.tags and isinstance(node, ir.Compare) and _deals_out(left_node, right_node):
                # `i % ranks == rank` deals the batches out: the ones that are followed are this rank's
                return Test("known", (op == "==",), self.key(node))
            if isinstance(other, Quantity) and counters_in(other):
                # a counter meets a number that nobody knows: never, unless that number is K
                if self.scouting:
                    return Test("modulo", (other, unknown), self.key(node), *facts)
                return Test("far", (op == "!=",), self.key(node), *facts)
            test = Test("atom", (), self.key(node), *facts)
            return test
        if "rank" in unknown.tags and type(other) is int:
            return self._compare_rank(op if unknown is left else _MIRROR[op], unknown, other, facts)
        if isinstance(other, (int, Fraction, Quantity)) and not isinstance(other, bool):
            counters = _counters_of(other)
            if counters and "resume" in unknown.tags:
                one, two = (self.numeric(left), self.numeric(right))
                return self._compare_numbers(op, one, two, node, left_node, right_node)
            if counters:
                if self.scouting:
                    return Test("modulo", (other, unknown), self.key(node), *facts)
                self.emit(Kind.LIMIT, node.site, counters=counters, limit={unknown.key: 1}, name=unknown.last)
                direction = op if other is left else _MIRROR[op]
                return Test("far", (direction in ("<", "<="),), self.key(node), *facts)
            if "resume" in unknown.tags:
                return Test("atom", (), self.key(node), *facts)
            if unknown.batch < 0 and not isinstance(other, Quantity) and self.numeric(unknown) is not None:
                # `if args.max_grad_norm > 0`: settings are on when flags are on
                return Test("atom", (), self.key(node), *facts)
        if isinstance(left, Unknown) and isinstance(right, Unknown):
            for one, two, direction in ((left, right, op), (right, left, _MIRROR.get(op, op))):
                if two.key in self.learned.lengths or "len" in two.tags:
                    return Test("far", (direction in ("<", "<="),), self.key(node), *facts)
        return Test("atom", (), self.key(node), *facts)


def _member(node: Any) -> _Bare | None:
    """``Precision.HALF``: the constant of a class."""
    if isinstance(node, ir.Attr) and isinstance(node.value, ir.Name) and node.value.id[:1].isupper() and node.name.isupper():
        return _Bare(f"{node.value.id}.{node.name}")
    return None


def _deals_out(*sides: Any) -> bool:
    return any(isinstance(side, ir.Binary) and side.op == "%" for side in sides)


def _remainder(value: Quantity) -> Quantity:
    """The number that a period test waits for, under the period that is simulated."""
    return Quantity.of(value.integer % PERIOD) if value.integer is not None else value


def _counters_of(value: Any) -> tuple[str, ...]:
    return counters_in(value) if isinstance(value, Quantity) else ()


def _limit_name(left_node: Any, right_node: Any, mirrored: bool) -> str:
    node = left_node if mirrored else right_node
    return last_name(ir.dotted(node)) if isinstance(node, (ir.Name, ir.Attr)) else ""
