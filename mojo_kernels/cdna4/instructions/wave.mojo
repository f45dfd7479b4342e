"""What the lanes of a wave find out together; all of them take part.

    sums_up_to         what the lanes up to this one have, added up
    sums_up_to_in_row  the same among 16 lanes
    votes              a bit for each lane that says yes
    any_lane           whether one does
    lane_here          which lane this is
    of_lane            what one lane has, for all
    with_lane          what all have, for one
    of_first_row       what the lane of the first row of 16 has
    maximum_of_row     the largest of 16 lanes; maximum_of_half_row of 8, maximum_of_quad of 4
    kept_halves        sums of two lanes of a row of 16, sum_of_quad of 4
    of_partner         what the lane 8, 4, 2 or 1 apart has

and what the waves of a workgroup do:

    workgroup_barrier         all of them have come as far
"""

from max.gpu.intrinsics import permlane_swap
from std.bit import pop_count
from std.memory import bitcast
from std.sys import is_gpu
from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import llvm_intrinsic

from .vector import opaque

comptime ROW_LANES = 16
"""Lanes that exchange what they have at once."""
comptime HALF_ROW_LANES = ROW_LANES // 2
"""Lanes whose maximum is three steps away."""
comptime _ROW_ROTATION = 0x120
"""Takes what a lane of the same row of 16 has, so many lanes before, around its end."""
comptime _ROW_SHIFT = 0x110
"""Takes what a lane of the same row of 16 has, so many lanes before."""
comptime _QUAD_PAIRS = 0xB1
"""Takes what the other lane of a pair of neighbours has."""
comptime _QUAD_HALVES = 0x4E
"""Takes what the lane of the other pair of a quad has."""
comptime _QUAD_MIRROR = 0x1B
"""Takes what the lane has that is as far from the other end of the quad."""
comptime _HALF_ROW_MIRROR = 0x141
"""Takes what the lane has that is as far from the other end of the half row."""
comptime _ROW_TO_NEXT = 0x142
"""Takes what the last lane of the row before has."""
comptime _HALF_TO_NEXT = 0x143
"""Takes what the last lane of the first half has."""
comptime _ALL_ROWS = 0xF
comptime _ALL_BANKS = 0xF
"""Quads of a row."""
comptime _ODD_ROWS = 0xA
comptime _LAST_ROWS = 0xC


@always_inline
def sums_up_to(x: Int32) -> Int32:
    """Returns the sum of what the lanes up to this one have."""
    var sum = sums_up_to_in_row(x)
    sum += _moved[_ROW_TO_NEXT, _ODD_ROWS](sum)
    return sum + _moved[_HALF_TO_NEXT, _LAST_ROWS](sum)


@always_inline
def sums_up_to_in_row(x: Int32) -> Int32:
    """Returns the sum of what the lanes up to this one have, of its row of 16."""
    var sum = x
    comptime for lanes in [1, 2, 4, 8]:
        sum += _moved[_ROW_SHIFT + lanes, _ALL_ROWS](sum)
    return sum


@always_inline
def _moved[control: Int, rows: Int](x: Int32) -> Int32:
    """Returns what another lane has; 0 where no lane is, and outside of `rows`."""
    return llvm_intrinsic["llvm.amdgcn.update.dpp.i32", Int32, has_side_effect=False](
        Int32(0), x, Int32(control), Int32(rows), Int32(_ALL_BANKS), True
    )


@always_inline
def maximum_of_row(x: UInt32) -> UInt32:
    """Returns the largest number of the lane's row of 16."""
    var largest = x
    comptime for lanes in [1, 2, 4, 8]:
        var other = _moved[_ROW_ROTATION + lanes, _ALL_ROWS](largest.cast[DType.int32]())
        largest = max(largest, other.cast[DType.uint32]())
    return largest


@always_inline
def kept_halves[distance: Int](low: Float32, high: Float32) -> Float32:
    """Returns what this lane and that at a distance of 8 or 4 have together: of `low` the lower one
    keeps it, of `high` the upper.

    Waits are for a lane that has just written what another reads.
    """
    comptime UPPER = "0xc" if distance == HALF_ROW_LANES else "0xa"
    comptime LOWER = String("v_add_f32_dpp $0, $1, $1 row_shl:", distance, " row_mask:0xf")
    comptime HIGHER = String("v_add_f32_dpp $0, $2, $2 row_shr:", distance, " row_mask:0xf")
    comptime WAIT = "s_nop 1\n"
    comptime ALL = " bank_mask:0xf bound_ctrl:1\n"
    comptime ADD = String(WAIT, LOWER, ALL, WAIT, HIGHER, " bank_mask:", UPPER, "\n", WAIT)
    return inlined_assembly[ADD, Float32, constraints="=&v,v,v", has_side_effect=False](low, high)


