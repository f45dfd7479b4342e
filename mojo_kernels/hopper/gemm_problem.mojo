"""What a launch of the RS kernel multiplies: one product, or one of several matrices a tile of rows.

    A ready as bfloat16      stages of
    DenseGemm                [tile of rows, step], whole tiles
    GroupedGemm              [step, place], places of a list; a tile has no more rows than its group
"""

from max.gpu.sync import syncwarp
from std.builtin.device_passable import DevicePassable, DeviceTypeEncoder

from ..launch.queue import DevicePointer
from ..numbers.gates import Gate
from ..simt.arguments import Activations, Result, Weights
from ..simt.routing import ExpertWeights
from ..simt.views import flat_of
from .epilogue.exact import Fallback
from .epilogue.stream_k import FixUp
from .epilogue.target import Part, Target, TileOfC
from .exact import compute_exactly
from .experts.groups import Lists, padded
from .host.moe import HIDDEN
from .host.workspace import flags_of_row
from .instructions.warp import keep_branch, lane_here
from .instructions.wgmma import Accumulator
from .layout import TILE_ROWS
from .pipeline.bulk import BulkSource
from .prepare.bf16 import BF16Stages
from .scheduler import DenseScheduler, ListScheduler, Schedule, TileScheduler, WorkTile
from .shapes import COLUMNS, ROW_BYTES, RsConfig, num_steps_of


@fieldwise_init
struct Outcome(TrivialRegisterPassable):
    """What a warp knows of a tile in the end."""

    var is_whole: Bool
    """Whether its sums are those of all of K: of stream-K, the last CTA of a tile has them."""
    var overflows: Bool
    """Whether bfloat16 could not hold weights."""


trait RsGemm(TrivialRegisterPassable):
    """Operands that are ready, the result, and the order of tiles: each an argument of the kernel.

    The compiler takes pointers for those of global memory in structs that have no others inside.
    """

    comptime Rows: DevicePassable & TrivialRegisterPassable
    """A, ready as bfloat16."""
    comptime Columns: DevicePassable & TrivialRegisterPassable
    """The weights."""
    comptime Output: DevicePassable & TrivialRegisterPassable
    """C, and what becomes of sums on the way."""
    comptime Order: DevicePassable & TrivialRegisterPassable
    """Where tiles, or parts of them, are found."""
    comptime CONFIG: RsConfig
    comptime WIDTHS: List[Int]
    """Rows that instructions take: of a tile the least that has all of its rows."""
    comptime IS_LISTED: Bool
    """Whether tiles are those of a list, which another kernel makes."""
    comptime IS_GATED: Bool
    """Whether weight rows are gates and ups, and C is of hidden numbers."""
    comptime Scheduler: TileScheduler

    def __init__(out self, staged: Self.Rows, w: Self.Columns, c: Self.Output, order: Self.Order):
        """Takes the arguments of a launch."""
        ...

    def scheduler(self, k: UInt32, ranks: UInt32) -> Self.Scheduler:
        """Returns the CTA's tiles."""
        ...

    def source(
        self, tile: WorkTile, k: UInt32, producer: UInt32
    ) -> BulkSource[Self.CONFIG.layout()]:
        """Returns what a producer copies of a tile; the last weight tile stands in for others."""
        ...

    def output(self, tile: WorkTile) -> TileOfC:
        """Returns where a tile goes."""
        ...

    def are_marked[
        count: Int
    ](self, a: Activations, tile: WorkTile, rows: SIMD[DType.uint32, count]) -> SIMD[
        DType.bool, count
    ]:
        """Says which of some rows of a tile bfloat16 cannot hold; kept numbers it can."""
        ...

    def fall_back(self, a: Activations, tile: WorkTile, row: UInt32, first: UInt32, end: UInt32):
        """Stores columns of a tile's row as float64 has them; a warp calls it."""
        ...

    @always_inline
    def fix_up[
        rows: Int, //
    ](
        self,
        scheduler: Self.Scheduler,
        index: UInt32,
        base: UInt32,
        mut sums: Accumulator[rows],
        mut outcome: Outcome,
    ):
        """Adds up the sums of a tile whose K has several CTAs, in the last of them."""
        pass


