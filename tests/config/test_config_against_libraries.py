"""The auditor against the real frameworks: it accepts what they accept and reports what they refuse.

Needs DeepSpeed, Accelerate, Transformers and Lightning beside accumlint; each test is skipped where its library
is missing. To run them all, in an environment of its own::

    pip install torch==2.13.0
    pip install accelerate transformers lightning deepspeed pytest hypothesis -e .
    pytest tests/config/test_config_against_libraries.py

Last run with deepspeed 0.19.8, accelerate 1.15.0, transformers 5.24.0, lightning 2.6.6, torch 2.13.0 on a CPU.
"""

from __future__ import annotations

import itertools
import json

import pytest
from config_helpers import names, run

pytestmark = pytest.mark.slow


def library(name: str):
    return pytest.importorskip(
        name, reason=f"{name} is not installed; the module's docstring says how to run this"
    )


# -- DeepSpeed ---------------------------------------------------------------------------------------


class Ranks:
    """As much of a model-parallel unit as DeepSpeedConfig asks for."""

    def __init__(self, count: int) -> None:
        self.count = count

    def get_data_parallel_world_size(self) -> int:
        return self.count


def deepspeed_accepts(config: dict, ranks: int, monkeypatch) -> bool:
    from deepspeed.runtime import config as real
    from deepspeed.runtime.config import DeepSpeedConfig

    # without a process group it would take the world for one rank, whatever the unit says
    monkeypatch.setattr(real.dist, "get_rank", lambda: 0)
    try:
        DeepSpeedConfig(dict(config), mpu=Ranks(ranks))
    except AssertionError:
        return False
    return True


SIZES = list(itertools.product((16, 30, 32, 96, 100), (None, 2, 4, 5), (None, 1, 4, 5)))


@pytest.mark.parametrize(("total", "micro", "k"), SIZES)
def test_deepspeed_batches(total, micro, k, monkeypatch):
    library("deepspeed")
    config = {
        "train_batch_size": total,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": k,
    }
    config = {key: value for key, value in config.items() if value is not None} | {
        "zero_optimization": {"stage": 0}
    }
    accepted = {ranks: deepspeed_accepts(config, ranks, monkeypatch) for ranks in range(1, 101)}
    alone = run(ds__json=json.dumps(config))
    assert bool(alone) == (not any(accepted.values())), "refuted exactly when no number of ranks is accepted"
    for ranks in (1, 2, 3, 4, 8):
        line = f"deepspeed --num_gpus {ranks} t.py --deepspeed_config ds.json\n"
        found = run(ds__json=json.dumps(config), run__sh=line)
        assert (names(found) == ["config-batch-mismatch"]) == (not accepted[ranks]), ranks


COMMENTED = '{"train_micro_batch_size_per_gpu": 8, /* x */ "gradient_accumulation_steps": "auto", "zero_optimization": {"stage": 2},}'


def test_comments_are_read_by_deepspeed_and_refused_by_accelerate(tmp_path):
    library("deepspeed")
    library("accelerate")
    from accelerate.utils.deepspeed import HfDeepSpeedConfig
    from deepspeed.runtime.config import DeepSpeedConfig

    plain = COMMENTED.replace('"auto"', "2")
    (tmp_path / "ds.json").write_text(plain)
    DeepSpeedConfig(str(tmp_path / "ds.json"))
    assert run(ds__json=plain) == []
    with pytest.raises(ValueError):
        HfDeepSpeedConfig(str(tmp_path / "ds.json"))
    script = "from transformers import TrainingArguments\nargs = TrainingArguments('o', gradient_accumulation_steps=2, deepspeed='ds.json')\n"
    assert names(run(ds__json=COMMENTED, t__py=script)) == ["syntax-error"]


def test_deepspeed_refuses_duplicate_keys(tmp_path):
    library("deepspeed")
    from deepspeed.runtime.config import DeepSpeedConfig

    text = '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "gradient_accumulation_steps": 4}'
    (tmp_path / "ds.json").write_text(text)
    with pytest.raises(ValueError, match="[Dd]uplicate"):
        DeepSpeedConfig(str(tmp_path / "ds.json"))
    assert names(run(ds__json=text)) == ["config-accum-conflict"]


# -- Accelerate --------------------------------------------------------------------------------------

