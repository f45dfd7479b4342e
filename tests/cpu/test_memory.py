"""The kernels touch no byte beside their arguments, and say so where memory cannot be had.

Every array, read or written, lies against a page that may not be touched: once with its last
byte before the page, once with its first byte behind it. A kernel that reads or writes one
byte too far ends the process.
"""

import ctypes
import faulthandler
import mmap
import os
import resource
import signal
import threading
import time

import numpy as np
import pytest
import torch

import mx_kernels as mx
from cases import (
    FORMATS,
    LAYOUTS,
    NUMPY_DTYPES,
    NVFP4_FORMATS,
    PAIRS,
    every_dtype,
    every_layout,
    mx_tensor,
    quantized_normal,
    random_operand,
)
from mx_kernels._core.facts import facts
from mx_kernels._core.protocol import ENCODED, QUANTIZED
from tests.tiers import deep

PAGE = mmap.PAGESIZE
PROT_NONE = 0
THREADS = 2
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

every_format = pytest.mark.parametrize("format", [*FORMATS, *NVFP4_FORMATS])
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


def codes_and_scales(rng, rows, k, layout, end, format="mxfp4"):
    if format in NVFP4_FORMATS:
        q = quantized_normal(rng, (rows, k), format=format)._relayout(facts().layouts[layout])
    else:
        q = mx_tensor(*random_operand(rng, rows, k, format=format), layout, format)
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
@every_format
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_quantize(rng, shape, dtype, format, end):
    m, _, k = shape
    x = beside_a_wall(rng.standard_normal((m, k)).astype(NUMPY_DTYPES[dtype]), end)
    table, row = facts(), facts().formats[format]
    codes, scales = (
        blank((m, row.packed_bytes(k)), np.uint8, end),
        blank(row.scales_of((m, k)), np.uint8, end),
    )
    source = (address(x), table.dtypes[dtype], k, m, k, row.code, table.roundings["even"])
    table.native.quantize((*source, address(codes), address(scales), 0, table.team, THREADS))
    expected = mx.quantize(x, format=format)
    np.testing.assert_array_equal(codes, expected.codes)
    np.testing.assert_array_equal(scales, expected.scales)


@at_both_ends
@every_layout
@every_format
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_dequantize(rng, shape, layout, format, end):
    _, n, k = shape
    dtype = "bfloat16" if shape == SHAPES[1] else "float32"
    q, (codes, scales) = codes_and_scales(rng, n, k, layout, end, format)
    out, table = blank((n, k), NUMPY_DTYPES[dtype], end), facts()
    source = (address(codes), address(scales), *q._native, n, k)
    table.native.dequantize((*source, address(out), table.dtypes[dtype], table.team, THREADS))
    np.testing.assert_array_equal(out.astype(np.float32), q.dequantize(dtype).float())


@at_both_ends
@every_layout
@pytest.mark.parametrize("target", LAYOUTS)
@pytest.mark.parametrize("format", [*FORMATS[:2], *NVFP4_FORMATS])
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=str)
def test_relayout(rng, shape, format, layout, target, end):
    """Layouts know bytes alone: one format of each element size has them all."""
    _, n, k = shape
    q, (codes, scales) = codes_and_scales(rng, n, k, layout, end, format)
    table, row = facts(), facts().layouts[target]
    encoding = table.formats[format]
    out = [blank(shape, np.uint8, end) for shape in row.storage(n, k, encoding)]
    source = (address(codes), address(scales), table.layouts[layout].code)
    target = (*map(address, out), row.code, encoding.code, n, k)
    table.native.relayout((*source, *target, table.team, THREADS))
    expected = q._relayout(row)
    np.testing.assert_array_equal(out[0], expected.codes)
    np.testing.assert_array_equal(out[1], expected.scales)


def multiply(left, w, codes, scales, bias, out):
    """Computes a product of arrays beside walls."""
    table = facts()
    (m, n), dtype = out.shape, table.dtypes[out.dtype.name]
    right = (address(codes), address(scales), *w._native)
    result = (address(out), dtype, address(bias), dtype)
    table.native.multiply((*left, *right, *result, m, n, w.k, table.team, THREADS))


