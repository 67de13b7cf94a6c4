"""One run from files to report: engine, configurations, suppressions, selection, baseline, changed lines."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from accumlint import runner
from accumlint.report.model import Report, Summary
from accumlint.settings import Settings, is_on, names_any
from accumlint.static.discovery import CONFIGURATION, Collection, Patterns, Target, is_notebook, repository_of

if TYPE_CHECKING:
    from accumlint.cache.results import Results
    from accumlint.cache.snapshot import Earlier, Snapshot
    from accumlint.findings import Finding
    from accumlint.static.notebooks import Notebook
    from accumlint.suppression import Suppression


class AuditError(RuntimeError):
    """The run can't be carried out as asked; the message says why."""


class Asked(NamedTuple):
    """What the command line asks of a run beyond the settings."""

    baseline: str = ""
    write_baseline: str = ""
    ratchet: bool = False
    diff: str = ""
    receipts: str = ""
    cache: str = ""  # the folder for results of earlier runs; empty: none
    fixes: int = 0  # in up to so many files a fix is tried out for each finding: every one costs some simulations
    working_folder: str = "."
    detail: bool = False  # loop reports say all that the engine knows


# Tests replace the engine by a small one of their own.
ENGINE = "accumlint.static.engine"


def audit(
    targets: Sequence[Target],
    collection: Collection,
    settings: Settings,
    asked: Asked,
    stdin: bytes,
    snapshot: Snapshot | None = None,
    earlier: Earlier | None = None,
) -> tuple[Report, int]:
    """The report of a run, and how many of its findings make it fail.

    ``earlier`` is what an earlier run found where nothing has changed since; where something has, ``snapshot`` gets
    what this one finds. Raises :class:`AuditError` where the engine, the baseline or git can't do their part.
    """
    choice = engine_choice(settings, asked)
    results = snapshot.results if snapshot is not None else _results(targets, choice, asked)
    try:
        done = earlier.run if earlier is not None else runner.run(targets, choice, settings.jobs, stdin, results)
    except runner.RunnerError as error:
        raise AuditError(str(error)) from error
    errors = [*collection.problems]
    errors += [(outcome.name, outcome.failure) for outcome in done.outcomes if outcome.failure]
    found = _surest(finding for outcome in done.outcomes for finding in outcome.findings)
    by_name = {target.name: target for target in targets}
    if earlier is not None:
        configured, config_errors = list(earlier.configured), []
    else:
        configured, config_errors = _configurations(targets, done.simulated, stdin, results)
        if snapshot is not None and not config_errors:
            snapshot.write(collection, done, configured)
    found = _once([*found, *configured])
    if asked.receipts:
        found = _probed(found, asked)
    errors += config_errors
    suppressed = 0
    if done.marked:
        found, suppressed = _suppress(found, done, by_name, settings, stdin)
    if found:  # most runs have nothing to select from, and need not load what selecting takes
        found = _select(found, settings, by_name)
    summary = _count(done, collection, errors)._replace(suppressed=suppressed)
    loops = {outcome.name: outcome.loops for outcome in done.outcomes if outcome.loops}
    shown = {finding.span.path for finding in found} | (set(loops) if asked.detail else set())
    sources, notebooks = _sources(shown, by_name, stdin) if shown else ({}, {})
    places = _places(found, by_name, settings, asked)
    ended = {outcome.name: outcome.skipped for outcome in done.outcomes if outcome.skipped}
    report = Report(tuple(found), summary, sources, places, notebooks, loops, ended)
    if asked.diff:
        report = _only_changed(report, asked, by_name)
    failing_findings = report.findings
    if asked.baseline or asked.write_baseline:
        report, failing_findings = _known(report, asked, [target.name for target in targets], settings)
    failing = _failing(failing_findings, settings)
    if report.findings and len({finding.span.path for finding in report.findings}) <= asked.fixes:
        from accumlint.fixing import offer

        report = report._replace(findings=tuple(offer(report.findings, by_name, settings, stdin, results)))
    if results is not None:
        results.finish()
    return report, failing


