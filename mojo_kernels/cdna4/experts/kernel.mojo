"""The products of experts: the decode kernel, of which each workgroup takes rows of one group.

    workgroup x    tiles of columns of an expert's weights
    workgroup y    tile y of the rows of all groups, see `groups.mojo`; many have none and end
    wave           a run of chunks along K

    rows           contiguous, or those of a list of tokens
    results        sums in rows of C, or hidden numbers where gates and ups are neighbours

The grid is for as many tiles as sizes can make, because only the device knows them. Where groups
have several, workgroups with equal x run on one XCD: they read weights through one L2.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import Experts
from ...launch.queue import Queue
from ...numbers.gates import Gate
from ...schedule.xcd import XcdColumns
from ..chip import LANES, SUMS, TILE
from ..decode.kernel import multiply_tile
from ..decode.shape import DecodeShape
from ..instructions.matrix import Sums
from ..operands.activations import ActivationSource, FloatSource
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.target import Destination, NO_BIAS, Target
from ..types import ProductTypes, has_expert_kernels, unsupported
from .groups import GroupTile
from .hidden import Hidden
from .rows import GatheredSource
from .shape import decode_grid


@fieldwise_init
struct Rows(Equatable, TrivialRegisterPassable):
    """Where the rows of a product come from, and what becomes of its sums."""

    var are_gathered: Bool
    """Whether row r is that of a token in a list; else rows are those of the left side."""
    var are_gated: Bool
    """Whether sums are gates and ups, and hidden numbers are stored."""
    var fill: Bool
    """Whether rows of C behind the last group are zeros; else they are left alone."""

    comptime GROUPED = Self(False, False, True)
    """All rows of a grouped product."""
    comptime HIDDEN = Self(True, True, False)
    """The first product of a layer, gated."""
    comptime SUMS = Self(True, False, False)
    """The first product of a layer."""
    comptime DOWN = Self(False, False, False)
    """The second product of a layer."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(shape.threads())),
    `rocdl.waves_per_eu`=SIMDLength(2),
)
def experts_decode[
    types: ProductTypes, shape: DecodeShape, rows: Rows
](
    sizes: Input[DType.int32],
    groups: Int32,
    m: Int32,
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    codes_step: Int32,
    scales_step: Int32,
    x: Input[types.floats()],
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    tokens: Input[DType.int32],
    num_tokens: Int32,
    result: Output[types.out],
    bias: Input[DType.uint8],
    limit: Float32,
    alpha: Float32,
):
    """Multiplies rows of one group by the weights of its expert."""
    comptime C = Target[types.out, types.bias]
    comptime BIAS_BYTES = size_of[types.bias.or_else(DType.uint8)]()
    var lane = Int32(thread_idx.x) % LANES
    var y = Int32(XcdColumns.tile(Int(block_idx.x), Int(block_idx.y)).row)
    var tile = GroupTile.find[shape.m_tiles * TILE](sizes, groups, m, y, lane)
    if tile.is_empty():
        return
    var columns = quotient[2](n) if rows.are_gated else n
    var values = result.unsafe_offset(Int(tile.first_row) * Int(columns))
    var num_rows = tile.end_row - tile.first_row
    if tile.expert == groups:
        comptime if rows.fill:
            _clear[shape](Target[types.out, NO_BIAS].of(values, bias, num_rows, n), lane)
        return

    # What is the expert's.
    var codes = w_codes.unsafe_offset(Int(tile.expert) * Int(codes_step))
    var scales = w_scales.unsafe_offset(Int(tile.expert) * Int(scales_step))
    var addend = bias.unsafe_offset(Int(tile.expert) * Int(n) * BIAS_BYTES)
    comptime if rows.are_gathered:
        comptime Source = GatheredSource[
            types.formats.left, types.floats(), types.rounding, shape.m_tiles, shape.k_tiles
        ]
        var source = Source.of(x, num_tokens, k, tokens, tile.first_row, tile.end_row)
        comptime if rows.are_gated:
            var gate = Gate(Gate.SWIGLU_OAI, limit, alpha)
            var hidden = Hidden[types.out, types.bias].of(values, addend, num_rows, n, gate)
            _multiply[types, shape](source, hidden, codes, scales, n, k, chunks_per_wave)
        else:
            var sums = C.of(values, addend, num_rows, n)
            _multiply[types, shape](source, sums, codes, scales, n, k, chunks_per_wave)
    else:
        comptime Source = FloatSource[
            types.formats.left, types.floats(), types.rounding, shape.m_tiles, shape.k_tiles, True
        ]
        var source = Source(x, tile.end_row, k, tile.first_row)
        var sums = C.of(values, addend, num_rows, n)
        _multiply[types, shape](source, sums, codes, scales, n, k, chunks_per_wave)


@always_inline
def _multiply[
    types: ProductTypes, shape: DecodeShape
](
    source: Some[ActivationSource],
    target: Some[Destination],
    codes: Input[DType.uint8],
    scales: Input[DType.uint8],
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
):
    """Computes a workgroup's tile, with which source and target begin."""
    comptime assert shape.splits == 1, "workgroups share no tile"
    var no_workspace = output[DType.uint8](0)
    var m = Int32(shape.m_tiles * TILE)
    multiply_tile[types, shape](
        source, codes, scales, target, 0, m, n, k, chunks_per_wave, no_workspace
    )


@always_inline
def _clear[shape: DecodeShape](target: Target[_, NO_BIAS], lane: Int32):
    """Stores zeros to a workgroup's tile of C."""
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var first_column = Int32(block_idx.x) * Int32(shape.n_tiles * TILE)
    comptime for i in range(ceildiv(shape.tiles(), shape.waves)):
        var tile = wave + Int32(i * shape.waves)
        if tile < Int32(shape.tiles()):
            var m_tile, n_tile = divmod(tile, Int32(shape.n_tiles))
            var column = first_column + n_tile * TILE
            target.store_part[0, SUMS](Sums(0), Sums(0), m_tile * TILE, column, lane)


@fieldwise_init
struct ExpertRows(TrivialRegisterPassable):
    """The rows of a product of experts: addresses, and how many."""

    var x: Int
    """The left side."""
    var sizes: Int
    """Of the groups, int32."""
    var m: Int
    """Rows of all groups, and of C."""
    var tokens: Int
    """The list of those that are gathered, int32."""
    var num_tokens: Int
    """Rows of the left side."""
    var result: Int


struct ExpertsKernel[types: ProductTypes, shape: DecodeShape, rows: Rows]:
    """The kernel for one cut."""

    @staticmethod
    def launch(
        of: ExpertRows, experts: Experts, gate: Gate, n: Int, k: Int, mut queue: Some[Queue]
    ) raises:
        """Launches the product of all groups."""
        comptime assert has_expert_kernels(Self.types.formats), unsupported(Self.types.formats)
        comptime assert Self.shape.sharers == 1 and Self.shape.k_tail
        queue.launch[experts_decode[Self.types, Self.shape, Self.rows]](
            decode_grid(Self.shape, of.m, n, experts.count),
            input[DType.int32](of.sizes),
            Int32(experts.count),
            Int32(of.m),
            input[DType.uint8](experts.right.codes),
            input[DType.uint8](experts.right.scales),
            Int32(experts.codes_step),
            Int32(experts.scales_step),
            input[Self.types.floats()](of.x),
            Int32(n),
            Int32(k),
            Int32(Self.shape.chunks_per_wave(k)),
            input[DType.int32](of.tokens),
            Int32(of.num_tokens),
            output[Self.types.out](of.result),
            input[DType.uint8](experts.bias),
            gate.limit,
            gate.alpha,
        )
