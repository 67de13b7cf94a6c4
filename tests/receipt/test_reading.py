"""Strict reading: caps before parsing, and nothing of the text is lost on the way."""

import time
from fractions import Fraction

import pytest

from accumlint import receipt
from accumlint.receipt import limits
from accumlint.receipt.numbers import (
    NonFinite,
    NumberText,
    canonical,
    decimal_text,
    exact,
    exact_sum,
    refusal,
    sum_of_quotients,
    to_fraction,
)
from accumlint.receipt.reading import RepeatedKeys, json_depth_exceeds, read


def code(data, syntax=""):
    with pytest.raises(receipt.Rejected) as caught:
        read(data, syntax)
    (problem,) = caught.value.problems
    return problem.code


def test_size_cap_comes_first():
    assert code(b"{" * (limits.MAX_JSON_BYTES + 1)) == "too-large"
    assert code(b"a" * (limits.MAX_YAML_BYTES + 1)) == "too-large"


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b"[" * 17 + b"]" * 17,
        b'{"a":' * 17 + b"1" + b"}" * 17,
        b'["' + b'\\"' * 100 + b'",' + b"[" * 17 + b"]" * 18,
        b"[[],[[" * 500_000,
    ],
)
def test_depth_cap_comes_before_the_parser(data):
    assert code(data, "json") == "too-deep"


def test_depth_counts_brackets_outside_of_strings_only():
    assert not json_depth_exceeds(b'["' + b"[" * 100 + b'"]', 16)
    assert not json_depth_exceeds(b'["\\"' + b"[" * 100 + b'"]', 16)
    assert not json_depth_exceeds(b'["\\\\", [] ]', 2)
    assert json_depth_exceeds(b'["\\\\", [[]] ]', 2)
    assert not json_depth_exceeds(b"[" * 16 + b"]" * 16, 16)


def test_hostile_texts_cost_linear_time():
    for shape in (b'"\\"', b"[]", b'""', b"][", b'{"', b"\\"):
        times = []
        for size in (200_000, 1_600_000):
            data = shape * (size // len(shape))
            started = time.process_time()
            json_depth_exceeds(data, 16)
            times.append(time.process_time() - started)
        assert times[1] < 40 * times[0] + 0.05, shape  # 8 times the bytes


def test_duplicate_keys_stay_visible():
    for data in (b'{"a": 1, "a": 2}', b"a: 1\na: 2\n"):
        tree = read(data)
        assert isinstance(tree, RepeatedKeys) and tree.repeated == {"a": 1}


def test_nonfinite_tokens_stay_visible():
    assert read(b"[NaN, Infinity, -Infinity]") == [
        NonFinite("NaN"),
        NonFinite("Infinity"),
        NonFinite("-Infinity"),
    ]
    assert read(b"[.nan, -.inf]", "yaml") == [NonFinite(".nan"), NonFinite("-.inf")]
    assert refusal(read(b"[1e400]")[0]) == "number-nonfinite"
    assert refusal(read(b"[-1e999999999999]")[0]) == "number-nonfinite"


def test_booleans_are_no_numbers():
    assert refusal(True) == "boolean-as-number"
    assert refusal(read(b"[true]")[0]) == "boolean-as-number"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.2", Fraction(6, 5)),
        ("1.20", Fraction(6, 5)),
        ("120e-2", Fraction(6, 5)),
        ("0.1000000000000000055511151231257827", Fraction("0.1000000000000000055511151231257827")),
        ("1.0000000000000000000000001", 1 + Fraction(1, 10**25)),
        ("9007199254740993", Fraction(9007199254740993)),
        ("1e-400", Fraction(1, 10**400)),
        ("-0.0", Fraction(0)),
        ("5e-324", Fraction("5e-324")),
    ],
)
def test_numbers_mean_their_text(text, value):
    for data, syntax in ((f"[{text}]", "json"), (f"- {text}", "yaml"), (f'["{text}"]', "json")):
        (number,) = read(data.encode(), syntax)
        assert refusal(number) is None
        assert to_fraction(number) == value
        again = canonical(number)
        assert to_fraction(again) == value
        assert canonical(again) == again  # a normal form


