"""The effective weight of a valid target at the optimizer step, and what its deviation is called.

Right: every valid target of a window weighs ``1 / N`` with N the valid targets of the whole window over all
ranks, so ``weight × N = 1``. The ratio is exact; literal constants (``0.5 * loss``) are carried as symbols and set
aside, since a constant factor is a choice and no fault of accumulation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from accumlint.contract.events import Kind, Part
from accumlint.contract.quantity import Quantity
from accumlint.contract.windows import Contribution, Window


@dataclass(frozen=True)
class Share:
    """The targets of one part of one microbatch: their number per rank, and ``weight × N`` per rank.

    ``ratio`` is None where the weight is unknown. ``symbols`` are constant factors that were set aside.
    """

    microbatch: int
    part: Part
    site: int
    count: tuple[Fraction, ...]
    weight: tuple[Fraction, ...] | None
    ratio: tuple[Fraction, ...] | None
    symbols: tuple[tuple[str, int], ...]
    tags: frozenset[str]
    averaged: bool
    models: frozenset[int] | None = None
    scaled_at: int = -1  # where the gradient itself was scaled last


def _numbers(counts: dict, batch: int, basis: str, ranks: int) -> tuple[Fraction, ...]:
    return tuple(counts.get((batch, basis), (Fraction(8),) * ranks))


def shares(window: Window, trace) -> list[Share]:
    """All parts of a window with their effective weights, freed of nothing: as the optimizer sees them."""
    ranks = trace.ranks
    reduced = [e for e in window.events if e.kind is Kind.REDUCE]
    out: list[Share] = []
    # several parts of one microbatch (a sum of losses) speak of the same targets: count each microbatch once
    totals: dict[str, tuple[Fraction, ...]] = {}
    counted: set[tuple[int, str]] = set()
    joint = window.alive == 1
    for contribution in window.fresh:
        for part in contribution.event.details["parts"]:
            mark = (part.batch if joint else contribution.event.microbatch, part.basis)
            if mark in counted:
                continue
            counted.add(mark)
            count = _numbers(trace.counts, part.batch, part.basis, ranks)
            seen = totals.get(part.basis, (Fraction(0),) * ranks)
            totals[part.basis] = tuple(a + b for a, b in zip(seen, count))
    for contribution in window.fresh:
        details = contribution.event.details
        parallel = details.get("parallel") or ("manual" if reduced else "")
        averaged = bool(details.get("parallel")) and not details.get("sums") if not reduced else bool(reduced[0].details["average"])
        for part in details["parts"]:
            count = _numbers(trace.counts, part.batch, part.basis, ranks)
            weight = part.weight
            for factor, _ in contribution.factors:
                weight = weight * factor if weight is not None and factor is not None else None
            if details.get("divisor") is not None and weight is not None:
                weight = weight / details["divisor"]
            if weight is None or not _constant(weight.symbols):
                out.append(Share(contribution.event.microbatch, part, contribution.event.site, count, None, None, (), frozenset(), averaged,
                                 details.get("models")))
                continue
            local = totals[part.basis]
            everyone = sum(local, Fraction(0))
            alone, mean = not parallel, averaged
            if alone and "reduced" in weight.tags:
                # who divides by a count of all ranks is one of several, and knows of an average when the world size undoes it
                alone, mean = False, "world" in weight.tags
            effective = tuple(value / ranks if mean else value for value in weight.ranks)
            if alone:
                # one process: the second rank's data is nobody's
                effective, count, everyone = effective[:1], count[:1], local[0]
            ratio = tuple(value * everyone for value in effective)
            out.append(Share(contribution.event.microbatch, part, contribution.event.site, count, effective, ratio, weight.symbols, weight.tags, mean,
                             details.get("models"), _rescaled_at(contribution)))
    return out


def _rescaled_at(contribution: Contribution) -> int:
    """Where a gradient was scaled: beside the backward's function, the call that leads there when a helper does the work."""
    if not contribution.factors:
        return -1
    event = contribution.factors[-1][1]
    shared = 0
    for ours, theirs in zip(event.stack, contribution.event.stack):
        if ours != theirs:
            break
        shared += 1
    return event.stack[shared] if len(event.stack) > shared else event.site


