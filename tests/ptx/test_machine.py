"""The interpreter itself, on small kernels: what it computes and what it refuses."""

import numpy as np
import pytest

from tests.ptx import warp
from tests.ptx.machine import Launch, Module
from tests.ptx.memory import Fault, Memory, fresh_address

HEAD = ".version 8.5\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
.reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<20>; .reg .b64 %rd<9>;
ld.param.b64 %rd1, [k_0]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
"""


def run(body, out, *, threads=32, grid=1, cluster=0, shared=0, seed=0, declared=""):
    """Runs a kernel that gets the address of `out`."""
    text = f"{HEAD}.extern .shared .align 1024 .b8 dyn[];\n{declared}\n"
    text += f".visible .entry k(.param .u64 k_0)\n{{{REGISTERS}{body}\nret;}}"
    memory, address = Memory(), fresh_address(0)
    memory.add(address, out.reshape(-1).view(np.uint8), "out")
    given = [address.to_bytes(8, "little")]
    launch = Launch(Module(text), "k", (grid, 1, 1), threads, given, memory, cluster=cluster,
                    shared_bytes=shared, seed=seed)  # fmt: skip
    launch.run()
    return out


def words(count=32):
    return np.full(count, 0xABCD, np.uint32)


def waits_at(barrier):
    """Returns a wait for the first phase of the barrier at an address."""
    return f"""
    mov.b32 %r4, 0;
    {{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [{barrier}], %r4;
      @!done bra again; }}
    """


WORD_AND_ONE = """
shl.b32 %r5, %r1, 2; add.s32 %r5, %r5, %r3; ld.shared.b32 %r7, [%r5];
add.s32 %r7, %r7, 1; st.global.b32 [%rd3], %r7;
"""
"""A thread's word of what begins at %r3, and one more."""


def test_lanes_that_part_meet_again():
    body = """
    and.b32 %r2, %r1, 1; setp.eq.b32 %p1, %r2, 0; mov.b32 %r3, 5;
    @%p1 bra even; mov.b32 %r3, 7; bra join; even: mov.b32 %r3, 9;
    join: shfl.sync.bfly.b32 %r4, %r3, 1, 31, -1; st.global.b32 [%rd3], %r4;
    """
    assert np.array_equal(run(body, words()), np.where(np.arange(32) % 2, 9, 7))


