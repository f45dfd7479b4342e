"""Sixteen four-byte dot products at once: the instruction under the matmul.

A step multiplies 64 unsigned weight bytes by 64 signed activation bytes and
adds groups of four into 16 lanes. The instructions follow the compile target,
and how large the bytes may be:

    AVX-512 VNNI    vpdpbusd                        accumulates in int32
    AVX2            vpmaddubsw, vpaddw              in int16, if a block fits
                    vpmaddubsw, vpmaddwd, vpaddd    in int32, if two products fit int16
    ARM64 I8MM      usdot                           accumulates in int32
    ARM64 DotProd   sdot                            in int32, weights that fit int8 as they are
                    eor, sdot                       in int32, others less 128
    anything else   widening multiply and adds      accumulates in int32

None of them saturates, so all give the same integers.
"""

from std.memory import bitcast
from std.sys import CompilationTarget
from std.sys.intrinsics import llvm_intrinsic

from ..vectors import LANES, STEP_BYTES

comptime Lanes = SIMD[DType.int32, LANES]
"""One integer for each weight row."""
comptime WeightBytes = SIMD[DType.uint8, STEP_BYTES]
"""The unsigned factor."""
comptime ActivationBytes = SIMD[DType.int8, STEP_BYTES]
"""The signed factor."""

comptime _HAS_VNNI = CompilationTarget.has_vnni() and CompilationTarget.has_avx512f()
comptime _HAS_AVX2 = CompilationTarget.has_avx2()
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
        # Half of a block's products meet in a lane, and their correction.
        var of_block = BLOCK // 2 * left * 2 * right + BLOCK * left * right
        if _HAS_AVX2 and of_block <= MAX_INT16:
            return Self.BLOCK_IN_INT16
        return Self.PAIR_IN_INT16 if 2 * left * 2 * right <= MAX_INT16 else Self.IN_INT32


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
        """Returns an accumulator that holds `correction` in every lane."""
        comptime if Self.IN_INT16:
            # The correction goes to the even half of each lane's pair.
            var pairs = bitcast[DType.int16, 2 * LANES](Lanes(correction & 0xFFFF))
            return rebind[Self.Accumulator](pairs)
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
        elif _HAS_AVX2 and Self.reach != Reach.IN_INT32:
            comptime HALF = STEP_BYTES // 2
            comptime maddubs = llvm_intrinsic[
                "llvm.x86.avx2.pmadd.ub.sw",
                SIMD[DType.int16, HALF // 2],
                SIMD[DType.uint8, HALF],
                SIMD[DType.int8, HALF],
                has_side_effect=False,
            ]
            var low = maddubs(weights.slice[HALF, offset=0](), activations.slice[HALF, offset=0]())
            var high = maddubs(
                weights.slice[HALF, offset=HALF](), activations.slice[HALF, offset=HALF]()
            )
            var pairs = rebind[SIMD[DType.int16, 2 * LANES]](low.join(high))
            comptime if Self.IN_INT16:
                return total + rebind[Self.Accumulator](pairs)
            else:
                return total + rebind[Self.Accumulator](_sums_of_pairs(pairs))
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
            comptime Pairs = SIMD[DType.int32, 2 * LANES]
            var sums: Pairs
            comptime if Self.reach == Reach.IN_INT32:
                sums = rebind[Pairs](pairs[0].cast[DType.int32]() + pairs[1].cast[DType.int32]())
            else:
                sums = rebind[Pairs]((pairs[0] + pairs[1]).cast[DType.int32]())
            var quads = sums.deinterleave()
            return total + rebind[Self.Accumulator](quads[0] + quads[1])

    @staticmethod
    @always_inline
    def finish(total: Self.Accumulator) -> Lanes:
        """Returns the dot product of every lane."""
        comptime if Self.IN_INT16:
            return _sums_of_pairs(rebind[SIMD[DType.int16, 2 * LANES]](total))
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
def _sums_of_pairs(pairs: SIMD[DType.int16, 2 * LANES]) -> Lanes:
    """Returns the sums of neighbours, on AVX2."""
    comptime madd = llvm_intrinsic[
        "llvm.x86.avx2.pmadd.wd",
        SIMD[DType.int32, LANES // 2],
        SIMD[DType.int16, LANES],
        SIMD[DType.int16, LANES],
        has_side_effect=False,
    ]
    var ones = SIMD[DType.int16, LANES](1)
    return madd(pairs.slice[LANES, offset=0](), ones).join(
        madd(pairs.slice[LANES, offset=LANES](), ones)
    )
