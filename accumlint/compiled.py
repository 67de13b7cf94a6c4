"""Knowledge in a form that loads in a fraction of a millisecond, kept where Python keeps byte code.

The file that people edit stays the only truth: it is read every time, and what was compiled from it counts only while
it was made from these very bytes by this very version of the reader. Where byte code may not be written (``-B``,
``PYTHONDONTWRITEBYTECODE``, a folder that can't be written to) nothing is kept, and reading takes longer.
"""

from __future__ import annotations

import marshal
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

_MAGIC = b"accumlint knowledge 1\n"


def load(path: str, parse: Callable[[bytes], Any], readers: Iterable[str]) -> Any:
    """What ``parse`` makes of the bytes of a file: plain data (dicts, lists, tuples, text, numbers).

    ``readers`` are the source files whose change can change the answer. Raises OSError and whatever ``parse`` raises.
    """
    with open(path, "rb") as stream:
        data = stream.read()
    kept, stamp = _kept(path), _stamp(data, readers)
    if not kept or not stamp:
        return parse(data)
    head = _MAGIC + stamp
    try:
        with open(kept, "rb") as stream:
            held = stream.read()
        if held.startswith(head):
            return marshal.loads(held[len(head) :])
    except (OSError, EOFError, ValueError, TypeError):
        pass  # not there yet, or damaged: made anew
    value = parse(data)
    if not sys.dont_write_bytecode:
        _keep(kept, head, value)
    return value


def _kept(path: str) -> str:
    """Where the compiled form of a file lives; empty where this Python keeps no byte code at all."""
    from importlib.util import cache_from_source

    here = os.path.dirname(os.path.abspath(__file__))
    name = os.path.basename(os.path.dirname(path)) + "." + os.path.basename(path).replace(".", "_")
    try:
        return cache_from_source(os.path.join(here, name + ".py")).removesuffix("pyc") + "rules"
    except NotImplementedError:
        return ""


def _stamp(data: bytes, readers: Iterable[str]) -> bytes:
    """A digest of the content and of what reads it, as Python makes it for byte code; empty where that can't be told."""
    from importlib.util import source_hash

    parts = [data]
    try:
        for reader in readers:
            with open(reader, "rb") as stream:
                parts.append(stream.read())
    except OSError:
        return b""
    return b"".join(map(source_hash, parts))


def _keep(kept: str, head: bytes, value: Any) -> None:
    from accumlint.atomic import replace

    try:
        os.makedirs(os.path.dirname(kept), exist_ok=True)
        replace(kept, head + marshal.dumps(value), 0o644)
    except (OSError, ValueError):
        pass  # a folder that others own, or a value that is not plain: it works without, only slower
