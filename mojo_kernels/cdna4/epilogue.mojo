"""From partial sums to C: across waves, across workgroups, to memory.

A tile of C is 16 x 16; lane l holds row l % 16, columns 4 * (l / 16) .. + 3.
In LDS and in the workspace a tile of sums is what the lanes hold, 16 bytes
each, one lane after another: a KiB. The workspace begins with a counter for
each wave that finishes tiles, zero between launches, and goes on with the sums:

    counter     (workgroup x + X * y) * waves + wave
    sums        ((workgroup x + X * y) * splits + z) * tiles + tile
"""

from max.gpu.intrinsics import AMDBufferResource
from max.gpu.memory import CacheOperation
from max.gpu.sync import s_waitcnt
from std.collections import Array
from std.memory import bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane

from .mma import LANES, Mma16, arrive, load_published, publish
from .tiles import OUT_OF_RANGE, Span, TILE, quotient

comptime Sums = SIMD[DType.float32, Mma16.VALUES]
"""A lane's part of a tile of C: neighbouring columns of one row."""
comptime SUM_BYTES = 4 * Mma16.VALUES
"""Bytes of it."""
comptime TILE_SUM_BYTES = LANES * SUM_BYTES
"""Bytes of the sums of a tile."""
comptime NO_BIAS = Optional[DType]()
"""The bias type of a kernel without one."""


@fieldwise_init
struct Result[dtype: DType, bias_dtype: Optional[DType]](TrivialRegisterPassable):
    """C = sums + bias, [M, N] and contiguous."""

    var values: AMDBufferResource
    """C."""
    var bias: AMDBufferResource
    """The bias, [N]."""
    var n: Int32
    """Columns."""

    @staticmethod
    @always_inline
    def of(
        values: MutPointer[Scalar[Self.dtype], _],
        bias: ImmPointer[UInt8, _],
        m: Int32,
        n: Int32,
    ) -> Self:
        """Describes C and its bias; the bias is not read if there is none."""
        comptime BIAS_BYTES = size_of[Self.bias_dtype.or_else(DType.uint8)]()
        return Self(
            AMDBufferResource(values, Int(m * n)), Span.of(bias, n * Int32(BIAS_BYTES)).after(0), n
        )

    @always_inline
    def store(self, sums: Sums, bias: Sums, first_row: Int32, first_column: Int32, lane: Int32):
        """Stores a tile with its bias; what lies beyond M and N is dropped."""
        var row = first_row + lane % TILE
        var column = first_column + quotient[TILE](lane) * Int32(Mma16.VALUES)
        var total = sums
        comptime if Self.bias_dtype:
            total += bias
        var values = total.cast[Self.dtype]()
        comptime BYTES = Int32(size_of[Self.dtype]())
        var offset = (row * self.n + column) * BYTES
        if self.n % Int32(Mma16.VALUES) == 0:
            comptime WIDTH = Mma16.VALUES * size_of[Self.dtype]()
            self.values.store[cache_policy=CacheOperation.STREAMING](
                offset if column < self.n else OUT_OF_RANGE, bitcast[DType.uint8, WIDTH](values)
            )
        else:
            comptime for i in range(Mma16.VALUES):
                var place = offset + Int32(i) * BYTES
                self.values.store(
                    place if column + Int32(i) < self.n else OUT_OF_RANGE,
                    bitcast[DType.uint8, size_of[Self.dtype]()](values[i]),
                )

    @always_inline
    def bias_of(self, first_column: Int32, lane: Int32) -> Sums:
        """Starts loading the bias of a lane's columns of a tile; any value beyond N."""
        var bias = Sums(0)
        comptime if Self.bias_dtype:
            comptime bias_dtype = Self.bias_dtype.value()
            comptime BYTES = size_of[bias_dtype]()
            var column = first_column + quotient[TILE](lane) * Int32(Mma16.VALUES)
            comptime for i in range(Mma16.VALUES):
                var bytes = self.bias.load[DType.uint8, BYTES]((column + Int32(i)) * Int32(BYTES))
                bias[i] = bitcast[bias_dtype, 1](bytes).cast[DType.float32]()
        return bias


@fieldwise_init
struct Workspace[waves: Int, tiles: Int, splits: Int](TrivialRegisterPassable):
    """Where the workgroups that share a tile of C leave their sums.

    Parameters:
        waves: Waves of a workgroup.
        tiles: Tiles of 16 x 16 of a workgroup.
        splits: Workgroups that share a tile of C.
    """

    comptime SHARE_BYTES = Int32(Self.tiles * TILE_SUM_BYTES)
    """Bytes of the sums of a workgroup."""

    var counters: AMDBufferResource
    """The counters of this tile of C."""
    var sums: AMDBufferResource
    """The sums of this tile of C, one share after another."""

    @staticmethod
    @always_inline
    def of(memory: MutPointer[UInt8, _], group: Int32, num_groups: Int32) -> Self:
        """Finds the counters and the sums of tile `group` of C."""
        comptime COUNTER_BYTES = Int32(Self.waves * size_of[DType.uint32]())
        comptime GROUP_BYTES = Int32(Self.splits) * Self.SHARE_BYTES
        var first_sum = num_groups * COUNTER_BYTES
        var all = Span.of(memory, first_sum + num_groups * GROUP_BYTES)
        return Self(
            all.after(group * COUNTER_BYTES),
            all.after(first_sum + group * GROUP_BYTES),
        )

    @staticmethod
    @always_inline
    def _place(tile: Int32, lane: Int32) -> Int32:
        """Returns where a lane's sums of a tile lie in a share."""
        return tile * Int32(TILE_SUM_BYTES) + lane * Int32(SUM_BYTES)

    @always_inline
    def leave(self, sums: Sums, share: Int32, tile: Int32, lane: Int32):
        """Leaves the sums of a tile."""
        var place = share * Self.SHARE_BYTES + Self._place(tile, lane)
        publish(self.sums, place, bitcast[DType.uint32, 4](sums))

    @always_inline
    def is_last(self, wave: Int32, lane: Int32) -> Bool:
        """Counts the wave in after its sums are visible; says whether all others were."""
        comptime LAST = UInt32(Self.splits - 1)
        s_waitcnt[vmcnt=0]()
        var ticket = UInt32(0)
        if lane == 0:
            ticket = arrive(self.counters, wave * Int32(size_of[DType.uint32]()), LAST)
        return readfirstlane(ticket) == LAST

    @always_inline
    def total(self, tile: Int32, lane: Int32) -> Sums:
        """Returns the sums of all workgroups, added in the order of K."""
        var shares = Array[SIMD[DType.uint32, 4], Self.splits](uninitialized=True)
        comptime for share in range(Self.splits):
            var place = Int32(share) * Self.SHARE_BYTES + Self._place(tile, lane)
            shares[share] = load_published(self.sums, place)
        var total = bitcast[DType.float32, Mma16.VALUES](shares[0])
        comptime for share in range(1, Self.splits):
            total += bitcast[DType.float32, Mma16.VALUES](shares[share])
        return total
