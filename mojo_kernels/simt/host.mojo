"""What the host decides for kernels of any GPU: which one takes a product, grids and workspaces.

    warps    a row and a few columns each: any product
    tiles    on tensor cores: all but tiny products. A tile of C has 128 rows if there are more than
             64 and tiles enough; where tiles are few, several groups have a part of K of the same
             one, whole stages of 128, and leave sums in the workspace, see `tiles.parts`
"""

from std.math import align_up, ceildiv

from ..experts import ExpertsProblem
from ..launch.grid import Grid, Workspace
from ..layouts import RUN_BYTES
from ..numbers.floats import float_bytes, float_code
from ..numbers.formats import Format, block_of, has_float_scales
from ..problem import Left, LeftKind, Problem
from ..schedule.clusters import GridRows

comptime CHUNK = 8
"""Elements of a chunk: neighbours of a row that a thread has."""
comptime VECTOR_BYTES = 16
"""The widest access of a thread."""
comptime BFLOAT16 = Int32(float_code(DType.bfloat16))
comptime FLOAT16 = Int32(float_code(DType.float16))
comptime FLOAT32 = Int32(float_code(DType.float32))

comptime WARPS = 4
"""Warps of a group."""
comptime COLUMNS = 8
"""Columns of a warp: an activation chunk is encoded once for all of them."""
comptime PAIRS = COLUMNS // 2
"""Gates of a warp, each with its up. Rows of hidden numbers are made of blocks: none is cut."""
comptime WARP_THREADS = 32
"""Threads that share a row; wider hardware warps split."""


def is_aligned(problem: Problem) -> Bool:
    """Says whether activations, weights and C can be read and written 16 bytes at a time."""
    var right = problem.right
    var addresses = right.codes | right.scales | problem.result.values
    return addresses % VECTOR_BYTES == 0 and is_left_aligned(problem.left)


def is_left_aligned(left: Left) -> Bool:
    """Says whether activations can be read 16 bytes at a time."""
    var stride_bytes = 0
    if left.kind != LeftKind.ENCODED:
        stride_bytes = left.row_stride * float_bytes(left.dtype)
    return (left.values | stride_bytes) % VECTOR_BYTES == 0


def grid_of_warps(m: Int, n: Int) -> Grid:
    """Returns the grid of warps for C of [m, n]."""
    var x, y, z = GridRows(m, ceildiv(n, WARPS * COLUMNS)).grid()
    return Grid(x, y, z, threads=WARPS * WARP_THREADS)


def workspace_of(problem: ExpertsProblem) -> Workspace:
    """Returns the workspace of a layer of experts: hidden numbers, floats like the tokens."""
    var count = problem.routing.count() * problem.inner
    return Workspace(0, count * float_bytes(problem.left.dtype))


comptime NUMBER_BYTES = 2
"""Bytes of a bfloat16 number."""
comptime TILE_THREADS = 256
"""Threads of a group that computes a tile."""
comptime TILE_COLUMNS = 128
"""The most columns of a tile."""
comptime WARP_COLUMNS = 32
"""Columns of a warp of a tile."""
comptime STEP = 64
"""Elements of K of a stage in shared memory."""
comptime ROW_BYTES = STEP * NUMBER_BYTES
"""Bytes of a row of such a stage."""
comptime STAGES = 2
"""One is multiplied, one is filled."""
comptime FEW_ROWS = 16
"""Up to this many rows of C..."""
comptime SHORT_K = 256
"""...of so short a K at most, a warp a row is faster than the launches that tiles want. Guess."""
comptime STAGE = Format.FP8_BLOCK.block_k
"""Elements of K that have a factor."""
comptime STAGE_STEPS = STAGE // STEP
"""Steps of so many elements."""
comptime PART = 2048
"""Elements of a row that a warp prepares, and that share a mark. Guess."""
comptime ALIGNMENT = 256
"""What follows in the workspace begins at multiples of this."""
comptime MANY_ROWS = 128
"""Rows of a large tile."""
comptime MANY_GROUPS = 96
"""So many groups of large tiles leave no GPU idle. Guess."""
comptime PLACES = 264
"""Groups of large tiles that a GPU of 132 multiprocessors has at once; a guess for others."""
comptime NARROW_PERCENT = 60
"""What a tile of half of the columns takes beside a large one, measured on an H200."""
comptime WANTED_GROUPS = 256
"""Parts of K make no more groups than that: two for each of 128 multiprocessors."""
comptime FEWEST_STAGES = 2
"""Stages of a part. Guess."""
comptime MAX_PARTS = 16
"""Parts of K. Guess."""
comptime NO_FACTORS = 0
"""Sums are elements of C."""
comptime FACTORS_OF_ALL = 1
"""A row and a column have a factor each for all of K: they come in the end."""
comptime FACTORS_OF_STAGES = 2
"""Rows or columns have factors for stages of K."""
comptime ALL_FACTORS = [NO_FACTORS, FACTORS_OF_ALL, FACTORS_OF_STAGES]
"""What factors there are."""


