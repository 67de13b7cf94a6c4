"""The byte sieve loses nothing that trains, and keeps little else."""

import pytest
from engine_scripts import SCRIPTS

from accumlint import knowledge
from accumlint.static import structure
from accumlint.static.sieve import may_accumulate

PARTS = [
    b"loss.backward()",
    b"accelerator.backward(loss)",
    b"engine.train_batch(data)",
    b"def training_step(self, batch, index): pass",
    b"def compute_loss(self, model, inputs): pass",
    b"loss_scaler(loss, optimizer)",
    b"parser.add_argument('--accum-iter')",
    b"args = TrainingArguments(**options)",
    b"Trainer(accumulate_grad_batches=4)",
    b"with model.no_sync(): pass",
]
FRAMEWORKS = [b"torch", b"lightning.pytorch", b"accelerate", b"deepspeed", b"transformers", b"composer", b"timm.utils", b"megatron.core"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_could_accumulate_stays(part, framework):
    assert may_accumulate(b"import " + framework + b"\n" + part)


@pytest.mark.parametrize(
    "source", [b"optim_wrapper = dict(accumulative_counts=4)", b"\xff\xfe not even text, but torch and backward", b"from timm import x\nloss.backward()"]
)
def test_other_signs_are_enough(source):
    assert may_accumulate(source)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_training_scripts_stay(path):
    assert may_accumulate(path.read_bytes())


def test_every_bad_example_of_a_rule_stays():
    lost = [
        (rule.code, example.page_line)
        for rule in knowledge.rules().values() if rule.clause not in ("C0", "C9")
        for example in rule.examples if example.kind == "bad" and not may_accumulate(example.code.encode())
    ]  # fmt: skip
    assert lost == []


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"print('hello')",
        b"import torch\nx = torch.ones(3)",
        b"from itertools import accumulate",
        b"import turtle\nturtle.backward(10)",  # turtles go backward, too
        b"import pandas\ndef training_step(): pass",
    ],
)
def test_what_cannot_goes(source):
    assert not may_accumulate(source)


@pytest.mark.parametrize(
    "source",
    [
        "loss.backward()",
        "(loss.backward  # why\n ())",
        "(loss  # whose\n .  # what\n backward)",
        "loss . \\\n backward()",
        "loss.\\\nbackward()",
        "def \\\n  training_step(self): pass",
        "async_grad_scaler_for(loss)",
        "hold = model.no_sync",
        "Trainer\\\n(model)",
        "f(x for x in engine.train_batch(y))",
    ],
)
def test_tokens_that_stand_apart_are_still_read(source):
    assert structure.worth_simulating(source.encode())


@pytest.mark.parametrize("source", ["backward = 1", "MyTrainer(model)", "def train(): pass", "no_sync", "# Trainers", "x = = 2"])
def test_what_does_not_read_like_a_loop_is_not_parsed(source, monkeypatch):
    monkeypatch.setattr(structure, "python_tree", None)
    assert not structure.worth_simulating(source.encode())


@pytest.mark.parametrize("gap", ["#" * 20_000, " " * 20_000, "\\" * 20_000, "#\n" * 10_000, "scaler" * 20_000])
def test_no_file_makes_the_search_slow(gap):
    structure.worth_simulating(f"(loss.backward{gap}".encode())  # would not end if what is between tokens were read in several ways


@pytest.mark.parametrize("path", SCRIPTS, ids=str)
def test_training_scripts_pass_the_structure_too(path):
    assert structure.worth_simulating(path.read_bytes())
