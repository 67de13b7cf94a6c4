"""Notebooks: cells joined, magics taken out, places led back to cells and to lines of the file."""

from __future__ import annotations

import ast
import json

import pytest

from accumlint.findings import Span
from accumlint.static.notebooks import Cell, NotebookError, join, read, script_without_magics

LOOP = """\
import torch
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
for i, batch in enumerate(loader):
    loss = model(batch) / 4
    loss.backward()
    scheduler.step()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def code(source, as_list=True):
    written = source.splitlines(keepends=True) if as_list else source
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": written}


def notebook(*cells, **more):
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5, **more}


def joined(*sources):
    return join([Cell(number, source) for number, source in enumerate(sources, 1)])


def python(*sources):
    """The program of cells, line by line."""
    return joined(*sources).programs[0].decode().split("\n")[:-1]


AWKWARD = notebook(
    {"cell_type": "markdown", "metadata": {"source": "x"}, "source": ["loss.backward()"]},
    code("%matplotlib inline\ns = 'é\"\\\\n\\t\U0001f600'; foo()\n\n  \nlast"),
    code("a = 1\r\nb = 2\n", as_list=False),
    code(""),
    {**code(""), "source": ["x = [1,", "2]\n", "y", "", "\n", "z\n"]},
    code("#@title A form { run: \"auto\" }\nc = '\\u000a'\n"),
)


@pytest.mark.parametrize(
    "layout", [{}, {"indent": 1}, {"ensure_ascii": False}, {"ensure_ascii": False, "indent": "\t"}]
)
def test_every_line_is_found_again_in_the_file(layout):
    raw = json.dumps(AWKWARD, **layout)
    found = read(raw.encode())
    lines = found.text.split("\n")[:-1]
    assert [cell for cell, _ in found.lines] == [2] * 5 + [3] * 2 + [4] + [5] * 3 + [6] * 2
    for number, line in enumerate(lines, 1):
        if line == "x = [1,2]":
            continue  # two strings of the file in one line
        span = found.in_file(Span("n.ipynb", number, 1, number, len(line) + 1))
        assert span.line == span.end_line
        text = found.raw_line(span.line)[span.column - 1 : span.end_column - 1]
        assert json.loads(f'"{text}"', strict=False) == line
        for column in range(len(line)):
            place = found.in_file(Span("n.ipynb", number, column + 1))
            text = found.raw_line(place.line)[place.column - 1 : span.end_column - 1]
            assert json.loads(f'"{text}"', strict=False) == line[column:]


def test_a_line_of_two_strings_begins_where_the_first_one_does():
    raw = json.dumps(AWKWARD, indent=1)
    found = read(raw.encode())
    number = found.text.split("\n").index("x = [1,2]") + 1
    span = found.in_file(Span("n.ipynb", number, 1, number, 4))
    assert found.raw_line(span.line)[span.column - 1 : span.end_column - 1] == "x ="


def test_cells_are_numbered_as_the_notebook_shows_them():
    found = read(json.dumps(AWKWARD).encode())
    assert found.cell(1) == (2, 1) and found.cell(7) == (3, 2) and found.cell(999) == (6, 2)


@pytest.mark.parametrize(
    ("line", "plain"),
    [
        ("%matplotlib inline", "pass"),
        ("!pip install -q torch", "pass"),
        ("    !nvidia-smi", "    pass"),
        ("?model", "pass"),
        ("model.forward??", "pass"),
        ("files = !ls", "files = None"),
        ("a.b, c = %sx ls", "a.b, c = None"),
        ("%time loss.backward()", "0   ; loss.backward()"),
        ("%timeit -n 10 f(x)", "0           ; f(x)"),
        ("%time for x in y: pass", "pass"),
        ("pip install torch", "pass"),
        ("cd content", "pass"),
        ("%%capture out", ""),
    ],
)
def test_magics_become_statements_that_do_nothing(line, plain):
    wrapped = f"if x:\n{line}\n" if line.startswith(" ") else f"{line}\n"
    assert python(wrapped)[-1] == plain
    assert not joined(wrapped).broken


@pytest.mark.parametrize(
    "source",
    [
        "x = (a\n     % b)\n",
        "s = '''\n%time\n!ls\n'''\n",
        "s = 'a \\\n%time'\n",
        "d = {\n    'a': '''\n!x\n''',\n}\n",
        "x = a \\\n% b\n",
        "await fetch()\nasync for x in y:\n    pass\n",
        "get_ipython().system('pip install torch')\nget_ipython().run_line_magic('time', '')\n",
        '#@title Train\nepochs = 3 #@param {type:"integer"}\n',
        "'''doc'''\n",
    ],
)
def test_python_stays_as_it_is_even_beside_magics(source):
    lines = source.split("\n")[:-1]
    assert python(source) == lines
    assert python(source + "!ls\n") == [*lines, "pass"]
    ast.parse(joined(source + "!ls\n").programs[0])


def test_a_command_over_several_lines_is_one_command():
    assert python("!pip install \\\n    torch \\\n    numpy\nx = 1\n") == ["pass", "", "", "x = 1"]


@pytest.mark.parametrize("name", ["bash", "html", "javascript", "sql", "R", "unknown"])
def test_bodies_in_other_languages_are_no_python(name):
    found = joined(f"%%{name}\nselect * from; x (\n", "y = 1\n")
    assert found.programs[0] == b"\n\ny = 1\n" and not found.broken


@pytest.mark.parametrize("head", ["%%time", "\n# a note\n%%capture out", "%%wandb", "%%unknown_magic a b"])
def test_bodies_in_python_stay(head):
    source = f"{head}\nloss.backward()\n!ls\n"
    assert python(source)[-2:] == ["loss.backward()", "pass"]


def test_a_cell_that_writes_a_file_is_a_program_of_its_own():
    found = joined(
        "x = 1\n",
        f"%%writefile src/train.py\n{LOOP}",
        "%%writefile -a src/train.py\ny = 2\n",
        "%%file a.txt\nx\n",
    )
    notebook_itself, written = (program.decode().split("\n") for program in found.programs)
    assert len(notebook_itself) == len(written) == len(found.lines) + 1
    assert [line for line in notebook_itself if line] == ["x = 1"]
    assert "\n".join(line for line in written if line) + "\n" == LOOP + "y = 2\n"
    assert written[2] == "import torch" and found.cell(3) == (2, 2)


def test_a_broken_cell_costs_itself():
    found = joined("x = 1\n", "def f(:\n    loss.backward()\n", "def g(:\n", "y = 2\n")
    assert python("x = 1\n", "def f(:\n    loss.backward()\n", "def g(:\n", "y = 2\n") == [
        "x = 1",
        "",
        "",
        "",
        "y = 2",
    ]
    told = [(each.cell, each.line, each.column, each.speaks_of_training) for each in found.broken]
    assert told == [(2, 2, 7, True), (3, 4, 7, False)]


def test_format_3():
    document = {
        "nbformat": 3,
        "worksheets": [
            {
                "cells": [
                    {"cell_type": "heading", "source": "x"},
                    {"cell_type": "code", "language": "python", "input": "a = 1\n"},
                ]
            },
            {"cells": [{"cell_type": "code", "language": "python", "input": ["b = 2\n", "c"]}]},
        ],
    }
    found = read(json.dumps(document, indent=1).encode())
    assert found.text == "a = 1\nb = 2\nc\n" and found.lines == ((2, 1), (3, 1), (3, 2))
    place = found.in_file(Span("n.ipynb", 3, 1, 3, 2))
    assert found.raw_line(place.line)[place.column - 1 : place.end_column - 1] == "c"


@pytest.mark.parametrize(
    "metadata", [{"language_info": {"name": "R"}}, {"kernelspec": {"language": "julia"}}]
)
def test_other_languages_are_no_python(metadata):
    assert read(json.dumps(notebook(code("x"), metadata=metadata)).encode()) is None


@pytest.mark.parametrize(
    ("data", "message", "line"),
    [
        (b'{"cells": [\n  {"a": 1},\n  oops\n]}', "Expecting value", 3),
        (b"", "Expecting value", 1),
        (b"[1, 2]", "holds no object", 1),
        (b'{"nbformat": 4}', "no list of cells", 1),
        (b'{"cells": [{"cell_type": "code", "source": 7}]}', "source of cell 1 is no text", 1),
        (b'{"cells": [\n"\xff"]}', "cannot be decoded", 2),
        (b"[" * 200_000, "nested too deeply", 1),
    ],
)
def test_what_is_no_notebook_is_said_with_its_line(data, message, line):
    with pytest.raises(NotebookError, match=message) as caught:
        read(data)
    assert caught.value.line == line


def test_cells_without_a_source_are_empty():
    document = notebook({"cell_type": "code"}, {"cell_type": "code", "input": "x"}, 3, code("y\n"))
    found = read(json.dumps(document).encode())
    assert found.text == "y\n" and found.lines == ((4, 1),)


@pytest.mark.parametrize("data", [b"\xef\xbb\xbf%s", b"%s"])
def test_a_byte_order_mark_is_no_text(data):
    assert read(data % json.dumps(notebook(code("x = 1\n"))).encode()).text == "x = 1\n"


def test_scripts_with_cells_may_hold_magics():
    assert script_without_magics(b"# %%\n%time x = 1\r\n!ls\n") == b"# %%\n0   ; x = 1\r\npass\n"
    assert script_without_magics(b"# %%\nx = (\n") is None
