"""Codes of four, six and eight bits, packed densely as `formats` pictures, and taken apart.

Four codes of six bits are three bytes, which no vector is made of: they are words of 24 bits, of
which four bytes of codes are made, and the other way around:

    bits of a packed word    0 .. 5    6 .. 11    12 .. 17    18 .. 23
    bits of a spread word    0 .. 5    8 .. 13    16 .. 21    24 .. 29
"""

from std.bit import next_power_of_two
from std.memory import bitcast
from std.utils import IndexList

comptime ROOM[count: Int] = next_power_of_two(count)
"""Bytes of the vector that holds `count` bytes, of which those behind are zero or do not matter."""


@always_inline
def spread_sixes[width: SIMDLength](words: SIMD[DType.uint32, width]) -> SIMD[DType.uint32, width]:
    """Returns words of four codes, a byte each, from those in 24 bits; bits above do not matter."""
    return (
        (words & 0x3F)
        | ((words << 2) & 0x3F00)
        | ((words << 4) & 0x3F0000)
        | ((words << 6) & 0x3F000000)
    )


@always_inline
def join_sixes[width: SIMDLength](words: SIMD[DType.uint32, width]) -> SIMD[DType.uint32, width]:
    """Returns 24 bits of four codes, from words that have a byte for each."""
    return (
        (words & 0x3F)
        | ((words >> 2) & 0xFC0)
        | ((words >> 4) & 0x3F000)
        | ((words >> 6) & 0xFC0000)
    )


@always_inline
def pack[
    bits: Int, count: Int
](codes: SIMD[DType.uint8, count]) -> SIMD[DType.uint8, ROOM[count * bits // 8]]:
    """Packs codes, a byte each, that have nothing above their bits."""
    comptime Packed = SIMD[DType.uint8, ROOM[count * bits // 8]]
    comptime if bits == 8:
        return rebind[Packed](codes)
    elif bits == 6:
        var words = join_sixes(bitcast[DType.uint32, count // 4](codes))
        var bytes = bitcast[DType.uint8, count](words).shuffle[_close_up[count]()]()
        return rebind[Packed](bytes)
    else:
        comptime assert bits == 4, "codes of four, six or eight bits"
        var pairs = bitcast[DType.uint16, count // 2](codes)
        return rebind[Packed]((pairs | (pairs >> 4)).cast[DType.uint8]())


@always_inline
def unpack[
    bits: Int, count: Int
](bytes: SIMD[DType.uint8, ROOM[count * bits // 8]]) -> SIMD[DType.uint8, count]:
    """Returns packed codes, a byte each."""
    comptime Codes = SIMD[DType.uint8, count]
    comptime if bits == 8:
        return rebind[Codes](bytes)
    elif bits == 6:
        var words = rebind[Codes](bytes).shuffle[_open_up[count]()]()
        return bitcast[DType.uint8, count](spread_sixes(bitcast[DType.uint32, count // 4](words)))
    else:
        comptime assert bits == 4, "codes of four, six or eight bits"
        return rebind[Codes]((bytes & 0xF).interleave(bytes >> 4))


def _open_up[count: Int]() -> IndexList[count]:
    """Returns which byte goes where, for three bytes to become the lower ones of four."""
    var source = IndexList[count]()
    for i in range(count):
        source[i] = i // 4 * 3 + min(i % 4, 2)
    return source


def _close_up[count: Int]() -> IndexList[count]:
    """Returns which byte goes where, for the upper one of four to be left out.

    Those are zero, and fill the end.
    """
    var source = IndexList[count]()
    for i in range(count):
        source[i] = i // 3 * 4 + i % 3 if i < count // 4 * 3 else 3
    return source
