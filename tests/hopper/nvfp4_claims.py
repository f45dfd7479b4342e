"""Claims of products with NVFP4 weights on Hopper, for who computes them: interpreter, device.

`product(x, w, plan, **rules)` returns what `linear` does of plain weights, preshuffled for CUDA,
and activations that are kept unless rules say otherwise, or `matmul` of codes. Plans are those of
`hopper/plan.mojo`.
"""

import numpy as np
import torch

import mx_kernels as mx
import oracle
from cases import floats_of, numbers_of, same_bits, values_of

PLANS = [
    "stream 8x32 splitK2", "stream 8x64", "stream 8x128 splitK4", "stream 8x256", "stream 16x32",
    "stream 16x128 splitK2", "stream 32x64 splitK8", "stream 32x256", "stream 64x64",
    "stream 64x128 splitK2", "rs_bf16 64x128", "rs_bf16 64x128 splitK4", "rs_bf16 128x128 splitK2",
    "rs_bf16 256x128", "rs_bf16 64x128 streamK", "rs_bf16 128x128 streamK",
    "rs_bf16 256x128 streamK", "ss_bf16 128x128 prepared", "ss_bf16 128x128 splitK2 prepared",
]  # fmt: skip
"""Every main loop, every height of its tiles, with and without a split of K."""
SCALE_ROUNDINGS = 1
"""A sum meets the tensor scale of its column."""
OF_BOTH = 2
"""And of its row, where both sides are NVFP4."""
NUMBERS = np.array([byte for byte in range(256) if byte & 0x7F != 0x7F], np.uint8)
"""E4M3 scales that are numbers, of either sign."""


