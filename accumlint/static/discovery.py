"""Which files a check looks at: named files, and what a walk finds below named folders.

A walk honours ``.gitignore`` (nested ones, and ``.git/info/exclude``), stays out of version control,
caches and environments, doesn't follow linked folders (so it can't run in circles), and leaves test code
out. A file that is named is checked whatever it is called, unless ``force_exclude`` treats it as found.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

PYTHON = "python"
CONFIGURATION = "configuration"
STDIN = "stdin"

# Folders that hold no source of the project, by name ...
_SKIPPED_FOLDERS = frozenset(
    (
        ".git",
        ".hg",
        ".svn",
        ".jj",
        ".venv",
        ".tox",
        ".nox",
        ".eggs",
        ".direnv",
        ".mypy_cache",
        ".pytest_cache",
        ".ruff_cache",
        ".accumlint_cache",
        ".ipynb_checkpoints",
        "__pycache__",
        "__pypackages__",
        "node_modules",
    )
)
# ... and by a file or folder that marks them as an environment
_ENVIRONMENT_MARKS = ("pyvenv.cfg", "conda-meta")

_PYTHON_SUFFIXES = frozenset((".py", ".pyw", ".ipynb"))

# What the configuration audit could possibly read; it decides by name and head whether it does.
_CONFIGURATION_SUFFIXES = frozenset(
    (
        ".json",
        ".yaml",
        ".yml",
        ".toml",
        ".cfg",
        ".conf",
        ".ini",
        ".txt",
        ".sh",
        ".bash",
        ".slurm",
        ".sbatch",
    )
)
_CONFIGURATION_NAMES = frozenset(("Dockerfile", "Makefile", "Procfile"))
# the audit looks for telling keys; a file whose first one comes later than this is data
_HEAD_BYTES = 256 * 1024

Recogniser = Callable[[str, bytes], bool]


class Target(NamedTuple):
    """One file to look at: ``path`` opens it, ``name`` is what reports call it."""

    name: str
    path: str
    kind: str


class LookedAt(NamedTuple):
    """What the collection rests on beside its targets: as long as none of it changes, it would be the same again."""

    folders: tuple[str, ...] = ()  # whose entries were read
    files: tuple[str, ...] = ()  # whose content was read, or that were not there to be read


class Collection(NamedTuple):
    """What was found, what was left out (reason -> number of files), and what could not be reached."""

    targets: tuple[Target, ...]
    skipped: dict[str, int]
    problems: tuple[tuple[str, str], ...]  # (name, message)
    only_files_named: bool
    looked_at: LookedAt = LookedAt()


def is_test_code(parts: Sequence[str]) -> bool:
    """Whether the path, given by its components, is test code by the usual conventions."""
    *folders, name = parts
    if any(folder in ("test", "tests") for folder in folders):
        return True
    return name == "conftest.py" or name.startswith("test_") or name.endswith(("_test.py", "_test.ipynb"))


def is_notebook(name: str) -> bool:
    """Whether a file is read as a notebook: its name decides."""
    return name[-6:].lower() == ".ipynb"


def printable(path: str) -> str:
    """A path as reports print it: forward slashes, bytes that are no UTF-8 shown as escapes."""
    if os.sep != "/":
        path = path.replace(os.sep, "/")
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    return path


def display_name(path: str, working_folder: str) -> str:
    """How a report calls a file: relative to the working folder where it lies below it."""
    absolute = os.path.abspath(os.path.join(working_folder, path))
    inside = working_folder.rstrip(os.sep) + os.sep
    if absolute.startswith(inside):
        return printable(absolute[len(inside) :])
    return printable(os.path.normpath(path))


class Patterns:
    """Patterns in the manner of ``.gitignore``, relative to one folder; compiled when first asked."""

    def __init__(self, base: str, lines: Iterable[str]):
        self.base = base.rstrip(os.sep) + os.sep
        self._lines = list(lines)
        self._compiled = None

    def decide(self, absolute: str, folder: bool = False) -> bool | None:
        """True: matched, False: taken back by a negation, None: nothing said (or outside the folder)."""
        if not self._lines or not absolute.startswith(self.base):
            return None
        if self._compiled is None:
            import pathspec  # a tenth of a second would be felt by every hook run that has no pattern

            self._compiled = pathspec.GitIgnoreSpec.from_lines(self._lines)
        relative = absolute[len(self.base) :].replace(os.sep, "/") + ("/" if folder else "")
        return self._compiled.check_file(relative).include


def _read_patterns(path: str, base: str) -> Patterns | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            return Patterns(base, stream.read().splitlines())
    except OSError:
        return None


def _ignored(chain: Sequence[Patterns], absolute: str, folder: bool) -> bool:
    for patterns in reversed(chain):  # the deepest file that says something decides, as in git
        verdict = patterns.decide(absolute, folder)
        if verdict is not None:
            return verdict
    return False


def repository_of(folder: str) -> str:
    """The nearest folder upwards that holds ``.git``, empty where there is none."""
    current = os.path.abspath(folder)
    while not os.path.exists(os.path.join(current, ".git")):
        parent = os.path.dirname(current)
        if parent == current:
            return ""
        current = parent
    return current


def _inherited_patterns(folder: str, looked_at: list[str]) -> list[Patterns]:
    """The ignore files from the repository that holds ``folder`` down to its parent, outermost first.

    ``looked_at`` gets the paths that were looked for.
    """
    root = repository_of(folder)
    levels = [folder]
    while levels[-1] not in (root, os.path.dirname(levels[-1])):
        levels.append(os.path.dirname(levels[-1]))
    for level in levels:
        looked_at += [os.path.join(level, ".git", "info", "exclude"), os.path.join(level, ".gitignore")]
    if not root:
        return []  # what lies above the named folder says nothing about it
    chain = [_read_patterns(os.path.join(root, ".git", "info", "exclude"), root)]
    chain += [_read_patterns(os.path.join(level, ".gitignore"), level) for level in reversed(levels[1:])]
    found = [patterns for patterns in chain if patterns is not None]
    # a folder that is ignored but named is wanted: only what lies inside it may speak
    return [] if _ignored(found, folder, folder=True) else found


def _looks_like_python(path: str) -> bool:
    """Whether a file without the suffix says in its first line that Python runs it."""
    try:
        with open(path, "rb") as stream:
            head = stream.readline(200)
    except OSError:
        return False
    return head.startswith(b"#!") and b"python" in head


def _never_ends(path: str) -> bool:
    """Whether reading could wait for ever: there is something, and it is neither a file nor a folder."""
    import stat

    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False  # whoever reads it says why that fails
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read(_HEAD_BYTES)
    except OSError:
        return b""


def _could_be_configuration(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in _CONFIGURATION_SUFFIXES or name in _CONFIGURATION_NAMES


class _Collector:
    """The walk; holds what would otherwise be passed through every call."""

    def __init__(self, settings, working_folder: str, is_configuration: Recogniser):
        self.settings = settings
        self.working_folder = working_folder
        self.is_configuration = is_configuration
        self.exclude = Patterns(settings.root, settings.exclude)
        self.targets: dict[str, Target] = {}  # by real path: a file that has two names is looked at once
        self.skipped: dict[str, int] = {}
        self.problems: list[tuple[str, str]] = []
        self.folders: list[str] = []
        self.files: list[str] = []

    def skip(self, reason: str) -> None:
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def problem(self, path: str, error: OSError) -> None:
        self.problems.append((display_name(path, self.working_folder), error.strerror or str(error)))

    def add(self, absolute: str, name: str, kind: str, real: str | None = None) -> None:
        self.targets.setdefault(real or os.path.realpath(absolute), Target(name, absolute, kind))

    def relative_parts(self, absolute: str) -> list[str]:
        """Components below the settings' folder (or the last one, for a file outside it)."""
        base = self.settings.root.rstrip(os.sep) + os.sep
        if absolute.startswith(base):
            return absolute[len(base) :].split(os.sep)
        return [os.path.basename(absolute)]

    def excluded(self, absolute: str) -> bool:
        """Whether a pattern of ``exclude`` matches the path or a folder above it."""
        if not self.settings.exclude:
            return False
        # git's matching covers the content of a matched folder by itself
        return bool(self.exclude.decide(absolute))

    def named_file(self, path: str) -> None:
        absolute = os.path.abspath(os.path.join(self.working_folder, path))
        parts = self.relative_parts(absolute)
        if self.settings.force_exclude:
            if self.excluded(absolute) or any(part in _SKIPPED_FOLDERS for part in parts[:-1]):
                return self.skip("excluded")
            if (
                not self.settings.include_tests
                and is_test_code(parts)
                and absolute.endswith(tuple(_PYTHON_SUFFIXES))
            ):
                return self.skip("test-code")
        name = display_name(path, self.working_folder)
        if _never_ends(absolute):
            return self.problems.append((name, "is a pipe or a device; - reads standard input"))
        suffix = os.path.splitext(absolute)[1].lower()
        if suffix in _PYTHON_SUFFIXES:
            self.add(absolute, name, PYTHON)
        elif self.wanted_configuration(absolute, parts[-1]):
            self.add(absolute, name, CONFIGURATION)
        elif _looks_like_python(absolute):
            self.add(absolute, name, PYTHON)
        else:
            self.skip("not-python")

    def wanted_configuration(self, path: str, name: str) -> bool:
        """Whether the audit of configurations reads a file; its content decides where its name could be one."""
        self.files.append(path)
        return _could_be_configuration(name) and self.is_configuration(path, _head(path))

    def walk(self, path: str) -> None:
        top = os.path.abspath(os.path.join(self.working_folder, path))
        real_top = os.path.realpath(top)
        # a named test folder means its tests
        tests_wanted = self.settings.include_tests or any(
            part in ("test", "tests") for part in self.relative_parts(top)
        )
        own = _read_patterns(os.path.join(top, ".gitignore"), top)
        chain = _inherited_patterns(top, self.files) + ([own] if own else [])
        pending: list[tuple[str, list[Patterns], tuple[str, ...]]] = [(top, chain, ())]
        while pending:
            folder, chain, below = pending.pop()
            self.folders.append(folder)
            try:
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                self.problem(folder, error)
                continue
            names = {entry.name for entry in entries}
            if folder != top:
                if any(mark in names for mark in _ENVIRONMENT_MARKS):
                    continue
                if ".gitignore" in names:
                    self.files.append(os.path.join(folder, ".gitignore"))
                    own = _read_patterns(os.path.join(folder, ".gitignore"), folder)
                    chain = [*chain, own] if own else chain
            for entry in entries:
                try:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    is_file = not is_folder and entry.is_file()
                except OSError as error:  # a link that leads back to itself
                    self.problem(entry.path, error)
                    continue
                if is_folder:
                    if entry.name in _SKIPPED_FOLDERS:
                        continue
                    if _ignored(chain, entry.path, folder=True) or self.excluded(entry.path + os.sep):
                        continue
                    pending.append((entry.path, chain, (*below, entry.name)))
                elif is_file:
                    real = os.path.join(real_top, *below, entry.name)
                    self.found_file(entry, real, chain, (*below, entry.name), tests_wanted)

    def found_file(
        self, entry: os.DirEntry, real: str, chain: list[Patterns], parts, tests_wanted: bool
    ) -> None:
        suffix = os.path.splitext(entry.name)[1].lower()
        python = suffix in _PYTHON_SUFFIXES
        if not python and not _could_be_configuration(entry.name):
            return
        if _ignored(chain, entry.path, folder=False):
            return self.skip("git-ignored") if python else None
        if self.excluded(entry.path):
            return self.skip("excluded") if python else None
        if not tests_wanted and (is_test_code(parts) if python else is_test_code((*parts[:-1], "_"))):
            return self.skip("test-code") if python else None
        path = entry.path
        if entry.is_symlink():  # reported at the place that it leads to
            path = real = os.path.realpath(entry.path)
        name = display_name(path, self.working_folder)
        if python:
            self.add(path, name, PYTHON, real)
        elif self.wanted_configuration(path, entry.name):
            self.add(path, name, CONFIGURATION, real)


def collect(
    paths: Iterable[str], settings, working_folder: str, is_configuration: Recogniser
) -> Collection:
    """The files to check, sorted by name; the same for any order of ``paths``.

    ``is_configuration(path, head)`` says whether the configuration audit reads a file that isn't Python.
    A path that doesn't exist is a problem of the collection, not an exception.
    """
    collector = _Collector(settings, working_folder, is_configuration)
    only_files = True
    for path in sorted(set(paths) - {"-"}):  # so that the first of two names is the same in any order
        absolute = os.path.join(working_folder, path)
        if os.path.isdir(absolute):
            only_files = False
            collector.walk(path)
        elif os.path.lexists(absolute):
            collector.named_file(path)
        else:
            collector.problems.append((printable(path), "no such file or folder"))
    targets = tuple(sorted(collector.targets.values()))
    skipped = {reason: collector.skipped[reason] for reason in sorted(collector.skipped)}
    looked_at = LookedAt(tuple(sorted(set(collector.folders))), tuple(sorted(set(collector.files))))
    return Collection(targets, skipped, tuple(sorted(set(collector.problems))), only_files, looked_at)
