"""The archive of refused manifests: reasons and a redacted skeleton, so that a refusal can be replayed.

What is kept: keys of the format, numbers, words of the format, digests. Everything else becomes synthetic:
ids are renumbered (equal ones stay equal), other texts read ``text-1``, unknown keys lose name and value. A
refusal of the text itself (syntax, size, encoding) keeps its reasons only. Records are named by their content
and never changed; the same refusal twice is one record.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accumlint import __version__
from accumlint.receipt.canonical import canonical_bytes, domain_hash
from accumlint.receipt.formats import MANIFEST
from accumlint.receipt.limits import MAX_DIGITS, MAX_INTEGER, MAX_REJECT_BYTES, MAX_REJECTS
from accumlint.receipt.numbers import NonFinite, NumberText, canonical, read_decimal, read_integer, refusal
from accumlint.receipt.problems import ProblemLog, Rejected
from accumlint.receipt.reading import RepeatedKeys
from accumlint.receipt.shape import (
    Label,
    ListOf,
    ListOrRecord,
    Nullable,
    Number,
    Record,
    Shape,
)
from accumlint.receipt.validation import Previous, validate

REJECTION_SCHEMA = "accumlint/rejection/v1"
_KEYS = {"schema", "tool", "manifest", "reasons", "counts", "document", "previous"}
DEFAULT_FOLDER = Path(".accumlint") / "rejects"


class ArchiveError(OSError):
    """The archive can't be written or holds no such record."""


@dataclass(frozen=True)
class Replay:
    """What became of an archived refusal: ``same``, ``different``, ``accepted`` or ``not-replayable``."""

    name: str
    outcome: str
    codes: tuple[str, ...]


class _Redactor:
    """Rewrites a tree so that it is refused for the same reasons and holds nothing of the user's."""

    def __init__(self) -> None:
        self.names: dict[Any, Any] = {}
        self.texts = 0

    def text(self) -> str:
        self.texts += 1
        return f"text-{self.texts}"

    def label(self, value: Any) -> Any:
        """A synthetic id: equal for equal ids, as invalid as the id that it replaces."""
        if isinstance(value, bool) or not isinstance(value, (int, str)) or isinstance(value, NumberText):
            return self.leaf(value)
        key = (type(value).__name__, value)
        if key not in self.names:
            number = len(self.names) + 1
            if isinstance(value, int):
                self.names[key] = number if 0 <= value <= MAX_INTEGER else -number
            elif not value:
                self.names[key] = ""
            else:
                self.names[key] = f"id-{number}" if len(value) <= 128 else f"id-{number}".ljust(129, "x")
        return self.names[key]

    def leaf(self, value: Any) -> Any:
        """A value where the format has no text of the user's: numbers stay, texts become synthetic."""
        if isinstance(value, NonFinite):
            return {"$nonfinite": "NaN"}
        if isinstance(value, NumberText):
            return {"$number": self.digits(value)}
        if isinstance(value, bool) or value is None:
            return value
        if isinstance(value, int):
            return value if abs(value) <= MAX_INTEGER else {"$number": self.digits(str(value))}
        if isinstance(value, float):
            return canonical_number(value)
        if isinstance(value, str):
            return self.text()
        return [] if isinstance(value, list) else {}

    @staticmethod
    def digits(text: str) -> str:
        """A number text; one that is longer than any number of the format is replaced by one as wrong."""
        if len(text) <= MAX_DIGITS + 16:
            return str(text)
        nonfinite = refusal(NumberText(text)) == "number-nonfinite"
        if text.lstrip("-").isdigit():
            return "1" * (400 if nonfinite else MAX_DIGITS + 6)
        return "1e999" if nonfinite else "0." + "1" * (MAX_DIGITS + 6)

    def redact(self, shape: Shape | None, value: Any) -> Any:
        if isinstance(shape, Nullable):
            return None if value is None else self.redact(shape.inner, value)
        if isinstance(shape, ListOrRecord):
            return self.redact(shape.listed if isinstance(value, list) else shape.record, value)
        if isinstance(shape, Record) and isinstance(value, dict):
            made: dict[str, Any] = {}
            unknown = 0
            names: dict[str, str] = {}
            for key, item in value.items():
                if key in shape.fields:
                    made[key] = self.redact(shape.fields[key].shape, item)
                    names[key] = key
                else:
                    unknown += 1
                    names[key] = f"unknown-{unknown}"
                    made[names[key]] = None
            if isinstance(value, RepeatedKeys):
                repeated = {names[key]: times for key, times in value.repeated.items()}
                return {"$repeated": repeated, "object": made}
            return made
        if isinstance(shape, ListOf) and isinstance(value, list):
            return [self.redact(shape.item, item) for item in value]
        if isinstance(shape, Label):
            return self.label(value)
        if isinstance(shape, Number) and type(value) is str:
            return value if refusal(value) in (None, "number-nonfinite") and len(value) <= 80 else self.text()
        if type(value) is str and shape is not None:
            log = ProblemLog()
            shape.check(value, "", log)
            return self.text() if log else value
        return self.leaf(value)


