"""Loaders and datasets: what a microbatch holds."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.static.frameworks.torch.table import TABLE, function, method
from accumlint.static.values import Closure, Stream, Thing, Unknown, last_name

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


def make_loader(run: Interpreter, call: Call) -> Thing:
    made = run.thing("loader", call.name, call.site)
    note_batch_size(run, call)
    rows = known_rows(call.get(0, "dataset"))
    size = call.get(1, "batch_size", 1)
    if rows is not None and isinstance(size, int) and size > 0:
        batches = rows // size if call.kwargs.get("drop_last") is True else -(-rows // size)
        made.state["batches"] = batches
        run.traits.add(f"batches {batches}")
    if any(isinstance(v, Unknown) and "whole" in v.tags for v in call.values):
        run.traits.add("whole windows")
    collate = call.kwargs.get("collate_fn")
    if isinstance(collate, Closure):
        _read_collate(run, collate)
    return made


def note_batch_size(run: Interpreter, call: Call) -> None:
    """What a loader is built with as its batch size, by keyword or by the only argument of that name."""
    size = call.kwargs.get("batch_size")
    if size is None:
        named = [v for v in call.args if isinstance(v, (Unknown, Quantity)) and "batch_size" in _named_by(v)]
        size = named[0] if len(named) == 1 else None
    number = run.numeric(size) if isinstance(size, (Unknown, Quantity)) else None
    if number is not None:
        run.know_batch_size(number, call.site)


TABLE.roles["batch size"] = note_batch_size


def _named_by(value: Unknown | Quantity) -> str:
    if isinstance(value, Unknown):
        return value.last
    return last_name(value.symbols[0][0]) if value.symbols else ""


def known_rows(value: Any) -> int | None:
    """The number of rows of data that the script itself makes (``torch.randn(60, 12)``)."""
    for tag in getattr(value, "tags", ()):
        if tag.startswith("rows="):
            return int(tag[5:])
    if isinstance(value, Stream) and value.literal is False and value.length is not None and not value.loader and value.thing is not None:
        return value.length
    return len(value) if isinstance(value, list) and len(value) > 4 else None


@function("randn", "rand", "ones", "empty", "randint", "normal", "arange", "TensorDataset", "zeros_rows")
def _made_data(run: Interpreter, call: Call) -> Any:
    if call.name == "TensorDataset":
        rows = known_rows(call.get(0, "tensors"))
    else:
        sizes = [a for a in call.args if isinstance(a, (int, tuple, list)) and not isinstance(a, bool)]
        if call.name == "randint":
            sizes = [a for a in sizes if isinstance(a, (tuple, list))]
        first = sizes[0] if sizes else None
        rows = first[0] if isinstance(first, (tuple, list)) and first else first
    tags = frozenset({f"rows={rows}"}) if isinstance(rows, int) and not isinstance(rows, bool) and rows > 4 else frozenset()
    return Unknown(call.key, tags=tags)


def _read_collate(run: Interpreter, collate: Closure) -> None:
    names = collate.function.calls
    if "pad_sequence" in names or "pad" in names:
        run.traits.add("padding")


def _iterate_loader(run: Interpreter, thing: Thing) -> Stream:
    return Stream(lambda i: run.batch_data(thing.name), run.length, loader=True, thing=thing, position=0)


TABLE.roles["iterate loader"] = _iterate_loader


@method("loader", "next_batch", "get_batch", "next", "__next__", "get_next", "sample", "fetch")
def _loader_next(run: Interpreter, receiver: Thing, call: Call) -> Any:
    return run.batch_data(receiver.name)


@method("loader", "*")
def _loader_other(run: Interpreter, receiver: Thing, call: Call) -> Any:
    if call.name == "__len__":
        return Quantity.of(run.length, "len")
    return Unknown(call.key)


@function("skip_first_batches")
def _skip_batches(run: Interpreter, call: Call) -> Any:
    number = run.numeric(call.get(1, "num_batches", 0))
    skipped = next((t[8:] for t in (number.tags if number is not None else ()) if t.startswith("resumed:")), None)
    if skipped is not None:
        run.emit(Kind.RESUME, call.site, key=skipped, into="", use="skip")
    return call.get(0, "dataloader")


@function("pad_sequence")
def _pad_sequence(run: Interpreter, call: Call) -> Any:
    run.traits.add("padding")
    if call.kwargs.get("padding_value") == -100:
        run.traits.add("ignored labels")
    return Unknown(call.key)
