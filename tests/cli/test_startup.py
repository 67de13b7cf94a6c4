"""What a run doesn't need must not be imported: a hook that is felt is switched off."""

import os
import subprocess
import sys

HEAVY = ("libcst", "yaml", "rich", "pathspec", "tomllib", "dataclasses", "inspect", "multiprocessing", "json",
         "difflib", "tempfile", "subprocess", "accumlint.config", "accumlint.knowledge", "accumlint.findings")  # fmt: skip


def imported(folder, *arguments):
    """The heavy modules in use after a check."""
    code = (
        "import sys; from accumlint.cli.main import main; main(['check', *sys.argv[1:]]); "
        f"print(sorted(set({HEAVY!r}) & set(sys.modules)), file=sys.stderr)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "GITHUB_ACTIONS"}
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
