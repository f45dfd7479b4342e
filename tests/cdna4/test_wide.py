"""Activations of more than four bits on CDNA4: kept as bfloat16, or codes of six or eight bits.

The decode kernels of every pair of formats, compiled and run in the simulator, against the oracle;
and the kernel that quantizes to such codes, bit for bit.
"""

import numpy as np
import pytest

import oracle
from cases import blocks_of, blocks_under, every_value, float32_corners
from tests.cdna4 import support as cdna4
from tests.cdna4.support import NUMPY_DTYPES, Decode, Problem
from tests.cdna4.test_quantize import normal_values, rows_of

SHAPES = [(1, 17, 32), (3, 40, 96), (20, 33, 160), (5, 100, 544), (33, 40, 1056), (70, 33, 672)]
SHAPES_OF_SIXES = [(3, 40, 64), (20, 33, 192), (5, 100, 576), (33, 40, 1088)]
"""Where weights have six bits."""
SPLIT = "linear_bfloat16_even_bfloat16_none_m1n4w4s3t"
SHARED = "linear_bfloat16_even_bfloat16_none_m2n4w4s2k2d2h2t"
KEPT, W4A6, W4A8 = "bf16-mxfp4/", "mxfp6-mxfp4/", "mxfp8-mxfp4/"
NVFP4 = "bf16-nvfp4/"
FORMATS = ("mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2")

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("wide")


@pytest.fixture(scope="module")
def quantizers():
    return cdna4.compile_kernels("quantize_wide")


def problem_for(decode: Decode, rng, shape) -> Problem:
    return Problem.random(rng, shape, decode.x or "bfloat16", decode.bias, decode.right)


