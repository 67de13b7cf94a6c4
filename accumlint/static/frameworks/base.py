"""The registry: dispatches attributes, calls and operations on abstract values to the tables of frameworks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accumlint.contract.events import Subject
from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir
from accumlint.static import tensors
from accumlint.static.values import (
    MISSING, Closure, Context, External, Gradient, Instance, Method, Parameters, Stream, Tensor, Thing, Unknown, last_name,
)  # fmt: skip

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter

Handler = Callable[..., Any]
Decorator = Callable[[Handler], Handler]


@dataclass
class Table:
    """What one framework contributes.

    ``functions``: last name or dotted origin -> handler(interpreter, call). ``methods``: (kind, name) ->
    handler(interpreter, receiver, call). ``constructors``: last name -> handler(interpreter, call).
    ``attributes``: (kind, name) -> handler(interpreter, thing, site). ``bases``: base class name -> role.
    ``inherited``: (role, name) -> handler(interpreter, instance, call). ``setters``: name -> handler.
    ``calls``: kind -> handler(interpreter, thing, call) for calling the thing itself.
    """

    functions: dict[str, Handler] = field(default_factory=dict)
    methods: dict[tuple[str, str], Handler] = field(default_factory=dict)
    attributes: dict[tuple[str, str], Handler] = field(default_factory=dict)
    bases: dict[str, str] = field(default_factory=dict)
    inherited: dict[tuple[str, str], Handler] = field(default_factory=dict)
    setters: dict[str, Handler] = field(default_factory=dict)
    calls: dict[str, Handler] = field(default_factory=dict)
    roles: dict[str, Handler] = field(default_factory=dict)

    # decorators that enter a handler under several keys

    def function(self, *names: str) -> Decorator:
        return _entered(self.functions, names)

    def method(self, kinds: str, *names: str) -> Decorator:
        """``kinds``: one kind of receiver, or several with spaces between them."""
        return _entered(self.methods, [(kind, name) for kind in kinds.split() for name in names])

    def inherit(self, role: str, *names: str) -> Decorator:
        return _entered(self.inherited, [(role, name) for name in names])


def _entered(entries: dict[Any, Handler], keys: Iterable[Any]) -> Decorator:
    def register(handler: Handler) -> Handler:
        entries.update(dict.fromkeys(keys, handler))
        return handler

    return register


# kinds whose methods are tried when only the name of the receiver is known
_GUESSES = {
    "zero_grad": "optimizer", "unscale_": "scaler", "get_scale": "scaler", "no_sync": "data_parallel", "get_last_lr": "scheduler",
    "param_groups": "optimizer",
}  # fmt: skip


class Registry:
    """All tables merged. Later tables add to earlier ones; a framework never overwrites another's entry."""

    def __init__(self) -> None:
        self.table = Table()

    def add(self, table: Table) -> None:
        for name in Table.__dataclass_fields__:
            mine, theirs = getattr(self.table, name), getattr(table, name)
            for key, value in theirs.items():
                mine.setdefault(key, value)

    # attributes

    def attribute(self, run: Interpreter, thing: Thing, name: str, site: int) -> Any:
        handler = self.table.attributes.get((thing.kind, name)) or self.table.attributes.get(("*", name))
        if handler is not None:
            return handler(run, thing, site)
        if (thing.kind, name) in self.table.methods or ("*", name) in self.table.methods:
            return Method(thing, name, site)
        return run.unknown(f"{thing.name}.{name}", site)

    def external_attribute(self, run: Interpreter, value: External, name: str, site: int) -> Any:
        handler = self.table.attributes.get(("external", f"{value.origin}.{name}"))
        if handler is not None:
            return handler(run, value, site)
        return External(f"{value.origin}.{name}")

    def instance_attribute(self, run: Interpreter, value: Instance, name: str, site: int) -> Any:
        handler = self.table.attributes.get((value.role, name))
        if handler is not None and value.role:
            return handler(run, value, site)
        return MISSING

    def set_attribute(self, run: Interpreter, owner: Any, name: str, value: Any, target: ir.Attr) -> bool:
        handler = self.table.setters.get(name)
        return handler(run, owner, value, target) if handler is not None else False

    def tensor_attribute(self, run: Interpreter, value: Tensor, name: str, site: int) -> Any:
        return self.table.roles["tensor_attribute"](run, value, name, site)

    def tensor_item(self, run: Interpreter, value: Tensor, index: int) -> Any:
        return self.table.roles["tensor_item"](run, value, index)

    def tensor_subscript(self, run: Interpreter, value: Tensor, index: Any, node: ir.Subscript) -> Any:
        return self.table.roles["tensor_subscript"](run, value, index, node)

    def tensor_binary(self, run: Interpreter, op: str, left: Any, right: Any, site: int, key: str, node: Any) -> Any:
        return self.table.roles["tensor_binary"](run, op, left, right, site, key, node)

    def tensor_compare(self, run: Interpreter, op: str, left: Any, right: Any, key: str) -> Any:
        return self.table.roles["tensor_compare"](run, op, left, right, key)

    def thing_item(self, run: Interpreter, thing: Thing, index: Any) -> Any:
        """``optimizers[0]``: a list of things that is known by one name."""
        key = f"[{index!r}]" if isinstance(index, (int, str)) else "[]"
        if thing.kind == "loader":
            return run.batch_data(thing.name)
        held = thing.attributes.get(key)
        if held is None:
            held = run.thing(thing.kind, f"{thing.name}{key}", thing.site)
            held.guessed = True
            held.models = thing.models
            thing.attributes[key] = held
        return held

    def iterate(self, run: Interpreter, thing: Thing) -> Stream:
        handler = self.table.roles.get(f"iterate {thing.kind}")
        if handler is not None:
            return handler(run, thing)
        return Stream(lambda i: self.thing_item(run, thing, 0), 1, literal=True, thing=thing)

    def environment(self, run: Interpreter, index: Any, site: int) -> Any:
        return self.table.roles["environment"](run, index, site)

    def assertion(self, run: Interpreter, node: ir.Expr, value: Any, frame: Any) -> None:
        self.table.roles["assertion"](run, node, value, frame)

    # calls

    def external(self, run: Interpreter, callee: External, call: Call) -> Any:
        """A call of something imported: by its full origin, else by its last name."""
        functions = self.table.functions
        handler = functions.get(callee.origin) or functions.get(callee.last)
        if handler is not None:
            return handler(run, call)
        call.name = callee.last
        if callee.origin == f"torch.{callee.last}" and call.args and isinstance(call.args[0], (Tensor, Quantity)):
            handler = self.table.methods.get((self.kind_of(call.args[0]), callee.last))
            if handler is not None:  # torch.clamp(x, 1) is x.clamp(1)
                return handler(run, call.args[0], dataclasses.replace(call, args=call.args[1:]))
        return self.named_call(run, callee.origin, call)

    def call_unknown(self, run: Interpreter, callee: Unknown, call: Call) -> Any:
        """A call of an unresolved name or path."""
        key = callee.key
        if key in run.ignoring and call.values:
            return self.table.roles["ignoring_loss"](run, call)
        if call.values and run.vocabulary.matches("clip_names", call.name):
            return self.named_call(run, call.name, call)
        kind = self.kind_by_use(run, callee) if callee.batch < 0 else ""
        if kind in self.table.calls:
            return self.call_thing(run, run.known_as(callee, kind, call.site), call)
        if "." in key and not key.endswith((")", "]")):
            base, _, name = key.rpartition(".")
            if name in self.known_methods():
                inner = type(call)(call.site, name, call.args, call.kwargs, call.node, call.key, call.frame)
                return self.method(run, run.things.get(base, Unknown(base)), inner, ir.Attr(call.site, ir.Name(call.site, base), name))
        name = callee.last
        handler = self.table.functions.get(name)
        if handler is not None:
            call.name = name
            return handler(run, call)
        call.name = name
        return self.named_call(run, key, call)

    def named_call(self, run: Interpreter, origin: str, call: Call) -> Any:
        """A call that no table knows by its exact name: constructors and groups of names of the vocabulary."""
        return self.table.roles["named_call"](run, origin, call)

    def known_methods(self) -> frozenset[str]:
        cached = getattr(self, "_method_names", None)
        if cached is None:
            cached = self._method_names = frozenset(name for _, name in self.table.methods)
        return cached

    def method(self, run: Interpreter, receiver: Any, call: Call, func: ir.Attr) -> Any:
        """``receiver.name(...)`` on anything that is no instance, class or module of the script."""
        name = call.name
        if receiver is None:
            # set to None here and filled by code that is not shown
            receiver = run.unknown(run.key(func.value), func.site) if not isinstance(func.value, ir.Const) else None
        kind = self.kind_of(receiver)
        if kind == "unknown":
            return self.unknown_method(run, receiver, call, func)
        handler = self.table.methods.get((kind, name))
        if handler is not None:
            return handler(run, receiver, call)
        handler = self.table.methods.get((kind, "*")) or self.table.methods.get(("*", name))
        if handler is not None:
            return handler(run, receiver, call)
        return self.unseen(run, call, receiver)

    @staticmethod
    def kind_of(value: Any) -> str:
        if isinstance(value, Thing):
            return value.kind
        if isinstance(value, Tensor):
            return "tensor"
        if isinstance(value, Unknown):
            return "unknown"
        if isinstance(value, Instance):
            return value.role or "instance"
        if isinstance(value, bool):
            return "bool"
        return {
            list: "list", tuple: "tuple", dict: "dict", str: "str", int: "number", Parameters: "parameters",
            Gradient: "gradient", Stream: "stream", Context: "context", Method: "method", Closure: "closure",
        }.get(type(value), "number")  # fmt: skip

    def unknown_method(self, run: Interpreter, receiver: Unknown, call: Call, func: ir.Attr) -> Any:
        """A method of an unresolved path: the path's name, then how the script uses it, tell its kind."""
        kind = self.kind_by_use(run, receiver)
        if kind and ((kind, call.name) in self.table.methods or (kind, "*") in self.table.methods):
            thing = run.known_as(receiver, kind, call.site)
            return self.method(run, thing, call, func)
        guess = _GUESSES.get(call.name)
        if guess and (guess, call.name) in self.table.methods:
            return self.method(run, run.known_as(receiver, guess, call.site), call, func)
        handler = self.table.methods.get(("unknown", call.name))
        if handler is not None:
            return handler(run, receiver, call)
        handler = self.table.functions.get(call.name) if not receiver.key.startswith("self") else None
        if handler is not None and last_name(receiver.key) in ("torch", "F", "nn", "functional", "utils", "np", "math", "dist", "itertools"):
            return handler(run, call)
        return self.named_call(run, f"{receiver.key}.{call.name}", call) if receiver.batch < 0 else self.unseen(run, call, receiver)

    def kind_by_use(self, run: Interpreter, receiver: Unknown) -> str:
        """The kind of an unresolved path: by its name if that is telling, else by the methods called on it."""
        name = receiver.last
        kind = run.vocabulary.kind_of_name(name)
        used = run.receivers.get(name, frozenset())
        if kind == "engine" and "backward" not in used and "deepspeed" not in run.module.mentions:
            kind = ""  # many things are called engine
        if kind == "model" and "no_sync" in used:
            return "data_parallel"
        if kind:
            return kind
        if "zero_grad" in used and "step" in used:
            return "optimizer"
        if "unscale_" in used or ("scale" in used and "update" in used and "step" in used):
            return "scaler"
        if "step" in used and used & {"get_last_lr", "get_lr"} and "set_timesteps" not in used and "add_noise" not in used:
            return "scheduler"
        if "no_sync" in used:
            return "data_parallel"
        if "parameters" in used:
            return "model"
        return ""

    def call_thing(self, run: Interpreter, thing: Thing, call: Call) -> Any:
        handler = self.table.calls.get(thing.kind)
        if handler is not None:
            return handler(run, thing, call)
        return self.unseen(run, call)

    def forward(self, run: Interpreter, model: Any, call: Call, method: Closure | None) -> Any:
        return self.table.roles["forward"](run, model, call, method)

    def inherited(self, run: Interpreter, instance: Instance, call: Call) -> Any:
        """A method of a base class that the checked files do not show."""
        handler = self.table.inherited.get((instance.role, call.name)) or self.table.inherited.get(("*", call.name))
        if handler is not None:
            return handler(run, instance, call)
        method = self.table.methods.get((instance.role, call.name)) if instance.role else None
        if method is not None:
            return method(run, instance, call)
        key = f"{instance.cls.name}.{call.name}"
        held = run.things.get(key)
        if held is not None:
            return run.call_value(held, call)
        return self.call_unknown(run, Unknown(key), call)

    def unseen(self, run: Interpreter, call: Call, receiver: Any = None) -> Any:
        """A call that nobody explains: its result carries what went in."""
        return self.table.roles["unseen"](run, call, receiver)

    def parameter(self, run: Interpreter, name: str, parameter: ir.Parameter | None, key: str) -> Any:
        return self.table.roles["parameter"](run, name, parameter, key)

    def role_of_class(self, run: Interpreter, cls: ir.Class) -> str:
        """What a class of the script is, by the outermost bases that the script names."""
        for candidate in run.mro(cls):
            for base in candidate.base_names:
                role = self.table.bases.get(last_name(base))
                if role:
                    return role
                made = run.vocabulary.kind_of_constructor(last_name(base))
                if made in ("optimizer", "scheduler", "scaler"):  # class Stateful(FP16_Optimizer)
                    return made
        return ""

    def instantiate(self, run: Interpreter, value: Any, call: Call) -> Any:
        """An object of a class of the script, when its role says more than its body; None otherwise."""
        role = self.role_of_class(run, value.cls)
        handler = self.table.roles.get(f"instantiate {role}")
        return handler(run, value, call) if handler is not None else None


