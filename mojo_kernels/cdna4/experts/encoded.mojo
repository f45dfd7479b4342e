"""The products of experts for many rows each, from codes: the middle kernel on rows of a group.

    quantize_rows      rows of floats -> plain codes and scales
    experts_middle     rows of a group x the weights of its expert -> hidden numbers, or sums

Tokens are encoded once, however many experts they go to: rows of codes are gathered. Encoded rows
are filled up to whole stages, so that K may end within one. Tiles are found as in `groups.mojo`;
workgroups go through them in bands (schedule/xcd.mojo), whose order depends on how many tiles
there really are. So tiles of a large group share an L2, and no XCD gets those that are none.

There are no more workgroups than the chip has room for: each goes from tile to tile. While it
stores one, what it multiplies first of the next one is on its way. Where registers allow it, two
share a compute unit: one stores while the other multiplies. For that they take turns to go first;
equals would gate and encode at the same time, and memory would rest.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Experts
from ...launch.queue import Queue
from ...layouts import Plain
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...schedule.xcd import XcdBands
from ..chip import BLOCK, CUS, LANES, LANE_BYTES, QUANTIZED_ROWS, QUANTIZE_WAVES, TILE
from ..instructions.lds import allocate_lds
from ..instructions.memory import loaded
from ..middle.activations import listed_rows
from ..instructions.wave import lane_here
from ..instructions.matrix import set_priority
from ..middle.shape import MiddleShape, STAGE_BLOCKS, STAGE_K, THREADS, WAVES
from ..middle.walk import MiddleWalk
from ..operands.gate import QuickGate
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.quantizer import GroupQuantizer
from ..operands.target import Target
from ..prefill.result import bias_of_tiles
from ..types import Formats, ProductTypes
from .groups import GroupSizes, GroupTile, GroupTiles
from .hidden import EXCHANGED, HiddenCodes
from .shape import encoded_blocks, middle_grid, quantize_grid

comptime FIRST = 2
"""The priority of a workgroup that goes first."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(QUANTIZE_WAVES * LANES)),
    `rocdl.waves_per_eu`=SIMDLength(1),
)
def quantize_rows[
    format: Format, dtype: DType, rounding: Rounding
](x: Input[dtype], encoded: Output[DType.uint8], m: Int32, k: Int32, k_blocks: Int32):
    """Quantizes m rows of k floats to rows of `k_blocks` blocks, zeros at their end.

    Codes come first, then plain scales.
    """
    comptime Quantizer = GroupQuantizer[format, dtype, rounding, Plain]
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var group = Int32(block_idx.x) * QUANTIZE_WAVES + wave
    var pair = Int32(block_idx.y)
    var lds = allocate_lds[QUANTIZE_WAVES * Quantizer.LDS_BYTES]()

    var source = Quantizer.Source(x, m, k, pair * QUANTIZED_ROWS)
    source.settle(lane)
    source.settle_block(lane)
    var own_lds = lds.unsafe_offset(Int(wave) * Quantizer.LDS_BYTES)
    var scales = encoded.unsafe_offset(Int(m) * Int(k_blocks) * LANE_BYTES[format])
    var rows = Quantizer.Rows.at(encoded, scales, m, k_blocks)
    var quantizer = Quantizer(source, rows, own_lds, pair, lane)
    quantizer.fetch(group)
    quantizer.quantize(group)


@fieldwise_init
struct CodeRows(Equatable, TrivialRegisterPassable):
    """Where encoded rows of a product come from, and what becomes of its sums."""

    var are_gathered: Bool
    """Whether row r is that of a token in a list."""
    var are_gated: Bool
    """Whether sums are gates and ups, and hidden numbers are stored, encoded."""

    comptime HIDDEN = Self(True, True)
    """The first product of a layer, gated."""
    comptime SUMS = Self(True, False)
    """The first product of a layer."""
    comptime DOWN = Self(False, False)
    """The second product of a layer."""


