"""``accumlint lsp`` where its extra is missing; sessions are in ``tests/lsp``."""

from __future__ import annotations

import importlib.util

from accumlint.cli.main import main


def test_a_missing_extra_is_named(monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "pygls" else real(name, *more)
    )
    assert main(["lsp"]) == 2
    assert "pip install 'accumlint[lsp]'" in capsys.readouterr().err
