"""Activations as the stages of larger products want them: one copy a stage.

A group takes `GROUP_CHUNKS` chunks of a row: kept, quantized as they are read, or decoded, each
element exact in bfloat16. A group that met an element too large for bfloat16 leaves a mark. A
stage is a tile of tokens x 64 steps of K, rows of 128 bytes, stages of a tile one after another,
zeros past the end of K. Part p of row r, sixteen bytes, lies at part p ^ (r % 8). The numbers of a
block lie as a lane's word of codes becomes operands in registers:

    part of block        0                        1                        2           3
    k                    0,4 8,12 16,20 24,28     1,5 9,13 17,21 25,29     2,6 ...     3,7 ...
"""

from layout import Coord, Idx, TileTensor, row_major
from layout.swizzle import Swizzle
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_xor
from std.bit import log2_floor
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.utils import StaticTuple

from ...launch.grid import Grid, Workspace
from ...launch.queue import DevicePointer, Queue, device_pointer
from ...operands import Matrix
from ...problem import Problem
from ...simt.arguments import Activations
from ...simt.host import BFLOAT16, CHUNK
from ...simt.views import NO_END, rows_of
from ..host.workspace import expanded_bytes, staged_tokens_bytes
from ..instructions.global_memory import clear_counters
from ..instructions.packed import Pairs, WORD_PAIRS
from ..instructions.shared_memory import any_thread
from ..instructions.warp import keep_branch
from ..layout import K_LANES
from ..operands.activations import (
    TokenPairs,
    load_neighbours,
    load_token,
    pairs_of_neighbours,
)
from ..shapes import (
    EXPAND_THREADS as THREADS,
    GROUP_CHUNKS,
    LANE_BYTES,
    PARTS,
    THREAD_CHUNKS,
    marks_of_row,
    num_steps_of,
)

comptime SWIZZLE = Swizzle(log2_floor(PARTS), 0, log2_floor(PARTS))
"""Exchanges the parts of a row by the row's number, as tensor cores expect rows of 128 bytes."""
comptime StageParts = TileTensor[
    DType.uint32,
    type_of(row_major(Coord((1, 1, 1, Idx[WORD_PAIRS])))),
    MutUntrackedOrigin,
]
"""Expanded activations, [tile of tokens, step, part of its rows, pair]."""


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


@fieldwise_init
struct StagedTokens(DevicePassable, TrivialRegisterPassable):
    """Expanded activations in the workspace: stages, and the marks of each row behind them."""

    comptime device_type: AnyType = Self

    var tokens: DevicePointer[DType.uint8]
    var marks: DevicePointer[DType.uint8]

    @always_inline
    def stages(self, num_steps: UInt32, token_tile: UInt32) -> StageParts:
        """Views the tokens of tiles of so many rows."""
        var parts = Coord((NO_END, Int(num_steps), Int(token_tile) * PARTS, Idx[WORD_PAIRS]))
        return StageParts(self.tokens.unsafe_bitcast[UInt32](), row_major(parts))

    @always_inline
    def row_marks(self, k: UInt32) -> Matrix[DType.uint8]:
        """Views the marks, [row, group of the row]."""
        return rows_of(self.marks, Int(marks_of_row(k)))

    @staticmethod
    def at(workspace: Int, rows: Int, k: Int) -> Self:
        """Finds both in a workspace."""
        return Self(
            device_pointer[DType.uint8](workspace),
            device_pointer[DType.uint8](workspace + staged_tokens_bytes(rows, k)),
        )

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "StagedTokens"


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def expand_tokens(
    a: Activations,
    staged: StagedTokens,
    token_tile: UInt32,
    counters: DevicePointer[DType.uint32],
    num_counters: UInt32,
):
    """Writes the bfloat16 numbers of some chunks of a row, and whether they all fit.

    The grid is (rows, marks of a row). It lets counters become zero.
    """
    launch_dependent_grids()
    wait_on_dependent_grids()
    var group = UInt32(block_idx.y) * UInt32(grid_dim.x) + UInt32(block_idx.x)
    clear_counters(
        counters,
        num_counters,
        group * UInt32(THREADS) + UInt32(thread_idx.x),
        UInt32(grid_dim.x * grid_dim.y) * UInt32(THREADS),
    )
    expand_chunks(a, staged, UInt32(block_idx.x), UInt32(block_idx.y), token_tile)


