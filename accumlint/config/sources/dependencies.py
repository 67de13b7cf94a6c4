"""Dependency files: which version of which package a run gets, and where that is written.

Requirement texts and versions are PEP 508 and PEP 440, read by ``packaging``; conda's ``=`` pins are
translated. Only the packages asked for are returned.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from accumlint.config.readers import read
from accumlint.config.sources.by_name import CONDA
from accumlint.config.sources.shell import Shell
from accumlint.config.tree import Entry, Listing, Mark, Scalar, Table

@dataclass(frozen=True)
class Pin:
    """One stated version requirement. ``version`` is set when exactly one version can be meant."""

    package: str
    specifier: SpecifierSet
    version: Version | None
    path: str
    mark: Mark
    text: str


def _pin(text: str, path: str, mark: Mark, wanted: frozenset[str]) -> Pin | None:
    text = text.strip()
    if not text or text[0] in "-#":
        return None
    try:
        requirement = Requirement(re.split(r"\s+#|\s+--|\s*\\$", text)[0].strip())
    except InvalidRequirement:
        return None
    name = canonicalize_name(requirement.name)
    if name not in wanted or requirement.url:
        return None
    return Pin(name, requirement.specifier, exact(requirement.specifier), path, mark, text)


def exact(specifier: SpecifierSet) -> Version | None:
    """The one version that ``==X`` (without a star) or ``===X`` fixes."""
    for part in specifier:
        if part.operator in ("==", "===") and not part.version.endswith(".*"):
            try:
                return Version(part.version)
            except InvalidVersion:
                return None
    return None


def _line_mark(line: int, text: str, find: str) -> Mark:
    column = max(text.find(find), 0) + 1
    return Mark(line, column, line, column + len(find))


def read_pins(path: str, data: bytes, wanted: frozenset[str]) -> list[Pin]:
    """The pins of the wanted packages (canonical names) in one dependency file. Never raises."""
    lowered = data.lower()
    if not any(name.encode() in lowered or name.replace("-", "_").encode() in lowered for name in wanted):
        return []
    text = data.decode("utf-8", "replace")
    name = posixpath.basename(path)
    try:
        if name.endswith(".lock"):
            return list(_lock(path, text, wanted))
        if name == "pyproject.toml":
            return list(_pyproject(path, data, wanted))
        if name == "setup.cfg":
            return list(_setup_cfg(path, text, wanted))
        if CONDA.match(name):
            return list(_conda(path, data, wanted))
        if "dockerfile" in name.lower():
            return list(_dockerfile(path, text, wanted))
        return list(_lines(path, text, wanted))
    except (InvalidSpecifier, RecursionError):
        return []


def _lines(path: str, text: str, wanted: frozenset[str]) -> Iterator[Pin]:
    for number, line in enumerate(text.split("\n"), 1):
        body = line.strip()
        pin = _pin(body, path, _line_mark(number, line, body.split(" #")[0].strip()), wanted)
        if pin:
            yield pin


_LOCK_NAME = re.compile(r'^name = "([^"]+)"\s*$')
_LOCK_VERSION = re.compile(r'^version = "([^"]+)"\s*$')


def _lock(path: str, text: str, wanted: frozenset[str]) -> Iterator[Pin]:
    """``[[package]]`` tables of uv, poetry and pdm: line-shaped by their writers, so lines are enough."""
    package = ""
    for number, line in enumerate(text.split("\n"), 1):
        if line.startswith("[["):
            package = ""
        elif match := _LOCK_NAME.match(line.rstrip("\r")):
            package = canonicalize_name(match.group(1))
        elif (match := _LOCK_VERSION.match(line.rstrip("\r"))) and package in wanted:
            try:
                version = Version(match.group(1))
            except InvalidVersion:
                continue
            column = line.index(match.group(1)) + 1
            mark = Mark(number, column, number, column + len(match.group(1)))
            yield Pin(package, SpecifierSet(f"=={version}"), version, path, mark, f"{package} {version}")
            package = ""


def _strings(entry: Entry) -> Iterator[Scalar]:
    if isinstance(entry.node, Listing):
        yield from (
            item for item in entry.node.items if isinstance(item, Scalar) and isinstance(item.value, str)
        )


def _pyproject(path: str, data: bytes, wanted: frozenset[str]) -> Iterator[Pin]:
    document = read(path, data)
    lines = document.text.split("\n")

    def located(scalar: Scalar) -> Mark:
        # an item of an array has its array's position: find its own line from there on
        quoted = str(scalar.value)
        for number in range(scalar.mark.line, len(lines) + 1):
            if quoted in lines[number - 1]:
                return _line_mark(number, lines[number - 1], quoted)
        return scalar.mark

    for table in document.tables():
        lists = [table.find("project.dependencies")]
        for groups in (table.find("project.optional-dependencies"), table.find("dependency-groups")):
            if groups is not None and isinstance(groups.node, Table):
                lists += groups.node.winners()
        for entry in lists:
            for scalar in _strings(entry) if entry is not None else ():
                pin = _pin(scalar.value, path, located(scalar), wanted)
                if pin:
                    yield pin
        poetry = table.find("tool.poetry.dependencies")
        if poetry is not None and isinstance(poetry.node, Table):
            for entry in poetry.node.winners():
                value = entry.value
                if isinstance(entry.node, Table):
                    inner = entry.node.find("version")
                    value = inner.value if inner is not None else None
                if isinstance(value, str) and canonicalize_name(entry.key) in wanted:
                    pin = _pin(entry.key + _poetry(value), path, entry.mark, wanted)
                    if pin:
                        yield pin


def _poetry(text: str) -> str:
    """A poetry constraint as PEP 440: ``^4.40`` and ``~4.40`` have upper bounds, a bare version is exact."""
    text = text.strip()
    match = re.fullmatch(r"([\^~])\s*(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    if match:
        major, minor = int(match.group(2)), int(match.group(3) or 0)
        lower = text[1:].strip()
        if match.group(1) == "^" and major > 0:
            return f">={lower},<{major + 1}"
        return f">={lower},<{major}.{minor + 1}"
    return f"=={text}" if re.match(r"\d", text) else "" if text == "*" else text


def _setup_cfg(path: str, text: str, wanted: frozenset[str]) -> Iterator[Pin]:
    inside = False
    for number, line in enumerate(text.split("\n"), 1):
        if re.match(r"\s*\[", line):
            inside = line.strip() in ("[options]", "[options.extras_require]")
        elif inside:
            body = re.sub(r"^\s*[\w-]+\s*=\s*(?=[A-Za-z])", "", line).strip()
            pin = _pin(body, path, _line_mark(number, line, body), wanted)
            if pin:
                yield pin


def _conda(path: str, data: bytes, wanted: frozenset[str]) -> Iterator[Pin]:
    for table in read(path, data).tables():
        entry = table.find("dependencies")
        if entry is None or not isinstance(entry.node, Listing):
            continue
        for item in entry.node.items:
            if isinstance(item, Scalar) and isinstance(item.value, str):
                text = re.sub(r"^[\w-]+::", "", item.value.strip())
                match = re.fullmatch(r"([\w.-]+)\s*=\s*(\d[\w.]*)(=[\w.*]+)?", text)
                if match:
                    # conda's single "=" is a prefix match
                    text = f"{match.group(1)}=={match.group(2)}" + (
                        "" if match.group(2).count(".") >= 2 else ".*"
                    )
                pin = _pin(text, path, item.mark, wanted)
                if pin:
                    yield pin
            elif isinstance(item, Table) and (pip := item.find("pip")) is not None:
                for scalar in _strings(pip):
                    pin = _pin(scalar.value, path, scalar.mark, wanted)
                    if pin:
                        yield pin


def _dockerfile(path: str, text: str, wanted: frozenset[str]) -> Iterator[Pin]:
    """``RUN … pip install …`` lines, as the shell would split them."""
    shown = re.sub(r"(?im)^(\s*)RUN\s", lambda m: " " * len(m.group()), text)
    shown = re.sub(r"(?im)^(\s*)(?:ARG|ENV)\s+(?=[A-Za-z_]\w*=)", lambda m: " " * len(m.group()), shown)
    for command in Shell(shown).commands():
        words = [arg.text for arg in command.args]
        if "install" not in words or not any(
            posixpath.basename(w).startswith("pip") or w in ("pip", "uv") for w in words[:4]
        ):
            continue
        for arg in command.args[words.index("install") + 1 :]:
            pin = _pin(arg.text, path, arg.mark, wanted) if arg.known else None
            if pin:
                yield pin
