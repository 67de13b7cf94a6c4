"""Baselines over whole trees, with the real engine: what they keep hidden, and that nothing new hides behind
them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from accumlint.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
COMMENTS = {
    ".py": "# a line that was inserted\n",
    ".yaml": "# inserted\n",
    ".yml": "# inserted\n",
    ".toml": "# inserted\n",
    ".json": "\n",
}

# another fault of a rule that the file above it may already have, in a function of its own
NEW_FAULT = """

def train_the_new_way(model, loader, optimizer, scheduler, accumulation):
    for index, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(inputs), targets) / accumulation
        loss.backward()
        scheduler.step()
        if (index + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()


def start_the_new_way(model, loader):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    train_the_new_way(model, loader, optimizer, scheduler, 4)
"""


def run(capsys, *arguments):
    main(["check", "--isolated", "--format", "json", *arguments])
    document = json.loads(capsys.readouterr().out)
    return document["findings"], document["summary"]


def test_fifty_lines_at_the_top_of_every_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("scripts", "frameworks", "configs"):
        shutil.copytree(ROOT / "fixtures" / folder, tmp_path / folder)
    _, summary = run(capsys, "--write-baseline", "known.json")
    known = summary["baselined"]
    assert known > 80 and summary["findings"] == 0
    for path in tmp_path.rglob("*.*"):
        line = COMMENTS.get(path.suffix)
        if line and path.name != "known.json":
            path.write_bytes(line.encode() * 50 + path.read_bytes())
    left, summary = run(capsys, "--baseline", "known.json")
    assert left == [] and (summary["baselined"], summary["stale_baseline"]) == (known, 0)


def test_nothing_new_hides_behind_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "fixtures" / "scripts", tmp_path / "scripts")
    run(capsys, "--write-baseline", "known.json")
    known, _ = run(capsys)
    scripts = sorted(path for path in tmp_path.rglob("*.py"))
    for path in scripts:
        path.write_text("import torch\n" + path.read_text() + NEW_FAULT)
    everything, _ = run(capsys)
    for more in ((), ("--ratchet",)):
        found, summary = run(capsys, "--baseline", "known.json", *more)
        assert summary["baselined"] == len(known)
        assert len(found) == len(everything) - len(known)
        told = {f["path"] for f in found if f["rule"] == "ACC202"}
        assert told == {path.relative_to(tmp_path).as_posix() for path in scripts}
