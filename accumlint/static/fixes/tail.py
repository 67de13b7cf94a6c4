"""The short last window: flushed, and divided by its own size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import libcst as cst

from accumlint.contract.events import Kind
from accumlint.findings import Finding
from accumlint.static.fixes import division, moving, names, scope, window
from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

_MORE_UPDATES = "every epoch gets one more update, for its short last window: a schedule counted in whole windows becomes too short"


# A flush behind the loop repeats what the gate does: nobody would merge a long one.
MAX_COPIED = 8


class _Tail(NamedTuple):
    """What is known of a loop that steps behind a gate."""

    gate: cst.If
    test: cst.BaseExpression
    loop: cst.For


def divide_by_own_size(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC503: the divisor of the short window is its own size, or its gradients are scaled up before the flush."""
    loop = _loop_of(script, finding)
    if loop is None:
        return
    found = window.indexed(script, loop)
    if found is not None:
        changes, read = _own_divisor(script, found)
        if changes:
            yield Proposal("Divide by the size of the window at hand", tuple(changes), read)
    node = script.at(finding)
    flush = script.statement(node) if node is not None else None
    if flush is not None and not script.inside(flush, loop):
        yield from _scaled_flush(script, loop, flush)


def flush(script: Script, finding: Finding) -> Iterator[Proposal]:
    """ACC501, ACC502: the short window is stepped, divided by its own size."""
    tail = _tail(script, finding)
    if tail is None:
        return
    found = window.indexed(script, tail.loop)
    if found is not None:
        last = (
            f"{found.counter} + 1 == len({found.loader})"
            if found.start == 0
            else f"{found.counter} == len({found.loader})"
        )
        test = script.outer_code(tail.test)
        if isinstance(tail.test, (cst.BooleanOperation, cst.IfExp, cst.Lambda)) and not tail.test.lpar:
            test = f"({test})"
        gate = Change(script.outer_start(tail.test), script.outer_end(tail.test), f"{test} or {last}")
        changes, read = _own_divisor(script, found)
        reason = "; ".join(filter(None, (_MORE_UPDATES, read)))
        yield Proposal("Step the short last window too, divided by its own size", (gate, *changes), reason)
    yield from _flush_behind(script, tail)


def _loop_of(script: Script, finding: Finding) -> cst.For | None:
    """The loop over microbatches: around the finding, or the one before it."""
    node = script.at(finding)
    if node is None:
        return None
    around = next((each for each in script.ancestors(node) if isinstance(each, cst.For)), None)
    for trace in script.traces:
        for event in trace.events:
            if event.kind is Kind.BACKWARD and event.loops:
                loop = script.node(event.loops[-1])
                if not isinstance(loop, cst.For) or script.function_of(loop) is not script.function_of(node):
                    continue
                if loop is around or script.end(loop) <= script.start(node):
                    return loop
    return around


def _tail(script: Script, finding: Finding) -> _Tail | None:
    node = script.at(finding)
    gate = script.statement(node) if node is not None else None
    if not isinstance(gate, cst.If):
        return None
    loop = next((each for each in script.ancestors(gate) if isinstance(each, cst.For)), None)
    if loop is None or script.function_of(loop) is not script.function_of(gate):
        return None
    return _Tail(gate, window.test_of(script, gate), loop)


def _own_divisor(script: Script, found: window.Loop) -> tuple[list[Change], str]:
    """(changes that divide by the size of the window at hand, why that isn't safe)."""
    for k in window.spellings(script):
        code = script.code(k)
        divisors = _divisors(script, found.node, code)
        if not divisors:
            continue
        first = min(divisors, key=script.start)
        statement = moving.whole(script, script.statement(first))
        block, _ = script.block_of(statement)
        for each in divisors:  # the new name must be bound before every one of them
            if script.child_in(block, each) is None:
                return [], ""
        anchor = script.child_in(block, first)
        assert anchor is not None
        name = _fresh(script, found.node)
        index = found.counter if found.start == 0 else f"({found.counter} - 1)"
        size = f"{name} = min({code}, len({found.loader}) - {index} // {code} * {code})"
        put = moving.put(script, moving.written(size), anchor, after=False)
        if put is None:
            return [], ""
        undone, read = _read_elsewhere(script, divisors, code)
        changes = [
            put,
            *(
                Change(script.outer_start(each), script.outer_end(each), name)
                for each in [*divisors, *undone]
            ),
        ]
        return changes, read
    return [], ""


def _divisors(script: Script, loop: cst.For, k: str) -> list[cst.BaseExpression]:
    """Places in the loop at which a loss is divided by K."""
    sites = {
        site
        for trace in script.traces
        for event in trace.events
        if event.kind is Kind.BACKWARD
        for site in event.details.get("divisions", ())
    }
    sites |= {
        site
        for trace in script.traces for event in trace.events if event.kind is Kind.BACKWARD
        for part in event.details.get("parts") or () for site in part.divisions
    }  # fmt: skip
    out: dict[int, cst.BaseExpression] = {}
    for site in sorted(sites):
        node = script.node(site)
        if node is None or not script.inside(node, loop):
            continue
        divisor: cst.BaseExpression | None = None
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Divide):
            divisor = node.right
        elif isinstance(node, cst.AugAssign) and isinstance(node.operator, cst.DivideAssign):
            divisor = node.value
        elif isinstance(node, cst.Call) and len(node.args) == 1:
            divisor = node.args[0].value
        if divisor is not None and script.code(divisor) == k:
            out[id(divisor)] = divisor
    return list(out.values())


