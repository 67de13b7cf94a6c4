"""The format of manifests and receipts: the single source of validator, JSON Schema and documentation.

Every text in it is a word of a fixed list, a digest, a version or a timestamp of a fixed form; the only free
texts are microbatch ids, and those are replaced by synthetic ones before anything is written.
"""

from __future__ import annotations

from typing import Any

from accumlint.receipt.limits import (
    MAX_COMPONENTS,
    MAX_INTEGER,
    MAX_MICROBATCHES,
    MAX_RANKS,
)
from accumlint.receipt.shape import (
    Choice,
    Count,
    Field,
    Flag,
    Label,
    ListOf,
    ListOrRecord,
    Literal,
    Nullable,
    Number,
    Pattern,
    Record,
)

MANIFEST_SCHEMA = "accumlint/manifest/v1"
PLAN_SCHEMA = "accumlint/plan/v1"
FORMULA = "accumlint/formula/v1"
RECEIPT_SCHEMA = "accumlint/receipt/v1"

LOSS_POLICIES = (
    "window-targets",
    "rank-targets",
    "microbatch-mean",
    "microbatch-mean-fixed",
    "undivided",
)
TAIL_POLICIES = ("flush", "carry", "drop")
DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8")
RANDOM_POLICIES = ("fixed-seed", "per-rank-seed", "restored", "deterministic", "unseeded", "not-recorded")
SOFTWARE = (
    "accelerate", "accumlint", "apex", "colossalai", "composer", "cuda", "cudnn", "datasets", "deepspeed",
    "fairscale", "fastai", "ignite", "keras", "lightning", "megatron-core", "nccl", "numpy", "peft", "python",
    "pytorch-lightning", "rocm", "timm", "tokenizers", "torch", "torchtitan", "torchtune", "torchvision",
    "transformers", "trl", "unsloth", "xformers",
)  # fmt: skip
SUBSTITUTIONS = ("model", "model-configuration", "dataset", "module-constant", "argument", "loader-length")

# what is counted in each window, on each rank
CLOCKS = (
    "backward",
    "step_called",
    "step_applied",
    "scheduler_step",
    "scaler_update",
    "gradient_clear",
    "unscale",
    "clip",
    "update_counter",
)
STEP_OUTCOMES = ("applied", "skipped", "none")

DIGEST = Pattern("64 hexadecimal digits in lower case", "[0-9a-f]{64}", 64)
REVISION = Pattern("7 to 64 hexadecimal digits in lower case", "[0-9a-f]{7,64}", 64)
VERSION = Pattern(
    "a release number such as 2.4.1 or 2.4.1+cu121",
    r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,4}(?:(?:a|b|rc)[0-9]{1,4})?(?:\.post[0-9]{1,4})?(?:\.dev[0-9]{1,8})?"
    r"(?:\+(?:cpu|xpu|cu[0-9]{2,3}|rocm[0-9](?:\.[0-9]){0,3}|(?:git)?[0-9a-f]{7,12})(?:\.nv[0-9]{2}\.[0-9]{2})?)?",
    64,
)
TOOL_VERSION = Pattern(
    "a release number", r"[0-9]{1,6}(?:\.[0-9]{1,6}){1,3}(?:(?:a|b|rc)[0-9]{1,4})?(?:\.dev[0-9]{1,8})?", 32
)
TIMESTAMP = Pattern(
    "a UTC time such as 2025-01-31T12:00:00Z",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z",
    20,
)
CRC = Pattern("8 hexadecimal digits in lower case", "[0-9a-f]{8}", 8)


# Bounds that keep every sum of ticks, and every index of a long chain of segments, within 2^53 - 1.
_TICKS = Count(0, 10**9)
_INDEX = Count(0, 2**52)


def _column(item: Any) -> ListOf:
    return ListOf(item, 1, MAX_MICROBATCHES)


IDS = ListOrRecord(
    ListOf(Label(), 1, MAX_MICROBATCHES),
    Record(
        {
            "first": Field(_INDEX, "number of the first microbatch; ids read r<rank>-m<number>"),
            "count": Field(Count(1), "how many microbatches follow each other from there"),
        }
    ),
)

# one entry per microbatch of the rank, in the order of execution
_ROWS: dict[str, Field] = {
    "microbatch_ids": Field(IDS, "ids, unique in the manifest; left out: numbered by position", False),
    "valid_targets": Field(_column(Count()), "targets that enter the loss, after shift and mask"),
    "loss_numerators": Field(_column(Number()), "summed loss of the valid targets"),
    "gradient_numerators": Field(
        ListOf(_column(Nullable(Number())), 0, MAX_COMPONENTS),
        "one column per component of the gradient of the summed loss; null only in a nonfinite window",
        False,
    ),
    "weights": Field(
        _column(Number()),
        "measured weight of each valid target in the update, freed of loss scale and world size",
        False,
    ),
    "sync": Field(
        Record(
            {
                "forward": Field(_column(Flag()), "communication was on in the forward"),
                "backward": Field(_column(Flag()), "communication was on in the backward"),
            }
        ),
        "where gradient communication was on",
        False,
    ),
    "loss_scales": Field(_column(Number(above=0)), "loss scale in force at each backward", False),
}
PER_MICROBATCH = tuple(key for key in _ROWS if key != "microbatch_ids")

