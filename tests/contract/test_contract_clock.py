"""C2: one step, schedule step, scaler update and clear in each window, at its last microbatch."""

from fractions import Fraction

import pytest
from contract_traces import (
    BACKWARD, BATCHES, CLEAR, GATE, HOOK, OTHER_BACKWARD, OTHER_MODEL, OTHER_OPTIMIZER, OTHER_STEP, SCALER, SCHEDULE, SKIP, STEP, UPDATE,
    USUAL, MODEL, Recorder, usual,
)  # fmt: skip

from accumlint.contract import clauses
from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.findings import Severity

NINE = (4,) * 9


def right(k=3, counts=NINE, **more):
    t = Recorder(counts, k=k, **more)
    return t.train(usual(t))


def test_one_of_each_per_window_is_right():
    t = right()
    assert t.violations() == {}
    assert {"ACC202", "ACC204", "ACC205", "ACC206", "ACC207", "ACC210", "ACC211"} <= t.applied()


def test_plain_training_is_silent():
    t = Recorder(NINE, spoken="")

    def body(i):
        t.backward(t.mean(1))
        t.step()
        t.schedule()
        t.clear()

    t.train(body, epochs=2)
    assert t.violations() == {}
    assert not {"ACC202", "ACC204", "ACC205"} & t.applied()


# ACC201


def test_a_step_on_every_microbatch_of_a_loss_divided_for_a_window():
    t = Recorder(NINE)

    def body(i):
        t.backward(t.mean(3))
        t.step()
        t.clear()

    found = t.train(body).violations()
    assert found.keys() == {"ACC201"} and found["ACC201"].site == STEP
    assert found["ACC201"].evidence["windows"] == [1] * 9


def test_a_step_on_every_microbatch_of_gradients_cleared_once_per_window():
    t = Recorder(NINE)

    def body(i):
        t.backward(t.mean(1))
        t.step()
        if t.boundary(i):
            with t.gate():
                t.clear()

    found = t.train(body).violations()
    assert found.keys() == {"ACC201"} and found["ACC201"].site == STEP


def test_a_constant_divisor_is_no_window():
    t = Recorder(NINE)

    def body(i):
        t.backward(t.mean(Quantity.of(3)))  # thirds for a reason of their own
        t.step()
        t.clear()

    assert t.train(body).violations() == {}


# ACC202


def scheduled(times, **horizon):
    t = Recorder(NINE)
    if horizon:
        t.horizon(**horizon)

    def body(i):
        t.backward(t.mean(3))
        if times == "each":
            t.schedule()
        if t.boundary(i):
            with t.gate():
                t.step()
                if times == "once":
                    t.schedule()
                t.clear()

    return t.train(body)


def test_a_schedule_on_every_microbatch():
    found = scheduled("each").violations()
    assert found.keys() == {"ACC202"}
    assert found["ACC202"].site == SCHEDULE and found["ACC202"].related[0][0] == STEP
    assert "3 times per update" in found["ACC202"].message


def test_a_schedule_once_per_window_is_right():
    assert scheduled("once").violations() == {}
    t = scheduled("never")
    assert t.violations() == {} and "ACC202" in t.applied()


def test_a_schedule_of_as_many_microbatches_may_follow_microbatches():
    assert scheduled("each", value=Quantity.of(9, "len")).violations() == {}
    assert scheduled("each", value=Quantity.of(3, "len", "K")).violations().keys() == {"ACC202"}
    epochs = Quantity.symbol("args.epochs")
    assert scheduled("each", value=epochs * Quantity.of(9, "len")).violations() == {}
    assert scheduled("each", value=epochs * Quantity.of(3, "len", "K")).violations().keys() == {"ACC202"}
    assert scheduled("each", value=Quantity.symbol("args.max_steps")).violations().keys() == {"ACC202"}


