"""What the rows establish: one verdict per tier of the plan, each with its reason and its windows.

PASS and FAIL mean that the tier was judged. INCONCLUSIVE: judged, but a known fault would have passed as
well. NOT-DISCRIMINATING: right and wrong formula agree on this data. NOT-RUN: nothing was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Assessment:
    """What one window says about C1, small enough to keep for every window.

    Each fact is None where it was not judged: ``accepted`` by the acceptance expression, ``weights_accepted``
    for measured weights, ``observed_accepted`` for what the run held. The ``naive_...`` ones say whether the
    mean of means would have been accepted as well, and are None where it does not differ.
    """

    index: int
    divided: bool
    undefined: bool = False
    accepted: bool | None = None
    naive_differs: bool = False
    naive_accepted: bool | None = None
    weights_accepted: bool | None = None
    naive_weights_accepted: bool | None = None
    observed_accepted: bool | None = None
    naive_observed_accepted: bool | None = None


def assess(manifest: Manifest, offset: int, s: WindowSums) -> Assessment:
    """The facts of the window at ``offset`` that the verdicts on C1 rest on."""
    if s.window.kind not in (EXECUTED, SKIPPED):
        return Assessment(s.window.index, divided=False)
    tolerances = manifest.document["tolerances"]
    differs = naive_differs(s)
    weights_accepted = naive_weights = observed_accepted = naive_observed = None
    if s.window.kind == EXECUTED:
        weights_accepted, naive_weights = _assess_weights(manifest, s)
        observed_accepted, naive_observed = _assess_observed(manifest, offset, s)
    return Assessment(
        s.window.index,
        divided=True,
        undefined=s.accumulated.loss is None,
        accepted=accept(s.accumulated, s.reference, tolerances),
        naive_differs=differs,
        naive_accepted=accept(s.naive, s.reference, tolerances) if differs and s.naive is not None else None,
        weights_accepted=weights_accepted,
        naive_weights_accepted=naive_weights,
        observed_accepted=observed_accepted,
        naive_observed_accepted=naive_observed,
    )


def _assess_weights(manifest: Manifest, s: WindowSums) -> tuple[bool | None, bool | None]:
    """Measured weights against 1 over the targets of the window, mass against 1; and the naive weights."""
    tolerances = manifest.document["tolerances"]
    by_weight = measured_weights(manifest, s.window)
    if by_weight is None:
        return None, None
    exact = [(to_fraction(weight), count) for weight, count in by_weight.items()]
    mass = sum((weight * count for weight, count in exact), Fraction(0))
    right = abs(mass - 1) <= to_fraction(tolerances["weight"]) and all(
        accept_weight(w, s.targets, tolerances) for w, _ in exact
    )
    naive = s.naive_weights
    if naive is None or naive.smallest is None or naive.largest is None or naive.smallest == naive.largest:
        return right, None
    return right, all(accept_weight(w, s.targets, tolerances) for w in (naive.smallest, naive.largest))


def measured_weights(manifest: Manifest, window: Window) -> dict[Any, int] | None:
    """Valid targets by measured weight in one window; None when a rank recorded no weights."""
    found: dict[Any, int] = {}
    for rows in manifest.ranks:
        if rows.weights is None:
            return None
        for weight, count in zip(rows.weights[window.rows], rows.valid_targets[window.rows]):
            if count:
                found[weight] = found.get(weight, 0) + count
    return found


def _assess_observed(manifest: Manifest, offset: int, s: WindowSums) -> tuple[bool | None, bool | None]:
    """What the run held at the boundary against the full batch; and whether the naive view would pass."""
    given = manifest.document.get("observed", {})
    loss, gradients = given.get("loss"), given.get("gradients")
    tolerances = manifest.document["tolerances"]
    ours: list[bool] = []
    naive: list[bool] = []
    if loss is not None and loss[offset] is not None and s.reference.loss is not None:
        ours.append(accept_scalar(to_fraction(loss[offset]), s.reference.loss, tolerances))
        if s.naive is not None and s.naive.loss is not None and s.naive.loss != s.reference.loss:
            naive.append(accept_scalar(s.naive.loss, s.reference.loss, tolerances))
    if gradients is not None and s.reference.gradients is not None:
        vector = [column[offset] for column in gradients]
        if None not in vector:
            exact = [to_fraction(x) for x in vector]
            ours.append(accept_vector(exact, s.reference.gradients, tolerances))
            if (
                s.naive is not None
                and s.naive.gradients is not None
                and s.naive.gradients != s.reference.gradients
            ):
                naive.append(accept_vector(s.naive.gradients, s.reference.gradients, tolerances))
    return (all(ours) if ours else None), (all(naive) if naive else None)


def arithmetic(manifest: Manifest, facts: Sequence[Assessment]) -> Verdict:
    """The accumulated view against the full batch, in every window that was divided."""
    divided = [f for f in facts if f.divided]
    if not divided:
        return Verdict("arithmetic", NOT_RUN, "no-divided-window")
    undefined = tuple(f.index for f in divided if f.undefined)
    if undefined:
        return Verdict("arithmetic", FAIL, "undefined", undefined)
    beyond = tuple(f.index for f in divided if not f.accepted)
    if beyond:
        return Verdict("arithmetic", FAIL, "beyond-tolerance", beyond)
    telling = [f for f in divided if f.naive_differs]
    if not telling:
        return Verdict("arithmetic", NOT_DISCRIMINATING, "equal-either-way")
    if all(f.naive_accepted for f in telling):  # None: the mean of means is undefined there, which tells
        return Verdict("arithmetic", INCONCLUSIVE, "tolerance-hides-fault")
    if manifest.document["loss_policy"] != "window-targets":
        return Verdict("arithmetic", NOT_DISCRIMINATING, "policy-agrees-here")
    return Verdict("arithmetic", PASS, "within-tolerance")


def naive_differs(sums: WindowSums) -> bool:
    """Whether the mean of means differs at all from the full batch (an undefined one does)."""
    if sums.naive is None:
        return True
    return (sums.naive.loss, sums.naive.gradients) != (sums.reference.loss, sums.reference.gradients)


def _measured(
    tier: str, facts: Sequence[tuple[int, bool | None, bool | None]], right: str, wrong: str
) -> Verdict:
    """The verdict on something measured, from (window, accepted, naive accepted) of every window."""
    judged = [fact for fact in facts if fact[1] is not None]
    if not judged:
        return Verdict(tier, NOT_RUN, "not-recorded")
    bad = tuple(index for index, accepted, _ in judged if not accepted)
    if bad:
        return Verdict(tier, FAIL, wrong, bad)
    telling = [naive for _, _, naive in judged if naive is not None]
    if telling and all(telling):
        return Verdict(tier, INCONCLUSIVE, "tolerance-hides-fault")
    return Verdict(tier, PASS, right)


def weights(facts: Sequence[Assessment]) -> Verdict:
    """Measured weights of all windows."""
    rows = [(f.index, f.weights_accepted, f.naive_weights_accepted) for f in facts]
    return _measured("weights", rows, "weights-equal", "weights-differ")


def observed(facts: Sequence[Assessment]) -> Verdict:
    """What the run held at its update boundaries."""
    rows = [(f.index, f.observed_accepted, f.naive_observed_accepted) for f in facts]
    return _measured("observed", rows, "within-tolerance", "beyond-tolerance")


@dataclass
class Deviations:
    """All deviations of a manifest: the first ones listed, all counted, and the windows they are in, by clock."""

    listed: list[Deviation] = field(default_factory=list)
    counted: int = 0
    windows: dict[str, set[int]] = field(default_factory=dict)

    def affected(self, clocks: Sequence[str]) -> tuple[int, ...]:
        """Windows in which one of these clocks deviates, in order."""
        return tuple(sorted(set().union(*(self.windows.get(clock, ()) for clock in clocks))))


def deviations(manifest: Manifest) -> Deviations:
    """Every recorded clock that differs from the plan: by clock, then rank, then window."""
    plan = expected_clocks(manifest.document)
    found = Deviations()
    for clock in CLOCKS:
        for rows in manifest.ranks:
            column = rows.clocks.get(clock)
            if column is None:
                continue
            for offset, window in enumerate(manifest.windows):
                expected = _expected(plan[window.kind][clock], window, rows, offset)
                if expected is None or column[offset] == expected:
                    continue
                found.counted += 1
                found.windows.setdefault(clock, set()).add(window.index)
                if len(found.listed) < MAX_LISTED_WINDOWS:
                    found.listed.append(Deviation(clock, rows.rank, window.index, expected, column[offset]))
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


def clocks(manifest: Manifest, found: Deviations) -> Verdict:
    """Backward, step, scheduler, scaler, clear and update counter, judged against the plan."""
    names = [name for name in CLOCKS if name not in ("unscale", "clip")]
    if not any(name in rows.clocks for rows in manifest.ranks for name in names):
        return Verdict("clocks", NOT_RUN, "not-recorded")
    wrong = found.affected(names)
    if wrong:
        return Verdict("clocks", FAIL, "clock-deviates", wrong)
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


def precision(manifest: Manifest, found: Deviations) -> Verdict:
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
    wrong = found.affected(("unscale", "clip"))
    if wrong:
        return Verdict("precision", FAIL, "unscale-or-clip-count", wrong)
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


def judge(manifest: Manifest, facts: Sequence[Assessment], found: Deviations) -> tuple[Verdict, ...]:
    """All tiers, in the order of the plan."""
    return (
        arithmetic(manifest, facts),
        weights(facts),
        observed(facts),
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
        None if a is None or r is None else (abs(a - r), abs(a - r) / abs(r) if r else None) for a, r in pairs
    ]
