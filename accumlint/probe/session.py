"""Recording a loop inside the current process: what the pytest fixture and the self-test use. Imports torch when used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from accumlint.probe.assemble import assemble
from accumlint.probe.judgements import Report, judge
from accumlint.probe.records import Recording, Run


class Recorded:
    """What a recorded stretch of the process did; complete when its ``with`` block has ended."""

    def __init__(self, window: int | None) -> None:
        self.window = window
        self.records: list[dict[str, Any]] = []

    @property
    def run(self) -> Run:
        """The recording as a run of one rank."""
        rank = next((r["rank"] for r in self.records if "rank" in r), 0)
        world = max((r["world"] for r in self.records if "world" in r), default=1)
        return Run((Recording(rank, world, tuple(self.records)),), 0)

    def report(self) -> Report:
        """The judgements over what was recorded."""
        return judge(assemble(self.run.recordings, self.window), self.run)


@contextmanager
def recording(window: int | None = None, replay: int = 2, gradients: bool = True) -> Iterator[Recorded]:
    """Record everything that torch does in this thread within the block; ``window`` is the configured K.

    Raises ImportError without torch, and RuntimeError when recordings are nested.
    """
    from accumlint.probe.child.recorder import Memory, Options, Recorder

    if _active:
        raise RuntimeError("a recording is already open in this process")
    recorded = Recorded(window)
    sink = Memory()
    recorder = Recorder(Options(replay=replay, gradients=gradients, leave=False), sink)
    recorder.adopt()
    recorder.install()
    _active.append(recorder)
    try:
        yield recorded
    finally:
        _active.remove(recorder)
        recorder.end("finished")
        recorder.remove()
        recorded.records = sink.records


_active: list[Any] = []
