"""What the host decides for products of experts: who takes them, tiles, grids and workspaces.

    stream              few rows of each: no lists, nothing prepared
    rs_e5m2, rs_e4m3    activations of MXFP4 or MXFP8, results of two bytes
    rs_bf16             the others: activations kept, or of NVFP4, or results of four bytes

Weights are MXFP4, preshuffled for CUDA, or NVFP4 where activations are kept or NVFP4; activations
are floats, kept or rounded to a format. All else is for the portable kernels. The host knows rows
and experts, not who has how many: tiles have room for what most experts get if ids are drawn at
random, so that weights are decoded once.
"""

from std.math import align_up, ceildiv

from ...experts import Experts, ExpertsProblem, GroupedProblem, NUMBERS, most_tiles
from ...launch.grid import Grid, Workspace
from ...numbers.floats import float_bytes
from ...numbers.formats import Format, has_float_scales
from ...numbers.gates import Gate
from ...problem import Known, Left, LeftKind, Right, may_be
from ...simt import host as portable
from ...simt.host import FLOAT32, VECTOR_BYTES, is_left_aligned
from ..layout import NVFP4, OPERANDS, TILE_ROWS as WEIGHT_ROWS
from ..plan import Kernel, MULTIPROCESSORS, PRESHUFFLED
from ..shapes import (
    COLUMNS,
    EXPERT_CAPACITY,
    FACTOR_BYTES,
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
    LANE_CHUNKS,
    PreparedPlaces,
    MANY_CHUNKS,
    MAX_K,
    PREPARE_THREADS,
    PREPARE_WARPS,
    RoundedPlaces,
    ctas_of_rows,
    log_lanes_of,
)

comptime HIDDEN = COLUMNS // 2
"""Hidden numbers of a group."""
comptime MOST_TILE_ROWS = 256
"""The most rows of a tile."""
comptime TILE_ROWS = [16, 32, 128, MOST_TILE_ROWS]
"""Rows of a tile of listed rows."""
comptime TILE_SHARES = [8, 24, 108]
"""Rows of an expert, on average, up to which tiles have the first of them. The last two are measured: tiles
of 128 rows, multiplied 32, 64 or 128 at a time, are ahead of tiles of 64 by 2 to 6 % with 24 to 28 rows of
an expert, and behind by 1 to 3 % with 36 to 44."""
comptime MAX_GRID = 65535
"""Tiles of a launch, and tiles of a row of the result."""
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
comptime SHARES = [4, 12, 18]
"""Rows of an expert, on average, up to which tiles of `streaming` have eight, 16 and 24. The last one is
measured: with 20 rows tiles of 32 would take 0.98 to 1.22 times as long as listed ones."""
comptime MAX_SHARE = 12
"""Rows of an expert, on average, up to which `streaming` takes activations that are not kept: more are
for FP8 tensor cores. With six to 12 rows these take 0.9 of its time, but another address or another
batch would show in the bits of many more calls."""
comptime SUM_THREADS = 128
"""Threads of a group that adds up slots."""


# Tiles and lists.


def tile_rows_of(rows: Int, experts: Int) -> Int:
    """Returns the rows of a tile."""
    comptime for i in range(len(TILE_SHARES)):
        comptime share, rows_of_tile = TILE_SHARES[i], TILE_ROWS[i]
        if rows <= share * experts:
            return rows_of_tile
    return MOST_TILE_ROWS


def most_places(rows: Int, groups: Int, tile_rows: Int) -> Int:
    """Returns the places that rows can take, and those behind that the last tile may read."""
    var between = min(rows, groups) * (PLACE_MULTIPLE - 1)
    return align_up(rows + between, PLACE_MULTIPLE) + tile_rows


def streaming_config(
    rows: Int, experts: Int, is_gated: Bool, is_split: Bool = False
) -> StreamConfig:
    """Returns that of the CTAs of `streaming` for so many rows."""
    var row_fragments = 1
    comptime for i in range(MAX_ROW_FRAGMENTS - 1):
        comptime share = SHARES[i]
        if rows > share * experts:
            row_fragments = i + 2
    return StreamConfig.grouped(row_fragments, is_gated, is_split=is_split)


