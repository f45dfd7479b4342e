"""Linear for many rows: quantizes x on the way, C[M, N] = x @ W.T (+ bias) in one launch.

Two acts. First the workgroups of a tile of rows encode these rows together into a
workspace (team.mojo). Then each multiplies its tile of C as matmul_prefill.mojo does,
from codes. The budget of a compute unit says why not from floats; a workgroup needs

    tile of C    from       bytes of a slice    cycles of MFMA    bytes a cycle
    256 x 256    floats     64 Ki + 17 Ki       1024              81
    128 x 512    floats     32 Ki + 34 Ki       1024              66, the least of its size
    256 x 256    codes      17 Ki + 17 Ki       1024              34

and gets about 33: 32 KiB in flight for some 1000 cycles (guesses of the simulator's
model). Encoding once a launch costs one pass over x: 17 of 160 us at 8192^3.
"""

from layout import row_major
from layout.tile_tensor import stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA
from max.gpu.sync import schedule_barrier
from std.memory import AddressSpace
from std.sys import size_of
from std.utils import StaticTuple

from ..codec import Rounding
from ..formats import BLOCK
from ..layouts import PreshuffledCdna4
from .epilogue import Result
from .matmul_prefill import Operands, THREADS, WAVES_PER_SIMD, Workgroup, multiply_tile
from .prefill_tiles import PrefillTile, SCALE_GROUP_ROWS, STAGE_BLOCKS, WAVES, place_at
from .quantize import GroupQuantizer
from .team import FOR_THE_DEVICE, SharedWork, TeamWorkspace
from .tiles import FloatTile, GROUP_TILES, PAIR, PIECE_BYTES, quotient


@fieldwise_init
struct EncodedGroups[x_dtype: DType, rounding: Rounding, lds_bytes: Int](SharedWork):
    """Floats of a pair of tiles of rows on their way to codes; a part is a group.

    Parameters:
        x_dtype: Type of the floats.
        rounding: The scale rule.
        lds_bytes: Bytes of LDS of the wave.
    """

    comptime places = min(GROUP_TILES * PAIR, Self.lds_bytes // FloatTile[Self.x_dtype].BYTES)
    """Tiles in flight."""
    comptime Quantizer = GroupQuantizer[
        Self.x_dtype, Self.rounding, PreshuffledCdna4, FOR_THE_DEVICE, places=Self.places
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
    m_tiles: Int,
    x_dtype: DType,
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    k_tail: Bool,
](
    x: ImmPointer[Scalar[x_dtype], ImmutAnyOrigin],
    w_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    w_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    result: MutPointer[Scalar[out_dtype], MutAnyOrigin],
    workspace: MutPointer[UInt8, MutAnyOrigin],
    m: Int32,
    n: Int32,
    k: Int32,
    bias: ImmPointer[UInt8, ImmutAnyOrigin],
):
    """Quantizes x and multiplies: C = x @ W.T + bias. Without `k_tail`, K % 256 == 0.

    Weights have layout `preshuffled_cdna4`; each tensor has less than 2 GiB. The
    counters of the workspace are zero.
    """
    var workgroup = Workgroup[m_tiles].this(m, n)
    if not workgroup.has_tile():
        return

    var k_blocks = quotient[BLOCK](k)
    var groups = quotient[STAGE_BLOCKS](k_blocks + Int32(STAGE_BLOCKS - 1))
    var team = workgroup.team(workspace, groups)
    var first = team.draw(workgroup.pair(), workgroup.lane)
    var lds = stack_allocation[
        DType.bfloat16, address_space=AddressSpace.SHARED, alignment=PIECE_BYTES
    ](row_major[PrefillTile[m_tiles].LDS_BYTES // size_of[DType.bfloat16]()]())

    # Codes and scales of the rows that the team shares.
    comptime LDS_BYTES = PrefillTile[m_tiles].FREE_BYTES // WAVES
    comptime Work = EncodedGroups[x_dtype, rounding, LDS_BYTES]
    var parts = TeamWorkspace.of(Int(workgroup.tiles_m), Int(m), Int(k))
    var scales = workspace.unsafe_offset(parts.counter_bytes)
    var codes = workspace.unsafe_offset(parts.codes)
    var first_row = workgroup.first_shared_row()
    var source = Work.Quantizer.Source(x, m, k, first_row)
    source.settle(workgroup.lane)
    var rows = Work.Quantizer.Rows.at(codes, scales, m, k_blocks)
    var own_lds = place_at(lds.ptr, workgroup.wave * Int32(LDS_BYTES))
    var pair = quotient[SCALE_GROUP_ROWS](first_row)
    var work = Work(Work.Quantizer(source, rows, own_lds, pair, workgroup.lane))
    schedule_barrier()  # The first ticket is on its way.
    team.prepare(work, first, workgroup.wave, workgroup.lane)

    var operands = Operands.of(codes, scales, w_codes, w_scales, m, n, k)
    var target = Result[out_dtype, bias_dtype].of(result, bias, m, n)
    multiply_tile[k_tail](operands, target, workgroup, team, lds.ptr)
