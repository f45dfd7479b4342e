"""The codec of a GPU thread, run on the CPU: the bits of `numbers` for every element.

Elements are picked at run time, as the portable kernel picks them. The domains are whole: every
code, every bfloat16 under every scale that its block may have, every float16 and every float32
that lies between two neighbouring bfloat16s under some.
"""

from std.math import iota, isnan
from std.memory import bitcast
from std.testing import assert_equal, assert_true

from mojo_kernels.numbers.decode import decode
from mojo_kernels.numbers.elements import Element
from mojo_kernels.numbers.encode import encode, encode_over as encode_over_on_cpu
from mojo_kernels.numbers.floats import F32_MANTISSA_BITS, FloatBits
from mojo_kernels.numbers.formats import FORMATS, Format
from mojo_kernels.numbers.rounding import Rounding, scale_from_amax
from mojo_kernels.numbers.scales import E8M0_NAN, FLOAT32_NAN, Scale
from mojo_kernels.simt.arguments import carry_of
from mojo_kernels.simt.codec import ANY_BITS, Chunk, ChunkWords, Codes, decode_chunk
from mojo_kernels.simt.codec import (
    element_of,
    encode_chunk,
    pack,
    rounded_over,
    rounded_values,
    scale_of_magnitude,
    unpack,
)
from mojo_kernels.simt.encode import Divisor, encoded, encoded_over
from mojo_kernels.simt.host import CHUNK

comptime ELEMENTS = _formats_of_all_elements()
"""Positions of formats, one for each element: those with bytes as scales."""
comptime BF16_INFINITY = 0x7F80
comptime F16_INFINITY = 0x7C00
comptime F32_PER_BF16 = 1 << 16
comptime ALL_CODES = 36
"""So many scales above its own, a number is zero in every format."""
comptime LARGE_SCALES = [200, 252, 253, 254]
"""Some of those, and the largest, whose inverse is no regular float32."""


def _formats_of_all_elements() -> List[Int]:
    var found = List[Int]()
    comptime for i in range(len(FORMATS)):
        comptime if FORMATS[i].scale == Scale.E8M0:
            found.append(i)
    return found^


def widened[dtype: DType](first: Int) -> Chunk:
    """Returns neighbours of a 16-bit type, from the bits of the first one on."""
    var bits = iota[DType.uint16, CHUNK](UInt16(first))
    return bitcast[dtype, CHUNK](bits).cast[DType.float32]()


def same_bits(got: Chunk, expected: Chunk) -> Bool:
    """Says whether numbers have the same bits; any NaN is as good as another."""
    var differ = bitcast[DType.uint32, CHUNK](got).ne(bitcast[DType.uint32, CHUNK](expected))
    return not (differ & ~(isnan(got) & isnan(expected))).reduce_or()


def scales_of[known: Element](amax: Float32) -> Tuple[Int, Int]:
    """Returns the smallest and the largest scale that a rule gives a block maximum."""
    var bits = bitcast[DType.uint32](amax)
    var low, high = 255, 0
    for rule in range(Rounding.COUNT):
        var carry = UInt32(Rounding(rule).carry[F32_MANTISSA_BITS, known]())
        var scale = Int(scale_from_amax[F32_MANTISSA_BITS, element=known](bits, carry))
        low, high = min(low, scale), max(high, scale)
    return low, high


def assert_chunk[known: Element, narrow: Bool](x: Chunk, scale: Int, element: Element) raises:
    """Compares codes and values of both signs with those of the CPU."""
    comptime MASK = UInt32((1 << known.bits) - 1)
    for sign in range(2):
        var signed = -x if sign else x
        var bits = FloatBits[DType.float32].of(signed)
        var expected = encode[known, DType.float32](bits, UInt32(scale))
        var codes = encode_chunk[narrow](signed, UInt32(scale), element)
        assert_true(codes.eq(expected.cast[DType.uint32]()).reduce_and(), "another code")
        assert_equal(unpack[known.bits](pack[known.bits](codes)) & MASK, codes)
        var packed = encoded[known.bits, narrow](signed, UInt32(scale), element)
        assert_equal(unpack[known.bits](packed) & MASK, codes)
        var values = decode[known](codes)
        var rounded = rounded_values(signed, UInt32(scale), element)
        assert_true(rounded.eq(values).reduce_and(), "another value")


def test_every_code_decodes_to_the_same_number() raises:
    comptime for i in ELEMENTS:
        comptime known = FORMATS[i].element
        var element = element_of[ANY_BITS](Int32(i))
        for first in range(0, 1 << known.bits, CHUNK):
            var codes = iota[DType.uint32, CHUNK](UInt32(first))
            # What lies above a code does not matter.
            var dirty = codes | UInt32(0xABC << known.bits)
            assert_true(same_bits(decode_chunk(dirty, element), decode[known](codes)), "a number")


