"""A ledger as plain data for pictures: windows of microbatches, with what happened at each."""

from __future__ import annotations

from typing import Any

from accumlint.contract import weights
from accumlint.contract.clauses.c3_sync import synchronised
from accumlint.contract.events import Event, Kind
from accumlint.contract.windows import Ledger, Window

_LANES = {
    Kind.UNSCALE: "unscale", Kind.CLIP: "clip", Kind.STEP: "step", Kind.SCHEDULE: "scheduler", Kind.SCALER_UPDATE: "scaler",
    Kind.CLEAR: "clear", Kind.AVERAGE: "ema", Kind.CHECKPOINT: "checkpoint",
}  # fmt: skip
SHOWN_WINDOWS = 5


def timeline(ledger: Ledger, odd: bool = False) -> dict[str, Any]:
    """The first windows of a ledger; ``pending`` counts microbatches that never reached a step.

    ``odd``: where all of them have the usual size, the last one gives way to the first window that has another;
    every window then has its ``number``.
    """
    chosen = ledger.windows[:SHOWN_WINDOWS]
    if odd and all(window.size == ledger.usual for window in chosen):
        later = [window for window in ledger.windows[SHOWN_WINDOWS:] if window.size != ledger.usual]
        chosen = [*chosen[:-1], later[0]] if later else chosen
    windows = [_window(ledger, window) for window in chosen]
    _move_late_events(ledger, chosen, windows)
    if odd:
        windows = [{"number": window.index + 1, **shown} for window, shown in zip(chosen, windows)]
    return {"k": ledger.trace.window, "windows": windows, "pending": ledger.pending.size, "note": _note(ledger)}


def first_sites(ledger: Ledger) -> dict[str, int]:
    """Lane -> site of the first event that :func:`timeline` draws in it, with ``backward`` among the lanes."""
    sites: dict[str, int] = {}
    for window in (*ledger.windows[:SHOWN_WINDOWS], ledger.pending):
        for event in window.events:
            lane = "backward" if event.kind is Kind.BACKWARD else _LANES.get(event.kind)
            if lane is not None:
                sites.setdefault(lane, event.site)
    return sites


def _note(ledger: Ledger) -> str:
    hidden = len(ledger.windows) - SHOWN_WINDOWS
    return f"{hidden} more window{'s' if hidden > 1 else ''}" if hidden > 0 else ""


def _window(ledger: Ledger, window: Window) -> dict[str, Any]:
    shares: dict[int, tuple[int, str | None]] = {}
    for share in weights.shares(window, ledger.trace):
        shown = weights.as_text(share.weight[0]) if share.weight is not None and not share.symbols else None
        if share.microbatch not in shares or shares[share.microbatch][1] is None:
            shares[share.microbatch] = (int(share.count[0]), shown)
    rows: dict[int, dict[str, Any]] = {}
    closing: list[str] = []
    last = window.microbatches[-1] if window.microbatches else None
    step_seen = False
    for event in window.events:
        if event.kind is Kind.BACKWARD:
            row = rows.setdefault(event.microbatch, _row(event))
            row["backward"] = True
            if row["sync"] is None:
                row["sync"] = synchronised(event)
            targets = shares.get(event.microbatch)
            if targets is not None:
                row["valid_targets"], row["weight"] = targets
        elif event.kind in _LANES:
            name = _LANES[event.kind]
            if event.kind is Kind.CLIP and event.details.get("measures_only"):
                continue
            if event.microbatch in rows and event.microbatch != last:
                rows[event.microbatch]["events"].append(name)
            elif event.microbatch == last and rows.get(event.microbatch, {}).get("backward"):
                closing.append(name)
            elif event.microbatch not in rows and event.microbatch in window.microbatches:
                rows[event.microbatch] = _row(event)
                rows[event.microbatch]["events"].append(name)
            step_seen |= event.kind is Kind.STEP
    return {
        "microbatches": [rows[m] for m in sorted(rows)], "events": closing if step_seen else closing,
        "tail": bool(window.size and window.size < ledger.usual),
    }  # fmt: skip


def _row(event: Event) -> dict[str, Any]:
    return {"index": event.microbatch, "epoch": event.epoch, "forward": True, "backward": False, "sync": None, "valid_targets": None, "weight": None, "events": []}


def _move_late_events(ledger: Ledger, chosen: list[Window], windows: list[dict[str, Any]]) -> None:
    """What stands after the step but still on its microbatch (a clear, a schedule step) belongs to that boundary."""
    for source, shown in zip(chosen, windows):
        if not source.microbatches:
            continue
        last = source.microbatches[-1]
        following = ledger.windows[source.index + 1] if source.index + 1 < len(ledger.windows) else ledger.pending
        for event in following.events:
            if event.kind is Kind.BACKWARD:
                break
            if event.kind in _LANES and event.microbatch == last and event.kind is not Kind.CLIP:
                shown["events"].append(_LANES[event.kind])
