"""The same model for llama.cpp: a GGUF file of a checkpoint's numbers, in the published types.

    experts                                 MXFP4, the checkpoint's own codes and scales
    attention, embedding, head              Q8_0
    norms, sinks, biases, router            F32

Rows of gates and ups are apart in such a file. There is no vocabulary: tokens are numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from torch import Tensor

from bench.gpt_oss.checkpoint import Sizes, sizes_of
from bench.peers.blocks import mxfp4_blocks
from mx_kernels.checkpoints.files import open_path

ROWS_AT_ONCE = 1 << 14
"""That become Q8_0 at a time."""
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.router": "ffn_gate_inp",
}
"""What modules of a layer are called in GGUF."""
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


@dataclass(frozen=True)
class _Tensor:
    """A tensor that has not been made."""

    name: str
    type: Type
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]


def write_gguf(folder: str | Path, target: str | Path, layers: int) -> Path:
    """Writes so many layers of a checkpoint that `write_checkpoint` wrote; returns the file."""
    size, target = sizes_of(folder, layers), Path(target)
    tensors = list(_tensors(open_path(folder).parts, size))
    begun = target.with_suffix(".begun")
    writer = gguf.GGUFWriter(begun, "gpt-oss")
    _describe(writer, size)
    for it in tensors:
        is_float = it.type == Type.F32
        shape = it.shape if is_float else gguf.quant_shape_to_byte_shape(it.shape, it.type)
        dtype = np.dtype(np.float32 if is_float else np.uint8)
        num_bytes = int(np.prod(shape)) * dtype.itemsize
        writer.add_tensor_info(it.name, shape, dtype, num_bytes, None if is_float else it.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for it in tensors:
        writer.write_tensor_data(it.make())
    writer.close()
    return begun.rename(target)


def _describe(writer: gguf.GGUFWriter, size: Sizes) -> None:
    """Writes what config.json says."""
    writer.add_block_count(size.layers)
    writer.add_context_length(131072)
    writer.add_embedding_length(size.hidden)
    writer.add_feed_forward_length(size.inner)
    writer.add_expert_feed_forward_length(size.inner)
    writer.add_expert_count(size.experts)
    writer.add_expert_used_count(size.active)
    writer.add_head_count(size.heads)
    writer.add_head_count_kv(size.kv_heads)
    writer.add_key_length(size.head)
    writer.add_value_length(size.head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(size.window)
    writer.add_rope_freq_base(150000.0)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(32.0)
    writer.add_rope_scaling_orig_ctx_len(4096)
    writer.add_tokenizer_model("no_vocab")
    writer.add_vocab_size(size.vocabulary)


def _tensors(parts: dict, size: Sizes) -> Iterator[_Tensor]:
    """Yields all tensors, unmade."""

    def floats(name: str, target: str, rows: slice = slice(None)) -> _Tensor:
        shape = parts[name].shape
        shape = (*shape[:-1], len(range(shape[-1])[rows]))
        return _Tensor(
            target, Type.F32, shape, lambda: parts[name].read()[..., rows].float().numpy()
        )

    def q8_0(name: str, target: str) -> _Tensor:
        return _Tensor(target, Type.Q8_0, parts[name].shape, lambda: _q8_0(parts[name].read()))

    def experts(name: str, target: str, rows: slice) -> Iterator[_Tensor]:
        codes, scales = parts[f"{name}_blocks"], parts[f"{name}_scales"]
        count, n, blocks = scales.shape
        shape = (count, len(range(n)[rows]), blocks * 32)

        def make() -> np.ndarray:
            found = codes.read()[:, rows].flatten(0, 1), scales.read()[:, rows].flatten(0, 1)
            return mxfp4_blocks(*found).reshape(*shape[:2], -1)

        yield _Tensor(f"{target}.weight", Type.MXFP4, shape, make)
        yield floats(f"{name}_bias", f"{target}.bias", rows)

    for name, target in OUTER.items():
        yield (floats if "norm" in name else q8_0)(name, target)
    for i in range(size.layers):
        layer, own = f"model.layers.{i}", f"blk.{i}"
        yield floats(f"{layer}.self_attn.sinks", f"{own}.attn_sinks.weight")
        for name, target in NAMES.items():
            kept = floats if "norm" in name or "router" in name else q8_0
            yield kept(f"{layer}.{name}.weight", f"{own}.{target}.weight")
            if f"{layer}.{name}.bias" in parts:
                yield floats(f"{layer}.{name}.bias", f"{own}.{target}.bias")
        of_layer = f"{layer}.mlp.experts"
        yield from experts(f"{of_layer}.gate_up_proj", f"{own}.ffn_gate_exps", slice(0, None, 2))
        yield from experts(f"{of_layer}.gate_up_proj", f"{own}.ffn_up_exps", slice(1, None, 2))
        yield from experts(f"{of_layer}.down_proj", f"{own}.ffn_down_exps", slice(None))


def _q8_0(weight: Tensor) -> np.ndarray:
    """Returns the bytes of Q8_0, some rows at a time."""
    return np.concatenate(
        [
            gguf.quants.quantize(rows.float().numpy(), Type.Q8_0)
            for rows in weight.split(ROWS_AT_ONCE)
        ]
    )
