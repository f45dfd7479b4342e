"""From floats in memory to codes and scales in memory, 32 rows x 256 a wave.

These are two by two tiles, so that the scales of a wave are the words of the
preshuffled layout:

    lane l      encodes of each tile row l % 16, block l / 16
                stores the codes of a block a tile, 16 bytes at a time, or 8
                preshuffled scales: word l of the group, for all four tiles
                plain scales: a byte a tile

Rows and blocks beyond the operand are padding of the preshuffled layout.
"""

from max.gpu.intrinsics import AMDBufferResource
from max.gpu.memory import CacheOperation
from max.gpu.sync import s_waitcnt, schedule_barrier
from std.memory import bitcast

from ...layouts import OperandLayout, PADDING_SCALE, Plain, PreshuffledCdna4
from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ..chip import GROUP_BLOCKS, GROUP_TILES, LANE_BYTES, PAIR, PIECE_BYTES, QUANTIZED_ROWS
from ..chip import SCALE_GROUP_BYTES, TILE, TILE_BLOCKS, WORD_BYTES
from ..instructions.lds import Lds, PIECE_WORDS, SharedPieces, pieces_at
from ..instructions.matrix import LAST_BYTES, PIECES
from .activations import FloatSource
from .encode import EncodedBlock
from .memory import OUT_OF_RANGE, Span, quotient
from .tiles import tiled_block


