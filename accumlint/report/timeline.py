"""The window picture: what happened at each microbatch of each window, lane by lane.

Drawn from plain data (see ``draw``); no source, no terminal and no colour is needed to read it. One column
is one microbatch, a bar closes a window where the optimizer stepped:

    window      1          2          tail
    microbatch  1  2  3  | 4  5  6  | 7
    backward    *  *  *  | *  *  *  | *
    sync        .  .  S  | .  .  S  | S
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

Piece = tuple[str, str]
Line = list[Piece]

# What a lane draws, (with Unicode, without)
MARKS = {
    "forward": ("○", "o"),
    "backward": ("●", "*"),
    "sync": ("⇄", "S"),
    "silent": ("·", "."),
    "unknown": ("?", "?"),
    "event": ("▲", "^"),
    "boundary": ("│", "|"),
}

# event -> the lane that shows it, in the order in which a right window performs them
EVENT_LANES = {
    "unscale": "unscale",
    "clip": "clip",
    "step": "step",
    "scaler": "scaler",
    "scheduler": "scheduler",
    "ema": "ema",
    "counter": "counter",
    "clear": "clear",
    "checkpoint": "checkpoint",
    "evaluate": "evaluate",
}

_LABEL_WIDTH = 12


def _mark(name: str, unicode: bool) -> str:
    return MARKS[name][0 if unicode else 1]


class _Column:
    """One microbatch, or the events that happen at a boundary beside none."""

    def __init__(self, microbatch: Mapping[str, Any] | None, events: Sequence[str], last: bool):
        self.microbatch = microbatch
        self.events = list(events)
        self.last = last  # a boundary follows

    @property
    def index(self) -> str:
        return "" if self.microbatch is None else str(int(self.microbatch.get("index", 0)) + 1)


def _columns(windows: Sequence[Mapping[str, Any]]) -> list[list[_Column]]:
    """One list of columns per window; the events at the boundary belong to its last microbatch."""
    table = []
    for window in windows:
        microbatches = list(window.get("microbatches") or ())
        columns = [_Column(each, each.get("events") or (), False) for each in microbatches]
        if not columns:
            columns = [_Column(None, (), False)]
        columns[-1].events += list(window.get("events") or ())
        columns[-1].last = True
        table.append(columns)
    return table


def _times(events: Sequence[str], name: str, unicode: bool) -> str:
    number = sum(1 for event in events if event == name)
    if not number:
        return _mark("silent", unicode)
    return _mark("event", unicode) + (str(number) if number > 1 else "")


def _sync(microbatch: Mapping[str, Any] | None, unicode: bool) -> str:
    value = None if microbatch is None else microbatch.get("sync")
    return _mark("unknown" if value is None else "sync" if value else "silent", unicode)


def _done(microbatch: Mapping[str, Any] | None, what: str, unicode: bool) -> str:
    return _mark(what if microbatch is not None and microbatch.get(what) else "silent", unicode)


def _constant(windows: Sequence[Mapping[str, Any]], key: str) -> Any:
    """The value that every microbatch has for ``key``, None where they differ or don't say."""
    values = [each.get(key) for window in windows for each in window.get("microbatches") or ()]
    return values[0] if len(values) > 1 and all(value == values[0] for value in values) else None


def _spans_epochs(window: Mapping[str, Any]) -> bool:
    return len({each.get("epoch") for each in window.get("microbatches") or ()}) > 1


def _lanes(columns: Sequence[_Column], unicode: bool, constant: Set[str]) -> list[tuple[str, list[str]]]:
    """(label, one cell per column), only lanes that say something; ``constant`` ones go into the caption."""
    microbatches = [column.microbatch for column in columns]
    real = [each for each in microbatches if each is not None]
    lanes = [("microbatch", [column.index for column in columns])]
    if "epoch" not in constant:
        cells = ["" if each is None else str(each.get("epoch", "")) for each in microbatches]
        lanes.append(("epoch", cells))
    if "valid_targets" not in constant and any(each.get("valid_targets") is not None for each in real):
        cells = ["" if each is None else ("?" if each.get("valid_targets") is None else str(each["valid_targets"])) for each in microbatches]
        lanes.append(("targets", cells))
    if any(each.get("forward") != each.get("backward") for each in real):
        # where every forward has its backward the lane would say the same twice
        lanes.append(("forward", [_done(each, "forward", unicode) for each in microbatches]))
    lanes.append(("backward", [_done(each, "backward", unicode) for each in microbatches]))
    if any(each.get("sync") is not None for each in real):
        lanes.append(("sync", [_sync(each, unicode) for each in microbatches]))
    if "weight" not in constant and any(each.get("weight") is not None for each in real):
        cells = ["" if each is None else str(each.get("weight") or "?") for each in microbatches]
        lanes.append(("weight", cells))
    happened = [event for column in columns for event in column.events]
    known = [event for event in EVENT_LANES if event in happened]
    others = sorted(set(happened) - set(EVENT_LANES))
    for event in [*known, *others]:
        lanes.append((EVENT_LANES.get(event, event), [_times(c.events, event, unicode) for c in columns]))
    return lanes


