"""One file through the witness: what is said, where, how surely, and the same each time."""

import random

import libcst
import pytest
from engine_scripts import MEANS, ROOT, SCRIPTS, deeply, full, run, told

from accumlint import knowledge
from accumlint.findings import Confidence, Severity
from accumlint.static.engine import EngineSettings, Project, analyse
from accumlint.static.structure import worth_simulating


def test_a_finding_has_its_place_numbers_and_picture():
    (found,) = run(MEANS)
    assert (found.rule, found.clause, found.severity, found.confidence) == ("ACC101", "C1", Severity.ERROR, Confidence.CERTAIN)
    assert (found.span.line, found.span.column) == (12, 14)  # the division that treats them alike
    assert found.evidence["weights"] == ["0.1111", "0.05556", "0.3333"]  # 3, 6 and 1 valid targets
    windows = found.evidence["timeline"]["windows"]
    assert [len(w["microbatches"]) for w in windows[:3]] == [3, 3, 2]
    assert [row["valid_targets"] for row in windows[0]["microbatches"]] == [3, 6, 1]


def test_without_targets_that_vary_only_the_tail_is_left():
    source = MEANS.replace(", ignore_index=pad_id", "").replace("labels[:, 1:].flatten()", "labels")
    assert {f.name for f in run(source)} <= {"tail-divided-as-full"}
    dropped = source.replace(" or step + 1 == len(loader)", "").replace("enumerate(loader)", "enumerate(islice(loader, len(loader) // accum_steps * accum_steps))")
    assert [f for f in run(dropped) if f.severity is Severity.ERROR] == []


def test_what_only_a_remainder_breaks_is_conditional():
    source = MEANS.replace(" or step + 1 == len(loader)", "").replace(", ignore_index=pad_id", "").replace("labels[:, 1:].flatten()", "labels")
    (found,) = run(source)
    assert (found.name, found.severity, found.confidence) == ("tail-leaks-into-next-epoch", Severity.WARNING, Confidence.CONDITIONAL)


def test_what_a_flag_decides_is_possible_and_names_the_flag():
    source = MEANS.replace("            (loss / accum_steps).backward()", "            if args.average:\n                loss = loss / accum_steps\n            loss.backward()")
    source = source.replace(", ignore_index=pad_id", "").replace("labels[:, 1:].flatten()", "labels").replace(" or step + 1 == len(loader)", "")
    found = [f for f in run(source) if f.name == "loss-not-normalized"]
    assert [f.confidence for f in found] == [Confidence.POSSIBLE]
    assert found[0].evidence["flags"] == ["args.average is false"] and "args.average is false" in found[0].message


# Line ends, marks and encodings


VARIANTS = {
    "crlf": lambda text: text.replace("\n", "\r\n").encode(),
    "cr": lambda text: text.replace("\n", "\r").encode(),
    "bom": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "no last newline": lambda text: text.rstrip("\n").encode(),
    "latin-1": lambda text: ("# -*- coding: latin-1 -*-" + text.replace("loss", "größe")).encode("latin-1"),
    "form feed": lambda text: text.replace("\n\n\ndef", "\n\f\n\ndef").encode(),
    "tabs": lambda text: text.replace("    ", "\t").encode(),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_layout_of_a_file_changes_no_finding(variant):
    assert told(run(VARIANTS[variant](MEANS))) == told(run(MEANS)) == [("mean-of-means", 12)]


def test_columns_count_characters_not_bytes():
    wide = MEANS.replace("(loss / accum_steps).backward()", 'größe = "日本語🙂"; (loss / accum_steps).backward()')
    (found,) = run(wide)
    assert (found.span.line, found.span.column) == (12, 14 + len('größe = "日本語🙂"; '))


def test_a_division_over_several_lines_is_reported_where_it_stands():
    source = MEANS.replace("(loss / accum_steps).backward()", "(\n                loss\n                / accum_steps\n            ).backward()")
    (found,) = run(source)
    assert (found.span.line, found.span.end_line) == (13, 14)


def test_decorators_do_not_move_findings():
    source = MEANS.replace("def train(", "@record(\n    name='x',\n)\n@cached\ndef train(")
    assert told(run(source)) == [("mean-of-means", 16)]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"loss.backward(\n", libcst.ParserSyntaxError),
        (b"def f(:\n    loss.backward()\n", libcst.ParserSyntaxError),
        ("loss.backward()  # ü\n".encode("latin-1"), (UnicodeDecodeError, SyntaxError)),
    ],
)
def test_what_cannot_be_read_raises_what_is_documented(data, error):
    with pytest.raises(error):
        run(data)


def test_nesting_that_python_refuses_is_refused():
    with pytest.raises((RecursionError, SyntaxError, libcst.ParserSyntaxError)):
        deeply(MEANS + "f(\n" * 250 + ")\n" * 250)


