"""Verifying a receipt: everything that it claims is derived again from its raw rows.

A receipt holds when rebuilding it from its own manifest part gives the same bytes, when the files that it
binds are unchanged, and when the segment that it continues is at hand and fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accumlint.receipt.binding import FileState, states
from accumlint.receipt.building import Receipt, assemble, previous_segment, unbound_checksum
from accumlint.receipt.canonical import NotCanonical, canonical_bytes, domain_hash
from accumlint.receipt.formats import HASHES, RECEIPT_SCHEMA, TOOL, UNBOUND
from accumlint.receipt.limits import MAX_RECEIPT_BYTES
from accumlint.receipt.problems import ProblemLog, Rejected
from accumlint.receipt.reading import RepeatedKeys, read
from accumlint.receipt.validation import validate

HOLDS, REFUTED, UNREADABLE, UNVERIFIABLE = 0, 1, 2, 3
WORDS = {HOLDS: "holds", REFUTED: "refuted", UNREADABLE: "unreadable", UNVERIFIABLE: "unverifiable"}
_PARTS = ("hashes", "manifest", "plan", "result", "schema", "tool", "unbound")


@dataclass(frozen=True)
class Outcome:
    """What verifying established: ``status`` is the exit code of ``receipt verify``, ``reasons`` say why.

    ``receipt`` is the receipt derived again; None unless its manifest part could be read.
    """

    status: int
    reasons: tuple[str, ...]
    receipt: Receipt | None = None
    files: tuple[FileState, ...] = ()

    @property
    def word(self) -> str:
        return WORDS[self.status]


def verify_bytes(data: bytes) -> Outcome:
    """Verify a receipt in itself: its bytes, hashes, numbers and verdicts; no file and no chain."""
    try:
        tree = read(data, "json", MAX_RECEIPT_BYTES)
    except Rejected as rejected:
        return Outcome(UNREADABLE, tuple(rejected.lines()))
    if not isinstance(tree, dict) or isinstance(tree, RepeatedKeys) or set(tree) != set(_PARTS):
        return Outcome(UNREADABLE, ("$: not the seven parts of a receipt [receipt-parts]",))
    if tree["schema"] != RECEIPT_SCHEMA:
        return Outcome(UNREADABLE, (f"schema: expected {RECEIPT_SCHEMA} [schema-unknown]",))
    log = ProblemLog()
    for name, shape in (("tool", TOOL), ("hashes", HASHES), ("unbound", UNBOUND)):
        shape.check(tree[name], name, log)
    if log:
        return Outcome(REFUTED, tuple(Rejected(log).lines()))
    unfit = _unfit_hashes(data, tree)
    if unfit:
        return Outcome(REFUTED, tuple(unfit))
    try:
        manifest = validate(tree["manifest"], embedded=True)
    except Rejected as rejected:
        return Outcome(REFUTED, tuple(f"manifest: {line}" for line in rejected.lines()))
    try:
        receipt = assemble(manifest, tree["unbound"], tree["tool"]["version"])
    except (Rejected, NotCanonical) as error:
        return Outcome(REFUTED, (f"$: {error} [not-canonical]",))
    if receipt.data != data:
        return Outcome(REFUTED, tuple(_differences(tree, receipt)), receipt)
    return Outcome(HOLDS, (), receipt)


# where the parts begin in canonical bytes; a receipt that lacks one of these is not canonical
_MARKS = (
    (b',"manifest":', "manifest"),
    (b',"plan":', "plan"),
    (b',"result":', "result"),
    (b',"schema":"accumlint/receipt/v1","tool":', "rest"),
)


def _unfit_hashes(data: bytes, tree: Mapping[str, Any]) -> list[str]:
    """Parts whose bytes, as they stand in the file, don't fit the hashes that the file states.

    It costs one pass over the bytes, so damage is found before anything is interpreted. Bytes that pass may
    still lie: only deriving everything again shows that.
    """
    view, hashes = memoryview(data), tree["hashes"]
    name, begin, found = "", 0, []
    for mark, following in _MARKS:
        at = data.find(mark, begin)
        if at < 0:
            return ["$: the bytes are not canonical [not-canonical]"]
        if name and domain_hash(name, view[begin:at]) != hashes[f"{name}_sha256"]:
            found.append(f"{name}: its bytes do not fit its hash [{name}-hash]")
        name, begin = following, at + len(mark)
    bound = {f"{part}_sha256": hashes[f"{part}_sha256"] for part in ("manifest", "plan", "result")}
    head = canonical_bytes({"schema": tree["schema"], "tool": tree["tool"], **bound})
    if domain_hash("receipt", head) != hashes["receipt_sha256"]:
        found.append("hashes: schema, tool and part hashes do not fit the receipt hash [receipt-hash]")
    return found


def _differences(tree: Mapping[str, Any], receipt: Receipt) -> Iterable[str]:
    """Which parts differ from what the rows give; at least one line."""
    derived = {
        "manifest": receipt.manifest.document,
        "plan": receipt.plan,
        "result": receipt.result,
        "tool": receipt.tool,
        "hashes": receipt.hashes,
    }
    lines: list[str] = []
    for name, value in derived.items():
        if name == "hashes" and lines:
            break  # they differ because a part does
        try:
            same = canonical_bytes(tree[name]) == canonical_bytes(value)
        except (NotCanonical, ValueError):
            same = False
        if not same:
            where = _first_difference(tree[name], value, name)
            lines.append(f"{where}: not what the rows of the manifest give [{name}-differs]")
    loose = {key: value for key, value in tree["unbound"].items() if key != "crc32"}
    if tree["unbound"].get("crc32") != unbound_checksum(loose):
        lines.append("unbound: its checksum does not fit, the part is damaged [unbound-damaged]")
    return lines or ["$: the bytes are not canonical [not-canonical]"]


def _first_difference(stated: Any, derived: Any, path: str) -> str:
    """The path, in our own words, of the first place where a stated part leaves the derived one."""
    if isinstance(derived, dict) and isinstance(stated, dict):
        for key in derived:
            if key not in stated:
                return f"{path}.{key}"
            if stated[key] != derived[key]:
                return _first_difference(stated[key], derived[key], f"{path}.{key}")
    elif isinstance(derived, list) and isinstance(stated, list):
        for index, (a, b) in enumerate(zip(stated, derived)):
            if a != b:
                return _first_difference(a, b, f"{path}[{index}]")
    return path


def verify(
    data: bytes,
    *,
    root: Path | None = None,
    files: Iterable[str] | None = None,
    known: Mapping[str, Receipt] | None = None,
) -> Outcome:
    """Verify a receipt with everything around it.

    ``root`` is the folder to find bound files in (None: bound files are not looked for, and a receipt that
    binds any is unverifiable); ``files`` is its listing if it is known. ``known`` maps receipt hashes to
    receipts that hold, in which a continued receipt finds the segment before it.
    """
    inner = verify_bytes(data)
    if inner.status != HOLDS or inner.receipt is None:
        return inner
    receipt = inner.receipt
    document = receipt.manifest.document
    refuted, open_questions = [], []
    found: list[FileState] = []
    bound = document.get("bound_files", [])
    if bound:
        found = (
            states(bound, root, files)
            if root is not None
            else [FileState(entry["role"], "missing", None) for entry in bound]
        )
        for index, file in enumerate(found):
            if file.state == "changed":
                refuted.append(
                    f"manifest.bound_files[{index}]: {file.path} changed since this receipt [bound-file-changed]"
                )
            elif file.state == "missing":
                open_questions.append(
                    f"manifest.bound_files[{index}]: the {file.role} was not found below the root [bound-file-missing]"
                )
    if "continues" in document:
        before = (known or {}).get(document["continues"]["receipt_sha256"])
        if before is None:
            open_questions.append(
                "manifest.continues: the receipt of the segment before was not given [chain-missing]"
            )
        else:
            segment = previous_segment(before)
            settings = {key: document[key] for key in segment.settings}
            if (segment.pending, segment.before, segment.settings) != (
                document["continues"]["pending"],
                document["continues"]["before"],
                settings,
            ):
                refuted.append(
                    "manifest.continues: its pending rows, counters or settings are not those"
                    " that the receipt before left [chain-broken]"
                )
    if refuted:
        return Outcome(REFUTED, tuple(refuted + open_questions), receipt, tuple(found))
    if open_questions:
        return Outcome(UNVERIFIABLE, tuple(open_questions), receipt, tuple(found))
    return Outcome(HOLDS, (), receipt, tuple(found))
