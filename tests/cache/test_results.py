"""Kept results: the same bytes out as without them, and never an answer to a question that has changed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from accumlint import runner
from accumlint.cache import plain, store
from accumlint.cache.results import Results
from accumlint.cli.main import main
from accumlint.findings import Confidence, Edit, Finding, Fix, LoopReport, Related, Severity, Span
from accumlint.settings import FORMATS

ROOT = Path(__file__).resolve().parents[2]

LOSS = """
import torch.nn.functional as F


def token_loss(logits, labels, pad_id):
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=pad_id)
"""

TRAIN = """
import torch
from losses import token_loss


def train(model, loader, accum_steps, epochs, pad_id):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for epoch in range(epochs):
        for step, (tokens, labels) in enumerate(loader):
            loss = token_loss(model(tokens), labels, pad_id)
            (loss / accum_steps).backward()
            scheduler.step()
            if (step + 1) % accum_steps == 0 or step + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""

SUM = LOSS.replace("ignore_index=pad_id)", "ignore_index=pad_id, reduction='sum')")


@pytest.fixture
def project(tree):
    return tree({"accumlint.toml": "", "train.py": TRAIN, "losses.py": LOSS})


def check(capsys, *arguments):
    code = main(["check", *arguments])
    return code, capsys.readouterr().out


def rules(capsys, *arguments):
    _, out = check(capsys, "--format", "json", *arguments)
    return sorted(finding["rule"] for finding in json.loads(out)["findings"])


def entries(folder):
    return sorted(path for path in (folder / store.FOLDER).rglob("*") if path.is_file() and path.parent.parent.name in ("files", "configured", "fixes"))


@pytest.fixture
def counted(monkeypatch):
    """The names of the files that the engine is given."""
    seen = []
    analyse = runner.Engine.analyse

    def counting(self, name, data):
        seen.append(name)
        return analyse(self, name, data)

    monkeypatch.setattr(runner.Engine, "analyse", counting)
    return seen


# The same bytes


@pytest.mark.parametrize("format_name", FORMATS)
def test_every_format_is_the_same_without_with_a_cold_and_with_a_warm_cache(project, capsys, format_name):
    for path in sorted((ROOT / "fixtures" / "scripts").glob("*.py"))[:8]:
        (project / path.name).write_bytes(path.read_bytes())
    (project / "ds.json").write_text('{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2}')
    (project / "broken.py").write_text("import torch\nloss.backward(\n")
    without = check(capsys, "--format", format_name, "--no-cache")
    assert not (project / store.FOLDER).exists()
    cold = check(capsys, "--format", format_name)
    warm = check(capsys, "--format", format_name)
    assert without == cold == warm and without[0] == 1


def test_a_warm_run_loads_neither_parser_nor_engine(project, capsys):
    check(capsys)
    code = (
        "import sys; from accumlint.cli.main import main; main(['check', 'train.py', 'losses.py']); "
        "print(sorted({'libcst', 'yaml', 'accumlint.config', 'accumlint.static.interpreter'} & set(sys.modules)), file=sys.stderr)"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]" and "ACC202" in done.stdout


def test_workers_keep_what_they_find(project, capsys, counted, monkeypatch):
    monkeypatch.setattr(runner, "PARALLEL_FROM_FILES", 2)
    without = check(capsys, "--no-cache", "--jobs", "2")
    assert check(capsys, "--jobs", "2") == without
    counted.clear()
    assert check(capsys, "--jobs", "1") == without and counted == []


# What changes an answer


def test_only_what_changed_is_analysed(project, capsys, counted):
    first = rules(capsys)
    assert first == rules(capsys) and "ACC101" in first
    assert counted == ["train.py"]  # the helper ends at the byte sieve
    counted.clear()
    (project / "other.py").write_text(TRAIN.replace("def train", "def again"))
    rules(capsys)
    assert counted == ["other.py"]


def test_an_edit_that_keeps_size_and_time_is_seen(project, capsys):
    before = rules(capsys)
    told = os.stat("train.py")
    Path("train.py").write_text(TRAIN.replace("            scheduler.step()\n", "            scheduler.stop()\n"))
    os.utime("train.py", ns=(told.st_atime_ns, told.st_mtime_ns))
    assert rules(capsys) == [rule for rule in before if rule != "ACC202"]


def test_a_changed_helper_changes_the_script(project, capsys):
    assert "ACC101" in rules(capsys)
    Path("losses.py").write_text(SUM)
    changed = rules(capsys)
    assert changed == rules(capsys, "--no-cache") and "ACC101" not in changed
    Path("losses.py").write_text(LOSS)
    assert "ACC101" in rules(capsys)


