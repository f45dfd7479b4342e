"""The portable kernels of NVIDIA GPUs, run from their PTX: against the oracle, within its bounds.

sm_80 has no other kernels, and Hopper is told to use them. All but tiny products are tiles of 64 or
128 rows, 64 or 128 columns and 64 of K, or parts of K of such, which a kernel adds up; one more
kernel computes again what they mark:

    tiles    C as they leave it
    marked   elements that are computed again; the others stay as they are

A product has as few groups and steps as show what it is for: a group takes a second.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch

import mx_kernels as mx
import oracle
from cases import (
    DTYPES,
    FORMATS,
    GATES,
    LAYOUTS,
    NUMPY_DTYPES,
    finite_codes,
    floats_of,
    layout_of_rows,
    pack,
    random_operand,
    same_bits,
    shifted,
    sums_of,
    torch_of,
    values_of,
)
from mx_kernels._core.cuda import PORTABLE
from tests.ptx import calls, device, kinds

pytestmark = pytest.mark.deep

LEFT = [name for name, row in oracle.FORMATS.items() if row.block_rows == 1]
RIGHT = list(oracle.FORMATS)
SHAPES = [(17, 33, 160), (33, 65, 96), (65, 130, 32), (64, 128, 64)]
STAMP = 2.0**14
"""Fills C before what is marked is computed again."""
EVERY_WAY = {"sm_80": {"architecture": "sm_80"}, "sm_90a": {"plan": PORTABLE}}
AMPERE = EVERY_WAY["sm_80"]
SCALE_ROUNDINGS = 2
"""Of a product where a side has float scales."""


class Operand(NamedTuple):
    """Plain codes and scales."""

    codes: np.ndarray
    scales: np.ndarray
    format: str

    def values(self):
        """Returns the exact numbers."""
        return oracle.dequantize(*self)

    def stored(self, layout="plain"):
        """Returns the MXTensor."""
        q = mx.MXTensor(*map(torch.tensor, self[:2]), format=self.format)
        return q if layout == "plain" else q.preshuffle(LAYOUTS[layout]["device"])


def operand(rng, rows, k, format):
    """Returns every finite code alike, under scales that bring the largest near one."""
    if format in FORMATS:
        return Operand(*random_operand(rng, rows, k, format=format), format)
    codes = pack(rng.choice(finite_codes(format), (rows, k)), format)
    if format == "nvfp4":
        scales = np.empty((rows, k // 16 + 4), np.uint8)
        scales[:, :-4] = rng.integers(0x10, 0x50, (rows, k // 16))
        floats_of(scales)[:] = 2.0 ** (rng.uniform(-3, 3, (rows, 1)) - 4)
        return Operand(codes, scales, format)
    _, scales = oracle.quantize(np.zeros((rows, k)), format=format)
    largest = oracle.FORMATS[format].element.largest
    return Operand(codes, np.float32(2.0 ** rng.uniform(-3, 3, scales.shape) / largest), format)


def operands(rng, shape, left, right):
    """Returns both sides of a product of [m, n, k]."""
    m, n, k = shape
    return operand(rng, m, k, left), operand(rng, n, k, right)


def entries(recorded):
    """Returns which kernels a call launches."""
    known = ("rows", "kern", "part", "mark", "matmul")
    names = [launch.entry.removeprefix("mojo_kernels") for launch in recorded.launches]
    return [next(k for k in known if f"_{k}" in name) for name in names]


def run_tiles(recorded, seed=0):
    """Returns what tiles leave and the kernel behind them completes, and what that one computed."""
    *launches, last = recorded.launches
    tiles = device.run(recorded._replace(launches=launches), seed).clone()
    out = recorded.out.fill_(STAMP)
    device.run(recorded._replace(launches=[last]), seed)
    is_marked = out != STAMP
    return torch.where(is_marked, out, tiles), is_marked


def check(got, x, w, bias=None, has_float_scales=True):
    """Compares C with the exact product within the derived bound."""
    roundings = SCALE_ROUNDINGS if has_float_scales else 0
    dtype = str(got.dtype).removeprefix("torch.")
    oracle.assert_matmul(values_of(got), x, w, dtype, bias, scale_roundings=roundings)


def check_product(a, w, layout="plain", seed=0, **arguments):
    """Runs and checks a product of codes, of which tiles compute everything."""
    arguments = {"out_dtype": torch.float32, **AMPERE, **arguments}
    recorded = calls.multiply(a.stored(), w.stored(layout), **arguments)
    got, is_marked = run_tiles(recorded, seed)
    bias = arguments.get("bias")
    has_float_scales = not {a.format, w.format} <= set(FORMATS)
    bias = None if bias is None else values_of(bias)
    check(got, a.values(), w.values(), bias, has_float_scales)
    assert not is_marked.any()
    return got


# Tiles


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("right", RIGHT)
def test_every_format_in_every_layout_at_the_edges_of_tiles(rng, right, layout):
    index = RIGHT.index(right) + 3 * list(LAYOUTS).index(layout)
    left, (m, n, k) = LEFT[index % len(LEFT)], SHAPES[index % len(SHAPES)]
    if layout_of_rows(k, layout, right) != layout:
        k += oracle.BLOCK
    check_product(*operands(rng, (m, n, k), left, right), layout, seed=index)


@pytest.mark.parametrize("left, right", [("mxfp8", "mxfp4"), ("fp8_block", "fp8_block_2d"),
                                         ("nvfp4", "nvfp4"), ("fp8_block", "nvfp4")])  # fmt: skip
def test_more_tiles_and_steps_than_one(rng, left, right):
    check_product(*operands(rng, (129, 131, 416), left, right), "preshuffled_cuda")


@pytest.mark.parametrize("pair", [("mxfp4", "mxint8"), ("mxfp8_e5m2", "fp8"),
                                  ("fp8", "mxfp4"), ("mxint8", "mxfp8"),
                                  ("nvfp4", "nvfp4")], ids="-".join)  # fmt: skip
def test_hopper_has_them_too(rng, pair):
    arguments = {"plan": PORTABLE, "architecture": "sm_90a"}
    check_product(*operands(rng, SHAPES[1], *pair), "preshuffled_cuda", **arguments)


def test_no_order_of_warps_changes_a_bit(rng):
    for pair in (("mxfp4", "mxfp4"), ("fp8_block", "fp8_block_2d")):
        a, w = operands(rng, (33, 33, 160), *pair)
        first, *others = (check_product(a, w, seed=seed) for seed in range(3))
        for other in others:
            same_bits(other, first)


@pytest.mark.parametrize("n, columns", [(6100, 64), (8550, 128)])
@pytest.mark.parametrize("right", ["mxfp4", "mxfp8", "mxfp8_e5m2", "mxint8", "mxfp6", "nvfp4"])
def test_tiles_of_twice_the_rows(rng, right, n, columns):
    """Wide ones where narrow ones need a second round; the first four run: two above two."""
    m, k, groups = 130, 160, 4
    a, w = operands(rng, (m, n, k), "mxfp8", right)
    recorded = calls.multiply(a.stored(), w.stored("preshuffled_cuda"), out_dtype=torch.float32,
                              **AMPERE)  # fmt: skip
    *_, tiles, _ = recorded.launches
    assert tiles.grid == (2 * -(-n // columns), 1, 1)
    launches = [*recorded.launches[:-2], tiles._replace(grid=(groups, 1, 1))]
    got = device.run(recorded._replace(launches=launches))
    ready = np.flatnonzero(~got.isnan().all(0).numpy())
    assert len(ready) == groups // 2 * columns
    has_float_scales = right not in FORMATS
    check(got[:, ready], a.values(), w.values()[ready], has_float_scales=has_float_scales)


@pytest.mark.parametrize("bias_dtype", DTYPES)
@pytest.mark.parametrize("out", DTYPES)
def test_every_result_and_bias(rng, out, bias_dtype):
    n = 64 if out == bias_dtype else 37
    bias, dtype = torch_of(rng.standard_normal(n), bias_dtype), getattr(torch, out)
    left = LEFT[len(out) % len(LEFT)]
    check_product(*operands(rng, (18, n, 64), left, "mxfp8"), bias=bias, out_dtype=dtype)


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("right", ["mxfp4", "mxint8", "fp8_block_2d", "mxfp6_e3m2", "nvfp4"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_that_stay_floats(rng, dtype, right, way):
    m, n, k = 33, 65, 192
    w, bias = operand(rng, n, k, right), torch_of(rng.standard_normal(n), dtype)
    x = torch_of(rng.standard_normal((m, k + 8)), dtype)
    first = DTYPES.index(dtype) * 4  # The second of them is not at a multiple of sixteen bytes.
    x = x[:, first : first + k]
    # The public function rounds for a device; the kernel rounds too.
    got, is_marked = run_tiles(
        calls.record(mx.linear, x, w.stored("preshuffled_cuda"), bias=bias, activations="bf16",
                     out_dtype=torch.float32, **EVERY_WAY[way])
    )  # fmt: skip
    values = values_of(x.bfloat16()), w.values()
    check(got, *values, values_of(bias), has_float_scales=right not in FORMATS)
    assert not is_marked.any()


@pytest.mark.parametrize("dtype, scale_rule", [("bfloat16", "even"), ("float32", "rceil")])
@pytest.mark.parametrize("left", LEFT)
def test_activations_that_are_quantized_in_the_call(rng, left, dtype, scale_rule):
    m, n, k = 17, 34, 160
    scale_rule = "even" if left == "nvfp4" else scale_rule
    x = oracle.round_to(rng.standard_normal((m, k)) * 2.0 ** rng.integers(-9, 9, (m, 1)), dtype)
    x[3], x[4, :32] = 0, 0
    w = operand(rng, n, k, RIGHT[LEFT.index(left)])
    recorded = calls.multiply(torch_of(x, dtype), w.stored("preshuffled_cuda"), activations=left,
                              scale_rule=scale_rule, out_dtype=torch.float32, **AMPERE)  # fmt: skip
    assert len(recorded.launches) == 3
    got, is_marked = run_tiles(recorded)
    a = Operand(*oracle.quantize(x, scale_rule, left), left)
    check(got, a.values(), w.values(), has_float_scales=not {left, w.format} <= set(FORMATS))
    assert not is_marked.any()


def test_rows_of_more_than_one_part(rng):
    a, w = operands(rng, (17, 5, 2080), "mxfp8", "mxfp4")
    check_product(a, w)
    a.scales[2, 64], a.scales[9, 1] = 0, 250
    recorded = calls.multiply(a.stored(), w.stored(), out_dtype=torch.float32, **AMPERE)
    got, is_marked = run_tiles(recorded)
    check(got, a.values(), w.values(), has_float_scales=False)
    assert is_marked.all(1).nonzero().flatten().tolist() == [2, 9]
    assert not is_marked[[0, 1, 3, 8, 10, 16]].any()


# Parts of K


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("m, k, parts, pair", [
    (1, 512, 2, ("mxfp4", "mxfp4")), (16, 800, 3, ("fp8_block", "fp8_block_2d")),
    (17, 1056, 4, ("fp8", "mxint8")), (3, 288, 1, ("mxfp8", "fp8")),
    (9, 800, 3, ("mxfp8", "nvfp4")),
])  # fmt: skip
def test_groups_that_share_k(rng, m, k, parts, pair, way):
    a, w = operands(rng, (m, 130, k), *pair)
    bias = torch_of(rng.standard_normal(130), "float32")
    recorded = calls.multiply(a.stored(), w.stored("preshuffled_cuda"), bias=bias,
                              out_dtype=torch.float32, **EVERY_WAY[way])  # fmt: skip
    kernels = ["rows", "kern", "part", "mark"] if parts > 1 else ["rows", "kern", "mark"]
    assert entries(recorded) == kernels
    assert recorded.launches[1].grid == (2 * parts, 1, 1)
    check_product(a, w, "preshuffled_cuda", bias=bias, **EVERY_WAY[way])


def test_parts_of_large_tiles(rng):
    """Of 8 parts of 20 tiles, the first tile's are run."""
    m, n, k, parts = 70, 2550, 2080, 8
    a, w = operands(rng, (m, n, k), "mxfp8", "fp8")
    recorded = calls.multiply(a.stored(), w.stored(), out_dtype=torch.float32, **AMPERE)
    rows, tiles, add, _ = recorded.launches
    assert tiles.grid == (20 * parts, 1, 1)
    launches = [rows, tiles._replace(grid=(parts, 1, 1)), add._replace(grid=(24, 1, 1))]
    got = device.run(recorded._replace(launches=launches))[:, :128]
    check(got[:9], a.values()[:9], w.values()[:128])


