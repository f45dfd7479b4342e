"""Experts on gfx950, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands, whose padding is poisoned.
"""

import re

import numpy as np
import pytest

import oracle
from tests.cdna4 import expert_layers as layers
from tests.cdna4.expert_layers import Experts
from tests.cdna4.support import NUMPY_DTYPES

pytestmark = pytest.mark.deep

MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
ORDERS = [(None, None), ("reverse", None), (1, None), (2, 1), (None, 1)]
"""Orders of workgroups, and how many run at a time."""
GROUPED = ["mxfp4_bfloat16_bfloat16_none", "mxfp4_float32_float32_float32"]
GROUPS = [
    # Rows of each expert, rows behind them, n, k.
    ([5], 0, 48, 96),
    ([0, 3, 1, 0, 17, 2], 3, 33, 64),
    ([0, 0, 40], 0, 7, 32),
    ([1] * 70, 5, 64, 544),
    ([100, 3], 20, 100, 160),
    ([200], 1, 20, 288),
    ([0, 0], 5, 32, 32),
    ([0] * 127 + [9], 0, 80, 2080),
]


def floats(rng, name, *shape):
    """Draws rows as the types of a name have them."""
    return rng.standard_normal(shape).astype(NUMPY_DTYPES[name.split("_")[1]])


def rounded(x, name):
    """Returns what a kernel multiplies: rows rounded to its left format."""
    left = name.split("_")[0]
    if left == "bf16":
        return x.astype(NUMPY_DTYPES["bfloat16"]).astype(np.float64)
    return oracle.dequantize(*oracle.quantize(x.astype(np.float64), format=left), left)


def assert_grouped(name, c, x, experts, sizes):
    """Compares a grouped product with the oracle's bound, group by group."""
    result, left, first = name.split("_")[2], rounded(x, name), 0
    for expert, size in enumerate(sizes):
        rows = slice(first, first + size)
        if size:
            bias = None if experts.bias is None else experts.bias[expert].astype(np.float64)
            got = c[rows].astype(np.float64)
            oracle.assert_matmul(got, left[rows], experts.matrix(expert), result, bias)
        first += size
    assert (c[first:] == 0).all()


@MODES
@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_product_is_within_the_bound_for_each_group(rng, name, late):
    for sizes, rest, n, k in GROUPS:
        x = floats(rng, name, sum(sizes) + rest, k)
        experts = Experts.random(rng, len(sizes), n, k, name.split("_")[3])
        c = layers.grouped(name, x, experts, sizes, late=late)
        assert_grouped(name, c, x, experts, sizes)


@pytest.mark.parametrize("name", GROUPED)
def test_a_grouped_product_has_the_same_bits_in_every_order_of_workgroups(rng, name):
    sizes, (m, n, k) = [7, 0, 40, 1, 19], (70, 100, 544)
    x, experts = floats(rng, name, m, k), Experts.random(rng, 5, n, k, name.split("_")[3])
    results = [
        layers.grouped(name, x, experts, sizes, order=order, batch=batch, check=False)
        for order, batch in ORDERS
    ]
    assert_grouped(name, results[0], x, experts, sizes)
    for result in results[1:]:
        oracle.assert_bitwise_equal(result, results[0])


@pytest.mark.parametrize(
    "sizes, meant",
    [
        ([-5, 3, 2], [0, 3, 2]),
        ([30, 30, 30], [30, 10, 0]),
        ([2**31 - 1, 2**31 - 1, 1], [40, 0, 0]),
        ([-(2**31), 2**31 - 1, -1], [0, 40, 0]),
    ],
)
def test_sizes_that_do_not_fit_end_where_the_rows_end(rng, sizes, meant):
    name = GROUPED[0]
    x, experts = floats(rng, name, 40, 96), Experts.random(rng, 3, 33, 96)
    assert_grouped(name, layers.grouped(name, x, experts, sizes), x, experts, meant)


def test_irregular_rows_and_experts_disturb_no_others(rng):
    name, sizes = GROUPED[0], [4, 9, 0, 5]
    x, experts = floats(rng, name, 20, 96), Experts.random(rng, 4, 40, 96)
    x[2, 5] = x[19, 3] = np.nan
    experts.scales[1, 21, 2] = oracle.NAN_SCALE
    c = layers.grouped(name, x, experts, sizes)
    assert_grouped(name, c, x, experts, sizes)
    expected = np.zeros((20, 40), bool)
    expected[2] = expected[4:13, 21] = True
    oracle.assert_bitwise_equal(np.isnan(c), expected)


def test_no_rows_are_no_launch(rng):
    c = layers.grouped(GROUPED[0], floats(rng, GROUPED[0], 0, 64), Experts.random(rng, 3, 8, 64), [])
    assert c.shape == (0, 8)


def test_no_kernel_spills_or_touches_scratch():
    for name in GROUPED:
        for m in (1, 32, 64):
            for launch in layers.program().grouped(name, (m, 64, 64, 1)):
                text = launch["text"]
                assert re.search(r"\.vgpr_spill_count: +0\b", text), name
                assert re.search(r"\.private_segment_fixed_size: +0\b", text), name
