"""The report as one HTML file: no network, light and dark, by keyboard, without colour, on paper."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from xml.etree.ElementTree import Element

from accumlint.knowledge import Example, Rule
from accumlint.report.audit import pictures
from accumlint.report.audit.markup import h
from accumlint.report.audit.model import (
    SEVERITIES,
    Audit,
    Configuration,
    Finding,
    Left,
    Loop,
    Picture,
    Place,
    Step,
    address,
    by_rule,
    counts,
    revision_line,
    say,
    spot,
    verdict_line,
    what_was_looked_at,
)
from accumlint.report.audit.page import markdown, page

WINDOWS_SHOWN = 12  # sizes of windows in a line
LOOPS_OPEN = 12  # so many loops with findings are unfolded when the page opens

Pages = Callable[[str], "Rule | None"]  # the page of a rule, by its code


def render(audit: Audit, rule_page: Pages) -> str:
    """The whole page."""
    sections = [
        _first(audit),
        _findings(audit),
        _loops(audit),
        _configurations(audit.configurations),
        _coverage(audit),
        rules_section(audit.findings, rule_page),
        reading(),
    ]
    return page(
        f"Gradient accumulation audit: {audit.name}",
        _header(audit),
        filter(None, sections),
        footer(audit.version),
    )


def footer(version: str) -> Element:
    """What the report is worth, and what made it."""
    return h(
        "footer", {},
        h("p", {}, f"Made by accumlint {version} by reading the sources: nothing was run. It shows what was found in what could be followed; it certifies nothing."),
    )  # fmt: skip


def badge(severity: str) -> Element:
    """A severity with its shape."""
    return h("span", {"class": f"badge {severity}"}, severity)


def place(where: Place | Finding) -> Element:
    return h("code", {}, spot(where))


def source(audit: Audit, where: Place | Finding) -> Element:
    """A place, as a link to its sources where the report knows one."""
    url = address(audit, where)
    return h("a", {"href": url, "rel": "noreferrer"}, place(where)) if url else place(where)


def _header(audit: Audit) -> Element:
    number = counts(audit.findings)
    affected = sum(1 for loop in audit.loops if loop.findings)
    tiles = [
        (number[label], label if label == "advice" or number[label] == 1 else f"{label}s")
        for label in SEVERITIES
    ]
    tiles += [
        (audit.coverage.accumulating, "accumulating loops"),
        (affected, "loops with findings"),
        (audit.coverage.files, "files looked at"),
    ]
    return h(
        "header", {},
        h("h1", {}, "Gradient accumulation audit: ", h("bdi", {}, audit.name)),
        h("p", {"class": "verdict"}, verdict_line(audit)),
        h("p", {"class": "meta"}, revision_line(audit)),
        h("ul", {"class": "tiles"}, [h("li", {}, h("b", {}, str(value)), label) for value, label in tiles]),
    )  # fmt: skip


def section(key: str, title: str, *children) -> Element:
    return h(
        "section", {"id": key, "aria-labelledby": f"{key}-h"}, h("h2", {"id": f"{key}-h"}, title), *children
    )


def command(text: str) -> Element:
    """A command line with a button that copies it."""
    button = h(
        "button", {"type": "button", "data-copy": text, "hidden": "", "aria-label": f"copy: {text}"}, "copy"
    )
    return h("div", {"class": "command"}, h("pre", {}, h("code", {}, text)), button)


def _first(audit: Audit) -> Element:
    steps = [_step(audit, each) for each in audit.first]
    body = h("ol", {"class": "steps"}, steps) if steps else h("p", {}, "There is nothing to do.")
    return section("first", "What to do first", body)


def _step(audit: Audit, step: Step) -> Element:
    head: list = [h("h3", {}, step.title)]
    if step.rule:
        number = say(step.count, "place")
        head = [
            badge(step.severity),
            " ",
            h("h3", {}, "Fix ", rule_link(step.rule), step.title.removeprefix(f"Fix {step.rule}")),
            f" — {number}",
        ]
    hidden = step.count - len(step.places)
    more = [h("li", {"class": "soft"}, f"and {hidden} more")] if hidden > 0 and step.places else []
    listed = h("ul", {"class": "places small"}, [_step_place(audit, step, each) for each in step.places], more) if step.places and not (
        step.commands and not step.rule) else None  # fmt: skip
    commands = [command(each) for each in step.commands if not step.rule]
    anchors = {finding.rule for finding in audit.findings}
    return h("li", {}, head, markdown(step.detail, anchors), listed, commands)


def _step_place(audit: Audit, step: Step, where: Place) -> Element:
    number = next(
        (
            n
            for n, f in enumerate(audit.findings)
            if (f.rule, f.path, f.cell, f.line) == (step.rule, where.path, where.cell, where.line)
        ),
        None,
    )
    name = place(where)
    shown = h("a", {"href": f"#f{number + 1}"}, name) if number is not None else name
    return h("li", {}, shown, f" {where.message}" if where.message else "")


def rule_link(rule: str) -> Element:
    return h("a", {"href": f"#{rule}"}, rule)


def _findings(audit: Audit) -> Element:
    if not audit.findings:
        return section("findings", "Findings", h("p", {}, "Nothing was found in what was followed."))
    number = counts(audit.findings)
    boxes = [
        h("label", {}, h("input", {"type": "checkbox", "checked": "", "value": severity}), " ", f"{severity} ({number[severity]})")
        for severity in SEVERITIES if number[severity]
    ]  # fmt: skip
    search = h(
        "label",
        {},
        "Filter ",
        h("input", {"type": "search", "id": "filter-text", "placeholder": "path, rule or word"}),
    )
    controls = h("form", {"class": "filter", "id": "filter", "hidden": "", "role": "search"}, search, boxes,
                 h("span", {"id": "filter-count", "role": "status", "class": "soft"}))  # fmt: skip
    listed = [_finding(audit, each, index) for index, each in enumerate(audit.findings)]
    sure = {finding.confidence for finding in audit.findings}
    words = [
        "Worst first: by severity, by how sure it is, then by what it changes.",
        "Conditional: only when the loader's length is no multiple of the window, or under an assumed counter."
        if "conditional" in sure
        else "",
        "Possible: on some paths only, or resting on a name that could mean something else."
        if "possible" in sure
        else "",
    ]
    intro = h("p", {"class": "soft"}, " ".join(filter(None, words)))
    return section("findings", f"Findings ({len(audit.findings)})", intro, controls, listed)


def _finding(audit: Audit, finding: Finding, index: int) -> Element:
    head = h("h3", {}, badge(finding.severity), " ", rule_link(finding.rule), f" {finding.name} ", source(audit, finding),
             h("span", {"class": "meta"}, "" if finding.confidence == "certain" else f" · {finding.confidence}"))  # fmt: skip
    parts: list = [head, h("p", {}, finding.message)]
    if finding.source:
        parts.append(h("pre", {}, h("code", {}, finding.source)))
    for related in finding.related:
        parts.append(h("p", {"class": "small"}, source(audit, related), f" {related.message}"))
    facts = []
    if finding.windows:
        more = ", …" if len(finding.windows) > WINDOWS_SHOWN else ""
        facts.append(f"windows of {', '.join(map(str, finding.windows[:WINDOWS_SHOWN]))}{more} microbatches")
    if finding.flags and finding.flags[0] not in finding.message:
        facts.append(f"on the path where {' and '.join(finding.flags)}")
    if finding.note:
        facts.append(finding.note)
    if finding.fix is not None:
        why = f" ({finding.fix.why_unsafe})" if finding.fix.why_unsafe else ""
        facts.append(f"{'safe' if finding.fix.safe else 'unsafe'} fix: {finding.fix.title}{why}")
    parts += [h("p", {"class": "small soft"}, fact) for fact in facts]
    if finding.loops:
        links = [
            [", " if n else "", h("a", {"href": f"#l{loop + 1}"}, f"loop {loop + 1}")]
            for n, loop in enumerate(finding.loops[:6])
        ]
        more = f" and {len(finding.loops) - 6} more" if len(finding.loops) > 6 else ""
        parts.append(h("p", {"class": "small"}, "Windows drawn at ", links, more))
    return h(
        "article",
        {"class": f"finding {finding.severity}", "id": f"f{index + 1}", "data-severity": finding.severity},
        parts,
    )


def _loops(audit: Audit) -> Element:
    loops = list(enumerate(audit.loops))
    drawn = [(n, loop) for n, loop in loops if loop.kind != "no-window"]
    plain = [loop for _, loop in loops if loop.kind == "no-window"]
    if not loops:
        return section("loops", "Training loops", h("p", {}, "No training loop was found."))
    body = [_loop(audit, loop, n, is_open=loop.kind == "broken" and n < LOOPS_OPEN) for n, loop in drawn]
    if plain:
        rows = [h("li", {}, place(each.place), f" {each.function}") for each in plain]
        title = f"{say(len(plain), 'loop')} in which every optimizer step uses one microbatch"
        body.append(h("details", {"class": "fold"}, h("summary", {}, title), h("div", {}, h("ul", {}, rows))))
    intro = h(
        "p",
        {"class": "soft"},
        "Each picture is a simulation with small numbers, not a run. ",
        h("a", {"href": "#reading"}, "How to read the pictures"),
    )
    return section("loops", f"Training loops ({len(audit.loops)})", intro, body)


_STATES = {
    "clean": ("good", "nothing found"),
    "not-followed": ("advice", "windows could not be simulated"),
}


def _loop(audit: Audit, loop: Loop, index: int, is_open: bool) -> Element:
    found = [audit.findings[each] for each in loop.findings]
    state: list = []
    if found:
        state = [[", " if n else "", h("span", {"class": f"badge {label}"}, say(number, label, "advice" if label == "advice" else f"{label}s"))]
                 for n, (label, number) in enumerate((k, v) for k, v in counts(found).items() if v)]  # fmt: skip
    else:
        kind, words = _STATES[loop.kind]
        state = [h("span", {"class": f"badge {kind}"}, words)]
    frameworks = " · ".join(loop.frameworks) or "plain PyTorch"
    summary = h("summary", {}, h("b", {}, f"Loop {index + 1} "), place(loop.place), f" {loop.function} — ", state,
                h("span", {"class": "meta"}, f" · {frameworks}"))  # fmt: skip
    facts = [
        ("window (K)", loop.window), ("objects", ", ".join(loop.objects)),
        ("paths", f"{loop.paths} simulated" + (f"; decided by {'; '.join(loop.flags[:8])}" if loop.flags else "")),
        ("assumed", "; ".join(loop.assumed)), ("not followed", "; ".join(loop.not_followed)),
    ]  # fmt: skip
    if loop.path != loop.place.path:
        facts.insert(0, ("reached from", loop.path))
    listed = h("dl", {}, [[h("dt", {}, label), h("dd", {}, words)] for label, words in facts if words])
    rules = [
        h("li", {}, badge(each.severity), " ", h("a", {"href": f"#f{n + 1}"}, f"{each.rule} {each.name}"), " ", place(each), f" {each.message}")
        for n, each in zip(loop.findings, found)
    ]  # fmt: skip
    drawn = [
        _picture(audit, loop, picture, f"l{index + 1}p{n + 1}", n) for n, picture in enumerate(loop.pictures)
    ]
    commands = (
        [h("h3", {}, "Look closer"), [command(each) for each in loop.commands]] if loop.commands else []
    )
    body = h("div", {}, h("ul", {"class": "places"}, rules) if rules else None, drawn, listed, commands)
    return h(
        "details",
        {"class": "loop" if found else "loop quiet", "id": f"l{index + 1}", "open": "" if is_open else None},
        summary,
        body,
    )


def scroll(label: str, child: Element) -> Element:
    """A box of its own that scrolls sideways, by keyboard too, where its content is wider than the screen."""
    return h("div", {"class": "scroll", "tabindex": "0", "role": "region", "aria-label": label}, child)


def _picture(audit: Audit, loop: Loop, picture: Picture, key: str, number: int) -> Element:
    rules: dict[str, str] = {}
    for each in picture.findings:
        rules.setdefault(audit.findings[each].rule, f"#f{each + 1}")
    which = f"Path {number + 1} of {len(loop.pictures)} drawn. " if len(loop.pictures) > 1 else ""
    notes = [f"Not drawn: {picture.note}."] if picture.note else []
    if picture.pending:
        notes.append(
            f"{say(picture.pending, 'microbatch is', 'microbatches are')} left over: no step uses their gradients."
        )
    title = f"{which}Windows, simulated with K = {picture.k}. {' '.join(notes)}"
    parts = [
        h(
            "figure",
            {},
            h("figcaption", {}, title),
            scroll(f"windows, picture {number + 1}", pictures.timeline(picture, f"{key}t", rules)),
        )
    ]
    signature = picture.signature
    if signature is None:
        return h("div", {"class": "drawn"}, parts)
    if signature.state in ("right", "broken"):
        words = {
            "right": "Weights: every valid target of a window weighs the same, as the contract asks.",
            "broken": "Weights: targets do not weigh what the contract gives them. Bars with a dashed outline are off.",
        }[signature.state]
        more = f" ({signature.reason})" if signature.reason else ""
        panels = [
            scroll(f"weights, picture {number + 1}", each) for each in pictures.weights(signature, f"{key}w")
        ]
        figure = h("figure", {}, h("figcaption", {}, words + more), h("div", {"class": "panels"}, panels))
        parts.append(
            figure
            if signature.state == "broken"
            else h("details", {}, h("summary", {"class": "small"}, words), figure)
        )
    else:
        word = "unknown" if signature.state == "unknown" else "not judged"
        parts.append(h("p", {"class": "small soft"}, f"Weights are {word}: {signature.reason}."))
    return h("div", {"class": "drawn"}, parts)


def _configurations(configurations: Sequence[Configuration]) -> Element | None:
    if not configurations:
        return None
    rows = []
    for each in configurations:
        values = {row.quantity: row for row in each.rows}
        cells = []
        for quantity in ("micro", "accumulation", "ranks", "global"):
            row = values.get(quantity)
            where = (row.source if row else "").replace(f"{each.path}:", "line ")
            cells.append(
                h(
                    "td",
                    {},
                    h("b", {}, row.value if row else "?"),
                    h("br"),
                    h("span", {"class": "small soft"}, where),
                )
            )
        word, kind = {True: ("closes", "good"), False: ("does not close", "error"), None: ("open", "advice")}[
            each.closes
        ]
        why = "" if each.verdict in ("closes", "") else f" {each.verdict.removeprefix('open: ')}"
        rows.append(h("tr", {}, h("th", {"scope": "row"}, h("code", {}, each.path), h("br"), h("span", {"class": "small soft"}, each.dialect)), cells,
                      h("td", {}, h("span", {"class": f"badge {kind}"}, word), why)))  # fmt: skip
    heads = ("configuration", "micro", "× accumulation", "× ranks", "= global batch", "verdict")
    table = h(
        "table",
        {},
        h("thead", {}, h("tr", {}, [h("th", {"scope": "col"}, each) for each in heads])),
        h("tbody", {}, rows),
    )
    intro = h(
        "p",
        {"class": "soft"},
        "What each source states, with the line that states it. Numbers that others determine are marked as derived.",
    )
    return section(
        "configurations",
        f"Batch arithmetic ({len(configurations)})",
        intro,
        scroll("batch arithmetic", table),
    )


def _coverage(audit: Audit) -> Element:
    left = [_left(audit, each) for each in audit.coverage.left] or [h("p", {}, "Everything that was there.")]
    return section(
        "coverage",
        "What was looked at",
        h("ul", {}, [h("li", {}, each) for each in what_was_looked_at(audit)]),
        h("h3", {}, "Not analysed, and why"),
        left,
    )


def _left(audit: Audit, left: Left) -> Element:
    title = f"{say(left.files, 'loop' if left.reason == 'loop' else 'file')}: {left.why}"
    if not left.places:
        return h("p", {}, title)
    rows = [h("li", {}, source(audit, each), f" {each.message}") for each in left.places]
    return h("details", {"class": "fold"}, h("summary", {}, title), h("div", {}, h("ul", {}, rows)))


def rules_section(findings: Iterable[Finding], rule_page: Pages) -> Element | None:
    """The page of every rule that was found, each once and folded."""
    found = by_rule(findings)
    if not found:
        return None
    parts = []
    for code in sorted(found):
        rule = rule_page(code)
        name = rule.name if rule is not None else found[code][0].name
        body = (
            _rule_page(rule, found)
            if rule is not None
            else [h("p", {}, "This version knows no page of this rule.")]
        )
        summary = h(
            "summary",
            {},
            h("b", {}, code),
            f" {name} ",
            h("span", {"class": "meta"}, f"· {say(len(found[code]), 'finding')}"),
        )
        parts.append(h("details", {"class": "rule", "id": code}, summary, h("div", {}, body)))
    return section("rules", f"The rules that were found ({len(parts)})", parts)


def _rule_page(rule: Rule, anchors: Collection[str]) -> list:
    parts: list = [
        h("p", {"class": "meta"}, f"Clause {rule.clause}, {rule.severity.label}, since {rule.since}.")
    ]
    for heading, text in rule.sections.items():
        parts += [h("h3", {}, heading), *markdown(text, anchors)]
    for kind, heading in (("bad", "Breaks the contract"), ("good", "Holds")):
        examples = [each for each in rule.examples if each.kind == kind and not each.group]
        if examples:
            parts += _example(min(examples, key=lambda each: len(each.code)), heading, rule.code)
    if rule.references:
        # links would leave the page; they are shown, to be followed by whoever wants to
        parts += [h("h3", {}, "References"), h("ul", {}, [h("li", {}, each) for each in rule.references])]
    return parts


def _example(example: Example, heading: str, code: str) -> list[Element]:
    comment = "//" if example.language == "json" else "#"
    lines = example.code.rstrip("\n").split("\n")
    shown = "\n".join(
        f"{line}  {comment} <- {code}" if n in example.lines else line for n, line in enumerate(lines, 1)
    )
    title = heading + (f": {example.title}" if example.title else "")
    return [h("h3", {}, title), h("pre", {"tabindex": "0"}, h("code", {}, shown))]


def reading() -> Element:
    """The legend of the pictures."""
    marks: Mapping[str, Element] = pictures.legend()
    rows = [[h("span", {}, mark), h("span", {}, words)] for words, mark in marks.items()]
    return section(
        "reading", "How to read the pictures",
        h("p", {}, "A column is one microbatch, a box is one window: the microbatches whose gradients meet in one optimizer step. "
          "What stands in the last column of a box happens at its boundary; anything else in a lower lane happens inside the window. "
          "A lane that a finding speaks of carries its code at the right end."),
        h("div", {"class": "legend"}, rows),
        h("p", {}, "– in the sync lane: unknown, or there is nothing to exchange. In the picture of weights a bar is one microbatch: as wide as it has valid targets, as high as each of them weighs in the update. "
          "Its area is the microbatch's part of the update. By the contract all bars of a window are equally high, and the areas of a window sum to 1. "
          "Constant factors of a loss are set aside."),
        h("p", {}, "The numbers are small on purpose: a window of 3, epochs of 8 microbatches, and, where a script's counts vary, 3, 6, 1, 4, 4, 4, 2 and 5 valid targets."),
    )  # fmt: skip
