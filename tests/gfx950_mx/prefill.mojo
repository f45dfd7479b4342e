"""Emits the prefill kernels, by name:

    matmul_<scale layout of A>_<output>_<bias>[t]
    linear_<input>_<output>_<bias>[t]

`t` marks a kernel for a K that ends within a stage.
"""

from emit import emit

from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.linear_prefill import linear_prefill
from mojo_kernels.cdna4.matmul_prefill import matmul_prefill
from mojo_kernels.cdna4.prefill_activations import PlainScales, PreshuffledScales
from mojo_kernels.codec import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32


def main() raises:
    """Emits every kernel."""
    emit[matmul_prefill[PreshuffledScales, BF16, NO_BIAS, False]](
        "matmul_preshuffled_bfloat16_none"
    )
    emit[matmul_prefill[PreshuffledScales, BF16, Optional(BF16), True]](
        "matmul_preshuffled_bfloat16_bfloat16t"
    )
    emit[matmul_prefill[PlainScales[False], BF16, NO_BIAS, False]]("matmul_plain_bfloat16_none")
    emit[matmul_prefill[PlainScales[True], F32, Optional(F32), True]](
        "matmul_plain_float32_float32t"
    )
    emit[linear_prefill[BF16, BF16, NO_BIAS, Rounding.EVEN, False]]("linear_bfloat16_bfloat16_none")
    emit[linear_prefill[BF16, F32, Optional(F32), Rounding.EVEN, True]](
        "linear_bfloat16_float32_float32t"
    )
    emit[linear_prefill[F16, BF16, Optional(BF16), Rounding.EVEN, True]](
        "linear_float16_bfloat16_bfloat16t"
    )
    emit[linear_prefill[F32, BF16, NO_BIAS, Rounding.EVEN, False]]("linear_float32_bfloat16_none")
