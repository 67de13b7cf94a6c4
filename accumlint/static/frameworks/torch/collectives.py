"""Collectives, ranks and the world."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity, RANKS
from accumlint.static import syntax as ir
from accumlint.static.frameworks.torch.table import function
from accumlint.static.values import Gradient, Parameters, Tensor, Unknown, changed, on_main_rank, rank_number

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


@function("all_reduce", "all_reduce_coalesced", "reduce_tensor", "all_reduce_sum", "all_reduce_mean")
def _all_reduce(run: Interpreter, call: Call) -> Any:
    """A number is summed (or averaged) over ranks in place; a gradient is reduced by hand."""
    value = call.get(0, "tensor")
    how = call.get(1, "op")
    average = "AVG" in str(getattr(how, "origin", getattr(how, "key", how))) or "mean" in call.name
    run.distributed = True
    if isinstance(value, (Gradient, Parameters)):
        run.emit(Kind.REDUCE, call.site, average=average)
        return None
    reduced = _reduced(value, average)
    node = call.node.args[0].value if call.node.args else None
    if isinstance(node, (ir.Name, ir.Attr, ir.Subscript)):
        run.assign(node, reduced, call.frame, call.site)
    return reduced


def _reduced(value: Any, average: bool = False) -> Any:
    if isinstance(value, Quantity):
        return value.reduced(average)
    if isinstance(value, int) and not isinstance(value, bool):
        return value if average else value * RANKS
    if isinstance(value, Tensor):
        return changed(value, local=False)
    if isinstance(value, list):
        return [_reduced(v, average) for v in value]
    if isinstance(value, Unknown):
        return Unknown(f"reduced({value.key})", -1, False, value.tags)
    return value


@function("broadcast", "broadcast_object_list", "all_gather", "all_gather_object", "all_gather_into_tensor", "reduce_scatter_tensor")
def _broadcast(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "tensor")
    node = call.node.args[0].value if call.node.args else None
    run.distributed = True
    if isinstance(value, (Tensor, Unknown)) and isinstance(node, (ir.Name, ir.Attr)):
        made = changed(value, local=False) if isinstance(value, Tensor) else Unknown(value.key, -1, False, value.tags)
        run.assign(node, made, call.frame, call.site)
    return value


@function("get_world_size", "get_data_parallel_world_size", "device_count_total", "xrt_world_size")
def _world(run: Interpreter, call: Call) -> Any:
    run.distributed = True
    return Quantity.of(RANKS, "world")


@function("get_rank", "get_local_rank", "get_global_rank")
def _rank(run: Interpreter, call: Call) -> Any:
    return rank_number()


@function("is_main_process", "is_primary", "is_master", "is_rank_zero", "is_rank_0", "is_global_primary", "is_main", "main_process")
def _main_rank(run: Interpreter, call: Call) -> Any:
    return on_main_rank()


@function("init_process_group", "init_distributed_mode", "init_distributed", "setup_distributed")
def _init_group(run: Interpreter, call: Call) -> Any:
    run.distributed = True
    return None
