"""How a window is written: an index and a remainder, counters, iterators, lists of batches.

Every layout returns the lines of one epoch; ``epochs`` puts the loop over epochs around them.
"""

from __future__ import annotations

import re

from ..plan import Plan, State
from ..recipes import AHEAD, COUNTED
from ..script import Lines, indented, mark
from . import dialects, tasks

GATED = ("unscale", "clip", "step", "scaler", "schedule", "clear", "call")  # what Accelerate gates itself, or what carries a test of its own


def prepare(plan: Plan) -> None:
    """Fill in the tests and sizes that belong to the window's style, over names of the plan."""
    r, n, k = plan.recipe, plan.n, plan.k
    length = f"len({n.loader})"
    plan.tail, plan.ddp = r.tail, r.ddp
    whole = f"{length} // {k}"
    plan.size = k
    if r.window in COUNTED:
        first = r.window == "one based"
        one, zero = (n.i, f"({n.i} - 1)") if first else (f"({n.i} + 1)", n.i)
        full = f"{one} % {k} == 0"
        if r.gate == "not":
            full = f"not {one} % {k}"
        elif r.gate == "remainder":
            full = f"{n.i} % {k} == 0" if first else f"{n.i} % {k} == {k} - 1"
        bare = n.i if first else f"{n.i} + 1"
        plan.last = f"{bare} == {length}" if r.names % 3 or first else f"{n.i} == {length} - 1"
        plan.gate = f"{full} or {plan.last}" if r.tail == "flush" else full
        plan.sync = f"{full} or {plan.last}" if r.tail in ("flush", "behind") else full
        if r.tail in ("flush", "behind"):
            plan.size = f"min({k}, {length} - {zero} // {k} * {k})"
    elif r.framework == "trainer":
        return
    elif r.framework == "lightning":
        length = "self.trainer.num_training_batches"
        plan.gate = plan.sync = f"({n.i} + 1) % {k} == 0 or self.trainer.is_last_batch"
        plan.last = "self.trainer.is_last_batch"
        plan.size = f"min({k}, {length} - {n.i} // {k} * {k})"
        plan.total_updates = "self.trainer.estimated_stepping_batches" if r.window == "automatic" else f"math.ceil({length} / {k}) * {n.epochs}"
        return
    elif r.window == "accumulate":
        plan.gate = plan.sync = f"{n.accelerator}.sync_gradients"
        plan.size = f"min({k}, {length} - {n.i} // {k} * {k})"
    elif r.window == "counter":
        plan.gate, plan.sync = f"{n.pending} == {k}", f"{n.pending} + 1 == {k}"
        plan.states.append(State("pending", "0", "run" if r.tail == "carry" else "epoch"))
        plan.after.append(mark(f"{n.pending} += 1", "count"))
    elif r.window == "total":
        plan.gate, plan.sync = f"{n.seen} % {k} == 0", f"({n.seen} + 1) % {k} == 0"
        plan.states.append(State("seen", "0", "run"))
        plan.after.append(mark(f"{n.seen} += 1", "count"))
    elif r.window in AHEAD:
        plan.sync = f"j + 1 == len({n.window})"
        plan.size = f"len({n.window})" if r.names % 2 or r.tail in ("flush", "behind") else k
    else:
        plan.sync = f"j == {k} - 1" if r.names % 2 else f"j + 1 == {k}"
    if r.tail in ("flush", "behind"):
        plan.total_updates = f"math.ceil({length} / {k}) * {n.epochs}"
    elif r.tail == "carry":
        plan.total_updates = f"{length} * {n.epochs} // {k}"
    else:
        plan.total_updates = f"{whole} * {n.epochs}"
    if r.window == "stream":
        plan.total_updates = "TOTAL_UPDATES"


def micro(plan: Plan, index: str = "") -> Lines:
    """One microbatch: forward and backward, with communication off where the window goes on."""
    n = plan.n
    out = list(plan.before)
    work = [*plan.forward, *plan.backward]
    sync = n.boundary if plan.recipe.gate == "named" else plan.sync
    silent = dialects.of(plan).no_sync(plan)
    if plan.ddp == "context":
        lines, context = dialects.of(plan).silent(plan, sync)
        out += [*lines, mark(f"with {context}:", "sync"), *indented(work)]
    elif plan.ddp == "context backward":
        lines, context = dialects.of(plan).silent(plan, sync)
        out += [*plan.forward, *lines, mark(f"with {context}:", "sync"), *indented(plan.backward)]
    elif plan.ddp == "branch":
        out += [f"if {sync}:", *indented(work), "else:", *indented([mark(f"with {silent}:", "sync"), *indented(work)])]
    elif plan.ddp == "never":
        out += [mark(f"with {silent}:", "sync"), *indented(work)]
    elif plan.ddp == "inverted":
        out += [f"if {sync}:", *indented([mark(f"with {silent}:", "sync"), *indented(work)]), "else:", *indented(work)]
    elif plan.ddp == "flag":
        out.append(mark(f"{n.model}.require_backward_grad_sync = {sync}", "sync"))
        out += work
    elif plan.ddp == "late flag":
        out += plan.forward
        out.append(mark(f"{n.model}.require_backward_grad_sync = {sync}", "sync"))
        out += plan.backward
    else:
        out += work
    return [*out, *plan.after]


