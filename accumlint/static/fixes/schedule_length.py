"""The length of a schedule is counted in updates."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.findings import Finding
from accumlint.static.fixes import names, window
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script


def in_updates(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC801: lengths of loaders in the arguments of the schedule are divided by K."""
    node = script.at(finding)
    if node is None:
        return
    yield from _lightning(script, node)
    flushes = _flushes(finding)
    for value in _values(script, node):
        lengths = [
            each
            for each in names.walk(value)
            if isinstance(each, cst.Call) and script.code(each.func) == "len" and len(each.args) == 1
        ]
        for length in lengths:
            for k in window.spelled_at(script, script.statement(length)):
                yield Proposal(
                    f"Count `{script.code(length)}` in updates: divide by `{k}`",
                    (_divided(script, length, k, flushes),),
                )
        if not lengths and isinstance(value, (cst.Name, cst.Attribute, cst.BinaryOperation)):
            for k in window.spelled_at(script, script.statement(value)):
                reason = "what the length is made of is not seen here: it may count updates already"
                yield Proposal(
                    f"Count `{script.code(value)}` in updates: divide by `{k}`",
                    (_divided(script, value, k, flushes),),
                    reason,
                )


def _flushes(finding: Finding) -> bool:
    """Whether the loop steps its short last window: it counts as an update then."""
    timeline = finding.evidence.get("timeline") or {}
    return any(window.get("tail") for window in timeline.get("windows") or ())


def _values(script: Script, node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """The expressions that make up the length: the one blamed, or all arguments of its call, names followed once."""
    seen: set[int] = set()

    def follow(value: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
        found = window.resolved(script, value)
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            for each in names.walk(found):
                if isinstance(each, cst.Name) and each is not found:
                    inner = window.resolved(script, each)
                    if inner is not each and id(inner) not in seen:
                        seen.add(id(inner))
                        yield inner

    statement = script.statement(node)
    calls = [
        each
        for each in names.walk(node if isinstance(node, cst.Call) else statement)
        if isinstance(each, cst.Call)
    ]
    outer = next((each for each in calls if script.code(each.func) != "len"), None)
    own = node.value if isinstance(node, cst.Arg) else node
    if isinstance(own, cst.BaseExpression) and own is not outer:
        yield from follow(own)
    if outer is not None:
        for argument in outer.args:
            yield from follow(argument.value)


def _divided(script: Script, value: cst.BaseExpression, k: str, flushes: bool) -> Change:
    """The expression divided by K, rounded up where the short window is stepped, in brackets where it needs them."""
    code = script.outer_code(value)
    if not value.lpar and not isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript)):
        code = f"({code})"
    start, end = script.outer_start(value), script.outer_end(value)
    if flushes:
        if "math" in names.locals_of(script.tree):
            return Change(start, end, f"math.ceil({code} / {k})")
        text = f"({code} + {k} - 1) // {k}"
    else:
        text = f"{code} // {k}"
    parent = script.parent(value)
    apart = isinstance(parent, cst.Attribute)
    if isinstance(parent, cst.BinaryOperation):  # `a // k*b` would be right and read wrong
        apart = parent.right is value or " " not in script.text[end : script.outer_start(parent.right)]
    return Change(start, end, f"({text})" if apart else text)


def _lightning(script: Script, node: cst.CSTNode) -> Iterator[Proposal]:
    """Lightning counts the updates of the whole run by itself."""
    function = script.function_of(node)
    if not isinstance(function, cst.FunctionDef) or function.name.value != "configure_optimizers":
        return
    reason = "the Trainer's own count is used, which may differ from what was computed here, also without accumulation"
    for value in _values(script, node):
        if any(
            isinstance(each, cst.BinaryOperation) for each in names.walk(value)
        ) and "lr" not in script.code(value):
            change = Change(
                script.outer_start(value), script.outer_end(value), "self.trainer.estimated_stepping_batches"
            )
            yield Proposal("Take the number of updates from the Trainer", (change,), reason)
