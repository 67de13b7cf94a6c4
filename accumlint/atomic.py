"""Files that come into being whole: a reader sees the old content or the new one, never a part."""

from __future__ import annotations

import os


def replace(path: str, data: bytes, mode: int = 0o666) -> None:
    """Write ``data`` beside ``path`` and move it there; raises OSError and leaves nothing behind.

    The name of the temporary file is that of this process and thread, so that writers don't meet; what a crash leaves
    is overwritten by the next process of that number.
    """
    from threading import get_ident

    temporary = f"{path}.{os.getpid()}-{get_ident()}.tmp"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
        os.replace(temporary, path)
    except BaseException:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
