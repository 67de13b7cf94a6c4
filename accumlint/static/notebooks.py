"""Notebooks as Python: code cells joined into one source, with a map back to the cell and to the file.

Everything behind this module works on the joined text, whose lines are the lines of the code cells one below
the other; reports translate places when they print them. What a notebook adds to Python (magics, shell
escapes, help) is taken out line by line, so that every line keeps its number and every statement its column.
A cell that still can't be parsed is left out of the program, and said. A cell that writes a Python file
(``%%writefile train.py``) is a program of its own.
"""

from __future__ import annotations

import ast
import bisect
import functools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from accumlint.findings import Span
from accumlint.static.sieve import speaks_of_training


class NotebookError(ValueError):
    """The file is no notebook that can be read; ``line`` and ``column`` say where, counted from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1):
        super().__init__(message)
        self.line = line
        self.column = column


class Cell(NamedTuple):
    """One code cell: its number among all cells, from 1; its text with ``\\n`` line ends; and for each of its
    lines the offset in the file's text where it begins (empty where there is no file).
    """

    number: int
    text: str
    starts: tuple[int, ...] = ()


class Broken(NamedTuple):
    """A cell that can't be parsed: a place in the joined text (from 1), and whether the cell speaks of
    training.
    """

    cell: int
    line: int
    column: int
    message: str
    speaks_of_training: bool


class Notebook(NamedTuple):
    """A notebook as the checks see it.

    ``text`` is the joined source of the ``cells`` as people wrote it. Each of ``programs`` has exactly its lines,
    those that belong to something else empty: the notebook itself first, then the Python files that cells write.
    ``lines`` says for each of these lines the cell and the line in it, from 1; ``starts`` the offset in
    ``raw``, the text of the file.
    """

    text: str
    lines: tuple[tuple[int, int], ...]
    cells: tuple[Cell, ...] = ()
    starts: tuple[int, ...] = ()
    raw: str = ""

    @property
    def programs(self) -> tuple[bytes, ...]:
        """The code, worked out when asked for: who only shows a place needs none."""
        return _programs(self.cells)[0]

    @property
    def broken(self) -> tuple[Broken, ...]:
        """The cells that can't be parsed."""
        return _programs(self.cells)[1]

    def cell(self, line: int) -> tuple[int, int]:
        """Cell and line in it, both from 1, for a line of the joined text."""
        if not self.lines:
            return 1, 1
        return self.lines[min(max(line, 1), len(self.lines)) - 1]

    def in_file(self, span: Span) -> Span:
        """The place of the same text in the file, for readers that know lines and nothing of cells."""
        if not self.starts:
            return Span(span.path, 1, 1, 1, 1)
        line, column = self._file_place(span.line, span.column)
        end_line, end_column = line, column
        if span.end_column:
            end_line, end_column = self._file_place(span.end_line or span.line, span.end_column)
        return Span(span.path, line, column, end_line, end_column)

    def offset(self, line: int, column: int) -> int:
        """Where in ``raw`` a place of the joined text stands."""
        offset = self.starts[min(max(line, 1), len(self.starts)) - 1]
        for _ in range(column - 1):
            match = _CHARACTER.match(self.raw, offset)
            if match is None:  # the closing quote, or an end of line
                break
            offset = match.end()
        return offset

    def _file_place(self, line: int, column: int) -> tuple[int, int]:
        offset = self.offset(line, column)
        ends = _line_starts(self.raw)
        row = bisect.bisect_right(ends, offset) - 1
        return row + 1, offset - ends[row] + 1

    def raw_line(self, number: int) -> str | None:
        """One line of the file, None where there is none."""
        rows = _line_starts(self.raw)
        if not 1 <= number <= len(rows):
            return None
        end = rows[number] - 1 if number < len(rows) else len(self.raw)
        return self.raw[rows[number - 1] : end]


# one code point of text as JSON writes it, unless it ends the line or the string
_CHARACTER = re.compile(
    r'\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u(?!000[aA])[0-9a-fA-F]{4}|\\[^un]|[^\\"\n]'
)


@functools.lru_cache(maxsize=8)
def _line_starts(raw: str) -> list[int]:
    return [0, *(match.end() for match in re.finditer("\n", raw))]


# --- the file --------------------------------------------------------------------------------------------


