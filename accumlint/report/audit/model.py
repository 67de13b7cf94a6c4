"""What an audit report says, as plain data: built once, rendered as HTML, Markdown or JSON.

Paths are relative to the audited folder and places of the machine occur nowhere, so that a report can be
passed on. Everything here is a pure function of a run: the same tree gives the same report.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from accumlint.report.timeline import EVENT_LANES

if TYPE_CHECKING:
    from accumlint import findings as found
    from accumlint.config.table import Arithmetic
    from accumlint.report.model import Report

SCHEMA = "accumlint/audit/v1"

SEVERITIES = ("error", "warning", "advice")
CONFIDENCES = ("certain", "conditional", "possible")
# Which of two equally grave findings comes first: what is optimised, then by whom, when, with which bound, how far.
CLAUSES = ("C1", "C2", "C6", "C4", "C8", "C3", "C5", "C7", "C9", "C0")
# The findings that say of every window that its weights are wrong ...
_WEIGHS = ("ACC1", "ACC204", "ACC205", "ACC208", "ACC210")
# ... and those that say it of windows of another size only
_WEIGHS_TAIL = ("ACC5",)
STEPS_SHOWN = 6
PLACES_SHOWN = 5


@dataclass(frozen=True)
class Place:
    """A line of a file, with what is said of it; in a notebook the line is that of its ``cell`` (0: no notebook)."""

    path: str
    line: int
    message: str = ""
    cell: int = 0


@dataclass(frozen=True)
class Fix:
    """A change after which the simulated contract holds; ``safe`` where it can't change a run whose K is 1."""

    title: str
    safe: bool
    why_unsafe: str = ""


@dataclass(frozen=True)
class Finding:
    """One finding. ``loops``: indices of the loops that it was found in; ``windows``: microbatches of each window.

    In a notebook ``line`` is counted within its ``cell`` (0: no notebook).
    """

    rule: str
    name: str
    clause: str
    severity: str
    confidence: str
    path: str
    line: int
    column: int
    message: str
    cell: int = 0
    source: str = ""
    related: tuple[Place, ...] = ()
    windows: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()
    note: str = ""
    fix: Fix | None = None
    loops: tuple[int, ...] = ()


@dataclass(frozen=True)
class Beat:
    """One microbatch of a window; ``sync`` is None where it is unknown, or nothing could be synchronised."""

    index: int
    epoch: int
    forward: bool
    backward: bool
    sync: bool | None
    events: tuple[str, ...] = ()


@dataclass(frozen=True)
class Window:
    """The microbatches of one optimizer step, and what happened at its boundary; ``number`` counts from 1."""

    number: int
    beats: tuple[Beat, ...]
    events: tuple[str, ...] = ()
    tail: bool = False


@dataclass(frozen=True)
class Share:
    """The targets of one microbatch on one rank, and what each of them weighs: in the script, by the contract."""

    valid_targets: str
    weight: str | None
    right: str | None


@dataclass(frozen=True)
class Weights:
    """One window by its ``number`` from 1: ``indices`` are its microbatches from 0, ``shares`` theirs, by rank;
    ``total`` are the targets of all of them, ``stale`` earlier microbatches whose gradient is still mixed in."""

    number: int
    verdict: str
    factor: str | None
    total: str
    stale: int
    indices: tuple[int, ...]
    shares: tuple[tuple[Share, ...], ...]


@dataclass(frozen=True)
class Signature:
    """The weights behind a timeline.

    ``state``: right, broken (a finding says so), unjudged (something rests on a convention, so nothing is
    claimed) or unknown, with its ``reason``.
    """

    state: str
    reason: str
    ranks: int
    windows: tuple[Weights, ...]


@dataclass(frozen=True)
class Picture:
    """One simulated path: its windows, their weights, and the findings (by index) that it shows."""

    k: int
    windows: tuple[Window, ...]
    pending: int
    note: str
    signature: Signature | None
    findings: tuple[int, ...] = ()


