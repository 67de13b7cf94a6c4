"""``check`` on notebooks, from the file to the exit code, with the real engine."""

from __future__ import annotations

import json

import pytest

from accumlint.cli.main import main

LOOP = """\
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for i, batch in enumerate(loader):
    loss = model(batch).mean() / 4
    loss.backward()
    scheduler.step()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
SETUP = "!pip install torch\nimport torch\n%matplotlib inline\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\n"


def notebook(*sources, kind="code"):
    cells = [{"cell_type": "markdown", "metadata": {}, "source": ["# Training\n"]}]
    cells += [
        {"cell_type": kind, "metadata": {}, "outputs": [], "source": each.splitlines(True)}
        for each in sources
    ]
    return json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def check(capsys, *arguments):
    """(exit code, the JSON document)"""
    code = main(["check", "--format", "json", "--select", "ACC202,C0", *arguments])
    return code, json.loads(capsys.readouterr().out)


def places(document):
    return [(each["rule"], each["path"], each["cell"], each["line"]) for each in document["findings"]]


def test_a_finding_names_its_cell_and_the_line_in_it(tree, capsys):
    tree({"a.ipynb": notebook(SETUP, LOOP)})
    code, document = check(capsys)
    assert code == 1 and places(document) == [("ACC202", "a.ipynb", 3, 5)]
    (finding,) = document["findings"]
    assert (finding["column"], finding["end_line"], finding["end_column"]) == (5, 5, 21)
    assert all(each["cell"] == 3 for each in finding["related"])
    main(["check", "--select", "ACC202"])
    text = capsys.readouterr().out
    assert text.startswith("a.ipynb:cell 3:5:5: error ACC202 scheduler-per-microbatch\n")
    assert "\n  5 | scheduler.step()\n" in text and "\n  cell 3, line 7: " in text


def test_annotations_stand_at_the_line_of_the_file(tree, capsys):
    text = notebook(SETUP, LOOP)
    tree({"a.ipynb": text})
    line = next(n for n, line in enumerate(text.split("\n"), 1) if "scheduler.step()" in line)
    main(["check", "--select", "ACC202", "--format", "github"])
    assert f"file=a.ipynb,line={line},col=10,endColumn=26," in capsys.readouterr().out
    for form in ("sarif", "gitlab", "rdjson"):
        main(["check", "--select", "ACC202", "--format", form])
        document = capsys.readouterr().out
        assert (
            f'"startLine": {line}' in document
            or f'"begin": {line}' in document
            or f'"line": {line},' in document
        )


def test_comments_suppress_and_useless_ones_are_said(tree, capsys):
    silent = LOOP.replace("scheduler.step()", "scheduler.step()  # accumlint: ignore[ACC202] on purpose")
    tree({"a.ipynb": notebook(SETUP, silent, "x = 1  # accumlint: ignore[ACC202]\n")})
    code, document = check(capsys)
    assert code == 0 and places(document) == [("ACC002", "a.ipynb", 4, 1)]
    assert document["summary"]["suppressed"] == 1


def test_a_broken_cell_costs_itself(tree, capsys):
    tree({"a.ipynb": notebook(SETUP, "def f(:\n", LOOP, "x = )\nloss.backward()\n")})
    code, document = check(capsys)
    assert code == 1
    assert places(document) == [
        ("ACC003", "a.ipynb", 3, 1),
        ("ACC202", "a.ipynb", 4, 5),
        ("ACC001", "a.ipynb", 5, 1),
    ]


def test_a_broken_file_is_a_syntax_error_with_its_line(tree, capsys):
    text = notebook(SETUP, LOOP).replace('"metadata": {},', '"metadata": {},,', 1)
    tree({"a.ipynb": text, "b.ipynb": notebook(SETUP, LOOP)})
    code, document = check(capsys)
    first, second = document["findings"]
    assert code == 1 and (first["rule"], first["path"], "cell" in first) == ("ACC001", "a.ipynb", False)
    assert ",," in text.split("\n")[first["line"] - 1]
    assert (second["rule"], second["path"]) == ("ACC202", "b.ipynb")


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_only_code_cells_are_code(tree, capsys, kind):
    tree({"a.ipynb": notebook(SETUP, LOOP, kind=kind)})
    code, document = check(capsys)
    assert code == 0 and document["findings"] == []


def test_a_baseline_outlives_new_cells(tree, capsys):
    folder = tree({"a.ipynb": notebook(SETUP, LOOP)})
    main(["check", "--write-baseline", "known.json", "--select", "ACC202"])
    (folder / "a.ipynb").write_text(notebook("x = 1\n", SETUP, "!ls\n", LOOP))
    capsys.readouterr()
    code, document = check(capsys, "--baseline", "known.json")
    assert code == 0 and document["summary"]["baselined"] == 1


def test_changed_lines_are_those_of_the_file(tree, capsys, git):
    folder = tree({"a.ipynb": notebook(SETUP, LOOP, "x = 1\n")})
    git("init", "-q")
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    (folder / "a.ipynb").write_text(notebook(SETUP, LOOP, "x = 2\n"))
    assert check(capsys, "--diff", "HEAD")[0] == 0
    (folder / "a.ipynb").write_text(
        notebook(SETUP, LOOP.replace("step()\n    if", "step( )\n    if"), "x = 2\n")
    )
    code, document = check(capsys, "--diff", "HEAD")
    assert code == 1 and places(document) == [("ACC202", "a.ipynb", 3, 5)]


def test_a_loop_in_a_written_file_is_found(tree, capsys):
    written = (
        "%%writefile train.py\nimport torch\noptimizer = torch.optim.SGD(model.parameters(), lr=1)\n" + LOOP
    )
    tree({"a.ipynb": notebook("!ls\n", written, "!python train.py\n")})
    code, document = check(capsys)
    assert code == 1 and places(document) == [("ACC202", "a.ipynb", 3, 8)]


def test_standard_input_can_be_a_notebook(tree, capsys, monkeypatch):
    import io
    import sys

    tree({})
    stdin = io.TextIOWrapper(io.BytesIO(notebook(SETUP, LOOP).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    code, document = check(capsys, "-", "--stdin-filename", "a.ipynb")
    assert code == 1 and places(document) == [("ACC202", "a.ipynb", 3, 5)]


def test_scripts_with_cells_are_python_with_magics(tree, capsys):
    tree({"a.py": "# %%\n" + SETUP + "# %% train\n" + LOOP})
    code, document = check(capsys)
    assert code == 1 and [(each["rule"], each["line"]) for each in document["findings"]] == [("ACC202", 11)]


def test_an_exported_notebook_says_what_stands_in_strings(tree, capsys):
    magic = "get_ipython().run_cell_magic('{}', '', {!r})\n"
    plain = "import torch\nget_ipython().system('pip install torch')\nget_ipython().run_line_magic('time', 'x')\n"
    tree({"a.py": plain + magic.format("time", LOOP) + magic.format("bash", LOOP) + magic.format("time", "x = 1\n")})
    code, document = check(capsys)
    assert code == 0 and [(each["rule"], each["line"]) for each in document["findings"]] == [("ACC003", 4)]


def test_trace_speaks_of_cells(tree, capsys):
    tree({"a.ipynb": notebook(SETUP, LOOP)})
    assert main(["trace", "a.ipynb"]) == 0
    assert capsys.readouterr().out.startswith("a.ipynb:cell 2:1: ")
