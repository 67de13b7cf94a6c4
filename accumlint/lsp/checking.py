"""One document as it stands in an editor, checked as ``accumlint check`` would check its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from accumlint.audit import Asked, AuditError, audit
from accumlint.findings import Finding, Fix
from accumlint.settings import Settings, SettingsError, find
from accumlint.static.discovery import CONFIGURATION, STDIN, Collection, Target, collect, display_name
from accumlint.static.notebooks import Notebook


class Checked(NamedTuple):
    """What a check found in one document.

    ``name`` is the path that its findings carry, ``notebook`` the map of one, ``problem`` why nothing could
    be said.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    notebook: Notebook | None = None
    problem: str = ""


class Document(NamedTuple):
    """A document: the absolute path of its file (which need not exist), the folder that is open, and its
    bytes.
    """

    path: str
    folder: str
    data: bytes

    @property
    def name(self) -> str:
        return display_name(self.path, self.folder)


def _is_configuration(path: str, head: bytes) -> bool:
    from accumlint.config import may_be_configuration

    return may_be_configuration(path, head)


def _target(document: Document, settings: Settings) -> Target | None:
    """What would be checked; None where the settings, or what the file is, leave it out."""
    if not os.path.exists(document.path):
        return Target(document.name, document.path, STDIN)
    found = collect(
        [document.path], settings._replace(force_exclude=True), document.folder, _is_configuration
    )
    if not found.targets:
        return None
    (target,) = found.targets
    # a configuration is read from disk, where the files beside it are, too
    kind = CONFIGURATION if target.kind == CONFIGURATION else STDIN
    return Target(document.name, document.path, kind)


def check(document: Document) -> Checked:
    """The findings of a document that are its own; those of files that it imports belong to them."""
    name = document.name
    try:
        settings = find(os.path.dirname(document.path))
        target = _target(document, settings)
        if target is None:
            return Checked(name)
        baseline = os.path.join(settings.root, settings.baseline) if settings.baseline else ""
        if baseline and not os.path.exists(baseline):
            baseline = ""
        asked = Asked(baseline=baseline, working_folder=document.folder)
        collection = Collection((target,), {}, (), True)
        report, _ = audit([target], collection, settings._replace(jobs=1), asked, document.data)
    except (SettingsError, AuditError) as error:
        return Checked(name, problem=str(error))
    problem = "; ".join(message for _, message in report.summary.errors)
    own = tuple(finding for finding in report.findings if finding.span.path == name)
    return Checked(name, own, report.notebooks.get(name), problem)


def fixes(document: Document, findings: Sequence[Finding]) -> list[Fix | None]:
    """A fix, or None, for each of the findings."""
    from accumlint import runner
    from accumlint.static.engine import EngineSettings, Project
    from accumlint.static.fixes.offer import fixes_for

    settings = find(os.path.dirname(document.path))
    own = EngineSettings(vocabulary=settings.vocabulary)
    return runner.deep(fixes_for, document.data, document.name, findings, Project(settings.root), own)


def fixed(document: Document, findings: Sequence[Finding]) -> bytes:
    """The document after all safe fixes of the findings."""
    from accumlint import runner
    from accumlint.static.engine import EngineSettings, Project
    from accumlint.static.fixes.offer import fix_file

    settings = find(os.path.dirname(document.path))
    own = EngineSettings(vocabulary=settings.vocabulary)
    done = runner.deep(fix_file, document.data, document.name, findings, Project(settings.root), own, False)
    return done.source
