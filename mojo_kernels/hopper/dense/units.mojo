"""Weights on their way into stages: what a lane has of a tile of 32 rows, and where it puts it.

A warp has 32 rows of a stage, a tile of `PreshuffledCuda`. Its lanes load units, some granules of
16 bytes of all rows, and put what tensor cores take:

    loaded    rows r, r + 8, r + 16, r + 24    bytes 4 t .. 4 t + 3 of each granule    in lane 4 r + t
    put       part p of row r, 16 bytes        at part p ^ (r % 8) of the row's 128 bytes
"""

from max.gpu.sync import syncwarp

from ..instructions.shared_memory import store_quad
from ..instructions.warp import lane_here
from ..layout import K_LANES, ROWS_PER_LANE, ROW_LANES, TILE_ROWS
from ..shapes import LANE_BYTES, PARTS, ROW_BYTES


@fieldwise_init
struct Unit[granules: Int, blocks: Int](TrivialRegisterPassable):
    """What a lane has of some granules of a tile of weight rows."""

    var words: SIMD[DType.uint32, ROWS_PER_LANE * Self.granules]
    """Of each granule, a word of four rows."""
    var scales: SIMD[DType.uint32, Self.blocks]
    """Of each block, the scale bytes of four rows."""
    var rows: UInt32
    """What the operands want to know of the lane's rows."""

    @always_inline
    def of_granule(self, granule: Int) -> SIMD[DType.uint32, ROWS_PER_LANE]:
        """Returns the words of four rows."""
        var words = SIMD[DType.uint32, ROWS_PER_LANE]()
        comptime for i in range(ROWS_PER_LANE):
            words[i] = self.words[ROWS_PER_LANE * granule + i]
        return words


@fieldwise_init
struct StageRows(TrivialRegisterPassable):
    """A warp's 32 rows of a stage in shared memory, as one of its lanes sees them."""

    comptime NUM_BYTES = TILE_ROWS * ROW_BYTES
    """Bytes of all rows."""

    var base: UInt32
    """Where the first row begins."""
    var lane_at: UInt32
    """Where the lane's first bytes go, from there on."""

    @staticmethod
    @always_inline
    def place_of_lane[num_bytes: Int]() -> UInt32:
        """Returns where a lane's first bytes go, if each of a row's four lanes puts so many."""
        var row_lane, k_lane = divmod(lane_here(), UInt32(K_LANES))
        var part, in_part = divmod(k_lane * UInt32(num_bytes), UInt32(LANE_BYTES))
        return row_lane * UInt32(ROW_BYTES) + (row_lane ^ part) * UInt32(LANE_BYTES) + in_part

    @always_inline
    def at[row: Int, part: Int](self) -> UInt32:
        """Returns where the lane's bytes go, of one of its four rows, so many parts further on."""
        comptime FURTHER = UInt32(part * LANE_BYTES)
        return self.base + (self.lane_at ^ FURTHER) + UInt32(row * ROW_LANES * ROW_BYTES)

    @always_inline
    def clear_from(self, first: UInt32):
        """Makes zeros of the parts of all rows from one on; a whole warp calls it."""
        syncwarp()
        var row = lane_here()
        for part in range(first, UInt32(PARTS)):
            var at = row * UInt32(ROW_BYTES) + (part ^ (row % UInt32(PARTS))) * UInt32(LANE_BYTES)
            store_quad(self.base + at, SIMD[DType.uint32, 4](0))
