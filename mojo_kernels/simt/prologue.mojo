"""Quantizers of rows that are made on the way: through a norm, or of gates and ups.

A group of threads has a row, or the rows that share a scale. A norm adds it up first, a warp a
segment, each lane two chunks of it, 256 elements apart:

    lane          0      1      2    ...   31
    first half    0..7   8..15  16..       248..255     t[i] = x[i] + x[i + 256] in a lane,
    second half   256..  264..  272..      504..511     then across lanes, then within the chunk

the order of `numbers.norms`. Then threads make pairs of chunks, which they encode as `simt.quantize`
does; where a scale must be known before the first code, they make them twice. What is read again is
near. Rows of bfloat16 have kernels of their own on NVIDIA GPUs; others learn the type at run time.
Warps are those of NVIDIA GPUs; on gfx950 a wave is two of them, whose lanes exchange nothing.
"""

from layout import Coord
from max.gpu import (
    MAX_THREADS_PER_BLOCK_METADATA,
    block_dim,
    block_idx,
    thread_idx,
)
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier, s_waitcnt
from std.bit import log2_floor
from std.memory import bitcast
from std.sys import is_amd_gpu
from std.utils import StaticTuple

from ..calls import GateQuantizeCall, NormQuantizeCall, QuantizeCall
from ..launch.grid import Grid
from ..launch.queue import DevicePointer, KernelStruct, Queue, device_pointer
from ..numbers.floats import round_to
from ..numbers.formats import (
    Format,
    block_of,
    has_e4m3_scales,
    has_float_scales,
)
from ..numbers.gates import Gate
from ..numbers.norms import (
    HALF_SEGMENT,
    Rounds,
    SEGMENT,
    mean_of,
    reciprocal_of,
)
from ..numbers.rounding import (
    LARGEST_CODE,
    float_scale_from_amax,
    tensor_scale_from_amax,
)
from ..tiles import in_shared
from .arguments import carry_of
from .codec import BLOCK, Chunk, WORD_BITS, amax_of_lanes, element_of
from .encode import Divisor
from .host import BFLOAT16, CHUNK, FLOAT16, FLOAT32, VECTOR_BYTES, bytes_of
from .instructions import keep_branch, multiply_add_pairs
from .pairs import (
    PAIR,
    encode_e4m3_block,
    encode_pair,
    finite_magnitude_of,
    floats_of,
    floats_of_chunk,
    magnitude_of,
    nearest_bfloat16,
    quantize_pair,
    store_e4m3_scale,
)
from .quantize import (
    CODE_BITS,
    LOG2_WARP,
    THREADS,
    WARP_THREADS,
    amax_of_warps,
    bits_of,
)
from .views import AnyFloats, flat_of

comptime MOST_WARPS = THREADS // WARP_THREADS
comptime MANY_ROWS = 1024
"""So many rows have few threads each, with more to do between barriers; H200, 2026-11-30."""
comptime FEW_THREADS = 128
"""Threads of one of many rows."""
comptime ROUNDS = 2
"""Segments of a warp whose loads are on the way at once."""
comptime MOST_ROWS = Format.FP8_BLOCK_2D.block_rows
"""Rows that share a scale."""
comptime RESIDENT_GROUPS = 4
"""Groups of a multiprocessor: registers of their threads are limited to that."""
comptime MINUS_ZEROS = UInt32(0x80008000)
"""What changes no product of two bfloat16 numbers."""
comptime MADE = [DType.bfloat16, DType.float32]
"""What kernels make: bfloat16 of bfloat16, on NVIDIA GPUs, or numbers of any type."""


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
            # What is not finite makes a block NaN, whichever it is.
            return gate.of_usual[divides=False](gates, ups)
        else:
            var low, high = (
                gates.slice[CHUNK](),
                gates.slice[CHUNK, offset=CHUNK](),
            )
            low = _hidden(self.gate, self.limit, self.alpha, low, ups.slice[CHUNK]())
            high = _hidden(
                self.gate,
                self.limit,
                self.alpha,
                high,
                ups.slice[CHUNK, offset=CHUNK](),
            )
            return low.join(high)


