"""The action's own shell code, run as the runner would: inputs by environment, the tool in its own environment."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
BAD = (ROOT / "tests" / "hook_scripts" / "bad.py").read_text()


@pytest.fixture
def run_check(tree, tmp_path_factory):
    folder = tree({"src/train.py": BAD, "other/train.py": BAD})
    runner = tmp_path_factory.mktemp("runner")
    (runner / "accumlint" / "bin").mkdir(parents=True)
    (runner / "accumlint" / "bin" / "accumlint").symlink_to(Path(sys.executable).parent / "accumlint")
    install, check = ACTION["runs"]["steps"]

    def call(**inputs):
        values = {name: spec["default"] for name, spec in ACTION["inputs"].items()} | inputs
        environment = {
            key: values[expression.removeprefix("${{ inputs.").removesuffix(" }}")]
            for key, expression in check["env"].items()
        }
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", check["run"]],
            env={**os.environ, **environment, "RUNNER_TEMP": str(runner), "GITHUB_ACTIONS": "true"},
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip

    return call


def test_the_working_folder_is_the_default(run_check):
    done = run_check()
    assert done.returncode == 1, done.stderr
    assert "::error file=src/train.py," in done.stdout and "::error file=other/train.py," in done.stdout


def test_inputs_reach_the_command(run_check, tmp_path):
    done = run_check(paths="src", arguments="--fail-on never", **{"sarif-file": "out file.sarif"})
    assert done.returncode == 0, done.stderr
    assert "other/train.py" not in done.stdout
    assert (tmp_path / "out file.sarif").exists()


def test_inputs_are_never_shell_code(run_check, tmp_path):
    done = run_check(paths="$(touch owned) ;touch owned2")
    assert done.returncode == 2
    assert not list(tmp_path.glob("owned*"))
