"""Lines of a script under construction: marks on the lines that matter, and the finished text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MARK = re.compile(r" *#@([\w, -]+)$")

Lines = list[str]


def mark(line: str, name: str) -> str:
    """The line with a name by which its number is found later; a line can carry several."""
    held = _MARK.search(line)
    return f"{line}, {name}" if held else f"{line}  #@{name}"


def unmarked(line: str) -> str:
    return _MARK.sub("", line)


def indented(lines: Lines, levels: int = 1) -> Lines:
    return ["    " * levels + line if line else "" for line in lines]


@dataclass(frozen=True)
class Script:
    """A finished script and the lines (from 1) that carry each mark."""

    source: str
    marks: dict[str, tuple[int, ...]]

    def lines(self, *names: str) -> set[int]:
        return {number for name in names for number in self.marks.get(name, ())}

    @property
    def numbered(self) -> str:
        """The source with line numbers, for whoever reads a complaint about it."""
        return "\n".join(f"{i:4} {line}" for i, line in enumerate(self.source.splitlines(), 1))


def finished(lines: Lines) -> Script:
    """Marks taken off and turned into line numbers."""
    found: dict[str, list[int]] = {}
    out = []
    for number, line in enumerate(lines, 1):
        held = _MARK.search(line)
        if held:
            for name in held.group(1).split(","):
                found.setdefault(name.strip(), []).append(number)
        out.append(unmarked(line).rstrip())
    return Script("\n".join(out) + "\n", {name: tuple(numbers) for name, numbers in found.items()})
