"""What is imported when: the contract stands alone, and a file without accumulation costs no parser."""

import subprocess
import sys
import textwrap

import pytest

HEAVY = "{name for name in ('libcst', 'torch') if name in sys.modules}"


def loaded(code, *arguments, cwd=None):
    """The heavy modules that are there after ``code`` ran in a fresh interpreter."""
    program = "import sys\n" + textwrap.dedent(code) + f"\nsys.stderr.write(repr(sorted({HEAVY})))"
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_the_contract_imports_neither_witness():
    assert loaded(
        """
        import importlib, pkgutil
        import accumlint.contract
        for module in pkgutil.walk_packages(accumlint.contract.__path__, "accumlint.contract."):
            importlib.import_module(module.name)
        assert {"accumlint.contract.clauses.c5_tail"} <= set(sys.modules)
        assert not {"accumlint.static", "accumlint.probe"} & set(sys.modules)
        """
    ) == "[]"


CHECK = """
import accumlint.cli.check
from accumlint.cli.main import main
assert main(["check", "--isolated", "--jobs", "1", sys.argv[1]]) == 0
"""


@pytest.mark.parametrize(
    ("source", "parsed"),
    [
        ("import json\nprint(json.dumps({}))\n", False),  # the byte sieve
        ("import torch\nprint(torch.ones(3))\n", False),
        ("import torch\n\ndef undo(x):\n    '''Walks backward.'''\n    return x[::-1]\n", False),  # the structure sieve
        ("import torch\n\ndef train(model, loader, optimizer):\n    for x in loader:\n        model(x).mean().backward()\n        optimizer.step()\n        optimizer.zero_grad()\n", True),
    ],
)
def test_only_a_file_that_may_train_is_parsed(tmp_path, source, parsed):
    (tmp_path / "script.py").write_text(source)
    found = loaded(CHECK, "script.py", cwd=tmp_path)
    assert ("'libcst'" in found) == parsed and "'torch'" not in found
