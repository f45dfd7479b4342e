"""Sixteen float sums and one step of each: the instruction under products of floats.

A step takes a word of weights for each lane and one word of activations for all.
What a word holds follows the compile target:

    AVX-512 BF16     two bfloat16    vdpbf16ps: adds the upper product, then the lower
    anything else    one float32     multiply and add

Eight neighbouring elements make four pairs, which is how the nibbles of a word of
four-bit codes come apart. A word of two bfloat16 holds a pair; where it holds one float32,
the upper element of a pair has its step before the lower one:

    pair           0    1    2    3
    lower half     0    1    2    3
    upper half     4    5    6    7

Weights are words of the same kind, whatever their format: twice the numbers that codes stand for.
The product of a bfloat16 and such a number is exact in float32, so only additions round, to nearest even and in the same order everywhere: all targets give the same bits, as long as no product or sum is subnormal, which `vdpbf16ps` takes for 0.
"""

from std.memory import bitcast
from std.sys import CompilationTarget
from std.sys.intrinsics import llvm_intrinsic

from ...numbers.decode import decode
from ...numbers.e2m1 import DOUBLED_VALUES, NUM_CODES
from ...numbers.elements import Element
from ...numbers.formats import E4M3_BLOCK, Format
from ...numbers.scales import Scale
from ..e4m3_scales import E4M3Stretch
from ..encode import E4M3_SCALES
from ..vectors import BLOCK, LANES, STEP_BYTES, Sums, Words, add_exact_product
from ..weights import WeightTiles, four_codes

comptime HAS_PAIRS = CompilationTarget._has_feature["avx512bf16"]()
"""Whether a word is a pair of bfloat16."""
comptime STEPS = BLOCK // 2 if HAS_PAIRS else BLOCK
"""Steps of a block, and words of a block of activations."""
comptime PAIRS = 4
"""Pairs of eight neighbouring elements, and how far apart the elements of a pair are."""
comptime OCTETS = BLOCK // (2 * PAIRS)
"""Eight neighbouring elements, in a block."""
comptime STEPS_PER_OCTET = STEPS // OCTETS
"""Steps of eight neighbouring elements."""

comptime _DOUBLED_BYTES = DOUBLED_VALUES.cast[DType.uint8]()
comptime _DOUBLED_BF16 = DOUBLED_VALUES.cast[DType.bfloat16]()
comptime _DOUBLED_F32 = DOUBLED_VALUES.cast[DType.float32]()


comptime _SCALES[format: Format] = E4M3_SCALES if format.scale == Scale.E4M3 else 0


@fieldwise_init
struct TileBlock[Tiles: WeightTiles](TrivialRegisterPassable):
    """A tile in one block: what its numbers are made from."""

    comptime NUM_SCALES = _SCALES[Self.Tiles.format]
    """Vectors of E4M3 scales."""

    var codes: Self.Tiles.Codes
    var scales: SIMD[DType.float32, max(Self.NUM_SCALES * LANES, 1)]
    """What elements are multiplied by, vector by vector of as many elements."""

    @staticmethod
    @always_inline
    def of(codes: Self.Tiles.Codes, decoded: E4M3Stretch[_], slot: Int, block: Int) -> Self:
        """Takes the codes, and of formats that have such, the scales of a decoded block."""
        var scales = SIMD[DType.float32, max(Self.NUM_SCALES * LANES, 1)](0)
        comptime for i in range(Self.NUM_SCALES):
            var words = decoded.of(slot, block, i)
            scales = scales.insert[offset=i * LANES](bitcast[DType.float32, LANES](words))
        return Self(codes, scales)

    @always_inline
    def words[step: Int](self, tiles: Self.Tiles) -> Words:
        """Returns the words of a step: twice the numbers."""
        var words = weight_words[step](tiles, self.codes)
        comptime if Self.NUM_SCALES > 0:
            comptime first = step * BLOCK // STEPS // E4M3_BLOCK * LANES
            var scales = self.scales.slice[LANES, offset=first]()
            comptime if HAS_PAIRS:
                return (_times(words << 16, scales) >> 16) | _times(words & 0xFFFF0000, scales)
            else:
                return _times(words, scales)
        else:
            return words


@always_inline
def _times(words: Words, scales: Sums) -> Words:
    """Returns the bits of float32 products, of which bfloat16 holds all."""
    return bitcast[DType.uint32, LANES](bitcast[DType.float32, LANES](words) * scales)


