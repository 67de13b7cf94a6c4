"""The judgements over a recorded run, kept apart: weights, integrity, reference; clocks, sync, ranks; and the clauses.

PASS and FAIL were judged. INCONCLUSIVE: judged, and a fault could hide in what is not known. NOT-DISCRIMINATING: right
and wrong formula agree on this data. NOT-RUN: nothing was recorded. Every verdict has a reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from accumlint.contract import clauses, weights
from accumlint.contract.clauses import CONSEQUENCES
from accumlint.contract.events import Kind
from accumlint.contract.verdicts import Violation
from accumlint.contract.windows import Ledger, Window
from accumlint.probe import formulas
from accumlint.probe.assemble import Assembled, Slot, all_ledgers, weigh
from accumlint.probe.records import Run

PASS, FAIL, INCONCLUSIVE = "PASS", "FAIL", "INCONCLUSIVE"
SKIPPED = "skipped by the loss scaler"
NOT_DISCRIMINATING, NOT_RUN = "NOT-DISCRIMINATING", "NOT-RUN"

# relative L2 norm in float64: observed at most 1e-15 on correct runs, the smallest fault is 1.7e-2
REPLAY_TOLERANCE = 1e-10
ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
FLOOR = 1e-6  # float32: the sum of contributions is made in another order than torch's
ACROSS_RANKS = 1e-5  # chosen elements only, reduced in buckets

# what a run shows as such; of other rules it can neither confirm nor refute anything
WITNESSED = frozenset(
    "ACC101 ACC102 ACC103 ACC104 ACC106 ACC107 ACC108 ACC201 ACC202 ACC203 ACC204 ACC205 ACC206 ACC207 ACC209 ACC210 ACC212 ACC301 ACC302 ACC303 "
    "ACC401 ACC402 ACC403 ACC404 ACC501 ACC502 ACC503 ACC601".split()
)


@dataclass(frozen=True)
class Verdict:
    """One judgement: its verdict, the reason in words, and its number where there is one."""

    verdict: str
    reason: str
    value: float | None = None


@dataclass(frozen=True)
class WindowReport:
    """One window of one group of optimizers, over all ranks that are laid over each other."""

    index: int
    size: int
    counts: tuple[tuple[int, ...], ...]
    ratios: tuple[tuple[str, ...], ...]
    formula: str
    separation: float
    weights: Verdict
    integrity: Verdict
    reference: Verdict
    clocks: Mapping[str, int]
    synchronised: tuple[bool | None, ...]
    reductions: tuple[int | None, ...]
    disposition: str
    clip_factor: float | None = None


@dataclass(frozen=True)
class Auxiliary:
    """A loss term beside the main one: its weights are judged for evenness only."""

    slot: Slot
    verdict: Verdict


@dataclass
class Report:
    """All that a run says. ``violations`` are those of the clauses; places come from ``assembled.sites``."""

    assembled: Assembled | None
    windows: list[WindowReport]
    violations: list[Violation]
    applied: set[str]
    judgements: dict[str, Verdict]
    auxiliaries: list[Auxiliary]
    notes: list[str]
    pending: int = 0
    window: int = 0
    tails: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        words = {v.verdict for v in self.judgements.values()}
        for word in (FAIL, INCONCLUSIVE, NOT_DISCRIMINATING, PASS):
            if word in words:
                return word
        return NOT_RUN


def judge(made: Assembled | None, run: Run) -> Report:
    """Everything that can be said of a run. ``made`` is None when no backward and step were seen."""
    notes = list(made.notes) if made is not None else []
    notes += _notes(run)
    if made is None:
        reason = "no backward was recorded" if not run.recordings else "no loss was followed to an optimizer step"
        return Report(None, [], [], set(), {"weights": Verdict(NOT_RUN, reason)}, [], notes)
    judged = clauses.judge(made.trace)
    violations, applied = [], set()
    windows: list[WindowReport] = []
    pending = 0
    ledgers = [ledger for ledger, _ in judged]
    for ledger, judgement in judged:
        violations += judgement.violations
        applied |= judgement.applied
        pending += ledger.pending.size
        if not ledger.certain_models:
            notes.append("several optimizers step, and which backward feeds which is not known")
            continue
        for window in ledger.windows:
            windows.append(_window(made, run, ledger, window))
    constant = _constant_factor(made, windows)
    if constant is not None:
        windows = _set_aside(made, run, ledgers, windows, constant)
    if not ledgers:
        notes.append("no optimizer step was seen: steps inside a backward or written by hand are not followed")
    violations += _named(made, ledgers)
    violations += _unshifted(made, ledgers)
    violations += _divergence(made)
    if not any(e.kind is Kind.STEP and not e.details["applied"] for e in made.trace.events):
        # the clause reads the order of calls; a run knows whether a step was skipped at all
        violations = [v for v in violations if v.rule != "ACC203"]
        applied.discard("ACC203")
    violations = _unique(clauses.without_consequences(violations))
    auxiliaries = _auxiliaries(made)
    judgements = _summary(made, run, windows, violations, ledgers)
    for auxiliary in auxiliaries:
        if auxiliary.verdict.verdict in (FAIL, INCONCLUSIVE) and judgements["weights"].verdict in (PASS, NOT_DISCRIMINATING):
            judgements["weights"] = Verdict(auxiliary.verdict.verdict, f"{auxiliary.slot[0]}: {auxiliary.verdict.reason}")
    if any(r.get("closures", 0) > 1 for steps in made.steps for r in steps):
        why = Verdict(INCONCLUSIVE, "the optimizer evaluates its closure several times per step: its windows cannot be told")
        judgements = {name: why if v.verdict != NOT_RUN else v for name, v in judgements.items()}
        violations, applied = [], set()
    report = Report(made, windows, violations, applied & WITNESSED, judgements, auxiliaries, notes, pending, made.trace.window)
    report.tails = [f"{w.disposition} ({w.size} microbatch{'es' if w.size != 1 else ''})" for w in windows if w.disposition not in ("full", SKIPPED)]
    if pending:
        ended = run.recordings[0].ending
        report.tails.append(f"{pending} pending when {'the recording ended' if ended == 'updates' else 'training ended'}")
    return report


def _notes(run: Run) -> list[str]:
    out = []
    for recording in run.recordings:
        problems = recording.of("problem")
        if problems:
            out.append(f"rank {recording.rank}: the recorder failed {len(problems)} times, first: {problems[0]['text']}")
        if recording.of("grad"):
            out.append(f"rank {recording.rank}: torch.autograd.grad was used on parameters; what it brings is not weighed")
    closures = any(r.get("closures", 0) > 1 for recording in run.recordings for r in recording.of("step"))
    if closures:
        out.append("an optimizer evaluates its closure several times per step (LBFGS): windows cannot be told")
    return out


def _unique(violations: list[Violation]) -> list[Violation]:
    seen: set[tuple[str, int]] = set()
    out = []
    for violation in violations:
        if (violation.rule, violation.site) not in seen:
            seen.add((violation.rule, violation.site))
            out.append(violation)
    return out


# ---- a factor that is a choice ----


def _constant_factor(made: Assembled, windows: Sequence[WindowReport]) -> Fraction | None:
    """A factor that all targets of all windows share and that has nothing to do with the accumulation (``0.5 * loss``).

    Told apart from a wrong count by windows of different size: a count would change with them.
    """
    factors = {Fraction(r) for w in windows for ratios in w.ratios for r in ratios}
    totals = {sum(sum(c) for c in w.counts) for w in windows}
    if len(factors) != 1 or len(totals) < 2 or any(not w.ratios[0] for w in windows):
        return None
    factor = factors.pop()
    ranks = made.trace.ranks
    sizes = {w.size for w in windows} | {made.trace.window}
    telling = {Fraction(1), Fraction(ranks), Fraction(1, ranks)}
    for size in sizes:
        telling |= {Fraction(size) ** power * Fraction(ranks) ** other for power in (-2, -1, 1, 2) for other in (-1, 0, 1)}
    return None if factor in telling or factor <= 0 else factor


def _set_aside(made: Assembled, run: Run, ledgers: Sequence[Ledger], windows: Sequence[WindowReport], factor: Fraction) -> list[WindowReport]:
    """The windows judged again with the constant factor taken out."""
    out = []
    sources = [window for ledger in ledgers if ledger.certain_models for window in ledger.windows]
    for report, window in zip(windows, sources):
        number = window.step.details["number"] if window.step is not None else None
        verdict = Verdict(PASS if report.separation else NOT_DISCRIMINATING, f"every valid target weighs the same, times {factor}, a constant of the script", 0.0)
        if report.weights.verdict != FAIL:
            verdict = report.weights
        out.append(replace(report, weights=verdict, reference=_reference(made, run, window, number, float(factor))))
    return out


# ---- one window ---------------------------------------------------------------------------------------------------


def _window(made: Assembled, run: Run, ledger: Ledger, window: Window) -> WindowReport:
    found = weights.shares(window, made.trace)
    ranks = made.trace.ranks
    counts = [[share.count[r] for share in found] for r in range(ranks)]
    known = [share for share in found if share.ratio is not None]
    ratios = [[share.ratio[r] for share in known if share.ratio is not None] for r in range(ranks)]
    gap = formulas.separation(counts)
    named = None
    if known and len(known) == len(found):
        named = formulas.name(counts, ratios, max(window.alive, 1), made.trace.window)
    number = window.step.details["number"] if window.step is not None else None
    step = made.steps[0][number] if number is not None and number < len(made.steps[0]) else None
    backwards = [made.backwards[0][c.event.details["number"]] for c in window.contributions]
    reference = _reference(made, run, window, number)
    if named is not None and named.formula == formulas.TOKEN_SUM and reference.verdict == FAIL:
        summed = _reference(made, run, window, number, float(ratios[0][0]))
        if summed.verdict in (PASS, NOT_DISCRIMINATING):
            reference = Verdict(INCONCLUSIVE, "equals a full batch whose loss is summed and never divided", summed.value)
    return WindowReport(
        window.index, window.size,
        tuple(tuple(int(n) if n == int(n) else float(n) for n in ns) for ns in counts),  # type: ignore[misc]
        tuple(tuple(str(r) for r in rs) for rs in ratios), str(named) if named is not None else "", gap,
        _weights(made, window, found, named, gap), _integrity(made, ledger, window, number), reference,
        _clocks(ledger, window), tuple(c.event.details["forward_sync"] for c in window.contributions),
        tuple(b.get("reductions") for b in backwards), _disposition(ledger, window), _clip_factor(step),
    )  # fmt: skip


def _weights(made: Assembled, window: Window, found: Sequence[weights.Share], named: formulas.Named | None, gap: float) -> Verdict:
    if not found:
        reasons = {p.reason for c in window.contributions for p in c.event.details["parts"] if p.reason}
        return Verdict(INCONCLUSIVE, "; ".join(sorted(reasons)) or "no loss term that can be read")
    unknown = [share for share in found if share.ratio is None]
    if unknown:
        return Verdict(INCONCLUSIVE, unknown[0].part.reason or "the weights could not be read")
    if _alone(made, window, found):
        return Verdict(NOT_DISCRIMINATING, "one microbatch: nothing was accumulated")
    deviation = max((abs(float(r) - 1) for share in found for r, n in zip(share.ratio or (), share.count) if n), default=0.0)
    if window.stale:
        return Verdict(INCONCLUSIVE, "the gradient still holds earlier windows: see integrity", deviation)
    if deviation == 0:
        if gap == 0:
            return Verdict(NOT_DISCRIMINATING, "equal counts: the token mean and the mean of means give the same weights", 0.0)
        return Verdict(PASS, "every valid target of the window weighs 1/N", 0.0)
    if named is not None and named.formula == formulas.TOKEN_SUM:
        return Verdict(INCONCLUSIVE, "every target weighs 1: a summed loss is never divided, right only where the large batch is summed as well", deviation)
    what = str(named) if named is not None else "no known formula"
    return Verdict(FAIL, f"weights follow the {what}, a target is off by up to {deviation:.3g}", deviation)


def _alone(made: Assembled, window: Window, found: Sequence[weights.Share]) -> bool:
    """A window of one loss term in a run that neither accumulates nor is said to: any scale of the loss is a choice."""
    return made.trace.window <= 1 and made.trace.ranks == 1 and not made.trace.distributed and window.size == 1 and len(found) == 1


def _inside(window: Window) -> int:
    """Microbatches of the window whose gradient was cleared before its step, not at the end of an epoch."""
    return len({c.event.microbatch for c, clear in window.erased if not window.left_loop_between(c.event, clear, epochs=True)})


def noise(dtype: str, size: int) -> float:
    """Relative error of an honest sum of ``size`` contributions in a type: about √K roundoffs, with room."""
    roundoff = max((ROUNDOFF.get(name, 2.0**-24) for name in dtype.split("/")), default=2.0**-24)
    return max(8 * math.sqrt(max(size, 1)) * roundoff, FLOOR * roundoff / ROUNDOFF["float32"])


def _integrity(made: Assembled, ledger: Ledger, window: Window, number: int | None) -> Verdict:
    records = [steps[number] for steps in made.steps if number is not None and number < len(steps)]
    if not records or any(r.get("integrity") is None for r in records):
        return Verdict(NOT_RUN, "gradients were not followed (sharded parameters, or weights only)")
    if any(r.get("closures", 0) > 1 for r in records):
        return Verdict(INCONCLUSIVE, "the closure was evaluated several times")
    lost = _inside(window)
    if lost:
        return Verdict(FAIL, f"{lost} of {window.size} microbatches were cleared before the step")
    balances = [r["integrity"] for r in records]
    if not all(r["applied"] for r in records):
        return Verdict(NOT_RUN, "the loss scaler skipped the step")
    if not all(b["finite"] for b in balances):
        return Verdict(INCONCLUSIVE, "the gradient is not finite")
    if any(r.get("scaled") for r in records):
        return Verdict(FAIL, "the gradient is still multiplied by the loss scale when the optimizer steps")
    if all(b["norm"] == 0 for b in balances) and not window.stale and not any(b["lost"] for b in balances):
        return Verdict(NOT_DISCRIMINATING, "the gradient of the window is zero: nothing could be lost")
    band = max(noise(b["dtype"], window.size) for b in balances)
    if made.trace.ranks > 1:
        return _integrity_of_ranks(records, max(band, ACROSS_RANKS), window)
    if made.trace.distributed:
        return Verdict(NOT_RUN, "the ledgers of the ranks could not be laid over each other")
    balance = balances[0]
    deviation = balance["deviation"]
    blind = band > 0.1 / max(window.size, 1)
    if deviation <= band:
        if blind and window.size > 1:
            return Verdict(INCONCLUSIVE, f"in {balance['dtype']} a lost microbatch could hide in the rounding", deviation)
        return Verdict(PASS, "the gradient is the sum of the window's contributions", deviation)
    if balance["residual"] <= band and balance["factor"] > 0:
        return Verdict(PASS, f"the gradient is the sum of the contributions times {balance['factor']:.6g}, applied after the last backward", balance["residual"])
    if blind and deviation <= 4 * band:
        return Verdict(INCONCLUSIVE, f"in {balance['dtype']} the deviation could be rounding", deviation)
    return Verdict(FAIL, _why_broken(window, balance), deviation)


def _why_broken(window: Window, balance: Mapping[str, Any]) -> str:
    if window.stale:
        return "the gradient still holds contributions of earlier windows"
    if any(not e.details.get("measures_only") for e in window.between_backwards(Kind.CLIP)):
        return "the gradient was clipped between the backwards of the window"
    if balance["lost"]:
        return f"{balance['lost']} parameters lost what the backwards brought"
    if balance["unexplained"]:
        return f"{balance['unexplained']} parameters hold a gradient that no backward of the window brought"
    return "the gradient is not the sum of the window's contributions"


def _norm(values: Sequence[float]) -> float:
    return math.sqrt(math.fsum(v * v for v in values))


def fit(values: Sequence[float], reference: Sequence[float]) -> tuple[float, float]:
    """(factor, residual): the multiple of ``reference`` nearest to ``values``, and the relative norm of the rest."""
    square = math.fsum(r * r for r in reference)
    if not square:
        return 0.0, float("inf") if _norm(values) else 0.0
    factor = math.fsum(v * r for v, r in zip(values, reference)) / square
    own = _norm(values)
    return factor, _norm([v - factor * r for v, r in zip(values, reference)]) / own if own else 0.0


def _integrity_of_ranks(records: Sequence[Mapping[str, Any]], band: float, window: Window) -> Verdict:
    """Chosen elements of every rank's gradient against the sum of all ranks' contributions."""
    gradients = [r.get("gradient") or [] for r in records]
    sums = [r.get("own_sum") or [] for r in records]
    if not all(gradients) or not all(sums):
        return Verdict(NOT_RUN, "no elements of the gradient were recorded")
    everyone = [math.fsum(column) for column in zip(*sums)]
    size = _norm(gradients[0])
    apart = max(_norm([a - b for a, b in zip(gradients[0], other)]) / size if size else 0.0 for other in gradients)
    factor, residual = fit(gradients[0], everyone)
    world = len(records)
    if apart > band:
        own = max(fit(g, s)[1] for g, s in zip(gradients, sums))
        why = "each rank steps on its own contributions only: nothing was reduced" if own <= band else "the reduction missed part of the window"
        return Verdict(FAIL, f"ranks step on different gradients: {why}", apart)
    if residual > band:
        return Verdict(FAIL, "the gradient is not the sum of all ranks' contributions", residual)
    if abs(factor * world - 1) <= band:
        return Verdict(PASS, "the gradient is the average of all ranks' contributions", residual)
    if abs(factor - 1) <= band:
        return Verdict(PASS, "the gradient is the sum of all ranks' contributions", residual)
    return Verdict(PASS, f"the gradient is the sum of all ranks' contributions times {factor:.6g}", residual)


def _reference(made: Assembled, run: Run, window: Window, number: int | None, constant: float = 1.0) -> Verdict:
    if number is None:
        return Verdict(NOT_RUN, "no step")
    if _alone(made, window, weights.shares(window, made.trace)):
        return Verdict(NOT_RUN, "one microbatch: nothing was accumulated")
    replays = []
    for recording, steps in zip(run.recordings, made.steps):
        step = steps[number] if number < len(steps) else None
        found = next((r for r in recording.records if step is not None and r["k"] == "replay" and r.get("step") == step["s"]), None)
        if found is None:
            return Verdict(NOT_RUN, "this window was not recomputed")
        if found.get("reason"):
            return Verdict(NOT_RUN, str(found["reason"]))
        replays.append(found)
    if made.trace.distributed and len(replays) < 2:
        return Verdict(NOT_RUN, "the ledgers of the ranks could not be laid over each other")
    how = "one full batch" if all(r.get("full") for r in replays) else "the sum of its microbatches"
    if len(replays) == 1:
        value = float(replays[0]["total"])
        if constant != 1.0:
            value = math.hypot(replays[0]["factor"] / constant - 1, replays[0]["residual"] / constant)
        applied = window.of(Kind.RESCALE)
        if applied and applied[-1].details["factor"] is not None:
            # a division of the gradients that the script makes after the last backward is part of its formula
            factor = float(applied[-1].details["factor"].ranks[0])
            value = math.hypot(factor * replays[0]["factor"] - 1, factor * replays[0]["residual"])
    else:
        how += " over all ranks"
        value = _reference_of_ranks(window, replays, constant)
    telling = any(r.get("telling") for r in replays) or len({r.get("targets") for r in replays}) > 1
    if value <= REPLAY_TOLERANCE:
        if not telling:
            return Verdict(NOT_DISCRIMINATING, f"equals {how} in float64; with equal counts the mean of means would too", value)
        return Verdict(PASS, f"equals {how} in float64", value)
    return Verdict(FAIL, f"differs from {how} in float64", value)


def _reference_of_ranks(window: Window, replays: Sequence[Mapping[str, Any]], constant: float) -> float:
    """Relative L2 between what the ranks accumulated, reduced as the run reduces, and the full batch, on chosen elements."""
    reduces = window.of(Kind.REDUCE)
    parallel = any(c.event.details["parallel"] for c in window.fresh)
    average = bool(reduces[0].details["average"]) if reduces else parallel
    divisor = (len(replays) if average else 1) * constant
    ours = [math.fsum(column) / divisor for column in zip(*(r["accumulated"] for r in replays))]
    targets = math.fsum(r["targets"] for r in replays)
    full = [math.fsum(column) / targets for column in zip(*(r["numerators"] for r in replays))]
    size = _norm(full)
    return _norm([a - f for a, f in zip(ours, full)]) / size if size else float("inf")


_CLOCKS = {"schedule": Kind.SCHEDULE, "scaler": Kind.SCALER_UPDATE, "unscale": Kind.UNSCALE, "clip": Kind.CLIP}


def _clocks(ledger: Ledger, window: Window) -> dict[str, int]:
    """How often each clock moved for a window: from its first backward to the first backward of the next one.

    ``clear`` counts what emptied the gradients before the window's first backward (once, however often it was called)
    and what was cleared within it.
    """
    following = ledger.windows[window.index + 1] if window.index + 1 < len(ledger.windows) else ledger.pending
    start = next((i for i, e in enumerate(window.events) if e.kind is Kind.BACKWARD), len(window.events))
    before, own = window.events[:start], list(window.events[start:])
    for event in following.events:
        if event.kind is Kind.BACKWARD:
            break
        own.append(event)
    steps = [e for e in own if e.kind is Kind.STEP and e.subject in ledger.optimizers]
    # optimizers of one group step one after the other: the update is one
    out = {"step": max((sum(1 for e in steps if e.subject == s) for s in ledger.optimizers), default=0)}
    for name, kind in _CLOCKS.items():
        found = [e for e in own if e.kind is kind and not e.details.get("measures_only")]
        subjects = {e.subject for e in found}
        out[name] = max((sum(1 for e in found if e.subject == s) for s in subjects), default=0)
    if not out["unscale"] and any(e.details.get("scaler", -1) >= 0 for e in steps):
        out["unscale"] = 1  # GradScaler.step unscales by itself where the script did not
    cleared = any(e.kind is Kind.CLEAR for e in before) or window.index == 0 or not window.stale
    out["clear"] = int(cleared) + len({id(clear) for c, clear in window.erased if not window.left_loop_between(c.event, clear, epochs=True)})
    out["applied"] = min(out["step"], sum(1 for e in steps if e.details["applied"]))
    return out


def _disposition(ledger: Ledger, window: Window) -> str:
    if window.crosses:
        return "carried over the end of an epoch"
    if any(window.left_loop_between(c.event, clear, epochs=True) for c, clear in window.erased):
        return "full, after a dropped tail"
    if window.step is not None and not window.step.details["applied"]:
        return SKIPPED
    if window.size < ledger.usual:
        return "flushed short"
    return "full"


def _clip_factor(step: Mapping[str, Any] | None) -> float | None:
    if step is None or not step.get("clipped") or not step.get("at_step") or not step.get("integrity"):
        return None
    before, after = step["integrity"]["norm"], step["at_step"]["norm"]
    return after / before if before else None


# ---- what the clauses cannot name from weights alone ------------------------------------------------------------------


def _named(made: Assembled, ledgers: Sequence[Ledger]) -> list[Violation]:
    """Formulas that are two faults at once: a sum of means lacks the division and averages averages."""
    out: list[Violation] = []
    for ledger in ledgers:
        for window in ledger.whole():
            if window.size < 2:
                continue
            found = weights.shares(window, made.trace)
            if not found or any(s.ratio is None for s in found):
                continue
            counts = [[s.count[r] for s in found] for r in range(made.trace.ranks)]
            ratios = [[s.ratio[r] for s in found if s.ratio is not None] for r in range(made.trace.ranks)]
            named = formulas.name(counts, ratios, window.alive, made.trace.window)
            if named is None or formulas.separation(counts) == 0:
                continue
            if named.formula == formulas.SUM_OF_MEANS:
                out.append(Violation(
                    "ACC102", found[0].site,
                    f"the mean losses of {window.alive} microbatches are summed, never divided by {window.alive}: the mass of the window is {window.alive}",
                    {"weights": [weights.as_text(s.weight[0]) for s in found if s.weight]},
                ))  # fmt: skip
                return out
            if named.formula == formulas.MEAN_OF_MEANS and named.factor in (Fraction(1, window.size), Fraction(1, made.trace.window)):
                out.append(Violation(
                    "ACC103", found[0].site, f"the mean of {window.alive} means is divided by the window size once more: the mass of the window is {named.factor}", {},
                ))  # fmt: skip
                return out
    return out


def _unshifted(made: Assembled, ledgers: Sequence[Ledger]) -> list[Violation]:
    """A denominator that is the number of labels as the loader gave them, while the loss uses fewer: counted before the shift.

    Batches are laid beside backwards by their order (a loader may have been read ahead); with fewer nothing is said.
    """
    if any(len(batches) < len(rank) for batches, rank in zip(made.data, made.backwards)) or not made.data:
        return []
    for ledger in ledgers:
        for window in ledger.whole():
            verdict = weights.judge(window, made.trace)
            if verdict.kind != "scaled" or verdict.factor is None or not 0 < verdict.factor < 1:
                continue
            targets = sum((sum(share.count, Fraction(0)) for share in verdict.shares), Fraction(0))
            divisor = targets / verdict.factor
            numbers = [c.event.details["number"] for c in window.fresh]
            width = min((len(rank[n]) for rank in made.data for n in numbers), default=0)
            for column in range(width):
                labels = sum(rank[n][column][1] for rank in made.data for n in numbers)
                if labels == divisor and labels != targets:
                    return [Violation(
                        "ACC104", verdict.shares[0].site,
                        f"the denominator counts {labels} labels as the loader gave them, the loss uses {targets} of them: every target weighs {float(verdict.factor):.3g}/N",
                        {"weights": [weights.as_text(s.weight[0]) for s in verdict.shares if s.weight]},
                    )]  # fmt: skip
    return []


def _divergence(made: Assembled) -> list[Violation]:
    found = made.divergence
    if found is None or found.place is None:
        return []
    site = made.sites.number(*found.place)
    related = [(made.sites.number(*found.other_place), f"rank {found.rank} is here")] if found.other_place is not None else []
    return [Violation(
        "ACC601", site, f"in window {found.window} rank 0 does {found.ours} while rank {found.rank} does {found.theirs}: ranks no longer agree on their windows",
        {}, related=related,
    )]  # fmt: skip


def _auxiliaries(made: Assembled) -> list[Auxiliary]:
    """The other loss terms, judged one by one; their constant factor is the user's choice."""
    out: list[Auxiliary] = []
    for slot in made.slots[1:]:
        if slot[0] == "opaque":
            rows = [row for record in made.backwards[0] for row in record["terms"] if row["kind"] == "opaque"]
            out.append(Auxiliary(slot, Verdict(INCONCLUSIVE, rows[0]["reason"] if rows else "cannot be read")))
            continue
        weigh(made, slot)
        verdicts = []
        for ledger, _ in clauses.judge(made.trace):
            verdicts += [weights.judge(window, made.trace) for window in ledger.windows if not window.stale]
        factors = {v.factor for v in verdicts if v.factor is not None}
        if any(v.kind in ("uneven", "uneven-ranks") for v in verdicts):
            out.append(Auxiliary(slot, Verdict(FAIL, "its targets weigh differently between microbatches of a window")))
        elif any(v.kind == "unknown" for v in verdicts):
            out.append(Auxiliary(slot, Verdict(NOT_RUN, next(v.reason for v in verdicts if v.kind == "unknown"))))
        elif len(factors) > 1:
            out.append(Auxiliary(slot, Verdict(INCONCLUSIVE, "its factor changes from window to window")))
        else:
            out.append(Auxiliary(slot, Verdict(PASS, f"its targets weigh the same; constant factor {next(iter(factors), 1)}")))
    if made.slots[1:]:
        weigh(made, made.slots[0])
    return out


