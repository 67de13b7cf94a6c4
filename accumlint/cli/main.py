"""Entry point: finds the command and imports its file, nothing else.

A command is a module ``accumlint.cli.<name>`` with ``SUMMARY`` (one line), ``add_arguments(parser)``, if it needs
one ``spelled_out(arguments)`` (the arguments as argparse can read them), and
``run(arguments) -> int`` (the exit code: 0 clean, 1 findings, 2 misuse or breakage, 3 nothing to check).
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from accumlint import __version__

# name on the command line -> (module below accumlint.cli, one line for --help)
COMMANDS: dict[str, tuple[str, str]] = {
    "check": ("check", "check scripts and configurations against the accumulation contract"),
    "audit": ("audit", "report on a whole tree: ranked findings, windows drawn; merge joins reports of many"),
    "trace": ("trace", "show the simulated windows of a script and what was recognised in it"),
    "probe": ("probe", "run a script on a tiny model and judge its windows by what torch did"),
    "selftest": ("selftest", "break a correct loop in every known way and show that each fault is seen"),
    "explain": ("explain", "explain one rule: what it finds, why it matters, how to fix it"),
    "rules": ("rules", "list all rules"),
    "cache": ("cache", "show or clear the results of earlier runs"),
    "config": ("config", "print the batch arithmetic of configuration files, with the source of every number"),
    "lsp": ("lsp", "serve an editor: findings while you type, windows on hover, fixes as actions"),
    "receipt": ("receipt", "build, verify, compare or show an accumulation receipt"),
    "rejects": ("rejects", "list, show or replay archived rejected manifests"),
}

USAGE_ERROR = 2


def _top_level_help() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {summary}" for name, (_, summary) in COMMANDS.items())
    return (
        "usage: accumlint COMMAND [ARGUMENTS]\n\n"
        "Does gradient accumulation still train what the large batch would have trained?\n\n"
        f"commands:\n{rows}\n\n"
        "accumlint COMMAND --help describes a command; accumlint --version prints the version.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        sys.stdout.write(_top_level_help())
        return 0 if arguments else USAGE_ERROR
    if arguments[0] in ("-V", "--version"):
        print(f"accumlint {__version__}")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        sys.stderr.write(f"accumlint: unknown command {name!r}; commands: {', '.join(COMMANDS)}\n")
        return USAGE_ERROR
    module_name, summary = COMMANDS[name]
    module = importlib.import_module(f"accumlint.cli.{module_name}")
    parser = argparse.ArgumentParser(prog=f"accumlint {name}", description=summary)
    module.add_arguments(parser)
    try:
        given = arguments[1:]
        if hasattr(module, "spelled_out"):
            given = module.spelled_out(given)
        return module.run(parser.parse_args(given))
    except BrokenPipeError:
        # the reader of a pipe went away (| head): not an error of ours, and nothing more can be written
        sys.stderr.close()
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("accumlint: interrupted\n")
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
