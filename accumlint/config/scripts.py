"""The scripts of a tree, each read when a check asks for it.

A syntax tree takes forty times the room of its text. A large tree has hundreds of scripts that speak of accumulation,
and what is said of one needs at most a few others: only those that were asked for last are held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from accumlint.config.sources.script import Script, read_script
from accumlint.config.tree import Problem

# bytes of source text whose syntax trees are held: about forty megabytes of them
HELD_BYTES = 1_000_000


class Scripts(Mapping[str, Script]):
    """Scripts by path, in the order of the paths. What has no syntax tree is not among them: others report it."""

    def __init__(self, sources: Mapping[str, bytes] | None = None):
        self._sources = {path: sources[path] for path in sorted(sources)} if sources else {}
        self._broken: set[str] = set()
        self._sound: set[str] = set()
        self._held: OrderedDict[str, Script] = OrderedDict()

    def add(self, path: str, data: bytes) -> None:
        """Another script; they have to come in the order of their paths."""
        self._sources[path] = data

    def __getitem__(self, path: str) -> Script:
        held = self._held.get(path)
        if held is not None:
            self._held.move_to_end(path)
            return held
        if path in self._broken:
            raise KeyError(path)
        script = read_script(path, self.text(path))
        if isinstance(script, Problem):
            self._broken.add(path)
            raise KeyError(path)
        self._sound.add(path)
        self._held[path] = script
        room = HELD_BYTES - sum(len(self._sources[each]) for each in self._held)
        while room < 0 and len(self._held) > 1:
            room += len(self._sources[self._held.popitem(last=False)[0]])
        return script

    def __contains__(self, path: object) -> bool:
        return path in self._sound or (isinstance(path, str) and self.get(path) is not None)

    def __iter__(self) -> Iterator[str]:
        return (path for path in self._sources if path in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def sources(self) -> Iterable[tuple[str, bytes]]:
        """Path and bytes of everything that may be a script, unread."""
        return self._sources.items()

    def text(self, path: str) -> str:
        """The text of a script; raises KeyError."""
        return self._sources[path].decode("utf-8-sig", "replace")

    def naming(self, *words: bytes) -> Iterator[Script]:
        """The scripts whose text has any of the words: the others need not be read."""
        for path, data in self._sources.items():
            if any(word in data for word in words):
                script = self.get(path)
                if script is not None:
                    yield script

    def below(self, start: str) -> Scripts:
        """The scripts whose path begins so; what is known of them is kept."""
        part = Scripts({path: data for path, data in self._sources.items() if path.startswith(start)})
        part._broken, part._sound = self._broken, self._sound
        return part
