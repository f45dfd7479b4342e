"""What a warp does together, and what keeps the compiler from moving work about."""

from max.gpu import thread_idx
from std.sys import _RegisterPackType
from std.sys._assembly import inlined_assembly

from ...simt.instructions import FRAGMENT_SUMS, any_lane, keep_branch, multiply_add


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
def lanes_where(condition: Bool) -> UInt32:
    """Returns a bit for each lane of the warp in which the condition holds; all call it."""
    return inlined_assembly[
        """{
        .reg .pred p;
        setp.ne.u32 p, $1, 0;
        vote.sync.ballot.b32 $0, p, 0xffffffff;
        }""",
        UInt32,
        constraints="=r,r",
        has_side_effect=True,
    ](UInt32(1) if condition else UInt32(0))


@always_inline
def lane_here() -> UInt32:
    """Returns the lane; what follows from it is computed here, not before a loop."""
    return keep_here(SIMD[DType.uint32, 1](UInt32(thread_idx.x)))[0] % 32


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


@always_inline
def load_constant(address: MutPointer[UInt32, MutUntrackedOrigin]) -> UInt32:
    """Loads four bytes that no kernel before this one may have written late."""
    return inlined_assembly[
        "ld.global.nc.u32 $0, [$1];", UInt32, constraints="=r,l", has_side_effect=False
    ](address)


@always_inline
def prefetch(address: MutPointer[UInt8, MutUntrackedOrigin]):
    """Brings what will be loaded into the second-level cache; nobody waits."""
    inlined_assembly["prefetch.global.L2 [$0];", NoneType, constraints="l", has_side_effect=True](
        address
    )
