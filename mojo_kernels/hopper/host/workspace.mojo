"""What the host decides for a product of one matrix: the workspace, by kernel.

    middle, many    tokens as bfloat16 stages, marks of their rows; parts of tiles
    bf16            rows of B as bfloat16, fallback flags of tiles of 32 of them
    E5M2            rows of A and B as bytes, shared exponents; parts of tiles
    E4M3            the same, and factors of A
    float scales    E4M3 codes of floats, and their scales
"""

from std.bit import log2_floor
from std.math import align_up, ceildiv

from ...launch.grid import Workspace
from ...simt.host import CHUNK
from ..layout import BLOCK, TILE_ROWS
from ..plan import Kernel, MULTIPROCESSORS, OperandType, Plan
from ..shapes import COLUMNS, GROUPS, NUMBER_BYTES, PARTS, ROW_BYTES, num_steps_of

comptime WIDEST_TILE = 256
"""Tokens of the widest tile of stages: a workspace has room for whole ones."""
comptime PADDED = 256
"""Rows that the exponents of a side are padded to: what tiles have past the end is read, too. What
follows rows begins at such multiples."""
comptime ROWS_ALIGNMENT = 1024
"""Rows of a side begin at multiples of this."""
comptime ALL_ROWS = 0
"""Stands for the rows of a tile that has all."""
comptime SLOTS = 2
"""Parts of a group: of its first tile, and of its last one."""
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
    """Returns the bytes of the counters of tiles that have parts, padded."""
    return align_up(tiles * GROUPS * COUNTER_BYTES, PADDED)


def part_bytes(tokens: Int) -> Int:
    """Returns the bytes of a part of a tile of so many rows."""
    return tokens * COLUMNS * SUM_BYTES


def fix_up_bytes(tokens: Int, tiles: Int) -> Int:
    """Returns the bytes of the counters and parts of tiles of so many rows."""
    return counter_bytes(tiles) + MULTIPROCESSORS * SLOTS * part_bytes(tokens)


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


def workspace_of_mapped(m: Int, k: Int) -> Workspace:
    """Returns the workspace that floats want: codes, then a scale a block."""
    return Workspace(0, scales_at(m, k) + 4 * m * ceildiv(k, ROW_BYTES))


def workspace_of_prepared(m: Int, n: Int, k: Int, plan: Plan) -> Workspace:
    """Returns the workspace of a plan whose operands are prepared; partial sums come last."""
    if plan.kernel == Kernel.SS_BF16:
        var places = PreparedPlaces.of(0, n, NUMBER_BYTES * k, 1, has_weights=True)
        return Workspace(0, places.exponents + ceildiv(n, TILE_ROWS))
    var places = PreparedPlaces.of(m, n, k, plan.tokens, has_weights=plan.kernel.is_prepared)
    if plan.kernel.operand == OperandType.E4M3:
        return Workspace(0, places.end_of_factors(k))
    var end = places.end_of_blocks(m, k)
    if plan.is_stream_k():
        var tiles = plan.tiles(m, n).num_tiles()
        end = align_up(end, PADDED) + fix_up_bytes(plan.tokens, tiles)
    return Workspace(0, end)


def may_share(tiles: Int, num_steps: Int) -> Bool:
    """Says whether kernels can divide up the stages of so many tiles: in 32 bits."""
    return (tiles * num_steps + 1) * MULTIPROCESSORS < 1 << 32


def is_shared(m: Int, n: Int, k: Int, plan: Plan) -> Bool:
    """Says whether a plan is of stream-K, and the stages are few enough for it."""
    var num_steps = Int(num_steps_of(UInt32(k)))
    return plan.is_stream_k() and may_share(plan.tiles(m, n).num_tiles(), num_steps)


def workspace_of_rs_bf16(m: Int, n: Int, k: Int, plan: Plan) -> Workspace:
    """Returns the workspace of RS on bfloat16: prepared rows of A, then stream-K's sums."""
    var size = align_up(bf16_bytes(m, k), PADDED)
    if is_shared(m, n, k, plan):
        size += fix_up_bytes(plan.tokens, plan.tiles(m, n).num_tiles())
    return Workspace(0, size)


def workspace_of(m: Int, n: Int, k: Int, plan: Plan) -> Workspace:
    """Returns the workspace that a plan for MXFP4 weights wants."""
    if plan.kernel == Kernel.STREAM:
        return Workspace(0, 0)
    if plan.kernel.operand == OperandType.E5M2 or plan.kernel == Kernel.SS_BF16:
        return workspace_of_prepared(m, n, k, plan)
    return workspace_of_rs_bf16(m, n, k, plan)


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
