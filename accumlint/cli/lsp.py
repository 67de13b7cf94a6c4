"""``accumlint lsp``: a language server on standard input and output, for editors."""

from __future__ import annotations

import importlib.util
import sys
from argparse import ArgumentParser, Namespace

SUMMARY = "serve an editor: findings while you type, windows on hover, fixes as actions"

_NO_PYGLS = "accumlint: the language server needs its extra: pip install 'accumlint[lsp]'\n"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--stdio", action="store_true", help="what some editors say; there is no other way")
    parser.add_argument(
        "--debounce",
        type=float,
        default=0.3,
        metavar="SECONDS",
        help="silence before what is being typed is checked (default: 0.3)",
    )
    parser.add_argument("--verbose", action="store_true", help="log every message to standard error")


def run(arguments: Namespace) -> int:
    if importlib.util.find_spec("pygls") is None:
        sys.stderr.write(_NO_PYGLS)
        return 2
    import logging

    from accumlint.lsp.server import create

    level = logging.DEBUG if arguments.verbose else logging.ERROR
    logging.basicConfig(stream=sys.stderr, level=level, format="%(name)s: %(message)s")
    server = create(max(arguments.debounce, 0.0))
    try:
        server.start_io()
    finally:
        server.end()
    return 0
