"""The products of experts for many rows each, from codes: the middle kernel on rows of a group.

    quantize_listed    rows of floats, those of a list of tokens or all -> plain codes and scales
    experts_middle     rows of a group x the weights of its expert -> hidden numbers, or sums

Encoded rows are filled up with zeros to whole stages, so that K may end within one. Tiles are
found as in `groups.mojo`; workgroups go through them in bands (schedule/xcd.mojo), whose order
depends on how many tiles there really are. So tiles of a large group share an L2, and no XCD
gets those that are none.
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
from ...tiles import in_registers
from ..instructions.lds import allocate_lds
from ..instructions.memory import loaded
from ..instructions.matrix import BLOCK, LANE_BYTES, LANES, SUMS, TILE
from ..middle.activations import SharedRows
from ..middle.shape import MiddleShape, STAGE_BLOCKS, STAGE_K, THREADS, WAVES
from ..middle.walk import MiddleWalk
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.quantizer import GroupQuantizer, QUANTIZED_ROWS
from ..operands.target import Destination, Target
from ..operands.tiles import GROUP_BLOCKS, GROUP_TILES, PAIR
from ..quantize.kernel import WAVES as QUANTIZE_WAVES
from ..types import Formats, ProductTypes
from .groups import GroupTile, count_tiles, most_tiles
from .hidden import Hidden
from .kernel import Rows
from .rows import GatheredSource


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
def quantize_listed[
    format: Format, dtype: DType, rounding: Rounding, are_listed: Bool
](
    x: Input[dtype],
    num_rows: Int32,
    tokens: Input[DType.int32],
    encoded: Output[DType.uint8],
    m: Int32,
    k: Int32,
    k_blocks: Int32,
):
    """Quantizes m rows of k floats to rows of `k_blocks` blocks, zeros at their end.

    Codes come first, then plain scales.
    """
    comptime Quantizer = GroupQuantizer[format, dtype, rounding, Plain]
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var group = Int32(block_idx.x) * QUANTIZE_WAVES + wave
    var pair = Int32(block_idx.y)
    var lds = allocate_lds[QUANTIZE_WAVES * Quantizer.LDS_BYTES]()

    var first_row = pair * QUANTIZED_ROWS
    var source = Quantizer.Source(x, num_rows, k, 0 if are_listed else first_row)
    comptime if are_listed:
        comptime Listed = GatheredSource[format, dtype, rounding, PAIR, GROUP_TILES]
        var listed = Listed.of(x, num_rows, k, tokens, first_row, m)
        listed.settle(lane)
        source = rebind[Quantizer.Source](listed.floats)
    else:
        source.settle(lane)
    source.settle_block(lane)
    var own_lds = lds.unsafe_offset(Int(wave) * Quantizer.LDS_BYTES)
    var scales = encoded.unsafe_offset(Int(m) * Int(k_blocks) * LANE_BYTES[format])
    var rows = Quantizer.Rows.at(encoded, scales, m, k_blocks)
    var quantizer = Quantizer(source, rows, own_lds, pair, lane)
    quantizer.fetch(group)
    quantizer.quantize(group)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(1),
)
def experts_middle[
    types: ProductTypes, shape: MiddleShape, rows: Rows
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
    result: Output[DType.uint8],
    bias: Input[DType.uint8],
    limit: Float32,
    alpha: Float32,
):
    """Multiplies rows of one group, codes and behind them scales, by the weights of its expert."""
    comptime Walk = MiddleWalk[types.formats, shape, True]
    comptime ROWS, COLUMNS = shape.rows(), shape.columns()
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var tiles_m = count_tiles[ROWS](sizes, groups, m, lane)
    var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
    var order = XcdBands(Int(tiles_m), Int(tiles_n))
    if Int(block_idx.x) >= order.num_workgroups():
        return  # The grid is for as many tiles as sizes can make.
    var place = order.tile(Int(block_idx.x))
    if Int32(place.row) >= tiles_m:
        return
    var tile = GroupTile.find[ROWS](sizes, groups, m, Int32(place.row), lane)

    # Along K, rounded up to whole stages.
    var stages = quotient[STAGE_K](k + Int32(STAGE_K - 1))
    var row_blocks = stages * Int32(STAGE_BLOCKS)
    var row_bytes = row_blocks * Int32(LANE_BYTES[types.formats.left])
    var row_scales = encoded.unsafe_offset(Int(m) * Int(row_bytes))
    var first_row, end_row = tile.first_row, tile.end_row
    var first_tile = (Int32(place.column) * Int32(WAVES) + wave) * Int32(shape.n_tiles)
    var walk = Walk(
        SharedRows.of(encoded, end_row, row_bytes, first_row, 0, wave, lane),
        SharedRows.of(row_scales, end_row, row_blocks, first_row, 0, wave, lane),
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

    # To memory; what is needed there arrives while the wave walks.
    comptime BIAS_BYTES = size_of[types.bias.or_else(DType.uint8)]()
    var columns = quotient[2](n) if rows.are_gated else n
    var values = loaded(result).unsafe_bitcast[Scalar[types.out]]()
    values = values.unsafe_offset(Int(first_row) * Int(columns))
    var addend = bias.unsafe_offset(Int(tile.expert) * Int(n) * BIAS_BYTES)
    comptime if rows.are_gated:
        var gate = Gate(Gate.SWIGLU_OAI, loaded(limit), loaded(alpha))
        comptime C = Hidden[types.out, types.bias]
        _finish(walk, C.of(values, addend, end_row - first_row, n, gate), tile, first_tile, lane)
    else:
        comptime C = Target[types.out, types.bias]
        _finish(walk, C.of(values, addend, end_row - first_row, n), tile, first_tile, lane)


@always_inline
def _finish[
    formats: Formats, shape: MiddleShape, //
](
    mut walk: MiddleWalk[formats, shape, True],
    target: Some[Destination],
    tile: GroupTile,
    first_tile: Int32,
    lane: Int32,
):
    """Walks along K, and stores the sums of rows that there are."""
    walk.walk()
    var bias = in_registers[DType.float32, SUMS, shape.n_tiles]()
    var first_column = first_tile * Int32(TILE)
    comptime for n_tile in range(shape.n_tiles):
        bias[n_tile] = target.bias_of(first_column + Int32(n_tile * TILE), lane)
    comptime for m_tile in range(shape.m_tiles):
        if tile.first_row + Int32(m_tile * TILE) < tile.end_row:
            comptime for n_tile in range(shape.n_tiles):
                target.store_part[0, SUMS](
                    walk.sums[m_tile, n_tile],
                    bias[n_tile],
                    Int32(m_tile * TILE),
                    first_column + Int32(n_tile * TILE),
                    lane,
                )


@fieldwise_init
struct EncodedRows(TrivialRegisterPassable):
    """The encoded rows of a product of experts: addresses, and how many."""

    var encoded: Int
    """Codes, and behind them plain scales."""
    var sizes: Int
    """Of the groups, int32."""
    var m: Int
    """Rows of all groups, and of C."""
    var result: Int


def grid_of(cut: MiddleShape, m: Int, n: Int, groups: Int) -> Grid:
    """Returns the grid of a product: for as many tiles as sizes can make."""
    var tiles = XcdBands(most_tiles(m, groups, cut.rows()), ceildiv(n, cut.columns()))
    return Grid(tiles.num_workgroups(), threads=THREADS)


struct EncodedExperts[types: ProductTypes, shape: MiddleShape, rows: Rows]:
    """The kernel for one cut."""

    @staticmethod
    def launch(
        of: EncodedRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]
    ) raises:
        """Launches the product of all groups."""
        comptime assert Self.shape.splits == 1 and not Self.rows.fill
        queue.launch[experts_middle[Self.types, Self.shape, Self.rows]](
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
            output[DType.uint8](of.result),
            input[DType.uint8](experts.bias),
            gate.limit,
            gate.alpha,
        )


comptime CUTS = [
    MiddleShape(4, 2, 3, 1),
    MiddleShape(6, 2, 3, 1),
    MiddleShape(10, 4, 3, 1),
    MiddleShape(12, 4, 3, 1),
]
"""For groups of more and more rows."""


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
    types: ProductTypes, rows: Rows
](of: EncodedRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]) raises:
    """Launches a product of encoded rows with the cut that is chosen for it."""
    var choice = choose(of.m, experts.count)
    comptime for i in range(len(CUTS)):
        comptime cut = CUTS[i]
        if choice == i:
            return EncodedExperts[types, cut, rows].launch(of, experts, gate, n, k, queue)


def quantize_grid(m: Int, k: Int) -> Grid:
    """Returns the grid of `quantize_listed`."""
    var groups = ceildiv(encoded_blocks(k), QUANTIZE_WAVES * GROUP_BLOCKS)
    return Grid(groups, ceildiv(m, QUANTIZED_ROWS), threads=QUANTIZE_WAVES * LANES)


def launch_quantize[
    types: ProductTypes, are_listed: Bool
](
    x: Int, num_rows: Int, tokens: Int, encoded: Int, m: Int, k: Int, mut queue: Some[Queue]
) raises:  # fmt: skip
    """Launches the quantization of m rows: those of a list, or all."""
    comptime format = types.formats.left
    queue.launch[quantize_listed[format, types.floats(), types.rounding, are_listed]](
        quantize_grid(m, k),
        input[types.floats()](x),
        Int32(num_rows),
        input[DType.int32](tokens),
        output[DType.uint8](encoded),
        Int32(m),
        Int32(k),
        Int32(encoded_blocks(k)),
    )
