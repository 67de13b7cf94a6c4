"""The hook as its users get it: pre-commit installs this repository's HEAD and runs it on a commit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="pre-commit installs hooks from a git checkout"),
]

SCRIPTS = Path(__file__).parent / "hook_scripts"
BAD = (SCRIPTS / "bad.py").read_text()
GOOD = (SCRIPTS / "good.py").read_text()


class Repository:
    """A user's repository and the pre-commit that serves it."""

    def __init__(self, folder: Path, home: Path):
        self.folder = folder
        identity = {
            f"GIT_{role}_{what}": value
            for role in ("AUTHOR", "COMMITTER")
            for what, value in (("NAME", "t"), ("EMAIL", "t@t.example"))
        }
        scripts = str(Path(sys.executable).parent)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        path = scripts + os.pathsep + inherited.get("PATH", "")
        self.environment = {**inherited, **identity, "PATH": path, "PRE_COMMIT_HOME": str(home)}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def commit(self) -> tuple[int, str]:
        """(exit code, what the user reads) of committing everything."""
        self.run("git", "add", "-A")
        done = self.run("git", "commit", "-m", "a change")
        return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("pre-commit-home")  # the hook is installed once for all tests


@pytest.fixture
def repository(tmp_path, home):
    head = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    made = Repository(tmp_path, home)
    made.run("git", "init", "-q")
    made.write(
        ".pre-commit-config.yaml",
        f"repos:\n- repo: {ROOT}\n  rev: {head}\n  hooks:\n  - id: accumlint\n    exclude: ^vendored/\n",
    )
    done = made.run("pre-commit", "install")
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def test_a_bad_script_stops_the_commit_with_a_readable_message(repository):
    repository.write("train.py", BAD)
    code, said = repository.commit()
    assert code == 1, said
    assert "train.py:14:" in said and "ACC202 scheduler-per-microbatch" in said
    assert "14 | scheduler.step()" in said
    assert "Traceback" not in said


def test_a_bad_notebook_stops_the_commit_and_names_the_cell(repository):
    cells = [{"cell_type": "code", "metadata": {}, "outputs": [], "source": source} for source in ("!ls\n", BAD)]
    repository.write("train.ipynb", json.dumps({"cells": cells, "metadata": {}, "nbformat": 4}))
    code, said = repository.commit()
    assert code == 1, said
    assert "train.ipynb:cell 2:14:" in said and "ACC202 scheduler-per-microbatch" in said


def test_a_good_script_and_other_files_pass(repository):
    repository.write("train.py", GOOD)
    repository.write("with space.py", "print('no training here')\n")
    repository.write("notes.md", "# notes\n")
    code, said = repository.commit()
    assert code == 0, said
    assert "Passed" in said


def test_excludes_of_the_hook_and_of_the_settings_are_honoured(repository):
    repository.write("vendored/train.py", BAD)
    repository.write("legacy/train.py", BAD)
    repository.write("tests/test_train.py", BAD)
    repository.write("accumlint.toml", 'exclude = ["legacy/"]\n')
    code, said = repository.commit()
    assert code == 0, said


def test_a_commit_without_python_is_not_stopped(repository):
    repository.write("notes.md", "# notes\n")
    code, said = repository.commit()
    assert code == 0, said
    assert "Skipped" in said


def test_try_repo(tmp_path, home):
    made = Repository(tmp_path, home)
    made.run("git", "init", "-q")
    made.write("train.py", BAD)
    made.run("git", "add", "-A")
    done = made.run("pre-commit", "try-repo", str(ROOT), "accumlint", "--all-files")
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "ACC202 scheduler-per-microbatch" in said
