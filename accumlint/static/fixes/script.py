"""One script as fixers see it: its text, its tree with positions and parents, and what happens in it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

import libcst as cst
from libcst.metadata import CodeRange

from accumlint.contract.events import Event, Kind, Trace
from accumlint.findings import Finding
from accumlint.static.engine import Examination
from accumlint.static.fixes.editing import Lines, decoded
from accumlint.static.positions import parents, ranges

Block = cst.IndentedBlock | cst.SimpleStatementSuite | cst.Module
FUNCTIONS = (cst.FunctionDef, cst.Lambda)


class Unfixable(ValueError):
    """The file can't be edited without changing bytes that no edit names."""


class Script:
    """Raises :class:`Unfixable` where text and tree don't tell the same."""

    def __init__(self, source: bytes, path: str, examined: Examination) -> None:
        read = decoded(source)
        if read is None:
            raise Unfixable(f"{path}: its encoding doesn't give back the same bytes")
        self.source, self.path = source, path
        self.text, self.encoding = read
        self.module = examined.module
        self.traces = [trace for trace in examined.traces if trace.disturbed is None]
        self.tree: cst.Module = self.module.tree
        if self.tree.code.removeprefix("\ufeff") != self.text:
            raise Unfixable(f"{path}: the parser doesn't give back the same text")
        self.lines = Lines(self.text)

    # the tree

    @functools.cached_property
    def _ranges(self) -> Mapping[cst.CSTNode, CodeRange]:
        return ranges(self.tree)

    @functools.cached_property
    def _parents(self) -> Mapping[cst.CSTNode, cst.CSTNode]:
        return parents(self.tree)

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        return self._parents.get(node)

    def start(self, node: cst.CSTNode) -> int:
        """Offset of the first character of a node, comments and indentation before it left out."""
        place = self._ranges[node].start
        return self.lines.offset(place.line, place.column + 1)

    def end(self, node: cst.CSTNode) -> int:
        """Offset behind the last character of a node."""
        place = self._ranges[node].end
        return (
            self.lines.offset(place.line, place.column + 1)
            if place.line <= len(self.lines)
            else len(self.text)
        )

    def line(self, node: cst.CSTNode) -> int:
        return self._ranges[node].start.line

    def code(self, node: cst.CSTNode) -> str:
        """The node as it is written."""
        return self.text[self.start(node) : self.end(node)]

    def outer_start(self, node: cst.CSTNode) -> int:
        """Like :meth:`start`, with the parentheses around an expression."""
        brackets = getattr(node, "lpar", ())
        return self.start(brackets[0]) if brackets else self.start(node)

    def outer_end(self, node: cst.CSTNode) -> int:
        """Like :meth:`end`, with the parentheses around an expression."""
        brackets = getattr(node, "rpar", ())
        return self.end(brackets[-1]) if brackets else self.end(node)

    def outer_code(self, node: cst.CSTNode) -> str:
        """The node as it is written, with the parentheses around it."""
        return self.text[self.outer_start(node) : self.outer_end(node)]

    def ancestors(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """The node itself and everything around it, the module last."""
        current: cst.CSTNode | None = node
        while current is not None:
            yield current
            current = self.parent(current)

    def statement(self, node: cst.CSTNode) -> cst.CSTNode:
        """The statement, simple or compound, whose own expressions hold the node."""
        for each in self.ancestors(node):
            if isinstance(each, (cst.BaseSmallStatement, cst.BaseCompoundStatement)):
                return each
        return node

    def block_of(self, statement: cst.CSTNode) -> tuple[Block, cst.CSTNode]:
        """The block that a statement stands in, and the child of the block that it is (part of)."""
        child = statement
        for each in self.ancestors(statement):
            if each is not statement and isinstance(
                each, (cst.IndentedBlock, cst.SimpleStatementSuite, cst.Module)
            ):
                return each, child
            child = each
        raise AssertionError("every statement stands in a module")

    def child_in(self, block: cst.CSTNode, node: cst.CSTNode) -> cst.CSTNode | None:
        """The direct child of a block that holds the node."""
        child = node
        for each in self.ancestors(node):
            if each is block:
                return child
            child = each
        return None

    def inside(self, node: cst.CSTNode, outer: cst.CSTNode) -> bool:
        return any(each is outer for each in self.ancestors(node))

    def function_of(self, node: cst.CSTNode) -> cst.CSTNode:
        """The function around a node, the module where there is none."""
        return next(
            (each for each in self.ancestors(node) if each is not node and isinstance(each, FUNCTIONS)),
            self.tree,
        )

    def class_of(self, function: cst.CSTNode) -> cst.ClassDef | None:
        """The class whose method a function is."""
        for each in self.ancestors(function):
            if each is not function and isinstance(each, FUNCTIONS):
                return None
            if isinstance(each, cst.ClassDef):
                return each
        return None

    @functools.cached_property
    def indent(self) -> str:
        return self.tree.default_indent

    @functools.cached_property
    def newline(self) -> str:
        """The line end of the file, that of its first line."""
        return self.lines.ending(1) or "\n"

    def indentation(self, node: cst.CSTNode) -> str:
        """The white space before the first statement on the node's line."""
        content = self.lines.content(self.line(node))
        return content[: len(content) - len(content.lstrip())]

    # what happens

    def node(self, site: int) -> cst.CSTNode | None:
        """The node of a site, None where it lies in another file."""
        return self.module.sites[site - self.module.base] if self.module.owns(site) else None

    def at(self, finding: Finding) -> cst.CSTNode | None:
        """The outermost node that starts where a finding does: its statement, or the expression that is blamed."""
        return self.starting_at(finding.span.line, finding.span.column)

    def starting_at(self, line: int, column: int) -> cst.CSTNode | None:
        return self._by_start.get((line, column))

    @functools.cached_property
    def _by_start(self) -> dict[tuple[int, int], cst.CSTNode]:
        found: dict[tuple[int, int], cst.CSTNode] = {}
        positions = self._ranges
        for node in self.module.sites:
            if node in positions:
                place = positions[node].start
                key = (place.line, place.column + 1)
                held = found.get(key)
                if held is None or self.inside(held, node):
                    found[key] = node
        return found

    def events_at(self, finding: Finding, *kinds: Kind) -> Iterator[tuple[Trace, int, Event]]:
        """(trace, position in it, event) of these kinds that happen where the finding stands, or are called from there."""
        here: dict[int, bool] = {}

        def stands_here(site: int) -> bool:
            if site not in here:
                node = self.node(site)
                place = self._ranges[node].start if node is not None else None
                here[site] = place is not None and (place.line, place.column + 1) == (
                    finding.span.line,
                    finding.span.column,
                )
            return here[site]

        for trace in self.traces:
            for number, event in enumerate(trace.events):
                if event.kind in kinds and any(map(stands_here, (event.site, *event.stack))):
                    yield trace, number, event
