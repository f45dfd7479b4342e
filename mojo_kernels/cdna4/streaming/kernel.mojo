"""GEMM for small M: C[M, N] = A @ W.T (+ bias) in one launch, streaming schedule.

A workgroup computes a tile of C; groups of its waves share the work along K,
the sharers within a group its columns:

    workgroup x, y    tiles of columns (weights) and of rows (activations)
    workgroup z       a part of K, if `splits` > 1 (split_k.mojo)
    wave              group wave / sharers: a run of chunks along K
                      sharer wave % sharers: all rows, a part of the columns

So a workgroup loads every block of its activations once. With one sharer a wave
encodes what it needs and waits for no other until its sums are done; more sharers
encode a part each and synchronize once a chunk, but have fewer sums to add up.

Partial sums are added in LDS, then, with `splits`, in the workspace; always
in the order of K, so that the result does not depend on which comes last.
Workgroups with equal x read the same weights. Where there are several, the grid's
x extent is a multiple of the number of XCDs, so that they share an L2.

Of groups, workgroup y has tile y of the rows of all (scheduler.mojo). Only the device knows their
sizes: the grid is for as many tiles as any can make, and those that are none end at once.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from std.math import ceildiv
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.kernel import ProductKernel
from ...launch.queue import Argument, Queue, argument
from ...numbers.formats import Format
from ...numbers.gates import Gate
from ...problem import Problem
from ...schedule.xcd import XcdColumns
from ...tiles import RegisterTile, in_registers
from ..arguments import GemmArguments, Grouping
from ..chip import BLOCK, LANES, PIECE_BYTES, SUMS, TILE
from ..scheduler import GroupTile
from ..epilogue.hidden import Hidden
from ..instructions.lds import Lds, allocate_lds, tile_at
from ..instructions.matrix import SumTile, Sums
from ..instructions.memory import loaded
from ..operands.activations import ActivationSource, CodeSource, FloatSource
from ..operands.memory import Input, Output, input, output, quotient
from ..epilogue.row_scales import RowScales
from ..epilogue.target import Destination, NO_BIAS, Target
from ..types import ProductTypes, has_kernels, unsupported
from .split_k import SplitK
from .shape import StreamingLds, StreamingShape
from .main_loop import StreamingLoop


@always_inline
def multiply_tile[
    Source: ActivationSource, C: Destination, //, types: ProductTypes, shape: StreamingShape
](
    source: Source,
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    target: C,
    y: Int32,
    m: Int32,
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    workspace: Output[DType.uint8],
    row_scales: Optional[RowScales[types.formats.right]] = None,
):
    """Computes a workgroup's tile of C; the target has `y` such tiles of rows before it."""
    comptime assert shape.is_possible(), "waves cannot share this tile"
    comptime lds_plan = StreamingLds(shape, Source.PIECES * PIECE_BYTES, Source.left)
    comptime MainLoop = StreamingLoop[Source, types.formats.right, shape]
    comptime COLUMNS = Int32(shape.n_tiles * TILE)
    comptime HAS_ROW_SCALES = types.formats.right.has_row_scales()
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var x = Int32(XcdColumns.tile(Int(block_idx.x), Int(block_idx.y)).column)
    var z = Int32(block_idx.z)
    if x * COLUMNS >= n:
        return  # Rounds the grid up to a multiple of the XCDs.

    # Along K, each group of sharers on its own.
    var lds = allocate_lds[lds_plan.num_bytes()]()
    var group = quotient[shape.sharers](wave)
    var sharer = wave - group * Int32(shape.sharers)
    var weights = MainLoop.Weights.of(
        w_codes,
        w_scales,
        n,
        quotient[BLOCK](k),
        x * Int32(shape.n_tiles) + sharer * Int32(shape.wave_columns()),
    )
    var first_chunk = (z * Int32(shape.k_groups()) + group) * chunks_per_wave
    var loop = MainLoop(source, weights, lds, wave, lane, first_chunk)
    loop.start()
    # What is needed at the end arrives while the first chunks do.
    var partial_sums = workspace
    comptime if shape.splits > 1:
        partial_sums = loaded(workspace)
    var bias = in_registers[DType.float32, SUMS, shape.own_tiles()]()
    comptime for i in range(shape.own_tiles()):
        var n_tile = shape.corner(shape.tile_of(wave, i))[1]
        bias[i] = target.bias_of(x * COLUMNS + n_tile * TILE, lane)
    var scales = _OwnScales[types.formats.right, shape]()
    comptime if types.formats.left.has_row_scales():
        scales.fetch(row_scales.value(), y, x, wave, lane)
    elif HAS_ROW_SCALES:
        var of_weights = scales.Rows.of(w_scales, w_scales, m, n, quotient[BLOCK](k))
        scales.fetch(of_weights, y, x, wave, lane)
    loop.finish(chunks_per_wave)
    var groups_x = quotient[Int(COLUMNS)](n + COLUMNS - 1)
    var groups_y = quotient[shape.m_tiles * TILE](m + Int32(shape.m_tiles * TILE - 1))
    var rows = m - y * Int32(shape.m_tiles * TILE)
    var split_k = SplitK[shape](
        partial_sums, x + groups_x * y, groups_x * groups_y, z, rows, wave, lane
    )
    comptime if shape.splits > 1:
        split_k.announce()

    # Across groups: each wave gets some tiles.
    var sums = in_registers[DType.float32, SUMS, shape.own_tiles()]()
    comptime if shape.k_groups() == 1:
        comptime for i in range(shape.own_tiles()):
            comptime m_tile, n_tile = divmod(i, shape.wave_columns())
            sums[i] = loop.sums[m_tile, n_tile]
    else:
        _exchange[shape, lds_plan.wave_bytes()](loop.sums, sums, lds, wave, lane)
        comptime if shape.waves > shape.tiles():
            if wave >= Int32(shape.tiles()):
                return

    comptime if HAS_ROW_SCALES:
        scales.apply(sums)

    # Across workgroups, and to memory.
    comptime if shape.splits > 1:
        if not split_k.add_up(sums):
            return
    var m_tile0, n_tile0 = y * Int32(shape.m_tiles), x * Int32(shape.n_tiles)
    comptime for i in range(shape.own_tiles()):
        var tile = shape.tile_of(wave, i)
        if tile < Int32(shape.tiles()):
            var m_tile, n_tile = shape.corner(tile)
            var row, column = (m_tile0 + m_tile) * TILE, (n_tile0 + n_tile) * TILE
            target.store(sums[i], bias[i], row, column, lane)


