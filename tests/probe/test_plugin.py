"""The pytest fixture on loops of a test's own, and the self-test."""

import subprocess
import sys

import pytest
from probe_helpers import needs_torch

K = 3


def loop(divide, counts=(4, 9, 2, 5, 5, 7)):
    """A user's own loop: ``divide(loss function, output, target, window)`` makes the loss of one microbatch."""
    torch = needs_torch()
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(6, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = [(torch.randn(n, 6, generator=generator), torch.randint(0, 5, (n,), generator=generator)) for n in counts]
    for i, (x, y) in enumerate(data):
        window = sum(len(t) for _, t in data[i - i % K : i - i % K + K])
        divide(torch.nn.functional.cross_entropy, model(x), y, window).backward()
        if (i + 1) % K == 0:
            optimizer.step()
            optimizer.zero_grad()


def right(loss, out, target, window):
    return loss(out, target, reduction="sum") / window


def wrong(loss, out, target, window):
    return loss(out, target) / K


def test_a_right_loop_conserves(accumulation_ledger):
    with accumulation_ledger.record(window=K):
        loop(right)
    accumulation_ledger.assert_conserves()
    assert [w.formula for w in accumulation_ledger.report.windows] == ["token mean"] * 2


def test_a_wrong_loop_fails_with_the_finding(accumulation_ledger):
    with accumulation_ledger.record(window=K):
        loop(wrong)
    with pytest.raises(pytest.fail.Exception) as failure:
        accumulation_ledger.assert_conserves()
    text = str(failure.value)
    assert "ACC101 mean-of-means" in text and "test_plugin.py" in text and "mean of means" in text


def test_data_that_cannot_tell_fails_unless_it_is_accepted(accumulation_ledger):
    with accumulation_ledger.record(window=K):
        loop(wrong, counts=(4,) * 6)
    with pytest.raises(pytest.fail.Exception, match="NOT-DISCRIMINATING"):
        accumulation_ledger.assert_conserves()
    accumulation_ledger.assert_conserves(discriminating=False)


def test_nothing_recorded_fails(accumulation_ledger):
    needs_torch()
    with accumulation_ledger.record():
        pass
    with pytest.raises(pytest.fail.Exception, match="no optimizer step"):
        accumulation_ledger.assert_conserves()


def test_optimizers_made_before_are_followed(accumulation_ledger):
    torch = needs_torch()
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with accumulation_ledger.record(window=2):
        for n in (3, 5):
            torch.nn.functional.mse_loss(model(torch.ones(n, 3)), torch.ones(n, 2), reduction="sum").div(16).backward()
        optimizer.step()
    accumulation_ledger.assert_conserves()
    assert accumulation_ledger.report.windows[0].integrity.verdict == "PASS"


def test_everything_is_put_back(accumulation_ledger):
    torch = needs_torch()
    names = [(torch.autograd, "backward"), (torch.nn.functional, "cross_entropy"), (torch.optim.Optimizer, "zero_grad"), (torch.nn.Module, "__call__"), (torch.optim.lr_scheduler.StepLR, "step")]  # fmt: skip
    before = [getattr(owner, name) for owner, name in names]
    with accumulation_ledger.record():
        assert [getattr(owner, name) for owner, name in names] != before
    assert [getattr(owner, name) for owner, name in names] == before


def test_the_plugin_imports_nothing_heavy():
    code = "import sys, accumlint.pytest_plugin; print(sorted({'torch', 'libcst', 'yaml', 'accumlint.probe.session'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_selftest_turns_every_judgement_red():
    needs_torch()
    from accumlint.probe import selftest

    outcomes = selftest.run()
    assert [o.name for o in outcomes if not o.passed] == []
    red = {fault.judgement for fault in selftest.FAULTS}
    assert {"weights", "integrity", "clocks", "tail"} <= red
    assert len(outcomes) == len(selftest.FAULTS) + 3


def test_selftest_replacements_must_apply():
    needs_torch()
    from accumlint.probe import selftest

    with pytest.raises(ValueError, match="has no"):
        selftest.source((("nowhere in it", ""),))
