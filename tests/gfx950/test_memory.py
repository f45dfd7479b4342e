"""Claims about memory in the gfx950 simulator: LDS, buffers, atomics, faults, undefined data."""

from __future__ import annotations

import numpy as np
import pytest

import gfx950
from gfx950.timing import profile
from tests.gfx950.support import LANES, execute, kernel_text

U32 = np.uint32
LANE = np.arange(LANES)
FILL_LDS = "".join(
    f"\tv_lshl_add_u32 v240, v1, 2, {256 * i}\n\tv_mul_u32_u24_e32 v241, 0x10307, v240\n"
    "\tds_write_b32 v240, v241\n"
    for i in range(8)
) + "\ts_waitcnt lgkmcnt(0)\n"  # fmt: skip
PATTERN = (np.arange(512) * 4 * 0x10307 & 0xFFFFFFFF).astype(U32).view(np.uint8)


def lds_words(address, count):
    """Reads `count` words of the pattern at each byte address."""
    return np.array(
        [[PATTERN[a + 4 * i :][:4].view(U32)[0] for a in address] for i in range(count)]
    )


@pytest.mark.parametrize(
    ("bits", "align"), [(32, 4), (64, 8), (96, 4), (128, 16), (64, 4), (32, 1)]
)
def test_lds_reads_of_every_width(bits, align):
    address = (LANE * 7 % 60) * 16 // align * align + align
    count = bits // 32
    register = "v200" if count == 1 else f"v[200:{199 + count}]"
    body = FILL_LDS + f"\tds_read_b{bits} {register}, v2 offset:16\n\ts_waitcnt lgkmcnt(0)"
    out = execute(body, {2: address}, count, lds=2048)
    assert (out == lds_words(address + 16, count)).all()


@pytest.mark.parametrize(
    ("name", "convert"),
    [
        ("u8", lambda raw: raw[0]), ("i8", lambda raw: raw.view(np.int8)[0]),
        ("u16", lambda raw: raw.view(np.uint16)[0]), ("i16", lambda raw: raw.view(np.int16)[0]),
    ],
)  # fmt: skip
def test_lds_reads_extend_small_values(name, convert):
    address = LANE * 6
    body = FILL_LDS + f"\tds_read_{name} v200, v2\n\ts_waitcnt lgkmcnt(0)"
    expected = [int(convert(PATTERN[a : a + 2].copy())) & 0xFFFFFFFF for a in address]
    assert list(execute(body, {2: address}, 1, lds=2048)[0]) == expected


def test_half_register_loads_keep_the_other_half():
    body = (
        FILL_LDS
        + """
	v_mov_b32_e32 v200, 0x11112222
	v_mov_b32_e32 v201, 0x11112222
	ds_read_u16_d16 v200, v2
	ds_read_u8_d16_hi v201, v2
	s_waitcnt lgkmcnt(0)
"""
    )
    low, high = execute(body, {2: LANE * 4}, 2, lds=2048)
    words = lds_words(LANE * 4, 1)[0]
    assert (low == (words & 0xFFFF | 0x11110000)).all()
    assert (high == (words & 0xFF) << 16 | 0x2222).all()


def test_read2_and_write2_use_two_addresses():
    body = """
	ds_write2_b32 v2, v3, v4 offset0:0 offset1:64
	ds_write2st64_b32 v2, v4, v3 offset0:2 offset1:3
	s_waitcnt lgkmcnt(0)
	ds_read2_b32 v[200:201], v2 offset0:0 offset1:64
	ds_read2st64_b32 v[202:203], v2 offset0:2 offset1:3
	s_waitcnt lgkmcnt(0)
"""
    out = execute(body, {2: LANE * 4, 3: LANE + 100, 4: LANE + 200}, 4, lds=2048)
    assert (out[0] == LANE + 100).all()
    assert (out[1] == LANE + 200).all()
    assert (out[2] == LANE + 200).all()
    assert (out[3] == LANE + 100).all()


