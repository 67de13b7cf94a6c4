"""What one configuration says about itself: the batch arithmetic and the checks that its dialect lists.

A check of a dialect file::

    - rule: optimizer-in-backward
      when:
        - {value: optimizer_in_bwd, equals: true}
        - {value: accumulation, above: 1}
      at: [optimizer_in_bwd]
      related: [accumulation]
      message: "… {accumulation} …"
      severity: error            # default: the rule's
      confidence: certain        # default

``value`` names a role or a dotted key; ``product`` multiplies several. A condition on a value that is absent,
"auto" or an unresolved interpolation does not hold, whatever it asks (``stated: false`` excepted).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from accumlint.config.arithmetic import CLOSERS, Batch, Verdict
from accumlint.config.dialects import View, whole
from accumlint.config.interpolation import Unresolved, resolve
from accumlint.config.names import report
from accumlint.config.sources.script import names_accumulation
from accumlint.config.tree import Document, Listing, Mark, walk
from accumlint.findings import Confidence, Finding, Severity

Condition = Mapping[str, Any]


def _number(view: View, name: Any) -> float | None:
    value = name if isinstance(name, (int, float)) else view.value(name)
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return value
    return whole(value)


def _product(view: View, names: list[Any]) -> float | None:
    result: float = 1
    for name in names:
        number = _number(view, name)
        if number is None:
            return None
        result *= number
    return result


def _left(view: View, condition: Condition) -> Any:
    if "product" in condition:
        return _product(view, condition["product"])
    value = view.value(condition["value"])
    return None if isinstance(value, Unresolved) else value


def _numeric(test: Callable[[View, float, Any], bool]) -> Callable[[View, Any, Any], bool]:
    def holds(view: View, left: Any, right: Any) -> bool:
        number = left if isinstance(left, (int, float)) and not isinstance(left, bool) else whole(left)
        return number is not None and test(view, number, right)

    return holds


def _rest(view: View, left: float, right: Any) -> float | None:
    divisor = _product(view, right) if isinstance(right, list) else _number(view, right)
    return left % divisor if divisor else None


OPERATORS: dict[str, Callable[[View, Any, Any], bool]] = {
    "equals": lambda view, left, right: left == right and isinstance(left, bool) == isinstance(right, bool),
    "equals_any": lambda view, left, right: left in right,
    "differs": lambda view, left, right: left is not None and left != right,
    "matches": lambda view, left, right: isinstance(left, str) and re.search(right, left) is not None,
    "above": _numeric(lambda view, left, right: left > (_number(view, right) or 0)),
    "below": _numeric(lambda view, left, right: (limit := _number(view, right)) is not None and left < limit),
    "not_multiple_of": _numeric(lambda view, left, right: bool(_rest(view, left, right))),
    "multiple_of": _numeric(lambda view, left, right: _rest(view, left, right) == 0),
    "differs_from": _numeric(
        lambda view, left, right: (other := _number(view, right)) is not None and left != other
    ),
    "is_not_product_of": _numeric(
        lambda view, left, right: (p := _product(view, right)) is not None and left != p
    ),
    "is_product_of": _numeric(
        lambda view, left, right: (p := _product(view, right)) is not None and left == p
    ),
}


def holds(view: View, condition: Condition) -> bool:
    """Whether one condition of a check is met by this configuration."""
    if "stated" in condition:
        return (view.entry(condition["value"]) is not None) == condition["stated"]
    if "not_true" in condition:  # absent or false: for switches whose default is off
        value = view.value(condition["not_true"])
        return value is None or value is False
    if (
        "not_matching" in condition
    ):  # absent, or a text without the pattern; what is computed could be anything
        entry = view.entry(condition["not_matching"])
        value = view.value(condition["not_matching"])
        return entry is None or (isinstance(value, str) and not re.search(condition["pattern"], value))
    if "anywhere" in condition:  # a key of that name, at any depth, with a matching value
        return any(_anywhere(view, condition["anywhere"], condition.get("matches", "")))
    if "longer_than" in condition:
        entry = view.entry(condition["value"])
        return (
            entry is not None
            and isinstance(entry.node, Listing)
            and len(entry.node.items) > condition["longer_than"]
        )
    left = _left(view, condition)
    if left is None:
        return False
    for name, right in condition.items():
        if name in ("value", "product"):
            continue
        if not OPERATORS[name](view, left, right):
            return False
    return True


def _anywhere(view: View, key: str, pattern: str) -> Iterator[Any]:
    for path, entry in walk(view.table):
        if entry.key == key and (not pattern or re.search(pattern, str(entry.value))):
            yield entry


class _Words(dict):
    """Message fields: roles and keys, asked for by name."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view

    def __missing__(self, name: str) -> str:
        value = self.view.value(name.replace("__", "."))
        return "?" if value is None else str(value)


