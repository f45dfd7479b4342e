"""One block on the CPU: a SIMD vector of floats to codes and a scale, and back.

The maximum of the magnitude bits gives the scale, and every element is encoded from the same
vector. A block that holds a NaN or an infinity becomes NaN: scale 255, and codes 0.
Of blocks with float scales, which may be larger than a vector, here is the scale; a vector holds
two blocks under E4M3 scales.
"""

from layout import Coord
from std.collections import Array

from ..numbers.decode import decode, decode_scaled
from ..numbers.elements import Element
from ..numbers.encode import divide, encode, encode_over, round_divided
from ..numbers.floats import F32_MANTISSA_BITS, FloatBits
from ..numbers.formats import E4M3_BLOCK, Format
from ..numbers.packing import ROOM, pack, unpack
from ..numbers.rounding import (
    Rounding,
    e4m3_scale_from_amax,
    float_scale_from_amax,
    scale_from_amax,
    tensor_scale_from_amax,
)
from ..numbers.scales import E8M0_NAN, Scale
from ..layouts import OperandLayout, RUN_BYTES
from ..operands import Matrix, Operand
from .vectors import BLOCK


comptime Packed[format: Format] = SIMD[DType.uint8, ROOM[format.block_bytes()]]
"""What holds the packed codes of a block."""


