"""Exact numbers per rank, with symbols: what they may do, and when they must give up."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accumlint.contract.quantity import RANKS, Quantity, quantity

fractions = st.fractions(min_value=-50, max_value=50, max_denominator=60)
nonzero = fractions.filter(bool)
names = st.sampled_from(["K", "world", "#0.5", "~lr"])


@st.composite
def quantities(draw, numbers=fractions):
    value = Quantity.per_rank(tuple(draw(st.lists(numbers, min_size=RANKS, max_size=RANKS))), *draw(st.sets(st.sampled_from("abc"))))
    for name in draw(st.lists(names, max_size=3)):
        value = value * Quantity.symbol(name) if draw(st.booleans()) else value / Quantity.symbol(name)
    return value


def same(left, right):
    return left.ranks == right.ranks and left.symbols == right.symbols


@given(quantities(), quantities(), quantities())
def test_multiplication_is_commutative_and_associative(a, b, c):
    assert a * b == b * a
    assert (a * b) * c == a * (b * c)


@given(quantities(), quantities(nonzero))
def test_what_is_multiplied_and_divided_by_the_same_is_unchanged(a, b):
    back = a * b / b
    assert same(back, a)
    assert back.tags == a.tags | b.tags  # but it remembers where its factors came from


@given(quantities(nonzero))
def test_a_quantity_divided_by_itself_is_one_whatever_its_symbols(a):
    assert (a / a).exact == 1


@given(quantities(), st.integers(-9, 9), nonzero)
def test_ranks_are_computed_each_for_itself_and_exactly(a, factor, divisor):
    assert (a * factor).ranks == tuple(value * factor for value in a.ranks)
    assert (a / divisor).ranks == tuple(value / divisor for value in a.ranks)
    assert all(isinstance(value, Fraction) for value in (a * factor / divisor).ranks)
    assert (-a).ranks == tuple(-value for value in a.ranks)


@given(quantities(nonzero), quantities(nonzero))
def test_a_sum_exists_exactly_where_it_is_a_monomial(a, b):
    total = a.plus(b)
    assert (total is None) == (a.symbols != b.symbols)
    if total is not None:
        assert total.ranks == tuple(x + y for x, y in zip(a.ranks, b.ranks))
        assert same(total.plus(b, -1), a) or not any(total.ranks)
    assert total == b.plus(a)


@given(quantities())
def test_zero_is_neutral_whatever_symbols_it_meets(a):
    assert same(a.plus(0), a)
    assert quantity(0).plus(a).ranks == a.ranks
    assert quantity(0).plus(a, -1).ranks == (-a).ranks


@given(quantities())
def test_an_all_reduce_leaves_the_same_number_on_every_rank(a):
    total, mean = a.reduced(), a.reduced(average=True)
    assert total.uniform and mean.uniform
    assert total.ranks[0] == sum(a.ranks)
    assert same(mean * RANKS, total)
    assert total.symbols == a.symbols
    assert "reduced" in total.tags and "single" not in a.tagged("single").reduced().tags


@given(fractions, fractions)
def test_exact_and_integer_answer_only_for_what_is_known_and_uniform(x, y):
    value = Quantity.per_rank((x, y))
    assert value.exact == (x if x == y else None)
    assert value.uniform == (x == y)
    assert value.integer == (int(x) if x == y and x.denominator == 1 else None)
    symbolic = value * Quantity.symbol("K")
    assert symbolic.exact is None and symbolic.integer is None and not symbolic.known


def test_integer_is_a_python_int():
    assert type(Quantity.of(7).integer) is int and Quantity.of(Fraction(7, 2)).integer is None


def test_symbols_cancel_and_stay_sorted():
    k, world = Quantity.symbol("K"), Quantity.symbol("world")
    assert (world * k).symbols == (k * world).symbols == (("K", 1), ("world", 1))
    assert (k * world / k).symbols == (("world", 1),)
    assert (k * k / world).symbols == (("K", 2), ("world", -1))
    assert (k / k).known


def test_counts_of_several_microbatches_are_no_single_count():
    single = Quantity.of(3, "count", "single")
    total = single.plus(Quantity.of(6, "count", "single"))
    assert total.exact == 9 and "several" in total.tags and "single" not in total.tags
    first = quantity(0).plus(single)  # a running total that starts at nothing holds one microbatch
    assert "single" in first.tags


@given(quantities(), quantities())
def test_an_operation_per_rank_needs_known_numbers(a, b):
    got = a.pointwise(b, max)
    assert (got is None) == bool(a.symbols or b.symbols)
    if got is not None:
        assert got.ranks == tuple(max(x, y) for x, y in zip(a.ranks, b.ranks))


@pytest.mark.parametrize("divisor", [0, Quantity.per_rank((1, 0))])
def test_division_by_zero_on_any_rank_is_an_error(divisor):
    with pytest.raises(ZeroDivisionError):
        Quantity.of(1) / divisor


def test_the_text_shows_ranks_that_differ_and_powers():
    assert str(Quantity.of(Fraction(1, 3))) == "1/3"
    assert str(Quantity.per_rank((3, 6))) == "[3]/[6]"
    assert str(Quantity.of(2) / Quantity.symbol("K")) == "2·K^-1"
