"""Claims about the scalar ALU and control flow of the gfx950 simulator."""

from __future__ import annotations

import numpy as np
import pytest

import gfx950
from tests.gfx950.support import LANES, execute, execute_scalar, kernel_text

WORDS = [0, 1, 5, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x12345678]
M32 = 0xFFFFFFFF


def signed(value):
    """Reads 32 bits as two's complement."""
    return value - 2**32 if value >> 31 else value


def with_scc(instruction, a, b):
    """Runs an instruction on s10 and s11; returns s12 and SCC."""
    body = f"\t{instruction}\n\ts_cselect_b32 s13, 1, 0"
    return execute_scalar(body, {10: a, 11: b, 12: 0}, [12, 13])


RESULTS = {
    "s_add_u32 s12, s10, s11": lambda a, b: (a + b, a + b > M32),
    "s_sub_u32 s12, s10, s11": lambda a, b: (a - b, b > a),
    "s_add_i32 s12, s10, s11": lambda a, b: (a + b, not -(2**31) <= signed(a) + signed(b) < 2**31),
    "s_sub_i32 s12, s10, s11": lambda a, b: (a - b, not -(2**31) <= signed(a) - signed(b) < 2**31),
    "s_and_b32 s12, s10, s11": lambda a, b: (a & b, (a & b) != 0),
    "s_andn2_b32 s12, s10, s11": lambda a, b: (a & ~b, (a & ~b) & M32 != 0),
    "s_xor_b32 s12, s10, s11": lambda a, b: (a ^ b, a != b),
    "s_lshl_b32 s12, s10, s11": lambda a, b: (a << (b & 31), (a << (b & 31)) & M32 != 0),
    "s_lshr_b32 s12, s10, s11": lambda a, b: (a >> (b & 31), a >> (b & 31) != 0),
    "s_ashr_i32 s12, s10, s11": lambda a, b: (signed(a) >> (b & 31), signed(a) >> (b & 31) != 0),
    "s_min_i32 s12, s10, s11": lambda a, b: (min(signed(a), signed(b)), signed(a) <= signed(b)),
    "s_max_u32 s12, s10, s11": lambda a, b: (max(a, b), a >= b),
    "s_lshl2_add_u32 s12, s10, s11": lambda a, b: ((a << 2) + b, (a << 2) + b > M32),
    "s_bfe_u32 s12, s10, 0x80004": lambda a, b: ((a >> 4) & 255, (a >> 4) & 255 != 0),
    "s_bcnt1_i32_b32 s12, s10": lambda a, b: (a.bit_count(), a != 0),
    "s_absdiff_i32 s12, s10, s11": lambda a, b: (abs(signed(a - b & M32)), a != b),
}


@pytest.mark.parametrize("instruction", RESULTS)
def test_result_and_scc(instruction):
    for a in WORDS:
        for b in WORDS:
            value, scc = RESULTS[instruction](a, b)
            assert with_scc(instruction, a, b) == [value & M32, int(scc)], (hex(a), hex(b))


PLAIN = {
    "s_mul_i32 s12, s10, s11": lambda a, b: a * b,
    "s_mul_hi_u32 s12, s10, s11": lambda a, b: a * b >> 32,
    "s_mul_hi_i32 s12, s10, s11": lambda a, b: signed(a) * signed(b) >> 32,
    "s_brev_b32 s12, s10": lambda a, b: int(f"{a:032b}"[::-1], 2),
    "s_ff1_i32_b32 s12, s10": lambda a, b: (a & -a).bit_length() - 1 if a else -1,
    "s_flbit_i32_b32 s12, s10": lambda a, b: 32 - a.bit_length() if a else -1,
    "s_sext_i32_i8 s12, s10": lambda a, b: (a & 255) - 256 * (a >> 7 & 1),
    "s_pack_ll_b32_b16 s12, s10, s11": lambda a, b: (a & 0xFFFF) | b << 16,
    "s_pack_lh_b32_b16 s12, s10, s11": lambda a, b: (a & 0xFFFF) | (b & 0xFFFF0000),
    "s_bfm_b32 s12, s10, s11": lambda a, b: ((1 << (a & 31)) - 1) << (b & 31),
    "s_movk_i32 s12, 0x8000": lambda a, b: -32768,
}


@pytest.mark.parametrize("instruction", PLAIN)
def test_result_without_scc(instruction):
    for a in WORDS:
        for b in WORDS:
            assert with_scc(instruction, a, b)[0] == PLAIN[instruction](a, b) & M32


