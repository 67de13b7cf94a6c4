"""C3 to C8: synchronisation, precision, tails, ranks, bookkeeping and the length of schedules."""

from fractions import Fraction

import pytest
from contract_traces import (
    AVERAGE, BACKWARD, BATCHES, CLIP, COUNTER, DUE, FLUSH, FLUSH_STEP, GATE, HORIZON, LIMIT, MODEL, NO_SYNC, OPTIMIZER, OTHER_MODEL, REDUCE,
    RESUME, SAVE, SCALER, SCHEDULER, SKIP, STEP, UNSCALE, USUAL, Recorder, usual,
)  # fmt: skip

from accumlint.contract.events import Kind
from accumlint.contract.quantity import Quantity
from accumlint.findings import Confidence, Severity

SIX = (4,) * 6
EIGHT = (4,) * 8
NINE = (4,) * 9


# C3


def synced(forward, backward=None, *, parallel="ddp", counts=SIX, before_step=None, traits=(), tail=None, **details):
    """Marks for every microbatch: does the wrapper communicate in its forward, in its backward?"""
    t = Recorder(counts, parallel=parallel)
    t.traits |= set(traits)

    def body(i):
        mark = forward(i)
        t.backward(t.mean(3), sync=mark, backward_sync=mark if backward is None else backward(i), sync_site=NO_SYNC, **details)
        if t.boundary(i):
            with t.gate():
                if before_step is not None:
                    before_step(t)
                t.step()
                t.clear()

    return t.train(body, after=None if tail is None else lambda: tail(t))


def last(i):
    return (i + 1) % 3 == 0


def test_communication_on_the_last_microbatch_only_is_right():
    t = synced(last, traits={"no_sync"})
    assert t.violations() == {} and {"ACC302", "ACC303", "ACC304", "ACC305"} <= t.applied()


def test_one_process_has_no_communication():
    t = synced(last, parallel="")
    assert t.violations() == {} and not {"ACC302", "ACC303", "ACC305"} & t.applied()


def test_communication_on_every_microbatch_costs_but_is_right():
    found = synced(lambda i: True).violations()
    assert found.keys() == {"ACC301"} and found["ACC301"].site == BACKWARD


def test_sharded_models_may_communicate_every_time():
    assert synced(lambda i: True, parallel="fsdp").violations() == {}


def test_ddp_decides_in_the_forward_so_quiet_backwards_are_too_late():
    found = synced(lambda i: True, last).violations()
    assert found.keys() == {"ACC302"} and found["ACC302"].site == NO_SYNC
    assert found["ACC302"].severity is Severity.WARNING


def test_a_quiet_forward_is_enough_for_ddp():
    assert synced(last, lambda i: True, traits={"no_sync"}).violations() == {}


@pytest.mark.parametrize("mark", [lambda i: False, lambda i: i % 3 == 0, lambda i: not last(i)])
def test_a_last_microbatch_that_is_not_reduced_lets_ranks_drift(mark):
    found = synced(mark, traits={"no_sync"}).violations()
    assert found.keys() == {"ACC303"} and found["ACC303"].site == NO_SYNC
    assert found["ACC303"].cap is Confidence.CERTAIN and found["ACC303"].related[0][0] == STEP


def test_fsdp_decides_in_the_backward():
    assert synced(lambda i: True, last, parallel="fsdp2", traits={"no_sync"}).violations() == {}
    assert synced(lambda i: True, lambda i: False, parallel="fsdp2").violations().keys() == {"ACC303"}


def test_reduced_by_hand_is_right_again():
    t = synced(lambda i: False, before_step=lambda t: t.emit(Kind.REDUCE, REDUCE, average=True))
    assert t.violations() == {}


def test_a_quiet_tail_matters_only_where_there_is_one():
    def flush(t):
        with t.gate(FLUSH):
            t.step(FLUSH_STEP)
            t.clear()

    found = synced(last, counts=USUAL, tail=flush, traits={"no_sync"}).violations()
    assert "ACC303" in found and found["ACC303"].cap is Confidence.CONDITIONAL
    assert found["ACC303"].related[0][0] == FLUSH_STEP


