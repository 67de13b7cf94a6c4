"""``accumlint check``: scripts and configurations against the contract, in the format that the place wants."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from contextlib import nullcontext, redirect_stdout
from typing import TYPE_CHECKING

from accumlint.settings import (
    CONFIDENCES,
    FAIL_ON,
    FORMATS,
    Settings,
    SettingsError,
    all_selectors,
    check_selectors,
    find,
    load,
    output,
    selector,
    starting_folder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accumlint.audit import Asked
    from accumlint.cache.snapshot import Snapshot
    from accumlint.report.model import Report
    from accumlint.static.discovery import Target

SUMMARY = "check scripts and configurations against the accumulation contract"

CLEAN, FINDINGS, BROKEN, NOTHING_CHECKED = 0, 1, 2, 3


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("paths", nargs="*", default=["."], metavar="PATH",
                        help="files and folders; - reads standard input (default: the working folder)")
    rules = parser.add_argument_group("rules")
    rules.add_argument("--select", action="append", metavar="RULES",
                       help="only these: codes, prefixes of codes, clauses (C2) or names, separated by commas")
    rules.add_argument("--ignore", action="append", metavar="RULES", help="not these; wins over --select")
    rules.add_argument("--per-file-ignores", action="append", metavar="PATTERN:RULES",
                       help="not these in files that match the pattern")
    rules.add_argument("--min-confidence", choices=CONFIDENCES, help="leave less certain findings out")
    rules.add_argument("--fail-on", choices=FAIL_ON,
                       help="the least severity that makes the exit code 1 (default: warning)")
    files = parser.add_argument_group("files")
    files.add_argument("--exclude", action="append", metavar="PATTERN",
                       help="leave these out of folders; patterns as in .gitignore")
    files.add_argument("--force-exclude", action="store_true", default=None,
                       help="apply excludes, and the rule about test code, to named files too")
    files.add_argument("--include-tests", action="store_true", default=None,
                       help="check test code that is found in folders")
    files.add_argument("--stdin-filename", metavar="NAME", help="what to call standard input")
    out = parser.add_argument_group("output")
    out.add_argument("--format", choices=FORMATS,
                     help="format on standard output (default: text; github inside GitHub Actions)")
    out.add_argument("--output", action="append", metavar="FORMAT:FILE", help="also write this; repeatable")
    out.add_argument("--statistics", action="store_true", help="print counts per rule instead of findings")
    fixes = parser.add_argument_group("fixes")
    # each spelling is an option of its own: one with an optional value would swallow the path behind it
    fixes.add_argument("--fix", "--fix=safe", dest="fix", action="store_const", const="safe",
                       help="apply safe fixes and report what remains")
    fixes.add_argument("--fix=unsafe", dest="fix", action="store_const", const="unsafe",
                       help="apply unsafe fixes too: read the change before you keep it")
    fixes.add_argument("--patch", "--patch=safe", dest="patch", action="store_const", const="safe",
                       help="print what --fix would change as a unified diff, and change nothing")
    fixes.add_argument("--patch=unsafe", dest="patch", action="store_const", const="unsafe",
                       help="the same for --fix=unsafe")
    known = parser.add_argument_group("known findings")
    known.add_argument("--baseline", metavar="FILE", help="hide the findings that this file records")
    known.add_argument("--write-baseline", metavar="FILE", help="record the findings of this run as known")
    known.add_argument("--ratchet", action="store_true",
                       help="with --baseline: fail only where a file has more findings of a rule than recorded")
    known.add_argument("--add-ignores", metavar="REASON",
                       help="put a suppression comment with this reason at everything that is found; "
                       "REASON may be left out, and stands behind = where it is given")
    known.add_argument("--receipts", metavar="DIR",
                       help="receipts of probes: what a run confirmed is certain, what it refuted does not fail")
    known.add_argument("--diff", metavar="REF", help="only findings on lines changed since this commit")
    tool = parser.add_argument_group("tool")
    tool.add_argument("--config", metavar="FILE", help="use this settings file")
    tool.add_argument("--isolated", action="store_true", help="use no settings file")
    tool.add_argument("--jobs", "-j", type=int, metavar="N", help="worker processes (default: usable cores)")
    tool.add_argument("--no-cache", action="store_true", help="analyse every file anew and keep nothing")
    tool.add_argument("--cache-dir", metavar="DIR",
                      help="where results are kept (default: .accumlint_cache in the project)")


def spelled_out(arguments: Sequence[str]) -> list[str]:
    """``--add-ignores`` without a reason, so that it doesn't take the path behind it for one."""
    return ["--add-ignores=" if each == "--add-ignores" else each for each in arguments]


def _split(values: list[str] | None) -> tuple[str, ...]:
    return tuple(selector(part) for value in values or () for part in value.split(",") if part.strip())


