"""``--format sarif``: SARIF 2.1.0 as code scanning on GitHub accepts and shows it.

Paths are relative to the repository (``%SRCROOT%``), the primary region is one line (an alert appears on a
pull request only where all lines of its region are in the diff), related places are linked from the message,
and the simulated windows are the code flow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from accumlint import HOME, __version__, rule_page
from accumlint.findings import Confidence, Finding, Fix, Severity, Span
from accumlint.report.fingerprints import content_fingerprints, line_hashes
from accumlint.report.model import Report
from accumlint.report.timeline import EVENT_LANES, summarise

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "note"}
_PROBLEMS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "recommendation"}
_TEXT_LIMIT = 1024  # characters of a rule's descriptions


def _artifact(place: str) -> dict:
    location: dict[str, Any] = {"uri": quote(place, safe="/")}
    if not place.startswith(("../", "/")):
        location["uriBaseId"] = "%SRCROOT%"
    return location


def _region(span: Span) -> dict:
    """One line: the whole span where it ends there, else from its start to the end of the line."""
    region = {"startLine": span.line, "startColumn": span.column}
    if span.end_line in (0, span.line) and span.end_column > span.column:
        region["endColumn"] = span.end_column
    return region


def _edit_region(span: Span) -> dict:
    return {
        "startLine": span.line,
        "startColumn": span.column,
        "endLine": span.end_line or span.line,
        "endColumn": span.end_column or span.column,
    }


def _location(report: Report, span: Span, **more: Any) -> dict:
    region = _region(report.in_file(span))
    physical = {"artifactLocation": _artifact(report.place(span.path)), "region": region}
    return {"physicalLocation": physical, **more}


def _with_snippet(report: Report, span: Span) -> dict:
    """A location that carries the text of its region, for viewers that don't have the file."""
    location = _location(report, span)
    line = report.line(span.path, span.line)
    if line is not None:
        region = location["physicalLocation"]["region"]
        text = line[span.column - 1 : span.end_column - 1 if "endColumn" in region else len(line)]
        if text.strip():
            region["snippet"] = {"text": text}
    return location


def _link_text(text: str) -> str:
    return text.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]")


def _message(report: Report, finding: Finding) -> str:
    text = finding.message
    cell = report.cell(finding.span.path, finding.span.line)
    if cell is not None:
        text = f"Cell {cell[0]}, line {cell[1]}: {text}"
    if finding.probed is not None:
        text = f"{text.rstrip().rstrip('.')} ({finding.probed})."
    if finding.related:
        links = [f"[{_link_text(each.message)}]({n})" for n, each in enumerate(finding.related, 1)]
        text = f"{text.rstrip()}{'' if text.rstrip().endswith(('.', '!', '?')) else '.'} See {', '.join(links)}."
    return text


def _flow(report: Report, finding: Finding) -> list[dict]:
    """The simulated windows as steps; empty where there are none.

    The timeline says on which line an event first stands (``lines``: lane -> line); a step of which it doesn't,
    and the headline of a window, stand at the finding itself.
    """
    timeline = finding.evidence.get("timeline")
    if not isinstance(timeline, Mapping) or not timeline.get("windows"):
        return []
    lines = timeline.get("lines") or {}
    steps: list[dict] = []

    def step(text: str, lane: str = "") -> None:
        line = lines.get(lane)
        span = finding.span if line is None else Span(finding.span.path, line)
        location = _location(report, span, message={"text": text})
        steps.append({"location": location, "importance": "important" if lane else "essential"})

    for number, window in enumerate(timeline["windows"], 1):
        title = f"window {number}{' (tail)' if window.get('tail') else ''}"
        step(f"{title}: {summarise(window)}")
        for microbatch in window.get("microbatches") or ():
            which = f"microbatch {int(microbatch.get('index', 0)) + 1}"
            if microbatch.get("backward"):
                step(f"{title}, {which}: {_backward(microbatch)}", "backward")
            for event in microbatch.get("events") or ():
                step(f"{title}, {which}: {EVENT_LANES.get(event, event)}", event)
        for event in window.get("events") or ():
            step(f"{title}: {EVENT_LANES.get(event, event)} at the boundary", event)
    return [{"threadFlows": [{"locations": steps}]}]


def _backward(microbatch: Mapping[str, Any]) -> str:
    """What the picture says in the lanes of a backward."""
    words = ["backward"]
    if microbatch.get("valid_targets") is not None and microbatch.get("weight") is not None:
        number = microbatch["valid_targets"]
        words.append(f"{number} valid target{'' if number == 1 else 's'} of weight {microbatch['weight']}")
    if microbatch.get("sync") is not None:
        words.append("gradients are reduced" if microbatch["sync"] else "gradients stay on their rank")
    return ", ".join(words)


