"""A folder of entries: each a small file of its own, written whole, forgotten when it is old or they are too many.

Any number of processes may read, write and clear at once. An entry starts with a digest of its content: what a crash,
a full disk or a curious editor left is no entry. A folder that can't be written is left alone, and nothing is said.
"""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

from accumlint.static.consulted import digest
from accumlint.static.discovery import repository_of

FOLDER = ".accumlint_cache"
MAX_BYTES = 64 * 1024 * 1024
MAX_AGE_DAYS = 30.0
_DAY = 86_400.0
# after so many new entries the folder is looked through, else once a day
MANY_ENTRIES = 500

_TAG = (
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This folder holds results of accumlint; it can be deleted at any time.\n"
)


def location(settings: Any, working_folder: str, asked: str = "") -> str:
    """The folder for results: what was asked for, else that of the settings, else one in the project; empty for none.

    A project is a folder with settings or a repository: nothing is written to where people merely happen to be.
    """
    if asked:
        return os.path.join(working_folder, asked)
    if settings.cache_dir:
        return os.path.join(settings.root, settings.cache_dir)
    project = settings.root if settings.source else repository_of(working_folder)
    return os.path.join(project, FOLDER) if project else ""


class Held(NamedTuple):
    """What a folder holds: entries and bytes."""

    entries: int
    size: int


class Store:
    """Entries below one folder, by key (hexadecimal digits) and kind."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._written = 0
        self._refused = False

    def _path(self, kind: str, key: str) -> str:
        return os.path.join(self.folder, kind, key[:2], key[2:])

    def read(self, kind: str, key: str) -> Any:
        """The value of an entry, None where there is none or it is damaged."""
        path = self._path(kind, key)
        try:
            with open(path, "rb") as stream:
                head, _, body = stream.read().partition(b"\n")
        except OSError:
            return None
        if head != digest(body).encode():
            return None
        import json

        try:
            return json.loads(body)
        except ValueError:  # whole, but written by something else
            return None

    def write(self, kind: str, key: str, value: Any) -> None:
        """Keep a value (plain JSON); nothing happens where that can't be done."""
        if self._refused:
            return
        import json

        from accumlint import atomic

        body = json.dumps(value, separators=(",", ":")).encode("ascii")
        path = self._path(kind, key)
        data = digest(body).encode() + b"\n" + body
        try:
            try:
                atomic.replace(path, data)
            except FileNotFoundError:
                self._prepare(os.path.dirname(path))
                atomic.replace(path, data)
        except OSError:
            self._refused = True  # read-only, or full: once is enough to know
        self._written += 1

    def _prepare(self, folder: str) -> None:
        from accumlint import atomic

        os.makedirs(folder, exist_ok=True)
        for name, text in ((".gitignore", "*\n"), ("CACHEDIR.TAG", _TAG)):
            path = os.path.join(self.folder, name)
            if not os.path.exists(path):
                atomic.replace(path, text.encode())

    def finish(self) -> None:
        """Forget what is old or too much, if it is time to look."""
        if not self._written or self._refused:
            return
        mark = os.path.join(self.folder, "looked-through")
        try:
            waited = time.time() - os.stat(mark).st_mtime
        except OSError:
            waited = _DAY
        if self._written < MANY_ENTRIES and 0 <= waited < _DAY:
            return
        try:
            with open(mark, "wb"):
                pass
        except OSError:
            return
        self.prune()

    def prune(self) -> None:
        """Remove entries older than :data:`MAX_AGE_DAYS`, and the oldest while all of them exceed :data:`MAX_BYTES`."""
        now = time.time()
        kept = []
        for path, size, written in self._entries():
            if now - written > MAX_AGE_DAYS * _DAY:
                _remove(path)
            else:
                kept.append((written, size, path))
        total = sum(size for _, size, _ in kept)
        if total <= MAX_BYTES:
            return
        for _, size, path in sorted(kept):
            _remove(path)
            total -= size
            if total <= MAX_BYTES * 3 // 4:
                return

    def held(self) -> Held:
        sizes = [size for _, size, _ in self._entries()]
        return Held(len(sizes), sum(sizes))

    def _entries(self) -> list[tuple[str, int, float]]:
        """(path, bytes, time of writing) of all entries, and of what crashes left of them."""
        found = []
        for folder, below, names in os.walk(self.folder):
            if folder == self.folder:
                continue
            for name in names:
                path = os.path.join(folder, name)
                try:
                    told = os.lstat(path)
                except OSError:  # another process was faster
                    continue
                found.append((path, told.st_size, told.st_mtime))
        return found


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def clear(folder: str) -> Held:
    """Remove a folder of ours and say what it held; raises OSError where it can't be removed.

    Only a folder that carries our tag is removed: who names a wrong one keeps it.
    """
    import shutil

    held = Store(folder).held()
    try:
        with open(os.path.join(folder, "CACHEDIR.TAG"), encoding="utf-8") as stream:
            ours = "accumlint" in stream.read(1000)
    except FileNotFoundError:
        return Held(0, 0)
    if ours:
        shutil.rmtree(folder)
    return held
