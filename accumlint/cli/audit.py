"""``accumlint audit``: a report on a whole tree, and ``audit merge``, which joins reports of many."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from accumlint.settings import CONFIDENCES, Settings, SettingsError

if TYPE_CHECKING:
    from accumlint.report.audit.merge import Joined
    from accumlint.report.audit.model import Audit
    from accumlint.static.discovery import Collection

SUMMARY = "report on a whole tree: ranked findings, windows drawn, what to do first; merge joins reports"

CLEAN, FINDINGS, BROKEN, NOTHING_CHECKED = 0, 1, 2, 3

FORMATS = ("html", "markdown", "json")
SUFFIXES = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown", ".json": "json"}


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "accumlint audit [OPTIONS] [DIR]\n       accumlint audit merge [OPTIONS] REPORT.json ..."
    parser.description = (
        "Reads all scripts and configurations of a folder and writes one report: worst findings first, every loop with its "
        "simulated windows and weights. Nothing is run. `audit merge` joins JSON reports, made anywhere, into one page."
    )
    parser.add_argument(
        "paths",
        nargs="*",
        default=["."],
        metavar="DIR",
        help="the folder (default: the working folder); merge and JSON reports to join them",
    )
    out = parser.add_argument_group("output")
    out.add_argument("--format", choices=FORMATS, help="format where no suffix tells it (default: markdown)")
    out.add_argument(
        "--output",
        action="append",
        metavar="FILE",
        help="write the report here, as .html, .md or .json; repeatable (default: standard output)",
    )
    out.add_argument(
        "--name", help="what the report calls the tree (default: from the remote, else the folder)"
    )
    out.add_argument(
        "--fail-on",
        choices=("error", "warning", "never"),
        default="never",
        help="the least severity that makes the exit code 1 (default: never)",
    )
    out.add_argument(
        "--source-url",
        metavar="URL",
        default="",
        help="make places links: an address with {path}, {line} and {commit} in it",
    )
    out.add_argument(
        "--fixes",
        action="store_true",
        help="also say what could be repaired: each repair is tried out on the simulation, which takes minutes for large scripts",
    )
    rules = parser.add_argument_group("rules and files")
    rules.add_argument("--select", action="append", metavar="RULES", help="only these rules")
    rules.add_argument("--ignore", action="append", metavar="RULES", help="not these; wins over --select")
    rules.add_argument("--min-confidence", choices=CONFIDENCES, help="leave less certain findings out")
    rules.add_argument(
        "--exclude", action="append", metavar="PATTERN", help="leave these out; patterns as in .gitignore"
    )
    rules.add_argument("--include-tests", action="store_true", default=None, help="read test code too")
    tool = parser.add_argument_group("tool")
    tool.add_argument("--config", metavar="FILE", help="use this settings file")
    tool.add_argument("--isolated", action="store_true", help="use no settings file")
    tool.add_argument("--jobs", "-j", type=int, metavar="N", help="worker processes (default: usable cores)")
    # options may stand between merge and its reports
    parser.parse_args = parser.parse_intermixed_args  # type: ignore[method-assign]


class _AuditError(Exception):
    """The report can't be made as asked; the message says why."""


def run(arguments: Namespace) -> int:
    """0: the report was made (merge: every report could be read); 1: --fail-on; 2: misuse; 3: nothing to look at."""
    try:
        outputs = [_output(path, arguments.format) for path in arguments.output or ()]
        if arguments.paths[:1] == ["merge"]:
            return _merge(arguments, outputs)
        return _audit(arguments, outputs)
    except (_AuditError, SettingsError) as error:
        sys.stderr.write(f"accumlint audit: {error}\n")
        return BROKEN


