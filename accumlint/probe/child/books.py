"""The gradient's books: what every backward brought to each parameter, against what lies there before the step.

One running sum per parameter, never one per microbatch. What arrives is read by tensor hooks, which torch calls
before the gradient is accumulated and before DDP averages it (torch/csrc/autograd/functions/accumulate_grad.h), so it
is this rank's own contribution.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

MAX_COMPONENTS = 256  # elements of the gradient that are written to the ledger, to compare ranks
PER_TENSOR = 4


@dataclass(frozen=True)
class Balance:
    """Gradient against the sum of contributions, over the parameters of one optimizer.

    ``deviation``: relative L2 norm of the difference; ``factor``: the multiple of the sum that fits best, with
    ``residual`` left beside it; ``worst``: largest relative deviation of one parameter whose norm counts.
    """

    deviation: float
    factor: float
    residual: float
    worst: float
    norm: float
    parameters: int
    lost: int  # a contribution arrived, but there is no gradient
    unexplained: int  # there is a gradient, but nothing arrived
    finite: bool
    dtype: str


class Books:
    """Running sums of contributions by parameter. ``keep``: False counts arrivals only."""

    def __init__(self, keep: bool = True) -> None:
        self.keep = keep
        self.parameters: dict[int, torch.Tensor] = {}
        self.owners: dict[int, list[int]] = {}
        self.sums: dict[int, torch.Tensor] = {}
        self.arrived: dict[int, torch.Tensor] = {}
        self.trained: set[int] = set()  # parameters that a backward has reached since the recording began
        self.active = False
        self._handles: list[Any] = []
        self._picks: list[tuple[int, torch.Tensor]] | None = None
        self.sharded = False

    def watch(self, parameters: Iterable[torch.Tensor], owner: int) -> None:
        """Follow the parameters of an optimizer; each is hooked once."""
        for parameter in parameters:
            if not torch.is_tensor(parameter):
                continue
            key = id(parameter)
            owners = self.owners.setdefault(key, [])
            if owner not in owners:
                owners.append(owner)
            if key in self.parameters:
                continue
            self.parameters[key] = parameter
            self._picks = None
            if _is_sharded(parameter):
                self.sharded = True
            elif self.keep and parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._hook(key)))

    def _hook(self, key: int) -> Any:
        arrived = self.arrived

        def hook(gradient: torch.Tensor) -> None:
            if self.active:
                held = arrived.get(key)
                arrived[key] = gradient if held is None else held + gradient

        return hook

    def release(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    # ---- a backward

    def begin(self) -> None:
        self.arrived.clear()
        self.active = self.keep and not self.sharded

    def end(self, scale: float) -> None:
        """Add what arrived to the sums, free of the loss scale."""
        self.active = False
        self.trained.update(self.arrived)
        with torch.no_grad():
            fresh = [key for key, g in self.arrived.items() if key not in self.sums and not g.is_sparse]
            held = [key for key, g in self.arrived.items() if key in self.sums and not g.is_sparse]
            for key in fresh:
                wide = torch.promote_types(self.arrived[key].dtype, torch.float32)
                self.sums[key] = self.arrived[key].detach().to(wide, copy=True).div_(scale) if scale != 1.0 else self.arrived[key].detach().to(wide, copy=True)
            for key in held:
                self.sums[key].add_(self.arrived[key].detach(), alpha=1.0 / scale)

    def reached(self) -> list[int]:
        """Optimizers whose parameters got a gradient in the last backward."""
        return sorted({owner for key in self.arrived for owner in self.owners[key]})

    def owners_of(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        return sorted({owner for tensor in tensors for owner in self.owners.get(id(tensor), ())})

    # ---- gradients as they lie there

    def of(self, optimizer: int) -> list[int]:
        return [key for key, owners in self.owners.items() if optimizer in owners]

    def untouched(self) -> bool:
        """Every gradient that a backward has brought is gone: None or zero. Counts only what an optimizer holds, where one is known."""
        owned = [key for key in self.trained if any(owner >= 0 for owner in self.owners.get(key, ()))]
        for key in owned or self.trained:
            gradient = self.parameters[key].grad
            if gradient is not None and (_is_sharded(gradient) or bool(gradient.any())):
                return False
        return True

    def has_sums(self, keys: Iterable[int] | None = None) -> bool:
        return any(key in self.sums for key in (self.sums if keys is None else keys))

    def forget(self, keys: Iterable[int]) -> None:
        for key in list(keys):
            self.sums.pop(key, None)

    def balance(self, optimizer: int, scale: float) -> Balance | None:
        """Compare the gradients of an optimizer, divided by ``scale``, with the sums. One tensor at a time."""
        if not self.keep or self.sharded:
            return None
        square = cross = own = other = 0.0
        worst = 0.0
        lost = unexplained = seen = 0
        dtypes: set[str] = set()
        rows: list[tuple[float, float]] = []
        with torch.no_grad():
            stacked = []
            for key in self.of(optimizer):
                gradient, total = self.parameters[key].grad, self.sums.get(key)
                if gradient is None:
                    if total is not None and bool(total.any()):
                        lost += 1
                        size = torch.linalg.vector_norm(total)
                        stacked.append(torch.stack([size.new_zeros(()), size, size, size.new_zeros(())]).double())
                    continue
                if gradient.is_sparse:
                    continue
                dtypes.add(str(gradient.dtype).removeprefix("torch."))
                wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
                if total is None:
                    norm = torch.linalg.vector_norm(wide)
                    stacked.append(torch.stack([norm, norm.new_zeros(()), norm, norm.new_zeros(())]).double() / scale)
                    seen += 1
                    continue
                g, s = wide.reshape(-1), total.reshape(-1)
                g = g.div(scale) if scale != 1.0 else g
                stacked.append(torch.stack([torch.linalg.vector_norm(g), torch.linalg.vector_norm(s), torch.linalg.vector_norm(g - s), torch.dot(g, s)]).double())
                seen += 1
            rows_ = torch.stack([r.cpu() for r in stacked]).tolist() if stacked else []
        for g, s, d, dot in rows_:
            own += g * g
            other += s * s
            square += d * d
            cross += dot
            rows.append((d, s))
            unexplained += s == 0 and g > 0
        norm = other**0.5
        for d, s in rows:
            if s > 1e-4 * norm:
                worst = max(worst, d / s)
        finite = all(x == x and x not in (float("inf"), float("-inf")) for row in rows_ for x in row)
        factor = cross / other if other and finite else 0.0
        residual = square**0.5 if finite else float("nan")
        if finite and norm and square > (1e-6 * norm) ** 2 and abs(factor - 1) > 1e-7:
            residual = self._residual(optimizer, scale, factor)
        deviation = (square**0.5 / norm) if norm else (float("inf") if own else 0.0)
        return Balance(
            deviation, factor, residual / (own**0.5) if own else 0.0, worst, own**0.5, seen, lost, int(unexplained), finite, "/".join(sorted(dtypes)),
        )  # fmt: skip

    def _residual(self, optimizer: int, scale: float, factor: float) -> float:
        """Norm of gradient - factor x sum, element by element: the expanded square would cancel to nothing."""
        total = 0.0
        with torch.no_grad():
            for key in self.of(optimizer):
                gradient, held = self.parameters[key].grad, self.sums.get(key)
                if gradient is None and held is not None:
                    total += float(torch.linalg.vector_norm(factor * held).double()) ** 2
                if gradient is None or gradient.is_sparse:
                    continue
                g = gradient.to(torch.promote_types(gradient.dtype, torch.float32)).reshape(-1)
                g = g.div(scale) if scale != 1.0 else g
                total += float(torch.linalg.vector_norm(g if held is None else g - factor * held.reshape(-1)).double()) ** 2
        return total**0.5

    # ---- chosen elements, to compare ranks and for the receipt

    def picks(self) -> list[tuple[int, torch.Tensor]]:
        """Elements of every parameter that stand for the whole; the same on every rank, and no random number is drawn."""
        if self._picks is None:
            chosen: list[tuple[int, torch.Tensor]] = []
            trained = [k for k, p in self.parameters.items() if p.requires_grad and p.numel() and not _is_sharded(p)]
            each = max(1, min(PER_TENSOR, MAX_COMPONENTS // max(len(trained), 1)))
            for position, key in enumerate(trained[:MAX_COMPONENTS]):
                size = self.parameters[key].numel()
                seed = hashlib.sha256(f"{position}:{size}".encode()).digest()
                indices = sorted({int.from_bytes(seed[4 * i : 4 * i + 4], "big") % size for i in range(each)})
                chosen.append((key, torch.tensor(indices, device=self.parameters[key].device)))
            self._picks = chosen
        return self._picks

    def components(self, which: str, scale: float = 1.0) -> list[float]:
        """The chosen elements of the sums (``sums``), of the last arrivals (``arrived``) or of ``.grad`` (``grad``)."""
        parts = []
        with torch.no_grad():
            for key, index in self.picks():
                tensor = self.parameters[key].grad if which == "grad" else (self.sums if which == "sums" else self.arrived).get(key)
                if tensor is None or tensor.is_sparse or _is_sharded(tensor):
                    parts.append(torch.zeros(len(index), dtype=torch.float64))
                else:
                    parts.append((tensor.detach().reshape(-1)[index].double() / scale).cpu())
            return torch.cat(parts).tolist() if parts else []


def _is_sharded(tensor: torch.Tensor) -> bool:
    return type(tensor).__name__ == "DTensor" or hasattr(tensor, "_local_tensor")
