"""``accumlint probe``: runs a script under the recorder and says what its windows were. Runs the user's code."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accumlint.findings import Finding
    from accumlint.probe.beside import Beside
    from accumlint.probe.launch import Plan
    from accumlint.probe.records import Run

SUMMARY = "run a script on a tiny model and judge its windows by what torch did"
FINDINGS, BROKEN, NOTHING = 1, 2, 3

_NO_TORCH = (
    "accumlint: probe runs the script and needs torch in this environment: install accumlint with its extra, "
    "pip install 'accumlint[probe]', where the script's own libraries are\n"
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = (
        "Runs SCRIPT, unmodified, in a child process with your rights, and keeps the books of its gradients. "
        "Arguments for the script stand after --. `accumlint probe merge DIR` joins the ledgers of ranks that you launched yourself."
    )
    parser.add_argument("script", metavar="SCRIPT", help="the training script, or a module with -m, or merge")
    parser.add_argument("folder", metavar="DIR", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module name")
    parser.add_argument("--ranks", type=int, metavar="N", help="processes to start through torchrun (default: 1)")
    parser.add_argument("--updates", type=int, metavar="N", help="leave after N updates, 0: run to the end (default: 12)")
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help="default: 600")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), help="cuda where there is one, else the CPU (default: auto)")
    parser.add_argument("--window", type=int, metavar="K", help="the configured accumulation, where it is not read off the script")
    parser.add_argument("--weights-only", action="store_true", help="weights and clocks only: hardly slower than the script itself")
    parser.add_argument("--replay", type=int, metavar="N", help="windows to recompute in float64 (default: 2)")
    parser.add_argument("--set", dest="constants", action="append", metavar="[MODULE:]NAME=VALUE", help="replace a module-level constant")
    parser.add_argument("--tiny", action="store_true", help="build Hugging Face models, tokenizers and data sets tiny, without network")
    parser.add_argument("--stress", action="store_true", help="short epochs and ragged labels, so that formulas differ and a tail appears")
    parser.add_argument("--no-second-pass", action="store_true", help="do not run again under stress when counts are equal")
    parser.add_argument("--as-cpu", action="store_true", help="let a script that insists on CUDA run on the CPU")
    parser.add_argument("--here", action="store_true", help="run in this folder instead of a scratch folder")
    parser.add_argument("--allow-network", action="store_true", help="do not take the network away")
    parser.add_argument("--keep-saving", action="store_true", help="let torch.save write checkpoints")
    parser.add_argument("--no-static", action="store_true", help="do not run the static check beside it")
    parser.add_argument("--recipe", metavar="FILE", help="options of this script (default: probe.yaml beside it)")
    parser.add_argument("--receipt", metavar="FILE", help="write an accumulation receipt")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--show-output", action="store_true", help="print what the script printed")
    # what follows -- belongs to the script, whatever it looks like
    parse = parser.parse_args

    def parse_args(argv: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if argv is None else argv)
        cut = words.index("--") if "--" in words else len(words)
        parsed = parse(words[:cut], namespace)
        parsed.arguments = words[cut + 1 :]
        return parsed

    parser.parse_args = parse_args  # type: ignore[method-assign]


SHORT = 7  # batches of a shortened epoch where K is not known


def stressing(window: int | None, ignore: int = -100) -> dict[str, Any]:
    """A stressed run: an epoch of two windows and one microbatch, and labels masked raggedly with the ignored one."""
    return {"ragged": True, "short": 2 * window + 1 if window and window > 1 else SHORT, "ignore": ignore}


class UsageError(Exception):
    """The command line or the recipe asks for something that cannot be done."""


def constants(wishes: list[str]) -> dict[str, dict[str, Any]]:
    """``MODULE:NAME=VALUE`` -> module -> name -> value; without a module it is the script's own. Raises UsageError."""
    out: dict[str, dict[str, Any]] = {}
    for wish in wishes:
        left, equals, right = wish.partition("=")
        module, colon, name = left.rpartition(":")
        if not equals or not name.isidentifier():
            raise UsageError(f"--set {wish}: expected [MODULE:]NAME=VALUE")
        try:
            value = ast.literal_eval(right)
        except (ValueError, SyntaxError):
            value = right
        out.setdefault(module if colon else "__main__", {})[name] = value
    return out


