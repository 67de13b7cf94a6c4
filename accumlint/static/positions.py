"""Places of syntax nodes, computed for the top-level statement that holds a node and not for the whole file.

libcst finds positions by writing the code of a tree once more, and its wrapper visits the tree on top of that: as much
work as parsing. Here the standard library's parser says where each top-level statement starts, and only the statement
that something is reported in is written. Where the two parsers disagree about the statements of a file (it is newer
than the running Python, say), the whole file is positioned as libcst does it.
"""

from __future__ import annotations

import ast
import bisect
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import CodeRange, MetadataWrapper, PositionProvider

from accumlint.static.structure import python_tree


class Place(NamedTuple):
    """Where a node stands: lines 1-based, columns 0-based in code points, as libcst counts them."""

    line: int
    column: int
    end_line: int
    end_column: int


class _Computed:
    """What libcst's state writes positions into."""

    def __init__(self) -> None:
        self._computed: dict[cst.CSTNode, CodeRange] = {}


class Positions:
    """Places of the nodes of one module.

    ``starts`` holds, for every top-level statement, the number of sites that were numbered before it.
    """

    def __init__(self, tree: cst.Module, source: bytes, starts: Sequence[int]) -> None:
        self._tree = tree
        self._source = source
        self._starts = starts
        self._python: list[ast.stmt | None] | None = None
        self._known: dict[int, tuple[Mapping[cst.CSTNode, CodeRange], int]] = {}

    def of(self, site: int, node: cst.CSTNode) -> Place | None:
        """The place of ``node``, which belongs to the top-level statement of the site (counted from 0)."""
        number = bisect.bisect_right(self._starts, site) - 1
        if number not in self._known:
            self._known[number] = self._statement(number)
        inside, shift = self._known[number]
        found = inside.get(node)
        if found is None:
            return None
        return Place(found.start.line + shift, found.start.column, found.end.line + shift, found.end.column)

    def definition(self, site: int, name: str) -> int | None:
        """The line of the only function of that name in the statement of the site; None if there are several, or none."""
        number = bisect.bisect_right(self._starts, site) - 1
        statement = self._in_python(number)
        if statement is None:
            return None
        found = [
            node.lineno for node in ast.walk(statement) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name
        ]
        return found[0] if len(found) == 1 else None

    def _statement(self, number: int) -> tuple[Mapping[cst.CSTNode, CodeRange], int]:
        """Positions inside one top-level statement, and the number of lines to add to them."""
        python = self._in_python(number)
        statement = self._tree.body[number] if python is not None else None
        inside = written(self._tree, statement) if statement is not None else None
        if python is None or not inside or statement not in inside:
            return self._whole(), 0
        return inside, python.lineno - inside[statement].start.line

    def _in_python(self, number: int) -> ast.stmt | None:
        """The first of the statements that Python sees in a top-level statement; None where the parsers disagree."""
        if self._python is None:
            try:
                statements = python_tree(self._source).body
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                statements = []
            found, position = [], 0
            for statement in self._tree.body:
                found.append(statements[position] if position < len(statements) else None)
                position += len(statement.body) if isinstance(statement, cst.SimpleStatementLine) else 1
            self._python = found if position == len(statements) else []
        return self._python[number] if 0 <= number < len(self._python) else None

    def _whole(self) -> Mapping[cst.CSTNode, CodeRange]:
        if -1 not in self._known:
            self._known[-1] = (ranges(self._tree), 0)
        return self._known[-1][0]


def ranges(tree: cst.Module) -> Mapping[cst.CSTNode, CodeRange]:
    """The positions of all nodes of a file, as libcst gives them, without the visit that its wrapper makes besides."""
    found = written(tree, tree)
    return found if found else MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)


def parents(tree: cst.Module) -> dict[cst.CSTNode, cst.CSTNode]:
    """The parent of every node of a file."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}
    fields: dict[type, tuple[str, ...]] = {}
    pending: list[cst.CSTNode] = [tree]
    while pending:
        node = pending.pop()
        kind = type(node)
        names = fields.get(kind)
        if names is None:
            names = fields[kind] = tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]
        for name in names:
            value = getattr(node, name)
            for child in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(child, cst.CSTNode):
                    found[child] = node
                    pending.append(child)
    return found


def written(tree: cst.Module, statement: cst.CSTNode) -> Mapping[cst.CSTNode, CodeRange] | None:
    """Positions of all nodes of one statement, as if the file began with it; None where this libcst works otherwise."""
    try:
        from libcst.metadata.position_provider import PositionProvidingCodegenState

        computed = _Computed()
        state = PositionProvidingCodegenState(
            default_indent=tree.default_indent, default_newline=tree.default_newline, provider=computed  # type: ignore[arg-type]
        )
        statement._codegen(state)
    except (ImportError, AttributeError, TypeError):
        return None
    return computed._computed


def header(node: Any) -> Any:
    """The part of a compound statement at whose end its place ends, None for everything else."""
    if isinstance(node, (cst.If, cst.While)):
        return node.test
    if isinstance(node, cst.For):
        return node.iter
    if isinstance(node, cst.With):
        return node.items[-1].item
    if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
        return node.name
    return None
