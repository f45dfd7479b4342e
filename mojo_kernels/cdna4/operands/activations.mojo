"""Where a wave gets the encoded blocks of its activations.

Both sources feed the same kernels: `FloatSource` streams floats through LDS and encodes them
in registers, or keeps them; `CodeSource` loads plain codes through LDS, or those of six bits to
registers, and scales to registers. A wave holds the state of its rows, a `Cursor` stands at a
chunk:

    source.settle(lane)             once: offsets of the lane in every tile of rows
    source.settle_block(lane)       once, behind the first loads: its block in a tile
    at = source.cursor(chunk)       once a chunk, scalar
    kept = source.fetch[...](at)    starts the loads of a tile
    source.block(kept, ...)         when they have arrived

Nothing of a lane is computed before `settle`, so that the loads of weights, which come from
further away, can go first.

In a tile lane l holds what it feeds of row l % 16, see `instructions/matrix`.
"""

from layout import Coord
from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast

from ...numbers.formats import Format
from ...numbers.rounding import Rounding
from ...numbers.scales import Scale
from ...tiles import RegisterTile, in_registers
from ..chip import LANE_BYTES, PIECE_BYTES, TILE, TILE_BLOCKS, TILE_K, WORD_BYTES
from ..instructions.lds import PIECE_WORDS, SharedPieces, read_piece
from ..instructions.matrix import BlockCodes, CODE_WORDS, LAST_BYTES, PIECES, fed
from ..instructions.wave import of_first_row
from ..types import KEPT
from .encode import EncodedBlock, encode_block
from .memory import Input, OUT_OF_RANGE, Span, View, load_word, quotient
from .tiles import FloatTile


trait ActivationSource(TrivialRegisterPassable):
    """A wave's rows of activations, some tiles of 16."""

    comptime left: Format
    comptime LOADS: Int
    """Memory instructions that fetch a tile."""
    comptime PIECES: Int
    """Pieces of LDS that a tile on its way needs."""
    comptime Cursor: TrivialRegisterPassable
    """A chunk, the same for all lanes."""

    def settle(mut self, lane: Int32):
        """Computes what `fetch` needs of a lane."""
        ...

    def settle_block(mut self, lane: Int32):
        """Computes what `block` needs of a lane."""
        ...

    def cursor(self, chunk: Int32, m_tile: Int32 = 0, is_wanted: Bool = True) -> Self.Cursor:
        """Returns the place of a chunk, from a tile of rows on; beyond K all is zero."""
        ...

    def fetch[
        k_tile: Int, m_tile: Int
    ](self, at: Self.Cursor, tile: SharedPieces[Self.PIECES], lane: Int32) -> EncodedBlock[
        Self.left
    ]:
        """Starts loading a tile of the chunk to registers, or to its place in LDS."""
        ...

    def block(
        self, kept: EncodedBlock[Self.left], tile: SharedPieces[Self.PIECES]
    ) -> EncodedBlock[Self.left]:
        """Returns what the lane feeds of a tile that has arrived; `kept` is from `fetch`."""
        ...


@fieldwise_init
struct FloatCursor(TrivialRegisterPassable):
    """A chunk of floats."""

    var memory: View
    """From the chunk's first column on."""
    var k_left: Int32
    """Elements from the chunk's beginning to K."""


