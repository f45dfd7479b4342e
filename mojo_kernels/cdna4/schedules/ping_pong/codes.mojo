"""A workgroup's plain codes of activations on their way to LDS.

A place holds 256 or 128 rows x 8 blocks, or 4 of eight bits. Codes go straight from memory to LDS,
a row by eight lanes; so do floats that are kept, a row by sixteen.
"""

from max.gpu.intrinsics import AMDBufferResource

from ...chip import LANES, LANE_BYTES, PIECE_BYTES, WORD_BYTES
from ...instructions.lds import Lds
from ...instructions.matrix import PIECES
from ...instructions.memory import load_to_lds
from ...operands.memory import NO_ROW, OUT_OF_RANGE, Span, load_word, quotient, remainder
from ...operands.tiles import exchanged
from ...types import Formats
from .shape import PingPongTile, WAVES
from .shared import SharedOperand
from .stages import row_offset


@fieldwise_init
struct SharedCodes[formats: Formats, m_tiles: Int, k_tail: Bool](SharedOperand):
    """A workgroup's plain codes of activations on their way to LDS.

    Parameters:
        formats: What is multiplied.
        m_tiles: Tiles of rows of a wave.
        k_tail: Whether K may end within a place.
    """

    comptime Tile = PingPongTile[Self.formats, Self.m_tiles]
    """The workgroup's tile of C."""
    comptime CODE_BYTES = LANE_BYTES[Self.formats.left]
    """Bytes of the codes of a block."""
    comptime ROWS_PER_LOAD = LANES // Self.Tile.ROW_PIECES
    """Rows that the lanes of a wave load at once."""
    comptime LOADS = Self.Tile.ROWS // Self.ROWS_PER_LOAD // WAVES // Self.Tile.FETCHES
    """Loads of a wave for one of the parts of a place."""
    comptime OfLoads = SIMD[DType.int32, Self.Tile.FETCHES * Self.LOADS]
    """A number for each load of a lane, part by part."""

    var codes: Span
    """The codes from the workgroup's first row on."""
    var k_blocks: Int32
    """Blocks of a row."""
    var offsets: Self.OfLoads
    """Where the lane's pieces of a place lie."""
    var lane_block: Int32
    """Which block of a place the lane loads, or a part of."""
    var wave: Int32
    var at: AMDBufferResource
    """The place that is aimed at."""
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
        var row_bytes = k_blocks * Int32(Self.CODE_BYTES)
        var row, piece = Self._row_and_piece(wave, lane)
        var span = Span.of(codes, rows * row_bytes).from_offset(first_row * row_bytes)
        var offsets = Self.OfLoads()
        comptime for part in range(Self.Tile.FETCHES):
            comptime for i in range(Self.LOADS):
                var load_row = row + Int32(Self.first_row[part, i]())
                offsets[part * Self.LOADS + i] = row_offset(load_row, row_bytes) + piece * Int32(
                    PIECE_BYTES
                )
        var block = quotient[PIECES[Self.formats.left]](piece)
        return Self(span, k_blocks, offsets, block, wave, span.after(0), 0)

    @staticmethod
    @always_inline
    def listed_rows(
        list: AMDBufferResource, first: Int32, wave: Int32, lane: Int32
    ) -> Self.OfLoads:
        """Starts loading which rows a list names from `first` on, for each load of the lane."""
        var row, _ = Self._row_and_piece(wave, lane)
        var rows = Self.OfLoads()
        comptime for part in range(Self.Tile.FETCHES):
            comptime for i in range(Self.LOADS):
                var at = first + row + Int32(Self.first_row[part, i]())
                rows[part * Self.LOADS + i] = load_word(list, at * Int32(WORD_BYTES))
        return rows

    @staticmethod
    @always_inline
    def of_list(
        codes: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        listed: Self.OfLoads,
        wave: Int32,
        lane: Int32,
    ) -> Self:
        """Describes the codes of some of `rows` rows, and of `NO_ROW`."""
        var described = Self.of(codes, rows, k_blocks, 0, wave, lane)
        var row_bytes = k_blocks * Int32(Self.CODE_BYTES)
        var _, piece = Self._row_and_piece(wave, lane)
        comptime for part in range(Self.Tile.FETCHES):
            comptime for i in range(Self.LOADS):
                comptime load = part * Self.LOADS + i
                var name = listed[load]
                var offset = row_offset(name, row_bytes) + piece * Int32(PIECE_BYTES)
                described.offsets[load] = offset if name != NO_ROW else OUT_OF_RANGE
        return described

    @staticmethod
    @always_inline
    def _row_and_piece(wave: Int32, lane: Int32) -> Tuple[Int32, Int32]:
        """Returns which row of its first load a lane loads a piece of, and which piece."""
        comptime ROW_PIECES = Self.Tile.ROW_PIECES
        var at = exchanged[ROW_PIECES](wave * Int32(LANES) + lane)
        return (quotient[ROW_PIECES](at), remainder[ROW_PIECES](at))

    @staticmethod
    def first_row[part: Int, load: Int]() -> Int:
        """Returns the first row of a load: a part has equally many rows of every wave."""
        return (load * Self.Tile.FETCHES + part) * WAVES * Self.ROWS_PER_LOAD

    @always_inline
    def aim(mut self, place: Int32):
        """Turns to a place along K; one beyond K reads as zeros."""
        self.block = place * Int32(Self.Tile.PLACE_BLOCKS)
        self.at = self.codes.after_if(
            self.block * Int32(Self.CODE_BYTES), self.block < self.k_blocks
        )

    @always_inline
    def fetch[part: Int](self, place: Lds):
        """Starts loading a part of the rows of the place; beyond K they read as zeros."""
        comptime for i in range(Self.LOADS):
            var offset = self.offsets[part * Self.LOADS + i]
            comptime if Self.k_tail:
                offset = offset if self.block + self.lane_block < self.k_blocks else OUT_OF_RANGE
            var first = Int32(Self.first_row[part, i]()) + self.wave * Int32(Self.ROWS_PER_LOAD)
            load_to_lds[PIECE_BYTES](
                self.at, offset, place.unsafe_offset(Int(first * Int32(Self.Tile.ROW_BYTES)))
            )
