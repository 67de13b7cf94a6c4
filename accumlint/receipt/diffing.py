"""What changed between two receipts, and of which kind the change is.

Kinds: ``code`` (scripts, revision, library versions), ``configuration``, ``counts`` (windows, targets),
``policy`` (loss, tail, ranks, tolerances), ``clocks`` (ticks, decisions, communication, scales),
``numbers-within`` and ``numbers-beyond`` (numerators, weights, observations, judged by the acceptance
expressions of the first receipt). What is unbound is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from accumlint.receipt.arithmetic import accept, window_sums
from accumlint.receipt.building import Receipt
from accumlint.receipt.numbers import exact, to_fraction

KINDS = ("code", "configuration", "counts", "policy", "clocks", "numbers-within", "numbers-beyond")

_POLICY = (
    "target_unit", "loss_policy", "reduction", "rank_reduction", "rank_compensation", "ignore_index",
    "tail_policy", "on_skipped_step", "tolerances", "plan_sha256", "epoch_ends",
)  # fmt: skip
_CONFIGURATION = (
    "accumulation_steps", "world_size", "precision", "clipping", "random_state", "substitutions",
)  # fmt: skip
_CODE = ("software", "code_revision")
_COUNTS = ("windows", "valid_targets", "microbatch_ids")
_CLOCKS = ("clocks", "decisions", "sync", "loss_scales")
_NUMBERS = ("loss_numerators", "gradient_numerators", "weights")


@dataclass(frozen=True)
class Change:
    """One difference: its kind, the place in the manifest part, a sentence."""

    kind: str
    path: str
    sentence: str


def diff(first: Receipt, second: Receipt) -> tuple[Change, ...]:
    """All changes from ``first`` to ``second``, ordered by kind and place."""
    a, b = first.manifest.document, second.manifest.document
    found: list[Change] = []

    def settings(names: Sequence[str], kind: str) -> None:
        for name in names:
            if a.get(name) != b.get(name):
                found.append(Change(kind, name, _before_after(a.get(name), b.get(name))))

    settings(_CODE, "code")
    settings(_CONFIGURATION, "configuration")
    settings(_POLICY, "policy")
    for key, kind in (("origin", "counts"), ("continues", "counts"), ("event_ledger", "numbers-within")):
        settings((key,), kind)
    for role, kind in (("script", "code"), ("configuration", "configuration")):
        before, after = ([f for f in d.get("bound_files", []) if f["role"] == role] for d in (a, b))
        if before != after:
            found.append(Change(kind, "bound_files", f"the digest of a bound {role} differs"))
    found += _rows(first, second)
    found += _numbers(first, second)
    order = {kind: place for place, kind in enumerate(KINDS)}
    return tuple(sorted(set(found), key=lambda c: (order[c.kind], c.path, c.sentence)))


def _before_after(before: Any, after: Any) -> str:
    simple = (str, int, float, type(None))
    if isinstance(before, simple) and isinstance(after, simple):
        return f"{before} became {after}"
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        return "; ".join(f"{k}: {_before_after(before.get(k), after.get(k))}" for k in keys)
    return "differs"


def _rows(first: Receipt, second: Receipt) -> list[Change]:
    found: list[Change] = []
    for one, two in zip(first.manifest.document["ranks"], second.manifest.document["ranks"]):
        rank = one["rank"]
        for names, kind in ((_COUNTS, "counts"), (_CLOCKS, "clocks")):
            for name in names:
                if one.get(name) != two.get(name):
                    found.append(
                        Change(kind, f"ranks[{rank}].{name}", _how_many(one.get(name), two.get(name)))
                    )
    return found


def _how_many(before: Any, after: Any) -> str:
    if isinstance(before, list) and isinstance(after, list):
        if len(before) != len(after):
            return f"{len(before)} entries became {len(after)}"
        changed = [i for i, (x, y) in enumerate(zip(before, after)) if x != y]
        return f"{len(changed)} of {len(before)} entries differ, the first at {changed[0]}"
    if isinstance(before, dict) and isinstance(after, dict):
        names = sorted(k for k in before.keys() | after.keys() if before.get(k) != after.get(k))
        return "differs in " + ", ".join(names)
    return "recorded in one of them only"


def _numbers(first: Receipt, second: Receipt) -> list[Change]:
    """Numerators, weights and observations: within or beyond what the first receipt tolerates."""
    a, b = first.manifest, second.manifest
    found: list[Change] = []
    changed = [
        (one["rank"], name)
        for one, two in zip(a.document["ranks"], b.document["ranks"])
        for name in _NUMBERS
        if one.get(name) != two.get(name)
    ]
    same_layout = [(w.size, w.index) for w in a.windows] == [(w.size, w.index) for w in b.windows]
    comparable = same_layout and a.components == b.components and len(a.ranks) == len(b.ranks)
    beyond: list[int] = []
    largest: tuple[Fraction, int] | None = None
    if changed and comparable:
        for one, two in zip(a.windows, b.windows):
            x, y = window_sums(a, one).reference, window_sums(b, two).reference
            if accept(y, x, a.document["tolerances"]) is False:
                beyond.append(one.index)
            if x.loss is not None and y.loss is not None:
                delta = abs(y.loss - x.loss)
                if largest is None or delta > largest[0]:
                    largest = (delta, one.index)
    for rank, name in changed:
        if not comparable:
            kind, sentence = "numbers-beyond", "the windows differ, so the numbers can't be compared"
        elif name == "weights":
            kind, sentence = _weights_change(a, b, rank)
        else:
            kind = "numbers-beyond" if beyond else "numbers-within"
            sentence = f"{len(beyond)} windows differ beyond the first receipt's tolerance"
            if largest is not None:
                made = exact(largest[0]) or {}
                sentence += f"; largest loss delta {made.get('decimal')} in window {largest[1]}"
        found.append(Change(kind, f"ranks[{rank}].{name}", sentence))
    if a.document.get("observed") != b.document.get("observed"):
        worse = first.result["verdict"] != second.result["verdict"]
        found.append(
            Change(
                "numbers-beyond" if worse else "numbers-within",
                "observed",
                "what the run held at its update boundaries differs",
            )
        )
    return found


def _weights_change(a: Any, b: Any, rank: int) -> tuple[str, str]:
    one, two = a.ranks[rank].weights, b.ranks[rank].weights
    if one is None or two is None:
        return "numbers-beyond", "recorded in one of them only"
    allowed = to_fraction(a.document["tolerances"]["weight"])
    far = sum(
        abs(to_fraction(y) - to_fraction(x)) > allowed * abs(to_fraction(x))
        for x, y in zip(one, two)
        if x != y
    )
    return (
        "numbers-beyond" if far else "numbers-within",
        f"{far} weights differ beyond the first receipt's tolerance",
    )
