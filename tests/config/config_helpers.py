"""Shared by the tests of the configuration auditor."""

from __future__ import annotations

import textwrap
from pathlib import Path

from accumlint.config import SourceFile, audit
from accumlint.findings import Finding

FIXTURES = Path(__file__).parent.parent.parent / "fixtures" / "configs"


def source(path: str, text: str) -> SourceFile:
    return SourceFile(path, textwrap.dedent(text).lstrip("\n").encode())


def run(**files: str) -> list[Finding]:
    """Audits files given as ``name__ext="text"``; ``__`` stands for the dot, ``___`` for a slash."""
    return audit([source(name.replace("___", "/").replace("__", "."), text) for name, text in files.items()])


def names(findings: list[Finding]) -> list[str]:
    return [finding.name for finding in findings]


def folder(path: Path) -> list[SourceFile]:
    """All files of one fixture folder, with paths relative to it."""
    return [
        SourceFile(file.relative_to(path).as_posix(), file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    ]