def run(arguments: Namespace) -> int:
    if arguments.script == "merge" and arguments.folder:
        return _merge(arguments)
    if arguments.folder:
        sys.stderr.write(f"accumlint probe: {arguments.folder}: arguments for the script stand after --\n")
        return BROKEN
    if importlib.util.find_spec("torch") is None:
        sys.stderr.write(_NO_TORCH)
        return BROKEN
    from accumlint.probe import launch
    from accumlint.probe.recipe import RecipeError

    try:
        plan, substitutions, window = _plan(arguments)
    except (UsageError, RecipeError) as error:
        sys.stderr.write(f"accumlint probe: {error}\n")
        return BROKEN
    if arguments.format == "text":
        sys.stderr.write(f"running {' '.join([plan.target, *plan.arguments])} in a child process, with your rights\n")
    beside = _static(arguments, plan)
    plan = replace(plan, names=beside.names)
    done = launch.run(plan)
    return _report(arguments, done, plan, substitutions, window, beside)


def _plan(arguments: Namespace) -> tuple[Plan, list[str], int | None]:
    from accumlint.probe.launch import Plan
    from accumlint.probe.recipe import recipe_for

    target = arguments.script
    if not arguments.module:
        target = os.path.abspath(target)
        if not os.path.isfile(target):
            raise UsageError(f"{arguments.script}: no such file")
    recipe = recipe_for(arguments.recipe or "", "" if arguments.module else target, os.getcwd())
    wishes = [*recipe.constants, *(arguments.constants or [])]
    values = constants(wishes)
    substitutions = [f"module constant {module}:{name}" for module, names in values.items() for name in names]
    words = tuple(arguments.arguments) or recipe.arguments
    ranks = recipe.ranks if arguments.ranks is None else arguments.ranks
    if ranks < 1:
        raise UsageError("--ranks must be at least 1")
    stress = arguments.stress or recipe.stress
    tiny = arguments.tiny or recipe.tiny
    as_cpu = arguments.as_cpu or recipe.as_cpu
    if stress:
        substitutions += ["labels masked raggedly", "epochs shortened"]
    if tiny:
        substitutions.append("tiny Hugging Face models, tokenizers and data sets")
    if as_cpu:
        substitutions.append("CUDA calls run on the CPU")
    plan = Plan(
        target, words, bool(arguments.module), ranks, recipe.updates if arguments.updates is None else arguments.updates, arguments.timeout or recipe.timeout,
        not arguments.weights_only, 2 if arguments.replay is None else arguments.replay, arguments.device or "", os.getcwd() if arguments.here else "",
        values, stressing(arguments.window or recipe.window) if stress else {}, tiny, as_cpu, not arguments.allow_network, arguments.keep_saving,
    )  # fmt: skip
    return plan, substitutions, arguments.window or recipe.window


def _static(arguments: Namespace, plan: Plan) -> Beside:
    """What the static check says of the script."""
    from accumlint.probe.beside import Beside, static_findings

    if arguments.no_static or plan.module:
        return Beside()

    return static_findings(plan.target, os.getcwd())


def _report(arguments: Namespace, done: Run, plan: Plan, substitutions: list[str], window: int | None, beside: Beside) -> int:
    from accumlint.probe import present, verdicts
    from accumlint.probe.assemble import assemble
    from accumlint.probe.judgements import judge

    here = os.getcwd()
    static, literal = beside.findings, beside.window
    made = assemble(done.recordings, window or literal)
    report = judge(made, done)
    found = verdicts.findings(report, here)
    on_static = verdicts.on_findings(static, found, report, here)
    error = present.script_error(done)
    stuck = present.hang(done)
    if arguments.show_output and done.output:
        sys.stderr.write(done.output)
    if arguments.format == "json":
        document = present.as_json(report, done, found, on_static, substitutions)
        document["error"], document["hang"] = error, stuck
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
    else:
        sys.stdout.write(present.as_text(report, done, found, on_static, substitutions))
        for line in stuck:
            sys.stdout.write(f"{line}\n")
        if error:
            sys.stdout.write(f"error: {error}\n")
            if not arguments.show_output:
                sys.stderr.write(done.output[-2000:])
    if _wants_second_pass(arguments, report, plan, error):
        _second_pass(arguments, report, done, plan, literal)
    if arguments.receipt:
        code = _write_receipt(arguments, report, done, plan, substitutions, on_static, found)
        if code:
            return code
    return exit_code(report, found, error, bool(stuck))


