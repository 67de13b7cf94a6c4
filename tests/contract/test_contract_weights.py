"""The weight of every valid target at the step, and what its deviation is called."""

from fractions import Fraction

import pytest
from contract_traces import BACKWARD, MODEL, SEED, SEED_GRADIENTS, SEED_LOSSES, Recorder

from accumlint.contract import weights
from accumlint.contract.events import Kind, Part
from accumlint.contract.quantity import Quantity
from accumlint.contract.weights import as_text, judge, shares


def window(recorder, part, *, step=True, **options):
    """The first window of a loop in which every microbatch's loss is ``part()``, with its trace."""

    def body(i):
        recorder.backward(part(), **options)
        if recorder.boundary(i) and step:
            recorder.step()
            recorder.clear()

    recorder.train(body)
    return recorder.ledger.windows[0], recorder.trace()


def collected(recorder, part, numerators):
    """What the step would apply: numerators of the microbatches, each with its targets' weight."""
    own, trace = window(recorder, part)
    return sum(share.weight[0] * n for share, n in zip(shares(own, trace), numerators))


def test_the_seed_window_conserves_loss_and_gradient():
    t = Recorder(SEED)
    assert collected(t, lambda: t.sum(10), SEED_LOSSES) == Fraction("0.64")
    t = Recorder(SEED)
    assert collected(t, lambda: t.sum(10), SEED_GRADIENTS) == Fraction(1, 10)


def test_the_mean_of_means_drifts_by_eight_seventyfifths():
    t = Recorder(SEED)
    drifted = collected(t, lambda: t.mean(3), SEED_LOSSES)
    assert drifted == Fraction(8, 15) and Fraction("0.64") - drifted == Fraction(8, 75)
    t = Recorder(SEED)
    assert collected(t, lambda: t.mean(3), SEED_GRADIENTS) == Fraction(1, 6)


def test_with_equal_counts_both_formulas_agree():
    for part in ("sum", "mean"):
        t = Recorder((4, 4, 4))
        own, trace = window(t, lambda: t.sum(12) if part == "sum" else t.mean(3))
        assert judge(own, trace).kind == "right"
        assert [s.weight for s in shares(own, trace)] == [(Fraction(1, 12),)] * 3


@pytest.mark.parametrize(
    ("part", "kind", "factor"),
    [
        ("mean", "uneven", None),  # the mean of means
        ("sum/10", "right", 1),
        ("sum/10/3", "scaled", Fraction(1, 3)),  # divided twice
        ("sum", "scaled", 10),  # never divided
    ],
)
def test_one_process(part, kind, factor):
    t = Recorder(SEED)
    make = {"mean": lambda: t.mean(3), "sum/10": lambda: t.sum(10), "sum/10/3": lambda: t.sum(30), "sum": lambda: t.sum()}[part]
    verdict = judge(*window(t, make))
    assert (verdict.kind, verdict.factor) == (kind, factor)


def test_equal_counts_tell_missing_and_double_divisions():
    for divisor, factor in ((1, 3), (3, 1), (9, Fraction(1, 3))):
        t = Recorder((4, 4, 4))
        verdict = judge(*window(t, lambda: t.mean(divisor)))
        assert (verdict.kind, verdict.factor) == ("right" if factor == 1 else "scaled", factor)


RANKS = ((3, 2), (6, 4), (1, 4))  # ten valid targets on either rank, twenty in the window


@pytest.mark.parametrize(
    ("divisor", "averages", "kind", "factor"),
    [
        (20, False, "right", 1),  # one count of all ranks, gradients summed
        (10, True, "right", 1),  # ... averaged by the wrapper, undone by the world size (20 / 2)
        (20, True, "scaled", Fraction(1, 2)),  # the average is not undone
        (10, False, "scaled", 2),  # a count of one rank, gradients summed
    ],
)
def test_two_ranks_with_equal_totals(divisor, averages, kind, factor):
    t = Recorder(RANKS, parallel="ddp" if averages else "manual")
    verdict = judge(*window(t, lambda: t.sum(divisor), sums=not averages))
    assert (verdict.kind, verdict.factor) == (kind, factor)


def test_ranks_that_divide_by_their_own_count_weigh_targets_differently():
    t = Recorder(((3, 1), (6, 2), (1, 1)), parallel="ddp")
    verdict = judge(*window(t, lambda: t.sum(Quantity.per_rank((10, 4)))))
    assert verdict.kind == "uneven-ranks"
    # fourteen targets in all; rank 0: 1/(2·10)·14, rank 1: 1/(2·4)·14
    assert {s.ratio for s in verdict.shares} == {(Fraction(7, 10), Fraction(7, 4))}


def test_gradients_reduced_by_hand_are_judged_by_what_the_reduction_does():
    for average, divisor, factor in ((False, 20, 1), (True, 10, 1), (True, 20, Fraction(1, 2))):
        t = Recorder(RANKS)

        def body(i):
            t.backward(t.sum(divisor))
            if t.boundary(i):
                t.emit(Kind.REDUCE, 5, average=average)
                t.step()
                t.clear()

        t.train(body)
        assert judge(t.ledger.windows[0], t.trace()).factor == factor


