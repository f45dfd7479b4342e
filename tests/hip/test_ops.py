"""The operations on gfx950 through HIP: a stand-in for the runtime, the simulator for the GPU.

No such GPU is at hand; nothing here ran on one. The extension modules, their launches and the
machine code in them are the product's own. CPU tensors are taken for tensors of the device.
"""

import functools
import itertools

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode

import mx_kernels as mx
import oracle
from cases import FP8_FORMATS
from mx_kernels._core import cuda
from mx_kernels._core import hip as _hip
from mx_kernels._core.devices import launcher_of
from mx_kernels._core.facts import facts
from tests import artefacts
from tests.hip.code_object import embedded_in, loaded
from tests.hip.kinds import KINDS
from tests.tiers import deep, tiered

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
DEVICE, LAYOUT = "gfx950", "preshuffled_cdna4"
OUT_OF_MEMORY, NO_BINARY, NOT_FOUND, LAUNCH_FAILURE, UNKNOWN = 2, 209, 500, 719, 999
MAX_LDS_BYTES = 160 * 1024
SPILLED_SCALARS = {"others": 2, "fused": 300}
"""Ping-pong that encodes float32: the address of its arguments, kept across the main loop for that
of the bias, and neither written nor read in it. Of "fused", what quantizes gates, or norms to
eight bits: masks and constants of what is chosen at run time, kept in lanes of vector registers."""
PORTABLE_SPILLED_SCALARS = 1645
"""The same of the portable kernels in "fused", for rows at any address."""
MACHINE_GFX950 = 0x4F
"""In the ELF header's flags."""
SPLIT = (5, 40, 4128)
"""A shape whose workgroups share K, and so need a workspace."""
FEW_ROWS = [(5, 40, 160), (33, 40, 256), (5, 40, 544), SPLIT, (40, 100, 768), (17, 40, 1568)]
WIDE_SHAPES = [(5, 40, 160), SPLIT, (70, 100, 544)]
MANY_ROWS = [(1025, 2048, 544), (4097, 2048, 160)]
"""Shapes of more than a thousand rows, K ending within a stage."""
ENCODED_FIRST = (80, 18432, 1024)
"""A shape whose floats a launch of its own encodes."""
QUANTIZED_ROWS, QUANTIZED_K = 32, 512
"""Of a workgroup of that launch."""
kept_linear = functools.partial(mx.linear, activations="bf16")
"""Where any kind of product will do: that whose module takes least to compile."""
FIRST_KEPT = pytest.mark.parametrize("activations", tiered(["bf16", "mxfp4"], first=["bf16"]))
MIN_ARGUMENTS = 8
"""Of a product; what quantizes has fewer."""


@pytest.fixture
def recorder(gpu):
    """A device that records launches and does not execute them."""
    gpu.execute = False
    return gpu


