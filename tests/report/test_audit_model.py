"""What an audit says of a tree: weights, ranks, what was not analysed, what to do first."""

import json
import os

import pytest
from audit_tree_helpers import CLEARED, FIXTURES, MEAN_OF_MEANS, RIGHT, SHORT_TAIL, TREE, audited, loops_of

from accumlint.cli.main import main
from accumlint.report.audit.identity import name_in_remote


def signature(document, path):
    (loop,) = loops_of(document, path)
    return loop["pictures"][0]["signature"]


def weights(window):
    return [
        (shares[0]["valid_targets"], shares[0]["weight"], shares[0]["right"]) for shares in window["shares"]
    ]


def test_the_seed_numbers_stand_in_the_signature(tree, capsys):
    tree({"counts.py": MEAN_OF_MEANS})
    found = signature(audited(capsys), "counts.py")
    assert found["state"] == "broken"
    assert weights(found["windows"][0]) == [
        ("3", "0.1111", "0.1"),
        ("6", "0.05556", "0.1"),
        ("1", "0.3333", "0.1"),
    ]


def test_equal_counts_are_right_and_say_so(tree, capsys):
    tree({"right.py": RIGHT})
    found = signature(audited(capsys), "right.py")
    assert found["state"] == "right"
    assert {share for window in found["windows"][:1] for share in weights(window)} == {
        ("8", "0.04167", "0.04167")
    }


def test_cleared_microbatches_weigh_nothing(tree, capsys):
    tree({"cleared.py": CLEARED})
    document = audited(capsys)
    assert "ACC204" in {finding["rule"] for finding in document["findings"]}
    found = signature(document, "cleared.py")
    assert found["state"] == "broken"
    assert [weight for _, weight, _ in weights(found["windows"][0])] == ["0", "0", "0.04167"]


def test_only_the_tail_is_off_where_only_the_tail_is(tree, capsys):
    tree({"tail.py": SHORT_TAIL})
    found = signature(audited(capsys), "tail.py")
    assert found["state"] == "broken"
    off = [[weight != right for _, weight, right in weights(window)] for window in found["windows"]]
    assert off[:3] == [[False] * 3, [False] * 3, [True] * 2]


def test_weights_that_no_rule_judges_are_not_shown_as_wrong(capsys):
    """A loss that comes out of a library may be a sum: nothing is claimed, so nothing may be drawn as off."""
    document = audited(capsys, FIXTURES)
    states = {}
    for loop in document["loops"]:
        rules = {document["findings"][each]["rule"] for each in loop["findings"]}
        for picture in loop["pictures"]:
            if picture["signature"]:
                states.setdefault(picture["signature"]["state"], []).append((loop["path"], rules))
    assert any(path == "scripts/detection_nominal.py" for path, _ in states["unjudged"])
    speaks = ("ACC1", "ACC204", "ACC205", "ACC208", "ACC210", "ACC5")
    assert all(any(rule.startswith(speaks) for rule in rules) for _, rules in states["broken"])


def test_findings_come_worst_first(tree, capsys):
    tree(TREE)
    findings = audited(capsys)["findings"]
    severities = ["error", "warning", "advice"]
    confidences = ["certain", "conditional", "possible"]
    order = [(severities.index(f["severity"]), confidences.index(f["confidence"])) for f in findings]
    assert order == sorted(order) and len(set(order)) > 1
    assert findings[0]["clause"] == "C1"  # what is optimised comes before when it is stepped
    places = [f["clause"] for f in findings if (f["severity"], f["confidence"]) == ("error", "certain")]
    assert places.index("C2") < places.index("C9")


def test_loops_and_findings_lead_to_each_other(tree, capsys):
    tree(TREE)
    document = audited(capsys)
    for number, loop in enumerate(document["loops"]):
        for each in loop["findings"]:
            assert number in document["findings"][each]["loops"]
        drawn = {each for picture in loop["pictures"] for each in picture["findings"]}
        assert drawn <= set(loop["findings"])
    (schedule,) = loops_of(document, "below/schedule.py")
    assert schedule["kind"] == "broken" and schedule["place"]["line"] == 8
    assert [document["findings"][each]["rule"] for each in schedule["pictures"][0]["findings"]] == ["ACC202"]
    (right,) = loops_of(document, "below/right.py")
    assert right["kind"] == "clean" or {
        document["findings"][each]["clause"] for each in right["findings"]
    } == {"C5"}


