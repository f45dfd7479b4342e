"""How a prefill workgroup gets the encoded blocks of its activations into LDS.

A stage is 256 rows x 8 blocks. Codes go straight from memory to LDS, a row by
eight lanes, and so do preshuffled scales. Plain scales go through registers,
which is where their order changes; they cost a line of memory for each row and
stage, where preshuffled ones cost the bytes they have:

    lane l of wave w    four scales of row 32 * w + l % 32, blocks 4 * (l / 32) .. + 3
    in LDS              byte 2 * (l / 32) + (l % 32) / 16 of four words
"""

from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast

from ..formats import BLOCK_BYTES
from .lds import write_byte
from .mma import SharedBytes, load_to_lds
from .ping_pong import SLICES
from .prefill_tiles import (
    ROWS,
    ROW_BYTES,
    SCALE_GROUP_BYTES,
    SCALE_GROUP_ROWS,
    STAGE_BLOCKS,
    SharedScales,
    WAVES,
    exchanged,
    place_at,
    row_offset,
)
from .tiles import OUT_OF_RANGE, PAIR, PIECE_BYTES, Span, TILE, TILE_BLOCKS, quotient

comptime ROWS_PER_LOAD = 8
"""Rows of codes that the lanes of a wave load at once."""


trait ActivationScales(TrivialRegisterPassable):
    """A workgroup's scales of activations on their way to LDS."""

    comptime LOADS: Int
    """Loads of a wave for a stage."""

    def __init__(
        out self,
        scales: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
        wave: Int32,
        lane: Int32,
    ):
        """Describes the scales from row `first_row` on."""
        ...

    def aim(mut self, stage: Int32):
        """Turns to a stage; one beyond K reads as zeros."""
        ...

    def fetch(mut self, place: SharedBytes):
        """Starts loading the wave's share of the stage, which goes to `place`."""
        ...

    def deliver(self, place: SharedBytes):
        """Puts what has arrived in registers to `place`."""
        ...


@fieldwise_init
struct PreshuffledScales(ActivationScales):
    """Scales in the order of LDS."""

    comptime LOADS = SharedScales[ROWS].LOADS
    """Loads of a wave for a stage."""

    var scales: SharedScales[ROWS]
    """The scales."""

    @always_inline
    def __init__(
        out self,
        scales: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
        wave: Int32,
        lane: Int32,
    ):
        """Finds this thread's part of the work."""
        self.scales = SharedScales[ROWS].of(scales, rows, k_blocks, first_row, wave, lane)

    @always_inline
    def aim(mut self, stage: Int32):
        """Turns to a stage; one beyond K reads as zeros."""
        self.scales.aim(stage)

    @always_inline
    def fetch(mut self, place: SharedBytes):
        """Starts loading the wave's share of the stage to `place`."""
        self.scales.fetch(place)

    @always_inline
    def deliver(self, place: SharedBytes):
        """Has nothing to do."""
        pass


