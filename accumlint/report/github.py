"""``--format github``: workflow commands, which GitHub Actions turns into annotations.

GitHub keeps ten annotations of each level per step and drops the others without a word. So the gravest come
first, and what is beyond the cap is printed as plain lines below a line that counts it.
"""

from __future__ import annotations

from accumlint.findings import Finding, Severity
from accumlint.report.model import Report
from accumlint.report.text import closing, plain

CAP = 10
_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.ADVICE: "notice"}


def escape_data(text: str) -> str:
    """A message inside a workflow command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """A property's value inside a workflow command."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def _order(finding: Finding) -> tuple:
    return (-finding.severity, -finding.confidence, finding.sort_key())


def _line(report: Report, finding: Finding) -> str:
    span = finding.span
    message = " ".join(finding.message.split())
    if finding.probed is not None:
        message += f" ({finding.probed})"
    return f"{report.place(span.path)}{report.where(span.path, span.line, span.column)}: {finding.rule} {finding.name}: {message}"


def command(report: Report, finding: Finding) -> str:
    """One annotation. Columns are given only where the span ends on its line, as GitHub demands."""
    span = report.in_file(finding.span)
    properties = {"file": report.place(span.path), "line": str(span.line)}
    if span.end_line in (0, span.line):
        properties["col"] = str(span.column)
        properties["endColumn"] = str(max(span.end_column, span.column))
    properties["title"] = f"{finding.rule} {finding.name}"
    fields = ",".join(f"{key}={escape_property(value)}" for key, value in properties.items())
    return f"::{_COMMANDS[finding.severity]} {fields}::{escape_data(_line(report, finding))}"


def render(report: Report) -> str:
    """Annotations, then what didn't fit, then the counts of the run."""
    lines = []
    for severity, level in _COMMANDS.items():
        found = sorted((f for f in report.findings if f.severity is severity), key=_order)
        lines += [command(report, finding) for finding in found[:CAP]]
        beyond = found[CAP:]
        if beyond:
            lines.append(f"{len(beyond)} more at level {level}: GitHub shows {CAP} annotations of a level.")
            lines += ["  " + _line(report, finding) for finding in beyond]
    return "".join(line + "\n" for line in lines) + plain(closing(report))
