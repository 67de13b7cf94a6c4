"""Refusals are kept, redacted, and refused again when replayed."""

import json
from pathlib import Path

import pytest

from accumlint import receipt
from accumlint.receipt import rejects
from accumlint.receipt.building import previous_segment

REJECTED = sorted((Path(__file__).resolve().parents[2] / "fixtures/manifests/rejected").iterdir())
TEXT_ONLY = {
    "encoding", "syntax", "too-deep", "yaml-alias", "yaml-documents", "yaml-tag",
}  # fmt: skip


def record_of(path, previous=None):
    data = path.read_bytes()
    tree = None
    try:
        tree = receipt.read(data, "json" if path.suffix == ".json" else "yaml")
        receipt.build(tree, previous=previous)
    except receipt.Rejected as rejected:
        return rejects.make_record(data, rejected, tree, previous)
    raise AssertionError("accepted")


@pytest.mark.parametrize(
    "path", [p for p in REJECTED if p.stem not in ("chain-unproven",)], ids=lambda p: p.stem
)
def test_every_refusal_replays(path, tmp_path, manifest):
    previous = None
    if path.stem in ("chain-broken", "chain-incompatible"):
        previous = previous_segment(receipt.build(manifest("seven-carry")))
    elif path.stem == "chain-nothing-pending":
        previous = previous_segment(receipt.build(manifest("seven-flush")))
    record = record_of(path, previous)
    stored = rejects.archive(tmp_path / "archive", record)
    loaded = rejects.load_record(stored)
    assert loaded == record
    replay = rejects.replay(stored.stem, loaded)
    if path.stem in TEXT_ONLY:
        assert (record["document"], replay.outcome) == (None, "not-replayable")
    else:
        assert (replay.outcome, path.stem in replay.codes) == ("same", True)


def test_the_same_refusal_is_one_record(tmp_path):
    path = next(p for p in REJECTED if p.stem == "inconsistent-k")
    assert rejects.archive(tmp_path, record_of(path)) == rejects.archive(tmp_path, record_of(path))
    assert len(list(tmp_path.iterdir())) == 1


def test_ids_become_synthetic_and_stay_equal(edited):
    tree = edited("three-six-one", ("ranks", 0, "microbatch_ids"), ["ann", "bob", "ann"])
    with pytest.raises(receipt.Rejected) as caught:
        receipt.build(tree)
    record = rejects.make_record(b"", caught.value, tree)
    assert record["document"]["ranks"][0]["microbatch_ids"] == ["id-1", "id-2", "id-1"]


def test_an_altered_record_is_noticed(tmp_path):
    stored = rejects.archive(tmp_path, record_of(REJECTED[0]))
    stored.write_bytes(stored.read_bytes().replace(b'"bytes":', b'"bytes": '))
    with pytest.raises(rejects.ArchiveError):
        rejects.load_record(stored)


def test_a_huge_refusal_keeps_its_reasons_only(edited):
    tree = edited("three-six-one", ("ranks", 0, "valid_targets"), [3] * 700_000)
    with pytest.raises(receipt.Rejected) as caught:
        receipt.build(tree)
    record = rejects.make_record(b"", caught.value, tree)
    assert record["document"] is None and record["counts"] == {"column-length": 1}


def test_an_archive_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(rejects.ArchiveError):
        rejects.archive(tmp_path / "file" / "archive", record_of(REJECTED[0]))


def test_a_rule_that_has_become_milder_is_noticed(tmp_path):
    path = next(p for p in REJECTED if p.stem == "inconsistent-k")
    record = json.loads(json.dumps(record_of(path)))
    record["document"]["ranks"][1]["accumulation_steps"] = 3
    assert rejects.replay("x", record).outcome == "accepted"
