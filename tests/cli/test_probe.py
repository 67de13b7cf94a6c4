"""``accumlint probe`` and ``accumlint selftest`` on the command line."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accumlint.cli.main import main

FIXTURES = Path(__file__).parents[2] / "fixtures" / "probe"
with_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the probe runs scripts: pip install 'accumlint[probe]'")

SCRIPT = """\
import torch
from torch import nn

torch.manual_seed(0)
K = 3
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
loader = torch.utils.data.DataLoader([(torch.randn(n, 4), torch.randint(0, 3, (n,))) for n in (4, 9, 2, 5, 5, 7)], batch_size=None)
for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) / K
    loss.backward()
    scheduler.step()
    if (i + 1) % K == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def test_without_torch_it_says_how_to_install(script, monkeypatch, capsys):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    assert main(["probe", str(script)]) == 2
    assert "pip install 'accumlint[probe]'" in capsys.readouterr().err
    assert main(["selftest"]) == 2
    assert "accumlint[probe]" in capsys.readouterr().err


def test_neither_command_imports_torch_for_its_help():
    code = (
        "import sys; from accumlint.cli.main import main\n"
        "try:\n    main(['probe', '--help'])\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [(["missing.py"], "no such file"), (["train.py", "extra"], "after --"), (["train.py", "--ranks", "0"], "at least 1"), (["train.py", "--set", "K"], "NAME=VALUE")],
)
@with_torch
def test_misuse(script, words, said, capsys):
    assert main(["probe", *words]) == 2
    assert said in capsys.readouterr().err


@with_torch
def test_verdicts_json_and_receipt(script, capsys):
    assert main(["probe", str(script), "--format", "json", "--receipt", "run.receipt.json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"] == "FAIL" and told["accumulation_steps"] == 3
    assert {(f["rule"], f["line"]) for f in told["findings"]} == {("ACC101", 12), ("ACC202", 13)}
    static = {(f["rule"], f["line"]): f["verdict"] for f in told["static"]}
    assert static[("ACC202", 13)] == "confirmed"
    assert told["windows"][0]["valid_targets"] == [[4, 9, 2]] and told["windows"][0]["formula"] == "mean of means"
    assert told["windows"][0]["clocks"]["schedule"] == 3
    assert main(["receipt", "verify", "run.receipt.json"]) == 0
    assert "verdict FAIL" in capsys.readouterr().out
    text = Path("run.receipt.json").read_text()
    assert str(script.parent) not in text and "train.py" not in text
    remembered = json.loads(Path("run.verdicts.json").read_text())
    assert {"rule": "ACC202", "line": 13, "verdict": "confirmed"}.items() <= next(f for f in remembered["findings"] if f["rule"] == "ACC202").items()


@with_torch
def test_arguments_after_two_dashes_and_a_right_loop(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["probe", str(FIXTURES / "plain.py"), "--receipt", "good.receipt.json", "--", "--microbatches", "7"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("PASS\n") and "weight×N 1, 1, 1" in out and "flushed short" in out
    assert main(["receipt", "verify", "--require-pass", "good.receipt.json"]) == 0


@with_torch
def test_equal_counts_lead_to_a_second_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["probe", str(FIXTURES / "cuda_only.py"), "--as-cpu", "--no-static"]) == 0
    first, second = capsys.readouterr().out.split("second run")
    assert first.startswith("NOT-DISCRIMINATING") and "CUDA calls run on the CPU" in first
    assert "ACC101" in second and "ragged labels" in second


@with_torch
def test_constants_of_the_script(script, capsys):
    assert main(["probe", str(script), "--set", "K=2", "--format", "json", "--no-static"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [w["microbatches"] for w in told["windows"]] == [2, 2, 2]
    assert told["substitutions"] == ["module constant __main__:K"]
    assert {f["line"] for f in told["findings"]} == {12, 13}


@with_torch
def test_tiny_models_by_hub_name(monkeypatch, tmp_path, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.chdir(tmp_path)
    assert main(["probe", str(FIXTURES / "tiny_sft.py"), "--tiny", "--no-static"]) == 1
    out = capsys.readouterr().out
    assert "mean of means" in out and "ACC101" in out and "tiny Hugging Face models" in out


@with_torch
def test_merge_joins_ledgers_of_a_folder(monkeypatch, tmp_path, capsys):
    """What nodes leave in a shared folder when a user launches the ranks."""
    from accumlint.probe.launch import Plan, environment

    monkeypatch.chdir(tmp_path)
    ledger = tmp_path / "ledger"
    ledger.mkdir()
    plan = Plan(str(FIXTURES / "ddp.py"))
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", str(FIXTURES / "ddp.py"), "--variant", "local"]
    subprocess.run(words, env=environment(plan, str(ledger), os.environ), check=True, capture_output=True)
    assert main(["probe", "merge", str(ledger), "--no-static", "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["run"]["ranks"] == 2 and {f["rule"] for f in told["findings"]} == {"ACC106"}
    assert main(["probe", "merge", str(tmp_path / "nowhere")]) == 2
