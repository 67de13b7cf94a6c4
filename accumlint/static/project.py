"""The files around the one that is checked: imports inside the tree are followed, with a bound."""

from __future__ import annotations

import os
from pathlib import Path

import libcst as cst

from accumlint.static import syntax as ir
from accumlint.static.lowering import lower_module

SITES_PER_MODULE = 10_000_000
MAX_FOLLOWED = 40  # files followed from one script
MAX_BYTES = 400_000

# a file that has none of these words cannot change a window, a weight or a clock
_WORDS = (b"backward", b".step(", b"loss", b"no_sync", b"zero_grad", b"clip_grad", b"accum", b"all_reduce", b"scaler", b"dataloader", b"DataLoader", b"yield")


class Project:
    """The checked tree: finds modules for imports and remembers what it parsed.

    ``root`` is where absolute imports are looked up, after the folder of the importing file and its parents.
    """

    def __init__(self, root: str | os.PathLike[str] = ".") -> None:
        self.root = Path(root)
        self._modules: dict[str, ir.Module | None] = {}
        self._loaded = 0
        self._places: dict[tuple[Path, str], Path | None] = {}

    def parse(self, data: bytes, path: str, name: str) -> ir.Module:
        """Parse and lower one file. Raises libcst.ParserSyntaxError, UnicodeDecodeError, RecursionError."""
        self._loaded += 1
        tree = cst.parse_module(data)
        module = lower_module(tree, path, name, self._loaded * SITES_PER_MODULE)
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
            if self._loaded < MAX_FOLLOWED * 50 and sum(m is not None for m in self._modules.values()) < MAX_FOLLOWED:
                self._modules[key] = self._read(found)
        return self._modules[key]

    def _read(self, path: Path) -> ir.Module | None:
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if len(data) > MAX_BYTES or not any(word in data for word in _WORDS):
            return None
        try:
            return self.parse(data, _display(path), path.stem)
        except (cst.ParserSyntaxError, SyntaxError, UnicodeDecodeError, RecursionError, ValueError):
            return None

    def _find(self, importer: ir.Module, origin: str) -> Path | None:
        folder = Path(importer.path).parent
        if (folder, origin) not in self._places:
            self._places[folder, origin] = self._look(folder, origin)
        return self._places[folder, origin]

    def _look(self, folder: Path, origin: str) -> Path | None:
        level = len(origin) - len(origin.lstrip("."))
        parts = [part for part in origin.lstrip(".").split(".") if part]
        if level:
            for _ in range(level - 1):
                folder = folder.parent
            return _module_at(folder, parts)
        if not parts:
            return None
        tried = set()
        for base in (folder, *list(folder.parents)[:4], self.root):
            if base in tried:
                continue
            tried.add(base)
            found = _module_at(base, parts)
            if found is not None:
                return found
        return None


def _module_at(folder: Path, parts: list[str]) -> Path | None:
    target = folder.joinpath(*parts)
    if parts:
        single = target.with_suffix(".py") if "." not in target.name else None
        if single is not None and single.is_file():
            return single
    package = target / "__init__.py"
    return package if package.is_file() else None


def _display(path: Path) -> str:
    return os.path.relpath(path) if path.is_absolute() else str(path)
