"""What workgroups prepare of the rows they share: floats become codes, plain scales get in order.

Codes go straight from memory to LDS, and so do scales in the preshuffled layout. Plain scales would
cost a line of memory for each row and 256 along K; they are brought into that layout before,
cooperatively (cooperative.mojo) or by a launch (prepare/order.mojo), 64 blocks at a time:

    lane l      row l % 32 of the pair, blocks 32 * (l / 32) .. + 31
    in LDS      eight groups; byte 2 * (block % 8 / 4) + row / 16
                of word 16 * (block % 4) + row % 16 of the block's group
"""

from layout import Coord, Idx
from max.gpu.intrinsics import AMDBufferResource
from max.gpu.sync import schedule_barrier
from std.memory import bitcast

from ...layouts import PreshuffledCdna4
from ...numbers.formats import Format
from ...tiles import RegisterTile, in_registers
from ..chip import BLOCK, GROUP_BLOCKS, GROUP_TILES, LANES, LANE_BYTES, PAIR, PIECE_BYTES
from ..chip import SCALE_GROUP_BYTES, SCALE_GROUP_ROWS, TILE, TILE_BLOCKS
from ..instructions.lds import Lds, bytes_at, read_word, words_at, write_byte
from ..operands.memory import Bytes, NO_ROW, OUT_OF_RANGE, OutputBytes, Span, quotient, remainder
from ..operands.quantizer import GroupQuantizer
from ..operands.tiles import FloatTile
from ..types import ProductTypes
from .cooperative import FOR_THE_DEVICE, CooperativeWork, RowsToPrepare
from .shape import CODE_BLOCKS, PART_BLOCKS, PART_GROUPS, TILED_ROWS, lies_by_tiles


