"""C1: every valid target of a window weighs the same, and the weights sum to 1."""

from fractions import Fraction

import pytest
from contract_traces import BACKWARD, DIVISION, LOSS, SEED, USUAL, Recorder, usual, window_total

from accumlint.contract.events import Kind, Part
from accumlint.contract.quantity import Quantity
from accumlint.findings import Confidence

ALL = {"ACC101", "ACC102", "ACC103", "ACC104", "ACC106", "ACC107", "ACC108"}
SIX = (3, 6, 1, 4, 4, 2)  # two windows of three
EQUAL = (4,) * 6
BY_RANK = ((3, 1), (6, 2), (1, 1), (4, 3), (4, 5), (2, 9))


def loop(part, counts=SIX, **more):
    """A loop with a step at every boundary; ``part(t, i)`` is the loss of microbatch i."""
    options = {key: more.pop(key) for key in ("scaled", "models", "sums", "divisor") if key in more}
    t = Recorder(counts, **more)

    def body(i):
        t.backward(part(t, i), **options)
        if t.boundary(i):
            t.step()
            t.clear()

    return t.train(body)


def test_one_sum_over_one_count_is_right():
    t = loop(lambda t, i: t.sum(window_total(t, i)))
    assert t.violations() == {} and ALL <= t.applied()


def test_mean_of_means_with_its_numbers():
    t = loop(lambda t, i: t.mean(3), SEED)
    found = t.violations()
    assert found.keys() == {"ACC101"}
    violation = found["ACC101"]
    assert violation.site == DIVISION and violation.cap is Confidence.CERTAIN
    assert violation.evidence["weights"] == ["0.1111", "0.05556", "0.3333"]
    assert "0.1 each" in violation.message and "3, 6, 1" in violation.message


def test_mean_of_means_with_equal_counts_is_the_control():
    assert loop(lambda t, i: t.mean(3), EQUAL).violations() == {}


def test_mean_of_means_needs_evidence_that_counts_vary():
    t = loop(lambda t, i: t.mean(3, varies=False))
    assert t.violations() == {} and "ACC101" in t.applied()


def test_a_mean_by_convention_only_is_possible_at_most():
    assert loop(lambda t, i: t.mean(3, assumed=True)).violations()["ACC101"].cap is Confidence.POSSIBLE


def test_uneven_means_are_no_mean_of_means_when_no_window_forms():
    t = Recorder(SIX)
    t.train(lambda i: (t.backward(t.mean()), t.step(), t.clear()))
    assert t.violations() == {} and not ALL & t.applied()


def test_a_mean_never_divided_by_the_window():
    found = loop(lambda t, i: t.mean(1), EQUAL).violations()
    assert found.keys() == {"ACC102"} and found["ACC102"].site == BACKWARD
    assert "3 times" in found["ACC102"].message


def test_a_mean_divided_once_elsewhere_is_right():
    t = Recorder(EQUAL)

    def body(i):
        t.backward(t.mean(1))
        if t.boundary(i):
            t.emit(Kind.RESCALE, 9, factor=Quantity.of(Fraction(1, 3)), models=None)
            t.step()
            t.clear()

    assert t.train(body).violations() == {}


def test_a_loss_divided_twice():
    found = loop(lambda t, i: t.mean(9), EQUAL).violations()
    assert found.keys() == {"ACC103"} and found["ACC103"].site == DIVISION


def test_a_loss_that_the_framework_divides_again():
    found = loop(lambda t, i: t.mean(3), EQUAL, divisor=Quantity.of(3, "K", "framework")).violations()
    assert found.keys() == {"ACC103"} and found["ACC103"].cap is Confidence.CERTAIN
    assert loop(lambda t, i: t.mean(1), EQUAL, divisor=Quantity.of(3, "K", "framework")).violations() == {}


def unshifted(t, i):
    start = i - i % 3
    return Quantity.of(sum(c[0] + 1 for c in t.counts[start : start + 3]), "count", "unshifted", f"counted at {LOSS}")


