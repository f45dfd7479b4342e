"""The CDNA4 prefill kernels, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup, is checked for hazards and for accesses beyond the
operands, and finds NaN in all padding of scales.
"""

import re

import numpy as np
import pytest

import gfx950
from tests.cdna4 import support as cdna4
from tests.cdna4.prefills import (
    COLUMNS,
    PAIR_ROWS,
    loop_of,
    model,
    multiply,
    random_floats,
    rows_of,
)
from tests.tiers import deep, late_by_turns, tiered

STAGE_K = 256
NUM_XCDS = 8
TIERED_MODES = pytest.mark.parametrize(
    "late", tiered([False, True], first=[False]), ids=["at_once", "late"]
)
MATMUL, MATMUL_TAIL = "matmul_m8_bfloat16_none", "matmul_m8_float32_float32t"
LOW_MATMUL, LOW_MATMUL_TAIL = "matmul_m4_bfloat16_bfloat16", "matmul_m4_bfloat16_nonet"
LINEAR, LINEAR_TAIL = "linear_m8_bfloat16_bfloat16_none", "linear_m8_bfloat16_float32_float32t"
WIDE_LINEAR = "linear_m8_float32_bfloat16_none"
LOW_LINEAR = "linear_m4_bfloat16_bfloat16_none"
LOW_LINEAR_TAIL = "linear_m4_float16_bfloat16_bfloat16t"
MATMULS = (MATMUL, MATMUL_TAIL, LOW_MATMUL, LOW_MATMUL_TAIL)
LINEARS = (LINEAR, LINEAR_TAIL, WIDE_LINEAR, LOW_LINEAR, LOW_LINEAR_TAIL)
KERNELS = MATMULS + LINEARS
FIRST = (MATMUL, LOW_MATMUL_TAIL, LINEAR_TAIL, LOW_LINEAR)
"""Those of the first tier: with these each operation meets each tile and each end of K."""


def text_of(name: str) -> str:
    """Returns the assembly of a kernel."""
    return cdna4.compile_texts("prefill" if name in FIRST else "prefill_types")[name]


def kernel_of(name: str) -> gfx950.Kernel:
    """Returns a kernel for the simulator."""
    return cdna4.compile_kernels("prefill" if name in FIRST else "prefill_types")[name]


@TIERED_MODES
@pytest.mark.parametrize(
    "name", tiered([name for name in KERNELS if not name.endswith("t")], first=FIRST)
)
def test_one_tile_is_within_the_bound(rng, name, late):
    shape = (rows_of(name), COLUMNS, 2 * STAGE_K)
    multiply(kernel_of(name), name, rng, shape, late=late).check()


@deep
@late_by_turns(name=[name for name in KERNELS if name.endswith("t")])
def test_ragged_shapes_are_within_the_bound(rng, name, late):
    multiply(kernel_of(name), name, rng, (300, 520, 544), late=late).check()


@pytest.mark.parametrize(
    "shape",
    tiered([(1, 1, 32), (257, 17, 288), (33, 100, 2080)], first=[(1, 1, 32), (33, 100, 2080)]),
)
@pytest.mark.parametrize(
    "name", tiered([MATMUL_TAIL, LOW_MATMUL_TAIL, LINEAR_TAIL, LOW_LINEAR_TAIL], first=FIRST)
)
def test_odd_shapes_are_within_the_bound(rng, name, shape):
    multiply(kernel_of(name), name, rng, shape).check()


@pytest.mark.parametrize("k", [256, 768, 1280])
def test_any_number_of_stages_is_within_the_bound(rng, k):
    multiply(kernel_of(MATMUL), MATMUL, rng, (64, 80, k)).check()


