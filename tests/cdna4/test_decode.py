"""The CDNA4 decode kernels, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands, whose padding is poisoned. Each kernel meets some of the ragged shapes, other ones than
its neighbours, and memory answers at once or late by turns.
"""

import itertools

import numpy as np
import pytest

import mx_kernels as mx
import oracle
from mx_kernels._core.native import gpu_plans
from tests.cdna4 import support as cdna4
from tests.cdna4.support import CONTEST, LINEAR, MATMUL, Decode, Problem, contest_kernel
from tests.tiers import deep, tiered

RAGGED = [
    shape
    for shape in itertools.product(
        (1, 3, 15, 17, 33, 100), (1, 17, 100, 2115), (32, 96, 160, 512, 544, 1536, 7200)
    )
    if np.prod(shape) < 2_000_000
]
"""Those that are not large; contest shapes are."""
SHARES, FIRST_SHARE = range(10), 7
"""A shape for each kernel; the first one has every M, N and K, and least to multiply."""
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
SPLIT, SPLIT_IN_TWO = LINEAR + "m1n1w8s4t", LINEAR + "m1n4w8s2t"
BOTH_SPLITS = pytest.mark.parametrize("name", tiered([SPLIT, SPLIT_IN_TWO], first=[SPLIT]))
LONG_K = 7200
"""Of which all workgroups that split K have some."""
CHOSEN_SHAPES = [(m, 100, k) for k in (96, 512, 1536, 2080) for m in (1, 33)]
FIRST_TURN = (1, False)
TURNS = [FIRST_TURN, (0, False), (0, True), (1, True), (2, False), (5, True), (7, True)]
"""The place of a shape among those that a kernel has, so that it has every K and both M, and
whether memory answers late."""
NVFP4 = "bf16-nvfp4/linear_bfloat16_even_bfloat16_none_m2n4w2t"
DECODE_KERNEL = "cdna4/streaming/kernel.mojo"
PROGRAMS = ("decode", "choices")
PARTS = 4
"""Of the kernels."""


@pytest.fixture(scope="module")
def ragged_kernels():
    return cdna4.compile_kernels("decode")


@pytest.mark.parametrize("share", tiered(SHARES, first=[FIRST_SHARE]))
def test_ragged_shapes_are_within_the_bound(ragged_kernels, rng, share):
    for index, (name, kernel) in enumerate(ragged_kernels.items()):
        decode = Decode.named(name)
        shapes = [shape for shape in RAGGED if decode.supports(shape[2])]
        shape = shapes[(7 * index + 11 * share) % len(shapes)]
        problem = Problem.random(rng, shape, decode.x or "bfloat16", decode.bias, decode.right)
        cdna4.assert_multiplies(kernel, decode, problem, late=(index + share) % 2 == 1)


@deep
def test_catalogues_have_the_kernels_of_the_dispatch_table_and_no_others():
    """Those of any K where the row is; those for whole chunks are of contest shapes."""
    rows = [row for row in gpu_plans().table_gfx950(()) if row["kernel"] == DECODE_KERNEL]
    linear = {(row["cut"], row["any_k"]) for row in rows if row["linear"]}
    names = {LINEAR + cut + "t" * any_k for cut, any_k in linear}
    matmul = {(row["cut"], row["any_k"]) for row in rows if row["matmul"]} - linear
    names |= {MATMUL + cut + "t" * any_k for cut, any_k in matmul}
    listed = cdna4.compile_kernels("decode").keys() | cdna4.compile_kernels("choices").keys()
    assert names <= listed
    of_contest = {mx.explain(*shape, device="gfx950", activations="mxfp4").cut for shape in CONTEST}
    beside = {name for name in listed - names if name.startswith((LINEAR, MATMUL))}
    assert beside == {op + cut for op in (LINEAR, MATMUL) for cut in of_contest} - names


@pytest.mark.parametrize("turn", tiered(TURNS, first=[FIRST_TURN]))
@pytest.mark.parametrize("program", tiered(PROGRAMS, first=PROGRAMS[:1]))
def test_every_kernel_of_the_dispatch_table_is_within_the_bound(rng, program, turn):
    place, late = turn
    for name, kernel in cdna4.compile_kernels(program).items():
        decode = Decode.named(name)
        shapes = [shape for shape in CHOSEN_SHAPES if decode.supports(shape[2])]
        assert shapes, name
        for shape in shapes[place : place + 1]:
            problem = Problem.random(rng, shape, decode.x or "bfloat16", decode.bias, decode.right)
            cdna4.assert_multiplies(kernel, decode, problem, late=late)


@MODES
@pytest.mark.parametrize("shape", tiered(CONTEST, first=CONTEST[:1]))
def test_contest_shapes_are_within_the_bound(rng, shape, late):
    problem = Problem.random(rng, shape)
    cdna4.assert_multiplies(*contest_kernel(shape), problem, late=late)


