"""The files around the one that is checked: imports inside the checked tree are followed, with a bound.

A project speaks for one script: what is followed, and how sites are numbered, does not depend on which scripts came
before. Only syntax trees are shared between scripts (:class:`Trees`). It writes down everything that it looked for,
found or not, so that a result can be kept for as long as none of it changes.
"""

from __future__ import annotations

import os
from pathlib import Path

import libcst as cst

from accumlint.static import syntax as ir
from accumlint.static.consulted import Consulted, digest
from accumlint.static.lowering import lower_module

SITES_PER_MODULE = 10_000_000
MAX_FOLLOWED = 40  # files followed from one script
MAX_BYTES = 400_000

# a file that has none of these words cannot change a window, a weight or a clock
_WORDS = (b"backward", b".step(", b"loss", b"no_sync", b"zero_grad", b"clip_grad", b"accum", b"all_reduce", b"scaler", b"dataloader", b"DataLoader", b"yield")

_UNREADABLE = (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, RecursionError, ValueError)


# followed files are numbered from here on: behind the script that is checked, whatever its project parsed before
_FIRST_FOLLOWED = 1_000_000


class Trees:
    """Followed files as several scripts share them, the least used ones forgotten.

    The number of a file comes from its name and content, not from the order in which files are met, so that a script gives
    the same whatever was analysed before it, and from whichever folder.
    """

    # with what is made of it a source takes some sixty times its own memory
    MAX_SOURCE_BYTES = 1_500_000

    def __init__(self) -> None:
        self._modules: dict[str, tuple[bytes, ir.Module | None]] = {}
        self._size = 0

    def module(self, path: Path, data: bytes) -> ir.Module | None:
        """A file parsed and lowered, None where that is not possible."""
        key = str(path)
        held = self._modules.pop(key, None)
        if held is not None:
            self._size -= len(held[0])
            if held[0] == data:
                return self._hold(key, data, held[1])
        name = "/".join(path.parts[-2:]).encode("utf-8", "surrogateescape")
        number = _FIRST_FOLLOWED + int(digest(name + b"\0" + data)[:8], 16)
        try:
            module = lower_module(cst.parse_module(data), _display(path), path.stem, number * SITES_PER_MODULE)
            module.source = data
        except _UNREADABLE:
            module = None
        return self._hold(key, data, module)

    def _hold(self, key: str, data: bytes, module: ir.Module | None) -> ir.Module | None:
        self._modules[key] = data, module
        self._size += len(data)
        while self._size > self.MAX_SOURCE_BYTES and len(self._modules) > 1:
            oldest = next(iter(self._modules))
            self._size -= len(self._modules.pop(oldest)[0])
        return module


class Project:
    """The tree around one script: finds modules for imports and remembers what it parsed.

    ``root`` is where absolute imports are looked up, after the folder of the importing file and its parents.
    """

    def __init__(self, root: str | os.PathLike[str] = ".", trees: Trees | None = None) -> None:
        self.root = Path(root)
        self.consulted = Consulted()
        self._trees = trees if trees is not None else Trees()
        self._modules: dict[str, ir.Module | None] = {}
        self._parsed = 0
        self._last: tuple[bytes, cst.Module] | None = None
        self._places: dict[tuple[str, str], Path | None] = {}

    def parse(self, data: bytes, path: str, name: str) -> ir.Module:
        """Parse and lower one file. Raises libcst.ParserSyntaxError, UnicodeDecodeError, RecursionError."""
        if self._last is None or self._last[0] != data:  # who tries a change out looks at the same text twice
            self._last = data, cst.parse_module(data)
        self._parsed += 1
        module = lower_module(self._last[1], path, name, self._parsed * SITES_PER_MODULE)
        module.source = data
        module.resolve = self.resolve
        return module

    def loaded(self) -> list[ir.Module]:
        """The modules that were followed so far."""
        return [module for module in self._modules.values() if module is not None]

    def resolve(self, importer: ir.Module, origin: str) -> ir.Module | None:
        """The module of the tree that an import names, or None: not in the tree, too large, or irrelevant."""
        found = self._find(importer, origin)
        if found is None:
            return None
        key = str(found)
        if key not in self._modules:
            self._modules[key] = None  # a cycle sees nothing of what is still being read
            if sum(m is not None for m in self._modules.values()) < MAX_FOLLOWED:
                self._modules[key] = self._read(found)
        return self._modules[key]

    def _read(self, path: Path) -> ir.Module | None:
        try:
            data = path.read_bytes()
        except OSError:
            self.consulted.content[str(path)] = ""
            return None
        self.consulted.content[str(path)] = digest(data)
        if len(data) > MAX_BYTES or not any(word in data for word in _WORDS):
            return None
        module = self._trees.module(path, data)
        if module is None or any(held is not None and held.base == module.base for held in self._modules.values()):
            return None  # a copy under the same name, or one of four billion others: it is not followed
        module.resolve = self.resolve
        return module

    def _find(self, importer: ir.Module, origin: str) -> Path | None:
        key = importer.path, origin
        if key not in self._places:
            self._places[key] = self._look(Path(importer.path).parent, origin)
        return self._places[key]

    def _look(self, folder: Path, origin: str) -> Path | None:
        level = len(origin) - len(origin.lstrip("."))
        parts = [part for part in origin.lstrip(".").split(".") if part]
        if level:
            for _ in range(level - 1):
                folder = folder.parent
            return self._module_at(folder, parts)
        if not parts:
            return None
        tried = set()
        for base in (folder, *list(folder.parents)[:4], self.root):
            if base in tried:
                continue
            tried.add(base)
            found = self._module_at(base, parts)
            if found is not None:
                return found
        return None

    def _module_at(self, folder: Path, parts: list[str]) -> Path | None:
        target = folder
        for part in parts:  # that a folder lacks a name is cheaper to know than that each file below is missing
            if not self.consulted.may_hold(str(target), part):
                return None
            target /= part
        if parts:
            single = target.with_suffix(".py") if "." not in target.name else None
            if single is not None and self.consulted.is_file(str(single)):
                return single
        package = target / "__init__.py"
        return package if self.consulted.is_file(str(package)) else None


def _display(path: Path) -> str:
    return os.path.relpath(path) if path.is_absolute() else str(path)
