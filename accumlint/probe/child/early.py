"""What must stand before the script's first import: constants to replace, loggers to leave out. Imports no torch."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from typing import Any

# experiment trackers: nothing that they return reaches a loss
LOGGERS = frozenset({"wandb", "mlflow", "comet_ml", "neptune", "clearml", "aim", "swanlab", "trackio", "tensorboard", "tensorboardX"})


def prepare() -> None:
    wish = json.loads(os.environ.get("ACCUMLINT_PROBE_OPTIONS", "{}"))
    if wish.get("stub_loggers"):
        sys.meta_path.append(_Stubs())  # last: only what is not installed
        if importlib.machinery.PathFinder.find_spec("tensorboard") is None:
            sys.meta_path.insert(0, _TorchWriter())  # torch's own wrapper is installed, and useless without it
    if wish.get("tiny"):
        from accumlint.probe.child import tiny

        tiny.install_later()
    constants = wish.get("set") or {}
    if constants:
        sys.meta_path.insert(0, _Constants(constants))


class _Anything:
    """Takes every call and attribute, and gives itself: an experiment tracker that tracks nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: Any) -> None:
        return None

    def __getitem__(self, key: Any) -> Any:
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        return None

    def __setattr__(self, name: str, value: Any) -> None:
        return None

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False


class _StubModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for experiment trackers that are not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] not in LOGGERS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = _StubModule(spec.name)
        module.__path__ = []
        module.__version__ = "99.0.0"  # newer than any library asks for
        return module

    def exec_module(self, module: Any) -> None:
        return None


class _TorchWriter(_Stubs):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith("torch.utils.tensorboard"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)


def rewritten(source: bytes, constants: dict[str, Any], path: str) -> tuple[ast.Module, list[str]]:
    """The tree of a module in which module-level ``NAME = …`` takes the wished value; lines stay where they are.

    Returns the names that were found as well. Raises SyntaxError for source that does not parse.
    """
    tree = ast.parse(source, path)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id in constants and getattr(node, "col_offset", 1) == 0:
                value = ast.parse(repr(constants[target.id]), mode="eval").body
                node.value = ast.copy_location(value, node.value or node)  # type: ignore[attr-defined]
                ast.fix_missing_locations(node)
                found.append(target.id)
    return tree, found


class _Constants(importlib.abc.MetaPathFinder):
    """Rewrites constants of imported modules. The script itself is rewritten by the launcher's runner."""

    def __init__(self, constants: dict[str, dict[str, Any]]) -> None:
        self._constants = constants

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._constants:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return spec
        spec.loader = _ConstantLoader(spec.loader.name, spec.loader.path, self._constants[name])
        return spec


class _ConstantLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, constants: dict[str, Any]) -> None:
        super().__init__(name, path)
        self._wished = constants

    def get_code(self, fullname: str) -> Any:
        tree, found = rewritten(self.get_data(self.path), self._wished, self.path)
        missing = sorted(set(self._wished) - set(found))
        if missing:
            sys.stderr.write(f"accumlint probe: --set: {fullname} assigns no {', '.join(missing)} at module level\n")
        return compile(tree, self.path, "exec", dont_inherit=True)
