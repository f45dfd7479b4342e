"""Tokens become stages: E4M3 bytes, encoded here or as they come, or bfloat16 numbers.

A row has some lanes, see `dense.lanes`; a lane takes chunks of eight elements, some of which are on
the way at once. Sixteen neighbours share the factor of a stage. What lies past the end of K is zero.
A row has a mark if one of its elements times its scale is no bfloat16 number.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from std.bit import log2_floor
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import DevicePointer, Grid, Queue
from ...numbers.floats import FLOAT_TYPES, float_code
from ...numbers.formats import block_of, has_float_scales
from ...numbers.rounding import float_scale_from_amax
from ...problem import LeftKind, Problem
from ...simt.arguments import Activations, Weights
from ...simt.codec import CHUNK, Chunk, LANES_PER_BLOCK
from ...simt.codec import amax_of_lanes, f32_of_scale, scale_of_magnitude
from ...simt.views import flat_of, rows_of
from ..dense.lanes import LANE_CHUNKS, LaneOfRow, LaneSteps, RESIDENT_GROUPS, RowLanes
from ..dense.lanes import THREADS, WARPS
from ..dense.stages import StagedRows
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..instructions.packed import Pairs, WORD_PAIRS
from ..instructions.shared_memory import shared_base
from ..instructions.warp import keep_branch
from ..instructions.wgmma import ROW_BYTES
from ..layout import BLOCK, TILE_ROWS
from ..many.kernel import MULTIPROCESSORS
from ..staged.activations import LANE_BYTES, PARTS
from .encode import ELEMENT, encode, magnitude_of, rounded
from .numbers import CHUNK_WORDS, Words, are_lost, decode_bytes, packed_numbers
from .operands import Scaling, StagedOperands, workspace_of
from .scales import WeightScales
from .weights import mark_weights

comptime MAX_TILE_GROUPS = 32
"""The most groups that share a tile of weights."""
comptime STAGE_CHUNKS = ROW_BYTES // CHUNK
"""Chunks of a token in a stage of bytes."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def prepare_operands[
    scaling: Scaling, bits: Int, stages_weights: Bool
](
    a: Activations,
    w: Weights,
    operands: StagedOperands[scaling, bits, stages_weights],
    lanes: RowLanes,
    tile_groups: UInt32,
    num_groups: UInt32,
):
    """Prepares rows of tokens, or a part of a tile of weights; groups of weights come first."""
    wait_on_dependent_grids()
    launch_dependent_grids()
    var index = UInt32(block_idx.x)
    if index < num_groups:
        var tile, group = divmod(index, tile_groups)
        comptime if stages_weights:
            comptime Units = TileUnits[StagedOperands[scaling, bits, stages_weights]]
            var units = Units.of(w, UInt32(a.k), tile, operands.num_weights)
            var loaded = load_stage(operands, units, first_step_of[WARPS](group))
            if group == 0:
                mark_weights(w, operands, tile, UInt32(a.k))
            store_stages[WARPS](operands, units, loaded^, tile, shared_base(), group, tile_groups)
        else:
            mark_weights(w, operands, tile, UInt32(a.k))
        return
    var place = LaneOfRow(lanes, index - num_groups)
    if a.is_encoded():
        comptime if scaling == Scaling.NUMBERS:
            store_decoded(a, operands, place)
        else:
            copy_row(a, operands, place)
        return
    comptime for dtype in FLOAT_TYPES:
        if a.dtype == Int32(float_code(dtype)):
            keep_branch()
            comptime if scaling == Scaling.NUMBERS:
                store_rounded[dtype](a, operands, place)
            else:
                store_encoded[dtype](a, operands, place)


comptime Floats[dtype: DType] = Array[SIMD[dtype, CHUNK], LANE_CHUNKS]
"""Chunks of a lane that are on the way at once."""


