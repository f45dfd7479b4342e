"""The epilogue of consumers that split K: reduce partial sums in shared memory, bias or gate, store.

    partial sums      [steps' parity][row][column], float32, some rows at a time ("a pass")
    element of C      even and odd steps of rank 0, then those of rank 1, ... of the cluster
    who adds          a warp a row, ranks and warps in turn, four columns a lane

Behind the stages lies room for a pass of few rows, so that the next tile's stages fill meanwhile. A CTA of
one tile has all rows in one pass, in the stages' place.
"""

from layout import Coord
from max.gpu import thread_idx
from std.bit import log2_floor
from std.memory import bitcast

from ...simt.arguments import Result
from ...tiles import in_registers
from ..decode.bf16 import first_row_of
from ..instructions.shared_memory import (
    TileAddresses,
    cluster_barrier,
    leave_cluster,
    load_peer_quad,
    load_peer_word,
    load_quad,
    load_word,
    peer_address,
    wait_at,
)
from ..instructions.warp import any_lane, lane_here
from ..instructions.wgmma import Accumulator, store_sums
from ..layout import K_LANES
from ..plan import MAX_RANKS
from ..shapes import READERS, RsConfig, SUM_STRIDE
from .target import PART_COLUMNS, Part, TileOfC, store_hidden

comptime FLAGS_AT = 512
"""Where the header has a flag for each consumer warp, behind the barriers."""
comptime SUMS_BARRIER = UInt32(1)
"""The hardware barrier of the consumers."""


@always_inline
def flag_of(base: UInt32, warp: UInt32) -> UInt32:
    """Returns the word that says that bfloat16 could not hold a warp's weights."""
    return base + UInt32(FLAGS_AT) + 4 * warp


@fieldwise_init
struct Reduction[config: RsConfig, is_gated: Bool](TrivialRegisterPassable):
    """Partial sums of a tile on their way to C."""

    var base: UInt32
    """Start of the CTA's shared memory."""
    var rank: UInt32
    """The CTA's place in its cluster, which splits K too."""
    var ranks: UInt32
    """CTAs of the cluster."""

    comptime PASS = Self.config.pass_rows()
    comptime WARPS = Self.config.consumer_warps()
    comptime Sums = TileAddresses[DType.float32, Self.config.k_splits, Self.PASS, SUM_STRIDE]
    """[steps' parity, row, column]."""

    @always_inline
    def sums(self) -> Self.Sums:
        """Returns where partial sums are."""
        return Self.Sums(self.base + UInt32(Self.config.sums_at()))

    @always_inline
    def store[
        rows: Int, //
    ](self, sums: Accumulator[rows], warp: UInt32, to: TileOfC,) -> Bool:
        """Adds up and stores a tile, and says whether weights were too large for bfloat16."""
        var lane = lane_here()
        var row_lane, pair = divmod(lane, UInt32(K_LANES))
        var parity = warp // UInt32(READERS)
        var mine = self.sums().at(Coord(parity, 2 * pair, first_row_of(warp) + row_lane))
        var overflow = False
        comptime for first in range(0, rows, Self.PASS):
            # All warps have stored what was here before, and have multiplied all stages.
            wait_at[32 * Self.WARPS](SUMS_BARRIER)
            comptime if Self.config.is_persistent and first == 0:
                var flag = flag_of(self.base, lane % UInt32(Self.WARPS))
                overflow = any_lane(load_word(flag) != 0)
            store_sums[first, Self.PASS](
                sums, TileAddresses[DType.float32, Self.PASS, SUM_STRIDE](mine)
            )
            comptime if Self.config.is_persistent:
                wait_at[32 * Self.WARPS](SUMS_BARRIER)
                self.store_pass[1](warp, UInt32(first), to)
            else:
                if self.ranks == 1:
                    wait_at[32 * Self.WARPS](SUMS_BARRIER)
                else:
                    cluster_barrier()
                comptime for log_ranks in range(log2_floor(MAX_RANKS) + 1):
                    if self.ranks == UInt32(1 << log_ranks):
                        self.store_pass[1 << log_ranks](warp, 0, to)
                overflow = self.any_flag()
        return overflow

    @always_inline
    def any_flag(self) -> Bool:
        """Says whether a warp of any rank has raised its flag; ranks may end then."""
        # A lane asks for one warp's flag of every rank.
        var found = UInt32(0)
        for rank in range(self.ranks):
            var flag = flag_of(self.base, lane_here() % UInt32(Self.WARPS))
            found |= load_peer_word(peer_address(flag, UInt32(rank)))
        var is_raised = any_lane(found != 0)
        if self.ranks > 1:
            leave_cluster()
        return is_raised

    @always_inline
    def store_pass[ranks: Int](self, warp: UInt32, first: UInt32, to: TileOfC):
        """Adds up and stores this warp's rows of a pass, a share of those of its rank."""
        var lane = UInt32(thread_idx.x) % 32
        var quad = lane * UInt32(PART_COLUMNS)
        var first_row = to.first_row + first
        var rows = to.result.rows
        var end = min(UInt32(Self.PASS), rows - min(first_row, rows))
        for row in range(self.rank + UInt32(ranks) * warp, end, UInt32(ranks * Self.WARPS)):
            # All loads before the first sum.
            var loaded = in_registers[DType.float32, PART_COLUMNS, ranks, Self.config.k_splits]()
            comptime for rank in range(ranks):
                comptime for parity in range(Self.config.k_splits):
                    var at = self.sums().at(Coord(parity, row, quad))
                    comptime if ranks == 1:
                        loaded[rank, parity] = bitcast[DType.float32, PART_COLUMNS](load_quad(at))
                    else:
                        loaded[rank, parity] = load_peer_quad(peer_address(at, UInt32(rank)))
            var total = loaded[0, 0] + loaded[0, 1]
            comptime for rank in range(1, ranks):
                comptime for parity in range(Self.config.k_splits):
                    total += loaded[rank, parity]
            var stored_row = first_row + UInt32(row)
            comptime if Self.is_gated:
                store_hidden(to, stored_row, lane, total)
            else:
                to.result.store_columns[PART_COLUMNS](
                    stored_row, to.part.first_column + quad, total
                )


@always_inline
def store_zeros[warps: Int](part: Part, result: Result):
    """Stores rows of no expert; so many warps, all consumers, call it."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var column = part.first_column + lane * UInt32(PART_COLUMNS)
    for row in range(warp, result.rows, UInt32(warps)):
        result.store_columns[PART_COLUMNS](
            UInt32(row), column, SIMD[DType.float32, PART_COLUMNS](0)
        )
