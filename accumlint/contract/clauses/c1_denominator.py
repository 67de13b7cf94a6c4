"""C1: every valid target of a window weighs the same, and the weights sum to 1."""

from __future__ import annotations

from fractions import Fraction

from accumlint.contract import weights
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.weights import Share, as_text
from accumlint.contract.windows import Ledger, Window
from accumlint.findings import Confidence


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """Weights of the whole windows of an accumulating loop."""
    if ledger.trace.disturbed is not None:
        return
    whole = [w for w in ledger.whole() if w.size > 1 or w.batches > 1 and _averaged_list(w)]
    if not whole:
        _without_a_window(ledger, judgement)
        return
    verdicts = [(w, weights.judge(w, ledger.trace)) for w in whole]
    _phantom_targets(judgement, whole, all(v.kind == "right" for _, v in verdicts))
    if any(v.kind == "unknown" for _, v in verdicts):
        return
    judgement.applied |= {"ACC101", "ACC102", "ACC103", "ACC104", "ACC106", "ACC107", "ACC108"}
    kinds = {v.kind for _, v in verdicts}
    window, verdict = verdicts[0]
    if kinds == {"right"}:
        return
    if "uneven" in kinds:
        window, verdict = next((w, v) for w, v in verdicts if v.kind == "uneven")
        _uneven(ledger, judgement, window, verdict)
    elif "uneven-ranks" in kinds:
        window, verdict = next((w, v) for w, v in verdicts if v.kind == "uneven-ranks")
        _uneven_ranks(ledger, judgement, window, verdict)
    elif window.size > 1:
        _scaled(ledger, judgement, [v for _, v in verdicts], window)


def _without_a_window(ledger: Ledger, judgement: Judgement) -> None:
    """The gate is stuck, so no window of K ever closes: what is pending still shows whether the loss is divided."""
    if not any(v.rule == "ACC213" for v in judgement.violations) or ledger.pending.erased:
        return
    verdict = weights.judge(ledger.pending, ledger.trace)
    if verdict.kind == "scaled" and verdict.factor == ledger.pending.size:
        judgement.applied.add("ACC102")
        _scaled(ledger, judgement, [verdict], ledger.pending)


def _averaged_list(window: Window) -> bool:
    """One backward of the mean over a list of losses: as many microbatches as the list has losses."""
    parts = [part for c in window.fresh for part in c.event.details["parts"]]
    alike = len({part.reduced_at for part in parts}) == 1 and len({part.batch for part in parts}) == len(parts)
    return alike and all(part.weight is not None and part.weight.tags & {"length", "K"} and any(part.weight.ranks) for part in parts)


def _site(shares: tuple[Share, ...]) -> int:
    """Where a reader should look: the backward that brings the weight."""
    return shares[0].site


def _evidence(shares: tuple[Share, ...]) -> dict:
    return {"weights": [as_text(s.weight[0]) for s in shares if s.weight is not None]}


def _wanted(shares: tuple[Share, ...]) -> str:
    """1 / N with N the valid targets of the window over all ranks that take part."""
    wanted = (s.weight[0] / s.ratio[0] for s in shares if s.weight is not None and s.ratio is not None and s.ratio[0])
    return next(map(as_text, wanted), "?")


