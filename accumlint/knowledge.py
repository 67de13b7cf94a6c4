"""Loads the knowledge in ``rules/``: rule pages, vocabulary, dialects, advisories.

In a wheel the folder is ``accumlint/rules``, in a checkout it stands beside the package; everything else is
the same. Pages are read when asked for, once per process; what was parsed once is kept (:mod:`accumlint.compiled`).
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accumlint import compiled
from accumlint.findings import Severity


class KnowledgeError(ValueError):
    """A file below ``rules/`` is malformed; the message names the file."""


@dataclass(frozen=True)
class Example:
    """One fenced block of a rule page.

    ``lines`` are the 1-based lines, within ``code``, at which the rule must report (empty for good ones). Blocks
    that belong to one run share a ``group`` and each name their ``file``; one of a bad group has marks.
    """

    kind: str  # bad | good
    code: str
    lines: tuple[int, ...] = ()
    title: str = ""
    page_line: int = 0
    language: str = "python"
    file: str = ""
    group: str = ""


@dataclass(frozen=True)
class Rule:
    """One rule page: front matter, prose sections by heading, examples."""

    code: str
    name: str
    clause: str
    severity: Severity
    witnesses: tuple[str, ...]
    fix: str
    since: str
    references: tuple[str, ...] = ()
    sections: dict[str, str] = field(default_factory=dict)
    examples: tuple[Example, ...] = ()
    path: Path | None = None

    @property
    def summary(self) -> str:
        """The first paragraph of *What it finds*, on one line."""
        return " ".join(self.sections.get("What it finds", "").strip().split("\n\n")[0].split())


@functools.cache
def root() -> Path:
    """The folder that holds the knowledge."""
    inside = Path(__file__).parent / "rules"
    beside = Path(__file__).parent.parent / "rules"
    for candidate in (inside, beside):
        if (candidate / "vocabulary").is_dir():
            return candidate
    raise KnowledgeError(f"no rules folder at {inside} or {beside}: the installation is incomplete")


def _parse_yaml(text: str | bytes) -> Any:
    """YAML of ours (small and trusted, and still read by a safe loader); raises yaml.YAMLError."""
    import yaml

    # the C loader reads the same YAML ten times faster
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader


def _error_in_yaml(error: Exception) -> bool:
    """Whether the YAML reader raised it (which is not imported where nothing was parsed)."""
    return any(kind.__name__ == "YAMLError" for kind in type(error).__mro__)


def load_yaml(path: Path) -> Any:
    """The content of one YAML file of ours; raises :class:`KnowledgeError`."""
    try:
        return compiled.load(str(path), _parse_yaml, [__file__])
    except Exception as error:
        if _error_in_yaml(error):
            raise KnowledgeError(f"{path}: {error}") from error
        raise


def folder(name: str) -> Iterator[tuple[str, Any]]:
    """(stem, content) of every YAML file in one folder of the knowledge, by name."""
    place = root() / name
    for entry in sorted(os.listdir(place)):
        if entry.endswith(".yaml"):
            yield entry.removesuffix(".yaml"), load_yaml(place / entry)


_FENCE = re.compile(
    r"^```(python|yaml|json|toml|bash|text) +(bad|good)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_MARK = re.compile(r"\s*(?:#|//)\s*<-\s*here\s*$")
_OPTION = re.compile(r"\b(file|group)=(\S+)")
_HEADING = re.compile(r"^## +(.+?)\s*$", re.MULTILINE)


def parse_page(text: str, path: Path) -> Rule:
    """A rule page as data.

    A bad example marks each line to be reported with a trailing ``# <- here`` (``// <- here`` in JSON); the
    marks are not part of the code. ``file=NAME`` and ``group=NAME`` in a title name the file that a block stands
    for and the run that it belongs to. Raises :class:`KnowledgeError` with the path when the page is malformed.
    """
    if not text.startswith("---\n") or "\n---\n" not in text[4:]:
        raise KnowledgeError(f"{path}: no front matter")
    head, body = text[4:].split("\n---\n", 1)
    try:
        meta = _parse_yaml(head)
        severity = Severity[meta["severity"].upper()]
        examples = []
        first_line = text[: len(text) - len(body)].count("\n") + 1
        for match in _FENCE.finditer(body):
            language, kind, title, code = match.groups()
            options = dict(_OPTION.findall(title))
            title = " ".join(_OPTION.sub("", title).split())
            lines = code.split("\n")
            marked = tuple(i for i, line in enumerate(lines, 1) if _MARK.search(line))
            code = "\n".join(_MARK.sub("", line) for line in lines)
            page_line = first_line + body[: match.start()].count("\n")
            examples.append(Example(kind, code, marked, title, page_line, language, **options))
        marks: dict[tuple[str, object], bool] = {}
        for number, example in enumerate(examples):
            run = (example.kind, example.group or number)
            marks[run] = marks.get(run, False) or bool(example.lines)
        if any((kind == "bad") != marked for (kind, _), marked in marks.items()):
            raise KnowledgeError(f"{path}: a bad example marks its lines with '# <- here', a good one has none")
        prose = _FENCE.sub("", body)
        headings = list(_HEADING.finditer(prose))
        ends = [h.start() for h in headings[1:]] + [len(prose)]
        sections = {h.group(1): prose[h.end() : end].strip() for h, end in zip(headings, ends)}
        return Rule(
            code=meta["code"],
            name=meta["name"],
            clause=meta["clause"],
            severity=severity,
            witnesses=tuple(meta["witnesses"]),
            fix=str(meta["fix"]),
            since=str(meta["since"]),
            references=tuple(meta.get("references") or ()),
            sections=sections,
            examples=tuple(examples),
            path=path,
        )
    except Exception as error:
        if isinstance(error, (KeyError, TypeError, AttributeError)) or _error_in_yaml(error):
            raise KnowledgeError(f"{path}: {error!r} in the front matter") from error
        raise


def _plain(rule: Rule) -> tuple[Any, ...]:
    """A rule page as the plain data that can be kept; :func:`_from_plain` is its inverse."""
    examples = tuple(
        (e.kind, e.code, e.lines, e.title, e.page_line, e.language, e.file, e.group) for e in rule.examples
    )
    return (
        rule.code, rule.name, rule.clause, rule.severity.name, rule.witnesses, rule.fix, rule.since, rule.references,
        rule.sections, examples,
    )  # fmt: skip


def _from_plain(plain: tuple[Any, ...], path: Path) -> Rule:
    code, name, clause, severity, *others, examples = plain
    return Rule(code, name, clause, Severity[severity], *others, tuple(Example(*each) for each in examples), path)


def _load_page(path: str) -> Rule:
    """One rule page; raises :class:`KnowledgeError`."""
    made = Path(path)
    plain = compiled.load(path, lambda data: _plain(parse_page(data.decode("utf-8"), made)), [__file__])
    return _from_plain(plain, made)


@functools.cache
def _paths() -> tuple[str, ...]:
    """The paths of all rule pages, sorted."""
    found = []
    for clause in os.listdir(root()):
        if clause.startswith("C"):
            place = os.path.join(root(), clause)
            found += [os.path.join(place, entry) for entry in os.listdir(place) if entry.endswith(".md")]
    return tuple(sorted(found))


@functools.cache
def page(code: str) -> Rule | None:
    """The page of one rule, the others left unread; None when there is none."""
    found = next((path for path in _paths() if os.path.basename(path).startswith(f"{code}-")), None)
    return _load_page(found) if found is not None else None


@functools.cache
def rules() -> dict[str, Rule]:
    """All rules by code, in the order of their codes."""
    pages = [_load_page(path) for path in _paths()]
    table = {page.code: page for page in sorted(pages, key=lambda page: page.code)}
    if len(table) != len(pages):
        raise KnowledgeError("two rule pages share a code")
    return table


def find_rule(code_or_name: str) -> Rule | None:
    """The rule with that code (``ACC202``, any case) or name (``scheduler-per-microbatch``)."""
    wanted = code_or_name.strip()
    table = rules()
    if wanted.upper() in table:
        return table[wanted.upper()]
    return next((rule for rule in table.values() if rule.name == wanted.lower()), None)
