"""Divisions of the loss: one too many under a framework that divides by itself, or none at all."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.contract.events import Kind
from accumlint.findings import Confidence, Finding
from accumlint.static.fixes import accelerator, moving, names, window
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

_BACKWARD = ("backward", "manual_backward")


def drop(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC103: the script's own division goes, the framework's (or the other one of the script) stays."""
    for node in _divisions(script, finding):
        statement = script.statement(node)
        divisor = _divisor(node)
        assert divisor is not None
        code = script.outer_code(divisor)
        inlined = _inlined(script, node, statement)
        if inlined:
            yield Proposal(f"Remove the division by `{code}`", inlined)
        change = _without(script, node, statement)
        undone, others = _reads(script, node, statement, code)
        reason = ""
        if others:
            lines = ", ".join(str(script.line(reader)) for reader in others)
            reason = (
                f"`{others[0].value}` is also read on line {lines}, where it becomes {code} times as large"
            )
        yield Proposal(f"Remove the division by `{code}`", (change, *undone), reason)


def _divisions(script: Script, finding: Finding) -> list[cst.CSTNode]:
    """Divisions by K that a loss goes through, those where the finding stands first."""
    k = {script.code(each) for each in window.spellings(script)}
    found: dict[int, cst.CSTNode] = {}
    at = script.at(finding)
    if at is not None:
        for each in names.walk(script.statement(at)):
            if _divisor(each) is not None:
                found.setdefault(id(each), each)
    for trace in script.traces:
        for event in trace.events:
            if event.kind is Kind.BACKWARD:
                sites = [*event.details.get("divisions", ())]
                sites += [site for part in event.details.get("parts") or () for site in part.divisions]
                for site in sites:
                    node = script.node(site)
                    if node is not None and _divisor(node) is not None:
                        found.setdefault(id(node), node)
    plain = [
        node
        for node in found.values()
        if script.code(_divisor(node) or node) in k or _is_window(script, _divisor(node))
    ]
    return plain or list(found.values())


def _is_window(script: Script, divisor: cst.BaseExpression | None) -> bool:
    """An expression whose name says that it is a framework's own count."""
    code = script.code(divisor) if divisor is not None else ""
    return any(word in code for word in ("accumulat", "accum", "grad_acc"))


def _divisor(node: cst.CSTNode) -> cst.BaseExpression | None:
    """What a node divides by: ``a / k``, ``a.div(k)``, ``a /= k``; None where it doesn't divide."""
    if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
        return node.right
    if isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.DivideAssign):
        return node.value
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func.attr.value in ("div", "div_", "true_divide")
    ):
        return node.args[0].value if len(node.args) == 1 else None
    return None


def _dividend(node: cst.CSTNode) -> cst.BaseExpression:
    if isinstance(node, cst.BinaryOperation):
        return node.left
    if isinstance(node, cst.AugAssign):
        return node.target
    assert isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)
    return node.func.value


