"""C3: communication is off for forward and backward of every non-final microbatch, on for the final one.

DDP decides in the forward (``torch/nn/parallel/distributed.py``), FSDP in the backward.
"""

from __future__ import annotations

from accumlint.contract.events import Event, Kind
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger, Window
from accumlint.findings import Confidence, Severity

BACKWARD_DECIDES = ("fsdp", "fsdp2")


def synchronised(event: Event) -> bool | str | None:
    """Whether a backward reduces its gradients over ranks; None when no data-parallel model is seen, "mixed" when some do."""
    kind = event.details.get("parallel")
    if not kind:
        return None
    if kind in BACKWARD_DECIDES:
        return event.details.get("backward_sync")
    return event.details.get("forward_sync")


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """Sync marks of every accumulating window."""
    windows = [w for w in ledger.windows if w.size > 1 and not w.erased]
    if not windows or ledger.trace.disturbed is not None:
        return
    judgement.applied.add("ACC304")
    if "zero sharded" in ledger.trace.traits:
        marks = sorted(t for t in ledger.trace.traits if t.startswith("engine no_sync@"))
        if marks:
            judgement.violations.append(Violation(
                "ACC304", int(marks[0].rpartition("@")[2]),
                "no_sync() with partitioned gradients: ZeRO stage 2 and 3 must reduce on every backward and refuse it", {},
            ))  # fmt: skip
            return
    parallel = {c.event.details.get("parallel") for w in windows for c in w.fresh} - {""}
    if not parallel:
        return
    judgement.applied |= {"ACC302", "ACC303", "ACC305"}
    if _misses_model(ledger, judgement, windows):
        return
    if any(e.kind is Kind.REDUCE for w in windows for e in w.events):
        return  # reduced by hand, once per window: right whatever the wrapper did
    silent = [w for w in windows if _last(w) is not None and synchronised(_last(w)) is False]  # type: ignore[arg-type]
    if silent:
        _never(ledger, judgement, windows, silent)
        return
    if parallel == {"ddp"}:
        _misses_forward(ledger, judgement, windows)


def _misses_model(ledger: Ledger, judgement: Judgement, windows: list[Window]) -> bool:
    """Communication is switched for some of the jointly trained models only."""
    for window in windows:
        for contribution in window.fresh[:-1]:
            event = contribution.event
            covered = event.details.get("covered")
            models = event.details.get("models")
            parallel = {m for m, _ in event.details.get("decided") or ()}
            site = -1
            if covered is not None and models is not None and covered[0] is not None and covered[0]:
                if (models & parallel & (ledger.models or models)) - covered[0]:
                    site = covered[1]
            elif covered is None and synchronised(event) == "mixed":
                site = event.details.get("sync_site", -1)
            if site >= 0:
                judgement.violations.append(Violation(
                    "ACC305", site, "only some of the models that are trained together are covered: the others are reduced on every microbatch", {},
                ))  # fmt: skip
                return True
    return False


def _last(window: Window) -> Event | None:
    return window.fresh[-1].event if window.fresh else None


def _never(ledger: Ledger, judgement: Judgement, windows: list[Window], silent: list[Window]) -> None:
    last = _last(silent[0])
    assert last is not None
    site = last.details.get("sync_site", -1)
    site = site if site >= 0 else last.site
    only_tail = all(w.after_loop or w.size != ledger.usual for w in silent) and len(silent) < len(windows)
    if only_tail and silent[0].crosses:
        return
    what = "the short last window steps" if only_tail else "the microbatch before the optimizer step runs"
    marks = "".join("1" if synchronised(c.event) is True else "0" for c in silent[0].fresh)
    judgement.violations.append(Violation(
        "ACC303", site, f"{what} without synchronisation (sync marks {marks}): ranks step on their own gradients and drift apart",
        {"windows": ledger.sizes}, cap=Confidence.CONDITIONAL if only_tail else Confidence.CERTAIN,
        related=[(silent[0].step.site, "the step that uses unreduced gradients")] if silent[0].step is not None else [],
    ))  # fmt: skip


def _misses_forward(ledger: Ledger, judgement: Judgement, windows: list[Window]) -> None:
    quiet_backwards = [c.event for w in windows for c in w.fresh if c.event.details.get("backward_sync") is False]
    quiet_forwards = [c.event for w in windows for c in w.fresh if c.event.details.get("forward_sync") is False]
    if quiet_backwards and not quiet_forwards:
        event = quiet_backwards[0]
        site = event.details.get("sync_site", -1)
        judgement.violations.append(Violation(
            "ACC302", site if site >= 0 else event.site,
            "no_sync() covers only the backward: DDP has decided in the forward, so every microbatch is still reduced",
            {"windows": ledger.sizes}, severity=Severity.WARNING,
        ))  # fmt: skip
    elif not quiet_forwards and "no_sync" not in ledger.trace.traits:
        judgement.applied.add("ACC301")
        event = windows[0].fresh[0].event
        owners = {c.event.details.get("owner") for c in windows[0].fresh} - {None, ""}
        if owners and not (owners == {"fabric"} and "fabric ddp" in ledger.trace.traits):
            return
        judgement.violations.append(Violation(
            "ACC301", event.site,
            f"all {windows[0].size} microbatches of a window are reduced over ranks, the last one would do: the result is right, the communication is not needed",
            {"windows": ledger.sizes},
        ))  # fmt: skip
