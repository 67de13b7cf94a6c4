"""The JSON of a report: its schema, its way back, and what is said of a document that is none."""

import json
import os
from pathlib import Path

import jsonschema
import pytest
from audit_tree_helpers import FIXTURES, TREE, audited

from accumlint.report.audit.json import DocumentError, load, render, schema

PUBLISHED = Path(__file__).parents[2] / "accumlint" / "report" / "audit" / "schema" / "audit-v1.schema.json"


@pytest.fixture
def document(tree, capsys):
    tree(TREE)
    return audited(capsys)


def test_the_published_schema_is_the_one_in_force():
    """``ACCUMLINT_UPDATE_SNAPSHOTS=1`` writes it anew; a change that old readers can't bear needs a new version."""
    text = json.dumps(schema(), indent=1) + "\n"
    if os.environ.get("ACCUMLINT_UPDATE_SNAPSHOTS"):
        PUBLISHED.write_text(text)
    assert text == PUBLISHED.read_text()


def test_documents_follow_the_schema(document, capsys):
    jsonschema.Draft202012Validator.check_schema(schema())
    validator = jsonschema.Draft202012Validator(schema())
    validator.validate(document)
    validator.validate(audited(capsys, FIXTURES))
    del document["coverage"]["loops"]
    assert not validator.is_valid(document)


def test_what_is_written_reads_back_as_the_same_report(document):
    data = (json.dumps(document, indent=1) + "\n").encode()
    assert render(load(data)).encode() == data


def test_keys_of_later_versions_are_let_through(document):
    document["coverage"]["mood"] = "good"
    assert load(json.dumps(document).encode()).coverage.files == document["coverage"]["files"]


def broken(document, change):
    change(document)
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("name"), "name is missing"),
        (lambda d: d["coverage"].update(files="many"), "coverage.files: expected a whole number"),
        (lambda d: d["coverage"].update(files=True), "coverage.files: expected a whole number"),
        (lambda d: d["findings"][0].update(severity="deadly"), "findings[0].severity: expected one of"),
        (lambda d: d["findings"][0].update(rule="../../x"), "findings[0].rule: expected a code"),
        (lambda d: d.update(source_url="javascript:alert(1)//{path}"), "source_url: expected an address"),
        (lambda d: d.update(name=" "), "name: expected a text"),
        (
            lambda d: d.update(revision={"commit": "<b>", "committed": "2025-01-01T00:00:00Z"}),
            "revision.commit: expected",
        ),
        (
            lambda d: d.update(revision={"commit": "0" * 40, "committed": "yesterday"}),
            "revision.committed: expected",
        ),
        (lambda d: d["findings"][0].update(loops=[99]), "findings[0].loops: leads nowhere"),
        (lambda d: d["loops"][0].update(findings=[-1]), "loops[0].findings: leads nowhere"),
        (lambda d: d.update(findings={}), "findings: expected a list"),
        (lambda d: d["loops"][0].update(place="here"), "loops[0].place: expected an object"),
        (
            lambda d: d.update(schema="accumlint/audit/v2"),
            "its schema is 'accumlint/audit/v2', expected 'accumlint/audit/v1'",
        ),
        (lambda d: d.pop("schema"), "it names no schema"),
    ],
)
def test_a_document_of_another_shape_is_refused_with_the_place(document, change, message):
    with pytest.raises(DocumentError) as refused:
        load(broken(document, change))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not JSON"),
        (b"{\n", "line 2, column 1"),
        (b"\xff{}", "is not UTF-8"),
        (b"[]", "expected an object"),
        (b'{"schema": NaN}', "NaN is no JSON number"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_what_is_no_document_is_refused(data, message):
    with pytest.raises(DocumentError, match=message):
        load(data)
