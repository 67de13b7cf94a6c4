"""From records to the contract's trace: microbatches, epochs, loops and windows out of what the child saw.

The trace is the one that the first witness makes, so the same clauses judge it. A microbatch is an iteration of the
loop that encloses the backward, or one backward where a framework hides the loop. Ranks are laid over each other
when they did the same things in the same order; where they did not, that is a finding of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from accumlint.contract.events import Event, Kind, Part, Subject, Trace
from accumlint.contract.quantity import Quantity
from accumlint.contract.windows import Ledger, ledgers
from accumlint.probe.exact import COARSEST, snapped, tolerance
from accumlint.probe.places import file_map
from accumlint.probe.records import Recording

# numbers of subjects: optimizers count from 0, schedulers and the scaler stand apart from them
SCHEDULERS, SCALER = 10_000, 20_000
BASIS = "valid"
DRIFT = 1e-5  # an honest sum in float32 stays below; a factor beyond it was applied by somebody

Place = tuple[str, int]
Slot = tuple[str, str]


class Sites:
    """Numbers for places, and back."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self._numbers: dict[Place, int] = {}

    def number(self, path: str, line: int) -> int:
        place = (path, line)
        if place not in self._numbers:
            self._numbers[place] = len(self.places)
            self.places.append(place)
        return self._numbers[place]

    def place(self, site: int) -> Place | None:
        return self.places[site] if 0 <= site < len(self.places) else None


@dataclass(frozen=True)
class Divergence:
    """Where two ranks first did different things."""

    rank: int
    window: int
    ours: str
    theirs: str
    place: Place | None
    other_place: Place | None


@dataclass
class Assembled:
    """A recorded run as a trace, with what the judgements need beside it.

    ``steps``: per rank the step records, in the order of the trace's STEP events; ``backwards`` likewise. ``slots``:
    the loss terms of the script, the main one first. ``factors``: what auxiliary terms are multiplied with.
    """

    trace: Trace
    sites: Sites
    steps: list[list[Mapping[str, Any]]]
    backwards: list[list[Mapping[str, Any]]]
    slots: list[Slot]
    divergence: Divergence | None
    notes: list[str] = field(default_factory=list)
    reached: set[Place] = field(default_factory=set)
    coarse: bool = False
    data: list[list[list[list[int]]]] = field(default_factory=list)  # per rank and fetched batch: counts of integer tensors
    alike: dict[Slot, Slot] = field(default_factory=dict)  # a term that is written twice -> the place that stands for both

    def slot(self, row: Mapping[str, Any]) -> Slot:
        """Which loss term of the script a row belongs to."""
        own = slot_of(row)
        return self.alike.get(own, own)


# ---- one rank: records to events ----------------------------------------------------------------------------------


@dataclass
class _Loop:
    """``place``: the loop whose iterations are microbatches; ``twins``: others that do its work at other times (a flush)."""

    place: Place | None
    role: str
    twins: frozenset[Place] = frozenset()

    def position(self, loops: Sequence[tuple[Place, str | None]]) -> int | None:
        return next((i for i, (place, _) in enumerate(loops) if place == self.place or place in self.twins), None)


def _loops_of(record: Mapping[str, Any]) -> list[tuple[Place, str | None]]:
    return [((path, line), key) for path, _, keys in record.get("f") or () for line, key in keys]


def _micro_loop(records: Sequence[Mapping[str, Any]]) -> _Loop:
    """The loop whose iterations are microbatches: the innermost one around most backwards."""
    inner = Counter(loops[-1][0] if (loops := _loops_of(r)) else None for r in records if r["k"] == "backward")
    if not inner:
        return _Loop(None, "micro")
    place = inner.most_common(1)[0][0]
    if place is None:
        return _Loop(None, "micro")
    steps = [r for r in records if r["k"] == "step"]
    inside = any(place in [p for p, _ in _loops_of(r)] for r in steps)
    # a loop over a list of batches may be written twice; one around the other is none of its kind
    around = {p for r in records if r["k"] == "backward" for ps in [[p for p, _ in _loops_of(r)]] if place in ps for p in ps}
    twins = {ps[-1] for r in records if r["k"] == "backward" for ps in [[p for p, _ in _loops_of(r)]] if ps and not around & {ps[-1]}}
    return _Loop(place, "micro" if inside or not steps else "window", frozenset(twins))


