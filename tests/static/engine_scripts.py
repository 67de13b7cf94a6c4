"""Small scripts for the tests of the engine, and the one way to run it on them."""

from __future__ import annotations

import textwrap
from pathlib import Path

from accumlint.findings import Finding
from accumlint.runner import deep
from accumlint.static.engine import EngineSettings, Project, analyse

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "fixtures" / "scripts").glob("*.py"))

# the loss is a mean over the microbatch's own tokens: ACC101, in a loop that is right otherwise
MEANS = """
import torch
import torch.nn.functional as F


def train(model, loader, accum_steps, epochs, pad_id):
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(epochs):
        for step, (tokens, labels) in enumerate(loader):
            logits = model(tokens)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=pad_id)
            (loss / accum_steps).backward()
            if (step + 1) % accum_steps == 0 or step + 1 == len(loader):
                optimizer.step()
                optimizer.zero_grad()
"""


def run(source: str | bytes, path: str | Path = "script.py", root: str | Path = ".", **vocabulary) -> list[Finding]:
    """Findings of one source; ``vocabulary`` is what a team adds."""
    data = source if isinstance(source, bytes) else textwrap.dedent(source).encode()
    return list(analyse(data, str(path), Project(root), EngineSettings(vocabulary)).findings)


def deeply(source: str, path: str = "script.py") -> list[Finding]:
    """The same on a stack as large as the command line's."""
    return deep(run, source, path)


def told(findings: list[Finding]) -> list[tuple[str, int]]:
    return [(f.name, f.span.line) for f in findings]


def full(findings: list[Finding]) -> str:
    """Everything that is said, for comparing runs byte by byte."""
    return "\n".join(map(repr, findings))
