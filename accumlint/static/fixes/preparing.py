"""What Accelerate is to hold back until the boundary has to go through ``prepare()``."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.contract.events import Kind
from accumlint.findings import Finding
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

_WHY = "a prepared optimizer also follows the accelerator's mixed precision and plugins, without accumulation too"


def prepare_optimizer(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC201 under Accelerate: the optimizer is prepared along with its model."""
    found = next(iter(script.events_at(finding, Kind.STEP)), None)
    node = script.node(found[2].site) if found is not None else None
    call = node.value if isinstance(node, cst.Expr) else node
    if (
        not isinstance(call, cst.Call)
        or not isinstance(call.func, cst.Attribute)
        or not isinstance(call.func.value, cst.Name)
    ):
        return
    optimizer = call.func.value.value
    for each in script.module.sites:
        if not isinstance(each, cst.Assign) or len(each.targets) != 1 or not isinstance(each.value, cst.Call):
            continue
        prepare, target = each.value, each.targets[0].target
        if (
            not isinstance(prepare.func, cst.Attribute)
            or prepare.func.attr.value != "prepare"
            or not isinstance(target, cst.Tuple)
        ):
            continue
        given = [script.code(argument.value) for argument in prepare.args]
        taken = [script.code(element.value) for element in target.elements]
        if optimizer in given or given != taken or script.function_of(each) is not script.function_of(call):
            continue
        first = target.elements[0].value
        changes = tuple(
            Change(script.outer_end(place), script.outer_end(place), f", {optimizer}")
            for place in (first, prepare.args[0].value)
        )
        yield Proposal(f"Prepare `{optimizer}` with its model", changes, _WHY)
