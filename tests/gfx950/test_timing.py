"""Claims about the gfx950 timing model: published facts it must reproduce, and its own rules.

Most tests hand the model a trace that was written down rather than executed, so that each
claim depends on the model alone. test_cli.py times compiled kernels.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from gfx950.isa import asm
from gfx950.machine.run import run
from gfx950.machine.trace import Event, Trace
from gfx950.memory.islands import FIRST_ISLAND, ISLAND_BITS
from gfx950.timing import profile, simulate
from gfx950.timing.conflicts import access_cycles, phases
from gfx950.timing.grid import LoadCount, occupancy, place
from gfx950.timing.parameters import VARIANTS, Machine, variants
from gfx950.timing.steps import mfma_passes
from tests.gfx950.support import compile_mojo, kernel_text

DATA = Path(__file__).parent / "data"
LANE = np.arange(64)
MACHINE = Machine()
CUS = MACHINE.num_cus


def lds_cost(address, num_bytes, is_write=False, active=None):
    """(cycles, cycles without conflicts) of one wave's access."""
    active = np.ones(64, bool) if active is None else active
    banks = MACHINE.lds_write_banks if is_write else MACHINE.lds_banks
    cycles, free = access_cycles(address[None], active[None], num_bytes, banks, is_write=is_write)
    return int(cycles[0]), int(free[0])


def kernel_of(body, vgprs=128, lds=0, sgprs=""):
    text = f"""
k:
{body}
	s_endpgm
.Lfunc_end0:
	.amdhsa_kernel k
		.amdhsa_next_free_vgpr {vgprs}
		.amdhsa_next_free_sgpr 32
		.amdhsa_accum_offset {vgprs}
		.amdhsa_group_segment_fixed_size {lds}
	.end_amdhsa_kernel
"""
    return asm.parse(text)