def test_a_schedule_that_is_told_its_position_has_no_clock():
    t = Recorder(NINE)

    def body(i):
        t.backward(t.mean(3))
        t.emit(Kind.SCHEDULE, SCHEDULE, 2, absolute=True, optimizer=1)
        if t.boundary(i):
            t.step()
            t.clear()

    assert t.train(body).violations() == {}


# ACC203


@pytest.mark.parametrize("asked", [False, True])
def test_a_schedule_after_a_step_that_the_scaler_may_skip(asked):
    t = Recorder(NINE)

    def body(i):
        t.backward(t.mean(3), scaled=True)
        if t.boundary(i):
            with t.gate():
                t.step(scaler=SCALER)
                t.update()
                if asked:
                    with t.gate(SKIP):
                        t.schedule()
                else:
                    t.schedule()
                t.clear()

    found = t.train(body).violations()
    assert "ACC203" in t.applied()
    assert found.keys() == (set() if asked else {"ACC203"})
    assert asked or (found["ACC203"].site == SCHEDULE and found["ACC203"].related[0][0] == STEP)


def test_without_a_scaler_no_step_is_skipped():
    assert "ACC203" not in scheduled("once").applied()


# ACC204, ACC205


def cleared(where, epochs=1):
    t = Recorder(NINE)

    def body(i):
        if where == "before each":
            t.clear()
        t.backward(t.mean(3))
        if t.boundary(i):
            with t.gate():
                t.step()
                if where == "after step":
                    t.clear()
        if where == "first" and i % 3 == 0:
            with t.gate():
                t.clear()

    return t.train(body, epochs=epochs)


def test_gradients_cleared_before_every_backward():
    found = cleared("before each").violations()
    assert found.keys() == {"ACC204"} and found["ACC204"].site == CLEAR
    assert "2 of 3 are lost" in found["ACC204"].message and found["ACC204"].related[0][0] == STEP


def test_gradients_cleared_after_the_first_microbatch():
    assert cleared("first").violations().keys() == {"ACC204"}


def test_gradients_cleared_after_the_step_are_right():
    assert cleared("after step", epochs=2).violations() == {}


def test_gradients_that_are_never_cleared():
    found = cleared("never").violations()
    assert found.keys() == {"ACC205"}
    assert found["ACC205"].site == STEP and found["ACC205"].evidence["windows"] == [3, 6, 9]


def test_what_was_not_followed_may_have_cleared():
    t = cleared("never")
    t.gaps = ("`helper` is not followed",)
    assert t.violations() == {} and "ACC205" not in t.applied()


def test_a_single_window_shows_nothing_about_clearing():
    t = Recorder((4, 4, 4))

    def body(i):
        t.backward(t.mean(3))
        if t.boundary(i):
            t.step()

    assert t.train(body).violations() == {} and "ACC205" not in t.applied()


# ACC206, ACC207


def gated(test, k=3, counts=(4,) * 12, epochs=1):
    t = Recorder(counts, k=k)

    def body(i):
        t.backward(t.mean(k))
        if test(i):
            with t.gate():
                t.step()
                t.clear()

    return t.train(body, epochs=epochs)


def test_a_window_that_starts_at_zero_is_one_microbatch_off():
    t = gated(lambda i: i % 3 == 0)
    found = t.violations()
    assert t.ledger.sizes == [1, 3, 3, 3]
    assert found.keys() == {"ACC206"} and found["ACC206"].site == GATE
    assert found["ACC206"].evidence["windows"] == [1, 3, 3, 3]


def test_an_offset_that_comes_back_every_epoch_is_graver_than_one_at_the_start():
    once = gated(lambda i: i % 3 == 1, epochs=1).violations()["ACC206"]
    assert once.severity is Severity.WARNING
    # twelve microbatches: the two left over complete the first window of the next epoch
    carried = gated(lambda i: i % 3 == 0, epochs=2).violations()["ACC206"]
    assert carried.severity is Severity.WARNING
    alone = gated(lambda i: i % 3 == 0, epochs=1).violations()["ACC206"]  # one epoch says nothing about the next
    assert alone.severity is None
    again = gated(lambda i: i % 3 == 0, counts=(4,) * 13, epochs=2).violations()["ACC206"]
    assert again.severity is None


