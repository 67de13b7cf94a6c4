"""Readers against the libraries that frameworks use: same values, right places, bounded on hostile input."""

from __future__ import annotations

import json
import sys
import time
import tracemalloc

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from accumlint.config.readers import MAX_BYTES, read
from accumlint.config.tree import Listing, Scalar, Table, walk

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

keys = st.text("abcxyz_", min_size=1, max_size=6)
scalars = st.one_of(
    st.integers(-(10**9), 10**9),
    st.booleans(),
    st.none(),
    st.text(max_size=8),
    st.floats(allow_nan=False, allow_infinity=False),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=12,
)


def plain(node):
    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Listing):
        return [plain(item) for item in node.items]
    return {entry.key: plain(entry.node) for entry in node.winners()}


@settings(max_examples=150, deadline=None)
@given(values, st.sampled_from([None, 1, 4]))
def test_json_gives_what_json_gives(value, indent):
    document = read("x.json", json.dumps(value, indent=indent).encode())
    assert document.problem is None and document.laxity is None
    assert plain(document.roots[0]) == value


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(keys, values, max_size=4))
def test_json_places_point_to_the_text(value):
    text = json.dumps(value, indent=2)
    lines = text.split("\n")
    for _, entry in walk(read("x.json", text.encode()).roots[0]):
        mark = entry.key_mark
        assert json.loads(lines[mark.line - 1][mark.column - 1 : mark.end_column - 1]) == entry.key
        if isinstance(entry.node, Scalar):
            mark = entry.node.mark
            shown = json.loads(lines[mark.line - 1][mark.column - 1 : mark.end_column - 1])
            assert shown == entry.node.value


@settings(max_examples=150, deadline=None)
@given(st.text('{}[],:"\\ \n01tfnul#/*', max_size=40))
def test_json_refuses_what_json_refuses(text):
    document = read("x.json", text.encode())
    try:
        wanted = json.loads(text)
    except ValueError:
        assert document.problem is not None or document.laxity is not None
    else:
        assert document.problem is None and document.laxity is None
        assert plain(document.roots[0]) == wanted


def test_json_with_comments_and_trailing_commas_is_read_and_said_to_be_lax():
    document = read("x.json", b'{"a": [1, 2,], // two\n "b": 3,\n}')
    assert plain(document.roots[0]) == {"a": [1, 2], "b": 3}
    assert (document.laxity.line, document.laxity.column) == (1, 12)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(keys, values, max_size=4), st.booleans())
def test_yaml_gives_what_pyyaml_gives(value, flow):
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    loaded = yaml.safe_load(text)
    document = read("x.yaml", text.encode())
    assert document.problem is None
    if loaded:
        assert plain(document.roots[0]) == loaded


@pytest.mark.parametrize(
    "text",
    [
        "1",
        "0x1F",
        "1_000",
        "yes",
        "Off",
        "~",
        "null",
        "1.5",
        ".5",
        "-3",
        "010",
        "true",
        "1e3",
        "abc",
        "''",
        "'8'",
        '"8"',
    ],
)
def test_plain_scalars_are_typed_like_pyyaml(text):
    mine = read("x.yaml", f"k: {text}".encode()).roots[0].get("k").value
    theirs = yaml.safe_load(f"k: {text}")["k"]
    if text == "1e3":
        assert (mine, theirs) == (1000.0, "1e3")  # on purpose: frameworks convert it
    else:
        assert mine == theirs and type(mine) is type(theirs)


def test_yaml_merge_keys_anchors_and_duplicates():
    text = b"base: &b {k: 1, m: 2}\nrun:\n  <<: *b\n  k: 3\n  z: 4\n  z: 5\nmore:\n  <<: [*b, {m: 9, n: 7}]\n"
    root = read("x.yaml", text).roots[0]
    assert plain(root)["run"] == {"k": 3, "m": 2, "z": 5}
    assert plain(root)["more"] == {"k": 1, "m": 2, "n": 7}
    losing, winning = next(root.find("run").node.duplicates())
    assert (losing.value, winning.value, winning.mark.line) == (4, 5, 6)


