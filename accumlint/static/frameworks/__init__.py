"""What calls mean: one module per library, tables from names to handlers, one registry that asks them in order."""

from __future__ import annotations

import functools

from accumlint.static.frameworks.base import Registry


@functools.cache
def registry() -> Registry:
    """The registry with every framework's tables."""
    from accumlint.static.frameworks import accelerate, deepspeed, hf_trainer, lightning, python, tensor_operations, torch

    made = Registry()
    for module in (accelerate, deepspeed, lightning, hf_trainer, python, tensor_operations, torch):
        made.add(module.TABLE)
    return made
