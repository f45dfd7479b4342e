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
from std.utils import StaticTuple

from ...launch.kernel import ProductKernel
from ...launch.queue import Argument, Queue, argument
from ...problem import Problem
from ..chip import BLOCK
from ..instructions.lds import allocate_lds
from ..operands.memory import Input, Output, bytes_of, input, output, quotient
from ..operands.target import Target
from ..types import ProductTypes, has_kernels, unsupported
from .activations import EncodedGroups, ReorderedScales
from .crew import NoMeeting, SharedWork
from .shape import (
    CrewMemory,
    PrefillTile,
    STAGE_BLOCKS,
    THREADS,
    WAVES,
    grid_of,
    has_tile,
    is_prepared,
    workspace_of,
)
from .workgroup import Inputs, Workgroup, multiply_tile

comptime WAVES_PER_SIMD = 2
"""Waves that the kernel's registers must leave room for."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def gemm_ping_pong[
    types: ProductTypes, m_tiles: Int, k_tail: Bool
](
    a: Input[types.floats()],
    a_scales: Argument[Input[DType.uint8], not types.x],
    w_codes: Input[DType.uint8],
    w_scales: Input[DType.uint8],
    workspace: Argument[Output[DType.uint8], is_prepared(types.formats.left)],
    m: Int32,
    n: Int32,
    k: Int32,
    result: Output[types.out],
    bias: Input[DType.uint8],
):
    """Multiplies: C = A @ W.T + bias. Without `k_tail`, K % 256 == 0.

    Of A are plain codes with scales, floats to encode, or floats to keep. Weights have layout
    `preshuffled_cdna4`, or codes of both sides lie column by column; each tensor has less than
    2 GiB. The counters of the workspace are zero. Arguments that come first are preloaded.
    """
    comptime Tile = PrefillTile[types.formats, m_tiles]
    comptime LEFT = types.formats.left
    var workgroup = Workgroup[types.formats, m_tiles].this(m, n)
    if not workgroup.has_tile():
        return
    var floats, own_scales = bytes_of(a), bytes_of(w_scales)
    comptime if not types.x:
        own_scales = bytes_of(rebind[Input[DType.uint8]](a_scales))

    comptime if is_prepared(LEFT):
        comptime Encoded = EncodedGroups[types, Tile.FREE_BYTES // WAVES]
        comptime Work: SharedWork = Encoded if types.x else ReorderedScales[k_tail]
        var memory = rebind[Output[DType.uint8]](workspace)
        var k_blocks = quotient[BLOCK](k)
        var crew = workgroup.crew(
            memory, quotient[Work.BLOCKS](k_blocks + Int32(Work.BLOCKS - 1))
        )
        var first = crew.draw(workgroup.pair(), workgroup.lane)
        var lds = allocate_lds[Tile.LDS_BYTES]()

        # Codes and scales of the rows that the crew shares, as they are multiplied.
        var parts = CrewMemory.of(LEFT, Int(workgroup.tiles_m), Int(m), Int(k))
        var scales = memory.unsafe_offset(parts.counter_bytes)
        var codes = memory.unsafe_offset(parts.codes)
        var own_lds = lds.unsafe_offset(Int(workgroup.wave) * Work.LDS_BYTES)
        var work = Work.of(
            floats if types.x else own_scales, codes, scales, m, k_blocks,
            workgroup.first_shared_row(), own_lds, workgroup.lane,
        )  # fmt: skip
        crew.prepare(work, first, workgroup.wave, workgroup.lane)
        var inputs = Inputs.of(
            bytes_of(codes) if types.x else floats, scales, w_codes, w_scales, m, n, k
        )
        var target = Target[types.out, types.bias].of(result, bias, m, n)
        multiply_tile[k_tail](inputs, target, workgroup, crew, lds)
    else:
        var inputs = Inputs.of(floats, own_scales, w_codes, w_scales, m, n, k)
        var target = Target[types.out, types.bias].of(result, bias, m, n)
        var lds = allocate_lds[Tile.LDS_BYTES]()
        multiply_tile[k_tail](inputs, target, workgroup, NoMeeting(), lds)


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
        queue.launch[gemm_ping_pong[Self.types, Self.m_tiles, Self.k_tail]](
            grid,
            input[Self.types.floats()](problem.left.values),
            argument[not Self.types.x](input[DType.uint8](problem.left.scales)),
            input[DType.uint8](problem.right.codes),
            input[DType.uint8](problem.right.scales),
            argument[is_prepared(left)](output[DType.uint8](workspace)),
            Int32(m),
            Int32(n),
            Int32(k),
            output[Self.types.out](problem.result.values),
            input[DType.uint8](problem.result.bias),
        )
