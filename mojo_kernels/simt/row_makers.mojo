"""Rows that are made on the way, sixteen numbers at once: through a norm, of gates and ups, or
rotated.

A norm adds a row up first, a warp a segment, each lane two chunks of it, 256 elements apart:

    lane          0      1      2    ...   31
    first half    0..7   8..15  16..       248..255     t[i] = x[i] + x[i + 256] in a lane,
    second half   256..  264..  272..      504..511     then across lanes, then within the chunk

the order of `numbers.norms`. Rows of bfloat16 have kernels of their own on NVIDIA GPUs; others learn
the type at run time. Warps are those of NVIDIA GPUs; on gfx950 a wave is two of them, whose lanes
exchange nothing.
"""

from layout import Coord
from max.gpu import block_dim, thread_idx
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier, s_waitcnt
from std.memory import bitcast
from std.sys import is_amd_gpu
from std.utils import StaticTuple

from ..launch.queue import KernelStruct
from ..numbers.floats import round_to
from ..numbers.gates import Gate
from ..numbers.norms import HALF_SEGMENT, Rounds, SEGMENT, mean_of, reciprocal_of
from ..tiles import in_shared
from .codec import Chunk
from .host import BFLOAT16, CHUNK, FLOAT16, VECTOR_BYTES
from .instructions import keep_branch, multiply_add_pairs
from .pairs import PAIR, floats_of, floats_of_chunk, nearest_bfloat16
from .quantize import THREADS, WARP_THREADS
from .views import AnyFloats

comptime MOST_WARPS = THREADS // WARP_THREADS
comptime ROUNDS = 2
"""Segments of a warp whose loads are on the way at once."""
comptime MINUS_ZEROS = UInt32(0x80008000)
"""What changes no product of two bfloat16 numbers."""


@fieldwise_init
struct RowNumbers(TrivialRegisterPassable):
    """What is subtracted from the numbers of a row, and what multiplies them."""

    var mean: Float32
    var reciprocal: Float32


trait RowMaker(KernelStruct):
    """Makes pairs of chunks of rows."""

    comptime MADE: DType
    """What holds the numbers that are made."""

    def begin[aligned: Bool](self, row: Int) -> RowNumbers:
        """Reads a row; all threads of a group call it."""
        ...

    def pair[
        aligned: Bool
    ](self, row: Int, pair: Int, numbers: RowNumbers) -> SIMD[Self.MADE, PAIR]:
        """Returns sixteen numbers of a row, rounded to the type of what is made."""
        ...


comptime Floats = SIMD[DType.float32, PAIR]
"""Sixteen neighbours of a row."""


@always_inline
def made_of[made: DType](x: Floats, dtype: Int32) -> SIMD[made, PAIR]:
    """Rounds numbers to a type of floats, by its position, which `made` holds."""
    comptime if made == DType.bfloat16:
        return rebind[SIMD[made, PAIR]](nearest_bfloat16(x))
    else:
        if dtype == BFLOAT16:
            return nearest_bfloat16(x).cast[made]()
        if dtype == FLOAT16:
            return round_to[DType.float16](x).cast[made]()
        return x.cast[made]()


@always_inline
def load_floats[known: DType, aligned: Bool](floats: AnyFloats, row: Int, column: Int) -> Floats:
    """Loads sixteen neighbours as float32, of a type that is known or not."""
    comptime if known == DType.bfloat16:
        comptime alignment = VECTOR_BYTES if aligned else 2
        var x = floats.rows[known]().load[width=PAIR, alignment=alignment](Coord(row, column))
        return floats_of[0](x).join(floats_of[1](x))
    else:
        return floats.load[PAIR, CHUNK if aligned else 1](row, column)


