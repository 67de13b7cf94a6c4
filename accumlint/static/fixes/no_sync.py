"""Communication is switched where the wrapper decides: DDP in the forward, so the forward goes into the context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from accumlint.contract.events import Event, Kind, Trace
from accumlint.findings import Finding
from accumlint.static.fixes import moving, names, scope, window
from accumlint.static.fixes.boundary import available
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

_WHY_TURNED = "replicas that drifted apart are now kept equal, perhaps without accumulation too"


def widen(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC302: the context begins before the forward."""
    node = script.at(finding)
    context = script.statement(node) if node is not None else None
    if not isinstance(context, cst.With) or not isinstance(context.body, cst.IndentedBlock):
        return
    first = _forward_beside(script, context)
    if first is None:
        return
    block, _ = script.block_of(context)
    body = list(moving.children(block))
    start = next(i for i, each in enumerate(body) if each is first)
    stop = next(i for i, each in enumerate(body) if each is context)
    needs = {name for item in context.items for name in names.read(item)}
    covered = body[start:stop]
    staying = [each for each in covered if names.bound(each) & needs]
    change = (
        _into_body(script, context, covered, staying) if staying else _header_before(script, context, covered)
    )
    if change:
        yield Proposal("Begin the no_sync context before the forward", tuple(change))


def _into_body(
    script: Script, context: cst.With, covered: Sequence[cst.CSTNode], staying: Sequence[cst.CSTNode]
) -> list[Change]:
    """Move statements down into the context, past those that its header needs; empty where these need them in turn."""
    assert isinstance(context.body, cst.IndentedBlock)
    moved = [each for each in covered if not any(each is stays for stays in staying)]
    if {name for each in moved for name in names.bound(each)} & {
        name for each in staying for name in names.read(each)
    }:
        return []
    changes: list[Change] = []
    for each in moved:
        lifted = moving.lift(script, each)
        put = moving.put(script, lifted, context.body.body[0], after=False)
        if put is None:
            return []
        changes += [lifted.change, put]
    return changes


def _forward_beside(script: Script, context: cst.With) -> cst.CSTNode | None:
    """The statement, in the block of the context, with the forward that its backward belongs to."""
    block, _ = script.block_of(context)
    for trace, backward in _backwards_in(script, context):
        for event in trace.events:
            if event.kind is Kind.FORWARD and event.microbatch == backward.microbatch:
                for site in (*event.stack, event.site):
                    node = script.node(site)
                    child = script.child_in(block, node) if node is not None else None
                    if (
                        child is not None
                        and child is not context
                        and script.start(child) < script.start(context)
                    ):
                        return child
    return None


def _backwards_in(script: Script, statement: cst.CSTNode) -> Iterator[tuple[Trace, Event]]:
    for trace in script.traces:
        for event in trace.events:
            if event.kind is Kind.BACKWARD:
                nodes = [script.node(site) for site in (*event.stack, event.site)]
                if any(node is not None and script.inside(node, statement) for node in nodes):
                    yield trace, event
                    break


def _header_before(script: Script, context: cst.With, covered: Sequence[cst.CSTNode]) -> list[Change]:
    """Move the lines of a header up and indent what comes below it; empty where the layout doesn't allow it."""
    assert isinstance(context.body, cst.IndentedBlock)
    head = script.line(context)
    below = script.line(context.body.body[0])
    first_inner = moving.first_line(script, context.body.body[0])
    if below == head or any(moving.shares_line(script, moving.whole(script, each)) for each in covered):
        return []
    indent = script.indentation(context)
    inner = script.indentation(context.body.body[0])[len(indent) :]
    last_of_head = head
    while not script.lines.content(last_of_head).split("#")[0].rstrip().endswith(":"):
        last_of_head += 1
        if last_of_head >= first_inner:
            return []
    top = moving.first_line(script, covered[0])
    start, end = script.lines.offset(head, 1), script.lines.end(last_of_head)
    at = script.lines.offset(top, 1)
    changes = [Change(at, at, script.text[start:end]), Change(start, end, "")]
    fixed = {number for each in covered for number in moving.string_lines(script, each)}
    for number in range(top, head):
        if number not in fixed and script.lines.content(number).strip():
            place = script.lines.offset(number, 1)
            changes.append(Change(place, place, inner))
    return changes


