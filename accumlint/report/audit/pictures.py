"""Pictures as inline SVG: the windows of a loop lane by lane, and the weights of its targets.

Shapes carry the meaning, colours only repeat it; colours come from the page's style sheet. One lane is one
path, so that a picture of twenty microbatches stays below three kilobytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.etree.ElementTree import Element

from accumlint.report.audit.markup import h
from accumlint.report.audit.model import Picture, Share, Signature, Window, lane_label, say, summary_of

# lanes that are always drawn, and in which order all lanes come
STANDARD = ("clip", "step", "scheduler", "clear")
_ORDER = ("unscale", "clip", "step", "scaler", "scheduler", "ema", "counter", "clear", "checkpoint", "evaluate")

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
    happened = {event for window in picture.windows for event in (*window.events, *(e for b in window.beats for e in b.events))}
    known = [event for event in _ORDER if event in happened or event in STANDARD]
    return ["microbatch", "forward", "backward", "sync", *known, *sorted(happened - set(_ORDER))]


def _spoken(picture: Picture) -> str:
    """The windows in words."""
    said = []
    for number, window in enumerate(picture.windows, 1):
        events: dict[str, int] = {}
        for event in (*(e for b in window.beats for e in b.events), *window.events):
            events[event] = events.get(event, 0) + 1
        happened = ", ".join(f"{lane_label(event)} {times}×" if times > 1 else lane_label(event) for event, times in events.items())
        title = "tail window" if window.tail else f"window {number}"
        said.append(f"{title}: {say(len(window.beats), 'microbatch', 'microbatches')}, {happened or 'nothing happens'}")
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
        parts.append(h("rect", {"class": "wn", "x": _n(start), "y": "2", "width": _n(end - start), "height": _n(height - 4), "rx": "3"}))
        title = "tail" if window.tail else str(picture.windows.index(window) + 1)
        parts.append(h("text", {"class": "wt", "x": _n((start + end) / 2), "y": "15"}, title))
    parts.append(h("text", {"class": "lb", "x": "0", "y": "15"}, "window"))
    for row, lane in enumerate(lanes):
        y = top + LANE * (row + 0.5)
        parts.append(h("text", {"class": "lb" + (" bad" if lane in flagged else ""), "x": "0", "y": _n(y + 4)}, lane_label(lane)))
        parts += _draw_lane(picture.windows, centres, lane, y)
        for place, rule in enumerate(flagged.get(lane, ())):
            link = h("a", {"href": rules[rule]}, h("text", {"class": "fl", "x": _n(right + FLAG * place), "y": _n(y + 4)}, f"◂ {rule}"))
            parts.append(link)
    view = {
        "class": "pic", "viewBox": f"0 0 {_n(width)} {_n(height)}", "width": _n(width), "height": _n(height),
        "role": "img" if not flagged else "group", "aria-labelledby": f"{key}-t",
    }  # fmt: skip
    return h("svg", view, parts)


def _draw_lane(windows: Sequence[Window], centres: Sequence[Sequence[float]], lane: str, y: float) -> list[Element]:
    if lane == "microbatch":
        return [
            h("text", {"class": "mb", "x": _n(x), "y": _n(y + 4)}, str(beat.index + 1))
            for window, row in zip(windows, centres) for x, beat in zip(row, window.beats)
        ]  # fmt: skip
    marks, dots, unknown, twice = [], [], [], []
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
                times = (beat.events.count(lane) if beat else 0) + (window.events.count(lane) if index == last else 0)
            (marks if times else dots).append(shape(x, y) if times else _dot(x, y))
            if times > 1:
                twice.append((x, times))
    kind = {"forward": "fw", "backward": "bw", "sync": "sy"}.get(lane, "ev")
    parts = [h("path", {"class": name, "d": "".join(shapes)}) for name, shapes in ((kind, marks), ("dt", dots)) if shapes]
    parts += [h("text", {"class": "tm", "x": _n(x + 6), "y": _n(y + 7)}, str(times)) for x, times in twice]
    parts += [h("text", {"class": "un", "x": _n(x), "y": _n(y + 4)}, "–") for x in unknown]
    return parts


BARS = 92  # height of the highest bar
PANEL_GAP = 40
HEADING = 40  # room above the bars
LETTER = 6.2  # width of a letter of the small labels
_SHOWN_WINDOWS = 3

Group = tuple[str, list[tuple[int, Share]]]  # (label below, [(microbatch, its share)])


def _groups(signature: Signature) -> list[Group]:
    """The bars of one panel: windows, and ranks within them where ranks differ."""
    windows = signature.windows[:_SHOWN_WINDOWS]
    differ = any(share != shares[0] for window in windows for shares in window.shares for share in shares)
    groups = []
    for number, window in enumerate(windows, 1):
        for rank in range(signature.ranks if differ else 1):
            label = f"window {number}" + (f", rank {rank}" if differ else "")
            bars = [(index, shares[min(rank, len(shares) - 1)]) for index, shares in zip(window.indices, window.shares)]
            groups.append((label, bars))
    return groups


def weights(signature: Signature, key: str) -> Element:
    """Two panels: what the targets weigh in the script, and by the contract.

    A bar is one microbatch: as wide as it has valid targets, as high as each of them weighs; its area is the
    part that the microbatch takes in the update. By the contract all bars of a window are equally high.
    """
    groups = _groups(signature)
    shares = [share for _, bars in groups for _, share in bars]
    targets = sum(float(share.valid_targets) for share in shares)
    per_target = min(7.0, max(0.6, 240 / max(targets, 1.0)))
    highest = max((float(text) for share in shares for text in (share.weight, share.right) if text), default=1.0) or 1.0
    parts: list[Element] = [h("title", {"id": f"{key}-t"}, f"Weights of the valid targets. {summary_of(signature)}.")]
    left: float = 0
    for number, (heading, which) in enumerate((("in the script", "weight"), ("by the contract", "right"))):
        drawn, width = _panel(groups, left, heading, which, per_target, highest)
        parts += drawn
        left += width + (PANEL_GAP if number == 0 else 0)
    height = HEADING + BARS + 36
    view = {
        "class": "pic", "viewBox": f"0 0 {_n(left)} {height}", "width": _n(left), "height": str(height),
        "role": "img", "aria-labelledby": f"{key}-t",
    }  # fmt: skip
    return h("svg", view, parts)


def _panel(
    groups: Sequence[Group], left: float, heading: str, which: str, per_target: float, highest: float
) -> tuple[list[Element], float]:
    """The elements of one panel that starts at ``left``, and its width."""
    base = HEADING + BARS
    texts = [share.weight if which == "weight" else share.right for _, bars in groups for _, share in bars]
    distinct = list(dict.fromkeys(text or "unknown" for text in texts))
    said = f"each target: {', '.join(distinct[:3])}" + (", …" if len(distinct) > 3 else "")
    parts = [
        h("text", {"class": "hd", "x": _n(left), "y": "12"}, heading),
        h("text", {"class": "st", "x": _n(left), "y": "28"}, said),
    ]
    x = left
    for label, bars in groups:
        start = x
        for index, share in bars:
            text = share.weight if which == "weight" else share.right
            width = max(float(share.valid_targets) * per_target, 3.0)
            room = max(width, LETTER * len(share.valid_targets))
            if text is None:
                parts.append(h("text", {"class": "ct", "x": _n(x + room / 2), "y": str(base - 4)}, "?"))
            else:
                high = max(float(text) / highest * BARS, 0.8)
                wrong = which == "weight" and share.weight != share.right
                where = {"x": _n(x), "y": _n(base - high), "width": _n(width), "height": _n(high)}
                spoken = f"microbatch {index + 1}: {share.valid_targets} valid targets, {text} each"
                parts.append(h("rect", {"class": "br off" if wrong else "br", **where}, h("title", {}, spoken)))
            parts.append(h("text", {"class": "ct", "x": _n(x + width / 2), "y": str(base + 13)}, share.valid_targets))
            x += room + 3
        end = x - 3
        parts.append(h("path", {"class": "ax", "d": f"M{_n(start)} {base}H{_n(end)}"}))
        parts.append(h("text", {"class": "gl", "x": _n(start), "y": str(base + 29)}, label))
        x = max(end, start + LETTER * len(label)) + 12
    return parts, max(x - 12 - left, 8 * len(heading), LETTER * len(said))


def legend() -> dict[str, Element]:
    """The marks of the pictures, by what they mean."""
    marks = {
        "forward": ("fw", _disc), "backward": ("bw", _disc), "gradients are exchanged between ranks (sync lane)": ("sy", _arrows),
        "the event of the lane happens; a small number says how often": ("ev", _triangle), "it does not happen": ("dt", _dot),
    }  # fmt: skip
    drawn = {
        words: h("svg", {"class": "pic", "viewBox": "0 0 16 16", "width": "16", "height": "16", "aria-hidden": "true"}, h("path", {"class": kind, "d": shape(8, 8)}))
        for words, (kind, shape) in marks.items()
    }
    bars = (("weighs what the contract gives it", "br"), ("weighs something else", "br off"))
    for words, kind in bars:
        bar = h("rect", {"class": kind, "x": "3", "y": "2", "width": "10", "height": "12"})
        drawn[words] = h("svg", {"class": "pic", "viewBox": "0 0 16 16", "width": "16", "height": "16", "aria-hidden": "true"}, bar)
    return drawn