LAUNCHER = """
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: {kind}
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
use_cpu: false
{more}
"""


@pytest.mark.parametrize(("more", "accepted"), [("", True), ("gradient_accumulation_steps: 8", False)])
def test_accelerate_knows_no_count_at_the_top(more, accepted, tmp_path):
    library("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file

    text = LAUNCHER.format(kind="MULTI_GPU", more=more)
    (tmp_path / "a.yaml").write_text(text)
    if accepted:
        load_config_from_file(str(tmp_path / "a.yaml"))
        assert run(a__yaml=text) == []
    else:
        with pytest.raises(ValueError, match="unknown keys"):
            load_config_from_file(str(tmp_path / "a.yaml"))
        assert names(run(a__yaml=text)) == ["accum-not-wired"]


@pytest.mark.parametrize("field", ["gradient_accumulation_steps", "gradient_clipping", ""])
def test_accelerate_refuses_values_beside_a_deepspeed_file(field, tmp_path, monkeypatch):
    library("accelerate")
    from accelerate import DeepSpeedPlugin

    file = tmp_path / "ds.json"
    file.write_text(
        '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}'
    )
    fields = ["deepspeed_config_file", *([field] if field else [])]
    monkeypatch.setenv("ACCELERATE_CONFIG_DS_FIELDS", ",".join(fields))
    value = "4" if field == "gradient_accumulation_steps" else "1.0"
    more = "deepspeed_config:\n  deepspeed_config_file: other.json\n" + (
        f"  {field}: {value}\n" if field else ""
    )
    found = names(run(a__yaml=LAUNCHER.format(kind="DEEPSPEED", more=more)))
    if field:
        with pytest.raises(ValueError, match="ignored"):
            DeepSpeedPlugin(hf_ds_config=str(file))
        assert found == ["rejected-at-start"]
    else:
        DeepSpeedPlugin(hf_ds_config=str(file))
        assert found == []


@pytest.mark.parametrize(("flags", "exported"), [([], False), (["--use_deepspeed"], True)])
def test_accelerate_exports_the_count_for_deepspeed_only(flags, exported):
    library("accelerate")
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    words = [
        "--num_processes",
        "2",
        "--num_machines",
        "1",
        "--main_process_port",
        "29501",
        "--gradient_accumulation_steps",
        "8",
        *flags,
        "t.py",
    ]
    args = launch_command_parser().parse_args(words)
    args.mixed_precision, args.dynamo_backend = "no", "no"
    args.deepspeed_fields_from_accelerate_config = ""
    env = prepare_deepspeed_cmd_env(args)[1] if exported else prepare_multi_gpu_env(args)
    assert ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS" in env) == exported
    found = run(run__sh="accelerate launch " + " ".join(words) + "\n")
    assert (names(found) == ["accum-not-wired"]) == (not exported)


@pytest.mark.parametrize(("env", "code"), [(2, 8), (8, 8)])
def test_the_environment_beats_the_code(env, code, monkeypatch):
    library("accelerate")
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", str(env))
    assert Accelerator(cpu=True, gradient_accumulation_steps=code).gradient_accumulation_steps == env
    script = (
        "import os\nfrom accelerate import Accelerator\n"
        f'os.environ["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = "{env}"\naccelerator = Accelerator(gradient_accumulation_steps={code})\n'
    )
    assert (names(run(t__py=script)) == ["config-accum-conflict"]) == (env != code)


def test_accelerate_refuses_two_counts():
    library("accelerate")
    from accelerate import Accelerator
    from accelerate.utils import GradientAccumulationPlugin

    with pytest.raises(ValueError, match="gradient_accumulation"):
        Accelerator(
            cpu=True,
            gradient_accumulation_steps=8,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4),
        )


# -- TrainingArguments -------------------------------------------------------------------------------

PAIRS = list(itertools.product((None, "auto", 4, 8), ("auto", 2, 4), (8, 1)))


