"""OmegaConf and Hydra interpolation: what a ``${...}`` value is, as far as the file alone tells.

Follows omegaconf 2.3: ``${a.b}`` is looked up from the root of the document, ``${oc.env:NAME,default}`` and
``${oc.decode:…}`` are known resolvers; ``${eval:…}`` style resolvers are user code and stay unknown.
"""

from __future__ import annotations

import re
from typing import Any

from accumlint.config.tree import Entry, Scalar, Table

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*\Z")
MAX_HOPS = 10


class Unresolved(str):
    """A text whose value only the framework knows; it is its own text."""


def resolve(entry: Entry, root: Table) -> Any:
    """The value of a scalar entry with references followed.

    Returns an :class:`Unresolved` text when a reference leads nowhere, and ``None`` for tables and lists.
    """
    if not isinstance(entry.node, Scalar):
        return None
    return resolve_value(entry.node.value, root)


def resolve_value(value: Any, root: Table, hops: int = 0) -> Any:
    if not isinstance(value, str) or "${" not in value:
        return value
    if hops > MAX_HOPS:
        return Unresolved(value)
    whole = _REFERENCE.fullmatch(value.strip())
    if whole is None:
        return Unresolved(value)
    inner = whole.group(1).strip()
    if _KEY.match(inner):
        target = root.find(inner)
        if target is not None and isinstance(target.node, Scalar):
            return resolve_value(target.node.value, root, hops + 1)
    return Unresolved(value)
