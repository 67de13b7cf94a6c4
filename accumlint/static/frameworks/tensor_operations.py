"""Operations on tensors: attributes, indexing, arithmetic, comparison, reductions, shape-only methods."""

from __future__ import annotations

import re
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static import tensors
from accumlint.static.frameworks.base import Table, joined, tensors_in
from accumlint.static.values import Context, Gradient, Parameters, Stream, Tensor, Test, Unknown, changed, last_name

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

TABLE = Table()
function = TABLE.function
method = partial(TABLE.method, "tensor")

_MASKLIKE = re.compile(r"(?i)mask|valid|visible|keep|known|select|active|is_|has_|positive|labelled|labeled")
_LENGTHS = re.compile(r"(?i)len|^(ll|tl|yl)s?$|_sizes?$|^(num|n)_")

LANGUAGE_MODELS = ("CausalLM", "ConditionalGeneration", "MaskedLM", "LMHeadModel", "TokenClassification", "Seq2SeqLM", "QuestionAnswering")


def _with_path(value: Tensor, suffix: str) -> Tensor:
    name = suffix.strip(".[]'\"")
    role = value.role
    form = value.form
    if value.form == "data" and name:
        if "mask" in name.lower():
            role, form = "mask", "mask"
        elif "label" in name.lower() or name.lower() in ("target", "targets", "y", "gold", "tgt"):
            role = "labels"
    return changed(value, key=value.key + suffix, role=role, form=form)


def _named_data(run: Interpreter, value: Tensor, name: str) -> Tensor:
    """A part of a batch under the name of a variable."""
    return _with_path(value, "." + name) if len(value.key) < 120 else value


TABLE.roles["named_data"] = _named_data


def _used_for_data(run: Interpreter) -> None:
    """The gradient of data is read: that is what the backward before was for."""
    backward = next((e for e in reversed(run.events) if e.kind is Kind.BACKWARD), None)
    if backward is not None and backward.details.get("through data"):
        backward.details["leaf"] = True


def _attribute(run: Interpreter, value: Tensor, name: str, site: int) -> Any:
    if name == "grad":
        if value.leaf:
            _used_for_data(run)
        return Gradient(value.models if value.models else None)
    if name in ("device", "dtype", "is_cuda", "ndim", "requires_grad", "grad_fn"):
        return Unknown(f"{value.key}.{name}")
    if name in ("data", "T", "mT", "real", "sample", "logits", "prediction_logits", "last_hidden_state", "latent_dist"):
        if name == "data" and value.form in ("scalar", "output", "elements"):
            return tensors.detached(value)
        return changed(value, key=f"{value.key}.{name}") if value.form != "data" else _with_path(value, "." + name)
    if name == "shape":
        rows = run.rows[value.batch] if value.batch >= 0 else Quantity.symbol(f"{value.key}.shape[0]")
        rest = tuple(Quantity.symbol(f"{value.role or 'data'}.shape[{i}]") for i in range(1, 4))
        return (rows, *rest)
    if name.endswith("loss") and value.form == "output":
        out = changed(value, key=f"{value.key}.{name}", mean_known=True, padded=-1)
        return run.registry.table.roles["model_loss"](run, out)
    if value.form in ("data", "mask"):
        return _with_path(value, "." + name)
    return changed(value, key=f"{value.key}.{name}")


TABLE.roles["tensor_attribute"] = _attribute


def _item(run: Interpreter, value: Tensor, index: int) -> Any:
    if value.form in ("data", "mask"):
        return _with_path(value, f"[{index}]")
    return changed(value, key=f"{value.key}[{index}]")


TABLE.roles["tensor_item"] = _item


def _is_shift(index: Any) -> bool:
    return isinstance(index, slice) and index.stop is None and _integer(index.start) == 1 and index.step is None


