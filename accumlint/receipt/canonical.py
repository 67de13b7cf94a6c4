"""Canonical bytes and hashes.

Bytes follow RFC 8785 with a narrower profile: keys and texts are ASCII, integers lie within 2^53 - 1, numbers
are finite, there is no negative zero, and a double that is an integer of 2^53 or more is refused (its text
would read back as an integer out of range). Hashes are SHA-256 over a domain, a zero byte and the bytes, so
that a document of one kind can't be passed off as another.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import rfc8785

from accumlint.receipt.limits import MAX_INTEGER

DOMAIN = "accumlint/receipt/v1"


class NotCanonical(ValueError):
    """A value has no canonical form under the profile; says where, not what."""


def check_profile(value: Any, path: str = "$") -> None:
    """Raise :class:`NotCanonical` where ``value`` leaves the profile (``rfc8785`` alone is more permissive)."""
    kind = type(value)
    if kind is list or kind is tuple:
        for index, item in enumerate(value):
            if type(item) is int and -MAX_INTEGER <= item <= MAX_INTEGER:
                continue  # the rows of a large manifest: most items are small integers
            check_profile(item, f"{path}[{index}]" if not isinstance(item, (int, float)) else path)
    elif kind is dict:
        for key, item in value.items():
            if type(key) is not str or not key.isascii():
                raise NotCanonical(f"{path}: a key is not ASCII text")
            check_profile(item, f"{path}.{key}")
    elif kind is float:
        if not math.isfinite(value):
            raise NotCanonical(f"{path}: a number is not finite")
        if value == 0 and math.copysign(1, value) < 0:
            raise NotCanonical(f"{path}: a negative zero")
        if value.is_integer() and abs(value) > MAX_INTEGER:
            raise NotCanonical(f"{path}: an integral double beyond 2^53 - 1")
    elif kind is int:
        if abs(value) > MAX_INTEGER:
            raise NotCanonical(f"{path}: an integer beyond 2^53 - 1")
    elif kind is str:
        if not value.isascii():
            raise NotCanonical(f"{path}: a text is not ASCII")
    elif value is not None and kind is not bool:
        raise NotCanonical(f"{path}: a value that JSON does not have")


def canonical_bytes(value: Any) -> bytes:
    """The canonical bytes of plain JSON values. Raises :class:`NotCanonical` outside of the profile."""
    check_profile(value)
    return rfc8785.dumps(value)


def domain_hash(part: str, *pieces: bytes | memoryview) -> str:
    """SHA-256, in hex, of the joined ``pieces`` as the part named (``manifest``, ``plan``, ``result``, ...)."""
    digest = hashlib.sha256(f"{DOMAIN}/{part}".encode("ascii") + b"\0")
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
