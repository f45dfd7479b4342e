"""What the host decides for a product of one matrix: the workspace, by kernel.

    rs_bf16             rows of A as bfloat16 stages, their fallback flags; partial sums of stream-K
    ss_bf16             rows of B as bfloat16, fallback flags of tiles of 32 of them
    rs_e5m2, ss_e5m2    rows of A and B as bytes, shared exponents; partial sums of stream-K
    rs_e4m3, ss_e4m3    the same, and factors of A
    ss_e4m3             of plain codes under float scales: those of floats, and their scales

Behind that lie rows of A that are rounded to bfloat16 numbers, and their factors; those of rs_bf16 are
where it has any rows.
"""

from std.bit import log2_floor
from std.math import align_up, ceildiv

from ...launch.grid import Workspace
from ...simt.host import CHUNK
from ..layout import BLOCK, TILE_ROWS
from ..plan import Kernel, MULTIPROCESSORS, MainLoop, OperandType, Plan
from ..shapes import COLUMNS, FACTOR_BYTES, GROUPS, NUMBER_BYTES, PARTS, ROW_BYTES, num_steps_of

comptime WIDEST_TILE = 256
"""Rows of the largest tile of stages: a workspace has room for whole ones."""
comptime PADDED = 256
"""Rows that the exponents of a side are padded to: what tiles have past the end is read, too. What
follows rows begins at such multiples."""
comptime ROWS_ALIGNMENT = 1024
"""Rows of a side begin at multiples of this."""
comptime ALL_ROWS = 0
"""Stands for the rows of a tile that has all."""
comptime SLOTS = 2
"""Partial sums of a CTA: of its first tile, and of its last one."""
comptime COUNTER_BYTES = 4
"""Bytes of a counter."""
comptime SUM_BYTES = 4
"""Bytes of a sum."""


def bf16_stages_bytes(rows: Int, k: Int) -> Int:
    """Returns the bytes of A as bfloat16 stages, at the widest tile."""
    var padded = ceildiv(rows, WIDEST_TILE) * WIDEST_TILE
    return padded * Int(num_steps_of(UInt32(k))) * ROW_BYTES


def bf16_bytes(rows: Int, k: Int) -> Int:
    """Returns the bytes of A as such stages, and of fallback flags."""
    return bf16_stages_bytes(rows, k) + rows * Int(flags_of_row(UInt32(k)))


def counter_bytes(tiles: Int) -> Int:
    """Returns the bytes of the counters of tiles of stream-K, padded."""
    return align_up(tiles * GROUPS * COUNTER_BYTES, PADDED)


def part_bytes(tile_rows: Int) -> Int:
    """Returns the bytes of partial sums of a tile of so many rows."""
    return tile_rows * COLUMNS * SUM_BYTES


def fix_up_bytes(tile_rows: Int, tiles: Int) -> Int:
    """Returns the bytes of the counters and partial sums of tiles of so many rows."""
    return counter_bytes(tiles) + MULTIPROCESSORS * SLOTS * part_bytes(tile_rows)


def rows_bytes(num_rows: Int, row_bytes: Int, tile_rows: Int) -> Int:
    """Returns the bytes of rows as stages of 128 bytes, in tiles of so many rows or of all."""
    var num_steps = ceildiv(row_bytes, ROW_BYTES)
    var rows = num_rows if tile_rows == ALL_ROWS else align_up(num_rows, tile_rows)
    return align_up(rows * num_steps * ROW_BYTES, ROWS_ALIGNMENT)


