"""A receipt for people: as text for a terminal, and as one HTML page that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from html import escape
from typing import Any

from accumlint.receipt.building import Receipt
from accumlint.receipt.manifest import Window
from accumlint.receipt.picture import bars, svg_picture, text_picture
from accumlint.receipt.result import LIMITATIONS
from accumlint.receipt.verdicts import CLAUSES, REASONS

MAX_ROWS = 200  # windows listed in a table; the receipt itself has all of them


def _number(value: dict[str, Any] | None) -> str:
    """An exact result for a table: a short rational beside its decimal, else the decimal alone."""
    if value is None:
        return "-"
    rational = value["rational"]
    short = f"{Decimal(value['decimal']):.10g}"
    return short if rational is None or "/" not in rational or len(rational) > 17 else f"{short} = {rational}"


def telling_window(receipt: Receipt) -> Window | None:
    """The window to draw: the first in which the mean of means differs, else the first."""
    windows = receipt.manifest.windows
    for window, made in zip(windows, receipt.result["windows"]):
        if made["discriminating"]:
            return window
    return windows[0] if windows else None


HEADINGS = ("window", "kind", "size", "targets", "loss", "accumulated", "mean of means", "drift", "mass")


def table(receipt: Receipt) -> list[tuple[str, ...]]:
    """Rows of the table of windows, without its headings; the last row says what was left out."""
    rows: list[tuple[str, ...]] = []
    for made in receipt.result["windows"][:MAX_ROWS]:
        naive = made["naive"]
        drift = naive["loss_delta"]["absolute"] if naive and naive["loss_delta"] else None
        rows.append(
            (
                str(made["window"]),
                made["kind"] + (" (short)" if made["short"] else ""),
                str(made["microbatches_per_rank"]),
                str(made["valid_targets"]),
                _number(made["reference"]["loss"]),
                _number(made["accumulated"]["loss"]),
                _number(naive["loss"]) if naive else "undefined",
                _number(drift),
                _number(made["weights"]["accumulated"]["mass"]),
            )
        )
    left_out = len(receipt.result["windows"]) - len(rows)
    if left_out > 0:
        rows.append((f"+{left_out}",) + ("",) * (len(HEADINGS) - 1))
    return rows


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]


def _facts(receipt: Receipt) -> list[tuple[str, str]]:
    document, totals = receipt.manifest.document, receipt.result["totals"]
    tail = receipt.result["tail"]
    sizes = ", ".join(f"{n} of size {size}" for size, n in totals["window_sizes"][:8])
    facts = [
        ("verdict", receipt.verdict),
        ("accumulation steps", str(document["accumulation_steps"])),
        ("ranks", f"{totals['ranks']}, gradients {document['rank_reduction']}"),
        ("loss policy", f"{document['loss_policy']} ({receipt.plan['accumulated']})"),
        ("windows in order", sizes),
        ("microbatches", str(totals["microbatches"])),
        ("valid targets", str(totals["valid_targets"])),
        ("loss numerator", _number(totals["loss_numerator"])),
        (
            "gradient numerators",
            ", ".join(_number(g) for g in (totals["gradient_numerators"] or [])[:4]) or "-",
        ),
        ("tail", f"{tail['policy']}, {len(tail['windows'])} short"),
        ("updates so far", str(totals["update_index"])),
        ("backwards so far", str(totals["backward_index"])),
        ("acceptance", receipt.plan["acceptance"]["scalar"]),
        (
            "tolerances",
            ", ".join(f"{name} {value}" for name, value in sorted(document["tolerances"].items())),
        ),
    ]
    return facts


def _verdict_rows(receipt: Receipt) -> list[tuple[str, str, str, str]]:
    rows = []
    for v in receipt.result["verdicts"]:
        windows = ""
        if v["windows"]:
            more = v["windows_affected"] - len(v["windows"])
            windows = "; windows " + ", ".join(map(str, v["windows"])) + (f" and {more} more" if more else "")
        rows.append((v["tier"], CLAUSES[v["tier"]], v["verdict"], REASONS[v["reason"]] + windows))
    return rows


def as_text(receipt: Receipt, fill: str = "#") -> str:
    """The receipt for a terminal: facts, verdicts, windows, the signature beside that of the mean of means."""
    lines = ["accumulation receipt", ""]
    lines += _aligned([(f"  {name}", value) for name, value in _facts(receipt)])
    lines += ["", "verdicts", *("  " + line for line in _aligned(_verdict_rows(receipt)))]
    lines += ["", "windows", *("  " + line for line in _aligned([HEADINGS, *table(receipt)]))]
    window = telling_window(receipt)
    if window is not None:
        lines += ["", f"signature of window {window.index}"]
        lines += ["  " + line for line in text_picture(bars(receipt.manifest, window), fill=fill).split("\n")]
        lines += ["", "the same window as a mean of microbatch means"]
        naive = text_picture(bars(receipt.manifest, window, naive=True), fill=fill)
        lines += ["  " + line for line in naive.split("\n")]
    lines += ["", "what this receipt does not say"]
    lines += [f"  {LIMITATIONS[code]}" for code in receipt.result["limitations"]]
    lines += ["", *(f"  {name} {value}" for name, value in sorted(receipt.hashes.items()))]
    return "\n".join(lines) + "\n"


def as_svg(receipt: Receipt, naive: bool = False) -> str:
    """The signature of the telling window as SVG."""
    window = telling_window(receipt)
    if window is None:  # pragma: no cover - a manifest without windows is refused
        return svg_picture([], "no window")
    title = f"Window {window.index}: " + (
        "weights of a mean of microbatch means" if naive else "weights of this run"
    )
    return svg_picture(bars(receipt.manifest, window, naive), title)


_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:70em;margin:2em auto;padding:0 1em;color:#111;background:#fff}"
    "table{border-collapse:collapse;margin:1em 0}th,td{border:1px solid #888;padding:.25em .6em;text-align:left}"
    "pre{border:1px solid #888;padding:.8em;overflow:auto;white-space:pre-wrap;word-break:break-all}"
    "svg{max-width:100%;height:auto}"
)


def _html_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(h)}</th>' for h in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>\n" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n"


def as_html(receipt: Receipt) -> str:
    """One page: pictures, tables, limitations, the receipt itself and the command that verifies it."""
    facts = "".join(f"<dt>{escape(n)}</dt><dd>{escape(v)}</dd>\n" for n, v in _facts(receipt))
    limits = "".join(f"<li>{escape(LIMITATIONS[code])}</li>\n" for code in receipt.result["limitations"])
    hashes = "".join(f"{n} {v}\n" for n, v in sorted(receipt.hashes.items()))
    body = receipt.data.decode("ascii")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>Accumulation receipt: {escape(receipt.verdict)}</title>\n<style>{_STYLE}</style></head><body>\n"
        f"<h1>Accumulation receipt: {escape(receipt.verdict)}</h1>\n"
        f"<h2>Signature</h2>\n<figure>{as_svg(receipt)}</figure>\n<figure>{as_svg(receipt, naive=True)}</figure>\n"
        f"<h2>Verdicts</h2>\n{_html_table(('tier', 'clause', 'verdict', 'reason'), _verdict_rows(receipt))}"
        f"<h2>Windows</h2>\n{_html_table(HEADINGS, table(receipt))}"
        f"<h2>Facts</h2>\n<dl>{facts}</dl>\n"
        f"<h2>What this receipt does not say</h2>\n<ul>{limits}</ul>\n"
        f"<h2>Verify it</h2>\n<p>Save the text below, with one line feed at its end, as"
        " <code>run.receipt.json</code> and run:</p>\n"
        "<pre>accumlint receipt verify run.receipt.json</pre>\n"
        f"<pre>{escape(hashes)}</pre>\n<h2>The receipt</h2>\n<pre>{escape(body)}</pre>\n</body></html>\n"
    )