def test_numbers_beyond_the_caps_are_refused_cheaply():
    for text in ("1" * 65, "1." + "1" * 64, "1e401", "1e-401", "9" * 3_000_000, "0." + "9" * 3_000_000):
        started = time.process_time()
        (number,) = read(f"[{text}]".encode())
        assert refusal(number) in ("number-unsafe", "number-nonfinite")
        assert time.process_time() - started < 1


def test_canonical_forms():
    assert [canonical(x) for x in (1.0, -0.0, 1e15, 0.1, "0.10", 1e16, NumberText("1e300"), 10**20)] == [
        1, 0, 10**15, 0.1, 0.1, "1e16", "1e300", "1e20",
    ]  # fmt: skip


def test_decimal_text_rounds_half_to_even_at_17_digits():
    assert decimal_text(Fraction(8, 15)) == "0.53333333333333333"
    assert decimal_text(Fraction(2, 3)) == "0.66666666666666667"
    assert decimal_text(Fraction(16, 25)) == "0.64"
    assert decimal_text(Fraction(10) ** 25) == "1e+25"
    assert decimal_text(Fraction(-1, 3 * 10**9)) == "-3.3333333333333333e-10"
    assert decimal_text(Fraction(100)) == "100"


def test_long_rationals_are_left_out():
    assert exact(Fraction(1, 10**63 + 1))["rational"] == f"1/{10**63 + 1}"
    assert exact(Fraction(1, 10**64 + 1))["rational"] is None
    assert exact(Fraction(10**5000 + 1, 3))["rational"] is None


def test_sums_are_exact():
    assert exact_sum([0.1] * 10) == 1
    assert exact_sum([1e300, 1e-300, -1e300]) == Fraction("1e-300")
    assert exact_sum([]) == 0


def test_sum_of_quotients_is_exact_until_the_common_denominator_explodes():
    pairs = [(Fraction(n, 7), n + 1) for n in range(200)]
    assert sum_of_quotients(pairs) == sum((v / n for v, n in pairs), Fraction(0))
    many = [(Fraction(1), 10**6 + n) for n in range(3000)]
    whole = sum_of_quotients(many)
    assert whole.denominator.bit_length() < 2000  # rounded, not with a denominator of 60,000 bits
    assert abs(whole - sum_of_quotients(many[:1500][:300]) - sum_of_quotients(many[300:])) < Fraction(
        1, 10**90
    )


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"a: &x 1\nb: *x\n", "yaml-alias"),
        (b"&x a: 1\n", "yaml-alias"),
        (b"a: !!int 1\n", "yaml-tag"),
        (b"a: !local 1\n", "yaml-tag"),
        (b"!!python/object/apply:os.system ['true']\n", "yaml-tag"),
        (b"a: 1\n---\nb: 2\n", "yaml-documents"),
        (b"? [a]\n: 1\n", "syntax"),
        (b"a: [1, 2\n", "syntax"),
        (b"a: {b: 1}}\n", "syntax"),
        (b"", "syntax"),
        (b"# nothing\n", "syntax"),
        (b"[" * 50, "too-deep"),
        (b"".join(b" " * i + b"a:\n" for i in range(40)), "too-deep"),
        (b"\xef\xbb\xbfa: 1\n", "encoding"),
        (b"a: \xff\n", "encoding"),
        (b"a: \x00\n", "syntax"),
    ],
)
def test_yaml_is_plain(data, expected):
    assert code(data, "yaml") == expected


def test_a_yaml_bomb_is_refused_at_its_first_anchor():
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    started = time.process_time()
    assert code("\n".join(levels).encode(), "yaml") == "yaml-alias"
    assert time.process_time() - started < 1


def test_yaml_scalars_are_those_of_json():
    tree = read(
        b"[yes, on, 0x10, 1_000, 010, +1, .5, 1., 1:30, 2024-01-01, null, ~, true, 3, '3', 1e3]", "yaml"
    )
    assert tree == [
        "yes", "on", "0x10", "1_000", "010", "+1", ".5", "1.", "1:30", "2024-01-01",
        None, None, True, 3, "3", 1000.0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "data", [b"{", b'{"a" 1}', b"{'a': 1}", b"[1,]", b"[01]", b"[+1]", b'{"a":1} x', b"nul"]
)
def test_json_syntax(data):
    assert code(data, "json") == "syntax"
