"""NVFP4's quantizer is ModelOpt's, and its tensor scales stay with their rows.

The sweeps of every value, the products and the experts are in `test_fp8`, with other formats whose
sums are multiplied by floats. Here is what NVFP4 has alone: E4M3 scales and tensor scales.
"""

import copy
import hashlib
import pickle

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
from mx_kernels._core.facts import facts
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
"""SHA-256 of the codes and scales that ModelOpt 0.47.0 (torch 2.13.0, on a CPU) makes of all the
numbers of a type up to a magnitude, in the order of their patterns, with one tensor scale; without
-0, whose sign it drops."""


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
            wanted = np.broadcast_to(np.float32(values_of(tensor_scale)), (2, 5))
        codes, scales = oracle.quantize(x, "even", "nvfp4", wanted)
        assert_bitwise_equal(q.codes.cpu().numpy(), codes)
        assert_bitwise_equal(q.scales.cpu().numpy(), scales)
        assert_bitwise_equal(values_of(q.tensor_scale), oracle.tensor_scales(scales)[..., 0])
        again = mx.MXTensor(q.codes, q.block_scales, format="nvfp4", tensor_scale=q.tensor_scale)
        assert torch.equal(again.scales, q.scales)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("k", range(32, 32 * 9, 32))
def test_scales_and_tensor_scales_are_copies_wherever_they_lie(k, rows):
    q = mx.quantize(torch.randn(rows, k), format="nvfp4")
    scales, tensor_scale = q.block_scales, q.tensor_scale
    kept = q.scales.clone()
    again = mx.MXTensor(q.codes, scales, format="nvfp4", tensor_scale=tensor_scale)
    assert torch.equal(again.scales, kept)
    tensor_scale.zero_(), scales.view(torch.uint8).zero_()
    assert torch.equal(q.scales, kept)


def test_the_tensor_scale_of_a_tensor_is_of_its_finite_numbers():
    x = torch.tensor([[1.0, -5.0], [float("nan"), float("inf")]])
    assert mx.tensor_scale_of(x) == torch.tensor(5.0) / 2688
    assert mx.tensor_scale_of(torch.zeros(2, 3)) == 2.0**-115
    assert mx.tensor_scale_of(x.cpu().numpy()) == mx.tensor_scale_of(x.bfloat16())


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
    for scale_rule in ("floor", "ceil", "rceil"):
        with pytest.raises(ValueError, match=r"whose scales are e4m3, expected 'even'"):
            mx.quantize(x, format="nvfp4", scale_rule=scale_rule)


# Parts and wholes: tensor scales stay with their rows


def numbers(q):
    return values_of(q.dequantize("float32"))


@pytest.fixture
def weights(rng):
    """Rows of every size."""
    x = rng.standard_normal((3, 32, 128)) * 2.0 ** rng.uniform(-20, 20, (3, 32, 1))
    return mx.quantize(torch_of(x, "float32"), format="nvfp4")


@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_parts_and_wholes_keep_numbers(rng, layout):
    row = facts().layouts[layout]
    unit = row.k_unit(facts().formats["nvfp4"])
    k = 4 * unit
    x = rng.standard_normal((3, 32, k)) * 2.0 ** rng.uniform(-20, 20, (3, 32, 1))
    weights = mx.quantize(torch_of(x, "float32"), format="nvfp4")
    q, x = weights._relayout(row), numbers(weights)
    for part, expected in (
        (q[1], x[1]), (q[:, :, unit : 3 * unit], x[..., unit : 3 * unit]), (q[1:], x[1:]),
        (q[..., 2 * unit :], x[..., 2 * unit :]), (q.clone(), x),
        (q.unshuffle()[:, 3:20], x[:, 3:20]), (q[2, 0 if layout == "plain" else slice(None)],
                                               x[2, 0] if layout == "plain" else x[2]),
        (torch.cat([q[..., unit:], q[..., :unit]], 2),
         np.concatenate([x[..., unit:], x[..., :unit]], 2)),
        (torch.cat([q[:1], q[2:]]), x[[0, 2]]), (torch.stack([q[2], q[0]]), x[[2, 0]]),
        (q.view(3, 1, 32, k), x[:, None]), (q.unshuffle().view(96, k), x.reshape(96, k)),
    ):  # fmt: skip
        assert_bitwise_equal(numbers(part), expected)
    with pytest.raises(ValueError, match=r"cat: got nvfp4 along K, whose rows have other tensor"):
        torch.cat([q[0], q[1]], 1)
    with pytest.raises(ValueError, match=f"got K 16:{k} of {k}"):
        q[:, :, 16:]


@pytest.mark.parametrize("rows, k", [(1, 32), (33, 96), (64, 416)])
@pytest.mark.parametrize("layout", oracle.LAYOUTS)
def test_scales_lie_row_by_row_or_one_by_one_or_two_by_two_as_scales_of_blocks_with_zeros(
    rng, layout, rows, k
):
    """Tensor scales likewise; and what lies so is what it was: its parts, back, as floats."""
    codes, scales = (rng.integers(0, 256, (rows, n), np.uint8) for n in (k // 2, k // 16 + 4))
    q = mx.MXTensor(torch.tensor(codes), torch.tensor(scales), format="nvfp4")
    there = q._relayout(facts().layouts[layout])
    order = oracle.LAYOUTS[layout]
    assert_bitwise_equal(there.codes.cpu().numpy(), order.store(codes, scales)[0])
    assert_bitwise_equal(there.scales.cpu().numpy(), order.store_e4m3(scales))
    if layout != "plain":
        assert q.preshuffle(facts().layouts[layout].device).byte_layout == layout
    back = there.unshuffle()
    assert torch.equal(back.codes, q.codes) and torch.equal(back.scales, q.scales)
    for part in ("block_scales", "tensor_scale"):
        found, wanted = getattr(there, part), getattr(q, part)
        assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))
    assert_bitwise_equal(numbers(there), numbers(q))