def mark_for(view: View, name: str) -> Mark | None:
    """Where a role or key is stated in this file."""
    fact = view.facts.get(name)
    if fact is not None and fact.stated:
        return fact.mark
    entry = view.entry(name)
    if entry is not None:
        return entry.mark
    if name.startswith("*."):  # a key at any depth
        found = next(iter(_anywhere(view, name[2:], "")), None)
        return found.mark if found is not None else None
    return None


def run_checks(view: View) -> list[Finding]:
    """The findings of the checks that the dialect lists."""
    findings = []
    for check in view.dialect.checks:
        if not all(holds(view, condition) for condition in check["when"]):
            continue
        places = [(name, mark) for name in check["at"] if (mark := mark_for(view, name)) is not None]
        if not places:
            continue
        related = [
            (view.where(mark), mark, f"{name} stands here")
            for name in check.get("related", ())
            if (mark := mark_for(view, name))
        ]
        findings.append(
            report(
                check["rule"],
                view.where(places[0][1]),
                places[0][1],
                check["message"].format_map(_Words(view)),
                severity=Severity[check["severity"].upper()] if "severity" in check else None,
                confidence=Confidence[check.get("confidence", "certain").upper()],
                evidence={"framework": view.dialect.title},
                related=related,
            )
        )
    return findings


def sizes(batch: Batch) -> dict[str, Any]:
    """The numbers of a batch as evidence: plain JSON, unknown ones left out."""
    fields = {
        "micro": batch.micro,
        "accumulation": batch.accumulation,
        "global": batch.total,
        "ranks": batch.ranks,
    }
    return {name: value for name, value in fields.items() if value is not None}


def check_arithmetic(view: View) -> list[Finding]:
    """ACC901 where the numbers of this one file cannot close for any, or for the stated, number of ranks."""
    closer = CLOSERS.get(view.dialect.closes)
    if closer is None:
        return []
    total = view.facts.get("global")
    if total is None or not total.stated or total.number is None or total.number <= 0:
        return []
    length = view.number("sequence")
    if length and total.number % length == 0 and total.number > length:
        return []  # a batch counted in tokens
    verdict: Verdict = closer(view.batch())
    if verdict.closes is not False:
        return []
    message = verdict.why
    if view.dialect.on_mismatch:
        outcome = view.dialect.on_mismatch
        if "{effective}" in outcome and verdict.effective is None:
            outcome = outcome.partition(":")[0]
        message += "; " + outcome.format(effective=verdict.effective, accumulation=verdict.accumulation)
    related = [
        (view.where(fact.mark), fact.mark, f"{fact.key} = {fact.value}")
        for role in ("micro", "accumulation")
        if (fact := view.facts.get(role)) is not None and fact.stated
    ]
    related += [(fact.path, fact.mark, f"{fact.key} = {fact.value}") for fact in view.ranks_from]
    return [
        report(
            "config-batch-mismatch",
            view.where(total.mark),
            total.mark,
            message,
            severity=Severity[view.dialect.severity.upper()],
            evidence={"framework": view.dialect.title, **sizes(view.batch())},
            related=related,
        )
    ]


# roles whose double statement changes training; a duplicate of anything else is the user's own affair
DUPLICATE_ROLES = ("accumulation", "micro", "global")


