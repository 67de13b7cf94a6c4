"""Ways of writing a right loop that were once taken for wrong, each with the fault that must still be seen beside it."""

import pytest
from engine_scripts import run

LOOP = """
import torch
import torch.nn.functional as F


def train(model, {loader}, optimizer, scheduler, accum_steps, epochs):
    for epoch in range(epochs):
        for step, (x, y) in enumerate({loader}):
            loss = F.mse_loss(model(x), y) / accum_steps
            loss.backward()
            if (step + 1) % accum_steps == 0 or step == len({loader}) - 1:
                optimizer.step()
                optimizer.zero_grad()
"""


def errors(source: str) -> set[str]:
    return {f.rule for f in run(source) if f.severity.label == "error"}


def said(source: str) -> set[str]:
    return {f.rule for f in run(source) if f.severity.label != "advice"}


@pytest.mark.parametrize("name", ["loader", "train_loader", "train_dataloader", "training_loader", "dl", "train_dl"])
def test_a_loader_by_any_name_has_a_last_batch(name):
    assert said(LOOP.format(loader=name)) == {"ACC503"}
    assert said(LOOP.format(loader=name).replace(f" or step == len({name}) - 1", "")) == {"ACC502"}


COUNTED = """
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def main(model, loader, optimizer, accumulation, epochs, world):
    torch.distributed.init_process_group("nccl")
    model = DDP(model)
    for epoch in range(epochs):
        accumulated_batches = 0
        for x, y in loader:
            if accumulated_batches + 1 < accumulation:
                context = model.no_sync()
            else:
                context = suppress()
            with context:
                loss = F.mse_loss(model(x), y) / accumulation
                accumulated_batches += 1
                loss.backward()
            if accumulated_batches % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
                accumulated_batches = 0
"""


def test_a_counter_named_like_a_window_counts_microbatches():
    assert errors(COUNTED) == set()
    assert errors(COUNTED.replace("accumulated_batches + 1 <", "accumulated_batches <")) == {"ACC303"}


def test_the_optimizer_that_an_unseen_wrapper_hands_back_is_the_one_that_was_prepared():
    source = """
from accelerate import Accelerator


def main(model, loader, optimizer, tune):
    accelerator = Accelerator(gradient_accumulation_steps=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model, optimizer = tune(model, optimizer=optimizer)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(batch).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""
    assert errors(source) == set()
    assert "ACC201" in errors(source.replace("accelerator.prepare(model, optimizer, loader)", "accelerator.prepare(model, loader), optimizer"). replace("model, optimizer, loader = accelerator.prepare(model, loader), optimizer", "model, loader = accelerator.prepare(model, loader)"))


SCHEDULE = LOOP.format(loader="loader").replace("                optimizer.step()\n", "                optimizer.step()\n                for _ in range(accum_steps):\n                    scheduler.step()\n")


def test_a_scheduler_that_catches_up_at_the_boundary_is_meant_to():
    assert "ACC202" not in errors(SCHEDULE)
    assert "ACC202" in errors(LOOP.format(loader="loader").replace("            loss.backward()\n", "            loss.backward()\n            scheduler.step()\n"))


def test_a_schedule_of_as_many_microbatches_may_move_with_them():
    source = """
import torch
from transformers import get_scheduler


def main(model, loader, optimizer, args):
    scheduler = get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=args.max_train_steps{times})
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            loss = model(batch).mean() / args.gradient_accumulation_steps
            loss.backward()
            scheduler.step()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""
    assert "ACC202" not in errors(source.format(times=" * args.gradient_accumulation_steps"))
    assert "ACC202" in errors(source.format(times=""))


def test_a_scheduler_that_every_call_makes_anew_is_judged_while_it_lives():
    source = """
import torch


def main(model, loader, optimizer, args):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_updates)
    for i, batch in enumerate(loader):
        (model(batch).mean() / args.accum_steps).backward()
        {early}if (i + 1) % args.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            {late}
"""
    assert "ACC202" in errors(source.format(early="scheduler.step()\n        ", late=""))
    assert "ACC202" not in errors(source.format(early="", late="scheduler.step()"))


MASKED = """
import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps):
    for i, batch in enumerate(loader):
        per_token = F.cross_entropy(model(batch["ids"]).transpose(1, 2), batch["labels"], reduction="none")
        loss = (per_token * batch["mask"]).sum() / (batch["mask"].sum(){guard})
        loss = loss / accum_steps{zero}
        loss.backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_tiny_number_beside_a_count_is_no_target():
    for guard in ("", " + 1e-8"):
        assert errors(MASKED.format(guard=guard, zero="")) >= {"ACC101"}


def test_a_loss_times_zero_says_nothing_of_weights():
    assert errors(MASKED.format(guard=" + 1e-8", zero=" * 0.0")) == set()


def test_a_mask_that_a_model_is_shown_selects_no_targets():
    source = """
import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps):
    for i, batch in enumerate(loader):
        picture = model(sample=batch["noisy"], paint_mask=batch["paint_mask"])
        loss = F.mse_loss(picture, batch["noise"]) / accum_steps
        loss.backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    assert errors(source) == set()


def test_the_window_of_a_stage_is_a_window():
    source = """
class Trainer:
    def __init__(self, model, optimizer, accum_count=[1], accum_steps_at=[0]):
        self.model, self.optimizer = model, optimizer
        self.accum_count_l, self.accum_steps_at = accum_count, accum_steps_at
        self.accum_count = accum_count[0]

    def batches(self, loader):
        held = []
        for batch in loader:
            held.append(batch)
            if len(held) == self.accum_count:
                yield held
                held = []

    def train(self, loader):
        for held in self.batches(loader):
            if self.accum_count > 1:
                self.optimizer.zero_grad()
            for batch in held:
                if self.accum_count == 1:
                    self.optimizer.zero_grad()
                loss = self.model(batch).mean() / len(held)
                loss.backward()
            self.optimizer.step()
"""
    assert errors(source) == set()
    assert "ACC204" in errors(source.replace("if self.accum_count == 1:", "if True:"))


def test_an_update_of_the_log_is_no_update_of_the_weights():
    source = LOOP.format(loader="loader").replace("            loss.backward()\n", "            loss.backward()\n            if (step + 1) % loss_update_steps == 0:\n                print(loss)\n")
    assert "ACC701" not in errors(source)


def test_a_resumed_epoch_leaves_epochs_to_train():
    source = LOOP.format(loader="loader").replace("    for epoch in range(epochs):", '    start = torch.load("last.pt")["epoch"] + 1\n    for epoch in range(start, epochs):')
    assert "ACC503" in said(source)


THROWN_AWAY = """
import torch.nn.functional as F


def noise(model, x, y):
    F.cross_entropy(model(x), y).backward()
    return sum(p.grad.pow(2).sum() for p in model.parameters()).item()


def train(model, loader, optimizer, accum_steps, every):
    x, y = next(iter(loader))
    F.cross_entropy(model(x), y).backward()
    optimizer.zero_grad(set_to_none=True)
    whole = len(loader) // accum_steps * accum_steps
    for i, (x, y) in enumerate(loader):
        if i >= whole:
            break
        if i % accum_steps == 0 and i % every == 0:
            print(noise(model, x, y))
            optimizer.zero_grad()
        (F.cross_entropy(model(x), y) / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
"""


def test_a_backward_that_warms_up_or_probes_may_be_thrown_away():
    assert errors(THROWN_AWAY) == set()
    assert errors(THROWN_AWAY.replace("        (F.cross", "        optimizer.zero_grad()\n        (F.cross")) == {"ACC204"}


def test_a_second_pass_over_the_window_starts_from_nothing():
    source = """
import torch
import torch.nn.functional as F


def ascend(model, windows, optimizer, accum_steps, radius):
    for window in windows:
        for x, y in window:
            (F.cross_entropy(model(x), y) / accum_steps).backward()
        with torch.no_grad():
            moved = [radius * p.grad for p in model.parameters()]
            for p, m in zip(model.parameters(), moved):
                p.add_(m)
        optimizer.zero_grad()
        for x, y in window:
            (F.cross_entropy(model(x), y) / accum_steps).backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    assert "ACC204" not in errors(source)


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ("zip(x.chunk(4), y.chunk(4))", "(y != -100).sum()"),
        ("zip(x.split(32, 1), y.split(32, 1))", "y.numel()"),
        ("((x[:, s : s + 32], y[:, s : s + 32]) for s in range(0, x.size(1), 32))", "y.numel()"),
    ],
)
def test_pieces_of_a_batch_that_was_counted_as_a_whole(pieces, whole):
    source = f"""