@fieldwise_init
struct ReorderedScales[k_tail: Bool](CooperativeWork):
    """Plain scales of a pair of tiles of rows on their way to the preshuffled layout.

    Parameters:
        k_tail: Whether K may end within a group; scales then have no alignment.
    """

    comptime LANE_GROUPS = PART_GROUPS // 2
    """Groups of which a lane loads a row."""
    comptime LDS_BYTES = PART_GROUPS * SCALE_GROUP_BYTES
    comptime BLOCKS = PART_BLOCKS

    var plain: AMDBufferResource
    """The plain scales from the pair's first row on."""
    var reordered: AMDBufferResource
    """The preshuffled scales from the pair's first row on."""
    var k_blocks: Int32
    var row: Int32
    """The lane's row of the pair."""
    var half: Int32
    """The lane's half of a part."""
    var lane: Int32
    var lds: Lds
    var held: RegisterTile[DType.uint8, GROUP_BLOCKS, Self.LANE_GROUPS]
    """Scales on their way."""

    @staticmethod
    @always_inline
    def of(rows: RowsToPrepare, lds: Lds, lane: Int32) -> Self:
        var k_blocks, first_row = rows.k_blocks, rows.first_row
        var pair_bytes = Self.groups_of(k_blocks) * Int32(SCALE_GROUP_BYTES)
        var pairs = quotient[SCALE_GROUP_ROWS](rows.m + Int32(SCALE_GROUP_ROWS - 1))
        var pair = quotient[SCALE_GROUP_ROWS](first_row)
        var plain = Span.of(rows.source, rows.m * k_blocks).after(first_row * k_blocks)
        var reordered = Span.of(rows.scales, pairs * pair_bytes).after(pair * pair_bytes)
        var half, row = divmod(lane, Int32(SCALE_GROUP_ROWS))
        var held = in_registers[DType.uint8, GROUP_BLOCKS, Self.LANE_GROUPS]()
        return Self(plain, reordered, k_blocks, row, half, lane, lds, held)

    @staticmethod
    @always_inline
    def groups_of(k_blocks: Int32) -> Int32:
        return quotient[GROUP_BLOCKS](k_blocks + Int32(GROUP_BLOCKS - 1))

    @always_inline
    def start(mut self, part: Int32):
        self.start_from(self.row, part)

    @always_inline
    def start_from(mut self, row: Int32, part: Int32):
        """Starts loading a part of another row, for the lane's row of the pair."""
        var first = part * Int32(PART_BLOCKS) + self.half * Int32(PART_BLOCKS // 2)
        comptime for i in range(Self.LANE_GROUPS):
            var block = first + Int32(i * GROUP_BLOCKS)
            var offset = row * self.k_blocks + block
            comptime if Self.k_tail:
                var scales = SIMD[DType.uint8, GROUP_BLOCKS]()
                comptime for j in range(GROUP_BLOCKS):
                    var is_inside = block + Int32(j) < self.k_blocks
                    var place = offset + Int32(j) if is_inside else OUT_OF_RANGE
                    scales[j] = self.plain.load[DType.uint8, 1](place)
                self.held[i] = scales
            else:
                var place = offset if block < self.k_blocks else OUT_OF_RANGE
                self.held[i] = self.plain.load[DType.uint8, GROUP_BLOCKS](place)

    @always_inline
    def complete[own_operations: Int](mut self, part: Int32):
        var bytes = bytes_at[PART_GROUPS, TILE_BLOCKS, TILE, GROUP_TILES, PAIR](self.lds)
        var m_tile, row = divmod(self.row, Int32(TILE))
        comptime for i in range(Self.LANE_GROUPS):
            var group = self.half * Int32(Self.LANE_GROUPS) + Int32(i)
            comptime for j in range(GROUP_BLOCKS):
                comptime k_tile, block = divmod(j, TILE_BLOCKS)
                var at = Coord(group, Idx[block], row, Idx[k_tile], m_tile)
                write_byte(bytes, at, self.held[i][j])

        var words = words_at[PART_GROUPS, LANES](self.lds)
        comptime for i in range(PART_GROUPS):
            var group = part * Int32(PART_GROUPS) + Int32(i)
            var offset = group * Int32(SCALE_GROUP_BYTES) + self.lane * 4
            self.reordered.store[cache_policy=FOR_THE_DEVICE](
                offset if group < self.groups_of(self.k_blocks) else OUT_OF_RANGE,
                bitcast[DType.uint8, 4](read_word(words, Coord(Idx[i], self.lane))),
            )


@fieldwise_init
struct TiledCodes[format: Format](TrivialRegisterPassable):
    """Plain codes of a pair of tiles of rows on their way to where they lie by tiles.

    Four tiles along K are three loads of a wave, and whole lines where they go.
    """

    comptime ROW_BYTES = TILE_BLOCKS * LANE_BYTES[Self.format]
    comptime ROW_PIECES = Self.ROW_BYTES // PIECE_BYTES
    comptime TILE_PIECES = TILED_ROWS * Self.ROW_PIECES
    comptime PART_TILES = CODE_BLOCKS // TILE_BLOCKS
    comptime LOADS = Self.PART_TILES * Self.TILE_PIECES // LANES
    comptime COUNT = SCALE_GROUP_ROWS // TILED_ROWS
    """Tiles of rows of a pair."""

    var plain: AMDBufferResource
    """All plain codes."""
    var tiled: AMDBufferResource
    """The pair's, by tiles."""
    var row_bytes: Int32
    var k_tiles: Int32
    var rows: RegisterTile[DType.int32, 1, Self.COUNT, Self.LOADS]
    """Of each tile of rows, which row the lane loads a piece of with each load."""
    var lane: Int32

    @staticmethod
    @always_inline
    def row_of[load: Int](lane: Int32) -> Int32:
        """Returns which row of a tile a lane loads a piece of."""
        return quotient[Self.ROW_PIECES](remainder[Self.TILE_PIECES](Self._piece[load](lane)))

    @staticmethod
    @always_inline
    def _piece[load: Int](lane: Int32) -> Int32:
        return Int32(load * LANES) + lane

    @staticmethod
    @always_inline
    def of(
        plain: Bytes, tiled: OutputBytes, m: Int32, k_blocks: Int32, first: Int32, end: Int32,
        lane: Int32,
    ) -> Self:  # fmt: skip
        """Describes rows `first` to `end` where they lie by tiles, and all of m plain ones; which of
        them goes where the caller says."""
        comptime CODE_BYTES = Int32(LANE_BYTES[Self.format])
        var k_tiles = quotient[TILE_BLOCKS](k_blocks + Int32(TILE_BLOCKS - 1))
        var ends = quotient[TILED_ROWS](end + Int32(TILED_ROWS - 1)) * Int32(TILED_ROWS)
        var tiled_bytes = k_tiles * Int32(Self.ROW_BYTES)
        return Self(
            Span.of(plain, m * k_blocks * CODE_BYTES).after(0),
            Span.of(tiled, ends * tiled_bytes).after(first * tiled_bytes),
            k_blocks * CODE_BYTES,
            k_tiles,
            in_registers[DType.int32, 1, Self.COUNT, Self.LOADS](),
            lane,
        )

    @always_inline
    def move(self, part: Int32):
        """Loads a part, `CODE_BLOCKS` along K, and stores it."""
        var first = part * Int32(Self.PART_TILES)
        var held = in_registers[DType.uint8, PIECE_BYTES, Self.COUNT, Self.LOADS]()
        comptime for tile in range(Self.COUNT):
            comptime for load in range(Self.LOADS):
                var piece = Self._piece[load](self.lane)
                var k_tile = first + quotient[Self.TILE_PIECES](piece)
                var row = self.rows[tile, load]
                var at = row * self.row_bytes + k_tile * Int32(Self.ROW_BYTES)
                at += remainder[Self.ROW_PIECES](piece) * Int32(PIECE_BYTES)
                held[tile, load] = self.plain.load[DType.uint8, PIECE_BYTES](
                    at if row != NO_ROW else OUT_OF_RANGE
                )
        comptime for tile in range(Self.COUNT):
            comptime for load in range(Self.LOADS):
                var piece = Self._piece[load](self.lane)
                var at = (Int32(tile) * self.k_tiles + first) * Int32(Self.TILE_PIECES) + piece
                var is_inside = first + quotient[Self.TILE_PIECES](piece) < self.k_tiles
                self.tiled.store[cache_policy=FOR_THE_DEVICE](
                    at * Int32(PIECE_BYTES) if is_inside else OUT_OF_RANGE, held[tile, load]
                )


@fieldwise_init
struct ReorderedRows[format: Format, k_tail: Bool](CooperativeWork):
    """Plain scales and codes of a pair of tiles of rows on their way to where they are in order."""

    comptime Scales = ReorderedScales[Self.k_tail]
    comptime Codes = TiledCodes[Self.format]
    comptime LDS_BYTES = Self.Scales.LDS_BYTES
    comptime BLOCKS = CODE_BLOCKS
    comptime PARTS = Int32(PART_BLOCKS // CODE_BLOCKS)
    """Parts of codes of which the first is one of scales too: these are small."""

    var scales: Self.Scales
    var codes: Self.Codes

    @staticmethod
    @always_inline
    def of(rows: RowsToPrepare, lds: Lds, lane: Int32) -> Self:
        var codes = Self.Codes.of(
            rows.plain, rows.codes, rows.m, rows.k_blocks, rows.first_row, rows.m, lane
        )
        comptime for tile in range(Self.Codes.COUNT):
            comptime for load in range(Self.Codes.LOADS):
                var row = rows.first_row + Int32(tile * TILED_ROWS) + Self.Codes.row_of[load](lane)
                codes.rows[tile, load] = row
        return Self(Self.Scales.of(rows, lds, lane), codes)

    @always_inline
    def start(mut self, part: Int32):
        if part % Self.PARTS == 0:
            self.scales.start(part // Self.PARTS)

    @always_inline
    def complete[own_operations: Int](mut self, part: Int32):
        if part % Self.PARTS == 0:
            self.scales.complete[own_operations](part // Self.PARTS)
        self.codes.move(part)


@fieldwise_init
struct EncodedGroups[types: ProductTypes, lds_bytes: Int](CooperativeWork):
    """Floats of a pair of tiles of rows on their way to codes; a part is a group."""

    comptime LDS_BYTES = Self.lds_bytes
    comptime BLOCKS = GROUP_BLOCKS
    comptime TILE_BYTES = FloatTile[Self.types.floats()].PIECES * PIECE_BYTES
    comptime Quantizer = GroupQuantizer[
        Self.types.formats.left,
        Self.types.floats(),
        Self.types.rounding,
        PreshuffledCdna4,
        FOR_THE_DEVICE,
        places=min(GROUP_TILES * PAIR, Self.lds_bytes // Self.TILE_BYTES),
        tiled_rows=TILED_ROWS if lies_by_tiles(Self.types.formats.left) else 1,
    ]

    var quantizer: Self.Quantizer

    @staticmethod
    @always_inline
    def of(rows: RowsToPrepare, lds: Lds, lane: Int32) -> Self:
        var x = rows.source.unsafe_bitcast[Scalar[Self.types.floats()]]()
        var floats = Self.Quantizer.Source(x, rows.m, rows.k_blocks * Int32(BLOCK), rows.first_row)
        floats.settle(lane)
        floats.settle_block(lane)
        var result = Self.Quantizer.Rows.at(rows.codes, rows.scales, rows.m, rows.k_blocks)
        var pair = quotient[SCALE_GROUP_ROWS](rows.first_row)
        var work = Self(Self.Quantizer(floats, result, lds, pair, lane))
        schedule_barrier()  # The first part is being claimed.
        return work^

    @always_inline
    def start(mut self, part: Int32):
        self.quantizer.fetch(part)

    @always_inline
    def complete[own_operations: Int](mut self, part: Int32):
        self.quantizer.quantize[own_operations](part)