RANK = Record(
    {
        "rank": Field(Count(0, MAX_RANKS - 1), "data-parallel rank"),
        "accumulation_steps": Field(Count(1, MAX_INTEGER), "K as this rank has it"),
        "tail_policy": Field(Choice(TAIL_POLICIES), "what this rank does with a short last window"),
        "windows": Field(_column(Count()), "window of each microbatch: 0,0,0,1,1,1,2"),
        **_ROWS,
        "clocks": Field(
            Record(
                {
                    name: Field(ListOf(_TICKS, 1, MAX_MICROBATCHES), "per window of this rank", False)
                    for name in CLOCKS
                }
            ),
            "what happened how often, one count per window",
            False,
        ),
        "decisions": Field(
            Record(
                {
                    "nonfinite": Field(
                        ListOf(Flag(), 1, MAX_MICROBATCHES), "the nonfinite check fired, per window", False
                    ),
                    "step": Field(
                        ListOf(Choice(STEP_OUTCOMES), 1, MAX_MICROBATCHES), "what became of the step", False
                    ),
                    "clip_norms": Field(
                        ListOf(Nullable(Number(minimum=0)), 1, MAX_MICROBATCHES),
                        "gradient norm found by the clip, per window",
                        False,
                    ),
                }
            ),
            "what was decided in each window",
            False,
        ),
    }
)

PENDING_RANK = Record({"rank": Field(Count(0, MAX_RANKS - 1), "data-parallel rank"), **_ROWS})

CONTINUES = Record(
    {
        "receipt_sha256": Field(DIGEST, "receipt hash of the segment before"),
        "pending": Field(
            Record(
                {
                    "window": Field(_INDEX, "the window that was carried"),
                    "ranks": Field(ListOf(PENDING_RANK, 1, MAX_RANKS), "its rows so far"),
                }
            ),
            "filled in from the receipt before; a manifest may leave it out",
            False,
        ),
        "before": Field(
            Record(
                {
                    "backward": Field(_INDEX, "microbatches per rank of all segments before"),
                    "updates": Field(_INDEX, "applied updates of all segments before"),
                }
            ),
            "filled in from the receipt before; a manifest may leave it out",
            False,
        ),
    }
)

BOUND_FILE = Record(
    {
        "role": Field(Choice(("script", "configuration")), "what the file is"),
        "path_sha256": Field(DIGEST, "domain-separated digest of the path relative to the project's root"),
        "sha256": Field(DIGEST, "SHA-256 of the file's bytes"),
    }
)

# everything but the rows: what is known before the run
SETTINGS: dict[str, Field] = {
    "accumulation_steps": Field(Count(1, MAX_INTEGER), "K: microbatches of a full window, per rank"),
    "world_size": Field(Count(1, MAX_RANKS), "number of data-parallel ranks"),
    "target_unit": Field(Choice(("token", "sample", "sequence", "element")), "what one valid target is"),
    "loss_policy": Field(
        Choice(LOSS_POLICIES), "how the run weighs a target; window-targets is the contract"
    ),
    "reduction": Field(Choice(("sum", "mean-times-count")), "how the numerators were obtained"),
    "rank_reduction": Field(Choice(("sum", "average")), "what the collective does with the ranks' gradients"),
    "rank_compensation": Field(
        Choice(("none", "world-size")), "factor that each rank puts on its loss to undo an average"
    ),
    "ignore_index": Field(Nullable(Count(-MAX_INTEGER, MAX_INTEGER)), "label that is left out; null: none"),
    "tail_policy": Field(Choice(TAIL_POLICIES), "what becomes of a short last window"),
    "on_skipped_step": Field(
        Record(
            {
                "scheduler": Field(Choice(("holds", "advances")), "the scheduler, when a step is skipped"),
                "update_counter": Field(Choice(("holds", "advances")), "the counter of updates, then"),
            }
        ),
        "which clocks move although the step was skipped",
    ),
    "precision": Field(
        Record(
            {
                "loss": Field(Choice(DTYPES), "type in which the loss is summed"),
                "gradient": Field(Choice(DTYPES), "type in which gradients accumulate"),
                "autocast": Field(Nullable(Choice(DTYPES)), "type under autocast; null: no autocast"),
                "loss_scaling": Field(Choice(("none", "constant", "dynamic")), "loss scaler"),
            }
        ),
        "number types of the run",
    ),
    "clipping": Field(
        Nullable(
            Record(
                {
                    "max_norm": Field(Number(above=0), "threshold"),
                    "norm": Field(Choice(("1", "2", "inf")), "kind of norm"),
                }
            )
        ),
        "gradient clipping; null: the recipe has none",
    ),
    "tolerances": Field(
        Record(
            {
                "absolute": Field(Number(minimum=0), "protects values near zero"),
                "relative": Field(Number(minimum=0), "scales with the reference"),
                "weight": Field(Number(minimum=0), "on measured weights, relative to the right weight"),
            }
        ),
        "used in the acceptance expressions of the plan",
    ),
}

