"""Many reports as one: repositories and rules ranked, whoever made the reports, in whatever order they come."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accumlint.report.audit import json as documents
from accumlint.report.audit.model import Audit, Finding, by_rule, counts, rank

SCHEMA = "accumlint/audit-merge/v1"


@dataclass(frozen=True)
class Repository:
    """One repository with the report that speaks for it, and its counts."""

    name: str
    audit: Audit
    errors: int
    warnings: int
    advice: int
    affected: int  # loops with an error or a warning


@dataclass(frozen=True)
class RuleCount:
    """One rule over all repositories; ``worst`` is its gravest finding."""

    rule: str
    name: str
    findings: int
    errors: int
    warnings: int
    repositories: tuple[str, ...]
    worst: Finding


@dataclass(frozen=True)
class Unused:
    """A report that was not used: which, and why."""

    report: str
    reason: str


@dataclass(frozen=True)
class Joined:
    """The joint report, everything in it ranked."""

    version: str
    repositories: tuple[Repository, ...]
    rules: tuple[RuleCount, ...]
    unused: tuple[Unused, ...]  # could not be read
    replaced: tuple[Unused, ...]  # reports of a repository that another report speaks for


def read(data: bytes) -> Audit:
    """One report. Raises :class:`~accumlint.report.audit.json.DocumentError`."""
    return documents.load(data)


def join(audits: Iterable[Audit], unused: Iterable[Unused], version: str) -> Joined:
    """The joint report; the same for any order of ``audits``.

    Of several reports that carry one name the newest speaks: the one whose commit is younger. Where that can't
    be told, it is the one with more errors, then with more warnings, then the one of the larger digest.
    """
    named: dict[str, dict[str, Audit]] = {}
    times: dict[str, int] = {}
    for audit in audits:
        digest = hashlib.sha256(documents.render(audit).encode()).hexdigest()
        named.setdefault(audit.name, {})[digest] = audit
        times[digest] = times.get(digest, 0) + 1
    repositories, replaced = [], []
    for name in sorted(named):
        ranked = sorted(named[name].items(), key=lambda item: _age(item[1], item[0]), reverse=True)
        digest, chosen = ranked[0]
        repositories.append(_repository(name, chosen))
        if times[digest] > 1:
            replaced.append(Unused(name, f"the same report was given {times[digest]} times and counts once"))
        for other, audit in ranked[1:]:
            repeated = f", given {times[other]} times," if times[other] > 1 else ""
            replaced.append(
                Unused(
                    name,
                    f"the report of {_which(audit)}{repeated} gives way to that of {_which(chosen)}{_because(chosen, audit)}",
                )
            )
    repositories.sort(
        key=lambda each: (-each.errors, -each.warnings, -each.affected, -each.advice, each.name)
    )
    shown = sorted(set(unused), key=lambda each: (each.report, each.reason))
    return Joined(version, tuple(repositories), _rules(repositories), tuple(shown), tuple(replaced))


def _age(audit: Audit, digest: str) -> tuple:
    number = counts(audit.findings)
    return audit.revision.committed if audit.revision else "", number["error"], number["warning"], digest


def _which(audit: Audit) -> str:
    return (
        f"revision {audit.revision.commit[:12]} ({audit.revision.committed[:10]})"
        if audit.revision
        else "no revision"
    )


def _because(chosen: Audit, other: Audit) -> str:
    newer = (chosen.revision.committed if chosen.revision else "") > (
        other.revision.committed if other.revision else ""
    )
    return (
        ", which is newer"
        if newer
        else "; which is newer can't be told, so the one with more findings speaks"
    )


def _repository(name: str, audit: Audit) -> Repository:
    number = counts(audit.findings)
    affected = sum(
        1 for loop in audit.loops if any(audit.findings[each].severity != "advice" for each in loop.findings)
    )
    return Repository(name, audit, number["error"], number["warning"], number["advice"], affected)


def _rules(repositories: Sequence[Repository]) -> tuple[RuleCount, ...]:
    """Rules by errors, then by warnings, then by repositories."""
    found: dict[str, list[tuple[str, Finding]]] = {}
    for repository in repositories:
        for rule, here in by_rule(repository.audit.findings).items():
            found.setdefault(rule, []).extend((repository.name, each) for each in here)
    table = []
    for rule, members in found.items():
        worst = min(
            (finding for _, finding in members),
            key=lambda f: (*rank(f.severity, f.confidence, f.clause), f.path, f.cell, f.line, f.message),
        )
        names = tuple(dict.fromkeys(name for name, _ in members))
        number = counts(finding for _, finding in members)
        table.append(RuleCount(rule, worst.name, len(members), number["error"], number["warning"], names, worst))
    return tuple(
        sorted(
            table,
            key=lambda each: (
                -each.errors,
                -each.warnings,
                -len(each.repositories),
                -each.findings,
                each.rule,
            ),
        )
    )


def verdict_line(joined: Joined) -> str:
    """The joint report in one sentence."""
    errors = sum(each.errors for each in joined.repositories)
    warnings = sum(each.warnings for each in joined.repositories)
    affected = sum(1 for each in joined.repositories if each.errors or each.warnings)
    total = len(joined.repositories)
    if not total:
        return "No report could be read."
    what = f"{errors} error{'' if errors == 1 else 's'} and {warnings} warning{'' if warnings == 1 else 's'}"
    return f"{what} in {affected} of {total} {'repository' if total == 1 else 'repositories'}."
