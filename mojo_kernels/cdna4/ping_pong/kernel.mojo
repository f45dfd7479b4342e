"""GEMM for large M: C = A @ W.T (+ bias), 256 x 256 or 128 x 256 a workgroup, ping-pong schedule.

Eight waves, two by four, compute 128 x 64 (or 64 x 64) each from what they share in LDS
(fragments.mojo). They form two groups of four, a wave of each on every SIMD; while one group
multiplies, the other reads the fragments of its next phase and fetches later ones (order.mojo):

    wave    0 .. 3    group 0    rows   0 .. 127    columns 64 * (wave % 4) .. + 63
            4 .. 7    group 1    rows 128 .. 255

In the prologue the workgroups of a tile of rows prepare these rows cooperatively, in a workspace:
floats are encoded, the scales of codes are put in order. The budget of a compute unit
says why not from floats; a workgroup needs

    tile of C    from       bytes of a slice    cycles of MFMA    bytes a cycle
    256 x 256    floats     64 Ki + 17 Ki       1024              81
    128 x 512    floats     32 Ki + 34 Ki       1024              66, the least of its size
    256 x 256    codes      17 Ki + 17 Ki       1024              34
    256 x 256    of 8 bits  33 Ki + 33 Ki       2048              33
    128 x 256    bfloat16   32 Ki + 17 Ki       2048              25

and gets about 33: 32 KiB in flight for some 1000 cycles (guesses of the simulator's
model). Encoding once a launch costs one pass over x: 17 of 160 us at 8192^3. Floats that
are kept need no prologue: their products take four times as long as those of four bits. Floats
by floats have slices of 64 along K: the bytes and cycles of eight bits.

Rows of groups come encoded and in order (prepare/order.mojo). A workgroup goes from tile to tile:
gating and encoding take a third of the time and no LDS, so that the first stages of the next tile
arrive meanwhile.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import most_tiles
from ...launch.grid import Grid
from ...launch.kernel import ProductKernel
from ...launch.queue import Argument, Queue, argument
from ...numbers.rounding import Rounding
from ...problem import Problem
from ...schedule.xcd import XcdBands
from ..arguments import GemmArguments, Grouping, OrderedRows, RECORD
from ..chip import BLOCK, LANE_K, LANES, SCALE_GROUP_ROWS, TILE
from ..scheduler import OneGroup, TileOfC
from ..instructions.lds import Lds, allocate_lds
from ..instructions.vector import anew
from ..instructions.wave import lane_here
from ..epilogue.gate import QuickGate
from ..operands.memory import Input, Output, Span, bytes_of, input, load_word, output
from ..operands.memory import output_bytes, quotient
from ..epilogue.row_scales import RowScales
from ..epilogue.target import Target
from ..prologue.shape import CooperativeMemory, is_prepared, lies_by_tiles
from ..types import ProductTypes, has_kernels, unsupported
from ..prologue.works import EncodedGroups, ReorderedRows, ReorderedScales
from ..prologue.cooperative import (
    Cooperative,
    CooperativeWork,
    NoPrologue,
    RowsToPrepare,
    Prologue,
)
from .groups import GroupedResult, TileRecord, set_sums
from .operands import PingPongOperands
from .shape import COLUMNS, N_TILES, STAGE_BLOCKS, THREADS, WAVES, WAVES_N, grid_of, has_tile
from .shape import rows_of, workspace_of

comptime WAVES_PER_SIMD = 2
"""Waves that the kernel's registers must leave room for."""


