"""C = A @ B.T by tiles on tensor cores: bfloat16 numbers, float32 sums; any shape, layout and pair.

    stage    64 of K: rows of A, copied; 128 rows of B, or 64, decoded on their way
    warps    32 columns and 32 or 64 rows each, see `host`

While a stage is multiplied, A's rows of the next one are copied and B's codes of the one after that are
loaded: decoded and stored they are when that next one is what is multiplied. Float scales multiply
sums: in the end, or those of 128 of K, which begin anew each time. What bfloat16 numbers cannot
hold is marked, see `operands`, and computed in the end.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.utils import StaticTuple

from ...launch.queue import DevicePointer, Queue
from ...numbers.elements import Element
from ...numbers.formats import FORMATS
from ...numbers.scales import Scale
from ...problem import Known, Problem, may_be
from ...schedule.clusters import Bands
from ..arguments import Result, Weights
from ..host import (
    ALL_FACTORS,
    ALL_TILES,
    Cut,
    FACTORS_OF_ALL,
    MANY_ROWS,
    NUMBER_BYTES,
    ROW_BYTES,
    STAGE,
    STAGE_STEPS,
    STEP,
    TILE_THREADS as THREADS,
    TileShape,
    factors_of,
    grid_of_tiles,
    workspace_of_tiles,
)
from ..instructions import here, shared_base, start_copy, wait_for_copies
from . import marked, parts, rows
from .factors import FactorPlaces
from .operands import FactoredRows, are_numbers
from .parts import of_part
from .place import CHUNK_BYTES, PASS_ROWS, LanePlace, STEP_CHUNKS, place_in_stage
from .product import Product
from .result import store_sums, store_tile
from .weights import WeightLoads

comptime RESIDENT_GROUPS = 2
"""Groups of a multiprocessor: while one waits, the other one works."""


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def matmul_tile[
    element: Element, has_e4m3: Bool, TILE: TileShape, factors: Int
](
    staged: FactoredRows,
    w: Weights,
    layout: Int32,
    result: Result,
    sums_of_parts: DevicePointer[DType.float32],
):
    """Computes a tile of C, or a part of its sums."""
    var share = PartOfTile.of[TILE](UInt32(block_idx.x), staged.column_parts, result)
    var steps = Steps.of(share.part, staged.column_parts, staged.k)
    var first_row, first_column = share.first_row, share.first_column
    var place = LanePlace[TILE](shared_base(), 0)
    var loads = WeightLoads[element, has_e4m3, TILE.columns].of(
        w, layout, first_column, result.columns, staged.k
    )
    loads.advance(steps.first)
    place.flags().clear()
    barrier()

    copy_rows(staged, place, 0, first_row, steps.first)
    loads.load(w, layout, staged.k)
    loads.store(w, layout, staged.k, place.right(0), place.flags())
    loads.load(w, layout, staged.k)
    comptime Places = FactorPlaces[TILE, has_e4m3]
    var product = Product[TILE, has_e4m3, factors].of(
        Places.of(staged, w, layout, first_row, first_column, result)
    )
    # Half of the warps of large tiles decode while the others multiply. Whole warps agree.
    comptime TAKES_TURNS = TILE.rows == MANY_ROWS
    if TAKES_TURNS and broadcast(UInt32(thread_idx.x)) >= UInt32(THREADS // 2):
        walk[False](staged, w, layout, first_row, steps, place, loads, product)
    else:
        walk[True](staged, w, layout, first_row, steps, place, loads, product)
    wait_for_copies()
    barrier()
    product.add(place, steps.end - 1, is_last=True)
    barrier()
    # Once more: registers of the loop need not hold it.
    share = PartOfTile.of[TILE](here(UInt32(block_idx.x)), staged.column_parts, result)
    first_row, first_column = share.first_row, share.first_column
    comptime if factors == FACTORS_OF_ALL:
        product.places = Places.of(staged, w, layout, first_row, first_column, result)
        product.apply(place.flags())
    store_sums[TILE](place.base, product.found())
    barrier()
    if staged.column_parts == 1:
        store_tile[TILE](place.base, result, first_row, first_column)
    else:
        var target = of_part(result, sums_of_parts, share.part)
        store_tile[TILE](place.base, target, first_row, first_column)
    if first_row == 0:
        place.flags().write(staged, share.part, first_column, result.columns)


@fieldwise_init
struct Steps(TrivialRegisterPassable):
    """The steps of a part of K, from the first one to before the end."""

    var first: UInt32
    var end: UInt32

    @staticmethod
    @always_inline
    def of(part: UInt32, parts: UInt32, k: UInt32) -> Self:
        """Returns those of a part, of which there are no more than stages."""
        var stages = (k + UInt32(STAGE - 1)) // UInt32(STAGE)
        var steps = (k + UInt32(STEP - 1)) // UInt32(STEP)
        var first = part * stages // parts * UInt32(STAGE_STEPS)
        var end = (part + 1) * stages // parts * UInt32(STAGE_STEPS)
        return Self(first, min(end, steps))


@fieldwise_init
struct PartOfTile(TrivialRegisterPassable):
    """What a group computes: a tile of C, and a part of K."""

    var first_row: UInt32
    var first_column: UInt32
    var part: UInt32

    @staticmethod
    @always_inline
    def of[shape: TileShape](group: UInt32, parts: UInt32, result: Result) -> Self:
        """Returns that of a group: parts of a tile are neighbours."""
        var bands = Bands[](
            (result.rows + UInt32(shape.rows - 1)) // UInt32(shape.rows),
            (result.columns + UInt32(shape.columns - 1)) // UInt32(shape.columns),
        )
        var index, part = divmod(group, parts)
        var tile = bands.tile(Int(index))
        return Self(UInt32(tile.row * shape.rows), UInt32(tile.column * shape.columns), part)


@always_inline
def walk[
    tile: TileShape, //, fills_first: Bool
](
    staged: FactoredRows,
    w: Weights,
    layout: Int32,
    first_row: UInt32,
    steps: Steps,
    mut place: LanePlace[tile],
    mut loads: WeightLoads[_, _, tile.columns],
    mut product: Product[tile, _, _],
):
    """Multiplies all stages but the last one, and fills the others: before that, or behind it.

    The compiler waits for loads where ways part, so that each way has steps of its own.
    """
    for step in range(steps.first, steps.end - 1):
        wait_for_copies()
        barrier()
        var next = 1 - place.stage
        copy_rows(staged, place, next, first_row, step + 1)
        comptime if fills_first:
            fill(loads, w, layout, staged.k, place, next)
        product.add(place, step, is_last=False)
        comptime if not fills_first:
            fill(loads, w, layout, staged.k, place, next)
        place.stage = next


@always_inline
def fill(
    mut loads: WeightLoads[...],
    w: Weights,
    layout: Int32,
    k: UInt32,
    place: LanePlace[_],
    stage: UInt32,
):
    """Decodes and stores a thread's weights of a stage, and loads those of the step behind."""
    loads.store(w, layout, k, place.right(stage), place.flags())
    # Past the end they are of no use to anybody.
    loads.load(w, layout, k)


