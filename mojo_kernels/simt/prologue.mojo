"""Quantizers of rows that are made on the way: through a norm, or of gates and ups.

A group of threads has a row, or the rows that share a scale. A norm adds it up first, a warp a
segment, each lane two chunks of it, 256 elements apart:

    lane          0      1      2    ...   31
    first half    0..7   8..15  16..       248..255     t[i] = x[i] + x[i + 256] in a lane,
    second half   256..  264..  272..      504..511     then across lanes, then within the chunk

the order of `numbers.norms`. Then threads make chunks, which they encode as `simt.quantize` does;
where a scale must be known before the first code, they make them twice. Warps are those of NVIDIA
GPUs; on gfx950 a wave is two of them, whose lanes exchange nothing.
"""

from max.gpu import block_idx, thread_idx
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier, s_waitcnt
from std.memory import bitcast
from std.sys import is_amd_gpu

from ..calls import GateQuantizeCall, NormQuantizeCall, QuantizeCall
from ..launch.grid import Grid
from ..launch.queue import DevicePointer, KernelStruct, Queue, device_pointer
from ..numbers.decode import decode
from ..numbers.elements import Element
from ..numbers.floats import round_to
from ..numbers.formats import Format, block_of, has_e4m3_scales, has_float_scales
from ..numbers.gates import Gate
from ..numbers.norms import HALF_SEGMENT, Rounds, SEGMENT, mean_of, reciprocal_of
from ..numbers.rounding import float_scale_from_amax, tensor_scale_from_amax
from ..tiles import in_shared
from .arguments import carry_of
from .codec import (
    Chunk,
    LANES_PER_BLOCK,
    amax_of_lanes,
    e4m3_scale_of_block,
    element_of,
    encode_chunk,
    encode_over,
    finite_magnitude_of_chunk,
    magnitude_of_chunk,
    scale_of_block,
)
from .host import BFLOAT16, CHUNK, FLOAT16, FLOAT32, VECTOR_BYTES, bytes_of
from .quantize import CODE_BITS, LOG2_WARP, THREADS, WARP_THREADS, bits_of, store_chunk
from .views import AnyFloats, flat_of

comptime WARPS = THREADS // WARP_THREADS
comptime MOST_ROWS = Format.FP8_BLOCK_2D.block_rows
"""Rows that share a scale."""


@fieldwise_init
struct RowNumbers(TrivialRegisterPassable):
    """What is subtracted from the numbers of a row, and what multiplies them."""

    var mean: Float32
    var reciprocal: Float32


trait RowMaker(KernelStruct):
    """Makes chunks of rows."""

    def begin[aligned: Bool](self, row: Int) -> RowNumbers:
        """Reads a row; all threads of a group call it."""
        ...

    def chunk[aligned: Bool](self, row: Int, chunk: Int, numbers: RowNumbers) -> Chunk:
        """Returns a chunk of a row, rounded to the type of what is made."""
        ...


@always_inline
def rounded_to(x: Chunk, dtype: Int32) -> Chunk:
    """Rounds numbers to a type of floats, by its position; a NaN may become another one."""
    if dtype == BFLOAT16:
        comptime if is_amd_gpu():
            # An instruction for two that keeps subnormals.
            return x.cast[DType.bfloat16]().cast[DType.float32]()
        return round_to[DType.bfloat16](x).cast[DType.float32]()
    if dtype == FLOAT16:
        return round_to[DType.float16](x).cast[DType.float32]()
    return x


