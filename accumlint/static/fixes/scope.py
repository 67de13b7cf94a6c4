"""Whether a name means at one place what it means at another."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from accumlint.static.fixes import names
from accumlint.static.fixes.script import Script


def home(script: Script, name: str, function: cst.CSTNode) -> cst.CSTNode:
    """The function that binds a name as it is seen from ``function``; the module for globals and builtins."""
    for each in script.ancestors(function):
        if isinstance(each, (cst.FunctionDef, cst.Lambda)) and name in names.locals_of(each):
            return each
    return script.tree


def means_the_same(script: Script, needs: Iterable[str], source: cst.CSTNode, target: cst.CSTNode) -> bool:
    """Whether names that one function reads can be read in another one, as far as their spelling tells.

    A local of both is taken for the same thing: a simulation has to say whether that is so.
    """
    for name in needs:
        place = home(script, name, source)
        if place is script.tree:
            if target is not script.tree and name in names.locals_of(target):
                return False
        elif any(each is place for each in script.ancestors(target)):
            continue
        elif (
            name not in names.locals_of(target)
            or name in ("self", "cls")
            and script.class_of(source) is not script.class_of(target)
        ):
            return False
    return True


def bound_between(
    script: Script,
    function: cst.CSTNode,
    name: str,
    low: int,
    high: int,
    apart_from: cst.CSTNode | None = None,
) -> bool:
    """Whether the name is bound in the function between two offsets."""
    return any(
        low < script.start(binder) < high
        and not (apart_from is not None and script.inside(binder, apart_from))
        for binder in names.binders(function, name)
    )


def known_at(script: Script, expression: cst.CSTNode, target: cst.CSTNode) -> bool:
    """Whether an expression can be written in front of the target: its names are bound there, and earlier."""
    source, function = script.function_of(expression), script.function_of(target)
    needs = names.read(expression)
    if not means_the_same(script, needs, source, function):
        return False
    at = script.start(target)
    for name in needs:
        if name in names.parameters(function) or home(script, name, function) is not function:
            continue
        if not any(
            script.start(binder) < at for binder in names.binders(function, name)
        ) and name not in names.bound(script.tree):
            return False
    return _attributes_set(script, expression, function, at)


def _attributes_set(script: Script, expression: cst.CSTNode, function: cst.CSTNode, at: int) -> bool:
    """Attributes of ``self`` are there before the constructor has ended only if it has set them by then."""
    if not isinstance(function, cst.FunctionDef) or function.name.value != "__init__":
        return True
    wanted = {
        script.code(each)
        for each in names.walk(expression)
        if isinstance(each, cst.Attribute) and script.code(each).startswith("self.")
    }
    set_before = {
        script.code(each.target)
        for each in names.walk(function)
        if isinstance(each, (cst.AssignTarget, cst.AnnAssign))
        and isinstance(each.target, cst.Attribute)
        and script.start(each.target) < at
    }
    return wanted <= set_before
