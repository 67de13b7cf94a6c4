"""Hugging Face models and tokenizers, built tiny and without network in the place of pretrained ones.

A configuration comes from a local folder or from the model's name; its sizes are shrunk, everything else stays. The
weights are random: what is judged is how gradients are accumulated, not what they are.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

VOCABULARY = 260  # bytes and four special tokens
SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")

# sizes of a configuration, and what they become; a value that is smaller already stays
SIZES: dict[str, int] = {
    "hidden_size": 32, "n_embd": 32, "d_model": 32, "dim": 32, "embed_dim": 32, "word_embed_proj_dim": 32, "embedding_size": 32,
    "intermediate_size": 48, "ffn_dim": 48, "d_ff": 48, "n_inner": 48, "hidden_dim": 48, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "ffn_hidden_size": 48,
    "num_hidden_layers": 2, "n_layer": 2, "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 2, "n_head": 2, "n_heads": 2, "num_heads": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "num_key_value_heads": 1, "multi_query_group_num": 1, "head_dim": 16, "d_kv": 16, "rotary_dim": 8,
    "max_position_embeddings": 512, "n_positions": 512, "n_ctx": 512, "max_sequence_length": 512,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "vocab_size": VOCABULARY,
}  # fmt: skip


class NoTinyModel(RuntimeError):
    """A name from which no model type can be told; the message says what would help."""


def shrunk(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a configuration that are to be replaced: key -> value. Everything else is kept."""
    out: dict[str, Any] = {}
    for key, size in SIZES.items():
        held = values.get(key)
        if isinstance(held, int) and not isinstance(held, bool) and held > size:
            out[key] = size
    layers = out.get("num_hidden_layers")
    kinds = values.get("layer_types")
    if layers and isinstance(kinds, list):
        # one of each kind, so that no kind of layer goes untried
        distinct = list(dict.fromkeys(kinds))
        out["layer_types"] = (distinct * layers)[: max(layers, len(distinct))]
        out["num_hidden_layers"] = len(out["layer_types"])
    for key in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        held = values.get(key)
        if isinstance(held, int) and held >= VOCABULARY:
            out[key] = {"pad_token_id": 0, "bos_token_id": 1}.get(key, 2)
        elif isinstance(held, list):
            out[key] = 2
    return out


def type_of(name: str, known: Any) -> str:
    """The model type that a hub name speaks of: the longest known type within it. Raises NoTinyModel."""
    plain = "".join(c for c in os.path.basename(name).lower() if c.isalnum())
    found = [t for t in known if "".join(c for c in t if c.isalnum()) and "".join(c for c in t if c.isalnum()) in plain]
    if not found:
        raise NoTinyModel(f"--tiny cannot tell the kind of model from {name!r}: give a local folder with its config.json, or the script a small model by its own arguments")
    return max(found, key=len)


def install_later() -> None:
    """Wait for transformers and datasets, and take their loading functions over once they are there."""
    from accumlint.probe.child import tiny_data

    sys.meta_path.insert(0, _Wait("transformers", install))
    sys.meta_path.insert(0, _Wait("datasets", tiny_data.install))
    sys.meta_path.insert(0, _Wait("evaluate", tiny_data.install_metrics))


class _Wait(importlib.abc.MetaPathFinder):
    def __init__(self, library: str, then: Callable[[], None]) -> None:
        self._library = library
        self._then = then
        self._done = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._library or self._done:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            inner = spec.loader
            execute = inner.exec_module

            def exec_module(module: Any) -> None:
                self._done = True  # asking for the spec alone, as many libraries do, does not end the wait
                execute(module)
                self._then()

            inner.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def configuration(name: str, keywords: Mapping[str, Any] | None = None) -> Any:
    """A small configuration for a hub name or a local folder."""
    from transformers import CONFIG_MAPPING

    path = os.path.join(str(name), "config.json")
    if os.path.isfile(path):
        full = _original["config"](str(name))
    else:
        full = CONFIG_MAPPING[type_of(str(name), list(CONFIG_MAPPING.keys()))]()
    values = full.to_dict()
    small = {**values, **shrunk(values)}
    for part in ("text_config", "vision_config", "audio_config", "encoder", "decoder"):
        if isinstance(values.get(part), dict):
            small[part] = {**values[part], **shrunk(values[part])}
    if not small.get("architectures"):
        small["architectures"] = _architectures(str(values.get("model_type", "")))
    for key in ("num_labels", "id2label", "label2id", "problem_type"):
        if keywords and key in keywords:
            small[key] = keywords[key]
    made = type(full).from_dict(small)
    made.name_or_path = str(name)
    return made


def _architectures(model_type: str) -> list[str] | None:
    """The class that a configuration of the hub would name: a language model's where there is one."""
    from transformers.models.auto import modeling_auto

    for table in ("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "MODEL_MAPPING_NAMES"):
        name = getattr(modeling_auto, table, {}).get(model_type)
        if isinstance(name, str):
            return [name]
    return None


def tokenizer() -> Any:
    """A tokenizer of bytes, with a chat template where none would be there."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    table = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    raw = Tokenizer(models.BPE(vocab=table, merges=[], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", model_max_length=512)
    made.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    return made


_original: dict[str, Any] = {}


def install() -> None:
    import transformers
    from transformers.models.auto import auto_factory, modeling_auto

    auto_config = transformers.AutoConfig
    _original["config"] = auto_config.from_pretrained

    def config_from(cls: Any, name: Any, *args: Any, **keywords: Any) -> Any:
        made = configuration(name, keywords)
        return (made, {}) if keywords.get("return_unused_kwargs") else made

    auto_config.from_pretrained = classmethod(config_from)

    def auto_model(cls: Any, name: Any, *args: Any, **keywords: Any) -> Any:
        own = keywords.get("config")
        config = configuration(name, keywords) if own is None else own
        made = cls.from_config(config)
        dtype = keywords.get("dtype") or keywords.get("torch_dtype")
        return made.to(dtype) if dtype is not None and not isinstance(dtype, str) else made

    # every automatic class got a copy of the method of its own
    for value in vars(modeling_auto).values():
        if isinstance(value, type) and issubclass(value, auto_factory._BaseAutoModelClass):
            value.from_pretrained = classmethod(auto_model)

    def model(cls: Any, name: Any, *args: Any, **keywords: Any) -> Any:
        own = keywords.get("config")
        if own is None:
            full = cls.config_class()
            values = full.to_dict()
            own = type(full).from_dict({**values, **shrunk(values)})
        return cls(own)

    transformers.PreTrainedModel.from_pretrained = classmethod(model)
    transformers.AutoTokenizer.from_pretrained = classmethod(lambda cls, *args, **keywords: tokenizer())
    # the processor of a model that reads text only is its tokenizer
    transformers.AutoProcessor.from_pretrained = classmethod(lambda cls, *args, **keywords: tokenizer())