def read(data: bytes) -> Notebook | None:
    """The notebook in a file (format 3 or 4), None where its language isn't Python.

    Raises :class:`NotebookError` with the place where the file is no notebook.
    """
    try:
        raw = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise NotebookError(f"cannot be decoded as {error.encoding}: {error.reason}", line) from error
    try:
        document = json.loads(raw)
    except json.JSONDecodeError as error:
        raise NotebookError(f"no notebook: {error.msg}", error.lineno, error.colno) from error
    except RecursionError as error:
        raise NotebookError("no notebook: it is nested too deeply") from error
    cells = list(_code_cells(document, raw))
    if not _is_python(document):
        return None
    return join(cells)._replace(raw=raw)


def _is_python(document: Any) -> bool:
    metadata = document.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        told = metadata.get(key)
        if isinstance(told, dict) and isinstance(told.get(name), str):
            return told[name].lower().startswith(("python", "ipython"))
    return True


def _code_cells(document: Any, raw: str) -> Iterator[Cell]:
    """The code cells of a parsed notebook, with the places that a second look at the raw text gives."""
    if not isinstance(document, dict):
        raise NotebookError("no notebook: it holds no object")
    if isinstance(document.get("cells"), list):
        parts: list[tuple[tuple, list, str]] = [(("cells",), document["cells"], "source")]
    elif isinstance(document.get("worksheets"), list):  # format 3
        parts = [
            (("worksheets", index, "cells"), sheet["cells"], "input")
            for index, sheet in enumerate(document["worksheets"])
            if isinstance(sheet, dict) and isinstance(sheet.get("cells"), list)
        ]
    else:
        raise NotebookError("no notebook: it has no list of cells")
    literals = _literals(raw)
    number = 0
    for path, cells, key in parts:
        for index, cell in enumerate(cells):
            number += 1
            if not isinstance(cell, dict) or cell.get("cell_type") != "code" or key not in cell:
                continue
            if str(cell.get("language", "python")).lower() not in ("python", "ipython"):
                continue
            place = (*path, index, key)
            written = cell[key]
            pieces = [written] if isinstance(written, str) else written
            if not isinstance(pieces, list) or not all(isinstance(piece, str) for piece in pieces):
                raise NotebookError(f"no notebook: the source of cell {number} is no text")
            places = [place] if isinstance(written, str) else [(*place, each) for each in range(len(pieces))]
            yield _cell(number, pieces, [literals[each] for each in places])


def _cell(number: int, pieces: Sequence[str], places: Sequence[Sequence[int]]) -> Cell:
    """One cell out of the pieces of its source and, for each, where it begins and where its line ends end.

    A piece goes on where the one before it ended, in the same line if that wasn't ended.
    """
    starts: list[int] = []
    fresh = True
    for piece, (begin, *ends) in zip(pieces, places):
        if fresh:
            starts.append(begin)
        fresh = piece.endswith("\n")
        starts += ends[:-1] if fresh else ends
    text = "".join(pieces)
    return Cell(number, text.replace("\r\n", "\n").replace("\r", " "), tuple(starts))


_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,]', re.DOTALL)
_LINE_END = re.compile(r"\\(?:(n|u000[aA])|u[0-9a-fA-F]{4}|.)", re.DOTALL)


def _literals(raw: str) -> dict[tuple, tuple[int, ...]]:
    """Path -> offsets at which the lines of a string begin, for strings that can be the source of a cell.

    ``raw`` is valid JSON; of keys that are written twice the last one counts, as it does for ``json``.
    """
    found: dict[tuple, tuple[int, ...]] = {}
    path: list[Any] = []  # for every open container the key or index of what comes next
    for match in _TOKEN.finditer(raw):
        token = match[0]
        first = token[0]
        if first == "{":
            path.append("")
        elif first == "[":
            path.append(0)
        elif first in "]}":
            path.pop()
        elif first == ",":
            if isinstance(path[-1], int):
                path[-1] += 1
        elif first == '"' and path:
            if isinstance(path[-1], str) and raw[match.end() : match.end() + 100].lstrip()[:1] == ":":
                path[-1] = json.loads(token)
            elif (
                path[0] in ("cells", "worksheets")
                and len(path) <= 6
                and ("source" in path or "input" in path)
            ):
                begin = match.start() + 1
                ends = [begin + each.end() for each in _LINE_END.finditer(token[1:-1]) if each[1]]
                found[tuple(path)] = (begin, *ends)
    return found


# --- cells -> programs -----------------------------------------------------------------------------------