def _title(number: int, window: Mapping[str, Any]) -> str:
    return "tail" if window.get("tail") else str(number)


def _blocks(widths: Sequence[int], room: int) -> list[range]:
    """Windows side by side as long as they fit; at least one a block."""
    blocks, start, used = [], 0, 0
    for index, width in enumerate(widths):
        if index > start and used + width > room:
            blocks.append(range(start, index))
            start, used = index, 0
        used += width
    return [*blocks, range(start, len(widths))]


def _draw_block(
    numbers: Sequence[int], windows: Sequence[Mapping[str, Any]], unicode: bool, constant: Set[str]
) -> list[Line]:
    groups = _columns(windows)
    columns = [column for group in groups for column in group]
    lanes = _lanes(columns, unicode, constant)
    cell = max(2, *(len(text) for _, cells in lanes for text in cells))
    bar = _mark("boundary", unicode)

    def row(label: str, cells: Sequence[str]) -> Line:
        text = "".join(
            content.ljust(cell) + (f" {bar} " if column.last else " ")
            for content, column in zip(cells, columns)
        )
        style = "dim" if label in ("microbatch", "epoch", "targets") else ""
        return [(label[: _LABEL_WIDTH - 1].ljust(_LABEL_WIDTH), "dim"), (text.rstrip(), style)]

    titles: Line = [("window".ljust(_LABEL_WIDTH), "dim")]
    text = ""
    for number, window, group in zip(numbers, windows, groups):
        span = len(group) * cell + (len(group) - 1) + 2
        text += _title(number, window)[: max(span, 1)].ljust(span) + " "
    titles.append((text.rstrip(), "bold"))
    return [titles, *(row(label, cells) for label, cells in lanes)]


def _window_width(window: Mapping[str, Any], cell: int) -> int:
    return max(len(window.get("microbatches") or ()), 1) * (cell + 1) + 2


def _caption(same: Mapping[str, Any]) -> list[Line]:
    """What is the same for all microbatches, in words instead of a lane."""
    parts = []
    if same["valid_targets"] is not None:
        parts.append(f"{same['valid_targets']} valid targets in every microbatch")
    if same["weight"] is not None:
        parts.append(f"every target weighs {same['weight']}")
    return [[(", ".join(parts), "dim")]] if parts else []


def draw(timeline: Mapping[str, Any], width: int = 100, unicode: bool = True) -> list[Line]:
    """The picture as styled lines, at most ``width`` columns wide unless a single window needs more.

    ``timeline`` is plain JSON: ``k``, ``windows`` (each with ``microbatches``, ``events`` at its boundary, ``tail``
    and, where they don't follow each other, ``number``; a microbatch's ``epoch`` is shown as it is, its ``index`` counts from 0), ``pending``
    (microbatches that no step ever used) and ``note``.
    """
    windows = list(timeline.get("windows") or ())
    lines: list[Line] = []
    if windows:
        everything = [column for group in _columns(windows) for column in group]
        same = {key: _constant(windows, key) for key in ("valid_targets", "weight")}
        constant = {key for key, value in same.items() if value is not None}
        if not any(_spans_epochs(window) for window in windows):
            constant.add("epoch")  # its lane would only repeat what the bars say
        lanes = _lanes(everything, unicode, constant)
        cell = max(2, *(len(text) for _, cells in lanes for text in cells))
        widths = [_window_width(window, cell) for window in windows]
        for block in _blocks(widths, width - _LABEL_WIDTH):
            part = [windows[index] for index in block]
            lines += _draw_block([int(windows[index].get("number") or index + 1) for index in block], part, unicode, constant)
        lines += _caption(same)
    pending = timeline.get("pending")
    if pending:
        what = "microbatch is" if pending == 1 else "microbatches are"
        lines.append([(f"{pending} {what} left over: no step uses their gradients", "warning")])
    if timeline.get("note"):
        lines.append([(str(timeline["note"]), "dim")])
    return lines


def summarise(window: Mapping[str, Any]) -> str:
    """One window in a sentence, for formats that can't draw."""
    microbatches = list(window.get("microbatches") or ())
    number = len(microbatches)
    parts = [f"{number} microbatch{'' if number == 1 else 'es'}"]
    happened = [event for each in microbatches for event in each.get("events") or ()]
    happened += list(window.get("events") or ())
    for event in dict.fromkeys(happened):
        times = happened.count(event)
        parts.append(EVENT_LANES.get(event, event) + (f" ×{times}" if times > 1 else ""))
    return ", ".join(parts)