# Who takes what.


def is_fused(gate: Gate) -> Bool:
    """Says whether products gate their sums."""
    return gate.is_usual()


@fieldwise_init
struct OperandFormats(Equatable, TrivialRegisterPassable):
    """What kernels are compiled for: a format of weights, and whether rows of A have factors."""

    var weights: Format
    var has_factors: Bool

    comptime MXFP4 = Self(OPERANDS, False)
    comptime NVFP4 = Self(NVFP4, False)
    comptime NVFP4_BOTH = Self(NVFP4, True)

    def are_of(self, left: Left, right: Right) -> Bool:
        """Says whether two sides that fast kernels take are such."""
        return right.format == self.weights.code() and is_rounded(left) == self.has_factors


comptime ALL_OPERANDS = [OperandFormats.MXFP4, OperandFormats.NVFP4, OperandFormats.NVFP4_BOTH]
"""All of them."""


def may_take_operands[known: Known](weights: Format) -> Bool:
    """Says whether a product of which this is known may be one that fast kernels take."""
    return may_be(known.right_format, weights.code()) and may_be(known.layout, PRESHUFFLED)


def _takes(left: Left, experts: Experts, rows: Int, result: Int) -> Bool:
    """Says whether fast kernels take a product of so many rows, with a result at an address."""
    var right = experts.right
    var addresses = right.codes | right.scales | experts.codes_step | experts.scales_step | result
    var is_kept = left.kind == LeftKind.KEPT
    var is_nvfp4 = is_kept or (is_rounded(left) and is_left_aligned(left))
    var is_left = is_kept or (left.kind == LeftKind.QUANTIZED and not has_float_scales(left.format))
    return (
        (is_nvfp4 if right.format == NVFP4.code() else is_left)
        and right.format in (OPERANDS.code(), NVFP4.code())
        and right.layout == PRESHUFFLED
        and addresses % VECTOR_BYTES == 0
        and 0 < experts.count <= MAX_EXPERTS
        and rows <= MAX_ROWS
        and most_tiles(rows, experts.count, tile_rows_of(rows, experts.count)) <= MAX_GRID
    )


def is_rounded(left: Left) -> Bool:
    """Says whether rows of A become bfloat16 numbers with a factor each: those of NVFP4."""
    return left.format == NVFP4.code()


def _are_few(left: Left, rows: Int, experts: Int) -> Bool:
    """Says whether streaming is for so many rows."""
    comptime KEPT_SHARE = SHARES[MAX_ROW_FRAGMENTS - 1]
    var is_bf16 = left.kind == LeftKind.KEPT or is_rounded(left)
    var share = KEPT_SHARE if is_bf16 else MAX_SHARE
    return rows <= min(MAX_STREAMED_ROWS, share * experts)


def k_parts(rows: Int, experts: Int, slots: Int, k: Int) -> Int:
    """Returns the parts of K of a product without a gate, 0 if streaming has no room."""
    return streaming_config(rows, experts, False).k_parts(experts, slots, k)


@fieldwise_init
struct LayerParts(TrivialRegisterPassable):
    """Parts of K of the products of a layer that streams: a product gates sums of all K alone."""

    var is_gated: Bool
    """Whether the first product gates its sums."""
    var is_long: Bool
    """Whether it gates them in small batches."""
    var first: Int
    """Parts of the first product; 0 if there is no room."""
    var second: Int

    @staticmethod
    def of(problem: ExpertsProblem) -> Self:
        """Returns those of a layer."""
        var slots, experts = problem.routing.count(), problem.gate_up.count
        var second = k_parts(slots, experts, slots, problem.inner)
        if is_fused(problem.gate):
            comptime for is_long in [False, True]:
                var config = streaming_config(slots, experts, True, is_long)
                var exists = not is_long or config.row_fragments == MAX_ROW_FRAGMENTS
                if exists and config.k_parts(experts, slots, problem.width) == 1:
                    return Self(True, is_long, 1, second)
        var first = k_parts(slots, experts, slots, problem.width)
        return Self(False, False, first, second)

    def have_room(self) -> Bool:
        """Says whether there is room for both products."""
        return min(self.first, self.second) > 0


