"""Properties that hold for all data, found by hypothesis if they don't."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from accumlint import receipt
from accumlint.receipt.arithmetic import accept_scalar, accept_vector, accept_weight
from accumlint.receipt.plan import ACCEPT_SCALAR, ACCEPT_VECTOR, ACCEPT_WEIGHT
from accumlint.receipt.recording import ManifestBuilder
from accumlint.receipt.verifying import HOLDS, verify_bytes

STATE = {"policy": "deterministic", "seed": None, "boundary_sha256": None}
decimals = st.decimals(-1000, 1000, places=4).map(lambda d: float(d))
tokens = st.lists(st.tuples(decimals, decimals), min_size=1, max_size=24)  # (loss, gradient) of each target


def one_window(partition, ranks=1, **settings_):
    """A manifest of one window from the targets of each microbatch, dealt to ranks in turn."""
    per_rank = len(partition) // ranks
    book = ManifestBuilder(
        {"accumulation_steps": per_rank, "world_size": ranks, **settings_},
        origin="synthetic",
        random_state=STATE,
    )
    for place, targets in enumerate(partition):
        losses = sum((Fraction(str(x)) for x, _ in targets), Fraction(0))
        gradient = sum((Fraction(str(g)) for _, g in targets), Fraction(0))
        # sums of numbers with four places have four places: the text is exact
        book.microbatch(
            0,
            len(targets),
            f"{losses.numerator * (10**4 // losses.denominator)}e-4",
            [f"{gradient.numerator * (10**4 // gradient.denominator)}e-4"],
            rank=place // per_rank,
        )
    return book.document()


def partitions(targets, cuts, parts):
    places = sorted(cut % (len(targets) + 1) for cut in cuts[: parts - 1])
    return [targets[a:b] for a, b in zip([0, *places], [*places, len(targets)])]


@given(tokens, st.lists(st.integers(0, 1000), min_size=11, max_size=11), st.sampled_from([1, 2, 3, 4, 6, 12]))
@settings(max_examples=60, deadline=None)
def test_accumulated_equals_full_batch_for_every_partition(targets, cuts, parts):
    whole = receipt.build(one_window([targets])).result["windows"][0]
    for ranks in (r for r in (1, 2, 3) if parts % r == 0):
        cut = partitions(targets, cuts, parts)
        made = receipt.build(one_window(cut, ranks)).result["windows"][0]
        assert made["reference"] == whole["reference"]
        assert made["accumulated"]["loss"] == whole["reference"]["loss"]
        assert made["accumulated"]["gradients"] == whole["reference"]["gradients"]
        assert made["accumulated"]["loss_delta"]["absolute"]["rational"] == "0"
        assert made["weights"]["accumulated"]["mass"]["rational"] == "1"


@given(st.integers(1, 5), st.integers(1, 5), st.data())
@settings(max_examples=40, deadline=None)
def test_naive_equals_full_batch_when_counts_are_equal(size, parts, data):
    targets = data.draw(st.lists(st.tuples(decimals, decimals), min_size=size * parts, max_size=size * parts))
    made = receipt.build(one_window([targets[i * size : (i + 1) * size] for i in range(parts)]))
    window = made.result["windows"][0]
    assert window["naive"]["loss"] == window["reference"]["loss"]
    assert window["naive"]["gradients"] == window["reference"]["gradients"]
    assert window["weights"]["naive"]["uniform"]
    assert made.verdict == "NOT-DISCRIMINATING"


@given(st.lists(st.lists(st.tuples(decimals, decimals), min_size=1, max_size=6), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_naive_weights_are_uniform_only_when_counts_are_equal(cut):
    window = receipt.build(one_window(cut)).result["windows"][0]
    assert window["weights"]["naive"]["uniform"] == (len({len(m) for m in cut}) == 1)
    # with unequal counts, some loss tells the formulas apart: one target of loss 1 in the smallest microbatch
    if len({len(m) for m in cut}) > 1:
        smallest = min(range(len(cut)), key=lambda i: len(cut[i]))
        marked = [
            [(1.0 if (i, j) == (smallest, 0) else 0.0, 0.0) for j in range(len(m))] for i, m in enumerate(cut)
        ]
        made = receipt.build(one_window(marked))
        assert made.result["windows"][0]["discriminating"]


@given(tokens, st.lists(st.integers(0, 1000), min_size=5, max_size=5), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_what_is_built_holds(targets, cuts, parts):
    made = receipt.build(one_window(partitions(targets, cuts, parts)))
    assert verify_bytes(made.data).status == HOLDS
    assert receipt.build(made.manifest.document).data == made.data  # the normal form is its own


@given(st.fractions(-9, 9, max_denominator=50), st.fractions(-9, 9, max_denominator=50), st.integers(0, 20))
@settings(max_examples=200, deadline=None)
def test_acceptance_is_evaluated_as_written(a, r, thousandths):
    """The expressions in the plan, evaluated by Python from their text, decide like the code."""
    tolerances = {"absolute": thousandths / 1000, "relative": "0.05", "weight": "0.25"}
    names = {
        "accumulated": a,
        "reference": r,
        "absolute": Fraction(str(tolerances["absolute"])),
        "relative": Fraction("0.05"),
        "weight": a,
        "window_targets": 3,
        "tolerance": Fraction("0.25"),
    }
    assert eval(ACCEPT_SCALAR, {}, names) == accept_scalar(a, r, tolerances)
    assert eval(ACCEPT_WEIGHT, {}, names) == accept_weight(a, 3, tolerances)
    vectors = {**names, "accumulated": [a, r, a], "reference": [r, a, a]}
    # as globals: comprehensions inside eval do not see its locals on older Pythons
    assert eval(ACCEPT_VECTOR, vectors) == accept_vector([a, r, a], [r, a, a], tolerances)
