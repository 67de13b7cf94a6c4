"""Gradients are freed of the loss scale before they are clipped."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from accumlint.contract.events import Event, Kind
from accumlint.findings import Finding
from accumlint.static.fixes import moving, names, scope
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

_WHY = "the threshold now bites where it was meant to, also without accumulation: a rate or threshold tuned to the old effect may no longer fit"


def unscale_first(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC402: ``unscale_()`` stands directly before the clip, moved there or new."""
    found = next(iter(script.events_at(finding, Kind.CLIP)), None)
    if found is None:
        return
    trace, number, event = found
    node = script.node(event.site)
    if node is None:
        return
    clip = script.statement(node)
    for later in trace.events[number:]:
        if later.kind is Kind.UNSCALE and later.microbatch == event.microbatch:
            late = script.node(later.site)
            if late is not None and script.function_of(late) is script.function_of(clip):
                lifted = moving.lift(script, script.statement(late))
                put = moving.put(script, lifted, clip, after=False)
                if put is not None:
                    yield Proposal("Unscale before the clip, not behind it", (lifted.change, put), _WHY)
        if later.kind is Kind.STEP:
            yield from _new(script, clip, later)
            return


def _new(script: Script, clip: cst.CSTNode, step: Event) -> Iterator[Proposal]:
    node = script.node(step.site)
    call = node.value if isinstance(node, cst.Expr) else node
    if not isinstance(call, cst.Call) or not isinstance(call.func, cst.Attribute) or len(call.args) < 1:
        return
    scaler, optimizer = call.func.value, call.args[0].value
    source, target = script.function_of(call), script.function_of(clip)
    needs = names.read(scaler) | names.read(optimizer)
    if source is not target and not scope.means_the_same(script, needs, source, target):
        return
    code = f"{script.code(scaler)}.unscale_({script.code(optimizer)})"
    put = moving.put(script, moving.written(code), clip, after=False)
    if put is not None:
        yield Proposal(f"Call `{code}` before the clip", (put,), _WHY)
