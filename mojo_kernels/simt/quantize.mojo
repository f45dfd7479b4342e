"""Quantize, dequantize and relayout.

To quantize, a thread has a pair of chunks of eight elements, or several:

    thread        0      1       2       3    ...
    elements      0..15  16..31  32..47  48..63
    block         0      0       1       1

Rows that follow each other without a gap are one long row: no division. Elements of as many bits
share an instance of a kernel, which learns at run time which of them it works on. A block with a
float scale, which may be a row or several, is quantized by some lanes, a warp or a group; so is a row
of E4M3 scales. These read all twice: the second time it is near.
"""

from layout import Coord
from max.gpu import block_dim, block_idx, thread_idx
from max.gpu.primitives.warp import shuffle_xor
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of

from ..calls import DequantizeCall, QuantizeCall, RelayoutCall
from ..launch.grid import Grid
from ..launch.queue import DevicePointer, KernelStruct, Queue, device_pointer
from ..layouts import LAYOUTS, OperandLayout, OperandShape, PADDING_SCALE, RUN_BYTES
from ..layouts import code_rows, e4m3_bytes_of, e4m3_offset_in, e4m3_place, e4m3_row_bytes
from ..layouts import element_of_e4m3, padded_blocks, scale_rows
from ..numbers.floats import FLOAT_TYPES, FloatBits, round_product_to, round_to
from ..numbers.formats import FORMATS, Format
from ..numbers.formats import block_of, has_e4m3_scales, has_float_scales
from ..numbers.formats import scale_bytes_of
from ..numbers.rounding import LARGEST_CODE, carry_of, float_scale_from_amax
from ..numbers.rounding import tensor_scale_from_amax
from ..problem import ANY, may_be
from .codec import BLOCK, amax_of_lanes, decode_chunk, element_of, f32_of_scale
from ..tiles import in_shared
from .host import CHUNK, VECTOR_BYTES
from .encode import Divisor
from .instructions import keep_branch
from .pairs import (
    LANES_PER_BLOCK,
    PAIR,
    encode_e4m3_block,
    encode_pair,
    finite_magnitude_of,
    load_pair,
    magnitude_of,
    quantize_pair,
    store_e4m3_scale,
)
from .views import PackedRows, flat_of, rows_of

comptime THREADS = 256
"""Threads of a group."""
comptime WARP_THREADS = 32
"""Threads that share a block with a float scale; wider hardware warps split."""
comptime LOG2_WARP = 5
"""The same, as an exponent."""
comptime CODE_BITS = [4, 6, 8]
"""Bits of a code, of any format: an instance of a kernel each."""


@always_inline
def global_thread() -> Int:
    """Returns the index of this thread in the launch."""
    return Int(block_idx.x) * Int(block_dim.x) + Int(thread_idx.x)


def bits_of(format: Int) raises -> Int:
    """Returns the bits of a code of a format, by its position in `FORMATS`."""
    comptime for i in range(len(FORMATS)):
        comptime bits = FORMATS[i].element.bits
        if format == i:
            return bits
    raise Error(String("unknown format, code ", format))


def may_have_bits(known_format: Int, bits: Int) -> Bool:
    """Says whether codes of a format, or of `ANY` one, may have so many bits."""
    comptime for i in range(len(FORMATS)):
        comptime element_bits = FORMATS[i].element.bits
        if may_be(known_format, i) and element_bits == bits:
            return True
    return False


def quantize_chunks[
    dtype: DType, bits: Int, aligned: Bool
](
    x: DevicePointer[dtype],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    num_pairs: Int64,
    row_pairs: Int64,
    row_stride: Int64,
    format: Int32,
    carry: UInt32,
):
    """Quantizes a pair of chunks a thread; two lanes share a block and its scale."""
    # Whole blocks are in or out of range together; lanes outside repeat the last block's.
    var pair = global_thread()
    var in_range = pair < Int(num_pairs)
    if not in_range:
        pair = Int(num_pairs) - LANES_PER_BLOCK + pair % LANES_PER_BLOCK

    var row, row_pair = 0, pair
    if row_pairs != num_pairs:
        row, row_pair = divmod(pair, Int(row_pairs))
    var values = load_pair[aligned](x.unsafe_offset(row * Int(row_stride) + row_pair * PAIR))
    var element = element_of[bits](format)
    quantize_pair[bits](values, codes, scales, pair, in_range, carry, element)


