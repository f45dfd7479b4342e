"""From an SS consumer's sums to C: factors of columns and rows of A, the bias, rounding, memory.

    whole K          a warp's 16 rows turn in a room: lanes store eight neighbours each
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
from ...simt.host import BFLOAT16, CHUNK, VECTOR_BYTES
from ...simt.views import flat_of
from ..accumulator import PartPlace, ROWS, WARP_ROWS_OF_A, place_of
from ..host.gemm import Scaling
from ..instructions.packed import round_two
from ..instructions.shared_memory import (
    TileAddresses,
    cluster_barrier,
    leave_cluster,
    load_peer_word,
    load_quad,
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
from ..shapes import (
    CONSUMER_WARPS,
    HEADER_BYTES,
    MARK_WORDS,
    OCTET,
    PART_ROWS,
    QUAD,
    SsTile,
    WARP_ROWS,
)
from .reduce import Cluster, Region, sum_of_ranks

comptime PartRoom[shape: SsTile] = TileAddresses[DType.uint16, PART_ROWS, shape.part_pitch() // 2]
"""Where a consumer's part of C goes through, [row][column], padded against bank conflicts."""


@always_inline
def room_of[shape: SsTile](base: UInt32, group: UInt32) -> PartRoom[shape]:
    """Returns the room of a consumer, by where the CTA's shared memory begins."""
    return PartRoom[shape](base + UInt32(HEADER_BYTES) + group * UInt32(shape.part_bytes()))