MANIFEST = Record(
    {
        "schema": Field(Literal(MANIFEST_SCHEMA), "name and major version of this format"),
        "origin": Field(Choice(("synthetic", "redacted", "recorded")), "where the rows come from"),
        **SETTINGS,
        "random_state": Field(
            Record(
                {
                    "policy": Field(Choice(RANDOM_POLICIES), "how random states are set"),
                    "seed": Field(Nullable(Count()), "the seed, where there is one"),
                    "boundary_sha256": Field(
                        Nullable(DIGEST), "digest of the random state where the segment ends"
                    ),
                }
            ),
            "random states",
        ),
        "software": Field(
            Record({name: Field(VERSION, "", False) for name in SOFTWARE}), "versions of libraries"
        ),
        "code_revision": Field(REVISION, "revision of the user's own code", False),
        "epoch_ends": Field(
            ListOf(Count(), 1, MAX_MICROBATCHES),
            "windows at which the data ended (only they may be short); left out: the last one",
            False,
        ),
        "plan_sha256": Field(DIGEST, "hash of the plan, fixed before the run", False),
        "bound_files": Field(ListOf(BOUND_FILE, 0, 4_096), "files that this receipt speaks of", False),
        "substitutions": Field(
            ListOf(
                Record(
                    {
                        "kind": Field(Choice(SUBSTITUTIONS), "what was replaced by something small"),
                        "count": Field(Count(1), "how often"),
                    }
                ),
                0,
                64,
            ),
            "what a tiny run put in the place of the real thing",
            False,
        ),
        "event_ledger": Field(
            Record(
                {
                    "sha256": Field(DIGEST, "digest of the ledger's bytes"),
                    "events": Field(Count(), "number of its events"),
                }
            ),
            "ledger of the recording",
            False,
        ),
        "continues": Field(CONTINUES, "the segment before, whose tail was carried into this one", False),
        "observed": Field(
            Record(
                {
                    "loss": Field(
                        ListOf(Nullable(Number()), 1, MAX_MICROBATCHES),
                        "normalised loss that the run had, one entry per window, null where none",
                        False,
                    ),
                    "gradients": Field(
                        ListOf(ListOf(Nullable(Number()), 1, MAX_MICROBATCHES), 1, MAX_COMPONENTS),
                        "normalised gradient just before clip and step: one column per component",
                        False,
                    ),
                }
            ),
            "what the run itself held at the update boundary",
            False,
        ),
        "ranks": Field(ListOf(RANK, 1, MAX_RANKS), "the rows"),
    }
)

UNBOUND = Record(
    {
        "created": Field(TIMESTAMP, "when the receipt was written", False),
        "duration_seconds": Field(Number(minimum=0), "how long building took", False),
        "host": Field(
            Record(
                {
                    "system": Field(Choice(("Linux", "Darwin", "Windows", "other")), "operating system"),
                    "machine": Field(Choice(("x86_64", "arm64", "other")), "processor family"),
                    "python": Field(VERSION, "interpreter"),
                    "processors": Field(Count(), "logical processors"),
                }
            ),
            "facts about the machine; no names",
            False,
        ),
        "crc32": Field(CRC, "notices damage to this part; it binds nothing"),
    }
)

TOOL = Record(
    {
        "name": Field(Literal("accumlint", "choice"), "the tool"),
        "version": Field(TOOL_VERSION, "its release"),
    }
)

HASHES = Record(
    {
        "manifest_sha256": Field(DIGEST, "of the canonical manifest part"),
        "plan_sha256": Field(DIGEST, "of the canonical plan part"),
        "result_sha256": Field(DIGEST, "of the canonical result part, which holds the two above"),
        "receipt_sha256": Field(DIGEST, "of schema, tool and the three above"),
    }
)


def manifest_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a manifest."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:accumlint:schema:manifest:v1",
        "title": "accumlint manifest, version 1",
        "description": "What one segment of training accumulated: counts, sums and digests, no training content.",
        **MANIFEST.schema(),
    }


def receipt_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a receipt. Plan and result are derived: a verifier rebuilds them."""
    parts = {
        "schema": Literal(RECEIPT_SCHEMA).schema(),
        "tool": TOOL.schema(),
        "manifest": MANIFEST.schema(),
        "plan": {"type": "object", "description": "derived from the settings of the manifest"},
        "result": {"type": "object", "description": "derived from the rows of the manifest"},
        "unbound": UNBOUND.schema(),
        "hashes": HASHES.schema(),
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:accumlint:schema:receipt:v1",
        "title": "accumlint accumulation receipt, version 1",
        "type": "object",
        "properties": parts,
        "required": list(parts),
        "additionalProperties": False,
    }