def beside_walls(rng, shape, left, right, layout, dtype, end):
    """Computes `linear` and `matmul` with every array beside a wall, and compares."""
    m, n, k = shape
    kind, table = NUMPY_DTYPES[dtype], facts()
    x = beside_a_wall(rng.standard_normal((m, k)).astype(kind), end)
    bias = beside_a_wall(rng.standard_normal(n).astype(kind), end)
    w, (codes, scales) = codes_and_scales(rng, n, k, layout, end, right)
    a = mx.quantize(x, format=left)
    encoded = [beside_a_wall(part.numpy(), end) for part in (a.codes, a.scales)]
    row, code = table.formats[left], table.dtypes[dtype]
    out = [blank((m, n), kind, end) for _ in range(2)]
    floats = (QUANTIZED, address(x), 0, code, k, row.code, table.roundings["even"])
    multiply(floats, w, codes, scales, bias, out[0])
    multiply((ENCODED, *map(address, encoded), 0, 0, row.code, 0), w, codes, scales, bias, out[1])
    expected = mx.linear(x, w, bias=bias, activations=left)
    np.testing.assert_array_equal(out[0], expected)
    np.testing.assert_array_equal(out[1], expected)


def weights_beside_walls(rng, count, n, k, layout, end, format="mxfp4"):
    """Returns experts as they are, and with codes and scales beside walls."""
    parts = [random_operand(rng, n, k, format=format) for _ in range(count)]
    q = mx_tensor(*map(np.stack, zip(*parts, strict=True)), layout, format)
    walled = [beside_a_wall(part.numpy(), end) for part in (q.codes, q.scales)]
    return q, mx.MXTensor(*walled, shape=tuple(q.shape), format=format, layout=layout)


def all_beside_walls(end, arrays):
    """Returns tensors over copies of arrays that lie beside walls."""
    return {name: torch.from_numpy(beside_a_wall(array, end)) for name, array in arrays.items()}


@at_both_ends
@every_layout
@pytest.mark.parametrize("mode", ["mxfp4", "bf16"])
@pytest.mark.parametrize("sizes", [(0, 1, 0), (3, 0, 17)], ids=str)
def test_grouped_linear(rng, sizes, mode, layout, end):
    q, w = weights_beside_walls(rng, 3, 33, 96, layout, end)
    arrays = {
        "x": rng.standard_normal((sum(sizes) + 1, 96)).astype(np.float32),
        "group_sizes": np.array(sizes, np.int32),
        "bias": rng.standard_normal((3, 33)).astype(np.float16),
    }
    expected = mx.grouped_linear(w=q, activations=mode, **arrays)
    got = mx.grouped_linear(w=w, activations=mode, **all_beside_walls(end, arrays))
    np.testing.assert_array_equal(got, expected)


@at_both_ends
@every_layout
@pytest.mark.parametrize("mode", ["mxfp4", "bf16"])
@pytest.mark.parametrize("hidden_act", ["swiglu_oai", "silu"])
@pytest.mark.parametrize("tokens, slots", [(1, 1), (9, 3)])
def test_moe(rng, tokens, slots, hidden_act, mode, layout, end):
    gate_up, also_gate_up = weights_beside_walls(rng, 3, 64, 96, layout, end)
    down, also_down = weights_beside_walls(rng, 3, 96, 32, layout, end)
    arrays = {
        "x": rng.standard_normal((tokens, 96)).astype(np.float32),
        "expert_ids": rng.integers(-1, 3, (tokens, slots)),
        "expert_weights": rng.standard_normal((tokens, slots)).astype(np.float32),
        "bias_gate_up": rng.standard_normal((3, 64)).astype(np.float32),
        "bias_down": rng.standard_normal((3, 96)).astype(np.float32),
    }
    rules = {"activations": mode, "hidden_act": hidden_act}
    expected = mx.moe(w_gate_up=gate_up, w_down=down, **arrays, **rules)
    weights = {"w_gate_up": also_gate_up, "w_down": also_down}
    got = mx.moe(**weights, **all_beside_walls(end, arrays), **rules)
    np.testing.assert_array_equal(got, expected)


@at_both_ends
@every_layout
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_linear_and_matmul(rng, shape, layout, dtype, end):
    beside_walls(rng, shape, "mxfp4", "mxfp4", layout, dtype, end)


