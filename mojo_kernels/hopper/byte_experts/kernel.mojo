"""The product of tiles of rows and the weights of their experts, bytes by bytes: as `direct`.

A group of threads computes 128 columns, or 64 hidden numbers, of up to 128 rows that go to one expert,
then those of another tile, as many as there are. Columns of a tile come first, so that the weights of
an expert whose rows make several tiles are still in the cache.

    4 fillers      three warps copy codes and scales, every third stage each; of the last one a thread
                   copies tokens
    2 consumers    warp groups, 64 weight rows each: instructions take the least of 32, 64 or 128
                   tokens that has all rows of the tile

Stages go on from one tile to the next: those of the next one fill while sums are stored. What is marked
is computed once more in the end, by `experts.result.Exactly`.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast, vote
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...simt.arguments import Activations
from ...simt.routing import ExpertWeights, NO_EXPERT
from ..dense.marks import LANES, wait_for_group
from ..dense.result import (
    LaneFactors,
    RowPair,
    scale_sums,
)
from ..direct.kernel import CONSUMER_REGISTERS, FILLER_REGISTERS
from ..direct.operands import DirectOperands
from ..direct.stages import DirectStages, WEIGHT_FILLERS, WeightTiles
from ..direct.turns import begin_turns, end_turns
from ..direct.walk import multiply_steps
from ..direct.weights import LanePlaces
from ..experts.groups import Lists, RowTile, padded
from ..experts.result import Exactly, Part, Target, store_zeros
from ..instructions.shared_memory import arrive_expecting, copy_bulk, shared_base, wait_phase
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import TileSums, limit_registers
from ..layout import BLOCK, TILE_ROWS
from ..shapes import (
    CONSUMER_WARPS,
    EXPERT_CAPACITY as CAPACITY,
    FACTOR_BYTES,
    ROW_BYTES,
    THREADS,
    TILES,
    WARPS,
)
from .columns import GatePlaces, Gating, LaneRows, group_numbers
from .result import Room, store_tile

comptime WIDTHS = [32, 64, CAPACITY]
"""Tokens that instructions take."""
comptime Stages[Operands: DirectOperands] = DirectStages[
    CAPACITY, Operands.CODE_BITS, Operands.SCALES_STAGES
]
"""The stages of a group."""


@fieldwise_init
struct Tiles[gating: Gating](TrivialRegisterPassable):
    """The tiles that a group of threads computes, as all of its warps find them."""

    var lists: Lists
    var experts: ExpertWeights
    var target: Target
    var num_groups: UInt32
    """Groups of columns of a tile."""
    var half: UInt32
    """Columns of the weights from a gate to its up; 0 for neighbours, and for no gate."""

    @always_inline
    def find(self, index: UInt32) -> Tuple[RowTile, Part]:
        """Returns a tile, and the columns of it."""
        return Part.find(self.lists, index, self.num_groups, self.target, self.half)

    @always_inline
    def num_parts(self) -> UInt32:
        """Returns the parts of all tiles."""
        return self.lists.num_tiles * self.num_groups

    @always_inline
    def last_tile(self) -> UInt32:
        """Returns the last tile of an expert's weight rows."""
        return (UInt32(self.experts.columns) - 1) // UInt32(TILE_ROWS)

    @always_inline
    def weights(self, part: Part) -> WeightTiles:
        """Returns the tiles of weight rows of a part."""
        comptime STEP = 2 if Self.gating == Gating.NEIGHBOURS else 1
        var first = part.first_column * UInt32(STEP) // UInt32(TILE_ROWS)
        var half = UInt32(TILES // 2)
        comptime if Self.gating == Gating.HALVES:
            half = part.half // UInt32(TILE_ROWS)
        return WeightTiles(first, self.last_tile() - first, half)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(1),
)
def multiply_bytes[
    Operands: DirectOperands, GATING: Int
](
    operands: Operands,
    a: Activations,
    lists: Lists,
    experts: ExpertWeights,
    target: Target,
    num_groups: UInt32,
    half: UInt32,
):
    """Computes tiles of rows, each by `num_groups` groups of columns.

    `operands` are what `prepare` made of `a`, and the shared exponents of weights, each expert's in whole
    tiles; `a` is read again for what is marked.
    """
    # Kept, or the compiler finds out anew in every step where shared memory is.
    var base = keep_here(SIMD[DType.uint32, 1](shared_base()))[0]
    var stages = Stages[Operands](base, 0, 0)
    if thread_idx.x == 0:
        stages.init_barriers()
    barrier()
    wait_on_dependent_grids()
    launch_dependent_grids()

    # Broadcast, so that the compiler knows that whole warps take every branch together.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var tiles = Tiles[Gating(GATING)](lists, experts, target, num_groups, half)
    if warp >= UInt32(CONSUMER_WARPS):
        limit_registers["dec", FILLER_REGISTERS]()
        # Barriers of empty stages begin a phase ahead: the first round waits for nobody.
        stages.parity = 1
        var filler = warp - UInt32(CONSUMER_WARPS)
        if filler < UInt32(WEIGHT_FILLERS):
            copy_weights(stages, filler, tiles, operands.num_steps(), UInt32(a.k))
        elif lane_here() == 0:
            copy_tokens(stages, tiles, operands)
    else:
        limit_registers["inc", CONSUMER_REGISTERS]()
        consume(stages, tiles, operands, a, warp)


