"""C7: checkpoints, evaluation, averages, logs, limits and resume count optimizer updates, or say that they don't."""

from __future__ import annotations

from accumlint.contract.clauses.c2_clock import guard
from accumlint.contract.events import Event, Kind
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger
from accumlint.findings import Severity


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """Counters, periodic events, averages and checkpoints of an accumulating loop."""
    if not ledger.accumulates or ledger.trace.disturbed is not None or ledger.usual < 2:
        return
    judgement.applied |= {"ACC701", "ACC702", "ACC703", "ACC704", "ACC705"}
    per_window = counters_per_window(ledger)
    _limit(ledger, judgement, per_window)
    _repeats(ledger, judgement, per_window)
    _average(ledger, judgement)
    _mid_window(ledger, judgement)
    _missing_state(ledger, judgement)


def counters_per_window(ledger: Ledger) -> dict[str, float]:
    """How often each counter moves per whole window: K for microbatches, 1 for updates."""
    whole = ledger.whole()
    out: dict[str, float] = {}
    if not whole:
        return out
    names = {e.details["name"] for w in ledger.windows for e in w.of(Kind.COUNT)} | {e.details["name"] for e in ledger.pending.of(Kind.COUNT)}
    for name in names:
        own = 0
        for window in whole:
            span = set(window.microbatches)
            nearby = [*window.events, *(ledger.windows[window.index + 1].events if window.index + 1 < len(ledger.windows) else ledger.pending.events)]
            own += sum(1 for e in nearby if e.kind is Kind.COUNT and e.details["name"] == name and e.microbatch in span)
        out[name] = own / len(whole)
    return out


def _in_updates(ledger: Ledger, per_window: dict[str, float], counter: str) -> bool:
    return per_window.get(counter.removeprefix("counter:"), 0) == 1


def _limit(ledger: Ledger, judgement: Judgement, per_window: dict[str, float]) -> None:
    """A limit in updates that a counter of microbatches reaches K times too early."""
    update_limits: set[str] = set()
    for window in [*ledger.windows, ledger.pending]:
        for event in window.of(Kind.SCHEDULE):
            entry = ledger.trace.subjects.get(event.subject)
            if entry is not None and entry.horizon is not None and entry.horizon.value is not None and _once_per_window(ledger, event.subject):
                update_limits |= {name for name, power in entry.horizon.value.symbols if power == 1}
    for window in [*ledger.windows, ledger.pending]:
        for event in window.of(Kind.LIMIT):
            symbols = event.details["limit"]
            if len(symbols) != 1:
                continue
            name = next(iter(symbols))
            for counter in event.details["counters"]:
                plain = counter.removeprefix("counter:")
                if counter.startswith("counter:") and per_window.get(plain, 0) == ledger.usual and name in update_limits:
                    count = next((e for w in ledger.windows for e in w.of(Kind.COUNT) if e.details["name"] == plain), None)
                    site = count.site if count is not None else event.site
                    judgement.violations.append(Violation(
                        "ACC701", site,
                        f"`{plain}` moves on every microbatch but is held against `{name}`, which the schedule counts in updates: "
                        f"training ends {ledger.usual} times too early",
                        {"windows": ledger.sizes}, related=[(event.site, "the comparison")],
                    ))  # fmt: skip
                    return


def _once_per_window(ledger: Ledger, subject: int) -> bool:
    whole = ledger.whole()
    total = sum(1 for w in ledger.windows for e in w.of(Kind.SCHEDULE) if e.subject == subject) + sum(
        1 for e in ledger.pending.of(Kind.SCHEDULE) if e.subject == subject
    )
    return bool(whole) and total <= len(ledger.windows) + 1