@fieldwise_init
struct PlainScales[k_tail: Bool](ActivationScales):
    """Row-major scales, which are held in registers for a stage.

    Parameters:
        k_tail: Whether K may end within a stage; scales then have no alignment.
    """

    comptime LOADS = TILE_BLOCKS if Self.k_tail else 1
    """Loads of a wave for a stage."""

    var scales: Span
    """The scales from the workgroup's first row on."""
    var k_blocks: Int32
    """Blocks of a row."""
    var first_block: Int32
    """The first of the lane's four blocks of a stage."""
    var offset: Int32
    """Where its scale lies."""
    var place: Int32
    """Where its scale goes."""
    var held: SIMD[DType.uint32, Self.LOADS]
    """Scales on their way."""
    var at: AMDBufferResource
    """The stage that is aimed at."""
    var block: Int32
    """Its first block."""

    @always_inline
    def __init__(
        out self,
        scales: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
        wave: Int32,
        lane: Int32,
    ):
        """Finds this thread's part of the work."""
        var half, row = divmod(lane, Int32(SCALE_GROUP_ROWS))
        self.scales = Span.of(scales, rows * k_blocks).from_offset(first_row * k_blocks)
        self.k_blocks = k_blocks
        self.first_block = half * Int32(TILE_BLOCKS)
        var group_row = wave * Int32(SCALE_GROUP_ROWS) + row
        self.offset = row_offset(group_row, k_blocks) + self.first_block
        var word = wave * Int32(SCALE_GROUP_BYTES) + row % TILE * 4
        self.place = word + half * Int32(PAIR) + quotient[TILE](row)
        self.held = {}
        self.at = self.scales.after(0)
        self.block = 0

    @always_inline
    def aim(mut self, stage: Int32):
        """Turns to a stage; one beyond K reads as zeros."""
        self.block = stage * Int32(STAGE_BLOCKS)
        self.at = self.scales.after_if(self.block, self.block < self.k_blocks)

    @always_inline
    def fetch(mut self, place: SharedBytes):
        """Starts loading the lane's scales of the stage; `place` is for `deliver`."""
        comptime if Self.k_tail:
            comptime for i in range(TILE_BLOCKS):
                var is_inside = self.block + self.first_block + Int32(i) < self.k_blocks
                var offset = self.offset + Int32(i) if is_inside else OUT_OF_RANGE
                self.held[i] = self.at.load[DType.uint8, 1](offset).cast[DType.uint32]()
        else:
            var bytes = self.at.load[DType.uint8, TILE_BLOCKS](self.offset)
            self.held[0] = bitcast[DType.uint32, 1](bytes)

    @always_inline
    def deliver(self, place: SharedBytes):
        """Writes the scales that have arrived to `place`."""
        comptime WORDS_BYTES = TILE * 4
        var first = place_at(place, self.place)
        comptime for i in range(TILE_BLOCKS):
            var scale = self.held[i] if Self.k_tail else self.held[0] >> UInt32(8 * i)
            write_byte(place_at(first, Int32(i * WORDS_BYTES)), scale.cast[DType.uint8]())


@fieldwise_init
struct SharedCodes[k_tail: Bool](TrivialRegisterPassable):
    """A workgroup's plain codes of activations on their way to LDS.

    Parameters:
        k_tail: Whether K may end within a stage.
    """

    comptime LOADS = ROWS // ROWS_PER_LOAD // WAVES // SLICES
    """Loads of a wave for one of the parts of a stage."""

    var codes: Span
    """The codes from the workgroup's first row on."""
    var k_blocks: Int32
    """Blocks of a row."""
    var offsets: SIMD[DType.int32, SLICES * Self.LOADS]
    """Where the lane's pieces of a stage lie."""
    var piece: Int32
    """Which block of a stage the lane loads."""
    var wave: Int32
    """The wave."""
    var at: AMDBufferResource
    """The stage that is aimed at."""
    var block: Int32
    """Its first block."""

    @staticmethod
    @always_inline
    def of(
        codes: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
        wave: Int32,
        lane: Int32,
    ) -> Self:
        """Describes the codes from row `first_row` on."""
        var row_bytes = k_blocks * Int32(BLOCK_BYTES)
        var row = wave * Int32(ROWS_PER_LOAD) + quotient[STAGE_BLOCKS](lane)
        var piece = exchanged(row, lane % Int32(STAGE_BLOCKS))
        var span = Span.of(codes, rows * row_bytes).from_offset(first_row * row_bytes)
        var offsets = SIMD[DType.int32, SLICES * Self.LOADS](0)
        comptime for i in range(SLICES * Self.LOADS):
            var load_row = row + Int32(i * WAVES * ROWS_PER_LOAD)
            offsets[i] = row_offset(load_row, row_bytes) + piece * Int32(PIECE_BYTES)
        return Self(span, k_blocks, offsets, piece, wave, span.after(0), 0)

    @always_inline
    def aim(mut self, stage: Int32):
        """Turns to a stage; one beyond K reads as zeros."""
        self.block = stage * Int32(STAGE_BLOCKS)
        self.at = self.codes.after_if(self.block * Int32(BLOCK_BYTES), self.block < self.k_blocks)

    @always_inline
    def fetch[part: Int](self, place: SharedBytes):
        """Starts loading a part of the rows of the stage; beyond K they read as zeros."""
        comptime for i in range(part * Self.LOADS, (part + 1) * Self.LOADS):
            var offset = self.offsets[i]
            comptime if Self.k_tail:
                offset = offset if self.block + self.piece < self.k_blocks else OUT_OF_RANGE
            var first = (Int32(i * WAVES) + self.wave) * Int32(ROWS_PER_LOAD)
            load_to_lds[PIECE_BYTES](self.at, offset, place_at(place, first * Int32(ROW_BYTES)))
