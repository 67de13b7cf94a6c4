"""A file that is too much to simulate ends after so many steps, on any machine the same, and says so."""

import pytest
from engine_scripts import told

from accumlint.static import engine, explore
from accumlint.static.engine import EngineSettings, Project

LOOP = """
import torch


def train_{n}(model, loader, accum_steps, flags):
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for step, batch in enumerate(loader):
        loss = model(batch).mean()
{gates}        (loss / accum_steps).backward()
        scheduler.step()
        if (step + 1) % accum_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def script(loops, gates):
    body = "".join(f"        if flags.f{n}:\n            loss = loss * flags.w{n}\n" for n in range(gates))
    return "".join(LOOP.format(n=n, gates=body) for n in range(loops)).encode()


def findings(source):
    return list(engine.examine(source, "train.py", Project("."), EngineSettings()).findings)


@pytest.fixture
def few_steps(monkeypatch):
    def allow(steps):
        monkeypatch.setattr(explore, "MAX_STEPS", steps)
        monkeypatch.setattr(engine, "MAX_STEPS", steps)

    return allow


def test_a_file_within_its_budget_says_nothing_of_it():
    assert "analysis-incomplete" not in {f.name for f in findings(script(3, 3))}


def test_what_was_cut_is_said_and_what_was_found_stands(few_steps):
    whole = findings(script(6, 4))
    few_steps(6_000)
    cut = findings(script(6, 4))
    (said,) = [f for f in cut if f.name == "analysis-incomplete"]
    assert "stopped after 6,000 steps" in said.message and said.severity.label == "advice"
    assert "scheduler-per-microbatch" in {f.name for f in cut}
    assert {(f.rule, f.span) for f in cut} - {(said.rule, said.span)} <= {(f.rule, f.span) for f in whole}
    assert told(findings(script(6, 4))) == told(cut)


@pytest.mark.parametrize("steps", [0, 1, 50, 500, 1_500])
def test_no_budget_is_too_small_and_none_invents_a_fault(few_steps, steps):
    whole = {(f.rule, f.span.line) for f in findings(script(2, 2))}
    few_steps(steps)
    cut = findings(script(2, 2))
    assert {(f.rule, f.span.line) for f in cut if f.rule != "ACC003"} <= whole
    assert any(f.rule == "ACC003" for f in cut)
