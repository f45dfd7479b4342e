"""The producer of an RS main loop: bulk copies of what is contiguous in memory.

One thread of each of four producer warps copies a tile of 32 weight rows, the first one rows of A too.
A stage has 64 steps of K. Weights are no kernel's before this one: those of the first stages are on
the way while rows of A are prepared.
"""

from layout import Coord
from max.gpu.primitives.grid_controls import wait_on_dependent_grids

from ...launch.queue import DevicePointer
from ...simt.arguments import Weights
from ..instructions.shared_memory import arrive_expecting, copy_bulk, wait_phase
from ..layout import BLOCK, TILE_BYTES, TILE_ROWS
from ..shapes import RsLayout, STEP_BLOCKS
from .stages import RsRing


@fieldwise_init
struct BulkSource[layout: RsLayout](TrivialRegisterPassable):
    """Where a producer copies the stages of a tile of C from; one thread starts all its copies."""

    var rows: DevicePointer[DType.uint8]
    """The rows of A of the first step."""
    var rows_stride: Int
    """Bytes from the rows of a step to those of the next."""
    var rows_bytes: UInt32
    """Bytes of the rows that there are."""
    var codes: DevicePointer[DType.uint8]
    """The codes of the producer's weight tile in the first step."""
    var scales: DevicePointer[DType.uint8]
    """The scales of the producer's weight tile in the first step."""
    var num_blocks: UInt32
    """Blocks of K from the first step on; the last step may have fewer."""
    var producer: UInt32
    """Its weight tile's place in the stage; the first producer copies rows, too."""

    @staticmethod
    @always_inline
    def of(
        rows: DevicePointer[DType.uint8],
        rows_stride: Int,
        rows_bytes: UInt32,
        w: Weights,
        weight_tile: UInt32,
        k: UInt32,
        first_step: UInt32,
        producer: UInt32,
    ) -> Self:
        """Finds what a producer copies of a tile of 32 weight rows."""
        var row_blocks = k // UInt32(BLOCK)
        var first_block = first_step * UInt32(STEP_BLOCKS)
        var block = Int(weight_tile) * Int(row_blocks) + Int(first_block)
        return Self(
            rows,
            rows_stride,
            rows_bytes,
            w.codes.unsafe_offset(block * TILE_BYTES),
            w.scales.unsafe_offset(block * TILE_ROWS),
            row_blocks - min(first_block, row_blocks),
            producer,
        )

    @always_inline
    def copy_weights(self, ring: RsRing[Self.layout], step: UInt32):
        """Starts the copies of the producer's weight tile, for which the stage waits."""
        var first_block = step * UInt32(STEP_BLOCKS)
        var count = min(self.num_blocks - first_block, UInt32(STEP_BLOCKS))
        arrive_expecting(ring.full(), count * UInt32(TILE_BYTES + TILE_ROWS))
        copy_bulk(
            ring.here().codes().at(Coord(self.producer, 0, 0, 0)),
            self.codes.unsafe_offset(Int(first_block) * TILE_BYTES),
            count * UInt32(TILE_BYTES),
            ring.full(),
        )
        copy_bulk(
            ring.here().scales().at(Coord(self.producer, 0, 0)),
            self.scales.unsafe_offset(Int(first_block) * TILE_ROWS),
            count * UInt32(TILE_ROWS),
            ring.full(),
        )

    @always_inline
    def copy_rows(self, ring: RsRing[Self.layout], step: UInt32):
        """Starts the copy of the rows, for which the stage waits."""
        arrive_expecting(ring.full(), self.rows_bytes)
        copy_bulk(
            ring.here().base,
            self.rows.unsafe_offset(Int(step) * self.rows_stride),
            self.rows_bytes,
            ring.full(),
        )


@always_inline
def fill_first_stages[
    layout: RsLayout, //
](var ring: RsRing[layout], source: BulkSource[layout], num_steps: UInt32):
    """Copies the weights of as many stages as there are, then waits for the grid before."""
    for step in range(min(num_steps, UInt32(ring.STAGES))):
        source.copy_weights(ring, step)
        ring.advance()
    wait_on_dependent_grids()


@always_inline
def fill_stages[
    layout: RsLayout, //
](mut ring: RsRing[layout], source: BulkSource[layout], num_steps: UInt32, num_filled: UInt32):
    """Copies rows of A, and the weights of all stages but the first `num_filled`."""
    for step in range(num_steps):
        if step >= num_filled:
            wait_phase(ring.empty(), ring.parity)
            source.copy_weights(ring, step)
        if source.producer == 0:
            source.copy_rows(ring, step)
        ring.advance()