def subject(run: Interpreter, thing: Thing) -> Subject:
    """The trace's entry for a thing (made when missing)."""
    found = run.subjects.get(thing.number)
    if found is None:
        found = run.subjects[thing.number] = Subject(thing.number, thing.kind, thing.name, thing.site)
    found.name = thing.name
    found.models = thing.models
    return found


def models_of(value: Any) -> frozenset[int] | None:
    """The models whose parameters a value stands for; None when nobody knows."""
    if isinstance(value, Parameters):
        return value.models
    if isinstance(value, Thing) and value.kind in ("model", "data_parallel", "sharded", "engine"):
        return value.models if value.models is not None else frozenset({value.number})
    if isinstance(value, Instance):
        return frozenset({value.number})
    if isinstance(value, (list, tuple)):
        found: frozenset[int] | None = frozenset()
        for item in value:
            inner = models_of(item.get("params") if isinstance(item, dict) else item)
            found = None if found is None or inner is None else found | inner
        return found if value else None
    if isinstance(value, dict):
        return models_of(value.get("params"))
    return None


def tensors_in(values: list[Any]) -> list[Tensor]:
    """The tensors among values, looking one level into sequences and mappings."""
    out = []
    for value in values:
        if isinstance(value, Tensor):
            out.append(value)
        elif isinstance(value, (list, tuple)):
            out.extend(item for item in value if isinstance(item, Tensor))
        elif isinstance(value, dict):
            out.extend(item for item in value.values() if isinstance(item, Tensor))
    return out


def joined(values: list[Any], form: str, key: str) -> Tensor:
    """A tensor made from whatever tensors are among ``values``."""
    return tensors.joined(tensors_in(values), form, key)