def test_sharded_gradients_refuse_no_sync():
    t = synced(last, traits={"zero sharded", f"engine no_sync@{NO_SYNC}"})
    assert t.violations().keys() == {"ACC304"} and t.violations()["ACC304"].site == NO_SYNC
    assert "ACC304" not in synced(last, traits={"zero sharded"}).violations()
    assert "ACC304" not in synced(last, traits={f"engine no_sync@{NO_SYNC}"}).violations()


@pytest.mark.parametrize("covered", [{MODEL}, {MODEL, OTHER_MODEL}])
def test_all_models_that_are_trained_together_are_covered(covered):
    both = frozenset({MODEL, OTHER_MODEL})
    t = Recorder(SIX, parallel="ddp")
    t.subjects[OPTIMIZER].models = both

    def body(i):
        t.backward(
            t.mean(3), models=both, sync=last(i), covered=(frozenset(covered), NO_SYNC), decided=((MODEL, last(i)), (OTHER_MODEL, True)),
        )  # fmt: skip
        if t.boundary(i):
            t.step(models=both)
            t.clear(models=both)

    found = t.train(body).violations()
    assert ("ACC305" in found) == (covered == {MODEL})
    assert "ACC305" not in found or found["ACC305"].site == NO_SYNC


# C4


def precise(*, clip="boundary", unscale="boundary", scaled=True, through=None, measures=False, counts=SIX, order="unscale clip"):
    t = Recorder(counts)

    def body(i):
        boundary = t.boundary(i)
        if clip == "first" and boundary:
            t.clip()
        t.backward(t.mean(3), scaled=scaled)
        for what in order.split():
            if what == "unscale" and (unscale == "each" or unscale == "boundary" and boundary or unscale == "early" and i % 3 == 1):
                t.unscale()
            if what == "clip" and (clip == "each" or clip == "boundary" and boundary):
                t.clip(through=through, measures_only=measures)
        if boundary:
            t.step(scaler=SCALER if scaled else -1)
            t.update()
            t.clear()

    return t.train(body)


def test_unscale_once_then_clip_once_at_the_end_is_right():
    t = precise()
    assert t.violations() == {} and {"ACC401", "ACC402", "ACC403", "ACC404"} <= t.applied()


def test_precision_is_a_matter_of_windows():
    t = Recorder(SIX)
    t.train(lambda i: (t.backward(t.mean()), t.clip(), t.step(), t.clear()))
    assert not {"ACC401", "ACC402", "ACC403", "ACC404"} & t.applied()


def test_a_clip_of_partial_sums():
    found = precise(clip="each", unscale="never", scaled=False).violations()
    assert found.keys() == {"ACC401"} and found["ACC401"].site == CLIP
    assert "partial sum of 1 of 3" in found["ACC401"].message


def test_measuring_the_norm_is_no_clip():
    assert precise(clip="each", unscale="never", scaled=False, measures=True).violations() == {}


def test_a_clip_of_scaled_gradients():
    found = precise(unscale="never").violations()
    assert found.keys() == {"ACC402"} and found["ACC402"].site == CLIP
    assert precise(unscale="never", scaled=False).violations() == {}


def test_a_clip_in_the_wrong_order():
    assert precise(order="clip unscale").violations().keys() == {"ACC402"}


def test_a_clip_before_the_first_scaled_backward_finds_nothing_scaled():
    t = Recorder(SIX)

    def body(i):
        if i == 0:
            t.clip()
        t.backward(t.mean(3), scaled=True)
        if t.boundary(i):
            t.unscale()
            t.clip()
            t.step(scaler=SCALER)
            t.update()
            t.clear()

    assert "ACC402" not in t.train(body).violations()


@pytest.mark.parametrize("through", ["optimizer", "accelerator", "scaler"])
def test_who_clips_knows_the_scale(through):
    assert precise(unscale="never", through=through).violations() == {}


def test_a_clip_before_the_last_backward():
    found = precise(clip="first", unscale="never", scaled=False).violations()
    assert found.keys() == {"ACC403"} and found["ACC403"].site == CLIP


