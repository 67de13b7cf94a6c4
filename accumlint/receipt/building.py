"""Building a receipt: manifest, plan, result and hashes, in canonical bytes."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accumlint import __version__
from accumlint.receipt.canonical import canonical_bytes, domain_hash
from accumlint.receipt.formats import RECEIPT_SCHEMA, SETTINGS, TOOL, UNBOUND
from accumlint.receipt.manifest import CARRIED, EXECUTED, Manifest
from accumlint.receipt.plan import make_plan
from accumlint.receipt.problems import ProblemLog, Rejected
from accumlint.receipt.result import compute
from accumlint.receipt.validation import Previous, validate


@dataclass(frozen=True)
class Receipt:
    """A receipt in memory. ``data`` is the file: canonical bytes and one line feed."""

    manifest: Manifest
    plan: dict[str, Any]
    verdict: str  # PASS, FAIL, INCONCLUSIVE, NOT-DISCRIMINATING or NOT-RUN
    unbound: dict[str, Any]
    tool: dict[str, str]
    hashes: dict[str, str]
    data: bytes

    @functools.cached_property
    def result(self) -> dict[str, Any]:
        """The result part as plain values (read from the bytes: large receipts keep it only there)."""
        return json.loads(self.data)["result"]


def build(
    tree: Mapping[str, Any],
    *,
    previous: Previous | None = None,
    bound_files: Sequence[Mapping[str, str]] = (),
    unbound: Mapping[str, Any] | None = None,
) -> Receipt:
    """A receipt from the tree of a manifest (from :func:`~accumlint.receipt.reading.read` or plain values).

    ``previous`` is the segment that a carried tail comes from (:func:`previous_segment`), ``bound_files`` are
    added to those of the manifest, ``unbound`` holds timestamps and host facts, which no hash covers.
    Raises :class:`~accumlint.receipt.problems.Rejected` with every reason when the manifest is refused.
    """
    if bound_files and isinstance(tree, dict):
        tree = {**tree, "bound_files": [*tree.get("bound_files", []), *map(dict, bound_files)]}
    manifest = validate(tree, previous)
    return assemble(manifest, unbound or {}, __version__)


def assemble(manifest: Manifest, unbound: Mapping[str, Any], tool_version: str) -> Receipt:
    """The receipt of a validated manifest. The plan is hashed before anything is computed."""
    tool = {"name": "accumlint", "version": tool_version}
    loose = {key: value for key, value in unbound.items() if key != "crc32"}
    log = ProblemLog()
    UNBOUND.check({**loose, "crc32": "0" * 8}, "unbound", log)
    TOOL.check(tool, "tool", log)
    if log:
        raise Rejected(log)
    loose["crc32"] = unbound_checksum(loose)
    plan = make_plan(manifest.document)
    plan_bytes = canonical_bytes(plan)
    plan_sha256 = domain_hash("plan", plan_bytes)
    manifest_bytes = canonical_bytes(manifest.document)
    manifest_sha256 = domain_hash("manifest", manifest_bytes)
    verdict, result_pieces = compute(manifest, manifest_sha256, plan_sha256)
    hashes = {
        "manifest_sha256": manifest_sha256,
        "plan_sha256": plan_sha256,
        "result_sha256": domain_hash("result", *result_pieces),
    }
    head = canonical_bytes({"schema": RECEIPT_SCHEMA, "tool": tool, **hashes})
    hashes["receipt_sha256"] = domain_hash("receipt", head)
    # The parts in the order of their keys, joined once: the whole is canonical without a second encoding, and
    # a large receipt is never in memory more than once beside its pieces.
    data = b"".join(
        (
            b'{"hashes":', canonical_bytes(hashes),
            b',"manifest":', manifest_bytes,
            b',"plan":', plan_bytes,
            b',"result":', *result_pieces,
            b',"schema":', canonical_bytes(RECEIPT_SCHEMA),
            b',"tool":', canonical_bytes(tool),
            b',"unbound":', canonical_bytes(loose),
            b"}\n",
        )
    )  # fmt: skip
    return Receipt(manifest, plan, verdict, loose, tool, hashes, data)


def unbound_checksum(loose: Mapping[str, Any]) -> str:
    """CRC-32 of the unbound part, 8 hex digits: damage is noticed, but anyone may rewrite this part."""
    return f"{zlib.crc32(canonical_bytes(dict(loose))):08x}"


def previous_segment(receipt: Receipt) -> Previous:
    """What a segment that continues ``receipt`` must know: pending rows, settings, counters so far."""
    manifest = receipt.manifest
    document = manifest.document
    before = document.get("continues", {}).get("before", {"backward": 0, "updates": 0})
    totals = {
        "backward": before["backward"] + sum(w.own for w in manifest.windows),
        "updates": before["updates"] + sum(w.kind == EXECUTED for w in manifest.windows),
    }
    pending = None
    last = manifest.windows[-1]
    if last.kind == CARRIED:
        rows = last.rows
        ranks = []
        for rank in manifest.ranks:
            row: dict[str, Any] = {
                "rank": rank.rank,
                "microbatch_ids": {"first": rank.first_id + last.start, "count": last.size},
                "valid_targets": list(rank.valid_targets[rows]),
                "loss_numerators": list(rank.loss[rows]),
            }
            if rank.gradients:
                row["gradient_numerators"] = [list(column[rows]) for column in rank.gradients]
            if rank.weights is not None:
                row["weights"] = list(rank.weights[rows])
            if rank.sync_forward is not None and rank.sync_backward is not None:
                row["sync"] = {
                    "forward": list(rank.sync_forward[rows]),
                    "backward": list(rank.sync_backward[rows]),
                }
            if rank.loss_scales is not None:
                row["loss_scales"] = list(rank.loss_scales[rows])
            ranks.append(row)
        pending = {"window": last.index, "ranks": ranks}
    settings = {key: document[key] for key in SETTINGS}
    return Previous(receipt.hashes["receipt_sha256"], settings, pending, totals)
