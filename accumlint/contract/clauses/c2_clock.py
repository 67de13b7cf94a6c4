"""C2: per window exactly one step, schedule step, scaler update and clear, at its last microbatch."""

from __future__ import annotations

from accumlint.contract import weights
from accumlint.contract.events import Event, Kind, Trace
from accumlint.contract.quantity import Quantity
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Contribution, Ledger, Window
from accumlint.findings import Confidence, Severity


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """All clocks of a ledger."""
    if ledger.trace.disturbed is not None:
        _skip(ledger, judgement)
        return
    _step_in_backward(ledger, judgement)
    _step_per_microbatch(ledger, judgement)
    if ledger.accumulates:
        _clear_inside(ledger, judgement)
        _never_cleared(ledger, judgement)
        _gate(ledger, judgement)
        _scheduler(ledger, judgement)
        _skipped_step(ledger, judgement)
        _scaler(ledger, judgement)
        _foreign(ledger, judgement)
    _stuck(ledger, judgement)


TOGGLES = "toggles optimizers"


def guard(event: Event, ledger: Ledger) -> int:
    """The condition that decides about an event: the one that counts to K, else the innermost one inside of the loop."""
    own = [gate for gate in event.gates if gate not in ledger.outer_gates]
    counting = [gate for gate in own if gate in ledger.trace.boundaries]
    return (counting or own or [event.site])[-1]


def _computed(ledger: Ledger, site: int) -> int:
    """Where the test of a condition was computed, which is the line to change when it is the test that is wrong."""
    mark = f"test of {site}@"
    found = sorted(int(trait.removeprefix(mark)) for trait in ledger.trace.traits if trait.startswith(mark))
    return found[0] if found else site


def _listed(sizes: list[int], limit: int = 6) -> str:
    return ", ".join(map(str, sizes[:limit])) + (", …" if len(sizes) > limit else "")


def _step_per_microbatch(ledger: Ledger, judgement: Judgement) -> None:
    """Steps on every microbatch while losses are scaled, or gradients cleared, for a window of K."""
    k = ledger.trace.window
    windows = ledger.windows
    if len(windows) < 3 or any(size != 1 for size in ledger.sizes if size):
        return
    if TOGGLES in ledger.trace.traits:
        return  # which backward feeds which optimizer is switched in ways that are not followed
    judgement.applied.add("ACC201")
    first = windows[0].step
    assert first is not None
    kept = [w for w in windows if w.stale]
    clears = sum(1 for w in windows for e in w.events if e.kind is Kind.CLEAR) + sum(1 for e in ledger.pending.events if e.kind is Kind.CLEAR)
    if kept and 0 < clears and len(kept) >= len(windows) // 2 and _gated_elsewhere(ledger):
        judgement.violations.append(Violation(
            "ACC201", first.site,
            f"the optimizer steps on every microbatch, the gradients are cleared once per {k}: each step applies the partial sum so far",
            {"windows": ledger.sizes},
        ))  # fmt: skip
        return
    scaled = [w for w in windows if weights.tagged(w, "K")]
    if len(scaled) == len([w for w in windows if w.size]) and not kept:
        factor = weights.judge(windows[0], ledger.trace)
        if factor.kind == "scaled" and factor.factor is not None and factor.factor.numerator == 1 and factor.factor.denominator == k:
            judgement.violations.append(Violation(
                "ACC201", first.site, f"the loss is divided for a window of {k} microbatches, but the optimizer steps on every one",
                {"windows": ledger.sizes},
            ))  # fmt: skip


def _gated_elsewhere(ledger: Ledger) -> bool:
    """Something of the update (clear, schedule) runs once per window while the step does not."""
    for window in ledger.windows:
        for event in window.events:
            if event.kind in (Kind.CLEAR, Kind.SCHEDULE) and event.gates and window.step is not None and len(event.gates) > len(window.step.gates):
                return True
    # without a gate of its own, the clear stands outside the microbatch loop: once per window all the same
    steps = [w.step for w in ledger.windows if w.step is not None]
    clears = [e for w in ledger.windows for e in w.events if e.kind is Kind.CLEAR]
    return bool(steps and clears) and len(clears) * 2 <= len(steps) and bool(ledger.trace.window_text)


