"""The CDNA4 prefill kernels, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup, is checked for hazards and for accesses beyond the
operands, and finds NaN in all padding of scales.
"""

import re

import numpy as np
import pytest

import cdna4_support as cdna4
import gfx950
import gfx950.timing
import oracle

STAGE_K = 256
THREADS = 512
NUM_XCDS = 8
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
KERNELS = (
    "matmul_preshuffled_bfloat16_none",
    "matmul_preshuffled_bfloat16_bfloat16t",
    "matmul_plain_bfloat16_none",
    "matmul_plain_float32_float32t",
)
LINEAR_KERNELS = (
    "linear_bfloat16_bfloat16_none",
    "linear_bfloat16_float32_float32t",
    "linear_float16_bfloat16_bfloat16t",
    "linear_float32_bfloat16_none",
)
ROWS = COLUMNS = 256
"""Of C, of a workgroup."""
WAVES = 8
TEAM_BYTES = 128
FINISHED_WORD = 16


@pytest.fixture(scope="module")
def texts():
    return cdna4.compile_texts("prefill")


@pytest.fixture(scope="module")
def kernels(texts):
    return {name: gfx950.parse(text) for name, text in texts.items()}


def grid_of(m, n):
    """Returns the workgroups: one a tile of C, rounded up to a multiple of the XCDs."""
    return cdna4.round_up(cdna4.ceildiv(m, ROWS) * cdna4.ceildiv(n, COLUMNS), NUM_XCDS)


