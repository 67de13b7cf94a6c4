"""Lightning and Fabric themselves against their simulation."""

import logging
import warnings

import pytest
from two_witnesses import agree, recorded, simulated

pytest.importorskip("lightning", reason="lightning is not installed (pip install 'accumlint[frameworks]')")

MODULE = """
import lightning as L

class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.network, _ = pieces()

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.mse_loss(self.network(x), y)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.0)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

trainer = L.Trainer(
    max_epochs=2, accumulate_grad_batches=3, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Module(), pieces()[1])
"""

MANUAL = MODULE.replace("accumulate_grad_batches=3, ", "").replace(
    "        self.network, _ = pieces()\n", "        self.network, _ = pieces()\n        self.automatic_optimization = False\n        self.accumulate = 3\n"
).replace(
    "        return loss\n",
    "        self.manual_backward(loss / self.accumulate)\n"
    "        if (batch_idx + 1) % self.accumulate == 0 or self.trainer.is_last_batch:\n"
    "            self.optimizers().step()\n"
    "            self.optimizers().zero_grad()\n"
    "            self.lr_schedulers().step()\n",
)

FABRIC = """
import lightning as L

def main(accumulation_steps=3):
    fabric = L.Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    model, loader = pieces()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(loader)
    for epoch in range(2):
        for index, (x, y) in enumerate(loader):
            accumulating = (index + 1) % accumulation_steps != 0 and index + 1 != len(loader)
            with fabric.no_backward_sync(model, enabled=accumulating):
                loss = F.mse_loss(model(x), y)
                fabric.backward(loss / accumulation_steps)
            if not accumulating:
                optimizer.step()
                optimizer.zero_grad()
                scheduler.step()

main()
"""

FLUSHED = [[0, 1, 2], [3, 4, 5], [6, 7], [8, 9, 10], [11, 12, 13], [14, 15]]
VARIANTS = {
    "automatic": (MODULE, FLUSHED),
    "automatic, divided twice": (MODULE.replace("return loss\n", "return loss / self.trainer.accumulate_grad_batches\n"), FLUSHED),
    "automatic, returned in a dictionary": (MODULE.replace("return loss\n", "return {'loss': loss}\n"), FLUSHED),
    "automatic, schedule per epoch": (MODULE.replace('"interval": "step"', '"interval": "epoch"'), None),
    "automatic, whole windows": (MODULE.replace("max_epochs=2", "max_epochs=2, limit_train_batches=6"), None),
    "manual": (MANUAL, FLUSHED),
    "manual, never divided": (MANUAL.replace("loss / self.accumulate", "loss"), FLUSHED),
    "manual, tail left over": (MANUAL.replace(" or self.trainer.is_last_batch", ""), [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10], [11, 12, 13]]),
    "manual, schedule each time": (MANUAL.replace("            self.lr_schedulers().step()", "        self.lr_schedulers().step()"), None),
    "fabric": (FABRIC, FLUSHED),
    "fabric, never divided": (FABRIC.replace("loss / accumulation_steps", "loss"), FLUSHED),
    "fabric, tail left over": (FABRIC.replace(" and index + 1 != len(loader)", ""), None),
    "fabric, step each time": (FABRIC.replace("            if not accumulating:\n", "            if True:\n"), [[i] for i in range(16)]),
}


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # whatever a trainer writes
    logging.getLogger("lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("variant", VARIANTS)
def test_windows_weights_and_clocks(variant, monkeypatch):
    source, windows = VARIANTS[variant]
    read, run = simulated(source), recorded(source, monkeypatch, batches_per_epoch=6 if "limit_train_batches=6" in source else 8)
    assert windows is None or run.members == windows  # what we know of the library
    agree(read, run)


@pytest.mark.parametrize(("hook", "calls"), [("on_after_backward", 16), ("on_before_optimizer_step", 6)])
def test_hooks_run_per_microbatch_or_per_update(hook, calls, monkeypatch):
    argument = ", optimizer" if "optimizer" in hook else ""
    source = MODULE.replace(
        "    def configure_optimizers", f"    def {hook}(self{argument}):\n        torch.nn.utils.clip_grad_norm_(self.parameters(), 1e9)\n\n    def configure_optimizers"
    )
    clipped = []
    clip = __import__("torch").nn.utils.clip_grad_norm_
    monkeypatch.setattr("torch.nn.utils.clip_grad_norm_", lambda *a, **k: (clipped.append(1), clip(*a, **k))[1])
    run = recorded(source, monkeypatch)
    assert len(clipped) == simulated(source).clips == calls
    assert run.members == FLUSHED


def test_sync_marks_of_fabric(monkeypatch):
    """On one device nothing is sent; what the library is asked to hold back is what the simulation marks."""
    from lightning.fabric import Fabric

    asked = []
    hold_back = Fabric.no_backward_sync

    def marked(self, module, enabled=True):
        asked.append(not enabled)
        return hold_back(self, module, enabled=enabled)

    monkeypatch.setattr(Fabric, "no_backward_sync", marked)
    recorded(FABRIC, monkeypatch)
    assert asked == simulated(FABRIC).sync
