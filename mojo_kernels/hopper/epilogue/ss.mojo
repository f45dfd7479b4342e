"""From an SS consumer's sums to C: factors of columns and rows of A, the bias, rounding, memory.

    whole K          a warp's 16 rows go through the room of its warp group, see `store_warp`
    cluster split-K  a rank adds up some columns of all rows of the tile; the sums of others are loaded
                     from their shared memory, in whose stages' place they lie

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
from ..accumulator import PartPlace, ROWS, WARP_ROWS_OF_A, place_of
from ..host.gemm import Scaling
from ..instructions.packed import round_two
from ..instructions.shared_memory import (
    TileAddresses,
    cluster_barrier,
    leave_cluster,
    load_peer_word,
    load_word,
    peer_address,
    store_pair,
    store_rows,
    store_word,
)
from ..instructions.warp import any_lane, keep_branch, lane_here
from ..instructions.wgmma import Accumulator
from ..gemm_operands import SsOperands
from .warp_rows import stores_in_halves
from ..instructions.named_barriers import wait_for_consumers
from ..pipeline.slots import Slot, TileFacts, load_float, load_floats, load_four
from ..pipeline.stages import SsRing, release, slot_of
from ..plan import MAX_RANKS, log_of_ranks
from ..scheduler import TileScheduler
from ..shapes import (
    CONSUMER_WARPS,
    GROUPS,
    HEADER_BYTES,
    MARK_WORDS,
    OCTET,
    PART_BYTES,
    PART_COLUMNS,
    PART_PITCH,
    PART_ROWS,
    QUAD,
    WARP_ROWS,
    columns_of,
)
from .reduce import Cluster, Region, sum_of_ranks
from .store_warp import StorePipeline

comptime PartRoom = TileAddresses[DType.uint16, PART_ROWS, PART_PITCH // 2]
"""Where a consumer's part of C goes through, [row][column], padded against bank conflicts."""


@always_inline
def room_of(base: UInt32, group: UInt32) -> PartRoom:
    """Returns the room of a consumer, by where the CTA's shared memory begins."""
    return PartRoom(base + UInt32(HEADER_BYTES) + group * UInt32(PART_BYTES))


