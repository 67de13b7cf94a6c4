"""Attributes of modules, classes, instances and things."""

from __future__ import annotations

from typing import Any

from accumlint.static import syntax as ir
from accumlint.static.interpreter.state import Frame
from accumlint.static.values import ClassValue, Closure, External, Gradient, Instance, MISSING, Method, Parameters, Tensor, Thing, Unknown


class Attributes:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def _attr(self, node: ir.Attr, frame: Frame) -> Any:
        return self.attribute(self.eval(node.value, frame), node.name, node, frame)

    def attribute(self, value: Any, name: str, node: Any, frame: Frame | None = None) -> Any:
        site = node.site if node is not None else -1
        kind = type(value)
        if kind is Instance:
            return self._instance_attribute(value, name, site)
        if kind is External:
            return self.registry.external_attribute(self, value, name, site)
        if kind is tuple and len(value) == 2 and value[0] == "module":
            return self._module_attribute(value[1], name, site)
        if kind is Thing:
            if name in value.attributes:
                return value.attributes[name]
            return self.registry.attribute(self, value, name, site)
        if kind is Tensor:
            return self.registry.tensor_attribute(self, value, name, site)
        if kind is Parameters:
            if name == "data":
                return value
            return Gradient(value.models) if name == "grad" else Unknown(f"parameter.{name}")
        if kind is Gradient:
            return value if name in ("data", "grad") else Unknown(f"gradient.{name}")
        if kind is ClassValue:
            method = self.find_method(value.cls, name)
            if method is not None:
                return Closure(method, self._class_frame(value.cls))
            found = self._class_attribute(value.cls, name)
            return found if found is not MISSING else self.unknown(f"{value.cls.name}.{name}", site)
        if kind is Unknown:
            key = f"{value.key}.{name}"
            if name == "grad":
                return Gradient(None)
            if name == "ignore_index":
                self.ignoring.add(value.key)  # the script asks a loss which label it leaves out
            thing = self.things.get(value.key)
            if isinstance(thing, (Thing, Instance)):
                return self.attribute(thing, name, node, frame)
            return self.unknown(key, site, batch=value.batch, local=value.local, tags=value.tags & {"rank", "resume"})
        if kind is dict and name in value and not name.startswith("__") and name not in ("items", "keys", "values", "get", "update", "pop"):
            return value[name]
        return Method(value, name, site)

    def _module_attribute(self, module: ir.Module, name: str, site: int) -> Any:
        found = self.held(self.prepare_module(module).names, name)
        if found is not MISSING:
            return found
        return self.unknown(f"{module.name}.{name}", site)

    def _class_frame(self, cls: ir.Class) -> Frame:
        return self.module_frame(cls.module) if cls.module is not None else Frame()

    def mro(self, cls: ir.Class, depth: int = 0) -> list[ir.Class]:
        """The class and its bases as far as the checked files show them (depth first, bounded)."""
        out = [cls]
        if depth > 6:
            return out
        for base in cls.bases:
            value = self.eval(base.value if isinstance(base, ir.Subscript) else base, self._class_frame(cls))
            if isinstance(value, ClassValue) and value.cls is not cls:
                out.extend(c for c in self.mro(value.cls, depth + 1) if c not in out)
        return out

    def find_method(self, cls: ir.Class, name: str) -> ir.Function | None:
        for candidate in self.mro(cls):
            if name in candidate.methods:
                return candidate.methods[name]
        return None

    def _class_attribute(self, cls: ir.Class, name: str) -> Any:
        for candidate in self.mro(cls):
            for statement in candidate.body:
                if isinstance(statement, ir.Assign):
                    for target in statement.targets:
                        if isinstance(target, ir.Name) and target.id == name:
                            return self.named(name, self.eval(statement.value, self._class_frame(candidate)), statement.site)
        return MISSING

    def method_of(self, value: Instance, name: str) -> Closure | None:
        function = self.find_method(value.cls, name)
        if function is None:
            return None
        static = "staticmethod" in function.decorator_names
        frame = self.module_frame(function.module) if function.module is not None else Frame()
        return Closure(function, frame, None if static else value)

    def _instance_attribute(self, value: Instance, name: str, site: int) -> Any:
        if name in value.attributes:
            return value.attributes[name]
        method = self.method_of(value, name)
        if method is not None:
            if {"property", "cached_property"} & method.function.decorator_names:
                return self.call_closure(method, [], {}, site)
            return method
        found = self._class_attribute(value.cls, name)
        if found is not MISSING:
            return found
        special = self.registry.instance_attribute(self, value, name, site)
        if special is not MISSING:
            return special
        return self.unknown(f"{value.cls.name}.{name}", site)

    def set_attribute(self, owner: Any, name: str, value: Any, target: ir.Attr, frame: Frame) -> None:
        if self.registry.set_attribute(self, owner, name, value, target):
            return
        if isinstance(owner, (Instance, Thing)):
            owner.attributes[name] = value
        elif isinstance(owner, Unknown):
            self.things[f"{owner.key}.{name}"] = value if not isinstance(value, Unknown) else Unknown(
                value.key, value.batch, value.local, value.tags
            )
        elif isinstance(owner, dict):
            owner[name] = value
        elif isinstance(owner, ClassValue):
            self.things[f"{owner.cls.name}.{name}"] = value