class _Walk:
    """One pass over the records of a rank."""

    def __init__(self, recording: Recording, sites: Sites) -> None:
        self.records = [r for r in recording.records if r["k"] not in ("run", "problem", "replay", "grad", "window")]
        self.ending = recording.ending
        self.sites = sites
        self.loop = _micro_loop(self.records)
        self.events: list[Event] = []
        self.steps: list[Mapping[str, Any]] = []
        self.backwards: list[Mapping[str, Any]] = []
        self.reached: set[Place] = set()
        self.subjects: dict[int, Subject] = {}
        self.microbatch = -1
        self.epoch = -1
        self.open = False
        self.key: Any = None
        self.seen_backwards: set[Any] = set()
        self.fetch_pending = False
        self.ended_loader = False
        self.fetched = 0
        self.done_in_epoch = 0
        self.whole_after: int | None = None
        self.loader = self._training_loader()
        self.data: list[list[list[int]]] = []
        self.iterator: int | None = None
        self.of_iterator = 0
        self.previous: Mapping[str, Any] | None = None

    def _training_loader(self) -> int | None:
        last: int | None = None
        votes: Counter[int] = Counter()
        for record in self.records:
            if record["k"] == "data" and not record["end"]:
                last = record["loader"]
            elif record["k"] == "backward" and last is not None:
                votes[last] += 1
        return votes.most_common(1)[0][0] if votes else None

    def run(self) -> None:
        for record in self.records:
            kind = record["k"]
            if kind == "data":
                self._data(record)
                continue
            if kind == "end":
                continue
            self._mark_reached(record)
            self._advance(record)
            made = self._event(record)
            if made is not None:
                self.events.append(made)
            self.previous = record
        if self.open and self.ending != "updates":
            self._close(True)

    # ---- loops and microbatches

    def _data(self, record: Mapping[str, Any]) -> None:
        if record["loader"] != self.loader:
            return
        if not record["end"]:
            self.data.append(record.get("counts") or [])
            iterator = record.get("iterator")
            if iterator != self.iterator:
                # a library that knows the length of its loader begins anew without asking for the end; a script that makes
                # an iterator for each batch has no epochs
                if self.open and self.iterator is not None and self.of_iterator > 1 and self.done_in_epoch >= self.of_iterator:
                    self._close(True)
                self.iterator, self.of_iterator = iterator, 0
            self.of_iterator += 1
        if record["end"]:
            self.ended_loader = True
            self.whole_after = self.fetched
            self.fetched = 0
            return
        if self.ended_loader and self.open and self.done_in_epoch >= (self.whole_after or 0):
            self._close(True)
        self.ended_loader = False
        self.fetched += 1
        self.fetch_pending = True

    def _advance(self, record: Mapping[str, Any]) -> None:
        """Notice that an iteration, or the loop itself, ended before this record."""
        loops = _loops_of(record)
        position = self.loop.position(loops)
        inside = position is not None or self.loop.place is None
        if self.open and not inside:
            self._close(None)
        if not inside:
            return
        key = tuple(k for _, k in loops[: position + 1]) if position is not None else ()
        outer, own = key[:-1], key[-1] if key else None
        fresh = False
        if self.open and position is not None and self.key is not None and self.key[:-1] != outer:
            self._close(None)
        signature = (tuple((p, line) for p, line, _ in record.get("f") or ()), tuple(sorted(record.get("reached") or ())))
        if not self.open or own is not None and own != self.key[-1] or own is None and self.fetch_pending and self.loop.place is not None and record["k"] in ("backward", "clear") and self.seen_backwards:
            fresh = True
        elif record["k"] == "backward" and signature in self.seen_backwards:
            fresh = True  # the same line again: another iteration whatever the names say
        if fresh:
            if not self.open:
                self._open(record)
            self.microbatch += 1
            self.seen_backwards = set()
            self.fetch_pending = False
            self._add(Kind.MICROBATCH, self._loop_site(record), record)
        self.key = key if key else (None,)
        if record["k"] == "backward":
            self.seen_backwards.add(signature)
            self.done_in_epoch += 1

    def _loop_site(self, record: Mapping[str, Any]) -> int:
        if self.loop.place is not None:
            return self.sites.number(*self.loop.place)
        return self._site(record)

    def _open(self, record: Mapping[str, Any]) -> None:
        self.epoch += 1
        self.done_in_epoch = 0
        site = self._loop_site(record)
        self._add(Kind.EPOCH, site, record)
        self._add(Kind.LOOP, site, record, phase="enter", role=self.loop.role)
        self.open = True

    def _close(self, whole: bool | None) -> None:
        if whole is None:
            whole = self.ended_loader or self._runs_to_its_end()
        site = self.sites.number(*self.loop.place) if self.loop.place is not None else (self.events[-1].site if self.events else -1)
        self.events.append(Event(
            Kind.LOOP, site, max(self.microbatch, 0), max(self.epoch, 0), -1, (), (), (),
            {"phase": "exit", "role": self.loop.role, "whole": bool(whole), "infinite": False, "broke": not whole, "ended": False, "known_length": True},
        ))  # fmt: skip
        self.open = False
        self.key = None
        self.seen_backwards = set()
        self.ended_loader = False

    def _runs_to_its_end(self) -> bool:
        if self.loop.place is None:
            return True
        path, line = self.loop.place
        spot = file_map(path).at(line)
        own = next((loop for loop in spot.loops if loop.line == line), None)
        return own is not None and own.is_for and not own.breaks

    # ---- events

    def _mark_reached(self, record: Mapping[str, Any]) -> None:
        for path, line, _ in record.get("f") or ():
            self.reached.add((path, line))
            spot = file_map(path).at(line)
            self.reached.add((path, spot.statement))
            self.reached.update((path, gate) for gate in spot.gates)
            self.reached.update((path, loop.line) for loop in spot.loops)

    def _site(self, record: Mapping[str, Any]) -> int:
        frames = record.get("f") or ()
        return self.sites.number(frames[-1][0], frames[-1][1]) if frames else -1

    def _add(self, kind: Kind, site: int, record: Mapping[str, Any], subject: int = -1, **details: Any) -> Event:
        event = self._make(kind, site, record, subject, details)
        self.events.append(event)
        return event

    def _make(self, kind: Kind, site: int, record: Mapping[str, Any], subject: int, details: dict[str, Any]) -> Event:
        gates: list[int] = []
        loops: list[int] = []
        stack: list[int] = []
        for path, line, _ in record.get("f") or ():
            spot = file_map(path).at(line)
            gates += [self.sites.number(path, gate) for gate in spot.gates]
            loops += [self.sites.number(path, loop.line) for loop in spot.loops]
            stack.append(self.sites.number(path, line))
        return Event(kind, site, max(self.microbatch, 0), max(self.epoch, 0), subject, tuple(gates), tuple(loops), tuple(stack[:-1]), details)

    def _event(self, record: Mapping[str, Any]) -> Event | None:
        maker = getattr(self, f"_on_{record['k']}", None)
        return maker(record) if maker is not None else None

    def _on_backward(self, record: Mapping[str, Any]) -> Event:
        reached = record.get("reached")
        self.backwards.append(record)
        return self._make(Kind.BACKWARD, self._site(record), record, -1, {
            "parts": [], "models": frozenset(reached) if reached else None, "scaled": record["scaled"], "forward_sync": record.get("forward_sync"),
            "backward_sync": record.get("backward_sync"), "parallel": record.get("parallel") or "", "averages": bool(record.get("parallel")),
            "rank_gated": False, "owner": "" if record.get("direct") else "framework", "number": len(self.backwards) - 1,
        })  # fmt: skip

    def _on_step(self, record: Mapping[str, Any]) -> Event:
        number = record["optimizer"]
        self.steps.append(record)
        self.subjects.setdefault(number, Subject(number, "optimizer", record.get("name", "optimizer"), self._site(record), frozenset({number})))
        return self._make(Kind.STEP, self._site(record), record, number, {
            "models": frozenset({number}), "scaler": SCALER if record.get("scaler") else -1, "applied": record["applied"],
            "owner": "", "rank_gated": False, "number": len(self.steps) - 1,
        })  # fmt: skip

    def _on_clear(self, record: Mapping[str, Any]) -> Event:
        numbers = record.get("optimizers")
        subject = numbers[0] if record.get("by") == "optimizer" and numbers and len(numbers) == 1 else -1
        return self._make(Kind.CLEAR, self._site(record), record, subject, {"models": frozenset(numbers) if numbers else None, "by": record.get("by")})

    def _on_unscale(self, record: Mapping[str, Any]) -> Event:
        return self._make(Kind.UNSCALE, self._site(record), record, SCALER, {"apex": False})

    def _on_update(self, record: Mapping[str, Any]) -> Event:
        self.subjects.setdefault(SCALER, Subject(SCALER, "scaler", "GradScaler", self._site(record)))
        return self._make(Kind.SCALER_UPDATE, self._site(record), record, SCALER, {"before": record.get("before"), "after": record.get("after")})

    def _on_clip(self, record: Mapping[str, Any]) -> Event:
        owners = record.get("optimizers")
        limit = record.get("limit")
        return self._make(Kind.CLIP, self._site(record), record, -1, {
            "models": frozenset(owners) if owners else None, "measures_only": limit is None or math.isinf(limit), "through": "", "norm": record.get("norm"), "limit": limit,
        })  # fmt: skip

    def _on_schedule(self, record: Mapping[str, Any]) -> Event | None:
        subject = SCHEDULERS + record["scheduler"]
        before = self.previous
        if before is not None and before["k"] == "schedule" and before["scheduler"] == record["scheduler"] and before.get("f") == record.get("f") and self.events:
            # Accelerate moves a schedule once per rank at one place: one move of the user's
            self.events[-1].details["times"] += 1
            return None
        optimizer = record.get("optimizer")
        self.subjects.setdefault(subject, Subject(subject, "scheduler", record.get("name", ""), self._site(record), optimizer=-1 if optimizer is None else optimizer))
        return self._make(Kind.SCHEDULE, self._site(record), record, subject, {
            "absolute": record.get("absolute", False), "plateau": record.get("plateau", False), "optimizer": optimizer, "horizon": None, "times": 1,
        })  # fmt: skip

    def _on_reduce(self, record: Mapping[str, Any]) -> Event | None:
        if self.previous is not None and self.previous["k"] == "reduce" and self.previous.get("f") == record.get("f"):
            return None  # one call per parameter: one reduction
        return self._make(Kind.REDUCE, self._site(record), record, -1, {"average": "AVG" in str(record.get("op"))})

    def _on_save(self, record: Mapping[str, Any]) -> Event:
        saved = [r for r in self.records if r["k"] == "save"]
        keys = sorted({str(key) for r in saved for key in r.get("keys", ())})
        whole = bool(record.get("optimizer")) and "param_groups" not in record.get("keys", ())
        return self._make(Kind.CHECKPOINT, self._site(record), record, -1, {
            "resumable": whole, "holds": frozenset(), "lacks": (), "kinds": frozenset(), "keys": keys, "opaque": bool(record.get("opaque")),
        })  # fmt: skip


