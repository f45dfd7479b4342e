"""NVFP4's quantizer is ModelOpt's, and its tensor scales stay with their rows.

The sweeps of every value, the products and the experts are in `test_fp8`, with other formats whose
sums are multiplied by floats. Here is what NVFP4 has alone: E4M3 scales and tensor scales.
"""

import hashlib

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    NUMPY_DTYPES,
    every_dtype,
    every_value,
    on_every_device,
    pack,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal

pytestmark = on_every_device
E4M3 = oracle.ELEMENTS["e4m3"]
POSITIVE = np.arange(1, 0x7F, dtype=np.uint8)
"""Scale bytes that a block can get which holds no NaN."""
MODELOPT = {
    ("float16", 65504.0): "2430c641922752773f83fbcfa0f73193c0d4d26a6327f70b3e217124693c5efe",
    ("float16", 1.0): "9231d758d2ba08fd6367258a9328d73e1473b329915711983c5ccb1336da677f",
    ("bfloat16", 1.0): "7b9cc1e2eb0608191253973d9fe5080fc8eab3e14e8e281c8b86d274027aa21d",
    ("bfloat16", 2.0**-90): "967eb7f853d0bfc0c391dbb964b0e9d20b16d19b6c097b9e846f472b1fa35834",
}
"""SHA-256 of the codes and scales that ModelOpt 0.47.0 (torch 2.13.0, on a CPU) makes of all numbers
of a type up to a magnitude, in the order of their patterns, with one tensor scale; without -0, whose
sign it drops."""


def test_codes_and_scales_are_modelopts_own_bytes():
    for (dtype, largest), expected in MODELOPT.items():
        x = patterns(dtype, largest)
        q = mx.quantize(torch_of(x, dtype), format="nvfp4", tensor_scale=largest / 2688)
        parts = q.codes.cpu().numpy(), q.block_scales.view(torch.uint8).cpu().numpy()
        got = hashlib.sha256(b"".join(np.ascontiguousarray(part).tobytes() for part in parts))
        assert got.hexdigest() == expected, (dtype, largest)


