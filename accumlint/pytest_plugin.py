"""The pytest fixture ``accumulation_ledger``: records a training loop of your own and asserts that it conserves.

::

    def test_my_loop(accumulation_ledger):
        with accumulation_ledger.record(window=4):
            train(tiny_model(), ragged_batches())
        accumulation_ledger.assert_conserves()

Nothing is imported and nothing happens in a test session that does not ask for the fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from accumlint.probe.judgements import Report


class AccumulationLedger:
    """Records stretches of a test; see the module's example."""

    def __init__(self) -> None:
        self._recorded: Any = None

    @contextmanager
    def record(self, window: int | None = None, replay: int = 2) -> Iterator[AccumulationLedger]:
        """Record the block. ``window``: the configured number of microbatches; ``replay``: windows recomputed in float64."""
        from accumlint.probe.session import recording

        with recording(window, replay) as recorded:
            yield self
        self._recorded = recorded

    @property
    def report(self) -> Report:
        """All judgements over what was recorded. Raises RuntimeError before a block was recorded."""
        if self._recorded is None:
            raise RuntimeError("record a loop first: with accumulation_ledger.record(): …")
        return self._recorded.report()

    def assert_conserves(self, allow: tuple[str, ...] = ("ACC301",), discriminating: bool = True) -> None:
        """Fail unless every window trained what the large batch would have trained.

        ``allow``: codes of findings that are accepted. ``discriminating``: data on which right and wrong formula agree
        (equal counts everywhere) fails the test as well, since it would let a wrong loop through.
        """
        __tracebackhide__ = True
        import os

        from accumlint.probe import judgements, present, verdicts

        report = self.report
        found = [f for f in verdicts.findings(report, os.getcwd()) if f.rule not in allow]
        accepted = {judgements.PASS, judgements.NOT_RUN} | (set() if discriminating else {judgements.NOT_DISCRIMINATING})
        wrong = {name: v for name, v in report.judgements.items() if v.verdict not in accepted and not _only_allowed(v.reason, allow)}
        if not discriminating:
            wrong = {name: v for name, v in wrong.items() if v.verdict != judgements.NOT_DISCRIMINATING}
        if report.judgements.get("weights") and report.judgements["weights"].verdict != judgements.NOT_DISCRIMINATING:
            # one judgement that tells the formulas apart is enough
            wrong = {name: v for name, v in wrong.items() if v.verdict != judgements.NOT_DISCRIMINATING}
        if not report.windows:
            pytest.fail("no optimizer step was recorded: is the loop inside the block?", pytrace=False)
        if found or wrong:
            pytest.fail("the loop does not conserve\n" + present.as_text(report, self._recorded.run, found, [], []), pytrace=False)


def _only_allowed(reason: str, allow: tuple[str, ...]) -> bool:
    if not reason.startswith("breaks "):
        return False
    return set(reason.removeprefix("breaks ").split(", ")) <= set(allow)


@pytest.fixture
def accumulation_ledger() -> AccumulationLedger:
    """Records a training loop and asserts that accumulation conserves; skips the test where torch is not installed."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        pytest.skip("accumulation_ledger needs torch: pip install 'accumlint[probe]'")
    return AccumulationLedger()