@fieldwise_init
struct GatedRows(RowMaker):
    """Hidden numbers of gates and ups."""

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
    def chunk[aligned: Bool](self, row: Int, chunk: Int, numbers: RowNumbers) -> Chunk:
        comptime ALIGNMENT = CHUNK if aligned else 1
        var gate = Gate.of_word(self.gate, self.limit, self.alpha)
        var first = chunk * CHUNK
        var hidden: Chunk
        if gate.is_interleaved():
            var low = self.gates.load[CHUNK, ALIGNMENT](row, 2 * first)
            var high = self.gates.load[CHUNK, ALIGNMENT](row, 2 * first + CHUNK)
            var gates, ups = Chunk(), Chunk()
            comptime for i in range(CHUNK // 2):
                gates[i], ups[i] = low[2 * i], low[2 * i + 1]
                gates[CHUNK // 2 + i], ups[CHUNK // 2 + i] = high[2 * i], high[2 * i + 1]
            hidden = gate.of(gates, ups)
        else:
            var gates = self.gates.load[CHUNK, ALIGNMENT](row, first)
            if gate.is_there():
                hidden = gate.of(gates, self.ups.load[CHUNK, ALIGNMENT](row, first))
            else:
                hidden = gate.of_sums(gates)
        return rounded_to(hidden, self.gates.dtype)


@fieldwise_init
struct NormedRows(RowMaker):
    """Rows behind a norm."""

    var x: AnyFloats
    var residual: AnyFloats
    """What is added first, if `has_residual`."""
    var stream: AnyFloats
    """Where those sums are written."""
    var weight: AnyFloats
    """One row, if `has_weight`."""
    var bias: AnyFloats
    """One row, if `has_bias`."""
    var has_residual: Bool
    var has_weight: Bool
    var has_bias: Bool
    var is_centered: Bool
    var rounds: Int32
    var offset: Float32
    var k: Int
    var eps: Float64
    var inv_k: Float64

    @always_inline
    def begin[aligned: Bool](self, row: Int) -> RowNumbers:
        if self.has_residual:
            for chunk in range(Int(thread_idx.x), self.k // CHUNK, THREADS):
                self._add[aligned](row, chunk)
            # Others read it.
            comptime if is_amd_gpu():
                s_waitcnt[vmcnt=0]()
            barrier()
        var mean = Float32(0)
        if self.is_centered:
            mean = mean_of(self._total[aligned, False](row, 0), self.inv_k)
        var total = self._total[aligned, True](row, mean)
        return RowNumbers(mean, reciprocal_of(total, self.inv_k, self.eps))

    @always_inline
    def chunk[aligned: Bool](self, row: Int, chunk: Int, numbers: RowNumbers) -> Chunk:
        comptime ALIGNMENT = CHUNK if aligned else 1
        var y = self._source[aligned](row, chunk)
        if self.is_centered:
            y -= numbers.mean
        y *= numbers.reciprocal
        if self.rounds == Int32(Rounds.EACH.code):
            y = rounded_to(y, self.x.dtype)
        if self.has_weight:
            var factor = self.weight.load[CHUNK, ALIGNMENT](0, chunk * CHUNK) + self.offset
            if self.has_bias:
                y = y.fma(factor, self.bias.load[CHUNK, ALIGNMENT](0, chunk * CHUNK))
            else:
                y *= factor
        if self.rounds == Int32(Rounds.NONE.code):
            return y
        return rounded_to(y, self.x.dtype)

    @always_inline
    def _source[aligned: Bool](self, row: Int, chunk: Int) -> Chunk:
        """Loads what is normalized."""
        comptime ALIGNMENT = CHUNK if aligned else 1
        if self.has_residual:
            return self.stream.load[CHUNK, ALIGNMENT](row, chunk * CHUNK)
        return self.x.load[CHUNK, ALIGNMENT](row, chunk * CHUNK)

    @always_inline
    def _add[aligned: Bool](self, row: Int, chunk: Int):
        comptime ALIGNMENT = CHUNK if aligned else 1
        var x = self.x.load[CHUNK, ALIGNMENT](row, chunk * CHUNK)
        var residual = self.residual.load[CHUNK, ALIGNMENT](row, chunk * CHUNK)
        self.stream.store[CHUNK, ALIGNMENT](row, chunk * CHUNK, x + residual)

    @always_inline
    def _total[aligned: Bool, are_squares: Bool](self, row: Int, mean: Float32) -> Float64:
        """Returns the sum of a row, or of squares; all threads of a group call it."""
        var sums = in_shared[DType.float32, 1, WARPS]()
        var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
        var total, num_chunks = Float64(0), self.k // CHUNK
        comptime SEGMENT_CHUNKS, HALF_CHUNKS = SEGMENT // CHUNK, HALF_SEGMENT // CHUNK
        for first in range(0, num_chunks, WARPS * SEGMENT_CHUNKS):
            var chunk = first + warp * SEGMENT_CHUNKS + lane
            var a, b = Chunk(0), Chunk(0)
            if chunk < num_chunks:
                a = self._source[aligned](row, chunk)
                comptime if are_squares:
                    a -= mean
            if chunk + HALF_CHUNKS < num_chunks:
                b = self._source[aligned](row, chunk + HALF_CHUNKS)
                comptime if are_squares:
                    b -= mean
            comptime if are_squares:
                a = b.fma(b, a * a)
            else:
                a = a + b
            var sum_of_segment = sum_of_lanes(a, lane)
            if lane == 0:
                sums[warp] = sum_of_segment
            barrier()
            comptime for i in range(WARPS):
                # Zero of segments that there are not.
                total += sums[i][0].cast[DType.float64]()
            barrier()
        return total


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


@always_inline
def amax_of_threads(amax: UInt32) -> UInt32:
    """Returns the largest of all threads of a group, which all call it."""
    var shared = in_shared[DType.uint32, 1, WARPS]()
    var warp, lane = divmod(Int(thread_idx.x), WARP_THREADS)
    var largest = amax_of_lanes[LOG2_WARP](amax)
    if lane == 0:
        shared[warp] = largest
    barrier()
    comptime for i in range(WARPS):
        largest = max(largest, shared[i][0])
    barrier()
    return largest


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
    var row, num_chunks = Int(block_idx.x), Int(k) // CHUNK
    var numbers, element = maker.begin[aligned](row), element_of[bits](format)
    for first in range(0, num_chunks, THREADS):
        # Whole blocks are in or out of range together; lanes outside repeat the last block's.
        var chunk = first + Int(thread_idx.x)
        var in_range = chunk < num_chunks
        if not in_range:
            chunk = num_chunks - LANES_PER_BLOCK + chunk % LANES_PER_BLOCK
        var values = maker.chunk[aligned](row, chunk, numbers)
        var scale = scale_of_block(values, carry, element)
        if in_range:
            var place = row * num_chunks + chunk
            store_chunk[bits](codes, place, encode_chunk[False](values, scale, element))
            if chunk % LANES_PER_BLOCK == 0:
                flat_of(scales)[place // LANES_PER_BLOCK] = scale.cast[DType.uint8]()


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
    """Quantizes blocks with float scales: a warp has one of a part of a row, else all threads."""
    var numbers = in_shared[DType.float32, 2, MOST_ROWS]()
    var block, row_chunks = block_of(Int(format)), k // CHUNK
    var first_row = Int(block_idx.x) << block.row_bits
    var num_rows = min(rows - first_row, 1 << block.row_bits)
    for row in range(num_rows):
        var found = maker.begin[aligned](first_row + row)
        if thread_idx.x == 0:
            numbers[row] = SIMD[DType.float32, 2](found.mean, found.reciprocal)
    barrier()

    var k_blocks, thread, threads = block.k_blocks(k), Int(thread_idx.x), THREADS
    var first_block, step = 0, 1
    var is_shared = num_rows > 1 or k_blocks == 1
    if not is_shared:
        first_block, thread = divmod(thread, WARP_THREADS)
        threads, step = WARP_THREADS, WARPS
    var element = element_of[8](format)
    for k_block in range(first_block, k_blocks, step):
        var first_chunk = (k_block << block.k_bits) // CHUNK
        var num_chunks = min(row_chunks - first_chunk, (1 << block.k_bits) // CHUNK)
        var amax = UInt32(0)
        for i in range(thread, num_rows * num_chunks, threads):
            var row, chunk = divmod(i, num_chunks)
            var known = RowNumbers(numbers[row][0], numbers[row][1])
            var values = maker.chunk[aligned](first_row + row, first_chunk + chunk, known)
            amax = max(amax, magnitude_of_chunk(values))
        if is_shared:
            amax = amax_of_threads(amax)
        else:
            amax = amax_of_lanes[LOG2_WARP](amax)
        var scale = float_scale_from_amax(amax, element, is_power != 0)
        if thread == 0:
            flat_of(scales)[Int(block_idx.x) * k_blocks + k_block] = scale
        for i in range(thread, num_rows * num_chunks, threads):
            var row, chunk = divmod(i, num_chunks)
            var known = RowNumbers(numbers[row][0], numbers[row][1])
            var values = maker.chunk[aligned](first_row + row, first_chunk + chunk, known)
            var place = (first_row + row) * row_chunks + first_chunk + chunk
            store_chunk[8](codes, place, encode_over(values, scale, element))


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
    var row, num_chunks, thread = Int(block_idx.x), k // CHUNK, Int(thread_idx.x)
    var numbers = maker.begin[aligned](row)
    var tensor_scale: Float32
    if tensor_scales != 0:
        tensor_scale = flat_of(device_pointer[DType.float32](tensor_scales))[row]
    else:
        var amax = UInt32(0)
        for chunk in range(thread, num_chunks, THREADS):
            var values = maker.chunk[aligned](row, chunk, numbers)
            amax = max(amax, finite_magnitude_of_chunk(values))
        tensor_scale = tensor_scale_from_amax(amax_of_threads(amax))

    var first_scale = row * Encoding.scale_row_bytes(k)
    for first in range(0, num_chunks, THREADS):
        # Lanes past the end keep others company: blocks are in range or not.
        var chunk = min(first + thread, num_chunks - 1)
        var values = maker.chunk[aligned](row, chunk, numbers)
        var byte = e4m3_scale_of_block(magnitude_of_chunk(values), tensor_scale)
        var scale = decode[Element.E4M3](byte.cast[DType.uint32]())
        if first + thread < num_chunks:
            var encoded = encode_over(values, scale * tensor_scale, materialize[Encoding.element]())
            store_chunk[Encoding.element.bits](codes, row * num_chunks + chunk, encoded)
            var block, within = divmod(chunk * CHUNK, Encoding.block_k)
            if within == 0:
                flat_of(scales)[first_scale + block] = byte
    if thread < Encoding.scale.row_bytes:
        var bits = bitcast[DType.uint32](tensor_scale) >> UInt32(8 * thread)
        flat_of(scales)[first_scale + k // Encoding.block_k + thread] = bits.cast[DType.uint8]()


def norm_quantize(given: NormQuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes rows behind a norm."""
    var call, norm = given.call, given.norm
    var float_bytes = bytes_of(call.dtype)
    var of_weights = Int(FLOAT32) if norm.weights_are_float else call.dtype
    var maker = NormedRows(
        x=_floats(call.values, call.row_stride, call.dtype),
        residual=_floats(norm.residual, norm.residual_stride, call.dtype),
        stream=_floats(norm.stream, call.k, call.dtype),
        weight=_floats(norm.weight, 0, of_weights),
        bias=_floats(norm.bias, 0, of_weights),
        has_residual=norm.residual != 0,
        has_weight=norm.weight != 0,
        has_bias=norm.bias != 0,
        is_centered=norm.is_centered,
        rounds=Int32(norm.rounds.code),
        offset=norm.offset,
        k=call.k,
        eps=norm.eps,
        inv_k=norm.inv_k,
    )
    var all = call.values | call.row_stride * float_bytes | norm.weight | norm.bias
    all |= norm.residual | norm.residual_stride * float_bytes | norm.stream
    _launch(maker, call, all % VECTOR_BYTES == 0, queue)


def gate_quantize(given: GateQuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes hidden numbers of gates and ups."""
    var call, gate = given.call, given.gate
    var maker = GatedRows(
        gates=_floats(call.values, call.row_stride, call.dtype),
        ups=_floats(given.ups, given.up_stride, call.dtype),
        gate=gate.word(),
        limit=gate.limit,
        alpha=gate.alpha,
    )
    var strides = (call.row_stride | given.up_stride) * bytes_of(call.dtype)
    _launch(maker, call, (call.values | given.ups | strides) % VECTOR_BYTES == 0, queue)


def _floats(address: Int, row_stride: Int, dtype: Int) -> AnyFloats:
    return AnyFloats(device_pointer[DType.uint8](address), row_stride, Int32(dtype))


def _launch[
    Maker: RowMaker
](maker: Maker, call: QuantizeCall, is_aligned: Bool, mut queue: Some[Queue]) raises:
    """Launches an instance of `quantize_made`."""
    var code_bits = bits_of(call.format)
    comptime for bits in CODE_BITS:
        comptime for aligned in [True, False]:
            if code_bits == bits and is_aligned == aligned:
                var groups = call.rows
                if has_float_scales(call.format):
                    groups = block_of(call.format).row_blocks(call.rows)
                queue.launch[quantize_made[Maker, bits, aligned]](
                    Grid(groups, threads=THREADS),
                    maker,
                    device_pointer[DType.uint32](call.codes),
                    device_pointer[DType.uint8](call.scales),
                    Int64(call.tensor_scales),
                    Int64(call.rows),
                    Int64(call.k),
                    Int32(call.format),
                    carry_of(call.format, call.rounding),
                )
