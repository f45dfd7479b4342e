"""What a layer of experts does beside its products: elementwise, four numbers a lane.

    gate_sums    a row of gates and ups, neighbours or halves, or of ups alone, becomes hidden numbers
    add_slots    the rows of a token's slots, each times its weight, added up in order

    wave         one row of the result, a stretch of its columns, 256 at a time
    workgroup    (x, y): stretch y of four rows

Few rows are cut into many stretches. With many each wave has a whole row: the chip has enough
waves, and one that stays has its loads on their way while others begin.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.memory import bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple

from ...experts import NUMBERS, Routing
from ...launch.queue import Queue
from ...numbers.floats import FLOAT_TYPES
from ...numbers.gates import Gate
from ...routing.slots import NO_PLACE
from ...routing.sums import Numbers, SlotRows, add_slots_to
from ..chip import LANES, WORD_BYTES
from ..instructions.wave import of_lane
from ..operands.memory import Input, OUT_OF_RANGE, Output, Span, input, load_word, output, quotient
from ..moe_shape import SLOT_COLUMNS, SLOT_WAVES, slots_grid, stretch_of


@fieldwise_init
struct Stretch(TrivialRegisterPassable):
    """The part of a row that a wave computes."""

    var row: Int32
    var first: Int32
    """The first column."""
    var end: Int32
    var lane: Int32

    @staticmethod
    @always_inline
    def here(columns: Int32, stretch: Int32) -> Self:
        """Returns a wave's part; there may be no such row."""
        var thread = Int32(thread_idx.x)
        var wave = readfirstlane(quotient[LANES](thread))
        var first = Int32(block_idx.y) * stretch
        var row = Int32(block_idx.x) * SLOT_WAVES + wave
        return Self(row, first, min(first + stretch, columns), thread % LANES)


@always_inline
def _load(memory: AMDBufferResource, index: Int32, is_wanted: Bool) -> Numbers:
    """Loads neighbours; zeros if they are not wanted."""
    var offset = index * Int32(WORD_BYTES) if is_wanted else OUT_OF_RANGE
    return bitcast[DType.float32, NUMBERS](memory.load[DType.uint8, NUMBERS * WORD_BYTES](offset))


@always_inline
def _store[
    dtype: DType
](memory: AMDBufferResource, index: Int32, is_wanted: Bool, numbers: Numbers):
    """Stores neighbours, rounded, if they are wanted."""
    comptime BYTES = size_of[dtype]()
    var rounded = bitcast[DType.uint8, NUMBERS * BYTES](numbers.cast[dtype]())
    memory.store(index * Int32(BYTES) if is_wanted else OUT_OF_RANGE, rounded)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(SLOT_WAVES * LANES)))
def gate_sums[
    dtype: DType
](
    sums: Input[DType.float32],
    hidden: Output[dtype],
    rows: Int32,
    inner: Int32,
    stretch: Int32,
    gate_word: Int32,
    limit: Float32,
    alpha: Float32,
):
    """Computes hidden numbers."""
    var gate = Gate.of_word(gate_word, limit, alpha)
    var columns = Int32(gate.sums(Int(inner)))
    # From a gate of a lane to the next one, and from its first gate to the first ups.
    var step, to_ups = Int32(1), columns - inner
    if gate.is_interleaved():
        step, to_ups = 2, Int32(NUMBERS)
    var part = Stretch.here(inner, stretch)
    if part.row >= rows:
        return
    var memory = Span.of(sums, rows * columns).after(0)
    var result = Span.of(hidden, rows * inner).after(0)
    for begin in range(part.first, part.end, Int32(SLOT_COLUMNS)):
        var column = begin + part.lane * Int32(NUMBERS)
        var is_inside = column < inner
        var at = part.row * columns + column * step
        var gates = _load(memory, at, is_inside)
        var numbers = gate.of_sums(gates)
        if gate.is_there():
            var ups = _load(memory, at + to_ups, is_inside)
            if gate.is_interleaved():
                gates, ups = gates.join(ups).deinterleave()
            numbers = gate.of(gates, ups)
        _store[dtype](result, part.row * inner + column, is_inside, numbers)


