"""A run's report as text for a terminal and as JSON."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from accumlint.findings import Finding
from accumlint.probe.judgements import Report, WindowReport
from accumlint.probe.records import Run
from accumlint.probe.verdicts import OnFinding, plain

SCHEMA = "accumlint/probe/v1"
SHOWN = 8
# parts of a file name in a stack dump that are not the user's
_LIBRARIES = ("site-packages", "<frozen", f"{os.sep}lib{os.sep}python", f"accumlint{os.sep}probe{os.sep}")


def as_json(report: Report, run: Run, found: Sequence[Finding], on_static: Sequence[OnFinding], substitutions: Sequence[str]) -> dict[str, Any]:
    head = run.recordings[0].head if run.recordings else {}
    return {
        "schema": SCHEMA,
        "verdict": report.verdict,
        "judgements": {name: {"verdict": v.verdict, "reason": v.reason, "value": v.value} for name, v in report.judgements.items()},
        "windows": [_window_json(w) for w in report.windows],
        "accumulation_steps": report.window,
        "pending": report.pending,
        "tails": report.tails,
        "auxiliary_losses": [{"kind": a.slot[0], "verdict": a.verdict.verdict, "reason": a.verdict.reason} for a in report.auxiliaries],
        "findings": [plain(f) for f in found],
        "static": [{**plain(o.finding), "verdict": o.verdict, "reason": o.reason} for o in on_static],
        "run": {
            "ranks": len(run.recordings), "world": run.world, "exit_code": run.exit_code, "timed_out": run.timed_out, "seconds": round(run.seconds, 3),
            "torch": head.get("torch"), "device": head.get("device"), "network_isolated": run.isolated,
            "ended": [r.ending or "cut off" for r in run.recordings], "hooks": head.get("hooks", {}),
        },
        "substitutions": list(substitutions),
        "notes": report.notes,
    }  # fmt: skip


def _window_json(window: WindowReport) -> dict[str, Any]:
    return {
        "index": window.index, "microbatches": window.size, "valid_targets": [list(c) for c in window.counts], "weight_times_n": [list(r) for r in window.ratios],
        "formula": window.formula, "separation": window.separation, "clocks": dict(window.clocks), "disposition": window.disposition,
        "sync": list(window.synchronised), "reductions": list(window.reductions), "clip_factor": window.clip_factor,
        **{name: {"verdict": v.verdict, "reason": v.reason, "value": v.value} for name, v in (("weights", window.weights), ("integrity", window.integrity), ("reference", window.reference))},
    }  # fmt: skip


def as_text(report: Report, run: Run, found: Sequence[Finding], on_static: Sequence[OnFinding], substitutions: Sequence[str]) -> str:
    lines = [f"{report.verdict}"]
    for name, verdict in report.judgements.items():
        value = "" if verdict.value is None else f" ({verdict.value:.2g})"
        lines.append(f"  {name:<10} {verdict.verdict:<18} {verdict.reason}{value}")
    if report.windows:
        lines.append("")
        lines.append(f"windows (K = {report.window})")
        for window in report.windows[:SHOWN]:
            lines += _window_lines(window)
        if len(report.windows) > SHOWN:
            lines.append(f"  … {len(report.windows) - SHOWN} more")
    for tail in report.tails[:4]:
        lines.append(f"  tail: {tail}")
    for auxiliary in report.auxiliaries:
        lines.append(f"  also {auxiliary.slot[0]}: {auxiliary.verdict.verdict}, {auxiliary.verdict.reason}")
    if found:
        lines.append("")
        lines.append("findings of the run")
        for finding in found:
            lines.append(f"  {finding.span.path}:{finding.span.line}: {finding.severity.label} {finding.rule} {finding.name}: {finding.message}")
            for related in finding.related:
                lines.append(f"    {related.span.path}:{related.span.line}: {related.message}")
    if on_static:
        lines.append("")
        lines.append("findings of the static check")
        for told in on_static:
            lines.append(f"  {told.finding.span.path}:{told.finding.span.line}: {told.finding.rule} {told.finding.name}: {told.verdict} ({told.reason})")
    lines += _run_lines(report, run, substitutions)
    return "\n".join(lines) + "\n"


def _window_lines(window: WindowReport) -> list[str]:
    out = []
    for rank, counts in enumerate(window.counts):
        name = f"  {window.index:>3}" if rank == 0 else "     "
        where = f" rank {rank}" if len(window.counts) > 1 else ""
        ratios = window.ratios[rank] if rank < len(window.ratios) else ()
        weights = f"  weight×N {_listed(ratios)}" if ratios else ""
        out.append(f"{name}{where}  targets {_listed([str(c) for c in counts])}{weights}")
    clocks = ", ".join(f"{name} {count}" for name, count in window.clocks.items() if count)
    words = f"{window.weights.verdict}/{window.integrity.verdict}/{window.reference.verdict}"
    extra = "" if window.disposition == "full" else f"; {window.disposition}"
    formula = f"; {window.formula}" if window.formula else ""
    out.append(f"       weights/integrity/reference {words}; {clocks}{extra}{formula}")
    return out


def _listed(values: Sequence[str], limit: int = 10) -> str:
    return ", ".join(values[:limit]) + (", …" if len(values) > limit else "")


def _run_lines(report: Report, run: Run, substitutions: Sequence[str]) -> list[str]:
    lines = [""]
    head = run.recordings[0].head if run.recordings else {}
    network = {True: "no network", False: "network not isolated", None: "network as it is"}[run.isolated]
    lines.append(f"ran {len(run.recordings) or 'no'} rank{'s' if len(run.recordings) != 1 else ''} in {run.seconds:.1f} s on {head.get('device', 'nothing')}, torch {head.get('torch', '?')}, {network}")
    lines += [f"substituted: {text}" for text in substitutions]
    for note in report.notes:
        lines.append(f"note: {note}")
    return lines


def script_error(run: Run) -> str:
    """The script's own error in one line, or an empty string: told apart from a finding."""
    for recording in run.recordings:
        for record in recording.of("end"):
            if record.get("reason") == "error":
                line = record.get("line")
                where = f" at {line[0]}:{line[1]}" if line else ""
                return f"the script raised {record.get('error')}{where}: {record.get('text', '')}"
    if not run.timed_out and run.exit_code not in (0, None):
        finished = len(run.recordings) == run.world and all(each.ending == "finished" for each in run.recordings)
        when = ", after every rank had come to its end" if finished and run.world > 1 else ""
        told = _last_words(run.output)
        return f"the script ended with exit code {run.exit_code}{when}" + (f": {told[:300]}" if told else "")
    return ""


