"""Stages in LDS, and how the waves of a workgroup read their fragments and scales there.

How they get there `operands/shared.mojo` says. A piece of a row of activations has the codes of one
block, or of half a block; six-bit codes lie as `operands/shared` pictures. A word of scales feeds
2 x 2 tiles. Float scales of blocks are words: of activations those of 32 rows a wave, row by row;
of weights what the wave itself needs.

Wave and lane are in these places as bytes, not as coordinates of a tile, which the main loop
would add anew: 221 and 148 instead of 219 and 144 instructions (compiled for
gfx950, 2026-11-22).
"""

from layout import Coord, Idx
from ...numbers.scales import Scale
from ..chip import GROUP_TILES, LANES, LANE_SCALES, PAIR, PIECE_BYTES
from ..chip import SCALE_GROUP_BYTES, SCALE_GROUP_ROWS, TILE, TILE_BLOCKS, WORD_BYTES
from ..chip import scale_load_bytes
from ..instructions.lds import (
    Lds,
    PIECE_WORDS,
    pieces_at,
    read_pair,
    read_piece,
    read_sixes,
    read_word,
    words_at,
)
from ..instructions.matrix import BlockCodes, CodeTile, PIECES, WordTile
from ..operands.memory import quotient, remainder
from ..operands.shared import place_of_sixes
from ..operands.tiles import exchanged
from ..operands.weights import HALF_WORDS, half_of_sixes
from ..types import Formats, KEPT
from ..operands.columns import first_pointer, read_transposed
from .shape import N_TILES, PingPongTile, WAVES_M, WAVES_N


comptime SLICES = GROUP_TILES
"""Slices of a stage."""


@fieldwise_init
struct Ring[num_bytes: Int, depth: Int, run: Int = 1](TrivialRegisterPassable):
    """Which of the places that stages, slices or phases take in turn, `run` of them each."""

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
        comptime LAST = Int32((Self.depth - 1) * Self.num_bytes)
        var offset = Int32(0) if self.offset == LAST else self.offset + Int32(Self.num_bytes)
        var index = self.index + 1
        return Self(index, offset if remainder[Self.run](index) == 0 else self.offset)


