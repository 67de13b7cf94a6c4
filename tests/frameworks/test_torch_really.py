"""Plain loops against their simulation: however a window is written, both witnesses see the same one."""

import pytest
from two_witnesses import agree, recorded, renumbered, simulated

LOOP = """
def main(accumulation_steps=3):
    model, loader = pieces()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
{body}

main()
"""


def loop(inside, *, before="", after="", head="for i, (x, y) in enumerate(loader):"):
    """Two epochs over the loader, ``inside`` once for every microbatch."""
    lines = [f"    {line}" for line in before.splitlines()] + ["    for epoch in range(2):"]
    lines += [f"        {head}"] + [f"            {line}" for line in inside.splitlines()]
    lines += [f"        {line}" for line in after.splitlines()]
    return LOOP.format(body="\n".join(lines))


LOSS = "loss = F.mse_loss(model(x), y)\n"
UPDATE = "optimizer.step()\nscheduler.step()\noptimizer.zero_grad()\n"
INDENTED = "".join(f"    {line}\n" for line in UPDATE.splitlines())
BACKWARD = LOSS + "(loss / accumulation_steps).backward()\n"
GATE = "if (i + 1) % accumulation_steps == 0:\n"

FULL, TAIL = [[0, 1, 2], [3, 4, 5]], [6, 7]
FLUSHED = [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9, 10], [11, 12, 13], [14, 15]]
LEAKED = [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13]]
CARRIED = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11], [12, 13, 14]]
DROPPED = [[0, 1, 2], [3, 4, 5], [8, 9, 10], [11, 12, 13]]

