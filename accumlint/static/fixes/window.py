"""How a script spells its window: the number K, the test for the boundary, the loop with its index."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from accumlint.contract.events import Event, Kind
from accumlint.static.fixes import names, scope
from accumlint.static.fixes.script import Script


def steps(script: Script) -> list[Event]:
    """The first step event of each place in this file."""
    found: dict[tuple, Event] = {}
    for trace in script.traces:
        for event in trace.events:
            if event.kind is Kind.STEP and script.node(event.site) is not None:
                found.setdefault((event.site, event.stack), event)
    return list(found.values())


def gates(script: Script) -> list[cst.If]:
    """Conditions around optimizer steps, innermost last."""
    found: dict[int, cst.If] = {}
    for step in steps(script):
        for site in step.gates:
            node = script.node(site)
            if isinstance(node, cst.If):
                found.setdefault(site, node)
    return list(found.values())


def test_of(script: Script, gate: cst.If) -> cst.BaseExpression:
    """The expression that decides: the test itself, or what the name in it was assigned in the same function."""
    return resolved(script, gate.test)


def resolved(script: Script, expression: cst.BaseExpression) -> cst.BaseExpression:
    """What a name was assigned, once and in the same function; everything else is itself."""
    for _ in range(3):
        if not isinstance(expression, cst.Name):
            return expression
        function = script.function_of(expression)
        binders = list(names.binders(function, expression.value))
        if len(binders) != 1:
            return expression
        statement = script.statement(binders[0])
        if not isinstance(statement, (cst.Assign, cst.AnnAssign)) or statement.value is None:
            return expression
        if isinstance(statement, cst.Assign) and not isinstance(statement.targets[0].target, cst.Name):
            return expression
        expression = statement.value
    return expression


def modulos(node: cst.CSTNode) -> Iterator[cst.BinaryOperation]:
    """Every ``a % b`` in an expression."""
    for each in names.walk(node):
        if isinstance(each, cst.BinaryOperation) and isinstance(each.operator, cst.Modulo):
            yield each


def spellings(script: Script) -> list[cst.BaseExpression]:
    """Expressions that stand for K, the likeliest first: in boundary tests, window loops, divisors and framework calls."""
    found: dict[str, cst.BaseExpression] = {}

    def add(node: cst.CSTNode | None) -> None:
        if isinstance(node, (cst.Name, cst.Attribute, cst.Subscript, cst.Integer)) and script.code(
            node
        ) not in ("0", "1"):
            found.setdefault(script.code(node), node)

    for gate in gates(script):
        test = test_of(script, gate)
        inner = list(modulos(test))
        for modulo in inner:
            add(modulo.right)
        if not inner:
            for each in names.walk(test):
                if isinstance(each, cst.Comparison):
                    add(each.comparisons[0].comparator)
    for trace in script.traces[:1]:
        for event in trace.events:
            if event.kind is Kind.BACKWARD:
                for loop in (script.node(site) for site in event.loops[-1:]):
                    if (
                        isinstance(loop, cst.For)
                        and isinstance(loop.iter, cst.Call)
                        and script.code(loop.iter.func) == "range"
                        and loop.iter.args
                    ):
                        add(loop.iter.args[-1].value)
                for site in event.details.get("divisions", ()):
                    node = script.node(site)
                    if isinstance(node, cst.BinaryOperation):
                        add(node.right)
    for node in script.module.sites:
        if isinstance(node, cst.Call):
            for argument in node.args:
                if argument.keyword is not None and argument.keyword.value in (
                    "gradient_accumulation_steps",
                    "accumulate_grad_batches",
                ):
                    add(argument.value)
    return list(found.values())


def spelled_at(script: Script, target: cst.CSTNode) -> list[str]:
    """Spellings of K that can be written in front of the target."""
    return [script.code(each) for each in spellings(script) if scope.known_at(script, each, target)]


class Loop(NamedTuple):
    """A loop over microbatches whose number is known by index and length."""

    node: cst.For
    counter: str
    start: int  # the first index
    loader: str  # an expression that has a length


def indexed(script: Script, loop: cst.For) -> Loop | None:
    """``for i, … in enumerate(loader)``, where the loader can be asked for its length; None for other loops."""
    call = loop.iter
    if not isinstance(call, cst.Call) or script.code(call.func) != "enumerate" or not call.args:
        return None
    target = loop.target
    if not isinstance(target, cst.Tuple) or not isinstance(target.elements[0].value, cst.Name):
        return None
    start = 0
    if len(call.args) > 1:
        code = script.code(call.args[1].value)
        if code not in ("0", "1"):
            return None
        start = int(code)
    loader = call.args[0].value
    if isinstance(resolved(script, loader), cst.Call):  # bar = tqdm(loader)
        named = resolved(script, loader)
        loader = named if isinstance(named, cst.Call) and script.code(named.func).endswith("tqdm") else loader
    if isinstance(loader, cst.Call) and script.code(loader.func).rsplit(".", 1)[-1] == "tqdm" and loader.args:
        loader = loader.args[0].value
    if not isinstance(loader, (cst.Name, cst.Attribute)) or not has_length(script, loader):
        return None
    return Loop(loop, target.elements[0].value.value, start, script.code(loader))


def has_length(script: Script, loader: cst.BaseExpression) -> bool:
    """Whether ``len()`` of it will work, as far as names and other uses of it tell."""
    if "IterableDataset" in script.text:
        return False
    code = script.code(loader)
    if f"len({code})" in script.text:
        return True
    last = code.rsplit(".", 1)[-1].lower()
    return "loader" in last or last in ("dl", "train_dl", "batches")
