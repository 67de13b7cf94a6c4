"""More ways of writing a loop: those that were not followed, each with the fault that it hid and the right one beside it."""

import pytest
from engine_scripts import run
from test_idioms import LOOP, errors, said


ENGINE = """
import deepspeed
import torch.nn.functional as F


def train(model, data, args):
    engine, _, loader, _ = deepspeed.initialize(
        args=args, model=model, training_data=data, config={"gradient_accumulation_steps": args.gradient_accumulation_steps}
    )
    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(loader):
            loss = F.cross_entropy(engine(x), y)
            engine.backward(loss)
            if (step + 1) % args.gradient_accumulation_steps == 0:
                engine.step()
"""


def test_a_gate_around_an_engine_that_begins_anew_in_each_epoch():
    assert errors(ENGINE) == {"ACC209"}
    plain = ENGINE.replace("            if (step + 1) % args.gradient_accumulation_steps == 0:\n                engine", "            engine")
    assert errors(plain) == set()


CONTINUED = """
import torch.nn.functional as F


class Loop:
    def __init__(self, net, data, opt, k):
        self.net, self.data, self.opt, self.k = net, data, opt, k
        self.i = 0

    def run(self, total):
        while self.i < total:
            x, y = next(self.data)
            (F.mse_loss(self.net(x), y) / self.k).backward()
            self.i += 1
            if self.i % self.k {op} 0:
                continue
            self.opt.step()
            self.opt.zero_grad()
"""


def test_a_gate_that_continues_shows_how_large_a_window_is():
    assert errors(CONTINUED.format(op="!=")) == set()
    assert errors(CONTINUED.format(op="==")) == {"ACC207"}


FABRIC = """
import lightning as L
import torch.nn.functional as F


def main(model, loader, opt, accum, updates):
    fabric = L.Fabric(devices=4, strategy="ddp")
    model, opt = fabric.setup(model, opt)
    stream = iter(fabric.setup_dataloaders(loader))
    for u in range(updates):
        for i in range(accum):
            x, y = next(stream)
            {context}
                fabric.backward(F.cross_entropy(model(x), y) / accum)
        opt.step()
        opt.zero_grad()
"""


def test_fabric_under_ddp_reduces_unless_it_is_told_not_to():
    advice = {f.rule for f in run(FABRIC.format(context="if True:"))}
    assert advice == {"ACC301"}
    assert not run(FABRIC.format(context="with fabric.no_backward_sync(model, enabled=i < accum - 1):"))
    assert not run(FABRIC.format(context="if True:").replace('strategy="ddp"', 'strategy="deepspeed"'))


PAIRS = """
import torch.nn.functional as F
from accelerate import Accelerator


def logp(model, ids, mask):
    picked = model(ids).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    return (picked * mask[:, 1:]).sum(1)


def main(policy, loader, optimizer, accumulation):
    accelerator = Accelerator(gradient_accumulation_steps=accumulation)
    policy, optimizer, loader = accelerator.prepare(policy, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(policy):
            margin = logp(policy, batch["chosen"], batch["chosen_mask"]) - logp(policy, batch["rejected"], batch["rejected_mask"])
            loss = -F.logsigmoid(margin).mean(){share}
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_sum_along_each_row_makes_the_row_the_target():
    assert errors(PAIRS.format(share="")) == set()
    assert errors(PAIRS.format(share=" / accumulation")) == {"ACC103"}


AVERAGED = """
import copy
import torch


@torch.no_grad()
def update_average(average, model, decay=0.999):
    held = dict(average.named_parameters())
    for name, param in model.named_parameters():
        held[name].mul_(decay).add_(param.data, alpha=1 - decay)


def main(student, loader, opt, accum_steps):
    teacher = copy.deepcopy(student).eval()
    seen = 0
    for x in loader:
        with torch.no_grad():
            target = teacher(x)
        ((student(x) - target).pow(2).mean() / accum_steps).backward()
        seen += 1
        if seen % accum_steps == 0:
            opt.step()
            opt.zero_grad()
            {inside}
        {outside}


def names(student):
    return [name for name, _ in student.named_parameters()], len(list(student.parameters()))
