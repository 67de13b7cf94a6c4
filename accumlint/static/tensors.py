"""Loss algebra: how factors, masks and reductions change the weight of a valid target.

Pure functions over :class:`accumlint.static.values.Tensor`. Counts come from the caller, since they belong to
the simulated data.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from accumlint.contract.events import Part
from accumlint.contract.quantity import Quantity, quantity
from accumlint.static.values import Tensor, changed

Counts = Callable[[int, str], Quantity]  # (batch, basis) -> number of targets per rank

MAX_PARTS = 6


def literal(value: int | Fraction) -> Quantity:
    """A constant factor written into the script (0.5, 0.1): a named symbol, so that it never imitates K."""
    if value in (1, -1, 0):
        return quantity(value)
    sign = -1 if value < 0 else 1
    return Quantity((Fraction(sign),) * 2, ((f"#{abs(Fraction(value))}", 1),))


def joined(tensors: Iterable[Tensor], form: str, key: str) -> Tensor:
    """A tensor computed from several: it reaches all their models and inherits what is known of the data."""
    models: frozenset[int] | None = frozenset()
    batch, graph, sync, parallel, scaled, local = -1, False, None, "", False, False
    varies = shifted = leaf = several = per_row = False
    basis = "fixed"
    cut: frozenset[int] = frozenset()
    for tensor in tensors:
        if tensor.batch >= 0:
            batch = tensor.batch
        if tensor.graph:
            models = None if models is None or tensor.models is None else models | tensor.models
            graph = True
            if tensor.sync:
                sync = (sync or frozenset()) | tensor.sync
            parallel = tensor.parallel or parallel
        scaled |= tensor.scaled
        local |= tensor.local
        varies |= tensor.varies
        shifted |= tensor.shifted
        leaf |= tensor.leaf
        several |= tensor.several
        per_row |= tensor.per_row
        cut |= tensor.cut
        if tensor.basis != "fixed":
            basis = tensor.basis
    return Tensor(
        form, key, batch, models=models, graph=graph, sync=sync, parallel=parallel, scaled=scaled, local=local,
        varies=varies, basis=basis, shifted=shifted, leaf=leaf, several=several, per_row=per_row, cut=cut,
    )  # fmt: skip


def as_scalar(tensor: Tensor, counts: Counts, reduced_at: int) -> Tensor:
    """The tensor as a scalar loss. An output that nobody explains is taken for a mean, and says so."""
    if tensor.form == "scalar":
        return tensor
    if tensor.form == "mask" or tensor.form == "data":
        return changed(tensor, form="scalar", parts=(Part(tensor.batch, tensor.basis, None, reason="not a loss"),))
    tensor = over_padding(tensor)
    scale = tensor.scale
    weight = scale / counts(tensor.batch, tensor.basis) if scale is not None else None
    part = Part(
        tensor.batch, tensor.basis, weight, assumed=not tensor.mean_known, reason=_why(tensor, weight),
        reduced_at=reduced_at if tensor.padded < 0 else tensor.padded, divisions=tensor.divisions, varies=tensor.varies,
    )  # fmt: skip
    return changed(tensor, form="scalar", parts=(part,))


def _why(tensor: Tensor, weight: Quantity | None) -> str:
    if weight is None:
        return "unknown factor"
    return tensor.role if tensor.role.startswith("unseen") else ""


def reduce_mean(tensor: Tensor, counts: Counts, site: int) -> Tensor:
    """``.mean()``: each target's share is one over the number of elements that were averaged."""
    if tensor.form == "scalar":
        return tensor
    tensor = over_padding(tensor)
    if tensor.per_row:
        tensor = changed(tensor, basis="fixed", varies=False, masked=False)
    scale = tensor.scale
    # a mean after a mask still divides by all elements, masked ones included: that number is a constant
    weight = scale / counts(tensor.batch, "fixed" if tensor.masked else tensor.basis) if scale is not None else None
    part = Part(tensor.batch, tensor.basis, weight, assumed=tensor.padded >= 0, reduced_at=site if tensor.padded < 0 else tensor.padded, divisions=tensor.divisions,
                varies=tensor.varies, reason="" if weight is not None else "unknown factor")
    return changed(tensor, form="scalar", parts=(part,))


