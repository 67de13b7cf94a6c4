"""A cause is reported once; what follows from it isn't said beside it."""

import pytest
from contract_traces import Recorder

from accumlint import knowledge
from accumlint.contract.clauses import CONSEQUENCES, without_consequences
from accumlint.contract.verdicts import Violation


def left(*rules):
    return [v.rule for v in without_consequences([Violation(rule, 1, "") for rule in rules])]


@pytest.mark.parametrize("cause", sorted(CONSEQUENCES))
def test_a_cause_hides_its_consequences_and_nothing_else(cause):
    assert left(cause) == [cause]
    for consequence in CONSEQUENCES[cause]:
        assert left(consequence) == [consequence]  # alone it stays
        if cause not in CONSEQUENCES.get(consequence, ()):
            assert left(consequence, cause) == [cause]


def test_unrelated_faults_stay_side_by_side():
    assert left("ACC101", "ACC202", "ACC401") == ["ACC101", "ACC202", "ACC401"]


def test_the_order_and_repetitions_of_causes_are_kept():
    assert left("ACC503", "ACC101", "ACC106", "ACC101") == ["ACC101", "ACC101"]


def test_an_offset_boundary_that_also_gets_stuck_is_not_passed_over_in_silence():
    t = Recorder((4,) * 14)

    def body(i):
        t.backward(t.mean(3))
        if i in (0, 3):
            with t.gate():
                t.step()
                t.clear()

    assert t.train(body).ledger.sizes == [1, 3]
    assert t.violations().keys() & {"ACC206", "ACC213"}


def test_no_two_causes_hide_each_other():
    for cause, consequences in CONSEQUENCES.items():
        assert cause not in consequences
        for consequence in consequences:
            assert cause not in CONSEQUENCES.get(consequence, ()), (cause, consequence)


def test_all_names_are_rules():
    known = set(knowledge.rules())
    assert set(CONSEQUENCES) | set().union(*CONSEQUENCES.values()) <= known
