"""Which rule asks which fixers, the preferred one first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from accumlint.findings import Finding
from accumlint.static.fixes import (
    boundary,
    checkpoint,
    clearing,
    counting,
    division,
    gate,
    no_sync,
    preparing,
    schedule_length,
    skipping,
    tail,
    unscale,
)
from accumlint.static.fixes.proposal import Proposal
from accumlint.static.fixes.script import Script

Fixer = Callable[[Script, Finding], Iterator[Proposal]]

FIXERS: dict[str, tuple[Fixer, ...]] = {
    "ACC102": (division.add,),
    "ACC103": (division.drop,),
    "ACC201": (boundary.move_step, preparing.prepare_optimizer),
    "ACC202": (boundary.move_call,),
    "ACC203": (skipping.ask_scaler,),
    "ACC204": (boundary.move_call,),
    "ACC205": (clearing.clear_after_step,),
    "ACC206": (gate.shift,),
    "ACC207": (gate.turn,),
    "ACC209": (gate.unnest,),
    "ACC212": (boundary.move_call,),
    "ACC302": (no_sync.widen,),
    "ACC303": (no_sync.flag_first, no_sync.agree),
    "ACC401": (boundary.rename_hook, boundary.move_call),
    "ACC402": (unscale.unscale_first,),
    "ACC403": (boundary.move_call,),
    "ACC404": (boundary.move_call,),
    "ACC501": (tail.flush,),
    "ACC502": (tail.flush,),
    "ACC503": (tail.divide_by_own_size,),
    "ACC701": (boundary.move_count, counting.in_updates),
    "ACC703": (boundary.move_call,),
    "ACC704": (checkpoint.hold,),
    "ACC801": (schedule_length.in_updates,),
}
