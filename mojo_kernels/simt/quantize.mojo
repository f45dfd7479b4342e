"""Quantize, dequantize and relayout: one thread a chunk of eight elements.

    thread        0     1     2     3      4     5   ...
    elements      0..7  8..15 ..    24..31 32..39
    block         0     0     0     0      1     1

Rows that follow each other without a gap are one long row: no division. Elements of as many bits
share an instance of a kernel, which learns at run time which of them it works on. A block with a
float scale, which may be a row or several, is quantized by a warp; so is a row of E4M3 scales.
"""

from layout import Coord
from max.gpu import block_dim, block_idx, thread_idx
from std.math import ceildiv
from std.memory import bitcast
from std.sys import size_of

from ..calls import DequantizeCall, QuantizeCall, RelayoutCall
from ..launch.grid import Grid
from ..launch.queue import DevicePointer, Queue, device_pointer
from ..layouts import LAYOUTS, OperandLayout, OperandShape, PADDING_SCALE, RUN_BYTES
from ..layouts import code_rows, e4m3_bytes_of, e4m3_offset_in, padded_blocks, scale_rows
from ..numbers.floats import FLOAT_TYPES, round_product_to, round_to
from ..numbers.decode import decode
from ..numbers.elements import Element
from ..numbers.formats import E4M3_BLOCK, FORMATS, Format
from ..numbers.formats import block_of, has_e4m3_scales, has_float_scales
from ..numbers.formats import scale_bytes_of
from ..numbers.rounding import float_scale_from_amax, tensor_scale_from_amax
from ..numbers.scales import Scale
from ..operands import Matrix
from ..problem import ANY, may_be
from .arguments import carry_of
from .codec import (
    BLOCK,
    CHUNK_WORDS,
    Chunk,
    Codes,
    LANES_PER_BLOCK,
    WORD_BITS,
    amax_of_lanes,
    decode_chunk,
    e4m3_scale_of_block,
    element_of,
    encode_chunk,
    encode_over,
    f32_of_scale,
    finite_magnitude_of_chunk,
    magnitude_of_chunk,
    pack,
    scale_of_block,
)
from .host import CHUNK, VECTOR_BYTES
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