def floats(rng, shape, dtype=BF16):
    exponents = np.repeat(rng.integers(-4, 5, (*shape[:-1], shape[-1] // 32)), 32, -1)
    return torch.from_numpy(rng.standard_normal(shape) * np.exp2(exponents)).to(dtype)


def values_of(t):
    return t.double().numpy()


def plain_operand(rng, rows, k):
    """Draws codes and scales; the scales of neighbouring blocks differ by up to 2**9."""
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    return codes, rng.integers(118, 127, (rows, k // 32)).astype(np.uint8)


def operand(parts, *, rows=None, k=None, layout="plain"):
    tensors = [torch.from_numpy(part.copy()) for part in parts]
    return mx.MXTensor(*tensors, layout=layout, shape=None if rows is None else (rows, k))


def weights(rng, n, k):
    """Draws weights; returns plain parts, and the preshuffled tensor."""
    plain = plain_operand(rng, n, k)
    stored = oracle.LAYOUTS[LAYOUT].store(*plain)
    return plain, operand(stored, rows=n, k=k, layout=LAYOUT)


@functools.cache
def empty_weights(n, k):
    storage = facts().layout_for(DEVICE).storage(n, k, facts().formats["mxfp4"])
    parts = [torch.empty(shape, dtype=torch.uint8) for shape in storage]
    return mx.MXTensor(*parts, shape=(n, k), layout=LAYOUT)


def assert_product(out, a, plain, bias=None):
    """Compares with the float64 product under the oracle's bound."""
    bias = None if bias is None else values_of(bias)
    dtype = str(out.dtype).removeprefix("torch.")
    decoded = oracle.dequantize(*a), oracle.dequantize(*plain)
    oracle.assert_matmul(values_of(out), *decoded, dtype, bias)


def assert_linear(out, x, activations, plain):
    """Compares with the product of what the activations are rounded to."""
    a = values_of(x)
    if activations != "bf16":
        a = oracle.dequantize(*oracle.quantize(a, format=activations), activations)
    oracle.assert_matmul(values_of(out), a, oracle.dequantize(*plain), "bfloat16")


# What the kernels compute


@pytest.mark.parametrize("fmt", ["mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2"])
def test_quantize_to_more_than_four_bits_gives_the_bits_of_the_format(gpu, rng, fmt):
    x = floats(rng, (37, 544))
    q = mx.quantize(x, format=fmt)
    expected = oracle.quantize(values_of(x), format=fmt)
    for got, part in zip((q.codes, q.scales), expected, strict=True):
        oracle.assert_bitwise_equal(got.numpy(), part)


@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
@pytest.mark.parametrize("scale_rule", tiered(oracle.ROUNDINGS, first=["even"]))
def test_quantize_gives_the_bits_of_the_format(gpu, rng, dtype, scale_rule):
    x = floats(rng, (2, 19, 160), dtype)
    q = mx.quantize(x, scale_rule=scale_rule)
    codes, scales = oracle.quantize(values_of(x), scale_rule)
    oracle.assert_bitwise_equal(q.codes.numpy(), codes)
    oracle.assert_bitwise_equal(q.scales.numpy(), scales)


@pytest.mark.parametrize("dtype", tiered([BF16, F16, F32], first=[BF16]), ids=str)
@pytest.mark.parametrize("layout", ["plain", LAYOUT])
def test_dequantize_is_exact(gpu, rng, dtype, layout):
    plain = plain_operand(rng, 37, 160)
    q = operand(oracle.LAYOUTS[layout].store(*plain), rows=37, k=160, layout=layout)
    expected = torch.from_numpy(oracle.dequantize(*plain)).to(dtype)
    torch.testing.assert_close(mx.dequantize(q, dtype=dtype), expected, rtol=0, atol=0)


def test_preshuffle_writes_padding_and_comes_back(gpu, rng):
    plain = plain_operand(rng, 37, 160)
    q = mx.preshuffle(operand(plain), device=DEVICE)
    for got, expected in zip(
        (q.codes, q.scales), oracle.LAYOUTS[LAYOUT].store(*plain), strict=True
    ):
        oracle.assert_bitwise_equal(got.numpy(), expected)
    back = mx.unshuffle(q)
    for got, expected in zip((back.codes, back.scales), plain, strict=True):
        oracle.assert_bitwise_equal(got.numpy(), expected)


@deep
@pytest.mark.parametrize("shape", FEW_ROWS)
def test_linear_is_within_the_bound(gpu, rng, shape):
    m, n, k = shape
    x = floats(rng, (m, k))
    plain, w = weights(rng, n, k)
    assert_product(mx.linear(x, w, activations="mxfp4"), oracle.quantize(values_of(x)), plain)


@deep
@pytest.mark.parametrize("shape", FEW_ROWS)
def test_matmul_gives_the_bits_of_linear(gpu, rng, shape):
    m, n, k = shape
    x, (_, w) = floats(rng, (m, k)), weights(rng, n, k)
    a = operand(oracle.quantize(values_of(x)))
    torch.testing.assert_close(
        mx.matmul(a, w), mx.linear(x, w, activations="mxfp4"), rtol=0, atol=0
    )


@pytest.mark.deep
@pytest.mark.parametrize("shape", MANY_ROWS)
def test_the_first_tile_of_many_rows_is_within_the_bound(gpu, rng, shape):
    choice = mx.explain(*shape, device=DEVICE, op=mx.matmul)
    assert "interleaved" in choice.kernel and choice.k_tail and choice.splits == 1
    (m, n, k), (rows, columns) = shape, choice.tile
    gpu.groups = [0]
    a = plain_operand(rng, m, k)
    plain, w = weights(rng, n, k)
    out = mx.matmul(operand(a), w)
    first = [part[:rows] for part in a], [part[:columns] for part in plain]
    assert_product(out[:rows, :columns], *first)


@deep
def test_floats_that_a_launch_before_encodes_are_within_the_bound(gpu, rng):
    """The first tiles of a product, of which the launch before needs all workgroups."""
    m, n, k = ENCODED_FIRST
    choice = mx.explain(m, n, k, device=DEVICE, activations="mxfp4")
    assert choice.quantizes_first and choice.splits == 1
    rows, columns = choice.tile
    x = floats(rng, (m, k))
    plain, w = weights(rng, n, k)
    gpu.groups = list(range(-(-m // QUANTIZED_ROWS) * -(-k // QUANTIZED_K)))
    out = mx.linear(x, w, activations="mxfp4")
    encoder, product = gpu.launches
    assert np.prod(encoder.grid) == len(gpu.groups) and product.grid == choice.grid
    a = oracle.quantize(values_of(x))
    first = [part[:rows] for part in a], [part[:columns] for part in plain]
    assert_product(out[:rows, :columns], *first)


@pytest.mark.parametrize("shape", tiered(WIDE_SHAPES, first=WIDE_SHAPES[:1]))
@pytest.mark.parametrize("activations", tiered(["bf16", "mxfp6", "mxfp8"], first=["bf16"]))
def test_activations_of_more_than_four_bits_are_within_the_bound(gpu, rng, activations, shape):
    m, n, k = shape
    x = floats(rng, (m, k))
    plain, w = weights(rng, n, k)
    assert_linear(mx.linear(x, w, activations=activations), x, activations, plain)


@deep
@pytest.mark.parametrize("m, dtype", [(5, F16), (70, BF16)])
def test_float16_beside_weights_alone_is_rounded_to_bfloat16(gpu, rng, m, dtype):
    """In the kernel of few rows; by torch, in a launch before, of more."""
    n, k = 40, 160
    x = floats(rng, (m, k), F16)
    plain, w = weights(rng, n, k)
    out = mx.linear(x, w, activations="bf16", out_dtype=dtype)
    name = str(dtype).removeprefix("torch.")
    oracle.assert_matmul(values_of(out), values_of(x.to(BF16)), oracle.dequantize(*plain), name)


SCALE_ROUNDINGS = 2
"""Of products: float scales are no powers of two."""


def float_scaled(rng, rows, k, fmt):
    """Draws numbers and returns what the device makes of them, and what they stand for."""
    q = mx.quantize(floats(rng, (rows, k)), format=fmt)
    return q, oracle.dequantize(q.codes.numpy(), q.scales.numpy(), fmt)


@deep
@pytest.mark.parametrize("fmt", FP8_FORMATS)
@pytest.mark.parametrize("scale_rule", ["even", "rceil"])
def test_quantize_to_float_scales_gives_the_bits_of_the_format(gpu, rng, fmt, scale_rule):
    x = floats(rng, (137, 544))
    q = mx.quantize(x, format=fmt, scale_rule=scale_rule)
    expected = oracle.quantize(values_of(x), scale_rule, fmt)
    for got, part in zip((q.codes, q.scales), expected, strict=True):
        oracle.assert_bitwise_equal(got.numpy(), part)


@deep
@pytest.mark.parametrize("shape", [(5, 40, 160), SPLIT, (70, 140, 544)])
def test_matmul_of_codes_with_scales_of_rows_is_within_the_bound(gpu, rng, shape):
    m, n, k = shape
    (a, left), (w, right) = (float_scaled(rng, rows, k, "fp8") for rows in (m, n))
    out = mx.matmul(a, w.preshuffle(DEVICE))
    torch.testing.assert_close(mx.matmul(a, w), out, rtol=0, atol=0)
    oracle.assert_matmul(values_of(out), left, right, "bfloat16", scale_roundings=SCALE_ROUNDINGS)


@deep
@pytest.mark.parametrize("shape", [(5, 40, 160), SPLIT, (70, 140, 544)])
def test_linear_with_scales_of_blocks_is_within_the_bound(gpu, rng, shape):
    m, n, k = shape
    x, (w, right) = floats(rng, (m, k)), float_scaled(rng, n, k, "fp8_block_2d")
    out = mx.linear(x, w.preshuffle(DEVICE), activations="fp8_block")
    left = oracle.dequantize(*oracle.quantize(values_of(x), format="fp8_block"), "fp8_block")
    oracle.assert_matmul(values_of(out), left, right, "bfloat16", scale_roundings=SCALE_ROUNDINGS)


@deep
def test_the_first_tile_of_many_rows_with_scales_of_rows_is_within_the_bound(gpu, rng):
    m, n, k = 2049, 2048, 544
    choice = mx.explain(m, n, k, device=DEVICE, op=mx.matmul, activations="fp8", format="fp8")
    assert "ping_pong" in choice.kernel
    rows, columns = choice.tile
    (a, left), (w, right) = (float_scaled(rng, size, k, "fp8") for size in (m, n))
    w = w.preshuffle(DEVICE)
    gpu.groups = [0]
    out = mx.matmul(a, w)
    oracle.assert_matmul(
        values_of(out[:rows, :columns]), left[:rows], right[:columns], "bfloat16",
        scale_roundings=SCALE_ROUNDINGS,
    )  # fmt: skip


@deep
@pytest.mark.parametrize("activations", ["mxfp8"])
def test_the_first_tile_of_many_rows_of_more_bits_is_within_the_bound(gpu, rng, activations):
    m, n, k = 2000, 7168, 2080
    choice = mx.explain(m, n, k, device=DEVICE, activations=activations)
    assert "ping_pong" in choice.kernel
    rows, columns = choice.tile
    gpu.groups = [0]
    x = floats(rng, (m, k))
    plain, w = weights(rng, n, k)
    out = mx.linear(x, w, activations=activations)
    a = oracle.dequantize(*oracle.quantize(values_of(x), format=activations), activations)[:rows]
    b = oracle.dequantize(*plain)[:columns]
    oracle.assert_matmul(values_of(out[:rows, :columns]), a, b, "bfloat16")


@deep
def test_other_types_roundings_and_a_bias(gpu, rng):
    x, bias = floats(rng, (5, 160), F32), floats(rng, (1, 64), F32)[0, :40]
    plain, w = weights(rng, 40, 160)
    out = mx.linear(x, w, bias=bias, scale_rule="ceil", out_dtype=F16, activations="mxfp4")
    assert_product(out, oracle.quantize(values_of(x), "ceil"), plain, bias)


def test_weights_that_are_not_preshuffled_are_moved_first(gpu, rng):
    x = floats(rng, (5, 160))
    plain, w = weights(rng, 40, 160)
    moved, stored = kept_linear(x, operand(plain)), kept_linear(x, w)
    torch.testing.assert_close(moved, stored, rtol=0, atol=0)


GAPS = {
    "stride": lambda wide: wide[1::2, :160],
    "one row": lambda wide: wide[:1, :160].expand(3, 160),
    "odd address": lambda wide: wide.view(-1)[1:481].view(3, 160),
}


@pytest.mark.deep
@pytest.mark.parametrize("gap", GAPS)
def test_floats_with_gaps_or_odd_addresses_are_copied_first(gpu, rng, gap):
    x, (_, w) = GAPS[gap](floats(rng, (7, 320))), weights(rng, 40, 160)
    expected = x.clone()
    torch.testing.assert_close(
        mx.linear(x, w, activations="mxfp4"),
        mx.linear(expected, w, activations="mxfp4"),
        rtol=0,
        atol=0,
    )
    assert torch.equal(mx.quantize(x).codes, mx.quantize(expected).codes)


@deep
def test_codes_at_odd_addresses_are_copied_first(gpu, rng):
    x, (_, w) = floats(rng, (7, 160)), weights(rng, 40, 160)
    a = mx.quantize(x)
    odd = [torch.cat([t.new_zeros(1), t.view(-1)])[1:].view(t.shape) for t in (a.codes, a.scales)]
    torch.testing.assert_close(mx.matmul(mx.MXTensor(*odd), w), mx.matmul(a, w), rtol=0, atol=0)


def test_empty_operands_launch_nothing(gpu, rng):
    x, (_, w) = floats(rng, (0, 160)), weights(rng, 40, 160)
    assert mx.quantize(x).shape == (0, 160)
    assert kept_linear(x, w).shape == (0, 40)
    assert not gpu.calls


# What the modules hold


@functools.cache
def code_objects(module):
    """Returns the code objects of a module."""
    return embedded_in(artefacts.path(f"hip/{module}"))


@pytest.mark.parametrize(
    "module",
    tiered(
        ["module", "fused", *KINDS],
        first=["module", "kept"],
    ),
)
def test_every_code_object_is_one_that_the_device_takes(module):
    for code in code_objects(module):
        kernel = code.metadata
        assert kernel["wavefront_size"] == 64
        assert kernel["group_segment_fixed_size"] <= MAX_LDS_BYTES, code.name
        assert kernel["private_segment_fixed_size"] == 0, code.name
        assert kernel["vgpr_spill_count"] == 0, code.name
        most = SPILLED_SCALARS.get(module, 0)
        if module == "fused" and "simt_prologue" in code.name:
            most = PORTABLE_SPILLED_SCALARS
        assert kernel["sgpr_spill_count"] <= most, code.name


@FIRST_KEPT
def test_a_module_of_products_holds_what_the_dispatch_chooses_and_nothing_else(
    recorder, activations
):
    rows = (5, 12, 20, 48, 64, 80, 112, 200, 224, 300, 512, 640, 1100, 1600, 3000)
    columns = (16, 40, 500, 1000, 2112, 4000, 6000, 10000, 18000, 28672, 57344)
    lengths = (160, 256, 416, 512, 544, 1024, 1568, 2048, 2080, 4096, 4128, 7200, 8192, 8224, 14336)
    grid = itertools.product(rows, columns, lengths)
    # These alone have tiles of 96 x 192, K ending with a step or within one, and of 224 x 192.
    for m, n, k in (*grid, (96, 46464, 9472), (162, 21872, 608), (6310, 8208, 3072)):
        x = torch.empty(m, k, dtype=BF16)
        mx.linear(x, empty_weights(n, k), activations=activations)
    launched = {launch.name for launch in recorder.launches}
    module = {"bf16": "kept", "mxfp4": "floats"}[activations]
    assert launched == {code.name for code in code_objects(module)}


# How they are launched


def test_a_launch_names_memory_stream_and_grid_and_waits_for_nothing(recorder, rng):
    x, (_, w) = floats(rng, (5, 160)), weights(rng, 40, 160)
    out = kept_linear(x, w)
    [launch] = recorder.launches
    addresses = [t.data_ptr() for t in (x, w.codes, w.scales, out)]
    assert launch.arguments[:7] == (*addresses, 5, 40, 160)
    assert (launch.device, launch.stream) == (0, recorder.stream)
    assert recorder.calls == [
        "hipGetDevice",
        "hipModuleLoadData",
        "hipModuleGetFunction",
        "hipModuleLaunchKernel",
    ]
    recorder.calls.clear()
    kept_linear(x, w)
    assert recorder.calls == ["hipGetDevice", "hipModuleLaunchKernel"]


def test_the_stream_is_the_one_of_the_moment(recorder, rng):
    x = floats(rng, (5, 160))
    for stream in (0, 17, 0x7FFF12345678):
        recorder.stream = stream
        mx.quantize(x)
        assert recorder.launches[-1].stream == (stream or None)


def test_each_device_gets_its_own_functions(recorder, rng):
    x = floats(rng, (5, 160))
    for index in (0, 3, 0, 3):
        recorder.tensor_device = index
        mx.quantize(x)
        assert recorder.launches[-1].device == index
        assert recorder.current == 0, "the thread's device is as it was"
    assert [index for index, _ in recorder.loaded] == [0, 3]


@pytest.mark.parametrize(
    "m, n, k, stretch",
    [
        ((2 << 20) + 5, 16, 32, 1 << 20),
        (300_000, 4096, 32, 261_888),
        (70_000, 16, (1 << 15) + 32, 32_512),
    ],
    ids=["grid", "result", "x"],
)
@FIRST_KEPT
def test_more_rows_than_a_launch_takes_are_launched_in_stretches(
    recorder, m, n, k, stretch, activations
):
    x, w = torch.empty(m, k, dtype=BF16), empty_weights(n, k)
    out, codes = mx.linear(x, w, activations=activations), mx.quantize(x).codes
    first_rows = list(range(0, m, stretch))
    is_product = [len(launch.arguments) >= MIN_ARGUMENTS for launch in recorder.launches]
    places = [place for place, found in enumerate(is_product) if found]
    assert len(places) == len(first_rows)
    begin = 0
    for row, place in zip(first_rows, places, strict=True):
        product, encoders = recorder.launches[place], recorder.launches[begin:place]
        left = product.arguments[0]
        if encoders:
            assert encoders[0].arguments[1] == left
            left = encoders[0].arguments[0]
        assert left == x[row].data_ptr()
        assert out[row].data_ptr() in product.arguments
        assert min(stretch, m - row) in product.arguments
        begin = place + 1
    others = recorder.launches[begin:]
    rows = [(launch.arguments[0] - x.data_ptr()) // (2 * k) for launch in others]
    ends = [row + launch.arguments[3] for row, launch in zip(rows, others, strict=True)]
    assert (rows[0], ends[-1]) == (0, m) and rows[1:] == ends[:-1]
    assert [launch.arguments[1] for launch in others] == [codes[row].data_ptr() for row in rows]


@pytest.mark.parametrize("hip, launcher", [("7.2.0", _hip.ROCM), (None, cuda.CUDA)])
def test_builds_of_torch_for_rocm_launch_through_hip(monkeypatch, hip, launcher):
    monkeypatch.setattr(torch.version, "hip", hip)
    with FakeTensorMode():
        assert launcher_of(torch.empty(1, device="cuda")) is launcher


# Workspaces


def test_launches_of_a_stream_share_a_workspace_and_others_do_not(recorder, rng):
    m, n, k = SPLIT
    x, (_, w) = floats(rng, (m, k)), weights(rng, n, k)
    workspaces = []
    for index, stream in ((0, 1), (0, 1), (0, 2), (1, 1), (0, 1)):
        recorder.tensor_device, recorder.stream = index, stream
        kept_linear(x, w)
        workspaces.append(recorder.launches[-1].arguments[-1])
    first, again, other_stream, other_device, last = workspaces
    assert first == again == last
    assert len({first, other_stream, other_device}) == 3


def test_a_captured_launch_has_a_workspace_that_the_graph_clears(recorder, rng, monkeypatch):
    m, n, k = SPLIT
    x, (_, w) = floats(rng, (m, k)), weights(rng, n, k)
    cleared = []
    monkeypatch.setattr(torch.Tensor, "zero_", lambda t: cleared.append(t) or t)
    for recorder.capturing in (False, False, True, True):
        kept_linear(x, w)
    assert len(cleared) == 3
    outside, inside = recorder.launches[:2], recorder.launches[2:]
    assert not {a.arguments[-1] for a in outside} & {b.arguments[-1] for b in inside}


def test_a_workspace_serves_launches_that_fit_and_no_others():
    workspace = _hip.Workspace.of(torch.empty(0), 520, 9000)
    clear = workspace.address - workspace.memory.data_ptr()
    assert not workspace.memory[:clear].any() and clear == _hip.CLEARED_BYTES
    assert workspace.has_room(_hip.CLEARED_BYTES, 9000)
    assert not workspace.has_room(520, 9001)
    assert not workspace.has_room(_hip.CLEARED_BYTES + 4, 9000)


@FIRST_KEPT
def test_split_k_finds_its_workspace_as_it_left_it(gpu, rng, activations):
    for m, n, k in (SPLIT, (16, 200, 4128), SPLIT):
        x, (plain, w) = floats(rng, (m, k)), weights(rng, n, k)
        assert_linear(mx.linear(x, w, activations=activations), x, activations, plain)


# What goes wrong


@pytest.mark.parametrize(
    "function, code, message",
    [
        ("hipGetDevice", UNKNOWN, r"HIP error 999 \(unknown error\) asking for the current device"),
        ("hipModuleLoadData", OUT_OF_MEMORY, r"HIP error 2 \(out of memory\) loading mojo_\w+ on"),
        ("hipModuleLoadData", NO_BINARY, r"209 \(no kernel image is available .*\) loading"),
        ("hipModuleGetFunction", NOT_FOUND, r"500 \(named symbol not found\) looking for mojo_\w+"),
        (
            "hipModuleLaunchKernel",
            LAUNCH_FAILURE,
            r"719 .* launching mojo_\w+ on device 0, workgroups 1 x 1 x 1 of \d+ threads",
        ),
    ],
)
def test_what_hip_refuses_is_an_error_with_its_words(recorder, rng, function, code, message):
    x = floats(rng, (5, 160))
    recorder.errors[function] = code
    with pytest.raises(RuntimeError, match=message):
        mx.quantize(x)
    # HIP forgets the error, so that torch does not find it later; the next call is as good as new.
    assert recorder.calls[-2:] == ["hipGetLastError", "hipGetErrorString"]
    recorder.errors.clear()
    mx.quantize(x)
    assert recorder.calls[-1] == "hipModuleLaunchKernel"


def test_an_error_on_another_device_leaves_the_current_one(recorder, rng):
    recorder.tensor_device = 1
    recorder.errors["hipModuleLaunchKernel"] = LAUNCH_FAILURE
    with pytest.raises(RuntimeError, match="on device 1"):
        mx.quantize(floats(rng, (5, 160)))
    assert recorder.current == 0


@pytest.mark.parametrize("arch", ["gfx942:sramecc+:xnack-", "gfx1201"])
def test_other_gpus_are_named(recorder, rng, arch):
    recorder.arch = arch
    with pytest.raises(RuntimeError, match=rf"got device cuda:0, a {arch.split(':')[0]}.*gfx950"):
        mx.quantize(floats(rng, (5, 160)))
    assert not recorder.calls


def test_code_for_another_gpu_is_told_apart():
    code = code_objects("module")[0]
    image = bytearray(code.image)
    assert image[48] == MACHINE_GFX950
    image[48] = 0x4C
    with pytest.raises(ValueError, match="machine 0x4c, expected gfx950"):
        loaded(bytes(image))


def test_a_process_without_the_runtime_is_told_so(recorder, rng, monkeypatch):
    monkeypatch.setattr(_hip, "RUNTIME", "libnothing_like_it.so")
    with pytest.raises(RuntimeError, match=r"libnothing_like_it\.so is not loaded in this process"):
        mx.quantize(floats(rng, (5, 160)))


def test_activations_without_a_kernel_are_refused(recorder, rng):
    x, (_, w) = floats(rng, (5, 160)), weights(rng, 40, 160)
    with pytest.raises(ValueError, match="gfx950 has no kernel, expected one of bf16 x mxfp4, "):
        mx.linear(x, w, activations="mxint8")


def test_weights_beyond_32_bit_offsets_are_refused(recorder):
    x, w = torch.empty(1, 1 << 16, dtype=BF16), empty_weights(1 << 16, 1 << 16)
    with pytest.raises(RuntimeError, match="multiply: got a tensor of at least 2147483648 bytes"):
        kept_linear(x, w)
    assert not recorder.launches
