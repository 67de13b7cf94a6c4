"""One generated loop, simulated and run: do truth, simulation and run tell the same story?"""

from __future__ import annotations

from dataclasses import dataclass

from . import gaps, generate, recipes, running, witnesses
from .judging import Case
from .script import Script


# faults that torch itself refuses, unless an update happens to come between
LOUD = ("unscaled in every microbatch", "scaler updated in every microbatch", "scheduler follows a skipped step", "the module steps the optimizer as well")
REFUSALS = ("unscale_", "No inf checks were recorded", "modified by an inplace operation")


@dataclass(frozen=True)
class Disagreement:
    """``between``: which tellings part: truth and run, simulation and run, or the script itself failed."""

    case: Case
    script: Script
    between: str
    text: str

    def __str__(self) -> str:
        return f"{self.between}: {self.text}\n{self.case}\n{self.case!r}\n\n{self.script.numbered}"


def disagreement(runner: running.Runner, case: Case) -> Disagreement | None:
    """Where the tellings of a case part. None too where the mutation does not apply.

    Of a correct loop the run must show the windows that follow from the recipe, and weights that are all right.
    """
    script = case.script()
    if script is None:
        return None
    parallel = case.recipe.ddp != "none"
    try:
        recordings = runner.run(script.source, parallel)
    except running.Failed as error:
        if case.mutation in LOUD and any(words in str(error) for words in REFUSALS):
            return None
        return Disagreement(case, script, "the script fails", str(error))
    except running.Stuck as error:
        return Disagreement(case, script, "the script hangs", str(error))
    run = witnesses.recorded(recordings)
    if run is None:
        return Disagreement(case, script, "nothing was recorded", "")
    paths = witnesses.read(script.source)
    if case.recipe.window == "automatic":
        paths, run = [witnesses.placeless(path) for path in paths], witnesses.placeless(run)
    elif case.recipe.window == "manual":
        run = witnesses.without(run, script.lines("fit"))
    parts = [witnesses.differences(path, run) for path in paths]
    if all(parts):  # some path that was simulated must be the one that was run
        best = min(parts, key=len, default=["nothing was simulated"])
        return Disagreement(case, script, "simulation and run", "; ".join(best))
    if not case.mutation:
        wrong = _untrue(case, run)
        if wrong:
            return Disagreement(case, script, "truth and run", wrong)
    return None


def _untrue(case: Case, run: witnesses.Told) -> str:
    truth = generate.truth(case.recipe)
    wanted = [list(window) for window in truth.windows]
    seen = [[sorted(window) for window in windows] for windows in run.windows.values()]
    if wanted not in seen:
        return f"windows: by construction {wanted}, run {seen}"
    ratios = {ratio for windows in run.ratios.values() for window in windows for ratio in window}
    if ratios != {1, truth.tail}:
        return f"weights: by construction {sorted(map(str, {1, truth.tail}))}, in the run {sorted(map(str, ratios))} times what they should be"
    return ""


def unexplained(runner: running.Runner, case: Case) -> str:
    """What a run has to report of a case: a disagreement that no known gap explains, or a gap that is none any more."""
    found = disagreement(runner, case)
    gap = gaps.of_run(case.recipe, case.mutation)
    if found is not None and gap is None:
        return str(found)
    if found is None and gap is not None and case.script() is not None:
        return f"no gap any more: {gap.reason}\n{case}\n{case!r}"
    return ""


def minimised(runner: running.Runner, case: Case, budget: int = 60) -> Case:
    """The plainest recipe for which the same two tellings part."""
    first = disagreement(runner, case)
    if first is None:
        return case

    def fails(recipe: recipes.Recipe) -> bool:
        made = disagreement(runner, Case(recipe, case.mutation))
        return made is not None and made.between == first.between and gaps.of_run(recipe, case.mutation) is None

    return Case(recipes.shrunk(case.recipe, fails, budget), case.mutation)