@pytest.mark.parametrize("shape", tiered(CONTEST, first=CONTEST[:1]))
def test_linear_equals_matmul_of_quantize_to_the_bit(rng, shape):
    problem = Problem.random(rng, shape)
    linear, matmul = (
        cdna4.multiply(*contest_kernel(shape, op), problem, check=False)
        for op in ("linear", "matmul")
    )
    oracle.assert_bitwise_equal(linear, matmul)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_nan_reaches_exactly_its_row(ragged_kernels, rng, dtype):
    name = next(n for n in ragged_kernels if n.startswith(f"linear_{dtype}_"))
    decode = Decode.named(name)
    problem = Problem.random(rng, (20, 33, 160), dtype, decode.bias)
    problem.x[3, 77] = np.nan
    problem.x[17, 150] = np.inf
    c = cdna4.assert_multiplies(ragged_kernels[name], decode, problem)
    oracle.assert_bitwise_equal(np.isnan(c).any(1), np.isin(np.arange(20), [3, 17]))


@pytest.mark.parametrize("part", tiered(range(PARTS), first=[0]))
def test_a_nan_scale_of_the_weights_reaches_exactly_its_column(ragged_kernels, rng, part):
    for name, kernel in list(ragged_kernels.items())[part::PARTS]:
        decode = Decode.named(name)
        k = next(k for k in (544, 512, 1536) if decode.supports(k))
        problem = Problem.random(rng, (3, 40, k), decode.x or "bfloat16", decode.bias, decode.right)
        problem.weights[1][21, k // oracle.BLOCK - 1] = oracle.NAN_SCALE
        c = cdna4.assert_multiplies(kernel, decode, problem)
        assert np.isnan(c[:, 21]).all() and not np.isnan(np.delete(c, 21, 1)).any(), name


def test_every_four_bit_code_under_every_e4m3_scale_is_exact(ragged_kernels):
    """One product at a time, under powers of two as tensor scales: six significant bits."""
    e4m3, k, n = oracle.ELEMENTS["e4m3"], 128, 34
    scales = np.setdiff1d(np.arange(256, dtype=np.uint8), e4m3.special_codes)
    assert len(scales) == 254
    scales = np.resize(scales, (n, k // 16))
    scales[32:, 3] = e4m3.special_codes
    tensor = np.float32(2.0) ** np.float32(np.resize(np.arange(-40, 41, 16), (n, 1)))
    scales = np.concatenate([scales, tensor.view(np.uint8)], 1)
    codes = oracle.pack(np.resize(np.arange(16), (n, k)))
    problem = Problem(
        np.eye(k, dtype=cdna4.NUMPY_DTYPES["bfloat16"]), (codes, scales), None, "nvfp4"
    )
    c = cdna4.multiply(ragged_kernels[NVFP4], Decode.named(NVFP4), problem, check=False)
    expected = oracle.dequantize(codes, scales, "nvfp4").T
    expected[:, 32:] = np.nan
    oracle.assert_bitwise_equal(c.astype(np.float64), expected + 0.0)


def same_bits_in_every_order(kernel, decode, problem):
    assert decode.splits > 1
    results = [
        cdna4.multiply(kernel, decode, problem, order=order, batch=batch, check=False)
        for order in (None, "reverse", 1, 2, 3)
        for batch in (None, 1)
    ]
    for result in results[1:]:
        oracle.assert_bitwise_equal(result, results[0])


@BOTH_SPLITS
def test_split_k_gives_the_same_bits_in_every_order_of_arrival(ragged_kernels, rng, name):
    problem = Problem.random(rng, (20, 33, LONG_K))
    same_bits_in_every_order(ragged_kernels[name], Decode.named(name), problem)


@pytest.mark.deep
@pytest.mark.parametrize("shape", [(13, 200, 7168), (37, 200, 7168)])
def test_a_contest_kernel_gives_the_same_bits_in_every_order(rng, shape):
    (like,) = (contest for contest in CONTEST if contest[2] == shape[2])
    kernel, decode = contest_kernel(like)
    same_bits_in_every_order(kernel, decode, Problem.random(rng, shape))


@BOTH_SPLITS
def test_split_k_gives_one_nan_in_every_order_of_arrival(ragged_kernels, rng, name):
    problem = Problem.random(rng, (20, 33, LONG_K))
    problem.x[3, 77] = np.nan
    problem.x[17, LONG_K - 6] = np.inf
    problem.weights[1][21, 2] = problem.weights[1][5, LONG_K // 32 - 2] = oracle.NAN_SCALE
    expected = np.isin(np.arange(20), [3, 17])[:, None] | np.isin(np.arange(33), [21, 5])
    for order in (None, "reverse", 1, 2):
        c = cdna4.multiply(
            ragged_kernels[name], Decode.named(name), problem, order=order, batch=1, check=False
        )
        oracle.assert_bitwise_equal(np.isnan(c), expected)
        assert (c.view(np.uint16)[expected] == 0x7FC0).all()


@BOTH_SPLITS
def test_split_k_finds_its_workspace_as_it_left_it(ragged_kernels, rng, name):
    decode = Decode.named(name)
    workspace = decode.workspace(33, 100, LONG_K)
    for _ in range(3):
        problem = Problem.random(rng, (33, 100, LONG_K))
        cdna4.assert_multiplies(ragged_kernels[name], decode, problem, workspace=workspace)


@pytest.mark.parametrize("shape", tiered(CONTEST, first=CONTEST[:1]))
def test_waves_need_not_run_in_step(rng, shape):
    kernel, decode = contest_kernel(shape)
    problem = Problem.random(rng, (min(shape[0], 33), 100, shape[2]))
    for order in (1, 2):
        cdna4.assert_multiplies(kernel, decode, problem, lockstep=False, order=order)
