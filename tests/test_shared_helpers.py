"""Two scripts that reach the same fault in a helper they share: one finding, as sure as the surest path to it."""

import json

from accumlint.cli.main import main

HELPER = """
def update(optimizer, scheduler, i, accum_steps):
    scheduler.step()
    if (i + 1) % accum_steps == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
SCRIPT = """
import torch
from helper import update


def main(model, loader, optimizer, args):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_updates)
    for i, batch in enumerate(loader):
        (model(batch).mean() / args.accum_steps).backward()
        update(optimizer, scheduler, i, args.accum_steps)
"""
SOMETIMES = SCRIPT.replace("        update(", "        if args.train:\n            update(")


def test_a_fault_in_a_shared_helper_is_told_once(tree, capsys):
    tree({"helper.py": HELPER, "a.py": SOMETIMES, "b.py": SCRIPT})
    main(["check", "--format", "json", "--select", "ACC202"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [(f["path"], f["line"]) for f in found] == [("helper.py", 3)]
