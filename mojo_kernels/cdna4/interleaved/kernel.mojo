"""GEMM for dozens to thousands of rows from codes: C = A @ W.T (+ bias), interleaved schedule.

Four waves compute a tile of C. Weights, which no two waves share, go from memory straight
to registers, for which their layout is made; activations and their plain scales go through
LDS, where all waves read them. The waves synchronize once in 256 along K (order.mojo). Where tiles
of C are fewer than compute units, workgroups share K (streaming/split_k.mojo).

Of groups, tokens are encoded once, however many experts they go to: rows of codes are gathered, and
filled up to whole stages. Tiles are taken in bands (schedule/xcd.mojo), whose order depends on how
many there really are, so that tiles of a large group share an L2 and no XCD gets those that are
none. There are no more workgroups than the chip has room for: each goes from tile to tile.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.math import ceildiv
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.kernel import ProductKernel
from ...launch.queue import Argument, Queue, argument
from ...numbers.rounding import Rounding
from ...problem import Problem
from ...tiles import in_registers
from ..arguments import GemmArguments, Grouping
from ..chip import CUS, LANES, LANE_BYTES, SUMS, TILE
from ..streaming.split_k import SplitK
from ..scheduler import GroupSizes, GroupTiles, OneGroup, TileOfC, TileScheduler
from ..epilogue.hidden import EXCHANGED, HiddenCodes
from ..instructions.lds import allocate_lds
from ..instructions.matrix import set_priority
from ..instructions.memory import loaded
from ..instructions.wave import lane_here
from ..epilogue.gate import QuickGate
from ..operands.memory import Input, Output, bytes_of, input, output, quotient
from ..epilogue.row_scales import RowScales
from ..epilogue.target import Target
from ..types import Formats, ProductTypes, has_kernels, unsupported
from .operands import InterleavedOperands
from .shape import InterleavedShape, STAGE_BLOCKS, STAGE_K, WAVES

comptime FIRST = 2
"""The priority of a workgroup that goes first."""
comptime MOST_SHARED = 32
"""Tiles of sums of a wave that can be added to a partner's."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(shape.threads())),
    `rocdl.waves_per_eu`=SIMDLength(
        shape.waves_per_simd() if grouping.is_grouped else shape.waves // WAVES
    ),
)
def gemm_interleaved[
    types: ProductTypes,
    shape: InterleavedShape,
    k_tail: Bool,
    grouping: Grouping = Grouping.DENSE,
    rounding: Rounding = Rounding.EVEN,
](
    sizes: Argument[Input[DType.int32], grouping.is_grouped],
    groups: Argument[Int32, grouping.is_grouped],
    codes_step: Argument[Int32, grouping.is_grouped],
    a: Input[DType.uint8],
    a_scales: Argument[Input[DType.uint8], not grouping.is_grouped],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    result: Output[DType.uint8],
    m: Int32,
    n: Int32,
    k: Int32,
    num_stages: Argument[Int32, not grouping.is_grouped],
    scales_step: Argument[Int32, grouping.is_grouped],
    bias: Input[DType.uint8],
    workspace: Argument[Output[DType.uint8], not grouping.is_grouped],
    list: Argument[Input[DType.int32], grouping.is_grouped],
    num_encoded: Argument[Int32, grouping.is_grouped],
    workgroups: Argument[Int32, grouping.is_grouped],
    limit: Argument[Float32, grouping.is_grouped],
    alpha: Argument[Float32, grouping.is_grouped],
):
    """Multiplies plain codes by preshuffled ones: C = A @ W.T + bias, of each group by its own W.

    A dense workgroup computes a tile, or its part of K of one. With groups it goes from tile to
    tile, `workgroups` further each time.

    `rounding`: The scale rule of hidden numbers.
    """
    comptime IS_GROUPED = grouping.is_grouped
    comptime Product = InterleavedOperands[types.formats, shape, k_tail, grouping]
    comptime MainLoop = Product.MainLoop
    comptime Groups = GroupTiles[shape.rows()]
    comptime Tiles: TileScheduler = Groups if IS_GROUPED else OneGroup[shape.rows()]
    var lane = Int32(thread_idx.x) % LANES
    var index = Int32(block_idx.x)
    var tiles: Tiles
    var product: Product
    var names, bias_here = a.unsafe_bitcast[Int32](), bias
    comptime if IS_GROUPED:
        var of_groups = GroupSizes.load(
            rebind[Input[DType.int32]](sizes), rebind[Int32](groups), m, lane
        )
        # Arguments that come from memory arrive while sizes do.
        names, bias_here = loaded(rebind[Input[DType.int32]](list)), loaded(bias)
        product = Product(
            bytes_of(a), bytes_of(a), loaded(rebind[Int32](num_encoded)), bytes_of(w_codes),
            bytes_of(w_scales), loaded(rebind[Int32](codes_step)),
            loaded(rebind[Int32](scales_step)), n, loaded(k), 0,
        )  # fmt: skip
        tiles = rebind[Tiles](Groups.of(of_groups, lane))
    else:
        var first = Int32(0)
        comptime if shape.splits > 1:
            first = Int32(block_idx.z) * rebind[Int32](num_stages)
        product = Product(
            bytes_of(a), bytes_of(rebind[Input[DType.uint8]](a_scales)), m, bytes_of(w_codes),
            bytes_of(w_scales), 0, 0, n, k, first,
        )  # fmt: skip
        tiles = rebind[Tiles](OneGroup[shape.rows()].of(m))
    var tiles_n = quotient[shape.columns()](n + Int32(shape.columns() - 1))
    var tile = tiles.find(tiles_n, index, lane)
    if not tile.is_there:
        return  # The grid is rounded up to a multiple of the XCDs, or is for any sizes of groups.
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var num_own = product.stages()
    comptime if shape.splits > 1:
        num_own = min(rebind[Int32](num_stages), num_own - product.first_stage)
    elif not IS_GROUPED:
        num_own = rebind[Int32](num_stages)

    # Along K.
    var listed = product.listed(names, tile.rows, wave, lane)
    var first_tile = tile.first_tile[shape.waves, shape.n_tiles](wave)
    var loop = MainLoop(
        product.codes(tile.rows, wave, lane),
        product.scales(tile.rows, wave, lane),
        product.weights(tile.rows.expert, first_tile),
        product.first_stage,
        num_own,
        allocate_lds[MainLoop.LDS_BYTES](),
        wave,
        lane,
    )
    comptime if grouping.is_gathered:
        loop.start_weights()
        Product.take(loop, listed, tile.count(), lane)
    loop.start()

    comptime if IS_GROUPED:
        var gate = QuickGate.of_oai(loaded(rebind[Float32](limit)), loaded(rebind[Float32](alpha)))
        _multiply_tiles[types, rounding](
            loop, product, tiles, tile, names, bias_here, loaded(result), gate, m,
            loaded(rebind[Int32](workgroups)), wave, lane,
        )  # fmt: skip
    else:
        var target = Target[types.out, types.bias].of(
            result.unsafe_bitcast[Scalar[types.out]](), bias, m, n
        )
        var place = rebind[Output[DType.uint8]](workspace)
        _multiply_tile(loop, product, target, tile, tiles.rows(), tiles_n, place, wave, lane)


