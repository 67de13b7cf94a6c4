"""JSON to a positioned tree: a regular-expression tokenizer and an explicit stack.

Comments and trailing commas are read and reported as ``laxity``, so that a dialect whose framework uses a
strict reader (DeepSpeed, TrainingArguments: ``json.load``) can say that the file will be refused.
"""

from __future__ import annotations

import bisect
import json
import re

from accumlint.config.readers import MAX_DEPTH, MAX_NODES
from accumlint.config.tree import Document, Entry, Listing, Mark, Node, Problem, Scalar, Table

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<comment>//[^\n]*|/\*.*?\*/|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*")
      | (?P<number>-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])
      | (?P<word>true|false|null|NaN|-?Infinity)\b
      | (?P<mark>[\[\]{},:])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS = {
    "true": True,
    "false": False,
    "null": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "-Infinity": float("-inf"),
}


class _Unreadable(Exception):
    """Reading stops: (message, offset, kind)."""


_PLACEHOLDER = re.compile(r"[A-Za-z_$<@%{]")
_FOREIGN = re.compile(r"(True|False|None|undefined)\b")


def _kind(text: str, position: int) -> str:
    """A bare word where a value should be marks a template that a script fills in; Python's words are mistakes."""
    if _PLACEHOLDER.match(text, position) and not _FOREIGN.match(text, position):
        return "template"
    return "syntax"


def _number(text: str) -> int | float | str:
    try:
        return float(text) if any(c in text for c in ".eE") else int(text)
    except ValueError:  # more digits than Python converts
        return text


def read_json(path: str, text: str) -> Document:
    """The one value of a JSON text. Duplicate keys stay visible in the table."""
    starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def place(offset: int) -> tuple[int, int]:
        line = bisect.bisect_right(starts, offset)
        return line, offset - starts[line - 1] + 1

    def mark(begin: int, end: int) -> Mark:
        return Mark(*place(begin), *place(end))

    laxity: list[Problem] = []

    def lax(message: str, offset: int) -> None:
        if not laxity:
            laxity.append(Problem(message, *place(offset)))

    try:
        root = _parse(text, mark, lax)
    except _Unreadable as error:
        message, offset, kind = error.args
        return Document(path, "json", (), text, Problem(message, *place(offset), kind))
    return Document(path, "json", (root,), text, None, laxity[0] if laxity else None)


def _parse(text, mark, lax) -> Node:
    # each frame: [is_table, begin, entries or items, key or None, state]; states: first, value, colon, after, next
    stack: list[list] = []
    position, count = 0, 0
    result: Node | None = None
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _Unreadable(
                f"not valid JSON: unexpected {text[position]!r}", position, _kind(text, position)
            )
        begin, position = position, match.end()
        kind = match.lastgroup
        if kind == "space":
            continue
        if kind == "comment":
            lax("a comment, which strict JSON does not know", begin)
            continue
        token = match.group()
        if result is not None:
            raise _Unreadable(
                "not valid JSON: text after the value", begin, "data" if token in ("{", "[") else "syntax"
            )
        frame = stack[-1] if stack else None
        if kind == "mark" and token in "}]":
            if frame is None or frame[0] != (token == "}") or frame[4] in ("colon", "value"):
                raise _Unreadable(f"not valid JSON: unexpected {token!r}", begin, "syntax")
            if frame[4] == "next":
                lax("a trailing comma, which strict JSON does not know", frame[5])
            stack.pop()
            extent = mark(frame[1], position)
            node: Node = Table(tuple(frame[2]), extent) if frame[0] else Listing(tuple(frame[2]), extent)
        elif kind == "mark" and token in "{[":
            if frame is not None and frame[0] and frame[4] in ("first", "next") and token == "{":
                raise _Unreadable("not valid JSON: a key must be a string", begin, _kind(text, begin))
            if frame is not None and (frame[4] in ("after", "colon") or (frame[0] and frame[4] != "value")):
                raise _Unreadable(f"not valid JSON: unexpected {token!r}", begin, "syntax")
            if len(stack) >= MAX_DEPTH:
                raise _Unreadable(f"nested deeper than {MAX_DEPTH} levels", begin, "too-large")
            count += 1
            stack.append([token == "{", begin, [], None, "first", begin])
            continue
        elif kind == "mark":
            if frame is None:
                raise _Unreadable(f"not valid JSON: unexpected {token!r}", begin, "syntax")
            if token == ":" and frame[4] == "colon":
                frame[4] = "value"
            elif token == "," and frame[4] == "after":
                frame[4], frame[5] = "next", begin
            else:
                raise _Unreadable(f"not valid JSON: unexpected {token!r}", begin, "syntax")
            continue
        else:
            count += 1
            if count > MAX_NODES:
                raise _Unreadable(f"more than {MAX_NODES} nodes", begin, "too-large")
            if kind == "string":
                try:
                    value = json.loads(token, strict=False) if "\\" in token else token[1:-1]
                except ValueError:
                    raise _Unreadable("not valid JSON: bad escape in a string", begin, "syntax") from None
                shown = value
            else:
                value, shown = (_WORDS[token] if kind == "word" else _number(token)), token
            node = Scalar(value, shown, mark(begin, position))
        frame = stack[-1] if stack else None
        if frame is None:
            result = node
        elif frame[0] and frame[4] in ("first", "next"):
            if not isinstance(node, Scalar) or kind != "string":
                raise _Unreadable("not valid JSON: a key must be a string", begin, "syntax")
            frame[3], frame[4] = node, "colon"
        elif frame[0] and frame[4] == "value":
            frame[2].append(Entry(frame[3].text, frame[3].mark, node))
            frame[4] = "after"
        elif not frame[0] and frame[4] in ("first", "next"):
            frame[2].append(node)
            frame[4] = "after"
        else:
            raise _Unreadable("not valid JSON: a comma is missing", begin, "syntax")
    if result is None:
        raise _Unreadable("not valid JSON: the text ends early", len(text), "syntax")
    return result
