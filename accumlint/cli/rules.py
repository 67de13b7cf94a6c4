"""``accumlint rules``: all rules in one table."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

SUMMARY = "list all rules"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.add_argument("--write", metavar="FOLDER", help="write an index and a page for each rule, as Markdown")


def _write(folder: str, pages: dict[str, str]) -> int:
    from accumlint.report.present import write_atomically

    try:
        os.makedirs(folder, exist_ok=True)
        for name, text in pages.items():
            write_atomically(os.path.join(folder, name), text)
    except OSError as error:
        sys.stderr.write(f"accumlint: {error.filename or folder}: {error.strerror or error}\n")
        return 2
    return 0


def run(arguments: Namespace) -> int:
    from accumlint.knowledge import KnowledgeError, rules
    from accumlint.report.present import write_text
    from accumlint.report.rule_pages import reference, rule_object, table

    try:
        pages = list(rules().values())
    except KnowledgeError as error:
        sys.stderr.write(f"accumlint: {error}\n")
        return 2
    if arguments.write:
        return _write(arguments.write, reference(pages))
    if arguments.format == "json":
        import json

        write_text(json.dumps([rule_object(page) for page in pages], indent=1) + "\n")
    else:
        write_text(table(pages, markdown=arguments.format == "markdown"))
    return 0
