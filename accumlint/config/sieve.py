"""The cheap look: which files can matter to the auditor at all, by their name and their bytes."""

from __future__ import annotations

import functools
import posixpath
import re

from accumlint.config.sources.by_name import is_dependency_file, is_launch_file

FORMATS = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml"}
_LAUNCH = re.compile(
    rb"torchrun|torch\.distributed|accelerate|deepspeed|composer|axolotl|\btune\s+run|lightning|llamafactory|litgpt|python",
    re.IGNORECASE,
)
_LAUNCH_WORTH = re.compile(
    rb"batch|accum|deepspeed|nproc|num_processes|num_gpus|config_file|\.ya?ml|\.json|\.toml", re.IGNORECASE
)
_SCRIPT = (b"accum", b"grad_acc", b"deepspeed", b"trainingarguments", b"average_tokens")
# What any check of a script by itself, or of what it holds, needs: something that trains, or devices of a node.
_SPEAKS = (
    *(b"backward", b"accelerate", b"transformers", b"trl", b"lightning", b"deepspeed", b"config_params"),
    *(b"device_count", b"_per_node", b"_per_machine", b"_per_host", b"local_size", b"local_world_size", b"num_nodes"),
)
_CONFIG_PY = re.compile(rb"accumulative_counts")


# an accumulation count under any of its names, written as a key
_COUNT_KEY = re.compile(
    rb"""(?i)(grad\w*acc\w*|acc(um\w*)?_(steps?|iters?|freq|num|every)|accumulate_grad_batches|ga_steps)["']?\s*[:=]"""
)


@functools.cache
def _groups(kind: str) -> tuple[tuple[bytes, ...], ...]:
    """Groups of words, one group of which must all stand in a file of this format for any dialect to speak.

    Rare words come first in a group, and groups that start alike are neighbours: most files fail at once.
    """
    from accumlint.config.dialects import evidence_words

    groups = {
        tuple(sorted(set(group), key=_commonness))
        for formats, groups in evidence_words()
        if kind in formats
        for group in groups
    }
    return tuple(sorted(groups))


@functools.cache
def _key(word: bytes) -> re.Pattern[bytes]:
    """The word as a whole key (TOML also writes it in a table header)."""
    return re.compile(rb"""(?<![\w-])""" + re.escape(word) + rb"""["']?[ \t]*[:=\]\.]""")


# words that stand in any YAML are poor sieves
_COMMON = frozenset(
    b"model trainer devices strategy stage template output_dir sft enabled batch_size training train data".split()
)


def _commonness(word: bytes) -> tuple[bool, int]:
    return word in _COMMON, -len(word)


def suffix(path: str) -> str:
    return posixpath.splitext(path)[1].lower()


def can_be_dialect(path: str, data: bytes) -> bool:
    """Whether any dialect can be recognised in these bytes. Lossless: it looks for the detecting keys themselves."""
    kind = FORMATS.get(suffix(path))
    if kind is None:
        return suffix(path) == ".py" and _CONFIG_PY.search(data) is not None
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return True  # UTF-16: the words are not there as bytes
    present: dict[bytes, bool] = {}

    def there(word: bytes) -> bool:
        if word not in present:
            present[word] = word in data and _key(word).search(data) is not None
        return present[word]

    return any(all(map(there, group)) for group in _groups(kind)) or (
        b"acc" in data and _COUNT_KEY.search(data) is not None
    )


def can_be_launch(path: str, data: bytes) -> bool:
    return (
        is_launch_file(path) and _LAUNCH.search(data) is not None and _LAUNCH_WORTH.search(data) is not None
    )


def can_be_script(path: str, data: bytes) -> bool:
    return suffix(path) in (".py", ".ipynb") and _has_any(_SCRIPT, data)


def speaks(data: bytes) -> bool:
    """Whether a script could have a finding of its own; one without is only looked at for who launches it."""
    return _has_any(_SPEAKS, data)


def _has_any(words: tuple[bytes, ...], data: bytes) -> bool:
    low = data.lower()
    return any(word in low for word in words)


def may_be_configuration(path: str, head: bytes) -> bool:
    """Whether the auditor wants to see this file.

    ``path`` may have either kind of slash. ``head`` is as much of the file as is at hand; with the whole file
    nothing is lost, with less a configuration whose first telling key comes later is.
    """
    path = path.replace("\\", "/")
    return can_be_dialect(path, head) or can_be_launch(path, head) or is_dependency_file(path)
