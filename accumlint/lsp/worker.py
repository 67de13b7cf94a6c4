"""A process that answers questions one after another: what a document does to it costs that question alone.

Parsers can exhaust time, memory and the stack of their process. The editor's connection must outlive that.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from typing import Any

SECONDS = 60.0


class WorkerError(RuntimeError):
    """A question got no answer; the message says why."""


def _serve(pipe) -> None:
    """The life of the process: (function, arguments) in, (succeeded, value) out, until the pipe closes."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # standard output is the editor's connection: nothing may print there
    sys.stdout = sys.stderr
    while True:
        try:
            function, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = (True, function(*arguments))
        except Exception as error:  # noqa: BLE001 - one question must not stop the next
            answer = (False, f"{type(error).__name__}: {error}")
        pipe.send(answer)


class Worker:
    """Starts its process when first asked, and a new one after one has died. Not to be shared by threads."""

    def __init__(self, seconds: float = SECONDS):
        self._seconds = seconds
        self._process: Any = None
        self._pipe: Any = None

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The value of a function of this package, computed over there. Raises :class:`WorkerError`."""
        if self._process is None or not self._process.is_alive():
            self._start()
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(self._seconds):
                self.end()
                raise WorkerError(f"it took longer than {self._seconds:.0f} seconds")
            succeeded, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            code = self._process.exitcode if self._process is not None else None
            self.end()
            raise WorkerError(f"the process that read it died (exit code {code})") from error
        if not succeeded:
            raise WorkerError(value)
        return value

    def _start(self) -> None:
        self.end()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()  # so that its death closes the pipe

    def end(self) -> None:
        """Let the process go, whatever it does."""
        if self._pipe is not None:
            self._pipe.close()
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._pipe = self._process = None
