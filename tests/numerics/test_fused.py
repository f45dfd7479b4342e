"""Norms and gates whose results are quantized at once give the codes of two steps, to the bit.

What a norm gives is known to the bit, operation by operation: `oracle.norm`. Of a gate float32's
distance is known: where both ends of it have the same codes, these are the ones.
"""

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    DTYPES,
    GATES,
    NUMPY_DTYPES,
    VIEWS_OF_ANY_K,
    bytes_of,
    every_dtype,
    on_every_device,
    sums_of,
    torch_of,
    values_of,
)
from oracle import assert_bitwise_equal

pytestmark = on_every_device
RULES = [
    (name, scale_rule)
    for name, row in oracle.FORMATS.items()
    for scale_rule in oracle.ROUNDINGS
    if row.scale == "e8m0"
    or scale_rule == "even"
    or (row.scale == "float32" and scale_rule == "rceil")
]
every_rule = pytest.mark.parametrize("format, scale_rule", RULES)
every_format = pytest.mark.parametrize("format", oracle.FORMATS)
WIDTHS = [32, 96, 480, 512, 544, 1056, 2880]
"""Parts of a segment, one, several, and a part behind them."""
NORMS = {
    "llama": {"rounds": "each"},
    "gpt_oss": {"rounds": "result", "eps": 1e-5},
    "gemma": {"rounds": "result", "weight_offset": 1.0},
    "not rounded": {"rounds": "none"},
    "layer norm": {"is_centered": True, "rounds": "result", "eps": 1e-5},
    "layer norm, rounded twice": {"is_centered": True, "rounds": "each", "eps": 1e-3},
    "layer norm, not rounded": {"is_centered": True, "rounds": "none", "eps": 0.1},
}


def normed(x, weight=None, bias=None, *, is_centered=False, **options):
    """Calls the function of a norm."""
    if is_centered:
        return mx.layer_norm_quantize(x, weight, bias, **options)
    return mx.rms_norm_quantize(x, weight, **options)


def assert_is(q, values, format, scale_rule="even", **options):
    """Compares with what the oracle makes of float64 values."""
    codes, scales = oracle.quantize(values, scale_rule, format, **options)
    assert q.format == format and tuple(q.shape) == values.shape
    assert_bitwise_equal(bytes_of(q.scales), scales, zeros_are_the_claim=True)
    # A block of NaN has codes of zero.
    is_finite = np.isfinite(values).all() and values.any()
    assert_bitwise_equal(bytes_of(q.codes), codes, zeros_are_the_claim=not is_finite)


def rows(rng, shape, dtype):
    """Returns numbers of several sizes that a type holds, a mean of their own in each row."""
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)
    return oracle.round_to(x + rng.standard_normal((*shape[:-1], 1)), dtype)


@pytest.mark.parametrize("norm", NORMS)
@every_dtype
@every_rule
def test_a_norm_gives_the_codes_of_its_definition(rng, format, scale_rule, dtype, norm):
    options = NORMS[norm]
    k = WIDTHS[(len(format) + len(norm) + len(scale_rule)) % len(WIDTHS)]
    kind = "float32" if len(norm) % 2 else dtype
    x, weight = rows(rng, (5, k), dtype), rows(rng, (k,), kind)
    bias = rows(rng, (k,), kind) if options.get("is_centered") else None
    arrays = (
        torch_of(x, dtype),
        torch_of(weight, kind),
        bias if bias is None else torch_of(bias, kind),
    )
    q = normed(*arrays, format=format, scale_rule=scale_rule, **options)
    assert_is(q, oracle.norm(x, weight, bias, dtype=dtype, **options), format, scale_rule)
    assert q.dtype == getattr(torch, "float32" if options["rounds"] == "none" else dtype)


@pytest.mark.parametrize("is_centered", [False, True])
@pytest.mark.parametrize("k", WIDTHS)
@every_dtype
def test_a_row_of_any_width_is_added_up_in_one_order(rng, dtype, k, is_centered):
    """In another order, some of so many reciprocals differ; MXINT8 shows the last bits of bf16."""
    x = rows(rng, (64, k), dtype)
    q = normed(torch_of(x, dtype), format="mxint8", is_centered=is_centered, eps=0.0, rounds="none")
    values = oracle.norm(x, dtype=dtype, is_centered=is_centered, eps=0.0, rounds="none")
    assert_is(q, values, "mxint8")


