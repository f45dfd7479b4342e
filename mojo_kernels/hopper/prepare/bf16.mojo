"""Encoder: rows of A as bfloat16, in the order in which codes of B become operands in registers.

A stage is a tile of rows x 64 steps of K, rows of 128 bytes, stages of a tile one after another,
zeros past the end of K. Part p of row r, sixteen bytes, lies at part p ^ (r % 8). A lane's word of
codes of B has the k of its part:

    part of block        0                        1                        2           3
    k                    0,4 8,12 16,20 24,28     1,5 9,13 17,21 25,29     2,6 ...     3,7 ...

Activations are kept, quantized as they are read, or decoded, each element exact in bfloat16 but
for blocks whose scale is at an end of the range: their rows get a fallback flag, and their elements
of C are computed another way. A CTA takes `CTA_CHUNKS` chunks of eight elements,

    source      of                                         destination       a flag for each
    rows        a row                                      tiles of rows     row and CTA
    places      a tile of an expert's places, gathered     one tile of all   place, if it is set
"""

from layout import Coord, Idx, TileTensor, row_major
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_xor
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import DevicePointer, KernelStruct, Queue, device_pointer
from ...operands import Matrix
from ...problem import Problem
from ...routing.slots import NO_EXPERT
from ...simt.arguments import Activations
from ...simt.host import BFLOAT16, CHUNK
from ...simt.views import NO_END, flat_of, rows_of
from ..host.workspace import (
    CTA_CHUNKS,
    PREPARE_THREADS as THREADS,
    THREAD_CHUNKS,
    bf16_stages_bytes,
    flags_of_row,
)
from ..instructions.global_memory import clear_counters
from ..instructions.packed import Pairs, WORD_PAIRS
from ..instructions.shared_memory import any_thread
from ..instructions.warp import keep_branch
from ..layout import K_LANES
from ..codec import (
    RowPairs,
    load_chunk,
    load_neighbours,
    load_row,
    pairs_of_neighbours,
)
from ..routing import Lists
from ..shapes import LANE_BYTES, PARTS, ROW_BYTES, num_steps_of
from ..gemm_operands import SWIZZLE


@fieldwise_init
struct BF16Stages(KernelStruct):
    """Rows in the workspace: stages, and the fallback flags of each row behind them."""

    comptime Parts = TileTensor[
        DType.uint32,
        type_of(row_major(Coord((1, 1, 1, Idx[WORD_PAIRS])))),
        MutUntrackedOrigin,
    ]
    """[tile of rows, step, part of its rows, pair]."""

    var first: DevicePointer[DType.uint8]
    """The first stage."""
    var flags: DevicePointer[DType.uint8]

    @always_inline
    def stages(self, num_steps: UInt32, tile_rows: UInt32) -> Self.Parts:
        """Views tiles of so many rows."""
        var parts = Coord((NO_END, Int(num_steps), Int(tile_rows) * PARTS, Idx[WORD_PAIRS]))
        return Self.Parts(self.first.unsafe_bitcast[UInt32](), row_major(parts))

    @staticmethod
    def at(workspace: Int, rows: Int, k: Int) -> Self:
        """Finds both in a workspace."""
        return Self(
            device_pointer[DType.uint8](workspace),
            device_pointer[DType.uint8](workspace + bf16_stages_bytes(rows, k)),
        )


@always_inline
def row_flags(flags: DevicePointer[DType.uint8], k: UInt32) -> Matrix[DType.uint8]:
    """Views fallback flags of rows of k numbers, [row, CTA of the row]."""
    return rows_of(flags, Int(flags_of_row(k)))


