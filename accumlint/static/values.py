"""Abstract values of the simulation: what a name can stand for while a script is read.

Plain Python values (None, bool, int, Fraction, str, tuple, list, dict) stand for themselves.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from accumlint.contract.events import Part
from accumlint.contract.quantity import Quantity
from accumlint.static import syntax as ir

NOWHERE = -1
MISSING: Any = object()  # an attribute that is not there, told apart from one that is None


@dataclass(slots=True, eq=False, repr=False)
class Unknown:
    """A value that the script does not show, under the key by which it is remembered.

    ``batch``: the microbatch whose data decides it, -1 when none does. ``local``: it may differ between ranks.
    """

    key: str
    batch: int = -1
    local: bool = False
    tags: frozenset[str] = frozenset()

    @property
    def last(self) -> str:
        """The last name of the key: what a reader would call the thing."""
        return last_name(self.key)


def rank_number(key: str = "rank") -> Unknown:
    """The number of this process among those of a data-parallel run; 0 on the main one."""
    return Unknown(key, tags=frozenset({"rank"}))


def on_main_rank() -> Unknown:
    """Whether this process is the main one."""
    return Unknown("rank is 0", tags=frozenset({"rank"}))


@dataclass(slots=True, eq=False, repr=False)
class Test:
    """An undecided condition, with as much structure as decisions need to stay consistent.

    ``op``: not, and, or, none (is None), equal, atom, less (a counter against an unknown limit: the limit is
    taken to be far away), modulo (``counter % period == value`` with a period nobody knows).
    """

    op: str
    parts: tuple[Any, ...]
    key: str
    batch: int = -1
    local: bool = False
    tags: frozenset[str] = frozenset()


ONE = Quantity.of(1)


@dataclass(slots=True, eq=False, repr=False)
class Tensor:
    """Data, a mask, element-wise losses, a scalar loss or the output of something unseen.

    ``form``: data, mask, elements, scalar, output. ``scale``: the factor on elements and outputs.
    ``parts``: what a scalar loss sums. ``basis``/``varies``: which targets it runs over, see contract.events.Part.
    ``shifted``: the first position of every row was cut away. ``graph``: a backward through it reaches ``models``
    (None: unknown which). ``sync``: the sync state of the forward that made it.
    """

    form: str
    key: str
    batch: int = -1
    parts: tuple[Part, ...] = ()
    scale: Quantity | None = ONE
    basis: str = "fixed"
    varies: bool = False
    masked: bool = False
    shifted: bool = False
    models: frozenset[int] | None = frozenset()
    graph: bool = False
    sync: Any = None
    parallel: str = ""
    scaled: bool = False
    local: bool = True
    divisions: tuple[int, ...] = ()
    role: str = ""  # labels, mask, input ... as far as names tell
    count: Quantity | None = None  # for masks that were summed per row: the vector's own total
    mean_known: bool = False  # an output that is known to be a mean (the loss of a Hugging Face model)
    clamped: bool = False
    padded: int = -1  # the call of a model that is not shown, if its loss runs over targets that the script shows to be padded
    per_row: bool = False  # summed along the targets of each row: rows are what a mean of it runs over
    several: bool = False  # computed from the data of several microbatches at once
    cut: frozenset[int] = frozenset()  # models that it went through, and that no backward through it reaches any more
    leaf: bool = False  # data that asks for its own gradient


_everything = operator.attrgetter(*(each.name for each in fields(Tensor)))


def changed(tensor: Tensor, **changes: Any) -> Tensor:
    """A copy with some fields changed: what ``dataclasses.replace`` does, in a third of its time."""
    copy = Tensor(*_everything(tensor))
    for name, value in changes.items():
        setattr(copy, name, value)
    return copy


@dataclass(slots=True, eq=False, repr=False)
class Thing:
    """An object with a role in training: optimizer, scheduler, scaler, model, loader, loss module, context …"""

    kind: str
    name: str
    number: int
    site: int = NOWHERE
    attributes: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    models: frozenset[int] | None = None
    guessed: bool = False  # its kind rests on a name
    maybe_none: str = ""  # key of the condition under which it is None


@dataclass(slots=True, eq=False, repr=False)
class Instance:
    """An object of a class that the script defines."""

    cls: ir.Class
    number: int
    attributes: dict[str, Any] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    site: int = NOWHERE
    role: str = ""  # model, optimizer, …: what its bases say


@dataclass(slots=True, eq=False, repr=False)
class Closure:
    """A function of the script, with the frame that it closes over and the object it is bound to."""

    function: ir.Function
    frame: Any
    bound: Any = None


@dataclass(slots=True, eq=False, repr=False)
class ClassValue:
    cls: ir.Class
    frame: Any = None


@dataclass(slots=True, eq=False, repr=False)
class External:
    """Something imported from elsewhere, by its dotted origin."""

    origin: str

    @property
    def last(self) -> str:
        return last_name(self.origin)


@dataclass(slots=True, eq=False, repr=False)
class Imported:
    """What an import binds a name to until somebody uses it."""

    origin: str
    importer: ir.Module


@dataclass(slots=True, eq=False, repr=False)
class Method:
    """A method of an abstract value, not called yet."""

    receiver: Any
    name: str
    site: int


@dataclass(slots=True, eq=False, repr=False)
class Partial:
    """``functools.partial`` or anything else that calls ``target`` with arguments in front."""

    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True, eq=False, repr=False)
class Parameters:
    """An iterable of trained parameters of these models (None: unknown which)."""

    models: frozenset[int] | None


@dataclass(slots=True, eq=False, repr=False)
class Gradient:
    """``p.grad`` of some parameter of these models."""

    models: frozenset[int] | None


class Batches(list):  # type: ignore[type-arg]
    """``list(loader)``: all microbatches of an epoch, still known to be those of a loader."""


@dataclass(slots=True, eq=False, repr=False)
class Context:
    """A context manager. ``kind``: plain, no_sync, accumulate, stack, no_grad, generated, scale_loss, several."""

    kind: str
    data: Any = None
    site: int = NOWHERE


@dataclass(slots=True, eq=False, repr=False)
class Stream:
    """Anything that is iterated: ``length`` None is unknown; ``infinite`` never ends by itself.

    ``loader``: it yields microbatches. ``bound``: the key of the unknown number that bounds it.
    """

    item: Callable[[int], Any]
    length: int | None = None
    infinite: bool = False
    loader: bool = False
    bound: str = ""
    position: int = 0
    literal: bool = False  # the very elements are known (a list display, zip of lists)
    thing: Any = None
    start: int = 0


@functools.lru_cache(maxsize=50_000)
def last_name(key: str) -> str:
    """``optimizer`` for ``self.state['optimizer']``, ``args.optimizer`` and ``get_optimizer()``."""
    key = key.rstrip("])'\"")
    for mark in (".", "['", '["', "[", "("):
        position = key.rfind(mark)
        if position >= 0:
            tail = key[position + len(mark) :]
            if tail:
                key = tail
    return key.strip("'\"()[] ")
