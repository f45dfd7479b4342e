"""MXFP4 as ggml has it, without ggml."""

from __future__ import annotations

import numpy as np
import torch


def mxfp4_blocks(codes: torch.Tensor, scales: torch.Tensor) -> np.ndarray:
    """Returns ggml's bytes: per block the scale, then 16 bytes of codes.

    Byte i of a block holds code i in its low half and code i + 16 in its high
    half; ours holds neighbours 2 i and 2 i + 1.
    """
    rows, k_blocks = scales.shape
    packed = codes.reshape(rows, k_blocks, 16)
    elements = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(2)
    low, high = elements.chunk(2, dim=-1)
    return torch.cat([scales.unsqueeze(-1), low | high << 4], dim=-1).flatten(1).numpy()