def test_wide_scalar_arithmetic():
    body = """
	s_add_u32 s14, s10, s12
	s_addc_u32 s15, s11, s13
	s_sub_u32 s16, s10, s12
	s_subb_u32 s17, s11, s13
	s_lshl_b64 s[18:19], s[10:11], 12
	s_ashr_i64 s[20:21], s[12:13], 4
	s_cmp_eq_u64 s[10:11], s[10:11]
	s_cselect_b64 s[22:23], s[12:13], s[10:11]
"""
    a, b = 0x89ABCDEFFFFFFFFF, 0xF000000100000002
    inputs = {10: a & M32, 11: a >> 32, 12: b & M32, 13: b >> 32}
    words = execute_scalar(body, inputs, list(range(14, 24)))
    pairs = [low | high << 32 for low, high in zip(words[::2], words[1::2], strict=True)]
    arithmetic = (b - 2**64) >> 4
    expected = [a + b, a - b, a << 12, arithmetic, b]
    assert pairs == [x & (2**64 - 1) for x in expected]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("lt_i32", True), ("gt_i32", False), ("lt_u32", False), ("ge_u32", True), ("lg_u32", True)],
)
def test_compares_know_their_sign(name, expected):
    body = f"\ts_cmp_{name} s10, s11\n\ts_cselect_b32 s12, 1, 0"
    assert execute_scalar(body, {10: 0xFFFFFFF0, 11: 3}, [12]) == [int(expected)]


def test_saveexec_nests_and_loops_count():
    """Lanes leave the loop one after another: lane l adds 1 + 2 + ... up to l + 1 times."""
    body = """
	v_mov_b32_e32 v200, 0
	v_mov_b32_e32 v3, 0
	s_mov_b64 s[10:11], 0
.LOOP:
	v_add_u32_e32 v3, 1, v3
	v_add_u32_e32 v200, v200, v3
	v_cmp_gt_u32_e32 vcc, v3, v2
	s_or_b64 s[10:11], vcc, s[10:11]
	s_andn2_b64 exec, exec, s[10:11]
	s_cbranch_execnz .LOOP
	s_or_b64 exec, exec, s[10:11]
"""
    lane = np.arange(LANES)
    assert (execute(body, {2: lane}, 1)[0] == (lane + 1) * (lane + 2) // 2).all()


def test_waves_that_branch_apart_meet_again():
    """Even and odd waves take different paths, meet at the barrier and swap through LDS."""
    body = """
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	v_lshrrev_b32_e32 v1, 6, v0
	s_nop 0
	v_readfirstlane_b32 s6, v1
	s_bitcmp1_b32 s6, 0
	s_cbranch_scc1 .LODD
	v_add_u32_e32 v2, 1000, v0
	s_branch .LMEET
.LODD:
	v_add_u32_e32 v2, 2000, v0
	s_nop 3
.LMEET:
	v_lshlrev_b32_e32 v3, 2, v0
	ds_write_b32 v3, v2
	s_waitcnt lgkmcnt(0)
	s_barrier
	v_xor_b32_e32 v4, 0x100, v3
	ds_read_b32 v5, v4
	s_waitcnt lgkmcnt(0)
	global_store_dword v3, v5, s[4:5]
"""
    thread = np.arange(256)
    partner = thread ^ 64
    expected = partner + np.where(partner // 64 % 2, 2000, 1000)
    for options in ({}, {"late": True}, {"lockstep": False, "order": 3}):
        out = np.zeros(256, np.uint32)
        result = gfx950.run(kernel_text(body, lds=1024), 1, 256, [out], **options)
        assert not result.hazards
        assert (out == expected).all()


def test_work_items_and_workgroups_are_numbered_in_three_dimensions():
    body = """
	s_load_dwordx2 s[6:7], s[0:1], 0x0
	v_and_b32_e32 v1, 0x3ff, v0
	v_bfe_u32 v2, v0, 10, 10
	v_bfe_u32 v3, v0, 20, 10
	v_lshl_or_b32 v4, v2, 8, v1
	v_lshl_or_b32 v4, v3, 16, v4
	s_lshl_b32 s8, s3, 4
	s_add_i32 s8, s8, s2
	s_lshl_b32 s9, s4, 8
	s_add_i32 s8, s8, s9
	s_lshl_b32 s8, s8, 24
	v_or_b32_e32 v4, s8, v4
	s_mul_i32 s9, s3, 3
	s_add_i32 s9, s9, s2
	v_mul_u32_u24_e32 v5, 8, v2
	v_add_u32_e32 v5, v5, v1
	v_mul_u32_u24_e32 v6, 32, v3
	v_add_u32_e32 v5, v5, v6
	s_lshl_b32 s9, s9, 6
	v_add_lshl_u32 v5, v5, s9, 2
	s_waitcnt lgkmcnt(0)
	global_store_dword v5, v4, s[6:7]
"""
    text = kernel_text(body).replace(
        "\t\t.amdhsa_next_free_vgpr",
        "\t\t.amdhsa_system_sgpr_workgroup_id_y 1\n\t\t.amdhsa_system_sgpr_workgroup_id_z 1\n"
        "\t\t.amdhsa_system_vgpr_workitem_id 2\n\t\t.amdhsa_next_free_vgpr",
    )
    out = np.zeros(6 * 64, np.uint32)
    gfx950.run(text, (3, 2), (8, 4, 2), [out]).raise_on_hazards()
    group, thread = np.divmod(np.arange(6 * 64), 64)
    item = thread % 8 | (thread // 8 % 4) << 8 | (thread // 32) << 16
    assert (out == item | (group % 3 + (group // 3 << 4)) << 24).all()
