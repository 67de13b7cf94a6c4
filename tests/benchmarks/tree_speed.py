"""A whole tree, side by side with what it can't do without and with other checkers: one table.

    python tests/benchmarks/tree_speed.py TREE [--peers BIN ...] [--jobs 2] [--limit 900]

``TREE`` is a folder with Python files, best a git repository. ``--peers`` names folders with the commands ``ruff``,
``flake8`` (with bugbear), ``torchfix`` and ``torch-preflight``; what is not there is left out of the table.

Everything runs in this order in one run: the floor (reading all Python files and parsing those that train with libcst),
accumlint without results of earlier runs, with a cold and with a warm cache, ``git status``, the peers. Processor seconds
are those of the command and all processes that it waited for; memory is that of the largest one of them.
"""

from __future__ import annotations

import argparse
import ast
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple


class Measured(NamedTuple):
    """One command: seconds by the clock, processor seconds, the peak memory of one process in MiB, the exit code."""

    wall: float
    cpu: float
    peak: float
    code: int


def measure(command: list[str], folder: str, limit: float) -> Measured:
    """Run a command to its end, or until the limit in seconds."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    timer = threading.Timer(limit, os.killpg, (process.pid, 9))
    timer.start()
    _, status, usage = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return Measured(
        time.perf_counter() - started, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode
    )


def trains(data: bytes) -> bool:
    """Whether a file calls a backward and a step."""
    if b"backward" not in data or b"step" not in data:
        return False
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return False
    called = {
        node.func.attr for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    return {"backward", "step"} <= called


def python_files(tree: str) -> list[str]:
    found = []
    for folder, below, names in os.walk(tree):
        below[:] = [name for name in below if name != ".git"]
        found += [os.path.join(folder, name) for name in names if name.endswith(".py")]
    return sorted(found)


def read_and_parse(share: tuple[list[str], list[str]]) -> int:
    import libcst

    files, training = share
    size = 0
    for path in files:
        size += len(Path(path).read_bytes())
    for path in training:
        libcst.parse_module(Path(path).read_bytes())
    return size


def floor(listing: str, jobs: int) -> None:
    """The child of this benchmark: reads and parses the files that a listing names."""
    files, _, training = Path(listing).read_text().partition("\0")
    shares = [(files.split("\n")[n::jobs], training.split("\n")[n::jobs] if training else []) for n in range(jobs)]
    with ProcessPoolExecutor(jobs) as pool:
        list(pool.map(read_and_parse, shares))


def peers(folders: list[str], jobs: int) -> list[tuple[str, list[str]]]:
    """(name, command) of the peers that are installed in any of the folders."""

    def find(name: str) -> str | None:
        return next((found for folder in folders if (found := shutil.which(name, path=folder))), None)

    rows = []
    for name, arguments in (
        ("ruff", ["check", "--no-cache", "--isolated", "-q", "."]),
        ("flake8", ["--isolated", f"-j{jobs}", "-q", "."]),
        ("torchfix", ["-j", str(jobs), "."]),
        ("torch-preflight", ["check", "."]),
    ):
        command = find(name)
        if command is not None:
            rows.append((name, [command, *arguments]))
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--floor"]:
        return floor(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tree")
    parser.add_argument("--peers", nargs="*", default=[], metavar="BIN")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=900, help="seconds for each command")
    asked = parser.parse_args()
    tree = os.path.abspath(asked.tree)
    files = python_files(tree)
    contents = [Path(path).read_bytes() for path in files]
    lines = sum(data.count(b"\n") for data in contents)
    training = [path for path, data in zip(files, contents) if trains(data)]
    del contents
    print(f"{len(files)} Python files, {lines:,} lines, {len(training)} that call a backward and a step; {asked.jobs} workers")
    with tempfile.TemporaryDirectory() as work:
        listing = os.path.join(work, "files")
        Path(listing).write_text("\n".join(files) + "\0" + "\n".join(training))
        # test code counts: peers don't leave it out either
        check = [sys.executable, "-m", "accumlint", "check", "--isolated", "--include-tests", "--format", "github", "-j", str(asked.jobs)]
        kept = ["--cache-dir", os.path.join(work, "kept")]
        rows = [
            ("read all, parse training", [sys.executable, __file__, "--floor", listing, str(asked.jobs)]),
            ("accumlint, no cache", [*check, "--no-cache", "."]),
            ("accumlint, cold cache", [*check, *kept, "."]),
            ("accumlint, warm cache", [*check, *kept, "."]),
            ("accumlint, warm again", [*check, *kept, "."]),
        ]
        if shutil.which("git") and os.path.isdir(os.path.join(tree, ".git")):
            rows.append(("git status", ["git", "status", "--porcelain"]))
        rows += peers(asked.peers, asked.jobs)
        measured: dict[str, Measured] = {}
        print(f"{'':26}{'wall s':>9}{'CPU s':>9}{'lines/CPU s':>13}{'peak MiB':>10}  code", flush=True)
        for name, command in rows:
            m = measured[name] = measure(command, tree, asked.limit)
            limit = "  (limit)" if m.code < 0 else ""
            print(f"{name:26}{m.wall:9.2f}{m.cpu:9.2f}{lines / m.cpu:13,.0f}{m.peak:10.0f}{m.code:6}{limit}", flush=True)
    cold, warm = measured["accumlint, no cache"], measured["accumlint, warm again"]
    # on a machine that does other things, too, the clock says more about those
    for title, mine, other in (
        ("cold against reading and parsing", cold, measured["read all, parse training"]),
        ("warm against git status", warm, measured.get("git status")),
    ):
        if other is not None:
            print(f"{title}: {mine.wall / other.wall:.2f} by the clock, {mine.cpu / other.cpu:.2f} in CPU seconds")
    for name, _ in peers(asked.peers, asked.jobs):
        print(f"lines per CPU second, accumlint against {name}: {measured[name].cpu / cold.cpu:.2f}")


if __name__ == "__main__":
    main()
