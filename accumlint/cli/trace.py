"""``accumlint trace``: what was recognised in a script, and its simulated windows as a picture."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from typing import TYPE_CHECKING

from accumlint.settings import SettingsError, find, starting_folder

if TYPE_CHECKING:
    from accumlint.report.model import Report

SUMMARY = "show the simulated windows of a script and what was recognised in it"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(arguments: Namespace) -> int:
    from accumlint import audit, runner
    from accumlint.report.present import show_lines
    from accumlint.static.discovery import PYTHON, Target, display_name

    working_folder = os.getcwd()
    try:
        settings = find(starting_folder([arguments.script], working_folder))
    except SettingsError as error:
        sys.stderr.write(f"accumlint: {error}\n")
        return 2
    name = display_name(arguments.script, working_folder)
    target = Target(name, os.path.abspath(arguments.script), PYTHON)
    choice = runner.EngineChoice(audit.ENGINE, settings.root, settings.vocabulary)
    try:
        (outcome,) = runner.run([target], choice).outcomes
    except runner.RunnerError as error:
        sys.stderr.write(f"accumlint: {error}\n")
        return 2
    if outcome.failure:
        sys.stderr.write(f"accumlint: {name}: {outcome.failure}\n")
        return 2
    if arguments.format == "json":
        import json

        from accumlint.report.loops import fields

        document = {
            "schema": "accumlint/trace/v1",
            "path": name,
            "skipped": outcome.skipped,
            "loops": [fields(loop) for loop in outcome.loops],
        }
        sys.stdout.write(json.dumps(document, indent=1, default=str) + "\n")
        return 0
    report = _report(target)
    show_lines(lambda width, unicode: _lines(report, outcome, width, unicode))
    return 0


def _report(target) -> Report:
    """An empty report that knows the cells where the script is a notebook."""
    from accumlint import runner
    from accumlint.report.model import Report
    from accumlint.static.discovery import is_notebook

    if not is_notebook(target.name):
        return Report()
    from accumlint.static import notebooks

    try:
        notebook = notebooks.read(runner.read(target, b""))
    except (OSError, notebooks.NotebookError):
        return Report()
    return Report(notebooks={target.name: notebook} if notebook is not None else {})


def _lines(report: Report, outcome, width: int, unicode: bool) -> list:
    from accumlint.report.loops import draw_loop

    lines: list = []
    for loop in outcome.loops:
        lines += [*draw_loop(report, loop, outcome.name, width, unicode), []]
    broken = [finding for finding in outcome.findings if finding.rule == "ACC001"]
    for finding in broken:
        where = report.where(outcome.name, finding.span.line)
        lines.append([(f"{outcome.name}{where}: {finding.message}", "error")])
    if not lines:
        why = f" ({outcome.skipped})" if outcome.skipped else ""
        lines.append([(f"{outcome.name}: no training loop found{why}", "")])
    return lines
