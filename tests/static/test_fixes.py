"""Every fix that a rule page promises holds on the page's own bad examples, and changes nothing beside its edits."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixes_helpers import apply, findings_of, offered, told

from accumlint import knowledge
from accumlint.static.engine import EngineSettings, Project
from accumlint.static.fixes.offer import fix_file, fixes_for
from accumlint.static.fixes.registry import FIXERS

PAGES = [rule for rule in knowledge.rules().values() if rule.clause not in ("C0", "C9")]
BAD = [
    (rule, example)
    for rule in PAGES
    for example in rule.examples
    if example.kind == "bad" and rule.code in FIXERS
]

# examples whose fix is not found; each of these turns red as soon as it is
WAITING = {
    (
        "ACC102",
        "a Trainer loss function that ignores the count",
    ): "needs another reduction, which is the author's to choose",
    ("ACC201", "the accumulation count divides but gates nothing"): "the loop would have to learn to count",
    (
        "ACC204",
        "inside accumulate and before the backward",
    ): "whole windows told by a remainder of a literal count as windows with a tail",
    (
        "ACC302",
        "a helper that back-propagates under ExitStack",
    ): "the forward would have to move into another function",
    (
        "ACC303",
        "every microbatch of the window under no_sync",
    ): "the loop would have to learn which microbatch is its last",
    (
        "ACC303",
        "FSDP2 sync is switched off and never on again",
    ): "the loop would have to learn which microbatch is its last",
    (
        "ACC704",
        "the update counter that drives the learning rate is lost",
    ): "the loop would have to start at the count that was restored",
}
SAFE_IS_BEST = {"none": 0, "unsafe": 1, "safe": 2}


def _name(value: object) -> str:
    return value.code if isinstance(value, knowledge.Rule) else str(getattr(value, "page_line", ""))


@pytest.mark.parametrize(("rule", "example"), BAD, ids=_name)
def test_a_bad_example_is_fixed_and_nothing_new_is_found(rule, example, tmp_path):
    path = tmp_path / "example.py"
    fixes = [
        fix for finding, fix in offered(example.code.encode(), path, tmp_path) if finding.rule == rule.code
    ]
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
        assert rule.fix == best, (
            f"{rule.code}: the page says {rule.fix}, the best fix of its examples is {best}"
        )


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
    _, example = BAD[0]
    source = example.code.encode()
    found = findings_of(source, "example.py", tmp_path)
    assert all(fixes_for(source, "example.py", found, Project(tmp_path), EngineSettings()))
    assert fixes_for(source, "other.py", found, Project(tmp_path), EngineSettings()) == [None] * len(found)
    assert fixes_for(b"x = 1\n" + source, "example.py", found, Project(tmp_path), EngineSettings()) == [
        None
    ] * len(found)
    assert fixes_for(b"def broken(:\n", "example.py", found, Project(tmp_path), EngineSettings()) == [
        None
    ] * len(found)


LOOP = """\
import torch


def main(model, loader, optimizer, args):
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.total_updates)
    for i, (x, y) in enumerate(loader):
        if i == len(loader) // args.accum_steps * args.accum_steps:
            break
        loss = torch.nn.functional.mse_loss(model(x), y)
        (loss / args.accum_steps).backward()
