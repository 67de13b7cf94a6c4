from fake_engine import TIMELINE
from hypothesis import given
from hypothesis import strategies as st

from accumlint.report.text import cells
from accumlint.report.timeline import draw, summarise


def picture(timeline, width=100, unicode=True):
    return ["".join(text for text, _ in line) for line in draw(timeline, width, unicode)]


def window(*microbatches, events=("step", "clear"), tail=False):
    return {"microbatches": list(microbatches), "events": list(events), "tail": tail}


def micro(index, sync=None, events=(), **more):
    return {"index": index, "forward": True, "backward": True, "sync": sync, "events": list(events), **more}


def test_the_picture_reads_by_itself():
    assert picture(TIMELINE, unicode=False) == [
        "window      1                tail",
        "microbatch  1    2    3    | 4    |",
        "targets     3    6    1    | 4    |",
        "backward    *    *    *    | *    |",
        "sync        .    .    S    | ?    |",
        "weight      1/9  1/18 1/3  | ?    |",
        "unscale     .    .    ^    | .    |",
        "clip        .    .    ^    | .    |",
        "step        .    .    ^    | ^    |",
        "scheduler   ^    ^    ^    | .    |",
        "clear       .    .    ^    | ^    |",
    ]


def test_windows_that_do_not_fit_go_below():
    timeline = {"windows": [window(*(micro(3 * w + m) for m in range(3))) for w in range(4)]}
    narrow = picture(timeline, width=40)
    assert [line.split() for line in narrow if line.startswith("window")] == [
        ["window", "1", "2"],
        ["window", "3", "4"],
    ]
    assert max(map(cells, narrow)) <= 40
    assert len([line for line in picture(timeline) if line.startswith("window")]) == 1


def test_a_forward_without_backward_gets_its_lane():
    timeline = {"windows": [window(micro(0), {**micro(1), "backward": False})]}
    assert "forward     o  o  |" in picture(timeline, unicode=False)
    assert "backward    *  .  |" in picture(timeline, unicode=False)


def test_lanes_that_say_nothing_are_left_out():
    lanes = {line.split()[0] for line in picture({"windows": [window(micro(0), events=())]})}
    assert lanes == {"window", "microbatch", "backward"}


def test_what_never_changes_is_said_once():
    timeline = {"windows": [window(micro(0, valid_targets=8, weight="1/24"), micro(1, valid_targets=8, weight="1/24"))]}
    drawn = picture(timeline)
    assert drawn[-1] == "8 valid targets in every microbatch, every target weighs 1/24"
    assert not any(line.startswith(("targets", "weight")) for line in drawn)
    timeline["windows"].append(window(micro(2, valid_targets=8, weight="1/8")))
    assert any(line.startswith("weight") for line in picture(timeline))


def test_a_window_that_spans_two_epochs_shows_them():
    timeline = {"windows": [window(micro(0, epoch=1), micro(1, epoch=2)), window(micro(2, epoch=2))]}
    assert "epoch       1  2  | 2  |" in picture(timeline, unicode=False)
    timeline = {"windows": [window(micro(0, epoch=1)), window(micro(1, epoch=2))]}
    assert not any(line.startswith("epoch") for line in picture(timeline))


def test_what_happens_twice_is_counted_and_unknown_events_are_shown():
    timeline = {"windows": [window(micro(0, events=["clip", "clip", "log"]))]}
    drawn = picture(timeline, unicode=False)
    assert "clip        ^2 |" in drawn and "log         ^  |" in drawn


def test_leftovers_and_notes_are_said():
    drawn = picture({"windows": [], "pending": 2, "note": "length assumed"})
    assert drawn == ["2 microbatches are left over: no step uses their gradients", "length assumed"]


def test_a_window_without_microbatches_is_drawn():
    assert "step        ^  |" in picture({"windows": [window(events=("step",))]}, unicode=False)


def test_a_window_in_a_sentence():
    assert summarise(window(micro(0, events=["scheduler"]), micro(1, events=["scheduler"]))) == (
        "2 microbatches, scheduler ×2, step, clear"
    )


EVENTS = st.lists(st.sampled_from(["clip", "step", "scheduler", "clear", "own-event"]), max_size=3)
MICROBATCHES = st.lists(
    st.fixed_dictionaries(
        {"index": st.integers(0, 10**6), "events": EVENTS},
        optional={
            "forward": st.booleans(),
            "backward": st.booleans(),
            "sync": st.none() | st.booleans(),
            "valid_targets": st.none() | st.integers(0, 10**9),
            "weight": st.none() | st.text("0123456789/", max_size=12),
        },
    ),
    max_size=8,
)
WINDOWS = st.lists(
    st.fixed_dictionaries({"microbatches": MICROBATCHES, "events": EVENTS, "tail": st.booleans()}), max_size=6
)


@given(WINDOWS, st.integers(20, 200))
def test_any_timeline_can_be_drawn_without_unicode(windows, width):
    drawn = picture({"windows": windows}, width, unicode=False)
    assert "".join(drawn).isascii()
    bars = [line.count("|") for line in drawn if line.startswith("microbatch")]
    assert sum(bars) == len(windows)
