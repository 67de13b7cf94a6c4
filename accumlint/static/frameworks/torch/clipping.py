"""Clipping, and norms that are only measured."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TYPE_CHECKING

from accumlint.contract.events import Kind
from accumlint.static.frameworks.base import models_of
from accumlint.static.values import Gradient, Parameters, Unknown, last_name

if TYPE_CHECKING:
    from accumlint.static.interpreter import Call, Interpreter


def measures_only(run: Interpreter, call: Call, position: int = 1) -> bool:
    """Clipping to an infinite (or absurdly large) norm only measures it."""
    limit = call.get(position, "max_norm")
    if isinstance(limit, (int, Fraction)) and not isinstance(limit, bool):
        return limit >= 10**5
    text = getattr(limit, "origin", getattr(limit, "key", ""))
    return last_name(str(text)) == "inf" or "float('inf')" in str(text) or "float(inf)" in str(text)


def clip(run: Interpreter, call: Call, through: str = "torch") -> Any:
    limit = call.get(1, "max_norm")
    if "loss scale" in getattr(limit, "tags", ()):
        through = "scaled limit"
    source = call.get(0, "parameters")
    models = source.models if isinstance(source, (Parameters, Gradient)) else models_of(source)
    run.emit(Kind.CLIP, call.site, models=models, measures_only=measures_only(run, call), through=through)
    return Unknown(call.key)