def test_the_order_of_additions_can_be_seen(rng):
    """So the bits of scales that are floats tell it: of fp8 the row's largest over 448."""
    x = np.float32(rng.standard_normal((256, 4096)) * 2.0 ** rng.integers(-12, 13, (256, 4096)))
    ours, numpys = oracle.row_sum(x, squares=True), np.square(x).sum(-1)
    assert (np.float32(ours) != numpys).mean() > 0.3
    q = mx.rms_norm_quantize(torch_of(x, "float32"), format="fp8", eps=0.0, rounds="none")
    values = oracle.norm(x, dtype="float32", eps=0.0, rounds="none")
    assert_is(q, values, "fp8")
    others = np.float32(1 / np.sqrt(numpys.astype(np.float64) / 4096))
    scales = np.float32(abs(x * others[:, None]).max(-1) / 448)
    assert (scales != bytes_of(q.scales)[:, 0]).mean() > 0.05


@every_dtype
@every_format
def test_a_residual_is_added_first_and_the_sums_come_back(rng, format, dtype):
    x, residual, weight = (rows(rng, shape, dtype) for shape in ((7, 96), (7, 96), (96,)))
    stream = oracle.round_to(np.float32(x) + np.float32(residual), dtype)
    arrays = torch_of(x, dtype), torch_of(weight, dtype)
    q, found = mx.rms_norm_quantize(*arrays, residual=torch_of(residual, dtype), format=format)
    assert found.dtype == arrays[0].dtype
    assert_bitwise_equal(values_of(found), stream)
    assert_is(q, oracle.norm(stream, weight, dtype=dtype), format)


def test_a_given_tensor_scale_stays(rng):
    x = rows(rng, (4, 64), "bfloat16")
    q = mx.rms_norm_quantize(torch_of(x, "bfloat16"), format="nvfp4", tensor_scale=0.01)
    given = np.full(4, np.float32(0.01))
    assert_is(q, oracle.norm(x, dtype="bfloat16"), "nvfp4", tensor_scale=given)


@pytest.mark.parametrize("view", VIEWS_OF_ANY_K.values(), ids=VIEWS_OF_ANY_K)
@every_dtype
def test_views_are_quantized_like_their_copies(rng, view, dtype):
    x, residual = (view(torch_of(rows(rng, (6, 128), dtype), dtype)) for _ in range(2))
    weight = torch_of(rows(rng, (2 * x.shape[-1],), dtype), dtype)[::2]
    for format in ("mxfp4", "fp8"):
        q, stream = mx.rms_norm_quantize(x, weight, residual=residual, format=format)
        values = oracle.norm(values_of(stream), values_of(weight), dtype=dtype)
        assert_bitwise_equal(values_of(stream), values_of(x + residual))
        assert_is(q, values, format)
        hidden = mx.gate_quantize(x, residual, format=format)
        copied = mx.gate_quantize(x.contiguous(), residual.contiguous(), format=format)
        assert_bitwise_equal(bytes_of(hidden.codes), bytes_of(copied.codes))
        both = torch.cat([x, residual], -1)
        joined = mx.gate_quantize(both.repeat(*[1] * (both.ndim - 1), 2)[..., : both.shape[-1]])
        assert torch.equal(joined.codes, mx.gate_quantize(x, residual).codes)


