"""What is kept of the knowledge is used only while it belongs to the bytes and the reader that it was made from."""

import os
import sys

import pytest

from accumlint import compiled, knowledge


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """Byte code is kept in a folder of the test."""
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "bytecode"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


class Reader:
    """Splits a file into words and counts how often it was asked."""

    def __init__(self, folder):
        self.asked = 0
        self.code = folder / "reader.py"
        self.code.write_text("version 1")

    def __call__(self, data):
        self.asked += 1
        return {"words": data.decode().split()}

    def load(self, path):
        return compiled.load(str(path), self, [str(self.code)])


def kept_files(folder):
    return [path for path in (folder / "bytecode").rglob("*") if path.is_file()]


def test_a_file_is_parsed_once(kept):
    path, reader = kept / "a.yaml", Reader(kept)
    path.write_text("one two")
    assert reader.load(path) == reader.load(path) == {"words": ["one", "two"]}
    assert reader.asked == 1


def test_other_bytes_or_another_reader_are_parsed_anew(kept):
    path, reader = kept / "a.yaml", Reader(kept)
    path.write_text("one")
    reader.load(path)
    stat = path.stat()
    path.write_text("two")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # same size, same time
    assert reader.load(path) == {"words": ["two"]}
    reader.code.write_text("version 2")
    reader.load(path)
    assert reader.asked == 3


@pytest.mark.parametrize("damage", [lambda b: b[:-3], lambda b: b"", lambda b: b[:40], lambda b: b + b"x", lambda b: b"x" + b])
def test_a_damaged_file_is_made_anew(kept, damage):
    path, reader = kept / "a.yaml", Reader(kept)
    path.write_text("one two three")
    right = reader.load(path)
    (file,) = kept_files(kept)
    file.write_bytes(damage(file.read_bytes()))
    assert reader.load(path) == reader.load(path) == right


def test_nothing_is_kept_where_byte_code_is_not_wanted(kept, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, reader = kept / "a.yaml", Reader(kept)
    path.write_text("one")
    assert reader.load(path) == reader.load(path)
    assert reader.asked == 2 and kept_files(kept) == []


def test_a_folder_that_cannot_be_written_costs_time_alone(kept, monkeypatch):
    (kept / "bytecode").write_text("no folder")
    path, reader = kept / "a.yaml", Reader(kept)
    path.write_text("one")
    assert reader.load(path) == reader.load(path) == {"words": ["one"]}


def test_what_raises_is_not_kept(kept):
    path = kept / "a.yaml"
    path.write_text("a: [")
    for _ in range(2):
        with pytest.raises(knowledge.KnowledgeError, match="a.yaml"):
            knowledge.load_yaml(path)
    assert kept_files(kept) == []


def test_pages_come_back_as_they_were_parsed(kept):
    pages = sorted(knowledge.root().glob("C*/*.md"))
    for _ in range(2):
        for page in pages:
            assert knowledge._load_page(str(page)) == knowledge.parse_page(page.read_text(encoding="utf-8"), page)
    assert len(kept_files(kept)) == len(pages)
