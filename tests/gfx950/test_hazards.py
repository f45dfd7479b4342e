"""Claims about the hazard checker: each missing wait, barrier or wait state by name."""

from __future__ import annotations

import numpy as np
import pytest

import gfx950
from tests.gfx950.support import LANES, kernel_text

U32 = np.uint32
PROLOGUE = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_lshlrev_b32_e32 v1, 2, v0
	s_waitcnt lgkmcnt(0)
"""


def findings(body, *, threads=LANES, lds=4096, **options):
    """Runs a body with source s[4:5] and target s[6:7] and returns its hazards."""
    source, target = np.arange(1024, dtype=U32), np.zeros(1024, U32)
    text = kernel_text(PROLOGUE + body, lds=lds, agprs=64)
    return gfx950.run(text, 1, threads, [source, target], **options).hazards


IN_FLIGHT = {
    "use of a load": """
	global_load_dword v2, v1, s[4:5]
	v_add_u32_e32 v3, 1, v2
""",
    "use after too weak a wait": """
	global_load_dword v2, v1, s[4:5]
	global_load_dword v3, v1, s[4:5]
	s_waitcnt vmcnt(1)
	v_add_u32_e32 v4, v2, v3
""",
    "overwrite of a load": """
	global_load_dword v2, v1, s[4:5]
	v_mov_b32_e32 v2, 0
""",
    "store of a load": """
	global_load_dword v2, v1, s[4:5]
	global_store_dword v1, v2, s[6:7]
""",
    "scalar load": """
	s_load_dword s8, s[4:5], 0x0
	s_add_u32 s9, s8, 1
""",
    "scalar loads return in any order": """
	s_load_dword s8, s[4:5], 0x0
	s_load_dword s9, s[4:5], 0x4
	s_waitcnt lgkmcnt(1)
	s_add_u32 s10, s8, 1
""",
    "LDS read": """
	ds_write_b32 v1, v0
	ds_read_b32 v2, v1
	v_add_u32_e32 v3, 1, v2
""",
    "the wrong counter": """
	global_load_dword v2, v1, s[4:5]
	s_waitcnt lgkmcnt(0)
	v_add_u32_e32 v3, 1, v2
""",
    "returning atomic": """
	v_mov_b32_e32 v5, 1
	global_atomic_add v2, v1, v5, s[6:7] sc0
	v_add_u32_e32 v3, 1, v2
""",
    "accumulation register": """
	global_load_dword a3, v1, s[4:5]
	v_accvgpr_read_b32 v3, a3
""",
}


@pytest.mark.parametrize("name", IN_FLIGHT)
def test_registers_in_flight(name):
    found = findings(IN_FLIGHT[name])
    assert [h.kind for h in found] == ["in flight"]
    assert found[0].text in IN_FLIGHT[name].strip().splitlines()[-1]


ORDERED = {
    "stores count": """
	global_load_dword v2, v1, s[4:5]
	global_store_dword v1, v0, s[6:7]
	s_waitcnt vmcnt(1)
	v_add_u32_e32 v3, 1, v2
""",
    "LDS operations are in order": """
	ds_write_b32 v1, v0
	ds_read_b32 v2, v1
	ds_read_b32 v3, v1
	s_waitcnt lgkmcnt(1)
	v_add_u32_e32 v4, 1, v2
""",
    "loads land in order": """
	global_load_dword v2, v1, s[4:5]
	global_load_dword v2, v1, s[4:5] offset:64
	s_waitcnt vmcnt(0)
	v_add_u32_e32 v3, 1, v2
""",
    "a store has read its data": """
	global_store_dword v1, v0, s[6:7]
	v_mov_b32_e32 v0, 0
""",
    "raw wait immediates": """
	global_load_dword v2, v1, s[4:5]
	s_waitcnt 0xf70
	v_add_u32_e32 v3, 1, v2