@at_both_ends
@every_layout
@pytest.mark.parametrize(
    "pair", [*PAIRS, ("nvfp4", "nvfp4"), ("mxint8", "nvfp4"), ("mxfp8", "nvfp4")], ids="-".join
)
@pytest.mark.parametrize("shape", SHAPES[1:5:3], ids=str)
def test_linear_and_matmul_of_every_pair(rng, shape, pair, layout, end):
    beside_walls(rng, shape, *pair, layout, "float32", end)


def in_a_child(work):
    """Returns what `work` says in a child process, or the signal that ended it.

    torch's own threads do not survive a fork, and whoever waits for them hangs.
    """
    torch.set_num_threads(1)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(120)
            os.write(writer, work().encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return said if os.WIFEXITED(status) else f"signal {os.WTERMSIG(status)}"


def leave_memory(num_bytes):
    """Leaves this process so many bytes of new memory."""
    with open("/proc/self/statm") as statm:
        used = int(statm.read().split()[0]) * PAGE
    resource.setrlimit(resource.RLIMIT_AS, (used + num_bytes,) * 2)


MANY = 1 << 17
"""Rows that lie on top of each other, and whose copies take more than `LITTLE`."""
LITTLE = 100 << 20


def many_rows(count=MANY):
    return torch.ones(1, 1024).expand(count, 1024)


def experts_of(rows, k):
    return mx.quantize(torch.ones(2, rows, k))


CALLS = {
    "linear bf16": lambda x, ids: mx.linear(
        x, mx.quantize(torch.ones(16, 1024)), activations="bf16"
    ),
    "linear mxint8": lambda x, ids: mx.linear(
        x, mx.quantize(torch.ones(16, 1024)), activations="mxint8"
    ),
    "grouped": lambda x, ids: mx.grouped_linear(
        x, experts_of(16, 1024), torch.tensor([x.shape[0], 0], dtype=torch.int32)
    ),
    "moe": lambda x, ids: mx.moe(
        x[: MANY >> 3],
        experts_of(64, 1024),
        experts_of(1024, 32),
        ids.expand(x[: MANY >> 3].shape[0], 4),
        torch.ones(x[: MANY >> 3].shape[0], 4),
    ),
}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_working_memory_that_cannot_be_had_is_an_error_and_the_next_call_computes(call):
    few, ids = many_rows(3), torch.zeros(1, 4, dtype=torch.int64)
    expected = call(few, ids)

    def work():
        leave_memory(LITTLE)
        try:
            call(many_rows(), ids)
        except MemoryError as error:
            same = torch.equal(call(few, ids), expected)
            return f"{error}; then {'the same' if same else 'something else'}"
        return "a result"

    said = in_a_child(work)
    assert said.startswith("out of memory: cannot allocate "), said
    assert said.endswith(" bytes; then the same"), said


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_sums_of_a_panel_without_memory_are_taken_a_group_at_a_time():
    # Rows of 32 make tall panels. With a fixed threshold, what is freed goes back at once.
    M_MMAP_THRESHOLD, rows, k = -3, 1 << 19, 32
    x = torch.linspace(-1, 1, rows * k).reshape(rows, k)
    w = mx.quantize(torch.linspace(-1, 1, 16 * k).reshape(16, k))
    assert libc.mallopt(M_MMAP_THRESHOLD, 1 << 16) == 1
    expected = mx.linear(x, w)
    again = torch.empty_like(expected)

    def work():
        result = again.numel() * again.element_size()
        leave_memory(result + (1 << 20))
        return "the same" if torch.equal(mx.linear(x, w), expected) else "something else"

    assert in_a_child(work) == "the same"


@deep
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_ids_that_change_meanwhile_lead_nowhere_else():
    up, down = experts_of(64, 64), experts_of(64, 32)
    x, ids, weights = (
        torch.ones(4096, 64),
        torch.ones(4096, 4, dtype=torch.int64),
        torch.ones(4096, 4),
    )
    mx.moe(x, up, down, ids, weights)

    def work():
        def write():
            while True:
                ids.fill_(2**31 - 5)
                ids.fill_(1)

        threading.Thread(target=write, daemon=True).start()
        end = time.monotonic() + 20
        while time.monotonic() < end:
            try:
                mx.moe(x, up, down, ids, weights)
            except ValueError:
                continue
        return "a result or ValueError"

    assert in_a_child(work) == "a result or ValueError"
