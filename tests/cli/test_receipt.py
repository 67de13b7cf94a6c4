"""``accumlint receipt`` and ``accumlint rejects`` as they are typed: exit codes, files, messages, the hook."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from accumlint.cli.main import main
from accumlint.receipt import verify_bytes

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "fixtures" / "manifests"
RECEIPTS = ROOT / "fixtures" / "receipts"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def build(name="three-six-one.json", *more, output="r.receipt.json"):
    return main(["receipt", "build", str(MANIFESTS / name), "-o", output, *more])


def test_build_and_verify(capsys):
    assert build() == 0
    assert "PASS: receipt " in capsys.readouterr().err
    assert verify_bytes(Path("r.receipt.json").read_bytes()).status == 0
    assert main(["receipt", "verify", "r.receipt.json"]) == 0
    assert capsys.readouterr().out == "r.receipt.json: holds, verdict PASS\n"
    assert os.listdir() == ["r.receipt.json"]  # nothing else was written


def test_build_yaml_to_standard_output_and_from_standard_input():
    command = [sys.executable, "-m", "accumlint", "receipt", "build", "-", "--bare"]
    text = (MANIFESTS / "three-six-one.yaml").read_bytes()
    made = subprocess.run(command, input=text, capture_output=True)
    assert made.returncode == 0
    assert made.stdout == (RECEIPTS / "three-six-one.receipt.json").read_bytes()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("three-six-one", 0),
        ("equal-control", 0),
        ("mean-of-means", 1),
        ("wide-tolerance", 1),
        ("sync-too-late", 1),
    ],
)
def test_build_exit_codes(name, code):
    assert build(f"{name}.json") == code
    assert main(["receipt", "verify", "r.receipt.json"]) == 0  # a receipt of a fault holds, too


def test_verify_exit_codes(capsys):
    build()
    data = Path("r.receipt.json").read_bytes()
    Path("refuted.json").write_bytes(data.replace(b'"valid_targets":[3,6,1]', b'"valid_targets":[3,5,1]'))
    Path("unreadable.json").write_bytes(b"{")
    assert main(["receipt", "verify", "refuted.json"]) == 1
    assert main(["receipt", "verify", "unreadable.json"]) == 2
    assert main(["receipt", "verify", "absent.json"]) == 2
    assert main(["receipt", "verify", "r.receipt.json", "unreadable.json"]) == 2
    assert main(["receipt", "verify", "unreadable.json", "refuted.json", "r.receipt.json"]) == 1
    assert main(["receipt", "verify"]) == 2
    assert main(["receipt", "verify", "r.receipt.json", "--root", "absent"]) == 2
    capsys.readouterr()
    assert main(["receipt", "verify", "refuted.json", "--format", "json"]) == 1
    (report,) = json.loads(capsys.readouterr().out)["receipts"]
    assert (report["outcome"], report["status"], report["verdict"]) == ("refuted", 1, None)


def test_require_pass():
    build("mean-of-means.json")
    assert main(["receipt", "verify", "r.receipt.json"]) == 0
    assert main(["receipt", "verify", "r.receipt.json", "--require-pass"]) == 1
    build("equal-control.json")
    assert main(["receipt", "verify", "r.receipt.json", "--require-pass"]) == 1
    build()
    assert main(["receipt", "verify", "r.receipt.json", "--require-pass"]) == 0


def test_bound_files(capsys):
    Path("train.py").write_text("x = 1\n")
    assert build("three-six-one.json", "--script", "train.py") == 0
    assert main(["receipt", "verify", "r.receipt.json"]) == 0
    Path("train.py").write_text("x = 2\n")
    assert main(["receipt", "verify", "r.receipt.json"]) == 1
    assert "train.py changed since this receipt" in capsys.readouterr().out
    Path("train.py").rename("moved.py")
    assert main(["receipt", "verify", "r.receipt.json"]) == 3
    assert build("three-six-one.json", "--script", "absent.py") == 2


def test_chain(capsys):
    assert build("seven-carry.json", output="1.json") == 0
    assert build("seven-carry-continued.json", "--continue-from", "1.json", output="2.json") == 0
    assert main(["receipt", "verify", "2.json"]) == 3
    assert main(["receipt", "verify", "2.json", "--continue-from", "1.json"]) == 0
    assert main(["receipt", "verify", "2.json", "1.json"]) == 0
    assert build("seven-carry.json", "--bare", output="1b.json") == 0
    assert main(["receipt", "verify", "2.json", "1b.json"]) == 0  # the unbound part binds nothing
    assert build("seven-carry-continued.json", output="3.json") == 2
    assert build("seven-carry-continued.json", "--continue-from", "2.json", output="3.json") == 2
    Path("1.json").write_bytes(b"{}")
    capsys.readouterr()
    assert build("seven-carry-continued.json", "--continue-from", "1.json", output="3.json") == 2
    assert "[chain-unproven]" in capsys.readouterr().err
    assert not Path("3.json").exists()


def test_a_refusal_is_archived_listed_shown_and_replayed(capsys):
    assert build("rejected/tail-disagreement.json") == 2
    assert build("rejected/syntax.json") == 2
    said = capsys.readouterr().err
    assert "[tail-disagreement]" in said and "nothing was computed" in said
    assert not Path("r.receipt.json").exists()
    assert len(list(Path(".accumlint/rejects").iterdir())) == 2
    assert main(["rejects", "list"]) == 0
    listed = capsys.readouterr().out
    assert "replayable  tail-disagreement" in listed and "reasons only  syntax" in listed
    name = next(line.split()[0] for line in listed.splitlines() if "tail-disagreement" in line)
    assert main(["rejects", "show", name[:8]]) == 0
    assert "ranks[1].tail_policy" in capsys.readouterr().out
    assert main(["rejects", "replay"]) == 0
    replayed = capsys.readouterr().out
    assert "same  tail-disagreement" in replayed and "not-replayable  syntax" in replayed
    other = next(line.split()[0] for line in listed.splitlines() if "syntax" in line)
    assert main(["rejects", "replay", other]) == 3
    assert main(["rejects", "show", "ffffffff"]) == 2
    assert main(["rejects", "list", "--archive", "nowhere"]) == 3


def test_an_archive_can_be_elsewhere_or_nowhere():
    assert build("rejected/choice.json", "--archive", "kept") == 2
    assert len(os.listdir("kept")) == 1 and not Path(".accumlint").exists()
    assert build("rejected/choice.json", "--no-archive") == 2
    assert os.listdir() == ["kept"]


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("text", "accumulation receipt"),
        ("svg", "<svg"),
        ("naive-svg", "<svg"),
        ("html", "<!doctype html>"),
        ("junit", "<?xml"),
        ("in-toto", "{"),
    ],
)
def test_show(form, start, capsysbinary):
    build()
    capsysbinary.readouterr()
    assert main(["receipt", "show", "r.receipt.json", "--format", form]) == 0
    printed = capsysbinary.readouterr().out
    assert printed.decode("utf-8").startswith(start)
    assert main(["receipt", "show", "r.receipt.json", "--format", form, "-o", "out"]) == 0
    assert Path("out").read_bytes().decode("utf-8").startswith(start)


def test_show_draws_nothing_that_does_not_hold(capsys):
    build()
    data = Path("r.receipt.json").read_bytes()
    Path("r.receipt.json").write_bytes(data.replace(b"[3,6,1]", b"[3,7,1]"))
    capsys.readouterr()
    assert main(["receipt", "show", "r.receipt.json"]) == 1
    assert capsys.readouterr().out == ""


def test_diff(capsys):
    build(output="a.json")
    build("mean-of-means.json", output="b.json")
    assert main(["receipt", "diff", "a.json", "a.json"]) == 0
    capsys.readouterr()
    assert main(["receipt", "diff", "a.json", "b.json"]) == 1
    said = capsys.readouterr().out
    assert "policy: loss_policy: window-targets became microbatch-mean" in said
    assert "verdict: PASS became FAIL" in said
    assert main(["receipt", "diff", "a.json", "b.json", "--ignore", "policy"]) == 0
    assert main(["receipt", "diff", "a.json", "b.json", "--ignore", "moon"]) == 2
    assert main(["receipt", "diff", "a.json", "absent.json"]) == 2
    capsys.readouterr()
    assert main(["receipt", "diff", "a.json", "b.json", "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["changes"][0]["kind"] == "policy"


def hook():
    entries = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    (entry,) = [e for e in entries if e["id"] == "accumlint-receipt"]
    return entry


def test_the_hook_is_declared_to_run_when_only_the_script_changed():
    entry = hook()
    assert entry["always_run"] and not entry["pass_filenames"]
    assert entry["entry"] == "accumlint receipt verify --tree"


def test_the_hook_fails_on_stale_and_broken_receipts(git_folder):
    command = hook()["entry"].split()[1:]
    assert main(command) == 0  # nothing there
    Path("train.py").write_text("x = 1\n")
    Path("ds.json").write_text("{}\n")
    assert build("three-six-one.json", "--script", "train.py", "--config", "ds.json") == 0
    git_folder("add", ".")
    assert main(command) == 0
    Path("ds.json").write_text('{"a": 1}\n')
    assert main(command) == 1
    Path("ds.json").write_text("{}\n")
    assert main(command) == 0
    data = Path("r.receipt.json").read_bytes()
    Path("r.receipt.json").write_bytes(data[:-1])
    assert main(command) == 1
    Path("r.receipt.json").write_bytes(data)
    Path("train.py").unlink()
    assert main(command) == 3


@pytest.fixture
def git_folder(tmp_path):
    def git(*arguments):
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", *arguments], check=True, capture_output=True, cwd=tmp_path, env=environment)

    git("init", "-q")
    return git


def test_the_receipts_of_this_repository_hold():
    assert main(["receipt", "verify", *map(str, sorted(RECEIPTS.glob("*.receipt.json")))]) == 0
