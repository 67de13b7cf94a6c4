"""A secret planted in any text of a manifest appears in no output, whether the manifest is accepted or not."""

import contextlib
import io
import json

import pytest

from accumlint import receipt
from accumlint.cli import main as cli
from accumlint.receipt import export, showing
from accumlint.receipt.formats import MANIFEST
from accumlint.receipt.shape import ListOf, ListOrRecord, Nullable, Record

SECRET = "Xq7canaryZz"


def text_places(shape, path=()):
    """Every place of the format, as a path with 0 for list entries."""
    if isinstance(shape, Nullable):
        yield from text_places(shape.inner, path)
    elif isinstance(shape, ListOrRecord):
        yield from text_places(shape.listed, path)
        yield from text_places(shape.record, path)
    elif isinstance(shape, Record):
        yield path
        for key, field in shape.fields.items():
            yield from text_places(field.shape, (*path, key))
    elif isinstance(shape, ListOf):
        yield path
        yield from text_places(shape.item, (*path, 0))
    else:
        yield path


def plant(tree, path, value):
    inside = tree
    for key, following in zip(path[:-1], path[1:]):
        if isinstance(inside, dict):
            if not isinstance(inside.get(key), (dict, list)):
                inside[key] = [] if following == 0 else {}
            inside = inside[key]
        else:
            if not inside or not isinstance(inside[0], (dict, list)):
                inside[:] = [[] if following == 0 else {}]
            inside = inside[0]
    if isinstance(inside, list):
        inside[:1] = [value]
    else:
        inside[path[-1]] = value


def run(arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(arguments)
    return code, out.getvalue() + err.getvalue()


PLACES = sorted({path for path in text_places(MANIFEST) if path}, key=str)


def test_there_are_places_to_plant():
    assert len(PLACES) > 100


def test_secrets_appear_nowhere(manifest, tmp_path, monkeypatch):
    """Values and keys, in every place of the format, in JSON; outputs: messages, receipt, archive."""
    monkeypatch.chdir(tmp_path)
    refused = 0
    for number, path in enumerate(PLACES):
        for value in (SECRET, {SECRET: SECRET}, [SECRET, {"rank": SECRET}]):
            tree = manifest("two-ranks")
            plant(tree, path, value)
            (tmp_path / "m.json").write_text(json.dumps(tree))
            code, said = run(
                ["receipt", "build", "m.json", "-o", f"{number}.receipt.json", "--archive", "archive"]
            )
            assert SECRET not in said, path
            refused += code == 2
    assert refused > 300
    for file in tmp_path.rglob("*"):
        if file.is_file() and file.name != "m.json":
            assert SECRET.encode() not in file.read_bytes(), file


def test_accepted_ids_appear_nowhere(manifest, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tree = manifest()
    tree["ranks"][0]["microbatch_ids"] = [SECRET, f"{SECRET}-2", f"/home/{SECRET}/3"]
    made = receipt.build(tree)
    outputs = [
        made.data.decode(),
        json.dumps(made.result),
        showing.as_text(made),
        showing.as_svg(made),
        showing.as_svg(made, naive=True),
        showing.as_html(made),
        export.junit(made),
        export.in_toto(made).decode(),
        repr(made),
    ]
    assert all(SECRET not in output for output in outputs)
    assert all("r0-m1" in output for output in outputs[2:6])


@pytest.mark.parametrize(
    "text",
    [
        f"{SECRET}: 1",
        f"a: &{SECRET} 1",
        f"a: *{SECRET}",
        f"a: !{SECRET} 1",
        f"a: [{SECRET}",
        f"# {SECRET}\na: 'x",
        f"%{SECRET}\n---\na: 1",
        f"? {SECRET} : [",
        f"{SECRET}: {SECRET}\n{SECRET}: {SECRET}",
        f'{{"{SECRET}": "{SECRET}",}}',
        f'{{"{SECRET}": 1, "{SECRET}": 2}}',
        f'{{"a": {SECRET}}}',
        f'["{SECRET}\x01"]',
        SECRET,
    ],
)
@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_secrets_in_unreadable_texts_appear_nowhere(text, suffix, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"m.{suffix}").write_text(text)
    code, said = run(["receipt", "build", f"m.{suffix}"])
    assert code == 2 and SECRET not in said
    for name in ("list", "replay"):
        assert SECRET not in run(["rejects", name])[1]
    for file in (tmp_path / ".accumlint").rglob("*.json"):
        assert SECRET.encode() not in file.read_bytes()


@pytest.mark.parametrize("part", ["tool", "manifest", "plan", "result", "unbound", "hashes", "extra"])
def test_a_forged_receipt_shows_no_secret(part, receipts, tmp_path):
    tree = json.loads((receipts / "three-six-one.receipt.json").read_bytes())
    for value in (SECRET, {SECRET: SECRET}, {**tree.get(part, {}), SECRET: SECRET}):
        (tmp_path / "r.json").write_text(
            json.dumps({**tree, part: value}, sort_keys=True, separators=(",", ":")) + "\n"
        )
        for action in (["verify"], ["show"], ["verify", "--format", "json"], ["show", "--format", "html"]):
            code, said = run(["receipt", action[0], str(tmp_path / "r.json"), *action[1:]])
            assert code in (1, 2) and SECRET not in said
