"""Documents with positions: what every reader of a configuration format returns.

YAML, JSON, TOML and Python-as-configuration all become the same three kinds of node, each knowing where it
stands. Lines and columns are 1-based and count code points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from accumlint.findings import Span


@dataclass(frozen=True)
class Mark:
    """The extent of a node in its file."""

    line: int
    column: int
    end_line: int
    end_column: int

    def span(self, path: str) -> Span:
        return Span(path, self.line, self.column, self.end_line, self.end_column)


@dataclass(frozen=True)
class Scalar:
    """One value. ``value`` is the typed value the framework would see, ``text`` what stands in the file."""

    value: Any
    text: str
    mark: Mark


@dataclass(frozen=True)
class Listing:
    """A sequence of nodes."""

    items: tuple[Node, ...]
    mark: Mark


@dataclass(frozen=True)
class Entry:
    """One ``key: node`` pair of a table."""

    key: str
    key_mark: Mark
    node: Node

    @property
    def value(self) -> Any:
        """The plain value of a scalar entry; ``None`` for tables and lists."""
        return self.node.value if isinstance(self.node, Scalar) else None

    @property
    def mark(self) -> Mark:
        """Where the value stands; for a table or list, where its key stands."""
        return self.node.mark if isinstance(self.node, Scalar) else self.key_mark


@dataclass(frozen=True)
class Table:
    """A mapping. Later duplicates win, merged entries (YAML ``<<``) lose against own ones."""

    entries: tuple[Entry, ...]
    mark: Mark
    merged: tuple[Table, ...] = ()
    _index: dict[str, Entry] = field(default_factory=dict, compare=False, repr=False)

    def get(self, key: str) -> Entry | None:
        """The entry that wins for ``key``, or ``None``."""
        if not self._index and (self.entries or self.merged):
            seen: set[int] = set()
            for table in reversed(list(_merge_order(self, seen))):
                for entry in table.entries:
                    self._index[entry.key] = entry
        return self._index.get(key)

    def keys(self) -> tuple[str, ...]:
        self.get("")
        return tuple(self._index)

    def winners(self) -> tuple[Entry, ...]:
        self.get("")
        return tuple(self._index.values())

    def find(self, path: str) -> Entry | None:
        """The entry at a dotted path; keys that contain dots themselves are tried first."""
        whole = self.get(path)
        if whole is not None or "." not in path:
            return whole
        head, _, rest = path.partition(".")
        entry = self.get(head)
        if entry is not None and isinstance(entry.node, Table):
            return entry.node.find(rest)
        return None

    def duplicates(self) -> Iterator[tuple[Entry, Entry]]:
        """(losing, winning) pairs of keys that are written twice in this very table."""
        seen: dict[str, Entry] = {}
        for entry in self.entries:
            if entry.key in seen:
                yield seen[entry.key], entry
            seen[entry.key] = entry


Node = Scalar | Listing | Table


def _merge_order(table: Table, seen: set[int]) -> Iterator[Table]:
    """The table and what it merges, strongest first; a table that merges itself is visited once."""
    stack = [table]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        stack.extend(reversed(current.merged))


@dataclass(frozen=True)
class Problem:
    """Why a file, or the rest of it, could not be read."""

    message: str
    line: int
    column: int
    kind: str = "syntax"  # syntax | too-large | encoding


@dataclass(frozen=True)
class Document:
    """A parsed file. ``roots`` holds one node per YAML document; other formats have at most one.

    ``laxity`` is set when the file was read only because comments or trailing commas were let through:
    a strict reader refuses it there.
    """

    path: str
    format: str
    roots: tuple[Node, ...]
    text: str = ""
    problem: Problem | None = None
    laxity: Problem | None = None

    def tables(self) -> Iterator[Table]:
        for root in self.roots:
            if isinstance(root, Table):
                yield root


def walk(node: Node, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Every (dotted path, entry) below a node, shared nodes once: aliases cannot make it explode."""
    seen: set[int] = set()
    stack: list[tuple[str, Node]] = [(prefix, node)]
    while stack:
        path, current = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        if isinstance(current, Table):
            for entry in current.winners():
                below = f"{path}.{entry.key}" if path else entry.key
                yield below, entry
                if not isinstance(entry.node, Scalar):
                    stack.append((below, entry.node))
        elif isinstance(current, Listing):
            for position, item in enumerate(current.items):
                if not isinstance(item, Scalar):
                    stack.append((f"{path}[{position}]", item))


def whole(value: Any) -> int | None:
    """A value as ``int`` when it is a whole number (also as text), else ``None``."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 10**12 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 1e12 else None
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d{1,12}\s*", value):
        return int(value)
    return None
