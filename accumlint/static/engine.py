"""One file through the first witness: parse, simulate, judge, and turn sites into places."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from accumlint import knowledge
from accumlint.contract import clauses
from accumlint.contract.events import Kind, Trace
from accumlint.contract.signature import signature
from accumlint.contract.timeline import first_sites, timeline
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger, Window
from accumlint.findings import Confidence, Detail, FileReport, Finding, LoopReport, Related, Severity, Span
from accumlint.static import syntax as ir
from accumlint.static.evidence import shows_padding, speaks_of_ignored_labels
from accumlint.static.explore import MAX_PATHS, MAX_STEPS, SHIFTED_LENGTH, Explored, Explorer, in_order
from accumlint.static.positions import Positions, header
from accumlint.static.project import Project, Trees
from accumlint.static.structure import NO_TRAINING_LOOP, worth_simulating
from accumlint.static.vocabulary import Vocabulary, build, shipped

DRAWN = 4  # pictures of one loop: the usual path and those on which something breaks
CONTROLS = 4  # paths on which a broken clause is tried again at an even length

__all__ = ["EngineSettings", "LoopReport", "Project", "Trees", "analyse", "examine"]


@dataclass(frozen=True)
class EngineSettings:
    """What a team adds: its own names, in the shape of ``rules/vocabulary/torch.yaml``.

    ``detail``: loop reports also say where the loop stands and which findings and weights it has; positions of
    scripts that are clean are computed for that, which a hook need not pay.
    """

    vocabulary: Mapping[str, Any] = field(default_factory=dict)
    detail: bool = False

    def names(self) -> Vocabulary:
        return build(self.vocabulary) if self.vocabulary else shipped()


def analyse(source: bytes, path: str, project: Project, settings: EngineSettings) -> FileReport:
    """Findings of one file, after a look at its structure; raises what :func:`examine` raises."""
    if not worth_simulating(source):
        return FileReport(path, skipped=NO_TRAINING_LOOP)
    return examine(source, path, project, settings)


@dataclass(frozen=True)
class Examination:
    """The report on one file with what it was made from."""

    report: FileReport
    module: ir.Module
    traces: tuple[Trace, ...]
    work: int  # steps of the simulation: what it cost, told the same on every machine


def examine(source: bytes, path: str, project: Project, settings: EngineSettings) -> FileReport:
    """Findings of one file that the structure sieve let through.

    Raises libcst.ParserSyntaxError, UnicodeDecodeError or RecursionError on what cannot be read.
    """
    return examination(source, path, project, settings).report


def examination(
    source: bytes, path: str, project: Project, settings: EngineSettings, max_paths: int = MAX_PATHS, *, evenly: bool = False
) -> Examination:
    """The same with module and traces; ``max_paths`` bounds how many paths of each root are simulated. Raises the same.

    ``evenly``: as many where nothing breaks as where something does, for who compares two versions of a file.
    """
    module = project.parse(source, path, path.rsplit("/", 1)[-1].removesuffix(".py"))
    judgements = _Judgements()
    breaks = {} if evenly else {"breaks": judgements.broken}
    explorer = Explorer(module, settings.names(), max_paths=max_paths, spoken=spoken_of(source), **breaks)
    explored = explorer.explore()
    places = Places(module, project)
    collected: dict[tuple[str, int], _Reported] = {}
    loops = []
    for root in explored:
        judged = [(trace, judgements.of(trace)) for trace in root.traces]
        _only_if_none_steps(judged)
        broken = [i for i, (_, ledgers) in enumerate(judged) if any(judgement.violations for _, judgement in ledgers)]
        _add_hidden_tails(explorer, root, judged)
        controls = [_judge(trace) for i in broken[:CONTROLS] if (trace := explorer.control(root, i)) is not None]
        broken_clauses = _reported(root, judged, controls)
        for reported in broken_clauses:
            key = (reported.violation.rule, reported.violation.site)
            held = collected.get(key)
            if held is None or held.confidence < reported.confidence:
                collected[key] = reported
        loop = _loop_report(root, judged, places)
        loops.append(_with_detail(loop, judged, broken_clauses, places) if settings.detail else loop)
    findings = [finding for reported in collected.values() if (finding := _finding(reported, places)) is not None]
    findings += _incomplete(explored, loops, path, findings)
    if explorer.exhausted:
        findings += _cut_off(loops, path)
    findings.sort(key=Finding.sort_key)
    report = FileReport(path, tuple(_without_twins(findings)), loops=tuple(loops), consulted=project.consulted.plain())
    return Examination(report, module, tuple(trace for root in explored for trace in root.traces), MAX_STEPS - explorer.steps_left)


def spoken_of(source: bytes) -> frozenset[str]:
    """Traits that the text of a script shows, whatever of it is simulated."""
    told = {"ignored labels": speaks_of_ignored_labels(source), "shows padding": shows_padding(source)}
    return frozenset(trait for trait, holds in told.items() if holds)


class Places:
    """Turns sites into spans; positions are computed only for files in which something is reported."""

    def __init__(self, module: ir.Module, project: Project) -> None:
        self.module = module
        self.project = project
        self._positions: dict[int, Positions] = {}

    def _module_of(self, site: int) -> ir.Module | None:
        return next((module for module in (self.module, *self.project.loaded()) if module.owns(site)), None)

    def span(self, site: int) -> Span | None:
        """The place of a site: for a compound statement its header, for everything else the node itself."""
        module = self._module_of(site)
        if module is None:
            return None
        index = site - module.base
        positions = self._positions_in(module)
        node = module.sites[index]
        place = positions.of(index, node)
        if place is None:
            return None
        end = place
        head = header(node)
        if head is not None:
            end = positions.of(index, head) or place
        return Span(module.path, place.line, place.column + 1, end.end_line, end.end_column + 1)

    def definition(self, function: ir.Function) -> int:
        """The line of a function, for which nothing is positioned where its name tells."""
        module = self._module_of(function.site)
        line = self._positions_in(module).definition(function.site - module.base, function.name) if module is not None else None
        return line if line is not None else self.line(function.site)

    def line(self, site: int) -> int:
        found = self.span(site)
        return found.line if found is not None else 1

    def _positions_in(self, module: ir.Module) -> Positions:
        positions = self._positions.get(module.base)
        if positions is None:
            positions = self._positions[module.base] = Positions(module.tree, module.source, module.starts)
        return positions


@dataclass
class _Reported:
    violation: Violation
    confidence: Confidence
    flags: tuple[str, ...]
    ledger: Ledger


Judged = list[tuple[Trace, list[tuple[Ledger, Judgement]]]]


def _reported(root: Explored, judged: Judged, controls: list[list[tuple[Ledger, Judgement]]]) -> list[_Reported]:
    """What the paths of one root say together: one report for each rule and place, with its confidence."""
    applied: dict[str, list[int]] = {}
    found: dict[str, dict[int, list[Violation]]] = {}
    ledger_of: dict[tuple[str, int], Ledger] = {}
    for index, (trace, ledgers) in enumerate(judged):
        for ledger, judgement in ledgers:
            for rule in judgement.applied:
                if index not in applied.setdefault(rule, []):
                    applied[rule].append(index)
            for violation in judgement.violations:
                found.setdefault(violation.rule, {}).setdefault(index, []).append(violation)
                ledger_of.setdefault((violation.rule, violation.site), ledger)
    hidden = _hidden_by_cause(found)
    out = []
    for rule, by_path in sorted(found.items()):
        if rule in hidden:
            continue
        usual = [i for i in by_path if judged[i][0].disturbed is None]
        paths = [i for i in applied.get(rule, list(by_path)) if judged[i][0].disturbed is None or i in by_path]
        if usual:
            paths = [i for i in paths if judged[i][0].disturbed is None]
        certain = set(paths) <= set(by_path)
        richest = max(by_path.values(), key=len)
        # the path that says most speaks first; a place that only another path reaches (the other branch of a mixed
        # precision switch) wants mending as well, and is a report of its own
        sites: dict[int, Violation] = {}
        for violation in itertools.chain(richest, *by_path.values()):
            sites.setdefault(violation.site, violation)
        even = _in_controls(rule, controls)
        for site, violation in sites.items():
            confidence = Confidence.CERTAIN if certain else Confidence.POSSIBLE
            if usual and not even and rule not in ("ACC208", "ACC601") and confidence is Confidence.CERTAIN:
                confidence = Confidence.CONDITIONAL
            confidence = min(confidence, violation.cap)
            flags = () if certain else _telling_flags(judged, by_path, paths)
            out.append(_Reported(violation, confidence, flags, ledger_of[rule, site]))
    return out


# what can be said of a framework's window although nothing in the script shows how large it is
_WITHOUT_K = frozenset({"ACC103", "ACC209", "ACC304", "ACC211", "ACC403", "ACC704"})
# what is a fault, or none, by whether an optimizer or scheduler went through `prepare()`
_IF_PREPARED = frozenset({"ACC201", "ACC202", "ACC204"})
_PLACEHOLDERS = ("gradient_accumulation_steps of the DeepSpeed configuration",)


def _within_the_law(trace: Trace, ledgers: list[tuple[Ledger, Judgement]]) -> list[tuple[Ledger, Judgement]]:
    """Drop what rests on a K that only a framework's configuration knows, or on a law that is not in force."""
    spoken = trace.window_text and not trace.window_text.startswith(_PLACEHOLDERS)
    owned = {"framework deepspeed", "framework lightning"} & trace.traits
    if {"constructor raised", "framework accelerate"} <= trace.traits:
        # what it would have prepared further down is not known to be
        for _, judgement in ledgers:
            judgement.violations = [v for v in judgement.violations if v.rule not in _IF_PREPARED]
    kept = None
    if owned and not spoken and "manual optimization" not in trace.traits:
        kept = _WITHOUT_K
    if "framework accelerate" in trace.traits and "under deepspeed" in trace.traits:
        kept = frozenset({"ACC103", "ACC704"})  # the engine steps, clips and divides there
    if "framework transformers" in trace.traits:
        # the Trainer's own way of averaging is no fault of the script
        kept = frozenset({"ACC102", "ACC103", "ACC104", "ACC107", "ACC205", "ACC401", "ACC201"})
    if kept is not None:
        for _, judgement in ledgers:
            judgement.violations = [v for v in judgement.violations if v.rule in kept]
    return ledgers


class _Judgements:
    """What the contract says of each trace, worked out once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Trace, list[tuple[Ledger, Judgement]]]] = {}  # by identity; the trace keeps it alive

    def of(self, trace: Trace) -> list[tuple[Ledger, Judgement]]:
        known = self._known.get(id(trace))
        if known is None:
            known = self._known[id(trace)] = (trace, _within_the_law(trace, _judge(trace)))
        return known[1]

    def broken(self, trace: Trace) -> bool:
        """Whether something breaks that is more than advice."""
        return any(_loud(violation) for _, judgement in self.of(trace) for violation in judgement.violations)


def _loud(violation: Violation) -> bool:
    rule = knowledge.page(violation.rule)
    severity = violation.severity or (rule.severity if rule is not None else Severity.ADVICE)
    return severity >= Severity.WARNING


def _judge(trace: Trace) -> list[tuple[Ledger, Judgement]]:
    return clauses.judge(trace) or _without_steps(trace)


def _without_steps(trace: Trace) -> list[tuple[Ledger, Judgement]]:
    """A trace without any step: an empty ledger that carries what is said of the trace itself."""
    violations = clauses.judge_trace(trace)
    if not violations:
        return []
    nothing = Window(0, None, trace.events, [], [], [])
    return [(Ledger(trace, frozenset(), None, [], nothing, True, True), Judgement(violations, {v.rule for v in violations}))]


def _only_if_none_steps(judged: Judged) -> None:
    """A gate that holds on one path is not stuck: on the others the optimizer was not recognised."""
    if any(ledger.windows for _, ledgers in judged for ledger, _ in ledgers):
        for _, ledgers in judged:
            for ledger, judgement in ledgers:
                if not ledger.windows:
                    judgement.violations = [v for v in judgement.violations if v.rule != "ACC213"]


def _add_hidden_tails(explorer: Explorer, root: Explored, judged: Judged) -> None:
    """Leaks of windows that begin one microbatch late, which come out even at the usual length: another length shows them."""
    for index, (_, ledgers) in enumerate(judged[:CONTROLS]):
        rules = {violation.rule for _, judgement in ledgers for violation in judgement.violations}
        if "ACC206" not in rules or rules & {"ACC501", "ACC502"}:
            continue
        trace = explorer.control(root, index, SHIFTED_LENGTH)
        for ledger, judgement in _judge(trace) if trace is not None else ():
            leaks = [violation for violation in judgement.violations if violation.rule == "ACC502"]
            if leaks:
                ledgers.append((ledger, Judgement(leaks, {"ACC502"})))


def _hidden_by_cause(found: dict[str, dict[int, list[Violation]]]) -> set[str]:
    """A consequence that shows on the very paths of its cause is not a finding of its own."""
    hidden: set[str] = set()
    for cause, by_path in found.items():
        for rule in clauses.CONSEQUENCES.get(cause, ()):
            if rule in found and set(found[rule]) <= set(by_path):
                hidden.add(rule)
    return hidden


def _in_controls(rule: str, controls: list[list[tuple[Ledger, Judgement]]]) -> bool:
    return any(v.rule == rule for ledgers in controls for _, judgement in ledgers for v in judgement.violations)


def _telling_flags(judged: Judged, by_path: dict[int, list[Violation]], paths: list[int]) -> tuple[str, ...]:
    """The decisions that lead to the fault and not away from it, as few as possible."""
    clean = [dict(judged[i][0].flags) for i in paths if i not in by_path]
    best: tuple[str, ...] = ()
    for index in by_path:
        flags = dict(judged[index][0].flags)
        differing = [
            f"{key} is {str(value).lower()}" for key, value in flags.items()
            if isinstance(value, bool) and any(other.get(key) is not None and other.get(key) != value for other in clean)
        ]  # fmt: skip
        if differing and (not best or len(differing) < len(best)):
            best = tuple(differing)
    return best[:4]


def _finding(reported: _Reported, places: Places) -> Finding | None:
    violation = reported.violation
    rule = knowledge.page(violation.rule)
    span = places.span(violation.site)
    if span is None or rule is None:
        return None
    related = [Related(place, text) for site, text in violation.related if (place := places.span(site)) is not None and place != span]
    evidence = dict(violation.evidence)
    sites = {lane: places.span(site) for lane, site in first_sites(reported.ledger).items()}
    lines = {lane: at.line for lane, at in sites.items() if at is not None and at.path == span.path}
    evidence["timeline"] = {**timeline(reported.ledger), "lines": lines}
    if reported.flags:
        evidence["flags"] = list(reported.flags)
    message = violation.message
    if reported.flags:
        message += f" (when {' and '.join(reported.flags)})"
    return Finding(
        rule.code, rule.name, rule.clause, violation.severity or rule.severity, reported.confidence, span, message, evidence, tuple(related)
    )


def _without_twins(findings: list[Finding]) -> list[Finding]:
    """One finding for each rule and line: two roots may reach the same loop."""
    seen: set[tuple[str, str, int]] = set()
    out = []
    for finding in findings:
        key = (finding.rule, finding.span.path, finding.span.line)
        if key not in seen:
            seen.add(key)
            out.append(finding)
    return out


def _loop_report(root: Explored, judged: Judged, places: Places) -> LoopReport:
    function = root.root.function
    line = places.definition(function) if function is not None else 1
    window = ""
    if root.window_names:
        window = ", ".join(in_order(root.window_names, places.module)) + " (simulated as 3)"
    elif root.learned is not None and root.learned.literal is not None:
        window = f"{root.learned.literal}, a number in the script (simulated as 3)"
    trace = judged[0][0] if judged else None
    objects = tuple(
        f"{s.name} ({s.kind})" for s in (trace.subjects.values() if trace is not None else ()) if s.kind in ("optimizer", "scheduler", "scaler", "data_parallel", "sharded", "accelerator", "engine")
    )
    flags = tuple(dict.fromkeys(key for trace, _ in judged for key, value in trace.flags if isinstance(value, bool)))
    gaps = [*root.gaps, *([root.cut] if root.cut else [])]
    assumed = tuple(dict.fromkeys(a for trace, _ in judged for a in trace.assumptions))
    timelines = tuple(timeline(ledger) for _, ledgers in judged[:2] for ledger, _ in ledgers if ledger.windows)
    frameworks = tuple(sorted({t.removeprefix("framework ") for trace, _ in judged for t in trace.traits if t.startswith("framework ")}))
    return LoopReport(root.root.name, line, window, frameworks, objects, len(root.traces), flags, assumed, tuple(gaps), timelines)


def _with_detail(loop: LoopReport, judged: Judged, broken: list[_Reported], places: Places) -> LoopReport:
    """The report with one usual path and the windows behind each finding drawn, their weights, and the loop's place."""
    ledgers = [*_usual_path(judged), *(reported.ledger for reported in broken if reported.ledger.windows)]
    timelines: list[dict[str, Any]] = []
    signatures = []
    for ledger in ledgers:
        shown = timeline(ledger, odd=True)
        if shown not in timelines and len(timelines) < DRAWN:
            timelines.append(shown)
            signatures.append(signature(ledger))
    breaks = []
    for reported in broken:
        span = places.span(reported.violation.site)
        if span is not None:
            shown = timeline(reported.ledger, odd=True)
            index = timelines.index(shown) if shown in timelines else -1
            breaks.append((reported.violation.rule, span.path, span.line, index))
    head = places.span(_head(judged))
    path, line = (head.path, head.line) if head is not None else (places.module.path, loop.line)
    detail = Detail(path, line, tuple(signatures), tuple(sorted(breaks)))
    return replace(loop, timelines=tuple(timelines), detail=detail)