@always_inline
def copy_rows(
    staged: FactoredRows, place: LanePlace[_], stage: UInt32, first_row: UInt32, step: UInt32
):
    """Starts the copies of the rows of A of a step; zeros where there are none."""
    var row_in_tile, chunk = divmod(UInt32(thread_idx.x), UInt32(STEP_CHUNKS))
    var at = place.left(stage) + place_in_stage(row_in_tile, chunk)
    var byte = step * UInt32(ROW_BYTES) + chunk * UInt32(CHUNK_BYTES)
    var is_in_k = byte < staged.k * UInt32(NUMBER_BYTES)
    var row = first_row + row_in_tile
    var source = staged.numbers.unsafe_offset(Int(row) * staged.row_bytes + Int(byte))
    comptime for i in range(place.tile.rows // PASS_ROWS):
        var is_there = is_in_k and row + UInt32(i * PASS_ROWS) < staged.rows
        # Nothing is read where there is nothing, but the address has to be one.
        var from_row = source.unsafe_offset(i * PASS_ROWS * staged.row_bytes)
        start_copy(
            at + UInt32(i * PASS_ROWS * ROW_BYTES),
            from_row if is_there else staged.numbers,
            is_there,
        )


def launch[known: Known](problem: Problem, mut queue: Some[Queue]) raises:
    """Prepares the activations, multiplies, and computes what is marked."""
    var m, n, k = problem.m, problem.n, problem.k
    var cut = Cut.of(m, n, k)
    var staged = FactoredRows.at(m, k, cut.parts, queue.workspace(workspace_of_tiles(m, n, k)))
    var sums = staged.sums(n)
    if are_numbers(problem):
        staged = staged.reading(problem)
    else:
        rows.launch(problem, staged, queue)
    comptime for i in range(len(FORMATS)):
        comptime if may_be(known.right_format, i):
            if problem.right.format == i:
                comptime HAS_E4M3 = FORMATS[i].scale == Scale.E4M3
                _launch[FORMATS[i].element, HAS_E4M3](problem, staged, sums, cut, queue)
    if cut.parts > 1:
        parts.launch(problem, sums, cut.parts, queue)
    marked.launch[known](problem, staged, queue)


def _launch[
    element: Element, has_e4m3: Bool
](
    problem: Problem,
    staged: FactoredRows,
    sums: DevicePointer[DType.float32],
    cut: Cut,
    mut queue: Some[Queue],
) raises:
    """Launches an instance of the kernel."""
    var wanted = factors_of(problem.left.format, problem.right.format, problem.k)
    var of_sums = cut.beside(wanted)
    comptime for tile in ALL_TILES:
        comptime for factors in ALL_FACTORS:
            comptime if tile.beside(factors) == tile:
                if of_sums.tile == tile and factors == wanted:
                    queue.launch[matmul_tile[element, has_e4m3, tile, factors]](
                        grid_of_tiles(problem.m, problem.n, of_sums),
                        staged,
                        Weights(problem),
                        Int32(problem.right.layout),
                        Result(problem),
                        sums,
                    )
