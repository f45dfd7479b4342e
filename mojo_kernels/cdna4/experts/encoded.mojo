"""The products of experts for many rows each, from codes: the middle kernel on rows of a group.

    quantize_rows      rows of floats -> plain codes and scales
    experts_middle     rows of a group x the weights of its expert -> hidden numbers, or sums

Tokens are encoded once, however many experts they go to: rows of codes are gathered. Encoded rows
are filled up to whole stages, so that K may end within one. Tiles are found as in `groups.mojo`;
workgroups go through them in bands (schedule/xcd.mojo), whose order depends on how many tiles
there really are. So tiles of a large group share an L2, and no XCD gets those that are none.
Where registers allow it, two workgroups share a compute unit: one stores while the other multiplies.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv, sqrt
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Experts
from ...launch.queue import Grid, Queue
from ...layouts import Plain
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...numbers.rounding import Rounding
from ...schedule.xcd import XcdBands
from ..instructions.lds import allocate_lds
from ..instructions.memory import loaded
from ..middle.activations import listed_rows
from ..instructions.wave import lane_here
from ..instructions.matrix import BLOCK, LANE_BYTES, LANES, TILE
from ..middle.shape import MiddleShape, STAGE_BLOCKS, STAGE_K, THREADS, WAVES
from ..middle.walk import MiddleWalk
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.quantizer import GroupQuantizer, QUANTIZED_ROWS
from ..operands.target import Target
from ..operands.tiles import GROUP_BLOCKS
from ..prefill.result import bias_of_tiles
from ..quantize.kernel import WAVES as QUANTIZE_WAVES
from ..types import ProductTypes
from .groups import GroupSizes, most_tiles
from .hidden import HiddenCodes


def encoded_blocks(k: Int) -> Int:
    """Returns the blocks of an encoded row: whole stages."""
    return ceildiv(k, STAGE_K) * STAGE_BLOCKS


def encoded_bytes(m: Int, k: Int, format: Format) -> Int:
    """Returns the bytes of m encoded rows with their scales."""
    return m * encoded_blocks(k) * (format.packed_bytes(BLOCK) + 1)


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
    comptime Walk = MiddleWalk[types.formats, shape, True, rows.are_gathered]
    comptime ROWS, COLUMNS = shape.rows(), shape.columns()
    comptime LISTED = Walk.LISTED_ROUNDS
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var of_groups = GroupSizes.load(sizes, groups, m, lane)
    # Arguments that come from memory arrive while sizes do.
    var list_here, bias_here, count = loaded(list), loaded(bias), loaded(num_encoded)
    var tiles_m = of_groups.count_tiles[ROWS](lane)
    var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
    var order = XcdBands(Int(tiles_m), Int(tiles_n))
    if Int(block_idx.x) >= order.num_workgroups():
        return  # The grid is for as many tiles as sizes can make.
    var place = order.tile(Int(block_idx.x))
    if Int32(place.row) >= tiles_m:
        return
    var tile = of_groups.tile[ROWS](Int32(place.row), lane)
    var listed = listed_rows[LISTED](list_here, tile.first_row, tile.end_row, wave, lane)

    # Along K, rounded up to whole stages.
    var stages = quotient[STAGE_K](k + Int32(STAGE_K - 1))
    var row_blocks = stages * Int32(STAGE_BLOCKS)
    var row_bytes = row_blocks * Int32(LANE_BYTES[types.formats.left])
    var row_scales = encoded.unsafe_offset(Int(count) * Int(row_bytes))
    var codes: Walk.Rows
    var scales: Walk.ScaleRows
    comptime if rows.are_gathered:
        codes = Walk.Rows.of_list(encoded, count, row_bytes, listed, wave, lane)
        scales = Walk.ScaleRows.beside(row_scales, count, row_blocks, codes)
    else:
        codes = Walk.Rows.of(encoded, tile.end_row, row_bytes, tile.first_row, 0, wave, lane)
        scales = Walk.ScaleRows.of(
            row_scales, tile.end_row, row_blocks, tile.first_row, 0, wave, lane
        )
    var first_tile = (Int32(place.column) * Int32(WAVES) + wave) * Int32(shape.n_tiles)
    var walk = Walk(
        codes,
        scales,
        Walk.Weights.of(
            w_codes.unsafe_offset(Int(tile.expert) * Int(codes_step)),
            w_scales.unsafe_offset(Int(tile.expert) * Int(scales_step)),
            n,
            quotient[BLOCK](k),
            first_tile,
        ),
        0,
        stages,
        allocate_lds[shape.lds_bytes()](),
        wave,
        lane,
    )
    walk.start()
    walk.clear()

    # To memory; what is needed there arrives while the wave walks, if it has registers for that.
    comptime HAS_ROOM = shape.waves_per_simd() == 1
    comptime BIAS_BYTES = size_of[types.bias.or_else(DType.uint8)]()
    var addend = bias_here.unsafe_offset(Int(tile.expert) * Int(n) * BIAS_BYTES)
    var first_column = first_tile * Int32(TILE)
    var num_rows = tile.end_row - tile.first_row
    comptime if rows.are_gated:
        comptime C = HiddenCodes[types.formats.left, rounding, types.out, types.bias]
        var gate = Gate(Gate.SWIGLU_OAI, loaded(limit), loaded(alpha))
        var blocks = quotient[STAGE_K](quotient[2](n) + Int32(STAGE_K - 1)) * Int32(STAGE_BLOCKS)
        var target = C.of(loaded(result), m, tile.first_row, num_rows, blocks, addend, n, gate)
        var of_columns = bias_of_tiles[shape.n_tiles](target.sums, first_column, lane)
        walk.walk()
        var own_lane = lane_here()
        comptime if not HAS_ROOM:
            of_columns = bias_of_tiles[shape.n_tiles](target.sums, first_column, own_lane)
        target.store(walk.sums, of_columns, first_column, own_lane)
        if Int32(place.column) == tiles_n - 1:
            target.fill(num_rows, tiles_n * Int32(WAVES) + wave, own_lane)
    else:
        comptime C = Target[types.out, types.bias]
        var values = loaded(result).unsafe_bitcast[Scalar[types.out]]()
        var target = C.of(values.unsafe_offset(Int(tile.first_row) * Int(n)), addend, num_rows, n)
        var of_columns = bias_of_tiles[shape.n_tiles](target, first_column, lane)
        walk.walk()
        var own_lane = lane_here()
        comptime if not HAS_ROOM:
            of_columns = bias_of_tiles[shape.n_tiles](target, first_column, own_lane)
        comptime for m_tile in range(shape.m_tiles):
            if Int32(m_tile * TILE) < num_rows:
                comptime for n_tile in range(shape.n_tiles):
                    target.store(
                        walk.sums[m_tile, n_tile],
                        of_columns[n_tile],
                        Int32(m_tile * TILE),
                        first_column + Int32(n_tile * TILE),
                        own_lane,
                    )


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


def grid_of(cut: MiddleShape, m: Int, n: Int, groups: Int) -> Grid:
    """Returns the grid of a product: for as many tiles as sizes can make."""
    var tiles = XcdBands(most_tiles(m, groups, cut.rows()), ceildiv(n, cut.columns()))
    return Grid(tiles.num_workgroups(), threads=THREADS)


struct EncodedExperts[types: ProductTypes, rounding: Rounding, shape: MiddleShape, rows: CodeRows]:
    """The kernel for one cut."""

    @staticmethod
    def launch(
        of: EncodedRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]
    ) raises:
        """Launches the product of all groups."""
        comptime assert Self.shape.splits == 1
        queue.launch[experts_middle[Self.types, Self.rounding, Self.shape, Self.rows]](
            grid_of(Self.shape, of.m, n, experts.count),
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
            input[DType.int32](of.list),
            output[DType.uint8](of.result),
            input[DType.uint8](experts.bias),
            gate.limit,
            gate.alpha,
        )


comptime CUTS = [
    MiddleShape(4, 2, 3, 1),
    MiddleShape(6, 2, 3, 1),
    MiddleShape(10, 4, 2, 1),
    MiddleShape(12, 4, 2, 1),
]
"""For groups of more and more rows."""
comptime GATED_CUTS = [
    MiddleShape(4, 4, 3, 1),
    MiddleShape(6, 4, 2, 1),
    MiddleShape(10, 4, 2, 1),
    MiddleShape(12, 4, 2, 1),
]
"""The same where hidden numbers are encoded: a wave has whole blocks of them."""


def cut_of(choice: Int, are_gated: Bool) -> MiddleShape:
    """Returns the cut in a place of both lists."""
    return materialize[GATED_CUTS]()[choice] if are_gated else materialize[CUTS]()[choice]


def usual_rows(m: Int, groups: Int) -> Int:
    """Returns how many rows few groups exceed, if m rows find their groups by chance."""
    var mean = Float64(m) / Float64(max(groups, 1))
    return Int(mean + 2 * sqrt(mean))


def choose(m: Int, groups: Int) -> Int:
    """Returns the place in `CUTS` of the first whose tile has room for most groups, or the last."""
    comptime last = len(CUTS) - 1
    comptime for i in range(last):
        comptime rows = CUTS[i].rows()
        if usual_rows(m, groups) <= rows:
            return i
    return last


def launch_encoded[
    types: ProductTypes, rounding: Rounding, rows: CodeRows
](of: EncodedRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches a product of encoded rows with the cut that is chosen for it."""
    var choice = choose(of.m, experts.count)
    comptime for i in range(len(CUTS)):
        comptime cut = GATED_CUTS[i] if rows.are_gated else CUTS[i]
        if choice == i:
            return EncodedExperts[types, rounding, cut, rows].launch(of, experts, gate, n, k, queue)


def quantize_grid(m: Int, k: Int) -> Grid:
    """Returns the grid of `quantize_rows`."""
    var groups = ceildiv(encoded_blocks(k), QUANTIZE_WAVES * GROUP_BLOCKS)
    return Grid(groups, ceildiv(m, QUANTIZED_ROWS), threads=QUANTIZE_WAVES * LANES)


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
