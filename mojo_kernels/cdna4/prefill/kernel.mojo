"""Matmul and linear for many rows: C[M, N] = A @ W.T (+ bias), 256 x 256 or 128 x 256 a workgroup.

Two acts. First the workgroups of a tile of rows prepare these rows together, in a
workspace (crew.mojo): floats are encoded, the scales of codes are put in order. Then
each multiplies its tile of C from codes (workgroup.mojo). The budget of a compute unit
says why not from floats; a workgroup needs

    tile of C    from       bytes of a slice    cycles of MFMA    bytes a cycle
    256 x 256    floats     64 Ki + 17 Ki       1024              81
    128 x 512    floats     32 Ki + 34 Ki       1024              66, the least of its size
    256 x 256    codes      17 Ki + 17 Ki       1024              34
    256 x 256    of 8 bits  33 Ki + 33 Ki       2048              33
    128 x 256    bfloat16   32 Ki + 17 Ki       2048              25

and gets about 33: 32 KiB in flight for some 1000 cycles (guesses of the simulator's
model). Encoding once a launch costs one pass over x: 17 of 160 us at 8192^3. Floats that
are kept need no first act: their products take four times as long as those of four bits.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA
from max.gpu.sync import schedule_barrier
from std.utils import StaticTuple

from ...launch.kernel import ProductKernel
from ...launch.queue import Queue
from ...layouts import PreshuffledCdna4
from ...numbers.scales import Scale
from ...problem import Problem
from ..chip import BLOCK, GROUP_TILES, PAIR, PIECE_BYTES
from ..instructions.lds import allocate_lds
from ..operands.memory import Input, Output, input, output, quotient
from ..operands.quantizer import GroupQuantizer
from ..operands.target import Target
from ..operands.tiles import FloatTile
from ..types import KEPT, ProductTypes, has_kernels, unsupported
from .activations import ReorderedScales
from .crew import FOR_THE_DEVICE, NoMeeting, SharedWork
from .shape import (
    CrewMemory,
    PART_BLOCKS,
    PrefillTile,
    SCALE_GROUP_ROWS,
    STAGE_BLOCKS,
    THREADS,
    WAVES,
    grid_of,
    has_tile,
    workspace_of,
)
from .workgroup import Inputs, Workgroup, multiply_tile

comptime WAVES_PER_SIMD = 2
"""Waves that the kernel's registers must leave room for."""


