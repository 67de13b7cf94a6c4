"""Takes files through the sieves and the engine: in this process for a few, in workers for many.

Whatever one file does (broken syntax, a crash of the engine, a parser that overflows the stack and takes
its process along), it costs that file alone and is said. Results come in the order of the files, however
many workers there were.
"""

from __future__ import annotations

import gc
import importlib
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from accumlint.static.consulted import NOTHING, digest, merged
from accumlint.static.discovery import CONFIGURATION, STDIN, Target, is_notebook
from accumlint.static.sieve import may_accumulate, notebook_may_accumulate

if TYPE_CHECKING:
    from accumlint.cache.results import Results
    from accumlint.findings import FileReport, Finding
    from accumlint.static.notebooks import Notebook

NO_ACCUMULATION = "no-accumulation"
_CELL_MAGIC = b"run_cell_magic("  # of notebooks that were exported as scripts
_CELL_MARKS = (b"# %%", b"#%%")

# A worker needs 0.4 s of its own for the interpreter, libcst and the vocabulary, a script about 0.04 s: below this
# many files workers cost more than they save.
PARALLEL_FROM_FILES = 24
# Training scripts are tens of kilobytes; what is larger than this is generated, and takes minutes to parse.
MAX_BYTES = 2_000_000
# Notebooks carry pictures; what is parsed is their code alone, and that has the limit above.
MAX_NOTEBOOK_BYTES = 100_000_000
# What is larger than this is not even looked through: it would have to be held in memory.
MAX_READ_BYTES = 100_000_000
# The engine bounds its own work; this is for what it can't bound (native code: a sum of 20,000 terms keeps the
# parser busy for minutes).
SECONDS_PER_FILE = 60.0
# People don't write such lines. Files that have one are read in a worker, however few files there are, since they
# can exhaust time or memory in the parser.
LONG_LINE_BYTES = 10_000
# A fresh process now and then keeps memory from growing with the length of the run.
FILES_PER_WORKER = 400
# Parsers recurse natively: 3,000 nested brackets end a process that has the usual 8 MB.
STACK_BYTES = 512 * 1024 * 1024
# What that stack carries of Python's own recursion; sums of thousands of terms need it.
RECURSION_LIMIT = 20_000


class RunnerError(RuntimeError):
    """The engine can't be loaded: the installation is broken."""


class EngineChoice(NamedTuple):
    """Which engine to load, and what it is told; plain data, so that workers can be given it."""

    module: str = "accumlint.static.engine"
    root: str = "."
    vocabulary: Mapping[str, Any] = {}
    detail: bool = False


class Outcome(NamedTuple):
    """What one file gave. ``skipped`` names the sieve that ended it early, ``failure`` what broke.

    ``content`` is the digest of the bytes that were analysed, ``consulted`` what else was looked at (None where that
    is not known, or where the clock decided): what it takes to know whether the outcome would be the same again.
    """

    name: str
    findings: tuple[Finding, ...] = ()
    skipped: str = ""
    loops: tuple[Any, ...] = ()
    failure: str = ""
    content: str = ""
    consulted: Mapping[str, Any] | None = None


# Syntax trees are a hundred thousand objects without a cycle among them: looking through them for garbage every 700
# allocations, as Python does by itself, takes a fifth of a run and finds nothing.
ALLOCATIONS_PER_COLLECTION = 200_000


@contextmanager
def at_work() -> Iterator[None]:
    """Look for garbage seldom, and keep to ourselves what Python warns of in other people's files."""
    usual = gc.get_threshold()
    gc.set_threshold(ALLOCATIONS_PER_COLLECTION, 10, 10)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.set_threshold(*usual)