""",
}


@pytest.mark.parametrize("name", ORDERED)
@pytest.mark.parametrize("late", [False, True])
def test_sufficient_waits_are_not_reported(name, late):
    assert findings(ORDERED[name], late=late) == []


EXCHANGE = """
	ds_write_b32 v1, v0
	{after_write}
	v_xor_b32_e32 v2, 0x100, v1
	ds_read_b32 v3, v2
	{after_read}
	ds_write_b32 v1, v3 offset:{second}
	s_waitcnt lgkmcnt(0)
"""
BARRIER = "s_waitcnt lgkmcnt(0)\n\ts_barrier"


@pytest.mark.parametrize(
    ("after_write", "after_read", "second", "reason"),
    [
        (BARRIER, BARRIER, 0, None),
        (BARRIER, "s_waitcnt lgkmcnt(0)", 1024, None),
        ("s_barrier", BARRIER, 0, "after the write of wave"),
        ("s_waitcnt lgkmcnt(0)", BARRIER, 0, "after the write of wave"),
        (BARRIER, "s_waitcnt lgkmcnt(0)", 0, "after the read of wave"),
        (BARRIER, "s_barrier\n\ts_waitcnt lgkmcnt(0)", 0, "after the read of wave"),
    ],
)
def test_lds_exchange_needs_a_wait_and_a_barrier_each_way(after_write, after_read, second, reason):
    body = EXCHANGE.format(after_write=after_write, after_read=after_read, second=second)
    for late in (False, True):
        found = findings(body, threads=128, late=late)
        if reason is None:
            assert found == []
        else:
            assert any(h.kind == "race" and reason in h.reason for h in found)


def test_two_writers_race_and_neighbouring_bytes_do_not():
    same = "\tv_and_b32_e32 v2, 63, v0\n\tds_write_b8 v2, v0\n\ts_waitcnt lgkmcnt(0)"
    apart = "\tds_write_b8 v0, v0\n\ts_waitcnt lgkmcnt(0)"
    for lockstep in (True, False):
        (hazard,) = findings(same, threads=128, lockstep=lockstep)
        assert hazard.kind == "race"
    assert findings(apart, threads=128) == findings(apart, threads=128, lockstep=False) == []


DIRECT = """
	s_mov_b32 s8, s4
	s_mov_b32 s9, s5
	s_movk_i32 s10, 0x1000
	s_mov_b32 s11, 0x20000
	v_readfirstlane_b32 s12, v1
	s_mov_b32 m0, s12
	{before}
	buffer_load_dword v1, s[8:11], 0 offen lds
	{between}
	ds_read_b32 v2, {address}
	s_waitcnt lgkmcnt(0)
	global_store_dword v1, v2, s[6:7]
