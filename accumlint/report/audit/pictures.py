"""Pictures as inline SVG: the windows of a loop lane by lane, and the weights of its targets.

Shapes carry the meaning, colours only repeat it; colours come from the page's style sheet. One lane is one
path, so that a picture of twenty microbatches stays below three kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from accumlint.report.audit.markup import h
from accumlint.report.audit.model import (
    Picture,
    Share,
    Signature,
    Weights,
    Window,
    is_off,
    lane_label,
    say,
    summary_of,
)

# lanes that are always drawn, and in which order all lanes come
STANDARD = ("clip", "step", "scheduler", "clear")
_ORDER = (
    "unscale",
    "clip",
    "step",
    "scaler",
    "scheduler",
    "ema",
    "counter",
    "clear",
    "checkpoint",
    "evaluate",
)

# rule prefix -> lane in which it shows
LANES_OF_RULES = {
    "ACC1": "backward", "ACC201": "step", "ACC202": "scheduler", "ACC203": "scheduler", "ACC204": "clear", "ACC205": "clear",
    "ACC206": "step", "ACC207": "step", "ACC208": "backward", "ACC209": "step", "ACC210": "backward", "ACC211": "step",
    "ACC212": "scaler", "ACC213": "step", "ACC3": "sync", "ACC401": "clip", "ACC402": "clip", "ACC403": "clip", "ACC404": "unscale",
    "ACC5": "step", "ACC6": "sync", "ACC703": "ema", "ACC704": "checkpoint", "ACC705": "checkpoint", "ACC8": "scheduler",
}  # fmt: skip

LABEL = 88  # width of the column of labels, in units (1 unit = 1 CSS pixel)
CELL = 24
LANE = 20
GAP = 10  # between windows
FLAG = 74  # room for the rule at the end of a lane


def lane_of(rule: str) -> str:
    """The lane in which a finding of this rule shows, empty where none does."""
    return next((lane for prefix, lane in LANES_OF_RULES.items() if rule.startswith(prefix)), "")


def _positions(windows: Sequence[Window]) -> tuple[list[list[float]], list[tuple[float, float]], float]:
    """Centres of the columns by window, extent of each window, and the right end."""
    x: float = LABEL
    centres, extents = [], []
    for window in windows:
        number = max(len(window.beats), 1)
        centres.append([x + CELL * (index + 0.5) for index in range(number)])
        extents.append((x, x + CELL * number))
        x += CELL * number + GAP
    return centres, extents, x


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _disc(x: float, y: float) -> str:
    return f"M{_n(x - 5)} {_n(y)}a5 5 0 1 0 10 0a5 5 0 1 0-10 0"


def _triangle(x: float, y: float) -> str:
    return f"M{_n(x)} {_n(y - 6)}l6 11h-12z"


def _arrows(x: float, y: float) -> str:
    """Two opposite arrows: gradients are exchanged between ranks."""
    return f"M{_n(x - 6)} {_n(y - 3)}h12l-3-3m3 3l-3 3M{_n(x + 6)} {_n(y + 4)}h-12l3-3m-3 3l3 3"


def _dot(x: float, y: float) -> str:
    return f"M{_n(x - 1)} {_n(y)}h2"


def _lanes(picture: Picture) -> list[str]:
    happened = {
        event
        for window in picture.windows
        for event in (*window.events, *(e for b in window.beats for e in b.events))
    }
    known = [event for event in _ORDER if event in happened or event in STANDARD]
    return ["microbatch", "forward", "backward", "sync", *known, *sorted(happened - set(_ORDER))]


def _spoken(picture: Picture) -> str:
    """The windows in words."""
    said = []
    for window in picture.windows:
        events: dict[str, int] = {}
        for event in (*(e for b in window.beats for e in b.events), *window.events):
            events[event] = events.get(event, 0) + 1
        happened = ", ".join(
            f"{lane_label(event)} {times}×" if times > 1 else lane_label(event)
            for event, times in events.items()
        )
        title = f"window {window.number}" + (" (shorter than usual)" if window.tail else "")
        said.append(
            f"{title}: {say(len(window.beats), 'microbatch', 'microbatches')}, {happened or 'nothing happens'}"
        )
    if picture.pending:
        said.append(f"{say(picture.pending, 'microbatch', 'microbatches')} left over, used by no step")
    return ". ".join(said) + "."


def timeline(picture: Picture, key: str, rules: Mapping[str, str]) -> Element:
    """The windows of one simulated path. ``rules``: code -> target of its link; ``key`` makes ids unique."""
    lanes = _lanes(picture)
    centres, extents, right = _positions(picture.windows)
    flagged: dict[str, list[str]] = {}
    for rule in rules:
        lane = lane_of(rule)
        if lane in lanes:
            flagged.setdefault(lane, []).append(rule)
    width = right + (FLAG * max((len(each) for each in flagged.values()), default=0))
    top = 22
    height = top + LANE * len(lanes) + 6
    parts: list[Element] = [h("title", {"id": f"{key}-t"}, _spoken(picture))]
    for window, (start, end) in zip(picture.windows, extents):
        parts.append(
            h(
                "rect",
                {
                    "class": "wn short" if window.tail else "wn",
                    "x": _n(start),
                    "y": "2",
                    "width": _n(end - start),
                    "height": _n(height - 4),
                    "rx": "3",
                },
            )
        )
        parts.append(h("text", {"class": "wt", "x": _n((start + end) / 2), "y": "15"}, str(window.number)))
    parts.append(h("text", {"class": "lb", "x": "0", "y": "15"}, "window"))
    for row, lane in enumerate(lanes):
        y = top + LANE * (row + 0.5)
        parts.append(
            h(
                "text",
                {"class": "lb" + (" bad" if lane in flagged else ""), "x": "0", "y": _n(y + 4)},
                lane_label(lane),
            )
        )
        parts += _draw_lane(picture.windows, centres, lane, y)
        for place, rule in enumerate(flagged.get(lane, ())):
            link = h(
                "a",
                {"href": rules[rule]},
                h("text", {"class": "fl", "x": _n(right + FLAG * place), "y": _n(y + 4)}, f"◂ {rule}"),
            )
            parts.append(link)
    view = {
        "class": "pic", "viewBox": f"0 0 {_n(width)} {_n(height)}", "width": _n(width), "height": _n(height),
        "role": "img" if not flagged else "group", "aria-labelledby": f"{key}-t",
    }  # fmt: skip
    return h("svg", view, parts)


def _draw_lane(
    windows: Sequence[Window], centres: Sequence[Sequence[float]], lane: str, y: float
) -> list[Element]:
    if lane == "microbatch":
        return [
            h("text", {"class": "mb", "x": _n(x), "y": _n(y + 4)}, str(beat.index + 1))
            for window, row in zip(windows, centres) for x, beat in zip(row, window.beats)
        ]  # fmt: skip
    marks: list[str] = []
    dots: list[str] = []
    unknown: list[float] = []
    twice: list[tuple[float, int]] = []
    shape = {"forward": _disc, "backward": _disc, "sync": _arrows}.get(lane, _triangle)
    for window, row in zip(windows, centres):
        last = len(row) - 1
        for index, x in enumerate(row):
            beat = window.beats[index] if index < len(window.beats) else None
            if lane in ("forward", "backward"):
                times = int(bool(beat and getattr(beat, lane)))
            elif lane == "sync":
                times = int(bool(beat and beat.sync))
                if beat is not None and beat.sync is None:
                    unknown.append(x)
                    continue
            else:
                times = (beat.events.count(lane) if beat else 0) + (
                    window.events.count(lane) if index == last else 0
                )
            (marks if times else dots).append(shape(x, y) if times else _dot(x, y))
            if times > 1:
                twice.append((x, times))
    kind = {"forward": "fw", "backward": "bw", "sync": "sy"}.get(lane, "ev")
    parts = [
        h("path", {"class": name, "d": "".join(shapes)})
        for name, shapes in ((kind, marks), ("dt", dots))
        if shapes
    ]
    parts += [h("text", {"class": "tm", "x": _n(x + 6), "y": _n(y + 7)}, str(times)) for x, times in twice]
    parts += [h("text", {"class": "un", "x": _n(x), "y": _n(y + 4)}, "–") for x in unknown]
    return parts


BARS = 92  # height of the highest bar
HEADING = 40  # room above the bars
LETTER = 6.2  # width of a letter of the small labels
_SHOWN_WINDOWS = 3


class _Group(NamedTuple):
    """Bars that stand together: a window, or one rank of it. ``window`` is empty after its first rank."""

    bars: list[tuple[int, Share]]  # (microbatch, its share)
    rank: str
    window: str


def chosen(windows: Sequence[Weights], number: int) -> Sequence[Weights]:
    """The first windows; the last of them gives way to the first one that is off where all of them are right."""
    shown = windows[:number]
    if not any(map(is_off, shown)):
        later = [window for window in windows[number:] if is_off(window)]
        if later:
            return [*shown[:-1], later[0]]
    return shown


def _groups(signature: Signature) -> list[_Group]:
    """The bars of one panel: windows, and ranks within them where ranks differ."""
    differ = any(
        share != shares[0] for window in signature.windows for shares in window.shares for share in shares
    )
    ranks = signature.ranks if differ else 1
    groups = []
    for window in chosen(signature.windows, _SHOWN_WINDOWS if ranks == 1 else 2):
        for rank in range(ranks):
            bars = [
                (index, shares[min(rank, len(shares) - 1)])
                for index, shares in zip(window.indices, window.shares)
            ]
            groups.append(
                _Group(
                    bars, f"rank {rank}" if ranks > 1 else "", f"window {window.number}" if rank == 0 else ""
                )
            )
    return groups


def weights(signature: Signature, key: str) -> list[Element]:
    """Two pictures: what the targets weigh in the script, and by the contract.

    A bar is one microbatch: as wide as it has valid targets, as high as each of them weighs; its area is the
    part that the microbatch takes in the update. By the contract all bars of a window are equally high.
    """
    groups = _groups(signature)
    shares = [share for group in groups for _, share in group.bars]
    targets = sum(float(share.valid_targets) for share in shares)
    per_target = min(7.0, max(0.6, 200 / max(targets, 1.0)))
    highest = (
        max((float(text) for share in shares for text in (share.weight, share.right) if text), default=1.0)
        or 1.0
    )
    spoken = f"Weights of the valid targets in the script. {summary_of(signature)}."
    return [
        _panel(groups, f"{key}s", "in the script", spoken, per_target, highest, in_script=True),
        _panel(groups, f"{key}c", "by the contract", "The same windows by the contract: all targets of a window weigh the same.",
               per_target, highest, in_script=False),
    ]  # fmt: skip


def _panel(
    groups: Sequence[_Group],
    key: str,
    heading: str,
    spoken: str,
    per_target: float,
    highest: float,
    in_script: bool,
) -> Element:
    """One of the two pictures; ``per_target`` is in pixels, ``highest`` the weight of a bar of full height."""

    def weight(share: Share) -> str | None:
        return share.weight if in_script else share.right

    base = HEADING + BARS
    distinct = list(dict.fromkeys(weight(share) or "unknown" for group in groups for _, share in group.bars))
    said = f"each target: {', '.join(distinct[:3])}" + (", …" if len(distinct) > 3 else "")
    parts = [
        h("title", {"id": f"{key}-t"}, spoken),
        h("text", {"class": "hd", "x": "0", "y": "12"}, heading),
        h("text", {"class": "st", "x": "0", "y": "28"}, said),
    ]
    x: float = 1
    for group in groups:
        start = x
        for index, share in group.bars:
            text = weight(share)
            width = max(float(share.valid_targets) * per_target, 3.0)
            room = max(width, LETTER * len(share.valid_targets))
            if text is None:
                parts.append(h("text", {"class": "ct", "x": _n(x + room / 2), "y": str(base - 4)}, "?"))
            else:
                high = max(float(text) / highest * BARS, 0.8)
                off = in_script and share.weight != share.right
                where = {"x": _n(x), "y": _n(base - high), "width": _n(width), "height": _n(high)}
                detail = f"microbatch {index + 1}: {share.valid_targets} valid targets, {text} each"
                parts.append(h("rect", {"class": "br off" if off else "br", **where}, h("title", {}, detail)))
            parts.append(
                h("text", {"class": "ct", "x": _n(x + width / 2), "y": str(base + 13)}, share.valid_targets)
            )
            x += room + 3
        end = x - 3
        parts.append(h("path", {"class": "ax", "d": f"M{_n(start)} {base}H{_n(end)}"}))
        labels = [label for label in (group.rank, group.window) if label]
        below = [base + 28, base + 42] if group.rank else [base + 29]
        parts += [
            h("text", {"class": "gl", "x": _n(start), "y": str(y)}, label) for label, y in zip(labels, below)
        ]
        x = max(end, start + LETTER * max((len(label) for label in labels), default=0)) + 12
    width = max(x - 11, 8 * len(heading), LETTER * len(said))
    height = base + (50 if any(group.rank for group in groups) else 36)
    view = {
        "class": "pic", "viewBox": f"0 0 {_n(width)} {height}", "width": _n(width), "height": str(height),
        "role": "img", "aria-labelledby": f"{key}-t",
    }  # fmt: skip
    return h("svg", view, parts)


def legend() -> dict[str, Element]:
    """The marks of the pictures, by what they mean."""
    marks = {
        "forward": ("fw", _disc), "backward": ("bw", _disc), "gradients are exchanged between ranks (sync lane)": ("sy", _arrows),
        "the event of the lane happens; a small number says how often": ("ev", _triangle), "it does not happen": ("dt", _dot),
    }  # fmt: skip
    drawn = {
        words: h(
            "svg",
            {"class": "pic", "viewBox": "0 0 16 16", "width": "16", "height": "16", "aria-hidden": "true"},
            h("path", {"class": kind, "d": shape(8, 8)}),
        )
        for words, (kind, shape) in marks.items()
    }
    box = h("rect", {"class": "wn short", "x": "2", "y": "2", "width": "12", "height": "12"})
    drawn["a window that is shorter than usual"] = h(
        "svg",
        {"class": "pic", "viewBox": "0 0 16 16", "width": "16", "height": "16", "aria-hidden": "true"},
        box,
    )
    bars = (("weighs what the contract gives it", "br"), ("weighs something else", "br off"))
    for words, kind in bars:
        bar = h("rect", {"class": kind, "x": "3", "y": "2", "width": "10", "height": "12"})
        drawn[words] = h(
            "svg",
            {"class": "pic", "viewBox": "0 0 16 16", "width": "16", "height": "16", "aria-hidden": "true"},
            bar,
        )
    return drawn
