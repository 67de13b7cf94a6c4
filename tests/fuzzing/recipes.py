"""What a generated loop is made of: one choice for each aspect, the plainest option first.

The first option of every field is what a failing loop shrinks to, whoever shrinks it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

TOKENS = ("tokens", "causal", "masked")  # tasks whose microbatches hold different numbers of valid targets
AHEAD = ("islice", "buffer", "chunks", "listed")  # windows whose batches are known before their first backward
DRIVEN = ("automatic", "manual", "compute_loss")  # loops that a framework drives: the script holds what happens in a microbatch
OWN = ("modulo", "one based", "nested", "listed", "islice", "buffer")  # windows that scripts write by hand around a framework
COUNTED = ("modulo", "one based", "skip", "while")  # windows that an index of the epoch counts

FIELDS: dict[str, tuple[str, ...]] = {
    "framework": ("torch", "accelerate", "fabric", "lightning", "trainer"),
    "task": ("regression", "classification", "tokens", "causal", "masked"),
    "window": ("modulo", "one based", "skip", "while", "counter", "total", "nested", "listed", "islice", "buffer", "chunks", "stream", "accumulate", "automatic", "manual", "compute_loss"),
    "tail": ("drop", "flush", "behind", "carry"),
    "norm": ("loss", "inline", "augmented", "reciprocal", "gradients", "share", "framework"),
    "scaffold": ("flat", "main", "function", "epoch", "class"),
    "k": ("constant", "argument", "parameter"),
    "gate": ("plain", "named", "not", "remainder"),
    "ddp": ("none", "context", "branch", "flag", "always"),
    "amp": ("no", "scaler"),
    "clip": ("no", "norm", "value"),
    "schedule": ("none", "step", "lambda", "cosine"),
    "clear": ("after", "none", "model", "begin", "first"),
    "loss": ("function", "module", "helper"),
    "update": ("inline", "helper"),
    "batch": ("pair", "dict"),
    "count": ("none", "updates", "limit"),
    "log": ("no", "loss", "updates"),
    "average": ("no", "hand", "class"),
    "checkpoint": ("no", "epoch", "updates"),
    "evaluate": ("no", "epoch", "updates"),
    "decoy": ("none", "probe", "critic", "warmup"),
}


@dataclass(frozen=True)
class Recipe:
    """One choice per field of ``FIELDS``, and ``names``: which of the spellings (0 is the plainest)."""

    framework: str = "torch"
    task: str = "regression"
    window: str = "modulo"
    tail: str = "drop"
    norm: str = "loss"
    scaffold: str = "flat"
    k: str = "constant"
    gate: str = "plain"
    ddp: str = "none"
    amp: str = "no"
    clip: str = "no"
    schedule: str = "none"
    clear: str = "after"
    loss: str = "function"
    update: str = "inline"
    batch: str = "pair"
    count: str = "none"
    log: str = "no"
    average: str = "no"
    checkpoint: str = "no"
    evaluate: str = "no"
    decoy: str = "none"
    names: int = 0

    @property
    def varies(self) -> bool:
        return self.task in TOKENS

    def __str__(self) -> str:
        plain = Recipe()
        told = [f"{f.name}={getattr(self, f.name)}" for f in fields(self) if getattr(self, f.name) != getattr(plain, f.name)]
        return ", ".join(told) or "plain"


def allowed(recipe: Recipe, field: str, option: str) -> bool:
    """Whether an option makes a correct loop with the choices of the fields before it."""
    r = recipe
    if r.framework == "lightning":
        return _allowed_in_lightning(r, field, option)
    if r.framework == "trainer":
        return option in _TRAINER.get(field, FIELDS[field][:1])
    if option in DRIVEN:
        return False
    if field == "window":
        if r.framework == "accelerate":
            return option in OWN or option == "accumulate" and not r.varies
        return option != "accumulate" and (r.framework == "torch" or option in OWN)
    if field == "tail":
        return option in {
            "modulo": ("drop", "flush", "behind"), "one based": ("drop", "flush", "behind"), "skip": ("drop", "flush"), "while": ("drop", "flush"),
            "counter": ("drop", "behind", "carry"), "total": ("carry",), "nested": ("drop",), "listed": ("drop",),
            "islice": ("flush", "drop"), "buffer": ("flush", "drop", "behind", "carry"), "chunks": ("flush", "drop"), "stream": ("carry",), "accumulate": ("flush", "carry"),
        }[r.window]  # fmt: skip
    if field == "norm":
        if r.window == "accumulate":
            return option == "loss" or option == "reciprocal" and r.tail == "flush"  # divided by the K of the framework, or freed of it where the window is short
        if option == "framework":
            return r.framework == "accelerate" and r.tail == "drop" and (r.window in AHEAD or not r.varies)
        if option == "share":
            return r.varies and r.window in AHEAD
        if option == "gradients":
            return True
        if r.varies:
            return r.window in AHEAD  # the window's count must be known before its first backward
        return r.tail != "behind" or r.window in COUNTED or r.window == "buffer"
    if field == "scaffold":
        if r.tail == "carry" and r.window in ("counter", "total", "buffer"):
            return option != "epoch"
        return option != "epoch" or r.window != "stream"
    if field == "k":
        return option != "parameter" or r.scaffold != "flat"
    if field == "gate":
        if option in ("not", "remainder"):
            return r.window in ("modulo", "one based") and r.tail != "flush"
        return option == "plain" or r.window in ("modulo", "one based", "counter", "total")
    if field == "ddp":
        if r.framework != "torch":
            # run in two ranks that the framework knows of
            return option == "always" or option in ("context", "branch") and r.window != "accumulate"
        if option in ("none", "always"):
            return True
        return not (r.window == "counter" and r.tail == "behind")  # which microbatch is the last one is known too late there
    if field == "amp":
        return option == "no" or r.framework == "torch"
    if field == "clear":
        if r.window == "accumulate":
            return option != "model"  # that is not gated
        if option == "begin":
            return r.window in ("modulo", "nested", "listed", "islice", "buffer", "chunks", "stream") and r.tail != "behind"
        return True
    if field == "batch":
        return option == "pair" or r.window not in ("chunks",)
    if field == "count":
        return option != "limit" or r.window in ("modulo", "one based", "nested", "stream", "accumulate") and r.scaffold != "epoch"
    if field == "log":
        return option != "updates" or r.count != "none"
    if field == "checkpoint":
        # what a carried window holds is lost on resume
        return option == "no" or (option != "updates" or r.count != "none") and r.tail != "carry"
    if field == "evaluate":
        return option == "no" or (option != "updates" or r.count != "none") and r.window != "stream"
    if field == "decoy":
        if r.framework != "torch" and option == "warmup":
            return False  # a prepared loader that is left halfway stays the active one
        return option != "critic" or r.window in ("modulo", "nested") and r.tail == "drop" and not r.varies and r.ddp == "none"
    return True


_LIGHTNING = {
    "framework": ("lightning",), "task": ("regression", "classification"), "window": ("automatic", "manual"), "tail": ("flush",), "scaffold": ("flat", "main"),
    "k": ("constant",), "clip": ("no", "norm", "value"), "schedule": ("none", "step", "lambda", "cosine"), "loss": ("function", "module", "helper"),
    "batch": ("pair", "dict"), "log": ("no", "loss"),
}  # fmt: skip


_TRAINER = {
    "framework": ("trainer",), "task": ("tokens", "causal"), "window": ("compute_loss",), "norm": ("loss", "augmented", "share", "framework"),
    "scaffold": ("flat", "main"), "batch": ("dict",),
}  # fmt: skip


def _allowed_in_lightning(recipe: Recipe, field: str, option: str) -> bool:
    if field == "norm":
        return option in ("loss", "reciprocal") if recipe.window == "automatic" else option in ("loss", "inline", "augmented", "reciprocal")
    if field == "clear":
        return option in ("after", "none") if recipe.window == "manual" else option == "after"
    return option in _LIGHTNING.get(field, FIELDS[field][:1])


def draw(pick: Callable[[str, list[str]], str], names: int, fixed: dict[str, str] | None = None) -> Recipe:
    """A correct recipe: ``pick(field, options)`` chooses among the allowed options of one field after the other."""
    recipe = Recipe(names=names)
    for field, options in FIELDS.items():
        open_options = [o for o in options if allowed(recipe, field, o)]
        wanted = (fixed or {}).get(field)
        choice = wanted if wanted in open_options else pick(field, open_options)
        recipe = replace(recipe, **{field: choice})
    return recipe


# how often the plainest option is taken although others are allowed: a script that has everything is rare
_PLAIN = {
    "ddp": 0.6, "amp": 0.65, "clip": 0.5, "schedule": 0.35, "average": 0.7, "checkpoint": 0.7, "evaluate": 0.7, "decoy": 0.8, "count": 0.5, "log": 0.4,
    "framework": 0.75,
}  # fmt: skip


def seeded(seed: int, **fixed: str) -> Recipe:
    """The recipe of a seed: the same on every machine and in every version of Python."""
    source = random.Random(f"accumulation loop {seed}")

    def pick(field: str, options: list[str]) -> str:
        if len(options) > 1 and source.random() < _PLAIN.get(field, 0.0):
            return options[0]
        if "accumulate" in options and source.random() < 0.6:
            return "accumulate"
        return source.choice(options)

    return draw(pick, source.randrange(1, 1000), fixed)


def valid(recipe: Recipe) -> bool:
    """Every choice is allowed after those before it."""
    seen = Recipe(names=recipe.names)
    for field in FIELDS:
        option = getattr(recipe, field)
        if not allowed(seen, field, option):
            return False
        seen = replace(seen, **{field: option})
    return True


def simpler(recipe: Recipe) -> Iterator[Recipe]:
    """Recipes with one choice (or, where the choices depend on each other, two) made plainer."""
    if recipe.names:
        yield replace(recipe, names=0)
    for field, options in FIELDS.items():
        for option in options[: options.index(getattr(recipe, field))]:
            made = replace(recipe, **{field: option})
            if valid(made):
                yield made
                continue
            for other, others in FIELDS.items():
                if other != field:
                    for instead in others:
                        both = replace(made, **{other: instead})
                        if instead != getattr(recipe, other) and valid(both):
                            yield both


def shrunk(recipe: Recipe, fails: Callable[[Recipe], bool], budget: int = 300) -> Recipe:
    """The plainest recipe that can be reached by plainer choices and still fails."""
    going = True
    while going and budget > 0:
        going = False
        for made in simpler(recipe):
            if _size(made) >= _size(recipe):
                continue
            budget -= 1
            if fails(made):
                recipe, going = made, True
                break
            if budget <= 0:
                break
    return recipe


def _size(recipe: Recipe) -> tuple[int, int]:
    ranks = [options.index(getattr(recipe, field)) for field, options in FIELDS.items()]
    return sum(1 for rank in ranks if rank) + (recipe.names != 0), sum(ranks)