"""


@pytest.mark.parametrize(
    ("before", "between", "address", "kinds"),
    [
        ("s_nop 0", "s_waitcnt vmcnt(0)", "v1", set()),
        ("s_nop 0", "s_nop 0", "v1", {"race"}),
        ("s_nop 0", "s_waitcnt lgkmcnt(0)", "v1", {"race"}),
        ("s_nop 0", "s_waitcnt vmcnt(0)\n\ts_barrier\n\tv_xor_b32_e32 v3, 0x100, v1", "v3", set()),
        (
            "s_nop 0",
            "s_barrier\n\ts_waitcnt vmcnt(0)\n\tv_xor_b32_e32 v3, 0x100, v1",
            "v3",
            {"race"},
        ),
        ("", "s_waitcnt vmcnt(0)", "v1", {"wait states"}),
    ],
)
def test_loads_to_lds_are_guarded_by_vmcnt_alone(before, between, address, kinds):
    body = DIRECT.format(before=before, between=between, address=address)
    options = {"threads": 128}
    source, target = np.arange(1024, dtype=U32), np.zeros(1024, U32)
    text = kernel_text(PROLOGUE + body, lds=4096)
    try:
        result = gfx950.run(text, 1, options["threads"], [source, target])
        found = {h.kind for h in (*result.hazards, *result.warnings)}
    except gfx950.SimulationError as error:
        found = {h.kind for h in error.hazards}
    assert found == kinds


def test_a_load_to_lds_must_not_overtake_the_read_before_it():
    body = DIRECT.format(before="ds_read_b32 v4, v1", between="s_waitcnt vmcnt(0)", address="v1")
    filled = "\tds_write_b32 v1, v0\n\ts_waitcnt lgkmcnt(0)\n" + body
    found = findings(filled)
    assert any("read of the same LDS bytes is in flight" in h.reason for h in found)


WAIT_STATES = {
    ("v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], 0", "v_mov_b32_e32 v5, v20"): 8,
    ("v_mfma_f32_32x32x16_bf16 v[20:35], v[10:13], v[14:17], 0", "v_mov_b32_e32 v5, v20"): 12,
    ("v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], 0",
     "global_store_dword v1, v21, s[6:7]"): 8,
    ("v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], 0", "v_mov_b32_e32 v21, 0"): 8,
    ("v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], 0",
     "v_mfma_f32_16x16x32_bf16 v[24:27], v[20:23], v[14:17], 0"): 8,
    ("v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], 0",
     "v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], v[20:23]"): 0,
    ("v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], 0",
     "v_mfma_f32_16x16x32_bf16 v[22:25], v[10:13], v[14:17], v[22:25]"): 6,
    ("v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], v[24:27]", "v_mov_b32_e32 v25, 0"): 3,
    ("v_mov_b32_e32 v10, 0", "v_mfma_f32_16x16x32_bf16 v[20:23], v[10:13], v[14:17], 0"): 2,
    ("v_exp_f32_e32 v5, v10", "v_add_f32_e32 v6, v5, v10"): 1,
    ("v_mov_b32_e32 v5, v10", "v_mov_b32_dpp v6, v5 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf"
     ): 2,
    ("v_mov_b32_e32 v5, v10", "v_permlane32_swap_b32_e32 v5, v11"): 2,
    ("v_mov_b32_e32 v5, v10", "v_readfirstlane_b32 s20, v5"): 1,
    ("v_readfirstlane_b32 s20, v10", "v_mov_b32_e32 v5, s20"): 2,
    ("v_readfirstlane_b32 s6, v10", "global_load_dword v5, v1, s[6:7]"): 5,
    ("v_readfirstlane_b32 s20, v18", "v_readlane_b32 s21, v10, s20"): 4,
    ("v_readfirstlane_b32 s20, v18", "v_writelane_b32 v5, 3, s20"): 4,
    ("v_readfirstlane_b32 s20, v18", "v_writelane_b32 v5, s20, 3"): 2,
    ("v_cmp_eq_u32_e32 vcc, v10, v11", "v_cndmask_b32_e32 v5, v10, v11, vcc"): 2,
    ("v_cmp_eq_u32_e32 vcc, v10, v11", "v_div_fmas_f32 v5, v10, v11, v12"): 4,
    ("v_cmpx_eq_u32_e32 vcc, v10, v10", "v_readfirstlane_b32 s20, v11"): 4,
    ("global_store_dwordx4 v1, v[10:13], s[6:7]", "v_mov_b32_e32 v11, 0"): 2,
    ("v_add_u16_sdwa v5, v10, v11 dst_sel:WORD_1 dst_unused:UNUSED_PAD", "v_mov_b32_e32 v6, v5"): 1,
    ("v_dot2_f32_bf16 v5, v10, v11, v12", "v_mov_b32_e32 v6, v5"): 3,
}  # fmt: skip


@pytest.mark.parametrize(("first", "then"), WAIT_STATES)
def test_wait_states_are_counted_exactly(first, then):
    needed = WAIT_STATES[first, then]
    fill = "".join(f"\tv_mov_b32_e32 v{r}, 0\n" for r in range(10, 36)) + "\ts_nop 7\n" * 3
    fill += "\tv_lshlrev_b32_e32 v1, 4, v0\n\ts_nop 7\n"

    def found(states):
        between = "".join(f"\ts_nop {n}\n" for n in ([states - 1] if 0 < states <= 16 else []))
        body = fill + f"\t{first}\n{between}\t{then}\n\ts_nop 7\n"
        return [h for h in findings(body) if h.kind == "wait states"]

    assert found(needed) == []
    if needed:
        (hazard,) = found(needed - 1)
        assert f"{needed - 1} wait states, {needed} needed" in hazard.reason
        assert hazard.text == then


def test_wait_states_and_waits_follow_branches():
    """The hazard lies on the path that jumps; the other path has the wait."""
    body = """
	global_load_dword v2, v1, s[4:5]
	v_readfirstlane_b32 s20, v0
	s_cmp_eq_u32 s20, 0
	s_cbranch_scc1 .LSKIP
	s_waitcnt vmcnt(0)
