"""Shared by the probe's tests: the fixtures' folder, lines of fixture scripts, and libraries that may be missing."""

from __future__ import annotations

from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures" / "probe"


def needs(*names: str) -> None:
    """Skip the test where one of the libraries is not installed."""
    for name in names:
        pytest.importorskip(name, reason=f"{name} is not installed")


def needs_torch():
    """The module torch; skips the test without it."""
    return pytest.importorskip("torch", reason="the probe runs scripts: pip install 'accumlint[probe]'")


def line_of(script: str, text: str, occurrence: int = 0) -> int:
    """The line of a fixture script that holds a text, so that tests do not count lines."""
    found = [n for n, line in enumerate((FIXTURES / script).read_text().splitlines(), 1) if text in line]
    return found[occurrence]
