"""The numbers that the whole project rests on, to the digit."""

from fractions import Fraction

import pytest

from accumlint import receipt


def window(made, index=0):
    return made.result["windows"][index]


def rational(value):
    return Fraction(value["rational"])


def test_three_six_one(manifest):
    made = receipt.build(manifest("three-six-one"))
    w = window(made)
    assert w["loss_numerator"] == {"decimal": "6.4", "rational": "32/5"}
    assert w["valid_targets"] == 10
    assert w["reference"]["loss"] == {"decimal": "0.64", "rational": "16/25"}
    assert w["accumulated"]["loss"] == {"decimal": "0.64", "rational": "16/25"}
    assert w["naive"]["loss"] == {"decimal": "0.53333333333333333", "rational": "8/15"}
    assert rational(w["naive"]["loss_delta"]["absolute"]) == Fraction(8, 75)
    assert rational(w["naive"]["loss_delta"]["relative"]) == Fraction(1, 6)
    assert rational(w["accumulated"]["loss_delta"]["absolute"]) == 0
    assert w["gradient_numerators"] == [{"decimal": "1", "rational": "1"}]
    assert w["accumulated"]["gradients"] == [{"decimal": "0.1", "rational": "1/10"}]
    assert w["naive"]["gradients"] == [{"decimal": "0.16666666666666667", "rational": "1/6"}]
    assert rational(w["naive"]["gradient_deltas"][0]["absolute"]) == Fraction(1, 15)
    assert rational(w["naive"]["gradient_deltas"][0]["relative"]) == Fraction(2, 3)
    assert [x["accumulated"]["rational"] for x in w["weights"]["listed"]] == ["1/10"] * 3
    assert [x["naive"]["rational"] for x in w["weights"]["listed"]] == ["1/9", "1/18", "1/3"]
    assert w["weights"]["accumulated"]["mass"]["rational"] == "1"
    assert made.verdict == "PASS"


def test_json_and_yaml_of_the_seed_are_one_manifest(manifests):
    hashes = {
        suffix: receipt.build(receipt.read((manifests / f"three-six-one.{suffix}").read_bytes())).hashes
        for suffix in ("json", "yaml")
    }
    assert hashes["json"] == hashes["yaml"]


def test_equal_counts_are_the_control(manifest):
    made = receipt.build(manifest("equal-control"))
    w = window(made)
    assert w["reference"]["loss"] == w["accumulated"]["loss"] == w["naive"]["loss"]
    assert rational(w["naive"]["loss_delta"]["absolute"]) == 0
    assert w["reference"]["loss"]["rational"] == "8/15"
    assert not w["discriminating"]
    assert made.verdict == "NOT-DISCRIMINATING"


def test_mean_of_means_fails_by_the_drift(manifest):
    made = receipt.build(manifest("mean-of-means"))
    assert made.verdict == "FAIL"
    assert window(made)["accumulated"]["loss"]["rational"] == "8/15"
    assert rational(window(made)["accumulated"]["loss_delta"]["absolute"]) == Fraction(8, 75)
    assert rational(window(made)["accumulated"]["gradients"][0]) == Fraction(1, 6)
    arithmetic = made.result["verdicts"][0]
    assert (arithmetic["verdict"], arithmetic["reason"], arithmetic["windows"]) == (
        "FAIL",
        "beyond-tolerance",
        [0],
    )


@pytest.mark.parametrize(
    ("name", "kinds", "updates"),
    [
        ("seven-flush", ["executed", "executed", "executed"], 3),
        ("seven-drop", ["executed", "executed", "dropped"], 2),
        ("seven-carry", ["executed", "executed", "carried"], 2),
    ],
)
def test_seven_microbatches_with_three_steps(manifest, name, kinds, updates):
    made = receipt.build(manifest(name))
    assert [w["microbatches_per_rank"] for w in made.result["windows"]] == [3, 3, 1]
    assert made.result["totals"]["window_sizes"] == [[3, 2], [1, 1]]
    assert [w["kind"] for w in made.result["windows"]] == kinds
    assert made.result["totals"]["update_index"] == updates
    assert made.result["totals"]["backward_index"] == 7
    assert made.verdict == "PASS"


def test_flushed_tail_is_divided_by_its_own_count(manifest):
    last = window(receipt.build(manifest("seven-flush")), 2)
    assert (last["valid_targets"], last["accumulated"]["loss"]["rational"]) == (2, "11/20")


def test_dropped_tail_names_its_microbatches(manifest):
    tail = receipt.build(manifest("seven-drop")).result["tail"]
    assert tail["windows"][0]["disposition"] == "drop"
    assert tail["windows"][0]["valid_targets"] == 2
    assert tail["windows"][0]["members"] == [{"rank": 0, "first": "r0-m6", "last": "r0-m6", "count": 1}]
    assert tail["pending"] is None


def test_carried_tail_holds_what_resuming_needs(manifest):
    pending = receipt.build(manifest("seven-carry")).result["tail"]["pending"]
    assert pending["window"] == 2
    assert pending["backward"] == 1
    assert pending["valid_targets"] == 2
    assert pending["loss_numerator"]["rational"] == "11/10"
    assert pending["gradient_numerators"][0]["rational"] == "1/2"
    assert pending["random_state_sha256"] == "5e" * 32
    assert pending["members"][0]["first"] == "r0-m6"


def test_two_ranks_share_one_denominator(manifest):
    average, summed = receipt.build(manifest("two-ranks")), receipt.build(manifest("two-ranks-summed"))
    # by hand: (6.4 + 4.6) / (10 + 8)
    assert window(average)["accumulated"]["loss"]["rational"] == "11/18"
    assert window(summed)["accumulated"] == window(average)["accumulated"]
    assert average.verdict == summed.verdict == "PASS"


def test_an_average_that_is_not_undone_halves_the_update(manifest):
    made = receipt.build(manifest("average-not-undone"))
    assert window(made)["accumulated"]["loss"]["rational"] == "11/36"
    assert window(made)["weights"]["accumulated"]["mass"]["rational"] == "1/2"
    assert made.verdict == "FAIL"


def test_local_denominators_differ_when_ranks_hold_different_counts(manifest):
    made = receipt.build(manifest("local-denominators"))
    # by hand: (6.4 / 10 + 4.6 / 8) / 2
    assert window(made)["accumulated"]["loss"]["rational"] == "243/400"
    assert made.verdict == "FAIL"


def test_tail_divided_as_full(manifest):
    made = receipt.build(manifest("tail-divided-as-full"))
    verdicts = {v["tier"]: v for v in made.result["verdicts"]}
    assert verdicts["tail"]["reason"] == "tail-divided-as-full"
    assert verdicts["arithmetic"]["windows"] == [2]
    assert window(made, 2)["weights"]["accumulated"]["mass"]["rational"] == "1/3"


def test_floats_are_read_by_their_text(manifest):
    """``fsum([1.2, 4.8, 0.4]) / 10`` is not 0.64; the receipt's number is."""
    import math

    assert math.fsum([1.2, 4.8, 0.4]) / 10 != 0.64
    assert window(receipt.build(manifest()))["reference"]["loss"]["decimal"] == "0.64"
