"""Scripts of a tree are read when asked for, and few of their syntax trees are held at a time."""

import gc
import weakref

import pytest

from accumlint.config import scripts as module
from accumlint.config.audit import SourceFile, audit, gather
from accumlint.config.scripts import Scripts

UNWIRED = """\
import argparse
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--gradient_accumulation_steps", type=int, default=4)
args = parser.parse_args()
accelerator = Accelerator()
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).loss)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.fixture
def reads(monkeypatch):
    """The paths that were read, in order, with weak references to what came of them."""
    seen = []

    def reading(path, text):
        script = read(path, text)
        seen.append((path, weakref.ref(script)))
        return script

    read = module.read_script
    monkeypatch.setattr(module, "read_script", reading)
    return seen


def test_nothing_is_read_before_it_is_asked_for(reads):
    scripts = Scripts({"b.py": b"x = 1", "a.py": b"y = 2", "broken.py": b"def"})
    assert [path for path, _ in scripts.sources()] == ["a.py", "b.py", "broken.py"] and reads == []
    assert scripts["a.py"].text == "y = 2" and [path for path, _ in reads] == ["a.py"]
    assert scripts["a.py"] is scripts["a.py"] and len(reads) == 1


def test_what_has_no_syntax_tree_is_not_among_them():
    scripts = Scripts({"a.py": b"x = 1", "broken.py": b"def", "zero.py": b"\0"})
    assert list(scripts) == ["a.py"] and len(scripts) == 1 and scripts
    assert "broken.py" not in scripts and scripts.get("broken.py") is None and "elsewhere.py" not in scripts
    assert not Scripts({"broken.py": b"def"}) and not Scripts()
    with pytest.raises(KeyError):
        scripts["elsewhere.py"]


def test_only_scripts_with_one_of_the_words_are_read(reads):
    scripts = Scripts({"a.py": b"no_sync = 1", "b.py": b"x = 1", "c.py": b"y = 'train_batch'"})
    assert [script.path for script in scripts.naming(b"no_sync", b"train_batch")] == ["a.py", "c.py"]
    assert [path for path, _ in reads] == ["a.py", "c.py"]


def test_a_part_of_them_knows_what_the_whole_knew(reads):
    scripts = Scripts({"a/one.py": b"x = 1", "ab.py": b"x = 1", "a/broken.py": b"def"})
    assert list(scripts) == ["a/one.py", "ab.py"]
    before = len(reads)
    assert list(scripts.below("a/")) == ["a/one.py"] and len(reads) == before


def test_syntax_trees_are_let_go(reads, monkeypatch):
    monkeypatch.setattr(module, "HELD_BYTES", 3 * len(UNWIRED))
    files = [SourceFile(f"train_{number}.py", UNWIRED.encode()) for number in range(20)]
    gathered = gather(files)
    names = {finding.span.path for finding in audit(files, gathered)}
    gc.collect()
    held = [path for path, script in reads if script() is not None]
    assert len(names) == 20 and len(reads) == 20 and 0 < len(held) <= 3


def test_findings_are_the_same_however_few_are_held(monkeypatch):
    files = [SourceFile(f"pkg_{number % 3}/train_{number}.py", UNWIRED.encode()) for number in range(9)]
    lines = [f"accelerate launch --gradient_accumulation_steps 2 {file.path}\n" for file in files]
    files.append(SourceFile("run.sh", "".join(lines).encode()))
    many = audit(files)
    monkeypatch.setattr(module, "HELD_BYTES", 1)
    assert audit(files) == many and len(many) >= 9
