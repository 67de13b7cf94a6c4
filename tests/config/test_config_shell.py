"""The shell lexer against ``shlex``, its expansions, and the launch lines read with it."""

from __future__ import annotations

import shlex
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accumlint.config.sources.launch import read_launches
from accumlint.config.sources.shell import Operator, Shell, Word, lex

words = st.lists(
    st.sampled_from(["a", "--b=1", "'c d'", '"e f"', "g\\ h", "x'y'z", '"q;r"', "--k", "8", "p/q.py"]),
    min_size=1,
    max_size=6,
)
line = words.map(" ".join)


@settings(max_examples=300, deadline=None)
@given(st.lists(line, min_size=1, max_size=4), st.sampled_from([";", " && ", " | ", " ; "]))
def test_words_are_split_like_shlex_splits_them(lines, separator):
    text = separator.join(lines)
    theirs = shlex.shlex(text, posix=True, punctuation_chars=True)
    theirs.whitespace_split = True
    shell = Shell(text)
    mine = [shell.expand(token)[0].text if isinstance(token, Word) else token.text for token in lex(text)]
    assert mine == list(theirs)


@settings(max_examples=200, deadline=None)
@given(st.text("ab '\"\\$(){}`\n;|&<>#=1", max_size=60))
def test_no_text_makes_the_shell_raise_and_places_are_right(text):
    shell = Shell(text)
    for token in lex(text):
        if isinstance(token, Word):
            assert text[token.begin : token.end] == token.raw
            line_number, column = shell.place(token.begin)
            assert text.split("\n")[line_number - 1][column - 1 :].startswith(token.raw.split("\n")[0])
        else:
            assert isinstance(token, Operator)
    for _ in shell.commands():
        pass


def expanded(text):
    return [[(arg.text, arg.known) for arg in command.args] for command in Shell(text).commands()]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("A=3\necho $A ${A} \"$A\" '$A'", [("3", True), ("3", True), ("3", True), ("$A", True)]),
        ("A=${A:-4}\necho $A", [("4", True)]),
        ("echo ${B:-5} ${1:-6}", [("5", True), ("6", True)]),
        ("A=2 ; B=$((A * 8 / 4))\necho $B", [("4", True)]),
        ("A=$(nvidia-smi | wc -l)\necho $A", [("$(nvidia-smi | wc -l)", False)]),
        (
            'O="--x 1 \\\n --y 2"\necho $O "$O"',
            [("--x", True), ("1", True), ("--y", True), ("2", True), ("--x 1  --y 2", True)],
        ),
        (
            'O=(--x 1 # note\n --y "2 3")\necho "${O[@]}"',
            [("--x", True), ("1", True), ("--y", True), ("2 3", True)],
        ),
        ('O="--x 1"\nO+=" --y 2"\necho $O', [("--x", True), ("1", True), ("--y", True), ("2", True)]),
        ("if t; then A=1; else A=2; fi\necho $A", [("$A", False)]),
        ("for A in 1 2; do\necho $A; done", [("$A", False)]),
        ("A=$A\necho $A", [("$A", False)]),
        ("A=$B; B=$A\necho $A", [("$A", False)]),
        ("cat <<EOF\ntorchrun $A\nEOF\necho 1 > log 2>&1", [("1", True)]),
    ],
)
def test_expansions(text, wanted):
    commands = expanded(text)
    assert commands[-1][0] == ("echo", True)
    assert commands[-1][1:] == wanted


def launch(text, path="run.sh"):
    launches, _ = read_launches(path, text)
    return launches[0]


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("torchrun --nproc_per_node 4 t.py", 4),
        ("torchrun --nproc-per-node=4 --nnodes=2 t.py", 8),
        ("torchrun --nproc_per_node gpu t.py", None),
        ("torchrun --nnodes 1:4 --nproc_per_node 4 t.py", None),
        ("torchrun t.py", 1),
        ("python -m torch.distributed.run --nproc_per_node 2 t.py", 2),
        ("python3 -u -m torch.distributed.launch --use_env --nproc_per_node=2 t.py", 2),
        ("accelerate launch --multi_gpu --num_processes 6 t.py", 6),
        ("accelerate launch t.py", None),
        ("deepspeed --num_gpus 4 --num_nodes 2 t.py", 8),
        ("deepspeed --include localhost:0,2 t.py", 2),
        ("deepspeed --include a:0,1@b:0,1 t.py", 4),
        ("deepspeed t.py", None),
        ("composer -n 8 t.py a.yaml", 8),
        ("srun --nodes 2 torchrun --nnodes 2 --nproc_per_node 8 t.py", 16),
        ("python t.py", None),
        ("N=3\nenv A=1 torchrun --nproc_per_node $N t.py", 3),
        ("tune run --nproc_per_node 4 full --config x.yaml", None),
    ],
)
def test_ranks_of_launch_lines(text, ranks):
    assert launch(text).ranks()[0] == ranks