@fieldwise_init
struct TileOfC(TrivialRegisterPassable):
    """A tile of the result."""

    var rows: GroupTile
    """Its rows, and whose weights they are multiplied by."""
    var column: Int32
    """Tiles left of it."""
    var is_there: Bool
    """Whether there is such a tile; otherwise it has no rows."""

    @staticmethod
    @always_inline
    def find[rows: Int](tiles: GroupTiles[rows], columns: Int32, index: Int32, lane: Int32) -> Self:
        """Returns a tile of so many in a row, in the order in which workgroups take them."""
        var order = XcdBands(Int(tiles.count), Int(columns))
        if not order.has_tile(Int(index)):
            return Self(GroupTile(0, 0, 0), 0, False)
        var place = order.tile(Int(index))
        return Self(tiles.tile(Int32(place.row), lane), Int32(place.column), True)

    @always_inline
    def first_tile[n_tiles: Int](self, wave: Int32) -> Int32:
        """Returns the first of a wave's tiles of 16 columns."""
        return (self.column * Int32(WAVES) + wave) * Int32(n_tiles)

    @always_inline
    def count(self) -> Int32:
        """Returns the rows from its first one to the last one of the group."""
        return self.rows.end_row - self.rows.first_row


@fieldwise_init
struct Sides[formats: Formats, shape: MiddleShape, are_gathered: Bool](TrivialRegisterPassable):
    """Both sides of a product of experts, of which a tile takes its part.

    Parameters:
        formats: What is multiplied.
        shape: How a workgroup cuts its work.
        are_gathered: Whether rows are those of a list.
    """

    comptime Walk = MiddleWalk[Self.formats, Self.shape, True, Self.are_gathered]
    """Who takes them."""
    comptime Bytes = ImmPointer[UInt8, ImmUntrackedOrigin]
    """Operands."""
    comptime CODE_BYTES = Int32(LANE_BYTES[Self.formats.left])
    """Bytes of the codes of a block."""

    var encoded: Self.Bytes
    """Codes of rows, and plain scales behind them."""
    var count: Int32
    """How many rows these are."""
    var w_codes: Self.Bytes
    """Codes of the weights of all experts."""
    var w_scales: Self.Bytes
    """Their scales."""
    var codes_step: Int32
    """Bytes from one expert's codes to the next one's."""
    var scales_step: Int32
    """Bytes from one expert's scales to the next one's."""
    var n: Int32
    var k: Int32

    @staticmethod
    @always_inline
    def of(
        encoded: Input[DType.uint8],
        count: Int32,
        w_codes: Input[DType.uint8],
        w_scales: Input[DType.uint8],
        codes_step: Int32,
        scales_step: Int32,
        n: Int32,
        k: Int32,
    ) -> Self:
        """Describes a product by the arguments of its kernel."""
        return Self(
            Self.Bytes(unsafe_from_address=Int(encoded)),
            count,
            Self.Bytes(unsafe_from_address=Int(w_codes)),
            Self.Bytes(unsafe_from_address=Int(w_scales)),
            codes_step,
            scales_step,
            n,
            k,
        )

    @always_inline
    def stages(self) -> Int32:
        """Returns the stages along K."""
        comptime STAGE = Self.shape.stage_k()
        return quotient[STAGE](self.k + Int32(STAGE - 1))

    @always_inline
    def _row_blocks(self) -> Int32:
        """Returns the blocks of an encoded row: whole stages of four-bit codes."""
        return quotient[STAGE_K](self.k + Int32(STAGE_K - 1)) * Int32(STAGE_BLOCKS)

    @always_inline
    def codes(self, tile: GroupTile, wave: Int32, lane: Int32) -> Self.Walk.Rows:
        """Returns the codes of a tile's rows; of a list, none of them yet."""
        var row_bytes = self._row_blocks() * Self.CODE_BYTES
        comptime if Self.are_gathered:
            return Self.Walk.Rows.of_no_list(self.encoded, self.count, row_bytes, wave)
        else:
            return Self.Walk.Rows.of(
                self.encoded, tile.end_row, row_bytes, tile.first_row, 0, wave, lane
            )

    @always_inline
    def scales(self, tile: GroupTile, wave: Int32, lane: Int32) -> Self.Walk.ScaleRows:
        """Returns their scales."""
        var blocks = self._row_blocks()
        var scales = self.encoded.unsafe_offset(Int(self.count) * Int(blocks * Self.CODE_BYTES))
        comptime if Self.are_gathered:
            return Self.Walk.ScaleRows.of_no_list(scales, self.count, blocks, wave)
        else:
            return Self.Walk.ScaleRows.of(
                scales, tile.end_row, blocks, tile.first_row, 0, wave, lane
            )

    @always_inline
    def weights(self, expert: Int32, first_tile: Int32) -> Self.Walk.Weights:
        """Returns a wave's weights of an expert, from a tile of 16 columns on."""
        return Self.Walk.Weights.of(
            self.w_codes.unsafe_offset(Int(expert) * Int(self.codes_step)),
            self.w_scales.unsafe_offset(Int(expert) * Int(self.scales_step)),
            self.n,
            quotient[BLOCK](self.k),
            first_tile,
        )


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(shape.waves_per_simd()),
)
def experts_middle[
    types: ProductTypes, rounding: Rounding, shape: MiddleShape, rows: CodeRows
](
    sizes: Input[DType.int32],
    groups: Int32,
    m: Int32,
    n: Int32,
    k: Int32,
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    codes_step: Int32,
    scales_step: Int32,
    encoded: Input[DType.uint8],
    num_encoded: Int32,
    workgroups: Int32,
    list: Input[DType.int32],
    result: Output[DType.uint8],
    bias: Input[DType.uint8],
    limit: Float32,
    alpha: Float32,
):
    """Multiplies rows of one group, codes and behind them scales, by the weights of its expert.

    Parameters:
        types: Of the product; hidden numbers are rounded to its result before they are encoded.
        rounding: Their scale rule.
        shape: How a workgroup cuts its work.
        rows: Where rows come from and go to.
    """
    comptime Both = Sides[types.formats, shape, rows.are_gathered]
    comptime Walk = Both.Walk
    comptime LISTED = Walk.LISTED_ROUNDS
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var of_groups = GroupSizes.load(sizes, groups, m, lane)
    # Arguments that come from memory arrive while sizes do.
    var list_here, bias_here, count = loaded(list), loaded(bias), loaded(num_encoded)
    var tiles = GroupTiles[shape.rows()].of(of_groups, lane)
    var tiles_n = quotient[shape.columns()](n + Int32(shape.columns() - 1))
    var number = Int32(block_idx.x)
    var tile = TileOfC.find(tiles, tiles_n, number, lane)
    if not tile.is_there:
        return  # The grid is for as many tiles as sizes can make.
    var listed = listed_rows[LISTED](list_here, tile.rows.first_row, tile.rows.end_row, wave, lane)

    # Along K, rounded up to whole stages.
    var sides = Both.of(encoded, count, w_codes, w_scales, codes_step, scales_step, n, k)
    var first_tile = tile.first_tile[shape.n_tiles](wave)
    var lds = allocate_lds[shape.lds_bytes()]()
    var walk = Walk(
        sides.codes(tile.rows, wave, lane),
        sides.scales(tile.rows, wave, lane),
        sides.weights(tile.rows.expert, first_tile),
        0,
        sides.stages(),
        lds,
        wave,
        lane,
    )
    comptime if rows.are_gathered:
        walk.start_weights()
        walk.codes.turn_to(listed, tile.count(), lane)
        walk.scales.turn_to(walk.codes)
    walk.start()

    comptime HAS_ROOM = shape.waves_per_simd() == 1
    comptime TAKES_TURNS = not HAS_ROOM and rows.are_gated
    var is_first = number < Int32(CUS)
    comptime BIAS_BYTES = size_of[types.bias.or_else(DType.uint8)]()
    comptime Hidden = HiddenCodes[types.formats.left, rounding, types.out, types.bias]
    comptime C = Target[types.out, types.bias]
    comptime GROUP = EXCHANGED if rows.are_gated else 1
    comptime GROUPS = ceildiv(shape.m_tiles, GROUP)
    var gate = QuickGate(loaded(limit), loaded(alpha))
    var blocks = quotient[STAGE_K](quotient[2](n) + Int32(STAGE_K - 1)) * Int32(STAGE_BLOCKS)
    var result_here, step = loaded(result), loaded(workgroups)
    var scales_here = result_here.unsafe_offset(
        Int(m) * Int(blocks) * LANE_BYTES[types.formats.left]
    )
    while True:
        comptime if TAKES_TURNS:
            if is_first:
                set_priority[FIRST]()
            else:
                set_priority[0]()
            is_first = not is_first
        walk.clear()
        number += step
        var next = TileOfC.find(tiles, tiles_n, number, lane)
        listed = listed_rows[LISTED](list_here, next.rows.first_row, next.rows.end_row, wave, lane)

        # To memory; what is needed there arrives while the wave walks, if there are registers.
        var first_row, num_rows = tile.rows.first_row, tile.count()
        var first_column = first_tile * Int32(TILE)
        var addend = bias_here.unsafe_offset(Int(tile.rows.expert) * Int(n) * BIAS_BYTES)
        var hidden = Hidden.of(
            result_here, scales_here, first_row, num_rows, first_row, num_rows, blocks, addend, n,
            gate,
        )  # fmt: skip
        var values = result_here.unsafe_bitcast[Scalar[types.out]]()
        var sums = C.of(values.unsafe_offset(Int(first_row) * Int(n)), addend, num_rows, n)
        var of_columns = bias_of_tiles[shape.n_tiles](sums, first_column, lane)
        walk.walk()
        var own_lane = lane_here()
        comptime if not HAS_ROOM:
            of_columns = bias_of_tiles[shape.n_tiles](sums, first_column, own_lane)
        if next.is_there:
            first_tile = next.first_tile[shape.n_tiles](wave)
            walk.turn_to(
                sides.codes(next.rows, wave, own_lane).memory,
                sides.scales(next.rows, wave, own_lane).memory,
                sides.weights(next.rows.expert, first_tile),
            )
            comptime if rows.are_gathered:
                walk.codes.turn_to(listed, next.count(), own_lane)
                walk.scales.turn_to(walk.codes)
        comptime for group in range(GROUPS):
            if next.is_there:
                comptime for part in range(Walk.START_PARTS):
                    comptime if part * GROUPS // Walk.START_PARTS == group:
                        walk.start_part[part]()
            if Int32(group * GROUP * TILE) < num_rows:
                comptime if rows.are_gated:
                    hidden.store[group * GROUP](walk.sums, of_columns, 0, first_column, own_lane)
                else:
                    comptime for n_tile in range(shape.n_tiles):
                        sums.store(
                            walk.sums[group, n_tile],
                            of_columns[n_tile],
                            Int32(group * TILE),
                            first_column + Int32(n_tile * TILE),
                            own_lane,
                        )
        comptime if rows.are_gated:
            if tile.column == tiles_n - 1:
                hidden.fill(num_rows, tiles_n * Int32(WAVES) + wave, own_lane)
        if not next.is_there:
            return
        tile = next


