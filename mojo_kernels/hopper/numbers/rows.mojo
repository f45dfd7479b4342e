"""Tokens become bfloat16 numbers, and of large products weights too.

A row has some lanes, see `dense.lanes`; a lane takes chunks of eight elements, some of which are on
the way at once. What lies past the end of K is zero. A row has a mark if one of its elements times its
scale is no bfloat16 number.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.bit import log2_floor
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import DevicePointer, Grid, Queue
from ...numbers.floats import FLOAT_TYPES, float_code
from ...problem import LeftKind, Problem
from ...simt.arguments import Activations, Weights
from ...simt.codec import CHUNK, Chunk, LANES_PER_BLOCK
from ...simt.codec import amax_of_lanes, f32_of_scale, scale_of_magnitude
from ...simt.views import flat_of, rows_of
from ..dense.lanes import LANE_CHUNKS, LaneOfRow, LaneSteps, RESIDENT_GROUPS, RowLanes
from ..dense.lanes import THREADS, WARPS, load_floats
from ..dense.stages import StagedRows
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..instructions.packed import Pairs
from ..instructions.shared_memory import shared_base
from ..instructions.warp import keep_branch
from ..layout import BLOCK, TILE_ROWS
from ..many.kernel import MULTIPROCESSORS
from ..operands.e4m3 import ELEMENT, magnitude_of, rounded
from ..staged.activations import LANE_BYTES, PARTS
from .codes import CHUNK_WORDS, Words, are_lost, decode_bytes, packed_numbers
from .operands import NumberRows, workspace_of
from .weights import mark_weights

comptime MAX_TILE_GROUPS = 32
"""The most groups that share a tile of weights."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def prepare_numbers[
    bits: Int, lies: Bool
](
    a: Activations,
    w: Weights,
    operands: NumberRows[bits, lies],
    lanes: RowLanes,
    tile_groups: UInt32,
    num_groups: UInt32,
):
    """Prepares rows of tokens, or a part of a tile of weights; groups of weights come first."""
    launch_dependent_grids()
    wait_on_dependent_grids()
    var index = UInt32(block_idx.x)
    if index < num_groups:
        var tile, group = divmod(index, tile_groups)
        comptime if lies:
            var units = TileUnits[NumberRows[bits, lies]].of(w, UInt32(a.k), tile)
            var loaded = load_stage(operands, units, first_step_of[WARPS](group))
            if group == 0:
                mark_weights(w, operands, tile, UInt32(a.k))
            store_stages[WARPS](operands, units, loaded^, tile, shared_base(), group, tile_groups)
        else:
            mark_weights(w, operands, tile, UInt32(a.k))
        return
    var place = LaneOfRow(lanes, index - num_groups)
    if a.is_encoded():
        store_decoded(a, operands, place)
        return
    comptime for dtype in FLOAT_TYPES:
        if a.dtype == Int32(float_code(dtype)):
            keep_branch()
            store_rounded[dtype](a, operands, place)


@always_inline
def store_mark(operands: NumberRows[...], place: LaneOfRow, loses: Bool):
    """Writes the mark of a row, of which this thread's elements are lost or not."""
    var mark = place.lanes.largest(SIMD[DType.uint32, 1](UInt32(1) if loses else UInt32(0)))[0]
    if place.lane == 0 and place.is_there:
        flat_of(operands.left_marks)[Int(place.row)] = mark.cast[DType.uint8]()


