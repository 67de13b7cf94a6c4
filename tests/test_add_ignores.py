"""``--add-ignores``: comments where the suppressions are read, and nothing else differs."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from accumlint import suppression
from accumlint.add_ignores import add
from accumlint.cli.main import main
from accumlint.findings import Confidence, Finding, Severity, Span

ROOT = Path(__file__).resolve().parents[1]


def found(line, rule="ACC202", path="a.py"):
    return Finding(
        rule, "a-name", "C2", Severity.ERROR, Confidence.CERTAIN, Span(path, line, 1, line, 2), "a message"
    )


def added(source, *findings, reason="", name="a.py", configuration=False):
    data = source if isinstance(source, bytes) else source.encode()
    return add(name, data, findings, reason, configuration)


CASES = {
    "one line": ("x = 1\nstep()\n", 2, "x = 1\nstep()  # accumlint: ignore[ACC202]\n"),
    "no line end at the end": ("step()", 1, "step()  # accumlint: ignore[ACC202]"),
    "blanks at the end": ("step()  \n", 1, "step()  # accumlint: ignore[ACC202]  \n"),
    "another comment": ("step()  # noqa\n", 1, "step()  # noqa  # accumlint: ignore[ACC202]\n"),
    "several lines": (
        "if x:\n    clip(\n        p,\n    )\n",
        3,
        "if x:\n    # accumlint: ignore[ACC202]\n    clip(\n        p,\n    )\n",
    ),
    "inside a string": ("clip('''\n  a\n''')\n", 2, "# accumlint: ignore[ACC202]\nclip('''\n  a\n''')\n"),
    "behind a backslash": ("a = b \\\n    + c\n", 2, "# accumlint: ignore[ACC202]\na = b \\\n    + c\n"),
    "a block in one line": ("if x: step()\n", 1, "if x: step()  # accumlint: ignore[ACC202]\n"),
    "a header of several lines": (
        "for x in (\n    y\n):\n\tstep()\n",
        1,
        "# accumlint: ignore[ACC202]\nfor x in (\n    y\n):\n\tstep()\n",
    ),
    "tabs": ("if x:\n\tclip(\n\t\ty)\n", 2, "if x:\n\t# accumlint: ignore[ACC202]\n\tclip(\n\t\ty)\n"),
    "a comment of ours": (
        "step()  # accumlint: ignore[ACC301] why\n",
        1,
        "step()  # accumlint: ignore[ACC301, ACC202] why\n",
    ),
    "a comment of ours above": (
        "# accumlint: ignore[ACC301] why\nstep()\n",
        2,
        "# accumlint: ignore[ACC301, ACC202] why\nstep()\n",
    ),
    "a comment of ours inside": (
        "step(\n    1,  # accumlint: ignore[ACC301]\n)\n",
        1,
        "step(\n    1,  # accumlint: ignore[ACC301, ACC202]\n)\n",
    ),
    "a comment that names nothing": (
        "step()  # accumlint: ignore\n",
        1,
        "# accumlint: ignore[ACC202]\nstep()  # accumlint: ignore\n",
    ),
    "a comment for the whole file": (
        "# accumlint: ignore-file[ACC301]\nstep()\n",
        2,
        "# accumlint: ignore-file[ACC301]\nstep()  # accumlint: ignore[ACC202]\n",
    ),
    "an arm": (
        "if x:\n    y\nelif (z and\n  w):\n    y\n",
        3,
        "if x:\n    y\n# accumlint: ignore[ACC202]\nelif (z and\n  w):\n    y\n",
    ),
}


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("case", CASES)
def test_where_the_comment_goes(case, line_end):
    source, line, expected = (
        each.replace("\n", line_end) if isinstance(each, str) else each for each in CASES[case]
    )
    done = added(source, found(line))
    assert done.data.decode() == expected and not done.left
    where = line + done.data.count(b"\n") - source.count("\n")  # a comment line can only stand above
    kept, hidden, _ = suppression.apply([found(where)], suppression.in_python(done.data))
    assert hidden and not kept


@pytest.mark.parametrize(
    "source",
    [
        "# -*- coding: latin-1 -*-\ns = 'é'\nstep()\n".encode("latin-1"),
        b"\xef\xbb\xbfstep()\n",
        "s = '漢字 \U0001f600'\nstep()\n".encode(),
        b"x = 1\r\ny = 2\nstep()\r\n",  # both kinds of line ends
        b"x = '\x0c'\x0c\nstep()\n",  # form feeds end no line
    ],
)
def test_every_other_byte_stays(source):
    line = source.split(b"\n").index(next(x for x in source.split(b"\n") if b"step()" in x)) + 1
    done = added(source, found(line), reason="why not")
    assert done.data != source
    assert done.data.replace(b"  # accumlint: ignore[ACC202] why not", b"") == source


def test_rules_of_one_statement_share_a_comment():
    done = added("step()\n", found(1), found(1, "ACC401"), found(1, "ACC101"), reason="  old\n code ")
    assert done.data == b"step()  # accumlint: ignore[ACC101, ACC202, ACC401] old code\n"
    assert len(done.hidden) == 3


@pytest.mark.parametrize(
    ("source", "finding", "reason", "why"),
    [
        ("step()\n", found(1, "ACC001"), "", "no comment mends it"),
        ("step()\n", found(1, "ACC002"), "", "no comment mends it"),
        ("step()\n\n", found(2), "", "stands in no statement"),
        ("# -*- coding: ascii -*-\nstep()\n", found(2), "über", "lacks a character"),
        (b"s = '\xff'\nstep()\n", found(2), "", "can't be read back"),
        ("# coding: martian\nstep()\n", found(2), "", "can't be read back"),
        (b"a\rstep()\r", found(2), "", ""),
    ],
)
def test_what_takes_no_comment_is_left_as_it_is_and_said(source, finding, reason, why):
    done = added(source, finding, reason=reason)
    assert done.data == (source if isinstance(source, bytes) else source.encode())
    ((left, said),) = done.left
    assert left is finding and why in said and not done.hidden


@pytest.mark.parametrize(
    ("name", "source", "line", "expected"),
    [
        ("a.yaml", "a:\n  b: 1\n", 2, "a:\n  b: 1  # accumlint: ignore[ACC202] r\n"),
        ("a.toml", 'a = "x"\n', 1, 'a = "x"  # accumlint: ignore[ACC202] r\n'),
        ("a.sh", "run --x 1\r\n", 1, "run --x 1  # accumlint: ignore[ACC202] r\r\n"),
        ("a.yaml", "a: |\n  run --x\n", 2, None),  # would become a part of the text
        ("a.yaml", "a: 'x\n  y'\n", 1, None),
        ("a.toml", 'a = """\nx\n"""\n', 2, None),
        ("a.sh", "run \\\n  --x 1\n", 2, None),
        ("a.json", '{"a": 1}\n', 1, None),
        ("a.yaml", "a: 'x # y'\n", 1, None),
        ("a.yaml", "a: [\n", 1, None),
    ],
)
def test_configurations(name, source, line, expected):
    done = added(source, found(line, path=name), reason="r", name=name, configuration=True)
    assert done.data.decode() == (source if expected is None else expected)
    assert bool(done.left) is (expected is None)


def test_notebooks_get_them_in_their_cells():
    cells = [["step()\n", "clip(\n", "  x)"], ["if 'é':\n", "\tstep()"]]
    document = {"cells": [{"cell_type": "code", "source": source} for source in cells], "nbformat": 4}
    raw = json.dumps(document, indent=1, ensure_ascii=False)
    findings = [found(line, path="a.ipynb") for line in (1, 3, 5)]
    done = added(raw, *findings, reason='says "so"', name="a.ipynb")
    texts = ["".join(cell["source"]) for cell in json.loads(done.data)["cells"]]
    comment = '# accumlint: ignore[ACC202] says "so"'
    assert texts == [f"step()  {comment}\n{comment}\nclip(\n  x)", f"if 'é':\n\tstep()  {comment}"]
    assert len(done.hidden) == 3 and not done.left


def run(capsys, *arguments):
    code = main(["check", "--format", "json", "--isolated", *arguments])
    out, err = capsys.readouterr()
    return code, json.loads(out)["summary"], err


def test_the_next_check_is_clean(tmp_path, monkeypatch, capsys):
    """On all scripts of the fixtures, with the real engine: each finding is suppressed, nothing else appears."""
    monkeypatch.chdir(tmp_path)
    for folder in ("scripts", "frameworks"):
        shutil.copytree(ROOT / "fixtures" / folder, tmp_path / folder)
    _, before, _ = run(capsys)
    code, after, err = run(capsys, "--add-ignores=known since 2024")
    assert code == 0 and after["findings"] == 0 and after["suppressed"] == before["findings"] >= 20
    assert err.startswith(f"accumlint: {before['findings']} findings suppressed by new comments in ")
    comment = "# accumlint: ignore["
    for path in tmp_path.rglob("*.py"):
        original = (ROOT / "fixtures" / path.relative_to(tmp_path)).read_text().split("\n")
        lines = [line for line in path.read_text().split("\n") if not line.lstrip().startswith(comment)]
        assert [line.partition(f"  {comment}")[0] for line in lines] == original
    assert run(capsys)[1] == after


BAD = "import torch\nloss.backward()\nscheduler.step()  #: ACC202\n"


@pytest.mark.usefixtures("small_engine")
def test_it_takes_no_path_for_a_reason(tree, capsys):
    folder = tree({"a.py": BAD, "b.py": BAD})
    code, summary, err = run(capsys, "--add-ignores", "a.py")
    assert code == 0 and summary["suppressed"] == 1
    assert err == "accumlint: 1 finding suppressed by new comments in 1 file\n"
    assert (folder / "a.py").read_text() == BAD.replace("ACC202\n", "ACC202  # accumlint: ignore[ACC202]\n")
    assert (folder / "b.py").read_text() == BAD


@pytest.mark.usefixtures("small_engine")
def test_only_what_would_be_reported_gets_a_comment(tree, capsys):
    folder = tree({"a.py": BAD + "clip()  #: ACC401\n"})
    code, summary, _ = run(capsys, "--add-ignores", "--select", "ACC401")
    assert code == 0 and summary["suppressed"] == 1
    assert (folder / "a.py").read_text() == BAD + "clip()  #: ACC401  # accumlint: ignore[ACC401]\n"


@pytest.mark.usefixtures("small_engine")
@pytest.mark.skipif(os.name != "posix", reason="needs file modes")
def test_modes_are_kept(tree, capsys):
    folder = tree({"a.py": BAD})
    os.chmod(folder / "a.py", 0o755)
    run(capsys, "--add-ignores")
    assert (folder / "a.py").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "arguments", [["--add-ignores", "-"], ["--add-ignores", "--write-baseline", "x", "a.py"]]
)
def test_what_it_cannot_go_with(tree, capsys, arguments):
    tree({"a.py": BAD})
    assert main(["check", *arguments]) == 2
    assert "--add-ignores" in capsys.readouterr().err
