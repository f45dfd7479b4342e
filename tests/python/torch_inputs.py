"""Weights, activations and biases for what torch does with our operators, on its default device."""

import torch

import mx_kernels as mx
from cases import LAYOUTS

N, K = 48, 96


def weights(layout="plain", format="mxfp4"):
    generator = torch.Generator("cpu").manual_seed(7)
    dense = torch.randn(N, K, generator=generator, device="cpu")
    q = mx.quantize(dense.to(torch.get_default_device()), format=format)
    device = LAYOUTS[layout]["device"]
    return q.preshuffle(device=device) if device else q


def activations(*lead, dtype=torch.float32, **options):
    torch.manual_seed(8)
    return torch.randn(*(lead or (5,)), K, dtype=dtype, **options)


def bias_of(dtype=torch.float32, **options):
    torch.manual_seed(9)
    return torch.randn(N, dtype=dtype, **options)
