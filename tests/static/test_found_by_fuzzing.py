"""The smallest loops on which generated ones once showed a fault of the engine."""

from engine_scripts import run

from accumlint.contract.events import Kind
from accumlint.contract.windows import ledgers
from accumlint.static.engine import EngineSettings, Project
from accumlint.static.explore import Explorer


def said(source: str) -> set[tuple[str, int]]:
    return {(f.rule, f.span.line) for f in run(source) if f.severity.label != "advice"}


def rules(source: str) -> set[str]:
    return {rule for rule, _ in said(source)}


DIVIDED = """
import torch
import torch.nn.functional as F


def fit(model, loader, optimizer, accum_steps):
    usable = len(loader) // accum_steps * accum_steps
    for i, (x, y) in enumerate(loader):
        if i == usable:
            break
        loss = F.mse_loss(model(x), y) / accum_steps
        loss.backward()
        if (i + 1) % accum_steps == 0:
            for p in model.parameters():
                p.grad /= accum_steps
            optimizer.step()
            optimizer.zero_grad()


def main(model, loader, accum_steps):
    fit(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), accum_steps)


if __name__ == "__main__":
    main(make_model(), make_loader(), 4)
"""


def test_gradients_are_scaled_where_the_loop_stands_not_where_it_is_called():
    assert said(DIVIDED) == {("ACC103", 15)}


NEGATED = """
import torch
import torch.nn.functional as F


def main(model, loader, optimizer, accum_steps):
    for i, (x, y) in enumerate(loader):
        (F.mse_loss(model(x), y) / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            continue
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(make_model(), make_loader(), make_optimizer(), 4)
"""


def test_what_follows_a_continue_is_decided_there_not_by_the_condition_around_the_program():
    assert said(NEGATED) == {("ACC207", 9)}
    assert said(NEGATED.replace("(i + 1) %", "i %").replace("== 0", "!= 0")) == {("ACC206", 9)}


BRANCH = """
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, windows, optimizer):
    model = DDP(model)
    for window in windows:
        for i, (x, y) in enumerate(window):
            {clear}
            if i + 1 == len(window):
                (F.mse_loss(model(x), y) / len(window)).backward()
            else:
                with model.no_sync():
                    (F.mse_loss(model(x), y) / len(window)).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_two_arms_of_one_condition_are_one_backward():
    assert said(BRANCH.format(clear="pass")) == set()
    assert said(BRANCH.format(clear="optimizer.zero_grad()")) == {("ACC204", 11)}


AVERAGED = """
import torch
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel


def train(model, loader, optimizer, accum_steps):
    slow = AveragedModel(model)
    usable = len(loader) // accum_steps * accum_steps
    for i, (x, y) in enumerate(loader):
        if i == usable:
            break
        (F.mse_loss(model(x), y) / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            {inside}
        {outside}
"""


def test_an_averaged_model_is_an_average_whatever_it_is_called():
    assert said(AVERAGED.format(inside="slow.update_parameters(model)", outside="pass")) == set()
    assert said(AVERAGED.format(inside="pass", outside="slow.update_parameters(model)")) == {("ACC703", 18)}


CHUNKS = """
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer, accum_steps, epochs):
    model = DDP(model)
    for epoch in range(epochs):
        data = list(loader)
        for start in range(0, len(data), accum_steps):
            window = data[start : start + accum_steps]
            for j, (x, y) in enumerate(window):
                model.require_backward_grad_sync = j + 1 == len(window)
                (F.mse_loss(model(x), y) / {size}).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_slices_of_a_list_of_all_batches_are_windows():
    assert said(CHUNKS.format(size="len(window)")) == set()
    assert said(CHUNKS.format(size="len(window)").replace("j + 1 == len(window)", "False")) == {("ACC303", 14)}


LISTS = """
import torch
import torch.nn.functional as F
from itertools import islice


def train(model, loader, optimizer, accum_steps, epochs):
    for epoch in range(epochs):
        batches = iter(loader)
        while window := list(islice(batches, accum_steps)):
            for x, y in window:
                (F.mse_loss(model(x), y) / {size}).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_the_last_list_of_batches_may_be_short():
    assert said(LISTS.format(size="len(window)")) == set()
    assert said(LISTS.format(size="accum_steps")) == {("ACC503", 13)}


STEPPED = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps, epochs):
    for epoch in range(epochs):
        batches = iter(loader)
        while window := list(islice(batches, accum_steps)):
            for x, y in window:
                (F.mse_loss(model(x), y) / len(window)).backward()
                optimizer.step()
            optimizer.zero_grad()
"""


