"""Runs a script with some of its module-level constants replaced: ``python -m …run_script SCRIPT ARGUMENTS``.

Used only where ``--set`` names the script itself; otherwise the interpreter runs the script untouched.
"""

from __future__ import annotations

import json
import os
import sys
import types


def main() -> None:
    from accumlint.probe.child.early import rewritten

    path = os.path.abspath(sys.argv[1])
    wish = json.loads(os.environ.get("ACCUMLINT_PROBE_OPTIONS", "{}"))
    constants = (wish.get("set") or {}).get("__main__", {})
    with open(path, "rb") as stream:
        tree, found = rewritten(stream.read(), constants, path)
    missing = sorted(set(constants) - set(found))
    if missing:
        sys.stderr.write(f"accumlint probe: --set: the script assigns no {', '.join(missing)} at module level\n")
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(path)
    module = types.ModuleType("__main__")
    module.__file__ = path
    module.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)


if __name__ == "__main__":
    main()
