"""What tests ask of a page: its elements, ids and links, and the contrast of its colours, by the standard library."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import NamedTuple

VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


class Node(NamedTuple):
    tag: str
    attributes: dict[str, str]


class Page(HTMLParser):
    """A parsed page; raises AssertionError where elements aren't properly nested."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.nodes: list[Node] = []
        self.open: list[str] = []
        self.text: list[tuple[str, str]] = []  # (innermost element, its text)
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"<{tag}> repeats an attribute"
        self.nodes.append(Node(tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        self.text.append((self.open[-1] if self.open else "", data))

    @property
    def ids(self) -> list[str]:
        return [node.attributes["id"] for node in self.nodes if "id" in node.attributes]

    @property
    def links(self) -> list[str]:
        return [node.attributes["href"] for node in self.nodes if "href" in node.attributes]

    def words(self, *without: str) -> str:
        return "".join(data for tag, data in self.text if tag not in ("style", "script", *without))

    def raw(self, tag: str) -> str:
        return "".join(data for inside, data in self.text if inside == tag)


def check(text: str) -> Page:
    """What holds for every page; returns it parsed."""
    page = Page(text)
    assert text.startswith("<!doctype html>\n")
    assert len(page.ids) == len(set(page.ids)), "an id occurs twice"
    known = set(page.ids)
    for link in page.links:
        assert link.startswith("#") and link[1:] in known, f"{link} leads nowhere"
    for node in page.nodes:
        assert (
            node.tag
            not in {"img", "iframe", "object", "embed", "link", "base", "audio", "video", "source", "form"}
            or node.tag == "form"
        )
        for name in node.attributes:
            assert not name.startswith("on") and name not in ("src", "srcset", "style", "action", "ping"), (
                f"<{node.tag} {name}>"
            )
        for name in ("aria-labelledby", "for"):
            for wanted in node.attributes.get(name, "").split():
                assert wanted in known, f"{name}={wanted} leads nowhere"
        if node.tag == "svg" and node.attributes.get("aria-hidden") != "true":
            assert node.attributes.get("role") in ("img", "group") and node.attributes.get("aria-labelledby")
    assert "url(" not in page.raw("style") and "@import" not in page.raw("style")
    assert len([node for node in page.nodes if node.tag == "h1"]) == 1
    return page


_VARIABLE = re.compile(r"(--[a-z]+):\s*(#[0-9a-f]{3,6})\b")


def themes(style: str) -> dict[str, dict[str, str]]:
    """The colours of each theme: light, dark, print (where one says nothing it inherits from light)."""
    light = dict(_VARIABLE.findall(style[: style.index("@media")]))
    dark = style[style.index("prefers-color-scheme: dark") :]
    dark_values = dict(_VARIABLE.findall(dark[: dark.index("* { box-sizing")]))
    paper = dict(_VARIABLE.findall(style[style.index("@media print") :]))
    assert set(light) == set(dark_values)
    return {"light": light, "dark": {**light, **dark_values}, "print": {**light, **paper}}


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    digits = colour.lstrip("#")
    if len(digits) == 3:
        digits = "".join(2 * digit for digit in digits)
    channels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """Contrast ratio of WCAG 2, from 1 to 21."""
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)
