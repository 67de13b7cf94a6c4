"""What needs no torch: exact numbers, formulas, source maps, recipes, constants, verdicts on findings, remembered verdicts."""

from fractions import Fraction

import pytest

from accumlint.cli.probe import UsageError, constants
from accumlint.findings import Confidence, Finding, Severity, Span
from accumlint.probe import formulas
from accumlint.probe.child.early import rewritten
from accumlint.probe.exact import simplest_between, snapped
from accumlint.probe.places import FileMap
from accumlint.probe.recipe import Recipe, RecipeError, parse, recipe_for
from accumlint.probe.records import parse as parse_records


def test_simplest_fraction_in_an_interval():
    assert simplest_between(Fraction(3, 10), Fraction(4, 10)) == Fraction(1, 3)
    assert simplest_between(Fraction(99, 100), Fraction(101, 100)) == 1
    assert simplest_between(Fraction(314, 100), Fraction(315, 100)) == Fraction(22, 7)


def test_measured_numbers_become_exact():
    assert snapped(0.3333333432674408, (), 2e-6) == Fraction(1, 3)
    assert snapped(1.0000001, (Fraction(1),), 2e-6) == 1
    assert snapped(0.0, (), 2e-6) == 0 and snapped(-0.5, (), 1e-6) == Fraction(-1, 2)
    # a real difference is not rounded away
    assert snapped(1.001, (Fraction(1),), 2e-6) != 1


SEED = [[Fraction(3), Fraction(6), Fraction(1)]]


@pytest.mark.parametrize(
    ("ratios", "formula"),
    [
        ([1, 1, 1], "token mean"),
        ([Fraction(10, 9), Fraction(10, 18), Fraction(10, 3)], "mean of means"),
        ([Fraction(10, 3), Fraction(10, 6), 10], "sum of means"),
        ([Fraction(10, 27), Fraction(10, 54), Fraction(10, 9)], "mean of means × 1/3"),
        ([10, 10, 10], "token sum"),
        ([Fraction(1, 3)] * 3, "token mean × 1/3"),
    ],
)
def test_formulas_of_the_seed_window(ratios, formula):
    named = formulas.name(SEED, [[Fraction(r) for r in ratios]], 3, 3)
    assert named is not None and str(named) == formula and named.right == (formula == "token mean")


def test_no_formula():
    assert formulas.name(SEED, [[Fraction(1), Fraction(2), Fraction(5)]], 3, 3) is None


def test_separation():
    assert formulas.separation([[Fraction(4)] * 3]) == 0
    # weights 1/9, 1/18, 1/3 instead of 1/10: sqrt((3·(1/9)² + 6·(4/9)² + (7/3)²) / 10)
    expected = ((3 * (1 / 9) ** 2 + 6 * (4 / 9) ** 2 + (7 / 3) ** 2) / 10) ** 0.5
    assert formulas.separation(SEED) == pytest.approx(expected, rel=1e-12)


SCRIPT = b"""\
for epoch in range(2):
    for i, batch in enumerate(loader):
        batch = move(batch)
        if (i + 1) % K == 0:
            step(
                1,
            )
    else:
        flush()
while going:
    for x, y in data:
        train()
        break
def train():
    go()
"""


def test_source_map():
    spots = FileMap(SCRIPT)
    inner = spots.at(6)
    assert [loop.line for loop in inner.loops] == [1, 2] and inner.gates == (4,) and inner.statement == 5
    assert inner.loops[1].names == ("i",)  # batch is assigned again in the body
    assert [loop.line for loop in spots.at(2).loops] == [1, 2]
    assert [loop.line for loop in spots.at(9).loops] == [1]
    assert spots.at(12).loops[1].breaks and not inner.loops[1].breaks
    assert spots.at(15).loops == () and FileMap(b"def (").at(1).loops == ()


def test_records_survive_a_cut_line():
    assert parse_records(['{"k": "run"}', '{"k": "backw']) == [{"k": "run"}]


def test_constants_of_the_command_line():
    assert constants(["A=3", "pkg.mod:B='x'", "C=1e-3", "D=plain"]) == {"__main__": {"A": 3, "C": 1e-3, "D": "plain"}, "pkg.mod": {"B": "x"}}
    for wrong in ("A", "a b=1", "=3"):
        with pytest.raises(UsageError):
            constants([wrong])


def test_rewriting_keeps_lines():
    tree, found = rewritten(b"import os\nK = 8\n\n\ndef f():\n    K = 2\n    return K\nK2: int = 4\n", {"K": 3, "K2": 5}, "s.py")
    names: dict = {}
    exec(compile(tree, "s.py", "exec"), names)
    assert names["K"] == 3 and names["K2"] == 5 and names["f"]() == 2 and sorted(found) == ["K", "K2"]
    assert names["f"].__code__.co_firstlineno == 5