struct _OwnScales[right: Format, shape: StreamingShape]:
    """The scales of the rows and columns of the tiles that a wave finishes."""

    comptime Rows = RowScales[Self.right]

    var rows: RegisterTile[DType.float32, 1, Self.shape.own_tiles()]
    var columns: SumTile[Self.shape.own_tiles()]

    @always_inline
    def __init__(out self):
        self.rows = in_registers[DType.float32, 1, Self.shape.own_tiles()]()
        self.columns = in_registers[DType.float32, SUMS, Self.shape.own_tiles()]()

    @always_inline
    def fetch(mut self, scales: Self.Rows, y: Int32, x: Int32, wave: Int32, lane: Int32):
        """Starts loading them for the tile of C in row `y`, column `x`."""
        comptime for i in range(Self.shape.own_tiles()):
            var m_tile, n_tile = Self.shape.corner(Self.shape.tile_of(wave, i))
            var first_row = (y * Int32(Self.shape.m_tiles) + m_tile) * TILE
            var first_column = (x * Int32(Self.shape.n_tiles) + n_tile) * TILE
            self.rows[i] = scales.of_row(first_row, lane)
            self.columns[i] = scales.of_columns(first_column, lane)

    @always_inline
    def apply(self, sums: SumTile[Self.shape.own_tiles()]):
        comptime for i in range(Self.shape.own_tiles()):
            sums[i] = Self.Rows.applied(sums[i], self.rows[i], self.columns[i])