def test_yaml_tags_are_never_constructed_and_documents_are_kept_apart():
    document = read(
        "x.yaml",
        b"--- !!python/object/apply:os.system [exit]\n---\na: !include other.yaml\n---\nb: !!int '3'\n",
    )
    assert len(document.roots) == 3
    assert document.roots[1].get("a").value == "other.yaml"


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        keys,
        st.one_of(st.integers(0, 99), st.booleans(), st.text("ab c#=[]", max_size=5)),
        min_size=1,
        max_size=5,
    )
)
def test_toml_places_point_to_the_text(value):
    text = "# head\n[one.two]\n" + "\n".join(
        f"{key} = {json.dumps(item)}  # note" for key, item in value.items()
    )
    root = read("x.toml", text.encode()).roots[0]
    assert plain(root) == tomllib.loads(text)
    lines = text.split("\n")
    for entry in root.find("one.two").node.entries:
        mark = entry.node.mark
        assert json.loads(lines[mark.line - 1][mark.column - 1 : mark.end_column - 1]) == entry.value
        assert lines[entry.key_mark.line - 1].startswith(entry.key)


def test_toml_positions_survive_long_strings_arrays_and_arrays_of_tables():
    text = '[a]\nx = """\nk = 1\n[b]\n"""\ny = [\n  1, # [\n  2,\n]\nk = 7\n[[t]]\nk = 1\n[[t]]\nk = 2\n[t.s]\nq = 3\n["d.e"]\n\'f\' = 4\n'
    root = read("x.toml", text.encode()).roots[0]
    assert (root.find("a.k").value, root.find("a.k").mark.line) == (7, 10)
    second = root.find("t").node.items[1]
    assert (second.get("k").value, second.get("k").mark.line) == (2, 14)
    assert second.find("s.q").mark.line == 16
    inner = root.get("d.e").node
    assert (inner.get("f").value, inner.get("f").mark.line) == (4, 18)


def test_python_configurations_are_read_without_running_them():
    text = b"import os\nK = 4\nbase = dict(a=1)\noptim_wrapper = dict(type='X', accumulative_counts=K * 2, **base, clip={'m': -1.5})\nz = os.system('x')\n"
    root = read("x.py", text).roots[0]
    assert root.find("optim_wrapper.accumulative_counts").value == 8
    assert root.find("optim_wrapper.a").value == 1
    assert root.find("optim_wrapper.clip.m").value == -1.5
    assert repr(root.get("z").value) == "<computed>"


BOMB = b"a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (i, i, b", ".join([b"*a%d" % (i - 1)] * 9)) for i in range(1, 40)
)
HOSTILE = {
    "bomb.yaml": BOMB,
    "deep.yaml": b"[" * 200_000,
    "deepmap.yaml": b"".join(b" " * i + b"k:\n" for i in range(400)),
    "deep.json": b'{"a":' * 200_000,
    "deeplist.json": b"[" * 200_000,
    "deep.toml": b"a = " + b"[" * 50_000,
    "deep.py": b"accumulative_counts = " + b"(" * 50_000,
    "unary.py": b"accumulative_counts = " + b"-" * 50_000 + b"1",
    "self.yaml": b"a: &a\n  b: *a\n  <<: *a\n",
    "nul.yaml": b"a: \x00\n",
    "latin.yaml": b"a: \xe9\xff\n",
    "utf16.yaml": "gradient_accumulation_steps: 3\noutput_dir: x\n".encode("utf-16"),
    "digits.yaml": b"a: " + b"9" * 10_000,
    "digits.json": b'{"a": ' + b"9" * 10_000 + b"}",
    "long.json": b'{"a": "' + b"x" * 500_000 + b'"}',
    "keys.yaml": b"? [a, b]\n: 1\n? {c: d}\n: 2\n",
    "empty.json": b"",
    "bom.json": b"\xef\xbb\xbf{}",
    "tabs.yaml": b"a:\n\t- b\n",
    "alias.yaml": b"a: *nowhere\n",
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_input_gives_an_answer_in_bounded_time(name):
    start = time.perf_counter()
    document = read(name, HOSTILE[name])
    nodes = sum(1 for root in document.roots for _ in walk(root))
    assert time.perf_counter() - start < 5
    assert nodes < 250_000


def test_fifty_megabytes_are_not_parsed():
    data = b'{"train_batch_size": 8, "zero_optimization": {}, "x": "' + b"y" * (50 * 1024 * 1024) + b'"}'
    tracemalloc.start()
    document = read("x.json", data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert document.problem.kind == "too-large" and str(MAX_BYTES // 1024 // 1024) in document.problem.message
    assert peak < 1024 * 1024


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.sampled_from(["a.yaml", "a.json", "a.toml", "a.py"]))
def test_no_bytes_make_a_reader_raise(data, path):
    read(path, data)


def test_tables_know_dotted_keys():
    root = read("x.yaml", b"a.b: 1\na:\n  b: 2\n  c: 3\n").roots[0]
    assert isinstance(root, Table)
    assert root.find("a.b").value == 1
    assert root.find("a.c").value == 3
    assert root.find("a.x") is None and root.find("q.w") is None
