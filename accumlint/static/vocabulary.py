"""The names that scripts use, compiled from ``rules/vocabulary`` and from a team's own settings."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from accumlint import knowledge


def _joined(patterns: Iterable[str]) -> re.Pattern[str] | None:
    """One pattern for many; inline flags are honoured per pattern."""
    parts = [_scoped(pattern) for pattern in patterns]
    return re.compile("|".join(parts)) if parts else None


def _scoped(pattern: str) -> str:
    """``(?i)x`` as ``(?i:x)``, so that it can stand inside a larger pattern."""
    match = re.match(r"\(\?([a-z]+)\)", pattern)
    if not match:
        return f"(?:{pattern})"
    return f"(?{match.group(1)}:{pattern[match.end():]})"


@dataclass
class Kind:
    """How one kind of object is recognised: by its constructor, else by the name that holds it."""

    constructors: frozenset[str]
    patterns: re.Pattern[str] | None
    names: re.Pattern[str] | None
    not_names: re.Pattern[str] | None

    def built_by(self, call: str) -> bool:
        return call in self.constructors or bool(self.patterns and self.patterns.search(call))

    def named(self, name: str) -> bool:
        return bool(self.names and self.names.search(name)) and not (self.not_names and self.not_names.search(name))


@dataclass
class Vocabulary:
    """All vocabularies merged; what was asked once is answered from memory."""

    kinds: dict[str, Kind]
    window: re.Pattern[str]
    not_window: re.Pattern[str] | None
    world: re.Pattern[str]
    patterns: dict[str, re.Pattern[str] | None]
    names: dict[str, re.Pattern[str] | None]
    loss_functions: frozenset[str]
    loss_modules: frozenset[str]
    ignorable: frozenset[str]
    clip: frozenset[str]
    frameworks: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        not_window = self.not_window
        self._windows = _Remembered(lambda name: bool(self.window.match(name)) and not (not_window and not_window.search(name)))
        self._worlds = _Remembered(lambda name: bool(self.world.match(name)))
        self._groups = {group: _searched(pattern) for group, pattern in self.patterns.items()}
        self._named = {group: _searched(pattern) for group, pattern in self.names.items()}
        # a scheduler's constructor often ends like an optimizer's: the more special kinds answer first
        makers = ("scheduler", "callable_scaler", "scaler", "data_parallel", "sharded", "loader", "optimizer", "model")
        self._makers = _Remembered(lambda call: next((kind for kind in makers if kind in self.kinds and self.kinds[kind].built_by(call)), ""))
        held = ("scheduler", "optimizer", "callable_scaler", "scaler", "accelerator", "fabric", "engine", "loader", "model")
        self._held = _Remembered(lambda name: next((kind for kind in held if kind in self.kinds and self.kinds[kind].named(name)), ""))

    def is_window(self, name: str) -> bool:
        return self._windows[name]

    def is_world(self, name: str) -> bool:
        return self._worlds[name]

    def matches(self, group: str, name: str) -> bool:
        known = self._groups.get(group)
        return known is not None and known[name]

    def named(self, group: str, name: str) -> bool:
        known = self._named.get(group)
        return known is not None and known[name]

    def kind_of_constructor(self, call: str) -> str:
        return self._makers[call]

    def kind_of_name(self, name: str) -> str:
        return self._held[name]


class _Remembered(dict[str, Any]):
    """Answers to one question by name, each worked out once: they are asked for a hundred thousand times a script."""

    def __init__(self, ask: Callable[[str], Any]) -> None:
        super().__init__()
        self._ask = ask

    def __missing__(self, name: str) -> Any:
        answer = self[name] = self._ask(name)
        return answer


def _searched(pattern: re.Pattern[str] | None) -> _Remembered:
    return _Remembered(lambda name: pattern is not None and pattern.search(name) is not None)


_GROUPS = ("clip_names", "rescale", "reduce", "average", "average_objects", "average_classes", "checkpoint", "evaluate", "log")


def _merge(base: dict[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in extra.items():
        if isinstance(value, Mapping):
            base[key] = _merge(dict(base.get(key) or {}), value)
        elif isinstance(value, list):
            base[key] = [*(base.get(key) or []), *value]
        else:
            base[key] = value
    return base


def build(extra: Mapping[str, Any] | None = None) -> Vocabulary:
    """The shipped vocabulary, merged with ``extra`` (the same shape, a team's own names)."""
    raw: dict[str, Any] = {}
    frameworks: dict[str, Any] = {}
    for stem, content in knowledge.folder("vocabulary"):
        content = dict(content)
        frameworks[stem] = content.pop("framework", {})
        _merge(raw, content)
    if extra:
        _merge(raw, extra)
    kinds = {
        name: Kind(
            frozenset(entry.get("constructors") or ()),
            _joined(entry.get("patterns") or ()),
            _joined(entry.get("names") or ()),
            _joined(entry.get("not_names") or ()),
        )
        for name, entry in raw["kinds"].items()
    }
    losses = raw["losses"]
    window = _joined(raw["window"]["patterns"])
    world = _joined(raw["world"]["patterns"])
    assert window is not None and world is not None  # the shipped files have them
    return Vocabulary(
        kinds=kinds,
        window=window,
        not_window=_joined(raw["window"].get("not_patterns") or ()),
        world=world,
        patterns={group: _joined(raw.get(group) or ()) for group in _GROUPS},
        names={group: _joined(patterns) for group, patterns in (raw.get("names") or {}).items()},
        loss_functions=frozenset(losses["functions"]),
        loss_modules=frozenset(losses["modules"]),
        ignorable=frozenset(losses["ignorable"]),
        clip=frozenset(raw["clip"]),
        frameworks=frameworks,
    )


@functools.cache
def shipped() -> Vocabulary:
    """The vocabulary without a team's own names."""
    return build()