@always_inline
def in_part_order(pairs: Pairs) -> Pairs:
    """Exchanges pairs among the four lanes of a block: lane p gets pair p of each."""
    var lane = UInt32(thread_idx.x) % UInt32(K_LANES)
    var is_odd = lane % 2 == 1
    var is_upper = lane >= 2
    var first = shuffle_xor(pairs[0] if is_odd else pairs[1], 1)
    var second = shuffle_xor(pairs[2] if is_odd else pairs[3], 1)
    var near = Pairs(
        first if is_odd else pairs[0],
        pairs[1] if is_odd else first,
        second if is_odd else pairs[2],
        pairs[3] if is_odd else second,
    )
    first = shuffle_xor(near[0] if is_upper else near[2], 2)
    second = shuffle_xor(near[1] if is_upper else near[3], 2)
    return Pairs(
        first if is_upper else near[0],
        second if is_upper else near[1],
        near[2] if is_upper else first,
        near[3] if is_upper else second,
    )


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def prepare_bf16_rows(
    a: Activations,
    stages: BF16Stages,
    tile_rows: UInt32,
    counters: DevicePointer[DType.uint32],
    num_counters: UInt32,
):
    """Writes some chunks of a row, and whether they all fit; lets counters become zero.

    The grid is (rows, CTAs of a row).
    """
    launch_dependent_grids()
    wait_on_dependent_grids()
    var row, of_row = UInt32(block_idx.x), UInt32(block_idx.y)
    clear_counters(
        counters,
        num_counters,
        (of_row * UInt32(grid_dim.x) + row) * UInt32(THREADS) + UInt32(thread_idx.x),
        UInt32(grid_dim.x * grid_dim.y) * UInt32(THREADS),
    )
    var k = UInt32(a.k)
    var first = of_row * UInt32(CTA_CHUNKS) + UInt32(thread_idx.x)
    var row_chunks = k // UInt32(CHUNK)
    # Whole quads of lanes are in or out of range; those outside repeat a block.
    var last = row_chunks - UInt32(K_LANES) + first % UInt32(K_LANES)
    var loaded = Array[RowPairs, THREAD_CHUNKS](uninitialized=True)
    if not a.is_encoded() and a.dtype == BFLOAT16:
        var neighbours = Array[Pairs, THREAD_CHUNKS](uninitialized=True)
        comptime for i in range(THREAD_CHUNKS):
            neighbours[i] = load_neighbours(a, row, min(first + UInt32(i * THREADS), last))
        comptime for i in range(THREAD_CHUNKS):
            loaded[i] = pairs_of_neighbours(a, neighbours[i])
    else:
        keep_branch()
        comptime for i in range(THREAD_CHUNKS):
            loaded[i] = load_row(a, row, min(first + UInt32(i * THREADS), last))
    var overflow = False
    var num_steps = num_steps_of(k)
    var to = stages.stages(num_steps, tile_rows)
    var tile, in_tile = divmod(row, tile_rows)
    comptime for i in range(THREAD_CHUNKS):
        var chunk = first + UInt32(i * THREADS)
        var step, part = divmod(chunk, UInt32(PARTS))
        var numbers = in_part_order(loaded[i].pairs)
        overflow |= loaded[i].overflow
        if step < num_steps:
            var at = SWIZZLE(in_tile * UInt32(PARTS) + part)
            to.store[alignment=LANE_BYTES](
                Coord(Int(tile), Int(step), Int(at), 0),
                numbers if chunk < row_chunks else Pairs(0),
            )
    var any_overflow = any_thread[THREADS](overflow)
    if thread_idx.x == 0:
        row_flags(stages.flags, k)[Int(row), Int(of_row)] = UInt8(1) if any_overflow else UInt8(0)


def prepare_bf16(
    problem: Problem,
    tile_rows: Int,
    workspace: Int,
    counters: Int,
    num_counters: Int,
    mut queue: Some[Queue],
) raises -> DevicePointer[DType.uint8]:
    """Launches the kernel for tiles of so many rows; returns where fallback flags will be."""
    var stages = BF16Stages.at(workspace, problem.m, problem.k)
    var row_ctas = Int(flags_of_row(UInt32(problem.k)))
    queue.launch[prepare_bf16_rows](
        Grid(problem.m, row_ctas, threads=THREADS, starts_early=True),
        Activations(problem),
        stages,
        UInt32(tile_rows),
        device_pointer[DType.uint32](counters),
        UInt32(num_counters),
    )
    return stages.flags


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def prepare_bf16_places(
    a: Activations,
    is_aligned: UInt32,
    lists: Lists,
    stages: DevicePointer[DType.uint8],
    flags: DevicePointer[DType.uint8],
    num_places: UInt32,
):
    """Writes some chunks of the rows of a tile.

    The grid is (CTAs of a tile with all its rows, tiles). `is_aligned` says that rows begin at
    multiples of 16 bytes.
    """
    wait_on_dependent_grids()
    launch_dependent_grids()
    var tile = lists.tile(UInt32(block_idx.y))
    var row_parts = num_steps_of(UInt32(a.k)) * UInt32(PARTS)
    var first = UInt32(block_idx.x) * UInt32(CTA_CHUNKS) + UInt32(thread_idx.x)
    var num_parts = tile.rows * row_parts
    if first - UInt32(thread_idx.x) >= num_parts or tile.expert == Int32(NO_EXPERT):
        return
    var row_chunks = UInt32(a.k // CHUNK)
    var words = flat_of(stages.unsafe_bitcast[UInt32]())

    # Lanes past the end repeat the last block, whole blocks at a time.
    comptime for i in range(THREAD_CHUNKS):
        var index = first + UInt32(i * THREADS)
        var last = num_parts - UInt32(K_LANES) + index % UInt32(K_LANES)
        var row, part = divmod(min(index, last), row_parts)
        var chunk = min(part, row_chunks - UInt32(K_LANES) + part % UInt32(K_LANES))
        var loaded = load_chunk(a, is_aligned != 0, lists.source(tile, row), chunk)
        var numbers = in_part_order(loaded.pairs)
        var place = tile.first_place + row
        var step, here = divmod(part, UInt32(PARTS))
        var at = SWIZZLE((place % UInt32(PARTS)) * UInt32(PARTS) + here) % UInt32(PARTS)
        if index < num_parts:
            var byte = (Int(step) * Int(num_places) + Int(place)) * ROW_BYTES
            words.store[alignment=LANE_BYTES](
                Coord((byte + Int(at) * LANE_BYTES) // 4),
                numbers if part < row_chunks else Pairs(0),
            )
            if loaded.overflow:
                keep_branch()
                flat_of(flags)[Int(place)] = 1