def test_the_usual_boundary_is_right_for_other_windows_too():
    for k in (2, 4, 6):
        assert gated(lambda i: (i + 1) % k == 0, k=k).violations() == {}


def test_a_negated_boundary():
    t = gated(lambda i: (i + 1) % 3 != 0)
    found = t.violations()
    assert found.keys() == {"ACC207"} and found["ACC207"].site == GATE
    assert set(t.ledger.sizes) == {1, 2}


def test_a_negated_boundary_hides_what_follows_from_it():
    t = Recorder((4,) * 12)

    def body(i):
        t.backward(t.mean(3))
        if (i + 1) % 3:
            with t.gate():
                t.clip()
                t.step()
                t.schedule()
                t.clear()

    assert t.train(body).violations().keys() == {"ACC207"}


def test_an_assumed_counter_is_no_evidence_for_an_offset():
    t = gated(lambda i: i % 3 == 0)
    t.assumptions = ("`step` counts microbatches",)
    assert "ACC206" not in t.violations()


# ACC208


@pytest.mark.parametrize("left_out", [2, 1])
def test_a_microbatch_left_out_takes_the_update_with_it_only_at_the_boundary(left_out):
    t = Recorder((4,) * 9)
    t.disturbed = (SKIP, left_out, False)

    def body(i):
        if i == left_out:
            return
        t.backward(t.mean(3))
        if t.boundary(i):
            with t.gate():
                t.step()
                t.clear()

    found = t.train(body).violations()
    assert "ACC208" in t.applied()
    assert found.keys() == ({"ACC208"} if left_out == 2 else set())
    assert left_out != 2 or (found["ACC208"].site == SKIP and found["ACC208"].evidence["windows"] == [5, 3])


def test_a_skipped_microbatch_that_does_not_count_keeps_its_window_whole():
    t = Recorder((4,) * 10)
    t.disturbed = (SKIP, 2, False)
    done = []

    def body(i):
        if i == 2:
            return
        t.backward(t.mean(3))
        done.append(i)
        if len(done) % 3 == 0:
            with t.gate():
                t.step()
                t.clear()

    assert t.train(body).violations() == {} and t.ledger.sizes == [3, 3, 3]


# ACC209


@pytest.mark.parametrize("framework", ["accelerate", "deepspeed"])
def test_counting_inside_what_a_framework_counts(framework):
    t = Recorder((4,) * 18)
    t.traits.add(f"framework {framework}")

    def body(i):
        t.backward(t.mean(1), divisor=Quantity.of(3, "K", "framework"))
        if (i + 1) % 9 == 0:
            with t.gate():
                t.step(owner=framework)
                t.clear()

    found = t.train(body).violations()
    assert found.keys() == {"ACC209"} and found["ACC209"].site == GATE


def test_a_window_of_nine_is_nobodys_fault_without_a_framework():
    assert "ACC209" not in gated(lambda i: (i + 1) % 9 == 0, k=9, counts=(4,) * 18).violations()


# ACC210


def two_players(clean):
    """Two optimizers in turn; the second backward reaches the first one's parameters, which may be cleared before use."""
    t = Recorder(NINE)
    both, own, theirs = frozenset({MODEL, OTHER_MODEL}), frozenset({MODEL}), frozenset({OTHER_MODEL})

    def body(i):
        if clean and i % 3 == 0:
            t.clear()
        t.backward(t.mean(3), models=own)
        if t.boundary(i):
            t.step()
            if not clean:
                t.clear()
        t.backward(t.mean(3), site=OTHER_BACKWARD, models=both)
        if t.boundary(i):
            t.step(OTHER_STEP, OTHER_OPTIMIZER, models=theirs)
            t.clear(subject=OTHER_OPTIMIZER, models=theirs)

    return t.train(body)


