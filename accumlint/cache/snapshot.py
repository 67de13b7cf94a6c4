"""A whole run that found nothing changed: the files of a tree are asked for their times and sizes, and not opened.

A snapshot holds what a run rests on: every folder whose entries were read, every file whose content decided, with one
digest over what the system tells of them (the times of content and entry, size and number of each); and every place where
something was looked for in vain. What is the same for many files is written once. Only where all of it is the same is the
earlier result used. Anything that changed less than two seconds before the run began could have changed again within one
tick of the clock: such a run leaves no snapshot, the next one will.
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
from accumlint.static.consulted import digest, merged
from accumlint.static.discovery import Collection, Target

if TYPE_CHECKING:
    from accumlint.settings import Settings

UNSURE_NANOSECONDS = 2_000_000_000
_APART = "\0"  # between paths: no path has one


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
            if held is None or not _same(held["paths"].split(_APART), held["stats"], held["absent"]):
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
        looked_at = [*collection.looked_at.folders, *collection.looked_at.files, *consulted["files"], *consulted["content"]]
        folders = set(collection.looked_at.folders)
        here = os.getcwd()  # scripts are looked at under shorter names than they were found under
        named = (*looked_at, *(target.path for target in collection.targets))
        paths = list(dict.fromkeys(os.path.join(here, path) for path in named))
        stats = [_stat(path) for path in paths]
        if max(map(_changed, stats), default=0) > self.started - UNSURE_NANOSECONDS:
            return
        try:
            value = {
                "paths": _APART.join(paths),
                "stats": _digest(stats),
                # what a folder of the walk lacks, it lacks as long as its own times are the same
                "absent": {
                    folder: names for folder, names in consulted["absent"].items() if os.path.abspath(folder) not in folders
                },
                **_plain(collection, run, configured),
            }
        except plain.NotPlain:
            return
        self.results.store.write("runs", self._key, value)


def _stat(path: str) -> os.stat_result | None:
    """What the system tells of a file or folder; None where there is none."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _changed(told: os.stat_result | None) -> int:
    """When content or entry changed last, in nanoseconds."""
    return max(told.st_mtime_ns, told.st_ctime_ns) if told is not None else 0


def _digest(stats: Iterable[os.stat_result | None]) -> str:
    """One digest over times of content and entry, sizes and numbers."""
    rows = (f"{each.st_mtime_ns} {each.st_ctime_ns} {each.st_size} {each.st_ino}" if each is not None else "" for each in stats)
    return digest("\n".join(rows).encode())


def _same(paths: Sequence[str], stats: str, absent: dict[str, list[str]]) -> bool:
    if _digest(map(_stat, paths)) != stats:
        return False
    from accumlint.static.consulted import Unchanged

    return Unchanged()({"absent": absent, "files": {}, "content": {}})


def _plain(collection: Collection, run: Run, configured: Iterable[Finding]) -> dict[str, Any]:
    """Files about which there is something to tell, a row each; and the many others by what is the same for them."""
    simulated = set(run.simulated)
    told, others = [], {}
    for number, (target, outcome) in enumerate(zip(collection.targets, run.outcomes)):
        alike = (target.kind, outcome.name in run.marked, target in simulated, outcome.skipped)
        if outcome.findings or outcome.loops:
            told.append([number, target.name, target.path, *alike, len(outcome.loops), plain.findings_to_plain(outcome.findings)])
        else:
            others.setdefault(alike, []).append((str(number), target.name, target.path))
    return {
        "told": told,
        "others": [[*alike, *(_APART.join(column) for column in zip(*rows))] for alike, rows in others.items()],
        "skipped": dict(collection.skipped),
        "only_files_named": collection.only_files_named,
        "configured": plain.findings_to_plain(configured),
    }


def _restored(held: dict[str, Any]) -> Earlier:
    """Loops come back as their number: reports of a check count them and show nothing of them."""
    rows: list[tuple[int, Target, Outcome, bool, bool]] = []
    for number, name, path, kind, is_marked, is_simulated, skipped, loops, findings in held["told"]:
        outcome = Outcome(name, plain.findings_from_plain(findings), skipped, (None,) * loops)
        rows.append((number, Target(name, path, kind), outcome, is_marked, is_simulated))
    for kind, is_marked, is_simulated, skipped, *columns in held["others"]:
        for number, name, path in zip(*(column.split(_APART) for column in columns)):
            rows.append((int(number), Target(name, path, kind), Outcome(name, (), skipped), is_marked, is_simulated))
    rows.sort(key=lambda row: row[0])
    collection = Collection(tuple(row[1] for row in rows), held["skipped"], (), held["only_files_named"])
    marked = frozenset(row[1].name for row in rows if row[3])
    run = Run(tuple(row[2] for row in rows), marked, tuple(row[1] for row in rows if row[4]))
    return Earlier(collection, run, plain.findings_from_plain(held["configured"]))
