"""Python itself: builtins, itertools, functools, contextlib, math, argparse, os.environ, containers."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import RANKS, Quantity, quantity
from accumlint.static import syntax as ir
from accumlint.static import tensors
from accumlint.static.frameworks.base import Table, joined, tensors_in
from accumlint.static.values import (
    Batches, Closure, Context, Instance, Method, Parameters, Partial, Stream, Tensor, Test, Thing, Unknown, changed, rank_number,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

TABLE = Table()
function = TABLE.function
method = TABLE.method


@function("range", "trange")
def _range(run: Interpreter, call: Call) -> Any:
    args = [v for v in call.args]
    numbers = [run.numeric(v) for v in args]
    if not numbers:
        return Stream(lambda i: Unknown("item"))
    tag = f"index:{call.site}"
    step = numbers[2] if len(numbers) > 2 else Quantity.of(1)
    start = numbers[0] if len(numbers) > 1 else Quantity.of(0)
    if isinstance(args[0], Quantity) and len(numbers) > 1 and args[0].tags == {"epochs"}:
        start = Quantity.of(0)  # range(self.epoch, epochs): named like a number of epochs, and the one where an earlier run stopped
    stop = numbers[1] if len(numbers) > 1 else numbers[0]
    literal = args[-1] if len(args) == 1 and isinstance(args[0], int) else None
    if stop is not None and {"floored", "K"} <= stop.tags:
        run.traits.add("whole windows")
    stepping = any(isinstance(v, Unknown) for v in args[2:]) or (step is not None and not step.known)
    if stepping and stop is not None and stop.integer is not None:
        # range(0, rows, size) with a size that nobody knows: K slices, the last one short
        size = -(-stop.integer // 3)
        step = Quantity.of(size, "slice")
        if isinstance(args[2], Unknown):
            run.things[args[2].key] = step
        node = call.node.args[2].value
        if isinstance(node, (ir.Name, ir.Attr)):
            run.assign(node, step, call.frame, call.site)
    if step is not None and step.integer and start is not None and start.integer is not None and stop is not None:
        if stop.integer is not None:
            first, pace = start.integer, step.integer
            length = max(0, -((first - stop.integer) // pace))  # len() refuses what a script may count to
            if run.learned.literal is not None and literal == run.learned.literal:
                first, pace, length = 0, 1, 3
            return Stream(lambda i: Quantity.of(first + i * pace, tag), length, thing=literal)
    bound = ""
    for candidate in (args[1] if len(args) > 1 else args[0],):
        if isinstance(candidate, Unknown):
            bound = candidate.key
        elif isinstance(candidate, Quantity) and len(candidate.symbols) == 1 and not candidate.tags & {"len", "rows"}:
            bound = candidate.symbols[0][0]
    first = start.integer if start is not None and start.integer is not None else 0
    return Stream(lambda i: Quantity.of(i + first, tag), None, bound=bound)


@function("divmod")
def _divmod(run: Interpreter, call: Call) -> Any:
    one, two = call.get(0, "x"), call.get(1, "y")
    return (run.binary("//", one, two, call.site, f"{call.key}[0]"), run.binary("%", one, two, call.site, f"{call.key}[1]"))


@function("enumerate")
def _enumerate(run: Interpreter, call: Call) -> Any:
    inner = run.stream(call.get(0, "iterable"), call.node.args[0].value if call.node.args else None)
    start = call.get(1, "start", 0)
    begin = run.numeric(start)
    offset = begin.integer if begin is not None and begin.integer is not None else 0
    tag = f"index:{call.site}"
    return Stream(
        lambda i: (Quantity.of(i + offset, tag), inner.item(i)), inner.length, inner.infinite, inner.loader, inner.bound,
        inner.position, inner.literal, inner.thing,
    )  # fmt: skip


@function("zip", "zip_longest")
def _zip(run: Interpreter, call: Call) -> Any:
    streams = [run.stream(v, None) for v in call.args]
    lengths = [s.length for s in streams if s.length is not None and not s.infinite]
    loader = any(s.loader for s in streams)
    return Stream(
        lambda i: tuple(s.item(i % s.length if s.infinite and s.length else i) for s in streams),
        min(lengths) if lengths else None,
        infinite=bool(streams) and all(s.infinite for s in streams),
        loader=loader,
        literal=bool(streams) and all(s.literal for s in streams if not s.infinite) and not loader,
    )


@function("tqdm", "tqdm_notebook", "track", "progress_bar", "iter", "reversed", "sorted", "prefetch", "rich_progress", "auto_tqdm",
          "ProgressBar", "tqdm_asyncio", "aiter", "copy", "deepcopy", "MpDeviceLoader", "ParallelLoader", "log_every", "metric_logger")
def _same(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "iterable")
    if value is None:
        # tqdm(total=…) is a bar that is updated by hand
        return Unknown(call.key)
    if call.name == "iter" and not isinstance(value, (Stream, list, tuple, dict)):
        stream = run.stream(value, call.node.args[0].value)
        return Stream(stream.item, stream.length, stream.infinite, stream.loader, stream.bound, 0, stream.literal, stream.thing)
    if call.name in ("copy", "deepcopy"):
        return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else _twin(run, value, call)
    return value


def _twin(run: Interpreter, value: Any, call: Call) -> Any:
    """A deep copy of a model is another model."""
    if isinstance(value, Thing) and value.kind == "model" or isinstance(value, Instance) and value.role == "model":
        made = run.thing("model", f"copy of {value.name if isinstance(value, Thing) else value.cls.name}", call.site)
        made.models = frozenset({made.number})
        return made
    if isinstance(value, Unknown) and call.name == "deepcopy" and run.registry.kind_by_use(run, value) == "model":
        return Unknown(call.key)
    return value


@function("list", "tuple", "set")
def _list(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "iterable")
    if value is None:
        return []
    if isinstance(value, Stream) and value.length is not None and value.length <= 64 and not value.infinite:
        return [value.item(i) for i in range(value.length)]
    if isinstance(value, tuple) and value[:1] != ("module",):
        return list(value) if call.name != "tuple" else value
    if call.name != "set" and (
        isinstance(value, Thing) and value.kind == "loader" or isinstance(value, Unknown) and run.vocabulary.kind_of_name(value.last) == "loader"
    ):
        return Batches(run.batch_data(value.name if isinstance(value, Thing) else value.last) for _ in range(run.length))
    if isinstance(value, Stream) and value.length is None and value.loader and value.thing is not None:
        return value.thing if isinstance(value.thing, (Thing, Parameters)) else value
    return list(value) if isinstance(value, list) else value


@function("len")
def _len(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "obj")
    if isinstance(value, Batches):
        return Quantity.of(len(value), "len")
    if isinstance(value, (list, tuple, dict, str)):
        return Quantity.of(len(value), "length", f"counter:{call.key}") if isinstance(value, list) else Quantity.of(len(value), "length")
    if isinstance(value, Thing) and value.kind == "loader":
        # before prepare() a loader still holds the batches of all ranks
        ahead = value.site in run.learned.prepared and "accelerator" not in value.state
        return Quantity.of(run.length * (RANKS if ahead else 1), "len")
    group = run.group_length(value)
    if group is not None:
        return group
    if isinstance(value, Tensor):
        return run.rows[value.batch] if value.batch >= 0 else Unknown(call.key)
    if isinstance(value, Stream):
        if value.length is not None and not value.infinite:
            return Quantity.of(value.length, "len" if value.loader else "length")
        if value.loader:
            return Quantity.of(run.length, "len")
    if isinstance(value, Unknown):
        if value.key in run.learned.loaders or run.vocabulary.kind_of_name(value.last) == "loader":
            return Quantity.of(run.length, "len")
        return run.unknown(call.key, call.site, batch=value.batch)
    return run.unknown(call.key, call.site)


def _spread(values: list[Any]) -> list[Any]:
    if len(values) == 1 and isinstance(values[0], (list, tuple)):
        return list(values[0])
    if len(values) == 1 and isinstance(values[0], Stream) and values[0].literal and values[0].length is not None:
        return [values[0].item(i) for i in range(values[0].length)]
    return values


@function("sum", "fsum")
def _sum(run: Interpreter, call: Call) -> Any:
    values = _spread(call.args[:1])
    if not isinstance(values, list) or (len(values) == 1 and values[0] is call.get(0, "") and not isinstance(values[0], (int, Quantity, Tensor))):
        return Unknown(call.key)
    total: Any = 0
    for value in values:
        total = run.binary("+", total, value, call.site, call.key)
    return total


@function("max", "min", "maximum", "minimum")
def _extreme(run: Interpreter, call: Call) -> Any:
    values = _spread(call.args)
    pick = max if call.name.startswith("max") else min
    found = tensors_in(values)
    if found:
        if any(t.form in ("elements", "output", "data") for t in found):
            return joined(values, "elements", call.key)
        if found[0].form == "counts" and call.name == "maximum":
            return changed(found[0], clamped=True, divisions=(call.site,))  # torch.maximum(mask.sum(-1), one)
        return found[0]
    numbers = [run.numeric(v) for v in values]
    known = [n for n in numbers if n is not None and n.known]
    if numbers and len(known) == len(numbers):
        ranks = tuple(pick(values) for values in zip(*(n.ranks for n in known)))
        tags = frozenset().union(*(n.tags for n in known))
        guard = any(isinstance(v, int) and v == 1 for v in values) and call.name.startswith("max")
        made = Quantity(ranks, (), tags)
        return guarded(made, call.site) if guard else made
    # max(1, n), max(n, 1): a guard against zero that does not bite
    if call.name in ("max", "maximum"):
        rest = [v for v in values if not (isinstance(v, int) and v in (0, 1))]
        if len(rest) == 1:
            return rest[0]
    windows = [n for n in numbers if n is not None and "K" in n.tags]
    if len(windows) == 1 and call.name == "max":
        return windows[0]
    return Unknown(call.key)


@function("int", "float", "round", "ceil", "floor", "abs", "trunc")
def _round(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "x", 0)
    if isinstance(value, str):
        return run.unknown(f"float({value!r})", call.site)
    if isinstance(value, Tensor):
        return tensors.detached(value)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Test) and value.op in ("known", "far"):
        return int(value.parts[0])
    if isinstance(value, (int, Fraction)):
        operation = {"int": int, "ceil": math.ceil, "floor": math.floor, "round": round, "trunc": int, "abs": abs}.get(call.name)
        return operation(value) if operation is not None else value
    if isinstance(value, Quantity):
        operation = {"int": int, "ceil": math.ceil, "floor": math.floor, "round": round, "trunc": int, "abs": abs}.get(call.name)
        if operation is None or not value.known:
            cuts = call.name in ("int", "floor") and not value.known and any(rank.denominator != 1 for rank in value.ranks)
            return value.tagged("floored") if cuts else value
        return Quantity(tuple(Fraction(operation(v)) for v in value.ranks), (), value.tags)
    return value if value is not None else Unknown(call.key)


@function("slice")
def _slice(run: Interpreter, call: Call) -> Any:
    return slice(*call.args) if 1 <= len(call.args) <= 3 else Unknown(call.key)


@function("bool")
def _bool(run: Interpreter, call: Call) -> Any:
    return call.get(0, "x", False)


@function("next")
def _next(run: Interpreter, call: Call) -> Any:
    source = call.get(0, "iterator")
    if isinstance(source, Stream):
        index = source.position
        source.position += 1
        if source.length is not None and not source.infinite and source.literal:
            if index < source.length:
                return source.item(index)
            return Unknown(call.key)
        return source.item(index % source.length) if source.length and source.literal else source.item(index)
    if isinstance(source, (Thing, Unknown)):
        name = source.name if isinstance(source, Thing) else source.last
        return run.batch_data(name)
    if isinstance(source, Parameters):
        return source
    if isinstance(source, Instance):
        found = run.method_of(source, "__next__")
        if found is not None:
            return run.call_closure(found, [], {}, call.site)
    return run.batch_data("next")


@function("getattr")
def _getattr(run: Interpreter, call: Call) -> Any:
    owner, name = call.get(0, "obj"), call.get(1, "name")
    if isinstance(name, str):
        value = run.attribute(owner, name, ir.Attr(call.site, call.node.args[0].value, name), call.frame)
        if isinstance(value, Method) and isinstance(owner, (Thing, Tensor)) and len(call.args) > 2:
            return value
        return value
    return Unknown(call.key)


@function("setattr")
def _setattr(run: Interpreter, call: Call) -> Any:
    if len(call.args) == 3 and isinstance(call.args[1], str):
        target = ir.Attr(call.site, call.node.args[0].value, call.args[1])
        run.set_attribute(call.args[0], call.args[1], call.args[2], target, call.frame)
    return None


@function("hasattr")
def _hasattr(run: Interpreter, call: Call) -> Any:
    owner, name = call.get(0, "obj"), call.get(1, "name")
    if isinstance(owner, Thing) and isinstance(name, str):
        if name == "module":
            return owner.kind in ("data_parallel", "sharded", "engine")
        if (owner.kind, name) in run.registry.table.methods:
            return True
    if isinstance(owner, Instance) and isinstance(name, str) and (name in owner.attributes or run.method_of(owner, name)):
        return True
    return Test("atom", (), call.key)


@function("isinstance", "issubclass")
def _isinstance(run: Interpreter, call: Call) -> Any:
    value, wanted = call.get(0, "obj"), run.key(call.node.args[1].value) if len(call.node.args) > 1 else ""
    if isinstance(value, Thing):
        if any(name in wanted for name in ("DistributedDataParallel", "DDP")):
            return value.kind == "data_parallel" if not value.guessed else Test("atom", (), call.key)
        if any(name in wanted for name in ("FSDP", "FullySharded")):
            return value.kind == "sharded" if not value.guessed else Test("atom", (), call.key)
    if isinstance(value, (list, tuple)) and wanted in ("list", "tuple", "(list, tuple)", "(tuple, list)"):
        return True
    if isinstance(value, dict):
        return wanted == "dict" or "dict" in wanted
    return Test("atom", (), call.key)


@function("dict", "SimpleNamespace", "Namespace", "EasyDict", "OrderedDict", "edict")
def _dict(run: Interpreter, call: Call) -> Any:
    out: dict[Any, Any] = {}
    for value in call.args:
        if isinstance(value, dict):
            out.update(value)
        elif isinstance(value, Stream) and isinstance(value.thing, Parameters):
            return value.thing  # dict(ema.named_parameters()): whatever is taken out of it is a parameter
        elif not isinstance(value, (list, tuple)):
            return value if isinstance(value, (Tensor, Unknown)) else Unknown(call.key)
    out.update({k: run.named(k, v, call.site) for k, v in call.kwargs.items() if k != "**"})
    return out


@function("print", "id", "type", "format", "repr", "str", "vars", "open", "super", "hash", "any_print")
def _inert(run: Interpreter, call: Call) -> Any:
    return Unknown(call.key)


@function("all", "any")
def _all(run: Interpreter, call: Call) -> Any:
    values = _spread(call.args[:1])
    if values and all(isinstance(v, (bool, int)) for v in values):
        return all(values) if call.name == "all" else any(values)
    facts = [v for v in values if isinstance(v, (Unknown, Test, Tensor))]
    batch = max((v.batch for v in facts), default=-1)
    return Test("atom", (), call.key, batch, any(v.local for v in facts))


@function("map", "filter")
def _map(run: Interpreter, call: Call) -> Any:
    source = run.stream(call.get(1, "iterable"), None)
    callee = call.get(0, "function")
    if call.name == "filter" or not isinstance(callee, Closure):
        return call.get(1, "iterable")
    return Stream(
        lambda i: run.call_closure(callee, [source.item(i)], {}, call.site), source.length, source.infinite, source.loader,
        source.bound, literal=source.literal,
    )  # fmt: skip


@function("time.time", "time.monotonic", "time.perf_counter", "time.process_time", "perf_counter", "monotonic", "random.random", "random.randint", "random.choice",
          "psutil.virtual_memory", "memory_allocated", "memory_reserved", "random.uniform")
def _momentary(run: Interpreter, call: Call) -> Any:
    return run.momentary(call.key)


@function("partial", "partialmethod")
def _partial(run: Interpreter, call: Call) -> Any:
    return Partial(call.args[0], tuple(call.args[1:]), dict(call.kwargs)) if call.args else Unknown(call.key)


@function("cycle", "infinite_loader", "repeat_dataloader", "infiniteloop", "repeater", "sample_data", "infinite_dataloader", "inf_loop", "InfiniteDataLoader", "infinite_iter")
def _cycle(run: Interpreter, call: Call) -> Any:
    inner = run.stream(call.get(0, "iterable"), None)
    return Stream(inner.item, inner.length, True, inner.loader or not inner.literal, literal=inner.literal, thing=inner.thing)


@function("count")
def _count(run: Interpreter, call: Call) -> Any:
    start = run.numeric(call.get(0, "start", 0))
    begin = start.integer if start is not None and start.integer is not None else 0
    return Stream(lambda i: Quantity.of(i + begin, f"index:{call.site}"), None, infinite=True)


def _note_skipped(run: Interpreter, number: Quantity | None, site: int) -> None:
    """As many microbatches are passed over as a checkpoint says."""
    skipped = next((t[8:] for t in (number.tags if number is not None else ()) if t.startswith("resumed:")), None)
    if skipped is not None:
        run.emit(Kind.RESUME, site, key=skipped, into="", use="skip")


@function("islice")
def _islice(run: Interpreter, call: Call) -> Any:
    inner = run.stream(call.get(0, "iterable"), None)
    bounds = call.args[1:]
    stop = bounds[0] if len(bounds) == 1 else bounds[1] if len(bounds) > 1 else None
    start = run.numeric(bounds[0]) if len(bounds) > 1 else None
    begin = start.integer if start is not None and start.integer is not None else 0
    number = run.numeric(stop) if stop is not None else None
    # islice(loader, done, None) goes on behind what was done; `for _ in islice(batches, done)` reads it away
    _note_skipped(run, start if len(bounds) > 1 else number, call.site)
    base = inner.position
    if number is not None and number.integer is not None:
        length: int | None = max(0, number.integer - begin)
        if inner.length is not None and not inner.infinite:
            length = min(length, max(0, inner.length - base - begin))
        taken = length

        def item(index: int) -> Any:
            # an iterator moves on as it is read
            inner.position = max(inner.position, base + begin + index + 1)
            return inner.item(base + begin + index)

        return Stream(item, taken, loader=inner.loader, thing=inner.thing)
    if stop is None and len(bounds) > 1:
        return inner
    bound = stop.key if isinstance(stop, Unknown) else ""
    return Stream(lambda i: inner.item(base + i), None, loader=inner.loader, bound=bound)


@function("chain", "chain.from_iterable", "from_iterable")
def _chain(run: Interpreter, call: Call) -> Any:
    values = _spread(call.args)
    if any(isinstance(v, Parameters) for v in values):
        models: frozenset[int] | None = frozenset()
        for value in values:
            inner = value.models if isinstance(value, Parameters) else None
            models = None if models is None or inner is None else models | inner
        return Parameters(models)
    streams = [run.stream(v, None) for v in values]
    lengths = [s.length for s in streams]
    if streams and all(n is not None for n in lengths):
        flat = [(s, i) for s, n in zip(streams, lengths) for i in range(n or 0)]
        return Stream(lambda i: flat[i][0].item(flat[i][1]), len(flat), loader=any(s.loader for s in streams), literal=all(s.literal for s in streams))
    return streams[0] if streams else Unknown(call.key)


@function("batched", "chunked", "grouper", "ichunked")
def _batched(run: Interpreter, call: Call) -> Any:
    """``itertools.batched(loader, K)``: the microbatches of one window at a time, the last group short."""
    inner = run.stream(call.get(0, "iterable"), None)
    size = run.numeric(call.get(1, "n"))
    if size is None:
        return Unknown(call.key)
    if size.integer is None:
        if isinstance(call.get(1, "n"), Unknown):
            run.learned.windows.add(call.get(1, "n").key)
        step = 3
    else:
        step = size.integer if size.integer <= 64 and "K" in size.tags or size.integer <= 4 else 3
    length = inner.length if inner.length is not None and not inner.infinite else run.length
    groups = -(-length // step)
    return Stream(lambda g: [inner.item(i) for i in range(g * step, min(length, (g + 1) * step))], groups, inner.infinite, loader=False)


@function("nullcontext", "suppress", "autocast", "profile", "record_function", "device", "StringIO", "redirect_stdout", "autograd.detect_anomaly",
          "detect_anomaly", "set_detect_anomaly", "fp8_autocast", "sdpa_kernel", "join_uneven_inputs", "catch_warnings", "Timer", "timer")
def _plain_context(run: Interpreter, call: Call) -> Any:
    return Context("plain", site=call.site)


@function("no_grad", "inference_mode")
def _no_grad(run: Interpreter, call: Call) -> Any:
    return Context("no_grad", site=call.site)


@function("set_grad_enabled")
def _grad_enabled(run: Interpreter, call: Call) -> Any:
    return Context("plain" if run.truth(call.get(0, "mode", True)) else "no_grad", site=call.site)


@function("ExitStack", "AsyncExitStack")
def _exit_stack(run: Interpreter, call: Call) -> Any:
    return Context("stack", [], call.site)


@method("context", "enter_context", "push", "enter_async_context")
def _enter_context(run: Interpreter, receiver: Context, call: Call) -> Any:
    if receiver.data is None:
        receiver.data = []
    return run.enter(call.get(0, "cm"), call.site, receiver.data)


@method("context", "close", "pop_all")
def _close_context(run: Interpreter, receiver: Context, call: Call) -> Any:
    if isinstance(receiver.data, list):
        run.leave(receiver.data)
    return None


@method("context", "__enter__")
def _dunder_enter(run: Interpreter, receiver: Context, call: Call) -> Any:
    entered: list[Any] = []
    run.things[f"entered {id(receiver)}"] = entered
    return run.enter(receiver, call.site, entered)


@method("context", "__exit__")
def _dunder_exit(run: Interpreter, receiver: Context, call: Call) -> Any:
    run.leave(run.things.pop(f"entered {id(receiver)}", []))
    return None


@function("parse_args", "parse_known_args", "parse_args_into_dataclasses", "from_cli", "parse_config", "get_args")
def _parse_args(run: Interpreter, call: Call) -> Any:
    args = Unknown("args", tags=frozenset({"arguments"}))
    return (args, Unknown("unknown_args")) if call.name == "parse_known_args" else args


@function("ArgumentParser", "HfArgumentParser")
def _parser(run: Interpreter, call: Call) -> Any:
    return Unknown("parser")


def _environment(run: Interpreter, index: Any, site: int) -> Any:
    if index == "WORLD_SIZE":
        run.distributed = True
        return Quantity.of(RANKS, "world")
    if index in ("RANK", "LOCAL_RANK"):
        return rank_number(f"environ.{index}")
    return run.unknown(f"environ[{index!r}]", site)


TABLE.roles["environment"] = _environment


@function("os.environ.get", "os.getenv", "getenv")
def _getenv(run: Interpreter, call: Call) -> Any:
    index = call.get(0, "key")
    if index == "WORLD_SIZE" and len(call.args) > 1 or index in ("RANK", "LOCAL_RANK") and str(call.get(1, "default")) == "-1":
        # int(os.environ.get("RANK", -1)) != -1: is this a distributed run?
        return Unknown(f"environ[{index}]")
    return _environment(run, index, call.site)


def _assertion(run: Interpreter, node: ir.Expr, value: Any, frame: Any) -> None:
    """``assert len(loader) % K == 0`` says that every window is whole."""
    if isinstance(node, ir.Compare) and isinstance(node.left, ir.Binary) and node.left.op == "%":
        dividend, divisor = run.eval(node.left.left, frame), run.eval(node.left.right, frame)
        number, period = run.numeric(dividend), run.numeric(divisor)
        if number is not None and "len" in number.tags and period is not None:
            run.traits.add("whole windows")


TABLE.roles["assertion"] = _assertion


@method("list", "append")
def _append(run: Interpreter, receiver: list[Any], call: Call) -> Any:
    if len(receiver) < 128 and call.args:
        receiver.append(call.args[0])
    return None


@method("list", "extend")
def _extend(run: Interpreter, receiver: list[Any], call: Call) -> Any:
    value = call.get(0, "iterable")
    if isinstance(value, (list, tuple)) and len(receiver) < 128:
        receiver.extend(value)
    return None


@method("list", "clear")
def _clear_list(run: Interpreter, receiver: list[Any], call: Call) -> Any:
    receiver.clear()
    return None


@method("list", "pop", "popleft")
def _pop_list(run: Interpreter, receiver: list[Any], call: Call) -> Any:
    if not receiver:
        return Unknown(call.key)
    return receiver.pop(0) if call.name == "popleft" or call.get(0, "i") == 0 else receiver.pop()


@method("list", "sum", "mean", "unbind", "tolist", "to", "cuda", "float", "stack", "copy", "item", "long", "detach", "cpu")
def _list_as_tensor(run: Interpreter, receiver: list[Any], call: Call) -> Any:
    """A list that stands for a stacked tensor."""
    if call.name == "sum":
        total: Any = 0
        for value in receiver:
            total = run.binary("+", total, value, call.site, call.key)
        return total
    if call.name == "mean" and receiver:
        total = 0
        for value in receiver:
            total = run.binary("+", total, value, call.site, call.key)
        return run.binary("/", total, Quantity.of(len(receiver), "length"), call.site, call.key)
    if call.name == "item" and len(receiver) == 1:
        return receiver[0]
    return tuple(receiver) if call.name == "unbind" else receiver


@method("list", "*")
@method("str", "*")
@method("number", "*")
@method("bool", "*")
@method("closure", "*")
def _other(run: Interpreter, receiver: Any, call: Call) -> Any:
    return Unknown(call.key)


@method("tuple", "*")
def _tuple_other(run: Interpreter, receiver: Any, call: Call) -> Any:
    return receiver if call.name in ("to", "cuda") else Unknown(call.key)


TABLE.methods["tuple", "sum"] = TABLE.methods["tuple", "mean"] = _list_as_tensor
TABLE.methods["tuple", "unbind"] = _list_as_tensor


@method("dict", "get", "pop", "setdefault")
def _dict_get(run: Interpreter, receiver: dict[Any, Any], call: Call) -> Any:
    name = call.get(0, "key")
    if isinstance(name, (str, int)) and name in receiver:
        return receiver.pop(name) if call.name == "pop" else receiver[name]
    if call.name == "setdefault" and isinstance(name, str) and len(call.args) > 1:
        receiver[name] = call.args[1]
    if len(call.args) > 1:
        return run.named(name, call.args[1], call.site) if isinstance(name, str) else call.args[1]
    return run.unknown(f"{call.key}", call.site)


@method("dict", "update")
def _dict_update(run: Interpreter, receiver: dict[Any, Any], call: Call) -> Any:
    if call.args and isinstance(call.args[0], dict):
        receiver.update(call.args[0])
    receiver.update({k: v for k, v in call.kwargs.items() if k != "**"})
    return None


@method("dict", "items", "values", "keys")
def _dict_views(run: Interpreter, receiver: dict[Any, Any], call: Call) -> Any:
    return list(getattr(receiver, call.name)())


@method("dict", "to", "copy")
def _dict_same(run: Interpreter, receiver: dict[Any, Any], call: Call) -> Any:
    return dict(receiver) if call.name == "copy" else receiver


@method("dict", "*")
def _dict_other(run: Interpreter, receiver: dict[Any, Any], call: Call) -> Any:
    return Unknown(call.key)


@method("unknown", "get", "pop")
def _unknown_get(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    name = call.get(0, "key")
    if receiver.key == "os.environ":
        return _environment(run, name, call.site)
    if isinstance(name, str):
        return run.unknown(f"{receiver.key}[{name!r}]", call.site, batch=receiver.batch, local=receiver.local, tags=receiver.tags)
    if receiver.batch < 0 and call.name == "get" and not call.args:
        return run.batch_data(receiver.last)
    return Unknown(call.key, receiver.batch, receiver.local)


@method("unknown", "items", "keys", "values")
def _unknown_items(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    return Stream(lambda i: (Unknown(f"{receiver.key}.key"), Unknown(f"{receiver.key}.value")), None, thing=receiver)


@method("stream", "__next__", "next")
def _stream_next(run: Interpreter, receiver: Stream, call: Call) -> Any:
    call.args.insert(0, receiver)
    return _next(run, call)


@method("stream", "*")
def _stream_other(run: Interpreter, receiver: Stream, call: Call) -> Any:
    if call.name in ("set_postfix", "set_description", "close", "update", "write", "refresh", "reset"):
        return None
    if call.name in ("__iter__", "shuffle", "with_epoch"):
        return receiver
    return Unknown(call.key)


@method("number", "item", "float", "long", "int", "to", "cuda", "cpu", "clone", "detach", "double", "type", "squeeze", "view", "reshape", "contiguous",
        "half", "bfloat16", "expand", "unsqueeze", "flatten", "numpy", "tolist", "requires_grad_", "type_as", "mean", "sum", "wait", "clone", "half", "any", "all", "bool", "abs", "max", "min")
def _number_same(run: Interpreter, receiver: Any, call: Call) -> Any:
    return receiver


@method("number", "clamp", "clamp_", "clamp_min", "clamp_min_", "clip", "max")
def _number_clamp(run: Interpreter, receiver: Any, call: Call) -> Any:
    value = quantity(receiver) if isinstance(receiver, (int, Fraction, Quantity)) else None
    if value is None:
        return receiver
    return guarded(value, call.site)


def guarded(value: Quantity, site: int) -> Quantity:
    """A count that is kept above zero; of a single microbatch, that adds targets that do not exist."""
    if "count" not in value.tags:
        return value
    return value.tagged("clamped", f"clamped at {site}", *(("clamped single",) if "single" in value.tags else ()))


@method("number", "div", "div_", "true_divide", "mul", "mul_", "add", "add_", "sub", "sub_", "__truediv__")
def _number_arithmetic(run: Interpreter, receiver: Any, call: Call) -> Any:
    op = {"div": "/", "true_divide": "/", "mul": "*", "add": "+", "sub": "-", "__truediv__": "/"}[call.name.rstrip("_") if call.name != "__truediv__" else call.name]
    value = run.binary(op, receiver, call.get(0, "other", 1), call.site, call.key)
    if call.name.endswith("_") and isinstance(call.node.func, ir.Attr) and isinstance(call.node.func.value, (ir.Name, ir.Attr)):
        run.assign(call.node.func.value, value, call.frame, call.site)
    return value


@method("number", "eq", "ne", "lt", "gt", "le", "ge")
def _number_compare(run: Interpreter, receiver: Any, call: Call) -> Any:
    return Test("atom", (), call.key)


@method("method", "*")
def _method_of_method(run: Interpreter, receiver: Method, call: Call) -> Any:
    return Unknown(call.key)