"""


def test_an_average_that_is_kept_in_a_mapping_by_name():
    call = "update_average(teacher, student)"
    assert "ACC703" in said(AVERAGED.format(inside="pass", outside=call))
    assert "ACC703" not in said(AVERAGED.format(inside=call, outside="pass"))


CLOCK = """
import time
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, opt, accum, seconds):
    torch.distributed.init_process_group("nccl")
    net = DDP(model)
    deadline = time.time() + seconds
    seen = 0
    for x, y in loader:
        seen += 1
        last = seen % accum == 0
        net.require_backward_grad_sync = last
        (F.cross_entropy(net(x), y) / accum).backward()
        if last:
            opt.step()
            opt.zero_grad()
            over = torch.tensor(time.time() > deadline)
            torch.distributed.all_reduce(over)
            if {test}:
                return
"""


def test_a_rank_that_returns_by_its_own_clock_leaves_the_others_waiting():
    assert errors(CLOCK.format(test="time.time() > deadline")) == {"ACC601"}
    assert errors(CLOCK.format(test="over")) == set()


LARGE = """
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP


def train(model, loader, opt, accum_steps, most=4000):
    torch.distributed.init_process_group("nccl")
    ddp = DDP(model)
    seen = 0
    for x, y in loader:
        {skip}
        ddp.require_backward_grad_sync = (seen + 1) % accum_steps == 0
        (F.l1_loss(ddp(x), y) / accum_steps).backward()
        seen += 1
        if seen % accum_steps == 0:
            opt.step()
            opt.zero_grad()
"""


def test_the_size_of_a_microbatch_is_known_to_one_rank_only():
    assert errors(LARGE.format(skip="if x.numel() > most:\n            continue")) == {"ACC601"}
    assert errors(LARGE.format(skip="x = x[:most]")) == set()


SKIPPED = """
import itertools
import torch
import torch.nn.functional as F


def main(model, loader, opt, path, accum_steps):
    checkpoint = torch.load(path)
    model.load_state_dict(checkpoint["model"])
    opt.load_state_dict(checkpoint["opt"])
    updates = checkpoint["updates"]
    batches = iter(loader)
    for _ in itertools.islice(batches, updates{times}):
        pass
    for window in iter(lambda: list(itertools.islice(batches, accum_steps)), []):
        for x, y in window:
            (F.cross_entropy(model(x), y) / len(window)).backward()
        opt.step()
        opt.zero_grad()
        updates += 1
        torch.save({{"model": model.state_dict(), "opt": opt.state_dict(), "updates": updates}}, path)
"""


def test_batches_that_are_read_away_after_a_resume():
    assert errors(SKIPPED.format(times="")) == {"ACC706"}
    assert errors(SKIPPED.format(times=" * accum_steps")) == set()


PER_PARAMETER = """
import torch
import torch.nn.functional as F


def attach(model, lr):
    optims = {p: torch.optim.SGD([p], lr=lr) for p in model.parameters()}

    def hook(param):
        optims[param].step()
        optims[param].zero_grad()

    for p in optims:
        p.register_post_accumulate_grad_hook(hook)


def main(model, stream, updates, accumulate):
    attach(model, 1e-4)
    for _ in range(updates):
        for _ in range(accumulate):
            x, y = next(stream)
            (F.cross_entropy(model(x), y) / accumulate).backward()
"""


def test_the_parameters_are_the_keys_of_their_optimizers():
    assert errors(PER_PARAMETER) == {"ACC211"}
    alone = PER_PARAMETER.replace("        for _ in range(accumulate):\n            x, y = next(stream)\n            (F", "        x, y = next(stream)\n        (F").replace(" / accumulate", "").replace(", accumulate)", ")")
    assert errors(alone) == set()


SLICES = """
import torch.nn.functional as F


def step(net, opt, batch, micro):
    opt.zero_grad()
    for i in range(0, batch.shape[0], micro):
        part = batch[i : i + micro]
        loss = F.mse_loss(net(part), part)
        loss{share}.backward()
    opt.step()


def run(net, opt, data, micro, updates):
    for _ in range(updates):
        step(net, opt, next(data), micro)
"""


def test_the_means_of_slices_are_shares_of_the_batch():
    assert errors(SLICES.format(share="")) == {"ACC102"}
    source = SLICES.format(share="").replace("loss.backward()", "(loss * (len(part) / len(batch))).backward()")
    assert errors(source) == set()


BRAIN = """
import speechbrain as sb