@no_inline
def _hidden(word: Int32, limit: Float32, alpha: Float32, gates: Chunk, ups: Chunk) -> Chunk:
    """Returns what any gate makes: once in a kernel, for all gates are long."""
    return Gate.of_word(word, limit, alpha).of(gates, ups)


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
                            b = self._less(
                                b,
                                mean,
                                first + UInt32(i) * round_chunks + at + HALF,
                            )
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


@__llvm_metadata(
    MAX_THREADS_PER_BLOCK_METADATA=StaticTuple[Int32, 1](Int32(THREADS)),
    `nvvm.minctasm`=SIMDLength(RESIDENT_GROUPS),
)
def quantize_made[
    Maker: RowMaker, bits: Int, aligned: Bool
](
    maker: Maker,
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    tensor_scales: Int64,
    rows: Int64,
    k: Int64,
    format: Int32,
    carry: UInt32,
):
    """Makes and quantizes a row a group of threads, or those that share a scale.

    `tensor_scales`: The address of a given float32 for each row, 0 for none.
    """
    comptime if bits == 8:
        if has_float_scales(Int(format)):
            var to = scales.unsafe_bitcast[Float32]()
            _quantize_float_blocks[aligned](maker, codes, to, Int(rows), Int(k), format, carry)
            return
    elif bits == 4:
        if has_e4m3_scales(Int(format)):
            _quantize_e4m3_row[aligned](maker, codes, scales, Int(tensor_scales), Int(k))
            return
    var row, num_pairs = Int(block_idx.x), UInt32(Int(k) // PAIR)
    var numbers, element = maker.begin[aligned](row), element_of[bits](format)
    var row_codes = codes.unsafe_offset(row * (Int(k) * bits // WORD_BITS))
    var row_scales = scales.unsafe_offset(row * (Int(k) // BLOCK))
    for first in range(UInt32(0), num_pairs, UInt32(block_dim.x)):
        # Whole blocks are in or out of range together; lanes outside repeat the last block's.
        comptime LANES = UInt32(BLOCK // PAIR)
        var pair = first + UInt32(thread_idx.x)
        var in_range = pair < num_pairs
        if not in_range:
            pair = num_pairs - LANES + pair % LANES
        var x = maker.pair[aligned](row, Int(pair), numbers)
        quantize_pair[bits](x, row_codes, row_scales, Int(pair), in_range, carry, element)


@always_inline
def _quantize_float_blocks[
    Maker: RowMaker, //, aligned: Bool
](
    maker: Maker,
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.float32],
    rows: Int,
    k: Int,
    format: Int32,
    is_power: UInt32,
):
    """Quantizes blocks with float scales: lanes have one of a part of a row, else all threads."""
    comptime PART_LANES = Format.FP8_BLOCK.block_k // PAIR
    var shape, row_pairs, thread = (
        block_of(Int(format)),
        k // PAIR,
        Int(thread_idx.x),
    )
    var threads = Int(block_dim.x)
    var element, first_row = (
        element_of[8](format),
        Int(block_idx.x) << shape.row_bits,
    )
    var pair_bits, k_blocks = shape.k_bits - log2_floor(PAIR), shape.k_blocks(k)
    if shape.row_bits == 0:
        var numbers = maker.begin[aligned](first_row)
        var row_scales = scales.unsafe_offset(first_row * k_blocks)
        var is_part, amax = k_blocks > 1, UInt32(0)
        if not is_part:
            for pair in range(thread, row_pairs, threads):
                amax = max(
                    amax,
                    magnitude_of(maker.pair[aligned](first_row, pair, numbers)),
                )
            amax = amax_of_warps(amax_of_lanes[LOG2_WARP](amax))
        var divisor = Divisor(float_scale_from_amax(amax, element, is_power != 0))
        if not is_part and thread == 0:
            flat_of(row_scales)[0] = divisor.scale
        for first in range(0, row_pairs, threads):
            # Lanes past the end keep others company.
            var pair = first + thread
            var x = SIMD[Maker.MADE, PAIR](0)
            if pair < row_pairs:
                x = maker.pair[aligned](first_row, pair, numbers)
            if is_part:
                amax = amax_of_lanes[log2_floor(PART_LANES)](magnitude_of(x))
                divisor = Divisor(float_scale_from_amax(amax, element, is_power != 0))
                if pair < row_pairs and pair % PART_LANES == 0:
                    flat_of(row_scales)[pair // PART_LANES] = divisor.scale
            if pair < row_pairs:
                encode_pair[8](codes, first_row * row_pairs + pair, x, divisor, element)
        return

    var numbers = in_shared[DType.float32, 2, MOST_ROWS]()
    var num_rows = min(rows - first_row, 1 << shape.row_bits)
    for row in range(num_rows):
        var found = maker.begin[aligned](first_row + row)
        if thread == 0:
            numbers[row] = SIMD[DType.float32, 2](found.mean, found.reciprocal)
    barrier()
    for k_block in range(k_blocks):
        var first_pair = k_block << pair_bits
        var num_pairs = min(row_pairs - first_pair, 1 << pair_bits)
        var amax = UInt32(0)
        for i in range(thread, num_rows * num_pairs, threads):
            var row, pair = divmod(UInt32(i), UInt32(num_pairs))
            var known = RowNumbers(numbers[Int(row)][0], numbers[Int(row)][1])
            var x = maker.pair[aligned](first_row + Int(row), first_pair + Int(pair), known)
            amax = max(amax, magnitude_of(x))
        amax = amax_of_warps(amax_of_lanes[LOG2_WARP](amax))
        var divisor = Divisor(float_scale_from_amax(amax, element, is_power != 0))
        if thread == 0:
            flat_of(scales)[Int(block_idx.x) * k_blocks + k_block] = divisor.scale
        for i in range(thread, num_rows * num_pairs, threads):
            var row, pair = divmod(UInt32(i), UInt32(num_pairs))
            var known = RowNumbers(numbers[Int(row)][0], numbers[Int(row)][1])
            var x = maker.pair[aligned](first_row + Int(row), first_pair + Int(pair), known)
            var place = (first_row + Int(row)) * row_pairs + first_pair + Int(pair)
            encode_pair[8](codes, place, x, divisor, element)
        # Before the next block's maxima take their place.
        barrier()


@always_inline
def _quantize_e4m3_row[
    Maker: RowMaker, //, aligned: Bool
](
    maker: Maker,
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    tensor_scales: Int,
    k: Int,
):
    """Quantizes a row with E4M3 scales, under a given tensor scale or its own."""
    comptime Encoding = Format.NVFP4
    var row, num_pairs, thread = Int(block_idx.x), k // PAIR, Int(thread_idx.x)
    var threads = Int(block_dim.x)
    var numbers = maker.begin[aligned](row)
    var tensor_scale: Float32
    if tensor_scales != 0:
        tensor_scale = flat_of(device_pointer[DType.float32](tensor_scales))[row]
    else:
        var amax = UInt32(0)
        for pair in range(thread, num_pairs, threads):
            amax = max(
                amax,
                finite_magnitude_of(maker.pair[aligned](row, pair, numbers)),
            )
        amax = amax_of_warps(amax_of_lanes[LOG2_WARP](amax))
        tensor_scale = tensor_scale_from_amax(amax)

    var to = scales.unsafe_offset(row * Encoding.scale_row_bytes(k))
    var six = Divisor(LARGEST_CODE * tensor_scale)
    for pair in range(thread, num_pairs, threads):
        var x = maker.pair[aligned](row, pair, numbers)
        var scale = store_e4m3_scale(to, pair, x, six) * tensor_scale
        encode_e4m3_block(codes, row * num_pairs + pair, x, scale)
    if thread < Encoding.scale.row_bytes:
        var bits = bitcast[DType.uint32](tensor_scale) >> UInt32(8 * thread)
        flat_of(to)[num_pairs + thread] = bits.cast[DType.uint8]()


def norm_quantize[is_nvidia: Bool = True](given: NormQuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes rows behind a norm."""
    var call, norm = given.call, given.norm
    var float_bytes = bytes_of(call.dtype)
    var of_weights = Int(FLOAT32) if norm.weights_are_float else call.dtype
    var all = call.values | call.row_stride * float_bytes | norm.weight | norm.bias
    all |= norm.residual | norm.residual_stride * float_bytes | norm.stream
    var is_aligned = all % VECTOR_BYTES == 0
    var is_made = is_nvidia and norm.rounds != Rounds.NONE and is_aligned
    is_made = is_made and Int32(call.dtype) == BFLOAT16
    comptime for made in MADE:
        comptime if is_nvidia or made == DType.float32:
            if is_made == (made == DType.bfloat16):
                var maker = NormedRows[made](
                    x=_floats(call.values, call.row_stride, call.dtype),
                    residual=_floats(norm.residual, norm.residual_stride, call.dtype),
                    source=_floats(norm.stream, call.k, call.dtype) if norm.residual
                    != 0 else _floats(call.values, call.row_stride, call.dtype),
                    weight=_floats(norm.weight, 0, of_weights),
                    bias=_floats(norm.bias, 0, of_weights),
                    has_residual=norm.residual != 0,
                    has_weight=norm.weight != 0,
                    has_bias=norm.bias != 0,
                    is_centered=norm.is_centered,
                    multiplies_pairs=norm.rounds == Rounds.EACH
                    and norm.weight != 0
                    and norm.bias == 0
                    and norm.offset == 0
                    and Int32(of_weights) == BFLOAT16,
                    rounds=Int32(norm.rounds.code),
                    offset=norm.offset,
                    k=call.k,
                    eps=norm.eps,
                    inv_k=norm.inv_k,
                )
                _launch(maker, call, is_aligned, queue)


def gate_quantize[is_nvidia: Bool = True](given: GateQuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes hidden numbers of gates and ups."""
    var call, gate = given.call, given.gate
    var strides = (call.row_stride | given.up_stride) * bytes_of(call.dtype)
    var is_aligned = (call.values | given.ups | strides) % VECTOR_BYTES == 0
    var is_made = is_nvidia and is_aligned and Int32(call.dtype) == BFLOAT16
    is_made = is_made and gate.is_usual() and gate.has_quotients()
    comptime for made in MADE:
        comptime if is_nvidia or made == DType.float32:
            if is_made == (made == DType.bfloat16):
                var maker = GatedRows[made](
                    gates=_floats(call.values, call.row_stride, call.dtype),
                    ups=_floats(given.ups, given.up_stride, call.dtype),
                    gate=gate.word(),
                    limit=gate.limit,
                    alpha=gate.alpha,
                )
                _launch(maker, call, is_aligned, queue)


def _floats(address: Int, row_stride: Int, dtype: Int) -> AnyFloats:
    return AnyFloats(device_pointer[DType.uint8](address), row_stride, Int32(dtype))


def _launch[
    Maker: RowMaker
](maker: Maker, call: QuantizeCall, is_aligned: Bool, mut queue: Some[Queue]) raises:
    """Launches an instance of `quantize_made`."""
    var code_bits = bits_of(call.format)
    comptime for bits in CODE_BITS:
        # Unaligned rows are none of bfloat16's kernels'.
        comptime for aligned in [True, False]:
            comptime if aligned or Maker.MADE == DType.float32:
                if code_bits == bits and is_aligned == aligned:
                    var groups = call.rows
                    if has_float_scales(call.format):
                        groups = block_of(call.format).row_blocks(call.rows)
                    var threads = FEW_THREADS if groups >= MANY_ROWS else THREADS
                    queue.launch[quantize_made[Maker, bits, aligned]](
                        Grid(groups, threads=threads),
                        maker,
                        device_pointer[DType.uint32](call.codes),
                        device_pointer[DType.uint8](call.scales),
                        Int64(call.tensor_scales),
                        Int64(call.rows),
                        Int64(call.k),
                        Int32(call.format),
                        carry_of(call.format, call.rounding),
                    )
