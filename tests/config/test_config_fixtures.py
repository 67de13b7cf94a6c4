"""Every fixture folder gives exactly the findings that ``expected.yaml`` lists for it."""

from __future__ import annotations

import random

import pytest
import yaml
from config_helpers import FIXTURES, folder

from accumlint.config import audit, may_be_configuration
from accumlint.config.sieve import can_be_script

EXPECTED = yaml.safe_load((FIXTURES / "expected.yaml").read_text(encoding="utf-8"))


def places(findings):
    return sorted((finding.span.path, finding.span.line, finding.name) for finding in findings)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_exactly_the_expected_findings(name):
    wanted = sorted((e["file"], e["line"], e["rule"]) for e in EXPECTED[name]["expect"])
    assert places(audit(folder(FIXTURES / name))) == wanted


def test_every_folder_is_listed():
    assert {path.name for path in FIXTURES.iterdir() if path.is_dir()} == set(EXPECTED)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_the_order_of_files_does_not_matter(name):
    files = folder(FIXTURES / name)
    first = audit(files)
    for seed in range(3):
        random.Random(seed).shuffle(files)
        assert audit(files) == first


def test_the_sieve_keeps_every_file_with_a_finding():
    for name, expectation in EXPECTED.items():
        data = {file.path: file.data for file in folder(FIXTURES / name)}
        for expected in expectation["expect"]:
            path = expected["file"]
            assert may_be_configuration(path, data[path]) or can_be_script(path, data[path]), (name, path)


def test_spans_cover_text_of_the_file():
    for name in EXPECTED:
        files = {file.path: file.data.decode().split("\n") for file in folder(FIXTURES / name)}
        for finding in audit(folder(FIXTURES / name)):
            for span in (finding.span, *(related.span for related in finding.related)):
                lines = files[span.path]
                assert 1 <= span.line <= len(lines)
                assert 1 <= span.column <= len(lines[span.line - 1]) + 1
                if span.end_line == span.line:
                    assert span.end_column >= span.column


def test_windows_paths_come_back_as_they_were_given():
    from accumlint.config import SourceFile

    files = [
        SourceFile("a\\b\\" + file.path, file.data) for file in folder(FIXTURES / "deepspeed-launch-ranks")
    ]
    found = audit(files)
    assert [finding.span.path for finding in found] == ["a\\b\\ds.json"]
    assert "a\\b\\run.sh" in {related.span.path for related in found[0].related}
