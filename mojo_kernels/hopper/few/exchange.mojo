"""From the sums of a group's warps to C: over its warps, then over the ranks of its cluster, in order.

    item       four neighbouring elements of a row of C
    partials   [warp][token][row of its tile of weights]: what warps have
    landing    [rank][item]: what all ranks have of the items that this one stores

A rank adds up its warps' items and sends each to the rank that stores it, whose barrier counts the
bytes. Whether a number did not fit goes to all ranks the same way. So nobody loads from another rank,
which takes a fence of all memory before, and a way there and back for each.
"""

from layout import Coord
from max.gpu import thread_idx
from max.gpu.sync import syncwarp
from std.bit import log2_floor
from std.memory import bitcast

from ...simt.arguments import Result
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
from ..layout import TILE_ROWS
from ..plan import MAX_RANKS, log_of_ranks
from ..shapes import FEW_HEADER_BYTES as HEADER_BYTES, FEW_THREADS as THREADS, LANE_BYTES, Shape
from .result import Partials

comptime ITEM = 4
"""Elements of an item."""
comptime WORD_BYTES = 4
"""Bytes of a flag."""
comptime FULL_AT = 8
"""Where the header has the barrier of the landing, behind the group's flag."""
comptime FLAGS_AT = 16
"""Where it has the flags of all ranks."""


@fieldwise_init
struct Exchange[SHAPE: Shape](TrivialRegisterPassable):
    """How the ranks of a cluster come from their sums to C."""

    comptime LOG_ITEMS = log2_floor(Self.SHAPE.items())
    comptime ROW_ITEMS = Self.SHAPE.columns() // ITEM
    """Items of a token."""
    comptime Landing = TileAddresses[DType.float32, Self.SHAPE.items(), ITEM]

    var base: UInt32
    """The group's shared memory: the flag, the barrier, the flags of all ranks, the landing."""
    var rank: UInt32
    var log_ranks: UInt32
    """How many ranks there are, as an exponent."""

    @staticmethod
    @always_inline
    def of(base: UInt32, rank: UInt32, ranks: UInt32) -> Self:
        """Finds those of a rank."""
        return Self(base, rank, log_of_ranks(ranks))

    @always_inline
    def full(self) -> UInt32:
        """Returns the barrier that says that all has landed."""
        return self.base + UInt32(FULL_AT)

    @always_inline
    def flag_of(self, rank: UInt32) -> UInt32:
        """Returns where the flag of a rank lands."""
        return self.base + UInt32(FLAGS_AT) + rank * UInt32(WORD_BYTES)

    @always_inline
    def landing(self) -> Self.Landing:
        """Returns where items land."""
        return Self.Landing(self.base + UInt32(HEADER_BYTES))

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
    def num_ranks(self) -> UInt32:
        """Returns how many ranks there are."""
        return UInt32(1) << self.log_ranks

    @always_inline
    def log_share(self) -> UInt32:
        """Returns how many items a rank stores at most, as an exponent."""
        return UInt32(Self.LOG_ITEMS) - self.log_ranks

    @always_inline
    def send(self, partials: Partials[Self.SHAPE.token_tiles], num_items: UInt32):
        """Sends all items, of so many, and the flag; waits for those of this rank."""
        var ranks, thread = self.num_ranks(), UInt32(thread_idx.x)
        # Their barriers are there.
        wait_for_cluster()
        if thread == 0:
            var own = self.num_own(num_items)
            arrive_expecting(
                self.full(), (own * UInt32(LANE_BYTES) + UInt32(WORD_BYTES)) << self.log_ranks
            )
        syncwarp()
        var place = self.rank << self.log_share()
        for item in range(thread, num_items, UInt32(THREADS)):
            var owner = item >> self.log_share()
            var to = self.landing().at(Coord(place + item - (owner << self.log_share()), 0))
            send_quad(
                peer_address(to, owner),
                self.of_warps(partials, item),
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
    def num_own(self, num_items: UInt32) -> UInt32:
        """Returns how many of so many items the rank stores."""
        var first = min(self.rank << self.log_share(), num_items)
        return min(num_items - first, UInt32(1) << self.log_share())

    @always_inline
    def any_flag(self) -> Bool:
        """Says whether a rank has raised its flag."""
        if self.log_ranks == 0:
            return load_word(self.base) != 0
        var found = UInt32(0)
        comptime for rank in range(MAX_RANKS):
            if UInt32(rank) < self.num_ranks():
                found |= load_word(self.flag_of(UInt32(rank)))
        return found != 0

    @always_inline
    def store(
        self,
        partials: Partials[Self.SHAPE.token_tiles],
        num_items: UInt32,
        result: Result,
        first_token: UInt32,
        first_column: UInt32,
    ):
        """Adds up the rank's items over all ranks, and stores them."""
        var first = self.rank << self.log_share()
        for own in range(UInt32(thread_idx.x), self.num_own(num_items), UInt32(THREADS)):
            var item = first + own
            var total: SIMD[DType.float32, ITEM]
            if self.log_ranks == 0:
                total = self.of_warps(partials, item)
            else:
                total = self.of_ranks(own)
            var token, part = divmod(item, UInt32(Self.ROW_ITEMS))
            var column = first_column + part * UInt32(ITEM)
            if column < result.columns:
                result.store_columns[ITEM](first_token + token, column, total)

    @always_inline
    def of_warps(
        self, partials: Partials[Self.SHAPE.token_tiles], item: UInt32
    ) -> SIMD[DType.float32, ITEM]:
        """Returns the sums of an item over the warps that share its columns."""
        comptime K_WARPS = Self.SHAPE.k_warps()
        var token, part = divmod(item, UInt32(Self.ROW_ITEMS))
        var row_warp, in_tile = divmod(part, UInt32(TILE_ROWS // ITEM))
        var total = SIMD[DType.float32, ITEM](0)
        comptime for k_warp in range(K_WARPS):
            var warp = row_warp * UInt32(K_WARPS) + UInt32(k_warp)
            var at = partials.at(Coord(warp, token, in_tile * UInt32(ITEM)))
            total += bitcast[DType.float32, ITEM](load_quad(at))
        return total

    @always_inline
    def of_ranks(self, own: UInt32) -> SIMD[DType.float32, ITEM]:
        """Returns the sums of one of the rank's items over all ranks."""
        var total = SIMD[DType.float32, ITEM](0)
        comptime for rank in range(MAX_RANKS):
            if UInt32(rank) < self.num_ranks():
                var at = self.landing().at(Coord((UInt32(rank) << self.log_share()) + own, 0))
                total += bitcast[DType.float32, ITEM](load_quad(at))
        return total
