"""What a cut is expected to take for MXFP4 codes, in cycles of a compute unit.

Of a product, compute units do as many rounds as its workgroups need. A round is

    begin, end   until loads are on their way, and C to memory
    along K      what a workgroup loads, as fast as a compute unit has bytes in flight, or what it
                 multiplies, whichever takes longer; and the first or the last stage alone
    handover     where K is split, the sums of all others from memory

and when all have ended, what caches hold goes to memory. Floats are loaded as such by decode
kernels, encoded first by prefill kernels, or by a launch of its own. The numbers were read off the
timing model; `python -m bench.simulated.tune` shows how close the choice is to the fastest cut.
"""

from std.math import ceildiv

from ...numbers.formats import Format
from ..chip import BLOCK, CUS, GROUP_TILES, PAIR, TILE, TILE_BLOCKS, TILE_K
from ..decode.shape import DecodeShape
from ..middle.shape import MiddleShape, WAVES
from ..prefill.shape import COLUMNS, N_TILES, STAGE_BLOCKS, WAVES_M, rows_of, tile_cycles
from ..types import Formats

comptime BYTES = 31
"""That a compute unit gets in a cycle, of loads that memory answers."""
comptime BYTES_OF_ONE = 27
"""The same where no two workgroups load the same weights."""
comptime BYTES_OF_ALL = 4400
"""That all get of memory."""
comptime LATENCY = 1000
"""Of memory."""
comptime MATRIX = 16
"""A matrix instruction of four-bit codes."""
comptime BLOCK_BYTES = 17
"""Codes of a block and its scale."""
comptime WRITTEN_BACK = 3780
"""Bytes that all caches write back in a cycle."""
comptime HELD = 32 << 20
"""Bytes that they hold."""
comptime CODES = 0
"""The bytes of a float where activations are codes."""


def _rounds(groups: Int) -> Int:
    """Returns how often compute units take a workgroup."""
    return ceildiv(groups, CUS)


def _write_back(num_bytes: Int) -> Int:
    """Returns what follows the last round."""
    return min(num_bytes, HELD) // WRITTEN_BACK


def _handover(wave_tiles: Int, splits: Int) -> Int:
    """Returns what a wave of the last workgroup does with the sums of its tiles."""
    comptime BEGIN, TILE_OF_OTHER = 1000, 180
    if splits == 1:
        return 0
    return BEGIN + (splits - 1) * wave_tiles * TILE_OF_OTHER


