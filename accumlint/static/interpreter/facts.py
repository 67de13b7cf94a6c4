"""What values and statements tell by themselves, without a run."""

from __future__ import annotations

from typing import Any

from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static.values import Instance, Parameters, Tensor, Test, Thing, Unknown


class EnoughYields(Exception):
    """A generator has yielded as much as any loop will ask for."""


def ending_of(body: list[ir.Stmt]) -> str:
    """How a body ends when it ends early: raise, return, break, continue, or ''."""
    if not body:
        return ""
    last = body[-1]
    if isinstance(last, ir.Jump):
        return last.kind
    if isinstance(last, ir.Evaluate) and isinstance(last.value, ir.Call):
        if ir.dotted(last.value.func) in ("sys.exit", "exit", "os._exit", "quit"):
            return "raise"
    return ""


def is_settled(value: Any) -> bool:
    """No decision is needed to know the truth of the value."""
    if isinstance(value, Test):
        return value.op == "known" or value.op == "far"
    if isinstance(value, Thing):
        return not value.maybe_none
    return not isinstance(value, (Unknown, Tensor)) and not (isinstance(value, Quantity) and not value.known)


def facts_of(*values: Any) -> tuple[int, bool, frozenset[str]]:
    """(microbatch, rank-local, tags) of what goes into an expression."""
    batch, local, tags = -1, False, frozenset()
    for value in values:
        if isinstance(value, (Unknown, Test)):
            batch = max(batch, value.batch)
            local |= value.local
            tags |= value.tags
        elif isinstance(value, Tensor):
            batch = max(batch, value.batch)
            local |= value.local
        elif isinstance(value, Quantity):
            tags |= value.tags
            local |= not value.uniform
    return batch, local, tags


def counters_in(value: Quantity) -> tuple[str, ...]:
    return tuple(sorted(tag for tag in value.tags if tag.startswith(("counter:", "index:"))))


def stem_of(value: Unknown | Tensor) -> str:
    """The key that is the same in every pass of a loop."""
    return value.key.split("#")[0]


def is_object(value: Any) -> bool:
    """An optimizer, a model, a loss: a loop over such things is no loop over microbatches."""
    if isinstance(value, (tuple, list)) and value:
        return any(is_object(item) for item in value)
    return isinstance(value, (Thing, Instance, Parameters, str)) or isinstance(value, Tensor) and value.graph


def may_run(node: ir.Expr) -> bool:
    """Evaluating the expression could call something."""
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, (ir.Call, ir.Await, ir.Walrus)):
            return True
        stack.extend(parts_of(item))
    return False


def parts_of(node: Any) -> list[Any]:
    out: list[Any] = []
    for name in getattr(type(node), "__dataclass_fields__", ()):
        value = getattr(node, name)
        if isinstance(value, (ir.Expr, ir.Argument)):
            out.append(value)
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, (ir.Expr, ir.Argument)):
                    out.append(item)
                elif isinstance(item, tuple):
                    out.extend(part for part in item if isinstance(part, ir.Expr))
    return out


def calls_in_expression(node: ir.Expr) -> set[str]:
    names: set[str] = set()
    stack: list[Any] = [node]
    while stack:
        item = stack.pop()
        if isinstance(item, ir.Call):
            func = item.func
            names.add(func.name if isinstance(func, ir.Attr) else func.id if isinstance(func, ir.Name) else "")
        stack.extend(parts_of(item))
    return names
