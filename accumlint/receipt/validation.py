"""From a tree to a manifest, or to every reason why not. Nothing is summed, divided or allocated before.

Three passes: the shape of each key; the agreement of ranks, columns and windows; the conditions that the
arithmetic rests on (targets to divide by, no gap, no hidden numerator). Each pass looks at whatever the pass
before left sound, so that one run reports all problems.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from accumlint.receipt.canonical import canonical_bytes, domain_hash
from accumlint.receipt.formats import CONTINUES, MANIFEST, PENDING_RANK, PER_MICROBATCH, RANK, SETTINGS
from accumlint.receipt.limits import MAX_INTEGER, MAX_RESULT_CELLS
from accumlint.receipt.manifest import (
    CARRIED,
    DROPPED,
    EXECUTED,
    SKIPPED,
    Manifest,
    Rows,
    Window,
    normal_form,
)
from accumlint.receipt.numbers import to_decimal
from accumlint.receipt.plan import make_plan
from accumlint.receipt.problems import ProblemLog, Rejected


@dataclass(frozen=True)
class Previous:
    """The segment before: its receipt hash, its settings, the pending window and the counters so far."""

    receipt_sha256: str
    settings: Mapping[str, Any]
    pending: dict[str, Any] | None
    before: dict[str, int]


def validate(tree: Any, previous: Previous | None = None, embedded: bool = False) -> Manifest:
    """The manifest that ``tree`` describes.

    ``previous`` is the segment that a continued manifest is chained to. ``embedded`` trusts the pending rows
    inside the tree instead: a verifier uses it on the normal form within a receipt, whose hashes bind them.
    Raises :class:`~accumlint.receipt.problems.Rejected` with all problems.
    """
    log = ProblemLog()
    sound = _check_shape(tree, log)
    ranks = [(i, rank) for i, rank in enumerate(sound.get("ranks", ())) if rank is not None]
    continues = _resolve_chain(sound, previous, embedded, log)
    carried_in = _pending_size(continues, sound.get("world_size"), log)
    _check_ranks(sound, ranks, log)
    for place, rank in ranks:
        _check_columns(rank, f"ranks[{place}]", log)
    _check_gradient_dimension(ranks, continues, log)
    _check_ids(ranks, continues, log)
    start = continues["pending"]["window"] if continues else 0
    # without the segment before it, nobody can say at which window this one starts
    adrift = continues is None and sound.get("continues") is not None
    sizes = [] if adrift else _layouts(ranks, start, carried_in, log)
    if sizes and len(sizes) * (len(ranks[0][1].get("gradient_numerators", ())) + 2) > MAX_RESULT_CELLS:
        log.add("window-count", "ranks", f"{len(sizes)} windows")
    windows = _windows(sound, sizes, start, carried_in, ranks, log) if sizes else ()
    if windows:
        _check_window_columns(sound, ranks, len(windows), log)
        _check_carry(sound, windows, log)
        # the last check walks all columns window by window, which takes columns that fit each other
        if len(ranks) == len(sound["ranks"]) and not _UNEVEN & log.counts.keys():
            _check_arithmetic_ground(ranks, continues, windows, log)
    _check_plan(sound, log)
    if log:
        raise Rejected(log)
    return _manifest(sound, continues, carried_in, windows)


_UNEVEN = {"column-length", "gradient-dimension", "rank-missing", "rank-unknown", "rank-window-mismatch"}


def _check_shape(tree: Any, log: ProblemLog) -> dict[str, Any]:
    """Report problems of shape; return the keys (and, below ``ranks``, the ranks) that have none."""
    if not isinstance(tree, dict):
        log.add("type", "$", "expected an object")
        return {}
    MANIFEST.check_keys(tree, "", log)
    sound: dict[str, Any] = {}
    for key, field in MANIFEST.fields.items():
        if key not in tree:
            continue
        value, before = tree[key], log.total
        if key == "ranks" and type(value) is list and value:
            checked = []
            for index, rank in enumerate(value[: field.shape.maximum]):  # type: ignore[attr-defined]
                inside = log.total
                RANK.check(rank, f"ranks[{index}]", log)
                checked.append(rank if log.total == inside else None)
            if len(value) > field.shape.maximum:  # type: ignore[attr-defined]
                log.add("list-length", "ranks")
            sound[key] = checked
            continue
        field.shape.check(value, key, log)
        if log.total == before:
            sound[key] = value
    return sound


def _resolve_chain(
    sound: dict[str, Any], previous: Previous | None, embedded: bool, log: ProblemLog
) -> dict[str, Any] | None:
    """What this segment continues, with the pending rows in normal form; None when it starts afresh."""
    stated = sound.get("continues")
    if embedded:
        if stated is not None and ("pending" not in stated or "before" not in stated):
            log.add("chain-missing", "continues")
            return None
        return stated
    if previous is None:
        if stated is not None:
            log.add("chain-missing", "continues")
        return None
    if previous.pending is None:
        log.add("chain-nothing-pending", "continues")
        return None
    for key in SETTINGS:
        if key in sound and normal_form(MANIFEST.fields[key].shape, sound[key]) != previous.settings.get(key):
            log.add("chain-incompatible", key)
    full = {
        "receipt_sha256": previous.receipt_sha256,
        "pending": previous.pending,
        "before": previous.before,
    }
    if stated is not None:
        if stated["receipt_sha256"] != previous.receipt_sha256:
            log.add("chain-broken", "continues.receipt_sha256")
        for key in ("pending", "before"):
            if key in stated and _bytes_of(CONTINUES, key, stated[key]) != canonical_bytes(full[key]):
                log.add("chain-broken", f"continues.{key}")
    return full


def _bytes_of(record: Any, key: str, value: Any) -> bytes:
    """Canonical bytes of a part whose ids are already synthetic (they are compared as they stand)."""
    made = normal_form(record.fields[key].shape, value)
    if key == "pending":
        for rank, source in zip(made["ranks"], value["ranks"]):
            if isinstance(source.get("microbatch_ids"), dict):
                rank["microbatch_ids"] = source["microbatch_ids"]
    return canonical_bytes(made)


def _pending_size(continues: dict[str, Any] | None, world: int | None, log: ProblemLog) -> int:
    """Microbatches per rank that were carried in; checks that the embedded rows are of one piece."""
    if continues is None:
        return 0
    rows = continues["pending"]["ranks"]
    size = len(rows[0]["valid_targets"])
    if world is not None and len(rows) != world:
        log.add("rank-missing", "continues.pending.ranks", f"{len(rows)} of {world}")
    for index, rank in enumerate(rows):
        path = f"continues.pending.ranks[{index}]"
        if rank["rank"] != index:
            log.add("rank-missing", f"{path}.rank")
        if len(rank["valid_targets"]) != size:
            log.add("rank-window-mismatch", f"{path}.valid_targets")
        _check_columns(rank, path, log, len(rank["valid_targets"]))
        ids = rank.get("microbatch_ids")
        if not isinstance(ids, dict):
            log.add("type", f"{path}.microbatch_ids", "expected an object")
    return size


def _check_ranks(sound: dict[str, Any], ranks: list[tuple[int, dict]], log: ProblemLog) -> None:
    """Every rank of the world once, all of one mind about K and the tail."""
    world = sound.get("world_size")
    seen: set[int] = set()
    for place, rank in ranks:
        number = rank["rank"]
        if number in seen:
            log.add("rank-duplicate", f"ranks[{place}].rank")
        seen.add(number)
        if world is not None and number >= world:
            log.add("rank-unknown", f"ranks[{place}].rank")
        if "accumulation_steps" in sound and rank["accumulation_steps"] != sound["accumulation_steps"]:
            log.add("inconsistent-k", f"ranks[{place}].accumulation_steps")
        if "tail_policy" in sound and rank["tail_policy"] != sound["tail_policy"]:
            log.add("tail-disagreement", f"ranks[{place}].tail_policy")
    listed = sound.get("ranks")
    if world is not None and listed and len(listed) == len(ranks):  # else a malformed rank may be the one
        missing = world - sum(1 for number in seen if number < world)
        if missing:
            log.add("rank-missing", "ranks", f"{missing} of {world}")


def _check_columns(rank: Mapping[str, Any], path: str, log: ProblemLog, length: int | None = None) -> None:
    """All columns of a rank have one entry per row."""
    length = len(rank["windows"]) if length is None else length

    def same(column: Sequence[Any], name: str, code: str = "column-length") -> None:
        if len(column) != length:
            log.add(code, f"{path}.{name}", f"{len(column)} entries for {length} microbatches")

    for name in ("valid_targets", "loss_numerators", "weights", "loss_scales"):
        if name in rank:
            same(rank[name], name)
    for name, column in rank.get("sync", {}).items():
        same(column, f"sync.{name}")
    for index, column in enumerate(rank.get("gradient_numerators", ())):
        same(column, f"gradient_numerators[{index}]", "gradient-dimension")
    ids = rank.get("microbatch_ids")
    if isinstance(ids, list):
        same(ids, "microbatch_ids")
    elif ids is not None and ids["count"] != length:
        log.add("column-length", f"{path}.microbatch_ids.count", f"{length} microbatches")


def _check_gradient_dimension(
    ranks: list[tuple[int, dict]], continues: dict[str, Any] | None, log: ProblemLog
) -> None:
    """All ranks have as many gradient components, and record the same optional columns."""
    dimensions = [len(rank.get("gradient_numerators", ())) for _, rank in ranks]
    for (place, _), dimension in zip(ranks, dimensions):
        if dimension != dimensions[0]:
            log.add(
                "gradient-dimension",
                f"ranks[{place}].gradient_numerators",
                f"{dimension} components, the first rank has {dimensions[0]}",
            )
    optional = [name for name in PER_MICROBATCH if any(name in rank for _, rank in ranks)]
    for name in optional:
        if name != "gradient_numerators":  # reported above with its number of components
            for place, rank in ranks:
                if name not in rank:
                    log.add("column-length", f"ranks[{place}].{name}", "another rank has this column")
    if continues is not None and dimensions:
        for index, rank in enumerate(continues["pending"]["ranks"]):
            if len(rank.get("gradient_numerators", ())) != dimensions[0]:
                log.add("gradient-dimension", f"continues.pending.ranks[{index}].gradient_numerators")


def _check_ids(ranks: list[tuple[int, dict]], continues: dict[str, Any] | None, log: ProblemLog) -> None:
    """No id twice in the manifest: the same data on two ranks, or twice on one, would count twice."""
    seen: set[Any] = set()
    for place, rank in ranks:
        ids = rank.get("microbatch_ids")
        if isinstance(ids, list):
            for index, name in enumerate(ids):
                if name in seen:
                    log.add("id-duplicate", f"ranks[{place}].microbatch_ids[{index}]")
                seen.add(name)
        elif ids is not None:
            first = continues["before"]["backward"] if continues else 0
            if ids["first"] != first:
                log.add("id-duplicate", f"ranks[{place}].microbatch_ids.first", f"expected {first}")


def _layouts(ranks: list[tuple[int, dict]], start: int, carried_in: int, log: ProblemLog) -> list[int]:
    """Microbatches of each window (the carried ones included), when all ranks agree on them; else empty."""
    agreed: list[int] | None = None
    broken = False
    for place, rank in ranks:
        sizes: list[int] = []
        expected, position = start, 0
        for index, group in groupby(rank["windows"]):
            length = len(list(group))
            if index != expected:
                code = "window-order" if index < expected else "window-missing"
                log.add(code, f"ranks[{place}].windows[{position}]", f"expected window {expected}")
                broken = True
            sizes.append(length)
            expected = max(expected, index + 1)
            position += length
        sizes[0] += carried_in  # the pending window is the first one of the segment that continues it
        if agreed is None:
            agreed = sizes
        elif sizes != agreed and not broken:
            broken = True
            pairs = list(zip(sizes, agreed))
            first = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
            log.add("rank-window-mismatch", f"ranks[{place}].windows", f"window {start + first}")
    return [] if broken or agreed is None else agreed


def _windows(
    sound: dict[str, Any],
    sizes: list[int],
    start: int,
    carried_in: int,
    ranks: list[tuple[int, dict]],
    log: ProblemLog,
) -> tuple[Window, ...]:
    """The windows with their kinds; reports windows that are neither full nor a tail."""
    steps, policy = sound.get("accumulation_steps"), sound.get("tail_policy")
    if steps is None or policy is None:
        return ()
    last = start + len(sizes) - 1
    ends = sound.get("epoch_ends", [last])
    if ends[-1] != last or any(a >= b for a, b in zip(ends, ends[1:])) or ends[0] < start:
        log.add("epoch-ends", "epoch_ends", f"the last window is {last}")
        ends = [last]
    if policy == "carry" and len(ends) > 1:
        log.add("epoch-ends", "epoch_ends", "a carried tail ends no window")
    may_be_short = set(ends)
    skipped = _skipped(ranks, len(sizes))
    windows, position = [], 0
    for offset, size in enumerate(sizes):
        index = start + offset
        short = size < steps
        if size > steps or (short and index not in may_be_short):
            log.add(
                "window-size", f"ranks[{ranks[0][0]}].windows", f"window {index} holds {size}, K is {steps}"
            )
        if short and policy == "carry":
            kind = CARRIED
        elif short and policy == "drop":
            kind = DROPPED
        else:
            kind = SKIPPED if offset in skipped else EXECUTED
        own = size - (carried_in if offset == 0 else 0)
        windows.append(Window(index, position, size, own, short, kind))
        position += size
    return tuple(windows)


def _skipped(ranks: list[tuple[int, dict]], count: int) -> set[int]:
    """Offsets of the windows whose step any rank skipped: by the nonfinite check, or by its step outcome."""
    found: set[int] = set()
    for _, rank in ranks:
        decisions = rank.get("decisions", {})
        if "nonfinite" in decisions:
            found.update(i for i, hit in enumerate(decisions["nonfinite"][:count]) if hit)
        elif "step" in decisions:
            found.update(i for i, word in enumerate(decisions["step"][:count]) if word == "skipped")
    return found


def _check_window_columns(
    sound: dict[str, Any], ranks: list[tuple[int, dict]], count: int, log: ProblemLog
) -> None:
    """Clocks, decisions and observations have one entry per window."""

    def same(column: Sequence[Any], path: str, code: str = "column-length") -> None:
        if len(column) != count:
            log.add(code, path, f"{len(column)} entries for {count} windows")

    for place, rank in ranks:
        for part in ("clocks", "decisions"):
            for name, column in rank.get(part, {}).items():
                same(column, f"ranks[{place}].{part}.{name}")
    observed = sound.get("observed", {})
    if "loss" in observed:
        same(observed["loss"], "observed.loss")
    columns = observed.get("gradients", [])
    for index, column in enumerate(columns):
        same(column, f"observed.gradients[{index}]", "gradient-dimension")
    dimension = len(ranks[0][1].get("gradient_numerators", ()))
    if columns and len(columns) != dimension:
        log.add(
            "gradient-dimension",
            "observed.gradients",
            f"{len(columns)} components, the ranks have {dimension}",
        )


def _check_arithmetic_ground(
    ranks: list[tuple[int, dict]],
    continues: dict[str, Any] | None,
    windows: tuple[Window, ...],
    log: ProblemLog,
) -> None:
    """Every divided window has targets, counts stay safe, nothing hides behind an empty microbatch."""
    carried = windows[0].size - windows[0].own
    pending = {r["rank"]: r for r in continues["pending"]["ranks"]} if continues else {}
    totals = [0] * len(windows)
    for place, rank in ranks:
        valid = rank["valid_targets"]
        columns = [("loss_numerators", rank["loss_numerators"])] + [
            (f"gradient_numerators[{i}]", column)
            for i, column in enumerate(rank.get("gradient_numerators", ()))
        ]
        if 0 in valid:
            empty = [i for i, n in enumerate(valid) if n == 0]
            for name, column in columns:
                for i in empty:
                    if column[i] is not None and to_decimal(column[i]) != 0:
                        log.add("numerator-without-targets", f"ranks[{place}].{name}[{i}]")
        nonfinite = rank.get("decisions", {}).get("nonfinite", ())
        for name, column in columns[1:]:
            if None in column:
                for offset, window in enumerate(windows):
                    begin = max(window.start - carried, 0)
                    part = column[begin : window.start - carried + window.size]
                    if None in part and not (offset < len(nonfinite) and nonfinite[offset]):
                        log.add("gradient-missing", f"ranks[{place}].{name}[{begin + part.index(None)}]")
        for offset, window in enumerate(windows):
            begin = max(window.start - carried, 0)
            totals[offset] += sum(valid[begin : window.start - carried + window.size])
        if carried:
            totals[0] += sum(pending[rank["rank"]]["valid_targets"])
    for window, total in zip(windows, totals):
        if total == 0 and window.kind != CARRIED:
            log.add("window-without-targets", f"ranks[{ranks[0][0]}].windows", f"window {window.index}")
    if sum(totals) > MAX_INTEGER:
        log.add("count-unsafe", "ranks", "the sum of all valid targets")


def _check_carry(sound: dict[str, Any], windows: tuple[Window, ...], log: ProblemLog) -> None:
    """A carried tail can be resumed only with the random state at its boundary."""
    if windows[-1].kind == CARRIED:
        state = sound.get("random_state")
        if state is not None and state["policy"] != "deterministic" and state["boundary_sha256"] is None:
            log.add("carry-without-state", "random_state.boundary_sha256")


def _check_plan(sound: dict[str, Any], log: ProblemLog) -> None:
    """A plan hash that was fixed before the run is the hash of the plan that these settings give."""
    fixed = sound.get("plan_sha256")
    if fixed is None or not all(key in sound for key in SETTINGS):
        return
    if fixed != domain_hash("plan", canonical_bytes(make_plan(sound))):
        log.add("plan-mismatch", "plan_sha256")


def _manifest(
    sound: dict[str, Any],
    continues: dict[str, Any] | None,
    carried_in: int,
    windows: tuple[Window, ...],
) -> Manifest:
    """Assemble normal form and rows of a document without problems."""
    document = {
        key: normal_form(MANIFEST.fields[key].shape, value)
        for key, value in sound.items()
        if key not in ("ranks", "continues")
    }
    first_own = continues["before"]["backward"] if continues else 0
    pending: dict[int, dict] = {}
    if continues:
        made = []
        for rank in continues["pending"]["ranks"]:
            row = normal_form(PENDING_RANK, rank)
            row["microbatch_ids"] = dict(rank["microbatch_ids"])
            made.append(row)
            pending[row["rank"]] = row
        document["continues"] = {
            "receipt_sha256": continues["receipt_sha256"],
            "pending": {"window": continues["pending"]["window"], "ranks": made},
            "before": dict(continues["before"]),
        }
    ranks, documents = [], []
    for rank in sorted(sound["ranks"], key=lambda rank: rank["rank"]):
        row = normal_form(RANK, rank)
        row["microbatch_ids"] = {"first": first_own, "count": len(row["windows"])}
        documents.append(row)
        ranks.append(_rows(row, pending.get(row["rank"]), first_own - carried_in))
    document["ranks"] = documents
    return Manifest(document, tuple(ranks), windows)


def _rows(row: dict[str, Any], pending: dict[str, Any] | None, first_id: int) -> Rows:
    """The columns of one rank, carried rows first."""

    def column(name: str, inner: str = "") -> Any:
        own = row.get(name)
        if own is not None and inner:
            own = own[inner]
        if own is None or pending is None:
            return own
        before = pending.get(name)
        if before is None:
            return None  # not recorded before the boundary: no statement about the whole window
        return (before[inner] if inner else before) + own

    gradients = row.get("gradient_numerators", [])
    if pending is not None:
        gradients = [a + b for a, b in zip(pending.get("gradient_numerators", []), gradients)]
    decisions = row.get("decisions", {})
    return Rows(
        rank=row["rank"],
        first_id=first_id,
        valid_targets=column("valid_targets"),
        loss=column("loss_numerators"),
        gradients=gradients,
        weights=column("weights"),
        sync_forward=column("sync", "forward"),
        sync_backward=column("sync", "backward"),
        loss_scales=column("loss_scales"),
        clocks=row.get("clocks", {}),
        nonfinite=decisions.get("nonfinite"),
        step=decisions.get("step"),
        clip_norms=decisions.get("clip_norms"),
    )