def test_a_mark_of_any_part_counts(rng):
    a, w = operands(rng, (5, 9, 1056), "mxfp8", "mxfp4")
    w.scales[2, 0], w.scales[4, 32] = 250, 0
    check_marked(a, w, [], [2, 4])


# What numbers cannot hold


def check_marked(a, w, rows, columns, layout="plain", out=torch.float32):
    """Checks a product of which no more than some rows and columns is computed again."""
    recorded = calls.multiply(a.stored(), w.stored(layout), out_dtype=out, **AMPERE)
    got, is_marked = run_tiles(recorded)
    has_float_scales = not {a.format, w.format} <= set(FORMATS)
    check(got, a.values(), w.values(), has_float_scales=has_float_scales)
    allowed = torch.zeros(got.shape, dtype=torch.bool)
    allowed[rows], allowed[:, columns] = True, True
    assert not (is_marked & ~allowed).any()
    return is_marked


@pytest.mark.parametrize("scales", [(0, 254), (254, 0), (200, 40), (255, 127), (127, 255)])
@pytest.mark.parametrize("right", FORMATS)
def test_scales_of_both_ends_in_some_rows_and_columns(rng, right, scales):
    left = FORMATS[FORMATS.index(right) - 1]
    a, w = operands(rng, (35, 65, 96), left, right)
    a.scales[20, 1:], w.scales[[5, 64], 1:] = scales
    is_marked = check_marked(a, w, [20], [5, 64], "preshuffled_cuda")
    assert bool(is_marked.any()) == (oracle.NAN_SCALE not in scales)