def _uneven(ledger: Ledger, judgement: Judgement, window: Window, verdict: weights.Verdict) -> None:
    shares = tuple(s for s in verdict.shares if s.part.varies)  # a term of another kind has a measure of its own
    if not shares:
        _slices(ledger, judgement, window, verdict)
        return
    tags = frozenset().union(*(s.tags for s in shares))
    inverse = all(
        s.ratio is not None and s.ratio[0] * s.count[0] == shares[0].ratio[0] * shares[0].count[0]  # type: ignore[index]
        for s in shares
    )
    evidence = _evidence(shares)
    if inverse and "framework transformers" in ledger.trace.traits:
        if all(s.weight is not None and s.weight[0] * s.count[0] == 1 for s in shares) and len(shares) == len(verdict.shares) == window.size:
            judgement.violations.append(_own_mean(shares, window.size, evidence))
        return
    if not inverse and ("count" not in tags or "cut rows" in ledger.trace.traits):
        # nobody divides by a count of targets: several terms, each with a measure of its own;
        # or the count was taken of a batch that was cut up afterwards
        return
    if not inverse and not {"unshifted", "attention", "single"} & tags:
        judgement.violations.append(Violation(
            "ACC108", _site(shares),
            f"targets of one window weigh {_listed(shares)} instead of {_wanted(shares)} each: the divisor is not the window's count",
            evidence, cap=Confidence.POSSIBLE,
        ))  # fmt: skip
        return
    counts = ", ".join(str(s.count[0]) for s in shares)
    message = (
        f"each microbatch is averaged over its own valid targets, then the averages are averaged: with {counts} targets "
        f"they weigh {_listed(shares)} instead of {_wanted(shares)} each"
    )
    cap = Confidence.POSSIBLE if verdict.assumed else Confidence.CERTAIN
    part = shares[0].part
    site = part.divisions[-1] if part.divisions else shares[0].site
    if "batch size" in tags and _masses(verdict.shares, ledger.trace.ranks) == {1} and part.reduced_at >= 0:
        site = part.reduced_at  # what it is divided by is no window: the mean itself is all there is to see
    related = [(part.reduced_at, "the mean is taken here")] if part.reduced_at >= 0 else []
    judgement.violations.append(Violation("ACC101", site, message, evidence, cap=cap, related=related))
    _scaled_means(ledger, judgement, window, verdict.shares, evidence, cap)


def _slices(ledger: Ledger, judgement: Judgement, window: Window, verdict: weights.Verdict) -> None:
    """Slices of one batch, each with the mean over its own rows, as if it were the whole batch."""
    whole = "cut rows" in ledger.trace.traits and 1 < window.size == len(verdict.shares)
    if whole and _masses(verdict.shares, ledger.trace.ranks) == {1} and not _sum_is_likely(verdict.shares):
        cap = Confidence.POSSIBLE if verdict.assumed else Confidence.CERTAIN
        judgement.violations.append(_summed(verdict.shares, window.size, _evidence(verdict.shares), cap))


def _scaled_means(
    ledger: Ledger, judgement: Judgement, window: Window, shares: tuple[Share, ...], evidence: dict, cap: Confidence
) -> None:
    """Means of several microbatches that are also summed, or divided twice: a fault of its own, with a mend of its own."""
    if window.size < 2 or len(shares) != window.size or _sum_is_likely(shares):
        return
    masses = _masses(shares, ledger.trace.ranks)
    size = window.size
    if masses == {1}:
        judgement.violations.append(_summed(shares, size, evidence, cap))
    elif masses == {Fraction(1, size * size)} and all("K" in s.tags for s in shares):
        judgement.violations.append(Violation(
            "ACC103", _own_division(shares),
            f"the loss is divided by the window size twice: the gradient of a window is {size} times too small", evidence, cap=cap,
        ))  # fmt: skip


def _own_mean(shares: tuple[Share, ...], size: int, evidence: dict) -> Violation:
    return Violation(
        "ACC102", _site(shares),
        f"the Trainer leaves the division to this loss when it passes num_items_in_batch, and the loss is a mean of its own: {size} microbatches add up to {size} times the gradient",
        evidence,
    )  # fmt: skip


def _masses(shares: tuple[Share, ...], ranks: int) -> set[Fraction]:
    """What the weights of each microbatch sum to on one rank, the average over ranks undone: 1 for a mean that nothing divides."""
    return {s.weight[0] * s.count[0] * (ranks if s.averaged else 1) for s in shares if s.weight is not None}


