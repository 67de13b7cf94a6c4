"""The recipe of a script: ``probe.yaml`` beside it, or ``[tool.accumlint.probe]`` of the project.

Keys: arguments, ranks, updates, timeout, window, set (list of MODULE:NAME=VALUE), tiny, stress, as-cpu. A ``probe.yaml`` may
hold one recipe, or several under ``scripts:`` by file name.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_BYTES = 1 << 20


class RecipeError(ValueError):
    """A recipe that cannot be read; the message names its file."""


@dataclass(frozen=True)
class Recipe:
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    updates: int = 12
    timeout: float = 600.0
    window: int | None = None
    constants: tuple[str, ...] = ()
    tiny: bool = False
    stress: bool = False
    as_cpu: bool = False


_KEYS: dict[str, tuple[str, Any]] = {
    "ranks": ("ranks", int), "updates": ("updates", int), "timeout": ("timeout", (int, float)), "window": ("window", int),
    "tiny": ("tiny", bool), "stress": ("stress", bool), "as-cpu": ("as_cpu", bool),
}  # fmt: skip


def parse(table: Any, name: str) -> Recipe:
    """A recipe from plain values. Raises RecipeError naming ``name``."""
    if not isinstance(table, Mapping):
        raise RecipeError(f"{name}: a recipe is a table of options")
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key == "arguments":
            if isinstance(value, str):
                value = shlex.split(value)
            if not isinstance(value, list) or not all(isinstance(v, (str, int, float)) for v in value):
                raise RecipeError(f"{name}: arguments: a list of words, or one line")
            values["arguments"] = tuple(map(str, value))
        elif key == "set":
            if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
                raise RecipeError(f"{name}: set: a list of MODULE:NAME=VALUE")
            values["constants"] = tuple(value)
        elif key in _KEYS:
            field, kind = _KEYS[key]
            if not isinstance(value, kind) or isinstance(value, bool) and kind is not bool:
                raise RecipeError(f"{name}: {key}: {value!r} is not what is expected")
            values[field] = value
        else:
            raise RecipeError(f"{name}: unknown key {key!r}")
    return Recipe(**values)


def recipe_for(named: str, script: str, working_folder: str) -> Recipe:
    """The recipe of a script: the named file, else ``probe.yaml`` beside the script, else the project's, else none."""
    if named:
        return _from_yaml(named, script, required=True)
    if script:
        beside = os.path.join(os.path.dirname(script), "probe.yaml")
        if os.path.isfile(beside):
            return _from_yaml(beside, script, required=False)
    return _from_project(working_folder)


def _from_yaml(path: str, script: str, required: bool) -> Recipe:
    import yaml

    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise RecipeError(f"{path}: {error.strerror}") from None
    if len(data) > MAX_BYTES or b"&" in data and b"*" in data:
        raise RecipeError(f"{path}: larger than a recipe, or with anchors")
    try:
        table = yaml.safe_load(data) or {}
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: {str(error).splitlines()[0]}") from None
    if isinstance(table, Mapping) and "scripts" in table:
        scripts = table["scripts"]
        own = scripts.get(os.path.basename(script)) if isinstance(scripts, Mapping) else None
        if own is None and required:
            raise RecipeError(f"{path}: no recipe for {os.path.basename(script)}")
        table = own or {}
    return parse(table, path)


def _from_project(folder: str) -> Recipe:
    path = os.path.join(folder, "pyproject.toml")
    if not os.path.isfile(path):
        return Recipe()
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        with open(path, "rb") as stream:
            table = tomllib.load(stream)
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: {error}") from None
    return parse(table.get("tool", {}).get("accumlint", {}).get("probe", {}), path)