@always_inline
def store_rounded[dtype: DType](a: Activations, operands: NumberRows[...], place: LaneOfRow):
    """Rounds floats and writes them as bfloat16 numbers, and the mark."""
    var numbers = NumberPlaces(operands.left, place)
    var row_chunks = UInt32(a.k // CHUNK)
    var loses = False
    var index = UInt32(0)
    while place.has_any(index, operands.left.num_steps * UInt32(PARTS)):
        var floats = load_floats[dtype](a, place, index)
        comptime for i in range(LANE_CHUNKS):
            # All lanes take every turn: those of a block ask together.
            var amax = amax_of_lanes[log2_floor(LANES_PER_BLOCK)](magnitude_of(floats[i]))
            var scale = scale_of_magnitude(amax, a.carry, materialize[ELEMENT]())
            var values = rounded(floats[i].cast[DType.float32](), scale)
            loses |= numbers.store(place, index, row_chunks, values, scale)
            index += 1
    store_mark(operands, place, loses)


@always_inline
def store_decoded(a: Activations, operands: NumberRows[...], place: LaneOfRow):
    """Writes codes times their scales as bfloat16 numbers, and the mark."""
    var numbers = NumberPlaces(operands.left, place)
    var row_chunks = UInt32(a.k // CHUNK)
    var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
    var scales = rows_of(a.scales, a.k // BLOCK)
    var row = Int(place.row)
    var loses = False
    var index = UInt32(0)
    while place.has_any(index, operands.left.num_steps * UInt32(PARTS)):
        var words = Array[Words, LANE_CHUNKS](uninitialized=True)
        var bytes = Array[UInt8, LANE_CHUNKS](uninitialized=True)
        comptime for i in range(LANE_CHUNKS):
            var chunk = Int(min(place.chunk(index + UInt32(i)), row_chunks - 1))
            words[i] = codes.load[width=CHUNK_WORDS, alignment=CHUNK](
                Coord(row, chunk * CHUNK_WORDS)
            )
            bytes[i] = scales[row, chunk // LANES_PER_BLOCK]
        comptime for i in range(LANE_CHUNKS):
            var values = decode_bytes(words[i])
            var scale = bytes[i].cast[DType.uint32]()
            loses |= numbers.store(place, index, row_chunks, values, scale)
            index += 1
    store_mark(operands, place, loses)


struct NumberPlaces(TrivialRegisterPassable):
    """Where a lane's chunks of a row go as bfloat16 numbers, sixteen bytes each."""

    var steps: LaneSteps
    var first: DevicePointer[DType.uint8]
    var num_steps: UInt32

    @always_inline
    def __init__(out self, rows: StagedRows, place: LaneOfRow):
        """Finds those of a row."""
        self.steps = LaneSteps.of[PARTS](rows, place)
        self.first = rows.part(place.row, self.steps.first, place.lane % UInt32(PARTS))
        self.num_steps = rows.num_steps

    @always_inline
    def store(
        self, place: LaneOfRow, index: UInt32, row_chunks: UInt32, values: Chunk, scale: UInt32
    ) -> Bool:
        """Stores elements times their scale, zeros past the end; says whether one is lost."""
        var factor = f32_of_scale(scale)
        var is_number = place.chunk(index) < row_chunks
        if self.steps.step(index) < self.num_steps and place.is_there:
            var to = self.steps.from_first(self.first, index).unsafe_bitcast[UInt32]()
            var numbers = packed_numbers(values * factor if is_number else Chunk(0))
            flat_of(to).store[alignment=LANE_BYTES](Coord(0), rebind[Pairs](numbers))
        return is_number and are_lost(values, factor)


def prepare[
    bits: Int, lies: Bool
](problem: Problem, tokens: Int, mut queue: Some[Queue]) raises -> NumberRows[bits, lies]:
    """Launches the kernel for tiles of so many tokens; returns where all will be."""
    var m = rows_in_workspace(problem)
    var n, k = problem.n, problem.k
    var memory = queue.workspace(workspace_of(m, n, k, tokens, lies))
    var operands = NumberRows[bits, lies].at(m, n, k, tokens, memory)
    var tile_groups = groups_of_tile(n) if lies else 1
    var num_groups = ceildiv(n, TILE_ROWS) * tile_groups
    var lanes = RowLanes.of(m, k)
    queue.launch[prepare_numbers[bits, lies]](
        Grid(
            num_groups + lanes.num_groups(),
            threads=THREADS,
            shared_bytes=WARPS * (StageRows.NUM_BYTES if lies else 4),
            starts_early=True,
        ),
        Activations(problem),
        Weights(problem),
        operands,
        lanes,
        UInt32(tile_groups),
        UInt32(num_groups),
    )
    return operands


def rows_in_workspace(problem: Problem) -> Int:
    """Returns the rows of tokens that become numbers: those that are kept are some."""
    return 0 if problem.left.kind == LeftKind.KEPT else problem.m


def groups_of_tile(n: Int) -> Int:
    """Returns the groups that share a tile of weights: enough for the device."""
    return min(ceildiv(RESIDENT_GROUPS * MULTIPROCESSORS, ceildiv(n, TILE_ROWS)), MAX_TILE_GROUPS)
