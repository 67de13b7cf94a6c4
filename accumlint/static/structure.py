"""The second sieve: the cheap structure of a file decides whether simulating it can lead anywhere.

Its bytes are looked through for anything that reads like what is wanted, comments and strings included; only what
passes is parsed (``ast``), which costs ten times as much.
Lossless by construction: a file is kept when any function, class or top-level statement holds a call that a
backward, a framework's trainer or an owned window can hide behind.
"""

from __future__ import annotations

import ast
import functools
import re

NO_TRAINING_LOOP = "no-training-loop"  # what a file is called that ends here

# last names of calls behind which a backward can stand
BACKWARD = frozenset({"backward", "manual_backward", "backward_step", "loss_scaler", "train_batch", "backward_pass", "forward_backward_func"})
# methods that a framework calls once per microbatch
HOOKS = frozenset({"training_step", "compute_loss", "compute_loss_func", "train_step"})
# calls that own a window without any backward in sight
OWNERS = frozenset({"Accelerator", "TrainingArguments", "Trainer", "Fabric", "accumulate", "no_sync", "no_backward_sync", "SFTConfig"})
# attributes that need no call to matter: `context = model.no_sync if … else nullcontext`
ATTRIBUTES = frozenset({"no_sync", "require_backward_grad_sync", "backward"})


def _one_of(names: frozenset[str]) -> bytes:
    return b"(?:" + b"|".join(re.escape(name.encode()) for name in sorted(names)) + b")"


_GAP = rb"(?:[\s\\]|#[^\r\n]*[\r\n])*"  # what may stand between two tokens
_READS_LIKE_IT = re.compile(
    rb"(?:\b" + _one_of(BACKWARD | OWNERS) + rb"|scaler\w{0,99})" + _GAP + rb"\("
    + rb"|\bdef" + _GAP + _one_of(HOOKS) + rb"\b"
    + rb"|\." + _GAP + _one_of(ATTRIBUTES) + rb"\b"
)  # fmt: skip


@functools.lru_cache(maxsize=1)
def python_tree(data: bytes) -> ast.Module:
    """The file as Python's own parser sees it; the last one is kept, since positions ask for the same file again.

    Raises what ``ast.parse`` raises.
    """
    return ast.parse(data)


def worth_simulating(data: bytes) -> bool:
    """Whether the file can hold an accumulation window. What this Python cannot parse is kept: libcst may.

    What doesn't even read like it is not parsed, so that nothing is said of its syntax either.

    Raises RecursionError for what is nested too deeply for Python itself: libcst would need minutes and gigabytes.
    """
    if _READS_LIKE_IT.search(data) is None:
        return False
    try:
        tree = python_tree(data)
    except (RecursionError, MemoryError) as error:
        raise RecursionError(str(error)) from error
    except SyntaxError as error:
        if "too many nested" in str(error) or "too many levels" in str(error):
            raise RecursionError(str(error)) from error
        return True
    except ValueError:
        return True
    for node in ast.walk(tree):
        kind = type(node)
        if kind is ast.Call:
            func = node.func  # type: ignore[attr-defined]
            name = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
            if name in BACKWARD or name in OWNERS or "scaler" in name:
                return True
        elif kind is ast.FunctionDef and node.name in HOOKS:  # type: ignore[attr-defined]
            return True
        elif kind is ast.Attribute and node.attr in ATTRIBUTES:  # type: ignore[attr-defined]
            return True
    return False
