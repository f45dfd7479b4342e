"""From a consumer's sums to C: factors of columns and rows, the bias, rounding, memory.

    whole K        a warp's 16 tokens go through the room of its group, see `handover`
    ranks split    each adds up some columns of all tokens of the tile; the sums of others are
    K              loaded from their shared memory, in whose stages' place they lie

What is marked is computed once more, and then stored again by the warp that stored it, or by any warp
after a barrier.
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.primitives.warp import broadcast, shuffle_idx
from max.gpu.sync import syncwarp
from std.bit import log2_floor
from std.memory import bitcast

from ...simt.arguments import Activations, Result, Weights
from ...simt.host import BFLOAT16
from ...tiles import in_registers
from ..dense.together import SUMS_BARRIER
from ..host.gemm import Scaling
from ..instructions.packed import round_two
from ..instructions.shared_memory import (
    TileAddresses,
    cluster_barrier,
    leave_cluster,
    load_peer_quad,
    load_peer_word,
    load_word,
    peer_address,
    store_pair,
    store_rows,
    store_word,
    wait_at,
)
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..instructions.wgmma import PART_SUMS, TileSums
from ..layout import K_LANES
from ..many.result import stores_in_halves
from ..plan import MAX_RANKS, log_of_ranks
from ..scheduler import DenseScheduler
from ..shapes import (
    CONSUMER_WARPS,
    GROUPS,
    MARK_WORDS,
    OCTET,
    PART_COLUMNS,
    PART_PITCH,
    PART_TOKENS,
    WARP_ROWS,
    columns_of,
)
from .handover import Handover
from .operands import MappedOperands
from .slots import TileFacts, load_float, load_floats, load_four
from .stages import MappedStages, PartRoom

comptime ROWS = 2
"""Tokens of a thread."""
comptime WARP_TOKENS = 16
"""Tokens of a warp."""
comptime QUAD = 4
"""Columns that a thread adds up at once."""
comptime Region[tokens: Int] = TileAddresses[DType.float32, tokens, columns_of(tokens) + QUAD]
"""A group's sums, [token, column], padded against bank conflicts."""


