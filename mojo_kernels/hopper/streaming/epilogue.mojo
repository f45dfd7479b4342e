"""From the partial sums of warps to C: over the warps that split K, then over the CTAs of a cluster.

    quad       four neighbouring columns of a row of C, whose sums a thread has
    partials   [warp][row][column of its tile]: what the warps of a CTA have
    landing    [cluster rank][quad]: what all CTAs have of the quads that this one stores

A CTA of a cluster adds up its warps' quads and sends each to the CTA that stores it, through distributed
shared memory; the barrier there counts the bytes. The flag that bfloat16 cannot hold an operand goes to
all CTAs the same way. So nobody loads from another CTA, which takes a fence of all memory before, and a
way there and back for each. All sums are added up in the order of warps, then of cluster ranks.

    columns of a gated tile   its two weight tiles   sums of a thread            it stores
    gates and ups mixed       neighbours             gate up gate up             two hidden numbers
    halves                    gates | their ups      four gates, their four ups  four hidden numbers
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.sync import syncwarp
from std.bit import log2_floor
from std.memory import bitcast

from ...numbers.floats import float_bytes
from ...simt.arguments import Result
from ..target import Target
from ..instructions.shared_memory import (
    TileAddresses,
    arrive_at_cluster,
    arrive_expecting,
    init_barrier,
    load_quad,
    load_word,
    peer_address,
    publish_barriers,
    send_quad,
    send_word,
    store_word,
    wait_for_cluster,
    wait_phase,
)
from ..instructions.warp import FRAGMENT_SUMS, keep_branch, prefetch
from ..layout import K_LANES, ROW_LANES, TILE_ROWS
from ..plan import MAX_RANKS
from ..shapes import (
    DENSE_WARPS,
    FRAGMENT_ROWS,
    LANE_BYTES,
    PARTIAL_STRIDE,
    QUAD,
    STREAM_HEADER_BYTES,
    StreamConfig,
    WORD_BYTES,
)
from .mainloop import HALVES, WarpSums
from .scheduler import GroupedMemory, ROWS

comptime TILE_QUADS = TILE_ROWS // QUAD
"""Quads of a row of a tile of weights."""
comptime QuadSums = SIMD[DType.float32, QUAD]
"""The sums of a quad."""
comptime Totals = SIMD[DType.float32, 2 * QUAD]
"""A thread's sums, and those of the ups where it has gates."""
comptime Partials[row_fragments: Int] = TileAddresses[
    DType.float32, DENSE_WARPS, row_fragments * FRAGMENT_ROWS, PARTIAL_STRIDE
]
"""The partial sums of all warps, [warp, row, column of its tile]."""