.LSKIP:
	v_add_u32_e32 v3, 1, v2
"""
    (hazard,) = findings(body, threads=128)
    assert (hazard.kind, hazard.wave) == ("in flight", 0)
    assert "uses v2 of line" in hazard.reason


DIVERGED = """
	global_load_dword v2, v1, s[4:5]
	v_lshrrev_b32_e32 v5, 6, v0
	s_nop 1
	v_readfirstlane_b32 s20, v5
	s_cmp_eq_u32 s20, 0
	s_cbranch_scc1 .LJOIN
	global_load_dword v3, v1, s[4:5] offset:4
	global_load_dword v6, v1, s[4:5] offset:8
.LJOIN:
	{waits}
	v_add_u32_e32 v4, 1, v2
	global_store_dword v1, v4, s[6:7]
"""


def test_waves_count_their_own_operations_after_they_meet():
    """Wave 1 has two loads more in flight, so vmcnt(2) proves its first load, not wave 0's."""
    (hazard,) = findings(DIVERGED.format(waits="s_waitcnt vmcnt(2)"), threads=128)
    assert (hazard.wave, hazard.text) == (0, "v_add_u32_e32 v4, 1, v2")
    for late in (False, True):
        both = DIVERGED.format(waits="s_waitcnt vmcnt(2)\n\ts_waitcnt vmcnt(0)")
        assert findings(both, threads=128, late=late) == []


def test_late_loads_of_waves_that_met_land_where_they_belong():
    target, source = np.zeros(128, U32), np.arange(200, dtype=U32)
    waits = "s_waitcnt vmcnt(2)\n\ts_waitcnt vmcnt(0)"
    text = kernel_text(PROLOGUE + DIVERGED.format(waits=waits))
    gfx950.run(text, 1, 128, [source, target], late=True).raise_on_hazards()
    assert (target == np.arange(128) + 1).all()


def test_reports_name_line_instruction_wave_and_reason():
    (hazard,) = findings(IN_FLIGHT["use of a load"])
    text = kernel_text(PROLOGUE + IN_FLIGHT["use of a load"], lds=4096, agprs=64).split("\n")
    assert text[hazard.line - 1].strip() == hazard.text == "v_add_u32_e32 v3, 1, v2"
    for part in (f"line {hazard.line}", hazard.text, "in flight", "uses v2", "wave 0"):
        assert part in str(hazard)
    with pytest.raises(gfx950.HazardError, match="uses v2"):
        gfx950.Result(None, [hazard], 0, 0).raise_on_hazards()


def test_barrier_without_all_waves_is_a_deadlock():
    body = """
	v_readfirstlane_b32 s20, v0
	s_nop 3
	s_cmp_eq_u32 s20, 0
	s_cbranch_scc1 .LSPIN
	s_barrier
	s_endpgm
.LSPIN:
	s_barrier
	s_barrier
"""
    findings(body.replace("\ts_barrier\n\ts_barrier\n", "\ts_barrier\n"), threads=128)
    findings(body, threads=128)
    stuck = body.replace("s_endpgm\n", "s_barrier\n\ts_endpgm\n", 1)
    stuck = stuck.replace(
        "\ts_barrier\n\ts_barrier\n", "\ts_barrier\n.LFOREVER:\n\ts_branch .LFOREVER\n", 1
    )
    with pytest.raises(gfx950.SimulationError, match="not ended after 10000 steps, at pc"):
        findings(stuck, threads=128, steps=10_000)