def _without(script: Script, node: cst.CSTNode, statement: cst.CSTNode) -> Change:
    """The change that leaves what was divided; a statement that only divides goes altogether."""
    left = _dividend(node)
    if isinstance(node, cst.AugAssign):
        return moving.lift(script, statement).change
    only = isinstance(statement, cst.Assign) and statement.value is node and len(statement.targets) == 1
    if (
        isinstance(statement, cst.Assign)
        and only
        and script.code(statement.targets[0].target) == script.outer_code(left)
    ):
        return moving.lift(script, statement).change
    simple = isinstance(left, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
    if simple and not left.lpar:
        return Change(script.outer_start(node), script.outer_end(node), script.code(left))
    return Change(script.start(node), script.end(node), script.outer_code(left))


def _inlined(script: Script, node: cst.CSTNode, statement: cst.CSTNode) -> tuple[Change, ...]:
    """``scaled = loss / k`` that only backward reads: the loss itself goes there. Empty where that isn't so."""
    left = _dividend(node)
    if (
        not isinstance(statement, cst.Assign)
        or statement.value is not node
        or not isinstance(left, cst.Name)
        or len(statement.targets) != 1
    ):
        return ()
    target = statement.targets[0].target
    function = script.function_of(statement)
    if (
        not isinstance(target, cst.Name)
        or target.value == left.value
        or len(list(names.binders(function, target.value))) != 1
    ):
        return ()
    readers = list(names.readers(function, target.value))
    if len(readers) != 1 or not _goes_to_backward(script, readers[0]):
        return ()
    reader = readers[0]
    return moving.lift(script, statement).change, Change(script.start(reader), script.end(reader), left.value)


def _reads(
    script: Script, node: cst.CSTNode, statement: cst.CSTNode, divisor: str
) -> tuple[list[Change], list[cst.Name]]:
    """Who else sees the divided value: multiplications that undo the division, with their removal, and others."""
    if not isinstance(statement, (cst.Assign, cst.AugAssign)):
        return [], []
    target = statement.targets[0].target if isinstance(statement, cst.Assign) else statement.target
    if not isinstance(target, cst.Name):
        return [], []
    undone, others = [], []
    function = script.function_of(statement)
    for reader in names.readers(function, target.value):
        if script.start(reader) <= script.end(statement) or _goes_to_backward(script, reader):
            continue
        product = undoing(script, reader, divisor)
        if product is not None:
            undone.append(Change(script.outer_end(product.left), script.outer_end(product.right), ""))
        else:
            others.append(reader)
    return undone, others


def undoing(script: Script, reader: cst.Name, divisor: str) -> cst.BinaryOperation | None:
    """``loss.item() * k`` around a read of the loss."""
    child: cst.CSTNode = reader
    for each in script.ancestors(reader):
        if isinstance(each, cst.BinaryOperation):
            if (
                isinstance(each.operator, cst.Multiply)
                and each.left is child
                and script.outer_code(each.right) == divisor
                and not each.lpar
            ):
                return each
            return None
        if not isinstance(each, (cst.Name, cst.Attribute, cst.Call)):
            return None
        child = each
    return None


def _goes_to_backward(script: Script, reader: cst.Name) -> bool:
    """``loss.backward()``, ``x.backward(loss)``, ``scaler.scale(loss).backward()``, ``return loss``."""
    statement = script.statement(reader)
    if isinstance(statement, cst.Return):
        return True
    for each in names.walk(statement):
        if isinstance(each, cst.Attribute) and each.attr.value in _BACKWARD:
            return isinstance(statement, cst.Expr)
    return False


def add(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC102: the mean loss of a microbatch is divided by the number of microbatches."""
    found = next(iter(script.events_at(finding, Kind.BACKWARD)), None)
    node = script.node(found[2].site) if found is not None else script.at(finding)
    call = _call_of_backward(node)
    if call is None or not isinstance(call.func, cst.Attribute):
        return
    reason = ""
    if finding.confidence < Confidence.CERTAIN:
        reason = "that the loss is a mean of its microbatch rests on what its name suggests"
    owner = accelerator.around(script, call)
    if owner and not call.args:
        loss = script.outer_code(call.func.value)
        if call.func.value.lpar:
            loss = script.code(call.func.value)
        yield Proposal(
            f"Call `{owner}.backward()`, which divides by the window",
            (Change(script.outer_start(call), script.outer_end(call), f"{owner}.backward({loss})"),),
            reason
            or "accelerator.backward() also scales the loss under float16, where the plain backward did not",
        )
        return
    loss_node = _scaled_loss(call)
    if loss_node is None:
        return
    for k in window.spelled_at(script, script.statement(call)):
        code = script.outer_code(loss_node)
        simple = isinstance(loss_node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
        inner = code if simple else f"({code})" if not loss_node.lpar else code
        argument = loss_node is not call.func.value
        text = f"{inner} / {k}" if argument else f"({inner} / {k})"
        change = Change(script.outer_start(loss_node), script.outer_end(loss_node), text)
        yield Proposal(f"Divide the loss by `{k}`", (change,), reason)


def _call_of_backward(node: cst.CSTNode | None) -> cst.Call | None:
    """The call of backward in a statement or expression."""
    if node is None:
        return None
    for each in names.walk(node):
        if (
            isinstance(each, cst.Call)
            and isinstance(each.func, cst.Attribute)
            and each.func.attr.value in _BACKWARD
        ):
            return each
    return None


def _scaled_loss(call: cst.Call) -> cst.BaseExpression | None:
    """The loss of a backward: its receiver, what the receiver scales, or its argument."""
    assert isinstance(call.func, cst.Attribute)
    receiver = call.func.value
    if (
        isinstance(receiver, cst.Call)
        and isinstance(receiver.func, cst.Attribute)
        and receiver.func.attr.value == "scale"
        and len(receiver.args) == 1
    ):
        return receiver.args[0].value
    if call.args and call.args[0].keyword is None:
        return call.args[0].value
    return receiver if not call.args else None
