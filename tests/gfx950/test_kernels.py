"""Kernels that others wrote and compiled, in the simulator: right, without a finding, and fast.

MAX's kernels are compiled when the tests run; Triton's are data (data). Each runs at
once and as late as its waits allow, at full tiles and at ragged M.
"""

from __future__ import annotations

import math
import time

import ml_dtypes
import numpy as np
import pytest

import gfx950
from tests.gfx950.support import (
    TILINGS,
    Case,
    compile_mojo,
    corpus_case,
    corpus_names,
    make_matrix,
    max_case,
)
from tests.tiers import tiered

MODES = [{}, {"late": True}]
SCHEDULES = [
    {"lockstep": False, "order": seed, "late": late} for seed in (1, 2) for late in (False, True)
]


@pytest.mark.deep
@pytest.mark.parametrize("m", [None, 5, 77])
@pytest.mark.parametrize("tiling", TILINGS, ids=lambda t: t.label)
def test_max_matmul_is_right_at_every_tiling(tiling, m):
    case = max_case(tiling, m)
    for options in MODES:
        c, result = case.launch(**options)
        assert result.hazards == []
        assert case.within_bound(c)


@pytest.mark.deep
@pytest.mark.parametrize("options", SCHEDULES, ids=str)
@pytest.mark.parametrize("tiling", TILINGS[:5], ids=lambda t: t.label)
def test_max_matmul_gives_the_same_bits_in_any_order_of_waves(tiling, options):
    case = max_case(tiling)
    first, _ = case.launch()
    again, result = case.launch(**options)
    assert result.hazards == []
    assert np.array_equal(first, again)


@pytest.mark.parametrize(
    "shape", tiered([(64, 64, 256), (40, 72, 512), (16, 16, 64)], first=[(16, 16, 64)]), ids=str
)
@pytest.mark.parametrize("name", corpus_names())
def test_triton_gemms_are_right(name, shape):
    case = corpus_case(name, *shape)
    for options in [*MODES, SCHEDULES[3]]:
        c, result = case.launch(**options)
        assert result.hazards == []
        assert case.within_bound(c)


@pytest.mark.deep
@pytest.mark.parametrize(
    ("index", "format_", "out", "m"),
    [(0, "bf16", "bf16", 256), (1, "fp8_e4m3", "f32", 128)],
)
def test_ping_pong_races_are_found_although_lockstep_results_are_right(index, format_, out, m):
    """MAX's ping-pong loads into LDS that other waves may still be reading.

    Nothing but the latency of the load keeps the two apart: the reads are waited for only
    after the next barrier. The results are right as long as loads are slower than reads.
    """
    kernel = gfx950.parse(compile_mojo("max_ping_pong.mojo")[index])
    case = Case("ping-pong", kernel, (1, 1), 512, (format_, format_), out, (m, 256, 512))
    a, b = case.operands
    for options in MODES:
        c = np.zeros((m, 256), ml_dtypes.bfloat16 if out == "bf16" else np.float32)
        arguments = [(a.codes, np.int64(m)), b.codes, (c, np.int64(m))]
        result = gfx950.run(kernel, case.grid, case.block, arguments, **options)
        assert case.within_bound(c.astype(np.float64))
        assert result.hazards
        for hazard in result.hazards:
            assert hazard.kind == "race"
            assert hazard.text.startswith("buffer_load") and hazard.text.endswith("lds")
            assert "after the read of wave" in hazard.reason


