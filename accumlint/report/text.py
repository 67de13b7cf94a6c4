"""The view for people: one block per finding, with the source, the simulated windows, and what to read next.

The view is built as lines of styled pieces; joined without their styles they are the plain view, so that a
pipe and a terminal show the same words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from accumlint.report.model import FILES_WITH_FIXES, Report, Summary, count_by_rule, count_by_severity, count_probed

if TYPE_CHECKING:
    from accumlint.findings import Finding, Span

Piece = tuple[str, str]  # (text, style)
Line = list[Piece]

TAB = "    "


def cells(text: str) -> int:
    """Columns that a terminal needs for ``text``."""
    if text.isascii():
        return len(text)
    import unicodedata

    width = 0
    for character in text:
        if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
            continue
        width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


# what would move the cursor or recolour the terminal
_CONTROLS = dict.fromkeys([*range(0x20), *range(0x7F, 0xA0)], "?")


def harmless(text: str) -> str:
    """Text from a file or a path without control characters: a source can't write to the terminal."""
    return text if text.isprintable() else text.translate(_CONTROLS)


def plain(lines: Iterable[Line]) -> str:
    """Lines without their styles."""
    return "".join("".join(text for text, _ in line).rstrip() + "\n" for line in lines)


def wrap(text: str, width: int, indent: str) -> list[str]:
    """``text`` in lines of at most ``width`` columns, each behind ``indent``; long words stay whole."""
    lines, current = [], ""
    for word in harmless(" ".join(text.split())).split():
        longer = f"{current} {word}" if current else word
        if current and cells(indent + longer) > width:
            lines.append(indent + current)
            current = word
        else:
            current = longer
    return [*lines, indent + current] if current else lines


