"""A small language for the shape of a document: one declaration gives the validator and the JSON Schema.

``jsonschema`` alone does not do: it lets NaN pass as a number and 1.0 as an integer, it can't see duplicate
keys, and its messages quote the document. The validator below reports every problem with a stable code and
never a piece of the document; the schema is what editors and other languages read. A test holds them together.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accumlint.receipt.limits import MAX_INTEGER, MAX_PATHS_PER_REASON
from accumlint.receipt.numbers import NUMBER_PATTERN, NonFinite, NumberText, refusal, to_decimal
from accumlint.receipt.problems import ProblemLog
from accumlint.receipt.reading import RepeatedKeys


@dataclass(frozen=True)
class Shape:
    """Base of all shapes."""

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        """Report to ``log`` everything in which ``value`` is not of this shape."""
        raise NotImplementedError

    def schema(self) -> dict[str, Any]:
        """The same shape in JSON Schema 2020-12."""
        raise NotImplementedError


def _wrong_number(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean-as-number"
    return "number-nonfinite" if isinstance(value, NonFinite) else "type"


@dataclass(frozen=True)
class Flag(Shape):
    """true or false."""

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if type(value) is not bool:
            log.add("type", path, "expected true or false")

    def schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Count(Shape):
    """An integer within bounds, by default a count from 0 to 2^53 - 1."""

    minimum: int = 0
    maximum: int = MAX_INTEGER

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if type(value) is int:
            if not self.minimum <= value <= self.maximum:
                log.add("count-unsafe", path, f"expected {self.minimum} to {self.maximum}")
        elif type(value) is NumberText and value.lstrip("-").isdigit():
            log.add("count-unsafe", path, f"expected {self.minimum} to {self.maximum}")
        else:
            log.add(_wrong_number(value), path, "expected an integer")

    def schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


@dataclass(frozen=True)
class Number(Shape):
    """A measured number: finite, as a JSON number or as decimal text; ``minimum`` and ``above`` bound it."""

    minimum: int | None = None
    above: int | None = None

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        code = refusal(value)
        if code is not None:
            log.add(code, path, "expected a finite number of at most 64 digits")
        elif self.minimum is not None and to_decimal(value) < self.minimum:
            log.add("value-range", path, f"expected at least {self.minimum}")
        elif self.above is not None and to_decimal(value) <= self.above:
            log.add("value-range", path, f"expected more than {self.above}")

    def schema(self) -> dict[str, Any]:
        number: dict[str, Any] = {"type": "number"}
        if self.minimum is not None:
            number["minimum"] = self.minimum
        if self.above is not None:
            number["exclusiveMinimum"] = self.above
        return {"anyOf": [number, {"type": "string", "pattern": f"^{NUMBER_PATTERN}$", "maxLength": 1024}]}


@dataclass(frozen=True)
class Choice(Shape):
    """One of the words that the format knows."""

    words: tuple[str, ...]

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if type(value) is not str:
            log.add("type", path, "expected a word")
        elif value not in self.words:
            log.add("choice", path, "expected one of " + ", ".join(self.words))

    def schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass(frozen=True)
class Literal(Shape):
    """One fixed text, such as the name of the schema."""

    text: str
    code: str = "schema-unknown"

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if type(value) is not str:
            log.add("type", path, f"expected {self.text}")
        elif value != self.text:
            log.add(self.code, path, f"expected {self.text}")

    def schema(self) -> dict[str, Any]:
        return {"const": self.text}


@dataclass(frozen=True)
class Pattern(Shape):
    """A text of a fixed form (digest, version): too narrow for prose to pass."""

    name: str
    expression: str
    max_length: int

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if type(value) is not str:
            log.add("type", path, f"expected {self.name}")
        elif len(value) > self.max_length or not re.match(f"(?:{self.expression})\\Z", value, re.ASCII):
            log.add("pattern", path, f"expected {self.name}")

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": f"^(?:{self.expression})$", "maxLength": self.max_length}


@dataclass(frozen=True)
class Label(Shape):
    """A name of the user's own, a text or a count. It is compared and counted, and never copied anywhere."""

    max_length: int = 128

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if type(value) is str:
            if not 1 <= len(value) <= self.max_length:
                log.add("pattern", path, f"expected 1 to {self.max_length} characters")
        elif type(value) is int:
            if not 0 <= value <= MAX_INTEGER:
                log.add("count-unsafe", path, f"expected 0 to {MAX_INTEGER}")
        else:
            log.add(_wrong_number(value), path, "expected a text or a count")

    def schema(self) -> dict[str, Any]:
        text = {"type": "string", "minLength": 1, "maxLength": self.max_length}
        return {"anyOf": [text, {"type": "integer", "minimum": 0, "maximum": MAX_INTEGER}]}


