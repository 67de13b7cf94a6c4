import textwrap

import pytest

from accumlint.findings import Confidence, Finding, Severity, Span
from accumlint.suppression import apply, complaints, in_configuration, in_python

RULES = (("ACC202", "scheduler-per-microbatch", "C2"), ("ACC401", "clip-per-microbatch", "C4"))


def finding(line, rule="ACC202", name="scheduler-per-microbatch"):
    return Finding(rule, name, "C2", Severity.ERROR, Confidence.CERTAIN, Span("a.py", line), "m")


def hidden_lines(source, read=in_python, **kind):
    """The lines on which a finding would be hidden."""
    data = textwrap.dedent(source).encode()
    suppressions = read(data)
    return [
        line
        for line in range(1, data.count(b"\n") + 2)
        if apply([finding(line, **kind)], suppressions)[1]
    ]


@pytest.mark.parametrize(
    "comment",
    [
        "# accumlint: ignore[ACC202]",
        "# accumlint: ignore[acc202] the schedule is in microbatches",
        "# accumlint: ignore[scheduler-per-microbatch]",
        "# accumlint: ignore[ACC999, ACC202]",
        "#accumlint:ignore [ ACC202 ]",
        "# noqa: X1  # accumlint: ignore[ACC202]",
    ],
)
def test_a_trailing_comment_speaks_for_its_statement(comment):
    assert hidden_lines(f"a = 1\nscheduler.step()  {comment}\nb = 1\n") == [2]


def test_any_physical_line_of_the_statement_will_do():
    source = """\
    before()
    scheduler.step(
        # accumlint: ignore[ACC202]
        epoch,
    )
    after()
    other(
        1,
    )  # accumlint: ignore[ACC202]
    """
    assert hidden_lines(source) == [2, 3, 4, 5, 7, 8, 9]


def test_comment_lines_above_speak_for_the_statement_below():
    source = """\
    before()
    # accumlint: ignore[ACC202] since the schedule
    # is meant to be that long

    if x:
        pass
    """
    hidden = hidden_lines(source)
    assert 5 in hidden  # the header of the block
    assert 1 not in hidden and 6 not in hidden


def test_a_comment_on_the_header_does_not_speak_for_the_block():
    assert hidden_lines("for x in y:  # accumlint: ignore[ACC202]\n    step()\n") == [1]


def test_strings_are_no_comments():
    source = '''\
    text = "# accumlint: ignore[ACC202]"
    text = """
    # accumlint: ignore[ACC202]
    """
    f = f"# accumlint: ignore-file[ACC202] {x}"
    '''
    assert hidden_lines(source) == []


def test_a_comment_speaks_for_the_rules_that_it_names_only():
    source = "step()  # accumlint: ignore[ACC202]\n"
    assert hidden_lines(source, rule="ACC401", name="clip-per-microbatch") == []


def test_a_file_comment_speaks_for_every_line():
    assert hidden_lines("a\nb\n# accumlint: ignore-file[ACC202] generated\n") == [1, 2, 3, 4]


def test_comments_before_broken_syntax_still_count():
    assert 1 in hidden_lines("a = 1  # accumlint: ignore[ACC202]\nb = (\n")


def test_other_encodings_and_line_ends():
    latin = "# -*- coding: latin-1 -*-\nx = 'é'\r\nstep()  # é accumlint: ignore[ACC202]\n".encode("latin-1")
    assert in_python(latin) == ()  # text before the mark makes it another comment
    latin = "# -*- coding: latin-1 -*-\r\nx = 'é'; s()  # accumlint: ignore[ACC202] é\r\n".encode("latin-1")
    (only,) = in_python(latin)
    assert (only.line, only.column, only.rules) == (2, 15, ("ACC202",))


def said(source, used=True, on=lambda *rule: True, read=in_python):
    suppressions = read(source.encode())
    hits = apply([finding(1)], suppressions)[2] if used else set()
    return [each.message for each in complaints("a.py", suppressions, hits, RULES, on)]


def test_what_hides_nothing_is_reported():
    assert said("step()  # accumlint: ignore[ACC202]") == []
    assert said("step()  # accumlint: ignore[ACC202]", used=False) == [
        "ACC202 is not reported here: the comment can go"
    ]
    assert said("step()  # accumlint: ignore[ACC202, ACC401]") == [
        "ACC401 is not reported here: the comment can go"
    ]
    assert said("step()  # accumlint: ignore[scheduler]") == [
        "no rule is called 'scheduler', so nothing is hidden"
    ]
    assert said("step()  # accumlint: ignore") == [
        "this comment names no rule, so it hides nothing: write ignore[RULE]"
    ]
    assert "is no comment of ours" in said("step()  # accumlint: skip")[0]


def test_a_rule_that_is_off_was_not_looked_for():
    assert said("step()  # accumlint: ignore[ACC401]", on=lambda code, *_: code != "ACC401") == []


def test_configurations_have_comments_too():
    source = """\
    a: 1  # accumlint: ignore[ACC202]
    b: 2
    # accumlint: ignore[ACC202]
    c: 3
    d: "x# accumlint: ignore[ACC202]"
    """
    assert hidden_lines(source, read=in_configuration) == [1, 3, 4]


def test_files_without_the_mark_are_not_tokenised(monkeypatch):
    monkeypatch.setattr("accumlint.suppression.tokens", lambda data: pytest.fail("tokenised"))
    assert in_python(b"x = 1  # a comment\n") == ()