# ---- all ranks ----------------------------------------------------------------------------------------------------

_COMPARED = (Kind.BACKWARD, Kind.STEP, Kind.CLEAR, Kind.REDUCE)


def _divergence(walks: Sequence[_Walk], sites: Sites, ended: bool) -> Divergence | None:
    """The first window in which a rank did something else than rank 0."""
    first = [e for e in walks[0].events if e.kind in _COMPARED]
    for rank, walk in enumerate(walks[1:], 1):
        other = [e for e in walk.events if e.kind in _COMPARED]
        window = 0
        for ours, theirs in zip(first, other):
            if (ours.kind, ours.site, ours.microbatch, ours.epoch) != (theirs.kind, theirs.site, theirs.microbatch, theirs.epoch):
                return Divergence(rank, window, _said(ours), _said(theirs), sites.place(ours.site), sites.place(theirs.site))
            window += ours.kind is Kind.STEP
        if len(first) != len(other) and ended:
            longer = first if len(first) > len(other) else other
            extra = longer[min(len(first), len(other))]
            nothing = "nothing more"
            ours, theirs = (_said(extra), nothing) if longer is first else (nothing, _said(extra))
            return Divergence(rank, window, ours, theirs, sites.place(extra.site), None)
    return None


def _said(event: Event) -> str:
    return f"a {event.kind.value} (microbatch {event.microbatch}, epoch {event.epoch})"