@dataclass(frozen=True)
class Nullable(Shape):
    """null, or the inner shape."""

    inner: Shape

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if value is not None:
            self.inner.check(value, path, log)

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [{"type": "null"}, self.inner.schema()]}


@dataclass(frozen=True)
class ListOf(Shape):
    """A list; columns of plain numbers take a fast path, so that long ones cost little."""

    item: Shape
    minimum: int = 0
    maximum: int = 1_000_000

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if type(value) is not list:
            log.add("type", path, "expected a list")
            return
        if not self.minimum <= len(value) <= self.maximum:
            log.add("list-length", path, f"expected {self.minimum} to {self.maximum} entries")
            if len(value) > self.maximum:
                return
        if not self._all_fine(value):
            for index, item in enumerate(value):
                self.item.check(item, f"{path}[{index}]", log)

    def _all_fine(self, value: list[Any]) -> bool:
        """True only when every entry passes; False says nothing."""
        kinds = set(map(type, value))
        item = self.item
        if isinstance(item, Nullable):
            kinds.discard(type(None))
            item = item.inner
            if kinds == {int}:
                return False
        if isinstance(item, Count):
            return kinds == {int} and item.minimum <= min(value) and max(value) <= item.maximum
        if isinstance(item, Flag):
            return kinds == {bool}
        if isinstance(item, Number) and item.minimum is None and item.above is None and kinds == {float}:
            return all(x is None or x - x == 0 for x in value)  # inf - inf and nan - nan are nan
        return False

    def schema(self) -> dict[str, Any]:
        return {
            "type": "array",
            "items": self.item.schema(),
            "minItems": self.minimum,
            "maxItems": self.maximum,
        }


@dataclass(frozen=True)
class Field:
    """One key of a record: its shape, whether it must be there, and what it means (for schema and docs)."""

    shape: Shape
    doc: str = ""
    required: bool = True


@dataclass(frozen=True)
class Record(Shape):
    """An object with exactly these keys."""

    fields: Mapping[str, Field]

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if not isinstance(value, dict):
            log.add("type", path, "expected an object")
            return
        self.check_keys(value, path, log)
        for key, field in self.fields.items():
            if key in value:
                field.shape.check(value[key], f"{path}.{key}" if path else key, log)

    def check_keys(self, value: dict[str, Any], path: str, log: ProblemLog) -> None:
        """Report unknown, missing and repeated keys, without a look at the values."""
        if isinstance(value, RepeatedKeys):
            for key, times in value.repeated.items():
                for _ in range(times):
                    log.add("duplicate-key", path, f"key {key}" if key in self.fields else "an unknown key")
        unknown = 0
        for key in value:
            if key not in self.fields:
                unknown += 1
                # an unknown key may be anything: it is named by its place, and guessed only among our own words
                # (only the first few: guessing costs far more than looking a key up)
                guess = unknown <= MAX_PATHS_PER_REASON and len(str(key)) < 64
                near = difflib.get_close_matches(str(key), self.fields, 1, 0.75) if guess else []
                place = f"{path}.<unknown key {unknown}>" if path else f"<unknown key {unknown}>"
                log.add("unknown-key", place, f"perhaps {near[0]} was meant" if near else "")
        for key, field in self.fields.items():
            if field.required and key not in value:
                log.add("missing-key", f"{path}.{key}" if path else key)

    def schema(self) -> dict[str, Any]:
        properties = {}
        for key, field in self.fields.items():
            properties[key] = field.shape.schema()
            if field.doc:
                properties[key] = {"description": field.doc, **properties[key]}
        return {
            "type": "object",
            "properties": properties,
            "required": [key for key, field in self.fields.items() if field.required],
            "additionalProperties": False,
        }


@dataclass(frozen=True)
class ListOrRecord(Shape):
    """A list, or an object in its place (ids: written out, or as a synthetic range)."""

    listed: ListOf
    record: Record

    def check(self, value: Any, path: str, log: ProblemLog) -> None:
        if isinstance(value, dict):
            self.record.check(value, path, log)
        elif isinstance(value, list):
            self.listed.check(value, path, log)
        else:
            log.add("type", path, "expected a list or an object")

    def schema(self) -> dict[str, Any]:
        return {"anyOf": [self.listed.schema(), self.record.schema()]}
