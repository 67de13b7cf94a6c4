"""Broken, half-written and nonsensical sources: the engine answers, or raises what it says it raises."""

import functools
import io
import random
import tokenize
import warnings

import libcst
import pytest
from engine_scripts import ROOT, SCRIPTS, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accumlint import knowledge

SOURCES = [path.read_text() for path in SCRIPTS] + [
    example.code for rule in knowledge.rules().values() if rule.clause not in ("C0", "C9") for example in rule.examples
]  # fmt: skip
# what a number, a name or a call may be replaced with: the values that arithmetic and containers trip over
STRANGE = (
    "0 -1 None 10**9 1e9 0.0 1<<80 2**1000 True ... '' () [] {} range(0) float('nan') float('inf') [*a] {**a} (yield) x.y "
    "next(iter(loader)) super() model optimizer loss self enumerate(loader) zip() torch None.x"
).split() + ["lambda: 0", "(lambda *a: a)"]
OPERATORS = "// % ** << >> / * - + @ | & and or is in := == < , .".split()
DOCUMENTED = (libcst.ParserSyntaxError, UnicodeDecodeError, SyntaxError, RecursionError)


@functools.cache
def _pieces(source):
    """Start, end and text of every token."""
    starts = [0]
    for line in source.splitlines(True):
        starts.append(starts[-1] + len(line))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(starts[t.start[0] - 1] + t.start[1], starts[t.end[0] - 1] + t.end[1], t.string) for t in tokens if t.string.strip()]


def mutate(draw: random.Random) -> str:
    source = draw.choice(SOURCES)
    pieces = _pieces(source)
    text = source
    for start, end, token in sorted(draw.sample(pieces, draw.choice((1, 1, 2, 3))), reverse=True):
        what = draw.choice(("delete", "swap", "repeat", "line", "strange", "strange", "operator"))
        if what == "delete":
            text = text[:start] + text[end:]
        elif what == "swap":
            text = text[:start] + draw.choice(pieces)[2] + text[end:]
        elif what == "repeat":
            text = text[:end] + " " + token + text[end:]
        elif what == "line":
            begin, stop = text.rfind("\n", 0, start) + 1, text.find("\n", start)
            text = text[:begin] + text[stop + 1 :]
        elif what == "strange":
            text = text[:start] + draw.choice(STRANGE) + text[end:]
        else:
            text = text[:start] + draw.choice(OPERATORS) + text[end:]
    return text


def _parses(source):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, "script.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def survives(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            findings = run(source.encode("utf-8", "surrogatepass"))
        except DOCUMENTED:
            return
    lines = source.count("\n") + 1
    for finding in findings:
        assert 1 <= finding.span.line <= lines and finding.message


@pytest.mark.parametrize("part", range(4))
def test_sources_with_tokens_taken_swapped_and_replaced(part):
    draw = random.Random(f"accumulation {part}")
    parsed = 0
    while parsed < 60:
        source = mutate(draw)
        parses = _parses(source)
        if parses or draw.random() < 0.05:
            parsed += parses
            survives(source)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_mutations_that_hypothesis_shrinks(draw):
    survives(mutate(draw))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_scripts_cut_off_at_any_line(path):
    lines = path.read_text().splitlines(True)
    for stop in range(len(lines) - 1, 0, -max(1, len(lines) // 12)):
        survives("".join(lines[:stop]))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.text(max_size=60), st.binary(max_size=60))
def test_anything_after_a_backward(text, data):
    survives("loss.backward()\n" + text)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            run(b"loss.backward()\n" + data)
        except DOCUMENTED:
            pass


@pytest.mark.parametrize(
    "bound",
    ["10**9", "1 << 80", "0", "-1", "None", "100000000000000000000", "1e300"],
)
def test_loops_of_any_length(bound):
    survives(f"import torch\n\n\ndef train(model, stream, optimizer):\n    for update in range({bound}):\n        model(next(stream)).mean().backward()\n        optimizer.step()\n")


def test_the_sources_of_these_tests_are_files_of_the_repository():
    assert len(SOURCES) > 150 and (ROOT / "fixtures").is_dir()
