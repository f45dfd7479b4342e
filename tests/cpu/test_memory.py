"""The kernels touch no byte beside their arguments.

Every array, read or written, lies against a page that may not be touched: once with its last
byte before the page, once with its first byte behind it. A kernel that reads or writes one
byte too far ends the process.
"""

import ctypes
import faulthandler
import mmap
import os
import signal

import numpy as np
import pytest
import torch

import mx_kernels as mx
from cases import LAYOUTS, NUMPY_DTYPES, every_dtype, every_layout, mx_tensor, random_operand
from mx_kernels._facts import facts

PAGE = mmap.PAGESIZE
PROT_NONE = 0
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

at_both_ends = pytest.mark.parametrize("end", ["before the page", "behind the page"])
SHAPES = [(1, 1, 32), (1, 17, 96), (3, 16, 64), (5, 33, 256), (17, 31, 160), (13, 50, 1056)]


def beside_a_wall(array, end):
    """Copies `array` to where the page beside it may not be touched."""
    size = array.nbytes
    pages = -(-size // PAGE)
    area = mmap.mmap(-1, (pages + 2) * PAGE)
    base = ctypes.addressof(ctypes.c_char.from_buffer(area))
    for wall in (base, base + (pages + 1) * PAGE):
        assert libc.mprotect(wall, PAGE, PROT_NONE) == 0
    offset = PAGE if end == "behind the page" else (pages + 1) * PAGE - size
    view = np.frombuffer(area, np.uint8, size, offset).view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def address(array):
    return array.ctypes.data


def codes_and_scales(rng, rows, k, layout, end):
    q = mx_tensor(*random_operand(rng, rows, k), layout)
    return q, [beside_a_wall(part.numpy(), end) for part in (q.codes, q.scales)]


def blank(shape, dtype, end):
    return beside_a_wall(np.full(shape, 77).astype(dtype), end)


@pytest.fixture(autouse=True)
def _two_threads():
    torch.set_num_threads(2)


@at_both_ends
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_byte_beyond_ends_the_process(end):
    array = beside_a_wall(np.zeros(3, np.uint8), end)
    beyond = address(array) + (3 if end == "before the page" else -1)
    child = os.fork()
    if child == 0:
        faulthandler.disable()
        ctypes.string_at(beyond, 1)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGSEGV


@at_both_ends
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantize(rng, shape, dtype, end):
    m, _, k = shape
    x = beside_a_wall(rng.standard_normal((m, k)).astype(NUMPY_DTYPES[dtype]), end)
    codes, scales = blank((m, k // 2), np.uint8, end), blank((m, k // 32), np.uint8, end)
    table = facts()
    source = (address(x), table.dtypes[dtype], k, m, k, table.roundings["even"])
    table.native.quantize((*source, address(codes), address(scales), table.team))
    expected = mx.quantize(x)
    np.testing.assert_array_equal(codes, expected.codes)
    np.testing.assert_array_equal(scales, expected.scales)


@at_both_ends
@every_layout
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dequantize(rng, shape, layout, dtype, end):
    _, n, k = shape
    q, (codes, scales) = codes_and_scales(rng, n, k, layout, end)
    out, table = blank((n, k), NUMPY_DTYPES[dtype], end), facts()
    source = (address(codes), address(scales), table.layouts[layout].code, n, k)
    table.native.dequantize((*source, address(out), table.dtypes[dtype], table.team))
    np.testing.assert_array_equal(out, q.numpy().dequantize(dtype))


@at_both_ends
@every_layout
@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_relayout(rng, shape, layout, target, end):
    _, n, k = shape
    q, (codes, scales) = codes_and_scales(rng, n, k, layout, end)
    table, row = facts(), facts().layouts[target]
    storage = row.storage(n, k, table.default_format)
    out = [blank(shape, np.uint8, end) for shape in storage]
    source = (address(codes), address(scales), table.layouts[layout].code)
    table.native.relayout((*source, *map(address, out), row.code, n, k, table.team))
    expected = q.preshuffle(device=row.device) if row.device else q.unshuffle()
    np.testing.assert_array_equal(out[0], expected.codes)
    np.testing.assert_array_equal(out[1], expected.scales)


@at_both_ends
@every_layout
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_and_matmul(rng, shape, layout, dtype, end):
    m, n, k = shape
    x = beside_a_wall(rng.standard_normal((m, k)).astype(NUMPY_DTYPES[dtype]), end)
    bias = beside_a_wall(rng.standard_normal(n).astype(NUMPY_DTYPES[dtype]), end)
    w, (codes, scales) = codes_and_scales(rng, n, k, layout, end)
    a = [beside_a_wall(part, end) for part in (mx.quantize(x).codes, mx.quantize(x).scales)]
    out = [blank((m, n), NUMPY_DTYPES[dtype], end) for _ in range(2)]
    table = facts()
    code = table.dtypes[dtype]
    weights = (address(codes), address(scales), table.layouts[layout].code, m, n, k)
    rest = (code, address(bias), code, table.team)
    rounding = table.roundings["even"]
    table.native.linear((address(x), code, k, *weights, rounding, address(out[0]), *rest))
    table.native.matmul((*map(address, a), table.plain.code, *weights, address(out[1]), *rest))
    expected = mx.linear(x, w.numpy(), bias=bias)
    np.testing.assert_array_equal(out[0], expected)
    np.testing.assert_array_equal(out[1], expected)