# ---- the summary --------------------------------------------------------------------------------------------------


def _gravest(verdicts: Sequence[Verdict], otherwise: str) -> Verdict:
    for word in (FAIL, INCONCLUSIVE):
        for verdict in verdicts:
            if verdict.verdict == word:
                return verdict
    # one telling window is enough to tell the formulas apart
    for word in (PASS, NOT_DISCRIMINATING):
        chosen = [v for v in verdicts if v.verdict == word]
        if chosen:
            return max(chosen, key=lambda v: v.value or 0.0)
    return verdicts[0] if verdicts else Verdict(NOT_RUN, otherwise)


def _summary(made: Assembled, run: Run, windows: Sequence[WindowReport], violations: Sequence[Violation], ledgers: Sequence[Ledger]) -> dict[str, Verdict]:
    out = {
        "weights": _gravest([w.weights for w in windows], "no window"),
        "integrity": _gravest([w.integrity for w in windows], "no window"),
        "reference": _gravest([w.reference for w in windows], "no window"),
    }
    if windows and all(w.size == 1 and w.separation == 0 for w in windows) and made.trace.ranks == 1 and out["weights"].verdict in (PASS, NOT_DISCRIMINATING):
        out["weights"] = Verdict(NOT_DISCRIMINATING, "every window holds one microbatch: nothing was accumulated")
    broken = sorted({v.rule for v in violations if v.rule[3] in "248" and v.rule != "ACC301"})
    if not windows:
        out["clocks"] = Verdict(NOT_RUN, "no window")
    else:
        out["clocks"] = Verdict(FAIL, "breaks " + ", ".join(broken)) if broken else Verdict(PASS, "one step for each window, and everything else in step with it")
    tails = sorted({v.rule for v in violations if v.rule[3] == "5"})
    short = [w for w in windows if w.disposition not in ("full", SKIPPED)]
    if tails:
        out["tail"] = Verdict(FAIL, "breaks " + ", ".join(tails))
    elif short:
        out["tail"] = Verdict(PASS, short[0].disposition)
    else:
        left = sum(ledger.pending.size for ledger in ledgers)
        dropped = bool(left) and run.recordings[0].ending != "updates"
        out["tail"] = Verdict(NOT_RUN, f"{left} microbatches were pending when training ended and never stepped" if dropped else "no short window was seen")
    if made.trace.distributed:
        out["sync"] = _sync(made, windows, violations)
        out["ranks"] = _ranks(made, run)
    return out