@fieldwise_init
struct Marks[rows: Int](TrivialRegisterPassable):
    """What of a consumer's part of a tile is computed exactly."""

    var of_rows: SIMD[DType.uint32, PART_ROWS // 32]
    var of_columns: SIMD[DType.uint32, PART_COLUMNS // 32]

    @staticmethod
    @always_inline
    def load(last: SsRing[Self.rows], place: PartPlace[Self.rows]) -> Self:
        """Loads those of a tile, behind whose last stage they are."""
        var found = Self(0, 0)
        comptime for i in range(PART_ROWS // 32):
            var word = place.group * UInt32(PART_ROWS // 32) + UInt32(i)
            found.of_rows[i] = load_word(slot_of(last).mark_at(word))
        comptime for i in range(PART_COLUMNS // 32):
            var word = place.first_column() // 32 + UInt32(i)
            found.of_columns[i] = load_word(slot_of(last).column_mark_at(word))
        return found

    @always_inline
    def any(self) -> Bool:
        """Says whether there are any."""
        return broadcast(self.of_rows.reduce_or() | self.of_columns.reduce_or()) != 0


@always_inline
def finish[
    rows: Int, Operands: SsOperands, //
](
    mut sums: Accumulator[PART_COLUMNS],
    last: SsRing[rows],
    tile: TileFacts,
    place: PartPlace[rows],
    mut store_pipeline: StorePipeline,
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
):
    """Scales a warp's sums and stores them, or hands them over; lets go of the last stage."""
    var slot = slot_of(last)
    var marks = Marks[rows].load(last, place)
    var factors = SIMD[DType.float32, ROWS](1)
    comptime if Operands.SCALING.is_of_rows():
        comptime for row in range(ROWS):
            factors[row] = load_float(slot.factor_at(place.entry + UInt32(OCTET * row)))
    comptime for octet in range(PART_COLUMNS // OCTET):
        var column = place.column + UInt32(OCTET * octet)
        var ends, biases = load_floats(slot.end_at(column)), load_floats(slot.bias_at(column))
        comptime for row in range(ROWS):
            comptime for i in range(2):
                comptime part, at = place_of(octet, row, i)
                var sum = scaled(sums[part][at], factors[row], ends[i], operands)
                sums[part][at] = sum + biases[i]
    release(last)
    var is_marked = marks.any()
    if stores_in_halves(result):
        store_pipeline.wait_for_room()
        if not is_marked:
            if result.dtype == BFLOAT16:
                put_in_room["bf16x2"](sums, room_of(last.base, place.group), place)
            else:
                keep_branch()
                put_in_room["f16x2"](sums, room_of(last.base, place.group), place)
        store_pipeline.say(is_marked)
    if is_marked or not stores_in_halves(result):
        keep_branch()
        store_any(sums, result, tile, place)
        if is_marked:
            syncwarp()
            store_marked_part(marks, tile, place, operands, a, w, result)


@always_inline
def store_marked_part[
    rows: Int, //
](
    marks: Marks[rows],
    tile: TileFacts,
    place: PartPlace[rows],
    operands: Some[SsOperands],
    a: Activations,
    w: Weights,
    result: Result,
):
    """Computes what is marked of a warp's part of a tile."""
    var warp_row = place.warp * UInt32(WARP_ROWS_OF_A)
    var first_row = tile.row + place.first_row() + warp_row
    var first_column = tile.column + place.first_column()
    var of_rows = marks.of_rows[0] if warp_row < 32 else marks.of_rows[1]
    of_rows >>= warp_row % 32
    for part in range(UInt32(WARP_ROWS_OF_A // OCTET * PART_COLUMNS // WARP_ROWS)):
        var set, octet = divmod(part, UInt32(WARP_ROWS_OF_A // OCTET))
        var of_columns = UInt32(0)
        comptime for i in range(PART_COLUMNS // 32):
            if set // 2 == UInt32(i):
                of_columns = marks.of_columns[i]
        operands.store_marked(
            a,
            w,
            result,
            first_row + octet * UInt32(OCTET),
            result.rows,
            first_column + set * UInt32(WARP_ROWS),
            of_rows >> (octet * UInt32(OCTET)) & 0xFF,
            of_columns >> (set % 2 * UInt32(WARP_ROWS)) & 0xFFFF,
        )


@always_inline
def scaled[
    Operands: SsOperands, //
](sum: Float32, of_row: Float32, end: Float32, operands: Operands) -> Float32:
    """Applies what a sum meets in the end."""
    comptime if Operands.SCALING.is_of_rows():
        return operands.scale(sum, of_row, end)
    comptime MEETS_END = Operands.SCALING == Scaling.TILES or Operands.SCALING == Scaling.ENDS
    return sum * end if MEETS_END else sum


@always_inline
def put_in_room[
    rows: Int, //, type: StaticString
](sums: Accumulator[PART_COLUMNS], room: PartRoom, place: PartPlace[rows]):
    """Rounds to two bytes and puts a warp's rows in the room."""
    # Lane 8 m + j says where row j of fragment m goes: octets of rows, then of columns.
    var fragment, row = divmod(lane_here(), UInt32(OCTET))
    row += place.warp * UInt32(WARP_ROWS_OF_A) + fragment % 2 * UInt32(OCTET)
    var to = room.at(Coord(row, fragment // 2 * UInt32(OCTET)))
    comptime for octets in range(0, PART_COLUMNS // OCTET, 2):
        var words = SIMD[DType.uint32, 4]()
        comptime for i in range(4):
            comptime part, at = place_of(octets + i // 2, i % 2, 0)
            words[i] = round_two[type](sums[part][at], sums[part][at + 1])
        store_rows(to + UInt32(2 * octets * OCTET), words)


@always_inline
def store_any[
    rows: Int, //
](sums: Accumulator[PART_COLUMNS], result: Result, tile: TileFacts, place: PartPlace[rows],):
    """Stores a thread's elements one by one: any number of columns; biases are in them."""
    comptime for octet in range(PART_COLUMNS // OCTET):
        comptime for row in range(ROWS):
            comptime for i in range(2):
                comptime part, at = place_of(octet, row, i)
                var to_row = tile.row + place.row + UInt32(OCTET * row)
                var column = tile.column + place.column + UInt32(OCTET * octet + i)
                if to_row < result.rows and column < result.columns:
                    result.elements().store[1, 1](
                        Int(to_row), Int(column), SIMD[DType.float32, 1](sums[part][at])
                    )


@always_inline
def store_parts[
    rows: Int
](base: UInt32, storer: StorePipeline, scheduler: Some[TileScheduler], result: Result,):
    """Copies a consumer's part of all tiles from its room; one thread calls it."""
    var store_pipeline = storer
    var place = PartPlace[rows].of_warp(storer.group * UInt32(CONSUMER_WARPS // GROUPS))
    var room = room_of(base, storer.group).base
    var index = scheduler.first()
    while scheduler.has(index):
        var tile = scheduler.tile(index)
        index = scheduler.after(index)
        store_pipeline.store[PART_ROWS, PART_COLUMNS, PART_PITCH](
            room,
            result,
            tile.row + place.first_row(),
            tile.column + place.first_column(),
        )


@always_inline
def store_columns[
    rows: Int, Operands: SsOperands, //
](
    sums: Accumulator[PART_COLUMNS],
    last: SsRing[rows],
    tile: TileFacts,
    place: PartPlace[rows],
    cluster: Cluster,
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
):
    """Adds up and stores this rank's columns of the cluster's tile; all consumers call it."""
    var num_rows = min(UInt32(rows), result.rows - tile.row)
    var region = Region[rows, columns_of(rows)](last.base + UInt32(last.SPACE.first_at))
    # All warps have read their stages, in whose place the sums are put.
    wait_for_consumers()
    comptime for row in range(ROWS):
        var of_tile = place.row + UInt32(OCTET * row)
        if of_tile < num_rows:
            var to = region.at(Coord(of_tile, place.column))
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
    var marks_at = room_of(last.base, 0).base + 4 * word
    if thread_idx.x < 32:
        store_word(marks_at, load_word(slot_of(last).mark_at(word)))
    cluster_barrier()
    # A row's factors along K are those of all ranks.
    var marks = UInt32(0)
    comptime for log_ranks in range(1, log2_floor(MAX_RANKS) + 1):
        comptime RANKS = 1 << log_ranks
        if cluster.ranks == UInt32(RANKS):
            keep_branch()
            comptime for rank in range(RANKS):
                marks |= load_peer_word(peer_address(marks_at, UInt32(rank)))
            add_ranks[RANKS](region, last, tile, num_rows, cluster.rank, operands, result)
    if any_lane(marks != 0):
        keep_branch()
        wait_for_consumers()
        store_marked(last, marks, tile, num_rows, cluster, operands, a, w, result)
    leave_cluster()


@always_inline
def add_ranks[
    rows: Int, Operands: SsOperands, //, ranks: Int
](
    region: Region[rows, columns_of(rows)],
    last: SsRing[rows],
    tile: TileFacts,
    num_rows: UInt32,
    rank: UInt32,
    operands: Operands,
    result: Result,
):
    """Adds up the sums of all ranks for this one's columns: rank 0 + rank 1 + .."""
    comptime COLUMNS = columns_of(rows)
    comptime QUADS = COLUMNS // ranks // QUAD
    comptime TURN = 32 * CONSUMER_WARPS // QUADS
    var slot = slot_of(last)
    var first_row, quad = divmod(UInt32(thread_idx.x), UInt32(QUADS))
    var column = rank * UInt32(COLUMNS // ranks) + quad * UInt32(QUAD)
    var ends = load_four(slot.end_at(column))
    for row in range(first_row, num_rows, UInt32(TURN)):
        var at = region.at(Coord(row, column))
        var total = sum_of_ranks[ranks](SIMD[DType.uint32, 1](at))
        var of_row = Float32(1)
        comptime if Operands.SCALING.is_of_rows():
            of_row = load_float(slot.factor_at(row))
        comptime for i in range(QUAD):
            total[i] = scaled(total[i], of_row, ends[i], operands)
        result.store_columns[QUAD](tile.row + row, tile.column + column, total)


@always_inline
def store_marked[
    rows: Int, //
](
    last: SsRing[rows],
    marks: UInt32,
    tile: TileFacts,
    num_rows: UInt32,
    cluster: Cluster,
    operands: Some[SsOperands],
    a: Activations,
    w: Weights,
    result: Result,
):
    """Computes what is marked of this rank's columns; a lane has a word of the marks."""
    var num_sets = UInt32(columns_of(rows) // WARP_ROWS) >> log_of_ranks(cluster.ranks)
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var num_octets = (num_rows + UInt32(OCTET - 1)) // UInt32(OCTET)
    for part in range(warp, num_sets * num_octets, UInt32(CONSUMER_WARPS)):
        var octet, set = divmod(part, num_sets)
        var row = octet * UInt32(OCTET)
        var column = (cluster.rank * num_sets + set) * UInt32(WARP_ROWS)
        var entry = row
        comptime if rows == PART_ROWS:
            entry += column // UInt32(PART_COLUMNS) * UInt32(PART_ROWS)
        var of_rows = shuffle_idx(marks, entry // 32) >> (entry % 32) & 0xFF
        var word = UInt32(Slot[columns_of(rows)].ROW_WORDS) + column // 32
        var of_columns = shuffle_idx(marks, word) >> (column % 32) & 0xFFFF
        operands.store_marked(
            a, w, result, tile.row + row, result.rows, tile.column + column, of_rows, of_columns
        )