def assemble(recordings: Sequence[Recording], window: int | None = None) -> Assembled | None:
    """The trace of a run; ``window`` is the configured K where it is known. None without an optimizer step or backward."""
    if not recordings or not recordings[0].of("backward"):
        return None
    if window is None:
        window = next((r["value"] for r in recordings[0].records if r["k"] == "window"), None)
    sites = Sites()
    walks = [_Walk(recording, sites) for recording in recordings]
    for walk in walks:
        walk.run()
    complete = all(r.ending in ("finished", "updates") for r in recordings)
    world = max(r.world for r in recordings)
    notes: list[str] = []
    divergence = _divergence(walks, sites, complete and all(r.ending == "finished" for r in recordings)) if len(walks) > 1 else None
    if world > len(walks):
        notes.append(f"{world} ranks ran, ledgers of {len(walks)} are here")
    together = walks if divergence is None and len(walks) == world else walks[:1]
    shortest = min(len(w.backwards) for w in together)
    events = list(together[0].events)
    if any(len(w.backwards) != shortest for w in together):
        events = _cut(events, shortest)
    alike = _alike([r for w in together for r in w.backwards])
    slots = _slots([r for w in together for r in w.backwards], alike)
    ranks = len(together)
    counts: dict[int, tuple] = {}
    trace = Trace(
        events, dict(together[0].subjects), window or 1, "measured", 0, counts, ranks, world > 1,
        traits=frozenset({"no_sync"} if any(b.get("forward_sync") is False for w in walks for b in w.backwards) else ()),
    )  # fmt: skip
    made = Assembled(trace, sites, [w.steps for w in together], [w.backwards for w in together], slots, divergence, notes, set().union(*(w.reached for w in walks)), alike=alike)
    made.data = [w.data for w in together]
    if ranks < world:
        notes.append("ranks did different things: weights over ranks cannot be added up")
    _length(trace)
    held = ledgers(trace)
    usual = max((ledger.usual for ledger in held), default=1)
    trace.window = window or max(usual, 1)
    trace.window_text = str(trace.window) if window or usual > 1 else ""
    _rescales(made)
    _by_hand(made)
    if slots:
        weigh(made, slots[0])
    return made


