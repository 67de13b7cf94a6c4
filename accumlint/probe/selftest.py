"""Breaking a correct loop in every known way: each fault must turn the judgement red that it belongs to.

The loop is source text and a fault is a replacement in it, so that what is run is what a user could have written. The
control has equal counts: nothing may turn red there, and nothing may be called proven.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import tempfile
from dataclasses import dataclass

from accumlint.probe.judgements import FAIL, INCONCLUSIVE, NOT_DISCRIMINATING, PASS, Report
from accumlint.probe.session import recording
from accumlint.probe.verdicts import findings

WINDOW = 3

LOOP = '''\
import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
K = 3
COUNTS = (10, 21, 19, 5, 30, 12, 8)
generator = torch.Generator().manual_seed(1)
data = []
for count in COUNTS:
    target = torch.randint(0, 7, (32,), generator=generator)
    target[count:] = -100
    data.append((torch.randn(32, 12, generator=generator), target))
model = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 7))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

for epoch in range(2):
    for i, (x, y) in enumerate(data):
        window = data[i - i % K : i - i % K + K]
        count = sum(int((target != -100).sum()) for _, target in window)
        loss = F.cross_entropy(model(x), y, reduction="sum") / count
        scaler.scale(loss).backward()
        if (i + 1) % K == 0 or i + 1 == len(data):
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()
'''

_LOSS = 'loss = F.cross_entropy(model(x), y, reduction="sum") / count\n'
_BACKWARD = "        scaler.scale(loss).backward()\n"
_GATE = "if (i + 1) % K == 0 or i + 1 == len(data):\n"


@dataclass(frozen=True)
class Fault:
    """One way to break the loop: what it is called, the replacements, and the rule or judgement that must turn red."""

    name: str
    changes: tuple[tuple[str, str], ...]
    rule: str = ""
    judgement: str = ""


FAULTS = (
    Fault("mean of means", ((_LOSS, "loss = F.cross_entropy(model(x), y) / len(window)\n"),), "ACC101", "weights"),
    Fault("mean losses summed", ((_LOSS, "loss = F.cross_entropy(model(x), y)\n"),), "ACC102", "weights"),
    Fault("divided twice", ((_LOSS, 'loss = F.cross_entropy(model(x), y, reduction="sum") / count / K\n'),), "ACC103", "weights"),
    Fault("labels counted with the ignored ones", (("int((target != -100).sum())", "target.numel()"),), "", "weights"),
    Fault("cleared in every microbatch", ((_BACKWARD, "        optimizer.zero_grad()\n" + _BACKWARD),), "ACC204", "integrity"),
    Fault("never cleared", (("            optimizer.zero_grad()\n", ""),), "ACC205", "integrity"),
    Fault("scheduler in every microbatch", (("            scheduler.step()\n", ""), (_BACKWARD, _BACKWARD + "        scheduler.step()\n")), "ACC202", "clocks"),
    Fault("boundary one off", ((_GATE, "if i % K == 0 or i + 1 == len(data):\n"),), "ACC206", "clocks"),
    Fault("scaler updated in every microbatch", (("            scaler.update()\n", ""), (_BACKWARD, _BACKWARD + "        if i % K < 2: scaler._per_optimizer_states.clear(); scaler.update(1024.0)\n"), ("            scheduler.step()\n", "            scaler.update()\n            scheduler.step()\n")), "ACC212", "clocks"),
    Fault("clipped in every microbatch", (("            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""), (_BACKWARD, _BACKWARD + "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n")), "ACC401", "integrity"),
    Fault("clipped while scaled", (("            scaler.unscale_(optimizer)\n", ""),), "ACC402", "clocks"),
    Fault("clipped before the last backward", (("            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", ""), (_BACKWARD, "        if i % K == 2: nn.utils.clip_grad_norm_(model.parameters(), 1e-4)\n" + _BACKWARD)), "ACC403", "integrity"),
    Fault("stepped on scaled gradients", (("            scaler.unscale_(optimizer)\n", ""), ("            scaler.step(optimizer)\n            scaler.update()\n", "            optimizer.step()\n")), "", "integrity"),
    Fault("gradients halved on the way", ((_BACKWARD, _BACKWARD + "        for p in model.parameters(): p.grad.mul_(0.5)\n"),), "", "integrity"),
    Fault("one parameter's gradient dropped", ((_GATE, _GATE + "            model[0].weight.grad = None\n"),), "", "integrity"),
    Fault("tail dropped", ((" or i + 1 == len(data):\n", ":\n"), ("    for i, (x, y) in", "    optimizer.zero_grad()\n    for i, (x, y) in")), "ACC501", "tail"),
    Fault("tail leaks into the next epoch", ((" or i + 1 == len(data):\n", ":\n"),), "ACC502", "tail"),
    Fault("tail divided as if it were full", ((_LOSS, 'loss = F.cross_entropy(model(x), y, reduction="sum") / (count * K / len(window))\n'),), "ACC503", "tail"),
)  # fmt: skip

CONTROL = (("COUNTS = (10, 21, 19, 5, 30, 12, 8)", "COUNTS = (20, 20, 20, 20, 20, 20)"),)


@dataclass(frozen=True)
class Outcome:
    """What became of one fault: red where it must be, and what was seen."""

    name: str
    passed: bool
    said: str


def source(changes: tuple[tuple[str, str], ...]) -> str:
    """The loop with replacements. Raises ValueError for one that does not apply."""
    text = LOOP
    for old, new in changes:
        if old not in text:
            raise ValueError(f"the loop has no {old!r}")
        text = text.replace(old, new)
    return text


def played(text: str, folder: str, name: str = "loop.py") -> tuple[Report, list]:
    """Run a loop under the recorder in this process: (report, findings)."""
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(text)
    with recording(WINDOW) as recorded, contextlib.redirect_stdout(io.StringIO()):
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runpy.run_path(path, run_name="__main__")
    report = recorded.report()
    return report, findings(report, folder)


def judge_fault(fault: Fault, folder: str, name: str) -> Outcome:
    report, found = played(source(fault.changes), folder, name)
    rules = sorted({f.rule for f in found})
    red = sorted(n for n, v in report.judgements.items() if v.verdict == FAIL)
    seen = (not fault.rule or fault.rule in rules) and (not fault.judgement or fault.judgement in red)
    return Outcome(fault.name, seen, f"red: {', '.join([*red, *rules]) or 'nothing'}")


def run() -> list[Outcome]:
    """The correct loop, every fault, and the control with equal counts."""
    out = []
    with tempfile.TemporaryDirectory(prefix="accumlint-selftest-") as folder:
        report, found = played(LOOP, folder, "correct.py")
        clean = report.verdict == PASS and not found
        out.append(Outcome("the correct loop", clean, _words(report)))
        for number, fault in enumerate(FAULTS):
            out.append(judge_fault(fault, folder, f"fault{number}.py"))
        report, found = played(source(CONTROL), folder, "control.py")
        quiet = not found and not any(v.verdict in (FAIL, INCONCLUSIVE) for v in report.judgements.values())
        out.append(Outcome("control: equal counts", quiet and report.judgements["weights"].verdict == NOT_DISCRIMINATING, _words(report)))
        changed = (*CONTROL, (_LOSS, "loss = F.cross_entropy(model(x), y) / len(window)\n"))
        report, found = played(source(changed), folder, "control_mean.py")
        quiet = not found and report.judgements["weights"].verdict == NOT_DISCRIMINATING
        out.append(Outcome("control: mean of means on equal counts", quiet, _words(report)))
    return out


def _words(report: Report) -> str:
    return ", ".join(f"{name} {verdict.verdict}" for name, verdict in report.judgements.items())
