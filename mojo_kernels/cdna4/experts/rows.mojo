"""The left side of a product whose rows are gathered: row r is that of token `tokens[r]`."""

from max.gpu.intrinsics import AMDBufferResource

from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ..chip import TILE, WORD_BYTES
from ..instructions.lds import SharedPieces
from ..operands.activations import ActivationSource, FloatSource
from ..operands.encode import EncodedBlock
from ..operands.memory import Input, Span, load_word


@fieldwise_init
struct GatheredSource[format: Format, dtype: DType, rounding: Rounding, m_tiles: Int, k_tiles: Int](
    ActivationSource
):
    """Floats of tokens, contiguous, in the order of a list.

    Parameters:
        format: What they are encoded in.
        dtype: Type of the floats.
        rounding: The scale rule.
        m_tiles: Tiles of rows, a power of two.
        k_tiles: Tiles of a chunk, within which K may end.
    """

    comptime left = Self.format
    """What the blocks are encoded in."""
    comptime Floats = FloatSource[
        Self.format, Self.dtype, Self.rounding, Self.m_tiles, Self.k_tiles, True
    ]
    """The same without a list."""
    comptime LOADS = Self.Floats.LOADS
    """Loads of a tile."""
    comptime PIECES = Self.Floats.PIECES
    """The floats of a tile."""
    comptime Cursor = Self.Floats.Cursor
    """A chunk of floats."""

    var floats: Self.Floats
    """All tokens."""
    var tokens: AMDBufferResource
    """The list from the first row on, up to the last of the group; then token 0."""

    @staticmethod
    @always_inline
    def of(
        x: Input[Self.dtype],
        num_tokens: Int32,
        k: Int32,
        tokens: Input[DType.int32],
        first_row: Int32,
        end_row: Int32,
    ) -> Self:
        """Begins at row `first_row` of the list."""
        var list = Span.of(tokens, end_row).after(first_row * Int32(WORD_BYTES))
        return Self(Self.Floats(x, num_tokens, k, 0), list)

    @always_inline
    def settle(mut self, lane: Int32):
        """Looks up the tokens of the lane's rows."""
        comptime Tile = Self.Floats.Tile
        var row_bytes = self.floats.k * Int32(Tile.ELEMENT_BYTES)
        comptime for m_tile in range(Self.m_tiles):
            comptime for load in range(Self.LOADS):
                var row, byte = Tile.source[load](lane)
                var place = (Int32(m_tile * TILE) + row) * Int32(WORD_BYTES)
                var token = load_word(self.tokens, place)
                self.floats.offsets[m_tile, load] = token * row_bytes + byte

    @always_inline
    def settle_block(mut self, lane: Int32):
        """Finds the lane's first piece."""
        self.floats.settle_block(lane)

    @always_inline
    def cursor(self, chunk: Int32, m_tile: Int32 = 0, is_wanted: Bool = True) -> Self.Cursor:
        """Returns the place of a chunk; rows of a list have no tile from which on they lie."""
        return self.floats.cursor(chunk, 0, is_wanted)

    @always_inline
    def fetch[
        k_tile: Int, m_tile: Int
    ](self, at: Self.Cursor, tile: SharedPieces[Self.PIECES], lane: Int32) -> EncodedBlock[
        Self.left
    ]:
        """Starts loading a tile of the chunk to its place in LDS."""
        return self.floats.fetch[k_tile, m_tile](at, tile, lane)

    @always_inline
    def block(
        self, kept: EncodedBlock[Self.left], tile: SharedPieces[Self.PIECES]
    ) -> EncodedBlock[Self.left]:
        """Returns what the lane feeds of a tile that has arrived in LDS."""
        return self.floats.block(kept, tile)