def flag_first(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC303: a flag that DDP reads in the forward is set before it."""
    node = script.at(finding)
    if node is None:
        return
    statement = script.statement(node)
    code = script.code(statement)
    if "require_backward_grad_sync" not in code and "set_requires_gradient_sync" not in code:
        return
    unit = statement
    block, _ = script.block_of(unit)
    outer = script.parent(block)
    if (
        len(moving.children(block)) == 1
        and isinstance(outer, cst.If)
        and outer.orelse is None
        and not isinstance(script.parent(outer), cst.If)
    ):
        unit = outer
    block, child = script.block_of(unit)
    for trace in script.traces:
        for event in trace.events:
            if event.kind is Kind.FORWARD:
                forward = script.node(event.site)
                place = script.child_in(block, forward) if forward is not None else None
                if (
                    place is not None
                    and place is not child
                    and script.start(place) < script.start(unit)
                    and available(script, unit, place)
                ):
                    lifted = moving.lift(script, unit)
                    put = moving.put(script, lifted, place, after=False)
                    if put is not None:
                        yield Proposal("Set the sync flag before the forward", (lifted.change, put))
                    return


def agree(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC303: the last microbatch is outside of ``no_sync``: arms the right way round, and one test for both decisions."""
    node = script.at(finding)
    if node is None:
        return
    yield from _enabled(script, node)
    for choice in _choices(script, script.statement(node)):
        silent_if_true = "no_sync" in script.code(choice.body)
        if silent_if_true == ("no_sync" in script.code(choice.orelse)):
            continue
        reason = "" if _full_windows_synchronise(script) else _WHY_TURNED
        swapped = Proposal(
            "Exchange the arms, so that the last microbatch is synchronised",
            (
                Change(
                    script.outer_start(choice.body),
                    script.outer_end(choice.body),
                    script.outer_code(choice.orelse),
                ),
                Change(
                    script.outer_start(choice.orelse),
                    script.outer_end(choice.orelse),
                    script.outer_code(choice.body),
                ),
            ),
            reason,
        )
        gates = [
            gate
            for gate in reversed(window.gates(script))
            if scope.known_at(script, gate.test, script.statement(choice))
        ]
        if any(script.outer_code(gate.test) == script.outer_code(choice.test) for gate in gates):
            yield swapped
        for gate in gates:
            test = script.outer_code(gate.test)
            if silent_if_true:
                test = f"not {test if _simple(gate.test) else f'({test})'}"
            change = Change(script.outer_start(choice.test), script.outer_end(choice.test), test)
            yield Proposal("Let the test of the step decide about synchronising too", (change,), reason)
        yield swapped


def _choices(script: Script, statement: cst.CSTNode) -> list[cst.IfExp]:
    """``a if test else b`` in the expressions of a statement, or in what a context of it was assigned."""
    if not isinstance(statement, cst.With):
        return [each for each in names.walk(statement) if isinstance(each, cst.IfExp)]
    found = []
    for item in statement.items:
        for each in names.walk(item.item):
            if isinstance(each, cst.Name):
                found += [
                    inner
                    for inner in names.walk(window.resolved(script, each))
                    if isinstance(inner, cst.IfExp)
                ]
            elif isinstance(each, cst.IfExp):
                found.append(each)
    return list({id(each): each for each in found}.values())


def _enabled(script: Script, node: cst.CSTNode) -> Iterator[Proposal]:
    """Fabric's ``no_backward_sync(model, enabled=…)``: enabled everywhere but on the last microbatch."""
    reason = "" if _full_windows_synchronise(script) else _WHY_TURNED
    for call in names.walk(script.statement(node)):
        if (
            isinstance(call, cst.Call)
            and isinstance(call.func, cst.Attribute)
            and call.func.attr.value == "no_backward_sync"
        ):
            for argument in call.args:
                if argument.keyword is not None and argument.keyword.value == "enabled":
                    value = argument.value
                    for gate in reversed(window.gates(script)):
                        if scope.known_at(script, gate.test, script.statement(call)):
                            test = script.outer_code(gate.test)
                            if (
                                isinstance(gate.test, cst.UnaryOperation)
                                and isinstance(gate.test.operator, cst.Not)
                                and not gate.test.lpar
                            ):
                                text = script.outer_code(gate.test.expression)
                            else:
                                text = f"not {test if _simple(gate.test) else f'({test})'}"
                            change = Change(script.outer_start(value), script.outer_end(value), text)
                            yield Proposal("Synchronise where the optimizer steps", (change,), reason)


def _full_windows_synchronise(script: Script) -> bool:
    """Whether the last microbatch of every whole window is synchronised as it is: then so is every one with K = 1."""
    for trace in script.traces:
        since: list[Event] = []
        for event in trace.events:
            if event.kind is Kind.BACKWARD:
                since.append(event)
            elif event.kind is Kind.STEP:
                whole = len({each.microbatch for each in since}) == trace.window
                if whole and since[-1].details.get("forward_sync") is False:
                    return False
                since = []
    return True


def _simple(test: cst.BaseExpression) -> bool:
    return bool(test.lpar) or isinstance(test, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