class Engine:
    """The engine with its project, alive for as many files as this process analyses.

    It is loaded when the first file comes through the structure sieve: loading costs more than most files do.
    """

    def __init__(self, choice: EngineChoice):
        self._choice = choice
        self._examine: Callable[[bytes, str], FileReport] | None = None

    def _load(self) -> Callable[[bytes, str], FileReport]:
        try:
            module = importlib.import_module(self._choice.module)
        except ImportError as error:
            raise RunnerError(f"the engine {self._choice.module} can't be loaded: {error}") from error
        settings = module.EngineSettings(vocabulary=self._choice.vocabulary, detail=self._choice.detail)
        trees = module.Trees()
        if not gc.get_freeze_count():
            gc.freeze()  # modules stay: nothing of them will ever be garbage

        def examine(data: bytes, name: str) -> FileReport:
            # a project of its own: what a file gives must not depend on the files before it
            return module.examine(data, name, module.Project(self._choice.root, trees), settings)

        return examine

    def analyse(self, name: str, data: bytes) -> Outcome:
        """The outcome for one file; never raises what the file caused. Raises :class:`RunnerError`."""
        if is_notebook(name):
            return self._analyse_notebook(name, data)
        outcome = self._analyse_source(name, data)
        if _CELL_MAGIC in data:
            from accumlint.own_findings import code_in_a_string
            from accumlint.static.notebooks import code_in_strings

            told = (code_in_a_string(name, line) for line in code_in_strings(data))
            outcome = outcome._replace(findings=(*outcome.findings, *told))
        if outcome.skipped == "syntax-error" and any(mark in data for mark in _CELL_MARKS):
            # editors run scripts with cells as notebooks, magics included
            from accumlint.static.notebooks import script_without_magics

            plain = script_without_magics(data)
            if plain is None:
                return outcome
            again = self._analyse_source(name, plain)
            return again._replace(consulted=_together([outcome, again]))
        return outcome

    def _analyse_notebook(self, name: str, data: bytes) -> Outcome:
        """The programs of a notebook one by one, their findings at lines of its joined text."""
        from accumlint.own_findings import syntax_error
        from accumlint.static.notebooks import NotebookError, read

        try:
            notebook = read(data)
        except NotebookError as error:
            finding = syntax_error(name, str(error), error.line, error.column)
            return Outcome(name, (finding,), "syntax-error", consulted=NOTHING)
        if notebook is None:
            return Outcome(name, skipped="not-python", consulted=NOTHING)
        return self.analyse_programs(name, notebook)

    def analyse_programs(self, name: str, notebook: Notebook) -> Outcome:
        """What the programs of a notebook give together; cells that were left out are said."""
        from accumlint.own_findings import unread_cell

        if len(notebook.text) > MAX_BYTES:
            return _too_large(name, len(notebook.text))
        outcomes = [self._analyse_source(name, program) for program in notebook.programs if program.strip()]
        findings = [finding for outcome in outcomes for finding in outcome.findings]
        findings += [unread_cell(name, broken) for broken in notebook.broken]
        skipped = [outcome.skipped for outcome in outcomes]
        return Outcome(
            name,
            tuple(sorted(findings, key=lambda finding: finding.sort_key())),
            min(skipped, default=NO_ACCUMULATION),  # an empty one, where a program went all the way
            tuple(loop for outcome in outcomes for loop in outcome.loops),
            next((outcome.failure for outcome in outcomes if outcome.failure), ""),
            consulted=_together(outcomes),
        )

    def _analyse_source(self, name: str, data: bytes) -> Outcome:
        from accumlint.static.structure import NO_TRAINING_LOOP, worth_simulating

        try:
            if not worth_simulating(data):
                return Outcome(name, skipped=NO_TRAINING_LOOP, consulted=NOTHING)
            if self._examine is None:
                self._examine = self._load()
            report = self._examine(data, name)
        except RecursionError:
            return _left_alone(name, "too-deep", "its expressions or blocks are nested too deeply")
        except RunnerError:
            raise
        except Exception as error:  # noqa: BLE001 - one bad file must not stop the rest
            from accumlint.own_findings import describe_syntax_error

            if _is_syntax_error(error) or b"\0" in data:  # what a null byte raises differs between versions
                if _is_template(name, data):
                    return Outcome(name, skipped="not-python", consulted=NOTHING)
                finding = describe_syntax_error(name, data, error)
                return Outcome(name, (finding,), skipped="syntax-error", consulted=NOTHING)
            return _broken(name, f"internal error, {_where(error)}; please report it")
        return Outcome(
            name, tuple(report.findings), report.skipped, tuple(report.loops), consulted=report.consulted
        )