def test_a_helper_that_comes_or_goes_changes_the_script(project, capsys):
    Path("losses.py").unlink()
    assert "ACC101" not in rules(capsys)
    Path("losses").mkdir()
    Path("losses/__init__.py").write_text(LOSS)
    assert "ACC101" in rules(capsys)
    Path("losses.py").write_text(SUM)  # a module beside the package is found first
    assert rules(capsys) == rules(capsys, "--no-cache")
    Path("losses.py").unlink()
    Path("losses/__init__.py").unlink()
    assert "ACC101" not in rules(capsys)


def test_a_file_nearer_by_hides_the_one_that_was_followed(tree, capsys):
    tree({"accumlint.toml": "", "runs/train.py": TRAIN, "losses.py": LOSS})
    assert "ACC101" in rules(capsys)
    Path("runs/losses.py").write_text(SUM)
    assert rules(capsys) == rules(capsys, "--no-cache") and "ACC101" not in rules(capsys)


def test_settings_of_the_engine_count_and_others_do_not(project, capsys, counted):
    rules(capsys)
    counted.clear()
    rules(capsys, "--select", "C2", "--fail-on", "never")
    assert counted == []
    Path("accumlint.toml").write_text("[vocabulary.losses]\nfunctions = ['my.loss']\n")
    rules(capsys)
    assert counted == ["train.py"]


def test_another_tool_starts_anew(project, capsys, counted, monkeypatch):
    rules(capsys)
    counted.clear()
    monkeypatch.setattr("accumlint.cache.results.stamp", lambda: "another version")
    rules(capsys)
    assert counted == ["train.py"]


def test_the_name_of_a_file_is_part_of_its_result(project, capsys):
    rules(capsys)
    Path("train.py").rename("later.py")
    _, out = check(capsys, "--format", "json")
    assert {finding["path"] for finding in json.loads(out)["findings"]} == {"later.py"}


def test_configurations_are_audited_again_when_any_changes(project, capsys):
    Path("ds.json").write_text('{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2}')
    assert "ACC901" in rules(capsys) and "ACC901" in rules(capsys)
    Path("ds.json").write_text('{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}')
    assert "ACC901" not in rules(capsys)


def test_fixes_are_offered_from_memory(project, capsys, monkeypatch):
    first = check(capsys, "--format", "json")
    monkeypatch.setattr("accumlint.static.fixes.offer.fixes_for", None)
    assert check(capsys, "--format", "json") == first
    assert any(finding["fix"] for finding in json.loads(first[1])["findings"])


# What is not kept


def test_what_broke_or_took_too_long_is_tried_again(tree, capsys, counted, small_engine):
    tree({"accumlint.toml": "", "crash.py": "torch.backward  #: crash"})
    for _ in range(2):
        assert check(capsys)[0] == 2
    assert counted == ["crash.py", "crash.py"]


def test_a_file_that_changed_while_it_was_read_is_not_kept(tmp_path):
    results = Results(str(tmp_path / "kept"), runner.EngineChoice(), str(tmp_path))
    outcome = runner.Outcome("a.py", content="what was analysed", consulted={"absent": {}, "files": {}, "content": {}})
    results.keep("what was looked up", outcome)
    assert results.find("a.py", "what was looked up") is None
    results.keep("what was analysed", outcome)
    assert results.find("a.py", "what was analysed") == outcome._replace(content="", consulted=None)


# Where it is kept


def test_nothing_is_written_where_no_project_is(tree, capsys):
    folder = tree({"train.py": TRAIN})
    check(capsys)
    assert sorted(path.name for path in folder.iterdir()) == ["train.py"]


def test_a_repository_is_a_project(tree, capsys, git):
    folder = tree({"sub/train.py": TRAIN})
    git("init")
    check(capsys, "sub/train.py")
    assert (folder / store.FOLDER / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
    assert git("status", "--porcelain", "--ignored=no") == "?? sub/\n"


@pytest.mark.parametrize("settings", ["cache = false\n", ""])
def test_it_can_be_switched_off(tree, capsys, settings):
    folder = tree({"accumlint.toml": settings, "train.py": TRAIN})
    check(capsys, *([] if settings else ["--no-cache"]))
    assert not (folder / store.FOLDER).exists()


def test_it_can_be_elsewhere(tree, capsys):
    folder = tree({"accumlint.toml": "cache-dir = 'kept/here'\n", "train.py": TRAIN})
    check(capsys)
    assert (folder / "kept/here/files").is_dir()
    check(capsys, "--cache-dir", "there")
    assert (folder / "there/files").is_dir() and not (folder / store.FOLDER).exists()


def test_a_folder_that_cannot_be_written_costs_nothing(project, capsys):
    without = check(capsys, "--no-cache")
    Path(store.FOLDER).write_text("in the way")
    assert check(capsys) == without == check(capsys)


def test_the_folder_is_not_checked(project, capsys):
    check(capsys)
    (project / store.FOLDER / "train.py").write_text(TRAIN)
    _, out = check(capsys, "--format", "json")
    assert json.loads(out)["summary"]["files_checked"] == 2


# Damage


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"ACC", b"ACD"),
        lambda data: b"x" + data,
        lambda data: store.digest(b"[1, 2]").encode() + b"\n[1, 2]",
        lambda data: store.digest(b"{}").encode() + b"\n{}",
        lambda data: store.digest(b'{"consulted": 3, "findings": 4}').encode() + b'\n{"consulted": 3, "findings": 4}',
        lambda data: store.digest(b"\xff").encode() + b"\n\xff",
    ],
)
def test_a_damaged_entry_is_made_anew(project, capsys, damage):
    right = check(capsys)
    assert len(entries(project)) >= 3
    for path in entries(project):
        path.write_bytes(damage(path.read_bytes()))
    assert check(capsys) == right == check(capsys)