@always_inline
def load_chunk[dtype: DType, //, aligned: Bool](x: Matrix[dtype], row: Int, column: Int) -> Chunk:
    """Loads eight neighbours of a row as float32, which is exact."""
    comptime if aligned:
        var values = x.load[width=CHUNK, alignment=VECTOR_BYTES](Coord(row, column))
        return values.cast[DType.float32]()
    else:
        var values = Chunk()
        comptime for i in range(CHUNK):
            values[i] = x[row, column + i].cast[DType.float32]()
        return values


@always_inline
def store_chunk[bits: Int](first: DevicePointer[DType.uint32], chunk: Int, codes: Codes):
    """Stores the codes of a chunk, behind those of the chunks before it."""
    var words = pack[bits](codes)
    comptime WORDS = CHUNK_WORDS[bits]
    comptime if CHUNK * bits == WORDS * WORD_BITS:
        rows_of(first, WORDS).store[alignment=4 * WORDS](Coord(chunk, 0), words)
    else:
        comptime HALVES = CHUNK * bits // 16
        comptime for i in range(HALVES):
            var half = (words[i // 2] >> UInt32(i % 2 * 16)).cast[DType.uint16]()
            rows_of(first.unsafe_bitcast[UInt16](), HALVES)[chunk, i] = half


def quantize_chunks[
    dtype: DType, bits: Int, aligned: Bool
](
    x: DevicePointer[dtype],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    num_chunks: Int64,
    chunks_per_row: Int64,
    row_stride: Int64,
    format: Int32,
    carry: UInt32,
):
    """Quantizes one chunk a thread; four lanes share a block and its scale."""
    # Whole blocks are in or out of range together; lanes outside repeat the last block's.
    var chunk = global_thread()
    var last_block = Int(num_chunks) - LANES_PER_BLOCK
    var in_range = chunk < Int(num_chunks)
    if not in_range:
        chunk = last_block + chunk % LANES_PER_BLOCK

    var row, row_chunk = 0, chunk
    if chunks_per_row != num_chunks:
        row, row_chunk = divmod(chunk, Int(chunks_per_row))
    var values = load_chunk[aligned](rows_of(x, Int(row_stride)), row, row_chunk * CHUNK)

    var element = element_of[bits](format)
    var scale = scale_of_block(values, carry, element)
    if in_range:
        store_chunk[bits](
            codes, chunk, encode_chunk[dtype != DType.float32](values, scale, element)
        )
        if chunk % LANES_PER_BLOCK == 0:
            flat_of(scales)[chunk // LANES_PER_BLOCK] = scale.cast[DType.uint8]()


def quantize_float_blocks[
    dtype: DType, aligned: Bool
](
    x: DevicePointer[dtype],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.float32],
    rows: Int64,
    k: Int64,
    row_stride: Int64,
    format: Int32,
    is_power: UInt32,
):
    """Quantizes one block with a float scale a warp: reads it twice."""
    var warp, lane = divmod(global_thread(), WARP_THREADS)
    var block, chunks_per_row = block_of(Int(format)), Int(k) // CHUNK
    var row_block, k_block = divmod(warp, block.k_blocks(Int(k)))
    if row_block >= block.row_blocks(Int(rows)):
        return
    var first_row = row_block << block.row_bits
    var num_rows = min(Int(rows) - first_row, 1 << block.row_bits)
    var first_chunk = (k_block << block.k_bits) // CHUNK
    var num_chunks = min(chunks_per_row - first_chunk, (1 << block.k_bits) // CHUNK)

    var source = rows_of(x, Int(row_stride))
    var amax = UInt32(0)
    for i in range(lane, num_rows * num_chunks, WARP_THREADS):
        var row, chunk = divmod(i, num_chunks)
        var values = load_chunk[aligned](source, first_row + row, (first_chunk + chunk) * CHUNK)
        amax = max(amax, magnitude_of_chunk(values))
    comptime BITS = 8
    var element = element_of[BITS](format)
    var scale = float_scale_from_amax(amax_of_lanes[LOG2_WARP](amax), element, is_power != 0)
    if lane == 0:
        flat_of(scales)[warp] = scale

    for i in range(lane, num_rows * num_chunks, WARP_THREADS):
        var row, chunk = divmod(i, num_chunks)
        var values = load_chunk[aligned](source, first_row + row, (first_chunk + chunk) * CHUNK)
        var place = (first_row + row) * chunks_per_row + first_chunk + chunk
        store_chunk[BITS](codes, place, encode_over(values, scale, element))


def quantize_e4m3_rows[
    dtype: DType, aligned: Bool
](
    x: DevicePointer[dtype],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    tensor_scales: DevicePointer[DType.float32],
    rows: Int64,
    k: Int64,
    row_stride: Int64,
    are_given: UInt32,
):
    """Quantizes one row with E4M3 scales a warp, under a given tensor scale or its own."""
    var row, lane = divmod(global_thread(), WARP_THREADS)
    if row >= Int(rows):
        return
    var source, num_chunks = rows_of(x, Int(row_stride)), Int(k) // CHUNK
    var tensor_scale: Float32
    if are_given != 0:
        tensor_scale = flat_of(tensor_scales)[row]
    else:
        var amax = UInt32(0)
        for chunk in range(lane, num_chunks, WARP_THREADS):
            var values = load_chunk[aligned](source, row, chunk * CHUNK)
            amax = max(amax, finite_magnitude_of_chunk(values))
        tensor_scale = tensor_scale_from_amax(amax_of_lanes[LOG2_WARP](amax))

    comptime Encoding = Format.NVFP4
    var first_scale = row * Encoding.scale_row_bytes(Int(k))
    for first in range(0, num_chunks, WARP_THREADS):
        # Lanes past the end keep others company: blocks are in range or not.
        var chunk = min(first + lane, num_chunks - 1)
        var values = load_chunk[aligned](source, row, chunk * CHUNK)
        var byte = e4m3_scale_of_block(magnitude_of_chunk(values), tensor_scale)
        var scale = decode[Element.E4M3](byte.cast[DType.uint32]())
        if first + lane < num_chunks:
            var encoded = encode_over(values, scale * tensor_scale, materialize[Encoding.element]())
            store_chunk[Encoding.element.bits](codes, row * num_chunks + chunk, encoded)
            var block, within = divmod(chunk * CHUNK, Encoding.block_k)
            if within == 0:
                flat_of(scales)[first_scale + block] = byte
    if lane < Encoding.scale.row_bytes:
        var bits = bitcast[DType.uint32](tensor_scale) >> UInt32(8 * lane)
        flat_of(scales)[first_scale + Int(k) // Encoding.block_k + lane] = bits.cast[DType.uint8]()


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
    var num_chunks = call.rows * call.k // CHUNK
    queue.launch[quantize_chunks[dtype, bits, aligned]](
        Grid(ceildiv(num_chunks, THREADS), threads=THREADS),
        device_pointer[dtype](call.values),
        device_pointer[DType.uint32](call.codes),
        device_pointer[DType.uint8](call.scales),
        Int64(num_chunks),
        Int64(num_chunks if call.row_stride == call.k else call.k // CHUNK),
        Int64(call.row_stride),
        Int32(call.format),
        carry_of(call.format, call.rounding),
    )


def _quantize_float_blocks[
    dtype: DType, aligned: Bool
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Launches `quantize_float_blocks`."""
    var blocks = scale_bytes_of(call.format, call.rows, call.k) // Scale.FLOAT32.bytes
    queue.launch[quantize_float_blocks[dtype, aligned]](
        Grid(ceildiv(blocks * WARP_THREADS, THREADS), threads=THREADS),
        device_pointer[dtype](call.values),
        device_pointer[DType.uint32](call.codes),
        device_pointer[DType.float32](call.scales),
        Int64(call.rows),
        Int64(call.k),
        Int64(call.row_stride),
        Int32(call.format),
        carry_of(call.format, call.rounding),
    )


def _quantize_e4m3_rows[
    dtype: DType, aligned: Bool
](call: QuantizeCall, mut queue: Some[Queue]) raises:
    """Launches `quantize_e4m3_rows`."""
    queue.launch[quantize_e4m3_rows[dtype, aligned]](
        Grid(ceildiv(call.rows * WARP_THREADS, THREADS), threads=THREADS),
        device_pointer[dtype](call.values),
        device_pointer[DType.uint32](call.codes),
        device_pointer[DType.uint8](call.scales),
        device_pointer[DType.float32](call.tensor_scales),
        Int64(call.rows),
        Int64(call.k),
        Int64(call.row_stride),
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
        var byte = packed.scale(row, row_chunk // LANES_PER_BLOCK)
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
        var scale_row, byte = divmod(global_thread(), Format.NVFP4.scale_row_bytes(shape.k))
        if global_thread() < e4m3_bytes_of[Target](shape.rows, shape.k):
            var element, moved = byte * E4M3_BLOCK, UInt8(0)
            if scale_row < shape.rows:
                moved = flat_of(scales)[e4m3_offset_in[Source](scale_row, element, shape.k)]
            flat_of(scales_out)[e4m3_offset_in[Target](scale_row, element, shape.k)] = moved
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
                comptime HAS_ORDER = (
                    LAYOUTS[i].ORDERS_TENSOR_SCALES or LAYOUTS[j].ORDERS_TENSOR_SCALES
                )
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