@pytest.mark.parametrize("is_centered", [False, True])
@every_dtype
@every_format
def test_what_is_not_finite_zeros_and_sums_that_overflow(rng, format, dtype, is_centered):
    largest = oracle.FLOATS[dtype].largest
    x = rows(rng, (8, 96), dtype)
    x[0, 40], x[1, 3], x[2, 95], x[3], x[4] = np.nan, np.inf, -np.inf, 0.0, -0.0
    x[5], x[6, ::2] = largest, -largest
    options = {"is_centered": is_centered, "eps": 1e-6}
    q = normed(torch_of(x, dtype), format=format, **options)
    options.setdefault("rounds", "result" if is_centered else "each")
    assert_is(q, oracle.norm(x, dtype=dtype, **options), format)
    # Without eps the reciprocal of zeros is infinite, and they are NaN.
    q = normed(torch_of(x[3:], dtype), format=format, **options | {"eps": 0.0})
    assert_is(q, oracle.norm(x[3:], dtype=dtype, **options | {"eps": 0.0}), format)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0, 64)])
@every_format
def test_no_rows_give_an_empty_tensor(format, shape):
    x = torch.zeros(shape)
    q, stream = mx.rms_norm_quantize(x, torch.ones(shape[-1]), residual=x, format=format)
    for made in (
        q,
        mx.layer_norm_quantize(x, format=format),
        mx.gate_quantize(x, x, format=format),
    ):
        assert tuple(made.shape) == shape and made.codes.numel() == made.scales.numel() == 0
    assert tuple(stream.shape) == shape


@every_format
def test_matrices_keep_their_leading_dimensions_and_blocks_end_with_them(rng, format):
    x, residual = (torch_of(rows(rng, (2, 3, 130, 64), "bfloat16"), "bfloat16") for _ in range(2))
    weight = torch_of(rows(rng, (64,), "bfloat16"), "bfloat16")
    q, stream = mx.rms_norm_quantize(x, weight, residual=residual, format=format)
    values = oracle.norm(values_of(x + residual), values_of(weight), dtype="bfloat16")
    assert torch.equal(stream, x + residual)
    assert_is(q, values, format)
    hidden = mx.gate_quantize(x, residual, format=format)
    each = [mx.gate_quantize(a, b, format=format) for a, b in zip(x[1], residual[1], strict=True)]
    assert torch.equal(hidden.codes[1], torch.stack([one.codes for one in each]))
    assert torch.equal(hidden.scales[1], torch.stack([one.scales for one in each]))


@pytest.mark.cpu_only
@every_dtype
def test_any_number_of_threads_and_a_row_alone_give_the_same_bits(rng, dtype):
    x = torch_of(rows(rng, (1031, 320), dtype), dtype)
    for format in ("mxfp4", "nvfp4", "fp8_block_2d"):
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append((mx.rms_norm_quantize(x, format=format), mx.gate_quantize(x, x)))
        for norm, gate in found[1:]:
            assert torch.equal(norm.codes, found[0][0].codes)
            assert torch.equal(norm.scales.view(torch.uint8), found[0][0].scales.view(torch.uint8))
            assert torch.equal(gate.codes, found[0][1].codes)
        alone = mx.rms_norm_quantize(x[700], format="mxfp4")
        assert torch.equal(alone.codes, mx.rms_norm_quantize(x).codes[700])


@pytest.mark.cpu_only
@every_dtype
def test_numpy_arrays_give_the_bits_of_torch_tensors(rng, dtype):
    x, residual, weight = (rows(rng, shape, dtype) for shape in ((5, 64), (5, 64), (64,)))
    arrays = [a.astype(NUMPY_DTYPES[dtype]) for a in (x, weight, residual)]
    tensors = [torch_of(a, dtype) for a in (x, weight, residual)]
    q, stream = mx.rms_norm_quantize(*arrays[:2], residual=arrays[2])
    expected, sums = mx.rms_norm_quantize(*tensors[:2], residual=tensors[2])
    assert torch.equal(q.codes, expected.codes)
    assert isinstance(stream, np.ndarray) and stream.dtype == NUMPY_DTYPES[dtype]
    assert_bitwise_equal(values_of(stream), values_of(sums))
    hidden = mx.gate_quantize(arrays[0], arrays[2])
    assert torch.equal(hidden.codes, mx.gate_quantize(tensors[0], tensors[2]).codes)


# Rotations.