def test_what_was_not_analysed_is_said_with_the_reason(tree, capsys):
    tree({**TREE, "tests/test_train.py": MEAN_OF_MEANS})
    left = {each["reason"]: each for each in audited(capsys)["coverage"]["left"]}
    assert left["syntax-error"]["places"] == [
        {"path": "broken.py", "line": 3, "message": "cannot be parsed: '(' was never closed", "cell": 0}
    ]
    assert left["test-code"]["files"] == 1


def test_places_in_a_notebook_are_told_by_cell(tree, capsys):
    cells = [{"cell_type": "markdown", "source": "# training"}] + [
        {"cell_type": "code", "source": source, "outputs": [], "metadata": {}}
        for source in ("import os\n", MEAN_OF_MEANS)
    ]
    tree({"train.ipynb": json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})})
    document = audited(capsys)
    (finding,) = [each for each in document["findings"] if each["rule"] == "ACC101"]
    (loop,) = document["loops"]
    line = MEAN_OF_MEANS.split("\n").index("        (loss / accum_steps).backward()") + 1
    assert (finding["cell"], finding["line"], finding["loops"]) == (3, line, [0])
    assert (loop["place"]["cell"], loop["place"]["line"]) == (3, 8)
    assert main(["audit"]) == 0
    assert f"`train.ipynb:cell 3:{line}`" in capsys.readouterr().out


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_cannot_be_read_is_named(tree, capsys):
    folder = tree({"a.py": MEAN_OF_MEANS})
    (folder / "a.py").chmod(0)
    left = {each["reason"]: each for each in audited(capsys)["coverage"]["left"]}
    assert left["unreadable"]["places"][0]["path"] == "a.py"


def test_links_that_lead_out_are_left_out_and_counted(tree, capsys, tmp_path_factory):
    outside = tmp_path_factory.mktemp("elsewhere") / "train.py"
    outside.write_text(MEAN_OF_MEANS)
    folder = tree({"right.py": RIGHT})
    (folder / "linked.py").symlink_to(outside)
    document = audited(capsys)
    assert {loop["path"] for loop in document["loops"]} == {"right.py"}
    assert {each["reason"]: each["files"] for each in document["coverage"]["left"]}["link-outside"] == 1


def test_the_first_steps_are_few_grave_first_and_end_with_keeping_it(tree, capsys):
    tree(TREE)
    steps = audited(capsys)["first"]
    assert steps[0]["rule"] == "ACC101" and steps[0]["places"][0]["path"] == "counts.py"
    assert "divide once" in steps[0]["detail"] and "n_valid" in steps[0]["detail"]
    assert len([step for step in steps if step["rule"]]) <= 6
    assert all(step["severity"] != "advice" for step in steps)
    assert steps[-1]["title"] == "Stop new ones"


def test_a_clean_tree_is_told_how_to_stay_clean(tree, capsys):
    tree({"right.py": RIGHT})
    document = audited(capsys, "--ignore", "C5")
    assert document["findings"] == []
    assert [step["title"] for step in document["first"]] == ["Keep it so"]


def test_commands_name_the_script_in_a_way_that_a_shell_understands(tree, capsys):
    main = "\n\nif __name__ == '__main__':\n    train(torch.nn.Linear(2, 2), [])\n"
    tree(
        {
            "my scripts/it's.py": MEAN_OF_MEANS + main,
            "library.py": MEAN_OF_MEANS.replace("step, (", "i, (").replace("step + 1", "i + 1"),
        }
    )
    document = audited(capsys)
    (loop,) = loops_of(document, "my scripts/it's.py")
    assert """accumlint probe 'my scripts/it'"'"'s.py'""" in loop["commands"]
    (library,) = loops_of(document, "library.py")  # nothing in it can be run
    assert library["commands"][0] == "accumlint trace library.py" and not any(
        "probe" in each for each in library["commands"]
    )


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://user:secret@git.example.com/team/train.git", "team/train"),
        ("git@git.example.com:team/train.git", "team/train"),
        ("ssh://git@git.example.com:2222/group/sub/train", "sub/train"),
        ("buildhost:team/train", "team/train"),
        ("/home/somebody/repos/train.git", "train"),
        ("file:///home/somebody/repos/train", "train"),
        ("../train", "train"),
        (r"C:\Users\somebody\train", "train"),
    ],
)
def test_a_remote_gives_a_name_and_nothing_of_the_machine(url, name):
    assert name_in_remote(url) == name