@fieldwise_init
struct TileShape(Equatable, TrivialRegisterPassable):
    """The rows and columns of C of a group; its warps stand in a grid over them."""

    var rows: Int
    var columns: Int

    comptime SMALL = Self(64, TILE_COLUMNS)
    comptime NARROW = Self(MANY_ROWS, TILE_COLUMNS // 2)
    comptime LARGE = Self(MANY_ROWS, TILE_COLUMNS)

    def beside(self, factors: Int) -> Self:
        """Returns the tile that this one becomes for sums that have such factors.

        Two groups are to share a multiprocessor: half of the columns leave registers for sums twice.
        """
        return Self.NARROW if factors == FACTORS_OF_STAGES and self == Self.LARGE else self

    def column_warps(self) -> Int:
        """Returns the warps that share rows."""
        return self.columns // WARP_COLUMNS

    def row_warps(self) -> Int:
        """Returns the warps that share columns."""
        return TILE_THREADS // 32 // self.column_warps()

    def warp_rows(self) -> Int:
        """Returns the rows of a warp."""
        return self.rows // self.row_warps()

    def room_row_bytes(self) -> Int:
        """Returns the bytes from one row of the room to the next, against bank conflicts."""
        return 4 * (self.columns + 8)

    def left_bytes(self) -> Int:
        """Returns the bytes of a stage's rows of A, which rows of B follow."""
        return self.rows * ROW_BYTES

    def stage_bytes(self) -> Int:
        """Returns the bytes of a stage."""
        return self.left_bytes() + self.columns * ROW_BYTES

    def flags_at(self) -> Int:
        """Returns where flags of columns lie, behind stages and the room that sums pass."""
        return max(STAGES * self.stage_bytes(), self.rows * self.room_row_bytes())

    def shared_bytes(self) -> Int:
        """Returns the shared memory of a group: a flag is a word."""
        return self.flags_at() + 4 * self.columns


def takes(m: Int, k: Int) -> Bool:
    """Says whether tiles are for products of so many rows and so long a K."""
    return m > FEW_ROWS or k > SHORT_K


def takes(problem: Problem) -> Bool:
    """Says whether tiles take a problem: not tiny, weights at words and within 4 GiB."""
    comptime MAX_BYTES = 1 << 32
    var are_near = (problem.n + TILE_COLUMNS) * problem.k < MAX_BYTES
    return takes(problem.m, problem.k) and problem.right.codes % RUN_BYTES == 0 and are_near


@fieldwise_init
struct Cut(Equatable, TrivialRegisterPassable):
    """The tile, where sums are there once, and parts of K."""

    var tile: TileShape
    var parts: Int

    @staticmethod
    def of(m: Int, n: Int, k: Int) -> Self:
        """Returns that of a product."""
        var large = Self._of_tile(TileShape.LARGE, m, n, k)
        if m <= MANY_ROWS // 2 or large.num_groups(m, n) < MANY_GROUPS:
            return Self._of_tile(TileShape.SMALL, m, n, k)
        var narrow = Self(TileShape.NARROW, 1)
        # A group alone on a multiprocessor takes as long as two.
        var large_rounds = ceildiv(large.num_groups(m, n), PLACES)
        var narrow_rounds = ceildiv(narrow.num_groups(m, n), PLACES)
        var is_shorter = NARROW_PERCENT * narrow_rounds < 100 * large_rounds
        return narrow if large.parts == 1 and is_shorter else large

    @staticmethod
    def _of_tile(tile: TileShape, m: Int, n: Int, k: Int) -> Self:
        # Nothing has no tiles.
        var tiles = max(Self(tile, 1).num_groups(m, n), 1)
        var most = min(k // (STAGE * FEWEST_STAGES), MAX_PARTS)
        return Self(tile, max(min(WANTED_GROUPS // tiles, most), 1))

    def num_groups(self, m: Int, n: Int) -> Int:
        """Returns the groups of C of [m, n]."""
        return ceildiv(m, self.tile.rows) * ceildiv(n, self.tile.columns) * self.parts

    def beside(self, factors: Int) -> Self:
        """Returns what it becomes for sums that have such factors."""
        return Self(self.tile.beside(factors), self.parts)


def factors_of(left_format: Int, right_format: Int, k: Int) -> Int:
    """Returns what factors the sums of a product of two formats have."""
    var found = NO_FACTORS
    comptime for of_left in [True, False]:
        var format = left_format if of_left else right_format
        if has_float_scales(format):
            found = max(found, FACTORS_OF_ALL)
            if block_of(format).k_blocks(k) > 1:
                found = FACTORS_OF_STAGES
    return found


comptime ALL_TILES = [TileShape.SMALL, TileShape.NARROW, TileShape.LARGE]
"""All tiles."""


def grid_of_tiles(m: Int, n: Int, cut: Cut) -> Grid:
    """Returns the grid of tiles for C of [m, n]."""
    var shared_bytes = cut.tile.shared_bytes()
    return Grid(cut.num_groups(m, n), threads=TILE_THREADS, shared_bytes=shared_bytes)


@fieldwise_init
struct TilePlaces(TrivialRegisterPassable):
    """Where in the workspace of tiles lies what follows rows of numbers, in bytes."""

    var factors: Int
    var row_marks: Int
    var column_marks: Int

    @staticmethod
    def of(m: Int, k: Int) -> Self:
        """Returns those of a left side [m, k]."""
        var factors = align_up(m * k * NUMBER_BYTES, ALIGNMENT)
        var row_marks = factors + align_up(m * ceildiv(k, STAGE) * 4, ALIGNMENT)
        return Self(factors, row_marks, row_marks + align_up(m * ceildiv(k, PART), ALIGNMENT))


def column_mark_bytes(n: Int, parts: Int) -> Int:
    """Returns the bytes of the marks of columns, of so many parts of K."""
    return align_up(n * parts, ALIGNMENT)


def sum_bytes(m: Int, n: Int, parts: Int) -> Int:
    """Returns the bytes of the sums of parts of K: none where K is whole."""
    return parts * m * align_up(n, CHUNK) * 4 if parts > 1 else 0


def workspace_of_tiles(m: Int, n: Int, k: Int) -> Workspace:
    """Returns the workspace that a product wants."""
    var parts = Cut.of(m, n, k).parts
    var sums = TilePlaces.of(m, k).column_marks + column_mark_bytes(n, parts)
    return Workspace(0, sums + sum_bytes(m, n, parts))
