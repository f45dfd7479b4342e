"""Claims about instructions that change what others mean, and about scalar stores and atomics."""

from __future__ import annotations

import numpy as np
import pytest

import gfx950
from tests.gfx950.support import LANES, execute, kernel_text

U32 = np.uint32
LANE = np.arange(LANES, dtype=U32)


def test_skipped_vector_instructions_do_nothing():
    body = """
	v_mov_b32_e32 v200, 1
	s_movk_i32 s20, 0x40
	s_setvskip s20, {bit}
	v_mov_b32_e32 v200, 2
	s_setvskip 0, 0
	v_add_u32_e32 v200, 8, v200
"""
    assert (execute(body.format(bit=6), {}, 1)[0] == 9).all()
    assert (execute(body.format(bit=5), {}, 1)[0] == 10).all()


@pytest.mark.parametrize("index", [0, 1, 3])
def test_operands_move_by_an_index(index):
    body = f"""
	s_mov_b32 s20, {index}
	s_set_gpr_idx_on s20, gpr_idx(SRC0)
	v_mov_b32_e32 v200, v2
	s_set_gpr_idx_off
	v_mov_b32_e32 v201, v2
	s_set_gpr_idx_on s20, gpr_idx(DST)
	v_mov_b32_e32 v202, v2
	s_set_gpr_idx_off
"""
    rows = np.arange(4 * LANES, dtype=U32).reshape(4, LANES)
    found = execute(body, {2: rows, 202: np.zeros((4, LANES), U32)}, [200, 201, 202 + index])
    assert (found == rows[[index, 0, 0]]).all()


def test_waves_in_different_modes_part_and_meet_again():
    body = """
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	v_lshrrev_b32_e32 v1, 6, v0
	v_lshlrev_b32_e32 v2, 2, v0
	v_mov_b32_e32 v3, 5
	v_readfirstlane_b32 s20, v1
	s_setvskip s20, 0
	v_mov_b32_e32 v3, 7
	s_setvskip 0, 0
	s_waitcnt lgkmcnt(0)
	global_store_dword v2, v3, s[4:5]
"""
    out = np.zeros(4 * LANES, U32)
    gfx950.run(kernel_text(body), 1, 4 * LANES, [out]).raise_on_hazards()
    assert (out.reshape(4, LANES) == [[7], [5], [7], [5]]).all()


def test_scalar_stores_and_atomics_reach_memory():
    body = """
	s_load_dwordx2 s[4:5], s[0:1], 0x0
	s_mov_b32 s8, 7
	s_mov_b32 s9, 9
	s_movk_i32 s10, 4
	s_waitcnt lgkmcnt(0)
	s_store_dwordx2 s[8:9], s[4:5], 0x8
	s_atomic_dec s10, s[4:5], 0x0 glc
	s_waitcnt lgkmcnt(0)
	s_store_dword s10, s[4:5], 0x4
"""
    out = np.array([3, 0, 0, 0], U32)
    gfx950.run(kernel_text(body), 1, LANES, [out]).raise_on_hazards()
    assert out.tolist() == [2, 3, 7, 9]


def test_a_buffer_is_indexed_by_records():
    body = """
	s_mov_b32 s8, s2
	s_or_b32 s9, s3, 0x80000
	s_movk_i32 s10, 0x200
	s_mov_b32 s11, 0x20000
	buffer_load_dword v200, v2, s[8:11], 0 idxen offset:4
	s_waitcnt vmcnt(0)
"""
    source = np.arange(2 * LANES, dtype=U32)
    text = kernel_text(
        "\ts_load_dwordx4 s[4:7], s[0:1], 0x0\n\tv_lshlrev_b32_e32 v1, 2, v0\n\t"
        "v_mov_b32_e32 v2, v0\n\ts_waitcnt lgkmcnt(0)\n\ts_mov_b64 s[2:3], s[4:5]\n"
        + body + "\tglobal_store_dword v1, v200, s[6:7]\n"
    )  # fmt: skip
    out = np.zeros(LANES, U32)
    gfx950.run(text, 1, LANES, [source, out]).raise_on_hazards()
    assert (out == 2 * LANE + 1).all()


def test_a_float_becomes_a_byte_of_a_register():
    floats = np.array([-3.0, 0.0, 1.5, 254.9, 255.0, 300.0, np.nan, 17.0], np.float32)
    body = "\tv_cvt_pk_u8_f32 v200, v2, 1, v3\n"
    found = execute(body, {2: np.tile(floats, 8), 3: np.full(LANES, 0xAABBCCDD, U32)}, 1)[0]
    bytes_ = np.tile(np.array([0, 0, 1, 254, 255, 255, 0, 17], U32), 8)
    assert (found == (U32(0xAABB00DD) | bytes_ << U32(8))).all()
