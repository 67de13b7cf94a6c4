"""One script, read and run: what the simulation says about its windows, and what the library really does.

The scripts give every target a parameter of its own (a one-hot row under mean squared error, with zero weights and
targets of -1/2), and a learning rate of zero: the gradient at a step *is* the weight of every target. Batches have
eight rows, epochs eight batches, windows three microbatches: the numbers with which scripts are simulated.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

from accumlint.contract import weights
from accumlint.contract.clauses.c3_sync import synchronised
from accumlint.contract.events import Kind
from accumlint.contract.windows import ledgers
from accumlint.static.engine import EngineSettings, Project, spoken_of
from accumlint.static.explore import Explorer

torch = pytest.importorskip("torch", reason="torch is not installed")

ROWS = 8
TARGETS = 64
HEADER = """
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

def pieces():
    model = nn.Linear(64, 1, bias=False)
    nn.init.zeros_(model.weight)
    loader = DataLoader(TensorDataset(torch.eye(64), torch.full((64, 1), -0.5)), batch_size=8)
    return model, loader
"""


@dataclass
class Told:
    """What one witness says: for each step which microbatches (counted over the run) reach it with which weight,
    how often the schedule had moved by then, and how often it moved in all."""

    windows: list[dict[int, Fraction | float]] = field(default_factory=list)
    moved: list[int] = field(default_factory=list)
    moves: int = 0
    sync: list[bool] = field(default_factory=list)  # for each microbatch: do gradients meet those of other ranks?
    clips: int = 0

    @property
    def members(self) -> list[list[int]]:
        return [sorted(window) for window in self.windows]


def simulated(body: str, header: str = HEADER) -> Told:
    """The first path of the script's first root, freed of what only several ranks bring."""
    source = header + body
    module = Project(".").parse(source.encode(), "script.py", "script")
    for root in Explorer(module, EngineSettings().names(), spoken=spoken_of(source.encode())).explore():
        for trace in root.traces:
            for ledger in ledgers(trace):
                return _told(trace, ledger)
    raise AssertionError("nothing was simulated")


def _told(trace, ledger) -> Told:
    out = Told()
    first = min(e.microbatch for e in trace.events if e.kind is Kind.BACKWARD)
    for window in ledger.windows:
        row: dict[int, Fraction] = {}
        for share in weights.shares(window, trace):
            assert share.weight is not None, share
            # one backward may hold the losses of several microbatches: these are told apart by their data
            number = share.part.batch if window.batches > window.size else share.microbatch - first
            row[number] = share.weight[0] * (trace.ranks if share.averaged else 1)
        out.windows.append(row)
    step_events = [w.step for w in ledger.windows]
    moved = 0
    for event in trace.events:
        if event.kind is Kind.SCHEDULE:
            moved += 1
        elif any(event is step for step in step_events):
            out.moved.append(moved)
        elif event.kind is Kind.CLIP:
            out.clips += 1
        elif event.kind is Kind.BACKWARD and synchronised(event) is not None:
            out.sync.append(synchronised(event) is True)
    out.moves = moved
    return out


class Recorder:
    """Listens to torch itself, underneath every library: a hook before each step, and every schedule that is built."""

    def __init__(self, batches_per_epoch: int) -> None:
        self.told = Told()
        self.schedules: list = []
        self.epochs = 0
        self.seen: dict[int, int] = {}  # batch of an epoch -> its number in the run, when it was last computed
        self.batches_per_epoch = batches_per_epoch

    def before_step(self, optimizer, args, kwargs):
        """A closure (Lightning has one) runs the last backward inside of the step: look when it is done."""
        closure = kwargs.get("closure", args[0] if args and callable(args[0]) else None)
        if closure is None:
            self.look(optimizer)
            return None

        def watched():
            loss = closure()
            self.look(optimizer)
            return loss

        return (args[:1] if args and not callable(args[0]) else (), {"closure": watched})

    def look(self, optimizer) -> None:
        (weight,) = [p for group in optimizer.param_groups for p in group["params"]]
        row: dict[int, float] = {}
        gradient = torch.zeros(TARGETS) if weight.grad is None else weight.grad.flatten()
        for batch, columns in enumerate(gradient.split(ROWS)):
            assert torch.allclose(columns, columns[:1].expand(ROWS)), "targets of one microbatch weigh the same"
            if float(columns[0]):
                row[self.seen[batch]] = float(columns[0])
        self.told.windows.append(row)
        self.told.moved.append(self.moves())

    def before_forward(self, module, inputs) -> None:
        if isinstance(module, torch.nn.Linear):
            batch = int(inputs[0][0].argmax()) // ROWS
            self.seen[batch] = (self.epochs - 1) * self.batches_per_epoch + batch

    def moves(self) -> int:
        return sum(schedule.last_epoch for schedule in self.schedules)


def recorded(body: str, monkeypatch, listen=None, batches_per_epoch: int = TARGETS // ROWS) -> Told:
    """The same script, run with the library that it imports."""
    from torch.optim import lr_scheduler, optimizer

    recorder = Recorder(batches_per_epoch)
    build = lr_scheduler.LambdaLR.__init__

    def built(self, *args, **kwargs):
        build(self, *args, **kwargs)
        recorder.schedules.append(self)

    begin = torch.utils.data.DataLoader.__iter__

    def begun(self):
        recorder.epochs += 1
        return begin(self)

    monkeypatch.setattr(lr_scheduler.LambdaLR, "__init__", built)
    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", begun)
    if listen is not None:
        listen(recorder)
    handles = [
        optimizer.register_optimizer_step_pre_hook(recorder.before_step),
        torch.nn.modules.module.register_module_forward_pre_hook(recorder.before_forward),
    ]
    try:
        exec(compile(HEADER + body, "script.py", "exec"), {"__name__": "__main__"})
    finally:
        for handle in handles:
            handle.remove()
    recorder.told.moves = recorder.moves()
    return recorder.told


def renumbered(told: Told) -> Told:
    """Only microbatches that reach a step count: for loops that draw them by hand."""
    numbers = {m: i for i, m in enumerate(sorted({m for window in told.windows for m in window}))}
    return replace(told, windows=[{numbers[m]: w for m, w in window.items()} for window in told.windows])


def agree(read: Told, run: Told) -> None:
    """Windows, weights and clocks are the same; weights up to single precision."""
    assert read.members == run.members
    for ours, theirs in zip(read.windows, run.windows):
        assert {m: float(w) for m, w in ours.items()} == pytest.approx(theirs, rel=1e-5)
    assert read.moved == run.moved
    assert read.moves == run.moves
