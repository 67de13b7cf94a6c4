"""Clocks, decisions, communication, precision: each fault turns its own tier red, and only that one."""

import copy

import pytest

from accumlint import receipt


def verdicts(tree):
    made = receipt.build(tree)
    return {v["tier"]: (v["verdict"], v["reason"]) for v in made.result["verdicts"]}, made


def test_the_seed_passes_what_was_recorded(manifest):
    found, made = verdicts(manifest())
    assert {tier for tier, (word, _) in found.items() if word == "PASS"} == {
        "arithmetic", "clocks", "decisions", "sync", "precision",
    }  # fmt: skip
    assert {tier for tier, (word, _) in found.items() if word == "NOT-RUN"} == {
        "weights", "observed", "tail", "ranks",
    }  # fmt: skip
    assert {x["tier"] for x in made.result["not_run"]} == {"weights", "observed", "tail", "ranks"}


@pytest.mark.parametrize(
    ("clock", "ticks", "tier"),
    [
        ("backward", 2, "clocks"),
        ("step_called", 3, "clocks"),
        ("step_applied", 0, "clocks"),
        ("scheduler_step", 3, "clocks"),
        ("scaler_update", 1, "clocks"),
        ("gradient_clear", 3, "clocks"),
        ("update_counter", 3, "clocks"),
        ("unscale", 1, "precision"),
        ("clip", 3, "precision"),
    ],
)
def test_every_clock_is_judged(manifest, clock, ticks, tier):
    tree = manifest()
    tree["ranks"][0]["clocks"][clock] = [ticks]
    found, made = verdicts(tree)
    assert [name for name, (word, _) in found.items() if word == "FAIL"] == [tier]
    (deviation,) = made.result["clocks"]["deviations"]
    assert (deviation["clock"], deviation["recorded"]) == (clock, ticks)
    assert made.verdict == "FAIL"


@pytest.mark.parametrize(("moves", "scheduler"), [("holds", 0), ("advances", 1)])
def test_skipped_steps_follow_the_declared_behaviour(manifest, moves, scheduler):
    tree = manifest("skipped-step")
    tree["on_skipped_step"]["scheduler"] = moves
    tree["ranks"][0]["clocks"]["scheduler_step"] = [1, scheduler]
    assert verdicts(tree)[0]["clocks"] == ("PASS", "clocks-agree")
    tree["ranks"][0]["clocks"]["scheduler_step"] = [1, 1 - scheduler]
    assert verdicts(tree)[0]["clocks"] == ("FAIL", "clock-deviates")


def test_a_skipped_window_counts_no_update(manifest):
    _, made = verdicts(manifest("skipped-step"))
    assert made.result["totals"]["update_index"] == 1
    assert made.result["totals"]["windows_by_kind"]["skipped"] == 1
    assert made.result["clipping"]["windows_above_by_rank"] == [1]
    assert made.result["windows"][1]["gradient_numerators"] is None


@pytest.mark.parametrize(
    ("nonfinite", "step", "expected"),
    [
        ([False], ["applied"], ("PASS", "decisions-agree")),
        ([True], ["applied"], ("FAIL", "step-despite-nonfinite")),
        ([True], ["skipped"], ("PASS", "decisions-agree")),
        ([False], ["skipped"], ("FAIL", "step-outcome")),
        ([False], ["none"], ("FAIL", "step-outcome")),
    ],
)
def test_decisions(manifest, nonfinite, step, expected):
    tree = manifest()
    tree["ranks"][0]["decisions"] = {"nonfinite": nonfinite, "step": step}
    assert verdicts(tree)[0]["decisions"] == expected


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        ("001", "001", ("PASS", "synchronised-at-the-end")),
        ("111", "111", ("PASS", "synchronised-early")),
        ("000", "001", ("FAIL", "final-not-synchronised")),
        ("001", "000", ("FAIL", "final-not-synchronised")),
        ("100", "100", ("FAIL", "final-not-synchronised")),
        ("011", "001", ("PASS", "synchronised-early")),
    ],
)
def test_sync(manifest, forward, backward, expected):
    tree = manifest()
    tree["ranks"][0]["sync"] = {
        "forward": [c == "1" for c in forward],
        "backward": [c == "1" for c in backward],
    }
    assert verdicts(tree)[0]["sync"] == expected


def test_a_loss_scale_may_change_between_windows_only(manifest):
    tree = manifest("skipped-step")
    tree["ranks"][0]["loss_scales"] = [65536] * 3 + [32768] * 3
    assert verdicts(tree)[0]["precision"] == ("PASS", "precision-in-order")
    tree["ranks"][0]["loss_scales"] = [65536] * 2 + [32768] * 4
    assert verdicts(tree)[0]["precision"] == ("FAIL", "scale-changed")


@pytest.mark.parametrize(
    "change",
    [
        lambda rank: rank["sync"].update(forward=[True] * 3, backward=[True] * 3),
        lambda rank: rank["clocks"].update(step_called=[2]),
        lambda rank: rank.update(decisions={"nonfinite": [True], "step": ["skipped"]}),
        lambda rank: rank["clocks"].pop("clip"),
    ],
)
def test_ranks_must_agree(manifest, change):
    tree = manifest("two-ranks")
    assert verdicts(tree)[0]["ranks"] == ("PASS", "ranks-agree")
    change(tree["ranks"][1])
    assert verdicts(tree)[0]["ranks"] == ("FAIL", "ranks-disagree")


