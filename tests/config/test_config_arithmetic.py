"""The batch arithmetic against brute force: what is refuted has no number of ranks, what is not has one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from accumlint.config.arithmetic import Batch, close_derived, close_local, close_plain, close_product, derive

small = st.integers(1, 12)


@given(small, small, st.integers(1, 300))
def test_a_product_is_refuted_only_when_no_ranks_close_it(micro, k, total):
    closable = any(micro * k * ranks == total for ranks in range(1, total + 1))
    assert (close_product(Batch(micro, k, total)).closes is False) == (not closable)


@given(small, small, st.integers(1, 300), small)
def test_a_product_with_known_ranks_is_exact(micro, k, total, ranks):
    verdict = close_product(Batch(micro, k, total, ranks))
    assert verdict.closes == (micro * k * ranks == total)


@given(small, st.integers(1, 300), small)
def test_what_the_framework_derives_loses_the_rest(micro, total, ranks):
    verdict = close_derived(Batch(micro, None, total, ranks))
    k = total // (micro * ranks)
    assert verdict.closes == (k * micro * ranks == total)
    if verdict.closes is False:
        assert verdict.effective == (k * micro * ranks or None)


@given(small, st.integers(1, 300))
def test_derived_with_unknown_ranks(micro, total):
    closable = any(total % (micro * ranks) == 0 for ranks in range(1, total + 1))
    assert (close_derived(Batch(micro, None, total)).closes is False) == (not closable)


@given(st.integers(1, 300), small)
def test_local_batches(total, ranks):
    assert close_local(Batch(None, None, total, ranks)).closes == (total % ranks == 0)


def test_missing_numbers_leave_it_open():
    assert close_product(Batch(4, 2)).closes is None
    assert close_product(Batch(total=8)).closes is None
    assert close_product(Batch(total=8, ranks=3)).closes is False
    assert close_derived(Batch(total=8)).closes is None
    assert close_local(Batch(total=8)).closes is None
    assert close_product(Batch(4, 2, -1)).closes is None


def test_plain_names_may_mean_a_batch_per_rank():
    assert close_plain(Batch(4, 2, 8, 4)).closes is None
    assert close_plain(Batch(4, 2, 16, 4)).closes is False


@given(small, small, small)
def test_derive_fills_the_fourth_number(micro, k, ranks):
    total = micro * k * ranks
    for gap in range(4):
        numbers = [micro, k, total, ranks]
        numbers[gap] = None
        filled = derive(Batch(*numbers))
        if gap != 0:  # the micro-batch is never derived: nothing derives it
            assert (filled.micro, filled.accumulation, filled.total, filled.ranks) == (micro, k, total, ranks)