def over_padding(tensor: Tensor) -> Tensor:
    """A loss over padded targets is taken for a mean over the others, as many as every microbatch happens to have."""
    return changed(tensor, basis="valid", varies=True) if tensor.padded >= 0 and tensor.form == "output" else tensor


def reduce_sum(tensor: Tensor, site: int) -> Tensor:
    """``.sum()``: each target counts with its factor."""
    if tensor.form == "scalar":
        return tensor
    part = Part(tensor.batch, tensor.basis, tensor.scale, reduced_at=site, divisions=tensor.divisions, varies=tensor.varies,
                reason="" if tensor.scale is not None else "unknown factor")
    return changed(tensor, form="scalar", parts=(part,))


def times(tensor: Tensor, factor: Quantity | None, site: int, divide: bool = False) -> Tensor:
    """The tensor multiplied (or divided) by a number; ``factor`` None: by one that nobody knows."""

    unguarded = divide and factor is not None and "single" in factor.tags and not {"clamped", "attention", "never empty"} & factor.tags

    def scaled(weight: Quantity | None) -> Quantity | None:
        if weight is None or factor is None:
            return None
        try:
            if unguarded:
                return (weight / factor).tagged(f"unguarded at {site}")
            return weight / factor if divide else weight * factor
        except ZeroDivisionError:
            return None

    divisions = (*tensor.divisions, site)
    if tensor.form == "scalar":
        parts = tuple(
            dataclasses.replace(part, weight=scaled(part.weight), divisions=(*part.divisions, site),
                                reason=part.reason or ("" if factor is not None else "unknown factor"))
            for part in tensor.parts
        )
        return changed(tensor, parts=parts, divisions=divisions)
    return changed(tensor, scale=scaled(tensor.scale), divisions=divisions)


def add(left: Tensor, right: Tensor, key: str, counts: Counts, site: int) -> Tensor:
    """The sum of two tensors: two scalars add their parts, anything else becomes element-wise."""
    rows = ("elements", "data", "mask")
    if left.form in rows or right.form in rows:
        if "scalar" not in (left.form, right.form):
            return combine(left, right, key)
    one, two = as_scalar(left, counts, site), as_scalar(right, counts, site)
    out = joined((one, two), "scalar", key)
    parts: list[Part] = []
    for part in (*one.parts, *two.parts):
        if part not in parts and len(parts) < MAX_PARTS * 4:
            parts.append(part)
    # a number or a zero tensor in front of a running total has no parts of its own
    parts = [part for part in parts if part.reason != "not a loss"] or parts
    out.parts = tuple(parts)
    out.divisions = (*one.divisions, *two.divisions)
    return out


def combine(left: Tensor, right: Tensor, key: str, masks: bool = False) -> Tensor:
    """An element-wise operation; multiplying by a mask (``masks``) restricts the targets to the valid ones."""
    out = joined((left, right), "elements", key)
    source = left if left.graph or not right.graph else right
    other = right if source is left else left
    out.scale = source.scale
    out.divisions = source.divisions
    out.basis = source.basis
    out.varies = source.varies
    out.masked = left.masked or right.masked
    out.shifted = left.shifted or right.shifted
    if masks:
        out.basis = basis_of(other)
        out.masked = True
        out.varies = True
    return out



# compared with the label that torch ignores by default, where nothing makes such labels
LETS_ALL_THROUGH = "mask of nothing"


def basis_of(mask: Tensor) -> str:
    """Which targets a mask lets through: valid ones, label positions before the shift, attended ones, or simply all."""
    if mask.role == LETS_ALL_THROUGH:
        return "fixed"
    if "attention" in mask.key:
        return "attended" if mask.shifted else "attended unshifted"
    return "valid" if mask.shifted else "unshifted"


def detached(tensor: Tensor) -> Tensor:
    """The value without its graph."""
    return changed(tensor, graph=False, models=frozenset(), sync=None, leaf=False, cut=tensor.cut | (tensor.models or frozenset()))


def is_tensor(value: Any) -> bool:
    return isinstance(value, Tensor)
