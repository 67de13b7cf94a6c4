"""What belongs to one run: which script, launch line and configuration name each other.

A join needs evidence: one file names the other, or a folder that is checked on its own holds exactly one
candidate. Names are resolved like the run would (beside the naming file, from the root), or by a unique end
of path; an ambiguous name joins nothing.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from accumlint.config.scripts import Scripts
from accumlint.config.tree import Mark

if TYPE_CHECKING:
    from accumlint.config.dialects import View
    from accumlint.config.sources.launch import Launch
    from accumlint.config.sources.script import Script
    from accumlint.config.tree import Document


@dataclass
class Tree:
    """Everything that was read, by path (with forward slashes)."""

    views: dict[str, list[View]] = field(default_factory=dict)
    scripts: Scripts = field(default_factory=Scripts)
    launches: list[Launch] = field(default_factory=list)
    paths: tuple[str, ...] = ()
    documents: list[Document] = field(default_factory=list)
    named: dict[str, dict[str, Mark]] = field(default_factory=dict)  # what deepspeed_of_script found
    windowed: list[View] | None = None  # Trainer runs with a window, once somebody has asked
    _by_name: dict[str, list[str]] = field(default_factory=dict)

    def index(self) -> None:
        for path in self.paths:
            self._by_name.setdefault(posixpath.basename(path), []).append(path)

    def below(self, folder: str) -> Tree:
        """The part of the tree in one folder."""
        if not folder:
            return self
        start = folder + "/"
        part = Tree(
            views={path: views for path, views in self.views.items() if path.startswith(start)},
            scripts=self.scripts.below(start),
            launches=[launch for launch in self.launches if launch.path.startswith(start)],
            paths=tuple(path for path in self.paths if path.startswith(start)),
            documents=[document for document in self.documents if document.path.startswith(start)],
        )
        part.index()
        return part

    def resolve(self, name: object, base: str) -> str | None:
        """The path of the file that ``name`` means when it is written in ``base``."""
        if not isinstance(name, str) or not name or len(name) > 300 or "\n" in name:
            return None
        name = name.strip().replace("\\", "/")
        candidates = self._by_name.get(posixpath.basename(name), [])
        if not candidates:
            return None
        beside = posixpath.normpath(posixpath.join(posixpath.dirname(base), name))
        if beside in candidates:
            return beside
        tail = posixpath.normpath(name)
        while tail.startswith(("../", "./")):
            tail = tail.partition("/")[2]
        if tail.startswith("/"):
            return None
        ends = [path for path in candidates if path == tail or path.endswith("/" + tail)]
        if len(ends) > 1:
            # nearest wins only when it is alone in the folder tree of the naming file
            folder = posixpath.dirname(base)
            ends = [path for path in ends if posixpath.dirname(path).startswith(folder)] if folder else []
        return ends[0] if len(ends) == 1 else None

    def view(self, path: str | None, *names: str) -> View | None:
        """The view of a file in one of the named dialects, when it is a whole document."""
        for found in self.views.get(path or "", ()):
            if found.dialect.name in names:
                return found
        return None

    def one_folder(self) -> bool:
        """Whether everything that was given lies in a single folder."""
        folders = map(posixpath.dirname, self.paths)
        first = next(folders, None)
        return first is not None and all(folder == first for folder in folders)


# flags and keywords under which scripts take a DeepSpeed file
DEEPSPEED_FLAGS = (
    "deepspeed",
    "deepspeed_config",
    "ds_config",
    "deepspeed_config_file",
    "ds_config_path",
    "deepspeed_config_path",
)


def deepspeed_of_script(tree: Tree, path: str) -> dict[str, Mark]:
    """DeepSpeed files that a script names in any text, with the place."""
    if path not in tree.named:
        alone = tree.one_folder()
        tree.named[path] = _named_deepspeed(tree, tree.scripts[path]) if alone or ".json" in tree.scripts.text(path) else {}
    return tree.named[path]


def _named_deepspeed(tree: Tree, script: Script) -> dict[str, Mark]:
    found: dict[str, Mark] = {}
    for node in script.strings:
        if not node.value.endswith(".json"):
            continue
        path = tree.resolve(node.value, script.path)
        if path and tree.view(path, "deepspeed"):
            found.setdefault(path, script.mark(node))
    if not found and tree.one_folder() and len(tree.scripts) == 1:
        files = [p for p in tree.views if tree.view(p, "deepspeed") and p.endswith(".json")]
        uses = any("deepspeed" in c.name or "deepspeed" in c.keywords for c in script.calls) or any(
            name in script.arguments for name in DEEPSPEED_FLAGS
        )
        if len(files) == 1 and uses:
            found[files[0]] = Mark(1, 1, 1, 1)
    return found


def deepspeed_of_launch(tree: Tree, launch: Launch) -> tuple[str, Mark] | None:
    """The DeepSpeed file that a launch line names."""
    for flags in (launch.args, launch.options):
        for name in DEEPSPEED_FLAGS:
            arg = flags.get(name)
            if arg is not None and arg.known:
                path = tree.resolve(arg.text, launch.path)
                if path and tree.view(path, "deepspeed"):
                    return path, arg.mark
    return None


def _started(tree: Tree, launch: Launch) -> str:
    """The path of the file that a launch line starts; empty where it is not in the tree."""
    if launch.script is None or not launch.script.known:
        return ""
    return tree.resolve(launch.script.text, launch.path) or ""


def script_of_launch(tree: Tree, launch: Launch) -> str:
    """The path of the script that a launch line starts; empty where there is none that can be read."""
    path = _started(tree, launch)
    return path if path in tree.scripts else ""


def launches_of_files(tree: Tree) -> dict[str, list[Launch]]:
    """The launch lines by the file that they start, be it a script or not; without reading any."""
    table: dict[str, list[Launch]] = {}
    for launch in tree.launches:
        table.setdefault(_started(tree, launch), []).append(launch)
    return table


def configs_of_launch(tree: Tree, launch: Launch) -> list[tuple[View, Mark]]:
    """Training configurations that a launch line names: positionals and any flag whose value is a known file."""
    found = []
    for arg in (*launch.positionals, *launch.args.values(), *([launch.script] if launch.script else [])):
        if arg.known and arg.text.endswith((".yaml", ".yml", ".toml", ".json")):
            path = tree.resolve(arg.text, launch.path)
            for candidate in tree.views.get(path or "", ()):
                if candidate.dialect.name not in ("accelerate", "deepspeed"):
                    found.append((candidate, arg.mark))
    return found


def accelerate_of_launch(tree: Tree, launch: Launch) -> View | None:
    arg = launch.options.get("config_file") if launch.launcher == "accelerate" else None
    if arg is None or not arg.known:
        return None
    return tree.view(tree.resolve(arg.text, launch.path), "accelerate")


def accelerate_of_script(tree: Tree, script: Script, launches: Sequence[Launch]) -> list[View]:
    """Accelerate configurations under which a script is launched."""
    pairs: list[View] = []
    for launch in launches:
        found = accelerate_of_launch(tree, launch)
        if found and found not in pairs:
            pairs.append(found)
    if not pairs and "accelerate" in script.text and tree.one_folder() and len(tree.scripts) == 1:
        files = [v for p in sorted(tree.views) if (v := tree.view(p, "accelerate"))]
        if len(files) == 1:
            pairs.append(files[0])
    return pairs