@always_inline
def consume[
    Operands: DirectOperands, //
](var stages: Stages[Operands], tiles: Tiles[_], operands: Operands, a: Activations, warp: UInt32,):
    """Multiplies and stores all tiles; consumers call it."""
    var group = warp // UInt32(WARPS)
    comptime if Operands.SCALES_STAGES:
        begin_turns(group)
    for index in range(UInt32(block_idx.x), tiles.num_parts(), UInt32(grid_dim.x)):
        var found, part = tiles.find(UInt32(index))
        var tile = found.of_warp()
        if tile.rows == 0:
            break
        if tile.expert == Int32(NO_EXPERT):
            store_zeros[CONSUMER_WARPS](part, tiles.target.of(tile, tiles.experts))
            continue
        comptime for i in range(len(WIDTHS)):
            comptime width = WIDTHS[i]
            comptime fewer = WIDTHS[i - 1] if i > 0 else 0
            if UInt32(fewer) < tile.rows and tile.rows <= UInt32(width):
                keep_branch()
                multiply_tile[width](stages, tiles, operands, a, warp, tile, part)
    comptime if Operands.SCALES_STAGES:
        end_turns(group)


@always_inline
def copy_weights(
    var stages: DirectStages[...], filler: UInt32, tiles: Tiles[_], num_steps: UInt32, k: UInt32
):
    """Copies a filler's weights of all stages; a warp calls it."""
    var until = stages.begin_at(filler)
    for index in range(UInt32(block_idx.x), tiles.num_parts(), UInt32(grid_dim.x)):
        var found, part = tiles.find(UInt32(index))
        var tile = found.of_warp()
        if tile.rows == 0:
            break
        if tile.expert == Int32(NO_EXPERT):
            continue
        stages.copy_tile(
            until,
            tiles.experts.of(Int(tile.expert)),
            tiles.weights(part),
            k // UInt32(BLOCK),
            0,
            num_steps,
        )


@always_inline
def copy_tokens[
    Operands: DirectOperands, //
](var stages: DirectStages[...], tiles: Tiles[_], operands: Operands):
    """Copies the tokens of all stages, and their factors; one thread calls it."""
    comptime OF_FACTORS = FACTOR_BYTES if Operands.SCALES_STAGES else 0
    var staged = operands.tokens()
    for index in range(UInt32(block_idx.x), tiles.num_parts(), UInt32(grid_dim.x)):
        var tile = tiles.find(UInt32(index))[0]
        if tile.rows == 0:
            break
        if tile.expert == Int32(NO_EXPERT):
            continue
        var rows = padded(tile.rows)
        var source = staged.part(tile.first_place, 0, 0)
        for step in range(staged.num_steps):
            wait_phase(stages.empty(), stages.parity)
            arrive_expecting(stages.full(), rows * UInt32(ROW_BYTES + OF_FACTORS))
            copy_bulk(stages.tokens_at(), source, rows * UInt32(ROW_BYTES), stages.full())
            comptime if Operands.SCALES_STAGES:
                copy_bulk(
                    stages.factors_at(),
                    operands.factors_of(tile.first_place, UInt32(step)).unsafe_bitcast[UInt8](),
                    rows * UInt32(OF_FACTORS),
                    stages.full(),
                )
            source = source.unsafe_offset(Int(staged.stage_bytes))
            stages.advance()