def _cut(events: list[Event], backwards: int) -> list[Event]:
    """The events up to the last backward that every rank has made."""
    out, seen = [], 0
    for event in events:
        if event.kind is Kind.BACKWARD:
            seen += 1
            if seen > backwards:
                break
        out.append(event)
    return out


def _length(trace: Trace) -> None:
    per_epoch = Counter(e.epoch for e in trace.events if e.kind is Kind.MICROBATCH)
    trace.length = max(per_epoch.values(), default=0)


# ---- weights ------------------------------------------------------------------------------------------------------


def slot_of(row: Mapping[str, Any]) -> Slot:
    """What tells one loss term of a script from another: its kind and the place of its call."""
    frames = row.get("f") or ()
    return (str(row["kind"]), f"{frames[-1][0]}:{frames[-1][1]}" if frames else "")


def _alike(backwards: Sequence[Mapping[str, Any]]) -> dict[Slot, Slot]:
    """Places of one kind of loss that take each other's turn: the arms of ``if last: … else: …``, a flush behind the loop.

    They never meet in one backward and reach the same optimizers; the place that most backwards have stands for all.
    """
    votes: Counter[Slot] = Counter()
    reached: dict[Slot, set[Any]] = {}
    together: set[frozenset[Slot]] = set()
    for record in backwards:
        own = {slot_of(row) for row in record["terms"]}
        votes.update(own)
        together |= {frozenset((one, other)) for one in own for other in own if one != other}
        for slot in own:
            reached.setdefault(slot, set()).add(tuple(record.get("reached") or ()))
    out: dict[Slot, Slot] = {}
    heads: list[Slot] = []
    for slot in sorted(votes, key=lambda s: (-votes[s], s)):
        head = next((h for h in heads if slot[1] and h[0] == slot[0] and h[1] and reached[h] == reached[slot] and frozenset((h, slot)) not in together), None)
        if head is None:
            heads.append(slot)
        else:
            out[slot] = head
            together |= {frozenset((head, *(pair - {slot}))) for pair in together if slot in pair}
    return out