def cycles_of_middle(shape: MiddleShape, m: Int, n: Int, k: Int) -> Int:
    """Returns the cycles of a middle kernel."""
    comptime BEGIN_AND_END, END_OF_TILE = 1000, 25
    var rows, columns = ceildiv(m, shape.rows()), ceildiv(n, shape.columns())
    var simd_waves = shape.waves // WAVES
    var tiles = shape.m_tiles * shape.n_tiles * simd_waves
    # Weights, which fewer workgroups share, are a little slower.
    var lines = min(m, shape.rows()) + shape.columns() + shape.columns() // 32
    var bytes = lines * shape.stage_k() // BLOCK * BLOCK_BYTES
    var groups = rows * columns * shape.splits
    var load = bytes // BYTES
    if rows == 1:
        var weights = shape.columns() * shape.stage_k() // BLOCK * BLOCK_BYTES
        load = max(bytes // BYTES_OF_ONE, min(groups, CUS) * weights // BYTES_OF_ALL)
    var multiply = tiles * shape.slices * MATRIX * _per_cent(shape) // 100
    var stages = shape.stages(k)
    var first = 2 * load + LATENCY + 2 * shape.rows()
    var along_k = max(stages * load + multiply, stages * multiply + first)
    var handover = _handover(tiles, shape.splits)
    var round = BEGIN_AND_END + along_k + tiles * END_OF_TILE + handover
    return _rounds(groups) * round + _write_back(2 * m * n * shape.splits)


def _per_cent(shape: MiddleShape) -> Int:
    """Returns how long a stage takes of what its matrix instructions do, in per cent.

    Two waves of a SIMD meet more often than they help each other, and a wave with an odd number
    of tiles of columns loads more words of scales.
    """
    if shape.waves > WAVES:
        return 120
    return 126 if shape.n_tiles % PAIR == 1 else 112


def cycles_of_quantizing(m: Int, k: Int, float_bytes: Int) -> Int:
    """Returns the cycles of a launch that encodes floats, and what it has to save at least."""
    comptime LAUNCH, SAVED, LEAST, BEGIN_AND_END, COPIED = 3960, 600, 3000, 2000, 3560
    var bytes = m * k * float_bytes + m * (k // BLOCK) * BLOCK_BYTES
    return LAUNCH + SAVED + max(LEAST, BEGIN_AND_END + bytes // COPIED)


def cycles_of_prefill(m_tiles: Int, m: Int, n: Int, k: Int, float_bytes: Int) -> Int:
    """Returns the cycles of a prefill kernel: it prepares scales first, or floats."""
    comptime BEGIN_AND_END, OF_FLOATS, OF_ROW_OF_FLOATS, PER_CENT = 12300, 7600, 25, 109
    var rows, columns = ceildiv(m, rows_of(m_tiles)), ceildiv(n, COLUMNS)
    var begin = BEGIN_AND_END
    if float_bytes != CODES:
        var shared = rows_of(m_tiles) * k * float_bytes // columns
        begin = OF_FLOATS + rows_of(m_tiles) * OF_ROW_OF_FLOATS + shared // BYTES
    var bytes = (rows_of(m_tiles) + COLUMNS) * STAGE_BLOCKS * BLOCK_BYTES
    var tiles = WAVES_M * m_tiles * N_TILES
    var multiply = tiles * GROUP_TILES * MATRIX * PER_CENT // 100
    var round = begin + ceildiv(k, STAGE_BLOCKS * BLOCK) * max(bytes // BYTES, multiply)
    return _rounds(rows * columns) * round + _write_back(2 * m * n)


def cycles_of_decode(shape: DecodeShape, m: Int, n: Int, k: Int, float_bytes: Int) -> Int:
    """Returns the cycles of a decode kernel: its waves load for themselves, and add up."""
    comptime BEGIN_AND_END, MEETING = 2000, 1000
    var rows, columns = shape.m_tiles * TILE, shape.n_tiles * TILE
    var bytes_per_cycle = 27 if shape.m_tiles == 1 else 22
    var left_bytes = rows * BLOCK_BYTES
    if float_bytes != CODES:
        # Floats are most of what is loaded, and lie in rows.
        bytes_per_cycle = 27 if shape.m_tiles > PAIR else BYTES
        left_bytes = min(m, rows) * BLOCK * float_bytes
    var blocks = k // BLOCK
    if shape.splits > 1:
        # Some waves have a chunk more than others.
        blocks = shape.chunks_per_wave(k) * shape.k_groups() * shape.k_tiles * TILE_BLOCKS
    var bytes = (left_bytes + columns * BLOCK_BYTES) * blocks
    var load = bytes // bytes_per_cycle + (MEETING if shape.splits > 1 else 0)
    var grid = shape.grid(m, n)
    var rounds = _rounds(grid.x * grid.y * grid.z)
    var handover = _handover(shape.own_tiles(), shape.splits)
    # Of two workgroups of a compute unit, one begins and ends while the other loads.
    return BEGIN_AND_END + rounds * load + handover + _write_back(2 * m * n * shape.splits)


def cycles_of_experts(cut: MiddleShape, m: Int, n: Int, k: Int, groups: Int, left: Format) -> Int:
    """Returns what the tiles of a compute unit take, one after another, in cycles.

    A tile of experts has matrix instructions, to begin and end with something that grows with C, and loads
    that they do not hide. Read off the timing model, K = 2880, weights of MXFP4.
    """
    comptime BEGIN_AND_END, OF_SLICE, OF_TILE = 4000, 340, 90
    var slices = ceildiv(k, TILE_K)
    var matrix = tile_cycles(Formats(left, Format.MXFP4)) * slices
    var tile = BEGIN_AND_END + slices * OF_SLICE + cut.m_tiles * cut.n_tiles * (matrix + OF_TILE)
    var rows_of_tiles = groups * ceildiv(ceildiv(m, max(groups, 1)), cut.rows())
    return ceildiv(rows_of_tiles * ceildiv(n, cut.columns()), CUS) * tile