class ASR(sb.Brain):
    def fit_batch(self, batch):
        {first}
        loss = self.compute_objectives(self.compute_forward(batch, sb.Stage.TRAIN), batch, sb.Stage.TRAIN)
        (loss / self.hparams.gradient_accumulation).backward()
        if self.step % self.hparams.gradient_accumulation == 0:
            self.optimizer.step()
            {last}
        return loss.detach()
"""


def test_a_clear_in_every_call_of_a_method_that_divides_for_a_window():
    assert errors(BRAIN.format(first="self.optimizer.zero_grad()", last="pass")) == {"ACC204"}
    assert errors(BRAIN.format(first="pass", last="self.optimizer.zero_grad()")) == set()


CTC = """
import torch
from torch import nn


def main(model, loader, opt, accum_steps):
    ctc = nn.CTCLoss(reduction="sum", zero_infinity=True)
    seen = 0
    for feats, labels, feat_lengths, label_lengths in loader:
        loss = ctc(model(feats).log_softmax(-1), labels, feat_lengths, label_lengths) / {count}
        (loss / accum_steps).backward()
        seen += 1
        if seen % accum_steps == 0:
            opt.step()
            opt.zero_grad()
"""


def test_utterances_have_as_many_targets_as_labels():
    assert errors(CTC.format(count="label_lengths.sum()")) == {"ACC101"}  # and none has no label at all
    assert errors(CTC.format(count="feats.size(0)")) == set()


def test_a_sampler_may_be_told_to_draw_whole_windows():
    source = LOOP.format(loader="loader").replace(" or step == len(loader) - 1", "").replace(", loader, ", ", ds, ").replace(
        "    for epoch", "    sampler = torch.utils.data.RandomSampler(ds, num_samples=8 * accum_steps{times})\n    loader = torch.utils.data.DataLoader(ds, 8, sampler=sampler)\n    for epoch"
    )
    assert said(source.replace("{times}", " * 500")) == set()
    assert said(source.replace("8 * accum_steps{times}", "4000")) == {"ACC502"}


def test_a_run_that_goes_on_at_its_epoch_has_epochs():
    source = """
import torch
import torch.nn.functional as F


class Runner:
    def __init__(self, model, loader, opt, accum):
        self.model, self.loader, self.opt, self.accum = model, loader, opt, accum
        self.epoch = 0

    def resume(self, path):
        self.epoch = torch.load(path)["epoch"]

    def run(self, epochs):
        for self.epoch in range(self.epoch, epochs):
            for i, (x, y) in enumerate(self.loader):
                (F.cross_entropy(self.model(x), y) / self.accum).backward()
                if (i + 1) % self.accum == 0:
                    self.opt.step()
                    self.opt.zero_grad()
"""
    assert said(source) == {"ACC502"}
    flushed = source.replace("self.accum == 0:", "self.accum == 0 or i + 1 == len(self.loader):").replace(" / self.accum)", ")")
    assert "ACC502" not in said(flushed)


def test_the_engine_behind_an_accelerator_divides():
    source = """
import torch.nn.functional as F
from accelerate import Accelerator, DeepSpeedPlugin


def main(model, stream, optimizer, accum, updates):
    accelerator = Accelerator({options})
    model, optimizer = accelerator.prepare(model, optimizer)
    for _ in range(updates):
        for _ in range(accum):
            x, y = next(stream)
            accelerator.backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
"""
    assert errors(source.format(options="deepspeed_plugin=DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=accum)")) == set()
    assert errors(source.format(options="")) == {"ACC102"}


ADVERSARIAL = """
import torch
import torch.nn.functional as F


class Trainer:
    def __init__(self, gen, disc):
        self.gen, self.disc = gen, disc
        self.opt_g = torch.optim.Adam(gen.parameters(), lr=1e-4)
        self.opt_d = torch.optim.Adam(disc.parameters(), lr=1e-4)

    def window(self, batches):
        k = len(batches)
        for low, high in batches:
            {freeze}
            fake = self.gen(low)
            g_loss = F.l1_loss(fake, high) + F.softplus(-self.disc(fake)).mean()
            (g_loss / k).backward()
            {thaw}
            d_loss = F.softplus(-self.disc(high)).mean() + F.softplus(self.disc(fake.detach())).mean()
            (d_loss / k).backward()
        self.{first}.step()
        self.{first}.zero_grad()
        self.{second}.step()
        self.{second}.zero_grad()

    def fit(self, stream, accum, updates):
        for _ in range(updates):
            self.window([next(stream) for _ in range(accum)])
