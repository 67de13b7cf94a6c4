"""Mutated manifests: breaks texts and trees in many ways; what must come back is a receipt or a reason.

``python tests/benchmarks/receipt_mutations.py 1000000`` runs many of them and prints what came of it; the test suite runs
20,000. The same seed gives the same mutations.
"""

from __future__ import annotations

import collections
import copy
import json
import random
import resource
import sys
import time
from pathlib import Path
from typing import Any

from accumlint import receipt
from accumlint.receipt.rejects import make_record

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "manifests"

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 2**53 - 1, 2**53, -(2**60), 10**80, 0.5, -0.0, 1e308, 5e-324, "", "x",
    "0.1", "1e400", "1e-399", "NaN", "flush", "carry", "drop", "a" * 200, [], [0], [None], {}, {"first": 0, "count": 1},
    "f" * 64, [[1]], [True], "microbatch-mean", "rank-targets", "average", "sum", "\ud800", "\x00",
]  # fmt: skip
TOKENS = [
    b"NaN", b"Infinity", b"-Infinity", b"1e400", b"-0", b"-0.0", b"01", b"1e999999999", b"0." + b"3" * 100, b"true",
    b"null", b"[", b"]", b"{", b"}", b",", b":", b'"', b"\\", b"\x00", b"\xff", b"\xc3\xa9", b"\\ud800", b"[[[[[[[[[[[[[[[[[",
    b"&a ", b"*a", b"!!int ", b"---\n", b"\n", b"\t", b"<<: ", b"? ", b"- ", b"|", b">", b"%", b"@", b"#",
]  # fmt: skip


def seeds() -> list[tuple[bytes, str]]:
    """(text, syntax) of every fixture, with its whitespace taken out to keep mutations on the content."""
    made = []
    for path in sorted(FOLDER.glob("*.json")):
        made.append((json.dumps(json.loads(path.read_text())).encode(), "json"))
    made.append((FOLDER.joinpath("three-six-one.yaml").read_bytes(), "yaml"))
    return made


def places(tree: Any) -> list[tuple[Any, Any]]:
    found, stack = [], [tree]
    while stack:
        inside = stack.pop()
        for key, value in inside.items() if isinstance(inside, dict) else enumerate(inside):
            found.append((inside, key))
            if isinstance(value, (dict, list)):
                stack.append(value)
    return found


def mutate_tree(rng: random.Random, tree: Any) -> Any:
    """One to three changes somewhere in a tree: replace, delete, duplicate, swap or scale a value."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        found = places(tree)
        if not found:
            break
        inside, key = rng.choice(found)
        kind = rng.randrange(6)
        if kind == 0:
            inside[key] = copy.deepcopy(rng.choice(VALUES))
        elif kind == 1:
            del inside[key]
        elif kind == 2:
            other, other_key = rng.choice(found)
            try:
                inside[key] = copy.deepcopy(other[other_key])
            except (KeyError, IndexError):
                pass
        elif kind == 3 and isinstance(inside, list):
            inside.insert(key, copy.deepcopy(inside[key]))
        elif kind == 4 and isinstance(inside, dict):
            inside[rng.choice(("extra", "rank", "ranks", "windows", "sync", "\x00"))] = copy.deepcopy(
                rng.choice(VALUES)
            )
        elif isinstance(inside[key], (int, float)):
            inside[key] = inside[key] * rng.choice((-1, 0, 2, 1000, 1e9)) + rng.choice((0, 1))
    return tree


def mutate_text(rng: random.Random, data: bytes) -> bytes:
    """One to three changes somewhere in a text: flip, cut, insert or repeat bytes."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(made) or 1)
        kind = rng.randrange(4)
        if kind == 0 and made:
            made[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del made[place : place + rng.randrange(1, 40)]
        elif kind == 2:
            made[place:place] = rng.choice(TOKENS)
        else:
            made[place:place] = made[place : place + rng.randrange(1, 60)]
    return bytes(made)


def attempt(rng: random.Random, texts: list[tuple[bytes, str]], trees: list[Any], archive: bool) -> str:
    """The outcome of one mutated manifest: a verdict or the first reason code. Any other exception escapes.

    With ``archive`` a refusal is also made into a record, and one whose tree could be read must replay.
    """
    if rng.random() < 0.5:
        data, syntax = rng.choice(texts)
        data = mutate_text(rng, data)
    else:
        tree = mutate_tree(rng, copy.deepcopy(rng.choice(trees)))
        try:
            data, syntax = json.dumps(tree).encode("utf-8"), "json"
        except (ValueError, TypeError):  # pragma: no cover - json writes all of these values
            return "unwritable"
    tree = None
    try:
        tree = receipt.read(data, syntax)
        return receipt.build(tree).verdict
    except receipt.Rejected as rejected:
        assert rejected.problems
        if archive:
            record = make_record(data, rejected, tree)
            assert tree is None or record["document"] is not None, data
        return next(iter(rejected.counts))


def run(count: int, seed: int = 6, archive_every: int = 1) -> collections.Counter[str]:
    """Outcomes of ``count`` mutations, one of ``archive_every`` also archived."""
    rng = random.Random(seed)
    texts = seeds()
    trees = [json.loads(text) for text, syntax in texts if syntax == "json"]
    return collections.Counter(attempt(rng, texts, trees, i % archive_every == 0) for i in range(count))


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    started, done = time.perf_counter(), collections.Counter()
    for block in range(0, count, 10_000):
        done += run(min(10_000, count - block), seed=block + 6)
        if block % 100_000 == 0:
            seconds = time.perf_counter() - started
            print(f"{sum(done.values())} done in {seconds:.0f} s", flush=True)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{sum(done.values())} mutated manifests, {time.perf_counter() - started:.0f} s, peak {memory:.0f} MiB"
    )
    for name, n in done.most_common():
        print(f"{n:9d} {name}")


if __name__ == "__main__":
    main()
