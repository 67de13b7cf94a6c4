"""``accumlint config``: the table, its sources, and the exit codes."""

from __future__ import annotations

import json

import pytest

from accumlint.cli.main import main

DEEPSPEED = '{\n  "train_batch_size": 128,\n  "train_micro_batch_size_per_gpu": 4,\n  "gradient_accumulation_steps": 8\n}\n'


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_number_has_its_source(here, capsys):
    (here / "ds.json").write_text(DEEPSPEED)
    assert main(["config", "ds.json"]) == 0
    out = capsys.readouterr().out.split("\n")
    assert out[0] == "ds.json  (DeepSpeed)"
    rows = [line.split(maxsplit=2) for line in out[1:5]]
    assert rows == [
        ["micro", "4", "ds.json:3 train_micro_batch_size_per_gpu"],
        ["accumulation", "8", "ds.json:4 gradient_accumulation_steps"],
        ["ranks", "4", "needed to close the product"],
        ["global", "128", "ds.json:2 train_batch_size"],
    ]


def test_a_launch_line_gives_the_ranks(here, capsys):
    (here / "ds.json").write_text(DEEPSPEED)
    (here / "run.sh").write_text("deepspeed --num_gpus 8 t.py --deepspeed_config ds.json\n")
    assert main(["config", "."]) == 1
    out = capsys.readouterr().out
    assert "run.sh:1 launch line" in out
    assert "DOES NOT CLOSE: micro-batch 4 × accumulation 8 × 8 ranks = 256" in out
    assert "ds.json:2:23: error ACC901 config-batch-mismatch" in out


def test_a_derived_window_is_marked_as_such(here, capsys):
    (here / "p.yaml").write_text("devices: 2\ntrain:\n  global_batch_size: 64\n  micro_batch_size: 4\n")
    assert main(["config", "p.yaml"]) == 0
    out = capsys.readouterr().out
    assert ["accumulation", "8", "derived"] in [line.split() for line in out.split("\n")]
    assert "closes" in out


def test_auto_stays_open(here, capsys):
    (here / "ds.json").write_text(
        '{"train_batch_size": "auto", "gradient_accumulation_steps": "auto", "zero_optimization": {}}'
    )
    assert main(["config", "ds.json"]) == 0
    assert "auto  ds.json:1 train_batch_size (not a number)" in capsys.readouterr().out


def test_json(here, capsys):
    (here / "ds.json").write_text(DEEPSPEED.replace("128", "100"))
    assert main(["config", "--format", "json", "ds.json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "accumlint/config/v1"
    assert data["configurations"][0]["closes"] is False
    assert data["configurations"][0]["rows"][0] == {
        "quantity": "micro",
        "value": "4",
        "source": "ds.json:3 train_micro_batch_size_per_gpu",
    }
    assert [(f["name"], f["line"]) for f in data["findings"]] == [("config-batch-mismatch", 2)]


def test_nothing_to_show_and_nothing_to_read(here, capsys):
    (here / "x.yaml").write_text("a: 1\n")
    assert main(["config", "x.yaml"]) == 3
    assert "no configuration" in capsys.readouterr().out
    assert main(["config", "missing.yaml"]) == 2
    assert "missing.yaml" in capsys.readouterr().err


def test_hidden_folders_and_installed_packages_are_left_out(here):
    for folder in (".hidden", "node_modules", "x/site-packages"):
        (here / folder).mkdir(parents=True)
        (here / folder / "ds.json").write_text(DEEPSPEED.replace("128", "100"))
    assert main(["config", "."]) == 3