def _slots(backwards: Sequence[Mapping[str, Any]], alike: Mapping[Slot, Slot]) -> list[Slot]:
    """The loss terms, the one that most backwards have first; among equals token losses, then the larger."""
    votes: Counter[Slot] = Counter()
    size: Counter[Slot] = Counter()
    token: set[Slot] = set()
    for record in backwards:
        rows = [(alike.get(slot_of(row), slot_of(row)), row) for row in record["terms"]]
        votes.update({slot for slot, _ in rows})
        for slot, row in rows:
            size[slot] += row["n"]
            if row.get("unit") == "token":
                token.add(slot)
    opaque = {slot for slot in votes if slot[0] == "opaque"}
    return sorted(votes, key=lambda s: (s in opaque, -votes[s], s not in token, -size[s], s))


def weigh(made: Assembled, slot: Slot) -> None:
    """Fill in the parts of every backward for one loss term, as exact numbers."""
    trace = made.trace
    trace.counts.clear()
    numbers = range(len(made.backwards[0]))
    rows = {n: [[row for row in rank[n]["terms"] if made.slot(row) == slot] for rank in made.backwards] for n in numbers if all(n < len(rank) for rank in made.backwards)}
    sizes = {n: [sum((Fraction(row["mass"]) for row in own), Fraction(0)) for own in per_rank] for n, per_rank in rows.items()}
    varies = len({size for per_rank in sizes.values() for size in per_rank}) > 1
    events = {e.details["number"]: e for e in trace.events if e.kind is Kind.BACKWARD}
    for event in events.values():
        event.details["parts"] = []
    identity = 0
    raw: dict[int, list[tuple[int, list[Mapping[str, Any]]]]] = {}
    for number, per_rank in rows.items():
        terms = min((len(own) for own in per_rank), default=0)
        raw[number] = []
        for index in range(terms):
            own = [rank[index] for rank in per_rank]
            trace.counts[(identity, BASIS)] = tuple(Fraction(row["mass"]) for row in own)  # type: ignore[index]
            raw[number].append((identity, own))
            identity += 1
        if not terms:
            # the backward is there, its loss is not this term
            raw[number] = []
    known: list[tuple[float, Fraction]] = []
    for ledger in ledgers(trace):
        for held in [*ledger.windows, ledger.pending]:
            inside = [c.event for c in held.contributions if c.event.details["number"] in raw]
            _weigh_window(made, inside, raw, known, varies, bool(held.of(Kind.REDUCE)))
    for number, event in events.items():
        if number not in raw:
            event.details["parts"] = [Part(identity, BASIS, None, reason="another rank has no such backward")]


