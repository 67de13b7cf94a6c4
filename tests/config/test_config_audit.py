"""The audit as a whole: it never raises, answers on hostile trees, and each check of a dialect can speak."""

from __future__ import annotations

import importlib
import re

import pytest
from config_helpers import FIXTURES, folder, names, run
from hypothesis import given, settings
from hypothesis import strategies as st

from accumlint import knowledge
from accumlint.config import SourceFile, audit, may_be_configuration
from accumlint.config.checks import OPERATORS, holds
from accumlint.config.dialects import dialect, dialects, parse_dialect, recognise
from accumlint.config.names import RULES
from accumlint.config.readers import read
from accumlint.findings import Finding, Severity

PATHS = [
    "a.yaml",
    "ds.json",
    "t.toml",
    "train.py",
    "run.sh",
    "README.md",
    "Makefile",
    "requirements.txt",
    "uv.lock",
    "Dockerfile",
    ".github/workflows/c.yml",
]
PIECES = [
    "gradient_accumulation_steps",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
    ": ",
    "=",
    " ",
    "\n",
    "  ",
    "8",
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    ",",
    "auto",
    "from accelerate import Accelerator\n",
    "Accelerator(",
    ")",
    "deepspeed --num_gpus ",
    "train.py",
    " --deepspeed ds.json",
    "torchrun --nproc_per_node ",
    "transformers==5.4.0\n",
    "$((",
    "${",
    "# ",
    "- ",
    "&a ",
    "*a",
    "<<: ",
    "trainer:\n  ",
    "accumulate_grad_batches: ",
    "[training]\n",
    "local_batch_size = ",
    "\x00",
    "é",
    "args.",
    "//= ",
    "TrainingArguments(",
    "```bash\n",
    "```\n",
    "name: ",
    "import deepspeed\n",
]


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(PATHS), st.lists(st.sampled_from(PIECES), max_size=25).map("".join), max_size=4
    )
)
def test_nothing_makes_the_audit_raise_or_fail_inside(files):
    sources = [SourceFile(path, text.encode()) for path, text in files.items()]
    found = audit(sources)
    assert all(isinstance(finding, Finding) for finding in found)
    assert not [finding for finding in found if "internal error" in finding.message]
    assert found == sorted(found, key=Finding.sort_key)
    assert found == audit(sources[::-1])


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())), st.data())
def test_damaged_fixtures_do_not_break_the_audit(name, data):
    files = folder(FIXTURES / name)
    victim = data.draw(st.integers(0, len(files) - 1))
    content = files[victim].data
    begin = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(begin, min(len(content), begin + 40)))
    put = data.draw(st.binary(max_size=6))
    files[victim] = SourceFile(files[victim].path, content[:begin] + put + content[end:])
    assert not [finding for finding in audit(files) if "internal error" in finding.message]


def test_a_mistake_of_ours_is_said_and_costs_only_its_part(monkeypatch):
    module = importlib.import_module("accumlint.config.audit")

    def broken(view):
        raise ZeroDivisionError("x")

    broken.__name__ = "audit_view"
    monkeypatch.setattr("accumlint.config.checks.audit_view", broken)
    found = module.audit(
        [SourceFile("ds.json", b'{"train_batch_size": 9, "train_micro_batch_size_per_gpu": 2}')]
    )
    assert names(found) == ["analysis-incomplete"]
    assert "internal error in audit_view" in found[0].message and found[0].severity is Severity.ADVICE


def test_big_and_broken_files_are_said_where_they_tell():
    big = (
        b'{"train_batch_size": 8, "zero_optimization": {"stage": 1}, "x": "'
        + b"y" * (3 * 1024 * 1024)
        + b'"}'
    )
    assert names(audit([SourceFile("ds.json", big)])) == ["analysis-incomplete"]
    words = b'{"stage": 1, "zero_optimization": 2, "x": "' + b"y" * (3 * 1024 * 1024) + b'"}'
    assert audit([SourceFile("vocab.json", words)]) == []
    broken = run(
        r__yaml="per_device_train_batch_size: 2\ngradient_accumulation_steps: 4\nnum_train_epochs: 1\nlearning_rate: [1\noptim: {\n"
    )
    assert names(broken) == ["syntax-error"] and broken[0].severity is Severity.ERROR
    assert run(r__yaml="gradient_accumulation_steps: {{ steps }}\nnum_train_epochs: 1\n") == []
    assert run(ds__json='{"train_batch_size": BATCH, "zero_optimization": {"stage": 1}}') == []
    assert names(run(ds__json='{"train_batch_size": True, "zero_optimization": {"stage": 1}}')) == [
        "syntax-error"
    ]


