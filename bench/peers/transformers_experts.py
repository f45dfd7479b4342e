"""What transformers does with gpt-oss on a CPU: its own experts, with dequantized weights.

Bfloat16 takes four times the bytes.
"""

from __future__ import annotations

import torch
from transformers import GptOssConfig
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from bench.experts import Layer


class Peer:
    """transformers' module with the layer's weights."""

    def __init__(self, layer: Layer):
        sizes = layer.sizes
        config = GptOssConfig(
            hidden_size=sizes.hidden,
            intermediate_size=sizes.intermediate,
            num_local_experts=sizes.experts,
            num_experts_per_tok=sizes.active,
        )
        with torch.device("meta"):
            self.experts = GptOssExperts(config)
        parts = {
            "gate_up_proj": layer.gate_up.dequantize("bfloat16").transpose(1, 2).contiguous(),
            "down_proj": layer.down.dequantize("bfloat16").transpose(1, 2).contiguous(),
            "gate_up_proj_bias": layer.bias_gate_up.bfloat16(),
            "down_proj_bias": layer.bias_down.bfloat16(),
        }
        self.experts.load_state_dict(parts, assign=True)

    def prepare(self, x: torch.Tensor):
        """Returns a call of experts and their weights for tokens x, and where its result is."""
        out: list[torch.Tensor] = []

        def call(ids, weights):
            out[:] = [self.experts(x, ids.long(), weights.to(x.dtype))]

        return call, lambda: out[0]