"""


@pytest.mark.parametrize("order", [("opt_g", "opt_d"), ("opt_d", "opt_g")])
def test_a_judge_that_is_kept_from_the_maker_takes_nothing_of_its_loss(order):
    source = ADVERSARIAL.replace("{first}", order[0]).replace("{second}", order[1])
    assert errors(source.format(freeze="pass", thaw="pass")) == {"ACC210"}
    frozen = source.format(freeze="self.disc.requires_grad_(False)", thaw="self.disc.requires_grad_(True)")
    assert errors(frozen) == set()


def test_a_network_that_is_trained_through_another_is_trained_with_it():
    joint = ADVERSARIAL.format(freeze="pass", thaw="pass", first="opt_g", second="opt_d").replace("fake.detach()", "fake")
    assert errors(joint) == set()


ATTACK = """
import torch
import torch.nn.functional as F


def attack(model, x, y):
    x = x.clone().detach().requires_grad_(True)
    {gradient}
    return (x + 0.03 * gradient.sign()).detach()


def train(model, loader, opt, accum_steps):
    seen = 0
    for x, y in loader:
        adversarial = attack(model, x, y)
        (F.cross_entropy(model(adversarial), y) / accum_steps).backward()
        seen += 1
        if seen % accum_steps == 0:
            opt.step()
            opt.zero_grad()
"""


def test_a_gradient_of_the_data_is_no_part_of_the_window():
    through = "F.cross_entropy(model(x), y).backward()\n    gradient = x.grad"
    assert errors(ATTACK.format(gradient=through)) == {"ACC210"}
    assert errors(ATTACK.format(gradient="gradient = torch.autograd.grad(F.cross_entropy(model(x), y), x)[0]")) == set()
    # the parameters' gradients are wanted here, and the data's are not asked for
    both = ATTACK.format(gradient="gradient = 0 * x").replace("attack(model, x, y)\n", "x.requires_grad_(True)\n        (model(x).pow(2).mean() / accum_steps).backward()\n")
    assert "ACC210" not in errors(both)


CALLED = """
import torch
import torch.nn.functional as F


class Scaler:
    def __init__(self):
        self.inner = torch.cuda.amp.GradScaler()

    def __call__(self, loss, opt, params, update):
        self.inner.scale(loss).backward()
        if update:
            {unscale}
            torch.nn.utils.clip_grad_norm_(params, 1.0)
            self.inner.step(opt)
            self.inner.update()
            opt.zero_grad()


def train(model, stream, opt, accum, updates):
    scaler = Scaler()
    for i in range(accum * updates):
        x, y = next(stream)
        loss = F.cross_entropy(model(x), y) / accum
        scaler(loss, opt, list(model.parameters()), (i + 1) % accum == 0)
"""


def test_an_object_that_is_called_is_entered_where_it_was_made():
    assert errors(CALLED.format(unscale="pass")) == {"ACC402"}
    assert errors(CALLED.format(unscale="self.inner.unscale_(opt)")) == set()


KEPT = """
import torch.nn.functional as F
from torch_ema import ExponentialMovingAverage


def main(score, loader, opt, accum_steps):
    ema = ExponentialMovingAverage(score.parameters(), decay=0.999)
    seen = 0
    for x in loader:
        (F.mse_loss(score(x), x) / accum_steps).backward()
        seen += 1
        if seen % accum_steps == 0:
            opt.step()
            opt.zero_grad()
            {inside}
        {outside}
"""


def test_an_average_by_the_name_of_its_class():
    assert "ACC703" not in said(KEPT.format(inside="ema.update()", outside="pass"))
    assert "ACC703" in said(KEPT.format(inside="pass", outside="ema.update()"))
    losses = KEPT.format(inside="pass", outside="ema.update(x.mean())").replace("(score.parameters(), decay=0.999)", "(0.999)").replace("    ema =", "    smooth =").replace("  ema.", "  smooth.")
    assert "ACC703" not in said(losses)


REMAINDER = """
import os
import torch
import torch.nn.functional as F


