"""FP8 with float32 scales on CDNA4: of rows, and of 1 x 128 by 128 x 128; against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands. Scales have any mantissa: a product is rounded twice more than one of MX formats.
"""

import re

import numpy as np
import pytest

import gfx950
import oracle
from cases import FP8_FORMATS, blocks_of, every_value, float32_corners
from gfx950.timing import profile
from tests.cdna4 import support as cdna4
from tests.cdna4.prefills import loop_of
from tests.cdna4.support import NUMPY_DTYPES
from tests.tiers import late_by_turns

NAME = re.compile(r"(\w+)-(\w+)/matmul_(?:m\d_)?([a-z\d]+)_(none|[a-z]+\d+)(?:_m\d+n\d+w\w+|t?)")
ROWS, E5M2, BLOCKS = "fp8-fp8/", "fp8_e5m2-fp8_e5m2/", "fp8_block-fp8_block_2d/"
PREFIXES = (ROWS, E5M2, BLOCKS)
SPLIT = "matmul_bfloat16_bfloat16_m1n4w4s3t"
SHARED = "matmul_float32_none_m2n4w4s2k2d2h2t"
MATMUL, LOW_MATMUL = "matmul_m8_bfloat16_none", "matmul_m4_bfloat16_none"
TAIL, LOW_TAIL = "matmul_m8_float32_float32t", "matmul_m4_bfloat16_bfloat16t"
DECODE_SHAPES = [(1, 17, 32), (3, 140, 96), (20, 33, 160), (5, 300, 544), (33, 40, 1056)]
WHOLE_SHAPES = [(5, 130, 512), (20, 40, 1024)]
SCALE_ROUNDINGS = 2
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("fp8")


def operand(rng, rows, k, name, exponents=(-4, 4)):
    """Draws codes of all numbers, and scales of any mantissa that make the largest so large."""
    found = oracle.FORMATS[name]
    codes = rng.integers(0, 256, (rows, k), np.uint8)
    codes[np.isin(codes, found.element.special_codes)] = 1
    shape = oracle.quantize(np.zeros((rows, k)), format=name)[1].shape
    return codes, np.float32(2.0 ** (rng.uniform(*exponents, shape) - found.element.emax))


