"""What the reading witness says to change, the running witness confirms: it fails before a fix and passes after it."""

from __future__ import annotations

import pytest
from probe_helpers import needs_torch

TOP = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import StepLR

torch.manual_seed(7)
K = 3
KEPT = {kept}


def batches():
    made = []
    for keep in KEPT:
        tokens = torch.randint(0, 11, (4, 8))
        labels = torch.randint(0, 11, (4, 8))
{masked}        made.append((tokens, labels))
    return made


model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 11))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = StepLR(optimizer, step_size=2, gamma=0.5)
loader = batches()

for epoch in range(2):
    for i, (tokens, labels) in enumerate(loader):
"""
COUNTED = """\
        start = i - i % K
        count = sum(int((other != -100).sum()) for _, other in loader[start : start + K])
        logits = model(tokens).view(-1, 11)
        loss = F.cross_entropy(logits, labels.view(-1), reduction="sum") / count
"""
MEAN = """\
        logits = model(tokens).view(-1, 11)
        loss = F.cross_entropy(logits, labels.view(-1)) / K
"""
UPDATE = """\
        loss.backward()
        if (i + 1) % K == 0:
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
"""
VARYING = [10, 21, 19, 5, 30, 12]
ALIKE = [32] * 7

# rule -> (valid targets of each microbatch, loss, update)
CASES = {
    "ACC202": (
        VARYING,
        COUNTED,
        UPDATE.replace("            scheduler.step()\n", "") + "        scheduler.step()\n",
    ),
    "ACC401": (
        VARYING,
        COUNTED,
        UPDATE.replace(
            "backward()\n", "backward()\n        nn.utils.clip_grad_norm_(model.parameters(), 0.01)\n"
        ),
    ),
    "ACC204": (
        VARYING,
        "        optimizer.zero_grad()\n" + COUNTED,
        UPDATE.replace("            optimizer.zero_grad()\n", ""),
    ),
    "ACC205": (VARYING, COUNTED, UPDATE.replace("            optimizer.zero_grad()\n", "")),
    "ACC206": (VARYING, COUNTED, UPDATE.replace("(i + 1) % K", "i % K")),
    "ACC103": (ALIKE[:6], MEAN + "        loss = loss / K\n", UPDATE),
    "ACC502": (ALIKE, MEAN, UPDATE),
    "ACC503": (ALIKE, MEAN, UPDATE.replace("% K == 0", "% K == 0 or i + 1 == len(loader)")),
}


@pytest.mark.parametrize("rule", CASES)
def test_the_probe_fails_before_the_fix_and_passes_after_it(rule, play, tmp_path):
    needs_torch()
    from accumlint.static.engine import EngineSettings, Project, analyse
    from accumlint.static.fixes.offer import fix_file

    kept, loss, update = CASES[rule]
    path = tmp_path / "train.py"
    masked = "        labels.view(-1)[keep:] = -100\n" if kept is VARYING else ""
    source = (TOP.replace("{kept}", repr(kept)).replace("{masked}", masked) + loss + update).encode()
    path.write_bytes(source)
    found = analyse(source, str(path), Project(tmp_path), EngineSettings()).findings
    assert rule in {finding.rule for finding in found}
    before = play(str(path))
    assert before.report.verdict == "FAIL" and rule in before.lines

    fixed = fix_file(source, str(path), found, Project(tmp_path), EngineSettings(), unsafe=True)
    assert rule in {applied.finding.rule for applied in fixed.applied}
    path.write_bytes(fixed.source)
    assert not analyse(fixed.source, str(path), Project(tmp_path), EngineSettings()).findings
    after = play(str(path))
    assert not after.findings
    # microbatches that are all alike can't tell a mean of means from a token mean, which the probe never calls a pass
    assert after.report.verdict == ("PASS" if kept is VARYING else "NOT-DISCRIMINATING")
