import pytest

from accumlint.static.sieve import may_accumulate


@pytest.mark.parametrize(
    "source",
    [
        b"loss.backward()",
        b"accelerator.backward(loss)",
        b"engine.train_batch(data)",
        b"def training_step(self, batch, index): pass",
        b"def compute_loss(self, model, inputs): pass",
        b"import torch\nloss_scaler(loss, optimizer)",
        b"import torch\nparser.add_argument('--accum-iter')",
        b"args = TrainingArguments(**options)",
        b"from lightning import Trainer\nTrainer(accumulate_grad_batches=4)",
        b"optim_wrapper = dict(accumulative_counts=4)",
        b"\xff\xfe not even text, but backward",
    ],
)
def test_what_could_accumulate_stays(source):
    assert may_accumulate(source)


@pytest.mark.parametrize(
    "source", [b"", b"print('hello')", b"import torch\nx = torch.ones(3)", b"from itertools import accumulate"]
)
def test_what_cannot_goes(source):
    assert not may_accumulate(source)
