"""What a plan is expected to take for codes, in cycles of a compute unit.

Of a product, compute units do as many rounds as its workgroups need. A round is

    begin, end   until loads are on their way, and C to memory
    along K      what a workgroup loads, as fast as a compute unit has bytes in flight, or what it
                 multiplies, whichever takes longer; and the first or the last stage alone
    reduction    where K is split, the sums of all others from memory

and when all have ended, what caches hold goes to memory. Floats are loaded as such by decode
kernels, encoded first by ping-pong kernels, unless they are kept, or by a launch of its own.
`python -m bench.simulated.tune --fit` says how near `Costs` come to the model's times in
bench/results/gfx950_tune.csv, and which constants would come nearer.
"""

from std.math import ceildiv

from ...numbers.formats import Format, NO_FORMAT
from ..chip import BLOCK, CUS, GROUP_TILES, PAIR, TILE, TILE_BLOCKS, TILE_K
from ..streaming.shape import StreamingShape, levels_of
from ..interleaved.shape import InterleavedShape, WAVES
from ..ping_pong.shape import COLUMNS, MAX_KEPT_TILES, N_TILES, STAGE_BLOCKS, WAVES_M, rows_of
from ..ping_pong.shape import tile_cycles
from ..types import Formats, ProductTypes, float_bytes
from .plan import Family, Plan

comptime HELD = 32 << 20
"""Bytes that all caches hold."""
comptime CODES = 0
"""The bytes of a float where activations are codes."""


@fieldwise_init
struct BlockWork(TrivialRegisterPassable):
    """What 32 elements along K are: bytes with their scale, of either side, and cycles."""

    var left: Int
    var right: Int
    var matrix: Int
    """Cycles of the matrix instruction of a tile of C, which takes four of them."""
    var are_wide: Bool
    """Whether what is multiplied has eight bits or more."""
    var are_kept: Bool
    """Whether floats of the left side are multiplied as they come."""

    @staticmethod
    def of(formats: Formats) -> Self:
        return Self(
            _bytes_of_block(formats.left), _bytes_of_block(formats.right),
            tile_cycles(formats) * (2 if formats.are_floats() else 1),
            not formats.multiply_at_once(), formats.left.code() == NO_FORMAT,
        )  # fmt: skip


