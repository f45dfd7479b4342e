"""What an RS kernel multiplies, by whom, and where the sums go: one matrix, or those of groups.

    product           tiles              weights        rows of A            result
    DenseProduct      DenseScheduler     one matrix     as they come         sums
    GroupedProduct    ListScheduler      one a group    gathered, a list     sums, or gate(gates) * ups

`gemm_rs_fp8` has the whole product as an argument. `gemm_rs_bf16` has its parts, an argument each: the
compiler takes pointers for those of global memory in structs that have no others inside.
"""

from ..launch.queue import KernelStruct, Passable
from ..numbers.gates import Gate
from ..simt.arguments import ExpertWeights, Result, Weights
from .stream_k import FixUp
from .target import Target
from .host.moe import HIDDEN
from .layout import TILE_ROWS
from .routing import Lists
from .scheduler import DenseScheduler, ListScheduler, Schedule, TileScheduler, WorkTile
from .shapes import COLUMNS, MANY_ROWS, TILES


@fieldwise_init
struct Gating(Equatable, TrivialRegisterPassable):
    """Where gates and their ups are among weight rows."""

    var code: Int

    comptime NONE = Self(0)
    comptime NEIGHBOURS = Self(1)
    comptime HALVES = Self(2)
    comptime EITHER = Self(3)
    """Neighbours or halves: known when the kernel runs."""


@fieldwise_init
struct StageTiles(TrivialRegisterPassable):
    """The tiles of 32 weight rows that a stage has: two neighbours, and two more."""

    var first: UInt32
    var further: UInt32
    """Tiles behind the first one; the last one stands in for those past it."""
    var half: UInt32
    """Tiles from the first one to the third one."""

    @always_inline
    def tile(self, i: UInt32) -> UInt32:
        """Returns one of the stage's tiles."""
        return min(self.first + self._ahead(i), self.first + self.further)

    @always_inline
    def behind(self, i: UInt32) -> UInt32:
        """Returns how many tiles one of the stage's is behind the first one."""
        return min(self._ahead(i), self.further)

    @always_inline
    def _ahead(self, i: UInt32) -> UInt32:
        var pair, odd = divmod(i, UInt32(2))
        return pair * self.half + odd


