"""Which microbatches meet in which step: the gradient buffer, followed event by event."""

from contract_traces import CLEAR, OTHER_BACKWARD, OTHER_MODEL, OTHER_OPTIMIZER, OTHER_STEP, SEED, USUAL, Recorder, usual

from accumlint.contract.events import Kind
from accumlint.contract.timeline import SHOWN_WINDOWS, timeline
from accumlint.contract.windows import ledgers


def test_seven_microbatches_and_windows_of_three_are_three_three_one():
    t = Recorder((3, 6, 1, 4, 4, 4, 2))

    def body(i):
        t.backward(t.sum(10))
        if t.boundary(i) or i == 6:
            t.step()
            t.clear()

    ledger = t.train(body).ledger
    assert ledger.sizes == [3, 3, 1]
    assert [w.microbatches for w in ledger.windows] == [[0, 1, 2], [3, 4, 5], [6]]
    assert ledger.usual == 3 and len(ledger.whole()) == 2
    assert ledger.pending.size == 0 and ledger.accumulates


def test_what_never_reaches_a_step_is_pending():
    t = Recorder(USUAL)
    ledger = t.train(usual(t)).ledger
    assert ledger.sizes == [3, 3]
    assert ledger.pending.microbatches == [6, 7]


def test_a_rest_is_carried_across_the_end_of_an_epoch():
    t = Recorder(USUAL)
    ledger = t.train(usual(t), epochs=2).ledger
    assert ledger.sizes == [3, 3, 5, 3]
    assert [w.crosses for w in ledger.windows] == [False, False, True, False]
    assert len(ledger.whole()) == 3


def test_a_flush_after_the_loop_is_told_from_a_step_inside():
    t = Recorder(USUAL)

    def flush():
        t.step()
        t.clear()

    ledger = t.train(usual(t), after=flush).ledger
    assert ledger.sizes == [3, 3, 2]
    assert [w.after_loop for w in ledger.windows] == [False, False, True]


def test_cleared_gradients_are_erased_and_kept_ones_are_stale():
    t = Recorder(SEED)

    def body(i):
        if i == 1:
            t.clear()
        t.backward(t.mean())
        if i == 2:
            t.step()

    (window,) = t.train(body).ledger.windows
    assert [c.event.microbatch for c, _ in window.erased] == [0]
    assert [event.site for _, event in window.erased] == [CLEAR]
    assert (window.size, window.alive) == (3, 2)

    t = Recorder(SEED)

    def never_cleared(i):
        t.backward(t.mean())
        t.step()

    ledger = t.train(never_cleared).ledger
    assert [len(w.stale) for w in ledger.windows] == [0, 1, 2]
    assert [w.size for w in ledger.windows] == [1, 1, 1]
    assert ledger.accumulates  # three microbatches meet in the last step


def test_two_backwards_of_one_microbatch_are_one_microbatch():
    t = Recorder(SEED)

    def body(i):
        t.backward(t.mean())
        t.backward(t.mean())
        if t.boundary(i):
            t.step()
            t.clear()

    (window,) = t.train(body).ledger.windows
    assert window.size == 3 and len(window.fresh) == 6


def test_one_backward_may_hold_the_data_of_several_microbatches():
    t = Recorder(SEED)
    parts = []

    def body(i):
        parts.append(t.sum(10))
        if t.boundary(i):
            t.backward(*parts)
            t.step()
            t.clear()

    (window,) = t.train(body).ledger.windows
    assert (window.size, window.batches) == (1, 3)


def test_optimizers_that_step_together_share_their_windows():
    t = Recorder(SEED)

    def body(i):
        t.backward(t.mean(), models=frozenset({1, 2}))
        if t.boundary(i):
            t.step(models=frozenset({1}))
            t.step(OTHER_STEP, OTHER_OPTIMIZER, models=frozenset({2}))
            t.clear()

    (ledger,) = ledgers(t.train(body).trace())
    assert ledger.optimizers == {1, OTHER_OPTIMIZER} and ledger.sizes == [3] and ledger.models == {1, 2}


def test_optimizers_that_alternate_have_windows_of_their_own():
    t = Recorder((1,) * 6)

    def body(i):
        t.backward(t.mean())
        if t.boundary(i):
            t.step()
            t.clear()
        t.backward(t.mean(), site=OTHER_BACKWARD, models=frozenset({OTHER_MODEL}))
        if t.boundary(i):
            t.step(OTHER_STEP, OTHER_OPTIMIZER, models=frozenset({OTHER_MODEL}))
            t.clear(subject=OTHER_OPTIMIZER, models=frozenset({OTHER_MODEL}))

    first, second = ledgers(t.train(body).trace())
    assert first.sizes == second.sizes == [3, 3]
    assert {c.event.site for w in second.windows for c in w.fresh} == {OTHER_BACKWARD}
    assert not any(w.erased or w.stale or w.foreign for w in (*first.windows, *second.windows))
    assert not first.alone and first.certain_models


