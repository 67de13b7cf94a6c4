"""The joint report as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from accumlint.report.audit.html import (
    Pages,
    badge,
    footer,
    rule_link,
    rules_section,
    scroll,
    section,
    source,
)
from accumlint.report.audit.markup import h
from accumlint.report.audit.merge import Joined, Repository, Unused, verdict_line
from accumlint.report.audit.model import (
    SEVERITIES,
    Audit,
    Finding,
    counts,
    revision_line,
    say,
    what_was_looked_at,
)
from accumlint.report.audit.model import verdict_line as own_verdict
from accumlint.report.audit.page import page

FINDINGS_OPEN = 10  # findings of a repository that stand outside the fold


def render(joined: Joined, rule_page: Pages) -> str:
    """The whole page."""
    findings = [finding for each in joined.repositories for finding in each.audit.findings]
    sections = [
        _ranking(joined.repositories),
        _rules(joined),
        section(
            "each", "Each repository", [_repository(each, n) for n, each in enumerate(joined.repositories)]
        ),
        _not_used(joined),
        rules_section(findings, rule_page),
    ]
    title = "Gradient accumulation audit of many repositories"
    return page(title, _header(joined, title, findings), filter(None, sections), footer(joined.version))


def _header(joined: Joined, title: str, findings: Sequence[Finding]) -> Element:
    number = counts(findings)
    tiles = [
        (number[label], label if label == "advice" or number[label] == 1 else f"{label}s")
        for label in SEVERITIES
    ]
    tiles += [
        (sum(each.audit.coverage.accumulating for each in joined.repositories), "accumulating loops"),
        (sum(each.affected for each in joined.repositories), "affected loops"),
        (len(joined.repositories), "repositories"),
    ]
    return h(
        "header", {},
        h("h1", {}, title),
        h("p", {"class": "verdict"}, verdict_line(joined)),
        h("ul", {"class": "tiles"}, [h("li", {}, h("b", {}, str(value)), label) for value, label in tiles]),
    )  # fmt: skip


def _number(value: int, severity: str = "") -> Element:
    return h(
        "td",
        {"class": "number"},
        h("b", {"class": severity}, str(value)) if value and severity else str(value),
    )


def _table(label: str, heads: Sequence[tuple[str, bool]], rows: Sequence[Element]) -> Element:
    head = h(
        "tr",
        {},
        [h("th", {"scope": "col", "class": "number" if number else None}, words) for words, number in heads],
    )
    return scroll(label, h("table", {}, h("thead", {}, head), h("tbody", {}, rows)))


def _ranking(repositories: Sequence[Repository]) -> Element:
    rows = [
        h("tr", {}, _number(n), h("th", {"scope": "row"}, h("a", {"href": f"#r{n}"}, h("bdi", {}, each.name))), _number(each.errors, "error"),
          _number(each.warnings, "warning"), _number(each.advice), _number(each.affected), _number(each.audit.coverage.accumulating),
          _number(each.audit.coverage.files),
          h("td", {}, h("code", {}, each.audit.revision.commit[:12]) if each.audit.revision else "–"))
        for n, each in enumerate(repositories, 1)
    ]  # fmt: skip
    heads = [("", True), ("repository", False), ("errors", True), ("warnings", True), ("advice", True), ("affected loops", True),
             ("of accumulating", True), ("files", True), ("revision", False)]  # fmt: skip
    return section(
        "repositories",
        f"Repositories, worst first ({len(repositories)})",
        _table("repositories", heads, rows),
    )


def _rules(joined: Joined) -> Element:
    rows = [
        h("tr", {}, h("th", {"scope": "row"}, rule_link(each.rule), f" {each.name}"), h("td", {}, badge(each.worst.severity)), _number(each.findings),
          _number(each.errors, "error"), _number(each.warnings, "warning"), _number(len(each.repositories)), h("td", {}, ", ".join(each.repositories[:6]) + (", …" if len(each.repositories) > 6 else "")))
        for each in joined.rules
    ]  # fmt: skip
    heads = [
        ("rule", False),
        ("worst", False),
        ("findings", True),
        ("errors", True),
        ("warnings", True),
        ("repositories", True),
        ("where", False),
    ]
    body = _table("rules", heads, rows) if rows else h("p", {}, "Nothing was found.")
    return section("ranking", f"Rules, worst first ({len(rows)})", body)


def _repository(repository: Repository, index: int) -> Element:
    audit = repository.audit
    number = counts(audit.findings)
    state: list = [
        [" ", h("span", {"class": f"badge {label}"}, say(number[label], label, "advice" if label == "advice" else f"{label}s"))]
        for label in SEVERITIES if number[label]
    ] or [" ", h("span", {"class": "badge good"}, "nothing found")]  # fmt: skip
    shown = [_line(audit, each) for each in audit.findings]
    parts = [
        h("p", {}, own_verdict(audit)),
        h("p", {"class": "meta"}, f"{revision_line(audit)} Made by accumlint {audit.version}."),
        h("ul", {"class": "places"}, shown[:FINDINGS_OPEN]) if shown else None,
    ]
    if len(shown) > FINDINGS_OPEN:
        rest = h("ul", {"class": "places"}, shown[FINDINGS_OPEN:])
        parts.append(h("details", {}, h("summary", {}, f"{len(shown) - FINDINGS_OPEN} more"), rest))
    parts.append(h("ul", {"class": "small soft"}, [h("li", {}, each) for each in what_was_looked_at(audit)]))
    left = [
        f"{say(each.files, 'loop' if each.reason == 'loop' else 'file')} not analysed: {each.why}"
        for each in audit.coverage.left
    ]
    parts.append(h("ul", {"class": "small soft"}, [h("li", {}, each) for each in left]) if left else None)
    summary = h("summary", {}, h("b", {}, h("bdi", {}, repository.name)), " —", state)
    is_open = "" if index < 5 and shown else None
    return h(
        "details", {"class": "loop", "id": f"r{index + 1}", "open": is_open}, summary, h("div", {}, parts)
    )


def _line(audit: Audit, finding: Finding) -> Element:
    sure = "" if finding.confidence == "certain" else f" ({finding.confidence})"
    return h(
        "li",
        {},
        badge(finding.severity),
        " ",
        rule_link(finding.rule),
        f" {finding.name}{sure} ",
        source(audit, finding),
        f" {finding.message}",
    )


def _not_used(joined: Joined) -> Element | None:
    if not joined.unused and not joined.replaced:
        return None

    def listed(rows: Sequence[Unused]) -> Element:
        return h("ul", {}, [h("li", {}, h("code", {}, each.report), f" {each.reason}") for each in rows])

    return section(
        "unused", "Reports that were not used",
        [h("p", {}, "These could not be read; the page says nothing about what they hold."), listed(joined.unused)] if joined.unused else None,
        [h("p", {}, "Several reports carry one name; one of them speaks."), listed(joined.replaced)] if joined.replaced else None,
    )  # fmt: skip
