"""A checkpoint that holds the optimizer also holds what moves along with it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.contract.events import Kind
from accumlint.findings import Finding
from accumlint.static.fixes import moving, names, scope
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

_WHY = "a resumed run now goes on where it would have started anew, also without accumulation"
_KINDS = {"scheduler": Kind.SCHEDULE, "scaler": Kind.SCALER_UPDATE}


def hold(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC704: the state of the scheduler and the scaler is saved, and restored where the optimizer's is."""
    node = script.at(finding)
    if node is None:
        return
    function = script.function_of(node)
    entry = _optimizer_entry(script, function)
    if entry is None:
        return
    missing = [kind for kind in _KINDS if f"the {kind}" in finding.message]
    changes: list[Change] = []
    lines: list[str] = []
    handed: list[tuple[cst.CSTNode, str]] = []
    restoring = _restoring(script)
    for kind in missing:
        receiver = _receiver(script, _KINDS[kind])
        if receiver is None:
            return
        code = script.code(receiver)
        key = script.code(entry.key).replace("optimizer", kind).replace("optim", kind)
        if key == script.code(entry.key):
            return
        lines.append(f"{key}: {code}.state_dict()")
        handed.append((function, code))
        if restoring is not None:
            statement, source = restoring
            restored = f"if {key} in {source}:\n{script.indent}{code}.load_state_dict({source}[{key}])"
            put = moving.put(script, moving.written(restored), statement, after=True)
            if put is None:
                return
            changes.append(put)
            handed.append((script.function_of(statement), code))
        for target in {id(f): f for f, c in handed if c == code}.values():
            passed = _passed(script, receiver, target)
            if passed is None:
                return
            changes += passed
    if not lines:
        return
    changes.append(_added(script, entry, lines))
    what = " and ".join(missing)
    title = f"Save the state of the {what}" + (
        ", and restore it where it is there" if restoring is not None else ""
    )
    yield Proposal(title, tuple(changes), _WHY)


def _optimizer_entry(script: Script, function: cst.CSTNode) -> cst.DictElement | None:
    """``"optimizer": optimizer.state_dict()`` in the function that saves."""
    for each in names.walk(function):
        if (
            isinstance(each, cst.DictElement)
            and "optim" in script.code(each.key)
            and ".state_dict()" in script.code(each.value)
        ):
            return each
    return None


def _receiver(script: Script, kind: Kind) -> cst.BaseExpression | None:
    """The expression by which the script knows its scheduler or scaler."""
    for trace in script.traces:
        for event in trace.events:
            node = script.node(event.site) if event.kind is kind else None
            call = node.value if isinstance(node, cst.Expr) else node
            if (
                isinstance(call, cst.Call)
                and isinstance(call.func, cst.Attribute)
                and isinstance(call.func.value, (cst.Name, cst.Attribute))
            ):
                return call.func.value
    return None


def _restoring(script: Script) -> tuple[cst.CSTNode, str] | None:
    """(the statement that restores the optimizer, the checkpoint that it takes the state from)."""
    for node in script.module.sites:
        if (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "load_state_dict"
            and node.args
        ):
            value = node.args[0].value
            if (
                "optim" in script.code(node.func.value)
                and isinstance(value, cst.Subscript)
                and isinstance(value.value, cst.Name)
            ):
                statement = script.statement(node)
                if isinstance(statement, cst.Expr):
                    return statement, script.code(value.value)
    return None


def _passed(script: Script, receiver: cst.BaseExpression, target: cst.CSTNode) -> list[Change] | None:
    """The changes that make a name known in a function: none where it is, else a parameter and its arguments."""
    if not isinstance(receiver, cst.Name):
        return (
            []
            if scope.means_the_same(script, names.read(receiver), script.function_of(receiver), target)
            else None
        )
    name = receiver.value
    source = script.function_of(receiver)
    if scope.means_the_same(script, {name}, source, target):
        return []
    if not isinstance(target, cst.FunctionDef) or name in names.locals_of(target):
        return None
    parameters = target.params
    if (
        not parameters.params
        or parameters.kwonly_params
        or isinstance(parameters.star_arg, cst.Param)
        or parameters.star_kwarg
    ):
        return None
    if any(each.default is not None for each in parameters.params):
        return None
    at = script.end(parameters.params[-1])
    changes = [Change(at, at, f", {name}")]
    for node in script.module.sites:
        if (
            isinstance(node, cst.Call)
            and isinstance(node.func, cst.Name)
            and node.func.value == target.name.value
        ):
            caller = script.function_of(node)
            if (
                not node.args
                or any(each.star or each.keyword for each in node.args)
                or name not in names.locals_of(caller)
            ):
                return None
            if script.start(node) < min(script.start(binder) for binder in names.binders(caller, name)):
                return None
            end = script.outer_end(node.args[-1].value)
            changes.append(Change(end, end, f", {name}"))
    return changes


def _added(script: Script, entry: cst.DictElement, lines: list[str]) -> Change:
    """More entries behind the optimizer's: on lines of their own where it has one."""
    end = script.outer_end(entry.value)
    display = script.parent(entry)
    assert isinstance(display, cst.Dict)
    index = next(i for i, each in enumerate(display.elements) if each is entry)
    before = display.elements[index - 1] if index else None
    here = script.line(entry)
    alone = script.line(display) != here if before is None else script.line(before) != here
    joint = f",{script.newline}{script.indentation(entry)}" if alone else ", "
    return Change(end, end, "".join(joint + line for line in lines))
