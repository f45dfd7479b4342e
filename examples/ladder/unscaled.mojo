"""The first and the last rungs of the ladder that AMD published for FP8, C = A @ W.T.

    scalar        a thread computes a value of C, operands straight from memory, a byte at a time
    scalar_lds    the same from tiles of float32 in LDS
    by_quarters   eight waves, 256 x 256: half of them multiply while the others move, a quarter
                  of the tile after another
    regions       four waves, 256 x 256: each multiplies a quarter while it moves for the next ones

What lies between is a setting of `shared` or `double_buffered` in `many_rows`. A, W are E4M3, plain
[rows, K], of the last two kernels E5M2 or float16 too; C is bfloat16. Rows and columns are
multiples of 16, and of 256 for the last two; K of 16, and of two stages.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.sync import AMDScheduleBarrierMask, s_waitcnt, schedule_barrier, schedule_group_barrier
from std.sys.intrinsics import llvm_intrinsic, readfirstlane
from std.utils import StaticTuple

from mojo_kernels.cdna4.chip import LANES
from mojo_kernels.cdna4.instructions.lds import Lds, PIECE_WORDS, allocate_lds
from mojo_kernels.cdna4.instructions.matrix import SumTile, set_priority
from mojo_kernels.cdna4.instructions.wave import workgroup_barrier
from mojo_kernels.cdna4.types import F16
from mojo_kernels.numbers.formats import Format
from mojo_kernels.schedule.xcd import XcdBands
from mojo_kernels.tiles import in_registers, in_shared
from shared_tile import (
    Bytes,
    Pieces,
    SLICES,
    STAGE_K,
    SharedTile,
    cleared,
    keep,
    multiply_unscaled,
    wave_of_thread,
)

comptime Result = MutPointer[BFloat16, MutAnyOrigin]
comptime SIDE = 16
"""Rows and columns of C of a workgroup that multiplies numbers one by one, and its steps of K."""
comptime THREADS = SIDE * SIDE
comptime WAVES = THREADS // LANES
comptime WAVE_ROWS = SIDE // WAVES
comptime Quarters[format: Format] = SharedTile[format, 2, 4, 8, 4, True, 2]
"""A tile of 256 x 256: a wave has 8 x 4 tiles, of each half of rows 4, of each half of columns 2."""
comptime HALF_ROWS = 4
"""Tiles of a wave in a half of the rows."""
comptime HALF_COLUMNS = 2
comptime HALF_LOADS = 2
"""Loads of a thread for half an operand of a stage."""


@always_inline
def decoded(code: UInt8) -> Float32:
    """Returns the value of an E4M3 code."""
    return llvm_intrinsic["llvm.amdgcn.cvt.f32.fp8", Float32, has_side_effect=False](
        code.cast[DType.int32](), Int32(0)
    )


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def scalar(a: Bytes, w: Bytes, c: Result, n: Int32, k: Int32):
    """A thread walks a row of A and a row of W."""
    var row = Int32(block_idx.y) * SIDE + Int32(thread_idx.x) // SIDE
    var column = Int32(block_idx.x) * SIDE + Int32(thread_idx.x) % SIDE
    var sum = Float32(0)
    for i in range(k):
        sum += decoded(a[unsafe_offset=Int(row * k + i)]) * decoded(
            w[unsafe_offset=Int(column * k + i)]
        )
    c[unsafe_offset=Int(row * n + column)] = sum.cast[DType.bfloat16]()


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def scalar_lds(a: Bytes, w: Bytes, c: Result, n: Int32, k: Int32):
    """A wave has four rows; it moves 16 along K of them and of 16 columns to LDS of its own."""
    var wave, lane = Int32(thread_idx.x) // LANES, Int32(thread_idx.x) % LANES
    var y, x = lane // SIDE, lane % SIDE
    var row = Int32(block_idx.y) * SIDE + wave * WAVE_ROWS + y
    var column = Int32(block_idx.x) * SIDE + x
    var rows = in_shared[DType.float32, 1, WAVES, WAVE_ROWS, SIDE]()
    var columns = in_shared[DType.float32, 1, WAVES, SIDE, SIDE]()
    var sum = Float32(0)

    for step in range(k // SIDE):
        var first = step * SIDE
        rows[Int(wave), Int(y), Int(x)] = decoded(a[unsafe_offset=Int(row * k + first + x)])
        comptime for i in range(SIDE // WAVE_ROWS):
            var at = Int32(i * WAVE_ROWS) + y
            columns[Int(wave), Int(at), Int(x)] = decoded(
                w[unsafe_offset=Int(column * k + first + at)]
            )
        barrier()
        comptime for i in range(SIDE):
            sum += rows[Int(wave), Int(y), i] * columns[Int(wave), i, Int(x)]
        barrier()
    c[unsafe_offset=Int(row * n + column)] = sum.cast[DType.bfloat16]()


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(8 * LANES)),
    `rocdl.waves_per_eu`=SIMDLength(2),
)
def by_quarters[
    format: Format
](
    a_codes: Bytes,
    a_scales: Bytes,
    w_codes: Bytes,
    w_scales: Bytes,
    c: Result,
    m: Int32,
    n: Int32,
    k: Int32,
):
    """Waves 4 .. 7 are a barrier behind waves 0 .. 3: of the two waves of a SIMD one multiplies.

    Halves of both operands arrive one by one, in the order in which they are used, W before A:

        phase       1            2            3            4
        reads       W 0, A 0     W 1          A 1
        fetches     A 1, next    W 0, after   A 0, after   W 1, after
        multiplies  A 0, W 0     A 0, W 1     A 1, W 0     A 1, W 1

    `next` is the stage after this one, in the other half of LDS; `after` the one behind it, where
    this stage was read. K has two stages or more, an even number.
    """
    comptime Tile = Quarters[format]
    var tile = Tile.of(a_codes, a_scales, w_codes, w_scales, m, n, k)
    var lds = allocate_lds[2 * Tile.STAGE_BYTES]()
    var other = lds.unsafe_offset(Tile.STAGE_BYTES)
    var sums = cleared[2 * HALF_ROWS, 2 * HALF_COLUMNS]()
    var stages = k // Int32(STAGE_K[format])
    var is_second = tile.wave >= Int32(Tile.WAVES // 2)

    tile.fetch_columns[0, HALF_LOADS](0, lds)
    tile.fetch_rows[0, HALF_LOADS](0, lds)
    tile.fetch_columns[HALF_LOADS, HALF_LOADS](0, lds)
    tile.fetch_rows[HALF_LOADS, HALF_LOADS](0, lds)
    if is_second:
        workgroup_barrier()
    s_waitcnt[vmcnt=UInt32(2 * HALF_LOADS)]()
    workgroup_barrier()
    tile.fetch_columns[0, HALF_LOADS](1, other)
    tile.fetch_rows[0, HALF_LOADS](1, other)
    tile.fetch_columns[HALF_LOADS, HALF_LOADS](1, other)
    s_waitcnt[vmcnt=UInt32(3 * HALF_LOADS)]()
    workgroup_barrier()
    for pair in range((stages - 2) // 2):
        _step[2](tile, 2 * pair, lds, other, sums)
        _step[2](tile, 2 * pair + 1, other, lds, sums)
    _step[1](tile, stages - 2, lds, other, sums)
    _step[0](tile, stages - 1, other, lds, sums)
    if not is_second:
        workgroup_barrier()

    tile.store(c, sums, n)


@always_inline
def _step[
    format: Format, //, following: Int
](
    tile: Quarters[format],
    stage: Int32,
    here: Lds,
    next: Lds,
    sums: SumTile[2 * HALF_ROWS, 2 * HALF_COLUMNS],
):
    """Multiplies a stage; `following`: How many stages there are to fetch, at most 2."""
    var a = in_registers[DType.uint32, PIECE_WORDS, SLICES, HALF_ROWS]()
    var w = in_registers[DType.uint32, PIECE_WORDS, SLICES, HALF_COLUMNS]()
    var other_w = in_registers[DType.uint32, PIECE_WORDS, SLICES, HALF_COLUMNS]()

    schedule_barrier()
    comptime for slice in range(SLICES):
        tile.read_columns[slice](here, w)
    schedule_barrier()
    comptime for slice in range(SLICES):
        tile.read_rows[slice](here, a)
    schedule_barrier()
    comptime if following > 0:
        tile.fetch_rows[HALF_LOADS, HALF_LOADS](stage + 1, next)
    s_waitcnt[lgkmcnt=UInt32(SLICES * HALF_ROWS)]()  # W 0 is read: the next phase fetches there.
    _multiply[format, 0, 0](sums, a, w)

    comptime for slice in range(SLICES):
        tile.read_columns[slice, HALF_COLUMNS](here, other_w)
    schedule_barrier()
    comptime if following > 1:
        tile.fetch_columns[0, HALF_LOADS](stage + 2, here)
    _multiply[format, 0, HALF_COLUMNS](sums, a, other_w)

    comptime for slice in range(SLICES):
        tile.read_rows[slice, HALF_ROWS](here, a)
    schedule_barrier()
    comptime if following > 1:
        tile.fetch_rows[0, HALF_LOADS](stage + 2, here)
    _multiply[format, HALF_ROWS, 0](sums, a, w)

    comptime if following > 1:
        tile.fetch_columns[HALF_LOADS, HALF_LOADS](stage + 2, here)
        s_waitcnt[vmcnt=UInt32(3 * HALF_LOADS)]()  # The next stage has arrived.
    elif following > 0:
        s_waitcnt[vmcnt=0]()
    _multiply[format, HALF_ROWS, HALF_COLUMNS](sums, a, other_w)


@always_inline
def _multiply[
    format: Format, first_row: Int, first_column: Int
](
    sums: SumTile[2 * HALF_ROWS, 2 * HALF_COLUMNS],
    a: Pieces[SLICES, HALF_ROWS],
    w: Pieces[SLICES, HALF_COLUMNS],
):
    """Changes places with the other waves, multiplies a quarter, and changes back."""
    schedule_barrier()
    workgroup_barrier()
    s_waitcnt[lgkmcnt=0]()
    schedule_barrier()
    set_priority[1]()
    multiply_unscaled[format, first_row, first_column](sums, a, w)
    set_priority[0]()
    schedule_barrier()
    workgroup_barrier()
    schedule_barrier()


comptime Regions[format: Format] = SharedTile[format, 2, 2, 8, 8, True, 2]
"""A tile of 256 x 256: a wave has 8 x 8 tiles, of each half of rows and of columns 4."""
comptime HALF = 4
"""Tiles of a wave in a half, and its loads of one."""


struct Halves(TrivialRegisterPassable):
    """What a lane feeds of an operand for a stage."""

    var first: Pieces[SLICES, HALF]
    var second: Pieces[SLICES, HALF]

    @always_inline
    def __init__(out self):
        """Takes registers for it."""
        self.first = in_registers[DType.uint32, PIECE_WORDS, SLICES, HALF]()
        self.second = in_registers[DType.uint32, PIECE_WORDS, SLICES, HALF]()


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(4 * LANES)),
    `rocdl.waves_per_eu`=SIMDLength(1),
)
def regions[
    format: Format, band_rows: Int = 0
](
    a_codes: Bytes,
    a_scales: Bytes,
    w_codes: Bytes,
    w_scales: Bytes,
    c: Result,
    m: Int32,
    n: Int32,
    k: Int32,
):
    """One wave a SIMD: between products of a quarter it reads a half and fetches another one.

        region      0            1            2            3
        multiplies  A 0, W 0     A 1, W 0     A 0, W 1     A 1, W 1
        reads       A 1          W 1          W 0, next    A 0, next
        fetches     W 0, after   A 0, after   A 1, after   W 1, after

    `next` and `after` as in `by_quarters`: six regions lie between a fetch and its read. K has
    two stages or more, an even number.

    `band_rows`: Of tiles that an XCD goes through column by column, so that they share its L2; with
    none workgroups take tiles in the order of the grid. GROUP_M is another name.
    """
    comptime Tile = Regions[format]
    var row, column = Int32(block_idx.y), Int32(block_idx.x)
    comptime if band_rows > 0:
        var order = XcdBands[band_rows](Int(m) // Tile.ROWS, Int(n) // Tile.COLUMNS)
        var at = order.tile(Int(row) * order.columns + Int(column))
        row, column = readfirstlane(Int32(at.row)), readfirstlane(Int32(at.column))
    var tile = Tile.at(a_codes, a_scales, w_codes, w_scales, m, n, k, row, column, wave_of_thread())
    var lds = allocate_lds[2 * Tile.STAGE_BYTES]()
    var other = lds.unsafe_offset(Tile.STAGE_BYTES)
    var sums = cleared[2 * HALF, 2 * HALF]()
    var a, w = Halves(), Halves()
    var stages = k // Int32(STAGE_K[format])

    comptime for ahead in range(2):
        var stage, place = Int32(ahead), other if ahead == 1 else lds
        tile.fetch_columns[0, HALF](stage, place)
        tile.fetch_rows[0, HALF](stage, place)
        tile.fetch_rows[HALF, HALF](stage, place)
        tile.fetch_columns[HALF, HALF](stage, place)
    _meet[6]()
    comptime for slice in range(SLICES):
        tile.read_columns[slice](lds, w.first)
        tile.read_rows[slice](lds, a.first)
    for pair in range((stages - 2) // 2):
        _four_regions[2](tile, 2 * pair, lds, other, a, w, sums)
        _four_regions[2](tile, 2 * pair + 1, other, lds, a, w, sums)
    _four_regions[1](tile, stages - 2, lds, other, a, w, sums)
    _four_regions[0](tile, stages - 1, other, lds, a, w, sums)
    tile.store(c, sums, n)


@always_inline
def _four_regions[
    format: Format, //, following: Int
](
    tile: Regions[format],
    stage: Int32,
    here: Lds,
    next: Lds,
    a: Halves,
    w: Halves,
    sums: SumTile[2 * HALF, 2 * HALF],
):
    """Multiplies a stage; `following`: How many stages there are to fetch, at most 2."""
    comptime LAST = 1 if following == 0 else 5
    """Halves that were fetched after the one that the first region reads."""
    comptime STEP = 0 if following > 1 else 1
    """How many fewer they are in the next region."""
    keep(sums)
    _meet[LAST]()
    comptime for slice in range(SLICES):
        tile.read_rows[slice, HALF](here, a.second)
    comptime if following > 1:
        tile.fetch_columns[0, HALF](stage + 2, here)
    _interleave[format, 0, 0, following > 1](sums, a.first, w.first)

    _meet[LAST - STEP]()
    comptime for slice in range(SLICES):
        tile.read_columns[slice, HALF](here, w.second)
    comptime if following > 1:
        tile.fetch_rows[0, HALF](stage + 2, here)
    _interleave[format, HALF, 0, following > 1](sums, a.second, w.first)

    _meet[LAST - 2 * STEP]()
    comptime if following > 0:
        comptime for slice in range(SLICES):
            tile.read_columns[slice](next, w.first)
    comptime if following > 1:
        tile.fetch_rows[HALF, HALF](stage + 2, here)
    _interleave[format, 0, HALF, following > 1](sums, a.first, w.second)

    _meet[LAST - 3 * STEP]()
    comptime if following > 0:
        comptime for slice in range(SLICES):
            tile.read_rows[slice](next, a.first)
    comptime if following > 1:
        tile.fetch_columns[HALF, HALF](stage + 2, here)
    _interleave[format, HALF, HALF, following > 1](sums, a.second, w.second)


@always_inline
def _meet[newer: Int]():
    """Waits until all waves have what they read, and the halves that were fetched before the last
    `newer` ones."""
    schedule_barrier()
    s_waitcnt[vmcnt=UInt32(max(newer, 0) * HALF), lgkmcnt=0]()
    workgroup_barrier()
    schedule_barrier()


@always_inline
def _interleave[
    format: Format, first_row: Int, first_column: Int, fetches: Bool
](sums: SumTile[2 * HALF, 2 * HALF], a: Pieces[SLICES, HALF], w: Pieces[SLICES, HALF]):
    """Multiplies a quarter, between a region's reads and loads."""
    comptime READS = SLICES * HALF
    comptime BEFORE = Int32(2 if format == F16 else 1)
    multiply_unscaled[format, first_row, first_column](sums, a, w)
    # The last reads have eight products to arrive under. Those of eight bits take twice as long.
    comptime for i in range(READS):
        schedule_group_barrier(AMDScheduleBarrierMask.MFMA, BEFORE, 0)
        schedule_group_barrier(AMDScheduleBarrierMask.DS_READ, 1, 0)
        comptime if format == F16:
            schedule_group_barrier(AMDScheduleBarrierMask.MFMA, 1, 0)
        comptime if fetches and i % (READS // HALF) == 0:
            schedule_group_barrier(AMDScheduleBarrierMask.SALU, 2, 0)
            schedule_group_barrier(AMDScheduleBarrierMask.ALL_VMEM, 1, 0)