import torch.nn.functional as F


def train(model, loader, optimizer):
    for x, y in loader:
        total = {whole}
        optimizer.zero_grad()
        for xs, ys in {pieces}:
            loss = F.cross_entropy(model(xs).flatten(0, 1), ys.flatten(), ignore_index=-100, reduction="sum") / total
            loss.backward()
        optimizer.step()
"""
    assert errors(source) == set()


def test_optimizers_that_lightning_toggles_do_not_see_each_other():
    source = """
import lightning as L
import torch


class Gan(L.LightningModule):
    automatic_optimization = False

    def training_step(self, batch, i):
        first, second = self.optimizers()
        last = (i + 1) % 4 == 0
        self.toggle_optimizer(second)
        self.manual_backward(self.d(batch).mean() / 4)
        if last:
            second.step()
            second.zero_grad()
        self.untoggle_optimizer(second)
        self.toggle_optimizer(first)
        self.manual_backward(-self.d(self.g(batch)).mean() / 4)
        if last:
            first.step()
            first.zero_grad()
        self.untoggle_optimizer(first)

    def configure_optimizers(self):
        return torch.optim.Adam(self.g.parameters()), torch.optim.Adam(self.d.parameters())
"""
    assert errors(source) == set()


COLLECTED = """
import torch


class Trainer:
    def __init__(self, model, optim, grad_accum_count=1, n_gpu=1, gpu_rank=1, report=None):
        self.model = model
        self.optim = optim
        self.grad_accum_count = grad_accum_count
        self.n_gpu = n_gpu
        self.gpu_rank = gpu_rank
        self.loss = torch.nn.CrossEntropyLoss(ignore_index=PAD, reduction="sum")

    def train(self, train_iter_fct, train_steps):
        step, accum, normalization, batches = 1, 0, 0, []
        while step <= train_steps:
            for i, batch in enumerate(train_iter_fct()):
                if self.n_gpu == 0 or i % self.n_gpu == self.gpu_rank:
                    batches.append(batch)
                    normalization += (batch.tgt[1:] != PAD).sum()
                    accum += 1
                    if accum == self.grad_accum_count:
                        self.accumulate(batches, normalization)
                        step, accum, normalization, batches = step + 1, 0, 0, []
                        if step > train_steps:
                            break

    def accumulate(self, batches, normalization):
        if self.grad_accum_count > 1:
            self.model.zero_grad()
        for batch in batches:
            if self.grad_accum_count == 1:
                self.model.zero_grad()
            scores = self.model(batch.src, batch.tgt[:-1])
            loss = self.loss(scores.flatten(0, 1), batch.tgt[1:].flatten())
            loss.div(normalization).backward()
            if self.grad_accum_count == 1:
                self.optim.step()
        if self.grad_accum_count > 1:
            self.optim.step()
"""


def test_a_window_that_is_collected_before_it_is_worked_off():
    assert errors(COLLECTED) == set()
    own = COLLECTED.replace("loss.div(normalization)", "loss.div((batch.tgt[1:] != PAD).sum()).div(self.grad_accum_count)")
    assert errors(own) == {"ACC101"}
    inner = COLLECTED.replace("            if self.grad_accum_count == 1:\n                self.optim.step()\n        if self.grad_accum_count > 1:\n            self.optim.step()", "            self.optim.step()")
    assert errors(inner) == {"ACC201"}


LAYERED = """
import torch
from torch import nn
from torch.nn import CrossEntropyLoss


class Classifier(nn.Module):
    def __init__(self, encoder, hidden):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(hidden, 2)

    def forward(self, tokens, labels):
        padding = tokens.ne(1)
        states = self.encoder.embeddings(tokens) * padding[:, :, None]
        logits = self.head(self.encoder(states)[:, 0])
        return CrossEntropyLoss()(logits, labels)


def train(encoder, loader, accum_steps):
    model = Classifier(encoder, 768)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    usable = len(loader) // accum_steps * accum_steps
    for step, (tokens, labels) in enumerate(loader):
        if step == usable:
            break
        loss = model(tokens, labels) / accum_steps
        loss.backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step(loss)
"""


def test_a_mask_inside_the_layers_selects_no_targets():
    assert errors(LAYERED) == set()
    assert errors(LAYERED.replace("(logits, labels)", "(logits[padding[:, 0]], labels[padding[:, 0]])")) == {"ACC101"}


def test_a_scheduler_that_follows_a_metric_keeps_its_rate_in_the_optimizer():
    saving = LAYERED + '    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")\n'
    assert errors(saving) == set()
    assert errors(saving.replace("ReduceLROnPlateau(optimizer)", "CosineAnnealingLR(optimizer, 900)").replace("step(loss)", "step()")) == {"ACC704"}
    assert errors(saving.replace("ReduceLROnPlateau(optimizer)", "CosineAnnealingLR(optimizer, 900)").replace("step(loss)", "step(step)")) == set()


def test_no_sync_of_a_model_whose_class_is_shown():
    silent = LAYERED.replace("        loss = model(tokens, labels) / accum_steps\n        loss.backward()", (
        "        with model.no_sync() if (step + 1) % accum_steps else suppress():\n"
        "            loss = model(tokens, labels) / accum_steps\n"
        "            loss.backward()"
    ))
    assert said(silent) == set()


TWO_PRECISIONS = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, args):
    scaler = torch.amp.GradScaler()
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y) / args.accum_steps
            if args.fp16:
                scaler.scale(loss).backward()
                if step % args.accum_steps == 0:
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
            else:
                loss.backward()
                if step % args.accum_steps == 0:
                    optimizer.step()
                    optimizer.zero_grad()
"""


def test_both_branches_of_a_switch_are_reported():
    assert [(f.rule, f.span.line) for f in run(TWO_PRECISIONS) if f.rule == "ACC206"] == [("ACC206", 13), ("ACC206", 19)]


TASK = """
import contextlib
import enum

import torch
import torch.nn.functional as F


class Amp(enum.Enum):
    APEX = enum.auto()
    PYTORCH = enum.auto()


class Task:
    def __init__(self):
        self.model = None
        self.optimizer = None
        self.period = 1
        self.clip = None
        self.amp = None
        self.scaler = None
        self.seen = 0

    def prepare(self, model, optimizer, period, clip, amp):
        self.model, self.optimizer, self.period, self.clip, self.amp = model, optimizer, period, clip, amp
        if amp == Amp.PYTORCH:
            self.scaler = torch.cuda.amp.GradScaler()

    def train_step(self):
        sample = next(self.data_iterator)
        self.run(F.mse_loss(self.model(sample["input"]), sample["target"]))
        self.seen += 1

    def run(self, loss):
        if self.seen % self.period == 0:
            self.optimizer.zero_grad()
        if self.amp == Amp.APEX:
            with apex.amp.scale_loss(loss, self.optimizer) as scaled:
                scaled.backward()
        elif self.amp == Amp.PYTORCH:
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        if self.seen % self.period == self.period - 1:
            self.rescale(1 / self.period)
            if self.amp == Amp.PYTORCH:
                self.scaler.unscale_(self.optimizer)
            if self.clip is not None:
                self.bound(self.clip)
            if self.amp == Amp.PYTORCH:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()

    def rescale(self, factor):
        for p in self.model.parameters():
            p.grad.mul_(factor)

    def bound(self, limit):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)
"""


def test_a_task_whose_period_is_only_reserved_by_the_constructor():
    assert errors(TASK) == set()
    early = TASK.replace("                self.scaler.unscale_(self.optimizer)\n            if self.clip", "                pass\n            if self.clip")
    found = [f for f in run(early) if f.severity.label == "error"]
    assert [f.rule for f in found] == ["ACC402"]
    assert early.splitlines()[found[0].span.line - 1].strip() == "self.bound(self.clip)"  # the call decides, not the helper


