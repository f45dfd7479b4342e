"""Both sides made ready for FP8 tensor cores: rows of bytes, and what they are multiplied by.

One kernel: a group takes rows of tokens, or a tile of weight rows, its scales and some of its stages. A
row of tokens has some lanes, see `dense.lanes`; a lane takes chunks of eight elements, some of which are
on the way at once, and sixteen neighbours find the base of a stage together.
"""

from layout import Coord
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import shuffle_xor
from std.bit import log2_floor
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.grid import Grid
from ...launch.queue import DevicePointer, Queue
from ...numbers.floats import FLOAT_TYPES, float_code
from ...numbers.scales import E8M0_NAN
from ...problem import Problem
from ...simt.arguments import Activations, Weights
from ...simt.codec import LANES_PER_BLOCK
from ...simt.codec import amax_of_lanes, f32_of_scale, scale_of_magnitude
from ...simt.host import CHUNK
from ...simt.views import flat_of, rows_of
from ..dense.lanes import LaneOfRow, LaneSteps, RowLanes
from ..dense.lanes import load_floats
from ..dense.units import StageRows
from ..dense.weights import TileUnits, first_step_of, load_stage, store_stages
from ..fp8.codes import BYTE_MAGNITUDES, EMPTY_BASE, NO_BASE
from ..fp8.rows import groups_of_tile
from ..fp8.tokens import LaneBytes
from ..fp8.weights import SHARED_BYTES, find_bases
from ..host.workspace import (
    LANE_CHUNKS,
    PREPARE_THREADS as THREADS,
    PREPARE_WARPS as WARPS,
    RESIDENT_GROUPS,
    workspace_of_aligned,
)
from ..instructions.shared_memory import shared_base
from ..instructions.warp import keep_branch
from ..layout import BLOCK, TILE_ROWS
from ..operands.e4m3 import CHUNK_WORDS, ELEMENT, Words, encode_block, magnitude_of
from ..shapes import LANE_BYTES, ROW_BYTES
from .codes import MARKED, aligned, is_token_base
from .operands import AlignedRows

comptime STEP_CHUNKS = ROW_BYTES // CHUNK
"""Chunks of a row in a stage."""
comptime CHUNK_BYTES = CHUNK
"""Bytes of a chunk."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def align_rows[
    bits: Int, lies: Bool
](
    a: Activations,
    w: Weights,
    rows: AlignedRows[bits, lies],
    lanes: RowLanes,
    tile_groups: UInt32,
    num_groups: UInt32,
):
    """Prepares rows of tokens, or a part of a tile of weights; groups of weights come first.

    Nobody makes weights before: those groups wait for other kernels when they have read them.
    """
    launch_dependent_grids()
    var index = UInt32(block_idx.x)
    if index < num_groups:
        var tile, group = divmod(index, tile_groups)
        comptime if lies:
            var units = TileUnits[AlignedRows[bits, lies]].of(w, UInt32(a.k), tile)
            var loaded = load_stage(rows, units, first_step_of[WARPS](group))
            units.rows = find_bases[bits](w, rows.bases, tile, UInt32(a.k))
            comptime for part in range(units.UNITS):
                loaded[part].rows = units.rows
            store_stages[WARPS](rows, units, loaded^, tile, shared_base(), group, tile_groups)
        else:
            _ = find_bases[bits](w, rows.bases, tile, UInt32(a.k))
        return
    wait_on_dependent_grids()
    var place = LaneOfRow(lanes, index - num_groups)
    if a.is_encoded():
        return align_codes(a, rows, place)
    comptime for dtype in FLOAT_TYPES:
        if a.dtype == Int32(float_code(dtype)):
            keep_branch()
            align_floats[dtype](a, rows, place)


@always_inline
def align_floats[dtype: DType](a: Activations, rows: AlignedRows[...], place: LaneOfRow):
    """Encodes a row of floats, and writes it."""
    var bytes = AlignedPlaces(rows, place)
    var row_chunks = UInt32(a.k // CHUNK)
    var is_marked = False
    var index = UInt32(0)
    while place.has_any(index, rows.left.num_steps * UInt32(STEP_CHUNKS)):
        var floats = load_floats[dtype](a, place, index)
        comptime for i in range(LANE_CHUNKS):
            # All lanes take every turn: those of a block ask together.
            var amax = amax_of_lanes[log2_floor(LANES_PER_BLOCK)](magnitude_of(floats[i]))
            var scale = scale_of_magnitude(amax, a.carry, materialize[ELEMENT]())
            var words = encode_block(floats[i].cast[DType.float32](), scale)
            is_marked |= bytes.store(rows, place, index, row_chunks, words, scale)
            index += 1
    store_mark(rows, place, is_marked)


@always_inline
def align_codes(a: Activations, rows: AlignedRows[...], place: LaneOfRow):
    """Writes a row of codes."""
    var bytes = AlignedPlaces(rows, place)
    var row_chunks = UInt32(a.k // CHUNK)
    var codes = rows_of(a.values.unsafe_bitcast[UInt32](), a.k // 4)
    var scales = rows_of(a.scales, a.k // BLOCK)
    var row = Int(place.source)
    var is_marked = False
    var index = UInt32(0)
    while place.has_any(index, rows.left.num_steps * UInt32(STEP_CHUNKS)):
        var words = Array[Words, LANE_CHUNKS](uninitialized=True)
        var found = Array[UInt8, LANE_CHUNKS](uninitialized=True)
        comptime for i in range(LANE_CHUNKS):
            var chunk = Int(min(place.chunk(index + UInt32(i)), row_chunks - 1))
            words[i] = codes.load[width=CHUNK_WORDS, alignment=CHUNK](
                Coord(row, chunk * CHUNK_WORDS)
            )
            found[i] = scales[row, chunk // LANES_PER_BLOCK]
        comptime for i in range(LANE_CHUNKS):
            var scale = found[i].cast[DType.uint32]()
            is_marked |= bytes.store(rows, place, index, row_chunks, words[i], scale)
            index += 1
    store_mark(rows, place, is_marked)


@always_inline
def store_mark(rows: AlignedRows[...], place: LaneOfRow, is_marked: Bool):
    """Writes whether a row is marked, of which this thread's elements are or are not."""
    var mark = place.lanes.largest(SIMD[DType.uint32, 1](UInt32(1) if is_marked else UInt32(0)))[0]
    if place.lane == 0 and place.is_there:
        var base = NO_BASE if mark != 0 else EMPTY_BASE.cast[DType.uint8]()
        rows.bases.of_tokens()[Int(place.row)] = base


