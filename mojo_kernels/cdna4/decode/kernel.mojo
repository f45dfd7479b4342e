"""Matmul and linear for few rows: C[M, N] = A @ W.T (+ bias) in one launch.

A workgroup computes a tile of C; groups of its waves share the work along K,
the sharers within a group its columns:

    workgroup x, y    tiles of columns (weights) and of rows (activations)
    workgroup z       a part of K, if `splits` > 1; whoever comes last adds up
    wave              group wave / sharers: a run of chunks along K
                      sharer wave % sharers: all rows, a part of the columns

So a workgroup meets every block of its activations once. With one sharer a wave
encodes what it needs and needs nobody else until its sums are done; more sharers
encode a part each and meet once a chunk, but have fewer sums to add up.

Partial sums meet in LDS, then, with `splits`, in the workspace; they are always
added in the order of K, so that the result does not depend on who comes last.
Workgroups with equal x read the same weights. Where there are several, the grid's
x extent is a multiple of the number of XCDs, so that they share an L2.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...launch.kernel import ProductKernel
from ...launch.queue import Queue
from ...problem import Problem
from ...schedule.xcd import XcdColumns
from ...tiles import RegisterTile, in_registers
from ..chip import BLOCK, LANES, PIECE_BYTES, SUMS, TILE
from ..instructions.lds import Lds, allocate_lds, tile_at
from ..instructions.matrix import SumTile
from ..instructions.memory import loaded
from ..operands.activations import ActivationSource, CodeSource, FloatSource
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.row_scales import RowScales
from ..operands.target import Destination, Target
from ..types import ProductTypes, has_kernels, unsupported
from .handover import Handover
from .shape import DecodeLds, DecodeShape
from .walk import DecodeWalk


@always_inline
def multiply_tile[
    Source: ActivationSource, C: Destination, //, types: ProductTypes, shape: DecodeShape
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
    row_scales: Optional[RowScales] = None,
):
    """Computes a workgroup's tile of C; the target has `y` such tiles of rows before it."""
    comptime assert shape.is_possible(), "waves cannot share this tile"
    comptime lds_plan = DecodeLds(shape, Source.PIECES * PIECE_BYTES, Source.left)
    comptime Walk = DecodeWalk[Source, types.formats.right, shape]
    comptime COLUMNS = Int32(shape.n_tiles * TILE)
    comptime HAS_ROW_SCALES = types.formats.left.has_row_scales()
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
    var weights = Walk.Weights.of(
        w_codes,
        w_scales,
        n,
        quotient[BLOCK](k),
        x * Int32(shape.n_tiles) + sharer * Int32(shape.wave_columns()),
    )
    var first_chunk = (z * Int32(shape.k_groups()) + group) * chunks_per_wave
    var walk = Walk(source, weights, lds, wave, lane, first_chunk)
    walk.start()
    # What is needed at the end arrives while the first chunks do.
    var meeting_place = workspace
    comptime if shape.splits > 1:
        meeting_place = loaded(workspace)
    var bias = in_registers[DType.float32, SUMS, shape.own_tiles()]()
    comptime for i in range(shape.own_tiles()):
        var n_tile = shape.corner(shape.tile_of(wave, i))[1]
        bias[i] = target.bias_of(x * COLUMNS + n_tile * TILE, lane)
    var scales = _OwnScales[shape]()
    comptime if HAS_ROW_SCALES:
        scales.fetch(row_scales.value(), y, x, wave, lane)
    walk.finish(chunks_per_wave)
    var groups_x = quotient[Int(COLUMNS)](n + COLUMNS - 1)
    var groups_y = quotient[shape.m_tiles * TILE](m + Int32(shape.m_tiles * TILE - 1))
    var handover = Handover[shape](
        meeting_place, x + groups_x * y, groups_x * groups_y, z, wave, lane
    )
    comptime if shape.splits > 1:
        handover.announce()

    # Across groups: each wave gets some tiles.
    var sums = in_registers[DType.float32, SUMS, shape.own_tiles()]()
    comptime if shape.k_groups() == 1:
        comptime for i in range(shape.own_tiles()):
            comptime m_tile, n_tile = divmod(i, shape.wave_columns())
            sums[i] = walk.sums[m_tile, n_tile]
    else:
        _exchange[shape, lds_plan.wave_bytes()](walk.sums, sums, lds, wave, lane)
        comptime if shape.waves > shape.tiles():
            if wave >= Int32(shape.tiles()):
                return

    comptime if HAS_ROW_SCALES:
        scales.apply(sums)

    # Across workgroups, and to memory.
    comptime if shape.splits > 1:
        if not handover.add_up(sums):
            return
    var m_tile0, n_tile0 = y * Int32(shape.m_tiles), x * Int32(shape.n_tiles)
    comptime for i in range(shape.own_tiles()):
        var tile = shape.tile_of(wave, i)
        if tile < Int32(shape.tiles()):
            var m_tile, n_tile = shape.corner(tile)
            var row, column = (m_tile0 + m_tile) * TILE, (n_tile0 + n_tile) * TILE
            target.store_part[0, SUMS](sums[i], bias[i], row, column, lane)


