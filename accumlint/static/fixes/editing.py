"""Changes to a text by offset: applied together, mapped back, and told as edits by line and column."""

from __future__ import annotations

import bisect
import difflib
import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from accumlint.findings import Edit, Span

_LINE_END = re.compile(r"\r\n|\r|\n")


class Change(NamedTuple):
    """Replace ``text[start:end]`` by ``new``; offsets count code points."""

    start: int
    end: int
    new: str


class Overlap(ValueError):
    """Two changes touch the same text."""


def decoded(source: bytes) -> tuple[str, str] | None:
    """(text without byte order mark, encoding) of a source, None where it doesn't come back as the same bytes."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(source).readline)
        text = source.decode(encoding)
        return (text, encoding) if text.encode(encoding) == source else None
    except (SyntaxError, LookupError, UnicodeError):
        return None


def encoded(text: str, encoding: str) -> bytes | None:
    """The bytes of a text, None where its encoding lacks a character of it."""
    try:
        return text.encode(encoding)
    except UnicodeError:
        return None


class Lines:
    """Where the lines of a text start, as Python counts them: CR, LF and CRLF end one."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.starts = [0, *(match.end() for match in _LINE_END.finditer(text))]
        if self.starts[-1] == len(text) and len(self.starts) > 1:
            self.starts.pop()

    def __len__(self) -> int:
        return len(self.starts)

    def offset(self, line: int, column: int) -> int:
        """Offset of a 1-based line and column."""
        return self.starts[line - 1] + column - 1

    def place(self, offset: int) -> tuple[int, int]:
        """1-based line and column of an offset; the end of the text may be a line of its own."""
        if offset == len(self.text) and self.text[-1:] in ("\n", "\r"):
            return len(self.starts) + 1, 1
        line = bisect.bisect_right(self.starts, offset)
        return line, offset - self.starts[line - 1] + 1

    def end(self, line: int) -> int:
        """Offset behind a line and its line end."""
        return self.starts[line] if line < len(self.starts) else len(self.text)

    def content(self, line: int) -> str:
        """One line without its line end."""
        return self.text[self.starts[line - 1] : self.end(line)].rstrip("\r\n")

    def ending(self, line: int) -> str:
        """The line end of one line, empty at the end of a text that has none there."""
        whole = self.text[self.starts[line - 1] : self.end(line)]
        return whole[len(whole.rstrip("\r\n")) :]


def apply(text: str, changes: Iterable[Change]) -> str:
    """The text after all changes. Raises :class:`Overlap`; insertions at one place keep their order."""
    out: list[str] = []
    at = 0
    for change in sorted(changes, key=lambda c: (c.start, c.end)):
        if change.start < at:
            raise Overlap(f"two changes meet at offset {change.start}")
        out += [text[at : change.start], change.new]
        at = change.end
    return "".join(out) + text[at:]


def between(before: str, after: str) -> list[Change]:
    """The changes, whole lines trimmed to what differs, that lead from one text to the other."""
    old, new = _split(before), _split(after)
    starts = [0]
    for line in old:
        starts.append(starts[-1] + len(line))
    changes = []
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            changes.append(_trimmed(Change(starts[i1], starts[i2], "".join(new[j1:j2])), before))
    return changes


def _trimmed(change: Change, text: str) -> Change:
    """The same change without what it leaves as it is at both ends; whole lines stay whole."""
    start, end, new = change
    if start == end or not new:
        return change
    old = text[start:end]
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return Change(start + head, end - tail, new[head : len(new) - tail])


def _split(text: str) -> list[str]:
    ends = [match.end() for match in _LINE_END.finditer(text)]
    if not ends or ends[-1] != len(text):
        ends.append(len(text))
    return [text[start:end] for start, end in zip([0, *ends], ends) if end > start]


def as_edits(changes: Sequence[Change], lines: Lines, path: str) -> tuple[Edit, ...]:
    """Changes as edits of a finding, in the order of the file."""
    edits = []
    for change in sorted(changes):
        line, column = lines.place(change.start)
        end_line, end_column = lines.place(change.end)
        edits.append(Edit(Span(path, line, column, end_line, end_column), change.new))
    return tuple(edits)


def as_changes(edits: Iterable[Edit], lines: Lines) -> list[Change]:
    """Edits of a finding as changes of its text."""
    changes = []
    for edit in edits:
        span = edit.span
        start, end = (
            len(lines.text) if line > len(lines) else lines.offset(line, column)
            for line, column in ((span.line, span.column), (span.end_line, span.end_column))
        )
        changes.append(Change(start, end, edit.replacement))
    return changes


class Mapping:
    """Leads from lines after some changes back to the lines before."""

    def __init__(self, before: str, after: str) -> None:
        old, new = _split(before), _split(after)
        self._back: dict[int, int] = {}
        self.removed: set[int] = set(range(1, len(old) + 1))
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal" or tag == "replace" and i2 - i1 == j2 - j1:
                for i, j in zip(range(i1, i2), range(j1, j2)):
                    self._back[j + 1] = i + 1
                    self.removed.discard(i + 1)

    def back(self, line: int) -> int | None:
        """The line before, None where the line is new."""
        return self._back.get(line)