def engine_choice(settings: Settings, asked: Asked) -> runner.EngineChoice:
    """The engine of a run, and what it is told."""
    return runner.EngineChoice(ENGINE, settings.root, settings.vocabulary, asked.detail)


def _results(targets: Sequence[Target], choice: runner.EngineChoice, asked: Asked) -> Results | None:
    """What earlier runs found out, if this one may use it and there is anything to look up."""
    if not asked.cache or not targets:
        return None
    from accumlint.cache.results import Results

    return Results(asked.cache, choice, asked.working_folder)


def _surest(findings: Iterable[Finding]) -> list[Finding]:
    """A rule once per place: scripts that share a helper reach it on different paths, the surest of which counts."""
    unique: dict[tuple, Finding] = {}
    for finding in findings:
        held = unique.setdefault((finding.span, finding.rule), finding)
        if held.confidence < finding.confidence:
            unique[finding.span, finding.rule] = finding
    return list(unique.values())


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """Findings in order, a rule once per place even where both the engine and the configurations say it."""
    unique: dict[tuple, Finding] = {}
    for finding in findings:
        unique.setdefault((finding.span, finding.rule, finding.message), finding)
    return sorted(unique.values(), key=lambda finding: finding.sort_key())


def _probed(found: Sequence[Finding], asked: Asked) -> list[Finding]:
    """The findings with what receipts say; one that a run confirmed is certain."""
    import dataclasses

    from accumlint.findings import Confidence, Probed
    from accumlint.probe import remembered
    from accumlint.probe.verdicts import CONFIRMED

    folder = os.path.join(asked.working_folder, asked.receipts)
    try:
        told = remembered.marks(found, folder, asked.working_folder)
    except OSError as error:
        raise AuditError(f"--receipts: {asked.receipts}: {error.strerror or error}") from error
    marked = []
    for finding, said in told:
        if said is not None:
            confidence = Confidence.CERTAIN if said.verdict == CONFIRMED else finding.confidence
            probed = Probed(said.verdict, said.reason, said.receipt)
            finding = dataclasses.replace(finding, confidence=confidence, probed=probed)
        marked.append(finding)
    return marked


def _configurations(
    targets: Sequence[Target], scripts: Sequence[Target], stdin: bytes, results: Results | None = None
) -> tuple[list[Finding], list[tuple[str, str]]]:
    """What the audit of configurations finds over the configurations and scripts of this run."""
    wanted = [target for target in targets if target.kind == CONFIGURATION] + list(scripts)
    if not wanted:
        return [], []
    files: list[tuple[str, bytes]] = []
    for target in sorted(wanted):
        try:
            data = runner.read(target, stdin)
            notebook = _notebook(target, data)
            if notebook is not None:
                data = notebook.programs[0]
            files.append((target.name, data))
        except OSError:
            continue  # reported when the runner tried to read it
    held = results.find_configured(files) if results is not None else None
    if held is not None:
        return list(held), []
    from accumlint.config import SourceFile, audit

    try:
        found = list(audit([SourceFile(name, data) for name, data in files]))
        if results is not None:
            results.keep_configured(files, found)
        return found, []
    except Exception as error:  # noqa: BLE001 - the scripts' findings must still be shown
        return [], [("configurations", f"internal error, {runner._where(error)}; please report it")]