# -- dialects as data --------------------------------------------------------------------------------


def test_every_dialect_names_its_source_and_uses_known_words():
    for each in dialects():
        assert each.source and each.title
        assert each.closes in ("none", "product", "derived", "local", "plain")
        for check in each.checks:
            assert check["rule"] in RULES
            assert check["at"] and check["message"].strip()
            for condition in check["when"]:
                assert set(condition) <= set(OPERATORS) | {
                    "value",
                    "product",
                    "stated",
                    "not_true",
                    "anywhere",
                    "not_matching",
                    "pattern",
                    "longer_than",
                }, condition
                if "matches" in condition:
                    re.compile(condition["matches"])


def test_a_malformed_dialect_is_refused_with_its_name():
    with pytest.raises(knowledge.KnowledgeError, match="broken"):
        parse_dialect("broken", {"title": "x"})


# one configuration per check that no fixture and no rule page shows: the values that break it
SPOKEN = [
    (
        "ppo.yaml",
        (
            "actor_rollout_ref: {actor: {ppo_mini_batch_size: 100, ppo_micro_batch_size_per_gpu: 8}}\n"
            "trainer: {n_gpus_per_node: 8, nnodes: 1}\n"
        ),
        "ppo_mini_batch_size 100",
    ),
    (
        "ds.json",
        '{"train_batch_size": 8, "gradient_accumulation_steps": 1, "managed_gradient_accumulation": false, "pipeline": {}}',
        "managed_gradient_accumulation",
    ),
    (
        "ds.json",
        '{"zero_optimization": {"stage": 3}, "gradient_allreduce_op": "sum", "train_micro_batch_size_per_gpu": 1}',
        "gradient_allreduce_op",
    ),
    (
        "a.yaml",
        "compute_environment: L\ndistributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: d.json, gradient_clipping: 1.0}\n",
        "gradient_clipping",
    ),
    (
        "t.yaml",
        "output_dir: o\nlearning_rate: 1\ngradient_accumulation_steps: 4\naccelerator_config: {gradient_accumulation_kwargs: {num_steps: 2}}\n",
        "num_steps",
    ),
    (
        "l.yaml",
        "stage: sft\nfinetuning_type: full\napollo_layerwise: true\ngradient_accumulation_steps: 2\n",
        "APOLLO",
    ),
    (
        "l.yaml",
        "stage: sft\nfinetuning_type: full\noptim: adalomo\ngradient_accumulation_steps: 2\n",
        "adalomo",
    ),
    ("l.yaml", "stage: sft\nfinetuning_type: full\nuse_galore: true\ndeepspeed: x.json\n", "GaLore"),
    ("l.yaml", "stage: sft\nfinetuning_type: full\nuse_apollo: true\ndeepspeed: x.json\n", "APOLLO"),
    ("l.yaml", "stage: pt\nfinetuning_type: full\nstreaming: true\ndo_train: true\n", "streaming"),
    (
        "l.yaml",
        "stage: sft\nfinetuning_type: full\nuse_asft_loss: true\ngradient_accumulation_steps: 4\n",
        "ASFT",
    ),
    (
        "l.yaml",
        "stage: sft\nfinetuning_type: full\naverage_tokens_across_devices: false\n",
        "own token count",
    ),
    (
        "x.yaml",
        "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 4\nbatch_size: 8\n",
        "refused",
    ),
    (
        "x.yaml",
        "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 3\nrl: grpo\ntrl: {num_generations: 4}\n",
        "num_generations",
    ),
    (
        "x.yaml",
        "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 3\noptimizer: lomo\n",
        "lomo",
    ),
    (
        "x.yaml",
        "base_model: m\nmicro_batch_size: 2\ngradient_accumulation_steps: 3\ndeepspeed: d.json\nfsdp: [a]\nfsdp_config: {b: 1}\n",
        "exclude",
    ),
    (
        "p.yaml",
        "batch_size: 2\noptimizer_in_bwd: false\ngradient_accumulation_steps: 3\nppo_batch_size: 32\n",
        "ppo_batch_size",
    ),
    (
        "t.toml",
        "[training]\nlocal_batch_size = 1\nglobal_batch_size = 8\nnum_tokens_per_train_step = 8\n",
        "no torchtitan",
    ),
    (
        "g.yaml",
        "train: {global_batch_size: 8, micro_batch_size: 2, lr_warmup_steps: 5, lr_warmup_fraction: 0.1}\n",
        "exclude",
    ),
    (
        "c.yaml",
        "trainer:\n  accumulate_grad_batches: 1\n  strategy: deepspeed\n  callbacks: [{class_path: lightning.pytorch.callbacks.GradientAccumulationScheduler}]\n",
        "strategy",
    ),
    (
        "c.yaml",
        "trainer: {accumulate_grad_batches: 4}\nlr_scheduler: {interval: step, frequency: 3}\n",
        "frequency",
    ),
    (
        "c.yaml",
        (
            "trainer:\n  accumulate_grad_batches: 2\n"
            "  callbacks: [{class_path: lightning.pytorch.callbacks.GradientAccumulationScheduler}]\n"
        ),
        "both own",
    ),
    (
        "c.yaml",
        (
            "trainer:\n  accumulate_grad_batches: 1\n  strategy:\n    class_path: DeepSpeedStrategy\n"
            "    init_args: {config: {gradient_accumulation_steps: 2}}\n"
        ),
        "refuses a second source",
    ),
    ("m.yaml", "calculate_per_token_loss: true\nddp_average_in_collective: true\n", "average_in_collective"),
    ("m.yaml", "MODEL_ARGS:\n  --micro-batch-size: 1\n  --global-batch-size: 8\n  --sft: true\n", "SFT"),
    (
        "f.yaml",
        "global_train_batch_size: 8\ndevice_train_microbatch_size: 2\naccumulate_train_batch_on_tokens: false\n",
        "samples",
    ),
    ("o.py", "optim_wrapper = dict(accumulative_counts=0)\n", "at least 1"),
]


