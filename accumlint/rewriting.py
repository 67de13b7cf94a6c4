"""Changed source files back into their places: in one step, with the old mode, and only over what was read."""

from __future__ import annotations

import os


class RewriteError(RuntimeError):
    """A file can't be replaced; the message says why."""


def rewrite(path: str, before: bytes, after: bytes) -> None:
    """Put ``after`` where ``before`` stands; a reader sees the old file or the whole new one.

    Raises :class:`RewriteError` where the file is not ``before`` any more, is read-only, or can't be written.
    """
    import stat
    import tempfile

    path = os.path.realpath(path)
    temporary = ""
    try:
        with open(path, "rb") as stream:
            if stream.read() != before:
                raise RewriteError("it changed while it was checked")
        if not os.access(path, os.W_OK):
            raise RewriteError("the file is read-only")
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".accumlint-")
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(after)
        os.chmod(temporary, stat.S_IMODE(os.stat(path).st_mode))
        os.replace(temporary, path)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise RewriteError(error.strerror or str(error)) from error
