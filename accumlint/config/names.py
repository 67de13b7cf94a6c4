"""The rules that a configuration can break, and one way to build a finding.

Code, clause and default severity belong to the rule pages; they are repeated here because a page is prose
that this room must not need in order to speak. A test compares both wherever the page exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accumlint.config.tree import Mark
from accumlint.findings import Confidence, Finding, Related, Severity, Span

E, W, A = Severity.ERROR, Severity.WARNING, Severity.ADVICE

RULES: dict[str, tuple[str, str, Severity]] = {
    "syntax-error": ("ACC001", "C0", E),
    "analysis-incomplete": ("ACC003", "C0", A),
    "mean-of-means": ("ACC101", "C1", E),
    "loss-not-normalized": ("ACC102", "C1", E),
    "double-division": ("ACC103", "C1", E),
    "local-denominator-across-ranks": ("ACC106", "C1", E),
    "nested-gating": ("ACC209", "C2", E),
    "optimizer-in-backward": ("ACC211", "C2", E),
    "no-sync-with-sharded-grads": ("ACC304", "C3", E),
    "tail-divided-as-full": ("ACC503", "C5", W),
    "accum-exceeds-epoch": ("ACC504", "C5", E),
    "schedule-length-in-microbatches": ("ACC801", "C8", E),
    "config-batch-mismatch": ("ACC901", "C9", E),
    "config-accum-conflict": ("ACC902", "C9", E),
    "accum-from-local-devices": ("ACC903", "C9", E),
    "accum-not-wired": ("ACC904", "C9", E),
    "known-bad-version": ("ACC905", "C9", W),
    "config-clip-conflict": ("ACC906", "C9", W),
    "narrow-accumulation-dtype": ("ACC907", "C9", A),
    "rejected-at-start": ("ACC908", "C9", E),
}


def report(
    name: str,
    path: str,
    mark: Mark,
    message: str,
    *,
    severity: Severity | None = None,
    confidence: Confidence = Confidence.CERTAIN,
    evidence: Mapping[str, Any] | None = None,
    related: Sequence[tuple[str, Mark, str]] = (),
) -> Finding:
    """A finding of rule ``name`` at ``mark``; ``related`` holds (path, mark, message)."""
    code, clause, usual = RULES[name]
    return Finding(
        rule=code,
        name=name,
        clause=clause,
        severity=usual if severity is None else severity,
        confidence=confidence,
        span=mark.span(path),
        message=message,
        evidence=dict(evidence or {}),
        related=tuple(Related(place.span(where), text) for where, place, text in related),
    )


def at(path: str, line: int, column: int = 1) -> Span:
    """A span of one position."""
    return Span(path, line, column, line, column)
