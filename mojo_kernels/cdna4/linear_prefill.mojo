"""Linear for many rows: quantizes x on the way, C[M, N] = x @ W.T (+ bias) in one launch.

A workgroup computes 128 x 512 of C. Floats are four times as long as codes, so
this shape reads the fewest bytes of all with as many results. Eight waves share
the rows, each has 64 columns of its own:

    wave w    encodes rows 16 * w .. + 15 of a slice of 128 along K, for all waves
              multiplies 128 rows by columns 64 * w .. + 63

A slice of x goes straight to LDS, each wave's rows to its own place, and from
there through registers, encoded, to where all waves find it; lane l holds row
l % 16, block l / 16 of a tile, both when it encodes and when it multiplies:

    codes     tile t, lane l at 1024 * t + 16 * l
    scales    tile t, lane l at 256 * (t / 4) + 4 * l + t % 4: words of four tiles

Weights go straight to registers. Two groups of four waves take turns at the
matrix pipes, and workgroups are numbered, as in matmul_prefill.mojo. While a
slice is multiplied, the next one is encoded and two more are on their way.
"""

from layout import row_major
from layout.tile_tensor import stack_allocation
from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_idx, thread_idx
from max.gpu.sync import (
    AMDScheduleBarrierMask,
    s_waitcnt,
    s_waitcnt_barrier,
    schedule_barrier,
    schedule_group_barrier,
)
from std.collections import Array
from std.memory import AddressSpace, bitcast
from std.sys import size_of
from std.sys.intrinsics import readfirstlane
from std.utils import StaticTuple
from structured_kernels.amd_tile_io import _load_from_lds

from ..codec import Rounding
from ..formats import BLOCK
from .activations import QuantizedOnTheFly
from .epilogue import Result, Sums
from .lds import read_word, write_byte, write_codes
from .matmul_prefill import WAVES_PER_SIMD, tile_of_c
from .mma import BlockCodes, CODE_WORDS, LANES, Mma16, SharedBytes, set_priority
from .prefill_tiles import place_at
from .tiles import (
    CODE_TILE_BYTES,
    PAIR,
    PIECE_BYTES,
    TILE,
    TILE_K,
    WeightCursor,
    WeightTiles,
    quotient,
)

comptime LINEAR_WAVES = 8
"""Waves of a workgroup, each with a tile of rows to encode."""
comptime LINEAR_THREADS = LINEAR_WAVES * LANES
"""Threads of a workgroup."""
comptime GROUP_WAVES = LINEAR_WAVES // WAVES_PER_SIMD
"""Waves of a ping-pong group."""
comptime LINEAR_ROWS = LINEAR_WAVES * TILE
"""Rows of C of a workgroup."""
comptime WAVE_N_TILES = 4
"""Tiles of columns of a wave."""
comptime LINEAR_COLUMNS = LINEAR_WAVES * WAVE_N_TILES * TILE
"""Columns of C of a workgroup."""
comptime STAGES = 2
"""Slices of encoded activations and of weights that are held at once."""
comptime FLOAT_STAGES = 3
"""Slices of floats that are held at once."""
comptime SLICE_CODE_BYTES = LINEAR_WAVES * CODE_TILE_BYTES
"""Bytes of the codes of a slice."""
comptime SLICE_BYTES = SLICE_CODE_BYTES + LANES * LINEAR_WAVES
"""Bytes of a slice of encoded activations."""
comptime WORD_SCALES = 4
"""Scales of a word."""
comptime SCALE_WORDS = LINEAR_WAVES // WORD_SCALES
"""Words of a lane's scales of a slice."""
comptime WORDS_BYTES = LANES * WORD_SCALES
"""Bytes of one such word of all lanes."""


