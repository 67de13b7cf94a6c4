"""Recording a run: collects rows and windows as they happen, and gives the document of a manifest.

The builder checks nothing beyond its own use; :func:`accumlint.receipt.build` judges what it collected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from accumlint.receipt.formats import CLOCKS, MANIFEST_SCHEMA
from accumlint.receipt.numbers import Measured

DEFAULT_SETTINGS: dict[str, Any] = {
    "accumulation_steps": 1,
    "world_size": 1,
    "target_unit": "token",
    "loss_policy": "window-targets",
    "reduction": "sum",
    "rank_reduction": "average",
    "rank_compensation": "world-size",
    "ignore_index": -100,
    "tail_policy": "flush",
    "on_skipped_step": {"scheduler": "holds", "update_counter": "holds"},
    "precision": {"loss": "float32", "gradient": "float32", "autocast": None, "loss_scaling": "none"},
    "clipping": None,
    # 16 times the unit roundoff of float32 on weights; a part in a million on sums
    "tolerances": {"absolute": 1e-9, "relative": 1e-6, "weight": 9.5367431640625e-07},
}


class ManifestBuilder:
    """Collects one segment of a run.

    ``settings`` override :data:`DEFAULT_SETTINGS`; the other arguments are keys of the manifest with the same
    name. Use one builder for all ranks, or one per rank and :meth:`merge` them.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | None = None,
        *,
        origin: str = "recorded",
        random_state: Mapping[str, Any] | None = None,
        software: Mapping[str, str] | None = None,
        **more: Any,
    ):
        self.head: dict[str, Any] = {
            "schema": MANIFEST_SCHEMA,
            "origin": origin,
            **DEFAULT_SETTINGS,
            **(settings or {}),
            "random_state": dict(
                random_state or {"policy": "not-recorded", "seed": None, "boundary_sha256": None}
            ),
            "software": dict(software or {}),
            **more,
        }
        self.ranks: dict[int, dict[str, Any]] = {}
        self.observed: dict[int, tuple[Any, Any]] = {}

    def _rank(self, rank: int) -> dict[str, Any]:
        if rank not in self.ranks:
            self.ranks[rank] = {"rows": [], "windows": {}}
        return self.ranks[rank]

    def microbatch(
        self,
        window: int,
        valid_targets: int,
        loss_numerator: Measured,
        gradient_numerators: Sequence[Measured | None] = (),
        *,
        rank: int = 0,
        microbatch_id: str | int | None = None,
        weight: Measured | Fraction | None = None,
        sync_forward: bool | None = None,
        sync_backward: bool | None = None,
        loss_scale: Measured | None = None,
    ) -> None:
        """One forward and backward, in the order in which they ran on its rank.

        ``loss_numerator`` is the summed loss of the valid targets and ``gradient_numerators`` the gradient of
        that sum (chosen components or projections), free of loss scale and divisors; ``weight`` is what one
        valid target weighed in the update as measured. What is None on any row of a rank is not recorded.
        """
        self._rank(rank)["rows"].append(
            (
                window, valid_targets, loss_numerator, list(gradient_numerators), microbatch_id,
                float(weight) if isinstance(weight, Fraction) else weight,
                sync_forward, sync_backward, loss_scale,
            )
        )  # fmt: skip

    def window(
        self,
        window: int,
        *,
        rank: int = 0,
        clocks: Mapping[str, int] | None = None,
        nonfinite: bool | None = None,
        step: str | None = None,
        clip_norm: Measured | None = None,
        loss: Measured | None = None,
        gradients: Sequence[Measured] | None = None,
    ) -> None:
        """What happened at the end of a window on one rank: clocks by name (:data:`CLOCKS`) and decisions.

        ``loss`` and ``gradients`` are what the run held, normalised, just before clip and step; they are the
        same on every rank, so giving them once per window is enough.
        """
        self._rank(rank)["windows"][window] = (dict(clocks or {}), nonfinite, step, clip_norm)
        if loss is not None or gradients is not None:
            self.observed[window] = (loss, gradients)

    def merge(self, other: ManifestBuilder) -> None:
        """Take over the ranks that another process recorded."""
        self.ranks.update(other.ranks)
        self.observed.update(other.observed)

    def document(self) -> dict[str, Any]:
        """The manifest as a tree for :func:`accumlint.receipt.build` or a JSON writer."""
        made = dict(self.head)
        windows = sorted({row[0] for rank in self.ranks.values() for row in rank["rows"]})
        if self.observed:
            made["observed"] = self._observed(windows)
        made["ranks"] = [self._rank_document(number, windows) for number in sorted(self.ranks)]
        return made

    def _observed(self, windows: Sequence[int]) -> dict[str, Any]:
        loss = [self.observed.get(w, (None, None))[0] for w in windows]
        vectors = [self.observed.get(w, (None, None))[1] for w in windows]
        made: dict[str, Any] = {}
        if any(x is not None for x in loss):
            made["loss"] = loss
        known = [v for v in vectors if v is not None]
        if known and len(known[0]):
            made["gradients"] = [
                [None if v is None or i >= len(v) else v[i] for v in vectors] for i in range(len(known[0]))
            ]
        return made

    def _rank_document(self, number: int, windows: Sequence[int]) -> dict[str, Any]:
        rows, at_end = self.ranks[number]["rows"], self.ranks[number]["windows"]
        columns = list(zip(*rows)) if rows else [()] * 9
        made: dict[str, Any] = {
            "rank": number,
            "accumulation_steps": self.head["accumulation_steps"],
            "tail_policy": self.head["tail_policy"],
            "windows": list(columns[0]),
            "valid_targets": list(columns[1]),
            "loss_numerators": list(columns[2]),
        }
        vectors = columns[3]
        widest = max(map(len, vectors), default=0)
        if widest:
            # vectors of unequal length give columns of unequal length, which the validator names
            made["gradient_numerators"] = [[v[i] for v in vectors if i < len(v)] for i in range(widest)]
        for name, column in (
            ("microbatch_ids", columns[4]),
            ("weights", columns[5]),
            ("loss_scales", columns[8]),
        ):
            if column and None not in column:
                made[name] = list(column)
        if columns[6] and None not in columns[6] and None not in columns[7]:
            made["sync"] = {"forward": list(columns[6]), "backward": list(columns[7])}
        ends = [at_end.get(w, ({}, None, None, None)) for w in windows]
        clocks = {name: [end[0].get(name) for end in ends] for name in CLOCKS}
        clocks = {name: column for name, column in clocks.items() if None not in column}
        if clocks and windows:
            made["clocks"] = clocks
        decisions: dict[str, Any] = {}
        for name, place in (("nonfinite", 1), ("step", 2)):
            column = [end[place] for end in ends]
            if column and None not in column:
                decisions[name] = column
        norms = [end[3] for end in ends]
        if any(x is not None for x in norms):
            decisions["clip_norms"] = norms
        if decisions:
            made["decisions"] = decisions
        return made
