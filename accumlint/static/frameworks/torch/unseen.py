"""Constructors and groups of names that are known by their last word, and what nothing is known of."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind, Subject
from accumlint.contract.quantity import Quantity, RANKS
from accumlint.static import syntax as ir
from accumlint.static import evidence, tensors
from accumlint.static.frameworks.base import joined, models_of, tensors_in
from accumlint.static.frameworks.torch.clipping import clip
from accumlint.static.frameworks.torch.loaders import make_loader
from accumlint.static.frameworks.torch.losses import loss_function, make_loss_module
from accumlint.static.frameworks.torch.models import make_model, wrap
from accumlint.static.frameworks.torch.optimizers import make_optimizer
from accumlint.static.frameworks.torch.schedulers import make_scheduler
from accumlint.static.frameworks.torch.table import TABLE, function, method
from accumlint.static.values import (
    ClassValue, Closure, External, Gradient, Instance, Parameters, Partial, Stream, Tensor, Test, Thing, Unknown, changed, last_name,
    rank_number,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

_OUTPUTS = ("Output", "Outputs", "OutputWithPast", "OutputWithPooling", "OutputWithCrossAttentions", "OutputWithNoAttention")


def _named_call(run: Interpreter, origin: str, call: Call) -> Any:
    """Constructors and groups of names; anything else is unseen."""
    name = call.name
    vocabulary = run.vocabulary
    if name in vocabulary.clip or vocabulary.matches("clip_names", name) and call.values:
        return clip(run, call)
    if name in vocabulary.loss_functions and call.args:
        return loss_function(run, call)
    if name in vocabulary.loss_modules:
        return make_loss_module(run, call)
    if vocabulary.matches("average_classes", name) and any(isinstance(v, Parameters) or models_of(v) for v in call.values):
        return run.thing("average", name, call.site)
    kind = vocabulary.kind_of_constructor(name)
    if kind == "optimizer":
        return make_optimizer(run, call)
    if kind == "scheduler":
        return make_scheduler(run, call)
    if kind in ("scaler", "callable_scaler"):
        made = run.thing(kind, name, call.site)
        if call.kwargs.get("enabled", True) is not True:
            run.subjects[made.number].traits = frozenset({"may be disabled"})
        return made
    if kind in ("data_parallel", "sharded"):
        return wrap(run, call, kind)
    if kind == "loader":
        return make_loader(run, call)
    if vocabulary.is_window(name):
        return run.unknown(name, call.site)
    if vocabulary.is_world(name):
        return Quantity.of(RANKS, "world")
    if name == "from_pretrained" or name == "from_config":
        maker = origin.split(".")[-2] if "." in origin else name
        if "Token" not in maker.split("For")[0] and not any(w in maker for w in ("Tokenizer", "Config", "Processor", "Scheduler", "Extractor")):
            made = make_model(run, call)
            made.state["constructor"] = maker
            return made
        return Unknown(call.key)
    if kind == "model" and not tensors_in(call.values):
        return make_model(run, call)
    if origin.startswith(("torch.nn.", "nn.")) and name[:1].isupper() and "functional" not in origin:
        if name in ("Parameter", "ParameterList", "init"):
            return Unknown(call.key)
        return make_model(run, call)
    if name[:1].isupper() and name.endswith(_OUTPUTS) and not call.args and "loss" in call.kwargs:
        return dict(call.kwargs)  # CausalLMOutputWithPast(loss=…, logits=…): what a model of transformers returns
    if name.startswith("DataCollator"):
        run.traits.add("padding")
        if name in ("DataCollatorForSeq2Seq", "DataCollatorForLanguageModeling", "DataCollatorForCompletionOnlyLM", "DataCollatorForTokenClassification"):
            run.traits.add("ignored labels")
        return Unknown(call.key)
    if vocabulary.matches("rescale", name):
        number = next((n for n in (run.numeric(v) for v in call.values) if n is not None), None)
        run.emit(Kind.RESCALE, call.site, factor=number, models=None)
        return Unknown(call.key)
    if vocabulary.matches("reduce", name):
        run.distributed = True
        run.emit(Kind.REDUCE, call.site, average=True)
        return Unknown(call.key)
    if _is_average(run, origin, name):
        run.emit(Kind.AVERAGE, call.site, name=name)
        return Unknown(call.key)
    if name in ("save", "save_state") or vocabulary.matches("checkpoint", name):
        return checkpoint(run, call, name, origin)
    return _unseen(run, call, None)


TABLE.roles["named_call"] = _named_call


def _is_average(run: Interpreter, origin: str, name: str) -> bool:
    base = origin.rpartition(".")[0]
    if run.vocabulary.matches("average", name):
        return True
    return name in ("update", "step", "update_parameters", "update_average", "__call__") and bool(base) and run.vocabulary.matches("average_objects", last_name(base))


_WHOLE_STATE = ("save_state", "save_checkpoint_full")


def checkpoint(run: Interpreter, call: Call, name: str, origin: str) -> Any:
    """Something is saved: which states and counters go in, as far as the call shows."""
    holds: set[int] = set()
    kinds: set[str] = set()
    keys: dict[str, Any] = {}
    opaque = False

    def look(value: Any, key: str = "") -> None:
        nonlocal opaque
        if isinstance(value, Unknown):
            states = [t for t in value.tags if t.startswith("state:")]
            holds.update(int(t[6:]) for t in states)
            kinds.update(t[9:] for t in value.tags if t.startswith("state of "))
            if key:
                keys[key] = "state" if states else "?"
        elif isinstance(value, dict):
            for inner_key, inner in value.items():
                look(inner, str(inner_key))
        elif isinstance(value, (Thing, Instance)):
            holds.add(value.number)
            kinds.add(value.kind if isinstance(value, Thing) else value.role or "instance")
            opaque |= name != "save"
        elif isinstance(value, Quantity):
            keys[key] = sorted(value.tags)
        elif isinstance(value, (Gradient, Parameters)):
            kinds.add("gradients")
        elif isinstance(value, (list, tuple)) and value[:1] != ("module",):
            for inner in value:
                look(inner, key)
        elif key:
            keys[key] = "value"

    for value in call.args:
        look(value)
    for key, value in call.kwargs.items():
        look(value, key)
    run.emit(
        Kind.CHECKPOINT, call.site, resumable="optimizer" in kinds or name in _WHOLE_STATE, holds=frozenset(holds), kinds=frozenset(kinds),
        keys=keys, opaque=opaque or name in _WHOLE_STATE or name != "save", name=name,
    )  # fmt: skip
    return Unknown(call.key)


@function("torch.load", "load_checkpoint", "torch.hub.load_state_dict_from_url")
def _load(run: Interpreter, call: Call) -> Any:
    run.traits.add("resumes")
    return Unknown("checkpoint", tags=frozenset({"resume"}))


def _unseen(run: Interpreter, call: Call, receiver: Any) -> Any:
    """A call that nobody explains. Callbacks given to a launcher run; tensors pass through as one output."""
    values = [*([receiver] if receiver is not None else []), *call.values]
    closures = [v for v in values if isinstance(v, (Closure, Partial)) and not (isinstance(v, Closure) and v.function.name == "<lambda>")]
    if closures and (call.name in _LAUNCHERS or run.vocabulary.kind_of_name(call.name)):
        rest = call.get(1, "args")
        return run.call_value(closures[0], type(call)(call.site, call.name, _launch_arguments(run, closures[0], call, rest), {}, call.node, call.key, call.frame))
    found = tensors_in(values)
    if found:
        graph = [t for t in found if t.graph]
        form = "output"
        if not graph and all(t.form in ("data", "mask") for t in found):
            if "loss" in call.name.lower() or call.name in ("criterion", "forward", "objective"):
                return changed(tensors.joined(found, "output", call.key), graph=not run.no_grad, models=None)
            if _COUNTS.search(call.name):
                return Unknown(call.key, found[0].batch, True, frozenset({"counted"}))
            return changed(found[0], key=call.key, role=found[0].role)
        out = tensors.joined(found, form, call.key)
        if graph and graph[0].form in ("elements", "scalar") and len(found) == 1:
            out = changed(graph[0], key=call.key)
            if call.name not in _ELEMENTWISE and out.form == "scalar":
                out.parts = tuple(dataclasses.replace(p, weight=None, reason=f"passes through {call.name}()") for p in out.parts)
        if run.things.get("inside forward") and not _LOSS_NAME.search(call.name) and all(t.form in ("output", "data", "mask") for t in found):
            out.basis, out.varies = "fixed", False  # a layer, as in `forward`
        else:
            out.basis = next((t.basis for t in found if t.basis != "fixed"), out.basis)
            out.varies |= out.basis != "fixed"
        told = any(isinstance(v, Quantity) and "K" in v.tags for v in call.values) or _NORMALISES.search(call.name)
        if graph and told:
            # whoever is given K, or says that it normalises, may well divide
            out.scale = None
            out.parts = tuple(dataclasses.replace(p, weight=None, reason=f"passes through {call.name}()") for p in out.parts)
        elif not _LOSS_NAME.search(call.name):
            out.role = f"unseen {call.name}"
        return out
    if any(isinstance(v, Thing) and v.kind == "optimizer" for v in values) and any(isinstance(v, (Thing, Instance)) for v in values if v is not receiver):
        if call.name not in _INNOCENT and not call.name.startswith(("save", "load", "get_", "print", "log", "count", "resume", "restore", "set_", "init")):
            run.gap(f"{call.name}() receives the optimizer and is not followed", call.site)
    if call.name[:1].isupper():
        kind = run.vocabulary.kind_of_constructor(call.name)
        if kind:
            return run.thing(kind, call.name, call.site)
    batch = max((v.batch for v in values if isinstance(v, (Unknown, Test))), default=-1)
    local = any(v.local for v in values if isinstance(v, (Unknown, Test)))
    tags = frozenset()
    for value in values:
        if isinstance(value, Unknown):
            tags |= value.tags & {"resume", "rank"}
        elif isinstance(value, Quantity):
            tags |= value.tags & {"len", "K"}
            if call.name.endswith("Sampler") and "K" in value.tags:
                tags |= {"whole"}  # num_samples=micro * K * updates
        elif isinstance(value, Stream) and call.name in ("Subset", "select", "take", "narrow") and "whole windows" in run.traits:
            tags |= {"whole"}
    return run.unknown(call.key, call.site, batch=batch, local=local, tags=frozenset(tags)) if call.node is not None else Unknown(call.key)


# get_num_tokens_in_batch(batch) is a number that the batch decides, no data
_COUNTS = re.compile(r"(?i)^_?(get_|compute_|calc_|calculate_)?(num|count|batch_size)(_|$)")
_NORMALISES = re.compile(r"(?i)normali[sz]e|scale|average|reduce|reweight")
_LOSS_NAME = re.compile(r"(?i)loss|crit|objective|^forward$")
_LAUNCHERS = frozenset("spawn launch notebook_launcher run main fit Process elastic_launch start_processes train execute Fire fire parallel run_exp hydra_main".split())
_ELEMENTWISE = frozenset("exp log sqrt relu sigmoid softplus tanh abs pow square neg log_softmax softmax".split())
_INNOCENT = frozenset("print isinstance len type id append prepare initialize setup clip_grad_norm_ SummaryWriter watch".split())


def _launch_arguments(run: Interpreter, callee: Any, call: Call, rest: Any) -> list[Any]:
    given = list(rest) if isinstance(rest, (list, tuple)) and rest[:1] != ("module",) else []
    if call.name in ("spawn", "start_processes"):
        return [rank_number(), *given]
    return given


TABLE.roles["unseen"] = _unseen


@method("tensor", "__call__")
def _call_tensor(run: Interpreter, receiver: Tensor, call: Call) -> Any:
    return run.unknown_call(call)


@method("unknown", "to", "cuda", "cpu", "float", "half", "bfloat16", "detach", "clone", "contiguous", "view", "reshape", "item", "eval", "train", "long", "double", "type",
        "mean", "sum", "squeeze", "unsqueeze", "flatten", "abs", "max", "min", "clamp", "clamp_", "log", "exp", "sqrt", "numpy", "tolist", "any", "all", "wait")
def _unknown_same(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    kind = run.vocabulary.kind_of_name(receiver.last)
    if call.name in ("train", "eval", "to", "cuda", "half", "float") and kind == "model":
        return run.known_as(receiver, run.registry.kind_by_use(run, receiver) or "model", call.site)
    return receiver


@method("unknown", "mul_", "div_", "mul", "div", "add_", "sub_", "add", "sub", "true_divide")
def _unknown_arithmetic(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    """Arithmetic on something unseen: the factors on it are still factors."""
    op = {"mul": "*", "div": "/", "add": "+", "sub": "-", "true_divide": "/"}[call.name.rstrip("_")]
    value = run.binary(op, receiver, call.get(0, "other", 1), call.site, call.key)
    if call.name.endswith("_") and isinstance(call.node.func, ir.Attr) and isinstance(call.node.func.value, (ir.Name, ir.Attr)):
        run.assign(call.node.func.value, value, call.frame, call.site)
    return value


@method("unknown", "requires_grad_")
def _unknown_freeze(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    return receiver


@method("unknown", "step")
def _unknown_step(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    """``x.step()`` where neither name nor use tells what ``x`` is."""
    if _is_average(run, f"{receiver.key}.step", "step"):
        run.emit(Kind.AVERAGE, call.site, name=receiver.key)
        return None
    if tensors_in(call.values):
        return joined(call.values, "output", call.key)
    return run.registry.unseen(run, call, receiver)


@method("unknown", "update", "add_scalar", "log", "write", "append", "set_postfix", "info")
def _unknown_update(run: Interpreter, receiver: Unknown, call: Call) -> Any:
    if call.name == "update" and _is_average(run, f"{receiver.key}.update", "update"):
        run.emit(Kind.AVERAGE, call.site, name=receiver.key)
    return None


def _parameter(run: Interpreter, name: str, parameter: ir.Parameter | None, key: str) -> Any:
    """The value of a parameter that nobody passes: by its annotation, then by its name."""
    note = parameter.annotation if parameter is not None else ""
    optional = "None" in note or "Optional" in note or parameter is not None and isinstance(parameter.default, ir.Const) and parameter.default.value is None
    kind = ""
    for word, meaning in _ANNOTATIONS:
        if word in note:
            kind = meaning
            break
    if not kind and not note:
        kind = ""
    by_name = run.vocabulary.kind_of_name(name)
    if not kind and by_name in ("accelerator", "fabric"):
        kind = by_name
    if kind in ("list", "str"):
        return Unknown(key)
    held = run.things.get(key)
    if isinstance(held, Thing):
        return held
    if kind or (optional and by_name in ("optimizer", "scheduler", "scaler")):
        value = run.known_as(Unknown(key), kind or by_name, -1)
        if optional:
            value.maybe_none = f"{key} is None"
        return value
    if note and note.split("[")[0].split(".")[-1] in ("Tensor", "Batch"):
        return run.batch_data(name)
    if note.split(".")[-1] in (run.module.classes or {}) and run.module.classes[note.split(".")[-1]].methods:
        cls = run.module.classes[note.split(".")[-1]]
        if not run.registry.role_of_class(run, cls) in ("dataset", "record"):
            made = Instance(cls, run.number(), site=cls.site, role=run.registry.role_of_class(run, cls))
            run.subjects[made.number] = Subject(made.number, made.role or "instance", cls.name, cls.site)
            return made
    return run.unknown(key, -1)


_ANNOTATIONS = (
    ("Optimizer", "optimizer"), ("GradScaler", "scaler"), ("LRScheduler", "scheduler"), ("LambdaLR", "scheduler"), ("DataLoader", "loader"),
    ("DistributedDataParallel", "data_parallel"), ("DDP", "data_parallel"), ("FullyShardedDataParallel", "sharded"), ("FSDP", "sharded"),
    ("Accelerator", "accelerator"), ("Fabric", "fabric"), ("nn.Module", "model"),
)  # fmt: skip

TABLE.roles["parameter"] = _parameter


def _instantiate_data(run: Interpreter, value: ClassValue, call: Call) -> Any:
    module = value.cls.module
    if module is not None and "ignored labels" not in run.traits and evidence.class_ignores_labels(module.source, value.cls.name):
        run.traits.add("ignored labels")
    return Unknown(f"{value.cls.name}()")


def _instantiate_optimizer(run: Interpreter, value: ClassValue, call: Call) -> Any:
    call.name = value.cls.name
    return make_optimizer(run, call)


def _instantiate_scheduler(run: Interpreter, value: ClassValue, call: Call) -> Any:
    call.name = value.cls.name
    return make_scheduler(run, call)


def _instantiate_loader(run: Interpreter, value: ClassValue, call: Call) -> Any:
    call.name = value.cls.name
    return make_loader(run, call)


def _instantiate_scaler(run: Interpreter, value: ClassValue, call: Call) -> Any:
    return run.thing("scaler", value.cls.name, call.site)


TABLE.roles["instantiate dataset"] = _instantiate_data
TABLE.roles["instantiate function"] = _instantiate_data
TABLE.roles["instantiate record"] = lambda run, value, call: None
TABLE.roles["instantiate optimizer"] = _instantiate_optimizer
TABLE.roles["instantiate scheduler"] = _instantiate_scheduler
TABLE.roles["instantiate loader"] = _instantiate_loader
TABLE.roles["instantiate scaler"] = _instantiate_scaler


TABLE.attributes["external", "math.inf"] = lambda run, value, site: External("math.inf")
