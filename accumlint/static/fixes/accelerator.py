"""The accelerator that owns a window."""

from __future__ import annotations

import libcst as cst

from accumlint.static.fixes.script import Script


def opened(script: Script, node: cst.CSTNode) -> str:
    """The accelerator, as it is written, whose ``accumulate()`` the node calls; empty where it calls something else."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "accumulate":
        return script.code(node.func.value)
    return ""


def around(script: Script, node: cst.CSTNode) -> str:
    """The accelerator in whose ``accumulate()`` the node stands; empty where there is none."""
    contexts = (item.item for each in script.ancestors(node) if isinstance(each, cst.With) for item in each.items)
    return next(filter(None, (opened(script, context) for context in contexts)), "")