@pytest.mark.parametrize("share", range(len(SHAPES)))
def test_ragged_shapes_are_within_the_bound(kernels, rng, share):
    """Each kernel on a shape, its neighbour on another; by turns at once and late."""
    for index, (name, kernel) in enumerate(kernels.items()):
        decode = Decode.named(name)
        shapes = SHAPES_OF_SIXES if decode.right.startswith("mxfp6") else SHAPES
        shapes = [shape for shape in shapes if decode.supports(shape[2])]
        shape = shapes[(share + index) % len(shapes)]
        late = (share + index // 2) % 2 == 1
        cdna4.assert_multiplies(kernel, decode, problem_for(decode, rng, shape), late=late)


@pytest.mark.parametrize("label", [SPLIT, SHARED])
@pytest.mark.parametrize("formats", [KEPT, NVFP4, W4A6, W4A8])
def test_split_k_gives_the_same_bits_in_every_order_of_arrival(kernels, rng, formats, label):
    kernel, decode = kernels[formats + label], Decode.named(formats + label)
    problem = problem_for(decode, rng, (20, 70, 1056))
    options = [(None, None), ("reverse", 1), (1, 1), (2, None)]
    results = [
        cdna4.multiply(kernel, decode, problem, order=order, batch=batch, check=False)
        for order, batch in options
    ]
    for result in results[1:]:
        oracle.assert_bitwise_equal(result, results[0])


@pytest.mark.parametrize("label", [SPLIT, SHARED])
@pytest.mark.parametrize("formats", [KEPT, NVFP4, W4A6, W4A8])
def test_waves_need_not_run_in_step(kernels, rng, formats, label):
    decode = Decode.named(formats + label)
    problem = problem_for(decode, rng, (20, 70, 544))
    for order in (1, 2):
        cdna4.assert_multiplies(
            kernels[formats + label], decode, problem, lockstep=False, order=order
        )


def test_linear_equals_matmul_of_codes_to_the_bit(kernels, rng):
    linears = [name for name in kernels if "/linear_bfloat16_even_bfloat16_none" in name]
    pairs = [(name, name.replace("linear_bfloat16_even", "matmul")) for name in linears]
    pairs = [pair for pair in pairs if pair[1] in kernels]
    assert len(pairs) >= 4
    for pair in pairs:
        decode = Decode.named(pair[0])
        k = 544 if decode.supports(544) else 576
        problem = problem_for(decode, rng, (20, 33, k))
        results = [
            cdna4.multiply(kernels[name], Decode.named(name), problem, check=False) for name in pair
        ]
        oracle.assert_bitwise_equal(*results)


def test_each_element_of_the_weights_meets_its_own_activation(kernels):
    """One product at a time, exact: any other order along K would move it."""
    for name, kernel in kernels.items():
        decode = Decode.named(name)
        if decode.x == "bfloat16" and decode.scale_rule == "even" and decode.bias == "none":
            k, fmt = 160 if decode.supports(160) else 192, oracle.FORMATS[decode.right]
            values = np.resize(fmt.element.decode(np.arange(8)), (16, k)) + np.eye(16, k)
            codes = oracle.pack(fmt.element.encode(values), fmt.element.bits)
            scales = np.resize(np.arange(120, 135), (16, k // fmt.block_k)).astype(np.uint8)
            if fmt.scale == "e4m3":
                scales = np.concatenate([scales - 80, np.float32([[0.25]] * 16).view(np.uint8)], 1)
            x = np.zeros((k, k), NUMPY_DTYPES["bfloat16"])
            np.fill_diagonal(x, 1)
            problem = Problem(x, (codes, scales), None, decode.right)
            c = cdna4.multiply(kernel, decode, problem, check=False).astype(np.float64)
            oracle.assert_bitwise_equal(c, oracle.dequantize(codes, scales, decode.right).T)


@pytest.mark.parametrize("formats", [KEPT, NVFP4, W4A6, W4A8])
def test_a_nan_reaches_exactly_its_row_or_column(kernels, rng, formats):
    for label in (SPLIT, SHARED):
        decode = Decode.named(formats + label)
        problem = problem_for(decode, rng, (20, 33, 544))
        problem.x[3, 77] = np.nan
        problem.weights[1][21, 16] = oracle.NAN_SCALE
        c = cdna4.assert_multiplies(kernels[formats + label], decode, problem)
        is_nan = np.isin(np.arange(20), [3])[:, None] | np.isin(np.arange(33), [21])
        oracle.assert_bitwise_equal(np.isnan(c), is_nan)


def assert_quantizes(kernel, values, name, **options):
    """Compares codes and scales with the oracle's; `name` is that of the kernel."""
    fmt, dtype, scale_rule = name.rsplit("_", 2)
    with np.errstate(invalid="ignore", over="ignore"):
        x = np.ascontiguousarray(values.astype(NUMPY_DTYPES[dtype]))
    rows, k = x.shape
    found = cdna4.described(name, rows, 0, k)
    codes = np.full((rows, oracle.FORMATS[fmt].packed_bytes(k)), 0xA5, np.uint8)
    scales = np.full((rows, k // oracle.BLOCK), 0xA5, np.uint8)
    launch = cdna4.Launch(
        found.grid, found.threads, found.bind(a=x, codes=codes, scales=scales), ()
    )
    launch.run(kernel, **options)
    expected = oracle.quantize(values, scale_rule, fmt)
    oracle.assert_bitwise_equal(codes, expected[0], zeros_are_the_claim=True)
    oracle.assert_bitwise_equal(scales, expected[1], zeros_are_the_claim=True)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale_rule", oracle.ROUNDINGS)
def test_every_bfloat16_can_be_the_largest_of_a_block(quantizers, fmt, scale_rule):
    values = rows_of(blocks_under(every_value("bfloat16"), "bfloat16"))
    name = f"{fmt}_bfloat16_{scale_rule}"
    assert_quantizes(quantizers[name], values, name, check=False)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("scale_rule", ["even", "floor"])
@pytest.mark.parametrize("exponent", [-133, -120, -108, -107, -94, -93, -92, 0, 119, 120, 121, 127])
def test_every_element_is_encoded_under_a_scale(quantizers, fmt, scale_rule, exponent):
    elements = every_value("bfloat16")
    values = rows_of(blocks_of(elements[np.isfinite(elements)], 2.0**exponent))
    name = f"{fmt}_bfloat16_{scale_rule}"
    assert_quantizes(quantizers[name], values, name, check=False)


@pytest.mark.parametrize("fmt", ["mxfp8", "mxfp6", "mxfp6_e3m2"])
@pytest.mark.parametrize(
    "dtype, exponent",
    [("float16", -14), ("float16", -5), ("float16", 0), ("float16", 15), ("float32", 0)],
)
def test_elements_of_other_types_are_encoded_under_a_scale(quantizers, fmt, dtype, exponent):
    elements = float32_corners() if dtype == "float32" else every_value(dtype)
    values = rows_of(blocks_of(elements[np.isfinite(elements)], 2.0**exponent))
    name = f"{fmt}_{dtype}_even"
    assert_quantizes(quantizers[name], values, name, check=False)


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
def test_any_number_of_rows_and_blocks_without_hazards(quantizers, rng, late):
    for shape in ((1, 32), (17, 96), (33, 544)):
        values = normal_values(rng, shape, "bfloat16")
        for fmt in FORMATS:
            name = f"{fmt}_bfloat16_even"
            assert_quantizes(quantizers[name], values, name, late=late)