@fieldwise_init
struct Reader[formats: Formats, m_tiles: Int](TrivialRegisterPassable):
    """Where a wave's lane reads its fragments and scales."""

    comptime Tile = PingPongTile[Self.formats, Self.m_tiles]

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
    comptime B_SCALES = LANE_SCALES[Self.formats.right]
    """Scales of weights of what a lane feeds."""
    comptime B_WORDS = N_TILES // PAIR * Self.B_SCALES if Self.HAS_BYTES else 1
    """Words of scales of weights, likewise."""
    comptime FLOAT_ROWS = SCALE_GROUP_ROWS // Self.Tile.SCALE_RUN
    """Rows of a load of float scales."""
    comptime FLOAT_TILE_WORDS = (
        TILE * scale_load_bytes(Self.Tile.SCALE_RUN) // (Self.FLOAT_ROWS * WORD_BYTES)
    )
    """Words of LDS from the float scales of a tile of rows to those of the next."""
    comptime A_LINE_PIECES = WAVES_M * Self.Tile.PART_TILES
    """Pieces of a line in LDS of activations that lie column by column."""
    comptime B_LINE_PIECES = WAVES_N * N_TILES
    """The same of weights."""

    var a: Int32
    """The lane's byte of the first tile of rows, first slice."""
    var b: Int32
    """The lane's byte of the first tile of columns."""
    var b_second: Int32
    """Of six-bit weights, the second half piece that the lane feeds; the third is a piece behind
    the first."""
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
        var a = piece * Int32(PIECE_BYTES)
        comptime if Self.Tile.HAS_SIXES:
            a = place_of_sixes[Self.Tile.LOAD_ROWS, Self.Tile.ROW_BYTES](lane)
        var first_column = n * Int32(N_TILES * Self.Tile.B_TILE_BYTES)
        var b = lane * Int32(PIECE_BYTES)
        comptime if Self.formats.right.element.bits == 6:
            b = half_of_sixes[0](lane)
        elif Self.formats.are_floats():
            b = a
        comptime WORDS_M = Self.m_tiles // PAIR
        comptime WORDS_N = N_TILES // PAIR
        var a_scales = m * Int32(WORDS_M * SCALE_GROUP_BYTES) + lane * 4
        var b_scales = n * Int32(WORDS_N * SCALE_GROUP_BYTES) + lane * Int32(WORD_BYTES)
        b_scales = Int32(Self.Tile.B_SCALE_PLACE) + b_scales * Int32(Self.B_SCALES)
        comptime if not Self.HAS_BYTES:
            var load, row = divmod(lane % Int32(TILE), Int32(Self.FLOAT_ROWS))
            a_scales = m * Int32(Self.Tile.NEXT_WAVE * Self.FLOAT_TILE_WORDS * WORD_BYTES)
            a_scales += load * Int32(scale_load_bytes(Self.Tile.SCALE_RUN))
            a_scales += row * Int32(SCALE_GROUP_BYTES // Self.FLOAT_ROWS)
            b_scales = Int32(Self.Tile.A_SCALE_BYTES) + wave * Int32(SCALE_GROUP_BYTES)
        comptime if Self.formats.are_columns:
            return Self(
                first_pointer[Self.A_LINE_PIECES](m * Int32(Self.Tile.NEXT_WAVE), lane),
                first_pointer[Self.B_LINE_PIECES](n * Int32(N_TILES), lane),
                0,
                a_scales,
                b_scales,
            )
        return Self(
            m * Int32(Self.m_tiles * Self.Tile.A_TILE_BYTES) + a,
            first_column + b,
            first_column + half_of_sixes[1](lane),
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
        comptime if Self.Tile.HAS_SIXES:
            comptime for tile in range(Self.Tile.PART_TILES):
                comptime first = (part * Self.Tile.PART_TILES + tile) * Self.Tile.A_TILE_BYTES
                tiles[phase_slice, tile] = rebind[BlockCodes[Self.formats.left]](
                    read_sixes(place.unsafe_offset(Int(self.a) + first))
                )
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
        comptime LANE_PIECES = PIECES[Self.formats.right]
        comptime if Self.formats.are_floats():
            comptime for piece in range(LANE_PIECES):
                var first = self.b ^ Int32(piece * Self.NEXT_PIECE * PIECE_BYTES)
                var pieces = pieces_at[N_TILES, TILE * Self.Tile.ROW_PIECES](phase, first)
                comptime for tile in range(N_TILES):
                    tiles[phase_slice, tile] = tiles[phase_slice, tile].insert[
                        offset=piece * PIECE_WORDS
                    ](read_piece(pieces, Coord(Idx[tile], Idx[0])))
            return
        comptime if Self.formats.are_columns:
            comptime for tile in range(N_TILES):
                tiles[phase_slice, tile] = read_transposed[
                    Self.formats.right, Self.B_LINE_PIECES, tile
                ](phase, self.b)
            return
        comptime if Self.formats.right.element.bits == 6:
            comptime for tile in range(N_TILES):
                comptime NUMBER = phase_slice * WAVES_N * N_TILES + tile
                comptime first = NUMBER * Self.Tile.B_TILE_BYTES
                comptime LAST = TILE * PIECE_BYTES
                var halves = tiles[phase_slice, tile]
                halves = halves.insert[offset=0](
                    read_pair(phase.unsafe_offset(Int(self.b) + first))
                )
                halves = halves.insert[offset=HALF_WORDS](
                    read_pair(phase.unsafe_offset(Int(self.b_second) + first))
                )
                tiles[phase_slice, tile] = halves.insert[offset=2 * HALF_WORDS](
                    read_pair(phase.unsafe_offset(Int(self.b) + first + LAST))
                )
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
        comptime if not is_a and Self.B_SCALES > 1:
            comptime for pair in range(count // Self.B_SCALES):
                comptime first = pair * Self.B_SCALES * SCALE_GROUP_BYTES
                var both = read_pair(stage.unsafe_offset(Int(self.b_scales) + first))
                comptime for i in range(Self.B_SCALES):
                    words[pair * Self.B_SCALES + i] = both[i]
            return
        var shared = words_at[count, LANES](stage, self.a_scales if is_a else self.b_scales)
        comptime for word in range(count):
            words[word] = read_word(shared, Coord(Idx[word], Idx[0]))

    @always_inline
    def read_floats[
        slice: Int, part: Int
    ](self, stage: Lds, a: WordTile[Self.A_WORDS], b: WordTile[Self.B_WORDS]):
        """Reads scales of a part of a slice of the stage that begins at `stage`."""
        comptime GROUP_WORDS = SCALE_GROUP_BYTES // WORD_BYTES
        comptime TILES = WAVES_M * Self.m_tiles
        var rows = words_at[TILES, Self.FLOAT_TILE_WORDS](stage, self.a_scales)
        comptime for tile in range(Self.Tile.PART_TILES):
            comptime m_tile = part * Self.Tile.NEXT_PART + tile
            a[tile] = read_word(rows, Coord(Idx[m_tile], Idx[slice]))
        b[0] = read_word(words_at[GROUP_WORDS](stage, self.b_scales), Coord(Idx[slice]))
