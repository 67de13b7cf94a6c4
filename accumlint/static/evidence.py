"""What a script shows of a model that it does not show: which of its outputs are sums and counts, what is padded.

A model from another file returns a loss that is taken for a mean. Over what it is a mean cannot be seen, but the
script may tell: its evaluation divides the summed second output by the summed third, or it pads the sequences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from accumlint.static import syntax as ir


@dataclass(frozen=True)
class Outputs:
    """How many values a model returns, and which of them are a sum of losses and the count that belongs to it."""

    number: int
    summed: int
    count: int


def counted_outputs(module: ir.Module) -> dict[str, Outputs]:
    """By name of the callee: models whose outputs the script adds up and then divides, one sum by the other.

    ``_, loss, n = model(…); total += loss.sum(); seen += n.sum(); total / seen`` says that the model counts its targets.
    """
    found: dict[str, Outputs] = {}
    for body in (module.body, *(function.body for function in module.functions)):
        statements = list(ir.walk_statements(body))
        fed: dict[str, str] = {}  # a running total -> the name that is added to it
        for statement in statements:
            if isinstance(statement, ir.Augment) and statement.op == "+" and isinstance(statement.target, ir.Name):
                fed[statement.target.id] = _source(statement.value)
        if len(fed) < 2:
            continue
        ratios = {(fed.get(above, ""), fed.get(below, "")) for above, below in _ratios(statements)}
        for statement in statements:
            names = _unpacked(statement)
            for above, below in ratios:
                if above != below and above in names and below in names:
                    call = statement.value  # type: ignore[attr-defined]
                    found[_last(call.func)] = Outputs(len(names), names.index(above), names.index(below))
    return found


def _unpacked(statement: ir.Stmt) -> list[str]:
    """The names to which the outputs of a call are given; what has no name of its own is ''."""
    if not isinstance(statement, ir.Assign) or not isinstance(statement.value, ir.Call) or not isinstance(statement.targets[0], ir.Sequence):
        return []
    return [item.id if isinstance(item, ir.Name) else "" for item in statement.targets[0].items]


def _source(node: ir.Expr) -> str:
    """The name behind ``n.sum().item()``; '' for anything else than a chain on one name."""
    while True:
        if isinstance(node, ir.Name):
            return node.id
        if isinstance(node, ir.Attr):
            node = node.value
        elif isinstance(node, ir.Call) and isinstance(node.func, ir.Attr):
            node = node.func
        else:
            return ""


def _last(node: ir.Expr) -> str:
    return node.id if isinstance(node, ir.Name) else node.name if isinstance(node, ir.Attr) else ""


def _ratios(statements: list[ir.Stmt]) -> Iterator[tuple[str, str]]:
    """All divisions of one name by another, nested ones and ``a /= b`` included."""
    for statement in statements:
        if isinstance(statement, ir.Augment) and statement.op == "/" and isinstance(statement.target, ir.Name) and isinstance(statement.value, ir.Name):
            yield statement.target.id, statement.value.id
        stack: list[Any] = [statement]
        while stack:
            node = stack.pop()
            if isinstance(node, ir.Binary) and node.op == "/" and isinstance(node.left, ir.Name) and isinstance(node.right, ir.Name):
                yield node.left.id, node.right.id
            for field in getattr(type(node), "__dataclass_fields__", ()):
                value = getattr(node, field)
                stack.extend(part for part in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(part, (ir.Expr, ir.Argument)))


_PADS_BY_HAND = re.compile(rb"\[\s*[\w.]*pad\w*\s*\]\s*\*")
_COUNTS_REAL = re.compile(rb"\(\s*\w*(?:ids|tokens)\s*!=\s*(?:0|[\w.]*pad\w*)\s*\)\.sum\(|\w(?:ids|tokens)\.ne\(\s*(?:0|[\w.]*pad\w*)\s*\)\.sum\(")


def shows_padding(source: bytes) -> bool:
    """``ids += [tokenizer.pad_token_id] * missing``: sequences are filled up; ``(ids != 0).sum()``: the others are counted."""
    return _PADS_BY_HAND.search(source) is not None or _COUNTS_REAL.search(source) is not None


def perplexed(module: ir.Module) -> frozenset[str]:
    """Names of callees that return a perplexity beside their loss, which is a mean over tokens then."""
    bodies = (module.body, *(function.body for function in module.functions))
    return frozenset(
        _last(statement.value.func)  # type: ignore[attr-defined]
        for body in bodies for statement in ir.walk_statements(body)
        if any(name.lower() in ("ppl", "perplexity") for name in _unpacked(statement))
    )  # fmt: skip


# a mask of what is predicted, next to the tokens themselves; where to attend or to paint is another matter
_TARGET_MASK = re.compile(r"(?i)^(target|tgt|trg|label|labels|loss|decoder|dec)(_attention|_padding|_pad)?_mask$")
_TOKENS = re.compile(r"(?i)(^|_)(ids|tokens|toks)$")
_WRITES_TEXT = re.compile(r"(?i)seq2?seq|seq_to_seq|LMHead|CausalLM|ConditionalGeneration|text_?gen")


def masks_its_targets(named: list[tuple[str, Any]]) -> bool:
    """Among the inputs of a model, by name: tokens, and a mask of the predicted ones that is made of data.

    Hugging Face's ``labels=`` (once ``lm_labels=``) carries its own mask (-100), whatever else is given.
    """
    names = [name for name, value in named if value is not None]
    return not any(name.endswith("labels") for name in names) and any(map(_TARGET_MASK.search, names)) and any(map(_TOKENS.search, names))


def writes_text(constructor: str) -> bool:
    """A model whose name says that it predicts tokens one after the other."""
    return _WRITES_TEXT.search(constructor) is not None


_IGNORE_ARGUMENT = re.compile(rb"ignore_index\s*=\s*-100\b")
# the labels of masked language modelling are made while the loop runs, where the simulation sees whether it happens
_MASKS_TOKENS = re.compile(rb"^([ \t]*)def _?(?:mlm_)?mask_tokens\b.*?(?=^\1\S|\Z)", re.MULTILINE | re.DOTALL)


def speaks_of_ignored_labels(source: bytes) -> bool:
    """-100 is written somewhere else than in an ``ignore_index`` that repeats the default: labels are switched off."""
    return re.search(rb"-100\b", _MASKS_TOKENS.sub(b"", _IGNORE_ARGUMENT.sub(b"", source))) is not None


def class_ignores_labels(source: bytes, name: str) -> bool:
    """The text of one class speaks of ignored labels: a dataset that hands out -100."""
    found = re.search(rb"^class " + re.escape(name.encode()) + rb"\b.*?(?=^[^\s#)]|\Z)", source, re.MULTILINE | re.DOTALL)
    return found is not None and speaks_of_ignored_labels(found[0])