STOPPING = """
class Trainer:
    def __init__(self, fabric, grad_accum_steps=1, max_steps=None):
        self.fabric = fabric
        self.grad_accum_steps = grad_accum_steps
        self.max_steps = max_steps
        self.should_stop = False
        self.updates = 0

    def fit(self, model, optimizer, loader):
        model, optimizer = self.fabric.setup(model, optimizer)
        loader = self.fabric.setup_dataloaders(loader)
        while not self.should_stop:
            self.epoch(model, optimizer, loader)
            if self.max_steps is not None and self.updates >= self.max_steps:
                self.should_stop = True

    def epoch(self, model, optimizer, loader):
        for index, batch in enumerate(loader):
            if self.should_stop:
                break
            self.fabric.backward(model(batch).loss / self.grad_accum_steps)
            if {test} % self.grad_accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
                self.updates += 1
"""


def test_a_switch_that_stops_the_training_is_not_thrown_from_the_start():
    assert errors(STOPPING.format(test="(index + 1)")) == set()
    assert errors(STOPPING.format(test="self.updates")) == {"ACC213"}


RECIPE = """
from torchtune import config


class Recipe:
    def __init__(self, cfg):
        self.accumulate = cfg.gradient_accumulation_steps
        self.fused = cfg.fused

    def setup(self, cfg):
        self.model = config.instantiate(cfg.model)
        self.optimizer = config.instantiate(cfg.optimizer, self.model.parameters())
        self.loss = config.instantiate(cfg.loss)
        self.loader = config.instantiate(cfg.loader, ignore_idx={ignored})

    def train(self):
        for index, batch in enumerate(self.loader):
            labels = batch.pop("labels")[..., 1:]
            loss = self.loss(self.model(**batch), labels)
            loss = loss / self.accumulate
            loss.backward()
            if (index + 1) % self.accumulate == 0:
                if not self.fused:
                    self.optimizer.step()
                    self.optimizer.zero_grad()


def main(cfg):
    recipe = Recipe(cfg)
    recipe.setup(cfg)
    recipe.train()
"""


def test_a_loss_that_is_asked_what_it_ignores_ignores_labels():
    assert errors(RECIPE.format(ignored="0")) == set()
    (found,) = [f for f in run(RECIPE.format(ignored="self.loss.ignore_index")) if f.severity.label == "error"]
    assert (found.rule, found.confidence.label) == ("ACC101", "possible")  # that it is a mean rests on convention


def test_the_test_that_counts_is_named_and_not_the_switch_inside():
    (found,) = [f for f in run(RECIPE.format(ignored="0")) if f.rule == "ACC502"]
    assert "(index + 1) % self.accumulate" in RECIPE.splitlines()[found.span.line - 1]


def test_a_backward_on_both_sides_of_the_test_that_counts():
    source = STOPPING.format(test="(index + 1)").replace(
        "            self.fabric.backward(model(batch).loss / self.grad_accum_steps)\n            if (index + 1) %", "            ready = self.updates %"
    ).replace("== 0:\n                optimizer.step()", (
        "== 0\n            if ready:\n                self.fabric.backward(model(batch).loss / self.grad_accum_steps)\n                optimizer.step()"
    )) + "            else:\n                self.fabric.backward(model(batch).loss / self.grad_accum_steps)\n"
    (found,) = [f for f in run(source) if f.severity.label == "error"]
    assert found.rule == "ACC213" and "ready = self.updates" in source.splitlines()[found.span.line - 1]


OURS = """
import torch
from ourlab import Steepest, schedule_for


def train(model, loader):
    mover = Steepest(model.parameters(), lr=1e-3)
    pace = schedule_for(mover, updates=1000)
    for index, (inputs, targets) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(inputs), targets) / 4
        loss.backward()
        if (index + 1) % 4 == 0:
            mover.step()
            mover.zero_grad()
            pace.step()
"""


def test_what_is_stepped_and_cleared_is_an_optimizer_whatever_it_is_called():
    assert errors(OURS) == set()
    assert errors(OURS.replace("            mover.zero_grad()\n", "").replace("        loss.backward", "        mover.zero_grad()\n        loss.backward")) == {"ACC204"}


AGREED = """
from accelerate import Accelerator


class Patience:
    def __init__(self, limit):
        self.best, self.waited, self.limit = float("inf"), 0, limit

    def ended(self, loss):
        if self.best - loss >= 0.01:
            self.best, self.waited = loss, 0
        else:
            self.waited += 1
        return self.waited >= self.limit


def train(model, optimizer, loader, epochs, accumulation_steps):
    accelerator = Accelerator()
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    patience = Patience(5)
    for epoch in range(epochs):
        for step, batch in enumerate(loader):
            loss = model(**batch).loss / accumulation_steps
            accelerator.backward(loss)
            if (step + 1) % accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
            if patience.ended(loss.item()):
                accelerator.set_trigger()
            if accelerator.check_trigger():
                break
"""


def test_an_end_that_the_ranks_agree_on():
    assert errors(AGREED) == set()
    alone = AGREED.replace("patience.ended(loss.item())", "loss.item() < 0.1").replace("accelerator.set_trigger()\n            if accelerator.check_trigger():\n                break", "break")
    assert errors(alone) == {"ACC601"}


PLUGIN = """
from contextlib import nullcontext

from accelerate import Accelerator


def train(model, optimizer, loader, args):
    accelerator = Accelerator(gradient_accumulation_steps=args.gradient_accumulation_steps)
    managed = accelerator.state.deepspeed_plugin is not None
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    window = nullcontext if managed else accelerator.accumulate
    for batch in loader:
        with window(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_plugin_that_is_there_owns_the_window():
    assert errors(PLUGIN) == set()
    assert errors(PLUGIN.replace("managed = accelerator.state.deepspeed_plugin is not None", "managed = args.plain")) == {"ACC201"}


WRAPPED = """
import torch
import torch.nn.functional as F


class Wrapper(torch.nn.Module):
    def __init__(self, net, ignore_index=-100):
        super().__init__()
        self.net = net
        self.ignore_index = ignore_index

    def forward(self, x):
        target = x[:, 1:]
        losses = F.cross_entropy(self.net(x[:, :-1]).transpose(1, 2), target, ignore_index=self.ignore_index, reduction="none")
        keep = target != self.ignore_index
        return (losses * keep).sum() / keep.sum()


def train(net, texts, optimizer, accumulate_every, updates):
    model = Wrapper(net)
    for _ in range(updates):
        for _ in range(accumulate_every):
            loss = model(next(texts))
            (loss / accumulate_every).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_default_that_is_only_passed_on_ignores_nothing():
    assert errors(WRAPPED) == set()
    padded = WRAPPED.replace("next(texts)", "next(texts).masked_fill(padding, -100)")
    assert "ACC101" in errors(padded)


LATE = """
import torch.nn.functional as F


def train(model, loader, optimizer, evaluate, accum_steps, epochs):
    seen, updates = 0, 0
    for epoch in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y) / accum_steps
            loss.backward()
            seen += 1
            if (seen + 1) % accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
        evaluate(model)
        seen = 0  # set back
"""


def test_a_counter_that_is_set_back_behind_the_loop_leaks_although_windows_begin_late():
    found = {f.rule: f for f in run(LATE)}
    assert found.keys() >= {"ACC206", "ACC502"}
    assert LATE.splitlines()[found["ACC502"].span.line - 1].endswith("# set back")
    assert found["ACC502"].related, "the gate is shown beside it"
    assert said(LATE.replace("seen = 0  # set back", "pass")) == {"ACC206"}
    assert said(LATE.replace("(seen + 1)", "seen")) == {"ACC502"}
    assert said(LATE.replace("(seen + 1)", "seen").replace("seen = 0  # set back", "pass")) == set()


def test_a_counter_that_every_epoch_begins_with_leaves_the_leak_at_the_gate():
    inside = LATE.replace("        seen = 0  # set back\n", "").replace("        for x, y", "        seen = 0\n        for x, y").replace("(seen + 1)", "seen")
    (found,) = (f for f in run(inside) if f.rule == "ACC502")
    assert "% accum_steps" in inside.splitlines()[found.span.line - 1]


