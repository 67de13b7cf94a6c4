"""Findings about the audit itself (clause C0): what can't be read, what wasn't followed, what hides nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accumlint.findings import Confidence, Finding, Severity, Span

if TYPE_CHECKING:
    from accumlint.static.notebooks import Broken


def _finding(rule: str, name: str, severity: Severity, span: Span, message: str) -> Finding:
    return Finding(rule, name, "C0", severity, Confidence.CERTAIN, span, message)


def syntax_error(path: str, message: str, line: int = 1, column: int = 1) -> Finding:
    """ACC001: the file can't be parsed, so nothing else is known about it."""
    span = Span(path, max(line, 1), max(column, 1), max(line, 1), max(column, 1))
    return _finding("ACC001", "syntax-error", Severity.ERROR, span, message)


def unused_suppression(span: Span, message: str) -> Finding:
    """ACC002: a suppression comment that hides nothing."""
    return _finding("ACC002", "unused-suppression", Severity.ADVICE, span, message)


def analysis_incomplete(path: str, reason: str, line: int = 1) -> Finding:
    """ACC003: the file, or a part of it, was not followed; ``reason`` says why."""
    return _finding("ACC003", "analysis-incomplete", Severity.ADVICE, Span(path, line, 1, line, 1), reason)


def unread_cell(path: str, cell: Broken) -> Finding:
    """A cell of a notebook that was left out: ACC001 where it speaks of training, else advice."""
    if cell.speaks_of_training:
        return syntax_error(path, f"this cell cannot be parsed: {cell.message}", cell.line, cell.column)
    span = Span(path, cell.line, cell.column, cell.line, cell.column)
    message = f"this cell cannot be parsed and was left out: {cell.message}"
    return _finding("ACC003", "analysis-incomplete", Severity.ADVICE, span, message)


def code_in_a_string(path: str, line: int) -> Finding:
    """ACC003 for the body of a cell magic in an exported notebook."""
    message = "training code stands in the string of a cell magic, and was not read: check the notebook itself"
    return analysis_incomplete(path, message, line)


def describe_syntax_error(path: str, data: bytes, error: Exception) -> Finding:
    """ACC001 for whatever a parser or decoder raised.

    The running Python is asked first: it names the place better than other parsers do. Where it accepts the
    file (or is too old for it) the given error has to speak.
    """
    if b"\0" in data:  # not every version of Python says where
        line = data[: data.index(b"\0")].count(b"\n") + 1
        return syntax_error(path, "cannot be parsed: the file holds a null byte", line)
    try:
        compile(data, path, "exec", dont_inherit=True)
    except SyntaxError as better:
        line, column = better.lineno or 1, better.offset or 1
        return syntax_error(path, f"cannot be parsed: {better.msg}", line, column)
    except (ValueError, RecursionError, MemoryError, UnicodeDecodeError) as better:
        return syntax_error(path, f"cannot be parsed: {better}")
    if isinstance(error, UnicodeDecodeError):
        line = data[: error.start].count(b"\n") + 1
        return syntax_error(path, f"cannot be decoded as {error.encoding}: {error.reason}", line)
    line = getattr(error, "raw_line", None) or getattr(error, "lineno", None) or 1
    column = getattr(error, "raw_column", None)
    column = (column + 1) if isinstance(column, int) else (getattr(error, "offset", None) or 1)
    text = getattr(error, "message", None) or getattr(error, "msg", None) or str(error)
    return syntax_error(path, f"cannot be parsed: {' '.join(str(text).split())}", line, column)
