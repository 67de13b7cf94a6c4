"""``accumlint config``: the batch arithmetic of configuration files, with the source of every number."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

SUMMARY = "print the batch arithmetic of configuration files, with the source of every number"
FOUND, MISUSED, NOTHING = 1, 2, 3
_SKIPPED = {"node_modules", "__pycache__", "site-packages"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths", nargs="+", metavar="FILE", help="configurations, launch files, scripts, or folders of them"
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="how to print (default: text)"
    )
    parser.epilog = (
        "Files that belong to one run should be given together: script, configuration and launch line."
    )


def _files(paths: list[str]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for folder, below, names in os.walk(path):
            below[:] = sorted(
                name
                for name in below
                if not (name.startswith(".") and name != ".github") and name not in _SKIPPED
            )
            yield from (os.path.join(folder, name) for name in sorted(names))


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when nothing at or above a warning was found, 1 otherwise, 2 unreadable, 3 no configuration."""
    from accumlint.config.audit import SourceFile, audit, gather
    from accumlint.config.table import tabulate
    from accumlint.findings import Severity

    files, broken = [], False
    for path in dict.fromkeys(_files(arguments.paths)):
        try:
            files.append(SourceFile(path, Path(path).read_bytes()))
        except OSError as error:
            broken = True
            sys.stderr.write(f"accumlint config: {path}: {error.strerror}\n")
    gathered = gather(files)
    entries = tabulate(files, gathered)
    findings = audit(files, gathered)
    if arguments.format == "json":
        print(json.dumps(_as_json(entries, findings), indent=1))
    else:
        sys.stdout.write(_as_text(entries, findings))
    if broken:
        return MISUSED
    if any(finding.severity >= Severity.WARNING for finding in findings):
        return FOUND
    return 0 if entries else NOTHING


def _as_json(entries: list, findings: list) -> dict:
    return {
        "schema": "accumlint/config/v1",
        "configurations": [asdict(entry) for entry in entries],
        "findings": [
            {
                "rule": finding.rule,
                "name": finding.name,
                "severity": finding.severity.label,
                "path": finding.span.path,
                "line": finding.span.line,
                "column": finding.span.column,
                "message": finding.message,
            }
            for finding in findings
        ],
    }


def _as_text(entries: list, findings: list) -> str:
    lines: list[str] = []
    for entry in entries:
        lines.append(f"{entry.path}  ({entry.dialect})")
        width = max(len(row.value) for row in entry.rows)
        lines += [f"  {row.quantity:<12}  {row.value:>{width}}  {row.source}" for row in entry.rows]
        mark = {True: "closes", False: "DOES NOT CLOSE", None: "open"}[entry.closes]
        lines.append(
            f"  {mark}"
            + ("" if entry.verdict in ("closes", "") else f": {entry.verdict.removeprefix('open: ')}")
        )
        lines.append("")
    if not entries:
        lines += ["no configuration that accumlint knows was found", ""]
    for finding in findings:
        span = finding.span
        lines.append(
            f"{span.path}:{span.line}:{span.column}: {finding.severity.label} {finding.rule} {finding.name}: {finding.message}"
        )
        lines += [f"    {r.span.path}:{r.span.line}:{r.span.column}: {r.message}" for r in finding.related]
    return "\n".join(lines).rstrip("\n") + "\n"
