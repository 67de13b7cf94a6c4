"""The static check beside a run: its findings on the same script, and the number that the script gives to K."""

from __future__ import annotations

import re
from dataclasses import dataclass

from accumlint.findings import Finding

_LITERAL = re.compile(r"(\d+), a number in the script")
_NAMED = re.compile(r"(.+?) \(simulated as \d+\)$")
_LAST = re.compile(r"(?:^|\.)([A-Za-z_]\w*)$")


@dataclass(frozen=True)
class Beside:
    """What the static check says of a script: findings, K where it is a number there, and the names that K goes by."""

    findings: tuple[Finding, ...] = ()
    window: int | None = None
    names: tuple[str, ...] = ()


def static_findings(script: str, working_folder: str) -> Beside:
    """A script that cannot be read or parsed gives nothing: the run says what matters."""
    from accumlint.probe.verdicts import display
    from accumlint.static.engine import EngineSettings, Project, analyse

    try:
        with open(script, "rb") as stream:
            source = stream.read()
        found = analyse(source, display(script, working_folder), Project(working_folder), EngineSettings())
    except Exception:  # noqa: BLE001 - syntax, encoding, recursion: the static command reports those in full
        return Beside()
    texts = [getattr(loop, "window", "") for loop in found.loops]
    windows = {int(m.group(1)) for text in texts if (m := _LITERAL.match(text))}
    # `parser.parse_args().accumulation_steps`: in the run it is an attribute of whatever holds the arguments
    spelled = [name for text in texts if (m := _NAMED.match(text)) for name in m.group(1).split(", ")]
    names = [m.group(1) for name in spelled if (m := _LAST.search(name))]
    findings = tuple(f for f in found.findings if not f.rule.startswith("ACC0"))
    return Beside(findings, windows.pop() if len(windows) == 1 else None, tuple(dict.fromkeys(names)))
