"""C = A @ B.T by tiles on tensor cores: bfloat16 numbers, float32 sums; any shape, layout and pair.

    stage    64 of K: rows of A, copied; 128 rows of B, decoded on their way
    warps    two by four: half of the rows each, 32 columns

While a stage is multiplied, A's rows of the next one are copied and B's codes of the one after that are
loaded: decoded and stored they are when that next one is what is multiplied. Float scales multiply
sums: in the end, or those of 128 of K, which begin anew each time. What bfloat16 numbers cannot
hold is marked, see `operands`, and computed in the end.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...launch.queue import DevicePointer, Grid, Queue, Workspace
from ...layouts import RUN_BYTES
from ...numbers.elements import Element
from ...numbers.formats import FORMATS
from ...problem import Known, Problem, may_be
from ...schedule.clusters import Bands
from ...tiles import in_registers
from ..arguments import Result, Weights
from ..instructions import FRAGMENT_SUMS, Quad, here, load_fragments, multiply_add, shared_base
from ..instructions import start_copy, wait_for_copies
from . import marked, parts, rows
from .cut import ALL_ROWS, Cut, MANY_ROWS, STAGE_STEPS, Steps
from .factors import ALL_FACTORS, FACTORS_OF_ALL, FACTORS_OF_STAGES, FactorPlaces, LaneFactors
from .factors import Sums, factors_of
from .operands import NUMBER_BYTES, StagedRows, are_numbers
from .parts import of_part, sum_bytes
from .place import Place
from .result import store_sums, store_tile
from .shape import CHUNK_BYTES, COLUMNS, COLUMN_WARPS, FRAGMENT_COLUMNS, FRAGMENT_ROWS
from .shape import PASS_ROWS, ROW_BYTES, ROW_WARPS, STEP, STEP_CHUNKS, THREADS, WARP_COLUMNS
from .shape import place_in_stage
from .weights import WeightLoads

comptime FEW_ROWS = 16
"""Up to this many rows of C..."""
comptime SHORT_K = 256
"""...of so short a K at most, a warp a row is faster than the launches that tiles want. Guess."""


@always_inline
def resident_groups(tile_rows: Int, factors: Int) -> Int:
    """Returns the groups of a multiprocessor: with factors of stages, sums are there twice."""
    return 1 if tile_rows == MANY_ROWS and factors == FACTORS_OF_STAGES else 2


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(resident_groups(tile_rows, factors)),
)
def matmul_tile[
    element: Element, tile_rows: Int, factors: Int
](
    staged: StagedRows,
    w: Weights,
    layout: Int32,
    result: Result,
    sums_of_parts: DevicePointer[DType.float32],
):
    """Computes a tile of C, or a part of its sums."""
    var share = PartOfTile.of[tile_rows](UInt32(block_idx.x), staged.column_parts, result)
    var steps = Steps.of(share.part, staged.column_parts, staged.k)
    var first_row, first_column = share.first_row, share.first_column
    var place = Place[tile_rows](shared_base(), 0)
    var loads = WeightLoads[element].of(w, layout, first_column, result.columns, staged.k)
    loads.advance(steps.first)
    place.flags().clear()
    barrier()

    copy_rows(staged, place, 0, first_row, steps.first)
    loads.load(w, layout, staged.k)
    loads.store(place.right(0), place.flags())
    loads.load(w, layout, staged.k)
    var sums = in_registers_of_zeros[tile_rows]()
    var totals = in_registers_of_zeros[tile_rows]()
    var of_stage = LaneFactors[tile_rows](1, 1)
    comptime Places = FactorPlaces[tile_rows]
    var places = Places.of(staged, w, first_row, first_column, result)
    # Half of the warps of large tiles decode while the others multiply.
    comptime TAKES_TURNS = tile_rows == MANY_ROWS
    var is_early = not TAKES_TURNS or UInt32(thread_idx.x) < UInt32(THREADS // 2)
    for step in range(steps.first, steps.end):
        wait_for_copies()
        barrier()
        var next = 1 - place.stage
        var is_last = step + 1 == steps.end
        if not is_last:
            copy_rows(staged, place, next, first_row, step + 1)
            if is_early:
                fill(loads, w, layout, staged.k, place, next)
        comptime if factors == FACTORS_OF_STAGES:
            if step % UInt32(STAGE_STEPS) == 0:
                of_stage = places.load(step // UInt32(STAGE_STEPS))
        multiply(place, sums)
        if TAKES_TURNS and not is_last and not is_early:
            fill(loads, w, layout, staged.k, place, next)
        comptime if factors == FACTORS_OF_STAGES:
            if is_last or (step + 1) % UInt32(STAGE_STEPS) == 0:
                Places.flag(of_stage, place.flags())
                of_stage.add(sums, totals)
        place.stage = next

    barrier()
    # Once more: registers of the loop need not hold it.
    share = PartOfTile.of[tile_rows](here(UInt32(block_idx.x)), staged.column_parts, result)
    first_row, first_column = share.first_row, share.first_column
    comptime if factors == FACTORS_OF_STAGES:
        store_sums[ROW_WARPS](place.base, totals)
    else:
        comptime if factors == FACTORS_OF_ALL:
            places = Places.of(staged, w, first_row, first_column, result)
            of_stage = places.load(0)
            Places.flag(of_stage, place.flags())
            of_stage.apply(sums)
        store_sums[ROW_WARPS](place.base, sums)
    barrier()
    if staged.column_parts == 1:
        store_tile[tile_rows](place.base, result, first_row, first_column)
    else:
        var target = of_part(result, sums_of_parts, share.part)
        store_tile[tile_rows](place.base, target, first_row, first_column)
    if first_row == 0:
        place.flags().write(staged, share.part, first_column, result.columns)


@fieldwise_init
struct PartOfTile(TrivialRegisterPassable):
    """What a group computes: a tile of C, and a part of K."""

    var first_row: UInt32
    var first_column: UInt32
    var part: UInt32

    @staticmethod
    @always_inline
    def of[tile_rows: Int](group: UInt32, parts: UInt32, result: Result) -> Self:
        """Returns that of a group: parts of a tile are neighbours."""
        var bands = Bands(
            (result.rows + UInt32(tile_rows - 1)) // UInt32(tile_rows),
            (result.columns + UInt32(COLUMNS - 1)) // UInt32(COLUMNS),
        )
        var index, part = divmod(group, parts)
        var tile = bands.tile(Int(index))
        return Self(UInt32(tile.row * tile_rows), UInt32(tile.column * COLUMNS), part)


@always_inline
def fill(
    mut loads: WeightLoads[_], w: Weights, layout: Int32, k: UInt32, place: Place[_], stage: UInt32
):
    """Decodes and stores a thread's weights of a stage, and loads those of the step behind."""
    loads.store(place.right(stage), place.flags())
    # Past the end they are of no use to anybody.
    loads.load(w, layout, k)


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
def multiply[tile_rows: Int, //](place: Place[tile_rows], sums: Sums[tile_rows]):
    """Adds a warp's products of a stage."""
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
    comptime for k_step in range(STEP // FRAGMENT_ROWS):
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


def takes(m: Int, k: Int) -> Bool:
    """Says whether the kernel is for products of so many rows and so long a K."""
    return m > FEW_ROWS or k > SHORT_K


def supports(problem: Problem) -> Bool:
    """Says whether the kernel takes a problem: not tiny, weights at words and within 4 GiB."""
    comptime MAX_BYTES = 1 << 32
    var are_near = (problem.n + COLUMNS) * problem.k < MAX_BYTES
    return takes(problem.m, problem.k) and problem.right.codes % RUN_BYTES == 0 and are_near


def workspace_of(m: Int, n: Int, k: Int) -> Workspace:
    """Returns the workspace that a product wants."""
    var parts = Cut.of(m, n, k).parts
    var sums = StagedRows.at(m, k, parts, 0).sums(n)
    return Workspace(0, Int(sums) + sum_bytes(m, n, parts))


def grid(m: Int, n: Int, cut: Cut) -> Grid:
    """Returns the grid for C of [m, n]."""
    var shared_bytes = 0
    comptime for rows in ALL_ROWS:
        if cut.rows == rows:
            shared_bytes = Place[rows].NUM_BYTES
    return Grid(cut.num_groups(m, n), threads=THREADS, shared_bytes=shared_bytes)


def launch[known: Known](problem: Problem, mut queue: Some[Queue]) raises:
    """Prepares the activations, multiplies, and computes what is marked."""
    var m, n, k = problem.m, problem.n, problem.k
    var cut = Cut.of(m, n, k)
    var staged = StagedRows.at(m, k, cut.parts, queue.workspace(workspace_of(m, n, k)))
    var sums = staged.sums(n)
    if are_numbers(problem):
        staged = staged.reading(problem)
    else:
        rows.launch(problem, staged, queue)
    comptime for i in range(len(FORMATS)):
        comptime if may_be(known.right_format, i):
            if problem.right.format == i:
                _launch[FORMATS[i].element](problem, staged, sums, cut, queue)
    if cut.parts > 1:
        parts.launch(problem, sums, cut.parts, queue)
    marked.launch[known](problem, staged, queue)


def _launch[
    element: Element
](
    problem: Problem,
    staged: StagedRows,
    sums: DevicePointer[DType.float32],
    cut: Cut,
    mut queue: Some[Queue],
) raises:
    """Launches an instance of the kernel."""
    var wanted = factors_of(problem.left.format, problem.right.format, problem.k)
    comptime for tile_rows in ALL_ROWS:
        comptime for factors in ALL_FACTORS:
            if cut.rows == tile_rows and factors == wanted:
                queue.launch[matmul_tile[element, tile_rows, factors]](
                    grid(problem.m, problem.n, cut),
                    staged,
                    Weights(problem),
                    Int32(problem.right.layout),
                    Result(problem),
                    sums,
                )