comptime AT_ONCE = 4
"""Pairs whose loads a thread has on the way."""


@fieldwise_init
struct FloatBlocks(KernelStruct):
    """Blocks of rows, or of parts of rows, and the threads that quantize each by pairs."""

    var rows: UInt32
    var row_pairs: UInt32
    var row_stride: Int
    var row_bits: UInt32
    """Rows of a block, as an exponent."""
    var pair_bits: UInt32
    """Pairs of a row of a block, as an exponent."""
    var k_blocks: UInt32
    """Blocks of a row."""
    var log_lanes: UInt32
    """Threads of a block, as an exponent: some of a warp, a warp, or all of a group."""

    @staticmethod
    def of(call: QuantizeCall) -> Self:
        """Returns those of a call: short rows have a warp each, others a group."""
        comptime MOST_BITS = 31
        var shape, row_pairs = block_of(call.format), call.k // PAIR
        var is_short = shape.row_bits == 0 and row_pairs <= WARP_THREADS * AT_ONCE // 2
        var log_lanes = LOG2_WARP if is_short else log2_floor(THREADS)
        var pair_bits = min(shape.k_bits - log2_floor(PAIR), MOST_BITS)
        if shape.row_bits == 0 and pair_bits < log_lanes:
            log_lanes = pair_bits
        return Self(
            UInt32(call.rows),
            UInt32(row_pairs),
            call.row_stride,
            UInt32(shape.row_bits),
            UInt32(pair_bits),
            UInt32(shape.k_blocks(call.k)),
            UInt32(log_lanes),
        )

    def grid(self) -> Grid:
        """Returns the groups of all blocks."""
        var blocks = ceildiv(Int(self.rows), 1 << Int(self.row_bits)) * Int(self.k_blocks)
        return Grid(ceildiv(blocks << Int(self.log_lanes), THREADS), threads=THREADS)

    @always_inline
    def lane(self) -> UInt32:
        """Returns which of a block's threads this one is."""
        return UInt32(thread_idx.x) & ((UInt32(1) << self.log_lanes) - 1)

    @always_inline
    def block(self) -> UInt32:
        """Returns the block of this thread; no device holds 2**32 of them."""
        var group = UInt32(block_idx.x) << (UInt32(log2_floor(THREADS)) - self.log_lanes)
        return group + (UInt32(thread_idx.x) >> self.log_lanes)

    @always_inline
    def pairs[dtype: DType, //](self, x: DevicePointer[dtype]) -> PairsOfThread[dtype]:
        """Returns the pairs of this thread: below each other, or of one row."""
        var row_block, k_block = self.block(), UInt32(0)
        if self.k_blocks > 1:
            row_block, k_block = divmod(row_block, self.k_blocks)
        var row = (row_block << self.row_bits) + (self.lane() >> self.pair_bits)
        var first_pair = k_block << self.pair_bits
        var pair = first_pair + (self.lane() & ((UInt32(1) << self.pair_bits) - 1))
        var log_step, begin, end = self.log_lanes, pair, first_pair + (1 << self.pair_bits)
        end = min(end, self.row_pairs)
        var step, place_step = PAIR << Int(log_step), 1 << Int(log_step)
        if self.row_bits > 0:
            log_step -= self.pair_bits
            begin, end = row, min(self.rows, (row_block + 1) << self.row_bits)
            step, place_step = self.row_stride << Int(log_step), Int(self.row_pairs) << Int(
                log_step
            )
        var count = (Int32(end - begin) + (1 << Int32(log_step)) - 1) >> Int32(log_step)
        var is_inside = row < self.rows and pair < self.row_pairs
        return PairsOfThread(
            x.unsafe_offset(Int(row) * self.row_stride + Int(pair) * PAIR),
            step,
            Int(row) * Int(self.row_pairs) + Int(pair),
            place_step,
            count if is_inside else 0,
        )

    @always_inline
    def largest(self, amax: UInt32) -> UInt32:
        """Returns the largest of all threads of a block; all of a group call it."""
        comptime FEWEST = log2_floor(Format.FP8_BLOCK.block_k // PAIR)
        var found = amax_of_lanes[FEWEST](amax)
        if self.log_lanes > UInt32(FEWEST):
            comptime for step in range(FEWEST, LOG2_WARP):
                found = max(found, shuffle_xor(found, UInt32(1 << step)))
        if self.log_lanes > UInt32(LOG2_WARP):
            found = amax_of_warps(found)
        return found


@always_inline
def amax_of_warps(amax: UInt32) -> UInt32:
    """Returns the largest of the numbers of the warps of a group, all of whose threads call it."""
    var shared = in_shared[DType.uint32, 1, THREADS // WARP_THREADS]()
    var warp, lane = divmod(UInt32(thread_idx.x), UInt32(WARP_THREADS))
    if lane == 0:
        shared[Int(warp)] = amax
    barrier()
    var largest = shared[0][0]
    comptime for i in range(1, THREADS // WARP_THREADS):
        if i * WARP_THREADS < Int(block_dim.x):
            largest = max(largest, shared[i][0])
    return largest


@fieldwise_init
struct PairsOfThread[dtype: DType](TrivialRegisterPassable):
    """The pairs of a block that a thread has, equally far from each other."""

    var first: DevicePointer[Self.dtype]
    var step: Int
    """Elements from one to the next."""
    var place: Int
    """Of the first, among the pairs of the operand."""
    var place_step: Int
    var count: Int32

    @always_inline
    def load[aligned: Bool](self, index: Int32) -> SIMD[Self.dtype, PAIR]:
        """Loads one of them."""
        return load_pair[aligned](self.first.unsafe_offset(Int(index) * self.step))

    @always_inline
    def magnitude[aligned: Bool](self) -> UInt32:
        """Returns the float32 bits of the largest magnitude of all, several on the way at once.

        What is read again soon is near: nothing is kept.
        """
        var amax = UInt32(0)
        for first in range(Int32(0), self.count, Int32(AT_ONCE)):
            var batch = Array[SIMD[Self.dtype, PAIR], AT_ONCE](uninitialized=True)
            comptime for i in range(AT_ONCE):
                batch[i] = SIMD[Self.dtype, PAIR](0)
                if first + Int32(i) < self.count:
                    batch[i] = self.load[aligned](first + Int32(i))
            comptime for i in range(AT_ONCE):
                amax = max(amax, magnitude_of(batch[i]))
        return amax

    @always_inline
    def finite_magnitude[aligned: Bool](self) -> UInt32:
        """Returns the same of those that are finite, 0 for none."""
        var amax = self.magnitude[aligned]()
        if amax >= UInt32(FloatBits[DType.float32].NOT_FINITE):
            keep_branch()
            amax = 0
            for i in range(self.count):
                amax = max(amax, finite_magnitude_of(self.load[aligned](i)))
        return amax

    @always_inline
    def place_of(self, index: Int32) -> Int:
        """Returns where the codes of one go."""
        return self.place + Int(index) * self.place_step


def quantize_float_blocks[
    dtype: DType, aligned: Bool, is_one_pair: Bool
](
    x: DevicePointer[dtype],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.float32],
    blocks: FloatBlocks,
    format: Int32,
    is_power: UInt32,
):
    """Quantizes blocks with a float scale; threads have several pairs of one, or one at most."""
    comptime BITS = 8
    var pairs, element = blocks.pairs(x), element_of[BITS](format)
    var pair = SIMD[dtype, PAIR](0)
    var amax: UInt32
    comptime if is_one_pair:
        if pairs.count > 0:
            pair = pairs.load[aligned](0)
        amax = magnitude_of(pair)
    else:
        amax = pairs.magnitude[aligned]()
    var scale = float_scale_from_amax(blocks.largest(amax), element, is_power != 0)
    if blocks.lane() == 0 and pairs.count > 0:
        flat_of(scales)[Int(blocks.block())] = scale
    var divisor = Divisor(scale)
    comptime if is_one_pair:
        if pairs.count > 0:
            encode_pair[BITS](codes, pairs.place, pair, divisor, element)
    else:
        for i in range(pairs.count):
            encode_pair[BITS](codes, pairs.place_of(i), pairs.load[aligned](i), divisor, element)


def quantize_e4m3_rows[
    dtype: DType, aligned: Bool
](
    x: DevicePointer[dtype],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    tensor_scales: DevicePointer[DType.float32],
    blocks: FloatBlocks,
    are_given: UInt32,
):
    """Quantizes rows with E4M3 scales under a given tensor scale or their own."""
    comptime Encoding = Format.NVFP4
    var pairs, row, lane = blocks.pairs(x), Int(blocks.block()), Int(blocks.lane())
    var tensor_scale: Float32
    if are_given != 0:
        tensor_scale = flat_of(tensor_scales)[min(row, Int(blocks.rows) - 1)]
    else:
        var amax = pairs.finite_magnitude[aligned]()
        tensor_scale = tensor_scale_from_amax(blocks.largest(amax))

    var row_pairs = Int(blocks.row_pairs)
    var to = scales.unsafe_offset(row * Encoding.scale_row_bytes(row_pairs * PAIR) + lane)
    var six = Divisor(LARGEST_CODE * tensor_scale)
    for i in range(pairs.count):
        var pair = pairs.load[aligned](i)
        var scale = store_e4m3_scale(to, Int(i) * pairs.place_step, pair, six) * tensor_scale
        encode_e4m3_block(codes, pairs.place_of(i), pair, scale)
    if lane < Encoding.scale.row_bytes and row < Int(blocks.rows):
        var bits = bitcast[DType.uint32](tensor_scale) >> UInt32(8 * lane)
        flat_of(to)[row_pairs] = bits.cast[DType.uint8]()


def quantize[
    known_dtype: Int = ANY, known_format: Int = ANY
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes [rows, k] floats into a plain operand."""
    var code_bits = bits_of(call.format)
    comptime for i in range(len(FLOAT_TYPES)):
        comptime for bits in CODE_BITS:
            comptime if may_be(known_dtype, i) and may_have_bits(known_format, bits):
                if call.dtype == i and code_bits == bits:
                    comptime dtype = FLOAT_TYPES[i]
                    var stride_bytes = call.row_stride * size_of[dtype]()
                    if (call.values | stride_bytes) % VECTOR_BYTES == 0:
                        return _quantize[dtype, bits, True](call, queue)
                    return _quantize[dtype, bits, False](call, queue)
    raise Error(String("unknown element type, code ", call.dtype))


def _quantize[
    dtype: DType, bits: Int, aligned: Bool
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Launches an instance of `quantize_chunks`."""
    comptime if bits == 8:
        if has_float_scales(call.format):
            return _quantize_float_blocks[dtype, aligned](call, queue)
    else:
        if has_e4m3_scales(call.format):
            return _quantize_e4m3_rows[dtype, aligned](call, queue)
    var num_pairs = call.rows * call.k // PAIR
    queue.launch[quantize_chunks[dtype, bits, aligned]](
        Grid(ceildiv(num_pairs, THREADS), threads=THREADS),
        device_pointer[dtype](call.values),
        device_pointer[DType.uint32](call.codes),
        device_pointer[DType.uint8](call.scales),
        Int64(num_pairs),
        Int64(num_pairs if call.row_stride == call.k else call.k // PAIR),
        Int64(call.row_stride),
        Int32(call.format),
        carry_of(call.format, call.rounding),
    )


def _quantize_float_blocks[
    dtype: DType, aligned: Bool
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Launches `quantize_float_blocks`."""
    var blocks = FloatBlocks.of(call)
    comptime for is_one_pair in [True, False]:
        if (Int(blocks.log_lanes) < LOG2_WARP) == is_one_pair:
            queue.launch[quantize_float_blocks[dtype, aligned, is_one_pair]](
                blocks.grid(),
                device_pointer[dtype](call.values),
                device_pointer[DType.uint32](call.codes),
                device_pointer[DType.float32](call.scales),
                blocks,
                Int32(call.format),
                carry_of(call.format, call.rounding),
            )


def _quantize_e4m3_rows[
    dtype: DType, aligned: Bool
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Launches `quantize_e4m3_rows`."""
    var blocks = FloatBlocks.of(call)
    queue.launch[quantize_e4m3_rows[dtype, aligned]](
        blocks.grid(),
        device_pointer[dtype](call.values),
        device_pointer[DType.uint32](call.codes),
        device_pointer[DType.uint8](call.scales),
        device_pointer[DType.float32](call.tensor_scales),
        blocks,
        UInt32(1 if call.tensor_scales != 0 else 0),
    )


def dequantize_chunks[
    Layout: OperandLayout, dtype: DType, bits: Int
](
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    output: DevicePointer[dtype],
    rows: Int64,
    k: Int64,
    format: Int32,
):
    """Decodes one chunk a thread; the result is contiguous."""
    var chunk = global_thread()
    var row, row_chunk = divmod(chunk, Int(k) // CHUNK)
    if row >= Int(rows):
        return
    var element = element_of[bits](format)
    var packed = PackedRows[Layout](codes, scales, Int(k))
    var values = decode_chunk(packed.chunk[bits, RUN_BYTES](element, row, row_chunk), element)
    var rounded: SIMD[dtype, CHUNK]
    if has_e4m3_scales(Int(format)):
        values *= packed.e4m3_scale(row, row_chunk * CHUNK)
        rounded = round_product_to[dtype](values, packed.tensor_scale(row))
    elif has_float_scales(Int(format)):
        var scale = packed.float_scale(row, row_chunk * CHUNK, block_of(Int(format)))
        rounded = round_product_to[dtype](values, scale)
    else:
        var byte = packed.scale(row, row_chunk * CHUNK // BLOCK)
        # Exact, for a scale is a power of two.
        rounded = round_to[dtype](values * f32_of_scale(byte.cast[DType.uint32]()))
    rows_of(output, CHUNK).store[alignment=VECTOR_BYTES](Coord(chunk, 0), rounded)


def dequantize[
    known_layout: Int = ANY, known_dtype: Int = ANY, known_format: Int = ANY
](call: DequantizeCall, mut queue: Some[Queue]) raises:
    """Decodes an operand in any layout to contiguous [rows, k] floats."""
    var code_bits = bits_of(call.format)
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(FLOAT_TYPES)):
            comptime for bits in CODE_BITS:
                comptime is_possible = may_be(known_layout, i) and may_be(known_dtype, j)
                comptime if is_possible and may_have_bits(known_format, bits):
                    if call.layout == i and call.dtype == j and code_bits == bits:
                        return _dequantize[LAYOUTS[i], FLOAT_TYPES[j], bits](call, queue)
    raise Error(String("unknown layout or element type, codes ", call.layout, ", ", call.dtype))


def _dequantize[
    Layout: OperandLayout, dtype: DType, bits: Int
](call: DequantizeCall, mut queue: Some[Queue]) raises:
    """Launches an instance of `dequantize_chunks`."""
    queue.launch[dequantize_chunks[Layout, dtype, bits]](
        Grid(ceildiv(call.rows * call.k // CHUNK, THREADS), threads=THREADS),
        device_pointer[DType.uint8](call.codes),
        device_pointer[DType.uint8](call.scales),
        device_pointer[dtype](call.values),
        Int64(call.rows),
        Int64(call.k),
        Int32(call.format),
    )


def relayout_runs[
    Source: OperandLayout, Target: OperandLayout, orders_bytes: Bool
](
    codes: DevicePointer[DType.uint8],
    scales: DevicePointer[DType.uint8],
    codes_out: DevicePointer[DType.uint8],
    scales_out: DevicePointer[DType.uint8],
    rows: Int64,
    k: Int64,
    row_bytes: Int64,
    kept_bytes: Int64,
):
    """Moves one run of codes and one scale a thread, and writes the padding.

    Scales that are floats, or have some behind them, stay in their order: `kept_bytes`; unless a
    layout orders those behind which a tensor scale lies, byte by byte.
    """
    var shape = OperandShape(Int(rows), Int(k))
    var source = PackedRows[Source](codes, scales, shape.k)
    var target = PackedRows[Target](codes_out, scales_out, shape.k)
    var row, run = divmod(global_thread(), Int(row_bytes) // RUN_BYTES)
    if row < code_rows[Target](shape):
        var bytes = SIMD[DType.uint8, RUN_BYTES](0)
        if row < shape.rows:
            bytes = source.load_run(row, run, Int(row_bytes))
        target.store_run(row, run, Int(row_bytes), bytes)

    comptime if orders_bytes:
        var scale_row, index = divmod(global_thread(), e4m3_row_bytes[Target](shape.k))
        if global_thread() < e4m3_bytes_of[Target](shape.rows, shape.k):
            var element, moved = element_of_e4m3[Target](index, shape.k), UInt8(0)
            if scale_row < shape.rows and element >= 0:
                moved = flat_of(scales)[e4m3_offset_in[Source](scale_row, element, shape.k)]
            flat_of(scales_out)[e4m3_place[Target](scale_row, index, shape.k)] = moved
        return
    if kept_bytes > 0:
        if global_thread() < Int(kept_bytes):
            flat_of(scales_out)[global_thread()] = flat_of(scales)[global_thread()]
        return
    var scale_row, block = divmod(global_thread(), padded_blocks[Target](shape.k // BLOCK))
    if scale_row < scale_rows[Target](shape):
        var scale = PADDING_SCALE
        if scale_row < shape.rows and block < shape.k // BLOCK:
            scale = source.scale(scale_row, block)
        target.store_scale(scale_row, block, scale)


def relayout(call: RelayoutCall, mut queue: Some[Queue]) raises:
    """Moves an operand to another layout and writes the target's padding."""
    comptime for i in range(len(LAYOUTS)):
        comptime for j in range(len(LAYOUTS)):
            if call.layout == i and call.layout_out == j:
                comptime HAS_ORDER = (LAYOUTS[i].E4M3_RUN > 0 or LAYOUTS[j].E4M3_RUN > 0)
                comptime if HAS_ORDER:
                    if has_e4m3_scales(call.format):
                        return _relayout[LAYOUTS[i], LAYOUTS[j], True](call, queue)
                return _relayout[LAYOUTS[i], LAYOUTS[j], False](call, queue)
    raise Error(String("unknown layout, codes ", call.layout, ", ", call.layout_out))


def _relayout[
    Source: OperandLayout, Target: OperandLayout, orders_bytes: Bool
](call: RelayoutCall, mut queue: Some[Queue]) raises:
    """Launches an instance of `relayout_runs`."""
    var shape = OperandShape(call.rows, call.k)
    var row_bytes = call.k * bits_of(call.format) // 8
    var num_runs = code_rows[Target](shape) * (row_bytes // RUN_BYTES)
    var num_scales = scale_rows[Target](shape) * padded_blocks[Target](shape.k // BLOCK)
    var kept_bytes = 0
    if has_float_scales(call.format):
        kept_bytes = scale_bytes_of(call.format, call.rows, call.k)
    comptime if orders_bytes:
        kept_bytes = e4m3_bytes_of[Target](call.rows, call.k)
    queue.launch[relayout_runs[Source, Target, orders_bytes]](
        Grid(ceildiv(max(num_runs, num_scales, kept_bytes), THREADS), threads=THREADS),
        device_pointer[DType.uint8](call.codes),
        device_pointer[DType.uint8](call.scales),
        device_pointer[DType.uint8](call.codes_out),
        device_pointer[DType.uint8](call.scales_out),
        Int64(call.rows),
        Int64(call.k),
        Int64(row_bytes),
        Int64(kept_bytes),
    )
