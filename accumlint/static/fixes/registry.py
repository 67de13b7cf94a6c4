"""Which rule asks which fixers, the preferred one first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accumlint.findings import Finding
from accumlint.static.fixes import boundary, checkpoint, division, gate, no_sync, schedule_length, tail, unscale
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

Fixer = Callable[[Script, Finding], Iterator[Proposal]]

FIXERS: dict[str, tuple[Fixer, ...]] = {
    "ACC102": (division.add,),
    "ACC103": (division.drop,),
    "ACC202": (boundary.move_schedule,),
    "ACC204": (boundary.move_clear,),
    "ACC206": (gate.shift,),
    "ACC207": (gate.turn,),
    "ACC212": (boundary.move_scaler_update,),
    "ACC302": (no_sync.widen,),
    "ACC303": (no_sync.flag_first, no_sync.agree),
    "ACC401": (boundary.rename_hook, boundary.move_clip),
    "ACC402": (unscale.unscale_first,),
    "ACC404": (boundary.move_unscale,),
    "ACC501": (tail.flush,),
    "ACC502": (tail.flush,),
    "ACC503": (tail.divide_by_own_size,),
    "ACC704": (checkpoint.hold,),
    "ACC801": (schedule_length.in_updates,),
}