def test_one_row_of_a_tensor_is_no_part_of_one_long_row(weights):
    with pytest.raises(ValueError, match=r"K stays"):
        weights.view(-1)


@pytest.mark.cpu_only
@pytest.mark.parametrize("activations", ["mxint8", "mxfp4", "mxfp6"])
@pytest.mark.parametrize("layout", ["plain", "cpu"])
def test_a_scale_of_zero_is_codes_of_zeros(rng, activations, layout):
    # Beside powers of two regular scales are exponents that are added, others numbers.
    w = mx.quantize(torch_of(rng.standard_normal((80, 288)), "float32"), format="nvfp4")
    scales, codes = w.block_scales.view(torch.uint8).clone(), w.codes.clone()
    scales[17, 3], codes[17, 3 * 8 : 4 * 8] = 0, 0
    pairs = (w.codes, scales.view(torch.float8_e4m3fn)), (codes, w.block_scales)
    by_scale, by_codes = (
        mx.MXTensor(*pair, format="nvfp4", tensor_scale=w.tensor_scale) for pair in pairs
    )
    if layout != "plain":
        by_scale, by_codes = by_scale.preshuffle(), by_codes.preshuffle()
    for rows in (1, 5, 14, 40):
        x = torch_of(rng.standard_normal((rows, 288)), "float32")
        got, expected = (
            mx.linear(x, weights, activations=activations, out_dtype="float32")
            for weights in (by_scale, by_codes)
        )
        assert_bitwise_equal(values_of(got), values_of(expected))


@pytest.mark.cpu_only
def test_files_copies_and_pickles_keep_bytes(weights, tmp_path):
    w = weights[0]
    mx.save({"w": w, "e": weights}, tmp_path / "w.safetensors")
    loaded = mx.load(tmp_path / "w.safetensors", preshuffle=False)
    for got, expected in (
        (loaded["w"], w), (loaded["e"], weights), (pickle.loads(pickle.dumps(w)), w),
        (copy.deepcopy(w), w), (mx.MXTensor(w.codes, w.scales, format="nvfp4"), w),
    ):  # fmt: skip
        assert got.format == "nvfp4" and got.shape == expected.shape
        assert torch.equal(got.codes, expected.codes) and torch.equal(got.scales, expected.scales)


@pytest.mark.cpu_only
def test_layers_of_a_model_become_nvfp4_and_keep_their_activations(rng):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 64))
    x = torch.randn(5, 64)
    exact = model(x)
    mx.convert(model, format="nvfp4")
    assert [layer.format for layer in mx.conversion_report(model).layers] == ["nvfp4"] * 2
    assert {layer.activations for layer in mx.conversion_report(model).layers} == {"bf16"}
    error = (model(x) - exact).norm() / exact.norm()
    assert 0.01 < error < 0.2
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    quantizes = torch.compile(
        lambda x: mx.quantize(x, format="nvfp4", tensor_scale=0.01).dequantize("float32"),
        backend="aot_eager", fullgraph=True,
    )  # fmt: skip
    expected = mx.quantize(x, format="nvfp4", tensor_scale=0.01).dequantize("float32")
    assert torch.equal(quantizes(x), expected)


@pytest.mark.cpu_only
@pytest.mark.parametrize("format", ["mxfp4", "mxfp8", "fp8_block", "fp8_block_2d", "nvfp4"])
@pytest.mark.parametrize("source", ["nvfp4", "fp8_block_2d", "mxint8"])
def test_requantize_is_quantize_of_the_numbers_in_float32(rng, source, format, monkeypatch):
    monkeypatch.setattr(mx.ops, "_FLOATS_AT_ONCE", 1 << 13)
    w = mx.quantize(torch_of(rng.standard_normal((2, 300, 160)), "bfloat16"), format=source)
    floats = w.dequantize("float32")
    expected = mx.quantize(floats, format=format) if format != source else w
    for given in (w, w.preshuffle("cpu")):
        got, error = mx.requantize(given, format)
        assert (got.format, got.shape, got.dtype) == (format, w.shape, w.dtype)
        assert got.byte_layout == given.byte_layout
        assert torch.equal(got.unshuffle().codes, expected.codes)
        assert torch.equal(got.unshuffle().scales, expected.scales)
        lost = values_of(expected.dequantize("float32")) - values_of(floats)
        wanted = np.sqrt((lost**2).sum() / (values_of(floats) ** 2).sum())
        np.testing.assert_allclose(error, wanted, rtol=1e-12)
        assert error == 0 if format == source else 0 < error < 0.15


@pytest.mark.cpu_only
@pytest.mark.parametrize("format", ["mxfp6", "mxfp6_e3m2"])
def test_six_bits_become_mxfp8_without_a_loss_under_scales_that_are_rounded_up(format):
    """Of every code under every largest one, either sign."""
    codes = np.minimum(np.arange(32), np.arange(1, 32)[:, None]).astype(np.uint8)
    codes = np.concatenate([codes, codes | 0x20])
    scales = torch.full((len(codes), 1), 120, dtype=torch.uint8)
    w = mx.MXTensor(torch.from_numpy(oracle.pack(codes, 6)), scales, format=format)
    got, error = mx.requantize(w, "mxfp8", scale_rule="rceil")
    assert error == 0
    assert torch.equal(got.dequantize("float32"), w.dequantize("float32"))