@fieldwise_init
struct EncodedRows(TrivialRegisterPassable):
    """The encoded rows of a product of experts: addresses, and how many."""

    var encoded: Int
    """Codes, and behind them plain scales."""
    var count: Int
    """How many there are."""
    var list: Int
    """Which of them are the rows of the groups, int32, if they are gathered."""
    var sizes: Int
    """Of the groups, int32."""
    var m: Int
    """Rows of all groups, and of C."""
    var result: Int


struct EncodedExperts[types: ProductTypes, rounding: Rounding, shape: MiddleShape, rows: CodeRows]:
    """The kernel for one cut."""

    @staticmethod
    def launch(
        of: EncodedRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]
    ) raises:
        """Launches the product of all groups."""
        comptime assert Self.shape.splits == 1
        var grid = middle_grid(Self.shape, of.m, n, experts.count)
        queue.launch[experts_middle[Self.types, Self.rounding, Self.shape, Self.rows]](
            grid,
            input[DType.int32](of.sizes),
            Int32(experts.count),
            Int32(of.m),
            Int32(n),
            Int32(k),
            input[DType.uint8](experts.right.codes),
            input[DType.uint8](experts.right.scales),
            Int32(experts.codes_step),
            Int32(experts.scales_step),
            input[DType.uint8](of.encoded),
            Int32(of.count),
            Int32(grid.x),
            input[DType.int32](of.list),
            output[DType.uint8](of.result),
            input[DType.uint8](experts.bias),
            gate.limit,
            gate.alpha,
        )


def launch_quantize[
    format: Format, dtype: DType, rounding: Rounding
](x: Int, encoded: Int, m: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches the quantization of m rows."""
    queue.launch[quantize_rows[format, dtype, rounding]](
        quantize_grid(m, k),
        input[dtype](x),
        output[DType.uint8](encoded),
        Int32(m),
        Int32(k),
        Int32(encoded_blocks(k)),
    )
