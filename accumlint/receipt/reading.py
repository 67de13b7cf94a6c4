"""Strict reading of JSON and YAML: caps first, then a tree that has lost nothing of the text.

Stock readers take NaN, turn 1e400 into infinity, keep the last of two equal keys, round long numbers and
expand aliases. Here numbers keep their text (see :mod:`accumlint.receipt.numbers`), duplicate keys and
nonfinite tokens stay visible until the validator refuses them at their place, so that one pass reports
everything that is wrong.
"""

from __future__ import annotations

import json
import re
from typing import Any

from accumlint.receipt.limits import MAX_DEPTH, MAX_JSON_BYTES, MAX_YAML_BYTES
from accumlint.receipt.numbers import NUMBER_PATTERN, NonFinite, read_decimal, read_integer
from accumlint.receipt.problems import reject


class RepeatedKeys(dict):
    """An object in which keys appeared more than once; ``repeated`` counts the extra appearances by key."""

    def __init__(self, pairs: list[tuple[str, Any]]):
        super().__init__(pairs)
        self.repeated: dict[str, int] = {}
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                self.repeated[key] = self.repeated.get(key, 0) + 1
            seen.add(key)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    return made if len(made) == len(pairs) else RepeatedKeys(pairs)


def read(data: bytes, syntax: str = "", max_bytes: int | None = None) -> Any:
    """The tree of a document.

    ``syntax`` is ``"json"``, ``"yaml"`` or empty: then a document that starts with ``{`` is JSON. Raises
    :class:`~accumlint.receipt.problems.Rejected` with one of the text reasons (``too-large``, ``too-deep``,
    ``encoding``, ``syntax``, ``yaml-...``); what is wrong inside a readable tree is left to the validator.
    """
    syntax = syntax or ("json" if data[:256].lstrip(b" \t\r\n")[:1] in (b"{", b"[") else "yaml")
    cap = max_bytes if max_bytes is not None else (MAX_JSON_BYTES if syntax == "json" else MAX_YAML_BYTES)
    if len(data) > cap:
        raise reject("too-large", detail=f"{len(data)} bytes, the cap is {cap}")
    return _read_json(data) if syntax == "json" else _read_yaml(data)


def _text(data: bytes) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        raise reject("encoding")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise reject("encoding", detail=f"at byte {error.start}") from None


_STRING = re.compile(rb'"[^"]*"?')  # always matches to a quote or the end: never quadratic
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")


def json_depth_exceeds(data: bytes, cap: int) -> bool:
    """Whether brackets nest deeper than ``cap``, in linear time and without recursion.

    What is left without strings and other characters is a word of brackets. Removing all innermost pairs
    at once lowers its nesting by exactly one, so ``cap`` rounds must leave nothing that still opens.
    """
    plain = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # no escape is left that could hide a quote
    word = _STRING.sub(b"", plain).translate(None, _NO_BRACKET).translate(_ONE_KIND)
    for _ in range(cap):
        if not word:
            return False
        word = word.replace(b"[]", b"")
    # an unbalanced word is a syntax error, which the parser names; but it may not recurse to find out
    return b"[]" in word or word.count(b"[") > cap


def _read_json(data: bytes) -> Any:
    if json_depth_exceeds(data, MAX_DEPTH):
        raise reject("too-deep", detail=f"more than {MAX_DEPTH} levels")
    text = _text(data)
    try:
        return json.loads(
            text,
            parse_int=read_integer,
            parse_float=read_decimal,
            parse_constant=NonFinite,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise reject("syntax", detail=f"JSON, line {error.lineno}, column {error.colno}") from None
    except (RecursionError, ValueError):
        raise reject("syntax", detail="JSON") from None


_PLAIN_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)\Z", re.ASCII)
_PLAIN_NUMBER = re.compile(NUMBER_PATTERN + r"\Z", re.ASCII)
_PLAIN_NONFINITE = re.compile(r"[-+]?\.(inf|Inf|INF|nan|NaN|NAN)\Z", re.ASCII)
_PLAIN_WORDS = {"null": None, "~": None, "": None, "true": True, "false": False}


def _plain(text: str) -> Any:
    """A plain YAML scalar: the literals and numbers of JSON, everything else is text."""
    if text in _PLAIN_WORDS:
        return _PLAIN_WORDS[text]
    if _PLAIN_INTEGER.match(text):
        return read_integer(text)
    if _PLAIN_NUMBER.match(text):
        return read_decimal(text)
    if _PLAIN_NONFINITE.match(text):
        return NonFinite(text)
    return text


def _read_yaml(data: bytes) -> Any:
    """YAML as a data notation: block and flow, no anchors, aliases, tags or second documents."""
    import yaml  # loaded only for YAML: JSON manifests and all receipts do without it

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = _text(data)
    stack: list[list[Any]] = []  # open containers: (is_mapping, items, pending key or None)
    root: list[Any] = []
    documents = 0

    def place(value: Any, mark: Any) -> None:
        if not stack:
            root.append(value)
            return
        top = stack[-1]
        if not top[0]:
            top[1].append(value)
        elif top[2] is None:
            if not isinstance(value, str):
                raise reject("syntax", detail=f"YAML, a key that is no text, line {mark.line + 1}")
            top[2] = (value,)
        else:
            top[1].append((top[2][0], value))
            top[2] = None

    try:
        for event in yaml.parse(text, Loader=loader):
            mark = event.start_mark
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise reject("yaml-alias", detail=f"line {mark.line + 1}")
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise reject("yaml-documents", detail=f"line {mark.line + 1}")
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent, yaml.ScalarEvent)):
                if event.tag is not None:
                    raise reject("yaml-tag", detail=f"line {mark.line + 1}")
                if isinstance(event, yaml.ScalarEvent):
                    plain = event.style is None or event.style == ""
                    as_key = bool(stack) and stack[-1][0] and stack[-1][2] is None
                    place(_plain(event.value) if plain and not as_key else event.value, mark)
                else:
                    if stack and stack[-1][0] and stack[-1][2] is None:
                        raise reject("syntax", detail=f"YAML, a key that is no text, line {mark.line + 1}")
                    stack.append([isinstance(event, yaml.MappingStartEvent), [], None])
                    if len(stack) > MAX_DEPTH:
                        raise reject("too-deep", detail=f"more than {MAX_DEPTH} levels")
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                is_mapping, items, _ = stack.pop()
                place(_object(items) if is_mapping else items, mark)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise reject("syntax", detail=f"YAML{where}") from None
    except (RecursionError, ValueError) as error:
        if hasattr(error, "problems"):
            raise
        raise reject("syntax", detail="YAML") from None
    if not root:
        raise reject("syntax", detail="the document is empty")
    return root[0]
