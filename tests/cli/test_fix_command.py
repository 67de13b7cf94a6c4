"""``check --fix`` and ``--patch``: what is written, what is shown, what the exit code says."""

import io
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from accumlint.cli.main import main

SAFE = """\
import torch


def main(model, loader, optimizer, args):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_updates)
    for i, (x, y) in enumerate(loader):
        if i == len(loader) // args.accum_steps * args.accum_steps:
            break
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss / args.accum_steps).backward()
        if (i + 1) % args.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
"""
FIXED = """\
import torch


def main(model, loader, optimizer, args):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_updates)
    for i, (x, y) in enumerate(loader):
        if i == len(loader) // args.accum_steps * args.accum_steps:
            break
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss / args.accum_steps).backward()
        if (i + 1) % args.accum_steps == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
# the scheduler moves before the optimizer: to put that right changes a run without accumulation as well
UNSAFE = SAFE.replace("        scheduler.step()\n", "").replace(
    "backward()\n", "backward()\n        scheduler.step()\n"
)
MOVED = "Move `scheduler.step()` to the boundary, behind `optimizer.step()`"


def check(capsys, *arguments):
    code = main(["check", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_safe_fix_is_written_and_what_remains_is_reported(tree, capsys):
    tree({"train.py": SAFE, "other.py": UNSAFE})
    code, out, err = check(capsys, "--fix", "train.py", "other.py")
    assert Path("train.py").read_text() == FIXED
    assert Path("other.py").read_text() == UNSAFE
    assert code == 1 and "Found 1 error in 1 file" in out and "other.py:11" in out
    assert err == f"Fixed 1 finding in 1 file:\n  train.py:14: ACC202 {MOVED}\n"


def test_nothing_remains_after_unsafe_fixes(tree, capsys):
    tree({"train.py": SAFE, "other.py": UNSAFE})
    code, out, err = check(capsys, "--fix=unsafe")
    assert code == 0 and "Nothing found." in out
    assert Path("train.py").read_text() == Path("other.py").read_text() == FIXED
    assert f"other.py:11: ACC202 {MOVED} (unsafe)" in err


def test_a_second_run_has_nothing_to_do(tree, capsys):
    tree({"train.py": SAFE})
    check(capsys, "--fix")
    before = os.stat("train.py")
    code, _, err = check(capsys, "--fix")
    assert (code, err) == (0, "") and os.stat("train.py").st_mtime_ns == before.st_mtime_ns


def test_the_patch_is_what_git_apply_takes(tree, capsysbinary, git):
    tree({"src/train.py": SAFE.replace("\n", "\r\n"), "b.py": UNSAFE.rstrip("\n"), "c.py": SAFE})
    git("init", "-q")
    code = main(["check", "--patch=unsafe"])
    out, err = capsysbinary.readouterr()
    assert code == 1 and b"Would fix 3 findings in 3 files" in err
    assert Path("c.py").read_text() == SAFE
    Path("change.diff").write_bytes(out)
    git("apply", "change.diff")
    assert Path("src/train.py").read_bytes() == FIXED.replace("\n", "\r\n").encode()
    assert Path("b.py").read_text() == FIXED.rstrip("\n")
    assert Path("c.py").read_text() == FIXED


def test_the_patch_is_empty_where_nothing_can_be_fixed(tree, capsys):
    tree({"other.py": UNSAFE})
    assert check(capsys, "--patch") == (1, "", "")


def test_standard_input_comes_out_fixed(tree, capsysbinary, monkeypatch):
    tree({})
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SAFE.encode())))
    code = main(["check", "--fix", "--stdin-filename", "train.py", "-"])
    out, err = capsysbinary.readouterr()
    assert code == 0 and out.decode() == FIXED
    assert err.startswith(b"Fixed 1 finding in 1 file:") and b"Nothing found." in err


def test_standard_input_without_a_fix_comes_out_as_it_is(tree, capsysbinary, monkeypatch):
    tree({})
    source = UNSAFE.replace("\n", "\r\n").encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(source)))
    assert main(["check", "--fix", "-"]) == 1
    out, err = capsysbinary.readouterr()
    assert out == source and b"ACC202" in err


def test_what_is_suppressed_or_known_is_left_alone(tree, capsys):
    tree(
        {
            "train.py": SAFE.replace(
                "scheduler.step()\n", "scheduler.step()  # accumlint: ignore[ACC202] planned so\n"
            )
        }
    )
    before = Path("train.py").read_text()
    assert check(capsys, "--fix")[0] == 0
    assert Path("train.py").read_text() == before
    tree({"train.py": SAFE})
    check(capsys, "--write-baseline", "known.json")
    assert check(capsys, "--fix", "--baseline", "known.json")[0] == 0
    assert check(capsys, "--fix", "--ignore", "ACC202")[0] == 0
    assert Path("train.py").read_text() == SAFE


def test_a_file_that_is_not_named_is_not_touched(tree, capsys):
    helper = "def update(optimizer, scheduler, i, k):\n    scheduler.step()\n    if (i + 1) % k == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n"
    script = (
        SAFE[: SAFE.index("        if (i + 1)")].replace(
            "import torch", "import torch\nfrom helper import update"
        )
        + "        update(optimizer, scheduler, i, args.accum_steps)\n"
    )
    tree({"helper.py": helper, "train.py": script})
    code, out, _ = check(capsys, "--fix=unsafe", "train.py")
    assert code == 1 and "helper.py:2" in out
    assert Path("helper.py").read_text() == helper and Path("train.py").read_text() == script


def test_mode_and_link_survive(tree, capsys):
    tree({"real.py": SAFE})
    os.chmod("real.py", 0o750)
    os.symlink("real.py", "train.py")
    check(capsys, "--fix", "train.py")
    assert os.path.islink("train.py") and Path("real.py").read_text() == FIXED
    assert stat.S_IMODE(os.stat("real.py").st_mode) == 0o750
    assert sorted(os.listdir(".")) == ["real.py", "train.py"]


def test_a_read_only_file_is_refused(tree, capsys, monkeypatch):
    tree({"train.py": SAFE})
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    code, _, err = check(capsys, "--fix")
    assert code == 1 and err == "accumlint: train.py: not fixed: the file is read-only\n"
    assert Path("train.py").read_text() == SAFE


def test_a_file_that_changed_meanwhile_is_refused(tree):
    from accumlint.fixing import FixedFile, WriteError, write
    from accumlint.static.discovery import Target

    tree({"train.py": SAFE})
    target = Target("train.py", os.path.abspath("train.py"), "python")
    with pytest.raises(WriteError, match="it changed while it was checked"):
        write(FixedFile(target, b"what was read", b"", ()))
    assert Path("train.py").read_text() == SAFE


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fix", "--patch"], "choose one"),
        (["--fix", "--write-baseline", "b.json"], "can't go with --fix"),
        (["--fix", "-", "a.py"], "can't go with other paths"),
    ],
)
def test_what_does_not_go_together_is_misuse(tree, capsys, arguments, message):
    tree({"a.py": SAFE})
    code, _, err = check(capsys, *arguments)
    assert code == 2 and message in err


def test_formats_tell_fixes(tree, capsys):
    tree({"train.py": SAFE})
    _, out, _ = check(capsys, "--format", "json")
    (finding,) = json.loads(out)["findings"]
    assert finding["fix"]["safe"] and finding["fix"]["title"] == MOVED
    assert [(edit["line"], edit["replacement"]) for edit in finding["fix"]["edits"]] == [
        (13, "            scheduler.step()\n"),
        (14, ""),
    ]
    _, out, _ = check(capsys, "--format", "sarif")
    (result,) = json.loads(out)["runs"][0]["results"]
    assert result["fixes"][0]["description"]["text"] == MOVED
    _, out, _ = check(capsys, "--format", "rdjson")
    (diagnostic,) = json.loads(out)["diagnostics"]
    (suggestion,) = diagnostic["suggestions"]
    assert suggestion["range"]["start"] == {"line": 13, "column": 1}
    assert suggestion["text"] == "            scheduler.step()\n            optimizer.zero_grad()\n"
    _, out, _ = check(capsys)
    assert f"fixable with --fix: {MOVED}" in out and "1 fixable with --fix (--patch shows the change)." in out


def test_text_about_a_whole_tree_tells_where_fixes_are_told(tree, capsys):
    tree({f"train_{number}.py": SAFE for number in range(11)})
    _, out, _ = check(capsys)
    assert "fixable" not in out and "Fixes were not tried out in so many files (--patch does, and shows the changes)." in out
    _, out, _ = check(capsys, "--format", "json")
    assert all(finding["fix"] for finding in json.loads(out)["findings"])
    _, out, _ = check(capsys, "train_1.py", "train_2.py")
    assert "2 fixable with --fix (--patch shows the change)." in out


def test_what_tells_no_fix_does_not_look_for_one(tree):
    tree({"train.py": SAFE, "clean.py": FIXED})
    for arguments in (["--format", "github", "train.py"], ["--statistics", "train.py"], ["clean.py"]):
        code = f"import sys; from accumlint.cli.main import main; main(['check', *{arguments!r}]); sys.exit('accumlint.static.fixes.offer' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0
