"""Pairs of chunks, sixteen neighbours of a row: loaded, quantized and stored by a thread.

Two lanes share a block of E8M0, one has a block with an E4M3 scale. 16-bit numbers stay as they lie
for what is done by twos: largest magnitudes, and codes of E2M1 of bfloat16.
"""

from layout import Coord
from std.bit import log2_floor
from std.memory import bitcast
from std.sys import is_amd_gpu, is_nvidia_gpu, size_of

from ..launch.queue import DevicePointer
from ..numbers.elements import Element
from ..numbers.floats import FloatBits, round_to
from ..numbers.formats import E4M3_BLOCK, Format
from .codec import (
    BLOCK,
    Chunk,
    ChunkWords,
    WORD_BITS,
    amax_of_lanes,
    finite_magnitude_of_chunk,
    scale_of_magnitude,
)
from .encode import Divisor, e4m3_scale_over, encoded, encoded_over, takes_pairs, word_of_pairs
from .host import CHUNK, VECTOR_BYTES
from .instructions import keep_branch, round_two
from .views import flat_of, rows_of

comptime PAIR = 2 * CHUNK
"""Elements of two chunks, of which a thread has one pair or several."""
comptime LANES_PER_BLOCK = BLOCK // PAIR
"""Lanes that hold a block of E8M0 in pairs."""


