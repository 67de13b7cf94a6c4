"""How a loop is spelled where a framework stands between it and torch: backward, communication, ranks, what is built."""

from __future__ import annotations

from dataclasses import dataclass

from ..plan import Plan
from ..script import Lines, mark

PREPARED = ("model", "optimizer", "loader", "scheduler", "val_loader")


@dataclass(frozen=True)
class Dialect:
    """Plain torch, with DistributedDataParallel where there are several ranks."""

    name: str = "torch"
    sharded: bool = False  # the framework deals the batches of one loader out to the ranks

    def backward(self, plan: Plan, expression: str) -> str:
        if plan.recipe.amp == "scaler":
            return f"{plan.n.scaler}.scale({expression}).backward()"
        return f"({expression}).backward()" if " " in expression else f"{expression}.backward()"

    def no_sync(self, plan: Plan) -> str:
        return f"{plan.n.model}.no_sync()"

    def silent(self, plan: Plan, sync: str) -> tuple[Lines, str]:
        """Communication off unless ``sync``: lines before, and what a ``with`` statement enters."""
        plan.imports.add("import contextlib")
        return [mark(f"context = contextlib.nullcontext() if {sync} else {self.no_sync(plan)}", "sync")], "context"

    def loader(self, plan: Plan, expression: str) -> str:
        return expression

    def world(self, plan: Plan) -> str:
        """The number of ranks, as an expression."""
        return "dist.get_world_size()"

    def reduced(self, plan: Plan, name: str) -> str:
        """The line that sums a tensor over all ranks."""
        return f"dist.all_reduce({name})"

    def clip(self, plan: Plan) -> str:
        parameters = f"{plan.n.model}.parameters()"
        if plan.recipe.clip == "norm":
            return f"torch.nn.utils.clip_grad_norm_({parameters}, 1.0)"
        return f"torch.nn.utils.clip_grad_value_({parameters}, 0.5)"

    def bare(self, plan: Plan) -> str:
        """The user's own model, without what is wrapped around it."""
        return f"{plan.n.model}.module" if plan.recipe.ddp != "none" else plan.n.model

    def first_rank(self, plan: Plan) -> str:
        return "rank == 0"

    def objects(self, plan: Plan) -> dict[str, str]:
        """What is built before everything else."""
        return {}

    def opening(self, plan: Plan) -> Lines:
        """Lines before anything is built."""
        return ['dist.init_process_group("gloo")', "rank = dist.get_rank()"] if plan.recipe.ddp != "none" else []

    def closing(self, plan: Plan) -> Lines:
        """Lines after everything was built."""
        return []

    def imports(self, plan: Plan) -> set[str]:
        if plan.recipe.ddp == "none":
            return set()
        return {"import torch.distributed as dist", "from torch.nn.parallel import DistributedDataParallel as DDP"}

    def model(self, plan: Plan, expression: str) -> str:
        return f"DDP({expression})" if plan.recipe.ddp != "none" else expression