def join(cells: Sequence[Cell]) -> Notebook:
    """The code cells as one text."""
    texts: list[str] = []
    lines: list[tuple[int, int]] = []
    starts: list[int] = []
    located = bool(cells) and all(cell.starts for cell in cells if cell.text)
    for cell in cells:
        own = _lines_of(cell)
        texts += own
        lines += [(cell.number, each) for each in range(1, len(own) + 1)]
        if located:
            known = list(cell.starts) or [0]
            starts += (known + [known[-1]] * len(own))[: len(own)]
    return Notebook("\n".join(texts) + "\n" if texts else "", tuple(lines), tuple(cells), tuple(starts))


def _lines_of(cell: Cell) -> list[str]:
    own = cell.text.split("\n")
    if own[-1] == "" and len(own) > 1:
        own.pop()
    return own


@functools.lru_cache(maxsize=4)
def _programs(cells: tuple[Cell, ...]) -> tuple[tuple[bytes, ...], tuple[Broken, ...]]:
    """The programs in the cells, and the cells that are in none of them."""
    files: dict[str, dict[int, str]] = {}  # written file -> row of the joined text -> line
    program: list[str] = []
    broken: list[Broken] = []
    for cell in cells:
        own = _lines_of(cell)
        row = len(program)
        code, target, problem = _plain(own)
        if target:
            rows = files.setdefault(target, {})
            rows.update((row + each, line) for each, line in enumerate(own) if each > _magic_row(own))
        if problem is not None:
            line, column, message = problem
            about = speaks_of_training(cell.text.encode("utf-8", "surrogatepass"))
            broken.append(Broken(cell.number, row + line, column, message, about))
        program += code
    programs = [program]
    programs += [[rows.get(row, "") for row in range(len(program))] for rows in files.values()]
    return tuple(map(_encode, programs)), tuple(broken)