@always_inline
def store_partials[
    row_fragments: Int, count: Int, //, first: Int = 0
](sums: WarpSums[row_fragments], partials: Partials[count], warp: UInt32, lane: UInt32):
    """Stores a warp's sums of so many fragments of rows, from one on."""
    var column, pair = divmod(lane, UInt32(K_LANES))
    var mine = partials.starting_at(Coord(warp, 2 * pair, column))
    comptime for fragment in range(count):
        comptime for half in range(HALVES):
            comptime for i in range(FRAGMENT_SUMS):
                comptime row = fragment * FRAGMENT_ROWS + i % 2
                comptime column = (half * 2 + i // 2) * ROW_LANES
                store_word(
                    mine.at(Coord(0, row, column)),
                    bitcast[DType.uint32](sums[first + fragment, half][i]),
                )


@always_inline
def sum_of_warps[
    row_fragments: Int, //, k_warps: Int
](partials: Partials[row_fragments], row: UInt32, tile: UInt32, quad: UInt32) -> QuadSums:
    """Returns the sums of a quad of a tile over the warps that split its K."""
    var total = QuadSums(0)
    comptime for k_warp in range(k_warps):
        var warp = tile * UInt32(k_warps) + UInt32(k_warp)
        var at = partials.at(Coord(warp, row, quad * UInt32(QUAD)))
        total += bitcast[DType.float32, QUAD](load_quad(at))
    return total


# Dense: a tile of C, stored by the CTAs of a cluster.

comptime FULL_AT = 8
"""Where the header has the barrier of the landing, behind the CTA's flag."""
comptime FLAGS_AT = 16
"""Where it has the flags of all CTAs of the cluster."""


@fieldwise_init
struct ClusterReduction[CONFIG: StreamConfig](TrivialRegisterPassable):
    """How the CTAs of a cluster, or one CTA alone, come from partial sums to C."""

    comptime LOG_QUADS = log2_floor(Self.CONFIG.rows() * Self.CONFIG.quads())
    comptime Landing = TileAddresses[DType.float32, 1 << Self.LOG_QUADS, QUAD]
    comptime Partials = Partials[Self.CONFIG.row_fragments]

    var base: UInt32
    """The CTA's shared memory: its flag, the barrier, the flags of all, the landing."""
    var rank: UInt32
    var log_ranks: UInt32
    """How many CTAs there are, as an exponent."""

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that all has landed."""
        return self.base + UInt32(FULL_AT)

    @always_inline
    def flag_of(self, rank: UInt32) -> UInt32:
        """Returns where the flag of a CTA lands."""
        return self.base + UInt32(FLAGS_AT) + rank * UInt32(WORD_BYTES)

    @always_inline
    def landing(self) -> Self.Landing:
        """Returns where quads land."""
        return Self.Landing(self.base + UInt32(STREAM_HEADER_BYTES))

    @always_inline
    def begin(self):
        """Clears the flag, and says that others may send; all threads call it at the beginning."""
        if thread_idx.x == 0:
            store_word(self.base, 0)
            init_barrier(self.full(), 1)
            publish_barriers()
        syncwarp()
        if self.log_ranks > 0:
            arrive_at_cluster()

    @always_inline
    def log_share(self) -> UInt32:
        """Returns how many quads a CTA stores at most, as an exponent."""
        return UInt32(Self.LOG_QUADS) - self.log_ranks

    @always_inline
    def num_own(self, num_quads: UInt32) -> UInt32:
        """Returns how many of so many quads the CTA stores."""
        var first = min(self.rank << self.log_share(), num_quads)
        return min(num_quads - first, UInt32(1) << self.log_share())

    @always_inline
    def send(self, partials: Self.Partials, num_quads: UInt32):
        """Sends all quads, of so many, and the flag; waits for those of this CTA."""
        var ranks, thread = UInt32(1) << self.log_ranks, UInt32(thread_idx.x)
        # Their barriers are there.
        wait_for_cluster()
        if thread == 0:
            var own = self.num_own(num_quads)
            arrive_expecting(
                self.full(), (own * UInt32(LANE_BYTES) + UInt32(WORD_BYTES)) << self.log_ranks
            )
        syncwarp()
        var place = self.rank << self.log_share()
        for quad in range(thread, num_quads, UInt32(Self.CONFIG.threads())):
            var owner = quad >> self.log_share()
            var to = self.landing().at(Coord(place + quad - (owner << self.log_share()), 0))
            send_quad(
                peer_address(to, owner),
                self.of_warps(partials, quad),
                peer_address(self.full(), owner),
            )
        if thread < ranks:
            send_word(
                peer_address(self.flag_of(self.rank), thread),
                load_word(self.base),
                peer_address(self.full(), thread),
            )
        wait_phase(self.full(), 0)

    @always_inline
    def any_flag(self) -> Bool:
        """Says whether a CTA has raised its flag."""
        if self.log_ranks == 0:
            return load_word(self.base) != 0
        var found = UInt32(0)
        comptime for rank in range(MAX_RANKS):
            if UInt32(rank) < UInt32(1) << self.log_ranks:
                found |= load_word(self.flag_of(UInt32(rank)))
        return found != 0

    @always_inline
    def store(
        self,
        partials: Self.Partials,
        num_quads: UInt32,
        result: Result,
        first_row: UInt32,
        first_column: UInt32,
    ):
        """Adds up the CTA's quads over all CTAs, and stores them.

        One CTA alone has a loop of its own: in a common one ptxas took the landing's address of the next
        turn for that of the partial sums.
        """
        var thread, count = UInt32(thread_idx.x), self.num_own(num_quads)
        if self.log_ranks == 0:
            for quad in range(thread, count, UInt32(Self.CONFIG.threads())):
                self._store(self.of_warps(partials, quad), quad, result, first_row, first_column)
            return
        keep_branch()
        for own in range(thread, count, UInt32(Self.CONFIG.threads())):
            var quad = (self.rank << self.log_share()) + own
            self._store(self.of_ranks(own), quad, result, first_row, first_column)

    @always_inline
    def _store(
        self, total: QuadSums, quad: UInt32, result: Result, first_row: UInt32, first_column: UInt32
    ):
        """Stores the sums of a quad, if there is such a column."""
        var row, in_row = divmod(quad, UInt32(Self.CONFIG.quads()))
        var column = first_column + in_row * UInt32(QUAD)
        if column < result.columns:
            result.store_columns[QUAD](first_row + row, column, total)

    @always_inline
    def of_warps(self, partials: Self.Partials, quad: UInt32) -> QuadSums:
        """Returns the CTA's sums of a quad."""
        var row, in_row = divmod(quad, UInt32(Self.CONFIG.quads()))
        var tile, in_tile = divmod(in_row, UInt32(TILE_QUADS))
        return sum_of_warps[Self.CONFIG.k_warps](partials, row, tile, in_tile)

    @always_inline
    def of_ranks(self, own: UInt32) -> QuadSums:
        """Returns the sums of one of the CTA's quads over the cluster."""
        var total = QuadSums(0)
        comptime for rank in range(MAX_RANKS):
            if UInt32(rank) < UInt32(1) << self.log_ranks:
                var at = self.landing().at(Coord((UInt32(rank) << self.log_share()) + own, 0))
                total += bitcast[DType.float32, QUAD](load_quad(at))
        return total


# Grouped: a batch of rows of an expert, some warps for each.


@fieldwise_init
struct BatchEpilogue[CONFIG: StreamConfig](TrivialRegisterPassable):
    """A batch of the rows of a tile, ready to be reduced by some warps, which take turns."""

    var memory: GroupedMemory
    var target: Target
    var result: Result
    """All rows, with the bias of the tile's expert."""
    var rows: UInt32
    """Rows of the tile."""
    var column_tile: UInt32
    var half: UInt32
    """Columns of the weights from a gate to its up; 0 for neighbours, and for no gate."""
    var number: UInt32
    """Of the batch, of those of all tiles."""

    comptime QUADS = Self.CONFIG.quads()
    """Of a row."""
    comptime WARP_ROWS = 32 // Self.QUADS
    """Rows of a warp."""
    comptime ROWS = FRAGMENT_ROWS * Self.CONFIG.batch()
    """Rows of the batch."""
    comptime WARPS = Self.ROWS // Self.WARP_ROWS
    """Warps that reduce it."""

    @always_inline
    def first_row(self) -> UInt32:
        """Returns the first row of the tile that is in the batch."""
        return self.number % UInt32(Self.CONFIG.batches()) * UInt32(Self.ROWS)

    @always_inline
    def turn(self, warp: UInt32) -> UInt32:
        """Returns which of the warps that reduce the batch a warp is."""
        return (warp + self.number * UInt32(Self.WARPS)) % UInt32(Self.CONFIG.warps())

    @always_inline
    def prefetch_bias(self, turn: UInt32, lane: UInt32):
        """Brings near what is added to the columns that a lane has."""
        if self.result.has_bias() and turn == 0:
            var column = self._weights_column(
                lane // UInt32(TILE_QUADS) % UInt32(Self.CONFIG.column_tiles),
                lane % UInt32(TILE_QUADS),
            )
            var bytes = Int(column) * float_bytes(Int(self.result.bias_dtype))
            prefetch(self.result.bias.unsafe_offset(bytes))

    @always_inline
    def _weights_column(self, tile: UInt32, quad: UInt32) -> UInt32:
        """Returns the first weight row of a quad."""
        comptime TILES = Self.CONFIG.column_tiles
        var before = self.column_tile * UInt32(TILE_ROWS * TILES) + tile * UInt32(TILE_ROWS)
        comptime if Self.CONFIG.is_gated:
            if self.half != 0:
                before = self.column_tile * UInt32(TILE_ROWS) + tile * self.half
        return before + quad * UInt32(QUAD)

    @always_inline
    def _place(self, turn: UInt32, lane: UInt32) -> Tuple[UInt32, UInt32, UInt32]:
        """Returns which row of the batch a lane has, and which tile and quad of it."""
        var row = turn * UInt32(Self.WARP_ROWS) + lane // UInt32(Self.QUADS)
        var tile, quad = divmod(lane % UInt32(Self.QUADS), UInt32(TILE_QUADS))
        return (row, tile, quad)

    @always_inline
    def partials(self) -> Partials[Self.CONFIG.batch()]:
        """Returns the partial sums of the batch."""
        return Partials[Self.CONFIG.batch()](self.memory.partials[Self.CONFIG](self.number))

    @always_inline
    def reduce(self, turn: UInt32, lane: UInt32) -> Totals:
        """Adds up what one lane has; zeros for a row that there is not."""
        var row, tile, quad = self._place(turn, lane)
        comptime K_WARPS = Self.CONFIG.k_warps
        var totals, partials = Totals(0), self.partials()
        if self.first_row() + row < self.rows:
            totals = totals.insert[offset=0](sum_of_warps[K_WARPS](partials, row, tile, quad))
            comptime if Self.CONFIG.is_gated:
                if self.half != 0 and tile == 0:
                    totals = totals.insert[offset=QUAD](
                        sum_of_warps[K_WARPS](partials, row, 1, quad)
                    )
        return totals

    @always_inline
    def store(self, turn: UInt32, lane: UInt32, totals: Totals):
        """Adds the bias, gates, rounds and stores what one lane has added up."""
        var in_batch, tile, quad = self._place(turn, lane)
        if self.first_row() + in_batch >= self.rows:
            return
        var row = Int(load_word(self.memory.at(ROWS, self.first_row() + in_batch)))
        var column = self._weights_column(tile, quad)
        comptime if Self.CONFIG.is_gated:
            self._store_hidden(tile, row, column, totals)
        else:
            self.result.store_columns[QUAD](UInt32(row), column, totals.slice[QUAD]())

    @always_inline
    def _store_hidden(self, tile: UInt32, row: Int, weights_column: UInt32, totals: Totals):
        """Stores what gates and ups of a row become, of which a thread has the gates at least."""
        if self.half != 0 and tile > 0:
            return
        var gate, elements = self.target.gate(), self.result.elements()
        var mine, column = totals.slice[QUAD](), Int(weights_column)
        if self.result.has_bias():
            mine += self.result.bias_of[QUAD](column)
        if self.half == 0:
            var gates, ups = mine.deinterleave()
            elements.store[QUAD // 2, QUAD // 2](
                row, Int(weights_column // 2), gate.of_usual(gates, ups)
            )
            return
        var ups = totals.slice[QUAD, offset=QUAD]()
        if self.result.has_bias():
            ups += self.result.bias_of[QUAD](column + Int(self.half))
        elements.store[QUAD, QUAD](row, column, gate.of_usual(mine, ups))