def test_every_tile_of_c_is_computed_once(rng):
    """Two bands of rows, the second one lower, on a grid that the XCDs do not divide."""
    rows = rows_of(MATMUL)
    m, n = 9 * rows + 1, COLUMNS + 1
    assert (m // rows + 1) * (n // COLUMNS + 1) % NUM_XCDS
    multiply(kernel_of(MATMUL), MATMUL, rng, (m, n, STAGE_K), check=False).check()


@pytest.mark.parametrize("rare", [np.inf, np.nan, -(2.0**125), 2.0**-130])
def test_rare_blocks_are_encoded_like_everywhere_else(rng, rare):
    """A float beyond the fast path in one block of each row; the other blocks are ordinary."""
    shape = m, _, k = (40, 16, 2 * STAGE_K)
    x = random_floats(rng, m, k)
    x[np.arange(m), rng.integers(0, k, m)] = rare
    multiply(kernel_of(LOW_LINEAR), LOW_LINEAR, rng, shape, x=x).check()


@pytest.mark.parametrize("name", tiered([MATMUL, LINEAR, LOW_LINEAR], first=[LOW_LINEAR]))
@pytest.mark.parametrize("order, late", [(0, False), pytest.param(1, True, marks=deep)])
def test_workgroups_of_a_team_may_meet_in_any_order(rng, name, order, late):
    """Two teams of three: every wave runs alone, and gives way to those of all workgroups."""
    shape = (rows_of(name) + 16, 2 * COLUMNS + 16, 3 * STAGE_K)
    options = {"lockstep": False, "order": order, "batch": NUM_XCDS, "late": late, "trace": True}
    product = multiply(kernel_of(name), name, rng, shape, **options)
    product.check()
    polls = [event for event in product.run.trace.events if is_poll(kernel_of(name), event.pc)]
    assert len(polls) > 6, "no workgroup had to wait for another"


def is_poll(kernel, pc):
    """Says whether an instruction looks at the counter of finished parts."""
    ins = kernel.instructions[pc]
    return ins.name == "global_load_dword" and "sc1" in ins.mods


@pytest.mark.parametrize("name", tiered(KERNELS, first=FIRST))
def test_nothing_spills_and_arguments_are_preloaded(name):
    text = text_of(name)
    for count in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    assert int(re.search(r"\.amdhsa_user_sgpr_kernarg_preload_length (\d+)", text)[1]) >= 13
    assert "scratch_" not in text


@pytest.mark.parametrize("name", tiered(KERNELS, first=FIRST))
def test_the_loop_multiplies_and_moves_a_stage(name):
    """A stage is tiles by two along K; the loop waits for a count, never for all loads."""
    m_tiles, n_tiles, slices = rows_of(name) // PAIR_ROWS, 4, 2
    loop = loop_of(kernel_of(name))
    names = [instruction.name for instruction in loop]
    mfmas = sum(name.startswith("v_mfma_scale_f32_16x16x128") for name in names)
    assert mfmas == m_tiles * n_tiles * slices
    assert names.count("ds_read_b128") == (m_tiles + n_tiles) * slices
    phases = m_tiles * n_tiles * slices // 32
    assert names.count("s_barrier") == 2 * phases
    assert sum(name == "buffer_load_dwordx4" for name in names) == m_tiles // 2 + 2 * slices
    waits = [i.mods["vmcnt"] for i in loop if i.name == "s_waitcnt" and "vmcnt" in i.mods]
    assert waits and min(waits) >= m_tiles // 4 + 3


@pytest.mark.parametrize("name", tiered([MATMUL, LINEAR, LOW_LINEAR], first=FIRST))
def test_lds_has_no_bank_conflict_in_the_steady_state(name):
    p = model(kernel_of(name), name, 256, 512, 4 * STAGE_K)
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts


@pytest.mark.parametrize(
    "name, busy",
    [(MATMUL, 0.9), pytest.param(LINEAR, 0.9, marks=deep), (LOW_LINEAR, 0.58)],
)
def test_matrix_pipes_are_busy_in_the_model(name, busy):
    """8192 x 8192 x 8192, of which the model runs one tile."""
    p = model(kernel_of(name), name, 8192, 8192, 8192)
    assert p.loop.mfma_utilisation >= busy
    assert p.occupancy.waves_per_simd == 2