@pytest.mark.parametrize("element", [4, 8, 16])
def test_transposed_reads_give_columns_of_a_tile(element):
    """Rows of 16 elements in memory; lane l of 16 gets column l."""
    body = FILL_LDS + f"\tds_read_b64_tr_b{element} v[200:201], v2\n\ts_waitcnt lgkmcnt(0)"
    out = execute(body, {2: LANE * 8}, 2, lds=2048)
    whole = [int.from_bytes(PATTERN[128 * g : 128 * (g + 1)].tobytes(), "little") for g in range(4)]
    for lane in range(LANES):
        group, column = divmod(lane, 16)
        value = int(out[0, lane]) | int(out[1, lane]) << 32
        for row in range(64 // element):
            expected = whole[group] >> (element * (16 * row + column)) & (1 << element) - 1
            assert value >> (element * row) & (1 << element) - 1 == expected


def test_lane_exchanges():
    body = """
	ds_swizzle_b32 v200, v2 offset:swizzle(SWAP,16)
	ds_swizzle_b32 v201, v2 offset:swizzle(QUAD_PERM,3,2,1,0)
	ds_swizzle_b32 v202, v2 offset:0x041f
	ds_bpermute_b32 v203, v3, v2
	ds_permute_b32 v204, v3, v2
	s_waitcnt lgkmcnt(0)
"""
    target = (LANE * 5 + 3) % 64
    out = execute(body, {2: LANE + 7, 3: target * 4}, 5)
    assert (out[0] == (LANE ^ 16) + 7).all()
    assert (out[1] == LANE // 4 * 4 + 3 - LANE % 4 + 7).all()
    assert (out[2] == (LANE ^ 1) + 7).all()
    assert (out[3] == target + 7).all()
    assert (out[4][target] == LANE + 7).all()


def test_lds_atomics_serialise_lanes():
    body = """
	v_mov_b32_e32 v5, 0
	v_mov_b32_e32 v6, 0
	ds_write_b32 v5, v6
	s_waitcnt lgkmcnt(0)
	ds_add_rtn_u32 v200, v5, v2
	ds_max_u32 v5, v3
	s_waitcnt lgkmcnt(0)
	ds_read_b32 v201, v5
	s_waitcnt lgkmcnt(0)
"""
    before, after = execute(body, {2: LANE + 1, 3: LANE * 3}, 2, lds=64)
    assert list(before) == [int(n * (n + 1) / 2) for n in range(64)]
    assert set(after) == {64 * 65 // 2}


BUFFER = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_lshlrev_b32_e32 v1, 3, v0
	s_movk_i32 s12, 0x10
	s_waitcnt lgkmcnt(0)
	s_mov_b32 s8, s4
	s_mov_b32 s9, s5
	s_movk_i32 s10, {limit}
	s_mov_b32 s11, 0x20000
"""


def test_buffer_loads_beyond_the_limit_read_zero():
    body = (
        BUFFER.format(limit=256)
        + """
	buffer_load_dwordx2 v[2:3], v1, s[8:11], s12 offen offset:4
	s_waitcnt vmcnt(0)
	global_store_dwordx2 v1, v[2:3], s[6:7]
"""
    )
    source = np.arange(1, 1025, dtype=U32)
    out = np.zeros((64, 2), U32)
    gfx950.run(kernel_text(body), 1, 64, [source, out]).raise_on_hazards()
    offset = LANE[:, None] * 8 + 4 + np.array([0, 4])
    expected = np.where(offset + 4 <= 256 - 16, source[(offset + 16) // 4], 0)
    assert (out == expected).all()


def test_buffer_stores_beyond_the_limit_are_dropped():
    body = BUFFER.format(limit=100) + "\tbuffer_store_dword v0, v1, s[8:11], 0 offen\n"
    target = np.full(128, 77, U32)
    unused = np.zeros(1, U32)
    gfx950.run(kernel_text(body), 1, 64, [target, unused]).raise_on_hazards()
    inside = LANE * 8 + 4 <= 100
    assert (target[::2] == np.where(inside, LANE, 77)).all()
    assert (target[1::2] == 77).all()


@pytest.mark.parametrize(("suffix", "size"), [("dword", 4), ("dwordx3", 12), ("dwordx4", 16)])
def test_loads_to_lds_land_at_m0_and_lane(suffix, size):
    body = (
        BUFFER.format(limit=1024)
        + f"""
	v_mul_u32_u24_e32 v2, {size}, v0
	s_movk_i32 m0, 0x20
	s_nop 0
	buffer_load_{suffix} v2, s[8:11], 0 offen offset:4 lds
	s_waitcnt vmcnt(0)
	v_lshlrev_b32_e32 v3, 2, v0
	ds_read_b32 v4, v3 offset:36
	s_waitcnt lgkmcnt(0)
	global_store_dword v3, v4, s[6:7]
"""
    )
    source = np.arange(1, 1025, dtype=U32)
    out = np.zeros(64, U32)
    gfx950.run(kernel_text(body, lds=2048), 1, 64, [source, out]).raise_on_hazards()
    assert (out == np.arange(2, 66)).all()


def test_global_atomics_return_the_old_value_with_sc0():
    body = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_mov_b32_e32 v1, 0
	v_mov_b32_e32 v2, 2
	v_lshlrev_b32_e32 v5, 2, v0
	s_waitcnt lgkmcnt(0)
	global_atomic_add v3, v1, v2, s[4:5] sc0
	global_atomic_umax v1, v0, s[4:5] offset:4
	global_atomic_add_f32 v1, v2, s[4:5] offset:8
	s_waitcnt vmcnt(0)
	global_store_dword v5, v3, s[6:7]
"""
    state, old = np.zeros(3, U32), np.zeros(64, U32)
    gfx950.run(kernel_text(body), 1, 64, [state, old]).raise_on_hazards()
    assert list(state[:2]) == [128, 63]
    assert (old == 2 * LANE).all()


def test_flat_wide_and_half_register_accesses():
    body = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_lshlrev_b32_e32 v1, 4, v0
	v_lshlrev_b32_e32 v10, 1, v0
	v_mov_b32_e32 v3, 0
	s_waitcnt lgkmcnt(0)
	v_mov_b32_e32 v2, s4
	v_mov_b32_e32 v3, s5
	s_nop 4
	v_lshl_add_u64 v[2:3], v[2:3], 0, 4
	flat_load_dwordx3 v[4:6], v[2:3] offset:4
	s_load_dwordx4 s[8:11], s[4:5], 0x10
	s_waitcnt vmcnt(0) lgkmcnt(0)
	v_add_u32_e32 v6, s11, v6
	global_store_dwordx3 v1, v[4:6], s[6:7]
	global_store_short_d16_hi v10, v5, s[6:7] offset:1024
"""
    source = (np.arange(256, dtype=U32) + 1) * 0x10001
    out = np.zeros((80, 4), U32)
    gfx950.run(kernel_text(body), 1, 64, [source, out]).raise_on_hazards()
    assert (out[:64, :2] == source[2:4]).all()
    assert (out[:64, 2] == source[4] + source[7]).all()
    halves = out[64:].reshape(-1).view(np.uint16)[:64]
    assert (halves == source[3] >> 16).all()


def test_scalar_buffer_loads_stop_at_the_limit():
    body = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	s_waitcnt lgkmcnt(0)
	s_mov_b32 s8, s4
	s_mov_b32 s9, s5
	s_movk_i32 s10, 0x18
	s_mov_b32 s11, 0x20000
	s_buffer_load_dwordx4 s[12:15], s[8:11], 0x10
	v_mov_b32_e32 v1, 0
	s_waitcnt lgkmcnt(0)
	v_mov_b32_e32 v2, s12
	v_mov_b32_e32 v3, s13
	v_mov_b32_e32 v4, s14
	v_mov_b32_e32 v5, s15
	global_store_dwordx4 v1, v[2:5], s[6:7]
"""
    source, out = np.arange(1, 65, dtype=U32), np.zeros(4, U32)
    gfx950.run(kernel_text(body), 1, 64, [source, out]).raise_on_hazards()
    assert list(out) == [5, 6, 0, 0]


@pytest.mark.parametrize(
    ("name", "before", "data", "after"),
    [
        ("cmpswap", [7, 8], [[9, 7], [9, 7]], [9, 8]),
        ("inc", [5, 6], [[5], [7]], [0, 7]),
        ("dec", [0, 9], [[5], [7]], [5, 7]),
        ("smin", [2**32 - 3, 4], [[5], [2]], [2**32 - 3, 2]),
        ("xor", [6, 6], [[3], [6]], [5, 0]),
        ("pk_add_bf16", [0x3F803F80, 0x40003F80], [[0x3F803F80], [0x3F803F80]],
         [0x40004000, 0x40404000]),
    ],
)  # fmt: skip
def test_global_atomics(name, before, data, after):
    body = f"""
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_lshlrev_b32_e32 v1, 3, v0
	v_lshlrev_b32_e32 v6, 2, v0
	s_waitcnt lgkmcnt(0)
	global_load_dwordx2 v[2:3], v1, s[6:7]
	s_waitcnt vmcnt(0)
	global_atomic_{name} v6, {"v[2:3]" if name == "cmpswap" else "v2"}, s[4:5]
"""
    state = np.array(before, U32)
    padded = np.array([[*row, 0][:2] for row in data], U32)
    gfx950.run(kernel_text(body), 1, 2, [state, padded]).raise_on_hazards()
    assert list(state) == after


@pytest.mark.parametrize("words", [1, 40, 64, 500])
def test_lanes_that_meet_at_a_word_find_what_the_one_before_left(words, rng):
    """And lanes with a word each find what was there."""
    places = rng.permutation(words)[np.arange(128) % words].astype(U32)
    body = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	s_load_dwordx2 s[8:9], s[0:1], 0x10
	v_lshlrev_b32_e32 v1, 2, v0
	s_waitcnt lgkmcnt(0)
	global_load_dword v2, v1, s[6:7]
	v_add_u32_e32 v3, 1, v0
	s_waitcnt vmcnt(0)
	v_lshlrev_b32_e32 v2, 2, v2
	global_atomic_swap v4, v2, v3, s[4:5] sc0
	s_waitcnt vmcnt(0)
	global_store_dword v1, v4, s[8:9]
"""
    state, out = np.zeros(words, U32), np.zeros(128, U32)
    gfx950.run(kernel_text(body), 1, 128, [state, places, out]).raise_on_hazards()
    left, found = np.zeros(words, U32), []
    for lane, place in enumerate(places):
        found.append(left[place])
        left[place] = lane + 1
    assert out.tolist() == found and state.tolist() == left.tolist()


def test_private_memory_keeps_lanes_apart_and_knows_what_was_written():
    scratch = kernel_text(
        """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	v_lshlrev_b32_e32 v1, 2, v0
	scratch_store_dword off, v0, off offset:8
	{read}
	s_waitcnt vmcnt(0) lgkmcnt(0)
	global_store_dword v1, v2, s[6:7]
"""
    ).replace(
        "\t\t.amdhsa_kernarg_size",
        "\t\t.amdhsa_private_segment_fixed_size 16\n\t\t.amdhsa_kernarg_size",
    )
    unused, out = np.zeros(1, U32), np.zeros(128, U32)
    good = scratch.format(read="scratch_load_dword v2, off, off offset:8")
    gfx950.run(good, 1, 128, [unused, out]).raise_on_hazards()
    assert (out == np.arange(128)).all()
    for read, reason in (("offset:4", "nothing has written"), ("offset:13", "16 bytes of scratch")):
        text = scratch.format(read=f"scratch_load_dword v2, off, off {read}")
        with pytest.raises(gfx950.SimulationError, match=reason):
            gfx950.run(text, 1, 128, [unused, out])


def test_private_memory_is_timed_and_comes_back_from_l2():
    """Lanes are interleaved: a dword of a wave is 256 bytes, two lines."""
    body = """
	scratch_store_dwordx4 off, v[0:3], off offset:16
	scratch_load_dword v4, off, off offset:16
	scratch_load_dword v5, off, off offset:16
	s_waitcnt vmcnt(0)
"""
    text = kernel_text(body).replace(
        "\t\t.amdhsa_kernarg_size",
        "\t\t.amdhsa_private_segment_fixed_size 32\n\t\t.amdhsa_kernarg_size",
    )
    moved = profile(text, 4, 128, [np.zeros(1, U32), np.zeros(1, U32)]).bytes_moved
    assert moved == {"l1": 2 * (1024 + 512), "l2": 2 * (1024 + 256), "infinity": 2048, "hbm": 2048}


LAST_ARRIVER = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	s_load_dwordx2 s[8:9], s[0:1], 0x10
	v_lshlrev_b32_e32 v1, 2, v0
	s_lshl_b32 s3, s2, 8
	v_add_u32_e32 v2, s3, v1
	v_add_u32_e32 v3, s2, v0
	s_waitcnt lgkmcnt(0)
	global_store_dword v2, v3, s[4:5] sc1
	{wait}
	v_mov_b32_e32 v4, 0
	v_mov_b32_e32 v5, 1
	s_mov_b64 s[10:11], exec
	s_mov_b64 exec, 1
	global_atomic_add v6, v4, v5, s[6:7] sc0 sc1
	s_waitcnt vmcnt(0)
	v_readfirstlane_b32 s12, v6
	s_mov_b64 exec, s[10:11]
	s_cmp_lg_u32 s12, 3
	s_cbranch_scc1 .LEND
	buffer_inv sc1
	global_load_dword v10, v1, s[4:5]
	global_load_dword v11, v1, s[4:5] offset:256
	global_load_dword v12, v1, s[4:5] offset:512
	global_load_dword v13, v1, s[4:5] offset:768
	s_waitcnt vmcnt(0)
	v_add3_u32 v10, v10, v11, v12
	v_add_u32_e32 v10, v10, v13
	global_store_dword v1, v10, s[8:9]
.LEND:
"""


@pytest.mark.parametrize("order", [None, "reverse", 5, [2, 0, 3, 1]])
@pytest.mark.parametrize("batch", [1, 2, None])
@pytest.mark.parametrize("late", [False, True])
def test_the_last_arriver_sees_all_partial_sums(order, batch, late):
    text = kernel_text(LAST_ARRIVER.format(wait="s_waitcnt vmcnt(0)"))
    work, counter, out = np.zeros(256, U32), np.zeros(1, U32), np.zeros(64, U32)
    options = {"order": order, "batch": batch, "late": late}
    gfx950.run(text, 4, 64, [work, counter, out], **options).raise_on_hazards()
    assert counter[0] == 4
    assert (out == 4 * LANE + 6).all()


def test_late_mode_shows_a_release_without_a_wait():
    """The counter may be seen before the data it announces."""
    text = kernel_text(LAST_ARRIVER.format(wait=""))
    wrong = 0
    for seed in range(8):
        work, counter, out = np.zeros(256, U32), np.zeros(1, U32), np.zeros(64, U32)
        options = {"late": True, "lockstep": False, "order": seed, "batch": 4}
        gfx950.run(text, 4, 64, [work, counter, out], **options)
        wrong += (out != 4 * LANE + 6).any()
    assert wrong > 0


@pytest.mark.parametrize("wait", ["s_waitcnt vmcnt(0)", "s_waitcnt vmcnt(1)", "s_nop 0"])
def test_the_checker_sees_a_release_without_a_wait(wait):
    """In order the results are right; the last workgroup reads what the others announced."""
    text = kernel_text(LAST_ARRIVER.format(wait=wait))
    work, counter, out = np.zeros(256, U32), np.zeros(1, U32), np.zeros(64, U32)
    hazards = gfx950.run(text, 4, 64, [work, counter, out]).hazards
    assert (out == 4 * LANE + 6).all()
    if wait == "s_waitcnt vmcnt(0)":
        assert hazards == []
    else:
        assert {hazard.kind for hazard in hazards} == {"race"}
        assert "announced before workgroup" in hazards[0].reason
        assert "global_store_dword" in hazards[0].reason


FAULTS = {
    "\tv_add_u32_e32 v200, v2, v199": None,
    "\tglobal_load_dword v200, v0, s[2:3] offset:4092": "of argument 0",
    "\tglobal_store_dword v1, v1, s[2:3] offset:-4": "4-byte access to 0xfffffffffc",
    "\tv_mov_b32_e32 v5, 0x800\n\tds_write_b32 v5, v1": "LDS access at byte 2048 of 2048",
    "\tglobal_store_dword v0, v198, s[4:5]": "reads v198, which nothing has written",
    "\tglobal_load_dword v200, v198, s[2:3]": "reads v198, which nothing has written",
    "\ts_cbranch_vccz .LX\n.LX:": "reads s106, s107, which nothing has written",
    "\tds_read_b32 v200, v0\n\ts_waitcnt lgkmcnt(0)\n\tglobal_store_dword v0, v200, s[4:5]": (
        "reads v200, which nothing has written"
    ),
    "\tv_mfma_f32_16x16x16_f16 v[200:203], v[100:101], v[0:1], 0\n\ts_nop 15\n"
    "\tglobal_store_dword v0, v200, s[4:5]": "reads v200, which nothing has written",
    "\ts_load_dword s20, s[2:3], 0x8000": "of argument 0",
}


def test_the_high_word_of_an_addend_reaches_the_high_word_only():
    """As an address of 32 bits is computed, v199 may be anything; as a factor it may not."""
    sum_of = "\tv_mad_u64_u32 v[200:201], s[10:11], v{factor}, 4, v[198:199]\n"
    body = "\tv_mov_b32_e32 v198, v2\n" + sum_of
    assert (execute(body.format(factor=2), {2: LANE}, 1)[0] == 5 * LANE).all()
    for text in (body.format(factor=2) + "\tv_mov_b32_e32 v200, v201\n", body.format(factor=199)):
        with pytest.raises(gfx950.SimulationError, match="v200, which nothing has written"):
            execute(text, {2: LANE}, 1)


@pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])
@pytest.mark.parametrize("body", FAULTS)
def test_faults_name_the_instruction_and_the_reason(body, late):
    if FAULTS[body] is None:
        execute(body, {2: LANE}, [2])
        with pytest.raises(gfx950.SimulationError, match="v200, which nothing has written"):
            execute(body, {2: LANE}, 1, late=late)
        return
    with pytest.raises(gfx950.SimulationError, match=FAULTS[body]) as caught:
        execute(body, {2: LANE}, [2], lds=2048, late=late)
    assert "line " in str(caught.value)


UNKNOWN = (
    "v_frobnicate_b32 v1, v2", "v_add_u32_e32 v1, v2, v3 glorious:1", "s_waitcnt bogus(1)",
    "ds_read_b32 v1, v2 gds", "buffer_load_dword v1, v2, s[4:7], 0 tfe", "s_sendmsg 3",
    "global_load_dword v1, v0, s[2:3] wobble", "v_add_u32_e32 v1, src_shared_base, v2",
)  # fmt: skip


@pytest.mark.parametrize("instruction", UNKNOWN)
def test_anything_unknown_raises_with_its_text(instruction):
    with pytest.raises(gfx950.UnknownInstruction) as caught:
        gfx950.run(kernel_text("\t" + instruction), 1, 64, [])
    assert instruction in str(caught.value)


def test_registers_beyond_the_declared_count_raise():
    with pytest.raises(gfx950.AsmError, match="beyond the 16"):
        gfx950.run(kernel_text("\tv_mov_b32_e32 v16, 0", vgprs=16), 1, 64, [])


def test_arguments_are_checked_against_the_kernel():
    text = kernel_text("\ts_nop 0", kernarg=8)
    with pytest.raises(ValueError, match="does not fit"):
        gfx950.run(text, 1, 64, [1, 2])
    with pytest.raises(ValueError, match="C-contiguous"):
        gfx950.run(text, 1, 64, [np.zeros((4, 4))[:, ::2]])
    with pytest.raises(ValueError, match="positive sizes"):
        gfx950.run(text, 0, 64, [])


def test_an_undefined_scalar_spoils_the_lane_that_keeps_it_only():
    """Lane 5 of v20 keeps s40, which nothing has written; lane 6 keeps a scalar that is known."""
    body = """
	v_mov_b32_e32 v20, 7
	s_mov_b32 s41, 9
	v_writelane_b32 v20, s40, 5
	v_writelane_b32 v20, s41, 6
	{rest}
"""
    copy = "v_mov_b32_e32 v200, 0\n\tv_readlane_b32 s42, v20, {lane}\n\ts_nop 4"
    copy += "\n\tv_mov_b32_e32 v200, s42"
    for lane, kept in ((4, 7), (6, 9), (63, 7)):
        out = execute(body.format(rest=copy.format(lane=lane)), {}, 1)
        assert (out == kept).all()
    with pytest.raises(gfx950.SimulationError, match="nothing has written"):
        execute(body.format(rest=copy.format(lane=5)), {}, 1)
    whole = "v_mov_b32_e32 v200, v20"
    with pytest.raises(gfx950.SimulationError, match=r"nothing has written \(lane 5\)"):
        execute(body.format(rest=whole), {}, 1)
    mended = "v_writelane_b32 v20, s41, 5\n\t" + whole
    out = execute(body.format(rest=mended), {}, 1)
    assert (out[0, np.isin(LANE, (5, 6))] == 9).all()
    assert (out[0, ~np.isin(LANE, (5, 6))] == 7).all()
