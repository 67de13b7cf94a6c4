"""Many reports as one page: ranked, in any order, and never taken down by a bad one."""

import itertools
import json

import pytest
from audit_page_helpers import check
from audit_tree_helpers import FAST_SCHEDULE, MEAN_OF_MEANS, RIGHT, audited

from accumlint.cli.main import main

WORST = FAST_SCHEDULE.replace("        loss =", "        optimizer.zero_grad()\n        loss =")
TREES = {"alpha": RIGHT, "beta": MEAN_OF_MEANS, "gamma": FAST_SCHEDULE, "delta": WORST}


@pytest.fixture
def reports(tree, capsys):
    """Reports of four repositories by file name, in the working folder."""
    made = {}
    for name, source in TREES.items():
        folder = tree({f"{name}/train.py": source})
        made[name] = audited(capsys, folder / name, "--name", f"team/{name}")
    made["delta"]["revision"] = {"commit": "d" * 40, "committed": "2025-02-01T00:00:00Z", "changed": False}
    for name, document in made.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return made


def merged(capsys, *arguments, code=0, kind="json"):
    capsys.readouterr()
    assert main(["audit", "merge", "--format", kind, *arguments]) == code
    out, err = capsys.readouterr()
    return (json.loads(out) if kind == "json" else out), err


FILES = [f"{name}.json" for name in TREES]


def test_repositories_and_rules_are_ranked(reports, capsys):
    document, _ = merged(capsys, *FILES)
    assert document["schema"] == "accumlint/audit-merge/v1"
    ranks = [(each["errors"], each["warnings"]) for each in document["repositories"]]
    assert ranks == sorted(ranks, reverse=True)
    assert [document["repositories"][n]["name"] for n in (0, -1)] == ["team/delta", "team/alpha"]
    rules = {each["rule"]: each for each in document["rules"]}
    assert rules["ACC101"]["repositories"] == ["team/beta"]
    assert document["rules"][0]["rule"] == "ACC202" and rules["ACC202"]["repositories"] == [
        "team/delta",
        "team/gamma",
    ]
    errors = [each["errors"] for each in document["rules"]]
    assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize("kind", ["html", "markdown", "json"])
def test_the_order_of_the_reports_does_not_matter(reports, capsys, kind, tree):
    tree({"bad.json": "{", "worse.json": "[]"})
    seen = {merged(capsys, *order, "bad.json", "worse.json", code=2, kind=kind)[0] if kind != "json" else
            json.dumps(merged(capsys, *order, "worse.json", "bad.json", code=2)[0])
            for order in itertools.islice(itertools.permutations(FILES), 0, 24, 5)}  # fmt: skip
    assert len(seen) == 1


def test_a_folder_stands_for_the_reports_in_it(reports, capsys):
    assert merged(capsys, ".")[0] == merged(capsys, *FILES)[0]


def test_a_bad_report_costs_itself_and_is_named(reports, capsys, tree):
    old = {**reports["beta"], "schema": "accumlint/audit/v0"}
    tree({"cut.json": json.dumps(reports["gamma"])[:500], "old.json": json.dumps(old), "empty.json": ""})
    document, err = merged(capsys, *FILES, "cut.json", "old.json", "empty.json", "gone.json", code=2)
    assert len(document["repositories"]) == 4
    reasons = {each["report"]: each["reason"] for each in document["unused"]}
    assert set(reasons) == {"cut.json", "old.json", "empty.json", "gone.json"}
    assert "expected 'accumlint/audit/v1'" in reasons["old.json"] and reasons["gone.json"].startswith(
        "cannot be read"
    )
    assert all(f"{name}: {reason}" in err for name, reason in reasons.items())
    page = check(merged(capsys, *FILES, "cut.json", code=2, kind="html")[0])
    assert "cut.json" in page.words()


def test_of_two_reports_of_one_repository_the_newer_speaks(reports, capsys, tree):
    newer = {
        **reports["delta"],
        "findings": [],
        "loops": [],
        "revision": {"commit": "e" * 40, "committed": "2025-03-01T00:00:00Z", "changed": False},
    }
    tree({"newer.json": json.dumps(newer)})
    for order in (["delta.json", "newer.json"], ["newer.json", "delta.json"]):
        document, err = merged(capsys, *order)
        (delta,) = document["repositories"]
        assert delta["commit"] == "e" * 40 and delta["errors"] == 0
        (said,) = document["replaced"]
        assert "gives way to that of revision eeeeeeeeeeee (2025-03-01), which is newer" in said["reason"]
        assert said["reason"] in err


def test_two_reports_that_cannot_be_told_apart_in_time(reports, capsys, tree):
    clean = {**reports["beta"], "findings": [], "loops": []}
    tree({"clean.json": json.dumps(clean)})
    for order in (["beta.json", "clean.json"], ["clean.json", "beta.json"]):
        document, _ = merged(capsys, *order)
        assert document["repositories"][0]["errors"] > 0
        assert "which is newer can't be told" in document["replaced"][0]["reason"]


def test_the_same_report_twice_counts_once(reports, capsys, tree):
    tree({"copy.json": json.dumps(reports["beta"], indent=3)})
    document, _ = merged(capsys, "beta.json", "copy.json")
    assert len(document["repositories"]) == 1
    assert document["replaced"][0]["reason"] == "the same report was given 2 times and counts once"


def test_the_joint_page_is_whole_and_shows_each_rule_once(reports, capsys):
    page = check(merged(capsys, *FILES, kind="html")[0])
    assert {"r1", "r2", "r3", "r4", "ACC101"} <= set(page.ids)
    assert "team/gamma" in page.words()


def test_what_a_report_says_cannot_become_markup(reports, capsys, tree):
    evil = json.loads(
        json.dumps(reports["beta"]).replace(
            "each microbatch is", "<script>alert(1)</script>[x](http://e.example) is"
        )
    )
    evil["name"] = "<img src=x>"
    evil["first"][0].update(title="<b>", detail="<script>alert(2)</script>")
    tree({"evil.json": json.dumps(evil)})
    page = check(merged(capsys, "evil.json", kind="html")[0])
    assert [node.tag for node in page.nodes].count("script") == 1 and "<img src=x>" in page.words()
    told = merged(capsys, "evil.json", kind="markdown")[0]
    assert "\\<img src=x\\>" in told and "<script>" not in told.replace("\\<", "")


def test_exit_codes_of_a_merge(reports, capsys, tree):
    assert main(["audit", "merge", "beta.json", "--fail-on", "error", "--output", "page.html"]) == 1
    assert main(["audit", "merge", "alpha.json", "--fail-on", "error", "--output", "page.html"]) == 0
    assert main(["audit", "merge"]) == 2
    assert main(["audit", "merge", "gone.json", "--output", "page.html"]) == 2
