"""C6: every rank agrees which backward is final, which denominator belongs to it, what is skipped."""

from __future__ import annotations

from accumlint.contract.events import Kind
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """Decisions on data of one rank, and steps behind a rank test."""
    trace = ledger.trace
    if not trace.distributed:
        return
    judgement.applied.add("ACC601")
    gated = next(
        (e for e in trace.events if e.kind in (Kind.STEP, Kind.BACKWARD) and e.details.get("rank_gated") and e.gates), None
    )
    if gated is not None and any(c.event.details.get("parallel") for w in ledger.windows for c in w.fresh):
        judgement.violations.append(Violation(
            "ACC601", gated.gates[-1], f"the {'step' if gated.kind is Kind.STEP else 'backward'} depends on the rank: the others do not take part", {},
        ))  # fmt: skip
        return
    if trace.disturbed is None:
        return
    site, microbatch, local = trace.disturbed
    if not local or microbatch < 0:
        return
    if not any(c.event.details.get("parallel") for w in [*ledger.windows, ledger.pending] for c in w.contributions):
        return
    done = {c.event.microbatch for w in [*ledger.windows, ledger.pending] for c in w.contributions}
    left = {
        e.microbatch for e in trace.events
        if e.kind is Kind.LOOP and e.details["phase"] == "exit" and (e.details.get("broke") or e.details.get("ended")) and e.details["role"] != "update"
    }  # fmt: skip
    if left == {microbatch} and microbatch in done:  # a loop that is left elsewhere too is left for another reason
        judgement.violations.append(Violation(
            "ACC601", site, "the decision rests on one rank: it leaves the loop there, while the other ranks go on and wait in the next reduction",
            {"windows": ledger.sizes},
        ))  # fmt: skip
        return
    # a pass that warms up or tries out before the training loop is in no window, but it is not left out
    left_out = not any(e.kind is Kind.BACKWARD and e.microbatch == microbatch for e in trace.events)
    missed_step = any(microbatch in w.microbatches and w.size > ledger.trace.window and not w.crosses for w in ledger.windows)
    if left_out or missed_step:
        what = "this microbatch's backward is left out" if left_out else "the step is left out"
        judgement.violations.append(Violation(
            "ACC601", site,
            f"the decision rests on the data of one rank: {what} there, while the other ranks go on and wait in the reduction",
            {"windows": ledger.sizes},
        ))  # fmt: skip
