"""HTML as a tree of elements: text can't become markup, since nothing is ever pasted into markup."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

Child = "Element | str | None | Iterable[Child]"


def visible(text: str) -> str:
    """Text in which control characters and those that reorder or hide what is shown stand as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\t":
        return character
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        code = ord(character)
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return character


def h(tag: str, attributes: Mapping[str, str | None] | None = None, *children: Child) -> Element:  # type: ignore[valid-type]
    """One element. Attributes that are None are left out; children may be elements, texts, or lists of them."""
    element = Element(tag)
    for name, value in (attributes or {}).items():
        if value is not None:
            element.set(name, visible(value))
    append(element, children)
    return element


def append(element: Element, children: Iterable) -> None:
    """Adds children behind those that the element has."""
    for child in children:
        if child is None:
            continue
        if isinstance(child, str):
            text = visible(child)
            if len(element):
                element[-1].tail = (element[-1].tail or "") + text
            else:
                element.text = (element.text or "") + text
        elif isinstance(child, Element):
            element.append(child)
        else:
            append(element, child)


def serialise(element: Element) -> str:
    """The element as HTML text."""
    return ElementTree.tostring(element, encoding="unicode", method="html")
