"""The batch arithmetic of configuration files as rows, each number with the place that it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accumlint.config.arithmetic import CLOSERS, Batch, derive
from accumlint.config.audit import Gathered, SourceFile, gather, posix
from accumlint.config.crossfile import worlds
from accumlint.config.dialects import View


@dataclass(frozen=True)
class Row:
    """One number of the batch: ``source`` is ``file:line key``, or says why there is no place."""

    quantity: str  # micro | accumulation | ranks | global
    value: str
    source: str


@dataclass(frozen=True)
class Arithmetic:
    """One configuration: its rows and what the product says. ``closes`` is ``None`` where that is open."""

    path: str
    dialect: str
    rows: tuple[Row, ...]
    closes: bool | None
    verdict: str


def _row(view: View, role: str) -> Row:
    fact = view.facts.get(role)
    if fact is None:
        return Row(role, "?", "not stated")
    if not fact.stated:
        return Row(role, str(fact.value), "default")
    source = f"{fact.path}:{fact.mark.line} {fact.key}"
    return Row(role, str(fact.value), source + ("" if fact.number is not None else " (not a number)"))


def arithmetic(view: View, ranks: int | None, ranks_source: str) -> Arithmetic:
    """The rows of one view; numbers that the others determine are filled in and marked as derived."""
    stated = Batch(view.number("micro"), view.number("accumulation"), view.number("global"), ranks)
    if stated.total is not None and stated.total < 0:
        stated = Batch(stated.micro, stated.accumulation, None, ranks)  # torchtitan's -1: derived
    filled = derive(stated)
    rows = []
    for role, before, after in (
        ("micro", stated.micro, filled.micro),
        ("accumulation", stated.accumulation, filled.accumulation),
        ("global", stated.total, filled.total),
    ):
        row = _row(view, role)
        rows.append(Row(role, str(after), "derived") if before is None and after is not None else row)
    if ranks is not None:
        rows.insert(2, Row("ranks", str(ranks), ranks_source))
    elif filled.ranks is not None:
        rows.insert(2, Row("ranks", str(filled.ranks), "needed to close the product"))
    else:
        rows.insert(2, Row("ranks", "N", "decided at launch"))
    closer = CLOSERS.get(view.dialect.closes)
    verdict = closer(stated) if closer is not None else None
    if verdict is None or verdict.closes is None:
        open_text = "open: depends on the number of ranks" if ranks is None else "nothing to close"
        return Arithmetic(view.path, view.dialect.title, tuple(rows), None, open_text)
    return Arithmetic(view.path, view.dialect.title, tuple(rows), verdict.closes, verdict.why or "closes")


def tabulate(files: Sequence[SourceFile], gathered: Gathered | None = None) -> list[Arithmetic]:
    """One entry per recognised configuration, in the order of their paths; ``gathered`` as in :func:`audit`."""
    tree = (gathered or gather(files)).tree
    given = {posix(file.path): file.path for file in files}
    launched = worlds(tree)
    result = []
    for path in sorted(tree.views):
        for view in tree.views[path]:
            ranks, source = view.ranks, " × ".join(f"{f.path}:{f.mark.line} {f.key}" for f in view.ranks_from)
            counts = {
                (world, fact.path, fact.mark.line)
                for _, world, fact in launched.get((path, id(view.table)), ())
            }
            if ranks is None and len(counts) == 1:
                world, where, line = next(iter(counts))
                ranks, source = world, f"{where}:{line} launch line"
            entry = arithmetic(view, ranks, source)
            result.append(
                Arithmetic(given.get(path, path), entry.dialect, entry.rows, entry.closes, entry.verdict)
            )
    return result
