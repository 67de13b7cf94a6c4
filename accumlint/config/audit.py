"""The audit: every file by itself, then all of them together.

What reads one kind of file is imported when such a file is there: most runs have a script and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from accumlint.config import joins
from accumlint.config.joins import Tree
from accumlint.config.names import report
from accumlint.config.sieve import can_be_dialect, can_be_launch, can_be_script, speaks
from accumlint.config.sources.by_name import is_dependency_file
from accumlint.config.tree import Document, Mark, Problem
from accumlint.findings import Finding, Severity

if TYPE_CHECKING:
    from accumlint.config.dialects import View
    from accumlint.config.sources.dependencies import Pin

MAX_TEXT = 1024 * 1024  # scripts and launch files above this are generated or data


@dataclass(frozen=True)
class SourceFile:
    """One file as discovery found it: its path as it shall be reported, and its bytes."""

    path: str
    data: bytes


class Gathered(NamedTuple):
    """What was read of a tree: its facts, its pinned versions, and what reading it says by itself."""

    tree: Tree
    pins: list[Pin]
    findings: list[Finding]


def audit(files: Sequence[SourceFile], gathered: Gathered | None = None) -> list[Finding]:
    """All findings on configurations, launch lines, dependency files and scripts of one tree, sorted.

    ``gathered``: what :func:`gather` made of the same files, by whoever needs it too. Never raises for what the files
    contain; runs none of their code; the order of ``files`` does not matter.
    """
    tree, pins, said = gathered or gather(files)
    findings = list(said)
    if tree.documents:
        findings += _documents(tree)
    findings += _scripts(tree)
    if tree.views or tree.documents or tree.launches:
        from accumlint.config import crossfile

        for part in crossfile.PARTS:
            findings += guarded(tree.paths[0], part, tree)
    if pins:
        from accumlint.config import advisories

        findings += guarded(tree.paths[0], advisories.match, tree, pins)
    return settle(findings, {posix(file.path): file.path for file in files})


def _documents(tree: Tree) -> list[Finding]:
    """What each configuration says by itself."""
    from accumlint.config import local_devices
    from accumlint.config.checks import audit_view, check_schedule

    findings: list[Finding] = []
    for path in sorted(tree.views):
        for view in tree.views[path]:
            findings += guarded(path, audit_view, view)
    for document in tree.documents:
        findings += guarded(document.path, local_devices.check_document, document)
        findings += guarded(document.path, check_schedule, document)
    return findings


def _scripts(tree: Tree) -> list[Finding]:
    """What each script says, by itself and with the launch lines that start it; a script after the other is held.

    The checks against other files are left out where there are none and no call of the script holds a configuration.
    """
    findings: list[Finding] = []
    launched = joins.launches_of_files(tree)
    others = bool(tree.views or tree.documents or tree.launches)
    for path, data in tree.scripts.sources():
        script = tree.scripts.get(path) if path in launched or speaks(data) else None
        if script is None:
            continue
        from accumlint.config import local_devices, wiring

        launches = launched.pop(script.path, [])
        findings += guarded(script.path, wiring.audit_script, script)
        findings += guarded(script.path, local_devices.check_script, script, launches)
        if others or wiring.holds_configuration(script):
            from accumlint.config import crossfile

            for part in crossfile.SCRIPT_PARTS:
                findings += guarded(script.path, part, tree, script, launches)
            for launch in launches:
                findings += guarded(launch.path, crossfile.launch_line, tree, launch, script)
    for launch in (launch for launches in launched.values() for launch in launches):
        from accumlint.config import crossfile

        findings += guarded(launch.path, crossfile.launch_line, tree, launch, None)
    return findings


def guarded(path: str, part: Callable[..., Iterable[Finding]], *arguments: Any) -> list[Finding]:
    """What ``part`` finds; a mistake of ours in it costs its findings, said openly, and never the run."""
    try:
        return list(part(*arguments))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other parts still speak
        problem = Problem(
            f"internal error in {part.__name__} ({type(error).__name__}: {error}); please report it",
            1,
            1,
            "internal",
        )
        return [_incomplete(path, problem)]


def posix(path: str) -> str:
    return path.replace("\\", "/")


def gather(files: Sequence[SourceFile]) -> Gathered:
    """Reads what can matter; a file that no sieve lets through costs a scan of its bytes."""
    tree = Tree(paths=tuple(sorted(posix(file.path) for file in files)))
    tree.index()
    pins: list[Pin] = []
    findings: list[Finding] = []
    for file in sorted(files, key=lambda file: posix(file.path)):
        path, data = posix(file.path), file.data
        findings += guarded(path, _read_one, path, data, tree, pins)
    return Gathered(tree, pins, findings)


def _read_one(path: str, data: bytes, tree: Tree, pins: list[Pin]) -> list[Finding]:
    """Adds one file to the tree; returns what its reading says."""
    findings: list[Finding] = []
    if is_dependency_file(path):
        from accumlint.config import advisories
        from accumlint.config.sources.dependencies import read_pins

        pins += read_pins(path, data, advisories.wanted())
    if can_be_dialect(path, data):
        from accumlint.config.dialects import recognise
        from accumlint.config.readers import read

        document = read(path, data)
        found = recognise(document)
        if found:
            tree.views[path] = found
        if found or document.roots:
            tree.documents.append(document)
        findings += _reading_problems(document, found, data)
    if can_be_launch(path, data) and len(data) <= MAX_TEXT:
        from accumlint.config import local_devices
        from accumlint.config.sources.launch import read_launches

        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        launches, shell = read_launches(path, text)
        tree.launches += launches
        findings += local_devices.check_shell(path, shell, launches)
    if can_be_script(path, data) and len(data) <= MAX_TEXT:
        tree.scripts.add(path, data)
    return findings


def _reading_problems(document: Document, found: list[View], data: bytes) -> list[Finding]:
    """What to say about a configuration that could not be read, or only leniently."""
    problem = document.problem
    if problem is not None:
        if problem.kind in ("template", "data") or document.format == "python":
            return []
        if not found and not _looks_like_ours(document.format, data):
            return []
        if problem.kind in ("too-large", "encoding"):
            # a vocabulary or a table of results can hold any word: only telling keys count
            return [_incomplete(document.path, problem)] if _TELLING.search(data) else []
        mark = Mark(problem.line, problem.column, problem.line, problem.column)
        # DeepSpeed's own reader takes Hjson, which is wider than JSON: what is broken here may run there
        severity = Severity.WARNING if document.format == "json" else None
        return [report("syntax-error", document.path, mark, problem.message, severity=severity)]
    if document.laxity is not None:
        strict = next((view for view in found if view.dialect.strict), None)
        if strict is not None:
            mark = Mark(
                document.laxity.line, document.laxity.column, document.laxity.line, document.laxity.column
            )
            return [
                report(
                    "syntax-error",
                    document.path,
                    mark,
                    f"{document.laxity.message}: {strict.dialect.title} refuses the file",
                )
            ]
    return []


_TELLING = re.compile(
    rb"""(?m)(["']|^[ \t-]*)(gradient_accumulation_steps|accumulate_grad_batches|(train_)?micro_batch_size\w*|train_batch_size|global_\w*batch_size)["']?\s*[:=]"""
)


def _looks_like_ours(kind: str, data: bytes) -> bool:
    """Whether a file that could not be parsed has all the keys of one detecting group, written as keys."""
    from accumlint.config.dialects import dialects

    shape = {"json": rb'"%s"\s*:', "yaml": b"(?m)^[ \t-]*%s[ \t]*:", "toml": b"(?m)^[ \t]*%s[ \t]*="}.get(
        kind
    )
    if shape is None:
        return False
    return any(
        all(
            re.search(shape % re.escape(part.encode()), data)
            for evidence in group
            for part in evidence.key.split(".")
        )
        for dialect in dialects()
        if kind in dialect.formats and dialect.priority >= 0
        for group in dialect.detect
    )


def _incomplete(path: str, problem: Problem) -> Finding:
    mark = Mark(problem.line, problem.column, problem.line, problem.column)
    return report("analysis-incomplete", path, mark, f"not audited: {problem.message}")


def settle(findings: Iterable[Finding], originals: dict[str, str]) -> list[Finding]:
    """Sorted, without repetitions, with the paths as they were given.

    One fault is reported once: an accumulation that a joined script leaves unwired replaces the finding that the
    configuration alone gives, and of two findings of one rule at one place the one that knows more stays.
    """
    found = list(findings)
    covered = {
        (related.span.path, related.span.line)
        for finding in found
        if finding.name == "accum-not-wired"
        for related in finding.related
    }
    best: dict[tuple, Finding] = {}
    for finding in sorted(found, key=lambda f: (f.sort_key(), -len(f.related))):
        if finding.name == "accum-not-wired" and (finding.span.path, finding.span.line) in covered:
            continue
        key = (finding.rule, finding.span.path, finding.span.line, finding.span.column, _topic(finding))
        kept = best.get(key)
        if kept is None or (finding.severity, finding.confidence, len(finding.related)) > (
            kept.severity,
            kept.confidence,
            len(kept.related),
        ):
            best[key] = finding

    def original(finding: Finding) -> Finding:
        span = replace(finding.span, path=originals.get(finding.span.path, finding.span.path))
        related = tuple(
            replace(r, span=replace(r.span, path=originals.get(r.span.path, r.span.path)))
            for r in finding.related
        )
        return replace(finding, span=span, related=related)

    return sorted((original(finding) for finding in best.values()), key=Finding.sort_key)


def _topic(finding: Finding) -> str:
    """What tells two findings of one rule at one place apart."""
    return str(finding.evidence.get("advisory", ""))