def test_flags_of_the_script_are_kept_apart_from_the_launchers():
    found = launch(
        "X=1 accelerate launch --num_processes 2 --mixed_precision bf16 t.py --num_processes 9 --flag --lr=1e-4 c.yaml k.v=3"
    )
    assert found.options["num_processes"].text == "2"
    assert found.args["num_processes"].text == "9"
    assert found.args["flag"].text == "true"
    assert found.args["lr"].text == "1e-4"
    assert [arg.text for arg in found.positionals] == ["c.yaml"]
    assert found.args["k.v"].text == "3"
    assert found.env["X"].text == "1"
    assert found.script.text == "t.py"


@pytest.mark.parametrize(
    ("path", "text", "place"),
    [
        (
            "README.md",
            "# x\n\n```bash\n$ torchrun t.py --a 1\n```\n\n```python\ntorchrun = 1\n```\n",
            (4, 21),
        ),
        ("Makefile", "N ?= 4\nrun:\n\t@torchrun --nproc_per_node $(N) t.py --a $(N)\n", (1, 6)),
        (".github/workflows/t.yml", "jobs:\n  a:\n    steps:\n      - run: torchrun t.py --a 1\n", (4, 32)),
        (
            ".github/workflows/t.yml",
            "jobs:\n  a:\n    steps:\n      - run: |\n          cd x\n          torchrun t.py --a 1\n",
            (6, 29),
        ),
    ],
)
def test_launch_lines_in_other_files_keep_their_places(path, text, place):
    found = launch(text, path)
    mark = found.args["a"].mark
    assert (mark.line, mark.column) == place
    value = text.split("\n")[mark.line - 1][mark.column - 1 :]
    assert value.startswith(("1", "4"))


def test_commands_that_train_nothing_are_no_launch_lines():
    for text in (
        "accelerate config",
        "tune download x",
        "axolotl inference a.yml",
        "echo torch",
        "ls -la",
        "lightning",
    ):
        assert [l for l in read_launches("a.sh", text)[0] if l.script or l.positionals] == []


@pytest.mark.parametrize(
    "text",
    [
        "${" * 50_000,
        '"$(' * 50_000,
        "'" + "a\\" * 50_000,
        "((" * 50_000,
        "".join(f"export V{i}=$V{i - 1}$V{i - 1}\n" for i in range(1, 3000)) + "torchrun $V2999 t.py\n" * 500,
        "A=$A$A\n" * 5000 + "torchrun $A\n",
        "cat <<EOF\n" + "x\n" * 50_000,
        "torchrun " + "--a 1 \\\n" * 20_000 + "t.py",
    ],
    ids=range(8),
)
def test_hostile_shell_is_answered_in_bounded_time(text):
    start = time.perf_counter()
    read_launches("run.sh", text)
    assert time.perf_counter() - start < 5


def test_lists_that_double_each_other_stay_small():
    text = "A0=x\n" + "".join(f"A{i}='$A{i - 1} $A{i - 1}'\n" for i in range(1, 60)) + "torchrun t.py $A59\n"
    assert len(launch(text).positionals) < 400_000


def test_variables_that_double_each_other_stay_small():
    text = (
        "A0=xxxxxxxxxx\n"
        + "".join(f"A{i}=$A{i - 1}$A{i - 1}\n" for i in range(1, 60))
        + "torchrun t.py --a $A59\n"
    )
    found = launch(text)
    assert len(found.args["a"].text) < 10_000_000
