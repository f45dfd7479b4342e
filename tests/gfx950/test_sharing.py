"""Claims about workgroups that share global memory: order, cache bits, for any placement.

Kernels of a few instructions; the mutations of compiled kernels are in test_sharing_mutations.py.
"""

from __future__ import annotations

import numpy as np
import pytest

import gfx950
from gfx950.machine.execute import PATIENCE
from tests.gfx950.adversary import ADVERSARIES
from tests.gfx950.support import kernel_text

U32 = np.uint32
LANE = np.arange(64, dtype=U32)
GROUPS = 4
THREADS = 128
"""Two waves: the first one speaks and listens, the second one stores and loads."""
STEPS = 4000
"""A wave that takes more waits for ever."""

START = """
	s_load_dwordx4 s[4:7], s[0:1], 0x0
	s_load_dwordx2 s[8:9], s[0:1], 0x10
	v_and_b32_e32 v20, 63, v0
	v_lshlrev_b32_e32 v1, 2, v20
	v_lshrrev_b32_e32 v21, 6, v0
	s_nop 0
	v_readfirstlane_b32 s20, v21
	s_lshl_b32 s3, s2, 8
	v_add_u32_e32 v2, s3, v1
	v_add_u32_e32 v3, s2, v20
	v_mov_b32_e32 v4, 0
	v_mov_b32_e32 v5, 1
	s_waitcnt lgkmcnt(0)
	s_cmp_eq_u32 s20, 0
"""
MEET = (
    START
    + """
	s_cbranch_scc1 .LSTORED
	{store}
	{written_back}
	{waited}
.LSTORED:
	{first_barrier}
	s_cmp_eq_u32 s20, 1
	s_cbranch_scc1 .LMET
	s_mov_b64 s[10:11], exec
	s_mov_b64 exec, 1
	{arrive}
.LPOLL:
	{poll}
	s_waitcnt vmcnt(0)
	v_readfirstlane_b32 s12, v6
	s_cmp_lg_u32 s12, 4
	s_cbranch_scc1 .LPOLL
	s_mov_b64 exec, s[10:11]
.LMET:
	{second_barrier}
	{invalidated}
	s_cmp_eq_u32 s20, 0
	s_cbranch_scc1 .LEND
	{load}
	global_load_dword v11, v1, s[4:5] offset:256{bits}
	global_load_dword v12, v1, s[4:5] offset:512{bits}
	global_load_dword v13, v1, s[4:5] offset:768{bits}
	s_waitcnt vmcnt(0)
	v_add3_u32 v10, v10, v11, v12
	v_add_u32_e32 v10, v10, v13
	global_store_dword v2, v10, s[8:9]
.LEND:
"""
)
"""Every workgroup stores 64 words, all of them arrive, and each adds up those of all."""
GOOD = {
    "store": "global_store_dword v2, v3, s[4:5] sc1",
    "written_back": "s_nop 0",
    "waited": "s_waitcnt vmcnt(0)",
    "first_barrier": "s_barrier",
    "arrive": "global_atomic_add v4, v5, s[6:7]",
    "poll": "global_load_dword v6, v4, s[6:7] sc1",
    "second_barrier": "s_barrier",
    "invalidated": "buffer_inv sc1",
    "load": "global_load_dword v10, v1, s[4:5]",
    "bits": "",
}
LEGAL = {
    "as it is": {},
    "written back": {"store": "global_store_dword v2, v3, s[4:5]",
                     "written_back": "buffer_wbl2 sc1"},
    "system scope": {"store": "global_store_dword v2, v3, s[4:5] sc0 sc1",
                     "poll": "global_load_dword v6, v4, s[6:7] sc0 sc1"},
    "loads that ask memory": {"invalidated": "s_nop 0", "bits": " sc1",
                              "load": "global_load_dword v10, v1, s[4:5] sc1"},
    "an atomic that polls": {"poll": "global_atomic_add v6, v4, v4, s[6:7] sc0"},
    "streaming": {"store": "global_store_dword v2, v3, s[4:5] sc1 nt"},
}  # fmt: skip
ILLEGAL = {
    "no first barrier": ({"first_barrier": "s_nop 0"}, "read without order"),
    "no second barrier": ({"second_barrier": "s_nop 0"}, "read without order"),
    "no wait": ({"waited": "s_nop 0"}, "read without order"),
    "store without sc1": ({"store": "global_store_dword v2, v3, s[4:5]"}, "without buffer_wbl2"),
    "store with sc0": ({"store": "global_store_dword v2, v3, s[4:5] sc0"}, "without buffer_wbl2"),
    "write-back too narrow": (
        {"store": "global_store_dword v2, v3, s[4:5]", "written_back": "buffer_wbl2 sc0"},
        "without buffer_wbl2",
    ),
    "poll without sc1": ({"poll": "global_load_dword v6, v4, s[6:7]"}, "without order"),
    "poll with sc0": ({"poll": "global_load_dword v6, v4, s[6:7] sc0"}, "without order"),
    "no invalidation": ({"invalidated": "s_nop 0"}, "no buffer_inv sc1"),
    "invalidation of L1 alone": ({"invalidated": "buffer_inv sc0"}, "no buffer_inv sc1"),
    "one load without": (
        {"invalidated": "s_nop 0", "load": "global_load_dword v10, v1, s[4:5] sc1"},
        "no buffer_inv sc1",
    ),
    "scalar load": (
        {"load": "s_load_dword s21, s[4:5], 0x0\n\tv_mov_b32_e32 v10, 0"}, "scalar cache",
    ),
    "flag by a plain store": (
        {"arrive": "global_store_dword v4, v5, s[6:7]"}, "without order",
    ),
}  # fmt: skip
MODES = pytest.mark.parametrize("late", [False, True], ids=["at_once", "late"])


