"""Where in the user's files something happens: enclosing loops and conditions of a line, read off the syntax tree.

The child asks for the loops of a frame's line, to tell iterations apart; the parent asks for the conditions, so
that a recorded event stands behind the same ``if`` as a simulated one. Standard library only: the child imports it.
"""

from __future__ import annotations

import ast
import functools
import os
import sys
import sysconfig
from dataclasses import dataclass

MAX_SOURCE_BYTES = 2_000_000  # a longer file is no training script; its lines then have no loops


@dataclass(frozen=True)
class Loop:
    """A ``for`` or ``while`` statement: where it stands, and the names that tell its iterations apart.

    ``names``: targets of a ``for`` that its body never assigns again; ``breaks``: it can be left before its end.
    """

    line: int
    end: int
    names: tuple[str, ...]
    breaks: bool
    is_for: bool


@dataclass(frozen=True)
class Spot:
    """What encloses a line within its function, outermost first: loops, and lines of conditions."""

    loops: tuple[Loop, ...]
    gates: tuple[int, ...]
    statement: int  # first line of the innermost simple statement


_HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "")
_NOWHERE = Spot((), (), 0)


class FileMap:
    """Loops and conditions of one source file, by line. A file that can't be parsed has none."""

    def __init__(self, source: bytes) -> None:
        self.spots: dict[int, Spot] = {}
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return
        self._block(tree.body, (), ())

    def at(self, line: int) -> Spot:
        return self.spots.get(line, _NOWHERE)

    def _block(self, body: list[ast.stmt], loops: tuple[Loop, ...], gates: tuple[int, ...]) -> None:
        for statement in body:
            self._statement(statement, loops, gates)

    def _mark(self, first: int, last: int, loops: tuple[Loop, ...], gates: tuple[int, ...]) -> None:
        spot = Spot(loops, gates, first)
        for line in range(first, last + 1):
            self.spots[line] = spot

    def _statement(self, node: ast.stmt, loops: tuple[Loop, ...], gates: tuple[int, ...]) -> None:
        self._mark(node.lineno, node.end_lineno or node.lineno, loops, gates)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            self._block(node.body, (), ())  # a function's body runs when it is called, not where it stands
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            inner = (*loops, _loop(node))
            header_end = (node.iter if isinstance(node, (ast.For, ast.AsyncFor)) else node.test).end_lineno or node.lineno
            self._block(node.body, inner, gates)
            self._block(node.orelse, loops, gates)
            # the header fetches the next element: it belongs to the loop
            self._mark(node.lineno, header_end, inner, gates)
        elif isinstance(node, ast.If):
            header_end = node.test.end_lineno or node.lineno
            self._block(node.body, loops, (*gates, node.lineno))
            self._block(node.orelse, loops, (*gates, node.lineno))
            self._mark(node.lineno, header_end, loops, gates)
        else:
            for name in ("body", "orelse", "finalbody"):
                self._block(getattr(node, name, None) or [], loops, gates)
            for handler in getattr(node, "handlers", None) or []:
                self._block(handler.body, loops, gates)
            for case in getattr(node, "cases", None) or []:
                self._block(case.body, loops, (*gates, node.lineno))


def _names(target: ast.expr) -> set[str]:
    return {part.id for part in ast.walk(target) if isinstance(part, ast.Name)}


def _loop(node: ast.For | ast.AsyncFor | ast.While) -> Loop:
    stored: set[str] = set()
    breaks = False
    depth_of_loops = [(statement, 0) for statement in node.body]
    while depth_of_loops:
        current, depth = depth_of_loops.pop()
        if isinstance(current, ast.Break) and depth == 0 or isinstance(current, ast.Return):
            breaks = True
        if isinstance(current, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(current, ast.Name) and isinstance(current.ctx, (ast.Store, ast.Del)):
            stored.add(current.id)
        deeper = depth + isinstance(current, (ast.For, ast.AsyncFor, ast.While))
        depth_of_loops.extend((child, deeper) for child in ast.iter_child_nodes(current))
    is_for = not isinstance(node, ast.While)
    targets = _names(node.target) - stored if is_for else set()  # type: ignore[union-attr]
    return Loop(node.lineno, node.end_lineno or node.lineno, tuple(sorted(targets)), breaks, is_for)


@functools.lru_cache(maxsize=256)
def file_map(path: str) -> FileMap:
    """The map of a file on disk; an unreadable or huge file gives an empty one."""
    try:
        if os.path.getsize(path) > MAX_SOURCE_BYTES:
            return FileMap(b"")
        with open(path, "rb") as stream:
            return FileMap(stream.read())
    except OSError:
        return FileMap(b"")


def library_folders() -> tuple[str, ...]:
    """Folders whose code is not the user's: the standard library and installed packages, and this package's probe."""
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {path for path in sys.path if path.rstrip("/\\").endswith(("site-packages", "dist-packages"))}
    found.add(os.path.dirname(os.path.abspath(__file__)))
    return tuple(sorted(os.path.join(os.path.realpath(path), "") for path in found if path))


class UserFiles:
    """Decides whether a code file is the user's. ``main`` always is, wherever it lies."""

    def __init__(self) -> None:
        self._folders = library_folders()
        self._known: dict[str, str] = {}

    def name(self, filename: str) -> str:
        """The real path of a user's file, an empty string for everything else."""
        known = self._known.get(filename)
        if known is None:
            known = self._known[filename] = self._decide(filename)
        return known

    def passes(self, filename: str) -> bool:
        """The file is torch's own or the recorder's: a call through it still comes from whoever called it."""
        return filename.startswith(("<", _HERE)) or f"{os.sep}torch{os.sep}" in filename or filename.endswith(("contextlib.py", "functools.py"))

    def _decide(self, filename: str) -> str:
        if filename.startswith("<"):
            return ""
        path = os.path.realpath(filename)
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        if main is not None and os.path.realpath(main) == path and not path.startswith(self._folders[0]):
            return "" if "torch" in path.split(os.sep) else path
        return "" if path.startswith(self._folders) or "site-packages" in path else path
