"""A harder run of the same script: epochs cut short, so that a tail appears, and ragged labels, so that counts differ.

Both stand between the data loader and the script. They change what is trained on, never how: a run under stress is a
second run and is reported as one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, dataloader

LABELS = ("labels", "label_ids", "label", "targets", "target", "y")
SHARES = (1.0, 0.4, 0.75, 0.2, 0.9, 0.55, 0.3)  # of the labels that stay, batch by batch


class ShortSampler:
    """The first batches of a batch sampler."""

    def __init__(self, sampler: Any, batches: int) -> None:
        self._sampler = sampler
        self._batches = batches

    def __iter__(self) -> Any:
        return itertools.islice(iter(self._sampler), self._batches)

    def __len__(self) -> int:
        return min(self._batches, len(self._sampler))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_sampler"], name)


def install(recorder: Any, wish: Mapping[str, Any]) -> None:
    """``wish``: short (batches of an epoch, or False), ragged, ignore (the label that a loss leaves out)."""
    if wish.get("short"):
        recorder.patches.replace(DataLoader, "__init__", lambda original: _shortening(recorder, original, int(wish["short"])), "stress: short epochs")
    if wish.get("ragged"):
        # beneath the recorder's own wrapper, so that the counts it writes are those that the script gets
        ignore = int(wish.get("ignore", -100))
        for cls in (dataloader._SingleProcessDataLoaderIter, dataloader._MultiProcessingDataLoaderIter):
            recorder.patches.replace(cls, "_next_data", lambda original: _ragged(recorder, original, ignore), f"{cls.__name__}._next_data")


def _shortening(recorder: Any, original: Callable, batches: int) -> Callable:
    @functools.wraps(original)
    def __init__(loader: Any, *args: Any, **kwargs: Any) -> None:
        original(loader, *args, **kwargs)
        with recorder.working("stress"):
            sampler = getattr(loader, "batch_sampler", None)
            if sampler is not None and not isinstance(sampler, ShortSampler) and hasattr(sampler, "__len__") and len(sampler) > batches:
                # the class forbids the change after construction, for its users' sake
                object.__setattr__(loader, "batch_sampler", ShortSampler(sampler, batches))

    return __init__


def _ragged(recorder: Any, original: Callable, ignore: int) -> Callable:
    @functools.wraps(original)
    def _next_data(iterator: Any) -> Any:
        batch = original(iterator)
        with recorder.working("stress"):
            number = iterator.__dict__.get("_accumlint_batches", 0)
            iterator.__dict__["_accumlint_batches"] = number + 1
            batch = ragged(batch, SHARES[number % len(SHARES)], ignore)
        return batch

    return _next_data


def ragged(batch: Any, share: float, ignore: int) -> Any:
    """A batch whose labels keep only their first ``share``; unchanged where no labels are recognised."""
    if isinstance(batch, Mapping):
        for name in LABELS:
            value = batch.get(name)
            if _is_labels(value):
                changed = dict(batch) if type(batch) is dict else batch.copy()
                changed[name] = _masked(value, share, ignore)
                return changed
        return batch
    if isinstance(batch, (list, tuple)) and len(batch) > 1 and _is_labels(batch[-1]) and not hasattr(batch, "_fields"):
        return type(batch)([*batch[:-1], _masked(batch[-1], share, ignore)])
    return batch


def _is_labels(value: Any) -> bool:
    return torch.is_tensor(value) and value.dtype == torch.long and 1 <= value.dim() <= 3 and value.numel() > 1


def _masked(labels: torch.Tensor, share: float, ignore: int) -> torch.Tensor:
    out = labels.clone()
    width = out.shape[-1]
    out[..., max(1, int(width * share)) :] = ignore
    return out
