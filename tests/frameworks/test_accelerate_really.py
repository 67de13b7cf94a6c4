"""Accelerate itself against its simulation: windows, weights, clocks and sync marks of the same script."""

import pytest
from two_witnesses import agree, recorded, simulated

pytest.importorskip("accelerate", reason="accelerate is not installed (pip install 'accumlint[frameworks]')")

SCRIPT = """
from accelerate import Accelerator

def main(accumulation_steps=3):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation_steps)
    model, loader = pieces()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(2):
        for step, (x, y) in enumerate(loader):
            with accelerator.accumulate(model):
                loss = F.mse_loss(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

main()
"""

STEP = "                optimizer.step()\n                scheduler.step()\n                optimizer.zero_grad()\n"
VARIANTS = {
    "right": (SCRIPT, [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9, 10], [11, 12, 13], [14, 15]]),
    "divided twice": (SCRIPT.replace("accelerator.backward(loss)", "accelerator.backward(loss / accumulation_steps)"), None),
    "cleared before backward": (
        SCRIPT.replace("                optimizer.zero_grad()\n", "").replace("                loss =", "                optimizer.zero_grad()\n                loss ="),
        [[2], [5], [7], [10], [13], [15]],
    ),
    "cleared behind its back": (
        SCRIPT.replace("                optimizer.zero_grad()\n", "").replace("                loss =", "                model.zero_grad()\n                loss ="),
        [[2], [5], [7], [10], [13], [15]],
    ),
    "schedule not prepared": (SCRIPT.replace("optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)", "optimizer, loader = accelerator.prepare(model, optimizer, loader)"), None),
    "loader not prepared": (
        SCRIPT.replace("optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)", "optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)"),
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]],
    ),
    "backward without the accelerator": (SCRIPT.replace("accelerator.backward(loss)", "loss.backward()"), None),
    "counted again": (SCRIPT.replace(STEP, "                if (step + 1) % accumulation_steps == 0:\n" + STEP.replace("                ", "                    ")), None),
    "never entered": (SCRIPT.replace("            with accelerator.accumulate(model):\n", "            if True:\n"), [[i] for i in range(16)]),
    "window of a plugin": (
        SCRIPT.replace("gradient_accumulation_steps=accumulation_steps", "gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accumulation_steps)").replace(
            "import Accelerator\n", "import Accelerator\nfrom accelerate.utils import GradientAccumulationPlugin\n"
        ),
        [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9, 10], [11, 12, 13], [14, 15]],
    ),
    "windows that the end of a loader does not end": (
        SCRIPT.replace("gradient_accumulation_steps=accumulation_steps", "gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accumulation_steps, sync_with_dataloader=False)").replace(
            "import Accelerator\n", "import Accelerator\nfrom accelerate.utils import GradientAccumulationPlugin\n"
        ),
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]],
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_state():
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


@pytest.mark.parametrize("variant", VARIANTS)
def test_windows_weights_and_clocks(variant, monkeypatch):
    source, windows = VARIANTS[variant]
    read, run = simulated(source), recorded(source, monkeypatch)
    assert windows is None or run.members == windows  # what we know of the library
    agree(read, run)


def test_sync_marks(monkeypatch):
    from accelerate import Accelerator

    def listen(recorder):
        backward = Accelerator.backward

        def marked(self, *args, **kwargs):
            recorder.told.sync.append(self.sync_gradients)
            return backward(self, *args, **kwargs)

        monkeypatch.setattr(Accelerator, "backward", marked)

    run = recorded(SCRIPT, monkeypatch, listen)
    assert run.sync == simulated(SCRIPT).sync
    assert run.sync[:8] == [False, False, True, False, False, True, False, True]


def test_a_prepared_schedule_moves_once_per_process(monkeypatch):
    import accelerate.scheduler

    from accumlint.contract.events import Kind
    from accumlint.contract.quantity import RANKS
    from accumlint.static.engine import EngineSettings, Project
    from accumlint.static.explore import Explorer
    from two_witnesses import HEADER

    class Two:
        num_processes = RANKS

    monkeypatch.setattr(accelerate.scheduler, "AcceleratorState", Two)
    run = recorded(SCRIPT, monkeypatch)
    module = Project(".").parse((HEADER + SCRIPT).encode(), "script.py", "script")
    (root, *_) = Explorer(module, EngineSettings().names()).explore()
    read = sum(e.details.get("times", 1) for e in root.traces[0].events if e.kind is Kind.SCHEDULE)
    assert run.moves == read == 6 * RANKS


def test_without_scheduler_with_the_step_every_call_moves(monkeypatch):
    source = SCRIPT.replace("gradient_accumulation_steps=accumulation_steps", "gradient_accumulation_steps=accumulation_steps, step_scheduler_with_optimizer=False")
    assert recorded(source, monkeypatch).moves == simulated(source).moves == 16


def test_a_release_that_stops_dividing_would_be_noticed(monkeypatch):
    from accelerate import Accelerator

    monkeypatch.setattr(Accelerator, "backward", lambda self, loss, **kwargs: loss.backward())
    with pytest.raises(AssertionError):
        agree(simulated(SCRIPT), recorded(SCRIPT, monkeypatch))


def test_a_release_that_carries_the_tail_would_be_noticed(monkeypatch):
    from accelerate.state import GradientState

    monkeypatch.setattr(GradientState, "end_of_dataloader", property(lambda self: False))
    with pytest.raises(AssertionError):
        agree(simulated(SCRIPT), recorded(SCRIPT, monkeypatch))