def _listed(left: Left, k: Int, dtype: Int) -> Kernel:
    """Returns the kernel for listed rows, of what fast kernels take.

    Sums of FP8 lose what bfloat16 and float16 do not show but float32 may.
    """
    var is_fp8 = left.kind == LeftKind.QUANTIZED and left.format in (MXFP4, MXFP8)
    if is_fp8 and is_left_aligned(left) and k <= MAX_K and Int32(dtype) != FLOAT32:
        return Kernel.RS_E5M2 if left.format == MXFP4 else Kernel.RS_E4M3
    return Kernel.RS_BF16


def kernel_of(problem: GroupedProblem) -> Kernel:
    """Returns the kernel of a grouped product."""
    var left, m, k, experts = problem.left, problem.m, problem.k, problem.experts
    if not _takes(left, experts, m, problem.values):
        return Kernel.PORTABLE
    if _are_few(left, m, experts.count) and k_parts(m, experts.count, 0, k) == 1:
        return Kernel.STREAM
    return _listed(left, k, problem.dtype)


def kernel_of(problem: ExpertsProblem) -> Kernel:
    """Returns the kernel of both products of a layer."""
    var left, slots, experts = problem.left, problem.routing.count(), problem.gate_up.count
    var takes_first = _takes(left, problem.gate_up, slots, problem.values)
    if not takes_first or not _takes(left, problem.down, slots, problem.values) or slots == 0:
        return Kernel.PORTABLE
    if problem.gate_up.right.format != problem.down.right.format:
        return Kernel.PORTABLE
    var width, inner = problem.width, problem.inner
    if _are_few(left, slots, experts) and LayerParts.of(problem).have_room():
        return Kernel.STREAM
    return _listed(left, max(width, inner), problem.dtype)


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


def row_columns(problem: ExpertsProblem) -> Int:
    """Returns the float32 that are kept of a slot: of its row, or of sums not gated by products."""
    return problem.width if is_fused(problem.gate) else max(problem.width, problem.sums())


