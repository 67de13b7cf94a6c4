"""Fixes at the edge: offered with the findings of a run, written into its files, or shown as a patch.

What a fix is and whether it holds is decided in :mod:`accumlint.static.fixes`; this module reads and writes.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from accumlint import runner
from accumlint.findings import Finding
from accumlint.rewriting import RewriteError, rewrite
from accumlint.settings import Settings
from accumlint.static.discovery import STDIN, Target, is_notebook

if TYPE_CHECKING:
    from accumlint.cache.results import Results
    from accumlint.static.fixes.offer import Applied

# Every candidate costs a simulation of the file: what is larger than this is generated, or takes minutes.
MAX_BYTES = 200_000


class FixedFile(NamedTuple):
    """One file with the fixes that were found for it; ``before`` and ``after`` are its bytes."""

    target: Target
    before: bytes
    after: bytes
    applied: tuple[Applied, ...]


class WriteError(RuntimeError):
    """A fixed file can't be written; the message says why."""


def _per_file(
    findings: Sequence[Finding], targets: Mapping[str, Target], stdin: bytes
) -> list[tuple[Target, bytes, list[Finding]]]:
    """The checked scripts that findings stand in, with their bytes.

    A file outside of the run is nobody's to fix; findings of a notebook stand in a text that is no file.
    """
    by_path: dict[str, list[Finding]] = {}
    for finding in findings:
        by_path.setdefault(finding.span.path, []).append(finding)
    out = []
    for name, here in sorted(by_path.items()):
        target = targets.get(name)
        if target is None or is_notebook(name):
            continue
        try:
            data = runner.read(target, stdin)
        except OSError:
            continue  # it was there a moment ago
        if len(data) <= MAX_BYTES:
            out.append((target, data, here))
    return out


def offer(
    findings: Sequence[Finding],
    targets: Mapping[str, Target],
    settings: Settings,
    stdin: bytes,
    results: Results | None = None,
) -> list[Finding]:
    """The findings of a run, in their order, each with its fix where one holds; ``results`` knows earlier answers."""
    found: dict[int, Finding] = {}
    waiting = []
    for target, data, here in _per_file(findings, targets, stdin):
        held = results.find_fixes(data, here) if results is not None else None
        if held is None:
            waiting.append((target, data, here))
        else:
            found.update((id(finding), replace(finding, fix=known.fix)) for finding, known in zip(here, held))

    def all_of_them() -> None:
        from accumlint.static.engine import EngineSettings, Project
        from accumlint.static.fixes.offer import with_fixes

        own = EngineSettings(vocabulary=settings.vocabulary)
        for target, data, here in waiting:
            project = Project(settings.root)
            offered = with_fixes(data, target.name, here, project, own)
            if results is not None:
                results.keep_fixes(data, here, offered, project.consulted.plain())
            found.update(zip(map(id, here), offered))

    if waiting:
        with runner.at_work():
            runner.deep(all_of_them)
    return [found.get(id(finding), finding) for finding in findings]


def fix(
    findings: Sequence[Finding], targets: Mapping[str, Target], settings: Settings, stdin: bytes, unsafe: bool
) -> list[FixedFile]:
    """The files that change when the findings of a run are fixed, by name. Writes nothing."""
    from accumlint.static.engine import EngineSettings, Project
    from accumlint.static.fixes.offer import fix_file

    def all_of_them() -> list[FixedFile]:
        own = EngineSettings(vocabulary=settings.vocabulary)
        out = []
        for target, data, here in _per_file(findings, targets, stdin):
            fixed = fix_file(data, target.name, here, Project(settings.root), own, unsafe)
            if fixed.applied:
                out.append(FixedFile(target, data, fixed.source, fixed.applied))
        return out

    return runner.deep(all_of_them)


def write(fixed: FixedFile) -> None:
    """Put a fixed file in the place of the old one, in one step and with the old one's mode.

    Raises :class:`WriteError` where that isn't allowed, or where the file has changed since it was checked.
    """
    try:
        rewrite(fixed.target.path, fixed.before, fixed.after)
    except RewriteError as error:
        raise WriteError(f"{fixed.target.name}: not fixed: {error}") from error


def patch(files: Sequence[FixedFile]) -> bytes:
    """All changes as one unified diff that ``git apply`` and ``patch -p1`` take, in the bytes of the files."""
    out: list[bytes] = []
    for file in files:
        before, after = _rows(file.before), _rows(file.after)
        name = os.fsencode(file.target.name.replace(os.sep, "/"))
        rows = difflib.diff_bytes(
            difflib.unified_diff, before, after, b"a/" + name, b"b/" + name, lineterm=b"\n"
        )
        for row in rows:
            out.append(row if row.endswith(b"\n") else row + b"\n\\ No newline at end of file\n")
    return b"".join(out)


def _rows(data: bytes) -> list[bytes]:
    """Lines as diffs count them: only LF ends one."""
    rows = data.split(b"\n")
    return [row + b"\n" for row in rows[:-1]] + ([rows[-1]] if rows[-1] else [])


def told(files: Sequence[FixedFile]) -> str:
    """What was fixed, a line each under a line with the count; empty where nothing was."""
    lines = []
    for file in files:
        for finding, done in file.applied:
            unsafe = "" if done.safe else " (unsafe)"
            lines.append(f"  {file.target.name}:{finding.span.line}: {finding.rule} {done.title}{unsafe}\n")
    if not lines:
        return ""
    count = f"{len(lines)} finding{'s' if len(lines) != 1 else ''}"
    where = f"{len(files)} file{'s' if len(files) != 1 else ''}"
    return f"Fixed {count} in {where}:\n" + "".join(lines)


def is_stdin(fixed: FixedFile) -> bool:
    """Whether the file came through standard input."""
    return fixed.target.kind == STDIN
