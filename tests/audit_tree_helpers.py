"""Small trees to audit, and the audit of one as the command makes it."""

from __future__ import annotations

import json
from pathlib import Path

from accumlint.cli.main import main

FIXTURES = Path(__file__).parents[1] / "fixtures"

HEAD = """\
import torch
import torch.nn.functional as F


def train(model, loader, accum_steps=3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, len(loader) // accum_steps)
    for step, (inputs, labels) in enumerate(loader):
"""

MEAN_OF_MEANS = (
    HEAD
    + """\
        labels[labels == 0] = -100
        logits = model(inputs)[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        (loss / accum_steps).backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
)

RIGHT = (
    HEAD
    + """\
        loss = F.cross_entropy(model(inputs), labels)
        (loss / accum_steps).backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
)

CLEARED = (
    HEAD
    + """\
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        (loss / accum_steps).backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            scheduler.step()
"""
)

FAST_SCHEDULE = (
    HEAD
    + """\
        loss = F.cross_entropy(model(inputs), labels)
        (loss / accum_steps).backward()
        scheduler.step()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
)

SHORT_TAIL = (
    HEAD
    + """\
        loss = F.cross_entropy(model(inputs), labels)
        (loss / accum_steps).backward()
        if (step + 1) % accum_steps == 0 or step + 1 == len(loader):
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
)

DEEPSPEED = (
    '{"train_batch_size": 100, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 3}\n'
)

TREE = {
    "counts.py": MEAN_OF_MEANS,
    "below/right.py": RIGHT,
    "below/schedule.py": FAST_SCHEDULE,
    "below/tail.py": SHORT_TAIL,
    "broken.py": "import torch\nfor x in loader:\n    loss.backward(\n",
    "plain.py": "print('nothing to train')\n",
    "ds.json": DEEPSPEED,
}


def audited(capsys, *arguments, code=0):
    """The JSON document that the command prints."""
    capsys.readouterr()
    assert main(["audit", "--format", "json", *map(str, arguments)]) == code
    return json.loads(capsys.readouterr().out)


def loops_of(document, path):
    return [loop for loop in document["loops"] if loop["path"] == path]