def _suppress(
    found: Sequence[Finding], done: runner.Run, by_name: dict[str, Target], settings: Settings, stdin: bytes
) -> tuple[list[Finding], int]:
    """Findings that no comment hides, with ACC002 for comments that hide nothing; and how many are hidden."""
    from accumlint import suppression
    from accumlint.rule_index import all_rules

    broken = {outcome.name for outcome in done.outcomes if outcome.failure}
    per_file = _PerFile(settings)
    kept = [finding for finding in found if finding.span.path not in done.marked]
    hidden_count = 0
    for name in sorted(done.marked):
        target = by_name[name]
        try:
            data = runner.read(target, stdin)
        except OSError:
            continue
        comments = _comments(target, data)
        here = [finding for finding in found if finding.span.path == name]
        shown, hidden, used = suppression.apply(here, comments)
        kept += shown
        hidden_count += len(hidden)
        unread = {"ACC001", "ACC003"} & {finding.rule for finding in shown}
        if name in broken or unread:
            continue  # what wasn't analysed can't prove a comment useless

        def on(code: str, rule_name: str, clause: str, target: Target = target) -> bool:
            return is_on(settings, code, rule_name, clause) and not per_file.ignores(
                target, code, rule_name, clause
            )

        kept += suppression.complaints(name, comments, used, all_rules(), on)
    return sorted(kept, key=lambda finding: finding.sort_key()), hidden_count


def _comments(target: Target, data: bytes) -> tuple[Suppression, ...]:
    from accumlint import suppression

    if target.kind == CONFIGURATION:
        return suppression.in_configuration(data)
    notebook = _notebook(target, data)
    if notebook is None:
        return suppression.in_python(data)
    found = [comment for program in notebook.programs for comment in suppression.in_python(program)]
    return tuple(sorted(found, key=lambda comment: (comment.line, comment.column)))


class _PerFile:
    """``per-file-ignores``, its patterns compiled once."""

    def __init__(self, settings: Settings):
        self._table = [
            (Patterns(settings.root, [pattern]), rules) for pattern, rules in settings.per_file_ignores
        ]

    def ignores(self, target: Target, code: str, name: str, clause: str) -> bool:
        return any(
            names_any(rules, code, name, clause) and patterns.decide(target.path)
            for patterns, rules in self._table
        )


def _select(found: Iterable[Finding], settings: Settings, by_name: dict[str, Target]) -> list[Finding]:
    """Findings whose rule is on and whose confidence suffices, with the severity that the settings give."""
    import dataclasses

    from accumlint.findings import Confidence, Severity

    least = Confidence[settings.min_confidence.upper()]
    per_file = _PerFile(settings)
    kept = []
    for finding in found:
        rule = (finding.rule, finding.name, finding.clause)
        if finding.confidence < least or not is_on(settings, *rule):
            continue
        target = by_name.get(finding.span.path)
        if target is not None and per_file.ignores(target, *rule):
            continue
        for wanted, label in settings.severity.items():
            if names_any((wanted,), *rule):
                finding = dataclasses.replace(finding, severity=Severity[label.upper()])
        if finding.probed is not None and finding.probed.verdict == "refuted":
            finding = dataclasses.replace(finding, severity=Severity.ADVICE)  # a run says otherwise: no reason to fail
        kept.append(finding)
    return kept


def _failing(findings: Sequence[Finding], settings: Settings) -> int:
    if not findings or settings.fail_on == "never":
        return 0
    from accumlint.findings import Severity

    least = Severity[settings.fail_on.upper()]
    return sum(1 for finding in findings if finding.severity >= least)


# sieves that leave a file unread rather than find it empty
_NOT_READ = ("too-large", "too-deep", "too-slow")


def _count(done: runner.Run, collection: Collection, errors: Sequence[tuple[str, str]]) -> Summary:
    """What was looked at. A file that can't be parsed was checked: its finding says what is wrong."""
    through = {target.name for target in done.simulated}
    without: dict[str, int] = {}
    skipped = dict(collection.skipped)
    checked = simulated = 0
    for outcome in done.outcomes:
        if outcome.failure:
            continue
        if outcome.skipped in _NOT_READ:
            skipped[outcome.skipped] = skipped.get(outcome.skipped, 0) + 1
            continue
        checked += 1
        if outcome.skipped and outcome.skipped != "syntax-error":
            without[outcome.skipped] = without.get(outcome.skipped, 0) + 1
        elif outcome.name in through and not outcome.skipped:
            simulated += 1
    wanted = {target.name for target in collection.targets if target.kind == CONFIGURATION}
    return Summary(
        configurations=len(wanted),
        files_checked=checked,
        files_simulated=simulated,
        files_without_accumulation=dict(sorted(without.items())),
        files_skipped=dict(sorted(skipped.items())),
        loops=sum(len(outcome.loops) for outcome in done.outcomes),
        errors=tuple(sorted(set(errors))),
    )


