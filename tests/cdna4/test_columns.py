"""Codes of FP8 that lie column by column on both sides, on CDNA4, against the oracle.

Activations are [K, M] and weights [K, N] in memory, with float32 scales of 1 x 128 and 128 x 128.
Every launch executes every workgroup and is checked for hazards and for accesses beyond the
operands.
"""

import re

import numpy as np
import pytest

import gfx950
import oracle
from gfx950.timing import profile
from tests.cdna4 import support as cdna4
from tests.cdna4.prefills import loop_of
from tests.cdna4.test_fp8 import (
    LOW_MATMUL,
    LOW_TAIL,
    MATMUL,
    SCALE_ROUNDINGS,
    TAIL,
    operand,
)
from tests.tiers import late_by_turns

FORMATS = "fp8_block", "fp8_block_2d"
PREFIX = "fp8_block-fp8_block_2d-columns/"
KERNELS = (MATMUL, LOW_MATMUL, TAIL, LOW_TAIL)
STAGE_K = 256

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def kernels():
    return cdna4.compile_kernels("columns")


def multiply(kernels, name, shape, rng, *, a=None, b=None, **options):
    """Launches a kernel; compares C with the oracle's bound and returns it."""
    m, n, k = shape
    a = operand(rng, m, k, FORMATS[0]) if a is None else a
    b = operand(rng, n, k, FORMATS[1]) if b is None else b
    out, bias_name = re.fullmatch(r"matmul_m\d_([a-z\d]+)_(none|[a-z]+\d+)t?", name).groups()
    bias = np.zeros(0, np.uint8)
    if bias_name != "none":
        bias = rng.standard_normal(n).astype(cdna4.NUMPY_DTYPES[bias_name])
    c = np.full((m, n), np.nan, cdna4.NUMPY_DTYPES[out])
    found = cdna4.described(PREFIX + name, m, n, k)
    by_columns = (np.ascontiguousarray(codes.T) for codes in (a[0], b[0]))
    args = found.bind(
        **dict(zip(("a", "w_codes"), by_columns, strict=True)),
        a_scales=a[1], w_scales=b[1], c=c, bias=bias,
    )  # fmt: skip
    kernel = kernels[PREFIX + name]
    gfx950.run(kernel, found.grid, found.threads, args, **options).raise_on_hazards()
    values = [oracle.dequantize(*part, fmt) for part, fmt in zip((a, b), FORMATS, strict=True)]
    addend = bias.astype(np.float64) if bias.size else None
    oracle.assert_matmul(
        c.astype(np.float64), *values, out, addend, scale_roundings=SCALE_ROUNDINGS
    )
    return c


@late_by_turns(
    kernel=[
        (MATMUL, (256, 256, 768)),
        (MATMUL, (272, 304, 2304)),
        (LOW_MATMUL, (128, 256, 512)),
        (LOW_MATMUL, (144, 272, 256)),
        (TAIL, (304, 288, 544)),
        (LOW_TAIL, (144, 288, 416)),
    ],
)
def test_tiles_are_within_the_bound(kernels, rng, kernel, late):
    name, shape = kernel
    multiply(kernels, name, shape, rng, late=late)


@pytest.mark.parametrize("shape", [(16, 16, 32), (272, 32, 288), (48, 112, 1184), (144, 272, 160)])
@pytest.mark.parametrize("name", [TAIL, LOW_TAIL])
def test_any_number_of_pieces_and_blocks_is_within_the_bound(kernels, rng, name, shape):
    multiply(kernels, name, shape, rng)


@pytest.mark.parametrize("name", [TAIL, LOW_TAIL])
@pytest.mark.parametrize("order, late", [(0, True), (1, False), ("reverse", True)])
def test_waves_need_not_run_in_step(kernels, rng, name, order, late):
    multiply(kernels, name, (272, 288, 544), rng, lockstep=False, order=order, late=late)


@pytest.mark.parametrize("name", [MATMUL, LOW_MATMUL])
def test_each_code_meets_its_own(kernels, rng, name):
    """A row for each element along K, all others zero: any other order would move it."""
    rows = k = STAGE_K
    fmt = oracle.FORMATS[FORMATS[0]]
    codes = fmt.element.encode(np.eye(rows, k))
    scales = np.float32(2.0) ** np.float32(np.arange(rows)[:, None] % 9 - np.arange(k // 128))
    b = operand(rng, 256, k, FORMATS[1])
    c = multiply(kernels, name, (rows, 256, k), rng, a=(codes, scales), b=b)
    a = oracle.dequantize(codes, scales, FORMATS[0])
    expected = oracle.round_to(a @ oracle.dequantize(*b, FORMATS[1]).T, "bfloat16")
    oracle.assert_bitwise_equal(c.astype(np.float64) + 0.0, expected + 0.0)


@pytest.mark.parametrize("name", [TAIL, LOW_TAIL])
def test_a_nan_reaches_exactly_its_row_or_column(kernels, rng, name):
    """What lies beyond the last row is the next line, with this NaN."""
    a, b = operand(rng, 32, 544, FORMATS[0]), operand(rng, 144, 544, FORMATS[1])
    special = oracle.FORMATS[FORMATS[0]].element.special_codes[-1]
    a[0][0, 70], b[0][21, 16], a[1][3, -1] = special, special, np.nan
    c = multiply(kernels, name, (32, 144, 544), rng, a=a, b=b)
    is_nan = np.isin(np.arange(32), [0, 3])[:, None] | np.isin(np.arange(144), [21])
    oracle.assert_bitwise_equal(np.isnan(c), is_nan)


# What the compiler made of them


@pytest.mark.parametrize("name", KERNELS)
def test_fragments_come_from_transposing_reads_alone(kernels, name):
    text = cdna4.compile_texts("columns")[PREFIX + name]
    for count in ("vgpr_spill_count", "private_segment_fixed_size"):
        assert re.search(rf"\.{count}:\s+0\n", text), count
    loop = [instruction.name for instruction in loop_of(kernels[PREFIX + name])]
    m_tiles, n_tiles, slices = int(name[8]), 4, 2
    assert loop.count("v_mfma_f32_16x16x128_f8f6f4") == m_tiles * n_tiles * slices
    assert loop.count("ds_read_b64_tr_b8") == 4 * (m_tiles + n_tiles) * slices
    assert "ds_read_b128" not in loop


@pytest.mark.parametrize("name, busy", [(MATMUL, 0.72), (LOW_MATMUL, 0.5)])
def test_matrix_pipes_are_busy_in_the_model(kernels, name, busy):
    """A tile of 8192 x 8192 x 8192."""
    m = n = k = 8192
    sizes = {"a": m * k, "a_scales": 4 * m * 64, "w_codes": n * k, "w_scales": 4 * n * 64}
    operands = {operand: np.zeros(size, np.uint8) for operand, size in sizes.items()}
    found = cdna4.described(PREFIX + name, m, n, k)
    args = found.bind(**operands, c=np.zeros((m, n), np.uint16), bias=np.zeros(0, np.uint8))
    p = profile(kernels[PREFIX + name], found.grid, found.threads, args)
    assert p.loop.mfma_utilisation >= busy
    assert p.lds_cycles and not p.lds_conflicts, p.lds_conflicts
