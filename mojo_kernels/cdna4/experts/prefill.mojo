"""The products of experts for hundreds of rows each, from codes: eight waves that take turns.

    quantize_rows     rows of floats -> plain codes and scales, once (encoded.mojo)
    order_rows        tiles of groups, their rows, and scales in words that feed four tiles, once
    experts_prefill   rows of a group x the weights of its expert -> hidden numbers, or sums

A workgroup computes tiles of 256 x 256 of a group's C as in `prefill`: both operands are shared in
LDS, and two groups of waves multiply in turn. Rows of codes are gathered, or lie one behind
another. Scales lie by tiles: tile t of all groups (groups.mojo) has rows 256 * t .. of the layout
`preshuffled_cdna4`, of which as many are used as the tile has. The first product of a layer stores
those of its hidden numbers in that order.

A workgroup goes from tile to tile: gating and encoding take a third of the time and no LDS, so
that the first stages of the next tile arrive meanwhile.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Experts
from ...launch.queue import Queue
from ...layouts import PreshuffledCdna4
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...schedule.xcd import XcdBands
from ...tiles import in_registers
from ..arguments import GroupedRows, Grouping
from ..chip import BLOCK, LANES, LANE_BYTES, SUMS, TILE, TILE_BLOCKS, WORD_BYTES
from ..instructions.lds import allocate_lds
from ..instructions.matrix import SumTile
from ..instructions.memory import scalar_here
from ..instructions.vector import anew, copied_here
from ..instructions.wave import lane_here
from ..operands.gate import QuickGate
from ..operands.memory import Bytes, Input, Output, Span, bytes_of, input, listed_row, load_word, output
from ..operands.memory import quotient
from ..operands.target import NO_BIAS, Target
from ..prefill.activations import ReorderedScales, SharedCodes
from ..prefill.kernel import WAVES_PER_SIMD
from ..prefill.result import bias_of_tiles, store_tiles
from ..prefill.shape import COLUMNS, N_TILES, SCALE_GROUP_ROWS, STAGE_BLOCKS, THREADS, WAVES
from ..prefill.shape import WAVES_N
from ..prefill.stages import Reader
from ..prefill.walk import PrefillWalk
from ..types import ProductTypes
from .groups import GroupSizes, GroupTile, GroupTiles
from .hidden import EXCHANGED, HiddenCodes
from .shape import (
    M_TILES,
    OrderedRows,
    RECORD,
    ROWS,
    encoded_blocks,
    most_tiles,
    order_grid,
    prefill_grid,
)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def order_rows[
    format: Format, are_gathered: Bool
](
    sizes: Input[DType.int32],
    groups: Int32,
    m: Int32,
    encoded: Input[DType.uint8],
    num_encoded: Int32,
    k_blocks: Int32,
    list: Input[DType.int32],
    tiles: Output[DType.int32],
    rows: Output[DType.int32],
    scales: Output[DType.uint8],
):
    """Stores what tile `x` of all groups is and which rows it has, and orders their scales.

    Of scales those of 64 blocks, from 64 * `y` on.

    Parameters:
        format: What rows are encoded in.
        are_gathered: Whether row r is that of a token in a list.
    """
    comptime Scales = ReorderedScales[False]
    comptime CODE_BYTES = LANE_BYTES[format]
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var index = Int32(block_idx.x)
    var all = GroupTiles[ROWS].of(GroupSizes.load(sizes, groups, m, lane), lane)
    if index == 0 and Int32(thread_idx.x) == 0:
        tiles[unsafe_offset=0] = all.count
    if index >= all.count:
        return
    var tile = all.tile(index, lane)
    if Int32(thread_idx.x) == 0:
        var record = tiles.unsafe_offset(Int(index + 1) * RECORD)
        record[unsafe_offset=0] = tile.expert
        record[unsafe_offset=1] = tile.first_row
        record[unsafe_offset=2] = tile.end_row
    var in_tile = wave * Int32(SCALE_GROUP_ROWS) + lane % Int32(SCALE_GROUP_ROWS)
    var row = tile.first_row + in_tile
    comptime if are_gathered:
        row = listed_row(list, row, tile.end_row)
        rows[unsafe_offset=Int(index) * ROWS + Int(in_tile)] = row
    if tile.first_row + wave * Int32(SCALE_GROUP_ROWS) >= tile.end_row:
        return
    var lds = allocate_lds[WAVES * Scales.LDS_BYTES]()
    var own_lds = lds.unsafe_offset(Int(wave) * Scales.LDS_BYTES)
    var plain = encoded.unsafe_offset(Int(num_encoded) * Int(k_blocks) * CODE_BYTES)
    var own_place = (Int(index) * ROWS + Int(wave) * SCALE_GROUP_ROWS) * Int(k_blocks)
    var own = scales.unsafe_offset(own_place)
    var work = Scales.of(plain, own, own, num_encoded, k_blocks, 0, own_lds, lane)
    work.start_from(row, Int32(block_idx.y))
    work.complete[0](Int32(block_idx.y))


@fieldwise_init
struct TileRecord(TrivialRegisterPassable):
    """What `order_rows` has stored of a tile, on its way."""

    var words: SIMD[DType.int32, RECORD]

    @staticmethod
    @always_inline
    def load(tiles: AMDBufferResource, index: Int32) -> Self:
        """Starts loading that of a tile."""
        comptime BYTES = RECORD * WORD_BYTES
        var bytes = tiles.load[DType.uint8, BYTES]((index + 1) * Int32(BYTES))
        return Self(bitcast[DType.int32, RECORD](bytes))

    @always_inline
    def tile(self) -> GroupTile:
        """Returns the tile."""
        return GroupTile(
            readfirstlane(self.words[0]), readfirstlane(self.words[1]), readfirstlane(self.words[2])
        )


@fieldwise_init
struct TilePlace(TrivialRegisterPassable):
    """Which tile of C a workgroup computes."""

    var row: Int32
    var column: Int32
    var is_there: Bool

    @staticmethod
    @always_inline
    def of(order: XcdBands, index: Int32) -> Self:
        """Returns tile `index`."""
        var at = order.tile(Int(index))
        return Self(Int32(at.row), Int32(at.column), order.has_tile(Int(index)))


@fieldwise_init
struct ExpertTiles[types: ProductTypes, rounding: Rounding, rows: Grouping](
    TrivialRegisterPassable
):
    """What a wave multiplies and stores, whichever tile its workgroup computes.

    Parameters:
        types: Of the product.
        rounding: The scale rule of hidden numbers.
        rows: Where rows come from and go to.
    """

    comptime Walk = PrefillWalk[Self.types.formats, M_TILES, True]
    comptime Codes = SharedCodes[Self.types.formats, M_TILES, True]
    comptime HiddenTile = HiddenCodes[
        Self.types.formats.left, Self.rounding, Self.types.out, NO_BIAS, PreshuffledCdna4
    ]
    """Where hidden numbers go."""
    comptime Sums = Target[Self.types.out, NO_BIAS]
    """Where sums go: their bias is in them."""
    comptime STORES = 2 if Self.rows.is_gated else M_TILES * N_TILES
    """Stores of a wave for its part of a tile, at least."""

    var n: Int32
    var k_blocks: Int32
    """Blocks of a row of weights."""
    var w_codes: Bytes
    var w_scales: Bytes
    var codes_step: Int32
    """Bytes from the codes of an expert to those of the next."""
    var scales_step: Int32
    var codes: Bytes
    """Encoded rows."""
    var num_encoded: Int32
    var scales: Bytes
    """Those of the rows of tiles."""
    var bias: Bytes
    var wave: Int32

    @always_inline
    def anew(self) -> Self:
        """Returns the same; what follows from it is computed here, and not kept until here."""
        var same = self
        same.n = scalar_here(self.n)
        same.k_blocks = scalar_here(self.k_blocks)
        same.wave = scalar_here(self.wave)
        return same

    @always_inline
    def row_blocks(self) -> Int32:
        """Returns the blocks of an encoded row: whole stages."""
        return quotient[STAGE_BLOCKS](self.k_blocks + Int32(STAGE_BLOCKS - 1)) * Int32(STAGE_BLOCKS)

    @always_inline
    def codes_of(self, tile: GroupTile, listed: Self.Codes.OfLoads, lane: Int32) -> Self.Walk.Codes:
        """Returns the codes of a tile's rows."""
        comptime if Self.rows.is_gathered:
            return rebind[Self.Walk.Codes](
                Self.Codes.of_list(
                    self.codes, self.num_encoded, self.row_blocks(), listed, self.wave, lane
                )
            )
        else:
            return Self.Walk.Codes.of(
                self.codes, tile.end_row, self.row_blocks(), tile.first_row, self.wave, lane
            )

    @always_inline
    def scales_of(self, place: TilePlace, lane: Int32) -> Self.Walk.Scales:
        """Returns the scales of a tile's rows."""
        var first = self.scales.unsafe_offset(Int(place.row) * ROWS * Int(self.row_blocks()))
        return Self.Walk.Scales.of(first, Int32(ROWS), self.row_blocks(), 0, self.wave, lane)

    @always_inline
    def weights_of(self, tile: GroupTile, place: TilePlace, lane: Int32) -> Self.Walk.Weights:
        """Returns the codes of a tile's weights."""
        var expert = self.w_codes.unsafe_offset(Int(tile.expert) * Int(self.codes_step))
        var column = place.column * Int32(COLUMNS)
        return Self.Walk.Weights.of(expert, self.n, self.k_blocks, column, self.wave, lane)

    @always_inline
    def weight_scales_of(
        self, tile: GroupTile, place: TilePlace, lane: Int32
    ) -> Self.Walk.WeightScales:
        """Returns the scales of a tile's weights."""
        var expert = self.w_scales.unsafe_offset(Int(tile.expert) * Int(self.scales_step))
        var column = place.column * Int32(COLUMNS)
        return Self.Walk.WeightScales.of(expert, self.n, self.k_blocks, column, self.wave, lane)

    @always_inline
    def first_column(self, place: TilePlace) -> Int32:
        """Returns the first column of a wave."""
        var in_tile = self.wave % Int32(WAVES_N) * Int32(N_TILES * TILE)
        return place.column * Int32(COLUMNS) + in_tile

    @always_inline
    def bias_of(self, tile: GroupTile, place: TilePlace, lane: Int32) -> SumTile[N_TILES]:
        """Starts loading the bias of a wave's columns."""
        var target = Target[DType.float32, Self.types.bias].of(
            Output[DType.float32](unsafe_from_address=Int(self.bias)), self._addend(tile), 0, self.n
        )
        return bias_of_tiles[N_TILES](target, self.first_column(place), lane)

    @always_inline
    def _addend(self, tile: GroupTile) -> Bytes:
        """Returns the bias of a tile's expert."""
        comptime BYTES = size_of[Self.types.bias.or_else(DType.uint8)]()
        return self.bias.unsafe_offset(Int(tile.expert) * Int(self.n) * BYTES)

    @always_inline
    def store(
        self,
        sums: SumTile[M_TILES, N_TILES],
        tile: GroupTile,
        place: TilePlace,
        result: Output[DType.uint8],
        result_scales: Output[DType.uint8],
        gate: QuickGate,
    ):
        """Stores what becomes of a wave's sums."""
        # By lanes that nobody has kept all along K; bias is in the sums.
        var lane = anew(lane_here())
        var none = in_registers[DType.float32, SUMS, N_TILES]()
        comptime for n_tile in range(N_TILES):
            none[n_tile] = 0
        var first_row = quotient[WAVES_N](self.wave) * Int32(Self.Walk.Tile.NEXT_WAVE * TILE)
        var first_column, num_rows = self.first_column(place), tile.end_row - tile.first_row
        comptime if Self.rows.is_gated:
            comptime STAGE_COLUMNS = 2 * BLOCK * STAGE_BLOCKS
            # Here, not before all tiles: places of rows would fill registers all along K.
            var stages = scalar_here(quotient[STAGE_COLUMNS](self.n + Int32(STAGE_COLUMNS - 1)))
            var target = Self.HiddenTile.of(
                result, result_scales, tile.first_row, num_rows, place.row * Int32(ROWS),
                Int32(ROWS), stages * Int32(STAGE_BLOCKS), self._addend(tile), self.n, gate,
            )  # fmt: skip
            comptime for first in range(0, M_TILES, EXCHANGED):
                if first_row + Int32(first * TILE) < num_rows:
                    target.store[first](sums, none, first_row, first_column, lane)
            var end_block = quotient[COLUMNS](self.n + Int32(COLUMNS - 1)) * Int32(WAVES_N)
            if (place.column + 1) * Int32(WAVES_N) == end_block:
                target.fill(num_rows, end_block + self.wave, lane)
        else:
            var values = result.unsafe_bitcast[Scalar[Self.types.out]]()
            var target = Self.Sums.of(
                values.unsafe_offset(Int(tile.first_row) * Int(self.n)), self._addend(tile),
                num_rows, self.n,
            )  # fmt: skip
            store_tiles(target, sums, none, first_row, first_column, lane)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def experts_prefill[
    types: ProductTypes, rounding: Rounding, rows: Grouping
](
    tiles: Input[DType.int32],
    most: Int32,
    workgroups: Int32,
    n: Int32,
    k: Int32,
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    codes_step: Int32,
    scales_step: Int32,
    codes: Input[DType.uint8],
    num_encoded: Int32,
    list: Input[DType.int32],
    scales: Input[DType.uint8],
    result: Output[DType.uint8],
    result_scales: Output[DType.uint8],
    bias: Input[DType.uint8],
    limit: Float32,
    alpha: Float32,
):
    """Multiplies rows of one group by the weights of its expert, tile by tile.

    A workgroup has every `workgroups`-th tile. What the next one needs is on its way to LDS while
    sums go to memory. Waves of a group without rows only fetch.

    Parameters:
        types: Of the product; hidden numbers are rounded to its result before they are encoded.
        rounding: Their scale rule.
        rows: Where rows come from and go to.
    """
    comptime Tiles = ExpertTiles[types, rounding, rows]
    comptime Walk = Tiles.Walk
    comptime Codes = Tiles.Codes
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var table = Span.of(tiles, (most + 1) * Int32(RECORD)).after(0)
    var names = Span.of(list, most * Int32(ROWS)).after(0)
    var count = readfirstlane(load_word(table, 0))
    var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
    var order = XcdBands(Int(count), Int(tiles_n))
    var index = Int32(block_idx.x)
    var place = TilePlace.of(order, index)
    if not place.is_there:
        return  # The grid is for as many tiles as sizes can make.

    var k_blocks = quotient[BLOCK](k)
    var slices = quotient[TILE_BLOCKS](k_blocks + Int32(TILE_BLOCKS - 1))
    var work = Tiles(
        n,
        k_blocks,
        bytes_of(w_codes),
        bytes_of(w_scales),
        codes_step,
        scales_step,
        bytes_of(codes),
        num_encoded,
        bytes_of(scales),
        bytes_of(bias),
        wave,
    )
    var gate = QuickGate(limit, alpha)
    var group = quotient[WAVES_N](wave)
    var own_row = group * Int32(Walk.Tile.NEXT_WAVE * TILE)

    var tile = TileRecord.load(table, place.row).tile()
    var listed = Codes.listed_rows(names, place.row * Int32(ROWS), wave, lane)
    var columns = work.bias_of(tile, place, lane)
    var walk = Walk(
        work.codes_of(tile, listed, lane),
        work.scales_of(place, lane),
        work.weight_scales_of(tile, place, lane),
        work.weights_of(tile, place, lane),
        Reader[types.formats, M_TILES].of(wave, lane),
        allocate_lds[Walk.Tile.LDS_BYTES](),
    )
    walk.fetch_weights()
    walk.fetch_activations()
    set_sums(walk.sums, columns)
    walk.arrive()
    while True:
        # What says where the next tile lies is on its way while this one is multiplied.
        index += workgroups
        var next = TilePlace.of(order, index)
        var record = TileRecord.load(table, next.row)
        var own_lane = anew(lane_here())
        var next_listed = Codes.listed_rows(names, next.row * Int32(ROWS), wave, own_lane)
        var has_rows = own_row < tile.end_row - tile.first_row
        if has_rows:
            walk.walk_on[True](group, slices)
        else:
            walk.walk_on[False](group, slices)
        walk.leave(group)

        var next_tile = record.tile()
        if next.is_there:
            work = work.anew()
            own_lane = anew(lane_here())
            var loads = work.bias_of(next_tile, next, own_lane)
            comptime for n_tile in range(N_TILES):
                columns[n_tile] = loads[n_tile]
            walk.turn_to(
                work.codes_of(next_tile, next_listed, own_lane),
                work.scales_of(next, own_lane),
                work.weight_scales_of(next_tile, next, own_lane),
                work.weights_of(next_tile, next, own_lane),
            )
            walk.fetch_weights()
            walk.fetch_activations()
        if has_rows:
            work.store(walk.sums, tile, place, result, result_scales, gate)
        if not next.is_there:
            return
        set_sums(walk.sums, columns)
        if has_rows:
            walk.arrive[Tiles.STORES]()
        else:
            walk.arrive()
        tile, place = next_tile, next