@always_inline
def expand_chunks(
    a: Activations, staged: StagedTokens, row: UInt32, mark: UInt32, token_tile: UInt32
):
    """Writes the chunks of a row that have a mark together; `THREADS` threads call it."""
    var k = UInt32(a.k)
    var first_chunk = mark * UInt32(GROUP_CHUNKS) + UInt32(thread_idx.x)
    var row_chunks = k // UInt32(CHUNK)
    var quad_lane = first_chunk % UInt32(K_LANES)
    var num_steps = num_steps_of(k)

    # Whole quads of lanes are in or out of range; those outside repeat a block.
    var loaded = Array[TokenPairs, THREAD_CHUNKS](uninitialized=True)
    var chunks = SIMD[DType.uint32, THREAD_CHUNKS]()
    comptime for i in range(THREAD_CHUNKS):
        var last = row_chunks - UInt32(K_LANES) + quad_lane
        chunks[i] = min(first_chunk + UInt32(i * THREADS), last)
    if not a.is_encoded() and a.dtype == BFLOAT16:
        var neighbours = Array[Pairs, THREAD_CHUNKS](uninitialized=True)
        comptime for i in range(THREAD_CHUNKS):
            neighbours[i] = load_neighbours(a, row, chunks[i])
        comptime for i in range(THREAD_CHUNKS):
            loaded[i] = pairs_of_neighbours(a, neighbours[i])
    else:
        keep_branch()
        comptime for i in range(THREAD_CHUNKS):
            loaded[i] = load_token(a, row, chunks[i])
    var overflow = False
    var stages = staged.stages(num_steps, token_tile)
    var tile, row_in_tile = divmod(row, token_tile)
    comptime for i in range(THREAD_CHUNKS):
        var step, part = divmod(first_chunk + UInt32(i * THREADS), UInt32(PARTS))
        var numbers = in_part_order(loaded[i].pairs)
        overflow |= loaded[i].overflow
        if step < num_steps:
            var at = SWIZZLE(row_in_tile * UInt32(PARTS) + part)
            stages.store[alignment=LANE_BYTES](
                Coord(Int(tile), Int(step), Int(at), 0),
                numbers if first_chunk + UInt32(i * THREADS) < row_chunks else Pairs(0),
            )
    var any_overflow = any_thread[THREADS](overflow)
    if thread_idx.x == 0:
        staged.row_marks(k)[Int(row), Int(mark)] = UInt8(1) if any_overflow else UInt8(0)


def expand(
    problem: Problem,
    tokens: Int,
    workspace: Int,
    counters: Int,
    num_counters: Int,
    mut queue: Some[Queue],
) raises -> StagedTokens:
    """Launches the kernel for tiles of so many tokens; returns where stages will be."""
    var staged = StagedTokens.at(workspace, problem.m, problem.k)
    queue.launch[expand_tokens](
        Grid(
            problem.m,
            Int(marks_of_row(UInt32(problem.k))),
            threads=THREADS,
            starts_early=True,
        ),
        Activations(problem),
        staged,
        UInt32(tokens),
        device_pointer[DType.uint32](counters),
        UInt32(num_counters),
    )
    return staged


def expand(problem: Problem, tokens: Int, mut queue: Some[Queue]) raises -> StagedTokens:
    """Does so in a workspace that has nothing else."""
    var workspace = queue.workspace(Workspace(0, expanded_bytes(problem.m, problem.k)))
    return expand(problem, tokens, workspace, 0, 0, queue)
