"""How encoded activations get into LDS: codes straight from memory, plain scales by a detour.

A place holds 256 or 128 rows x 8 blocks, or 4 of eight bits. Codes go straight from memory to
LDS, a row by eight lanes; so do floats that are kept, a row by sixteen, and scales from the
preshuffled layout (`SharedScales`). Plain scales would cost a line of memory for each row and 256
along K; a crew of workgroups brings them into the preshuffled layout first (crew.mojo), or a launch
before (experts/prefill.mojo), 64 blocks at a time:

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
from ..chip import (
    BLOCK,
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
from ..instructions.lds import Lds, bytes_at, read_word, words_at, write_byte
from ..instructions.matrix import PIECES
from ..instructions.memory import load_to_lds
from ..operands.memory import NO_ROW, OUT_OF_RANGE, Span, load_word, quotient
from ..operands.memory import remainder
from ..operands.quantizer import GroupQuantizer
from ..operands.tiles import FloatTile, exchanged
from ..types import Formats, ProductTypes
from .crew import FOR_THE_DEVICE, SharedWork
from .shape import PART_BLOCKS, PART_GROUPS, PrefillTile, SCALE_GROUP_BYTES, SCALE_GROUP_ROWS
from .shape import STAGE_BLOCKS, WAVES
from .shared import SharedOperand
from .stages import row_offset


@fieldwise_init
struct ReorderedScales[k_tail: Bool](SharedWork):
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
    """Blocks of a row."""
    var row: Int32
    """The lane's row of the pair."""
    var half: Int32
    """The lane's half of a part."""
    var lane: Int32
    var lds: Lds
    """The wave's LDS."""
    var held: RegisterTile[DType.uint8, GROUP_BLOCKS, Self.LANE_GROUPS]
    """Scales on their way."""

    @staticmethod
    @always_inline
    def of(
        source: ImmPointer[UInt8, _],
        codes: MutPointer[UInt8, _],
        scales: MutPointer[UInt8, _],
        m: Int32,
        k_blocks: Int32,
        first_row: Int32,
        lds: Lds,
        lane: Int32,
    ) -> Self:
        var pair_bytes = Self.groups_of(k_blocks) * Int32(SCALE_GROUP_BYTES)
        var pairs = quotient[SCALE_GROUP_ROWS](m + Int32(SCALE_GROUP_ROWS - 1))
        var pair = quotient[SCALE_GROUP_ROWS](first_row)
        var plain = Span.of(source, m * k_blocks).after(first_row * k_blocks)
        var reordered = Span.of(scales, pairs * pair_bytes).after(pair * pair_bytes)
        var half, row = divmod(lane, Int32(SCALE_GROUP_ROWS))
        var held = in_registers[DType.uint8, GROUP_BLOCKS, Self.LANE_GROUPS]()
        return Self(plain, reordered, k_blocks, row, half, lane, lds, held)

    @staticmethod
    @always_inline
    def groups_of(k_blocks: Int32) -> Int32:
        """Returns the groups of a row."""
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
struct EncodedGroups[types: ProductTypes, lds_bytes: Int](SharedWork):
    """Floats of a pair of tiles of rows on their way to codes; a part is a group.

    Parameters:
        types: What the kernel is compiled for.
        lds_bytes: Bytes of LDS of the wave.
    """

    comptime LDS_BYTES = Self.lds_bytes
    comptime BLOCKS = STAGE_BLOCKS
    comptime TILE_BYTES = FloatTile[Self.types.floats()].PIECES * PIECE_BYTES
    """Bytes of the floats of a tile."""
    comptime Quantizer = GroupQuantizer[
        Self.types.formats.left,
        Self.types.floats(),
        Self.types.rounding,
        PreshuffledCdna4,
        FOR_THE_DEVICE,
        places=min(GROUP_TILES * PAIR, Self.lds_bytes // Self.TILE_BYTES),
    ]
    """What encodes a group."""

    var quantizer: Self.Quantizer
    """The wave's."""

    @staticmethod
    @always_inline
    def of(
        source: ImmPointer[UInt8, _],
        codes: MutPointer[UInt8, _],
        scales: MutPointer[UInt8, _],
        m: Int32,
        k_blocks: Int32,
        first_row: Int32,
        lds: Lds,
        lane: Int32,
    ) -> Self:
        var x = source.unsafe_bitcast[Scalar[Self.types.floats()]]()
        var floats = Self.Quantizer.Source(x, m, k_blocks * Int32(BLOCK), first_row)
        floats.settle(lane)
        floats.settle_block(lane)
        var rows = Self.Quantizer.Rows.at(codes, scales, m, k_blocks)
        var pair = quotient[SCALE_GROUP_ROWS](first_row)
        var work = Self(Self.Quantizer(floats, rows, lds, pair, lane))
        schedule_barrier()  # The first ticket is on its way.
        return work^

    @always_inline
    def start(mut self, part: Int32):
        self.quantizer.fetch(part)

    @always_inline
    def complete[own_operations: Int](mut self, part: Int32):
        self.quantizer.quantize[own_operations](part)


@fieldwise_init
struct SharedCodes[formats: Formats, m_tiles: Int, k_tail: Bool](SharedOperand):
    """A workgroup's plain codes of activations on their way to LDS.

    Parameters:
        formats: What is multiplied.
        m_tiles: Tiles of rows of a wave.
        k_tail: Whether K may end within a place.
    """

    comptime Tile = PrefillTile[Self.formats, Self.m_tiles]
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