class Accelerate(Dialect):
    """``accumulate()`` where the window is the framework's; else ``no_sync`` around a window of the script's own.

    Facts: accelerate 1.15, ``accelerator.py``, ``optimizer.py``, ``scheduler.py``; tests/frameworks measures them.
    """

    def backward(self, plan: Plan, expression: str) -> str:
        return f"{plan.n.accelerator}.backward({expression})"

    def no_sync(self, plan: Plan) -> str:
        return f"{plan.n.accelerator}.no_sync({plan.n.model})"

    def world(self, plan: Plan) -> str:
        return f"{plan.n.accelerator}.num_processes"

    def reduced(self, plan: Plan, name: str) -> str:
        return f'{name} = {plan.n.accelerator}.reduce({name}, reduction="sum")' if plan.recipe.names % 2 else f"{name} = {plan.n.accelerator}.gather({name}).sum()"

    def clip(self, plan: Plan) -> str:
        parameters = f"{plan.n.model}.parameters()"
        if plan.recipe.clip == "norm":
            return f"{plan.n.accelerator}.clip_grad_norm_({parameters}, 1.0)"
        return f"{plan.n.accelerator}.clip_grad_value_({parameters}, 0.5)"

    def bare(self, plan: Plan) -> str:
        return f"{plan.n.accelerator}.unwrap_model({plan.n.model})"

    def first_rank(self, plan: Plan) -> str:
        return f"{plan.n.accelerator}.is_main_process"

    def objects(self, plan: Plan) -> dict[str, str]:
        steps = f", gradient_accumulation_steps={plan.k}" if plan.divides else ""
        if plan.recipe.window == "accumulate" and plan.recipe.tail == "carry":
            steps = f", gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps={plan.k}, sync_with_dataloader=False)"
        return {"accelerator": f"Accelerator(cpu=True{steps})"}

    def opening(self, plan: Plan) -> Lines:
        return []

    def closing(self, plan: Plan) -> Lines:
        names = [plan.n.__getattr__(what) for what in PREPARED if what in plan.objects and what not in plan.raw]
        return [mark(f"{', '.join(names)} = {plan.n.accelerator}.prepare({', '.join(names)})", "prepare")]

    def imports(self, plan: Plan) -> set[str]:
        plugin = plan.recipe.window == "accumulate" and plan.recipe.tail == "carry"
        return {"from accelerate import Accelerator", *({"from accelerate.utils import GradientAccumulationPlugin"} if plugin else ())}

    def model(self, plan: Plan, expression: str) -> str:
        return expression


class Fabric(Accelerate):
    """Lightning Fabric: nothing is divided, nothing is gated; communication is off in ``no_backward_sync``."""

    def backward(self, plan: Plan, expression: str) -> str:
        return f"{plan.n.fabric}.backward({expression})"

    def no_sync(self, plan: Plan) -> str:
        return f"{plan.n.fabric}.no_backward_sync({plan.n.model})"

    def world(self, plan: Plan) -> str:
        return f"{plan.n.fabric}.world_size"

    def reduced(self, plan: Plan, name: str) -> str:
        return f'{name} = {plan.n.fabric}.all_reduce({name}, reduce_op="sum")'

    def clip(self, plan: Plan) -> str:
        limit = "max_norm=1.0" if plan.recipe.clip == "norm" else "clip_val=0.5"
        return f"{plan.n.fabric}.clip_gradients({plan.n.model}, {plan.n.optimizer}, {limit})"

    def bare(self, plan: Plan) -> str:
        return f"{plan.n.model}.module"

    def first_rank(self, plan: Plan) -> str:
        return f"{plan.n.fabric}.is_global_zero"

    def objects(self, plan: Plan) -> dict[str, str]:
        return {"fabric": 'L.Fabric(accelerator="cpu", devices=2, strategy="ddp")'}

    def loader(self, plan: Plan, expression: str) -> str:
        return f"{plan.n.bare('fabric')}.setup_dataloaders({expression})"

    def silent(self, plan: Plan, sync: str) -> tuple[Lines, str]:
        return [], f"{plan.n.fabric}.no_backward_sync({plan.n.model}, enabled=not ({sync}))"

    def closing(self, plan: Plan) -> Lines:
        n = plan.n
        return [mark(f"{n.model}, {n.optimizer} = {n.fabric}.setup({n.model}, {n.optimizer})", "prepare")]

    def imports(self, plan: Plan) -> set[str]:
        return {"import lightning as L"}


class Lightning(Dialect):
    """Inside of a LightningModule."""

    def backward(self, plan: Plan, expression: str) -> str:
        return f"self.manual_backward({expression})"

    def clip(self, plan: Plan) -> str:
        limit = 'gradient_clip_val=1.0, gradient_clip_algorithm="norm"' if plan.recipe.clip == "norm" else 'gradient_clip_val=0.5, gradient_clip_algorithm="value"'
        return f"self.clip_gradients({plan.n.optimizer}, {limit})"


_DIALECTS = {"trainer": Dialect("trainer"), "lightning": Lightning("lightning", True), "torch": Dialect(), "accelerate": Accelerate("accelerate", True), "fabric": Fabric("fabric", True)}


def of(plan: Plan) -> Dialect:
    return _DIALECTS[plan.recipe.framework]