SHARE = """
import torch


class Trainer:
    def train_batch(self, spec, split, optimizer):
        pieces = split(self.batch, self.size)
        whole = self.device.to_tensor(torch.tensor(sum([spec.get_num_samples_in_batch(b) for b in pieces])))
        for piece in pieces:
            share = spec.get_num_samples_in_batch(piece)
            loss = self.model(piece)["total"]
            loss.mul_(share / whole.item())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_what_counts_the_rows_of_a_batch_is_a_number():
    assert errors(SHARE) == set()
    assert errors(SHARE.replace("            loss.mul_(share / whole.item())\n", "")) == {"ACC102"}


GIVEN_TO_THE_BATCH = """
def train(model, batches: "DataLoader", optimizer, batch_multiplier):
    for i, batch in enumerate(batches):
        loss, _ = model(return_type="loss", **vars(batch))
        loss = batch.normalize(loss, pieces=batch_multiplier)
        loss.backward()
        if (i + 1) % batch_multiplier == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_method_of_the_batch_may_divide_the_loss_that_it_is_given():
    assert errors(GIVEN_TO_THE_BATCH) == set()
    assert errors(GIVEN_TO_THE_BATCH.replace("batch.normalize(loss, pieces=batch_multiplier)", "loss.squeeze()")) == {"ACC102"}


SUMMED = """
def train(model, criterion, loader, optimizer, accum_steps):
    for i, (x, keep) in enumerate(loader):
        loss = (criterion(model(x)) * keep.float()).sum()
        (loss / loss.numel()).backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_the_number_of_elements_of_a_sum_is_one():
    assert errors(SUMMED) == {"ACC102"}
    assert errors(SUMMED.replace("(loss / loss.numel())", "loss")) == set()
    assert errors(SUMMED.replace("loss.numel()", "loss.numel() / x.size(0) / accum_steps")) == set()


STUCK = """
import torch.nn.functional as F


def train(model, loader, optimizer, grad_accum_steps, epochs):
    updates = 0
    for epoch in range(epochs):
        for x, y in loader:
            loss = F.mse_loss(model(x), y)
            loss.backward()
            if updates % grad_accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
