"""What differs from MAX's own attention: windows and sinks on a CPU, and YaRN as gpt-oss has it.

A window is the tokens that a row looks back, a sink a score that takes part in a softmax. MAX's
kernel for GPUs has both. Compiling its kernel for CPUs with a window took more than 12 GB, without
an end; there ours attends, `mx_attention`, over the same cache. It does so without window and sinks
too, where queries and keys have no norms.
"""

from __future__ import annotations

import math

import numpy as np
from max.dtype import DType
from max.graph import DeviceRef, TensorType, TensorValue, Weight, ops
from max.nn.attention import AttentionWithRope
from max.nn.kernels import flash_attention_ragged, rope_split_store_ragged
from max.nn.kv_cache import PagedCacheValues
from max.nn.rotary_embedding import YarnRotaryEmbedding, YarnScalingParams

LANES = 16
"""A head of our kernel has a multiple of so many elements."""


class WindowAttention(AttentionWithRope):
    """MAX's attention, as Mistral and gpt-oss have it.

    Args:
        has_sinks: whether each head has one.
        options: those of MAX's.
    """

    def __init__(self, *, has_sinks: bool, **options):
        super().__init__(**options)
        self.sinks: Weight | None = None
        if has_sinks:
            self.sinks = Weight("sinks", options["dtype"], [self.n_heads], self.devices[0])

    def __call__(
        self,
        layer_idx: TensorValue,
        x: TensorValue,
        kv_collection: PagedCacheValues,
        freqs_cis: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """Returns [T, H] of x [T, H]."""
        qkv = self.qkv_proj(x)
        queries = rope_split_store_ragged(
            kv_params=self.kv_params,
            qkv=qkv,
            input_row_offsets=input_row_offsets,
            freqs_cis=ops.cast(freqs_cis, qkv.dtype).to(qkv.device),
            kv_collection=kv_collection,
            layer_idx=layer_idx,
            n_heads=self.n_heads,
            interleaved=self.rope.interleaved,
        )
        queries = ops.reshape(queries, [x.shape[0], self.n_heads, self.kv_params.head_dim])
        attend = self._on_cpu if x.device == DeviceRef.CPU() else self._on_gpu
        out = attend(queries, kv_collection, layer_idx, input_row_offsets)
        return self.o_proj(ops.reshape(out, [x.shape[0], self.q_weight_dim]))

    def _on_gpu(
        self,
        queries: TensorValue,
        kv_collection: PagedCacheValues,
        layer_idx: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """Returns rows of heads, by MAX's kernel."""
        return flash_attention_ragged(
            self.kv_params,
            input=queries,
            kv_collection=kv_collection,
            layer_idx=layer_idx,
            input_row_offsets=input_row_offsets,
            mask_variant=self.mask_variant,
            scale=self.scale,
            local_window_size=-1 if self.sliding_window is None else self.sliding_window,
            sink_weights=None if self.sinks is None else TensorValue(self.sinks),
        )

    def _on_cpu(
        self,
        queries: TensorValue,
        kv_collection: PagedCacheValues,
        layer_idx: TensorValue,
        input_row_offsets: TensorValue,
    ) -> TensorValue:
        """Returns rows of heads, by our kernel."""
        cpu = DeviceRef.CPU()
        none = ops.constant([], DType.float32, cpu)
        values = [
            queries,
            input_row_offsets,
            kv_collection.kv_blocks,
            kv_collection.page_stride,
            kv_collection.cache_lengths,
            kv_collection.lookup_table,
            layer_idx,
            ops.constant(self.scale, DType.float32, cpu),
            none if self.sinks is None else TensorValue(self.sinks),
        ]
        kind = TensorType(queries.dtype, queries.shape, cpu)
        window = {"window": self.sliding_window or 0}
        return ops.inplace_custom("mx_attention", cpu, values, [kind], window)[0].tensor


class Yarn(YarnRotaryEmbedding):
    """YaRN whose frequencies may be blended between any two of them; MAX takes whole numbers."""

    def _compute_yarn_freqs(self) -> TensorValue:
        """Returns a frequency for each pair of a head's elements."""
        frequencies = yarn_frequencies(self.head_dim, self.theta, self.scaling_params)
        return ops.constant(frequencies, DType.float32, DeviceRef.CPU())


def yarn_frequencies(width: int, theta: float, said: YarnScalingParams) -> np.ndarray:
    """Returns radians a token [width / 2]: slow ones are divided by the factor, fast ones stay.

    Between the numbers of turns `beta_slow` and `beta_fast` in the original context both are
    blended, linearly in the number of the pair (arXiv:2309.00071).
    """

    def place(turns: float) -> float:
        """Returns which pair turns so often in the original context."""
        radians = said.original_max_position_embeddings / turns / (2 * math.pi)
        return width * math.log(radians) / (2 * math.log(theta))

    first, last = place(said.beta_fast), place(said.beta_slow)
    if said.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    pairs = np.arange(width // 2)
    slow = np.clip((pairs - first) / max(last - first, 1e-3), 0, 1)
    fast = theta ** (-2 * pairs / width)
    return (fast * (1 - slow) + fast / said.factor * slow).astype(np.float32)