@always_inline
def _multiply_tile[
    formats: Formats, shape: InterleavedShape, k_tail: Bool, grouping: Grouping, //
](
    mut loop: InterleavedOperands[formats, shape, k_tail, grouping].MainLoop,
    product: InterleavedOperands[formats, shape, k_tail, grouping],
    target: Target[_, _],
    tile: TileOfC,
    tiles_m: Int32,
    tiles_n: Int32,
    workspace: Output[DType.uint8],
    wave: Int32,
    lane: Int32,
):
    """Computes a tile whose loads have begun, with the other workgroups of its tile of C."""
    comptime SPLIT = shape.split_k()
    var m, n = tile.rows.end_row, product.n
    var partial_sums = workspace
    comptime if shape.splits > 1:
        partial_sums = loaded(workspace)
    var share = Int32(block_idx.z) if shape.splits > 1 else Int32(0)
    var split_k = SplitK[SPLIT](
        partial_sums, tile.column + tiles_n * tile.row, tiles_n * tiles_m, share, tile.count(),
        wave, lane,
    )  # fmt: skip
    loop.clear()
    comptime if shape.splits > 1:
        loop.run(split_k)
    else:
        loop.run()

    # To memory.
    var first_row = tile.rows.first_row
    var first_column = tile.first_tile[shape.waves, shape.n_tiles](wave) * Int32(TILE)
    comptime if formats.left.has_row_scales():
        var scales = RowScales[formats.right].of(product.a_scales, product.w_scales, m, n)
        scales.apply(loop.sums, first_row, first_column, lane)
    var addend = target.bias_of_tiles[shape.n_tiles](first_column, lane)
    comptime if shape.splits > 1:
        var sums = in_registers[DType.float32, SUMS, SPLIT.own_tiles()]()
        comptime for i in range(SPLIT.own_tiles()):
            comptime m_tile, n_tile = divmod(i, shape.n_tiles)
            sums[i] = loop.sums[m_tile, n_tile]
        if not split_k.add_up(sums):
            return
        comptime for i in range(SPLIT.own_tiles()):
            comptime m_tile, n_tile = divmod(i, shape.n_tiles)
            loop.sums[m_tile, n_tile] = sums[i]
    target.store_tiles(loop.sums, addend, first_row, first_column, lane)