def main(model, stream, accum_steps, total, path):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, total)
    if os.path.isfile(path):
        state = torch.load(path)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
    for update in range(total):
        for _ in range(accum_steps):
            x, y = next(stream)
            (F.cross_entropy(model(x), y) / accum_steps).backward()
        opt.step()
        opt.zero_grad()
        sched.step()
        if update % 1000 == 999:
            torch.save({{"model": model.state_dict(), "opt": opt.state_dict(){more}}}, path)
"""


def test_what_is_due_at_the_end_of_a_period_happens():
    assert errors(REMAINDER.format(more="")) == {"ACC704"}
    assert errors(REMAINDER.format(more=', "sched": sched.state_dict(), "update": update')) == set()


FILLED = """
import torch.nn.functional as F


def windows(loader, n):
    buffer = []
    for batch in loader:
        buffer.append(batch)
        if len(buffer) == n:
            yield buffer
            buffer = []


def train(model, loader, opt, n):
    for window in windows(loader, n):
        total = sum(int(b["mask"]{one}.sum()) for b in window)
        for b in window:
            nll = F.cross_entropy(model(b["ids"])[:, :-1].transpose(1, 2), b["ids"][:, 1:], reduction="none")
            ((nll * b["mask"][:, 1:]).sum() / total).backward()
        opt.step()
        opt.zero_grad()
"""


def test_a_window_is_as_large_as_a_generator_fills_it():
    assert errors(FILLED.format(one="")) == {"ACC104"}
    assert errors(FILLED.format(one="[:, 1:]")) == set()


RESUMED = """
import torch
import torch.nn.functional as F