def test_one_process_does_not_count_the_data_of_the_other_rank():
    t = Recorder(((3, 100), (6, 100), (1, 100)))
    verdict = judge(*window(t, lambda: t.sum(10)))
    assert verdict.kind == "right" and all(len(s.weight) == 1 for s in verdict.shares)


def test_a_division_of_the_gradients_counts_like_one_of_the_loss():
    t = Recorder(SEED)

    def body(i):
        t.backward(t.sum())
        if t.boundary(i):
            t.emit(Kind.RESCALE, 5, factor=Quantity.of(Fraction(1, 10)), models=frozenset({MODEL}))
            t.step()
            t.clear()

    t.train(body)
    verdict = judge(t.ledger.windows[0], t.trace())
    assert verdict.kind == "right" and {s.scaled_at for s in verdict.shares} == {5}


def test_what_a_framework_divides_counts_too():
    t = Recorder((4, 4, 4))
    verdict = judge(*window(t, lambda: t.mean(3), divisor=Quantity.of(3, "K", "framework")))
    assert verdict.kind == "scaled" and verdict.factor == Fraction(1, 3)
    t = Recorder((4, 4, 4))
    assert judge(*window(t, lambda: t.mean(), divisor=Quantity.of(3, "K", "framework"))).kind == "right"


def test_a_constant_in_front_of_the_loss_is_a_choice():
    t = Recorder((4, 4, 4))
    half = Quantity.symbol("#0.5")
    verdict = judge(*window(t, lambda: t.mean(Quantity.of(3) / half)))
    assert verdict.kind == "right" and {s.symbols for s in verdict.shares} == {(("#0.5", 1),)}


def test_a_divisor_that_nobody_knows_is_unknown():
    t = Recorder((4, 4, 4))
    verdict = judge(*window(t, lambda: t.mean(Quantity.symbol("args.divisor"))))
    assert verdict.kind == "unknown" and verdict.reason


def test_a_reason_travels_into_the_verdict():
    t = Recorder(SEED)
    verdict = judge(*window(t, lambda: Part(t.microbatch, "valid", None, reason="`mystery` is not followed")))
    assert (verdict.kind, verdict.reason) == ("unknown", "`mystery` is not followed")


def test_a_window_in_which_one_loss_is_unknown_is_not_judged():
    t = Recorder(SEED)
    parts = iter([t.sum, t.sum, lambda _: Part(2, "valid", None, reason="?")])
    assert judge(*window(t, lambda: next(parts)(10))).kind == "unknown"


def test_auxiliary_terms_are_set_aside_and_the_main_loss_is_judged():
    t = Recorder(SEED)

    def body(i):
        t.backward(t.sum(10), t.mean(Quantity.of(1) / Quantity.symbol("aux_weight")))
        if t.boundary(i):
            t.step()
            t.clear()

    t.train(body)
    assert judge(t.ledger.windows[0], t.trace()).kind == "right"


def test_a_sum_of_losses_counts_its_targets_once():
    t = Recorder(SEED)

    def body(i):
        t.backward(t.sum(10), t.sum(10))
        if t.boundary(i):
            t.step()
            t.clear()

    t.train(body)
    assert {s.ratio for s in shares(t.ledger.windows[0], t.trace())} == {(1,)}


def test_a_convention_stays_visible():
    t = Recorder((4, 4, 4))
    assert judge(*window(t, lambda: t.mean(3, assumed=True))).assumed
    t = Recorder((4, 4, 4))
    assert not judge(*window(t, lambda: t.mean(3))).assumed


def test_the_weight_of_a_short_tail_says_whether_it_was_divided_by_its_own_size():
    for full, expected in ((True, Fraction(2, 3)), (False, 1)):
        t = Recorder((4,) * 8)

        def body(i):
            t.backward(t.mean(3 if full or i < 6 else 2))
            if t.boundary(i) or i == 7:
                t.step()
                t.clear()

        t.train(body)
        assert t.ledger.sizes == [3, 3, 2]
        assert weights.tail_factor(t.ledger.windows[2], t.trace()) == expected


def test_an_uneven_window_has_no_tail_factor():
    t = Recorder(SEED)
    own, trace = window(t, lambda: t.mean(3))
    assert weights.tail_factor(own, trace) is None


def test_where_a_loss_was_divided_and_by_what_kind_of_number():
    t = Recorder(SEED)
    own, _ = window(t, lambda: t.mean(3))
    assert weights.tagged(own, "K") and not weights.tagged(own, "count")
    assert {s.site for s in shares(own, t.trace())} == {BACKWARD}


@pytest.mark.parametrize(("value", "text"), [(Fraction(1, 9), "0.1111"), (Fraction(1, 10), "0.1"), (Quantity.of(Fraction(1, 3)), "0.3333")])
def test_weights_are_written_with_four_digits(value, text):
    assert as_text(value) == text
