"""Answers as editors show them: findings as diagnostics, hovers and actions, in the units of the client."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lsprotocol import types

from accumlint import rule_page
from accumlint.findings import Finding, Fix, Severity, Span
from accumlint.static.fixes import editing

_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.ADVICE: types.DiagnosticSeverity.Information,
}
SOURCE = "accumlint"
PICTURE_WIDTH = 80
_HOVER_SECTIONS = ("What it finds", "Why it changes training", "How to fix it")


class Text(NamedTuple):
    """A document as the client has it, and how the client counts columns (utf-8, utf-16 or utf-32)."""

    uri: str
    lines: tuple[str, ...]
    encoding: str = "utf-16"

    def units(self, text: str) -> int:
        """Columns that a piece of text takes."""
        if self.encoding == "utf-8":
            return len(text.encode("utf-8", "surrogatepass"))
        if self.encoding == "utf-32":
            return len(text)
        return len(text.encode("utf-16-le", "surrogatepass")) // 2

    def position(self, line: int, column: int) -> types.Position:
        """A place, line and column from 1 and in code points, as the client counts."""
        if line > len(self.lines):
            last = len(self.lines) - 1
            return types.Position(last, self.units(self.lines[last])) if self.lines else types.Position(0, 0)
        text = self.lines[max(line, 1) - 1]
        return types.Position(max(line, 1) - 1, self.units(text[: max(column - 1, 0)]))

    def range(self, span: Span) -> types.Range:
        """A span; one without an end goes to the end of its line."""
        start = self.position(span.line, span.column)
        end_line = span.end_line or span.line
        if span.end_column and (end_line, span.end_column) > (span.line, span.column):
            return types.Range(start, self.position(end_line, span.end_column))
        text = self.lines[span.line - 1] if span.line <= len(self.lines) else ""
        return types.Range(start, self.position(span.line, len(text.rstrip()) + 1))


def text_of(uri: str, source: str, encoding: str) -> Text:
    """A document out of its source, with the line ends of the protocol."""
    return Text(uri, tuple(re.split(r"\r\n|\r|\n", source)), encoding)


class Placed(NamedTuple):
    """A finding at its place in one text of the client: the file, or a cell of a notebook."""

    finding: Finding
    text: Text
    span: Span

    @property
    def range(self) -> types.Range:
        return self.text.range(self.span)

    def covers(self, line: int) -> bool:
        """Whether it stands on a line, counted from 0."""
        return self.span.line - 1 <= line <= max(self.span.end_line, self.span.line) - 1


def diagnostic(placed: Placed, related: Sequence[tuple[types.Location, str]]) -> types.Diagnostic:
    """One finding as the editor marks it."""
    finding = placed.finding
    message = f"{finding.message} ({finding.name})"
    if finding.confidence.label != "certain":
        message = f"{finding.message} ({finding.name}, {finding.confidence.label})"
    return types.Diagnostic(
        range=placed.range,
        message=message,
        severity=_SEVERITIES[finding.severity],
        code=finding.rule,
        code_description=types.CodeDescription(href=rule_page(finding.rule)),
        source=SOURCE,
        tags=[types.DiagnosticTag.Unnecessary] if finding.rule == "ACC002" else None,
        related_information=[types.DiagnosticRelatedInformation(location, text) for location, text in related]
        or None,
    )


def hover(placed: Sequence[Placed], markdown: bool = True) -> types.Hover | None:
    """What the findings of a line say: message, simulated windows, the page of the rule."""
    if not placed:
        return None
    texts, shown = [], set()
    for each in placed:
        finding = each.finding
        parts = [
            f"**{finding.rule} {finding.name}** ({finding.severity.label}, {finding.confidence.label})",
            finding.message,
        ]
        if finding.probed is not None:
            parts.append(str(finding.probed))
        picture = _picture(finding)
        if picture and picture not in shown:
            shown.add(picture)
            parts.append(f"```text\n{picture}```")
        parts += _page(finding.rule)
        texts.append("\n\n".join(parts))
    text = "\n\n---\n\n".join(texts)
    if not markdown:
        text = re.sub(r"(?m)^(```\w*|#+ )|\*\*", "", text)
    kind = types.MarkupKind.Markdown if markdown else types.MarkupKind.PlainText
    return types.Hover(types.MarkupContent(kind, text), placed[0].range)


def _picture(finding: Finding) -> str:
    from accumlint.report.text import plain
    from accumlint.report.timeline import draw

    timeline = finding.evidence.get("timeline")
    return plain(draw(timeline, PICTURE_WIDTH)) if timeline and timeline.get("windows") else ""


def _page(code: str) -> list[str]:
    from accumlint.knowledge import find_rule

    rule = find_rule(code)
    if rule is None:
        return []
    sections = [
        f"#### {heading}\n\n{rule.sections[heading]}"
        for heading in _HOVER_SECTIONS
        if heading in rule.sections
    ]
    return [*sections, f"[All about {code}]({rule_page(code)})"]


# --- actions ---------------------------------------------------------------------------------------------


def _quick_fix(
    title: str, placed: Placed, changes: dict[str, list[types.TextEdit]], preferred: bool, related=()
) -> types.CodeAction:
    return types.CodeAction(
        title=title,
        kind=types.CodeActionKind.QuickFix,
        diagnostics=[diagnostic(placed, related)],
        is_preferred=preferred or None,
        edit=types.WorkspaceEdit(changes=changes),
    )


def fix_action(
    placed: Placed, fix: Fix, where: Callable[[Span], tuple[Text, Span] | None], related=()
) -> types.CodeAction | None:
    """The fix of a finding; ``where`` says in which text an edit is made.

    None where that isn't known: in another file, which may not be open, or across the cells of a notebook.
    """
    changes: dict[str, list[types.TextEdit]] = {}
    for edit in fix.edits:
        place = where(edit.span) if edit.span.path == placed.finding.span.path else None
        if place is None:
            return None
        text, span = place
        start = text.position(span.line, span.column)
        end = text.position(span.end_line or span.line, span.end_column or span.column)
        changes.setdefault(text.uri, []).append(types.TextEdit(types.Range(start, end), edit.replacement))
    title = fix.title if fix.safe else f"{fix.title} (unsafe: {fix.why_unsafe})"
    return _quick_fix(title, placed, changes, fix.safe, related)


def ignore_action(placed: Placed, related=()) -> types.CodeAction | None:
    """A suppression comment for a finding; None where no comment hides it."""
    from dataclasses import replace

    from accumlint.add_ignores import add

    before = "\n".join(placed.text.lines)
    here = replace(placed.finding, span=placed.span)
    done = add("script.py", before.encode("utf-8", "surrogatepass"), [here], "")
    if not done.hidden:
        return None
    edits = edits_between(placed.text, before, done.data.decode("utf-8", "surrogatepass"))
    return _quick_fix(f"Ignore {placed.finding.rule} here", placed, {placed.text.uri: edits}, False, related)


def edits_between(text: Text, before: str, after: str) -> list[types.TextEdit]:
    """What leads from one source to another, both with ``\\n`` line ends, as edits of the client's text."""
    lines = editing.Lines(before)
    edits = []
    for edit in editing.as_edits(editing.between(before, after), lines, ""):
        span = edit.span
        where = types.Range(
            text.position(span.line, span.column), text.position(span.end_line, span.end_column)
        )
        edits.append(types.TextEdit(where, edit.replacement))
    return edits


def fix_all_action(text: Text, before: str, after: str) -> types.CodeAction:
    """All safe fixes of a document in one."""
    return types.CodeAction(
        title="Apply all safe fixes of accumlint",
        kind=types.CodeActionKind.SourceFixAll,
        edit=types.WorkspaceEdit(changes={text.uri: edits_between(text, before, after)}),
    )
