"""Runs generated scripts under the recorder: in this process, or in two that form a process group and are kept alive."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import multiprocessing
import os
import runpy
import sys
import tempfile
import traceback
import warnings
from typing import Any

from accumlint.probe.records import Recording

RANKS = 2
PATIENCE = 150.0  # seconds for one script, which may import a framework; a rank that waits longer waits for ever


class Stuck(Exception):
    """The ranks of a script no longer answer."""


class Failed(Exception):
    """The script raised."""


def _played(path: str) -> list[dict[str, Any]]:
    """The records of one script, run to its end in this process. Raises what the script raises."""
    from accumlint.probe.session import recording

    argv, folder = sys.argv, os.getcwd()
    sys.argv = [path]
    os.chdir(os.path.dirname(path))
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with recording(3, replay=0) as recorded:
                runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv = argv
        os.chdir(folder)
    return recorded.records


def _rank(rank: int, store: str, pipe: Any) -> None:
    """One rank of the pair: runs the scripts that it is told to, until the pipe closes."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    # TORCHELASTIC_RUN_ID: as torchrun sets it; frameworks look for it before they start processes of their own
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(RANKS), GROUP_RANK="0", TORCHELASTIC_RUN_ID="none",
                      MASTER_ADDR="localhost", MASTER_PORT="29511")  # fmt: skip
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    dist.init_process_group = lambda *args, **kwargs: None  # the scripts call it; the group is already there
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            path = pipe.recv()
            _forget()
            try:
                pipe.send((True, _played(path)))
            except BaseException:  # noqa: BLE001 - whatever a script raises is told to the other end
                pipe.send((False, traceback.format_exc(limit=-4)))


def _forget() -> None:
    """Frameworks keep their state in the process: every script begins without any."""
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(True)
        GradientState._reset_state()


PACKAGES = {"accelerate": "accelerate", "fabric": "lightning", "lightning": "lightning"}


def missing(framework: str) -> str:
    """Why loops written with this framework cannot be run here; empty where they can."""
    if framework == "trainer":
        return "the simulation plays only a part of what a Trainer runs: tests/frameworks compares the two"
    package = PACKAGES.get(framework)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"{package} is not installed (pip install 'accumlint[frameworks]')"
    return ""


class Runner:
    """Runs scripts; a context manager, since it may hold two processes and a folder."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="generated-loops-")
        self._pair: list[tuple[Any, Any]] = []
        self._starts = 0
        self._written = 0
        self._path = ""

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop()
        self._folder.cleanup()

    def _write(self, source: str) -> str:
        """A file of its own for each script: what is known of a file is remembered by its name, here and in the ranks."""
        if self._path:
            os.unlink(self._path)
        self._written += 1
        self._path = os.path.join(self._folder.name, f"loop{self._written}.py")
        with open(self._path, "w", encoding="utf-8") as stream:
            stream.write(source)
        return self._path

    def run(self, source: str, parallel: bool) -> tuple[Recording, ...]:
        """The recordings of a script, one per rank. Raises Failed when it raises, Stuck when its ranks hang."""
        path = self._write(source)
        if not parallel:
            try:
                return (_recording(_played(path)),)
            except Exception as error:  # noqa: BLE001 - generated code may raise anything
                raise Failed(f"{type(error).__name__}: {error}") from error
        if not self._pair:
            self._start()
        for _, pipe in self._pair:
            pipe.send(path)
        answers = []
        for process, pipe in self._pair:
            if not pipe.poll(PATIENCE) or not process.is_alive():
                self._stop()
                raise Stuck("a rank waits for ever")
            answers.append(pipe.recv())
        for held, told in answers:
            if not held:
                self._stop()  # the ranks may be out of step now
                raise Failed(told)
        return tuple(_recording(records) for _, records in answers)

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._starts += 1
        store = os.path.join(self._folder.name, f"store-{self._starts}")
        for rank in range(RANKS):
            here, there = context.Pipe()
            process = context.Process(target=_rank, args=(rank, store, there), daemon=True)
            process.start()
            there.close()
            self._pair.append((process, here))

    def _stop(self) -> None:
        for process, pipe in self._pair:
            pipe.close()
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()
        self._pair = []


def _recording(records: list[dict[str, Any]]) -> Recording:
    rank = next((r["rank"] for r in records if "rank" in r), 0)
    world = max((r["world"] for r in records if "world" in r), default=1)
    return Recording(rank, world, tuple(records))