def _summed(shares: tuple[Share, ...], size: int, evidence: dict, cap: Confidence) -> Violation:
    """ACC102: the means of the microbatches of a window are added up."""
    divisions = [d for s in shares for d in s.part.divisions]
    own = bool(divisions) and any("batch size" in s.tags for s in shares)
    what = "divided by the size of one of them only" if own else f"never divided by {size}"
    return Violation(
        "ACC102", divisions[-1] if own else _site(shares),
        f"the mean losses of {size} microbatches are summed, {what}: the gradient of a window is {size} times that of the large batch",
        evidence, cap=cap,
    )  # fmt: skip


def _listed(shares: tuple[Share, ...]) -> str:
    return ", ".join(as_text(s.weight[0]) for s in shares if s.weight is not None)


def _uneven_ranks(ledger: Ledger, judgement: Judgement, window: Window, verdict: weights.Verdict) -> None:
    shares = verdict.shares
    if not any(s.part.varies for s in shares):
        return
    if len({s.part.batch for s in shares}) < len({s.microbatch for s in shares}):
        return  # the same data in every microbatch: nothing can be uneven between them, and nothing is known of the data
    per_rank = [as_text(s) for s in (shares[0].weight or ())]
    division = shares[0].scaled_at if shares[0].scaled_at >= 0 else next((d for s in shares for d in reversed(s.part.divisions)), -1)
    judgement.violations.append(Violation(
        "ACC106", division if division >= 0 else _site(shares),
        f"every rank divides by its own valid targets and the ranks are averaged: a target weighs {' on rank 0 and '.join(per_rank)} on rank 1",
        _evidence(shares), related=[(_site(shares), "the backward whose gradient is averaged over ranks")],
    ))  # fmt: skip


def _scaled(ledger: Ledger, judgement: Judgement, verdicts: list[weights.Verdict], window: Window) -> None:
    factors = {v.factor for v in verdicts}
    shares = verdicts[0].shares
    tags = frozenset().union(*(s.tags for s in shares))
    assumed = any(v.assumed for v in verdicts)
    size = window.size
    told = size if window.step is not None else ledger.trace.window
    ranks = ledger.trace.ranks
    factor = next(iter(factors))
    evidence = _evidence(shares)
    other_count = {"unshifted", "attention"} & tags and "count" in tags
    same_basis = all(("unshifted" in s.part.basis) == ("unshifted" in tags) and ("attended" in s.part.basis) == ("attention" in tags) for s in shares)
    if other_count and not same_basis and all(f is not None and f < 1 for f in factors):
        if any(s.part.varies for s in shares):
            judgement.violations.append(Violation(
                "ACC104", _count_site(shares),
                "the denominator counts other positions than the loss sums (before the shift, or outside its mask): "
                f"every target weighs {as_text(shares[0].weight[0])} instead of {_wanted(shares)}",  # type: ignore[index]
                evidence,
            ))  # fmt: skip
        return
    if {"cut columns", "cut rows"} & ledger.trace.traits and (len(factors) > 1 or "cut columns" in ledger.trace.traits):
        return  # pieces of a batch whose targets were counted as a whole
    if "numel of one" in tags and all(s.weight is not None and s.weight[0] == 1 for v in verdicts for s in v.shares):
        judgement.violations.append(Violation(
            "ACC102", _own_division(shares),
            "the loss is a sum already, its numel() is 1: dividing by that changes nothing, and the gradient of a window is a sum over its targets",
            evidence,
        ))  # fmt: skip
        return
    if len(factors) > 1 and "count" in tags and any(s.part.varies for s in shares):
        judgement.violations.append(Violation(
            "ACC108", _own_division(shares),
            "the divisor is not the count of the window that is stepped: "
            f"weight times count comes to {', '.join(as_text(f) for f in (v.factor for v in verdicts) if f is not None)} in the first windows instead of 1",
            evidence,
        ))  # fmt: skip
        return
    if len(factors) != 1 or factor is None:
        return
    if factor == size and "framework transformers" in ledger.trace.traits:
        judgement.violations.append(_own_mean(shares, size, evidence))
    elif factor == size:
        cap = Confidence.POSSIBLE if assumed else Confidence.CERTAIN
        if assumed and any(s.part.divisions for s in shares) and "batch size" not in tags:
            return  # scaled by a share that comes out as 1 here: pieces that the simulation did not cut
        if _sum_is_likely(shares) or any(name.startswith("#") and power < 0 for s in shares for name, power in s.symbols):
            return
        judgement.violations.append(_summed(shares, told, evidence, cap))
    elif factor == Fraction(1, size):
        judgement.violations.append(Violation(
            "ACC103", _own_division(shares),
            f"the loss is divided by the window size twice: the gradient of a window is {size} times too small",
            evidence, cap=Confidence.POSSIBLE if assumed and "framework" not in tags else Confidence.CERTAIN,
        ))  # fmt: skip
    elif factor == Fraction(1, ranks) and (shares[0].averaged or "world" in tags) and {"reduced", "count"} <= tags:
        judgement.violations.append(Violation(
            "ACC107", _own_division(shares),
            f"the loss is divided by the targets of all ranks and the gradient is averaged over ranks as well: it is {ranks} (world size) times too small",
            evidence,
        ))  # fmt: skip
    elif factor == ranks and not shares[0].averaged and "world" in tags:
        judgement.violations.append(Violation(
            "ACC108", _own_division(shares), "the loss is multiplied by the world size, but no average over ranks undoes it", evidence,
            cap=Confidence.POSSIBLE,
        ))  # fmt: skip


