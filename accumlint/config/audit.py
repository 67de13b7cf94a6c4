"""The audit: every file by itself, then all of them together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from accumlint.config import advisories, crossfile, local_devices, wiring
from accumlint.config.checks import audit_view
from accumlint.config.dialects import View, dialects, recognise
from accumlint.config.joins import Tree
from accumlint.config.names import report
from accumlint.config.readers import read
from accumlint.config.sieve import can_be_dialect, can_be_launch, can_be_script
from accumlint.config.sources.dependencies import Pin, is_dependency_file, read_pins
from accumlint.config.sources.launch import read_launches
from accumlint.config.sources.script import read_script
from accumlint.config.tree import Document, Mark, Problem
from accumlint.findings import Finding, Severity

MAX_TEXT = 4 * 1024 * 1024  # scripts and launch files above this are data


@dataclass(frozen=True)
class SourceFile:
    """One file as discovery found it: its path as it shall be reported, and its bytes."""

    path: str
    data: bytes


def audit(files: Sequence[SourceFile]) -> list[Finding]:
    """All findings on configurations, launch lines, dependency files and scripts of one tree, sorted.

    Never raises for what the files contain; runs none of their code; the order of ``files`` does not matter.
    """
    tree, pins, findings = gather(files)
    for path in sorted(tree.views):
        for view in tree.views[path]:
            findings += audit_view(view)
    for document in tree.documents:
        findings += local_devices.check_document(document)
    for script in tree.scripts.values():
        findings += wiring.audit_script(script)
        findings += local_devices.check_script(script)
    findings += crossfile.cross(tree)
    findings += advisories.match(tree, pins)
    return settle(findings, {posix(file.path): file.path for file in files})


def posix(path: str) -> str:
    return path.replace("\\", "/")


def gather(files: Sequence[SourceFile]) -> tuple[Tree, list[Pin], list[Finding]]:
    """Reads what can matter; a file that no sieve lets through costs a scan of its bytes."""
    tree = Tree(paths=tuple(sorted(posix(file.path) for file in files)))
    tree.index()
    pins: list[Pin] = []
    findings: list[Finding] = []
    for file in sorted(files, key=lambda file: posix(file.path)):
        path, data = posix(file.path), file.data
        try:
            _read_one(path, data, tree, pins, findings)
        except RecursionError:
            findings.append(_incomplete(path, Problem("nested too deeply", 1, 1, "too-large")))
    return tree, pins, findings


def _read_one(path: str, data: bytes, tree: Tree, pins: list[Pin], findings: list[Finding]) -> None:
    if is_dependency_file(path):
        pins += read_pins(path, data, advisories.wanted())
    if can_be_dialect(path, data):
        document = read(path, data)
        found = recognise(document)
        if found:
            tree.views[path] = found
        if found or document.roots:
            tree.documents.append(document)
        findings += _reading_problems(document, found, data)
    if can_be_launch(path, data) and len(data) <= MAX_TEXT:
        text = data.decode("utf-8", "replace").replace("\r\n", "\n")
        launches, shell = read_launches(path, text)
        tree.launches += launches
        findings += local_devices.check_shell(path, shell, launches)
    if can_be_script(path, data) and len(data) <= MAX_TEXT:
        script = read_script(path, data.decode("utf-8-sig", "replace"))
        if not isinstance(script, Problem):  # a broken script is reported by the reader of scripts
            tree.scripts[path] = script


def _reading_problems(document: Document, found: list[View], data: bytes) -> list[Finding]:
    """What to say about a configuration that could not be read, or only leniently."""
    problem = document.problem
    if problem is not None:
        if problem.kind in ("template", "data") or document.format == "python":
            return []
        if not found and not _looks_like_ours(document.format, data):
            return []
        if problem.kind in ("too-large", "encoding"):
            return [_incomplete(document.path, problem)]
        mark = Mark(problem.line, problem.column, problem.line, problem.column)
        # DeepSpeed's own reader takes Hjson, which is wider than JSON: what is broken here may run there
        severity = Severity.WARNING if document.format == "json" else None
        return [report("syntax-error", document.path, mark, problem.message, severity=severity)]
    if document.laxity is not None:
        strict = next((view for view in found if view.dialect.strict), None)
        if strict is not None:
            mark = Mark(document.laxity.line, document.laxity.column, document.laxity.line, document.laxity.column)
            return [report("syntax-error", document.path, mark, f"{document.laxity.message}: {strict.dialect.title} refuses the file")]
    return []


def _looks_like_ours(kind: str, data: bytes) -> bool:
    """Whether a file that could not be parsed has all the keys of one detecting group, written as keys."""
    shape = {"json": rb'"%s"\s*:', "yaml": b"(?m)^[ \t-]*%s[ \t]*:", "toml": b"(?m)^[ \t]*%s[ \t]*="}.get(kind)
    if shape is None:
        return False
    return any(
        all(re.search(shape % re.escape(evidence.key.rpartition(".")[2].encode()), data) for evidence in group)
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
        (related.span.path, related.span.line) for finding in found if finding.name == "accum-not-wired" for related in finding.related
    }
    best: dict[tuple, Finding] = {}
    for finding in sorted(found, key=lambda f: (f.sort_key(), -len(f.related))):
        if finding.name == "accum-not-wired" and (finding.span.path, finding.span.line) in covered:
            continue
        key = (finding.rule, finding.span.path, finding.span.line, finding.span.column, _topic(finding))
        kept = best.get(key)
        if kept is None or (finding.severity, finding.confidence, len(finding.related)) > (kept.severity, kept.confidence, len(kept.related)):
            best[key] = finding

    def original(finding: Finding) -> Finding:
        span = replace(finding.span, path=originals.get(finding.span.path, finding.span.path))
        related = tuple(replace(r, span=replace(r.span, path=originals.get(r.span.path, r.span.path))) for r in finding.related)
        return replace(finding, span=span, related=related)

    return sorted((original(finding) for finding in best.values()), key=Finding.sort_key)


def _topic(finding: Finding) -> str:
    """What tells two findings of one rule at one place apart."""
    return str(finding.evidence.get("advisory", ""))