def _clear_inside(ledger: Ledger, judgement: Judgement) -> None:
    # whether a counter that nobody shows moves with the microbatches is a guess; a loss that is divided by K speaks for it
    guessed = any("counts microbatches" in a for a in ledger.trace.assumptions)
    if guessed and not all(weights.tagged(window, "K") for window in ledger.windows):
        return
    judgement.applied.add("ACC204")
    for window in [*ledger.windows, ledger.pending]:
        for contribution, clear in window.erased:
            if window.left_loop_between(contribution.event, clear, epochs=True):
                continue  # dropped after the loop: clause C5
            kept = [c for c in window.contributions if all(c is not lost for lost, _ in window.erased)]
            if kept and not _same_pass(contribution.event, [c.event for c in kept]):
                continue  # a backward of its own, for warming up, probing or perturbing: thrown away on purpose
            later = [c for c in window.contributions if c.order > contribution.order and c.event.microbatch != contribution.event.microbatch]
            if not later and window.step is None:
                continue
            lost = len({c.event.microbatch for c, _ in window.erased})
            size = len({c.event.microbatch for c in window.contributions})
            if size < 2 or guessed and clear.gates:
                continue
            judgement.violations.append(Violation(
                "ACC204", clear.site,
                f"gradients are cleared between the microbatches of a window: {lost} of {size} are lost before the step",
                {"windows": ledger.sizes}, cap=Confidence.POSSIBLE if guessed else Confidence.CERTAIN,
                related=[(window.step.site, "the step that uses what is left")] if window.step is not None else [],
            ))  # fmt: skip
            return


def _same_pass(lost: Event, kept: list[Event]) -> bool:
    """The same backward of the script as one that is kept, or one that takes its place in other microbatches: ``if last: … else: …``."""
    if any(event.site == lost.site for event in kept):
        return True
    alone = all(event.microbatch != lost.microbatch for event in kept)
    return alone and any(event.loops == lost.loops and event.gates[-1:] == lost.gates[-1:] != () for event in kept)


def _never_cleared(ledger: Ledger, judgement: Judgement) -> None:
    if len(ledger.windows) < 2 or ledger.trace.assumptions or any("is not followed" in gap for gap in ledger.trace.gaps):
        return
    judgement.applied.add("ACC205")
    clears = [e for w in ledger.windows for e in w.events if e.kind is Kind.CLEAR and not _of_another(e, ledger)]
    inside = [e for e in clears if e.loops]
    if ledger.windows[1].stale and not inside:
        last = ledger.windows[-1]
        step = last.step
        assert step is not None
        judgement.violations.append(Violation(
            "ACC205", step.site,
            f"gradients are never cleared after a step: window {len(ledger.windows)} still holds the microbatches of all windows before it",
            {"windows": [w.size + len({c.event.microbatch for c in w.stale}) for w in ledger.windows]},
        ))  # fmt: skip


def _of_another(clear: Event, ledger: Ledger) -> bool:
    """Another optimizer's zero_grad, for parameters that this one doesn't train."""
    models = clear.details.get("models")
    return clear.subject >= 0 and clear.subject not in ledger.optimizers and bool(models and ledger.models and not models & ledger.models)


def _micro_gated(ledger: Ledger) -> bool:
    """The step stands inside the microbatch loop, behind a condition."""
    return any(w.step is not None and not ledger.outer_gates.issuperset(w.step.gates) and not w.after_loop for w in ledger.windows)