@pytest.mark.parametrize("block", [32, 64, 128])
@every_dtype
@every_format
def test_a_rotation_gives_the_codes_of_its_definition(rng, format, dtype, block):
    x = rows(rng, (5, 256), dtype)
    x[3, 7], x[4] = np.nan, 0.0
    q = mx.quantize(torch_of(x, dtype), format=format, hadamard=block)
    assert_is(q, oracle.rotated(x, block, dtype), format)
    values = torch_of(x, dtype)[:2, 64:192]
    viewed, copied = (
        mx.quantize(t, format=format, hadamard=block) for t in (values, values.clone())
    )
    assert torch.equal(viewed.codes, copied.codes)


@pytest.mark.cpu_only
def test_a_rotation_is_orthogonal_and_symmetric_and_spreads_outliers(rng):
    """Turned back, numbers of which one in 256 is an outlier lost less."""
    for block in (32, 64, 128):
        matrix = oracle.rotated(np.eye(block), block, "float32")
        assert_bitwise_equal(matrix, matrix.T)
        assert abs(matrix @ matrix - np.eye(block)).max() < 1e-6
        x = np.float32(rng.standard_normal((64, 256)))
        x[:, 5] *= 30
        plain, turned = (
            values_of(mx.quantize(torch_of(x, "float32"), hadamard=size).dequantize("float32"))
            for size in (None, block)
        )
        back = (turned.reshape(64, -1, block) @ matrix).reshape(x.shape)
        assert np.linalg.norm(back - x) < 0.85 * np.linalg.norm(plain - x)


@pytest.mark.cpu_only
def test_a_rotation_compiles_and_refuses_what_it_does_not_take():
    x = torch.randn(3, 64)
    compiled = torch.compile(lambda x: mx.quantize(x, hadamard=32).codes, backend="aot_eager")
    assert torch.equal(compiled(x), mx.quantize(x, hadamard=32).codes)
    w = mx.quantize(torch.randn(5, 64), hadamard=32)
    compiled = torch.compile(lambda x: mx.linear(x, w, hadamard=32), backend="aot_eager")
    assert torch.equal(compiled(x), mx.linear(x, w, hadamard=32))
    q = mx.quantize(x.numpy(), hadamard=64)
    assert torch.equal(q.codes, mx.quantize(x, hadamard=64).codes)
    for block, message in (
        (48, "hadamard: got 48, expected None or 32 or 64 or 128"),
        (True, "hadamard: got True"),
        (128, "hadamard: got 128 for K = 64, expected K to be a multiple of it"),
    ):
        with pytest.raises(ValueError, match=message):
            mx.quantize(x, hadamard=block)
        with pytest.raises(ValueError, match=message):
            mx.linear(x, w, hadamard=block)


@pytest.mark.cpu_only
@pytest.mark.parametrize("activations", ["mxint8", "mxfp4", "nvfp4", "fp8", "bf16"])
@pytest.mark.parametrize("block", [32, 64, 128])
@every_dtype
def test_linear_rotates_what_it_is_given(rng, dtype, block, activations):
    """Codes of rotated floats, in one pass and in two; torch's rotation has the same bits."""
    x = torch_of(rows(rng, (2, 3, 256), dtype), dtype)
    turned = torch_of(oracle.rotated(values_of(x), block, dtype), dtype)
    w = mx.quantize(torch_of(rng.standard_normal((48, 256)), "float32"), hadamard=block)
    bias, rules = torch_of(rows(rng, (48,), dtype), dtype), {"activations": activations}
    expected = mx.linear(turned, w, bias=bias, **rules)
    got = mx.linear(x, w, bias=bias, hadamard=block, **rules)
    assert torch.equal(got, expected) and got.abs().max() > 0.1
    layer = mx.MXLinear(w.preshuffle(), bias, hadamard=block, **rules)
    assert torch.equal(layer(x), expected)
    rows_of_x = torch.func.vmap(lambda row: mx.linear(row, w, bias=bias, hadamard=block, **rules))
    assert torch.equal(rows_of_x(x), expected)
    array = mx.linear(x.float().numpy(), w, hadamard=block, **rules)
    assert isinstance(array, np.ndarray) and array.dtype == np.float32
    # The rotation is its own inverse, and the gradient is turned back.
    x.requires_grad_()
    y = mx.linear(x, w, bias=bias, hadamard=block, out_dtype="float32", **rules)
    y.backward(given := torch.randn(y.shape))
    back = (given.double() @ w.dequantize("float32").double()).numpy()
    exact = oracle.rotated(back, block, "float32").astype(np.float64)
    unit = 2.0**-7 if dtype == "bfloat16" else 2.0**-10
    assert abs(x.grad.double().numpy() - exact).max() < unit * abs(exact).max()


