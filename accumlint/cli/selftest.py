"""``accumlint selftest``: breaks a correct loop in every known way and shows that each fault is seen."""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import ArgumentParser, Namespace

SUMMARY = "break a correct loop in every known way: each judgement must turn red, the control stay green"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--format", choices=("text", "json"), default="text")


def run(arguments: Namespace) -> int:
    if importlib.util.find_spec("torch") is None:
        sys.stderr.write("accumlint: selftest runs loops and needs torch: pip install 'accumlint[probe]'\n")
        return 2
    from accumlint.probe import selftest

    outcomes = selftest.run()
    failed = sum(not outcome.passed for outcome in outcomes)
    if arguments.format == "json":
        rows = [{"name": o.name, "passed": o.passed, "said": o.said} for o in outcomes]
        print(json.dumps({"schema": "accumlint/selftest/v1", "outcomes": rows, "failed": failed}, indent=1))
    else:
        for outcome in outcomes:
            print(f"{'ok    ' if outcome.passed else 'MISSED'} {outcome.name}: {outcome.said}")
        print(f"{len(outcomes) - failed} of {len(outcomes)} as they should be")
    return 1 if failed else 0
