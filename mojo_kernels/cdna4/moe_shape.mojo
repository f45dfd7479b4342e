"""What is launched for experts, and the bytes that launches hand over: known before they run.

    gemm_streaming         floats                            streaming
    quantize_rows          floats -> codes, plain scales     prepare/quantize.mojo
    gemm_interleaved       codes                             interleaved
    order_rows             scales by tiles                   prepare/order.mojo
    gemm_ping_pong         codes, of large tiles             ping_pong
    route_slots            rows sorted by expert             routing.mojo
    gate_sums, add_slots                                     experts/slots.mojo

Only the device knows the sizes of groups: grids are for as many tiles as any sizes can make.
"""

from std.math import ceildiv

from ..experts import NUMBERS, most_tiles
from ..numbers.formats import Format
from ..numbers.gates import Gate
from ..schedule.xcd import XcdBands, XcdColumns
from .arguments import RECORD
from .chip import BLOCK, CUS, GROUP_BLOCKS, LANES, QUANTIZED_ROWS, QUANTIZE_WAVES, TILE, WORD_BYTES
from .streaming.shape import StreamingShape
from .interleaved.shape import InterleavedShape, STAGE_BLOCKS, STAGE_K
from .ping_pong.shape import COLUMNS, THREADS, rows_of
from .prologue.shape import PART_BLOCKS, TILED_ROWS, lies_by_tiles
from ..launch.grid import Grid

comptime M_TILES = 8
"""Tiles of rows of a wave of the ping-pong kernel."""
comptime ROWS = rows_of(M_TILES)
"""Rows of C of its workgroups."""
comptime ROUTE_WAVES = 16
"""Waves of a workgroup of `route_slots`: as many as lanes that add up at once."""
comptime SLOT_WAVES = 4
"""Waves of a workgroup of a kernel of `slots.mojo`, a row each."""
comptime SLOT_COLUMNS = LANES * NUMBERS
"""Neighbours that a wave computes at once."""
comptime RESIDENT_WAVES = CUS * 32
"""That the chip runs at once, at most."""


def is_fused(gate: Gate) -> Bool:
    """Says whether products gate their sums: a lane has neighbours, and kernels have one gate."""
    return gate.is_interleaved() and gate.code == Gate.SWIGLU_OAI


def streaming_grid(shape: StreamingShape, m: Int, n: Int, groups: Int) -> Grid:
    """Returns the grid of the streaming kernel: for as many tiles as sizes can make.

    An XCD has columns of tiles if groups have several, which share weights. Otherwise it would only
    get more tiles than others where columns are no multiple of the XCDs.
    """
    var rows = shape.m_tiles * TILE
    var of_group = ceildiv(ceildiv(m, max(groups, 1)), rows)
    var x, _ = XcdColumns(of_group, ceildiv(n, shape.n_tiles * TILE)).grid()
    return Grid(x, most_tiles(m, groups, rows), threads=shape.threads())


def encoded_blocks(k: Int) -> Int:
    """Returns the blocks of an encoded row: whole stages of four-bit codes."""
    return ceildiv(k, STAGE_K) * STAGE_BLOCKS


def code_bytes(m: Int, k: Int, format: Format) -> Int:
    """Returns the bytes of the codes of m encoded rows, behind which are their scales."""
    return m * encoded_blocks(k) * format.packed_bytes(BLOCK)


def encoded_bytes(m: Int, k: Int, format: Format) -> Int:
    """Returns the bytes of m encoded rows with their scales, which are plain."""
    return code_bytes(m, k, format) + m * encoded_blocks(k)


def quantize_grid(m: Int, k: Int) -> Grid:
    """Returns the grid of `quantize_rows`."""
    var groups = ceildiv(encoded_blocks(k), QUANTIZE_WAVES * GROUP_BLOCKS)
    return Grid(groups, ceildiv(m, QUANTIZED_ROWS), threads=QUANTIZE_WAVES * LANES)


def interleaved_grid(shape: InterleavedShape, m: Int, n: Int, groups: Int) -> Grid:
    """Returns the grid of the interleaved kernel: for each tile there can be, or fewer."""
    var tiles = XcdBands(most_tiles(m, groups, shape.rows()), ceildiv(n, shape.columns()))
    return Grid(min(tiles.num_workgroups(), shape.workgroups()), threads=shape.threads())


def record_bytes(m: Int, groups: Int) -> Int:
    """Returns the bytes of what is known of the tiles of m rows."""
    return (most_tiles(m, groups, ROWS) + 1) * RECORD * WORD_BYTES


def list_bytes(m: Int, groups: Int) -> Int:
    """Returns the bytes of the list of the rows of tiles."""
    return most_tiles(m, groups, ROWS) * ROWS * WORD_BYTES


def tiled_bytes(m: Int, groups: Int, k: Int, format: Format) -> Int:
    """Returns the bytes of codes of m rows that lie by tiles, see `first_tiled_row`."""
    var rows = (m // TILED_ROWS + most_tiles(m, groups, ROWS)) * TILED_ROWS
    return code_bytes(rows, k, format) if lies_by_tiles(format) else 0


def scale_bytes(m: Int, groups: Int, k: Int) -> Int:
    """Returns the bytes of the scales of m rows of k numbers, by tiles."""
    return most_tiles(m, groups, ROWS) * ROWS * encoded_blocks(k)


def ping_pong_grid(m: Int, n: Int, groups: Int) -> Grid:
    """Returns the grid of the ping-pong kernel: a workgroup for each compute unit or each tile."""
    var tiles = XcdBands(most_tiles(m, groups, ROWS), ceildiv(n, COLUMNS))
    return Grid(min(tiles.num_workgroups(), CUS), threads=THREADS)


def order_grid(m: Int, groups: Int, k: Int) -> Grid:
    """Returns the grid of `order_rows`."""
    return Grid(
        most_tiles(m, groups, ROWS), ceildiv(encoded_blocks(k), PART_BLOCKS), threads=THREADS
    )


def route_grid(experts: Int) -> Grid:
    """Returns the grid of `route_slots`."""
    return Grid(experts + 1, threads=ROUTE_WAVES * LANES)


def stretch_of(rows: Int, columns: Int) -> Int:
    """Returns how many columns a wave computes: more than it does at once if waves are many."""
    var steps = max(ceildiv(columns, SLOT_COLUMNS), 1)
    return min(max(ceildiv(rows * steps, RESIDENT_WAVES), 1), steps) * SLOT_COLUMNS


def slots_grid(rows: Int, columns: Int) -> Grid:
    """Returns the grid of a kernel of `slots.mojo`."""
    var stretches = ceildiv(columns, stretch_of(rows, columns))
    return Grid(ceildiv(rows, SLOT_WAVES), stretches, threads=SLOT_WAVES * LANES)
