"""Where reports go: standard output in the format that fits the place, and files that were asked for."""

from __future__ import annotations

import importlib
import os
import sys

from collections.abc import Callable, Sequence

from accumlint.report.model import FILES_WITH_FIXES, Report
from accumlint.settings import Settings

Line = list[tuple[str, str]]  # pieces of (text, style)


class PresentError(RuntimeError):
    """A report can't be written where it was asked for."""


def default_format(environment) -> str:
    """``github`` inside GitHub Actions, where annotations are read, else ``text``."""
    return "github" if environment.get("GITHUB_ACTIONS") == "true" else "text"


# formats that tell which findings can be fixed: some for tools, which want all of it, and one for people
_WITH_FIXES = frozenset({"json", "sarif", "rdjson", "rdjsonl"})


def files_with_fixes(settings: Settings, statistics: bool = False) -> int:
    """In how many files with findings an output of the run tells fixes: finding them costs what others need not pay."""
    formats = {format_name for format_name, _ in settings.output}
    if not statistics:
        formats.add(settings.format or default_format(os.environ))
    if not formats.isdisjoint(_WITH_FIXES):
        return sys.maxsize
    return FILES_WITH_FIXES if "text" in formats else 0


def render(format_name: str, report: Report) -> str:
    """One report in one format; only that format's module is imported.

    Raises :class:`PresentError` where the report can't be put into the format (a rule page that SARIF quotes
    is malformed).
    """
    try:
        return importlib.import_module(f"accumlint.report.{format_name}").render(report)
    except ValueError as error:
        raise PresentError(f"format {format_name}: {error}") from error


def _can_draw(stream) -> bool:
    """Whether the picture's glyphs survive the encoding of the stream."""
    try:
        "○●⇄·▲│×".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


_STYLES = {
    "bold": "bold",
    "dim": "dim",
    "error": "bold red",
    "warning": "bold yellow",
    "advice": "cyan",
    "good": "green",
}


def show_lines(draw: Callable[[int, bool], Sequence[Line]]) -> None:
    """Print styled lines: with styles and in the terminal's width on a terminal, else plain.

    ``draw(width, unicode)`` makes them. ``FORCE_COLOR`` asks for styles where there is no terminal,
    ``NO_COLOR`` and ``TERM=dumb`` take them away.
    """
    stream = sys.stdout
    unicode = _can_draw(stream)
    if not (stream.isatty() or os.environ.get("FORCE_COLOR")):
        from accumlint.report.text import plain

        return write_text(plain(draw(100, unicode)))
    from rich.console import Console
    from rich.text import Text

    console = Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True)
    for line in draw(max(min(console.width, 120), 40), unicode):
        console.print(Text.assemble(*((piece, _STYLES.get(style, "")) for piece, style in line)))
    return None


def write_text(text: str) -> None:
    """Write to standard output; what its encoding can't hold becomes an escape, never an exception."""
    stream = sys.stdout
    encoding = stream.encoding or "ascii"
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        text = text.encode(encoding, "backslashreplace").decode(encoding)
    stream.write(text)


def write_atomically(path: str, text: str) -> None:
    """Write ``text`` as UTF-8 so that a reader sees the old file or the whole new one.

    What isn't a regular file (a pipe, ``/dev/stdout``) is written to directly. Raises OSError.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        return
    import tempfile

    path = os.path.realpath(path)
    descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".accumlint-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="", errors="backslashreplace") as stream:
            stream.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # mkstemp's own mode would lock other users out
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def present(report: Report, settings: Settings, statistics: bool = False) -> None:
    """Write all files, then standard output, then one line per error on standard error.

    Raises :class:`PresentError` where a file can't be written.
    """
    for format_name, path in settings.output:
        try:
            write_atomically(path, render(format_name, report))
        except OSError as error:
            raise PresentError(f"{path}: cannot be written: {error.strerror or error}") from error
    format_name = settings.format or default_format(os.environ)
    if statistics:
        from accumlint.report.text import statistics as per_rule
        from accumlint.rule_index import all_rules

        write_text(per_rule(report, all_rules()))
    elif format_name == "text":
        from accumlint.report import text

        show_lines(lambda width, unicode: text.lines(report, width, unicode))
    else:
        write_text(render(format_name, report))
    sys.stdout.flush()
    for path, message in report.summary.errors:
        sys.stderr.write(f"accumlint: {path}: {message}\n")
