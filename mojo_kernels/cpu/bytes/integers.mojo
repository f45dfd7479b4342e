"""Elements as the integers that a byte dot product multiplies.

    element   integer            unit     largest   unsigned byte of a weight
    E2M1      twice the number   2**-1    12        integer + 12, a shuffle of a nibble
    INT8      the code           2**-6    128       integer + 128, one bit flipped

A tile's codes of one block are `VECTORS` vectors of 64 bytes, four neighbours of each row in one.
Of E2M1 a vector holds the low nibbles of a word, or the high ones: elements two apart.
"""

from std.memory import bitcast

from ...numbers.e2m1 import DOUBLED_VALUES, MAX_DOUBLED
from ...numbers.elements import Element
from ...numbers.formats import Format
from ..vectors import STEP_BYTES, Words
from ..weights import WeightTiles
from .dot import WeightBytes

comptime BLOCK = Format.MXFP4.block_k
"""Elements of a block, which is the same in all formats here."""
comptime VECTORS = BLOCK // 4
"""Vectors of a tile in one block."""

comptime _OFFSET_VALUES = (DOUBLED_VALUES + MAX_DOUBLED).cast[DType.uint8]()
comptime _SIGN_BIT = UInt8(0x80)


def has_integers(format: Format) -> Bool:
    """Says whether a format's elements are small integers."""
    return format.element == Element.E2M1 or format.element.is_integer()


def largest_integer[element: Element]() -> Int:
    """Returns the largest magnitude, and what is added to a weight to make it unsigned."""
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
    else:
        return bitcast[DType.int8, width](codes)


@always_inline
def in_order_of[right: Element](integers: SIMD[DType.int8, BLOCK]) -> SIMD[DType.int8, BLOCK]:
    """Returns a block of the left side in the order of the weights' vectors."""
    comptime if right == Element.E2M1:
        # Of each eight neighbours the even ones first: low nibbles, then high nibbles.
        return integers.shuffle[
            0, 2, 4, 6, 1, 3, 5, 7,
            8, 10, 12, 14, 9, 11, 13, 15,
            16, 18, 20, 22, 17, 19, 21, 23,
            24, 26, 28, 30, 25, 27, 29, 31,
        ]()  # fmt: skip
    else:
        return integers


@always_inline
def weight_bytes[
    Tiles: WeightTiles, //, vector: Int
](tiles: Tiles, codes: Tiles.Codes) -> WeightBytes:
    """Returns vector `vector` of a tile's weights in one block, as unsigned bytes."""
    comptime if Tiles.format.element == Element.E2M1:
        comptime word, is_high = divmod(vector, 2)
        var words = tiles.vector[word](codes)
        return _OFFSET_VALUES._dynamic_shuffle(
            bitcast[DType.uint8, STEP_BYTES](words >> 4 if is_high == 1 else words) & 0xF
        )
    else:
        return bitcast[DType.uint8, STEP_BYTES](tiles.vector[vector](codes)) ^ _SIGN_BIT