def _constant(symbols: Iterable[tuple[str, int]]) -> bool:
    """Only factors that are constants: literals, and settings that multiply (what divides could be K itself)."""
    return all(name.startswith("#") or power > 0 and not name.startswith("~") for name, power in symbols)


@dataclass(frozen=True)
class Verdict:
    """What the weights of a window amount to.

    ``kind``: right, uneven (between microbatches), uneven-ranks, scaled (all by the same wrong factor), unknown.
    ``factor``: weight × N where it is the same for all targets.
    """

    kind: str
    factor: Fraction | None
    shares: tuple[Share, ...]
    assumed: bool
    reason: str = ""


def judge(window: Window, trace) -> Verdict:
    """Judge the main loss of a window: the parts without settings as factors, else nothing is claimed."""
    found = shares(window, trace)
    if not found:
        return Verdict("unknown", None, (), False, "no loss was seen")
    # a loss times zero keeps the backward alive on every rank and says nothing of weights
    known = [s for s in found if s.ratio is not None and any(s.ratio)]
    if not known:
        reasons = sorted({s.part.reason for s in found if s.part.reason})
        return Verdict("unknown", None, tuple(found), False, "; ".join(reasons) or "the factors of the loss are not known")
    # the least decorated parts are the main loss; auxiliary terms carry weights of their own
    fewest = min(len(s.symbols) for s in known)
    main = [s for s in known if len(s.symbols) == fewest]
    microbatches = {c.event.microbatch for c in window.fresh}
    if {s.microbatch for s in main} != microbatches:
        return Verdict("unknown", None, tuple(found), False, "the loss of some microbatch is not known")
    if any(s.ratio is None for s in found) and len(found) > len(known) and _mixed(found):
        return Verdict("unknown", None, tuple(found), False, "the loss takes several ways that are not all known")
    assumed = any(s.part.assumed for s in main)
    ratios = {value for s in main for value in (s.ratio or ())}
    if len(ratios) == 1:
        factor = ratios.pop()
        return Verdict("right" if factor == 1 else "scaled", factor, tuple(main), assumed)
    width = min(len(s.ratio) for s in main if s.ratio is not None)
    by_rank = [{s.ratio[rank] for s in main if s.ratio is not None} for rank in range(width)]
    if all(len(values) == 1 for values in by_rank):
        return Verdict("uneven-ranks", None, tuple(main), assumed)
    return Verdict("uneven", None, tuple(main), assumed)


def _mixed(found: list[Share]) -> bool:
    """Some microbatch has only unknown parts."""
    by_microbatch: dict[int, bool] = {}
    for share in found:
        by_microbatch[share.microbatch] = by_microbatch.get(share.microbatch, False) or share.ratio is not None
    return not all(by_microbatch.values())


def tail_factor(window: Window, trace) -> Fraction | None:
    """``weight × N`` of a short window when it is the same for all its targets."""
    verdict = judge(window, trace)
    return verdict.factor if verdict.kind in ("right", "scaled") else None



def tagged(window: Window, tag: str) -> bool:
    """Some weight of the window was computed from a number with that tag."""
    for contribution in window.contributions:
        divisor = contribution.event.details.get("divisor")
        if divisor is not None and tag in divisor.tags:
            return True
        if any(part.weight is not None and tag in part.weight.tags for part in contribution.event.details["parts"]):
            return True
    return False


def as_text(value: Fraction | Quantity) -> str:
    """A weight as a reader wants it: at most four significant decimals."""
    number = value if isinstance(value, Fraction) else value.ranks[0]
    return f"{float(number):.4g}"
