"""C8: the length of a learning-rate schedule is counted in the unit in which it is stepped."""

from __future__ import annotations

from fractions import Fraction

from accumlint.contract.events import Kind
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """Lengths of schedules that move once per update against the number of updates."""
    trace = ledger.trace
    if not ledger.accumulates or trace.disturbed is not None or ledger.usual < 2:
        return
    judgement.applied.add("ACC801")
    moved: dict[int, int] = {}
    times: dict[int, int] = {}
    for window in [*ledger.windows, ledger.pending]:
        for event in window.of(Kind.SCHEDULE):
            if not event.details.get("absolute"):
                moved[event.subject] = moved.get(event.subject, 0) + event.details.get("times", 1)
                times[event.subject] = event.details.get("times", 1)
    microbatches = len({e.microbatch for e in trace.events if e.kind is Kind.BACKWARD})
    for subject, steps in sorted(moved.items()):
        entry = trace.subjects.get(subject)
        if entry is None or entry.horizon is None or entry.horizon.value is None:
            continue
        value = entry.horizon.value
        warmup = entry.horizon.warmup
        if warmup is not None and "len" in warmup.tags and "K" not in warmup.tags and "K" in value.tags and steps <= (len(ledger.windows) + 1) * times[subject]:
            judgement.violations.append(Violation(
                "ACC801", entry.horizon.warmup_site,
                f"the warm-up is counted in microbatches, the total in updates: it lasts {ledger.usual} times as long as meant", {"windows": ledger.sizes},
            ))  # fmt: skip
            continue
        if times[subject] > 1 and {"len", "K"} <= value.tags and value.known and value.uniform and abs(value.ranks[0] - trace.window * steps) <= steps / 2:
            # the updates of all ranks, times K: a prepared schedule moves once per rank, whatever K is
            judgement.violations.append(Violation(
                "ACC801", entry.horizon.site,
                f"the schedule is {value.ranks[0]} steps long, {trace.window} times the {steps} that it moves: what is prepared moves with updates, so the length is not to be multiplied by K",
                {"windows": ledger.sizes},
            ))  # fmt: skip
            continue
        if "len" not in value.tags or not value.known or not value.uniform or "K" in value.tags:
            continue
        length = value.ranks[0]
        if steps < 2 or steps > (len(ledger.windows) + 1) * times[subject]:
            continue
        if length == Fraction(microbatches * times[subject]) or length >= 2 * steps and length * 2 >= microbatches and length % trace.length == 0:
            judgement.violations.append(Violation(
                "ACC801", entry.horizon.site,
                f"the schedule is {length} steps long, the number of microbatches, but moves once per update, {steps} times: "
                f"it ends after {float(Fraction(steps) / length):.0%} of its way",
                {"windows": ledger.sizes},
            ))  # fmt: skip