def _per_file(values: list[str] | None) -> tuple[tuple[str, tuple[str, ...]], ...]:
    pairs = []
    for value in values or ():
        pattern, colon, rules = value.rpartition(":")
        if not colon or not pattern:
            raise SettingsError(f"--per-file-ignores: {value!r} is not PATTERN:RULES")
        pairs.append((pattern, _split([rules])))
    return tuple(pairs)


def resolve(arguments: Namespace, working_folder: str) -> Settings:
    """Settings file and command line in one; raises :class:`SettingsError`.

    What can be said once replaces the file's word; lists of what to leave out are added to it.
    """
    if arguments.config and arguments.isolated:
        raise SettingsError("--config and --isolated exclude each other")
    if arguments.config:
        try:
            settings = load(arguments.config)
        except OSError as error:
            raise SettingsError(f"{arguments.config}: {error.strerror or error}") from None
        if settings is None:
            raise SettingsError(f"{arguments.config}: no [tool.accumlint] in it")
    elif arguments.isolated:
        settings = Settings(root=working_folder)
    else:
        settings = find(starting_folder(arguments.paths, working_folder))
    said: dict = {}
    if arguments.select:
        said["select"] = _split(arguments.select)
    if arguments.ignore:
        said["ignore"] = settings.ignore + _split(arguments.ignore)
    if arguments.per_file_ignores:
        said["per_file_ignores"] = settings.per_file_ignores + _per_file(arguments.per_file_ignores)
    if arguments.exclude:
        said["exclude"] = settings.exclude + tuple(arguments.exclude)
    if arguments.output:
        said["output"] = settings.output + tuple(output(text) for text in arguments.output)
    if arguments.jobs is not None:
        if arguments.jobs < 0:
            raise SettingsError("--jobs: must be 0 or more")
        said["jobs"] = arguments.jobs
    for name in ("min_confidence", "fail_on", "force_exclude", "include_tests", "format", "baseline"):
        value = getattr(arguments, name)
        if value is not None:
            said[name] = value
    settings = settings._replace(**said)
    if settings.baseline and settings.source and not arguments.baseline:
        settings = settings._replace(baseline=os.path.join(settings.root, settings.baseline))
    if arguments.ratchet and not settings.baseline:
        raise SettingsError("--ratchet needs a --baseline to compare with")
    if arguments.write_baseline and arguments.diff:
        raise SettingsError("--write-baseline records whole files, so it can't go with --diff")
    if arguments.fix and arguments.patch:
        raise SettingsError("--fix changes files and --patch shows the change: choose one")
    if (arguments.fix or arguments.patch) and arguments.write_baseline:
        raise SettingsError("--write-baseline records what was found, so it can't go with --fix or --patch")
    if arguments.fix and "-" in arguments.paths and len(arguments.paths) > 1:
        raise SettingsError("--fix prints a fixed standard input, so - can't go with other paths")
    if arguments.add_ignores is not None:
        if arguments.fix or arguments.patch:
            raise SettingsError("--add-ignores hides what --fix and --patch change: choose one")
        if arguments.write_baseline:
            raise SettingsError("--add-ignores and --write-baseline both make findings known: choose one")
        if "-" in arguments.paths:
            raise SettingsError("--add-ignores changes files, so it can't read standard input")
    wanted = all_selectors(settings)
    if set(wanted) != {"ALL"}:
        from accumlint.rule_index import all_rules

        check_selectors(wanted, all_rules(), settings.source or "command line")
    return settings


def is_configuration(path: str, head: bytes) -> bool:
    """Whether the configuration audit reads this file."""
    from accumlint.config import may_be_configuration

    return may_be_configuration(path, head)


def exit_code(failing: int, errors: int, targets: int, filtered_away: bool) -> int:
    """1 where something fails; else 2 where something broke; 3 where nothing was there to check.

    ``targets`` counts files that were looked at, those that meet a limit of the analysis among them;
    ``filtered_away``: only files were named and all of them were left out, as a hook manager may do.
    """
    if failing:
        return FINDINGS
    if errors:
        return BROKEN
    if not targets and not filtered_away:
        return NOTHING_CHECKED
    return CLEAN