def patterns(dtype, largest):
    """Returns all numbers of a 16-bit type up to a magnitude, in rows of 32."""
    values = every_value(dtype)
    values = values[abs(values) <= largest]
    values = values[(values != 0) | ~np.signbit(values)]
    return values[: len(values) // 32 * 32].reshape(-1, 32)


@pytest.mark.parametrize("largest", [2.0**-90, 1.0, 65504.0, 2.0**100])
@every_dtype
def test_quantize_is_the_operations_in_float32_with_the_types_of_ml_dtypes(rng, dtype, largest):
    if dtype == "float16" and not 2.0**-10 < largest < 2.0**16:
        return
    x = patterns("float16" if dtype == "float16" else "bfloat16", largest)
    if dtype == "float32":
        x = np.float32(x * (1 + rng.uniform(-0.4, 0.4, x.shape))).astype(np.float64)
        x = np.clip(x, -largest, largest)
    x[0, 0] = largest
    tensor = np.float32(largest) / np.float32(6 * 448)
    q = mx.quantize(torch_of(x, dtype), format="nvfp4", tensor_scale=float(tensor))
    blocks = np.float32(x).reshape(-1, 2, 16)
    amax = abs(blocks).max(-1)
    scale = np.clip(amax / (np.float32(6) * tensor), np.float32(2.0**-9), np.float32(448))
    scale = np.where(amax == 0, np.float32(1), scale).astype(ml_dtypes.float8_e4m3fn)
    divided = blocks / (scale.astype(np.float32) * tensor)[..., None]
    codes = np.clip(divided, -6, 6).astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    assert_bitwise_equal(q.block_scales.view(torch.uint8).cpu().numpy(), scale.view(np.uint8))
    assert_bitwise_equal(q.codes.cpu().numpy(), pack(codes.reshape(-1, 32), "nvfp4"))


@every_dtype
def test_every_turn_of_the_elements_under_every_scale(dtype):
    """Ties, which go to the even code, and the next numbers on both sides of each."""
    magnitudes = oracle.ELEMENTS["e2m1"].magnitudes
    middles = (magnitudes[1:] + magnitudes[:-1]) / 2
    number = NUMPY_DTYPES[dtype].type
    rows = np.zeros((len(POSITIVE), 3, 16))
    for row, scale in zip(rows, E4M3.decode(POSITIVE), strict=True):
        exact = (middles * scale).astype(number)
        assert (np.float64(exact) == middles * scale).all()
        around = [exact, np.nextafter(exact, number(0)), np.nextafter(exact, number(60000))]
        row[:, :7], row[:, 7:14], row[:, 15] = around, np.negative(around), 6 * scale
    x = rows.reshape(len(POSITIVE), 48)
    x = np.concatenate([x, x[:, ::-1][:, :16]], 1)
    q = mx.quantize(torch_of(x, dtype), format="nvfp4", tensor_scale=1.0)
    codes, scales = oracle.quantize(x, "even", "nvfp4", 1.0)
    assert (q.block_scales.view(torch.uint8).cpu().numpy() == POSITIVE[:, None]).all()
    assert_bitwise_equal(q.codes.cpu().numpy(), codes)
    assert_bitwise_equal(q.scales.cpu().numpy(), scales)


@every_dtype
def test_rows_have_tensor_scales_of_their_own_or_given_ones(rng, dtype):
    x = oracle.round_to(rng.standard_normal((2, 5, 64)) * 2.0 ** np.arange(5)[:, None], dtype)
    given = np.float32(2.0 ** rng.uniform(-9, 2, (2, 5)))
    floats = torch_of(x, dtype)
    for tensor_scale in (None, given, 0.01, torch.tensor(0.01), given[:, :1]):
        q = mx.quantize(floats, format="nvfp4", tensor_scale=tensor_scale)
        wanted = tensor_scale
        if tensor_scale is not None:
            wanted = np.broadcast_to(np.float32(tensor_scale), (2, 5))
        codes, scales = oracle.quantize(x, "even", "nvfp4", wanted)
        assert_bitwise_equal(q.codes.cpu().numpy(), codes)
        assert_bitwise_equal(q.scales.cpu().numpy(), scales)
        assert_bitwise_equal(values_of(q.tensor_scale), oracle.tensor_scales(scales)[..., 0])
        again = mx.MXTensor(q.codes, q.block_scales, format="nvfp4", tensor_scale=q.tensor_scale)
        assert torch.equal(again.scales, q.scales)


def test_the_tensor_scale_of_a_tensor_is_of_its_finite_numbers():
    x = torch.tensor([[1.0, -5.0], [float("nan"), float("inf")]])
    assert mx.tensor_scale_of(x) == torch.tensor(5.0) / 2688
    assert mx.tensor_scale_of(torch.zeros(2, 3)) == 2.0**-115
    assert mx.tensor_scale_of(x.numpy()) == mx.tensor_scale_of(x.bfloat16())


def test_what_has_no_tensor_scale_takes_none_and_wrong_ones_are_named():
    x = torch.randn(3, 64)
    q = mx.quantize(x)
    assert q.tensor_scale is None and q.block_scales is q.scales
    with pytest.raises(ValueError, match="tensor_scale: got one with mxfp4"):
        mx.quantize(x, tensor_scale=1.0)
    with pytest.raises(ValueError, match="tensor_scale: got one with mxfp4"):
        mx.MXTensor(q.codes, q.scales, tensor_scale=1.0)
    for wrong in (0.0, -1.0, float("nan"), float("inf"), 2.0**-116, 2.0**118):
        with pytest.raises(
            ValueError, match=r"tensor_scale: got .* expected numbers from 2\*\*-115"
        ):
            mx.quantize(x, format="nvfp4", tensor_scale=wrong)
    for shape in ((2,), (3, 1), (1, 1, 3)):
        with pytest.raises(ValueError, match=r"tensor_scale: got shape .* expected one number, or"):
            mx.quantize(x, format="nvfp4", tensor_scale=torch.ones(shape))
    for rounding in ("floor", "ceil", "rceil"):
        with pytest.raises(ValueError, match=r"whose scales are e4m3, expected 'even'"):
            mx.quantize(x, format="nvfp4", rounding=rounding)
