"""The CDNA4 middle kernels, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup, is checked for hazards and for accesses beyond the
operands, and finds NaN in all padding of scales.
"""

import itertools
import re

import numpy as np
import pytest

import gfx950
import oracle
from gfx950.timing import profile
from tests.cdna4 import support as cdna4

NARROW, SPLIT = "middle64x128d4_bfloat16_none", "middle64x128s2d4_bfloat16_bfloat16"
WIDE_SPLIT, WIDE = "middle96x256s2d3_float32_float32", "middle192x256d2_bfloat16_none"
HIGH, WIDEST = "middle224x128d3_bfloat16_float32", "middle128x384d2_bfloat16_bfloat16"
ODD = "middle128x192d3_bfloat16_bfloat16"
"""Three tiles of columns a wave: half of the waves begin within a word of scales."""
WIDEST_SPLIT = "middle128x256s2d2_bfloat16_bfloat16"
"""A wave has as many sums as it takes at once."""
SHARED_BY_FOUR, SHARED_BY_THREE = (
    "middle96x128s4d4_bfloat16_none",
    "middle128x128s3d3_bfloat16_bfloat16",
)
"""Sums meet two by two, those of the third of three in the end."""
SQUARE, EIGHT = "middle256x256d2w8_bfloat16_float32", "middle128x512d2w8_bfloat16_none"
"""Eight waves, two on a SIMD."""
APART = "middle224x256d2_bfloat16_float32"
"""Sums fill the accumulation registers."""
TAIL, SPLIT_TAIL = NARROW + "t", "middle96x128s2d3_bfloat16_bfloat16t"
ODD_TAIL, LARGE_TAIL = "middle224x192d2_float32_float32t", "middle192x256d2_bfloat16_nonet"
EIGHT_TAIL = SQUARE + "t"
SPLITS = (SPLIT, WIDE_SPLIT, WIDEST_SPLIT)
MORE_SPLITS = (SHARED_BY_FOUR, SHARED_BY_THREE)
TAILS = (TAIL, SPLIT_TAIL, ODD_TAIL, LARGE_TAIL, EIGHT_TAIL)
KERNELS = (NARROW, WIDE, HIGH, WIDEST, ODD, SQUARE, EIGHT, APART, *SPLITS)
pytestmark = pytest.mark.deep
NAME = re.compile(r"middle(\d+)x(\d+)(?:s\d+)?d(\d+)(?:w(\d+))?_([a-z\d]+)_(none|[a-z]+\d+)t?")
STAGE_K, CHUNK_K, MOST_TAILED_K = 256, 4096, 8192
SHAPES = [(17, 100, 1024), (100, 130, 1792), (1, 1, 512), (70, 257, 2304), (33, 40, CHUNK_K + 512)]


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("middle")