# what torch.distributed.elastic says of the process that failed first
_ROOT_CAUSE = re.compile(
    r"Root Cause.*?^\s*rank\s*:\s*(?P<rank>\d+).*?^\s*exitcode\s*:\s*(?P<code>-?\d+).*?^\s*traceback\s*:\s*(?P<signal>Signal \d+ \(\w+\))?",
    re.DOTALL | re.MULTILINE,
)


def _last_words(output: str) -> str:
    """What the output says of why it ended: the launcher's root cause, else the last line that says anything."""
    cause = _ROOT_CAUSE.search(output)
    if cause is not None:
        return f"rank {cause['rank']}: {cause['signal'] or 'exit code ' + cause['code']}"
    return next((line.strip() for line in reversed(output.splitlines()) if re.search(r"\w", line)), "")


def hang(run: Run) -> list[str]:
    """What each rank was doing when the time ran out."""
    if not run.timed_out:
        return []
    out = ["the time limit was reached"]
    for recording in run.recordings:
        last = next((r for r in reversed(recording.records) if r.get("f")), None)
        steps = len(recording.of("step"))
        if recording.ending:
            out.append(f"rank {recording.rank}: {recording.ending} after {steps} steps")
        elif last is not None:
            path, line, _ = last["f"][-1]
            out.append(f"rank {recording.rank}: last seen at {path}:{line} ({last['k']}), after {steps} steps and {len(recording.of('backward'))} backwards")
    behind = _unfinished(run)
    if behind:
        out.append(behind)
    for text in run.stacks.values():
        frames = [line.strip() for line in text.splitlines() if line.strip().startswith("File")]
        own = [line for line in frames if not any(part in line for part in _LIBRARIES)]
        if own:  # launchers have no frame of the user's
            where = "" if own[0] == frames[0] else f", inside {frames[0].rpartition(' in ')[2]}"
            out.append(f"  a process stands at {own[0]}{where}")
    return out


def _unfinished(run: Run) -> str:
    """The first window that some rank has stepped on and another has not."""
    steps = {recording.rank: len(recording.of("step")) for recording in run.recordings}
    if len(set(steps.values())) < 2:
        return ""
    last = min(steps.values())
    late = ", ".join(str(rank) for rank, count in steps.items() if count == last)
    return f"window {last} is the first that not every rank finished: rank {late} never stepped on it"