@pytest.mark.parametrize("low, high", [(0, 3), (60, 70), (184, 194), (251, 254)])
def test_scales_of_every_size_in_all_rows(rng, low, high):
    for right in ("mxfp4", "mxint8"):
        a = Operand(*random_operand(rng, 17, 64, low, high, format="mxfp8"), "mxfp8")
        w = Operand(*random_operand(rng, 9, 64, 254 - high, 254 - low, format=right), right)
        check_marked(a, w, slice(None), slice(None))


@pytest.mark.parametrize("row, scale, other", [(0, 2.0**-140, 20), (-1, 2.0**110, -60), (0, 0, 0)])
@pytest.mark.parametrize("left, right", [("fp8_block", "fp8_block_2d"), ("mxfp8", "fp8"),
                                         ("mxfp8", "nvfp4")])  # fmt: skip
def test_float_scales_of_any_size(rng, left, right, row, scale, other):
    a, w = operands(rng, (17, 131, 160), left, right)
    if left == "fp8_block":
        a.scales[...] *= 2.0**other
    else:
        a.scales[...] = np.int16(a.scales) + other
    floats_of(w.scales)[row] = scale
    check_marked(a, w, slice(None), slice(None))


@pytest.mark.parametrize("exponent", [-110, 60, 100])
def test_activations_of_any_size_by_float_scales(rng, exponent):
    w = operand(rng, 33, 160, "fp8_block_2d")
    w.scales[...] *= 2.0**-exponent
    x = torch_of(rng.standard_normal((18, 160)) * 2.0**exponent, "bfloat16")
    x[:9] /= 2.0**exponent
    arguments = {"activations": "bf16", "out_dtype": torch.float32}
    got, is_marked = run_tiles(calls.multiply(x, w.stored(), **arguments, **AMPERE))
    check(got, values_of(x), w.values())
    # Columns are marked for scales above 2 ** 48, whatever the rows are.
    assert is_marked[:9].any() == (exponent < -60)