@fieldwise_init
struct FloatSource[
    format: Format,
    dtype: DType,
    rounding: Rounding,
    m_tiles: Int,
    k_tiles: Int,
    k_tail: Bool,
    is_gathered: Bool = False,
](ActivationSource):
    """Floats, [M, K] and contiguous, that are encoded after they arrive.

    `m_tiles`: Tiles of rows, a power of two.
    `is_gathered`: Whether rows are those that a list names, in any order.
    """

    comptime left = Self.format
    comptime Tile = FloatTile[Self.dtype]
    comptime LOADS = Self.Tile.LOADS
    """Loads straight to LDS."""
    comptime PIECES = Self.Tile.PIECES
    comptime Cursor = FloatCursor

    var x: View
    """The floats from the wave's first row on."""
    var k: Int32
    var offsets: RegisterTile[DType.int32, 1, Self.m_tiles, Self.LOADS]
    """Where the lane's piece of each load lies, from the beginning of a chunk."""
    var first_piece: Int32
    """The first piece of the lane's block in any tile."""
    var list: AMDBufferResource
    """Which rows are gathered, from the wave's first one on; row 0 behind the last."""

    @always_inline
    def __init__(
        out self, x: ImmPointer[Scalar[Self.dtype], _], rows: Int32, k: Int32, first_row: Int32
    ):
        """Begins at row `first_row` of `rows`; `settle` does the rest."""
        var row_bytes = k * Int32(Self.Tile.ELEMENT_BYTES)
        self.x = View.of(x, rows * k).moved(first_row * row_bytes)
        self.k = k
        self.offsets = in_registers[DType.int32, 1, Self.m_tiles, Self.LOADS]()
        self.first_piece = 0
        self.list = Span.of(x, 0).after(0)

    @staticmethod
    @always_inline
    def of_list(
        x: ImmPointer[Scalar[Self.dtype], _],
        rows: Int32,
        k: Int32,
        list: Input[DType.int32],
        first: Int32,
        end: Int32,
    ) -> Self:
        """Takes those of `rows` rows that a list names from `first` to `end`."""
        var source = Self(x, rows, k, 0)
        source.list = Span.of(list, end).after(first * Int32(WORD_BYTES))
        return source

    @always_inline
    def settle(mut self, lane: Int32):
        """Computes the lane's offsets, of a list from the rows that it names."""
        var row_bytes = self.k * Int32(Self.Tile.ELEMENT_BYTES)
        comptime for m_tile in range(Self.m_tiles):
            comptime for load in range(Self.LOADS):
                var in_tile, byte = Self.Tile.source[load](lane)
                var row = Int32(m_tile * TILE) + in_tile
                comptime if Self.is_gathered:
                    row = load_word(self.list, row * Int32(WORD_BYTES))
                self.offsets[m_tile, load] = row * row_bytes + byte

    @always_inline
    def settle_block(mut self, lane: Int32):
        self.first_piece = Self.Tile.first_piece(lane)

    @always_inline
    def cursor(self, chunk: Int32, m_tile: Int32 = 0, is_wanted: Bool = True) -> Self.Cursor:
        var first = chunk * Int32(Self.k_tiles * TILE_K)
        var k_left = self.k - first
        var offset = (m_tile * Int32(TILE) * self.k + first) * Int32(Self.Tile.ELEMENT_BYTES)
        return FloatCursor(self.x.moved_if(offset, is_wanted and k_left > 0), k_left)

    @always_inline
    def fetch[
        k_tile: Int, m_tile: Int
    ](self, at: Self.Cursor, tile: SharedPieces[Self.PIECES], lane: Int32) -> EncodedBlock[
        Self.left
    ]:
        """Starts loading a tile of the chunk to its place in LDS; what it returns means nothing."""
        comptime first_byte = Int32(k_tile * TILE_K * Self.Tile.ELEMENT_BYTES)
        comptime for load in range(Self.LOADS):
            var offset = self.offsets[m_tile, load] + first_byte
            comptime if Self.k_tail:
                var byte = first_byte + Self.Tile.source[load](lane)[1]
                var is_inside = byte < at.k_left * Int32(Self.Tile.ELEMENT_BYTES)
                offset = offset if is_inside else OUT_OF_RANGE
            Self.Tile.fetch[load](at.memory, offset, tile)
        return {0, 0}

    @always_inline
    def block(
        self, kept: EncodedBlock[Self.left], tile: SharedPieces[Self.PIECES]
    ) -> EncodedBlock[Self.left]:
        comptime if Self.format == KEPT:
            var floats = Self.Tile.block(tile, self.first_piece).cast[DType.bfloat16]()
            return {bitcast[DType.uint32, CODE_WORDS[Self.left]](floats), 0}
        else:
            var encoded = self.encoded(tile)
            return {fed[Self.left](encoded.codes), encoded.scale}

    @always_inline
    def encoded(self, tile: SharedPieces[Self.PIECES]) -> EncodedBlock[Self.left]:
        """Returns the lane's block, block `lane / 16` of row `lane % 16`, as it is stored."""
        return encode_block[Self.left, Self.dtype, Self.rounding](
            Self.Tile.block(tile, self.first_piece)
        )


@fieldwise_init
struct CodeCursor(TrivialRegisterPassable):
    """A chunk of codes and scales."""

    var codes: View
    """From the chunk's first byte of codes on."""
    var scales: View
    """From the chunk's first scale on."""
    var blocks_left: Int32
    """Blocks from the chunk's beginning to K."""


