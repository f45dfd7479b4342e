"""Reductions of partial sums in shared memory: of consumers that split K, and of a cluster's CTAs that do.

    main loop    sums of a CTA                              who adds, four columns a lane
    rs_bf16      [steps' parity][row][column]               a warp a row: of all ranks, where they lie; a
                                                            rank has every so many-th row
    rs_fp8       region [row][column], over the stages      a warp a row: its CTA's own, and those that
                                                            other ranks have copied to the landing,
                                                            [rank][row][column]; a rank has rows one
                                                            behind the other
    ss           region [row][column], over the stages      a thread: of all ranks, where they lie; a rank
                                                            has some columns of all rows, see `ss`

An element of C is the sum of rank 0, in parts of even and odd steps, then those of rank 1, ...

The few rows of a persistent CTA lie behind its stages, so that the next tile's stages fill meanwhile;
those of a CTA of one tile in the stages' place. Copies to a landing are sent at once: sixteen bytes at
a time the barrier would have to count each of them.
"""

from layout import Coord
from max.gpu import block_idx, thread_idx
from max.gpu.primitives.warp import broadcast, shuffle_idx
from std.bit import log2_floor
from std.memory import bitcast

from ...simt.arguments import Result
from ...simt.host import BFLOAT16, FLOAT32
from ...tiles import in_registers
from ..accumulator import PAIR, ROWS, place_of
from ..decode.bf16 import first_row_of
from ..gemm_operands import RsOperands
from ..instructions.packed import round_two
from ..instructions.shared_memory import (
    TileAddresses,
    arrive_at_cluster,
    arrive_expecting,
    cluster_barrier,
    copy_to_peer,
    init_barrier,
    leave_cluster,
    load_peer_quad,
    load_peer_word,
    load_quad,
    load_word,
    peer_address,
    publish_barriers,
    publish_stores,
    store_word,
    wait_for_cluster,
    wait_phase,
)
from ..instructions.warp import any_lane, keep_branch, lane_here
from ..instructions.wgmma import Accumulator, store_sums
from ..layout import K_LANES, TILE_ROWS
from ..instructions.named_barriers import wait_for_consumers
from ..plan import MAX_RANKS, log_of_ranks
from ..scheduler import WorkTile
from ..shapes import COLUMNS, CONSUMER_WARPS, HEADER_BYTES, OCTET, QUAD, RsConfig
from ..target import TileOfC, store_hidden

comptime FLAGS_AT = 512
"""Where the header has a flag for each consumer warp, behind the barriers."""
comptime FULL_AT = HEADER_BYTES - 16
"""Where the header has the barrier of the landing."""
comptime Region[rows: Int, columns: Int = COLUMNS] = TileAddresses[
    DType.float32, rows, columns + QUAD
]
"""A CTA's sums, [row, column]: four words more than columns, against bank conflicts."""
comptime RowQuad = SIMD[DType.float32, QUAD]
"""Sums of neighbouring columns of a row."""


@always_inline
def flag_of(base: UInt32, warp: UInt32) -> UInt32:
    """Returns the word that says that bfloat16 could not hold a warp's weights."""
    return base + UInt32(FLAGS_AT) + 4 * warp


@fieldwise_init
struct Cluster(TrivialRegisterPassable):
    """The CTAs that split the K of a tile, as one of them sees it."""

    var rank: UInt32
    var ranks: UInt32

    @staticmethod
    @always_inline
    def here(ranks: UInt32) -> Self:
        """Returns that of this CTA, of so many ranks."""
        return Self(UInt32(block_idx.x) % ranks, ranks)


@always_inline
def sum_of_ranks[ranks: Int, parts: Int = 1](at: SIMD[DType.uint32, parts]) -> RowQuad:
    """Returns the sum over all ranks' shared memory, and over the parts of each, by address."""
    # All loads before the first sum.
    var loaded = in_registers[DType.float32, QUAD, ranks, parts]()
    comptime for rank in range(ranks):
        comptime for part in range(parts):
            comptime if ranks == 1:
                loaded[rank, part] = bitcast[DType.float32, QUAD](load_quad(at[part]))
            else:
                loaded[rank, part] = load_peer_quad(peer_address(at[part], UInt32(rank)))
    var total = loaded[0, 0]
    comptime for i in range(1, ranks * parts):
        comptime rank, part = divmod(i, parts)
        total += loaded[rank, part]
    return total