def test_recipes(tmp_path):
    assert parse({"arguments": "--a 1 'b c'", "ranks": 2, "tiny": True, "set": ["K=3"]}, "r") == Recipe(("--a", "1", "b c"), ranks=2, tiny=True, constants=("K=3",))
    for wrong in ({"rank": 1}, {"ranks": "2"}, {"ranks": True}, {"set": "K=3"}, []):
        with pytest.raises(RecipeError):
            parse(wrong, "r")
    script = tmp_path / "train.py"
    script.write_text("")
    assert recipe_for("", str(script), str(tmp_path)) == Recipe()
    (tmp_path / "pyproject.toml").write_text("[tool.accumlint.probe]\nupdates = 5\n")
    assert recipe_for("", str(script), str(tmp_path)).updates == 5
    (tmp_path / "probe.yaml").write_text("scripts:\n  train.py:\n    arguments: [--steps, 3]\n  other.py: {ranks: 4}\n")
    assert recipe_for("", str(script), str(tmp_path)).arguments == ("--steps", "3")
    (tmp_path / "probe.yaml").write_text("ranks: [")
    with pytest.raises(RecipeError):
        recipe_for("", str(script), str(tmp_path))


def finding(rule, line, end=0, clause="C2", confidence=Confidence.CERTAIN):
    return Finding(rule, "n", clause, Severity.ERROR, confidence, Span("train.py", line, 1, end or line, 1), "m")


def test_verdicts_on_static_findings(tmp_path, monkeypatch):
    from accumlint.contract.events import Trace
    from accumlint.probe.assemble import Assembled, Sites
    from accumlint.probe.judgements import Report, Verdict
    from accumlint.probe.verdicts import on_findings

    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "train.py")
    made = Assembled(Trace([], {}, 3, "3", 6, {}, 1, False), Sites(), [], [], [], None, reached={(path, 10), (path, 12), (path, 20), (path, 30)})
    report = Report(made, [], [], {"ACC202", "ACC204", "ACC103"}, {"weights": Verdict("NOT-DISCRIMINATING", "equal counts")}, [], [])
    static = [finding("ACC202", 10), finding("ACC204", 20), finding("ACC205", 20), finding("ACC204", 40), finding("ACC701", 20), finding("ACC101", 30, clause="C1")]
    seen = [finding("ACC202", 10)]
    told = {(o.finding.rule, o.finding.span.line): o.verdict for o in on_findings(static, seen, report, str(tmp_path))}
    assert told == {
        ("ACC202", 10): "confirmed", ("ACC204", 20): "refuted", ("ACC205", 20): "not reached", ("ACC204", 40): "not reached",
        ("ACC701", 20): "not reached", ("ACC101", 30): "not reached",
    }  # fmt: skip


def test_marks_count_only_with_a_valid_receipt_of_the_same_bytes(tmp_path):
    import json
    from pathlib import Path

    from accumlint import receipt
    from accumlint.probe.remembered import beside, document, marks
    from accumlint.probe.verdicts import OnFinding

    script = tmp_path / "train.py"
    script.write_bytes(b"step()\n")
    given = Path(__file__).parents[2] / "fixtures" / "receipts" / "equal-control.receipt.json"
    tree = json.loads(given.read_text())["manifest"]
    made = receipt.build(tree, bound_files=[receipt.bind(script, "script", tmp_path)])
    path = tmp_path / "run.receipt.json"
    path.write_bytes(made.data)
    static = [finding("ACC202", 1), finding("ACC204", 1)]
    told = [OnFinding(static[0], "confirmed", "seen"), OnFinding(static[1], "refuted", "kept")]
    Path(beside(str(path))).write_bytes(document(script.read_bytes(), made.hashes["receipt_sha256"], told, [], "train.py"))
    said = [said for _, said in marks(static, str(tmp_path), str(tmp_path))]
    assert [(each.verdict, each.receipt) for each in said] == [("confirmed", path.name), ("refuted", path.name)]
    script.write_bytes(b"step() \n")  # other bytes: nothing is known about them
    assert [said for _, said in marks(static, str(tmp_path), str(tmp_path))] == [None, None]
    script.write_bytes(b"step()\n")
    path.write_bytes(made.data.replace(b'"world_size":1', b'"world_size":2'))
    assert [said for _, said in marks(static, str(tmp_path), str(tmp_path))] == [None, None]