def _weigh_window(made: Assembled, inside: list[Event], raw: dict, known: list[tuple[float, Fraction]], varies: bool, by_hand: bool) -> None:
    trace = made.trace
    ranks = trace.ranks
    totals = [Fraction(0)] * ranks
    for event in inside:
        for identity, _ in raw[event.details["number"]]:
            for rank, count in enumerate(trace.counts[(identity, BASIS)]):  # type: ignore[index]
                totals[rank] += count
    everyone = sum(totals, Fraction(0))
    size = len({e.microbatch for e in inside}) or 1
    for event in inside:
        parts = []
        parallel = bool(event.details["parallel"])
        for identity, own in raw[event.details["number"]]:
            reason = _why_unknown(own) or ("the ledgers of the ranks cannot be laid over each other" if trace.distributed and ranks == 1 else "")
            if reason:
                made.coarse |= "type" in reason
                parts.append(Part(identity, BASIS, None, reason=reason, varies=varies))
                continue
            values, tags = [], set()
            for rank, row in enumerate(own):
                whole = everyone if parallel or by_hand else totals[rank]
                if whole == 0 or row["w"] == 0:
                    values.append(Fraction(0))
                    continue
                ratio = snapped_ratio(row, whole, totals[rank], size, trace.window, ranks, known)
                values.append(ratio / whole)
                tags |= _tags(ratio, row, size, trace.window, ranks, parallel, whole)
            parts.append(Part(identity, BASIS, Quantity(tuple(values), (), frozenset(tags)), reduced_at=event.site, varies=varies))
        event.details["parts"] = parts


def _why_unknown(own: Sequence[Mapping[str, Any]]) -> str:
    for row in own:
        if row["w"] is None:
            return row.get("reason") or "the weight of the loss could not be read"
        if row["eps"] and tolerance(row["eps"]) > COARSEST * 100:
            return f"the loss is computed in a type with roundoff {row['eps']:.1g}: too coarse to tell the formulas apart"
        if not math.isfinite(row["w"]):
            return "the gradient of the loss is not finite"
        if row["spread"] > max(tolerance(row["eps"]), 1e-5):
            return "targets of one microbatch weigh differently: a weighted loss"
    return ""


def snapped_ratio(row: Mapping[str, Any], whole: Fraction, local: Fraction, size: int, k: int, ranks: int, known: list[tuple[float, Fraction]]) -> Fraction:
    """``weight × N`` as the exact number that it stands for."""
    mass = Fraction(row["mass"])
    value = float(whole) * row["w"]
    relative = tolerance(row["eps"])
    candidates: list[Fraction] = [Fraction(1)]
    for windows in dict.fromkeys((size, k)):
        candidates += [Fraction(windows), Fraction(1, windows), whole / windows]
        if mass:
            candidates += [whole / (mass * windows), whole / (mass * windows * windows)]
    if mass:
        candidates.append(whole / mass)
    candidates += [whole, Fraction(ranks), Fraction(1, ranks)]
    if local:
        candidates += [whole / local, whole / local / ranks]
    candidates += [c * ranks for c in list(candidates)] if ranks > 1 else []
    for seen, exact in known:
        if abs(seen - value) <= relative * abs(value):
            candidates.append(exact)
    ratio = snapped(value, candidates, relative)
    known.append((value, ratio))
    return ratio


def _tags(ratio: Fraction, row: Mapping[str, Any], size: int, k: int, ranks: int, parallel: bool, whole: Fraction) -> set[str]:
    """Where a factor comes from, told by its value: the words that the clauses ask for."""
    tags: set[str] = set()
    mass = Fraction(row["mass"])
    if k > 1 and mass and ratio / whole * mass * k in (1, Fraction(1, k)):
        tags.add("K")
    if ranks > 1 and parallel and ratio == 1:
        tags |= {"reduced", "count"}  # divided by the targets of all ranks, and averaged as well
    if ranks > 1 and not parallel and ratio == ranks:
        tags.add("world")
    return tags


# ---- factors applied to gradients afterwards ----------------------------------------------------------------------


