"""Sixteen four-byte dot products at once: the instruction under the matmul.

A step multiplies 64 unsigned weight bytes by 64 signed activation bytes and
adds groups of four into 16 lanes. The instructions follow the compile target,
and how large the bytes may be:

    AVX-512 VNNI    vpdpbusd                        accumulates in int32
    AVX2, SSSE3     pmaddubsw, paddw                in int16, if half of a block's products fit
                    pmaddubsw, pmaddwd, paddd       in int32, if two products fit int16
                    pmaddwd of words, paddd         in int32
    ARM64 I8MM      usdot                           accumulates in int32
    ARM64 DotProd   sdot                            in int32, weights that fit int8 as they are
                    eor, sdot                       in int32, others less 128
    anything else   widening multiply and adds      accumulates in int32

None of them saturates, so all give the same integers. Sums in int16 may wrap around on the way:
what the offset adds is taken away again, and the sums of a block fit.
"""

from std.memory import bitcast
from std.sys import CompilationTarget
from std.sys._assembly import inlined_assembly
from std.sys.intrinsics import llvm_intrinsic

from ..vectors import LANES, STEP_BYTES

comptime Lanes = SIMD[DType.int32, LANES]
"""One integer for each weight row."""
comptime Pairs = SIMD[DType.int16, 2 * LANES]
"""Two integers for each weight row."""
comptime WeightBytes = SIMD[DType.uint8, STEP_BYTES]
"""The unsigned factor."""
comptime ActivationBytes = SIMD[DType.int8, STEP_BYTES]
"""The signed factor."""

comptime _HAS_VNNI = CompilationTarget.has_vnni() and CompilationTarget.has_avx512f()
comptime _HAS_AVX2 = CompilationTarget.has_avx2()
comptime _HAS_PMADD = CompilationTarget._has_feature["ssse3"]()
comptime _REGISTER = 32 if _HAS_AVX2 else 16
"""Bytes that one of those takes."""
comptime _HAS_USDOT = CompilationTarget.has_neon_int8_matmul()
comptime _HAS_SDOT = CompilationTarget.has_neon_int8_dotprod() and not _HAS_USDOT


@fieldwise_init
struct Reach(Equatable, TrivialRegisterPassable):
    """The narrowest integers that bytes, their products and sums of those fit."""

    var code: Int

    comptime BLOCK_IN_INT16 = Self(0)
    comptime PAIR_IN_INT16 = Self(1)
    comptime IN_INT32 = Self(2)
    comptime WEIGHT_IN_INT8 = Self(3)

    @staticmethod
    def of(left: Int, right: Int) -> Self:
        """Returns it for integers of some magnitudes, `right` added to those of the weights.

        Where the target makes no use of it, all are one, and their kernels too.
        """
        comptime MAX_INT16 = 32767
        comptime BLOCK = 32
        comptime MAX_INT8 = 127
        if _HAS_VNNI or _HAS_USDOT:
            return Self.IN_INT32
        if _HAS_SDOT:
            return Self.WEIGHT_IN_INT8 if 2 * right <= MAX_INT8 else Self.IN_INT32
        if 2 * left * 2 * right > MAX_INT16:
            return Self.IN_INT32
        # Half of a block's products meet in a half of a lane.
        var is_block_narrow = BLOCK // 2 * left * right <= MAX_INT16
        return Self.BLOCK_IN_INT16 if _HAS_PMADD and is_block_narrow else Self.PAIR_IN_INT16


struct BlockDot[reach: Reach]:
    """The accumulator of a block's dot products."""

    comptime IN_INT16 = Self.reach == Reach.BLOCK_IN_INT16
    comptime IS_OFFSET_UNDONE = _HAS_SDOT and Self.reach != Reach.WEIGHT_IN_INT8
    """Whether `step` takes weights less 128, which is what was added to them."""
    comptime Accumulator = SIMD[
        DType.int16 if Self.IN_INT16 else DType.int32, 2 * LANES if Self.IN_INT16 else LANES
    ]
    """What `step` adds to."""

    @staticmethod
    @always_inline
    def start(correction: Int32) -> Self.Accumulator:
        """Returns an accumulator that holds `correction` in every lane, see `correction_of`."""
        comptime if Self.IN_INT16:
            return rebind[Self.Accumulator](bitcast[DType.int16, 2 * LANES](Lanes(correction)))
        elif Self.IS_OFFSET_UNDONE:
            return Self.Accumulator(0)
        else:
            return rebind[Self.Accumulator](Lanes(correction))

    @staticmethod
    @always_inline
    def step(
        total: Self.Accumulator, weights: WeightBytes, activations: ActivationBytes
    ) -> Self.Accumulator:
        """Adds four products to every lane."""
        comptime if _HAS_VNNI:
            return llvm_intrinsic[
                "llvm.x86.avx512.vpdpbusd.512", Self.Accumulator, has_side_effect=False
            ](total, weights, activations)
        elif _HAS_PMADD and Self.reach != Reach.IN_INT32:
            var pairs = _products_in_pairs(weights, activations)
            comptime if Self.IN_INT16:
                return rebind[Self.Accumulator](_in_order(rebind[Pairs](total) + pairs))
            else:
                return total + rebind[Self.Accumulator](_dot_of_pairs(pairs, Pairs(1)))
        elif _HAS_PMADD:
            # Neighbours are the even bytes of a lane, or the odd ones.
            var words = bitcast[DType.int16, 2 * LANES](weights)
            var runs = bitcast[DType.int16, 2 * LANES](activations)
            var even = _dot_of_pairs(words & 0xFF, (runs << 8) >> 8)
            var odd = _dot_of_pairs((words >> 8) & 0xFF, runs >> 8)
            return total + rebind[Self.Accumulator](even + odd)
        elif _HAS_USDOT:
            return _dot_by_quarters["llvm.aarch64.neon.usdot.v4i32.v16i8"](
                total, weights, activations
            )
        elif _HAS_SDOT:
            comptime SIGN_BIT = WeightBytes(0x80)
            var signed = weights ^ SIGN_BIT if Self.IS_OFFSET_UNDONE else weights
            return _dot_by_quarters["llvm.aarch64.neon.sdot.v4i32.v16i8"](
                total, bitcast[DType.int8, STEP_BYTES](signed), activations
            )
        else:
            # A product of bytes fits int16, whatever they are.
            var products = weights.cast[DType.int16]() * activations.cast[DType.int16]()
            var pairs = products.deinterleave()
            comptime Wide = SIMD[DType.int32, 2 * LANES]
            var sums: Wide
            comptime if Self.reach == Reach.IN_INT32:
                sums = rebind[Wide](pairs[0].cast[DType.int32]() + pairs[1].cast[DType.int32]())
            else:
                sums = rebind[Wide]((pairs[0] + pairs[1]).cast[DType.int32]())
            var quads = sums.deinterleave()
            return total + rebind[Self.Accumulator](quads[0] + quads[1])

    @staticmethod
    @always_inline
    def finish(total: Self.Accumulator) -> Lanes:
        """Returns the dot product of every lane."""
        comptime if Self.IN_INT16:
            return _dot_of_pairs(rebind[Pairs](total), Pairs(1))
        else:
            return rebind[Lanes](total)


