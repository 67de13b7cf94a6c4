"""Readers: bytes of one format to a positioned :class:`~accumlint.config.tree.Document`. None of them raises."""

from __future__ import annotations

from accumlint.config.tree import Document, Problem

# A training configuration is small; what is larger than this is data, whatever its suffix says.
MAX_BYTES = 2 * 1024 * 1024
MAX_DEPTH = 100
MAX_NODES = 200_000


def read(path: str, data: bytes) -> Document:
    """The document in ``data``; the suffix of ``path`` names the format.

    Never raises: what cannot be read gives a document without roots and with a ``problem``.
    """
    suffix = path.rpartition(".")[2].lower()
    kind = {
        "yml": "yaml",
        "yaml": "yaml",
        "json": "json",
        "jsonc": "json",
        "json5": "json",
        "toml": "toml",
        "py": "python",
    }.get(suffix, "")
    if not kind:
        return Document(path, "", (), problem=Problem(f"no reader for {suffix!r} files", 1, 1))
    if len(data) > MAX_BYTES:
        size = len(data) / 1024 / 1024
        message = f"{size:.1f} MiB; configurations above {MAX_BYTES // 1024 // 1024} MiB are not read"
        return Document(path, kind, (), problem=Problem(message, 1, 1, "too-large"))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            try:
                text = data.decode("utf-16")
            except UnicodeDecodeError:
                return Document(path, kind, (), problem=Problem("neither UTF-8 nor UTF-16", 1, 1, "encoding"))
        else:
            line = data.count(b"\n", 0, error.start) + 1
            return Document(path, kind, (), problem=Problem("not UTF-8", line, 1, "encoding"))
    if kind == "yaml":
        from accumlint.config.readers.yaml import read_yaml

        return read_yaml(path, text)
    if kind == "json":
        from accumlint.config.readers.json import read_json

        return read_json(path, text)
    if kind == "toml":
        from accumlint.config.readers.toml import read_toml

        return read_toml(path, text)
    from accumlint.config.readers.python import read_python

    return read_python(path, text)