struct LinearRun[x_dtype: DType, rounding: Rounding, k_tail: Bool]:
    """A wave's way along K.

    Parameters:
        x_dtype: Type of the floats.
        rounding: The scale rule.
        k_tail: Whether K may end within a slice.
    """

    comptime Source = QuantizedOnTheFly[Self.x_dtype, Self.rounding, 1, 1, Self.k_tail]
    """The wave's rows of x."""
    comptime Weights = WeightTiles[WAVE_N_TILES, 1, Self.k_tail]
    """The wave's columns of C."""
    comptime FLOATS_PLACE = STAGES * SLICE_BYTES
    """Where floats begin."""
    comptime FLOAT_BYTES = LINEAR_WAVES * Self.Source.LDS_BYTES
    """Bytes of a slice of floats."""
    comptime LDS_BYTES = Self.FLOATS_PLACE + FLOAT_STAGES * Self.FLOAT_BYTES
    """Bytes of LDS of a workgroup."""
    comptime LATER_LOADS = Self.Weights.WORDS + WAVE_N_TILES + 2 * Self.Source.LOADS
    """Loads that are issued after the floats that are encoded next."""

    var source: Self.Source
    """Activations."""
    var weights: Self.Weights
    """Weights."""
    var lds: SharedBytes
    """The workgroup's LDS."""
    var wave: Int32
    """The wave."""
    var lane: Int32
    """The lane."""
    var slice: Int32
    """The slice that is multiplied next."""
    var encoded: Int32
    """Where the wave's floats lie that are encoded next."""
    var fetched: Int32
    """Where the wave's floats go that are fetched next."""
    var x_at: Self.Source.Cursor
    """The slice of floats that is fetched next."""
    var b_at: WeightCursor
    """The slice of weights that is fetched next."""
    var a: Array[BlockCodes, LINEAR_WAVES]
    """Fragments of activations."""
    var a_scales: Array[UInt32, SCALE_WORDS]
    """Their scales."""
    var b: Array[BlockCodes, STAGES * WAVE_N_TILES]
    """Fragments of weights."""
    var b_scales: Array[UInt32, STAGES * Self.Weights.WORDS]
    """Their scales."""
    var sums: Array[Sums, LINEAR_WAVES * WAVE_N_TILES]
    """C, all columns of the first tile of rows, then of the next."""

    @always_inline
    def __init__(
        out self,
        source: Self.Source,
        weights: Self.Weights,
        lds: SharedBytes,
        wave: Int32,
        lane: Int32,
    ):
        """Finds this thread's part of the work."""
        self.source = source
        self.weights = weights
        self.lds = lds
        self.wave = wave
        self.lane = lane
        self.slice = 0
        self.encoded = Int32(Self.FLOATS_PLACE) + wave * Int32(Self.Source.LDS_BYTES)
        self.fetched = self.encoded
        self.x_at = source.cursor(0)
        self.b_at = weights.cursor(0)
        self.a = {uninitialized = True}
        self.a_scales = {uninitialized = True}
        self.b = {uninitialized = True}
        self.b_scales = {uninitialized = True}
        self.sums = {uninitialized = True}
        comptime for i in range(LINEAR_WAVES * WAVE_N_TILES):
            self.sums[i] = 0
        self.source.settle(lane)

    @always_inline
    def next_floats(self, place: Int32) -> Int32:
        """Returns the place behind `place` in the ring of floats."""
        comptime LAST = Int32(Self.FLOATS_PLACE + (FLOAT_STAGES - 1) * Self.FLOAT_BYTES)
        comptime RING_BYTES = Int32((FLOAT_STAGES - 1) * Self.FLOAT_BYTES)
        return place - RING_BYTES if place >= LAST else place + Int32(Self.FLOAT_BYTES)

    @always_inline
    def fetch_x(mut self):
        """Starts loading the wave's floats of the slice that is aimed at."""
        _ = self.source.fetch[0, 0](self.x_at, place_at(self.lds, self.fetched), self.lane)

    @always_inline
    def aim_x(mut self, slice: Int32):
        """Turns to the next slice of floats."""
        self.fetched = self.next_floats(self.fetched)
        self.x_at = self.source.cursor(slice)

    @always_inline
    def fetch_b[stage: Int](mut self):
        """Starts loading the wave's weights of the slice that is aimed at."""
        comptime for word in range(Self.Weights.WORDS):
            self.b_scales[stage * Self.Weights.WORDS + word] = self.weights.fetch_scales[word](
                self.b_at, self.lane
            )
        comptime for tile in range(WAVE_N_TILES):
            self.b[stage * WAVE_N_TILES + tile] = self.weights.fetch_codes[0, tile](
                self.b_at, self.lane
            )

    @always_inline
    def encode[stage: Int](mut self):
        """Encodes the wave's floats of the next slice for all waves."""
        var block = self.source.block({}, place_at(self.lds, self.encoded), self.lane)
        var codes = place_at(self.lds, Int32(stage * SLICE_BYTES))
        var own = self.wave * Int32(CODE_TILE_BYTES) + self.lane * Int32(PIECE_BYTES)
        write_codes(place_at(codes, own), block.codes)
        var word, byte = divmod(self.wave, Int32(WORD_SCALES))
        var own_scale = word * Int32(WORDS_BYTES) + self.lane * Int32(WORD_SCALES) + byte
        var scales = place_at(codes, Int32(SLICE_CODE_BYTES))
        write_byte(place_at(scales, own_scale), block.scale.cast[DType.uint8]())
        self.encoded = self.next_floats(self.encoded)

    @always_inline
    def read[stage: Int](mut self):
        """Reads the fragments of activations of a slice."""
        var codes = place_at(self.lds, Int32(stage * SLICE_BYTES))
        var scales = place_at(codes, Int32(SLICE_CODE_BYTES) + self.lane * Int32(WORD_SCALES))
        comptime for word in range(SCALE_WORDS):
            self.a_scales[word] = read_word(place_at(scales, Int32(word * WORDS_BYTES)))
        var first = place_at(codes, self.lane * Int32(PIECE_BYTES))
        comptime for tile in range(LINEAR_WAVES):
            var read = _load_from_lds[width=PIECE_BYTES // 2](
                place_at(first, Int32(tile * CODE_TILE_BYTES))
            )
            self.a[tile] = bitcast[DType.uint32, CODE_WORDS](read)

    @always_inline
    def move[stage: Int](mut self):
        """Encodes the next slice, reads this one, fetches later ones."""
        comptime next_stage = (stage + 1) % STAGES
        self.fetch_x()
        schedule_barrier()
        # Later than the floats of the next slice: two slices of floats, one of weights.
        s_waitcnt[vmcnt=UInt32(Self.LATER_LOADS)]()
        schedule_barrier()
        self.encode[next_stage]()
        schedule_barrier()
        self.read[stage]()
        schedule_barrier()
        self.fetch_b[next_stage]()
        schedule_barrier()
        s_waitcnt[lgkmcnt=0]()
        s_waitcnt_barrier()
        schedule_barrier()

    @always_inline
    def multiply[stage: Int](mut self):
        """Multiplies the slice."""
        comptime first_word = stage * Self.Weights.WORDS
        set_priority[1]()
        self.aim_x(self.slice + 4)
        self.b_at = self.weights.cursor(self.slice + 2)
        var words = Array[UInt32, Self.Weights.WORDS](uninitialized=True)
        comptime for word in range(Self.Weights.WORDS):
            words[word] = self.weights.chosen_scales(
                self.b_scales[first_word + word],
                self.slice * Int32(TILE_K // BLOCK),
                self.lane,
            )
        comptime for m_tile in range(LINEAR_WAVES):
            comptime for n_tile in range(WAVE_N_TILES):
                comptime tile = m_tile * WAVE_N_TILES + n_tile
                self.sums[tile] = Mma16.step[
                    Self.Weights.scale_byte[0, n_tile](), m_tile % WORD_SCALES
                ](
                    self.sums[tile],
                    self.b[stage * WAVE_N_TILES + n_tile],
                    self.a[m_tile],
                    words[n_tile // PAIR],
                    self.a_scales[m_tile // WORD_SCALES],
                )
                schedule_group_barrier(AMDScheduleBarrierMask.MFMA, 1, 0)
                schedule_group_barrier(AMDScheduleBarrierMask.SALU, 2, 0)
        set_priority[0]()
        schedule_barrier()
        s_waitcnt_barrier()
        schedule_barrier()
        self.slice += 1

    @always_inline
    def run(mut self, num_slices: Int32):
        """Walks along K; the second group is a phase behind the first."""
        comptime for slice in range(1, FLOAT_STAGES + 1):
            self.fetch_x()
            self.aim_x(Int32(slice))
            schedule_barrier()
        s_waitcnt[vmcnt=UInt32((FLOAT_STAGES - 1) * Self.Source.LOADS)]()
        schedule_barrier()
        self.encode[0]()
        s_waitcnt[lgkmcnt=0]()
        schedule_barrier()
        self.fetch_b[0]()
        self.b_at = self.weights.cursor(1)
        schedule_barrier()
        s_waitcnt_barrier()
        var group = quotient[GROUP_WAVES](self.wave)
        if group != 0:
            s_waitcnt_barrier()

        for _ in range(quotient[STAGES](num_slices + Int32(STAGES - 1))):
            comptime for stage in range(STAGES):
                self.move[stage]()
                self.multiply[stage]()

        if group == 0:
            s_waitcnt_barrier()
        s_waitcnt[vmcnt=0]()


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(LINEAR_THREADS)),
    `rocdl.waves_per_eu`=SIMDLength(WAVES_PER_SIMD),
)
def linear_prefill[
    x_dtype: DType,
    out_dtype: DType,
    bias_dtype: Optional[DType],
    rounding: Rounding,
    k_tail: Bool,
](
    x: ImmPointer[Scalar[x_dtype], ImmutAnyOrigin],
    w_codes: ImmPointer[UInt8, ImmutAnyOrigin],
    w_scales: ImmPointer[UInt8, ImmutAnyOrigin],
    result: MutPointer[Scalar[out_dtype], MutAnyOrigin],
    m: Int32,
    n: Int32,
    k: Int32,
    bias: ImmPointer[UInt8, ImmutAnyOrigin],
):
    """Quantizes x and multiplies: C = x @ W.T + bias. Without `k_tail`, K % 128 == 0.

    Weights have layout `preshuffled_cdna4`; each tensor has less than 2 GiB.
    """
    comptime assert size_of[x_dtype]() == 2, "three slices of wider floats do not fit into LDS"
    var lane = Int32(thread_idx.x) % LANES
    var wave = readfirstlane(quotient[LANES](Int32(thread_idx.x)))
    var tiles_m = quotient[LINEAR_ROWS](m + Int32(LINEAR_ROWS - 1))
    var tiles_n = quotient[LINEAR_COLUMNS](n + Int32(LINEAR_COLUMNS - 1))
    var tile = tile_of_c(tiles_m, tiles_n)
    var first_row, first_column = tile[0] * Int32(LINEAR_ROWS), tile[1] * Int32(LINEAR_COLUMNS)
    if first_row >= m:
        return  # Rounds the grid up to a multiple of the XCDs.

    # Along K.
    comptime Run = LinearRun[x_dtype, rounding, k_tail]
    var lds = stack_allocation[
        DType.bfloat16, address_space=AddressSpace.SHARED, alignment=PIECE_BYTES
    ](row_major[Run.LDS_BYTES // size_of[DType.bfloat16]()]())
    first_column += wave * Int32(WAVE_N_TILES * TILE)
    var run = Run(
        Run.Source(x, m, k, first_row + wave * Int32(TILE)),
        Run.Weights.of(w_codes, w_scales, n, quotient[BLOCK](k), quotient[TILE](first_column)),
        lds.ptr,
        wave,
        lane,
    )
    run.run(quotient[TILE_K](k + Int32(TILE_K - 1)))

    # To memory.
    var target = Result[out_dtype, bias_dtype].of(result, bias, m, n)
    comptime for n_tile in range(WAVE_N_TILES):
        var column = first_column + Int32(n_tile * TILE)
        var addend = target.bias_of(column, lane)
        comptime for m_tile in range(LINEAR_WAVES):
            var row = first_row + Int32(m_tile * TILE)
            target.store(run.sums[m_tile * WAVE_N_TILES + n_tile], addend, row, column, lane)
