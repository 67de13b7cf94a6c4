"""Which lines changed since a commit, asked of git: ``--diff REF`` keeps findings that touch them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping

from accumlint.findings import Finding, Span

# None stands for the whole file (git doesn't know it yet)
Changed = Mapping[str, "set[int] | None"]

_HUNK = re.compile(rb"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@")
_ESCAPE = re.compile(rb'\\([0-7]{3}|[abtnvfr"\\])')
_PLAIN_ESCAPES = dict(zip(b'abtnvfr"\\', b'\a\b\t\n\v\f\r"\\'))


class ChangedLinesError(RuntimeError):
    """git can't say what changed; the message is its own."""


def _git(root: str, *arguments: str) -> bytes:
    command = ["git", "-C", root, "-c", "core.quotePath=false", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        raise ChangedLinesError(f"git cannot be run: {error.strerror or error}") from error
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ChangedLinesError(f"git {arguments[0]}: {said[0] if said else f'exit code {done.returncode}'}")
    return done.stdout


def _file_name(quoted: bytes) -> str:
    """The path in a ``+++`` line, without git's quotes and its prefix."""
    name = quoted.rstrip(b"\t")
    if name.startswith(b'"') and name.endswith(b'"'):

        def plain(match: re.Match[bytes]) -> bytes:
            code = match[1]
            return bytes([int(code, 8)]) if len(code) == 3 else bytes([_PLAIN_ESCAPES[code[0]]])

        name = _ESCAPE.sub(plain, name[1:-1])
    return os.fsdecode(name.removeprefix(b"b/"))


def parse_diff(diff: bytes) -> dict[str, set[int] | None]:
    """Lines that a unified diff without context adds or changes, by path on the new side."""
    changed: dict[str, set[int] | None] = {}
    lines: set[int] = set()
    left = 0  # lines of the hunk that are still content, however much they look like headers
    for line in diff.split(b"\n"):
        if left and line[:1] == b"+":
            left -= 1
            continue
        if not left and line.startswith(b"+++ "):
            lines = set()
            if line != b"+++ /dev/null":
                changed[_file_name(line[4:])] = lines
        elif not left and (match := _HUNK.match(line)):
            start, count = int(match[1]), int(match[2] or 1)
            left = count
            lines.update(range(start, start + count))
    return changed


def changed_lines(root: str, reference: str) -> dict[str, set[int] | None]:
    """Changed lines by path relative to ``root``, since ``reference``; untracked files count whole.

    Raises :class:`ChangedLinesError` outside a repository, or where the reference is unknown.
    """
    if reference.startswith("-"):
        raise ChangedLinesError(f"{reference!r} is no commit")
    patch = _git(
        root,
        "diff",
        "--unified=0",
        "--no-color",
        "--no-ext-diff",
        "--no-renames",
        "--src-prefix=a/",
        "--dst-prefix=b/",
        reference,
        "--",
    )
    changed = parse_diff(patch)
    for name in _git(root, "ls-files", "--others", "--exclude-standard", "-z").split(b"\0"):
        if name:
            changed[os.fsdecode(name)] = None
    return changed


def touches(
    finding: Finding,
    changed: Changed,
    place: Callable[[str], str],
    in_file: Callable[[Span], Span] = lambda span: span,
) -> bool:
    """Whether the finding, or a place that it speaks of, has a changed line.

    ``place`` maps its paths to those of ``changed``, ``in_file`` its spans to lines of files.
    """

    def touched(span: Span) -> bool:
        span = in_file(span)
        path = place(span.path)
        if path not in changed:
            return False
        lines = changed[path]
        return lines is None or not lines.isdisjoint(range(span.line, (span.end_line or span.line) + 1))

    return touched(finding.span) or any(touched(related.span) for related in finding.related)
