"""C4: one loss scale throughout the window; unscale once, clip once, after the last backward, before the step."""

from __future__ import annotations

from accumlint.contract.events import Event, Kind
from accumlint.contract.verdicts import Judgement, Violation
from accumlint.contract.windows import Ledger, Window


def judge(ledger: Ledger, judgement: Judgement) -> None:
    """Unscale and clip events of every window with more than one microbatch."""
    if ledger.trace.disturbed is not None:
        return
    windows = [w for w in ledger.windows if w.size > 1]
    if not windows:
        return
    judgement.applied |= {"ACC401", "ACC402", "ACC403", "ACC404"}
    for rule, find in (("ACC404", _unscale), ("ACC403", _clip_first), ("ACC401", _clip_inside), ("ACC402", _clip_scaled)):
        for window in windows:
            found = find(ledger, window)
            if found is not None:
                site, message = found
                judgement.violations.append(Violation(rule, site, message, {"windows": ledger.sizes}))
                break


def _real_clips(ledger: Ledger, window: Window) -> list[Event]:
    out = []
    for event in window.of(Kind.CLIP):
        models = event.details.get("models")
        if not event.details.get("measures_only") and (models is None or ledger.models is None or models & ledger.models):
            out.append(event)
    return out


def _position(window: Window, event: Event) -> int:
    return next(i for i, e in enumerate(window.events) if e is event)


def _backwards(window: Window) -> list[int]:
    return [i for i, e in enumerate(window.events) if e.kind is Kind.BACKWARD]


def _clip_inside(ledger: Ledger, window: Window) -> tuple[int, str] | None:
    """A clip with a further backward of another microbatch behind it."""
    if window.stale or window.erased:
        return None
    own = set(window.microbatches)
    for clip in _real_clips(ledger, window):
        at = _position(window, clip)
        before = {window.events[i].microbatch for i in _backwards(window) if i < at}
        after = {window.events[i].microbatch for i in _backwards(window) if i > at}
        if before and after - before and clip.microbatch in own:
            return _called_at(window, clip), (
                f"gradients are clipped after every microbatch: the partial sum of {len(before)} of {window.size} is cut, "
                "and the sum of cut pieces is not the cut sum"
            )
    return None


def _clip_first(ledger: Ledger, window: Window) -> tuple[int, str] | None:
    """A clip before the backward whose gradients it should bound."""
    clips = _real_clips(ledger, window)
    positions = _backwards(window)
    if not clips or not positions:
        return None
    own = set(window.microbatches)
    ends = [c for c in clips if _position(window, c) > positions[-1]]
    if ends:
        return None
    early = [c for c in clips if c.microbatch in own]
    if not early:
        idle = [c for c in clips if _position(window, c) < positions[0]]
        if idle and ledger.alone and window.index:
            return _called_at(window, idle[-1]), "gradients are clipped before the first backward of the window: all that it adds reaches the step unclipped"
        return None
    at = _position(window, early[-1])
    if all(at < i for i in positions) or window.events[positions[-1]].microbatch == early[-1].microbatch:
        return _called_at(window, early[-1]), "gradients are clipped before the last backward of the window: its contribution reaches the step unclipped"
    return None


def _clip_scaled(ledger: Ledger, window: Window) -> tuple[int, str] | None:
    """A clip of gradients that still carry the loss scale."""
    if not any(c.event.details.get("scaled") for c in window.fresh):
        return None
    for clip in _real_clips(ledger, window):
        if clip.details.get("through") in ("optimizer", "accelerator", "scaler", "framework", "scaled limit"):
            continue
        at = _position(window, clip)
        own = {id(c.event) for c in window.fresh}
        earlier = [i for i in _backwards(window) if i < at and id(window.events[i]) in own]
        if not earlier or not window.events[earlier[-1]].details.get("scaled"):
            continue
        if not any(e.kind is Kind.UNSCALE or _may_unscale(e) for e in window.events[earlier[-1] : at]):
            return _called_at(window, clip), "gradients are clipped while still multiplied by the loss scale: the threshold bites far too early"
    return None


def _called_at(window: Window, clip: Event) -> int:
    """The place that decides when a clip happens: the call beside the step or the backward, if a helper does the clipping."""
    beside = max(
        (_common(clip.stack, e.stack) for e in window.events if e.kind in (Kind.STEP, Kind.BACKWARD)),
        default=len(clip.stack),
    )
    # nothing in common: a framework calls the one and the other
    return clip.stack[beside] if 0 < beside < len(clip.stack) else clip.site


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def _may_unscale(event: Event) -> bool:
    """Gradients times something that nobody knows, such as the inverse of the scale; times 1/K is no unscaling."""
    if event.kind is not Kind.RESCALE:
        return False
    factor = event.details.get("factor")
    return factor is None or not factor.known or "K" not in factor.tags


def _unscale(ledger: Ledger, window: Window) -> tuple[int, str] | None:
    unscales = [e for e in window.of(Kind.UNSCALE) if not e.details.get("apex")]
    inside = [e for e in window.between_backwards(Kind.UNSCALE) if not e.details.get("apex") and e.microbatch in set(window.microbatches)]
    if inside and len(unscales) > 1:
        return inside[0].site, f"unscale_() is called {len(unscales)} times in a window: once per microbatch instead of once after the last backward"
    if inside:
        return inside[0].site, "unscale_() runs before the last backward of the window: scaled contributions are then added to unscaled ones"
    return None