@pytest.mark.parametrize(("path", "text", "says"), SPOKEN, ids=[f"{i}-{s[2]}" for i, s in enumerate(SPOKEN)])
def test_checks_that_only_this_table_shows(path, text, says):
    found = audit([SourceFile(path, text.encode())])
    assert len(found) == 1, found
    assert says in found[0].message


def test_every_check_of_every_dialect_can_be_met():
    """Dead checks would look like silence: each one's conditions hold in some fixture, page or line above."""
    sources = [file for path in FIXTURES.iterdir() if path.is_dir() for file in folder(path)]
    sources += [SourceFile(path, text.encode()) for path, text, _ in SPOKEN]
    for page in sorted((knowledge.root() / "C9-configuration").glob("*.md")):
        examples = knowledge.parse_page(page.read_text(encoding="utf-8"), page).examples
        sources += [SourceFile(example.file or "t.py", example.code.encode()) for example in examples]
    met = set()
    for file in sources:
        for view in recognise(read(file.path, file.data)):
            for number, check in enumerate(view.dialect.checks):
                if all(holds(view, condition) for condition in check["when"]):
                    met.add((view.dialect.name, number))
    wanted = {(each.name, number) for each in dialects() for number in range(len(each.checks))}
    assert wanted - met == set()


@pytest.mark.parametrize("name", [d.name for d in dialects()])
def test_each_dialect_needs_more_than_a_file_name(name):
    each = dialect(name)
    suffix = {"yaml": "yaml", "json": "json", "toml": "toml", "python": "py"}.get(each.formats[0], "yaml")
    assert not may_be_configuration(f"{name}.{suffix}", b"value = 1\n")
    assert audit([SourceFile(f"{name}.{suffix}", b"")]) == []