@always_inline
def set_sums(sums: SumTile[M_TILES, N_TILES], columns: SumTile[N_TILES]):
    """Lets sums begin with the bias of their columns, here."""
    comptime for n_tile in range(N_TILES):
        var words = bitcast[DType.uint32, SUMS](columns[n_tile])
        comptime for m_tile in range(M_TILES):
            var low = copied_here(words.slice[2, offset=0]())
            var high = copied_here(words.slice[2, offset=2]())
            sums[m_tile, n_tile] = bitcast[DType.float32, SUMS](low.join(high))


def launch_order[
    format: Format, are_gathered: Bool
](of: GroupedRows, ordered: OrderedRows, groups: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches the ordering of encoded rows of k numbers."""
    queue.launch[order_rows[format, are_gathered]](
        order_grid(of.m, groups, k),
        input[DType.int32](of.sizes),
        Int32(groups),
        Int32(of.m),
        input[DType.uint8](of.a),
        Int32(of.count),
        Int32(encoded_blocks(k)),
        input[DType.int32](of.list),
        output[DType.int32](ordered.tiles),
        output[DType.int32](ordered.rows),
        output[DType.uint8](ordered.scales),
    )


def launch_prefill[
    types: ProductTypes, rounding: Rounding, rows: Grouping
](
    of: GroupedRows,
    ordered: OrderedRows,
    result_scales: Int,
    experts: Experts,
    gate: Gate,
    n: Int,
    k: Int,
    mut queue: Some[Queue],
) raises:
    """Launches the product of all groups; scales of hidden numbers go to `result_scales`."""
    var grid = prefill_grid(of.m, n, experts.count)
    queue.launch[experts_prefill[types, rounding, rows]](
        grid,
        input[DType.int32](ordered.tiles),
        Int32(most_tiles(of.m, experts.count, ROWS)),
        Int32(grid.x),
        Int32(n),
        Int32(k),
        input[DType.uint8](experts.right.codes),
        input[DType.uint8](experts.right.scales),
        Int32(experts.codes_step),
        Int32(experts.scales_step),
        input[DType.uint8](of.a),
        Int32(of.count),
        input[DType.int32](ordered.rows),
        input[DType.uint8](ordered.scales),
        output[DType.uint8](of.result),
        output[DType.uint8](result_scales),
        input[DType.uint8](experts.bias),
        gate.limit,
        gate.alpha,
    )
