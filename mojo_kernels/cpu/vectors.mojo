"""The vectors of the CPU kernels: sixteen lanes, one for each weight row of a tile; blocks."""

from std.sys import CompilationTarget

from ..numbers.formats import Format

comptime BLOCK = Format.MXFP4.block_k
"""Elements of a block along K, the same in all formats here."""
comptime LANES = 16
"""Weight rows of a tile."""
comptime STEP_BYTES = 4 * LANES
"""Bytes of a vector of words."""
comptime Words = SIMD[DType.uint32, LANES]
"""One word for each row of a tile."""
comptime Sums = SIMD[DType.float32, LANES]
"""One float sum for each row of a tile."""

comptime HAS_FMA = CompilationTarget.has_fma() or not CompilationTarget.is_x86()
"""Whether a product and a sum that are rounded once are an instruction."""


@always_inline
def add_exact_product(a: Sums, b: Sums, sums: Sums) -> Sums:
    """Returns `a * b + sums`, rounded once, for products that float32 holds.

    Without an instruction for it, a fused operation would be a call for each lane.
    """
    comptime if HAS_FMA:
        return a.fma(b, sums)
    else:
        return a * b + sums
