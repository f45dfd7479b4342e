"""Checkpoints of gpt-oss's published layout and sizes, with random numbers in them.

    write_checkpoint(folder, layers)     config.json, shards below 5 GB and their index

Codes are random bytes and scales such that every layer keeps numbers near one, so a model of it
computes as much as the real one, on what means nothing. Tensors are made and written one at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from mx_kernels.checkpoints.writing import Stored, new_folder, write_shards

BLOCK = 32
CODE_BYTES = 16
"""Of a block of MXFP4."""
SCALES = (116, 121)
"""The bytes of scales, both ends included: weights of a root mean square near 0.02."""


@dataclass(frozen=True)
class Sizes:
    """How large a model is; gpt-oss-20b but for its 24 layers."""

    layers: int = 24
    experts: int = 32
    active: int = 4
    hidden: int = 2880
    inner: int = 2880
    heads: int = 64
    kv_heads: int = 8
    head: int = 64
    vocabulary: int = 201088
    window: int = 128


KEYS = {
    "experts": "num_local_experts",
    "active": "num_experts_per_tok",
    "hidden": "hidden_size",
    "inner": "intermediate_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head": "head_dim",
    "vocabulary": "vocab_size",
    "window": "sliding_window",
}
"""What config.json calls the sizes."""


def write_checkpoint(folder: str | Path, layers: int = 24, *, seed: int = 0, **sizes: int) -> Path:
    """Writes a checkpoint into a folder that has none yet; returns the folder.

    Args:
        folder: made if it is not there.
        layers: of the model; one of gpt-oss-20b has 0.44 GB, embeddings and head 2.3 GB.
        seed: of the random numbers.
        sizes: others of `Sizes`, by name.
    """
    size, folder = Sizes(layers, **sizes), Path(folder)
    generator = torch.Generator().manual_seed(seed)
    with new_folder(folder) as place:
        write_shards(list(_tensors(size, generator)), place)
        text = json.dumps(_config(size), indent=2)
        (place / "config.json").write_text(text + "\n", encoding="utf-8")
    return folder


def sizes_of(folder: str | Path, layers: int) -> Sizes:
    """Returns the sizes of a checkpoint, of which so many layers count."""
    said = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return Sizes(layers, **{name: said[key] for name, key in KEYS.items()})


def _config(size: Sizes) -> dict:
    """Returns what config.json says."""
    kinds = ("sliding_attention", "full_attention")
    floats = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens")
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "torch_dtype": "bfloat16",
        "num_hidden_layers": size.layers,
        "experts_per_token": size.active,
        **{key: getattr(size, name) for name, key in KEYS.items()},
        "layer_types": [kinds[i % 2] for i in range(size.layers)],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "swiglu_limit": 7.0,
        "rms_norm_eps": 1e-05,
        "max_position_embeddings": 131072,
        "initial_context_length": 4096,
        "rope_theta": 150000,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
        "tie_word_embeddings": False,
        "eos_token_id": None,
        "pad_token_id": None,
        "quantization_config": {
            "quant_method": "mxfp4",
            "modules_to_not_convert": [*floats, "lm_head"],
        },
    }


def _tensors(size: Sizes, generator: torch.Generator) -> Iterator[Stored]:
    """Yields all tensors, unmade, in the order of the model."""

    def floats(name: str, *shape: int, std: float = 0.1, mean: float = 0.0) -> Stored:
        def read() -> tuple[Tensor]:
            made = torch.empty(shape, dtype=torch.bfloat16)
            return (made.normal_(mean, std, generator=generator),)

        return Stored({name: (torch.bfloat16, shape)}, read)

    def linear(name: str, n: int, k: int, bias: bool = True) -> Iterator[Stored]:
        yield floats(f"{name}.weight", n, k, std=k**-0.5)
        if bias:
            yield floats(f"{name}.bias", n)

    def experts(name: str, n: int, k: int) -> Iterator[Stored]:
        shape = (size.experts, n, k // BLOCK)

        def read() -> tuple[Tensor, Tensor]:
            low, high = SCALES
            codes = torch.empty(*shape, CODE_BYTES, dtype=torch.uint8)
            words = codes.view(torch.int64)
            words.random_(generator=generator)
            scales = torch.empty(shape, dtype=torch.uint8)
            return codes, scales.random_(low, high + 1, generator=generator)

        parts = {f"{name}_blocks": (*shape, CODE_BYTES), f"{name}_scales": shape}
        yield Stored({part: (torch.uint8, of) for part, of in parts.items()}, read)
        yield floats(f"{name}_bias", size.experts, n)

    hidden, q, kv = size.hidden, size.heads * size.head, size.kv_heads * size.head
    yield floats("model.embed_tokens.weight", size.vocabulary, hidden, std=1.0)
    for i in range(size.layers):
        layer = f"model.layers.{i}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield floats(f"{layer}.{norm}.weight", hidden, mean=1.0)
        attention = f"{layer}.self_attn"
        for name, n in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
            yield from linear(f"{attention}.{name}", n, hidden)
        yield from linear(f"{attention}.o_proj", hidden, q)
        yield floats(f"{attention}.sinks", size.heads, std=1.0)
        yield from linear(f"{layer}.mlp.router", size.experts, hidden)
        yield from experts(f"{layer}.mlp.experts.gate_up_proj", 2 * size.inner, hidden)
        yield from experts(f"{layer}.mlp.experts.down_proj", hidden, size.inner)
    yield floats("model.norm.weight", hidden, mean=1.0)
    yield from linear("lm_head", size.vocabulary, hidden, bias=False)