def test_a_block_scale_that_is_nan_reaches_what_it_feeds_and_nothing_else(rng):
    a, w = operands(rng, (33, 65, 160), "nvfp4", "nvfp4")
    a.scales[3, 2], w.scales[9, 9], w.codes[9] = 0x7F, 0xFF, 0
    w.scales[12, :-4] = np.arange(10) * 14
    check_marked(a, w, [], [], out=torch.bfloat16)


@pytest.mark.parametrize("pair", [("mxfp8", "mxfp8"), ("fp8_block", "fp8_e5m2"),
                                  ("mxfp8_e5m2", "mxfp8_e5m2")], ids="-".join)  # fmt: skip
def test_what_is_no_number_reaches_what_it_feeds_and_nothing_else(rng, pair):
    a, w = operands(rng, (33, 65, 160), *pair)
    a.codes[3, 100], w.codes[9, 159] = 0x7F, 0xFF
    w.codes[11, 0] = oracle.FORMATS[pair[1]].element.special_codes[0]
    a.scales[30, 0] = 255 if pair[0] in FORMATS else float("nan")
    w.scales[40, 0] = 255 if pair[1] in FORMATS else float("nan")
    check_marked(a, w, [3], [9, 11], out=torch.bfloat16)


@pytest.mark.parametrize("pair", [("fp8_block", "fp8_block"), ("mxfp8", "fp8"), ("fp8", "mxint8"),
                                  ("fp8_block", "fp8_block_2d")], ids="-".join)  # fmt: skip
