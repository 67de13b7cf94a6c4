"""What the rows establish: one verdict per tier of the plan, each with its reason and its windows.

PASS and FAIL mean that the tier was judged. INCONCLUSIVE: judged, but a known fault would have passed as
well. NOT-DISCRIMINATING: right and wrong formula agree on this data. NOT-RUN: nothing was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from accumlint.receipt.arithmetic import (
    View,
    WindowSums,
    accept,
    accept_scalar,
    accept_vector,
    accept_weight,
)
from accumlint.receipt.formats import CLOCKS
from accumlint.receipt.limits import MAX_LISTED_WINDOWS
from accumlint.receipt.manifest import CARRIED, DROPPED, EXECUTED, SKIPPED, Manifest, Rows, Window
from accumlint.receipt.numbers import to_fraction
from accumlint.receipt.plan import FREE, IF_BACKWARD, MICROBATCHES, expected_clocks

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
NOT_DISCRIMINATING, NOT_RUN = "NOT-DISCRIMINATING", "NOT-RUN"

# reason code -> sentence; like all texts of a receipt they are fixed
REASONS = {
    "within-tolerance": "every window agrees with the full batch under the acceptance expression",
    "beyond-tolerance": "a window differs from the full batch by more than the acceptance expression allows",
    "undefined": "the loss policy divides by zero in a window: a microbatch or rank has no valid target",
    "equal-either-way": "right formula and mean of means agree exactly on this data, so it can't tell them apart",
    "policy-agrees-here": "the loss policy is not the contract's and agrees with it only because of this data",
    "tolerance-hides-fault": "the tolerance is so wide that the mean of means would be accepted too",
    "no-divided-window": "no window was divided in this segment",
    "not-recorded": "nothing was recorded for this tier",
    "one-rank": "there is one rank only",
    "weights-equal": "every measured weight and the mass of every window are right within the tolerance",
    "weights-differ": "a measured weight, or the mass of a window, is off by more than the tolerance",
    "clocks-agree": "every recorded clock ticks as the plan expects",
    "clock-deviates": "a clock ticks more or less often than the plan expects",
    "decisions-agree": "steps were applied, skipped and left out exactly where they should be",
    "step-despite-nonfinite": "a step was applied although the nonfinite check fired",
    "step-outcome": "a step was skipped or left out where one was due, or taken where none was",
    "synchronised-at-the-end": "communication was off until the final microbatch of each window and on for it",
    "synchronised-early": "communication was also on for earlier microbatches: costly, not wrong",
    "final-not-synchronised": "the final forward or backward of a window ran without communication",
    "precision-in-order": "one loss scale per window, unscaled and clipped as often as the plan expects",
    "scale-changed": "the loss scale changed within a window, so its gradients do not add up",
    "unscale-or-clip-count": "gradients were unscaled or clipped more or less often than the plan expects",
    "tail-disposed": "every short window was disposed of as declared, with its own denominator or none",
    "tail-divided-as-full": "a short window was divided as though it were full",
    "no-tail": "no window is short",
    "ranks-agree": "all ranks agree on membership, final backward, decisions and clocks",
    "ranks-disagree": "ranks differ in what they synchronised, decided or counted",
}

CLAUSES = {
    "arithmetic": "C1",
    "weights": "C1",
    "observed": "C1",
    "clocks": "C2",
    "decisions": "C2",
    "sync": "C3",
    "precision": "C4",
    "tail": "C5",
    "ranks": "C6",
}


@dataclass(frozen=True)
class Verdict:
    """The verdict of one tier; ``windows`` are those that speak for a FAIL (all of them, in order)."""

    tier: str
    verdict: str
    reason: str
    windows: tuple[int, ...] = ()

    def document(self) -> dict[str, Any]:
        return {
            "tier": self.tier,
            "clause": CLAUSES[self.tier],
            "verdict": self.verdict,
            "reason": self.reason,  # the sentence is left to the readers: its wording may improve
            "windows": list(self.windows[:MAX_LISTED_WINDOWS]),
            "windows_affected": len(self.windows),
        }


@dataclass(frozen=True)
class Deviation:
    """A clock that did not tick as the plan expects."""

    clock: str
    rank: int
    window: int
    expected: int
    recorded: int


def arithmetic(manifest: Manifest, sums: Sequence[WindowSums]) -> Verdict:
    """The accumulated view against the full batch, in every window that was divided."""
    tolerances = manifest.document["tolerances"]
    divided = [s for s in sums if s.window.kind in (EXECUTED, SKIPPED)]
    if not divided:
        return Verdict("arithmetic", NOT_RUN, "no-divided-window")
    undefined = tuple(s.window.index for s in divided if s.accumulated.loss is None)
    if undefined:
        return Verdict("arithmetic", FAIL, "undefined", undefined)
    beyond = tuple(
        s.window.index for s in divided if not accept(s.accumulated, s.reference, tolerances)
    )
    if beyond:
        return Verdict("arithmetic", FAIL, "beyond-tolerance", beyond)
    telling = [s for s in divided if naive_differs(s)]
    if not telling:
        return Verdict("arithmetic", NOT_DISCRIMINATING, "equal-either-way")
    if all(s.naive is not None and accept(s.naive, s.reference, tolerances) for s in telling):
        return Verdict("arithmetic", INCONCLUSIVE, "tolerance-hides-fault")
    if manifest.document["loss_policy"] != "window-targets":
        return Verdict("arithmetic", NOT_DISCRIMINATING, "policy-agrees-here")
    return Verdict("arithmetic", PASS, "within-tolerance")


def naive_differs(sums: WindowSums) -> bool:
    """Whether the mean of means differs at all from the full batch (an undefined one does)."""
    if sums.naive is None:
        return True
    return (sums.naive.loss, sums.naive.gradients) != (sums.reference.loss, sums.reference.gradients)


def weights(manifest: Manifest, sums: Sequence[WindowSums]) -> Verdict:
    """Measured weights against 1 over the targets of the window; mass against 1."""
    if any(rows.weights is None for rows in manifest.ranks):
        return Verdict("weights", NOT_RUN, "not-recorded")
    tolerances = manifest.document["tolerances"]
    allowed = to_fraction(tolerances["weight"])
    wrong, judged, telling, hidden = [], 0, 0, 0
    for s in sums:
        if s.window.kind != EXECUTED:
            continue
        judged += 1
        targets_by_weight: dict[Any, int] = {}
        for rows in manifest.ranks:
            part = zip(rows.weights[s.window.rows], rows.valid_targets[s.window.rows])  # type: ignore[index]
            for weight, count in part:
                if count:
                    targets_by_weight[weight] = targets_by_weight.get(weight, 0) + count
        exact = [(to_fraction(weight), count) for weight, count in targets_by_weight.items()]
        mass = sum((weight * count for weight, count in exact), Fraction(0))
        if abs(mass - 1) > allowed or not all(accept_weight(w, s.targets, tolerances) for w, _ in exact):
            wrong.append(s.window.index)
        naive = s.naive_weights
        if naive is not None and naive.smallest != naive.largest:
            telling += 1
            hidden += all(
                accept_weight(w, s.targets, tolerances)
                for w in (naive.smallest, naive.largest)
                if w is not None
            )
    if not judged:
        return Verdict("weights", NOT_RUN, "no-divided-window")
    if wrong:
        return Verdict("weights", FAIL, "weights-differ", tuple(wrong))
    if telling and hidden == telling:
        return Verdict("weights", INCONCLUSIVE, "tolerance-hides-fault")
    return Verdict("weights", PASS, "weights-equal")


def observed(manifest: Manifest, sums: Sequence[WindowSums]) -> Verdict:
    """What the run held at its update boundary, against the full batch of its own numerators."""
    given = manifest.document.get("observed", {})
    loss, gradients = given.get("loss"), given.get("gradients")
    tolerances = manifest.document["tolerances"]
    wrong, judged, telling, hidden = [], 0, 0, 0
    for offset, s in enumerate(sums):
        if s.window.kind != EXECUTED:
            continue
        verdicts: list[bool] = []
        naive: list[bool] = []
        if loss is not None and loss[offset] is not None and s.reference.loss is not None:
            verdicts.append(accept_scalar(to_fraction(loss[offset]), s.reference.loss, tolerances))
            if s.naive is not None and s.naive.loss is not None and s.naive.loss != s.reference.loss:
                naive.append(accept_scalar(s.naive.loss, s.reference.loss, tolerances))
        if gradients is not None and s.reference.gradients is not None:
            vector = [column[offset] for column in gradients]
            if None not in vector:
                exact = [to_fraction(x) for x in vector]
                verdicts.append(accept_vector(exact, s.reference.gradients, tolerances))
                if s.naive is not None and s.naive.gradients not in (None, s.reference.gradients):
                    naive.append(accept_vector(s.naive.gradients, s.reference.gradients, tolerances))  # type: ignore[arg-type]
        if verdicts:
            judged += 1
            if not all(verdicts):
                wrong.append(s.window.index)
        if naive:
            telling += 1
            hidden += all(naive)
    if not judged:
        return Verdict("observed", NOT_RUN, "not-recorded")
    if wrong:
        return Verdict("observed", FAIL, "beyond-tolerance", tuple(wrong))
    if telling and hidden == telling:
        return Verdict("observed", INCONCLUSIVE, "tolerance-hides-fault")
    return Verdict("observed", PASS, "within-tolerance")


def deviations(manifest: Manifest) -> list[Deviation]:
    """Every recorded clock that differs from the plan: by clock, then rank, then window."""
    plan = expected_clocks(manifest.document)
    found = []
    for clock in CLOCKS:
        for rows in manifest.ranks:
            column = rows.clocks.get(clock)
            if column is None:
                continue
            for offset, window in enumerate(manifest.windows):
                expected = _expected(plan[window.kind][clock], window, rows, offset)
                if expected is not None and column[offset] != expected:
                    found.append(Deviation(clock, rows.rank, window.index, expected, column[offset]))
    return found


def _expected(rule: int | str, window: Window, rows: Rows, offset: int) -> int | None:
    if rule == FREE:
        return None
    if rule == MICROBATCHES:
        return window.own
    if rule == IF_BACKWARD:
        backward = rows.clocks.get("backward")
        return None if backward is None else int(backward[offset] > 0)
    return int(rule)


def clocks(manifest: Manifest, found: Sequence[Deviation]) -> Verdict:
    """Backward, step, scheduler, scaler, clear and update counter, judged against the plan."""
    names = [name for name in CLOCKS if name not in ("unscale", "clip")]
    if not any(name in rows.clocks for rows in manifest.ranks for name in names):
        return Verdict("clocks", NOT_RUN, "not-recorded")
    wrong = sorted({d.window for d in found if d.clock in names})
    if wrong:
        return Verdict("clocks", FAIL, "clock-deviates", tuple(wrong))
    return Verdict("clocks", PASS, "clocks-agree")


_OUTCOME = {EXECUTED: "applied", SKIPPED: "skipped", CARRIED: "none", DROPPED: "none"}


def decisions(manifest: Manifest) -> Verdict:
    """Nonfinite checks and step outcomes: applied, skipped and left out where they should be."""
    despite, other, judged = set(), set(), False
    for rows in manifest.ranks:
        if rows.step is None:
            continue
        judged = True
        for offset, window in enumerate(manifest.windows):
            outcome = rows.step[offset]
            fired = rows.nonfinite is not None and rows.nonfinite[offset]
            if fired and outcome == "applied":
                despite.add(window.index)
            elif outcome != _OUTCOME[window.kind]:
                other.add(window.index)
    if not judged:
        return Verdict("decisions", NOT_RUN, "not-recorded")
    if despite:
        return Verdict("decisions", FAIL, "step-despite-nonfinite", tuple(sorted(despite)))
    if other:
        return Verdict("decisions", FAIL, "step-outcome", tuple(sorted(other)))
    return Verdict("decisions", PASS, "decisions-agree")


def sync(manifest: Manifest) -> Verdict:
    """Communication: on for the final microbatch of a window, off before."""
    recorded = [rows for rows in manifest.ranks if rows.sync_forward is not None]
    if not recorded:
        one = manifest.document["world_size"] == 1
        return Verdict("sync", NOT_RUN, "one-rank" if one else "not-recorded")
    missing, early = set(), set()
    for rows in recorded:
        forward, backward = rows.sync_forward, rows.sync_backward
        for window in manifest.windows:
            last = window.start + window.size - 1
            ends = window.kind in (EXECUTED, SKIPPED)
            if ends and not (forward[last] and backward[last]):  # type: ignore[index]
                missing.add(window.index)
            others = slice(window.start, last if ends else last + 1)
            if any(forward[others]) or any(backward[others]):  # type: ignore[index]
                early.add(window.index)
    if missing:
        return Verdict("sync", FAIL, "final-not-synchronised", tuple(sorted(missing)))
    if early:
        return Verdict("sync", PASS, "synchronised-early", tuple(sorted(early)))
    return Verdict("sync", PASS, "synchronised-at-the-end")


def precision(manifest: Manifest, found: Sequence[Deviation]) -> Verdict:
    """One loss scale per window over all ranks; unscale and clip as often as the plan expects."""
    scales = [rows.loss_scales for rows in manifest.ranks]
    counted = any(name in rows.clocks for rows in manifest.ranks for name in ("unscale", "clip"))
    if None in scales and not counted:
        return Verdict("precision", NOT_RUN, "not-recorded")
    if None not in scales:
        changed = tuple(
            window.index
            for window in manifest.windows
            if len({scale for column in scales for scale in column[window.rows]}) > 1  # type: ignore[index]
        )
        if changed:
            return Verdict("precision", FAIL, "scale-changed", changed)
    wrong = sorted({d.window for d in found if d.clock in ("unscale", "clip")})
    if wrong:
        return Verdict("precision", FAIL, "unscale-or-clip-count", tuple(wrong))
    return Verdict("precision", PASS, "precision-in-order")


def tail(manifest: Manifest) -> Verdict:
    """Short windows: flushed with their own denominator, carried, or dropped; never divided as full."""
    short = [window for window in manifest.windows if window.short]
    if not short:
        return Verdict("tail", NOT_RUN, "no-tail")
    if manifest.document["loss_policy"] == "microbatch-mean-fixed":
        wrong = tuple(window.index for window in short if window.kind in (EXECUTED, SKIPPED))
        if wrong:
            return Verdict("tail", FAIL, "tail-divided-as-full", wrong)
    return Verdict("tail", PASS, "tail-disposed")


def ranks(manifest: Manifest) -> Verdict:
    """All ranks agree on communication, decisions and clocks (membership agreed before arithmetic began)."""
    if len(manifest.ranks) == 1:
        return Verdict("ranks", NOT_RUN, "one-rank")
    by_microbatch: list[Callable[[Rows], Any]] = [lambda r: r.sync_forward, lambda r: r.sync_backward]
    by_window: list[Callable[[Rows], Any]] = [lambda r: r.nonfinite, lambda r: r.step]
    by_window += [lambda r, name=name: r.clocks.get(name) for name in CLOCKS]  # type: ignore[misc]
    first, wrong = manifest.ranks[0], set()
    for rows in manifest.ranks[1:]:
        for per_microbatch, columns in ((True, by_microbatch), (False, by_window)):
            for column in columns:
                ours, theirs = column(first), column(rows)
                if ours == theirs:
                    continue
                for offset, window in enumerate(manifest.windows):
                    at = window.rows if per_microbatch else slice(offset, offset + 1)
                    if ours is None or theirs is None or ours[at] != theirs[at]:
                        wrong.add(window.index)
    if wrong:
        return Verdict("ranks", FAIL, "ranks-disagree", tuple(sorted(wrong)))
    return Verdict("ranks", PASS, "ranks-agree")


def judge(manifest: Manifest, sums: Sequence[WindowSums], found: Sequence[Deviation]) -> tuple[Verdict, ...]:
    """All tiers, in the order of the plan."""
    return (
        arithmetic(manifest, sums),
        weights(manifest, sums),
        observed(manifest, sums),
        clocks(manifest, found),
        decisions(manifest),
        sync(manifest),
        precision(manifest, found),
        tail(manifest),
        ranks(manifest),
    )


def overall(verdicts: Sequence[Verdict]) -> str:
    """One word for a receipt: the gravest verdict. A tier that was not run neither helps nor harms."""
    words = {v.verdict for v in verdicts}
    for word in (FAIL, INCONCLUSIVE, NOT_DISCRIMINATING, PASS):
        if word in words:
            return word
    return NOT_RUN


def view_delta(view: View | None, reference: View) -> list[tuple[Fraction, Fraction | None] | None]:
    """(absolute, relative) delta of the loss, then of each gradient component; relative is None at zero."""
    if view is None:
        return [None]
    pairs: list[tuple[Fraction | None, Fraction | None]] = [(view.loss, reference.loss)]
    if view.gradients is not None and reference.gradients is not None:
        pairs += list(zip(view.gradients, reference.gradients))
    return [
        None if a is None or r is None else (abs(a - r), abs(a - r) / abs(r) if r else None)
        for a, r in pairs
    ]
