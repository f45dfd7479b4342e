"""Type hints for signatures of your own: names as Literals, arrays, dtypes.

    def mine(x: AnyArray, w: MXTensor, activations: ActivationsName) -> AnyArray:
        return mx_kernels.linear(x, w, activations=activations)

Each Literal has the names of one of the extension's tables, which a test compares. A type checker
refuses any other name; `typing.get_args(FormatName)` gives them to a program that reads names.
"""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

Array = Tensor | np.ndarray
AnyArray = TypeVar("AnyArray", Tensor, np.ndarray)
"""What goes in and comes out as the same kind: a tensor of torch's, or an array of NumPy's."""

RowFormatName = Literal[
    "mxfp4",
    "mxfp8",
    "mxfp8_e5m2",
    "mxint8",
    "fp8",
    "fp8_e5m2",
    "fp8_block",
    "mxfp6",
    "mxfp6_e3m2",
    "nvfp4",
]
"""Formats whose blocks have a row each: what activations can be quantized to."""
FormatName = Literal[RowFormatName, "fp8_block_2d"]
"""All formats, see `mx_kernels.quantize`."""
ActivationsName = Literal[RowFormatName, "mxint16", "bf16"]
"""What activations are multiplied as, see `mx_kernels.linear`."""
ScaleRule = Literal["floor", "even", "ceil", "rceil"]
"""How the scale of a block is chosen."""
RoundsName = Literal["each", "result", "none"]
"""Where a norm rounds, see `mx_kernels.rms_norm_quantize`."""
GateName = Literal["swiglu_oai", "silu", "swiglu_step", "gelu_tanh", "situ", "relu2"]
"""Activations of experts, see `mx_kernels.moe`."""
DeviceName = Literal["cpu", "gfx950", "cuda"]
"""Devices with a layout of their own, and what `mx_kernels.explain` explains."""
LayoutName = Literal["plain", "preshuffled_cdna4", "preshuffled_cpu", "preshuffled_cuda"]
"""Orders of bytes, see `MXTensor.byte_layout`."""
FloatName = Literal["bfloat16", "float16", "float32"]
FloatType = FloatName | torch.dtype | np.dtype | type[np.generic]
"""What says which floats are wanted."""