@fieldwise_init
struct QuantizedRows[
    format: Format,
    Layout: OperandLayout,
    policy: CacheOperation = CacheOperation.ALWAYS,
    tiled_rows: Int = 1,
](TrivialRegisterPassable):
    """Where codes go, and scales in `Layout`.

    `policy`: Who sees the stores before the kernel ends.
    `tiled_rows`: Rows whose codes of 128 along K lie together; 1 if they are plain.
    """

    comptime CODE_BYTES = LANE_BYTES[Self.format]
    comptime STORES = PIECES[Self.format] + (1 if Self.Layout == Plain else 0)
    """Stores of a tile; preshuffled scales of several tiles go together."""

    var codes: AMDBufferResource
    """[M, bytes of K codes]."""
    var scales: AMDBufferResource
    """[M, K / 32] or its preshuffled form."""
    var rows: Int32
    var k_blocks: Int32

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
        var code_rows, code_blocks = rows, k_blocks
        comptime if Self.tiled_rows > 1:
            code_rows = quotient[Self.tiled_rows](rows + Int32(Self.tiled_rows - 1))
            code_rows *= Int32(Self.tiled_rows)
            code_blocks = Self._tiles(k_blocks) * Int32(TILE_BLOCKS)
        return Self(
            Span.of(codes, code_rows * code_blocks * Int32(Self.CODE_BYTES)).after(0),
            Span.of(scales, scale_rows * scale_blocks).after(0),
            rows,
            k_blocks,
        )

    @staticmethod
    @always_inline
    def _tiles(k_blocks: Int32) -> Int32:
        """Returns the tiles along K."""
        return quotient[TILE_BLOCKS](k_blocks + Int32(TILE_BLOCKS - 1))

    @always_inline
    def put(self, encoded: EncodedBlock[Self.format], row: Int32, block: Int32):
        """Stores the codes of a block; drops them beyond the operand."""
        var offset = (row * self.k_blocks + block) * Int32(Self.CODE_BYTES)
        comptime if Self.tiled_rows > 1:
            offset = tiled_block[Self.tiled_rows](row, block, Self._tiles(self.k_blocks))
            offset *= Int32(Self.CODE_BYTES)
        comptime for i in range(PIECES[Self.format]):
            comptime IS_LAST = i == PIECES[Self.format] - 1
            comptime BYTES = LAST_BYTES[Self.format] if IS_LAST else PIECE_BYTES
            var piece = encoded.codes.slice[BYTES // WORD_BYTES, offset=i * PIECE_WORDS]()
            self.codes.store[cache_policy=Self.policy](
                offset + Int32(i * PIECE_BYTES) if block < self.k_blocks else OUT_OF_RANGE,
                bitcast[DType.uint8, BYTES](piece),
            )

    @always_inline
    def put_scale(self, scale: UInt32, row: Int32, block: Int32):
        """Stores a plain scale; drops it beyond the operand."""
        var offset = row * self.k_blocks + block
        self.scales.store[cache_policy=Self.policy](
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
        var groups = quotient[GROUP_BLOCKS](self.k_blocks + Int32(GROUP_BLOCKS - 1))
        var offset = (pair * groups + group) * Int32(SCALE_GROUP_BYTES) + lane * 4
        self.scales.store[cache_policy=Self.policy](
            offset if group < groups else OUT_OF_RANGE, bitcast[DType.uint8, 4](word)
        )


@fieldwise_init
struct GroupQuantizer[
    format: Format,
    dtype: DType,
    rounding: Rounding,
    Layout: OperandLayout,
    policy: CacheOperation = CacheOperation.ALWAYS,
    *,
    places: Int = PAIR * GROUP_TILES,
    tiled_rows: Int = 1,
](TrivialRegisterPassable):
    """A wave that quantizes groups, 32 rows x 256, of a pair of tiles of rows.

    `policy`: Who sees the result before the kernel ends.
    `places`: Tiles in flight; a group has four.
    `tiled_rows`: Rows whose codes of 128 along K lie together; 1 if they are plain.
    """

    comptime Source = FloatSource[
        Self.format, Self.dtype, Self.rounding, PAIR, GROUP_TILES, k_tail=True
    ]
    comptime Rows = QuantizedRows[Self.format, Self.Layout, Self.policy, Self.tiled_rows]
    comptime TILES = PAIR * GROUP_TILES
    comptime LDS_BYTES = Self.places * Self.Source.PIECES * PIECE_BYTES

    var source: Self.Source
    """The floats from the pair's first row on, settled."""
    var rows: Self.Rows
    var lds: Lds
    var pair: Int32
    """The pair of tiles, counted from the first row."""
    var lane: Int32

    @always_inline
    def _fetch_tile[tile: Int](self, at: Self.Source.Cursor):
        comptime m_tile, k_tile = divmod(tile, GROUP_TILES)
        _ = self.source.fetch[k_tile, m_tile](at, self._place[tile](), self.lane)
        schedule_barrier()

    @always_inline
    def _place[tile: Int](self) -> SharedPieces[Self.Source.PIECES]:
        comptime TILE_BYTES = Self.Source.PIECES * PIECE_BYTES
        return pieces_at[Self.Source.PIECES](self.lds, Int32(tile % Self.places * TILE_BYTES))

    @staticmethod
    def _operations_after[tile: Int, own_operations: Int]() -> UInt32:
        """Returns the memory operations after the loads of a tile when it is encoded."""
        comptime loads = min(Self.TILES, tile + Self.places) - 1 - tile
        comptime stores = tile - max(0, tile - Self.places + 1)
        var operations = loads * Self.Source.LOADS + stores * Self.Rows.STORES
        return UInt32(operations + (own_operations if tile < Self.places else 0))

    @always_inline
    def fetch(self, group: Int32):
        """Starts loading as many tiles of a group as there are places."""
        var at = self.source.cursor(group)
        comptime for tile in range(Self.places):
            self._fetch_tile[tile](at)

    @always_inline
    def quantize[own_operations: Int = 0](self, group: Int32):
        """Encodes and stores the group that was fetched.

        Parameters:
            own_operations: Memory operations of the caller between the two.
        """
        var at = self.source.cursor(group)
        var word = UInt32(0)
        comptime for tile in range(Self.TILES):
            comptime m_tile, k_tile = divmod(tile, GROUP_TILES)
            s_waitcnt[vmcnt=Self._operations_after[tile, own_operations]()]()
            schedule_barrier()
            var encoded = self.source.encoded(self._place[tile]())

            var row = self.pair * QUANTIZED_ROWS + Int32(m_tile * TILE) + self.lane % TILE
            var block = group * GROUP_BLOCKS + Int32(k_tile * TILE_BLOCKS)
            block += quotient[TILE](self.lane)
            self.rows.put(encoded, row, block)
            comptime if Self.Layout == Plain:
                self.rows.put_scale(encoded.scale, row, block)
            else:
                comptime BYTE = UInt32(PAIR * k_tile + m_tile)
                word |= self.rows.padded(encoded.scale, row, block) << (8 * BYTE)
            comptime if tile + Self.places < Self.TILES:
                schedule_barrier()
                s_waitcnt[lgkmcnt=0]()
                self._fetch_tile[tile + Self.places](at)
        comptime if Self.Layout != Plain:
            comptime assert Self.Layout == PreshuffledCdna4, "plain or preshuffled for CDNA4"
            self.rows.put_word(word, self.pair, group, self.lane)