def test_a_sum_of_two_thousand_terms_is_read():
    terms = " + ".join(f"w{i}" for i in range(2000))
    source = MEANS.replace("            (loss", f"            total = {terms}\n            (loss")
    assert told(deeply(source)) == [("mean-of-means", 13)]


# Silence


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b"\n",
        b"# backward\n",
        b"import torch\nloss.backward()\n",
        b"def backward(ctx, grad):\n    return grad\n",
        b"class F(torch.autograd.Function):\n    @staticmethod\n    def backward(ctx, g):\n        return g * 2\n",
        b"turtle.backward(10)\n",
        b"engine.train_batch(data_iter=it)\n",
    ],
)
def test_what_accumulates_nothing_is_silent(source):
    assert run(source) == []


def test_plain_training_is_silent():
    source = MEANS.replace("(loss / accum_steps)", "loss").replace("            if (step + 1) % accum_steps == 0 or step + 1 == len(loader):\n", "            if True:\n")
    assert run(source) == []


@pytest.mark.parametrize(
    "body",
    [
        "        model(x).sum().backward()\n",  # timing
        "        loss = model(x).sum()\n        loss.backward()\n        norms.append(x.grad.norm())\n",  # probing
    ],
)
def test_repeating_a_backward_is_no_window(body):
    assert run("import torch\n\n\ndef measure(model, x, norms):\n    for _ in range(10):\n" + body) == []


PLAIN = """
import torch
import torch.nn.functional as F


def train(model, loader, optimizer, accum_steps):
    for epoch in range(2):
        {start}
        {head}
            loss = F.mse_loss(model(x), y)
            {body}
                optimizer.step()
                optimizer.zero_grad()
"""


def plain(body, head="for i, (x, y) in enumerate(loader):", start="model.train()"):
    return told(run(PLAIN.format(start=start, head=head, body="\n            ".join(body.splitlines()))))


LEAK = [("tail-leaks-into-next-epoch", 12)]


def test_boundaries_and_divisions_are_followed_however_they_are_written():
    assert plain("(loss / accum_steps).backward()\nif (i + 1) % accum_steps == 0:") == LEAK
    assert plain("(loss / accum_steps).backward()\nif not (i + 1) % accum_steps:") == LEAK
    assert plain("torch.autograd.backward(loss / accum_steps)\nif i % accum_steps == accum_steps - 1:") == LEAK
    assert plain("loss.div(accum_steps).backward()\nif (i + 1) // accum_steps * accum_steps == i + 1:") in (LEAK, [])


def test_a_boundary_by_divmod():
    assert "optimizer-step-per-microbatch" not in dict(plain("(loss / accum_steps).backward()\n_, rest = divmod(i + 1, accum_steps)\nif rest == 0:"))


@pytest.mark.parametrize("argument", ["torch.tensor(1 / accum_steps)", "gradient=torch.full_like(loss, 1 / accum_steps)"])
def test_a_division_in_the_gradient_argument(argument):
    assert "loss-not-normalized" not in dict(plain(f"loss.backward({argument})\nif (i + 1) % accum_steps == 0:"))


def test_a_tail_that_leaks_out_of_a_while_loop():
    body = "(loss / accum_steps).backward()\ni += 1\nif i % accum_steps == 0:"
    assert "tail-leaks-into-next-epoch" in dict(plain("x, y = next(batches)\n" + body, "while i < len(loader):", "i, batches = 0, iter(loader)"))


# ACC003


def test_a_window_whose_step_is_not_seen_is_reported_as_not_understood():
    source = MEANS.replace("optimizer.step()", "pass").replace("optimizer.zero_grad()", "updater.finish(step)")
    (found,) = run(source)
    assert (found.name, found.severity, found.confidence) == ("analysis-incomplete", Severity.ADVICE, Confidence.CERTAIN)
    assert "accum_steps (simulated as 3)" in found.message and "no optimizer step was reached" in found.message
    assert found.span.line == 6  # the function that holds the loop


def test_a_loop_without_window_is_not_said_to_be_incomplete():
    source = MEANS.replace("(loss / accum_steps)", "loss").replace("            if (step + 1) % accum_steps == 0 or step + 1 == len(loader):\n", "")
    source = source.replace("                optimizer.step()\n", "            updater.finish(step)\n").replace("                optimizer.zero_grad()\n", "").replace(", accum_steps", "")
    assert run(source) == []


@pytest.mark.parametrize("example", knowledge.page("ACC003").examples, ids=lambda e: f"{e.kind}-{e.page_line}")
def test_the_examples_of_the_page_are_told_apart(example):
    assert [f.rule for f in run(example.code)] == (["ACC003"] if example.kind == "bad" else [])