def canonical_number(value: float) -> Any:
    """A double as it may stand in canonical bytes."""
    if refusal(value) is not None:
        return {"$nonfinite": "NaN"}
    made = canonical(value)
    return (
        {"$number": made}
        if isinstance(made, str)
        else ({"$number": repr(value)} if type(made) is int else made)
    )


def _restore(value: Any) -> Any:
    """The tree that a redacted skeleton stands for."""
    if isinstance(value, list):
        return [_restore(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$nonfinite" in value:
        return NonFinite("NaN")
    if "$number" in value:
        text = value["$number"]
        return read_integer(text) if text.lstrip("-").isdigit() else read_decimal(text)
    if "$repeated" in value:
        inside = {key: _restore(item) for key, item in value["object"].items()}
        pairs = list(inside.items())
        for key, times in value["$repeated"].items():
            pairs += [(key, inside[key])] * times
        return RepeatedKeys(pairs)
    return {key: _restore(item) for key, item in value.items()}


def make_record(
    data: bytes, rejected: Rejected, tree: Any = None, previous: Previous | None = None
) -> dict[str, Any]:
    """The record of a refusal. ``tree`` is what was read, None when the text itself was refused."""
    record: dict[str, Any] = {
        "schema": REJECTION_SCHEMA,
        "tool": {"name": "accumlint", "version": __version__},
        "manifest": {"bytes": len(data), "sha256": domain_hash("rejected", data)},
        "reasons": [{"code": p.code, "path": p.path} for p in rejected.problems],
        "counts": rejected.counts,
        "document": None,
        "previous": None,
    }
    if tree is not None:
        skeleton = _Redactor().redact(MANIFEST, tree)
        chained = None
        if previous is not None:
            chained = {
                "receipt_sha256": previous.receipt_sha256,
                "settings": dict(previous.settings),
                "pending": previous.pending,
                "before": previous.before,
            }
        full = {**record, "document": skeleton, "previous": chained}
        if len(canonical_bytes(full)) <= MAX_REJECT_BYTES and _codes_of(full) == rejected.counts:
            return full  # only what really replays is kept as replayable
    return record


def _codes_of(record: Mapping[str, Any]) -> dict[str, int]:
    """Reason codes, with their counts, with which the skeleton of a record is refused now."""
    chained = record["previous"]
    previous = Previous(**chained) if chained is not None else None
    try:
        validate(_restore(record["document"]), previous)
    except Rejected as rejected:
        return rejected.counts
    return {}


def archive(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write a record, atomically and once; returns its path. Raises :class:`ArchiveError`."""
    data = canonical_bytes(dict(record)) + b"\n"
    path = folder / f"{hashlib.sha256(data).hexdigest()[:16]}.json"
    try:
        if path.exists():
            return path
        folder.mkdir(parents=True, exist_ok=True)
        if sum(1 for _ in folder.glob("*.json")) >= MAX_REJECTS:
            raise ArchiveError(f"{folder} holds {MAX_REJECTS} records: move some away first")
        write_atomically(path, data)
    except ArchiveError:
        raise
    except OSError as error:
        raise ArchiveError(f"{folder}: {error.strerror}") from None
    return path


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that no reader ever sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def load_record(path: Path) -> dict[str, Any]:
    """One record. Raises :class:`ArchiveError` when the file is no record or was altered."""
    try:
        if path.stat().st_size > 2 * MAX_REJECT_BYTES:
            raise ArchiveError(f"{path}: larger than any record")
        data = path.read_bytes()
        record = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ArchiveError):
            raise
        raise ArchiveError(f"{path}: not a readable record") from None
    named = path.stem == hashlib.sha256(data).hexdigest()[:16]
    whole = isinstance(record, dict) and _KEYS == record.keys() and isinstance(record["counts"], dict)
    if not whole or record["schema"] != REJECTION_SCHEMA or not named:
        raise ArchiveError(f"{path}: not a record of refused manifests, or altered since it was written")
    return record


def records(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, record) of an archive, by name. Raises :class:`ArchiveError` at the first bad one."""
    for path in sorted(folder.glob("*.json")):
        yield path.stem, load_record(path)


def replay(name: str, record: Mapping[str, Any]) -> Replay:
    """Validate an archived skeleton again and compare the reasons."""
    if record["document"] is None:
        return Replay(name, "not-replayable", tuple(record["counts"]))
    try:
        now = _codes_of(record)
    except (AttributeError, KeyError, TypeError, ValueError):
        return Replay(name, "different", ())  # written by hand or by another release: no skeleton of ours
    if not now:
        return Replay(name, "accepted", ())
    return Replay(name, "same" if now == record["counts"] else "different", tuple(now))
