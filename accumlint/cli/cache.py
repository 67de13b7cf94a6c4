"""``accumlint cache``: where results of earlier runs are kept, and how to be rid of them."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace

from accumlint.settings import Settings, SettingsError, find

SUMMARY = "show or clear the results of earlier runs"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("action", choices=("clear", "info"), help="clear: delete them; info: where they are, how many")
    parser.add_argument("--cache-dir", metavar="DIR", help="the folder, where it is not the usual one")
    parser.add_argument("--isolated", action="store_true", help="use no settings file")


def run(arguments: Namespace) -> int:
    """0 when it is done or there is nothing to do, 2 where the folder can't be removed."""
    from accumlint.cache.store import Store, clear, location

    working_folder = os.getcwd()
    try:
        settings = Settings(root=working_folder) if arguments.isolated else find(working_folder)
    except SettingsError as error:
        sys.stderr.write(f"accumlint: {error}\n")
        return 2
    folder = location(settings, working_folder, arguments.cache_dir or "")
    if not folder:
        print("no results are kept here: this is neither a repository nor a folder with settings")
        return 0
    if arguments.action == "info":
        held = Store(folder).held()
        print(f"{folder}: {held.entries} results, {held.size / 1024:,.0f} KiB")
        return 0
    try:
        held = clear(folder)
    except OSError as error:
        sys.stderr.write(f"accumlint: {folder}: {error.strerror or error}\n")
        return 2
    print(f"{folder}: {held.entries} results removed" if held.entries else f"{folder}: nothing to remove")
    return 0