def meet(changes=(), **options):
    """Runs four workgroups together; returns their sums and what the checker says."""
    text = kernel_text(MEET.format(**{**GOOD, **dict(changes)}))
    work, counter = np.zeros(256, U32), np.zeros(1, U32)
    out = np.zeros(256, U32)
    result = gfx950.run(text, GROUPS, THREADS, [work, counter, out], **options)
    return out.reshape(GROUPS, 64), result.hazards


@MODES
@pytest.mark.parametrize("name", LEGAL)
def test_every_legal_way_to_meet_is_accepted(name, late):
    out, hazards = meet(LEGAL[name], late=late)
    assert hazards == []
    assert (out == 4 * LANE + 6).all()


@MODES
@pytest.mark.parametrize("name", [name for name in ILLEGAL if name != "flag by a plain store"])
def test_whatever_is_missing_is_named(name, late):
    changes, reason = ILLEGAL[name]
    _, hazards = meet(changes, late=late)
    assert {hazard.kind for hazard in hazards} == {"race"}
    assert any(reason in hazard.reason for hazard in hazards), hazards


@pytest.mark.parametrize("name", [*LEGAL, *(name for name in ILLEGAL if "flag" not in name)])
def test_adversaries_that_do_not_know_the_checker_agree_with_it(name):
    """What it accepts they cannot change; what it refuses gives other sums, or waits for ever."""
    changes = LEGAL[name] if name in LEGAL else ILLEGAL[name][0]
    kernel = gfx950.parse(kernel_text(MEET.format(**{**GOOD, **changes})))

    def launch():
        work, counter, out = np.zeros(256, U32), np.zeros(1, U32), np.zeros(256, U32)
        return (GROUPS, 1, 1), THREADS, [work, counter, out], (out,)

    expected = [np.tile(4 * LANE + 6, GROUPS).tobytes()]
    found = []
    for adversary in ADVERSARIES:
        try:
            found.append(adversary.run(kernel, launch, steps=STEPS) == expected)
        except gfx950.SimulationError as error:
            assert f"not ended after {STEPS} steps" in str(error)
            found.append(False)
    assert all(found) == (name in LEGAL)


@pytest.mark.parametrize("order", [None, "reverse", 3])
def test_the_verdict_depends_on_no_order_of_workgroups(order):
    assert meet(order=order)[1] == []
    for changes, _ in (ILLEGAL["no second barrier"], ILLEGAL["no invalidation"]):
        assert meet(changes, order=order)[1]


def test_in_order_no_cache_bit_shows():
    """Why the caches are judged, not imitated: every variant computes the right sums."""
    for name in ("store without sc1", "poll without sc1", "no invalidation"):
        out, _ = meet(ILLEGAL[name][0])
        assert (out == 4 * LANE + 6).all()


FLAG = (
    START
    + """
	s_cbranch_scc0 .LEND
	s_cmp_eq_u32 s2, 0
	s_cbranch_scc0 .LREADER
	global_store_dword v1, v3, s[4:5] sc1
	{waited}
	s_mov_b64 exec, {lanes}
	{flag}
	s_branch .LEND
.LREADER:
	{poll}
	s_waitcnt vmcnt(0)
	v_readfirstlane_b32 s12, v6
	s_cmp_lg_u32 s12, 1
	s_cbranch_scc1 .LREADER
	buffer_inv sc1
	global_load_dword v10, v1, s[4:5]
	s_waitcnt vmcnt(0)
	global_store_dword v1, v10, s[8:9]
.LEND:
"""
)
"""One workgroup stores and raises a flag, without atomics; another one waits for it."""
GOOD_FLAG = {
    "waited": "s_waitcnt vmcnt(0)",
    "lanes": "1",
    "flag": "global_store_dword v4, v5, s[6:7] sc1",
    "poll": "global_load_dword v6, v4, s[6:7] sc1",
}


