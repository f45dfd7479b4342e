"""Operand preparation: one kernel of source x encoder x destination.

    source          rows of A one after the other, or places of experts that a list gives rows to:
                    floats that are quantized on load, or codes; beside them preshuffled rows of B
    destination        A as             B as          in
    PreparedRows       E5M2             E5M2          stages of tiles of rows for RS main loops, or
                       E4M3             E4M3, E5M2    all rows for tensor maps; all places
                       -                bfloat16      all rows for tensor maps
    FloatScaledRows    codes, scales    -             plain rows

A CTA takes some rows of A, or a part of a tile of B. Those of B come first: nobody makes weights
before, so that they wait for other kernels when they have read them. bfloat16 rows of A, which need
nothing of a whole row, have a kernel of their own, see `bf16`.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import DevicePointer, KernelStruct, Queue, device_pointer
from ...problem import Problem
from ...simt.arguments import Activations, Weights
from ..host.workspace import (
    MAX_K,
    PREPARE_THREADS as THREADS,
    PREPARE_WARPS as WARPS,
    RESIDENT_CTAS,
)
from ..instructions.global_memory import clear_counters
from ..instructions.shared_memory import any_thread
from ..layout import TILE_ROWS
from .source import LaneOfRow, SourceRows

comptime ANY_CHUNKS = 0
"""Stands for the chunks of a lane, where encoders take any."""
comptime ROWS_BYTES = 8 * WARPS
"""Shared memory of a CTA for rows of A: two words a warp."""


@fieldwise_init
struct TilesOfB(KernelStruct):
    """Tiles of 32 rows of B, and the CTAs that share each."""

    var w: Weights
    var tile_ctas: UInt32
    var num_ctas: UInt32
    """The CTAs of all tiles."""

    @staticmethod
    def of(problem: Problem, tile_ctas: Int) -> Self:
        """Returns those of a product."""
        var num_ctas = ceildiv(problem.n, TILE_ROWS) * tile_ctas
        return Self(Weights(problem), UInt32(tile_ctas), UInt32(num_ctas))

    @staticmethod
    def none() -> Self:
        """Returns none, for kernels of rows of A alone."""
        return Self(
            Weights(device_pointer[DType.uint8](0), device_pointer[DType.uint8](0), 0), 1, 0
        )


trait PreparedOperands(KernelStruct):
    """Where prepared rows go, and as what."""

    comptime HAS_A: Bool
    comptime HAS_B: Bool
    comptime CLEARS_COUNTERS: Bool
    """Whether counters of stream-K become zero."""
    comptime CHUNK_COUNTS: List[Int]
    """Chunks of a lane that the kernel is compiled for, or `ANY_CHUNKS`."""
    comptime SHARED_BYTES: Int
    """Shared memory of a CTA."""

    def encode[CHUNKS: Int, is_gathered: Bool](self, a: Activations, lane: LaneOfRow):
        """Encodes this thread's row of A; all threads of a CTA call it."""
        ...

    @always_inline
    def prepare_tile(self, b: TilesOfB, k: UInt32, tile: UInt32, cta: UInt32):
        """Prepares a tile of B, if there are any, together with the other CTAs that share it."""
        pass


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_CTAS),
)
def prepare_operands[
    To: PreparedOperands, is_gathered: Bool, CHUNKS: Int
](
    a: Activations,
    b: TilesOfB,
    to: To,
    rows: SourceRows[is_gathered],
    counters: DevicePointer[DType.uint32],
    num_counters: UInt32,
):
    """Encodes rows of A, a lane `CHUNKS` chunks of one, or prepares a part of a tile of B.

    CTAs of A let counters become zero.
    """
    launch_dependent_grids()
    var cta = UInt32(block_idx.x)
    comptime if To.HAS_B and not is_gathered:
        if not To.HAS_A or cta < b.num_ctas:
            var tile, of_tile = divmod(cta, b.tile_ctas)
            return to.prepare_tile(b, UInt32(a.k), tile, of_tile)
        cta -= b.num_ctas
    wait_on_dependent_grids()
    comptime if To.CLEARS_COUNTERS and not is_gathered:
        clear_counters(
            counters,
            num_counters,
            cta * UInt32(THREADS) + UInt32(thread_idx.x),
            (UInt32(grid_dim.x) - b.num_ctas) * UInt32(THREADS),
        )
    var lane = rows.lane(cta)
    comptime if is_gathered:
        if not any_thread[THREADS](lane.is_there):
            return
    to.encode[CHUNKS, is_gathered](a, lane)


def launch_prepare[
    To: PreparedOperands, is_gathered: Bool, //
](
    a: Activations,
    b: TilesOfB,
    to: To,
    rows: SourceRows[is_gathered],
    mut queue: Some[Queue],
    counters: DevicePointer[DType.uint32] = device_pointer[DType.uint32](0),
    num_counters: Int = 0,
) raises:
    """Launches the kernel that is compiled for the chunks of a lane, or for a few more."""
    var grid = Grid(
        Int(b.num_ctas) + (rows.num_ctas() if To.HAS_A else 0),
        threads=THREADS,
        shared_bytes=ROWS_BYTES if is_gathered else To.SHARED_BYTES,
        starts_early=True,
    )
    comptime for known in To.CHUNK_COUNTS:
        if known == ANY_CHUNKS or rows.chunks(a.k) <= known:
            return queue.launch[prepare_operands[To, is_gathered, known]](
                grid, a, b, to, rows, counters, UInt32(num_counters)
            )
    raise Error(String("k: got ", a.k, ", expected at most ", materialize[MAX_K]()))
