"""Unusual but right arguments: the same bits as from a plain contiguous copy."""

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import mx_kernels as mx
from cases import every_format, on_every_device

pytestmark = on_every_device
N, K = 48, 64


class Operands:
    """Activations, weights and a bias on torch's default device; floats as arrays too."""

    def __init__(self):
        generator = np.random.default_rng(5)
        self.x = torch.ones(3, K)
        self.w = mx.quantize(torch.tensor(generator.standard_normal((N, K)), dtype=torch.float32))
        self.p = self.w.preshuffle()
        self.bias = torch.tensor(generator.standard_normal(N), dtype=torch.float32)
        self.nx, self.nbias = self.x.cpu().numpy(), self.bias.cpu().numpy()


@pytest.fixture
def given(device):
    return Operands()


def unusual():
    base = torch.randn(6, 4, 3 * K)
    wide = torch.randn(5, 4 * K)
    return {
        "sliced columns": wide[:, K : 2 * K],
        "every other row": wide[::2, :K],
        "sliced 3-D": base[..., K : 2 * K],
        "uncollapsible": base[:, ::2, :K],
        "transposed": torch.randn(K, 7).T,
        "swapped lead": base.transpose(0, 1)[..., :K],
        "every other column": wide[:, ::2][:, :K],
        "expanded row": torch.randn(1, K).expand(5, K),
        "expanded batch": torch.randn(4, K).expand(3, 4, K),
        "expanded number": torch.randn(1, 1).expand(5, K),
        "one row, odd stride": torch.randn(3, K + 5)[1:2, :K],
        "misaligned": torch.randn(5 * K + 1)[1:].view(5, K),
        "negated view": torch._neg_view(torch.randn(5, K)),
        "negated part of a complex tensor": torch.randn(5, K, dtype=torch.cfloat).conj().imag,
        "flipped": wide.flip(0)[:, :K],
        "no rows": torch.empty(0, K),
        "no rows, 3-D": torch.empty(3, 0, K),
        "vector": torch.randn(K),
        "5-D": torch.randn(1, 2, 1, 3, K),
        "parameter": torch.nn.Parameter(torch.randn(5, K), requires_grad=False),
    }


@pytest.mark.parametrize("case", unusual())
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_unusual_tensors_mean_what_their_copy_means(case, dtype, given):
    x = unusual()[case]
    x = x if dtype == torch.float32 else x.to(dtype)
    copy = x.resolve_neg().clone(memory_format=torch.contiguous_format)
    got, expected = mx.quantize(x), mx.quantize(copy)
    assert torch.equal(got.codes, expected.codes)
    assert torch.equal(got.scales, expected.scales)
    out = mx.linear(x, given.p, bias=given.bias, activations="mxfp4")
    assert out.shape == (*x.shape[:-1], N)
    assert torch.equal(out, mx.linear(copy, given.p, bias=given.bias, activations="mxfp4"))
    assert torch.equal(
        mx.linear(x, given.p, bias=given.bias), mx.linear(copy, given.p, bias=given.bias)
    )
    assert torch.equal(out, mx.matmul(got, given.p, bias=given.bias, out_dtype=dtype))


def unusual_arrays():
    wide = np.random.default_rng(3).standard_normal((6, 4 * K)).astype(np.float32)
    packed = np.zeros((5, K), dtype=[("a", "u1"), ("x", "f4")])
    packed["x"] = wide[:5, :K]
    read_only = wide[:, :K].copy()
    read_only.flags.writeable = False
    odd_rows = np.frombuffer(bytearray(5 * (4 * K + 1)), np.uint8).reshape(5, 4 * K + 1)[:, : 4 * K]
    return {
        "reversed rows": wide[::-1, :K],
        "reversed columns": wide[:, K - 1 :: -1],
        "field of a struct": packed["x"],
        "read-only": read_only,
        "Fortran order": np.asfortranarray(wide[:, :K]),
        "broadcast": np.broadcast_to(wide[0, :K], (5, K)),
        "rows at odd bytes": odd_rows.view(np.float32),
        "matrix subclass": wide[:, :K].view(np.memmap),
        "no rows": wide[:0, :K],
        "vector": wide[0, :K],
        "3-D": wide.reshape(6, 4, K),
    }


@pytest.mark.cpu_only
@pytest.mark.parametrize("case", unusual_arrays())
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_unusual_arrays_mean_what_their_copy_means(case, dtype, given):
    x = unusual_arrays()[case]
    x = x if dtype == np.float32 else x.astype(dtype)
    copy = torch.from_numpy(np.array(x, np.float32, order="C")).to(
        getattr(torch, np.dtype(dtype).name)
    )
    got = mx.quantize(x)
    assert (got.dtype, got.shape) == (copy.dtype, copy.shape)
    np.testing.assert_array_equal(got.codes, mx.quantize(copy).codes)
    out = mx.linear(x, given.w, bias=given.nbias)
    assert isinstance(out, np.ndarray)
    assert out.dtype == dtype
    assert out.shape == (*x.shape[:-1], N)
    np.testing.assert_array_equal(
        out.astype(np.float32), mx.linear(copy, given.w, bias=given.bias).float().numpy()
    )