def _usual_path(judged: Judged) -> list[Ledger]:
    """The ledgers of the first path that accumulates, else of the first that steps at all."""
    paths = [[ledger for ledger, _ in ledgers if ledger.windows] for _, ledgers in judged]
    accumulating = [path for path in paths if any(ledger.accumulates for ledger in path)]
    return next(iter([*accumulating, *filter(None, paths)]), [])


def _head(judged: Judged) -> int:
    """The site of the loop that carries the microbatches, -1 where a framework runs it."""
    sites = (e.site for trace, _ in judged for e in trace.events if e.kind is Kind.LOOP and e.details["role"] == "micro")
    return next(sites, -1)


def _cut_off(loops: list[LoopReport], path: str) -> list[Finding]:
    """ACC003 for a file that is too much to simulate: its findings stand, and there may be others."""
    rule = knowledge.page("ACC003")
    if rule is None:
        return []
    line = loops[-1].line if loops else 1
    message = f"the simulation of this file was stopped after {MAX_STEPS:,} steps: what it does beyond them is not known"
    return [
        Finding(
            rule.code, rule.name, rule.clause, Severity.ADVICE, Confidence.CERTAIN, Span(path, line, 1, line, 1), message, {}
        )
    ]


def _incomplete(explored: list[Explored], loops: list[LoopReport], path: str, findings: list[Finding]) -> list[Finding]:
    """ACC003 for every loop that speaks of a window of which nothing could be drawn."""
    out: list[Finding] = []
    rule = knowledge.page("ACC003")
    if rule is None:
        return out
    for root, loop in zip(explored, loops):
        if not (root.window_names or (root.learned is not None and root.learned.literal is not None)):
            continue
        if loop.timelines or any(f.span.path == path for f in findings):
            continue
        if not root.window_names and not loop.objects:
            continue  # a backward that is repeated so many times and never stepped: it is timed or probed
        reason = "; ".join(loop.not_followed) or "no optimizer step was reached from this function"
        span = Span(path, loop.line, 1, loop.line, 1)
        out.append(Finding(
            rule.code, rule.name, rule.clause, Severity.ADVICE, Confidence.CERTAIN, span,
            f"an accumulation window is configured ({loop.window}), but its updates could not be simulated: {reason}", {},
        ))  # fmt: skip
    return out
