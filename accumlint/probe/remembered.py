"""What probes have said about a script's static findings, kept beside their receipts and read back without torch.

Beside ``NAME.receipt.json`` stands ``NAME.verdicts.json``: the digest of the script, the hash of the receipt, and one entry
for each finding by rule and line. It counts only while its receipt verifies and carries that very hash.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from accumlint.findings import Finding
from accumlint.probe.verdicts import CONFIRMED, OnFinding, Said, mark

SCHEMA = "accumlint/probe-verdicts/v1"
SUFFIX = ".verdicts.json"
RECEIPT_SUFFIX = ".receipt.json"
MAX_BYTES = 4 << 20


def beside(receipt_path: str) -> str:
    """The path of the verdicts that belong to a receipt."""
    stem = receipt_path.removesuffix(RECEIPT_SUFFIX) if receipt_path.endswith(RECEIPT_SUFFIX) else receipt_path.removesuffix(".json")
    return stem + SUFFIX


def document(script: bytes, receipt_sha256: str, told: Sequence[OnFinding], seen: Sequence[Finding], path: str) -> bytes:
    """The verdicts of one run on one script, as bytes of a file. Findings of other files are left out."""
    rows = [{"rule": o.finding.rule, "line": o.finding.span.line, "verdict": o.verdict, "reason": o.reason} for o in told if o.finding.span.path == path]
    known = {(row["rule"], row["line"]) for row in rows}
    rows += [
        {"rule": f.rule, "line": f.span.line, "verdict": CONFIRMED, "reason": "seen in a run"}
        for f in seen if f.span.path == path and (f.rule, f.span.line) not in known
    ]  # fmt: skip
    rows.sort(key=lambda row: (row["line"], row["rule"]))
    made = {"schema": SCHEMA, "script_sha256": hashlib.sha256(script).hexdigest(), "receipt_sha256": receipt_sha256, "findings": rows}
    return (json.dumps(made, indent=1, sort_keys=True) + "\n").encode("ascii")


def load(folder: str) -> dict[str, list[Said]]:
    """Digest of a script -> what valid receipts of a folder say about it. Everything else is passed over."""
    from accumlint.receipt import verify_bytes
    from accumlint.receipt.verifying import HOLDS

    out: dict[str, list[Said]] = {}
    for name in sorted(os.listdir(folder)):
        if not name.endswith(SUFFIX):
            continue
        try:
            told = _read(os.path.join(folder, name))
            receipt = name.removesuffix(SUFFIX) + RECEIPT_SUFFIX
            with open(os.path.join(folder, receipt), "rb") as stream:
                outcome = verify_bytes(stream.read())
        except (OSError, ValueError):
            continue
        if outcome.status != HOLDS or outcome.receipt is None or outcome.receipt.hashes["receipt_sha256"] != told["receipt_sha256"]:
            continue
        bound = {f["sha256"] for f in outcome.receipt.manifest.document.get("bound_files", ()) if f["role"] == "script"}
        if told["script_sha256"] not in bound:
            continue
        out.setdefault(told["script_sha256"], []).extend(
            Said(str(row["rule"]), int(row["line"]), str(row["verdict"]), str(row["reason"]), receipt) for row in told["findings"]
        )
    return out


def _read(path: str) -> dict[str, Any]:
    with open(path, "rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError("too large")
    told = json.loads(data)
    if not isinstance(told, dict) or told.get("schema") != SCHEMA or not isinstance(told.get("findings"), list):
        raise ValueError("no verdicts of a probe")
    if not all(isinstance(row, dict) and {"rule", "line", "verdict", "reason"} <= set(row) for row in told["findings"]):
        raise ValueError("no verdicts of a probe")
    return told


def marks(found: Iterable[Finding], folder: str, root: str = ".") -> list[tuple[Finding, Said | None]]:
    """Each static finding with what a probe said about it (confirmed or refuted), or None; for ``check --receipts``.

    ``folder`` holds receipts with their verdicts; ``root`` is the folder that the paths of findings are relative to.
    Raises OSError when the folder cannot be read.
    """
    found = list(found)
    digests = {}
    for path in {finding.span.path for finding in found}:
        try:
            with open(os.path.join(root, path), "rb") as stream:
                digests[path] = hashlib.sha256(stream.read()).hexdigest()
        except OSError:
            continue
    return mark(found, load(folder), digests)