def test_an_infinite_scale_makes_nan_of_products_of_both_signs(rng, pair):
    """Of products of one sign throughout it makes that infinity."""
    a, w = operands(rng, (33, 65, 160), *pair)
    scaled, row = (w, 40) if pair[1] not in FORMATS else (a, 30)
    scaled.scales[row % len(scaled.scales), 0] = np.inf
    a.codes[7, :128], w.codes[:, :128] = 0x38, 0x38
    rows, columns = ([row], []) if scaled is a else ([], [row])
    if pair[1] == "fp8_block_2d":
        rows, columns = [], slice(None)
    check_marked(a, w, rows, columns)


# Warps, where there are few rows or codes at any address


@pytest.mark.parametrize("way", EVERY_WAY)
@pytest.mark.parametrize("m, pair", [(16, ("mxfp4", "mxfp4")), (3, ("fp8_block", "mxint8")),
                                     (2, ("mxfp6", "mxfp6_e3m2")),
                                     (3, ("nvfp4", "nvfp4"))])  # fmt: skip
def test_few_rows_of_a_short_k(rng, m, pair, way):
    a, w = operands(rng, (m, 37, 256), *pair)
    recorded = calls.multiply(a.stored(), w.stored("preshuffled_cuda"), out_dtype=torch.float32,
                              **EVERY_WAY[way])  # fmt: skip
    assert len(recorded.launches) == 1
    check(device.run(recorded), a.values(), w.values(), has_float_scales=m == 3)


def test_weights_at_an_odd_address(rng):
    a, w = operands(rng, (17, 9, 96), "mxfp4", "mxfp8")
    codes = torch.from_numpy(shifted(w.codes, 1))
    moved = mx.MXTensor(codes, torch.tensor(w.scales), format="mxfp8")
    recorded = calls.multiply(a.stored(), moved, out_dtype=torch.float32, **AMPERE)
    assert len(recorded.launches) == 1
    check(device.run(recorded), a.values(), w.values(), has_float_scales=False)


# What is no product


