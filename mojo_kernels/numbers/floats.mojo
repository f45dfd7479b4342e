"""Floats as the codecs see them: magnitude bits, which order like the magnitudes themselves.

    source     bits     exponent field      mantissa bits
    bfloat16   uint16   7 .. 14             7
    float32    uint32   23 .. 30            23
    float16    widened to float32, which is exact

Everything works on the bits of the input, never on rounded floats, so no result depends on the
machine's subnormal mode.
"""

from std.memory import bitcast

comptime F32_MANTISSA_BITS = 23
"""Mantissa bits of float32."""
comptime F32_EXPONENT_BIAS = 127
"""Exponent bias of float32, and of bfloat16."""
comptime FLOAT_TYPES = [DType.bfloat16, DType.float16, DType.float32]
"""The types of floats that operations take and give; the position is the code of bindings."""


def float_code(dtype: DType) -> Int:
    """Returns the position of a type in `FLOAT_TYPES`, -1 if it is not there."""
    comptime for i in range(len(FLOAT_TYPES)):
        comptime known = FLOAT_TYPES[i]
        if dtype == known:
            return i
    return -1


struct FloatBits[dtype: DType]:
    """How the encoder sees a source type: unsigned bits that order like magnitudes."""

    comptime bits = DType.uint16 if Self.dtype == DType.bfloat16 else DType.uint32
    """The integer type of the bits."""
    comptime MANTISSA_BITS = 7 if Self.dtype == DType.bfloat16 else F32_MANTISSA_BITS
    """Mantissa bits of the value behind `bits`."""
    comptime SIGN_SHIFT = 15 if Self.dtype == DType.bfloat16 else 31
    """Position of the sign bit."""
    comptime MAGNITUDE = (1 << Self.SIGN_SHIFT) - 1
    """Mask of the magnitude bits."""
    comptime NOT_FINITE = 255 << Self.MANTISSA_BITS
    """The smallest magnitude bits that are infinite or NaN."""

    @staticmethod
    @always_inline
    def of[width: SIMDLength](x: SIMD[Self.dtype, width]) -> SIMD[Self.bits, width]:
        """Returns the bits of `x`; float16 is widened first, which is exact."""
        comptime if Self.dtype == DType.float16:
            return rebind[SIMD[Self.bits, width]](
                bitcast[DType.uint32, width](x.cast[DType.float32]())
            )
        else:
            return bitcast[Self.bits, width](x)


@always_inline
def round_to[dtype: DType, width: SIMDLength](x: SIMD[DType.float32, width]) -> SIMD[dtype, width]:
    """Rounds float32 to an output type, to nearest even, subnormals kept.

    bfloat16 is rounded on the bits: hardware converters flush subnormals.
    """
    comptime if dtype == DType.bfloat16:
        comptime DROPPED = UInt32(16)
        var bits = bitcast[DType.uint32, width](x)
        var lowest_kept = (bits >> DROPPED) & 1
        var rounded = (bits + lowest_kept + 0x7FFF) >> DROPPED
        # A NaN keeps its sign and stays quiet.
        var nan = (bits >> DROPPED) | 0x40
        var is_nan = (bits & 0x7FFFFFFF).gt(0x7F800000)
        var chosen = is_nan.select(nan, rounded).cast[DType.uint16]()
        return bitcast[dtype, width](chosen)
    else:
        return x.cast[dtype]()
