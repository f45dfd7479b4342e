"""Attention with sinks: each head has a number that takes its part of the softmax, and no value."""

from __future__ import annotations

from max.dtype import DType
from max.graph import TensorValue, Weight, ops
from max.nn.attention import AttentionWithRope
from max.nn.kernels import flash_attention_ragged, rope_split_store_ragged
from max.nn.kv_cache import PagedCacheValues


class AttentionWithSinks(AttentionWithRope):
    """MAX's attention, as gpt-oss has it."""

    def __init__(self, **options):
        super().__init__(**options)
        self.sinks = Weight("sinks", DType.float32, [self.n_heads], self.devices[0])

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
        xq = rope_split_store_ragged(
            kv_params=self.kv_params,
            qkv=qkv,
            input_row_offsets=input_row_offsets,
            freqs_cis=ops.cast(freqs_cis, qkv.dtype).to(qkv.device),
            kv_collection=kv_collection,
            layer_idx=layer_idx,
            n_heads=self.n_heads,
            interleaved=self.rope.interleaved,
        )
        out = flash_attention_ragged(
            self.kv_params,
            input=ops.reshape(xq, [-1, self.n_heads, self.kv_params.head_dim]),
            kv_collection=kv_collection,
            layer_idx=layer_idx,
            input_row_offsets=input_row_offsets,
            mask_variant=self.mask_variant,
            scale=self.scale,
            local_window_size=-1 if self.sliding_window is None else self.sliding_window,
            sink_weights=ops.cast(self.sinks, x.dtype),
        )
        return self.o_proj(ops.reshape(out, [x.shape[0], self.q_weight_dim]))
