"""Sixteen four-byte dot products at once: the instruction under the matmul.

A step multiplies 64 unsigned weight bytes by 64 signed activation bytes and
adds groups of four into 16 lanes. The instruction follows the compile target:

    AVX-512 VNNI    vpdpbusd                     accumulates in int32
    AVX2            vpmaddubsw, vpaddw           accumulates in int16
    anything else   widening multiply and adds   accumulates in int32

Weight bytes are at most `2 * MAX_DOUBLED` and activation bytes at most
`MAX_DOUBLED` in magnitude, so a block's 32 products and its correction stay
below 2**15 and all three give the same integers.
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
comptime _IN_INT16 = _HAS_AVX2 and not _HAS_VNNI


struct BlockDot:
    """The accumulator of a block's dot products."""

    comptime Accumulator = SIMD[
        DType.int16 if _IN_INT16 else DType.int32, 2 * LANES if _IN_INT16 else LANES
    ]
    """What `step` adds to."""

    @staticmethod
    @always_inline
    def start(correction: Int32) -> Self.Accumulator:
        """Returns an accumulator that holds `correction` in every lane."""
        comptime if _IN_INT16:
            # The correction goes to the even half of each lane's pair.
            var pairs = bitcast[DType.int16, 2 * LANES](Lanes(correction & 0xFFFF))
            return rebind[Self.Accumulator](pairs)
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
        elif _HAS_AVX2:
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
            return total + rebind[Self.Accumulator](low.join(high))
        else:
            var products = weights.cast[DType.int16]() * activations.cast[DType.int16]()
            var pairs = products.deinterleave()
            var quads = (pairs[0] + pairs[1]).cast[DType.int32]().deinterleave()
            return total + rebind[Self.Accumulator](quads[0] + quads[1])

    @staticmethod
    @always_inline
    def finish(total: Self.Accumulator) -> Lanes:
        """Returns the dot product of every lane."""
        comptime if _IN_INT16:
            comptime madd = llvm_intrinsic[
                "llvm.x86.avx2.pmadd.wd",
                SIMD[DType.int32, LANES // 2],
                SIMD[DType.int16, LANES],
                SIMD[DType.int16, LANES],
                has_side_effect=False,
            ]
            var pairs = rebind[SIMD[DType.int16, 2 * LANES]](total)
            var ones = SIMD[DType.int16, LANES](1)
            return madd(pairs.slice[LANES, offset=0](), ones).join(
                madd(pairs.slice[LANES, offset=LANES](), ones)
            )
        else:
            return rebind[Lanes](total)