def test_another_optimizers_clear_spares_what_it_does_not_hold():
    t = Recorder((1,) * 6)
    theirs = frozenset({OTHER_MODEL})

    def body(i):
        t.backward(t.mean())
        if t.boundary(i):
            t.step()
            t.clear()
        t.backward(t.mean(), site=OTHER_BACKWARD, models=theirs)
        t.step(OTHER_STEP, OTHER_OPTIMIZER, models=theirs)
        t.clear(subject=OTHER_OPTIMIZER, models=theirs)  # after every microbatch
        t.clear(subject=-1, models=theirs)  # the same by the model's own zero_grad

    first, second = sorted(ledgers(t.train(body).trace()), key=lambda ledger: min(ledger.optimizers))
    assert first.sizes == [3, 3] and not any(w.erased for w in first.windows)
    assert second.sizes == [1] * 6


def test_without_knowing_which_backward_feeds_which_optimizer_nothing_is_certain():
    t = Recorder((1,) * 6)

    def body(i):
        t.backward(t.mean(), models=None)
        t.step(models=None)
        t.backward(t.mean(), models=None)
        t.step(OTHER_STEP, OTHER_OPTIMIZER, models=None)

    judged = t.train(body).judged()
    assert len(judged) == 2
    assert not any(ledger.certain_models or judgement.violations or judgement.applied for ledger, judgement in judged)


def test_stages_one_after_the_other_are_windows_of_their_own():
    t = Recorder((1,) * 6)

    def body(i):
        t.backward(t.mean())
        if t.boundary(i):
            if i < 3:
                t.step()
            else:
                t.step(OTHER_STEP, OTHER_OPTIMIZER)
            t.clear()

    first, second = ledgers(t.train(body).trace())
    assert first.sizes == second.sizes == [3] and first.alone and second.alone
    assert [w.microbatches for w in second.windows] == [[3, 4, 5]]


def test_a_trial_pass_before_the_loop_is_not_part_of_the_first_window():
    t = Recorder(SEED)
    t.microbatch = 0
    t.targets[0, "valid"] = (3, 3)
    t.backward(t.mean())
    (window,) = t.train(usual(t)).ledger.windows
    assert window.size == 3 and len(window.fresh) == 3


def test_a_trace_without_steps_has_no_ledger():
    t = Recorder(SEED)
    t.train(lambda i: t.backward(t.mean()))
    assert ledgers(t.trace()) == [] and t.judged() == []


def test_a_rescaled_gradient_keeps_its_factor_and_a_later_one_does_not_get_it():
    t = Recorder((1, 1))

    def body(i):
        t.backward(t.mean())
        if i == 0:
            t.emit(Kind.RESCALE, 5, factor=7, models=None)
        else:
            t.step()

    (window,) = t.train(body).ledger.windows
    assert [[factor for factor, _ in c.factors] for c in window.fresh] == [[7], []]


def test_the_timeline_shows_targets_weights_and_what_happens_at_the_boundary():
    t = Recorder(USUAL)
    ledger = t.train(usual(t)).ledger
    shown = timeline(ledger)
    first = shown["windows"][0]
    assert shown["k"] == 3 and shown["pending"] == 2 and shown["note"] == ""
    assert [row["valid_targets"] for row in first["microbatches"]] == [3, 6, 1]
    assert {row["weight"] for row in first["microbatches"]} == {"0.1"}
    assert first["events"] == ["clip", "step", "scheduler", "clear"]
    assert not first["tail"]


def test_the_timeline_is_short_and_says_what_it_leaves_out():
    t = Recorder((1,) * 30)
    shown = timeline(t.train(usual(t)).ledger)
    assert len(shown["windows"]) == SHOWN_WINDOWS and shown["note"] == f"{10 - SHOWN_WINDOWS} more windows"


def test_the_first_odd_window_is_drawn_when_asked_for():
    t = Recorder((2,) * 32)
    shown = timeline(t.train(usual(t), epochs=2).ledger, odd=True)
    assert [window["number"] for window in shown["windows"]] == [1, 2, 3, 4, 11]
    assert [len(window["microbatches"]) for window in shown["windows"]] == [3, 3, 3, 3, 5]
    assert shown["windows"][-1]["events"] == ["clip", "step", "scheduler", "clear"]
