"""``accumlint explain``: the page of one rule."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

SUMMARY = "explain one rule: what it finds, why it matters, how to fix it"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("rule", metavar="RULE", help="a code (ACC202) or a name (scheduler-per-microbatch)")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")


def run(arguments: Namespace) -> int:
    from accumlint.knowledge import KnowledgeError, find_rule
    from accumlint.report.rule_pages import markdown, rule_object

    try:
        rule = find_rule(arguments.rule)
    except KnowledgeError as error:
        sys.stderr.write(f"accumlint: {error}\n")
        return 2
    if rule is None:
        import difflib

        from accumlint.rule_index import all_rules

        known = [word for code, name, _ in all_rules() for word in (code, name)]
        close = difflib.get_close_matches(arguments.rule, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else "; accumlint rules lists them"
        sys.stderr.write(f"accumlint: no rule is called {arguments.rule!r}{hint}\n")
        return 2
    if arguments.format == "json":
        import json

        sys.stdout.write(json.dumps(rule_object(rule), indent=1) + "\n")
    elif arguments.format == "text" and sys.stdout.isatty():
        from rich.console import Console
        from rich.markdown import Markdown

        Console().print(Markdown(markdown(rule)))
    else:
        from accumlint.report.present import write_text

        write_text(markdown(rule))
    return 0
