"""Breaks the tool if it can be broken: real files by the thousand, damaged scripts, damaged configurations.

    python tests/benchmarks/hammer.py [FOLDER ...] [--files 20000] [--scripts 10000] [--configurations 10000] [--seed 0]

1. the Python files below the folders, checked as one tree by 1, 2 and 8 workers and named in a shuffled order: the same
   bytes each time, and nothing that broke inside;
2. scripts of ours with random damage, each analysed by the engine: nothing breaks inside, nothing takes longer than the
   limit for one file, and memory does not grow with their number;
3. trees of configurations with random damage, each audited.

What broke is kept in a folder that is named at the end. The exit code is 1 where anything did.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "robustness"))

from hammer_helpers import (  # noqa: E402
    complaint_on_configurations,
    damaged_configurations,
    damaged_scripts,
)

from accumlint import runner  # noqa: E402

BLOCK = 500  # mutations after which the engine starts anew, as workers do


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def real_files(folders: list[str], most: int, seed: int) -> list[str]:
    found = sorted({os.path.realpath(path) for folder in folders for path in Path(folder).rglob("*.py") if path.is_file()})
    random.Random(seed).shuffle(found)
    return found[:most]


def many_workers(files: list[str]) -> list[str]:
    """What is wrong with the runs over real files; prints a line for each of them."""
    complaints = []
    digests = set()
    with tempfile.TemporaryDirectory() as work:
        for jobs, seed in ((2, None), (1, None), (8, None), (2, 1), (2, 2)):
            named = sorted(files)
            if seed is not None:
                random.Random(seed).shuffle(named)
            # a list of twenty thousand names is longer than a command line may be
            code = "import sys; from accumlint.cli.main import main; names = open(sys.argv.pop()).read().split(chr(0)); sys.exit(main(sys.argv[1:] + names))"
            listing = os.path.join(work, "names")
            Path(listing).write_text("\0".join(named), errors="surrogateescape")
            command = [sys.executable, "-c", code, "check", "--isolated", "--no-cache", "--format", "rdjsonl", "-j", str(jobs), listing]
            started = time.perf_counter()
            done = subprocess.run(command, capture_output=True, check=False, cwd=work)
            digest = hashlib.sha256(done.stdout).hexdigest()[:16]
            digests.add((digest, done.returncode))
            order = "sorted" if seed is None else f"shuffled by {seed}"
            print(f"  {jobs} workers, {order}: exit code {done.returncode}, {done.stdout.count(b'{'):,} braces of output, {digest}, {time.perf_counter() - started:.0f} s", flush=True)
            errors = done.stderr.decode(errors="replace")
            told = [line for line in errors.splitlines() if "internal error" in line or "Traceback" in line or "died" in line]
            complaints += told[:20]
            if done.returncode not in (0, 1, 2):
                complaints.append(f"exit code {done.returncode}: {errors[-2000:]}")
    if len(digests) > 1:
        complaints.append(f"not the same for any number of workers and order of files: {sorted(digests)}")
    return complaints


def mutations(name: str, count: int, seed: int, kept: Path) -> list[str]:
    complaints: list[str] = []
    slowest = 0.0
    skipped: collections.Counter[str] = collections.Counter()
    started, before = time.perf_counter(), memory()
    for block in range(0, count, BLOCK):
        engine = runner.Engine(runner.EngineChoice())
        number = min(BLOCK, count - block)
        cases = damaged_scripts(number, seed + block) if name == "scripts" else damaged_configurations(number, seed + block)
        for position, case in enumerate(cases):
            began = time.perf_counter()
            try:
                if name == "scripts":
                    outcome = engine.analyse("train.py", case)
                    said = outcome.failure
                    skipped[outcome.skipped or f"{len(outcome.findings)} findings"] += 1
                else:
                    said = complaint_on_configurations(case)
            except BaseException as error:  # noqa: BLE001 - the very thing that is looked for
                said = f"raised {type(error).__name__}: {error}"
            seconds = time.perf_counter() - began
            slowest = max(slowest, seconds)
            if seconds > runner.SECONDS_PER_FILE:
                said = said or f"took {seconds:.0f} s"
            if said:
                place = kept / f"{name}-{seed + block}-{position}"
                place.write_text(repr(case))
                complaints.append(f"{place.name}: {said}")
    print(
        f"  {count:,} damaged {name}: {len(complaints)} broke something, {time.perf_counter() - started:.0f} s,"
        f" slowest {slowest:.1f} s, memory {before} -> {memory()} MiB", flush=True
    )
    if skipped:
        print("   ", ", ".join(f"{what} {times}" for what, times in skipped.most_common(8)))
    return complaints


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*")
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--scripts", type=int, default=10_000)
    parser.add_argument("--configurations", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    kept = Path(tempfile.mkdtemp(prefix="hammer-"))
    complaints = []
    if asked.folders:
        files = real_files(asked.folders, asked.files, asked.seed)
        print(f"{len(files):,} real files")
        complaints += many_workers(files)
    if asked.scripts:
        with runner.at_work():
            complaints += runner.deep(mutations, "scripts", asked.scripts, asked.seed, kept)
    if asked.configurations:
        with runner.at_work():
            complaints += runner.deep(mutations, "configurations", asked.configurations, asked.seed, kept)
    for complaint in complaints:
        print("BROKEN", complaint)
    print(f"{len(complaints)} complaints" + (f", cases in {kept}" if complaints else ""))
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
