"""The CDNA4 decode kernels, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands, whose padding is poisoned. By default each kernel meets some of the ragged shapes;
CDNA4_FULL=1 in the environment runs all pairs, which takes an hour.
"""

import itertools
import os

import numpy as np
import pytest

import cdna4_support as cdna4
import oracle
from cdna4_support import Decode, Problem

FULL = bool(os.environ.get("CDNA4_FULL"))
RAGGED = list(
    itertools.product((1, 3, 15, 17, 33, 100), (1, 17, 100, 2115), (32, 96, 160, 544, 7200))
)
SHARES = 10
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
CONTEST = {
    (4, 2880, 512): "m1n1k1w4d1s1",
    (16, 2112, 7168): "m1n4k1w8d1s7",
    (32, 4096, 512): "m1n2k1w4d1s1",
    (32, 2880, 512): "m1n2k1w4d1s1",
    (64, 7168, 2048): "m2n4k1w8d1s1",
    (256, 3072, 1536): "m2n6k1w12d1s1",
}
LINEAR = "linear_bfloat16_even_bfloat16_none_"
MATMUL = "matmul_bfloat16_none_"


@pytest.fixture(scope="module")
def ragged_kernels():
    return cdna4.compile_kernels("decode")


@pytest.fixture(scope="module")
def contest_kernels():
    return cdna4.compile_kernels("contest")


def ragged_shapes(kernel_index: int, share: int):
    """Returns a share of the shapes; by default one that is not large, others for each kernel."""
    if FULL:
        return RAGGED[share::SHARES]
    small = [shape for shape in RAGGED if np.prod(shape) < 5_000_000]
    return [small[(7 * kernel_index + 11 * share) % len(small)]]


@MODES
@pytest.mark.parametrize("share", range(SHARES))
def test_ragged_shapes_are_within_the_bound(ragged_kernels, rng, share, late):
    for index, (name, kernel) in enumerate(ragged_kernels.items()):
        decode = Decode.named(name)
        for shape in ragged_shapes(index, share):
            problem = Problem.random(rng, shape, decode.x or "bfloat16", decode.bias)
            cdna4.assert_multiplies(kernel, decode, problem, late=late)


@MODES
@pytest.mark.parametrize("shape", CONTEST)
def test_contest_shapes_are_within_the_bound(contest_kernels, rng, shape, late):
    name = LINEAR + CONTEST[shape]
    problem = Problem.random(rng, shape)
    cdna4.assert_multiplies(contest_kernels[name], Decode.named(name), problem, late=late)


@pytest.mark.parametrize("shape", CONTEST)
def test_linear_equals_matmul_of_quantize_to_the_bit(contest_kernels, rng, shape):
    problem = Problem.random(rng, shape)
    results = []
    for name in (LINEAR + CONTEST[shape], MATMUL + CONTEST[shape]):
        decode = Decode.named(name)
        results.append(cdna4.multiply(contest_kernels[name], decode, problem, check=False))
    oracle.assert_bitwise_equal(results[0], results[1])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_nan_reaches_exactly_its_row(ragged_kernels, rng, dtype):
    name = next(n for n in ragged_kernels if n.startswith(f"linear_{dtype}_"))
    decode = Decode.named(name)
    problem = Problem.random(rng, (20, 33, 160), dtype, decode.bias)
    problem.x[3, 77] = np.nan
    problem.x[17, 150] = np.inf
    c = cdna4.assert_multiplies(ragged_kernels[name], decode, problem)
    oracle.assert_bitwise_equal(np.isnan(c).any(1), np.isin(np.arange(20), [3, 17]))


def test_a_nan_scale_of_the_weights_reaches_exactly_its_column(ragged_kernels, rng):
    for name, kernel in ragged_kernels.items():
        decode = Decode.named(name)
        problem = Problem.random(rng, (3, 40, 544), decode.x or "bfloat16", decode.bias)
        problem.weights[1][21, 16] = oracle.NAN_SCALE
        c = cdna4.assert_multiplies(kernel, decode, problem)
        assert np.isnan(c[:, 21]).all() and not np.isnan(np.delete(c, 21, 1)).any(), name


def test_split_k_gives_the_same_bits_in_every_order_of_arrival(contest_kernels, rng):
    name = LINEAR + CONTEST[(16, 2112, 7168)]
    decode = Decode.named(name)
    problem = Problem.random(rng, (13, 200, 7168))
    orders = [None, "reverse", 1, 2, 3]
    results = [
        cdna4.multiply(
            contest_kernels[name], decode, problem, order=order, batch=batch, check=False
        )
        for order in orders
        for batch in (None, 1)
    ]
    for result in results[1:]:
        oracle.assert_bitwise_equal(result, results[0])


def test_split_k_finds_its_workspace_as_it_left_it(ragged_kernels, rng):
    name = LINEAR + "m2n4k2w2d2s2t"
    decode = Decode.named(name)
    workspace = decode.workspace(33, 100)
    for _ in range(3):
        problem = Problem.random(rng, (33, 100, 1056))
        cdna4.assert_multiplies(ragged_kernels[name], decode, problem, workspace=workspace)


def test_waves_need_not_run_in_step(contest_kernels, rng):
    for shape, label in CONTEST.items():
        decode = Decode.named(LINEAR + label)
        problem = Problem.random(rng, (min(shape[0], 33), 100, shape[2]))
        for order in (1, 2):
            cdna4.assert_multiplies(
                contest_kernels[LINEAR + label], decode, problem, lockstep=False, order=order
            )