@pytest.mark.deep
def test_ping_pong_reads_beyond_a_ragged_matrix():
    """The descriptor of MAX's ping-pong kernel covers whole tiles: a fault at ragged M."""
    kernel = gfx950.parse(compile_mojo("max_ping_pong.mojo")[0])
    rng = np.random.default_rng(3)
    a, b = make_matrix("bf16", 70, 512, rng), make_matrix("bf16", 256, 512, rng)
    c = np.zeros((70, 256), ml_dtypes.bfloat16)
    arguments = [(a.codes, np.int64(70)), b.codes, (c, np.int64(70))]
    with pytest.raises(gfx950.SimulationError, match=r"buffer_load.* of argument 0"):
        gfx950.run(kernel, 1, 512, arguments)


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize(("index", "dtype"), [(0, ml_dtypes.bfloat16), (1, np.float32)])
def test_max_quantizer_gives_the_published_codes(index, dtype, options, rng):
    count = 2048
    spread = np.exp2(rng.integers(-20, 20, count // 32).repeat(32))
    x = (rng.standard_normal(count) * spread).astype(dtype)
    codes, scales = np.zeros(count // 2, np.uint8), np.zeros(count // 32, np.uint8)
    text = compile_mojo("probes.mojo")[index]
    assert gfx950.run(text, 1, 512, [codes, scales, x, count], **options).hazards == []

    blocks = x.astype(np.float64).reshape(-1, 32)
    largest = np.abs(blocks).max(1).astype(np.float32).view(np.uint32)
    exponents = ((largest + 0x200000) >> 23).astype(int) - 2
    assert (scales == exponents).all()
    scaled = np.clip(blocks / 2.0 ** (exponents - 127)[:, None], -6, 6)
    nibbles = scaled.astype(ml_dtypes.float4_e2m1fn).view(np.uint8).reshape(-1, 2) & 15
    assert (codes == nibbles[:, 0] | nibbles[:, 1] << 4).all()


@pytest.mark.parametrize("index", [2, 5], ids=["loaded", "preloaded"])
@pytest.mark.parametrize("options", MODES, ids=str)
def test_float_functions_of_the_mojo_library(index, options, rng):
    x = (rng.standard_normal(200) * 3).astype(np.float32)
    y = np.zeros((200, 8), np.float32)
    kernel = gfx950.parse(compile_mojo("probes.mojo")[index])
    assert (kernel.preload_dwords > 0) == (index == 5)
    assert gfx950.run(kernel, 2, 128, [x, y, 200], **options).hazards == []
    wide = x.astype(np.float64)
    size = np.abs(wide)
    expected = [np.exp(wide), np.log(size), np.sqrt(size), np.tanh(wide), 1 / wide, wide / 3,
                np.sin(wide), np.vectorize(math.erf)(wide)]  # fmt: skip
    error = np.abs(y.T / np.array(expected) - 1).max(1)
    # The library's own polynomials are good to about 3e-6; sin loses accuracy near its zeros.
    assert (error < [3e-6] * 6 + [1e-4, 3e-6]).all()
    assert (error[[2, 4, 5]] < 2.0**-23).all()


@pytest.mark.parametrize("options", MODES, ids=str)
def test_integer_division_and_wave_reductions(options, rng):
    x = rng.integers(-(2**31), 2**31, 200).astype(np.int32)
    y = np.zeros((200, 4), np.int32)
    texts = compile_mojo("probes.mojo")
    assert gfx950.run(texts[3], 2, 128, [x, y, 200], **options).hazards == []
    wide, d = x.astype(np.int64), np.arange(200) % 13 + 1
    expected = np.stack([wide // d, wide % d, wide * d >> 7, wide // d], 1)
    assert (y == expected.astype(np.int32)).all()

    values = rng.standard_normal(256).astype(np.float32)
    reduced = np.zeros((256, 2), np.float32)
    assert gfx950.run(texts[4], 2, 128, [values, reduced], **options).hazards == []
    waves = values.reshape(4, 64)
    total = np.repeat(waves.astype(np.float64).sum(1), 64)
    bound = 64 * 2.0**-24 * np.repeat(np.abs(waves).sum(1), 64)
    assert (np.abs(reduced[:, 0] - total) <= bound).all()
    assert (reduced[:, 1] == np.repeat(waves.max(1), 64)).all()


@pytest.mark.parametrize("options", MODES, ids=str)
def test_arrays_in_private_memory(options, rng):
    x, y = rng.integers(0, 1000, (20, 64)).astype(np.int32), np.zeros((64, 16), np.int32)
    kernel = gfx950.parse(compile_mojo("probes.mojo")[6])
    assert kernel.scratch_bytes >= 800
    assert gfx950.run(kernel, 1, 64, [x, y, 20], **options).hazards == []
    counts = np.full((64, 128), 3)
    for step, row in enumerate(x):
        counts[np.arange(64), row & 127] += step
    assert (y == counts[np.arange(64)[:, None], (x[0][:, None] + np.arange(16)) & 127]).all()


@pytest.mark.deep
def test_checked_runs_are_fast_enough_for_ci():
    """The promised times of a core, after warm-up and with all checks on."""
    for tiling, seconds in ((TILINGS[0], 2), (TILINGS[5], 10), (TILINGS[6], 10)):
        case = max_case(tiling)
        case.launch()
        start = time.process_time()
        case.launch()
        assert time.process_time() - start < seconds


@pytest.mark.deep
def test_a_trace_tells_what_each_wave_did():
    case = max_case(TILINGS[0])
    _, result = case.launch(trace=True)
    trace = result.trace
    assert trace.wave_numbers() == [0, 1, 2, 3]
    for wave in trace.wave_numbers():
        steps = list(trace.wave(wave))
        assert steps[-1].instruction.name == "s_endpgm"
        matrix = [s for s in steps if s.instruction.name.startswith("v_mfma")]
        assert len(matrix) == 16 * 1024 // 128
        reads = [s for s in steps if s.instruction.name == "ds_read_b128"]
        assert all(s.lds_bytes == 16 and s.lds_addr.shape == (64, 1) for s in reads)
        loads = [s for s in steps if s.instruction.name == "buffer_load_dwordx4"]
        assert all(s.global_bytes == 16 and s.global_addr.shape == (64,) for s in loads)
    assert result.wave_instructions == sum(len(e.waves) for e in trace.events)
