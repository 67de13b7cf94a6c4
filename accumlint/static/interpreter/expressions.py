"""Expressions: constants, displays, comprehensions, choices, subscripts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import EnoughYields, calls_in_expression, facts_of, is_settled, may_run
from accumlint.static.interpreter.state import Frame, K, Relearn
from accumlint.static.values import External, Gradient, Method, Parameters, Stream, Tensor, Test, Thing, Unknown, last_name


class Expressions:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def _const(self, node: ir.Const, frame: Frame) -> Any:
        return node.value

    def _text(self, node: ir.Text, frame: Frame) -> Any:
        for part in node.parts:
            if may_run(part):
                self.eval(part, frame)
        return Unknown(f"text@{node.site}")

    def _sequence(self, node: ir.Sequence, frame: Frame) -> Any:
        out: list[Any] = []
        for item in node.items:
            if isinstance(item, ir.Starred):
                value = self.eval(item.value, frame)
                if isinstance(value, (list, tuple)):
                    out.extend(value)
                elif isinstance(value, Stream) and value.length is not None and value.length < 64:
                    out.extend(value.item(i) for i in range(value.length))
                else:
                    out.append(value)
            else:
                out.append(self.eval(item, frame))
        return tuple(out) if node.kind == "tuple" else out

    def _mapping(self, node: ir.Mapping, frame: Frame) -> Any:
        out: dict[Any, Any] = {}
        for key, value in node.items:
            if key is None:
                inner = self.eval(value, frame)
                if isinstance(inner, dict):
                    out.update(inner)
                elif isinstance(inner, Tensor):
                    return inner
                continue
            name = self.eval(key, frame)
            held = self.eval(value, frame)
            out[name if isinstance(name, (str, int)) else self.key(key)] = held
        return out

    def _walrus(self, node: ir.Walrus, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        self.assign(node.target, value, frame, node.site)
        return value

    def _yield(self, node: ir.Yield, frame: Frame) -> Any:
        value = self.eval(node.value, frame) if node.value is not None else None
        scope: Frame | None = frame
        while scope is not None and scope.yields is None:
            scope = scope.parent
        if scope is not None and scope.yields is not None:
            if node.delegate:
                stream = self.stream(value, node.value)
                count = self.length if stream.length is None or stream.infinite else min(stream.length, 64)
                for index in range(count):
                    scope.yields.append(stream.item(index))
            else:
                scope.yields.append(list(value) if isinstance(value, list) else value)
                self.filled[id(scope.yields[-1])] = list(self.asking)
            if len(scope.yields) >= 3 * self.length:
                raise EnoughYields
        return Unknown(f"sent@{node.site}")

    def _comprehension(self, node: ir.Comprehension, frame: Frame) -> Any:
        inner = Frame(frame)
        first_source = self.eval(node.clauses[0][1], inner)
        if node.kind == "dict" and isinstance(first_source, (Method, Stream, Tensor)):
            # {k: v.to(device) for k, v in batch.items()} is the batch again
            origin = first_source.thing if isinstance(first_source, Stream) else first_source
            if isinstance(origin, Tensor):
                self.assign(node.clauses[0][0], (Unknown("key"), origin), inner, node.site)
                element = self.eval(node.element, inner)
                return element if isinstance(element, Tensor) and element.form == "data" else origin
        if isinstance(first_source, Parameters) or (isinstance(first_source, Stream) and isinstance(first_source.thing, Parameters)):
            origin = first_source if isinstance(first_source, Parameters) else first_source.thing
            target = node.clauses[0][0]
            self.assign(target, origin if not isinstance(target, ir.Sequence) else (Unknown("name"), origin), inner, node.site)
            return self._over_parameters(node, origin, inner)
        if isinstance(first_source, Tensor) and first_source.form == "data":
            element_data = dict(zip((render_target(node.clauses[0][0]),), (first_source,)))
            inner.names.update(element_data)
            value = self.eval(node.element, inner)
            if isinstance(value, Unknown) and "counted" in value.tags:
                return [value]  # numbers of the pieces, no longer the pieces
            return value if isinstance(value, Tensor) else first_source
        out: list[Any] = []
        keys: list[Any] = []
        self._comprehend(node, 0, inner, out, keys, first_source)
        if node.kind == "dict":
            return {k if isinstance(k, (str, int)) else f"?{i}": v for i, (k, v) in enumerate(zip(keys, out))}
        return out

    def _over_parameters(self, node: ir.Comprehension, origin: Parameters, frame: Frame) -> Any:
        value = self.eval(node.element, frame)
        if node.kind == "dict" and isinstance(value, Thing) and node.key is not None and self.eval(node.key, frame) is origin:
            return {origin: value}  # an optimizer for each parameter
        if isinstance(value, (Parameters, Gradient)):
            return origin if isinstance(value, Parameters) else [value]
        if isinstance(value, (dict, tuple)):
            return origin
        return [value]

    def _comprehend(self, node: ir.Comprehension, depth: int, frame: Frame, out: list[Any], keys: list[Any], source: Any) -> None:
        target, iterable, conditions = node.clauses[depth]
        if depth:
            source = self.eval(iterable, frame)
        stream = self.stream(source, iterable)
        count = stream.length if stream.length is not None and not stream.infinite else (self.length if stream.loader else 1)
        if stream.bound and stream.length is None:
            # [next(it) for _ in range(accum)]: how many is what makes the window
            produces = stream.loader or "next" in calls_in_expression(node.element)
            if produces and not self.vocabulary.is_window(last_name(stream.bound)):
                self.learned.windows.add(stream.bound)
                if not self.scouting:
                    raise Relearn
            count = K if produces else 1
        if self.scouting and stream.bound == "" and isinstance(stream.thing, int) and stream.thing > 1:
            if "next" in calls_in_expression(node.element) and self.learned.literal is None and 1 < stream.thing <= 4096:
                self.learned.literal = stream.thing
        role = self.learned.roles.get(node.site, "plain") if depth == 0 else "plain"
        if role in ("window", "micro") and stream.length is None:
            count = K if role == "window" else self.length
        effects: set[str] = set()
        if self.scouting:
            self.scout_stack.append(("for", node.site, effects))
            count = min(count, 2)
        for index in range(min(count, 24)):
            self.spend()
            if role in ("window", "micro"):
                self.microbatch += 1
                self.emit(Kind.MICROBATCH, node.site)
            self.assign(target, stream.item(index), frame, node.site)
            if not all(self._weighed(self.eval(c, frame), True, self._weight(node.site)) for c in conditions):
                continue
            if depth + 1 < len(node.clauses):
                self._comprehend(node, depth + 1, frame, out, keys, None)
            else:
                if node.key is not None:
                    keys.append(self.eval(node.key, frame))
                out.append(self.eval(node.element, frame))
        if self.scouting:
            self.scout_stack.pop()
            self._note_inert(node.site, not effects)
            for _, _, outer in self.scout_stack:
                outer |= effects
            if "backward" in effects and depth == 0:
                effects.add("carrying")
                self._scout_role(node.site, stream, effects)
                for _, _, outer in self.scout_stack:
                    outer |= {"carrying loop", "carrying"}

    def _choice(self, node: ir.Choice, frame: Frame) -> Any:
        value = self.eval(node.test, frame)
        if self.scouting and not is_settled(value):
            first, second = self.eval(node.body, frame), self.eval(node.orelse, frame)
            self._note_inert(node.site, self._dull(first) and self._dull(second))
            return second if isinstance(first, (Unknown, type(None))) else first
        chosen = self._weighed(value, None, self._weight(node.site))
        return self.eval(node.body if chosen else node.orelse, frame)

    def _dull(self, value: Any) -> bool:
        """Whether nothing is known of a value that updates could depend on: words, and unknowns without a telling name."""
        if isinstance(value, Unknown):
            name = value.last
            return value.batch < 0 and not value.tags and not (
                self.vocabulary.kind_of_name(name) or self.vocabulary.is_window(name) or self.vocabulary.is_world(name)
            )  # fmt: skip
        return isinstance(value, str)

    def _note_inert(self, site: int, nothing: bool) -> None:
        """Remember that nothing depends on a choice, as long as no other call shows that something does."""
        if nothing and site not in self.learned.effects:
            self.learned.inert.add(site)
        elif not nothing:
            self.learned.effects.setdefault(site, frozenset())
            self.learned.inert.discard(site)

    def _weighed(self, value: Any, default: bool | None, weight: int) -> bool:
        """The truth of a condition on which so much depends: see ``weighing``."""
        outer, self.weighing = self.weighing, weight
        chosen = self.truth(value, default)
        self.weighing = outer
        return chosen

    def _unary(self, node: ir.Unary, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        if node.op == "not":
            if is_settled(value):
                return not self.truth(value)
            return Test("not", (value,), f"not {self.key(node.value)}", *facts_of(value))
        if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
            return -value if node.op == "-" else value
        if isinstance(value, Quantity):
            return -value if node.op == "-" else value
        if isinstance(value, Tensor):
            if node.op == "~" and value.form == "mask":
                return value
            # the sign of a loss does not change what a target weighs
            return value
        return Unknown(self.key(node), *facts_of(value))

    def _logic(self, node: ir.Logic, frame: Frame) -> Any:
        undecided: list[Any] = []
        last: Any = None
        periods: frozenset[str] = frozenset()  # `args.do_eval and step % n == 0` is due every n steps, whatever else it asks
        for operand in node.values:
            value = self.eval(operand, frame)
            last = value
            if not is_settled(value):
                undecided.append(value)
                continue
            held = self.truth(value)
            if node.op == "and" and not held:
                return value if not undecided else False
            if node.op == "and" and isinstance(value, Test) and "period" in value.tags:
                periods |= value.tags
            if node.op == "or" and held:
                # `args.x or default`: what an unknown left operand would be, nobody knows
                return value if not undecided or not isinstance(value, bool) else True
        if not undecided:
            return Test("known", (self.truth(last),), self.key(node), tags=periods) if periods and not isinstance(last, Test) else last
        if len(undecided) == 1 and not periods and not isinstance(undecided[0], Test) and undecided[0] is last:
            return last
        facts = [facts_of(value) for value in undecided]
        batch = max(fact[0] for fact in facts)
        tags = frozenset().union(periods, *(fact[2] for fact in facts))
        return Test(node.op, tuple(undecided), self.key(node), batch, any(fact[1] for fact in facts), tags)

    def _subscript(self, node: ir.Subscript, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        index = self.eval(node.index, frame)
        return self.subscript(value, index, node)

    def subscript(self, value: Any, index: Any, node: ir.Subscript) -> Any:
        if isinstance(index, Quantity) and index.integer is not None:
            index = index.integer
        if isinstance(value, (list, tuple)) and not (isinstance(value, tuple) and value[:1] == ("module",)):
            if isinstance(index, int) and -len(value) <= index < len(value):
                return value[index]
            if isinstance(index, slice):
                try:
                    return value[_plain_slice(index)]
                except (TypeError, ValueError):
                    return value
            if value:
                return value[0]
        if isinstance(value, dict):
            if isinstance(index, (str, int)) and index in value:
                return value[index]
            if isinstance(index, str):
                return self.unknown(f"{self.key(node.value)}[{index!r}]", node.site)
            if isinstance(index, int) and "loss" in value:  # outputs[0] of what a model returns, which leaves out what is None
                held = [one for one in value.values() if one is not None]
                if -len(held) <= index < len(held):
                    return held[index]
            if value and not isinstance(index, int):
                return next(iter(value.values()))
        if isinstance(value, Tensor):
            return self.registry.tensor_subscript(self, value, index, node)
        if isinstance(value, Stream):
            if isinstance(index, int) and value.literal and value.length and -value.length <= index < value.length:
                return value.item(index % value.length)
            if value.loader:
                return self.batch_data()
        if isinstance(value, Thing):
            return self.registry.thing_item(self, value, index)
        if isinstance(value, Unknown):
            suffix = f"[{index!r}]" if isinstance(index, (str, int)) else f"[{self.key(node.index)}]"
            local = value.local or isinstance(index, Unknown) and index.local
            return self.unknown(value.key + suffix, node.site, batch=value.batch, local=local, tags=value.tags)
        if isinstance(value, Gradient) or isinstance(value, Parameters):
            return value
        if isinstance(value, External):
            return self.unknown(self.key(node), node.site) if value.origin != "os.environ" else self.registry.environment(self, index, node.site)
        return Unknown(self.key(node), *facts_of(value))

    def _slice(self, node: ir.Slice, frame: Frame) -> Any:
        parts = [self.eval(part, frame) if part is not None else None for part in (node.lower, node.upper, node.step)]
        return slice(*parts)


def _plain_slice(value: slice) -> slice:
    def plain(part: Any) -> Any:
        if isinstance(part, Quantity):
            if part.integer is None:
                raise TypeError
            return part.integer
        if part is not None and not isinstance(part, int):
            raise TypeError
        return part

    return slice(plain(value.start), plain(value.stop), plain(value.step))


def render_target(target: ir.Expr) -> str:
    return target.id if isinstance(target, ir.Name) else ir.render(target)