struct AlignedPlaces[bits: Int, lies: Bool](TrivialRegisterPassable):
    """Where a lane's chunks of a row go as bytes."""

    var steps: LaneSteps
    var first: DevicePointer[DType.uint8]
    var decodes: LaneBytes[Self.bits]
    """The same where weights are decoded as they go."""

    @always_inline
    def __init__(out self, rows: AlignedRows[Self.bits, Self.lies], place: LaneOfRow):
        """Finds those of a row."""
        self.decodes = LaneBytes[Self.bits].of(rows.left, place)
        comptime PART_CHUNKS = LANE_BYTES // CHUNK_BYTES
        var part, in_part = divmod(place.lane % UInt32(STEP_CHUNKS), UInt32(PART_CHUNKS))
        self.steps = LaneSteps.of[STEP_CHUNKS](rows.left, place)
        self.first = rows.left.part(place.row, self.steps.first, part).unsafe_offset(
            CHUNK_BYTES * Int(in_part)
        )

    @always_inline
    def store(
        self,
        rows: AlignedRows[Self.bits, Self.lies],
        place: LaneOfRow,
        index: UInt32,
        row_chunks: UInt32,
        words: Words,
        scale: UInt32,
    ) -> Bool:
        """Stores codes under their stage's base, zeros past the end, and its factor.

        Says whether there is no base. All lanes of the warp call it.
        """
        var is_inside = place.chunk(index) < row_chunks
        var magnitudes = (words[0] | words[1]) & BYTE_MAGNITUDES
        var counts = magnitudes != 0 or scale == UInt32(E8M0_NAN)
        counts = counts and is_inside
        # The largest scale of blocks that are no zeros, and the smallest one.
        var largest = scale if counts else 0
        var above = ~scale if counts else 0
        comptime for step in range(log2_floor(STEP_CHUNKS)):
            largest = max(largest, shuffle_xor(largest, UInt32(1 << step)))
            above = max(above, shuffle_xor(above, UInt32(1 << step)))
        var base = largest if above != 0 else EMPTY_BASE
        var is_base = above == 0 or is_token_base(largest, ~above)
        var bytes = aligned(words, base - scale) if counts else Words(0)
        comptime if not Self.lies:
            self.decodes.store(index, bytes)
        var step = self.steps.step(index)
        if step < rows.left.num_steps and place.is_there:
            comptime if Self.lies:
                var to = self.steps.from_first(self.first, index).unsafe_bitcast[UInt32]()
                flat_of(to).store[alignment=CHUNK_BYTES](Coord(0), bytes)
            if place.lane % UInt32(STEP_CHUNKS) == 0:
                var factor = f32_of_scale(base) if is_base else Float32(from_bits=MARKED)
                flat_of(rows.factor_at(place.row, step))[0] = factor
        return not is_base


def prepare[
    bits: Int, lies: Bool
](problem: Problem, tokens: Int, mut queue: Some[Queue]) raises -> AlignedRows[bits, lies]:
    """Launches the kernel for tiles of so many tokens; returns where all will be."""
    var m, n, k = problem.m, problem.n, problem.k
    var space = queue.workspace(workspace_of_aligned(m, n, k, tokens, lies))
    var rows = AlignedRows[bits, lies].at(m, n, k, tokens, space)
    var tile_groups = groups_of_tile(n, k) if lies else 1
    var num_groups = ceildiv(n, TILE_ROWS) * tile_groups
    var lanes = RowLanes.of(m, k)
    queue.launch[align_rows[bits, lies]](
        Grid(
            num_groups + lanes.num_groups(),
            threads=THREADS,
            shared_bytes=WARPS * StageRows.NUM_BYTES if lies else SHARED_BYTES,
            starts_early=True,
        ),
        Activations(problem),
        Weights(problem),
        rows,
        lanes,
        UInt32(tile_groups),
        UInt32(num_groups),
    )
    return rows
