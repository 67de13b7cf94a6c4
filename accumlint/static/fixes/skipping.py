"""What follows an optimizer step asks whether the loss scaler applied it."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.contract.events import Kind
from accumlint.findings import Finding
from accumlint.static.fixes import moving, names
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

_WHY = "a step that the scaler skips no longer moves the schedule, also without accumulation"


def ask_scaler(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC203: the scheduler moves only where the loss scale did not fall, which tells that the step was applied."""
    found = next(iter(script.events_at(finding, Kind.SCHEDULE)), None)
    schedule = script.at(finding)
    if found is None or schedule is None:
        return
    trace, number, event = found
    before = [each for each in trace.events[:number] if each.microbatch == event.microbatch]
    step = next((each for each in reversed(before) if each.kind is Kind.STEP), None)
    node = script.node(step.site) if step is not None else None
    call = node.value if isinstance(node, cst.Expr) else node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return
    block, _ = script.block_of(moving.whole(script, script.statement(schedule)))
    anchor, update = script.child_in(block, call), _update_behind(script, block, call)
    if anchor is None or update is None:
        return
    scaler = script.code(call.func.value)
    taken = names.bound(script.tree) | names.read(script.tree)
    name = next(
        each for each in ("scale_before", "scale_before_step", "loss_scale_before") if each not in taken
    )
    kept = moving.put(script, moving.written(f"{name} = {scaler}.get_scale()"), anchor, after=False)
    test = f"{scaler}.get_scale() >= {name}"
    unit = script.statement(schedule)
    if script.start(update) < script.start(unit):
        changes = moving.guard_where_it_stands(script, unit, test)
    else:
        lifted = moving.lift(script, unit)
        behind = moving.put(script, moving.guarded(lifted, test, script.indent), update, after=True)
        changes = [lifted.change, behind] if behind is not None else []
    if kept is not None and changes:
        yield Proposal("Move the schedule only where the scaler applied the step", (kept, *changes), _WHY)


def _update_behind(script: Script, block: cst.CSTNode, step: cst.CSTNode) -> cst.CSTNode | None:
    """The statement of the block, behind the step, in which the scaler is updated."""
    for trace in script.traces:
        for event in trace.events:
            node = script.node(event.site) if event.kind is Kind.SCALER_UPDATE else None
            child = script.child_in(block, node) if node is not None else None
            if child is not None and script.start(child) > script.start(step):
                return child
    return None
