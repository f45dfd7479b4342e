"""The rows of a token's slots, each times its weight, added up in order: four numbers a thread."""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.math import ceildiv
from std.utils import StaticTuple
from std.utils.numerics import nan

from ...launch.queue import DevicePointer, Grid
from ...simt.arguments import Result
from ...simt.routing import Slots
from ...simt.views import VECTOR_BYTES, flat_of, rows_of
from ...tiles import in_registers
from .groups import Lists, NO_PLACE, UNKNOWN

comptime THREADS = 128
"""Threads of a group."""
comptime NUMBERS = 4
"""Neighbours that a thread computes; rows are made of blocks, so none is cut."""
comptime AT_ONCE = 4
"""Slots whose rows are loaded together."""


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def add_slots(rows: DevicePointer[DType.float32], lists: Lists, slots: Slots, result: Result):
    """Adds up the rows of a token's slots; one of an expert that there is not makes it NaN.

    The grid is (tokens, groups of a row).
    """
    wait_on_dependent_grids()
    launch_dependent_grids()
    var token = Int(block_idx.x)
    var column = (Int(block_idx.y) * THREADS + Int(thread_idx.x)) * NUMBERS
    if column >= Int(result.columns):
        return
    var all_rows = rows_of(rows, Int(result.columns))
    var total = SIMD[DType.float32, NUMBERS](0)
    var first, end = token * Int(slots.per_token), (token + 1) * Int(slots.per_token)
    for slot in range(first, end, AT_ONCE):
        # All loads of some slots are on their way before the first is waited for.
        var places = in_registers[DType.int32, 1, AT_ONCE]()
        var weights = in_registers[DType.float32, 1, AT_ONCE]()
        var numbers = in_registers[DType.float32, NUMBERS, AT_ONCE]()
        comptime for i in range(AT_ONCE):
            var own = min(slot + i, end - 1)
            places[i] = flat_of(lists.places)[own]
            weights[i] = slots.weight_of(own)
        comptime for i in range(AT_ONCE):
            var place = places[i] if slot + i < end else NO_PLACE
            places[i] = place
            numbers[i] = all_rows.load[width=NUMBERS, alignment=VECTOR_BYTES](
                Coord(max(Int(place), 0), column)
            )
        comptime for i in range(AT_ONCE):
            if places[i] >= 0:
                total = numbers[i].fma(SIMD[DType.float32, NUMBERS](weights[i]), total)
            elif places[i] == UNKNOWN:
                total = nan[DType.float32]()
    result.store[NUMBERS, NUMBERS](token, column, total)


def grid(tokens: Int, width: Int) -> Grid:
    """Returns the grid for results [tokens, width]."""
    var groups = ceildiv(width, NUMBERS * THREADS)
    return Grid(tokens, groups, threads=THREADS, starts_early=True)
