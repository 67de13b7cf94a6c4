"""C7: checkpoints, evaluation, averages, logs, limits and resume count optimizer updates, or say that they don't."""

from __future__ import annotations

import re

from accumlint.contract.clauses.c2_clock import guard
from accumlint.contract.events import Event, Kind
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger
from accumlint.findings import Confidence, Severity


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
    _resume(ledger, judgement, per_window)


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
    counts = {e.details["name"]: e for w in [*ledger.windows, ledger.pending] for e in w.of(Kind.COUNT)}
    for window in [*ledger.windows, ledger.pending]:
        for event in window.events:
            if event.kind is Kind.LIMIT:
                symbols = event.details["limit"]
                if event.details.get("in_microbatches"):
                    continue
                name = event.details.get("name") or (next(iter(symbols)) if len(symbols) == 1 else "")
                in_updates = _names_updates(name) or len(symbols) == 1 and next(iter(symbols)) in update_limits
            elif event.kind is Kind.PERIODIC:
                name = event.details.get("period", "")
                in_updates = _names_updates(name)
            else:
                continue
            if not in_updates:
                continue
            for counter in event.details["counters"]:
                kind, _, plain = counter.partition(":")
                moves = per_window.get(plain, 0) if kind == "counter" else _index_moves(ledger, plain)
                if moves != ledger.usual:
                    continue
                what = f"`{plain}`" if kind == "counter" else "the index of the microbatch loop"
                judgement.violations.append(Violation(
                    "ACC701", _in_loop(event, ledger),
                    f"{what} moves on every microbatch but is held against `{name}`, which counts updates: it is reached {ledger.usual} times too early",
                    {"windows": ledger.sizes}, related=[(counts[plain].site, "moved here")] if plain in counts else [],
                ))  # fmt: skip
                return


def _names_updates(name: str) -> bool:
    """The name itself says that it counts optimizer updates."""
    lowered = name.lower()
    if re.search(r"updates?_(interval|freq|every|ratio|period|rate|type|rule|method)|(loss|log|print|metric|ema|target|display|bar)_updates?", lowered):
        return False
    return re.search(r"(^|_)updates?($|_)", lowered) is not None or "optimizer_step" in lowered or "optim_step" in lowered


def _index_moves(ledger: Ledger, site: str) -> int:
    """The index of the microbatch loop moves once per microbatch."""
    micro = {e.site for e in ledger.trace.events if e.kind is Kind.LOOP and e.details["role"] == "micro"}
    return ledger.usual if micro and site.isdigit() else 0


def _in_loop(event: Event, ledger: Ledger) -> int:
    """The place in the function that holds the loop's backward: the call, when the event lies in a helper."""
    depths = [len(c.event.stack) for w in ledger.windows for c in w.fresh]
    depth = min(depths) if depths else len(event.stack)
    return event.stack[depth] if len(event.stack) > depth else event.site


def _once_per_window(ledger: Ledger, subject: int) -> bool:
    whole = ledger.whole()
    total = sum(1 for w in ledger.windows for e in w.of(Kind.SCHEDULE) if e.subject == subject) + sum(
        1 for e in ledger.pending.of(Kind.SCHEDULE) if e.subject == subject
    )
    return bool(whole) and total <= len(ledger.windows) + 1


def _repeats(ledger: Ledger, judgement: Judgement, per_window: dict[str, float]) -> None:
    """Something that is due every n updates, tested on every microbatch while the update counter stands still."""
    seen: dict[tuple[int, str, int], set[int]] = {}  # by epoch: a counter may begin anew with each
    effect: dict[int, str] = {}
    for window in [*ledger.windows, ledger.pending]:
        for event in window.of(Kind.PERIODIC):
            if not any(_in_updates(ledger, per_window, c) for c in event.details["counters"]):
                continue
            seen.setdefault((event.site, event.details["value"], event.epoch), set()).add(event.microbatch)
            effect[event.site] = event.details["effect"]
    for (site, value, _), microbatches in sorted(seen.items()):
        if len(microbatches) > 1:
            judgement.violations.append(Violation(
                "ACC702", site,
                f"due every so many updates, but tested on every microbatch: it runs {len(microbatches)} times while the update counter stands at {value}",
                {"windows": ledger.sizes}, severity=Severity.ADVICE if effect[site] == "log" else None,
            ))  # fmt: skip
            return


def _average(ledger: Ledger, judgement: Judgement) -> None:
    for window in ledger.whole():
        inside = [e for e in window.between_backwards(Kind.AVERAGE) if e.microbatch in set(window.microbatches) and _is_other(e, ledger)]
        if len({e.microbatch for e in inside}) >= window.size - 1 and inside:
            judgement.violations.append(Violation(
                "ACC703", _in_loop(inside[0], ledger),
                f"the weight average moves on every microbatch, {ledger.usual} times per update: its decay is {ledger.usual} times as strong as configured",
                {"windows": ledger.sizes},
            ))  # fmt: skip
            return


def _is_other(event: Event, ledger: Ledger) -> bool:
    """The parameters that are written are not the ones that this optimizer trains."""
    models = event.details.get("models")
    return models is None and "models" not in event.details or models is not None and (ledger.models is None or not models & ledger.models)


