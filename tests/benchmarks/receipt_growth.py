"""Growth of building and verifying a receipt from 1x to 16x, up to 64 ranks x 10,000 microbatches.

``python tests/benchmarks/receipt_growth.py [K]`` builds in a child process for each size, so that the peak
memory printed is that of one build. A second table grows one window instead, in which every microbatch has
another target count: the common denominator of the mean of means is what could grow quadratically there.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def manifest(ranks: int, microbatches: int, steps: int, distinct: bool = False) -> dict[str, Any]:
    """A manifest with one gradient component and synchronisation flags; ``distinct``: no count appears twice."""
    from accumlint.receipt.recording import ManifestBuilder

    rng = random.Random(ranks * microbatches)
    head = ManifestBuilder(
        {"accumulation_steps": steps, "world_size": ranks},
        origin="synthetic",
        random_state={"policy": "fixed-seed", "seed": 1, "boundary_sha256": None},
    ).document()
    sync = [i % steps == steps - 1 or i == microbatches - 1 for i in range(microbatches)]
    made = []
    for rank in range(ranks):
        valid = [
            10**6 + rank * microbatches + i if distinct else rng.randrange(1, 4096)
            for i in range(microbatches)
        ]
        made.append(
            {
                "rank": rank,
                "accumulation_steps": steps,
                "tail_policy": "flush",
                "windows": [i // steps for i in range(microbatches)],
                "valid_targets": valid,
                "loss_numerators": [round(n * rng.uniform(1, 4), 4) for n in valid],
                "gradient_numerators": [[round(rng.gauss(0, 1), 6) for _ in valid]],
                "sync": {"forward": sync, "backward": sync},
            }
        )
    return {**head, "ranks": made}


def peak_mib() -> float:
    """Peak resident memory of this process; ``ru_maxrss`` would still show that of the parent before exec."""
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024
    except (OSError, IndexError):  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(path: str, verify: bool) -> dict[str, float]:
    """CPU seconds and peak MiB of building (and verifying) the manifest in a file; runs in a fresh process."""
    from accumlint import receipt

    started = time.process_time()
    tree = receipt.read(Path(path).read_bytes())
    read = time.process_time()
    data = receipt.build(tree).data
    built = time.process_time()
    del tree
    peak = peak_mib()
    if verify:
        assert receipt.verify_bytes(data).status == 0
    return {
        "read": read - started,
        "build": built - read,
        "verify": time.process_time() - built,
        "peak": peak,
        "receipt": len(data) / 1e6,
    }


def child(document: dict[str, Any], verify: bool = True) -> dict[str, float]:
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        del document
        command = [sys.executable, __file__, "--child", file.name, "1" if verify else "0"]
        return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def table(title: str, sizes: list[tuple[int, int, int, bool]]) -> None:
    print(title)
    print(
        f"{'ranks':>6} {'each':>6} {'K':>6} {'read s':>8} {'build s':>8} {'verify s':>9} {'peak MiB':>9} {'MB':>6}"
    )
    first = None
    for ranks, microbatches, steps, distinct in sizes:
        m = child(manifest(ranks, microbatches, steps, distinct))
        first = first or m["build"]
        print(
            f"{ranks:6d} {microbatches:6d} {steps:6d} {m['read']:8.2f} {m['build']:8.2f} {m['verify']:9.2f}"
            f" {m['peak']:9.0f} {m['receipt']:6.1f}   build x{m['build'] / first:.1f}",
            flush=True,
        )


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3] == "1")))
        return
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    table("more ranks", [(ranks, 10_000, steps, False) for ranks in (4, 8, 16, 32, 64)])
    table(
        "one window, all counts different", [(1, n, n, True) for n in (2_500, 5_000, 10_000, 20_000, 40_000)]
    )


if __name__ == "__main__":
    main()
