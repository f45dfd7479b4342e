"""Floats become rows of E4M3 codes and their scales, in the workspace: plain, as callers' rows are.

A row has some lanes, see `dense.lanes`; a lane takes chunks of eight elements, some of which are on
the way at once. Sixteen neighbours share the scale of a block.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.bit import log2_floor
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import DevicePointer, Queue, device_pointer
from ...numbers.floats import FLOAT_TYPES, float_code
from ...numbers.formats import block_of
from ...numbers.rounding import float_scale_from_amax
from ...problem import Problem
from ...simt.arguments import Activations
from ...simt.codec import amax_of_lanes
from ...simt.host import CHUNK
from ...simt.views import flat_of
from ..dense.lanes import LaneOfRow, RowLanes
from ..dense.lanes import load_floats
from ..host.workspace import (
    LANE_CHUNKS,
    PREPARE_THREADS as THREADS,
    PREPARE_WARPS as WARPS,
    RESIDENT_GROUPS,
)
from ..instructions.warp import keep_branch
from ..operands.e4m3 import ELEMENT, encode, magnitude_of
from ..shapes import ROW_BYTES

comptime BLOCK_CHUNKS = ROW_BYTES // CHUNK
"""Chunks of a block."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def encode_rows(
    a: Activations,
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.float32],
    lanes: RowLanes,
):
    """Encodes rows of floats."""
    launch_dependent_grids()
    wait_on_dependent_grids()
    comptime for dtype in FLOAT_TYPES:
        if a.dtype == Int32(float_code(dtype)):
            keep_branch()
            encode_row[dtype](a, codes, scales, LaneOfRow(lanes, UInt32(block_idx.x)))


@always_inline
def encode_row[
    dtype: DType
](
    a: Activations,
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.float32],
    place: LaneOfRow,
):
    """Encodes a row, of which this thread is a lane."""
    var num_chunks = UInt32(a.k // CHUNK)
    var num_blocks = block_of(Int(a.format)).k_blocks(a.k)
    var row_amax = UInt32(0)
    var floats = load_floats[dtype](a, place, 0)
    var index = UInt32(LANE_CHUNKS)
    if num_blocks == 1:
        comptime for i in range(LANE_CHUNKS):
            row_amax = max(row_amax, magnitude_of(floats[i]))
        while place.has_any(index, num_chunks):
            var more = load_floats[dtype](a, place, index)
            comptime for i in range(LANE_CHUNKS):
                row_amax = max(row_amax, magnitude_of(more[i]))
            index += UInt32(LANE_CHUNKS)
        row_amax = place.lanes.largest(SIMD[DType.uint32, 1](row_amax))[0]
    var scale = float_scale_from_amax(row_amax, materialize[ELEMENT](), a.carry != 0)
    var to = codes.unsafe_offset(Int(place.row) * (a.k // 4))
    var scale_to = scales.unsafe_offset(Int(place.row) * num_blocks)
    index = 0
    while place.has_any(index, num_chunks):
        if index > 0:
            floats = load_floats[dtype](a, place, index)
        comptime for i in range(LANE_CHUNKS):
            if place.has_any(index, num_chunks):
                var chunk = place.chunk(index)
                var is_number = chunk < num_chunks
                var x = floats[i] if is_number else SIMD[dtype, CHUNK](0)
                if num_blocks > 1:
                    keep_branch()
                    var amax = amax_of_lanes[log2_floor(BLOCK_CHUNKS)](magnitude_of(x))
                    scale = float_scale_from_amax(amax, materialize[ELEMENT](), a.carry != 0)
                var words = encode(x.cast[DType.float32](), scale)
                if is_number and place.is_there:
                    flat_of(to).store[alignment=CHUNK](Coord(Int(chunk) * (CHUNK // 4)), words)
                    if num_blocks > 1 and chunk % UInt32(BLOCK_CHUNKS) == 0:
                        flat_of(scale_to)[Int(chunk // UInt32(BLOCK_CHUNKS))] = scale
            index += 1
    if num_blocks == 1 and place.lane == 0 and place.is_there:
        flat_of(scale_to)[0] = scale


def encode_left(problem: Problem, codes: Int, scales: Int, mut queue: Some[Queue]) raises:
    """Launches the kernel for the left side of a problem; all rows go to some address."""
    var lanes = RowLanes.of(problem.m, problem.k)
    queue.launch[encode_rows](
        Grid(lanes.num_groups(), threads=THREADS, shared_bytes=4 * WARPS, starts_early=True),
        Activations(problem),
        device_pointer[DType.uint32](codes),
        device_pointer[DType.float32](scales),
        lanes,
    )