def test_lists_of_batches_with_a_step_for_each_are_walked_to_the_end_of_the_epoch():
    """The loop over the lists is neither epochs nor microbatches: it was walked twice, as if it were epochs."""
    assert said(STEPPED) == {("ACC201", 12)}
    module = Project(".").parse(STEPPED.encode(), "script.py", "script")
    ((trace,),) = ([*root.traces] for root in Explorer(module, EngineSettings().names()).explore())
    assert sum(event.kind is Kind.BACKWARD for event in trace.events) == 2 * 8


REST = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps, epochs):
    for epoch in range(epochs):
        window = []
        for x, y in loader:
            window.append((x, y))
            if len(window) == accum_steps:
                for x, y in window:
                    (F.mse_loss(model(x), y) / len(window)).backward()
                optimizer.step()
                optimizer.zero_grad()
                window.clear()
        if {left}:
            for x, y in window:
                (F.mse_loss(model(x), y) / {size}).backward()
            optimizer.step()
            optimizer.zero_grad()
"""


def test_the_rest_of_a_list_is_a_window_of_its_own():
    for left in ("window", "len(window) > 0"):
        assert said(REST.format(left=left, size="len(window)")) == set()
        assert said(REST.format(left=left, size="accum_steps")) == {("ACC503", 17)}


BESIDE = """
import torch
import torch.nn.functional as F
from torch import nn


def train(loader, accum_steps, epochs):
    model, critic = nn.Linear(4, 1), nn.Linear(4, 1)
    optimizer, other = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.SGD(critic.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler()
    for epoch in range(epochs):
        usable = len(loader) // accum_steps * accum_steps
        for i, (x, y) in enumerate(loader):
            if i == usable:
                break
            scaler.scale(F.mse_loss(model(x), y){divided}).backward()
            (critic(x.detach()).pow(2).mean() / accum_steps).backward()
            if (i + 1) % accum_steps == 0:
                {unscale}
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                {clear}
                other.step()
                other.zero_grad()
"""
RIGHT = {"divided": " / accum_steps", "unscale": "scaler.unscale_(optimizer)", "clear": "optimizer.zero_grad()"}


def test_two_optimizers_that_share_no_backward_are_judged_one_by_one():
    assert said(BESIDE.format(**RIGHT)) == set()
    assert rules(BESIDE.format(**{**RIGHT, "divided": ""})) == {"ACC102"}
    assert rules(BESIDE.format(**{**RIGHT, "unscale": "pass"})) == {"ACC402"}
    assert rules(BESIDE.format(**{**RIGHT, "clear": "pass"})) == {"ACC205"}


GUARDED = """
import torch


def train(model, loader, optimizer, accum_steps):
    batches = iter(loader)
    for _ in range(len(loader) // accum_steps):
        window = [next(batches) for _ in range(accum_steps)]
        total = sum({each} for _, labels in window)
        for ids, labels in window:
            mask = labels != -100
            each = torch.nn.functional.cross_entropy(model(ids).transpose(1, 2), labels.clamp(min=0), reduction="none")
            loss = (each * mask).sum() / mask.sum().clamp(min=1)
            loss = loss * (labels != -100).sum() / total
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_guarded_mean_that_is_weighted_with_its_own_count_adds_no_target():
    assert said(GUARDED.format(each="(labels != -100).sum()")) == set()
    assert rules(GUARDED.format(each="(labels != -100).sum().clamp(min=1)")) == {"ACC105"}


FILLED = """
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def main(model, data, optimizer, accum_steps, epochs):
    loader = DataLoader(data, 8)
    for epoch in range(epochs):
        window = []
        for x, y in loader:
            window.append((x, y))
            if len(window) == accum_steps:
                for x, y in window:
                    (F.mse_loss(model(x), y) / accum_steps).backward()
                    {inside}
                {behind}
                optimizer.zero_grad()
                window = []
"""


def test_a_loop_over_a_loader_is_walked_until_its_list_is_full():
    assert said(FILLED.format(inside="pass", behind="optimizer.step()")) == set()
    assert said(FILLED.format(inside="optimizer.step()", behind="pass")) == {("ACC201", 16)}


PAST = """
import lightning as L
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def main(accum_steps, epochs, loader):
    fabric = L.Fabric(devices=2, strategy="ddp")
    fabric.launch()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {wrapped}
    for epoch in range(epochs):
        for i in range(len(loader) // accum_steps * accum_steps):
            x, y = next(loader)
            loss = F.mse_loss({called}(x), y) / accum_steps
            {backward}
            if (i + 1) % accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_forward_past_its_wrapper_is_never_reduced():
    """Measured with two ranks: no reduction at all, and each rank steps with its own gradients."""
    fabric = {"wrapped": "model, optimizer = fabric.setup(model, optimizer)", "backward": "fabric.backward(loss)"}
    torch = {"wrapped": "model = DDP(model)", "backward": "loss.backward()"}
    for spelled in (fabric, torch):
        assert said(PAST.format(called="model", **spelled)) == set()
        assert ("ACC303", 17) in said(PAST.format(called="model.module", **spelled))
    alone = PAST.replace("devices=2", "devices=1")
    assert said(alone.format(called="model.module", **fabric)) == set()


PREPARED = """
import math

import torch
import torch.nn.functional as F
from accelerate import Accelerator


def main(model, data, accum_steps, epochs):
    accelerator = Accelerator(gradient_accumulation_steps=accum_steps)
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    {first}
    total = math.ceil(len(loader) / accum_steps) * epochs
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max={length})
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.mse_loss(model(x), y))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
"""


def test_a_prepared_schedule_is_not_to_be_multiplied_by_k():
    """It moves once per update and rank. Updates times K are right for K ranks only: what some official examples do."""
    for first in ("", "loader = accelerator.prepare(loader)"):
        assert "ACC801" not in rules(PREPARED.format(first=first, length="total"))
        assert "ACC801" not in rules(PREPARED.format(first=first, length="total * accelerator.num_processes"))
    assert ("ACC801", 15) in said(PREPARED.format(first="", length="total * accum_steps"))


OWN_LOSS = """
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments


