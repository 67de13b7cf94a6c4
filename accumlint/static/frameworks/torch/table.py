"""The table that the modules here fill, and what their names mean."""

from __future__ import annotations

from accumlint.static.frameworks.base import Table

TABLE = Table()
TABLE.bases = {
    "Module": "model", "PreTrainedModel": "model", "ModelMixin": "model", "Optimizer": "optimizer", "LRScheduler": "scheduler",
    "_LRScheduler": "scheduler", "Dataset": "dataset", "IterableDataset": "dataset", "Sampler": "dataset", "BatchSampler": "dataset",
    "DataLoader": "loader", "GradScaler": "scaler", "Function": "function", "NamedTuple": "record", "Enum": "record",
}  # fmt: skip

MODELS = ("model", "data_parallel", "sharded")

function = TABLE.function
method = TABLE.method
