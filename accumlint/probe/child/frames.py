"""The user's frames of the current call, with the iteration of every loop that encloses their lines."""

from __future__ import annotations

import sys
import types
from typing import Any

from accumlint.probe.places import Loop, UserFiles, file_map

MAX_FRAMES = 12  # of the user's; deeper recursion is cut at the outer end


class Frames:
    """Reads call stacks. Holds no frame and no local variable: only small values and object numbers."""

    def __init__(self) -> None:
        self.files = UserFiles()
        self.direct = False  # the last call came from the user's code, with nothing but torch in between

    def here(self) -> list[list[Any]]:
        """``[path, line, [[loop line, iteration key or None], …]]`` of each user frame, outermost first."""
        frame = sys._getframe(1)
        out: list[list[Any]] = []
        between = False
        while frame is not None and len(out) < MAX_FRAMES:
            path = self.files.name(frame.f_code.co_filename)
            if not out:
                if path:
                    self.direct = not between
                else:
                    between = between or not self.files.passes(frame.f_code.co_filename)
            if path:
                line = frame.f_lineno or 1
                spot = file_map(path).at(line)
                keys = []
                if spot.loops:
                    names = frame.f_locals
                    keys = [[loop.line, _key(loop, names)] for loop in spot.loops]
                out.append([path, line, keys])
            frame = frame.f_back  # type: ignore[assignment]
        out.reverse()
        return out

    def value_of(self, names: tuple[str, ...]) -> int | None:
        """The value of the first name that an enclosing user frame knows as a positive integer."""
        frame = sys._getframe(1)
        while frame is not None:
            if self.files.name(frame.f_code.co_filename):
                for name in names:
                    value = _resolved(name, frame)
                    if value is not None:
                        return value
            frame = frame.f_back  # type: ignore[assignment]
        return None


def _resolved(name: str, frame: Any) -> int | None:
    """A positive integer by its name in a frame: a variable, or an attribute of one (parsed arguments, a configuration).

    Only dictionaries are read; nothing of the user's runs.
    """
    for names in (frame.f_locals, frame.f_globals):
        value = names.get(name)
        if _counts(value):
            return int(value)
    for names in (frame.f_locals, frame.f_globals):
        for holder in list(names.values()):
            if isinstance(holder, (type, types.ModuleType, types.FunctionType)):
                continue
            held = holder if isinstance(holder, dict) else getattr(holder, "__dict__", None)
            value = held.get(name) if isinstance(held, dict) else None
            if _counts(value):
                return int(value)
    return None


def _counts(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _key(loop: Loop, names: Any) -> str | None:
    """What tells this iteration from its neighbours: the loop's targets, by value or by identity."""
    if not loop.names:
        return None
    parts = []
    for name in loop.names:
        if name not in names:
            continue  # the header runs before the target is bound
        value = names[name]
        if isinstance(value, (bool, int, str, float)):
            parts.append(f"{name}={str(value)[:40]}")
        else:
            parts.append(f"{name}@{id(value):x}")
    return ",".join(parts) or None
