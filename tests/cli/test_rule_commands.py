import json

import pytest

from accumlint import knowledge
from accumlint.cli.main import main
from accumlint.rule_index import all_rules


def test_the_index_agrees_with_the_pages():
    pages = [(rule.code, rule.name, rule.clause) for rule in knowledge.rules().values()]
    assert [rule for rule in all_rules() if rule in pages] == pages
    assert {code for code, _, _ in all_rules()} - {code for code, _, _ in pages} <= {"ACC001", "ACC002", "ACC003"}


@pytest.mark.parametrize("wanted", ["ACC202", "acc202", "scheduler-per-microbatch"])
def test_explain_prints_the_page(capsys, wanted):
    assert main(["explain", wanted]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# ACC202 scheduler-per-microbatch\n")
    assert "## What it finds" in out and "# <- ACC202" in out and "Holds" in out


def test_explain_names_the_files_of_examples_that_belong_together(capsys):
    grouped = [r for r in knowledge.rules().values() if any(e.file for e in r.examples)]
    assert grouped, "no page shows a configuration beside its script any more"
    for rule in grouped:
        assert main(["explain", rule.code]) == 0
        out = capsys.readouterr().out
        for example in rule.examples:
            assert f"```{example.language}\n" in out
            assert not example.file or f"(`{example.file}`)" in out


def test_explain_as_json(capsys):
    assert main(["explain", "ACC202", "--format", "json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["name"] == "scheduler-per-microbatch"
    bad = next(example for example in page["examples"] if example["kind"] == "bad")
    assert all(bad["code"].split("\n")[line - 1].strip() for line in bad["lines"])


def test_explain_helps_with_typos(capsys):
    assert main(["explain", "schedule-per-microbatch"]) == 2
    assert "did you mean 'scheduler-per-microbatch'?" in capsys.readouterr().err


@pytest.mark.parametrize("format_name", ["text", "markdown"])
def test_rules_lists_every_page_once(capsys, format_name):
    assert main(["rules", "--format", format_name]) == 0
    out = capsys.readouterr().out
    for rule in knowledge.rules().values():
        (line,) = [row for row in out.splitlines() if rule.code in row.split()[:2]]
        assert rule.name in line and rule.severity.label in line


def test_rules_as_json(capsys):
    assert main(["rules", "--format", "json"]) == 0
    assert [rule["code"] for rule in json.loads(capsys.readouterr().out)] == list(knowledge.rules())


@pytest.mark.usefixtures("small_engine")
def test_trace_shows_what_was_recognised(tree, capsys, monkeypatch):
    import fake_engine

    monkeypatch.setattr(
        fake_engine,
        "Loop",
        lambda line: {
            "function": "train",
            "line": line,
            "frameworks": ("torch",),
            "k": 3,
            "flags": ["args.amp"],
            "objects": {"optimizer": "AdamW"},
            "incomplete": (),
            "timelines": [fake_engine.TIMELINE],
        },
    )
    tree({"a.py": "torch.backward  #: ACC202\n", "b.py": "print()", "c.py": "torch.backward = (  #: syntax"})
    assert main(["trace", "a.py"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("a.py:1: train\n  frameworks: torch\n  k: 3\n  flags: args.amp\n")
    assert "  objects: optimizer: AdamW\n  window      1" in out and "scheduler" in out
    assert main(["trace", "a.py", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["loops"][0]["k"] == 3
    main(["trace", "b.py"])
    assert capsys.readouterr().out == "b.py: no training loop found (no-accumulation)\n"
    main(["trace", "c.py"])
    assert capsys.readouterr().out.startswith("c.py:1: cannot be parsed")
    assert main(["trace", "gone.py"]) == 2
    assert "gone.py: cannot be read" in capsys.readouterr().err