@pytest.mark.parametrize("scale_rule", ["even", "rceil"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("format", ["mxfp4", "mxfp8_e5m2", "mxfp6", "fp8", "fp8_block_2d", "nvfp4"])
def test_quantize_gives_the_oracles_bits(rng, format, dtype, scale_rule):
    x = oracle.round_to(rng.standard_normal((33, 160)) * 2.0 ** rng.integers(-12, 12), dtype)
    x[3], x[5, 7], x[6, 40] = 0, float("nan"), float("inf")
    given, scale_rule = torch_of(x, dtype), "even" if format == "nvfp4" else scale_rule
    got = device.run(calls.quantize(given, format=format, scale_rule=scale_rule, **AMPERE))
    codes, scales = oracle.quantize(x, scale_rule, format)
    oracle.assert_bitwise_equal(got.codes.numpy(), codes, zeros_are_the_claim=True)
    oracle.assert_bitwise_equal(got.scales.numpy(), scales)


@pytest.mark.parametrize("format", ["mxfp4", "mxfp6", "fp8", "fp8_block", "fp8_block_2d", "nvfp4"])
def test_quantize_rotates_as_the_oracle_does(rng, format):
    for block, dtype in zip((32, 64, 128), DTYPES, strict=True):
        x = oracle.round_to(rng.standard_normal((5, 384)) * 2.0 ** rng.integers(-9, 9), dtype)
        x[3] = 0
        given = torch_of(x, dtype)
        # At an odd address too.
        for part in (slice(None), slice(1, 1 + 2 * block)):
            rotate = {"format": format, "hadamard": block}
            got = device.run(calls.quantize(given[:, part], **rotate, **AMPERE))
            values = oracle.rotated(x[:, part], block, dtype)
            codes, scales = oracle.quantize(values, "even", format)
            oracle.assert_bitwise_equal(
                got.codes.numpy(), codes, zeros_are_the_claim="2d" in format
            )
            oracle.assert_bitwise_equal(got.scales.numpy(), scales)


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_takes_tensor_scales(rng, dtype):
    x = oracle.round_to(rng.standard_normal((9, 96)), dtype)
    scales = np.float32(2.0 ** rng.uniform(-9, -6, 9))
    got = device.run(calls.quantize(torch_of(x, dtype), format="nvfp4", **AMPERE,
                                    tensor_scale=torch.tensor(scales)))  # fmt: skip
    codes, expected = oracle.quantize(x, "even", "nvfp4", scales)
    oracle.assert_bitwise_equal(got.codes.numpy(), codes)
    oracle.assert_bitwise_equal(got.scales.numpy(), expected)


@pytest.mark.parametrize("format", ["mxfp4", "mxfp8", "mxfp6", "fp8_block", "nvfp4"])
def test_layouts_move_bytes_and_decoding_is_exact(rng, format):
    w = operand(rng, 37, 192, format)
    there = device.run(calls.preshuffle(w.stored(), **AMPERE))
    expected = w.stored("preshuffled_cuda")
    assert torch.equal(there.codes, expected.codes)
    assert torch.equal(there.scales, expected.scales)
    for q in (w.stored(), expected):
        got = device.run(calls.dequantize(q, dtype="float32", **AMPERE))
        oracle.assert_bitwise_equal(got.numpy(), w.values().astype(NUMPY_DTYPES["float32"]))


@pytest.mark.parametrize("architecture", kinds.ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("format", ["fp8", "fp8_e5m2"])
def test_decoding_to_two_bytes_rounds_once(format, dtype, architecture):
    """Of every code, products beside a tie that float32 would take for one; and infinite ones."""
    kept_bits = {"bfloat16": 8, "float16": 11}[dtype]
    codes = np.resize(finite_codes(format), 256).astype(np.uint8)
    numbers = oracle.dequantize(codes[None], np.ones((1, 1), np.float32), format)[0]
    ties = 1 + 2.0**-kept_bits + 2.0 ** (1 - kept_bits) * np.arange(3)
    near = np.float32(ties[:, None] / np.abs(numbers[numbers != 0])).reshape(-1)
    scales = np.concatenate([np.nextafter(near, np.float32(x)) for x in (0, np.inf)] + [near])
    scales = np.append(scales, np.float32([np.inf, 2.0**127, 2.0**-149]))[:, None]
    q = Operand(np.tile(codes, (len(scales), 1)), scales, format)
    got = device.run(calls.dequantize(q.stored(), dtype=dtype, architecture=architecture))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = numbers * np.float64(scales)
        twice = oracle.round_to(np.float64(np.float32(exact)), dtype)
    oracle.assert_bitwise_equal(values_of(got), oracle.round_to(exact, dtype))
    assert (values_of(got) != twice)[np.isfinite(twice)].any()


@pytest.mark.parametrize("gate", GATES)
def test_every_gate_makes_its_hidden_numbers(rng, gate):
    """Those of the sums that the portable products have; some of each token decide its bits."""
    count, tokens, width, inner = 3, 5, 64, 64
    shapes = (count, sums_of(gate, inner), width), (count, width, inner)
    gate_up, down = (mx.quantize(torch_of(rng.standard_normal(s) / 8, "float32")) for s in shapes)
    x = torch_of(rng.standard_normal((tokens, width)), "bfloat16")
    ids = torch.tensor(rng.integers(-1, count, (tokens, 2)))
    bias = torch_of(rng.standard_normal(shapes[0][:2]), "float32")
    arguments = {"activations": "bf16", "out_dtype": torch.float32, **AMPERE}
    call = calls.moe(
        x, gate_up, down, ids, torch.ones(tokens, 2), bias_gate_up=bias, **GATES[gate], **arguments
    )
    got, expected = device.run(call), torch.zeros(tokens, width)
    decided = torch.ones(tokens, dtype=torch.bool)
    for token, slot in np.ndindex(tokens, 2):
        expert = int(ids[token, slot])
        if expert < 0:
            continue
        sizes, row = torch.eye(count, dtype=torch.int32)[expert], x[token : token + 1]
        grouped = calls.grouped_linear(row, gate_up, sizes, bias=bias, **arguments)
        exact, error = oracle.gated(values_of(device.run(grouped)), **GATES[gate])
        low, high = (oracle.round_to(exact + e, "bfloat16") for e in (-error, error))
        decided[token] &= bool((low == high).all())
        hidden = torch_of(low, "bfloat16")
        of_slot = device.run(calls.grouped_linear(hidden, down, sizes, **arguments))
        expected[token] += of_slot[0]
    assert decided.any()
    same_bits(got[decided], expected[decided])


def test_the_values_of_a_norm_are_the_oracles_bits_and_its_sums_come_back(rng):
    """Parts of a segment, several, more than a group of threads adds up at once; every format."""
    norms = [
        ("mxfp4", "bfloat16", 96, {}),
        ("mxfp6", "float16", 544, {"weight_offset": 1.0, "rounds": "result"}),
        ("mxint8", "float32", 4640, {"eps": 1e-3}),
        ("nvfp4", "bfloat16", 480, {"rounds": "none"}),
        ("fp8", "float16", 1056, {"is_centered": True, "rounds": "result"}),
        ("fp8_block", "bfloat16", 2080, {"is_centered": True, "rounds": "none"}),
        ("fp8_block_2d", "bfloat16", 160, {}),
    ]
    for format, dtype, k, options in norms:
        x, residual, weight = (
            oracle.round_to(rng.standard_normal(shape) * 2.0 ** rng.integers(-9, 9, shape), dtype)
            for shape in ((3, k), (3, k), (k,))
        )
        x[2, 1] = np.nan
        stream = oracle.round_to(np.float32(x) + np.float32(residual), dtype)
        centered = options.get("is_centered", False)
        function = mx.layer_norm_quantize if centered else mx.rms_norm_quantize
        rest = {name: value for name, value in options.items() if name != "is_centered"}

        def norm(x, weight, residual, function=function, format=format, rest=rest):
            return function(x, weight, residual=residual, format=format, **rest)

        given = (torch_of(array, dtype) for array in (x, weight, residual))
        q, sums = device.run(calls.record(norm, *given, **AMPERE))
        rules = {"eps": 1e-5 if centered else 1e-6, **options}
        values = oracle.norm(stream, weight, dtype=dtype, **rules)
        codes, scales = oracle.quantize(values, "even", format)
        oracle.assert_bitwise_equal(values_of(sums), stream)
        oracle.assert_bitwise_equal(q.codes.numpy(), codes, zeros_are_the_claim="2d" in format)
        oracle.assert_bitwise_equal(q.scales.numpy(), scales)


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_gives_the_codes_of_the_cpu(rng, gate):
    format = RIGHT[list(GATES).index(gate)]
    for dtype, shift in (("bfloat16", 0), ("float32", 1)):
        sums = torch_of(rng.standard_normal((3, sums_of(gate, 288) + shift)), dtype)[:, shift:]

        def hidden(x, format=format):
            return mx.gate_quantize(x, format=format, **GATES[gate])

        got, expected = device.run(calls.record(hidden, sums, **AMPERE)), hidden(sums)
        assert torch.equal(got.codes, expected.codes)
        assert torch.equal(got.scales, expected.scales)
        assert expected.codes.any()


@pytest.mark.parametrize("left, right", [("mxint8", "mxfp4"), ("fp8", "fp8_block_2d")])
def test_matrices_by_matrices_are_one_launch(rng, left, right):
    a, b = (torch_of(rng.standard_normal((3, rows, 96)), "float32") for rows in (5, 16))
    a, b = mx.quantize(a, format=left), mx.quantize(b, format=right)
    bias = torch_of(rng.standard_normal((3, 16)), "float32")

    def product(a, b):
        return mx.matmul(a, b, bias=bias, out_dtype="float32")

    recorded = calls.record(product, a, b.preshuffle(device="cuda"), **AMPERE)
    assert len(recorded.launches) == 1
    got = device.run(recorded)
    for i in range(3):
        values = (oracle.dequantize(*map(np.asarray, (q.codes, q.scales)), q.format)
                  for q in (a[i], b[i]))  # fmt: skip
        check(got[i], *values, bias=values_of(bias[i]))