def _together(outcomes: Sequence[Outcome]) -> Mapping[str, Any] | None:
    """What several programs in one file rest on; None where that of any is not known."""
    parts = [outcome.consulted for outcome in outcomes if outcome.consulted is not None]
    return merged(parts) if len(parts) == len(outcomes) else None


def _is_syntax_error(error: Exception) -> bool:
    """Python's own kinds, and libcst's by its name, so that libcst need not be imported here."""
    return isinstance(error, SyntaxError | UnicodeDecodeError) or type(error).__name__ == "ParserSyntaxError"


def _is_template(name: str, data: bytes) -> bool:
    """Whether scripts are made from this one: placeholders in its path, or tags of Jinja where Python has none."""
    return "{{" in name or "{%" in name or re.search(rb"(?m)^[ \t]*\{%-?[ \t]*\w", data) is not None


def _where(error: BaseException) -> str:
    """The innermost place of an exception: one line instead of a traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = ""
    if trace is not None:
        code = trace.tb_frame.f_code
        place = f" in {os.path.basename(code.co_filename)}:{trace.tb_lineno}"
    text = " ".join(str(error).split())[:200]
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def _left_alone(name: str, sieve: str, reason: str) -> Outcome:
    """A file that meets a limit of ours: nothing broke, but nobody may take it for clean."""
    from accumlint.own_findings import analysis_incomplete

    return Outcome(name, (analysis_incomplete(name, f"not analysed: {reason}"),), skipped=sieve)


def _too_large(name: str, size: int, most: int = MAX_BYTES) -> Outcome:
    return _left_alone(name, "too-large", f"{size:,} bytes, and files above {most:,} are left alone")


def _broken(name: str, message: str) -> Outcome:
    from accumlint.own_findings import analysis_incomplete

    return Outcome(name, (analysis_incomplete(name, f"not analysed: {message}"),), failure=message)


def deep(function, *arguments):
    """Call ``function`` on a thread with a stack that deeply nested files don't overflow."""
    import threading

    box: list[tuple[bool, Any]] = []

    def call() -> None:
        try:
            box.append((True, function(*arguments)))
        except BaseException as error:  # noqa: BLE001 - handed to the caller's thread
            box.append((False, error))

    try:
        before = threading.stack_size(STACK_BYTES)
    except (ValueError, RuntimeError):
        return function(*arguments)  # a platform that doesn't let us choose
    limit = sys.getrecursionlimit()
    try:
        thread = threading.Thread(target=call, daemon=True)
        sys.setrecursionlimit(max(limit, RECURSION_LIMIT))
        thread.start()
    except RuntimeError:  # address space is limited
        sys.setrecursionlimit(limit)
        return function(*arguments)
    finally:
        threading.stack_size(before)
    thread.join()
    sys.setrecursionlimit(limit)
    succeeded, value = box[0]
    if not succeeded:
        raise value
    return value


class Sieved(NamedTuple):
    """What reading and the first sieve gave for one file."""

    outcome: Outcome | None  # set when the file is done with
    marked: bool = False  # it holds suppression comments
    long_lines: bool = False
    content: str = ""  # digest of the bytes, where the file goes on


def read(target: Target, stdin: bytes) -> bytes:
    """The bytes of one target; raises OSError."""
    if target.kind == STDIN:
        return stdin
    with open(target.path, "rb") as stream:
        return stream.read()