def test_a_clip_of_other_parameters_is_nobodys():
    t = Recorder(SIX)

    def body(i):
        t.backward(t.mean(3))
        t.clip(models=frozenset({OTHER_MODEL}))
        if t.boundary(i):
            t.step()
            t.clear()

    assert t.train(body).violations() == {}


@pytest.mark.parametrize(("when", "words"), [("each", "3 times"), ("early", "before the last backward")])
def test_an_unscale_inside_the_window(when, words):
    found = precise(unscale=when, clip="never").violations()
    assert found.keys() == {"ACC404"} and found["ACC404"].site == UNSCALE and words in found["ACC404"].message


# C5


def tailed(*, flush=None, divisor=3, counts=EIGHT, epochs=1, drop=False, owner=None, **ends):
    t = Recorder(counts)

    def body(i):
        rest = len(t.counts) - len(t.counts) % 3
        short = i >= rest and divisor == "own"
        t.backward(t.mean(Quantity.of(len(t.counts) - rest, "K") if short else 3, varies=False))
        if t.boundary(i) or flush == "inside" and i == len(t.counts) - 1:
            with t.gate():
                t.step(owner=owner)
                t.clear()

    def after():
        if flush == "after":
            with t.gate(FLUSH):
                t.step(FLUSH_STEP, owner=owner)
        if flush == "after" or drop:
            t.clear()

    return t.train(body, epochs=epochs, after=after, **ends)


@pytest.mark.parametrize("flush", ["inside", "after"])
def test_a_tail_divided_by_its_own_size_is_right(flush):
    t = tailed(flush=flush, divisor="own", epochs=2)
    assert t.ledger.sizes == [3, 3, 2, 3, 3, 2]
    assert t.violations() == {} and {"ACC501", "ACC502", "ACC503"} <= t.applied()


@pytest.mark.parametrize(("flush", "site"), [("inside", GATE), ("after", FLUSH)])
def test_a_tail_divided_as_if_it_were_full(flush, site):
    found = tailed(flush=flush).violations()
    assert found.keys() == {"ACC503"} and found["ACC503"].site == site
    assert (found["ACC503"].severity, found["ACC503"].cap) == (Severity.WARNING, Confidence.CONDITIONAL)
    assert "2/3" in found["ACC503"].message


def test_a_tail_that_a_framework_divides_is_advice():
    assert tailed(flush="inside", owner="accelerate").violations()["ACC503"].severity is Severity.ADVICE


def test_a_tail_that_leaks_into_the_next_epoch():
    t = tailed(epochs=2)
    found = t.violations()
    assert t.ledger.sizes == [3, 3, 5, 3]
    assert found.keys() == {"ACC502"} and found["ACC502"].site == GATE
    assert found["ACC502"].severity is Severity.WARNING and found["ACC502"].cap is Confidence.CONDITIONAL
    assert "2 microbatches" in found["ACC502"].message and "5 microbatches, divided by 3" in found["ACC502"].message


def test_a_tail_that_is_carried_with_its_count_is_right():
    t = Recorder(USUAL)

    def body(i):
        t.backward(t.mean(3, varies=False))
        if (t.microbatch + 1) % 3 == 0:  # the count goes on
            with t.gate():
                t.step()
                t.clear()

    t.train(body, epochs=2)
    assert t.ledger.sizes == [3, 3, 3, 3, 3] and t.violations() == {}


def test_a_tail_that_is_computed_and_cleared():
    found = tailed(drop=True, epochs=2).violations()
    assert found.keys() == {"ACC501"} and found["ACC501"].site == GATE
    assert found["ACC501"].severity is Severity.WARNING and found["ACC501"].cap is Confidence.CONDITIONAL


def test_without_a_rest_nothing_can_go_wrong_with_it():
    for options in ({}, {"flush": "after"}, {"drop": True}):
        assert tailed(counts=SIX, epochs=2, **options).violations() == {}


def test_a_loop_that_is_left_early_or_never_ends_has_no_tail():
    for ends in ({"whole": False}, {"infinite": True}):
        t = tailed(flush="inside", **ends)
        assert t.violations() == {} and "ACC503" not in t.applied()