def test_measured_weights(manifest):
    assert verdicts(manifest("measured-weights"))[0]["weights"] == ("PASS", "weights-equal")
    found, made = verdicts(manifest("measured-mean-of-means"))
    assert found["weights"] == ("FAIL", "weights-differ")
    assert found["observed"] == ("FAIL", "beyond-tolerance")
    assert found["arithmetic"][0] == "PASS"  # declared right, measured wrong: both stand in the receipt
    assert made.verdict == "FAIL"


def test_right_weights_with_a_wrong_mass_fail(manifest):
    """Every weight doubled: flat, but the update is twice as long."""
    tree = manifest("measured-weights")
    tree["ranks"][0]["weights"] = [0.2, 0.2, 0.2]
    assert verdicts(tree)[0]["weights"] == ("FAIL", "weights-differ")


def test_a_tolerance_that_hides_the_fault_is_inconclusive(manifest):
    for name, tier in (
        ("three-six-one", "arithmetic"),
        ("measured-weights", "weights"),
        ("measured-weights", "observed"),
    ):
        tree = manifest(name, tolerances={"absolute": 0.2, "relative": 0, "weight": 3})
        assert verdicts(tree)[0][tier] == ("INCONCLUSIVE", "tolerance-hides-fault")


def test_another_policy_that_agrees_by_luck_proves_nothing(manifest):
    """Ranks with equal counts: local denominators happen to be right."""
    tree = manifest("local-denominators")
    tree["ranks"][1]["valid_targets"] = [2, 4, 4]
    assert verdicts(tree)[0]["arithmetic"] == ("NOT-DISCRIMINATING", "policy-agrees-here")


def test_undivided_and_undefined(manifest):
    found, made = verdicts(manifest(loss_policy="undivided"))
    assert found["arithmetic"] == ("FAIL", "beyond-tolerance")
    assert made.result["windows"][0]["weights"]["accumulated"]["mass"]["rational"] == "10"
    tree = manifest(loss_policy="microbatch-mean")
    tree["ranks"][0].update(
        valid_targets=[3, 0, 1], loss_numerators=[1, 0, 1], gradient_numerators=[[1, 0, 1]]
    )
    assert verdicts(tree)[0]["arithmetic"] == ("FAIL", "undefined")


def test_a_dropped_tail_that_ran_must_be_cleared(manifest):
    tree = manifest("seven-drop")
    assert verdicts(tree)[0]["clocks"][0] == "PASS"
    leaking = copy.deepcopy(tree)
    leaking["ranks"][0]["clocks"]["gradient_clear"] = [1, 1, 0]
    assert verdicts(leaking)[0]["clocks"][0] == "FAIL"
    leaking["ranks"][0]["clocks"]["backward"] = [3, 3, 0]  # it never ran: nothing to clear
    assert verdicts(leaking)[0]["clocks"][0] == "PASS"


def test_limitations_are_never_empty_and_fit_the_run(manifest):
    assert len(receipt.build(manifest()).result["limitations"]) >= 6
    tree = manifest(origin="recorded", substitutions=[{"kind": "model", "count": 1}])
    tree["precision"]["gradient"] = "bfloat16"
    del tree["ranks"][0]["gradient_numerators"]
    found = receipt.build(tree).result["limitations"]
    assert {"recorded-not-rerun", "substituted", "loss-only"} <= set(found)
    assert "low-precision-accumulation" not in found


def test_the_builder_records_what_a_run_gives(manifest):
    """The seed, told event by event."""
    book = receipt.ManifestBuilder(
        {"accumulation_steps": 3},
        origin="synthetic",
        random_state={"policy": "deterministic", "seed": None, "boundary_sha256": None},
        software={"python": "3.11.9", "torch": "2.4.1+cu121"},
    )
    for place, (count, loss, gradient) in enumerate([(3, 1.2, 1.5), (6, 4.8, -0.6), (1, 0.4, 0.1)]):
        last = place == 2
        book.microbatch(0, count, loss, [gradient], sync_forward=last, sync_backward=last)
    clocks = dict.fromkeys(
        ("step_called", "step_applied", "scheduler_step", "gradient_clear", "update_counter"), 1
    )
    book.window(
        0,
        clocks={**clocks, "backward": 3, "scaler_update": 0, "unscale": 0, "clip": 0},
        nonfinite=False,
        step="applied",
    )
    assert receipt.build(book.document()).hashes == receipt.build(manifest()).hashes


def test_builders_of_several_processes_merge(manifest):
    books = []
    for rank in (0, 1):
        book = receipt.ManifestBuilder({"accumulation_steps": 2, "world_size": 2})
        for count in (2 + rank, 3):
            book.microbatch(0, count, 1.5 * count, [0.5, 0.25], rank=rank, weight=0.1)
        book.window(0, rank=rank, loss=1.5, gradients=[0.2, 0.1])
        books.append(book)
    books[0].merge(books[1])
    made = receipt.build(books[0].document())
    assert made.result["totals"]["valid_targets"] == 11
    assert made.result["windows"][0]["weights"]["measured"]["mass"]["rational"] == "11/10"
