"""What the hook costs, side by side with what it can't do without: two ratios.

    python tests/benchmarks/hook_cost.py [SCRIPT] [--repeat 15]

1. a file without accumulation, against a bare interpreter that imports the same standard modules;
2. one training script (500 lines, made from the fixtures unless named), without the cache of results, against
   ``import libcst``, one parse of it and the positions of its nodes: a script that is right, which is what a hook sees
   nearly always, and one with a finding, for which fixes are tried out as well.

Byte code is cached in a folder of its own, as it is in an installation. The commands take turns, so that whatever else
the machine does meets all of them, and each time is the best of its turns: processor seconds, since the wall clock
would also count the waiting for a core.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "scripts"

POSITIONS = """
import libcst, sys
from libcst.metadata import MetadataWrapper, PositionProvider
tree = libcst.parse_module(open(sys.argv[1], "rb").read())
MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)
"""


def once(command: list[str], environment: dict[str, str]) -> float:
    """Processor seconds of one run; a command that breaks ends the benchmark, since its time would mean nothing."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def best(commands: dict[str, list[str]], environment: dict[str, str], repeat: int) -> dict[str, float]:
    """Processor seconds of the fastest run of each command, the commands taking turns."""
    times = {name: float("inf") for name in commands}
    for turn in range(repeat + 1):
        for name, command in commands.items():
            seconds = once(command, environment)
            if turn:  # the first one writes byte code
                times[name] = min(times[name], seconds)
    return times


def sample(folder: Path, name: str) -> str:
    """A training script of about 500 lines: a fixture, with helpers behind it that do nothing."""
    source = (FIXTURES / name).read_text(encoding="utf-8")
    number = 0
    while source.count("\n") < 500:
        number += 1
        source += f"\n\ndef helper_{number}(values):\n    return [value for value in values if value < 10]\n"
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return str(path)


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
        if arguments.script:
            scripts = {"the script": str(arguments.script)}
        else:
            scripts = {"a right one": sample(folder, "gan_windows.py"), "one with a finding": sample(folder, "asr_ctc_ddp.py")}
        python = [sys.executable, "-c"]
        check = [sys.executable, "-m", "accumlint", "check", "--isolated", "--no-cache"]
        commands = {
            "bare": [*python, "pass"],
            "needed": [*python, "import argparse, os, shutil, typing"],
            "plain": [*check, str(empty)],
        }
        for name, script in scripts.items():
            commands[f"positions of {name}"] = [*python, POSITIONS, script]
            commands[f"check of {name}"] = [*check, script]
        t = best(commands, environment, arguments.repeat)
    print(f"python -c pass                        {t['bare'] * 1000:7.1f} ms")
    print(f"python with argparse, typing, shutil  {t['needed'] * 1000:7.1f} ms")
    print(f"check of a file without accumulation  {t['plain'] * 1000:7.1f} ms   ratio {t['plain'] / t['needed']:.2f}")
    for name in scripts:
        floor, mine = t[f"positions of {name}"], t[f"check of {name}"]
        print(f"{name + ': libcst, parse, positions':38}{floor * 1000:7.1f} ms")
        print(f"{name + ': check':38}{mine * 1000:7.1f} ms   ratio {mine / floor:.2f}")


if __name__ == "__main__":
    main()