@fieldwise_init
struct Marks[shape: SsTile](TrivialRegisterPassable):
    """What of a consumer's part of a tile is computed exactly."""

    var of_rows: SIMD[DType.uint32, PART_ROWS // 32]
    var of_columns: SIMD[DType.uint32, Self.shape.part_columns() // 32]

    @staticmethod
    @always_inline
    def load(last: SsRing[Self.shape], place: PartPlace[Self.shape]) -> Self:
        """Loads those of a tile, behind whose last stage they are."""
        var found = Self(0, 0)
        comptime for i in range(PART_ROWS // 32):
            var word = place.group * UInt32(PART_ROWS // 32) + UInt32(i)
            found.of_rows[i] = load_word(slot_of(last).mark_at(word))
        comptime for i in range(Self.shape.part_columns() // 32):
            var word = place.first_column() // 32 + UInt32(i)
            found.of_columns[i] = load_word(slot_of(last).column_mark_at(word))
        return found

    @always_inline
    def any(self) -> Bool:
        """Says whether there are any."""
        return broadcast(self.of_rows.reduce_or() | self.of_columns.reduce_or()) != 0


@always_inline
def finish[
    shape: SsTile, Operands: SsOperands, //
](
    mut sums: Accumulator[shape.part_columns()],
    last: SsRing[shape],
    tile: TileFacts,
    place: PartPlace[shape],
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
):
    """Scales a warp's sums and stores them; lets go of the last stage."""
    var slot = slot_of(last)
    var marks = Marks[shape].load(last, place)
    var factors = SIMD[DType.float32, ROWS](1)
    comptime if Operands.SCALING.is_of_rows():
        comptime for row in range(ROWS):
            factors[row] = load_float(slot.factor_at(place.entry + UInt32(OCTET * row)))
    comptime for octet in range(shape.part_columns() // OCTET):
        var column = place.column + UInt32(OCTET * octet)
        var ends, biases = load_floats(slot.end_at(column)), load_floats(slot.bias_at(column))
        comptime for row in range(ROWS):
            comptime for i in range(2):
                comptime part, at = place_of(octet, row, i)
                var sum = scaled(sums[part][at], factors[row], ends[i], operands)
                sums[part][at] = sum + biases[i]
    release(last)
    var is_marked = marks.any()
    if stores_in_halves(result) and not is_marked:
        var room = room_of[shape](last.base, place.group)
        if result.dtype == BFLOAT16:
            put_in_room["bf16x2"](sums, room, place)
        else:
            keep_branch()
            put_in_room["f16x2"](sums, room, place)
        store_room(room, result, tile, place)
    else:
        keep_branch()
        store_any(sums, result, tile, place)
        if is_marked:
            syncwarp()
            store_marked_part(marks, tile, place, operands, a, w, result)


@always_inline
def store_marked_part[
    shape: SsTile, //
](
    marks: Marks[shape],
    tile: TileFacts,
    place: PartPlace[shape],
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
    for part in range(UInt32(WARP_ROWS_OF_A // OCTET * shape.part_columns() // WARP_ROWS)):
        var set, octet = divmod(part, UInt32(WARP_ROWS_OF_A // OCTET))
        var of_columns = UInt32(0)
        comptime for i in range(shape.part_columns() // 32):
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
    shape: SsTile, //, type: StaticString
](sums: Accumulator[shape.part_columns()], room: PartRoom[shape], place: PartPlace[shape]):
    """Rounds to two bytes and puts a warp's rows in the room."""
    # Lane 8 m + j says where row j of fragment m goes: octets of rows, then of columns.
    var fragment, row = divmod(lane_here(), UInt32(OCTET))
    row += place.warp * UInt32(WARP_ROWS_OF_A) + fragment % 2 * UInt32(OCTET)
    var to = room.at(Coord(row, fragment // 2 * UInt32(OCTET)))
    comptime for octets in range(0, shape.part_columns() // OCTET, 2):
        var words = SIMD[DType.uint32, 4]()
        comptime for i in range(4):
            comptime part, at = place_of(octets + i // 2, i % 2, 0)
            words[i] = round_two[type](sums[part][at], sums[part][at + 1])
        store_rows(to + UInt32(2 * octets * OCTET), words)


@always_inline
def store_room[
    shape: SsTile, //
](room: PartRoom[shape], result: Result, tile: TileFacts, place: PartPlace[shape]):
    """Stores a warp's rows from the room."""
    comptime ROW_CHUNKS = shape.part_columns() // CHUNK
    comptime ROWS_AT_ONCE = 32 // ROW_CHUNKS
    comptime COUNT = WARP_ROWS_OF_A // ROWS_AT_ONCE
    syncwarp()
    var row, chunk = divmod(lane_here(), UInt32(ROW_CHUNKS))
    row += place.warp * UInt32(WARP_ROWS_OF_A)
    var column = chunk * UInt32(CHUNK)
    var at = room.starting_at(Coord(row, column))
    var chunks = Array[SIMD[DType.uint32, 4], COUNT](uninitialized=True)
    comptime for i in range(COUNT):
        chunks[i] = load_quad(at.at(Coord(i * ROWS_AT_ONCE, 0)))
    row += tile.row + place.first_row()
    column += tile.column + place.first_column()
    var to = result.output.unsafe_offset(2 * (Int(row) * Int(result.columns) + Int(column)))
    comptime for i in range(COUNT):
        if row + UInt32(i * ROWS_AT_ONCE) < result.rows and column < result.columns:
            flat_of(to.unsafe_bitcast[UInt32]()).store[alignment=VECTOR_BYTES](Coord(0), chunks[i])
        to = to.unsafe_offset(2 * ROWS_AT_ONCE * Int(result.columns))
    # All have loaded what the next tile takes the place of.
    syncwarp()


@always_inline
def store_any[
    shape: SsTile, //
](
    sums: Accumulator[shape.part_columns()],
    result: Result,
    tile: TileFacts,
    place: PartPlace[shape],
):
    """Stores a thread's elements one by one: any number of columns; biases are in them."""
    comptime for octet in range(shape.part_columns() // OCTET):
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
def store_columns[
    shape: SsTile, Operands: SsOperands, //
](
    sums: Accumulator[shape.part_columns()],
    last: SsRing[shape],
    tile: TileFacts,
    place: PartPlace[shape],
    cluster: Cluster,
    operands: Operands,
    a: Activations,
    w: Weights,
    result: Result,
):
    """Adds up and stores this rank's columns of the cluster's tile; all consumers call it."""
    var num_rows = min(UInt32(shape.rows), result.rows - tile.row)
    var region = Region[shape.rows, shape.columns](last.base + UInt32(last.SPACE.first_at))
    # All warps have read their stages, in whose place the sums are put.
    wait_for_consumers()
    comptime for row in range(ROWS):
        var of_tile = place.row + UInt32(OCTET * row)
        if of_tile < num_rows:
            var to = region.at(Coord(of_tile, place.column))
            comptime for octet in range(shape.part_columns() // OCTET):
                comptime part, at = place_of(octet, row, 0)
                store_pair(
                    to + UInt32(4 * OCTET * octet),
                    bitcast[DType.uint32, 2](
                        SIMD[DType.float32, 2](sums[part][at], sums[part][at + 1])
                    ),
                )
    # Rooms are free: who splits K hands nothing over.
    var word = lane_here() % UInt32(MARK_WORDS)
    var marks_at = room_of[shape](last.base, 0).base + 4 * word
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
    shape: SsTile, Operands: SsOperands, //, ranks: Int
](
    region: Region[shape.rows, shape.columns],
    last: SsRing[shape],
    tile: TileFacts,
    num_rows: UInt32,
    rank: UInt32,
    operands: Operands,
    result: Result,
):
    """Adds up the sums of all ranks for this one's columns: rank 0 + rank 1 + .."""
    comptime COLUMNS = shape.columns
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
    shape: SsTile, //
](
    last: SsRing[shape],
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
    var num_sets = UInt32(shape.columns // WARP_ROWS) >> log_of_ranks(cluster.ranks)
    var warp = broadcast(UInt32(thread_idx.x) // 32)
    var num_octets = (num_rows + UInt32(OCTET - 1)) // UInt32(OCTET)
    for part in range(warp, num_sets * num_octets, UInt32(CONSUMER_WARPS)):
        var octet, set = divmod(part, num_sets)
        var row = octet * UInt32(OCTET)
        var column = (cluster.rank * num_sets + set) * UInt32(WARP_ROWS)
        var entry = row
        comptime if shape.has_one_row():
            entry += column // UInt32(shape.part_columns()) * UInt32(PART_ROWS)
        var of_rows = shuffle_idx(marks, entry // 32) >> (entry % 32) & 0xFF
        var word = UInt32(Slot[shape].ROW_WORDS) + column // 32
        var of_columns = shuffle_idx(marks, word) >> (column % 32) & 0xFFFF
        operands.store_marked(
            a, w, result, tile.row + row, result.rows, tile.column + column, of_rows, of_columns
        )