@fieldwise_init
struct CodeSource[format: Format, m_tiles: Int, k_tiles: Int, k_tail: Bool](ActivationSource):
    """A plain operand [M, K].

    Codes of eight and four bits go through LDS, as floats do: neighbouring lanes load a line of
    memory, where those that feed a row are far from each other.

    `m_tiles`: Tiles of rows, a power of two.
    """

    comptime left = Self.format
    comptime Tile = FloatTile[DType.uint8, 8 // Self.format.element.bits]
    comptime CODE_BYTES = LANE_BYTES[Self.format]
    comptime HAS_SCALES = not Self.format.has_row_scales()
    """Whether scales are multiplied here; those of rows are not."""
    comptime HAS_BYTES = Self.format.scale == Scale.E8M0
    comptime SCALE_BLOCKS = 1 if Self.HAS_BYTES else TILE_BLOCKS
    """Blocks of the instruction that share a scale: one or those of a tile."""
    comptime LOADS = PIECES[Self.format] + (1 if Self.HAS_SCALES else 0)
    """The codes and the scale of a block."""
    comptime TAKES_WORDS = Self.HAS_SCALES and not (Self.HAS_BYTES and Self.k_tail)
    """Whether 16 lanes load a word each, the scales of a row of a tile: a float, or bytes where
    rows of these are whole words."""
    comptime THROUGH_LDS = 8 % Self.format.element.bits == 0
    """Whether codes go through LDS."""
    comptime PIECES = Self.Tile.PIECES if Self.THROUGH_LDS else 0
    comptime ROW_LOADS = Self.Tile.LOADS if Self.THROUGH_LDS else 1
    """Loads of a tile with rows of their own."""
    comptime Cursor = CodeCursor

    var codes: View
    """The codes from the wave's first row on."""
    var scales: View
    """The scales from the wave's first row on."""
    var k_blocks: Int32
    var rows: SIMD[DType.int32, Self.m_tiles * Self.ROW_LOADS]
    """The byte of the lane's loads in the first tile along K of each tile of rows."""
    var scale_rows: SIMD[DType.int32, Self.m_tiles]
    """The byte of its scale; of words, the first 16 lanes have those of a tile."""
    var first_piece: Int32
    """Through LDS, the first piece that the lane feeds of any tile."""
    var scale_bit: UInt32
    """Of words of bytes, the first bit of the lane's scale."""

    @always_inline
    def __init__(
        out self,
        codes: ImmPointer[UInt8, _],
        scales: ImmPointer[UInt8, _],
        rows: Int32,
        k_blocks: Int32,
        first_row: Int32,
    ):
        var row_bytes = k_blocks * Int32(Self.CODE_BYTES)
        self.codes = View.of(codes, rows * row_bytes).moved(first_row * row_bytes)
        self.k_blocks = k_blocks
        self.rows = {}
        self.scale_rows = {}
        self.first_piece, self.scale_bit = 0, 0
        self.scales = View.of(scales, 0)
        comptime if Self.HAS_SCALES:
            comptime SCALE_BYTES = Int32(Self.format.scale.bytes)
            var row_bytes = self._scales_of_row() * SCALE_BYTES
            self.scales = View.of(scales, rows * row_bytes).moved(first_row * row_bytes)

    @always_inline
    def _scales_of_row(self) -> Int32:
        return quotient[Self.SCALE_BLOCKS](self.k_blocks + Int32(Self.SCALE_BLOCKS - 1))

    @always_inline
    def settle(mut self, lane: Int32):
        comptime for m_tile in range(Self.m_tiles):
            var row = Int32(m_tile * TILE) + lane % TILE
            var block = quotient[TILE](lane)
            comptime if Self.THROUGH_LDS:
                comptime for load in range(Self.ROW_LOADS):
                    var in_tile, byte = Self.Tile.source[load](lane)
                    var first = (Int32(m_tile * TILE) + in_tile) * self.k_blocks
                    first = first * Int32(Self.CODE_BYTES) + byte
                    self.rows[m_tile * Self.ROW_LOADS + load] = first
            else:
                self.rows[m_tile] = (row * self.k_blocks + block) * Int32(Self.CODE_BYTES)
            comptime if Self.TAKES_WORDS:
                var offset = row * self._scales_of_row() * Int32(Self.format.scale.bytes)
                self.scale_rows[m_tile] = offset if block == 0 else OUT_OF_RANGE
            elif Self.HAS_SCALES:
                self.scale_rows[m_tile] = row * self.k_blocks + block

    @always_inline
    def settle_block(mut self, lane: Int32):
        self.scale_bit = UInt32(8 * quotient[TILE](lane))
        comptime if Self.THROUGH_LDS:
            var piece = lane % TILE * Int32(Self.Tile.ROW_PIECES) + quotient[TILE](lane)
            self.first_piece = Self.Tile.exchanged(piece)

    @always_inline
    def cursor(self, chunk: Int32, m_tile: Int32 = 0, is_wanted: Bool = True) -> Self.Cursor:
        var first = chunk * Int32(Self.k_tiles * TILE_BLOCKS)
        var blocks_left = self.k_blocks - first
        var is_inside = is_wanted and blocks_left > 0
        var offset = m_tile * Int32(TILE) * self.k_blocks + first
        var scales = self.scales
        comptime if Self.HAS_SCALES:
            var scale = m_tile * Int32(TILE) * self._scales_of_row()
            scale += quotient[Self.SCALE_BLOCKS](first)
            scales = scales.moved_if(scale * Int32(Self.format.scale.bytes), is_inside)
        return CodeCursor(
            self.codes.moved_if(offset * Int32(Self.CODE_BYTES), is_inside), scales, blocks_left
        )

    @always_inline
    def fetch[
        k_tile: Int, m_tile: Int
    ](self, at: Self.Cursor, tile: SharedPieces[Self.PIECES], lane: Int32) -> EncodedBlock[
        Self.left
    ]:
        comptime first = Int32(k_tile * TILE_BLOCKS)
        comptime first_byte = first * Int32(Self.CODE_BYTES)
        comptime LANE_PIECES = PIECES[Self.format]
        var group = quotient[TILE](lane)
        comptime if Self.THROUGH_LDS:
            comptime for load in range(Self.ROW_LOADS):
                var offset = self.rows[m_tile * Self.ROW_LOADS + load] + first_byte
                comptime if Self.k_tail:
                    var byte = Self.Tile.source[load](lane)[1]
                    var block = first + quotient[Self.CODE_BYTES](byte)
                    offset = offset if block < at.blocks_left else OUT_OF_RANGE
                Self.Tile.fetch[load](
                    at.codes, offset, rebind[SharedPieces[Self.Tile.PIECES]](tile)
                )
            return {0, self._fetch_scale[k_tile, m_tile](at, group)}
        var codes = BlockCodes[Self.left]()
        comptime for i in range(LANE_PIECES):
            var offset = self.rows[m_tile] + first_byte + Int32(i * PIECE_BYTES)
            comptime if Self.k_tail:
                offset = offset if first + group < at.blocks_left else OUT_OF_RANGE
            comptime BYTES = PIECE_BYTES if i < LANE_PIECES - 1 else LAST_BYTES[Self.format]
            var piece = bitcast[DType.uint32, BYTES // WORD_BYTES](at.codes.load[BYTES](offset))
            codes = codes.insert[offset=i * PIECE_WORDS](piece)
        return EncodedBlock[Self.left](codes, self._fetch_scale[k_tile, m_tile](at, group))

    @always_inline
    def _fetch_scale[k_tile: Int, m_tile: Int](self, at: Self.Cursor, group: Int32) -> UInt32:
        """Starts loading the scale of a lane's block of a tile: a byte, or the word that has it."""
        comptime if not Self.HAS_SCALES:
            return 0
        comptime first = k_tile * TILE_BLOCKS
        comptime byte = first // Self.SCALE_BLOCKS * Self.format.scale.bytes
        var offset = self.scale_rows[m_tile] + Int32(byte)
        comptime if Self.k_tail:
            var own = quotient[Self.SCALE_BLOCKS](group) * Int32(Self.SCALE_BLOCKS)
            offset = offset if Int32(first) + own < at.blocks_left else OUT_OF_RANGE
        comptime if Self.TAKES_WORDS:
            return bitcast[DType.uint32, 1](at.scales.load[WORD_BYTES](offset))
        else:
            return at.scales.load[1](offset).cast[DType.uint32]()

    @always_inline
    def block(
        self, kept: EncodedBlock[Self.left], tile: SharedPieces[Self.PIECES]
    ) -> EncodedBlock[Self.left]:
        var codes = kept.codes
        comptime if Self.THROUGH_LDS:
            comptime for i in range(PIECES[Self.format]):
                var at = Coord(self.first_piece ^ Int32(i * TILE_BLOCKS))
                codes = codes.insert[offset=i * PIECE_WORDS](read_piece(tile, at))
        var scale = kept.scale
        comptime if Self.TAKES_WORDS:
            scale = of_first_row(scale)
            comptime if Self.HAS_BYTES:
                scale = (scale >> self.scale_bit) & 0xFF
        return {codes, scale}