@dataclass(frozen=True)
class Loop:
    """One training loop. ``kind``: broken, clean, no-window (nothing accumulates) or not-followed."""

    path: str
    function: str
    place: Place
    kind: str
    window: str = ""
    frameworks: tuple[str, ...] = ()
    objects: tuple[str, ...] = ()
    paths: int = 0
    flags: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()
    not_followed: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    findings: tuple[int, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One number of a batch, with the place that states it."""

    quantity: str
    value: str
    source: str


@dataclass(frozen=True)
class Configuration:
    """One configuration: micro × accumulation × ranks = global. ``closes`` is None where that is open."""

    path: str
    dialect: str
    rows: tuple[Row, ...]
    closes: bool | None
    verdict: str


@dataclass(frozen=True)
class Left:
    """Files that were not analysed, and why; ``places`` names those that are known by name."""

    reason: str
    why: str
    files: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Coverage:
    """What was looked at; ``without`` are files that a sieve could clear (sieve -> files)."""

    files: int
    simulated: int
    configurations: int
    without: Mapping[str, int]
    loops: int
    accumulating: int
    frameworks: Mapping[str, int]
    suppressed: int
    left: tuple[Left, ...] = ()


@dataclass(frozen=True)
class Step:
    """One thing to do, in the order of what it is worth."""

    title: str
    detail: str
    rule: str = ""
    severity: str = ""
    count: int = 0
    places: tuple[Place, ...] = ()
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class Revision:
    """The commit that was audited; ``committed`` is its date (ISO 8601, UTC), ``changed``: files differ from it."""

    commit: str
    committed: str
    changed: bool = False


@dataclass(frozen=True)
class Audit:
    """The whole report; findings come worst first, loops by the worst finding in them, then by place.

    ``source_url`` leads to a line of the sources, with ``{path}``, ``{line}`` and ``{commit}`` in it; empty: nowhere.
    """

    schema: str
    version: str
    name: str
    revision: Revision | None
    coverage: Coverage
    first: tuple[Step, ...]
    findings: tuple[Finding, ...]
    loops: tuple[Loop, ...]
    configurations: tuple[Configuration, ...]
    source_url: str = ""


@dataclass(frozen=True)
class Script:
    """What a command that runs a script needs to know of its source."""

    runnable: bool
    hugging_face: bool


def rank(severity: str, confidence: str, clause: str) -> tuple[int, int, int]:
    """Sorts by harm: severity, then confidence, then the clause that breaks."""
    place = CLAUSES.index(clause) if clause in CLAUSES else len(CLAUSES)
    return SEVERITIES.index(severity), CONFIDENCES.index(confidence), place


def _finding_rank(finding: Finding) -> tuple:
    harm = rank(finding.severity, finding.confidence, finding.clause)
    return (*harm, finding.path, finding.cell, finding.line, finding.column, finding.rule, finding.message)


def script_of(source: bytes) -> Script:
    """What the bytes of a script say about running it."""
    return Script(b"__main__" in source, b"from_pretrained" in source or b"transformers" in source)


def build(
    report: Report,
    name: str,
    version: str,
    revision: Revision | None,
    arithmetic: Sequence[Arithmetic],
    scripts: Mapping[str, Script],
    advice: Mapping[str, str],
    source_url: str = "",
) -> Audit:
    """The report of one run.

    ``scripts`` knows the files that hold loops, ``advice`` the first thing to do about each rule.
    """
    ranked = sorted(
        ((_finding(report, each), each.span.line) for each in report.findings),
        key=lambda pair: _finding_rank(pair[0]),
    )
    findings = [each for each, _ in ranked]
    index = {
        (each.rule, each.path, line): number for number, (each, line) in reversed(list(enumerate(ranked)))
    }
    loops = [
        _loop(report, path, each, index, findings, scripts.get(path, Script(False, False)))
        for path in sorted(report.loops)
        for each in report.loops[path]
    ]
    loops.sort(
        key=lambda loop: (
            _KINDS.index(loop.kind),
            min(loop.findings, default=0),
            loop.path,
            loop.place.cell,
            loop.place.line,
            loop.function,
        )
    )
    for number, loop in enumerate(loops):
        for position in loop.findings:
            held = findings[position]
            findings[position] = dataclasses.replace(held, loops=(*held.loops, number))
    configurations = tuple(
        Configuration(
            a.path, a.dialect, tuple(Row(r.quantity, r.value, r.source) for r in a.rows), a.closes, a.verdict
        )
        for a in arithmetic
    )
    coverage = _coverage(report, loops, findings)
    first = _first_steps(findings, loops, coverage, advice)
    return Audit(
        SCHEMA,
        version,
        name,
        revision,
        coverage,
        first,
        tuple(findings),
        tuple(loops),
        configurations,
        source_url,
    )


_KINDS = ("broken", "not-followed", "clean", "no-window")


def _place(report: Report, path: str, line: int, message: str = "") -> Place:
    cell, line = report.cell(path, line) or (0, line)
    return Place(path, line, message, cell)


def spot(where: Place | Finding) -> str:
    """A place as people read it: path, line, and the cell of a notebook."""
    return f"{where.path}:cell {where.cell}:{where.line}" if where.cell else f"{where.path}:{where.line}"


def is_source_url(template: str) -> bool:
    """Whether places may lead there: an address of the web that takes a path, or nothing."""
    return (
        not template
        or template.startswith(("https://", "http://"))
        and "{path}" in template
        and template.isprintable()
    )


def address(audit: Audit, where: Place | Finding) -> str:
    """Where the sources of a place can be read, empty where that isn't known. A line of a cell is no line of its file."""
    if not audit.source_url:
        return ""
    template = audit.source_url.partition("#")[0] if where.cell else audit.source_url
    commit = audit.revision.commit if audit.revision else "HEAD"
    filled = template.replace("{commit}", commit).replace("{line}", str(where.line))
    return filled.replace("{path}", quote(where.path, safe="/"))


def _finding(report: Report, finding: found.Finding) -> Finding:
    span, evidence = finding.span, finding.evidence
    whole_file = finding.rule == "ACC003" and (span.line, span.column) == (1, 1)
    source = "" if whole_file else (report.line(span.path, span.line) or "").strip()
    fix = None if finding.fix is None else Fix(finding.fix.title, finding.fix.safe, finding.fix.why_unsafe)
    place = _place(report, span.path, span.line)
    return Finding(
        finding.rule, finding.name, finding.clause, finding.severity.label, finding.confidence.label,
        span.path, place.line, span.column, finding.message, place.cell, source[:400],
        tuple(_place(report, each.span.path, each.span.line, each.message) for each in finding.related),
        tuple(int(size) for size in evidence.get("windows") or ()),
        tuple(map(str, evidence.get("flags") or ())), str(evidence.get("note") or ""), fix,
    )  # fmt: skip


def _loop(
    report: Report,
    path: str,
    loop: Any,
    index: Mapping[tuple, int],
    findings: Sequence[Finding],
    script: Script,
) -> Loop:
    detail = loop.detail
    breaks = [
        (index[rule, where, line], drawn)
        for rule, where, line, drawn in detail.breaks
        if (rule, where, line) in index
    ]
    pictures = []
    for number, timeline in enumerate(loop.timelines):
        here = tuple(sorted({finding for finding, drawn in breaks if drawn == number}))
        rules = [findings[each].rule for each in here]
        pictures.append(_picture(timeline, detail.signatures[number], rules, here))
    shown = tuple(sorted({finding for finding, _ in breaks}))
    accumulates = any(len(window.beats) > 1 for picture in pictures for window in picture.windows)
    if shown:
        kind = "broken"
    elif accumulates:
        kind = "clean"
    else:
        kind = "no-window" if pictures or not loop.window else "not-followed"
    return Loop(
        path, "" if loop.function == "<module>" else loop.function, _place(report, detail.path, detail.line), kind,
        loop.window, tuple(loop.frameworks), _named(loop.objects), loop.paths, _named(loop.flags), tuple(loop.assumed),
        tuple(loop.not_followed), tuple(pictures) if kind != "no-window" else (), shown,
        _commands(path, loop.objects, script, kind, [findings[each].rule for each in shown]),
    )  # fmt: skip


def _named(spellings: Iterable[str]) -> tuple[str, ...]:
    """Each once; spellings that only the simulation uses, for what has no name, are left out."""
    return tuple(each for each in dict.fromkeys(spellings) if "@" not in each and "..." not in each)


def _commands(
    path: str, objects: Iterable[str], script: Script, kind: str, rules: Sequence[str]
) -> tuple[str, ...]:
    if kind == "no-window":
        return ()
    quoted = shlex.quote(path if not path.startswith("-") else f"./{path}")
    commands = [f"accumlint trace {quoted}"]
    if script.runnable:
        ranks = (
            " --ranks 2" if any(each.endswith(("(data_parallel)", "(sharded)")) for each in objects) else ""
        )
        tiny = " --tiny" if script.hugging_face else ""
        commands.append(f"accumlint probe {quoted}{ranks}{tiny}")
    return (*commands, *(f"accumlint explain {rule}" for rule in rules[:1]))


def _picture(
    timeline: Mapping[str, Any], weights: Mapping[str, Any], rules: Sequence[str], findings: tuple[int, ...]
) -> Picture:
    windows = []
    for window in timeline["windows"]:
        beats = tuple(
            Beat(
                b["index"], b["epoch"], bool(b["forward"]), bool(b["backward"]), b["sync"], tuple(b["events"])
            )
            for b in window["microbatches"]
        )
        windows.append(Window(window["number"], beats, tuple(window["events"]), bool(window["tail"])))
    pending = int(timeline.get("pending") or 0)
    return Picture(
        timeline["k"],
        tuple(windows),
        pending,
        timeline.get("note") or "",
        _signature(weights, rules),
        findings,
    )


def _signature(weights: Mapping[str, Any], rules: Sequence[str]) -> Signature | None:
    windows = tuple(
        Weights(
            w["number"], w["verdict"], w["factor"], w["total"], w["stale"], tuple(m["index"] for m in w["microbatches"]),
            tuple(tuple(Share(s["valid_targets"], s["weight"], s["right"]) for s in m["ranks"]) for m in w["microbatches"]),
        )
        for w in weights["windows"]
    )  # fmt: skip
    if not windows:
        return None
    unknown = next((w for w in weights["windows"] if w["verdict"] == "unknown"), None)
    sizes = [len(w.indices) for w in windows]
    usual = max(sizes, key=lambda size: (sizes.count(size), size))
    everywhere = any(rule.startswith(_WEIGHS) for rule in rules)
    in_tails = any(rule.startswith(_WEIGHS_TAIL) for rule in rules)
    off = [w for w in windows if is_off(w)]
    if unknown is not None:
        state, reason = "unknown", unknown["reason"]
    elif not off:
        state, reason = "right", ""
    elif everywhere or in_tails and all(len(w.indices) != usual for w in off):
        state, reason = "broken", ""
    elif all(len(w.indices) != usual for w in off):
        state, reason = (
            "right",
            "a window of another size is weighed differently, without consequence that could be shown",
        )
    else:
        state, reason = (
            "unjudged",
            "how this loss counts its targets rests on code or data that the script does not show",
        )
    return Signature(state, reason, weights["ranks"], windows)


def is_off(window: Weights) -> bool:
    """Some target weighs something else than the contract gives it."""
    return window.stale > 0 or any(
        share.weight != share.right for shares in window.shares for share in shares
    )


# reason -> what to think of it
WHY_LEFT = {
    "test-code": "test code, read only when its folder is named or with --include-tests",
    "excluded": "excluded by the settings",
    "git-ignored": "ignored by git",
    "not-python": "neither Python nor a configuration that is known",
    "link-outside": "links that lead out of the folder",
    "too-large": "larger than a script that people write",
    "too-deep": "nested too deeply for the parser",
    "too-slow": "took longer than a minute",
    "syntax-error": "cannot be parsed",
    "unreadable": "could not be read, or broke the analysis",
    "loop": "training loops that were seen, but whose windows could not be simulated",
}
_ENDED = ("too-large", "too-deep", "too-slow", "syntax-error")


def _coverage(report: Report, loops: Sequence[Loop], findings: Sequence[Finding]) -> Coverage:
    summary = report.summary
    named: dict[str, list[Place]] = {}
    for path, sieve in sorted(report.ended.items()):
        if sieve in _ENDED:
            said = next((f for f in findings if f.path == path and f.rule in ("ACC001", "ACC003")), None)
            named.setdefault(sieve, []).append(
                Place(path, said.line, said.message, said.cell) if said else Place(path, 1)
            )
    for path, message in summary.errors:
        named.setdefault("unreadable", []).append(Place(path, 1, message))
    for loop in loops:
        if loop.kind == "not-followed":
            reasons = "; ".join(loop.not_followed) or "no optimizer step was reached from it"
            named.setdefault("loop", []).append(dataclasses.replace(loop.place, message=reasons))
    counts = {**{reason: number for reason, number in summary.files_skipped.items() if reason not in named},
              **{reason: len(places) for reason, places in named.items()}}  # fmt: skip
    order = list(WHY_LEFT)
    left = tuple(
        Left(reason, WHY_LEFT.get(reason, reason), counts[reason], tuple(named.get(reason, ())))
        for reason in sorted(counts, key=lambda r: (-order.index(r) if r in order else 1, r))
    )
    frameworks: dict[str, int] = {}
    for loop in loops:
        for framework in loop.frameworks or ("PyTorch",):
            frameworks[framework] = frameworks.get(framework, 0) + 1
    accumulating = sum(1 for loop in loops if loop.kind in ("broken", "clean"))
    return Coverage(
        summary.files_checked, summary.files_simulated, summary.configurations, dict(summary.files_without_accumulation),
        len(loops), accumulating, dict(sorted(frameworks.items(), key=lambda item: (-item[1], item[0]))),
        summary.suppressed, left,
    )  # fmt: skip


def _first_steps(
    findings: Sequence[Finding], loops: Sequence[Loop], coverage: Coverage, advice: Mapping[str, str]
) -> tuple[Step, ...]:
    """A short list: the rules that harm most, then how to prove it, then how to keep it."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.severity != "advice":
            groups.setdefault(finding.rule, []).append(finding)

    def worth(rule: str) -> tuple:
        worst = groups[rule][0]
        return (*rank(worst.severity, worst.confidence, worst.clause), -len(groups[rule]), rule)

    steps = []
    for rule in sorted(groups, key=worth)[:STEPS_SHOWN]:
        here = groups[rule]
        places = tuple(Place(each.path, each.line, each.message, each.cell) for each in here[:PLACES_SHOWN])
        steps.append(Step(
            f"Fix {rule} {here[0].name}", advice.get(rule, ""), rule, here[0].severity, len(here), places,
            (f"accumlint explain {rule}",),
        ))  # fmt: skip
    steps += _fixes(findings)
    steps += _proof(loops)
    unread = [left for left in coverage.left if left.reason in ("unreadable", *_ENDED)]
    if unread:
        places = tuple(place for left in unread for place in left.places)[:PLACES_SHOWN]
        steps.append(Step(
            "Look at what could not be read", "This report says nothing about these files.", "", "", sum(left.files for left in unread), places
        ))  # fmt: skip
    if any(finding.severity != "advice" for finding in findings):
        steps.append(Step(
            "Stop new ones", "Record what is known today; a check then reports what is new, and the record may only shrink.", "", "", 0, (),
            ("accumlint check --write-baseline .accumlint-baseline.json",
             "accumlint check --baseline .accumlint-baseline.json --ratchet"),
        ))  # fmt: skip
    elif coverage.accumulating:
        steps.append(
            Step(
                "Keep it so",
                "Nothing was found in what was followed. The hook and the CI check keep it that way.",
                commands=("accumlint check",),
            )
        )
    return tuple(steps)


def _fixes(findings: Sequence[Finding]) -> list[Step]:
    """What the tool itself can change; every fix was tried out on the simulation."""
    safe = sum(1 for finding in findings if finding.fix is not None and finding.fix.safe)
    unsafe = sum(1 for finding in findings if finding.fix is not None and not finding.fix.safe)
    if not safe + unsafe:
        return []
    detail, commands = [], []
    if safe:
        detail.append(
            f"{say(safe, 'finding')} can be fixed safely: a run whose K is 1 stays as it is. --patch shows the change, --fix makes it."
        )
        commands += ["accumlint check --patch", "accumlint check --fix"]
    if unsafe:
        detail.append(f"{say(unsafe, 'finding')} can be fixed by a change that needs to be read first.")
        commands.append("accumlint check --patch=unsafe")
    return [
        Step(
            "Let the tool change what it can", " ".join(detail), count=safe + unsafe, commands=tuple(commands)
        )
    ]


def _proof(loops: Sequence[Loop]) -> list[Step]:
    """Loops worth running: those with findings first, then those that reading could not follow."""
    steps = []
    for kind, title, detail in (
        ("broken", "Prove it on the run itself", "The probe runs a script, unmodified, on a small model and confirms or refutes each finding. Arguments of the script go after --."),
        ("not-followed", "Probe what could not be followed", "Reading stopped short in these loops: only a run can say what their windows are."),
    ):  # fmt: skip
        commands = {
            command: loop
            for loop in loops
            if loop.kind == kind
            for command in loop.commands
            if " probe " in command
        }
        if commands:
            shown = list(commands)[: PLACES_SHOWN if kind == "broken" else 3]
            places = tuple(commands[each].place for each in shown)
            steps.append(Step(title, detail, "", "", len(commands), places, tuple(shown)))
    return steps


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Findings by severity, the gravest first; every severity has an entry."""
    found = {severity: 0 for severity in SEVERITIES}
    for finding in findings:
        found[finding.severity] += 1
    return found


def by_rule(findings: Iterable[Finding]) -> dict[str, list[Finding]]:
    """Findings by rule, in the order in which they are ranked."""
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(finding.rule, []).append(finding)
    return groups


def say(number: int, singular: str, plural: str = "") -> str:
    """``3 loops``, ``1 loop``."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def verdict_line(audit: Audit) -> str:
    """The report in one sentence."""
    coverage, number = audit.coverage, counts(audit.findings)
    grave = [say(number[label], label) for label in ("error", "warning") if number[label]]
    broken = sum(
        1 for loop in audit.loops if any(audit.findings[each].severity != "advice" for each in loop.findings)
    )
    looked = (
        f"{say(coverage.accumulating, 'accumulating loop')}, {say(coverage.configurations, 'configuration')}"
    )
    if not coverage.files and not coverage.configurations:
        return "Nothing was there to look at."
    if not coverage.accumulating and not coverage.configurations and not grave:
        return "No loop that accumulates gradients was found."
    if not grave:
        return f"Nothing grave was found in what was followed: {looked}."
    where = (
        f"; {broken} of {say(coverage.accumulating, 'accumulating loop')} affected"
        if coverage.accumulating
        else ""
    )
    return f"{' and '.join(grave)}{where}."


def revision_line(audit: Audit) -> str:
    """Which state of the sources was read."""
    if audit.revision is None:
        return "The sources carry no revision."
    changed = ", with changes that are not committed" if audit.revision.changed else ""
    return f"Revision {audit.revision.commit[:12]} of {audit.revision.committed[:10]}{changed}."


# sieve -> why nothing can accumulate in the files that it ends
_WITHOUT = {
    "no-accumulation": "without the words without which nothing accumulates",
    "no-training-loop": "without a loop that holds a backward",
    "no-loop": "without a loop that holds a backward",
    "not-python": "in another language than Python",
}


def what_was_looked_at(audit: Audit) -> list[str]:
    """The counts behind the report, a sentence each."""
    coverage = audit.coverage
    lines = [
        f"{say(coverage.files, 'file')} looked at: {coverage.simulated} simulated, with {say(coverage.loops, 'training loop')}; "
        f"{say(coverage.configurations, 'configuration')} read.",
        *(
            f"{say(number, 'file')} {_WITHOUT[sieve]}."
            for sieve, number in coverage.without.items()
            if sieve in _WITHOUT
        ),
    ]
    if coverage.frameworks:
        lines.append(
            "Frameworks, by loops: "
            + ", ".join(f"{name} {number}" for name, number in coverage.frameworks.items())
            + "."
        )
    if coverage.suppressed:
        lines.append(f"{say(coverage.suppressed, 'finding')} hidden by suppression comments.")
    return lines


def summary_of(signature: Signature) -> str:
    """The weights in words: what a picture says to those who don't see it."""
    lines = []
    for window in signature.windows:
        for rank_number in range(signature.ranks):
            parts = []
            for shares in window.shares:
                share = shares[min(rank_number, len(shares) - 1)]
                parts.append(f"{share.valid_targets} targets at {share.weight or 'unknown'}")
            right = window.shares[0][0].right if window.shares else None
            on = f" on rank {rank_number}" if signature.ranks > 1 else ""
            lines.append(f"window {window.number}{on}: {', '.join(parts)}; right is {right or '?'} each")
    return ". ".join(lines)


def lane_label(event: str) -> str:
    """What a lane is called."""
    return {"scheduler": "schedule"}.get(event, EVENT_LANES.get(event, event))
