"""Producers of an SS pipeline, from one tile of C to the next as stages empty.

    a thread    starts the copies of boxes, which tensor maps cut out of both sides
    a warp      puts factors into slots: of four of the consumers' rows of A a lane, loaded for some
                stages at once; and in the end of a tile those of columns, biases and marks

Operands say which rows and columns are left to the fallback, by their factors.
"""

from max.gpu.primitives.warp import vote
from std.collections import Array

from ...numbers.floats import FLOAT_TYPES, float_code
from ...simt.arguments import Result
from ...simt.views import flat_of
from ..host.gemm import Scaling
from ..instructions.shared_memory import (
    arrive,
    arrive_expecting,
    copy_box,
    store_word,
    wait_phase,
)
from ..instructions.warp import keep_branch, lane_here
from ..shapes import ENTRIES, GROUPS, MARK_WORDS, PART_ROWS, ROW_BYTES, SsTile
from ..gemm_operands import BATCH, LIFT, SsOperands, UNLIFT
from ..scheduler import DenseScheduler, TileScheduler, WorkTile
from .slots import TileFacts, store_float
from .stages import SsRing, slot_of

comptime LANE_ENTRIES = ENTRIES // 32
"""Factors of a lane."""
comptime Factors = SIMD[DType.float32, LANE_ENTRIES]
comptime PARTS = GROUPS
"""Parts of a tile."""
comptime Parts = SIMD[DType.float32, PARTS]


@always_inline
def copy_boxes(var ring: SsRing[_], left: Int, right: Int, scheduler: Some[TileScheduler]):
    """Copies the stages of all tiles, by the addresses of tensor maps; one thread calls it."""
    var index = scheduler.first()
    while scheduler.has(index):
        var tile = scheduler.tile(index)
        index = scheduler.after(index)
        for step in range(tile.first_step, tile.end_step):
            wait_phase(ring.empty(), ring.parity)
            var byte, stage = step * UInt32(ROW_BYTES), ring.here()
            arrive_expecting(ring.full(), UInt32(ring.SPACE.stage_bytes))
            copy_box(stage.base, left, byte, tile.row, ring.full())
            copy_box(stage.weights(), right, byte, tile.column, ring.full())
            ring.advance()


@fieldwise_init
struct Loaded(TrivialRegisterPassable):
    """The factors of a lane's rows of A in a stage, on their way."""

    var of_rows: Factors
    var of_parts: Parts
    """Those of the weights that parts of the tile have."""


comptime Batch[count: Int] = Array[Loaded, count]
"""Those of stages that are loaded at once."""


