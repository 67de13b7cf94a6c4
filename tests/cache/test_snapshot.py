"""A run over an unchanged tree opens no source; any change that could matter is seen."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from test_results import LOSS, SUM, TRAIN

from accumlint import runner
from accumlint.cache import snapshot, store
from accumlint.cli.main import main
from accumlint.settings import FORMATS
from accumlint.static import discovery


@pytest.fixture
def sure(monkeypatch):
    """Changes of a moment ago are taken for settled, so that tests need not wait."""
    monkeypatch.setattr(snapshot, "UNSURE_NANOSECONDS", -(10**18))


@pytest.fixture
def project(tree, sure):
    return tree({
        "accumlint.toml": "exclude = ['left_out/']\n", "pkg/train.py": TRAIN, "losses.py": LOSS, "left_out/train.py": TRAIN,
        "ds.json": '{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2}', "notes.txt": "nothing", ".gitignore": "ignored/\n",
        "ignored/train.py": TRAIN, "quiet.py": TRAIN.replace("scheduler.step()", "scheduler.step()  # accumlint: ignore[ACC202]"),
    })  # fmt: skip


@pytest.fixture
def opened(monkeypatch):
    """How often sources were read for analysis and folders were walked."""
    seen = []
    sieve, walk = runner.sieve, discovery._Collector.walk
    monkeypatch.setattr(runner, "sieve", lambda target, stdin: seen.append(target.name) or sieve(target, stdin))
    monkeypatch.setattr(discovery._Collector, "walk", lambda self, path: seen.append(path) or walk(self, path))
    return seen


def check(capsys, *arguments):
    code = main(["check", *arguments])
    out = capsys.readouterr()
    return code, out.out, out.err


def settle(capsys):
    """Runs until a snapshot is there: the folder for it changes the tree once."""
    check(capsys)
    return check(capsys)


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_same_bytes(project, capsys, opened, format_name):
    settle(capsys)
    without = check(capsys, "--no-cache", "--format", format_name)
    opened.clear()
    assert check(capsys, "--format", format_name) == without and without[0] == 1
    assert opened == []


def test_statistics_and_other_selections_are_answered_from_it_too(project, capsys, opened):
    settle(capsys)
    for arguments in (["--statistics"], ["--select", "C2"], ["--fail-on", "error", "--min-confidence", "certain"]):
        without = check(capsys, "--no-cache", *arguments)
        opened.clear()
        assert check(capsys, *arguments) == without and opened == []


def edit(path, text):
    Path(path).write_text(text)


def same_size_and_time(path):
    told = os.stat(path)
    edit(path, TRAIN.replace("scheduler.step()", "scheduler.stop()"))
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))


CHANGES = {
    "a script": lambda: edit("pkg/train.py", TRAIN.replace("scheduler.step()", "pass")),
    "a script, keeping size and time": lambda: same_size_and_time("pkg/train.py"),
    "a new script": lambda: edit("pkg/new.py", TRAIN),
    "a new folder": lambda: (Path("pkg/sub").mkdir(), edit("pkg/sub/new.py", TRAIN)),
    "a script goes": lambda: Path("quiet.py").unlink(),
    "another name": lambda: Path("pkg/train.py").rename("pkg/other.py"),
    "a helper": lambda: edit("losses.py", SUM),
    "a nearer helper": lambda: edit("pkg/losses.py", SUM),
    "a package beside it": lambda: (Path("losses").mkdir(), edit("losses/__init__.py", SUM)),
    "a configuration": lambda: edit("ds.json", '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}'),
    "a text becomes a configuration": lambda: (Path("notes.txt").unlink(), edit("notes.yaml", "gradient_accumulation_steps: 4\ntrain_batch_size: 7\ntrain_micro_batch_size_per_gpu: 2\n")),
    "ignore files": lambda: edit(".gitignore", ""),
    "a new ignore file": lambda: edit("pkg/.gitignore", "train.py\n"),
    "settings": lambda: edit("accumlint.toml", ""),
    "an environment": lambda: edit("pkg/pyvenv.cfg", ""),
    "a suppression": lambda: edit("quiet.py", TRAIN),
    "a link": lambda: Path("pkg/link.py").symlink_to("../left_out/train.py"),
    "a file becomes a folder": lambda: (Path("quiet.py").unlink(), Path("quiet.py").mkdir()),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_every_change_is_seen(project, capsys, change):
    settle(capsys)
    change()
    assert check(capsys) == check(capsys, "--no-cache")
    assert check(capsys) == check(capsys, "--no-cache")


def test_a_fresh_change_leaves_no_snapshot(project, capsys, opened, monkeypatch):
    monkeypatch.setattr(snapshot, "UNSURE_NANOSECONDS", 3_600 * 10**9)
    settle(capsys)
    opened.clear()
    check(capsys)
    assert opened and not (project / store.FOLDER / "runs").exists()


def test_a_damaged_snapshot_is_made_anew(project, capsys):
    right = settle(capsys)
    for damage in (b"", b"{}", store.digest(b"{}").encode() + b"\n{}", store.digest(b'{"stats": {}, "absent": {}}').encode() + b'\n{"stats": {}, "absent": {}}'):
        for path in (project / store.FOLDER / "runs").rglob("*"):
            if path.is_file():
                path.write_bytes(damage)
        assert check(capsys) == right


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_run_with_problems_is_never_taken_for_settled(project, capsys, opened):
    (project / "loop").symlink_to("loop")
    settle(capsys)
    opened.clear()
    assert check(capsys)[0] == 1 and opened


def test_named_files_leave_no_snapshots(project, capsys):
    check(capsys, "pkg/train.py", "losses.py")
    assert not (project / store.FOLDER / "runs").exists()


def test_a_moved_project_starts_anew(project, capsys, opened, monkeypatch, tmp_path_factory):
    settle(capsys)
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "project"
    shutil.copytree(project, elsewhere, symlinks=True)
    monkeypatch.chdir(elsewhere)
    opened.clear()
    _, out, _ = check(capsys, "--format", "json")
    assert opened and {f["path"] for f in json.loads(out)["findings"]} >= {"pkg/train.py"}
