"""Calls: of functions, methods, classes and generators, with their arguments bound."""

from __future__ import annotations

from typing import Any

from accumlint.contract.events import Kind, Subject
from accumlint.static import tensors
from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import EnoughYields, is_object
from accumlint.static.interpreter.state import Abort, Call, Frame, UPDATE_EFFECTS
from accumlint.static.placeholders import reserved
from accumlint.static.values import (
    ClassValue, Closure, Context, External, Gradient, Instance, Method, Parameters, Partial, Stream, Tensor, Thing, Unknown, last_name,
)  # fmt: skip

MAX_DEPTH = 10
# method names that many classes of many libraries have
_EVERYDAY = frozenset(
    "step backward forward train eval update run zero_grad get put pop append add close open save load to items keys values parameters "
    "state_dict load_state_dict fit reset write log join start stop sample generate call apply copy".split()
)


class Calls:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def _call(self, node: ir.Call, frame: Frame) -> Any:
        self.spend()
        func = node.func
        if isinstance(func, ir.Attr):
            if isinstance(func.value, ir.Call) and isinstance(func.value.func, ir.Name) and func.value.func.id == "super":
                return self._call_super(node, func, frame)
            receiver = self.eval(func.value, frame)
            args, kwargs = self.arguments(node, frame)
            call = Call(node.site, func.name, args, kwargs, node, self.key(node), frame)
            return self.call_method(receiver, call, func)
        callee = self.eval(func, frame)
        args, kwargs = self.arguments(node, frame)
        name = func.id if isinstance(func, ir.Name) else last_name(self.key(func))
        return self.call_value(callee, Call(node.site, name, args, kwargs, node, self.key(node), frame))

    def arguments(self, node: ir.Call, frame: Frame) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in node.args:
            value = self.eval(argument.value, frame)
            if argument.star == "*":
                if isinstance(value, (list, tuple)):
                    args.extend(value)
                elif isinstance(value, Stream) and value.literal and value.length is not None:
                    args.extend(value.item(i) for i in range(value.length))
                else:
                    args.append(value)
            elif argument.star == "**":
                if isinstance(value, dict):
                    kwargs.update({k: v for k, v in value.items() if isinstance(k, str)})
                else:
                    kwargs.setdefault("**", value)
            elif argument.keyword is not None:
                kwargs[argument.keyword] = value
            else:
                args.append(value)
        return args, kwargs

    def _call_super(self, node: ir.Call, func: ir.Attr, frame: Frame) -> Any:
        args, kwargs = self.arguments(node, frame)
        scope: Frame | None = frame
        while scope is not None and (scope.function is None or scope.function.owner is None):
            scope = scope.parent
        call = Call(node.site, func.name, args, kwargs, node, self.key(node), frame)
        if scope is not None and scope.function is not None and scope.function.owner is not None:
            owner = scope.function.owner
            first = scope.function.parameters[0].name if scope.function.parameters else "self"
            instance = scope.names.get(first)
            if isinstance(instance, Instance):
                order = self.mro(instance.cls)
                start = order.index(owner) + 1 if owner in order else 1
                for candidate in order[start:]:
                    if func.name in candidate.methods:
                        function = candidate.methods[func.name]
                        return self.call_closure(Closure(function, self._class_frame(candidate), instance), args, kwargs, node.site)
                return self.registry.inherited(self, instance, call)
        return self.unknown_call(call)

    def call_method(self, receiver: Any, call: Call, func: ir.Attr) -> Any:
        """``receiver.name(...)``: what it means depends on what the receiver is."""
        kind = type(receiver)
        if kind is Instance:
            target = self._instance_attribute(receiver, call.name, func.site)
            nowhere = isinstance(target, Unknown) and target.key == f"{receiver.cls.name}.{call.name}"  # else a property gave it
            if nowhere and call.name not in receiver.attributes:
                return self.registry.inherited(self, receiver, call)
            if isinstance(target, Method) and target.receiver is receiver:  # the framework's own, by the role of the class
                return self.registry.method(self, receiver, call, func)
            return self.call_value(target, call)
        if kind is ClassValue:
            target = self.attribute(receiver, call.name, func)
            if isinstance(target, Closure) and "classmethod" in target.function.decorator_names:
                target = Closure(target.function, target.frame, receiver)
            return self.call_value(target, call)
        if kind is External:
            return self.call_value(self.registry.external_attribute(self, receiver, call.name, func.site), call)
        if kind is tuple and len(receiver) == 2 and receiver[0] == "module":
            return self.call_value(self._module_attribute(receiver[1], call.name, func.site), call)
        if kind is dict and call.name in receiver and isinstance(receiver[call.name], (Closure, Thing, Instance)):
            return self.call_value(receiver[call.name], call)
        if kind is Thing and call.name in receiver.attributes:
            held = receiver.attributes[call.name]
            if isinstance(held, Method) and held.receiver is receiver and held.name == call.name:
                return self.registry.method(self, receiver, call, func)  # optimizer.step = compile(optimizer.step)
            return self.call_value(held, call)
        if kind is Unknown and receiver.batch < 0:
            instance = self._instance_behind(receiver, call.name)
            if instance is not None:
                return self.call_method(instance, call, func)
        return self.registry.method(self, receiver, call, func)

    def _instance_behind(self, receiver: Unknown, method: str) -> Instance | None:
        """The object of the script's own class behind an unresolved name, when only one class has that method."""
        held = self.things.get(receiver.key)
        if isinstance(held, Instance):
            return held
        if held is not None or self.registry.kind_by_use(self, receiver):
            return None
        owners = [cls for cls in self.module.classes.values() if method in cls.methods]
        if len(owners) != 1:
            return None
        cls = owners[0]
        name = receiver.last.lower().strip("_")
        alike = len(name) > 2 and (name in cls.name.lower() or cls.name.lower() in name)
        if method in _EVERYDAY and not alike:
            return None
        if self.registry.role_of_class(self, cls) in ("dataset", "record", "function", "optimizer", "scheduler"):
            return None
        made = self.blank_instance(cls)
        self.things[receiver.key] = made
        return made

    def call_value(self, callee: Any, call: Call) -> Any:
        kind = type(callee)
        if kind is Closure:
            return self.call_closure(callee, call.args, call.kwargs, call.site, call)
        if kind is ClassValue:
            return self.instantiate(callee, call)
        if kind is External:
            return self.registry.external(self, callee, call)
        if kind is Partial:
            merged = Call(call.site, call.name, [*callee.args, *call.args], {**callee.kwargs, **call.kwargs}, call.node, call.key, call.frame)
            return self.call_value(callee.target, merged)
        if kind is Method:
            inner = Call(call.site, callee.name, call.args, call.kwargs, call.node, call.key, call.frame)
            node = ir.Attr(callee.site, ir.Const(callee.site, None), callee.name)
            return self.call_method(callee.receiver, inner, node)
        if kind is Thing:
            return self.registry.call_thing(self, callee, call)
        if kind is Instance:
            return self.call_instance(callee, call)
        if kind is Unknown:
            if not self.scouting and self.assigned.get(f"{callee.key} is None") is True:
                raise Abort  # on this path it was None a moment ago
            return self.registry.call_unknown(self, callee, call)
        if kind is Tensor:
            return self.unknown_call(call)
        return self.unknown_call(call)

    def call_instance(self, callee: Instance, call: Call) -> Any:
        for name in ("__call__", "forward"):
            method = self.method_of(callee, name)
            if method is not None:
                if callee.role == "model" or name == "forward":
                    return self.registry.forward(self, callee, call, method)
                return self.call_closure(method, call.args, call.kwargs, call.site, call)
        if callee.role == "model":
            return self.registry.forward(self, callee, call, None)
        return self.unknown_call(call)

    def momentary(self, key: str) -> Unknown:
        """A value that is new at every moment and differs between ranks: a clock, a random number."""
        self.moments += 1
        return Unknown(f"{key}#{self.moments}", max(self.microbatch, 0), True, frozenset({"moment"}))

    def unknown_call(self, call: Call) -> Any:
        """A call of something unseen: what goes in decides what may come out, callbacks are called once."""
        return self.registry.unseen(self, call)

    def call_closure(self, callee: Closure, args: list[Any], kwargs: dict[str, Any], site: int, call: Call | None = None) -> Any:
        function = callee.function
        if len(self.functions) >= MAX_DEPTH or self.functions.count(function) >= 2:
            self.gap("calls nest too deeply or recurse", site)
            return self._stand_in(function, args, kwargs, site)
        names = function.decorator_names
        if "contextmanager" in names or "asynccontextmanager" in names:
            return Context("generated", (callee, args, kwargs), site)
        if self.scouting:
            self.learned.covered.add(function)
            memory = (id(function), 0)
            runs = self.scouted.get(memory)
            # the same function is scouted four times at most; after that its effects are known
            seen = self.scouted.setdefault((id(function), 1), set())
            seen.add(str(len(seen)))
            if len(seen) > 4 and runs is not None:
                for _, _, effects in self.scout_stack:
                    effects |= runs
                return self._stand_in(function, args, kwargs, site)
        self.learned.covered.add(function)
        before = len(self.events)
        frame = self.bind(callee, args, kwargs)
        quiet = {"no_grad", "inference_mode"} & names
        self.no_grad += bool(quiet)
        evaluates = not self.scouting and "eval" in function.calls and function not in self.learned.training
        self.evaluating += evaluates
        self.functions.append(function)
        self.stack.append(site)
        effects: set[str] = set()
        if self.scouting:
            self.scout_stack.append(("function", site, effects))
        try:
            if function.generator:
                return self._run_generator(function, frame)
            outcome = self.block(function.body, frame)
        finally:
            self.functions.pop()
            self.stack.pop()
            self.no_grad -= bool(quiet)
            self.evaluating -= evaluates
            if self.scouting:
                if not effects.isdisjoint(UPDATE_EFFECTS):
                    self.learned.training.add(function)
                self.scout_stack.pop()
                self.scouted.setdefault((id(function), 0), set()).update(effects)
                for _, _, outer in self.scout_stack:
                    outer |= effects
        value = outcome[1] if isinstance(outcome, tuple) else None
        if self.vocabulary.matches("rescale", function.name):
            self._trust_name(function.name, [*args, *kwargs.values()], before, site)
        if quiet and isinstance(value, Tensor):
            value = tensors.detached(value)
        return value

    def _trust_name(self, name: str, values: list[Any], before: int, site: int) -> None:
        """A function that is named after scaling gradients was run, and how it does so was not understood: it does."""
        given = next((v for v in values for v in (v if isinstance(v, list) else [v]) if isinstance(v, (Parameters, Gradient))), None)
        number = next((n for n in map(self.numeric, values) if n is not None), None)
        if given is not None and number is not None and not any(e.kind is Kind.RESCALE for e in self.events[before:]):
            multiplies = "mul" in name or "scale" in name and "unscale" not in name
            self.emit(Kind.RESCALE, site, factor=number if multiplies else None, models=given.models)

    def _stand_in(self, function: ir.Function, args: list[Any], kwargs: dict[str, Any], site: int) -> Any:
        inputs = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        if inputs:
            out = tensors.joined(inputs, "output", f"{function.name}()")
            out.scale = None
            return out
        return Unknown(f"{function.name}()")

    def _run_generator(self, function: ir.Function, frame: Frame) -> Stream:
        """A generator is run to its end (or to enough items) at once; its items are what the loop will see."""
        frame.yields = []
        infinite = False
        try:
            self.block(function.body, frame)
        except EnoughYields:
            infinite = True
        items = frame.yields or []
        loader = any(_carries_data(item) for item in items[:4])
        if not items:
            return Stream(lambda i: self.batch_data(function.name), None, loader=True)
        if not loader and all(isinstance(item, (Unknown, tuple)) and not is_object(item) for item in items[:2]) and infinite:
            # data made by hand, without end
            return Stream(lambda i: self.batch_data(function.name), None, infinite=True, loader=True)
        return Stream(
            lambda i: items[i] if i < len(items) else items[i % len(items)], len(items), infinite=infinite, loader=loader,
            literal=not loader,
        )  # fmt: skip

    def bind(self, callee: Closure, args: list[Any], kwargs: dict[str, Any]) -> Frame:
        """A frame with the parameters bound; what is not given is its default, or unknown by its name."""
        function = callee.function
        frame = Frame(callee.frame, function, function.module)
        parameters = list(function.parameters)
        positional = list(args)
        if callee.bound is not None:
            positional.insert(0, callee.bound)
        rest = dict(kwargs)
        spread = rest.pop("**", None)
        for parameter in parameters:
            name = parameter.name
            if parameter.kind == "*":
                frame.names[name] = list(positional)
                positional = []
            elif parameter.kind == "**":
                frame.names[name] = dict(rest) if rest or spread is None else spread
                rest = {}
            elif positional and parameter.kind == "":
                frame.names[name] = self._adopt(name, positional.pop(0), parameter)
            elif name in rest:
                frame.names[name] = self._adopt(name, rest.pop(name), parameter)
            elif spread is not None and isinstance(spread, Tensor):
                frame.names[name] = spread
            elif parameter.default is not None:
                value = self.eval(parameter.default, callee.frame if callee.frame is not None else Frame(module=function.module))
                frame.names[name] = self.named(name, value, function.site)
            else:
                frame.names[name] = self.parameter(name, parameter)
        return frame

    def _adopt(self, name: str, value: Any, parameter: ir.Parameter) -> Any:
        """An argument under its parameter's name: an unknown may gain a kind, a number may turn out to be K."""
        if isinstance(value, Unknown) and value.batch < 0 and not self.vocabulary.kind_of_name(value.last):
            kind = self.vocabulary.kind_of_name(name)
            if kind and kind not in ("model", "loader"):
                known = self.things.get(value.key)
                if known is None:
                    known = self.things[value.key] = self.parameter(name, parameter, value.key)
                    self._note_length(known, value)
                return known
        return self.named(name, value, -1)

    def parameter(self, name: str, parameter: ir.Parameter | None, key: str | None = None) -> Any:
        """The value of a parameter that nobody passes (an entry point)."""
        return self.registry.parameter(self, name, parameter, key or name)

    def instantiate(self, value: ClassValue, call: Call) -> Any:
        made = self.registry.instantiate(self, value, call)
        if made is not None:
            return made
        cls = value.cls
        if cls.name.endswith("Loader"):
            self.registry.table.roles["batch size"](self, call)
        instance = Instance(cls, self.number(), site=call.site, role=self.registry.role_of_class(self, cls))
        self.subjects[instance.number] = Subject(instance.number, instance.role or "instance", cls.name, call.site)
        init = self.method_of(instance, "__init__")
        if init is not None:
            self.call_closure(init, call.args, call.kwargs, call.site)
        else:
            self._dataclass_fields(instance, call)
        return instance

    def _dataclass_fields(self, instance: Instance, call: Call) -> None:
        """A dataclass (or any class without a constructor of its own): arguments by field order and keyword."""
        fields: list[str] = []
        for candidate in reversed(self.mro(instance.cls)):
            for statement in candidate.body:
                if isinstance(statement, ir.Assign) and isinstance(statement.targets[0], ir.Name):
                    fields.append(statement.targets[0].id)
        for name, argument in zip(fields, call.args):
            instance.attributes[name] = self.named(name, argument, call.site)
        for name, argument in call.kwargs.items():
            instance.attributes[name] = self.named(name, argument, call.site)

    def run_root(self, function: ir.Function, times: int, callback: bool = False) -> None:
        """Call a function whose callers are not shown, ``times`` times, with what its parameter names say.

        ``callback``: it holds one microbatch and no loop, so it is called once for each.
        """
        frame = self.prepare_module(function.module or self.module)
        bound: Any = None
        if function.owner is not None and "staticmethod" not in function.decorator_names:
            bound = self.blank_instance(function.owner)
            for name in reserved({n: f for cls in reversed(self.mro(function.owner)) for n, f in cls.methods.items()}, function):
                if isinstance(bound.attributes.get(name), (bool, int, str, type(None))):
                    bound.attributes[name] = self.unknown(f"self.{name}", function.site)
        callee = Closure(function, self._enclosing_frame(function, frame), bound)
        args = self._root_arguments(function, bound, frame)
        if callback:
            self.assumptions.add(f"`{function.name}` is called once per microbatch")
            for _ in range(2 * self.length if not self.scouting else 1):
                self.microbatch += 1
                self.emit(Kind.MICROBATCH, function.site)
                self.call_closure(callee, self._root_arguments(function, bound, frame), {}, function.site)
            return
        for _ in range(times):
            self.call_closure(callee, list(args), {}, function.site)
            self.epoch += 1
            if times > 1:
                self.emit(Kind.EPOCH, function.site, synthetic=True)

    def _free_parameters(self, function: ir.Function, bound: Any) -> list[ir.Parameter]:
        parameters = [p for p in function.parameters if p.kind == ""]
        parameters = parameters[1:] if bound is not None else parameters
        # a default shows what kind of value is meant, so it is used; what has none is taken by its name, and so is
        # what a default of one process without accumulation would make pointless
        while parameters and not self._left_open(parameters[-1]):
            parameters.pop()
        return parameters

    def _left_open(self, parameter: ir.Parameter) -> bool:
        """Whoever calls the entry point decides this parameter: it has no default, or one that switches the matter off."""
        if parameter.default is None or _is_none(parameter.default):
            return True
        if not isinstance(parameter.default, ir.Const) or type(parameter.default.value) is not int:
            return False
        one = parameter.default.value == 1 and (self.vocabulary.is_window(parameter.name) or self.vocabulary.is_world(parameter.name))
        return one or self.vocabulary.named("rank", parameter.name)

    def _root_arguments(self, function: ir.Function, bound: Any, frame: Frame) -> list[Any]:
        out = []
        for parameter in self._free_parameters(function, bound):
            if self._left_open(parameter):
                out.append(self.parameter(parameter.name, parameter))
            else:
                out.append(self.named(parameter.name, self.eval(parameter.default, frame), function.site))
        return out

    def _enclosing_frame(self, function: ir.Function, frame: Frame) -> Frame:
        return frame

    def blank_instance(self, cls: ir.Class) -> Instance:
        """An object of a class, constructed with unknown arguments."""
        instance = Instance(cls, self.number(), site=cls.site, role=self.registry.role_of_class(self, cls))
        self.subjects[instance.number] = Subject(instance.number, instance.role or "instance", cls.name, cls.site)
        init = self.method_of(instance, "__init__")
        if init is not None:
            try:
                frame = self.module_frame(cls.module) if cls.module is not None else Frame()
                self.call_closure(init, self._root_arguments(init.function, instance, frame), {}, cls.site)
            except Abort:
                # an argument check that the unknown arguments did not pass: what was set so far is kept
                self.traits.add("constructor raised")
        return instance


def _is_none(node: ir.Expr) -> bool:
    return isinstance(node, ir.Const) and node.value is None


def _carries_data(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    if isinstance(value, (list, tuple)):
        return any(_carries_data(item) for item in value[:3])
    if isinstance(value, dict):
        return any(isinstance(item, Tensor) for item in value.values())
    return False
