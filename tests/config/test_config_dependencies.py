"""Pins are found in every kind of dependency file, with their places; advisories respect their boundaries."""

from __future__ import annotations

import pytest
from config_helpers import names, run
from packaging.version import Version

from accumlint.config.advisories import SITUATIONS, installed, packages
from accumlint.config.sources.by_name import is_dependency_file
from accumlint.config.sources.dependencies import read_pins

WANTED = frozenset({"transformers", "deepspeed"})

FILES = [
    ("requirements.txt", "torch\ntransformers==5.4.0  # note\n", "5.4.0", 2),
    ("requirements/train.txt", "transformers[torch]==5.4.0 ; python_version > '3'\n", "5.4.0", 1),
    ("requirements-dev.in", "-r x.txt\n--hash=1\ntransformers == 5.4.0 --hash=sha256:00\n", "5.4.0", 3),
    ("pyproject.toml", '[project]\ndependencies = [\n  "torch",\n  "transformers==5.4.0",\n]\n', "5.4.0", 4),
    ("pyproject.toml", '[project.optional-dependencies]\ntrain = ["transformers==5.4.0"]\n', "5.4.0", 2),
    ("pyproject.toml", '[dependency-groups]\ntrain = ["transformers==5.4.0"]\n', "5.4.0", 2),
    ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "5.4.0"\n', "5.4.0", 2),
    (
        "pyproject.toml",
        '[tool.poetry.dependencies]\ntransformers = {version = "5.4.0", extras = ["x"]}\n',
        "5.4.0",
        2,
    ),
    ("setup.cfg", "[options]\ninstall_requires =\n    torch\n    transformers==5.4.0\n", "5.4.0", 4),
    ("uv.lock", '[[package]]\nname = "transformers"\nversion = "5.4.0"\n', "5.4.0", 3),
    ("poetry.lock", '[[package]]\nname = "Transformers"\nversion = "5.4.0"\r\n', "5.4.0", 3),
    ("environment.yml", "dependencies:\n  - python=3.11\n  - conda-forge::transformers=5.4.0\n", "5.4.0", 3),
    ("environment.yml", "dependencies:\n  - pip:\n    - transformers==5.4.0\n", "5.4.0", 3),
    (
        "Dockerfile",
        "FROM x\nRUN pip install torch && \\\n    pip3 install 'transformers==5.4.0'\n",
        "5.4.0",
        3,
    ),
    (
        "docker/train.Dockerfile",
        "FROM x\nARG V=5.4.0\nRUN python -m pip install transformers==$V\n",
        "5.4.0",
        3,
    ),
    ("requirements.txt", "transformers>=5.2,<5.5\n", None, 1),
]


@pytest.mark.parametrize(
    ("path", "text", "version", "line"), FILES, ids=[f"{f[0]}-{i}" for i, f in enumerate(FILES)]
)
def test_pins(path, text, version, line):
    assert is_dependency_file(path)
    (pin,) = read_pins(path, text.encode(), WANTED)
    assert pin.package == "transformers"
    assert (str(pin.version) if pin.version else None) == version
    assert pin.mark.line == line


@pytest.mark.parametrize("path", ["readme.txt", "x/requirements.md", "pyproject.json", "env.py", "lock.txt"])
def test_other_files_are_no_dependency_files(path):
    assert not is_dependency_file(path)


@pytest.mark.parametrize(
    "text", ["transformers @ git+https://x/y\n", "transformers===\n", "transformers==\n", "=5\n", "\x00\xff"]
)
def test_odd_requirements_give_nothing(text):
    assert read_pins("requirements.txt", text.encode(), WANTED) == []


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (">=5.2,<5.5", "5.4.0"),
        ("~=5.4.0", "5.4.0"),
        ("==5.5.*", "5.5.4"),
        (">=5.2", None),
        ("", None),
        ("<4", None),
    ],
)
def test_a_bounded_range_is_its_newest_known_release(text, version):
    pins = read_pins("requirements.txt", f"transformers{text}\n".encode(), WANTED)
    got = installed(pins[0], packages()["transformers"])
    assert (str(got[0]) if got else None) == version


RECIPE = "output_dir: o\nper_device_train_batch_size: 1\ngradient_accumulation_steps: {k}\nlabel_smoothing_factor: {smooth}\n"
TABLE = [
    # transformers, K, smoothing -> advisories
    ("5.1.0", 4, 0.0, set()),
    ("5.2.0", 4, 0.0, {"transformers-division-twice"}),
    ("5.5.3", 4, 0.0, {"transformers-division-twice"}),
    ("5.5.4", 4, 0.0, set()),
    ("5.5.3", 1, 0.0, set()),
    ("4.45.2", 4, 0.0, set()),  # no script shows token losses
    ("4.46.1", 4, 0.0, set()),
    ("4.46.1", 4, 0.1, {"transformers-smoothing-not-divided"}),
    ("5.1.0", 4, 0.1, {"transformers-smoothing-not-divided"}),
    ("5.14.1", 4, 0.1, {"transformers-smoothing-not-divided-again"}),
    ("5.15.0", 4, 0.1, set()),
    # by accident right: divided twice against not at all
    ("5.4.0", 4, 0.1, {"transformers-division-twice"}),
]


@pytest.mark.parametrize(("version", "k", "smooth", "wanted"), TABLE)
def test_boundaries_of_the_trainer_advisories(version, k, smooth, wanted):
    found = run(
        requirements__txt=f"transformers=={version}\n", recipe__yaml=RECIPE.format(k=k, smooth=smooth)
    )
    assert {finding.evidence["advisory"] for finding in found} == wanted