def workspace_of(m, k, *, finished=0):
    """Returns the workspace of a linear, and its counters as words, a row for each team.

    The first `finished` groups of each wave count as encoded by other workgroups.
    """
    counter_bytes = cdna4.round_up(cdna4.ceildiv(m, ROWS) * TEAM_BYTES, 256)
    scale_bytes = cdna4.round_up(m, 32) * cdna4.round_up(k // oracle.BLOCK, 8)
    code_bytes = cdna4.round_up(m * k // 2, 256)
    workspace = np.full(counter_bytes + code_bytes + scale_bytes, 0xA5, np.uint8)
    workspace[:counter_bytes] = 0
    counters = workspace[:counter_bytes].view(np.uint32).reshape(-1, TEAM_BYTES // 4)
    counters[:, :WAVES] = finished
    counters[:, FINISHED_WORD] = WAVES * finished
    return workspace, counters


def multiply(kernel, name, rng, shape, **options):
    """Launches a kernel on random operands; returns C and what it is compared with."""
    m, n, k = shape
    op, source, out, bias_name = re.fullmatch(r"(\w+?)_(\w+?)_(\w+?)_(\w+?)t?", name).groups()
    if op == "linear":
        exponents = np.repeat(rng.integers(-4, 5, (m, k // oracle.BLOCK)), oracle.BLOCK, 1)
        values = rng.standard_normal((m, k)) * np.exp2(exponents)
        stored_a = [values.astype(cdna4.NUMPY_DTYPES[source])]
        a = oracle.quantize(stored_a[0].astype(np.float64))
    else:
        a = random_operand(rng, m, k)
        stored_a = a if source == "plain" else (a[0], cdna4.poisoned_weights(*a)[1])
    b = random_operand(rng, n, k)
    bias = np.zeros(0, np.uint8)
    if bias_name != "none":
        bias = rng.standard_normal(n).astype(cdna4.NUMPY_DTYPES[bias_name])
    c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[out])
    sizes = [np.int32(i) for i in (m, n, k)]
    workspace, counters = workspace_of(m, k)
    memory = [workspace] if op == "linear" else []
    args = [*stored_a, *cdna4.poisoned_weights(*b), c, *memory, *sizes, bias]
    gfx950.run(kernel, grid_of(m, n), THREADS, args, **options).raise_on_hazards()
    assert not counters.any(), "counters are zero after a launch"
    return c, (a, b, out, bias.astype(np.float64) if bias.size else None)


def random_operand(rng, rows, k):
    """Draws plain codes and scales; the scales of neighbouring blocks differ by up to 2**8."""
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    return codes, rng.integers(118, 127, (rows, k // oracle.BLOCK)).astype(np.uint8)


def assert_within_bound(c, problem):
    """Compares C with the oracle's bound."""
    a, b, out, bias = problem
    a, b = oracle.dequantize(*a), oracle.dequantize(*b)
    oracle.assert_matmul(c.astype(np.float64), a, b, out, bias)


@MODES
@pytest.mark.parametrize("name", KERNELS)
def test_one_tile_is_within_the_bound(kernels, rng, name, late):
    assert_within_bound(*multiply(kernels[name], name, rng, (256, 256, 512), late=late))


@MODES
@pytest.mark.parametrize("name", [name for name in KERNELS if name.endswith("t")])
def test_ragged_shapes_are_within_the_bound(kernels, rng, name, late):
    assert_within_bound(*multiply(kernels[name], name, rng, (300, 520, 544), late=late))


@pytest.mark.parametrize("shape", [(1, 1, 32), (257, 17, 288)])
def test_odd_shapes_are_within_the_bound(kernels, rng, shape):
    name = "matmul_plain_float32_float32t"
    assert_within_bound(*multiply(kernels[name], name, rng, shape))


@pytest.mark.parametrize("k", [256, 768, 1280])
def test_any_number_of_stages_is_within_the_bound(kernels, rng, k):
    name = "matmul_preshuffled_bfloat16_none"
    assert_within_bound(*multiply(kernels[name], name, rng, (64, 80, k)))


def test_every_tile_of_c_is_computed_once(kernels, rng):
    """Two bands of rows, the second one lower, on a grid that the XCDs do not divide."""
    name = "matmul_plain_bfloat16_none"
    m, n = 9 * ROWS + 1, COLUMNS + 1
    assert (m // ROWS + 1) * (n // COLUMNS + 1) % NUM_XCDS
    assert_within_bound(*multiply(kernels[name], name, rng, (m, n, STAGE_K), check=False))


@MODES
@pytest.mark.parametrize(
    "name, shape",
    [
        (LINEAR_KERNELS[0], (128, 512, 512)),
        (LINEAR_KERNELS[0], (32, 80, 768)),
        (LINEAR_KERNELS[1], (150, 520, 544)),
        (LINEAR_KERNELS[2], (1, 17, 96)),
        (LINEAR_KERNELS[3], (100, 260, 512)),
    ],
)
def test_linear_is_within_the_bound(kernels, rng, name, shape, late):
    assert_within_bound(*multiply(kernels[name], name, rng, shape, late=late))


@pytest.mark.parametrize("order", range(4))
def test_workgroups_of_a_team_may_meet_in_any_order(kernels, rng, order):
    """Two teams of three: every wave runs alone, and gives way to those of all workgroups."""
    name = LINEAR_KERNELS[0]
    shape = (ROWS + 16, 2 * COLUMNS + 16, 3 * STAGE_K)
    options = {"lockstep": False, "order": order, "batch": NUM_XCDS}
    assert_within_bound(*multiply(kernels[name], name, rng, shape, **options))


@pytest.mark.parametrize("name", KERNELS + LINEAR_KERNELS)
def test_nothing_spills_and_arguments_are_preloaded(texts, name):
    text = texts[name]
    for count in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    assert int(re.search(r"\.amdhsa_user_sgpr_kernarg_preload_length (\d+)", text)[1]) >= 13
    assert "scratch_" not in text


@pytest.mark.parametrize("name", KERNELS + LINEAR_KERNELS)
def test_the_loop_multiplies_and_moves_a_stage(kernels, name):
    """A stage is 8 x 4 tiles by two along K; the loop waits for a count, never for all loads."""
    loop = loop_of(kernels[name])
    names = [instruction.name for instruction in loop]
    assert sum(name.startswith("v_mfma_scale_f32_16x16x128") for name in names) == 64
    assert names.count("ds_read_b128") == 24
    assert names.count("s_barrier") == 4
    assert sum(name == "buffer_load_dwordx4" for name in names) == 8
    waits = [i.mods["vmcnt"] for i in loop if i.name == "s_waitcnt" and "vmcnt" in i.mods]
    assert waits and min(waits) >= 5


def loop_of(kernel):
    """Returns the instructions of the loop that holds the matrix instructions."""
    loops = [
        kernel.instructions[i.target : i.pc + 1]
        for i in kernel.instructions
        if i.target is not None and i.target <= i.pc
    ]
    return max(loops, key=lambda loop: sum(i.name.startswith("v_mfma") for i in loop))


def test_lds_has_no_bank_conflict_in_the_steady_state(kernels):
    for name in (KERNELS[0], LINEAR_KERNELS[0]):
        p = model(kernels[name], name, 256, 512, 4 * STAGE_K)
        assert p.lds_cycles and not p.lds_conflicts, (name, p.lds_conflicts)


def model(kernel, name, m, n, k):
    """Times a launch of a matmul with preshuffled scales, or of a linear."""
    op = name.partition("_")[0]
    sizes_of_a = [m * k // 2, m * k // 32] if op == "matmul" else [2 * m * k]
    sizes = [*sizes_of_a, n * k // 2, n * k // 32, 2 * m * n]
    args = [np.zeros(size, np.uint8) for size in sizes]
    if op == "linear":
        stages = cdna4.ceildiv(k, STAGE_K)
        own = cdna4.ceildiv(stages, cdna4.ceildiv(n, COLUMNS))
        args.append(workspace_of(m, k, finished=stages - own)[0])
    args += [*map(np.int32, (m, n, k)), np.zeros(0, np.uint8)]
    return gfx950.timing.profile(kernel, grid_of(m, n), THREADS, args)


@pytest.mark.parametrize("name, busy", [(KERNELS[0], 0.88), (LINEAR_KERNELS[0], 0.88)])
def test_matrix_pipes_are_busy_in_the_model(kernels, name, busy):
    """8192 x 8192, of which the model runs one tile; K is a part of it."""
    p = model(kernels[name], name, 8192, 8192, 4096)
    assert p.loop.mfma_utilisation >= busy
    assert p.occupancy.waves_per_simd == 2
