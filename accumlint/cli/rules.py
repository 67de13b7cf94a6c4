"""``accumlint rules``: all rules in one table."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace

SUMMARY = "list all rules"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")


def run(arguments: Namespace) -> int:
    from accumlint.knowledge import KnowledgeError, rules
    from accumlint.report.present import write_text
    from accumlint.report.rule_pages import rule_object, table

    try:
        pages = list(rules().values())
    except KnowledgeError as error:
        sys.stderr.write(f"accumlint: {error}\n")
        return 2
    if arguments.format == "json":
        import json

        write_text(json.dumps([rule_object(page) for page in pages], indent=1) + "\n")
    else:
        write_text(table(pages, markdown=arguments.format == "markdown"))
    return 0
