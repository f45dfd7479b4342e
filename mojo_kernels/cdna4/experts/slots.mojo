"""What a layer of experts does beside its products: elementwise, four numbers a thread.

    gate_sums    halves of a row, gates and ups, become hidden numbers
    add_slots    the rows of a token's slots, each times its weight, added up in order
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.intrinsics import AMDBufferResource
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of
from std.utils import StaticTuple
from std.utils.numerics import nan

from ...experts import Routing
from ...launch.queue import Grid, Queue
from ...numbers.floats import FLOAT_TYPES
from ...numbers.gates import Gate
from ...tiles import in_registers
from ..operands.memory import (
    Input,
    OUT_OF_RANGE,
    Output,
    Span,
    WORD_BYTES,
    input,
    load_word,
    output,
)
from .routing import NO_EXPERT, NO_ROW

comptime THREADS = 256
"""Of a workgroup."""
comptime SLOTS = 4
"""Slots whose rows are loaded together."""
comptime NUMBERS = 4
"""Neighbours in a row that a thread computes: rows are made of blocks, so none is cut."""


@always_inline
def _here(columns: Int32, rows: Int32) -> Tuple[Int32, Int32]:
    """Returns row and column of a thread's numbers; the row is `rows` where there are none."""
    var index = UInt32(block_idx.x) * UInt32(THREADS) + UInt32(thread_idx.x)
    var first = index * UInt32(NUMBERS)
    var row = first // columns.cast[DType.uint32]()
    var column = first - row * columns.cast[DType.uint32]()
    return (min(row.cast[DType.int32](), rows), column.cast[DType.int32]())


@always_inline
def _load(
    memory: AMDBufferResource, index: Int32, is_wanted: Bool = True
) -> SIMD[DType.float32, NUMBERS]:
    """Loads neighbours; zeros if they are not wanted."""
    var offset = index * Int32(WORD_BYTES) if is_wanted else OUT_OF_RANGE
    return bitcast[DType.float32, NUMBERS](memory.load[DType.uint8, NUMBERS * WORD_BYTES](offset))


@always_inline
def _store[
    dtype: DType
](memory: AMDBufferResource, index: Int32, numbers: SIMD[DType.float32, NUMBERS]):
    """Stores neighbours, rounded."""
    comptime BYTES = size_of[dtype]()
    var rounded = bitcast[DType.uint8, NUMBERS * BYTES](numbers.cast[dtype]())
    memory.store(index * Int32(BYTES), rounded)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def gate_sums[
    dtype: DType
](sums: Input[DType.float32], hidden: Output[dtype], rows: Int32, inner: Int32):
    """Computes hidden numbers of `silu`."""
    var row, column = _here(inner, rows)
    if row == rows:
        return
    var memory = Span.of(sums, rows * 2 * inner).after(0)
    var gates = _load(memory, row * 2 * inner + column)
    var ups = _load(memory, (row * 2 + 1) * inner + column)
    var numbers = Gate(Gate.SILU, 0, 0).of(gates, ups)
    _store[dtype](Span.of(hidden, rows * inner).after(0), row * inner + column, numbers)


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
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
):
    """Adds up the rows of a token's slots; one of an expert that there is not makes it NaN."""
    var token, column = _here(width, tokens)
    if token == tokens:
        return
    var slots = tokens * per_token
    var row_memory = Span.of(rows, slots * width).after(0)
    var place_memory = Span.of(places, slots).after(0)
    var total = SIMD[DType.float32, NUMBERS](0)
    var first, end = token * per_token, (token + 1) * per_token
    for slot in range(first, end, SLOTS):
        # All loads of some slots are on their way before the first is waited for.
        var row_places = in_registers[DType.int32, 1, SLOTS]()
        var slot_weights = in_registers[DType.float32, 1, SLOTS]()
        var numbers = in_registers[DType.float32, NUMBERS, SLOTS]()
        comptime for i in range(SLOTS):
            var own = min(slot + Int32(i), end - 1)
            row_places[i] = load_word(place_memory, own * Int32(WORD_BYTES))
            slot_weights[i] = _weight(weights, weights_dtype, own)
        comptime for i in range(SLOTS):
            var place = row_places[i] if slot + Int32(i) < end else NO_ROW
            row_places[i] = place
            numbers[i] = _load(row_memory, place * width + column, place >= 0)
        comptime for i in range(SLOTS):
            var weight = SIMD[DType.float32, NUMBERS](slot_weights[i])
            if row_places[i] >= 0:
                total = numbers[i].fma(weight, total)
            elif row_places[i] == NO_EXPERT:
                total = nan[DType.float32]()
    _store[dtype](Span.of(result, tokens * width).after(0), token * width + column, total)


@always_inline
def _weight(weights: Input[DType.uint8], dtype: Int32, slot: Int32) -> Float32:
    """Returns what a slot counts."""
    comptime for i in range(len(FLOAT_TYPES)):
        comptime known = FLOAT_TYPES[i]
        if dtype == Int32(i):
            return weights.unsafe_bitcast[Scalar[known]]()[unsafe_offset=Int(slot)].cast[
                DType.float32
            ]()
    return 0


def launch_gates[
    dtype: DType
](sums: Int, hidden: Int, rows: Int, inner: Int, mut queue: Some[Queue]) raises:
    """Launches `gate_sums`."""
    queue.launch[gate_sums[dtype]](
        grid_of(rows, inner),
        input[DType.float32](sums),
        output[dtype](hidden),
        Int32(rows),
        Int32(inner),
    )


def launch_sums[
    dtype: DType
](rows: Int, places: Int, routing: Routing, result: Int, width: Int, mut queue: Some[Queue]) raises:
    """Launches `add_slots`."""
    queue.launch[add_slots[dtype]](
        grid_of(routing.tokens, width),
        input[DType.float32](rows),
        input[DType.int32](places),
        input[DType.uint8](routing.weights),
        output[dtype](result),
        Int32(routing.tokens),
        Int32(width),
        Int32(routing.slots),
        Int32(routing.weights_dtype),
    )


def grid_of(rows: Int, columns: Int) -> Grid:
    """Returns the grid of a kernel of this file."""
    return Grid(ceildiv(rows * columns, THREADS * NUMBERS), threads=THREADS)
