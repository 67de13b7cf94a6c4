"""C5: the short last window is flushed, carried or dropped by decision, never divided as if it were full."""

from __future__ import annotations

from fractions import Fraction

from accumlint.contract import weights
from accumlint.contract.clauses.c2_clock import guard
from accumlint.contract.events import Event, Kind
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger, Window
from accumlint.findings import Confidence, Severity


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """What becomes of the microbatches after the last whole window of an epoch."""
    trace = ledger.trace
    _too_short(ledger, judgement)
    if trace.disturbed is not None or not ledger.windows or "whole windows" in trace.traits:
        return
    if ledger.usual < 2 or trace.assumptions:
        return
    left = [e for e in trace.events if e.kind is Kind.LOOP and e.details["phase"] == "exit"]
    exits = [e for e in left if e.details["role"] == "micro"]
    if not exits and any(e.details["whole"] or e.details["broke"] for e in left if e.details["role"] == "update"):
        # windows of lists: nothing can leak or be dropped, but the last list may be short
        judgement.applied.add("ACC503")
        _divided(ledger, judgement)
        return
    if not exits or not any(e.details["whole"] for e in exits) or all(e.details.get("infinite") for e in exits):
        return
    judgement.applied |= {"ACC501", "ACC502", "ACC503"}
    _leak(ledger, judgement)
    _drop(ledger, judgement)
    _divided(ledger, judgement)


def _too_short(ledger: Ledger, judgement: Judgement) -> None:
    """An epoch of known length that is shorter than one window, in a loop that starts counting anew."""
    lengths = [int(t[8:]) for t in ledger.trace.traits if t.startswith("batches ")]
    literal = [int(t[15:]) for t in ledger.trace.traits if t.startswith("window literal ")]
    if len(lengths) != 1 or not literal or lengths[0] >= literal[0]:
        return
    judgement.applied.add("ACC504")
    carried = any(w.crosses and w.size == ledger.usual for w in ledger.windows)
    step = next((w.step for w in ledger.windows if w.step is not None and w.step.gates), None)
    flushed = any(w.after_loop or _at_end(ledger, w) and w.size < ledger.usual for w in ledger.windows)
    if step is not None and not carried and not flushed:
        judgement.violations.append(Violation(
            "ACC504", guard(step, ledger), f"an epoch has {lengths[0]} microbatches, a window {literal[0]}: no update ever happens", {},
        ))  # fmt: skip


def _synthetic(ledger: Ledger) -> bool:
    """The epochs are not in the script: the function was called twice for the sake of the simulation."""
    return any(e.kind is Kind.EPOCH and e.details.get("synthetic") for e in ledger.trace.events)


def _leak(ledger: Ledger, judgement: Judgement) -> None:
    for window in ledger.windows:
        if window.crosses and not window.erased and window.size != ledger.usual and window.step is not None:
            if weights.tail_factor(window, ledger.trace) == 1:
                continue  # carried with its count: a longer window, and divided as one
            before = _before_crossing(window)
            gate = guard(window.step, ledger)
            restart = _restart_behind(window, ledger)
            judgement.violations.append(Violation(
                "ACC502", restart.site if restart is not None else gate,
                f"{before} microbatch{'es' if before > 1 else ''} left over from one epoch stay{'' if before > 1 else 's'} in the gradients while the count starts again: "
                f"the first window of the next epoch has {window.size} microbatches, divided by {ledger.trace.window}",
                {"windows": ledger.sizes}, severity=Severity.WARNING, cap=Confidence.CONDITIONAL,
                related=[(gate, "the test that counts to the boundary")] if restart is not None else [],
            ))  # fmt: skip
            return


def _restart_behind(window: Window, ledger: Ledger) -> Event | None:
    """Where a counter of microbatches is set back behind the loop, while the rest is pending: an evaluation does that.

    A counter that every epoch starts with is no such place: there the gate is what ought to know of the rest.
    """
    counted = _counters_of_microbatches(ledger)
    left = False
    for event in window.events:
        if event.kind is Kind.LOOP and event.details["phase"] == "exit" and event.details["role"] == "micro":
            left = True
        elif event.kind is Kind.EPOCH or event.kind is Kind.LOOP and left:
            return None
        elif left and event.kind is Kind.RESTART and event.details["name"] in counted:
            return event
    return None


def _counters_of_microbatches(ledger: Ledger) -> set[str]:
    moves: dict[str, set[int]] = {}
    for window in ledger.whole():
        for event in window.of(Kind.COUNT):
            moves.setdefault(event.details["name"], set()).add(event.microbatch)
    return {name for name, microbatches in moves.items() if len(microbatches) > len(ledger.whole())}


def _before_crossing(window: Window) -> int:
    seen: set[int] = set()
    for event in window.events:
        if event.kind is Kind.BACKWARD:
            seen.add(event.microbatch)
        elif event.kind is Kind.LOOP and event.details["phase"] == "exit" and seen:
            break
    return len(seen)


def _drop(ledger: Ledger, judgement: Judgement) -> None:
    synthetic = _synthetic(ledger)
    for window in [*ledger.windows, ledger.pending]:
        # a clear behind a test of its own, after the loop, was decided: `if steps % K: optimizer.zero_grad()`
        dropped = [
            (c, clear) for c, clear in window.erased
            if window.left_loop_between(c.event, clear) and (clear.loops == c.event.loops or set(clear.gates) <= set(c.event.gates))
        ]
        if dropped and not synthetic:
            step = next((w.step for w in ledger.windows if w.step is not None and not w.after_loop), None)
            site = guard(step, ledger) if step is not None else dropped[0][1].site
            count = len({c.event.microbatch for c, _ in dropped})
            judgement.violations.append(Violation(
                "ACC501", site,
                f"the last {count} microbatch{'es' if count > 1 else ''} of an epoch are back-propagated, then cleared without a step",
                {"windows": ledger.sizes}, severity=Severity.WARNING, cap=Confidence.CONDITIONAL,
                related=[(dropped[0][1].site, "the gradients are cleared here")],
            ))  # fmt: skip
            return


def _divided(ledger: Ledger, judgement: Judgement) -> None:
    """A short window that is stepped: was it divided by its own size?"""
    for window in ledger.windows:
        if not (0 < window.size < ledger.usual) or window.erased or window.stale or window.crosses or window.step is None:
            continue
        if not _at_end(ledger, window):
            continue
        factor = weights.tail_factor(window, ledger.trace)
        full = [weights.tail_factor(w, ledger.trace) for w in ledger.whole()]
        if factor is None or not full or any(f != 1 for f in full):
            continue
        if factor == Fraction(window.size, ledger.usual):
            flush = window.step
            judgement.violations.append(Violation(
                "ACC503", guard(flush, ledger),
                f"the short last window has {window.size} microbatch{'es' if window.size > 1 else ''} and its losses were divided by {ledger.usual}: "
                f"its gradient is {factor} of what it should be",
                {"windows": ledger.sizes}, severity=Severity.ADVICE if flush.details.get("owner") else Severity.WARNING, cap=Confidence.CONDITIONAL,
            ))  # fmt: skip
            return


def _at_end(ledger: Ledger, window: Window) -> bool:
    """The window closes an epoch: flushed after the loop, or on its last microbatch."""
    if window.after_loop:
        return True
    following = ledger.windows[window.index + 1] if window.index + 1 < len(ledger.windows) else ledger.pending
    for event in following.events:
        if event.kind is Kind.BACKWARD:
            return False
        if event.kind is Kind.EPOCH or event.kind is Kind.LOOP and event.details["phase"] == "exit":
            return True
    return False