@fieldwise_init
struct PartPlace[tokens: Int](TrivialRegisterPassable):
    """What of a tile a thread has: tokens `OCTET` apart, pairs of columns `OCTET` apart."""

    var entry: UInt32
    """Its first token among those of both consumers."""
    var token: UInt32
    """Its first token in the tile."""
    var column: UInt32
    """Its first column in the tile."""
    var warp: UInt32
    """Its warp in the consumer."""
    var group: UInt32
    """The consumer."""

    @staticmethod
    @always_inline
    def of_warp(warp: UInt32) -> Self:
        """Returns that of this lane of a warp."""
        var group, in_group = divmod(warp, UInt32(CONSUMER_WARPS // GROUPS))
        var entry = warp * UInt32(WARP_TOKENS) + lane_here() // UInt32(K_LANES)
        return Self(entry, entry % UInt32(Self.tokens), Self.column_of(entry), in_group, group)

    @staticmethod
    @always_inline
    def here() -> Self:
        """Returns that of this thread, found anew."""
        var thread = keep_here(SIMD[DType.uint32, 1](UInt32(thread_idx.x)))[0]
        return Self.of_warp(broadcast(thread // 32))

    @staticmethod
    @always_inline
    def column_of(entry: UInt32) -> UInt32:
        """Returns the first column of a thread that has a token among those of both consumers."""
        var column = 2 * (lane_here() % UInt32(K_LANES))
        comptime if Self.tokens == PART_TOKENS:
            column += entry // UInt32(PART_TOKENS) * UInt32(PART_COLUMNS)
        return column

    @always_inline
    def first_column(self) -> UInt32:
        """Returns the consumer's first column in the tile."""
        comptime if Self.tokens == PART_TOKENS:
            return self.group * UInt32(PART_COLUMNS)
        return 0

    @always_inline
    def first_token(self) -> UInt32:
        """Returns the consumer's first token in the tile."""
        comptime if Self.tokens == PART_TOKENS:
            return 0
        return self.group * UInt32(PART_TOKENS)


@fieldwise_init
struct Marks[tokens: Int](TrivialRegisterPassable):
    """What of a consumer's part of a tile is computed exactly."""

    var of_tokens: SIMD[DType.uint32, PART_TOKENS // 32]
    var of_columns: SIMD[DType.uint32, PART_COLUMNS // 32]

    @staticmethod
    @always_inline
    def load(last: MappedStages[Self.tokens], place: PartPlace[Self.tokens]) -> Self:
        """Loads those of a tile, behind whose last stage they are."""
        var found = Self(0, 0)
        comptime for i in range(PART_TOKENS // 32):
            var word = place.group * UInt32(PART_TOKENS // 32) + UInt32(i)
            found.of_tokens[i] = load_word(last.slot().mark_at(word))
        comptime for i in range(PART_COLUMNS // 32):
            var word = place.first_column() // 32 + UInt32(i)
            found.of_columns[i] = load_word(last.slot().column_mark_at(word))
        return found

    @always_inline
    def any(self) -> Bool:
        """Says whether there are any."""
        return broadcast(self.of_tokens.reduce_or() | self.of_columns.reduce_or()) != 0


@always_inline
def place_of(octet: Int, row: Int, i: Int) -> Tuple[Int, Int]:
    """Returns where the sum of an octet of columns, a token and one of two columns is."""
    return divmod((octet * ROWS + row) * 2 + i, PART_SUMS)


@always_inline
def finish[
    tokens: Int, Operands: MappedOperands, //
](
    mut sums: TileSums[PART_COLUMNS],
    last: MappedStages[tokens],
    tile: TileFacts,
    place: PartPlace[tokens],
    mut handover: Handover,
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
):
    """Scales a warp's sums and stores them, or hands them over; lets go of the last stage."""
    var slot = last.slot()
    var marks = Marks[tokens].load(last, place)
    var of_tokens = SIMD[DType.float32, ROWS](1)
    comptime if Operands.SCALING == Scaling.ROWS:
        comptime for row in range(ROWS):
            of_tokens[row] = load_float(slot.factor_at(place.entry + UInt32(OCTET * row)))
    comptime for octet in range(PART_COLUMNS // OCTET):
        var column = place.column + UInt32(OCTET * octet)
        var ends, biases = load_floats(slot.end_at(column)), load_floats(slot.bias_at(column))
        comptime for row in range(ROWS):
            comptime for i in range(2):
                comptime part, at = place_of(octet, row, i)
                var sum = scaled(sums[part][at], of_tokens[row], ends[i], operands)
                sums[part][at] = sum + biases[i]
    last.release()
    var is_marked = marks.any()
    if stores_in_halves(result):
        handover.wait_for_room()
        if not is_marked:
            if result.dtype == BFLOAT16:
                put_in_room["bf16x2"](sums, last.room(place.group), place)
            else:
                keep_branch()
                put_in_room["f16x2"](sums, last.room(place.group), place)
        handover.say(is_marked)
    if is_marked or not stores_in_halves(result):
        keep_branch()
        var first_row, first_column = tile.row, tile.column
        store_any(sums, result, first_row, first_column, place)
        if is_marked:
            syncwarp()
            var warp_row = place.warp * UInt32(WARP_TOKENS)
            first_row += place.first_token() + warp_row
            first_column += place.first_column()
            var of_rows = marks.of_tokens[0] if warp_row < 32 else marks.of_tokens[1]
            of_rows >>= warp_row % 32
            for part in range(UInt32(WARP_TOKENS // OCTET * PART_COLUMNS // WARP_ROWS)):
                var set, octet = divmod(part, UInt32(WARP_TOKENS // OCTET))
                var of_columns = UInt32(0)
                comptime for i in range(PART_COLUMNS // 32):
                    if set // 2 == UInt32(i):
                        of_columns = marks.of_columns[i]
                operands.store_marked(
                    a,
                    w,
                    result,
                    first_row + octet * UInt32(OCTET),
                    first_column + set * UInt32(WARP_ROWS),
                    of_rows >> (octet * UInt32(OCTET)) & 0xFF,
                    of_columns >> (set % 2 * UInt32(WARP_ROWS)) & 0xFFFF,
                )


@always_inline
def scaled[
    Operands: MappedOperands, //
](sum: Float32, of_token: Float32, end: Float32, operands: Operands) -> Float32:
    """Applies what a sum meets in the end."""
    comptime if Operands.SCALING == Scaling.ROWS:
        return operands.scale(sum, of_token, end)
    return sum * end if Operands.SCALING == Scaling.TILES else sum


@always_inline
def put_in_room[
    tokens: Int, //, type: StaticString
](sums: TileSums[PART_COLUMNS], room: PartRoom, place: PartPlace[tokens]):
    """Rounds to two bytes and puts a warp's tokens in the room."""
    # Lane 8 m + j says where token j of fragment m goes: octets of tokens, then of columns.
    var fragment, token = divmod(lane_here(), UInt32(OCTET))
    token += place.warp * UInt32(WARP_TOKENS) + fragment % 2 * UInt32(OCTET)
    var to = room.at(token, fragment // 2 * UInt32(OCTET))
    comptime for octets in range(0, PART_COLUMNS // OCTET, 2):
        var words = SIMD[DType.uint32, 4]()
        comptime for i in range(4):
            comptime part, at = place_of(octets + i // 2, i % 2, 0)
            words[i] = round_two[type](sums[part][at], sums[part][at + 1])
        store_rows(to + UInt32(2 * octets * OCTET), words)


@always_inline
def store_any[
    tokens: Int, //
](
    sums: TileSums[PART_COLUMNS],
    result: Result,
    first_row: UInt32,
    first_column: UInt32,
    place: PartPlace[tokens],
):
    """Stores a thread's elements one by one: any number of columns; biases are in them."""
    comptime for octet in range(PART_COLUMNS // OCTET):
        comptime for row in range(ROWS):
            comptime for i in range(2):
                comptime part, at = place_of(octet, row, i)
                var to_row = first_row + place.token + UInt32(OCTET * row)
                var column = first_column + place.column + UInt32(OCTET * octet + i)
                if to_row < result.rows and column < result.columns:
                    result.elements().store[1, 1](
                        Int(to_row), Int(column), SIMD[DType.float32, 1](sums[part][at])
                    )


@always_inline
def store_parts[
    tokens: Int, //
](
    stages: MappedStages[tokens],
    storer: Handover,
    scheduler: DenseScheduler[tokens, ...],
    result: Result,
):
    """Copies a consumer's part of all tiles from its room; one thread calls it."""
    var handover = storer
    var place = PartPlace[tokens].of_warp(storer.group * UInt32(CONSUMER_WARPS // GROUPS))
    var room = stages.room(storer.group).base
    var index = scheduler.first()
    while scheduler.has(index):
        var tile = scheduler.tile(index)
        index = scheduler.after(index)
        handover.store[PART_TOKENS, PART_COLUMNS, PART_PITCH](
            room,
            result,
            tile.row + place.first_token(),
            tile.column + place.first_column(),
        )


@always_inline
def store_together[
    tokens: Int, Operands: MappedOperands, //
](
    sums: TileSums[PART_COLUMNS],
    last: MappedStages[tokens],
    tile: TileFacts,
    place: PartPlace[tokens],
    scheduler: DenseScheduler[tokens, ...],
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
):
    """Adds up and stores this rank's columns of the cluster's tile; all consumers call it."""
    comptime CONSUMERS = 32 * CONSUMER_WARPS
    var first_row, first_column = tile.row, tile.column
    var num_tokens = min(UInt32(tokens), result.rows - first_row)
    var region = Region[tokens](last.base + UInt32(last.STAGES_AT))
    # All warps have read their stages, in whose place the sums are put.
    wait_at[CONSUMERS](SUMS_BARRIER)
    comptime for row in range(ROWS):
        var token = place.token + UInt32(OCTET * row)
        if token < num_tokens:
            var to = region.at(Coord(token, place.column))
            comptime for octet in range(PART_COLUMNS // OCTET):
                comptime part, at = place_of(octet, row, 0)
                store_pair(
                    to + UInt32(4 * OCTET * octet),
                    bitcast[DType.uint32, 2](
                        SIMD[DType.float32, 2](sums[part][at], sums[part][at + 1])
                    ),
                )
    # Rooms are free: who splits K hands nothing over.
    var word = lane_here() % UInt32(MARK_WORDS)
    var marks_at = last.room(0).base + 4 * word
    if thread_idx.x < 32:
        store_word(marks_at, load_word(last.slot().mark_at(word)))
    cluster_barrier()
    # A token's factors along K are those of all ranks.
    var marks = UInt32(0)
    comptime for log_ranks in range(1, log2_floor(MAX_RANKS) + 1):
        comptime RANKS = 1 << log_ranks
        if scheduler.ranks == UInt32(RANKS):
            keep_branch()
            comptime for rank in range(RANKS):
                marks |= load_peer_word(peer_address(marks_at, UInt32(rank)))
            add_ranks[RANKS](
                region, last, first_row, first_column, num_tokens, scheduler.rank, operands, result
            )
    if any_lane(marks != 0):
        keep_branch()
        wait_at[CONSUMERS](SUMS_BARRIER)
        store_marked(
            last, marks, first_row, first_column, num_tokens, scheduler, operands, a, w, result
        )
    leave_cluster()


@always_inline
def add_ranks[
    tokens: Int, Operands: MappedOperands, //, ranks: Int
](
    region: Region[tokens],
    last: MappedStages[tokens],
    first_row: UInt32,
    first_column: UInt32,
    num_tokens: UInt32,
    rank: UInt32,
    operands: Operands,
    result: Result,
):
    """Adds up the sums of all ranks for this one's columns: rank 0 + rank 1 + .."""
    comptime COLUMNS = columns_of(tokens)
    comptime QUADS = COLUMNS // ranks // QUAD
    comptime TURN = 32 * CONSUMER_WARPS // QUADS
    var slot = last.slot()
    var first_token, quad = divmod(UInt32(thread_idx.x), UInt32(QUADS))
    var column = rank * UInt32(COLUMNS // ranks) + quad * UInt32(QUAD)
    var ends = load_four(slot.end_at(column))
    for token in range(first_token, num_tokens, UInt32(TURN)):
        var at = region.at(Coord(token, column))
        # All loads before the first sum.
        var loaded = in_registers[DType.float32, QUAD, ranks]()
        comptime for i in range(ranks):
            loaded[i] = load_peer_quad(peer_address(at, UInt32(i)))
        var total = loaded[0]
        comptime for i in range(1, ranks):
            total += loaded[i]
        var of_token = Float32(1)
        comptime if Operands.SCALING == Scaling.ROWS:
            of_token = load_float(slot.factor_at(token))
        comptime for i in range(QUAD):
            total[i] = scaled(total[i], of_token, ends[i], operands)
        result.store_columns[QUAD](first_row + token, first_column + column, total)


@always_inline
def store_marked[
    tokens: Int, //
](
    last: MappedStages[tokens],
    marks: UInt32,
    first_row: UInt32,
    first_column: UInt32,
    num_tokens: UInt32,
    scheduler: DenseScheduler[tokens, ...],
    operands: Some[MappedOperands],
    a: Activations,
    w: Weights,
    result: Result,
):
    """Computes what is marked of this rank's columns; a lane has a word of the marks."""
    var num_sets = UInt32(columns_of(tokens) // WARP_ROWS) >> log_of_ranks(scheduler.ranks)
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var num_octets = (num_tokens + UInt32(OCTET - 1)) // UInt32(OCTET)
    for part in range(warp, num_sets * num_octets, UInt32(CONSUMER_WARPS)):
        var octet, set = divmod(part, num_sets)
        var token = octet * UInt32(OCTET)
        var column = (scheduler.rank * num_sets + set) * UInt32(WARP_ROWS)
        var entry = token
        comptime if tokens == PART_TOKENS:
            entry += column // UInt32(PART_COLUMNS) * UInt32(PART_TOKENS)
        var of_rows = shuffle_idx(marks, entry // 32) >> (entry % 32) & 0xFF
        var word = UInt32(last.Slot.TOKEN_WORDS) + column // 32
        var of_columns = shuffle_idx(marks, word) >> (column % 32) & 0xFFFF
        operands.store_marked(
            a, w, result, first_row + token, first_column + column, of_rows, of_columns
        )
