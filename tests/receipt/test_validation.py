"""Every reason has a manifest that is refused for it; and all reasons of a manifest are told at once."""

import copy
import json
from pathlib import Path

import pytest

from accumlint import receipt
from accumlint.receipt.building import previous_segment
from accumlint.receipt.problems import REASONS

REJECTED = sorted((Path(__file__).resolve().parents[2] / "fixtures/manifests/rejected").iterdir())
WITHOUT_FIXTURE = {
    "too-large": "a fixture of 48 MiB; test_reading makes one",
    "window-count": "a fixture of 50,000 windows; made below",
    "chain-unproven": "a matter of the receipt that is continued; the command line's tests have it",
}


def outcome(path, previous=None):
    """Reason codes for a file, the way the command reads it."""
    syntax = "json" if path.suffix == ".json" else "yaml"
    try:
        receipt.build(receipt.read(path.read_bytes(), syntax), previous=previous)
    except receipt.Rejected as rejected:
        return rejected
    return None


def previous_of(name, receipts):
    made = receipt.verify_bytes((receipts / f"{name}.receipt.json").read_bytes()).receipt
    return previous_segment(made)


def test_every_reason_has_a_fixture():
    assert {path.stem for path in REJECTED} | WITHOUT_FIXTURE.keys() == REASONS.keys()


@pytest.mark.parametrize("path", [p for p in REJECTED if p.stem not in WITHOUT_FIXTURE], ids=lambda p: p.stem)
def test_refused_for_its_reason(path, receipts):
    chained = {
        "chain-broken": "seven-carry",
        "chain-incompatible": "seven-carry",
        "chain-nothing-pending": "seven-flush",
    }
    previous = previous_of(chained[path.stem], receipts) if path.stem in chained else None
    rejected = outcome(path, previous)
    assert rejected is not None
    assert path.stem in rejected.counts
    for problem in rejected.problems:
        assert problem.sentence.startswith(REASONS[problem.code])


def test_all_problems_are_reported_at_once(manifest, reasons):
    tree = manifest("two-ranks")
    tree["world_size"] = True
    tree["loss_policy"] = "mean"
    tree["tolerances"] = {"absolute": -1, "relative": "x"}
    tree["colour"] = "red"
    tree["ranks"][0]["valid_targets"][0] = 2.5
    tree["ranks"][1]["loss_numerators"] = [1.0]
    tree["ranks"][1]["tail_policy"] = "drop"
    tree["plan_sha256"] = "zz"
    assert reasons(tree) == [
        "boolean-as-number", "choice", "column-length", "missing-key", "pattern", "tail-disagreement",
        "type", "unknown-key", "value-range",
    ]  # fmt: skip


def test_a_flaw_elsewhere_hides_no_empty_window(manifest, reasons):
    tree = manifest("three-six-one", extra=1)
    tree["ranks"][0].update(
        valid_targets=[0, 0, 0], loss_numerators=[0, 0, 0], gradient_numerators=[[0, 0, 0]]
    )
    assert reasons(tree) == ["unknown-key", "window-without-targets"]


def test_problems_name_their_place(edited):
    with pytest.raises(receipt.Rejected) as caught:
        receipt.validate(edited("two-ranks", ("ranks", 1, "valid_targets"), [3, True, -1]))
    assert [(p.path, p.code) for p in caught.value.problems] == [
        ("ranks[1].valid_targets[1]", "boolean-as-number"),
        ("ranks[1].valid_targets[2]", "count-unsafe"),
    ]


def test_thousands_of_problems_are_counted_and_not_listed(manifest):
    tree = manifest()
    tree["ranks"][0]["valid_targets"] = ["x"] * 5000
    with pytest.raises(receipt.Rejected) as caught:
        receipt.validate(tree)
    assert caught.value.counts["type"] == 5000
    assert len(caught.value.problems) == 20
    assert "and 4980 more of [type]" in list(caught.value.lines())


def test_unknown_keys_are_not_quoted_but_guessed(manifest):
    tree = manifest(ignore_indx=3)
    del tree["ignore_index"]
    with pytest.raises(receipt.Rejected) as caught:
        receipt.validate(tree)
    text = str(caught.value)
    assert "ignore_indx" not in text and "perhaps ignore_index was meant" in text


@pytest.mark.parametrize("tree", [None, 3, "x", [], [{}], {}, True])
def test_anything_gets_an_answer(tree):
    with pytest.raises(receipt.Rejected):
        receipt.validate(tree)


def test_a_microbatch_without_targets_is_fine_in_a_window_with_some(manifest):
    tree = manifest()
    tree["ranks"][0].update(
        valid_targets=[3, 0, 1], loss_numerators=[1.2, 0, 0.4], gradient_numerators=[[1.5, 0, 0.1]]
    )
    made = receipt.build(tree)
    assert made.verdict == "PASS"
    (window,) = made.result["windows"]
    assert window["naive"] is None and window["discriminating"]
    assert window["reference"]["loss"]["rational"] == "2/5"


