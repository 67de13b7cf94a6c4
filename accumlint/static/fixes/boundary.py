"""Moves what runs on every microbatch to where the window ends: beside the optimizer step, behind its gate."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from accumlint.contract.events import Event, Kind, Trace
from accumlint.findings import Finding
from accumlint.static.fixes import accelerator, moving, names, scope
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.moving import Lifted
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script
from accumlint.static.fixes.window import modulos


class _Order(NamedTuple):
    """Where a call belongs among those of the update: behind or before the step, and which neighbours it passes."""

    after: bool
    passes: frozenset[Kind]  # behind the step: also behind these; before it: also before these


_ORDER = {
    Kind.UNSCALE: _Order(False, frozenset({Kind.CLIP})),
    Kind.CLIP: _Order(False, frozenset()),
    Kind.SCALER_UPDATE: _Order(True, frozenset()),
    Kind.SCHEDULE: _Order(True, frozenset({Kind.SCALER_UPDATE})),
    Kind.CLEAR: _Order(True, frozenset({Kind.SCALER_UPDATE, Kind.SCHEDULE})),
    Kind.AVERAGE: _Order(True, frozenset({Kind.SCALER_UPDATE, Kind.SCHEDULE, Kind.CLEAR})),
    Kind.COUNT: _Order(True, frozenset({Kind.SCALER_UPDATE, Kind.SCHEDULE, Kind.CLEAR})),
}

_REORDERED = {
    Kind.SCHEDULE: "the scheduler moved before the optimizer stepped and now moves after it: the learning rates shift by "
    "one update, also without accumulation",
    Kind.SCALER_UPDATE: "the scale was updated before the step and is now updated after it, also without accumulation",
    Kind.CLIP: "the clip now stands elsewhere among the calls of the update, also without accumulation",
    Kind.UNSCALE: "the condition around unscale_() goes, or it now stands elsewhere among the calls of the update",
    Kind.CLEAR: "gradients are now cleared at another point of the update, also without accumulation",
    Kind.AVERAGE: "the average now moves at another point of the update, also without accumulation",
    Kind.COUNT: "the counter now moves at another point of the update, also without accumulation",
}


# what each rule finds in every microbatch and wants once per window
_MOVED = {
    "ACC202": Kind.SCHEDULE,
    "ACC204": Kind.CLEAR,
    "ACC212": Kind.SCALER_UPDATE,
    "ACC401": Kind.CLIP,
    "ACC403": Kind.CLIP,
    "ACC404": Kind.UNSCALE,
    "ACC703": Kind.AVERAGE,
}


def move_call(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC202, 204, 212, 401, 403, 404, 703: a call that belongs to the update goes to the boundary, into its order there."""
    return _move(script, finding, _MOVED[finding.rule])