# Vocabulary


HIDDEN = MEANS.replace("torch.optim.AdamW(model.parameters())", "Prosperity(model.parameters())").replace("optimizer", "minimiser")
HIDDEN = HIDDEN.replace("minimiser.zero_grad()", "model.zero_grad()")  # what is stepped and cleared would give itself away


def test_a_team_teaches_its_optimizer():
    assert [f.rule for f in run(HIDDEN)] == ["ACC003"] or run(HIDDEN) == []
    assert told(run(HIDDEN, kinds={"optimizer": {"constructors": ["Prosperity"]}})) == [("mean-of-means", 12)]


def test_a_team_teaches_its_name_for_the_window():
    source = MEANS.replace("accum_steps", "pieces").replace(", ignore_index=pad_id", "").replace("labels[:, 1:].flatten()", "labels")
    source = source.replace("(loss / pieces).backward()", "loss.backward()").replace(" or step + 1 == len(loader)", "")
    taught = run(source, window={"patterns": ["^pieces$"]})
    assert "loss-not-normalized" in {f.name for f in taught}


def test_what_is_taught_is_added_and_takes_nothing_away():
    assert full(run(MEANS, kinds={"optimizer": {"constructors": ["Prosperity"]}})) == full(run(MEANS))


def test_what_one_team_teaches_is_not_remembered_for_the_next():
    run(HIDDEN, kinds={"optimizer": {"constructors": ["Prosperity"]}})
    assert "mean-of-means" not in {f.name for f in run(HIDDEN)}


# Determinism


def test_the_same_findings_in_any_order_of_files():
    reports = {}
    for order in (SCRIPTS, list(reversed(SCRIPTS)), random.Random(3).sample(SCRIPTS, len(SCRIPTS))):
        project = Project(ROOT)  # what one file loads must not show in the next
        for path in order:
            text = full(list(analyse(path.read_bytes(), str(path), project, EngineSettings()).findings))
            assert reports.setdefault(path, text) == text, path.name
    assert any(reports.values())


def test_the_order_of_functions_in_a_file_changes_lines_only():
    other = MEANS.split("\n\n\n", 1)[1]
    doubled = MEANS + "\n\n" + other.replace("def train(", "def again(")
    assert [f.name for f in run(doubled)] == ["mean-of-means"] * 2


# The structure sieve


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_scripts_pass_the_structure_sieve(path):
    assert worth_simulating(path.read_bytes())


def _examples():
    for rule in knowledge.rules().values():
        if rule.clause not in ("C0", "C9"):
            for example in rule.examples:
                if example.kind == "bad":
                    yield pytest.param(example.code, id=f"{rule.code}-{example.page_line}")


@pytest.mark.parametrize("source", list(_examples()))
def test_every_bad_example_passes_the_structure_sieve(source):
    assert worth_simulating(source.encode())


@pytest.mark.parametrize(
    "line",
    [
        "loss.backward()", "accelerator.backward(loss)", "self.manual_backward(loss)", "fabric.backward(loss)", "engine.backward(loss)",
        "engine.train_batch()", "loss_scaler(loss, optimizer)", "scaler.scale(loss).backward()", "run = loss.backward", "model.no_sync()",
        "model.require_backward_grad_sync = False", "Trainer(accumulate_grad_batches=4)", "args = TrainingArguments('x')",
    ],
)  # fmt: skip
@pytest.mark.parametrize("frame", ["{}", "def f():\n    {}", "class A:\n    async def f(self):\n        if x:\n            {}", "lambda_ = lambda: [\n    0\n]\nif y:\n    {}"])
def test_a_backward_is_seen_wherever_it_stands(line, frame):
    assert worth_simulating(frame.format(line).encode())


@pytest.mark.parametrize("hook", ["training_step", "compute_loss"])
@pytest.mark.parametrize("keyword", ["def", "async def"])
def test_hooks_that_a_framework_calls_are_kept(hook, keyword):
    kept = worth_simulating(f"class A(B):\n    {keyword} {hook}(self, batch):\n        return self.model(batch)\n".encode())
    assert kept or keyword == "async def"  # no framework awaits them


def test_what_python_cannot_parse_is_left_to_libcst():
    assert worth_simulating(b"loss.backward()\ndef f(:\n") and worth_simulating(b"loss.backward()\xff")


@pytest.mark.parametrize("source", [b"x = 1", b"def f(loss):\n    return loss / 3\n", b"'loss.backward()'", b"# loss.backward()\n"])
def test_what_only_talks_about_it_goes(source):
    assert not worth_simulating(source)
    assert analyse(source, "x.py", Project("."), EngineSettings()).skipped == "no-training-loop"