@always_inline
def load_floats[dtype: DType](a: Activations, place: LaneOfRow, index: UInt32) -> Floats[dtype]:
    """Loads a lane's chunks from one on; blocks past the end repeat the last one."""
    var row_chunks = UInt32(a.k // CHUNK)
    var last = row_chunks - UInt32(LANES_PER_BLOCK) + place.lane % UInt32(LANES_PER_BLOCK)
    var found = Floats[dtype](uninitialized=True)
    comptime for i in range(LANE_CHUNKS):
        var at = Int(min(place.chunk(index + UInt32(i)), last)) * CHUNK
        var row = a.floats().rows[dtype]()
        found[i] = row.load[width=CHUNK, alignment=LANE_BYTES](Coord(Int(place.row), at))
    return found^


@always_inline
def store_encoded[
    dtype: DType, scaling: Scaling
](a: Activations, operands: StagedOperands[scaling, ...], place: LaneOfRow):
    """Encodes floats."""
    var row_chunks = UInt32(a.k // CHUNK)
    var format = Int(a.format)
    var has_one_scale = has_float_scales(format) and block_of(format).k_blocks(a.k) == 1
    var row_amax = UInt32(0)
    var floats = load_floats[dtype](a, place, 0)
    var index = UInt32(LANE_CHUNKS)
    if has_one_scale:
        comptime for i in range(LANE_CHUNKS):
            row_amax = max(row_amax, magnitude_of(floats[i]))
        while place.has_any(index, row_chunks):
            var more = load_floats[dtype](a, place, index)
            comptime for i in range(LANE_CHUNKS):
                row_amax = max(row_amax, magnitude_of(more[i]))
            index += UInt32(LANE_CHUNKS)
        row_amax = place.lanes.largest(SIMD[DType.uint32, 1](row_amax))[0]
    var factor = float_scale_from_amax(row_amax, materialize[ELEMENT](), a.carry != 0)
    # Stages begin and end with sixteen neighbours.
    var num_chunks = operands.left.num_steps * UInt32(STAGE_CHUNKS)
    var steps = LaneSteps.of[STAGE_CHUNKS](operands.left, place)
    var part, half = divmod(place.lane % UInt32(STAGE_CHUNKS), UInt32(STAGE_CHUNKS // PARTS))
    var codes = operands.left.part(place.row, steps.first, part)
    codes = codes.unsafe_offset(Int(half) * CHUNK)
    index = 0
    while place.has_any(index, num_chunks):
        if index > 0:
            floats = load_floats[dtype](a, place, index)
        comptime for i in range(LANE_CHUNKS):
            if place.has_any(index, num_chunks):
                var is_number = place.chunk(index) < row_chunks
                var x = floats[i] if is_number else SIMD[dtype, CHUNK](0)
                comptime if scaling == Scaling.STAGES:
                    if not has_one_scale:
                        keep_branch()
                        var amax = amax_of_lanes[log2_floor(STAGE_CHUNKS)](magnitude_of(x))
                        factor = float_scale_from_amax(amax, materialize[ELEMENT](), a.carry != 0)
                var words = encode(x.cast[DType.float32](), factor)
                if steps.step(index) < operands.left.num_steps and place.is_there:
                    var to = steps.from_first(codes, index).unsafe_bitcast[UInt32]()
                    flat_of(to).store[alignment=CHUNK](Coord(0), words)
                    comptime if scaling == Scaling.STAGES:
                        if part == 0 and half == 0:
                            var of_stage = operands.left.factor(place.row, steps.first)
                            flat_of(steps.from_first(of_stage, index))[0] = factor
            index += 1
    comptime if scaling == Scaling.ROWS:
        if place.lane == 0 and place.is_there:
            flat_of(operands.row_scales)[Int(place.row)] = factor
    clear_mark(operands, place)


@always_inline
def copy_row[
    scaling: Scaling
](a: Activations, operands: StagedOperands[scaling, ...], place: LaneOfRow):
    """Copies codes and scales."""
    var row_parts = UInt32(a.k // LANE_BYTES)
    var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
    var num_steps = operands.left.num_steps
    var steps = LaneSteps.of[PARTS](operands.left, place)
    var first = operands.left.part(place.row, steps.first, place.lane % UInt32(PARTS))
    var index = UInt32(0)
    while place.has_any(index, num_steps * UInt32(PARTS)):
        var words = Array[Pairs, LANE_CHUNKS](uninitialized=True)
        comptime for i in range(LANE_CHUNKS):
            var part = min(place.chunk(index + UInt32(i)), row_parts - 1)
            words[i] = codes.load[width=WORD_PAIRS, alignment=LANE_BYTES](
                Coord(Int(place.row), Int(part) * WORD_PAIRS)
            )
        comptime for i in range(LANE_CHUNKS):
            if steps.step(index) < num_steps and place.is_there:
                var to = steps.from_first(first, index).unsafe_bitcast[UInt32]()
                var there = words[i] if place.chunk(index) < row_parts else Pairs(0)
                flat_of(to).store[alignment=LANE_BYTES](Coord(0), there)
            index += 1
    if not place.is_there:
        return
    var scales = flat_of(a.scales.unsafe_bitcast[Float32]())
    var block = block_of(Int(a.format))
    comptime if scaling == Scaling.ROWS:
        if place.lane == 0:
            var at = block.index(Int(place.row), 0, a.k)
            flat_of(operands.row_scales)[Int(place.row)] = scales[at]
    else:
        for step in range(place.lane, num_steps, place.lanes.lanes()):
            var at = block.index(Int(place.row), Int(step) * ROW_BYTES, a.k)
            flat_of(operands.left.factor(place.row, UInt32(step)))[0] = scales[at]
    clear_mark(operands, place)


@always_inline
def clear_mark(operands: StagedOperands[...], place: LaneOfRow):
    """Says that all of a row is in its stages."""
    if place.lane == 0 and place.is_there:
        flat_of(operands.left_marks)[Int(place.row)] = 0


@always_inline
def store_mark(operands: StagedOperands[...], place: LaneOfRow, loses: Bool):
    """Writes the mark of a row, of which this thread's elements are lost or not."""
    var mark = place.lanes.largest(SIMD[DType.uint32, 1](UInt32(1) if loses else UInt32(0)))[0]
    if place.lane == 0 and place.is_there:
        flat_of(operands.left_marks)[Int(place.row)] = mark.cast[DType.uint8]()


@always_inline
def store_rounded[dtype: DType](a: Activations, operands: StagedOperands[...], place: LaneOfRow):
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
def store_decoded(a: Activations, operands: StagedOperands[...], place: LaneOfRow):
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
    scaling: Scaling, bits: Int, stages_weights: Bool
](problem: Problem, tokens: Int, mut queue: Some[Queue]) raises -> StagedOperands[
    scaling, bits, stages_weights
]:
    """Launches the kernel for tiles of so many tokens; returns where all will be."""
    var m, n, k = problem.m, problem.n, problem.k
    var memory = queue.workspace(workspace_of(m, n, k, tokens, scaling, stages_weights))
    var scales = WeightScales.of(problem)
    var operands = StagedOperands[scaling, bits, stages_weights].at(m, n, k, tokens, memory, scales)
    var tile_groups = groups_of_tile(n) if stages_weights else 1
    var num_groups = ceildiv(n, TILE_ROWS) * tile_groups
    # Codes that are copied come sixteen at a time.
    var is_copied = problem.left.kind == LeftKind.ENCODED and scaling != Scaling.NUMBERS
    var lanes = RowLanes.of(m, k // 2 if is_copied else k)
    queue.launch[prepare_operands[scaling, bits, stages_weights]](
        Grid(
            num_groups + lanes.num_groups(),
            threads=THREADS,
            shared_bytes=WARPS * (StageRows.NUM_BYTES if stages_weights else 4),
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


def groups_of_tile(n: Int) -> Int:
    """Returns the groups that share a tile of weights: enough for the device."""
    return min(ceildiv(RESIDENT_GROUPS * MULTIPROCESSORS, ceildiv(n, TILE_ROWS)), MAX_TILE_GROUPS)
