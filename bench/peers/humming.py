"""humming (`pip install humming-kernels`): bfloat16 activations times MXFP4 weights, on the GPU.

The package compiles its kernels with the CUDA toolkit at the first use of a shape. It takes
weights as they are stored, plain, and rearranges them once; shapes that it does not take raise.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch

NAME = "humming"


def layers(weights: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[Callable]:
    """Returns a function of the activations for each pair of codes [N, K/2] and scales [N, K/32].

    Raises:
        ImportError: if the package is not installed.
        Exception: if it does not take the shape, with its own message.
    """
    from humming.layer import HummingLayer  # noqa: PLC0415  an optional package

    codes, scales = weights[0]
    first = HummingLayer(
        shape_n=codes.shape[0],
        shape_k=2 * codes.shape[1],
        weight_config={"quant_method": "mxfp4"},
        torch_dtype=torch.bfloat16,
    ).cuda()
    first.load_from_tensors({"weight": codes, "weight_scale": scales})
    first.transform()
    return [first, *(copy.deepcopy(first) for _ in weights[1:])]
