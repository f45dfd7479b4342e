"""Matmul for dozens to thousands of rows: C[M, N] = A @ W.T (+ bias) from codes, in one launch.

Four waves compute a tile of C. Weights, which no two waves share, go from memory straight
to registers, for which their layout is made; activations and their plain scales go through
LDS, where all waves read them. The waves meet once in 256 along K (order.mojo). Where tiles
of C are fewer than compute units, workgroups share K and add up (decode/handover.mojo).
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...launch.kernel import ProductKernel
from ...launch.queue import Queue
from ...problem import Problem
from ...schedule.xcd import XcdBands
from ...tiles import in_registers
from ..chip import BLOCK, LANES, LANE_BYTES, SUMS, TILE, TILE_BLOCKS
from ..decode.handover import Handover
from ..instructions.lds import allocate_lds
from ..instructions.memory import loaded
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.row_scales import RowScales
from ..operands.target import Target
from ..prefill.result import bias_of_tiles, store_tiles
from ..types import ProductTypes, has_kernels, unsupported
from .shape import MiddleShape, ROW_BYTES, WAVES, slices_of
from .walk import MiddleWalk

comptime MOST_SHARED = 32
"""Tiles of sums of a wave that can be added to a partner's."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(shape.threads())),
    `rocdl.waves_per_eu`=SIMDLength(shape.waves // WAVES),
)
def matmul_middle[
    types: ProductTypes, shape: MiddleShape, k_tail: Bool
](
    a_codes: Input[DType.uint8],
    a_scales: Input[DType.uint8],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    result: Output[types.out],
    m: Int32,
    n: Int32,
    k: Int32,
    num_stages: Int32,
    bias: Input[DType.uint8],
    workspace: Output[DType.uint8],
):
    """Multiplies plain codes by preshuffled ones: C = A @ W.T + bias. Without `k_tail`, K is
    whole stages."""
    comptime HAS_LINES = shape.has_scale_lines() and not k_tail
    comptime Walk = MiddleWalk[types.formats, shape, k_tail, scales_end=k_tail, has_lines=HAS_LINES]
    comptime ROWS, COLUMNS = shape.rows(), shape.columns()
    comptime STAGE_BLOCKS = shape.slices * TILE_BLOCKS
    var tiles_m = quotient[ROWS](m + Int32(ROWS - 1))
    var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
    var tile = XcdBands(Int(tiles_m), Int(tiles_n)).tile(Int(block_idx.x))
    var row, column = Int32(tile.row), Int32(tile.column)
    if row >= tiles_m:
        return  # The grid is rounded up to a multiple of the XCDs.
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var share = Int32(block_idx.z) if shape.splits > 1 else Int32(0)

    # Along K.
    var lds = allocate_lds[Walk.LDS_BYTES]()
    var k_blocks = quotient[BLOCK](k)
    var first_row = row * Int32(ROWS)
    var first_stage = share * num_stages
    var own_stages = num_stages
    comptime if shape.splits > 1:
        var all = quotient[STAGE_BLOCKS](k_blocks + Int32(STAGE_BLOCKS - 1))
        own_stages = min(num_stages, all - first_stage)
    comptime CODE_BYTES = LANE_BYTES[types.formats.left]
    var first_byte = first_stage * Int32(ROW_BYTES)
    var first_scale = Int32(0) if k_tail else first_stage * Int32(STAGE_BLOCKS)
    var first_tile = (column * Int32(shape.waves) + wave) * Int32(shape.n_tiles)
    comptime scale_rows = Walk.ScaleRows.of_lines if HAS_LINES else Walk.ScaleRows.of
    var walk = Walk(
        Walk.Rows.of(a_codes, m, k_blocks * Int32(CODE_BYTES), first_row, first_byte, wave, lane),
        scale_rows(a_scales, m, k_blocks, first_row, first_scale, wave, lane),
        Walk.Weights.of(w_codes, w_scales, n, k_blocks, first_tile),
        first_stage,
        own_stages,
        lds,
        wave,
        lane,
    )
    walk.start()
    var meeting_place = workspace
    comptime if shape.splits > 1:
        meeting_place = loaded(workspace)
    comptime SHAPE = shape.handover()
    var handover = Handover[SHAPE](
        meeting_place, column + tiles_n * row, tiles_n * tiles_m, share, wave, lane
    )
    walk.clear()
    comptime if shape.splits > 1:
        walk.walk(handover)
    else:
        walk.walk()

    # To memory.
    var target = Target[types.out, types.bias].of(result, bias, m, n)
    var first_column = first_tile * Int32(TILE)
    comptime if types.formats.left.has_row_scales():
        var scales = RowScales.of(a_scales, w_scales, m, n)
        scales.apply(walk.sums, first_row, first_column, lane)
    var addend = bias_of_tiles[shape.n_tiles](target, first_column, lane)
    comptime if shape.splits > 1:
        var sums = in_registers[DType.float32, SUMS, SHAPE.own_tiles()]()
        comptime for i in range(SHAPE.own_tiles()):
            comptime m_tile, n_tile = divmod(i, shape.n_tiles)
            sums[i] = walk.sums[m_tile, n_tile]
        if not handover.add_up(sums):
            return
        comptime for i in range(SHAPE.own_tiles()):
            comptime m_tile, n_tile = divmod(i, shape.n_tiles)
            walk.sums[m_tile, n_tile] = sums[i]
    store_tiles(target, walk.sums, addend, first_row, first_column, lane)


struct MiddleKernel[types: ProductTypes, shape: MiddleShape, k_tail: Bool](ProductKernel):
    """The kernel for one cut.

    Parameters:
        types: What it is compiled for.
        shape: How a workgroup cuts its work.
        k_tail: Whether K may end within a stage.
    """

    @staticmethod
    def supports(problem: Problem) -> Bool:
        return (
            Self.types.match(problem)
            and Self.shape.slices == slices_of(Self.types.formats.left)
            and Self.shape.supports(problem.k)
            and (Self.k_tail or not Self.shape.has_tail(problem.k))
        )

    @staticmethod
    def launch[Q: Queue](problem: Problem, mut queue: Q) raises:
        comptime assert has_kernels(Self.types.formats), unsupported(Self.types.formats)
        comptime assert not Self.types.x, "activations are encoded"
        comptime sums = Self.shape.m_tiles * Self.shape.n_tiles
        comptime assert Self.shape.splits == 1 or sums <= MOST_SHARED, "registers for two sums"
        var m, n, k = problem.m, problem.n, problem.k
        var grid = Self.shape.grid(m, n)
        var workspace = queue.workspace(Self.shape.workspace(m, n))
        queue.launch[matmul_middle[Self.types, Self.shape, Self.k_tail]](
            grid,
            input[DType.uint8](problem.left.values),
            input[DType.uint8](problem.left.scales),
            input[DType.uint8](problem.right.codes),
            input[DType.uint8](problem.right.scales),
            output[Self.types.out](problem.result.values),
            Int32(m),
            Int32(n),
            Int32(k),
            Int32(Self.shape.stages(k)),
            input[DType.uint8](problem.result.bias),
            output[DType.uint8](workspace),
        )
