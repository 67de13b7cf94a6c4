"""Running the user's script in a child process under the recorder, and reading what it left.

The child is a process group of its own: what outlives the time limit is asked where it stands (a stack dump on
SIGUSR1 works inside a blocked collective as well) and then killed. Nothing of the user's folder is copied; the
child's working folder is a scratch folder unless it is told to stay.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from accumlint.probe.records import Run, load

# environment variables whose names hold one of these words are not handed to the child
SECRETS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "API_KEY", "APIKEY", "ACCESS_KEY", "CREDENTIAL", "PRIVATE_KEY")
MAX_OUTPUT = 200_000  # characters of the script's output that are kept
GRACE = 2.0


@dataclass(frozen=True)
class Plan:
    """What is run and how.

    ``target``: a script, or a module name with ``module=True``. ``working_folder``: empty for a scratch folder.
    ``constants``: module (``__main__`` is the script) -> name -> value. ``isolate``: no network where the system can.
    """

    target: str
    arguments: tuple[str, ...] = ()
    module: bool = False
    ranks: int = 1
    updates: int = 12
    timeout: float = 600.0
    gradients: bool = True
    replay: int = 2
    device: str = ""
    working_folder: str = ""
    constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stress: Mapping[str, Any] = field(default_factory=dict)
    tiny: bool = False
    as_cpu: bool = False
    isolate: bool = True
    keep_saving: bool = False
    python: str = ""
    names: tuple[str, ...] = ()  # what the script calls K; their values are read from its frames
    environment: Mapping[str, str] = field(default_factory=dict)


def options(plan: Plan) -> dict[str, Any]:
    """What the child reads from its environment."""
    return {
        "updates": plan.updates, "gradients": plan.gradients, "replay": plan.replay if plan.gradients else 0, "save": plan.keep_saving,
        "stub_loggers": True, "set": {m: dict(c) for m, c in plan.constants.items()}, "stress": dict(plan.stress), "tiny": plan.tiny,
        "as_cpu": plan.as_cpu, "names": list(plan.names),
    }  # fmt: skip


def environment(plan: Plan, ledger: str, base: Mapping[str, str]) -> dict[str, str]:
    """The child's environment: no secrets, no network by the libraries' own switches, the recorder first on the path."""
    kept = {k: v for k, v in base.items() if not any(word in k.upper() for word in SECRETS)}
    here = os.path.dirname(os.path.abspath(__file__))
    home = os.path.dirname(os.path.dirname(here))
    paths = [os.path.join(here, "inject")]
    if kept.get("PYTHONPATH"):
        paths.append(kept["PYTHONPATH"])
    kept.update({
        "PYTHONPATH": os.pathsep.join(paths), "ACCUMLINT_PROBE_DIR": ledger, "ACCUMLINT_PROBE_HOME": home,
        "ACCUMLINT_PROBE_OPTIONS": json.dumps(options(plan)),
        # graphs are read as Python torch builds them; compiled ones have no loss nodes
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "WANDB_MODE": "disabled", "WANDB_SILENT": "true",
        "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1",
    })  # fmt: skip
    if plan.device == "cpu" or plan.as_cpu:
        kept["CUDA_VISIBLE_DEVICES"] = ""
    kept.update(plan.environment)
    return kept


def command(plan: Plan) -> list[str]:
    """The command line of the child."""
    python = plan.python or sys.executable
    on_main = "__main__" in plan.constants
    if plan.ranks > 1:
        head = [python, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={plan.ranks}", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0"]
        if plan.module:
            return [*head, "-m", plan.target, *plan.arguments]
        if on_main:
            return [*head, "-m", "accumlint.probe.child.run_script", plan.target, *plan.arguments]
        return [*head, plan.target, *plan.arguments]
    if plan.module:
        return [python, "-m", plan.target, *plan.arguments]
    if on_main:
        return [python, "-m", "accumlint.probe.child.run_script", plan.target, *plan.arguments]
    return [python, plan.target, *plan.arguments]


def can_isolate() -> bool:
    """Whether this system lets us start a process without network: user and network namespaces, loopback up."""
    if not (sys.platform.startswith("linux") and shutil.which("unshare") and shutil.which("ip")):
        return False
    try:
        probe = subprocess.run([*_ISOLATION, "true"], capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return probe.returncode == 0


_ISOLATION = ["unshare", "--user", "--map-current-user", "--keep-caps", "--net", "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh"]


def run(plan: Plan) -> Run:
    """Run the plan to its end, to its last update or to its time limit."""
    with tempfile.TemporaryDirectory(prefix="accumlint-probe-") as scratch:
        ledger = os.path.join(scratch, "ledger")
        folder = plan.working_folder or os.path.join(scratch, "work")
        os.makedirs(ledger)
        os.makedirs(folder, exist_ok=True)
        isolated: bool | None = None
        words = command(plan)
        if plan.isolate:
            isolated = can_isolate()
            if isolated:
                words = [*_ISOLATION, *words]
        output_path = os.path.join(scratch, "output.txt")
        started = time.monotonic()
        with open(output_path, "wb") as output:
            process = subprocess.Popen(
                words, cwd=folder, env=environment(plan, ledger, os.environ), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            timed_out = False
            try:
                process.wait(timeout=plan.timeout)
            except subprocess.TimeoutExpired:
                timed_out = True
                _ask_for_stacks(ledger)
            finally:
                _end(process)
        seconds = time.monotonic() - started
        with open(output_path, "rb") as stream:
            text = stream.read()[-MAX_OUTPUT:].decode("utf-8", "replace")
        return Run(load(ledger), process.returncode, timed_out, seconds, text, _stacks(ledger), isolated)


def _ask_for_stacks(ledger: str) -> None:
    """Every recorded process writes down where it stands."""
    for name in os.listdir(ledger):
        if name.startswith("stack-"):
            try:
                os.kill(int(name.removeprefix("stack-").removesuffix(".txt")), signal.SIGUSR1)
            except (OSError, ValueError):
                continue
    time.sleep(GRACE / 2)


def _end(process: subprocess.Popen) -> None:
    """End the child and whatever it started; all of them are in its session."""
    if process.poll() is None:
        for kind in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, kind)
            except (ProcessLookupError, PermissionError):
                break
            try:
                process.wait(timeout=GRACE)
                break
            except subprocess.TimeoutExpired:
                continue
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)  # workers that survived their parent
    except (ProcessLookupError, PermissionError):
        pass


def _stacks(ledger: str) -> dict[int, str]:
    out = {}
    for name in sorted(os.listdir(ledger)):
        if name.startswith("stack-"):
            with open(os.path.join(ledger, name), encoding="utf-8", errors="replace") as stream:
                text = stream.read()
            if text:
                out[int(name.removeprefix("stack-").removesuffix(".txt"))] = text
    return out