def decode(data: bytes) -> str:
    """Source text as its own encoding declaration says, else as UTF-8 with what can't be read replaced."""
    import io
    import tokenize

    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return data.decode(encoding)
    except (SyntaxError, LookupError, UnicodeDecodeError):
        return data.decode("utf-8-sig", "replace")


def _notebook(target: Target, data: bytes) -> Notebook | None:
    """The notebook in a target that is one and can be read."""
    if not is_notebook(target.name):
        return None
    from accumlint.static import notebooks

    try:
        return notebooks.read(data)
    except notebooks.NotebookError:  # said when the runner tried
        return None


def _sources(
    names: Iterable[str], by_name: dict[str, Target], stdin: bytes
) -> tuple[dict[str, str], dict[str, Notebook]]:
    """The texts of files that are shown, and the maps of those that are notebooks."""
    texts: dict[str, str] = {}
    notebooks: dict[str, Notebook] = {}
    for name in sorted(names):
        target = by_name.get(name)
        try:
            data = runner.read(target, stdin) if target is not None else None
        except OSError:
            continue
        if target is None or data is None:
            continue
        notebook = _notebook(target, data)
        if notebook is None:
            texts[name] = decode(data)
        else:
            texts[name], notebooks[name] = notebook.text, notebook
    return texts, notebooks


def _places(
    found: Iterable[Finding], by_name: dict[str, Target], settings: Settings, asked: Asked
) -> dict[str, str]:
    """Paths relative to the repository, links resolved, as code hosts want them."""
    names = {finding.span.path for finding in found}
    names |= {related.span.path for finding in found for related in finding.related}
    root = os.path.realpath(repository_of(asked.working_folder) or settings.root)
    places = {}
    for name in names:
        target = by_name.get(name)
        path = target.path if target is not None else os.path.join(asked.working_folder, name)
        relative = os.path.relpath(os.path.realpath(path), root)
        if not relative.startswith(".." + os.sep) and relative != "..":
            places[name] = relative.replace(os.sep, "/")
    return places


def _only_changed(report: Report, asked: Asked, by_name: dict[str, Target]) -> Report:
    from accumlint.changed_lines import ChangedLinesError, changed_lines, touches

    root = repository_of(asked.working_folder)
    try:
        changed = changed_lines(root or asked.working_folder, asked.diff)
    except ChangedLinesError as error:
        raise AuditError(str(error)) from error
    kept = tuple(finding for finding in report.findings if touches(finding, changed, report.place, report.in_file))
    outside = len(report.findings) - len(kept)
    return report._replace(findings=kept, summary=report.summary._replace(outside_diff=outside))


def _known(
    report: Report, asked: Asked, names: Sequence[str], settings: Settings
) -> tuple[Report, Sequence[Finding]]:
    """The report without what the baseline knows, and the findings that may fail."""
    from accumlint import baseline
    from accumlint.rule_index import all_rules

    off = {rule[0] for rule in all_rules() if not is_on(settings, *rule)}
    try:
        entries = baseline.read(asked.baseline) if asked.baseline else baseline.Baseline()
        if asked.write_baseline:
            old = baseline.read(asked.write_baseline, missing_ok=True)
            baseline.write(asked.write_baseline, baseline.record(report, old, names, lambda rule: rule not in off))
            entries = baseline.record(report, baseline.Baseline(), names)
    except (OSError, ValueError) as error:
        raise AuditError(f"baseline: {error}") from error
    compared = baseline.compare(report, entries, names, ratchet=asked.ratchet)
    summary = report.summary._replace(baselined=compared.known, stale_baseline=compared.stale)
    return report._replace(findings=compared.new, summary=summary), compared.new
