"""A CTA of a streaming product: where its tiles are, how rows get to it, and how sums get to C.

Dense is grouped with one group: one expert, one tile, of which the CTAs of a cluster have a share of K
each. What follows is known at compile time.
"""

from max.gpu import block_idx, grid_dim, thread_idx
from max.gpu.primitives.grid_controls import launch_dependent_grids, wait_on_dependent_grids
from max.gpu.primitives.warp import broadcast
from max.gpu.sync import barrier
from std.math import ceildiv

from ...numbers.floats import float_bytes
from ...problem import NO_BIAS
from ...routing.slots import NO_EXPERT
from ...simt.arguments import Activations, ExpertWeights, Result
from ...simt.host import FLOAT32
from ...simt.views import flat_of
from ..codec import any_overflows
from ..decode.bf16 import TensorPlanes, load_tensor_planes
from ..epilogue.fallback import Fallback, compute_exactly
from ..target import Target
from ..instructions.shared_memory import any_thread, load_word, store_word
from ..instructions.warp import any_lane, keep_branch, keep_here, lane_here
from ..layout import BLOCK, K_LANES, TILE_ROWS
from ..plan import log_of_ranks
from ..routing import RowTile
from ..shapes import STREAM_HEADER_BYTES, StreamConfig
from .activations import Fragments, RowStage, reciprocal_of
from .epilogue import BatchEpilogue, ClusterReduction, Partials, Totals, store_partials
from .mainloop import BlockPlace, LANES, RowFactors, WarpSums, apply_both, apply_tensor_scales
from .scheduler import (
    EXPERT,
    GroupedMemory,
    MARKS,
    NUM_ROWS,
    OVERFLOW,
    PART,
    ROWS,
    TileRows,
    StreamScheduler,
)


