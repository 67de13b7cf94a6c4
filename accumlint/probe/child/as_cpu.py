"""Lets a script that insists on CUDA run on the CPU: devices are rewritten, ``torch.cuda`` answers for one small device.

Asked for explicitly and said in every report: number types and kernels are then not those of the real run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

_QUIET = (
    "set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "seed", "seed_all", "reset_peak_memory_stats",
    "reset_max_memory_allocated", "ipc_collect", "init", "nvtx",
)  # fmt: skip
_ANSWERS: dict[str, Any] = {
    "is_available": True, "device_count": 1, "current_device": 0, "get_device_name": "a CPU in the place of CUDA", "memory_allocated": 0,
    "max_memory_allocated": 0, "memory_reserved": 0, "max_memory_reserved": 0, "is_bf16_supported": True, "get_device_capability": (8, 0),
    "mem_get_info": (1 << 34, 1 << 34), "is_initialized": True, "utilization": 0,
}  # fmt: skip


def on_cpu(value: Any) -> Any:
    """A device, in any spelling, as the CPU; everything else as it is."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if isinstance(value, str) and (value == "cuda" or value.startswith("cuda:")):
        return "cpu"
    return value


class _Devices(TorchFunctionMode):
    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if name == "cuda" and args:
            return args[0]
        if name in ("pin_memory", "record_stream") and args:
            return args[0]
        kwargs.pop("pin_memory", None)
        if "device" in kwargs:
            kwargs["device"] = "cpu" if isinstance(kwargs["device"], int) else on_cpu(kwargs["device"])
        if name == "to" and len(args) > 1 and isinstance(args[1], int) and not isinstance(args[1], bool):
            args = (args[0], "cpu", *args[2:])  # a bare number is a CUDA device
        return function(*(on_cpu(a) for a in args), **kwargs)


def install(recorder: Any) -> None:
    patches = recorder.patches
    for name in _QUIET:
        patches.replace(torch.cuda, name, lambda _: _quiet(), f"as cpu: cuda.{name}")
    for name, answer in _ANSWERS.items():
        patches.replace(torch.cuda, name, lambda _, answer=answer: _answering(answer), f"as cpu: cuda.{name}")
    patches.replace(nn.Module, "cuda", lambda _: lambda module, device=None: module, "as cpu: Module.cuda")
    patches.replace(nn.Module, "to", _moving, "as cpu: Module.to")
    patches.replace(torch.Tensor, "pin_memory", lambda _: lambda tensor, device=None: tensor, "as cpu: pin_memory")
    patches.replace(torch.amp.autocast_mode.autocast, "__init__", _first_argument, "as cpu: autocast")
    patches.replace(torch.amp.GradScaler, "__init__", _first_argument, "as cpu: GradScaler")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available():
        patches.replace(distributed, "init_process_group", _gloo, "as cpu: init_process_group")
        from torch.nn.parallel import DistributedDataParallel

        patches.replace(DistributedDataParallel, "__init__", _without_devices, "as cpu: DistributedDataParallel")
    from torch.utils.data import DataLoader

    patches.replace(DataLoader, "__init__", _unpinned, "as cpu: DataLoader")
    mode = _Devices()
    mode.__enter__()
    patches.on_undo(lambda: mode.__exit__(None, None, None))


def _quiet() -> Callable:
    # a function of its own for every name: torch's compiler keeps a table by identity
    return lambda *args, **kwargs: None


def _answering(answer: Any) -> Callable:
    return lambda *args, **kwargs: answer


def _moving(original: Callable) -> Callable:
    @functools.wraps(original)
    def to(module: Any, *args: Any, **kwargs: Any) -> Any:
        args = tuple("cpu" if isinstance(a, int) and not isinstance(a, bool) else on_cpu(a) for a in args)
        if isinstance(kwargs.get("device"), int):
            kwargs["device"] = "cpu"
        return original(module, *args, **{k: on_cpu(v) for k, v in kwargs.items()})

    return to


def _first_argument(original: Callable) -> Callable:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        if args:
            args = (on_cpu(args[0]), *args[1:])
        for name in ("device_type", "device"):
            if name in kwargs:
                kwargs[name] = on_cpu(kwargs[name])
        if not args and not {"device_type", "device"} & set(kwargs) and type(self).__name__ == "GradScaler":
            args = ("cpu",)  # the default is cuda
        original(self, *args, **kwargs)

    return __init__


def _gloo(original: Callable) -> Callable:
    @functools.wraps(original)
    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device_id", None)
        return original("gloo" if backend is None or "nccl" in str(backend) else backend, *args, **kwargs)

    return init_process_group


def _without_devices(original: Callable) -> Callable:
    @functools.wraps(original)
    def __init__(self: Any, module: Any, device_ids: Any = None, output_device: Any = None, **kwargs: Any) -> None:
        original(self, module, **kwargs)

    return __init__


def _unpinned(original: Callable) -> Callable:
    @functools.wraps(original)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs.pop("pin_memory", None)
        kwargs.pop("pin_memory_device", None)
        original(self, *args, **kwargs)

    return __init__