def _wants_second_pass(arguments: Namespace, report: Any, plan: Plan, error: str) -> bool:
    """Equal counts tell nothing about the formula: then the script is run once more on data that does."""
    return (
        report.judgements["weights"].verdict == "NOT-DISCRIMINATING" and not plan.stress and not arguments.no_second_pass and not error
        and arguments.format == "text" and arguments.script != "merge" and bool(report.windows)
    )  # fmt: skip


def _second_pass(arguments: Namespace, report: Any, done: Run, plan: Plan, literal: int | None) -> None:
    from accumlint.probe import launch, present, verdicts
    from accumlint.probe.assemble import assemble
    from accumlint.probe.judgements import judge

    rows = [row for record in done.recordings[0].of("backward") for row in record["terms"]]
    ignore = next((row["ignore"] for row in rows if row.get("ignore") is not None), -100)
    again = launch.run(replace(plan, stress=stressing(report.window, ignore)))
    second = judge(assemble(again.recordings, arguments.window or literal or report.window), again)
    found = verdicts.findings(second, os.getcwd())
    if second.judgements["weights"].verdict == "NOT-DISCRIMINATING":
        sys.stdout.write("\na second run under stress was made: its counts are equal as well (the labels do not come out of a torch data loader)\n")
        return
    sys.stdout.write("\nsecond run, with ragged labels and short epochs (not the script's own data; it does not change the verdict above)\n")
    sys.stdout.write(present.as_text(second, again, found, [], ["labels masked raggedly", "epochs shortened"]))


def exit_code(report: Any, found: list[Finding], error: str, stuck: bool) -> int:
    """0 nothing broken, 1 the contract is broken or ranks hang, 2 the script failed by itself, 3 no window was seen."""
    from accumlint.probe.verdicts import severity_fails

    if report.verdict == "FAIL" or severity_fails(found) or stuck:
        return FINDINGS
    if error:
        return BROKEN
    return 0 if report.windows else NOTHING


def _write_receipt(arguments: Namespace, report: Any, done: Run, plan: Plan, substitutions: list[str], on_static: Any, found: Any) -> int:
    from pathlib import Path

    from accumlint.probe import receipts
    from accumlint.receipt.problems import Rejected
    from accumlint.receipt.rejects import write_atomically

    try:
        made = receipts.write(report, done, None if plan.module else plan.target, os.getcwd(), plan)
    except (receipts.NoReceipt, Rejected) as refused:
        lines = refused.lines() if isinstance(refused, Rejected) else [str(refused)]
        for line in lines:
            sys.stderr.write(f"accumlint probe: no receipt: {line}\n")
        return BROKEN
    try:
        write_atomically(Path(arguments.receipt), made.data)
    except OSError as error:
        sys.stderr.write(f"accumlint probe: {arguments.receipt}: {error.strerror}\n")
        return BROKEN
    sys.stderr.write(f"{made.verdict}: receipt {made.hashes['receipt_sha256']}\n")
    if not plan.module and os.path.isfile(plan.target):
        from accumlint.probe import remembered
        from accumlint.probe.verdicts import display

        with open(plan.target, "rb") as stream:
            script = stream.read()
        told = remembered.document(script, made.hashes["receipt_sha256"], on_static, found, display(plan.target, os.getcwd()))
        write_atomically(Path(remembered.beside(arguments.receipt)), told)
    return 0


def _merge(arguments: Namespace) -> int:
    """Judge ledgers that ranks on several machines left in one folder."""
    from accumlint.probe.launch import Plan
    from accumlint.probe.records import Run, load

    try:
        recordings = load(arguments.folder)
    except OSError as error:
        sys.stderr.write(f"accumlint probe: {arguments.folder}: {error.strerror}\n")
        return BROKEN
    if not recordings:
        sys.stderr.write(f"accumlint probe: {arguments.folder}: no ledgers\n")
        return NOTHING
    script = str(recordings[0].head.get("argv0", ""))
    plan = Plan(script, module=not os.path.isfile(script))
    return _report(arguments, Run(recordings), plan, [], arguments.window, _static(arguments, plan))
