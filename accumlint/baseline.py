"""Known findings: recorded once, hidden from then on, so that legacy code can adopt the check.

A finding is recognised by what it is, not by where it stands: rule, file, the function around it and the
text of its line. Inserting lines, reformatting a line's blanks or editing other functions keeps it known; a
second finding of the same kind is new. One that was fixed leaves the file at the next ``--write-baseline``.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from accumlint.findings import Finding
from accumlint.report.model import Report, split_lines

SCHEMA = "accumlint/baseline/v1"

Key = tuple[str, str, str, str]  # path, rule, scope, text

_DEFINITION = re.compile(r"^(\s*)(?:async\s+)?(?:def|class)\s+(\w+)")


@dataclass(frozen=True)
class Baseline:
    """How many findings of each key are known."""

    known: Counter[Key] = field(default_factory=Counter)


@dataclass(frozen=True)
class Comparison:
    """``new`` findings in their order; counts of ``known`` ones and of ``stale`` entries."""

    new: tuple[Finding, ...]
    known: int
    stale: int


def enclosing_name(lines: Sequence[str], line: int) -> str:
    """Dotted name of the functions and classes around a 1-based line, empty at module level.

    Read off the indentation, so that it works for files that the running Python can't parse.
    """
    names: list[str] = []
    if not 1 <= line <= len(lines):
        return ""
    own = lines[line - 1]
    depth = len(own) - len(own.lstrip())
    for text in reversed(lines[: line - 1]):
        match = _DEFINITION.match(text)
        if match and len(match[1]) < depth:
            names.append(match[2])
            depth = len(match[1])
    return ".".join(reversed(names))


def key(report: Report, finding: Finding) -> Key:
    """What a finding is recognised by."""
    path = report.place(finding.span.path)
    text = report.sources.get(finding.span.path)
    if text is None or finding.about_whole_file:
        return (path, finding.rule, "", finding.message)
    lines = split_lines(text)
    line = lines[finding.span.line - 1] if finding.span.line <= len(lines) else ""
    return (path, finding.rule, enclosing_name(lines, finding.span.line), " ".join(line.split()))


def record(
    report: Report, old: Baseline, names: Iterable[str], looked_for: Callable[[str], bool] = lambda rule: True
) -> Baseline:
    """A baseline of this run's findings.

    Entries of files that the run didn't look at stay, as do those of rules that it didn't look for.
    """
    looked_at = {report.place(name) for name in names}
    known = Counter(
        {
            entry: count
            for entry, count in old.known.items()
            if entry[0] not in looked_at or not looked_for(entry[1])
        }
    )
    known.update(key(report, finding) for finding in report.findings)
    return Baseline(known)


def compare(report: Report, baseline: Baseline, names: Iterable[str], ratchet: bool = False) -> Comparison:
    """Which findings the baseline doesn't know.

    With ``ratchet`` only the counts matter: per file and rule, as many findings as were recorded are
    known, even on lines that have changed since; where there are more, the unrecognised ones are new.
    """
    left = Counter(baseline.known)
    unrecognised = []
    for finding in report.findings:
        entry = key(report, finding)
        if left[entry] > 0:
            left[entry] -= 1
        else:
            unrecognised.append(finding)
    if ratchet:
        spare: Counter[tuple[str, str]] = Counter()
        for (path, rule, _, _), count in left.items():
            spare[path, rule] += count
        new = []
        for finding in unrecognised:
            group = (report.place(finding.span.path), finding.rule)
            if spare[group] > 0:
                spare[group] -= 1
            else:
                new.append(finding)
    else:
        new = unrecognised
    looked_at = {report.place(name) for name in names}
    stale = sum(count for entry, count in left.items() if count > 0 and entry[0] in looked_at)
    return Comparison(tuple(new), len(report.findings) - len(new), stale)


def read(path: str, missing_ok: bool = False) -> Baseline:
    """The baseline in a file. Raises OSError, or ValueError naming the file where it is no baseline."""
    try:
        with open(path, encoding="utf-8") as stream:
            document = json.load(stream)
    except FileNotFoundError:
        if missing_ok:
            return Baseline()
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"{path}: not a file of schema {SCHEMA}")
    known: Counter[Key] = Counter()
    try:
        for entry in document["findings"]:
            count = entry["count"]
            texts = (entry["path"], entry["rule"], entry["scope"], entry["text"])
            if type(count) is not int or count < 1 or not all(isinstance(text, str) for text in texts):
                raise TypeError(f"entry {entry!r}")
            known[texts] += count
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: malformed: {error}") from error
    return Baseline(known)


def text_of(baseline: Baseline) -> str:
    """The file's content: one entry a line and sorted, so that merges and reviews stay small."""
    rows = [
        json.dumps({"path": path, "rule": rule, "scope": scope, "text": text, "count": count})
        for (path, rule, scope, text), count in sorted(baseline.known.items())
        if count > 0
    ]
    body = ",\n  ".join(rows)
    inner = f"\n  {body}\n " if rows else ""
    return f'{{\n "schema": "{SCHEMA}",\n "findings": [{inner}]\n}}\n'


def write(path: str, baseline: Baseline) -> None:
    """Write atomically; raises OSError."""
    from accumlint.report.present import write_atomically

    write_atomically(os.fspath(path), text_of(baseline))