@fieldwise_init
struct EncodedGroups[types: ProductTypes, lds_bytes: Int](SharedWork):
    """Floats of a pair of tiles of rows on their way to codes; a part is a group.

    Parameters:
        types: What the kernel is compiled for.
        lds_bytes: Bytes of LDS of the wave.
    """

    comptime TILE_BYTES = FloatTile[Self.types.floats()].PIECES * PIECE_BYTES
    """Bytes of the floats of a tile."""
    comptime places = min(GROUP_TILES * PAIR, Self.lds_bytes // Self.TILE_BYTES)
    """Tiles in flight."""
    comptime Quantizer = GroupQuantizer[
        Self.types.formats.left,
        Self.types.floats(),
        Self.types.rounding,
        PreshuffledCdna4,
        FOR_THE_DEVICE,
        places=Self.places,
    ]
    """What encodes a group."""

    var quantizer: Self.Quantizer
    """The wave's."""

    @always_inline
    def start(mut self, part: Int32):
        """Starts loading a group."""
        self.quantizer.fetch(part)

    @always_inline
    def complete[own_operations: Int](mut self, part: Int32):
        """Encodes and stores the group."""
        self.quantizer.quantize[own_operations](part)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def linear_prefill[
    types: ProductTypes, m_tiles: Int, k_tail: Bool
](
    x: Input[types.floats()],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    result: Output[types.out],
    workspace: Output[DType.uint8],
    m: Int32,
    n: Int32,
    k: Int32,
    bias: Input[DType.uint8],
):
    """Quantizes x and multiplies: C = x @ W.T + bias. Without `k_tail`, K % 256 == 0.

    Weights have layout `preshuffled_cdna4`; each tensor has less than 2 GiB. The
    counters of the workspace are zero.
    """
    comptime Tile = PrefillTile[types.formats, m_tiles]
    var workgroup = Workgroup[types.formats, m_tiles].this(m, n)
    if not workgroup.has_tile():
        return

    var k_blocks = quotient[BLOCK](k)
    var groups = quotient[STAGE_BLOCKS](k_blocks + Int32(STAGE_BLOCKS - 1))
    var crew = workgroup.crew(workspace, groups)
    var first = crew.draw(workgroup.pair(), workgroup.lane)
    var lds = allocate_lds[Tile.LDS_BYTES]()

    # Codes and scales of the rows that the crew shares.
    comptime LDS_BYTES = Tile.FREE_BYTES // WAVES
    comptime Work = EncodedGroups[types, LDS_BYTES]
    var parts = CrewMemory.of(types.formats.left, Int(workgroup.tiles_m), Int(m), Int(k))
    var scales = workspace.unsafe_offset(parts.counter_bytes)
    var codes = workspace.unsafe_offset(parts.codes)
    var first_row = workgroup.first_shared_row()
    var source = Work.Quantizer.Source(x, m, k, first_row)
    source.settle(workgroup.lane)
    source.settle_block(workgroup.lane)
    var rows = Work.Quantizer.Rows.at(codes, scales, m, k_blocks)
    var own_lds = lds.unsafe_offset(Int(workgroup.wave) * LDS_BYTES)
    var pair = quotient[SCALE_GROUP_ROWS](first_row)
    var work = Work(Work.Quantizer(source, rows, own_lds, pair, workgroup.lane))
    schedule_barrier()  # The first ticket is on its way.
    crew.prepare(work, first, workgroup.wave, workgroup.lane)

    var inputs = Inputs.of(codes, scales, w_codes, w_scales, m, n, k)
    var target = Target[types.out, types.bias].of(result, bias, m, n)
    multiply_tile[k_tail](inputs, target, workgroup, crew, lds)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def matmul_prefill[
    types: ProductTypes, m_tiles: Int, k_tail: Bool
](
    a_codes: Input[DType.uint8],
    a_scales: Input[DType.uint8],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    workspace: Output[DType.uint8],
    m: Int32,
    n: Int32,
    k: Int32,
    result: Output[types.out],
    bias: Input[DType.uint8],
):
    """Multiplies plain codes: C = A @ W.T + bias. Without `k_tail`, K % 256 == 0.

    Weights have layout `preshuffled_cdna4`; each tensor has less than 2 GiB. The
    counters of the workspace are zero. Arguments that come first are preloaded.
    """
    comptime Tile = PrefillTile[types.formats, m_tiles]
    var workgroup = Workgroup[types.formats, m_tiles].this(m, n)
    if not workgroup.has_tile():
        return

    var k_blocks = quotient[BLOCK](k)
    var crew = workgroup.crew(workspace, quotient[PART_BLOCKS](k_blocks + Int32(PART_BLOCKS - 1)))
    var first = crew.draw(workgroup.pair(), workgroup.lane)
    var lds = allocate_lds[Tile.LDS_BYTES]()

    # Scales in the order in which they are multiplied.
    comptime Scales = ReorderedScales[k_tail]
    var parts = CrewMemory.of(types.formats.left, Int(workgroup.tiles_m), Int(m), Int(k))
    var scales = workspace.unsafe_offset(parts.counter_bytes)
    var own_lds = lds.unsafe_offset(Int(workgroup.wave) * Scales.LDS_BYTES)
    var first_row = workgroup.first_shared_row()
    var work = Scales(a_scales, scales, m, k_blocks, first_row, own_lds, workgroup.lane)
    crew.prepare(work, first, workgroup.wave, workgroup.lane)

    var inputs = Inputs.of(a_codes, scales, w_codes, w_scales, m, n, k)
    var target = Target[types.out, types.bias].of(result, bias, m, n)
    multiply_tile[k_tail](inputs, target, workgroup, crew, lds)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def kept_prefill[
    types: ProductTypes, m_tiles: Int, k_tail: Bool
](
    x: Input[DType.bfloat16],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    result: Output[types.out],
    m: Int32,
    n: Int32,
    k: Int32,
    bias: Input[DType.uint8],
):
    """Multiplies x as it comes: C = x @ W.T + bias. Without `k_tail`, K % 256 == 0.

    Weights have layout `preshuffled_cdna4`; each tensor has less than 2 GiB.
    """
    comptime Tile = PrefillTile[types.formats, m_tiles]
    var workgroup = Workgroup[types.formats, m_tiles].this(m, n)
    if not workgroup.has_tile():
        return
    var floats = Inputs.Bytes(unsafe_from_address=Int(x))
    var codes = Inputs.Bytes(unsafe_from_address=Int(w_codes))
    var scales = Inputs.Bytes(unsafe_from_address=Int(w_scales))
    var inputs = Inputs(floats, scales, codes, scales, m, n, k)
    var target = Target[types.out, types.bias].of(result, bias, m, n)
    multiply_tile[k_tail](inputs, target, workgroup, NoMeeting(), allocate_lds[Tile.LDS_BYTES]())


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def float_scaled_prefill[
    types: ProductTypes, m_tiles: Int, k_tail: Bool
](
    a_codes: Input[DType.uint8],
    a_scales: Input[DType.uint8],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    m: Int32,
    n: Int32,
    k: Int32,
    result: Output[types.out],
    bias: Input[DType.uint8],
):
    """Multiplies plain codes with float scales: C = A @ W.T + bias. Without `k_tail`, K % 256 == 0.

    Codes of weights have layout `preshuffled_cdna4`, or codes of both lie column by column; each
    tensor has less than 2 GiB.
    """
    comptime Tile = PrefillTile[types.formats, m_tiles]
    var workgroup = Workgroup[types.formats, m_tiles].this(m, n)
    if not workgroup.has_tile():
        return
    var inputs = Inputs(
        Inputs.Bytes(unsafe_from_address=Int(a_codes)),
        Inputs.Bytes(unsafe_from_address=Int(a_scales)),
        Inputs.Bytes(unsafe_from_address=Int(w_codes)),
        Inputs.Bytes(unsafe_from_address=Int(w_scales)),
        m,
        n,
        k,
    )
    var target = Target[types.out, types.bias].of(result, bias, m, n)
    multiply_tile[k_tail](inputs, target, workgroup, NoMeeting(), allocate_lds[Tile.LDS_BYTES]())


struct PrefillKernel[types: ProductTypes, m_tiles: Int, k_tail: Bool](ProductKernel):
    """The kernel for one size of tile.

    Parameters:
        types: What it is compiled for.
        m_tiles: Tiles of rows of a wave.
        k_tail: Whether K may end within a stage.
    """

    @staticmethod
    def supports(problem: Problem) -> Bool:
        comptime STAGE_K = STAGE_BLOCKS * BLOCK
        return Self.types.match(problem) and (Self.k_tail or problem.k % STAGE_K == 0)

    @staticmethod
    def launch[Q: Queue](problem: Problem, mut queue: Q) raises:
        comptime assert has_kernels(Self.types.formats), unsupported(Self.types.formats)
        comptime assert not Self.types.quantizes_first(), "another launch quantizes before"
        comptime assert has_tile(Self.types, Self.m_tiles), "LDS has no room for such a tile"
        var m, n, k = problem.m, problem.n, problem.k
        var grid = grid_of(Self.m_tiles, m, n)
        comptime left = Self.types.formats.left
        comptime has_codes = Bool(Self.types.x)
        var space = workspace_of(left, Self.m_tiles, m, k, has_codes=has_codes)
        var workspace = queue.workspace(space) if space.num_bytes() > 0 else 0

        # Scalars: a struct would come by reference, which ends the preload of arguments.
        comptime if Self.types.formats.left == KEPT:
            queue.launch[kept_prefill[Self.types, Self.m_tiles, Self.k_tail]](
                grid,
                input[DType.bfloat16](problem.left.values),
                input[DType.uint8](problem.right.codes),
                input[DType.uint8](problem.right.scales),
                output[Self.types.out](problem.result.values),
                Int32(m),
                Int32(n),
                Int32(k),
                input[DType.uint8](problem.result.bias),
            )
        elif left.scale == Scale.FLOAT32:
            queue.launch[float_scaled_prefill[Self.types, Self.m_tiles, Self.k_tail]](
                grid,
                input[DType.uint8](problem.left.values),
                input[DType.uint8](problem.left.scales),
                input[DType.uint8](problem.right.codes),
                input[DType.uint8](problem.right.scales),
                Int32(m),
                Int32(n),
                Int32(k),
                output[Self.types.out](problem.result.values),
                input[DType.uint8](problem.result.bias),
            )
        elif Self.types.x:
            queue.launch[linear_prefill[Self.types, Self.m_tiles, Self.k_tail]](
                grid,
                input[Self.types.floats()](problem.left.values),
                input[DType.uint8](problem.right.codes),
                input[DType.uint8](problem.right.scales),
                output[Self.types.out](problem.result.values),
                output[DType.uint8](workspace),
                Int32(m),
                Int32(n),
                Int32(k),
                input[DType.uint8](problem.result.bias),
            )
        else:
            queue.launch[matmul_prefill[Self.types, Self.m_tiles, Self.k_tail]](
                grid,
                input[DType.uint8](problem.left.values),
                input[DType.uint8](problem.left.scales),
                input[DType.uint8](problem.right.codes),
                input[DType.uint8](problem.right.scales),
                output[DType.uint8](workspace),
                Int32(m),
                Int32(n),
                Int32(k),
                output[Self.types.out](problem.result.values),
                input[DType.uint8](problem.result.bias),
            )