def test_labels_counted_before_the_shift():
    found = loop(lambda t, i: t.sum(unshifted(t, i))).violations()
    assert found.keys() == {"ACC104"} and found["ACC104"].site == LOSS


def test_a_count_before_the_shift_is_right_for_a_loss_before_the_shift():
    def part(t, i):
        return Part(t.microbatch, "unshifted", Quantity.of(1) / unshifted(t, i), varies=True)

    assert loop(part).violations() == {}


@pytest.mark.parametrize(("tags", "speaks"), [((), False), (("clamped several",), True), (("clamped rows",), True), (("clamped single",), False)])
def test_phantom_targets_come_from_clamps_before_the_sum(tags, speaks):
    marks = (*tags, f"clamped at {LOSS}") if tags else ()
    t = loop(lambda t, i: t.sum(window_total(t, i).tagged(*marks)))
    assert t.violations().keys() == ({"ACC105"} if speaks else set())
    assert not speaks or t.violations()["ACC105"].site == LOSS
    assert "ACC105" in t.applied()


def test_every_rank_divides_by_its_own_targets():
    found = loop(lambda t, i: t.sum(window_total(t, i)), BY_RANK, parallel="ddp").violations()
    assert "ACC106" in found and found["ACC106"].site == DIVISION
    assert found["ACC106"].related[0][0] == BACKWARD
    assert found.keys() <= {"ACC106", "ACC301"}


def test_one_count_of_all_ranks_with_the_average_undone_is_right():
    t = loop(lambda t, i: t.sum(window_total(t, i, average_undone=True)), BY_RANK, parallel="ddp")
    assert t.violations().keys() <= {"ACC301"} and "ACC106" in t.applied()


def test_the_average_over_ranks_is_not_undone():
    found = loop(lambda t, i: t.sum(window_total(t, i).reduced()), BY_RANK, parallel="ddp").violations()
    assert found.keys() - {"ACC301"} == {"ACC107"} and "2 (world size) times too small" in found["ACC107"].message


def test_gradients_that_are_summed_over_ranks_need_no_world_size():
    t = loop(lambda t, i: t.sum(window_total(t, i).reduced()), BY_RANK, parallel="ddp", sums=True)
    assert t.violations().keys() <= {"ACC301"}


def test_a_world_size_too_many():
    t = loop(lambda t, i: t.sum(window_total(t, i).reduced() / Quantity.of(2, "world")), BY_RANK, parallel="ddp", sums=True)
    assert t.violations().keys() - {"ACC301"} == {"ACC108"}


def test_a_divisor_that_is_the_count_of_another_window():
    # the count of the first window divides the second one too: 10 and 10 would not tell them apart, 10 and 12 do
    t = loop(lambda t, i: t.sum(Quantity.of(10, "count")), (3, 6, 1, 4, 4, 4))
    assert t.violations().keys() == {"ACC108"}
    assert loop(lambda t, i: t.sum(Quantity.of(10, "count")), (3, 6, 1, 1, 6, 3)).violations() == {}


def test_a_running_count_divides_by_what_was_seen_so_far():
    seen = {0: 3, 1: 9, 2: 10}
    found = loop(lambda t, i: t.sum(Quantity.of(seen[i], "count", "several")), SEED).violations()
    assert found.keys() == {"ACC108"} and found["ACC108"].cap is Confidence.POSSIBLE


def test_unknown_weights_are_not_judged():
    t = loop(lambda t, i: Part(t.microbatch, "valid", None, reason="`mystery` is not followed", varies=True))
    assert t.violations() == {} and not ALL & t.applied()


def test_a_path_with_a_skipped_microbatch_is_no_evidence_about_weights():
    t = Recorder(USUAL)
    t.disturbed = (1, 2, False)
    assert not ALL & t.train(usual(t)).applied()


def test_the_trainer_expects_a_sum():
    t = Recorder(EQUAL)
    t.traits.add("framework transformers")

    def body(i):
        t.backward(t.mean(1))
        if t.boundary(i):
            t.step()
            t.clear()

    found = t.train(body).violations()
    assert found.keys() == {"ACC102"} and "num_items_in_batch" in found["ACC102"].message
