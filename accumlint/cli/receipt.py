"""``accumlint receipt build | verify | diff | show``: files in, files out; the work is in ``accumlint.receipt``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accumlint.receipt.building import Receipt
    from accumlint.receipt.verifying import Outcome

SUMMARY = "build, verify, compare or show an accumulation receipt"

SUFFIX = ".receipt.json"
DISAGREES, BROKEN = 1, 2
FORMATS = ("text", "svg", "naive-svg", "html", "in-toto", "junit")


class UsageError(Exception):
    """A file can't be read or written; the message names the path that was given on the command line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="build | verify | diff | show")

    build = commands.add_parser("build", help="a receipt from a manifest (JSON or YAML)")
    build.add_argument("manifest", help="the manifest, - for standard input")
    build.add_argument(
        "-o", "--output", help=f"file to write, by custom NAME{SUFFIX} (default: standard output)"
    )
    build.add_argument(
        "--script", action="append", default=[], help="bind this script: verify notices changes"
    )
    build.add_argument("--config", action="append", default=[], help="bind this configuration")
    build.add_argument("--root", default=".", help="folder that bound paths are relative to (default: .)")
    build.add_argument("--continue-from", metavar="RECEIPT", help="receipt whose carried tail is continued")
    build.add_argument("--archive", metavar="DIR", help="archive of refusals (default: .accumlint/rejects)")
    build.add_argument("--no-archive", action="store_true", help="don't keep a record of a refusal")
    build.add_argument(
        "--bare", action="store_true", help="leave out time and host facts: same bytes every day"
    )

    verify = commands.add_parser(
        "verify", help="derive everything again (0 holds, 1 refuted, 2 unreadable, 3 unverifiable)"
    )
    verify.add_argument("receipts", nargs="*", help="receipts; a chain finds its links among them")
    verify.add_argument("--tree", action="store_true", help=f"every *{SUFFIX} below the root")
    verify.add_argument("--root", default=".", help="folder in which bound files are looked for (default: .)")
    verify.add_argument(
        "--continue-from", action="append", default=[], metavar="RECEIPT", help="earlier segment"
    )
    verify.add_argument(
        "--require-pass", action="store_true", help="refute receipts whose verdict is not PASS"
    )
    verify.add_argument("--format", choices=("text", "json"), default="text")

    diff = commands.add_parser(
        "diff", help="what kind of thing changed between two receipts (0 nothing, 1 something)"
    )
    diff.add_argument("first")
    diff.add_argument("second")
    diff.add_argument("--ignore", action="append", default=[], metavar="KIND", help="a kind that may differ")
    diff.add_argument("--format", choices=("text", "json"), default="text")

    show = commands.add_parser("show", help="table and signature picture, or an export")
    show.add_argument("receipt")
    show.add_argument("--format", choices=FORMATS, default="text")
    show.add_argument("-o", "--output", help="file to write (default: standard output)")


def run(arguments: argparse.Namespace) -> int:
    actions = {"build": _build, "verify": _verify, "diff": _diff, "show": _show}
    try:
        return actions[arguments.action](arguments)
    except UsageError as error:
        sys.stderr.write(f"accumlint receipt {arguments.action}: {error}\n")
        return BROKEN


