"""The page in a real browser: nothing loaded, nothing complained of, readable, by keyboard, narrow and on paper.

Runs where Playwright and a Chromium are: ``pip install -c constraints.txt '.[browser]'`` and a chromium package of the
system (``ACCUMLINT_BROWSER`` names another one).
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from audit_tree_helpers import FIXTURES

from accumlint.cli.main import main

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install '.[browser]'")

CHROMIUM = os.environ.get("ACCUMLINT_BROWSER") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), ""
)
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="needs a Chromium: none on the path, ACCUMLINT_BROWSER is not set"
)


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """The page of the fixture tree, and the joint page of two reports of it."""
    folder = tmp_path_factory.mktemp("pages")
    audit, joint = folder / "audit.html", folder / "joint.html"
    names = [folder / "one.json", folder / "two.json"]
    assert (
        main(
            [
                "audit",
                str(FIXTURES),
                "--name",
                "team/fixtures",
                "--output",
                str(audit),
                "--output",
                str(names[0]),
            ]
        )
        == 0
    )
    assert (
        main(["audit", str(FIXTURES / "scripts"), "--name", "team/scripts", "--output", str(names[1])]) == 0
    )
    (folder / "bad.json").write_text("{")
    assert main(["audit", "merge", *map(str, names), str(folder / "bad.json"), "--output", str(joint)]) == 2
    return {"audit": audit, "joint": joint}


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as running:
        # the sandbox of Chromium needs rights that containers seldom give
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def visit(browser, pages):
    """Opens a page; what it asks for or complains of is collected in ``said``."""
    contexts = []

    def go(name="audit", width=1200, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.said.append(request.url))
        address = pages[name].as_uri()
        page.goto(address)
        assert page.said.pop(0) == address
        return page

    yield go
    for context in contexts:
        context.close()


@pytest.mark.parametrize("name", ["audit", "joint"])
def test_nothing_is_loaded_and_nothing_complained_of(visit, name):
    page = visit(name)
    page.wait_for_timeout(300)
    assert page.said == []


def test_the_policy_forbids_what_the_page_does_not_need(visit):
    page = visit()
    refused = page.evaluate("""async () => {
        const image = new Image();
        const done = new Promise(resolve => { image.onerror = () => resolve("refused"); image.onload = () => resolve("loaded"); });
        image.src = "data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==";
        return await done;
    }""")
    assert refused == "refused" and any("Content Security Policy" in each for each in page.said)


@pytest.mark.parametrize("name", ["audit", "joint"])
def test_every_link_leads_to_something_that_shows(visit, name):
    page = visit(name)
    hidden = page.evaluate("""async () => {
        const bad = [];
        for (const target of new Set(Array.from(document.querySelectorAll("a[href]"), a => a.getAttribute("href")))) {
            location.hash = "";
            location.hash = target;
            await new Promise(resolve => setTimeout(resolve, 0));
            const element = document.getElementById(target.slice(1));
            const box = element && element.getBoundingClientRect();
            if (!element || !box.width || !box.height || element.closest("details:not([open])") && element.tagName !== "DETAILS") bad.push(target);
        }
        return bad;
    }""")
    assert hidden == []


# every text that shows, with its colour and the ground below it
CONTRAST = """() => {
    document.querySelectorAll("details").forEach(each => { each.open = true; });
    const parse = text => (text.match(/[0-9.]+/g) || []).map(Number);
    const linear = c => { c /= 255; return c <= 0.04045 ? c / 12.92 : Math.pow((c + 0.055) / 1.055, 2.4); };
    const light = c => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
    const ground = element => {
        for (let each = element; each; each = each.parentElement) {
            const style = getComputedStyle(each);
            const window_ = each.closest && each.closest("svg") && each.tagName !== "svg" ? each.closest("svg").querySelector(".wn") : null;
            if (window_) return parse(getComputedStyle(window_).fill);
            const colour = parse(style.backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const worst = {};
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.textContent.trim() || ["SCRIPT", "STYLE", "title", "TITLE"].includes(element.tagName)) continue;
        const style = getComputedStyle(element);
        const inPicture = Boolean(element.closest("svg"));
        const [a, b] = [light(parse(inPicture ? style.fill : style.color)), light(ground(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const kind = element.tagName + "." + (element.getAttribute("class") || "");
        if (!(ratio >= worst[kind])) worst[kind] = ratio;
    }
    return worst;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["audit", "joint"])
def test_computed_contrast_meets_wcag_aa(visit, name, scheme):
    worst = visit(name, color_scheme=scheme).evaluate(CONTRAST)
    assert len(worst) > 8
    assert {kind: ratio for kind, ratio in worst.items() if ratio < 4.5} == {}


def test_dark_is_dark(visit):
    colours = {
        scheme: visit(color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    }
    assert colours == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 27)"}


@pytest.mark.parametrize("name", ["audit", "joint"])
@pytest.mark.parametrize("width", [320, 360, 1200])
def test_a_narrow_screen_needs_no_sideways_scrolling(visit, name, width):
    page = visit(name, width=width)
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    sticking_out = page.evaluate(
        """width => Array.from(document.querySelectorAll("body *"))
        .filter(each => !each.closest(".scroll, pre, svg, .skip") && each.getBoundingClientRect().right > width + 1)
        .map(each => each.tagName + "." + each.className)""",
        width,
    )
    assert sticking_out == []


def test_the_keyboard_reaches_everything_in_reading_order(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    focusable = page.evaluate("""() => Array.from(document.querySelectorAll("a[href], button, input, summary, [tabindex='0']"))
        .filter(each => each.checkVisibility({visibilityProperty: true}) && !each.closest("svg")).length""")
    tops = []
    for _ in range(60):
        page.keyboard.press("Tab")
        tops.append(page.evaluate("document.activeElement.getBoundingClientRect().top + scrollY"))
        width = page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)")
        assert width >= 2, page.evaluate("document.activeElement.outerHTML.slice(0, 200)")
    assert focusable > 60 and all(later >= earlier - 40 for earlier, later in zip(tops, tops[1:]))


def test_a_loop_folds_and_unfolds_by_keyboard(visit):
    page = visit()
    page.evaluate("document.querySelector('#l1 > summary').focus()")
    before = page.evaluate("document.querySelector('#l1').open")
    page.keyboard.press("Enter")
    assert page.evaluate("document.querySelector('#l1').open") is not before


def test_the_filter_hides_and_shows_findings(visit, pages):
    page = visit()
    total = page.evaluate("document.querySelectorAll('.finding').length")
    shown = "Array.from(document.querySelectorAll('.finding')).filter(each => !each.hidden)"
    page.fill("#filter-text", "ACC202 fabric")
    assert page.evaluate(f"{shown}.map(each => each.querySelector('a').textContent)") == ["ACC202"]
    assert page.inner_text("#filter-count") == f"1 of {total} shown"
    page.fill("#filter-text", "")
    page.uncheck("input[value=error]")
    assert 0 < page.evaluate(f"{shown}.length") < total
    page.check("input[value=error]")
    assert page.evaluate(f"{shown}.length") == total
    # a link to a finding that the filter hides still leads there
    page.fill("#filter-text", "nothing is called like this")
    page.evaluate("location.hash = '#f1'")
    page.wait_for_function("!document.getElementById('f1').hidden")


def test_without_scripts_everything_can_still_be_read(visit):
    page = visit(java_script_enabled=False)
    assert page.locator(".finding").first.is_visible() and not page.locator("#filter").is_visible()
    assert page.locator("#l1 svg").first.is_visible()


def test_on_paper_what_was_found_is_unfolded_and_pictures_fit(visit):
    page = visit(width=720)
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    closed = "Array.from(document.querySelectorAll('details:not([open])'), each => each.className)"
    assert set(page.evaluate(closed)) <= {"rule", "loop quiet", ""}
    assert page.evaluate("document.querySelectorAll('.loop:not(.quiet):not([open])').length") == 0
    assert page.evaluate(
        "Array.from(document.querySelectorAll('svg')).every(each => each.getBoundingClientRect().right <= innerWidth)"
    )
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    data = page.pdf(format="A4")
    assert data.startswith(b"%PDF")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('.loop:not(.quiet):not([open])').length") > 0


def test_screen_readers_get_names_and_an_order_of_headings(visit):
    page = visit()
    nameless = page.evaluate("""() => Array.from(document.querySelectorAll("a[href], button, input, summary, svg[role], [role=region]"))
        .filter(each => {
            const by = each.getAttribute("aria-labelledby");
            const text = each.getAttribute("aria-label") || (by && document.getElementById(by) || each.closest("label") || each).textContent;
            return !text.trim();
        }).map(each => each.outerHTML.slice(0, 120))""")
    assert nameless == []
    levels = page.evaluate(
        "Array.from(document.querySelectorAll('h1, h2, h3, h4'), each => Number(each.tagName[1]))"
    )
    assert levels[0] == 1 and all(later <= earlier + 1 for earlier, later in zip(levels, levels[1:])), (
        json.dumps(levels)
    )
