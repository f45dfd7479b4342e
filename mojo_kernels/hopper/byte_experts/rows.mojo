"""Rows of activations as bytes for FP8 tensor cores, gathered: a kernel of its own.

A row goes to a place, see `experts.groups`, and all places are one tile of stages: rows of an expert
begin at a multiple of eight, so that they are a contiguous piece of each stage. What becomes of a row is
said in `fp8.tokens` and `aligned.rows`; it is marked if it has no base.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import Queue
from ...numbers.floats import FLOAT_TYPES, float_code
from ...simt.arguments import Activations
from ...simt.views import flat_of
from ..aligned.operands import AlignedRows
from ..aligned.rows import align_floats
from ..dense.lanes import LaneOfRow, RowLanes
from ..experts.groups import Lists
from ..fp8.bases import ByteRows
from ..fp8.tokens import CHUNK_COUNTS, prepare_token
from ..host.moe import grid_of_places
from ..host.workspace import MANY_CHUNKS, PREPARE_THREADS as THREADS, RESIDENT_GROUPS
from ..instructions.shared_memory import any_thread
from ..instructions.warp import keep_branch


@always_inline
def place_of(lanes: RowLanes, lists: Lists) -> LaneOfRow:
    """Returns this thread's place, and the row of activations that goes there."""
    var place = LaneOfRow(lanes, UInt32(block_idx.x))
    var source = flat_of(lists.sources)[Int(place.row)]
    place.is_there = place.is_there and source >= 0
    if lists.are_gathered:
        place.source = UInt32(max(source, 0))
    return place


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def prepare_places[
    CHUNKS: Int
](a: Activations, rows: ByteRows[False], lanes: RowLanes, lists: Lists):
    """Writes E5M2 bytes under a base for each row; a lane has `CHUNKS` chunks of one."""
    launch_dependent_grids()
    wait_on_dependent_grids()
    var place = place_of(lanes, lists)
    if any_thread[THREADS](place.is_there):
        prepare_token[CHUNKS](a, rows, place)


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def align_places(a: Activations, rows: AlignedRows[4, False], lanes: RowLanes, lists: Lists):
    """Writes E4M3 bytes under a base for each 128 elements of a row."""
    launch_dependent_grids()
    wait_on_dependent_grids()
    var place = place_of(lanes, lists)
    if any_thread[THREADS](place.is_there):
        comptime for dtype in FLOAT_TYPES:
            if a.dtype == Int32(float_code(dtype)):
                keep_branch()
                align_floats[dtype](a, rows, place)


def prepare(a: Activations, rows: ByteRows[False], lists: Lists, mut queue: Some[Queue]) raises:
    """Launches the kernel for MXFP4 activations."""
    var lanes = RowLanes.of(Int(lists.num_sources), a.k, MANY_CHUNKS)
    comptime for known in CHUNK_COUNTS:
        if lanes.chunks(a.k) <= known:
            return queue.launch[prepare_places[known]](grid_of(lanes), a, rows, lanes, lists)
    raise Error(String("k: got ", a.k, ", which is too long for rows of bytes"))


def prepare(
    a: Activations, rows: AlignedRows[4, False], lists: Lists, mut queue: Some[Queue]
) raises:
    """Launches the kernel for MXFP8 activations."""
    var lanes = RowLanes.of(Int(lists.num_sources), a.k)
    queue.launch[align_places](grid_of(lanes), a, rows, lanes, lists)


def grid_of(lanes: RowLanes) -> Grid:
    """Returns the grid for rows that have so many lanes."""
    return grid_of_places(Int(lanes.num_rows), Int(lanes.log_lanes))
