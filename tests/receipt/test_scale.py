"""Mutations and growth, in sizes for every run; the full ones are in ``tests/benchmarks/receipt_*.py``."""

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accumlint import receipt

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"


def load(name):
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_20_000_mutated_manifests_give_a_receipt_or_a_reason():
    outcomes = load("receipt_mutations").run(20_000, archive_every=8)
    assert sum(outcomes.values()) == 20_000
    assert len(outcomes) > 20  # they break in many ways, and some are still manifests
    assert outcomes["PASS"] > 100 and outcomes["FAIL"] > 100


def test_building_grows_linearly():
    make = load("receipt_growth").manifest
    seconds = []
    for ranks in (1, 16):
        text = json.dumps(make(ranks, 1_000, 8)).encode()
        best = 9e9
        for _ in range(2):
            started = time.process_time()
            receipt.build(receipt.read(text))
            best = min(best, time.process_time() - started)
        seconds.append(best)
    assert seconds[1] < 16 * seconds[0] * 2, seconds


@pytest.mark.parametrize("sizes", [(500, 8_000)])
def test_one_window_of_ever_different_counts_grows_linearly(sizes):
    make = load("receipt_growth").manifest
    seconds = []
    for size in sizes:
        tree = make(1, size, size, True)
        started = time.process_time()
        receipt.build(tree)
        seconds.append(time.process_time() - started)
    assert seconds[1] < 16 * seconds[0] * 4 + 0.05, seconds


def test_64_ranks_stay_small(tmp_path):
    """64 ranks x 1,000 microbatches, a tenth of the benchmark, in a process of its own."""
    growth = load("receipt_growth")
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(growth.manifest(64, 1_000, 8)))
    run = subprocess.run(
        [sys.executable, growth.__file__, "--child", str(path), "0"],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(run.stdout)
    assert measured["peak"] < 100
    assert measured["build"] < 10


def test_hostile_documents_cost_their_size_and_no_more(manifest):
    """Things that could be slow per item: unknown keys, problems, ids, YAML scalars."""
    tree = manifest()
    rank = tree["ranks"][0]
    documents = {
        "unknown keys": json.dumps({**tree, **{f"unknown{i}": 0 for i in range(100_000)}}).encode(),
        "wrong entries": json.dumps({**tree, "ranks": [{**rank, "valid_targets": ["x"] * 200_000}]}).encode(),
        "equal ids": json.dumps({**tree, "ranks": [{**rank, "microbatch_ids": ["x"] * 100_000}]}).encode(),
        "many ranks": json.dumps({**tree, "ranks": [rank] * 2_000}).encode(),
        "gaps": json.dumps({**tree, "ranks": [{**rank, "windows": list(range(0, 10**6, 10))}]}).encode(),
        "yaml": b"a: [" + b"1," * 300_000 + b"]",
    }
    for name, data in documents.items():
        started = time.process_time()
        with pytest.raises(receipt.Rejected):
            receipt.build(receipt.read(data))
        assert time.process_time() - started < 10, name


def test_clocks_that_are_all_wrong_are_counted_not_collected(manifest):
    count = 2_000
    tree = manifest(accumulation_steps=1)
    rank = tree["ranks"][0]
    for key in ("microbatch_ids", "sync", "decisions"):
        del rank[key]
    rank.update(
        accumulation_steps=1,
        windows=list(range(count)),
        valid_targets=[2] * count,
        loss_numerators=[1] * count,
        gradient_numerators=[[1] * count],
        clocks={name: [5] * count for name in rank["clocks"]},
    )
    made = receipt.build(tree)
    clocks = made.result["clocks"]
    assert (len(clocks["deviations"]), clocks["deviations_counted"]) == (20, 9 * count)


def test_mutated_receipts_never_hold_and_never_break_the_verifier(receipts):
    import random

    mutations = load("receipt_mutations")
    rng = random.Random(9)
    sources = [path.read_bytes() for path in sorted(receipts.glob("*.receipt.json"))]
    statuses = set()
    for turn in range(3_000):
        source = rng.choice(sources)
        if turn % 2:
            data = mutations.mutate_text(rng, source)
        else:
            tree = mutations.mutate_tree(rng, json.loads(source))
            data = json.dumps(tree, sort_keys=True, separators=(",", ":")).encode("utf-8") + b"\n"
        outcome = receipt.verify_bytes(data)
        assert outcome.status in (1, 2) or data == source, turn
        statuses.add(outcome.status)
    assert {1, 2} <= statuses
