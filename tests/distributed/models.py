"""Layers that tests put on several ranks: the same on each, since the seed is.

Sizes are odd on purpose: 7 blocks are 4 and 3 on two ranks, 2, 2, 2 and 1 on four.
"""

import torch
from torch import nn

import mx_kernels as mx
from cases import LAYOUTS, sums_of

WIDTH, INNER, TOKENS, EXPERTS, CHOSEN = 96, 224, 13, 8, 3
LAYOUTS_HERE = ("plain", "preshuffled_cpu")
WIDE = 480
"""Blocks of 128 are 2 and 2 on two ranks, 1 each on four; the last one is three quarters."""
FORMATS = {"mxint8": "mxint8", "fp8": "fp8", "fp8_block": "fp8_block", "fp8_block_2d": "fp8_block"}
"""Weights of other blocks than MXFP4, and what their activations are multiplied as."""


def weights(*shape, layout="plain", format="mxfp4"):
    q = mx.quantize(torch.randn(*shape) / shape[-1] ** 0.5, format=format)
    device = LAYOUTS[layout]["device"]
    return q.preshuffle(device=device) if device else q


def mlp(layout="plain", dtype=torch.float32, activations="mxfp4", seed=1, inner=INNER, **format):
    """Returns up, gate and down: x -> down(relu(up(x)))."""
    torch.manual_seed(seed)

    def layer(out, width):
        bias = torch.randn(out, dtype=dtype)
        weight = weights(out, width, layout=layout, **format)
        return mx.MXLinear(weight, bias, activations=activations)

    return nn.Sequential(layer(inner, WIDTH), nn.ReLU(), layer(WIDTH, inner))


def experts(
    hidden_act="swiglu_oai",
    layout="plain",
    dtype=torch.float32,
    activations="mxfp4",
    inner=INNER,
    **format,
):
    torch.manual_seed(2)
    sums = sums_of(hidden_act, inner)
    return mx.MXExperts(
        weights(EXPERTS, sums, WIDTH, layout=layout, **format),
        weights(EXPERTS, WIDTH, inner, layout=layout, **format),
        gate_up_proj_bias=torch.randn(EXPERTS, sums, dtype=dtype),
        down_proj_bias=torch.randn(EXPERTS, WIDTH, dtype=dtype),
        hidden_act=hidden_act,
        activations=activations,
    )


def of_format(make, format):
    """Returns a layer of weights and activations of FORMATS."""
    return make(format=format, inner=WIDE, activations=FORMATS[format])


def tokens(count=TOKENS, dtype=torch.float32, seed=3):
    torch.manual_seed(seed)
    return torch.randn(count, WIDTH).to(dtype)


def routed(count=TOKENS, seed=4):
    """Returns ids and weights of the experts of each token; some slots have none."""
    torch.manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(count)])
    ids[1::5, 0] = -1
    return ids, torch.rand(count, CHOSEN)
