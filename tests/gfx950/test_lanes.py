"""What the sorting of slots by expert relies on: who is which lane, and who comes before whom.

`route_slots` (mojo_kernels/cdna4/experts/routing.mojo) is compiled to the instructions of
`LANES_OF` where lanes exchange anything; tests/cdna4/test_expert_routes.py compares the list with
the machine code. The claims are the manual's text of each, over every lane, index or mask there is:

    v_cmp, s_bcnt1       bit i of a vote is lane i, 0 for lanes that EXEC leaves out
    v_mbcnt_lo, _hi      how many of the bits below the lane's own, of either word, whatever EXEC
    v_readlane           one lane, six bits of the index, whatever EXEC; v_writelane the same
    v_readfirstlane      the lowest lane of EXEC, lane 0 if there is none
    row_shr, row_bcast   what earlier lanes have; zero where no lane is, or where it is left out
    ds_write, ds_read    an address for each lane
"""

from __future__ import annotations

import numpy as np
import pytest

from tests.gfx950.support import LANES, execute

U32 = np.uint32
LANE = np.arange(LANES)
VALUES = (LANE * 2654435761 + 12345).astype(U32)
"""Different ones."""
MOVES = [*(("row_shr", n) for n in (1, 2, 4, 8)), ("row_bcast", 15), ("row_bcast", 31)]
ROW = 16
ZEROES = "bank_mask:0xf bound_ctrl:1"
ALL = 2**64 - 1
SOME = 0x00FF00FF0F0F3355
MASKS = [0, 1, ALL, 1 << 63, 0xAAAAAAAAAAAAAAAA, SOME, 0xFFFFFFFF, ALL << 32 & ALL]
LANES_OF = {
    "v_add_u32_dpp row_shr": {1, 2, 4, 8},
    "v_mov_b32_dpp row_shr": {1, 2, 4, 8},
    "v_mov_b32_dpp row_bcast": {15, 31},
    "v_mbcnt_lo_u32_b32": set(),
    "v_mbcnt_hi_u32_b32": set(),
    "v_readlane_b32": set(),
    "v_writelane_b32": set(),
    "v_readfirstlane_b32": set(),
}
"""What of a kernel moves something from lane to lane, with the numbers of its controls."""


def words(mask: int) -> tuple[int, int]:
    """Returns the low and the high half of a mask."""
    return mask & 0xFFFFFFFF, mask >> 32


def under(mask: int, body: str) -> str:
    """Returns code that runs with the lanes of a mask, and has all of them again after it."""
    low, high = words(mask)
    return (
        f"\ts_mov_b32 exec_lo, 0x{low:x}\n\ts_mov_b32 exec_hi, 0x{high:x}\n\ts_nop 4\n{body}\n"
        "\ts_nop 4\n\ts_mov_b64 exec, -1\n\ts_nop 4\n"
    )


def bits_of(mask: int) -> np.ndarray:
    """Returns a bit for each lane."""
    return np.array([mask >> lane & 1 for lane in range(LANES)])


@pytest.mark.parametrize("exec_", MASKS)
def test_bit_i_of_a_vote_is_lane_i(exec_):
    for lane in range(LANES):
        value = int(VALUES[lane])
        vote = f"\ts_mov_b32 s20, 0x{value:x}\n\tv_cmp_eq_u32_e64 s[10:11], s20, v2"
        count = "\ts_nop 4\n\ts_bcnt1_i32_b64 s12, s[10:11]\n"
        out = "".join(f"\tv_mov_b32_e32 v{200 + i}, s{10 + i}\n" for i in range(3))
        low, high, ones = execute(under(exec_, vote) + count + out, {2: VALUES}, 3)[:, 0]
        assert (int(high) << 32 | int(low)) == exec_ & 1 << lane
        assert ones == exec_ >> lane & 1


@pytest.mark.parametrize("exec_", [ALL, SOME])
def test_mbcnt_counts_the_bits_below_a_lane_whichever_lanes_run(exec_):
    for mask in [*MASKS, *(1 << lane for lane in range(LANES))]:
        low, high = words(mask)
        set_up = f"\ts_mov_b32 s10, 0x{low:x}\n\ts_mov_b32 s11, 0x{high:x}\n"
        set_up += "\tv_mov_b32_e32 v200, 0\n"
        both = "\tv_mbcnt_lo_u32_b32 v200, s10, 3\n\ts_nop 4\n\tv_mbcnt_hi_u32_b32 v200, s11, v200"
        found = execute(set_up + under(exec_, both), {}, 1)[0]
        below = np.concatenate([[0], np.cumsum(bits_of(mask))[:-1]])
        assert (found == np.where(bits_of(exec_), 3 + below, 0)).all()


