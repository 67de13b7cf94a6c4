"""Playing the fixtures' scripts under the recorder inside the test process: fast, and the same code as in a child."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import warnings

import pytest
from probe_helpers import FIXTURES, needs_torch

# also where accumlint was installed before it offered its plugin
from accumlint.pytest_plugin import accumulation_ledger  # noqa: F401


class Played:
    """A fixture script that was run: its report, its findings as {rule: line} and what it printed."""

    def __init__(self, recorded, output: str) -> None:
        from accumlint.probe import verdicts

        self.run = recorded.run
        self.report = recorded.report()
        self.findings = verdicts.findings(self.report, str(FIXTURES))
        self.lines = {finding.rule: finding.span.line for finding in self.findings}
        self.output = output

    def of(self, kind: str) -> list:
        return self.run.recordings[0].of(kind)

    def verdict(self, name: str) -> str:
        return self.report.judgements[name].verdict


@pytest.fixture
def play(monkeypatch):
    """``play("plain.py", "--variant", "mean", window=3)``: run a fixture script in this process and judge it."""

    torch = needs_torch()

    def run(script: str, *arguments: str, window: int | None = 3, replay: int = 2, gradients: bool = True) -> Played:
        from accumlint.probe.session import recording

        path = str(FIXTURES / script)
        monkeypatch.setattr(sys, "argv", [path, *arguments])
        random_state = torch.get_rng_state()
        out = io.StringIO()
        try:
            with recording(window, replay, gradients) as recorded, contextlib.redirect_stdout(out), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runpy.run_path(path, run_name="__main__")
        finally:
            torch.set_rng_state(random_state)
        assert not recorded.run.recordings[0].of("problem"), "the recorder failed"
        return Played(recorded, out.getvalue())

    return run
