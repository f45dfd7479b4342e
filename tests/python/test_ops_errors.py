"""Misuse of the operations: what was got, what was expected, and how to repair the call.

Each call differs from a good one by one thing.
"""

import copy
import sys
import warnings
from functools import partial

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import ACTIVATIONS, LAYOUTS, ROUNDINGS

N, K = 48, 64
X = torch.ones(3, K)
NX = X.numpy()
W = P = None
"""Weights, see `_weights`: plain and preshuffled."""
BIAS = torch.ones(N)
META = torch.device("meta")
PRESHUFFLED = [name for name, row in LAYOUTS.items() if row["device"]]


@pytest.fixture(scope="module", autouse=True)
def _weights():
    """Makes the weights when the first test runs; nothing is compiled to collect tests."""
    global W, P  # noqa: PLW0603
    W = mx.quantize(torch.ones(N, K))
    P = W.preshuffle()


def quietly(make):
    """Makes a tensor of a kind that torch warns about."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def nested():
    return torch.nested.nested_tensor([torch.ones(2, K), torch.ones(3, K)])


def quantized():
    return torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


# name: (call, error, what the message contains)
BAD_ACTIVATIONS = {
    "list": ([[1.0] * K], TypeError, "x: got list, expected a torch tensor or NumPy array"),
    "none": (None, TypeError, "x: got NoneType, expected a torch tensor or NumPy array"),
    "number": (1.0, TypeError, "x: got float, expected a torch tensor or NumPy array"),
    "0-d": (torch.tensor(1.0), ValueError, "x: got a single number, expected shape [..., K]"),
    "0-d array": (np.array(1, np.float32), ValueError, "x: got a single number"),
    "int64": (X.long(), TypeError, "x: got dtype int64, expected bfloat16 or float16 or float32"),
    "bool": (X.bool(), TypeError, "x: got dtype bool"),
    "uint8": (X.byte(), TypeError, "convert first, for example x.float()"),
    "float64": (X.double(), TypeError, "x: got dtype float64"),
    "complex": (X.cfloat(), TypeError, "x: got dtype complex64"),
    "float8": (X.to(torch.float8_e4m3fn), TypeError, "x: got dtype float8_e4m3fn"),
    "int array": (NX.astype(int), TypeError, "for example x.astype(np.float32)"),
    "object array": (NX.astype(object), TypeError, "x: got dtype object"),
    "text array": (np.array(["a"] * K), TypeError, "x: got dtype str"),
    "float8 array": (NX.astype(ml_dtypes.float8_e5m2), TypeError, "x: got dtype float8_e5m2"),
    "sparse": (X.to_sparse(), TypeError, "x: got a torch.sparse_coo tensor"),
    "csr": (quietly(X.to_sparse_csr), TypeError, "convert with x.to_dense()"),
    "nested": (quietly(nested), TypeError, "x: got a nested tensor"),
    "quantized": (quietly(quantized), TypeError, "convert with x.dequantize()"),
    "masked": (np.ma.masked_array(NX, NX > 0), TypeError, "x.filled(0)"),
    "other byte order": (
        NX.astype(">f4" if sys.byteorder == "little" else "<f4"),
        TypeError,
        'convert with x.astype(x.dtype.newbyteorder("="))',
    ),
}


def assert_refused(error, message, call):
    with pytest.raises(error) as raised:
        call()
    assert type(raised.value) is error
    assert message in str(raised.value)


@pytest.mark.parametrize("case", BAD_ACTIVATIONS)
def test_quantize_refuses(case):
    x, error, message = BAD_ACTIVATIONS[case]
    assert_refused(error, message, lambda: mx.quantize(x))


@pytest.mark.parametrize("case", BAD_ACTIVATIONS)
def test_linear_refuses(case):
    x, error, message = BAD_ACTIVATIONS[case]
    assert_refused(error, message, lambda: mx.linear(x, W))


@pytest.mark.parametrize("k", [1, 31, 33, 100])
def test_a_ragged_k_says_how_to_pad(k):
    x = torch.ones(2, 3, k)
    missing = 32 - k % 32
    pad = f"torch.nn.functional.pad(x, (0, {missing}))"
    assert_refused(ValueError, f"got K = {k} (shape [2, 3, {k}])", lambda: mx.quantize(x))
    assert_refused(ValueError, pad, lambda: mx.quantize(x))
    repaired = eval(pad, {"torch": torch, "x": x})
    assert mx.quantize(repaired).k == k + missing

    pad = f"np.pad(x, [(0, 0)] * 2 + [(0, {missing})])"
    assert_refused(ValueError, pad, lambda: mx.quantize(x.numpy()))
    assert mx.quantize(eval(pad, {"np": np, "x": x.numpy()})).k == k + missing


def test_no_k_at_all_is_nothing_to_pad():
    message = "got K = 0 (shape [3, 0]), expected at least 32"
    for x in (torch.ones(3, 0), np.ones((3, 0), np.float32)):
        assert_refused(ValueError, message, lambda x=x: mx.quantize(x))


ACTIVATION_NAMES = " or ".join(map(repr, ACTIVATIONS))
ROUNDING_NAMES = " or ".join(map(repr, ROUNDINGS))
BAD_LINEAR = {
    "w is floats": (
        lambda: mx.linear(X, X),
        TypeError,
        "w: got Tensor, expected an MXTensor; make",
    ),
    "w is None": (lambda: mx.linear(X, None), TypeError, "w: got NoneType, expected an MXTensor"),
    "w is a tuple": (
        lambda: mx.linear(X, (W.codes, W.scales)),
        TypeError,
        "MXTensor(codes, scales)",
    ),
    "x is encoded": (lambda: mx.linear(W, W), TypeError, "for two MXTensors use matmul(x, w)"),
    "w is 3-D": (
        lambda: mx.linear(X, mx.quantize(torch.ones(2, N, K))),
        ValueError,
        "w: got shape [2, 48, 64], expected weights [N, K]",
    ),
    "w is 1-D": (
        lambda: mx.linear(X, mx.quantize(torch.ones(K))),
        ValueError,
        "w: got shape [64], expected weights [N, K]",
    ),
    "wrong K": (
        lambda: mx.linear(torch.ones(3, 96), W),
        ValueError,
        "x and w: got K = 96 and K = 64 (x: [3, 96], w: [48, 64]), expected one K",
    ),
    "w is [K, N]": (
        lambda: mx.linear(torch.ones(3, 96), mx.quantize(torch.ones(96, 32))),
        ValueError,
        "w is [N, K], not [K, N]",
    ),
    "x was not padded as w was": (
        lambda: mx.linear(torch.ones(3, 50), W),
        ValueError,
        "torch.nn.functional.pad(x, (0, 14))",
    ),
    "array and weights elsewhere": (
        lambda: mx.linear(NX, W.to(META)),
        ValueError,
        "x and w: got x on cpu and w on meta, expected one device",
    ),
    "array and a tensor as bias": (
        lambda: mx.linear(NX, W, bias=BIAS),
        TypeError,
        "bias and x: got torch and numpy, expected both of one kind; convert an array with",
    ),
    "bias is encoded": (
        lambda: mx.linear(X, W, bias=mx.quantize(torch.ones(64))),
        TypeError,
        "bias: got an MXTensor, expected floats or bytes; call bias.dequantize() for floats",
    ),
    "x elsewhere": (
        lambda: mx.linear(X.to(META), W),
        ValueError,
        "x and w: got x on meta and w on cpu, expected one device; move one of them "
        "with .to('cpu')",
    ),
    "w elsewhere": (
        lambda: mx.linear(X, W.to(META)),
        ValueError,
        "x and w: got x on cpu and w on meta, expected one device",
    ),
    "scale_rule": (
        lambda: mx.linear(X, W, scale_rule="up"),
        ValueError,
        f"scale_rule: got 'up', expected {ROUNDING_NAMES}",
    ),
    "rounding by number": (
        lambda: mx.linear(X, W, scale_rule=1),
        ValueError,
        f"scale_rule: got 1, expected {ROUNDING_NAMES}",
    ),
    "no such activations": (
        lambda: mx.linear(X, W, activations="fp6"),
        ValueError,
        f"activations: got 'fp6', expected {ACTIVATION_NAMES}",
    ),
    "activations unhashable": (
        lambda: mx.linear(X, W, activations=["mxfp4"]),
        ValueError,
        "activations: got ['mxfp4']",
    ),
    "rounding of kept activations": (
        lambda: mx.linear(X, W, activations="bf16", scale_rule="floor"),
        ValueError,
        "scale_rule: got 'floor' with activations='bf16', expected none: floats that",
    ),
    "rounding unhashable": (
        lambda: mx.linear(X, W, scale_rule=["even"]),
        ValueError,
        "scale_rule: got ['even']",
    ),
    "out_dtype": (
        lambda: mx.linear(X, W, out_dtype=torch.float64),
        ValueError,
        "out_dtype: got torch.float64, expected bfloat16 or float16 or float32",
    ),
    "out_dtype by name": (
        lambda: mx.linear(X, W, out_dtype="bf16"),
        ValueError,
        "out_dtype: got 'bf16', expected bfloat16 or float16 or float32",
    ),
    "out_dtype of numpy": (
        lambda: mx.linear(NX, W, out_dtype=np.int32),
        ValueError,
        "expected bfloat16 or float16 or float32",
    ),
    "out_dtype is no dtype": (
        lambda: mx.linear(X, W, out_dtype=X),
        TypeError,
        "expected a dtype or one of bfloat16, float16, float32",
    ),
    "out_dtype unhashable": (
        lambda: mx.linear(X, W, out_dtype=["float32"]),
        TypeError,
        "expected a dtype or one of",
    ),
    "bias too long": (
        lambda: mx.linear(X, W, bias=torch.ones(N + 1)),
        ValueError,
        "bias: got shape [49], expected [48], one number for each row of the weights",
    ),
    "bias too short": (
        lambda: mx.linear(X, P, bias=torch.ones(N - 1)),
        ValueError,
        "bias: got shape [47], expected [48]",
    ),
    "bias 2-D": (
        lambda: mx.linear(X, W, bias=torch.ones(1, N)),
        ValueError,
        "bias: got shape [1, 48], expected [48]",
    ),
    "bias 0-d": (lambda: mx.linear(X, W, bias=BIAS[0]), ValueError, "bias: got shape [], expected"),
    "bias is a number": (lambda: mx.linear(X, W, bias=1.0), TypeError, "bias: got float, expected"),
    "bias of integers": (
        lambda: mx.linear(X, W, bias=BIAS.int()),
        TypeError,
        "bias: got dtype int32, expected bfloat16 or float16 or float32",
    ),
    "bias an array": (
        lambda: mx.linear(X, W, bias=BIAS.numpy()),
        TypeError,
        "bias and x: got numpy and torch, expected both of one kind",
    ),
    "bias elsewhere": (
        lambda: mx.linear(X, W, bias=BIAS.to(META)),
        ValueError,
        "bias and the weights: got bias on meta and the weights on cpu",
    ),
    "bias sparse": (lambda: mx.linear(X, W, bias=BIAS.to_sparse()), TypeError, "bias.to_dense()"),
}


@pytest.mark.parametrize("case", BAD_LINEAR)
def test_linear_refuses_a_call_that_does_not_fit(case):
    call, error, message = BAD_LINEAR[case]
    assert_refused(error, message, call)


BAD_MATMUL = {
    "a is floats": (lambda: mx.matmul(X, W), TypeError, "a: got Tensor, expected an MXTensor"),
    "b is floats": (lambda: mx.matmul(W, X), TypeError, "b: got Tensor, expected an MXTensor"),
    "both are floats": (
        lambda: mx.matmul(X.bfloat16(), X.bfloat16()),
        ValueError,
        "a and b: got floats on cpu, expected them on gfx950, which alone has kernels for them: "
        "quantize(a) and quantize(b) are codes, and torch.nn.functional.linear(a, b, bias) mult",
    ),
    "floats of 32 bits": (
        lambda: mx.matmul(X, X),
        ValueError,
        "a and b: got float32 and float32, expected bfloat16 or float16 for both",
    ),
    "floats of two types": (
        lambda: mx.matmul(X.half(), X.bfloat16()),
        ValueError,
        "a and b: got float16 and bfloat16, expected bfloat16 or float16 for both",
    ),
    "floats of other K": (
        lambda: mx.matmul(X.half(), X[:, :32].half()),
        ValueError,
        "a and b: got K = 64 and K = 32 (a: [3, 64], b: [3, 32]), expected one K; b is [N, K]",
    ),
    "floats of odd K": (
        lambda: mx.matmul(X[:, :33].half(), X[:, :33].half()),
        ValueError,
        "a and b: got K = 33, expected a positive multiple of 32",
    ),
    "floats of three axes": (
        lambda: mx.matmul(X.half(), X[None].half()),
        ValueError,
        "a and b: got shapes [3, 64] and [1, 3, 64], expected [..., K] and [N, K]",
    ),
    "floats that want a gradient": (
        lambda: mx.matmul(X.half().requires_grad_(), X.half()),
        ValueError,
        "a: got a tensor that requires a gradient, expected one that does not: call it under",
    ),
    "a bias of floats that is an array": (
        lambda: mx.matmul(X.half(), X.half(), bias=BIAS.numpy()),
        TypeError,
        "bias and b: got numpy and torch",
    ),
    "a bias of floats that does not fit": (
        lambda: mx.matmul(X.half(), X.half(), bias=BIAS),
        ValueError,
        "bias: got shape [48], expected [3]",
    ),
    "wrong K": (
        lambda: mx.matmul(mx.quantize(torch.ones(2, 32)), W),
        ValueError,
        "a and b: got K = 32 and K = 64 (a: [2, 32], b: [48, 64]), expected one K; b is [N, K]",
    ),
    "b is 3-D": (
        lambda: mx.matmul(W, mx.quantize(torch.ones(2, N, K))),
        ValueError,
        "b: got shape [2, 48, 64] for a [48, 64], expected weights [N, K], or as many matrices",
    ),
    "bias an array": (
        lambda: mx.matmul(W, W, bias=BIAS.numpy()),
        TypeError,
        "bias and b: got numpy and torch",
    ),
    "mixed devices": (
        lambda: mx.matmul(W.to(META), W),
        ValueError,
        "a and b: got a on meta and b on cpu",
    ),
    "out_dtype": (
        lambda: mx.matmul(W, W, out_dtype="int8"),
        ValueError,
        "out_dtype: got 'int8', expected bfloat16 or float16 or float32",
    ),
    "bias": (lambda: mx.matmul(W, W, bias=X), ValueError, "bias: got shape [3, 64], expected [48]"),
    **{
        f"a is {layout}": (
            lambda layout=layout: mx.matmul(W.preshuffle(device=LAYOUTS[layout]["device"]), W),
            ValueError,
            f"a: got layout '{layout}', expected 'plain': only the weights are preshuffled; "
            "call a.unshuffle()",
        )
        for layout in PRESHUFFLED
    },
}


@pytest.mark.parametrize("case", BAD_MATMUL)
def test_matmul_refuses_a_call_that_does_not_fit(case):
    call, error, message = BAD_MATMUL[case]
    assert_refused(error, message, call)


BAD_OTHERS = {
    "dequantize floats": (
        lambda: mx.dequantize(X),
        TypeError,
        "q: got Tensor, expected an MXTensor",
    ),
    "dequantize to ints": (
        lambda: mx.dequantize(W, dtype=torch.int8),
        ValueError,
        "dtype: got torch.int8, expected bfloat16 or float16 or float32",
    ),
    "preshuffle floats": (
        lambda: mx.preshuffle(X),
        TypeError,
        "q: got Tensor, expected an MXTensor",
    ),
    "preshuffle 1-D": (
        lambda: mx.preshuffle(mx.quantize(torch.ones(K))),
        ValueError,
        "q: got shape [64], expected weights [..., N, K]",
    ),
    "preshuffle for a device without a layout": (
        lambda: mx.preshuffle(W, device="tpu"),
        ValueError,
        "device: got 'tpu', expected 'gfx950' or 'cpu' or 'cuda'; other devices have no layout",
    ),
    "preshuffle on meta": (
        lambda: mx.preshuffle(W.to(META)),
        ValueError,
        "device: got device(type='meta'), expected",
    ),
    "preshuffle for no device": (lambda: mx.preshuffle(W, device=""), ValueError, "device: got ''"),
    "unshuffle floats": (lambda: mx.unshuffle(X), TypeError, "q: got Tensor, expected an MXTensor"),
    "quantize rounding": (
        lambda: mx.quantize(X, scale_rule="nearest"),
        ValueError,
        f"scale_rule: got 'nearest', expected {ROUNDING_NAMES}",
    ),
    "quantize format": (
        lambda: mx.quantize(X, format="mxfp5"),
        ValueError,
        f"format: got 'mxfp5', expected {' or '.join(oracle.FORMATS)}",
    ),
    "quantize format unhashable": (
        lambda: mx.quantize(X, format=["mxfp4"]),
        ValueError,
        "format: got ['mxfp4']",
    ),
    "positional rounding": (lambda: mx.quantize(X, "even"), TypeError, "positional argument"),
    "positional bias": (lambda: mx.linear(X, W, BIAS), TypeError, "positional argument"),
}


@pytest.mark.parametrize("case", BAD_OTHERS)
def test_the_other_operations_refuse(case):
    call, error, message = BAD_OTHERS[case]
    assert_refused(error, message, call)


FLAT = np.zeros(N * K + 1, np.float32)
BAD_OUT = {
    "no array": ([0.0], TypeError, "out: got list, expected a torch tensor or NumPy array"),
    "bytes": (torch.zeros(N, K).byte(), TypeError, "out: got dtype uint8, expected bfloat16"),
    "float64": (np.zeros((N, K)), TypeError, "out: got dtype float64, expected bfloat16"),
    "other dtype": (torch.zeros(N, K).half(), ValueError, "dtype: got float32 beside an out of"),
    "rows": (torch.zeros(N + 1, K), ValueError, f"out: got shape [{N + 1}, {K}], expected [{N}, "),
    "columns": (torch.zeros(K, N).T, ValueError, f"out: got an array of strides [1, {N}]"),
    "strides": (np.zeros((N, 2 * K), "f4")[:, ::2], ValueError, "expected one whose elements"),
    "unaligned": (
        FLAT.view(np.uint8)[1:-3].view(np.float32).reshape(N, K), ValueError, "aligned",
    ),
    "read-only": (np.broadcast_to(np.float32(0), (N, K)), ValueError, "can be written"),
    "gradient": (torch.zeros(N, K, requires_grad=True), ValueError, "requires a gradient"),
    "elsewhere": (torch.zeros(N, K, device="meta"), ValueError, "got out on meta and q on cpu"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_OUT)
def test_memory_that_does_not_fit_is_refused_and_stays(case):
    assert_refused(TypeError, "out: got an MXTensor, expected", lambda: mx.dequantize(W, out=W))
    out, error, message = BAD_OUT[case]
    before = copy.deepcopy(out)
    assert_refused(error, message, lambda: mx.dequantize(W, dtype="float32", out=out))
    if not getattr(out, "is_meta", False):
        now, then = (t.detach() if isinstance(t, torch.Tensor) else t for t in (out, before))
        assert np.array_equal(now, then)


def test_numbers_are_not_written_over_their_codes():
    memory = torch.zeros(2 * N, 2 * K, dtype=torch.uint8)
    out = memory.view(torch.float32).view(N, K)
    codes, scales = memory.view(-1)[: N * K // 2], memory.view(-1)[-N * K // 32 :]
    for parts in ((codes.view(N, K // 2), W.scales), (W.codes, scales.view(N, K // 32))):
        call = partial(mx.dequantize, mx.MXTensor(*parts), out=out)
        assert_refused(ValueError, "out: got memory of q itself", call)
    assert not memory.any()


def test_what_a_gradient_needs_is_not_written_unseen():
    kept, x = torch.ones(N, K), torch.ones(N, K, requires_grad=True)
    loss = (x * kept).sum()
    mx.dequantize(W, out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_device_without_kernels_is_named(monkeypatch):
    # No other device is present here: a tensor subclass says that it lies on one.
    class Elsewhere(torch.Tensor):
        device = torch.device("xpu:1")

    x = X.as_subclass(Elsewhere)
    assert_refused(
        ValueError,
        'x: got device xpu:1, expected cpu or cuda; move it with x.to("cpu")',
        lambda: mx.quantize(x),
    )
    assert_refused(
        ValueError,
        "x: got device xpu:1",
        lambda: mx.linear(x, W),
    )


def test_bfloat16_arrays_need_ml_dtypes_and_say_so(monkeypatch):
    assert mx.linear(NX, W, out_dtype="bfloat16").dtype == ml_dtypes.bfloat16
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    message = "pip install ml_dtypes"
    assert_refused(TypeError, message, lambda: mx.linear(NX, W, out_dtype="bfloat16"))
    assert mx.linear(NX, W).dtype == np.float32


def test_a_failed_call_leaves_its_arguments_alone():
    x, bias = X.clone(), torch.ones(N + 1)
    before = x.clone(), W.codes.clone(), W.scales.clone(), bias.clone()
    with pytest.raises(ValueError, match="bias"):
        mx.linear(x, W, bias=bias)
    for now, then in zip((x, W.codes, W.scales, bias), before, strict=True):
        assert torch.equal(now, then)