def move_count(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC701: a counter that is held against a number of updates counts updates."""
    for related in finding.related:
        for proposal in _move(script, dataclasses.replace(finding, span=related.span), Kind.COUNT):
            yield proposal._replace(
                moves_boundary=True, why_unsafe=proposal.why_unsafe or _seen_between(script, proposal)
            )


def _seen_between(script: Script, proposal: Proposal) -> str:
    """Why a counter that moves at another place is seen with another value; empty where nobody looks in between."""
    low, high = (
        min(change.start for change in proposal.changes),
        max(change.end for change in proposal.changes),
    )
    for node in names.walk(script.tree):
        if isinstance(node, cst.AugAssign) and low <= script.start(node) <= high:
            counter = script.code(node.target)
            for other in names.walk(script.tree):
                same = isinstance(other, (cst.Name, cst.Attribute)) and script.code(other) == counter
                if same and not script.inside(other, node) and low <= script.start(other) <= high:
                    return f"`{counter}` is read on line {script.line(other)}, before it has moved now"
    return ""


def move_step(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC201: the optimizer steps where the rest of the update already is, behind the gate of the clear or the schedule."""
    found = next(iter(script.events_at(finding, Kind.STEP)), None)
    node = script.node(found[2].site) if found is not None else None
    if found is None or node is None:
        return
    trace, _, step = found
    statement = script.statement(node)
    for other in trace.events:
        gates = [
            gate
            for gate in (script.node(site) for site in other.gates if site not in step.gates)
            if isinstance(gate, cst.If)
        ]
        inner = script.node(other.site)
        if (
            other.kind in (Kind.CLEAR, Kind.SCHEDULE)
            and gates
            and inner is not None
            and script.inside(inner, gates[0])
        ):
            anchor = _child_of_arm(script, gates[0], inner)
            chain = [
                each for each in map(script.node, (step.site, *reversed(step.stack))) if each is not None
            ]
            here = [each for each in chain if script.function_of(each) is script.function_of(anchor)]
            statement = script.statement(here[0]) if here else statement
            if script.inside(anchor, statement) or not available(script, statement, anchor):
                return
            lifted = moving.lift(script, statement)
            put = moving.put(script, lifted, anchor, after=False)
            if put is not None:
                beside = _follows(script, statement, gates[0])
                why = (
                    ""
                    if beside
                    else "the step now comes behind what stood between it and the boundary, also without accumulation"
                )
                title = f"Move `{_short(script, statement)}` to the boundary, before {_named(script, anchor)}"
                yield Proposal(title, (lifted.change, put), why, moves_boundary=True)
            return


def _follows(script: Script, statement: cst.CSTNode, gate: cst.If) -> bool:
    """Whether the gate is the very next statement."""
    block, child = script.block_of(statement)
    body = list(moving.children(block))
    index = next(i for i, each in enumerate(body) if each is child)
    return index + 1 < len(body) and body[index + 1] is gate


def rename_hook(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC401 under Lightning: ``on_after_backward`` runs per microbatch, ``on_before_optimizer_step`` per window."""
    node = script.at(finding)
    function = script.function_of(node) if node is not None else None
    if not isinstance(function, cst.FunctionDef) or function.name.value != "on_after_backward":
        return
    owner = script.class_of(function)
    if owner is None or any(
        isinstance(each, cst.FunctionDef) and each.name.value == "on_before_optimizer_step"
        for each in names.walk(owner)
    ):
        return
    parameters = function.params.params
    if len(parameters) != 1 or any(True for each in names.readers(function.body, "optimizer")):
        return
    name = Change(script.start(function.name), script.end(function.name), "on_before_optimizer_step")
    behind = script.end(parameters[0])
    yield Proposal(
        "Clip in on_before_optimizer_step, which Lightning calls once per window",
        (name, Change(behind, behind, ", optimizer")),
    )


def _move(script: Script, finding: Finding, kind: Kind) -> Iterator[Proposal]:
    found = next(iter(script.events_at(finding, kind)), None)
    if found is None:
        return
    trace, _, event = found
    node = script.at(finding)
    if node is None:
        return
    statement = script.statement(node)
    steps = _steps(script, finding, kind)
    if not steps:
        return
    guard = _framework_guard(script, event, steps[0])
    if guard and kind is not Kind.CLEAR:
        yield from _guard_in_place(script, statement, guard, kind)
    yield from _remove(script, trace, event, statement, kind)
    flags = {str(key) for each in script.traces for key, value in each.flags if isinstance(value, bool)}
    for unit, emptied, conditions in _units(script, statement, steps, flags):
        lifted = moving.lift(script, unit)
        if emptied is not unit:
            lifted = dataclasses.replace(lifted, change=moving.lift(script, emptied).change)
        for condition in reversed(conditions):
            lifted = moving.guarded(lifted, condition, script.indent)
        places = [_places(script, unit, event, step, kind) for step in steps]
        if not all(places):
            continue
        for number in range(max(map(len, places))):
            chosen = [p[min(number, len(p) - 1)] for p in places]
            why_unsafe = _irregular(finding) or _left_between(script, unit, chosen)
            yield from _moved(script, lifted, unit, chosen, kind, guard, why_unsafe)


def _left_between(script: Script, unit: cst.CSTNode, places: list[tuple[cst.CSTNode, bool]]) -> str:
    """Why the two places may be reached on different microbatches; empty where nothing leads away between them.

    Leaving by the remainder of a count is what a gate does: it never holds without accumulation.
    """
    function = script.function_of(unit)
    for anchor, _ in places:
        if script.function_of(anchor) is not function:
            continue
        low, high = sorted((script.start(unit), script.start(anchor)))
        for node in names.walk(function):
            if isinstance(node, (cst.Continue, cst.Break, cst.Return)) and low < script.start(node) < high:
                around = [each for each in script.ancestors(node) if isinstance(each, cst.If)]
                if not any(any(True for _ in modulos(each.test)) for each in around):
                    return f"line {script.line(node)} may leave the microbatch between the two places, also without accumulation"
    return ""


def _irregular(finding: Finding) -> str:
    """Why a boundary can't be trusted with K = 1; empty where the first window is as long as it should be."""
    windows = finding.evidence.get("windows") or []
    if windows and windows[0] == (finding.evidence.get("timeline") or {}).get("k"):
        return ""
    return "the first window of this loop isn't as long as the others: its boundary may be missed without accumulation too"


def _moved(
    script: Script,
    lifted: Lifted,
    unit: cst.CSTNode,
    places: list[tuple[cst.CSTNode, bool]],
    kind: Kind,
    guard: str,
    why_unsafe: str,
) -> Iterator[Proposal]:
    unique = list({id(anchor): (anchor, after) for anchor, after in places}.values())
    forms = [lifted]
    if guard:
        forms = [moving.guarded(lifted, f"{guard}.sync_gradients", script.indent)]
        if kind is Kind.CLEAR:
            forms.insert(0, lifted)
    for form in forms:
        added = [moving.put(script, form, anchor, after) for anchor, after in unique]
        if all(added):
            beside = " and ".join(dict.fromkeys(_named(script, anchor) for anchor, _ in unique))
            title = f"Move `{_short(script, unit)}` to the boundary, {'behind' if unique[0][1] else 'before'} {beside}"
            changes = (lifted.change, *(change for change in added if change is not None))
            yield Proposal(title, changes, why_unsafe, _REORDERED[kind])


def _named(script: Script, statement: cst.CSTNode) -> str:
    """How a title speaks of a statement."""
    if isinstance(statement, cst.BaseCompoundStatement):
        return f"the statement on line {script.line(statement)}"
    return f"`{_short(script, statement)}`"


def _short(script: Script, node: cst.CSTNode) -> str:
    code = " ".join(script.code(moving.whole(script, node)).split())
    return code if len(code) <= 60 else code[:57] + "…"


def _steps(script: Script, finding: Finding, kind: Kind) -> list[Event]:
    """The steps of the optimizer that the event serves, one for each place on any path; those of other files left out."""
    found: dict[tuple, Event] = {}
    own: dict[tuple, Event] = {}
    for trace, _, event in script.events_at(finding, kind):
        subject = trace.subjects.get(event.subject)
        wanted = {event.subject, subject.optimizer if subject is not None else -1}
        for each in trace.events:
            if each.kind is Kind.STEP and script.node(each.site) is not None:
                found.setdefault((each.site, each.stack), each)
                if each.subject in wanted:
                    own.setdefault((each.site, each.stack), each)
    return list((own or found).values())


def _framework_guard(script: Script, event: Event, step: Event) -> str:
    """The accelerator whose ``sync_gradients`` tells the boundary where no condition of the script does."""
    if step.details.get("owner") != "accelerate" or set(step.gates) - set(event.gates):
        return ""
    node = script.node(step.site)
    return accelerator.around(script, node) if node is not None else ""


def _guard_in_place(script: Script, statement: cst.CSTNode, guard: str, kind: Kind) -> Iterator[Proposal]:
    """Under Accelerate the documented idiom is a condition around the call where it stands."""
    unit = moving.whole(script, statement)
    if names.bound(unit) and _read_outside(script, unit, None):
        return
    changes = moving.guard_where_it_stands(script, unit, f"{guard}.sync_gradients")
    if changes:
        yield Proposal(
            f"Call `{_short(script, unit)}` only where gradients are synchronised",
            tuple(changes),
            "",
            _REORDERED[kind],
        )


def _remove(
    script: Script, trace: Trace, event: Event, statement: cst.CSTNode, kind: Kind
) -> Iterator[Proposal]:
    """Where the boundary has the same call already, the one inside the window is one too many."""
    if kind not in (Kind.CLIP, Kind.CLEAR, Kind.UNSCALE):
        return
    code = _short(script, statement)
    for other in trace.events:
        node = script.node(other.site)
        if (
            other.kind is not kind
            or other.site == event.site
            or node is None
            or len(other.gates) <= len(event.gates)
        ):
            continue
        if _short(script, script.statement(node)) == code:
            title = f"Remove `{code}`: line {script.line(node)} does the same at the boundary"
            yield Proposal(title, (moving.lift(script, statement).change,))
            return


class _Unit(NamedTuple):
    """What is moved: a statement, with what goes at its place, and the conditions that have to be said again for it."""

    statement: cst.CSTNode
    emptied: cst.CSTNode
    conditions: tuple[str, ...] = ()


def _units(script: Script, statement: cst.CSTNode, steps: list[Event], flags: set[str]) -> Iterator[_Unit]:
    """The statement with the conditions around it that the step doesn't share, one way or another.

    A condition goes only where it tells microbatches apart: what the user may switch (``flags``) stays switched.
    """
    shared = {id(node) for step in steps for node in script.ancestors(script.node(step.site) or script.tree)}
    unit = statement
    own: list[cst.If] = []  # conditions around the statement, from the inside
    whole = True  # so far each of them holds nothing else
    for each in script.ancestors(statement):
        outer = script.parent(each)
        if id(each) in shared or isinstance(each, (cst.FunctionDef, cst.Lambda)):
            break
        if isinstance(each, cst.For) and whole and each.orelse is None and _over_parameters(script, each):
            unit = each
        elif isinstance(each, cst.If):
            if each.orelse is not None or isinstance(outer, cst.If):
                return  # one of several arms: what the others do would have to be known
            own.append(each)
            if whole and unit is not each:
                block, _ = script.block_of(unit)
                whole = len(moving.children(block)) == 1 and script.parent(block) is each
                unit = each if whole else unit
        elif isinstance(each, cst.Else) and isinstance(outer, cst.If):
            return
        elif isinstance(each, (cst.Else, cst.For, cst.While, cst.With, cst.Try)):
            break
    tests = [script.code(each.test) for each in own]
    gates = [
        script.code(gate.test)
        for step in steps
        for gate in map(script.node, step.gates)
        if isinstance(gate, cst.If)
    ]
    switched = [test for test in tests if any(flag in test for flag in flags)]
    forms = [_Unit(unit, unit)] if whole else []
    if own and not switched:
        form = _Unit(statement, unit)
        forms.insert(0, form) if any(test in gates for test in tests) else forms.append(form)
    if not whole:
        forms.append(_Unit(statement, statement, tuple(reversed(switched))))
    yield from forms


def _over_parameters(script: Script, loop: cst.For) -> bool:
    code = script.code(loop.iter)
    return "parameters()" in code or "param_groups" in code


def _places(
    script: Script, unit: cst.CSTNode, event: Event, step: Event, kind: Kind
) -> list[tuple[cst.CSTNode, bool]]:
    """(statement, behind it) for every place beside the step where the unit can stand, the likeliest first."""
    order = _ORDER[kind]
    out: list[tuple[cst.CSTNode, bool]] = []
    for anchor in _anchors(script, event, step):
        if script.inside(anchor, unit) or script.inside(unit, anchor):
            continue
        if not available(script, unit, anchor):
            continue
        out.append((_among_neighbours(script, unit, anchor, order), order.after))
    return out


def _anchors(script: Script, event: Event, step: Event) -> Iterator[cst.CSTNode]:
    """Statements that hold the step: from the function that calls it outwards to the one that both share."""
    shared = 0
    while shared < min(len(event.stack), len(step.stack)) and event.stack[shared] == step.stack[shared]:
        shared += 1
    chain = [*step.stack[shared:], step.site]
    gates = [
        g
        for g in (script.node(site) for site in step.gates if site not in event.gates)
        if isinstance(g, cst.If)
    ]
    for position in range(len(chain) - 1, -1, -1):
        node = script.node(chain[position])
        if node is None:
            continue
        function = script.function_of(node)
        own = [gate for gate in gates if script.inside(node, gate) and script.function_of(gate) is function]
        for gate in own:
            yield _child_of_arm(script, gate, node)
        if (
            not own
            and position > 0
            and isinstance(function, cst.FunctionDef)
            and isinstance(function.body, cst.IndentedBlock)
        ):
            child = script.child_in(function.body, node)
            if child is not None:
                yield child
        if not own or position == len(chain) - 1:
            yield moving.whole(script, script.statement(node))


def _child_of_arm(script: Script, gate: cst.If, node: cst.CSTNode) -> cst.CSTNode:
    """The statement of the gate's arm, or of its other one, that holds the node."""
    child = node
    for each in script.ancestors(node):
        outer = script.parent(each)
        if isinstance(each, (cst.IndentedBlock, cst.SimpleStatementSuite)) and (
            outer is gate or isinstance(outer, cst.Else) and script.parent(outer) is gate
        ):
            return child
        child = each
    return script.statement(node)


def clearing_place(script: Script, step: cst.CSTNode) -> cst.CSTNode:
    """The statement behind which gradients are cleared: the step, or what belongs between the two."""
    return _among_neighbours(script, step, moving.whole(script, step), _ORDER[Kind.CLEAR])


def _among_neighbours(script: Script, unit: cst.CSTNode, anchor: cst.CSTNode, order: _Order) -> cst.CSTNode:
    """The statement to stand beside, once the neighbours of the step are passed that come between."""
    block, child = script.block_of(anchor)
    body = list(moving.children(block))
    index = next((i for i, each in enumerate(body) if each is child), None)
    if index is None:
        return anchor
    best = index
    positions = range(index + 1, len(body)) if order.after else range(index - 1, -1, -1)
    for position in positions:
        neighbour = body[position]
        if neighbour is moving.whole(script, unit):
            continue
        kinds = _kinds_in(script, neighbour)
        if kinds & order.passes:
            best = position
        elif kinds - {Kind.CLEAR} or not kinds and order.after:
            break
    return anchor if best == index else body[best]


def _kinds_in(script: Script, statement: cst.CSTNode) -> set[Kind]:
    """Kinds of the events that a statement gives rise to, directly or through what it calls."""
    found = set()
    for trace in script.traces:
        for event in trace.events:
            if event.kind in _ORDER:
                for site in (*event.stack, event.site):
                    node = script.node(site)
                    if node is not None and script.inside(node, statement):
                        found.add(event.kind)
    return found


def available(script: Script, unit: cst.CSTNode, anchor: cst.CSTNode) -> bool:
    """Whether the unit means the same beside the anchor, and whether nothing else needs what it binds."""
    source, target = script.function_of(unit), script.function_of(anchor)
    if _read_outside(script, unit, anchor if source is target else None):
        return False
    needs = names.read(unit)
    if source is not target:
        return scope.means_the_same(script, needs, source, target)
    low, high = sorted((script.start(unit), script.start(anchor)))
    return not any(scope.bound_between(script, source, name, low, high, unit) for name in needs)


def _read_outside(script: Script, unit: cst.CSTNode, anchor: cst.CSTNode | None) -> bool:
    """Whether a name that the unit binds is read elsewhere than behind the anchor, in its block."""
    bound = names.bound(unit)
    if not bound or isinstance(script.statement(unit), cst.AugAssign):  # what is augmented was bound before
        return False
    function = script.function_of(unit)
    block = script.block_of(anchor)[0] if anchor is not None else None
    for name in bound:
        for reader in names.readers(function, name):
            if script.inside(reader, unit):
                continue
            if (
                anchor is not None
                and block is not None
                and script.inside(reader, block)
                and script.start(reader) > script.start(anchor)
            ):
                continue
            if isinstance(unit, cst.For) and any(isinstance(e, cst.For) for e in script.ancestors(reader)):
                continue  # the variable of a loop of its own
            return True
    return False
