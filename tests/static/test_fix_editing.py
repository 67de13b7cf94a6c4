"""Changes by offset, edits by line and column, and the way back from new lines to old ones."""

from __future__ import annotations

import random

import pytest
from fixes_helpers import apply as apply_edits

from accumlint.findings import Fix
from accumlint.static.fixes.editing import (
    Change,
    Lines,
    Mapping,
    Overlap,
    apply,
    as_changes,
    as_edits,
    between,
    decoded,
)

ENDS = ["\n", "\r\n", "\r"]


def text_of(rows: list[str], end: str, closed: bool) -> str:
    return end.join(rows) + (end if closed and rows else "")


@pytest.mark.parametrize("seed", range(60))
def test_what_differs_leads_from_one_text_to_the_other(seed):
    draw = random.Random(seed)
    end, closed = draw.choice(ENDS), draw.random() < 0.5
    rows = [draw.choice(["a", "b", "  a", "", "é = 1"]) for _ in range(draw.randrange(12))]
    other = [row for row in rows if draw.random() < 0.8]
    for _ in range(draw.randrange(3)):
        other.insert(draw.randrange(len(other) + 1), draw.choice(["new", "", "  b"]))
    before, after = text_of(rows, end, closed), text_of(other, end, closed)
    changes = between(before, after)
    assert apply(before, changes) == after
    edits = as_edits(changes, Lines(before), "x.py")
    assert as_changes(edits, Lines(before)) == sorted(changes)
    assert apply_edits(before, Fix("", True, edits)) == after


def test_changes_that_meet_are_refused():
    assert apply("abc", [Change(1, 1, "x"), Change(1, 2, "y")]) == "axyc"
    with pytest.raises(Overlap):
        apply("abc", [Change(0, 2, ""), Change(1, 3, "")])


def test_lines_lead_back():
    mapping = Mapping("a\nb\nc\nd\n", "a\nnew\nc\nB\nmore\nd\n")
    assert [mapping.back(line) for line in range(1, 7)] == [1, 2, 3, None, None, 4]
    assert Mapping("a\nb\n", "b\n").removed == {1}


@pytest.mark.parametrize(
    ("source", "encoding"),
    [
        (b"x = 1\n", "utf-8"),
        (b"\xef\xbb\xbfx = 1\n", "utf-8-sig"),
        (b"# coding: latin-1\n# \xe9\n", "iso-8859-1"),
        (b"# coding: cp1252\n# \x80\n", "cp1252"),
    ],
)
def test_a_source_is_read_as_it_says(source, encoding):
    text, found = decoded(source)
    assert found == encoding and text.encode(found) == source


@pytest.mark.parametrize("source", [b"# \xff\n", b"# coding: nonsense\n", b"# coding: ascii\n# \xe9\n"])
def test_a_source_that_can_not_be_read_back_is_left_alone(source):
    assert decoded(source) is None
