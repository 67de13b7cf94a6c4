import pytest

from accumlint import baseline
from accumlint.baseline import Baseline, compare, enclosing_name, record
from accumlint.findings import Confidence, Finding, Severity, Span
from accumlint.report.model import Report

SOURCE = """\
class Trainer:
    def fit(self):
        for batch in loader:
            scheduler.step()

    async def other(self):
        scheduler.step()

def free():
    scheduler.step()

scheduler.step()
"""
LINES = (4, 7, 10, 12)


def report(source=SOURCE, lines=LINES, path="a.py", rule="ACC202"):
    findings = tuple(
        Finding(rule, "n", "C2", Severity.ERROR, Confidence.CERTAIN, Span(path, line), "m") for line in lines
    )
    return Report(findings, sources={path: source})


def new_lines(now, known, **how):
    return [finding.span.line for finding in compare(now, known, ["a.py"], **how).new]


def test_the_enclosing_name_is_read_off_the_indentation():
    lines = SOURCE.split("\n")
    assert [enclosing_name(lines, line) for line in LINES] == ["Trainer.fit", "Trainer.other", "free", ""]
    assert enclosing_name(lines, 99) == ""


@pytest.mark.parametrize(
    ("change", "new"),
    [
        (lambda text: "# more\n" * 50 + text, []),
        (lambda text: text.replace("scheduler.step()\n", "scheduler.step()   \n"), []),
        (lambda text: text.replace("            sched", "                sched"), []),
        (lambda text: text.replace("def other", "def renamed"), [7]),
        (lambda text: text.replace("def free():\n    scheduler", "def free():\n    lr_scheduler"), [10]),
    ],
    ids=["lines above", "blanks", "deeper", "function renamed", "line edited"],
)
def test_what_a_finding_is_recognised_by(change, new):
    known = record(report(), Baseline(), ["a.py"])
    source = change(SOURCE)
    shift = source.count("\n") - SOURCE.count("\n")
    now = report(source, [line + shift for line in LINES])
    assert new_lines(now, known) == new


def test_another_rule_or_file_or_a_second_time_is_new():
    known = record(report(lines=[4]), Baseline(), ["a.py"])
    assert new_lines(report(lines=[4], rule="ACC401"), known) == [4]
    assert new_lines(report(lines=[4], path="b.py"), known) == [4]
    assert new_lines(report(lines=[4, 4]), known) == [4]


def test_what_was_fixed_is_counted_and_leaves():
    known = record(report(), Baseline(), ["a.py"])
    assert compare(report(lines=[4]), known, ["a.py"]).stale == 3
    assert compare(report(lines=[4]), known, []).stale == 0, "nothing is known of files not looked at"
    assert record(report(lines=[4]), known, ["a.py"]) == record(report(lines=[4]), Baseline(), ["a.py"])
    assert record(report(lines=[4], path="b.py"), known, ["b.py"]).known.total() == 5


def test_rules_that_were_not_looked_for_stay_recorded():
    known = record(report(lines=[4]), Baseline(), ["a.py"])
    later = record(report(lines=[7], rule="ACC401"), known, ["a.py"], lambda rule: rule != "ACC202")
    assert {rule for _, rule, _, _ in later.known} == {"ACC202", "ACC401"}


def test_the_ratchet_counts_per_file_and_rule():
    known = record(report(lines=[4, 7]), Baseline(), ["a.py"])
    assert new_lines(report(lines=[10, 12]), known, ratchet=True) == []
    assert new_lines(report(lines=[4, 10, 12]), known, ratchet=True) == [12]
    assert new_lines(report(lines=[4], rule="ACC401"), known, ratchet=True) == [4]


def test_the_file_is_read_as_it_was_written(tmp_path):
    known = record(report(SOURCE.replace("free", "größe")), Baseline(), ["a.py"])
    path = tmp_path / "b.json"
    baseline.write(path, known)
    assert baseline.read(path) == known
    assert path.read_text().count('{"path"') == path.read_text().count("\n  {") == 4, "one entry a line"
    baseline.write(path, baseline.read(path))
    assert baseline.text_of(known) == path.read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"schema": "other"}',
        '{"schema": "accumlint/baseline/v1"}',
        '{"schema": "accumlint/baseline/v1", "findings": [{}]}',
        '{"schema": "accumlint/baseline/v1", "findings": 3}',
        '{"schema": "accumlint/baseline/v1", "findings": '
        '[{"path": "a", "rule": "r", "scope": "", "text": "", "count": true}]}',
        "[" * 100_000,
    ],
)
def test_what_is_no_baseline_is_refused_by_name(tmp_path, text):
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="b.json"):
        baseline.read(path)
