"""The weights of a ledger as plain data: what the script gives every target, and what is right."""

from contract_traces import SEED, Recorder, usual

from accumlint.contract.signature import LOOKED_AT, signature
from accumlint.contract.timeline import SHOWN_WINDOWS


def shown(window):
    return [tuple(row["ranks"][0].values()) for row in window["microbatches"]]


def stepped(recorder, part, *, clear=True, early=False):
    """A loop whose loss is ``part()``; ``early`` clears before every backward, ``clear`` after the step."""

    def body(i):
        if early:
            recorder.clear()
        recorder.backward(part())
        if recorder.boundary(i):
            recorder.step()
            if clear:
                recorder.clear()

    return recorder.train(body)


def test_the_mean_of_means_of_the_seed():
    t = Recorder(SEED)
    (window,) = signature(stepped(t, lambda: t.mean(3)).ledger)["windows"]
    assert (window["number"], window["verdict"], window["total"]) == (1, "uneven", "10")
    assert shown(window) == [("3", "0.1111", "0.1"), ("6", "0.05556", "0.1"), ("1", "0.3333", "0.1")]


def test_one_division_by_the_count_is_right():
    t = Recorder(SEED)
    (window,) = signature(t.train(usual(t)).ledger)["windows"]
    assert (window["verdict"], window["factor"]) == ("right", "1")
    assert shown(window) == [("3", "0.1", "0.1"), ("6", "0.1", "0.1"), ("1", "0.1", "0.1")]


def test_targets_of_cleared_microbatches_belong_to_the_window_and_weigh_nothing():
    t = Recorder(SEED)
    (window,) = signature(stepped(t, lambda: t.sum(10), early=True).ledger)["windows"]
    assert shown(window) == [("3", "0", "0.1"), ("6", "0", "0.1"), ("1", "0.1", "0.1")]


def test_gradients_that_are_never_cleared_are_counted():
    t = Recorder(SEED * 2)
    first, second = signature(stepped(t, lambda: t.sum(10), clear=False).ledger)["windows"]
    assert (first["stale"], second["stale"]) == (0, 3)


def test_each_rank_has_its_share_where_ranks_differ():
    t = Recorder(((3, 1), (6, 2), (1, 7)), parallel="ddp")
    found = signature(stepped(t, lambda: t.mean(3)).ledger)
    assert found["ranks"] == 2
    (window,) = found["windows"]
    assert window["total"] == "20"
    assert window["microbatches"][0]["ranks"] == [
        {"valid_targets": "3", "weight": "0.05556", "right": "0.05"},
        {"valid_targets": "1", "weight": "0.1667", "right": "0.05"},
    ]


def test_a_window_that_is_off_far_behind_the_first_ones_is_found():
    late = 3 * (SHOWN_WINDOWS + 10)
    t = Recorder((2,) * late + SEED)
    windows = signature(stepped(t, lambda: t.mean(3)).ledger)["windows"]
    assert [window["number"] for window in windows] == [*range(1, SHOWN_WINDOWS + 1), SHOWN_WINDOWS + 11]
    assert windows[-1]["verdict"] == "uneven"
    t = Recorder((2,) * (3 * LOOKED_AT) + SEED)
    assert len(signature(stepped(t, lambda: t.mean(3)).ledger)["windows"]) == SHOWN_WINDOWS