def test_unsloth_mutes_the_trainers_history():
    script = "import unsloth\nfrom transformers import TrainingArguments\nTrainingArguments('o', gradient_accumulation_steps=4)\n"
    assert names(run(requirements__txt="transformers==5.4.0\n", train__py=script)) == []
    assert names(
        run(requirements__txt="transformers==5.4.0\n", train__py=script.replace("import unsloth\n", ""))
    ) == ["known-bad-version"]


def test_a_recipe_of_another_loop_is_no_trainer():
    recipe = RECIPE.format(k=4, smooth=0)
    own_loop = "import torch\nfrom accelerate import Accelerator\naccelerator = Accelerator()\naccum = 1\n"
    assert (
        names(run(requirements__txt="transformers==5.4.0\n", recipe__yaml=recipe, train__py=own_loop)) == []
    )
    trainer = (
        "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(TrainingArguments)\n"
    )
    assert names(run(requirements__txt="transformers==5.4.0\n", recipe__yaml=recipe, train__py=trainer)) == [
        "known-bad-version"
    ]


def test_a_requirements_file_speaks_for_its_own_folder():
    recipe = RECIPE.format(k=4, smooth=0)
    assert names(run(a___requirements__txt="transformers==5.4.0\n", b___recipe__yaml=recipe)) == []
    assert names(run(a___requirements__txt="transformers==5.4.0\n", a___b___recipe__yaml=recipe)) == [
        "known-bad-version"
    ]
    assert names(run(a___requirements___x__txt="transformers==5.4.0\n", a___recipe__yaml=recipe)) == [
        "known-bad-version"
    ]


SITUATIONS_SHOWN = {
    "trainer-tokens": (
        "transformers==4.45.2",
        {
            "t__py": """
        from transformers import AutoModelForCausalLM, TrainingArguments
        model = AutoModelForCausalLM.from_pretrained("b")
        args = TrainingArguments("o", gradient_accumulation_steps=4)
        """
        },
    ),
    "trainer-own-loss": (
        "transformers==4.47.1",
        {
            "t__py": """
        from transformers import Trainer, TrainingArguments
        class Mine(Trainer):
            def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
                return loss_of(model(**inputs))
        args = TrainingArguments("o", gradient_accumulation_steps=4)
        """
        },
    ),
    "trainer-plain-head": (
        "transformers==5.24.0",
        {
            "t__py": """
        from transformers import AutoModelForSequenceClassification, TrainingArguments
        model = AutoModelForSequenceClassification.from_pretrained("b")
        args = TrainingArguments("o", gradient_accumulation_steps=4)
        """
        },
    ),
    "trainer-environment": (
        "transformers==4.57.6",
        {
            "t__py": """
        import os
        from transformers import TrainingArguments
        os.environ["ACCELERATE_GRADIENT_ACCUMULATION_STEPS"] = "4"
        args = TrainingArguments("o", gradient_accumulation_steps=4)
        """
        },
    ),
    "preference-accumulation": (
        "trl==0.13.0",
        {
            "t__py": """
        from trl import DPOConfig, DPOTrainer
        args = DPOConfig("o", gradient_accumulation_steps=4)
        trainer = DPOTrainer(model, args=args)
        """
        },
    ),
    "axolotl-accumulation": (
        "axolotl==0.15.0",
        {
            "a__yml": """
        base_model: m
        micro_batch_size: 1
        gradient_accumulation_steps: 2
        """
        },
    ),
    "deepspeed-pipeline": (
        "deepspeed==0.19.2",
        {
            "ds__json": '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4}',
            "t__py": "import deepspeed\nfrom deepspeed.pipe import PipelineModule\nnet = PipelineModule(layers=[], num_stages=2)\n",
        },
    ),
    "deepspeed-wide-sum": (
        "deepspeed==0.18.9",
        {
            "ds__json": '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "bf16": {"enabled": true},'
            ' "zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}',
        },
    ),
    "deepspeed-unmanaged": (
        "deepspeed==0.19.3",
        {
            "ds__json": '{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "managed_gradient_accumulation": false}',
        },
    ),
    "deepspeed-manual-boundary-offload": (
        "deepspeed==0.18.5",
        {
            "ds__json": '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}',
            "t__py": "import deepspeed\ne, *_ = deepspeed.initialize(config='ds.json')\ne.set_gradient_accumulation_boundary(True)\n",
        },
    ),
    "deepspeed-no-sync": (
        "deepspeed==0.18.2",
        {
            "t__py": "import deepspeed\ne, o, d, s = deepspeed.initialize(config={'train_micro_batch_size_per_gpu': 1})\nwith e.no_sync():\n    pass\n",
        },
    ),
}


@pytest.mark.parametrize("situation", sorted(SITUATIONS_SHOWN))
def test_each_situation_is_seen_and_needed(situation):
    pin, files = SITUATIONS_SHOWN[situation]
    found = run(requirements__txt=pin + "\n", **files)
    assert names(found) == ["known-bad-version"]
    advisory = next(
        a for p in packages().values() for a in p.advisories if a.identifier == found[0].evidence["advisory"]
    )
    assert advisory.situation == situation
    if advisory.fixed:
        fixed = f"{pin.partition('==')[0]}=={advisory.fixed}"
        assert names(run(requirements__txt=fixed + "\n", **files)) == []
    assert names(run(requirements__txt=pin + "\n")) == []


def test_every_situation_has_an_advisory_and_every_range_a_release():
    used = {advisory.situation for package in packages().values() for advisory in package.advisories}
    assert used == set(SITUATIONS)
    for package in packages().values():
        assert list(package.releases) == sorted(set(package.releases))
        for advisory in package.advisories:
            assert any(version in advisory.affected for version in package.releases), advisory.identifier
            if advisory.fixed:
                assert Version(advisory.fixed) not in advisory.affected
