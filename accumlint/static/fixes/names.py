"""Which names a piece of syntax reads and binds: what may be moved where depends on it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything below it."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.children))


def _skipped(node: cst.CSTNode) -> set[int]:
    """Names that are no variables: attributes and keywords of calls."""
    out = set()
    for each in walk(node):
        if isinstance(each, cst.Attribute):
            out.add(id(each.attr))
        elif isinstance(each, cst.Arg) and each.keyword is not None:
            out.add(id(each.keyword))
        elif isinstance(each, cst.Param):
            out.add(id(each.name))
    return out


def _target_names(target: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(target, cst.Name):
        yield target
    elif isinstance(target, (cst.Tuple, cst.List)):
        for element in target.elements:
            yield from _target_names(element.value)
    elif isinstance(target, cst.StarredElement):
        yield from _target_names(target.value)


def _bindings(node: cst.CSTNode) -> Iterator[cst.Name]:
    for each in walk(node):
        if isinstance(
            each, (cst.AssignTarget, cst.AnnAssign, cst.AugAssign, cst.NamedExpr, cst.For, cst.CompFor)
        ):
            yield from _target_names(each.target)
        elif isinstance(each, cst.AsName):
            yield from _target_names(each.name)
        elif isinstance(each, (cst.FunctionDef, cst.ClassDef)):
            yield each.name


def bound(node: cst.CSTNode) -> set[str]:
    """Names that the node binds: by assignment, loop, ``with``, ``import`` or definition."""
    return {name.value for name in _bindings(node)} | {
        name for each in walk(node) for name in _imported(each)
    }


def _imported(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.ImportAlias) and node.asname is None:
        root: cst.BaseExpression = node.name
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name):
            yield root.value


def read(node: cst.CSTNode) -> set[str]:
    """Names that the node needs from outside: what it reads and doesn't itself bind in a loop or comprehension."""
    targets = {
        id(name) for each in walk(node) if not isinstance(each, cst.AugAssign) for name in _own_targets(each)
    }
    skipped = _skipped(node)
    loads = {
        each.value
        for each in walk(node)
        if isinstance(each, cst.Name) and id(each) not in targets and id(each) not in skipped
    }
    inner = {
        name.value
        for each in walk(node)
        if isinstance(each, (cst.For, cst.CompFor))
        for name in _target_names(each.target)
    }
    return loads - inner


def _own_targets(node: cst.CSTNode) -> Iterator[cst.Name]:
    if isinstance(node, (cst.AssignTarget, cst.AnnAssign, cst.NamedExpr, cst.For, cst.CompFor)):
        yield from _target_names(node.target)
    elif isinstance(node, cst.AsName):
        yield from _target_names(node.name)
    elif isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        yield node.name


def readers(node: cst.CSTNode, name: str) -> Iterator[cst.Name]:
    """Every place below the node that reads the name."""
    targets = {
        id(each)
        for inner in walk(node)
        if not isinstance(inner, cst.AugAssign)
        for each in _own_targets(inner)
    }
    skipped = _skipped(node)
    for each in walk(node):
        if (
            isinstance(each, cst.Name)
            and each.value == name
            and id(each) not in targets
            and id(each) not in skipped
        ):
            yield each


def binders(node: cst.CSTNode, name: str) -> Iterator[cst.Name]:
    """Every place below the node that binds the name."""
    return (each for each in _bindings(node) if each.value == name)


def locals_of(function: cst.CSTNode) -> set[str]:
    """Names that are local to a function (or global, for a module): parameters and what its own body binds."""
    own = parameters(function)
    stack = list(function.body.children) if isinstance(function, cst.FunctionDef) else list(function.children)
    while stack:
        node = stack.pop()
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            own.add(node.name.value)
            continue
        if isinstance(node, cst.Lambda):
            continue
        own |= {name.value for name in _own_targets(node)}
        own |= set(_imported(node))
        stack.extend(node.children)
    return own


def parameters(function: cst.CSTNode) -> set[str]:
    """Names of all parameters; empty for what is no function."""
    if not isinstance(function, (cst.FunctionDef, cst.Lambda)):
        return set()
    return {each.name.value for each in walk(function.params) if isinstance(each, cst.Param)}
