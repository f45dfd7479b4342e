"""C = A @ B.T by tiles on tensor cores: bfloat16 numbers, float32 sums; any shape, layout and pair.

    stage    64 of K: rows of A, copied; 128 rows of B, decoded on their way
    warps    two by four: half of the rows each, 32 columns

While a stage is multiplied the other one is filled: copies of A start before, and B's codes are
loaded; they are decoded and stored behind. Float scales multiply sums: in the end, or those of 128
of K, which begin anew each time. What bfloat16 numbers cannot hold is marked, see `operands`, and
computed in the end.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.sync import barrier
from std.math import ceildiv
from std.utils import StaticTuple

from ...launch.queue import Grid, Queue
from ...layouts import RUN_BYTES
from ...numbers.elements import Element
from ...numbers.formats import FORMATS
from ...problem import Known, Problem, may_be
from ...schedule.clusters import Bands
from ...tiles import in_registers
from ..arguments import Result, Weights
from ..instructions import FRAGMENT_SUMS, Quad, load_fragments, multiply_add, shared_base
from ..instructions import start_copy, wait_for_copies
from . import marked, rows
from .factors import ALL_FACTORS, FACTORS_OF_ALL, FACTORS_OF_STAGES, FactorPlaces, LaneFactors
from .factors import Sums, factors_of
from .operands import NUMBER_BYTES, STAGE, StagedRows, are_numbers, workspace_of
from .place import Place
from .result import store_sums, store_tile
from .shape import CHUNK_BYTES, COLUMNS, COLUMN_WARPS, FRAGMENT_COLUMNS, FRAGMENT_ROWS, HALVES
from .shape import PASS_ROWS, ROW_BYTES, ROW_WARPS, STEP, STEP_CHUNKS, THREADS, WARP_COLUMNS
from .shape import place_in_stage
from .weights import WeightLoads

comptime FEW_ROWS = 16
"""Up to this many rows of C a warp a row is as fast. Guess."""
comptime MANY_ROWS = 128
"""Rows of a large tile."""
comptime ALL_ROWS = [64, MANY_ROWS]
"""Rows of a tile, see `fits`."""
comptime MANY_TILES = 96
"""So many large tiles leave no GPU idle. Guess."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(2),
)
def matmul_tile[
    element: Element, tile_rows: Int, factors: Int
](staged: StagedRows, w: Weights, layout: Int32, result: Result):
    """Computes a tile of C."""
    var bands = Bands(
        (result.rows + UInt32(tile_rows - 1)) // UInt32(tile_rows),
        (result.columns + UInt32(COLUMNS - 1)) // UInt32(COLUMNS),
    )
    var tile = bands.tile(Int(block_idx.x))
    var first_row, first_column = UInt32(tile.row * tile_rows), UInt32(tile.column * COLUMNS)
    var place = Place[tile_rows](shared_base(), 0)
    var loads = WeightLoads[element].of(w, layout, first_column, result.columns, staged.k)
    place.flags().clear()
    barrier()

    copy_rows(staged, place, 0, first_row, 0)
    comptime for half in range(HALVES):
        loads.load[half](w, layout, staged.k)
        loads.store[half](place.right(0), place.flags())
    var sums = in_registers_of_zeros[tile_rows]()
    var totals = in_registers_of_zeros[tile_rows]()
    var of_stage = LaneFactors[tile_rows](1, 1)
    comptime Places = FactorPlaces[tile_rows]
    var places = Places.of(staged, w, first_row, first_column, result)
    var num_steps = (staged.k + UInt32(STEP - 1)) // UInt32(STEP)
    for step in range(num_steps):
        wait_for_copies()
        barrier()
        var next = 1 - place.stage
        var is_last = step + 1 == num_steps
        if not is_last:
            copy_rows(staged, place, next, first_row, step + 1)
            loads.advance()
        comptime if factors == FACTORS_OF_STAGES:
            if step % UInt32(STAGE // STEP) == 0:
                of_stage = places.load(step * UInt32(STEP) // UInt32(STAGE), place.flags())
        comptime for half in range(HALVES):
            if not is_last:
                loads.load[half](w, layout, staged.k)
            multiply[half](place, sums)
            if not is_last:
                loads.store[half](place.right(next), place.flags())
        comptime if factors == FACTORS_OF_STAGES:
            if is_last or (step + 1) % UInt32(STAGE // STEP) == 0:
                of_stage.add(sums, totals)
        place.stage = next

    barrier()
    comptime if factors == FACTORS_OF_STAGES:
        store_sums[ROW_WARPS](place.base, totals)
    else:
        comptime if factors == FACTORS_OF_ALL:
            places = Places.of(staged, w, first_row, first_column, result)
            places.load(0, place.flags()).apply(sums)
        store_sums[ROW_WARPS](place.base, sums)
    barrier()
    store_tile[tile_rows](place.base, result, first_row, first_column)
    if tile.row == 0:
        place.flags().write(staged, first_column, result.columns)


@always_inline
def in_registers_of_zeros[tile_rows: Int]() -> Sums[tile_rows]:
    """Returns sums of nothing."""
    comptime M_TILES = tile_rows // ROW_WARPS // FRAGMENT_ROWS
    comptime N_TILES = WARP_COLUMNS // FRAGMENT_COLUMNS
    var sums = in_registers[DType.float32, FRAGMENT_SUMS, M_TILES, N_TILES]()
    comptime for m_tile in range(M_TILES):
        comptime for n_tile in range(N_TILES):
            sums[m_tile, n_tile] = 0
    return sums


@always_inline
def copy_rows[
    tile_rows: Int, //
](staged: StagedRows, place: Place[tile_rows], stage: UInt32, first_row: UInt32, step: UInt32):
    """Starts the copies of the rows of A of a step; zeros where there are none."""
    var row_in_tile, chunk = divmod(UInt32(thread_idx.x), UInt32(STEP_CHUNKS))
    var at = place.left(stage) + place_in_stage(row_in_tile, chunk)
    var byte = step * UInt32(ROW_BYTES) + chunk * UInt32(CHUNK_BYTES)
    var is_in_k = byte < staged.k * UInt32(NUMBER_BYTES)
    var row = first_row + row_in_tile
    var source = staged.numbers.unsafe_offset(Int(row) * staged.row_bytes + Int(byte))
    comptime for i in range(tile_rows // PASS_ROWS):
        var is_there = is_in_k and row + UInt32(i * PASS_ROWS) < staged.rows
        # Nothing is read where there is nothing, but the address has to be one.
        var from_row = source.unsafe_offset(i * PASS_ROWS * staged.row_bytes)
        start_copy(
            at + UInt32(i * PASS_ROWS * ROW_BYTES),
            from_row if is_there else staged.numbers,
            is_there,
        )


@always_inline
def multiply[tile_rows: Int, //, half: Int](place: Place[tile_rows], sums: Sums[tile_rows]):
    """Adds a warp's products of half of a stage."""
    comptime M_TILES = tile_rows // ROW_WARPS // FRAGMENT_ROWS
    comptime PAIRS = WARP_COLUMNS // FRAGMENT_ROWS
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var row_warp, column_warp = divmod(warp, UInt32(COLUMN_WARPS))
    # Lane l tells where row l % 16 of A is, the first or the second eight of K; of B, row l % 8 of
    # the first or second eight rows, K in turn.
    var row = row_warp * UInt32(tile_rows // ROW_WARPS) + lane % 16
    var left = place.left(place.stage) + place_in_stage(row, lane // 16)
    var column = column_warp * UInt32(WARP_COLUMNS) + lane // 16 * 8 + lane % 8
    var right = place.right(place.stage) + place_in_stage(column, lane // 8 % 2)
    comptime HALF_STEPS = STEP // FRAGMENT_ROWS // HALVES
    comptime for k_step in range(half * HALF_STEPS, (half + 1) * HALF_STEPS):
        comptime TURN = UInt32(2 * k_step * CHUNK_BYTES)
        var of_left = Array[Quad[DType.uint32], M_TILES](uninitialized=True)
        comptime for i in range(M_TILES):
            of_left[i] = load_fragments((left ^ TURN) + UInt32(i * FRAGMENT_ROWS * ROW_BYTES))
        comptime for pair in range(PAIRS):
            var at = (right ^ TURN) + UInt32(pair * FRAGMENT_ROWS * ROW_BYTES)
            var of_right = load_fragments(at)
            comptime for i in range(M_TILES):
                comptime for j in range(2):
                    sums[i, 2 * pair + j] = multiply_add(
                        of_left[i], of_right.slice[2, offset=2 * j](), sums[i, 2 * pair + j]
                    )


def takes(m: Int) -> Bool:
    """Says whether the kernel is for so many rows of C."""
    return m > FEW_ROWS


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: not few rows, weights at words and within 4 GiB."""
    comptime MAX_BYTES = 1 << 32
    var are_near = (problem.n + COLUMNS) * problem.k < MAX_BYTES
    return takes(problem.m) and problem.right.codes % RUN_BYTES == 0 and are_near


def tile_rows_of(m: Int, n: Int, factors: Int) -> Int:
    """Returns the rows of a tile."""
    var large_tiles = ceildiv(m, MANY_ROWS) * ceildiv(n, COLUMNS)
    return MANY_ROWS if large_tiles >= MANY_TILES and fits(MANY_ROWS, factors) else MANY_ROWS // 2


def fits(tile_rows: Int, factors: Int) -> Bool:
    """Says whether there are such tiles: with factors of stages sums have to fit twice."""
    return tile_rows != MANY_ROWS or factors != FACTORS_OF_STAGES


def grid(m: Int, n: Int, tile_rows: Int) -> Grid:
    """Returns the grid for C of [m, n]."""
    var shared_bytes = 0
    comptime for rows in ALL_ROWS:
        if tile_rows == rows:
            shared_bytes = Place[rows].NUM_BYTES
    return Grid(
        ceildiv(m, tile_rows) * ceildiv(n, COLUMNS), threads=THREADS, shared_bytes=shared_bytes
    )


def launch[known: Known](problem: Problem, mut queue: Some[Queue]) raises:
    """Prepares the activations, multiplies, and computes what is marked."""
    var space = workspace_of(problem.m, problem.n, problem.k)
    var staged = StagedRows.at(problem.m, problem.k, queue.workspace(space))
    if are_numbers(problem):
        staged = staged.reading(problem)
    else:
        rows.launch(problem, staged, queue)
    comptime for i in range(len(FORMATS)):
        comptime if may_be(known.right_format, i):
            if problem.right.format == i:
                _launch[FORMATS[i].element](problem, staged, queue)
    marked.launch[known](problem, staged, queue)


def _launch[element: Element](problem: Problem, staged: StagedRows, mut queue: Some[Queue]) raises:
    """Launches an instance of the kernel."""
    var wanted = factors_of(problem.left.format, problem.right.format, problem.k)
    var rows = tile_rows_of(problem.m, problem.n, wanted)
    comptime for tile_rows in ALL_ROWS:
        comptime for factors in ALL_FACTORS:
            comptime if fits(tile_rows, factors):
                if rows == tile_rows and factors == wanted:
                    queue.launch[matmul_tile[element, tile_rows, factors]](
                        grid(problem.m, problem.n, tile_rows),
                        staged,
                        Weights(problem),
                        Int32(problem.right.layout),
                        Result(problem),
                    )