@fieldwise_init
struct GatedRows[made: DType](RowMaker):
    """Hidden numbers of gates and ups, bfloat16 of usual gates if `made` is."""

    comptime MADE = Self.made

    var gates: AnyFloats
    var ups: AnyFloats
    """Those that are not among the gates."""
    var gate: Int32
    """Its word."""
    var limit: Float32
    var alpha: Float32

    @always_inline
    def begin[aligned: Bool](self, row: Int) -> RowNumbers:
        return RowNumbers(0, 0)

    @always_inline
    def pair[
        aligned: Bool
    ](self, row: Int, pair: Int, numbers: RowNumbers) -> SIMD[Self.MADE, PAIR]:
        var gate = Gate.of_word(self.gate, self.limit, self.alpha)
        var first = pair * PAIR
        var hidden: Floats
        if gate.is_interleaved():
            var low = load_floats[Self.made, aligned](self.gates, row, 2 * first)
            var high = load_floats[Self.made, aligned](self.gates, row, 2 * first + PAIR)
            var both = low.join(high).deinterleave()
            hidden = self._of(gate, both[0], both[1])
        else:
            var gates = load_floats[Self.made, aligned](self.gates, row, first)
            if gate.is_there():
                var ups = load_floats[Self.made, aligned](self.ups, row, first)
                hidden = self._of(gate, gates, ups)
            else:
                hidden = gate.of_sums(gates)
        return made_of[Self.MADE](hidden, self.gates.dtype)

    @always_inline
    def _of(self, gate: Gate, gates: Floats, ups: Floats) -> Floats:
        comptime if Self.made == DType.bfloat16:
            return gate.of_usual(gates, ups)
        else:
            var halves = StaticTuple[Chunk, 2]()
            comptime for i in range(2):
                var one = gates.slice[CHUNK, offset=i * CHUNK]()
                var up = ups.slice[CHUNK, offset=i * CHUNK]()
                comptime if is_amd_gpu():
                    halves[i] = gate.of(one, up)
                else:
                    halves[i] = _hidden(self.gate, self.limit, self.alpha, one, up)
            return halves[0].join(halves[1])


@no_inline
def _hidden(word: Int32, limit: Float32, alpha: Float32, gates: Chunk, ups: Chunk) -> Chunk:
    """Returns what any gate makes: once in a kernel, for all gates are long."""
    return Gate.of_word(word, limit, alpha).of(gates, ups)


@fieldwise_init
struct RotatedRows(RowMaker):
    """Rows whose blocks are multiplied by a Hadamard matrix, of any type.

    A thread reads a whole block of up to eight pairs for its own: what is read again is near, and
    threads exchange nothing. Halves are added or subtracted first, as on a CPU.
    """

    comptime MADE = DType.float32

    var x: AnyFloats
    var pairs: Int32
    """Of a block: 2, 4 or 8."""
    var factor: Float32

    @always_inline
    def begin[aligned: Bool](self, row: Int) -> RowNumbers:
        return RowNumbers(0, 0)

    @always_inline
    def pair[
        aligned: Bool
    ](self, row: Int, pair: Int, numbers: RowNumbers) -> SIMD[Self.MADE, PAIR]:
        comptime if is_amd_gpu():
            return self._made[aligned](row, pair)
        else:
            return _rotated[aligned](self.x, self.pairs, self.factor, row, pair)

    @always_inline
    def _made[aligned: Bool](self, row: Int, pair: Int) -> Floats:
        var y = self._turned[aligned](row, pair, 0).join(self._turned[aligned](row, pair, CHUNK))
        comptime for step in [8, 4, 2, 1]:
            comptime for i in range(PAIR):
                comptime if i & step == 0:
                    var low, high = y[i], y[i + step]
                    y[i], y[i + step] = low + high, low - high
        return made_of[Self.MADE](y * self.factor, self.x.dtype)

    @always_inline
    def _turned[aligned: Bool](self, row: Int, pair: Int, column: Int) -> Chunk:
        """Returns a chunk of a pair, with or without those of the block's other pairs."""
        var half, own, y = self.pairs >> 1, Int32(pair) & (self.pairs - 1), Chunk()
        for first in range(Int32(0), max(half >> 1, 1)):
            var at = Int32(pair) - own + first
            var sums = self._both[aligned](row, at, half, own, column)
            if half > 1:
                var others = self._both[aligned](row, at + (half >> 1), half, own, column)
                sums = _sums_of(sums, others, own & (half >> 1) != 0)
            y = sums if first == 0 else _sums_of(y, sums, own & 1 != 0)
        return y

    @always_inline
    def _both[
        aligned: Bool
    ](self, row: Int, pair: Int32, half: Int32, own: Int32, column: Int) -> Chunk:
        """Returns a chunk with or without the one half a block behind."""
        comptime ALIGNMENT = CHUNK if aligned else 1
        var low = self.x.load[CHUNK, ALIGNMENT](row, Int(pair) * PAIR + column)
        var high = self.x.load[CHUNK, ALIGNMENT](row, Int(pair + half) * PAIR + column)
        return _sums_of(low, high, own & half != 0)