def _output(path: str, wanted: str | None) -> tuple[str, str, str]:
    """(format, absolute path, path as given): the suffix tells the format, ``--format`` where it doesn't."""
    told = SUFFIXES.get(os.path.splitext(path)[1].lower()) or wanted
    if told is None:
        raise _AuditError(f"--output {path}: its suffix tells no format (.html, .md, .json): say --format")
    return told, os.path.abspath(path), path


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Work in ``folder``: a report then knows no other paths than those below it."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _audit(arguments: Namespace, outputs: list[tuple[str, str, str]]) -> int:
    if len(arguments.paths) != 1:
        raise _AuditError("one folder at a time; reports of several join with accumlint audit merge")
    from accumlint.report.audit.model import counts, is_source_url, verdict_line

    (folder,) = arguments.paths
    if not os.path.isdir(folder):
        hint = "for single files there is accumlint check" if os.path.exists(folder) else "no such folder"
        raise _AuditError(f"{folder}: not a folder ({hint})")
    if not is_source_url(arguments.source_url):
        raise _AuditError(
            f"--source-url {arguments.source_url}: expected an http address with {{path}} in it"
        )
    if arguments.config:
        arguments.config = os.path.abspath(arguments.config)
    try:
        with _inside(folder):
            report = _made(arguments)
    except OSError as error:
        raise _AuditError(f"{folder}: {error.strerror or error}") from None
    _write(
        outputs,
        arguments.format,
        lambda name: _rendered(name, report),
        f"{report.name}: {verdict_line(report)}",
    )
    number = counts(report.findings)
    failing = {"error": number["error"], "warning": number["error"] + number["warning"], "never": 0}[
        arguments.fail_on
    ]
    if failing:
        return FINDINGS
    return (
        CLEAN
        if report.coverage.files or report.coverage.configurations or report.coverage.left
        else NOTHING_CHECKED
    )


def _made(arguments: Namespace) -> Audit:
    """The report on the working folder."""
    from accumlint import __version__, audit, knowledge, runner
    from accumlint.cli.check import is_configuration
    from accumlint.config import SourceFile
    from accumlint.config.table import tabulate
    from accumlint.report.audit import identity, model
    from accumlint.static.discovery import CONFIGURATION, PYTHON, collect

    folder = os.getcwd()
    settings = _settings(arguments, folder)
    collection = _only_below(collect(["."], settings, folder, is_configuration))
    targets = list(collection.targets)
    asked = audit.Asked(working_folder=folder, fixes=sys.maxsize if arguments.fixes else 0, detail=True)
    try:
        done, _ = audit.audit(targets, collection, settings, asked, b"")
    except audit.AuditError as error:
        raise _AuditError(str(error)) from error
    read, scripts = [], {}
    for target in targets:
        if target.kind != CONFIGURATION and target.name in done.ended and target.name not in done.loops:
            continue
        try:
            data = runner.read(target, b"")
        except OSError:
            continue  # the run has already said so
        read.append(SourceFile(target.name, data))
        if target.kind == PYTHON and target.name in done.loops:
            scripts[target.name] = model.script_of(data)
    try:
        advice = {code: _first_thing(code) for code in {finding.rule for finding in done.findings}}
    except knowledge.KnowledgeError as error:
        raise _AuditError(str(error)) from error
    try:
        arithmetic = tabulate(read)
    except Exception as error:  # noqa: BLE001 - the rest of the report must still be made
        arithmetic = []
        broken = ("configurations", f"internal error, {runner._where(error)}; please report it")
        done = done._replace(summary=done.summary._replace(errors=(*done.summary.errors, broken)))
    name = arguments.name or identity.name_of(folder)
    return model.build(
        done,
        name,
        __version__,
        identity.revision_of(folder),
        arithmetic,
        scripts,
        advice,
        arguments.source_url,
    )


def _settings(arguments: Namespace, folder: str) -> Settings:
    """The settings of the folder, with what the command line says; what concerns only a check is set aside."""
    from accumlint.cli import check

    parser = ArgumentParser()
    check.add_arguments(parser)
    wanted = parser.parse_args([])
    for name in (
        "select",
        "ignore",
        "min_confidence",
        "exclude",
        "include_tests",
        "config",
        "isolated",
        "jobs",
    ):
        setattr(wanted, name, getattr(arguments, name))
    return check.resolve(wanted, folder)._replace(baseline="", output=())


def _only_below(collection: Collection) -> Collection:
    """Without files that a link fetches from elsewhere: they belong to no report on this folder."""
    kept = tuple(t for t in collection.targets if not os.path.isabs(t.name) and not t.name.startswith("../"))
    outside = len(collection.targets) - len(kept)
    if not outside:
        return collection
    return collection._replace(
        targets=kept, skipped=dict(sorted({**collection.skipped, "link-outside": outside}.items()))
    )