"""


def test_a_stuck_gate_does_not_hide_that_nothing_divides_the_loss():
    assert errors(STUCK) == {"ACC213", "ACC102"}
    assert errors(STUCK.replace("loss.backward()", "(loss / grad_accum_steps).backward()")) == {"ACC213"}


PADDED = """
import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps, pad_id):
    for i, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y, ignore_index=pad_id)
        (loss / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_mean_of_means_does_not_hide_a_division_that_is_missing_or_made_twice():
    assert errors(PADDED) == {"ACC101"}
    assert errors(PADDED.replace("(loss / accum_steps)", "loss")) == {"ACC101", "ACC102"}
    assert errors(PADDED.replace("(loss / accum_steps)", "(loss / accum_steps / accum_steps)")) == {"ACC101", "ACC103"}


PER_STEP = """
import argparse

from torch.utils.data import DataLoader


def main(data, model, optimizer):
    args = argparse.ArgumentParser().parse_args()
    args.train_batch_size = args.train_batch_size // args.gradient_accumulation_steps
    loader = DataLoader(data, batch_size=args.train_batch_size)
    for step, (x, y) in enumerate(loader, 1):
        loss, accuracy = model(x, y)
        loss = loss / (args.train_batch_size / x.shape[0])  # a share of one
        loss.backward()
        if step % args.gradient_accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_the_batch_size_of_the_loader_is_the_number_of_rows_of_a_microbatch():
    (found,) = (f for f in run(PER_STEP) if f.severity.label == "error")
    assert found.rule == "ACC102" and "# a share of one" in PER_STEP.splitlines()[found.span.line - 1]
    whole = PER_STEP.replace("args.train_batch_size = args", "size = args").replace("batch_size=args.train_batch_size", "batch_size=size")
    assert errors(whole) == set(), "the whole batch over the rows of one microbatch is K"
    assert errors(PER_STEP.replace("loss / (args", "loss / args.gradient_accumulation_steps / (args")) == set()
    assert errors(PER_STEP.replace("batch_size=args.train_batch_size", "batch_size=args.rows")) == set()


SUM_OVER_ROWS = PER_STEP.replace("loss, accuracy = model(x, y)", "loss = torch.nn.functional.mse_loss(model(x), y, reduction='sum')").replace(
    "(args.train_batch_size / x.shape[0])", "args.train_batch_size"
).replace("import argparse", "import argparse\nimport torch")


def test_a_sum_over_rows_divided_by_the_batch_size_is_a_mean():
    assert errors(SUM_OVER_ROWS) == {"ACC102"}
    assert errors(SUM_OVER_ROWS.replace("loss / args", "loss / args.gradient_accumulation_steps / args")) == set()
    assert errors(SUM_OVER_ROWS.replace("loss / args.train_batch_size", "loss")) == set()


RETURNS_COUNTS = """
from transformers import AdamW

from model import Pointer


def main(args, loader, dev_loader, encoder, decoder):
    model = Pointer(encoder=encoder, decoder=decoder, beam_size=args.beam_size, max_length=args.max_target_length,
                    start_of_sentence=args.start_of_sentence, end_of_sentence=args.end_of_sentence)
    optimizer = AdamW(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            loss, _, _ = model(batch[0], batch[1])
            loss = loss / args.gradient_accumulation_steps
            loss.backward()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
        total, seen = 0, 0
        for batch in dev_loader:
            _, summed, number = model(batch[0], batch[1])
            total += summed.sum().item()
            seen += number.sum().item()
        print(total / seen)
"""


def test_an_evaluation_that_divides_by_a_count_of_the_model_says_that_its_targets_vary():
    (found,) = (f for f in run(RETURNS_COUNTS) if f.rule == "ACC101")
    assert found.confidence.label == "possible", "over what the loss is a mean is a convention"
    assert said(RETURNS_COUNTS.replace("seen += number.sum().item()", "seen += 1")) == {"ACC502"}
    summed = RETURNS_COUNTS.replace("loss, _, _ = model", "_, loss, _ = model")
    assert said(summed) == {"ACC502"}, "a sum weighs every target alike"


MASKED_TARGETS = """
def train(model, loader, optimizer, accum_steps):
    for i, (source_ids, target_ids, target_mask) in enumerate(loader):
        loss = model(source_ids=source_ids, target_ids=target_ids, target_mask=target_mask)
        (loss / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_mask_of_the_target_tokens_says_that_their_number_varies():
    assert errors(MASKED_TARGETS) == {"ACC101"}
    assert errors(MASKED_TARGETS.replace("target_mask", "causal_mask")) == set()
    assert errors(MASKED_TARGETS.replace("_ids", "_image")) == set(), "a mask of pixels"
    assert errors(MASKED_TARGETS.replace("loss = model(", "loss = F.mse_loss(target_ids, model(").replace("mask=target_mask)", "mask=target_mask))")) == set()
    assert errors(MASKED_TARGETS.replace("target_ids=target_ids", "labels=target_ids")) == set(), "labels carry a mask of their own"


PADDED_BY_HAND = """
from model import Seq2Seq


def features(texts, tokenizer, length):
    for ids in texts:
        ids += [tokenizer.pad_token_id] * (length - len(ids))
        yield ids


def train(loader, optimizer, accum_steps):
    model = Seq2Seq()
    for i, ids in enumerate(loader):
        loss, _ = model(ids, True)
        (loss / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_sequences_that_are_filled_up_by_hand_for_a_model_that_writes_text():
    assert errors(PADDED_BY_HAND) == {"ACC101"}
    assert errors(PADDED_BY_HAND.replace("Seq2Seq", "Classifier")) == set(), "one target for each sequence"
    assert errors(PADDED_BY_HAND.replace("ids += [tokenizer.pad_token_id] * (length - len(ids))", "ids = ids[:length]")) == set()
    assert errors(PADDED_BY_HAND.replace("model(ids, True)", "model(ids, labels=ids)")) == set()


APART = """
from torch.optim.lr_scheduler import CosineAnnealingLR


def main(model, loader, optimizer, args):
    args.max_steps = args.epochs * len(loader)  # worked out
    total = args.max_steps
    model.train()
    model.cuda()
    print(args)
    scheduler = CosineAnnealingLR(
        optimizer,
        T_max=total,  # handed over
    )
    for epoch in range(args.epochs):
        for i, batch in enumerate(loader):
            (model(batch).mean() / args.accum).backward()
            if (i + 1) % args.accum == 0 or i + 1 == len(loader):
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
"""


@pytest.mark.parametrize("change, place", [
    ((), "# worked out"),
    (("T_max=total", "T_max=args.epochs * len(loader)"), "# handed over"),
])  # fmt: skip
def test_the_length_of_a_schedule_is_blamed_where_it_is_worked_out(change, place):
    source = APART.replace(*change) if change else APART
    (found,) = (f for f in run(source) if f.rule == "ACC801")
    assert place in source.splitlines()[found.span.line - 1]


def test_a_length_that_is_worked_out_in_updates_is_right():
    assert "ACC801" not in said(APART.replace("len(loader)  # worked", "-(-len(loader) // args.accum)  # worked"))


KEPT_CONTEXT = """
import contextlib

from torch.nn.parallel import DistributedDataParallel as DDP


class Task:
    def __init__(self, net, loss):
        self.base = net
        self.loss = loss
        self.wrapped = None

    def wrap(self):
        self.wrapped = DDP(self.base)

    @property
    def model(self):
        return self.wrapped if distributed() else self.base

    def train(self, loader, optimizer, accum_steps):
        for i, (x, y) in enumerate(loader):
            last = (i + 1) % accum_steps == 0
            quiet = (
                self.wrapped.no_sync()  # made here
                if self.wrapped is not None and not last
                else contextlib.suppress()
            )
            out = self.model(x)
            self.log(out)
            self.log(x)
            with quiet:
                (self.loss(out, y) / accum_steps).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_a_property_hands_out_the_wrapped_model_and_a_context_is_blamed_where_it_was_made():
    (found,) = (f for f in run(KEPT_CONTEXT) if f.clause == "C3" and f.severity.label != "advice")
    assert found.rule == "ACC302" and "# made here" in KEPT_CONTEXT.splitlines()[found.span.line - 1]
    around = KEPT_CONTEXT.replace("            out = self.model(x)\n", "").replace("with quiet:\n", "with quiet:\n                out = self.model(x)\n")
    assert not [f for f in run(around) if f.clause == "C3" and f.severity.label != "advice"]


BOTH_WRAPPED = KEPT_CONTEXT.replace("            out = self.model(x)\n            self.log(out)\n            self.log(x)\n", "").replace(
    "with quiet:\n", "with quiet, self.criterion.no_sync() if self.criterion is not None and not last else contextlib.suppress():\n                out = self.model(x)\n"
).replace("self.loss(out, y)", "self.criterion(out, y)").replace("        self.wrapped = None\n", "        self.wrapped = None\n        self.criterion = None\n").replace(
    "        self.wrapped = DDP(self.base)\n", "        self.wrapped = DDP(self.base)\n        self.criterion = DDP(self.loss)\n"
)


def test_what_is_none_on_a_path_is_not_called_there():
    assert not [f for f in run(BOTH_WRAPPED) if f.clause == "C3" and f.severity.label != "advice"]
    assert "ACC305" in {f.rule for f in run(BOTH_WRAPPED.replace("if self.wrapped is not None and not last", "if False"))}


CHECKED = """
import contextlib

import torch

import utils


def quiet_context(enabled, mesh):
    @contextlib.contextmanager
    def context(inputs):
        if enabled and mesh is None:
            raise ValueError("no mesh")
        yield

    return context


def group_by_device(grads):
    return {g.device: [g] for g in grads}


def scale_grads_(parameters, factor):
    for device, grads in utils.grouped([p.grad for p in parameters]).items():
        torch._foreach_mul_(grads, factor)


class Recipe:
    def __init__(self, cfg):
        self.world_size, self.rank = utils.get_world_size_and_rank()
        self.accumulation_steps = cfg.gradient_accumulation_steps
        self.fused = cfg.optimizer_in_backward
        if self.fused:
            if self.accumulation_steps > 1:
                raise RuntimeError("not together")
        self.context = quiet_context(cfg.parallel, cfg.mesh)
        self.validate_every = cfg.validate_every
        self.updates = 0

    def setup(self, cfg):
        self.model = utils.build(cfg.model)
        self.optimizer = utils.build(cfg.optimizer, self.model.parameters())
        if cfg.compile:
            self.optimizer.step = torch.compile(self.optimizer.step)

    def train(self, loader, epochs):
        for epoch in range(epochs):
            tokens = 0
            for i, batch in enumerate(loader):
                labels = batch["labels"]
                with self.context(labels):
                    here = (labels != self.loss.ignore_index).sum()
                    tokens += here
                    (self.loss(self.model(batch["tokens"]), labels) * here).backward()
                if (i + 1) % self.accumulation_steps == 0:
                    torch.distributed.all_reduce(tokens)
                    scale_grads_(list(self.model.parameters()), self.world_size / tokens)
                    self.optimizer.step()
                    self.optimizer.zero_grad()
                    self.updates += 1
                    tokens = 0
                if self.validate_every is not None and self.updates % self.validate_every == 0:
                    self.validate()


def main(cfg, loader):
    recipe = Recipe(cfg)
    recipe.setup(cfg)
    recipe.train(loader, cfg.epochs)
"""


def test_checks_of_arguments_are_avoided_on_the_way_to_the_loop():
    found = {f.rule for f in run(CHECKED) if f.severity.label != "advice"}
    assert found == {"ACC502", "ACC702"}, "the count of all ranks is right, the validation repeats within a window"


def test_a_rest_that_is_carried_with_its_count_is_divided_by_it():
    carried = CHECKED.replace("        for epoch in range(epochs):\n            tokens = 0\n", "        tokens = 0\n        for epoch in range(epochs):\n")
    assert said(carried) == {"ACC702"}


def test_an_event_behind_another_condition_is_due_every_so_many_updates():
    inside = CHECKED.replace("                if self.validate_every", "                    if self.validate_every").replace("        self.validate()", "            self.validate()")
    assert said(inside) == {"ACC502"}


def test_a_count_of_all_ranks_without_a_word_of_the_world_size():
    """Whether somebody averages over ranks is not known: nothing is said of it."""
    assert said(CHECKED.replace("self.world_size / tokens", "1 / tokens")) == {"ACC502", "ACC702"}
    assert "ACC108" in said(CHECKED.replace("                    tokens = 0\n", ""))


TWO_LIMITS = """
import os

import torch
from torch.cuda.amp import GradScaler


def clipper(args):
    if args.clip_value is not None and args.clip_norm is not None:
        raise ValueError("one of them")
    if args.clip_value is not None:
        return lambda parameters: torch.nn.utils.clip_grad_value_(parameters, args.clip_value)
    return None


def train(args, model, loader, optimizer):
    scaler = GradScaler()
    clip = clipper(args)
    for i, batch in enumerate(loader):
        scaler.scale(model(batch).mean() / args.accum).backward()
        if (i + 1) % args.accum == 0 or i + 1 == len(loader):
            if clip is not None:
                clip(model.parameters())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
"""


def test_a_check_that_two_things_are_not_both_set_leaves_one_of_them_set():
    assert errors(TWO_LIMITS) == {"ACC402"}
    unscaled = TWO_LIMITS.replace("            if clip is not None:", "            scaler.unscale_(optimizer)\n            if clip is not None:")
    assert errors(unscaled) == set()


PERPLEXITY = """
from lm import load


def train(args, loader, optimizer):
    model = load(args)
    seen = 0
    for step, (input_ids, label_ids) in enumerate(loader):
        loss, ppl = model(input_ids, label_ids)
        (loss / args.accum_steps).backward()
        seen += (input_ids != 0).sum().item()
        if (step + 1) % args.accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_perplexity_beside_the_loss_and_a_count_of_the_tokens_that_are_no_padding():
    assert errors(PERPLEXITY) == {"ACC101"}
    assert errors(PERPLEXITY.replace("ppl", "accuracy")) == set()
    assert errors(PERPLEXITY.replace("(input_ids != 0).sum().item()", "input_ids.numel()")) == set(), "all of one length"


LENGTH_TOLD = """
from utils import build_scheduler


def train(model, loader, optimizer, accum_steps):
    scheduler = build_scheduler(optimizer, epoch_steps=len(loader))
    for step, batch in enumerate(loader):
        (model(batch).mean() / accum_steps).backward()
        if (step + 1) % accum_steps == 0 or step + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
        scheduler.step()
"""


def test_a_scheduler_that_is_told_the_number_of_microbatches_moves_with_them():
    assert errors(LENGTH_TOLD) == set()
    assert errors(LENGTH_TOLD.replace("len(loader))\n", "len(loader) // accum_steps)\n")) == {"ACC202"}
    assert errors(LENGTH_TOLD.replace(", epoch_steps=len(loader)", "")) == {"ACC202"}


def test_an_accelerator_counts_only_where_accumulate_is_entered():
    source = """
from accelerate import Accelerator


class Critics:
    def __init__(self, model, optim, critic_optim, loader, every, **options):
        self.accelerator = Accelerator(**options)
        self.model, self.optim, self.critic_optim = self.accelerator.prepare(model, optim, critic_optim)
        self.loader, self.every = loader, every

    def train_step(self, batches):
        for _ in range(self.every):
            loss = self.model(next(batches)).mean()
            self.accelerator.backward(loss / self.every)
        self.optim.step()
        self.optim.zero_grad()
        self.critic_optim.zero_grad()
        for _ in range(self.every):
            for _ in range(self.every):
                loss = self.model(next(batches), critic=True).mean()
                self.accelerator.backward(loss / (self.every * self.every))
        self.critic_optim.step()
"""
    assert "ACC209" not in errors(source)
    gated = """
from accelerate import Accelerator


def main(model, loader, optimizer, accum_steps, epochs):
    accelerator = Accelerator(gradient_accumulation_steps=accum_steps)
    model, optimizer = accelerator.prepare(model, optimizer)
    pending = 0
    for epoch in range(epochs):
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).mean())
                if accelerator.sync_gradients:
                    pending += 1
                    if pending % accum_steps == 0:
                        optimizer.step()
                        optimizer.zero_grad()
"""
    assert "ACC209" in errors(gated)


HELD = """
from accelerate import Accelerator


class Trainer:
    def __init__(self, model, optimizers, loader, steps):
        self.steps = steps
        self.accelerator = Accelerator(gradient_accumulation_steps=steps)
        self.model = self.accelerator.prepare_model(model)
        for name, optimizer in optimizers.items():
            optimizers[name] = self.accelerator.prepare_optimizer(optimizer)
        self.optimizers, self.loader = optimizers, loader

    def fit(self):
        for batch in self.loader:
            optimizer = self.optimizers["main"]
            with self.accelerator.accumulate(self.model):
                loss = self.model(batch).mean() / self.steps
                self.accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()


def main(model, optimizers, loader, args):
    Trainer(model, optimizers, loader, args.gradient_accumulation_steps).fit()
"""


def test_an_optimizer_is_prepared_in_the_container_that_holds_it():
    assert errors(HELD) == {"ACC103"}
    assert errors(HELD.replace(".mean() / self.steps", ".mean()")) == set()
    bare = HELD.replace("optimizers[name] = self.accelerator.prepare_optimizer(optimizer)", "print(name)")
    assert errors(bare.replace(".mean() / self.steps", ".mean()")) == {"ACC201"}


def test_an_accelerator_and_an_optimizer_that_are_handed_in_belong_together():
    source = """
from accelerate import Accelerator


def train(accelerator: Accelerator, model, optimizer, loader, gradient_accumulation_steps):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).mean() / gradient_accumulation_steps)
            optimizer.step()
            optimizer.zero_grad()