@always_inline
def sum_of_quad(x: Float32) -> Float32:
    """Returns the sum of the lane's quad: of lanes 2 apart first, then of neighbours."""
    var sum = x
    comptime for distance in [2, 1]:
        # Seen through, two sums would be one instruction that exchanges nothing.
        var bits = bitcast[DType.uint32](sum + of_partner[distance](sum))
        sum = bitcast[DType.float32](opaque(bits))
    return sum


@always_inline
def of_partner[distance: Int](x: Float32) -> Float32:
    """Returns what the lane has whose number differs in one bit, of 8, 4, 2 or 1."""
    var bits = bitcast[DType.int32](x)
    comptime if distance == HALF_ROW_LANES:
        bits = _moved[_ROW_ROTATION + distance, _ALL_ROWS](bits)
    elif distance == 4:
        # Lanes from the other end of the half row, and of its quads from their other ends.
        bits = _moved[_QUAD_MIRROR, _ALL_ROWS](_moved[_HALF_ROW_MIRROR, _ALL_ROWS](bits))
    else:
        bits = _moved[_QUAD_HALVES if distance == 2 else _QUAD_PAIRS, _ALL_ROWS](bits)
    return bitcast[DType.float32](bits)


@always_inline
def maximum_of_half_row(x: UInt32) -> UInt32:
    """Returns the largest number of the lane's half of a row, 8 lanes."""
    var largest = maximum_of_quad(x)
    var other = _moved[_HALF_ROW_MIRROR, _ALL_ROWS](largest.cast[DType.int32]())
    return max(largest, other.cast[DType.uint32]())


@always_inline
def maximum_of_quad(x: UInt32) -> UInt32:
    """Returns the largest number of the lane's quad, 4 lanes."""
    var largest = x
    comptime for control in [_QUAD_PAIRS, _QUAD_HALVES]:
        var other = _moved[control, _ALL_ROWS](largest.cast[DType.int32]())
        largest = max(largest, other.cast[DType.uint32]())
    return largest


@always_inline
def votes(condition: Bool) -> UInt64:
    """Returns a bit for each lane that says yes."""
    return llvm_intrinsic["llvm.amdgcn.ballot.i64", UInt64, has_side_effect=False](condition)


@always_inline
def any_lane(condition: Bool) -> Bool:
    """Says whether a lane says yes; on a CPU, which has no others, the only one."""
    comptime if not is_gpu():
        return condition
    return votes(condition) != 0


@always_inline
def count(votes: UInt64) -> Int32:
    """Returns how many say yes."""
    return Int32(pop_count(votes))


@always_inline
def count_before(votes: UInt64) -> Int32:
    """Returns how many of the lanes before this one say yes."""
    var low = llvm_intrinsic["llvm.amdgcn.mbcnt.lo", Int32, has_side_effect=False](
        votes.cast[DType.int32](), Int32(0)
    )
    return llvm_intrinsic["llvm.amdgcn.mbcnt.hi", Int32, has_side_effect=False](
        (votes >> 32).cast[DType.int32](), low
    )


@always_inline
def lane_here() -> Int32:
    """Returns which lane this is, found out anew: no register has to keep it until now."""
    return count_before(~UInt64(0))


@always_inline
def of_lane(x: Int32, lane: Int32) -> Int32:
    """Returns what one lane has; `lane` is the same for all."""
    return llvm_intrinsic["llvm.amdgcn.readlane.i32", Int32, has_side_effect=False](x, lane)


@always_inline
def of_lane(x: Float32, lane: Int32) -> Float32:
    """Returns the same of a float."""
    return bitcast[DType.float32](of_lane(bitcast[DType.int32](x), lane))


@always_inline
def with_lane(old: Int32, x: Int32, lane: Int32) -> Int32:
    """Returns `x` in one lane and `old` in the others; `x` and `lane` are the same for all."""
    return llvm_intrinsic["llvm.amdgcn.writelane.i32", Int32, has_side_effect=False](x, lane, old)


@always_inline
def of_first_row(x: UInt32) -> UInt32:
    """Returns what the same of the first 16 lanes has."""
    comptime ODD_ROWS, HALVES = 16, 32
    var of_pair = permlane_swap[ODD_ROWS](x, x)[0]
    return permlane_swap[HALVES](of_pair, of_pair)[0]


@always_inline
def workgroup_barrier():
    """Waits until all waves of the workgroup have come here, and for no memory operation.

    MAX's `s_waitcnt_barrier` has an instruction more before it, which waits for nothing.
    """
    llvm_intrinsic["llvm.amdgcn.s.barrier", NoneType]()