@pytest.mark.parametrize(("theirs", "micro", "own"), PAIRS)
def test_the_trainer_refuses_what_differs(theirs, micro, own):
    library("transformers")
    library("accelerate")
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = {"train_micro_batch_size_per_gpu": micro, "zero_optimization": {"stage": 2}}
    if theirs is not None:
        config["gradient_accumulation_steps"] = theirs
    arguments = TrainingArguments(
        "o", use_cpu=True, report_to="none", per_device_train_batch_size=2, gradient_accumulation_steps=own
    )
    real = HfTrainerDeepSpeedConfig(json.loads(json.dumps(config)))
    real.trainer_config_process(arguments)
    refused = sorted({line.split()[2].partition("=")[0] for line in real.mismatches})
    script = (
        "from transformers import TrainingArguments\n"
        f"args = TrainingArguments('o', per_device_train_batch_size=2, gradient_accumulation_steps={own}, deepspeed='ds.json')\n"
    )
    found = run(ds__json=json.dumps(config), t__py=script)
    rule = {
        "gradient_accumulation_steps": "config-accum-conflict",
        "train_micro_batch_size_per_gpu": "config-batch-mismatch",
    }
    assert sorted(names(found)) == sorted(rule[key] for key in refused)


def test_the_trainer_clips_once():
    library("transformers")
    library("accelerate")
    from transformers import TrainingArguments
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    arguments = TrainingArguments("o", use_cpu=True, report_to="none", max_grad_norm=1.0)
    real = HfTrainerDeepSpeedConfig({"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 0.5})
    real.trainer_config_process(arguments)
    assert [line for line in real.mismatches if "gradient_clipping" in line]


# -- Lightning ---------------------------------------------------------------------------------------


def lightning_trainer(**keywords):
    import lightning as L

    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return L.Trainer(accelerator="cpu", devices=1, max_epochs=1, limit_val_batches=0, **quiet, **keywords)


@pytest.mark.parametrize(("k", "refused"), [(1, False), (2, True)])
def test_lightning_refuses_two_owners_of_the_window(k, refused):
    library("lightning")
    from lightning.pytorch.callbacks import GradientAccumulationScheduler
    from lightning.pytorch.demos.boring_classes import BoringModel

    trainer = lightning_trainer(
        accumulate_grad_batches=k, callbacks=[GradientAccumulationScheduler({0: 4})], limit_train_batches=2
    )
    if refused:
        with pytest.raises(ValueError, match="accumulate_grad_batches"):
            trainer.fit(BoringModel())
    else:
        trainer.fit(BoringModel())
    text = f"""
        trainer:
          accumulate_grad_batches: {k}
          callbacks:
            - class_path: lightning.pytorch.callbacks.GradientAccumulationScheduler
              init_args: {{scheduling: {{0: 4}}}}
        """
    assert names(run(c__yaml=text)) == (["rejected-at-start"] if refused else [])


@pytest.mark.parametrize("limit", [4, 6, 8])
def test_lightning_divides_the_short_window_by_k(limit):
    library("lightning")
    import torch
    from lightning.pytorch import LightningModule

    seen = []

    class Slope(LightningModule):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))

        def training_step(self, batch, index):
            return (self.weight * 1.0).sum()

        def on_before_optimizer_step(self, optimizer):
            seen.append(float(self.weight.grad))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.0)

    loader = torch.utils.data.DataLoader(torch.zeros(limit, 1), batch_size=1)
    lightning_trainer(accumulate_grad_batches=4, limit_train_batches=limit).fit(Slope(), loader)
    short = any(gradient != pytest.approx(1.0) for gradient in seen)
    text = f"trainer:\n  accumulate_grad_batches: 4\n  limit_train_batches: {limit}\n"
    assert (names(run(c__yaml=text)) == ["tail-divided-as-full"]) == short


def test_lightning_refuses_a_count_in_the_deepspeed_configuration():
    library("lightning")
    library("deepspeed")
    from lightning.pytorch.demos.boring_classes import BoringModel
    from lightning.pytorch.strategies import DeepSpeedStrategy

    strategy = DeepSpeedStrategy(
        config={"gradient_accumulation_steps": 4, "train_micro_batch_size_per_gpu": 1}
    )
    strategy._lightning_module = BoringModel()
    with pytest.raises(Exception, match="gradient_accumulation_steps"):
        strategy._format_batch_size_and_grad_accum_config()
    text = """
        trainer:
          accumulate_grad_batches: 1
          strategy:
            class_path: lightning.pytorch.strategies.DeepSpeedStrategy
            init_args:
              config:
                gradient_accumulation_steps: 4
                train_micro_batch_size_per_gpu: 1
        """
    assert names(run(c__yaml=text)) == ["config-accum-conflict"]
