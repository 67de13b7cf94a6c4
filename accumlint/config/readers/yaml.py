"""YAML to a positioned tree, from libyaml's event stream.

Events rather than PyYAML's composer, for two reasons: nesting and size can be capped while reading (the
composer recurses), and duplicate keys and merge keys stay visible. Tags are ignored, never constructed:
``!include`` or ``!!python/object`` gives the plain node below it.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from accumlint.config.readers import MAX_DEPTH, MAX_NODES
from accumlint.config.tree import Document, Entry, Listing, Mark, Node, Problem, Scalar, Table

# the C parser where PyYAML was built with it: ten times faster, same events
Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*)\Z")
_BASED = re.compile(r"[-+]?0(x[0-9a-fA-F_]+|o?[0-7_]+|b[01_]+)\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?\Z")
# YAML 1.1, as PyYAML resolves it; OmegaConf and ruamel agree on these spellings apart from on/off/yes/no
_BOOLEANS = {
    spelling: value
    for words, value in ((("true", "yes", "on"), True), (("false", "no", "off"), False))
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_NULLS = {"", "~", "null", "Null", "NULL"}
_TEMPLATE = re.compile(r"\{\{|\{%|<%")


def plain(text: str) -> Any:
    """The value of an untagged plain scalar. ``2e-5`` is a number here although YAML 1.1 says string:
    every framework read here converts it."""
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    try:
        if _INT.match(text):
            return int(text.replace("_", ""))
        if _BASED.match(text):
            digits = text.replace("_", "").lower()
            if re.match(r"[-+]?0[0-7]", digits):
                return int(digits, 8)
            return int(digits, 0)
        if _FLOAT.match(text):
            return float(text.replace("_", ""))
    except ValueError:  # thousands of digits
        pass
    return text


def _mark(event: Any) -> Mark:
    start, end = event.start_mark, event.end_mark
    return Mark(start.line + 1, start.column + 1, end.line + 1, end.column + 1)


class _Open:
    """A collection that is still being read."""

    __slots__ = ("anchor", "entries", "is_table", "items", "key", "mark", "merged")

    def __init__(self, event: Any, is_table: bool) -> None:
        self.anchor = event.anchor
        self.is_table = is_table
        self.key: Scalar | None = None
        self.items: list[Node] = []
        self.entries: list[Entry] = []
        self.merged: list[Table] = []
        self.mark = _mark(event)

    def add(self, node: Node) -> None:
        if not self.is_table:
            self.items.append(node)
        elif self.key is None:
            # a collection as key: no framework uses one; keep the pairing right
            self.key = node if isinstance(node, Scalar) else Scalar(None, "?", node.mark)
        else:
            key, self.key = self.key, None
            if key.text == "<<":
                nodes = node.items if isinstance(node, Listing) else (node,)
                self.merged.extend(n for n in nodes if isinstance(n, Table))
            else:
                self.entries.append(Entry(key.text, key.mark, node))

    def close(self, event: Any) -> Node:
        mark = Mark(self.mark.line, self.mark.column, event.end_mark.line + 1, event.end_mark.column + 1)
        if self.is_table:
            return Table(tuple(self.entries), mark, tuple(self.merged))
        return Listing(tuple(self.items), mark)


def read_yaml(path: str, text: str) -> Document:
    """All documents of a YAML stream. What was complete before an error is kept beside the problem."""
    roots: list[Node] = []
    anchors: dict[str, Node] = {}
    stack: list[_Open] = []
    count = 0
    problem: Problem | None = None

    def put(node: Node) -> None:
        if stack:
            stack[-1].add(node)
        else:
            roots.append(node)

    try:
        for event in yaml.parse(text, Loader=Loader):
            if isinstance(event, yaml.ScalarEvent):
                count += 1
                untagged = event.tag is None and event.implicit[0]
                node = Scalar(plain(event.value) if untagged else event.value, event.value, _mark(event))
                if event.anchor:
                    anchors[event.anchor] = node
                put(node)
            elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                count += 1
                if len(stack) >= MAX_DEPTH:
                    mark = _mark(event)
                    problem = Problem(
                        f"nested deeper than {MAX_DEPTH} levels", mark.line, mark.column, "too-large"
                    )
                    break
                stack.append(_Open(event, isinstance(event, yaml.MappingStartEvent)))
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                opened = stack.pop()
                closed = opened.close(event)
                if opened.anchor:
                    anchors[opened.anchor] = closed
                put(closed)
            elif isinstance(event, yaml.AliasEvent):
                mark = _mark(event)
                target = anchors.get(event.anchor)
                if target is None and not any(o.anchor == event.anchor for o in stack):
                    problem = Problem(f"unknown alias *{event.anchor}", mark.line, mark.column)
                    break
                # an alias to a collection that contains it has no finite value
                put(target if target is not None else Scalar(None, f"*{event.anchor}", mark))
            elif isinstance(event, yaml.DocumentStartEvent):
                anchors.clear()
            if count > MAX_NODES:
                mark = _mark(event)
                problem = Problem(f"more than {MAX_NODES} nodes", mark.line, mark.column, "too-large")
                break
    except yaml.MarkedYAMLError as error:
        where = error.problem_mark or error.context_mark
        line, column = (where.line + 1, where.column + 1) if where else (1, 1)
        problem = Problem(f"not valid YAML: {error.problem or error.context}", line, column)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = Problem(
            f"not valid YAML: {str(error).splitlines()[0] if str(error) else type(error).__name__}", 1, 1
        )
    if problem is not None and _TEMPLATE.search(text):
        # Jinja, Helm, ERB: not YAML until rendered, so not an error of the author's
        problem = Problem("a template, not read", problem.line, problem.column, "template")
    return Document(path, "yaml", tuple(roots), text, problem)
