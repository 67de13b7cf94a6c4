"""Places that are computed statement by statement are those that libcst gives for the whole file."""

from pathlib import Path

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

from accumlint.static import positions as module_under_test
from accumlint.static.lowering import lower_module
from accumlint.static.positions import Place, Positions, parents, ranges

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted([*ROOT.glob("fixtures/scripts/**/*.py"), *ROOT.glob("accumlint/static/*.py"), *ROOT.glob("tests/static/*.py")])

AWKWARD = {
    "decorators": "# head\n\n@first(\n    1)\n# between\n\n@second\nclass A(B):\n    @p\n    def f(self): return 1\n",
    "semicolons": "a = 1; b = f(2); c\nd = g(); e\n",
    "no newline": "def f():\n    return g()",
    "docstring": "'''one\ntwo'''\nimport a\n(b\n .c())\n",
    "carriage returns": "a = f()\r\rdef g():\r    h()\r",
    "mixed line ends": "a = f()\r\n\r\ndef g():\r\n    h()\nk()\n",
    "tabs and form feeds": "def f():\n\tg()\n\f\n\th()\n\f\nk()\n",
    "only comments": "# a\n# b\n",
    "continuation": "a = f() + \\\n    g()\nif a and \\\n        h():\n    k()\n",
    "strings": "x = '''\n\n''' + f()\ny = f\"{g()}\"\nz = h()\n",
    "else": "if a:\n    f()\nelif b:\n    g()\nelse:\n    h()\nfor x in y:\n    k()\nelse:\n    m()\nn()\n",
    "async": "async def f():\n    async with a as b:\n        await g()\n    async for x in y:\n        h()\n",
}


def expected(tree):
    ranges = MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)
    return {
        node: Place(r.start.line, r.start.column, r.end.line, r.end.column) for node, r in ranges.items()
    }


def check(source: bytes, alone: bool = True):
    tree = cst.parse_module(source)
    module = lower_module(tree, "x.py", "x")
    found, right = Positions(tree, source, module.starts), expected(tree)
    for site, node in enumerate(module.sites):
        assert found.of(site, node) == right.get(node)
    if alone:
        assert -1 not in found._known  # the whole file was never positioned


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_places_in_real_files(path):
    check(path.read_bytes())


@pytest.mark.parametrize("source", AWKWARD.values(), ids=AWKWARD)
def test_places_in_awkward_files(source):
    check(source.encode())
    check(b"\xef\xbb\xbf" + source.encode())


def test_what_the_running_python_cannot_parse_is_positioned_as_a_whole(monkeypatch):
    def refuse(source):
        raise SyntaxError

    monkeypatch.setattr(module_under_test.ast, "parse", refuse)
    check(b"a = f()\n\ndef g():\n    h()\n", alone=False)


def test_another_libcst_is_positioned_as_a_whole(monkeypatch):
    monkeypatch.setattr(module_under_test, "written", lambda tree, statement: None)
    check(b"a = f()\n\ndef g():\n    h()\n", alone=False)


@pytest.mark.parametrize("source", [*AWKWARD.values(), *(path.read_text(encoding="utf-8") for path in FILES[:6])])
def test_whole_files_are_positioned_and_have_parents_as_libcst_says(source):
    tree = cst.parse_module(source)
    wrapper = MetadataWrapper(tree, unsafe_skip_copy=True)
    assert dict(ranges(tree)) == dict(wrapper.resolve(PositionProvider))
    assert parents(tree) == dict(wrapper.resolve(ParentNodeProvider))
