"""What is held against a number of updates is counted in updates."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.findings import Finding
from accumlint.static.fixes import names, window
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script


def in_updates(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC701: a count of microbatches is divided by K where a limit in updates is met, an interval multiplied by it."""
    node = script.at(finding)
    if node is None:
        return
    statement = script.statement(node)
    scope = statement.test if isinstance(statement, (cst.If, cst.While)) else statement
    for k in window.spelled_at(script, statement):
        for each in names.walk(scope):
            if (
                isinstance(each, cst.BinaryOperation)
                and isinstance(each.operator, cst.Modulo)
                and script.code(each.right) != k
            ):
                new = f"({_bracketed(script, each.right)} * {k})"
                change = Change(script.outer_start(each.right), script.outer_end(each.right), new)
                yield Proposal(
                    f"Count the interval in microbatches: `{new[1:-1]}`", (change,), moves_boundary=True
                )
            elif isinstance(each, cst.Comparison) and not any(True for _ in window.modulos(each)):
                yield _floored(script, each.left, k)
            elif isinstance(each, cst.Call):
                for argument in each.args:
                    if isinstance(argument.value, (cst.Name, cst.Attribute)):
                        yield _floored(script, argument.value, k)


def _floored(script: Script, count: cst.BaseExpression, k: str) -> Proposal:
    new = f"{_bracketed(script, count)} // {k}"
    change = Change(script.outer_start(count), script.outer_end(count), new)
    return Proposal(f"Count in updates: `{new}`", (change,), moves_boundary=True)


def _bracketed(script: Script, value: cst.BaseExpression) -> str:
    """The expression as an operand."""
    code = script.outer_code(value)
    plain = value.lpar or isinstance(value, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.Integer))
    return code if plain else f"({code})"
