"""The result part of a receipt: everything that follows from a manifest, as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from accumlint.receipt.arithmetic import View, Weights, WindowSums, accept, microbatch_weight, window_sums
from accumlint.receipt.canonical import canonical_bytes
from accumlint.receipt.formats import CLOCKS
from accumlint.receipt.limits import MAX_LISTED_WEIGHTS
from accumlint.receipt.manifest import CARRIED, DROPPED, EXECUTED, SKIPPED, Manifest, Window
from accumlint.receipt.numbers import exact, to_fraction
from accumlint.receipt.verdicts import (
    NOT_RUN,
    Assessment,
    Deviations,
    assess,
    deviations,
    judge,
    measured_weights,
    naive_differs,
    overall,
    view_delta,
)

# code -> sentence: what a receipt does not say. The first six stand in every receipt. Receipts hold the codes;
# sentences are for their readers, so that better wording never breaks an old receipt.
LIMITATIONS = {
    "necessary-not-sufficient": "arithmetic agreement is necessary for equivalence with the large batch, not sufficient",
    "no-autograd": "building this receipt ran no forward and no backward",
    "no-collective": "building this receipt ran no collective between ranks",
    "no-amp-kernel": "building this receipt ran no mixed-precision kernel",
    "no-optimizer": "building this receipt ran no optimizer update",
    "no-throughput-or-convergence": "nothing here speaks about speed, memory, convergence or quality",
    "recorded-not-rerun": "the rows were recorded by a run; the receipt re-derives what follows from them and does not repeat it",
    "substituted": "parts of the recorded run were replaced by small ones",
    "low-precision-accumulation": "with this many accumulation steps the rounding of gradients in this type has no useful bound",
    "ids-not-compared-across-segments": "ids are synthetic, so a microbatch that also ran in an earlier segment would not be noticed",
    "loss-only": "no gradient numerators were given; losses alone don't show what the gradients were divided by",
}

# accumulation steps from which the bound n*u/(1-n*u) on an n-term sum is void, u the unit roundoff
_VOID_FROM = {"bfloat16": 257, "float16": 2049, "float8": 9}


def compute(manifest: Manifest, manifest_sha256: str, plan_sha256: str) -> tuple[str, list[bytes]]:
    """The overall verdict, and the canonical bytes of the result part in pieces to be joined.

    The result embeds the hashes of manifest and plan, so that it belongs to no others. Windows are summed,
    judged and encoded one after the other: exact sums are heavy, and a segment may have tens of thousands.
    """
    listed = manifest.size <= MAX_LISTED_WEIGHTS
    facts: list[Assessment] = []
    encoded: list[bytes] = []
    totals = _Totals(manifest)
    tail = _Tail(manifest)
    for offset, window in enumerate(manifest.windows):
        s = window_sums(manifest, window)
        facts.append(assess(manifest, offset, s))
        piece = canonical_bytes(_window(manifest, s, listed))
        encoded.append(b"," + piece if encoded else piece)
        totals.add(s)
        tail.add(s)
    found = deviations(manifest)
    verdicts = judge(manifest, facts, found)
    verdict = overall(verdicts)
    head = {
        "manifest_sha256": manifest_sha256,
        "plan_sha256": plan_sha256,
        "verdict": verdict,
        "verdicts": [v.document() for v in verdicts],
        "not_run": [{"tier": v.tier, "reason": v.reason} for v in verdicts if v.verdict == NOT_RUN],
        "clocks_not_recorded": [
            name for name in CLOCKS if any(name not in rows.clocks for rows in manifest.ranks)
        ],
        "limitations": limitations(manifest),
        "totals": totals.document(),
        "tail": tail.document(),
        "clocks": _clocks(manifest, found),
        "clipping": _clipping(manifest),
    }
    # "windows" sorts after all other keys, so its canonical place is the end
    return verdict, [canonical_bytes(head)[:-1] + b',"windows":[', *encoded, b"]}"]


def limitations(manifest: Manifest) -> list[str]:
    """Codes of what this receipt does not say."""
    document = manifest.document
    codes = list(LIMITATIONS)[:6]
    if document["origin"] == "recorded":
        codes.append("recorded-not-rerun")
    if document.get("substitutions"):
        codes.append("substituted")
    steps = document["accumulation_steps"]
    if steps >= _VOID_FROM.get(document["precision"]["gradient"], steps + 1):
        codes.append("low-precision-accumulation")
    if "continues" in document:
        codes.append("ids-not-compared-across-segments")
    if manifest.components == 0:
        codes.append("loss-only")
    return codes


def _vector(values: Sequence[Fraction] | None) -> list[Any] | None:
    return None if values is None else [exact(value) for value in values]


def _view(view: View | None, reference: View | None, tolerances: Any) -> dict[str, Any] | None:
    if view is None:
        return None
    made: dict[str, Any] = {"loss": exact(view.loss), "gradients": _vector(view.gradients)}
    if reference is not None:
        deltas = view_delta(view, reference)
        made["loss_delta"] = _delta(deltas[0])
        made["gradient_deltas"] = None if view.gradients is None else [_delta(d) for d in deltas[1:]]
        made["accepted"] = accept(view, reference, tolerances)
    return made


def _delta(pair: tuple[Fraction, Fraction | None] | None) -> dict[str, Any] | None:
    return None if pair is None else {"absolute": exact(pair[0]), "relative": exact(pair[1])}


def _weight_summary(weights: Weights | None) -> dict[str, Any] | None:
    if weights is None:
        return None
    return {
        "smallest": exact(weights.smallest),
        "largest": exact(weights.largest),
        "mass": exact(weights.mass),
        "uniform": weights.smallest == weights.largest,
    }


def _window(manifest: Manifest, s: WindowSums, listed: bool) -> dict[str, Any]:
    tolerances, window = manifest.document["tolerances"], s.window
    made = {
        "window": window.index,
        "kind": window.kind,
        "short": window.short,
        "microbatches_per_rank": window.size,
        "carried_in_per_rank": window.size - window.own,
        "first_microbatch": manifest.ranks[0].first_id + window.start,
        "valid_targets": s.targets,
        "valid_targets_by_rank": [sum(rows.valid_targets[window.rows]) for rows in manifest.ranks],
        "loss_numerator": exact(s.loss),
        "gradient_numerators": _vector(s.gradients),
        "reference": _view(s.reference, None, tolerances),
        "accumulated": _view(s.accumulated, s.reference, tolerances),
        "naive": _view(s.naive, s.reference, tolerances),
        "discriminating": naive_differs(s),
        "weights": {
            "accumulated": _weight_summary(s.accumulated_weights),
            "naive": _weight_summary(s.naive_weights),
            "measured": _measured_weights(manifest, window),
        },
    }
    if listed:
        made["weights"]["listed"] = [
            {
                "id": rows.microbatch_id(position),
                "valid_targets": rows.valid_targets[position],
                "accumulated": exact(microbatch_weight(manifest, window, rows, position)),
                "naive": exact(microbatch_weight(manifest, window, rows, position, naive=True)),
                "measured": exact(to_fraction(rows.weights[position])) if rows.weights is not None else None,
            }
            for rows in manifest.ranks
            for position in range(window.start, window.start + window.size)
        ]
    return made


def _measured_weights(manifest: Manifest, window: Window) -> dict[str, Any] | None:
    """Extremes and mass of the weights that the run measured, over microbatches with targets."""
    by_weight = measured_weights(manifest, window)
    if not by_weight:
        return None
    values = [(to_fraction(weight), count) for weight, count in by_weight.items()]
    mass = sum((weight * count for weight, count in values), Fraction(0))
    only = [weight for weight, _ in values]
    return _weight_summary(Weights(min(only), max(only), mass))


class _Totals:
    """Sums over all windows of the segment, and the largest deltas met in one."""

    def __init__(self, manifest: Manifest):
        self.manifest = manifest
        self.targets, self.loss = 0, Fraction(0)
        self.gradients: list[Fraction] | None = [Fraction(0)] * manifest.components
        self.largest: dict[str, tuple[Fraction, Fraction | None] | None] = {
            "accumulated": None,
            "naive": None,
        }

    def add(self, s: WindowSums) -> None:
        self.targets += s.targets
        self.loss += s.loss
        if s.gradients is None or self.gradients is None:
            self.gradients = None
        else:
            self.gradients = [total + x for total, x in zip(self.gradients, s.gradients)]
        for name, view in (("accumulated", s.accumulated), ("naive", s.naive)):
            delta, known = view_delta(view, s.reference)[0], self.largest[name]
            if delta is not None and (known is None or delta[0] > known[0]):
                self.largest[name] = delta

    def document(self) -> dict[str, Any]:
        windows = self.manifest.windows
        before = self.manifest.document.get("continues", {}).get("before", {"backward": 0, "updates": 0})
        return {
            "ranks": len(self.manifest.ranks),
            "microbatches": self.manifest.size,
            "gradient_components": self.manifest.components,
            "windows": len(windows),
            "window_sizes": _runs([w.size for w in windows]),
            "windows_by_kind": {
                kind: sum(w.kind == kind for w in windows) for kind in (EXECUTED, SKIPPED, CARRIED, DROPPED)
            },
            "valid_targets": self.targets,
            "loss_numerator": exact(self.loss),
            "gradient_numerators": _vector(self.gradients),
            "loss": exact(self.loss / self.targets) if self.targets else None,
            "largest_accumulated_loss_delta": _delta(self.largest["accumulated"]),
            "largest_naive_loss_delta": _delta(self.largest["naive"]),
            "backward_index": before["backward"] + sum(w.own for w in windows),
            "update_index": before["updates"] + sum(w.kind == EXECUTED for w in windows),
        }


def _runs(sizes: Sequence[int]) -> list[list[int]]:
    """Run lengths, [size, how many in a row]: [3, 3, 1] is [[3, 2], [1, 1]]."""
    runs: list[list[int]] = []
    for size in sizes:
        if runs and runs[-1][0] == size:
            runs[-1][1] += 1
        else:
            runs.append([size, 1])
    return runs


def _members(manifest: Manifest, window: Window) -> list[dict[str, Any]]:
    last = window.start + window.size - 1
    return [
        {
            "rank": rows.rank,
            "first": rows.microbatch_id(window.start),
            "last": rows.microbatch_id(last),
            "count": window.size,
        }
        for rows in manifest.ranks
    ]


class _Tail:
    """What became of every short window: its members, targets and, if carried, the state to resume from."""

    def __init__(self, manifest: Manifest):
        self.manifest = manifest
        self.dispositions: list[dict[str, Any]] = []
        self.pending: dict[str, Any] | None = None

    def add(self, s: WindowSums) -> None:
        if not s.window.short:
            return
        members = _members(self.manifest, s.window)
        self.dispositions.append(
            {
                "window": s.window.index,
                "disposition": {CARRIED: "carry", DROPPED: "drop"}.get(s.window.kind, "flush"),
                "microbatches_per_rank": s.window.size,
                "valid_targets": s.targets,
                "members": members,
            }
        )
        if s.window.kind == CARRIED:
            self.pending = {
                "window": s.window.index,
                "backward": s.window.size,
                "valid_targets": s.targets,
                "loss_numerator": exact(s.loss),
                "gradient_numerators": _vector(s.gradients),
                "random_state_sha256": self.manifest.document["random_state"]["boundary_sha256"],
                "members": members,
            }

    def document(self) -> dict[str, Any]:
        policy = self.manifest.document["tail_policy"]
        return {"policy": policy, "windows": self.dispositions, "pending": self.pending}


def _clocks(manifest: Manifest, found: Deviations) -> dict[str, Any]:
    return {
        "totals_by_rank": {
            name: [sum(rows.clocks[name]) if name in rows.clocks else None for rows in manifest.ranks]
            for name in CLOCKS
        },
        "deviations": [
            {
                "clock": d.clock,
                "rank": d.rank,
                "window": d.window,
                "expected": d.expected,
                "recorded": d.recorded,
            }
            for d in found.listed
        ],
        "deviations_counted": found.counted,
        "nonfinite_windows_by_rank": [
            None if rows.nonfinite is None else sum(rows.nonfinite) for rows in manifest.ranks
        ],
        "steps_by_rank": [
            None
            if rows.step is None
            else {word: list(rows.step).count(word) for word in ("applied", "skipped", "none")}
            for rows in manifest.ranks
        ],
    }


def _clipping(manifest: Manifest) -> dict[str, Any] | None:
    """How often the recorded norm exceeded the threshold: a fact, no judgement of the threshold."""
    clipping = manifest.document["clipping"]
    if clipping is None:
        return None
    threshold = to_fraction(clipping["max_norm"])
    above: list[int | None] = []
    for rows in manifest.ranks:
        norms = rows.clip_norms
        above.append(
            None if norms is None else sum(n is not None and to_fraction(n) > threshold for n in norms)
        )
    return {"max_norm": exact(threshold), "norm": clipping["norm"], "windows_above_by_rank": above}
