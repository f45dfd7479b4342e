"""The CDNA4 prefill kernels of activations of more than four bits, against the oracle.

Every launch executes every workgroup, is checked for hazards and for accesses beyond the
operands, and finds NaN in all padding of scales.
"""

import re

import numpy as np
import pytest

import oracle
from tests.cdna4 import support as cdna4
from tests.cdna4.prefills import COLUMNS, Prefill, loop_of, model, multiply, random_floats, rows_of
from tests.tiers import late_by_turns

STAGE_K = 256
NUM_XCDS = 8
FP8, W4A8, W4A16 = "mxfp8-mxfp8/", "mxfp8-mxfp4/", "bf16-mxfp4/"
NVFP4 = "bf16-nvfp4/"
W4A6, W6A6 = "mxfp6-mxfp4/", "mxfp6-mxfp6/"
MATMUL, LOW_MATMUL = "matmul_m8_bfloat16_none", "matmul_m4_bfloat16_none"
LINEAR, LOW_LINEAR = "linear_m8_bfloat16_bfloat16_none", "linear_m4_bfloat16_bfloat16_none"
TAILS = (
    FP8 + "matmul_m8_float32_float32t",
    W4A8 + "matmul_m8_float32_float32t",
    FP8 + "matmul_m4_bfloat16_nonet",
    W4A8 + "linear_m8_float16_float16_float16t",
    "mxfp8_e5m2-mxfp4/linear_m8_bfloat16_bfloat16_nonet",
    "mxfp8_e5m2-mxfp8_e5m2/linear_m4_float32_float32_float32t",
    W4A16 + "linear_m4_bfloat16_float32_float32t",
    NVFP4 + "linear_m4_bfloat16_float32_float32t",
    W4A6 + "matmul_m4_float32_float32t",
    "mxfp6_e3m2-mxfp4/linear_m8_float16_float16_float16t",
)
WHOLE = (
    FP8 + MATMUL,
    W4A8 + MATMUL,
    FP8 + LOW_MATMUL,
    W4A8 + LOW_MATMUL,
    "mxfp8_e5m2-mxfp8_e5m2/matmul_m8_bfloat16_bfloat16",
    FP8 + LINEAR,
    FP8 + LOW_LINEAR,
    W4A8 + LOW_LINEAR,
    W4A16 + LOW_LINEAR,
    NVFP4 + LOW_LINEAR,
    W4A6 + MATMUL,
    W4A6 + LINEAR,
    W4A6 + LOW_LINEAR,
    W6A6 + MATMUL,
    W6A6 + LOW_LINEAR,
)
TAIL_OF_SIXES = W6A6 + MATMUL + "t"
KERNELS = (*WHOLE, *TAILS, TAIL_OF_SIXES)

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("prefill_wide")


def test_the_catalogue_has_these_kernels(kernels):
    assert set(kernels) == set(KERNELS)


@late_by_turns(name=WHOLE)
def test_one_tile_is_within_the_bound(kernels, rng, name, late):
    multiply(kernels[name], name, rng, (rows_of(name), COLUMNS, 3 * STAGE_K), late=late).check()


@late_by_turns(name=TAILS)
def test_ragged_shapes_are_within_the_bound(kernels, rng, name, late):
    multiply(kernels[name], name, rng, (300, 280, 544), late=late).check()


@pytest.mark.parametrize("shape", [(1, 1, 32), (257, 17, 288), (33, 100, 1184), (130, 20, 416)])
@pytest.mark.parametrize("name", TAILS)
def test_odd_shapes_are_within_the_bound(kernels, rng, name, shape):
    multiply(kernels[name], name, rng, shape).check()


@late_by_turns(shape=[(300, 280, 576), (1, 1, 64), (33, 100, 1216), (130, 20, 448)])
def test_six_bit_weights_may_end_within_a_stage(kernels, rng, shape, late):
    multiply(kernels[TAIL_OF_SIXES], TAIL_OF_SIXES, rng, shape, late=late).check()


