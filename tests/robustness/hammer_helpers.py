"""Broken input by the thousand: files that exist, and files that were made by damaging ours. The same seed, the same damage."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from accumlint import knowledge, runner
from accumlint.config import SourceFile, audit

ROOT = Path(__file__).resolve().parents[2]

TOKENS = [
    b"\x00", b"\xff", b"\xc3\xa9", b"\xef\xbb\xbf", b"\r", b"\x0c", b"\t", b"    ", b"\\\n", b"'", b'"""', b"(", b")", b"[", b"{", b":", b"=",
    b"#", b"# accumlint: ignore[ACC202]", b"# coding: utf-7\n", b"*", b"**", b"@", b"->", b":=", b";", b"...", b"0", b"1e999", b"0x", b"1" * 400,
    b"lambda: ", b"yield ", b"await ", b"async ", b"return ", b"del ", b"global step\n", b"raise\n", b"break\n", b"continue\n", b"pass\n",
    b"if True:\n", b"else:\n", b"while True:\n", b"for step in range(10**9):\n", b"try:\n", b"finally:\n", b"with a as b:\n", b"match x:\n",
    b"loss.backward()\n", b"optimizer.step()\n", b"optimizer.zero_grad()\n", b"step += 1\n", b"loss = loss / loss\n", b"model = model(model)\n",
    b"import train\n", b"from . import *\n", b"class A(A): pass\n", b"def f(f=f): return f(f)\n", b"f'{x!r:{y}}'", b"not " * 200, b"-" * 300,
    b"(" * 90, b"[" * 150, b"x.", b".x" * 300, b"a if b else " * 100,
]  # fmt: skip
CONFIGURATION_TOKENS = [
    b"\x00", b"\xff", b"&a ", b"*a", b"!!python/object:os.system ", b"---\n", b"<<: *a\n", b"? ", b"- ", b"|\n", b">\n", b"{", b"}", b"[", b"]", b",", b":",
    b"\t", b"null", b"true", b"-1", b"0", b"1e400", b"NaN", b"9" * 400, b'"', b"'", b"${oc.env:X}", b"${a.b}", b"${" * 50, b"gradient_accumulation_steps: 0\n",
    b'"train_batch_size": -3,', b"[" * 500, b"{\"a\":" * 200, b"# accumlint: ignore[]\n", b"$(", b"`", b"<<EOF\n", b"\\\n", b"torchrun --nproc_per_node=$N x.py ",
]  # fmt: skip


def damaged(rng: random.Random, data: bytes, tokens: Sequence[bytes], other: bytes) -> bytes:
    """One to four changes: bytes flipped, cut, inserted or repeated; lines dropped, doubled, moved in or new."""
    made = data
    for _ in range(rng.choice((1, 1, 2, 4))):
        kind = rng.choice((0, 1, 2, 3, 4, 5, 5, 5, 6, 6, 6, 7, 8, 8, 9, 9, 9, 9, 9))
        place = rng.randrange(len(made) + 1)
        if kind == 0 and made:
            flipped = bytearray(made)
            flipped[place % len(flipped)] ^= 1 << rng.randrange(8)
            made = bytes(flipped)
        elif kind == 1:
            made = made[:place] + made[place + rng.randrange(1, 60) :]
        elif kind in (2, 3):
            made = made[:place] + rng.choice(tokens) + made[place:]
        elif kind == 4:
            made = made[:place] + made[place : place + rng.randrange(1, 80)] * rng.choice((2, 3, 40)) + made[place:]
        else:
            lines = made.split(b"\n")
            row = rng.randrange(len(lines))
            if kind == 5:
                del lines[row : row + rng.choice((1, 1, 3))]
            elif kind == 6:
                lines.insert(row, lines[rng.randrange(len(lines))])
            elif kind == 9:  # a statement where statements stand
                indent = lines[row][: len(lines[row]) - len(lines[row].lstrip())]
                lines.insert(row, indent + rng.choice(tokens).strip(b"\n"))
            elif kind == 7:
                lines[row] = rng.choice((b"    ", b"\t", b"")) + lines[row].lstrip()
            else:
                taken = other.split(b"\n")
                first = rng.randrange(len(taken))
                lines[row:row] = taken[first : first + rng.randrange(1, 12)]
            made = b"\n".join(lines)
    return made


def scripts() -> list[bytes]:
    """The scripts that are damaged: all examples of rule pages and the shorter fixtures."""
    found = [e.code.encode() for rule in knowledge.rules().values() for e in rule.examples if e.language == "python"]
    found += [path.read_bytes() for path in sorted((ROOT / "fixtures" / "scripts").glob("*.py")) if path.stat().st_size < 6_000]
    return found


def configurations() -> list[tuple[str, bytes]]:
    """(name, content) of the configurations and launch files that are damaged."""
    found = []
    names = {"yaml": "config.yaml", "json": "ds_config.json", "toml": "config.toml", "bash": "run.sh", "python": "train.py"}
    for rule in knowledge.rules().values():
        for example in rule.examples:
            if example.language in names:
                found.append((example.file or names[example.language], example.code.encode()))
    for path in sorted((ROOT / "fixtures").rglob("*")):
        if path.suffix in (".yaml", ".yml", ".json", ".toml", ".sh", ".txt", ".md") and path.stat().st_size < 20_000:
            found.append((path.name, path.read_bytes()))
    return found


def damaged_scripts(count: int, seed: int) -> Iterator[bytes]:
    rng, whole = random.Random(seed), scripts()
    for _ in range(count):
        yield damaged(rng, rng.choice(whole), TOKENS, rng.choice(whole))


def damaged_configurations(count: int, seed: int) -> Iterator[list[SourceFile]]:
    """Small trees of one to three files, at least one of them damaged."""
    rng, whole = random.Random(seed), configurations()
    for _ in range(count):
        files = {}
        for _ in range(rng.choice((1, 2, 3))):
            name, data = rng.choice(whole)
            files[name] = damaged(rng, data, CONFIGURATION_TOKENS, rng.choice(whole)[1]) if rng.random() < 0.8 else data
        yield [SourceFile(name, data) for name, data in files.items()]


def complaint_on_script(engine: runner.Engine, data: bytes) -> str:
    """What went wrong inside while a script was analysed; empty where nothing did."""
    return engine.analyse("train.py", data).failure


def complaint_on_configurations(files: list[SourceFile]) -> str:
    broken = [finding.message for finding in audit(files) if "internal error" in finding.message]
    return broken[0] if broken else ""