def _count(number: int, singular: str, plural: str = "") -> str:
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def excerpt(report: Report, finding: Finding, width: int) -> list[Line]:
    """The source line with a caret below what is meant; empty where the source isn't at hand."""
    span = finding.span
    if finding.about_whole_file:
        return []  # its first line would explain nothing
    source = report.line(span.path, span.line)
    if source is None or not source.strip():
        return []
    source = source.translate({code: mark for code, mark in _CONTROLS.items() if code != ord("\t")})
    end = span.end_column if span.end_line in (0, span.line) and span.end_column > span.column else 0
    start = max(span.column - 1, 0)
    meant = source[start : end - 1] if end else source[start:]
    before = source[:start].replace("\t", TAB)
    shown = source.replace("\t", TAB).rstrip()
    dedent = len(shown) - len(shown.lstrip())
    keep = min(dedent, len(before))
    shown, before = shown[keep:], before[keep:]
    cell = report.cell(span.path, span.line)
    number = str(span.line if cell is None else cell[1])
    room = max(width - len(number) - 5, 20)
    if cells(shown) > room:  # keep the beginning of what is meant in sight
        cut = max(0, len(before) - room // 2)
        shown, before = shown[cut : cut + room], before[cut:]
    carets = min(max(cells(meant.rstrip().replace("\t", TAB)), 1), max(room - cells(before), 1))
    gutter = " " * len(number)
    return [
        [(f"  {number} | ", "dim"), (shown, "")],
        [(f"  {gutter} | ", "dim"), (" " * cells(before) + "^" * carets, finding.severity.label)],
    ]


def header(report: Report, finding: Finding) -> Line:
    """``path:line:column: severity CODE name (confidence)``; in a notebook ``path:cell 3:line:column``."""
    span = finding.span
    line: Line = [
        (f"{harmless(span.path)}{report.where(span.path, span.line, span.column)}", "bold"),
        (": ", ""),
        (finding.severity.label, finding.severity.label),
        (f" {finding.rule} ", "bold"),
        (finding.name, ""),
    ]
    if finding.confidence.label != "certain":
        line.append((f" ({finding.confidence.label})", "dim"))
    return line


def _draws_weights(timeline) -> bool:
    microbatches = [each for window in timeline["windows"] for each in window.get("microbatches") or ()]
    return any(each.get("weight") is not None for each in microbatches)


def _evidence(finding: Finding, width: int, unicode: bool, drawn_before: bool) -> list[Line]:
    from accumlint.report.timeline import draw

    lines: list[Line] = []
    timeline = finding.evidence.get("timeline")
    drawn = bool(timeline and timeline.get("windows"))
    if drawn and drawn_before:
        lines.append([("  windows as drawn above", "dim")])
    elif drawn:
        lines += [[("  ", ""), *line] for line in draw(timeline, width - 2, unicode)]
    windows = finding.evidence.get("windows")
    if windows and not drawn:
        lines.append([("  windows of " + ", ".join(map(str, windows)) + " microbatches", "")])
    weights = finding.evidence.get("weights")
    if weights and not (drawn and _draws_weights(timeline)):
        lines += [[(text, "")] for text in wrap("weights " + ", ".join(map(str, weights)), width, "  ")]
    flags = finding.evidence.get("flags")
    if flags:
        lines += [[(text, "dim")] for text in wrap("on the path where " + " and ".join(flags), width, "  ")]
    note = finding.evidence.get("note")
    if note:
        lines += [[(text, "dim")] for text in wrap(str(note), width, "  ")]
    return lines


def _other_place(report: Report, span: Span, seen_from: Span) -> str:
    """How a finding speaks of a second place: as short as it may be, seen from its own."""
    if span.path != seen_from.path:
        return f"{span.path}{report.where(span.path, span.line)}"
    cell = report.cell(span.path, span.line)
    if cell is None:
        return f"line {span.line}"
    return f"cell {cell[0]}, line {cell[1]}"


def block(
    report: Report, finding: Finding, width: int, unicode: bool, drawn_before: bool = False
) -> list[Line]:
    """Everything about one finding; ``drawn_before`` when the block above shows the same windows."""
    lines = [header(report, finding)]
    lines += [[(text, "")] for text in wrap(finding.message, width, "  ")]
    lines += excerpt(report, finding, width)
    for related in finding.related:
        span = related.span
        place = _other_place(report, span, finding.span)
        lines += [[(text, "dim")] for text in wrap(f"{place}: {related.message}", width, "  ")]
    lines += _evidence(finding, width, unicode, drawn_before)
    if finding.probed is not None:
        style = "error" if finding.probed.verdict == "confirmed" else "good"
        lines += [[(text, style)] for text in wrap(str(finding.probed), width, "  ")]
    if finding.fix is not None:
        option = "--fix" if finding.fix.safe else "--fix=unsafe"
        why = f" (unsafe: {finding.fix.why_unsafe})" if finding.fix.why_unsafe else ""
        lines += [[(text, "")] for text in wrap(f"fixable with {option}: {finding.fix.title}{why}", width, "  ")]
    return lines


def closing(report: Report) -> list[Line]:
    """What was found, what was looked at, what was left out and why."""
    summary = report.summary
    lines: list[Line] = []
    if report.findings:
        counts = count_by_severity(report.findings)
        parts = [
            _count(number, label, "advice" if label == "advice" else f"{label}s")
            for label, number in counts.items()
            if number
        ]
        files = len({finding.span.path for finding in report.findings})
        grave = next(label for label, number in counts.items() if number)
        lines.append([(f"Found {', '.join(parts)} in {_count(files, 'file')}.", grave)])
        probed = [f"{number} {verdict}" for verdict, number in count_probed(report.findings).items() if number]
        if probed:
            lines.append([(f"By receipts of runs: {', '.join(probed)}.", "")])
        safe = sum(finding.fix is not None and finding.fix.safe for finding in report.findings)
        unsafe = sum(finding.fix is not None and not finding.fix.safe for finding in report.findings)
        fixable = [f"{safe} fixable with --fix"] * bool(safe) + [f"{unsafe} with --fix=unsafe"] * bool(unsafe)
        if fixable:
            lines.append([(", ".join(fixable) + " (--patch shows the change).", "")])
        elif files > FILES_WITH_FIXES:
            lines.append([("Fixes were not tried out in so many files (--patch does, and shows the changes).", "")])
    elif summary.errors:
        lines.append([("Nothing found in what could be checked.", "warning")])
    elif summary.files_checked:
        lines.append([("Nothing found.", "good")])
    else:
        lines.append([("Nothing was checked.", "warning")])
    lines += [[(text, "dim")] for text in coverage(summary)]
    return lines


def coverage(summary: Summary) -> list[str]:
    """The counts behind the verdict, one sentence a line."""
    lines = []
    if summary.files_checked:
        simulated = f"{summary.files_simulated} simulated"
        if summary.loops:
            simulated += f" ({_count(summary.loops, 'training loop')})"
        parts = [f"{_count(summary.files_checked, 'file')} checked: {simulated}"]
        if summary.configurations:
            parts.append(_count(summary.configurations, "configuration"))
        without = sum(summary.files_without_accumulation.values())
        if without:
            parts.append(f"{without} without accumulation")
        lines.append(", ".join(parts) + ".")
    if summary.files_skipped:
        reasons = ", ".join(f"{number} {reason}" for reason, number in summary.files_skipped.items())
        lines.append(f"{_count(sum(summary.files_skipped.values()), 'file')} left out: {reasons}.")
    if summary.errors:
        lines.append(f"{_count(len(summary.errors), 'path')} could not be checked: see standard error.")
    hidden = [
        (summary.suppressed, "suppressed by comments"),
        (summary.baselined, "known from the baseline"),
        (summary.outside_diff, "outside the changed lines"),
    ]
    if any(number for number, _ in hidden):
        lines.append("Hidden: " + ", ".join(f"{number} {why}" for number, why in hidden if number) + ".")
    if summary.stale_baseline:
        entries = _count(summary.stale_baseline, "entry of the baseline", "entries of the baseline")
        lines.append(f"{entries} no longer found: --write-baseline takes them out.")
    return lines


def lines(report: Report, width: int = 100, unicode: bool = True) -> list[Line]:
    """The whole view as styled lines."""
    found: list[Line] = []
    above = None
    for finding in report.findings:
        windows = (finding.span.path, finding.evidence.get("timeline"))
        found += block(report, finding, width, unicode, windows == above)
        found.append([])
        above = windows
    return found + closing(report)


def render(report: Report, width: int = 100, unicode: bool = True) -> str:
    """The whole view as plain text."""
    return plain(lines(report, width, unicode))


def statistics(report: Report, names: Sequence[tuple[str, str, str]]) -> str:
    """Findings per rule, the most frequent first."""
    by_code = {code: name for code, name, _ in names}
    counts = sorted(count_by_rule(report.findings).items(), key=lambda item: (-item[1], item[0]))
    rows = [f"{number:>6}  {code}  {by_code.get(code, '')}".rstrip() for code, number in counts]
    return "".join(row + "\n" for row in rows) + plain(closing(report))
