"""Verdicts of a run on static findings: confirmed, refuted or not reached, by rule and line.

Nothing here needs torch. ``on_findings`` serves ``accumlint probe``; ``mark`` serves ``accumlint check --receipts``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accumlint import knowledge
from accumlint.contract.verdicts import Violation
from accumlint.findings import Confidence, Finding, Related, Severity, Span
from accumlint.probe import judgements
from accumlint.probe.judgements import WITNESSED, Report, hidden_by
from accumlint.probe.places import file_map

CONFIRMED, REFUTED, NOT_REACHED = "confirmed", "refuted", "not reached"


@dataclass(frozen=True)
class OnFinding:
    """What a run says about one static finding."""

    finding: Finding
    verdict: str
    reason: str


def display(path: str, working_folder: str) -> str:
    """The name under which reports show a file: relative to the working folder where it lies below it."""
    relative = os.path.relpath(path, working_folder)
    return path if relative.startswith("..") else relative.replace(os.sep, "/")


def findings(report: Report, working_folder: str) -> list[Finding]:
    """The violations of a run as findings, at the lines of the user's files."""
    if report.assembled is None:
        return []
    out = []
    for violation in report.violations:
        made = _finding(report, violation, working_folder)
        if made is not None:
            out.append(made)
    return sorted(out, key=Finding.sort_key)


def _finding(report: Report, violation: Violation, working_folder: str) -> Finding | None:
    assert report.assembled is not None
    place = report.assembled.sites.place(violation.site)
    rule = knowledge.page(violation.rule)
    if place is None or rule is None:
        return None
    related = []
    for site, text in violation.related:
        other = report.assembled.sites.place(site)
        if other is not None and other != place:
            related.append(Related(Span(display(other[0], working_folder), other[1]), text))
    return Finding(
        rule.code, rule.name, rule.clause, violation.severity or rule.severity, Confidence.CERTAIN, Span(display(place[0], working_folder), place[1]),
        violation.message, {**violation.evidence, "witness": "probe"}, tuple(related),
    )  # fmt: skip


def _same_place(static: Finding, seen: Finding) -> bool:
    if os.path.realpath(static.span.path) != os.path.realpath(seen.span.path):
        return False
    last = max(static.span.end_line, static.span.line)
    if static.span.line <= seen.span.line <= last:
        return True
    lines = {related.span.line for related in static.related}
    return seen.span.line in lines or any(r.span.line == static.span.line for r in seen.related)


def on_findings(static: Sequence[Finding], seen: Sequence[Finding], report: Report, working_folder: str) -> list[OnFinding]:
    """One verdict for each static finding of clauses C1 to C8.

    Confirmed: the run broke the same rule at the same place. Refuted: the run went through that place, the rule could
    have spoken, and it did not. Everything else is not reached, with the reason.
    """
    rules = {finding.rule for finding in seen}
    reached = {(os.path.realpath(path), line) for path, line in report.assembled.reached} if report.assembled is not None else set()
    out = []
    for finding in static:
        out.append(_one(finding, seen, rules, reached, report, working_folder))
    return out


def _one(finding: Finding, seen: Sequence[Finding], rules: set[str], reached: set[tuple[str, int]], report: Report, working_folder: str) -> OnFinding:
    same = [other for other in seen if other.rule == finding.rule]
    if any(_same_place(finding, other) for other in same):
        return OnFinding(finding, CONFIRMED, "the run broke the same rule at the same place")
    if same:
        return OnFinding(finding, CONFIRMED, f"the run broke the same rule, at line {same[0].span.line}")
    if finding.rule not in WITNESSED:
        return OnFinding(finding, NOT_REACHED, "a run does not show this")
    path = os.path.realpath(os.path.join(working_folder, finding.span.path))
    lines = range(finding.span.line, max(finding.span.end_line, finding.span.line) + 1)
    if not any((path, line) in reached or _passed(path, line, reached) for line in lines):
        return OnFinding(finding, NOT_REACHED, "the run did not come to this line")
    if finding.rule in ("ACC201", "ACC206", "ACC207", "ACC213") and report.window <= 1:
        return OnFinding(finding, NOT_REACHED, "every window held one microbatch, and the configured accumulation is not known: give --window")
    cause = hidden_by(finding.rule, rules)
    if cause:
        return OnFinding(finding, NOT_REACHED, f"hidden behind {cause}")
    if finding.rule not in report.applied:
        return OnFinding(finding, NOT_REACHED, _why_silent(finding, report))
    if finding.rule in ("ACC101", "ACC106", "ACC108") and report.judgements["weights"].verdict == judgements.NOT_DISCRIMINATING:
        return OnFinding(finding, NOT_REACHED, "equal counts in this run: right and wrong weights are the same")
    if finding.confidence is Confidence.CONDITIONAL and finding.clause == "C5" and not report.tails:
        return OnFinding(finding, NOT_REACHED, "no short window in this run")
    if finding.clause == "C1" and report.judgements["weights"].verdict not in (judgements.PASS, judgements.NOT_DISCRIMINATING):
        return OnFinding(finding, NOT_REACHED, f"weights: {report.judgements['weights'].reason}")
    return OnFinding(finding, REFUTED, "the run came here and kept the rule")


def _passed(path: str, line: int, reached: set[tuple[str, int]]) -> bool:
    """The line stands in a loop whose body was run, under conditions that were all seen to hold."""
    spot = file_map(path).at(line)
    if not spot.loops:
        return False
    for other_path, other in reached:
        if other_path == path:
            seen = file_map(path).at(other)
            if seen.loops == spot.loops and set(spot.gates) <= set(seen.gates):
                return True
    return False


def _why_silent(finding: Finding, report: Report) -> str:
    if finding.clause == "C1":
        return f"weights: {report.judgements['weights'].reason}"
    if finding.clause == "C3" and "sync" not in report.judgements:
        return "one rank only: nothing is reduced"
    return "the run did not make a window in which this could show"


# ---- static runs after the fact: what receipts say -----------------------------------------------------------------


@dataclass(frozen=True)
class Said:
    """What a probe left about one finding: by rule and line of a file with a known digest."""

    rule: str
    line: int
    verdict: str
    reason: str
    receipt: str = ""  # name of the file


def mark(found: Iterable[Finding], said: Mapping[str, Sequence[Said]], digest_of: Mapping[str, str]) -> list[tuple[Finding, Said | None]]:
    """Each static finding with what was said about it, None where nothing was or the run did not come there.

    A run that saw the fault counts more than one that did not.
    ``said``: digest of a script -> what a probe of exactly these bytes said. ``digest_of``: path as in the findings ->
    SHA-256 of the file's bytes now. A file that changed since the probe has no marks.
    """
    out = []
    for finding in found:
        digest = digest_of.get(finding.span.path, "")
        last = max(finding.span.end_line, finding.span.line)
        matches = [s for s in said.get(digest, ()) if s.rule == finding.rule and finding.span.line <= s.line <= last]
        told = {match.verdict: match for match in reversed(matches)}
        out.append((finding, told.get(CONFIRMED) or told.get(REFUTED)))
    return out


def severity_fails(found: Sequence[Finding], threshold: Severity = Severity.WARNING) -> bool:
    return any(finding.severity >= threshold for finding in found)


def plain(finding: Finding) -> dict[str, Any]:
    """The fields of a finding as ``check --format json`` prints them."""
    return {
        "rule": finding.rule, "name": finding.name, "clause": finding.clause, "severity": finding.severity.label, "confidence": finding.confidence.label,
        "path": finding.span.path, "line": finding.span.line, "message": finding.message,
    }  # fmt: skip
