"""The HTML of a report, read by a parser: well formed, harmless whatever it shows, alone in the world."""

import base64
import hashlib
import itertools
import re

import pytest
from audit_page_helpers import Page, check, contrast, themes
from audit_tree_helpers import FIXTURES, MEAN_OF_MEANS, TREE, audited

from accumlint.cli.main import main
from accumlint.knowledge import rules
from accumlint.report.audit.page import markdown


def page_of(capsys, *arguments):
    capsys.readouterr()
    assert main(["audit", "--format", "html", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.fixture
def text(tree, capsys):
    tree(TREE)
    return page_of(capsys)


def test_the_page_is_whole_and_every_link_leads_somewhere(text, capsys):
    page = check(text)
    document = audited(capsys)
    for number in range(1, len(document["findings"]) + 1):
        assert f"f{number}" in page.ids
    for rule in {finding["rule"] for finding in document["findings"]}:
        assert page.ids.count(rule) == 1
    drawn = [loop for loop in document["loops"] if loop["kind"] != "no-window"]
    assert sum(1 for each in page.ids if re.fullmatch(r"l\d+", each)) == len(drawn)
    pictures = [picture for loop in drawn for picture in loop["pictures"]]
    assert len([each for each in page.ids if re.fullmatch(r"l\d+p\d+t-t", each)]) == len(pictures)


def test_the_fixture_tree_gives_a_whole_page(capsys):
    check(page_of(capsys, FIXTURES))


def test_an_empty_folder_gives_a_page_that_says_so(tree, capsys):
    tree({})
    assert main(["audit", "--format", "html"]) == 3
    page = check(capsys.readouterr().out)
    assert "Nothing was there to look at." in page.words()


HOSTILE = "<img src=x onerror=alert(1)>&amp;\"'.py"


def test_names_and_sources_cannot_become_markup(tree, capsys):
    evil = MEAN_OF_MEANS.replace(
        "(loss / accum_steps).backward()",
        "(loss / accum_steps).backward()  # </code></pre><script>alert(1)</script>",
    )
    folder = tree(
        {HOSTILE: evil, "]]>`|*x*.py": evil.replace("step, (", "i, (").replace("step + 1", "i + 1")}
    )
    text = page_of(capsys, folder, "--name", "<b>\u202eteam</b>")
    page = check(text)
    assert [node.tag for node in page.nodes].count("script") == 1 and not [
        node for node in page.nodes if node.tag == "img"
    ]
    words = page.words()
    assert HOSTILE in words and "<script>alert(1)</script>" in words
    assert "\u202e" not in text and "<b>\\u202eteam</b>" in words
    assert main(["audit", str(folder), "--format", "markdown", "--name", "<b>`x`|"]) == 0
    told = capsys.readouterr().out
    assert "# Gradient accumulation audit: \\<b\\>\\`x\\`\\|" in told
    outside_code = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", re.sub(r"(?s)```\n.*?```", "", told))
    assert "<img" not in outside_code and "<script" not in outside_code.replace("\\<", "")


def test_only_the_page_s_own_style_and_script_may_act(text):
    page = check(text)
    (policy,) = [
        n.attributes["content"]
        for n in page.nodes
        if n.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'; ")
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        digest = base64.b64encode(hashlib.sha256(page.raw(tag).encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}';" in policy
    outside = re.sub(r"(?s)<(code|li|title|p)\b.*?</\1>", "", text)
    assert "http:" not in outside and "https:" not in outside  # addresses are shown as text only


TEXT_ON = {
    "text": ("page", "card", "code"), "soft": ("page", "card"), "link": ("page", "card", "code"), "error": ("page", "card"),
    "warning": ("page", "card"), "advice": ("page", "card"), "good": ("page", "card"),
}  # fmt: skip
SHAPES_ON = {
    "mark": ("page", "card"),
    "bar": ("page",),
    "faint": ("page",),
    "focus": ("page", "card"),
    "error": ("page",),
}


@pytest.mark.parametrize("theme", ["light", "dark", "print"])
def test_contrast_meets_wcag_aa(text, theme):
    """4.5 for text, 3 for shapes that carry meaning."""
    colours = themes(check(text).raw("style"))[theme]
    pairs = [(each, ground, 4.5) for each, grounds in TEXT_ON.items() for ground in grounds]
    pairs += [(each, ground, 3.0) for each, grounds in SHAPES_ON.items() for ground in grounds]
    for colour, ground, least in pairs:
        ratio = contrast(colours[f"--{colour}"], colours[f"--{ground}"])
        if theme == "print" and colour == "bar":
            continue  # grey bars have a black outline on paper
        assert ratio >= least, f"{colour} on {ground} in {theme}: {ratio:.2f}"


def test_severity_needs_no_colour(text):
    style = check(text).raw("style")
    signs = re.findall(r"\.badge\.(\w+)::before \{ content: \"(.)\"", style)
    assert len({sign for _, sign in signs}) == len(signs) == 4
    borders = re.findall(r"\.finding\.\w+ \{ border-left: ([^;]+?) var", style)
    assert len(set(borders)) == 3


def test_a_picture_says_in_words_what_it_shows(text):
    page = check(text)
    words = page.words()
    assert (
        "Weights of the valid targets in the script. window 1: 3 targets at 0.1111, 6 targets at 0.05556, 1 targets at 0.3333; right is 0.1 each"
        in words
    )
    assert "window 1: 3 microbatches, schedule 3×, step, clear" in words


def test_places_lead_to_the_sources_where_an_address_is_given(tree, capsys):
    folder = tree({"my scripts/a#1.py": MEAN_OF_MEANS})
    url = "https://git.example.com/team/x/blob/{commit}/{path}#L{line}"
    links = [
        link for link in Page(page_of(capsys, folder, "--source-url", url)).links if not link.startswith("#")
    ]
    line = next(each["line"] for each in audited(capsys, folder)["findings"] if each["rule"] == "ACC101")
    assert f"https://git.example.com/team/x/blob/HEAD/my%20scripts/a%231.py#L{line}" in links
    assert main(["audit", str(folder), "--source-url", url]) == 0
    assert (
        f"](<https://git.example.com/team/x/blob/HEAD/my%20scripts/a%231.py#L{line}>)"
        in capsys.readouterr().out
    )
    for wrong in ("javascript:alert(1)//{path}", "https://git.example.com/x"):
        assert main(["audit", str(folder), "--source-url", wrong]) == 2


def test_every_rule_page_can_be_shown(capsys):
    for rule in rules().values():
        for section in rule.sections.values():
            assert markdown(section)


def test_html_in_a_rule_page_is_shown_and_not_obeyed():
    (paragraph,) = markdown(
        "a <script>alert(1)</script> [x](javascript:alert(1)) ![i](http://example.com/i.png)"
    )
    assert not list(paragraph.iter("script")) and not list(paragraph.iter("img"))
    assert all(not (each.get("href") or "").startswith("javascript") for each in paragraph.iter("a"))


def test_the_same_tree_gives_the_same_bytes_from_anywhere(tree, capsys, monkeypatch):
    folder = tree(TREE)
    seen = {}
    for (where, named), jobs, kind in itertools.product(
        ((".", "."), ("..", folder.name), ("/", folder)), ("1", "2"), ("html", "markdown", "json")
    ):
        monkeypatch.chdir(folder / where if where != "/" else "/")
        assert main(["audit", str(named), "--format", kind, "--jobs", jobs]) == 0
        seen.setdefault(kind, set()).add(capsys.readouterr().out)
    assert [len(outputs) for outputs in seen.values()] == [1, 1, 1]
    for outputs in seen.values():
        assert str(folder) not in outputs.pop()


@pytest.mark.slow
def test_the_page_of_a_hundred_scripts_stays_below_two_megabytes(tmp_path, capsys):
    scripts = sorted([*(FIXTURES / "scripts").glob("*.py"), *(FIXTURES / "frameworks").glob("*.py")])
    for index in range(100):
        source = scripts[index % len(scripts)]
        (tmp_path / f"{index:03}_{source.name}").write_bytes(source.read_bytes())
    text = page_of(capsys, tmp_path)
    page = check(text)
    assert sum(1 for each in page.ids if re.fullmatch(r"l\d+", each)) >= 90
    assert len(text.encode()) < 2_000_000