def _fresh(script: Script, node: cst.CSTNode) -> str:
    """A name for the size of a window that the function doesn't use yet."""
    taken = names.bound(script.tree) | names.read(script.tree) | names.parameters(script.function_of(node))
    return next(
        name for name in ("window_size", "microbatches_in_window", "window_size_now") if name not in taken
    )


def _read_elsewhere(
    script: Script, divisors: list[cst.BaseExpression], k: str
) -> tuple[list[cst.BaseExpression], str]:
    """(factors that undo the division where the loss is logged, why other reads of it make the change visible)."""
    undone: list[cst.BaseExpression] = []
    for each in divisors:
        statement = script.statement(each)
        if not isinstance(statement, (cst.Assign, cst.AugAssign)):
            continue
        target = statement.targets[0].target if isinstance(statement, cst.Assign) else statement.target
        if not isinstance(target, cst.Name):
            continue
        for reader in names.readers(script.function_of(statement), target.value):
            around = script.statement(reader)
            if (
                around is statement
                or script.start(reader) < script.start(statement)
                or "backward(" in script.code(around)
            ):
                continue
            product = division.undoing(script, reader, k)
            if product is None:
                return (
                    [],
                    f"`{target.value}` is also read on line {script.line(reader)}, where the divisor is taken to be {k} in the last window too",
                )
            undone.append(product.right)
    return undone, ""


class _Flush(NamedTuple):
    """What a flush behind the loop needs to know."""

    pending: str  # the number of microbatches that wait
    k: str
    model: str


def _scaled_flush(script: Script, loop: cst.For, gate: cst.CSTNode) -> Iterator[Proposal]:
    """An existing flush behind the loop: its gradients are multiplied up to its own size first."""
    if not isinstance(gate, cst.If) or not isinstance(gate.body, cst.IndentedBlock):
        return
    pending = _counted(script, gate.test)
    if pending is None:
        return
    for k, model in _spelled(script, loop, gate.body.body[0]):
        put = moving.put(script, _rescale(script, _Flush(pending, k, model)), gate.body.body[0], after=False)
        if put is not None:
            yield Proposal(
                "Scale the gradients of the short last window up to its own size", (put,), moves_boundary=True
            )


def _flush_behind(script: Script, tail: _Tail) -> Iterator[Proposal]:
    """A new flush behind the loop, made of what the gate does."""
    if not isinstance(tail.gate.body, cst.IndentedBlock) or tail.gate.orelse is not None:
        return
    pending = _counted(script, tail.test)
    if pending is None or any(
        isinstance(each, (cst.Break, cst.Continue)) for each in names.walk(tail.gate.body)
    ):
        return
    body = tail.gate.body.body
    if moving.last_line(script, body[-1]) - script.line(body[0]) >= MAX_COPIED:
        return
    first, last = moving.first_line(script, body[0]), moving.last_line(script, body[-1])
    indent = script.indentation(body[0])
    rows = [script.lines.content(number) for number in range(first, last + 1)]
    inner = script.indent
    copied = [inner + row[len(indent) :] if row.startswith(indent) else row for row in rows]
    for k, model in _spelled(script, tail.loop, tail.loop):
        rescale = [inner + row for row in _rescale(script, _Flush(pending, k, model)).lines]
        code = "\n".join([f"if {pending} > 0:", *rescale, *copied])
        put = moving.put(script, moving.written(code), tail.loop, after=True)
        if put is not None:
            yield Proposal(
                "Step the short last window behind the loop, scaled to its own size", (put,), _MORE_UPDATES
            )


def _counted(script: Script, test: cst.BaseExpression) -> str | None:
    """The expression that counts the microbatches since the last step, out of a test of it.

    A remainder counts by itself; a name only where the script sets it back to 0.
    """
    for each in names.walk(test):
        if isinstance(each, cst.BinaryOperation) and isinstance(each.operator, cst.Modulo):
            return f"({script.code(each)})"
    counter = test.left if isinstance(test, cst.Comparison) else test
    if isinstance(counter, (cst.Name, cst.Attribute)) and _set_back(script, script.code(counter)):
        return script.code(counter)
    return None


def _set_back(script: Script, counter: str) -> bool:
    return any(
        isinstance(each, cst.Assign)
        and script.code(each.value) == "0"
        and any(script.code(t.target) == counter for t in each.targets)
        for each in names.walk(script.tree)
    )


def _spelled(script: Script, loop: cst.For, target: cst.CSTNode) -> Iterator[tuple[str, str]]:
    """(K, the model) as they can be written in front of the target."""
    models = _models(script, loop)
    for k in window.spelled_at(script, target):
        for model in models:
            if scope.known_at(script, model, target):
                yield k, script.code(model)
                break


def _models(script: Script, loop: cst.For) -> list[cst.BaseExpression]:
    """What the loop calls as its model."""
    found: dict[str, cst.BaseExpression] = {}
    for trace in script.traces:
        for event in trace.events:
            if event.kind is Kind.FORWARD:
                node = script.node(event.site)
                if (
                    isinstance(node, cst.Call)
                    and script.inside(node, loop)
                    and isinstance(node.func, (cst.Name, cst.Attribute))
                ):
                    found.setdefault(script.code(node.func), node.func)
    return list(found.values())


def _rescale(script: Script, flush: _Flush) -> moving.Lifted:
    step = script.indent
    return moving.written("\n".join([
        f"for parameter in {flush.model}.parameters():",
        f"{step}if parameter.grad is not None:",
        f"{step}{step}parameter.grad.mul_({flush.k} / {flush.pending})",
    ]))  # fmt: skip
