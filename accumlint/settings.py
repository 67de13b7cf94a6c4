"""What a user may decide: the keys of ``[tool.accumlint]``, the options above them, and which rules are on.

Every check starts here, most of them on files that hold no accumulation at all: nothing heavy is imported
before it is needed, and a plain tuple stands where a dataclass would cost its import.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

SEVERITIES = ("advice", "warning", "error")
CONFIDENCES = ("possible", "conditional", "certain")
FAIL_ON = ("warning", "error", "never")
FORMATS = ("text", "json", "sarif", "github", "gitlab", "rdjson", "rdjsonl", "junit")

ALL = "ALL"


class SettingsError(ValueError):
    """A setting is unknown or has the wrong shape; the message names the file and the key."""


class Settings(NamedTuple):
    """Everything that a check may be told; see docs/command-line.md for the meaning of each key.

    ``root`` is the folder that patterns are relative to: the one of the settings file, else the working
    folder. ``source`` is that file, empty where there is none.
    """

    root: str
    source: str = ""
    select: tuple[str, ...] = (ALL,)
    ignore: tuple[str, ...] = ()
    per_file_ignores: tuple[tuple[str, tuple[str, ...]], ...] = ()
    severity: Mapping[str, str] = {}  # rule code or name -> severity label
    min_confidence: str = "possible"
    fail_on: str = "warning"
    exclude: tuple[str, ...] = ()
    force_exclude: bool = False
    include_tests: bool = False
    format: str = ""  # empty: chosen by where the output goes
    output: tuple[tuple[str, str], ...] = ()  # (format, file)
    jobs: int = 0  # 0: as many as there are usable cores
    baseline: str = ""
    cache: bool = True
    cache_dir: str = ""  # empty: in the folder of the settings, or of the repository
    vocabulary: Mapping[str, Any] = {}  # handed to the engine as it is


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SettingsError("must be a list of strings")
    return tuple(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise SettingsError("must be true or false")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise SettingsError("must be a string")
    return value


def _one_of(*choices: str):
    def read(value: Any) -> str:
        if value not in choices:
            raise SettingsError(f"must be one of {', '.join(choices)}")
        return value

    return read


def _jobs(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SettingsError("must be a whole number, 0 for as many as there are cores")
    return value


def _table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise SettingsError("must be a table")
    return value


def _selectors(value: Any) -> tuple[str, ...]:
    return tuple(selector(item) for item in _strings(value))


def _per_file(value: Any) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return tuple((pattern, _selectors(codes)) for pattern, codes in _table(value).items())


def _severity(value: Any) -> Mapping[str, str]:
    read = _one_of(*SEVERITIES)
    return {selector(rule): read(label) for rule, label in _table(value).items()}


def output(text: str) -> tuple[str, str]:
    """``FORMAT:FILE`` as a pair; raises :class:`SettingsError` where either half is missing or unknown."""
    format_name, colon, path = text.partition(":")
    if not colon or not path:
        raise SettingsError(f"{text!r} is not FORMAT:FILE")
    if format_name not in FORMATS:
        raise SettingsError(f"unknown format {format_name!r}; formats: {', '.join(FORMATS)}")
    return format_name, path


def _outputs(value: Any) -> tuple[tuple[str, str], ...]:
    return tuple(output(item) for item in _strings(value))


# key in the file -> (field, how to read its value)
KEYS = {
    "select": ("select", _selectors),
    "ignore": ("ignore", _selectors),
    "per-file-ignores": ("per_file_ignores", _per_file),
    "severity": ("severity", _severity),
    "min-confidence": ("min_confidence", _one_of(*CONFIDENCES)),
    "fail-on": ("fail_on", _one_of(*FAIL_ON)),
    "exclude": ("exclude", _strings),
    "force-exclude": ("force_exclude", _boolean),
    "include-tests": ("include_tests", _boolean),
    "format": ("format", _one_of(*FORMATS)),
    "output": ("output", _outputs),
    "jobs": ("jobs", _jobs),
    "baseline": ("baseline", _string),
    "cache": ("cache", _boolean),
    "cache-dir": ("cache_dir", _string),
    "vocabulary": ("vocabulary", _table),
}


def selector(text: str) -> str:
    """A rule code, a prefix of one, a clause, a rule name or ``ALL``, in its canonical case.

    Only the shape is checked here, so that a run which meets no accumulation need not read the rule pages;
    :func:`check_selectors` looks the names up. Raises :class:`SettingsError`.
    """
    wanted = text.strip()
    upper = wanted.upper()
    if upper == ALL:
        return ALL
    if upper.startswith("ACC") and upper[3:].isdigit() and len(upper) <= 6:
        return upper
    if upper == "ACC":
        return ALL
    if len(upper) == 2 and upper[0] == "C" and upper[1].isdigit():
        return upper
    if wanted and wanted.replace("-", "").replace("_", "").isalnum() and not wanted[0].isdigit():
        return wanted.lower()
    raise SettingsError(f"{text!r} is neither a rule code, a clause nor a rule name")


def names_rule(wanted: str, code: str, name: str, clause: str) -> bool:
    """Whether one selector means this rule."""
    if wanted == ALL:
        return True
    if wanted.startswith("ACC"):
        return code.startswith(wanted)
    return wanted in (clause, name)


def names_any(selectors: Iterable[str], code: str, name: str, clause: str) -> bool:
    """Whether any of the selectors means this rule."""
    return any(names_rule(wanted, code, name, clause) for wanted in selectors)


def is_on(settings: Settings, code: str, name: str, clause: str) -> bool:
    """Whether the rule is selected and not ignored: ignoring wins."""
    return names_any(settings.select, code, name, clause) and not names_any(
        settings.ignore, code, name, clause
    )


def all_selectors(settings: Settings) -> list[str]:
    """Every selector that the settings hold, in the order of their keys."""
    found = [*settings.select, *settings.ignore, *settings.severity]
    for _, codes in settings.per_file_ignores:
        found.extend(codes)
    return found


def check_selectors(selectors: Iterable[str], rules: Iterable[tuple[str, str, str]], where: str) -> None:
    """Raise :class:`SettingsError` for the first selector that no rule (code, name, clause) answers to."""
    table = list(rules)
    for wanted in selectors:
        if not any(names_rule(wanted, *rule) for rule in table):
            known = [name for _, name, _ in table] + [code for code, _, _ in table]
            raise SettingsError(f"{where}: no rule answers to {wanted!r}{_hint(wanted, known)}")


def _hint(wrong: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(wrong, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def from_table(table: Mapping[str, Any], path: str, header: str) -> Settings:
    """Settings out of a parsed table; raises :class:`SettingsError` naming file and key."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in KEYS:
            place = f" in {header}" if header else ""
            raise SettingsError(f"{path}: unknown key {key!r}{place}{_hint(key, KEYS)}")
        field, read = KEYS[key]
        try:
            values[field] = read(value)
        except SettingsError as error:
            raise SettingsError(f"{path}: {key}: {error}") from None
    return Settings(root=os.path.dirname(os.path.abspath(path)), source=path, **values)


