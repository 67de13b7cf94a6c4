"""Boundary tests that are wrong by themselves: shifted by one microbatch, turned round, or one too many."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.findings import Finding
from accumlint.static.fixes import accelerator, moving, names
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script
from accumlint.static.fixes.window import modulos, resolved


def _test(script: Script, finding: Finding) -> cst.BaseExpression | None:
    """The expression that decides about the step: where the finding stands, or below it."""
    node = script.at(finding)
    if node is None:
        return None
    statement = script.statement(node)
    if isinstance(statement, (cst.If, cst.While)):
        return resolved(script, statement.test)
    if isinstance(statement, (cst.Assign, cst.AnnAssign, cst.Return, cst.Expr)):
        return statement.value
    return None


def shift(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC206: the test holds for the last microbatch of the window."""
    test = _test(script, finding)
    if test is None:
        return
    for modulo in modulos(test):
        for new in _shifted(script, modulo.left):
            change = Change(script.outer_start(modulo.left), script.outer_end(modulo.left), new)
            title = f"Test `{new} % {script.outer_code(modulo.right)}`, which holds for the last microbatch of a window"
            yield Proposal(title, (change,), moves_boundary=True)
            conjunction = _conjunction(script, modulo)
            if conjunction is not None:
                kept, whole = conjunction
                text = script.outer_code(kept)
                start = script.outer_start(kept)
                text = text[: change.start - start] + new + text[change.end - start :]
                outer = Change(script.outer_start(whole), script.outer_end(whole), text)
                reason = "the other condition of the test goes: a first update that it held back now comes, also without accumulation"
                yield Proposal(title, (outer,), reason, moves_boundary=True)


def _shifted(script: Script, index: cst.BaseExpression) -> Iterator[str]:
    """Spellings of the index one microbatch later or earlier."""
    if (
        isinstance(index, cst.BinaryOperation)
        and isinstance(index.operator, (cst.Add, cst.Subtract))
        and script.code(index.right) == "1"
    ):
        yield script.outer_code(index.left)
        return
    code = script.outer_code(index)
    yield f"({code} + 1)"
    yield f"({code} - 1)"


def _conjunction(
    script: Script, modulo: cst.BinaryOperation
) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """(the half with the modulo, the whole) where it is one half of an ``and``."""
    child: cst.CSTNode = modulo
    for each in script.ancestors(modulo):
        if isinstance(each, cst.BooleanOperation) and isinstance(each.operator, cst.And):
            assert isinstance(child, cst.BaseExpression)
            return child, each
        if isinstance(each, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
            return None
        child = each
    return None


def turn(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC207: the step comes at the boundary, not everywhere else."""
    test = _test(script, finding)
    if test is None:
        return
    reason = "without accumulation the negated test never held: the optimizer now steps where it never did"
    title = "Turn the boundary test round"
    node = script.at(finding)
    statement = script.statement(node) if node is not None else None
    if isinstance(statement, cst.If) and isinstance(statement.test, (cst.Name, cst.Attribute, cst.Call)):
        at = script.start(statement.test)
        yield Proposal(title, (Change(at, at, "not "),), reason, moves_boundary=True)
    for each in names.walk(test):
        if isinstance(each, cst.ComparisonTarget) and isinstance(each.operator, (cst.NotEqual, cst.Equal)):
            code = script.code(each.operator)
            operator = each.operator
            at = script.start(operator) + (len(code) - len(code.lstrip()))
            new = "==" if isinstance(operator, cst.NotEqual) else "!="
            yield Proposal(title, (Change(at, at + 2, new),), reason, moves_boundary=True)
        elif isinstance(each, cst.UnaryOperation) and isinstance(each.operator, cst.Not):
            code = script.outer_code(each.expression)
            yield Proposal(
                title,
                (Change(script.outer_start(each), script.outer_end(each), code),),
                reason,
                moves_boundary=True,
            )
    if isinstance(test, cst.BinaryOperation) and isinstance(test.operator, cst.Modulo):
        end = script.outer_end(test)
        yield Proposal(title, (Change(end, end, " == 0"),), reason, moves_boundary=True)


def unnest(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC209: the framework counts microbatches, so the script's own condition around the update goes."""
    node = script.at(finding)
    gate = script.statement(node) if node is not None else None
    if not isinstance(gate, cst.If) or gate.orelse is not None or isinstance(script.parent(gate), cst.If):
        return
    if not isinstance(gate.body, cst.IndentedBlock):
        return
    if any(not _held_back(script, each) for each in gate.body.body):
        yield from _ask_accelerator(script, gate)
        return
    first, last = moving.first_line(script, gate.body.body[0]), moving.last_line(script, gate)
    outer, inner = script.indentation(gate), script.indentation(gate.body.body[0])
    head = Change(script.lines.offset(script.line(gate), 1), script.lines.offset(first, 1), "")
    inside = moving.string_lines(script, gate)
    changes = [head]
    for number in range(first, last + 1):
        if number not in inside and script.lines.content(number).startswith(inner):
            at = script.lines.offset(number, 1) + len(outer)
            changes.append(Change(at, at + len(inner) - len(outer), ""))
    title = "Call the update on every microbatch: the framework holds it back until the boundary"
    yield Proposal(title, tuple(changes), moves_boundary=True)


def _held_back(script: Script, statement: cst.CSTNode) -> bool:
    """A call that the framework itself keeps from doing anything before the boundary."""
    code = script.code(statement)
    return (
        code.endswith(")")
        and any(f".{name}(" in code for name in ("step", "zero_grad"))
        and "=" not in code.split("(")[0]
    )


def _ask_accelerator(script: Script, gate: cst.If) -> Iterator[Proposal]:
    """Where more hangs on the condition than the framework holds back, the accelerator knows when the boundary is."""
    for node in script.module.sites:
        owner = accelerator.opened(script, node)
        if owner:
            test = f"{owner}.sync_gradients"
            change = Change(script.outer_start(gate.test), script.outer_end(gate.test), test)
            yield Proposal(
                f"Test `{test}`, which counts the microbatches already", (change,), moves_boundary=True
            )
            return