def _mid_window(ledger: Ledger, judgement: Judgement) -> None:
    """A resume checkpoint while gradients of an unfinished window are pending."""
    due = {(e.site, e.microbatch): e for w in [*ledger.windows, ledger.pending] for e in w.of(Kind.PERIODIC)}
    for window in [*ledger.windows, ledger.pending]:
        alive: set[int] = set()
        for event in window.events:
            if event.kind is Kind.BACKWARD:
                alive.add(event.microbatch)
            elif event.kind is Kind.CLEAR:
                alive.clear()
            elif event.kind is Kind.CHECKPOINT and event.details["resumable"] and alive and event.loops:
                if "gradients" in event.details["kinds"]:
                    continue
                inner = any(role_site in event.loops for role_site in _micro_loops(ledger))
                if not inner:
                    continue
                period = next((due[gate, event.microbatch] for gate in event.gates if (gate, event.microbatch) in due), None)
                if period is not None and period.details.get("whole") and int(period.details["value"] or 0) % ledger.trace.window:
                    continue  # simulated with a shorter period: the real one comes out where this one does with windows
                judgement.violations.append(Violation(
                    "ACC705", event.site,
                    f"a checkpoint is written with {len(alive)} of {ledger.usual} microbatches pending: on resume their gradients are gone",
                    {"windows": ledger.sizes}, related=[(guard(event, ledger), "the condition")] if event.gates else [],
                    # an interval in microbatches that happens to be a multiple of K does no harm
                    cap=Confidence.CERTAIN if period is None or period.details.get("whole") else Confidence.CONDITIONAL,
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
    for event in ledger.trace.events:
        # one that is told its position needs no state, one that follows a metric keeps its rate in the optimizer
        if event.kind is Kind.SCHEDULE and (event.details.get("absolute") or event.details.get("plateau")):
            used.pop(event.subject, None)
    used = {s: kind for s, kind in used.items() if "placed" not in ledger.trace.subjects[s].traits}
    optional = {s for s in used if "may be disabled" in ledger.trace.subjects[s].traits} if used else set()
    for group in _written_together(ledger):
        if not any(e.details["resumable"] for e in group) or any(e.details["opaque"] for e in group):
            continue
        kinds = frozenset().union(*(e.details["kinds"] for e in group))
        holds = frozenset().union(*(e.details["holds"] for e in group))
        keys = {key for e in group for key in e.details["keys"]}
        missing = [s for s, kind in used.items() if s not in holds and kind not in kinds]
        missing = [s for s in missing if not any(used[s][:5] in key.lower() for key in keys)]
        lacking = sorted({used[s] for s in missing})
        counted = any(isinstance(v, list) or v in ("value", "?") for e in group for v in e.details["keys"].values())
        whole = any("optimizer" in e.details["kinds"] and len(e.details["keys"]) > 1 for e in group)
        if not lacking and not counted and whole and {"resumes", "restores optimizer"} <= ledger.trace.traits and not used:
            lacking = ["count of updates"]
        if lacking:
            event = next(e for e in group if e.details["resumable"])
            judgement.violations.append(Violation(
                "ACC704", event.site,
                f"the checkpoint holds the optimizer but not the {' or the '.join(lacking)}: after a resume it starts anew",
                {}, severity=Severity.ADVICE if missing and set(missing) <= optional else None,
            ))  # fmt: skip
            return


def _written_together(ledger: Ledger) -> list[list[Event]]:
    """Checkpoints that are written one after the other are one checkpoint in several files."""
    groups: list[list[Event]] = []
    previous: Event | None = None
    for event in ledger.trace.events:
        if event.kind is Kind.CHECKPOINT:
            if previous is not None and previous.kind is Kind.CHECKPOINT and previous.microbatch == event.microbatch and previous.stack == event.stack:
                groups[-1].append(event)
            else:
                groups.append([event])
        previous = event
    return groups


def _resume(ledger: Ledger, judgement: Judgement, per_window: dict[str, float]) -> None:
    """A number comes back from a checkpoint in another unit than it was saved in."""
    judgement.applied.add("ACC706")
    saved: dict[str, float] = {}
    for event in ledger.trace.events:
        if event.kind is Kind.CHECKPOINT:
            for key, tags in event.details["keys"].items():
                if isinstance(tags, list):
                    names = [t.removeprefix("counter:") for t in tags if t.startswith("counter:")]
                    if names and per_window.get(names[0], 0) in (1, ledger.usual):
                        saved[key] = per_window[names[0]]
    for event in ledger.trace.events:
        if event.kind is not Kind.RESUME or event.details["key"] not in saved:
            continue
        unit = saved[event.details["key"]]
        if event.details["use"] == "skip" and unit == 1:
            message = f"`{event.details['key']}` was saved as a number of updates and skips as many microbatches: {ledger.usual} times too few"
        elif event.details["use"] == "counter" and per_window.get(event.details["into"], unit) not in (unit, 0):
            message = f"`{event.details['key']}` was saved as a number of {'updates' if unit == 1 else 'microbatches'} and comes back as the other"
        else:
            continue
        judgement.violations.append(Violation("ACC706", event.site, message, {}))
        return