def test_a_script_that_uses_whole_windows_only_has_no_tail():
    t = tailed(flush="inside")
    t.traits.add("whole windows")
    assert t.violations() == {} and "ACC503" not in t.applied()


def test_an_assumed_counter_says_nothing_about_tails():
    t = tailed(flush="inside")
    t.assumptions = ("`step` counts microbatches",)
    assert t.violations() == {} and not {"ACC501", "ACC502", "ACC503"} & t.applied()


def test_epochs_that_only_the_simulation_made_drop_nothing():
    t = tailed(drop=True, epochs=2, synthetic=True)
    assert "ACC501" not in t.violations()


@pytest.mark.parametrize(("batches", "speaks"), [(2, True), (4, False)])
def test_an_epoch_shorter_than_a_window(batches, speaks):
    t = tailed(drop=True, epochs=1)
    t.traits |= {f"batches {batches}", "window literal 3"}
    assert ("ACC504" in t.violations()) == speaks
    assert not speaks or t.violations()["ACC504"].site == GATE


# C6


@pytest.mark.parametrize("gated", [True, False])
def test_a_step_of_one_rank_only(gated):
    t = Recorder(SIX, parallel="ddp")

    def body(i):
        t.backward(t.mean(3), sync=t.boundary(i))
        if t.boundary(i):
            with t.gate(), t.gate(SKIP):
                t.step(rank_gated=gated)
                t.clear()

    found = t.train(body).violations()
    assert "ACC601" in t.applied()
    assert ("ACC601" in found) == gated
    assert not gated or found["ACC601"].site == SKIP


def skipping(local, parallel="ddp", left_out=1):
    t = Recorder(SIX, parallel=parallel)
    t.disturbed = (SKIP, left_out, local)

    def body(i):
        if i == left_out:
            return
        t.backward(t.mean(3), sync=t.boundary(i))
        if t.boundary(i):
            with t.gate():
                t.step()
                t.clear()

    return t.train(body)


def test_a_rank_that_leaves_out_a_microbatch_alone():
    found = skipping(local=True).violations()
    assert found.keys() == {"ACC601"} and found["ACC601"].site == SKIP


def test_a_decision_that_all_ranks_share_is_right():
    t = skipping(local=False)
    assert "ACC601" not in t.violations() and "ACC601" in t.applied()


def test_one_process_agrees_with_itself():
    t = skipping(local=True, parallel="")
    assert "ACC601" not in t.violations() and "ACC601" not in t.applied()


def test_a_skip_at_the_boundary_is_told_as_a_matter_of_ranks_first():
    assert skipping(local=True, left_out=2).violations().keys() == {"ACC601"}


# C7


def kept(body, counts=SIX, epochs=1, **more):
    """A correct loop; ``body(t, i, boundary)`` keeps the books after it, inside the loop."""
    t = Recorder(counts, **more)

    def play(i):
        t.backward(t.mean(3, varies=False))
        if t.boundary(i):
            with t.gate():
                t.step()
                t.clear()
        body(t, i, t.boundary(i))

    return t.train(play, epochs=epochs)


@pytest.mark.parametrize(("unit", "limit", "speaks"), [("micro", "max_updates", True), ("updates", "max_updates", False), ("micro", "max_batches", False)])
def test_a_limit_in_updates_is_held_against_updates(unit, limit, speaks):
    def body(t, i, boundary):
        if unit == "micro" or boundary:
            t.count("global_step", t.microbatch)
        t.emit(Kind.LIMIT, LIMIT, counters=("counter:global_step",), limit=frozenset({limit}), name=limit)

    t = kept(body)
    assert "ACC701" in t.applied()
    assert t.violations().keys() == ({"ACC701"} if speaks else set())
    if speaks:
        violation = t.violations()["ACC701"]
        assert violation.site == LIMIT and violation.related == [(COUNTER, "moved here")]
        assert "3 times too early" in violation.message