def test_a_backward_for_another_optimizer_that_stays_in_the_gradients():
    found = two_players(clean=False).violations()
    assert "ACC210" in found and found["ACC210"].site == OTHER_BACKWARD


def test_a_backward_for_the_gradient_of_the_data_that_reaches_the_parameters():
    t = Recorder(NINE)

    def body(i):
        t.backward(t.mean(3), site=OTHER_BACKWARD, leaf=True)
        t.backward(t.mean(3))
        if t.boundary(i):
            t.step()
            t.clear()

    found = t.train(body).violations()
    assert "ACC210" in found and found["ACC210"].site == OTHER_BACKWARD


# ACC211


@pytest.mark.parametrize("spoken", ["accum_steps", ""])
def test_a_step_in_a_hook_of_backward(spoken):
    t = Recorder(NINE, spoken=spoken)

    def body(i):
        t.backward(t.mean(Quantity.of(1)))
        t.step(hook=HOOK)
        t.clear()

    found = t.train(body).violations()
    assert "ACC211" in t.applied()
    assert found.keys() == ({"ACC211"} if spoken else set())  # without a window it's a way to save memory
    assert not spoken or found["ACC211"].site == HOOK


def test_a_trace_without_steps_speaks_of_a_fused_step_and_of_gates_that_never_open():
    t = Recorder(NINE)
    t.train(lambda i: t.backward(t.mean(3)))
    assert clauses.judge_trace(t.trace()) == []
    t.traits = {f"steps in backward@{HOOK}"}
    assert [(v.rule, v.site) for v in clauses.judge_trace(t.trace())] == [("ACC211", HOOK)]
    t.traits = {f"stuck gate@{GATE}"}
    assert [(v.rule, v.site) for v in clauses.judge_trace(t.trace())] == [("ACC213", GATE)]
    t.traits = {f"empty loop@{BATCHES}"}
    assert clauses.judge_trace(t.trace()) == []  # there was a backward after all
    t.events = [e for e in t.events if e.kind is not Kind.BACKWARD]
    assert [(v.rule, v.site) for v in clauses.judge_trace(t.trace())] == [("ACC504", BATCHES)]


# ACC212


@pytest.mark.parametrize("each", [True, False])
def test_the_loss_scale_changes_inside_the_window(each):
    t = Recorder(NINE)

    def body(i):
        t.backward(t.mean(3), scaled=True)
        if t.boundary(i):
            t.step(scaler=SCALER)
            t.clear()
        if each or t.boundary(i):
            t.update()

    found = t.train(body).violations()
    assert "ACC212" in t.applied()
    assert found.keys() == ({"ACC212"} if each else set())
    assert not each or found["ACC212"].site == UPDATE


def test_without_a_scaler_there_is_no_scale():
    assert "ACC212" not in right().applied()


# ACC213


def test_a_boundary_that_comes_once_and_never_again():
    t = Recorder((4,) * 12)

    def body(i):
        t.backward(t.mean(3))
        if i == 2:
            with t.gate():
                t.step()
                t.clear()

    found = t.train(body).violations()
    assert found.keys() == {"ACC213"} and found["ACC213"].site == GATE
    assert "9 microbatches without a step" in found["ACC213"].message


def test_a_rest_is_not_a_stuck_counter():
    t = right(counts=USUAL)
    assert t.violations() == {} and "ACC213" in t.applied()


def test_uneven_factors_of_single_microbatches_are_nobodys_window():
    t = Recorder(USUAL)

    def body(i):
        t.backward(t.sum(Fraction(1)))
        t.step()
        t.clear()

    assert t.train(body).violations() == {}
    assert BACKWARD not in {v.site for v in t.violations().values()}
