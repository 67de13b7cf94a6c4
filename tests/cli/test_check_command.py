import io
import json
import os
import subprocess
import sys

import pytest

from accumlint.cli.main import main

BAD = "import torch\n\ndef train():\n    loss.backward()\n    scheduler.step()  #: ACC202\n"
WEAK = "import torch\n\nloss.backward()  #: ACC501 warning conditional\n"
TIP = "import torch\n\nloss.backward()  #: ACC301 advice possible\n"

pytestmark = pytest.mark.usefixtures("small_engine")


def check(capsys, *arguments):
    """(exit code, the JSON document, standard error)"""
    code = main(["check", "--format", "json", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, json.loads(out) if out else None, err


def rules(document):
    return [(each["path"], each["line"], each["rule"]) for each in document["findings"]]


def test_findings_are_sorted_and_make_the_exit_code_1(tree, capsys):
    tree({"b.py": BAD, "a/c.py": BAD + BAD, "d.py": "print()"})
    code, document, err = check(capsys)
    assert code == 1 and err == ""
    assert rules(document) == [("a/c.py", 5, "ACC202"), ("a/c.py", 10, "ACC202"), ("b.py", 5, "ACC202")]
    assert check(capsys, "b.py", "d.py", "a")[1] == document
    summary = document["summary"]
    assert summary["by_severity"] == {"error": 3, "warning": 0, "advice": 0}
    assert (summary["files_checked"], summary["files_simulated"], summary["loops"]) == (3, 2, 2)
    assert summary["files_without_accumulation"] == {"no-accumulation": 1}


def test_a_finding_has_the_documented_shape(tree, capsys):
    tree({"a.py": BAD})
    _, document, _ = check(capsys)
    assert document["schema"] == "accumlint/findings/v1"
    (finding,) = document["findings"]
    assert list(finding) == [
        "rule", "name", "clause", "severity", "confidence", "path", "line", "column", "end_line",
        "end_column", "message", "evidence", "related", "fix", "probed",
    ]  # fmt: skip
    assert (finding["column"], finding["end_line"], finding["end_column"]) == (5, 5, 21)


@pytest.mark.parametrize(
    ("source", "arguments", "code"),
    [
        (BAD, [], 1),
        (WEAK, [], 1),
        (TIP, [], 0),
        (WEAK, ["--fail-on", "error"], 0),
        (BAD, ["--fail-on", "never"], 0),
        (BAD, ["--ignore", "C2"], 0),
        (BAD, ["--select", "ACC4,C5"], 0),
        (BAD, ["--select", "scheduler-per-microbatch"], 1),
        (WEAK, ["--min-confidence", "certain"], 0),
        (WEAK, ["--min-confidence", "conditional"], 1),
        (BAD, ["--per-file-ignores", "*.py:ACC202,C5"], 0),
        (BAD, ["--per-file-ignores", "b.py:ACC202"], 1),
        ("print()", [], 0),
        ("torch.backward  #: crash", [], 2),
        ("torch.backward  #: deep", [], 0),
        (BAD.replace("ACC202", "syntax") + "(", [], 1),
    ],
)
def test_exit_codes(tree, capsys, source, arguments, code):
    tree({"a.py": source})
    assert check(capsys, *arguments)[0] == code


def test_something_broken_is_said_and_what_was_found_still_counts(tree, capsys):
    tree({"a.py": BAD, "b.py": "torch.backward  #: crash"})
    code, document, err = check(capsys)
    assert code == 1
    assert err.startswith("accumlint: b.py: internal error, KeyError")
    assert [each["path"] for each in document["summary"]["errors"]] == ["b.py"]
    assert ("b.py", 1, "ACC003") in rules(document)


def test_nothing_checked_is_told_apart_from_nothing_found(tree, capsys):
    folder = tree({"readme.md": "", "tests/a.py": BAD, "old/b.py": BAD})
    assert check(capsys, "--exclude", "old/")[0] == 3
    assert check(capsys, folder / "readme.md")[0] == 0  # a hook's file list, filtered away
    assert check(capsys, "--force-exclude", "tests/a.py")[0] == 0
    assert check(capsys, "tests/a.py")[0] == 1
    assert check(capsys, "tests")[0] == 1
    code, document, _ = check(capsys, "--exclude", "old/b.py")
    assert document["summary"]["files_skipped"] == {"excluded": 1, "test-code": 1}
    main(["check", "--exclude", "old/b.py"])
    assert capsys.readouterr().out.startswith("Nothing was checked.\n2 files left out: ")


def test_a_path_that_does_not_exist_is_a_mistake(tree, capsys):
    tree({"a.py": "print()"})
    code, _, err = check(capsys, "a.py", "gone.py")
    assert (code, err) == (2, "accumlint: gone.py: no such file or folder\n")


def test_unreadable_files_are_said_and_the_others_checked(tree, capsys, monkeypatch):
    from accumlint import runner

    tree({"a.py": BAD, "b.py": BAD})
    real = runner.read

    def refuse(target, stdin):
        if target.name == "a.py":
            raise PermissionError(13, "Permission denied")
        return real(target, stdin)

    monkeypatch.setattr(runner, "read", refuse)
    code, document, err = check(capsys)
    assert code == 1 and rules(document) == [("b.py", 5, "ACC202")]
    assert err == "accumlint: a.py: cannot be read: Permission denied\n"
    assert check(capsys, "a.py")[0] == 2


def test_standard_input(tree, capsys, monkeypatch):
    tree({"a.py": "print()"})

    def feed(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    feed(BAD)
    code, document, _ = check(capsys, "-")
    assert code == 1 and rules(document) == [("stdin.py", 5, "ACC202")]
    feed(BAD)
    _, document, _ = check(capsys, "--stdin-filename", "a.py", "-", "a.py")
    assert rules(document) == [("a.py", 5, "ACC202")]


def test_suppressions_hide_and_are_counted(tree, capsys):
    quiet = BAD.replace("#: ACC202", "#: ACC202 # accumlint: ignore[ACC202] meant")
    tree({"a.py": quiet})
    code, document, _ = check(capsys)
    assert code == 0 and document["findings"] == [] and document["summary"]["suppressed"] == 1
    tree({"a.py": quiet.replace("[ACC202]", "[ACC202, ACC401]")})
    code, document, _ = check(capsys)
    assert code == 0 and rules(document) == [("a.py", 5, "ACC002")]
    assert document["findings"][0]["severity"] == "advice"
    assert check(capsys, "--ignore", "ACC401")[1]["findings"] == []


def test_an_unused_suppression_in_a_file_without_accumulation(tree, capsys):
    tree({"a.py": "print()  # accumlint: ignore[ACC202]\n"})
    assert rules(check(capsys)[1]) == [("a.py", 1, "ACC002")]


def test_a_file_that_was_not_analysed_cannot_prove_a_suppression_useless(tree, capsys):
    tree({"a.py": "torch.backward  #: crash # accumlint: ignore[ACC202]\n"})
    assert [rule for _, _, rule in rules(check(capsys)[1])] == ["ACC003"]


def test_settings_file_and_command_line(tree, capsys):
    tree({"a.py": BAD, "pyproject.toml": '[tool.accumlint]\nignore = ["ACC202"]\n'})
    assert check(capsys)[0] == 0
    assert check(capsys, "--isolated")[0] == 1
    tree({"other.toml": "select = ['C2']\n[severity]\nC2 = 'advice'"})
    code, document, _ = check(capsys, "--config", "other.toml")
    assert code == 0 and document["findings"][0]["severity"] == "advice"


@pytest.mark.parametrize(
    ("files", "arguments", "message"),
    [
        ({"pyproject.toml": "[tool.accumlint]\nselct = []"}, [], "unknown key 'selct'"),
        ({}, ["--select", "ACC999"], "command line: no rule answers to 'ACC999'"),
        ({}, ["--per-file-ignores", "x"], "--per-file-ignores: 'x' is not PATTERN:RULES"),
        ({}, ["--config", "gone.toml"], "gone.toml: No such file or directory"),
        ({"pyproject.toml": ""}, ["--config", "pyproject.toml"], "no [tool.accumlint] in it"),
        ({"c.toml": ""}, ["--config", "c.toml", "--isolated"], "exclude each other"),
        ({}, ["--write-baseline", "b.json", "--diff", "HEAD"], "can't go with --diff"),
        ({}, ["--ratchet"], "--ratchet needs a --baseline"),
        ({}, ["--jobs", "-1"], "--jobs: must be 0 or more"),
        ({}, ["--output", "pdf:x"], "unknown format 'pdf'"),
        ({}, ["--output", "json:no/such/folder/x"], "no/such/folder/x: cannot be written"),
        ({}, ["--baseline", "gone.json"], "baseline: "),
        ({"b.json": "{}"}, ["--baseline", "b.json"], "b.json: not a file of schema accumlint/baseline/v1"),
        ({}, ["--diff", "HEAD"], "git diff: "),
    ],
)
def test_misuse_is_exit_code_2_with_a_reason(tree, capsys, files, arguments, message):
    tree({"a.py": BAD, **files})
    code, document, err = check(capsys, *arguments)
    assert code == 2 and document is None
    assert err.startswith("accumlint: ") and message in err and "Traceback" not in err


def test_several_outputs_in_one_run(tree, capsys):
    folder = tree({"a.py": BAD})
    code, document, _ = check(capsys, "--output", "sarif:out.sarif", "--output", "json:out.json")
    assert code == 1
    assert json.loads((folder / "out.json").read_text()) == document
    assert json.loads((folder / "out.sarif").read_text())["version"] == "2.1.0"
    assert sorted(os.listdir(folder)) == ["a.py", "out.json", "out.sarif"]


def test_the_default_format_depends_on_the_place(tree, capsys, monkeypatch):
    tree({"a.py": BAD})
    main(["check"])
    assert capsys.readouterr().out.startswith("a.py:5:5: error ACC202")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    main(["check"])
    assert capsys.readouterr().out.startswith("::error file=a.py,line=5,")


def test_statistics(tree, capsys):
    tree({"a.py": BAD + BAD + WEAK})
    assert main(["check", "--statistics"]) == 1
    assert capsys.readouterr().out.splitlines()[:2] == [
        "     2  ACC202  scheduler-per-microbatch",
        "     1  ACC501  tail-dropped-silently",
    ]


def test_paths_in_reports_for_code_hosts_are_relative_to_the_repository(tree, capsys, monkeypatch):
    folder = tree({".git/HEAD": "", "sub dir/a.py": BAD})
    monkeypatch.chdir(folder / "sub dir")
    main(["check", "--format", "github"])
    assert capsys.readouterr().out.startswith("::error file=sub dir/a.py,line=5")
    assert rules(check(capsys)[1]) == [("a.py", 5, "ACC202")]


def test_a_baseline_hides_what_is_known_and_survives_line_shifts(tree, capsys):
    folder = tree({"a.py": BAD})
    assert check(capsys, "--write-baseline", "known.json")[0] == 0
    tree({"a.py": "# inserted\n" * 50 + BAD})
    code, document, _ = check(capsys, "--baseline", "known.json")
    assert code == 0 and document["summary"]["baselined"] == 1
    tree({"a.py": BAD + BAD.replace("def train", "def other")})
    code, document, _ = check(capsys, "--baseline", "known.json")
    assert code == 1 and rules(document) == [("a.py", 10, "ACC202")]
    tree({"a.py": "print()"})
    main(["check", "--baseline", "known.json"])
    assert "1 entry of the baseline no longer found" in capsys.readouterr().out
    check(capsys, "--write-baseline", "known.json")
    assert json.loads((folder / "known.json").read_text())["findings"] == []


def test_a_baseline_in_the_settings_is_relative_to_them(tree, capsys, monkeypatch):
    folder = tree({"sub/a.py": BAD, "accumlint.toml": "baseline = 'known.json'", ".git/HEAD": ""})
    (folder / "known.json").write_text('{"schema": "accumlint/baseline/v1", "findings": []}')
    assert check(capsys, "--write-baseline", "known.json")[0] == 0
    monkeypatch.chdir(folder / "sub")
    assert check(capsys)[0] == 0


def test_the_ratchet_allows_no_growth(tree, capsys):
    tree({"a.py": BAD})
    check(capsys, "--write-baseline", "known.json")
    tree({"a.py": BAD.replace("scheduler.step()", "lr_scheduler.step()")})  # another line, the same count
    assert check(capsys, "--baseline", "known.json")[0] == 1
    assert check(capsys, "--baseline", "known.json", "--ratchet")[0] == 0
    tree({"a.py": BAD + BAD})
    assert check(capsys, "--baseline", "known.json", "--ratchet")[0] == 1


def test_only_changed_lines(tree, capsys, git):
    tree({"a.py": BAD, "sub dir/é.py": BAD})
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    assert check(capsys, "--diff", "HEAD")[0] == 0
    tree({"a.py": BAD + "\n\n" + BAD, "new.py": BAD, "sub dir/é.py": BAD.replace("#: ACC202", "#: ACC202 ")})
    code, document, _ = check(capsys, "--diff", "HEAD")
    assert code == 1
    assert rules(document) == [
        ("a.py", 12, "ACC202"), ("new.py", 5, "ACC202"), ("sub dir/é.py", 5, "ACC202"),
    ]  # fmt: skip
    assert document["summary"]["outside_diff"] == 1
    code, _, err = check(capsys, "--diff", "no-such-commit")
    assert code == 2 and err.startswith("accumlint: git diff: ")


def test_a_related_place_on_a_changed_line_keeps_a_finding(tree, capsys, git):
    tree({"a.py": BAD})
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    tree({"a.py": BAD.replace("import torch", "import torch as t")})  # line 1 is where the window starts
    assert check(capsys, "--diff", "HEAD")[0] == 1


def test_output_that_a_terminal_cannot_encode_is_escaped(tree, capsys):
    tree({"a.py": "import torch\nloss.backward(größe)  #: ACC202\n"})
    command = (
        "import sys, accumlint.audit; accumlint.audit.ENGINE = 'fake_engine'; "
        "from accumlint.cli.main import main; sys.exit(main(['check']))"
    )
    tests = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": os.pathsep.join((tests, os.path.dirname(tests)))}
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, env=environment, check=False)
    assert done.returncode == 1, done.stderr
    assert b"gr\\xf6\\xdfe" in done.stdout and b"Traceback" not in done.stderr
    assert b"backward    *" in done.stdout
