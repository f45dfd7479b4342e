"""The product of a tile of rows and the weights of their expert: as `middle`, but for the tile.

A group of threads computes 128 columns, or 64 hidden numbers, of up to 16, 32, 64 or 128 rows that
go to one expert; its cluster splits K. The grid is (ranks, columns, tiles): tiles of an expert
follow each other, so that its weights are read once, and those behind the last end at once.

    4 fillers      warps that start the copies of stages: 64 steps of K of tokens and weights
    4 consumers    two take the even steps, two the odd ones, see `middle`
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.utils import StaticTuple

from ...launch.queue import DevicePointer, Grid
from ...simt.arguments import Activations, Result, Weights
from ...simt.routing import ExpertWeights, NO_EXPERT
from ...simt.views import flat_of
from ..instructions.shared_memory import (
    arrive_expecting,
    cluster_barrier,
    copy_bulk,
    leave_cluster,
    load_peer_word,
    peer_address,
    shared_base,
    wait_at,
    wait_phase,
)
from ..instructions.warp import any_lane, keep_branch, keep_here
from ..instructions.wgmma import ROW_BYTES, TokenSums, limit_registers
from ..layout import BLOCK, TILE_BYTES, TILE_ROWS
from ..middle.kernel import CONSUMER_REGISTERS, FILLER_REGISTERS, THREADS, consume, shared_bytes_of
from ..middle.result import CONSUMER_WARPS, SUMS_BARRIER, leave_sums
from ..plan import MAX_RANKS
from ..staged.activations import num_steps_of
from ..staged.stages import Pipeline, STEP_BLOCKS, Source
from .groups import Lists, PLACE_MULTIPLE, RowTile, padded
from .result import Exactly, Part, Target, store_rows, store_zeros


@fieldwise_init
struct StagedRows(DevicePassable, TrivialRegisterPassable):
    """The left side as `stage_rows` leaves it."""

    comptime device_type: AnyType = Self

    var stages: DevicePointer[DType.uint8]
    var marks: DevicePointer[DType.uint8]
    """A byte for each place."""
    var num_places: UInt32
    """Places of a stage."""

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "StagedRows"


@fieldwise_init
struct TileSource[tokens: Int](TrivialRegisterPassable):
    """Where a filler copies a tile's stages from; one thread starts all its copies."""

    var weights: Source[Self.tokens]
    """The weights of the filler's tile."""
    var stage: DevicePointer[DType.uint8]
    """The tile's rows in the first step."""
    var stage_bytes: Int
    """From one step to the next."""
    var tile_bytes: UInt32
    """Of the rows that there are, and those that are swizzled with them."""

    @staticmethod
    @always_inline
    def of(
        staged: StagedRows,
        tile: RowTile,
        w: Weights,
        weight_tile: UInt32,
        k: UInt32,
        first_step: UInt32,
        filler: UInt32,
    ) -> Self:
        """Finds what a filler copies from a step on."""
        var row_blocks = k // UInt32(BLOCK)
        var first_block = first_step * UInt32(STEP_BLOCKS)
        var block = Int(weight_tile) * Int(row_blocks) + Int(first_block)
        var stage_bytes = Int(staged.num_places) * ROW_BYTES
        var at = Int(first_step) * stage_bytes + Int(tile.first_place) * ROW_BYTES
        var weights = Source[Self.tokens](
            staged.stages,
            w.codes.unsafe_offset(block * TILE_BYTES),
            w.scales.unsafe_offset(block * TILE_ROWS),
            row_blocks - min(first_block, row_blocks),
            filler,
        )
        return Self(
            weights,
            staged.stages.unsafe_offset(at),
            stage_bytes,
            padded(tile.rows) * UInt32(ROW_BYTES),
        )

    @always_inline
    def fill(self, var pipeline: Pipeline[Self.tokens], num_steps: UInt32):
        """Copies all stages of a share of K."""
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        pipeline.parity = 1
        for step in range(num_steps):
            if step >= UInt32(pipeline.STAGES):
                wait_phase(pipeline.empty(), pipeline.parity)
            self.weights.copy_weights(pipeline, step)
            if self.weights.filler == 0:
                arrive_expecting(pipeline.full(), self.tile_bytes)
                copy_bulk(
                    pipeline.tokens(),
                    self.stage.unsafe_offset(Int(step) * self.stage_bytes),
                    self.tile_bytes,
                    pipeline.full(),
                )
            pipeline.advance()


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def multiply_tiles[
    TOKENS: Int, IS_GATED: Bool
](
    a: Activations,
    lists: Lists,
    staged: StagedRows,
    experts: ExpertWeights,
    target: Target,
    ranks: UInt32,
    half: UInt32,
):
    """Computes some columns of a tile of rows with its cluster.

    `staged` is what `stage_rows` made of `a`, which is read again for rows that are marked.
    """
    wait_on_dependent_grids()
    launch_dependent_grids()
    # Who am I: some columns of a tile, and a share of K.
    var tile = lists.tile(UInt32(block_idx.z))
    var rank = UInt32(block_idx.x)
    var part = Part(rank, ranks, UInt32(block_idx.y) * target.columns_step(), half)
    var result = target.of(tile, experts)
    if tile.rows == 0:
        return
    if tile.expert == Int32(NO_EXPERT):
        return store_zeros(part, result)
    var w = experts.of(Int(tile.expert))
    var k = UInt32(a.k)
    var share = (num_steps_of(k) + ranks - 1) // ranks
    var first_step = min(rank * share, num_steps_of(k))
    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var num_steps = broadcast(min(share, num_steps_of(k) - first_step))
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var pipeline = Pipeline[TOKENS](base, 0, 0)
    if thread_idx.x == 0:
        pipeline.init_barriers()
    barrier()

    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            var filler = warp - UInt32(CONSUMER_WARPS)
            var last = (UInt32(experts.columns) - 1) // UInt32(TILE_ROWS)
            var mine = min(part.weight_tile(filler, UInt32(TILE_ROWS), IS_GATED), last)
            var source = TileSource[TOKENS].of(staged, tile, w, mine, k, first_step, filler)
            source.fill(pipeline, num_steps)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var sums = TokenSums[TOKENS](uninitialized=True)
        var blocks = k // UInt32(BLOCK)
        var num_blocks = blocks - min(first_step * UInt32(STEP_BLOCKS), blocks)
        consume(pipeline, num_steps, num_blocks, warp, sums)
        leave_sums(pipeline, sums, warp)
        if ranks == 1:
            wait_at[32 * CONSUMER_WARPS](SUMS_BARRIER)
        else:
            cluster_barrier()
        comptime for log_ranks in range(log2_floor(MAX_RANKS) + 1):
            if ranks == UInt32(1 << log_ranks):
                store_rows[1 << log_ranks, IS_GATED](pipeline, part, target, result)
        var exactly = Exactly(a, w, UInt32(experts.columns), lists, tile)
        store_exactly[IS_GATED](pipeline, part, target, result, staged, exactly)


@always_inline
def store_exactly[
    tokens: Int, //, is_gated: Bool
](
    pipeline: Pipeline[tokens],
    part: Part,
    target: Target,
    result: Result,
    staged: StagedRows,
    exactly: Exactly,
):
    """Stores this warp's tokens once more where bfloat16 could not hold an operand."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    # A lane asks for one warp's flag of every rank, and for the marks of some rows.
    var flag = UInt32(0)
    for rank in range(part.ranks):
        var at = pipeline.flag(lane % UInt32(CONSUMER_WARPS))
        flag |= load_peer_word(peer_address(at, UInt32(rank)))
    var marks = flat_of(staged.marks)
    var mark = UInt8(0)
    if not exactly.a.is_kept():
        for row in range(lane, exactly.tile.rows, UInt32(32)):
            mark |= marks[Int(exactly.tile.first_place + UInt32(row))]
    var overflow = any_lane(flag != 0)
    if part.ranks > 1:
        leave_cluster()
    if not overflow and not any_lane(mark != 0):
        return
    keep_branch()
    for token in range(
        part.rank + part.ranks * warp, result.rows, part.ranks * UInt32(CONSUMER_WARPS)
    ):
        var place = exactly.tile.first_place + UInt32(token)
        if overflow or any_lane(marks[Int(place)] != 0):
            exactly.store[is_gated](part, target, result, UInt32(token), lane)


def grid[tokens: Int](columns: Int, columns_step: Int, num_tiles: Int, ranks: Int) -> Grid:
    """Returns the grid for a result of so many columns."""
    return Grid(
        ranks,
        (columns + columns_step - 1) // columns_step,
        num_tiles,
        threads=THREADS,
        cluster=ranks,
        shared_bytes=shared_bytes_of[tokens](),
        starts_early=True,
    )