def _fixes(report: Report, fix: Fix | None) -> list[dict]:
    if fix is None or not fix.safe or any(edit.span.path in report.notebooks for edit in fix.edits):
        return []
    changes: dict[str, list[dict]] = {}
    for edit in fix.edits:
        replacement = {
            "deletedRegion": _edit_region(edit.span),
            "insertedContent": {"text": edit.replacement},
        }
        changes.setdefault(report.place(edit.span.path), []).append(replacement)
    artifacts = [
        {"artifactLocation": _artifact(place), "replacements": replacements}
        for place, replacements in changes.items()
    ]
    return [{"description": {"text": fix.title}, "artifactChanges": artifacts}]


def _rule(finding: Finding) -> dict:
    """The rule of a finding; its page is the help."""
    from accumlint.knowledge import find_rule

    page = find_rule(finding.rule)
    short = page.summary if page and page.summary else finding.name.replace("-", " ")
    why = page.sections.get("Why it changes training", "") if page else ""
    full = " ".join(f"{short} {why}".split()) or short
    severity = page.severity if page else finding.severity
    sections = page.sections if page else {}
    markdown = "\n\n".join(f"## {heading}\n\n{text}" for heading, text in sections.items())
    plain = markdown.replace("## ", "") or short
    return {
        "id": finding.rule,
        "name": "".join(word.capitalize() for word in finding.name.split("-")),
        "shortDescription": {"text": short[:_TEXT_LIMIT]},
        "fullDescription": {"text": full[:_TEXT_LIMIT]},
        "help": {"text": plain, "markdown": markdown or short},
        "helpUri": rule_page(finding.rule),
        "defaultConfiguration": {"level": _LEVELS[severity]},
        "properties": {
            "tags": ["gradient-accumulation", f"clause-{finding.clause}"],
            "precision": "high" if finding.confidence > Confidence.POSSIBLE else "medium",
            "problem.severity": _PROBLEMS[severity],
        },
    }


def _probed(finding: Finding) -> dict[str, str]:
    return {} if finding.probed is None else {"probed": finding.probed.verdict, "receipt": finding.probed.receipt}


def _result(report: Report, finding: Finding, index: int, fingerprints: dict[str, str]) -> dict:
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": _message(report, finding)},
        "locations": [_with_snippet(report, finding.span)],
        "partialFingerprints": fingerprints,
        "properties": {"confidence": finding.confidence.label, "clause": finding.clause, **_probed(finding)},
    }
    if finding.related:
        result["relatedLocations"] = [
            _location(report, each.span, id=number, message={"text": each.message})
            for number, each in enumerate(finding.related, 1)
        ]
    flow = _flow(report, finding)
    if flow:
        result["codeFlows"] = flow
    fixes = _fixes(report, finding.fix)
    if fixes:
        result["fixes"] = fixes
    return result


def render(report: Report) -> str:
    """The whole log: one run, its rules in the order of their codes."""
    rules = {finding.rule: finding for finding in sorted(report.findings, key=lambda f: (f.rule, f.span))}
    indices = {code: index for index, code in enumerate(rules)}
    # a notebook's lines are not those of its file: there the uploading action computes the hash for itself
    hashes = {path: line_hashes(text) for path, text in report.sources.items() if path not in report.notebooks}
    own = content_fingerprints(report)
    results = []
    for finding, fingerprint in zip(report.findings, own):
        fingerprints = {"accumlint/v1": fingerprint}
        here = hashes.get(finding.span.path, [])
        if finding.span.line <= len(here):
            fingerprints["primaryLocationLineHash"] = here[finding.span.line - 1]
        results.append(_result(report, finding, indices[finding.rule], fingerprints))
    notifications = [
        {"level": "error", "message": {"text": f"{path}: {message}"}}
        for path, message in report.summary.errors
    ]
    run = {
        "tool": {
            "driver": {
                "name": "accumlint",
                "version": __version__,
                "semanticVersion": __version__,
                "informationUri": HOME,
                "rules": [_rule(finding) for finding in rules.values()],
            }
        },
        "automationDetails": {"id": "accumlint/"},
        "invocations": [
            {"executionSuccessful": not notifications, "toolExecutionNotifications": notifications}
        ],
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the repository."}}},
        "columnKind": "unicodeCodePoints",
        "results": results,
        "properties": {
            "suppressed": report.summary.suppressed,
            "baselined": report.summary.baselined,
            "outsideDiff": report.summary.outside_diff,
        },
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"