def _encode(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode("utf-8", "backslashreplace") if lines else b""


# Cell magics whose body runs in the notebook as Python; of an unknown one the body is looked at if it parses.
_PYTHON_BODIES = frozenset("time timeit capture prun memit mprun lprun snakeviz debug heat px wandb".split())
_FOREIGN_BODIES = frozenset(
    "bash sh script cmd html javascript js latex markdown svg perl ruby r sql bigquery cython cu writefile file"
    " python python2 python3 pypy shell sx system bigquery".split()
)
_CELL_MAGIC = re.compile(r"%%(?P<name>\w*)(?P<rest>.*)")


def _magic_row(lines: Sequence[str]) -> int:
    """The row of the first line that is neither blank nor a comment, -1 where there is none."""
    return next((row for row, line in enumerate(lines) if line.strip() and line.lstrip()[0] != "#"), -1)


def _plain(lines: Sequence[str]) -> tuple[list[str], str, tuple[int, int, str] | None]:
    """The lines of a cell as Python, as many as before; the Python file that it writes; what can't be parsed."""
    nothing = [""] * len(lines)
    row = _magic_row(lines)
    head = _CELL_MAGIC.match(lines[row]) if row >= 0 else None
    if head is None:
        code, problem = _parsable(list(lines))
        return (code, "", None) if problem is None else (nothing, "", problem)
    name = head["name"].lower()
    if name in ("writefile", "file"):
        words = [word for word in head["rest"].split() if not word.startswith("-")]
        return nothing, words[0] if words and words[0].endswith(".py") else "", None
    if name in _FOREIGN_BODIES:
        return nothing, "", None
    code, problem = _parsable(["" if each <= row else line for each, line in enumerate(lines)])
    if problem is None:
        return code, "", None
    return nothing, "", problem if name in _PYTHON_BODIES else None


def _parsable(lines: list[str]) -> tuple[list[str], tuple[int, int, str] | None]:
    """The lines as Python without what only a notebook understands, or where and why that failed."""
    problem = _problem(lines)
    if problem is None:
        return lines, None
    for keep_statements in (True, False):
        plain = without_magics(lines, keep_statements)
        left = _problem(plain)
        if left is None:
            return plain, None
    return (plain, None) if _newer_python(plain) else (lines, left)


def _problem(lines: Sequence[str]) -> tuple[int, int, str] | None:
    """Line, column (from 1) and message of what keeps the lines from being parsed."""
    try:
        ast.parse("\n".join(lines) + "\n")
    except SyntaxError as error:
        return min(error.lineno or 1, max(len(lines), 1)), max(error.offset or 1, 1), error.msg
    except (ValueError, RecursionError, MemoryError) as error:
        return 1, 1, str(error) or type(error).__name__
    return None


def _newer_python(lines: Sequence[str]) -> bool:
    """Whether the checks can read what this Python can't."""
    import libcst

    try:
        libcst.parse_module("\n".join(lines) + "\n")
    except Exception:  # noqa: BLE001 - whatever it is, the cell stays unread
        return False
    return True


# --- magics ----------------------------------------------------------------------------------------------

# Line magics in front of a statement, which stays
_TIMED = re.compile(r"%{1,2}(?:time|timeit|prun|memit|lprun|mprun)(?:\s+-\w+(?:\s+\d+)?)*\s+(?=[^\s-])")
_ASSIGNED = re.compile(r"^(\s*[A-Za-z_][\w.,\[\]'\" ]*=\s*)(?:!|%\w)")
_HELP = re.compile(r"^\s*\??\??[%\w.*\[\]()'\"]+\?{1,2}\s*$")
# commands that IPython runs without any mark
_BARE = re.compile(r"^\s*(?:pip3?|conda|mamba|cd|ls|cat|cp|mv|rm|mkdir|rmdir|man|more|less)\s+[\w.~/\-]")
_PIECE = re.compile(
    r"""(?P<comment>\#.*)
    |[rRbBuUfFtT]{0,2}(?P<long>\"{3}|'{3})
    |[rRbBuUfFtT]{0,2}(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<open>[(\[{])|(?P<close>[)\]}])
    |(?P<goes_on>\\$)
    |.""",
    re.VERBOSE,
)


def without_magics(lines: Sequence[str], keep_statements: bool = True) -> list[str]:
    """The lines with magics, shell escapes and questions replaced by statements that do nothing.

    Lines inside strings and brackets, where such marks are Python, stay. With ``keep_statements`` the
    statement behind ``%time`` and its like stays too, in its column.
    """
    found: list[str] = []
    quote, depth, goes_on, command_goes_on = "", 0, False, False
    for line in lines:
        if command_goes_on:
            found.append("")
            command_goes_on = line.rstrip().endswith("\\")
            continue
        if not quote and not depth and not goes_on:
            plain = _without_magic(line, keep_statements)
            if plain is not None:
                found.append(plain)
                command_goes_on = line.rstrip().endswith("\\")
                continue
        found.append(line)
        quote, depth, goes_on = _after(line, quote, depth)
    return found


def _without_magic(line: str, keep_statements: bool) -> str | None:
    """The line with its magic replaced, None where it has none."""
    stripped = line.lstrip()
    indent = line[: len(line) - len(stripped)]
    if keep_statements and (timed := _TIMED.match(stripped)):
        return f"{indent}{'0':<{timed.end() - 2}}; {stripped[timed.end() :]}"
    if stripped.startswith(("%", "!", "?")) or _HELP.match(line) or _BARE.match(line):
        return indent + "pass"
    assigned = _ASSIGNED.match(line)
    return assigned[1] + "None" if assigned else None


def _after(line: str, quote: str, depth: int) -> tuple[str, int, bool]:
    """The open quote, the open brackets, and whether the statement goes on, behind a line."""
    goes_on = False
    position = 0
    while position < len(line):
        if quote:
            end = re.compile(r"(?:[^\\]|\\.)*?" + quote).match(line, position)
            if end is None:
                return quote, depth, False
            quote, position = "", end.end()
            continue
        match = _PIECE.match(line, position)
        if match is None:
            break
        if match["long"]:
            quote = match["long"]
        elif match["open"]:
            depth += 1
        elif match["close"]:
            depth = max(depth - 1, 0)
        elif match["goes_on"]:
            goes_on = True
        position = match.end()
    return quote, depth, goes_on


def script_without_magics(data: bytes) -> bytes | None:
    """A script with cells (``# %%``) as Python, None where it needs nothing or can't be decoded."""
    import io
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        lines = data.decode(encoding).split("\n")
        plain = "\n".join(without_magics(lines)).encode(encoding)
    except (SyntaxError, UnicodeError, LookupError):
        return None
    return None if plain == data else plain


_CELL_IN_A_STRING = re.compile(rb"run_cell_magic\(\s*['\"](\w+)['\"]\s*,(.*)")


def code_in_strings(data: bytes) -> list[int]:
    """Lines, from 1, of an exported notebook on which a cell magic holds training code as a string."""
    found = []
    for number, line in enumerate(data.split(b"\n"), 1):
        match = _CELL_IN_A_STRING.search(line)
        if match and match[1].decode() in _PYTHON_BODIES and speaks_of_training(match[2]):
            found.append(number)
    return found