"""
    assert errors(source) == {"ACC103"}
    assert errors(source.replace(" / gradient_accumulation_steps", "")) == set()


EPOCHS = """
import torch.nn.functional as F


class Brain:
    def __init__(self, hparams, model, optimizer, loader):
        self.counter, self.start = hparams["epoch_counter"], hparams["start_epoch"]
        self.model, self.optimizer, self.loader = model, optimizer, loader

    def fit(self, accum_steps):
        for epoch in self.counter:
            self.warm = epoch >= self.start
            for step, batch in enumerate(self.loader):
                if not self.warm:
                    continue
                loss = F.mse_loss(self.model(batch["x"]), batch["y"]) / accum_steps
                loss.backward()
                if (step + 1) % accum_steps == 0:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
"""


def test_an_epoch_out_of_something_unseen_is_a_number():
    assert errors(EPOCHS) == set()
    assert errors(EPOCHS.replace("not self.warm", "batch['bad']")) == {"ACC208"}


TORCH_SUM = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer):
    for window in loader:
        n = torch.clamp(sum(torch.sum(y != -100) for _, y in window), 1)
        for x, y in window:
            losses = F.cross_entropy(model(x), y, ignore_index=-100, reduction="none")
            (torch.sum(losses * (y != -100)) / n).backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_function_of_torch_is_the_method_of_a_tensor():
    assert errors(TORCH_SUM) == set()
    assert errors(TORCH_SUM.replace(" / n)", " / torch.sum(y != -100).clamp(1))")) == {"ACC102"}
    assert errors(TORCH_SUM.replace("torch.sum(losses * (y != -100)) / n", "torch.mean(losses)")) == {"ACC102"}
    local = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps):
    for step, (x, y) in enumerate(loader):
        mask = (y != -100).float()
        losses = F.cross_entropy(model(x), y, ignore_index=-100, reduction="none")
        (torch.sum(losses * mask) / torch.clamp(torch.sum(mask), min=1) / accum_steps).backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
    (found,) = [f for f in run(local) if f.rule == "ACC101"]
    assert "0.06667, 0.04167, 0.1111" in found.message
    # that a mean of its own may divide by nothing is not said beside that it should be no mean of its own
    assert errors(local.replace("torch.clamp(torch.sum(mask), min=1)", "mask.sum()")) == {"ACC101"}


EPOCHS_FROM_UPDATES = """
import torch.nn.functional as F


def train(args, model, loader, optimizer):
    per_epoch = len(loader) // args.accum_steps
    for _ in range(args.max_updates // per_epoch + 1):
        for step, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y) / args.accum_steps
            loss.backward()
            if (step + 1) % args.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
"""


def test_epochs_that_are_counted_out_of_updates_are_no_whole_windows():
    assert said(EPOCHS_FROM_UPDATES) == {"ACC502"}
    assert said(EPOCHS_FROM_UPDATES.replace("range(args.max_updates // per_epoch + 1)", "range(int(args.max_updates // per_epoch + 1))")) == {"ACC502"}
    whole = EPOCHS_FROM_UPDATES.replace("enumerate(loader):", "zip(range(per_epoch * args.accum_steps), loader):")
    assert said(whole) == set()


RESUMED_BY_NAME = """
import os


def main(args, model, loader, optimizer):
    step = 0
    done = 0
    if os.path.exists(args.model_path):
        step = int(args.model_path.split("-")[-1])
        done = step % len(loader)
    for epoch in range(args.epochs):
        for i, batch in enumerate(loader):
            if done > 0:
                done -= 1
                continue
            loss = model(batch).mean() / args.accum_steps
            loss.backward()
            if (i + 1) % args.accum_steps == 0:
                optimizer.step()
                optimizer.zero_grad()
                step += 1
"""


def test_a_run_that_is_not_resumed_is_looked_at_before_others():
    flags = "".join(f"            if args.flag{n}:\n                print(model(batch).sum().backward())\n" for n in range(9))
    many = RESUMED_BY_NAME.replace("            loss = ", flags + "            loss = ")
    assert said(RESUMED_BY_NAME) == {"ACC502"}
    assert "ACC502" in said(many)
    assert said(RESUMED_BY_NAME.replace("(i + 1) % args.accum_steps == 0:", "(i + 1) % args.accum_steps == 0 or i + 1 == len(loader):")) == {"ACC503"}


ALTERNATING = """
import torch
from accelerate import Accelerator