@fieldwise_init
struct Reduction[config: RsConfig, is_gated: Bool](TrivialRegisterPassable):
    """Partial sums of a tile of bfloat16 on their way to C."""

    var base: UInt32
    """Start of the CTA's shared memory."""
    var cluster: Cluster

    comptime WARPS = Self.config.consumer_warps()
    comptime Sums = Region[Self.config.rows, Self.config.columns]
    comptime ROW_LANES = Self.config.columns // QUAD
    """Lanes that store a row: those of a warp may store some."""

    @always_inline
    def sums(self, parity: UInt32) -> Self.Sums:
        """Returns where the partial sums of even or odd steps are."""
        var first = self.base + UInt32(Self.config.sums_at())
        return Self.Sums(first + parity * UInt32(Self.Sums.NUM_BYTES))

    @always_inline
    def store[
        rows: Int, //
    ](self, sums: Accumulator[rows], warp: UInt32, to: TileOfC,) -> Bool:
        """Adds up and stores a tile, and says whether weights were too large for bfloat16."""
        var lane = lane_here()
        var row_lane, pair = divmod(lane, UInt32(K_LANES))
        var parity = warp // UInt32(Self.config.readers())
        var row = first_row_of[Self.config.columns // TILE_ROWS](warp) + row_lane
        var mine = self.sums(parity).at(Coord(2 * pair, row))
        var overflow = False
        # All warps have stored what was here before, and have multiplied all stages.
        wait_for_consumers[Self.WARPS]()
        comptime if Self.config.is_persistent:
            var flag = flag_of(self.base, lane % UInt32(Self.WARPS))
            overflow = any_lane(load_word(flag) != 0)
        store_sums[0, Self.config.rows](sums, Self.Sums(mine))
        comptime if Self.config.is_persistent:
            wait_for_consumers[Self.WARPS]()
            self.store_rows[1](warp, to)
        else:
            if self.cluster.ranks == 1:
                wait_for_consumers[Self.WARPS]()
            else:
                cluster_barrier()
            comptime for log_ranks in range(log2_floor(MAX_RANKS) + 1):
                if self.cluster.ranks == UInt32(1 << log_ranks):
                    self.store_rows[1 << log_ranks](warp, to)
            overflow = self.any_flag()
        return overflow

    @always_inline
    def any_flag(self) -> Bool:
        """Says whether a warp of any rank has raised its flag; ranks may end then."""
        # A lane asks for one warp's flag of every rank.
        var found = UInt32(0)
        for rank in range(self.cluster.ranks):
            var flag = flag_of(self.base, lane_here() % UInt32(Self.WARPS))
            found |= load_peer_word(peer_address(flag, UInt32(rank)))
        var is_raised = any_lane(found != 0)
        if self.cluster.ranks > 1:
            leave_cluster()
        return is_raised

    @always_inline
    def store_rows[ranks: Int](self, warp: UInt32, to: TileOfC):
        """Adds up and stores this warp's rows, a share of those of its rank."""
        var lane = UInt32(thread_idx.x) % 32
        comptime AT_ONCE = 32 // Self.ROW_LANES
        var of_warp, in_row = divmod(lane, UInt32(Self.ROW_LANES))
        var quad = in_row * UInt32(QUAD)
        var rows = to.result.rows
        var end = min(UInt32(Self.config.rows), rows - min(to.first_row, rows))
        var of_rank = warp * UInt32(AT_ONCE) + of_warp
        for row in range(
            self.cluster.rank + UInt32(ranks) * of_rank, end, UInt32(ranks * Self.WARPS * AT_ONCE)
        ):
            var at = SIMD[DType.uint32, Self.config.k_splits]()
            comptime for parity in range(Self.config.k_splits):
                at[parity] = self.sums(UInt32(parity)).at(Coord(row, quad))
            var total = sum_of_ranks[ranks](at)
            var stored_row = to.first_row + UInt32(row)
            comptime if Self.is_gated:
                store_hidden(to, stored_row, lane, total)
            else:
                to.result.store_columns[QUAD](stored_row, to.part.first_column + quad, total)


@always_inline
def store_zeros[warps: Int](first_column: UInt32, result: Result):
    """Stores rows of no expert from a column on; so many warps, all consumers, call it."""
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(32))
    var column = first_column + lane * UInt32(QUAD)
    for row in range(warp, result.rows, UInt32(warps)):
        result.store_columns[QUAD](UInt32(row), column, RowQuad(0))


