"""Linear for many rows: quantizes x on the way, C[M, N] = x @ W.T (+ bias) in one launch.

Two acts. First the workgroups of a tile of rows encode these rows together into
a workspace, each block once a launch (team.mojo). Then each multiplies its tile
of 256 x 256 as matmul_prefill.mojo does, from codes.
"""

from layout import row_major
from layout.tile_tensor import stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, thread_idx
from max.gpu.memory import CacheOperation
from max.gpu.sync import s_waitcnt, s_waitcnt_barrier
from std.atomic import Ordering, fence
from std.memory import AddressSpace
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ..codec import Rounding
from ..formats import BLOCK
from ..layouts import PreshuffledCdna4
from .epilogue import Result
from .matmul_prefill import THREADS, WAVES_PER_SIMD, multiply_tile, tile_of_c
from .mma import LANES, SharedBytes
from .prefill_activations import PreshuffledScales
from .prefill_tiles import COLUMNS, LDS_BYTES, ROWS, STAGE_BLOCKS, WAVES, place_at
from .quantize import GroupQuantizer, QUANTIZE_ROWS
from .team import Team, TeamWorkspace
from .tiles import PIECE_BYTES, quotient

comptime DEVICE = CacheOperation.GLOBAL
"""Stores that the whole device sees once they have completed."""
comptime PLACES_BYTES = 16 * 1024
"""Bytes of LDS for the floats of a wave."""


@always_inline
def encode_rows[
    x_dtype: DType, rounding: Rounding
](
    x: ImmPointer[Scalar[x_dtype], _],
    codes: MutPointer[UInt8, _],
    scales: MutPointer[UInt8, _],
    m: Int32,
    k: Int32,
    first_row: Int32,
    team: Team,
    lds: SharedBytes,
    wave: Int32,
    lane: Int32,
):
    """Encodes the wave's share of the rows, and returns when all rows of the team are encoded."""
    comptime Whole = GroupQuantizer[x_dtype, rounding, PreshuffledCdna4, DEVICE]
    comptime places = min(Whole.TILES, PLACES_BYTES // Whole.Source.LDS_BYTES)
    comptime Quantizer = GroupQuantizer[x_dtype, rounding, PreshuffledCdna4, DEVICE, places=places]
    var pair = quotient[QUANTIZE_ROWS](first_row) + wave
    var source = Quantizer.Source(x, m, k, pair * QUANTIZE_ROWS)
    source.settle(lane)
    var rows = Quantizer.Rows.at(codes, scales, m, quotient[BLOCK](k))
    var own_lds = place_at(lds, wave * Int32(PLACES_BYTES))
    var quantizer = Quantizer(source, rows, own_lds, pair, lane)

    var count = 0
    var group = readfirstlane(team.draw(wave, lane)).cast[DType.int32]()
    while group < team.groups:
        quantizer.fetch(group)
        var next = team.draw(wave, lane)
        quantizer.quantize[own_operations=1](group)
        group = readfirstlane(next).cast[DType.int32]()
        count += 1
    s_waitcnt[vmcnt=0]()
    for _ in range(count):
        team.finish(lane)

    s_waitcnt_barrier()
    if wave == 0:
        team.wait()
    s_waitcnt_barrier()
    fence[Ordering.ACQUIRE, scope="agent"]()
    if wave == 0:
        team.finish(lane)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def linear_prefill[
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
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var tiles_m = quotient[ROWS](m + Int32(ROWS - 1))
    var tiles_n = quotient[COLUMNS](n + Int32(COLUMNS - 1))
    var tile = tile_of_c(tiles_m, tiles_n)
    if tile[0] >= tiles_m:
        return  # Rounds the grid up to a multiple of the XCDs.

    var lds = stack_allocation[
        DType.bfloat16, address_space=AddressSpace.SHARED, alignment=PIECE_BYTES
    ](row_major[LDS_BYTES // size_of[DType.bfloat16]()]())
    var k_blocks = quotient[BLOCK](k)
    var stages = quotient[STAGE_BLOCKS](k_blocks + Int32(STAGE_BLOCKS - 1))
    var parts = TeamWorkspace.of(Int(tiles_m), Int(m), Int(k))
    var codes = workspace.unsafe_offset(parts.codes)
    var scales = workspace.unsafe_offset(parts.scales)
    encode_rows[x_dtype, rounding](
        x,
        codes,
        scales,
        m,
        k,
        tile[0] * Int32(ROWS),
        Team[WAVES].of(workspace, tile[0], tiles_n, stages),
        lds.ptr,
        wave,
        lane,
    )
    multiply_tile[PreshuffledScales, out_dtype, bias_dtype, k_tail](
        ImmPointer[UInt8, MutAnyOrigin](codes),
        ImmPointer[UInt8, MutAnyOrigin](scales),
        w_codes,
        w_scales,
        Result[out_dtype, bias_dtype].of(result, bias, m, n),
        m,
        n,
        k,
        tile,
        lds.ptr,
        wave,
        lane,
    )
