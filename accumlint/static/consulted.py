"""What the analysis of one script looked at outside of it: as much as its result rests on.

Most imports lead out of the tree, and each is looked for in several folders. That a folder holds nothing of that name
is one fact, whatever would have been looked for below it: it is what is written down, and it is cheap to check again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any

try:  # what hashlib would lead to, without its dozen of other algorithms: it is asked at every start
    from _blake2 import blake2b
except ImportError:  # pragma: no cover - another Python
    from hashlib import blake2b


# what was consulted where no import was followed
NOTHING: dict[str, Any] = {"absent": {}, "files": {}, "content": {}}


def digest(data: bytes) -> str:
    """128 bits of a content, in hexadecimal digits."""
    return blake2b(data, digest_size=16).hexdigest()


def names_in(folder: str) -> frozenset[str] | None:
    """The names of a folder's entries, none where there is no folder, None where it cannot be listed."""
    try:
        return frozenset(os.listdir(folder or "."))
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    except OSError:
        return None


class Consulted:
    """Folders with the names that they lacked, files that were looked for, and contents that were read.

    Paths are as the analysis used them: absolute, or relative to the working folder.
    """

    def __init__(self) -> None:
        self.absent: dict[str, set[str]] = {}  # folder -> names of which neither NAME nor NAME.py is there
        self.files: dict[str, bool] = {}  # path -> whether a file is there
        self.content: dict[str, str] = {}  # path -> digest of what was read
        self._names: dict[str, frozenset[str] | None] = {}

    def may_hold(self, folder: str, name: str) -> bool:
        """Whether ``NAME`` or ``NAME.py`` is an entry of the folder (or that cannot be told)."""
        if folder not in self._names:
            self._names[folder] = names_in(folder)
        if _may_hold(self._names[folder], name):
            return True
        self.absent.setdefault(folder, set()).add(name)
        return False

    def is_file(self, path: str) -> bool:
        """Whether there is a file at the path."""
        if path not in self.files:
            self.files[path] = os.path.isfile(path)
        return self.files[path]

    def plain(self) -> dict[str, Any]:
        """Everything as plain data, in an order of its own."""
        return {
            "absent": {folder: sorted(names) for folder, names in sorted(self.absent.items())},
            "files": dict(sorted(self.files.items())),
            "content": dict(sorted(self.content.items())),
        }


def _may_hold(names: frozenset[str] | None, name: str) -> bool:
    return names is None or name in names or f"{name}.py" in names


def merged(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What several analyses of one file consulted, together."""
    absent: dict[str, set[str]] = {}
    files: dict[str, bool] = {}
    content: dict[str, str] = {}
    for part in parts:
        for folder, names in part["absent"].items():
            absent.setdefault(folder, set()).update(names)
        files.update(part["files"])
        content.update(part["content"])
    return {"absent": {folder: sorted(names) for folder, names in absent.items()}, "files": files, "content": content}


class Unchanged:
    """Answers whether what was consulted is still so; remembers what it has looked at, for the length of one run."""

    def __init__(self) -> None:
        self.names: Callable[[str], frozenset[str] | None] = functools.cache(names_in)
        self.is_file: Callable[[str], bool] = functools.cache(os.path.isfile)
        self.digest_of: Callable[[str], str] = functools.cache(_digest_of)

    def __call__(self, consulted: dict[str, Any]) -> bool:
        for folder, names in consulted["absent"].items():
            there = self.names(folder)
            if any(_may_hold(there, name) for name in names):
                return False
        return all(self.is_file(path) == was for path, was in consulted["files"].items()) and all(
            self.digest_of(path) == was for path, was in consulted["content"].items()
        )


def _digest_of(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return digest(stream.read())
    except OSError:
        return ""
