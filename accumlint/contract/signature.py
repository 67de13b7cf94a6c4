"""What each window's targets weigh, beside what the contract would give them: a ledger as plain data for pictures."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from accumlint.contract import weights
from accumlint.contract.timeline import SHOWN_WINDOWS
from accumlint.contract.windows import Ledger, Window

LOOKED_AT = 60  # windows among which one that is off is looked for


def signature(ledger: Ledger) -> dict[str, Any]:
    """The weights of the first windows of a ledger, and of the first one that is off where those are right.

    ``ranks``: how many of them speak (1 where the script is one process). Each window has its ``number`` from 1, its ``verdict`` (see
    :class:`~accumlint.contract.weights.Verdict`), ``factor`` (weight × N as decimal text, where it is the same for
    all), ``reason`` (why weights are unknown), ``total`` (N: valid targets of the window, over all ranks),
    ``stale`` (earlier microbatches whose gradient was never cleared) and its ``microbatches``: ``index`` from 0 and
    one entry per rank with ``valid_targets``, ``weight`` (decimal text, None where unknown) and ``right``
    (``1 / N``).
    """
    windows = [_window(ledger, window) for window in ledger.windows[:SHOWN_WINDOWS]]
    if not any(map(_off, windows)):
        later = (_window(ledger, window) for window in ledger.windows[SHOWN_WINDOWS:LOOKED_AT])
        windows += [window for window in later if _off(window)][:1]
    ranks = max((len(each["ranks"]) for window in windows for each in window["microbatches"]), default=1)
    return {"ranks": ranks, "windows": windows}


def _off(window: dict[str, Any]) -> bool:
    """Some target is known to weigh something else than is right, or an old gradient is mixed in."""
    shares = [share for row in window["microbatches"] for share in row["ranks"]]
    return bool(window["stale"]) or any(
        share["weight"] is not None and share["weight"] != share["right"] for share in shares
    )


def _window(ledger: Ledger, window: Window) -> dict[str, Any]:
    verdict = weights.judge(window, ledger.trace)
    by_microbatch: dict[int, weights.Share] = {}
    for share in verdict.shares:
        held = by_microbatch.get(share.microbatch)
        if held is None or held.weight is None:
            by_microbatch[share.microbatch] = share
    counts = {microbatch: share.count for microbatch, share in by_microbatch.items()}
    width = max((len(count) for count in counts.values()), default=1)
    for contribution, _ in window.erased:  # their targets belong to the window, and weigh nothing
        microbatch = contribution.event.microbatch
        parts = contribution.event.details["parts"]
        if microbatch not in counts and parts:
            usual = (Fraction(8),) * width
            count = ledger.trace.counts.get((parts[0].batch, parts[0].basis), usual)
            counts[microbatch] = tuple(Fraction(value) for value in count[:width])
    total = sum((value for count in counts.values() for value in count), Fraction(0))
    right = weights.as_text(1 / total) if total else None
    rows = []
    for microbatch in sorted(counts):
        found = by_microbatch.get(microbatch)
        rows.append({
            "index": microbatch,
            "ranks": [
                {"valid_targets": str(count), "weight": _weight(found, rank), "right": right}
                for rank, count in enumerate(counts[microbatch])
            ],
        })  # fmt: skip
    return {
        "number": window.index + 1,
        "verdict": verdict.kind,
        "factor": weights.as_text(verdict.factor) if verdict.factor is not None else None,
        "reason": verdict.reason,
        "total": str(total),
        "stale": len({contribution.event.microbatch for contribution in window.stale}),
        "microbatches": rows,
    }


def _weight(share: weights.Share | None, rank: int) -> str | None:
    if share is None:
        return "0"  # erased before the step
    if share.weight is None:
        return None
    return weights.as_text(share.weight[min(rank, len(share.weight) - 1)])