def _integer(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    return value.integer if isinstance(value, Quantity) else None


def _row_slice(run: Interpreter, value: Tensor, index: slice) -> Tensor | None:
    """Some rows of a batch: a microbatch of its own, the same one for every tensor that is cut at that place."""
    if index.start is None and index.stop is None:
        return None
    start, stop = _integer(index.start) if index.start is not None else 0, _integer(index.stop)
    if index.stop is None and start in (1, -1) or index.start is None and stop is not None and stop < 0:
        return None
    if value.batch < 0:
        return None
    key = f"rows {value.batch} {start if start is not None else getattr(index.start, 'key', str(index.start))}"
    held = run.things.get(key)
    if held is None:
        total = run.rows[value.batch].integer or 0
        if start is not None and stop is not None:
            rows = Quantity.of(max(0, min(stop, total) - start), "rows")
        elif run.loop_roles[-1:] == ["window"] and index.stop is not None and value.batch != run.batch_of.get(run.microbatch):
            rows = Quantity.of(Fraction(total, 3), "rows")  # the loop over the window cuts the batch into its microbatches
        else:
            rows = None
        held = run.new_batch(rows)
        run.things[key] = held
        run.traits.add("cut rows")
    return changed(value, batch=held, key=f"{value.key}#{held}")


def _subscript(run: Interpreter, value: Tensor, index: Any, node: ir.Subscript) -> Any:
    if isinstance(index, str):
        if value.form == "output":
            return _attribute(run, value, index, node.site)
        return _with_path(value, f"[{index!r}]")
    if isinstance(index, int):
        return _item(run, value, index)
    parts = index if isinstance(index, tuple) else (index,)
    out = value
    for position, part in enumerate(parts):
        if isinstance(part, Tensor) and (part.form == "mask" or part.form == "data" and len(parts) == 1 and out.form == "elements" and _MASKLIKE.search(part.key)):
            out = changed(out, varies=True, basis=tensors.basis_of(part), shifted=out.shifted or part.shifted)
            if out.form == "output":
                out = changed(out, form="elements")
        elif isinstance(part, slice):
            if position == 0 and len(parts) == 1 or position == 0:
                given = out.form in ("data", "mask") or out.form == "output" and not out.graph  # latents, encoded beforehand
                cut = _row_slice(run, out, part) if given else None
                if cut is not None:
                    out = cut
                    continue
            if position > 0 and part.start is not None and part.stop is not None and out.form in ("data", "mask"):
                run.traits.add("cut columns")
            if _is_shift(part) and (position > 0 or len(parts) == 1):
                out = changed(out, shifted=True)
    if isinstance(index, (Quantity, Unknown)):
        return _item(run, value, 0) if not isinstance(index, Quantity) or index.integer is None else _item(run, value, index.integer)
    return changed(out, key=f"{out.key}[…]")


TABLE.roles["tensor_subscript"] = _subscript


def factor_of(run: Interpreter, value: Any, node: ir.Expr | None) -> Quantity | None:
    """A number that multiplies or divides a loss. Constants of the script become named symbols."""
    if isinstance(value, (int, Fraction)) and not isinstance(value, bool):
        if run.learned.literal is not None and value == run.learned.literal:
            return Quantity.of(3, "K")
        return tensors.literal(value)
    if isinstance(value, Quantity):
        return in_rows(run, value)
    if isinstance(value, Unknown):
        number = run.numeric(value)
        return in_rows(run, number) if number is not None else None
    if isinstance(value, list) and len(value) == 1:
        return factor_of(run, value[0], node)
    return None


def in_rows(run: Interpreter, value: Quantity) -> Quantity:
    """The number with the batch size of a loader put in, as many rows as its microbatches have."""
    for symbol, power in value.symbols:
        _, rows = run.batch_sizes.get(symbol, (-1, None))
        if rows is not None:
            others = tuple(entry for entry in value.symbols if entry[0] != symbol)
            value = Quantity(tuple(rank * rows**power for rank in value.ranks), others, value.tags | {"batch size"})
    return value


def _binary(run: Interpreter, op: str, left: Any, right: Any, site: int, key: str, node: ir.Binary | None) -> Any:
    if run.scouting and (getattr(left, "graph", False) or getattr(right, "graph", False)):
        run.told("loss")
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if op in ("&", "|") and (left.form == "mask" or right.form == "mask"):
            keep = left if left.form == "mask" else right
            return changed(keep, shifted=left.shifted or right.shifted, key=key)
        if op == "-" and left.form == right.form == "output":
            return tensors.combine(left, right, key)  # a difference of predictions, hardly one of losses
        if op in ("+", "-"):
            return tensors.add(left, right, key, run.count, site)
        if op == "*":
            scalars = [t for t in (left, right) if t.form == "scalar"]
            if left.form == "mask" or right.form == "mask":
                if left.form == "mask" and right.form == "mask":
                    return changed(left, key=key, shifted=left.shifted or right.shifted)
                loss = right if left.form == "mask" else left
                mask = left if left.form == "mask" else right
                if loss.form in ("elements", "output", "data"):
                    return tensors.combine(loss, mask, key, masks=True)
            weighted = {left.form, right.form} == {"elements", "data"} and left.graph != right.graph
            if weighted:
                loss, weight = (left, right) if left.form == "elements" else (right, left)
                return tensors.combine(loss, weight, key, masks=True)
            if len(scalars) == 2 or (len(scalars) == 1 and not (left.graph and right.graph)):
                graph = left if left.graph else right
                return tensors.times(graph, None, site)
            out = tensors.combine(left, right, key)
            shared = {left.form, right.form} == {"output", "data"}  # loss * fraction: unless it is reduced later, by one number
            return changed(out, divisions=(*out.divisions, site)) if shared else out
        if op == "/":
            if right.graph or left.form in ("elements", "data") and right.form != "scalar":
                return tensors.combine(left, right, key)
            if right.count is not None and left.form in ("elements",):
                return tensors.times(left, None, site)
            return tensors.times(left, None, site, divide=True)
        return tensors.combine(left, right, key)
    tensor, other, swapped = (left, right, False) if isinstance(left, Tensor) else (right, left, True)
    assert isinstance(tensor, Tensor)
    if op in ("+", "-"):
        if isinstance(other, (int, Fraction)) or other is None:
            return tensor
        if isinstance(other, (Quantity, Unknown)):
            # the start value of a running total
            return tensor if tensor.form in ("scalar", "output", "elements") else changed(tensor, key=key)
        return tensor
    if op == "*":
        if tensor.form == "data":
            return changed(tensor, key=key)
        if isinstance(other, Test):
            return tensors.times(tensor, None, site)
        return tensors.times(tensor, factor_of(run, other, node), site)
    if op in ("/", "//") and not swapped:
        if tensor.form == "data":
            return changed(tensor, key=key)
        return tensors.times(tensor, factor_of(run, other, node), site, divide=True)
    if op in ("/", "//"):
        return tensors.times(changed(tensor, form="elements"), None, site)
    if op in ("**", "%", "@"):
        return changed(tensor, form="elements" if tensor.form != "data" else "data", key=key)
    return changed(tensor, key=key)


TABLE.roles["tensor_binary"] = _binary


def _compare(run: Interpreter, op: str, left: Any, right: Any, key: str) -> Any:
    tensor = left if isinstance(left, Tensor) else right
    if op in ("is", "is not", "in", "not in"):
        return None
    if tensor.form in ("data", "mask", "output", "elements"):
        if tensor.form in ("output", "elements") and not isinstance(left if tensor is right else right, Tensor) and tensor.form == "output":
            return Test("atom", (), key, tensor.batch, tensor.local)
        shifted = tensor.shifted or (isinstance(right, Tensor) and right.shifted)
        idle = op in ("==", "!=") and -100 in (left, right) and "ignored labels" not in run.traits
        return Tensor("mask", key, tensor.batch, shifted=shifted, local=tensor.local, role=tensors.LETS_ALL_THROUGH if idle else "mask")
    return Test("atom", (), key, tensor.batch, tensor.local)


TABLE.roles["tensor_compare"] = _compare


@method("mean", "nanmean")
def _mean(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    if call.get(0, "dim") is not None and not isinstance(call.get(0, "dim"), Tensor):
        return changed(receiver, form="elements", scale=None if receiver.masked else receiver.scale)
    if receiver.form == "mask" or receiver.form == "data" and not receiver.graph:
        return Unknown(call.key, receiver.batch, receiver.local)
    if receiver.form == "scalar":
        return receiver
    out = tensors.reduce_mean(receiver, run.count, call.site)
    return out


@method("sum", "nansum")
def _sum(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    by_row = call.get(0, "dim") is not None or call.get(0, "axis") is not None
    if receiver.form == "mask":
        count = run.count(receiver.batch, tensors.basis_of(receiver)) if receiver.batch >= 0 else None
        if count is None:
            return Unknown(call.key)
        if receiver.role == tensors.LETS_ALL_THROUGH and not by_row:
            return count
        tags = ["count", "single"] + (["attention"] if "attention" in receiver.key else [])
        if by_row:
            return changed(receiver, form="counts", count=count.tagged(*tags))
        return count.tagged(*tags, f"counted at {call.site}")
    if receiver.form == "counts":
        count = receiver.count
        assert count is not None
        return count.tagged("clamped", "clamped rows", f"clamped at {receiver.divisions[0]}") if receiver.clamped and receiver.divisions else count
    if receiver.form == "data":
        if by_row:
            return receiver
        if receiver.batch >= 0 and not receiver.graph:
            # weights per target: their sum is the count that belongs to the weighted loss; a sum of lengths is hardly zero
            tags = ("never empty",) if _LENGTHS.search(last_name(receiver.key)) else ()
            return run.count(receiver.batch, tensors.basis_of(receiver)).tagged("count", "single", *tags)
        return Unknown(call.key, receiver.batch, receiver.local)
    if by_row:
        return changed(receiver, form="elements", per_row=receiver.masked)
    return tensors.reduce_sum(receiver, call.site)


@method("clamp", "clamp_", "clamp_min", "clip", "clamp_max")
def _clamp(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    if receiver.form == "counts":
        return changed(receiver, clamped=True, divisions=(call.site,))
    return receiver


@method("count_nonzero", "nonzero")
def _count_nonzero(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    if receiver.form == "mask" and receiver.batch >= 0:
        return run.count(receiver.batch, tensors.basis_of(receiver)).tagged("count", "single")
    return Unknown(call.key, receiver.batch, receiver.local)


@function("count_nonzero")
def _count_nonzero_function(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "input")
    return _count_nonzero(run, value, call) if isinstance(value, Tensor) else Unknown(call.key)


@method("numel", "nelement")
def _numel(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    if receiver.form == "scalar" or (receiver.form == "output" and receiver.mean_known):
        return Quantity.of(1, "numel of one")
    if receiver.batch < 0:
        return Unknown(call.key)
    if receiver.basis != "fixed":
        return run.count(receiver.batch, receiver.basis).tagged("count", "single")
    return run.count(receiver.batch, "fixed").tagged("positions")


@method("size")
def _size(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    shape = _attribute(run, receiver, "shape", call.site)
    index = call.get(0, "dim")
    if index is None:
        return shape
    position = _integer(index)
    if position == 0:
        return shape[0]
    return shape[position] if position is not None and 0 < position < 4 else Quantity.symbol(f"{receiver.role or 'data'}.shape[{position}]")


@method("ne", "eq", "gt", "ge", "lt", "le", "not_equal", "bool", "isin", "logical_not", "isnan", "isinf", "isfinite")
def _as_mask(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    if call.name in ("isnan", "isinf", "isfinite"):
        return Test("atom", (), call.key, receiver.batch, receiver.local)
    if receiver.form in ("data", "mask"):
        return changed(receiver, form="mask", role="mask", key=call.key)
    return Test("atom", (), call.key, receiver.batch, receiver.local)


@function("isnan", "isinf", "isfinite")
def _finite(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "input")
    if isinstance(value, (Tensor, Unknown)):
        return Test("atom", (), call.key, value.batch, value.local)
    return Test("atom", (), call.key)


@method("any", "all")
def _any(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return Test("atom", (), call.key, receiver.batch, receiver.local)


@method("detach", "item", "cpu", "numpy", "tolist", "detach_", "__float__")
def _detach(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    if call.name == "cpu":
        return receiver
    out = tensors.detached(receiver)
    func = call.node.func
    if call.name == "detach_" and isinstance(func, ir.Attr) and isinstance(func.value, (ir.Name, ir.Attr)):
        run.assign(func.value, out, call.frame, call.site)
    return out


_SAME = (
    "to", "cuda", "float", "half", "double", "bfloat16", "long", "int", "type", "view", "reshape", "flatten", "contiguous", "squeeze",
    "unsqueeze", "transpose", "permute", "clone", "expand", "expand_as", "repeat", "type_as", "pin_memory", "copy_",
    "movedim", "view_as", "reshape_as", "ravel", "unflatten", "rename", "retain_grad", "as_subclass", "npu", "xpu", "mps", "t", "T",
    "masked_fill", "masked_fill_", "nan_to_num", "nan_to_num_", "non_blocking", "swapaxes", "rearrange", "cast", "get",
)  # fmt: skip


@method(*_SAME)
def _same(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    if call.name in ("masked_fill", "masked_fill_"):
        fill = call.get(1, "value")
        if fill == -100:
            run.traits.add("ignored labels")
        if receiver.form in ("elements", "output"):
            mask = call.get(0, "mask")
            if isinstance(mask, Tensor) and mask.form == "mask" and receiver.form == "elements":
                return tensors.combine(receiver, mask, call.key, masks=True)
    if call.name == "get" and call.args and isinstance(call.args[0], str):
        return _subscript(run, receiver, call.args[0], ir.Subscript(call.site, call.node, call.node))
    return receiver


@method("masked_select")
def _masked_select(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    mask = call.get(0, "mask")
    if isinstance(mask, Tensor):
        return changed(receiver, form="elements" if receiver.form == "output" else receiver.form, varies=True, basis=tensors.basis_of(mask))
    return receiver


@method("pop")
def _pop(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    name = call.get(0, "key")
    return _with_path(receiver, f"[{name!r}]") if isinstance(name, str) else receiver


@method("div", "div_", "divide", "true_divide", "mul", "mul_", "multiply", "add", "add_", "sub", "sub_", "pow", "pow_", "__truediv__", "__mul__")
def _arithmetic(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    op = {"div": "/", "divide": "/", "true_divide": "/", "mul": "*", "multiply": "*", "add": "+", "sub": "-", "pow": "**",
          "__truediv__": "/", "__mul__": "*"}[call.name.rstrip("_") if not call.name.startswith("__") else call.name]  # fmt: skip
    value = run.binary(op, receiver, call.get(0, "other", 1), call.site, call.key)
    if call.name.endswith("_") and not call.name.startswith("__"):
        func = call.node.func
        if isinstance(func, ir.Attr) and isinstance(func.value, (ir.Name, ir.Attr)):
            run.assign(func.value, value, call.frame, call.site)
    return value


@function("div", "divide", "true_divide", "mul", "multiply")
def _arithmetic_function(run: Interpreter, call: Call) -> Any:
    op = "/" if "div" in call.name else "*"
    if len(call.args) >= 2:
        return run.binary(op, call.args[0], call.args[1], call.site, call.key)
    return Unknown(call.key)


@method("chunk", "split", "tensor_split")
def _chunk(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return cut(run, receiver, call, pieces=call.name != "split")


@function("chunk", "split", "tensor_split")
def _chunk_function(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "tensor", call.get(0, "input"))
    if isinstance(value, Tensor):
        rest = type(call)(call.site, call.name, call.args[1:], call.kwargs, call.node, call.key, call.frame)
        return cut(run, value, rest, pieces=call.name != "split")
    return run.unknown_call(call)


def cut(run: Interpreter, value: Tensor, call: Call, pieces: bool) -> Any:
    """A batch cut into microbatches along its rows: K of them, unless the script fixes another number.

    ``pieces``: the argument is their number (``chunk``), else their size (``split``).
    """
    if value.form not in ("data", "mask") or value.batch < 0:
        return [value]
    dim = call.get(1, "dim", 0)
    if dim not in (0, None):
        run.traits.add("cut columns")
        return [changed(value, key=f"{value.key}[{i}]") for i in range(2)]
    run.traits.add("cut rows")
    argument = call.get(0, "chunks" if pieces else "split_size")
    total = run.rows[value.batch].integer or 8
    number = _integer(argument)
    if isinstance(argument, Unknown) and pieces:
        run.learned.windows.add(argument.key)
    if pieces and number is not None and 1 < number <= total:
        size = -(-total // number)
    elif not pieces and number is not None and 0 < number < total and isinstance(argument, Quantity):
        size = number
    else:
        size = -(-total // 3)
    out = []
    for index, start in enumerate(range(0, total, size)):
        key = f"rows {value.batch} {start}"
        held = run.things.get(key)
        if held is None:
            held = run.things[key] = run.new_batch(Quantity.of(min(size, total - start), "rows"))
        out.append(changed(value, batch=held, key=f"{value.key}.piece{index}#{held}"))
    return out


@method("unbind", "tensor_iter")
def _unbind(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return Stream(lambda i: _item(run, receiver, i), None, thing=receiver)


@method("items", "values", "keys")
def _views(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    """The entries of a batch that is a mapping."""
    if call.name == "keys":
        return Stream(lambda i: Unknown("key"), None, thing=receiver)
    if call.name == "values":
        return Stream(lambda i: _item(run, receiver, i), None, thing=receiver)
    return Stream(lambda i: (Unknown("key"), receiver), 1, thing=receiver)


@method("update", "append", "extend", "setdefault", "fill_", "zero_", "index_copy_", "scatter_", "normal_", "uniform_", "random_")
def _mutate(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return receiver


@method("*")
def _elementwise(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    """Any other method: element-wise, as far as weights go."""
    inputs = [receiver, *call.values]
    found = tensors_in(inputs)
    if receiver.form == "data" and not any(t.graph for t in found):
        return changed(receiver, key=call.key)
    if receiver.form == "data" and not receiver.graph:
        return run.registry.unseen(run, call, receiver)  # batch.normalize(loss, …): the loss is what is worked on
    out = joined(inputs, "elements" if receiver.form in ("elements", "data", "mask") else receiver.form, call.key)
    out.scale, out.divisions, out.basis, out.varies, out.masked = (
        receiver.scale, receiver.divisions, receiver.basis, receiver.varies, receiver.masked,
    )  # fmt: skip
    out.parts = receiver.parts
    out.mean_known = receiver.mean_known
    return out


@function("stack", "cat", "concat", "hstack", "vstack")
def _stack(run: Interpreter, call: Call) -> Any:
    values = call.get(0, "tensors")
    if isinstance(values, (list, tuple)):
        if any(isinstance(v, (Quantity, int)) for v in values) or all(isinstance(v, Tensor) and v.form == "scalar" for v in values):
            return list(values)
        found = tensors_in(list(values))
        if found:
            if len({t.batch for t in found}) == 1:
                return found[0]
            out = joined(list(values), "elements", call.key)
            out.several = True
            return out
    if isinstance(values, Tensor):
        return values
    return Unknown(call.key)


@function("tensor", "as_tensor", "from_numpy", "FloatTensor", "LongTensor", "asarray", "scalar_tensor")
def _tensor(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "data")
    if isinstance(value, (int, Fraction, Quantity, Tensor)):
        return value
    if isinstance(value, list) and value:
        if all(isinstance(v, (int, Fraction, Quantity)) for v in value):
            return value[0] if len(value) == 1 else value
        if len(value) == 1 and isinstance(value[0], Tensor):
            return value[0]
        return list(value) if any(isinstance(v, (Quantity, Tensor)) for v in value) else Unknown(call.key)
    return value if isinstance(value, Unknown) else Unknown(call.key)


@function("zeros", "zeros_like", "new_zeros")
def _zeros(run: Interpreter, call: Call) -> Any:
    size = call.get(0, "size", ())
    if call.name == "zeros_like":
        return 0 if isinstance(size, (int, Quantity)) or isinstance(size, Tensor) and size.form == "scalar" else Unknown(call.key)
    if size in ((), [], 1, (1,), [1]):
        return 0
    if isinstance(size, int) and not isinstance(size, bool) and 1 < size <= 4 and len(call.args) == 1:
        return [0] * size
    return Unknown(call.key)


@function("where")
def _where(run: Interpreter, call: Call) -> Any:
    mask, one, two = call.get(0, "condition"), call.get(1, "input"), call.get(2, "other")
    if two == -100 or one == -100:
        run.traits.add("ignored labels")
    if isinstance(mask, Tensor) and isinstance(one, Tensor) and one.form == "elements" and two in (0, Fraction(0)):
        return tensors.combine(one, mask, call.key, masks=True)
    found = tensors_in([one, two])
    return joined(call.args[1:], "elements", call.key) if any(t.graph for t in found) else (found[0] if found else Unknown(call.key))


@function("mean")
def _mean_function(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "input")
    if isinstance(value, Tensor):
        return _mean(run, value, type(call)(call.site, "mean", call.args[1:], call.kwargs, call.node, call.key, call.frame))
    if isinstance(value, (list, tuple)) and value and tensors_in(list(value)):
        return run.registry.table.methods["list", "mean"](run, list(value), call)
    return Unknown(call.key)


@function("torch.sum", "torch.nansum")
def _sum_function(run: Interpreter, call: Call) -> Any:
    value = call.get(0, "input")
    if isinstance(value, Tensor):
        return _sum(run, value, type(call)(call.site, "sum", call.args[1:], call.kwargs, call.node, call.key, call.frame))
    return run.registry.table.functions["sum"](run, call)


@method("all_reduce", "reduce")
def _method_reduce(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return changed(receiver, local=False)


# gradients


gradient_method = partial(TABLE.method, "gradient")


@gradient_method("mul_", "div_", "mul", "div", "true_divide_")
def _gradient_scale(run: Interpreter, receiver: Gradient, call: Call) -> Any:
    if call.name.endswith("_"):
        run.rescale(receiver, call.get(0, "other"), "div" in call.name, call.site)
    return receiver


@gradient_method("zero_")
def _gradient_zero(run: Interpreter, receiver: Gradient, call: Call) -> Any:
    run.emit(Kind.CLEAR, call.site, models=receiver.models, by="gradient")
    return receiver


@gradient_method("copy_", "add_", "sub_", "nan_to_num_", "clamp_", "index_add_", "lerp_")
def _gradient_write(run: Interpreter, receiver: Gradient, call: Call) -> Any:
    if call.name == "nan_to_num_":
        return receiver
    if call.name == "clamp_":
        run.emit(Kind.CLIP, call.site, models=receiver.models, measures_only=False, through="gradient")
    else:
        run.emit(Kind.RESCALE, call.site, factor=None, models=receiver.models)
    return receiver


@gradient_method("*")
def _gradient_other(run: Interpreter, receiver: Gradient, call: Call) -> Any:
    if call.name in ("data", "detach", "clone", "view", "reshape", "flatten"):
        return receiver
    return Unknown(call.key)


def _write_parameters(run: Interpreter, receiver: Parameters, call: Call) -> Any:
    """Parameters written in place, outside of any optimizer: a weight average, if they are not the trained ones."""
    run.emit(Kind.AVERAGE, call.site, name=call.name, models=receiver.models)
    return receiver


for _name in ("lerp_", "mul_", "copy_", "add_", "sub_"):
    TABLE.methods["parameters", _name] = _write_parameters
TABLE.methods["parameters", "*"] = lambda run, receiver, call: receiver
TABLE.attributes["context", "*"] = lambda run, value, site: Context("plain")

