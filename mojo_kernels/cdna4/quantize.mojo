"""Quantizes rows of floats: one pass over memory.

A wave takes 32 rows x 256, two by two tiles, so that its scales are the words of
the preshuffled layout; waves of a workgroup are neighbours along K:

    lane l      encodes of each tile row l % 16, block l / 16
                stores 16 bytes of codes a tile
                preshuffled scales: word l of the group, for all four tiles
                plain scales: a byte a tile

Rows and blocks beyond the operand are padding of the preshuffled layout.
"""

from layout import row_major
from layout.tile_tensor import stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from max.gpu.sync import s_waitcnt, schedule_barrier
from std.memory import AddressSpace, bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ..codec import Rounding
from ..formats import BLOCK, BLOCK_BYTES
from ..layouts import OperandLayout, PADDING_SCALE, Plain, PreshuffledCdna4
from .activations import QuantizedOnTheFly
from .encode import EncodedBlock
from .mma import LANES
from .tiles import (
    GROUP_BLOCKS,
    GROUP_TILES,
    OUT_OF_RANGE,
    PAIR,
    PIECE_BYTES,
    Span,
    TILE,
    TILE_BLOCKS,
    quotient,
)

comptime QUANTIZE_WAVES = 2
"""Waves of a workgroup. Guess."""
comptime QUANTIZE_ROWS = PAIR * TILE
"""Rows of a workgroup."""
comptime QUANTIZE_BLOCKS = QUANTIZE_WAVES * GROUP_BLOCKS
"""Blocks along K of a workgroup."""


@fieldwise_init
struct EncodedRows[Layout: OperandLayout](TrivialRegisterPassable):
    """Where plain codes go, and scales in `Layout`."""

    var codes: AMDBufferResource
    """[M, K / 2]."""
    var scales: AMDBufferResource
    """[M, K / 32] or its preshuffled form."""
    var rows: Int32
    """M."""
    var k_blocks: Int32
    """Blocks of a row."""

    @staticmethod
    @always_inline
    def at(
        codes: MutPointer[UInt8, _], scales: MutPointer[UInt8, _], rows: Int32, k_blocks: Int32
    ) -> Self:
        """Describes the result; scales are padded as their layout says."""
        comptime ROWS = Self.Layout.SCALE_ROW_MULTIPLE
        comptime BLOCKS = Self.Layout.SCALE_K_MULTIPLE
        var scale_rows = quotient[ROWS](rows + Int32(ROWS - 1)) * Int32(ROWS)
        var scale_blocks = quotient[BLOCKS](k_blocks + Int32(BLOCKS - 1)) * Int32(BLOCKS)
        return Self(
            Span.of(codes, rows * k_blocks * Int32(BLOCK_BYTES)).after(0),
            Span.of(scales, scale_rows * scale_blocks).after(0),
            rows,
            k_blocks,
        )

    @always_inline
    def put(self, encoded: EncodedBlock, row: Int32, block: Int32):
        """Stores the codes of a block; drops them beyond the operand."""
        var offset = (row * self.k_blocks + block) * Int32(BLOCK_BYTES)
        self.codes.store(
            offset if block < self.k_blocks else OUT_OF_RANGE,
            bitcast[DType.uint8, BLOCK_BYTES](encoded.codes),
        )

    @always_inline
    def put_scale(self, scale: UInt32, row: Int32, block: Int32):
        """Stores a plain scale; drops it beyond the operand."""
        var offset = row * self.k_blocks + block
        self.scales.store(
            offset if block < self.k_blocks else OUT_OF_RANGE, scale.cast[DType.uint8]()
        )

    @always_inline
    def padded(self, scale: UInt32, row: Int32, block: Int32) -> UInt32:
        """Returns the scale, or what padding holds beyond the operand."""
        var is_inside = row < self.rows and block < self.k_blocks
        return scale if is_inside else PADDING_SCALE.cast[DType.uint32]()

    @always_inline
    def put_word(self, word: UInt32, pair: Int32, group: Int32, lane: Int32):
        """Stores the preshuffled scales of two by two tiles."""
        comptime GROUP_BYTES = Int32(PAIR * TILE * GROUP_BLOCKS)
        var groups = quotient[GROUP_BLOCKS](self.k_blocks + Int32(GROUP_BLOCKS - 1))
        var offset = (pair * groups + group) * GROUP_BYTES + lane * 4
        self.scales.store(offset if group < groups else OUT_OF_RANGE, bitcast[DType.uint8, 4](word))


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(QUANTIZE_WAVES * LANES)),
    `rocdl.waves_per_eu`=SIMDLength(1),
)
def quantize_rows[
    dtype: DType, rounding: Rounding, Layout: OperandLayout
](
    x: ImmPointer[Scalar[dtype], ImmutAnyOrigin],
    codes: MutPointer[UInt8, MutAnyOrigin],
    scales: MutPointer[UInt8, MutAnyOrigin],
    m: Int32,
    k: Int32,
):
    """Quantizes [M, K] contiguous floats along K: plain codes, scales in `Layout`."""
    comptime Source = QuantizedOnTheFly[dtype, rounding, PAIR, GROUP_TILES, k_tail=True]
    comptime TILES = PAIR * GROUP_TILES
    comptime TILE_ELEMENTS = Source.LDS_BYTES // size_of[DType.bfloat16]()
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var group = Int32(block_idx.x) * QUANTIZE_WAVES + wave
    var pair = Int32(block_idx.y)
    var lds = stack_allocation[
        DType.bfloat16, address_space=AddressSpace.SHARED, alignment=PIECE_BYTES
    ](row_major[QUANTIZE_WAVES * TILES * TILE_ELEMENTS]())
    var own_lds = lds.ptr.unsafe_offset(Int(wave) * TILES * TILE_ELEMENTS)

    # All loads at once: a tile of rows along K, then the next.
    var source = Source(x, m, k, pair * QUANTIZE_ROWS)
    source.settle(lane)
    var at = source.cursor(group)
    comptime for tile in range(TILES):
        comptime m_tile, k_tile = divmod(tile, GROUP_TILES)
        var place = own_lds.unsafe_offset(tile * TILE_ELEMENTS)
        _ = source.fetch[k_tile, m_tile](at, place, lane)
        schedule_barrier()

    var result = EncodedRows[Layout].at(codes, scales, m, quotient[BLOCK](k))
    var word = UInt32(0)
    comptime for tile in range(TILES):
        comptime m_tile, k_tile = divmod(tile, GROUP_TILES)
        s_waitcnt[vmcnt=UInt32((TILES - 1 - tile) * Source.LOADS)]()
        schedule_barrier()
        var place = own_lds.unsafe_offset(tile * TILE_ELEMENTS)
        var encoded = source.block({}, place, lane)

        var row = pair * QUANTIZE_ROWS + Int32(m_tile * TILE) + lane % TILE
        var block = group * GROUP_BLOCKS + Int32(k_tile * TILE_BLOCKS) + quotient[TILE](lane)
        result.put(encoded, row, block)
        comptime if Layout == Plain:
            result.put_scale(encoded.scale, row, block)
        else:
            comptime BYTE = UInt32(PAIR * k_tile + m_tile)
            word |= result.padded(encoded.scale, row, block) << (8 * BYTE)
    comptime if Layout != Plain:
        comptime assert Layout == PreshuffledCdna4, "scales are plain or preshuffled for CDNA4"
        result.put_word(word, pair, group, lane)