def load(path: str) -> Settings | None:
    """The settings in one file, or None where a ``pyproject.toml`` says nothing about accumlint.

    Raises :class:`SettingsError` with the file (and the line, where TOML itself is broken), OSError where
    it can't be read.
    """
    with open(path, "rb") as stream:
        data = stream.read()
    own = os.path.basename(path) != "pyproject.toml"
    if not own and b"accumlint" not in data:
        return None  # the usual case, told without reading TOML
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        import tomli as tomllib
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from None
    if own:
        return from_table(table, path, "")
    tool = table.get("tool")
    mine = tool.get("accumlint") if isinstance(tool, dict) else None
    if mine is None:
        return None
    if not isinstance(mine, dict):
        raise SettingsError(f"{path}: tool.accumlint must be a table")
    return from_table(mine, path, "[tool.accumlint]")


def starting_folder(paths: Iterable[str], working_folder: str) -> str:
    """Where the search for a settings file starts.

    The working folder when all paths lie below it, so that the settings don't depend on which files of a
    repository happen to be named; otherwise the folder that the paths share.
    """
    absolute = [os.path.abspath(os.path.join(working_folder, path)) for path in paths if path != "-"]
    inside = working_folder.rstrip(os.sep) + os.sep
    if all((path + os.sep).startswith(inside) for path in absolute):
        return working_folder
    try:
        shared = os.path.commonpath(absolute)
    except ValueError:  # two drives
        return working_folder
    return shared if os.path.isdir(shared) else os.path.dirname(shared)


def find(folder: str) -> Settings:
    """The nearest settings file from ``folder`` upwards, not beyond the repository that holds it.

    In one folder ``accumlint.toml`` goes before ``pyproject.toml``. Raises :class:`SettingsError`.
    """
    current = os.path.abspath(folder)
    while True:
        for name in ("accumlint.toml", "pyproject.toml"):
            path = os.path.join(current, name)
            try:
                found = load(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue
            except OSError as error:
                raise SettingsError(f"{path}: {error.strerror or error}") from None
            if found is not None:
                return found
        parent = os.path.dirname(current)
        if parent == current or os.path.exists(os.path.join(current, ".git")):
            return Settings(root=os.path.abspath(folder))
        current = parent
