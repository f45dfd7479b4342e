"""The CDNA4 prefill kernels, compiled and run in the simulator, against the oracle.

Every launch executes every workgroup, is checked for hazards and for accesses beyond the
operands, and finds NaN in all padding of scales.
"""

import re
from dataclasses import dataclass

import numpy as np
import pytest

import gfx950
import gfx950.timing
import oracle
from tests.cdna4 import support as cdna4
from tests.tiers import deep, tiered

STAGE_K = 256
COLUMNS = 256
"""Of C, of a workgroup."""
NUM_XCDS = 8
PAIR_ROWS = 32
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
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
NAME = re.compile(r"(linear|matmul)_m(\d)_(?:([a-z\d]+)_)?([a-z\d]+)_(none|[a-z]+\d+)t?")


@pytest.fixture(scope="module")
def texts():
    return cdna4.compile_texts("prefill")


@pytest.fixture(scope="module")
def kernels(texts):
    return {name: gfx950.parse(text) for name, text in texts.items()}


def rows_of(name):
    """Returns the rows of C of a workgroup."""
    return PAIR_ROWS * int(NAME.fullmatch(name)[2])


def launch_of(name, m, n, k):
    """Returns what the kernel's host code launches."""
    return cdna4.described(name, m, n, k)


@dataclass
class Workspace:
    """What a launch meets in; counters are words, a row for each crew."""

    memory: np.ndarray
    counters: np.ndarray
    scales: np.ndarray
    codes: np.ndarray

    @classmethod
    def of(cls, name, m, n, k, *, finished=0):
        """Returns a workspace whose first `finished` parts of each pair others have prepared."""
        found, crew = launch_of(name, m, n, k), cdna4.catalogue("prefill").crew
        memory = found.workspace()
        memory[found.cleared_bytes :] = 0xA5
        counters = memory[: found.cleared_bytes].view(np.uint32).reshape(-1, crew["words"])
        pairs = rows_of(name) // crew["pair_rows"]
        counters[:, :pairs] = finished
        counters[:, crew["finished_word"]] = pairs * finished
        scale_bytes = cdna4.round_up(m, PAIR_ROWS) * cdna4.round_up(k // oracle.BLOCK, 8)
        scales = memory[found.cleared_bytes :][:scale_bytes]
        codes = memory[len(memory) - m * k // 2 :] if name.startswith("linear") else memory[:0]
        return cls(memory, counters, scales, codes)

    def check(self, a):
        """Compares what workgroups handed over with plain codes and scales of activations."""
        stored = oracle.LAYOUTS["preshuffled_cdna4"]
        inside = stored.store(a[0], np.zeros_like(a[1]))[1].ravel() == 0
        expected = stored.store(*a)[1].ravel()
        assert not self.counters.any(), "counters are zero after a launch"
        np.testing.assert_array_equal(self.scales[inside], expected[inside])
        if self.codes.size:
            np.testing.assert_array_equal(self.codes, a[0].ravel())


@dataclass
class Product:
    """What a launch computed, from what."""

    c: np.ndarray
    a: tuple[np.ndarray, np.ndarray]
    b: tuple[np.ndarray, np.ndarray]
    bias: np.ndarray | None
    out: str
    run: gfx950.Result

    def check(self):
        """Compares C with the oracle's bound."""
        a, b = oracle.dequantize(*self.a), oracle.dequantize(*self.b)
        oracle.assert_matmul(self.c.astype(np.float64), a, b, self.out, self.bias)


def multiply(kernel, name, rng, shape, *, x=None, **options):
    """Launches a kernel on random operands, or on floats `x`; checks what workgroups shared."""
    m, n, k = shape
    op, _, source, out, bias_name = NAME.fullmatch(name).groups()
    if op == "linear":
        x = random_floats(rng, m, k) if x is None else x
        stored_a = [x.astype(cdna4.NUMPY_DTYPES[source])]
        a = oracle.quantize(stored_a[0].astype(np.float64))
    else:
        stored_a = a = random_operand(rng, m, k)
    b = random_operand(rng, n, k)
    bias = np.zeros(0, np.uint8)
    if bias_name != "none":
        bias = rng.standard_normal(n).astype(cdna4.NUMPY_DTYPES[bias_name])
    c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[out])
    found, workspace = launch_of(name, m, n, k), Workspace.of(name, m, n, k)
    args = found.bind(
        **dict(zip(("a", "a_scales"), stored_a, strict=False)),
        **dict(zip(("w_codes", "w_scales"), cdna4.poisoned_weights(*b), strict=True)),
        c=c, bias=bias, workspace=workspace.memory,
    )  # fmt: skip
    run = gfx950.run(kernel, found.grid, found.threads, args, **options).raise_on_hazards()
    workspace.check(a)
    return Product(c, a, b, bias.astype(np.float64) if bias.size else None, out, run)


def random_floats(rng, rows, k):
    """Draws floats; neighbouring blocks differ by up to 2**8."""
    exponents = np.repeat(rng.integers(-4, 5, (rows, k // oracle.BLOCK)), oracle.BLOCK, 1)
    return rng.standard_normal((rows, k)) * np.exp2(exponents)


def random_operand(rng, rows, k):
    """Draws plain codes and scales; the scales of neighbouring blocks differ by up to 2**8."""
    codes = rng.integers(0, 256, (rows, k // 2), np.uint8)
    return codes, rng.integers(118, 127, (rows, k // oracle.BLOCK)).astype(np.uint8)


@TIERED_MODES
@pytest.mark.parametrize("name", [name for name in KERNELS if not name.endswith("t")])
def test_one_tile_is_within_the_bound(kernels, rng, name, late):
    shape = (rows_of(name), COLUMNS, 2 * STAGE_K)
    multiply(kernels[name], name, rng, shape, late=late).check()


@deep
@MODES
@pytest.mark.parametrize("name", [name for name in KERNELS if name.endswith("t")])
def test_ragged_shapes_are_within_the_bound(kernels, rng, name, late):
    multiply(kernels[name], name, rng, (300, 520, 544), late=late).check()


@pytest.mark.parametrize(
    "shape",
    tiered([(1, 1, 32), (257, 17, 288), (33, 100, 2080)], first=[(1, 1, 32), (33, 100, 2080)]),
)
@pytest.mark.parametrize("name", [MATMUL_TAIL, LOW_MATMUL_TAIL, LINEAR_TAIL, LOW_LINEAR_TAIL])
def test_odd_shapes_are_within_the_bound(kernels, rng, name, shape):
    multiply(kernels[name], name, rng, shape).check()


@pytest.mark.parametrize("k", [256, 768, 1280])
def test_any_number_of_stages_is_within_the_bound(kernels, rng, k):
    multiply(kernels[MATMUL], MATMUL, rng, (64, 80, k)).check()


def test_every_tile_of_c_is_computed_once(kernels, rng):
    """Two bands of rows, the second one lower, on a grid that the XCDs do not divide."""
    rows = rows_of(MATMUL)
    m, n = 9 * rows + 1, COLUMNS + 1
    assert (m // rows + 1) * (n // COLUMNS + 1) % NUM_XCDS
    multiply(kernels[MATMUL], MATMUL, rng, (m, n, STAGE_K), check=False).check()


@pytest.mark.parametrize("rare", [np.inf, np.nan, -(2.0**125), 2.0**-130])
def test_rare_blocks_are_encoded_like_everywhere_else(kernels, rng, rare):
    """A float beyond the fast path in one block of each row; the other blocks are ordinary."""
    shape = m, _, k = (40, 16, 2 * STAGE_K)
    x = random_floats(rng, m, k)
    x[np.arange(m), rng.integers(0, k, m)] = rare
    multiply(kernels[LOW_LINEAR], LOW_LINEAR, rng, shape, x=x).check()


@pytest.mark.parametrize("name", tiered([MATMUL, LINEAR, LOW_LINEAR], first=[LOW_LINEAR]))
@pytest.mark.parametrize("order, late", [(0, False), pytest.param(1, True, marks=deep)])
def test_workgroups_of_a_team_may_meet_in_any_order(kernels, rng, name, order, late):
    """Two teams of three: every wave runs alone, and gives way to those of all workgroups."""
    shape = (rows_of(name) + 16, 2 * COLUMNS + 16, 3 * STAGE_K)
    options = {"lockstep": False, "order": order, "batch": NUM_XCDS, "late": late, "trace": True}
    product = multiply(kernels[name], name, rng, shape, **options)
    product.check()
    polls = [event for event in product.run.trace.events if is_poll(kernels[name], event.pc)]
    assert len(polls) > 6, "no workgroup had to wait for another"


def is_poll(kernel, pc):
    """Says whether an instruction looks at the counter of finished parts."""
    ins = kernel.instructions[pc]
    return ins.name == "global_load_dword" and "sc1" in ins.mods


@pytest.mark.parametrize("name", KERNELS)
def test_nothing_spills_and_arguments_are_preloaded(texts, name):
    text = texts[name]
    for count in ("vgpr_spill_count", "sgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    assert int(re.search(r"\.amdhsa_user_sgpr_kernarg_preload_length (\d+)", text)[1]) >= 13
    assert "scratch_" not in text


@pytest.mark.parametrize("name", KERNELS)
def test_the_loop_multiplies_and_moves_a_stage(kernels, name):
    """A stage is tiles by two along K; the loop waits for a count, never for all loads."""
    m_tiles, n_tiles, slices = rows_of(name) // PAIR_ROWS, 4, 2
    loop = loop_of(kernels[name])
    names = [instruction.name for instruction in loop]
    mfmas = sum(name.startswith("v_mfma_scale_f32_16x16x128") for name in names)
    assert mfmas == m_tiles * n_tiles * slices
    assert names.count("ds_read_b128") == (m_tiles + n_tiles) * slices
    phases = m_tiles * n_tiles * slices // 32
    assert names.count("s_barrier") == 2 * phases
    assert sum(name == "buffer_load_dwordx4" for name in names) == m_tiles // 2 + 2 * slices
    waits = [i.mods["vmcnt"] for i in loop if i.name == "s_waitcnt" and "vmcnt" in i.mods]
    assert waits and min(waits) >= m_tiles // 4 + 3


def loop_of(kernel):
    """Returns the instructions of the loop that holds the matrix instructions."""
    loops = [
        kernel.instructions[i.target : i.pc + 1]
        for i in kernel.instructions
        if i.target is not None and i.target <= i.pc
    ]
    return max(loops, key=lambda loop: sum(i.name.startswith("v_mfma") for i in loop))


@pytest.mark.parametrize("name", [MATMUL, LINEAR, LOW_LINEAR])
def test_lds_has_no_bank_conflict_in_the_steady_state(kernels, name):
    p = model(kernels[name], name, 256, 512, 4 * STAGE_K)
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts


def model(kernel, name, m, n, k):
    """Times a launch whose workgroups do equal shares of what their teams prepare."""
    op = NAME.fullmatch(name)[1]
    sizes = {
        "a": m * k // 2 if op == "matmul" else m * k * x_bytes(name), "a_scales": m * k // 32,
        "w_codes": n * k // 2, "w_scales": n * k // 32, "c": 2 * m * n, "bias": 0,
    }  # fmt: skip
    operands = {operand: np.zeros(size, np.uint8) for operand, size in sizes.items()}
    parts = cdna4.ceildiv(k, cdna4.catalogue("prefill").crew["part_k"][op])
    own = cdna4.ceildiv(parts, cdna4.ceildiv(n, COLUMNS))
    workspace = Workspace.of(name, m, n, k, finished=parts - own)
    found = launch_of(name, m, n, k)
    args = found.bind(**operands, workspace=workspace.memory)
    return gfx950.timing.profile(kernel, found.grid, found.threads, args)


def x_bytes(name):
    """Returns the bytes of an element of x."""
    return cdna4.NUMPY_DTYPES[NAME.fullmatch(name)[3]].itemsize


@pytest.mark.parametrize("name, busy", [(MATMUL, 0.9), (LINEAR, 0.9), (LOW_LINEAR, 0.58)])
def test_matrix_pipes_are_busy_in_the_model(kernels, name, busy):
    """8192 x 8192 x 8192, of which the model runs one tile."""
    p = model(kernels[name], name, 8192, 8192, 8192)
    assert p.loop.mfma_utilisation >= busy
    assert p.occupancy.waves_per_simd == 2
