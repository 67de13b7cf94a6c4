"""Runs in a child process: the script untouched, bit for bit the same parameters, ranks, errors, time limits."""

import json
import os
import re
import subprocess
import sys

import pytest
from probe_helpers import FIXTURES, line_of, needs, needs_torch

from accumlint.probe import present, verdicts
from accumlint.probe.assemble import assemble
from accumlint.probe.judgements import judge
from accumlint.probe.launch import Plan, command, environment, run


@pytest.fixture(autouse=True)
def _torch():
    needs_torch()


def probe(script, *arguments, window=3, **options):
    done = run(Plan(str(script), tuple(arguments), timeout=options.pop("timeout", 90), isolate=False, **options))
    report = judge(assemble(done.recordings, window), done)
    return done, report, verdicts.findings(report, str(FIXTURES))


def digest(output):
    return sorted(re.findall(r"digest.*", output))


@pytest.mark.parametrize("arguments", [("--variant", "smoothing", "--digest"), ("--variant", "clip", "--microbatches", "7", "--epochs", "2", "--digest")])
def test_final_parameters_are_the_same_bit_for_bit(arguments):
    script = str(FIXTURES / "plain.py")
    bare = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, check=True)
    done, report, _ = probe(script, *arguments, updates=0)
    assert digest(bare.stdout) and digest(bare.stdout) == digest(done.output)
    assert report.verdict == "PASS" and done.exit_code == 0
    assert report.windows[0].reference.verdict == "PASS"  # the replay took part in it


def test_final_parameters_of_two_ranks_are_the_same(tmp_path):
    script = str(FIXTURES / "ddp.py")
    words = command(Plan(script, ranks=2))
    bare = subprocess.run(words, capture_output=True, text=True, env={**os.environ, "PRINT_DIGEST": "1"})
    done, report, found = probe(script, ranks=2, updates=0, environment={"PRINT_DIGEST": "1"})
    assert len(digest(bare.stdout)) == 2, bare.stderr
    assert digest(bare.stdout) == digest(done.output)
    assert report.verdict == "PASS" and not found
    assert report.judgements["sync"].verdict == "PASS" and report.judgements["ranks"].verdict == "PASS"
    assert report.windows[0].reductions == (0, 0, 1)
    assert report.windows[0].counts == ((10, 21, 19), (7, 9, 31))


