"""What the waves of a prefill workgroup share in LDS, on its way there and out of it.

Rows of activations keep their 128 bytes together, so that the eight lanes that load a row read one
line of memory; kept floats take two. A piece has the codes of one block, or of half a block, and
pieces are exchanged within their row, see `operands/tiles.mojo`. Weights keep the order of their
layout, which is that of the lanes. Scales have the order of the preshuffled
layout, whatever it was in memory: a word feeds 2 x 2 tiles. Float scales of blocks are words: of
activations 32 rows x 2 blocks of 128 a wave, lane by lane; of weights what the wave itself needs.

Wave and lane are in these places as bytes, not as coordinates of a tile, which the main loop
would add anew: 221 and 148 instead of 219 and 144 instructions (compiled for
gfx950, 2026-11-22).
"""

from layout import Coord, Idx
from max.gpu.intrinsics import AMDBufferResource
from ....numbers.formats import Format
from ....numbers.scales import Scale
from ...chip import (
    GROUP_BLOCKS,
    GROUP_TILES,
    LANES,
    LANE_BYTES,
    PAIR,
    PIECE_BYTES,
    TILE,
    TILE_BLOCKS,
    WORD_BYTES,
)
from ...instructions.lds import Lds, PIECE_WORDS, pieces_at, read_piece, read_word, words_at
from ...instructions.matrix import CodeTile, PIECES, WordTile
from ...instructions.memory import load_to_lds
from ...operands.memory import OUT_OF_RANGE, Span, quotient
from ...operands.tiles import exchanged
from ...prologue.shape import SCALE_GROUP_BYTES, SCALE_GROUP_ROWS
from ...types import Formats, KEPT
from .columns import first_pointer, read_transposed
from .shape import (
    A_SCALE_BYTES,
    COLUMNS,
    N_TILES,
    PingPongTile,
    STAGE_BLOCKS,
    WAVES,
    WAVES_M,
    WAVES_N,
)
from .shared import SharedRightSide


comptime SLICES = GROUP_TILES
"""Slices of a stage."""


@fieldwise_init
struct Ring[num_bytes: Int, depth: Int](TrivialRegisterPassable):
    """Which of the places that stages, slices or phases take in turn.

    Parameters:
        num_bytes: Bytes of a place.
        depth: Places.
    """

    var index: Int32
    """Which stage, slice or phase, counted from the beginning of K."""
    var offset: Int32
    """Where its place begins."""

    @staticmethod
    @always_inline
    def before_first(place: Int = Self.depth - 1) -> Self:
        """Returns what comes before the first, which is in the place behind `place`."""
        return Self(-1, Int32(place * Self.num_bytes))

    @always_inline
    def next(self) -> Self:
        """Returns the next one."""
        comptime LAST = Int32((Self.depth - 1) * Self.num_bytes)
        var is_last = self.offset == LAST
        return Self(self.index + 1, Int32(0) if is_last else self.offset + Int32(Self.num_bytes))


@always_inline
def row_offset(row: Int32, row_bytes: Int32) -> Int32:
    """Returns `row * row_bytes`, both less than 2**24: a multiplication at full rate."""
    comptime LOW_24 = Int32(0xFFFFFF)
    return (row & LOW_24) * (row_bytes & LOW_24)


