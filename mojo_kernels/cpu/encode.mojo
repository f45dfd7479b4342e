"""One block on the CPU: a SIMD vector of floats to codes and a scale, and back.

The maximum of the magnitude bits gives the scale, and every element is encoded from the same
vector. A block that holds a NaN or an infinity becomes NaN: scale 255, and codes 0.
Of blocks with float scales, which may be larger than a vector, here is the scale.
"""

from layout import Coord
from std.memory import bitcast

from ..numbers.decode import decode_scaled
from ..numbers.elements import Element
from ..numbers.encode import encode
from ..numbers.floats import F32_MANTISSA_BITS, FloatBits
from ..numbers.formats import Format
from ..numbers.packing import ROOM, pack, unpack
from ..numbers.rounding import Rounding, float_scale_from_amax, scale_from_amax
from ..numbers.scales import E8M0_NAN
from ..operands import Matrix
from .vectors import BLOCK


@fieldwise_init
struct EncodedBlock[format: Format](TrivialRegisterPassable):
    """One encoded block."""

    comptime K = Self.format.block_k
    comptime Packed = SIMD[DType.uint8, ROOM[Self.format.block_bytes()]]
    """What holds the bytes of a block."""

    var codes: SIMD[DType.uint8, Self.K]
    """A byte for each element."""
    var scale: UInt8

    @staticmethod
    @always_inline
    def of_packed(bytes: Self.Packed, scale: UInt8) -> Self:
        """Takes the bytes of a plain operand apart."""
        comptime BITS = Self.format.element.bits
        return Self(
            unpack[BITS, Self.K](rebind[SIMD[DType.uint8, ROOM[Self.K * BITS // 8]]](bytes)), scale
        )

    @always_inline
    def packed(self) -> Self.Packed:
        """Returns the bytes of the block."""
        return rebind[Self.Packed](pack[Self.format.element.bits, Self.K](self.codes))

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


@always_inline
def float_scale_of[
    element: Element, dtype: DType
](
    x: Matrix[dtype], first_row: Int, last_row: Int, first: Int, last: Int, rounding: Rounding
) -> Float32:
    """Returns the float scale of some elements of some rows, NaN if one of them is not finite."""
    comptime source = FloatBits[dtype]
    comptime Bits = SIMD[source.bits, BLOCK]
    var largest = Bits(0)
    for row in range(first_row, last_row):
        for k in range(first, last, BLOCK):
            var bits = source.of(x.load[width=BLOCK, alignment=1](Coord(row, k)))
            largest = max(largest, bits & Bits(source.MAGNITUDE))
    var amax = largest.reduce_max().cast[DType.uint32]()
    comptime WIDENING = UInt32(F32_MANTISSA_BITS - source.MANTISSA_BITS)
    return float_scale_from_amax(
        amax << WIDENING, materialize[element](), rounding == Rounding.RCEIL
    )