@no_inline
def _rotated[
    aligned: Bool
](x: AnyFloats, pairs: Int32, factor: Float32, row: Int, pair: Int) -> Floats:
    """Returns a rotated pair: apart, its registers are free for what becomes of it."""
    return RotatedRows(x, pairs, factor)._made[aligned](row, pair)


@always_inline
def _sums_of(low: Chunk, high: Chunk, is_upper: Bool) -> Chunk:
    """Returns sums, in an upper half differences."""
    return high.fma(Chunk(-1 if is_upper else 1), low)


@fieldwise_init
struct NormedRows[made: DType](RowMaker):
    """Rows behind a norm, which are bfloat16 if `made` is, else of any type."""

    comptime MADE = Self.made

    var x: AnyFloats
    var residual: AnyFloats
    """What is added first, if `has_residual`."""
    var source: AnyFloats
    """What is normalized: those sums, which are written there, or x."""
    var weight: AnyFloats
    """One row, if `has_weight`."""
    var bias: AnyFloats
    """One row, if `has_bias`."""
    var has_residual: Bool
    var has_weight: Bool
    var has_bias: Bool
    var is_centered: Bool
    var multiplies_pairs: Bool
    """Whether a weight of bfloat16 multiplies what is rounded, and nothing is added."""
    var rounds: Int32
    var offset: Float32
    var k: Int
    var eps: Float64
    var inv_k: Float64

    @always_inline
    def begin[aligned: Bool](self, row: Int) -> RowNumbers:
        if self.has_residual:
            for chunk in range(Int(thread_idx.x), self.k // CHUNK, Int(block_dim.x)):
                self._add[aligned](row, chunk)
            # Others read it.
            comptime if is_amd_gpu():
                s_waitcnt[vmcnt=0]()
            barrier()
        var mean = Float32(0)
        if self.is_centered:
            mean = self._number[aligned, False](row, 0)
        return RowNumbers(mean, self._number[aligned, True](row, mean))

    @always_inline
    def pair[
        aligned: Bool
    ](self, row: Int, pair: Int, numbers: RowNumbers) -> SIMD[Self.MADE, PAIR]:
        var first = pair * PAIR
        var y = load_floats[Self.made, aligned](self.source, row, first)
        if self.is_centered:
            y -= numbers.mean
        y *= numbers.reciprocal
        comptime if Self.made == DType.bfloat16:
            if self.multiplies_pairs:
                var products = bitcast[DType.uint32, PAIR // 2](nearest_bfloat16(y))
                var weights = self.weight.rows[DType.bfloat16]().load[
                    width=PAIR, alignment=VECTOR_BYTES
                ](Coord(0, first))
                var factors = bitcast[DType.uint32, PAIR // 2](weights)
                comptime for i in range(PAIR // 2):
                    products[i] = multiply_add_pairs(products[i], factors[i], MINUS_ZEROS)
                return rebind[SIMD[Self.MADE, PAIR]](bitcast[DType.bfloat16, PAIR](products))
        if self.rounds == Int32(Rounds.EACH.code):
            y = made_of[Self.MADE](y, self.x.dtype).cast[DType.float32]()
        if self.has_weight:
            comptime ALIGNMENT = CHUNK if aligned else 1
            var factor = self.weight.load[PAIR, ALIGNMENT](0, first) + self.offset
            if self.has_bias:
                y = y.fma(factor, self.bias.load[PAIR, ALIGNMENT](0, first))
            else:
                y *= factor
        comptime if Self.made == DType.float32:
            if self.rounds == Int32(Rounds.NONE.code):
                return y.cast[Self.MADE]()
        return made_of[Self.MADE](y, self.x.dtype)

    @always_inline
    def _chunk[aligned: Bool](self, row: Int, chunk: Int) -> SIMD[Self.MADE, CHUNK]:
        """Loads what is normalized."""
        comptime if Self.made == DType.bfloat16:
            comptime alignment = VECTOR_BYTES if aligned else 2
            var rows = self.source.rows[Self.MADE]()
            return rows.load[width=CHUNK, alignment=alignment](Coord(row, chunk * CHUNK))
        else:
            var x = self.source.load[CHUNK, CHUNK if aligned else 1](row, chunk * CHUNK)
            return x.cast[Self.MADE]()

    @always_inline
    def _less(self, x: Chunk, mean: Float32, chunk: UInt32) -> Chunk:
        """Returns what is left of a chunk without the mean; past the end nothing."""
        return x - mean if chunk < UInt32(self.k // CHUNK) else Chunk(0)

    @always_inline
    def _add[aligned: Bool](self, row: Int, chunk: Int):
        comptime ALIGNMENT = CHUNK if aligned else 1
        var x = self.x.load[CHUNK, ALIGNMENT](row, chunk * CHUNK)
        var residual = self.residual.load[CHUNK, ALIGNMENT](row, chunk * CHUNK)
        self.source.store[CHUNK, ALIGNMENT](row, chunk * CHUNK, x + residual)

    @always_inline
    def _number[aligned: Bool, are_squares: Bool](self, row: Int, mean: Float32) -> Float32:
        """Returns the mean of a row, or what multiplies it; all threads of a group call it.

        Warps have sums of segments, of which one makes the number.
        """
        var sums = in_shared[DType.float64, 1, ROUNDS * MOST_WARPS]()
        var number = in_shared[DType.float32, 1, 1]()
        var warp, lane = divmod(UInt32(thread_idx.x), UInt32(WARP_THREADS))
        var warps, num_chunks = UInt32(block_dim.x) // UInt32(WARP_THREADS), UInt32(self.k // CHUNK)
        comptime SEGMENT_CHUNKS, HALF = UInt32(SEGMENT // CHUNK), UInt32(HALF_SEGMENT // CHUNK)
        var at = warp * SEGMENT_CHUNKS + lane
        var total, round_chunks = Float64(0), warps * SEGMENT_CHUNKS
        for first in range(UInt32(0), num_chunks, ROUNDS * round_chunks):
            if first > 0:
                barrier()
            var halves = Array[SIMD[Self.MADE, CHUNK], 2 * ROUNDS](uninitialized=True)
            comptime for i in range(2 * ROUNDS):
                var chunk = first + UInt32(i // 2) * round_chunks + at + UInt32(i % 2) * HALF
                halves[i] = SIMD[Self.MADE, CHUNK](0)
                if chunk < num_chunks:
                    halves[i] = self._chunk[aligned](row, Int(chunk))
            comptime for i in range(ROUNDS):
                if first + UInt32(i) * round_chunks < num_chunks:
                    keep_branch()
                    var a, b = floats_of_chunk(halves[2 * i]), floats_of_chunk(halves[2 * i + 1])
                    comptime if are_squares:
                        if self.is_centered:
                            a = self._less(a, mean, first + UInt32(i) * round_chunks + at)
                            b = self._less(b, mean, first + UInt32(i) * round_chunks + at + HALF)
                        a = b.fma(b, a * a)
                    else:
                        a = a + b
                    var sum_of_segment = sum_of_lanes(a, Int(lane))
                    if lane == 0:
                        sums[Int(UInt32(i) * warps + warp)] = sum_of_segment.cast[DType.float64]()
            barrier()
            if warp == 0:
                var segments = (num_chunks - first + SEGMENT_CHUNKS - 1) // SEGMENT_CHUNKS
                segments = min(segments, ROUNDS * warps)
                comptime if is_amd_gpu():
                    for i in range(Int(segments)):
                        total += sums[i][0]
                else:
                    comptime for i in range(ROUNDS * MOST_WARPS):
                        # All at once: what is not there adds nothing.
                        var sum = sums[i][0]
                        total += sum if UInt32(i) < segments else 0
        if warp == 0:
            var found: Float32
            comptime if are_squares:
                found = reciprocal_of(total, self.inv_k, self.eps)
            else:
                found = mean_of(total, self.inv_k)
            number[0] = SIMD[DType.float32, 1](found)
        barrier()
        return number[0][0]


@always_inline
def sum_of_lanes(x: Chunk, lane: Int) -> Float32:
    """Returns the sum of the chunks of a warp, halves added first: across lanes, then within.

    Of two halves of what a lane has, it keeps one and hands the other to the lane that keeps that.
    """
    var four = _kept_half[16](x, lane)
    var two = _kept_half[8](four, lane)
    var total = _kept_half[4](two, lane)[0]
    comptime for step in [2, 1, 16, 8, 4]:
        total += shuffle_xor(total, UInt32(step))
    return total


@always_inline
def _kept_half[
    width: SIMDLength, //, step: Int
](x: SIMD[DType.float32, width], lane: Int) -> SIMD[DType.float32, width // 2]:
    comptime HALF = width // 2
    var is_upper = lane & step != 0
    var low, high = x.slice[HALF](), x.slice[HALF, offset=HALF]()
    var kept = high if is_upper else low
    var given = low if is_upper else high
    comptime for i in range(HALF):
        kept[i] += shuffle_xor(given[i], UInt32(step))
    return kept
