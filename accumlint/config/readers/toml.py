"""TOML to a positioned tree: ``tomllib`` decides the values, a line scan finds where they stand.

``tomllib`` gives no positions. The scan follows table headers and ``key =`` lines outside multi-line strings;
a value whose line it cannot find (exotic quoting) gets the line of its table, never a wrong value.
"""

from __future__ import annotations

import datetime
import re
import sys
from typing import Any

from accumlint.config.readers import MAX_DEPTH
from accumlint.config.tree import Document, Entry, Listing, Mark, Node, Problem, Scalar, Table

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover - the running version decides
    import tomli as tomllib

_PART = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*"
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY})[ \t]*\]\]?[ \t]*(?:#.*)?$")
_PAIR = re.compile(rf"[ \t]*({_KEY})[ \t]*=[ \t]*")
_VALUE_END = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^#"'])*""")
_ERROR_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")


def _parts(key: str) -> tuple[str, ...]:
    found = []
    for part in re.findall(_PART, key):
        if part[0] == '"':
            try:
                part = tomllib.loads(f"x = {part}")["x"]
            except tomllib.TOMLDecodeError:
                part = part[1:-1]
        elif part[0] == "'":
            part = part[1:-1]
        found.append(part)
    return tuple(found)


def positions(text: str) -> dict[tuple, tuple[Mark, Mark]]:
    """(key mark, value mark) by path; a table in an array of tables has its number in the path."""
    found: dict[tuple, tuple[Mark, Mark]] = {}
    counts: dict[tuple, int] = {}
    prefix: tuple = ()
    fence = ""
    depth = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip("\r")
        if fence:
            if fence in line:
                fence = ""
            continue
        if depth > 0:
            depth += _bracket_balance(line)
            continue
        header = _HEADER.match(line)
        if header:
            parts = _numbered(_parts(header.group(2)), counts, header.group(1) == "[[")
            prefix = parts
            mark = Mark(number, header.start(2) + 1, number, header.end(2) + 1)
            found.setdefault(prefix, (mark, mark))
            continue
        pair = _PAIR.match(line)
        if not pair:
            continue
        path = prefix + _parts(pair.group(1))
        rest = line[pair.end() :]
        end = pair.end() + len(_VALUE_END.match(rest).group().rstrip())  # type: ignore[union-attr]
        key_mark = Mark(number, pair.start(1) + 1, number, pair.end(1) + 1)
        found[path] = (key_mark, Mark(number, pair.end() + 1, number, end + 1))
        for quote in ('"""', "'''"):
            if rest.startswith(quote) and quote not in rest[3:]:
                fence = quote
        if not fence:
            depth = _bracket_balance(rest)
    return found


def _numbered(parts: tuple[str, ...], counts: dict[tuple, int], new: bool) -> tuple:
    path: tuple = ()
    for part in parts[:-1]:
        path += (part,)
        if path in counts:
            path += (counts[path] - 1,)
    path += (parts[-1],)
    if new:
        counts[path] = counts.get(path, 0) + 1
        path += (counts[path] - 1,)
    return path


def _bracket_balance(text: str) -> int:
    balance = 0
    for piece in re.finditer(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|#.*|[\[\]{}]', text):
        token = piece.group()
        balance += (token in "[{") - (token in "]}") if len(token) == 1 else 0
    return balance


def read_toml(path: str, text: str) -> Document:
    """The table of a TOML text."""
    try:
        data = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        place = _ERROR_PLACE.search(str(error))
        line, column = (int(place.group(1)), int(place.group(2))) if place else (1, 1)
        return Document(
            path, "toml", (), text, Problem(f"not valid TOML: {str(error).split(' (at ')[0]}", line, column)
        )
    marks = positions(text)
    top = Mark(1, 1, 1, 1)
    return Document(path, "toml", (_build(data, (), marks, top, 0),), text)


def _build(value: Any, path: tuple, marks: dict[tuple, tuple[Mark, Mark]], near: Mark, depth: int) -> Node:
    mark = marks.get(path, (near, near))[1]
    if depth > MAX_DEPTH:
        return Scalar(None, "", mark)
    if isinstance(value, dict):
        entries = []
        for key, item in value.items():
            key_mark, _ = marks.get((*path, key), (mark, mark))
            entries.append(Entry(key, key_mark, _build(item, (*path, key), marks, key_mark, depth + 1)))
        return Table(tuple(entries), mark)
    if isinstance(value, list):
        items = (_build(item, (*path, i), marks, mark, depth + 1) for i, item in enumerate(value))
        return Listing(tuple(items), mark)
    if isinstance(value, (datetime.date, datetime.time)):
        value = str(value)
    return Scalar(value, str(value), mark)
