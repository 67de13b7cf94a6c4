"""What was recognised in one training loop, with its windows: how a user learns what the tool did not see."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from accumlint.report.model import Report
from accumlint.report.text import Line, wrap
from accumlint.report.timeline import draw

# Fields of a loop that the heading or the pictures show
_SHOWN_ELSEWHERE = ("function", "line", "timelines", "detail")


def fields(loop: Any) -> dict[str, Any]:
    """A loop report as plain data, its fields in the order of their declaration."""
    return dict(loop) if isinstance(loop, Mapping) else dataclasses.asdict(loop)


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_words(each)}" for key, each in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(_words(each) for each in value)
    return "" if value is None else str(value)


def draw_loop(report: Report, loop: Any, path: str, width: int = 100, unicode: bool = True) -> list[Line]:
    """The loop's heading, what is known about it, and the picture of each simulated path."""
    known = fields(loop)
    function = known.get("function") or "module level"
    lines: list[Line] = [[(f"{path}{report.where(path, known.get('line', 1))}", "bold"), (f": {function}", "")]]
    for name, value in known.items():
        words = _words(value)
        if name in _SHOWN_ELSEWHERE or not words:
            continue
        label = f"  {name.replace('_', ' ')}: "
        first, *rest = wrap(label.strip() + " " + words, width, "  ")
        lines.append([(first, "")])
        lines += [[("  " + text, "")] for text in rest]
    timelines = known.get("timelines") or ()
    for number, timeline in enumerate(timelines, 1):
        if len(timelines) > 1:
            lines.append([(f"  path {number} of {len(timelines)}", "dim")])
        lines += [[("  ", ""), *line] for line in draw(timeline, width - 2, unicode)]
    return lines
