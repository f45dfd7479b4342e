"""Rows of activations as stages of bfloat16, gathered: a kernel of its own.

    stage     all places, 128 swizzled bytes each: 64 steps of K, in the order of a block's parts
    stages    one behind the other, zeros past the end of K; see `staged.activations`

A tile of places, wherever it begins, is so a contiguous piece of each stage. Kept floats are
rounded to bfloat16; those that are rounded to a format are exact in it, but for blocks whose scale
is at an end of the range: their rows get a mark, and their results are computed another way.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.utils import StaticTuple

from ...launch.queue import DevicePointer
from ...numbers.elements import Element
from ...numbers.floats import round_to
from ...numbers.scales import E8M0_LARGEST, E8M0_NAN
from ...simt.arguments import Activations
from ...simt.codec import ANY_BITS, Chunk, element_of, f32_of_scale, rounded_chunk
from ...simt.codec import scale_of_block
from ...simt.host import BFLOAT16, CHUNK
from ...simt.routing import NO_EXPERT
from ...simt.views import flat_of
from ..instructions.packed import Pairs
from ..instructions.warp import keep_branch
from ..layout import K_LANES
from ..operands.activations import (
    TokenPairs,
    load_neighbours,
    pairs_of_floats,
    pairs_of_neighbours,
)
from ..plan import OPERANDS
from ..shapes import (
    EXPAND_THREADS as THREADS,
    GROUP_CHUNKS,
    LANE_BYTES,
    PARTS,
    ROW_BYTES,
    THREAD_CHUNKS,
    num_steps_of,
)
from ..staged.activations import SWIZZLE, in_part_order
from .groups import Lists


@always_inline
def is_beyond(values: Chunk, scale: UInt32, element: Element) -> Bool:
    """Says whether bfloat16 may not hold some numbers of a chunk under a scale."""
    comptime BF16_SMALLEST = 6
    """What the exponent of the smallest number of bfloat16 is below that of the scale 0."""
    if scale == UInt32(E8M0_NAN):
        return False
    var is_large = Int(scale) + element.emax > E8M0_LARGEST
    var is_small = Int(scale) + BF16_SMALLEST < -element.unit_exponent()
    return is_large or (is_small and values.ne(0).reduce_or())


@always_inline
def load_chunk(a: Activations, is_aligned: Bool, row: Int, chunk: UInt32) -> TokenPairs:
    """Loads eight elements of a row as the kind of the activations asks; whole warps call it."""
    if is_aligned and a.dtype == BFLOAT16:
        if a.is_kept() or a.format == Int32(OPERANDS.code()):
            return pairs_of_neighbours(a, load_neighbours(a, UInt32(row), chunk))
    keep_branch()
    var x = a.floats().load[CHUNK, 1](row, Int(chunk) * CHUNK)
    if a.is_kept():
        return TokenPairs(pairs_of_floats(round_to[DType.bfloat16](x).cast[DType.float32]()), False)
    var element = element_of[ANY_BITS](a.format)
    var scale = scale_of_block(x, a.carry, element)
    var values = rounded_chunk(x, scale, element)
    if scale == UInt32(E8M0_NAN):
        values = Chunk(f32_of_scale(scale))
    return TokenPairs(pairs_of_floats(values), is_beyond(values, scale, element))


@__llvm_metadata(MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)))
def stage_rows(
    a: Activations,
    is_aligned: UInt32,
    lists: Lists,
    stages: DevicePointer[DType.uint8],
    marks: DevicePointer[DType.uint8],
    num_places: UInt32,
):
    """Writes some chunks of the rows of a tile.

    The grid is (groups of a tile with all its rows, tiles). `is_aligned` says that rows begin at
    multiples of 16 bytes.
    """
    wait_on_dependent_grids()
    launch_dependent_grids()
    var tile = lists.tile(UInt32(block_idx.y))
    var row_parts = num_steps_of(UInt32(a.k)) * UInt32(PARTS)
    var first = UInt32(block_idx.x) * UInt32(GROUP_CHUNKS) + UInt32(thread_idx.x)
    var num_parts = tile.rows * row_parts
    if first - UInt32(thread_idx.x) >= num_parts or tile.expert == Int32(NO_EXPERT):
        return
    var row_chunks = UInt32(a.k // CHUNK)
    var words = flat_of(stages.unsafe_bitcast[UInt32]())

    # Lanes past the end repeat the last block, whole blocks at a time.
    comptime for i in range(THREAD_CHUNKS):
        var index = first + UInt32(i * THREADS)
        var last = num_parts - UInt32(K_LANES) + index % UInt32(K_LANES)
        var row, part = divmod(min(index, last), row_parts)
        var chunk = min(part, row_chunks - UInt32(K_LANES) + part % UInt32(K_LANES))
        var loaded = load_chunk(a, is_aligned != 0, lists.source(tile, row), chunk)
        var numbers = in_part_order(loaded.pairs)
        var place = tile.first_place + row
        var step, here = divmod(part, UInt32(PARTS))
        var at = SWIZZLE((place % UInt32(PARTS)) * UInt32(PARTS) + here) % UInt32(PARTS)
        if index < num_parts:
            var byte = (Int(step) * Int(num_places) + Int(place)) * ROW_BYTES
            words.store[alignment=LANE_BYTES](
                Coord((byte + Int(at) * LANE_BYTES) // 4),
                numbers if part < row_chunks else Pairs(0),
            )
            if loaded.overflow:
                keep_branch()
                flat_of(marks)[Int(place)] = 1
