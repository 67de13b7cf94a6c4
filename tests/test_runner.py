import random

import pytest

from accumlint import runner
from accumlint.runner import EngineChoice, RunnerError, run
from accumlint.static.discovery import PYTHON, STDIN, Target

CHOICE = EngineChoice("fake_engine")
BAD = b"import torch\nloss.backward()  #: ACC202\n"


def targets_in(folder):
    names = sorted(path.name for path in folder.iterdir())
    return [Target(name, str(folder / name), PYTHON) for name in names]


def in_workers(targets, workers):
    arrived = []
    runner.analyse_in_workers(targets, CHOICE, workers, arrived.append)
    return arrived


def told(outcomes):
    return {o.name: (tuple(f.rule for f in o.findings), o.skipped, o.failure) for o in outcomes}


def test_the_sieve_ends_files_before_the_engine_is_loaded(tree):
    folder = tree({"a.py": "print()"})
    (outcome,) = run(targets_in(folder), EngineChoice("no.such.engine")).outcomes
    assert outcome == runner.Outcome("a.py", skipped="no-accumulation")


@pytest.fixture
def workers_early(monkeypatch):
    monkeypatch.setattr(runner, "PARALLEL_FROM_FILES", 2)


def test_a_missing_engine_is_said(tree, workers_early):
    folder = tree({"a.py": BAD})
    with pytest.raises(RunnerError, match="no.such.engine can't be loaded"):
        run(targets_in(folder), EngineChoice("no.such.engine"))
    folder = tree({f"{n}.py": BAD for n in range(9)})
    with pytest.raises(RunnerError, match="no.such.engine can't be loaded"):
        run(targets_in(folder), EngineChoice("no.such.engine"), jobs=2)


def test_standard_input_is_a_file(tree):
    (outcome,) = run([Target("in.py", "", STDIN)], CHOICE, stdin=BAD).outcomes
    assert [finding.span.path for finding in outcome.findings] == ["in.py"]


def test_a_file_that_breaks_costs_itself_alone(tree):
    folder = tree(
        {
            "a.py": BAD,
            "crash.py": b"torch.backward  #: crash",
            "deep.py": b"torch.backward  #: deep",
            "large.py": BAD + b"#" * runner.MAX_BYTES,
            "latin.py": b"# coding: utf-8\ntorch.backward = '\xe9'  #: syntax",
            "syntax.py": b"import torch\nbackward(  #: syntax\n",
            "z.py": BAD,
        }
    )
    targets = [*targets_in(folder), Target("gone.py", str(folder / "gone.py"), PYTHON)]
    done = told(run(targets, CHOICE).outcomes)
    assert done["a.py"] == done["z.py"] == (("ACC202",), "", "")
    assert done["syntax.py"] == (("ACC001",), "syntax-error", "")
    assert done["latin.py"] == (("ACC001",), "syntax-error", "")
    assert done["deep.py"] == (("ACC003",), "too-deep", "")
    assert done["large.py"] == (("ACC003",), "too-large", "")
    assert done["gone.py"] == ((), "", "cannot be read: No such file or directory")
    rules, _, failure = done["crash.py"]
    assert rules == ("ACC003",)
    assert failure.startswith("internal error, KeyError: 'no such thing' in fake_engine.py:")


def test_a_syntax_error_has_its_line(tree):
    folder = tree({"a.py": b"import torch\nloss.backward()\nx = = 2  #: syntax\n"})
    (outcome,) = run(targets_in(folder), CHOICE).outcomes
    assert outcome.findings[0].span.line == 3


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    for number in range(12):
        (folder / f"train_{number:02}.py").write_bytes(BAD)
        (folder / f"other_{number:02}.py").write_bytes(b"print()")
    (folder / "dies.py").write_bytes(b"torch.backward  #: die")
    (folder / "crashes.py").write_bytes(b"torch.backward  #: crash")
    return targets_in(folder)


def test_a_dying_worker_costs_one_file(many, workers_early):
    done = told(run(many, CHOICE, jobs=2).outcomes)
    rules, _, failure = done.pop("dies.py")
    assert rules == ("ACC003",)
    assert failure == "the process that read it died (exit code 139)"
    assert done["train_11.py"] == (("ACC202",), "", "")
    assert sum(rules == ("ACC202",) for rules, _, _ in done.values()) == 12


def test_the_number_of_workers_and_the_order_of_files_change_nothing(many, workers_early):
    survivors = [target for target in many if target.name != "dies.py"]  # it would end this process
    here = run(survivors, CHOICE, jobs=1)
    shuffled = list(survivors)
    random.Random(1).shuffle(shuffled)
    assert run(survivors, CHOICE, jobs=3) == here
    assert sorted(run(shuffled, CHOICE, jobs=2).outcomes) == sorted(here.outcomes)


def test_a_worker_that_hangs_is_given_up(tree, monkeypatch):
    monkeypatch.setattr(runner, "SECONDS_PER_FILE", 1.0)
    files = {f"{n}.py": BAD for n in range(3)}
    folder = tree({**files, "hangs.py": b"torch.backward  #: hang"})
    done = told(in_workers(targets_in(folder), 2))
    assert done.pop("hangs.py") == (("ACC003",), "too-slow", "")
    assert set(done.values()) == {(("ACC202",), "", "")}


def test_files_with_very_long_lines_are_kept_apart(tree):
    folder = tree({"a.py": BAD, "long.py": b"torch.backward  #: die " + b"x" * runner.LONG_LINE_BYTES})
    done = told(run(targets_in(folder), CHOICE).outcomes)
    assert done["a.py"] == (("ACC202",), "", "")
    assert done["long.py"][2] == "the process that read it died (exit code 139)"


def test_workers_are_replaced_after_a_while(tree, monkeypatch):
    monkeypatch.setattr(runner, "FILES_PER_WORKER", 2)
    folder = tree({f"{n}.py": BAD for n in range(7)})
    done = told(in_workers(targets_in(folder), 2))
    assert len(done) == 7 and set(done.values()) == {(("ACC202",), "", "")}


def test_native_parsers_have_room_for_deep_nesting():
    libcst = pytest.importorskip("libcst")
    source = b"x = " + b"(" * 3000 + b"1" + b")" * 3000  # ends a process with a stack of 8 MB
    assert runner.deep(lambda: libcst.parse_module(source).bytes) == source


def test_deep_hands_exceptions_to_the_caller():
    with pytest.raises(ZeroDivisionError):
        runner.deep(lambda: 1 / 0)


def test_what_is_too_large_for_memory_is_not_read(tree, monkeypatch):
    folder = tree({"huge.py": b"", "a.py": BAD})
    with open(folder / "huge.py", "r+b") as stream:
        stream.truncate(runner.MAX_READ_BYTES + 1)  # holes take no room
    opened = []
    read = runner.read
    monkeypatch.setattr(runner, "read", lambda target, stdin: opened.append(target.name) or read(target, stdin))
    done = told(run(targets_in(folder), CHOICE).outcomes)
    assert done["huge.py"] == (("ACC003",), "too-large", "") and "huge.py" not in opened
    assert done["a.py"] == (("ACC202",), "", "")