def _repeats(ledger: Ledger, judgement: Judgement, per_window: dict[str, float]) -> None:
    """Something that is due every n updates, tested on every microbatch while the update counter stands still."""
    seen: dict[tuple[int, str], set[int]] = {}
    first: dict[int, Event] = {}
    for window in [*ledger.windows, ledger.pending]:
        for event in window.of(Kind.PERIODIC):
            if event.details["effect"] == "log" or not event.details["counters"]:
                continue
            if not any(_in_updates(ledger, per_window, c) for c in event.details["counters"]):
                continue
            seen.setdefault((event.site, event.details["value"]), set()).add(event.microbatch)
            first.setdefault(event.site, event)
    for (site, value), microbatches in sorted(seen.items()):
        if len(microbatches) > 1 and value not in ("0", "") or len(microbatches) > 1 and value == "0":
            judgement.violations.append(Violation(
                "ACC702", site,
                f"due every so many updates, but tested on every microbatch: it runs {len(microbatches)} times while the update counter stands at {value}",
                {"windows": ledger.sizes},
            ))  # fmt: skip
            return


def _average(ledger: Ledger, judgement: Judgement) -> None:
    whole = ledger.whole()
    for window in whole:
        inside = [e for e in window.between_backwards(Kind.AVERAGE) if e.microbatch in set(window.microbatches)]
        if len({e.microbatch for e in inside}) >= window.size - 1 and inside:
            judgement.violations.append(Violation(
                "ACC703", inside[0].site,
                f"the weight average moves on every microbatch, {ledger.usual} times per update: its decay is {ledger.usual} times as strong as configured",
                {"windows": ledger.sizes},
            ))  # fmt: skip
            return


def _mid_window(ledger: Ledger, judgement: Judgement) -> None:
    """A resume checkpoint while gradients of an unfinished window are pending."""
    for window in [*ledger.windows, ledger.pending]:
        alive: set[int] = set()
        for event in window.events:
            if event.kind is Kind.BACKWARD:
                alive.add(event.microbatch)
            elif event.kind is Kind.CLEAR:
                alive.clear()
            elif event.kind is Kind.CHECKPOINT and event.details["resumable"] and alive and len(alive) < ledger.usual and event.loops:
                inner = any(role_site in event.loops for role_site in _micro_loops(ledger))
                if not inner:
                    continue
                judgement.violations.append(Violation(
                    "ACC705", event.site,
                    f"a checkpoint is written with {len(alive)} of {ledger.usual} microbatches pending: on resume their gradients are gone",
                    {"windows": ledger.sizes}, related=[(guard(event), "the condition")] if event.gates else [],
                ))  # fmt: skip
                return


def _micro_loops(ledger: Ledger) -> set[int]:
    return {e.site for e in ledger.trace.events if e.kind is Kind.LOOP and e.details["role"] in ("micro", "window")}


def _missing_state(ledger: Ledger, judgement: Judgement) -> None:
    """A checkpoint with the optimizer's state but without the scheduler's or the scaler's."""
    used: dict[int, str] = {}
    for window in [*ledger.windows, ledger.pending]:
        for event in window.events:
            if event.kind is Kind.SCHEDULE and event.subject >= 0:
                used[event.subject] = "scheduler"
            elif event.kind is Kind.SCALER_UPDATE and event.subject >= 0:
                used[event.subject] = "scaler"
    for event in (e for w in [*ledger.windows, ledger.pending] for e in w.of(Kind.CHECKPOINT)):
        if not event.details["resumable"] or event.details["opaque"]:
            continue
        kinds = event.details["kinds"]
        lacking = sorted({kind for subject, kind in used.items() if subject not in event.details["holds"] and kind not in kinds})
        keys = set(event.details["keys"])
        lacking = [kind for kind in lacking if not any(kind in key.lower() or kind[:5] in key.lower() for key in keys)]
        if lacking:
            judgement.violations.append(Violation(
                "ACC704", event.site,
                f"the checkpoint holds the optimizer but not the {' or the '.join(lacking)}: after a resume it starts anew",
                {}, severity=Severity.ERROR,
            ))  # fmt: skip
            return