def update(plan: Plan) -> Lines:
    """One update: the pieces in order, or the call of the function that holds them."""
    return plan.lines() or ["pass"]


def gated(plan: Plan, gate: str) -> Lines:
    out = [mark(f"if {gate}:", "gate"), *indented(update(plan))]
    return [*out, *indented(_limit(plan))]


def _limit(plan: Plan) -> Lines:
    """Training ends after so many updates."""
    if plan.recipe.count != "limit":
        return []
    return [mark(f"if {plan.n.updates} >= MAX_UPDATES:", "limit"), "    break"]


def _boundary(plan: Plan) -> tuple[Lines, str]:
    if plan.recipe.gate != "named":
        return [], plan.instead or plan.gate
    counted = plan.recipe.window in COUNTED
    expression = plan.gate if counted and plan.recipe.tail != "behind" else plan.sync
    if counted and expression != plan.gate:
        # the flush behind the loop steps on a microbatch whose test is no boundary
        return [mark(f"{plan.n.boundary} = {expression}", "gate")], plan.instead or plan.gate
    return [mark(f"{plan.n.boundary} = {plan.instead or expression}", "gate")], plan.n.boundary


def _begin(plan: Plan) -> Lines:
    """Gradients are cleared where a window begins, in loops with an index."""
    if not plan.window_start:
        return []
    return [f"if {plan.n.i} % {plan.k} == 0:", *indented(plan.window_start)]


def epoch(plan: Plan) -> Lines:
    """The lines of one epoch."""
    return _LAYOUTS[plan.recipe.window](plan)


def _behind(plan: Plan) -> Lines:
    """The flush after the loop."""
    if plan.tail != "behind":
        return []
    test = f"{plan.n.pending} > 0" if plan.recipe.window == "counter" else f"len({plan.n.loader}) % {plan.k} != 0"
    return [mark(f"if {test}:", "flush"), *indented(update(plan))]


def _indexed(plan: Plan) -> Lines:
    n, k = plan.n, plan.k
    first = plan.recipe.window == "one based"
    target, *_ = tasks.inputs(plan)
    target = f"({target})" if "," in target else target
    start = (", 1" if plan.recipe.names % 2 else ", start=1") if first else ""
    named, gate = _boundary(plan)
    body: Lines = []
    out: Lines = list(plan.epoch_start)
    if plan.tail == "drop":
        out.append(f"{n.usable} = len({n.loader}) // {k} * {k}")
        body += [f"if {n.i} {'>' if first else '=='} {n.usable}:", "    break"]
    body += [*_begin(plan), *named, *micro(plan)]
    if plan.recipe.window == "skip":
        negated = f"({n.i} + 1) % {k} != 0" + (f" and {n.i} + 1 < len({n.loader})" if plan.tail == "flush" else "")
        negated = plan.instead or negated
        body += [*plan.afterwards, mark(f"if {negated}:", "gate"), "    continue", *update(plan)]
    else:
        body += [*gated(plan, gate), *plan.afterwards]
    out += [f"for {n.i}, {target} in enumerate({n.loader}{start}):", *indented(body)]
    return [*out, *_behind(plan), *plan.epoch_end]


def _accumulate(plan: Plan) -> Lines:
    """The window of Accelerate: what it gates is called in every microbatch, the rest where gradients meet."""
    n = plan.n
    target, *_ = tasks.inputs(plan)
    inside = [*micro(plan)]
    books: Lines = []
    for piece, lines in plan.update.items():
        if piece in GATED:
            inside += lines
        else:
            books += lines
    books += _limit(plan)
    books = [mark(f"if {plan.gate}:", "gate"), *indented(books)] if books else []
    if plan.recipe.names % 3 == 1 and plan.recipe.count != "limit":
        inside, books = [*inside, *books], []
    body = [*plan.epoch_batch, mark(f"with {n.accelerator}.accumulate({n.model}):", "accumulate"), *indented(inside), *books, *plan.afterwards]
    if any(re.search(rf"\b{n.bare('i')}\b", line) for line in body):
        packed = f"({target})" if "," in target else target
        header = f"for {n.i}, {packed} in enumerate({n.loader}):"
    else:
        header = f"for {target} in {n.loader}:"
    return [*plan.epoch_start, header, *indented(body), *plan.epoch_end]