@pytest.mark.parametrize("seed", range(6))
def test_barriers_pair_arrivals_not_places(seed):
    """Half of the waves pass one barrier more, as ping-pong kernels do."""
    body = """
	v_readfirstlane_b32 s20, v0
	s_nop 3
	s_lshr_b32 s20, s20, 7
	s_cmp_eq_u32 s20, 0
	s_cbranch_scc1 .LFIRST
	s_barrier
.LFIRST:
	s_mov_b32 s21, 3
.LLOOP:
	ds_write_b32 v1, v0
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b32 v2, v1
	s_waitcnt lgkmcnt(0)
	s_barrier
	s_sub_u32 s21, s21, 1
	s_cmp_lg_u32 s21, 0
	s_cbranch_scc1 .LLOOP
	s_cmp_eq_u32 s20, 0
	s_cbranch_scc0 .LDONE
	s_barrier
.LDONE:
	global_store_dword v1, v2, s[6:7]
"""
    options = {"lockstep": False, "order": seed} if seed else {}
    assert findings(body, threads=256, **options) == []


UNWRITTEN = {
    "a byte that nobody uses": ("\tds_read_b32 v2, v1\n", 1, "bytes 0 to 255"),
    "half of what is read": (
        "\tds_write_b32 v1, v0\n\tds_read_b64 v[2:3], v1\n", 1, "bytes 256 to 259"),
    "what another wave was to write": (
        "\tv_and_b32_e32 v5, 0xff, v1\n\tds_write_b32 v5, v0\n\ts_waitcnt lgkmcnt(0)\n"
        "\ts_barrier\n\tds_read_b32 v2, v1\n", 2, "bytes 256 to 511"),
    "an atomic": ("\tds_add_u32 v1, v0\n", 1, "bytes 0 to 255"),
    "a byte read as a part": ("\tds_read_u8 v2, v0 offset:5\n", 1, "bytes 5 to 68"),
}  # fmt: skip


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("name", UNWRITTEN)
def test_a_read_of_lds_that_no_wave_has_written_is_a_finding(name, late):
    body, waves, place = UNWRITTEN[name]
    found = findings(body, threads=waves * LANES, late=late)
    assert [hazard.kind for hazard in found if hazard.kind != "race"] == ["unwritten"]
    [gap] = [hazard for hazard in found if hazard.kind == "unwritten"]
    assert gap.reason == f"reads LDS {place}, which no wave has written"
    assert gap.wave == waves - 1 and gap.line > 0


WRITTEN = {
    "by the wave": "\tds_write_b32 v1, v0\n\tds_read_b32 v2, v1\n",
    "by another wave": """
	v_xor_b32_e32 v5, 0x100, v1
	ds_write_b32 v5, v0
	s_waitcnt lgkmcnt(0)
	s_barrier
	ds_read_b32 v2, v1
""",
    "by a load": """
	v_readfirstlane_b32 s20, v1
	s_nop 3
	s_mov_b32 m0, s20
	s_nop 0
	global_load_lds_dword v1, s[4:5]
	s_waitcnt vmcnt(0)
	ds_read_b32 v2, v1
""",
    "in the lanes that read": """
	s_mov_b64 exec, 0xff
	ds_write_b32 v1, v0
	ds_read_b32 v2, v1
""",
}


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("name", WRITTEN)
def test_lds_that_was_written_is_no_finding(name, late):
    threads = 2 * LANES if name != "in the lanes that read" else LANES
    assert findings(WRITTEN[name], threads=threads, late=late) == []


def test_a_workgroup_finds_nothing_that_another_one_has_written():
    """The first writes and reads, the second one reads alone: both in a batch, and one by one."""
    body = """
	s_cmp_eq_u32 s2, 0
	s_cbranch_scc0 .LREAD
	ds_write_b32 v1, v0
.LREAD:
	ds_read_b32 v2, v1
"""
    text = kernel_text(PROLOGUE + body, lds=4096)
    for batch in (1, 2):
        arrays = [np.zeros(1024, U32), np.zeros(1024, U32)]
        [found] = gfx950.run(text, 2, LANES, arrays, batch=batch).hazards
        assert (found.kind, found.group) == ("unwritten", 1)