def test_a_loop_ends_for_each_lane():
    body = """
    mov.b32 %r2, 0; again: add.s32 %r2, %r2, 3; setp.lt.u32 %p1, %r2, %r1; @%p1 bra again;
    st.global.b32 [%rd3], %r2;
    """
    assert np.array_equal(run(body, words()), np.maximum(-(-np.arange(32) // 3) * 3, 3))


@pytest.mark.parametrize("by", [0, 1, 5, 31, 32, 33, 63, 64, 100])
@pytest.mark.parametrize("kind", ["s64", "u64", "s32", "u32"])
def test_shifts_by_numbers_and_by_registers_are_the_same(kind, by):
    """Of -2^62 + 3 x, or its lower half: what is shifted too far is zero, or the sign."""
    width, register = int(kind[1:]), {"64": "%rd", "32": "%r"}[kind[1:]]
    body = f"""
    mov.b64 %rd4, 0xC000000000000000; mul.wide.u32 %rd5, %r1, 3; add.s64 %rd4, %rd4, %rd5;
    cvt.u32.u64 %r4, %rd4; or.b32 %r4, %r4, 0x80000000; mov.b32 %r2, {by};
    shr.{kind} {register}5, {register}4, {by}; shr.{kind} {register}6, {register}4, %r2;
    shl.b{width} {register}7, {register}4, {by}; shl.b{width} {register}8, {register}4, %r2;
    {{ .reg .b64 a, b, c, d; cvt.u64.u{width} a, {register}5; cvt.u64.u{width} b, {register}6;
    cvt.u64.u{width} c, {register}7; cvt.u64.u{width} d, {register}8;
    mul.wide.u32 %rd6, %r1, 32; add.s64 %rd6, %rd6, %rd1;
    st.global.v2.b64 [%rd6], {{a, b}}; st.global.v2.b64 [%rd6+16], {{c, d}}; }}
    """
    got = run(body, np.zeros((32, 4), np.uint64))
    numbers = [(0xC000000000000000 + 3 * x) % 2**64 for x in range(32)]
    numbers = [(x | 1 << 31) % 2**width for x in numbers] if width == 32 else numbers
    signed = [x - (x >> width - 1 << width) if kind[0] == "s" else x for x in numbers]
    for i, (bits, value) in enumerate(zip(numbers, signed, strict=True)):
        right, left = (value >> by) % 2**width, (bits << by) % 2**width
        assert got[i].tolist() == [right, right, left, left]


def test_instructions_that_became_one_function_give_the_same_bits(monkeypatch):
    """Of every kind, where all lanes go and where only some do."""
    body = """
    mov.b32 %r2, 0; mov.b32 %r3, 0x9E3779B9; mov.u32 %r13, %laneid;
    again: mad.lo.s32 %r3, %r3, 1664525, %r1; shl.b32 %r4, %r3, 3; shr.s32 %r5, %r3, 7;
    shr.u32 %r6, %r3, %r2; prmt.b32 %r7, %r3, %r5, 0x5410; prmt.b32 %r8, %r7, %r4, %r3;
    lop3.b32 %r9, %r4, %r5, %r6, 0xCA; lop3.b32 %r10, %r9, %r8, %r3, 0x96;
    mul.wide.u32 %rd4, %r10, %r9; mov.b64 {%r11, _}, %rd4; mov.b32 {%rs1, %rs2}, %r11;
    max.s16 %rs3, %rs1, %rs2; mov.b32 %r12, {%rs3, %rs1}; xor.b32 %r3, %r3, %r12;
    cvt.rn.f32.u32 %r14, %r11; mul.f32 %r14, %r14, 0f33800000; cvt.rzi.s32.f32 %r15, %r14;
    cvt.rn.bf16x2.f32 %r16, %r14, %r14; fma.rn.bf16x2 %r16, %r16, %r16, %r16;
    setp.lt.s32 %p1, %r3, %r15; setp.ne.and.u32 %p2, %r1, 3, !%p1; selp.b32 %r17, %r16, %r9, %p2;
    xor.b32 %r3, %r3, %r17; and.b32 %r18, %r3, 7; setp.lt.u32 %p3, %r18, %r2; @%p3 bra skip;
    add.s32 %r3, %r3, %r13; bfe.u32 %r19, %r3, 5, 9; bfi.b32 %r3, %r19, %r3, 20, 9;
    not.b32 %r3, %r3; clz.b32 %r19, %r3; add.s32 %r3, %r3, %r19;
    skip: add.s32 %r2, %r2, 1; setp.lt.u32 %p4, %r2, 60; @%p4 bra again;
    st.global.b32 [%rd3], %r3;
    """
    found = {}
    for often in (1, 7, 10**9):
        monkeypatch.setattr(warp, "OFTEN", often)
        found[often] = run(body, words())
    assert len(np.unique(found[1])) > 30
    assert np.array_equal(found[1], found[7]) and np.array_equal(found[1], found[10**9])


@pytest.mark.parametrize("seed", range(5))
def test_warps_wait_for_each_other(seed):
    body = """
    mov.b32 %r2, dyn; shl.b32 %r3, %r1, 2; add.s32 %r3, %r3, %r2; st.shared.b32 [%r3], %r1;
    bar.sync 0; xor.b32 %r4, %r1, 127; shl.b32 %r4, %r4, 2; add.s32 %r4, %r4, %r2;
    ld.shared.b32 %r5, [%r4]; st.global.b32 [%rd3], %r5;
    """
    got = run(body, words(128), threads=128, shared=512, seed=seed)
    assert np.array_equal(got, 127 - np.arange(128))


@pytest.mark.parametrize("seed", range(5))
def test_a_copy_is_there_when_its_barrier_says_so(seed):
    body = """
    mov.b32 %r2, dyn; add.s32 %r3, %r2, 16; setp.ne.b32 %p1, %r1, 0; mov.b32 %r6, 128;
    @%p1 bra there; mov.b32 %r4, 1; mbarrier.init.shared.b64 [%r2], %r4;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r2], %r6;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1], %r6, [%r2];
    there: bar.sync 0;
    """
    body += waits_at("%r2") + WORD_AND_ONE
    out = np.arange(64, dtype=np.uint32)
    got = run(body, out, threads=32, shared=256, seed=seed)
    assert np.array_equal(got[:32], 1 + np.arange(32))


@pytest.mark.parametrize("seed", range(5))
def test_a_barrier_is_told_of_the_copies_that_were_started_before(seed):
    body = """
    mov.b32 %r2, dyn; add.s32 %r3, %r2, 16; setp.ne.b32 %p1, %r1, 0;
    @%p1 bra there; mov.b32 %r4, 32; mbarrier.init.shared.b64 [%r2], %r4;
    there: bar.sync 0; shl.b32 %r5, %r1, 4; add.s32 %r5, %r5, %r3;
    mul.wide.u32 %rd4, %r1, 16; add.s64 %rd4, %rd1, %rd4;
    setp.gt.u32 %p1, %r1, 31; @%p1 bra wait;
    cp.async.cg.shared.global [%r5], [%rd4], 16;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r2];
    wait:
    """
    body += waits_at("%r2") + WORD_AND_ONE
    out = np.arange(128, dtype=np.uint32)
    got = run(body, out, threads=64, shared=1024, seed=seed)
    assert np.array_equal(got[:64], 1 + np.arange(64))


@pytest.mark.parametrize("wait", ["wait_group", "wait_group.read"])
def test_a_copy_out_reads_shared_memory_as_late_as_its_wait_allows(wait):
    body = """
    mov.b32 %r2, dyn; shl.b32 %r3, %r1, 2; add.s32 %r3, %r3, %r2; st.shared.b32 [%r3], %r1;
    bar.sync 0; mov.b32 %r6, 64; setp.ne.b32 %p1, %r1, 0; @%p1 bra there;
    cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], %r6;
    cp.async.bulk.commit_group; mov.b32 %r7, 77; st.shared.b32 [%r2], %r7;
    cp.async.bulk.WAIT 0;
    there: bar.sync 0;
    """
    got = run(body.replace("WAIT", wait), words(), shared=128)
    assert got.tolist() == [77, *range(1, 16), *[0xABCD] * 16]


@pytest.mark.parametrize("seed", range(3))
def test_groups_of_a_cluster_read_each_others_memory(seed):
    body = """
    mov.u32 %r2, %cluster_ctarank; mov.b32 %r3, dyn; st.shared.b32 [%r3], %r2;
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    xor.b32 %r4, %r2, 1; mapa.shared::cluster.u32 %r5, %r3, %r4;
    ld.shared::cluster.u32 %r6, [%r5]; mov.u32 %r7, %ctaid.x; mul.wide.u32 %rd4, %r7, 4;
    add.s64 %rd5, %rd1, %rd4; setp.ne.b32 %p1, %r1, 0; @%p1 bra last;
    st.global.b32 [%rd5], %r6; last:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    got = run(body, words(4), grid=4, cluster=2, shared=16, seed=seed)
    assert got.tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("seed", range(3))
def test_what_groups_of_a_cluster_send_each_other_is_there_when_the_barrier_says_so(seed):
    body = """
    mov.u32 %r2, %cluster_ctarank; mov.b32 %r3, dyn; setp.ne.b32 %p1, %r1, 0; mov.b32 %r4, 1;
    @%p1 bra made; mbarrier.init.shared.b64 [%r3], %r4; fence.mbarrier_init.release.cluster;
    mov.b32 %r6, 8; mbarrier.arrive.expect_tx.shared.b64 _, [%r3], %r6; made:
    barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; @%p1 bra sent;
    mov.b32 %r4, 0; add.s32 %r5, %r2, 40; BOTH sent: WAITS
    ld.shared.u32 %r6, [%r3+8]; ld.shared.u32 %r7, [%r3+12]; mul.lo.u32 %r7, %r7, 100;
    add.s32 %r6, %r6, %r7; mov.u32 %r7, %ctaid.x; mul.wide.u32 %rd4, %r7, 4;
    add.s64 %rd5, %rd1, %rd4; @%p1 bra last; st.global.b32 [%rd5], %r6; last:
    """
    send = """
    shl.b32 %r6, %r2, 2; add.s32 %r6, %r6, %r3; add.s32 %r6, %r6, 8; mov.b32 %r7, PEER;
    mapa.shared::cluster.u32 %r6, %r6, %r7; mapa.shared::cluster.u32 %r4, %r3, %r7;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r6], %r5, [%r4];
    """
    body = body.replace("BOTH", send.replace("PEER", "0") + send.replace("PEER", "1"))
    body = body.replace("WAITS", waits_at("%r3"))
    got = run(body, words(4), grid=4, cluster=2, shared=32, seed=seed)
    assert got.tolist() == [4140] * 4


COPIES_TO_A_PEER = """
    mov.u32 %r2, %cluster_ctarank; mov.b32 %r3, dyn; setp.ne.b32 %p1, %r1, 0; mov.b32 %r4, 1;
    @%p1 bra made; mbarrier.init.shared.b64 [%r3], %r4; fence.mbarrier_init.release.cluster;
    mov.b32 %r6, 16; mbarrier.arrive.expect_tx.shared.b64 _, [%r3], %r6;
    add.s32 %r5, %r2, 40; st.shared.b32 [%r3+16], %r5; fence.proxy.async.shared::cta; made:
    barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned; @%p1 bra sent;
    xor.b32 %r7, %r2, 1; add.s32 %r8, %r3, 32; add.s32 %r9, %r3, 16;
    mapa.shared::cluster.u32 %r8, %r8, %r7; mapa.shared::cluster.u32 %r4, %r3, %r7;
    cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r8], [%r9], %r6, [%r4];
    sent: END
    """


@pytest.mark.parametrize("seed", range(3))
def test_what_a_group_copies_to_another_is_there_when_the_barrier_says_so(seed):
    waits = waits_at("%r3")
    waits += """
    ld.shared.u32 %r6, [%r3+32]; mov.u32 %r7, %ctaid.x; mul.wide.u32 %rd4, %r7, 4;
    add.s64 %rd5, %rd1, %rd4; @%p1 bra last; st.global.b32 [%rd5], %r6; last:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    got = run(
        COPIES_TO_A_PEER.replace("END", waits), words(4), grid=4, cluster=2, shared=48, seed=seed
    )
    assert got.tolist() == [41, 40, 41, 40]


def test_a_group_that_ends_before_what_it_copies_is_read_is_a_fault():
    waits = "setp.eq.b32 %p2, %r2, 0; @%p2 bra last;" + waits_at("%r3") + "last:"
    with pytest.raises(Fault, match="ended before"):
        for seed in range(8):
            run(COPIES_TO_A_PEER.replace("END", waits), words(4), grid=2, cluster=2, shared=48,
                seed=seed)  # fmt: skip


def test_fragments_of_a_product_are_where_they_should_be():
    body = """
    mov.b32 %r2, 0x3f803f80; mov.b32 %r3, 0; setp.lt.u32 %p1, %r1, 4;
    selp.b32 %r4, %r2, %r3, %p1;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r5, %r6, %r7, %r8},
      {%r4, %r3, %r4, %r3}, {%r2, %r2}, {%r3, %r3, %r3, %r3};
    st.global.b32 [%rd3], %r5;
    """
    got = run(body, words()).view(np.float32)
    assert got.tolist() == [16.0] * 4 + [0.0] * 28


def test_a_function_is_called():
    declared = """
    .func (.param .b32 twice_r) twice(.param .b32 twice_0)
    { .reg .b32 %r<3>; ld.param.b32 %r1, [twice_0]; add.s32 %r2, %r1, %r1;
      st.param.b32 [twice_r], %r2; ret; }
    """
    body = """
    { .param .b32 given; .param .b32 got; st.param.b32 [given], %r1;
      call.uni (got), twice, (given); ld.param.b32 %r4, [got]; }
    st.global.b32 [%rd3], %r4;
    """
    assert np.array_equal(run(body, words(), declared=declared), 2 * np.arange(32))


BESIDE = {
    "behind": "ld.global.b32 %r4, [%rd3+4];",
    "before": "ld.global.b32 %r4, [%rd1+-4];",
    "four words": "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd1+128];",
    "far": "mov.b64 %rd4, 0x900000000; add.s64 %rd4, %rd4, %rd1; ld.global.b32 %r4, [%rd4];",
    "copy": "cp.async.cg.shared.global [%r2], [%rd1+128], 16; cp.async.wait_all;",
    "atom": "atom.global.add.u32 %r4, [%rd3+4], %r1;",
    "bulk": "mov.b32 %r6, 128; setp.ne.b32 %p1, %r1, 0; @%p1 bra there; mov.b32 %r4, 1;"
    "mbarrier.init.shared.b64 [%r2], %r4; mbarrier.arrive.expect_tx.shared.b64 _, [%r2], %r6;"
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    " [%r3], [%rd1+16], %r6, [%r2]; there: bar.sync 0;" + waits_at("%r2"),
    "bulk out": "setp.ne.b32 %p1, %r1, 0; @%p1 bra there; mov.b32 %r6, 128;"
    "cp.async.bulk.global.shared::cta.bulk_group [%rd1+16], [%r2], %r6;"
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; there: bar.sync 0;",
}
"""Accesses to what is no part of 128 bytes, or not all of it."""


@pytest.mark.parametrize("access", BESIDE)
def test_what_lies_beside_a_buffer_is_out_of_reach(access):
    """However near another one is in the memory of this process."""
    with pytest.raises(Fault, match=r"(loads|stores) \d+ bytes at (out \+ |.*before all buffers)"):
        run(f"mov.b32 %r2, dyn; add.s32 %r3, %r2, 16; {BESIDE[access]}", words(), shared=256)


def test_a_prefetch_reaches_anything():
    run("prefetch.global.L2 [%rd1+4096];", words())


@pytest.mark.parametrize(
    "body, message",
    [
        ("st.global.b32 [%rd3+4], %r1;", "out"),
        ("st.global.b32 [%rd3+2], %r1;", "aligned"),
        ("mov.b32 %r2, 64; st.shared.b32 [%r2], %r1;", "shared memory"),
        ("mov.b32 %r2, 64; bar.sync 0, %r2;", "wait"),
        ("mov.b32 %r2, dyn; { .reg .pred d; a: mbarrier.try_wait.parity.shared.b64 d, [%r2], %r1;"
         "@!d bra a; }", "barrier"),
        ("setp.eq.b32 %p1, %r1, 3; @%p1 bra other; bar.sync 0; bra end; other: bar.sync 1; end:",
         "wait for each other"),
        ("mov.b32 %r2, dyn; mov.b32 %r6, 8; cp.async.bulk.global.shared::cta.bulk_group [%rd3], "
         "[%r2], %r6;", "not aligned"),
        ("wibble.b32 %r1, %r2;", "not known"),
    ],
)  # fmt: skip
def test_what_hardware_would_not_do_is_a_fault(body, message):
    with pytest.raises(Fault, match=message):
        run(body, words())
