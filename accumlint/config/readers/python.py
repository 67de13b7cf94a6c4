"""Python files that are configurations (mmengine) to a positioned tree: literals only, nothing is executed.

Module-level assignments become the table; ``dict(a=1)`` and ``{"a": 1}`` become tables; names that were
assigned before, and arithmetic on known numbers, are resolved; everything else is an opaque scalar.
"""

from __future__ import annotations

import ast
import warnings

from accumlint.config.readers import MAX_DEPTH
from accumlint.config.tree import Document, Entry, Listing, Mark, Node, Problem, Scalar, Table


class Opaque:
    """A value that only running the file would tell."""

    def __repr__(self) -> str:
        return "<computed>"


OPAQUE = Opaque()


def mark_of(node: ast.AST, lines: list[str]) -> Mark:
    """The extent of an ``ast`` node in code points (``ast`` counts UTF-8 bytes)."""
    line, end_line = node.lineno, node.end_lineno or node.lineno  # type: ignore[attr-defined]

    def column(number: int, offset: int) -> int:
        if 0 < number <= len(lines) and not lines[number - 1].isascii():
            return len(lines[number - 1].encode("utf-8")[:offset].decode("utf-8", "ignore")) + 1
        return offset + 1

    begin, end = node.col_offset, node.end_col_offset or 0  # type: ignore[attr-defined]
    return Mark(line, column(line, begin), end_line, column(end_line, end))


def parse(text: str) -> ast.Module | Problem:
    """The syntax tree, or why there is none. Silences the compiler's warnings about the user's strings."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except SyntaxError as error:
        return Problem(f"not valid Python: {error.msg}", error.lineno or 1, error.offset or 1)
    except (ValueError, RecursionError, MemoryError) as error:
        return Problem(f"not readable as Python: {type(error).__name__}", 1, 1)


def literal(node: ast.expr, known: dict[str, Node], lines: list[str], depth: int = 0) -> Node:
    """The node for an expression, opaque where it is not a literal."""
    mark = mark_of(node, lines)
    if depth > MAX_DEPTH:
        return Scalar(OPAQUE, "", mark)
    if isinstance(node, ast.Constant):
        return Scalar(node.value, str(node.value), mark)
    if isinstance(node, ast.Name):
        target = known.get(node.id)
        if isinstance(target, Scalar):
            return Scalar(target.value, target.text, mark)
        return target if target is not None else Scalar(OPAQUE, node.id, mark)
    if isinstance(node, (ast.List, ast.Tuple)):
        return Listing(tuple(literal(item, known, lines, depth + 1) for item in node.elts), mark)
    if isinstance(node, ast.Dict):
        entries, merged = [], []
        for key, value in zip(node.keys, node.values):
            below = literal(value, known, lines, depth + 1)
            if key is None:
                if isinstance(below, Table):
                    merged.append(below)
            elif isinstance(key, ast.Constant) and isinstance(key.value, str):
                entries.append(Entry(key.value, mark_of(key, lines), below))
        return Table(tuple(entries), mark, tuple(merged))
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "dict"
        and not node.args
    ):
        entries, merged = [], []
        for keyword in node.keywords:
            below = literal(keyword.value, known, lines, depth + 1)
            if keyword.arg is not None:
                entries.append(Entry(keyword.arg, mark_of(keyword, lines), below))
            elif isinstance(below, Table):
                merged.append(below)
        return Table(tuple(entries), mark, tuple(merged))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        below = literal(node.operand, known, lines, depth + 1)
        if isinstance(below, Scalar) and isinstance(below.value, (int, float)):
            return Scalar(-below.value, f"-{below.text}", mark)
    if isinstance(node, ast.BinOp):
        left, right = (
            literal(node.left, known, lines, depth + 1),
            literal(node.right, known, lines, depth + 1),
        )
        if isinstance(left, Scalar) and isinstance(right, Scalar):
            result = compute(node.op, left.value, right.value)
            if result is not None:
                return Scalar(result, str(result), mark)
    return Scalar(OPAQUE, "", mark)


def compute(op: ast.operator, left: object, right: object) -> int | float | None:
    """The result of ``+ - * / //`` on two modest numbers, else ``None``. Powers are left alone on purpose."""
    numbers = (int, float)
    if not (isinstance(left, numbers) and isinstance(right, numbers)) or max(abs(left), abs(right)) > 1e15:
        return None
    try:
        if isinstance(op, ast.Add):
            return left + right
        if isinstance(op, ast.Sub):
            return left - right
        if isinstance(op, ast.Mult):
            return left * right
        if isinstance(op, ast.FloorDiv):
            return left // right
        if isinstance(op, ast.Div):
            return left / right
        if isinstance(op, ast.Mod):
            return left % right
    except (ZeroDivisionError, OverflowError):
        return None
    return None


def read_python(path: str, text: str) -> Document:
    """The module-level assignments of a Python configuration."""
    module = parse(text)
    if isinstance(module, Problem):
        return Document(path, "python", (), text, module)
    lines = text.splitlines()
    known: dict[str, Node] = {}
    entries: list[Entry] = []
    try:
        for statement in module.body:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                target, value = statement.targets[0], statement.value
            elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                target, value = statement.target, statement.value
            else:
                continue
            if isinstance(target, ast.Name):
                node = literal(value, known, lines)
                known[target.id] = node
                entries.append(Entry(target.id, mark_of(target, lines), node))
    except RecursionError:
        return Document(path, "python", (), text, Problem("nested too deeply", 1, 1, "too-large"))
    return Document(path, "python", (Table(tuple(entries), Mark(1, 1, 1, 1)),), text)
