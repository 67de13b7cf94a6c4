"""Gradients that no step leaves behind."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.contract.events import Kind
from accumlint.findings import Finding
from accumlint.static.fixes import moving
from accumlint.static.fixes.boundary import clearing_place
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script


def clear_after_step(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC205: the optimizer clears its gradients once it has stepped."""
    found = next(iter(script.events_at(finding, Kind.STEP)), None)
    node = script.node(found[2].site) if found is not None else None
    call = node.value if isinstance(node, cst.Expr) else node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute):
        return
    scaled = (
        bool(call.args)
        and call.args[0].keyword is None
        and found is not None
        and found[2].details.get("scaler", -1) >= 0
    )
    optimizer = script.code(call.args[0].value if scaled else call.func.value)
    code = f"{optimizer}.zero_grad()"
    put = moving.put(script, moving.written(code), clearing_place(script, script.statement(call)), after=True)
    if put is not None:
        reason = "gradients of earlier updates no longer add up, also without accumulation"
        yield Proposal(f"Call `{code}` behind the step", (put,), reason)