@fieldwise_init
struct StreamingMemory(TrivialRegisterPassable):
    """Where in the workspace lies what launches of `streaming` hand over, in bytes."""

    var is_rounded: Bool
    """Whether rows of A become bfloat16 numbers before."""
    var places: RoundedPlaces
    """Where they are then, those of tokens or of groups."""
    var of_hidden: RoundedPlaces
    """Where those of hidden numbers are, in the same place: tokens are read before."""
    var hidden: Int
    """Rows of hidden numbers, floats like the tokens."""
    var rows: Int
    """Rows of slots, float32; before, sums that products do not gate."""
    var num_bytes: Int
    """Enough for an address that is not aligned."""

    @staticmethod
    def of(problem: GroupedProblem, address: Int) -> Self:
        """Lays out a grouped product, which hands over rounded rows alone."""
        var places = RoundedPlaces.behind(address, problem.m, problem.k)
        var rounds = is_rounded(problem.left)
        var num_bytes = places.num_bytes - address + ALIGNMENT if rounds else 0
        return Self(rounds, places, places, 0, 0, num_bytes)

    @staticmethod
    def of(problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer."""
        var count, rounds = problem.routing.count(), is_rounded(problem.left)
        var places = RoundedPlaces.behind(address, problem.routing.tokens, problem.width)
        var of_hidden = RoundedPlaces.behind(address, count, problem.inner)
        var begin = max(places.num_bytes, of_hidden.num_bytes) if rounds else address
        var hidden = align_up(begin, ALIGNMENT)
        var hidden_bytes = count * problem.inner * float_bytes(problem.left.dtype)
        var rows = align_up(hidden + hidden_bytes, ALIGNMENT)
        var parts = LayerParts.of(problem)
        var of_sums = 0 if parts.is_gated else parts.first * problem.sums()
        var columns = max(parts.second * problem.width, of_sums)
        var end = rows + count * columns * float_bytes(Int(FLOAT32))
        return Self(rounds, places, of_hidden, hidden, rows, end - address + ALIGNMENT)


@fieldwise_init
struct Memory(TrivialRegisterPassable):
    """Where in the workspace lies what launches of products of listed rows hand over."""

    var kernel: Kernel
    """Of the products."""
    var tile_rows: Int
    """Rows of a tile, at most."""
    var is_rounded: Bool
    """Whether rows of A become bfloat16 numbers with factors."""
    var lists: ListPlaces
    var first: Int
    """Rows of A of the first product, prepared; of FP8 its exponents, too."""
    var second: Int
    """Those of the second one."""
    var hidden: Int
    """Rows of hidden numbers, floats like the tokens."""
    var rows: Int
    """Rows of slots, float32; before, sums that products do not gate."""
    var num_bytes: Int
    """Enough for an address that is not aligned."""

    @staticmethod
    def of(problem: GroupedProblem, address: Int) -> Self:
        """Lays out a grouped product."""
        var kernel, count = kernel_of(problem), problem.experts.count
        var found = Self._listed(kernel, is_rounded(problem.left), problem.m, count, 0, address)
        var end = found._end_of(problem.experts.count, problem.n, problem.k, found.first)
        found.num_bytes = end - address + ALIGNMENT
        return found

    @staticmethod
    def of(problem: ExpertsProblem, address: Int) -> Self:
        """Lays out a layer."""
        var slots, count = problem.routing.count(), problem.gate_up.count
        var width, inner = problem.width, problem.inner
        var kernel, rounds = kernel_of(problem), is_rounded(problem.left)
        var found = Self._listed(kernel, rounds, slots, count, slots, address)
        if found.is_fp8():
            found.second = found._end_of(count, problem.sums(), width, found.first)
            found.hidden = found._end_of(count, width, inner, found.second)
        else:
            found.hidden = found._end_of(count, 0, max(width, inner), found.first)
        var places = found.lists.num_places
        var hidden_bytes = places * inner * float_bytes(problem.left.dtype)
        found.rows = align_up(found.hidden + hidden_bytes, ALIGNMENT)
        var end = found.rows + places * row_columns(problem) * float_bytes(Int(FLOAT32))
        found.num_bytes = end - address + ALIGNMENT
        return found

    @staticmethod
    def _listed(
        kernel: Kernel, is_rounded: Bool, rows: Int, experts: Int, slots: Int, address: Int
    ) -> Self:
        """Lays out the lists of so many rows, and nothing behind."""
        var is_bf16 = kernel == Kernel.RS_BF16
        var tile_rows = tile_rows_of(rows, experts) if is_bf16 else EXPERT_CAPACITY
        var has_marks = is_bf16 and not is_rounded
        var lists = ListPlaces.of(address, rows, experts, tile_rows, slots, has_marks=has_marks)
        return Self(kernel, tile_rows, is_rounded, lists, lists.end(), lists.end(), 0, 0, 0)

    def is_fp8(self) -> Bool:
        """Says whether rows are prepared for FP8 tensor cores."""
        return self.kernel != Kernel.RS_BF16

    def goes_by_places(self) -> Bool:
        """Says whether kernels that prepare rows go from place to place."""
        return self.is_fp8() or self.is_rounded

    def factors_at(self, address: Int, k: Int) -> Int:
        """Returns where the factors of rounded rows of `k` elements are, behind those."""
        return address + Int(num_steps_of(UInt32(k))) * self.lists.num_places * ROW_BYTES

    def _end_of(self, experts: Int, n: Int, k: Int, address: Int) -> Int:
        """Returns the first aligned address behind the prepared rows of all places.

        Behind those for FP8 are the exponents of [n, k] weights.
        """
        var num_places = self.lists.num_places
        if not self.is_fp8():
            var factor_bytes = FACTOR_BYTES * num_places if self.is_rounded else 0
            return align_up(self.factors_at(address, k) + factor_bytes, ALIGNMENT)
        var weight_rows = experts * align_up(n, WEIGHT_ROWS)
        var places = PreparedPlaces.of(num_places, weight_rows, k, ALL_ROWS, has_weights=False)
        var is_e4m3 = self.kernel == Kernel.RS_E4M3
        var end = places.end_of_factors(k) if is_e4m3 else places.end_of_blocks(num_places, k)
        return align_up(address + end, ALIGNMENT)


def workspace_of(problem: GroupedProblem) -> Workspace:
    """Returns the workspace of a grouped product."""
    var kernel = kernel_of(problem)
    if kernel == Kernel.PORTABLE:
        return Workspace(0, 0)
    if kernel == Kernel.STREAM:
        return Workspace(0, StreamingMemory.of(problem, 0).num_bytes)
    return Workspace(0, Memory.of(problem, 0).num_bytes)


def workspace_of(problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts."""
    var kernel = kernel_of(problem)
    if kernel == Kernel.PORTABLE:
        return portable.workspace_of(problem)
    if kernel == Kernel.STREAM:
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


def grid_of_places(kernel: Kernel, num_places: Int, k: Int) -> Grid:
    """Returns the grid for rows of `k` elements that become bytes or numbers."""
    var most_chunks = MANY_CHUNKS if kernel == Kernel.RS_E5M2 else LANE_CHUNKS
    return Grid(
        ctas_of_rows(num_places, log_lanes_of(num_places, k, most_chunks)),
        threads=PREPARE_THREADS,
        shared_bytes=8 * PREPARE_WARPS,
        starts_early=True,
    )


def column_tiles_of(columns: Int, is_gated: Bool) -> Int:
    """Returns the tiles of a row of the result."""
    return ceildiv(columns, HIDDEN if is_gated else COLUMNS)


def grid_of_tiles(kernel: Kernel, tile_rows: Int, num_tiles: Int, column_tiles: Int) -> Grid:
    """Returns the grid of a product of listed rows: so many tiles a row of the result."""
    var ctas = min(num_tiles * column_tiles, MULTIPROCESSORS)
    var threads = THREADS
    var shared_bytes = RsLayout.fp8(tile_rows, 4, kernel == Kernel.RS_E4M3).space().end()
    if kernel == Kernel.RS_BF16:
        var config = RsConfig.grouped(tile_rows)
        threads, shared_bytes = config.threads(), config.shared_bytes()
    return Grid(ctas, threads=threads, shared_bytes=shared_bytes, starts_early=True)


def grid_of_streaming(
    config: StreamConfig, rows: Int, experts: Int, slots: Int, columns: Int, k: Int, parts: Int
) -> Grid:
    """Returns the grid of `streaming` for rows of `k` elements and results of so many columns."""
    var shared_bytes = config.grouped_bytes(experts, slots, k, parts)
    var row_tiles = parts * most_tiles(rows, experts, config.rows())
    var tiles = row_tiles * ceildiv(columns, config.columns())
    return Grid(
        min(MULTIPROCESSORS * config.ctas(shared_bytes), tiles),
        threads=config.threads(),
        shared_bytes=shared_bytes,
        max_shared_bytes=SHARED_BYTES,
        starts_early=True,
    )


def grid_of_sums(tokens: Int, width: Int) -> Grid:
    """Returns the grid for the sums of slots, results [tokens, width]."""
    var groups = ceildiv(width, NUMBERS * SUM_THREADS)
    return Grid(tokens, groups, threads=SUM_THREADS, starts_early=True)
