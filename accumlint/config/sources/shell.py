"""A POSIX shell lexer that keeps positions, and the expansion of what a file itself defines.

The standard library's ``shlex`` splits the same way (a test compares them) but forgets where a word stood and
what was quoted. Nothing is executed: ``$(…)`` and unknown variables give unknown words.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from accumlint.config.readers.python import compute
from accumlint.config.tree import Mark

_OPERATOR = re.compile(r"&&|\|\||;;|\|&|&>>|&>|>>|<<<|<<-?|>&|<&|[;&|()<>\n]")
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)")
_HEREDOC = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][\w.-]*)\1")
MAX_EXPANSIONS = 20
# variables that double each other grow without end: texts and the work of one file are capped
MAX_LENGTH = 20_000
MAX_WORK = 200_000


@dataclass(frozen=True)
class Word:
    """A shell word as written: ``raw`` from ``begin`` to ``end`` (offsets in the text)."""

    raw: str
    begin: int
    end: int


@dataclass(frozen=True)
class Operator:
    text: str
    begin: int


@dataclass(frozen=True)
class Arg:
    """A word after expansion. ``known`` is false when a part of it could not be expanded."""

    text: str
    mark: Mark
    known: bool = True


@dataclass
class Variable:
    """What a name was set to: the raw words, read anew at each use. ``fixed`` is false after a second, different setting."""

    words: tuple[Word, ...]
    fixed: bool = True
    exported: bool = False
    array: bool = False  # set with NAME=( … ): its words are not split again


@dataclass
class Command:
    """One simple command: its expanded arguments and the variables set in front of it."""

    args: list[Arg]
    env: dict[str, Arg] = field(default_factory=dict)


def lex(text: str, begin: int = 0, end: int | None = None) -> Iterator[Word | Operator]:
    """Words and operators of ``text[begin:end]``; comments and here-documents are skipped, never raises."""
    end = len(text) if end is None else end
    position = begin
    heredocs: list[str] = []
    while position < end:
        char = text[position]
        if char == "\\" and text[position : position + 2] in ("\\\n", "\\\r"):
            position += 3 if text[position : position + 3] == "\\\r\n" else 2
        elif char in " \t\r":
            position += 1
        elif char == "#":
            stop = text.find("\n", position, end)
            position = end if stop < 0 else stop
        elif char == "\n" and heredocs:
            yield Operator("\n", position)
            position += 1
            for word in heredocs:
                while position < end:
                    stop = text.find("\n", position, end)
                    stop = end if stop < 0 else stop
                    line, position = text[position:stop], stop + 1
                    if line.strip() == word:
                        break
            heredocs = []
        elif match := _OPERATOR.match(text, position, end):
            here = _HEREDOC.match(text, position, end)
            if here and match.group().startswith("<<") and match.group() != "<<<":
                heredocs.append(here.group(2))
                position = here.end()
                continue
            yield Operator(match.group(), position)
            position = match.end()
        else:
            stop = _word_end(text, position, end)
            yield Word(text[position:stop], position, stop)
            position = stop


def _word_end(text: str, position: int, end: int) -> int:
    while position < end:
        char = text[position]
        if char in " \t\r\n;&|<>()":
            break
        if char == "\\":
            if text[position + 1 : position + 2] in ("\n", "\r"):
                # a continuation joins the pieces of a word only without blanks; treat it as the word's end
                break
            position += 2
        elif char == "'":
            stop = text.find("'", position + 1, end)
            position = end if stop < 0 else stop + 1
        elif char == '"':
            position = _double_end(text, position, end)
        elif char == "`":
            stop = text.find("`", position + 1, end)
            position = end if stop < 0 else stop + 1
        elif char == "$" and text[position + 1 : position + 2] in ("(", "{"):
            position = _balanced(text, position + 1, end)
        elif char == "=" and text[position + 1 : position + 2] == "(":
            position = _balanced(text, position + 1, end)  # an array: NAME=( … )
        else:
            position += 1
    return min(position, end)


def _double_end(text: str, position: int, end: int) -> int:
    position += 1
    while position < end:
        char = text[position]
        if char == "\\":
            position += 2
        elif char == '"':
            return position + 1
        elif char == "$" and text[position + 1 : position + 2] in ("(", "{"):
            position = _balanced(text, position + 1, end)
        else:
            position += 1
    return end


def _balanced(text: str, position: int, end: int) -> int:
    """The offset after the bracket that closes the one at ``position``; quotes inside are honoured."""
    pairs = {"(": ")", "{": "}"}
    stack: list[str] = []
    while position < end:
        char = text[position]
        if char in pairs:
            stack.append(pairs[char])
        elif stack and char == stack[-1]:
            stack.pop()
            if not stack:
                return position + 1
        elif char == "\\":
            position += 1
        elif char == "'":
            stop = text.find("'", position + 1, end)
            position = end if stop < 0 else stop
        elif char == '"':
            # a plain search: nested quotes in $( … "…" … ) close at the next one
            stop = text.find('"', position + 1, end)
            position = end if stop < 0 else stop
        position += 1
    return end


class Shell:
    """The commands of one text, with the variables that it sets itself."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.variables: dict[str, Variable] = {}
        self._work = MAX_WORK
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def mark(self, begin: int, end: int) -> Mark:
        return Mark(*self.place(begin), *self.place(end))

    def place(self, offset: int) -> tuple[int, int]:
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    # -- commands ---------------------------------------------------------------------------------

    def commands(self) -> Iterator[Command]:
        """Every simple command in the order of the text, expanded by what was set before it."""
        words: list[Word] = []
        redirected = False
        for token in lex(self.text):
            if isinstance(token, Word):
                if not redirected:
                    words.append(token)
                redirected = False
                continue
            redirected = token.text in (">", ">>", "<", ">&", "<&", "&>", "&>>", "<<<")
            if redirected:
                if words and words[-1].end == token.begin and words[-1].raw.isdigit():
                    words.pop()  # the 2 of 2>
                continue
            if words:
                yield from self._simple(words)
                words = []
        if words:
            yield from self._simple(words)

    def _simple(self, words: list[Word]) -> Iterator[Command]:
        while words and words[0].raw in (
            "if",
            "then",
            "else",
            "elif",
            "do",
            "while",
            "until",
            "{",
            "!",
            "time",
            "fi",
            "done",
            "}",
        ):
            words = words[1:]
        if not words:
            return
        if words[0].raw == "for" and len(words) > 1:
            self.variables[words[1].raw] = Variable((), fixed=False)
            return
        exported = words[0].raw in ("export", "declare", "readonly", "local", "typeset")
        rest = words[1:] if exported else words
        prefix: list[Word] = []
        while rest and (_ASSIGNMENT.match(rest[0].raw) or (exported and rest[0].raw.startswith("-"))):
            prefix.append(rest[0])
            rest = rest[1:]
        if not rest or exported:
            for word in prefix:
                self._assign(word, exported)
            return
        env = {}
        for word in prefix:
            match = _ASSIGNMENT.match(word.raw)
            value = self._slice(word, match.end())  # type: ignore[union-attr]
            expanded = self.expand(value)
            env[match.group(1)] = expanded[0] if expanded else Arg("", self.mark(value.begin, value.end))  # type: ignore[union-attr]
        for name, variable in self.variables.items():
            # only the launcher's own variables matter; scripts export hundreds
            if (
                "ACCELERATE" in name
                and variable.exported
                and variable.fixed
                and name not in env
                and variable.words
            ):
                expanded = self.expand(variable.words[0])
                if expanded:
                    env[name] = expanded[0]
        args = [arg for word in rest for arg in self.expand(word)]
        if args:
            yield Command(args, env)

    def _slice(self, word: Word, skip: int) -> Word:
        return Word(word.raw[skip:], word.begin + skip, word.end)

    def _assign(self, word: Word, exported: bool) -> None:
        match = _ASSIGNMENT.match(word.raw)
        if match is None:
            return
        name, appends = match.group(1), match.group(2) == "+="
        value = self._slice(word, match.end())
        if value.raw.startswith("(") and value.raw.endswith(")"):
            inner = lex(self.text, value.begin + 1, value.end - 1)
            words, array = tuple(w for w in inner if isinstance(w, Word)), True
        else:
            words, array = (value,), False
        previous = self.variables.get(name)
        if appends and previous is not None:
            self.variables[name] = Variable(
                previous.words + words, previous.fixed, previous.exported or exported, previous.array
            )
            return
        refers_to_itself = re.search(rf"\$\{{?{name}\b", value.raw) is not None
        same = previous is None or [w.raw for w in previous.words] == [w.raw for w in words]
        if refers_to_itself and previous is not None:
            self.variables[name] = Variable((), False, exported)
            return
        self.variables[name] = Variable(
            words, same, exported or (previous is not None and previous.exported), array
        )

    # -- expansion --------------------------------------------------------------------------------

    def expand(self, word: Word, depth: int = 0, within: tuple[str, ...] = ()) -> list[Arg]:
        """The arguments that a word becomes: several for an unquoted variable or an array."""
        mark = self.mark(word.begin, word.end)
        self._work -= 1
        if depth > MAX_EXPANSIONS or self._work < 0:
            return [Arg(word.raw, mark, False)]
        whole = re.fullmatch(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", word.raw)
        array = re.fullmatch(r'"?\$\{([A-Za-z_]\w*)\[[@*]\]\}"?', word.raw)
        if whole or array:
            name = next(g for g in (whole or array).groups() if g)  # type: ignore[union-attr]
            variable = self.variables.get(name)
            if variable is None or not variable.fixed or name in within:
                return [Arg(word.raw, mark, False)]
            result: list[Arg] = []
            for part in variable.words:
                further = self.expand if variable.array else self._split
                result.extend(further(part, depth + 1, (*within, name)))
            return result
        text, known = self._text(word.raw, word.begin, depth, within)
        return [Arg(text, mark, known)]

    def _split(self, word: Word, depth: int, within: tuple[str, ...]) -> list[Arg]:
        """Field splitting of a value that was quoted when it was assigned."""
        quote = word.raw[:1]
        if quote in ("'", '"') and word.raw.endswith(quote) and len(word.raw) > 1:
            inner = [w for w in lex(self.text, word.begin + 1, word.end - 1) if isinstance(w, Word)]
            return [arg for w in inner for arg in self.expand(w, depth, within)]
        return self.expand(word, depth, within)

    def value(self, name: str, depth: int = 0, within: tuple[str, ...] = ()) -> tuple[str, bool]:
        """The text of a variable, and whether it is known."""
        variable = self.variables.get(name)
        self._work -= 1
        if (
            variable is None
            or not variable.fixed
            or not variable.words
            or name in within
            or depth > MAX_EXPANSIONS
            or self._work < 0
        ):
            return "", False
        pieces = [self._text(w.raw, w.begin, depth + 1, (*within, name)) for w in variable.words]
        text = " ".join(text for text, _ in pieces)
        if len(text) > MAX_LENGTH:
            return "", False
        return text, all(known for _, known in pieces)

    def _text(self, raw: str, begin: int, depth: int, within: tuple[str, ...]) -> tuple[str, bool]:
        out: list[str] = []
        known = True
        position, single, double = 0, False, False
        while position < len(raw):
            char = raw[position]
            if single:
                if char == "'":
                    single = False
                else:
                    out.append(char)
                position += 1
            elif char == "'" and not double:
                single = True
                position += 1
            elif char == '"':
                double = not double
                position += 1
            elif char == "\\" and position + 1 < len(raw):
                if raw[position + 1] != "\n":
                    keeps = double and raw[position + 1] not in '"\\$`'
                    out.append(raw[position : position + 2] if keeps else raw[position + 1])
                position += 2
            elif char == "$":
                text, sure, position = self._dollar(raw, position, depth, within)
                out.append(text)
                known = known and sure
            elif char == "`":
                stop = raw.find("`", position + 1)
                position = len(raw) if stop < 0 else stop + 1
                known = False
            else:
                out.append(char)
                position += 1
        return "".join(out), known

    def _dollar(self, raw: str, position: int, depth: int, within: tuple[str, ...]) -> tuple[str, bool, int]:
        if raw.startswith("$((", position):
            stop = _balanced(raw, position + 1, len(raw))
            inner = raw[position + 3 : stop - 2]
            value = self.arithmetic(inner, depth, within)
            return (str(value), True, stop) if value is not None else (raw[position:stop], False, stop)
        if raw.startswith("$(", position):
            stop = _balanced(raw, position + 1, len(raw))
            return raw[position:stop], False, stop
        if raw.startswith("${", position):
            stop = _balanced(raw, position + 1, len(raw))
            inner = raw[position + 2 : stop - 1]
            match = re.match(r"([A-Za-z_]\w*|\d+)(:?[-=])?", inner)
            if match is None:
                return raw[position:stop], False, stop
            name, operator = match.group(1), match.group(2)
            text, known = self.value(name, depth, within)
            if known and (operator or match.end() == len(inner)):
                return text, True, stop
            if operator and name not in self.variables or operator and name in within:
                default, sure = self._text(inner[match.end() :], 0, depth + 1, within)
                return default, sure, stop
            return raw[position:stop], False, stop
        match = _NAME.match(raw, position + 1)
        if match is None:
            return raw[position : position + 2], raw[position + 1 : position + 2] == "", position + 2
        text, known = self.value(match.group(), depth, within)
        return (text, True, match.end()) if known else (raw[position : match.end()], False, match.end())

    def arithmetic(self, expression: str, depth: int = 0, within: tuple[str, ...] = ()) -> int | None:
        """The value of a ``$((…))`` expression of known whole numbers."""

        def substitute(match: re.Match[str]) -> str:
            text, known = self.value(match.group(1), depth + 1, within)
            return text if known and re.fullmatch(r"\s*\d{1,12}\s*", text) else "?"

        plain = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", substitute, expression)
        plain = re.sub(r"\b([A-Za-z_]\w*)\b", substitute, plain)
        if not re.fullmatch(r"[\d\s+\-*/%()]{1,200}", plain):
            return None
        try:
            tree = ast.parse(plain.strip().replace("/", "//"), mode="eval").body
        except (SyntaxError, ValueError, RecursionError):
            return None
        value = _integer(tree)
        return int(value) if value is not None else None


def _integer(node: ast.expr) -> int | float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp):
        left, right = _integer(node.left), _integer(node.right)
        return compute(node.op, left, right) if left is not None and right is not None else None
    return None
