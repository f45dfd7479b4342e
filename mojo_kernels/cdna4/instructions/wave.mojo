"""What the lanes of a wave find out together; all of them take part.

    sums_up_to         what the lanes up to this one have, added up
    sums_up_to_in_row  the same among 16 lanes
    votes              a bit for each lane that says yes
    any_lane           whether one does
    lane_here          which lane this is
    of_lane            what one lane has, for all
    with_lane          what all have, for one
    maximum_of_row     the largest of 16 lanes; maximum_of_half_row of 8, maximum_of_quad of 4
    kept_halves        sums of two lanes of a row of 16, sum_of_quad of 4

and what the waves of a workgroup do:

    workgroup_barrier         all of them have come as far
"""

from std.bit import pop_count
from std.memory import bitcast
from std.sys import is_gpu
from std.sys.intrinsics import llvm_intrinsic

comptime ROW_LANES = 16
"""Lanes that exchange what they have at once."""
comptime HALF_ROW_LANES = ROW_LANES // 2
"""Lanes whose maximum is three steps away."""
comptime _ROW_ROTATION = 0x120
"""Takes what a lane of the same row of 16 has, so many lanes before, around its end."""
comptime _ROW_SHIFT = 0x110
"""Takes what a lane of the same row of 16 has, so many lanes before."""
comptime _ROW_SHIFT_BACK = 0x100
"""The same, so many lanes behind."""
comptime _QUAD_PAIRS = 0xB1
"""Takes what the other lane of a pair of neighbours has."""
comptime _QUAD_HALVES = 0x4E
"""Takes what the lane of the other pair of a quad has."""
comptime _HALF_ROW_MIRROR = 0x141
"""Takes what the lane has that is as far from the other end of the half row."""
comptime _ROW_TO_NEXT = 0x142
"""Takes what the last lane of the row before has."""
comptime _HALF_TO_NEXT = 0x143
"""Takes what the last lane of the first half has."""
comptime _ALL_ROWS = 0xF
comptime _ALL_BANKS = 0xF
"""Quads of a row."""
comptime _UPPER_HALVES = 0xC
comptime _ODD_QUADS = 0xA
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
def _moved[control: Int, rows: Int, banks: Int = _ALL_BANKS](x: Int32, other: Int32 = 0) -> Int32:
    """Returns what another lane has; 0 where no lane is, `other` outside of `rows` and `banks`."""
    return llvm_intrinsic["llvm.amdgcn.update.dpp.i32", Int32, has_side_effect=False](
        other, x, Int32(control), Int32(rows), Int32(banks), True
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
def kept_halves[distance: Int](low: Float32, high: Float32, lane: Int32) -> Float32:
    """Returns what this lane and that at a distance of 8 or 4 have together: of `low` the lower one
    keeps it, of `high` the upper."""
    comptime UPPER = _UPPER_HALVES if distance == HALF_ROW_LANES else _ODD_QUADS
    var own = high if lane & Int32(distance) != 0 else low
    var others = _moved[_ROW_SHIFT_BACK + distance, _ALL_ROWS](bitcast[DType.int32](low))
    others = _moved[_ROW_SHIFT + distance, _ALL_ROWS, UPPER](bitcast[DType.int32](high), others)
    return own + bitcast[DType.float32](others)


@always_inline
def sum_of_quad(x: Float32) -> Float32:
    """Returns the sum of the lane's quad: of lanes 2 apart first, then of neighbours."""
    var sum = x
    comptime for control in [_QUAD_HALVES, _QUAD_PAIRS]:
        sum += bitcast[DType.float32](_moved[control, _ALL_ROWS](bitcast[DType.int32](sum)))
    return sum


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
def workgroup_barrier():
    """Waits until all waves of the workgroup have come here, and for no memory operation.

    MAX's `s_waitcnt_barrier` has an instruction more before it, which waits for nothing.
    """
    llvm_intrinsic["llvm.amdgcn.s.barrier", NoneType]()