@always_inline
def multiply_tile[
    Operands: DirectOperands, gating: Gating, //, width: Int
](
    mut stages: Stages[Operands],
    tiles: Tiles[gating],
    operands: Operands,
    a: Activations,
    warp: UInt32,
    tile: RowTile,
    part: Part,
):
    """Multiplies and stores a tile of up to `width` rows; consumers call it."""
    var group = warp // UInt32(WARPS)
    var result = tiles.target.of(tile, tiles.experts)
    var expert_rows = (tiles.last_tile() + 1) * UInt32(TILE_ROWS)
    var first_row = UInt32(tile.expert) * expert_rows
    var mine = LaneRows.of[gating](part, warp)
    var there = mine.within(expert_rows - 1)
    var first, second = first_row + there.first, first_row + there.second
    var of_lane = operands.rows_at(first, second, there.scale_place)
    var factors = LaneFactors[width](RowPair(), SIMD[DType.float32, width // 32]())
    factors.of_weights = {operands.of_weight(Int(first)), operands.of_weight(Int(second))}
    var is_marked = False
    comptime for i in range(width // LANES):
        var row = tile.first_place + min(UInt32(LANES * i) + lane_here(), tile.rows - 1)
        factors.of_tokens[i] = operands.of_token(Int(row))
        is_marked |= operands.mark_of_token(row)
    # Warps of a group ask for the same rows, so that they agree.
    var marked_weights = SIMD[DType.bool, 2](fill=False)
    var weights = tiles.weights(part)
    comptime for i in range(2):
        var which = UInt32(i * TILES // 2) + group
        comptime if gating != Gating.HALVES:
            which = group * UInt32(TILES // 2) + UInt32(i)
        var row = (weights.first + weights.behind(which)) * UInt32(TILE_ROWS)
        marked_weights[i] = operands.mark_of_weights(first_row + row)

    # Of the widest tiles sums leave no registers to look ahead.
    comptime LOOKS_AHEAD = width < CAPACITY
    var partial = TileSums[width](fill=0)
    var sums = TileSums[width](fill=0)
    comptime if gating == Gating.HALVES:
        var places = GatePlaces.of_warp(stages, warp)
        multiply_steps[Operands, LOOKS_AHEAD](
            of_lane, places, group, stages, partial, sums, 0, operands.num_steps()
        )
    else:
        var places = LanePlaces.of_warp(stages, warp)
        multiply_steps[Operands, LOOKS_AHEAD](
            of_lane, places, group, stages, partial, sums, 0, operands.num_steps()
        )
    scale_sums(sums, operands, factors, stages.room(warp))
    var room = Room(stages.room(warp).base)
    store_tile[gating](sums, room, mine, group, part, tiles.target, result)
    if any_lane(is_marked or marked_weights.reduce_or()):
        keep_branch()
        # The sums that other warps stored before are not to overtake these.
        wait_for_group(group)
        comptime COUNT = group_numbers[gating]
        var begin = part.first_column + group * UInt32(COUNT)
        var exactly = Exactly(a, tiles.experts.of(Int(tile.expert)), UInt32(tiles.experts.columns))
        var marks = marked_columns[gating](
            {vote[DType.uint32](marked_weights[0]), vote[DType.uint32](marked_weights[1])}
        )
        for row in range(warp % UInt32(WARPS), tile.rows, UInt32(WARPS)):
            var all = any_lane(operands.mark_of_token(tile.first_place + UInt32(row)))
            for column in range(UInt32(COUNT)):
                var of_tile = marks[0] if column < UInt32(TILE_ROWS) else marks[1]
                var is_there = begin + column < result.columns
                if is_there and (all or of_tile >> (column % UInt32(TILE_ROWS)) & 1 != 0):
                    exactly.store[gating != Gating.NONE](
                        tiles.lists.source(tile, UInt32(row)),
                        part.half,
                        tiles.target.gate(),
                        result,
                        UInt32(row),
                        begin + column,
                        begin + column + 1,
                    )


@always_inline
def marked_columns[gating: Gating](of_rows: SIMD[DType.uint32, 2]) -> type_of(of_rows):
    """Returns a bit for each of a warp group's numbers, of bits of the rows of two tiles."""
    comptime if gating == Gating.NONE:
        return of_rows
    elif gating == Gating.HALVES:
        return {of_rows[0] | of_rows[1], 0}
    else:
        var found = UInt32(0)
        comptime for tile in range(2):
            for pair in range(UInt32(TILE_ROWS // 2)):
                if of_rows[tile] >> (2 * pair) & 3 != 0:
                    found |= UInt32(1) << (UInt32(tile * TILE_ROWS // 2) + pair)
        return {found, 0}
