"""What an audited tree is called and which state of it was read: told by git, without a word about the machine."""

from __future__ import annotations

import os
import re
import subprocess
from datetime import datetime, timezone

from accumlint.report.audit.model import Revision

_HOSTED = re.compile(r"^(?:[a-z+]+://[^/]*/|[^/@:]+@[^/:]+:|[^/:\\]{2,}:(?!\\))(?P<path>.+)$", re.IGNORECASE)


def _git(folder: str, *arguments: str) -> str | None:
    """What git says, None where it is absent or has nothing to say."""
    try:
        done = subprocess.run(["git", "-C", folder, *arguments], capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else None


def name_in_remote(url: str) -> str:
    """``owner/name`` of a remote; of one that is a path on this machine, only the last part.

    Credentials, hosts and folders of a machine never come along.
    """
    hosted = None if url.startswith(("file:", "/", ".", "~")) else _HOSTED.match(url)
    path = (hosted["path"] if hosted else url.removeprefix("file://")).replace("\\", "/").rstrip("/")
    parts = [part for part in path.removesuffix(".git").split("/") if part]
    return "/".join(parts[-2:] if hosted else parts[-1:])


def name_of(folder: str) -> str:
    """The name of the remote ``origin``, else of the repository's folder, else of the folder; a folder below the
    repository's root adds its way there."""
    root = _git(folder, "rev-parse", "--show-toplevel")
    if not root:
        return os.path.basename(os.path.realpath(folder)) or "root"
    remote = _git(folder, "config", "--get", "remote.origin.url")
    name = name_in_remote(remote) if remote else ""
    below = os.path.relpath(os.path.realpath(folder), os.path.realpath(root)).replace(os.sep, "/")
    return (name or os.path.basename(root)) + ("" if below == "." else f"/{below}")


def revision_of(folder: str) -> Revision | None:
    """The commit that is checked out, None where there is none."""
    said = _git(folder, "log", "-1", "--format=%H %ct")
    if not said or " " not in said:
        return None
    commit, seconds = said.split()
    committed = datetime.fromtimestamp(int(seconds), tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Revision(
        commit, committed, bool(_git(folder, "status", "--porcelain", "--untracked-files=no", "--", "."))
    )