def stored(codes, scales):
    """Returns weights as stored for CDNA4: scales stay plain."""
    blocks = np.zeros((len(codes), codes.shape[1] // oracle.BLOCK), np.uint8)
    return oracle.LAYOUTS["preshuffled_cdna4"].store(codes, blocks)[0], scales


def multiply(kernels, name, shape, rng, *, a=None, b=None, **options):
    """Launches a kernel; compares C with the oracle's bound and returns it."""
    (m, n, k), (left, right, out, bias_name) = shape, NAME.fullmatch(name).groups()
    a = operand(rng, m, k, left) if a is None else a
    b = operand(rng, n, k, right) if b is None else b
    has_bias = bias_name != "none"
    bias = rng.standard_normal(n).astype(NUMPY_DTYPES[bias_name]) if has_bias else None
    c = np.full((m, n), np.nan, NUMPY_DTYPES[out])
    found = cdna4.described(name, m, n, k)
    workspace = found.workspace()
    w_codes, w_scales = stored(*b)
    args = found.bind(
        a=a[0], a_scales=a[1], w_codes=w_codes, w_scales=w_scales, c=c, workspace=workspace,
        bias=bias if has_bias else np.zeros(0, np.uint8), none=np.zeros(0, np.uint8),
    )  # fmt: skip
    gfx950.run(kernels[name], found.grid, found.threads, args, **options).raise_on_hazards()
    assert not workspace.any(), "the workspace is zero after a launch"
    oracle.assert_matmul(
        c.astype(np.float64),
        oracle.dequantize(*a, left),
        oracle.dequantize(*b, right),
        out,
        bias.astype(np.float64) if has_bias else None,
        scale_roundings=SCALE_ROUNDINGS,
    )
    return c


def names(kernels, part):
    """Returns the names of kernels of a family, by what is in them."""
    found = [name for name in kernels if "matmul" in name and part in name]
    assert found
    return found


@pytest.mark.parametrize("share", range(len(DECODE_SHAPES)))
def test_ragged_shapes_are_within_the_bound(kernels, rng, share):
    """Each kernel on a shape, its neighbour on another; by turns at once and late."""
    for index, name in enumerate(names(kernels, "w")):
        shapes = DECODE_SHAPES if name.endswith("t") else WHOLE_SHAPES
        late = (share + index // 2) % 2 == 1
        multiply(kernels, name, shapes[(share + index) % len(shapes)], rng, late=late)


@late_by_turns(
    prefix=PREFIXES,
    kernel=[
        (MATMUL, (256, 256, 768)),
        (LOW_MATMUL, (128, 256, 512)),
        (TAIL, (300, 280, 544)),
        (LOW_TAIL, (130, 280, 416)),
    ],
)
def test_tiles_of_many_rows_are_within_the_bound(kernels, rng, prefix, kernel, late):
    name, shape = kernel
    multiply(kernels, prefix + name, shape, rng, late=late)


@late_by_turns(kernel=[(MATMUL, (256, 256, 2304)), (TAIL, (270, 130, 2336))])
def test_runs_of_scales_take_their_places_in_turn(kernels, rng, kernel, late):
    name, shape = kernel
    multiply(kernels, BLOCKS + name, shape, rng, late=late)


@pytest.mark.parametrize("shape", [(1, 1, 32), (257, 17, 288), (33, 100, 1184), (130, 260, 160)])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_odd_shapes_are_within_the_bound(kernels, rng, prefix, shape):
    for name in (TAIL, LOW_TAIL):
        multiply(kernels, prefix + name, shape, rng)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("order", [0, 1])
def test_waves_need_not_run_in_step(kernels, rng, prefix, order):
    multiply(kernels, prefix + TAIL, (270, 270, 544), rng, lockstep=False, order=order, late=True)
    multiply(kernels, prefix + SHARED, (20, 70, 544), rng, lockstep=False, order=order)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_split_k_gives_the_same_bits_in_every_order_of_arrival(kernels, rng, prefix):
    a = operand(rng, 20, 1056, prefix.split("-")[0])
    b = operand(rng, 70, 1056, prefix.split("-")[1].rstrip("/"))
    for name in (SPLIT, SHARED):
        results = {
            multiply(
                kernels, prefix + name, (20, 70, 1056), np.random.default_rng(1), a=a, b=b,
                order=order, batch=batch, check=False,
            ).tobytes()
            for order, batch in [(None, None), ("reverse", 1), (1, 1), (2, None)]
        }  # fmt: skip
        assert len(results) == 1


@pytest.mark.parametrize("name", [SHARED, TAIL])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_nan_reaches_exactly_its_row_or_column(kernels, rng, prefix, name):
    """A scale that is NaN: of a row of the left side, and of what lies behind the end of K."""
    left, right = prefix.rstrip("/").split("-")
    a, b = operand(rng, 20, 544, left), operand(rng, 140, 544, right)
    a[1][3, -1] = np.nan
    b[0][21, 16] = oracle.FORMATS[right].element.special_codes[-1]
    c = multiply(kernels, prefix + name, (20, 140, 544), rng, a=a, b=b)
    is_nan = np.isin(np.arange(20), [3])[:, None] | np.isin(np.arange(140), [21])
    oracle.assert_bitwise_equal(np.isnan(c), is_nan)


@pytest.mark.parametrize("exponents", [(-111, -85), (-52, -42), (58, 68), (105, 125)])
@pytest.mark.parametrize("name", [SHARED, TAIL])
@pytest.mark.parametrize("prefix", [ROWS, E5M2])
def test_scales_of_rows_may_have_any_size_that_float32_can_say(
    kernels, rng, prefix, name, exponents
):
    left, right = prefix.rstrip("/").split("-")
    a = operand(rng, 20, 160, left, exponents)
    b = operand(rng, 33, 160, right, (-12, 12))
    multiply(kernels, prefix + name, (20, 33, 160), rng, a=a, b=b)


QUANTIZERS = [
    f"{fmt}_{rest}"
    for fmt in FP8_FORMATS
    for rest in ("bfloat16_even", "bfloat16_rceil", "float16_even", "float32_even")
]


def assert_quantizes(kernels, name, values, **options):
    """Compares codes and scales with the oracle's."""
    fmt, dtype, scale_rule = name.rsplit("_", 2)
    x = np.ascontiguousarray(values.astype(NUMPY_DTYPES[dtype]))
    rows, k = x.shape
    expected = oracle.quantize(x.astype(np.float64), scale_rule, fmt)
    codes, scales = np.full((rows, k), 0xA5, np.uint8), np.full(expected[1].shape, 7, np.float32)
    found = cdna4.described(name, rows, 0, k)
    args = found.bind(a=x, codes=codes, scales=scales)
    cdna4.Launch(found.grid, found.threads, args, ()).run(kernels[name], **options)
    oracle.assert_bitwise_equal(codes, expected[0], zeros_are_the_claim=True)
    oracle.assert_bitwise_equal(scales, expected[1])


@MODES
@pytest.mark.parametrize("name", QUANTIZERS)
def test_quantizers_give_the_bits_of_the_format(kernels, rng, name, late):
    for shape in ((1, 32), (17, 96), (130, 544), (3, 4128)):
        values = rng.standard_normal(shape) * 2.0 ** rng.uniform(-9, 9, shape)
        if shape[1] > 32:
            values[0, 40] = np.nan
        assert_quantizes(kernels, name, values, late=late)


@pytest.mark.parametrize("name", QUANTIZERS)
def test_every_value_is_encoded_under_a_largest_one(kernels, name):
    fmt, dtype, _ = name.rsplit("_", 2)
    values = float32_corners(fmt) if dtype == "float32" else every_value(dtype)
    finite, element = values[np.isfinite(values)], oracle.FORMATS[fmt].element
    smallest = element.largest * float(oracle.float_scale(0, "even", element))
    tops = (2.0**-133, smallest, 1.5 * smallest, 1.0, 7.0, 2.0**100)
    for top in (top for top in tops if top <= oracle.FLOATS[dtype].largest):
        blocks = blocks_of(finite[abs(finite) <= top], top)
        assert_quantizes(kernels, name, blocks, check=False)


# What the compiler made of them


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", [MATMUL, LOW_MATMUL, TAIL, LOW_TAIL])
def test_no_vector_spills_and_scales_of_rows_stay_out_of_the_loop(kernels, prefix, name):
    text = cdna4.compile_texts("fp8")[prefix + name]
    for count in ("vgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    loop = [instruction.name for instruction in loop_of(kernels[prefix + name])]
    assert set(filter(lambda x: "mfma" in x, loop)) == {"v_mfma_f32_16x16x128_f8f6f4"}
    scales = 2 if prefix == BLOCKS else 0
    assert loop.count("buffer_load_dword") == scales
    assert prefix == BLOCKS or not any("fma_f32" in x and "mfma" not in x for x in loop)


@pytest.mark.parametrize("fmt", FP8_FORMATS)
def test_quantizers_take_little_longer_than_their_bytes_in_the_model(kernels, fmt):
    """And divide by no scale of bfloat16."""
    rows, k = 4096, 7168
    name = f"{fmt}_bfloat16_even"
    x, codes = np.zeros((rows, k), np.uint16), np.zeros((rows, k), np.uint8)
    scales = np.zeros((rows, -(-k // 128)), np.float32)
    found = cdna4.described(name, rows, 0, k)
    p = profile(
        kernels[name], found.grid, found.threads, found.bind(a=x, codes=codes, scales=scales)
    )
    bytes_us = (x.nbytes + codes.nbytes) / (p.machine.hbm_gbps * 1e3)
    assert p.time_us < 1.75 * bytes_us
    assert "v_div" not in cdna4.compile_texts("fp8")[name]


@pytest.mark.parametrize("prefix, busy", [(ROWS, 0.95), (E5M2, 0.95), (BLOCKS, 0.9)])
def test_matrix_pipes_are_busy_in_the_model(kernels, prefix, busy):
    """A tile of 8192 x 8192 x 8192."""
    m = n = k = 8192
    sizes = {"a": m * k, "a_scales": 4 * m * 64, "w_codes": n * k, "w_scales": 4 * n * 64}
    operands = {name: np.zeros(size, np.uint8) for name, size in sizes.items()}
    c, bias = np.zeros((m, n), np.uint16), np.zeros(0, np.uint8)
    found = cdna4.described(prefix + MATMUL, m, n, k)
    args = found.bind(**operands, c=c, bias=bias)
    p = profile(kernels[prefix + MATMUL], found.grid, found.threads, args)
    assert p.loop.mfma_utilisation >= busy
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts
