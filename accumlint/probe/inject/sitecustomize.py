"""Found first by the child's interpreter: installs the recorder as soon as torch has been imported.

A finder waits for torch, so that a child that never imports it pays nothing, and so that names which the
script imports from torch are the recorded ones. A ``sitecustomize`` that this file hides is run afterwards.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys


def _warn(error):
    sys.stderr.write("accumlint probe: the recorder could not be installed (%r)\n" % (error,))


class _Loader(importlib.abc.Loader):
    def __init__(self, inner):
        self._inner = inner

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        _wait.done = True
        self._inner.exec_module(module)
        try:
            from accumlint.probe.child import boot

            boot.start_from_environment()
        except Exception as error:  # noqa: BLE001 - the user's script must run whatever happens here
            _warn(error)

    def __getattr__(self, name):
        return getattr(self._inner, name)


class _WaitForTorch(importlib.abc.MetaPathFinder):
    done = False

    def find_spec(self, name, path=None, target=None):
        # libraries ask whether torch could be imported without importing it: only its execution ends the wait
        if name != "torch" or self.done:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def _run_hidden():
    """Run the sitecustomize that stands behind this one on the path, where there is one."""
    here = os.path.dirname(os.path.abspath(__file__))
    rest = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_wait = _WaitForTorch()
if os.environ.get("ACCUMLINT_PROBE_DIR"):
    _home = os.environ.get("ACCUMLINT_PROBE_HOME", "")
    if _home and _home not in sys.path:
        sys.path.append(_home)
    sys.meta_path.insert(0, _wait)
    try:
        from accumlint.probe.child import early

        early.prepare()
    except Exception as error:  # noqa: BLE001
        _warn(error)
try:
    _run_hidden()
except Exception as error:  # noqa: BLE001 - what site.py does with a broken sitecustomize: go on
    _warn(error)
