"""Every reader of files on documents with bytes cut, doubled and swapped: an answer, or the error that it documents."""

import random
import warnings
from pathlib import Path

import libcst
import pytest

from accumlint import baseline, settings, suppression
from accumlint.config import readers
from accumlint.receipt import reading, verify_bytes
from accumlint.receipt.problems import Rejected
from accumlint.static import notebooks
from accumlint.static.project import Project

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
ROUNDS = 250
# what a byte or a stretch is replaced with: quotes, brackets, ends of lines, wrong encodings, large numbers
STRANGE = (
    b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b":", b",", b"#", b"\n", b"\r", b"\t", b"\x00", b"\xff", b"\xc3", b"\xef\xbb\xbf", b"\xe2\x80\xa8",
    b"1e400", b"-0.0", b"9" * 400, b"NaN", b"null", b"true", b"&a", b"*a", b"!!python/object:os.system", b"<<: *a", b'"""', b"\\u0000", b"\xed\xa0\x80",
)  # fmt: skip

BASELINE = b"""{"schema": "accumlint/baseline/v1", "findings": [
{"path": "a.py", "rule": "ACC202", "scope": "train", "text": "scheduler.step()", "count": 2}]}
"""
SETTINGS = b"""[tool.accumlint]
select = ["C1", "ACC202"]
ignore = ["scheduler-per-microbatch"]
exclude = ["old/**"]
jobs = 2
[tool.accumlint.per-file-ignores]
"notebooks/*" = ["C7"]
[tool.accumlint.severity]
ACC301 = "error"
"""
COMMENTED = b'''"""A loop."""
for i, batch in enumerate(loader):
    scheduler.step()  # accumlint: ignore[ACC202, C7] reason: warm-up per microbatch
    loss.backward()  # accumlint: ignore
    text = "# accumlint: ignore[ACC101]"
# accumlint: ignore-file[C8]
'''
NOTEBOOK = b'''{"cells": [{"cell_type": "markdown", "source": ["# train"]}, {"cell_type": "code", "source": ["%pip install torch\\n", "import torch\\n"]},
{"cell_type": "code", "source": "for x, y in loader:\\n    (loss(model(x), y) / accum_steps).backward()\\n    optimizer.step()"}],
"metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}
'''


def mutated(draw: random.Random, data: bytes) -> bytes:
    """One to three places of a document deleted, doubled, swapped or replaced; now and then its end is missing."""
    for _ in range(draw.choice((1, 1, 2, 3))):
        at, length = draw.randrange(len(data) + 1), draw.choice((1, 1, 2, 5, 20))
        other = draw.randrange(len(data) + 1)
        what = draw.choice(("delete", "double", "swap", "strange", "strange", "insert", "cut"))
        if what == "delete":
            data = data[:at] + data[at + length :]
        elif what == "double":
            data = data[:at] + data[at : at + length] * draw.choice((2, 50)) + data[at + length :]
        elif what == "swap":
            data = data[:at] + data[other : other + length] + data[at + length :]
        elif what == "strange":
            data = data[:at] + draw.choice(STRANGE) + data[at + length :]
        elif what == "insert":
            data = data[:at] + draw.choice(STRANGE) * draw.choice((1, 1, 3, 200)) + data[at:]
        else:
            data = data[:at]
    return data


def of_fixtures(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(FIXTURES.glob(pattern))]


def _document(kind: str):
    def read(data: bytes, folder: Path) -> None:
        document = readers.read(f"file.{kind}", data)
        # a document that ends too early is wrong on the line behind its last one
        lines = data.count(b"\n") + data.count(b"\r") + data.count(b"\xe2\x80\xa8") + 2
        assert document.problem is None or 1 <= document.problem.line <= lines

    return read


def _baseline(data: bytes, folder: Path) -> None:
    path = folder / "baseline.json"
    path.write_bytes(data)
    baseline.read(str(path))


def _settings(data: bytes, folder: Path) -> None:
    path = folder / "pyproject.toml"
    path.write_bytes(data)
    settings.load(str(path))


def _suppressions(data: bytes, folder: Path) -> None:
    for found in (*suppression.in_python(data), *suppression.in_configuration(data)):
        assert found.line >= 1


def _lowered(data: bytes, folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        Project(folder).parse(data, "script.py", "script")


# reader -> (documents, what it may raise)
READERS = {
    "lowering": (_lowered, of_fixtures("scripts/*.py")[:4], (libcst.ParserSyntaxError, UnicodeDecodeError, SyntaxError, RecursionError)),
    "yaml": (_document("yaml"), of_fixtures("configs/*/*.yaml")[:30], ()),
    "json": (_document("json"), of_fixtures("configs/*/*.json")[:30], ()),
    "toml": (_document("toml"), [*of_fixtures("configs/*/*.toml"), SETTINGS], ()),
    "configuration in Python": (_document("py"), of_fixtures("configs/mmengine/*.py"), ()),
    "settings": (_settings, [SETTINGS], (settings.SettingsError,)),
    "baseline": (_baseline, [BASELINE], (ValueError,)),
    "suppressions": (_suppressions, [COMMENTED], ()),
    "manifest": (lambda data, folder: reading.read(data), [*of_fixtures("manifests/*.json"), *of_fixtures("manifests/*.yaml")], (Rejected,)),
    "receipt": (lambda data, folder: verify_bytes(data), of_fixtures("receipts/*.json"), ()),
    "notebook": (lambda data, folder: notebooks.read(data), [NOTEBOOK], (notebooks.NotebookError,)),
}


@pytest.mark.parametrize("name", READERS)
def test_mutated_documents(name, tmp_path):
    read, documents, documented = READERS[name]
    assert documents
    draw = random.Random(f"documents for {name}")
    answered = 0
    for number in range(ROUNDS):
        data = mutated(draw, draw.choice(documents))
        try:
            read(data, tmp_path)
            answered += 1
        except documented:
            pass
        except Exception as error:
            raise AssertionError(f"round {number}: {type(error).__name__}: {error}\n{data!r}") from error
    assert answered, "no mutated document could be read: nothing behind the first check was tried"


@pytest.mark.parametrize("name", READERS)
def test_documents_as_they_are(name, tmp_path):
    read, documents, _ = READERS[name]
    for data in documents:
        read(data, tmp_path)
