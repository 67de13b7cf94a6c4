"""Attributes that a constructor only reserves: ``self.period = 1`` until ``prepare()`` computes it.

Whoever calls one method of an object has called others before. A constant from the constructor that one of those
replaces is no fact about the loop, unless it is a counter, whose first value is its start.
"""

from __future__ import annotations

from collections.abc import Mapping

from accumlint.static import syntax as ir


def reserved(methods: Mapping[str, ir.Function], entry: ir.Function) -> frozenset[str]:
    """Names of attributes that are set in the constructor and again by methods that ``entry`` doesn't reach.

    ``methods`` are those of the class and its bases by name, the nearest first in force.
    """
    running = _reached(methods, entry)
    first: set[str] = set()
    later: set[str] = set()
    here: set[str] = set()
    counted: set[str] = set()
    for name, method in methods.items():
        stored, augmented = _stores(method)
        counted |= augmented
        if name == "__init__":
            first |= stored
        elif name in running:
            here |= stored
        else:
            later |= stored
    return frozenset((first & later) - counted - here)


def _reached(methods: Mapping[str, ir.Function], entry: ir.Function) -> set[str]:
    found = {entry.name}
    waiting = [entry]
    while waiting:
        for name in waiting.pop().calls:
            if name in methods and name not in found:
                found.add(name)
                waiting.append(methods[name])
    return found


def _stores(method: ir.Function) -> tuple[set[str], set[str]]:
    """Attributes of the instance that a method assigns, and those that it counts up."""
    if not method.parameters:
        return set(), set()
    own = method.parameters[0].name
    stored: set[str] = set()
    augmented: set[str] = set()
    for statement in ir.walk_statements(method.body):
        if isinstance(statement, ir.Assign):
            for target in statement.targets:
                parts = target.items if isinstance(target, ir.Sequence) else [target]
                stored |= {part.name for part in parts if _is_own(part, own)}
        elif isinstance(statement, ir.Augment) and _is_own(statement.target, own):
            augmented.add(statement.target.name)
    return stored, augmented


def _is_own(target: ir.Expr, own: str) -> bool:
    return isinstance(target, ir.Attr) and isinstance(target.value, ir.Name) and target.value.id == own