def test_a_limit_that_the_schedule_counts_in_updates():
    def body(t, i, boundary):
        t.count("global_step", t.microbatch)
        if boundary:
            t.schedule()
        t.emit(Kind.LIMIT, LIMIT, counters=("counter:global_step",), limit=frozenset({"max_steps"}), name="max_steps")

    t = Recorder(SIX)
    t.horizon(Quantity.symbol("max_steps"))

    def play(i):
        t.backward(t.mean(3, varies=False))
        if t.boundary(i):
            with t.gate():
                t.step()
                t.clear()
        body(t, i, t.boundary(i))

    assert t.train(play).violations().keys() == {"ACC701"}


@pytest.mark.parametrize(("effect", "severity"), [("evaluate", None), ("log", Severity.ADVICE)])
def test_what_is_due_by_updates_runs_once_per_update(effect, severity):
    def each(t, i, boundary):
        if boundary:
            t.count("updates", (i + 1) // 3)
        t.emit(Kind.PERIODIC, DUE, counters=("counter:updates",), value=(i + 1) // 3, effect=effect, period="every")

    found = kept(each).violations()
    assert found.keys() == {"ACC702"} and found["ACC702"].site == DUE and found["ACC702"].severity is severity

    def once(t, i, boundary):
        if boundary:
            each(t, i, boundary)

    assert kept(once).violations() == {}


@pytest.mark.parametrize("each", [True, False])
def test_an_average_moves_once_per_update(each):
    def body(t, i, boundary):
        if each or boundary:
            t.emit(Kind.AVERAGE, AVERAGE, models=frozenset({OTHER_MODEL}))

    t = kept(body)
    assert "ACC703" in t.applied()
    assert t.violations().keys() == ({"ACC703"} if each else set())
    assert not each or t.violations()["ACC703"].site == AVERAGE


def test_an_update_of_the_trained_parameters_is_no_average():
    assert kept(lambda t, i, b: t.emit(Kind.AVERAGE, AVERAGE, models=frozenset({MODEL}))).violations() == {}


@pytest.mark.parametrize(("kinds", "missing"), [(("model", "optimizer"), True), (("model", "optimizer", "scheduler"), False), (("model",), False)])
def test_a_checkpoint_holds_what_a_resume_needs(kinds, missing):
    def body(t, i, boundary):
        if boundary:
            t.schedule()
            t.save(*kinds, resumable="optimizer" in kinds)

    t = kept(body)
    assert "ACC704" in t.applied()
    assert t.violations().keys() == ({"ACC704"} if missing else set())
    if missing:
        assert t.violations()["ACC704"].site == SAVE and "scheduler" in t.violations()["ACC704"].message


def test_a_checkpoint_in_several_files_is_one():
    def body(t, i, boundary):
        if boundary:
            t.schedule()
            t.save("model", "optimizer")
            t.save("scheduler", resumable=False)

    assert kept(body).violations() == {}


def test_a_checkpoint_that_nobody_can_look_into_lacks_nothing():
    def body(t, i, boundary):
        if boundary:
            t.schedule()
            t.save("model", "optimizer", opaque=True)

    assert kept(body).violations() == {}


def test_the_scaler_belongs_to_the_checkpoint_unless_it_may_be_off():
    def run(traits):
        t = Recorder(SIX)
        t.subjects[SCALER].traits = frozenset(traits)

        def play(i):
            t.backward(t.mean(3, varies=False), scaled=True)
            if t.boundary(i):
                with t.gate():
                    t.step(scaler=SCALER)
                    t.update()
                    t.clear()
                t.save("model", "optimizer")

        return t.train(play).violations()["ACC704"]

    assert run(()).severity is None and "scaler" in run(()).message
    assert run({"may be disabled"}).severity is Severity.ADVICE


@pytest.mark.parametrize(("at", "speaks"), [(1, True), (2, False)])
def test_a_resume_checkpoint_in_the_middle_of_a_window(at, speaks):
    t = kept(lambda t, i, boundary: t.save("model", "optimizer") if i == at else None)
    assert "ACC705" in t.applied()
    assert t.violations().keys() == ({"ACC705"} if speaks else set())
    assert not speaks or "2 of 3" in t.violations()["ACC705"].message


def test_a_checkpoint_with_the_gradients_may_stand_anywhere():
    assert kept(lambda t, i, b: t.save("model", "optimizer", "gradients") if i == 1 else None).violations() == {}


def test_weights_alone_are_no_resume_checkpoint():
    assert kept(lambda t, i, b: t.save("model", resumable=False) if i == 1 else None).violations() == {}


def resumed(saved, use, into="step"):
    def body(t, i, boundary):
        t.count("step", i)
        if boundary:
            t.count("updates", i, site=COUNTER + 100)
            t.save("model", "optimizer", keys={"model": "state", "optimizer": "state", "position": [f"counter:{saved}"]})
        if t.microbatch == 0:
            t.emit(Kind.RESUME, RESUME, key="position", into=into, use=use)

    return kept(body)


@pytest.mark.parametrize(
    ("saved", "use", "into", "speaks"),
    [
        ("updates", "skip", "", True),  # as many microbatches are skipped as updates were made
        ("step", "skip", "", False),
        ("updates", "counter", "step", True),
        ("step", "counter", "updates", True),
        ("step", "counter", "step", False),
        ("updates", "counter", "updates", False),
    ],
)
def test_a_count_comes_back_in_the_unit_in_which_it_was_saved(saved, use, into, speaks):
    t = resumed(saved, use, into)
    assert "ACC706" in t.applied()
    assert t.violations().keys() == ({"ACC706"} if speaks else set())
    assert not speaks or t.violations()["ACC706"].site == RESUME


# C8


def planned(value, *, moves="updates", counts=NINE, epochs=2, **more):
    t = Recorder(counts)
    t.horizon(value, **more)

    def body(i):
        t.backward(t.mean(3, varies=False))
        if t.boundary(i):
            with t.gate():
                t.step()
                if moves == "updates":
                    t.schedule()
                t.clear()

    def after():
        if moves == "epochs":
            t.schedule()

    return t.train(body, epochs=epochs, after=after)


def test_a_schedule_as_long_as_the_microbatches_that_moves_once_per_update():
    found = planned(Quantity.of(18, "len")).violations()
    assert found.keys() == {"ACC801"} and found["ACC801"].site == HORIZON
    assert "6 times" in found["ACC801"].message and "33%" in found["ACC801"].message


@pytest.mark.parametrize(
    "value",
    [
        Quantity.of(6, "len", "K"),  # divided by the window
        Quantity.of(18),  # a number that has nothing to do with the loader
        Quantity.symbol("args.max_steps"),
        Quantity.symbol("args.epochs").tagged("len") * 9,
    ],
)
def test_other_lengths_are_right_or_unknown(value):
    t = planned(value)
    assert t.violations() == {} and "ACC801" in t.applied()


def test_a_schedule_that_moves_per_epoch_is_as_long_as_the_epochs():
    assert planned(Quantity.of(2), moves="epochs").violations() == {}


def test_a_warm_up_in_microbatches_before_a_total_in_updates():
    found = planned(Quantity.of(6, "len", "K"), warmup=Quantity.of(9, "len"), warmup_site=HORIZON + 50).violations()
    assert found.keys() == {"ACC801"} and found["ACC801"].site == HORIZON + 50
    assert planned(Quantity.of(6, "len", "K"), warmup=Quantity.of(1, "len", "K"), warmup_site=1).violations() == {}


def test_without_accumulation_the_units_are_the_same():
    t = Recorder(NINE)
    t.horizon(Quantity.of(9, "len"))
    t.train(lambda i: (t.backward(t.mean()), t.step(), t.schedule(), t.clear()))
    assert t.violations() == {} and "ACC801" not in t.applied()


def test_a_correct_loop_is_silent_in_every_clause():
    t = Recorder((3, 6, 1, 4, 4, 2))
    t.horizon(Quantity.of(Fraction(2), "len", "K"))
    assert t.train(usual(t)).violations() == {}
    assert BATCHES in {e.site for e in t.events} and SCHEDULER in t.subjects
