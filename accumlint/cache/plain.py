"""Outcomes and findings as JSON values, and back: what comes back prints like what went in, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from accumlint.findings import Confidence, Edit, Finding, Fix, LoopReport, Related, Severity, Span
from accumlint.runner import Outcome


class NotPlain(TypeError):
    """A value that JSON can't give back; what holds it is not kept."""


def plain(value: Any) -> Any:
    """A copy of nested dicts, lists and tuples in which tuples are lists. Raises :class:`NotPlain`."""
    kind = type(value)
    if value is None or kind in (str, int, bool, float):
        return value
    if kind in (list, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        if not all(type(key) is str for key in value):
            raise NotPlain(f"a key that is no text in {value!r:.80}")
        return {key: plain(item) for key, item in value.items()}
    raise NotPlain(f"{kind.__name__} {value!r:.80}")


def _span(span: Span) -> list[Any]:
    return [span.path, span.line, span.column, span.end_line, span.end_column]


def finding_to_plain(finding: Finding) -> list[Any]:
    """One finding; raises :class:`NotPlain`."""
    fix = finding.fix
    return [
        finding.rule,
        finding.name,
        finding.clause,
        int(finding.severity),
        int(finding.confidence),
        _span(finding.span),
        finding.message,
        plain(finding.evidence),
        [[_span(related.span), related.message] for related in finding.related],
        fix and [fix.title, fix.safe, [[_span(edit.span), edit.replacement] for edit in fix.edits], fix.why_unsafe],
    ]


def finding_from_plain(held: list[Any]) -> Finding:
    rule, name, clause, severity, confidence, span, message, evidence, related, fix = held
    made = None
    if fix is not None:
        title, safe, edits, why_unsafe = fix
        made = Fix(title, safe, tuple(Edit(Span(*place), text) for place, text in edits), why_unsafe)
    return Finding(
        rule,
        name,
        clause,
        Severity(severity),
        Confidence(confidence),
        Span(*span),
        message,
        evidence,
        tuple(Related(Span(*place), text) for place, text in related),
        made,
    )


def findings_to_plain(findings: Iterable[Finding]) -> list[Any]:
    return [finding_to_plain(finding) for finding in findings]


def findings_from_plain(held: list[Any]) -> tuple[Finding, ...]:
    return tuple(map(finding_from_plain, held))


_LOOP = tuple(LoopReport.__dataclass_fields__)


def outcome_to_plain(outcome: Outcome) -> dict[str, Any]:
    """An outcome without what it consulted; raises :class:`NotPlain`."""
    for loop in outcome.loops:
        if type(loop) is not LoopReport or loop.detail is not None:  # details are for one audit, and large
            raise NotPlain(type(loop).__name__)
    return {
        "findings": findings_to_plain(outcome.findings),
        "skipped": outcome.skipped,
        "loops": [[plain(getattr(loop, name)) for name in _LOOP] for loop in outcome.loops],
    }


def outcome_from_plain(name: str, held: dict[str, Any]) -> Outcome:
    """Raises KeyError, TypeError or ValueError where the value was not made by :func:`outcome_to_plain`."""
    loops = [LoopReport(*(tuple(item) if isinstance(item, list) else item for item in loop)) for loop in held["loops"]]
    return Outcome(name, findings_from_plain(held["findings"]), held["skipped"], tuple(loops))