@MODES
@pytest.mark.parametrize(
    "changes, reason",
    [
        ({}, None),
        ({"waited": "s_nop 0"}, "announced before workgroup 0 had waited"),
        ({"flag": "global_store_dword v4, v5, s[6:7]"}, "without order"),
        ({"poll": "global_load_dword v6, v4, s[6:7]"}, "without order"),
    ],
)
def test_a_flag_announces_like_an_atomic(changes, reason, late):
    text = kernel_text(FLAG.format(**{**GOOD_FLAG, **changes}))
    args = [np.zeros(64, U32), np.zeros(1, U32), np.zeros(64, U32)]
    hazards = gfx950.run(text, 2, THREADS, args, late=late).hazards
    if reason is None:
        assert hazards == []
    else:
        assert any(reason in hazard.reason for hazard in hazards)


QUEUE = """
.LWAIT{number}:
	global_load_dword v6, v4, s[6:7] sc1
	s_waitcnt vmcnt(0)
	v_readfirstlane_b32 s12, v6
	s_cmp_lg_u32 s12, 1
	s_cbranch_scc1 .LWAIT{number}
	s_branch .LEND
"""


@MODES
@pytest.mark.parametrize("waiting", [1, 2, 3])
def test_waves_that_wait_at_different_places_let_the_one_run_that_they_wait_for(waiting, late):
    """It comes last in the code, and waves in step run from the first place on."""
    to = "\ts_cmp_eq_u32 s2, {number}\n\ts_cbranch_scc1 .LWAIT{number}\n"
    body = START + "".join(to.format(number=i) for i in range(waiting))
    body += "\ts_branch .LRAISE\n" + "".join(QUEUE.format(number=i) for i in range(waiting))
    body += ".LRAISE:\n\tglobal_store_dword v4, v5, s[6:7] sc1\n.LEND:\n"
    args = [np.zeros(64, U32), np.zeros(1, U32), np.zeros(64, U32)]
    options = {"late": late, "steps": 10 * PATIENCE * waiting}
    assert gfx950.run(kernel_text(body), waiting + 1, 64, args, **options).hazards == []


OVERTAKES = (
    START
    + """
	s_cbranch_scc0 .LEND
	s_cmp_eq_u32 s2, 1
	s_cbranch_scc1 .LWRITER
	global_load_dword v10, v1, s[4:5]
	s_waitcnt vmcnt(0)
	global_store_dword v1, v10, s[8:9]
	s_branch .LEND
.LWRITER:
	global_store_dword v1, v3, s[4:5]
.LEND:
"""
)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_a_read_and_a_write_without_order_are_a_race_whichever_ran_first(order):
    args = [np.zeros(64, U32), np.zeros(1, U32), np.zeros(64, U32)]
    hazards = gfx950.run(kernel_text(OVERTAKES), 2, THREADS, args, order=order, batch=1).hazards
    assert len(hazards) == 1
    assert "without order after workgroup" in hazards[0].reason


@pytest.mark.parametrize("batch", [1, 4])
def test_bytes_of_one_word_may_belong_to_different_workgroups(batch):
    body = START + "\tv_mov_b32_e32 v7, {where}\n\tv_mov_b32_e32 v8, {what}\n"
    body += "\tglobal_store_byte v7, v8, s[4:5]\n"
    for where, what, races in (("s2", "s2", 0), ("0", "7", 0), ("0", "s2", 1)):
        args = [np.zeros(4, np.uint8), np.zeros(1, U32), np.zeros(64, U32)]
        text = kernel_text(body.format(where=where, what=what))
        assert len(gfx950.run(text, 4, 64, args, batch=batch).hazards) == races


def test_waves_of_a_workgroup_need_a_barrier_and_no_cache_bit():
    body = (
        START
        + """
	s_cbranch_scc0 .LSECOND
	global_store_dword v2, v3, s[4:5]
	s_waitcnt vmcnt(0)
.LSECOND:
	{barrier}
	s_cbranch_scc1 .LEND
	global_load_dword v10, v2, s[4:5]
	s_waitcnt vmcnt(0)
	global_store_dword v2, v10, s[8:9]
.LEND:
"""
    )
    args = [np.zeros(256, U32), np.zeros(1, U32), np.zeros(256, U32)]
    text = kernel_text(body.format(barrier="s_barrier"))
    assert gfx950.run(text, GROUPS, THREADS, args).hazards == []
    hazards = gfx950.run(kernel_text(body.format(barrier="s_nop 0")), 4, THREADS, args).hazards
    assert "no wait and barrier after wave 0 wrote it" in hazards[0].reason
