"""The tool as one digest: results of another version, of edited rules or of another parser don't count."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator

from accumlint import __version__
from accumlint.static.consulted import digest

# what else decides on a result: the parser of scripts, the readers of configurations and of versions
LIBRARIES = ("libcst", "yaml", "packaging", "tomli", "pathspec")


@functools.cache
def stamp() -> str:
    """A digest of the version, of this Python, and of size and time of all files of the tool and its libraries' roots.

    No file is opened: who edits one changes its time, and who installs one, too.
    """
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parts = [__version__, sys.version, sys.platform, here]
    for root in (here, os.path.join(os.path.dirname(here), "rules")):
        parts += sorted(f"{path} {size} {time}" for path, size, time in _files(root))
    parts += [_library(name) for name in LIBRARIES]
    return digest("\n".join(parts).encode("utf-8", "surrogateescape"))


def _files(root: str) -> Iterator[tuple[str, int, int]]:
    """(path, size, time of change) of the files of ours below a folder; byte code and tests are none."""
    pending = [root]
    while pending:
        try:
            listing = os.scandir(pending.pop())
        except OSError:
            continue
        with listing:
            for entry in listing:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        pending.append(entry.path)
                elif entry.name.endswith((".py", ".yaml", ".md")):
                    told = entry.stat()
                    yield entry.path, told.st_size, told.st_mtime_ns


def _library(name: str) -> str:
    """Where a library would be imported from, with size and time of its root module; it is not imported."""
    for folder in sys.path:
        path = os.path.join(folder, name, "__init__.py")
        try:
            told = os.stat(path)
        except OSError:
            continue
        return f"{path} {told.st_size} {told.st_mtime_ns}"
    return f"{name} is elsewhere"
