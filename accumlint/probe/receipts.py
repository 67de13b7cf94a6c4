"""An accumulation receipt out of a recorded run: counts, sums, weights, clocks; nothing of the data itself.

The manifest declares the contract (one division by the window's targets); what the run really did is in the measured
columns, and the receipt's own arithmetic says whether they agree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accumlint import __version__, receipt
from accumlint.contract import weights
from accumlint.contract.events import Kind
from accumlint.contract.windows import Ledger, Window, ledgers
from accumlint.probe.judgements import Report, WindowReport
from accumlint.probe.launch import Plan
from accumlint.probe.records import Run
from accumlint.receipt import ManifestBuilder, Receipt
from accumlint.receipt.formats import SOFTWARE, VERSION

COMPONENTS = 4  # elements of the gradient that stand in a receipt
_VERSION = re.compile(VERSION.expression)

# tolerances by the coarsest type of the run: gradients in float32 agree to some 1e-6, under autocast to 1e-2
_RELATIVE = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2, "bfloat16": 2e-2}


class NoReceipt(Exception):
    """A run of which no receipt can be written; the message says why."""


def write(report: Report, run: Run, script: str | None, root: str, plan: Plan | None = None) -> Receipt:
    """The receipt of a judged run. Raises NoReceipt, or Rejected with the reasons of the validator."""
    document = manifest(report, run, plan)
    files = []
    if script is not None:
        files = [receipt.bind(Path(script), "script", Path(root))] if _below(script, root) else []
    return receipt.build(document, bound_files=files, unbound={"duration_seconds": round(run.seconds, 3)})


def _below(path: str, root: str) -> bool:
    return Path(path).resolve().is_relative_to(Path(root).resolve())


def manifest(report: Report, run: Run, plan: Plan | None = None) -> dict[str, Any]:
    """The manifest of a judged run as plain values."""
    made = report.assembled
    if made is None or not report.windows:
        raise NoReceipt("no window was recorded")
    if made.divergence is not None or made.trace.ranks != run.world:
        raise NoReceipt("the ranks did different things: their rows cannot be laid side by side")
    groups = [ledger for ledger in ledgers(made.trace) if ledger.windows]
    if len(groups) != 1:
        raise NoReceipt("several groups of optimizers: a receipt speaks of one")
    ledger = groups[0]
    builder = ManifestBuilder(_settings(report, run, ledger), origin="recorded", software=_software(run), **_more(report, run, ledger, plan))
    chosen = _chosen(made.backwards)
    for window, told in zip(ledger.windows, report.windows):
        _rows(builder, report, window, told, chosen)
    if ledger.pending.fresh and run.recordings[0].ending != "updates":
        _rows(builder, report, ledger.pending, None, chosen)
    return builder.document()


def _settings(report: Report, run: Run, ledger: Ledger) -> dict[str, Any]:
    made = report.assembled
    assert made is not None
    rows = [row for rank in made.backwards for record in rank for row in record["terms"]]
    types = _types(report, run)
    pending = bool(ledger.pending.fresh) and run.recordings[0].ending != "updates"
    clips = [e for e in made.trace.events if e.kind is Kind.CLIP and not e.details["measures_only"] and e.details.get("limit")]
    ignore = next((row["ignore"] for row in rows if row.get("ignore") is not None), None)
    scaled = any(record["scaled"] for rank in made.backwards for record in rank)
    average = made.trace.distributed
    settings: dict[str, Any] = {
        "accumulation_steps": max(report.window, 1),
        "world_size": run.world,
        "target_unit": next((row["unit"] for row in rows if row.get("unit")), "element"),
        "loss_policy": "window-targets",
        "reduction": "sum",
        "rank_reduction": "average" if average else "sum",
        "rank_compensation": "world-size" if average else "none",
        "ignore_index": ignore,
        "tail_policy": "drop" if pending else "flush",
        "precision": {**types, "loss_scaling": "dynamic" if scaled else "none"},
        "clipping": {"max_norm": clips[0].details["limit"], "norm": "2"} if clips else None,
        "tolerances": {"absolute": 1e-9, "relative": _RELATIVE[_coarsest(types)], "weight": 16 * 2.0**-24},
    }
    return settings


def _types(report: Report, run: Run) -> dict[str, Any]:
    made = report.assembled
    assert made is not None
    gradient = next((r["integrity"]["dtype"].split("/")[0] for rank in made.steps for r in rank if r.get("integrity")), "float32")
    eps = max((row["eps"] for rank in made.backwards for record in rank for row in record["terms"]), default=0.0)
    loss = {2.0**-52: "float64", 2.0**-23: "float32", 2.0**-10: "float16", 2.0**-7: "bfloat16"}.get(eps, "float32")
    return {"loss": loss, "gradient": gradient or "float32", "autocast": None}


def _coarsest(types: Mapping[str, Any]) -> str:
    order = ["float64", "float32", "float16", "bfloat16"]
    return max((t for t in types.values() if t in order), key=order.index, default="float32")


def _software(run: Run) -> dict[str, str]:
    head = run.recordings[0].head
    found = {"python": head.get("python", ""), "torch": head.get("torch", ""), "accumlint": __version__, **head.get("software", {})}
    return {name: value for name, value in found.items() if name in SOFTWARE and _VERSION.fullmatch(value)}


def _more(report: Report, run: Run, ledger: Ledger, plan: Plan | None) -> dict[str, Any]:
    more: dict[str, Any] = {}
    ends = sorted({w.index for w in ledger.windows if w.size < ledger.usual})
    last = len(ledger.windows) - 1 + bool(ledger.pending.fresh and run.recordings[0].ending != "updates")
    if ends and ends != [last]:
        more["epoch_ends"] = sorted({*ends, last})
    substitutions = []
    if plan is not None:
        constants = sum(len(names) for names in plan.constants.values())
        if constants:
            substitutions.append({"kind": "module-constant", "count": constants})
        if plan.tiny:
            substitutions.append({"kind": "model", "count": 1})
        if plan.stress:
            substitutions += [{"kind": "dataset", "count": 1}, {"kind": "loader-length", "count": 1}]
    if substitutions:
        more["substitutions"] = substitutions
    return more


def _chosen(backwards: Sequence[Sequence[Mapping[str, Any]]]) -> list[int]:
    """The elements of the gradient that move most in the first backwards of all ranks."""
    vectors = [record.get("components") for rank in backwards for record in rank[:6]]
    if not vectors or any(not v for v in vectors):
        return []
    size = [sum(abs(v[i]) for v in vectors) for i in range(len(vectors[0]))]
    best = sorted(range(len(size)), key=lambda i: (-size[i], i))[:COMPONENTS]
    return sorted(i for i in best if size[i] > 0)


def _rows(builder: ManifestBuilder, report: Report, window: Window, told: WindowReport | None, chosen: list[int]) -> None:
    made = report.assembled
    assert made is not None
    shares = {id(s.part): s for s in weights.shares(window, made.trace)}
    slot_rows = {}

    main = made.slots[0]
    for rank in range(made.trace.ranks):
        for contribution in window.contributions:
            event = contribution.event
            record = made.backwards[rank][event.details["number"]]
            rows = [row for row in record["terms"] if made.slot(row) == main]
            if len(rows) != 1 or len(record["terms"]) != 1:
                raise NoReceipt("a backward holds several loss terms: their numerators cannot be told apart")
            row = rows[0]
            if row["total"] is None:
                raise NoReceipt(f"the summed loss of {row['kind']} could not be read")
            share = shares.get(id(event.details["parts"][0])) if event.details["parts"] else None
            weight = share.weight[rank] if share is not None and share.weight is not None else None
            gradients: list[float] = []
            if chosen and record.get("components") and row["w"]:
                gradients = [record["components"][i] / row["w"] for i in chosen]
            slot_rows[(rank, event.details["number"])] = gradients
            parallel = bool(event.details["parallel"])
            reductions = record.get("reductions")
            builder.microbatch(
                window.index, row["n"], row["total"], gradients, rank=rank,
                weight=_measured(row, weight, made.trace.ranks, share is not None and share.averaged),
                sync_forward=record.get("forward_sync") if parallel else None,
                sync_backward=(bool(reductions) if reductions is not None else record.get("backward_sync")) if parallel else None,
                loss_scale=record["scale"] if record["scaled"] else None,
            )  # fmt: skip
        if told is not None:
            _end(builder, report, window, told, rank, chosen)
        else:
            builder.window(window.index, rank=rank, clocks={"backward": window.size, "step_called": 0, "step_applied": 0}, nonfinite=False, step="none")


def _measured(row: Mapping[str, Any], weight: Any, ranks: int, averaged: bool) -> float | None:
    """The weight as it was measured, not as it was snapped: freed of loss scale, divided where ranks are averaged."""
    if row["w"] is None or weight is None:
        return None
    return row["w"] / ranks if averaged else row["w"]


def _end(builder: ManifestBuilder, report: Report, window: Window, told: WindowReport, rank: int, chosen: list[int]) -> None:
    made = report.assembled
    assert made is not None and window.step is not None
    record = made.steps[rank][window.step.details["number"]]
    clocks = {
        "backward": window.size, "step_called": told.clocks["step"], "step_applied": told.clocks["applied"], "gradient_clear": told.clocks["clear"],
        "scaler_update": told.clocks["scaler"], "unscale": told.clocks["unscale"], "clip": told.clocks["clip"],
    }  # fmt: skip
    if any(w.clocks["schedule"] for w in report.windows):
        clocks["scheduler_step"] = told.clocks["schedule"]
    applied = bool(record["applied"])
    balance = record.get("integrity")
    gradient = record.get("gradient")
    clip = next((e for e in reversed(window.events) if e.kind is Kind.CLIP and not e.details["measures_only"]), None)
    norm = clip.details.get("norm") if clip is not None else None
    finite = norm is not None and norm == norm and abs(norm) != float("inf")
    builder.window(
        window.index, rank=rank, clocks=clocks, nonfinite=not applied or bool(balance and not balance["finite"]), step="applied" if applied else "skipped",
        clip_norm=norm if finite else None,
        gradients=[gradient[i] for i in chosen] if applied and gradient and chosen and rank == 0 and balance and balance["finite"] else None,
    )  # fmt: skip
