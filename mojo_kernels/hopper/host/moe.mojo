"""What the host decides for products of experts: who takes them, tiles, grids and workspaces.

    streaming       few rows of each: no lists, no stages
    byte_experts    activations of MXFP4 or MXFP8, results of two bytes
    experts         the others: activations kept, or results of four bytes

Weights are MXFP4, preshuffled for CUDA; activations are floats, kept or rounded to an MX format. All
else is for the portable kernels. The host knows rows and experts, not who has how many: tiles are
as high as experts with twice their share of the rows want, so that weights are decoded once; of few
rows, tiles have room for what most experts get if ids are drawn at random.
"""

from std.math import align_up, ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem
from ...launch.grid import Grid, Workspace
from ...numbers.formats import has_float_scales
from ...problem import Known, Left, LeftKind, may_be
from ...simt import host as portable
from ...simt.host import FLOAT32, VECTOR_BYTES, bytes_of, is_left_aligned
from ..layout import OPERANDS, TILE_ROWS as WEIGHT_ROWS
from ..plan import MULTIPROCESSORS, PRESHUFFLED
from ..shapes import (
    COLUMNS,
    EXPERT_CAPACITY,
    MAX_ROW_FRAGMENTS,
    PARTS,
    ROW_BYTES,
    SHARED_BYTES,
    StreamConfig,
    THREADS,
    WORD_BYTES,
    RsConfig,
    RsLayout,
    num_steps_of,
)
from .gemm import MXFP4, MXFP8
from .workspace import (
    ALL_ROWS,
    CTA_CHUNKS,
    PreparedPlaces,
    MANY_CHUNKS,
    MAX_K,
    PREPARE_THREADS,
    PREPARE_WARPS,
    ctas_of_rows,
    log_lanes_of,
)

comptime HIDDEN = COLUMNS // 2
"""Hidden numbers of a group."""
comptime MOST_TILE_ROWS = 256
"""The most rows of a tile."""
comptime TILE_ROWS = [16, 32, 64, 128, MOST_TILE_ROWS]
"""Rows of a tile."""
comptime USUAL_SHARE = 2
"""What an expert has at most, mostly, of its share of the rows. Guess."""
comptime MAX_GRID = 65535
"""Tiles of a launch, and columns of groups."""
comptime LIST_THREADS = 1024
"""Threads of the group that lists rows: one for each expert."""
comptime LIST_WARPS = LIST_THREADS // 32
"""Warps of that group."""
comptime MAX_EXPERTS = LIST_THREADS
"""Experts that the lists have room for."""
comptime MAX_ROWS = 1 << 20
"""Rows up to which the sums of clamped sizes stay within 32 bits."""
comptime ALIGNMENT = 1024
"""Lists begin at multiples of this in a workspace."""
comptime PLACE_MULTIPLE = 8
"""The first place of an expert is a multiple: rows of stages are swizzled by eight."""
comptime TILE_WORDS = 4
"""Words of a tile in the list."""
comptime GROUP_WORDS = 4
"""Words of an expert's rows in shared memory: first place, first row, rows, and one more."""
comptime LIST_SHARED_BYTES = WORD_BYTES * (LIST_WARPS + GROUP_WORDS * MAX_EXPERTS)
"""Shared memory of the group: a sum for each warp, a counter or the rows of each expert."""
comptime MAX_STREAMED_ROWS = 4608
"""Rows whose experts every CTA finds for itself. Guess."""
comptime SHARES = [4, 12, 18, 28]
"""Rows of an expert, on average, up to which tiles have eight, 16, 24 and 32. The last one is measured: with
28 rows tiles of 32 are 6 % ahead of `many`, with 32 they are 11 % behind, because many experts want two."""
comptime MAX_SHARE = 12
"""Rows of an expert, on average, up to which `streaming` takes activations that are not kept: more are
for FP8 tensor cores. Guess."""
comptime SUM_THREADS = 128
"""Threads of a group that adds up slots."""
comptime SUM_NUMBERS = 4
"""Neighbours that a thread of it computes; rows are made of blocks, so none is cut."""


# Tiles and lists.


def tile_rows_of(rows: Int, experts: Int) -> Int:
    """Returns the rows of a tile."""
    var usual = USUAL_SHARE * ceildiv(rows, experts)
    comptime for i in range(len(TILE_ROWS)):
        comptime rows_of_tile = TILE_ROWS[i]
        if usual <= rows_of_tile:
            return rows_of_tile
    return MOST_TILE_ROWS