@always_inline
def weight_words[Tiles: WeightTiles, //, step: Int](tiles: Tiles, codes: Tiles.Codes) -> Words:
    """Returns the words of a step: twice the elements, from the codes of a tile in one block."""
    comptime octet, step_of_octet = divmod(step, STEPS_PER_OCTET)
    comptime if Tiles.format.element == Element.E2M1:
        var vector = tiles.vector[octet](codes)
        comptime if HAS_PAIRS:
            return _pairs(vector >> UInt32(4 * step_of_octet))
        else:
            return _floats(vector >> UInt32(4 * _element_of[step_of_octet]()))
    else:
        # The lower elements of an octet's pairs are the first four of it.
        comptime if HAS_PAIRS:
            var lower = four_codes[2 * octet](tiles, codes) >> UInt32(8 * step_of_octet)
            var upper = four_codes[2 * octet + 1](tiles, codes) >> UInt32(8 * step_of_octet)
            return (_doubled_bits[Tiles.format.element](lower) >> 16) | (
                _doubled_bits[Tiles.format.element](upper) & 0xFFFF0000
            )
        else:
            comptime half, byte = divmod(_element_of[step_of_octet](), PAIRS)
            var bytes = four_codes[2 * octet + half](tiles, codes) >> UInt32(8 * byte)
            return _doubled_bits[Tiles.format.element](bytes)


def _element_of[step_of_octet: Int]() -> Int:
    """Returns which of eight neighbours has a step of its own: upper elements come first."""
    comptime pair, is_lower = divmod(step_of_octet, 2)
    return pair if is_lower == 1 else pair + PAIRS


@always_inline
def _doubled_bits[element: Element](codes: Words) -> Words:
    """Returns the float32 bits of twice the number in the lowest byte of each word."""
    return bitcast[DType.uint32, LANES](decode[element, doublings=1](codes & 0xFF))


@always_inline
def _pairs(codes: Words) -> Words:
    """Returns pairs of bfloat16 by the lowest nibble of each half of a word."""
    # An index has five bits; the two halves of the table are equal, so the fifth is of no matter.
    comptime TABLE = bitcast[DType.uint16, 2 * NUM_CODES](_DOUBLED_BF16.join(_DOUBLED_BF16))
    comptime Halves = SIMD[DType.uint16, 2 * LANES]
    var pairs = llvm_intrinsic["llvm.x86.avx512.permvar.hi.512", Halves, has_side_effect=False](
        TABLE, bitcast[DType.uint16, 2 * LANES](codes)
    )
    return bitcast[DType.uint32, LANES](pairs)


@always_inline
def _floats(codes: Words) -> Words:
    """Returns the bits of float32 by the lowest nibble of a word."""
    comptime if CompilationTarget.has_avx512f():
        # The bits above the nibble are not looked at.
        var values = llvm_intrinsic["llvm.x86.avx512.permvar.sf.512", Sums, has_side_effect=False](
            _DOUBLED_F32, codes
        )
        return bitcast[DType.uint32, LANES](values)
    else:
        # The upper bytes of a word look up code 0, which is 0.
        var bytes = bitcast[DType.uint8, STEP_BYTES](codes & 0xF)
        var doubled = bitcast[DType.int32, LANES](_DOUBLED_BYTES._dynamic_shuffle(bytes))
        return bitcast[DType.uint32, LANES](((doubled << 24) >> 24).cast[DType.float32]())


@always_inline
def activation_words(x: SIMD[DType.bfloat16, BLOCK]) -> SIMD[DType.uint32, STEPS]:
    """Returns the words of a block of activations, in the order of the steps."""
    comptime Halves = SIMD[DType.uint16, BLOCK // 2]
    var bits = bitcast[DType.uint16, BLOCK](x)
    var lower, upper = Halves(), Halves()
    comptime for octet in range(OCTETS):
        comptime first = 2 * octet * PAIRS
        lower = lower.insert[offset=first // 2](bits.slice[PAIRS, offset=first]())
        upper = upper.insert[offset=first // 2](bits.slice[PAIRS, offset=first + PAIRS]())
    comptime if HAS_PAIRS:
        return rebind[SIMD[DType.uint32, STEPS]](
            bitcast[DType.uint32, BLOCK // 2](lower.interleave(upper))
        )
    else:
        return rebind[SIMD[DType.uint32, STEPS]](upper.interleave(lower).cast[DType.uint32]() << 16)


@always_inline
def add_products(sums: Sums, weights: Words, x: UInt32) -> Sums:
    """Adds the products of one step."""
    comptime if HAS_PAIRS:
        comptime Pairs = SIMD[DType.bfloat16, 2 * LANES]
        return llvm_intrinsic["llvm.x86.avx512bf16.dpbf16ps.512", Sums, has_side_effect=False](
            sums,
            bitcast[DType.bfloat16, 2 * LANES](weights),
            bitcast[DType.bfloat16, 2 * LANES](Words(x)),
        )
    else:
        return add_exact_product(
            bitcast[DType.float32, LANES](weights), Sums(bitcast[DType.float32](x)), sums
        )


@always_inline
def add_products_in_float64(
    sums: SIMD[DType.float64, LANES],
    weights: Words,
    x: UInt32,
    weight_factors: SIMD[DType.float64, LANES],
    factor: Float64,
) -> SIMD[DType.float64, LANES]:
    """Adds the products of one step where float32 might not hold them.

    Weights and activations are each multiplied by a factor of their own first.
    """
    comptime if HAS_PAIRS:
        comptime UPPER = UInt32(0xFFFF0000)
        var upper = _product_in_float64(weights & UPPER, x & UPPER, weight_factors, factor)
        var lower = _product_in_float64(weights << 16, x << 16, weight_factors, factor)
        return sums + upper + lower
    else:
        return sums + _product_in_float64(weights, x, weight_factors, factor)


@always_inline
def _product_in_float64(
    weights: Words, x: UInt32, weight_factors: SIMD[DType.float64, LANES], factor: Float64
) -> SIMD[DType.float64, LANES]:
    var numbers = bitcast[DType.float32, LANES](weights).cast[DType.float64]() * weight_factors
    return numbers * (bitcast[DType.float32](x).cast[DType.float64]() * factor)
