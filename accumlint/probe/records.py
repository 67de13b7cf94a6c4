"""The ledger that the child writes: one JSON object a line, one file per process; read back here.

A record has ``k`` (its kind), ``s`` (its number in the process) and ``f`` (the user's frames, outermost first, each
``[path, line, [[loop line, iteration key], …]]``); further keys depend on the kind:

=============  ====================================================================================================
``run``        rank, world, python, torch, device, dtype, hooks (what could be hooked), options
``data``       loader (number), end (the loader was exhausted), batch counts of integer tensors
``forward``    sync (DDP's flag, None elsewhere), parallel
``backward``   terms, scale, reached (optimizers), sync flags, reductions, clean, opaque names, components
``step``       optimizer, applied, closures, integrity, components, precision, rates
``clear``      optimizers (whose parameters), by (optimizer, model, state), pending (gradients were there)
``unscale``, ``update``, ``clip``, ``schedule``, ``save``, ``reduce``
``replay``     optimizer, worst, total, state, reason: a window recomputed in float64
``window``     value: K, read from the script's own names at its first step
``problem``    text: something inside the recorder failed; never raised into the user's code
``end``        reason: finished, updates, error
=============  ====================================================================================================
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX, SUFFIX = "ledger-", ".jsonl"
FORMAT = 1


@dataclass(frozen=True)
class Recording:
    """All records of one rank, in order. ``complete``: the process said how it ended."""

    rank: int
    world: int
    records: tuple[Mapping[str, Any], ...]

    @property
    def head(self) -> Mapping[str, Any]:
        return next((r for r in self.records if r["k"] == "run"), {})

    @property
    def ending(self) -> str:
        return next((str(r["reason"]) for r in reversed(self.records) if r["k"] == "end"), "")

    def of(self, *kinds: str) -> list[Mapping[str, Any]]:
        return [r for r in self.records if r["k"] in kinds]


@dataclass(frozen=True)
class Run:
    """What a run left: a recording per rank, and how its processes ended."""

    recordings: tuple[Recording, ...]
    exit_code: int | None = None
    timed_out: bool = False
    seconds: float = 0.0
    output: str = ""
    stacks: Mapping[int, str] = field(default_factory=dict)
    isolated: bool | None = None  # no network: True, not possible: False, not asked: None

    @property
    def world(self) -> int:
        return max((r.world for r in self.recordings), default=1)


def parse(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Records of one file. A last line that was cut off by a kill is left out."""
    out = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("k"), str):
            out.append(record)
    return out


def load(folder: str | os.PathLike[str]) -> tuple[Recording, ...]:
    """The recordings of a folder, by rank. Processes without a backward (launchers, workers) are left out.

    When one rank has several files (a restart), the one with the most records counts.
    """
    found: dict[int, Recording] = {}
    for name in sorted(os.listdir(folder)):
        if not (name.startswith(PREFIX) and name.endswith(SUFFIX)):
            continue
        with open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
            records = parse(stream)
        head = next((r for r in records if r["k"] == "run"), None)
        if head is None or not any(r["k"] in ("backward", "step") for r in records):
            continue
        # spawned workers learn their rank after torch was imported: the last word counts
        rank = next((r["rank"] for r in reversed(records) if "rank" in r), 0)
        world = max((r["world"] for r in records if "world" in r), default=1)
        recording = Recording(int(rank), int(world), tuple(records))
        held = found.get(recording.rank)
        if held is None or len(held.records) < len(records):
            found[recording.rank] = recording
    return tuple(found[rank] for rank in sorted(found))
