"""Prepared rows in the workspace: stages of 128 bytes of K, and where a lane's chunks go there.

    stage       rows of a tile x 128 bytes: part p of row r, 16 bytes, lies at part p ^ (r % 8)
    ...         the next stage of the tile; past the end of K there are zeros

Stages of a tile follow one another along K, and so one copy brings one to shared memory. Rows of a
tile that do not exist have anything. Rows of A lie in tiles of as many rows as a CTA multiplies; or
both sides in tiles of one row, which are rows one after the other, as tensor maps want them.

A stage has four blocks, a block four chunks of eight elements, a chunk two words of bytes. Two parts
are what an instruction multiplies. Where B is decoded in registers, or as words of codes give it,
the words of a chunk are the same one of two parts:

    order         chunk q of block b is in         as
    K             part 2 b + q // 2                words 2 (q % 2), 2 (q % 2) + 1
    BLOCKS        parts 2 b, 2 b + 1               word q
    FOUR_BITS     parts 2 i, 2 i + 1, i = q ^ b    word b: a lane, which has the same word of all
                                                   parts, decodes one block, see `decode.fp8`
    EIGHT_BITS    the same, i = q ^ (b % 2)        word b; of blocks 2 and 3 its words are the other
                                                   way round
"""

from layout import Coord
from max.gpu.primitives.warp import shuffle_xor

from ...launch.queue import DevicePointer
from ...simt.host import CHUNK
from ...simt.views import flat_of
from ..gemm_operands import StagedRows
from ..layout import K_LANES
from ..shapes import BYTE_STEP_BLOCKS as STEP_BLOCKS, LANE_BYTES, ROW_BYTES
from .codes import Bytes
from .source import LaneOfRow

comptime STEP_CHUNKS = ROW_BYTES // CHUNK
"""Chunks of a row in a stage."""


@fieldwise_init
struct Order(Equatable, TrivialRegisterPassable):
    """The order of K in a stage of bytes."""

    var code: Int

    comptime K = Self(0)
    comptime BLOCKS = Self(1)
    comptime FOUR_BITS = Self(4)
    comptime EIGHT_BITS = Self(8)

    @always_inline
    def place_of(self, block: UInt32, chunk: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the first of the two parts of a chunk of a block, and the word."""
        if self == Self.BLOCKS:
            return (2 * block, chunk)
        var turns = UInt32(STEP_BLOCKS - 1 if self == Self.FOUR_BITS else 1)
        return (2 * (chunk ^ block & turns), block)

    @always_inline
    def place_of_chunk(self, chunk: UInt32) -> Tuple[UInt32, UInt32, UInt32]:
        """Returns the first part of a stage's chunk, which half of it, and whether its second part
        is the lane's."""
        if self == Self.K:
            return (
                chunk // UInt32(LANE_BYTES // CHUNK),
                chunk % UInt32(LANE_BYTES // CHUNK),
                UInt32(0),
            )
        var part, word = self.place_of(chunk // UInt32(K_LANES), chunk % UInt32(K_LANES))
        return (part, word // 2, word % 2)


@fieldwise_init
struct LaneStores[order: Order](TrivialRegisterPassable):
    """Where a lane's chunks go: the same place of stages that are some steps apart."""

    comptime NEIGHBOUR = UInt32(1 if Self.order == Order.BLOCKS else K_LANES + 1)
    """What the number of the lane differs by whose words lie next to this one's."""

    var first: DevicePointer[DType.uint8]
    """The place of the first chunk."""
    var first_step: UInt32
    var steps: UInt32
    """Steps from one chunk to the next."""
    var steps_bytes: UInt32
    """Bytes of so many stages."""
    var num_steps: UInt32
    var is_odd: Bool
    """Whether the lane's words are the second ones of two."""
    var is_turned: Bool
    """Whether the second word of a chunk comes first."""
    var is_there: Bool

    @staticmethod
    @always_inline
    def of(rows: StagedRows, lane: LaneOfRow) -> Self:
        """Returns those of a lane; a row has no fewer lanes than a stage has chunks."""
        var first_step, chunk = divmod(lane.index, UInt32(STEP_CHUNKS))
        var part, half, odd = Self.order.place_of_chunk(chunk)
        var first = rows.part(lane.row, first_step, part + odd).unsafe_offset(CHUNK * Int(half))
        var steps = lane.lanes() // UInt32(STEP_CHUNKS)
        var is_turned = Self.order == Order.EIGHT_BITS and half == 1
        return Self(
            first, first_step, steps, steps * rows.stage_bytes, rows.num_steps, odd == 1, is_turned,
            lane.is_there,
        )  # fmt: skip

    @always_inline
    def step(self, index: UInt32) -> UInt32:
        """Returns the step of one of the lane's chunks."""
        return self.first_step + index * self.steps

    @always_inline
    def is_inside(self, index: UInt32) -> Bool:
        """Says whether there is a stage for one of the lane's chunks."""
        return self.step(index) < self.num_steps and self.is_there

    @always_inline
    def exchanged(self, bytes: Bytes) -> Bytes:
        """Returns what this lane stores of its chunk; all lanes of the warp call it.

        Where the words of a chunk are apart, neighbours exchange: one gets the first part of both.
        """
        comptime if Self.order == Order.K:
            return bytes
        var words = Bytes(bytes[1], bytes[0]) if self.is_turned else bytes
        var received = shuffle_xor(words[0] if self.is_odd else words[1], Self.NEIGHBOUR)
        return {received if self.is_odd else words[0], words[1] if self.is_odd else received}

    @always_inline
    def store(self, index: UInt32, exchanged: Bytes):
        """Stores that of a chunk that is inside."""
        var further = UInt64(index) * UInt64(self.steps_bytes)
        var to = self.first.unsafe_offset(Int(further)).unsafe_bitcast[UInt32]()
        flat_of(to).store[alignment=CHUNK](Coord(0), exchanged)
