"""A receipt holds, or it says why not: no byte may change, and no number may lie."""

import hashlib
import json

import pytest

from accumlint import receipt
from accumlint.receipt.binding import bind
from accumlint.receipt.building import unbound_checksum
from accumlint.receipt.canonical import canonical_bytes, domain_hash
from accumlint.receipt.verifying import HOLDS, REFUTED, UNREADABLE, UNVERIFIABLE, verify, verify_bytes

THREE = ("three-six-one", "two-ranks", "seven-carry-continued")


def test_committed_receipts_still_hold(receipts):
    """A reader of version 1 must verify every receipt that version 1 ever wrote."""
    names = sorted(path.name for path in receipts.glob("*.receipt.json"))
    assert len(names) >= 18
    for name in names:
        outcome = verify_bytes((receipts / name).read_bytes())
        assert (outcome.status, outcome.reasons) == (HOLDS, ()), name


@pytest.mark.parametrize("name", THREE)
def test_no_byte_can_be_flipped(receipts, name):
    data = (receipts / f"{name}.receipt.json").read_bytes()
    assert verify_bytes(data).status == HOLDS
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        assert verify_bytes(bytes(damaged)).status in (REFUTED, UNREADABLE), place


def test_no_byte_of_the_unbound_part_can_be_flipped_to_anything(manifest):
    """This part has no hash, so it is tried with all other 255 values of every byte."""
    data = receipt.build(
        manifest(), unbound={"created": "2025-01-31T12:00:00Z", "duration_seconds": 0.25}
    ).data
    start = data.index(b'"unbound"')
    for place in range(start, len(data)):
        for mask in range(1, 256):
            damaged = bytearray(data)
            damaged[place] ^= mask
            assert verify_bytes(bytes(damaged)).status in (REFUTED, UNREADABLE), (place, mask)


@pytest.mark.parametrize("name", THREE)
def test_no_byte_can_be_dropped_or_doubled(receipts, name):
    data = (receipts / f"{name}.receipt.json").read_bytes()
    for place in range(0, len(data), 7):
        assert verify_bytes(data[:place] + data[place + 1 :]).status != HOLDS
        doubled = data[: place + 1] + data[place : place + 1] + data[place + 1 :]
        assert verify_bytes(doubled).status != HOLDS
    assert verify_bytes(data + b"\n").status != HOLDS
    assert verify_bytes(data[:-1]).status != HOLDS


def rehash(tree):
    """What a liar would do: make all hashes fit the altered parts."""
    hashes = tree["hashes"]
    hashes["manifest_sha256"] = domain_hash("manifest", canonical_bytes(tree["manifest"]))
    hashes["plan_sha256"] = domain_hash("plan", canonical_bytes(tree["plan"]))
    tree["result"]["manifest_sha256"] = hashes["manifest_sha256"]
    tree["result"]["plan_sha256"] = hashes["plan_sha256"]
    hashes["result_sha256"] = domain_hash("result", canonical_bytes(tree["result"]))
    bound = {k: v for k, v in hashes.items() if k != "receipt_sha256"}
    head = {"schema": tree["schema"], "tool": tree["tool"], **bound}
    hashes["receipt_sha256"] = domain_hash("receipt", canonical_bytes(head))
    return canonical_bytes(tree) + b"\n"


def test_rehashing_alone_changes_nothing(receipts):
    data = (receipts / "three-six-one.receipt.json").read_bytes()
    assert rehash(json.loads(data)) == data


def leaves(value, path=()):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


@pytest.mark.parametrize("part", ["plan", "result"])
def test_every_derived_value_is_derived_again(receipts, part):
    """Altering any single value of plan or result is refuted even when all hashes are made to fit."""
    data = (receipts / "three-six-one.receipt.json").read_bytes()
    embedded = {("manifest_sha256",), ("plan_sha256",)}
    tried = 0
    for path, value in leaves(json.loads(data)[part]):
        if path in embedded:
            continue
        tree = json.loads(data)
        inside = tree[part]
        for key in path[:-1]:
            inside = inside[key]
        other = {bool: lambda: not value, int: lambda: value + 1, str: lambda: value + "1"}
        inside[path[-1]] = other.get(type(value), lambda: 1)()
        outcome = verify_bytes(rehash(tree))
        assert outcome.status == REFUTED, path
        assert any(f"[{part}-differs]" in reason for reason in outcome.reasons), (path, outcome.reasons)
        tried += 1
    assert tried > 40


def test_reasons_lead_to_the_place(receipts):
    tree = json.loads((receipts / "three-six-one.receipt.json").read_bytes())
    tree["result"]["windows"][0]["reference"]["loss"]["rational"] = "17/25"
    assert verify_bytes(rehash(tree)).reasons == (
        "result.windows[0].reference.loss.rational: not what the rows of the manifest give [result-differs]",
    )