def test_a_carried_window_may_still_be_empty(manifest):
    tree = manifest("seven-carry")
    tree["ranks"][0]["valid_targets"][6] = 0
    tree["ranks"][0]["loss_numerators"][6] = 0
    tree["ranks"][0]["gradient_numerators"][0][6] = 0
    assert receipt.build(tree).result["tail"]["pending"]["valid_targets"] == 0


def test_short_windows_are_allowed_where_an_epoch_ends_and_nowhere_else(manifest, reasons):
    tree = manifest("seven-flush")
    rank = tree["ranks"][0]
    rank["windows"] = [0, 0, 0, 1, 2, 2, 2]
    assert reasons(tree) == ["window-size"]
    tree["epoch_ends"] = [1, 2]
    rank["clocks"]["backward"] = [3, 1, 3]
    sync = [False, False, True, True, False, False, True]
    rank["sync"] = {"forward": sync, "backward": sync}
    made = receipt.build(tree)
    assert made.verdict == "PASS"
    assert [w["short"] for w in made.result["windows"]] == [False, True, False]


def test_nulls_in_gradients_need_a_nonfinite_window(manifest, reasons):
    tree = manifest("skipped-step")
    assert reasons(tree) == []
    tree["ranks"][0]["decisions"]["nonfinite"] = [False, False]
    assert "gradient-missing" in reasons(tree)


def test_too_many_windows_ask_for_segments(manifest, reasons):
    count = 50_001
    tree = manifest(accumulation_steps=1)
    rank = tree["ranks"][0]
    for key in ("microbatch_ids", "sync", "clocks", "decisions"):
        del rank[key]
    rank.update(
        accumulation_steps=1,
        windows=list(range(count)),
        valid_targets=[1] * count,
        loss_numerators=[1] * count,
        gradient_numerators=[[1] * count],
    )
    assert reasons(tree) == ["window-count"]


def test_sums_of_counts_stay_safe(manifest, reasons):
    tree = manifest()
    tree["ranks"][0]["valid_targets"] = [2**52, 2**52, 2**52]
    assert reasons(tree) == ["count-unsafe"]


def test_a_plan_fixed_before_the_run_binds_the_tolerance(manifest, reasons):
    tree = manifest()
    tree["plan_sha256"] = receipt.plan_hash(tree)
    assert reasons(tree) == []
    loosened = copy.deepcopy(tree)
    loosened["tolerances"]["relative"] = 0.5
    assert reasons(loosened) == ["plan-mismatch"]
    assert receipt.plan_hash({**tree, "ranks": "not looked at"}) == tree["plan_sha256"]


def test_order_of_ranks_and_keys_and_spelling_of_numbers_do_not_matter(manifest):
    tree = manifest("two-ranks")
    other = json.loads(json.dumps(tree, sort_keys=True))
    other["ranks"].reverse()
    other["ranks"][0]["loss_numerators"] = ["1.00", "22e-1", 1.4]
    other["ranks"][1]["microbatch_ids"] = ["anything", "else", "goes"]
    assert receipt.build(other).hashes == receipt.build(tree).hashes


def test_a_plan_of_malformed_settings_is_refused(manifest):
    for changed in ({"rank_reduction": "median"}, {"world_size": True}):
        with pytest.raises(receipt.Rejected):
            receipt.plan_hash(manifest(**changed))
    with pytest.raises(receipt.Rejected):
        receipt.plan_hash({})


@pytest.mark.parametrize(
    "unbound",
    [
        {"created": "yesterday"},
        {"duration_seconds": float("nan")},
        {"duration_seconds": -1},
        {"host": {"name": "box"}},
        {"user": "me"},
    ],
)
def test_the_unbound_part_holds_no_prose_either(manifest, unbound):
    with pytest.raises(receipt.Rejected):
        receipt.build(manifest(), unbound=unbound)


def test_the_documented_way_from_python():
    """The example of docs/receipts.md."""
    settings = {"accumulation_steps": 2, "tail_policy": "flush"}
    book = receipt.ManifestBuilder(settings, software={"torch": "2.4.1"})
    book.head["plan_sha256"] = receipt.plan_hash(book.head)
    for count, loss in ((3, 1.2), (1, 0.9)):
        book.microbatch(0, valid_targets=count, loss_numerator=loss, gradient_numerators=[1.5], weight=0.25)
    book.window(
        0, clocks={"backward": 2, "step_called": 1, "step_applied": 1}, step="applied", nonfinite=False
    )
    made = receipt.build(book.document())
    assert made.verdict == "PASS"
    assert receipt.verify(made.data).word == "holds"
