"""What a witness reports: one finding, where it stands, how sure and how grave it is.

This module is shared by every room and imports nothing heavy.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


class Severity(enum.IntEnum):
    """How much of the training a broken clause changes; ordered, so that thresholds compare."""

    ADVICE = 1  # cost or style
    WARNING = 2  # changes the trained function sometimes, or in a limited way
    ERROR = 3  # changes the trained function whenever K > 1

    @property
    def label(self) -> str:
        return self.name.lower()


class Confidence(enum.IntEnum):
    """How many of the simulated paths agree; ordered, so that thresholds compare."""

    POSSIBLE = 1  # on some paths (the flags are named), or resting on an ambiguous name
    CONDITIONAL = 2  # only when the loader is no multiple of K, or under an assumed counter
    CERTAIN = 3  # on every simulated path where the rule applies

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, order=True)
class Span:
    """A place in a file: lines are 1-based, columns are 1-based and count code points."""

    path: str
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0


@dataclass(frozen=True)
class Related:
    """A second place that a finding speaks of: the gate, the other side of a conflict."""

    span: Span
    message: str


@dataclass(frozen=True)
class Edit:
    """Replace the text of ``span`` by ``replacement``."""

    span: Span
    replacement: str


@dataclass(frozen=True)
class Fix:
    """A change after which the simulated contract holds; ``safe`` when it cannot change a run whose K is 1."""

    title: str
    safe: bool
    edits: tuple[Edit, ...]
    why_unsafe: str = ""


@dataclass(frozen=True)
class Probed:
    """What a run of the script said about a finding, and the receipt of that run."""

    verdict: str  # confirmed | refuted
    reason: str
    receipt: str  # name of the file

    def __str__(self) -> str:
        return f"{self.verdict} by receipt {self.receipt}: {self.reason}"


@dataclass(frozen=True)
class Finding:
    """One broken clause, with its evidence.

    ``evidence`` holds plain JSON values only. Keys in use: ``windows`` (microbatches of each window),
    ``timeline`` (lanes drawn by the reports), ``weights`` (decimal strings), ``flags`` (the conditions on
    the path), ``note``.
    """

    rule: str  # ACC202
    name: str  # scheduler-per-microbatch
    clause: str  # C2
    severity: Severity
    confidence: Confidence
    span: Span
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict)
    related: tuple[Related, ...] = ()
    fix: Fix | None = None
    probed: Probed | None = None

    @property
    def about_whole_file(self) -> bool:
        """Whether it speaks of its file and not of the line that it stands at."""
        return self.rule == "ACC003" and (self.span.line, self.span.column) == (1, 1)

    def sort_key(self) -> tuple:
        return (self.span, self.rule, self.message)


@dataclass(frozen=True)
class Detail:
    """What an audit shows of a loop beyond the rest.

    ``path``, ``line``: the head of the loop that carries the microbatches; ``signatures``: the weights behind each
    timeline, in the same order; ``breaks``: (rule, path, line, index of the timeline or -1) of what was found.
    """

    path: str
    line: int
    signatures: tuple[dict[str, Any], ...] = ()
    breaks: tuple[tuple[str, str, int, int], ...] = ()


@dataclass(frozen=True)
class LoopReport:
    """What was recognised in one training loop; ``detail`` only where it was asked for."""

    function: str
    line: int
    window: str = ""
    frameworks: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    paths: int = 0
    flags: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    not_followed: tuple[str, ...] = ()
    timelines: tuple[dict[str, Any], ...] = ()
    detail: Detail | None = None


@dataclass(frozen=True)
class FileReport:
    """What one file gave: its findings, or the reason why it was not analysed.

    ``skipped`` names the sieve that ended the file early ("no-accumulation"), empty when it was simulated.
    ``consulted`` is what was looked at outside of the file (see ``static/consulted.py``), None where that is not known.
    """

    path: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    loops: tuple[Any, ...] = ()
    consulted: Mapping[str, Any] | None = None