def test_a_verdict_cannot_be_painted_over(receipts):
    tree = json.loads((receipts / "mean-of-means.receipt.json").read_bytes())
    tree["result"]["verdict"] = "PASS"
    tree["result"]["verdicts"][0]["verdict"] = "PASS"
    assert verify_bytes(rehash(tree)).status == REFUTED


def test_a_manifest_inside_is_validated_as_strictly(receipts):
    tree = json.loads((receipts / "three-six-one.receipt.json").read_bytes())
    tree["manifest"]["ranks"][0]["valid_targets"] = [0, 0, 0]
    outcome = verify_bytes(rehash(tree))
    assert outcome.status == REFUTED
    assert any("window-without-targets" in reason for reason in outcome.reasons)


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", b"\xff", b"{" * 100, b'{"schema": "accumlint/receipt/v1"}', b"a: 1", b"NaN"],
)
def test_what_is_no_receipt_is_unreadable(data):
    assert verify_bytes(data).status == UNREADABLE


def test_another_major_version_is_unreadable(receipts):
    data = (receipts / "three-six-one.receipt.json").read_bytes()
    outcome = verify_bytes(data.replace(b"accumlint/receipt/v1", b"accumlint/receipt/v2"))
    assert (outcome.status, "schema-unknown" in outcome.reasons[0]) == (UNREADABLE, True)


def test_layout_is_part_of_the_receipt(receipts):
    data = (receipts / "three-six-one.receipt.json").read_bytes()
    assert verify_bytes(json.dumps(json.loads(data), sort_keys=True).encode()).status == REFUTED
    assert verify_bytes(json.dumps(json.loads(data), indent=1).encode()).status == REFUTED


def test_two_days_give_the_same_hashes(manifest):
    one = receipt.build(manifest(), unbound={"created": "2025-01-31T12:00:00Z"})
    two = receipt.build(
        manifest(),
        unbound={
            "created": "2026-06-01T00:00:00Z",
            "duration_seconds": 1.5,
            "host": {"system": "Linux", "machine": "arm64", "python": "3.12.1", "processors": 4},
        },
    )
    assert one.hashes == two.hashes
    assert one.data != two.data
    assert verify_bytes(one.data).status == verify_bytes(two.data).status == HOLDS


def test_the_unbound_part_may_be_replaced_but_not_damaged(manifest):
    tree = json.loads(receipt.build(manifest(), unbound={"created": "2025-01-31T12:00:00Z"}).data)
    tree["unbound"]["created"] = "1999-01-31T12:00:00Z"
    damaged = verify_bytes(canonical_bytes(tree) + b"\n")
    assert damaged.status == REFUTED and "unbound-damaged" in damaged.reasons[0]
    tree["unbound"]["crc32"] = unbound_checksum({"created": "1999-01-31T12:00:00Z"})
    assert verify_bytes(canonical_bytes(tree) + b"\n").status == HOLDS


def test_a_newer_tool_verifies_what_an_older_one_wrote(receipts, monkeypatch):
    monkeypatch.setattr("accumlint.receipt.building.__version__", "7.0.0")
    data = (receipts / "three-six-one.receipt.json").read_bytes()
    assert verify_bytes(data).status == HOLDS


def test_bound_files(manifest, tmp_path):
    (tmp_path / "src").mkdir()
    script, config = tmp_path / "src" / "train.py", tmp_path / "ds.json"
    script.write_text("print(1)\n")
    config.write_text("{}\n")
    files = [bind(script, "script", tmp_path), bind(config, "configuration", tmp_path)]
    data = receipt.build(manifest(), bound_files=files).data
    assert hashlib.sha256(b"print(1)\n").hexdigest().encode() in data
    assert b"train" not in data and b"ds.json" not in data
    assert verify(data, root=tmp_path).status == HOLDS
    script.write_text("print(2)\n")
    outcome = verify(data, root=tmp_path)
    assert outcome.status == REFUTED and "src/train.py changed" in outcome.reasons[0]
    script.unlink()
    outcome = verify(data, root=tmp_path)
    assert outcome.status == UNVERIFIABLE and "bound-file-missing" in outcome.reasons[0]
    assert verify(data).status == UNVERIFIABLE  # no root, nothing to look at


def test_a_file_outside_of_the_root_is_not_bound(tmp_path):
    from accumlint.receipt.binding import BindingError

    (tmp_path / "inside").mkdir()
    (tmp_path / "x.py").write_text("")
    with pytest.raises(BindingError):
        bind(tmp_path / "x.py", "script", tmp_path / "inside")
    with pytest.raises(BindingError):
        bind(tmp_path / "none.py", "script", tmp_path)
