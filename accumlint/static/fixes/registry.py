"""Which rule asks which fixers, the preferred one first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accumlint.findings import Finding
from accumlint.static.fixes import boundary
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

Fixer = Callable[[Script, Finding], Iterator[Proposal]]

FIXERS: dict[str, tuple[Fixer, ...]] = {
    "ACC202": (boundary.move_schedule,),
    "ACC204": (boundary.move_clear,),
    "ACC212": (boundary.move_scaler_update,),
    "ACC401": (boundary.rename_hook, boundary.move_clip),
    "ACC404": (boundary.move_unscale,),
}
