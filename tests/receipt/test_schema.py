"""The published schema and the validator are two readings of one declaration; here they meet."""

import copy
import json
import random

import jsonschema
import pytest

from accumlint import receipt
from accumlint.receipt import publishing
from accumlint.receipt.formats import MANIFEST, manifest_schema, receipt_schema
from accumlint.receipt.problems import ProblemLog


@pytest.mark.parametrize("name", publishing.SCHEMAS)
def test_published_files_are_current(name):
    text = (publishing.FOLDER / name).read_text()
    assert text == publishing.schema_text(name), "run python -m accumlint.receipt.publishing"


def test_schemas_are_valid_2020_12_with_stable_ids():
    for schema, identifier in (
        (manifest_schema(), "urn:accumlint:schema:manifest:v1"),
        (receipt_schema(), "urn:accumlint:schema:receipt:v1"),
    ):
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["$id"] == identifier


def test_fixtures_satisfy_the_schemas(manifests, receipts):
    of_manifest = jsonschema.Draft202012Validator(manifest_schema())
    of_receipt = jsonschema.Draft202012Validator(receipt_schema())
    for path in manifests.glob("*.json"):
        of_manifest.validate(json.loads(path.read_text()))
    for path in receipts.glob("*.json"):
        of_receipt.validate(json.loads(path.read_text()))


SWAPS = [None, True, 1, -1, 2.5, "text", "0.5", "flush", "", [], {}, [1], {"a": 1}, 2**60, "f" * 64, 10**70]


def mutate(rng, tree):
    """Replace, remove or add one value somewhere below ``tree``."""
    places = []

    def walk(inside):
        items = inside.items() if isinstance(inside, dict) else enumerate(inside)
        for key, value in list(items):
            places.append((inside, key))
            if isinstance(value, (dict, list)):
                walk(value)

    walk(tree)
    inside, key = rng.choice(places)
    kind = rng.random()
    if kind < 0.7:
        inside[key] = copy.deepcopy(rng.choice(SWAPS))
    elif kind < 0.85:
        del inside[key]
    elif isinstance(inside, dict):
        inside[rng.choice(["extra", "rank", "x"])] = rng.choice(SWAPS)
    else:
        inside.insert(key, copy.deepcopy(rng.choice(SWAPS)))


# Differences that JSON Schema can't express, or that its validators read otherwise: 1.0 is an integer there,
# and the number of digits of a number is nobody's business.
ONLY_OURS = {"number-unsafe", "number-nonfinite"}


def test_validator_and_schema_agree_on_mutations(manifest):
    rng = random.Random(41)
    schema = jsonschema.Draft202012Validator(manifest_schema())
    names = ["three-six-one", "two-ranks", "skipped-step", "measured-weights", "seven-carry"]
    agreed = {True: 0, False: 0}
    for _ in range(1200):
        tree = manifest(rng.choice(names))
        for _ in range(rng.choice([1, 1, 2])):
            mutate(rng, tree)
        text = json.dumps(tree).encode()
        log = ProblemLog()
        MANIFEST.check(receipt.read(text), "", log)
        ours, theirs = not log, schema.is_valid(json.loads(text))
        if ours != theirs:
            assert set(log.counts) <= ONLY_OURS, (log.problems(), text)
        agreed[theirs] += 1
    assert min(agreed.values()) > 50  # both kinds were met
