"""What a run doesn't need must not be imported: a hook that is felt is switched off."""

import os
import subprocess
import sys

HEAVY = ("libcst", "yaml", "rich", "pathspec", "tomllib", "dataclasses", "inspect", "multiprocessing", "json",
         "difflib", "tempfile", "subprocess", "accumlint.config", "accumlint.knowledge", "accumlint.findings")  # fmt: skip


def imported(folder, *arguments, modules=HEAVY, environment=None):
    """The heavy modules in use after a check."""
    code = (
        "import sys; from accumlint.cli.main import main; main(['check', *sys.argv[1:]]); "
        f"print(sorted(set({modules!r}) & set(sys.modules)), file=sys.stderr)"
    )
    environment = {key: value for key, value in (environment or os.environ).items() if key != "GITHUB_ACTIONS"}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder, capture_output=True, text=True, env=environment, check=True,
    )  # fmt: skip
    return done.stderr.strip()


def test_a_file_without_accumulation_costs_its_reading(tree):
    folder = tree({"a.py": "print('hello')\n", "pyproject.toml": "[project]\nname = 'x'\n"})
    assert imported(folder, "a.py") == "[]"
    assert imported(folder, "a.py", "--force-exclude") == "[]"


def test_a_walk_without_patterns_needs_no_pattern_library(tree):
    folder = tree({"src/a.py": "print('hello')\n"})
    assert imported(folder, ".") == "[]"


TRAINING = """import torch
def train(model, loader, optimizer, accumulation_steps=4):
    for i, x in enumerate(loader):
        (model(x).mean() / accumulation_steps).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


def test_a_training_script_needs_no_reader_of_other_files(tree):
    folder = tree({"train.py": TRAINING})
    unwanted = ("packaging", "rich", "pathspec", "tempfile", "multiprocessing", "accumlint.config.crossfile",
                "accumlint.config.advisories", "accumlint.config.sources.shell", "accumlint.config.sources.launch", "accumlint.config.dialects")  # fmt: skip
    assert imported(folder, "train.py", "--fail-on", "never", modules=unwanted) == "[]"


def test_rules_and_vocabulary_are_parsed_once(tree):
    folder = tree({"train.py": TRAINING})
    kept = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    first = imported(folder, "train.py", "--fail-on", "never", "--isolated", modules=("yaml",), environment=kept)
    second = imported(folder, "train.py", "--fail-on", "never", "--isolated", modules=("yaml",), environment=kept)
    assert (first, second) == ("['yaml']", "[]")