@always_inline
def load_pair[dtype: DType, //, aligned: Bool](first: DevicePointer[dtype]) -> SIMD[dtype, PAIR]:
    """Loads sixteen neighbours."""
    comptime alignment = VECTOR_BYTES if aligned else size_of[dtype]()
    return flat_of(first).load[width=PAIR, alignment=alignment](Coord(0))


@always_inline
def floats_of[dtype: DType, //, half: Int](x: SIMD[dtype, PAIR]) -> Chunk:
    """Returns a chunk of a pair as float32, which is exact."""
    return floats_of_chunk(x.slice[CHUNK, offset=half * CHUNK]())


@always_inline
def floats_of_chunk[dtype: DType, //](x: SIMD[dtype, CHUNK]) -> Chunk:
    """Returns a chunk as float32."""
    comptime if dtype == DType.bfloat16:
        # Upper halves as they lie: a conversion moves them twice.
        var words, floats = bitcast[DType.uint32, CHUNK // 2](x), Chunk()
        comptime for i in range(CHUNK // 2):
            floats[2 * i] = bitcast[DType.float32](words[i] << 16)
            floats[2 * i + 1] = bitcast[DType.float32](words[i] & 0xFFFF0000)
        return floats
    else:
        return x.cast[DType.float32]()


@always_inline
def nearest_bfloat16[
    width: SIMDLength
](x: SIMD[DType.float32, width]) -> SIMD[DType.bfloat16, width]:
    """Rounds to bfloat16, to nearest even, subnormals kept; any NaN is one."""
    comptime if is_nvidia_gpu():
        var words = SIMD[DType.uint32, width // 2]()
        comptime for i in range(width // 2):
            words[i] = round_two["bf16x2"](x[2 * i], x[2 * i + 1])
        return bitcast[DType.bfloat16, width](words)
    elif is_amd_gpu():
        # An instruction for two that keeps subnormals.
        return x.cast[DType.bfloat16]()
    else:
        return round_to[DType.bfloat16](x)


@always_inline
def store_pair[
    bits: Int
](first: DevicePointer[DType.uint32], pair: Int, low: ChunkWords[bits], high: ChunkWords[bits]):
    """Stores the codes of a pair, behind those of the pairs before it."""
    comptime WORDS = PAIR * bits // WORD_BITS
    var to = rows_of(first, WORDS)
    comptime if bits == 6:
        to[pair, 0] = low[0]
        to[pair, 1] = low[1] | high[0] << 16
        to[pair, 2] = high[0] >> 16 | high[1] << 16
    else:
        var words = rebind[SIMD[DType.uint32, WORDS]](low.join(high))
        to.store[alignment=4 * WORDS](Coord(pair, 0), words)


@always_inline
def magnitude_of[dtype: DType, width: SIMDLength, //](x: SIMD[dtype, width]) -> UInt32:
    """Returns the float32 bits of the largest magnitude: of 16-bit types from halves of words."""
    comptime if size_of[dtype]() == 2:
        var bits = (bitcast[DType.uint16, width](x) & 0x7FFF).reduce_max()
        return bitcast[DType.uint32](bitcast[dtype](bits).cast[DType.float32]())
    else:
        var bits = bitcast[DType.uint32, width](x.cast[DType.float32]()) & 0x7FFFFFFF
        return bits.reduce_max()


@always_inline
def encoded_chunk[
    dtype: DType, //, bits: Int
](x: SIMD[dtype, CHUNK], scale: UInt32, element: Element) -> ChunkWords[bits]:
    """Returns the packed codes of a chunk under its block's scale, bfloat16 by twos."""
    comptime if dtype == DType.bfloat16 and bits == Element.E2M1.bits and is_nvidia_gpu():
        if takes_pairs(scale):
            return ChunkWords[bits](word_of_pairs(bitcast[DType.uint32, CHUNK // 2](x), scale))
        keep_branch()
    return encoded[bits, dtype != DType.float32](floats_of_chunk(x), scale, element)


@always_inline
def quantize_pair[
    dtype: DType, //, bits: Int
](
    x: SIMD[dtype, PAIR],
    codes: DevicePointer[DType.uint32],
    scales: DevicePointer[DType.uint8],
    pair: Int,
    in_range: Bool,
    carry: UInt32,
    element: Element,
):
    """Quantizes and stores a pair, whose block's scale is E8M0; all lanes of the warp call it."""
    var amax = amax_of_lanes[log2_floor(LANES_PER_BLOCK)](magnitude_of(x))
    var scale = scale_of_magnitude(amax, carry, element)
    var low = encoded_chunk[bits](x.slice[CHUNK](), scale, element)
    var high = encoded_chunk[bits](x.slice[CHUNK, offset=CHUNK](), scale, element)
    if in_range:
        store_pair[bits](codes, pair, low, high)
        if pair % LANES_PER_BLOCK == 0:
            flat_of(scales)[pair // LANES_PER_BLOCK] = scale.cast[DType.uint8]()


@always_inline
def encode_pair[
    dtype: DType, //, bits: Int
](
    codes: DevicePointer[DType.uint32],
    pair: Int,
    x: SIMD[dtype, PAIR],
    scale: Divisor,
    element: Element,
):
    """Encodes a pair under a float scale and stores it."""
    comptime narrow = dtype != DType.float32
    var lifted = scale.lifted(x)
    var low = encoded_over[bits, narrow](floats_of[0](lifted), scale, element)
    var high = encoded_over[bits, narrow](floats_of[1](lifted), scale, element)
    store_pair[bits](codes, pair, low, high)


@always_inline
def finite_magnitude_of[dtype: DType, //](x: SIMD[dtype, PAIR]) -> UInt32:
    """Returns the float32 bits of the largest magnitude of those that are finite, 0 for none."""
    var amax = magnitude_of(x)
    if amax >= UInt32(FloatBits[DType.float32].NOT_FINITE):
        keep_branch()
        amax = finite_magnitude_of_chunk(floats_of[0](x))
        amax = max(amax, finite_magnitude_of_chunk(floats_of[1](x)))
    return amax


@always_inline
def store_e4m3_scale[
    dtype: DType, //
](scales: DevicePointer[DType.uint8], at: Int, x: SIMD[dtype, PAIR], six: Divisor) -> Float32:
    """Stores the E4M3 scale of a pair, which is a block, under six tensor scales; returns it."""
    comptime assert PAIR == E4M3_BLOCK, "a pair is a block"
    var byte, scale = e4m3_scale_over(magnitude_of(x), six)
    flat_of(scales)[at] = byte
    return scale


@always_inline
def encode_e4m3_block[
    dtype: DType, //
](codes: DevicePointer[DType.uint32], place: Int, x: SIMD[dtype, PAIR], scale: Float32):
    """Encodes a pair under any product of an E4M3 scale and a tensor scale."""
    comptime Encoding = Format.NVFP4
    comptime element = Encoding.element
    encode_pair[element.bits](codes, place, x, Divisor(scale), materialize[element]())
