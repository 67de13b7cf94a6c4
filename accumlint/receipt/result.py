"""The result part of a receipt: everything that follows from a manifest, as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from accumlint.receipt.arithmetic import View, Weights, WindowSums, accept, microbatch_weight, window_sums
from accumlint.receipt.formats import CLOCKS
from accumlint.receipt.limits import MAX_LISTED_WEIGHTS, MAX_LISTED_WINDOWS
from accumlint.receipt.manifest import CARRIED, DROPPED, EXECUTED, Manifest, Window
from accumlint.receipt.numbers import exact, to_fraction
from accumlint.receipt.verdicts import NOT_RUN, Deviation, deviations, judge, naive_differs, overall, view_delta

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


def compute(manifest: Manifest, manifest_sha256: str, plan_sha256: str) -> dict[str, Any]:
    """The result part. It embeds the hashes of manifest and plan, so that it belongs to no others."""
    sums = [window_sums(manifest, window) for window in manifest.windows]
    found = deviations(manifest)
    verdicts = judge(manifest, sums, found)
    listed = manifest.size <= MAX_LISTED_WEIGHTS
    return {
        "manifest_sha256": manifest_sha256,
        "plan_sha256": plan_sha256,
        "verdict": overall(verdicts),
        "verdicts": [v.document() for v in verdicts],
        "not_run": [
            {"tier": v.tier, "reason": v.reason} for v in verdicts if v.verdict == NOT_RUN
        ],
        "clocks_not_recorded": [
            name for name in CLOCKS if any(name not in rows.clocks for rows in manifest.ranks)
        ],
        "limitations": limitations(manifest),
        "totals": _totals(manifest, sums),
        "windows": [_window(manifest, s, listed) for s in sums],
        "tail": _tail(manifest, sums),
        "clocks": _clocks(manifest, found),
        "clipping": _clipping(manifest),
    }


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
    if any(rows.weights is None for rows in manifest.ranks):
        return None
    targets_by_weight: dict[Any, int] = {}
    for rows in manifest.ranks:
        for weight, count in zip(rows.weights[window.rows], rows.valid_targets[window.rows]):  # type: ignore[index]
            if count:
                targets_by_weight[weight] = targets_by_weight.get(weight, 0) + count
    if not targets_by_weight:
        return None
    values = [(to_fraction(weight), count) for weight, count in targets_by_weight.items()]
    mass = sum((weight * count for weight, count in values), Fraction(0))
    only = [weight for weight, _ in values]
    return _weight_summary(Weights(min(only), max(only), mass))


def _totals(manifest: Manifest, sums: Sequence[WindowSums]) -> dict[str, Any]:
    """Sums over all windows of the segment, and the largest deltas met in one."""
    targets = sum(s.targets for s in sums)
    loss = sum((s.loss for s in sums), Fraction(0))
    gradients: list[Fraction] | None = None
    if all(s.gradients is not None for s in sums):
        gradients = [
            sum((s.gradients[c] for s in sums), Fraction(0))  # type: ignore[index]
            for c in range(manifest.components)
        ]
    before = manifest.document.get("continues", {}).get("before", {"backward": 0, "updates": 0})
    return {
        "ranks": len(manifest.ranks),
        "microbatches": manifest.size,
        "gradient_components": manifest.components,
        "windows": len(sums),
        "window_sizes": _runs([w.size for w in manifest.windows]),
        "windows_by_kind": {
            kind: sum(w.kind == kind for w in manifest.windows)
            for kind in ("executed", "skipped", "carried", "dropped")
        },
        "valid_targets": targets,
        "loss_numerator": exact(loss),
        "gradient_numerators": _vector(gradients),
        "loss": exact(loss / targets) if targets else None,
        "largest_accumulated_loss_delta": _largest(sums, "accumulated"),
        "largest_naive_loss_delta": _largest(sums, "naive"),
        "backward_index": before["backward"] + sum(w.own for w in manifest.windows),
        "update_index": before["updates"] + sum(w.kind == EXECUTED for w in manifest.windows),
    }


def _largest(sums: Sequence[WindowSums], name: str) -> dict[str, Any] | None:
    deltas = [view_delta(getattr(s, name), s.reference)[0] for s in sums]
    return _delta(max((d for d in deltas if d is not None), key=lambda d: d[0], default=None))


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


def _tail(manifest: Manifest, sums: Sequence[WindowSums]) -> dict[str, Any]:
    """What became of every short window: its members, targets and, if carried, the state to resume from."""
    dispositions = []
    pending = None
    for s in sums:
        if not s.window.short:
            continue
        kind = s.window.kind
        dispositions.append(
            {
                "window": s.window.index,
                "disposition": {CARRIED: "carry", DROPPED: "drop"}.get(kind, "flush"),
                "microbatches_per_rank": s.window.size,
                "valid_targets": s.targets,
                "members": _members(manifest, s.window),
            }
        )
        if kind == CARRIED:
            pending = {
                "window": s.window.index,
                "backward": s.window.size,
                "valid_targets": s.targets,
                "loss_numerator": exact(s.loss),
                "gradient_numerators": _vector(s.gradients),
                "random_state_sha256": manifest.document["random_state"]["boundary_sha256"],
                "members": _members(manifest, s.window),
            }
    return {"policy": manifest.document["tail_policy"], "windows": dispositions, "pending": pending}


def _clocks(manifest: Manifest, found: Sequence[Deviation]) -> dict[str, Any]:
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
            for d in found[:MAX_LISTED_WINDOWS]
        ],
        "deviations_counted": len(found),
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
