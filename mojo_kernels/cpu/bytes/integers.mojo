"""Elements as the integers that a byte dot product multiplies.

    element   integer            unit     largest   unsigned byte of a weight
    E2M1      twice the number   2**-1    12        integer + 12, a shuffle of a nibble
    E2M3      eight times it     2**-3    60        integer + 60, a shuffle or two of a byte
    INT8      the code           2**-6    128       integer + 128, one bit flipped

Of E2M3 the codes below 16 are their integers, and the others with half their mantissa bits dropped.
A tile's codes of one block are `VECTORS` vectors of 64 bytes, four neighbours of each row in one.
Of E2M1 a vector holds the low nibbles of a word, or the high ones: elements two apart.
"""

from std.math import iota
from std.memory import bitcast
from std.sys import CompilationTarget
from std.sys.intrinsics import llvm_intrinsic

from ...numbers.e2m1 import DOUBLED_VALUES, MAX_DOUBLED
from ...numbers.elements import Element
from ...numbers.formats import Format
from ...numbers.packing import spread_sixes
from ...numbers.scales import Scale
from ..encode import E4M3_SCALES
from ..vectors import BLOCK, STEP_BYTES, Words
from ..weights import WeightTiles, four_sixes
from .dot import WeightBytes

comptime VECTORS = BLOCK // 4
"""Vectors of a tile in one block."""

comptime _OFFSET_VALUES = (DOUBLED_VALUES + MAX_DOUBLED).cast[DType.uint8]()
comptime _E2M3_LARGEST = 60
"""The largest number of E2M3 in its units."""
comptime _E2M3_UPPER = SIMD[DType.uint8, 16](
    16, 18, 20, 22, 24, 26, 28, 30, 32, 36, 40, 44, 48, 52, 56, 60
)
"""Magnitudes of the codes from 16 on."""
comptime _SIGN_BIT = UInt8(0x80)


def has_integers(format: Format) -> Bool:
    """Says whether a format's elements are small integers."""
    var element = format.element
    return element == Element.E2M1 or element == Element.E2M3 or element.is_integer()


comptime HAS_LOOK_UPS = CompilationTarget._has_feature["avx512bf16"]()
"""Whether what looks sixteen words up is idle while integers are multiplied; elsewhere a product
of floats is one instruction less. On a Zen 4 such products, decoded, take 1.12 of mxint8's time for
1.30, 2026-11-29."""


@fieldwise_init
struct ScaleProduct(Equatable, TrivialRegisterPassable):
    """How the scales of a row and of columns are multiplied, always exactly."""

    var code: Int

    comptime OF_EXPONENTS = Self(0)
    """Those of one side are powers of two, and none of the other is zero: exponents are added."""
    comptime OF_FLOATS = Self(1)
    comptime LOOKED_UP = Self(2)
    """In the table of a row's scale, see `e4m3_scales`."""
    comptime OF_BYTES = Self(3)
    """Of a few rows it is not: floats are multiplied, those of columns as their bytes stand."""
    comptime BESIDE_BYTES = Self(4)
    """The same rows, where scales of columns are words."""
    comptime BESIDE_POWERS = Self(5)
    """Scales of rows are powers of two: floats are multiplied where those of columns may be zero,
    elsewhere exponents are added."""


@fieldwise_init
struct ScaleKinds(TrivialRegisterPassable):
    """Which sides of a product have E4M3 scales."""

    var left: Bool
    var right: Bool

    @staticmethod
    def of(left: Format, right: Format) -> Self:
        """Returns those of two formats."""
        return Self(left.scale == Scale.E4M3, right.scale == Scale.E4M3)

    def any(self) -> Bool:
        """Says whether a side has such."""
        return self.left or self.right

    def product(self) -> ScaleProduct:
        """Returns how scales are multiplied; those of columns may be zero, of rows they are not."""
        if not self.right:
            return ScaleProduct.OF_EXPONENTS
        if not self.left:
            return ScaleProduct.BESIDE_POWERS
        return ScaleProduct.LOOKED_UP if HAS_LOOK_UPS else ScaleProduct.OF_FLOATS

    def per_block(self) -> Int:
        """Returns the scales of a block of the kernels."""
        return E4M3_SCALES if self.any() else 1


def largest_integer[element: Element]() -> Int:
    """Returns the largest magnitude, and what is added to a weight to make it unsigned."""
    if element == Element.E2M3:
        return _E2M3_LARGEST
    return MAX_DOUBLED if element == Element.E2M1 else element.sign_code()


def unit_shift[element: Element]() -> Int:
    """Returns how many times the unit of the integers is halved from one."""
    return -element.unit_exponent()