def _gate(ledger: Ledger, judgement: Judgement) -> None:
    """The boundary test: shifted by one, or negated."""
    windows = ledger.windows
    k = ledger.trace.window
    sizes = ledger.sizes
    # an Accelerator counts where `accumulate()` is entered, and owns the steps of what it prepared there
    owned = bool(windows) and windows[0].step is not None and windows[0].step.details.get("owner") == "accelerate"
    # the engine of DeepSpeed counts its calls over epochs, a gate on the index begins anew: windows of K * K and more
    engine = "framework deepspeed" in ledger.trace.traits
    if windows and (owned and ledger.usual == k * k or engine and ledger.usual >= k * k):
        step = windows[0].step
        assert step is not None
        judgement.applied.add("ACC209")
        judgement.violations.append(Violation(
            "ACC209", guard(step, ledger), f"the framework counts microbatches already and this test counts again: a window of {k} × {k} microbatches",
            {"windows": sizes},
        ))  # fmt: skip
        return
    if len(windows) < 2 or ledger.trace.assumptions or not _micro_gated(ledger):
        return
    judgement.applied |= {"ACC206", "ACC207"}
    if _inverted(ledger):
        step = windows[0].step
        assert step is not None
        judgement.violations.append(Violation(
            "ACC207", guard(step, ledger), f"the boundary test is negated: windows of {_listed(sizes)} microbatches, a step everywhere but at the boundary",
            {"windows": sizes},
        ))  # fmt: skip
        return
    first, second = windows[0], windows[1]
    usual = ledger.usual
    if first.step is None or first.after_loop or first.size >= usual or len(first.contributions) >= usual or usual != k and not ledger.trace.window_text:
        return
    if second.size == usual and first.size in (1, usual - 1) and not first.crosses and first.step.gates:
        again = [w for w in windows[1:] if not w.after_loop and w.size != usual and _opens_epoch(w)]
        recurring = bool(again) or not _several_epochs(ledger)
        judgement.violations.append(Violation(
            "ACC206", _computed(ledger, guard(first.step, ledger)),
            f"the boundary test is one microbatch off: windows of {_listed(sizes)} microbatches instead of {k}",
            {"windows": sizes}, severity=None if recurring and first.size == 1 else Severity.WARNING if not again else None,
        ))  # fmt: skip


def _opens_epoch(window: Window) -> bool:
    return window.crosses or any(e.kind is Kind.EPOCH for e in window.events)


def _several_epochs(ledger: Ledger) -> bool:
    return len({e.epoch for w in ledger.windows for e in w.events if e.kind is Kind.BACKWARD}) > 1


def _inverted(ledger: Ledger) -> bool:
    k = ledger.trace.window
    gaps: list[int] = []
    start = None
    for window in ledger.windows:
        if window.step is None or window.after_loop or window.crosses:
            continue
        start = window.step.microbatch if start is None else start
        gaps.append(window.size)
    # K = 3: steps at two of three positions give sizes 1, 1, 2 / 1, 2, 1
    return k > 2 and len(gaps) >= 4 and set(gaps) == {1, 2} and gaps.count(1) >= gaps.count(2) and (gaps.count(2) > 1 or len(gaps) < 5) and all(
        not (a == 2 and b == 2) for a, b in zip(gaps, gaps[1:])
    )


def _stuck(ledger: Ledger, judgement: Judgement) -> None:
    """The step condition stops coming true."""
    k = ledger.trace.window
    windows = ledger.windows
    pending = ledger.pending.size
    if not windows or ledger.trace.assumptions or windows[-1].step is None or not windows[-1].step.gates:
        return
    if not ledger.trace.window_text and not weights.tagged(windows[0], "K"):
        return
    judgement.applied.add("ACC213")
    if pending > 2 * k and len(windows) <= 2 and all(size <= k for size in ledger.sizes):
        step = windows[-1].step
        judgement.violations.append(Violation(
            "ACC213", _computed(ledger, guard(step, ledger)),
            f"after {len(windows)} update{'s' if len(windows) > 1 else ''} the boundary test never holds again: {pending} microbatches without a step",
            {"windows": ledger.sizes},
        ))  # fmt: skip


def _scheduler(ledger: Ledger, judgement: Judgement) -> None:
    whole = [w for w in ledger.windows if w.size > 1 and not w.crosses]
    if not whole:
        return
    judgement.applied.add("ACC202")
    subjects = {e.subject for w in whole for e in w.of(Kind.SCHEDULE)} | {e.subject for e in ledger.pending.of(Kind.SCHEDULE)}
    for subject in sorted(subjects):
        entry = ledger.trace.subjects.get(subject)
        if entry is not None and entry.optimizer >= 0 and entry.optimizer not in ledger.optimizers and not ledger.alone:
            continue
        # the step of the schedule often stands after the optimizer's: count per pair of steps
        per_window = [len(_schedules_of(ledger, window, subject)) for window in whole]
        # a function that is called once per epoch makes a scheduler of its own each time: judge it while it lives
        living = [i for i, count in enumerate(per_window) if count]
        if not living:
            continue
        mine = whole[living[0] : living[-1] + 1]
        per_window = per_window[living[0] : living[-1] + 1]
        events = [e for w in whole for e in w.of(Kind.SCHEDULE) if e.subject == subject]
        if not events or any(e.details.get("absolute") for e in events) or any(e.details.get("plateau") for e in events):
            continue
        if all(count >= window.size for count, window in zip(per_window, mine)) and max(per_window) > 1:
            if not any(len({e.microbatch for e in _schedules_of(ledger, w, subject)}) > 1 for w in mine):
                continue  # `for _ in range(K): scheduler.step()` at the boundary: meant to keep pace with the microbatches
            horizon = entry.horizon if entry is not None else None
            moves = sum(e.details.get("times", 1) for w in [*ledger.windows, ledger.pending] for e in w.of(Kind.SCHEDULE) if e.subject == subject)
            if horizon is not None and horizon.value is not None and _counts_microbatches(horizon.value, moves, ledger.trace.window):
                continue  # a schedule in microbatches, stepped per microbatch: the same curve
            judgement.violations.append(Violation(
                "ACC202", events[0].site,
                f"the scheduler moves {max(per_window)} times per update: the learning rate runs {ledger.usual} times ahead of the optimizer",
                {"windows": ledger.sizes},
                related=[(whole[0].step.site, "the optimizer steps once per window")] if whole[0].step is not None else [],
            ))  # fmt: skip


