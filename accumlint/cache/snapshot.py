"""A whole run that found nothing changed: the files of a tree are asked for their times and sizes, and not opened.

A snapshot holds what a run rests on: every folder whose entries were read, every file whose content decided, each with
the times of its content and of its entry, its size and its number; and every place where something was looked for in
vain. Only where all of it is the same is the earlier result used. Anything that changed less than two seconds before the
run began could have changed again within one tick of the clock: such a run leaves no snapshot, the next one will.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from accumlint.cache import plain
from accumlint.cache.results import Results
from accumlint.findings import Finding
from accumlint.runner import Outcome, Run
from accumlint.static.consulted import merged
from accumlint.static.discovery import Collection, Target

if TYPE_CHECKING:
    from accumlint.settings import Settings

UNSURE_NANOSECONDS = 2_000_000_000

Stat = list[int]


class Earlier(NamedTuple):
    """What a run knows when nothing has changed since an earlier one."""

    collection: Collection
    run: Run
    configured: tuple[Finding, ...]


class Snapshot:
    """The snapshot of runs that are asked for the same paths under the same settings."""

    def __init__(self, results: Results, settings: Settings, paths: Sequence[str]) -> None:
        self.started = time.time_ns()
        self.results = results
        asked = (settings.root, settings.source, settings.exclude, settings.force_exclude, settings.include_tests)
        self._key = results.key(repr((asked, sorted(set(paths)))))

    def read(self) -> Earlier | None:
        """The earlier run, None where there is none or anything has changed."""
        held = self.results.store.read("runs", self._key)
        try:
            if held is None or not _same(held["stats"], held["absent"]):
                return None
            return _restored(held)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def write(self, collection: Collection, run: Run, configured: Iterable[Finding]) -> None:
        """Keep a run, unless chance, the clock or an error had a part in it."""
        rests_on = [outcome.consulted for outcome in run.outcomes if outcome.consulted is not None]
        analysed = {target.name for target in run.simulated}
        if collection.problems or any(
            outcome.failure or (outcome.name in analysed and outcome.consulted is None) for outcome in run.outcomes
        ):
            return
        consulted = merged(rests_on)
        paths = [*collection.looked_at.folders, *collection.looked_at.files, *consulted["files"], *consulted["content"]]
        paths += [target.path for target in collection.targets]
        stats: dict[str, Stat | None] = {}
        latest = self.started - UNSURE_NANOSECONDS
        for path in paths:
            if path not in stats:
                told = stats[path] = _stat(path)
                if told is not None and max(told[0], told[1]) > latest:
                    return
        try:
            value = {"stats": stats, "absent": consulted["absent"], **_plain(collection, run, configured)}
        except plain.NotPlain:
            return
        self.results.store.write("runs", self._key, value)


def _stat(path: str) -> Stat | None:
    """Times of content and entry in nanoseconds, size and number of a file or folder; None where there is none."""
    try:
        told = os.stat(path)
    except OSError:
        return None
    return [told.st_mtime_ns, told.st_ctime_ns, told.st_size, told.st_ino]


def _same(stats: dict[str, Stat | None], absent: dict[str, list[str]]) -> bool:
    for path, was in stats.items():
        if _stat(path) != was:
            return False
    from accumlint.static.consulted import Unchanged

    return Unchanged()({"absent": absent, "files": {}, "content": {}})


def _plain(collection: Collection, run: Run, configured: Iterable[Finding]) -> dict[str, Any]:
    simulated = set(run.simulated)
    rows = []
    for target, outcome in zip(collection.targets, run.outcomes):
        rows.append(
            [
                *target,
                outcome.name in run.marked,
                target in simulated,
                outcome.skipped,
                len(outcome.loops),
                plain.findings_to_plain(outcome.findings),
            ]
        )
    return {
        "rows": rows,
        "skipped": dict(collection.skipped),
        "only_files_named": collection.only_files_named,
        "configured": plain.findings_to_plain(configured),
    }


def _restored(held: dict[str, Any]) -> Earlier:
    """Loops come back as their number: reports of a check count them and show nothing of them."""
    targets, outcomes, marked, simulated = [], [], [], []
    for name, path, kind, is_marked, is_simulated, skipped, loops, findings in held["rows"]:
        target = Target(name, path, kind)
        targets.append(target)
        outcomes.append(Outcome(name, plain.findings_from_plain(findings), skipped, (None,) * loops))
        if is_marked:
            marked.append(name)
        if is_simulated:
            simulated.append(target)
    collection = Collection(tuple(targets), held["skipped"], (), held["only_files_named"])
    run = Run(tuple(outcomes), frozenset(marked), tuple(simulated))
    return Earlier(collection, run, plain.findings_from_plain(held["configured"]))