@always_inline
def _exchange[
    shape: StreamingShape, wave_bytes: Int
](
    partial: SumTile[shape.m_tiles, shape.wave_columns()],
    sums: SumTile[shape.own_tiles()],
    lds: Lds,
    wave: Int32,
    lane: Int32,
):
    """Adds the sums of all groups in their order; a wave gets the tiles that it finishes."""
    comptime COLUMNS = shape.wave_columns()
    comptime TILES = shape.wave_tiles()
    comptime sums_at = tile_at[DType.float32, SUMS, TILES, LANES]
    var own = sums_at(lds, wave * Int32(wave_bytes))
    comptime for m_tile in range(shape.m_tiles):
        comptime for n_tile in range(COLUMNS):
            own[m_tile * COLUMNS + n_tile, lane] = partial[m_tile, n_tile]
    barrier()
    comptime for i in range(shape.own_tiles()):
        var tile = shape.tile_of(wave, i)
        if tile < Int32(shape.tiles()):
            var sharer = quotient[TILES](tile)
            comptime for group in range(shape.k_groups()):
                var sharer_place = (Int32(group * shape.sharers) + sharer) * Int32(wave_bytes)
                var theirs = sums_at(lds, sharer_place)[tile - sharer * Int32(TILES), lane]
                comptime if group == 0:
                    sums[i] = theirs
                else:
                    sums[i] += theirs


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(shape.threads())),
    `rocdl.waves_per_eu`=SIMDLength(2),
)
def gemm_streaming[
    types: ProductTypes, shape: StreamingShape, grouping: Grouping = Grouping.DENSE
](
    sizes: Argument[Input[DType.int32], grouping.is_grouped],
    groups: Argument[Int32, grouping.is_grouped],
    codes_step: Argument[Int32, grouping.is_grouped],
    a: Input[types.floats()],
    a_scales: Argument[Input[DType.uint8], not types.x],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    result: Output[types.out],
    m: Int32,
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    scales_step: Argument[Int32, grouping.is_grouped],
    num_listed: Argument[Int32, grouping.is_gathered],
    bias: Input[DType.uint8],
    workspace: Argument[Output[DType.uint8], not grouping.is_grouped],
    list: Argument[Input[DType.int32], grouping.is_gathered],
    limit: Argument[Float32, grouping.is_gated],
    alpha: Argument[Float32, grouping.is_gated],
):
    """Multiplies: C = A @ W.T + bias, of each group by the weights of its own."""
    comptime LEFT = types.formats.left
    comptime TILE_ROWS = shape.m_tiles * TILE
    comptime C = Target[types.out, types.bias]
    comptime Floats = FloatSource[
        LEFT,
        types.floats(),
        types.rounding,
        shape.fetched_m_tiles(),
        shape.fetched_k_tiles(),
        shape.k_tail,
        grouping.is_gathered,
    ]
    comptime multiply = multiply_tile[types, shape]
    comptime if not grouping.is_grouped:
        var memory = rebind[Output[DType.uint8]](workspace)
        comptime if types.x:
            var y = Int32(XcdColumns.tile(Int(block_idx.x), Int(block_idx.y)).row)
            var source = Floats(a, m, k, y * Int32(TILE_ROWS))
            var target = C.of(result, bias, m, n)
            multiply(source, w_codes, w_scales, target, y, m, n, k, chunks_per_wave, memory)
        else:
            comptime Codes = CodeSource[
                LEFT, shape.fetched_m_tiles(), shape.fetched_k_tiles(), shape.k_tail
            ]
            var scales = rebind[Input[DType.uint8]](a_scales)
            comptime Rows = RowScales[types.formats.right]
            var row_scales = Optional[Rows](None)
            comptime if LEFT.has_row_scales():
                row_scales = Rows.of(scales, w_scales, m, n, quotient[BLOCK](k))
            var y = Int32(XcdColumns.tile(Int(block_idx.x), Int(block_idx.y)).row)
            var codes = rebind[Input[DType.uint8]](a)
            var source = Codes(codes, scales, m, quotient[BLOCK](k), y * Int32(TILE_ROWS))
            var target = C.of(result, bias, m, n)
            multiply(
                source, w_codes, w_scales, target, y, m, n, k, chunks_per_wave, memory, row_scales
            )
    else:
        comptime assert shape.splits == 1 and shape.sharers == 1, "waves of groups share only K"
        comptime BIAS_BYTES = size_of[types.bias.or_else(DType.uint8)]()
        var lane = Int32(thread_idx.x) % LANES
        var y = Int32(XcdColumns.tile(Int(block_idx.x), Int(block_idx.y)).row)
        var num_groups = rebind[Int32](groups)
        var tile = GroupTile.find[TILE_ROWS](
            rebind[Input[DType.int32]](sizes), num_groups, m, y, lane
        )
        if tile.is_empty():
            return
        var columns = quotient[2](n) if grouping.is_gated else n
        var values = result.unsafe_offset(Int(tile.first_row) * Int(columns))
        var num_rows = tile.end_row - tile.first_row
        if tile.expert == num_groups:
            comptime if grouping.fills:
                _clear[shape](Target[types.out, NO_BIAS].of(values, bias, num_rows, n), lane)
            return

        # What is the group's, with which source and target begin.
        var codes = w_codes.unsafe_offset(Int(tile.expert) * Int(rebind[Int32](codes_step)))
        var scales = w_scales.unsafe_offset(Int(tile.expert) * Int(rebind[Int32](scales_step)))
        var addend = bias.unsafe_offset(Int(tile.expert) * Int(n) * BIAS_BYTES)
        var source: Floats
        comptime if grouping.is_gathered:
            source = Floats.of_list(
                a, rebind[Int32](num_listed), k, rebind[Input[DType.int32]](list), tile.first_row,
                tile.end_row,
            )  # fmt: skip
        else:
            source = Floats(a, tile.end_row, k, tile.first_row)
        var memory = output[DType.uint8](0)
        comptime ROWS = Int32(TILE_ROWS)
        comptime if grouping.is_gated:
            var gate = Gate(Gate.SWIGLU_OAI, True, rebind[Float32](limit), rebind[Float32](alpha))
            var hidden = Hidden[types.out, types.bias].of(values, addend, num_rows, n, gate)
            multiply(source, codes, scales, hidden, 0, ROWS, n, k, chunks_per_wave, memory)
        else:
            var target = C.of(values, addend, num_rows, n)
            multiply(source, codes, scales, target, 0, ROWS, n, k, chunks_per_wave, memory)


