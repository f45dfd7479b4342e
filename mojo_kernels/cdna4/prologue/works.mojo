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
from ...tiles import RegisterTile, in_registers
from ..chip import BLOCK, GROUP_BLOCKS, GROUP_TILES, LANES, PAIR, PIECE_BYTES
from ..chip import SCALE_GROUP_BYTES, SCALE_GROUP_ROWS, TILE, TILE_BLOCKS
from ..instructions.lds import Lds, bytes_at, read_word, words_at, write_byte
from ..operands.memory import OUT_OF_RANGE, Span, quotient
from ..operands.quantizer import GroupQuantizer
from ..operands.tiles import FloatTile
from ..types import ProductTypes
from .cooperative import FOR_THE_DEVICE, CooperativeWork, RowsToPrepare
from .shape import PART_BLOCKS, PART_GROUPS, TILED_ROWS, lies_by_tiles


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
