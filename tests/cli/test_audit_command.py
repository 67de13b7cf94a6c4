"""``accumlint audit``: what it writes, where, and how it ends."""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
import yaml
from audit_tree_helpers import CLEARED as WRONG
from audit_tree_helpers import FAST_SCHEDULE, RIGHT

from accumlint.cli.main import main


def run(capsys, *arguments):
    code = main(["audit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_suffix_tells_the_format_and_several_are_written_at_once(tree, capsys):
    folder = tree({"a.py": WRONG})
    code, out, _ = run(
        capsys,
        "--output",
        "r.html",
        "--output",
        "r.md",
        "--output",
        "r.json",
        "--output",
        "r.HTM",
        "--name",
        "demo",
    )
    assert code == 0
    assert out.endswith("Written: r.html, r.md, r.json, r.HTM\n") and out.startswith(
        "demo: 1 error; 1 of 1 accumulating loop affected."
    )
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    assert (folder / "r.html").read_bytes() == (folder / "r.HTM").read_bytes()
    assert (folder / "r.md").read_text().startswith("# Gradient accumulation audit: demo\n")
    assert json.loads((folder / "r.json").read_text())["name"] == "demo"


def test_without_output_the_report_goes_to_standard_output(tree, capsys):
    folder = tree({"a.py": WRONG})
    assert run(capsys)[1].startswith("# Gradient accumulation audit: ")
    assert sorted(path.name for path in folder.iterdir()) == ["a.py"]


def test_an_output_is_relative_to_where_the_command_was_given(tree, capsys):
    folder = tree({"repo/a.py": WRONG})
    assert run(capsys, "repo", "--output", "r.json")[0] == 0
    assert (folder / "r.json").exists() and not (folder / "repo" / "r.json").exists()


def test_a_suffix_that_tells_nothing_needs_a_format(tree, capsys):
    folder = tree({"a.py": RIGHT})
    code, _, err = run(capsys, "--output", "report")
    assert code == 2 and "say --format" in err and not (folder / "report").exists()
    assert run(capsys, "--output", "report", "--format", "html")[0] == 0


def test_exit_codes(tree, capsys):
    tree({"bad/a.py": WRONG, "good/a.py": RIGHT, "nothing/readme.rst": ""})
    assert run(capsys, "bad")[0] == 0  # a report was asked for, and made
    assert run(capsys, "bad", "--fail-on", "error")[0] == 1
    assert run(capsys, "good", "--fail-on", "error")[0] == 0
    assert run(capsys, "nothing")[0] == 3
    assert run(capsys, "gone")[0] == 2
    assert run(capsys, "bad/a.py")[0] == 2
    assert run(capsys, "bad", "good")[0] == 2
    assert run(capsys, "bad", "--select", "ACC999")[0] == 2


def test_a_report_that_cannot_be_written_is_an_error(tree, capsys):
    tree({"a.py": RIGHT})
    code, _, err = run(capsys, "--output", "no/such/folder/r.html")
    assert code == 2 and "no/such/folder/r.html: cannot be written" in err


def test_settings_of_the_audited_folder_hold_and_the_command_line_adds_to_them(tree, capsys):
    tree({"repo/accumlint.toml": 'ignore = ["ACC204"]\nbaseline = "none.json"\n', "repo/a.py": WRONG})
    rules = {
        finding["rule"] for finding in json.loads(run(capsys, "repo", "--format", "json")[1])["findings"]
    }
    assert "ACC204" not in rules
    rules = {
        finding["rule"]
        for finding in json.loads(run(capsys, "repo", "--format", "json", "--isolated")[1])["findings"]
    }
    assert "ACC204" in rules


def test_fixes_are_tried_out_when_asked_for(tree, capsys):
    tree({"a.py": FAST_SCHEDULE})
    without = json.loads(run(capsys, "--format", "json")[1])
    assert [finding["fix"] for finding in without["findings"] if finding["rule"] == "ACC202"] == [None]
    document = json.loads(run(capsys, "--format", "json", "--fixes")[1])
    (fix,) = [finding["fix"] for finding in document["findings"] if finding["rule"] == "ACC202"]
    assert fix["title"]
    (step,) = [step for step in document["first"] if step["title"] == "Let the tool change what it can"]
    assert ("accumlint check --fix" in step["commands"]) == fix["safe"]
    assert ("accumlint check --patch=unsafe" in step["commands"]) != fix["safe"]


def test_imports_are_followed_from_the_audited_folder(tree, capsys):
    tree({
        "repo/train.py": "import torch\nfrom helper import update\n\n\ndef main(model, loader, args):\n"
        "    optimizer = torch.optim.SGD(model.parameters(), args.lr)\n"
        "    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_updates)\n"
        "    for i, batch in enumerate(loader):\n        (model(batch).mean() / args.accum_steps).backward()\n"
        "        update(optimizer, scheduler, i, args.accum_steps)\n",
        "repo/helper.py": "def update(optimizer, scheduler, i, accum_steps):\n    scheduler.step()\n"
        "    if (i + 1) % accum_steps == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n",
    })  # fmt: skip
    document = json.loads(run(capsys, "repo", "--format", "json")[1])
    assert ("ACC202", "helper.py", 2) in {(f["rule"], f["path"], f["line"]) for f in document["findings"]}
    (loop,) = [each for each in document["loops"] if each["path"] == "train.py"]
    assert loop["kind"] == "broken"


def test_the_name_comes_from_the_remote_and_the_revision_from_git(tree, git, capsys):
    tree({"sub/a.py": RIGHT})
    git("init")
    git("remote", "add", "origin", "https://someone:secret@git.example.com/team/train.git")
    git("add", ".")
    git("commit", "-m", "first")
    document = json.loads(run(capsys, "--format", "json")[1])
    assert document["name"] == "team/train"
    assert (
        document["revision"]["commit"] == git("rev-parse", "HEAD").strip()
        and not document["revision"]["changed"]
    )
    out = run(capsys, "sub", "--format", "json")[1]
    assert json.loads(out)["name"] == "team/train/sub" and "secret" not in out and "someone" not in out
    tree({"sub/a.py": WRONG})
    assert json.loads(run(capsys, "--format", "json")[1])["revision"]["changed"]


def test_a_report_is_made_without_git(tree, capsys, monkeypatch):
    tree({"repo/a.py": RIGHT})
    monkeypatch.setenv("PATH", "")
    document = json.loads(run(capsys, "repo", "--format", "json")[1])
    assert document["name"] == "repo" and document["revision"] is None


@pytest.mark.parametrize("module", ["torch", "jinja2"])
def test_an_audit_needs_neither(tree, module):
    folder = tree({"a.py": WRONG})
    script = f"import sys; sys.modules[{module!r}] = None\nfrom accumlint.cli.main import main\nraise SystemExit(main(['audit', '--output', 'r.html']))"
    done = subprocess.run([sys.executable, "-c", script], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


DOCS = Path(__file__).parents[2] / "docs" / "audit.md"


def test_the_page_names_the_options_that_there_are(capsys):
    with pytest.raises(SystemExit):
        main(["audit", "--help"])
    offered = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    text = DOCS.read_text(encoding="utf-8")
    table = text[text.index("| option |") : text.index("The settings of the audited folder")]
    assert set(re.findall(r"`(--[a-z-]+)", table)) == offered


def test_the_recipes_of_the_page_are_well_formed_and_use_what_there_is(tree, capsys, monkeypatch):
    """The Slurm and Ray recipes run here, one task after the other."""
    blocks = re.findall(r"```(\w*)\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    workflow = yaml.safe_load(next(text for kind, text in blocks if kind == "yaml"))
    commands = [step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert [each for each in commands if each.startswith("accumlint audit")] == [
        'accumlint audit --name "${{ matrix.repository }}" --output "audit-${{ strategy.job-index }}.json"',
        "accumlint audit merge reports --output audit.html",
    ]
    folder = tree({"one/a.py": RIGHT, "two/a.py": WRONG, "repositories.txt": "one\ntwo\n", "reports/.keep": "",
                   "bin/accumlint": f'#!/bin/sh\nexec "{sys.executable}" -m accumlint "$@"\n'})  # fmt: skip
    (folder / "bin" / "accumlint").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parents[1]))
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    script = next(text for kind, text in blocks if kind == "bash" and "#SBATCH" in text)
    for task in ("1", "2"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        subprocess.run(["bash", "-euc", script], check=True)
    assert main(["audit", "merge", "reports", "--output", "audit.html"]) == 0
    assert "two" in (folder / "audit.html").read_text()
    (folder / "audit.html").unlink()
    ray = types.ModuleType("ray")
    ray.remote = lambda **_: lambda function: types.SimpleNamespace(remote=function)
    ray.get = list
    monkeypatch.setitem(sys.modules, "ray", ray)
    exec(next(text for kind, text in blocks if kind == "python" and "ray" in text), {})
    assert sorted(path.name for path in (folder / "reports").glob("*.json")) == ["0.json", "1.json", "2.json"]
    assert "two" in (folder / "audit.html").read_text()