@always_inline
def _clear[shape: StreamingShape](target: Target[_, NO_BIAS], lane: Int32):
    """Stores zeros to a workgroup's tile of C."""
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var first_column = Int32(block_idx.x) * Int32(shape.n_tiles * TILE)
    comptime for i in range(ceildiv(shape.tiles(), shape.waves)):
        var tile = wave + Int32(i * shape.waves)
        if tile < Int32(shape.tiles()):
            var m_tile, n_tile = divmod(tile, Int32(shape.n_tiles))
            var column = first_column + n_tile * TILE
            target.store(Sums(0), Sums(0), m_tile * TILE, column, lane)


def launch_streaming[
    types: ProductTypes, shape: StreamingShape, grouping: Grouping
](of: GemmArguments, grid: Grid, mut queue: Some[Queue]) raises:
    """Launches the kernel with scalars and pointers: a struct would end their preload."""
    comptime is_grouped = grouping.is_grouped
    queue.launch[gemm_streaming[types, shape, grouping]](
        grid,
        argument[is_grouped](input[DType.int32](of.rows.sizes)),
        argument[is_grouped](Int32(of.experts.count)),
        argument[is_grouped](Int32(of.experts.codes_step)),
        input[types.floats()](of.rows.a),
        argument[not types.x](input[DType.uint8](of.a_scales)),
        input[DType.uint8](of.experts.right.codes),
        input[DType.uint8](of.experts.right.scales),
        output[types.out](of.rows.result),
        Int32(of.rows.m),
        Int32(of.n),
        Int32(of.k),
        Int32(shape.chunks_per_wave(of.k)),
        argument[is_grouped](Int32(of.experts.scales_step)),
        argument[grouping.is_gathered](Int32(of.rows.count)),
        input[DType.uint8](of.experts.bias),
        argument[not is_grouped](output[DType.uint8](of.workspace)),
        argument[grouping.is_gathered](input[DType.int32](of.rows.list)),
        argument[grouping.is_gated](of.gate.limit),
        argument[grouping.is_gated](of.gate.alpha),
    )


struct StreamingKernel[types: ProductTypes, shape: StreamingShape](ProductKernel):
    """The dense kernel for one cut."""

    @staticmethod
    def supports(problem: Problem) -> Bool:
        return Self.types.match(problem) and Self.shape.supports(problem.k)

    @staticmethod
    def launch[Q: Queue](problem: Problem, mut queue: Q) raises:
        comptime assert has_kernels(Self.types.formats), unsupported(Self.types.formats)
        comptime assert not Self.types.quantizes_first(), "another launch quantizes before"
        var grid = Self.shape.grid(problem.m, problem.n)
        var workspace = queue.workspace(Self.shape.workspace(problem.m, problem.n))
        launch_streaming[Self.types, Self.shape, Grouping.DENSE](
            GemmArguments.of(problem, workspace), grid, queue
        )
