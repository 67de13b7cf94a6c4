"""What recording costs: CPU time of a training loop under the recorder, as ratios to the bare loop.

    python tests/benchmarks/probe_overhead.py [--width 512] [--layers 6] [--microbatches 18]

Imports are outside of what is timed. The model is a decoder of 6 layers of width 512 on 4 rows of 128 tokens, K = 3. Each
kind is run several times, alternating, and its best time counts.
"""

from __future__ import annotations

import argparse
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F

from accumlint.probe.session import recording

K = 3


def loop(width: int, layers: int, microbatches: int, rows: int = 4, length: int = 128, vocabulary: int = 512) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(vocabulary, width), nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), nn.Linear(width, vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = []
    for number in range(microbatches):
        labels = torch.randint(0, vocabulary, (rows, length))
        labels.view(-1)[100 + 70 * (number % 5) :] = -100
        data.append((torch.randint(0, vocabulary, (rows, length)), labels))
    for i, (x, y) in enumerate(data):
        count = sum(int((t != -100).sum()) for _, t in data[i - i % K : i - i % K + K])
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum") / count
        loss.backward()
        if (i + 1) % K == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def timed(kind: str, *shape: int) -> float:
    if kind == "bare":
        started = time.process_time()
        loop(*shape)
        return time.process_time() - started
    options = {"weights only": (0, False), "integrity": (0, True), "all judgements": (2, True)}[kind]
    with recording(K, replay=options[0], gradients=options[1]) as recorded:
        started = time.process_time()
        loop(*shape)
        took = time.process_time() - started
    assert recorded.report().verdict in ("PASS",), recorded.report().judgements
    return took


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--microbatches", type=int, default=18)
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    shape = (arguments.width, arguments.layers, arguments.microbatches)
    kinds = ("bare", "weights only", "integrity", "all judgements")
    best = dict.fromkeys(kinds, float("inf"))
    timed("bare", 64, 2, 3)  # warm up
    for _ in range(arguments.repeat):
        for kind in kinds:
            best[kind] = min(best[kind], timed(kind, *shape))
    for kind in kinds:
        print(f"{kind:<15} {best[kind]:7.2f} s   × {best[kind] / best['bare']:.2f}")
    print(f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
