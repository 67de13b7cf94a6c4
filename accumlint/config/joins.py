"""What belongs to one run: which script, launch line and configuration name each other.

A join needs evidence: one file names the other, or a folder that is checked on its own holds exactly one
candidate. Names are resolved like the run would (beside the naming file, from the root), or by a unique end
of path; an ambiguous name joins nothing.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

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
    scripts: dict[str, Script] = field(default_factory=dict)
    launches: list[Launch] = field(default_factory=list)
    paths: tuple[str, ...] = ()
    documents: list[Document] = field(default_factory=list)
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
            scripts={path: script for path, script in self.scripts.items() if path.startswith(start)},
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


def deepspeed_of_script(tree: Tree, script: Script) -> dict[str, Mark]:
    """DeepSpeed files that a script names in any text, with the place."""
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


def script_of_launch(tree: Tree, launch: Launch) -> Script | None:
    if launch.script is None or not launch.script.known:
        return None
    path = tree.resolve(launch.script.text, launch.path)
    return tree.scripts.get(path) if path else None


def launches_of_scripts(tree: Tree) -> dict[str, list[Launch]]:
    """The launch lines of each script, by its path."""
    table: dict[str, list[Launch]] = {}
    for launch in tree.launches:
        script = script_of_launch(tree, launch)
        if script is not None:
            table.setdefault(script.path, []).append(launch)
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


def accelerate_pairs(tree: Tree) -> list[tuple[View, Script]]:
    """Accelerate configurations with the script that is launched under them."""
    pairs: list[tuple[View, Script]] = []
    for launch in tree.launches:
        found, script = accelerate_of_launch(tree, launch), script_of_launch(tree, launch)
        if found and script and (found, script) not in [(a, b) for a, b in pairs]:
            pairs.append((found, script))
    if not pairs and tree.one_folder() and len(tree.scripts) == 1:
        files = [v for p in sorted(tree.views) if (v := tree.view(p, "accelerate"))]
        script = next(iter(tree.scripts.values()))
        if len(files) == 1 and "accelerate" in script.text:
            pairs.append((files[0], script))
    return pairs
