"""The second sieve: the cheap structure of a file (``ast``) decides whether simulating it can lead anywhere.

Lossless by construction: a file is kept when any function, class or top-level statement holds a call that a
backward, a framework's trainer or an owned window can hide behind.
"""

from __future__ import annotations

import ast
import functools

NO_TRAINING_LOOP = "no-training-loop"  # what a file is called that ends here

# last names of calls behind which a backward can stand
BACKWARD = frozenset({"backward", "manual_backward", "backward_step", "loss_scaler", "train_batch", "backward_pass", "forward_backward_func"})
# methods that a framework calls once per microbatch
HOOKS = frozenset({"training_step", "compute_loss", "compute_loss_func", "train_step"})
# calls that own a window without any backward in sight
OWNERS = frozenset({"Accelerator", "TrainingArguments", "Trainer", "Fabric", "accumulate", "no_sync", "no_backward_sync", "SFTConfig"})


@functools.lru_cache(maxsize=1)
def python_tree(data: bytes) -> ast.Module:
    """The file as Python's own parser sees it; the last one is kept, since positions ask for the same file again.

    Raises what ``ast.parse`` raises.
    """
    return ast.parse(data)


def worth_simulating(data: bytes) -> bool:
    """Whether the file can hold an accumulation window. What this Python cannot parse is kept: libcst may.

    Raises RecursionError for what is nested too deeply for Python itself: libcst would need minutes and gigabytes.
    """
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
        elif kind is ast.Attribute and node.attr in ("no_sync", "require_backward_grad_sync", "backward"):  # type: ignore[attr-defined]
            return True
    return False
