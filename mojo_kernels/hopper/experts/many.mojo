"""The product of tiles of many rows and the weights of their experts: as `many`, tile after tile.

A group of threads computes 128 columns, or 64 hidden numbers, of up to 128 or 256 rows that go to
one expert. How many tokens its instructions take follows from the rows of the tile:

    4 fillers      warps that start the copies of stages: 64 steps of K of tokens and weights
    2 consumers    each warp decodes 16 weight rows, C^T += weights @ tokens^T

Gated, a warp has the gates and the ups of eight hidden numbers: sums meet in its own registers.

    weight rows     a lane's two                gates of a warp    its ups
    neighbours      gates of 2, or ups of 2     even rows          odd rows, of the same half tile
    halves          a gate, its up              eight rows         eight, half of the weights on

Each warp stores its own sums, while the stages of the next tile fill.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...simt.arguments import Activations, Result
from ...simt.instructions import pick_bytes
from ...simt.routing import ExpertWeights, NO_EXPERT
from ...simt.views import flat_of
from ..instructions.packed import LOW_BYTES
from ..instructions.shared_memory import load_word, shared_base
from ..instructions.warp import any_lane, keep_branch, keep_here
from ..instructions.wgmma import TokenSums, limit_registers
from ..layout import BLOCK, K_LANES
from ..many.kernel import CONSUMER_REGISTERS, FILLER_REGISTERS, consume
from ..many.result import store_tokens, stores_in_halves
from ..pipeline.stages import RsRing, RsStage
from ..shapes import (
    CONSUMER_WARPS,
    HALVES,
    RsLayout,
    STEP_BLOCKS,
    THREADS,
    TILES,
    WARP_ROWS,
    expert_layout,
    num_steps_of,
)
from ..staged.stages import flag_of, room_of
from ..staged.weights import HalfTile, ROWS, StepWeights, WeightReader, first_row_of
from .groups import Lists
from .hidden import WARP_HIDDEN, store_hidden_rows
from .kernel import GatheredRows, fill_tiles
from .result import Exactly, Part, Target, store_zeros

comptime WIDTHS = [32, 64, 128, 192, 256]
"""Tokens that instructions take: of a tile the least that has all of its rows."""


@fieldwise_init
struct GatePairs(WeightReader):
    """Reads eight gates and their ups, or sixteen rows of both by turns."""

    var tile: UInt32
    """The tile of the stage that has a lane's first row."""
    var next_tile: UInt32
    """The one that has its second row."""
    var word: UInt32
    """Which of the lane's words of a tile is that of the first row."""
    var next_word: UInt32
    """The same of the second row."""

    @staticmethod
    @always_inline
    def of(warp: UInt32, are_neighbours: Bool) -> Self:
        """Returns where a warp finds the rows of its eight hidden numbers."""
        if are_neighbours:
            var tile, half = divmod(warp, UInt32(HALVES))
            return Self(tile, tile, UInt32(ROWS) * half, UInt32(ROWS) * half + 1)
        var tile, word = divmod(warp, UInt32(TILES))
        return Self(tile, tile + UInt32(TILES // 2), word, word)

    @always_inline
    def load(self, stage: RsStage[_], num_blocks: UInt32) -> StepWeights:
        var lane = UInt32(thread_idx.x) % 32
        var row_lane = lane // UInt32(K_LANES)
        # Bytes of both words of scales: one for the lower half, one for the upper one.
        var selector = self.word | (UInt32(4) + self.next_word) << 8
        var loaded = StepWeights(0, 0)
        comptime for block in range(STEP_BLOCKS):
            var codes, scales = stage.codes(), stage.scales()
            var first = codes.at(Coord(self.tile, block, lane, self.word))
            var second = codes.at(Coord(self.next_tile, block, lane, self.next_word))
            loaded.words[ROWS * block] = load_word(first)
            loaded.words[ROWS * block + 1] = load_word(second)
            var both = pick_bytes(
                load_word(scales.at(Coord(self.tile, block, row_lane))),
                load_word(scales.at(Coord(self.next_tile, block, row_lane))),
                selector,
            )
            loaded.scales[block] = both & LOW_BYTES
        return loaded.without_end(num_blocks)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def multiply_many_rows[
    CAPACITY: Int, IS_GATED: Bool
](
    a: Activations,
    lists: Lists,
    staged: GatheredRows,
    experts: ExpertWeights,
    target: Target,
    num_groups: UInt32,
    half: UInt32,
):
    """Computes tiles of up to `CAPACITY` rows, each by `num_groups` groups of columns.

    `staged` is what `prepare_bf16_places` made of `a`, which is read again for rows that are marked.
    """
    comptime LAYOUT = expert_layout(CAPACITY)
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
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        if thread_idx.x % 32 == 0:
            var filler = warp - UInt32(CONSUMER_WARPS)
            fill_tiles[IS_GATED](ring, lists, staged, experts, target, num_groups, half, k, filler)
        return
    limit_registers["inc", CONSUMER_REGISTERS]()
    for index in range(UInt32(block_idx.x), lists.num_tiles * num_groups, UInt32(grid_dim.x)):
        var tile, part = Part.find(lists, UInt32(index), num_groups, target, half)
        var rows = broadcast(tile.rows)
        if rows == 0:
            break
        var result = target.of(tile, experts)
        if broadcast(tile.expert) == Int32(NO_EXPERT):
            store_zeros[CONSUMER_WARPS](part, result)
            continue
        comptime for i in range(len(WIDTHS)):
            comptime width = WIDTHS[i]
            comptime fewer = WIDTHS[i - 1] if i > 0 else 0
            comptime if width <= CAPACITY:
                if UInt32(fewer) < rows and rows <= UInt32(width):
                    keep_branch()
                    multiply_rows[width, IS_GATED](ring, k, warp, part, target, result)
        var overflow = any_lane(load_word(flag_of(ring.base, warp)) != 0)
        var is_marked = False
        if not a.is_kept():
            is_marked = any_lane(staged.any_mark[CAPACITY](tile))
        if overflow or is_marked:
            keep_branch()
            var exactly = Exactly(a, experts.of(Int(tile.expert)), UInt32(experts.columns))
            for row in range(rows):
                var place = Int(tile.first_place + UInt32(row))
                if overflow or any_lane(flat_of(staged.marks)[place] != 0):
                    var columns = columns_of[IS_GATED](warp, part)
                    exactly.store[IS_GATED](
                        lists.source(tile, UInt32(row)),
                        part.half,
                        target.gate(),
                        result,
                        UInt32(row),
                        columns[0],
                        columns[1],
                    )


@always_inline
def columns_of[is_gated: Bool](warp: UInt32, part: Part) -> Tuple[UInt32, UInt32]:
    """Returns the first column of the result that is a warp's, and the one behind its last."""
    comptime if is_gated:
        var first = part.first_column + warp * UInt32(WARP_HIDDEN)
        return (first, first + UInt32(WARP_HIDDEN))
    else:
        var first = part.first_column + first_row_of(warp)
        return (first, first + UInt32(WARP_ROWS))


@always_inline
def multiply_rows[
    layout: RsLayout, //, width: Int, is_gated: Bool
](mut ring: RsRing[layout], k: UInt32, warp: UInt32, part: Part, target: Target, result: Result,):
    """Multiplies and stores a tile of up to `width` rows."""
    var sums = TokenSums[width](uninitialized=True)
    var flag, room = flag_of(ring.base, warp), room_of(ring.base, warp)
    var column = columns_of[is_gated](warp, part)[0]
    var num_steps, num_blocks = num_steps_of(k), k // UInt32(BLOCK)
    comptime if is_gated:
        consume(ring, num_steps, num_blocks, GatePairs.of(warp, part.half == 0), flag, sums)
        store_hidden_rows(sums, room, part.half, target, result, column)
    else:
        consume(ring, num_steps, num_blocks, HalfTile(warp), flag, sums)
        if stores_in_halves(result):
            store_tokens[True](sums, room, result, 0, column)
        else:
            keep_branch()
            store_tokens[False](sums, room, result, 0, column)
