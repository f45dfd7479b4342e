"""Floats by floats on CDNA4, bfloat16 or float16 on both sides, against the oracle.

Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands, which are plain.
"""

import re

import numpy as np
import pytest

import gfx950
import oracle
from gfx950.timing import profile
from tests.cdna4 import support as cdna4
from tests.cdna4.prefills import loop_of, random_floats
from tests.tiers import late_by_turns

BF16, F16 = "bf16-bf16/linear_m", "f16-f16/linear_m"
WHOLE = (
    f"{BF16}8_bfloat16_bfloat16_none",
    f"{BF16}4_bfloat16_bfloat16_none",
    f"{F16}8_float16_float16_none",
)
TAILS = (
    f"{BF16}8_bfloat16_float32_float32t",
    f"{F16}8_float16_bfloat16_bfloat16t",
    f"{F16}4_float16_float32_float16t",
)
STAGE_K, NUM_XCDS = 128, 8

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("floats")


def types_of(name):
    """Returns the names of the types of both sides, of the result and of the bias."""
    return re.fullmatch(r".*linear_m\d_([a-z\d]+)_([a-z\d]+)_([a-z]+\d*)t?", name).groups()


def bound(name, shape, a, b, c, bias):
    """Returns the launch of a kernel, and its arguments."""
    found = cdna4.described(name, *shape)
    return found, found.bind(a=a, w_codes=b, w_scales=np.zeros(0, np.uint8), c=c, bias=bias)


def multiply(kernels, name, shape, rng, *, a=None, b=None, **options):
    """Launches a kernel; compares C with the oracle's bound and returns it."""
    (m, n, k), (x, out, added) = shape, types_of(name)
    a = random_floats(rng, m, k) if a is None else a
    b = random_floats(rng, n, k) if b is None else b
    a, b = (side.astype(cdna4.NUMPY_DTYPES[x]) for side in (a, b))
    bias = np.zeros(0, np.uint8)
    if added != "none":
        bias = rng.standard_normal(n).astype(cdna4.NUMPY_DTYPES[added])
    c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[out])
    found, args = bound(name, shape, a, b, c, bias)
    gfx950.run(kernels[name], found.grid, found.threads, args, **options).raise_on_hazards()
    addend = bias.astype(np.float64) if bias.size else None
    left, right = (side.astype(np.float64) for side in (a, b))
    oracle.assert_matmul(c.astype(np.float64), left, right, out, addend)
    return c


@late_by_turns(name=WHOLE)
def test_one_tile_is_within_the_bound(kernels, rng, name, late):
    multiply(kernels, name, (256, 256, 3 * STAGE_K), rng, late=late)


@late_by_turns(
    name=TAILS,
    shape=[(300, 280, 544), (1, 1, 32), (257, 17, 288), (33, 100, 1184), (130, 260, 160)],
)
def test_odd_shapes_are_within_the_bound(kernels, rng, name, shape, late):
    multiply(kernels, name, shape, rng, late=late)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("name", WHOLE)
def test_any_number_of_stages_is_within_the_bound(kernels, rng, name, stages):
    multiply(kernels, name, (64, 80, stages * STAGE_K), rng)


@pytest.mark.parametrize("name", TAILS)
@pytest.mark.parametrize("order", [0, "reverse"])
def test_waves_need_not_run_in_step_and_sums_have_one_order(kernels, rng, name, order):
    a, b = random_floats(rng, 270, 544), random_floats(rng, 270, 544)
    shape, seeds = (270, 270, 544), (np.random.default_rng(1) for _ in range(2))
    options = {"lockstep": False, "order": order, "batch": NUM_XCDS, "late": True}
    oracle.assert_bitwise_equal(
        multiply(kernels, name, shape, next(seeds), a=a, b=b, **options),
        multiply(kernels, name, shape, next(seeds), a=a, b=b),
    )


@pytest.mark.parametrize("name", WHOLE)
def test_each_float_meets_its_own(kernels, rng, name):
    """A row for each element along K, all others zero: any other order would move it."""
    k = 2 * STAGE_K
    powers = np.exp2(rng.integers(-4, 5, k))
    b = random_floats(rng, 256, k).astype(cdna4.NUMPY_DTYPES[types_of(name)[0]])
    c = multiply(kernels, name, (k, 256, k), rng, a=np.diag(powers), b=b)
    expected = b.astype(np.float64).T * powers[:, None]
    oracle.assert_bitwise_equal(c + 0, (expected + 0.0).astype(c.dtype))


@pytest.mark.parametrize("name", TAILS)
def test_a_nan_reaches_exactly_its_row_or_column(kernels, rng, name):
    """Also one that lies where K ends: what lies behind is the next row."""
    m, n, k = 40, 144, 160
    a, b = random_floats(rng, m, k), random_floats(rng, n, k)
    a[3, 0], a[21, -1], b[17, 0], b[100, -1] = np.nan, np.inf, np.nan, np.nan
    b[:, -1] += b[:, -1] == 0
    c = multiply(kernels, name, (m, n, k), rng, a=a, b=b)
    is_nan = np.zeros((m, n), bool)
    is_nan[3], is_nan[:, [17, 100]] = True, True
    oracle.assert_bitwise_equal(np.isnan(c), is_nan)
    others = np.delete(c[21].astype(np.float64), [17, 100])
    assert np.isinf(others).all()


# What the compiler made of them


def test_the_catalogue_has_these_kernels(kernels):
    assert set(kernels) == {*WHOLE, *TAILS}


@pytest.mark.parametrize("name", [*WHOLE, *TAILS])
def test_the_loop_multiplies_and_moves_a_stage_without_a_spill(kernels, name):
    """As of eight bits, with two instructions for one: a stage is two slices of 64 along K."""
    text = cdna4.compile_texts("floats")[name]
    for count in ("vgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    loop = loop_of(kernels[name])
    names, short = [instruction.name for instruction in loop], name.split("-")[0]
    m_tiles, n_tiles, slices, pieces = int(name.partition("linear_m")[2][0]), 4, 2, 2
    tiles = m_tiles * n_tiles * slices
    assert names.count(f"v_mfma_f32_16x16x32_{short}") == pieces * tiles
    assert sum("mfma" in each for each in names) == pieces * tiles
    assert names.count("ds_read_b128") == pieces * (m_tiles + n_tiles) * slices
    assert names.count("s_barrier") == 2 * tiles // 16
    assert names.count("buffer_load_dwordx4") == (m_tiles // 2 + n_tiles) * slices
    assert not {"v_readlane_b32", "v_writelane_b32", "buffer_load_dword"} & set(names)
    waits = [i.mods["vmcnt"] for i in loop if i.name == "s_waitcnt" and "vmcnt" in i.mods]
    assert waits and min(waits) >= 4


@pytest.mark.parametrize("name, busy", [*zip(WHOLE, (0.97, 0.65, 0.97), strict=True)])
def test_matrix_pipes_are_busy_in_the_model(kernels, name, busy):
    """A tile of 4096 x 4096 x 8192."""
    m, n, k = 4096, 4096, 8192
    a, b, c = (np.zeros(shape, np.uint16) for shape in ((m, k), (n, k), (m, n)))
    found, args = bound(name, (m, n, k), a, b, c, np.zeros(0, np.uint8))
    p = profile(kernels[name], found.grid, found.threads, args)
    assert p.loop.mfma_utilisation >= busy
    assert p.occupancy.waves_per_simd == 2
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts
