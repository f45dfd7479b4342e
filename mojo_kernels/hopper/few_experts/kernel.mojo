"""Few rows of experts: every warp streams weights through its registers, tile after tile.

An item is a tile of up to 8 * TOKEN_TILES rows of one expert and 32 * ROW_WARPS rows of its weights.
Every group takes as many items in a row as all others, those of a tile of rows first:

    lay out     which rows go to which expert; every group for itself
    stage       the rows of a tile, for all its items
    multiply    eight warps a tile of weights, every eighth block each; loads of the next item
                are on the way before this one ends
    add up      some warps, while the others go on with the next item

Weights are the left operand of the instruction, rows the right one, as in `few`.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...simt.arguments import Activations
from ...simt.routing import ExpertWeights, NO_EXPERT
from ...tiles import in_registers
from ..experts.groups import RowTile
from ..experts.result import Exactly, Target
from ..few.activations import Fragments
from ..few.kernel import add_block
from ..few.result import HALVES, WarpSums, store_sums
from ..instructions.shared_memory import load_word, shared_base, store_word
from ..instructions.warp import FRAGMENT_SUMS, any_lane, keep_branch, keep_here, lane_here
from ..layout import BLOCK, TILE_ROWS
from ..operands.weights import (
    any_overflows,
    decode_rows,
    decode_rows_of_any,
    may_need_two_factors,
)
from ..shapes import ItemShape, K_WARPS, MAX_TOKEN_TILES
from .deal import Deal
from .result import Item, Totals
from .room import AHEAD, Room
from .rows import Stage
from .weights import Place, WeightRing


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(SHAPE.threads())),
    `nvvm.minctasm`=SIMDLength(SHAPE.min_groups()),
)
def multiply_few_rows[
    SHAPE: ItemShape
](
    a: Activations,
    is_aligned: UInt32,
    deal: Deal,
    experts: ExpertWeights,
    target: Target,
    half: UInt32,
    num_parts: UInt32,
    is_early: UInt32,
):
    """Computes all rows, each tile of them in `num_parts` items.

    `half` are the columns of the weights from a gate to its up; 0 for neighbours, and for no gate.
    `is_early` says that only the left side comes from the kernel before, nothing of the deal.
    """
    comptime ROWS = SHAPE.rows()
    comptime WARPS = SHAPE.warps()

    # Who am I: the tile of an item's weights and the blocks of K that this warp multiplies.
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var row_warp, k_warp = divmod(warp, UInt32(K_WARPS))
    var k_blocks = UInt32(a.k) // UInt32(BLOCK)
    var room = deal.room(keep_here(SIMD[DType.uint32, 1](shared_base()))[0], k_blocks)
    var walk = Walk[SHAPE](experts, k_blocks, k_warp, row_warp, half)
    if thread_idx.x == 0:
        store_word(room.overflow(), 0)
    if is_early == 0:
        wait_on_dependent_grids()
        launch_dependent_grids()

    # Which items: as many as others have.
    var num_items = deal.lay_out[WARPS, ROWS](room) * num_parts
    var share, more = divmod(num_items, UInt32(grid_dim.x))
    var items = Items(num_parts, share, more)
    var item, end = broadcast(items.first()), broadcast(items.end())
    if item == end:
        if is_early != 0:
            wait_on_dependent_grids()
        return
    var tile, part = divmod(item, num_parts)
    var first = deal.find[ROWS](room, tile, lane_here()).expert
    var ring = WeightRing(experts, walk.place(first, part), walk.blocks(first))
    if is_early != 0:
        wait_on_dependent_grids()
        launch_dependent_grids()

    var sums = in_registers[DType.float32, FRAGMENT_SUMS, SHAPE.token_tiles, HALVES]()
    var is_staged = False
    while True:
        if not is_staged:
            stage[SHAPE](a, is_aligned != 0, deal, room, tile)
            is_staged = True
        # What comes next is loaded from here on.
        var here = load_word(room.expert())
        var next, next_part, next_blocks = here, part + 1, UInt32(0)
        if next_part == num_parts:
            next_part = 0
            tile += 1
            is_staged = False
        if item + 1 < end:
            if not is_staged:
                next = deal.find[ROWS](room, tile, lane_here()).expert
            next_blocks = walk.blocks(next)
        ring.begin(walk.place(next, next_part), next_blocks)

        comptime BATCHES = SHAPE.batches()
        var first_turn = item * UInt32(BATCHES)
        var item_here = item_of[SHAPE](room, experts, target, part, half, first_turn)
        item_here.prefetch_bias(item_here.turn(warp), lane_here())
        comptime for token_tile in range(SHAPE.token_tiles):
            comptime for of_half in range(HALVES):
                sums[token_tile, of_half] = 0
        var tokens = room.fragments[SHAPE.token_tiles]().starting_at(
            Coord(k_warp, 0, lane_here(), 0)
        )
        var blocks = walk.blocks(here)
        var all_scales = multiply(ring, blocks, tokens, sums)
        if any_lane(may_need_two_factors(all_scales)):
            keep_branch()
            if multiply_any(experts, walk.place(here, part), blocks, tokens, sums):
                store_word(room.overflow(), 1)

        # Add up: what was stored before the last turn has been read at this barrier. Of several turns
        # each warp has one, and stores behind the last: no other turn waits for that.
        var totals = Totals(0)
        var of_warp = first_turn
        comptime for i in range(BATCHES):
            comptime FIRST = i * SHAPE.batch()
            var turn = first_turn + UInt32(i)
            comptime if SHAPE.rooms() == 1:
                barrier()
            store_sums[FIRST](sums, room.partials[SHAPE](turn), warp, lane_here())
            barrier()
            comptime if BATCHES == 1:
                add_up[SHAPE](room, experts, target, part, half, turn)
            else:
                comptime assert BATCHES * Item[SHAPE].WARPS == WARPS, "a turn of each warp"
                var here = item_of[SHAPE](room, experts, target, part, half, turn)
                if here.turn(warp) < UInt32(here.WARPS):
                    totals = here.add_up(here.turn(warp), lane_here())
                    of_warp = turn
        comptime if BATCHES > 1:
            var mine = item_of[SHAPE](room, experts, target, part, half, of_warp)
            mine.store(mine.turn(warp), lane_here(), totals)
        item += 1
        if item == end:
            break
        part = next_part
    if load_word(room.overflow()) != 0:
        compute_again[SHAPE](a, is_aligned != 0, deal, walk, room, target, items)


@fieldwise_init
struct Items(TrivialRegisterPassable):
    """How all items are shared by the groups."""

    var of_tile: UInt32
    """Items of a tile of rows."""
    var share: UInt32
    """Items of every group."""
    var more: UInt32
    """Groups that have one more."""

    @always_inline
    def first(self) -> UInt32:
        """Returns this group's first item."""
        var group = UInt32(block_idx.x)
        return group * self.share + min(group, self.more)

    @always_inline
    def end(self) -> UInt32:
        """Returns the item behind its last one."""
        return self.first() + self.share + UInt32(1 if UInt32(block_idx.x) < self.more else 0)


@fieldwise_init
struct Walk[SHAPE: ItemShape](TrivialRegisterPassable):
    """Where a warp finds the weights of its items."""

    var experts: ExpertWeights
    var k_blocks: UInt32
    var k_warp: UInt32
    var row_warp: UInt32
    var half: UInt32

    @always_inline
    def blocks(self, expert: UInt32) -> UInt32:
        """Returns the warp's blocks of an item: none for rows of no expert."""
        var blocks = (self.k_blocks + UInt32(K_WARPS - 1) - self.k_warp) // UInt32(K_WARPS)
        return blocks if expert < UInt32(self.experts.count) else UInt32(0)

    @always_inline
    def place(self, expert: UInt32, part: UInt32) -> Place:
        """Returns where the warp's first block of an item is."""
        var tile = part * UInt32(Self.SHAPE.row_warps) + self.row_warp
        comptime if Self.SHAPE.is_gated:
            if self.half != 0:
                tile = part + self.row_warp * (self.half // UInt32(TILE_ROWS))
        tile = min(tile, (UInt32(self.experts.columns) - 1) // UInt32(TILE_ROWS))
        return Place.of(self.experts, expert, tile * self.k_blocks + self.k_warp, lane_here())


@always_inline
def add_up[
    SHAPE: ItemShape
](room: Room, experts: ExpertWeights, target: Target, part: UInt32, half: UInt32, number: UInt32):
    """Stores an item whose sums are all there; all warps call it, some of which are needed."""
    var warp = broadcast(keep_here(SIMD[DType.uint32, 1](UInt32(thread_idx.x)))[0] // 32)
    var item = item_of[SHAPE](room, experts, target, part, half, number)
    var turn = item.turn(warp)
    if turn < UInt32(item.WARPS):
        item.store(turn, lane_here(), item.add_up(turn, lane_here()))


@always_inline
def item_of[
    SHAPE: ItemShape
](
    room: Room, experts: ExpertWeights, target: Target, part: UInt32, half: UInt32, number: UInt32
) -> Item[SHAPE]:
    """Returns rows of an item of the tile that is staged."""
    var rows, expert = load_word(room.rows()), load_word(room.expert())
    var result = target.of(row_tile(experts, expert, target), experts)
    return Item[SHAPE](room, target, result, rows, part, half, number)


@always_inline
def row_tile(experts: ExpertWeights, expert: UInt32, target: Target) -> RowTile:
    """Returns all rows of the result, as those of an expert or of none."""
    var is_one = expert < UInt32(experts.count)
    return RowTile(Int32(expert) if is_one else Int32(NO_EXPERT), 0, 0, target.rows.rows)


@no_inline
def compute_again[
    SHAPE: ItemShape
](
    a: Activations,
    is_aligned: Bool,
    deal: Deal,
    walk: Walk[SHAPE],
    room: Room,
    target: Target,
    items: Items,
):
    """Computes another way what bfloat16 cannot give, of all items; all threads call it."""
    var warp = UInt32(thread_idx.x) // 32
    var experts = walk.experts
    for item in range(items.first(), items.end()):
        var tile, part = divmod(UInt32(item), items.of_tile)
        # All have stored their sums, which are not to overtake what comes here.
        stage[SHAPE](a, is_aligned, deal, room, tile)
        if thread_idx.x == 0:
            store_word(room.item_overflow(), 0)
        barrier()
        var expert = load_word(room.expert())
        if expert == deal.experts:
            continue
        var place = walk.place(expert, part)
        for _ in range(walk.blocks(expert)):
            if any_overflows(place.load_scales[0](experts)):
                store_word(room.item_overflow(), 1)
            place.advance(1)
        barrier()

        var exactly = Exactly(a, experts.of(Int(expert)), UInt32(experts.columns))
        var result = target.of(row_tile(experts, expert, target), experts)
        var column = part * UInt32(SHAPE.columns())
        for token in range(warp, load_word(room.rows()), UInt32(SHAPE.warps())):
            var is_marked = load_word(room.mark(UInt32(token))) != 0
            if is_marked or load_word(room.item_overflow()) != 0:
                var row = load_word(room.row(UInt32(token)))
                exactly.store[SHAPE.is_gated](
                    Int(row // deal.rows_per_source),
                    walk.half,
                    target.gate(),
                    result,
                    row,
                    column,
                    column + UInt32(SHAPE.columns()),
                )


@always_inline
def stage[SHAPE: ItemShape](a: Activations, is_aligned: Bool, deal: Deal, room: Room, tile: UInt32):
    """Puts the rows of a tile into shared memory; all threads call it."""
    # All have multiplied and stored the rows of the tile before.
    barrier()
    if thread_idx.x < 32:
        var rows = deal.find[SHAPE.rows()](room, tile, lane_here())
        deal.list_rows(room, rows, lane_here())
        if thread_idx.x == 0:
            store_word(room.expert(), rows.expert)
            store_word(room.rows(), rows.rows)
    barrier()
    if load_word(room.expert()) < deal.experts:
        var rows = load_word(room.rows())
        var here = Stage[SHAPE.token_tiles, SHAPE.threads()](a, room, rows, deal.rows_per_source)
        here.fill(is_aligned)
    barrier()


@always_inline
def multiply[
    TOKEN_TILES: Int, //
](
    mut ring: WeightRing,
    blocks: UInt32,
    var tokens: Fragments[TOKEN_TILES],
    sums: WarpSums[TOKEN_TILES],
) -> UInt32:
    """Adds the products of a warp's blocks under scales that one factor applies.

    Returns the bits of all scales: what some of them want is not done here.
    """
    var left = blocks
    var all_scales = UInt32(0)
    # Whole rounds ask nobody whether there is a block: blocks are decoded while others are multiplied,
    # which takes 5 to 8 % off; of tiles of the most rows it takes 4 to 7 % longer, measured.
    comptime if TOKEN_TILES < MAX_TOKEN_TILES:
        while left >= AHEAD:
            comptime for i in range(AHEAD):
                all_scales |= multiply_block[i](ring, left, tokens, sums)
            ring.ahead.advance(AHEAD)
            tokens = tokens.starting_at(Coord(AHEAD * K_WARPS, 0, 0, 0))
            left -= UInt32(AHEAD)
    while left > 0:
        comptime for i in range(AHEAD):
            if UInt32(i) < left:
                all_scales |= multiply_block[i](ring, left, tokens, sums)
        ring.ahead.advance(AHEAD)
        tokens = tokens.starting_at(Coord(AHEAD * K_WARPS, 0, 0, 0))
        left -= min(left, UInt32(AHEAD))
    return all_scales


@always_inline
def multiply_block[
    TOKEN_TILES: Int, //, i: Int
](
    mut ring: WeightRing, left: UInt32, tokens: Fragments[TOKEN_TILES], sums: WarpSums[TOKEN_TILES]
) -> UInt32:
    """Adds the products of the block in a slot, which is loaded anew; returns its scales."""
    var scales = keep_here(SIMD[DType.uint32, 1](ring.word_scales[i]))
    var decoded = decode_rows(keep_here(ring.words[i]), scales[0])
    ring.load[i](left)
    add_block(decoded, tokens.starting_at(Coord(i * K_WARPS, 0, 0, 0)), sums)
    return scales[0]


@always_inline
def multiply_any[
    TOKEN_TILES: Int, //
](
    experts: ExpertWeights,
    var place: Place,
    blocks: UInt32,
    var tokens: Fragments[TOKEN_TILES],
    sums: WarpSums[TOKEN_TILES],
) -> Bool:
    """Sums the products under any scales anew; says if bfloat16 cannot hold some weight."""
    comptime for tile in range(TOKEN_TILES):
        comptime for half in range(HALVES):
            sums[tile, half] = 0
    var overflow = False
    for _ in range(blocks):
        var scales = place.load_scales[0](experts)
        overflow |= any_overflows(scales)
        add_block(decode_rows_of_any(place.load_codes[0](experts), scales), tokens, sums)
        place.advance(1)
        tokens = tokens.starting_at(Coord(K_WARPS, 0, 0, 0))
    return overflow