@pytest.mark.cpu_only
def test_a_rotation_of_weights_and_activations_changes_no_product(rng):
    """But for the rounding of float32, of weights and activations that every format holds."""
    x, weight = (np.float32(rng.integers(-4, 5, (n, 64))) for n in (5, 7))
    turned = [oracle.rotated(a, 64, "float32") * np.float32(64**0.5) for a in (x, weight)]
    assert all((a == np.round(a)).all() for a in turned)
    w = mx.quantize(torch_of(turned[1] / 8, "float32"), format="nvfp4")
    exact = w.dequantize("float32").numpy().astype(np.float64)
    unturned = oracle.rotated(exact, 64, "float32").astype(np.float64)
    got = mx.linear(torch_of(x, "float32"), w, hadamard=64, activations="bf16")
    bound = 2.0**-8 * np.abs(oracle.rotated(x, 64, "float32")) @ abs(exact).T + 1e-4
    assert (abs(got.numpy() - x.astype(np.float64) @ unturned.T) < bound).all()
    layer = mx.MXLinear(w, hadamard=64)
    assert "hadamard=64" in repr(layer) and "hadamard" not in repr(mx.MXLinear(w))
    q = mx.quantize(torch_of(x, "float32"), format="mxint8", hadamard=64)
    assert torch.equal(layer(q), mx.matmul(q, w, out_dtype=q.dtype)), "codes are taken as they are"


# Gates.


SEEN = [
    (format, dtype)
    for format, row in oracle.FORMATS.items()
    for dtype in DTYPES
    if row.scale == "e8m0" or dtype != "float32"
]
"""Where scales hide what float32 leaves open: floats as scales show the last bit of the largest."""


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("format, dtype", SEEN)
def test_a_gate_gives_the_codes_of_its_hidden_numbers(rng, format, dtype, gate):
    sums = oracle.round_to(2 * rng.standard_normal((24, sums_of(gate, 160))), dtype)
    sums[0, 3], sums[1, 5] = np.nan, 40.0
    q = mx.gate_quantize(torch_of(sums, dtype), format=format, **GATES[gate])
    exact, error = oracle.gated(sums, **GATES[gate])
    ends = [oracle.round_to(exact + sign * error, dtype) for sign in (-1, 1)]
    low, high = (oracle.quantize(end, format=format) for end in ends)
    codes_agree, scales_agree = (_same(a, b) for a, b in zip(low, high, strict=True))
    # Under one scale, codes grow with the numbers.
    codes_agree &= scales_agree.all(-1, keepdims=True)
    assert codes_agree.mean() > 0.9, "the claim is about most codes"
    assert ((bytes_of(q.codes) == low[0]) | ~codes_agree).all()
    assert (_same(bytes_of(q.scales), low[1]) | ~scales_agree).all()


def _same(a, b):
    """Says where two arrays have the same number, or none."""
    return (a == b) | (np.isnan(a) & np.isnan(b))