class Own(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None, **kwargs):
        {loss}
        return (loss, outputs) if return_outputs else loss


model = AutoModelForCausalLM.from_pretrained("llama")
Own(model=model, args=TrainingArguments("out", gradient_accumulation_steps=4), train_dataset=rows()).train()
"""
OWN = 'outputs = model(**inputs); loss = F.cross_entropy(outputs.logits.flatten(0, 1), inputs["labels"].flatten(), ignore_index=-100{})'


def test_a_mean_of_its_own_is_summed_by_the_trainer_whatever_its_counts():
    """Measured: K times the gradient. It was only told where all microbatches have as many targets."""
    super_ = "loss, outputs = super().compute_loss(model, inputs, return_outputs=True{})"
    for wrong in (OWN.format(""), super_.format("")):
        assert rules(OWN_LOSS.format(loss=wrong)) == {"ACC102"}
    right = (OWN.format(', reduction="sum") / num_items_in_batch #'), super_.format(", num_items_in_batch=num_items_in_batch"), super_.format(", **kwargs"))
    for loss in right:
        assert rules(OWN_LOSS.format(loss=loss)) == set()


def test_what_the_trainer_counts_is_divided_once():
    loss = "loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch); loss = loss / self.args.gradient_accumulation_steps"
    assert rules(OWN_LOSS.format(loss=loss)) == {"ACC103"}


CARRIED = """
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin


def main(model, data, accum_steps, epochs):
    accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accum_steps{option}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=8))
    for epoch in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.mse_loss(model(x), y))
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_window_that_the_end_of_a_loader_does_not_end_is_full():
    for option, sizes in ((", sync_with_dataloader=False", [3] * 5), ("", [3, 3, 2] * 2)):
        source = CARRIED.format(option=option)
        assert said(source) == set() or option == ""  # the short window that is divided by K is the framework's
        module = Project(".").parse(source.encode(), "script.py", "script")
        ((trace,),) = ([*root.traces] for root in Explorer(module, EngineSettings().names()).explore())
        (ledger,) = ledgers(trace)
        assert ledger.sizes == sizes
