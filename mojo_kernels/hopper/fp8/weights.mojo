"""The weights of a consumer warp: from a stage to bytes in registers.

A warp multiplies half a tile, 16 weight rows. Of each block a lane reads the codes of two rows,
eight each, which become four registers of bytes: of both rows the first four codes, then of both
the last four. That is the left operand of 32 steps of K.
"""

from layout import Coord
from max.gpu import thread_idx

from ..instructions.shared_memory import load_pair, load_word
from ..layout import K_LANES, ROW_LANES
from ..staged.stages import Pipeline, TILES
from ..staged.weights import ROWS, half_of
from .bases import ByteRows, STEP_BLOCKS
from .codes import ByteTable, scale_at

comptime Operand = SIMD[DType.uint32, 4]
"""A lane's bytes of two rows and 32 steps of K."""


@fieldwise_init
struct RowTables(TrivialRegisterPassable):
    """What makes bytes of the codes of a lane's two rows."""

    var upper: ByteTable
    """For the first row."""
    var lower: ByteTable
    """For the row that is eight further down."""

    @staticmethod
    @always_inline
    def load(rows: ByteRows, first_row: UInt32, num_rows: UInt32) -> Self:
        """Loads those of a warp whose first row is given; the last row stands in past the end."""
        var row = first_row + UInt32(thread_idx.x) % 32 // UInt32(K_LANES)
        var bases = rows.weight_bases()
        var upper = bases[Int(min(row, num_rows - 1))].cast[DType.uint32]()
        var lower = bases[Int(min(row + UInt32(ROW_LANES), num_rows - 1))].cast[DType.uint32]()
        return Self(ByteTable.of_base(upper), ByteTable.of_base(lower))


@fieldwise_init
struct StepCodes(TrivialRegisterPassable):
    """What a lane has of its warp's half tile in a step."""

    var words: SIMD[DType.uint32, ROWS * STEP_BLOCKS]
    """Words of codes, the first block's two rows first."""
    var scales: SIMD[DType.uint32, STEP_BLOCKS]
    """Scales of four rows a word, one word a block."""

    @staticmethod
    @always_inline
    def load[
        num_tokens: Int
    ](pipeline: Pipeline[num_tokens, STEP_BLOCKS], warp: UInt32, num_blocks: UInt32) -> Self:
        """Loads a stage that is full, of which so many blocks exist."""
        var lane = UInt32(thread_idx.x) % 32
        var tile = warp % UInt32(TILES)
        var loaded = Self(0, 0)
        comptime for block in range(STEP_BLOCKS):
            var at = pipeline.codes().at(Coord(tile, block, lane, half_of(warp) * UInt32(ROWS)))
            loaded.words = loaded.words.insert[offset=ROWS * block](load_pair(at))
            loaded.scales[block] = load_word(
                pipeline.scales().at(Coord(tile, block, lane // UInt32(K_LANES)))
            )
        # What lies past the end may be no numbers: zeros.
        if num_blocks < UInt32(STEP_BLOCKS):
            comptime for block in range(1, STEP_BLOCKS):
                if num_blocks <= UInt32(block):
                    loaded.words[ROWS * block] = 0
                    loaded.words[ROWS * block + 1] = 0
        return loaded

    @always_inline
    def decode(self, tables: RowTables, warp: UInt32) -> Array[Operand, STEP_BLOCKS]:
        """Decodes all blocks."""
        var row = half_of(warp) * UInt32(ROWS)
        var operands = Array[Operand, STEP_BLOCKS](uninitialized=True)
        comptime for block in range(STEP_BLOCKS):
            var scales = self.scales[block]
            var upper = tables.upper.bytes(self.words[ROWS * block], scale_at(scales, row))
            var lower = tables.lower.bytes(self.words[ROWS * block + 1], scale_at(scales, row + 1))
            operands[block] = Operand(upper[0], lower[0], upper[1], lower[1])
        return operands^
