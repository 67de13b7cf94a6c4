"""SARIF by the demands of the standard and of code scanning, checked on every snapshot case."""

from __future__ import annotations

import json
from urllib.parse import unquote

import pytest
from test_formats import CASES, finding

from accumlint.findings import Span
from accumlint.report.fingerprints import line_hashes
from accumlint.report.model import Report
from accumlint.report.sarif import render


def log(report):
    return json.loads(render(report))


def check_region(region):
    assert region["startLine"] >= 1 and region["startColumn"] >= 1
    assert "endLine" not in region, "more than one line keeps an alert off a pull request"
    if "endColumn" in region:
        assert region["endColumn"] > region["startColumn"]


def check_location(location):
    artifact = location["physicalLocation"]["artifactLocation"]
    uri = artifact["uri"]
    assert uri and not uri.startswith(("./", "/")) and "\\" not in uri and " " not in uri
    assert uri.isascii() and artifact["uriBaseId"] == "%SRCROOT%"
    check_region(location["physicalLocation"]["region"])


@pytest.mark.parametrize("case", CASES)
def test_what_code_scanning_demands(case):
    document = log(CASES[case])
    assert document["version"] == "2.1.0" and document["$schema"].endswith("sarif-2.1.0.json")
    (run,) = document["runs"]
    driver = run["tool"]["driver"]
    assert driver["name"] == "accumlint" and driver["semanticVersion"]
    assert run["automationDetails"]["id"] == "accumlint/"
    assert run["columnKind"] == "unicodeCodePoints"
    assert len(run["results"]) == len(CASES[case].findings)
    for rule in driver["rules"]:
        assert rule["id"] and 0 < len(rule["name"]) <= 255
        for key in ("shortDescription", "fullDescription"):
            assert 0 < len(rule[key]["text"]) <= 1024
        assert rule["help"]["text"].strip() and rule["help"]["markdown"].strip()
        assert rule["defaultConfiguration"]["level"] in ("note", "warning", "error")
        properties = rule["properties"]
        assert properties["precision"] in ("very-high", "high", "medium", "low")
        assert properties["problem.severity"] in ("error", "warning", "recommendation")
        assert "security-severity" not in properties, "would make it a security alert"
        assert len(properties["tags"]) <= 10
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("note", "warning", "error")
        assert result["message"]["text"].strip()
        (primary,) = result["locations"]
        check_location(primary)
        assert all(result["partialFingerprints"].values()) and result["partialFingerprints"]
        identifiers = [related["id"] for related in result.get("relatedLocations", ())]
        assert identifiers == list(range(1, len(identifiers) + 1))
        for related in result.get("relatedLocations", ()):
            check_location(related)
            assert f"]({related['id']})" in result["message"]["text"]
        for flow in result.get("codeFlows", ()):
            for thread in flow["threadFlows"]:
                assert thread["locations"]
                for step in thread["locations"]:
                    check_location(step["location"])
                    assert step["location"]["message"]["text"]
        for fix in result.get("fixes", ()):
            for change in fix["artifactChanges"]:
                for replacement in change["replacements"]:
                    region = replacement["deletedRegion"]
                    assert (region["endLine"], region["endColumn"]) >= (region["startLine"], region["startColumn"])


def test_the_code_flow_is_the_simulated_window():
    (run,) = log(CASES["finding"])["runs"]
    (flow,) = run["results"][0]["codeFlows"]
    steps = [step["location"]["message"]["text"] for step in flow["threadFlows"][0]["locations"]]
    assert steps[0] == "window 1: 3 microbatches, scheduler ×3, unscale, clip, step, clear"
    assert steps[1:7:2] == [
        f"window 1, microbatch {number}: backward, {targets} of weight {weight}, gradients {sync}"
        for number, targets, weight, sync in (
            (1, "3 valid targets", "1/9", "stay on their rank"),
            (2, "6 valid targets", "1/18", "stay on their rank"),
            (3, "1 valid target", "1/3", "are reduced"),
        )
    ]
    assert steps[2:8:2] == [f"window 1, microbatch {number}: scheduler" for number in (1, 2, 3)]
    assert steps[8] == "window 1: clip at the boundary"
    assert "codeFlows" not in run["results"][1], "an evidence without a timeline has no flow"


def test_events_stand_on_their_lines_where_those_are_known():
    timeline = {
        "lines": {"step": 9},
        "windows": [{"microbatches": [{"index": 0}], "events": ["step"], "tail": False}],
    }
    (run,) = log(Report((finding(evidence={"timeline": timeline}),)))["runs"]
    steps = run["results"][0]["codeFlows"][0]["threadFlows"][0]["locations"]
    assert [s["location"]["physicalLocation"]["region"]["startLine"] for s in steps] == [7, 9]


def test_only_safe_fixes_are_offered():
    (run,) = log(CASES["finding"])["runs"]
    assert ["fixes" in result for result in run["results"]] == [True, False]


def test_paths_survive_the_uri():
    (run,) = log(CASES["awkward-path"])["runs"]
    uri = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote(uri) == "my scripts/100%,a:b[1].py"


def test_files_outside_the_repository_are_not_claimed_for_it():
    (run,) = log(Report((finding(span=Span("../other/a.py", 1)),)))["runs"]
    artifact = run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": "../other/a.py"}


def test_a_broken_file_makes_the_invocation_unsuccessful():
    (run,) = log(CASES["broken-file"])["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert invocation["toolExecutionNotifications"][0]["message"]["text"].startswith("gone.py: ")


GREETING = " hello; \t{n}world!!!{n}{n}{n}  \t\tGreetings{n} End{n}"
GREETING_HASHES = [
    "e9496ae3ebfced30:1",
    "fb7c023a8b9ccb3f:1",
    "ce8ba1a563dcdaca:1",
    "e20e36e16fcb0cc8:1",
    "b3edc88f2938467e:1",
    "c8e28b0b4002a3a0:1",
    "c129715d7a2bc9a3:1",
]


@pytest.mark.parametrize("newline", ["\n", "\r", "\r\n"])
def test_line_hashes_are_those_of_the_uploading_action(newline):
    assert line_hashes(GREETING.format(n=newline)) == GREETING_HASHES
    assert line_hashes("") == ["c129715d7a2bc9a3:1"]
    assert line_hashes(f" a{newline}b{newline}  \t\tc{newline} d") == [
        "271789c17abda88f:1",
        "54703d4cd895b18:1",
        "180aee12dab6264:1",
        "a23a3dc5e078b07b:1",
    ]


def test_line_hashes_tell_equal_lines_apart_and_survive_shifts():
    same = "x = 1\n" * 200
    hashes = line_hashes(same)
    assert len(set(hashes)) == len(hashes) == 201
    tail = "".join(f"line {n}\n" for n in range(50))
    assert line_hashes("inserted\n" * 9 + tail)[9:] == line_hashes(tail)