trait RsProduct(KernelStruct):
    """What a kernel that decodes weights in registers computes."""

    comptime ROWS: Int
    """Rows of A of a tile, at most."""
    comptime WIDTHS: List[Int]
    """Rows that instructions take: of a tile the least that has all of its rows."""
    comptime GATING: Gating
    comptime Scheduler: TileScheduler
    comptime Matrices: Passable
    """The weights."""
    comptime Output: Passable
    """C, and what becomes of sums on the way."""
    comptime Order: Passable
    """Where tiles, or parts of them, are found."""

    def __init__(out self, w: Self.Matrices, c: Self.Output, cluster: UInt32, order: Self.Order):
        """Takes the arguments of a launch; clusters of so many CTAs split K."""
        ...

    def scheduler(self, num_steps: UInt32) -> Self.Scheduler:
        """Returns the tiles of this CTA, each of so many steps of K."""
        ...

    @always_inline
    def ranks(self) -> UInt32:
        """Returns the CTAs of a cluster, which split K."""
        return 1

    @always_inline
    def fix_up(self) -> FixUp[Self.ROWS]:
        """Returns where the parts of tiles meet, of stream-K."""
        return FixUp[Self.ROWS].at(0, 0)

    def weights(self, group: Int32) -> Weights:
        """Returns the weights of a group."""
        ...

    def num_weights(self) -> UInt32:
        """Returns the weight rows of a group."""
        ...

    @always_inline
    def half(self) -> UInt32:
        """Returns the weight rows from a gate to its up, where they are halves; else 0."""
        return 0

    @always_inline
    def gate(self) -> Gate:
        """Returns what makes a hidden number of a gate and its up."""
        return Gate.NONE

    @always_inline
    def source(self, tile: WorkTile, row: UInt32) -> Int:
        """Returns the row of A as it came that is a row of a tile."""
        return Int(tile.row + row)

    def result(self, tile: WorkTile) -> Result:
        """Returns what a tile's rows are stored in: those of a list begin with row 0."""
        ...

    @always_inline
    def weight_tiles(self, column: UInt32) -> StageTiles:
        """Returns the tiles of weight rows that lead to columns from one on."""
        var rows = UInt32(2 if Self.GATING == Gating.NEIGHBOURS else 1)
        var half = UInt32(TILES // 2)
        comptime if Self.GATING == Gating.HALVES:
            half = self.half() // UInt32(TILE_ROWS)
        elif Self.GATING == Gating.EITHER:
            if self.half() == 0:
                rows = 2
            else:
                half = self.half() // UInt32(TILE_ROWS)
        var first = column * rows // UInt32(TILE_ROWS)
        var last = (self.num_weights() - 1) // UInt32(TILE_ROWS)
        return StageTiles(first, last - first, half)


@fieldwise_init
struct DenseProduct[rows: Int, schedule: Schedule, columns: Int = COLUMNS](RsProduct):
    """The product with one matrix, in tiles of so many rows of A and columns of C."""

    comptime ROWS = Self.rows
    comptime WIDTHS: List[Int] = [Self.rows]
    comptime GATING = Gating.NONE
    comptime Scheduler = DenseScheduler[Self.rows, Self.schedule, Self.columns]
    comptime Matrices = Weights
    comptime Output = Result
    comptime Order = FixUp[Self.rows]

    var w: Weights
    var c: Result
    var cluster: UInt32
    var order: FixUp[Self.rows]

    @always_inline
    def scheduler(self, num_steps: UInt32) -> Self.Scheduler:
        return Self.Scheduler.of(self.c, num_steps, self.cluster)

    @always_inline
    def ranks(self) -> UInt32:
        return self.cluster

    @always_inline
    def fix_up(self) -> FixUp[Self.ROWS]:
        return rebind[FixUp[Self.ROWS]](self.order)

    @always_inline
    def weights(self, group: Int32) -> Weights:
        return self.w

    @always_inline
    def num_weights(self) -> UInt32:
        return self.c.columns

    @always_inline
    def result(self, tile: WorkTile) -> Result:
        return self.c


def widths_of(rows: Int) -> List[Int]:
    """Returns the rows that instructions take of the tiles of a list."""
    if rows < MANY_ROWS:
        return [rows]
    var widths: List[Int] = []
    for width in [32, 64, 128, 192, 256]:
        if width <= rows:
            widths.append(width)
    return widths^


struct GroupedProduct[rows: Int, gating: Gating](RsProduct):
    """The product of each group of rows and its weights; hidden numbers if they are gated."""

    comptime ROWS = Self.rows
    comptime WIDTHS = widths_of(Self.rows)
    comptime GATING = Self.gating
    comptime TILE_COLUMNS = COLUMNS if Self.gating == Gating.NONE else HIDDEN
    comptime Scheduler = ListScheduler[Self.TILE_COLUMNS]
    comptime Matrices = ExpertWeights
    comptime Output = Target
    comptime Order = Lists

    var lists: Lists
    var experts: ExpertWeights
    var c: Target
    """Where all rows go."""
    var column_tiles: UInt32
    """Tiles of a row of the result."""
    var from_gate_to_up: UInt32

    @always_inline
    def __init__(out self, w: ExpertWeights, c: Target, cluster: UInt32, order: Lists):
        self.lists = order
        self.experts = w
        self.c = c
        self.column_tiles = (c.rows.columns + UInt32(Self.TILE_COLUMNS - 1)) // UInt32(
            Self.TILE_COLUMNS
        )
        self.from_gate_to_up = 0
        comptime if Self.gating != Gating.NONE:
            if not c.gate().is_interleaved():
                self.from_gate_to_up = UInt32(w.columns) // 2

    @always_inline
    def scheduler(self, num_steps: UInt32) -> Self.Scheduler:
        return Self.Scheduler(self.lists, self.column_tiles, num_steps)

    @always_inline
    def weights(self, group: Int32) -> Weights:
        return self.experts.of(Int(group))

    @always_inline
    def num_weights(self) -> UInt32:
        return UInt32(self.experts.columns)

    @always_inline
    def half(self) -> UInt32:
        return self.from_gate_to_up

    @always_inline
    def gate(self) -> Gate:
        return self.c.gate()

    @always_inline
    def source(self, tile: WorkTile, row: UInt32) -> Int:
        return self.lists.source(tile.row_tile(), row)

    @always_inline
    def result(self, tile: WorkTile) -> Result:
        return self.c.of(tile.row_tile(), self.experts)