def sieve(target: Target, stdin: bytes) -> Sieved:
    """Read one file and ask the byte sieve about it."""
    try:
        size = os.stat(target.path).st_size if target.kind != STDIN else 0
        if size > MAX_READ_BYTES:
            return Sieved(_too_large(target.name, size, MAX_READ_BYTES))
        data = read(target, stdin)
    except OSError as error:
        return Sieved(Outcome(target.name, failure=f"cannot be read: {error.strerror or error}"))
    marked = b"accumlint:" in data
    if target.kind == CONFIGURATION:
        return Sieved(Outcome(target.name), marked)
    if is_notebook(target.name):
        if not notebook_may_accumulate(data):
            return Sieved(Outcome(target.name, skipped=NO_ACCUMULATION), marked)
        if len(data) > MAX_NOTEBOOK_BYTES:
            return Sieved(_too_large(target.name, len(data)), marked)
        return Sieved(None, marked, len(data) > MAX_BYTES, digest(data))
    if not may_accumulate(data):
        return Sieved(Outcome(target.name, skipped=NO_ACCUMULATION), marked)
    if len(data) > MAX_BYTES:
        return Sieved(_too_large(target.name, len(data)), marked)
    return Sieved(None, marked, max(map(len, data.split(b"\n"))) > LONG_LINE_BYTES, digest(data))


class Run(NamedTuple):
    """All outcomes by name, and the names of the files that hold suppression comments."""

    outcomes: tuple[Outcome, ...]
    marked: frozenset[str]
    simulated: tuple[Target, ...]  # what the first sieve let through


def run(
    targets: Sequence[Target],
    choice: EngineChoice,
    jobs: int = 0,
    stdin: bytes = b"",
    results: Results | None = None,
) -> Run:
    """Analyse all targets. ``jobs`` is the number of workers, 0 for one per usable core.

    ``results`` answers for files that were analysed before and is given the outcomes of the others. Raises
    :class:`RunnerError` when the engine itself can't be loaded.
    """
    with at_work():
        return _run(targets, choice, jobs, stdin, results)


def _run(
    targets: Sequence[Target], choice: EngineChoice, jobs: int, stdin: bytes, results: Results | None
) -> Run:
    sieved = {target: sieve(target, stdin) for target in targets}
    left = [target for target in targets if sieved[target].outcome is None]
    analysed: dict[str, Outcome] = {}
    if results is not None:
        for target in left:
            held = results.find(target.name, sieved[target].content)
            if held is not None:
                analysed[target.name] = held
    contents = {target.name: sieved[target].content for target in left}

    def arrived(outcome: Outcome) -> None:
        analysed[outcome.name] = outcome
        if results is not None:  # at once: what a long run has found out survives its interruption
            results.keep(contents[outcome.name], outcome)

    new = [target for target in left if target.name not in analysed]
    workers = min(jobs or usable_cores(), len(new))
    if workers > 1 and len(new) >= PARALLEL_FROM_FILES:
        analyse_in_workers(new, choice, workers, arrived, stdin)
    else:
        apart = [target for target in new if sieved[target].long_lines and target.kind != STDIN]
        analyse_here([target for target in new if target not in apart], choice, arrived, stdin)
        if apart:
            analyse_in_workers(apart, choice, 1, arrived)
    outcomes = tuple(sieved[target].outcome or analysed[target.name] for target in targets)
    marked = frozenset(target.name for target in targets if sieved[target].marked)
    return Run(outcomes, marked, tuple(left))


def usable_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this platform
        return os.cpu_count() or 1


def _analyse_target(engine: Engine, target: Target, stdin: bytes) -> Outcome:
    """The outcome of one file that the byte sieve let through; raises :class:`RunnerError`."""
    try:
        data = read(target, stdin)
    except OSError as error:  # it was there a moment ago
        return Outcome(target.name, failure=f"cannot be read: {error.strerror or error}")
    return engine.analyse(target.name, data)._replace(content=digest(data))