def _while(plan: Plan) -> Lines:
    n, k = plan.n, plan.k
    target, *_ = tasks.inputs(plan)
    stop = f"len({n.loader})"
    out = list(plan.epoch_start)
    if plan.tail == "drop":
        out.append(f"{n.usable} = len({n.loader}) // {k} * {k}")
        stop = n.usable
    gate = f"{n.i} % {k} == 0" + (f" or {n.i} == len({n.loader})" if plan.tail == "flush" else "")
    gate = plan.instead or gate
    body = [f"{target} = next({n.batches})", *micro(plan), f"{n.i} += 1", *gated(plan, gate), *plan.afterwards]
    out += [f"{n.i} = 0", f"{n.batches} = iter({n.loader})", f"while {n.i} < {stop}:", *indented(body)]
    return [*out, *plan.epoch_end]


def _counter(plan: Plan) -> Lines:
    n = plan.n
    target, *_ = tasks.inputs(plan)
    source = n.loader
    if plan.tail == "drop":
        plan.imports.add("from itertools import islice")
        source = f"islice({n.loader}, len({n.loader}) // {plan.k} * {plan.k})"
    named, gate = _boundary(plan)
    body = [*named, *micro(plan), *gated(plan, gate), *plan.afterwards]
    return [*plan.epoch_start, f"for {target} in {source}:", *indented(body), *_behind(plan), *plan.epoch_end]


def _nested(plan: Plan) -> Lines:
    n, k = plan.n, plan.k
    target, *_ = tasks.inputs(plan)
    inner = [f"{target} = next({n.batches})", *micro(plan)]
    counter = "j" if plan.ddp != "none" or plan.recipe.names % 2 else "_"
    body = [*plan.window_start, f"for {counter} in range({k}):", *indented(inner), *update(plan)]
    body += _limit(plan)
    if plan.recipe.window == "stream":
        return [f"{n.batches} = forever({n.loader})", "for update_index in range(TOTAL_UPDATES):", *indented(body)]
    return [
        *plan.epoch_start, f"{n.batches} = iter({n.loader})", f"for _ in range(len({n.loader}) // {k}):", *indented(body), *plan.epoch_end,
    ]  # fmt: skip


def _windowed(plan: Plan) -> Lines:
    """Lists of batches: the pass over one of them and its update."""
    n = plan.n
    target, *_ = tasks.inputs(plan)
    if plan.ddp not in ("none", "always"):
        header = f"for j, {f'({target})' if ',' in target else target} in enumerate({n.window}):"
    else:
        header = f"for {target} in {n.window}:"
    return [*plan.window_start, header, *indented(micro(plan)), *update(plan)]


def _ahead(plan: Plan) -> Lines:
    n, k = plan.n, plan.k
    window = plan.recipe.window
    out = list(plan.epoch_start)
    if window == "listed":
        body = [f"{n.window} = [next({n.batches}) for _ in range({k})]", *_windowed(plan)]
        out += [f"{n.batches} = iter({n.loader})", f"for _ in range(len({n.loader}) // {k}):", *indented(body)]
    elif window == "islice":
        plan.imports.add("from itertools import islice")
        out.append(f"{n.batches} = iter({n.loader})")
        if plan.tail == "flush" and plan.recipe.names % 2:
            out += [f"while {n.window} := list(islice({n.batches}, {k})):", *indented(_windowed(plan))]
        else:
            stop = f"len({n.window}) < {k}" if plan.tail == "drop" else f"not {n.window}"
            out += ["while True:", *indented([f"{n.window} = list(islice({n.batches}, {k}))", f"if {stop}:", "    break", *_windowed(plan)])]
    elif window == "chunks":
        stop = f"len(data) - {k} + 1" if plan.tail == "drop" else "len(data)"
        out += [
            f"data = list({n.loader})", f"for start in range(0, {stop}, {k}):",
            *indented([f"{n.window} = data[start : start + {k}]", *_windowed(plan)]),
        ]  # fmt: skip
    else:
        out += _buffer(plan)
    return [*out, *plan.epoch_end]


def _buffer(plan: Plan) -> Lines:
    n, k = plan.n, plan.k
    target, *_ = tasks.inputs(plan)
    packed = f"({target})" if "," in target else target
    index = plan.tail == "flush"
    header = f"for {n.i}, {packed} in enumerate({n.loader}):" if index else f"for {target} in {n.loader}:"
    empty = f"{n.window} = []" if plan.recipe.names % 2 else f"{n.window}.clear()"
    full = f"len({n.window}) == {k}" + (f" or {n.i} + 1 == len({n.loader})" if index else "")
    body = [f"{n.window}.append({packed})", mark(f"if {full}:", "gate"), *indented([*_windowed(plan), empty])]
    out = [header, *indented(body)]
    if plan.tail != "carry":
        out = [f"{n.window} = []", *out]
    if plan.tail == "behind":
        out += [mark(f"if {n.window}:", "flush"), *indented(_windowed(plan))]
    return out


_LAYOUTS = {
    "accumulate": _accumulate,
    "modulo": _indexed, "one based": _indexed, "skip": _indexed, "while": _while, "counter": _counter, "total": _counter,
    "nested": _nested, "stream": _nested, "listed": _ahead, "islice": _ahead, "buffer": _ahead, "chunks": _ahead,
}  # fmt: skip