def is_cooperative(types: ProductTypes, grouping: Grouping) -> Bool:
    """Says whether workgroups prepare the rows they share."""
    return is_prepared(types.formats.left) and not grouping.is_grouped


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def gemm_ping_pong[
    types: ProductTypes,
    m_tiles: Int,
    k_tail: Bool,
    grouping: Grouping = Grouping.DENSE,
    rounding: Rounding = Rounding.EVEN,
](
    tiles: Argument[Input[DType.int32], grouping.is_grouped],
    most_tiles: Argument[Int32, grouping.is_grouped],
    codes_step: Argument[Int32, grouping.is_grouped],
    a: Input[types.floats()],
    a_scales: Argument[Input[DType.uint8], not types.x],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    workspace: Argument[Output[DType.uint8], is_cooperative(types, grouping)],
    m: Int32,
    n: Int32,
    k: Int32,
    scales_step: Argument[Int32, grouping.is_grouped],
    workgroups: Argument[Int32, grouping.is_grouped],
    result: Output[DType.uint8],
    bias: Input[DType.uint8],
    list: Argument[Input[DType.int32], grouping.is_grouped],
    result_scales: Argument[Output[DType.uint8], grouping.is_grouped],
    limit: Argument[Float32, grouping.is_grouped],
    alpha: Argument[Float32, grouping.is_grouped],
):
    """Multiplies: C = A @ W.T + bias, of each group by its own W.

    Of A are plain codes with scales, floats to encode, or floats to keep. Weights have layout
    `preshuffled_cdna4`, or are plain floats, or codes of both sides lie column by column; each
    tensor has less than 2 GiB. The counters of the workspace are zero. Arguments that come first
    are preloaded.

    `rounding`: The scale rule of hidden numbers.
    """
    comptime Product = PingPongOperands[types, m_tiles, k_tail, grouping]
    comptime Tile = Product.MainLoop.Tile
    var index = Int32(block_idx.x)
    comptime if grouping.is_grouped:
        var lane = Int32(thread_idx.x) % LANES
        var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
        var scales = bytes_of(rebind[Input[DType.uint8]](a_scales))
        var product = Product(
            bytes_of(a), scales, m, bytes_of(w_codes), bytes_of(w_scales),
            rebind[Int32](codes_step), rebind[Int32](scales_step), n, quotient[BLOCK](k), wave,
        )  # fmt: skip
        var gate = QuickGate.of_oai(rebind[Float32](limit), rebind[Float32](alpha))
        comptime Result = GroupedResult[types, m_tiles, k_tail, grouping, rounding]
        var out = Result.of(result, rebind[Output[DType.uint8]](result_scales), bias, gate)
        var most = rebind[Int32](most_tiles)
        _multiply_tiles(
            product, out, Span.of(rebind[Input[DType.int32]](tiles), (most + 1) * Int32(RECORD)),
            Span.of(rebind[Input[DType.int32]](list), most * Int32(Tile.ROWS)), index,
            rebind[Int32](workgroups), lane,
        )  # fmt: skip
    else:
        var all = OneGroup[Tile.ROWS].of(m)
        var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
        var tile = all.find(tiles_n, index, 0)
        var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
        var lane = Int32(thread_idx.x) % LANES
        if not tile.is_there:
            return  # The grid is rounded up to a multiple of the XCDs.
        var k_blocks = quotient[LANE_K[types.formats.left]](k)
        var floats, own_scales = bytes_of(a), bytes_of(w_scales)
        comptime if not types.x:
            own_scales = bytes_of(rebind[Input[DType.uint8]](a_scales))

        comptime if is_cooperative(types, grouping):
            comptime Encoded = EncodedGroups[types, Tile.FREE_BYTES // WAVES]
            comptime ARE_TILED = lies_by_tiles(types.formats.left)
            comptime Reordered: CooperativeWork = ReorderedRows[
                types.formats.left, k_tail
            ] if ARE_TILED else ReorderedScales[k_tail]
            comptime Work: CooperativeWork = Encoded if types.x else Reordered
            comptime Sharers = Cooperative[Tile.ROWS // SCALE_GROUP_ROWS, WAVES]
            var memory = rebind[Output[DType.uint8]](workspace)
            var parts_of_k = quotient[Work.BLOCKS](k_blocks + Int32(Work.BLOCKS - 1))
            var cooperative = Sharers.of(memory, tile.row, tiles_n, parts_of_k)
            var pair = wave % Int32(Sharers.pairs)
            var first = cooperative.claim(pair, lane)
            var lds = allocate_lds[Tile.LDS_BYTES]()

            # Codes and scales of the rows that workgroups share, as they are multiplied.
            var parts = CooperativeMemory.of(types.formats.left, Int(all.tiles), Int(m), Int(k))
            var scales = memory.unsafe_offset(parts.counter_bytes)
            var codes = memory.unsafe_offset(parts.codes)
            var own_lds = lds.unsafe_offset(Int(wave) * Work.LDS_BYTES)
            var first_row = tile.row * Int32(Tile.ROWS) + pair * Int32(SCALE_GROUP_ROWS)
            var rows = RowsToPrepare(
                floats if types.x else own_scales, floats, output_bytes(codes),
                output_bytes(scales), m, k_blocks, first_row,
            )  # fmt: skip
            var work = Work.of(rows, own_lds, lane)
            cooperative.prepare(work, first, wave, lane)
            var product = Product(
                bytes_of(codes) if types.x or ARE_TILED else floats, bytes_of(scales), m,
                bytes_of(w_codes), bytes_of(w_scales), 0, 0, n, k_blocks, wave,
            )  # fmt: skip
            _multiply_tile(product, result, bias, tile, cooperative, lds, lane)
        else:
            var lds = allocate_lds[Tile.LDS_BYTES]()
            var product = Product(
                floats, own_scales, m, bytes_of(w_codes), bytes_of(w_scales), 0, 0, n, k_blocks,
                wave,
            )  # fmt: skip
            _multiply_tile(product, result, bias, tile, NoPrologue(), lds, lane)


@always_inline
def _multiply_tile[
    types: ProductTypes, m_tiles: Int, k_tail: Bool, grouping: Grouping, Others: Prologue, //
](
    product: PingPongOperands[types, m_tiles, k_tail, grouping],
    result: Output[DType.uint8],
    bias: Input[DType.uint8],
    tile: TileOfC,
    others: Others,
    lds: Lds,
    lane: Int32,
):
    """Computes a tile of C, once others too have prepared the activations."""
    comptime MainLoop = PingPongOperands[types, m_tiles, k_tail, grouping].MainLoop
    var m, n, wave = product.count, product.n, product.wave
    var target = Target[types.out, types.bias].of(
        result.unsafe_bitcast[Scalar[types.out]](), bias, m, n
    )
    var loop = product.main_loop(tile, product.codes(tile, lane), lds, lane)
    loop.fetch_weights()
    loop.clear()
    others.join(wave, lane)
    var group = quotient[WAVES_N](wave)
    loop.run(group, product.slices())

    # To memory, by lanes that nobody has kept all along K.
    var own_lane = lane_here()
    var first_row = tile.rows.first_row + group * Int32(MainLoop.Tile.NEXT_WAVE * TILE)
    var first_column = product.first_column(tile)
    comptime if types.formats.right.has_row_scales() and not types.formats.are_floats():
        comptime assert not types.formats.are_columns, "tiles of rows lie one below the other"
        comptime Rows = RowScales[types.formats.right]
        var scales = Rows.of(product.a_scales, product.w_scales, m, n, product.k_blocks)
        scales.apply(loop.sums, first_row, first_column, own_lane)
    var addend = target.bias_of_tiles[N_TILES](first_column, own_lane)
    var values = target.rounded_tiles(loop.sums, addend)
    loop.leave(group)
    target.store_rounded_tiles[MainLoop.Tile.first_row](
        loop.sums, addend, values, first_row, first_column, own_lane
    )


@always_inline
def _multiply_tiles[
    types: ProductTypes, m_tiles: Int, k_tail: Bool, grouping: Grouping, rounding: Rounding, //
](
    product: PingPongOperands[types, m_tiles, k_tail, grouping],
    result: GroupedResult[types, m_tiles, k_tail, grouping, rounding],
    records: Span,
    list: Span,
    first: Int32,
    workgroups: Int32,
    lane: Int32,
):
    """Computes tile `first` of all groups, and those that are `workgroups` further each.

    What the next one needs is on its way to LDS while sums go to memory: gating and encoding take a
    third of the time and no LDS. Waves of a tile's half without rows only fetch.
    """
    comptime Product = PingPongOperands[types, m_tiles, k_tail, grouping]
    comptime MainLoop = Product.MainLoop
    comptime STORES = type_of(result).STORES
    var work, index = product, first
    var table, names = records.after(0), list.after(0)
    var count = readfirstlane(load_word(table, 0))
    var tiles_n = quotient[COLUMNS](work.n + Int32(COLUMNS - 1))
    var order = XcdBands(Int(count), Int(tiles_n))
    var tile = TileOfC.of(order, index)
    if not tile.is_there:
        return  # The grid is for as many tiles as sizes can make.
    var slices, wave = work.slices(), work.wave
    var group = quotient[WAVES_N](wave)
    var own_row = group * Int32(MainLoop.Tile.NEXT_WAVE * TILE)

    tile.rows = TileRecord.load(table, tile.row).tile()
    var listed = work.listed(names, tile, lane)
    var columns = result.bias_of(work, tile, lane)
    var codes = work.codes(tile, listed, lane)
    var loop = work.main_loop(tile, codes, allocate_lds[MainLoop.Tile.LDS_BYTES](), lane)
    loop.fetch_weights()
    loop.fetch_activations()
    set_sums(loop.sums, columns)
    loop.arrive()
    while True:
        # What says where the next tile lies is on its way while this one is multiplied.
        index += workgroups
        var next = TileOfC.of(order, index)
        var record = TileRecord.load(table, next.row)
        var own_lane = anew(lane_here())
        var next_listed = work.listed(names, next, own_lane)
        var has_rows = own_row < tile.count()
        if has_rows:
            loop.run_on[True](group, slices)
        else:
            loop.run_on[False](group, slices)
        loop.leave(group)

        next.rows = record.tile()
        if next.is_there:
            work = work.anew()
            own_lane = anew(lane_here())
            var loads = result.bias_of(work, next, own_lane)
            comptime for n_tile in range(N_TILES):
                columns[n_tile] = loads[n_tile]
            loop.turn_to(
                work.codes(next, next_listed, own_lane),
                work.scales(next, own_lane),
                work.weight_scales(next, own_lane),
                work.weights(next, own_lane),
            )
            loop.fetch_weights()
            loop.fetch_activations()
        if has_rows:
            result.store(work, loop.sums, tile)
        if not next.is_there:
            return
        set_sums(loop.sums, columns)
        if has_rows:
            loop.arrive[STORES]()
        else:
            loop.arrive()
        tile = next


def launch_ping_pong[
    types: ProductTypes,
    m_tiles: Int,
    k_tail: Bool,
    grouping: Grouping = Grouping.DENSE,
    rounding: Rounding = Rounding.EVEN,
](
    of: GemmArguments,
    grid: Grid,
    mut queue: Some[Queue],
    ordered: OrderedRows = {0, 0, 0, 0},
    result_scales: Int = 0,
) raises:
    """Launches the kernel with scalars and pointers: a struct would end their preload.

    Of groups, tiles come from `order_rows`, and scales of hidden numbers go to `result_scales`.
    """
    comptime is_grouped = grouping.is_grouped
    comptime is_ordered = is_grouped and lies_by_tiles(types.formats.left)
    var rows = of.rows.count if is_grouped else of.rows.m
    queue.launch[gemm_ping_pong[types, m_tiles, k_tail, grouping, rounding]](
        grid,
        argument[is_grouped](input[DType.int32](ordered.tiles)),
        argument[is_grouped](Int32(most_tiles(of.rows.m, of.experts.count, rows_of(m_tiles)))),
        argument[is_grouped](Int32(of.experts.codes_step)),
        input[types.floats()](ordered.codes if is_ordered else of.rows.a),
        argument[not types.x](input[DType.uint8](ordered.scales if is_grouped else of.a_scales)),
        input[DType.uint8](of.experts.right.codes),
        input[DType.uint8](of.experts.right.scales),
        argument[is_cooperative(types, grouping)](output[DType.uint8](of.workspace)),
        Int32(rows),
        Int32(of.n),
        Int32(of.k),
        argument[is_grouped](Int32(of.experts.scales_step)),
        argument[is_grouped](Int32(grid.x)),
        output[DType.uint8](of.rows.result),
        input[DType.uint8](of.experts.bias),
        argument[is_grouped](input[DType.int32](ordered.rows)),
        argument[is_grouped](output[DType.uint8](result_scales)),
        argument[is_grouped](of.gate.limit),
        argument[is_grouped](of.gate.alpha),
    )


struct PingPongKernel[types: ProductTypes, m_tiles: Int, k_tail: Bool](ProductKernel):
    """The kernel for one size of tile."""

    @staticmethod
    def supports(problem: Problem) -> Bool:
        comptime STAGE_K = STAGE_BLOCKS * LANE_K[Self.types.formats.left]
        return Self.types.match(problem) and (Self.k_tail or problem.k % STAGE_K == 0)

    @staticmethod
    def launch[Q: Queue](problem: Problem, mut queue: Q) raises:
        comptime assert has_kernels(Self.types.formats), unsupported(Self.types.formats)
        comptime assert not Self.types.quantizes_first(), "another launch quantizes before"
        comptime assert has_tile(Self.types, Self.m_tiles), "LDS has no room for such a tile"
        var m, n, k = problem.m, problem.n, problem.k
        comptime left = Self.types.formats.left
        var space = workspace_of(left, Self.m_tiles, m, k, has_codes=Bool(Self.types.x))
        var workspace = queue.workspace(space) if space.num_bytes() > 0 else 0
        launch_ping_pong[Self.types, Self.m_tiles, Self.k_tail](
            GemmArguments.of(problem, workspace), grid_of(Self.m_tiles, m, n), queue
        )