@fieldwise_init
struct PreparedPlaces(TrivialRegisterPassable):
    """Where in a workspace lie bytes of both sides, shared exponents, and what follows."""

    var b_rows: Int
    """Rows of B, behind those of A."""
    var exponents: Int
    """A byte for each row of A, then for each row of B."""
    var b_exponents: Int
    """Where those begin behind the first ones."""
    var all_exponents: Int
    """Bytes of both."""

    @staticmethod
    def of(m: Int, n: Int, k: Int, tile_rows: Int, *, has_weights: Bool) -> Self:
        """Returns those of a product, A in tiles of so many rows.

        Where B is there too, both sides have tiles of a row: rows as they lie, for tensor maps.
        """
        var b_rows = rows_bytes(m, k, 1 if has_weights else tile_rows)
        var exponents = b_rows
        if has_weights:
            # Whole tiles of B are written.
            exponents += rows_bytes(align_up(n, TILE_ROWS), k, 1)
        var of_a = align_up(m, PADDED)
        return Self(b_rows, exponents, of_a, of_a + align_up(n, PADDED))

    def end_of_blocks(self, m: Int, k: Int) -> Int:
        """Returns where the exponents of blocks of A end, a byte each."""
        return self.exponents + self.all_exponents + m * (k // BLOCK)

    def end_of_factors(self, k: Int) -> Int:
        """Returns where the factors of A end, a float32 for each stage."""
        var of_rows = 4 * self.b_exponents
        return self.exponents + self.all_exponents + of_rows * ceildiv(k, ROW_BYTES)


def scales_at(m: Int, k: Int) -> Int:
    """Returns where the scales of floats lie, behind their codes."""
    return align_up(m * k, PADDED)


def may_share(tiles: Int, num_steps: Int) -> Bool:
    """Says whether kernels can divide up the stages of so many tiles: in 32 bits."""
    return (tiles * num_steps + 1) * MULTIPROCESSORS < 1 << 32


def is_shared(m: Int, n: Int, k: Int, plan: Plan) -> Bool:
    """Says whether a plan is of stream-K, and the stages are few enough for it."""
    return plan.is_stream_k() and may_share(plan.tiles(m, n).num_tiles(), num_steps_of(k, plan))


def workspace_of(m: Int, n: Int, k: Int, plan: Plan) -> Workspace:
    """Returns the workspace that a plan wants: what is prepared, then stream-K's partial sums."""
    var kernel = plan.kernel
    if kernel.main_loop == MainLoop.STREAM or plan.maps_rows():
        return Workspace(0, 0)
    if kernel == Kernel.SS_E4M3:
        return Workspace(0, scales_at(m, k) + 4 * m * ceildiv(k, ROW_BYTES))
    var size: Int
    if kernel == Kernel.RS_BF16:
        size = align_up(bf16_bytes(m, k), PADDED)
    elif kernel == Kernel.SS_BF16:
        var places = PreparedPlaces.of(0, n, NUMBER_BYTES * k, 1, has_weights=True)
        size = places.exponents + ceildiv(n, TILE_ROWS)
    else:
        var places = PreparedPlaces.of(m, n, k, plan.rows, has_weights=kernel.is_prepared)
        var is_e4m3 = kernel.operand == OperandType.E4M3
        size = places.end_of_factors(k) if is_e4m3 else places.end_of_blocks(m, k)
    if is_shared(m, n, k, plan):
        size = align_up(size, PADDED) + fix_up_bytes(plan.rows, plan.tiles(m, n).num_tiles())
    return Workspace(0, size)


@fieldwise_init
struct RoundedPlaces(TrivialRegisterPassable):
    """Where in a workspace rows of A are that become bfloat16 numbers, and their factors."""

    var rows: Int
    var factors: Int
    """A float32 for each row."""
    var num_bytes: Int
    """Where those end."""

    @staticmethod
    def behind(address: Int, m: Int, k: Int) -> Self:
        """Returns those of [m, k] at an address, or behind it."""
        var rows = align_up(address, ROWS_ALIGNMENT)
        var factors = rows + rows_bytes(m, NUMBER_BYTES * k, 1)
        return Self(rows, factors, factors + FACTOR_BYTES * m)

    @staticmethod
    def of(m: Int, n: Int, k: Int, plan: Plan) -> Self:
        """Returns those of a product; of `rs_bf16` rows come first, as stages."""
        var end = workspace_of(m, n, k, plan).num_bytes()
        if plan.kernel == Kernel.RS_BF16:
            var factors = align_up(end, ROWS_ALIGNMENT)
            return Self(0, factors, factors + FACTOR_BYTES * m)
        return Self.behind(end, m, k)


# Operand preparation: a CTA has some rows, a power of two of its threads each.

comptime LOG_PREPARE_THREADS = 8
"""Threads of a CTA that makes rows ready, as an exponent."""
comptime PREPARE_THREADS = 1 << LOG_PREPARE_THREADS
"""The threads themselves."""
comptime PREPARE_WARPS = PREPARE_THREADS // 32
"""Warps of a CTA."""
comptime RESIDENT_CTAS = 4
"""CTAs of a multiprocessor at once."""
comptime MAX_TILE_CTAS = 32
"""The most CTAs that share a tile of rows of B, as bfloat16."""
comptime THREAD_CHUNKS = 2
"""Chunks of a thread as bfloat16, both on the way at once."""
comptime CTA_CHUNKS = THREAD_CHUNKS * PREPARE_THREADS
"""Chunks of a CTA as bfloat16."""
comptime LANE_CHUNKS = 4
"""Chunks of a lane that are on the way at once."""
comptime MANY_CHUNKS = 8
"""Chunks of a lane, of many rows: what is done once for all of them takes as long as for three."""
comptime MAX_CHUNKS = 16
"""The most chunks of a lane."""
comptime MAX_K = MAX_CHUNKS * PREPARE_THREADS * CHUNK
"""The longest row that becomes bytes."""


@always_inline
def flags_of_row(k: UInt32) -> UInt32:
    """Returns the fallback flags of a row of A as bfloat16: one of each CTA that has a part."""
    return (num_steps_of(k) * UInt32(PARTS) + UInt32(CTA_CHUNKS - 1)) // UInt32(CTA_CHUNKS)


def log_lanes_of(num_rows: Int, k: Int, most_chunks: Int = LANE_CHUNKS) -> Int:
    """Returns the lanes of a row of k elements, from those of a warp to those of a CTA.

    As an exponent. Of many rows, lanes may have so many chunks each.
    """
    var row_chunks = k // CHUNK
    var lanes = 32
    while lanes < PREPARE_THREADS and lanes < row_chunks:
        lanes *= 2
    while (
        lanes > 32
        and num_rows * lanes > MULTIPROCESSORS * RESIDENT_CTAS * PREPARE_THREADS
        and row_chunks <= most_chunks * (lanes // 2)
    ):
        lanes //= 2
    return log2_floor(lanes)


def ctas_of_rows(num_rows: Int, log_lanes: Int) -> Int:
    """Returns the CTAs of all rows."""
    return ceildiv(num_rows << log_lanes, PREPARE_THREADS)


def ctas_of_tile(n: Int, most: Int) -> Int:
    """Returns the CTAs that share a tile of rows of B: enough for the device, at most so many."""
    var wanted = ceildiv(RESIDENT_CTAS * MULTIPROCESSORS, ceildiv(n, TILE_ROWS))
    return max(min(wanted, most), 1)
