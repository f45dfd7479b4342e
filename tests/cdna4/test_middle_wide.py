"""The CDNA4 middle kernels for activations of six and eight bits, simulated, against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands. Scales of blocks and of rows have any mantissa.
"""

import re

import numpy as np
import pytest

import gfx950
import oracle
from gfx950.timing import profile
from tests.cdna4 import support as cdna4

NAME = re.compile(
    r"(\w+)-(\w+)/middle(\d+)x(\d+)(?:s\d+)?d(\d+)(?:w(\d+))?_([a-z\d]+)_(none|[a-z]+\d+)t?"
)
BLOCKS, ROWS, MX = "fp8_block-fp8_block_2d/", "fp8-fp8/", "mxfp8-mxfp8/"
W4A6, W6A6 = "mxfp6-mxfp4/", "mxfp6-mxfp6/"
SPLIT, LARGE = "middle64x64s3d4_float32_float32", "middle128x256d3_bfloat16_none"
BIASED_SPLIT = "middle64x128s2d4_bfloat16_bfloat16"
SMALL, HIGH, WIDE = (
    f"{cut}_bfloat16_none" for cut in ("middle64x64d4", "middle192x128d4", "middle160x256d3")
)
EIGHT_BITS = (
    *(f"{pair}{cut}" for pair in (BLOCKS, ROWS, MX, "mxfp8-mxfp4/") for cut in (SPLIT, LARGE)),
    *(f"{BLOCKS}{cut}" for cut in (SMALL, BIASED_SPLIT, HIGH, WIDE)),
)
HIGH_OF_SIXES = "middle192x256d2_bfloat16_none"
TAIL, TAIL_OF_SIXES = (f"middle{cut}_bfloat16_nonet" for cut in ("96x192d3", "128x128d3"))
SIX_BITS = (
    *(f"{W4A6}{cut}" for cut in (SPLIT, LARGE, TAIL)),
    *(f"{W6A6}{cut}" for cut in (TAIL_OF_SIXES, HIGH_OF_SIXES)),
)
KERNELS = EIGHT_BITS + SIX_BITS
STAGE_K, CHUNK_K = 128, 4096
SHAPES = [(17, 100, 640), (70, 140, CHUNK_K + 256), (1, 1, 384), (100, 130, 896)]
STAGE_OF_SIXES = 256
SHAPES_OF_SIXES = [(17, 100, 1280), (100, 257, CHUNK_K + 512), (1, 1, 768), (70, 130, 1792)]
TAILED_SHAPES = [(17, 100, 1088), (100, 130, 64), (1, 1, CHUNK_K + 192), (97, 200, 576)]
SCALE_ROUNDINGS = 2
"""Of products whose scales are no powers of two."""

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("middle_wide")


def operand(rng, rows, k, name):
    """Draws codes of all numbers, and scales."""
    found = oracle.FORMATS[name]
    codes = rng.integers(0, 256, (rows, found.packed_bytes(k)), np.uint8)
    if found.element.bits == 8:
        codes[np.isin(codes, found.element.special_codes)] = 1
    shape = oracle.quantize(np.zeros((rows, k)), format=name)[1].shape
    if name.startswith("mx"):
        return codes, rng.integers(118, 127, shape).astype(np.uint8)
    return codes, np.float32(2.0 ** rng.uniform(-12, -4, shape))


def stored(operand, k, name):
    """Returns weights as stored for CDNA4: float scales stay plain."""
    codes, scales = operand
    if name.startswith("mx"):
        return cdna4.poisoned_weights(codes, scales)
    blocks = np.zeros((len(codes), k // oracle.BLOCK), np.uint8)
    return oracle.LAYOUTS["preshuffled_cdna4"].store(codes, blocks)[0], scales


def multiply(kernels, name, shape, *, a=None, b=None, **options):
    """Launches a kernel; compares C with the oracle's bound and returns it."""
    (m, n, k), rng = shape, np.random.default_rng(7)
    left, right, *_, out, bias_name = NAME.fullmatch(name).groups()
    a, b = a or operand(rng, m, k, left), b or operand(rng, n, k, right)
    has_bias = bias_name != "none"
    bias = rng.standard_normal(n).astype(cdna4.NUMPY_DTYPES[bias_name]) if has_bias else None
    c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[out])
    found = cdna4.described(name, m, n, k)
    workspace = found.workspace()
    w_codes, w_scales = stored(b, k, right)
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
        scale_roundings=0 if left.startswith("mx") else SCALE_ROUNDINGS,
    )
    return c


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("name", KERNELS)
def test_ragged_shapes_are_within_the_bound(kernels, name, late):
    """Two shapes each: kernels of one pair, and both modes, have different ones."""
    index, shapes = KERNELS.index(name) + late, SHAPES
    if name in SIX_BITS:
        shapes = TAILED_SHAPES if name.endswith("t") else SHAPES_OF_SIXES
    for shape in (shapes[index % len(shapes)], shapes[(index + 2) % len(shapes)]):
        multiply(kernels, name, shape, late=late)


