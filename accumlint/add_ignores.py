"""``check --add-ignores``: a suppression comment for everything that is found now, so that only new findings
speak.

A comment goes to the end of its statement where that is one line, else on a line of its own above it, else
into the list of a comment that already speaks for it. A file is only changed when afterwards its comments
hide what they shall and nothing but comments differs; every other byte stays.
"""

from __future__ import annotations

import json
import os
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from accumlint import suppression
from accumlint.findings import Finding
from accumlint.report.model import Report
from accumlint.rewriting import RewriteError, rewrite
from accumlint.runner import read
from accumlint.static import notebooks
from accumlint.static.discovery import CONFIGURATION, Target, is_notebook
from accumlint.static.fixes import editing

# The audit's word about itself: a comment can't mend a file that isn't read, or a comment that hides nothing.
_NOT_HIDDEN = frozenset(("ACC001", "ACC002"))
_SHELL = frozenset((".sh", ".bash", ".slurm", ".sbatch", ".txt"))


class Added(NamedTuple):
    """One file with its comments: the new bytes, the findings that they hide, and why others are not hidden."""

    data: bytes
    hidden: tuple[Finding, ...] = ()
    left: tuple[tuple[Finding, str], ...] = ()


class _Statement(NamedTuple):
    first: int
    last: int


class _Insertion(NamedTuple):
    """Text that goes before a column of a line, both from 1; a whole line if it ends with a line end."""

    line: int
    column: int
    text: str


class _NotPossible(ValueError):
    """Why no comment can be put into a file."""


def add(
    name: str, data: bytes, findings: Sequence[Finding], reason: str, configuration: bool = False
) -> Added:
    """Comments for the findings of one file. Never raises for what the file holds."""
    wanted = [finding for finding in findings if finding.rule not in _NOT_HIDDEN]
    left = [(f, "no comment mends it") for f in findings if f.rule in _NOT_HIDDEN]
    if not wanted:
        return Added(data, (), tuple(left))
    reason = " ".join(reason.split())
    try:
        if configuration:
            done = _configuration(name, data, wanted, reason)
        elif is_notebook(name):
            done = _notebook(data, wanted, reason)
        else:
            done = _script(data, wanted, reason)
    except _NotPossible as error:
        return Added(data, (), (*left, *((finding, str(error)) for finding in wanted)))
    return done._replace(left=(*left, *done.left))


def comment_on(report: Report, targets: Sequence[Target], reason: str) -> list[str]:
    """Write the comments for all findings of a report; returns what was done and what not, a line each."""
    by_name = {target.name: target for target in targets}
    by_path: dict[str, list[Finding]] = {}
    for finding in report.findings:
        by_path.setdefault(finding.span.path, []).append(finding)
    hidden = files = 0
    told = []
    for path, found in sorted(by_path.items()):
        left = [(finding, "its file is not among those that are checked") for finding in found]
        target = by_name.get(path)
        if target is not None:
            try:
                before = read(target, b"")
                done = add(path, before, found, reason, target.kind == CONFIGURATION)
                if done.data != before:
                    rewrite(target.path, before, done.data)
                    files += 1
                hidden, left = hidden + len(done.hidden), list(done.left)
            except (OSError, RewriteError) as error:
                left = [(finding, getattr(error, "strerror", None) or str(error)) for finding in found]
        for finding, why in left:
            where = report.where(path, finding.span.line, finding.span.column)
            told.append(f"{path}{where}: {finding.rule} is not suppressed: {why}")
    plural = "" if hidden == 1 else "s"
    return [
        f"{hidden} finding{plural} suppressed by new comments in {files} file{'' if files == 1 else 's'}",
        *told,
    ]


# --- Python ----------------------------------------------------------------------------------------------


def _script(data: bytes, findings: Sequence[Finding], reason: str) -> Added:
    known = editing.decoded(data)
    if known is None:
        raise _NotPossible("its encoding can't be read back")
    text, encoding = known
    lines = editing.Lines(text)
    insertions, left = _plan([data], lines, findings, reason, lines.ending(1) or "\n")
    new = editing.encoded(_inserted(lines, insertions), encoding)
    if new is None:
        raise _NotPossible(f"its encoding {encoding} lacks a character of the reason")
    return _checked(data, [data], new, [new], findings, insertions, left)


def _notebook(data: bytes, findings: Sequence[Finding], reason: str) -> Added:
    try:
        before = notebooks.read(data)
    except notebooks.NotebookError as error:
        raise _NotPossible("it is no notebook that can be read") from error
    if before is None or before.raw.encode() != data:
        raise _NotPossible("only notebooks in plain UTF-8 are changed")
    insertions, left = _plan(before.programs, editing.Lines(before.text), findings, reason, "\n")
    raw, end = [], len(before.raw)
    for insertion in sorted(insertions, reverse=True):
        offset = before.offset(insertion.line, insertion.column)
        raw += [before.raw[offset:end], json.dumps(insertion.text)[1:-1]]
        end = offset
    new = "".join(reversed([*raw, before.raw[:end]])).encode()
    after = notebooks.read(new)
    if after is None:
        raise _NotPossible("the comments could not be put in without changing anything else")
    return _checked(data, before.programs, new, after.programs, findings, insertions, left)


def _statements(program: bytes) -> Iterator[_Statement]:
    first = 0
    for token in suppression.tokens(program):
        if token.type == tokenize.NEWLINE:
            yield _Statement(first or token.start[0], token.start[0])
            first = 0
        elif token.type not in suppression.LAYOUT and token.type != tokenize.COMMENT and not first:
            first = token.start[0]