@always_inline
def unpacked[format: Format](bytes: Packed[format]) -> SIMD[DType.uint8, format.block_k]:
    """Returns the codes of a block, a byte each."""
    comptime BITS = format.element.bits
    comptime K = format.block_k
    return unpack[BITS, K](rebind[SIMD[DType.uint8, ROOM[K * BITS // 8]]](bytes))


@always_inline
def packed[format: Format](codes: SIMD[DType.uint8, format.block_k]) -> Packed[format]:
    """Returns the packed codes of a block."""
    return rebind[Packed[format]](pack[format.element.bits, format.block_k](codes))


@fieldwise_init
struct EncodedBlock[format: Format](TrivialRegisterPassable):
    """One encoded block."""

    comptime K = Self.format.block_k

    var codes: SIMD[DType.uint8, Self.K]
    """A byte for each element."""
    var scale: UInt8

    @staticmethod
    @always_inline
    def of_packed(bytes: Packed[Self.format], scale: UInt8) -> Self:
        """Takes the bytes of a plain operand apart."""
        return Self(unpacked[Self.format](bytes), scale)

    @always_inline
    def packed(self) -> Packed[Self.format]:
        """Returns the bytes of the block."""
        return packed[Self.format](self.codes)

    @always_inline
    def any(self) -> Bool:
        """Says whether any element is not zero."""
        comptime element = Self.format.element
        comptime MASK = 255 if element.is_integer() else element.magnitude_mask()
        return (self.codes & UInt8(MASK)).ne(0).reduce_or()

    @always_inline
    def is_nan(self) -> Bool:
        """Says whether the scale makes every element NaN."""
        return Int(self.scale) == E8M0_NAN

    @always_inline
    def values(self) -> SIMD[DType.float32, Self.K]:
        """Returns the elements under their scale."""
        return decode_scaled[Self.format.element](self.codes, self.scale)


@always_inline
def carry_of[format: Format, dtype: DType](rounding: Rounding) -> Scalar[FloatBits[dtype].bits]:
    """Returns what a rule adds to the magnitude bits of floats of a type."""
    comptime source = FloatBits[dtype]
    return Scalar[source.bits](rounding.carry[source.MANTISSA_BITS, format.element]())


@always_inline
def encode_block[
    format: Format, dtype: DType
](x: SIMD[dtype, format.block_k], carry: Scalar[FloatBits[dtype].bits]) -> EncodedBlock[format]:
    """Encodes one block; `carry` is the rounding rule's."""
    comptime source = FloatBits[dtype]
    comptime Bits = SIMD[source.bits, format.block_k]
    var bits = source.of(x)
    var amax = (bits & Bits(source.MAGNITUDE)).reduce_max()
    if amax >= Scalar[source.bits](source.NOT_FINITE):
        return EncodedBlock[format](0, UInt8(E8M0_NAN))

    var scale = scale_from_amax[source.MANTISSA_BITS, element=format.element](amax, carry)
    return EncodedBlock[format](
        encode[format.element, dtype](bits, scale), scale.cast[DType.uint8]()
    )


comptime DIGIT_BITS = 8
"""Bits of a digit of a 16-bit integer."""
comptime Digits = Array[EncodedBlock[Format.MXINT8], 2]
"""A block of 16-bit integers, its high digits and its low ones, under one scale."""


@always_inline
def encode_digits[dtype: DType](x: SIMD[dtype, BLOCK]) -> Digits:
    """Rounds a block to 16-bit integers: an integer is `high * 256 + low`, both signed bytes."""
    comptime source = FloatBits[dtype]
    comptime Bits = SIMD[source.bits, BLOCK]
    comptime WIDENING = UInt32(F32_MANTISSA_BITS - source.MANTISSA_BITS)
    var bits = source.of(x)
    var magnitudes = bits & Bits(source.MAGNITUDE)
    var amax = magnitudes.reduce_max()
    if amax >= Scalar[source.bits](source.NOT_FINITE):
        return Digits(fill=EncodedBlock[Format.MXINT8](0, UInt8(E8M0_NAN)))

    var scale = scale_from_amax[source.MANTISSA_BITS, element=Element.INT16](amax, 0)
    var wide = magnitudes.cast[DType.uint32]() << WIDENING
    var divided = divide[Element.INT16](wide, scale.cast[DType.uint32]())
    var units = round_divided[Element.INT16](divided).cast[DType.int16]()
    var integers = bits.gt(Bits(source.MAGNITUDE)).select(-units, units)
    var low = (integers << DIGIT_BITS) >> DIGIT_BITS
    var high = (integers - low) >> DIGIT_BITS
    var digits = Digits(uninitialized=True)
    comptime Codes = SIMD[DType.uint8, Format.MXINT8.block_k]
    digits[0] = EncodedBlock[Format.MXINT8](
        rebind[Codes](high.cast[DType.uint8]()), scale.cast[DType.uint8]()
    )
    digits[1] = EncodedBlock[Format.MXINT8](
        rebind[Codes](low.cast[DType.uint8]()), scale.cast[DType.uint8]()
    )
    return digits^


comptime E4M3_SCALES = BLOCK // E4M3_BLOCK
"""E4M3 scales of a block of the CPU's kernels."""
comptime E4M3Scales = SIMD[DType.uint8, E4M3_SCALES]


@fieldwise_init
struct FloatScaledBlock[format: Format](TrivialRegisterPassable):
    """`BLOCK` elements under a float scale, or under E4M3 scales and a tensor scale."""

    var codes: SIMD[DType.uint8, Self.format.block_k]
    """A byte for each element."""
    var scales: E4M3Scales
    """Where the format has such."""

    @staticmethod
    @always_inline
    def of(x: SIMD[DType.float32, Self.format.block_k], scale: Float32) -> Self:
        """Encodes floats under a float scale, or a tensor scale."""
        comptime Codes = SIMD[DType.uint8, Self.format.block_k]
        comptime element = Self.format.element
        comptime if Self.format.scale != Scale.E4M3:
            return Self(encode_over[element](x, scale), 0)
        else:
            comptime HALF = SIMD[DType.uint32, E4M3_BLOCK]
            var codes, scales = Codes(0), E4M3Scales(0)
            comptime for i in range(E4M3_SCALES):
                var part = x.slice[E4M3_BLOCK, offset=i * E4M3_BLOCK]()
                var magnitudes = FloatBits[DType.float32].of(part) & HALF(
                    FloatBits[DType.float32].MAGNITUDE
                )
                scales[i] = e4m3_scale_from_amax(magnitudes.reduce_max(), scale)
                var number = decode[Element.E4M3](scales[i].cast[DType.uint32]())
                var part_codes = encode_over[element](part, number * scale)
                codes = codes.insert[offset=i * E4M3_BLOCK](part_codes)
            return Self(codes, scales)

    @always_inline
    def numbers(self) -> SIMD[DType.float32, Self.format.block_k]:
        """Returns the numbers that the float scale multiplies, exact."""
        var numbers = decode[Self.format.element](self.codes.cast[DType.uint32]())
        comptime if Self.format.scale == Scale.E4M3:
            var scales = decode[Element.E4M3](self.scales.cast[DType.uint32]())
            comptime for i in range(E4M3_SCALES):
                var part = numbers.slice[E4M3_BLOCK, offset=i * E4M3_BLOCK]() * scales[i]
                numbers = numbers.insert[offset=i * E4M3_BLOCK](part)
        return numbers


@always_inline
def packed_block[
    Layout: OperandLayout, format: Format
](operand: Operand[Layout, format], row: Int, block: Int) -> Packed[format]:
    """Loads the codes of a block of a row, from any layout."""
    comptime BYTES = format.block_bytes()
    var bytes = Packed[format](0)
    comptime for byte in range(0, BYTES, RUN_BYTES):
        bytes = bytes.insert[offset=byte](operand.codes_of[RUN_BYTES](row, block * BYTES + byte))
    return bytes


@always_inline
def float_scaled_block[
    Layout: OperandLayout, format: Format
](operand: Operand[Layout, format], row: Int, block: Int) -> FloatScaledBlock[format]:
    """Loads a block of a row, from any layout."""
    var codes = unpacked[format](packed_block(operand, row, block))
    var scales = E4M3Scales(0)
    comptime if format.scale == Scale.E4M3:
        scales = operand.e4m3_scales[E4M3_SCALES](row, block * format.block_k)
    return FloatScaledBlock[format](codes, scales)


@always_inline
def float_scale_of[
    format: Format, dtype: DType
](
    x: Matrix[dtype], first_row: Int, last_row: Int, first: Int, last: Int, rounding: Rounding
) -> Float32:
    """Returns the float scale of some elements of some rows, NaN if one of them is not finite, or
    the tensor scale of those that are."""
    comptime source = FloatBits[dtype]
    comptime Bits = SIMD[source.bits, BLOCK]
    var largest = Bits(0)
    for row in range(first_row, last_row):
        for k in range(first, last, BLOCK):
            var bits = source.of(x.load[width=BLOCK, alignment=1](Coord(row, k)))
            var magnitudes = bits & Bits(source.MAGNITUDE)
            comptime if format.scale == Scale.E4M3:
                var is_finite = magnitudes.lt(Bits(source.NOT_FINITE))
                magnitudes = is_finite.select(magnitudes, Bits(0))
            largest = max(largest, magnitudes)
    var amax = largest.reduce_max().cast[DType.uint32]()
    comptime WIDENING = UInt32(F32_MANTISSA_BITS - source.MANTISSA_BITS)
    comptime if format.scale == Scale.E4M3:
        return tensor_scale_from_amax(amax << WIDENING)
    else:
        return float_scale_from_amax(
            amax << WIDENING, materialize[format.element](), rounding == Rounding.RCEIL
        )
