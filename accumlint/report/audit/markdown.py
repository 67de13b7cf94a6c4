"""The report as Markdown: for a terminal, a pull request, a wiki."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from accumlint.report.audit.markup import visible
from accumlint.report.audit.model import (
    Audit,
    Configuration,
    Finding,
    Loop,
    Picture,
    Place,
    Signature,
    Step,
    address,
    counts,
    revision_line,
    say,
    spot,
    verdict_line,
    what_was_looked_at,
)
from accumlint.report.audit.pictures import chosen

FINDINGS_SHOWN = 200
LOOPS_DRAWN = 20

_URL = "/:?#@!$&'()*+,;=%~-._"  # what an address may hold as it is
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~])")


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    return _SPECIAL.sub(r"\\\1", visible(" ".join(text.split())))


def code(text: str) -> str:
    """A code span around any text."""
    text = visible(" ".join(text.split())).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def place(where: Place | Finding) -> str:
    return code(spot(where))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def fence(text: str) -> str:
    return f"```\n{visible(text)}\n```"


def render(audit: Audit) -> str:
    """The whole document."""
    parts = [
        f"# Gradient accumulation audit: {escape(audit.name)}",
        f"**{escape(verdict_line(audit))}**",
        escape(revision_line(audit)),
        "## What to do first",
        *(steps(audit.first) or ["There is nothing to do."]),
        f"## Findings ({len(audit.findings)})",
        _findings(audit),
        f"## Training loops ({len(audit.loops)})",
        *_loops(audit),
        *_configurations(audit.configurations),
        "## What was looked at",
        "\n".join(f"- {escape(line)}" for line in what_was_looked_at(audit)),
        "### Not analysed, and why",
        _left(audit),
        f"Made by accumlint {escape(audit.version)} by reading the sources: nothing was run. It certifies nothing.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def steps(first: Sequence[Step]) -> list[str]:
    """The numbered list; the details of a step stand below it."""
    parts = []
    for number, step in enumerate(first, 1):
        count = f" ({step.severity}, {say(step.count, 'place')})" if step.rule else ""
        lines = [f"**{escape(step.title)}**{count}"]
        if step.detail:
            lines += ["", step.detail]
        if step.places and step.rule:
            lines += ["", *(f"- {place(each)} {escape(each.message)}" for each in step.places)]
            if step.count > len(step.places):
                lines.append(f"- and {step.count - len(step.places)} more")
        elif step.places and not step.commands:
            lines += ["", *(f"- {place(each)} {escape(each.message)}" for each in step.places)]
        if step.commands and not step.rule:
            lines += ["", *fence("\n".join(step.commands)).split("\n")]
        indent = " " * (len(str(number)) + 2)
        body = "\n".join(indent + line if line else "" for line in "\n".join(lines).split("\n"))
        parts.append(f"{number}. {body.lstrip()}")
    return parts


def source(audit: Audit, where: Place | Finding) -> str:
    """A place, as a link to its sources where the report knows one."""
    url = address(audit, where)
    return f"[{place(where)}](<{quote(url, safe=_URL)}>)" if url else place(where)


def _findings(audit: Audit) -> str:
    findings = audit.findings
    if not findings:
        return "Nothing was found in what was followed."
    rows = []
    for finding in findings[:FINDINGS_SHOWN]:
        sure = "" if finding.confidence == "certain" else f" ({finding.confidence})"
        rows.append([
            f"{finding.severity}{sure}", f"{finding.rule} {escape(finding.name)}",
            source(audit, finding), escape(finding.message),
        ])  # fmt: skip
    text = table(("severity", "rule", "place", "what is wrong"), rows)
    hidden = len(findings) - FINDINGS_SHOWN
    return text + (f"\n\n{hidden} more stand in the JSON and HTML reports." if hidden > 0 else "")


def _loops(audit: Audit) -> list[str]:
    if not audit.loops:
        return ["No training loop was found."]
    parts = []
    broken = [(n, loop) for n, loop in enumerate(audit.loops, 1) if loop.kind == "broken"]
    for number, loop in broken[:LOOPS_DRAWN]:
        parts += _loop(audit, loop, number)
    if len(broken) > LOOPS_DRAWN:
        parts.append(f"{len(broken) - LOOPS_DRAWN} more loops with findings are drawn in the HTML report.")
    for kind, title in (
        ("not-followed", "Windows that could not be simulated"),
        ("clean", "Nothing found"),
        ("no-window", "One microbatch per step"),
    ):
        here = [loop for loop in audit.loops if loop.kind == kind]
        if here:
            parts.append(f"### {title} ({len(here)})")
            parts.append("\n".join(f"- {place(loop.place)} {escape(loop.function)}" for loop in here))
    return parts


def _loop(audit: Audit, loop: Loop, number: int) -> list[str]:
    found = counts(audit.findings[each] for each in loop.findings)
    said = ", ".join(say(n, label, label if label == "advice" else "") for label, n in found.items() if n)
    frameworks = ", ".join(loop.frameworks) or "plain PyTorch"
    parts = [
        f"### Loop {number}: {place(loop.place)} {escape(loop.function)}",
        f"{said}; {escape(frameworks)}; K: {code(loop.window) if loop.window else 'not stated'}.",
    ]
    for n, picture in enumerate(loop.pictures, 1):
        if len(loop.pictures) > 1:
            parts.append(f"Path {n} of {len(loop.pictures)}:")
        parts.append(fence(drawn(picture)))
        if picture.signature is not None:
            parts.append(_weights(picture.signature))
    parts.append(fence("\n".join(loop.commands)))
    return parts


def drawn(picture: Picture) -> str:
    """The windows as in a terminal."""
    from accumlint.report.text import plain
    from accumlint.report.timeline import draw

    windows = [
        {
            "number": window.number,
            "microbatches": [
                {
                    "index": b.index,
                    "epoch": b.epoch,
                    "forward": b.forward,
                    "backward": b.backward,
                    "sync": b.sync,
                    "events": list(b.events),
                }
                for b in window.beats
            ],
            "events": list(window.events),
            "tail": window.tail,
        }
        for window in picture.windows
    ]
    document = {"k": picture.k, "windows": windows, "pending": picture.pending, "note": picture.note}
    return plain(draw(document, 100, True)).rstrip("\n")


def _weights(signature: Signature) -> str:
    if signature.state == "right":
        return "Weights: every valid target of a window weighs the same, as the contract asks."
    if signature.state != "broken":
        word = "unknown" if signature.state == "unknown" else "not judged"
        return f"Weights are {word}: {escape(signature.reason)}."
    rows = []
    for window in chosen(signature.windows, 3):
        for index, shares in zip(window.indices, window.shares):
            targets = " / ".join(share.valid_targets for share in shares)
            in_script = " / ".join(share.weight or "?" for share in shares)
            right = " / ".join(share.right or "?" for share in shares)
            rows.append(
                [
                    str(window.number),
                    str(index + 1),
                    targets,
                    in_script,
                    right,
                    "" if in_script == right else "off",
                ]
            )
    heads = ("window", "microbatch", "valid targets", "each weighs", "by the contract", "")
    ranks = "\n\nNumbers of two ranks stand on either side of the slash." if signature.ranks > 1 else ""
    return table(heads, rows) + ranks


def _configurations(configurations: Sequence[Configuration]) -> list[str]:
    if not configurations:
        return []
    rows = []
    for each in configurations:
        values = {row.quantity: row.value for row in each.rows}
        verdict = {True: "closes", False: "**does not close**", None: "open"}[each.closes]
        why = "" if each.verdict in ("closes", "") else f": {escape(each.verdict.removeprefix('open: '))}"
        rows.append(
            [
                code(each.path),
                escape(each.dialect),
                *(escape(values.get(q, "?")) for q in ("micro", "accumulation", "ranks", "global")),
                verdict + why,
            ]
        )
    heads = ("configuration", "dialect", "micro", "× accumulation", "× ranks", "= global", "verdict")
    return [f"## Batch arithmetic ({len(configurations)})", table(heads, rows)]


def _left(audit: Audit) -> str:
    lines = []
    for left in audit.coverage.left:
        lines.append(f"- {say(left.files, 'loop' if left.reason == 'loop' else 'file')}: {escape(left.why)}")
        lines += [f"  - {place(each)} {escape(each.message)}" for each in left.places]
    return "\n".join(lines) or "Everything that was there was analysed."
