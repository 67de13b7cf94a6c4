"""Takes whole statements out of one place and puts them into another, comments and layout included."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from accumlint.static.fixes.editing import Change
from accumlint.static.fixes.names import walk
from accumlint.static.fixes.script import Block, Script


@dataclass(frozen=True)
class Lifted:
    """A statement taken out: its lines without indentation or line ends, and the change that removes it.

    ``fixed`` are the indices of lines that lie inside a string and must not be re-indented.
    """

    lines: tuple[str, ...]
    fixed: frozenset[int]
    change: Change
    small: bool  # one simple statement on one line, without a comment


def children(block: Block) -> Sequence[cst.CSTNode]:
    """The statements of a block."""
    return block.body


def last_line(script: Script, statement: cst.CSTNode) -> int:
    """The last line of a statement: that of its last inner statement, trailing comments of a block left out."""
    if isinstance(statement, (cst.BaseCompoundStatement, cst.Else, cst.Finally, cst.ExceptHandler)):
        orelse = getattr(statement, "finalbody", None) or getattr(statement, "orelse", None)
        if orelse is not None:
            return last_line(script, orelse)
        body = getattr(statement, "body", None)
        if isinstance(body, cst.IndentedBlock) and body.body:
            return last_line(script, body.body[-1])
        if isinstance(body, cst.SimpleStatementSuite):
            return script.lines.place(script.end(body.body[-1]))[0]
    if isinstance(statement, cst.SimpleStatementLine):
        return script.lines.place(script.end(statement.body[-1]))[0]
    return script.lines.place(script.end(statement))[0]


def first_line(script: Script, statement: cst.CSTNode) -> int:
    """The first line of a statement, with comments directly above it that are indented like it."""
    line = script.line(statement)
    decorators = getattr(statement, "decorators", ())
    if decorators:
        line = script.line(decorators[0])
    indent = script.indentation(statement)
    while line > 1:
        above = script.lines.content(line - 1)
        if not above.startswith(indent + "#"):
            break
        line -= 1
    return line


def shares_line(script: Script, statement: cst.CSTNode) -> bool:
    """Whether other statements stand on the lines of this one (``a; b`` or ``if x: a``)."""
    parent = script.parent(statement)
    if isinstance(parent, cst.SimpleStatementLine):
        return len(parent.body) > 1
    return isinstance(parent, cst.SimpleStatementSuite)


def whole(script: Script, statement: cst.CSTNode) -> cst.CSTNode:
    """The line of a simple statement that stands alone on it, else the statement itself."""
    parent = script.parent(statement)
    if isinstance(parent, cst.SimpleStatementLine) and len(parent.body) == 1:
        return parent
    return statement


def lift(script: Script, statement: cst.CSTNode) -> Lifted:
    """Take one statement out of its block; where the block would be empty, ``pass`` stays."""
    statement = whole(script, statement)
    if shares_line(script, statement):
        return _lift_small(script, statement)
    first, last = first_line(script, statement), last_line(script, statement)
    indent = script.indentation(statement)
    raw = [script.lines.content(number) for number in range(first, last + 1)]
    inside = string_lines(script, statement)
    fixed = frozenset(number - first for number in inside)
    lines = tuple(
        line if number in fixed or not line.startswith(indent) else line[len(indent) :]
        for number, line in enumerate(raw)
    )
    small = len(lines) == 1 and isinstance(statement, cst.SimpleStatementLine) and "#" not in lines[0]
    block, _ = script.block_of(statement)
    if len(children(block)) == 1:
        change = Change(
            script.lines.offset(first, 1), script.lines.offset(last, len(raw[-1]) + 1), f"{indent}pass"
        )
    else:
        change = removal(script, first, last)
    return Lifted(lines, fixed, change, small)


def removal(script: Script, first: int, last: int) -> Change:
    """Take whole lines out; a text without a final line end stays one, blank lines around them become one."""
    start, end = script.lines.offset(first, 1), script.lines.end(last)
    if (
        1 < first
        and last < len(script.lines)
        and not (script.lines.content(first - 1) + script.lines.content(last + 1)).strip()
    ):
        return Change(start, script.lines.end(last + 1), "")  # one of two blank lines that would meet
    if end == len(script.text) and not script.lines.ending(last) and first > 1:
        start -= len(script.lines.ending(first - 1))
    return Change(start, end, "")


def _lift_small(script: Script, statement: cst.CSTNode) -> Lifted:
    """One of several statements on a line, with the semicolon that parts it from its neighbour."""
    parent = script.parent(statement)
    assert isinstance(parent, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
    body = list(parent.body)
    index = next(i for i, each in enumerate(body) if each is statement)
    code = script.code(statement)
    if len(body) == 1:
        change = Change(script.start(statement), script.end(statement), "pass")
    elif index + 1 < len(body):
        change = Change(script.start(statement), script.start(body[index + 1]), "")
    else:
        change = Change(script.end(body[index - 1]), script.end(statement), "")
    lines = tuple(code.splitlines())
    return Lifted(lines, frozenset(), change, len(lines) == 1)


def string_lines(script: Script, statement: cst.CSTNode) -> set[int]:
    """Lines that begin inside a string of the statement."""
    found: set[int] = set()
    for node in walk(statement):
        if isinstance(node, (cst.SimpleString, cst.FormattedString)):
            start = script.line(node)
            end = script.lines.place(script.end(node))[0]
            found.update(range(start + 1, end + 1))
    return found


def guarded(lifted: Lifted, test: str, indent: str) -> Lifted:
    """The same statement behind a condition."""
    lines = (
        f"if {test}:",
        *(line if i in lifted.fixed or not line else indent + line for i, line in enumerate(lifted.lines)),
    )
    return Lifted(lines, frozenset(i + 1 for i in lifted.fixed), lifted.change, False)


def guard_where_it_stands(script: Script, statement: cst.CSTNode, test: str) -> list[Change]:
    """Put a condition around a statement; empty where it shares its line with others."""
    statement = whole(script, statement)
    if shares_line(script, statement):
        return []
    start = script.start(statement)
    indent = script.indentation(statement)
    first, last = script.line(statement), last_line(script, statement)
    inside = string_lines(script, statement)
    changes = [Change(start, start, f"if {test}:{script.newline}{indent}{script.indent}")]
    for number in range(first + 1, last + 1):
        if number not in inside and script.lines.content(number).strip():
            at = script.lines.offset(number, 1)
            changes.append(Change(at, at, script.indent))
    return changes


def written(code: str) -> Lifted:
    """A new statement of one or more lines, for :func:`put`."""
    lines = tuple(code.split("\n"))
    return Lifted(lines, frozenset(), Change(0, 0, ""), len(lines) == 1 and not code.rstrip().endswith(":"))


def put(script: Script, lifted: Lifted, beside: cst.CSTNode, after: bool) -> Change | None:
    """Write the statement before or after another one, in its block; None where the layout has no room for it."""
    beside = whole(script, beside)
    if shares_line(script, beside):
        if not lifted.small:
            return None
        if after:
            return Change(script.end(beside), script.end(beside), f"; {lifted.lines[0]}")
        return Change(script.start(beside), script.start(beside), f"{lifted.lines[0]}; ")
    indent = script.indentation(beside)
    lines = [line if i in lifted.fixed or not line else indent + line for i, line in enumerate(lifted.lines)]
    at_line = last_line(script, beside) if after else first_line(script, beside)
    ending = script.lines.ending(at_line) or script.lines.ending(max(at_line - 1, 1)) or "\n"
    body = ending.join(lines)
    if not after:
        at = script.lines.offset(at_line, 1)
        return Change(at, at, body + ending)
    at = script.lines.end(at_line)
    if not script.lines.ending(at_line):
        return Change(at, at, ending + body)
    return Change(at, at, body + ending)
