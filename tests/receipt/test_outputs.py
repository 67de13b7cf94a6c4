"""Pictures, page, exports and differences."""

import copy
import hashlib
import json
import xml.etree.ElementTree as ElementTree
from fractions import Fraction
from html.parser import HTMLParser

import pytest

from accumlint import receipt
from accumlint.receipt import export, showing
from accumlint.receipt.diffing import diff
from accumlint.receipt.picture import Bar, bars, describe, svg_picture, text_picture

RIGHT = [Bar("a", 3, Fraction(1, 10)), Bar("b", 6, Fraction(1, 10)), Bar("c", 1, Fraction(1, 10))]
NAIVE = [Bar("a", 3, Fraction(1, 9)), Bar("b", 6, Fraction(1, 18)), Bar("c", 1, Fraction(1, 3))]


def test_the_right_window_is_a_flat_rectangle():
    rows = text_picture(RIGHT, width=20, height=4).split("\n")
    assert rows[:4] == [
        "|######|############|##| 1/10 = 0.1",
        "|######|############|##|",
        "|######|############|##|",
        "|######|############|##|",
    ]
    assert "a flat rectangle, mass 1" in rows[-1]


def test_the_mean_of_means_is_a_staircase():
    rows = text_picture(NAIVE, width=20, height=6).split("\n")
    assert rows[:6] == [
        "|      |            |##|",
        "|      |            |##|",
        "|      |            |##|",
        "|      |            |##|",
        "|######|------------|##| 1/10 = 0.1",
        "|######|############|##|",
    ]
    assert "steps of different height" in describe(NAIVE)


def test_widths_are_targets_and_heights_are_weights_in_svg():
    root = ElementTree.fromstring(svg_picture(NAIVE, "title"))
    space = {"s": "http://www.w3.org/2000/svg"}
    found = root.findall("s:rect", space)
    widths = [float(r.get("width")) for r in found]
    heights = [float(r.get("height")) for r in found]
    assert widths[1] == pytest.approx(2 * widths[0], rel=1e-3) and widths[1] == pytest.approx(
        6 * widths[2], rel=1e-3
    )
    assert heights[2] == pytest.approx(3 * heights[0], rel=1e-3) and heights[0] == pytest.approx(
        2 * heights[1], rel=1e-3
    )
    assert root.find("s:title", space).text == "title"
    assert "10 valid targets" in root.find("s:desc", space).text
    assert root.find("s:line[@stroke-dasharray]", space) is not None


def test_pictures_take_anything():
    for drawn in ([], [Bar("<&\"'>", 0, None)], [Bar("x", 5, 0.2), Bar("y", 0, None)], [Bar("x", 1, -0.5)]):
        text_picture(drawn)
        ElementTree.fromstring(svg_picture(drawn, "<&\"'>"))
    many = [Bar(f"m{i}", 1, 0.001) for i in range(1000)]
    assert "and 968 more" in text_picture(many)


def test_bars_of_a_window(manifest):
    made = receipt.build(manifest())
    (window,) = made.manifest.windows
    assert [(b.valid_targets, b.weight) for b in bars(made.manifest, window)] == [
        (3, Fraction(1, 10)), (6, Fraction(1, 10)), (1, Fraction(1, 10)),
    ]  # fmt: skip
    assert [b.weight for b in bars(made.manifest, window, naive=True)] == [b.weight for b in NAIVE]
    measured = receipt.build(manifest("measured-mean-of-means"))
    assert [round(float(b.weight), 6) for b in bars(measured.manifest, window)] == [
        0.111111,
        0.055556,
        0.333333,
    ]


def test_text_shows_both_numbers_and_all_tiers(manifest):
    text = showing.as_text(receipt.build(manifest()))
    assert "0.64 = 16/25" in text and "0.5333333333 = 8/15" in text and "0.1066666667 = 8/75" in text
    for tier in ("arithmetic", "clocks", "sync", "precision", "tail", "ranks"):
        assert f"\n  {tier} " in text
    assert text.isascii()


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.links, self.pre = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [v for k, v in attributes if k in ("src", "href", "action", "data", "xlink:href")]

    def handle_data(self, data):
        if self.tags and self.tags[-1] == "pre":
            self.pre.append(data)


def test_the_page_needs_no_network_and_holds_the_receipt(manifest):
    made = receipt.build(manifest())
    html = showing.as_html(made)
    page = Page()
    page.feed(html)
    assert page.links == [] and not {"script", "link", "img", "iframe"} & set(page.tags)
    assert "url(" not in html and "@import" not in html
    assert page.tags.count("svg") == 2 and page.tags.count("table") == 2
    assert "accumlint receipt verify run.receipt.json" in html
    saved = next(text for text in page.pre if text.startswith('{"hashes"'))
    assert receipt.verify_bytes(saved.strip().encode() + b"\n").status == 0