def traced(body, *, waves=1, trips=1, grid=CUS, groups=(0,), address=None, **kernel_options):
    """Writes down what `waves` waves do that all run `body`, its loop `trips` times.

    `address(group, wave, pc)` gives lane addresses of memory instructions.
    """
    kernel = kernel_of(body, **kernel_options)
    order, pc, left = [], 0, trips - 1
    while pc < len(kernel.instructions):
        order.append(pc)
        ins = kernel.instructions[pc]
        taken = ins.target is not None and left > 0
        left -= taken
        pc = ins.target if taken else pc + 1
    trace = Trace(kernel, (grid, 1, 1), (64 * waves, 1, 1), waves, list(groups))
    numbers = np.array([g * waves + w for g in groups for w in range(waves)])
    everyone = np.ones((len(numbers), 64), bool)
    for pc in order:
        event = Event(pc, numbers, everyone)
        name = kernel.instructions[pc].name
        if name.startswith(("global_", "buffer_")):
            event.global_bytes = 16 if name.endswith("x4") else 4
            event.global_addr = np.array([address(n // waves, n % waves, pc) for n in numbers])
            if "lds" in kernel.instructions[pc].mods:
                event.lds_addr = np.zeros((len(numbers), 64, 1), int)
        if name.startswith("ds_"):
            event.lds_bytes = 16 if name.endswith("b128") else 4
            event.lds_addr = np.array([address(n // waves, n % waves, pc) for n in numbers])
            event.lds_addr = event.lds_addr[..., None]
        trace.events.append(event)
    return trace


def looped(lines):
    return ".L0:\n" + "\n".join(lines) + "\n\ts_cbranch_scc1 .L0"


def mfmas(op, registers, count, mods=""):
    tiles = [f"v[{i * registers}:{(i + 1) * registers - 1}]" for i in range(count)]
    return [f"\t{op} {tile}, v[64:71], v[72:79], {tile} {mods}" for tile in tiles]


FP4 = "cbsz:4 blgp:4"
PEAKS = [
    ("v_mfma_f32_16x16x128_f8f6f4", 4, FP4, 10.07),
    ("v_mfma_f32_32x32x64_f8f6f4", 16, FP4, 10.07),
    ("v_mfma_f32_16x16x128_f8f6f4", 4, "cbsz:2 blgp:4", 10.07),
    ("v_mfma_f32_16x16x128_f8f6f4", 4, "", 5.03),
    ("v_mfma_f32_32x32x64_f8f6f4", 16, "cbsz:4", 5.03),
    ("v_mfma_f32_16x16x32_bf16", 4, "", 2.52),
    ("v_mfma_f32_32x32x16_f16", 16, "", 2.52),
    ("v_mfma_f32_16x16x4_f32", 4, "", 0.157),
]


@pytest.mark.parametrize("op, registers, mods, peak_pflops", PEAKS)
def test_a_loop_of_independent_mfmas_reaches_the_published_peak(op, registers, mods, peak_pflops):
    body = looped(mfmas(op, registers, 4, mods) * 32)
    machine = variants(MACHINE)["latency"]
    result = simulate(traced(body, waves=4, trips=4), machine=machine)
    assert result.loop.mfma_utilisation > 0.99
    pflops = result.flops / result.kernel_us * 1e-9
    assert pflops == pytest.approx(peak_pflops, rel=0.02)


@pytest.mark.parametrize("op, registers, mods, busy_ghz", [
    ("v_mfma_f32_16x16x128_f8f6f4", 4, FP4, MACHINE.busy_fp4_ghz),
    ("v_mfma_f32_32x32x64_f8f6f4", 16, "cbsz:4", MACHINE.busy_fp8_ghz),
    ("v_mfma_f32_16x16x32_bf16", 4, "", MACHINE.busy_fp16_ghz),
])  # fmt: skip
def test_busy_pipes_hold_the_clock_down(op, registers, mods, busy_ghz):
    """As far as they are busy over the launch, of which a launch's cost is a part."""
    short, long = (
        simulate(traced(looped(mfmas(op, registers, 4, mods) * 32), waves=4, trips=trips))
        for trips in (1, 20)
    )
    assert short.machine.clock_ghz == MACHINE.clock_ghz > long.machine.clock_ghz > busy_ghz
    fallen = MACHINE.peak_ghz - (MACHINE.peak_ghz - busy_ghz) * long.mfma_share
    assert long.machine.clock_ghz == pytest.approx(fallen, rel=0.03)
    no_pipes = simulate(traced("\tv_mov_b32_e32 v0, v1\n" * 64, waves=4))
    assert no_pipes.machine == MACHINE


def test_an_accumulation_chain_runs_back_to_back():
    op = "v_mfma_f32_16x16x128_f8f6f4"
    result = simulate(traced(looped(mfmas(op, 4, 1, FP4) * 64), waves=4, trips=2))
    assert result.loop.mfma_utilisation > 0.97
    assert "mfma_result" not in result.stalls


@pytest.mark.parametrize("op, registers, cycles", [
    ("v_mfma_f32_16x16x128_f8f6f4", 4, 4 * (1 + 12)),
    ("v_mfma_f32_16x16x32_bf16", 4, 4 * (1 + 8)),
    ("v_mfma_f32_32x32x64_f8f6f4", 16, 4 * (1 + 20)),
])  # fmt: skip
def test_a_valu_read_of_an_mfma_result_waits(op, registers, cycles):
    body = mfmas(op, registers, 1)[0] + "\n\tv_mov_b32_e32 v100, v0"
    spans = simulate(traced(body)).spans
    assert spans[1].start - spans[0].start == cycles


def test_an_mfma_shape_in_no_table_raises():
    ins = asm.parse_instruction("v_mfma_f32_64x64x7_bf16 v[0:3], v[4:5], v[6:7], v[0:3]")
    with pytest.raises(ValueError, match="no passes"):
        mfma_passes(ins)


@pytest.mark.parametrize("stride_dwords, ways", [(1, 1), (2, 2), (4, 4), (8, 8), (3, 1), (64, 64)])
def test_strided_dword_reads_conflict_as_the_banks_say(stride_dwords, ways):
    assert lds_cost(LANE * 4 * stride_dwords, 4) == (ways, 1)


@pytest.mark.parametrize(
    "num_bytes, is_write", [(n, w) for n in (1, 2, 4, 8, 12, 16) for w in (0, 1)]
)
def test_every_lane_is_in_exactly_one_phase(num_bytes, is_write):
    assert sorted(phases(num_bytes, bool(is_write)).ravel()) == list(range(64))


@pytest.mark.parametrize("num_bytes, read, write", [(4, 1, 2), (8, 2, 4), (16, 4, 8)])
def test_contiguous_accesses_run_at_the_published_bandwidth(num_bytes, read, write):
    assert lds_cost(LANE * num_bytes, num_bytes) == (read, read)
    assert lds_cost(LANE * num_bytes, num_bytes, is_write=True) == (write, write)


def test_lanes_on_one_dword_are_served_together():
    assert lds_cost(LANE * 0, 4) == (1, 1)


def test_inactive_lanes_cause_no_conflict():
    assert lds_cost(LANE * 256, 4) == (64, 1)
    assert lds_cost(LANE * 256, 4, active=LANE < 1) == (1, 1)


def wide_row_address(quarter_step):
    """Lane l reads 16 bytes of quarter l/16 of the bf16 row l%16, rows of 256 bytes."""
    return (LANE % 16) * 256 + (LANE // 16) * 64 + quarter_step * 16


@pytest.mark.parametrize("step", range(4))
def test_the_swizzle_for_256_byte_rows_removes_all_conflicts(step):
    plain = wide_row_address(step)
    swizzled = plain ^ ((plain >> 4 & 0x30) | (plain >> 3 & 0x80))
    assert lds_cost(plain, 16) == (32, 4)
    assert lds_cost(swizzled, 16) == (4, 4)


@pytest.mark.parametrize("half", (0, 1))
def test_the_xor_for_128_byte_rows_removes_all_conflicts(half):
    row, granule = LANE % 16, LANE // 16 + 4 * half
    plain = row * 128 + granule * 16
    swizzled = row * 128 + (granule ^ (row >> 1 & 7)) * 16
    assert lds_cost(plain, 16) == (16, 4)
    assert lds_cost(swizzled, 16) == (4, 4)


def test_lds_reads_settle_at_one_b128_per_simd_every_16_cycles():
    """The published steady state; the first 8 of a SIMD pair enter its FIFO at issue rate."""
    body = "\n".join(["\tds_read_b128 v[0:3], v8"] * 64)
    result = simulate(traced(body, waves=4, lds=8192, address=lambda g, w, pc: LANE * 16))
    starts = [s.start for s in result.spans if s.kind == "lds" and s.wave == 0]
    assert np.diff(starts[:4]).tolist() == [4, 4, 4]
    assert np.diff(starts[32:]).mean() == pytest.approx(16, rel=0.05)


def test_conflicts_are_named_by_instruction():
    body = "\tds_read_b128 v[0:3], v8\n\tds_read_b128 v[4:7], v8 offset:16\n\ts_waitcnt lgkmcnt(0)"
    conflicted = {0: wide_row_address(0), 1: LANE * 16}
    result = simulate(traced(body, lds=8192, address=lambda g, w, pc: conflicted[pc]))
    assert result.lds_conflicts == {"ds_read_b128 v[0:3], v8": 28}
    assert result.lds_cycles == 32 + 4


def island(number, offset=0):
    return (number << ISLAND_BITS) + offset


def loads_of(group, wave, pc):
    return island(20, (group * 8 + wave) * 65536 + pc * 1024) + LANE * 16


def loads_of_one_line(group, wave, pc):
    return island(20) + LANE * 0


def test_a_cold_load_costs_an_hbm_round_trip_and_a_second_one_hits_l1():
    body = ("\tglobal_load_dwordx4 v[0:3], v[8:9], off\n\ts_waitcnt vmcnt(0)\n"
            "\tglobal_load_dwordx4 v[0:3], v[8:9], off\n\ts_waitcnt vmcnt(0)")  # fmt: skip
    result = simulate(traced(body, address=lambda g, w, pc: loads_of(g, w, 0)))
    loads = [s.end - s.start for s in result.spans if s.kind == "load"]
    assert loads[0] > MACHINE.hbm_latency
    assert MACHINE.l1_latency <= loads[1] < MACHINE.l2_latency
    assert result.stalls["vmcnt"] > 0.9
    assert result.bytes_moved["hbm"] == 1024


def test_a_line_that_fell_out_of_l1_comes_back_from_l2():
    lines = MACHINE.l1_bytes // 1024 + 8
    body = looped(["\tglobal_load_dwordx4 v[0:3], v[8:9], off"] * lines)
    result = simulate(traced(body, trips=2, grid=1, address=loads_of))
    assert result.bytes_moved["l2"] == 2 * lines * 1024
    assert result.bytes_moved["hbm"] == lines * 1024


def test_what_other_xcds_must_see_goes_past_l2():
    body = "\tglobal_load_dword v0, v[8:9], off{}\n\ts_waitcnt vmcnt(0)\n" * 2
    near = simulate(traced(body.format("", ""), address=loads_of_one_line))
    far = simulate(traced(body.format("", " sc1"), address=loads_of_one_line))
    assert far.cycles - near.cycles >= MACHINE.infinity_latency - MACHINE.l1_latency - 4

    atomic = "\tglobal_atomic_add_u32 v[8:9], v0, off\n\ts_waitcnt vmcnt(0)"
    result = simulate(traced(atomic, address=loads_of_one_line))
    assert result.cycles > MACHINE.infinity_latency


def test_a_workgroup_that_was_not_executed_cannot_be_timed():
    with pytest.raises(ValueError, match=r"workgroups \[3\] are not in the trace"):
        simulate(traced("\ts_nop 0"), residents=[3])


def test_a_warm_launch_takes_its_inputs_from_the_infinity_cache():
    body = "\tglobal_load_dwordx4 v[0:3], v[8:9], off\n\ts_waitcnt vmcnt(0)"
    trace = traced(body, address=loads_of)
    warm = simulate(trace, warm=True, buffer_bytes={20: 1 << 26})
    assert warm.bytes_moved["hbm"] == 0 and warm.bytes_moved["infinity"] == 1024
    assert warm.cycles < simulate(trace, buffer_bytes={20: 1 << 26}).cycles


def test_loads_beyond_a_buffer_move_nothing():
    body = "\tbuffer_load_dwordx4 v[0:3], v8, s[0:3], 0 offen\n\ts_waitcnt vmcnt(0)"
    trace = traced(body, grid=1, address=lambda g, w, pc: island(20) + LANE * 16)
    assert simulate(trace, buffer_bytes={20: 512}).bytes_moved["hbm"] == 512


def test_a_load_takes_a_cycle_of_l1_for_each_change_of_sector_between_lanes():
    body = "\tglobal_load_dword v0, v[8:9], off\n\ts_waitcnt vmcnt(0)"
    rows = island(20) + LANE % 2 * 4096 + LANE // 2
    for address, changes in ((rows, 64), (np.sort(rows), 2)):
        trace = traced(body, grid=1, address=lambda g, w, pc, address=address: address)
        moved = simulate(trace).bytes_moved
        assert (moved["l1"], moved["hbm"]) == (64 * changes, 2 * MACHINE.line_bytes)


def test_loads_straight_to_lds_write_256_bytes_a_cycle():
    body = "\tbuffer_load_dwordx4 v8, s[0:3], 0 offen lds\n\ts_waitcnt vmcnt(0)"
    assert simulate(traced(body, grid=1, address=loads_of, lds=8192)).lds_cycles == 1024 // 256


def test_streaming_from_hbm_runs_at_its_share_of_the_bandwidth():
    count = 64
    body = "\n".join(["\tglobal_load_dwordx4 v[0:3], v[8:9], off"] * count)
    result = simulate(traced(body + "\n\ts_waitcnt vmcnt(0)", waves=8, address=loads_of))
    moved = 8 * count * 1024
    assert result.bytes_moved["hbm"] == moved
    gbps = moved * CUS / result.kernel_us * 1e-3
    assert 0.85 * MACHINE.hbm_gbps < gbps <= MACHINE.hbm_gbps


def test_bytes_in_flight_bound_what_one_cu_can_pull():
    body = "\n".join(["\tglobal_load_dwordx4 v[0:3], v[8:9], off"] * 64) + "\n\ts_waitcnt vmcnt(0)"
    small = dataclasses.replace(MACHINE, in_flight_bytes=8192)
    trace = traced(body, waves=8, grid=1, address=loads_of)
    slow, fast = simulate(trace, machine=small), simulate(trace)
    assert slow.cycles > 2 * fast.cycles
    assert slow.stalls["vmem"] > fast.stalls.get("vmem", 0)


def test_a_second_wave_hides_the_latency_of_the_first():
    lines = ["\tglobal_load_dwordx4 v[80:83], v[90:91], off", "\ts_waitcnt vmcnt(0)"]
    lines += mfmas("v_mfma_f32_32x32x64_f8f6f4", 16, 4)
    one = simulate(traced(looped(lines), waves=4, trips=8, address=loads_of))
    two = simulate(traced(looped(lines), waves=8, trips=8, address=loads_of))
    assert two.mfma_utilisation > 1.3 * one.mfma_utilisation


def test_waves_leave_a_barrier_together():
    trace = traced("\ts_nop 7\n\ts_barrier\n\tv_mov_b32_e32 v0, v1", waves=4)
    late = trace.events[0]
    trace.events[0] = Event(0, late.waves[:1], late.exec_mask[:1])
    spans = [s for s in simulate(trace).spans if s.kind == "valu"]
    assert len({s.start for s in spans}) == 1
    assert spans[0].start >= 32 + MACHINE.barrier_cycles


def test_kernel_arguments_cost_a_cold_scalar_load_unless_preloaded():
    body = "\ts_load_dwordx4 s[0:3], s[4:5], 0x0\n\ts_waitcnt lgkmcnt(0)\n\tv_mov_b32_e32 v0, s0"
    loaded = simulate(traced(body)).cycles
    preloaded = simulate(traced("\tv_mov_b32_e32 v0, s0")).cycles
    assert loaded - preloaded == pytest.approx(MACHINE.scalar_cold_latency, abs=10)


@pytest.mark.parametrize("vgprs, lds, waves, groups, limit", [
    (128, 0, 4, 4, "registers"),
    (64, 0, 4, 8, "wave slots"),
    (512, 0, 4, 1, "registers"),
    (64, 81920, 4, 2, "LDS"),
    (256, 163840, 8, 1, "registers"),
])  # fmt: skip
def test_occupancy_is_what_fits(vgprs, lds, waves, groups, limit):
    fit = occupancy(kernel_of("\ts_nop 0", vgprs=vgprs, lds=lds), waves, MACHINE)
    assert (fit.groups_per_cu, fit.limit) == (groups, limit)


def test_a_workgroup_that_fits_nowhere_raises_with_the_reason():
    with pytest.raises(ValueError, match="does not fit on a CU"):
        occupancy(kernel_of("\ts_nop 0", vgprs=512), 8, MACHINE)


@pytest.mark.parametrize(
    "num_groups, rounds", [(1, (1,)), (256, (1,)), (257, (2,)), (1400, (4, 2))]
)
def test_a_grid_runs_in_rounds_of_what_fits(num_groups, rounds):
    fit = occupancy(kernel_of("\ts_nop 0", vgprs=128), 4, MACHINE)
    assert place(num_groups, fit, MACHINE).rounds == rounds


SHARED = "\tglobal_load_dwordx4 v[0:3], v[8:9], off\n\ts_waitcnt vmcnt(0)"


def l2_fill_bytes(tile_of_group, num_groups=64):
    """HBM bytes of a launch whose workgroup g reads tile `tile_of_group(g)` of 64 KiB."""
    body = "\n".join(["\tglobal_load_dwordx4 v[0:3], v[8:9], off"] * 64) + "\n\ts_waitcnt vmcnt(0)"

    def address(group, wave, pc):
        return island(20, tile_of_group(group) * 65536 + pc * 1024) + LANE * 16

    trace = traced(body, grid=num_groups, groups=range(num_groups), address=address)
    result = simulate(trace, buffer_bytes={20: 8 * 65536})
    return result.grid_bytes["infinity"]


def test_workgroups_that_share_a_tile_on_one_xcd_fill_l2_less_often():
    scattered = l2_fill_bytes(lambda group: group // 8)
    together = l2_fill_bytes(lambda group: group % 8)
    assert scattered == pytest.approx(64 * 65536, rel=0.1)
    assert together == pytest.approx(8 * 65536, rel=0.5)


def test_an_incomplete_trace_assumes_sharers_at_random():
    trace = traced(SHARED, grid=64, address=lambda g, w, pc: island(20) + LANE * 16)
    unshared = simulate(trace, buffer_bytes={20: 64 * 1024})
    shared = simulate(trace, buffer_bytes={20: 1024})
    assert unshared.grid_bytes["hbm"] == 64 * 1024
    assert shared.grid_bytes["hbm"] < 64 * 1024


TILE_BYTES = 8 * 4096
SHARERS = {
    # How workgroup s2 finds its tile; shares of its lines that L2 misses, and that are new to
    # the chip among those.
    "four_on_an_xcd": (
        "s_and_b32 s6, s2, 7\n s_lshl_b32 s6, s6, 5\n s_and_b32 s7, s2, 0xe0\n"
        "s_lshr_b32 s7, s7, 3\n s_add_u32 s6, s6, s7", 1 / 4, 1,
    ),
    "one_on_each_xcd": ("s_and_b32 s6, s2, 0xf8", 1, 1 / 8),
    "one": ("s_and_b32 s6, s2, 0xff", 1, 1),
}  # fmt: skip


def sharing_launch(name):
    """A launch of three rounds, a workgroup a CU, each of which loads a tile of 8 MiB."""
    loads = "global_load_dwordx4 v[4:7], v1, s[4:5]\n v_add_u32_e32 v1, 0x1000, v1\n" * 8
    body = f"""
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	{SHARERS[name][0]}
	s_lshl_b32 s6, s6, 15
	v_lshlrev_b32_e32 v1, 4, v0
	v_add_u32_e32 v1, s6, v1
	s_waitcnt lgkmcnt(0)
	{loads}
	s_waitcnt vmcnt(0)
"""
    text = kernel_text(body, lds=MACHINE.lds_bytes_per_cu)
    return asm.parse(text), 3 * CUS, 256, [np.zeros(CUS * TILE_BYTES, np.uint8)]


@pytest.mark.parametrize("addend, nops", [("0", 0), ("v[4:7]", 0), ("v[8:11]", 1)])
def test_products_count_as_zeros_in_a_profile(addend, nops):
    """A branch that NaNs of sums take: they begin as such, and so does the last addend."""
    numbers = [0x7FC00000] * 4 + [0x3F800000] * 4 + [0x7FC00000] * 4
    moves = "\n".join(f"\tv_mov_b32 v{i}, {bits:#x}" for i, bits in enumerate(numbers))
    body = f"""{moves}
	v_mfma_f32_16x16x128_f8f6f4 v[0:3], v[64:71], v[72:79], {addend}
	s_waitcnt vmcnt(0)
	v_cmp_u_f32 vcc, v3, v3
	s_cbranch_vccz .L0
	s_nop 0
.L0:
"""
    found = profile(asm.parse(kernel_text(body)), 1, 64, [np.zeros(1, np.uint8)])
    assert found.issued.get("nop", 0) == nops


@pytest.mark.parametrize("name", SHARERS)
def test_a_whole_round_counts_who_shares_lines_on_an_xcd(name):
    _, l2_miss, hbm = SHARERS[name]
    launch = sharing_launch(name)
    count = LoadCount(MACHINE, {})
    run(*launch, check=False, order=range(CUS), trace=count.add, products=False)
    (loads,) = (found for found in count.by_buffer().values() if len(found.lines) > CUS)
    assert loads.miss_shares(MACHINE) == (l2_miss, hbm)

    counted = profile(*launch, whole_round=True)
    assert counted.placement.rounds == (1, 1, 1)
    moved = counted.bytes_moved
    assert moved["l2"] == TILE_BYTES
    assert moved["infinity"] == pytest.approx(l2_miss * TILE_BYTES, rel=0.25)
    assert moved["hbm"] == pytest.approx(l2_miss * hbm * TILE_BYTES, rel=0.25)


@pytest.mark.parametrize("name", SHARERS)
def test_without_a_whole_round_sharers_are_guessed_from_one_cu(name):
    """256 workgroups that load a 256th each of a buffer could all load other lines."""
    launch = sharing_launch(name)
    guessed = profile(*launch)
    assert guessed.bytes_moved["hbm"] == TILE_BYTES
    trace = run(*launch, check=False, order=[0], trace=True, products=False).trace
    sizes = {FIRST_ISLAND: launch[-1][0].nbytes}
    assert simulate(trace, buffer_bytes=sizes).cycles == guessed.cycles


def test_a_round_is_that_of_the_timed_cu():
    launch = sharing_launch("four_on_an_xcd")
    first = profile(*launch, whole_round=True)
    last = profile(*launch, whole_round=True, residents=[2 * CUS])
    assert last.bytes_moved == first.bytes_moved
    assert place(600, first.occupancy, MACHINE).round_of(513, MACHINE) == range(512, 600)


def test_a_whole_grid_has_all_its_rounds():
    with pytest.raises(ValueError, match="expected one"):
        profile(*sharing_launch("one"), whole_grid=True, whole_round=True)


def test_what_l2_holds_at_the_end_goes_to_memory():
    """A workgroup stores 256 bytes twice; the L2s keep no more than they are large."""
    body = "\tglobal_store_dword v0, v1, s[2:3]\n" * 2
    for l2_bytes, dirty in ((MACHINE.l2_bytes, CUS * 256), (1024, 8 * 1024)):
        machine = dataclasses.replace(MACHINE, write_back_gbps=1000.0, l2_bytes=l2_bytes)
        trace = traced(body, address=lambda g, w, pc: island(20) + LANE * 4)
        result = simulate(trace, machine=machine)
        assert result.write_back_us == pytest.approx(dirty * 1e-6)
        on_cus = result.grid_cycles / (1000 * machine.clock_ghz)
        assert result.kernel_us == pytest.approx(on_cus + result.write_back_us)


def test_variants_keep_what_was_set():
    machine = dataclasses.replace(MACHINE, hbm_latency=777)
    found = variants(machine)
    assert found["clock"] == machine
    assert found["latency"].hbm_latency == 777
    assert found["latency"].clock_ghz == machine.peak_ghz
    assert found["latency"].l2_latency > machine.l2_latency


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant_is_timed_as_if_it_were_the_machine(name):
    """A launch is priced once; nothing that the variants change has a part in that."""
    launch = (compile_mojo("probes.mojo")[2], 2, 128)
    args = [np.ones(200, np.float32), np.zeros((200, 8), np.float32), 200]
    found = profile(*launch, args, with_variants=True).variants
    alone = profile(*launch, args, machine=variants(MACHINE)[name])
    assert found[name] == alone.time_us
    assert len(set(found.values())) == len(VARIANTS)


def test_every_parameter_lies_in_its_range_and_names_its_source():
    for row in MACHINE.table():
        assert row.low <= row.value <= row.high, row
        assert row.source, row


def test_a_parameter_must_be_positive():
    with pytest.raises(ValueError, match="clock_ghz must be positive, got 0"):
        Machine(clock_ghz=0)
