"""A slice of what ``tests/benchmarks/hammer.py`` runs by the ten thousand: nothing breaks inside."""

import pytest
from hammer_helpers import (
    complaint_on_configurations,
    complaint_on_script,
    damaged_configurations,
    damaged_scripts,
)

from accumlint import runner


@pytest.mark.parametrize("seed", range(4))
def test_damaged_scripts_break_nothing(seed):
    def all_of_them():
        engine = runner.Engine(runner.EngineChoice())
        return [(data, said) for data in damaged_scripts(40, seed) if (said := complaint_on_script(engine, data))]

    assert runner.deep(all_of_them) == []


@pytest.mark.parametrize("seed", range(4))
def test_damaged_configurations_break_nothing(seed):
    broken = [(files, said) for files in damaged_configurations(60, seed) if (said := complaint_on_configurations(files))]
    assert broken == []


def test_the_same_seed_gives_the_same_damage():
    assert list(damaged_scripts(5, 1)) == list(damaged_scripts(5, 1)) != list(damaged_scripts(5, 2))