@fieldwise_init
struct StreamCta[CONFIG: StreamConfig](Copyable):
    """What a CTA has, seen from one of its warps.

    Out of line it is passed by address: as arguments its fields would take registers from all code.
    """

    comptime IS_GROUPED = Self.CONFIG.is_grouped
    comptime K_WARPS = UInt32(Self.CONFIG.k_warps)

    var a: Activations
    var is_aligned: Bool
    var scheduler: StreamScheduler
    var weights: ExpertWeights
    var target: Target
    var half: UInt32
    """Columns of the weights from a gate to its up; 0 for neighbours, and for no gate."""
    var reciprocal: UInt32
    """Of the chunks of a row in a stage."""
    var memory: GroupedMemory
    var first_warp: UInt32
    """The warp, the same to the compiler in all lanes; `warp` is for who wants it."""

    @always_inline
    def warp(self) -> UInt32:
        """Returns the warp; what follows from it is computed here, not before the main loop."""
        comptime if Self.IS_GROUPED:
            return keep_here(SIMD[DType.uint32, 1](self.first_warp))[0]
        return self.first_warp

    # Which tiles.

    @always_inline
    def begin(self) -> Tuple[UInt32, UInt32]:
        """Returns the CTA's first tile and the one behind its last: some CTAs have one more."""
        comptime if not Self.IS_GROUPED:
            self.cluster().begin()
            return (UInt32(0), UInt32(1))
        if thread_idx.x == 0:
            store_word(self.memory.at(OVERFLOW), 0)
        if self.scheduler.is_early == 0:
            wait_on_dependent_grids()
            launch_dependent_grids()
        var tiles = self.scheduler.lay_out[Self.CONFIG](self.memory) * self.scheduler.column_tiles
        comptime if Self.CONFIG.is_split:
            tiles *= self.scheduler.ranks
        var share, more = divmod(tiles, UInt32(grid_dim.x))
        var cta = UInt32(block_idx.x)
        var first = cta * share + min(cta, more)
        var end = first + share + UInt32(1 if cta < more else 0)
        if first == end and self.scheduler.is_early != 0:
            wait_on_dependent_grids()
        return (broadcast(first), broadcast(end))

    @always_inline
    def place_of(self, tile: UInt32) -> Tuple[UInt32, UInt32]:
        """Returns the row tile, counted once a part of K, and the column tile of a tile."""
        comptime if not Self.IS_GROUPED:
            return (UInt32(block_idx.z), UInt32(block_idx.y))
        return divmod(tile, self.scheduler.column_tiles)

    @always_inline
    def find(self, row_tile: UInt32) -> TileRows:
        """Returns the rows of a row tile that there is."""
        comptime if not Self.IS_GROUPED:
            comptime ROWS = UInt32(Self.CONFIG.rows())
            var before = row_tile * ROWS
            return TileRows(0, before, min(self.target.rows.rows - before, ROWS))
        var index = row_tile
        comptime if Self.CONFIG.is_split:
            index //= self.scheduler.ranks
        return self.scheduler.find[Self.CONFIG.rows()](self.memory, index, lane_here())

    @always_inline
    def part_of(self, row_tile: UInt32) -> UInt32:
        """Returns the part of K of a row tile, if there are any."""
        return row_tile % self.scheduler.ranks if Self.CONFIG.is_split else UInt32(0)

    @always_inline
    def part(self) -> UInt32:
        """Returns the part of the row tile that is staged."""
        return load_word(self.memory.at(PART)) if Self.CONFIG.is_split else UInt32(0)

    # Which blocks of weights.

    @always_inline
    def k_warp(self) -> UInt32:
        """Returns which of the warps that split K this one is."""
        return self.warp() % Self.K_WARPS

    @always_inline
    def first_block(self, part: UInt32) -> UInt32:
        """Returns the first block of a part of K, or of the CTA's share."""
        comptime if Self.IS_GROUPED and not Self.CONFIG.is_split:
            return 0
        var index = part if Self.IS_GROUPED else UInt32(block_idx.x)
        return min(index * self.scheduler.share, self.memory.k_blocks)

    @always_inline
    def num_blocks(self, part: UInt32) -> UInt32:
        """Returns the blocks of a part of K, or of the CTA's share."""
        comptime if Self.IS_GROUPED and not Self.CONFIG.is_split:
            return self.memory.k_blocks
        return min(self.scheduler.share, self.memory.k_blocks - self.first_block(part))

    @always_inline
    def blocks(self, expert: UInt32, part: UInt32) -> UInt32:
        """Returns the warp's blocks of a tile: none for rows of no expert."""
        var blocks = (self.num_blocks(part) + Self.K_WARPS - 1 - self.k_warp()) // Self.K_WARPS
        comptime if not Self.IS_GROUPED:
            return blocks
        return blocks if expert < UInt32(self.weights.count) else UInt32(0)

    @always_inline
    def blocks_from(self, expert: UInt32, part: UInt32, block: UInt32) -> UInt32:
        """Returns those from a block of the part on at which a stage begins or all end."""
        var blocks = self.blocks(expert, part)
        return blocks - min(blocks, block // Self.K_WARPS)

    @always_inline
    def weight_tile(self, column_tile: UInt32) -> UInt32:
        """Returns the tile of weight rows that the warp has of a tile."""
        var weight_tile = self.warp() // Self.K_WARPS
        var tile = column_tile * UInt32(Self.CONFIG.column_tiles) + weight_tile
        comptime if Self.CONFIG.is_gated:
            if self.half != 0:
                tile = column_tile + weight_tile * (self.half // UInt32(TILE_ROWS))
        return min(tile, (UInt32(self.weights.columns) - 1) // UInt32(TILE_ROWS))

    @always_inline
    def first(
        self, expert: UInt32, part: UInt32, column_tile: UInt32
    ) -> BlockPlace[Self.CONFIG.scale]:
        """Returns where the warp's first block of a tile is."""
        var tile = self.weight_tile(column_tile)
        var block = tile * self.memory.k_blocks + self.first_block(part) + self.k_warp()
        return BlockPlace[Self.CONFIG.scale].of(self.weights, expert, tile, block, lane_here())

    @always_inline
    def tensor_scales(self, expert: UInt32, column_tile: UInt32) -> TensorPlanes:
        """Loads the tensor scales of the warp's tile; zeros for rows of no expert."""
        if expert >= UInt32(self.weights.count):
            return TensorPlanes(0)
        var scales = self.weights.scales + Int(expert) * self.weights.scales_step
        var k = self.memory.k_blocks * UInt32(BLOCK)
        return load_tensor_planes(scales, self.weight_tile(column_tile), k)

    @always_inline
    def apply_scales(
        self, planes: TensorPlanes, row_tile: UInt32, sums: WarpSums[Self.CONFIG.row_fragments]
    ):
        """Multiplies sums by tensor scales of the warp's tile, and factors of rows."""
        comptime if Self.CONFIG.may_have_factors:
            # One way for all: where two meet, ptxas spills sums.
            var of_rows = RowFactors[Self.CONFIG.row_fragments](fill=1)
            if self.a.has_factors():
                keep_branch()
                comptime for i in range(ceildiv(Self.CONFIG.rows(), LANES)):
                    of_rows[i] = self.factor(row_tile, UInt32(LANES * i) + lane_here())
            apply_both(planes, of_rows, self.a.has_factors(), sums)
        else:
            apply_tensor_scales(planes, sums)

    @always_inline
    def factor(self, row_tile: UInt32, row: UInt32) -> Float32:
        """Returns the factor of a row of the tile that is staged; past the end the last one's."""
        var source: UInt32
        comptime if Self.IS_GROUPED:
            var last = load_word(self.memory.at(NUM_ROWS)) - 1
            source = load_word(self.memory.at(ROWS, min(row, last)))
            source //= self.scheduler.rows_per_source
        else:
            var rows = self.find(row_tile)
            source = rows.before + min(row, rows.rows - 1)
        return flat_of(self.a.factors())[Int(source)]

    # How rows get to shared memory.

    @always_inline
    def fragments(self) -> Fragments[Self.CONFIG.row_fragments]:
        """Returns where rows are staged."""
        comptime if Self.IS_GROUPED:
            return Fragments[Self.CONFIG.row_fragments](self.memory.fragments())
        comptime BEFORE = UInt32(STREAM_HEADER_BYTES + Self.CONFIG.landing_bytes())
        return Fragments[Self.CONFIG.row_fragments](self.memory.base + BEFORE)

    @always_inline
    def stage(self, row_tile: UInt32, first: UInt32) -> Bool:
        """Stages rows: of a grouped tile a part's blocks, of the one tile those of a stage, from one on.

        All threads call it. Says if bfloat16 cannot hold some.
        """
        var rows: TileRows
        var part, reciprocal = self.part_of(row_tile), self.reciprocal
        var blocks = self.num_blocks(part)
        comptime if Self.IS_GROUPED:
            # All have multiplied and stored the rows of the row tile before.
            barrier()
            if thread_idx.x < 32:
                var found = self.find(row_tile)
                self.scheduler.list_rows(self.memory, found, lane_here())
                if thread_idx.x == 0:
                    comptime if Self.CONFIG.is_split:
                        store_word(self.memory.at(PART), part)
                    store_word(self.memory.at(EXPERT), found.expert)
                    store_word(self.memory.at(NUM_ROWS), found.rows)
            barrier()
            rows = TileRows(0, 0, 0)
            if load_word(self.memory.at(EXPERT)) < self.scheduler.experts:
                rows.rows = load_word(self.memory.at(NUM_ROWS))
            comptime if Self.CONFIG.is_split:
                if blocks != self.scheduler.share:
                    reciprocal = reciprocal_of(blocks * UInt32(K_LANES))
        else:
            comptime STAGE_BLOCKS = UInt32(Self.CONFIG.stage_blocks())
            rows = self.find(row_tile)
            blocks = min(STAGE_BLOCKS, blocks - first)
            if blocks != min(STAGE_BLOCKS, self.scheduler.share):
                reciprocal = reciprocal_of(blocks * UInt32(K_LANES))
            if first > 0:
                barrier()
        var overflow = RowStage[Self.CONFIG](
            self.a,
            rows,
            self.memory,
            self.scheduler.rows_per_source,
            (self.first_block(part) + first) * UInt32(K_LANES),
            blocks * UInt32(K_LANES),
            reciprocal,
            self.fragments(),
        ).fill(self.is_aligned)
        barrier()
        return overflow

    # How sums get to C.

    @always_inline
    def needs(self, condition: Bool) -> Bool:
        """Says whether a condition holds in the warp; if dense, in the CTA, which waits."""
        comptime if Self.IS_GROUPED:
            return any_lane(condition)
        return any_thread[Self.CONFIG.threads()](condition)

    @always_inline
    def cluster(self) -> ClusterReduction[Self.CONFIG]:
        """Returns how the CTAs of the cluster reduce the one tile."""
        return ClusterReduction[Self.CONFIG](
            self.memory.base, UInt32(block_idx.x), log_of_ranks(self.scheduler.ranks)
        )

    @always_inline
    def reduce_cluster(self, sums: WarpSums[Self.CONFIG.row_fragments]) -> Bool:
        """Reduces and stores the CTA's share of the one tile; says if bfloat16 cannot hold an operand.

        Partial sums take the place of the last stage.
        """
        var partials = Partials[Self.CONFIG.row_fragments](self.fragments().base)
        store_partials(sums, partials, self.warp(), lane_here())
        barrier()
        var rows, cluster = self.find(UInt32(block_idx.z)), self.cluster()
        var num_quads = rows.rows * UInt32(Self.CONFIG.quads())
        if self.scheduler.ranks > 1:
            keep_branch()
            cluster.send(partials, num_quads)
        var column = UInt32(block_idx.y) * UInt32(Self.CONFIG.columns())
        if cluster.any_flag():
            return True
        cluster.store(partials, num_quads, self.target.rows, rows.before, column)
        return False

    @always_inline
    def result(self) -> Result:
        """Returns all rows, with the bias of the expert of the row tile that is staged.

        Each part of K has rows of its own, sums in float32, and the first one the bias.
        """
        var expert = load_word(self.memory.at(EXPERT))
        var is_one = expert < UInt32(self.weights.count)
        var of = Int32(expert) if is_one else Int32(NO_EXPERT)
        var result = self.target.of(RowTile(of, 0, 0, self.target.rows.rows), self.weights)
        comptime if Self.CONFIG.is_split:
            var elements = Int(self.part()) * Int(result.rows) * Int(result.columns)
            result.output = result.output.unsafe_offset(elements * float_bytes(Int(FLOAT32)))
            if elements > 0:
                result.bias_dtype = Int32(NO_BIAS)
        return result

    @always_inline
    def batch(self, tile: UInt32, index: UInt32, column_tile: UInt32) -> BatchEpilogue[Self.CONFIG]:
        """Returns the epilogue of a batch of the row tile that is staged."""
        var number = tile * UInt32(Self.CONFIG.batches()) + index
        var rows, result = load_word(self.memory.at(NUM_ROWS)), self.result()
        return BatchEpilogue[Self.CONFIG](
            self.memory, self.target, result, rows, column_tile, self.half, number
        )

    @always_inline
    def reduce_batches(
        self, sums: WarpSums[Self.CONFIG.row_fragments], tile: UInt32, column_tile: UInt32
    ):
        """Reduces and stores a tile: each batch by some warps, while the others go on.

        What was stored before the last batch has been read at this barrier. Of several batches a
        warp has one, and stores behind the last: no other batch waits for that.
        """
        comptime BATCHES = Self.CONFIG.batches()
        var totals, of_warp = Totals(0), UInt32(0)
        comptime for i in range(BATCHES):
            var batch = self.batch(tile, UInt32(i), column_tile)
            comptime if Self.CONFIG.buffers() == 1:
                barrier()
            store_partials[i * Self.CONFIG.batch()](
                sums, batch.partials(), self.warp(), lane_here()
            )
            barrier()
            batch = self.batch(tile, UInt32(i), column_tile)
            comptime if BATCHES == 1:
                var turn = batch.turn(self.warp())
                if turn < UInt32(batch.WARPS):
                    batch.store(turn, lane_here(), batch.reduce(turn, lane_here()))
            else:
                comptime assert BATCHES * batch.WARPS <= Self.CONFIG.warps(), "one of a warp"
                if batch.turn(self.warp()) < UInt32(batch.WARPS):
                    totals = batch.reduce(batch.turn(self.warp()), lane_here())
                    of_warp = UInt32(i)
        comptime if BATCHES > 1:
            var mine = self.batch(tile, of_warp, column_tile)
            var turn = mine.turn(self.warp())
            if turn < UInt32(mine.WARPS):
                mine.store(turn, lane_here(), totals)


@no_inline
def compute_again[CONFIG: StreamConfig](cta: StreamCta[CONFIG], first_tile: UInt32, end: UInt32):
    """Computes in float64 what bfloat16 cannot hold the operands of; all threads call it.

    Of grouped tiles, these are the rows that are marked, or all if it cannot hold a weight; of the
    one tile, all elements, which the CTAs of the cluster share.
    """
    comptime COLUMNS, WARPS = UInt32(CONFIG.columns()), UInt32(CONFIG.warps())
    for tile in range(first_tile, end):
        var row_tile, column_tile = cta.place_of(UInt32(tile))
        var rows, part = cta.find(row_tile), cta.part_of(row_tile)
        var all, first, step, result = True, cta.warp(), WARPS, cta.target.rows
        comptime if CONFIG.is_grouped:
            # All have stored their sums, which are not to overtake what comes here.
            _ = cta.stage(row_tile, 0)
            if rows.expert == cta.scheduler.experts:
                continue
            var place, overflow = cta.first(rows.expert, part, column_tile), False
            for _ in range(cta.blocks(rows.expert, part)):
                overflow |= any_overflows(place.load_scales[0]())
                place.advance(CONFIG.k_warps)
            all, result = any_thread[CONFIG.threads()](overflow), cta.result()
        else:
            first += UInt32(block_idx.x) * WARPS
            step *= cta.scheduler.ranks
        var matrix = cta.weights.of(Int(rows.expert))
        for element in range(first, rows.rows * COLUMNS, step):
            var index, in_tile = divmod(UInt32(element), COLUMNS)
            var column = column_tile * COLUMNS + in_tile
            comptime if CONFIG.is_grouped:
                if all or load_word(cta.memory.at(MARKS, index)) != 0:
                    var row = load_word(cta.memory.at(ROWS, index))
                    var exactly = Fallback[CONFIG.is_split](
                        cta.a, matrix, cta.first_block(part), cta.num_blocks(part)
                    )
                    exactly.store[CONFIG.is_gated](
                        Int(row // cta.scheduler.rows_per_source),
                        cta.half,
                        cta.target.gate(),
                        result,
                        row,
                        column,
                        column + 1,
                    )
            else:
                var row = rows.before + index
                compute_exactly(cta.a, matrix, result, row, column, lane_here())