def test_every_rule_gives_every_bfloat16_the_same_scale() raises:
    comptime for i in ELEMENTS:
        comptime known = FORMATS[i].element
        var element = element_of[ANY_BITS](Int32(i))
        for rule in range(Rounding.COUNT):
            var carry = UInt16(Rounding(rule).carry[7, known]())
            var wide_carry = carry_of(i, Rounding(rule))
            for bits in range(BF16_INFINITY):
                var expected = scale_from_amax[7, element=known](UInt16(bits), carry)
                var got = scale_of_magnitude(UInt32(bits) << 16, wide_carry, element)
                assert_equal(Int(got), Int(expected))
            for bits in range(BF16_INFINITY, 1 << 15):
                var got = scale_of_magnitude(UInt32(bits) << 16, wide_carry, element)
                assert_equal(Int(got), E8M0_NAN)


def test_every_bfloat16_under_its_scales_has_the_same_code() raises:
    comptime for i in ELEMENTS:
        comptime known = FORMATS[i].element
        var element = element_of[ANY_BITS](Int32(i))
        for first in range(0, BF16_INFINITY, CHUNK):
            var x = widened[DType.bfloat16](first)
            var low = scales_of[known](x[CHUNK - 1])[0]
            for scale in range(low, min(low + ALL_CODES, E8M0_NAN)):
                assert_chunk[known, True](x, scale, element)
            for scale in materialize[LARGE_SCALES]():
                assert_chunk[known, True](x, max(low, scale), element)


def test_every_float16_under_its_scales_has_the_same_code() raises:
    comptime for i in ELEMENTS:
        comptime known = FORMATS[i].element
        var element = element_of[ANY_BITS](Int32(i))
        var high = scales_of[known](Float32(65504))[1]
        for first in range(0, F16_INFINITY, CHUNK):
            var x = widened[DType.float16](first)
            var low = scales_of[known](x[CHUNK - 1])[0]
            for scale in range(low, high + 1):
                assert_chunk[known, True](x, scale, element)


def _is_telling(exponent_field: Int) -> Bool:
    """Says whether an octave is tried: the smallest, the largest, and some between."""
    return exponent_field < 40 or exponent_field > 250 or exponent_field % 16 == 0


def test_float32s_around_every_turn_have_the_same_code() raises:
    """A bfloat16 and its neighbours in float32, under the scales of its octave."""
    comptime NEAR = SIMD[DType.uint32, CHUNK](0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF)
    comptime for i in ELEMENTS:
        comptime known = FORMATS[i].element
        var element = element_of[ANY_BITS](Int32(i))
        for upper in range(BF16_INFINITY):
            if not _is_telling(upper >> 7):
                continue
            var x = bitcast[DType.float32, CHUNK](Codes(UInt32(upper * F32_PER_BF16)) + NEAR)
            var low, high = scales_of[known](x[CHUNK - 1])
            for scale in range(low, min(high + ALL_CODES, E8M0_NAN)):
                assert_chunk[known, False](x, scale, element)


def test_every_bfloat16_under_float_scales_has_the_same_code() raises:
    comptime for format in [Format.FP8, Format.FP8_E5M2]:
        comptime known = format.element
        comptime code = format.code()
        var element = element_of[ANY_BITS](Int32(code))
        for first in range(0, BF16_INFINITY, CHUNK):
            for scale in [Float32(1), Float32(0.0223), Float32(1.2e-35), Float32(7.7e35)]:
                for sign in range(2):
                    var x = widened[DType.bfloat16](first)
                    x = -x if sign else x
                    var divisor = Divisor(scale)
                    var words = encoded_over[8, True](divisor.lifted(x), divisor, element)
                    var codes = unpack[8](words) & 0xFF
                    var expected = encode_over_on_cpu[known](x, scale).cast[DType.uint32]()
                    assert_true(codes.eq(expected).reduce_and(), "another code")
                    var rounded = rounded_over(x, scale, element)
                    assert_true(rounded.eq(decode[known](codes)).reduce_and(), "another value")


def test_a_block_without_a_scale_has_zeros() raises:
    comptime for i in ELEMENTS:
        var element = element_of[ANY_BITS](Int32(i))
        var x = Chunk(-3)
        assert_equal(encode_chunk[True](x, UInt32(E8M0_NAN), element), Codes(0))
        assert_equal(encode_chunk[False](x, UInt32(E8M0_NAN), element), Codes(0))
        assert_equal(abs(rounded_values(x, UInt32(E8M0_NAN), element)), Chunk(0))
        var no_scale = bitcast[DType.float32](UInt32(FLOAT32_NAN))
        assert_equal(encoded_over[8, True](x, Divisor(no_scale), element), ChunkWords[8](0))
        assert_equal(abs(rounded_over(x, no_scale, element)), Chunk(0))


comptime TESTS = __functions_in_module()