"""
GATE = "        if (i + 1) % args.accum_steps == 0:\n            optimizer.step()\n            optimizer.zero_grad()\n"

# layout -> (what stands below the backward, the same after the fix)
LAYOUTS = {
    "several statements on a line": (
        GATE + "        scheduler.step(); print(i)\n",
        GATE.replace("step()\n", "step()\n            scheduler.step()\n") + "        print(i)\n",
    ),
    "a gate on one line": (
        "        if (i + 1) % args.accum_steps == 0: optimizer.step(); optimizer.zero_grad()  # done\n        scheduler.step()\n",
        "        if (i + 1) % args.accum_steps == 0: optimizer.step(); scheduler.step(); optimizer.zero_grad()  # done\n",
    ),
    "comments above and behind": (
        GATE + "        # the learning rate\n        # moves on\n        scheduler.step()  # by one\n        # afterwards\n",
        GATE.replace(
            "step()\n",
            "step()\n            # the learning rate\n            # moves on\n            scheduler.step()  # by one\n",
        )
        + "        # afterwards\n",
    ),
    "a condition that holds nothing else": (
        GATE + "        if args.anneal:\n            scheduler.step(\n                # nothing to say\n            )\n",
        GATE.replace(
            "step()\n",
            "step()\n            if args.anneal:\n                scheduler.step(\n                    # nothing to say\n                )\n",
        ),
    ),
    "a condition that holds something else": (
        GATE + "        if args.anneal:\n            scheduler.step()\n            print(i)\n",
        GATE.replace("step()\n", "step()\n            if args.anneal:\n                scheduler.step()\n")
        + "        if args.anneal:\n            print(i)\n",
    ),
    "a string over several lines": (
        GATE + '        scheduler.step(), print("""one\n    two\n  three""")\n',
        GATE.replace("step()\n", 'step()\n            scheduler.step(), print("""one\n    two\n  three""")\n'),
    ),
    "the other arm of a condition": (
        GATE.replace("== 0:\n", "!= 0:\n            pass\n        else:\n") + "        scheduler.step()\n",
        GATE.replace("== 0:\n", "!= 0:\n            pass\n        else:\n").replace("step()\n", "step()\n            scheduler.step()\n"),
    ),
    "two arms with a step each": (
        GATE.replace("(i", "args.half and (i") + GATE.replace("if (i", "elif (i") + "\n        if i:\n            pass\n\n        scheduler.step()\n\n        print(i)\n",
        (GATE.replace("(i", "args.half and (i") + GATE.replace("if (i", "elif (i")).replace("step()\n", "step()\n            scheduler.step()\n")
        + "\n        if i:\n            pass\n\n        print(i)\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_statement_moves_with_its_comments_and_leaves_the_rest(layout, tmp_path):
    before, after = LAYOUTS[layout]
    ((finding, fix),) = offered((LOOP + before).encode(), tmp_path / "train.py", tmp_path)
    assert finding.rule == "ACC202" and fix is not None
    assert apply(LOOP + before, fix) == LOOP + after


@pytest.mark.parametrize(
    ("update", "why"),
    [
        (GATE + "        scheduler.step()\n        print(scheduler.get_last_lr(), norm)\n", ""),
        (
            "        norm = scheduler.step()\n" + GATE + "        print(norm)\n",
            "what it binds is read elsewhere",
        ),
        (
            GATE
            + "        if args.plain:\n            print(i)\n        else:\n            scheduler.step()\n",
            "its arm has a sister",
        ),
    ],
)
def test_what_would_mean_something_else_is_not_moved(update, why, tmp_path):
    ((_, fix),) = offered((LOOP + update).encode(), tmp_path / "train.py", tmp_path)
    assert (fix is None) == bool(why)


def test_a_way_out_between_the_two_places_makes_a_move_unsafe(tmp_path):
    leaving = "        if not torch.isfinite(loss):\n            continue\n"
    for between, safe in (("", True), (leaving, False)):
        source = LOOP + GATE + between + "        scheduler.step()\n"
        found = offered(source.encode(), tmp_path / "train.py", tmp_path)
        (fix,) = [fix for finding, fix in found if finding.rule == "ACC202"]
        assert fix is not None and fix.safe is safe
    assert "line 15 may leave the microbatch" in fix.why_unsafe


def test_a_fixer_that_breaks_costs_its_own_fix(tmp_path, monkeypatch, caplog):
    def broken(script, finding):
        raise KeyError("no such node")
        yield

    monkeypatch.setitem(FIXERS, "ACC202", (broken, *FIXERS["ACC202"]))
    ((finding, fix),) = offered(
        (LOOP + GATE + "        scheduler.step()\n").encode(), tmp_path / "train.py", tmp_path
    )
    assert finding.rule == "ACC202" and fix is not None
    assert "train.py:14: ACC202: no fix could be made (KeyError('no such node'))" in caplog.text


def test_a_file_that_does_not_come_back_as_it_was_is_left_alone(tmp_path):
    source = (LOOP + GATE + "        scheduler.step()\n").replace("\n", "\r").encode()
    ((_, fix),) = offered(source, tmp_path / "train.py", tmp_path)
    assert fix is None


MIXED = """\
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader


def main(model, dataset, args):
    loader = DataLoader(dataset, 8, shuffle=True, drop_last=True)
    usable = len(loader) // args.accum_steps * args.accum_steps
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, usable // args.accum_steps * args.epochs)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(args.epochs):
        for i, (x, y) in enumerate(loader):
            if i == usable:
                break
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.cross_entropy(model(x), y) / args.accum_steps
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            if (i + 1) % args.accum_steps == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            scheduler.step()
"""


def test_several_findings_are_fixed_in_what_the_others_left(tmp_path):
    source, path = MIXED.encode(), str(tmp_path / "train.py")
    found = findings_of(source, path, tmp_path)
    assert [finding.rule for finding in found] == ["ACC404", "ACC401", "ACC202"]
    done = fix_file(source, path, found, Project(tmp_path), EngineSettings(), unsafe=True)
    # the moved scheduler would follow a step that the scaler may skip (ACC203), so the question comes along with it
    assert done.source.decode() == MIXED[: MIXED.index("            scaler.unscale_")] + (
        "            if (i + 1) % args.accum_steps == 0:\n"
        "                scaler.unscale_(optimizer)\n"
        "                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "                scale_before = scaler.get_scale()\n"
        "                scaler.step(optimizer)\n"
        "                scaler.update()\n"
        "                if scaler.get_scale() >= scale_before:\n"
        "                    scheduler.step()\n"
        "                optimizer.zero_grad()\n"
    )
    assert sorted(a.finding.rule for a in done.applied) == ["ACC202", "ACC401", "ACC404"]
    safe = fix_file(source, path, found, Project(tmp_path), EngineSettings())
    assert {a.finding.rule for a in safe.applied} == {"ACC401", "ACC404"} and all(
        a.fix.safe for a in safe.applied
    )


FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SCRIPTS = sorted([*(FIXTURES / "scripts").glob("*.py"), *(FIXTURES / "frameworks").glob("*.py")])
# what stays in a fixture although its rule has fixers, and why
STAYING = {
    "contrastive_cached.py": {"ACC102": "a finding that is none: no K is spelled that would put it right"},
    "trainer_support_own_mean.py": {"ACC102": "needs another reduction, which is the author's to choose"},
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_fixture_keeps_only_what_nobody_can_fix(script):
    source = script.read_bytes()
    found = [f for f in findings_of(source, script, script.parent) if f.rule in FIXERS]
    done = fix_file(source, str(script), found, Project(script.parent), EngineSettings(), unsafe=True)
    left = findings_of(done.source, script, script.parent)
    assert {f.rule for f in left if f.rule in FIXERS} == set(STAYING.get(script.name, {})), told(left)
    assert {f.rule for f in left} <= {f.rule for f in findings_of(source, script, script.parent)}
    assert (not done.applied) == (done.source == source)
