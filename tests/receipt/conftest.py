"""Shared by the receipt's tests: where the fixtures are, and short ways to the things under test."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from accumlint import receipt

ROOT = Path(__file__).resolve().parents[2]
MANIFESTS = ROOT / "fixtures" / "manifests"
RECEIPTS = ROOT / "fixtures" / "receipts"


@pytest.fixture(scope="session")
def manifests() -> Path:
    return MANIFESTS


@pytest.fixture(scope="session")
def receipts() -> Path:
    return RECEIPTS


@pytest.fixture
def manifest():
    """``manifest("seven-flush", world_size=2)``: a fixture's tree, with top-level keys replaced."""

    def load(name: str = "three-six-one", **changes: Any) -> dict[str, Any]:
        return {**json.loads((MANIFESTS / f"{name}.json").read_text()), **changes}

    return load


@pytest.fixture
def edited(manifest):
    """``edited("three-six-one", ("ranks", 0, "rank"), 7)``: a tree with one place replaced."""

    def edit(name: str, place: tuple[Any, ...], value: Any) -> dict[str, Any]:
        tree = copy.deepcopy(manifest(name))
        inside: Any = tree
        for key in place[:-1]:
            inside = inside[key]
        inside[place[-1]] = value
        return tree

    return edit


@pytest.fixture
def reasons():
    """The reason codes with which a tree is refused, sorted; empty when it is accepted."""

    def of(tree: Any, previous: Any = None) -> list[str]:
        try:
            receipt.validate(tree, previous)
        except receipt.Rejected as rejected:
            return sorted(rejected.counts)
        return []

    return of