@always_inline
def _multiply_tiles[
    formats: Formats,
    shape: InterleavedShape,
    k_tail: Bool,
    grouping: Grouping,
    //,
    types: ProductTypes,
    rounding: Rounding,
](
    mut loop: InterleavedOperands[formats, shape, k_tail, grouping].MainLoop,
    product: InterleavedOperands[formats, shape, k_tail, grouping],
    tiles: Some[TileScheduler],
    first: TileOfC,
    list: Input[DType.int32],
    bias: Input[DType.uint8],
    result: Output[DType.uint8],
    gate: QuickGate,
    m: Int32,
    workgroups: Int32,
    wave: Int32,
    lane: Int32,
):
    """Computes a tile whose loads have begun, then those that are `workgroups` further each.

    While one is stored, what is multiplied first of the next one is on its way. Two workgroups of a
    compute unit take turns to go first: equals would gate and encode at the same time, and memory
    would rest.
    """
    comptime MainLoop = InterleavedOperands[formats, shape, k_tail, grouping].MainLoop
    comptime HAS_ROOM = shape.waves_per_simd() == 1
    comptime TAKES_TURNS = not HAS_ROOM and grouping.is_gated
    comptime BIAS_BYTES = size_of[types.bias.or_else(DType.uint8)]()
    comptime Hidden = HiddenCodes[formats.left, rounding, types.out, types.bias]
    comptime C = Target[types.out, types.bias]
    comptime PART = EXCHANGED if grouping.is_gated else 1
    comptime PARTS = ceildiv(shape.m_tiles, PART)
    var n, index = product.n, Int32(block_idx.x)
    var tiles_n = quotient[shape.columns()](n + Int32(shape.columns() - 1))
    var is_first = index < Int32(CUS)
    var blocks = quotient[STAGE_K](quotient[2](n) + Int32(STAGE_K - 1)) * Int32(STAGE_BLOCKS)
    var scales = result.unsafe_offset(Int(m) * Int(blocks) * LANE_BYTES[formats.left])
    var tile, first_tile = first, first.first_tile[shape.waves, shape.n_tiles](wave)
    while True:
        comptime if TAKES_TURNS:
            if is_first:
                set_priority[FIRST]()
            else:
                set_priority[0]()
            is_first = not is_first
        loop.clear()
        index += workgroups
        var next = tiles.find(tiles_n, index, lane)
        var listed = product.listed(list, next.rows, wave, lane)

        # What is needed behind K arrives during the main loop, if there are registers.
        var first_row, num_rows = tile.rows.first_row, tile.count()
        var first_column = first_tile * Int32(TILE)
        var addend = bias.unsafe_offset(Int(tile.rows.expert) * Int(n) * BIAS_BYTES)
        var hidden = Hidden.of(
            result, scales, first_row, num_rows, first_row, num_rows, blocks, addend, n, gate
        )
        var values = result.unsafe_bitcast[Scalar[types.out]]()
        var sums = C.of(values.unsafe_offset(Int(first_row) * Int(n)), addend, num_rows, n)
        var of_columns = sums.bias_of_tiles[shape.n_tiles](first_column, lane)
        loop.run()
        var own_lane = lane_here()
        comptime if not HAS_ROOM:
            of_columns = sums.bias_of_tiles[shape.n_tiles](first_column, own_lane)
        if next.is_there:
            first_tile = next.first_tile[shape.waves, shape.n_tiles](wave)
            loop.turn_to(
                product.codes(next.rows, wave, own_lane).memory,
                product.scales(next.rows, wave, own_lane).memory,
                product.weights(next.rows.expert, first_tile),
            )
            comptime if grouping.is_gathered:
                product.take(loop, listed, next.count(), own_lane)
        comptime for part in range(PARTS):
            if next.is_there:
                comptime for loads in range(MainLoop.START_PARTS):
                    comptime if loads * PARTS // MainLoop.START_PARTS == part:
                        loop.start_part[loads]()
            if Int32(part * PART * TILE) < num_rows:
                comptime if grouping.is_gated:
                    hidden.store[part * PART](loop.sums, of_columns, 0, first_column, own_lane)
                else:
                    comptime for n_tile in range(shape.n_tiles):
                        sums.store(
                            loop.sums[part, n_tile], of_columns[n_tile], Int32(part * TILE),
                            first_column + Int32(n_tile * TILE), own_lane,
                        )  # fmt: skip
        comptime if grouping.is_gated:
            if tile.column == tiles_n - 1:
                hidden.fill(num_rows, tiles_n * Int32(WAVES) + wave, own_lane)
        if not next.is_there:
            return
        tile = next


