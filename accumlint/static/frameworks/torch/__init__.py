"""PyTorch: optimizers, schedulers, scalers, data-parallel wrappers, losses, clipping, checkpoints.

Facts used here (torch 2.13): DDP decides whether to reduce in the forward (``torch/nn/parallel/distributed.py``,
``_pre_forward``); FSDP decides in the backward; ``set_requires_gradient_sync`` of FSDP2 is sticky.

One module per kind of thing; importing this one fills the table.
"""

from accumlint.static.frameworks.torch import backward, optimizers, schedulers, scalers, models, losses, clipping, collectives, loaders, unseen
from accumlint.static.frameworks.torch.table import TABLE

__all__ = ["TABLE", "backward", "optimizers", "schedulers", "scalers", "models", "losses", "clipping", "collectives", "loaders", "unseen"]
