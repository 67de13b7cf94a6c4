"""Canonical bytes: RFC 8785 against another implementation, the narrower profile, hashes by domain."""

import gzip
import math
import struct
from pathlib import Path

import pytest
import rfc8785

from accumlint.receipt.canonical import NotCanonical, canonical_bytes, domain_hash

VECTORS = Path(__file__).parent / "vectors" / "numbers.txt.gz"


def test_numbers_agree_with_javascript_on_100_000_doubles():
    lines = gzip.decompress(VECTORS.read_bytes()).decode("ascii").splitlines()
    assert len(lines) == 100_000
    within_profile = 0
    for line in lines:
        digits, text = line.split(" ")
        value = struct.unpack(">d", bytes.fromhex(digits))[0]
        expected = text.encode("ascii")
        assert rfc8785.dumps(value) == expected, digits
        negative_zero = value == 0 and math.copysign(1, value) < 0
        if negative_zero or (value.is_integer() and abs(value) >= 2**53):
            with pytest.raises(NotCanonical):
                canonical_bytes(value)
        else:
            within_profile += 1
            assert canonical_bytes(value) == expected
    assert within_profile > 50_000


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        -0.0,
        2.0**53,
        1e300,
        2**53,
        -(2**53),
        "naïve",
        {"ключ": 1},
        {1: 1},
        {"a": [1, {"b": math.nan}]},
        b"bytes",
        {"a": object()},
    ],
)
def test_profile_refuses(value):
    with pytest.raises(NotCanonical):
        canonical_bytes(value)


def test_refusals_do_not_quote_the_value():
    with pytest.raises(NotCanonical) as caught:
        canonical_bytes({"a": ["hünter2"]})
    assert "nter2" not in str(caught.value)
    assert "$.a[0]" in str(caught.value)


def test_keys_are_sorted_and_nothing_is_padded():
    value = {"b": [1, 2.5, True, None], "a": {"z": "x", "y": 0.1}}
    assert canonical_bytes(value) == b'{"a":{"y":0.1,"z":"x"},"b":[1,2.5,true,null]}'


def test_one_domain_is_never_another():
    parts = ["manifest", "plan", "result", "receipt", "path", "rejected"]
    assert len({domain_hash(part, b"{}") for part in parts}) == len(parts)
    assert domain_hash("pla", b"n\0{}") != domain_hash("plan", b"{}")
