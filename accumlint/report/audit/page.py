"""The frame of a page: one file that asks nothing of any network, whatever stands in it."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Collection, Iterable
from importlib import resources
from xml.etree.ElementTree import Element

from accumlint.report.audit.markup import h, serialise, visible

SECTIONS_TITLE = "On this page"


def _asset(name: str) -> str:
    return resources.files("accumlint.report.audit").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"


def page(title: str, header: Element, sections: Iterable[Element], footer: Element) -> str:
    """The document. Each section has an id and begins with its heading, from which the contents are made.

    Only this style sheet and this script may act, by their hashes; nothing may be loaded, framed or sent.
    """
    style, script = _asset("audit.css"), _asset("audit.js")
    policy = f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'; form-action 'none'"
    sections = list(sections)
    links = [h("li", {}, h("a", {"href": f"#{each.get('id')}"}, _text(each[0]))) for each in sections]
    document = h(
        "html", {"lang": "en"},
        h("head", {},
          h("meta", {"charset": "utf-8"}),
          h("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
          h("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
          h("meta", {"name": "referrer", "content": "no-referrer"}),
          h("title", {}, title)),
        h("body", {},
          h("a", {"class": "skip", "href": "#main"}, "Skip to the content"),
          header,
          h("nav", {"class": "contents", "aria-label": SECTIONS_TITLE}, h("ul", {}, links)),
          h("main", {"id": "main", "tabindex": "-1"}, sections),
          footer),
    )  # fmt: skip
    raw = Element("style")
    raw.text = style  # the content of style and script elements is written as it is
    document[0].append(raw)
    raw = Element("script")
    raw.text = script
    document[1].append(raw)
    return "<!doctype html>\n" + serialise(document) + "\n"


def _text(element: Element) -> str:
    return "".join(element.itertext())


_RULE = re.compile(r"(?<![\w`\[])\[(ACC\d{3})\](?!\()")


def markdown(text: str, anchors: Collection[str] = ()) -> list[Element]:
    """Markdown of a rule page as elements; HTML in it is shown, never obeyed.

    A rule in brackets becomes a link where the page has an anchor for it.
    """
    from markdown_it import MarkdownIt

    text = _RULE.sub(lambda match: f"[{match[1]}](#{match[1]})" if match[1] in anchors else match[1], text)
    reader = MarkdownIt("commonmark", {"html": False, "xhtmlOut": True}).enable("table")
    reader.disable("image")
    return list(ElementTree.fromstring(f"<div>{reader.render(visible(text))}</div>"))
