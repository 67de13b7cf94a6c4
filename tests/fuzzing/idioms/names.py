"""Spellings. Number 0 is the plainest; the others are drawn from lists of names that scripts really use."""

from __future__ import annotations

import random
from dataclasses import dataclass

CHOICES: dict[str, tuple[str, ...]] = {
    "model": ("model", "net", "network", "encoder", "backbone", "student"),
    "optimizer": ("optimizer", "optim", "opt", "optimiser"),
    "scheduler": ("scheduler", "lr_scheduler", "sched"),
    "scaler": ("scaler", "grad_scaler"),
    "loader": ("loader", "train_loader", "dataloader", "train_dataloader", "train_dl"),
    "k": ("accumulation_steps", "accum_steps", "grad_accum_steps", "gradient_accumulation_steps", "accumulate", "grad_accum"),
    "epochs": ("epochs", "num_epochs", "n_epochs"),
    "i": ("i", "step", "batch_idx", "it", "idx"),
    "loss": ("loss", "batch_loss"),
    "x": ("x", "inputs", "features", "tokens"),
    "y": ("y", "targets", "labels"),
    "batch": ("batch", "sample", "data"),
    "logits": ("logits", "out", "scores"),
    "window": ("window", "group", "microbatches"),
    "batches": ("batches", "iterator", "data_iter"),
    "pending": ("pending", "micro_count", "seen_in_window", "since_update"),
    "seen": ("seen", "micro_step", "total_micro"),
    "updates": ("updates", "global_step", "n_updates", "update_count"),
    "total": ("n_targets", "n_tokens", "num_valid", "denominator"),
    "boundary": ("is_boundary", "sync", "do_update", "last_of_window"),
    "usable": ("usable", "n_full", "limit"),
    "ema": ("ema", "ema_model", "averaged"),
    "update": ("update", "apply_update", "optimizer_update", "take_step"),
    "criterion": ("criterion", "loss_fn", "objective"),
    "critic": ("critic", "head"),
    "critic_optimizer": ("critic_optimizer", "head_optimizer"),
    "val_loader": ("val_loader", "valid_loader"),
    "train": ("train", "fit", "run"),
    "accelerator": ("accelerator", "accel"),
    "fabric": ("fabric",),
}


@dataclass
class Names:
    """The spelling of everything in one script; objects that a class holds are reached through ``self``."""

    spelled: dict[str, str]
    held: frozenset[str] = frozenset()

    def __getattr__(self, what: str) -> str:
        try:
            name = self.spelled[what]
        except KeyError:
            raise AttributeError(what) from None
        return f"self.{name}" if what in self.held else name

    def bare(self, what: str) -> str:
        """The name without what it is reached through."""
        return self.spelled[what].removeprefix("args.")


def names(number: int) -> Names:
    """The spelling with that number."""
    if number == 0:
        return Names({what: options[0] for what, options in CHOICES.items()})
    source = random.Random(f"names {number}")
    return Names({what: source.choice(options) for what, options in CHOICES.items()})
