"""What a warp does together, and what keeps the compiler from moving work about."""

from max.gpu import thread_idx
from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly


comptime FRAGMENT_SUMS = 4
"""Sums of a lane in a fragment of 16 x 8."""


@always_inline
def keep_branch():
    """Stays a branch: without it, the compiler computes rare paths for everybody."""
    inlined_assembly["", NoneType, constraints="", has_side_effect=True]()


@always_inline
def keep_here[width: SIMDLength](words: SIMD[DType.uint32, width]) -> SIMD[DType.uint32, width]:
    """Returns the words; nothing is computed from them before, where registers are scarce."""
    var kept = SIMD[DType.uint32, width]()
    comptime for i in range(width):
        kept[i] = inlined_assembly[
            "mov.b32 $0, $1;", UInt32, constraints="=r,r", has_side_effect=True
        ](words[i])
    return kept


@always_inline
def any_lane(condition: Bool) -> Bool:
    """Says whether the condition holds in any lane of the warp; the answer is uniform."""
    return (
        inlined_assembly[
            """{
            .reg .pred p;
            setp.ne.u32 p, $1, 0;
            vote.sync.any.pred p, p, 0xffffffff;
            selp.u32 $0, 1, 0, p;
            }""",
            UInt32,
            constraints="=r,r",
            has_side_effect=True,
        ](UInt32(1) if condition else UInt32(0))
        != 0
    )


@always_inline
def lane_here() -> UInt32:
    """Returns the lane; what follows from it is computed here, not before a loop."""
    return keep_here(SIMD[DType.uint32, 1](UInt32(thread_idx.x)))[0] % 32


@always_inline
def multiply_add(
    a: SIMD[DType.uint32, 4], b: SIMD[DType.uint32, 2], c: SIMD[DType.float32, 4]
) -> SIMD[DType.float32, 4]:
    """Returns the lane's part of a 16 x 8 tile, c + a @ b over 16 steps of K."""
    var d = inlined_assembly[
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
            " {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        ),
        _RegisterPackType[Float32, Float32, Float32, Float32],
        constraints="=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f",
        has_side_effect=False,
    ](a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], c[2], c[3])
    return SIMD[DType.float32, 4](d[0], d[1], d[2], d[3])


@always_inline
def load_streaming(address: MutPointer[UInt32, MutUntrackedOrigin]) -> SIMD[DType.uint32, 4]:
    """Loads 16 bytes that this group reads once, past the first-level cache."""
    var d = inlined_assembly[
        "ld.global.nc.L1::no_allocate.v4.u32 {$0, $1, $2, $3}, [$4];",
        _RegisterPackType[UInt32, UInt32, UInt32, UInt32],
        constraints="=r,=r,=r,=r,l",
        has_side_effect=False,
    ](address)
    return SIMD[DType.uint32, 4](d[0], d[1], d[2], d[3])
