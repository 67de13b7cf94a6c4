"""The report as JSON (schema ``accumlint/audit/v1``), and back.

The dataclasses of :mod:`~accumlint.report.audit.model` are the one declaration: what is written, what is
accepted and the published JSON Schema all follow from them. Keys that a later version may add are let through.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import json
import re
import types
import typing
from typing import Any

from accumlint.report.audit.model import CONFIDENCES, SCHEMA, SEVERITIES, Audit, is_source_url

MAX_BYTES = 256 * 1024 * 1024


class DocumentError(ValueError):
    """A text is no report of this version; the message says what is wrong, and where in the document."""


def render(audit: Audit) -> str:
    """The whole document; text outside ASCII is escaped, so that any pipe carries it."""
    return json.dumps(_plain(audit), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, collections.abc.Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return value


def load(data: bytes) -> Audit:
    """The report in a JSON text. Raises :class:`DocumentError`."""
    if len(data) > MAX_BYTES:
        raise DocumentError(f"{len(data):,} bytes: no report is larger than {MAX_BYTES:,}")
    try:
        document = json.loads(data.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise DocumentError(f"is not UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise DocumentError(f"is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except (RecursionError, ValueError) as error:
        raise DocumentError(f"is not JSON: {str(error) or 'nested too deeply'}") from None
    if not isinstance(document, dict):
        raise DocumentError("is no report: expected an object")
    said = document.get("schema")
    if said != SCHEMA:
        shown = f"its schema is {said!r}" if isinstance(said, str) else "it names no schema"
        raise DocumentError(f"is no report of this version: {shown[:120]}, expected {SCHEMA!r}")
    audit = _read(Audit, document, "")
    _check_indices(audit)
    _check_words(audit)
    return audit


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: Any, where: str) -> Any:
    """``value`` as ``kind``; ``where`` is its place in the document."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        (wanted,) = (each for each in arguments if each is not type(None))
        return _read(wanted, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise DocumentError(f"{where or 'document'}: expected a list")
        return tuple(_read(arguments[0], each, f"{where}[{number}]") for number, each in enumerate(value))
    if origin is collections.abc.Mapping:
        if not isinstance(value, dict):
            raise DocumentError(f"{where}: expected an object")
        return {key: _read(arguments[1], each, f"{where}.{key}") for key, each in value.items()}
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise DocumentError(f"{where or 'document'}: expected an object")
        hints = _hints(kind)  # type: ignore[arg-type]
        read = {}
        for each in dataclasses.fields(kind):
            place = f"{where}.{each.name}" if where else each.name
            if each.name in value:
                read[each.name] = _read(hints[each.name], value[each.name], place)
            elif each.default is dataclasses.MISSING:
                raise DocumentError(f"{place} is missing")
        return kind(**read)  # type: ignore[operator]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise DocumentError(f"{where}: expected {_NAMES[kind]}")
    return value


_NAMES = {int: "a whole number", str: "a text", bool: "true or false"}


def _check_indices(audit: Audit) -> None:
    """Loops and findings point at each other by number: every number must lead somewhere."""
    pairs = [(f"findings[{n}].loops", each.loops, len(audit.loops)) for n, each in enumerate(audit.findings)]
    for n, loop in enumerate(audit.loops):
        pairs.append((f"loops[{n}].findings", loop.findings, len(audit.findings)))
        pairs += [
            (f"loops[{n}].pictures[{m}].findings", p.findings, len(audit.findings))
            for m, p in enumerate(loop.pictures)
        ]
    for where, numbers, limit in pairs:
        if any(not 0 <= number < limit for number in numbers):
            raise DocumentError(f"{where}: leads nowhere")


_RULE = re.compile(r"ACC\d{3}")
_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")


def _check_words(audit: Audit) -> None:
    """Words of a fixed form have it: pages are looked up, reports are ordered and anchors are named by them."""
    for n, finding in enumerate(audit.findings):
        if not _RULE.fullmatch(finding.rule):
            raise DocumentError(f"findings[{n}].rule: expected a code such as ACC202")
        for key, allowed in (("severity", SEVERITIES), ("confidence", CONFIDENCES)):
            if getattr(finding, key) not in allowed:
                raise DocumentError(f"findings[{n}].{key}: expected one of {', '.join(allowed)}")
    if not audit.name.strip():
        raise DocumentError("name: expected a text that is not empty")
    if not is_source_url(audit.source_url):
        raise DocumentError("source_url: expected an address with {path} in it, or nothing")
    if audit.revision is not None:
        if not _COMMIT.fullmatch(audit.revision.commit):
            raise DocumentError("revision.commit: expected hexadecimal digits")
        if not _DATE.fullmatch(audit.revision.committed):
            raise DocumentError("revision.committed: expected a date such as 2025-01-31T12:00:00Z")


def schema() -> dict[str, Any]:
    """The document's JSON Schema (2020-12)."""
    definitions: dict[str, Any] = {}
    top = _schema(Audit, definitions)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:accumlint:schema:audit:v1",
        "title": "accumlint audit report",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (wanted,) = (each for each in arguments if each is not type(None))
        return {"anyOf": [_schema(wanted, definitions), {"type": "null"}]}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is collections.abc.Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if dataclasses.is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}
            hints = _hints(kind)  # type: ignore[arg-type]
            fields = dataclasses.fields(kind)
            definitions[name] = {
                "type": "object",
                "description": " ".join((kind.__doc__ or "").replace("``", "").split()),
                "properties": {each.name: _schema(hints[each.name], definitions) for each in fields},
                "required": [each.name for each in fields],
            }
        if kind is Audit:
            properties = definitions.pop(name)
            properties["properties"]["schema"] = {"const": SCHEMA}
            return properties
        return {"$ref": f"#/$defs/{name}"}
    return {"type": {int: "integer", str: "string", bool: "boolean"}[kind]}