def _sync(made: Assembled, windows: Sequence[WindowReport], violations: Sequence[Violation]) -> Verdict:
    broken = sorted({v.rule for v in violations if v.rule in ("ACC302", "ACC303", "ACC304", "ACC305")})
    if broken:
        return Verdict(FAIL, "breaks " + ", ".join(broken))
    if made.divergence is not None:
        return Verdict(INCONCLUSIVE, "ranks did different things")
    by_hand = any(e.kind is Kind.REDUCE for e in made.trace.events)
    for window in windows:
        if window.reductions and window.reductions[-1] == 0 and not by_hand:
            return Verdict(FAIL, f"window {window.index}: no reduction happened in the last backward")
    if any(c.event.details["parallel"] == "fsdp2" for ledger in all_ledgers(made) for w in ledger.windows for c in w.fresh):
        return Verdict(PASS, "the sync mark was on for the last microbatch of every window (all-gathers hide the number of reductions)")
    if not any(r for w in windows for r in w.reductions if r) and not by_hand:
        return Verdict(INCONCLUSIVE, "whether reductions happened could not be seen")
    early = any(r for w in windows for r in w.reductions[:-1] if r)
    return Verdict(PASS, "reduced by hand" if by_hand else "reduced on every microbatch: right, and more than needed" if early else "reduced on the last microbatch only")


def _ranks(made: Assembled, run: Run) -> Verdict:
    if made.divergence is not None:
        d = made.divergence
        return Verdict(FAIL, f"window {d.window}: rank 0 does {d.ours}, rank {d.rank} {d.theirs}")
    if made.trace.ranks < run.world:
        return Verdict(INCONCLUSIVE, f"{run.world} ranks ran, {made.trace.ranks} can be compared")
    return Verdict(PASS, f"{run.world} ranks did the same in every window")


def hidden_by(rule: str, found: set[str]) -> str:
    """The found rule that makes ``rule`` its consequence, or an empty string."""
    return next((cause for cause in sorted(found) if rule in CONSEQUENCES.get(cause, ())), "")
