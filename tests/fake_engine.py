"""An engine for tests of what surrounds the real one: it reports what comments in the file ask for.

``#: ACC202`` reports that rule on its line; ``#: crash`` raises, ``#: die`` ends the process, ``#: syntax`` fails
to parse, ``#: deep`` recurses without end, ``#: hang`` sleeps. Lines are found by text, so this is no model of the real engine.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field

from accumlint.findings import Confidence, FileReport, Finding, Related, Severity, Span
from accumlint.rule_index import all_rules

TIMELINE = {
    "k": 3,
    "windows": [
        {
            "microbatches": [
                {"index": 0, "epoch": 0, "forward": True, "backward": True, "sync": False, "valid_targets": 3,
                 "weight": "1/9", "events": ["scheduler"]},
                {"index": 1, "epoch": 0, "forward": True, "backward": True, "sync": False, "valid_targets": 6,
                 "weight": "1/18", "events": ["scheduler"]},
                {"index": 2, "epoch": 0, "forward": True, "backward": True, "sync": True, "valid_targets": 1,
                 "weight": "1/3", "events": ["scheduler"]},
            ],
            "events": ["unscale", "clip", "step", "clear"],
            "tail": False,
        },
        {
            "microbatches": [
                {"index": 3, "epoch": 0, "forward": True, "backward": True, "sync": None, "valid_targets": 4,
                 "weight": None, "events": []},
            ],
            "events": ["step", "clear"],
            "tail": True,
        },
    ],
    "pending": 0,
    "note": "",
}


class Trees:
    """Nothing is shared here."""


@dataclass
class Project:
    root: str
    trees: Trees | None = None


@dataclass
class EngineSettings:
    vocabulary: dict = field(default_factory=dict)
    detail: bool = False


@dataclass
class Loop:
    line: int


_ASK = re.compile(rb"#: ?(\w+)(?: (error|warning|advice))?(?: (certain|conditional|possible))?")
_SEVERITY = {"2": Severity.ERROR, "3": Severity.WARNING, "5": Severity.ADVICE}


def examine(source: bytes, path: str, project: Project, settings: EngineSettings) -> FileReport:
    names = {code: (name, clause) for code, name, clause in all_rules()}
    findings = []
    for number, line in enumerate(source.split(b"\n"), 1):
        for match in _ASK.finditer(line):
            what = match[1].decode()
            if what == "crash":
                raise KeyError("no such thing")
            if what == "die":
                os._exit(139)
            if what == "hang":
                time.sleep(600)
            if what == "syntax":
                compile(source, path, "exec")
            if what == "deep":
                return examine(source, path, project, settings)
            if what not in names:
                continue
            name, clause = names[what]
            text = line.decode("utf-8", "replace")
            column = len(text) - len(text.lstrip()) + 1
            end = len(text[: text.index("#")].rstrip()) + 1
            severity = Severity[(match[2] or b"error").decode().upper()]
            confidence = Confidence[(match[3] or b"certain").decode().upper()]
            findings.append(
                Finding(
                    what, name, clause, severity, confidence,
                    Span(path, number, column, number, max(end, column + 1)),
                    f"{name} is asked for here: the scheduler moved 3 times per update",
                    evidence={"timeline": TIMELINE, "windows": [3, 1], "weights": ["1/9", "1/18", "1/3"]},
                    related=(Related(Span(path, 1, 1, 1, 2), "the window starts here"),),
                )
            )
    return FileReport(path, tuple(findings), "" if findings else "no-loop", (Loop(1),) if findings else ())