def _sum_is_likely(shares: tuple[Share, ...]) -> bool:
    """The undivided loss is nothing but a convention: an output that nobody explained and that nothing divides."""
    if any(s.part.reason.startswith("unseen") for s in shares):
        return True
    return all(s.part.assumed and not s.tags & {"K", "batch size"} for s in shares) and any(s.models is None for s in shares)


def _own_division(shares: tuple[Share, ...]) -> int:
    if shares[0].scaled_at >= 0:
        return shares[0].scaled_at
    divisions = [d for s in shares for d in s.part.divisions]
    return divisions[-1] if divisions else shares[0].site


def _count_site(shares: tuple[Share, ...]) -> int:
    """Where the targets were counted, as far as the count remembers; else where it divides."""
    marks = sorted(int(t.removeprefix("counted at ")) for s in shares for t in s.tags if t.startswith("counted at "))
    return marks[0] if marks else _own_division(shares)


def _phantom_targets(judgement: Judgement, whole: list[Window], right: bool) -> None:
    """A count that is clamped per row or per microbatch before it enters the window's denominator.

    ``right``: no window has a weight that is wrong; then, one that may divide by zero is what is left to say.
    """
    judgement.applied.add("ACC105")
    for window in whole:
        for contribution in window.fresh:
            for part in contribution.event.details["parts"]:
                if part.weight is None:
                    continue
                marks = [t for t in part.weight.tags if t.startswith("clamped at ")]
                per_row = "clamped rows" in part.weight.tags
                if marks and (per_row or "clamped several" in part.weight.tags):
                    what = "row" if per_row else "microbatch"
                    judgement.violations.append(Violation(
                        "ACC105", int(marks[0].removeprefix("clamped at ")),
                        f"the count is clamped per {what} before it is summed: every {what} without a valid target adds one that does not exist",
                        {},
                    ))  # fmt: skip
                    return
                bare = [t for t in part.weight.tags if t.startswith("unguarded at ")]
                if bare and right:
                    judgement.violations.append(Violation(
                        "ACC105", int(bare[0].removeprefix("unguarded at ")),
                        "a microbatch without a valid target divides 0 by 0: the NaN reaches every gradient of the window",
                        {}, cap=Confidence.POSSIBLE,  # whether there ever is such a microbatch, the data says
                    ))  # fmt: skip
                    return
