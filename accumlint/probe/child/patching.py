"""Replacing attributes of torch reversibly, and saying which of them were there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MISSING = object()


class Patches:
    """Replaced attributes; :meth:`undo` puts everything back. ``manifest``: name -> whether it could be hooked."""

    def __init__(self) -> None:
        self._done: list[tuple[Any, str, Any]] = []
        self._undo: list[Callable[[], None]] = []
        self.manifest: dict[str, bool] = {}

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any], label: str = "") -> bool:
        """``owner.name = make(original)``; False when torch has no such name (versions differ)."""
        label = label or f"{getattr(owner, '__name__', owner)}.{name}"
        original = getattr(owner, name, _MISSING)
        if original is _MISSING:
            self.manifest[label] = False
            return False
        own = vars(owner).get(name, _MISSING) if hasattr(owner, "__dict__") else _MISSING
        setattr(owner, name, make(original))
        self._done.append((owner, name, own))
        self.manifest[label] = True
        return True

    def on_undo(self, action: Callable[[], None]) -> None:
        self._undo.append(action)

    def undo(self) -> None:
        for action in reversed(self._undo):
            action()
        for owner, name, own in reversed(self._done):
            if own is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._done.clear()
        self._undo.clear()