_DDP = [
    ("mean", {"ACC101": "loss.backward()"}, {"weights", "reference"}),
    ("local", {"ACC106": "loss.backward()"}, {"weights", "reference"}),
    ("not-undone", {"ACC107": "loss.backward()"}, {"weights", "reference"}),
    ("never", {"ACC303": "loss.backward()"}, {"integrity", "sync"}),
    ("past", {"ACC303": "loss.backward()"}, {"integrity", "sync"}),
    ("always", {"ACC301": "loss.backward()"}, set()),
    ("backward-only", {"ACC302": "loss.backward()"}, {"sync"}),
    ("by-hand", {}, set()),
    ("by-hand-sum", {}, set()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("variant", "rules", "red"), _DDP)
def test_two_ranks(variant, rules, red):
    _, report, found = probe(FIXTURES / "ddp.py", "--variant", variant, ranks=2)
    lines = {f.rule: f.span.line for f in found}
    occurrence = 0 if variant == "backward-only" else 1
    assert lines == {rule: line_of("ddp.py", text, occurrence) for rule, text in rules.items()}
    assert {name for name, v in report.judgements.items() if v.verdict == "FAIL"} == red
    assert report.judgements["integrity"].verdict == ("FAIL" if "integrity" in red else "PASS")


def test_ranks_that_disagree_are_named():
    _, report, found = probe(FIXTURES / "ddp.py", "--variant", "ragged", ranks=2, timeout=40)
    assert report.judgements["ranks"].verdict == "FAIL"
    (finding,) = [f for f in found if f.rule == "ACC601"]
    assert finding.span.line == line_of("ddp.py", "optimizer.step()")
    assert report.judgements["weights"].verdict == "INCONCLUSIVE"


def test_a_hanging_rank_is_diagnosed(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(
        "import torch, time\n"
        "from torch import nn\n"
        "model = nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for i in range(5):\n"
        "    nn.functional.mse_loss(model(torch.ones(3, 2)), torch.ones(3, 2)).backward()\n"
        "    if i == 3:\n"
        "        time.sleep(600)\n"
        "    optimizer.step()\n"
    )
    done, _report, _ = probe(script, timeout=9)
    assert done.timed_out and done.seconds < 30
    told = "\n".join(present.hang(done))
    assert f"{script}:6 (backward)" in told and "after 3 steps and 4 backwards" in told
    assert "line 8" in told


def test_the_rank_and_window_that_hang_are_named(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(
        "import time\n"
        "import torch\n"
        "import torch.distributed as dist\n"
        "from torch import nn\n"
        "dist.init_process_group('gloo')\n"
        "net = nn.parallel.DistributedDataParallel(nn.Linear(4, 3))\n"
        "optimizer = torch.optim.SGD(net.parameters(), lr=0.1)\n"
        "for i in range(3):\n"
        "    if dist.get_rank() == 0 and i == 2:\n"
        "        time.sleep(600)\n"
        "    nn.functional.mse_loss(net(torch.ones(2, 4)), torch.zeros(2, 3)).backward()\n"
        "    optimizer.step()\n"
    )
    done, _, _ = probe(script, ranks=2, timeout=14, window=None)
    told = "\n".join(present.hang(done))
    assert f"rank 0: last seen at {script}:12 (step), after 2 steps and 2 backwards" in told
    assert "line 10" in told and "line 11" in told  # asleep, and blocked in the reduction of the backward


def test_the_scripts_own_error_is_no_finding(tmp_path):
    script = tmp_path / "broken.py"
    script.write_text("import torch\nraise KeyError('no such column')\n")
    done, report, found = probe(script)
    assert not found and report.verdict == "NOT-RUN"
    assert present.script_error(done).startswith(f"the script raised KeyError at {script}:2") or "KeyError" in present.script_error(done)


def test_asking_for_torch_without_importing_it_does_not_end_the_wait(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(f"import importlib.util\nassert importlib.util.find_spec('torch')\n{(FIXTURES / 'plain.py').read_text()}")
    done, report, _ = probe(script)
    assert done.exit_code == 0 and report.verdict == "PASS"


def test_leaves_after_the_asked_updates():
    done, report, _ = probe(FIXTURES / "plain.py", "--microbatches", "7", "--epochs", "50", updates=2)
    assert done.exit_code == 0 and len(report.windows) == 2
    assert done.recordings[0].ending == "updates"


def test_modules_and_constants(tmp_path):
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "settings.py").write_text("WINDOW = 5\n")
    (package / "main.py").write_text(
        "import torch\nfrom torch import nn\nfrom trainer.settings import WINDOW\n"
        "model = nn.Linear(2, 2)\noptimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for i in range(4):\n"
        "    rows = torch.ones(2 + i, 2)\n"
        "    (nn.functional.mse_loss(model(rows), rows) / WINDOW).backward()\n"
        "    if (i + 1) % WINDOW == 0:\n        optimizer.step()\n        optimizer.zero_grad()\n"
    )
    plan = Plan("trainer.main", module=True, isolate=False, environment={"PYTHONPATH": f"{environment(Plan(''), '', {})['PYTHONPATH']}{os.pathsep}{tmp_path}"}, constants={"trainer.settings": {"WINDOW": 2}})  # fmt: skip
    done = run(plan)
    report = judge(assemble(done.recordings), done)
    assert [w.size for w in report.windows] == [2, 2]
    (finding,) = verdicts.findings(report, str(tmp_path))
    assert (finding.rule, finding.span.path, finding.span.line) == ("ACC101", "trainer/main.py", 8)


def test_secrets_are_not_handed_on():
    given = {"HF_TOKEN": "x", "WANDB_API_KEY": "x", "AWS_SECRET_ACCESS_KEY": "x", "PATH": "/bin", "DB_PASSWORD": "x"}
    handed = environment(Plan("s.py"), "/ledger", given)
    assert not {"HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"} & set(handed)
    assert handed["PATH"] == "/bin" and handed["HF_HUB_OFFLINE"] == "1"
    assert json.loads(handed["ACCUMLINT_PROBE_OPTIONS"])["updates"] == 12


def test_accelerate_over_two_ranks():
    needs("accelerate")
    _, report, found = probe(FIXTURES / "accelerate_loop.py", "--variant", "by-count", ranks=2)
    assert report.verdict == "PASS" and not found
    _, report, found = probe(FIXTURES / "accelerate_loop.py", "--variant", "forgot-world", ranks=2)
    assert {f.rule for f in found} == {"ACC107"}
