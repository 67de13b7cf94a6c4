"""What earlier runs found out about a file, and about the configurations of a run: valid as long as it rests on the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from accumlint.cache import plain
from accumlint.cache.stamp import stamp
from accumlint.cache.store import Store
from accumlint.findings import Finding
from accumlint.runner import EngineChoice, Outcome
from accumlint.static.consulted import Unchanged, digest


class Results:
    """Outcomes of files and findings on configurations, kept in one folder.

    ``choice`` is what the engine is told; ``working_folder`` is where relative names lead from. Both are part of
    every key, and so is the tool itself.
    """

    def __init__(self, folder: str, choice: EngineChoice, working_folder: str) -> None:
        self.store = Store(folder)
        self._unchanged = Unchanged()
        told = json.dumps(list(choice), sort_keys=True, default=repr)
        self._basis = digest("\0".join((stamp(), working_folder, told)).encode("utf-8", "surrogateescape"))

    def key(self, *parts: str) -> str:
        """A key of these parts under everything that all results rest on."""
        return digest("\0".join((self._basis, *parts)).encode("utf-8", "surrogateescape"))

    def find(self, name: str, content: str) -> Outcome | None:
        """The outcome of a file with that digest, if nothing else that it rests on has changed."""
        held = self.store.read("files", self.key(name, content))
        try:
            if held is None or not self._unchanged(held["consulted"]):
                return None
            return plain.outcome_from_plain(name, held)
        except (KeyError, TypeError, ValueError, AttributeError):
            return None  # whole, and yet not ours

    def keep(self, content: str, outcome: Outcome) -> None:
        """Keep an outcome of a file with that digest; one that chance had a part in is not kept."""
        if outcome.failure or outcome.consulted is None or outcome.content != content:
            return
        try:
            made = plain.outcome_to_plain(outcome)
        except plain.NotPlain:
            return
        self.store.write("files", self.key(outcome.name, content), {**made, "consulted": outcome.consulted})

    def find_configured(self, files: Iterable[tuple[str, bytes]]) -> tuple[Finding, ...] | None:
        """What the audit of configurations said of exactly these files: (name, content) in order."""
        held = self.store.read("configured", self._configured(files))
        try:
            return None if held is None else plain.findings_from_plain(held)
        except (TypeError, ValueError):
            return None

    def keep_configured(self, files: Iterable[tuple[str, bytes]], findings: Iterable[Finding]) -> None:
        try:
            made = plain.findings_to_plain(findings)
        except plain.NotPlain:
            return
        self.store.write("configured", self._configured(files), made)

    def _configured(self, files: Iterable[tuple[str, bytes]]) -> str:
        return self.key(*(part for name, data in files for part in (name, digest(data))))

    def find_fixes(self, data: bytes, findings: Sequence[Finding]) -> tuple[Finding, ...] | None:
        """The findings of one file with their fixes, as they were offered before."""
        held = self.store.read("fixes", self._wanting_fixes(data, findings))
        try:
            if held is None or not self._unchanged(held["consulted"]):
                return None
            offered = plain.findings_from_plain(held["findings"])
            return offered if len(offered) == len(findings) else None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None

    def keep_fixes(
        self, data: bytes, findings: Sequence[Finding], offered: Sequence[Finding], consulted: dict[str, Any]
    ) -> None:
        try:
            made = plain.findings_to_plain(offered)
        except plain.NotPlain:
            return
        self.store.write("fixes", self._wanting_fixes(data, findings), {"findings": made, "consulted": consulted})

    def _wanting_fixes(self, data: bytes, findings: Sequence[Finding]) -> str:
        try:
            asked = json.dumps(plain.findings_to_plain(findings), sort_keys=True)
        except plain.NotPlain as error:
            asked = repr(error)
        return self.key(digest(data), asked)

    def finish(self) -> None:
        """At the end of a run: keep the folder small."""
        self.store.finish()