@pytest.mark.parametrize("k", [256, 512, 1280])
@pytest.mark.parametrize(
    "name", [FP8 + MATMUL, W4A8 + LOW_MATMUL, W4A6 + MATMUL, W4A16 + LOW_LINEAR, NVFP4 + LOW_LINEAR]
)
def test_any_number_of_stages_is_within_the_bound(kernels, rng, name, k):
    multiply(kernels[name], name, rng, (64, 80, k)).check()


@pytest.mark.parametrize(
    "name", [FP8 + LINEAR, W4A8 + LOW_LINEAR, FP8 + MATMUL, W4A6 + LINEAR, W4A16 + LOW_LINEAR]
)
@pytest.mark.parametrize("order, late", [(0, False), (1, True), (2, False)])
def test_workgroups_of_a_team_may_meet_in_any_order(kernels, rng, name, order, late):
    """Two teams of three: every wave runs alone, and gives way to those of all workgroups."""
    shape = (rows_of(name) + 16, 2 * COLUMNS + 16, 3 * STAGE_K)
    options = {"lockstep": False, "order": order, "batch": NUM_XCDS, "late": late}
    multiply(kernels[name], name, rng, shape, **options).check()


@pytest.mark.parametrize(
    "name",
    [
        FP8 + MATMUL,
        W4A8 + MATMUL,
        FP8 + LOW_MATMUL,
        W4A8 + LOW_MATMUL,
        W4A6 + MATMUL,
        W6A6 + MATMUL,
    ],
)
def test_each_block_meets_its_own_scale_and_weights(kernels, rng, name):
    """A row for each element along K, all others zero: any other order would move it."""
    k = rows = 256
    made = Prefill.named(name)
    fmt = oracle.FORMATS[made.left]
    codes = oracle.pack(fmt.element.encode(np.eye(rows, k)), fmt.element.bits)
    scales = np.resize(np.arange(120, 135), (rows, k // oracle.BLOCK)).astype(np.uint8)
    product = multiply(kernels[name], name, rng, (rows, COLUMNS, k), a=(codes, scales))
    b = oracle.dequantize(*product.b, made.right).T
    expected = (b * product.a.max(1)[:, None] + 0.0).astype(product.c.dtype)
    oracle.assert_bitwise_equal(product.c, expected)


@pytest.mark.parametrize("formats", [W4A16, NVFP4])
def test_kept_floats_meet_their_own_weights(kernels, rng, formats):
    name, rows = formats + LOW_LINEAR, 256
    x = 2.0 ** rng.integers(-4, 5, rows)[:, None] * np.eye(rows)
    product = multiply(kernels[name], name, rng, (rows, COLUMNS, rows), x=x)
    b = oracle.dequantize(*product.b, Prefill.named(name).right)
    expected = (b.T * x.max(1)[:, None] + 0.0).astype(np.float32).astype(product.c.dtype)
    oracle.assert_bitwise_equal(product.c, expected)


@pytest.mark.parametrize("name", [FP8 + LOW_LINEAR, W4A6 + LOW_LINEAR, W4A16 + LOW_LINEAR])
def test_a_nan_reaches_exactly_its_row(kernels, rng, name):
    x = random_floats(rng, 40, 2 * STAGE_K)
    x[3, 77], x[21, 300] = np.nan, np.nan
    product = multiply(kernels[name], name, rng, (*x.shape[:1], 17, x.shape[1]), x=x)
    product.check()
    is_nan = np.broadcast_to(np.isin(np.arange(40), [3, 21])[:, None], (40, 17))
    oracle.assert_bitwise_equal(np.isnan(product.c), is_nan)


@pytest.mark.parametrize("name", KERNELS)
def test_no_vector_spills_and_no_scalar_in_the_loop(kernels, name):
    text = cdna4.compile_texts("prefill_wide")[name]
    for count in ("vgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    names = {instruction.name for instruction in loop_of(kernels[name])}
    assert not names & {"v_readlane_b32", "v_writelane_b32"}


@pytest.mark.parametrize("name", KERNELS)
def test_arguments_are_preloaded(name):
    text = cdna4.compile_texts("prefill_wide")[name]
    dwords = int(re.search(r"\.amdhsa_user_sgpr_kernarg_preload_length (\d+)", text)[1])
    assert dwords >= (11 if "bf16-" in name else 13)


@pytest.mark.parametrize("name", KERNELS)
def test_the_loop_multiplies_and_moves_a_stage(kernels, name):
    """A stage is tiles by two along K; the loop waits for a count, never for all loads."""
    made, m_tiles, n_tiles, slices = Prefill.named(name), rows_of(name) // 32, 4, 2
    loop = loop_of(kernels[name])
    names = [instruction.name for instruction in loop]
    tiles = m_tiles * n_tiles * slices
    if made.is_kept:
        assert names.count("v_mfma_f32_16x16x32_bf16") == 4 * tiles
        to = "bf16" if made.right == "mxfp4" else "f32"
        assert names.count(f"v_cvt_scalef32_pk_{to}_fp4") == 16 * n_tiles * slices
    else:
        assert sum(name.startswith("v_mfma_scale_f32_16x16x128") for name in names) == tiles
    a_pieces, b_pieces = (-(-size // 16) for size in made.k_bytes)
    has_sixes = made.left.startswith("mxfp6")
    whole_pieces = 0 if has_sixes else m_tiles * a_pieces
    whole_pieces += 0 if made.right.startswith("mxfp6") else n_tiles * b_pieces
    assert names.count("ds_read_b128") == whole_pieces * slices
    tiles_of_phase = 8 if made.is_kept else tiles // slices if has_sixes else 16
    assert names.count("s_barrier") == 2 * tiles // tiles_of_phase
    loads = m_tiles // 2 * a_pieces + 2 * b_pieces * slices
    assert sum(name in ("buffer_load_dwordx4", "buffer_load_dwordx3") for name in names) == loads
    waits = [i.mods["vmcnt"] for i in loop if i.name == "s_waitcnt" and "vmcnt" in i.mods]
    # By NVFP4 weights a slice is read at once: what a move has fetched stays in flight.
    least = loads // (2 * slices) if made.right == "nvfp4" else loads // slices - b_pieces
    assert waits and min(waits) >= least


@pytest.mark.parametrize(
    "name",
    [
        FP8 + MATMUL,
        W4A8 + MATMUL,
        FP8 + LOW_LINEAR,
        W4A6 + MATMUL,
        W6A6 + MATMUL,
        W4A16 + LOW_LINEAR,
        NVFP4 + LOW_LINEAR,
    ],
)
def test_lds_has_no_bank_conflict_in_the_steady_state(kernels, name):
    p = model(kernels[name], name, 256, 512, 4 * STAGE_K)
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts


@pytest.mark.parametrize(
    "name, busy",
    [
        (FP8 + MATMUL, 0.95),
        (W4A8 + MATMUL, 0.98),
        (FP8 + LINEAR, 0.94),
        (W4A8 + LOW_LINEAR, 0.85),
        (W4A6 + LINEAR, 0.7),
        (W4A6 + MATMUL, 0.7),
        (W4A16 + LOW_LINEAR, 0.93),
        (NVFP4 + LOW_LINEAR, 0.8),
    ],
)
def test_matrix_pipes_are_busy_in_the_model(kernels, name, busy):
    """Of 8192 x 8192 x 8192 the model runs one tile, with half of K."""
    p = model(kernels[name], name, 8192, 8192, 4096)
    assert p.loop.mfma_utilisation >= busy
    assert p.occupancy.waves_per_simd == 2
