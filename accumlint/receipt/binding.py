"""Files that a receipt speaks of: bound by the digest of their bytes and the digest of their path.

A path can tell a project's or a person's name, so the receipt holds only the digest of the path relative to
the project's root. Whoever has the project finds the file again by hashing its paths; whoever has only the
receipt learns nothing but how many files were bound (short and guessable names can be guessed).
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accumlint.receipt.canonical import domain_hash

_SKIPPED_FOLDERS = {".git", ".hg", ".venv", "venv", "node_modules", "__pycache__", ".accumlint"}
MAX_FILES = 500_000  # of a tree without git that are hashed by name before giving up


class BindingError(ValueError):
    """A file can't be bound: it is outside of the root, or can't be read."""


@dataclass(frozen=True)
class FileState:
    """A bound file as it is now: ``state`` is ``same``, ``changed`` or ``missing``; ``path`` None if missing."""

    role: str
    state: str
    path: str | None


def path_digest(relative: str) -> str:
    """Digest of a path relative to the root, with ``/`` between its parts."""
    return domain_hash("path", relative.encode("utf-8", "surrogateescape"))


def file_digest(path: Path) -> str:
    """SHA-256, in hex, of the bytes of a file (the digest that ``sha256sum`` prints)."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        for block in iter(lambda: stream.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def bind(path: Path, role: str, root: Path) -> dict[str, str]:
    """The entry of ``bound_files`` for a script or configuration below ``root``.

    Raises :class:`BindingError` when the file is not below ``root`` or can't be read.
    """
    try:
        relative = path.resolve().relative_to(root.resolve()).as_posix()
        return {"role": role, "path_sha256": path_digest(relative), "sha256": file_digest(path)}
    except ValueError:
        raise BindingError(f"{path} is not below {root}") from None
    except OSError as error:
        raise BindingError(f"{path}: {error.strerror}") from None


def project_files(root: Path) -> list[str]:
    """Files below ``root`` as relative paths with ``/``: what git knows and does not ignore, else all."""
    try:
        listed = subprocess.run(
            ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            capture_output=True,
            check=True,
            timeout=60,
        ).stdout
        return sorted({os.fsdecode(name) for name in listed.split(b"\0") if name})
    except (OSError, subprocess.SubprocessError):
        return _walk(root)


def _walk(root: Path) -> list[str]:
    found: list[str] = []
    for folder, folders, files in os.walk(root, followlinks=False):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        base = Path(folder)
        found.extend((base / name).relative_to(root).as_posix() for name in files)
        if len(found) > MAX_FILES:
            break
    return sorted(found)


def states(
    bound: Iterable[dict[str, str]], root: Path, files: Iterable[str] | None = None
) -> list[FileState]:
    """What became of each bound file below ``root`` (``files``: its listing, when it is at hand already)."""
    entries = list(bound)
    if not entries:
        return []
    by_digest = {path_digest(name): name for name in (project_files(root) if files is None else files)}
    made = []
    for entry in entries:
        name = by_digest.get(entry["path_sha256"])
        path = None if name is None else root / name
        if path is None or not path.is_file():
            made.append(FileState(entry["role"], "missing", None))
            continue
        try:
            same = file_digest(path) == entry["sha256"]
        except OSError:
            made.append(FileState(entry["role"], "missing", None))
            continue
        made.append(FileState(entry["role"], "same" if same else "changed", name))
    return made
