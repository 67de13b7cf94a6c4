"""First sieve: raw bytes decide whether a file can hold gradient accumulation at all.

Most files of a repository end here, so the test is a handful of substring scans and no import. It may keep
a file that has none (the next sieve looks at structure), it must never lose one that has.
"""

from __future__ import annotations

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


def may_accumulate(data: bytes) -> bool:
    """Whether the bytes of a Python file leave room for a window of more than one microbatch."""
    if MMENGINE in data:
        return True
    if not any(word in data for word in STRONG) and not any(word in data for word in WEAK):
        return False
    # turtles go backward, too, and other tensor libraries have laws of their own
    return any(name in data for name in FRAMEWORKS)