@fieldwise_init
struct Costs(TrivialRegisterPassable):
    """The constants: cycles, bytes of a cycle, or per cent of what matrix instructions take."""

    var bytes: Int
    """That a compute unit gets in a cycle, of loads that memory answers."""
    var bytes_of_one: Int
    """The same where no two workgroups load the same weights."""
    var bytes_of_all: Int
    """That all get of memory."""
    var latency: Int
    var written_back: Int
    """Bytes that all caches write back."""
    var reduction_begins: Int
    """Until sums of another workgroup arrive."""
    var reduction_tile: Int
    """A tile of another workgroup."""
    var interleaved_ends: Int
    """A interleaved kernel's begin and end."""
    var interleaved_apart: Int
    """More of it where sums have registers of their own, from which they are copied."""
    var interleaved_tile: Int
    """The end of a tile of it."""
    var interleaved_three: Int
    """Per cent of a round, of three tiles of columns: the third is stored alone, half a sector a
    row, and its scales are half of a word that is loaded whole."""
    var interleaved_even: Int
    """Per cent, of an even number of tiles of columns."""
    var interleaved_odd: Int
    """Per cent, of an odd number, for which a wave loads more words of scales."""
    var interleaved_two: Int
    """Per cent, of two waves a SIMD, which meet more often than they help each other."""
    var interleaved_wide: Int
    """Per cent, of eight-bit codes."""
    var launch: Int
    """A launch that encodes floats."""
    var saved: Int
    """What that has to save at least."""
    var quantize_least: Int
    var quantize_ends: Int
    var copied: Int
    """Bytes that it moves."""
    var ping_pong_ends: Int
    """A ping-pong kernel's begin and end: it prepares scales first."""
    var ping_pong_floats: Int
    """The same where it prepares floats."""
    var ping_pong_row: Int
    """A row of these."""
    var ping_pong_kept: Int
    """The same of floats that are kept."""
    var ping_pong_per_cent: Int
    var ping_pong_kept_per_cent: Int
    """The same of a low tile of these."""
    var streaming_ends: Int
    """A streaming kernel's begin and end."""
    var streaming_meets: Int
    """Waves add up where workgroups split K."""
    var streaming_low: Int
    """Bytes, of one tile of rows."""
    var streaming_high: Int
    """Bytes, of several."""
    var streaming_floats: Int
    """Bytes, of more than two where they are floats, or one if these are of eight bits or more."""
    var streaming_wide: Int
    """Bytes, of eight-bit codes."""
    var streaming_round: Int
    """The end of a round of floats of eight bits or more."""
    var streaming_alone: Int
    """Per cent, of a workgroup of four waves that has no other beside it."""

    comptime TABLE = Self(
        bytes=31,
        bytes_of_one=27,
        bytes_of_all=4400,
        latency=1000,
        written_back=3780,
        reduction_begins=1000,
        reduction_tile=180,
        interleaved_ends=1000,
        interleaved_apart=4000,
        interleaved_tile=25,
        interleaved_three=104,
        interleaved_even=112,
        interleaved_odd=126,
        interleaved_two=120,
        interleaved_wide=155,
        launch=3960,
        saved=600,
        quantize_least=3000,
        quantize_ends=2000,
        copied=3560,
        ping_pong_ends=12300,
        ping_pong_floats=7600,
        ping_pong_row=25,
        ping_pong_kept=1900,
        ping_pong_per_cent=109,
        ping_pong_kept_per_cent=127,
        streaming_ends=2000,
        streaming_meets=1000,
        streaming_low=27,
        streaming_high=22,
        streaming_floats=27,
        streaming_wide=30,
        streaming_round=700,
        streaming_alone=131,
    )
    """Those under which the table was measured, read off the timing model."""

    def of(self, plan: Plan, m: Int, n: Int, k: Int, types: ProductTypes) -> Int:
        """Returns the cycles of a plan for codes or floats."""
        var bytes = float_bytes(types.x.value()) if types.x else CODES
        var blocks = BlockWork.of(types.formats)
        if plan.family == Family.PING_PONG:
            return self.of_ping_pong(plan.m_tiles, m, n, k, bytes, blocks)
        if plan.family == Family.STREAMING:
            return self.of_streaming(plan.streaming, m, n, k, bytes, blocks)
        var before = self.of_quantizing(m, k, bytes, blocks) if types.x else 0
        return before + self.of_interleaved(plan.interleaved, m, n, k, blocks)

    def of_interleaved(
        self, shape: InterleavedShape, m: Int, n: Int, k: Int, blocks: BlockWork
    ) -> Int:
        """Returns the cycles of an interleaved kernel."""
        var rows, columns = ceildiv(m, shape.rows()), ceildiv(n, shape.columns())
        var simd_waves = shape.waves // WAVES
        var tiles = shape.m_tiles * shape.n_tiles * simd_waves
        # Weights, which fewer workgroups share, are a little slower.
        var columns_bytes = (shape.columns() + shape.columns() // 32) * blocks.right
        var bytes = (min(m, shape.rows()) * blocks.left + columns_bytes) * shape.stage_k() // BLOCK
        var groups = rows * columns * shape.splits
        var load = bytes // self.bytes
        if rows == 1:
            var weights = shape.columns() * shape.stage_k() // BLOCK * blocks.right
            load = max(bytes // self.bytes_of_one, min(groups, CUS) * weights // self.bytes_of_all)
        var multiply = tiles * shape.slices * blocks.matrix * self._per_cent(shape) // 100
        var stages = shape.stages(k)
        var first = 2 * load + self.latency + 2 * shape.rows()
        var along_k = max(stages * load + multiply, stages * multiply + first)
        var reduction = self._reduction(shape.split_k())
        var round = self.interleaved_ends + along_k + tiles * self.interleaved_tile + reduction
        round += self.interleaved_apart if shape.sums_apart() else 0
        if shape.n_tiles == PAIR + 1 and shape.splits == 1:
            round = round * self.interleaved_three // 100
        var rounds = _rounds(groups)
        var cycles = rounds * round + self._write_back(2 * m * n * shape.splits)
        var busy = rounds * stages * tiles * shape.slices * blocks.matrix
        return self._at_clock(cycles, busy, blocks)

    def of_quantizing(self, m: Int, k: Int, float_bytes: Int, blocks: BlockWork) -> Int:
        """Returns the cycles of a launch that encodes floats, and what it has to save at least."""
        var bytes = m * k * float_bytes + m * (k // BLOCK) * blocks.left
        var runs = max(self.quantize_least, self.quantize_ends + bytes // self.copied)
        return self.launch + self.saved + runs

    def of_ping_pong(
        self, m_tiles: Int, m: Int, n: Int, k: Int, float_bytes: Int, blocks: BlockWork
    ) -> Int:
        var rows, columns = ceildiv(m, rows_of(m_tiles)), ceildiv(n, COLUMNS)
        var begin, per_cent = self.ping_pong_ends, self.ping_pong_per_cent
        if blocks.are_kept:
            begin = self.ping_pong_kept
            per_cent = self.ping_pong_kept_per_cent if m_tiles == MAX_KEPT_TILES else per_cent
        elif float_bytes != CODES:
            var shared = rows_of(m_tiles) * k * float_bytes // columns
            begin = (
                self.ping_pong_floats + rows_of(m_tiles) * self.ping_pong_row + shared // self.bytes
            )
        var bytes = (rows_of(m_tiles) * blocks.left + COLUMNS * blocks.right) * STAGE_BLOCKS
        var tiles = WAVES_M * m_tiles * N_TILES
        var matrix = tiles * GROUP_TILES * blocks.matrix
        var stages = ceildiv(k, STAGE_BLOCKS * BLOCK)
        var round = begin + stages * max(bytes // self.bytes, matrix * per_cent // 100)
        var rounds = _rounds(rows * columns)
        var cycles = rounds * round + self._write_back(2 * m * n)
        return self._at_clock(cycles, rounds * stages * matrix, blocks)

    def _at_clock(self, cycles: Int, busy: Int, blocks: BlockWork) -> Int:
        """Returns what `cycles` take, in cycles of the usual clock: matrix pipes of four-bit codes,
        busy in some of them, hold it down in one of the model's readings, so half of that counts.
        """
        if blocks.are_wide:
            return cycles
        comptime USUAL, PEAK, FALL = 180, 240, 112  # 10 MHz; see timing/parameters.py.
        var clock = min(USUAL, PEAK - FALL * busy // (cycles + self.launch))
        return cycles * (clock + USUAL) // (2 * clock)

    def of_streaming(
        self, shape: StreamingShape, m: Int, n: Int, k: Int, float_bytes: Int, blocks: BlockWork
    ) -> Int:
        """Returns the cycles of a streaming kernel: its waves load for themselves, and add up."""
        var rows, columns = shape.m_tiles * TILE, shape.n_tiles * TILE
        var bytes_per_cycle = self.streaming_low if shape.m_tiles == 1 else self.streaming_high
        if blocks.are_wide:
            bytes_per_cycle = self.streaming_wide
        var left_bytes = (min(m, rows) if blocks.are_wide else rows) * blocks.left
        if float_bytes != CODES:
            # Floats are most of what is loaded, and lie in rows.
            var is_large = shape.m_tiles > (1 if blocks.are_wide else PAIR)
            bytes_per_cycle = self.streaming_floats if is_large else self.bytes
            left_bytes = min(m, rows) * BLOCK * float_bytes
        var num_blocks, parts = k // BLOCK, 1
        if shape.splits > 1:
            # Some waves have a chunk more than others, some workgroups none.
            num_blocks = shape.chunks_per_wave(k) * shape.k_groups() * shape.k_tiles * TILE_BLOCKS
            parts = ceildiv(k // BLOCK, num_blocks)
        var bytes = (left_bytes + columns * blocks.right) * num_blocks
        var are_wide_floats = blocks.are_wide and float_bytes != CODES
        var meets = self.streaming_meets if shape.splits > 1 and not are_wide_floats else 0
        var load = bytes // bytes_per_cycle + meets
        var grid = shape.grid(m, n)
        var rounds = _rounds(grid.x * grid.y * parts)
        var reduction = self._reduction(shape)
        var written = self._write_back(2 * m * n * shape.splits)
        # Of two workgroups of a compute unit, one begins and ends while the other loads; codes of
        # eight bits do not help each other.
        var ends = self.streaming_ends
        if are_wide_floats and shape.splits == 1:
            ends += rounds * self.streaming_round
            if shape.waves == WAVES and rounds % 2 == 1:
                ends += load * (self.streaming_alone - 100) // 100
        elif blocks.are_wide and not are_wide_floats:
            ends *= rounds
        return ends + rounds * load + reduction + written

    def _per_cent(self, shape: InterleavedShape) -> Int:
        """Returns how long a stage takes of what its matrix instructions do, in per cent."""
        if shape.bits == 8:
            return self.interleaved_wide
        if shape.waves > WAVES:
            return self.interleaved_two
        return self.interleaved_odd if shape.n_tiles % PAIR == 1 else self.interleaved_even

    def _reduction(self, shape: StreamingShape) -> Int:
        """Returns what a wave of the last workgroup does with the sums of its tiles."""
        if shape.splits == 1:
            return 0
        var own = shape.own_tiles() * self.reduction_tile
        if shape.adds_in_pairs():
            return levels_of(shape.splits) * (self.reduction_begins + own)
        return self.reduction_begins + (shape.splits - 1) * own

    def _write_back(self, num_bytes: Int) -> Int:
        """Returns what follows the last round."""
        return min(num_bytes, HELD) // self.written_back


def _bytes_of_block(format: Format) -> Int:
    """Returns the bytes of 32 codes and of their share of a scale."""
    return format.packed_bytes(BLOCK) + format.scale.bytes * BLOCK // format.block_k


def _rounds(groups: Int) -> Int:
    """Returns how often compute units take a workgroup."""
    return ceildiv(groups, CUS)


def cycles_of_experts(
    shape: InterleavedShape, m: Int, n: Int, k: Int, groups: Int, left: Format
) -> Int:
    """Returns what the tiles of a compute unit take, one after another, in cycles.

    A tile of experts has matrix instructions, to begin and end with something that grows with C, and loads
    that they do not hide. Read off the timing model, K = 2880, weights of MXFP4.
    """
    comptime BEGIN_AND_END, OF_SLICE, OF_TILE = 4000, 340, 90
    var slices = ceildiv(k, TILE_K)
    var matrix = tile_cycles(Formats(left, Format.MXFP4)) * slices
    var tile = (
        BEGIN_AND_END + slices * OF_SLICE + shape.m_tiles * shape.n_tiles * (matrix + OF_TILE)
    )
    var rows_of_tiles = groups * ceildiv(ceildiv(m, max(groups, 1)), shape.rows())
    return ceildiv(rows_of_tiles * ceildiv(n, shape.columns()), CUS) * tile
