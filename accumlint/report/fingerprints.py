"""Fingerprints that stay the same when lines are inserted above a finding."""

from __future__ import annotations

import hashlib
from collections import Counter

from accumlint.baseline import key
from accumlint.report.model import Report

_BLOCK = 100  # characters that a line's hash covers, blanks left out
_BASE = 37
_END = 65535  # stands for the end of the file
_MASK = 2**64 - 1


def line_hashes(text: str) -> list[str]:
    """``primaryLocationLineHash`` of every line, as code scanning computes it for itself.

    A line's hash is the polynomial, modulo 2**64, of the 100 non-blank UTF-16 units from its start on (line
    ends count as one, the end of the file as 65535, and zeros follow it); ``:n`` tells equal hashes apart,
    from the top. Giving the same value as the uploading action keeps alerts from being opened twice.
    """
    raw = text.replace("\r\n", "\n").replace("\r", "\n").encode("utf-16-le", "surrogatepass")
    units: list[int] = []
    starts: list[int] = []
    at_start = True
    for low, high in zip(raw[::2], raw[1::2]):
        unit = low | high << 8
        if unit in (0x20, 0x09):
            continue
        if at_start:
            starts.append(len(units))
        at_start = unit == 0x0A
        units.append(unit)
    if at_start:
        starts.append(len(units))
    units.append(_END)
    # from the end: the hash at i is the one at i + 1 moved on by a place, with the unit that leaves taken out
    length = len(units)
    first = pow(_BASE, _BLOCK - 1, 2**64)
    inverse = pow(_BASE, -1, 2**64)
    hashes = [0] * (length + 1)
    for index in range(length - 1, -1, -1):
        leaving = units[index + _BLOCK] if index + _BLOCK < length else 0
        hashes[index] = ((hashes[index + 1] - leaving) * inverse + units[index] * first) & _MASK
    seen: Counter[int] = Counter()
    found = []
    for start in starts:
        value = hashes[start]
        seen[value] += 1
        found.append(f"{value:x}:{seen[value]}")
    return found


def content_fingerprints(report: Report) -> list[str]:
    """One fingerprint per finding, in order: what the finding is (see the baseline), and which of its kind."""
    seen: Counter[tuple] = Counter()
    found = []
    for finding in report.findings:
        what = key(report, finding)
        seen[what] += 1
        text = "\0".join((*what, str(seen[what])))
        found.append(hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest())
    return found