def random_operand(rng, rows, k):
    """Draws codes and scales; neighbouring blocks differ by up to 2**8."""
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    return codes, rng.integers(118, 127, (rows, k // oracle.BLOCK)).astype(np.uint8)


def multiply(kernel, name, shape, nan_rows=(), **options):
    """Launches a kernel on random operands; compares C with the oracle's bound and returns it.

    Rows of activations `nan_rows` have NaN for scales, and C has NaN there.
    """
    (m, n, k), rng = shape, np.random.default_rng(7)
    out, bias_name = NAME.fullmatch(name).groups()[4:]
    a, b = random_operand(rng, m, k), random_operand(rng, n, k)
    is_number = np.isin(np.arange(m), nan_rows, invert=True)
    a[1][~is_number] = 0xFF
    has_bias = bias_name != "none"
    bias = rng.standard_normal(n).astype(cdna4.NUMPY_DTYPES[bias_name]) if has_bias else None
    c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[out])
    found = cdna4.described(name, m, n, k)
    workspace = found.workspace()
    w_codes, w_scales = cdna4.poisoned_weights(*b)
    args = found.bind(
        a=a[0], a_scales=a[1], w_codes=w_codes, w_scales=w_scales, c=c, workspace=workspace,
        bias=bias if has_bias else np.zeros(0, np.uint8), none=np.zeros(0, np.uint8),
    )  # fmt: skip
    gfx950.run(kernel, found.grid, found.threads, args, **options).raise_on_hazards()
    assert not workspace.any(), "the workspace is zero after a launch"
    addend = bias.astype(np.float64) if has_bias else None
    left, right = oracle.dequantize(a[0][is_number], a[1][is_number]), oracle.dequantize(*b)
    assert np.isnan(c[~is_number].astype(np.float32)).all()
    oracle.assert_matmul(c[is_number].astype(np.float64), left, right, out, addend)
    return c


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", KERNELS)
def test_ragged_shapes_are_within_the_bound(kernels, name, shape, late):
    multiply(kernels[name], name, shape, late=late)


@pytest.mark.parametrize("stages", range(2, 20))
def test_any_number_of_stages_is_within_the_bound(kernels, stages):
    for name in KERNELS:
        multiply(kernels[name], name, (20, 48, stages * STAGE_K))


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("stages", [13, 20, 35, 52])
@pytest.mark.parametrize("name", [NARROW, EIGHT, SPLIT, SHARED_BY_THREE])
def test_scales_may_begin_within_a_line(kernels, name, stages, late):
    """Of 16 rows in each place that a row can have in a line; up to four lines a row."""
    multiply(kernels[name], name, (33, 40, stages * STAGE_K), late=late)


@pytest.mark.parametrize("shape", [(100, 130, 18944), (17, 100, 1792), (33, 40, CHUNK_K)])
@pytest.mark.parametrize("name", KERNELS + MORE_SPLITS)
def test_the_last_stage_finds_scales_of_a_next_one_in_lds(kernels, name, shape):
    """Nobody uses them; `check` reports what is read that no wave has written."""
    multiply(kernels[name], name, shape)


@pytest.mark.parametrize("name", SPLITS + MORE_SPLITS)
def test_sums_do_not_depend_on_the_order_of_workgroups(kernels, name):
    """Nor do NaNs, of which there are two rows."""
    shape, nans = (70, 130, 7 * STAGE_K), [3, 66]
    results = {
        multiply(kernels[name], name, shape, nans, order=order, late=late, lockstep=False).tobytes()
        for order, late in [("reverse", False), (0, False), (1, True)]
    }
    assert len(results) == 1


@pytest.mark.parametrize("name", MORE_SPLITS)
def test_sums_that_meet_two_by_two_have_the_same_bits_whoever_comes_last(kernels, name):
    """Workgroups one after another, in every order in which they can come."""
    shape = (33, 128, 7 * STAGE_K)
    x, _, splits = cdna4.described(name, *shape).grid
    results = {
        multiply(kernels[name], name, shape, [3], order=order, batch=1, check=False).tobytes()
        for order in itertools.permutations(range(0, x * splits, x))
    }
    assert len(results) == 1


def test_every_tile_of_c_is_computed_once(kernels):
    """More than a band of rows, on a grid that the XCDs do not divide."""
    multiply(kernels[NARROW], NARROW, (9 * 64 + 1, 2 * 128 + 1, STAGE_K), check=False)


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("k", [544, 1440, 2880, 4128])
@pytest.mark.parametrize("name", TAILS)
def test_k_may_end_within_a_stage(kernels, name, k, late):
    """Behind a row's last scale is the first one of the next row: NaN of every other row."""
    for m, n in ((7, 100), (65, 33)):
        multiply(kernels[name], name, (m, n, k), range(1, m, 2), late=late)


def test_k_may_end_after_any_block(kernels):
    for blocks in range(1, 9):
        for m in (17, 18, 19, 20):
            multiply(kernels[TAIL], TAIL, (m, 48, STAGE_K + blocks * oracle.BLOCK), [0, m - 2])


@pytest.mark.parametrize("name", TAILS)
def test_a_tail_of_the_longest_k(kernels, name):
    multiply(kernels[name], name, (35, 20, MOST_TAILED_K - oracle.BLOCK), [1])


def test_sums_of_a_tail_do_not_depend_on_the_order_of_workgroups(kernels):
    shape = (70, 130, 2 * STAGE_K + 96)
    results = {
        multiply(kernels[SPLIT_TAIL], SPLIT_TAIL, shape, order=order, late=late, lockstep=False)
        .tobytes()
        for order, late in [("reverse", False), (0, False), (1, True)]
    }  # fmt: skip
    assert len(results) == 1


def test_a_k_that_ends_within_a_stage_or_leaves_a_workgroup_none_is_refused():
    cdna4.compile_texts("middle")
    assert cdna4.described(NARROW, 64, 128, STAGE_K + 32) is None
    assert cdna4.described(TAIL, 64, 128, STAGE_K + 32) is not None
    assert cdna4.described(TAIL, 64, 128, MOST_TAILED_K + 32) is None
    assert cdna4.described(SPLIT_TAIL, 64, 128, STAGE_K - 32) is None
    assert cdna4.described(SPLIT, 64, 128, STAGE_K) is None
    assert cdna4.described(SPLIT, 64, 128, 2 * STAGE_K) is not None


@pytest.mark.parametrize("name", KERNELS + MORE_SPLITS + TAILS)
def test_nothing_spills_and_arguments_are_preloaded(name):
    text = cdna4.compile_texts("middle")[name]
    for count in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    assert int(re.search(r"\.amdhsa_user_sgpr_kernarg_preload_length (\d+)", text)[1]) >= 13


@pytest.mark.parametrize("name", [NARROW, WIDE, SQUARE, EIGHT, APART])
def test_a_stage_meets_once_and_loads_no_weight_twice(kernels, name):
    rows, columns, depth, waves = (int(n or 4) for n in NAME.fullmatch(name).groups()[:4])
    m_tiles, n_tiles = rows // 16, columns // 16 // waves
    names = [instruction.name for instruction in cdna4.loop_of(kernels[name])]
    assert names.count("s_barrier") == depth
    assert sum(name.startswith("v_mfma") for name in names) == 2 * m_tiles * n_tiles * depth
    of_a, of_b = m_tiles * 16 // (8 * waves), 2 * n_tiles
    # Scales of activations, which few stages load, may be one more.
    sure = (of_a + of_b) * depth
    assert sure <= names.count("buffer_load_dwordx4") <= sure + depth


def model(kernel, name, m, n, k):
    """Times a launch."""
    found = cdna4.described(name, m, n, k)
    sizes = {
        "a": m * k // 2, "a_scales": m * k // 32, "w_codes": n * k // 2, "w_scales": n * k // 32,
        "c": 2 * m * n, "bias": 4 * n, "none": 0,
    }  # fmt: skip
    operands = {operand: np.zeros(size, np.uint8) for operand, size in sizes.items()}
    args = found.bind(**operands, workspace=found.workspace())
    return profile(kernel, found.grid, found.threads, args)


def test_sums_stay_in_the_accumulation_registers(kernels):
    """All of them, and no instruction of the loop copies one."""
    loop = cdna4.loop_of(kernels[APART])
    texts = [i.text for i in loop if i.name.startswith("v_mfma")]
    assert texts and all(re.search(r"^\S+ a\[", text) for text in texts)
    assert not any(i.name.startswith("v_accvgpr") for i in loop)


@pytest.mark.parametrize("name, busy", [(NARROW, 0.3), (WIDE, 0.7), (EIGHT, 0.7), (APART, 0.8)])
def test_matrix_pipes_are_as_busy_as_memory_lets_them_be(kernels, name, busy):
    p = model(kernels[name], name, 768, 8192, 4096)
    assert p.loop.mfma_utilisation >= busy
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts
