"""First sieve: raw bytes decide whether a file can hold gradient accumulation at all.

Most files of a repository end here, so the test is a handful of substring scans and no import. It may keep
a file that has none (the next sieve looks at structure), it must never lose one that has.
"""

from __future__ import annotations

import re

# They name a backward, or a method that a trainer calls for each microbatch.
STRONG = (
    b"backward",
    b"training_step",
    b"compute_loss",
    b"train_batch",
    b"no_sync",
    b"TrainingArguments",
)

MMENGINE = b"accumulative_counts"  # stands in configurations written in Python, which import nothing

# These are everyday words elsewhere; like the others they count only in a file that names a training framework.
WEAK = (b"accum", b"grad_acc", b"scaler(", b"Trainer", b".step(", b"zero_grad")

FRAMEWORKS = (
    b"torch",
    b"lightning",
    b"accelerate",
    b"deepspeed",
    b"transformers",
    b"mmengine",
    b"composer",
    b"ignite",
    b"timm",
    b"fairseq",
    b"fastai",
    b"catalyst",
    b"trl",
    b"colossalai",
    b"megatron",
    b"apex",
)


def speaks_of_training(data: bytes) -> bool:
    """Whether any word of a training loop stands in the bytes, whatever the library."""
    return any(word in data for word in STRONG) or any(word in data for word in WEAK)


# an ASCII letter that JSON needn't escape, escaped all the same: words are not there as bytes
_ESCAPED_LETTER = re.compile(rb"\\u00(?:[46][1-9a-fA-F]|[57][0-9aA])")


def notebook_may_accumulate(data: bytes) -> bool:
    """The same for a notebook, whose JSON could hide a word behind escapes."""
    return may_accumulate(data) or _ESCAPED_LETTER.search(data) is not None


def may_accumulate(data: bytes) -> bool:
    """Whether the bytes of a Python file leave room for a window of more than one microbatch."""
    if MMENGINE in data:
        return True
    if not speaks_of_training(data):
        return False
    # turtles go backward, too, and other tensor libraries have laws of their own
    return any(name in data for name in FRAMEWORKS)
