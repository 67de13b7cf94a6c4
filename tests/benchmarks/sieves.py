"""Shows on real trees that the two cheap sieves lose nothing: every file is simulated, whatever they say of it.

    python tests/benchmarks/sieves.py TREE [TREE ...] [--seconds 20]

For each file that a sieve would end, the engine is asked anyway; a finding, or a loop with a window, is a loss and is
printed. Files of a tree are taken one by one, each with a project of its own; one that takes longer than ``--seconds`` is
counted and left. The exit code is 1 where anything was lost.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from accumlint.runner import at_work
from accumlint.static.engine import EngineSettings, Project, Trees, examine
from accumlint.static.sieve import may_accumulate
from accumlint.static.structure import worth_simulating


class TooSlow(Exception):
    pass


def sieve_of(data: bytes) -> str:
    """The sieve that ends a file; empty where it comes through."""
    if not may_accumulate(data):
        return "bytes"
    try:
        return "" if worth_simulating(data) else "structure"
    except RecursionError:
        return "depth"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="+")
    parser.add_argument("--seconds", type=int, default=20)
    asked = parser.parse_args()
    counts: dict[str, int] = {}
    spent: dict[str, float] = {}
    lost = 0
    settings, trees = EngineSettings(), Trees()

    def late(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGALRM, late)
    for tree in asked.trees:
        for path in sorted(Path(tree).rglob("*.py")):
            if not path.is_file():
                continue
            data = path.read_bytes()
            started = time.process_time()
            sieve = sieve_of(data)
            spent["sieves"] = spent.get("sieves", 0.0) + time.process_time() - started
            counts[sieve or "through"] = counts.get(sieve or "through", 0) + 1
            if sieve in ("", "depth") or len(data) > 400_000:
                continue
            name = os.path.relpath(path)
            started = time.process_time()
            signal.alarm(asked.seconds)
            try:
                report = examine(data, name, Project(tree, trees), settings)
            except TooSlow:
                counts["too slow"] = counts.get("too slow", 0) + 1
                continue
            except Exception:  # noqa: BLE001 - what cannot be read would be said by the reader of scripts
                counts["unreadable"] = counts.get("unreadable", 0) + 1
                continue
            finally:
                signal.alarm(0)
                spent[sieve] = spent.get(sieve, 0.0) + time.process_time() - started
            windows = [loop for loop in report.loops if loop.timelines]
            if report.findings or windows:
                lost += 1
                told = ", ".join(f"{finding.rule}:{finding.span.line}" for finding in report.findings) or "a window"
                print(f"LOST by the sieve of {sieve}: {name}: {told}", flush=True)
    print("files:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    print("CPU seconds:", ", ".join(f"{name} {seconds:.1f}" for name, seconds in sorted(spent.items())))
    print(f"lost: {lost}")
    return 1 if lost else 0


if __name__ == "__main__":
    with at_work():
        sys.exit(main())
