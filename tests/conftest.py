"""Shared by all tests. Standing here, it also puts this folder on the path, so that workers find the engine
of the tests by its name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture
def small_engine(monkeypatch):
    """Runs answer with what comments in the files ask for (see ``fake_engine``)."""
    import accumlint.audit

    monkeypatch.setattr(accumlint.audit, "ENGINE", "fake_engine")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Makes files below an empty working folder: ``tree({"a/b.py": "text"})`` returns the folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def make(files: dict[str, str | bytes]) -> Path:
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return tmp_path

    return make


@pytest.fixture
def git(tmp_path):
    """Runs git in the working folder of the test, whoever runs the tests."""

    def call(*arguments: str) -> str:
        identity = ["-c", "user.name=t", "-c", "user.email=t@t.example", "-c", "init.defaultBranch=main"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    return call
