"""The plan: formula, tolerances and expected clocks, fixed before a run and hashed.

It depends on the settings of a manifest only, never on its rows: :func:`plan_hash` can be taken before the
first microbatch, written into the manifest as ``plan_sha256``, and afterwards no tolerance can be tuned.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from accumlint.receipt.canonical import canonical_bytes, domain_hash
from accumlint.receipt.formats import FORMULA, PLAN_SCHEMA, SETTINGS
from accumlint.receipt.manifest import settings_normal_form
from accumlint.receipt.problems import ProblemLog, Rejected
from accumlint.receipt.shape import Record

# The expressions that are evaluated, letter by letter (a test evaluates these texts and compares).
ACCEPT_SCALAR = "abs(accumulated - reference) <= absolute + relative * abs(reference)"
ACCEPT_VECTOR = (
    "max(abs(a - r) for a, r in zip(accumulated, reference))"
    " <= absolute + relative * max(abs(r) for r in reference)"
)
ACCEPT_WEIGHT = "abs(weight * window_targets - 1) <= tolerance"

# numerator_i, targets_i: of microbatch i; window, rank: sums over them; microbatches: of a rank in the window
ACCUMULATED = {
    "window-targets": "rank_factor * sum(numerator_i) / window_targets",
    "rank-targets": "rank_factor * sum(numerator_i / rank_targets)",
    "microbatch-mean": "rank_factor * sum(numerator_i / (targets_i * microbatches))",
    "microbatch-mean-fixed": "rank_factor * sum(numerator_i / (targets_i * accumulation_steps))",
    "undivided": "rank_factor * sum(numerator_i)",
}
REFERENCE = "sum(numerator_i) / sum(targets_i)"
NAIVE = "sum(numerator_i / targets_i) / (microbatches * world_size)"

TIERS = ("arithmetic", "weights", "observed", "clocks", "decisions", "sync", "precision", "tail", "ranks")

# What a clock of a window may show besides an integer:
MICROBATCHES = "microbatches"  # as many as the window has in this segment
FREE = "not-judged"
IF_BACKWARD = "one-if-backward"  # a dropped tail that ran must be cleared, or it leaks into the next window


def rank_factor(settings: Mapping[str, Any]) -> Fraction:
    """Factor on every rank's contribution after the collective and the ranks' own compensation."""
    world = settings["world_size"]
    factor = Fraction(1, world) if settings["rank_reduction"] == "average" else Fraction(1)
    return factor * world if settings["rank_compensation"] == "world-size" else factor


def expected_clocks(settings: Mapping[str, Any]) -> dict[str, dict[str, int | str]]:
    """How often each clock ticks in a window, by kind of window, on every rank."""
    scaler = 0 if settings["precision"]["loss_scaling"] == "none" else 1
    clip = 0 if settings["clipping"] is None else 1
    on_skip = settings["on_skipped_step"]
    moved: dict[str, int | str] = {
        "backward": MICROBATCHES,
        "step_called": 1,
        "step_applied": 1,
        "scheduler_step": 1,
        "scaler_update": scaler,
        "gradient_clear": 1,
        "unscale": scaler,
        "clip": clip,
        "update_counter": 1,
    }
    return {
        "executed": moved,
        "skipped": {
            **moved,
            "step_called": FREE,  # a scaler calls and withholds it, a hand-written check does not call it
            "step_applied": 0,
            "scheduler_step": 1 if on_skip["scheduler"] == "advances" else 0,
            "clip": FREE,  # clipping a nonfinite gradient changes nothing that is kept
            "update_counter": 1 if on_skip["update_counter"] == "advances" else 0,
        },
        "carried": {name: 0 for name in moved} | {"backward": MICROBATCHES},
        "dropped": {name: 0 for name in moved} | {"backward": FREE, "gradient_clear": IF_BACKWARD},
    }


def make_plan(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The plan part of a receipt, from the settings of a manifest (rows, if any, are not looked at)."""
    known = settings_normal_form({key: settings[key] for key in SETTINGS})
    return {
        "schema": PLAN_SCHEMA,
        "formula": FORMULA,
        "settings": known,
        "reference": REFERENCE,
        "accumulated": ACCUMULATED[known["loss_policy"]],
        "rank_factor": str(rank_factor(known)),
        "naive": NAIVE,
        "acceptance": {"scalar": ACCEPT_SCALAR, "vector": ACCEPT_VECTOR, "weight": ACCEPT_WEIGHT},
        "summation": "exact-rational",
        "tiers": list(TIERS),
        "clocks": expected_clocks(known),
        "sync": {"final": True, "others": False},
    }


def plan_hash(settings: Mapping[str, Any]) -> str:
    """Hash of the plan that ``settings`` give; take it before the run and store it as ``plan_sha256``.

    Other keys of a manifest may be there and are not looked at. Raises
    :class:`~accumlint.receipt.problems.Rejected` when a setting is missing or malformed.
    """
    log = ProblemLog()
    Record(SETTINGS).check({key: settings[key] for key in SETTINGS if key in settings}, "", log)
    if log:
        raise Rejected(log)
    return domain_hash("plan", canonical_bytes(make_plan(settings)))
