"""Quantizers of rows that are made on the way, see `row_makers`.

A CTA has a row, or the rows that share a scale. Its threads make pairs of chunks, which they encode
as `simt.quantize` does; where a scale must be known before the first code, they make them twice.
What is read again is near.
"""

from max.gpu import MAX_THREADS_PER_BLOCK_METADATA, block_dim, block_idx, thread_idx
from max.gpu.sync import barrier
from std.bit import log2_floor
from std.memory import bitcast
from std.utils import StaticTuple

from ..calls import GateQuantizeCall, HadamardQuantizeCall, NormQuantizeCall, QuantizeCall
from ..launch.grid import Grid
from ..launch.queue import DevicePointer, Queue, device_pointer
from ..numbers.formats import Format, block_of, has_e4m3_scales, has_float_scales
from ..numbers.norms import Rounds
from ..numbers.rounding import LARGEST_CODE, carry_of, float_scale_from_amax
from ..numbers.rounding import tensor_scale_from_amax
from ..problem import ANY
from ..tiles import in_shared
from .codec import BLOCK, WORD_BITS, amax_of_lanes, element_of
from .encode import Divisor
from .host import BFLOAT16, FLOAT32, VECTOR_BYTES
from .pairs import PAIR, encode_e4m3_block, encode_pair, finite_magnitude_of, magnitude_of
from .pairs import quantize_pair, store_e4m3_scale
from .quantize import CODE_BITS, LOG2_WARP, THREADS, amax_of_warps, bits_of, may_have_bits
from .row_makers import GatedRows, NormedRows, RotatedRows, RowMaker, RowNumbers
from .views import AnyFloats, flat_of

comptime MANY_ROWS = 1024
"""So many rows have few threads each, with more to do between barriers; H200, 2026-11-30."""
comptime FEW_THREADS = 128
"""Threads of one of many rows."""
comptime MOST_ROWS = Format.FP8_BLOCK_2D.block_rows
"""Rows that share a scale."""
comptime RESIDENT_GROUPS = 4
"""CTAs of a multiprocessor: registers of their threads are limited to that."""
comptime MADE = [DType.bfloat16, DType.float32]
"""What kernels make: bfloat16 of bfloat16, on NVIDIA GPUs, or numbers of any type."""


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
    var shape, row_pairs, thread = block_of(Int(format)), k // PAIR, Int(thread_idx.x)
    var threads = Int(block_dim.x)
    var element, first_row = element_of[8](format), Int(block_idx.x) << shape.row_bits
    var pair_bits, k_blocks = shape.k_bits - log2_floor(PAIR), shape.k_blocks(k)
    if shape.row_bits == 0:
        var numbers = maker.begin[aligned](first_row)
        var row_scales = scales.unsafe_offset(first_row * k_blocks)
        var is_part, amax = k_blocks > 1, UInt32(0)
        if not is_part:
            for pair in range(thread, row_pairs, threads):
                amax = max(amax, magnitude_of(maker.pair[aligned](first_row, pair, numbers)))
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
            amax = max(amax, finite_magnitude_of(maker.pair[aligned](row, pair, numbers)))
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


def norm_quantize[
    is_nvidia: Bool = True, known: Int = ANY
](given: NormQuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes rows behind a norm; kernels are those of a `known` format's bits, or of any."""
    var call, norm = given.call, given.norm
    var of_weights = Int(FLOAT32) if norm.weights_are_float else call.dtype
    var aligned = given.is_aligned(VECTOR_BYTES)
    var is_made = is_nvidia and norm.rounds != Rounds.NONE and aligned
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
                _launch[known](maker, call, aligned, queue)


def gate_quantize[
    is_nvidia: Bool = True, known: Int = ANY
](given: GateQuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes hidden numbers of gates and ups, likewise."""
    var call, gate = given.call, given.gate
    var aligned = given.is_aligned(VECTOR_BYTES)
    var is_made = is_nvidia and aligned and Int32(call.dtype) == BFLOAT16
    is_made = is_made and gate.is_usual()
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
                _launch[known](maker, call, aligned, queue)


def hadamard_quantize(given: HadamardQuantizeCall, mut queue: Some[Queue]) raises:
    """Quantizes rows that are rotated within blocks."""
    var call = given.call
    var x = _floats(call.values, call.row_stride, call.dtype)
    var maker = RotatedRows(x, Int32(given.block // PAIR), given.factor())
    _launch[ANY](maker, call, given.is_aligned(VECTOR_BYTES), queue)


def _floats(address: Int, row_stride: Int, dtype: Int) -> AnyFloats:
    return AnyFloats(device_pointer[DType.uint8](address), row_stride, Int32(dtype))


def _launch[
    Maker: RowMaker, //, known: Int
](maker: Maker, call: QuantizeCall, is_aligned: Bool, mut queue: Some[Queue]) raises:
    """Launches an instance of `quantize_made`."""
    var code_bits = bits_of(call.format)
    comptime for bits in CODE_BITS:
        # Unaligned rows are none of bfloat16's kernels'.
        comptime for aligned in [True, False]:
            comptime is_known = may_have_bits(known, bits)
            comptime if is_known and (aligned or Maker.MADE == DType.float32):
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
