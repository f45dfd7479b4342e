"""MXTensor: bytes and meaning stay together, whatever is done to it.

What torch does with it is in `test_tensor_torch` and `test_tensor_parts`.
"""

import copy
import io
import math
import pickle
import warnings

import ml_dtypes
import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    BLOCK,
    DTYPES,
    LAYOUTS,
    bytes_of,
    every_format,
    every_layout,
    mx_tensor,
    on_every_device,
    random_operand,
)

pytestmark = on_every_device

PADDED = [name for name, row in LAYOUTS.items() if row["device"]]

every_padded_layout = pytest.mark.parametrize("layout", PADDED)


def bytes_like(rows=4, k=64, lead=()):
    codes = torch.arange(rows * k // 2, dtype=torch.uint8).reshape(rows, k // 2)
    scales = torch.full((rows, k // BLOCK), 127, dtype=torch.uint8)
    return codes.expand(*lead, -1, -1).contiguous(), scales.expand(*lead, -1, -1).contiguous()


def some(rng, layout="plain", rows=18, k=96, format="mxfp4"):
    return mx_tensor(*random_operand(rng, rows, k, format=format), layout, format)


def assert_same(got, expected):
    assert type(got) is mx.MXTensor
    for name in ("shape", "dtype", "format", "layout", "k", "nbytes", "device"):
        assert getattr(got, name) == getattr(expected, name), name
    np.testing.assert_array_equal(bytes_of(got.codes), bytes_of(expected.codes))
    np.testing.assert_array_equal(bytes_of(got.scales), bytes_of(expected.scales))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_the_logical_shape_follows_from_plain_codes(lead):
    codes, scales = bytes_like(4, 64, lead)
    q = mx.MXTensor(codes, scales)
    assert q.shape == torch.Size((*lead, 4, 64))
    assert (q.k, q.ndim, q.layout, q.format) == (64, len(lead) + 2, "plain", "mxfp4")
    assert (q.size(), q.dim(), q.numel(), len(q)) == (
        q.shape,
        q.ndim,
        codes.numel() * 2,
        len(codes),
    )
    assert q.nbytes == codes.nbytes + scales.nbytes
    assert q.device == codes.device


@every_format
def test_the_logical_shape_follows_from_codes_of_any_format(format):
    q = mx.quantize(torch.ones(3, 4, 64), format=format)
    again = mx.MXTensor(q.codes, q.scales, format=format)
    assert again.shape == q.shape == (3, 4, 64)
    assert (again.format, again.rows, again.k) == (format, 12, 64)
    assert q.codes.shape[-1] == oracle.FORMATS[format].packed_bytes(64)


def test_a_vector_is_a_tensor_too():
    q = mx.quantize(torch.ones(32))
    assert q.shape == (32,)
    assert q.dequantize("float32").tolist() == [1.0] * 32


@pytest.mark.parametrize("size", [True, np.True_, 4.0, "4", None])
def test_a_shape_is_of_integers(size):
    codes, scales = bytes_like(1, 64)
    with pytest.raises(TypeError, match=r"shape: got .* in \[.*, 64\], expected integers"):
        mx.MXTensor(codes, scales, shape=(size, 64))
    assert mx.MXTensor(codes, scales, shape=(np.int64(1), 64)).shape == (1, 64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_its_dtype_is_that_of_the_floats(dtype):
    x = torch.ones(4, 64, dtype=getattr(torch, dtype))
    q = mx.quantize(x)
    assert q.dtype == q.preshuffle().dtype == q.dequantize().dtype == x.dtype
    codes, scales = bytes_like()
    assert mx.MXTensor(codes, scales).dtype == torch.bfloat16
    for spelling in (dtype, x.dtype):
        assert mx.MXTensor(codes, scales, dtype=spelling).dtype == x.dtype


def test_arrays_are_held_not_copied():
    codes, scales = bytes_like()
    q = mx.MXTensor(codes, scales)
    assert q.codes is codes
    assert q.scales is scales


def test_torch_element_types_are_viewed_as_bytes():
    codes, scales = bytes_like()
    q = mx.MXTensor(codes.view(torch.float4_e2m1fn_x2), scales.view(torch.float8_e8m0fnu))
    assert_same(q, mx.MXTensor(codes, scales))
    assert q.codes.data_ptr() == codes.data_ptr()


EIGHT_BITS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "int8": "int8"}
ELEMENTS = {name: row.element.name for name, row in oracle.FORMATS.items()}


@pytest.mark.parametrize("format", [f for f, element in ELEMENTS.items() if element in EIGHT_BITS])
def test_elements_of_eight_bits_are_viewed_as_bytes(format):
    q = mx.quantize(torch.randn(4, 64), format=format)
    dtype = EIGHT_BITS[ELEMENTS[format]]
    scales = q.scales if q.scales.is_floating_point() else torch.exp2(q.scales.float() - 127)
    viewed = q.codes.view(getattr(torch, dtype))
    assert_same(mx.MXTensor(viewed, q.scales, format=format, dtype=q.dtype), q)
    assert torch.equal(
        viewed.float() * (2.0**-6 if format == "mxint8" else 1)
        * scales.repeat_interleave(64 // scales.shape[1], 1),
        q.dequantize("float32"),
    )  # fmt: skip
    there = q.to("cpu")
    codes, scales = there.codes.numpy(), there.scales.numpy()
    arrays = codes.view(np.dtype(getattr(ml_dtypes, dtype, dtype))), scales
    assert_same(mx.MXTensor(*arrays, format=format, dtype=q.dtype), there)
    for other in (f for f in ELEMENTS if ELEMENTS[f] != ELEMENTS[format]):
        with pytest.raises(TypeError, match=f"codes: got dtype {dtype}, expected uint8"):
            mx.MXTensor(viewed, q.scales, format=other)


@pytest.mark.cpu_only
def test_arrays_of_numpy_are_wrapped_and_read_only_ones_copied():
    codes, scales = (t.numpy() for t in bytes_like())
    q = mx.MXTensor(codes, scales)
    assert (q.codes.data_ptr(), q.scales.data_ptr()) == (codes.ctypes.data, scales.ctypes.data)
    codes.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copied = mx.MXTensor(codes, torch.tensor(scales))
    assert copied.codes.data_ptr() != codes.ctypes.data
    assert_same(copied, q)


@pytest.mark.cpu_only
def test_ml_dtypes_scales_are_viewed_as_bytes():
    codes, scales = (t.numpy() for t in bytes_like())
    q = mx.MXTensor(codes, scales.view(ml_dtypes.float8_e8m0fnu))
    assert_same(q, mx.MXTensor(codes, scales))


@every_padded_layout
def test_without_a_shape_every_stored_row_counts(layout):
    q = some(np.random.default_rng(1), layout, rows=18)
    stored = mx.MXTensor(q.codes, q.scales, layout=layout)
    assert q.shape == (18, 96)
    assert stored.shape == (q.codes.shape[0], 96)


CODES, SCALES = bytes_like()
REFUSED = {
    "no such format": ({"format": "mxfp5"}, ValueError, "format: got 'mxfp5', expected mxfp4"),
    "no such layout": ({"layout": "shuffled"}, ValueError, "layout: got 'shuffled', expected pl"),
    "unhashable layout": ({"layout": []}, ValueError, "layout: got []"),
    "list": ({"codes": [1, 2]}, TypeError, "codes: got list, expected a torch tensor or NumPy"),
    "float64": (
        {"dtype": torch.float64},
        ValueError,
        "dtype: got torch.float64, expected bfloat16",
    ),
    "not floats": ({"dtype": torch.uint8}, ValueError, "dtype: got torch.uint8, expected bfloat16"),
    "floats": ({"codes": CODES.float()}, TypeError, "codes: got dtype float32, expected uint8 or"),
    "signed": ({"scales": SCALES.char()}, TypeError, "scales: got dtype int8, expected uint8 or"),
    "unpacked": (
        {"codes": CODES.numpy().view(ml_dtypes.float4_e2m1fn), "scales": SCALES.numpy()},
        TypeError,
        "unpacked, one code a byte: pack two",
    ),
    "unpacked six bits": (
        {
            **{"codes": CODES.numpy().view(ml_dtypes.float6_e2m3fn), "scales": SCALES.numpy()},
            "format": "mxfp6",
        },
        TypeError,
        "unpacked, one code a byte: pack four in three",
    ),
    "0-d": ({"codes": CODES[0, 0]}, ValueError, "codes: got a single number"),
    "transposed": ({"codes": CODES.T}, ValueError, "codes.contiguous()"),
    "stepped": (
        {"codes": CODES.numpy()[:, ::2], "scales": SCALES.numpy()},
        ValueError,
        "np.ascontiguousarray(codes)",
    ),
    "eight bits as four": (
        {"codes": torch.zeros(4, 64, dtype=torch.uint8), "shape": (4, 64)},
        ValueError,
        "shape: got [4, 64], but codes [4, 64] of mxfp4 in layout plain hold [4, 128]",
    ),
    "four bits as eight": (
        {"format": "mxfp8"},
        ValueError,
        "scales: got [4, 2], expected [4, 1] for [4, 32] of mxfp8",
    ),
    "two devices": ({"scales": SCALES.to("meta")}, ValueError, "got cpu and meta, expected one"),
    "half a block": ({"codes": CODES[:, :8].contiguous()}, ValueError, "K = 16, expected K to be"),
    "no K": ({"codes": CODES[:, :0]}, ValueError, "K = 0, expected K to be a positive multiple"),
    "few scales": ({"scales": SCALES[:3]}, ValueError, "scales: got [3, 2], expected [4, 2]"),
    "wide scales": ({"scales": SCALES.repeat(1, 2)}, ValueError, "scales: got [4, 4], expected"),
    "wrong shape": ({"shape": (4, 32)}, ValueError, "shape: got [4, 32], but codes [4, 32] of"),
    "wrong rows": ({"shape": (5, 64)}, ValueError, "hold [4, 64]"),
    "no padding": ({"layout": PADDED[0]}, ValueError, "codes: got [4, 32], expected [16, 32]"),
    "a vector padded": (
        {"codes": CODES[0], "scales": SCALES[0], "layout": PADDED[0]},
        ValueError,
        "holds matrices: [..., rows, bytes]",
    ),
    "matrices that share padding": (
        {"codes": bytes_like(16, 64, (2,))[0], "layout": PADDED[0]},
        ValueError,
        "scales: got [4, 2], expected [2, 16, 2]",
    ),
    "shape no tuple": ({"shape": 64}, TypeError, "shape: got int, expected a tuple of integers"),
    "0-d padded": ({"shape": (), "layout": PADDED[0]}, ValueError, "shape: got [], but"),
    "negative": ({"shape": (-4, 64), "layout": PADDED[0]}, ValueError, "shape: got [-4, 64], but"),
    "1-D padded": ({"shape": (64,), "layout": PADDED[0]}, ValueError, "shape: got [64], but"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parts_that_do_not_fit_are_refused(case):
    changes, error, message = REFUSED[case]
    arguments = {"codes": CODES, "scales": SCALES} | changes
    with pytest.raises(error) as raised:
        mx.MXTensor(arguments.pop("codes"), arguments.pop("scales"), **arguments)
    assert message in str(raised.value)


def test_an_mx_tensor_is_neither_codes_nor_floats(rng):
    q = some(rng)
    for call in (lambda: mx.MXTensor(q, q.scales), lambda: mx.quantize(q)):
        with pytest.raises(
            TypeError, match=r"got an MXTensor, expected floats or bytes; call .*\.deq"
        ):
            call()


@pytest.mark.parametrize("name", ["codes", "scales", "layout", "shape", "format", "dtype", "k"])
def test_its_parts_cannot_be_exchanged(rng, name):
    with pytest.raises((AttributeError, TypeError, RuntimeError)):
        setattr(some(rng), name, None)


def test_it_can_be_a_key(rng):
    q = some(rng)
    assert {q: 1}[q] == 1
    assert q in [q]


@every_format
def test_copies_and_pickles_keep_any_format(rng, format):
    for layout in ("plain", PADDED[0]):
        q = some(rng, layout, format=format)
        for way in (copy.deepcopy, copy.copy, lambda q: pickle.loads(pickle.dumps(q))):
            assert_same(way(q), q)
        assert format in repr(q)


@every_layout
@pytest.mark.parametrize("way", [copy.deepcopy, copy.copy, lambda q: pickle.loads(pickle.dumps(q))])
def test_copies_and_pickles_keep_bytes_and_meaning(rng, layout, way):
    q = some(rng, layout)
    assert_same(way(q), q)
    p = way(torch.nn.Parameter(q, requires_grad=False))
    assert isinstance(p, torch.nn.Parameter) and not p.requires_grad
    assert_same(p, q)


def test_a_deep_copy_has_its_own_memory(rng):
    q = some(rng)
    other, same = copy.deepcopy([q, q])
    assert other is same
    assert other.codes.data_ptr() != q.codes.data_ptr()
    assert other.scales.data_ptr() != q.scales.data_ptr()


@every_layout
def test_torch_loads_it_without_trusting_the_file(rng, layout):
    q, file = some(rng, layout), io.BytesIO()
    torch.save({"w": q}, file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=True)["w"], q)


@pytest.mark.parametrize("call", [mx.MXTensor.numpy, np.asarray, np.array])
def test_it_is_no_array_and_says_where_the_bytes_are(rng, call):
    with pytest.raises(TypeError, match=r"numpy: got an MXTensor .* q\.codes\.numpy\(\)"):
        call(some(rng))


@every_layout
def test_to_moves_the_bytes_and_nothing_else(rng, layout):
    q = some(rng, layout)
    assert_same(q.to(q.device), q)
    moved = q.to("meta")
    assert moved.device.type == "meta"
    assert (moved.layout, moved.shape, moved.codes.shape) == (q.layout, q.shape, q.codes.shape)


@every_layout
def test_another_float_dtype_changes_no_byte(rng, layout):
    q = some(rng, layout)
    for cast in (lambda q: q.to(torch.float16), lambda q: q.half(), lambda q: q.type(torch.half)):
        got = cast(q)
        assert got.dtype == got.dequantize().dtype == torch.float16
        assert_same(got.to(q.dtype), q)
    for dtype in (torch.float64, torch.int8, torch.bool):
        with pytest.raises(ValueError, match=f"dtype: got {dtype}, expected bfloat16 or float16"):
            q.to(dtype)


@every_format
@every_padded_layout
def test_preshuffle_and_unshuffle_are_inverse_and_idempotent(rng, layout, format):
    q = some(rng, k=192, format=format)
    device = LAYOUTS[layout]["device"]
    p = q.preshuffle(device=device)
    assert (p.layout, p.shape, p.k) == (layout, q.shape, q.k)
    assert p.preshuffle(device=device) is p
    assert q.unshuffle() is q
    assert_same(p.unshuffle(), q)
    assert p.format == format


def test_preshuffle_takes_the_layout_of_where_the_weights_lie(rng):
    q = some(rng)
    where = q.device.type
    assert q.preshuffle().layout == f"preshuffled_{where}" == q.preshuffle(device=where).layout
    for device in (torch.device(where), torch.device(where, 0), f"{where}:0"):
        assert q.preshuffle(device=device).layout == q.preshuffle().layout


def test_preshuffle_goes_from_one_padded_layout_to_another(rng):
    q = some(rng)
    for first in PADDED:
        for second in PADDED:
            start = q.preshuffle(device=LAYOUTS[first]["device"])
            direct = q.preshuffle(device=LAYOUTS[second]["device"])
            assert_same(start.preshuffle(device=LAYOUTS[second]["device"]), direct)


@pytest.mark.parametrize("lead", [(3,), (2, 3), (0,), (1,)])
@pytest.mark.parametrize("rows", [1, 18, 64])
@every_padded_layout
def test_each_matrix_is_preshuffled_for_itself(rng, layout, rows, lead):
    device = LAYOUTS[layout]["device"]
    count = math.prod(lead)
    codes, scales = random_operand(rng, count * rows, 96)
    q = mx_tensor(codes.reshape(*lead, rows, 48), scales.reshape(*lead, rows, 3))
    p = q.preshuffle(device=device)
    assert (p.shape, p.layout) == (q.shape, layout)
    for i, (one, alone) in enumerate(zip(p.view(-1, rows, 96), q.view(-1, rows, 96), strict=True)):
        assert_same(one, alone.preshuffle(device=device))
        assert one.codes.data_ptr() == p.codes.data_ptr() + i * one.codes.numel()
    assert_same(p.unshuffle(), q)
    assert torch.equal(p.dequantize(), q.dequantize())
    stored = mx.MXTensor(p.codes, p.scales, shape=p.shape, layout=layout)
    assert_same(stored, p)


@every_layout
def test_repr_says_what_it_is(rng, layout):
    q = some(rng, layout, rows=1600)
    for word in (
        "MXTensor",
        "[1600, 96]",
        "mxfp4",
        layout,
        "bfloat16",
        str(q.device),
        f"{q.nbytes / 1000:.3g} kB",
    ):
        assert word in repr(q)


def shrink(q):
    q.codes.resize_(1, 16)


def swap(q):
    q.codes.data = torch.zeros(1, dtype=torch.uint8)


def stride(q):
    q.scales.data = torch.zeros(1, dtype=torch.uint8).expand(q.scales.shape)


def free(q):
    q.scales.untyped_storage().resize_(0)


@pytest.mark.parametrize("used_before", [True, False])
@pytest.mark.parametrize("change", [shrink, swap, stride, free])
def test_arrays_changed_behind_its_back_are_noticed(change, used_before):
    q, x = mx.quantize(torch.ones(18, 96)), torch.ones(2, 96)
    if used_before:
        mx.linear(x, q)
    change(q)
    for call in (lambda: mx.linear(x, q), q.dequantize, q.preshuffle):
        with pytest.raises(ValueError, match=r"changed after it was made|storage was freed"):
            call()


def test_activations_and_bias_without_memory_are_noticed():
    q = mx.quantize(torch.ones(18, 96))
    x, bias = torch.ones(2, 96), torch.ones(18)
    bias.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="storage was freed"):
        mx.linear(x, q, bias=bias)
    x.untyped_storage().resize_(0)
    for call in (lambda: mx.linear(x, q), lambda: mx.quantize(x)):
        with pytest.raises(ValueError, match="storage was freed"):
            call()
