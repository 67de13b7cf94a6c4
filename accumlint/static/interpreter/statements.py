"""Statements that bind, jump, import and define."""

from __future__ import annotations

from typing import Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity, quantity
from accumlint.static import syntax as ir
from accumlint.static.interpreter.state import Abort, Frame
from accumlint.static.values import ClassValue, Closure, External, Gradient, Imported, Instance, MISSING, Thing, Unknown


class Statements:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def _nothing(self, statement: ir.Stmt, frame: Frame) -> None:
        return None

    def _evaluate(self, statement: ir.Evaluate, frame: Frame) -> None:
        self.eval(statement.value, frame)

    def _assign(self, statement: ir.Assign, frame: Frame) -> None:
        value = self.eval(statement.value, frame)
        for target in statement.targets:
            if isinstance(target, (ir.Name, ir.Attr)):
                if isinstance(statement.value, (ir.Compare, ir.Logic)) or isinstance(statement.value, ir.Unary) and statement.value.op == "not":
                    self.tests[self.key(target)] = statement.site
                else:
                    self.tests.pop(self.key(target), None)
                self._note_computed(target, statement.value, frame)
            if isinstance(value, Unknown) and isinstance(statement.value, ir.Call) and isinstance(target, ir.Sequence):
                # model, optimizer = wrap(model, optimizer=optimizer): an unseen function hands back what it was given
                value = self._handed_back(statement.value, target, value, frame)
            self.assign(target, value, frame, statement.site)

    def _note_computed(self, target: ir.Name | ir.Attr, value: ir.Expr, frame: Frame) -> None:
        """Remember where a number was worked out; a name that is only passed on stands for the place where it was."""
        place = self.computed_at(value, frame) if isinstance(value, (ir.Name, ir.Attr)) else None
        if place is None and (isinstance(value, ir.Binary) or isinstance(value, ir.Call) and _holds_arithmetic(value)):
            place = value.site
        computed = frame.computed if isinstance(target, ir.Name) else self.computed
        if place is None:
            computed.pop(self.key(target), None)
        else:
            computed[self.key(target)] = (place, frame.module)

    def computed_at(self, node: ir.Expr, frame: Frame) -> int | None:
        """Where the number behind a name was worked out, as far as that is in the same file."""
        scope: Frame | None = frame
        while scope is not None and isinstance(node, (ir.Name, ir.Attr)):
            computed = scope.computed if isinstance(node, ir.Name) else self.computed
            place, module = computed.get(self.key(node), (None, None))
            if place is not None and module is frame.module:
                return place
            if isinstance(node, ir.Attr) or node.id in scope.names:
                return None
            scope = scope.parent
        return None

    def _handed_back(self, call: ir.Call, target: ir.Sequence, result: Unknown, frame: Frame) -> Any:
        given = {ir.dotted(a.value) for a in call.args if isinstance(a.value, (ir.Name, ir.Attr))}
        names = [ir.dotted(item) if isinstance(item, (ir.Name, ir.Attr)) else "" for item in target.items]
        held = [self.eval(item, frame) if name and name in given else None for name, item in zip(names, target.items)]
        if not any(isinstance(one, (Thing, Instance)) for one in held):
            return result
        return [one if isinstance(one, (Thing, Instance)) else self.item_of(result, i, f"[{i}]") for i, one in enumerate(held)]

    def _augment(self, statement: ir.Augment, frame: Frame) -> None:
        target = statement.target
        current = self.eval(target, frame)
        change = self.eval(statement.value, frame)
        if isinstance(current, Gradient):
            self.rescale(current, change if statement.op in ("/", "*") else None, statement.op == "/", statement.site)
            return
        key = self.key(target)
        value = self.binary(statement.op, current, change, statement.site, f"{key} {statement.op} {self.key(statement.value)}")
        # a running total is still known by the name of its variable
        if statement.op in ("+", "-") and isinstance(change, int) and not isinstance(change, bool):
            if isinstance(value, (int, Quantity)) or isinstance(current, Unknown):
                if isinstance(value, Unknown) or (isinstance(value, Quantity) and not value.known):
                    value = self._counter_start(current, key, change)
                value = quantity(value).tagged(f"counter:{key}") if isinstance(value, (int, Quantity)) else value
                if isinstance(value, Quantity) and change:
                    self.emit(Kind.COUNT, statement.site, name=key, value=value.integer, by=change)
        elif isinstance(current, list) and isinstance(change, (list, tuple)):
            current.extend(change)
            value = current
        self.assign(target, value, frame, statement.site)

    def _counter_start(self, current: Any, key: str, change: int) -> Quantity:
        """A counter whose start is not shown: taken to start at zero, and said so where it tells one microbatch from another."""
        tags = tuple(getattr(current, "tags", ()))
        self.unseen_starts.add(key)
        self.blinding.update(self.set_behind.get(key, ()))
        return Quantity.of(change, *tags)

    def _rest_on_starts(self, tags: set[str] | frozenset[str]) -> None:
        """Updates depend on these numbers: what was taken for granted about their start matters."""
        self.assumptions |= {f"`{key}` starts at 0" for key in self.unseen_starts if f"counter:{key}" in tags}

    def _note_counted(self, tags: frozenset[str]) -> None:
        if self.counted is None:
            self._rest_on_starts(tags)
        else:
            self.counted |= tags

    def rescale(self, gradient: Gradient, factor: Any, divide: bool, site: int) -> None:
        """``p.grad`` multiplied or divided by a number (once per loop over parameters)."""
        number = self.numeric(factor) if factor is not None else None
        if number is not None and divide:
            try:
                number = Quantity.of(1) / number
            except ZeroDivisionError:
                number = None
        self.emit(Kind.RESCALE, site, factor=number, models=gradient.models)

    def _jump(self, statement: ir.Jump, frame: Frame) -> Any:
        if statement.kind == "return":
            self.return_site = statement.site
            return ("return", self.eval(statement.value, frame) if statement.value is not None else None)
        if statement.kind == "raise":
            raise Abort
        return statement.kind

    def _import(self, statement: ir.Import, frame: Frame) -> None:
        for local, origin in statement.names:
            if frame.module is None or frame.module.resolve is None:
                if local != "*":
                    frame.names[local] = External(origin)
            elif local == "*":
                self._import_all(origin, frame)
            else:
                frame.names[local] = Imported(origin, frame.module)

    def held(self, names: dict[str, Any], name: str) -> Any:
        """What a name holds, MISSING if nothing; what was only imported so far is looked for now.

        Most of what a script imports has no part in its windows, and files are read for nothing else.
        """
        value = names.get(name, MISSING)
        if type(value) is Imported:
            names[name] = External(value.origin)  # for those who ask while two files import each other
            value = names[name] = self._imported(value)
        return value

    def _imported(self, name: Imported) -> Any:
        """A module or a name out of a file of the checked tree; External if it comes from anywhere else."""
        module, origin = name.importer, name.origin
        whole = module.resolve(module, origin)
        if whole is not None:
            self.prepare_module(whole)
            return ("module", whole)
        head, _, tail = origin.rpartition(".")
        if origin.startswith(".") and not head.strip("."):
            head, tail = origin[: len(origin) - len(origin.lstrip("."))], origin.lstrip(".")
        target = module.resolve(module, head) if head else None
        found = self.held(self.prepare_module(target).names, tail) if target is not None and target is not self.module else MISSING
        return found if found is not MISSING else External(origin)

    def _import_all(self, origin: str, frame: Frame) -> None:
        target = frame.module.resolve(frame.module, origin)
        if target is not None and target is not self.module:
            for name, value in self.prepare_module(target).names.items():
                if not name.startswith("_"):
                    frame.names.setdefault(name, value)

    def _assertion(self, statement: ir.Assertion, frame: Frame) -> None:
        value = self.eval(statement.test, frame)
        self.registry.assertion(self, statement.test, value, frame)

    def _match(self, statement: ir.Match, frame: Frame) -> Any:
        self.eval(statement.subject, frame)
        if not statement.cases:
            return None
        key = f"match {self.key(statement.subject)}"
        chosen = self.decide(key, 0)
        if self.scouting:
            for body in statement.cases:
                self.block(body, frame)
            return None
        index = chosen if isinstance(chosen, int) and 0 <= chosen < len(statement.cases) else 0
        return self.block(statement.cases[index], frame)

    def _define(self, statement: ir.Define, frame: Frame) -> None:
        function = statement.function
        names = function.decorator_names
        value: Any = Closure(function, frame)
        if "property" in names or "cached_property" in names:
            value = value
        frame.names[function.name] = value

    def _define_class(self, statement: ir.DefineClass, frame: Frame) -> None:
        frame.names[statement.cls.name] = ClassValue(statement.cls, frame)


def _holds_arithmetic(node: ir.Expr) -> bool:
    """``int(0.1 * total)``: a number, not an object that is made with one."""
    name = node.func.id if isinstance(node, ir.Call) and isinstance(node.func, ir.Name) else ""
    dotted = ir.dotted(node.func) if isinstance(node, ir.Call) and isinstance(node.func, ir.Attr) else ""
    return name in ("int", "round", "max", "min") or dotted in ("math.ceil", "math.floor")
