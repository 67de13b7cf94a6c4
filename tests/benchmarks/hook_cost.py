"""What the hook costs, side by side with what it can't do without: two ratios.

    python tests/benchmarks/hook_cost.py [SCRIPT] [--repeat 15]

1. a file without accumulation, against a bare interpreter that imports the same standard modules;
2. one training script (500 lines, made from the fixtures unless named), against ``import libcst`` and one parse of it.

Byte code is cached in a folder of its own, as it is in an installation; times are the best of all repetitions,
since whatever else the machine does only adds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "scripts"


def best(command: list[str], environment: dict[str, str], repeat: int) -> float:
    """Seconds of the fastest run; a command that breaks ends the benchmark, since its time would mean nothing."""
    first = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if first.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit code {first.returncode}\n{first.stderr}")
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)
        times.append(time.perf_counter() - start)
    return min(times)


def sample(folder: Path) -> Path:
    """A training script of about 500 lines: the longest fixture, with helpers around it that do nothing."""
    source = max((path.read_text(encoding="utf-8") for path in FIXTURES.glob("*.py")), key=len)
    number = 0
    while source.count("\n") < 500:
        number += 1
        source += f"\n\ndef helper_{number}(values):\n    return [value for value in values if value < 10]\n"
    path = folder / "train.py"
    path.write_text(source, encoding="utf-8")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("script", nargs="?", type=Path)
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        empty = folder / "plain.py"
        empty.write_text("print('no training here')\n")
        script = arguments.script or sample(folder)
        lines = script.read_bytes().count(b"\n")

        def python(code: str, *more: str) -> float:
            return best([sys.executable, "-c", code, *more], environment, arguments.repeat)

        def check(path: Path) -> float:
            command = [sys.executable, "-m", "accumlint", "check", "--isolated", str(path)]
            return best(command, environment, arguments.repeat)

        bare = python("pass")
        needed = python("import argparse, os, shutil, typing")
        parse = python("import libcst, sys; libcst.parse_module(open(sys.argv[1], 'rb').read())", str(script))
        plain, training = check(empty), check(script)
    print(f"python -c pass                        {bare * 1000:7.1f} ms")
    print(f"python with argparse, typing, shutil  {needed * 1000:7.1f} ms")
    print(f"check of a file without accumulation  {plain * 1000:7.1f} ms   ratio {plain / needed:.2f}")
    print(f"import libcst and one parse           {parse * 1000:7.1f} ms   ({lines} lines)")
    print(f"check of that training script         {training * 1000:7.1f} ms   ratio {training / parse:.2f}")


if __name__ == "__main__":
    main()
