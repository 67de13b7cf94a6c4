"""One batch arithmetic for all dialects: micro × accumulation × data-parallel ranks = global.

Sizes are counted in samples (torchtitan's third generation: in tokens). Every number is an ``int`` that is
known or ``None``; unknown ranks stay unknown, and a product is refuted only when no number of ranks closes it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Batch:
    """The numbers that one source, or several together, state."""

    micro: int | None = None
    accumulation: int | None = None
    total: int | None = None
    ranks: int | None = None


@dataclass(frozen=True)
class Verdict:
    """``closes`` is ``None`` where the numbers leave it open; ``why`` is a sentence without a final stop."""

    closes: bool | None
    why: str = ""
    effective: int | None = None  # the global batch that is trained instead
    accumulation: int | None = None  # the window that results


def derive(batch: Batch) -> Batch:
    """Fills the one number that three others determine, when it comes out whole."""
    micro, k, total, ranks = batch.micro, batch.accumulation, batch.total, batch.ranks
    if None not in (micro, k, ranks) and total is None:
        return Batch(micro, k, micro * k * ranks, ranks)  # type: ignore[operator]
    if None not in (micro, total, ranks) and k is None and micro * ranks and total % (micro * ranks) == 0:  # type: ignore[operator]
        return Batch(micro, total // (micro * ranks), total, ranks)  # type: ignore[operator]
    if None not in (micro, k, total) and ranks is None and micro * k and total % (micro * k) == 0:  # type: ignore[operator]
        return Batch(micro, k, total, total // (micro * k))  # type: ignore[operator]
    return batch


def close_product(batch: Batch) -> Verdict:
    """All three sizes are stated (DeepSpeed): the product must equal the global batch.

    DeepSpeed asserts it (runtime/config.py ``_batch_assertion``); with two stated it derives the third by
    floor division and asserts then.
    """
    micro, k, total, ranks = batch.micro, batch.accumulation, batch.total, batch.ranks
    if total is None or total <= 0:
        return Verdict(None)
    if micro is None and k is None:
        return close_local(Batch(total=total, ranks=ranks))  # micro = total // ranks, accumulation 1
    known = (micro or 1) * (k or 1)
    text = " × ".join(
        part for part in (f"micro-batch {micro}" if micro else "", f"accumulation {k}" if k else "") if part
    )
    if known <= 0:
        return Verdict(None)
    if total % known:
        return Verdict(
            False,
            f"global batch {total} is not a multiple of {text} = {known}, so no number of ranks closes the product",
        )
    if ranks is None:
        return Verdict(None)
    if micro is None or k is None:
        if total % (known * ranks):
            return Verdict(
                False, f"global batch {total} is not a multiple of {text} × {ranks} ranks = {known * ranks}"
            )
        return Verdict(True)
    if known * ranks != total:
        return Verdict(
            False,
            f"{text} × {ranks} ranks = {known * ranks}, not the stated global batch {total}",
            known * ranks,
            k,
        )
    return Verdict(True, "", total, k)


def close_derived(batch: Batch) -> Verdict:
    """The framework derives the accumulation: global // (micro × ranks). A rest is lost or refused."""
    micro, total, ranks = batch.micro, batch.total, batch.ranks
    if not micro or not total or micro < 0 or total < 0:
        return Verdict(None)
    if ranks is None:
        if total % micro:
            return Verdict(
                False,
                f"global batch {total} is not a multiple of micro-batch {micro}, for any number of ranks",
            )
        return Verdict(None)
    step = micro * ranks
    if total % step:
        k = total // step
        return Verdict(
            False,
            f"global batch {total} is not a multiple of micro-batch {micro} × {ranks} data-parallel ranks = {step}",
            k * step or None,
            k,
        )
    return Verdict(True, "", total, total // step)


def close_local(batch: Batch) -> Verdict:
    """The global batch is split over the ranks first and into microbatches of any size then (Composer)."""
    total, ranks = batch.total, batch.ranks
    if not total or not ranks:
        return Verdict(None)
    if total % ranks:
        return Verdict(False, f"global batch {total} is not a multiple of {ranks} data-parallel ranks")
    return Verdict(True, "", total, -(-(total // ranks) // batch.micro) if batch.micro else None)


def close_plain(batch: Batch) -> Verdict:
    """Sizes in nobody's dialect. "Global" may then be meant per rank, so that reading is let through too."""
    if batch.accumulation is None:
        return close_derived(batch)
    verdict = close_product(batch)
    if verdict.closes is False and batch.micro and batch.total == batch.micro * batch.accumulation:
        return Verdict(None)
    return verdict


CLOSERS = {"product": close_product, "derived": close_derived, "local": close_local, "plain": close_plain}
