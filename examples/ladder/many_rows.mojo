"""The ladder for many rows, C = A @ W.T: the same product again and again, each a step faster.

    naive            a wave computes 32 x 32 of C, operands straight from memory
    shared           a stage of both operands goes to LDS, is met at a barrier and multiplied
    double_buffered  loads go straight to LDS, a stage ahead of the products
    ping_pong        eight waves, 128 x 256; half of them multiply while the others move

A, W are MXFP4 with scales as preshuffled words, FP8 or float16 without scales; C is bfloat16.
`shared` and `double_buffered` take all three, and any number of waves and tiles: the rungs are
settings of them. Rows, columns and K fill tiles: the ladder is about speed, the kernels of
`mojo_kernels` take all shapes.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.sync import s_waitcnt, s_waitcnt_barrier, schedule_barrier
from std.utils import StaticTuple

from mojo_kernels.cdna4.chip import LANES, SUMS, TILE
from mojo_kernels.cdna4.instructions.lds import PIECE_WORDS, allocate_lds
from mojo_kernels.cdna4.instructions.matrix import set_priority
from mojo_kernels.numbers.formats import Format
from mojo_kernels.tiles import in_registers
from shared_tile import (
    Bytes,
    GROUPS,
    MXFP4,
    ROW_PIECES,
    Rows,
    SLICES,
    STAGE_K,
    SharedTile,
    cleared,
    keep,
    multiply,
    multiply_unscaled,
    store_tile,
    wave_of_thread,
)


@fieldwise_init
struct Way(Equatable, TrivialRegisterPassable):
    """How a stage goes from memory to LDS."""

    var position: Int

    comptime BYTES = Self(0)
    """A byte of a lane at a time, through a register."""
    comptime PIECES = Self(1)
    """16 bytes of a lane at a time, through registers."""
    comptime STRAIGHT = Self(2)
    """16 bytes of a lane at a time, by loads that write LDS."""


comptime Result = MutPointer[BFloat16, MutAnyOrigin]


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(LANES)))
def naive(
    a_codes: Bytes,
    a_scales: Bytes,
    w_codes: Bytes,
    w_scales: Bytes,
    c: Result,
    m: Int32,
    n: Int32,
    k: Int32,
):
    """One wave, 2 x 2 tiles: every operand comes from memory when it is needed."""
    comptime SMALL_SIDE = 2
    comptime ROWS = Int32(SMALL_SIDE * TILE)
    var lane = Int32(thread_idx.x)
    var first_row, first_column = Int32(block_idx.y) * ROWS, Int32(block_idx.x) * ROWS
    var a_rows = Rows.of(a_codes, a_scales, m, k, first_row)
    var w_rows = Rows.of(w_codes, w_scales, n, k, first_column)

    var a = in_registers[DType.uint32, 4, SLICES, SMALL_SIDE]()
    var w = in_registers[DType.uint32, 4, SLICES, SMALL_SIDE]()
    var a_words = in_registers[DType.uint32, 1, 1]()
    var w_words = in_registers[DType.uint32, 1, 1]()
    var sums = in_registers[DType.float32, SUMS, SMALL_SIDE, SMALL_SIDE]()
    comptime for tile in range(SMALL_SIDE * SMALL_SIDE):
        sums[tile // SMALL_SIDE, tile % SMALL_SIDE] = 0

    for stage in range(k // Int32(STAGE_K[MXFP4])):
        a_words[0] = a_rows.word(0, stage, lane)
        w_words[0] = w_rows.word(0, stage, lane)
        comptime for slice in range(SLICES):
            var piece = Int32(slice * ROW_PIECES // SLICES) + lane // TILE
            comptime for tile in range(SMALL_SIDE):
                var row = Int32(tile * TILE) + lane % TILE
                a[slice, tile] = a_rows.piece(row, stage, piece)
                w[slice, tile] = w_rows.piece(row, stage, piece)
            multiply[slice](sums, a, w, a_words, w_words)

    var row, column = first_row + lane % TILE, first_column + lane // TILE * SUMS
    comptime for m_tile in range(SMALL_SIDE):
        comptime for n_tile in range(SMALL_SIDE):
            store_tile(
                c,
                sums[m_tile, n_tile],
                n,
                row + Int32(m_tile * TILE),
                column + Int32(n_tile * TILE),
            )


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(waves_m * waves_n * LANES))
)
def shared[
    format: Format,
    way: Way,
    is_swizzled: Bool,
    is_shared: Bool = True,
    waves_m: Int = 2,
    waves_n: Int = 2,
    m_tiles: Int = 4,
    n_tiles: Int = 4,
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
    """A stage is moved to LDS, met at a barrier, multiplied, and met again.

    `way`: How it goes to LDS.
    `is_shared`: Whether waves read what others moved; otherwise each has a tile of LDS of its own.
    """
    comptime WAVES = 1 if is_shared else waves_m * waves_n
    comptime Tile = SharedTile[
        format,
        waves_m if is_shared else 1,
        waves_n if is_shared else 1,
        m_tiles,
        n_tiles,
        is_swizzled,
    ]
    var lds = allocate_lds[WAVES * Tile.STAGE_BYTES]()
    var wave, row, column = wave_of_thread(), Int32(block_idx.y), Int32(block_idx.x)
    comptime if not is_shared:
        row = row * Int32(waves_m) + wave // Int32(waves_n)
        column = column * Int32(waves_n) + wave % Int32(waves_n)
        lds = lds.unsafe_offset(Int(wave * Int32(Tile.STAGE_BYTES)))
        wave = 0
    var tile = Tile.at(a_codes, a_scales, w_codes, w_scales, m, n, k, row, column, wave)
    var moved = in_registers[DType.uint32, PIECE_WORDS, Tile.A_LOADS + Tile.W_LOADS]()
    var a_words = in_registers[DType.uint32, 1, GROUPS[m_tiles]]()
    var w_words = in_registers[DType.uint32, 1, GROUPS[n_tiles]]()
    var sums = cleared[m_tiles, n_tiles]()

    for stage in range(k // Int32(STAGE_K[format])):
        keep(sums)
        comptime if way == Way.STRAIGHT:
            schedule_barrier()
            tile.fetch(stage, lds)
            s_waitcnt[vmcnt=0]()
        elif way == Way.BYTES:
            tile.move_bytes(stage, lds)
        else:
            tile.load_codes(stage, moved)
            tile.load_scales(stage, a_words, w_words)
            tile.write_codes(moved, lds)
        barrier()
        comptime if way == Way.STRAIGHT:
            schedule_barrier()
            tile.read_scales(lds, a_words, w_words)
        tile.multiply_stage[m_tiles](lds, sums, a_words, w_words)
        barrier()

    tile.store(c, sums, n)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(waves_m * waves_n * LANES))
)
def double_buffered[
    format: Format,
    waves_m: Int = 2,
    waves_n: Int = 2,
    m_tiles: Int = 4,
    n_tiles: Int = 4,
    part: Int = m_tiles,
    is_swizzled: Bool = True,
    reads_ahead: Bool = False,
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
    """Two stages in LDS: one is multiplied while the next one arrives.

    `part`: Tiles of rows without scales that a wave reads at once.
    `reads_ahead`: Whether a wave reads a stage, which has no scales, as soon as it has multiplied the
    one before it; loads are two stages ahead then.
    """
    comptime Tile = SharedTile[format, waves_m, waves_n, m_tiles, n_tiles, is_swizzled]
    var tile = Tile.of(a_codes, a_scales, w_codes, w_scales, m, n, k)
    var lds = allocate_lds[2 * Tile.STAGE_BYTES]()
    var a_words = in_registers[DType.uint32, 1, GROUPS[m_tiles]]()
    var w_words = in_registers[DType.uint32, 1, GROUPS[n_tiles]]()
    var sums = cleared[m_tiles, n_tiles]()

    tile.fetch(0, lds)
    s_waitcnt[vmcnt=0]()
    s_waitcnt_barrier()
    var stages = k // Int32(STAGE_K[format])
    comptime if reads_ahead:
        var a = in_registers[DType.uint32, PIECE_WORDS, SLICES, m_tiles]()
        var w = in_registers[DType.uint32, PIECE_WORDS, SLICES, n_tiles]()
        tile.fetch(1, lds.unsafe_offset(Tile.STAGE_BYTES))
        comptime for slice in range(SLICES):
            tile.read_codes[slice](lds, a, w)
        for stage in range(stages):
            var here = lds.unsafe_offset(Int(stage % 2) * Tile.STAGE_BYTES)
            var next = lds.unsafe_offset(Int((stage + 1) % 2) * Tile.STAGE_BYTES)
            keep(sums)
            schedule_barrier()
            s_waitcnt[lgkmcnt=0]()
            s_waitcnt_barrier()
            schedule_barrier()
            if stage + 2 < stages:
                tile.fetch(stage + 2, here)
            schedule_barrier()
            multiply_unscaled[format](sums, a, w)
            schedule_barrier()
            if stage + 2 < stages:
                s_waitcnt[vmcnt=UInt32(Tile.LOADS)]()
            else:
                s_waitcnt[vmcnt=0]()
            s_waitcnt_barrier()
            schedule_barrier()
            if stage + 1 < stages:
                comptime for slice in range(SLICES):
                    tile.read_codes[slice](next, a, w)
        tile.store(c, sums, n)
        return
    for stage in range(stages):
        var here = lds.unsafe_offset(Int(stage % 2) * Tile.STAGE_BYTES)
        var next = lds.unsafe_offset(Int((stage + 1) % 2) * Tile.STAGE_BYTES)
        keep(sums)
        schedule_barrier()
        if stage + 1 < stages:
            tile.fetch(stage + 1, next)
        schedule_barrier()
        tile.read_scales(here, a_words, w_words)
        tile.multiply_stage[part](here, sums, a_words, w_words)
        schedule_barrier()
        s_waitcnt[vmcnt=0, lgkmcnt=0]()
        s_waitcnt_barrier()
        schedule_barrier()

    tile.store(c, sums, n)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(8 * LANES)),
    `rocdl.waves_per_eu`=SIMDLength(2),
)
def ping_pong(
    a_codes: Bytes,
    a_scales: Bytes,
    w_codes: Bytes,
    w_scales: Bytes,
    c: Result,
    m: Int32,
    n: Int32,
    k: Int32,
):
    """Two groups of waves take turns: one multiplies, the other reads LDS and starts loads.

    Group 1 is a barrier behind. Three stages in LDS: one is read, one is on its way, one was
    read by the slower group a moment ago.
    """
    comptime Tile = SharedTile[MXFP4, 2, 4, 4, 4, True]
    comptime DEPTH = 3
    var tile = Tile.of(a_codes, a_scales, w_codes, w_scales, m, n, k)
    var is_second = tile.wave >= Int32(Tile.WAVES // 2)
    var lds = allocate_lds[DEPTH * Tile.STAGE_BYTES]()
    var a = in_registers[DType.uint32, PIECE_WORDS, SLICES, 4]()
    var w = in_registers[DType.uint32, PIECE_WORDS, SLICES, 4]()
    var a_words = in_registers[DType.uint32, 1, GROUPS[4]]()
    var w_words = in_registers[DType.uint32, 1, GROUPS[4]]()
    var sums = cleared[4, 4]()

    tile.fetch(0, lds)
    tile.fetch(1, lds.unsafe_offset(Tile.STAGE_BYTES))
    s_waitcnt[vmcnt=UInt32(Tile.LOADS)]()
    s_waitcnt_barrier()
    if is_second:
        s_waitcnt_barrier()
    var here, ahead = Int32(0), Int32(2 * Tile.STAGE_BYTES)
    for stage in range(k // Int32(STAGE_K[MXFP4])):
        # Move.
        var now = lds.unsafe_offset(Int(here))
        tile.read_scales(now, a_words, w_words)
        comptime for slice in range(SLICES):
            tile.read_codes[slice](now, a, w)
        schedule_barrier()
        tile.fetch(stage + 2, lds.unsafe_offset(Int(ahead)))
        s_waitcnt[vmcnt=UInt32(Tile.LOADS), lgkmcnt=0]()
        s_waitcnt_barrier()
        schedule_barrier()
        # Multiply.
        set_priority[1]()
        comptime for slice in range(SLICES):
            multiply[slice](sums, a, w, a_words, w_words)
        set_priority[0]()
        ahead, here = here, _next[DEPTH * Tile.STAGE_BYTES](here, Tile.STAGE_BYTES)
        schedule_barrier()
        s_waitcnt_barrier()
        schedule_barrier()
    if not is_second:
        s_waitcnt_barrier()
    s_waitcnt[vmcnt=0]()

    tile.store(c, sums, n)


@always_inline
def _next[end: Int](place: Int32, size: Int) -> Int32:
    """Returns the place behind another in a ring."""
    var following = place + Int32(size)
    return Int32(0) if following == Int32(end) else following
