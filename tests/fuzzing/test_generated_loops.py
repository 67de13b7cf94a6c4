"""The checker on generated loops: silent on every correct one, and the right rule at the right line on every broken one.

``python -m tests.fuzzing`` goes on where this stops.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from . import gaps, generate, judging, mutations, recipes
from .judging import Case

LOOPS = 440  # seeds; with every one come the correct loop and this many mutations
MUTATIONS = 3
PARTS = 8
EACH = 6  # loops for every mutation by itself


def _cases(seed: int) -> list[Case]:
    """The correct loop and the mutations whose turn it is, of those that apply."""
    correct, *broken = (case for case in judging.cases(seed) if case.script() is not None)
    start = seed * MUTATIONS
    return [correct, *(broken[(start + i) % len(broken)] for i in range(MUTATIONS))]


@pytest.mark.parametrize("part", range(PARTS))
def test_loops_of_seeds(part):
    for seed in range(part, LOOPS, PARTS):
        for case in _cases(seed):
            told = judging.unexplained(case)
            assert not told, f"seed {seed}\n{judging.unexplained(judging.minimised(case)) or told}"


@pytest.mark.parametrize("name", mutations.ALL)
def test_every_mutation_is_tried(name):
    """Rare ones too: those that need a checkpoint counted in updates, or a scaler and a schedule, or one framework."""
    tried = 0
    frameworks = recipes.FIELDS["framework"]
    for seed in range(10_000, 13_000):
        given = {"framework": frameworks[seed // 2 % len(frameworks)]} if seed % 2 else {}
        case = Case(recipes.seeded(seed, **given), name)
        if case.script() is not None:
            told = judging.unexplained(case)
            assert not told, f"seed {seed}\n{judging.unexplained(judging.minimised(case)) or told}"
            tried += 1
            if tried == EACH:
                return
    raise AssertionError("no recipe takes this mutation")


@st.composite
def made(draw: st.DrawFn) -> Case:
    """Any allowed recipe, broken or not; shrinks to the plainest choices."""
    recipe = recipes.draw(lambda field, options: draw(st.sampled_from(options), label=field), draw(st.integers(0, 999)))
    return Case(recipe, draw(st.sampled_from(["", *mutations.ALL])))


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(made())
def test_loops_that_hypothesis_shrinks(case):
    assert judging.unexplained(case) == ""


@pytest.mark.parametrize("seed", range(0, 300, 25))
def test_what_is_generated_is_a_program_and_the_same_every_time(seed):
    recipe = recipes.seeded(seed)
    assert recipes.valid(recipe) and recipe == recipes.seeded(seed)
    for case in judging.cases(seed):
        script = case.script()
        if script is not None:
            compile(script.source, "loop.py", "exec")
            assert script == case.script()
            assert not case.mutation or script.source != generate.script(recipe).source
            assert not case.mutation or script.lines(*mutations.ALL[case.mutation].marks)


def test_what_shrinks_stays_allowed_and_becomes_plainer():
    recipe = recipes.seeded(3)
    shrunk = recipes.shrunk(recipe, lambda r: r.window == recipe.window)
    assert recipes.valid(shrunk) and shrunk.window == recipe.window
    assert recipes.shrunk(recipe, lambda r: True) == recipes.Recipe()


def test_a_wrong_answer_is_told_with_its_script():
    """The check can fail: a correct loop passed off as a broken one."""
    case = Case(recipes.Recipe(), "mean losses summed")
    script = Case(recipes.Recipe()).script()
    wanted = mutations.ALL[case.mutation]
    assert not any(f.rule in wanted.rules for f in judging.findings(script))
    assert judging.complaint(Case(recipes.Recipe())) is None
    told = judging.Complaint(case, script, "missed")
    assert "optimizer.step()" in str(told) and "mean losses summed" in str(told)


@pytest.mark.parametrize("gap", gaps.STATIC, ids=lambda gap: gap.reason[:60])
def test_known_gaps_still_are(gap):
    """An entry whose example is answered rightly by now has to go."""
    for mutation in gap.mutations:
        case = Case(gap.example, mutation)
        assert gaps.of(case.recipe, mutation) is gap
        assert judging.complaint(case) is not None, "this gap is closed: take it off the list"
