"""Carried tails: a chain of receipts conserves what one receipt over the whole stream would."""

import json
from fractions import Fraction

import pytest

from accumlint import receipt
from accumlint.receipt.building import previous_segment
from accumlint.receipt.verifying import HOLDS, REFUTED, UNVERIFIABLE, verify, verify_bytes


@pytest.fixture
def links(manifest):
    first = receipt.build(manifest("seven-carry"))
    second = receipt.build(manifest("seven-carry-continued"), previous=previous_segment(first))
    return first, second


def test_the_pending_window_is_completed(links):
    _, second = links
    windows = second.result["windows"]
    assert [w["window"] for w in windows] == [2, 3]
    assert [w["microbatches_per_rank"] for w in windows] == [3, 3]
    assert windows[0]["carried_in_per_rank"] == 1
    # by hand: (1.1 + 2.5 + 0.7) / (2 + 5 + 2)
    assert windows[0]["accumulated"]["loss"]["rational"] == str(Fraction("4.3") / 9)
    assert [x["id"] for x in windows[0]["weights"]["listed"]] == ["r0-m6", "r0-m7", "r0-m8"]
    assert second.verdict == "PASS"


def test_clocks_go_on_counting(links):
    _, second = links
    assert second.result["totals"]["backward_index"] == 12
    assert second.result["totals"]["update_index"] == 4


def test_one_receipt_over_the_whole_stream_gives_the_same_windows(manifest, links):
    first, second = links
    a, b = manifest("seven-carry"), manifest("seven-carry-continued")
    whole = manifest(
        "seven-carry", random_state={"policy": "deterministic", "seed": None, "boundary_sha256": None}
    )
    rows = whole["ranks"][0] = {
        key: a["ranks"][0][key] + b["ranks"][0][key]
        for key in ("windows", "valid_targets", "loss_numerators")
    } | {
        "rank": 0,
        "accumulation_steps": 3,
        "tail_policy": "carry",
        "gradient_numerators": [
            a["ranks"][0]["gradient_numerators"][0] + b["ranks"][0]["gradient_numerators"][0]
        ],
    }
    assert len(rows["windows"]) == 12
    one = receipt.build(whole).result["windows"]
    two = first.result["windows"][:2] + second.result["windows"]
    for x, y in zip(one, two):
        assert (x["reference"], x["accumulated"], x["naive"]) == (
            y["reference"],
            y["accumulated"],
            y["naive"],
        )
        assert x["weights"] == y["weights"]


def test_a_chain_is_verified_with_its_links(links):
    first, second = links
    known = {first.hashes["receipt_sha256"]: first}
    assert verify(second.data, known=known).status == HOLDS
    alone = verify(second.data)
    assert alone.status == UNVERIFIABLE and "chain-missing" in alone.reasons[0]


def test_another_first_link_is_not_accepted(manifest, links):
    """A receipt that claims the first link's hash but carries other rows is refuted."""
    first, second = links
    tree = manifest("seven-carry")
    tree["ranks"][0]["loss_numerators"][6] = 1.2
    forged = receipt.build(tree)
    assert verify(second.data, known={first.hashes["receipt_sha256"]: forged}).status == REFUTED


def test_pending_rows_cannot_be_altered(links):
    _, second = links
    assert (
        verify_bytes(second.data.replace(b'"loss_numerators":[1.1]', b'"loss_numerators":[1.2]')).status
        == REFUTED
    )


def test_chain_is_refused_when_settings_change(manifest, links, reasons):
    first, _ = links
    previous = previous_segment(first)
    for key, value in (("accumulation_steps", 4), ("tail_policy", "flush"), ("world_size", 2)):
        assert "chain-incompatible" in reasons(manifest("seven-carry-continued", **{key: value}), previous)


def test_chain_is_refused_when_components_change(edited, links, reasons):
    first, _ = links
    tree = edited(
        "seven-carry-continued", ("ranks", 0, "gradient_numerators"), [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    )
    assert "gradient-dimension" in reasons(tree, previous_segment(first))


def test_a_stated_chain_must_be_the_given_one(manifest, links, reasons):
    first, second = links
    previous = previous_segment(first)
    stated = json.loads(second.data)["manifest"]["continues"]
    assert reasons(manifest("seven-carry-continued", continues=stated), previous) == []
    changed = json.loads(json.dumps(stated))
    changed["pending"]["ranks"][0]["valid_targets"] = [3]
    assert reasons(manifest("seven-carry-continued", continues=changed), previous) == ["chain-broken"]
    changed = {**stated, "before": {"backward": 7, "updates": 3}}
    assert reasons(manifest("seven-carry-continued", continues=changed), previous) == ["chain-broken"]
    assert reasons(manifest("seven-carry-continued", continues=stated)) == ["chain-missing"]


def test_a_segment_may_end_before_the_pending_window_is_full(manifest, links):
    first, _ = links
    tree = manifest("seven-carry-continued")
    rank = tree["ranks"][0]
    for key in ("windows", "valid_targets", "loss_numerators", "microbatch_ids"):
        rank[key] = rank[key][:1]
    rank["gradient_numerators"] = [rank["gradient_numerators"][0][:1]]
    rank["sync"] = {"forward": [False], "backward": [False]}
    none = dict.fromkeys(rank["clocks"], [0])
    rank["clocks"] = none | {"backward": [1]}
    rank["decisions"] = {"nonfinite": [False], "step": ["none"]}
    second = receipt.build(tree, previous=previous_segment(first))
    pending = second.result["tail"]["pending"]
    assert (pending["backward"], pending["valid_targets"]) == (2, 7)
    assert second.verdict in ("PASS", "NOT-RUN")
    after = previous_segment(second)
    assert [len(r["valid_targets"]) for r in after.pending["ranks"]] == [2]
    assert after.before == {"backward": 8, "updates": 2}
