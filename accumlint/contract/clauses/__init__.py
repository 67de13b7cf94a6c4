"""The clauses, and the order in which causes win over their consequences."""

from __future__ import annotations

from accumlint.contract.clauses import (
    c1_denominator, c2_clock, c3_sync, c4_precision, c5_tail, c6_ranks, c7_bookkeeping, c8_schedule,
)  # fmt: skip
from accumlint.contract.events import Trace
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger, ledgers

# a cause on the left makes the rules on the right its consequences: they are not reported beside it
CONSEQUENCES: dict[str, frozenset[str]] = {
    "ACC201": frozenset({"ACC101", "ACC102", "ACC103", "ACC204", "ACC205", "ACC206", "ACC207", "ACC213", "ACC303", "ACC301", "ACC401", "ACC501",
                         "ACC502", "ACC503", "ACC701", "ACC801", "ACC202", "ACC404", "ACC212"}),
    "ACC204": frozenset({"ACC101", "ACC102", "ACC103", "ACC501", "ACC502", "ACC503", "ACC206", "ACC301"}),
    "ACC205": frozenset({"ACC101", "ACC102", "ACC103", "ACC501", "ACC502", "ACC503"}),
    "ACC206": frozenset({"ACC503", "ACC501"}),
    "ACC207": frozenset({"ACC101", "ACC102", "ACC103", "ACC206", "ACC213", "ACC501", "ACC502", "ACC503", "ACC303", "ACC301", "ACC202", "ACC801", "ACC701", "ACC401"}),
    "ACC208": frozenset({"ACC101", "ACC102", "ACC103", "ACC206", "ACC207", "ACC213", "ACC501", "ACC502", "ACC503"}),
    "ACC209": frozenset({"ACC101", "ACC102", "ACC103", "ACC206", "ACC207", "ACC213", "ACC501", "ACC502", "ACC503", "ACC201", "ACC202", "ACC801", "ACC301"}),
    "ACC211": frozenset({"ACC201", "ACC204", "ACC205", "ACC401", "ACC102", "ACC103"}),
    "ACC213": frozenset({"ACC206", "ACC501", "ACC502", "ACC503", "ACC301", "ACC801"}),
    "ACC303": frozenset({"ACC301", "ACC302"}),
    "ACC302": frozenset({"ACC301"}),
    "ACC304": frozenset({"ACC301", "ACC302", "ACC303"}),
    "ACC403": frozenset({"ACC401"}),
    "ACC504": frozenset({"ACC501", "ACC502", "ACC503", "ACC213"}),
    "ACC404": frozenset({"ACC402"}),
    "ACC502": frozenset({"ACC501", "ACC503"}),
    "ACC501": frozenset({"ACC503"}),
    "ACC601": frozenset({"ACC208"}),
    "ACC101": frozenset({"ACC503", "ACC106"}),
    "ACC106": frozenset({"ACC503"}),
    "ACC102": frozenset({"ACC503"}),
    "ACC103": frozenset({"ACC503"}),
    "ACC701": frozenset({"ACC702"}),
}


judge_trace = c2_clock.judge_trace


def judge(trace: Trace) -> list[tuple[Ledger, Judgement]]:
    """Every ledger of a trace with what the clauses say of it."""
    out = []
    for ledger in ledgers(trace):
        judgement = Judgement([], set())
        if not ledger.certain_models:
            # several optimizers and no telling which backward feeds which: no window can be drawn
            out.append((ledger, judgement))
            continue
        for clause in (c2_clock, c1_denominator, c3_sync, c4_precision, c5_tail, c6_ranks, c7_bookkeeping, c8_schedule):
            clause.judge(ledger, judgement)
        judgement.violations = without_consequences(judgement.violations)
        out.append((ledger, judgement))
    return out


def without_consequences(violations: list[Violation]) -> list[Violation]:
    """Only causes: what follows from another violation of the same trace is not said twice."""
    present = {violation.rule for violation in violations}
    hidden = set()
    for rule in present:
        hidden |= CONSEQUENCES.get(rule, frozenset())
    return [violation for violation in violations if violation.rule not in hidden]