def check_duplicates(view: View) -> list[Finding]:
    """Keys that are written twice in one table with different values: the last one wins in silence."""
    findings = []
    keys = {
        key.rpartition(".")[2]: role for role in DUPLICATE_ROLES for key in view.dialect.roles.get(role, ())
    }
    tables = [view.table] + [e.node for _, e in walk(view.table) if hasattr(e.node, "duplicates")]
    for table in tables:
        for losing, winning in table.duplicates():  # type: ignore[union-attr]
            role = keys.get(winning.key)
            if role is None or losing.value == winning.value:
                continue
            name = "config-accum-conflict" if role == "accumulation" else "config-batch-mismatch"
            effect = (
                "DeepSpeed refuses duplicate keys"
                if view.dialect.name == "deepspeed"
                else "the last one wins in silence"
            )
            findings.append(
                report(
                    name,
                    view.path,
                    winning.mark,
                    f"{winning.key} is written twice, as {losing.value} and as {winning.value}: {effect}",
                    related=[(view.path, losing.mark, f"also {winning.key} = {losing.value}")],
                )
            )
    return findings


_LENGTHS = (
    "total_steps",
    "T_max",
    "num_training_steps",
    "total_num_steps",
    "max_decay_steps",
    "decay_steps",
    "lr_decay_steps",
)
_UPDATES = ("max_steps", "max_updates", "max_train_steps", "num_updates")


def check_schedule(document: Document) -> list[Finding]:
    """A schedule that is exactly K times as long as the run, in a file that states all three numbers.

    Only for files whose schedule is stepped per update as far as known: MMEngine steps per iteration.
    """
    findings: list[Finding] = []
    for table in document.tables() if document.format != "python" else ():
        numbers = {
            path: (entry, number)
            for path, entry in walk(table)
            if (number := whole(resolve(entry, table))) is not None
        }
        counts = {number for entry, number in numbers.values() if names_accumulation(entry.key)}
        updates = {
            number: entry for entry, number in numbers.values() if entry.key in _UPDATES and number > 0
        }
        if len(counts) != 1 or len(updates) != 1:
            continue
        (k,), ((most, stated),) = counts, updates.items()
        for entry, number in numbers.values():
            if k > 1 and entry.key in _LENGTHS and number == k * most:
                findings.append(
                    report(
                        "schedule-length-in-microbatches",
                        document.path,
                        entry.mark,
                        f"{entry.key} {number} is {stated.key} {most} × {k} microbatches; stepped once per update, the schedule gets 1/{k} of its way",
                        confidence=Confidence.CONDITIONAL,
                        related=[(document.path, stated.mark, f"{stated.key} {most}")],
                    )
                )
    return findings


# where a recipe states how many rows it trains on
_ROWS = (
    "dataset.split",
    "dataset.num_samples",
    "dataset.max_samples",
    "dataset.num_rows",
    "dataset.size",
    "num_train_samples",
    "num_samples",
    "max_samples",
)
_SLICE = re.compile(r"\w*\[(\d*):(\d+)\]\s*\Z")


def check_short_epoch(view: View) -> list[Finding]:
    """torchtune updates len(loader) // K times per epoch: a slice of a data set that is shorter than a window gives none."""
    entry = next((e for key in _ROWS if (e := view.table.find(key)) is not None), None)
    micro, k = view.number("micro"), view.number("accumulation")
    packed = view.value("dataset.packed")
    if (
        view.dialect.name != "torchtune"
        or entry is None
        or not micro
        or not k
        or k < 2
        or packed not in (False, None)
    ):
        return []
    match = _SLICE.match(str(entry.value))
    rows = int(match.group(2)) - int(match.group(1) or 0) if match else whole(resolve(entry, view.root)) or 0
    batches = -(-rows // micro)
    if rows <= 0 or batches >= k:
        return []
    fact = view.facts["accumulation"]
    return [
        report(
            "accum-exceeds-epoch",
            view.path,
            fact.mark,
            f"{rows} rows are at most {batches} microbatches of {micro}, fewer than the {k} of one window: torchtune drops the rest, so no update happens",
            related=[(view.path, entry.mark, "so many rows")],
        )
    ]


def audit_view(view: View) -> list[Finding]:
    """Everything that one view says by itself."""
    return [*check_arithmetic(view), *check_duplicates(view), *check_short_epoch(view), *run_checks(view)]