def run(arguments: Namespace) -> int:
    from accumlint.static.discovery import STDIN, Target, collect, display_name

    working_folder = os.getcwd()
    try:
        settings = resolve(arguments, working_folder)
    except SettingsError as error:
        return _complain(str(error))
    from accumlint.audit import Asked, AuditError, audit
    from accumlint.cache.store import location
    from accumlint.report.present import PresentError, files_with_fixes, present

    no_cache = arguments.no_cache or not settings.cache and not arguments.cache_dir
    changes = bool(arguments.fix or arguments.patch or arguments.add_ignores is not None)
    asked = Asked(
        baseline=settings.baseline,
        write_baseline=arguments.write_baseline or "",
        ratchet=arguments.ratchet,
        diff=arguments.diff or "",
        receipts=arguments.receipts or "",
        cache="" if no_cache else location(settings, working_folder, arguments.cache_dir or ""),
        # --fix and --add-ignores report what remains, later and with fixes; --patch tries its own
        fixes=0 if changes else files_with_fixes(settings, arguments.statistics),
        working_folder=working_folder,
    )
    snapshot = None if changes else _snapshot(settings, asked, arguments.paths)
    earlier = snapshot.read() if snapshot is not None else None
    if earlier is not None:
        collection = earlier.collection
    else:
        collection = collect(arguments.paths, settings, working_folder, is_configuration)
    targets = list(collection.targets)
    stdin = b""
    if "-" in arguments.paths:
        name = display_name(arguments.stdin_filename or "stdin.py", working_folder)
        stdin = sys.stdin.buffer.read()
        targets = [target for target in targets if target.name != name]
        targets.append(Target(name, os.path.join(working_folder, name), STDIN))
        targets.sort()
    unwritten = 0
    try:
        report, failing = audit(targets, collection, settings, asked, stdin, snapshot, earlier)
        if arguments.patch:
            _show_patch(report, targets, settings, stdin, arguments.patch == "unsafe")
        elif arguments.fix:
            unwritten, stdin = _fix(report, targets, settings, stdin, arguments.fix == "unsafe")
            asked = asked._replace(fixes=files_with_fixes(settings, arguments.statistics))
            report, failing = audit(targets, collection, settings, asked, stdin)
            with redirect_stdout(sys.stderr) if "-" in arguments.paths else nullcontext():
                present(report, settings, statistics=arguments.statistics)
        else:
            if arguments.add_ignores is not None and report.findings:
                from accumlint.add_ignores import comment_on

                told = comment_on(report, targets, arguments.add_ignores)
                sys.stderr.write("".join(f"accumlint: {line}\n" for line in told))
                asked = asked._replace(fixes=files_with_fixes(settings, arguments.statistics))
                report, failing = audit(targets, collection, settings, asked, stdin)
            present(report, settings, statistics=arguments.statistics)
    except (AuditError, PresentError) as error:
        return _complain(str(error))
    filtered_away = bool(collection.skipped) and collection.only_files_named
    return exit_code(failing, len(report.summary.errors) + unwritten, len(targets), filtered_away)


def _snapshot(settings: Settings, asked: Asked, paths: Sequence[str]) -> Snapshot | None:
    """The memory of whole runs, for those that look through folders: a few named files are looked up one by one."""
    if not asked.cache or "-" in paths or not any(map(os.path.isdir, paths)):
        return None
    from accumlint.audit import engine_choice
    from accumlint.cache.results import Results
    from accumlint.cache.snapshot import Snapshot

    return Snapshot(Results(asked.cache, engine_choice(settings, asked), asked.working_folder), settings, paths)


def _show_patch(report: Report, targets: Sequence[Target], settings: Settings, stdin: bytes, unsafe: bool) -> None:
    """The change on standard output and nothing else there, so that it can be piped on."""
    if not report.findings:
        return
    from accumlint import fixing

    files = fixing.fix(report.findings, {target.name: target for target in targets}, settings, stdin, unsafe)
    sys.stdout.flush()
    sys.stdout.buffer.write(fixing.patch(files))
    sys.stdout.buffer.flush()
    sys.stderr.write(fixing.told(files).replace("Fixed", "Would fix", 1))


def _fix(
    report: Report, targets: Sequence[Target], settings: Settings, stdin: bytes, unsafe: bool
) -> tuple[int, bytes]:
    """Write the fixed files; returns how many could not be written, and standard input as it is now.

    A fixed standard input is printed, unchanged where nothing in it could be fixed.
    """
    from accumlint.static.discovery import STDIN

    files = []
    if report.findings:
        from accumlint import fixing

        files = fixing.fix(report.findings, {target.name: target for target in targets}, settings, stdin, unsafe)
    written = []
    for file in files:
        if fixing.is_stdin(file):
            stdin = file.after
            written.append(file)
            continue
        try:
            fixing.write(file)
            written.append(file)
        except fixing.WriteError as error:
            sys.stderr.write(f"accumlint: {error}\n")
    if any(target.kind == STDIN for target in targets):
        sys.stdout.flush()
        sys.stdout.buffer.write(stdin)
        sys.stdout.buffer.flush()
    if written:
        sys.stderr.write(fixing.told(written))
    return len(files) - len(written), stdin


def _complain(message: str) -> int:
    sys.stderr.write(f"accumlint: {message}\n")
    return BROKEN