@always_inline
def _dot_by_quarters[
    instruction: StaticString, weight: DType, accumulator: DType, lanes: SIMDLength
](
    total: SIMD[accumulator, lanes],
    weights: SIMD[weight, STEP_BYTES],
    activations: ActivationBytes,
) -> SIMD[accumulator, lanes]:
    """Adds four products to every lane, four lanes an instruction of ARM64."""
    comptime QUARTER = LANES // 4
    var sums = total
    comptime for i in range(4):
        var part = llvm_intrinsic[instruction, SIMD[accumulator, QUARTER], has_side_effect=False](
            total.slice[QUARTER, offset=i * QUARTER](),
            weights.slice[STEP_BYTES // 4, offset=i * STEP_BYTES // 4](),
            activations.slice[STEP_BYTES // 4, offset=i * STEP_BYTES // 4](),
        )
        sums = sums.insert[offset=i * QUARTER](part)
    return sums


@always_inline
def correction_of[
    reach: Reach, offset: Int, width: SIMDLength
](values: SIMD[DType.int8, width]) -> Int32:
    """Returns what undoes `offset` in weights times some runs of four activation bytes: minus it
    times their sum, or in int16 for each half of a lane."""
    comptime if reach == Reach.BLOCK_IN_INT16:
        var words = bitcast[DType.int16, width // 2](values)
        var pairs = ((words << 8) >> 8) + (words >> 8)
        var halves = pairs.cast[DType.int32]().reduce_add[size_out=2]() * Int32(-offset)
        return halves[1] << 16 | halves[0] & 0xFFFF
    else:
        # Unsigned bytes, whose sum is one instruction.
        comptime MIDDLE = 128
        var unsigned = bitcast[DType.uint8, width](values) ^ UInt8(MIDDLE)
        var sum = Int(unsigned.cast[DType.uint32]().reduce_add()) - MIDDLE * Int(width)
        return Int32(-offset * sum)


@always_inline
def _in_order(sums: Pairs) -> Pairs:
    """Returns them when they are made: added up in another order, they would leave registers."""
    comptime Register = SIMD[DType.int16, _REGISTER // 2]
    var kept = sums
    comptime for at in range(0, 2 * LANES, _REGISTER // 2):
        var part = sums.slice[_REGISTER // 2, offset=at]()
        part = inlined_assembly["", Register, constraints="=x,0", has_side_effect=False](part)
        kept = kept.insert[offset=at](part)
    return kept


@always_inline
def _products_in_pairs(weights: WeightBytes, activations: ActivationBytes) -> Pairs:
    """Returns the sums of two neighbouring products each, on x86; they must fit."""
    comptime name: StaticString = (
        "llvm.x86.avx2.pmadd.ub.sw" if _HAS_AVX2 else "llvm.x86.ssse3.pmadd.ub.sw.128"
    )
    comptime Products = SIMD[DType.int16, _REGISTER // 2]
    var pairs = Pairs()
    comptime for at in range(0, STEP_BYTES, _REGISTER):
        var products = llvm_intrinsic[name, Products, has_side_effect=False](
            weights.slice[_REGISTER, offset=at](), activations.slice[_REGISTER, offset=at]()
        )
        pairs = pairs.insert[offset=at // 2](products)
    return pairs


@always_inline
def _dot_of_pairs(a: Pairs, b: Pairs) -> Lanes:
    """Returns the sums of two neighbouring products each, on x86."""
    comptime name: StaticString = (
        "llvm.x86.avx2.pmadd.wd" if _HAS_AVX2 else "llvm.x86.sse2.pmadd.wd"
    )
    comptime COUNT = _REGISTER // 4
    var sums = Lanes()
    comptime for at in range(0, LANES, COUNT):
        var products = llvm_intrinsic[name, SIMD[DType.int32, COUNT], has_side_effect=False](
            a.slice[2 * COUNT, offset=2 * at](), b.slice[2 * COUNT, offset=2 * at]()
        )
        sums = sums.insert[offset=at](products)
    return sums
