"""What a fixer hands over: a change that is still to be tried out."""

from __future__ import annotations

from typing import NamedTuple

from accumlint.static.fixes.editing import Change


class Proposal(NamedTuple):
    """Changes with a title in the imperative; ``why_unsafe`` is empty where nothing speaks against them.

    ``if_reordered`` is said of a change that turns out to move the calls on the last microbatch of a window;
    ``moves_boundary``: it is meant to, since it changes which microbatch is the last one, or what a short window does.
    """

    title: str
    changes: tuple[Change, ...]
    why_unsafe: str = ""
    if_reordered: str = "the calls on the last microbatch of a window come in another order than before"
    moves_boundary: bool = False
