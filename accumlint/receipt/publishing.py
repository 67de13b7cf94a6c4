"""The published JSON Schemas: files in ``schema/``, made from :mod:`accumlint.receipt.formats` and never by hand.

``python -m accumlint.receipt.publishing`` rewrites them; a test fails while they lag behind.
"""

from __future__ import annotations

import json
from pathlib import Path

from accumlint.receipt.formats import manifest_schema, receipt_schema

FOLDER = Path(__file__).parent / "schema"
SCHEMAS = {"manifest-v1.schema.json": manifest_schema, "receipt-v1.schema.json": receipt_schema}


def schema_text(name: str) -> str:
    """The text of a published schema; ``name`` is a key of :data:`SCHEMAS`."""
    return json.dumps(SCHEMAS[name](), indent=2) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / name).write_text(schema_text(name), encoding="ascii")
        print(FOLDER / name)


if __name__ == "__main__":
    main()