def weights(rows, k, seed=0, scales=NUMBERS[:127]):
    """Returns plain weights of any codes, any of some scales, and tensor scales about 1/512."""
    rng = np.random.default_rng(rows + 3 * k + seed)
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    bytes = np.empty((rows, k // 16 + 4), np.uint8)
    bytes[:, :-4] = rng.choice(scales, (rows, k // 16))
    floats_of(bytes)[:] = 2.0 ** rng.uniform(-12, -6, (rows, 1))
    return mx.MXTensor(torch.tensor(codes), torch.tensor(bytes), format="nvfp4")


def check(product, m, n, k, plan, *, dtype=torch.bfloat16, out=torch.bfloat16, has_bias=True):
    """Claims the derived bound of a product with a plan."""
    torch.manual_seed(m + n + k)
    x, bias = torch.randn(m, k).to(dtype), torch.randn(n).to(out) if has_bias else None
    w = weights(n, k)
    got = product(x, w, plan, bias=bias, out_dtype=out)
    assert got.dtype == out
    name, added = str(out).removeprefix("torch."), None if bias is None else values_of(bias)
    left = oracle.round_to(values_of(x), "bfloat16")
    oracle.assert_matmul(
        values_of(got), left, numbers_of(w), name, added, scale_roundings=SCALE_ROUNDINGS
    )


def check_every_number(product, plan, tensor_scales):
    """Claims that each code under each scale byte, and a tensor scale, is rounded once.

    Of the product with one each element is a weight; NaN, whatever its sign, spoils its column.
    """
    scales = np.arange(256, dtype=np.uint8)
    codes = np.tile(np.arange(8, dtype=np.uint8) * 0x22 + 0x10, (256, 2))
    bytes = np.empty((256, 6), np.uint8)
    bytes[:, 0], bytes[:, 1] = scales, scales[::-1]
    floats_of(bytes)[:] = np.resize(np.float32(tensor_scales), (256, 1))
    w = mx.MXTensor(torch.tensor(codes), torch.tensor(bytes), format="nvfp4")
    got = values_of(product(torch.eye(32).bfloat16(), w, plan, out_dtype=torch.float32)).T
    is_nan = ((bytes[:, :2] & 0x7F) == 0x7F).any(1)
    assert np.isnan(got[is_nan]).all() and is_nan.sum() == 4
    blocks = oracle.ELEMENTS["e4m3"].decode(bytes[:, :2]).repeat(16, 1)
    numbers = np.float32(oracle.ELEMENTS["e2m1"].decode(oracle.unpack(codes, 4)) * blocks)
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        expected = numbers * floats_of(bytes)
    # Sums begin with zero: none is minus zero.
    oracle.assert_bitwise_equal(got[~is_nan] + 0.0, np.float64(expected[~is_nan]) + 0.0)


def check_tensor_scales_at_the_ends(product, plan):
    """Claims what float32 has of sums under tensor scales of any size, and those that are none."""
    w = weights(40, 96, scales=NUMBERS[0x30:0x40])
    ends = 2.0 ** np.array([-115, -126, -140, 1, 100, 118, 121, 127])
    floats_of(w.scales.numpy())[:] = np.resize(np.float32(ends), (40, 1))
    x = torch.randn(20, 96).bfloat16() * 2.0**-8
    got = product(x, w, plan, out_dtype=torch.float32)
    oracle.assert_matmul(
        values_of(got), values_of(x), numbers_of(w), scale_roundings=SCALE_ROUNDINGS
    )
    floats_of(w.scales.numpy())[[3, 39]] = np.float32([[np.nan], [np.inf]])
    spoilt = product(x, w, plan, out_dtype=torch.float32)
    assert not spoilt[:, [3, 39]].isfinite().any()
    kept = [column for column in range(40) if column not in (3, 39)]
    assert torch.equal(spoilt[:, kept], got[:, kept])


def check_both_sides(product, m, n, k, plan, *, dtype=torch.bfloat16, out=torch.bfloat16):
    """Claims the derived bound of NVFP4 activations, and that codes have the same bits.

    Rows are of many sizes, some zeros, and one has a number that is not finite: its block is NaN.
    """
    torch.manual_seed(m + n + k)
    x = torch.randn(m, k) * 2.0 ** (torch.arange(m)[:, None] % 9 - 6)
    x[0, 16:32], x[m // 2], x[-1, 5] = 0, 0, torch.inf
    x, w, bias = x.to(dtype), weights(n, k), torch.randn(n).to(out)
    rules = {"bias": bias, "out_dtype": out}
    got = product(x, w, plan, activations="nvfp4", **rules)
    assert got.dtype == out and got[:-1].isfinite().all() and got[-1].isnan().all()
    codes = mx.quantize(x, format="nvfp4")
    same_bits(got, product(codes, w, plan, **rules))
    name = str(out).removeprefix("torch.")
    oracle.assert_matmul(
        values_of(got), numbers_of(codes), numbers_of(w), name, values_of(bias),
        scale_roundings=OF_BOTH,
    )  # fmt: skip


def check_every_pair_of_tensor_scales(product, plan):
    """Claims what float32 has of sums under tensor scales of any size on both sides."""
    ends = 2.0 ** np.array([-149, -130, -107, -105, -60, 0, 60, 82, 84, 100, 127])
    a, w = weights(len(ends), 96, 1), weights(4 * len(ends), 96, 2)
    floats_of(a.scales.numpy())[:] = np.float32(ends[:, None])
    floats_of(w.scales.numpy())[:] = np.resize(np.float32(ends), (len(w.codes), 1))
    got = product(a, w, plan, out_dtype=torch.float32)
    assert (got.isfinite() & (got != 0)).float().mean() > 0.4
    oracle.assert_matmul(values_of(got), numbers_of(a), numbers_of(w), scale_roundings=OF_BOTH)
    floats_of(a.scales.numpy())[3], floats_of(w.scales.numpy())[5] = np.nan, np.inf
    spoilt = product(a, w, plan, out_dtype=torch.float32)
    assert not spoilt[3].isfinite().any() and not spoilt[:, 5].isfinite().any()
    rows, columns = (np.arange(count) != at for count, at in ((len(ends), 3), (len(w.codes), 5)))
    same_bits(spoilt[rows][:, columns], got[rows][:, columns])
