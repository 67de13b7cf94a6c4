"""Every fix that a rule page promises holds on the page's own bad examples, and changes nothing beside its edits."""

from __future__ import annotations

import pytest
from fixes_helpers import apply, findings_of, offered, told

from accumlint import knowledge
from accumlint.static.engine import EngineSettings, Project
from accumlint.static.fixes.offer import fix_file, fixes_for
from accumlint.static.fixes.registry import FIXERS

PAGES = [rule for rule in knowledge.rules().values() if rule.clause not in ("C0", "C9")]
BAD = [(rule, example) for rule in PAGES for example in rule.examples if example.kind == "bad" and rule.code in FIXERS]

# examples whose fix is not found; each of these turns red as soon as it is
WAITING = {
    ("ACC102", "a Trainer loss function that ignores the count"): "needs another reduction, which is the author's to choose",
    ("ACC201", "the accumulation count divides but gates nothing"): "the loop would have to learn to count",
    ("ACC204", "inside accumulate and before the backward"): "whole windows told by a remainder of a literal count as windows with a tail",
    ("ACC302", "a helper that back-propagates under ExitStack"): "the forward would have to move into another function",
    ("ACC303", "every microbatch of the window under no_sync"): "the loop would have to learn which microbatch is its last",
    ("ACC303", "FSDP2 sync is switched off and never on again"): "the loop would have to learn which microbatch is its last",
    ("ACC704", "the update counter that drives the learning rate is lost"): "the loop would have to start at the count that was restored",
}
SAFE_IS_BEST = {"none": 0, "unsafe": 1, "safe": 2}


def _name(value: object) -> str:
    return value.code if isinstance(value, knowledge.Rule) else str(getattr(value, "page_line", ""))


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_name)
def test_a_bad_example_is_fixed_and_nothing_new_is_found(rule, example, tmp_path):
    path = tmp_path / "example.py"
    fixes = [fix for finding, fix in offered(example.code.encode(), path, tmp_path) if finding.rule == rule.code]
    if (rule.code, example.title) in WAITING:
        assert not any(fixes), "it is fixed by now"
        return
    assert fixes and all(fixes)
    for fix in fixes:
        assert fix.safe == (not fix.why_unsafe)
        after = findings_of(apply(example.code, fix).encode(), path, tmp_path)
        assert len(after) == len(fixes) - 1, told(after)


def test_a_page_promises_what_its_fixers_do(tmp_path):
    for rule in PAGES:
        best = "none"
        for example in rule.examples:
            if example.kind == "bad" and rule.code in FIXERS:
                for finding, fix in offered(example.code.encode(), tmp_path / "example.py", tmp_path):
                    if finding.rule == rule.code and fix is not None:
                        best = max(best, "safe" if fix.safe else "unsafe", key=SAFE_IS_BEST.__getitem__)
        assert rule.fix == best, f"{rule.code}: the page says {rule.fix}, the best fix of its examples is {best}"


# one example of each kind of change, written in every way
KINDS = {
    fixer.__module__: (rule, example)
    for rule, example in reversed(BAD)
    for fixer in FIXERS[rule.code]
    if (rule.code, example.title) not in WAITING
}


def _windows_ends_and_no_last_one(text: str) -> bytes:
    return text.rstrip("\n").replace("\n", "\r\n").encode()


def _byte_order_mark_and_tabs(text: str) -> bytes:
    rows = []
    for row in text.split("\n"):
        body = row.lstrip(" ")
        rows.append("\t" * ((len(row) - len(body)) // 4) + body)
    return b"\xef\xbb\xbf" + "\n".join(rows).encode()


def _latin_1(text: str) -> bytes:
    return ("# -*- coding: latin-1 -*-\n# f\u00fcr gr\u00f6\u00dfere Fenster\n" + text).encode("latin-1")


@pytest.mark.parametrize("write", [_windows_ends_and_no_last_one, _byte_order_mark_and_tabs, _latin_1])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_fix_keeps_the_way_in_which_a_file_is_written(kind, write, tmp_path):
    path = str(tmp_path / "example.py")
    source = KINDS[kind][1].code

    def fixed(source: bytes) -> bytes:
        found = findings_of(source, path, tmp_path)
        done = fix_file(source, path, found, Project(tmp_path), EngineSettings(), unsafe=True)
        assert done.applied
        return done.source

    assert fixed(write(source)) == write(fixed(source.encode()).decode())


def test_findings_that_are_not_the_engines_get_no_fix(tmp_path):
    rule, example = BAD[0]
    source = example.code.encode()
    found = findings_of(source, "example.py", tmp_path)
    assert all(fixes_for(source, "example.py", found, Project(tmp_path), EngineSettings()))
    assert fixes_for(source, "other.py", found, Project(tmp_path), EngineSettings()) == [None] * len(found)
    assert fixes_for(b"x = 1\n" + source, "example.py", found, Project(tmp_path), EngineSettings()) == [None] * len(found)
    assert fixes_for(b"def broken(:\n", "example.py", found, Project(tmp_path), EngineSettings()) == [None] * len(found)