def launch_interleaved[
    types: ProductTypes,
    shape: InterleavedShape,
    k_tail: Bool,
    grouping: Grouping = Grouping.DENSE,
    rounding: Rounding = Rounding.EVEN,
](of: GemmArguments, grid: Grid, mut queue: Some[Queue]) raises:
    """Launches the kernel with scalars and pointers: a struct would end their preload."""
    comptime assert has_kernels(types.formats), unsupported(types.formats)
    comptime is_grouped = grouping.is_grouped
    queue.launch[
        gemm_interleaved[types, shape, k_tail, grouping, rounding],
        sums_apart=shape.sums_apart(),
    ](
        grid,
        argument[is_grouped](input[DType.int32](of.rows.sizes)),
        argument[is_grouped](Int32(of.experts.count)),
        argument[is_grouped](Int32(of.experts.codes_step)),
        input[DType.uint8](of.rows.a),
        argument[not is_grouped](input[DType.uint8](of.a_scales)),
        input[DType.uint8](of.experts.right.codes),
        input[DType.uint8](of.experts.right.scales),
        output[DType.uint8](of.rows.result),
        Int32(of.rows.m),
        Int32(of.n),
        Int32(of.k),
        argument[not is_grouped](Int32(shape.stages(of.k))),
        argument[is_grouped](Int32(of.experts.scales_step)),
        input[DType.uint8](of.experts.bias),
        argument[not is_grouped](output[DType.uint8](of.workspace)),
        argument[is_grouped](input[DType.int32](of.rows.list)),
        argument[is_grouped](Int32(of.rows.count)),
        argument[is_grouped](Int32(grid.x)),
        argument[is_grouped](of.gate.limit),
        argument[is_grouped](of.gate.alpha),
    )


struct InterleavedKernel[types: ProductTypes, shape: InterleavedShape, k_tail: Bool](ProductKernel):
    """The kernel for one cut."""

    @staticmethod
    def supports(problem: Problem) -> Bool:
        return (
            Self.types.match(problem)
            and Self.shape.bits == Self.types.formats.left.element.bits
            and Self.shape.supports(problem.k)
            and (Self.k_tail or not Self.shape.has_tail(problem.k))
        )

    @staticmethod
    def launch[Q: Queue](problem: Problem, mut queue: Q) raises:
        comptime assert not Self.types.x, "activations are encoded"
        comptime sums = Self.shape.m_tiles * Self.shape.n_tiles
        comptime assert Self.shape.splits == 1 or sums <= MOST_SHARED, "registers for two sums"
        var m, n = problem.m, problem.n
        var workspace = queue.workspace(Self.shape.workspace(m, n))
        launch_interleaved[Self.types, Self.shape, Self.k_tail](
            GemmArguments.of(problem, workspace), Self.shape.grid(m, n), queue
        )