def test_outputs_are_deterministic(manifest):
    one, two = (receipt.build(manifest("two-ranks")) for _ in range(2))
    for make in (showing.as_text, showing.as_svg, showing.as_html, export.junit, export.in_toto):
        assert make(one) == make(two)


def test_in_toto_statement(manifest):
    file = {"role": "script", "path_sha256": "1" * 64, "sha256": "2" * 64}
    made = receipt.build(manifest(), bound_files=[file])
    statement = json.loads(export.in_toto(made))
    assert statement["_type"] == "https://in-toto.io/Statement/v1"
    assert statement["predicateType"] == export.PREDICATE_TYPE
    assert statement["subject"] == [
        {"name": "accumulation-receipt", "digest": {"sha256": hashlib.sha256(made.data).hexdigest()}},
        {"name": "script-1", "digest": {"sha256": "2" * 64}},
    ]
    assert statement["predicate"]["verdict"] == "PASS"
    assert statement["predicate"]["hashes"] == made.hashes
    assert statement["predicate"]["limitations"]


def test_junit(manifest):
    suite = ElementTree.fromstring(export.junit(receipt.build(manifest("mean-of-means")))).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("9", "1", "4")
    (failure,) = suite.iter("failure")
    assert "FAIL" in failure.get("message") and failure.text == "windows: 0"
    properties = {p.get("name"): p.get("value") for p in suite.iter("property")}
    assert properties["receipt_sha256"] == receipt.build(manifest("mean-of-means")).hashes["receipt_sha256"]
    assert len(list(suite.iter("testcase"))) == 9


CHANGES = [
    (("software", "torch"), "2.5.0", {"code"}),
    (("code_revision",), "abcdef1", {"code"}),
    (("bound_files",), [{"role": "script", "path_sha256": "1" * 64, "sha256": "2" * 64}], {"code"}),
    (
        ("bound_files",),
        [{"role": "configuration", "path_sha256": "1" * 64, "sha256": "2" * 64}],
        {"configuration"},
    ),
    (("precision", "autocast"), "bfloat16", {"configuration"}),
    (("clipping",), {"max_norm": 1, "norm": "2"}, {"configuration"}),
    (("random_state", "seed"), 7, {"configuration"}),
    (("loss_policy",), "microbatch-mean", {"policy"}),
    (("tolerances", "relative"), 0.5, {"policy"}),
    (("on_skipped_step", "scheduler"), "advances", {"policy"}),
    (("ranks", 0, "valid_targets"), [3, 5, 2], {"counts"}),
    (("ranks", 0, "clocks", "scheduler_step"), [3], {"clocks"}),
    (("ranks", 0, "decisions", "step"), ["none"], {"clocks"}),
    (("ranks", 0, "sync", "forward"), [True, True, True], {"clocks"}),
    (("ranks", 0, "loss_numerators"), [1.2, 4.8, 0.4000000001], {"numbers-within"}),
    (("ranks", 0, "loss_numerators"), [1.2, 4.8, 0.5], {"numbers-beyond"}),
    (("ranks", 0, "gradient_numerators"), [[1.5, -0.6, 0.2]], {"numbers-beyond"}),
    (("ranks", 0, "microbatch_ids"), ["other", "names", "here"], set()),
]


@pytest.mark.parametrize(("place", "value", "kinds"), CHANGES)
def test_diff_names_the_kind(edited, manifest, place, value, kinds):
    one, two = receipt.build(manifest()), receipt.build(edited("three-six-one", place, value))
    assert {c.kind for c in diff(one, two)} == kinds
    assert diff(one, one) == ()


def test_diff_ignores_what_is_unbound(manifest):
    other = receipt.build(manifest(), unbound={"created": "2025-01-31T12:00:00Z"})
    assert diff(receipt.build(manifest()), other) == ()


def test_diff_of_other_windows_says_that_numbers_cannot_be_compared(manifest):
    kinds = {c.kind for c in diff(receipt.build(manifest()), receipt.build(manifest("seven-flush")))}
    assert {"counts", "clocks", "numbers-beyond"} <= kinds


def test_diff_of_weights(manifest):
    one = receipt.build(manifest("measured-weights"))
    tree = copy.deepcopy(manifest("measured-weights"))
    tree["ranks"][0]["weights"][0] = 0.1
    assert {c.kind for c in diff(one, receipt.build(tree))} == {"numbers-within"}
    tree["ranks"][0]["weights"][0] = 0.11
    assert {c.kind for c in diff(one, receipt.build(tree))} == {"numbers-beyond"}