@fieldwise_init
struct LaneSlots(SlotRows):
    """Slots of a token, one a lane, and a lane's columns in all rows."""

    comptime BRANCHES = False

    var places: Int32
    """Of its row; `NO_PLACE` behind the last slot."""
    var weights: Float32
    """What it counts."""
    var rows: AMDBufferResource
    var width: Int32
    """Columns of a row."""
    var column: Int32
    """The lane's first; there may be no such column."""

    @always_inline
    def load_slots(
        mut self,
        places: AMDBufferResource,
        weights: Input[DType.uint8],
        weights_dtype: Int32,
        slots: Int32,
        slot: Int32,
        is_there: Bool,
    ):
        """Loads slots, one for each lane, of all."""
        var place = load_word(places, slot * Int32(WORD_BYTES) if is_there else OUT_OF_RANGE)
        self.weights = Float32(0)
        comptime for i in range(len(FLOAT_TYPES)):
            comptime known = FLOAT_TYPES[i]
            comptime BYTES = size_of[known]()
            if weights_dtype == Int32(i):
                var memory = Span.of(weights, slots * Int32(BYTES)).after(0)
                var offset = slot * Int32(BYTES) if is_there else OUT_OF_RANGE
                var bits = memory.load[DType.uint8, BYTES](offset)
                self.weights = bitcast[known, 1](bits)[0].cast[DType.float32]()
        self.places = place if is_there else NO_PLACE

    @always_inline
    def place[i: Int](self, first: Int32) -> Int32:
        return of_lane(self.places, first + Int32(i))

    @always_inline
    def weight[i: Int](self, first: Int32) -> Float32:
        var bits = of_lane(bitcast[DType.int32, 1](self.weights), first + Int32(i))
        return bitcast[DType.float32, 1](bits)

    @always_inline
    def load(self, place: Int32) -> Numbers:
        var is_there = place >= 0 and self.column < self.width
        return _load(self.rows, place * self.width + self.column, is_there)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(SLOT_WAVES * LANES)))
def add_slots[
    dtype: DType
](
    rows: Input[DType.float32],
    places: Input[DType.int32],
    weights: Input[DType.uint8],
    result: Output[dtype],
    tokens: Int32,
    width: Int32,
    per_token: Int32,
    weights_dtype: Int32,
    stretch: Int32,
):
    """Adds up the rows of a token's slots; one of an expert that there is not makes it NaN."""
    var part = Stretch.here(width, stretch)
    if part.row >= tokens:
        return
    var slots = tokens * per_token
    var row_memory = Span.of(rows, slots * width).after(0)
    var place_memory = Span.of(places, slots).after(0)
    var result_memory = Span.of(result, tokens * width).after(0)
    var listed = LaneSlots(NO_PLACE, 0, row_memory, width, 0)
    for begin in range(part.first, part.end, Int32(SLOT_COLUMNS)):
        listed.column = begin + part.lane * Int32(NUMBERS)
        var total = Numbers(0)
        for lanes in range(Int32(0), per_token, Int32(LANES)):
            if begin == part.first or per_token > LANES:
                var slot = lanes + part.lane
                listed.load_slots(
                    place_memory, weights, weights_dtype, slots,
                    part.row * per_token + slot, slot < per_token,
                )  # fmt: skip
            add_slots_to(total, listed, min(per_token - lanes, LANES))
        _store[dtype](result_memory, part.row * width + listed.column, listed.column < width, total)


def launch_gates[
    dtype: DType
](gate: Gate, sums: Int, hidden: Int, rows: Int, inner: Int, mut queue: Some[Queue]) raises:
    """Launches `gate_sums`."""
    queue.launch[gate_sums[dtype]](
        slots_grid(rows, inner),
        input[DType.float32](sums),
        output[dtype](hidden),
        Int32(rows),
        Int32(inner),
        Int32(stretch_of(rows, inner)),
        gate.word(),
        gate.limit,
        gate.alpha,
    )


def launch_sums[
    dtype: DType
](rows: Int, places: Int, routing: Routing, result: Int, width: Int, mut queue: Some[Queue]) raises:
    """Launches `add_slots`."""
    queue.launch[add_slots[dtype]](
        slots_grid(routing.tokens, width),
        input[DType.float32](rows),
        input[DType.int32](places),
        input[DType.uint8](routing.weights),
        output[dtype](result),
        Int32(routing.tokens),
        Int32(width),
        Int32(routing.slots),
        Int32(routing.weights_dtype),
        Int32(stretch_of(routing.tokens, width)),
    )
