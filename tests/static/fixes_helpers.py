"""What the tests of fixes share: findings with their fixes, and fixes applied without the code under test."""

from __future__ import annotations

import re

from accumlint.findings import Finding, Fix
from accumlint.static.engine import EngineSettings, Project, analyse
from accumlint.static.fixes.offer import fixes_for

LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+\Z")


def findings_of(source: bytes, path, root) -> list[Finding]:
    return list(analyse(source, str(path), Project(root), EngineSettings()).findings)


def offered(source: bytes, path, root) -> list[tuple[Finding, Fix | None]]:
    """Each finding of a source with the fix that is offered for it."""
    found = findings_of(source, path, root)
    return list(zip(found, fixes_for(source, str(path), found, Project(root), EngineSettings())))


def apply(source: str, fix: Fix) -> str:
    """The text after a fix, by its line and column numbers alone, from the last edit to the first."""
    lines = LINE.findall(source)

    def offset(line: int, column: int) -> int:
        return sum(map(len, lines[: line - 1])) + column - 1

    text = source
    for edit in sorted(fix.edits, key=lambda e: (e.span.line, e.span.column), reverse=True):
        start = offset(edit.span.line, edit.span.column)
        end = offset(edit.span.end_line, edit.span.end_column)
        assert start <= end <= len(text)
        text = text[:start] + edit.replacement + text[end:]
    return text


def told(findings) -> str:
    return (
        "; ".join(f"{f.name}:{f.span.line} ({f.confidence.label}) {f.message}" for f in findings) or "nothing"
    )
