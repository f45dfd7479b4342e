"""What `test_cuda_experts` and `ptx/test_experts` share: weights of experts, and the bound of a
grouped product, expert by expert."""

import torch

import mx_kernels as mx
import oracle
from cases import numbers_of, values_of

DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def experts(count, n, k, scale=0.05):
    """Returns plain weights, and the same as the kernels want them."""
    plain = mx.quantize(torch.randn(count, n, k) * scale)
    return plain, plain.preshuffle(device="cuda")


def left_numbers(x, mode):
    """Returns what activations are multiplied as."""
    if mode == "bf16":
        return oracle.round_to(values_of(x), "bfloat16")
    return numbers_of(mx.quantize(x, format=mode))


def assert_is_product(got, x, plain, sizes, mode, bias=None):
    """Claims the bound for every expert, and zeros behind."""
    left, first = left_numbers(x, mode), 0
    for expert, size in enumerate(sizes):
        rows = slice(first, first + size)
        if size:
            added = None if bias is None else values_of(bias[expert])
            w = numbers_of(plain[expert])
            oracle.assert_matmul(values_of(got[rows]), left[rows], w, DTYPES[got.dtype], added)
        first += size
    assert (got[first:] == 0).all()