@pytest.mark.parametrize("exec_", [ALL, 1 << 7])
def test_any_lane_is_read_by_six_bits_of_its_number_whichever_lanes_run(exec_):
    for index in [*range(LANES), 64, 127, 0xFFFFFFC5]:
        read = f"\ts_mov_b32 s20, 0x{index:x}\n\ts_nop 4\n\tv_readlane_b32 s10, v2, s20"
        out = "\tv_mov_b32_e32 v200, s10\n"
        assert (execute(under(exec_, read) + out, {2: VALUES}, 1)[0] == VALUES[index % LANES]).all()


@pytest.mark.parametrize("exec_", [ALL, 1 << 7])
def test_any_lane_is_written_by_six_bits_of_its_number_whichever_lanes_run(exec_):
    for index in [*range(LANES), 64, 127]:
        write = f"\ts_mov_b32 s20, 77\n\ts_mov_b32 m0, {index}\n\ts_nop 4\n"
        write += "\tv_writelane_b32 v200, s20, m0"
        found = execute("\tv_mov_b32_e32 v200, v2\n" + under(exec_, write), {2: VALUES}, 1)[0]
        assert (found == np.where(LANE == index % LANES, 77, VALUES)).all()


def test_the_first_lane_is_the_lowest_that_runs_or_lane_0():
    from_each_on = (ALL << lane & ALL for lane in range(LANES))
    for exec_ in [*MASKS, *(1 << lane for lane in range(LANES)), *from_each_on]:
        read = "\tv_readfirstlane_b32 s10, v2"
        found = execute(under(exec_, read) + "\tv_mov_b32_e32 v200, s10\n", {2: VALUES}, 1)[0]
        lowest = (exec_ & -exec_).bit_length() - 1 if exec_ else 0
        assert (found == VALUES[lowest]).all()


def source_of(control: str, number: int) -> np.ndarray:
    """Returns the lane whose value each lane gets, -1 for none."""
    if control == "row_shr":
        return np.where(LANE % ROW >= number, LANE - number, -1)
    return np.where(LANE > number, LANE // ROW * ROW - 1 if number == 15 else 31, -1)


@pytest.mark.parametrize("exec_", [ALL, SOME, *(ALL ^ 1 << lane for lane in (0, 15, 31, 47, 63))])
@pytest.mark.parametrize("control, number", MOVES)
def test_lanes_get_what_earlier_ones_have_and_zero_where_none_is(control, number, exec_):
    """In all rows that each of the 16 masks lets write; the others keep what they have."""
    moves = "\n".join(
        f"\tv_mov_b32_dpp v{200 + rows}, v2 {control}:{number} row_mask:0x{rows:x} {ZEROES}"
        for rows in range(16)
    )
    kept = "".join(f"\tv_mov_b32_e32 v{200 + rows}, 7\n" for rows in range(16))
    found = execute(kept + under(exec_, moves), {2: VALUES}, 16)
    runs, source = bits_of(exec_).astype(bool), source_of(control, number)
    moved = np.where((source >= 0) & runs[source], VALUES[source], 0)
    for rows in range(16):
        writes = runs & (rows >> LANE // ROW & 1).astype(bool)
        assert (found[rows] == np.where(writes, moved, 7)).all()


def test_sums_of_lanes_are_of_all_lanes_up_to_each():
    """Four shifts within rows, then ends of rows: linear, so a one in each lane says all of it."""
    rows = {15: 0xA, 31: 0xC}
    body = "\tv_mov_b32_e32 v200, v2\n" + "".join(
        "\tv_mov_b32_e32 v201, 0\n\ts_nop 4\n"
        f"\tv_mov_b32_dpp v201, v200 {control}:{number} row_mask:0x{rows.get(number, 15):x} "
        f"{ZEROES}\n\ts_nop 4\n\tv_add_u32_e32 v200, v200, v201\n\ts_nop 4\n"
        for control, number in MOVES
    )
    for lane in range(LANES):
        assert (execute(body, {2: LANE == lane}, 1)[0] == (LANE >= lane)).all()
    assert (execute(body, {2: VALUES}, 1)[0] == np.cumsum(VALUES, dtype=U32)).all()


def test_each_lane_has_its_own_address_of_lds():
    order = LANE[::-1]
    body = (
        "\tds_write_b16 v2, v1\n\ts_waitcnt lgkmcnt(0)\n\tds_read_u16 v200, v3\n"
        "\ts_waitcnt lgkmcnt(0)\n"
    )
    places = np.random.default_rng(0).permutation(LANES)
    found = execute(body, {2: 2 * places, 3: 2 * order}, 1, lds=4096)[0]
    assert (found == np.argsort(places)[order]).all()
