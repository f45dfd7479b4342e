"""The ladder for many rows, C = A @ W.T: the same product five times, each a step faster.

    naive            a wave computes 32 x 32 of C, operands straight from memory
    shared           four waves compute 128 x 128; a stage of both operands is shared in LDS
    swizzled         the same, with the pieces of a row exchanged in LDS
    double_buffered  loads go straight to LDS, a stage ahead of the products
    ping_pong        eight waves, 128 x 256; half of them multiply while the others move

A, W are MXFP4, plain [rows, K / 2]; scales are preshuffled words; C is bfloat16. M is a multiple
of 128, N and K of 256: the ladder is about speed, the kernels of `mojo_kernels` take all shapes.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, barrier, block_idx, thread_idx
from max.gpu.sync import s_waitcnt, s_waitcnt_barrier, schedule_barrier
from std.utils import StaticTuple

from mojo_kernels.cdna4.chip import LANES, SUMS, TILE
from mojo_kernels.cdna4.instructions.lds import allocate_lds
from mojo_kernels.cdna4.instructions.matrix import set_priority
from mojo_kernels.tiles import in_registers
from shared_tile import (
    Bytes,
    GROUPS,
    ROW_PIECES,
    Rows,
    SIDE,
    SLICES,
    STAGE_K,
    SharedTile,
    cleared,
    multiply,
    store_tile,
)

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

    for stage in range(k // STAGE_K):
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


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(4 * LANES)))
def shared[
    is_swizzled: Bool
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
    """Four waves share a stage in LDS: fetched, met, multiplied, met again."""
    comptime Tile = SharedTile[2, 2, is_swizzled]
    var tile = Tile.of(a_codes, a_scales, w_codes, w_scales, m, n, k)
    var lds = allocate_lds[Tile.STAGE_BYTES]()
    var moved = in_registers[DType.uint32, 4, Tile.A_LOADS + Tile.W_LOADS]()
    var a = in_registers[DType.uint32, 4, SLICES, SIDE]()
    var w = in_registers[DType.uint32, 4, SLICES, SIDE]()
    var a_words = in_registers[DType.uint32, 1, GROUPS]()
    var w_words = in_registers[DType.uint32, 1, GROUPS]()
    var sums = cleared()

    for stage in range(k // STAGE_K):
        tile.load_codes(stage, moved)
        tile.load_scales(stage, a_words, w_words)
        tile.write_codes(moved, lds)
        barrier()
        comptime for slice in range(SLICES):
            tile.read_codes[slice](lds, a, w)
            multiply[slice](sums, a, w, a_words, w_words)
        barrier()

    tile.store(c, sums, n)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(4 * LANES)))
def double_buffered(
    a_codes: Bytes,
    a_scales: Bytes,
    w_codes: Bytes,
    w_scales: Bytes,
    c: Result,
    m: Int32,
    n: Int32,
    k: Int32,
):
    """Two stages in LDS: one is multiplied while the next one arrives."""
    comptime Tile = SharedTile[2, 2, True]
    var tile = Tile.of(a_codes, a_scales, w_codes, w_scales, m, n, k)
    var lds = allocate_lds[2 * Tile.STAGE_BYTES]()
    var a = in_registers[DType.uint32, 4, SLICES, SIDE]()
    var w = in_registers[DType.uint32, 4, SLICES, SIDE]()
    var a_words = in_registers[DType.uint32, 1, GROUPS]()
    var w_words = in_registers[DType.uint32, 1, GROUPS]()
    var sums = cleared()

    tile.fetch(0, lds)
    s_waitcnt[vmcnt=0]()
    s_waitcnt_barrier()
    for stage in range(k // STAGE_K):
        var here = lds.unsafe_offset(Int(stage % 2) * Tile.STAGE_BYTES)
        var next = lds.unsafe_offset(Int((stage + 1) % 2) * Tile.STAGE_BYTES)
        schedule_barrier()
        tile.fetch(stage + 1, next)  # Beyond K: nobody reads it.
        schedule_barrier()
        tile.read_scales(here, a_words, w_words)
        comptime for slice in range(SLICES):
            tile.read_codes[slice](here, a, w)
            multiply[slice](sums, a, w, a_words, w_words)
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
    comptime Tile = SharedTile[2, 4, True]
    comptime DEPTH = 3
    var tile = Tile.of(a_codes, a_scales, w_codes, w_scales, m, n, k)
    var is_second = tile.wave >= Int32(Tile.WAVES // 2)
    var lds = allocate_lds[DEPTH * Tile.STAGE_BYTES]()
    var a = in_registers[DType.uint32, 4, SLICES, SIDE]()
    var w = in_registers[DType.uint32, 4, SLICES, SIDE]()
    var a_words = in_registers[DType.uint32, 1, GROUPS]()
    var w_words = in_registers[DType.uint32, 1, GROUPS]()
    var sums = cleared()

    tile.fetch(0, lds)
    tile.fetch(1, lds.unsafe_offset(Tile.STAGE_BYTES))
    s_waitcnt[vmcnt=UInt32(Tile.LOADS)]()
    s_waitcnt_barrier()
    if is_second:
        s_waitcnt_barrier()
    var here, ahead = Int32(0), Int32(2 * Tile.STAGE_BYTES)
    for stage in range(k // STAGE_K):
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
