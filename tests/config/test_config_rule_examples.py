"""The examples of the pages of clause C9 are their tests: marked lines are reported, nothing else is."""

from __future__ import annotations

from itertools import groupby

import pytest

from accumlint.config import SourceFile, audit
from accumlint.config.names import RULES
from accumlint.knowledge import KnowledgeError, parse_page, root

PAGES = [
    parse_page(path.read_text(encoding="utf-8"), path)
    for path in sorted((root() / "C9-configuration").glob("*.md"))
]
EVERY_PAGE = [parse_page(path.read_text(encoding="utf-8"), path) for path in sorted(root().glob("C*/*.md"))]


def runs(page):
    numbered = list(enumerate(page.examples))
    keyed = sorted(numbered, key=lambda item: (item[1].kind, item[1].group or f"#{item[0]:03}"))
    for key, members in groupby(keyed, key=lambda item: (item[1].kind, item[1].group or f"#{item[0]:03}")):
        yield f"{page.code}-{key[0]}-{key[1]}", page, [example for _, example in members]


CASES = [case for page in PAGES for case in runs(page)]


@pytest.mark.parametrize(("page", "examples"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_marked_lines_and_nothing_else(page, examples):
    files = [SourceFile(example.file or "train.py", example.code.encode()) for example in examples]
    wanted = sorted(
        (example.file or "train.py", line, page.name) for example in examples for line in example.lines
    )
    assert sorted((f.span.path, f.span.line, f.name) for f in audit(files)) == wanted


def test_every_page_has_both_kinds():
    for page in PAGES:
        assert {example.kind for example in page.examples} == {"bad", "good"}, page.code


def test_names_agree_with_the_pages():
    pages = {page.name: page for page in EVERY_PAGE}
    for name, (code, clause, severity) in RULES.items():
        if name in pages:
            page = pages[name]
            assert (page.code, page.clause, page.severity) == (code, clause, severity), name


def test_pages_are_well_formed():
    for page in PAGES:
        assert page.path.name == f"{page.code}-{page.name}.md"
        assert list(page.sections) == [
            "What it finds",
            "Why it changes training",
            "How to fix it",
            "When it stays silent",
        ]
        assert page.summary.endswith(".") and len(page.summary) <= 260


HEAD = "---\ncode: ACC901\nname: n\nclause: C9\nseverity: error\nwitnesses: [static]\nfix: none\nsince: 0.1.0\n---\n## What it finds\nx\n"


def test_one_marked_file_is_enough_for_a_group():
    page = parse_page(
        HEAD
        + '```yaml bad a group=g file=a.yaml\nk: 1\n```\n```json bad b group=g file=b.json\n{"k": 1} // <- here\n```\n',
        root(),
    )
    assert [(e.language, e.file, e.group, e.title, e.lines) for e in page.examples] == [
        ("yaml", "a.yaml", "g", "a", ()),
        ("json", "b.json", "g", "b", (1,)),
    ]
    assert page.examples[1].code == '{"k": 1}\n'


@pytest.mark.parametrize("body", ["```yaml bad a\nk: 1\n```\n", "```yaml good a\nk: 1 # <- here\n```\n"])
def test_marks_must_fit_the_kind(body):
    with pytest.raises(KnowledgeError, match="marks its lines"):
        parse_page(HEAD + body, root())