@always_inline
def init_cluster(base: UInt32):
    """Makes the barrier of the landing; one thread calls it."""
    init_barrier(base + UInt32(FULL_AT), 1)
    publish_barriers()


@fieldwise_init
struct RankRows(TrivialRegisterPassable):
    """The rows of a tile that a rank stores, and what a lane wants to know of its elements of C."""

    var cluster: Cluster
    var num_rows: UInt32
    """The rows of the tile."""
    var most: UInt32
    """The rows of the first rank: others have as many, while there are any."""
    var first_row: UInt32
    """The first row of this rank; a warp has every eighth one."""
    var column: UInt32
    """The first column of the lane."""
    var of_weights: RowQuad
    """The factors of its columns."""
    var bias: RowQuad
    """What is added to them."""
    var of_row: Float32
    """The factor of the warp's row that has the lane's number."""

    @staticmethod
    @always_inline
    def load(tile: WorkTile, ranks: UInt32, operands: Some[RsOperands], result: Result) -> Self:
        """Loads those of a tile, before the products, so that nobody waits for them."""
        var cluster = Cluster.here(ranks)
        var found = Self(cluster, tile.rows, 0, 0, 0, 0, 0, 0)
        if ranks > 1:
            keep_branch()
            found.most = (tile.rows + ranks - 1) >> log_of_ranks(ranks)
            found.first_row = tile.row + cluster.rank * found.most
            found.column = tile.column + lane_here() * UInt32(QUAD)
            comptime for i in range(QUAD):
                var column = Int(min(found.column + UInt32(i), result.columns - 1))
                found.of_weights[i] = operands.of_weight(column)
                if result.has_bias():
                    found.bias[i] = result.bias_of[1](column)[0]
            var row = broadcast(UInt32(thread_idx.x) // 32) + UInt32(CONSUMER_WARPS) * lane_here()
            row = min(found.first_row + row, tile.row + tile.rows - 1)
            found.of_row = operands.of_row(Int(row))
        return found

    @always_inline
    def count(self, rank: UInt32) -> UInt32:
        """Returns how many rows a rank has."""
        var before = min(rank * self.most, self.num_rows)
        return min(self.num_rows - before, self.most)

    @always_inline
    def of(self, tile: WorkTile) -> WorkTile:
        """Returns the part of the tile that this rank stores."""
        var own = tile
        own.row, own.rows = self.first_row, self.count(self.cluster.rank)
        return own


@always_inline
def store_cluster[
    rows: Int, //
](
    sums: Accumulator[rows],
    base: UInt32,
    first: UInt32,
    own: RankRows,
    operands: Some[RsOperands],
    result: Result,
):
    """Adds up and stores this rank's rows of the cluster's tile; all consumers call it.

    A lane's first sums are of a column of the tile. What is stored is visible to all consumers.
    """
    var region = Region[rows](base + UInt32(HEADER_BYTES))
    var landing = Region[rows](base + UInt32(HEADER_BYTES + Region[rows].NUM_BYTES))
    # This warp has read its stages, in whose place others' sums land when all warps have.
    arrive_at_cluster()
    wait_for_consumers()
    var pair = lane_here() % UInt32(K_LANES)
    comptime for octet in range(rows // OCTET):
        comptime for column in range(ROWS):
            comptime for row in range(PAIR):
                comptime part, at = place_of(octet, column, row)
                var to = region.at(
                    Coord(2 * pair + UInt32(OCTET * octet + row), first + UInt32(OCTET * column))
                )
                store_word(to, bitcast[DType.uint32](sums[part][at]))
    publish_stores()
    wait_for_consumers()
    wait_for_cluster()
    send_rows(region, landing, base + UInt32(FULL_AT), own)
    # Nobody copies from a CTA any more when all CTAs have come here.
    arrive_at_cluster()
    comptime for log_ranks in range(1, log2_floor(MAX_RANKS) + 1):
        comptime RANKS = 1 << log_ranks
        if own.cluster.ranks == UInt32(RANKS):
            keep_branch()
            if result.dtype == FLOAT32 or result.columns % UInt32(QUAD) != 0:
                keep_branch()
                store_rows["", RANKS](region, landing, own, operands, result)
            elif result.dtype == BFLOAT16:
                store_rows["bf16x2", RANKS](region, landing, own, operands, result)
            else:
                keep_branch()
                store_rows["f16x2", RANKS](region, landing, own, operands, result)
    wait_for_cluster()
    wait_for_consumers()


@always_inline
def send_rows[
    rows: Int, //
](region: Region[rows], landing: Region[rows], full: UInt32, own: RankRows):
    """Sends the other ranks their rows, a warp each, and waits for this one's."""
    comptime assert MAX_RANKS <= CONSUMER_WARPS, "a warp sends to a rank"
    comptime ROW_BYTES = UInt32(4 * (COLUMNS + QUAD))
    var here, ranks = own.cluster.rank, own.cluster.ranks
    if thread_idx.x == 0:
        arrive_expecting(full, (ranks - 1) * own.count(here) * ROW_BYTES)
    var rank = broadcast(UInt32(thread_idx.x) // 32)
    if rank < ranks and rank != here and lane_here() == 0:
        var num_bytes = own.count(rank) * ROW_BYTES
        if num_bytes > 0:
            copy_to_peer(
                peer_address(landing.at(Coord(here * own.most, 0)), rank),
                region.at(Coord(rank * own.most, 0)),
                num_bytes,
                peer_address(full, rank),
            )
    wait_phase(full, 0)


@always_inline
def store_rows[
    rows: Int, //, type: StaticString, ranks: Int
](
    region: Region[rows],
    landing: Region[rows],
    own: RankRows,
    operands: Some[RsOperands],
    result: Result,
):
    """Adds up and stores a warp's rows, some at once: as two-byte floats, or of no type as any."""
    comptime BATCH = MAX_RANKS // ranks
    comptime STEP = UInt32(CONSUMER_WARPS)
    var halves = result.elements().rows[DType.uint16]()
    var count = own.count(own.cluster.rank)
    var turn = UInt32(0)
    for first in range(broadcast(UInt32(thread_idx.x) // 32), count, STEP * UInt32(BATCH)):
        var sums = in_registers[DType.float32, QUAD, BATCH]()
        comptime for i in range(BATCH):
            var row = min(UInt32(first) + STEP * UInt32(i), count - 1)
            sums[i] = sum_of[ranks](region, landing, own, row, turn + UInt32(i), operands)
        comptime for i in range(BATCH):
            var row = UInt32(first) + STEP * UInt32(i)
            comptime if type == "":
                if row < count:
                    result.store_columns[QUAD](own.first_row + row, own.column, sums[i])
            else:
                sums[i] += own.bias
                if row < count and own.column < result.columns:
                    var words: SIMD[DType.uint32, 2] = {
                        round_two[type](sums[i][0], sums[i][1]),
                        round_two[type](sums[i][2], sums[i][3]),
                    }
                    halves.store[alignment=2 * QUAD](
                        Coord(Int(own.first_row + row), Int(own.column)),
                        bitcast[DType.uint16, QUAD](words),
                    )
        turn += UInt32(BATCH)


@always_inline
def sum_of[
    rows: Int, //, ranks: Int
](
    region: Region[rows],
    landing: Region[rows],
    own: RankRows,
    row: UInt32,
    turn: UInt32,
    operands: Some[RsOperands],
) -> RowQuad:
    """Returns a lane's sums of a row of this rank, its warp's `turn`-th one: rank 0 + rank 1 + ..,
    times the factors of both sides."""
    # All loads before the first sum.
    var loaded = in_registers[DType.float32, QUAD, ranks]()
    comptime for rank in range(ranks):
        var of_rank = region if own.cluster.rank == UInt32(rank) else landing
        var place = Coord(UInt32(rank) * own.most + row, lane_here() * UInt32(QUAD))
        loaded[rank] = bitcast[DType.float32, QUAD](load_quad(of_rank.at(place)))
    var total = loaded[0]
    comptime for rank in range(1, ranks):
        total += loaded[rank]
    var of_row = shuffle_idx(own.of_row, turn)
    comptime for i in range(QUAD):
        total[i] = operands.scale(total[i], of_row, own.of_weights[i])
    return total
