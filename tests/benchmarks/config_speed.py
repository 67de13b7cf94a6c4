"""What the configuration auditor costs on files that are none of its business.

    python tests/benchmarks/config_speed.py [--files 5000] [--folder FOLDER]

Writes YAML and JSON files of everyday shapes (manifests, lock files, records, service definitions; one in ten
with words like "batch" or "accumulate" in them) into a temporary folder, or takes those below FOLDER, and
measures a run of reading alone, then reading and auditing. Prints milliseconds per file and the ratio.
The bar is 2 ms per file above reading.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

import yaml

from accumlint.config import SourceFile, audit, may_be_configuration

WORDS = ["name", "image", "ports", "env", "volumes", "replicas", "metadata", "labels", "spec", "version", "license", "scripts", "steps", "uses", "with", "path", "branch", "region"]
TRAINING_WORDS = ["batch", "batch_size", "trainer", "strategy", "devices", "accumulate", "accumulation", "model", "optimizer", "stage", "global_step"]


def record(rng: random.Random, words: list[str], depth: int = 0) -> object:
    """A nested value of the kind that fills configuration files."""
    if depth == 3 or rng.random() < 0.4:
        return rng.choice(
            [rng.randint(0, 9999), rng.random(), True, None, f"{rng.choice(words)}-{rng.randint(0, 99)}"]
        )
    if rng.random() < 0.3:
        return [record(rng, words, depth + 1) for _ in range(rng.randint(1, 6))]
    return {
        f"{rng.choice(words)}{rng.randint(0, 9) or ''}": record(rng, words, depth + 1)
        for _ in range(rng.randint(2, 9))
    }


def write(folder: Path, count: int) -> None:
    rng = random.Random(7)
    for number in range(count):
        words = WORDS + (TRAINING_WORDS if number % 10 == 0 else [])
        data = {f"{rng.choice(words)}{i}": record(rng, words) for i in range(rng.randint(3, 30))}
        if number % 2:
            (folder / f"{number}.json").write_text(json.dumps(data, indent=rng.choice([None, 2])))
        else:
            (folder / f"{number}.yaml").write_text(yaml.safe_dump(data))


def measure(paths: list[Path]) -> tuple[float, float, int, int]:
    """Seconds for reading, seconds for reading and auditing, findings, and files that the sieve let through."""
    for path in paths:
        path.read_bytes()  # warm the page cache: both runs shall find the same
    start = time.perf_counter()
    for path in paths:
        path.read_bytes()
    reading = time.perf_counter() - start
    start = time.perf_counter()
    files = [SourceFile(path.as_posix(), path.read_bytes()) for path in paths]
    wanted = [file for file in files if may_be_configuration(file.path, file.data)]
    findings = audit(wanted)
    return reading, time.perf_counter() - start, len(findings), len(wanted)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    audit(
        [SourceFile("warm.json", b'{"train_batch_size": 1, "zero_optimization": {}}')]
    )  # loads the dialects
    with tempfile.TemporaryDirectory() as made:
        folder = arguments.folder or Path(made)
        if arguments.folder is None:
            write(folder, arguments.files)
        paths = sorted(
            path
            for suffix in ("*.json", "*.yaml", "*.yml")
            for path in folder.rglob(suffix)
            if path.is_file()
        )
        reading, auditing, findings, wanted = measure(paths)
        size = sum(path.stat().st_size for path in paths)
    count = max(len(paths), 1)
    print(f"{len(paths)} files, {size / 1e6:.1f} MB, {wanted} past the sieve, {findings} findings")
    print(f"reading            {1000 * reading / count:.3f} ms per file")
    print(
        f"reading and audit  {1000 * auditing / count:.3f} ms per file, {auditing / reading:.2f} times reading"
    )
    print(f"added              {1000 * (auditing - reading) / count:.3f} ms per file (bar: 2 ms)")


if __name__ == "__main__":
    main()
