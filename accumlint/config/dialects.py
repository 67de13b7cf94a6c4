"""Dialects: configuration keys as data (``rules/dialects/*.yaml``) and the facts read with them.

A dialect says by which keys it is recognised, which key plays which role, how its framework closes the batch,
and which combinations break the contract. This module knows no framework by name.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from accumlint import knowledge
from accumlint.config.arithmetic import Batch
from accumlint.config.interpolation import resolve
from accumlint.config.tree import Document, Entry, Listing, Mark, Scalar, Table, walk, whole

ROLES = ("micro", "accumulation", "global", "clip", "max_steps")


@dataclass(frozen=True)
class Evidence:
    """One key whose presence speaks for a dialect, optionally with a value that must match."""

    key: str
    matches: re.Pattern[str] | None = None

    def holds(self, table: Table, root: Table) -> bool:
        entry = table.find(self.key)
        if entry is None:
            return False
        if self.matches is None:
            return True
        value = resolve(entry, root)
        return isinstance(value, (str, int, float, bool)) and self.matches.search(str(value)) is not None


@dataclass(frozen=True)
class Ranks:
    """Which keys give the number of data-parallel ranks."""

    total: tuple[str, ...] = ()
    per_node: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    nodes_default: int | None = None
    divide_by: tuple[str, ...] = ()
    data_parallel: tuple[tuple[str, int | None], ...] = ()
    multiply: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dialect:
    name: str
    title: str
    source: str
    formats: tuple[str, ...]
    detect: tuple[tuple[Evidence, ...], ...]
    refuse: tuple[Evidence, ...]
    nested: bool
    scattered: bool  # the keys may stand in different sections, if each is written once
    roles: Mapping[str, tuple[str, ...]]
    defaults: Mapping[str, int]
    closes: str  # product | derived | local | none
    on_mismatch: str  # what the framework does then: a clause of a sentence
    severity: str
    strict: bool  # a strict reader: comments and trailing commas are refused
    priority: int
    ranks: Ranks
    checks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Fact:
    """One stated (or default) value with its place."""

    role: str
    value: Any
    key: str
    path: str
    mark: Mark
    stated: bool = True

    @property
    def number(self) -> int | None:
        """The value as a whole number, or ``None`` ("auto", interpolations, fractions, booleans)."""
        return whole(self.value)


@dataclass(frozen=True)
class View:
    """One file (or a part of it) seen as one dialect."""

    dialect: Dialect
    document: Document
    table: Table
    root: Table
    facts: Mapping[str, Fact]
    ranks: int | None
    ranks_from: tuple[Fact, ...] = ()
    overlay: Mapping[int, str] = field(default_factory=dict)  # id of a mark -> the file that it stands in

    @property
    def path(self) -> str:
        return self.document.path

    def where(self, mark: Mark) -> str:
        """The file of a mark: this one, unless a launch line laid the value over it."""
        return self.overlay.get(id(mark), self.document.path)

    def number(self, role: str) -> int | None:
        fact = self.facts.get(role)
        return fact.number if fact else None

    def batch(self) -> Batch:
        return Batch(self.number("micro"), self.number("accumulation"), self.number("global"), self.ranks)

    def entry(self, name: str) -> Entry | None:
        """The entry of a role or dotted key."""
        for key in self.dialect.roles.get(name, (name,)):
            entry = self.table.find(key)
            if entry is not None:
                return entry
        return None

    def value(self, name: str) -> Any:
        """The resolved value of a role or dotted key; ``None`` when absent or a table."""
        if name in self.facts:
            return self.facts[name].value
        if name == "ranks":
            return self.ranks
        entry = self.entry(name)
        return resolve(entry, self.root) if entry is not None else None


def _evidence(item: Any) -> Evidence:
    if isinstance(item, str):
        return Evidence(item)
    return Evidence(item["key"], re.compile(item["matches"]))


def _listed(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def parse_dialect(name: str, data: Mapping[str, Any]) -> Dialect:
    """One file of ``rules/dialects``. Raises :class:`KnowledgeError` naming it when malformed."""
    try:
        batch = data.get("batch") or {}
        ranks = data.get("ranks") or {}
        dialect = Dialect(
            name=name,
            title=data["title"],
            source=data["source"],
            formats=_listed(data["formats"]),
            detect=tuple(tuple(map(_evidence, group)) for group in data["detect"]),
            refuse=tuple(map(_evidence, data.get("refuse") or ())),
            nested=bool(data.get("nested", False)),
            scattered=bool(data.get("scattered", False)),
            roles={role: _listed(keys) for role, keys in (data.get("roles") or {}).items()},
            defaults=dict(data.get("defaults") or {}),
            closes=batch.get("closes", "none"),
            on_mismatch=batch.get("on_mismatch", ""),
            severity=batch.get("severity", "error"),
            strict=bool(data.get("strict", False)),
            priority=int(data.get("priority", 0)),
            ranks=Ranks(
                _listed(ranks.get("total")),
                _listed(ranks.get("per_node")),
                _listed(ranks.get("nodes")),
                ranks.get("nodes_default"),
                _listed(ranks.get("divide_by")),
                tuple((key, default) for key, default in ranks.get("data_parallel") or ()),
                _listed(ranks.get("multiply")),
            ),
            checks=tuple(data.get("checks") or ()),
        )
    except (KeyError, TypeError, ValueError, AttributeError, re.error) as error:
        raise knowledge.KnowledgeError(f"dialects/{name}.yaml: {error!r}") from error
    return dialect


@functools.cache
def dialects() -> tuple[Dialect, ...]:
    """All dialects, most specific first."""
    found = [parse_dialect(name, data) for name, data in knowledge.folder("dialects")]
    return tuple(sorted(found, key=lambda d: (-d.priority, d.name)))


def dialect(name: str) -> Dialect:
    return next(d for d in dialects() if d.name == name)


def _candidates(document: Document, nested: bool) -> Iterator[tuple[Table, Table]]:
    """(table, its root): the documents themselves and, for nested dialects, tables up to two levels below."""
    for root in document.tables():
        yield root, root
        if not nested:
            continue
        for entry in root.winners():
            if isinstance(entry.node, Table):
                yield entry.node, root
                for below in entry.node.winners():
                    if isinstance(below.node, Table):
                        yield below.node, root


def recognise(document: Document) -> list[View]:
    """The document as the dialects that its keys speak for: at most one dialect per table."""
    views: list[View] = []
    taken: set[int] = set()
    for candidate in dialects():
        if document.format not in candidate.formats:
            continue
        for table, root in _candidates(document, candidate.nested):
            if id(table) in taken or any(e.holds(table, root) for e in candidate.refuse):
                continue
            if any(all(e.holds(table, root) for e in group) for group in candidate.detect):
                taken.add(id(table))
                views.append(view(candidate, document, table, root))
        if candidate.scattered and all(found.dialect.closes == "none" for found in views):
            for root in document.tables():
                table = gathered(root)
                if any(e.holds(table, root) for e in candidate.refuse):
                    continue
                if any(all(e.holds(table, root) for e in group) for group in candidate.detect):
                    views.append(view(candidate, document, table, root))
    return views


def gathered(root: Table) -> Table:
    """All values of a document in one table, by their last key; keys that are written more than once are left out."""
    seen: dict[str, list[Entry]] = {}
    for _, entry in walk(root):
        if not isinstance(entry.node, Table):
            seen.setdefault(entry.key, []).append(entry)
    return Table(tuple(entries[0] for entries in seen.values() if len(entries) == 1), root.mark)


def view(of: Dialect, document: Document, table: Table, root: Table | None = None) -> View:
    """The facts of one table under a dialect that is already known."""
    root = root or table
    facts: dict[str, Fact] = {}
    for role, keys in of.roles.items():
        for key in keys:
            entry = table.find(key)
            if entry is not None and not isinstance(entry.node, Table):
                value = resolve(entry, root)
                if value is None:
                    continue
                facts[role] = Fact(role, value, key, document.path, entry.mark)
                break
        else:
            if role in of.defaults:
                facts[role] = Fact(
                    role, of.defaults[role], keys[0], document.path, Mark(1, 1, 1, 1), stated=False
                )
    count, used = count_ranks(of.ranks, document.path, table, root)
    return View(of, document, table, root, facts, count, used)


def device_count(entry: Entry, root: Table) -> int | None:
    """How many devices a ``devices``-like value means: a number, a list, or ``"0,1,2"``; -1 and "auto" are unknown."""
    if isinstance(entry.node, Listing):
        return len(entry.node.items) or None
    value = resolve(entry, root)
    if isinstance(value, str) and re.fullmatch(r"\d+(\s*,\s*\d+)+", value.strip()):
        return value.count(",") + 1
    number = whole(value)
    return number if number is not None and number > 0 else None


def count_ranks(spec: Ranks, path: str, table: Table, root: Table) -> tuple[int | None, tuple[Fact, ...]]:
    """The number of data-parallel ranks that the file itself fixes, and the values it comes from."""
    used: list[Fact] = []

    def first(keys: tuple[str, ...]) -> tuple[bool, int | None]:
        for key in keys:
            entry = table.find(key)
            if (
                entry is None
                or isinstance(entry.node, Table)
                or (isinstance(entry.node, Scalar) and entry.value is None)
            ):
                continue
            number = device_count(entry, root)
            if number is not None:
                used.append(Fact("ranks", number, key, path, entry.mark))
            return True, number
        return False, None

    if spec.data_parallel:
        product = 1
        for key, default in spec.data_parallel:
            stated, number = first((key,))
            if number is None and (stated or default is None):
                return None, ()
            product *= number if number is not None else default  # type: ignore[operator]
        return product, tuple(used)
    stated, count = first(spec.total)
    if not stated:
        stated, per_node = first(spec.per_node)
        if per_node is None:
            return None, ()
        stated, nodes = first(spec.nodes)
        if nodes is None:
            if stated or spec.nodes_default is None:
                return None, ()
            nodes = spec.nodes_default
        count = per_node * nodes
    if count is None:
        return None, ()
    for key in spec.divide_by:
        stated, number = first((key,))
        if stated and number is None:
            return None, ()
        if number and number > 1:
            if count % number:
                return None, ()
            count //= number
    return count, tuple(used)


@functools.cache
def evidence_words() -> tuple[tuple[frozenset[str], tuple[tuple[bytes, ...], ...]], ...]:
    """Per dialect: its formats and, per detecting group, the words that must all stand in the bytes."""
    table = []
    for d in dialects():
        groups = tuple(tuple(part.encode() for e in group for part in e.key.split(".")) for group in d.detect)
        table.append((frozenset(d.formats), groups))
    return tuple(table)
