"""The signature of a window: one bar per microbatch, as wide as its valid targets, as high as their weight.

The area of a bar is the mass that it brings into the update. A correct window is one flat rectangle at the
height 1/N; the mean of microbatch means is a staircase; a missing division a tower; a lost tail a gap.
Pure functions over :class:`Bar`; both pictures read without colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from html import escape
from typing import Union

from accumlint.receipt.arithmetic import microbatch_weight
from accumlint.receipt.manifest import Manifest, Window
from accumlint.receipt.numbers import decimal_text, to_fraction

Weight = Union[Fraction, float, None]

MAX_BARS = 256  # more bars than pixels or columns tell nothing; the picture says how many it leaves out


@dataclass(frozen=True)
class Bar:
    """One microbatch: its label, its number of valid targets, the weight of each of them (None: unknown)."""

    label: str
    valid_targets: int
    weight: Weight


def bars(manifest: Manifest, window: Window, naive: bool = False) -> list[Bar]:
    """The bars of a window: measured weights where the run recorded them, else those of its loss policy.

    ``naive`` draws the mean of microbatch means instead. At most :data:`MAX_BARS` microbatches are drawn.
    """
    drawn: list[Bar] = []
    for rows in manifest.ranks:
        for position in range(window.start, window.start + window.size):
            if len(drawn) == MAX_BARS:
                return drawn
            count = rows.valid_targets[position]
            weight: Weight
            if rows.weights is not None and not naive:
                measured = rows.weights[position]
                weight = to_fraction(measured) if count else None
            else:
                weight = microbatch_weight(manifest, window, rows, position, naive)
            drawn.append(Bar(rows.microbatch_id(position), count, weight))
    return drawn


def _short(weight: Weight) -> str:
    if weight is None:
        return "none"
    return short_text(Fraction(weight))


def short_text(value: Fraction) -> str:
    """Six significant digits, for legends (the receipt itself has all of them)."""
    return f"{Decimal(decimal_text(value)):.6g}"


def _is_flat(drawn: Sequence[Bar]) -> bool:
    weights = [Fraction(bar.weight) for bar in drawn if bar.weight is not None and bar.valid_targets]
    return bool(weights) and max(weights) - min(weights) <= abs(max(weights)) / 1_000_000


def describe(drawn: Sequence[Bar]) -> str:
    """The picture in one sentence, for readers who don't see it."""
    total = sum(bar.valid_targets for bar in drawn)
    known = [bar for bar in drawn if bar.weight is not None]
    mass = sum(
        (Fraction(bar.weight) * bar.valid_targets for bar in known if bar.weight is not None), Fraction(0)
    )
    shape = "a flat rectangle" if _is_flat(drawn) else "steps of different height"
    return f"{len(drawn)} microbatches with {total} valid targets: {shape}, mass {short_text(mass)}"


def _widths(drawn: Sequence[Bar], total: int) -> list[int]:
    """Columns for each bar, at least one for a microbatch that has targets."""
    targets = sum(bar.valid_targets for bar in drawn) or 1
    return [max(1, round(bar.valid_targets / targets * total)) if bar.valid_targets else 1 for bar in drawn]


def text_picture(drawn: Sequence[Bar], width: int = 60, height: int = 8, fill: str = "#") -> str:
    """The signature for a terminal: rows of ``fill``, a line at the right height 1/N, a legend below.

    ``width`` and ``height`` are in characters; the result has no trailing blanks and ends without a newline.
    """
    if not drawn:
        return "(no microbatch)"
    targets = sum(bar.valid_targets for bar in drawn)
    right = Fraction(1, targets) if targets else Fraction(0)
    heights = [Fraction(bar.weight) if bar.weight is not None else Fraction(0) for bar in drawn]
    top = max([*heights, right]) or Fraction(1)
    widths = _widths(drawn, width)
    levels = [round(max(h, 0) / top * height) if h <= 0 else max(1, round(h / top * height)) for h in heights]
    line = max(1, round(right / top * height))
    rows = []
    for level in range(height, 0, -1):
        blank = "-" if level == line else " "
        cells = [(fill if filled >= level else blank) * w for w, filled in zip(widths, levels)]
        mark = f" 1/{targets} = {_short(right)}" if level == line and targets else ""
        rows.append(("|" + "|".join(cells) + "|" + mark).rstrip())
    rows.append("+" + "+".join("-" * w for w in widths) + "+")
    rows += [
        f"  {bar.label}: {bar.valid_targets} targets of weight {_short(bar.weight)}" for bar in drawn[:32]
    ]
    if len(drawn) > 32:
        rows.append(f"  and {len(drawn) - 32} more microbatches")
    rows.append("  " + describe(drawn))
    return "\n".join(rows)


def svg_picture(drawn: Sequence[Bar], title: str, width: int = 640, height: int = 220) -> str:
    """The signature as SVG text: same input, same bytes; no script, no font, no reference to elsewhere.

    ``title`` and ``describe`` are its accessible name and description. Bars are outlined and labelled, the
    right height is a dashed line with its value, so that nothing depends on colour.
    """
    targets = sum(bar.valid_targets for bar in drawn)
    right = Fraction(1, targets) if targets else Fraction(0)
    heights = [Fraction(bar.weight) if bar.weight is not None else Fraction(0) for bar in drawn]
    top = max([*heights, right], default=Fraction(1)) or Fraction(1)
    left, under, inner_width, inner_height = 12, height - 44, width - 124, height - 72

    def number(value: float) -> str:
        return f"{value:.2f}".rstrip("0").rstrip(".")

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' role="img" font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f"<desc>{escape(describe(drawn))}</desc>",
        f'<text x="{left}" y="16" fill="currentColor">{escape(title)}</text>',
    ]
    x = float(left)
    for bar, weight in zip(drawn, heights):
        wide = bar.valid_targets / targets * inner_width if targets else 0.0
        high = float(max(weight, Fraction(0)) / top) * inner_height
        label = f"{bar.label}: {bar.valid_targets} targets of weight {_short(bar.weight)}"
        parts.append(
            f'<rect x="{number(x)}" y="{number(under - high)}" width="{number(wide)}" height="{number(high)}"'
            ' fill="#8fb4d9" stroke="#1f3a57" stroke-width="1">'
            f"<title>{escape(label)}</title></rect>"
        )
        if wide >= 28:
            parts.append(
                f'<text x="{number(x + wide / 2)}" y="{under + 14}" text-anchor="middle" fill="currentColor">'
                f"{escape(bar.label)}</text>"
                f'<text x="{number(x + wide / 2)}" y="{under + 28}" text-anchor="middle" fill="currentColor">'
                f"{bar.valid_targets} × {escape(_short(bar.weight))}</text>"
            )
        x += wide
    level = under - float(right / top) * inner_height
    parts.append(
        f'<line x1="{left}" y1="{number(level)}" x2="{number(left + inner_width)}" y2="{number(level)}"'
        ' stroke="#b00020" stroke-width="1.5" stroke-dasharray="6 4"/>'
    )
    if targets:
        parts.append(
            f'<text x="{left + inner_width + 6}" y="{number(level + 4)}" fill="currentColor">'
            f"1/{targets} = {escape(_short(right))}</text>"
        )
    parts.append(
        f'<line x1="{left}" y1="{under}" x2="{left + inner_width}" y2="{under}" stroke="currentColor"/></svg>'
    )
    return "\n".join(parts) + "\n"
