"""``accumlint rejects list | show | replay``: the archive of refused manifests."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

SUMMARY = "list, show or replay archived rejected manifests"

DIFFERENT, BROKEN, NOTHING = 1, 2, 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="action", required=True, metavar="list | show | replay")
    listing = commands.add_parser("list", help="one line per refusal: its name and reason codes")
    show = commands.add_parser("show", help="one refusal, with its redacted manifest")
    show.add_argument("name", help="name of the record, or the beginning of it")
    replay = commands.add_parser("replay", help="validate again (0 same reasons, 1 not, 3 nothing to replay)")
    replay.add_argument("names", nargs="*", help="names of records (default: all)")
    for command in (listing, show, replay):
        command.add_argument("--archive", metavar="DIR", help="the archive (default: .accumlint/rejects)")


def run(arguments: argparse.Namespace) -> int:
    from accumlint.receipt import rejects
    from accumlint.receipt.problems import REASONS

    folder = Path(arguments.archive) if arguments.archive else rejects.DEFAULT_FOLDER
    wanted = [arguments.name] if arguments.action == "show" else getattr(arguments, "names", [])
    found, broken = [], False
    for path in sorted(folder.glob("*.json")):
        if wanted and not any(path.stem.startswith(name) for name in wanted):
            continue
        try:
            found.append((path.stem, rejects.load_record(path)))
        except rejects.ArchiveError as error:
            sys.stderr.write(f"accumlint rejects: {error}\n")
            broken = True
    for name in wanted:
        if not any(stem.startswith(name) for stem, _ in found):
            sys.stderr.write(f"accumlint rejects: no record {name} in {folder}\n")
            broken = True
    if broken and not found:
        return BROKEN
    if not found:
        print(f"no refusals in {folder}")
        return NOTHING
    if arguments.action == "list":
        for name, record in found:
            codes = ", ".join(
                f"{code} ({n})" if n > 1 else code for code, n in sorted(record["counts"].items())
            )
            kept = "replayable" if record["document"] is not None else "reasons only"
            print(f"{name}  {kept}  {codes}")
    elif arguments.action == "show":
        for name, record in found:
            print(name)
            for reason in record["reasons"]:
                print(f"  {reason['path']}: {REASONS.get(reason['code'], '')} [{reason['code']}]")
            print(json.dumps(record, indent=2, sort_keys=True))
    else:
        outcomes = [rejects.replay(name, record) for name, record in found]
        for outcome in outcomes:
            print(f"{outcome.name}  {outcome.outcome}  {', '.join(outcome.codes)}")
        if any(o.outcome in ("different", "accepted") for o in outcomes):
            return DIFFERENT
        if not broken and all(o.outcome == "not-replayable" for o in outcomes):
            return NOTHING
    return BROKEN if broken else 0