def _plan(
    programs: Sequence[bytes], lines: editing.Lines, findings: Sequence[Finding], reason: str, line_end: str
) -> tuple[list[_Insertion], list[tuple[Finding, str]]]:
    """What to insert where, and the findings for which there is no place."""
    statements = [each for program in programs for each in _statements(program)]
    present = [each for program in programs for each in suppression.in_python(program)]
    rules: dict[_Statement, set[str]] = {}
    left = []
    for finding in findings:
        own = next((s for s in statements if s.first <= finding.span.line <= s.last), None)
        if own is None:
            left.append((finding, "it stands in no statement"))
        else:
            rules.setdefault(own, set()).add(finding.rule)
    return [
        _insertion(s, sorted(codes), lines, present, reason, line_end) for s, codes in rules.items()
    ], left


def _insertion(
    statement: _Statement,
    codes: Sequence[str],
    lines: editing.Lines,
    present: Sequence[suppression.Suppression],
    reason: str,
    line_end: str,
) -> _Insertion:
    for each in present:
        if each.rules and not each.complaint and each.last_line != suppression.LAST_LINE:
            covers = each.first_line <= statement.first and statement.last <= each.last_line
            bracket = lines.content(each.line).find("]", each.column - 1)
            if covers and bracket >= 0:
                return _Insertion(each.line, bracket + 1, "".join(f", {code}" for code in codes))
    comment = _comment(codes, reason)
    content = lines.content(statement.first)
    if statement.first == statement.last and "accumlint:" not in content:
        return _Insertion(statement.last, len(content.rstrip()) + 1, f"  {comment}")
    indent = content[: len(content) - len(content.lstrip())]
    return _Insertion(statement.first, 1, f"{indent}{comment}{line_end}")


def _comment(codes: Iterable[str], reason: str) -> str:
    return f"# accumlint: ignore[{', '.join(codes)}] {reason}".rstrip()


def _inserted(lines: editing.Lines, insertions: Iterable[_Insertion]) -> str:
    offsets = [(lines.offset(line, column), text) for line, column, text in insertions]
    return editing.apply(lines.text, [editing.Change(offset, offset, text) for offset, text in offsets])


def _checked(
    data: bytes,
    programs: Sequence[bytes],
    new: bytes,
    new_programs: Sequence[bytes],
    findings: Sequence[Finding],
    insertions: Sequence[_Insertion],
    left: Sequence[tuple[Finding, str]],
) -> Added:
    """The change, if its comments hide what they shall and nothing else differs."""
    if [_code(each) for each in programs] != [_code(each) for each in new_programs]:
        raise _NotPossible("the comments could not be put in without changing anything else")
    present = [each for program in new_programs for each in suppression.in_python(program)]
    return _settled(new, present, findings, insertions, left)


def _settled(
    new: bytes,
    present: Sequence[suppression.Suppression],
    findings: Sequence[Finding],
    insertions: Sequence[_Insertion],
    left: Sequence[tuple[Finding, str]],
) -> Added:
    unplaced = [finding for finding, _ in left]
    hidden = [finding for finding in findings if finding not in unplaced]
    for finding in hidden:
        line = finding.span.line
        line += sum(1 for each in insertions if each.column == 1 and each.line <= line)
        speaking = (each for each in present if each.first_line <= line <= each.last_line)
        if not any(finding.rule in each.rules for each in speaking):
            raise _NotPossible("the comments would not be read as meant")
    return Added(new, tuple(hidden), tuple(left))


def _code(program: bytes) -> list[tuple[int, str]]:
    """The tokens that mean something."""
    without = {tokenize.COMMENT, tokenize.NL}
    return [(token.type, token.string) for token in suppression.tokens(program) if token.type not in without]


# --- configurations --------------------------------------------------------------------------------------


def _configuration(name: str, data: bytes, findings: Sequence[Finding], reason: str) -> Added:
    suffix = os.path.splitext(name)[1].lower()
    if suffix not in (".yaml", ".yml", ".toml") and suffix not in _SHELL:
        raise _NotPossible("files of its kind take no comments at the end of a line")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _NotPossible("its encoding can't be read back") from error
    lines = editing.Lines(text)
    rules: dict[int, set[str]] = {}
    left: list[tuple[Finding, str]] = []
    for finding in findings:
        line = finding.span.line
        content = lines.content(line) if line <= len(lines) else ""
        before = lines.content(line - 1) if 1 < line <= len(lines) else ""
        goes_on = content.rstrip().endswith("\\") or before.rstrip().endswith("\\")
        if not content.strip() or "#" in content or (suffix in _SHELL and goes_on):
            left.append((finding, "its line takes no comment"))
        else:
            rules.setdefault(line, set()).add(finding.rule)
    insertions = [
        _Insertion(line, len(lines.content(line).rstrip()) + 1, f"  {_comment(sorted(codes), reason)}")
        for line, codes in rules.items()
    ]
    new = _inserted(lines, insertions).encode("utf-8")
    if suffix not in _SHELL and _value(suffix, text) != _value(suffix, new.decode("utf-8")):
        raise _NotPossible("the comments could not be put in without changing anything else")
    present = suppression.in_configuration(new)
    return _settled(new, present, findings, insertions, left)


def _value(suffix: str, text: str) -> object:
    """What a configuration says."""
    if suffix == ".toml":
        try:
            import tomllib
        except ModuleNotFoundError:  # Python 3.10
            import tomli as tomllib
        try:
            return tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise _NotPossible("it can't be parsed") from error
    import yaml

    try:  # events carry every value and its tag, and nothing is built from them
        return [
            (type(event).__name__, getattr(event, "value", None), getattr(event, "tag", None))
            for event in yaml.parse(text, Loader=yaml.SafeLoader)
        ]
    except yaml.YAMLError as error:
        raise _NotPossible("it can't be parsed") from error