@fieldwise_init
struct DenseGemm[config: RsConfig, schedule: Schedule](RsGemm):
    """One product."""

    comptime Rows = BF16Stages
    comptime Columns = Weights
    comptime Output = Result
    comptime Order = FixUp[Self.config.rows]
    comptime CONFIG = Self.config
    comptime WIDTHS: List[Int] = [Self.config.rows]
    comptime IS_LISTED = False
    comptime IS_GATED = False
    comptime Scheduler = DenseScheduler[Self.config.rows, Self.schedule]

    var staged: BF16Stages
    """A, as `prepare_bf16` made it."""
    var w: Weights
    var c: Result
    var order: Self.Order
    """Where stream-K's partial sums meet."""

    @always_inline
    def scheduler(self, k: UInt32, ranks: UInt32) -> Self.Scheduler:
        return Self.Scheduler.of(self.c, num_steps_of(k), ranks)

    @always_inline
    def source(
        self, tile: WorkTile, k: UInt32, producer: UInt32
    ) -> BulkSource[Self.CONFIG.layout()]:
        comptime BYTES = Self.config.rows * ROW_BYTES
        var stage = Int(tile.row // UInt32(Self.config.rows)) * Int(num_steps_of(k))
        var rows = self.staged.tokens.unsafe_offset((stage + Int(tile.first_step)) * BYTES)
        var last = (self.c.columns - 1) // UInt32(TILE_ROWS)
        var mine = min(tile.column // UInt32(TILE_ROWS) + producer, last)
        return BulkSource[Self.CONFIG.layout()].of(
            rows, BYTES, UInt32(BYTES), self.w, mine, k, tile.first_step, producer
        )

    @always_inline
    def output(self, tile: WorkTile) -> TileOfC:
        return TileOfC(self.c, tile.row, Part(tile.column, 0), Gate.NONE)

    @always_inline
    def are_marked[
        count: Int
    ](self, a: Activations, tile: WorkTile, rows: SIMD[DType.uint32, count]) -> SIMD[
        DType.bool, count
    ]:
        var found = SIMD[DType.uint8, count](0)
        if not a.is_kept():
            # All loads are on the way at once; rows past the end repeat the last one.
            var marks = self.staged.row_flags(UInt32(a.k))
            for mark in range(Int(flags_of_row(UInt32(a.k)))):
                comptime for i in range(count):
                    found[i] |= marks[Int(min(tile.row + rows[i], self.c.rows - 1)), mark]
        return found.ne(0)

    @always_inline
    def fall_back(self, a: Activations, tile: WorkTile, row: UInt32, first: UInt32, end: UInt32):
        # The sums that other lanes stored before are not to overtake these.
        syncwarp()
        var lane = lane_here()
        for column in range(first, end):
            compute_exactly(a, self.w, self.c, tile.row + row, UInt32(column), lane)

    @always_inline
    def fix_up[
        rows: Int, //
    ](
        self,
        scheduler: Self.Scheduler,
        index: UInt32,
        base: UInt32,
        mut sums: Accumulator[rows],
        mut outcome: Outcome,
    ):
        comptime if Self.schedule == Schedule.STREAM_K:
            if scheduler.tile(index).num_steps() < scheduler.num_steps:
                keep_branch()
                var found = self.order.leave(scheduler, index, base, sums, outcome.overflows)
                outcome.is_whole = found.is_last
                outcome.overflows |= found.is_marked


@fieldwise_init
struct GatheredRows(DevicePassable, TrivialRegisterPassable):
    """Rows of A in the places of a list."""

    comptime device_type: AnyType = Self

    var stages: DevicePointer[DType.uint8]
    """[step, place], 128 bytes each."""
    var marks: DevicePointer[DType.uint8]
    """A byte for each place."""
    var num_places: UInt32
    """Places of a stage."""

    def _to_device_type(self, mut encoder: Some[DeviceTypeEncoder], target: MutOpaquePointer[_]):
        encoder.encode(self, target)

    @staticmethod
    def get_type_name() -> String:
        return "GatheredRows"


def widths_of(config: RsConfig) -> List[Int]:
    """Returns the rows that instructions take of the tiles of a list."""
    if config.k_splits > 1:
        return [config.rows]
    var widths: List[Int] = []
    for width in [32, 64, 128, 192, 256]:
        if width <= config.rows:
            widths.append(width)
    return widths^


@fieldwise_init
struct GroupedGemm[config: RsConfig, is_gated: Bool](RsGemm):
    """One of several matrices for each tile of rows."""

    comptime Rows = GatheredRows
    comptime Columns = ExpertWeights
    comptime Output = Target
    comptime Order = Lists
    comptime CONFIG = Self.config
    comptime WIDTHS = widths_of(Self.config)
    comptime IS_LISTED = True
    comptime IS_GATED = Self.is_gated
    comptime Scheduler = ListScheduler[HIDDEN if Self.is_gated else COLUMNS]

    var staged: GatheredRows
    """A, as `prepare_bf16_places` made it."""
    var experts: ExpertWeights
    var c: Target
    var order: Lists

    @always_inline
    def scheduler(self, k: UInt32, ranks: UInt32) -> Self.Scheduler:
        comptime STEP = UInt32(HIDDEN if Self.is_gated else COLUMNS)
        var column_tiles = (self.c.rows.columns + STEP - 1) // STEP
        return Self.Scheduler(self.order, column_tiles, num_steps_of(k))

    @always_inline
    def part(self, tile: WorkTile) -> Part:
        """Returns a tile's columns."""
        var half = UInt32(0)
        comptime if Self.is_gated:
            if not self.c.gate().is_interleaved():
                half = UInt32(self.experts.columns) // 2
        return Part(tile.column, half)

    @always_inline
    def source(
        self, tile: WorkTile, k: UInt32, producer: UInt32
    ) -> BulkSource[Self.CONFIG.layout()]:
        var last = (UInt32(self.experts.columns) - 1) // UInt32(TILE_ROWS)
        var mine = self.part(tile).weight_tile(producer, UInt32(TILE_ROWS), Self.is_gated)
        return BulkSource[Self.CONFIG.layout()].of(
            self.staged.stages.unsafe_offset(Int(tile.place) * ROW_BYTES),
            Int(self.staged.num_places) * ROW_BYTES,
            padded(tile.rows) * UInt32(ROW_BYTES),
            self.experts.of(Int(tile.group)),
            min(mine, last),
            k,
            0,
            producer,
        )

    @always_inline
    def output(self, tile: WorkTile) -> TileOfC:
        var rows = tile.row_tile()
        return TileOfC(self.c.of(rows, self.experts), 0, self.part(tile), self.c.gate())

    @always_inline
    def are_marked[
        count: Int
    ](self, a: Activations, tile: WorkTile, rows: SIMD[DType.uint32, count]) -> SIMD[
        DType.bool, count
    ]:
        var found = SIMD[DType.uint8, count](0)
        if not a.is_kept():
            comptime for i in range(count):
                found[i] = flat_of(self.staged.marks)[Int(tile.place + min(rows[i], tile.rows - 1))]
        return found.ne(0)

    @always_inline
    def fall_back(self, a: Activations, tile: WorkTile, row: UInt32, first: UInt32, end: UInt32):
        var rows = tile.row_tile()
        var exactly = Fallback(a, self.experts.of(Int(tile.group)), UInt32(self.experts.columns))
        exactly.store[Self.is_gated](
            self.order.source(rows, row),
            self.part(tile).half,
            self.c.gate(),
            self.c.of(rows, self.experts),
            row,
            first,
            end,
        )