def main(model, loader, opt, accum_steps, path=None):
    start, updates = 0, 0
    if path:
        state = torch.load(path)
        model.load_state_dict(state["model"])
        opt.load_state_dict(state["opt"])
        updates = state["updates"]
        start = state["updates"]{times}
    for i, (x, y) in enumerate(loader):
        if i < start:
            continue
        (F.cross_entropy(model(x), y) / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            opt.step()
            opt.zero_grad()
            updates += 1
            if updates % 100 == 0:
                torch.save({{"model": model.state_dict(), "opt": opt.state_dict(), "updates": updates}}, "last.pt")
"""


def test_microbatches_that_are_passed_over_after_a_resume():
    assert said(RESUMED.format(times="")) == {"ACC706"}
    # a run that restores its optimizer is not called once per epoch
    assert said(RESUMED.format(times=" * accum_steps")) == set()


def test_a_limit_that_leaves_out_what_comes_before_it_is_near():
    source = LOOP.format(loader="loader").replace("accum_steps, epochs):", "accum_steps, epochs, name):\n    first = int(name.split('-')[1])")
    source = source.replace("            loss = F", "            if step < first:\n                continue\n            loss = F")
    assert said(source) == {"ACC503"}
    assert "ACC003" not in {f.rule for f in run(source)}


SAVED = """
import torch
import torch.nn.functional as F


def main(model, loader, epochs):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    it = 0
    for epoch in range(epochs):
        for x, y in loader:
            (F.cross_entropy(model(x), y) / 4).backward()
            it += 1
            if it % 4 == 0:
                opt.step()
                opt.zero_grad()
            if it % {interval} == 0:
                torch.save({{"model": model.state_dict(), "opt": opt.state_dict(), "it": it}}, "last.pt")
"""


def test_an_interval_that_is_a_multiple_of_the_window_ends_with_one():
    assert errors(SAVED.format(interval=1000)) == set()
    (found,) = run(SAVED.format(interval=1001))
    assert (found.rule, found.confidence.label) == ("ACC705", "conditional")
    shifted = SAVED.format(interval=1000).replace("            it += 1\n", "").replace("it % 4", "(it + 1) % 4").replace('"last.pt")\n', '"last.pt")\n            it += 1\n')
    assert errors(shifted) == {"ACC705"}


def test_a_clip_before_the_first_backward_of_a_window():
    source = """
import torch
import torch.nn.functional as F


def main(model, stream, accum_steps, updates):
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(updates):
        opt.zero_grad()
        {early}
        for _ in range(accum_steps):
            x, y = next(stream)
            (F.cross_entropy(model(x), y) / accum_steps).backward()
        {late}
        opt.step()
"""
    clip = "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
    assert errors(source.format(early=clip, late="pass")) == {"ACC403"}
    assert errors(source.format(early="pass", late=clip)) == set()


def test_an_average_over_ranks_that_is_taken_by_hand():
    source = """
import torch
import torch.distributed as dist
import torch.nn.functional as F


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main(model, stream, opt, accum_steps, updates):
    for _ in range(updates):
        window = [next(stream) for _ in range(accum_steps)]
        n = torch.stack([(y[:, 1:] != -100).sum() for _, y in window]).sum()
        dist.all_reduce(n)
        for x, y in window:
            total = F.cross_entropy(model(x)[:, :-1].flatten(0, 1), y[:, 1:].flatten(), ignore_index=-100, reduction="sum")
            (total / n{times}).backward()
        average_gradients(model)
        opt.step()
        opt.zero_grad()
"""
    assert errors(source.format(times="")) == {"ACC107"}
    assert errors(source.format(times=" * dist.get_world_size()")) == set()


def test_the_larger_of_a_count_and_one_is_a_clamp():
    source = """
import torch


def main(net, stream, opt, accum_steps, updates):
    for _ in range(updates):
        window = [next(stream) for _ in range(accum_steps)]
        n = sum({count} for _, mask in window)
        for x, mask in window:
            (((net(x) - x).abs() * mask).sum() / n).backward()
        opt.step()
        opt.zero_grad()
"""
    assert errors(source.format(count="torch.maximum(mask.sum(-1), torch.ones(1)).sum()")) == {"ACC105"}
    assert errors(source.format(count="mask.sum(-1).sum()")) == set()


def test_a_counter_that_begins_anew_with_the_next_call_does_not_stand_still():
    source = """
import torch.nn.functional as F


def epoch(model, loader, opt, accum_steps):
    updates = 0
    for i, (x, y) in enumerate(loader):
        (F.cross_entropy(model(x), y) / accum_steps).backward()
        if (i + 1) % accum_steps == 0:
            opt.step()
            opt.zero_grad()
            updates += 1
            if updates % 100 == 0:
                evaluate(model)
"""
    assert "ACC702" not in said(source)
    assert "ACC702" in said(source.replace("            if updates", "        if updates").replace("                evaluate", "            evaluate"))


def test_who_is_told_how_large_a_window_is_says_where_it_ends():
    source = """
import torch.nn.functional as F
from timing import Timed


class Trainer(Timed):
    def __init__(self, model, opt, config):
        self.model, self.opt, self.config = model, opt, config

    def is_update_step(self, progress):
        return self.action_needed("update", self.config.gradient_accumulation_steps, progress)

    def train(self, loader, epochs, progress):
        for _ in range(progress.epoch, epochs):
            for x, y in loader:
                loss = F.cross_entropy(self.model(x), y){share}
                loss.backward()
                if self.is_update_step(progress):
                    self.opt.step()
                    self.opt.zero_grad()
"""
    assert errors(source.format(share=" / self.config.gradient_accumulation_steps")) == set()
    assert errors(source.format(share="")) == {"ACC102"}


CHECKED = """
import os

import torch
from accelerate import Accelerator


class Tuner:
    def __init__(self, config, model, loader):
        self.config = config
        self.accelerator = Accelerator(gradient_accumulation_steps=config.gradient_accumulation_steps)
        fine, message = self.check()
        if not fine:
            raise ValueError(message)
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.model, self.optimizer, self.loader)

    def train(self, samples):
        for sample in samples:
            for step in range(self.config.steps):
                with self.accelerator.accumulate(self.model):
                    loss = self.loss(sample, step)
                    self.accelerator.backward(loss)
                    self.optimizer.step()
                    self.optimizer.zero_grad()

    def check(self):
        if self.config.resume_from:
            found = list(filter(lambda name: "checkpoint_" in name, os.listdir(self.config.resume_from)))
            if len(found) == 0:
                return False, "no checkpoints"
        return True, ""

    def loss(self, sample, step):
        return (self.model(sample, step) - sample).pow(2).mean()
"""


def test_a_constructor_that_may_raise_before_it_prepares():
    assert errors(CHECKED) == set()
    unprepared = CHECKED.replace("self.model, self.optimizer, self.loader = self.accelerator.prepare(self.model, self.optimizer, self.loader)", "self.model = self.accelerator.prepare(self.model)")
    assert "ACC201" in errors(unprepared)
