"""Files as they come: other encodings, byte order marks, other line ends, on the way through a whole run."""

import json
import os
import subprocess
import sys

import pytest

from accumlint.cli.main import main

pytestmark = pytest.mark.usefixtures("small_engine")

LINES = "import torch\nx = 'é'\nloss.backward()  #: ACC202\n"


@pytest.mark.parametrize(
    "data",
    [
        LINES.encode(),
        b"\xef\xbb\xbf" + LINES.encode(),
        ("# coding: latin-1\n" + LINES).replace("import torch\n", "import torch;", 1).encode("latin-1"),
        LINES.replace("\n", "\r\n").encode(),
    ],
    ids=["utf-8", "bom", "latin-1", "crlf"],
)
def test_the_excerpt_shows_the_line_whatever_the_encoding(tree, capsys, data):
    tree({"a.py": data})
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert "a.py:3:1: error ACC202" in out
    assert "  3 | loss.backward()  #: ACC202\n    | ^^^^^^^^^^^^^^^\n" in out


@pytest.mark.parametrize(
    ("data", "line", "message"),
    [
        (b"import torch\nloss.backward('\xff')  #: syntax", 2, "utf-8"),
        (b"# coding: no-such-codec\ntorch.backward  #: syntax", 1, "no-such-codec"),
        (b"import torch\nloss.backward()\0  #: syntax", 2, "null byte"),
        (b"def f():\ntorch.backward  #: syntax", 2, "indented"),
    ],
    ids=["undecodable", "unknown-codec", "null-byte", "indentation"],
)
def test_files_that_python_cannot_read_get_one_clear_line(tree, capsys, data, line, message):
    tree({"a.py": data})
    assert main(["check", "--format", "json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert found["rule"] == "ACC001" and message in found["message"] and "\n" not in found["message"]
    assert found["line"] == line


def test_every_format_copes_with_a_file_that_cannot_be_decoded(tree, capsys):
    tree({"a.py": b"import torch\nloss.backward('\xff')  #: syntax"})
    for format_name in ("text", "json", "sarif", "github", "gitlab", "rdjson", "rdjsonl", "junit"):
        assert main(["check", "--format", format_name]) == 1
        assert "ACC001" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names here")
def test_pipes_and_devices_are_never_waited_for(tree, capsys):
    folder = tree({"a.py": LINES, "folder/b.py": LINES})
    os.mkfifo(folder / "pipe.py")
    os.mkfifo(folder / "folder" / "pipe.yaml")
    assert main(["check", "a.py", "pipe.py", "/dev/zero", "folder/pipe.yaml"]) == 1
    told = capsys.readouterr().err
    assert told.count("is a pipe or a device") == 3 and "a.py:" not in told
    assert main(["check", "."]) == 1
    assert "pipe" not in capsys.readouterr().err


def test_files_that_cannot_be_opened_are_said_and_the_rest_is_checked(tree, capsys, monkeypatch):
    """Whoever runs the tests: permissions don't stop everybody."""
    from accumlint import runner

    tree({"a.py": LINES, "locked.py": LINES})
    read = runner.read

    def refuse(target, stdin):
        if target.name == "locked.py":
            raise PermissionError(13, "Permission denied")
        return read(target, stdin)

    monkeypatch.setattr(runner, "read", refuse)
    assert main(["check", "."]) == 1
    out = capsys.readouterr()
    assert "a.py:3:1: error ACC202" in out.out and "locked.py: cannot be read: Permission denied" in out.err


@pytest.mark.parametrize("broken", ["", "x = (\n"])
def test_what_python_warns_of_is_not_repeated(tree, broken):
    text = "import torch\nx = 1if True else '\\d'\nloss.backward()\n" + broken
    folder = tree({"a.py": text, "b.py": text})
    done = subprocess.run(
        [sys.executable, "-W", "default", "-m", "accumlint", "check", "--isolated", "."], cwd=folder, capture_output=True, text=True, check=False
    )
    assert "Warning" not in done.stderr + done.stdout


BROKEN = "import torch\nloss.backward()\nx = = 2  #: syntax\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("templates/{{cookiecutter.name}}/train.py", BROKEN),
        ("templates/train.py", "{% if amp %}\n" + BROKEN + "{% endif %}\n"),
        ("templates/other.py", BROKEN + "    {%- for each in models %}\n"),
    ],
)
def test_templates_of_scripts_are_no_scripts(tree, capsys, name, text):
    tree({name: text, "broken.py": BROKEN})
    assert main(["check", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert {finding["path"] for finding in report["findings"]} == {"broken.py"}
    assert report["summary"]["files_without_accumulation"] == {"not-python": 1}
