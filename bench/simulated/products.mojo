"""Emits what a row of the CDNA4 dispatch table launches, for bfloat16 and for codes.

    linear_<cut>, matmul_<cut>      a cut as `Choice.name` spells it
"""

from emit import emit

from mojo_kernels.backend import CDNA4_COMPILE_OPTIONS
from mojo_kernels.cdna4.dispatch import Choice, Kernel
from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.linear_prefill import linear_prefill
from mojo_kernels.cdna4.matmul_decode import linear_decode, matmul_decode
from mojo_kernels.cdna4.matmul_prefill import matmul_prefill
from mojo_kernels.codec import Rounding

comptime BF16 = DType.bfloat16
comptime EVEN = Rounding.EVEN


def emit_products[choice: Choice]() raises:
    """Prints the kernels of a row for bfloat16 and for codes, K being whole steps."""
    comptime name = choice.name()
    comptime if choice.kernel == Kernel.DECODE:
        comptime fused = linear_decode[BF16, BF16, NO_BIAS, EVEN, choice.shape]
        comptime encoded = matmul_decode[BF16, NO_BIAS, choice.shape]
        emit[fused, options=CDNA4_COMPILE_OPTIONS]("linear_" + name)
        emit[encoded, options=CDNA4_COMPILE_OPTIONS]("matmul_" + name)
    else:
        comptime fused = linear_prefill[choice.m_tiles, BF16, BF16, NO_BIAS, EVEN, False]
        comptime encoded = matmul_prefill[choice.m_tiles, BF16, NO_BIAS, False]
        emit[fused, options=CDNA4_COMPILE_OPTIONS]("linear_" + name)
        emit[encoded, options=CDNA4_COMPILE_OPTIONS]("matmul_" + name)
