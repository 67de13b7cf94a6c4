"""Generated loops, simulated and run: truth by construction, simulation and recording tell the same story.

``python -m tests.fuzzing --differential`` goes on where this stops.
"""

import pytest

from . import comparing, gaps, mutations, recipes, running, witnesses
from .judging import Case

pytest.importorskip("torch", reason="torch is not installed")

ALONE, PARALLEL, FRAMEWORKS = 24, 8, 6  # loops; each once right and once broken


@pytest.fixture(scope="module")
def runner():
    with running.Runner() as held:
        yield held


def _case(seed: int, broken: bool, **fixed: str) -> Case:
    recipe = recipes.seeded(seed, **fixed)
    if not broken:
        return Case(recipe)
    names = [name for name in mutations.ALL if Case(recipe, name).script() is not None]
    return Case(recipe, names[seed % len(names)])


@pytest.mark.parametrize("broken", [False, True], ids=["right", "broken"])
@pytest.mark.parametrize("seed", range(ALONE))
def test_one_process(runner, seed, broken):
    assert comparing.unexplained(runner, _case(seed, broken, framework="torch", ddp="none")) == ""


@pytest.mark.parametrize("broken", [False, True], ids=["right", "broken"])
@pytest.mark.parametrize("seed", range(PARALLEL))
def test_two_ranks(runner, seed, broken):
    case = _case(seed, broken, framework="torch", ddp=("context", "branch", "flag", "always")[seed % 4])
    assert comparing.unexplained(runner, case) == ""


@pytest.mark.parametrize("broken", [False, True], ids=["right", "broken"])
@pytest.mark.parametrize("seed", range(FRAMEWORKS))
@pytest.mark.parametrize("framework", [name for name in running.PACKAGES])
def test_a_framework(runner, framework, seed, broken):
    if running.missing(framework):
        pytest.skip(running.missing(framework))
    assert comparing.unexplained(runner, _case(seed, broken, framework=framework)) == ""


def test_a_wrong_simulation_is_told(runner):
    """The comparison can fail: the run of one loop beside the simulation of another."""
    recipe = recipes.Recipe(task="causal", window="listed")
    run = witnesses.recorded(runner.run(Case(recipe).script().source, parallel=False))
    (right,) = witnesses.read(Case(recipe).script().source)
    (other,) = witnesses.read(Case(recipe, "counted before the shift").script().source)
    assert witnesses.differences(right, run) == []
    assert any("weight of microbatch 0 in window 0" in difference for difference in witnesses.differences(other, run))


@pytest.mark.parametrize("gap", gaps.RUN, ids=lambda gap: gap.reason[:60])
def test_known_gaps_still_are(runner, gap):
    """An entry whose example agrees by now has to go."""
    for mutation in gap.mutations:
        if Case(gap.example, mutation).script() is None:
            continue
        assert comparing.disagreement(runner, Case(gap.example, mutation)) is not None, "this gap is closed: take it off the list"