def analyse_here(
    targets: Iterable[Target], choice: EngineChoice, arrived: Callable[[Outcome], None], stdin: bytes = b""
) -> None:
    """Analyse files in this process; ``arrived`` is called with each outcome."""
    targets = list(targets)
    if not targets:
        return

    def all_of_them() -> None:
        engine = Engine(choice)
        for target in targets:
            arrived(_analyse_target(engine, target, stdin))

    deep(all_of_them)


def _worker(pipe, choice: EngineChoice) -> None:
    """The life of one worker: a target in, an outcome out, until the pipe closes."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interruption means

    def serve() -> None:
        engine = Engine(choice)
        while True:
            try:
                target = pipe.recv()
            except (EOFError, OSError):
                return
            if target is None:
                return
            try:
                pipe.send(_analyse_target(engine, target, b""))
            except RunnerError as error:
                pipe.send(error)

    with at_work():
        deep(serve)


class _Worker:
    """The parent's side of a worker: its process, its pipe, and the file that it holds."""

    def __init__(self, context, choice: EngineChoice):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_worker, args=(theirs, choice), daemon=True)
        self.process.start()
        theirs.close()  # so that its death closes the pipe
        self.target: Target | None = None
        self.deadline = 0.0
        self.served = 0

    def give(self, target: Target, now: float) -> None:
        self.target = target
        self.deadline = now + SECONDS_PER_FILE
        self.served += 1
        self.pipe.send(target)

    def end(self) -> None:
        self.pipe.close()
        self.process.join(timeout=0.5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()


def analyse_in_workers(
    targets: Iterable[Target],
    choice: EngineChoice,
    workers: int,
    arrived: Callable[[Outcome], None],
    stdin: bytes = b"",
) -> None:
    """Analyse files in ``workers`` processes; ``arrived`` is called with each outcome, in the order of arrival.

    Standard input stays in this process. A worker that dies or hangs is replaced; the file that it held is reported
    as not analysed.
    """
    import multiprocessing
    import time
    from multiprocessing.connection import wait

    targets = list(targets)
    analyse_here([t for t in targets if t.kind == STDIN], choice, arrived, stdin)
    waiting = [target for target in reversed(targets) if target.kind != STDIN]
    context = multiprocessing.get_context("spawn")
    idle: list[_Worker] = []
    busy: dict[Any, _Worker] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                worker = idle.pop() if idle else _Worker(context, choice)
                target = waiting.pop()
                try:
                    worker.give(target, time.monotonic())
                except OSError:  # it died before it was given anything
                    worker.end()
                    arrived(_broken(target.name, "the worker process could not be started"))
                    continue
                busy[worker.pipe] = worker
            soonest = min(worker.deadline for worker in busy.values()) if busy else 0.0
            ready = wait(list(busy), timeout=max(0.0, soonest - time.monotonic())) if busy else []
            for pipe in ready:
                worker = busy.pop(pipe)
                assert worker.target is not None
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    worker.end()
                    code = worker.process.exitcode
                    message = f"the process that read it died (exit code {code})"
                    arrived(_broken(worker.target.name, message))
                    continue
                if isinstance(answer, RunnerError):
                    raise answer
                arrived(answer)
                if worker.served >= FILES_PER_WORKER:
                    worker.end()
                else:
                    idle.append(worker)
            now = time.monotonic()
            for pipe, worker in list(busy.items()):
                if worker.deadline <= now and pipe not in ready:
                    del busy[pipe]
                    worker.process.kill()
                    worker.end()
                    assert worker.target is not None
                    reason = f"it took longer than {SECONDS_PER_FILE:.0f} seconds"
                    arrived(_left_alone(worker.target.name, "too-slow", reason))
    finally:
        for worker in [*idle, *busy.values()]:
            if worker in busy.values():
                worker.process.kill()
            worker.end()