VARIANTS = {
    "every microbatch": (loop(LOSS + "loss.backward()\n" + UPDATE), [[i] for i in range(16)]),
    "modulo, tail leaks": (loop(BACKWARD + GATE + INDENTED), LEAKED),
    "modulo, tail flushed inside": (loop(BACKWARD + GATE.replace(":\n", " or i + 1 == len(loader):\n") + INDENTED), FLUSHED),
    "modulo, tail flushed behind": (loop(BACKWARD + GATE + INDENTED, after="if len(loader) % accumulation_steps != 0:\n" + INDENTED), FLUSHED),
    "modulo, tail dropped": (loop(BACKWARD + GATE + INDENTED, after="optimizer.zero_grad()"), DROPPED),
    "off by one": (loop(BACKWARD + "if i % accumulation_steps == 0:\n" + INDENTED), None),
    "inverted": (loop(BACKWARD + "if (i + 1) % accumulation_steps:\n" + INDENTED), None),
    "not and modulo": (loop(BACKWARD + "if not (i + 1) % accumulation_steps:\n" + INDENTED), LEAKED),
    "continue before the update": (loop(BACKWARD + "if (i + 1) % accumulation_steps != 0:\n    continue\n" + UPDATE), LEAKED),
    "enumerate from one": (loop(BACKWARD + "if i % accumulation_steps == 0:\n" + INDENTED, head="for i, (x, y) in enumerate(loader, 1):"), LEAKED),
    "enumerate with a keyword": (loop(BACKWARD + "if i % accumulation_steps == 0:\n" + INDENTED, head="for i, (x, y) in enumerate(loader, start=1):"), LEAKED),
    "a counter that is set back": (
        loop(BACKWARD + "pending += 1\nif pending == accumulation_steps:\n" + INDENTED + "    pending = 0\n", before="pending = 0", head="for x, y in loader:"), CARRIED,
    ),
    "a counter that goes on": (
        loop("seen += 1\n" + BACKWARD + "if seen % accumulation_steps == 0:\n" + INDENTED, before="seen = 0", head="for x, y in loader:"), CARRIED,
    ),
    "a remainder of its own": (loop(BACKWARD + "quotient, rest = divmod(i + 1, accumulation_steps)\nif rest == 0:\n" + INDENTED), LEAKED),
    "a name for the boundary": (loop("boundary = (i + 1) % accumulation_steps == 0 or (i + 1) == len(loader)\n" + BACKWARD + "if boundary:\n" + INDENTED), FLUSHED),
    "cleared before every backward": (loop(LOSS + "optimizer.zero_grad()\nloss.backward()\n" + GATE + "    optimizer.step()\n    scheduler.step()\n"), None),
    "cleared at the start of a window": (
        loop("if i % accumulation_steps == 0:\n    optimizer.zero_grad()\n" + BACKWARD + GATE + "    optimizer.step()\n    scheduler.step()\n"), DROPPED,
    ),
    "model.zero_grad": (loop(BACKWARD + GATE.replace(":\n", " or i + 1 == len(loader):\n") + INDENTED.replace("optimizer.zero", "model.zero")), FLUSHED),
    "gradients set to None by hand": (
        loop(BACKWARD + GATE.replace(":\n", " or i + 1 == len(loader):\n") + "    optimizer.step()\n    scheduler.step()\n    for p in model.parameters():\n        p.grad = None\n"), FLUSHED,
    ),
    "divided in place": (loop(LOSS + "loss /= accumulation_steps\nloss.backward()\n" + GATE + INDENTED), LEAKED),
    "multiplied by the reciprocal": (loop(LOSS + "loss = loss * (1 / accumulation_steps)\nloss.backward()\n" + GATE + INDENTED), LEAKED),
    "div()": (loop(LOSS + "loss.div(accumulation_steps).backward()\n" + GATE + INDENTED), LEAKED),
    "torch.autograd.backward": (loop(LOSS + "torch.autograd.backward(loss / accumulation_steps)\n" + GATE + INDENTED), LEAKED),
    "a gradient argument": (loop(LOSS + "loss.backward(torch.tensor(1 / accumulation_steps))\n" + GATE + INDENTED), LEAKED),
    "never divided": (loop(LOSS + "loss.backward()\n" + GATE + INDENTED), LEAKED),
    "divided twice": (loop(LOSS + "loss = loss / accumulation_steps\n(loss / accumulation_steps).backward()\n" + GATE + INDENTED), LEAKED),
    "divided by the size of the window at hand": (
        loop(
            "size = min(accumulation_steps, len(loader) - i // accumulation_steps * accumulation_steps)\n" + LOSS + "(loss / size).backward()\n"
            + GATE.replace(":\n", " or i + 1 == len(loader):\n") + INDENTED
        ), FLUSHED,
    ),
    "a sum, divided by rows": (loop("loss = F.mse_loss(model(x), y, reduction='sum') / (accumulation_steps * len(x))\nloss.backward()\n" + GATE + INDENTED), LEAKED),
    "a module's loss": (loop("loss = nn.MSELoss()(model(x), y) / accumulation_steps\nloss.backward()\n" + GATE + INDENTED), LEAKED),
    "a mean of no reduction": (loop("loss = F.mse_loss(model(x), y, reduction='none').mean() / accumulation_steps\nloss.backward()\n" + GATE + INDENTED), LEAKED),
    "gradients divided before the step": (
        loop(LOSS + "loss.backward()\n" + GATE + "    for p in model.parameters():\n        p.grad.div_(accumulation_steps)\n" + INDENTED), LEAKED,
    ),
    "gradients multiplied before the step": (
        loop(LOSS + "loss.backward()\n" + GATE + "    for p in model.parameters():\n        if p.grad is not None:\n            p.grad *= 1 / accumulation_steps\n" + INDENTED), LEAKED,
    ),
    "windows of a list": (
        loop(
            "window.append((x, y))\nif len(window) == accumulation_steps:\n    for a, b in window:\n        (F.mse_loss(model(a), b) / len(window)).backward()\n    window = []\n" + INDENTED,
            before="window = []", after="window = []", head="for x, y in loader:",
        ), DROPPED,
    ),
    "windows drawn from an iterator": (
        LOOP.format(body=(
            "    for epoch in range(2):\n        batches = iter(loader)\n        for update in range(len(loader) // accumulation_steps):\n            for _ in range(accumulation_steps):\n"
            "                x, y = next(batches)\n                (F.mse_loss(model(x), y) / accumulation_steps).backward()\n"
            "            optimizer.step()\n            scheduler.step()\n            optimizer.zero_grad()"
        )), DROPPED,
    ),
    "one backward for the window's sum": (
        loop("total = total + F.mse_loss(model(x), y) / accumulation_steps\n" + GATE.replace(":\n", " or i + 1 == len(loader):\n") + "    total.backward()\n    total = 0\n" + INDENTED, before="total = 0"), None,
    ),
    "a while loop": (
        LOOP.format(body=(
            "    for epoch in range(2):\n        i = 0\n        batches = iter(loader)\n        while i < len(loader):\n            x, y = next(batches)\n"
            "            (F.mse_loss(model(x), y) / accumulation_steps).backward()\n            i += 1\n            if i % accumulation_steps == 0:\n"
            "                optimizer.step()\n                scheduler.step()\n                optimizer.zero_grad()"
        )), LEAKED,
    ),
    "an update in a function": (
        "def update(optimizer, scheduler):\n    optimizer.step()\n    scheduler.step()\n    optimizer.zero_grad()\n\n" + loop(BACKWARD + GATE + "    update(optimizer, scheduler)\n"), LEAKED,
    ),
    "an update in a closure": (loop(BACKWARD + GATE + "    update()\n", before="def update():\n" + INDENTED), LEAKED),
    "a schedule each time": (loop(BACKWARD + "scheduler.step()\n" + GATE + "    optimizer.step()\n    optimizer.zero_grad()\n"), LEAKED),
    "a schedule per epoch": (loop(BACKWARD + GATE + "    optimizer.step()\n    optimizer.zero_grad()\n", after="scheduler.step()"), LEAKED),
    "skipped microbatches": (loop("if i == 1:\n    continue\n" + BACKWARD + GATE + INDENTED), None),
    "an epoch that ends early": (loop("if i == 6:\n    break\n" + BACKWARD + GATE + INDENTED), None),
}


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize("variant", VARIANTS)
def test_windows_weights_and_clocks(variant, monkeypatch):
    source, windows = VARIANTS[variant]
    run = recorded(source, monkeypatch, batches_per_epoch=7 if variant == "an epoch that ends early" else 8)
    assert windows is None or run.members == windows
    read = simulated(source)
    if variant.startswith("windows"):
        read, run = renumbered(read), renumbered(run)
    agree(read, run)