def most_tiles(rows: Int, groups: Int, tile_rows: Int) -> Int:
    """Returns the most tiles that rows can make, some of which have no group."""
    return min(rows, (rows + (groups + 1) * (tile_rows - 1)) // tile_rows)


def most_places(rows: Int, groups: Int, tile_rows: Int) -> Int:
    """Returns the places that rows can take, and those behind that the last tile may read."""
    var between = min(rows, groups) * (PLACE_MULTIPLE - 1)
    return align_up(rows + between, PLACE_MULTIPLE) + tile_rows


def streaming_config(rows: Int, experts: Int, is_gated: Bool) -> StreamConfig:
    """Returns that of the CTAs of `streaming` for so many rows."""
    var row_fragments = 1
    comptime for i in range(MAX_ROW_FRAGMENTS - 1):
        comptime share = SHARES[i]
        if rows > share * experts:
            row_fragments = i + 2
    return StreamConfig.grouped(row_fragments, is_gated)


# Who takes what.


def may_take_operands[known: Known]() -> Bool:
    """Says whether what is known of a product leaves it possible that fast kernels take it."""
    comptime is_right = may_be(known.right_format, OPERANDS.code())
    return is_right and may_be(known.layout, PRESHUFFLED)


def takes_experts(left: Left, experts: Experts, rows: Int) -> Bool:
    """Says whether fast kernels take a product of so many rows."""
    var right = experts.right
    var addresses = right.codes | right.scales | experts.codes_step | experts.scales_step
    var is_left = left.kind == LeftKind.KEPT or (
        left.kind == LeftKind.QUANTIZED and not has_float_scales(left.format)
    )
    return (
        is_left
        and right.format == OPERANDS.code()
        and right.layout == PRESHUFFLED
        and addresses % VECTOR_BYTES == 0
        and 0 < experts.count <= MAX_EXPERTS
        and rows <= MAX_ROWS
        and most_tiles(rows, experts.count, tile_rows_of(rows, experts.count)) <= MAX_GRID
    )


def supports(problem: GroupedProblem) -> Bool:
    """Says whether fast kernels take a grouped product."""
    return (
        takes_experts(problem.left, problem.experts, problem.m)
        and problem.values % VECTOR_BYTES == 0
    )


def supports(problem: ExpertsProblem) -> Bool:
    """Says whether fast kernels take a layer of experts."""
    var count = problem.routing.count()
    return (
        takes_experts(problem.left, problem.gate_up, count)
        and takes_experts(problem.left, problem.down, count)
        and problem.values % VECTOR_BYTES == 0
        and count > 0
    )


def streaming_takes(
    left: Left, rows: Int, experts: Int, slots: Int, k: Int, is_gated: Bool
) -> Bool:
    """Says whether `streaming` is for so many rows, of what fast kernels take."""
    var bytes = streaming_config(rows, experts, is_gated).grouped_bytes(experts, slots, k)
    comptime KEPT_SHARE = SHARES[MAX_ROW_FRAGMENTS - 1]
    var share = KEPT_SHARE if left.kind == LeftKind.KEPT else MAX_SHARE
    return rows <= min(MAX_STREAMED_ROWS, share * experts) and bytes <= SHARED_BYTES


def streaming_takes(problem: GroupedProblem) -> Bool:
    """Says whether it is for a grouped product."""
    return streaming_takes(problem.left, problem.m, problem.experts.count, 0, problem.k, False)


def streaming_takes(problem: ExpertsProblem) -> Bool:
    """Says whether it is for a layer of experts."""
    var count, experts = problem.routing.count(), problem.gate_up.count
    return streaming_takes(
        problem.left, count, experts, count, problem.width, True
    ) and streaming_takes(problem.left, count, experts, count, problem.inner, False)


def bytes_take(left: Left, k: Int, dtype: Int) -> Bool:
    """Says whether `byte_experts` is for activations and a result, of what fast kernels take.

    Sums lose what bfloat16 and float16 do not show but float32 may.
    """
    return (
        left.kind == LeftKind.QUANTIZED
        and left.format in (MXFP4, MXFP8)
        and is_left_aligned(left)
        and k <= MAX_K
        and Int32(dtype) != FLOAT32
    )


def bytes_take(problem: GroupedProblem) -> Bool:
    """Says whether it is for a grouped product."""
    return bytes_take(problem.left, problem.k, problem.dtype)


def bytes_take(problem: ExpertsProblem) -> Bool:
    """Says whether it is for a layer of experts."""
    var k = max(problem.width, problem.inner)
    return problem.gate.has_quotients() and bytes_take(problem.left, k, problem.dtype)


# Workspaces.


@fieldwise_init
struct ListPlaces(TrivialRegisterPassable):
    """Where lists lie, and how long they are."""

    var tiles: Int
    """[tiles, `TILE_WORDS`]."""
    var sources: Int
    """A word for each place."""
    var slots: Int
    """A word for each slot."""
    var marks: Int
    """Bytes: of each place, of both products."""
    var num_tiles: Int
    var num_places: Int
    var mark_words: Int
    """Words of all marks; none where kernels go from place to place."""

    @staticmethod
    def of(
        address: Int, rows: Int, experts: Int, tile_rows: Int, slots: Int, *, has_marks: Bool
    ) -> Self:
        """Lays out lists at an address; those of a grouped product have no slots."""
        var num_tiles = most_tiles(rows, experts, tile_rows)
        var places = most_places(rows, experts, tile_rows)
        var tiles = align_up(address, ALIGNMENT)
        var sources = align_up(tiles + num_tiles * TILE_WORDS * WORD_BYTES, ALIGNMENT)
        var of_slots = align_up(sources + places * WORD_BYTES, ALIGNMENT)
        var marks = align_up(of_slots + slots * WORD_BYTES, ALIGNMENT)
        var mark_words = 2 * places // WORD_BYTES if has_marks else 0
        return Self(tiles, sources, of_slots, marks, num_tiles, places, mark_words)

    def end(self) -> Int:
        """Returns the first aligned address behind the lists."""
        return align_up(self.marks + self.mark_words * WORD_BYTES, ALIGNMENT)


@fieldwise_init
struct StreamingMemory(TrivialRegisterPassable):
    """Where in the workspace lies what launches of `streaming` hand over, in bytes."""

    var hidden: Int
    """Rows of hidden numbers, floats like the tokens."""
    var rows: Int
    """Rows of slots, float32."""
    var num_bytes: Int
    """Enough for an address that is not aligned."""

    @staticmethod
    def of(problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer."""
        var count = problem.routing.count()
        var hidden = align_up(address, ALIGNMENT)
        var hidden_bytes = count * problem.inner * bytes_of(problem.left.dtype)
        var rows = align_up(hidden + hidden_bytes, ALIGNMENT)
        var end = rows + count * problem.width * bytes_of(Int(FLOAT32))
        return Self(hidden, rows, end - hidden + ALIGNMENT)


@fieldwise_init
struct Memory(TrivialRegisterPassable):
    """Where in the workspace lies what launches of `experts` or `byte_experts` hand over."""

    var lists: ListPlaces
    var first: Int
    """The left side of the first product; of `byte_experts` its exponents, too."""
    var second: Int
    """That of the second one."""
    var hidden: Int
    """Rows of hidden numbers, floats like the tokens."""
    var rows: Int
    """Rows of slots, float32."""
    var num_bytes: Int
    """Enough for an address that is not aligned."""
    var tile_rows: Int
    """Rows of a tile, at most."""
    var is_bytes: Bool
    """Whether rows are prepared as bytes, for FP8 tensor cores."""

    @staticmethod
    def of(problem: GroupedProblem, address: Int) -> Self:
        """Lays out a grouped product."""
        var count, is_bytes = problem.experts.count, bytes_take(problem)
        var tile_rows = EXPERT_CAPACITY if is_bytes else tile_rows_of(problem.m, count)
        var lists = ListPlaces.of(address, problem.m, count, tile_rows, 0, has_marks=not is_bytes)
        var first = lists.end()
        var end: Int
        if is_bytes:
            end = end_of(problem.left, lists, count, problem.n, problem.k, first)
        else:
            end = end_of_stages(lists, problem.k, first)
        return Self(lists, first, first, end, end, end - address + ALIGNMENT, tile_rows, is_bytes)

    @staticmethod
    def of(problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer."""
        var slots, count = problem.routing.count(), problem.gate_up.count
        var width, inner, is_bytes = problem.width, problem.inner, bytes_take(problem)
        var tile_rows = EXPERT_CAPACITY if is_bytes else tile_rows_of(slots, count)
        var lists = ListPlaces.of(address, slots, count, tile_rows, slots, has_marks=not is_bytes)
        var first = lists.end()
        var second = first
        var hidden: Int
        if is_bytes:
            second = end_of(problem.left, lists, count, 2 * inner, width, first)
            hidden = end_of(problem.left, lists, count, width, inner, second)
        else:
            hidden = end_of_stages(lists, max(width, inner), first)
        var hidden_bytes = lists.num_places * inner * bytes_of(problem.left.dtype)
        var rows = align_up(hidden + hidden_bytes, ALIGNMENT)
        var end = rows + lists.num_places * width * bytes_of(Int(FLOAT32))
        return Self(
            lists, first, second, hidden, rows, end - address + ALIGNMENT, tile_rows, is_bytes
        )


def end_of_stages(lists: ListPlaces, k: Int, address: Int) -> Int:
    """Returns the first aligned address behind the stages of all places."""
    var stages_bytes = Int(num_steps_of(UInt32(k))) * lists.num_places * ROW_BYTES
    return align_up(address + stages_bytes, ALIGNMENT)


def end_of(left: Left, lists: ListPlaces, experts: Int, n: Int, k: Int, address: Int) -> Int:
    """Returns the first aligned address behind all places and the exponents of weights."""
    var weight_rows = experts * align_up(n, WEIGHT_ROWS)
    var places = PreparedPlaces.of(lists.num_places, weight_rows, k, ALL_ROWS, has_weights=False)
    var end = places.end_of_blocks(lists.num_places, k)
    if left.format == MXFP8:
        end = places.end_of_factors(k)
    return align_up(address + end, ALIGNMENT)


def workspace_of(problem: GroupedProblem) -> Workspace:
    """Returns the workspace of a grouped product."""
    if not supports(problem) or streaming_takes(problem):
        return Workspace(0, 0)
    return Workspace(0, Memory.of(problem, 0).num_bytes)


def workspace_of(problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts."""
    if not supports(problem):
        return portable.workspace_of(problem)
    if streaming_takes(problem):
        return Workspace(0, StreamingMemory.of(problem, 0).num_bytes)
    return Workspace(0, Memory.of(problem, 0).num_bytes)


# Grids.


def grid_of_lists() -> Grid:
    """Returns the grid of the kernels that list rows."""
    return Grid(1, threads=LIST_THREADS, shared_bytes=LIST_SHARED_BYTES, starts_early=True)


def grid_of_begin(num_tiles: Int) -> Grid:
    """Returns the grid of those that also find the exponents of so many tiles of B."""
    var grid = grid_of_lists()
    grid.x += min(ceildiv(num_tiles, LIST_WARPS), MULTIPROCESSORS - 1)
    return grid


def grid_of_stages(tile_rows: Int, num_tiles: Int, k: Int) -> Grid:
    """Returns the grid for stages of tiles of rows of `k` elements."""
    var parts = tile_rows * Int(num_steps_of(UInt32(k))) * PARTS
    return Grid(ceildiv(parts, CTA_CHUNKS), num_tiles, threads=PREPARE_THREADS, starts_early=True)


def log_lanes_of_places(left: Left, num_places: Int, k: Int) -> Int:
    """Returns the lanes of a place whose row becomes bytes, as an exponent."""
    if left.format == MXFP8:
        return log_lanes_of(num_places, k)
    return log_lanes_of(num_places, k, MANY_CHUNKS)


def grid_of_places(num_places: Int, log_lanes: Int) -> Grid:
    """Returns the grid for the bytes of places that have so many lanes."""
    return Grid(
        ctas_of_rows(num_places, log_lanes),
        threads=PREPARE_THREADS,
        shared_bytes=8 * PREPARE_WARPS,
        starts_early=True,
    )


def num_groups_of(columns: Int, is_gated: Bool) -> Int:
    """Returns the groups of columns of a tile."""
    return ceildiv(columns, HIDDEN if is_gated else COLUMNS)


def grid_of_tiles(tile_rows: Int, num_tiles: Int, num_groups: Int) -> Grid:
    """Returns the grid of `experts` for tiles of so many groups of columns each."""
    var config = RsConfig.grouped(tile_rows)
    return Grid(
        min(num_tiles * num_groups, MULTIPROCESSORS),
        threads=config.threads(),
        shared_bytes=config.shared_bytes(),
        starts_early=True,
    )


def grid_of_bytes(has_factors: Bool, num_tiles: Int, num_groups: Int) -> Grid:
    """Returns the grid of `byte_experts`; MXFP8 activations have factors."""
    return Grid(
        min(num_tiles * num_groups, MULTIPROCESSORS),
        threads=THREADS,
        shared_bytes=RsLayout.fp8(EXPERT_CAPACITY, 4, has_factors).space().end(),
        starts_early=True,
    )


def grid_of_streaming(
    config: StreamConfig, rows: Int, experts: Int, slots: Int, columns: Int, k: Int
) -> Grid:
    """Returns the grid of `streaming` for rows of `k` elements and results of so many columns."""
    var shared_bytes = config.grouped_bytes(experts, slots, k)
    var tiles = most_tiles(rows, experts, config.rows()) * ceildiv(columns, config.columns())
    return Grid(
        min(MULTIPROCESSORS * config.ctas(shared_bytes), tiles),
        threads=config.threads(),
        shared_bytes=shared_bytes,
        max_shared_bytes=SHARED_BYTES,
        starts_early=True,
    )


def grid_of_sums(tokens: Int, width: Int) -> Grid:
    """Returns the grid for the sums of slots, results [tokens, width]."""
    var groups = ceildiv(width, SUM_NUMBERS * SUM_THREADS)
    return Grid(tokens, groups, threads=SUM_THREADS, starts_early=True)
