"""Starts the recorder in the child, from the environment that the launcher set."""

from __future__ import annotations

import json
import os

from accumlint.probe.child.recorder import File, Options, Recorder

_started: list[Recorder] = []


def start_from_environment() -> None:
    """Install the recorder once. Called right after torch was imported and before the script goes on."""
    folder = os.environ.get("ACCUMLINT_PROBE_DIR", "")
    if not folder or _started:
        return
    wish = json.loads(os.environ.get("ACCUMLINT_PROBE_OPTIONS", "{}"))
    options = Options(
        folder=folder, updates=int(wish.get("updates", 0)), gradients=bool(wish.get("gradients", True)),
        replay=int(wish.get("replay", 0)), save=bool(wish.get("save", True)),
        names=tuple(wish.get("names", ())),
    )  # fmt: skip
    recorder = Recorder(options, File(folder))
    _started.append(recorder)
    recorder.install()
    recorder.at_exit()
    if wish.get("stress"):
        from accumlint.probe.child import stress

        stress.install(recorder, wish["stress"])
    if wish.get("as_cpu"):
        from accumlint.probe.child import as_cpu

        as_cpu.install(recorder)
