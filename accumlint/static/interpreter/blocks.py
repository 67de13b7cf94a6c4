"""`with` and `try`: contexts that are entered and left, and what may fail in between."""

from __future__ import annotations

from typing import Any

from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import ending_of
from accumlint.static.interpreter.state import Abort, Frame
from accumlint.static.values import Closure, Context, Instance, Method


class Blocks:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def _with(self, statement: ir.With, frame: Frame) -> Any:
        entered: list[Any] = []
        switched: list[int] = []
        try:
            for item, target in statement.items:
                value = self.eval(item, frame)
                bound = self.enter(value, statement.site, entered)
                if isinstance(value, Context) and value.kind == "no_sync":
                    # kept in a variable: where it was made is where it is spoken of; of several the first speaks for all
                    switched.append(value.site if isinstance(item, (ir.Name, ir.Attr)) else self.sync_site)
                    self.sync_site = switched[0]
                if target is not None:
                    self.assign(target, bound, frame, statement.site)
            return self.block(statement.body, frame)
        finally:
            self.leave(entered)

    def enter(self, value: Any, site: int, entered: list[Any]) -> Any:
        """Enter a context manager; what must be undone goes into ``entered``. Returns what ``as`` binds."""
        if isinstance(value, Method):
            value = Context("plain", site=site)
        if isinstance(value, Instance):
            method = self.method_of(value, "__enter__")
            if method is not None:
                result = self.call_closure(method, [], {}, site)
                entered.append(("instance", value))
                return result
            return value
        if not isinstance(value, Context):
            return value
        if value.kind == "no_sync":
            models, stack = value.data if value.data is not None else (None, tuple(self.stack))
            self.silenced.append(models)
            self.sync_site = site if stack == tuple(self.stack) else value.site
            self.traits.add("no_sync")
            entered.append(("no_sync", models))
        elif value.kind == "no_grad":
            self.no_grad += 1
            entered.append(("no_grad", None))
        elif value.kind == "several":
            for inner in value.data:
                self.enter(inner, site, entered)
        elif value.kind == "stack":
            entered.append(("stack", value))
            return value
        elif value.kind == "generated":
            closure, args, kwargs = value.data
            return self._enter_generated(closure, args, kwargs, entered, site)
        elif value.kind == "handler":
            # a framework's own context: (enter, leave)
            result = value.data[0](self, site)
            entered.append(("handler", value.data[1]))
            return result
        elif value.kind == "value":
            return value.data
        return value

    def leave(self, entered: list[Any]) -> None:
        for kind, data in reversed(entered):
            if kind == "no_sync":
                self.silenced.remove(data)
            elif kind == "no_grad":
                self.no_grad -= 1
            elif kind == "stack":
                inner = data.data or []
                data.data = []
                self.leave(inner)
            elif kind == "handler" and data is not None:
                data(self)
            elif kind == "instance":
                method = self.method_of(data, "__exit__")
                if method is not None:
                    self.call_closure(method, [None, None, None], {}, method.function.site)
            elif kind == "final":
                self.block(*data)
        entered.clear()

    def _enter_generated(self, closure: Closure, args: list[Any], kwargs: dict[str, Any], entered: list[Any], site: int) -> Any:
        """A ``@contextmanager`` function: run its body up to the yield, keep what is entered around it."""
        frame = self.bind(closure, args, kwargs)
        result: list[Any] = [None]
        self._until_yield(closure.function.body, frame, entered, site, result)
        return result[0]

    def _until_yield(self, body: list[ir.Stmt], frame: Frame, entered: list[Any], site: int, result: list[Any]) -> bool:
        for position, statement in enumerate(body):
            self.spend()
            if _yield_of(statement) is not None:
                inner = _yield_of(statement)
                result[0] = self.eval(inner.value, frame) if inner.value is not None else None
                rest = body[position + 1 :]
                if rest:
                    entered.append(("final", (rest, frame)))
                return True
            if isinstance(statement, ir.If):
                stops = ending_of(statement.body) == "raise"  # a check of what the context was given, as in `_if`
                arm = statement.body if self.truth(self.eval(statement.test, frame), False if stops else None) else statement.orelse
                if self._until_yield(arm, frame, entered, site, result):
                    return True
            elif isinstance(statement, ir.With):
                inner_entered: list[Any] = []
                for item, target in statement.items:
                    bound = self.enter(self.eval(item, frame), site, inner_entered)
                    if target is not None:
                        self.assign(target, bound, frame, statement.site)
                if self._until_yield(statement.body, frame, inner_entered, site, result):
                    entered.extend(inner_entered)
                    return True
                self.leave(inner_entered)
            elif isinstance(statement, ir.Try):
                if statement.final:
                    entered.append(("final", (statement.final, frame)))
                if self._until_yield(statement.body, frame, entered, site, result):
                    return True
                if statement.final:
                    entered.pop()
            elif self.execute(statement, frame) is not None:
                return True
        return False

    def _try(self, statement: ir.Try, frame: Frame) -> Any:
        if not self.scouting and self._fails(statement):
            return self.block(statement.handlers[0].body, frame)
        effects: set[str] = set()
        if self.scouting:
            self.scout_stack.append(("try", statement.site, effects))
        try:
            outcome = self.block(statement.body, frame)
        finally:
            if self.scouting:
                self.scout_stack.pop()
                for _, _, outer in self.scout_stack:
                    outer |= effects
                self.learned.effects[statement.site] = self.learned.effects.get(statement.site, frozenset()) | frozenset(effects)
        if self.scouting:
            for handler in statement.handlers:
                try:
                    self.block(handler.body, frame)
                except Abort:
                    pass
        if outcome is None and statement.orelse:
            outcome = self.block(statement.orelse, frame)
        if statement.final:
            final = self.block(statement.final, frame)
            outcome = final if final is not None else outcome
        return outcome

    def _fails(self, statement: ir.Try) -> bool:
        """On a flipped path the body raises for one microbatch and the handler goes on with the next."""
        if not statement.handlers or ending_of(statement.handlers[0].body) not in ("continue", "return", ""):
            return False
        if "backward" not in self.learned.effects.get(statement.site, frozenset()) or self.microbatch < 0:
            return False
        at = self.decide(f"~except@{statement.site}", None, True)
        if at is None or at != self.microbatch or self.disturbed is not None:
            return False
        body = statement.handlers[0].body
        jump = next((s.site for s in reversed(body) if isinstance(s, ir.Jump)), body[-1].site if body else statement.site)
        self.disturbed = (jump, self.microbatch, True)
        return True


def _yield_of(statement: ir.Stmt) -> ir.Yield | None:
    if isinstance(statement, ir.Evaluate) and isinstance(statement.value, ir.Yield):
        return statement.value
    if isinstance(statement, ir.Assign) and isinstance(statement.value, ir.Yield):
        return statement.value
    return None
