"""A manifest in memory: settings, the rows of every rank, and the windows that they form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from accumlint.receipt.formats import MANIFEST
from accumlint.receipt.numbers import Measured, canonical
from accumlint.receipt.shape import ListOf, ListOrRecord, Nullable, Number, Record, Shape

EXECUTED, SKIPPED, CARRIED, DROPPED = "executed", "skipped", "carried", "dropped"


@dataclass(frozen=True)
class Rows:
    """The microbatches of one rank, in order of execution; rows carried in from the segment before come first.

    ``gradients`` holds one column per component. Optional columns are None where nothing was recorded.
    ``clocks`` and the decisions have one entry per window of the manifest.
    """

    rank: int
    first_id: int
    valid_targets: Sequence[int]
    loss: Sequence[Measured]
    gradients: Sequence[Sequence[Measured | None]] = ()
    weights: Sequence[Measured] | None = None
    sync_forward: Sequence[bool] | None = None
    sync_backward: Sequence[bool] | None = None
    loss_scales: Sequence[Measured] | None = None
    clocks: dict[str, Sequence[int]] = field(default_factory=dict)
    nonfinite: Sequence[bool] | None = None
    step: Sequence[str] | None = None
    clip_norms: Sequence[Measured | None] | None = None

    def microbatch_id(self, position: int) -> str:
        """The synthetic id of the microbatch at a position of the columns."""
        return f"r{self.rank}-m{self.first_id + position}"


@dataclass(frozen=True)
class Window:
    """One window; ranks share it, so its place in the columns is the same on every rank.

    ``own`` is the number of its microbatches (per rank) that ran in this segment; the rest was carried in.
    ``short`` says that it holds fewer than K.
    """

    index: int
    start: int
    size: int
    own: int
    short: bool
    kind: str

    @property
    def rows(self) -> slice:
        return slice(self.start, self.start + self.size)


@dataclass(frozen=True)
class Manifest:
    """A manifest that passed every check.

    ``document`` is its normal form: plain JSON values, numbers canonical, ids synthetic; its canonical bytes
    are what the manifest hash is taken of. ``ranks`` are ordered by rank.
    """

    document: dict[str, Any]
    ranks: tuple[Rows, ...]
    windows: tuple[Window, ...]

    @property
    def components(self) -> int:
        """Number of components of the gradient vectors; 0 when no gradients were given."""
        return len(self.ranks[0].gradients)

    def microbatches(self) -> Iterator[tuple[Window, Rows, int]]:
        """(window, rank, position) of every microbatch: by window, then rank, then order of execution."""
        for window in self.windows:
            for rows in self.ranks:
                for position in range(window.start, window.start + window.size):
                    yield window, rows, position

    @property
    def size(self) -> int:
        """Number of microbatches over all ranks."""
        return len(self.ranks) * len(self.ranks[0].valid_targets)


def normal_form(shape: Shape, value: Any) -> Any:
    """``value``, which is of ``shape``, with every measured number in its canonical form. Ids are left out."""
    if isinstance(shape, Record):
        return {
            key: normal_form(shape.fields[key].shape, item)
            for key, item in value.items()
            if not isinstance(shape.fields[key].shape, ListOrRecord)
        }
    if isinstance(shape, ListOf):
        item = shape.item.inner if isinstance(shape.item, Nullable) else shape.item
        if isinstance(item, Number):
            # a double that is no integer is canonical already, and a column of them is not copied
            if all(type(x) is float and x % 1 for x in value):
                return value
            return [None if x is None else canonical(x) for x in value]
        if isinstance(item, (Record, ListOf)):
            return [None if x is None else normal_form(item, x) for x in value]
        return value
    if isinstance(shape, Nullable):
        return None if value is None else normal_form(shape.inner, value)
    if isinstance(shape, Number):
        return canonical(value)
    return value


def settings_normal_form(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a manifest (everything but rows) in normal form; other keys are ignored."""
    return {
        key: normal_form(MANIFEST.fields[key].shape, value)
        for key, value in settings.items()
        if key in MANIFEST.fields and key not in ("ranks", "continues")
    }