def read_bytes(path: str, cap: int) -> bytes:
    """The bytes of a file or of standard input, one more than ``cap`` at most: the reader then refuses them."""
    try:
        if path == "-":
            return sys.stdin.buffer.read(cap + 1)
        with open(path, "rb") as stream:
            return stream.read(cap + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def write_output(path: str | None, data: bytes) -> None:
    """Write to a file, atomically, or to standard output."""
    if path is None or path == "-":
        stream = getattr(sys.stdout, "buffer", None)
        if stream is None:  # a captured text stream
            sys.stdout.write(data.decode("utf-8"))
        else:
            sys.stdout.flush()
            stream.write(data)
            stream.flush()
        return
    from accumlint.receipt.rejects import write_atomically

    try:
        write_atomically(Path(path), data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def host_facts() -> dict[str, Any]:
    """Facts about this machine that name nobody: families and counts."""
    system, machine = platform.system(), platform.machine().lower()
    machine = {"amd64": "x86_64", "aarch64": "arm64"}.get(machine, machine)
    return {
        "system": system if system in ("Linux", "Darwin", "Windows") else "other",
        "machine": machine if machine in ("x86_64", "arm64") else "other",
        "python": ".".join(map(str, sys.version_info[:3])),
        "processors": os.cpu_count() or 0,
    }


def _build(arguments: argparse.Namespace) -> int:
    from accumlint.receipt.binding import BindingError, bind
    from accumlint.receipt.building import build, previous_segment
    from accumlint.receipt.limits import MAX_JSON_BYTES, MAX_RECEIPT_BYTES
    from accumlint.receipt.problems import Rejected, reject
    from accumlint.receipt.reading import read
    from accumlint.receipt.verifying import HOLDS, verify_bytes

    started = time.perf_counter()
    root = Path(arguments.root)
    try:
        files = [bind(Path(p), "script", root) for p in arguments.script]
        files += [bind(Path(p), "configuration", root) for p in arguments.config]
    except BindingError as error:
        raise UsageError(str(error)) from None
    data = read_bytes(arguments.manifest, MAX_JSON_BYTES)
    tree, previous = None, None
    try:
        tree = read(data, _syntax(arguments.manifest))
        if arguments.continue_from:
            outcome = verify_bytes(read_bytes(arguments.continue_from, MAX_RECEIPT_BYTES))
            if outcome.status != HOLDS or outcome.receipt is None:
                raise reject("chain-unproven", "continues", outcome.word)
            previous = previous_segment(outcome.receipt)
        unbound: dict[str, Any] = {}
        if not arguments.bare:
            unbound = {
                "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "host": host_facts(),
            }
            unbound["duration_seconds"] = round(time.perf_counter() - started, 6)
        receipt = build(tree, previous=previous, bound_files=files, unbound=unbound)
    except Rejected as rejected:
        for line in rejected.lines():
            sys.stderr.write(f"{line}\n")
        total = sum(rejected.counts.values())
        sys.stderr.write(f"refused for {total} reason{'s' if total > 1 else ''}; nothing was computed\n")
        if not arguments.no_archive:
            _archive(arguments, data, rejected, tree, previous)
        return BROKEN
    write_output(arguments.output, receipt.data)
    sys.stderr.write(f"{receipt.verdict}: receipt {receipt.hashes['receipt_sha256']}\n")
    return DISAGREES if receipt.verdict in ("FAIL", "INCONCLUSIVE") else 0


def _syntax(path: str) -> str:
    suffix = Path(path).suffix.lower()
    return {".json": "json", ".yaml": "yaml", ".yml": "yaml"}.get(suffix, "")


def _archive(arguments: argparse.Namespace, data: bytes, rejected: Any, tree: Any, previous: Any) -> None:
    from accumlint.receipt.rejects import DEFAULT_FOLDER, ArchiveError, archive, make_record

    folder = Path(arguments.archive) if arguments.archive else DEFAULT_FOLDER
    try:
        path = archive(folder, make_record(data, rejected, tree, previous))
    except ArchiveError as error:
        sys.stderr.write(f"not archived: {error}\n")
        return
    sys.stderr.write(f"archived as {path}\n")


def _verify(arguments: argparse.Namespace) -> int:
    from accumlint.receipt.binding import project_files
    from accumlint.receipt.limits import MAX_RECEIPT_BYTES
    from accumlint.receipt.manifest import CARRIED
    from accumlint.receipt.verifying import (
        HOLDS,
        REFUTED,
        UNREADABLE,
        UNVERIFIABLE,
        Outcome,
        verify,
        verify_bytes,
    )

    root = Path(arguments.root)
    if not root.is_dir():
        raise UsageError(f"{arguments.root}: no such folder")
    paths, files = list(arguments.receipts), None
    if arguments.tree:
        files = project_files(root)
        paths += [str(root / name) for name in files if name.endswith(SUFFIX)]
        if not paths:
            print(f"no *{SUFFIX} below {arguments.root}")
            return 0
    if not paths:
        raise UsageError("name at least one receipt, or give --tree")
    known: dict[str, Receipt] = {}
    if len(paths) + len(arguments.continue_from) > 1:  # a single receipt has no link to look for
        for path in dict.fromkeys([*arguments.continue_from, *paths]):
            if path in paths and not os.path.isfile(path):
                continue  # reported below
            inner = verify_bytes(read_bytes(path, MAX_RECEIPT_BYTES))
            if inner.status != HOLDS or inner.receipt is None:
                continue
            # only a receipt with a pending window can be continued: the others need not stay in memory
            if inner.receipt.manifest.windows[-1].kind == CARRIED:
                known[inner.receipt.hashes["receipt_sha256"]] = inner.receipt
    statuses, reports = [], []
    for path in dict.fromkeys(paths):
        try:
            outcome = verify(read_bytes(path, MAX_RECEIPT_BYTES), root=root, files=files, known=known)
        except UsageError as error:
            sys.stderr.write(f"accumlint receipt verify: {error}\n")
            outcome = Outcome(UNREADABLE, ("$: the file can't be read [no-file]",))
        verdict = outcome.receipt.verdict if outcome.receipt is not None else None
        status, reasons = outcome.status, list(outcome.reasons)
        if status == HOLDS and arguments.require_pass and verdict != "PASS":
            status = REFUTED
            reasons.append("result.verdict: a PASS is required here [verdict-not-pass]")
        statuses.append(status)
        reports.append(_report(path, status, reasons, verdict, outcome))
    if arguments.format == "json":
        print(
            json.dumps({"schema": "accumlint/verification/v1", "receipts": reports}, indent=2, sort_keys=True)
        )
    else:
        for report in reports:
            said = f", verdict {report['verdict']}" if report["outcome"] == "holds" else ""
            print(f"{report['path']}: {report['outcome']}{said}")
            for reason in report["reasons"]:
                print(f"  {reason}")
    # a refuted receipt outweighs an unreadable one, and that one an open question
    return next((s for s in (REFUTED, UNREADABLE, UNVERIFIABLE) if s in statuses), HOLDS)


def _report(
    path: str, status: int, reasons: list[str], verdict: str | None, outcome: Outcome
) -> dict[str, Any]:
    from accumlint.receipt.verifying import WORDS

    return {
        "path": path,
        "outcome": WORDS[status],
        "status": status,
        "reasons": reasons,
        "verdict": verdict if status == 0 else None,
        "receipt_sha256": outcome.receipt.hashes["receipt_sha256"]
        if outcome.receipt and status == 0
        else None,
        "bound_files": [{"role": f.role, "state": f.state, "path": f.path} for f in outcome.files],
    }


def _load(path: str) -> tuple[int, Receipt | None]:
    """(status, receipt) of a receipt that must hold in itself before anything of it is shown."""
    from accumlint.receipt.limits import MAX_RECEIPT_BYTES
    from accumlint.receipt.verifying import verify_bytes

    outcome = verify_bytes(read_bytes(path, MAX_RECEIPT_BYTES))
    if outcome.status != 0:
        sys.stderr.write(f"{path}: {outcome.word}\n")
        for reason in outcome.reasons:
            sys.stderr.write(f"  {reason}\n")
        return outcome.status, None
    return 0, outcome.receipt


def _diff(arguments: argparse.Namespace) -> int:
    from accumlint.receipt.diffing import KINDS, diff

    for kind in arguments.ignore:
        if kind not in KINDS:
            raise UsageError(f"unknown kind {kind!r}; kinds: {', '.join(KINDS)}")
    pair = [_load(arguments.first)[1], _load(arguments.second)[1]]
    if pair[0] is None or pair[1] is None:
        return BROKEN  # what does not hold can't be compared
    changes = [c for c in diff(pair[0], pair[1]) if c.kind not in arguments.ignore]
    if arguments.format == "json":
        document = {
            "schema": "accumlint/receipt-diff/v1",
            "changes": [{"kind": c.kind, "path": c.path, "sentence": c.sentence} for c in changes],
            "verdicts": [pair[0].verdict, pair[1].verdict],
        }
        print(json.dumps(document, indent=2, sort_keys=True))
    else:
        for change in changes:
            print(f"{change.kind}: {change.path}: {change.sentence}")
        if pair[0].verdict != pair[1].verdict:
            print(f"verdict: {pair[0].verdict} became {pair[1].verdict}")
        if not changes:
            print("no difference")
    return DISAGREES if changes else 0


def _show(arguments: argparse.Namespace) -> int:
    from accumlint.receipt import export, showing

    status, receipt = _load(arguments.receipt)
    if receipt is None:
        return status
    if arguments.format == "text":
        encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
        text = showing.as_text(receipt, "█" if encoding == "utf8" or arguments.output else "#")
    elif arguments.format == "svg":
        text = showing.as_svg(receipt)
    elif arguments.format == "naive-svg":
        text = showing.as_svg(receipt, naive=True)
    elif arguments.format == "html":
        text = showing.as_html(receipt)
    elif arguments.format == "junit":
        text = export.junit(receipt)
    else:
        text = export.in_toto(receipt).decode("ascii")
    write_output(arguments.output, text.encode("utf-8"))
    return 0