def test_folders_where_entries_should_be_are_no_entries(project, capsys):
    right = check(capsys)
    for path in entries(project):
        path.unlink()
        path.mkdir()
    assert check(capsys) == right


@pytest.mark.slow
def test_runs_at_the_same_time_and_a_clear_among_them(project, capsys):
    right = check(capsys, "--no-cache")[1]
    command = [sys.executable, "-m", "accumlint", "check"]
    clear = [sys.executable, "-m", "accumlint", "cache", "clear"]
    for _ in range(3):
        running = [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in (command, command, clear, command)]
        told = [each.communicate()[0] for each in running]
        assert told[0] == told[1] == told[3] == right


# Its size


def test_old_entries_and_too_many_are_forgotten(tmp_path, monkeypatch):
    kept = store.Store(str(tmp_path / "kept"))
    for number in range(20):
        kept.write("files", f"{number:04x}", "x" * 1000)
        path = tmp_path / "kept" / "files" / "00" / f"{number:02x}"
        os.utime(path, (1_000_000_000 + number, 1_000_000_000 + number) if number < 5 else None)
    kept.prune()
    assert kept.held().entries == 15 and kept.read("files", "0004") is None and kept.read("files", "0005")
    monkeypatch.setattr(store, "MAX_BYTES", 8_000)
    kept.prune()
    assert 0 < kept.held().size <= 6_000


def test_a_run_looks_through_the_folder_now_and_then(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(store.Store, "prune", lambda self: looked.append(1))
    for _ in range(3):
        kept = store.Store(str(tmp_path / "kept"))
        kept.write("files", "abcd", 1)
        kept.finish()
    assert len(looked) == 1
    monkeypatch.setattr(store, "MANY_ENTRIES", 1)
    kept.finish()
    assert len(looked) == 2


# The command


def test_info_and_clear(project, capsys):
    assert main(["cache", "info"]) == 0 and "0 results" in capsys.readouterr().out
    check(capsys)
    assert main(["cache", "info"]) == 0 and " 0 results" not in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0 and "results removed" in capsys.readouterr().out
    assert not (project / store.FOLDER).exists()
    assert main(["cache", "clear"]) == 0 and "nothing to remove" in capsys.readouterr().out


def test_clear_spares_folders_that_are_not_ours(project, capsys):
    Path("data").mkdir()
    Path("data/precious").write_text("x")
    Path("data/CACHEDIR.TAG").write_text("Signature: 8a477f597d28d172789f06886806bc55\n# somebody else's\n")
    assert main(["cache", "clear", "--cache-dir", "data"]) == 0
    assert Path("data/precious").exists()


# Plain data


def test_findings_come_back_as_they_were():
    span = Span("größe.py", 3, 4, 5, 6)
    fix = Fix("move", False, (Edit(span, "x\ud800"),), "why")
    finding = Finding("ACC202", "n", "C2", Severity.ERROR, Confidence.POSSIBLE, span, "m", {"a": [1, None, 0.1]}, (Related(span, "r"),), fix)
    loops = (LoopReport("f", 3, "K", ("a",), (), 2, (), ("b", "c"), (), ({"k": 3},)),)
    outcome = runner.Outcome("größe.py", (finding,), "", loops)
    assert plain.outcome_from_plain("größe.py", json.loads(json.dumps(plain.outcome_to_plain(outcome)))) == outcome


@pytest.mark.parametrize("value", [{1: 2}, object(), {"a": {3}}, b"x", 1j])
def test_what_json_cannot_give_back_is_refused(value):
    with pytest.raises(plain.NotPlain):
        plain.plain({"x": value})
