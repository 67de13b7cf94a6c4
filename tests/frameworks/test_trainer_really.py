"""The Hugging Face Trainer itself against its simulation: what every target of a window weighs.

Sequences have 3, 6, 1, 4, 4, 4, 2, 5 valid targets, the counts with which scripts are simulated. The weight of a
target is read off the gradient that arrives at its logits: ``weight * (p - 1)`` at the label.
"""

import warnings

import pytest
from two_witnesses import simulated, torch

pytest.importorskip("transformers", reason="transformers is not installed (pip install 'accumlint[frameworks]')")
pytest.importorskip("accelerate", reason="accelerate is not installed (pip install 'accumlint[frameworks]')")

SCRIPT = """
import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, LlamaConfig, Trainer, TrainingArguments

COUNTS = [3, 6, 1, 4, 4, 4, 2, 5]

def row(count, length=10):
    ids = torch.arange(length) % 16
    labels = torch.full_like(ids, -100)
    labels[1 : count + 1] = ids[1 : count + 1]
    return {"input_ids": ids, "labels": labels}

class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1].flatten(0, 1)
        loss = F.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum") / num_items_in_batch
        return (loss, outputs) if return_outputs else loss

def main():
    config = LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
    )
    model = AutoModelForCausalLM.from_config(config)
    arguments = TrainingArguments(
        "out", per_device_train_batch_size=1, gradient_accumulation_steps=3, num_train_epochs=1, report_to=[], save_strategy="no",
        use_cpu=True, disable_tqdm=True, logging_strategy="no", learning_rate=1e-3,
    )
    Own(model=model, args=arguments, train_dataset=[row(count) for count in COUNTS]).train()

if __name__ == "__main__":
    main()
"""

SUM = 'reduction="sum") / num_items_in_batch'
HOOK = SCRIPT[SCRIPT.index("        labels = inputs.pop") : SCRIPT.index("        return (loss, outputs)")]
STOCK = SCRIPT.replace(HOOK, "        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)\n")
MEANS = SCRIPT.replace(", " + SUM, ")")
FLAG = "    def __init__(self, *args, **kwargs):\n        super().__init__(*args, **kwargs)\n        self.model_accepts_loss_kwargs = False\n\n    def compute_loss"

SEED = {"sum": [[1 / 10] * 3, [1 / 12] * 3], "mean": [[1 / 3, 1 / 6, 1], [1 / 4] * 3]}
VARIANTS = {
    "a sum over the window's count": (SCRIPT, SEED["sum"]),
    "the Trainer's own loss": (STOCK, SEED["sum"]),
    "the Trainer's own loss without the count": (STOCK.replace(", num_items_in_batch=num_items_in_batch)", ")"), None),
    "a mean of its own": (MEANS, SEED["mean"]),
    "a mean that the Trainer divides": (MEANS.replace("    def compute_loss", FLAG), [[w / 3 for w in row] for row in SEED["mean"]]),
    "divided once more": (SCRIPT.replace(SUM, SUM + " / self.args.gradient_accumulation_steps"), [[w / 3 for w in row] for row in SEED["sum"]]),
}


def recorded(source, monkeypatch):
    """Weights of the targets of each microbatch, for each step of the optimizer."""
    import transformers
    from torch.optim import optimizer

    windows, current = [], []
    original = torch.nn.functional.cross_entropy

    def cross_entropy(input, target, *args, **kwargs):
        if input.requires_grad:
            valid = target != kwargs.get("ignore_index", -100)
            picked = input.detach().float().softmax(-1)[valid, target[valid]]
            place = len(current)
            current.append(None)

            def look(gradient):
                found = gradient[valid, target[valid]] / (picked - 1)
                assert torch.allclose(found, found[:1].expand_as(found), rtol=1e-3), "targets of one microbatch weigh the same"
                current[place] = float(found[0])

            input.register_hook(look)
        return original(input, target, *args, **kwargs)

    def step(self, args, kwargs):
        windows.append(list(current))
        current.clear()

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", cross_entropy)
    monkeypatch.setattr(transformers.Trainer, "_get_train_sampler", lambda self, *a, **k: torch.utils.data.SequentialSampler(self.train_dataset))
    handle = optimizer.register_optimizer_step_pre_hook(step)
    try:
        exec(compile(source, "script.py", "exec"), {"__name__": "__main__"})
    finally:
        handle.remove()
    return windows


@pytest.fixture(autouse=True)
def quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # whatever the Trainer writes
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("variant", VARIANTS)
def test_windows_and_weights(variant, monkeypatch):
    source, known = VARIANTS[variant]
    run = recorded(source, monkeypatch)
    assert [len(window) for window in run] == [3, 3, 2]  # the Trainer steps on the rest, too
    for ours, theirs in zip(known or (), run):
        assert theirs == pytest.approx(ours, rel=1e-3)  # what we know of the library
    read = simulated(source, header="")
    assert read.members[:2] == [[0, 1, 2], [3, 4, 5]]
    for ours, theirs in zip(read.windows[:2], run):
        assert [float(ours[m]) for m in sorted(ours)] == pytest.approx(theirs, rel=1e-3)


def test_a_loss_function_is_given_the_count_of_the_window(monkeypatch):
    function = (
        "def own_loss(outputs, labels, num_items_in_batch=None):\n"
        "    logits = outputs.logits[:, :-1].flatten(0, 1)\n"
        '    return F.cross_entropy(logits, labels[:, 1:].flatten(), ignore_index=-100, reduction="sum") / num_items_in_batch\n\n'
    )
    start, stop = SCRIPT.index("class Own"), SCRIPT.index("def main")
    source = SCRIPT[:start] + function + SCRIPT[stop:].replace("    Own(model=model, ", "    Trainer(model=model, compute_loss_func=own_loss, ")
    source = source.replace("    Trainer(model=model, ", "    trainer = Trainer(model=model, ").replace("COUNTS]).train()", "COUNTS])\n    trainer.train()")
    run = recorded(source, monkeypatch)
    assert run[0] == pytest.approx([1 / 10] * 3, rel=1e-3)
    read = simulated(source, header="")
    assert [float(w) for w in read.windows[0].values()] == pytest.approx(run[0], rel=1e-3)