@always_inline
def integers_of[
    element: Element, width: SIMDLength
](codes: SIMD[DType.uint8, width]) -> SIMD[DType.int8, width]:
    """Returns the integers of codes, a byte each."""
    comptime if element == Element.E2M1:
        return DOUBLED_VALUES._dynamic_shuffle(codes & 0xF)
    elif element == Element.E2M3:
        var magnitudes = bitcast[DType.int8, width](_magnitudes_of_sixes(codes))
        return (codes & UInt8(element.sign_code())).eq(0).select(magnitudes, -magnitudes)
    else:
        return bitcast[DType.int8, width](codes)


@always_inline
def _magnitudes_of_sixes[
    width: SIMDLength
](codes: SIMD[DType.uint8, width]) -> SIMD[DType.uint8, width]:
    """Returns the magnitudes of E2M3 codes, a byte each, in units."""
    var lower = codes & 0xF
    return (codes & 0x10).eq(0).select(lower, _E2M3_UPPER._dynamic_shuffle(lower))


@always_inline
def _values_of_sixes(codes: Words) -> WeightBytes:
    """Returns four E2M3 codes, in 24 bits of each word, as unsigned bytes."""
    comptime if CompilationTarget._has_feature["avx512vbmi"]():
        comptime UPPER = _E2M3_UPPER + _E2M3_LARGEST
        comptime LOWER = iota[DType.uint8, 16]() + _E2M3_LARGEST
        comptime POSITIVE = LOWER.join(UPPER)
        comptime TABLE = POSITIVE.join(2 * _E2M3_LARGEST - POSITIVE)
        # Eight bits from each place of two words on; what is above a code is no part of an index.
        comptime PLACES = SIMD[DType.uint8, 8](0, 6, 12, 18, 32, 38, 44, 50)
        comptime OF_QUARTER = PLACES.join(PLACES)
        comptime OF_HALF = OF_QUARTER.join(OF_QUARTER)
        var bytes = llvm_intrinsic[
            "llvm.x86.avx512.pmultishift.qb.512", WeightBytes, has_side_effect=False
        ](OF_HALF.join(OF_HALF), bitcast[DType.uint8, STEP_BYTES](codes))
        return llvm_intrinsic["llvm.x86.avx512.permvar.qi.512", WeightBytes, has_side_effect=False](
            TABLE, bytes
        )
    else:
        var bytes = bitcast[DType.uint8, STEP_BYTES](spread_sixes(codes))
        var magnitudes = _magnitudes_of_sixes(bytes)
        comptime SIGN = UInt8(Element.E2M3.sign_code())
        var signed = (bytes & SIGN).eq(0).select(magnitudes, -magnitudes)
        return signed + _E2M3_LARGEST


def place_of(vector: Int) -> Int:
    """Returns where the four bytes for a vector begin: even vectors first, then odd ones."""
    return vector % 2 * (BLOCK // 2) + vector // 2 * 4


@always_inline
def in_order_of[right: Element](codes: SIMD[DType.uint8, BLOCK]) -> SIMD[DType.uint8, BLOCK]:
    """Returns a block of the left side with what each vector of the weights wants in its place."""
    comptime if right == Element.E2M1:
        # Low nibbles are the even elements, high nibbles the odd ones.
        var halves = codes.deinterleave()
        return rebind[SIMD[DType.uint8, BLOCK]](halves[0].join(halves[1]))
    else:
        var quads = bitcast[DType.uint32, BLOCK // 4](codes).deinterleave()
        return bitcast[DType.uint8, BLOCK](quads[0].join(quads[1]))


@always_inline
def _values_of_nibbles(codes: Words) -> WeightBytes:
    """Looks up the lower nibble of each byte."""
    var bytes = bitcast[DType.uint8, STEP_BYTES](codes)
    comptime if CompilationTarget._has_feature["avx512vbmi"]():
        # An index has six bits; the quarters of the table are equal, so two are of no matter.
        comptime HALF = _OFFSET_VALUES.join(_OFFSET_VALUES)
        return llvm_intrinsic["llvm.x86.avx512.permvar.qi.512", WeightBytes, has_side_effect=False](
            HALF.join(HALF), bytes
        )
    else:
        return _OFFSET_VALUES._dynamic_shuffle(bytes & 0xF)


@always_inline
def weight_bytes[
    Tiles: WeightTiles, //, vector: Int
](tiles: Tiles, codes: Tiles.Codes) -> WeightBytes:
    """Returns vector `vector` of a tile's weights in one block, as unsigned bytes."""
    comptime if Tiles.format.element == Element.E2M1:
        comptime word, is_high = divmod(vector, 2)
        var words = tiles.vector[word](codes)
        return _values_of_nibbles(words >> 4 if is_high == 1 else words)
    elif Tiles.format.element == Element.E2M3:
        return _values_of_sixes(four_sixes[vector](tiles, codes))
    else:
        return bitcast[DType.uint8, STEP_BYTES](tiles.vector[vector](codes)) ^ _SIGN_BIT
