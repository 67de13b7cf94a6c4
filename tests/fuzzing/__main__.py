"""``python -m tests.fuzzing --minutes 60 [--differential]``: loops until the time is up, then counts and disagreements.

Every disagreement that no known gap explains is shrunk to the plainest loop that still shows it and written to a file of
its own, with the line that reproduces it. The exit code is 1 if there were any.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable

from . import comparing, gaps, judging, mutations, recipes, running
from .judging import Case


MOST = 8  # disagreements of one mutation that are shrunk and kept: what comes after has most often the same causes


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzzing", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; later ones follow")
    parser.add_argument("--loops", type=int, default=0, help="stop after so many seeds (default: when the time is up)")
    parser.add_argument("--differential", action="store_true", help="also run every loop under the recorder, and compare event by event (needs torch)")
    parser.add_argument("--mutations-per-loop", type=int, default=3, help="with --differential: how many mutations of a loop are run (default 3)")
    parser.add_argument("--only", default="", help="only this mutation (`correct` for none)")
    parser.add_argument("--framework", default="", choices=["", *recipes.FIELDS["framework"]], help="only loops that are written with this one")
    parser.add_argument("--out", default="disagreements", help="folder for what was found (default: disagreements)")
    parser.add_argument("--show", type=int, metavar="SEED", default=None, help="print the loop of a seed (with --only: as that mutation breaks it) and leave")
    asked = parser.parse_args(arguments)
    if asked.show is not None:
        return _show(asked.show, asked.only, asked.framework)
    runner = running.Runner() if asked.differential else None
    try:
        return _go_on(asked, runner)
    finally:
        if runner is not None:
            runner.__exit__()


def _show(seed: int, only: str, framework: str) -> int:
    for case in judging.cases(seed, framework):
        if case.mutation == ("" if only in ("", "correct") else only):
            script = case.script()
            print(script.source if script is not None else "does not apply", end="")
            return 0
    print(f"no mutation is called {only!r}", file=sys.stderr)
    return 2


def _go_on(asked: argparse.Namespace, runner: running.Runner | None) -> int:
    warnings.simplefilter("ignore")
    stop = time.monotonic() + asked.minutes * 60
    judged: Counter[str] = Counter()
    compared: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    found: dict[tuple[str, str], str] = {}
    seed = asked.seed
    while time.monotonic() < stop and (not asked.loops or seed < asked.seed + asked.loops):
        for number, case in enumerate(judging.cases(seed, asked.framework)):
            name = case.mutation or "correct"
            if asked.only and name != asked.only or case.script() is None:
                continue
            judged[name] += 1
            gap = gaps.of(case.recipe, case.mutation)
            if gap is not None:
                explained[gap.reason] += 1
            text = judging.unexplained(case)
            if text:
                _keep(asked, found, seed, name, text, lambda case=case: judging.minimised(case), judging.unexplained)
            if runner is not None and not running.missing(case.recipe.framework) and (number == 0 or asked.only or (number + seed) % len(mutations.ALL) < asked.mutations_per_loop):
                compared[name] += 1
                gap = gaps.of_run(case.recipe, case.mutation)
                if gap is not None:
                    explained[gap.reason] += 1
                text = comparing.unexplained(runner, case)
                if text:
                    _keep(
                        asked, found, seed, name + " run", text, lambda case=case: comparing.minimised(runner, case),
                        lambda case: comparing.unexplained(runner, case),
                    )  # fmt: skip
        seed += 1
    print(f"{seed - asked.seed} loops, seeds {asked.seed} to {seed - 1}")
    for name in ("correct", *mutations.ALL):
        if judged[name]:
            print(f"  {judged[name]:7} checked {compared[name]:6} run   {name}")
    print(f"  {sum(judged.values()):7} checked {sum(compared.values()):6} run   in all")
    for reason, count in sorted(explained.items()):
        print(f"  {count:7} explained: {reason}")
    print(f"{len(found)} kinds of disagreement are not explained" + (f": see {asked.out}" if found else ""))
    return 1 if found else 0


def _keep(
    asked: argparse.Namespace, found: dict[tuple[str, str], str], seed: int, name: str, text: str, minimise: Callable[[], Case], told: Callable[[Case], str]
) -> None:
    """Write down what was found, shrunk; two that shrink to the same loop are one. Only so many of a name are shrunk."""
    if sum(1 for known, _ in found if known == name) >= MOST:
        return
    shrunk = minimise()
    if (name, str(shrunk.recipe)) in found:
        return
    final = told(shrunk) or text
    os.makedirs(asked.out, exist_ok=True)
    option = f" --framework {asked.framework}" if asked.framework else ""
    path = os.path.join(asked.out, f"{len(found):03}-{seed}-{name.replace(' ', '-')}.txt")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(f"{final}\n\nFound with seed {seed} ({name}); again with\n  python -m tests.fuzzing --seed {seed} --loops 1 --only '{name.removesuffix(' run')}'{option}\n")
    found[name, str(shrunk.recipe)] = path
    print(f"seed {seed}, {name}: {final.splitlines()[0][:200]}\n  {shrunk.recipe}\n  {path}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