@pytest.mark.cpu_only
@pytest.mark.parametrize("gate", GATES)
def test_a_gate_between_two_products_of_float32_is_the_mlp(rng, gate):
    """Sums, and hidden numbers, are float32 in both."""
    x = torch_of(rng.standard_normal((2, 3, 64)), "float32")
    gate_up = mx.quantize(torch_of(rng.standard_normal((sums_of(gate, 96), 64)), "float32"))
    down = mx.quantize(torch_of(rng.standard_normal((64, 96)), "float32"))
    biases = [torch_of(rng.standard_normal(w.shape[0]), "float32") for w in (gate_up, down)]
    for activations in ("mxint8", "mxfp4", "fp8"):
        sums = mx.linear(x, gate_up, bias=biases[0], activations=activations)
        hidden = mx.gate_quantize(sums, format=activations, **GATES[gate])
        expected = mx.matmul(hidden, down, bias=biases[1], out_dtype="float32")
        got = mx.mlp(
            *(x, gate_up.preshuffle(), down),
            bias_gate_up=biases[0],
            bias_down=biases[1],
            activations=activations,
            **GATES[gate],
        )
        assert torch.equal(got, expected)
        assert got.abs().max() > 1
        rest = {"bias_gate_up": biases[0], "bias_down": biases[1], **GATES[gate]}
        codes = mx.quantize(x, format=activations)
        assert torch.equal(mx.mlp(codes, gate_up, down, **rest), expected)
        with pytest.raises(ValueError, match=f"for codes, expected '{activations}'"):
            mx.mlp(codes, gate_up, down, activations="bf16", **rest)


# Errors.

K = 64
X, NORM, GATE = torch.ones(3, K), mx.rms_norm_quantize, mx.gate_quantize
BAD = {
    "a weight of another width": (
        lambda: NORM(X, torch.ones(32)), ValueError, r"weight: got shape \[32\], expected \[64\]",
    ),
    "a weight of integers": (
        lambda: NORM(X, torch.ones(K).long()), TypeError, "weight: got dtype int64",
    ),
    "a bias alone": (
        lambda: mx.layer_norm_quantize(X, None, torch.ones(K)), ValueError,
        "bias: got one without a weight",
    ),
    "an offset alone": (
        lambda: NORM(X, weight_offset=1.0), ValueError, "weight_offset: got 1.0 without a weight",
    ),
    "a residual of another dtype": (
        lambda: NORM(X, residual=X.half()), ValueError,
        r"residual: got float16 \[3, 64\], expected float32 \[3, 64\]",
    ),
    "a residual of another shape": (
        lambda: NORM(X, residual=X[:2]), ValueError, r"residual: got float32 \[2, 64\]",
    ),
    "a residual of another kind": (
        lambda: NORM(X, residual=X.numpy()), TypeError, "residual and x: got numpy and torch",
    ),
    "a negative eps": (lambda: NORM(X, eps=-1.0), ValueError, "eps: got -1.0"),
    "no eps": (lambda: NORM(X, eps=None), TypeError, "eps: got NoneType, expected a number"),
    "another place to round": (
        lambda: NORM(X, rounds="twice"), ValueError, "rounds: got 'twice', expected 'each' or",
    ),
    "a row of another multiple": (lambda: NORM(X[:, :33]), ValueError, "K = 33"),
    "a tensor scale of a format that has none": (
        lambda: NORM(X, tensor_scale=1.0), ValueError, "tensor_scale: got one with mxfp4",
    ),
    "another rule": (
        lambda: NORM(X, format="fp8", scale_rule="floor"), ValueError, "scale_rule: got 'floor'",
    ),
    "ups of another shape": (
        lambda: GATE(X, X[:2]), ValueError, r"up: got float32 \[2, 64\], expected float32",
    ),
    "ups without gates": (
        lambda: GATE(X, X, hidden_act="relu2"), ValueError, "up: got one with hidden_act='relu2'",
    ),
    "an order of what is apart": (
        lambda: GATE(X, X, interleaved=False), ValueError, "interleaved: got False with gates",
    ),
    "hidden numbers of another multiple": (lambda: GATE(X[:, :32]), ValueError, "K = 16"),
    "an odd number of sums": (
        lambda: GATE(X[:, :33]), ValueError, r"expected \[..., 2K\], gates and ups",
    ),
    "another activation": (
        lambda: GATE(X, hidden_act="gelu"), ValueError, "hidden_act: got 'gelu'",
    ),
    "weights of experts": (
        lambda: mx.mlp(X, mx.quantize(torch.ones(2, 64, K)), mx.quantize(torch.ones(K, 32))),
        ValueError, r"w_gate_up: got shape \[2, 64, 64\], expected weights \[N, K\]",
    ),
}  # fmt: skip


@pytest.mark.cpu_only
@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_refused(name):
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
