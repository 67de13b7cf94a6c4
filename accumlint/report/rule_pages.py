"""Rule pages as text: one rule in full, all rules as a table."""

from __future__ import annotations

from collections.abc import Sequence

from accumlint.knowledge import Rule


def rule_object(rule: Rule) -> dict:
    """A rule page as plain JSON."""
    return {
        "code": rule.code,
        "name": rule.name,
        "clause": rule.clause,
        "severity": rule.severity.label,
        "witnesses": list(rule.witnesses),
        "fix": rule.fix,
        "since": rule.since,
        "summary": rule.summary,
        "sections": dict(rule.sections),
        "examples": [
            {
                "kind": each.kind,
                "title": each.title,
                "language": each.language,
                "file": each.file,
                "group": each.group,
                "code": each.code,
                "lines": list(each.lines),
            }
            for each in rule.examples
        ],
        "references": list(rule.references),
    }


def markdown(rule: Rule) -> str:
    """The whole page for a reader; bad examples mark the reported lines."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"Clause {rule.clause}, {rule.severity.label}, fix: {rule.fix}, since {rule.since}.",
    ]
    for heading, text in rule.sections.items():
        parts.append(f"## {heading}\n\n{text}")
    for example in rule.examples:
        lines = example.code.rstrip("\n").split("\n")
        comment = "//" if example.language == "json" else "#"
        shown = [
            f"{line}  {comment} <- {rule.code}" if number in example.lines else line
            for number, line in enumerate(lines, 1)
        ]
        title = f": {example.title}" if example.title else ""
        heading = "Breaks the contract" if example.kind == "bad" else "Holds"
        file = f" (`{example.file}`)" if example.file else ""
        parts.append(f"## {heading}{title}{file}\n\n```{example.language}\n" + "\n".join(shown) + "\n```")
    if rule.references:
        parts.append("## References\n\n" + "\n".join(f"- {reference}" for reference in rule.references))
    return "\n\n".join(parts) + "\n"


def table(rules: Sequence[Rule], markdown: bool = False) -> str:
    """Code, name, severity, fix and what it finds, a line each."""
    if markdown:
        rows = ["| code | name | severity | fix | finds |", "|---|---|---|---|---|"]
        rows += ["| " + " | ".join(_cells(rule)) + " |" for rule in rules]
        return "".join(row + "\n" for row in rows)
    width = max((len(rule.name) for rule in rules), default=0)
    return "".join(
        f"{rule.code}  {rule.name:<{width}}  {rule.severity.label:<7}  fix: {rule.fix}\n" for rule in rules
    )


def _cells(rule: Rule) -> list[str]:
    cells = [rule.code, rule.name, rule.severity.label, rule.fix, rule.summary]
    return [cell.replace("|", "\\|") for cell in cells]