@pytest.mark.parametrize("stages", [*range(2, 8), 15, 16, 17])
@pytest.mark.parametrize("name", [W4A6 + LARGE, W6A6 + HIGH_OF_SIXES])
def test_any_number_of_stages_of_six_bits_is_within_the_bound(kernels, name, stages):
    multiply(kernels, name, (20, 48, stages * STAGE_OF_SIXES))


@pytest.mark.parametrize("stages", [*range(1, 7), 32, 33])
def test_any_number_of_stages_is_within_the_bound(kernels, stages):
    is_long = stages * STAGE_K >= CHUNK_K
    for name in (BLOCKS + SMALL,) if is_long else (BLOCKS + SMALL, ROWS + LARGE):
        multiply(kernels, name, (20, 48, stages * STAGE_K))


@pytest.mark.parametrize("pair", [BLOCKS, ROWS, MX])
def test_sums_do_not_depend_on_the_order_of_workgroups(kernels, pair):
    results = {
        multiply(
            kernels, pair + SPLIT, (20, 70, 5 * STAGE_K), order=order, late=late, lockstep=False
        ).tobytes()
        for order, late in [("reverse", False), (0, False), (1, True)]
    }
    assert len(results) == 1


@pytest.mark.parametrize("cut", [SPLIT, SMALL, WIDE])
def test_a_nan_reaches_exactly_its_row_or_column(kernels, rng, cut):
    """A scale that is NaN, of the last 128 along K of a row; a code that is NaN of a column."""
    a, b = operand(rng, 20, 640, "fp8_block"), operand(rng, 140, 640, "fp8_block_2d")
    a[1][3, -1] = np.nan
    b[0][21, 16] = 0x7F
    c = multiply(kernels, BLOCKS + cut, (20, 140, 640), a=a, b=b)
    is_nan = np.isin(np.arange(20), [3])[:, None] | np.isin(np.arange(140), [21])
    oracle.assert_bitwise_equal(np.isnan(c), is_nan)


def test_a_k_that_ends_within_a_stage_or_leaves_a_workgroup_none_is_refused():
    cdna4.compile_texts("middle_wide")
    assert cdna4.described(BLOCKS + SMALL, 64, 64, STAGE_K + 32) is None
    assert cdna4.described(BLOCKS + SPLIT, 64, 64, 2 * STAGE_K) is None
    assert cdna4.described(BLOCKS + SPLIT, 64, 64, 3 * STAGE_K) is not None


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_spills_and_a_stage_meets_once(kernels, name):
    text = cdna4.compile_texts("middle_wide")[name]
    for count in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    left, right, rows, columns, depth, waves, *_ = NAME.fullmatch(name).groups()
    depth, waves = int(depth), int(waves or 4)
    m_tiles, n_tiles = int(rows) // 16, int(columns) // (16 * waves)
    slices = 2 if name in SIX_BITS else 1
    loop = [instruction.name for instruction in cdna4.loop_of(kernels[name])]
    assert loop.count("s_barrier") == depth
    assert sum(x.startswith("v_mfma") for x in loop) == m_tiles * n_tiles * depth * slices
    of_a, of_b = m_tiles * 16 // 32, n_tiles * (1 if right == "mxfp4" else 2)
    assert loop.count("ds_read_b128") == (0 if name in SIX_BITS else 2 * m_tiles * depth)
    if name in SIX_BITS:
        assert loop.count("buffer_load_dwordx3") == m_tiles * 4 // waves * depth
        of_a, of_b = 0, n_tiles * slices if right == "mxfp4" else 0
    # Scales of activations, which few stages load, may be one more.
    sure = (of_a + of_b) * depth
    assert sure <= loop.count("buffer_load_dwordx4") <= sure + depth
    if right == "mxfp6":
        assert loop.count("buffer_load_dwordx2") == 3 * n_tiles * slices * depth
    additions = loop.count("v_fma_f32") + 2 * loop.count("v_pk_fma_f32")
    assert additions == (4 * m_tiles * n_tiles * depth if left == "fp8_block" else 0)


@pytest.mark.parametrize("pair, busy", [(BLOCKS, 0.6), (ROWS, 0.6), (MX, 0.6)])
def test_matrix_pipes_are_as_busy_as_memory_lets_them_be(kernels, pair, busy):
    (m, n, k), name = (1024, 7168, 2048), pair + LARGE
    sizes = {"a": m * k, "a_scales": m * k // 32, "w_codes": n * k, "w_scales": n * k // 32}
    operands = {operand: np.zeros(size, np.uint8) for operand, size in sizes.items()}
    found = cdna4.described(name, m, n, k)
    c, none = np.zeros((m, n), np.uint16), np.zeros(0, np.uint8)
    args = found.bind(**operands, c=c, bias=none, none=none, workspace=found.workspace())
    p = profile(kernels[name], found.grid, found.threads, args)
    assert p.loop.mfma_utilisation >= busy
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts
