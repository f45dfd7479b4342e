"""The product of tiles of rows and the weights of their experts: as `middle`, tile after tile.

A group of threads computes 128 columns, or 64 hidden numbers, of up to 16, 32 or 64 rows that go
to one expert, then those of another tile, as many as there are. Columns of a tile come first, so
that the weights of an expert whose rows make several tiles are still in the cache.

    4 fillers      warps that start the copies of stages: 64 steps of K of tokens and weights
    4 consumers    two take the even steps, two the odd ones; each warp decodes 16 weight rows

Stages go on from one tile to the next: those of the next one are on the way while sums of the last
one meet in shared memory, behind the stages, some tokens at a time.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.compute.mma import wgmma_wait_group_sync
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder
from std.utils import StaticTuple

from ...launch.queue import DevicePointer
from ...simt.arguments import Activations, Result, Weights
from ...simt.routing import ExpertWeights, NO_EXPERT
from ...simt.views import flat_of
from ..instructions.shared_memory import (
    arrive,
    load_word,
    shared_base,
    store_word,
    wait_at,
    wait_phase,
)
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import (
    TokenSums,
    limit_registers,
    lower_word,
    start_step,
    store_sums,
)
from ..layout import BLOCK, K_LANES, TILE_ROWS
from ..middle.kernel import CONSUMER_REGISTERS, FILLER_REGISTERS
from ..middle.result import SUMS_BARRIER
from ..operands.weights import Rows
from ..pipeline.stages import RsRing
from ..shapes import (
    MIDDLE_CONSUMER_WARPS as CONSUMER_WARPS,
    MIDDLE_THREADS as THREADS,
    PARITIES,
    READERS,
    ROW_BYTES,
    RsLayout,
    STEP_BLOCKS,
    expert_layout,
    num_steps_of,
)
from ..staged.stages import Source, fill_stages, flag_of
from ..staged.weights import ROWS, StepWeights, first_row_of
from .groups import Lists, RowTile, padded
from .result import Exactly, Part, Sums, Target, pass_tokens_of, store_rows, store_zeros


@fieldwise_init
struct GatheredRows(DevicePassable, TrivialRegisterPassable):
    """The left side as `prepare_bf16_places` leaves it."""

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
        return "GatheredRows"

    @always_inline
    def any_mark[tokens: Int](self, tile: RowTile) -> Bool:
        """Says, in some lane of a warp, whether a row of a tile has a mark."""
        comptime LOADS = max(tokens // 32, 1)
        var found = SIMD[DType.uint8, LOADS](0)
        comptime for i in range(LOADS):
            var row = min(UInt32(32 * i) + lane_here(), tile.rows - 1)
            found[i] = flat_of(self.marks)[Int(tile.first_place + row)]
        return found.reduce_or() != 0


@always_inline
def fill_tiles[
    layout: RsLayout, //, is_gated: Bool
](
    var ring: RsRing[layout],
    lists: Lists,
    staged: GatheredRows,
    experts: ExpertWeights,
    target: Target,
    num_groups: UInt32,
    half: UInt32,
    k: UInt32,
    filler: UInt32,
):
    """Copies the stages of all tiles of the group of threads; a thread of each filler calls it."""
    var last = (UInt32(experts.columns) - 1) // UInt32(TILE_ROWS)
    # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
    ring.parity = 1
    for index in range(UInt32(block_idx.x), lists.num_tiles * num_groups, UInt32(grid_dim.x)):
        var tile, part = Part.find(lists, UInt32(index), num_groups, target, half)
        if tile.rows == 0:
            break
        if tile.expert == Int32(NO_EXPERT):
            continue
        var w = experts.of(Int(tile.expert))
        var mine = min(part.weight_tile(filler, UInt32(TILE_ROWS), is_gated), last)
        var rows = staged.stages.unsafe_offset(Int(tile.first_place) * ROW_BYTES)
        var stride, bytes = Int(staged.num_places) * ROW_BYTES, padded(tile.rows) * UInt32(
            ROW_BYTES
        )
        var source = Source[layout].of(rows, stride, bytes, w, mine, k, 0, filler)
        fill_stages(ring, source, num_steps_of(k), 0)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def multiply_tiles[
    TOKENS: Int, IS_GATED: Bool
](
    a: Activations,
    lists: Lists,
    staged: GatheredRows,
    experts: ExpertWeights,
    target: Target,
    num_groups: UInt32,
    half: UInt32,
):
    """Computes tiles of rows, each by `num_groups` groups of columns.

    `staged` is what `prepare_bf16_places` made of `a`, which is read again for rows that are marked.
    """
    comptime LAYOUT = expert_layout(TOKENS)
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var ring = RsRing[LAYOUT](base, 0, 0)
    if thread_idx.x == 0:
        ring.init_barriers()
    barrier()
    wait_on_dependent_grids()
    launch_dependent_grids()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var k = UInt32(a.k)
    var num_steps = broadcast(num_steps_of(k))
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            var filler = warp - UInt32(CONSUMER_WARPS)
            fill_tiles[IS_GATED](ring, lists, staged, experts, target, num_groups, half, k, filler)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        var sums = TokenSums[TOKENS](uninitialized=True)
        for index in range(UInt32(block_idx.x), lists.num_tiles * num_groups, UInt32(grid_dim.x)):
            var tile, part = Part.find(lists, UInt32(index), num_groups, target, half)
            if broadcast(tile.rows) == 0:
                break
            var result = target.of(tile, experts)
            if broadcast(tile.expert) == Int32(NO_EXPERT):
                store_zeros[CONSUMER_WARPS](part, result)
                continue
            var is_marked = False
            if not a.is_kept():
                is_marked = staged.any_mark[TOKENS](tile)
            consume(ring, num_steps, k // UInt32(BLOCK), warp, sums)
            ring.advance_by(num_steps)
            var overflow = store_tile[IS_GATED](ring, sums, warp, part, target, result)
            if overflow or any_lane(is_marked):
                keep_branch()
                var w = experts.of(Int(tile.expert))
                var exactly = Exactly(a, w, UInt32(experts.columns))
                var end = part.first_column + target.columns_step()
                for row in range(warp, tile.rows, UInt32(CONSUMER_WARPS)):
                    var place = Int(tile.first_place + UInt32(row))
                    if overflow or any_lane(flat_of(staged.marks)[place] != 0):
                        exactly.store[IS_GATED](
                            lists.source(tile, UInt32(row)),
                            part.half,
                            target.gate(),
                            result,
                            UInt32(row),
                            part.first_column,
                            end,
                        )


@always_inline
def consume[
    layout: RsLayout, tokens: Int, //
](
    var ring: RsRing[layout],
    num_steps: UInt32,
    num_blocks: UInt32,
    warp: UInt32,
    mut sums: TokenSums[tokens],
):
    """Multiplies every other stage of a tile as it fills."""
    sums[0] = 0
    var flag = flag_of(ring.base, warp)
    store_word(flag, 0)
    var is_first_lane = lane_here() == 0
    var step = warp // UInt32(CONSUMER_WARPS // PARITIES)
    if step >= num_steps:
        return
    ring.advance_within(step)
    wait_phase(ring.full(), ring.parity)
    var weights = StepWeights.load(ring.here(), warp, num_blocks - step * UInt32(STEP_BLOCKS))
    var may_need_two = weights.may_need_two()
    # Two steps in turn: registers in flight keep their names.
    var decoded = Array[Rows[ROWS], 2 * STEP_BLOCKS](uninitialized=True)
    comptime for block in range(STEP_BLOCKS):
        decoded[block] = weights.decode[block](may_need_two, flag)
    while step < num_steps:
        comptime for turn in range(2):
            comptime HERE, NEXT = turn * STEP_BLOCKS, (1 - turn) * STEP_BLOCKS
            if step < num_steps:
                start_step(decoded[HERE], decoded[HERE + 1], lower_word(ring.here().base), sums)
                var here = ring
                ring.advance[PARITIES]()
                step += UInt32(PARITIES)
                # Decoded while the tensor cores multiply.
                if step < num_steps:
                    wait_phase(ring.full(), ring.parity)
                    var blocks_left = num_blocks - step * UInt32(STEP_BLOCKS)
                    weights = StepWeights.load(ring.here(), warp, blocks_left)
                    may_need_two = weights.may_need_two()
                    comptime for block in range(STEP_BLOCKS):
                        decoded[NEXT + block] = weights.decode[block](may_need_two, flag)
                wgmma_wait_group_sync[0]()
                if is_first_lane:
                    arrive(here.empty())


@always_inline
def store_tile[
    layout: RsLayout, tokens: Int, //, is_gated: Bool
](
    ring: RsRing[layout],
    sums: TokenSums[tokens],
    warp: UInt32,
    part: Part,
    target: Target,
    result: Result,
) -> Bool:
    """Adds up and stores a tile, some tokens at a time; says whether weights were too large."""
    comptime PASS = pass_tokens_of[tokens]
    var lane = lane_here()
    var row_lane, pair = divmod(lane, UInt32(K_LANES))
    var column = first_row_of(warp) + row_lane
    var both = ring.base + UInt32(layout.space().end())
    var mine = Sums[tokens](both + warp // UInt32(READERS) * UInt32(Sums[tokens].NUM_BYTES))
    var overflow = False
    comptime for first in range(0, tokens, PASS):
        # All warps have stored what met here before, and have multiplied all stages.
        wait_at[32 * CONSUMER_WARPS](SUMS_BARRIER)
        comptime if first == 0:
            overflow = any_lane(load_word(flag_of(ring.base, lane % UInt32(CONSUMER_WARPS))) != 0)
        store_sums[first, PASS](sums, mine.starting_at(Coord(2 * pair, column)))
        wait_at[32 * CONSUMER_WARPS](SUMS_BARRIER)
        store_rows[tokens, is_gated](Sums[tokens](both), UInt32(first), part, target, result)
    return overflow