def _rescales(made: Assembled) -> None:
    """Gradients that somebody multiplied between the last backward and the step, as events before the step.

    A factor that is a simple fraction is a division by a count; any other is a clip written by hand.
    """
    events: list[Event] = []
    clipped = {id(e) for e in made.trace.events if e.kind is Kind.CLIP}
    for event in made.trace.events:
        if event.kind is Kind.STEP and made.trace.ranks > 1:
            factor = _factor_over_ranks(made, event.details["number"])
            if factor is not None and event.details["models"] is not None:
                events.append(Event(Kind.RESCALE, event.site, event.microbatch, event.epoch, -1, event.gates, event.loops, event.stack,
                                    {"factor": Quantity((factor,) * made.trace.ranks, (), frozenset({"count"})), "models": event.details["models"]}))  # fmt: skip
        elif event.kind is Kind.STEP and not made.trace.distributed:
            record = made.steps[0][event.details["number"]]
            balance = record.get("integrity")
            if balance and balance["finite"] and balance["norm"] and balance["residual"] < DRIFT and abs(balance["factor"] - 1) > DRIFT and balance["factor"] > 0 and not record.get("scaled"):
                simple = snapped(balance["factor"], (), 1e-6)
                if simple.numerator == 1 or simple.denominator == 1:
                    events.append(Event(Kind.RESCALE, event.site, event.microbatch, event.epoch, -1, event.gates, event.loops, event.stack,
                                        {"factor": Quantity((simple,), (), frozenset({"count"})), "models": event.details["models"]}))  # fmt: skip
                elif balance["factor"] < 1 and not clipped:
                    events.append(Event(Kind.CLIP, event.site, event.microbatch, event.epoch, -1, event.gates, event.loops, event.stack,
                                        {"models": event.details["models"], "measures_only": False, "through": "hand", "norm": None, "limit": None}))  # fmt: skip
        events.append(event)
    made.trace.events = events


def _factor_over_ranks(made: Assembled, number: int) -> Fraction | None:
    """By what the averaged gradients of a step were multiplied on every rank, where it is a ratio of small numbers."""
    records = [steps[number] for steps in made.steps if number < len(steps)]
    averaged = all(b.get("parallel") == "ddp" for rank in made.backwards for b in rank) and not any(e.kind is Kind.REDUCE for e in made.trace.events)
    if len(made.trace.subjects) and sum(s.kind == "optimizer" for s in made.trace.subjects.values()) != 1 or not averaged or len(records) < made.trace.ranks:
        return None
    if not all(r.get("gradient") and r.get("own_sum") and not r.get("scaled") for r in records):
        return None
    average = [math.fsum(column) / len(records) for column in zip(*(r["own_sum"] for r in records))]
    square = math.fsum(v * v for v in average)
    if not square:
        return None
    factors = [math.fsum(g * v for g, v in zip(r["gradient"], average)) / square for r in records]
    away = max(math.fsum((g - f * v) ** 2 for g, v in zip(r["gradient"], average)) for r, f in zip(records, factors))
    if away > DRIFT**2 * square * factors[0] ** 2 or any(abs(f / factors[0] - 1) > DRIFT for f in factors) or factors[0] <= 0 or abs(factors[0] - 1) <= DRIFT:
        return None
    # a count of targets, or that count over the number of ranks: anything else is a clip, or nothing to be named
    for candidate in (factors[0], factors[0] / len(records)):
        simple = snapped(candidate, (), 1e-6)
        if simple.numerator == 1 or simple.denominator == 1:
            return simple * (1 if candidate is factors[0] else len(records))
    return None


def _by_hand(made: Assembled) -> None:
    """Whether a reduction that the script wrote itself averages: told by what it left, not by how it was called."""
    reduces = [e for e in made.trace.events if e.kind is Kind.REDUCE]
    if not reduces or made.trace.ranks < 2:
        return
    for number in range(min(len(steps) for steps in made.steps)):
        records = [steps[number] for steps in made.steps]
        if not all(r.get("gradient") and r.get("own_sum") for r in records):
            continue
        everyone = [math.fsum(column) for column in zip(*(r["own_sum"] for r in records))]
        square = math.fsum(v * v for v in everyone)
        if not square:
            continue
        factor = math.fsum(g * v for g, v in zip(records[0]["gradient"], everyone)) / square
        average = abs(factor * made.trace.ranks - 1) < 1e-3
        for event in reduces:
            event.details["average"] = average
        return


def all_ledgers(made: Assembled) -> list[Ledger]:
    return ledgers(made.trace)