@fieldwise_init
struct FilledTile[Operands: SsOperands, shape: SsTile](TrivialRegisterPassable):
    """A tile, and where a lane finds the factors of its rows of A and of the tile's columns."""

    var operands: Self.Operands
    var row: UInt32
    """Its first row of C."""
    var column: UInt32
    """Its first column."""
    var row_places: SIMD[DType.uint32, LANE_ENTRIES]
    """The rows' first factors."""
    var part_places: SIMD[DType.uint32, PARTS]
    """Those of the weights of parts that lie beside each other."""

    comptime COUNT = BATCH if Self.Operands.SCALING.is_of_stages() else 1
    """Stages whose factors are loaded at once: whole rows have one for all."""

    @staticmethod
    @always_inline
    def of(operands: Self.Operands, tile: WorkTile) -> Self:
        """Finds those of a tile; of one past the end they are other rows'."""
        var found = Self(operands, tile.row, tile.column, 0, 0)
        comptime for i in range(LANE_ENTRIES):
            comptime first = 32 * i % Self.shape.rows
            found.row_places[i] = operands.row_place(tile.row + UInt32(first) + lane_here())
        comptime for i in range(PARTS):
            comptime first = Self.shape.part_columns() * i % Self.shape.columns
            found.part_places[i] = operands.column_place(tile.column + UInt32(first))
        return found

    @always_inline
    def load[in_batches: Bool](self, first: UInt32, last: UInt32) -> Batch[Self.COUNT]:
        """Loads the factors of stages from one on, of the last one for those past it."""
        var loaded = Batch[Self.COUNT](uninitialized=True)
        comptime for stage in range(Self.COUNT):
            loaded[stage] = Loaded(0, 1)
        comptime for i in range(LANE_ENTRIES):
            comptime if in_batches:
                var factors = self.operands.row_batch(self.row_places[i], first)
                comptime for stage in range(Self.COUNT):
                    loaded[stage].of_rows[i] = factors[stage]
            else:
                comptime for stage in range(Self.COUNT):
                    var step = min(first + UInt32(stage), last)
                    loaded[stage].of_rows[i] = self.operands.row_factor(self.row_places[i], step)
        comptime if Self.Operands.SCALING == Scaling.TILES:
            if self.operands.has_tiles():
                comptime for stage in range(Self.COUNT):
                    var step = min(first + UInt32(stage), last)
                    comptime for i in range(PARTS):
                        loaded[stage].of_parts[i] = self.operands.column_factor(
                            self.part_places[i], step
                        )
        return loaded^

    @always_inline
    def has_ends(self) -> Bool:
        """Says whether columns have factors of their own, not those of parts."""
        return Self.Operands.SCALING != Scaling.TILES or not self.operands.has_tiles()

    @always_inline
    def load_ends(self, step: UInt32) -> Ends[Self.shape]:
        """Loads the factors of a lane's columns, of a stage if they have some for each."""
        var ends = Ends[Self.shape](1)
        if self.has_ends():
            comptime for i in range(Self.shape.columns // 32):
                var column = self.column + UInt32(32 * i) + lane_here()
                ends[i] = self.operands.column_factor(self.operands.column_place(column), step)
        return ends


comptime Ends[shape: SsTile] = SIMD[DType.float32, shape.columns // 32]
"""Factors of a lane's columns."""


@always_inline
def put_factors[
    shape: SsTile, Operands: SsOperands, //
](
    mut ring: SsRing[shape],
    operands: Operands,
    scheduler: DenseScheduler[shape.rows, ...],
    result: Result,
):
    """Fills the slots of all tiles; a warp calls it."""
    comptime if Operands.SCALING.is_of_stages():
        if operands.lie_in_batches(scheduler.first_step):
            keep_branch()
            return put_tiles[in_batches=True](ring, operands, scheduler, result)
    put_tiles[in_batches=False](ring, operands, scheduler, result)


@always_inline
def put_tiles[
    shape: SsTile, Operands: SsOperands, //, in_batches: Bool
](
    mut ring: SsRing[shape],
    operands: Operands,
    scheduler: DenseScheduler[shape.rows, ...],
    result: Result,
):
    """Does so; factors of some stages are loaded at once, while those before them are put."""
    comptime COUNT = FilledTile[Operands, shape].COUNT
    var index = scheduler.first()
    var last = scheduler.end_step - 1
    var tile = FilledTile[Operands, shape].of(operands, scheduler.tile(index))
    var loaded = tile.load[in_batches](scheduler.first_step, last)
    # Every group has a tile.
    while True:
        index = scheduler.after(index)
        var found = Overflows(0, 0)
        var first = scheduler.first_step
        while first + UInt32(COUNT) <= last:
            var there = loaded.copy()
            comptime if Operands.SCALING.is_of_stages():
                loaded = tile.load[in_batches](first + UInt32(COUNT), last)
            comptime for stage in range(COUNT):
                put_stage[Operands](ring, tile, first + UInt32(stage), there[stage], found)
            first += UInt32(COUNT)
        # What the next tile begins with and what this one ends with is on the way meanwhile.
        var next_tile = FilledTile[Operands, shape].of(operands, scheduler.tile(index))
        var next = next_tile.load[in_batches](scheduler.first_step, last)
        var ends = tile.load_ends(last)
        var biases = load_biases[shape.columns // 32](result, tile.column + lane_here())
        var of_last = loaded[0]
        comptime for stage in range(COUNT - 1):
            if first + UInt32(stage) < last:
                put_stage[Operands](ring, tile, first + UInt32(stage), loaded[stage], found)
                of_last = loaded[stage + 1]
        # The tile's last stage has what is of the whole tile, too.
        wait_phase(ring.empty(), ring.parity)
        put_rows[Operands](ring, of_last, found)
        put_ends(ring, tile, ends, found)
        comptime for i in range(shape.columns // 32):
            store_float(slot_of(ring).bias_at(UInt32(32 * i) + lane_here()), biases[i])
        put_marks(ring, operands, found)
        if lane_here() == 0:
            TileFacts(tile.row, tile.column, not scheduler.has(index)).put(slot_of(ring))
        say_full(ring)
        if not scheduler.has(index):
            break
        tile = next_tile
        loaded = next^


@always_inline
def put_stage[
    shape: SsTile, //, Operands: SsOperands
](
    mut ring: SsRing[shape],
    tile: FilledTile[Operands, shape],
    step: UInt32,
    loaded: Loaded,
    mut found: Overflows,
):
    """Fills the slot of a stage that is not its tile's last one."""
    wait_phase(ring.empty(), ring.parity)
    comptime if Operands.SCALING.is_of_stages():
        put_rows[Operands](ring, loaded, found)
    comptime if Operands.SCALING == Scaling.COLUMNS:
        put_ends(ring, tile, tile.load_ends(step), found)
    say_full(ring)


@always_inline
def say_full(mut ring: SsRing[_]):
    """Says that a lane has filled its part of a slot, and goes on to the next one."""
    arrive(ring.full())
    ring.advance()


@fieldwise_init
struct Overflows(TrivialRegisterPassable):
    """What a lane has found that float32 sums cannot take, of a tile."""

    var largest: Factors
    """The largest factor that sums of each of its rows meets; where they meet one, that."""
    var columns: UInt32
    """A bit for each of its columns."""


@always_inline
def put_rows[
    shape: SsTile, //, Operands: SsOperands
](ring: SsRing[shape], loaded: Loaded, mut found: Overflows):
    """Puts the factors of a lane's rows of A, those of their tiles multiplied in."""
    var lifted = LIFT * loaded.of_parts
    comptime for i in range(LANE_ENTRIES):
        var factor = loaded.of_rows[i]
        comptime if Operands.SCALING == Scaling.TILES:
            factor *= lifted[32 * i // PART_ROWS]
            found.largest[i] = max(found.largest[i], abs(factor))
        else:
            found.largest[i] = factor
        store_float(slot_of(ring).factor_at(UInt32(32 * i) + lane_here()), factor)


@always_inline
def put_ends[
    shape: SsTile, Operands: SsOperands, //
](ring: SsRing[shape], tile: FilledTile[Operands, shape], ends: Ends[shape], mut found: Overflows,):
    """Puts the factors of a lane's columns."""
    var has_ends = tile.has_ends()
    comptime for i in range(shape.columns // 32):
        var is_lost = has_ends and tile.operands.loses_column(ends[i])
        found.columns |= UInt32(1 if is_lost else 0) << UInt32(i)
        var end = ends[i]
        comptime if Operands.SCALING == Scaling.TILES:
            end *= UNLIFT
        store_float(slot_of(ring).end_at(UInt32(32 * i) + lane_here()), end)


@always_inline
def load_biases[count: Int](result: Result, column: UInt32) -> SIMD[DType.float32, count]:
    """Loads the biases of every 32nd column, the last one's for those past the end."""
    var found = SIMD[DType.float32, count](0)
    comptime for dtype in FLOAT_TYPES:
        if result.bias_dtype == Int32(float_code(dtype)):
            keep_branch()
            var biases = flat_of(result.bias.unsafe_bitcast[Scalar[dtype]]())
            comptime for i in range(count):
                var at = min(column + UInt32(32 * i), result.columns - 1)
                found[i] = biases[Int(at)].cast[DType.float32]()
    return found


@always_inline
def put_marks(ring: SsRing[_], operands: Some[SsOperands], found: Overflows):
    """Puts the marks of a tile."""
    var slot = slot_of(ring)
    var word = UInt32(0)
    comptime for i in range(slot.ROW_WORDS):
        var marks = vote[DType.uint32](operands.loses_row(found.largest[i]))
        word = marks if lane_here() == UInt32(i) else word
    comptime for i in range(slot.COLUMN_WORDS):
        var marks = vote[DType.uint32]((found.columns >> UInt32(i)) % 2 == 1)
        word = marks if lane_here() == UInt32(slot.ROW_WORDS + i) else word
    if lane_here() < UInt32(MARK_WORDS):
        store_word(slot.mark_at(lane_here()), word)