struct _OwnScales[shape: DecodeShape]:
    """The scales of the rows and columns of the tiles that a wave finishes.

    Parameters:
        shape: How a workgroup cuts its work.
    """

    var rows: RegisterTile[DType.float32, 1, Self.shape.own_tiles()]
    var columns: SumTile[Self.shape.own_tiles()]

    @always_inline
    def __init__(out self):
        """Begins with any."""
        self.rows = in_registers[DType.float32, 1, Self.shape.own_tiles()]()
        self.columns = in_registers[DType.float32, SUMS, Self.shape.own_tiles()]()

    @always_inline
    def fetch(mut self, scales: RowScales, y: Int32, x: Int32, wave: Int32, lane: Int32):
        """Starts loading them for the tile of C in row `y`, column `x`."""
        comptime for i in range(Self.shape.own_tiles()):
            var m_tile, n_tile = Self.shape.corner(Self.shape.tile_of(wave, i))
            var first_row = (y * Int32(Self.shape.m_tiles) + m_tile) * TILE
            var first_column = (x * Int32(Self.shape.n_tiles) + n_tile) * TILE
            self.rows[i] = scales.of_row(first_row, lane)
            self.columns[i] = scales.of_columns(first_column, lane)

    @always_inline
    def apply(self, sums: SumTile[Self.shape.own_tiles()]):
        """Multiplies the tiles by their scales."""
        comptime for i in range(Self.shape.own_tiles()):
            sums[i] = RowScales.applied(sums[i], self.rows[i], self.columns[i])


@always_inline
def _exchange[
    shape: DecodeShape, wave_bytes: Int
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
def linear_decode[
    types: ProductTypes, shape: DecodeShape
](
    x: Input[types.floats()],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    result: Output[types.out],
    m: Int32,
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    bias: Input[DType.uint8],
    workspace: Output[DType.uint8],
):
    """Quantizes x and multiplies: C = x @ W.T + bias."""
    comptime Source = FloatSource[
        types.formats.left,
        types.floats(),
        types.rounding,
        shape.fetched_m_tiles(),
        shape.fetched_k_tiles(),
        shape.k_tail,
    ]
    var y = Int32(XcdColumns.tile(Int(block_idx.x), Int(block_idx.y)).row)
    multiply_tile[types, shape](
        Source(x, m, k, y * Int32(shape.m_tiles * TILE)),
        w_codes,
        w_scales,
        Target[types.out, types.bias].of(result, bias, m, n),
        y,
        m,
        n,
        k,
        chunks_per_wave,
        workspace,
    )


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(shape.threads())),
    `rocdl.waves_per_eu`=SIMDLength(2),
)
def matmul_decode[
    types: ProductTypes, shape: DecodeShape
](
    a_codes: Input[DType.uint8],
    a_scales: Input[DType.uint8],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    result: Output[types.out],
    m: Int32,
    n: Int32,
    k: Int32,
    chunks_per_wave: Int32,
    bias: Input[DType.uint8],
    workspace: Output[DType.uint8],
):
    """Multiplies a plain operand: C = A @ W.T + bias."""
    comptime Source = CodeSource[
        types.formats.left, shape.fetched_m_tiles(), shape.fetched_k_tiles(), shape.k_tail
    ]
    var row_scales = Optional[RowScales](None)
    comptime if types.formats.left.has_row_scales():
        row_scales = RowScales.of(a_scales, w_scales, m, n)
    var y = Int32(XcdColumns.tile(Int(block_idx.x), Int(block_idx.y)).row)
    multiply_tile[types, shape](
        Source(a_codes, a_scales, m, quotient[BLOCK](k), y * Int32(shape.m_tiles * TILE)),
        w_codes,
        w_scales,
        Target[types.out, types.bias].of(result, bias, m, n),
        y,
        m,
        n,
        k,
        chunks_per_wave,
        workspace,
        row_scales,
    )


struct DecodeKernel[types: ProductTypes, shape: DecodeShape](ProductKernel):
    """The kernel for one cut.

    Parameters:
        types: What it is compiled for.
        shape: How a workgroup cuts its work.
    """

    @staticmethod
    def supports(problem: Problem) -> Bool:
        return Self.types.match(problem) and Self.shape.supports(problem.k)

    @staticmethod
    def launch[Q: Queue](problem: Problem, mut queue: Q) raises:
        comptime assert has_kernels(Self.types.formats), unsupported(Self.types.formats)
        comptime assert not Self.types.quantizes_first(), "another launch quantizes before"
        var m, n, k = problem.m, problem.n, problem.k
        var grid = Self.shape.grid(m, n)
        var workspace = queue.workspace(Self.shape.workspace(m, n))

        # Scalars: a struct would come by reference, which ends the preload of arguments.
        comptime if Self.types.x:
            queue.launch[linear_decode[Self.types, Self.shape]](
                grid,
                input[Self.types.floats()](problem.left.values),
                input[DType.uint8](problem.right.codes),
                input[DType.uint8](problem.right.scales),
                output[Self.types.out](problem.result.values),
                Int32(m),
                Int32(n),
                Int32(k),
                Int32(Self.shape.chunks_per_wave(k)),
                input[DType.uint8](problem.result.bias),
                output[DType.uint8](workspace),
            )
        else:
            queue.launch[matmul_decode[Self.types, Self.shape]](
                grid,
                input[DType.uint8](problem.left.values),
                input[DType.uint8](problem.left.scales),
                input[DType.uint8](problem.right.codes),
                input[DType.uint8](problem.right.scales),
                output[Self.types.out](problem.result.values),
                Int32(m),
                Int32(n),
                Int32(k),
                Int32(Self.shape.chunks_per_wave(k)),
                input[DType.uint8](problem.result.bias),
                output[DType.uint8](workspace),
            )
