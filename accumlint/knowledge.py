"""Loads the knowledge in ``rules/``: rule pages, vocabulary, dialects, advisories.

In a wheel the folder is ``accumlint/rules``, in a checkout it stands beside the package; everything else is
the same. Pages are read when asked for, once per process.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from accumlint.findings import Severity

try:  # the C loader reads the same YAML ten times faster
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # pragma: no cover - depends on how PyYAML was built
    from yaml import SafeLoader  # type: ignore[assignment]


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


def load_yaml(path: Path) -> Any:
    """The content of one YAML file of ours (safe loader; ours are small and trusted)."""
    try:
        with path.open(encoding="utf-8") as stream:
            return yaml.load(stream, Loader=SafeLoader)  # noqa: S506 - a safe loader
    except yaml.YAMLError as error:
        raise KnowledgeError(f"{path}: {error}") from error


def folder(name: str) -> Iterator[tuple[str, Any]]:
    """(stem, content) of every YAML file in one folder of the knowledge, by name."""
    for path in sorted((root() / name).glob("*.yaml")):
        yield path.stem, load_yaml(path)


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
        meta = yaml.load(head, Loader=SafeLoader)  # noqa: S506 - a safe loader
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
    except (KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise KnowledgeError(f"{path}: {error!r} in the front matter") from error


@functools.cache
def page(code: str) -> Rule | None:
    """The page of one rule, the others left unread; None when there is none."""
    found = next(iter(sorted(root().glob(f"C*/{code}-*.md"))), None)
    return parse_page(found.read_text(encoding="utf-8"), found) if found is not None else None


@functools.cache
def rules() -> dict[str, Rule]:
    """All rules by code, in the order of their codes."""
    pages = [parse_page(p.read_text(encoding="utf-8"), p) for p in sorted(root().glob("C*/*.md"))]
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
