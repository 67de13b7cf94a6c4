"""What a file can be by its name alone: asked of every file, so nothing that reads one is imported here."""

from __future__ import annotations

import posixpath
import re

SHELL_SUFFIXES = (".sh", ".bash", ".slurm", ".sbatch", ".sub", ".zsh")
_REQUIREMENTS = re.compile(
    r"(^|[-_.])(requirements|constraints)([-_.].*)?\.(txt|in)$|^requirements.*\.(txt|in)$", re.IGNORECASE
)
CONDA = re.compile(r"^(.*[-_.])?(environment|conda|env)([-_.].*)?\.ya?ml$", re.IGNORECASE)


def is_dependency_file(path: str) -> bool:
    """Whether a path is a dependency file, by its name."""
    name = posixpath.basename(path)
    folder = posixpath.basename(posixpath.dirname(path))
    return bool(
        _REQUIREMENTS.search(name)
        or name in ("pyproject.toml", "setup.cfg", "uv.lock", "poetry.lock", "pdm.lock")
        or CONDA.match(name)
        or name == "Dockerfile"
        or name.lower().endswith(".dockerfile")
        or name.startswith("Dockerfile.")
        or (folder in ("requirements", "constraints") and name.endswith((".txt", ".in")))
    )


def is_launch_file(path: str) -> bool:
    """Whether a path can hold launch lines, by its name alone."""
    name = posixpath.basename(path)
    return (
        name.lower().endswith((*SHELL_SUFFIXES, ".md", ".mk"))
        or name in ("Makefile", "makefile", "GNUmakefile", "justfile")
        or (".github/workflows/" in path and name.endswith((".yml", ".yaml")))
    )