def _first_thing(code: str) -> str:
    """How to fix it, as the page of the rule begins: a paragraph, and the code that it announces."""
    from accumlint import knowledge

    page = knowledge.page(code)
    if page is None:
        return ""
    first, *rest = page.sections.get("How to fix it", "").split("\n\n")
    if first.endswith(":") and rest:
        block = []
        for paragraph in rest:
            if not paragraph.startswith(("    ", "```")):
                break
            block.append(paragraph)
        return "\n\n".join([first, *block])
    return first


def _rendered(format_name: str, report: Audit) -> str:
    if format_name == "json":
        from accumlint.report.audit.json import render

        return render(report)
    if format_name == "markdown":
        from accumlint.report.audit.markdown import render

        return render(report)
    from accumlint.knowledge import KnowledgeError, page
    from accumlint.report.audit.html import render as html

    try:
        return html(report, page)
    except KnowledgeError as error:
        raise _AuditError(str(error)) from error


def _write(
    outputs: list[tuple[str, str, str]], format_name: str | None, rendered: Callable[[str], str], verdict: str
) -> None:
    """Write all files and say so, or the report itself to standard output."""
    from accumlint.report.present import write_atomically, write_text

    if not outputs:
        return write_text(rendered(format_name or "markdown"))
    texts = {name: rendered(name) for name in dict.fromkeys(name for name, _, _ in outputs)}
    for name, path, given in outputs:
        try:
            write_atomically(path, texts[name])
        except OSError as error:
            raise _AuditError(f"--output {given}: cannot be written: {error.strerror or error}") from None
    shown = ", ".join(given for _, _, given in outputs)
    write_text(f"{verdict}\nWritten: {shown}\n")
    return None


def _merge(arguments: Namespace, outputs: list[tuple[str, str, str]]) -> int:
    """Join reports; one that can't be read costs only itself, is named, and makes the exit code 2."""
    from accumlint import __version__
    from accumlint.report.audit import merge
    from accumlint.report.audit.json import DocumentError

    paths = list(dict.fromkeys(path for given in arguments.paths[1:] for path in _reports_below(given)))
    if not paths:
        raise _AuditError("merge needs JSON reports, or folders that hold some")
    audits, unused = [], []
    for path in paths:
        try:
            with open(path, "rb") as stream:
                audits.append(merge.read(stream.read()))
        except (OSError, DocumentError) as error:
            reason = (
                f"cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)
            )
            unused.append(merge.Unused(os.path.basename(path), reason))
            sys.stderr.write(f"accumlint audit: {path}: {reason}\n")
    joined = merge.join(audits, unused, __version__)
    for each in joined.replaced:
        sys.stderr.write(f"accumlint audit: {each.report}: {each.reason}\n")
    _write(outputs, arguments.format, lambda name: _rendered_merge(name, joined), merge.verdict_line(joined))
    errors = sum(each.errors for each in joined.repositories)
    warnings = sum(each.warnings for each in joined.repositories)
    if {"error": errors, "warning": errors + warnings, "never": 0}[arguments.fail_on]:
        return FINDINGS
    return BROKEN if unused else CLEAN


def _reports_below(path: str) -> list[str]:
    """A file itself; of a folder, every .json file below it."""
    if not os.path.isdir(path):
        return [path]
    found = [
        os.path.join(folder, name)
        for folder, _, names in os.walk(path)
        for name in names
        if name.endswith(".json")
    ]
    return sorted(found)


def _rendered_merge(format_name: str, joined: Joined) -> str:
    if format_name == "json":
        from accumlint.report.audit.merge_json import render

        return render(joined)
    if format_name == "markdown":
        from accumlint.report.audit.merge_markdown import render

        return render(joined)
    from accumlint.knowledge import KnowledgeError, page
    from accumlint.report.audit.merge_html import render as html

    try:
        return html(joined, page)
    except KnowledgeError as error:
        raise _AuditError(str(error)) from error
