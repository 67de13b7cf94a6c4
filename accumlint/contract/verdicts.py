"""What a clause answers: one violation, at one site, with its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accumlint.findings import Confidence, Severity


@dataclass
class Violation:
    """A broken clause on one trace.

    ``severity`` overrides the rule's own where this breach is milder; ``cap`` is the highest confidence that the
    breach can have. ``related``: (site, message) of further places.
    """

    rule: str
    site: int
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    severity: Severity | None = None
    cap: Confidence = Confidence.CERTAIN
    related: list[tuple[int, str]] = field(default_factory=list)


@dataclass
class Judgement:
    """All that the clauses say of one ledger; ``applied`` are the rules that could have spoken."""

    violations: list[Violation]
    applied: set[str]
