"""Suppression comments: ``# accumlint: ignore[ACC202] reason`` and ``# accumlint: ignore-file[...] reason``.

A comment names one or more rules by code or name. ``ignore`` speaks for one statement, from any of its
physical lines or from the comment lines right above it; ``ignore-file`` for the whole file. There is no
comment that hides everything: one that names no rule hides nothing and is reported.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from accumlint.findings import Finding, Span
from accumlint.own_findings import unused_suppression

MARK = b"accumlint:"  # a file without it is never tokenised

_COMMENT = re.compile(
    r"#\s*accumlint:\s*(?P<verb>ignore-file|ignore)\b\s*(?P<list>\[(?P<rules>[^\]]*)\])?", re.IGNORECASE
)
_UNKNOWN_VERB = re.compile(r"#\s*accumlint:\s*(?P<verb>[\w-]*)")
# outside Python there is no tokeniser to ask: a comment starts a line or follows white space
_PLAIN_COMMENT = re.compile(r"(?:^|\s)(#\s*accumlint:.*)$")


@dataclass(frozen=True)
class Suppression:
    """One comment: where it stands, which rules it names, and the lines (inclusive) that it speaks for."""

    line: int
    column: int
    end_column: int
    rules: tuple[str, ...]  # as written, stripped; codes in upper case, names in lower case
    first_line: int
    last_line: int
    complaint: str = ""  # why the comment can't be understood

    def speaks_for(self, finding: Finding) -> bool:
        return self.first_line <= finding.span.line <= self.last_line


LAST_LINE = 2**31  # of a comment that speaks for the whole file


def _canonical(rule: str) -> str:
    rule = rule.strip()
    return rule.upper() if rule[:3].upper() == "ACC" else rule.lower()


def _read_comment(text: str, line: int, column: int) -> Suppression | None:
    """The suppression in one comment, speaking for its own line until told otherwise."""
    match = _COMMENT.search(text)
    end = column + len(text.rstrip())
    if match is None:
        verb = _UNKNOWN_VERB.search(text)
        if verb is None:
            return None
        complaint = f"'accumlint: {verb['verb']}' is no comment of ours: write ignore[RULE] or ignore-file[RULE]"
        return Suppression(line, column, end, (), line, line, complaint)
    rules = tuple(_canonical(rule) for rule in (match["rules"] or "").split(",") if rule.strip())
    first, last = (1, LAST_LINE) if match["verb"].lower() == "ignore-file" else (line, line)
    complaint = "" if rules else "names no rule, so it hides nothing: write ignore[RULE]"
    return Suppression(line, column, end, rules, first, last, complaint)


def tokens(data: bytes) -> Iterator[tokenize.TokenInfo]:
    """The tokens of a Python file, as far as it can be read."""
    try:
        yield from tokenize.tokenize(io.BytesIO(data).readline)
    except (tokenize.TokenError, SyntaxError, UnicodeDecodeError, ValueError):
        return  # broken further down: the comments up to here still count


LAYOUT = frozenset((tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER))


def in_python(data: bytes) -> tuple[Suppression, ...]:
    """The suppressions of a Python file, in order; strings that look like one are none."""
    if MARK not in data:
        return ()
    found: list[Suppression] = []
    inside: list[Suppression] = []  # in the statement that is being read
    above: list[Suppression] = []  # on lines of their own, waiting for the statement below
    statement_start = 0
    for token in tokens(data):
        if token.type == tokenize.COMMENT:
            suppression = _read_comment(token.string, token.start[0], token.start[1] + 1)
            if suppression is None:
                continue
            if suppression.last_line == LAST_LINE:
                found.append(suppression)
            elif statement_start:
                inside.append(suppression)
            else:
                above.append(suppression)
        elif token.type == tokenize.NEWLINE:
            last = token.start[0]
            for suppression in inside:
                found.append(replace(suppression, first_line=statement_start, last_line=last))
            for suppression in above:
                found.append(replace(suppression, last_line=last))
            inside, above, statement_start = [], [], 0
        elif token.type not in LAYOUT and not statement_start:
            statement_start = token.start[0]
    return tuple(sorted([*found, *inside, *above], key=lambda each: (each.line, each.column)))


def in_configuration(data: bytes) -> tuple[Suppression, ...]:
    """The suppressions of a file whose comments start with ``#`` (YAML, TOML, shell): the line or the next."""
    if MARK not in data:
        return ()
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        match = _PLAIN_COMMENT.search(line)
        suppression = match and _read_comment(match[1], number, match.start(1) + 1)
        if suppression:
            alone = not line[: match.start(1)].strip()
            if alone and suppression.last_line != LAST_LINE:
                suppression = replace(suppression, last_line=number + 1)
            found.append(suppression)
    return tuple(found)


def apply(
    findings: Iterable[Finding], suppressions: Sequence[Suppression]
) -> tuple[list[Finding], list[Finding], set[tuple[int, str]]]:
    """Split findings into (kept, hidden); the third value holds (index of the comment, rule) in use."""
    kept, hidden, used = [], [], set()
    for finding in findings:
        speaking = [
            (index, rule)
            for index, suppression in enumerate(suppressions)
            if suppression.speaks_for(finding)
            for rule in suppression.rules
            if rule in (finding.rule, finding.name)
        ]
        used.update(speaking)
        (hidden if speaking else kept).append(finding)
    return kept, hidden, used


def complaints(
    path: str,
    suppressions: Sequence[Suppression],
    used: set[tuple[int, str]],
    rules: Iterable[tuple[str, str, str]],
    is_on,
) -> list[Finding]:
    """ACC002 for every comment, or rule within one, that hides nothing.

    ``rules`` are (code, name, clause) of all rules; a rule that is switched off (``is_on(code, name,
    clause)`` is false) was not looked for, so nothing is said about it.
    """
    known = {key: rule for rule in rules for key in rule[:2]}
    found = []
    for index, suppression in enumerate(suppressions):
        span = Span(
            path, suppression.line, suppression.column, suppression.line, suppression.end_column
        )
        if suppression.complaint:
            found.append(unused_suppression(span, f"this comment {suppression.complaint}".replace(
                "this comment '", "'")))
        for rule in suppression.rules:
            if rule not in known:
                found.append(unused_suppression(span, f"no rule is called {rule!r}, so nothing is hidden"))
            elif (index, rule) not in used and is_on(*known[rule]):
                found.append(unused_suppression(span, f"{rule} is not reported here: the comment can go"))
    return found
