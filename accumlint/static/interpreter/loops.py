"""Loops, each with a cap by its role; and what can be iterated."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from accumlint.contract.events import Kind
from accumlint.static import syntax as ir
from accumlint.static.interpreter.facts import is_object, is_settled, stem_of
from accumlint.static.interpreter.state import EPOCHS, Frame, K, Relearn, UPDATES
from accumlint.static.values import Batches, External, Instance, Method, Parameters, Stream, Tensor, Thing, Unknown, last_name

# iterating over these gives names, not microbatches
_NO_DATA = re.compile(r"(?i)listdir|glob|scandir|walk\(|\.split\(|readlines|modules\(|children\(|tracker|callback|hooks?\b|layers?\b|blocks?\b|param_groups|(^|\.)(dirs|files|paths|names|keys|lines|args|argv|groups|modules|metrics|losses)$")
_EPOCH = re.compile(r"(?i)(^|_)epochs?(_?(i|idx|index|no|num|number))?$")
_ENDLESS = re.compile(r"(?i)stream|infinite|endless|forever|cycle")


class Loops:
    """Part of :class:`~accumlint.static.interpreter.core.Interpreter`."""

    def _for(self, statement: ir.For, frame: Frame) -> Any:
        source = self.eval(statement.iterable, frame)
        stream = self.stream(source, statement.iterable)
        if stream.loader and not isinstance(stream.thing, Thing) and isinstance(statement.target, ir.Name) and _EPOCH.search(statement.target.id):
            # `for epoch in self.hparams.epoch_counter`: a number, not the data of a microbatch
            number = Unknown(statement.target.id)
            stream = dataclasses.replace(stream, item=lambda index: number)
        outcome = self._loop(statement, frame, stream, None)
        if self.learned.roles.get(statement.site) == "window":
            # `if len(buffer) == n: yield buffer`, and somebody takes that for a window: as large as it is filled
            for test in self.filled.get(id(source), ()):
                self._learn_window(test)
        return outcome

    def _while(self, statement: ir.While, frame: Frame) -> Any:
        return self._loop(statement, frame, None, statement.test)

    def _loop(self, statement: Any, frame: Frame, stream: Stream | None, test: ir.Expr | None) -> Any:
        site = statement.site
        if self.scouting:
            return self._scout_loop(statement, frame, stream, test)
        role = self.learned.roles.get(site, "plain")
        if role == "plain" and frame.yields is not None:
            role = "generator"
        if stream is not None and stream.literal and role in ("micro", "window") and not stream.loader:
            # a loop over known elements (optimizers, losses) is no microbatch loop unless they are microbatches
            if stream.length and is_object(stream.item(0)):
                role = "plain"
        count, whole, infinite = self._iterations(stream, role, site)
        usual = count
        if role == "outer" and "outer" in self.loop_roles:
            count = max(count, self._inner_passes(stream))
        carrying = role in ("micro", "window")
        told = carrying or role == "update"
        if told:
            self.emit(Kind.LOOP, site, phase="enter", role=role)
        self.loops.append(site)
        self.loop_roles.append(role)
        broke = False
        outcome = None
        index = 0
        try:
            while index < count:
                self.spend()
                if test is not None:
                    value = self.eval(test, frame)
                    if role in ("plain", "generator") and not is_settled(value):
                        going = index == 0
                    elif index >= usual and not is_settled(value):
                        break  # nothing shows how often
                    else:
                        going = self.truth(value, True)
                    if not going:
                        whole = True
                        infinite = infinite and not is_settled(value)  # counted to its end: `while i < len(loader)`
                        break
                else:
                    assert stream is not None
                    item = stream.item(stream.position + index if stream.loader and stream.position else index)
                    if stream.loader:
                        self.loader_depth.append((index, None if stream.infinite else stream.length, stream.thing))
                    self.assign(statement.target, item, frame, site)
                index += 1
                if carrying:
                    self.microbatch += 1
                    self.emit(Kind.MICROBATCH, site)
                elif role == "outer":
                    self.epoch += 1
                    self.emit(Kind.EPOCH, site)
                try:
                    result = self.block(statement.body, frame)
                finally:
                    if stream is not None and stream.loader:
                        self.loader_depth.pop()
                if result == "continue" or result is None:
                    continue
                if result == "break":
                    broke = True
                    break
                outcome = result
                break
        finally:
            self.loops.pop()
            self.loop_roles.pop()
        if told:
            self.emit(
                Kind.LOOP, site, phase="exit", role=role, whole=whole and not infinite, infinite=infinite, broke=broke,
                ended=outcome is not None, known_length=bool(stream is not None and stream.length is not None and not stream.infinite),
            )  # fmt: skip
        if outcome is not None:
            return outcome
        if not broke and statement.orelse:
            return self.block(statement.orelse, frame)
        return None

    def _iterations(self, stream: Stream | None, role: str, site: int) -> tuple[int, bool, bool]:
        """How often a loop runs here: (iterations, the iterable ends by itself, it never ends)."""
        if stream is None:
            caps = {
                "micro": 2 * self.length + 2, "window": 2 * self.length, "update": UPDATES, "outer": EPOCHS,
                "generator": 4 * self.length,
            }  # fmt: skip
            return caps.get(role, 2), False, role in ("micro", "window")
        if stream.infinite:
            caps = {
                "micro": 2 * self.length + 2, "window": K, "update": UPDATES, "outer": EPOCHS, "generator": 4 * self.length,
            }  # fmt: skip
            return caps.get(role, 1), False, True
        length = stream.length
        if role == "generator":
            return (self.length if length is None else min(length, 2 * self.length)), True, False
        if stream.literal and length is not None and not (role == "micro" and length == 0):
            return min(length, 24), length <= 24, False
        if role == "micro":
            if length is None:
                if stream.bound:
                    self.learned.lengths.add(stream.bound)
                    raise Relearn
                return self.length, True, False
            if length <= K and not isinstance(stream.thing, int):
                # a list that the script fills from data: as long as a loader
                return self.length, True, False
            return min(length, 2 * self.length), length <= 2 * self.length, False
        if role == "window":
            if length is None:
                return K, True, False
            return min(length, 64), True, False
        if role == "outer" and stream.loader and isinstance(stream.thing, Thing):
            return (self.length if length is None else min(length, self.length)), True, False  # batches, not epochs
        if role in ("update", "outer") and length == 0 and stream.thing == 0 and isinstance(stream.thing, int):
            self.traits.add(f"empty loop@{site}")
        if role == "update" and stream.loader:
            return (self.length if length is None else min(length, self.length)), True, False
        if role == "update":
            return (UPDATES if length is None else min(length, UPDATES)), length is not None and length <= UPDATES, False
        if role == "outer":
            return (EPOCHS if length is None else min(length, EPOCHS)), length is None or length <= EPOCHS, False
        return (1 if length is None else min(length, 1 if self.evaluating else 4)), True, False

    def _inner_passes(self, stream: Stream | None) -> int:
        """How often a loop runs that stands between the epochs and the microbatches, as over lists of batches: to its end."""
        if stream is None:
            return self.length  # `while window := list(islice(...))`, or a test inside that ends it
        return 0 if stream.length is None or stream.infinite else min(stream.length, self.length)

    def _scout_loop(self, statement: Any, frame: Frame, stream: Stream | None, test: ir.Expr | None) -> Any:
        site = statement.site
        effects: set[str] = set()
        if test is not None:
            self.eval(test, frame)
        self.scout_stack.append(("for", site, effects))
        self.loops.append(site)
        outcome = None
        try:
            # a list of known elements is walked whole: its objects may differ
            rounds = min(stream.length or 1, 4) if stream is not None and stream.literal else 1
            for index in range(rounds):
                if stream is not None:
                    self.assign(statement.target, stream.item(index), frame, site)
                outcome = self.block(statement.body, frame)
        finally:
            self.scout_stack.pop()
            self.loops.pop()
        for _, _, outer in self.scout_stack:
            outer |= effects
        self.learned.loop_effects[site] = self.learned.loop_effects.get(site, frozenset()) | frozenset(effects)
        carrying = "backward" in effects
        if carrying:
            effects.add("carrying")
            self._scout_role(site, stream, effects)
            for _, _, outer in self.scout_stack:
                outer.add("carrying loop")
                outer.add("carrying")
        if isinstance(outcome, tuple):
            return outcome
        return self.block(statement.orelse, frame) if statement.orelse else None

    def _scout_role(self, site: int, stream: Stream | None, effects: set[str]) -> None:
        """The role of a loop, from what happens inside it, and what that teaches about its bound."""
        literal = stream is not None and stream.literal and not stream.loader and stream.length
        if literal and is_object(stream.item(0)):
            self.learned.roles[site] = "plain"
            return
        if "carrying loop" not in effects:
            role = "micro" if "step" in effects else "window"
        elif "windowed" in effects and "step" in effects and "stepping loop" not in effects:
            role = "update"
        else:
            role = "outer"
        if role == "window":
            if stream is not None and stream.length is None and isinstance(stream.thing, (Unknown, Tensor)):
                self.learned.groups.add(stem_of(stream.thing))
            for _, _, outer in self.scout_stack:
                outer.add("windowed")
        elif role in ("micro", "update"):
            for _, _, outer in self.scout_stack:
                outer.add("stepping loop")
        self.learned.roles[site] = role
        self.learned.own_loop = True
        if role in ("outer", "update"):
            self.learned.outer_loop = True
        bound = stream.bound if stream is not None else ""
        if bound:
            group = {"window": self.learned.windows, "outer": self.learned.epochs, "update": self.learned.updates}.get(role)
            if group is not None:
                group.add(bound)
        if role == "window" and stream is not None and stream.length is not None and not stream.loader and bound == "":
            if isinstance(stream.thing, int) and 1 < stream.thing <= 4096 and self.learned.literal is None:
                self.learned.literal = stream.thing

    def stream(self, value: Any, node: ir.Expr | None) -> Stream:
        """Anything as something to iterate over."""
        if isinstance(value, Stream):
            return value
        if isinstance(value, (list, tuple)):
            if isinstance(value, tuple) and value[:1] == ("module",):
                return Stream(lambda i: Unknown("item"))
            held = list(value)
            if isinstance(value, Batches):
                return Stream(lambda i: held[i] if i < len(held) else self.batch_data("item"), len(held), loader=True)
            # scouting looks into the body of a loop over nothing, too
            return Stream(lambda i: held[i] if i < len(held) else self.batch_data("item"), len(held), literal=True)
        if isinstance(value, dict):
            keys = list(value)
            return Stream(lambda i: keys[i] if i < len(keys) else Unknown("key"), len(keys), literal=True)
        if isinstance(value, Thing):
            return self.registry.iterate(self, value)
        if isinstance(value, Tensor):
            return Stream(lambda i: self.registry.tensor_item(self, value, i), None, thing=value)
        if isinstance(value, Parameters):
            return Stream(lambda i: value, 1, literal=True, thing=value)
        if isinstance(value, Instance):
            method = self.method_of(value, "__iter__")
            if method is not None and method.function.generator:
                return self.stream(self.call_closure(method, [], {}, node.site if node is not None else -1), node)
            return self._unknown_stream(value.cls.name)
        if isinstance(value, Unknown):
            return self._unknown_stream(value.key, value)
        if isinstance(value, (Method, External)):
            return self._unknown_stream(self.key(node) if node is not None else "items")
        return Stream(lambda i: Unknown("item"))

    def _unknown_stream(self, key: str, value: Unknown | None = None) -> Stream:
        def item(index: int) -> Any:
            if value is not None and self.vocabulary.kind_of_name(value.last) in ("optimizer", "scheduler", "model"):
                kind = self.vocabulary.kind_of_name(value.last)
                return self.known_as(Unknown(f"{value.key}[{index}]"), kind, -1)
            if _NO_DATA.search(key):
                return Unknown(f"{key}[{index}]")
            return self.batch_data(last_name(key))

        endless = bool(_ENDLESS.search(last_name(key)))
        finite = value is not None and not endless and self.vocabulary.kind_of_name(value.last) == "loader"
        return Stream(item, self.length if finite else None, infinite=endless, loader=True, thing=value)