@fieldwise_init
struct Reader[formats: Formats, m_tiles: Int](TrivialRegisterPassable):
    """Where a wave's lane reads its fragments and scales.

    Parameters:
        formats: What is multiplied.
        m_tiles: Tiles of rows of a wave.
    """

    comptime Tile = PingPongTile[Self.formats, Self.m_tiles]
    """The workgroup's tile of C."""

    comptime IS_KEPT = Self.formats.left == KEPT
    """Whether a lane feeds a block as it lies in memory."""
    comptime BLOCK_PIECES = PIECES[KEPT] if Self.IS_KEPT else 1
    """Pieces from the first that a lane feeds to the first of the next block's lane."""
    comptime NEXT_PIECE = 1 if Self.IS_KEPT else TILE_BLOCKS
    """Pieces from one that a lane feeds to the next."""
    comptime HAS_BYTES = Self.formats.left.scale == Scale.E8M0
    """Whether scales are bytes, four of a stage to a word."""
    comptime A_WORDS = Self.m_tiles // PAIR if Self.HAS_BYTES else Self.Tile.PART_TILES
    """Words of scales of activations that a lane holds: of a stage, or of a part of a slice."""
    comptime B_WORDS = N_TILES // PAIR if Self.HAS_BYTES else 1
    """Words of scales of weights, likewise."""
    comptime A_LINE_PIECES = WAVES_M * Self.Tile.PART_TILES
    """Pieces of a line in LDS of activations that lie column by column."""
    comptime B_LINE_PIECES = WAVES_N * N_TILES
    """The same of weights."""

    var a: Int32
    """The lane's byte of the first tile of rows, first slice."""
    var b: Int32
    """The lane's byte of the first tile of columns."""
    var a_scales: Int32
    """The lane's first byte of scales of activations."""
    var b_scales: Int32
    """The lane's first byte of scales of weights."""

    @staticmethod
    @always_inline
    def of(wave: Int32, lane: Int32) -> Self:
        """Places a wave: waves of equal `wave % 4` share columns."""
        var m, n = quotient[WAVES_N](wave), wave % Int32(WAVES_N)
        var block = quotient[TILE](lane) * Int32(Self.BLOCK_PIECES)
        var piece = exchanged[Self.Tile.ROW_PIECES](
            lane % Int32(TILE) * Int32(Self.Tile.ROW_PIECES) + block
        )
        comptime WORDS_M = Self.m_tiles // PAIR
        comptime WORDS_N = N_TILES // PAIR
        var a_scales = m * Int32(WORDS_M * SCALE_GROUP_BYTES) + lane * 4
        var b_scales = Int32(A_SCALE_BYTES) + n * Int32(WORDS_N * SCALE_GROUP_BYTES) + lane * 4
        comptime if not Self.HAS_BYTES:
            a_scales = m * Int32(Self.Tile.NEXT_WAVE // PAIR * SCALE_GROUP_BYTES)
            a_scales += lane % Int32(TILE) * Int32(WORD_BYTES)
            b_scales = Int32(A_SCALE_BYTES) + wave * Int32(SCALE_GROUP_BYTES)
        comptime if Self.formats.are_columns:
            return Self(
                first_pointer[Self.A_LINE_PIECES](m * Int32(Self.Tile.NEXT_WAVE), lane),
                first_pointer[Self.B_LINE_PIECES](n * Int32(N_TILES), lane),
                a_scales,
                b_scales,
            )
        return Self(
            m * Int32(Self.m_tiles * Self.Tile.A_TILE_BYTES) + piece * Int32(PIECE_BYTES),
            n * Int32(N_TILES * Self.Tile.B_TILE_BYTES) + lane * Int32(PIECE_BYTES),
            a_scales,
            b_scales,
        )

    @always_inline
    def read_a[
        slice: Int, part: Int, phase_slice: Int
    ](
        self,
        place: Lds,
        tiles: CodeTile[Self.formats.left, Self.Tile.PHASE_SLICES, Self.Tile.PART_TILES],
    ):
        """Reads the tiles of rows of a part of slice `slice` of a place."""
        comptime LANE_PIECES = PIECES[Self.formats.left]
        comptime if Self.formats.are_columns:
            comptime ROOM_BYTES = Self.Tile.A_BYTES // Self.Tile.PARTS
            var room = place.unsafe_offset(part * ROOM_BYTES)
            comptime for tile in range(Self.Tile.PART_TILES):
                tiles[phase_slice, tile] = read_transposed[
                    Self.formats.left, Self.A_LINE_PIECES, tile
                ](room, self.a)
            return
        comptime for piece in range(LANE_PIECES):
            # An exchange is the same for all pieces of a row.
            comptime number = slice * LANE_PIECES + piece
            var first = self.a ^ Int32(number * Self.NEXT_PIECE * PIECE_BYTES)
            var pieces = pieces_at[Self.m_tiles, TILE * Self.Tile.ROW_PIECES](place, first)
            comptime for tile in range(Self.Tile.PART_TILES):
                comptime m_tile = part * Self.Tile.PART_TILES + tile
                tiles[phase_slice, tile] = tiles[phase_slice, tile].insert[
                    offset=piece * PIECE_WORDS
                ](read_piece(pieces, Coord(Idx[m_tile], Idx[0])))

    @always_inline
    def read_b[
        phase_slice: Int
    ](self, phase: Lds, tiles: CodeTile[Self.formats.right, Self.Tile.PHASE_SLICES, N_TILES]):
        """Reads the tiles of columns of a slice."""
        comptime LANE_PIECES = PIECES[Self.formats.right]
        comptime if Self.formats.are_columns:
            comptime for tile in range(N_TILES):
                tiles[phase_slice, tile] = read_transposed[
                    Self.formats.right, Self.B_LINE_PIECES, tile
                ](phase, self.b)
            return
        comptime SLICES = Self.Tile.PHASE_SLICES
        var pieces = pieces_at[SLICES, WAVES_N * N_TILES, LANE_PIECES, LANES](phase, self.b)
        comptime for tile in range(N_TILES):
            comptime for piece in range(LANE_PIECES):
                var at = Coord(Idx[phase_slice], Idx[tile], Idx[piece], Idx[0])
                tiles[phase_slice, tile] = tiles[phase_slice, tile].insert[
                    offset=piece * PIECE_WORDS
                ](read_piece(pieces, at))

    @always_inline
    def read_scales[count: Int, //, is_a: Bool](self, stage: Lds, words: WordTile[count]):
        """Reads the words of scales of a stage."""
        var shared = words_at[count, LANES](stage, self.a_scales if is_a else self.b_scales)
        comptime for word in range(count):
            words[word] = read_word(shared, Coord(Idx[word], Idx[0]))

    @always_inline
    def read_floats[
        slice: Int, part: Int
    ](self, stage: Lds, a: WordTile[Self.A_WORDS], b: WordTile[Self.B_WORDS]):
        """Reads the float scales of a part of a slice."""
        comptime GROUP_WORDS = SCALE_GROUP_BYTES // WORD_BYTES
        comptime PAIRS = WAVES_M * Self.m_tiles // PAIR
        var rows = words_at[PAIRS, SLICES, PAIR, TILE](stage, self.a_scales)
        comptime for tile in range(Self.Tile.PART_TILES):
            comptime pair, half = divmod(part * Self.Tile.NEXT_PART + tile, PAIR)
            a[tile] = read_word(rows, Coord(Idx[pair], Idx[slice], Idx[half], Idx[0]))
        b[0] = read_word(words_at[GROUP_WORDS](stage, self.b_scales), Coord(Idx[slice]))


@fieldwise_init
struct SharedScales[format: Format, shared_rows: Int, k_tail: Bool](TrivialRegisterPassable):
    """Scales of a workgroup's operand on their way to LDS, a group a wave.

    They are bytes in the preshuffled order, or floats of blocks in the plain one. Where there are
    fewer groups than waves, the other waves load zeros.

    Parameters:
        format: What the operand is encoded in.
        shared_rows: Rows of the operand that the workgroup shares.
        k_tail: Whether K may end within a stage.
    """

    comptime HAS_BYTES = Self.format.scale == Scale.E8M0
    """Whether scales are bytes."""

    comptime LOADS = 0 if Self.format.has_row_scales() else 1
    """Loads of a wave for a stage."""

    var scales: Span
    """The scales from the workgroup's first row on."""
    var k_blocks: Int32
    """Blocks of a row."""
    var offset: Int32
    """Where the lane's word of a stage lies."""
    var place: Int32
    """The byte where the wave's words go."""
    var at: AMDBufferResource
    """The stage that is aimed at."""
    var block: Int32
    """Of floats, the lane's first block of a stage."""
    var blocks_left: Int32
    """Blocks from the stage that is aimed at to K."""

    @staticmethod
    @always_inline
    def of(
        scales: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
        wave: Int32,
        lane: Int32,
    ) -> Self:
        """Describes the scales from row `first_row` on."""
        comptime if not Self.HAS_BYTES:
            return Self._of_floats(scales, rows, k_blocks, first_row, wave, lane)
        comptime assert Self.shared_rows <= WAVES * SCALE_GROUP_ROWS, "a group for each wave"
        var row_bytes = quotient[GROUP_BLOCKS](k_blocks + Int32(GROUP_BLOCKS - 1)) * Int32(
            SCALE_GROUP_BYTES
        )
        var groups = quotient[SCALE_GROUP_ROWS](rows + Int32(SCALE_GROUP_ROWS - 1))
        var span = Span.of(scales, groups * row_bytes).from_offset(
            quotient[SCALE_GROUP_ROWS](first_row) * row_bytes
        )
        var is_shared = wave * Int32(SCALE_GROUP_ROWS) < Int32(Self.shared_rows)
        var offset = wave * row_bytes + lane * 4 if is_shared else OUT_OF_RANGE
        return Self(
            span, k_blocks, offset, wave * Int32(SCALE_GROUP_BYTES), span.after(0), 0, k_blocks
        )

    @staticmethod
    @always_inline
    def _of_floats(
        scales: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
        wave: Int32,
        lane: Int32,
    ) -> Self:
        """Describes float scales: a lane's is of a row and a slice, or of the wave's columns."""
        comptime ROWS = Self.format.block_rows if Self.LOADS > 0 else 1
        var row_bytes = quotient[TILE_BLOCKS](k_blocks + Int32(TILE_BLOCKS - 1)) * Int32(WORD_BYTES)
        var row = first_row + wave * Int32(SCALE_GROUP_ROWS) + lane % SCALE_GROUP_ROWS
        var slice = quotient[SCALE_GROUP_ROWS](lane)
        var is_shared = wave * Int32(SCALE_GROUP_ROWS) < Int32(Self.shared_rows)
        comptime if ROWS > 1:
            comptime assert ROWS % (N_TILES * TILE) == 0, "a wave's columns share scales"
            row = first_row + wave % Int32(WAVES_N) * Int32(N_TILES * TILE)
            slice = lane % Int32(SLICES)
        var row_blocks = quotient[ROWS](rows + Int32(ROWS - 1))
        var span = Span.of(scales, row_blocks * row_bytes)
        var offset = quotient[ROWS](row) * row_bytes + slice * Int32(WORD_BYTES)
        return Self(
            span,
            k_blocks,
            offset if is_shared else OUT_OF_RANGE,
            wave * Int32(SCALE_GROUP_BYTES),
            span.after(0),
            slice * Int32(TILE_BLOCKS),
            k_blocks,
        )

    @always_inline
    def aim(mut self, stage: Int32):
        """Turns to a stage; one beyond K reads as zeros."""
        comptime STAGE_BYTES = SCALE_GROUP_BYTES if Self.HAS_BYTES else SLICES * WORD_BYTES
        comptime if Self.LOADS > 0:
            self.blocks_left = self.k_blocks - stage * Int32(STAGE_BLOCKS)
            self.at = self.scales.after_if(stage * Int32(STAGE_BYTES), self.blocks_left > 0)

    @always_inline
    def fetch(self, stage: Lds):
        """Starts loading the wave's share of the stage."""
        var offset = self.offset
        comptime if Self.k_tail and not Self.HAS_BYTES:
            # Beyond K is the next row, which may be NaN.
            offset = offset if self.block < self.blocks_left else OUT_OF_RANGE
        load_to_lds[4](self.at, offset, stage.unsafe_offset(Int(self.place)))


@fieldwise_init
struct SharedWeights[format: Format, slices: Int, parts: Int, k_tail: Bool](SharedRightSide):
    """A workgroup's columns of C: preshuffled weights on their way to LDS.

    Parameters:
        format: What the weights are.
        slices: Slices that are fetched together.
        parts: Parts in which they are fetched.
        k_tail: Whether K may end within a stage.
    """

    comptime CODE_BYTES = LANE_BYTES[Self.format]
    """Bytes of the codes of a block."""
    comptime TILE_BYTES = TILE * TILE_BLOCKS * Self.CODE_BYTES
    comptime WAVE_TILES = COLUMNS // TILE // WAVES
    """Tiles of columns that a wave loads."""
    comptime TILE_LOADS = Self.WAVE_TILES * PIECES[Self.format]
    """Loads of a wave for a slice."""
    comptime LOADS = Self.slices * Self.TILE_LOADS // Self.parts
    """Loads of a wave for a part."""

    var codes: Span
    """The codes from the workgroup's first row on."""
    var k_blocks: Int32
    """Blocks of a row."""
    var offsets: SIMD[DType.int32, Self.WAVE_TILES]
    """Where the lane's pieces of a phase begin."""
    var wave: Int32
    var lane: Int32
    var at: AMDBufferResource
    """The phase that is aimed at."""
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
        """Describes the weights from row `first_row` on."""
        var tile_row_bytes = k_blocks * Int32(TILE * Self.CODE_BYTES)
        var tiles = quotient[TILE](rows + Int32(TILE - 1))
        var span = Span.of(codes, tiles * tile_row_bytes).from_offset(
            quotient[TILE](first_row) * tile_row_bytes
        )
        var offsets = SIMD[DType.int32, Self.WAVE_TILES](0)
        comptime for i in range(Self.WAVE_TILES):
            var tile = wave + Int32(i * WAVES)
            offsets[i] = tile * tile_row_bytes + lane * Int32(PIECE_BYTES)
        return Self(span, k_blocks, offsets, wave, lane, span.after(0), 0)

    @always_inline
    def aim(mut self, place: Int32):
        """Turns to a phase; one beyond K reads as zeros."""
        self.block = place * Int32(Self.slices * TILE_BLOCKS)
        self.at = self.codes.after_if(
            self.block * Int32(TILE * Self.CODE_BYTES), self.block < self.k_blocks
        )

    @always_inline
    def fetch[part: Int](self, place: Lds):
        """Starts loading a part of the wave's tiles; beyond K they read as zeros."""
        comptime LANE_PIECES = PIECES[Self.format]
        comptime for load in range(Self.LOADS):
            comptime slice, tile_load = divmod(part * Self.LOADS + load, Self.TILE_LOADS)
            comptime i, piece = divmod(tile_load, LANE_PIECES)
            comptime piece_byte = piece * LANES * PIECE_BYTES
            var offset = self.offsets[i] + Int32(slice * Self.TILE_BYTES + piece_byte)
            comptime if Self.k_tail:
                var fed = quotient[TILE](self.lane) + Int32(piece * TILE_BLOCKS)
                var block = Int32(slice * TILE_BLOCKS) + quotient[LANE_PIECES](fed)
                offset = offset if self.block + block < self.k_blocks else OUT_OF_RANGE
            var tile = self.wave + Int32((slice * Self.WAVE_TILES + i) * WAVES)
            var first = tile * Int32(Self.TILE_BYTES) + Int32(piece_byte)
            load_to_lds[PIECE_BYTES](self.at, offset, place.unsafe_offset(Int(first)))

    @always_inline
    def keep_inside[count: Int, //](self, stage: Int32, words: WordTile[count]):
        """Removes what lies beyond K from the lane's words of scales of a stage, of any operand."""
        comptime LOW_HALF = UInt32(0x0000FFFF)
        var block = stage * Int32(STAGE_BLOCKS) + quotient[TILE](self.lane)
        var low = LOW_HALF if block < self.k_blocks else 0
        var high = ~LOW_HALF if block + Int32(TILE_BLOCKS) < self.k_blocks else 0
        comptime for word in range(count):
            words[word] &= low | high
