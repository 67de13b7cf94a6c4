"""Codes and names of all rules, read off the names of their pages: nothing is opened, nothing parsed.

The pages themselves are :mod:`accumlint.knowledge`; most runs only need to know what exists.
"""

from __future__ import annotations

import functools
import os

# the audit's own rules exist whatever the knowledge folder holds
_OWN = {"ACC001": "syntax-error", "ACC002": "unused-suppression", "ACC003": "analysis-incomplete"}


@functools.cache
def all_rules() -> tuple[tuple[str, str, str], ...]:
    """(code, name, clause) of every rule, by code. The hundred of a code is its clause."""
    here = os.path.dirname(os.path.abspath(__file__))
    found = dict(_OWN)
    for root in (os.path.join(here, "rules"), os.path.join(os.path.dirname(here), "rules")):
        if not os.path.isdir(os.path.join(root, "vocabulary")):
            continue
        for folder in os.listdir(root):
            if folder[:1] == "C" and folder[1:2].isdigit():
                for page in os.listdir(os.path.join(root, folder)):
                    stem, suffix = os.path.splitext(page)
                    code, dash, name = stem.partition("-")
                    if suffix == ".md" and dash and code.startswith("ACC"):
                        found[code] = name
        break
    return tuple((code, name, f"C{code[3]}") for code, name in sorted(found.items()))