@pytest.mark.parametrize("step", [2, -1, 0])
def test_a_bias_with_any_stride_is_read_right(step, given):
    values = np.arange(2 * N, dtype=np.float32)
    bias = np.broadcast_to(values[3], (N,)) if step == 0 else values[::step][:N]
    expected = mx.linear(given.nx, given.w.cpu(), bias=bias.copy())
    np.testing.assert_array_equal(mx.linear(given.nx, given.w.cpu(), bias=bias), expected)
    if step > 0:
        strided = torch.tensor(values)[::step][:N]
        got = mx.linear(given.x, given.w, bias=strided)
        assert torch.equal(got, mx.linear(given.x, given.w, bias=strided.clone()))


@every_format
@pytest.mark.parametrize("case", ["sliced 3-D", "uncollapsible", "negated view", "no rows"])
def test_unusual_tensors_of_any_format_mean_what_their_copy_means(case, format, given):
    x = unusual()[case]
    copy = x.resolve_neg().clone(memory_format=torch.contiguous_format)
    got, expected = mx.quantize(x, format=format), mx.quantize(copy, format=format)
    assert torch.equal(got.codes, expected.codes)
    assert torch.equal(got.scales, expected.scales)
    out = mx.linear(x, given.p, bias=given.bias, activations=format)
    assert torch.equal(out, mx.matmul(got, given.p, bias=given.bias, out_dtype=x.dtype))


@pytest.mark.parametrize("format", ["mxfp4", "mxint8", "mxfp6", "fp8", "fp8_block_2d"])
def test_codes_and_scales_that_are_negated_lazily_are_read_with_their_signs(format, given):
    q = mx.quantize(given.x * torch.randn(3, K), format=format)
    for codes, scales in ((torch._neg_view(-q.codes), q.scales),
                          (q.codes, torch._neg_view(-q.scales))):  # fmt: skip
        same = mx.MXTensor(codes, scales, format=format, dtype=q.dtype)
        assert torch.equal(same.dequantize(), q.dequantize())
        assert torch.equal(mx.matmul(same, given.w), mx.matmul(q, given.w))
    none = torch._efficientzerotensor(q.codes.shape, dtype=torch.uint8, device=q.device)
    assert (mx.MXTensor(none, q.scales, format=format).dequantize() == 0).all()


@pytest.mark.cpu_only
@pytest.mark.parametrize("format", ["mxfp4", "fp8"])
def test_codes_and_scales_of_any_kind_of_array_are_read_right(format, given):
    q = mx.quantize(given.x[:1], format=format)
    arrays = q.codes.numpy(), q.scales.numpy()
    kinds = (np.asmatrix, lambda a: a.view(np.memmap), lambda a: a[::-1],
             lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape))  # fmt: skip
    for kind in kinds:
        same = mx.MXTensor(*map(kind, arrays), format=format)
        assert torch.equal(same.dequantize("float32"), q.dequantize("float32"))
    with pytest.raises(TypeError, match="got dtype >f4, expected float32 for fp8"):
        mx.MXTensor(arrays[0], np.ones((1, 1), ">f4"), format="fp8")
    with pytest.raises(ValueError, match=r"scales: got a non-contiguous array, expected .*np\."):
        mx.MXTensor(np.ones((2, 64), "u1"), np.ones((2, 2), "f4")[:, ::2], format="fp8")


@every_format
@pytest.mark.cpu_only
def test_arrays_give_the_bits_of_tensors_in_any_format(format, given):
    w = mx.quantize(given.w.dequantize("float32"), format=format)
    x = given.nx
    np.testing.assert_array_equal(mx.quantize(x, format=format).codes,
                                  mx.quantize(given.x, format=format).codes)  # fmt: skip
    for mode in (format, "bf16"):
        got = mx.linear(x, w, bias=given.nbias, activations=mode)
        expected = mx.linear(given.x, w, bias=given.bias, activations=mode)
        np.testing.assert_array_equal(got, expected)


def test_weights_without_rows_give_results_without_columns(given):
    empty = mx.quantize(torch.empty(0, K))
    assert mx.linear(given.x, empty).shape == (3, 0)
    assert mx.matmul(given.w, empty).shape == (N, 0)
    assert mx.dequantize(empty).shape == (0, K)
    assert mx.preshuffle(empty).unshuffle().shape == (0, K)


@pytest.mark.parametrize("dtype", ["float32", np.float32, torch.float32, np.dtype("float32")])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_a_dtype_has_many_spellings(dtype, kind, given):
    x, w = (given.x, given.w) if kind == "torch" else (given.nx, given.w.cpu())
    expected = torch.float32 if kind == "torch" else np.float32
    assert mx.linear(x, w, out_dtype=dtype).dtype == expected
    assert mx.dequantize(w, dtype=dtype).dtype == torch.float32
    assert mx.matmul(w, w, out_dtype=dtype).dtype == torch.float32


@pytest.mark.cpu_only
def test_arrays_pass_by_whatever_watches_torch(given):
    expected = mx.linear(given.nx, given.w)
    with FlopCounterMode(display=False):
        np.testing.assert_array_equal(mx.linear(given.nx, given.w), expected)
        assert mx.quantize(given.nx).dtype == torch.float32