def _counts_microbatches(length: Quantity, moves: int, k: int) -> bool:
    """The schedule is as long as the number of its moves: length and clock share a unit."""
    if length.known and length.tags & {"len", "updates"}:
        # max_train_steps * K: updates turned back into microbatches, a short last window taken as full
        return abs(length.ranks[0] - moves) <= max(2, moves // 4)
    if "K" in length.tags and "len" not in length.tags:
        return length.ranks[0] >= k
    return "len" in length.tags and "K" not in length.tags


def _skipped_step(ledger: Ledger, judgement: Judgement) -> None:
    """The scheduler follows a step that the scaler may skip, without asking."""
    whole = [w for w in ledger.whole() if w.step is not None and w.step.details.get("scaler", -1) >= 0]
    if not whole:
        return
    judgement.applied.add("ACC203")
    for window in whole:
        step = window.step
        assert step is not None
        following = ledger.windows[window.index + 1] if window.index + 1 < len(ledger.windows) else ledger.pending
        for event in [*window.events, *following.events]:
            if event.kind is Kind.SCHEDULE and event.microbatch == step.microbatch and event.gates == step.gates and event.loops == step.loops and not event.details.get("absolute"):
                judgement.violations.append(Violation(
                    "ACC203", event.site,
                    "the scheduler moves whether or not the scaler applied the step: after an overflow the learning rate runs ahead of the weights",
                    {"windows": ledger.sizes}, related=[(step.site, "the scaler skips this step when gradients overflow")],
                ))  # fmt: skip
                return


def _schedules_of(ledger: Ledger, window: Window, subject: int) -> list[Event]:
    return [e for e in window.of(Kind.SCHEDULE) if e.subject == subject and e.microbatch in set(window.microbatches) | {window.microbatches[-1]}] + [
        e
        for later in (ledger.windows[window.index + 1] if window.index + 1 < len(ledger.windows) else ledger.pending,)
        for e in later.of(Kind.SCHEDULE)
        if e.subject == subject and e.microbatch == window.microbatches[-1]
    ]


def _scaler(ledger: Ledger, judgement: Judgement) -> None:
    whole = [w for w in ledger.windows if w.size > 1]
    if not any(w.of(Kind.SCALER_UPDATE) for w in [*whole, ledger.pending]):
        return
    judgement.applied.add("ACC212")
    for window in whole:
        inside = window.between_backwards(Kind.SCALER_UPDATE)
        own = [e for e in inside if e.microbatch in set(window.microbatches)]
        if own:
            judgement.violations.append(Violation(
                "ACC212", own[0].site, "scaler.update() runs inside the window: the loss scale can change between microbatches that are added up",
                {"windows": ledger.sizes},
            ))  # fmt: skip
            return


def _foreign(ledger: Ledger, judgement: Judgement) -> None:
    """A backward that another optimizer already used lies in this one's gradients."""
    if TOGGLES in ledger.trace.traits:
        return
    judgement.applied.add("ACC210")
    for window in ledger.windows:
        leaves = [c for c in window.fresh if c.event.details.get("leaf")]
        others = [c for c in window.fresh if not c.event.details.get("leaf")]
        apart = not {c.event.site for c in leaves} & {c.event.site for c in others}
        if leaves and apart and {c.event.microbatch for c in leaves} <= {c.event.microbatch for c in others}:
            judgement.violations.append(Violation(
                "ACC210", leaves[0].event.site,
                "this backward is for the gradient of the data, but it also adds to the parameters, and the step takes it along",
                {"windows": ledger.sizes},
                related=[(window.step.site, "the step that takes it along")] if window.step is not None else [],
            ))  # fmt: skip
            return
        strays = [*window.foreign, *_strays(window, ledger)]
        if strays and window.fresh:
            event = strays[0].event
            judgement.violations.append(Violation(
                "ACC210", event.site,
                "this backward also reaches parameters of another optimizer, whose gradients still hold it when that optimizer steps",
                {"windows": ledger.sizes},
                related=[(window.step.site, "the step that takes it along")] if window.step is not None else [],
            ))  # fmt: skip
            return


def _strays(window: Window, ledger: Ledger) -> list[Contribution]:
    """Losses that also reach another optimizer's model, beside one that takes what that model made and is kept from it."""
    own = ledger.models
    if own is None or ledger.alone:
        return []
    cut = frozenset().union(*(c.event.details.get("cut", frozenset()) for c in window.fresh if (c.event.details.get("models") or own) <= own))
    return [c for c in window.fresh if ((c.event.details.get("models") or own) - own) & cut]


def _skip(ledger: Ledger, judgement: Judgement) -> None:
    """One microbatch was left out on this path: did its window still come out whole?"""
    disturbed = ledger.trace.disturbed
    assert disturbed is not None
    site, microbatch, _ = disturbed
    k = ledger.trace.window
    judgement.applied.add("ACC208")
    if microbatch < 0 or not any(w.size > 1 for w in ledger.windows):
        return
    done = {c.event.microbatch for w in [*ledger.windows, ledger.pending] for c in w.contributions}
    if microbatch in done:
        return  # nothing was left out
    if not any(w.size == k for w in ledger.windows):
        return  # windows are not made by counting to K
    for window in ledger.windows:
        if window.step is None or window.after_loop or not window.microbatches:
            continue
        span = range(window.microbatches[0], window.step.microbatch + 1)
        if window.size > k and microbatch in span:
            judgement.violations.append(Violation(
                "ACC208", site,
                f"a microbatch that is left out at the boundary takes the update with it: the next window holds {window.size} microbatches, divided by {k}",
                {"windows": ledger.sizes},
            ))  # fmt: skip
            return


def _step_in_backward(ledger: Ledger, judgement: Judgement) -> None:
    """The step runs in a hook of backward, on every microbatch."""
    judgement.applied.add("ACC211")
    hooks = [w.step.details["hook"] for w in ledger.windows if w.step is not None and "hook" in w.step.details]
    if not hooks:
        return
    spoken = bool(ledger.trace.window_text) or any(weights.tagged(w, "K") for w in ledger.windows)
    if len(hooks) > 3 and spoken and all(w.size <= 1 for w in ledger.windows):
        judgement.violations.append(in_backward(hooks[0], ledger.trace.window))


def in_backward(site: int, window: int) -> Violation:
    """ACC211 at the place where the step was fused into backward."""
    return Violation(
        "ACC211", site, f"the optimizer steps inside backward, once per microbatch: a window of {window} microbatches never forms", {}
    )


def judge_trace(trace: Trace) -> list[Violation]:
    """What can be said of a trace in which no optimizer steps at all."""
    out = []
    marks = sorted(t for t in trace.traits if t.startswith("steps in backward@"))
    if marks and "constructor raised" not in trace.traits and (trace.window_text or any(e.kind is Kind.LOOP and e.details["role"] == "window" for e in trace.events)):
        out.append(in_backward(int(marks[0].rpartition("@")[2]), trace.window))
    stuck = sorted(t for t in trace.traits if t.startswith("stuck gate@"))
    empty = sorted(t for t in trace.traits if t.startswith("empty loop@"))
    if empty and not any(e.kind is Kind.BACKWARD for e in trace.events):
        out.append(Violation("ACC504", int(empty[0].rpartition("@")[2]), "the loop over windows has no window: an epoch is shorter than one", {}))
    count = len({e.microbatch for e in trace.events if e.kind is Kind.BACKWARD})
    if stuck and not marks:
        out.append(Violation(
            "ACC213", int(stuck[0].rpartition("@")[2]), f"the boundary test never holds: {count} microbatches are back-propagated without a step", {},
        ))  # fmt: skip
    return out