def main(loader, accum_steps):
    model, critic = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
    optimizer, critic_optimizer = torch.optim.Adam(model.parameters()), torch.optim.Adam(critic.parameters())
    accelerator = Accelerator(gradient_accumulation_steps=accum_steps)
    model, critic, optimizer, critic_optimizer, loader = accelerator.prepare(model, critic, optimizer, critic_optimizer, loader)
    for i, x in enumerate(loader):
        trains_model = ((i // accum_steps) % 2) == 0
        if trains_model:
            optimizer.zero_grad()
        else:
            critic_optimizer.zero_grad()
        fake = model(x)
        if trains_model:
            with accelerator.accumulate(model):
                accelerator.backward(-critic(fake).mean())
                optimizer.step()
        else:
            with accelerator.accumulate(critic):
                fake.detach_()
                accelerator.backward((critic(fake) - critic(x)).mean())
                critic_optimizer.step()
"""


def test_a_tensor_may_be_detached_in_place():
    def places(source: str) -> set[tuple[str, int]]:
        return {(f.rule, f.span.line) for f in run(source)}

    attached = places(ALTERNATING.replace("fake.detach_()", "pass"))
    assert places(ALTERNATING) == places(ALTERNATING.replace("fake.detach_()", "fake = fake.detach()"))
    assert attached != places(ALTERNATING)


RETURNED = """
import torch.nn as nn
import torch.nn.functional as F
from transformers.modeling_outputs import CausalLMOutputWithPast


class Lines(Dataset):
    def __getitem__(self, i):
        ids = self.rows[i]
        return ids, [-100 if special else t for t, special in zip(ids, self.special[i])]


class Tiny(nn.Module):
    def forward(self, x, labels=None):
        logits = self.head(x)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.view(-1, 4), labels.view(-1), ignore_index=-100)
        return CausalLMOutputWithPast(loss=loss, logits=logits)


def train(loader, optimizer, accum_steps):
    model = Tiny()
    for step, (x, labels) in enumerate(loader):
        loss = model(x, labels=labels).loss / accum_steps
        loss.backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_the_loss_in_what_a_model_returns_is_the_loss_that_was_put_there():
    assert errors(RETURNED) == {"ACC101"}
    assert errors(RETURNED.replace(").loss / accum", ")[0] / accum")) == {"ACC101"}
    summed = RETURNED.replace("ignore_index=-100)", "ignore_index=-100, reduction='sum')").replace("loss=loss, logits", "logits=logits, loss=loss, hidden")
    assert errors(summed) == set(), "divided by K alone: a sum, which the script may mean"
    assert errors(RETURNED.replace("F.cross_entropy(logits.view(-1, 4), labels.view(-1), ignore_index=-100)", "F.mse_loss(logits, labels)")) == set()


MASKED_MEANS = """
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, optimizer, accum_steps):
    model = DDP(model)
    for step, (x, y, mask) in enumerate(loader):
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = (losses * mask).sum() / mask.sum().clamp(min=1) / accum_steps
        loss.backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_the_weight_that_is_right_counts_the_targets_of_all_ranks():
    def told(source):
        return next(f.message for f in run(source) if f.rule == "ACC101")

    # 5 + 8 + 3 targets on one rank, 17 on the other; each of the two adds half
    assert "weigh 0.03333, 0.02083, 0.05556 instead of 0.0303 each" in told(MASKED_MEANS)
    assert "weigh 0.06667, 0.04167, 0.1111 instead of 0.0625 each" in told(MASKED_MEANS.replace("    model = DDP(model)\n", ""))


WRAPPED_OPTIMIZER = """
import torch
import torch.nn.functional as F


class Warmed:
    def __init__(self, params):
        self.optimizer = torch.optim.Adam(params)
        self.updates = 0

    def step(self):
        self.updates += 1
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


def train(loader, accum_steps, longest=None):
    model = torch.nn.Linear(4, 4)
    optimizer = Warmed(model.parameters())
    scaler = torch.cuda.amp.GradScaler()
    if longest:
        for x, y in longest:
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
    for step, (x, y) in enumerate(loader):
        scaler.scale(F.mse_loss(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if (step + 1) % accum_steps == 0:
            print(step)
"""


def test_a_scaler_steps_the_optimizer_inside_the_scripts_own_wrapper():
    assert errors(WRAPPED_OPTIMIZER) == set()
    late = WRAPPED_OPTIMIZER.replace("update()\n        optimizer.zero_grad()\n", "update()\n").replace("print(step)", "optimizer.zero_grad()")
    assert errors(late) == {"ACC201"}


TRIED_OUT = """
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def losses(model, x, y):
    loss = F.mse_loss(model(x), y)
    if not torch.isfinite(loss):
        torch.save({"x": x, "y": y}, "not_finite.pt")
    return loss


def main(net, loader, optimizer, longest, accum_steps):
    model = DDP(net)
    for x, y in longest:
        losses(model, x, y).backward()
        optimizer.zero_grad()
    for step, (x, y) in enumerate(loader):
        loss = losses(model, x, y) / accum_steps
        loss.backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_pass_that_tries_out_the_longest_batches_is_not_left_out_on_one_rank():
    assert errors(TRIED_OUT) == set()
    tried = "    for x, y in longest:\n        losses(model, x, y).backward()\n        optimizer.zero_grad()\n"
    skipping = TRIED_OUT.replace(tried, "").replace("        loss.backward()", "        if not torch.isfinite(loss):\n            continue\n        loss.backward()")
    assert errors(skipping) == {"ACC601"}


RESUMED_SCHEDULE = """
import torch
import torch.nn.functional as F


def train(model, loader, accum_steps, path, done):
    optimizer = torch.optim.AdamW(model.parameters())
    held = torch.load(path)
    optimizer.load_state_dict(held["optimizer"])
    last = held["epoch"] if "epoch" in held else -1
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9, last_epoch=last)
    for epoch in range(last + 1, 10):
        for step, (x, y) in enumerate(loader):
            loss = F.mse_loss(model(x), y) / accum_steps
            loss.backward()
            if (step + 1) % accum_steps == 0 or step + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
        scheduler.step()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, path)
"""


def test_a_schedule_that_is_built_at_the_epoch_of_the_checkpoint_needs_no_state():
    assert errors(RESUMED_SCHEDULE) == set()
    assert errors(RESUMED_SCHEDULE.replace(", last_epoch=last", "")) == {"ACC704"}
    assert errors(RESUMED_SCHEDULE.replace("last_epoch=last", "last_epoch=-1")) == {"ACC704"}
    assert errors(RESUMED_SCHEDULE.replace(", last_epoch=last)", ")\n    scheduler.last_epoch = last")) == set()


RANKED = """
import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

parser = argparse.ArgumentParser()
parser.add_argument("--rank", type=int, default=0)
parser.add_argument("--local_rank", type=int, default=-1)
parser.add_argument("--accum", type=int, default=4)
args = parser.parse_args()
dist.init_process_group("nccl")
model = DDP(build_model().cuda(), device_ids=[args.local_rank])
optimizer = torch.optim.AdamW(model.parameters())
criterion = torch.nn.CrossEntropyLoss()
for epoch in range(3):
    for i, (x, y) in enumerate(train_loader):
        loss = criterion(model(x), y) / args.accum
        loss.backward()
        if GATE and ((i + 1) % args.accum == 0 or i + 1 == len(train_loader)):
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize("gate", [
    "args.rank == 0", "args.rank < 1", "not args.rank", "args.local_rank in [-1, 0]", "int(os.environ['RANK']) == 0", "self_rank == 0",
    "args.is_master", "trainer.is_global_zero", "is_main_process()", "int(os.environ.get('RANK', 0)) == 0", "not dist.get_rank()",
])  # fmt: skip
def test_a_step_of_the_main_rank_alone(gate):
    assert "ACC601" in errors(RANKED.replace("GATE", gate))


@pytest.mark.parametrize("gate", ["args.local_rank != -1", "args.local_rank >= 0", "args.local_rank > -1", "args.lora_rank == 0", "args.tensor_rank == 0", "int(os.environ.get('RANK', -1)) != -1"])
def test_what_is_no_rank_or_the_same_on_all_of_them(gate):
    assert errors(RANKED.replace("GATE", gate)) == set()


def test_what_the_main_rank_does_beside_the_step():
    beside = RANKED.replace("GATE and ", "").replace("            optimizer.zero_grad()", "            optimizer.zero_grad()\n            if args.rank == 0:\n                print(loss.item())\n            if args.rank > 0:\n                continue")
    assert errors(beside) == set()


STATEFUL = """
import torch.nn.functional as F
from apex.optimizers import FP16_Optimizer, FusedAdam


class Stateful(FP16_Optimizer):
    def state_dict(self):
        return {"optimizer": self.optimizer.state_dict()}


def main(model, loader, accum_steps):
    optimizer = Stateful(FusedAdam(model.parameters()))
    for step, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / accum_steps
        optimizer.backward(loss)
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_class_of_the_scripts_own_over_an_optimizer_of_a_library_is_an_optimizer():
    assert errors(STATEFUL) == set()
    assert errors(STATEFUL.replace("            optimizer.zero_grad()", "        optimizer.zero_grad()")) == {"ACC204"}


CUT_BY_HAND = """
import torch
import torch.nn.functional as F


def main(args):
    rows = args.global_batch_size // args.world
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loader = torch.utils.data.DataLoader(args.data, batch_size=rows, drop_last=True)
    for x, y in loader:
        optimizer.zero_grad()
        for index in range((rows - 1) // args.micro_batch_size + 1):
            start = index * args.micro_batch_size
            stop = min((index + 1) * args.micro_batch_size, rows)
            losses = F.mse_loss(model(x[start:stop]), y[start:stop], reduction="none").mean(dim=1)
            loss = losses.sum() / rows
            loss.backward()
        optimizer.step()
"""


def test_slices_of_a_batch_that_a_loop_cuts_are_the_whole_batch():
    assert errors(CUT_BY_HAND) == set()
    encoded = "    for x, y in loader:\n        with torch.no_grad():\n            x = args.encoder(x)\n"
    assert errors(CUT_BY_HAND.replace("    for x, y in loader:\n", encoded).replace("y[start:stop]", "0 * x[start:stop]")) == set()
    assert errors(CUT_BY_HAND.replace("losses.sum() / rows", "losses.mean()")) == {"ACC102"}
    assert errors(CUT_BY_HAND.replace("losses.sum() / rows", "losses.sum()")) == set()


CRITIC = """
import torch
from toolkit import get_optimizer, perceptual


class Critic:
    def __init__(self):
        self.seen = 0
        self.model = torch.nn.Linear(4, 1)
        self.optimizer = get_optimizer(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.ConstantLR(self.optimizer, total_iters=1000)

    def update(self, pictures, accum_steps):
        self.optimizer.zero_grad()
        self.seen += 1
        loss = torch.relu(1.0 - self.model(pictures)).mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()


def train(parameters, encode, decode, loader, epochs, accum_steps):
    critic = Critic()
    optimizer = get_optimizer(parameters)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, total_iters=1000)
    for epoch in range(epochs):
        for x in loader:
            pictures = decode(encode(x))
            critic.update(pictures.detach(), accum_steps)
            optimizer.zero_grad()
            perceptual(pictures, x).backward()
            optimizer.step()
            scheduler.step()
"""


def test_a_backward_of_unknown_reach_belongs_to_the_optimizer_that_uses_it_first():
    assert said(CRITIC) == set()
    gate = "        if self.seen % accum_steps == 0:\n            self.optimizer.step()\n            self.optimizer.zero_grad()\n"
    slow = CRITIC.replace("        self.optimizer.zero_grad()\n", "").replace("        self.optimizer.step()\n", gate)
    assert said(slow.replace("mean()", "mean() / accum_steps")) == {"ACC202"}


SHARED_OUT = """
def train(model, loader, optimizer, accum_steps):
    for step, (x, share) in enumerate(loader):
        loss = model(x) {times}
        loss.backward()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_loss_that_is_multiplied_by_what_the_loader_hands_out_is_weighed_by_it():
    assert errors(SHARED_OUT.format(times="* share")) == set()
    assert errors(SHARED_OUT.format(times="")) == {"ACC102"}


@pytest.mark.parametrize("main", ["args.rank == 0", "not args.rank", "args.is_main_process", "dist.get_rank() == 0"])
def test_what_the_main_rank_does_is_looked_at(main):
    cleared = RANKED.replace("GATE and ", "").replace("        loss.backward()", f"        loss.backward()\n        if {main}:\n            optimizer.zero_grad()")
    assert "ACC204" in errors(cleared)


COUNTED_BESIDE = """
import torch.nn.functional as F


class Trainer:
    def run(self, model, loader, optimizer, accum_steps, epochs):
        for epoch in range(epochs):
            for index, (x, y) in enumerate(loader):
                self.seen += 1
                loss = F.mse_loss(model(x), y) / accum_steps
                loss.backward()
                if index % accum_steps == accum_steps - 1:
                    optimizer.step()
                    optimizer.zero_grad()
                if self.seen > 0 and self.seen % self.every == 0:
                    print(loss.item())
"""


def test_a_counter_of_unknown_start_matters_where_updates_depend_on_it():
    assert said(COUNTED_BESIDE) == {"ACC502"}
    assert said(COUNTED_BESIDE.replace("if index % accum_steps == accum_steps - 1", "if self.seen % accum_steps == 0")) == set()
    skipping = "                if self.seen < len(loader):\n                    continue\n                loss = "
    assert said(COUNTED_BESIDE.replace("                loss = ", skipping)) == set()


def test_a_rest_that_is_cleared_by_decision():
    clear = "            {test}optimizer.zero_grad()\n            for index, "
    dropped = COUNTED_BESIDE.replace("            for index, ", clear.format(test=""))
    assert said(dropped) == {"ACC501"}
    decided = COUNTED_BESIDE + "            if index % accum_steps != accum_steps - 1:\n                optimizer.zero_grad()\n"
    assert said(decided) == set()


SECTION = """
import torch
import torch.nn.functional as F
from yacs.config import CfgNode as CN

_C = CN()
_C.TRAIN = CN()
_C.TRAIN.ACCUMULATION_STEPS = 1


def main(model, loader, optimizer, overrides):
    config = _C.clone()
    config.merge_from_file(overrides)
    for step, (x, y) in enumerate(loader):
        loss = F.mse_loss(model(x), y) / config.TRAIN.ACCUMULATION_STEPS
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if (step + 1) % config.TRAIN.ACCUMULATION_STEPS == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_configuration_that_starts_without_accumulation_leaves_it_open():
    assert errors(SECTION) == {"ACC401"}
    fixed = SECTION.replace("_C.TRAIN.ACCUMULATION_STEPS = 1", "ACCUMULATION_STEPS = 1").replace("config.TRAIN.ACCUMULATION_STEPS", "ACCUMULATION_STEPS")
    assert errors(fixed) == set()


EVALUATED = """
import torch
import torch.nn.functional as F


def validate(model, loader, classes):
    model.eval()
    totals = []
    for x, y in loader:
        for row in model(x):
            for label in range(classes):
                totals.append((row, label))
    return totals


def counted(batches):
    total = 0
    for x, y in batches:
        total += (y != -100).sum()
    return total


def train(model, optimizer, loader, held_out, accum):
    for epoch in range(10):
        model.train()
        for start in range(0, len(loader), accum):
            batches = [next(loader) for _ in range(accum)]
            targets = counted(batches)
            for x, y in batches:
                loss = F.cross_entropy(model(x), y, ignore_index=-100, reduction="sum") / targets
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        validate(model, held_out, 20)
"""


def test_an_evaluation_costs_little_and_what_counts_for_a_window_is_counted_whole():
    assert errors(EVALUATED) == set()
    assert errors(EVALUATED.replace("total += (y", "total = (y")) >= {"ACC108"}
    assert errors(EVALUATED.replace("counted(batches):", "counted(batches, model=None):\n    model.eval()")) == set()
