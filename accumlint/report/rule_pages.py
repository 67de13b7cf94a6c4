"""Rule pages as text: one rule in full, all rules as a table."""

from __future__ import annotations

from collections.abc import Sequence

from accumlint.knowledge import Example, Rule


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


def markdown(rule: Rule, brief: bool = False) -> str:
    """The page for a reader; bad examples mark the reported lines. ``brief``: the first example of each kind."""
    parts = [
        f"# {rule.code} {rule.name}",
        f"Clause {rule.clause}, {rule.severity.label}, fix: {rule.fix}, since {rule.since}.",
    ]
    for heading, text in rule.sections.items():
        parts.append(f"## {heading}\n\n{text}")
    examples = _first_of_each_kind(rule) if brief else rule.examples
    for example in examples:
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
    if len(examples) < len(rule.examples):
        parts.append(f"All {len(rule.examples)} examples: `accumlint explain {rule.code}`.")
    if rule.references:
        parts.append("## References\n\n" + "\n".join(f"- {reference}" for reference in rule.references))
    return "\n\n".join(parts) + "\n"


def _first_of_each_kind(rule: Rule) -> list[Example]:
    """One bad and one good example, whole where an example has several files."""
    chosen: list[Example] = []
    for kind in ("bad", "good"):
        of_kind = [each for each in rule.examples if each.kind == kind]
        if of_kind and of_kind[0].group:
            chosen += [each for each in rule.examples if each.group == of_kind[0].group and each not in chosen]
        else:
            chosen += of_kind[:1]
    return chosen


def reference(rules: Sequence[Rule]) -> dict[str, str]:
    """File name -> text of the rule reference: an index, and a page for each rule."""
    head = (
        "# Rules\n\nWritten by `accumlint rules --write docs/rules` from the pages in `rules/`, which are what to"
        " edit.\n\n"
    )
    index = table(rules, markdown=True)
    for rule in rules:
        index = index.replace(f"| {rule.code} |", f"| [{rule.code}]({rule.code}.md) |")
    pages = {f"{rule.code}.md": markdown(rule, brief=True) for rule in rules}
    return {"README.md": head + index, **pages}


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
