"""The static check beside a run: its findings on the same script, and the number that the script gives to K."""

from __future__ import annotations

import re

from accumlint.findings import Finding

_LITERAL = re.compile(r"(\d+), a number in the script")


def static_findings(script: str, working_folder: str) -> tuple[list[Finding], int | None]:
    """(findings, K or None). A script that cannot be read or parsed gives none: the run says what matters."""
    from accumlint.probe.verdicts import display
    from accumlint.static.engine import EngineSettings, Project, analyse

    try:
        with open(script, "rb") as stream:
            source = stream.read()
        found = analyse(source, display(script, working_folder), Project(working_folder), EngineSettings())
    except Exception:  # noqa: BLE001 - syntax, encoding, recursion: the static command reports those in full
        return [], None
    windows = {int(m.group(1)) for loop in found.loops if (m := _LITERAL.match(getattr(loop, "window", "")))}
    return [f for f in found.findings if not f.rule.startswith("ACC0")], windows.pop() if len(windows) == 1 else None


