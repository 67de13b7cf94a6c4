"""Names and what stands behind them: look-up, conventions, assignment."""

from __future__ import annotations

from typing import Any

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity, RANKS
from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import counters_in
from accumlint.static.interpreter.state import EPOCHS, Frame, K, UPDATES
from accumlint.static.values import ClassValue, Closure, Imported, Instance, MISSING, Stream, Tensor, Thing, Unknown, last_name


class Names:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def lookup(self, name: str, frame: Frame) -> Any:
        scope: Frame | None = frame
        while scope is not None:
            if name in scope.names:
                value = scope.names[name]
                return value if type(value) is not Imported else self.held(scope.names, name)
            scope = scope.parent
        return MISSING

    def _name(self, node: ir.Name, frame: Frame) -> Any:
        value = self.lookup(node.id, frame)
        if value is not MISSING:
            return value
        module = frame.module
        if module is not None:
            top = self.module_frame(module)
            if node.id in top.names:
                return self.held(top.names, node.id)
            if node.id in module.classes:
                return ClassValue(module.classes[node.id], top)
            for function in module.functions:
                if function.name == node.id and function.owner is None and "." not in function.qualname:
                    return Closure(function, top)
        return self.unknown(node.id, node.site)

    def unknown(self, key: str, site: int, **fields: Any) -> Any:
        """An unresolved access path: a learned or conventional number, a known object, or an unknown."""
        found = self.things.get(key)
        if found is not None:
            return found
        if "resume" in fields.get("tags", ()):
            return Unknown(key, **fields)  # state["epoch"] is where an earlier run stopped, not how long this one lasts
        if key not in self._plain or key in self.learned.windows:
            number = self._conventional(key, last_name(key), site, fields)
            if number is not None:
                return number
            if not self.scouting and not fields.get("tags"):  # while scouting, numbers are still being learned
                self._plain.add(key)
        return Unknown(key, **fields)

    def _conventional(self, key: str, name: str, site: int, fields: dict[str, Any]) -> Quantity | None:
        """The number that a path stands for, as was learned or by its name; ranks are marked in the fields."""
        if key in self.learned.windows or self.vocabulary.is_window(name):
            self.window_names.setdefault(key, site)
            return Quantity.of(K, "K")
        if key in self.learned.epochs or self.vocabulary.named("epochs", name):
            return Quantity.of(EPOCHS, "epochs")
        if key in self.learned.updates:
            return Quantity.of(UPDATES, "updates")
        if key in self.learned.lengths:
            return Quantity.of(self.length, "len")
        if self.vocabulary.is_world(name):
            return Quantity.of(RANKS, "world")
        if self.vocabulary.named("loader_length", name):
            return Quantity.of(self.length, "len")
        if self.vocabulary.named("rank", name) or self.vocabulary.named("main_rank", name):
            fields["tags"] = fields.get("tags", frozenset()) | {"rank"}
        return None

    def assign(self, target: ir.Expr, value: Any, frame: Frame, site: int) -> None:
        kind = type(target)
        if self.scouting and type(value) is bool and kind in (ir.Name, ir.Attr) and any(where == "if" for where, _, _ in self.scout_stack):
            # a switch that only one arm throws: whoever is scouted next must not take it for thrown
            value = Unknown(self.key(target))
        if kind is ir.Name and isinstance(value, Tensor) and value.form == "data" and last_name(value.key) != target.id:
            # what a reader calls a part of the batch tells labels and masks apart
            value = self.registry.table.roles["named_data"](self, value, target.id)
        if isinstance(value, Unknown) and "resume" in value.tags and kind in (ir.Name, ir.Attr) and "[" in value.key:
            self.emit(Kind.RESUME, site, key=last_name(value.key), into=self.key(target), use="counter")
        if type(value) is int and not self.scouting:
            self._note_restart(target, frame, site)
        if kind in (ir.Name, ir.Attr) and not self.scouting:
            if isinstance(value, Unknown) and self.led_by or isinstance(value, Quantity) and self.led_by and not value.known:
                self.set_behind[self.key(target)] = next((led for led in reversed(self.led_by) if led), [])
        if kind is ir.Name:
            value = self.named(target.id, value, target.site)
            if target.id in frame.outer:
                scope = frame.parent
                while scope is not None:
                    if target.id in scope.names:
                        scope.names[target.id] = value
                        return
                    scope = scope.parent
                if frame.module is not None:
                    self.module_frame(frame.module).names[target.id] = value
                return
            frame.names[target.id] = value
        elif kind is ir.Attr:
            owner = self.eval(target.value, frame)
            if type(value) is int and value == 1 and isinstance(target.value, ir.Attr) and isinstance(owner, Unknown) and self.vocabulary.is_window(target.name):
                value = Unknown(self.key(target))  # _C.TRAIN.ACCUMULATION_STEPS = 1: what a configuration starts with
            self.set_attribute(owner, target.name, self.named(target.name, value, target.site), target, frame)
        elif kind is ir.Sequence:
            self._unpack(target.items, value, frame, site)
        elif kind is ir.Starred:
            self.assign(target.value, value, frame, site)
        elif kind is ir.Subscript:
            owner = self.eval(target.value, frame)
            index = self.eval(target.index, frame)
            if isinstance(index, Quantity) and index.integer is not None:
                index = index.integer
            if isinstance(owner, dict) and isinstance(index, (str, int)):
                owner[index] = value
            elif isinstance(owner, dict):
                owner[f"?{len(owner)}"] = value  # under a key that is not shown
            elif isinstance(owner, list) and isinstance(index, int) and -len(owner) <= index < len(owner):
                owner[index] = value
            elif isinstance(owner, Unknown) and isinstance(index, (str, int)):
                self.things[f"{owner.key}[{index!r}]"] = value
            elif isinstance(owner, Tensor) and owner.form == "data" and isinstance(index, (str, Tensor)):
                # labels[mask] = -100 and batch["labels"] = … : counts of valid targets vary from here on
                if value == -100 or "-100" in str(value):
                    self.traits.add("ignored labels")

    def _note_restart(self, target: ir.Expr, frame: Frame, site: int) -> None:
        """A name that holds a count so far is given a constant."""
        held: Any = None
        if isinstance(target, ir.Name):
            held = self.lookup(target.id, frame)
        elif isinstance(target, ir.Attr) and isinstance(target.value, (ir.Name, ir.Attr)):
            owner = self.eval(target.value, frame)
            held = owner.attributes.get(target.name) if isinstance(owner, Instance) else None
        if isinstance(held, Quantity):
            name = self.key(target)
            if f"counter:{name}" in held.tags:
                self.emit(Kind.RESTART, site, name=name)

    def _unpack(self, targets: list[ir.Expr], value: Any, frame: Frame, site: int) -> None:
        stars = [i for i, t in enumerate(targets) if isinstance(t, ir.Starred)]
        if isinstance(value, Stream) and value.literal and value.length is not None:
            value = [value.item(i) for i in range(value.length)]
        if isinstance(value, (list, tuple)):
            if not stars and len(value) == len(targets):
                for target, item in zip(targets, value):
                    self.assign(target, item, frame, site)
                return
            if stars and len(value) >= len(targets) - 1:
                at = stars[0]
                tail = len(targets) - at - 1
                for target, item in zip(targets[:at], value[:at]):
                    self.assign(target, item, frame, site)
                self.assign(targets[at], list(value[at : len(value) - tail]), frame, site)
                for target, item in zip(targets[at + 1 :], value[len(value) - tail :]):
                    self.assign(target, item, frame, site)
                return
        for index, target in enumerate(targets):
            self.assign(target, self.item_of(value, index, f"[{index}]"), frame, site)

    def item_of(self, value: Any, index: int, suffix: str) -> Any:
        """Element ``index`` of something that is not a known sequence."""
        if isinstance(value, Tensor):
            return self.registry.tensor_item(self, value, index)
        if isinstance(value, Unknown):
            return self.unknown(value.key + suffix, -1, batch=value.batch, local=value.local, tags=value.tags)
        if isinstance(value, Thing):
            return self.registry.thing_item(self, value, index)
        return Unknown(f"?{suffix}")

    def named(self, name: str, value: Any, site: int) -> Any:
        """The name of a target teaches what a value that shows nothing may be."""
        if isinstance(value, list) and value and all(type(one) is int for one in value) and self.vocabulary.is_window(name):
            return [Quantity.of(K, "K")] * len(value)  # a window for every stage of the training
        if isinstance(value, bool) or not isinstance(value, (int, Unknown, Quantity)):
            if isinstance(value, Thing) and value.name[:1].isupper():
                value.name = name
                if value.number in self.subjects:
                    self.subjects[value.number].name = name
            return value
        if isinstance(value, Unknown) and value.batch < 0 and value.key.endswith((")", "]")) and not value.tags:
            used = self.receivers.get(name, frozenset())
            kind = self.vocabulary.kind_of_name(name)
            if not kind and {"step", "zero_grad"} <= used and "backward" not in used:
                kind = "optimizer"  # whatever it is called, it is stepped and cleared
            if kind and not self.vocabulary.kind_of_name(value.last) and self._used_as(name, kind):
                made = self.known_as(value, kind, site)
                made.name = name
                made.state.setdefault("constructor", last_name(value.key.partition("(")[0]))
                if made.number in self.subjects:
                    self.subjects[made.number].name = name
                return made
        if isinstance(value, Unknown) and value.batch < 0 and self.vocabulary.is_world(name) and not value.tags:
            return Quantity.of(RANKS, "world")
        if isinstance(value, int) and value > EPOCHS and self.vocabulary.named("epochs", name):
            return Quantity.of(EPOCHS, "epochs")
        if self.vocabulary.is_window(name):
            if isinstance(value, Unknown) and value.batch < 0 or isinstance(value, int) and (value > 1 or value == 1 and name in self.rebound):
                self.window_names.setdefault(name, site)
                if isinstance(value, int):
                    self.traits.add(f"window literal {value}")
                return Quantity.of(K, "K")
            if isinstance(value, Quantity) and not value.known:
                self.window_names.setdefault(name, site)
                return Quantity.of(K, "K")
            if isinstance(value, Quantity) and "K" not in value.tags and not counters_in(value) and value.integer is not None and value.integer > 1:
                return Quantity.of(K, "K", *value.tags)
        return value

    def _used_as(self, name: str, kind: str) -> bool:
        """The script treats what this name holds as that kind: names alone lie too often."""
        used = self.receivers.get(name, frozenset())
        if kind == "optimizer":
            return bool(used & {"step", "zero_grad"}) or not used
        if kind == "scheduler":
            return "step" in used and not used & {"add_noise", "set_timesteps"}
        return kind in ("model", "loader", "scaler")
