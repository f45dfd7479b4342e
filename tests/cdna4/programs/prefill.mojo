"""Emits the prefill kernels, by name:

    matmul_m<tiles of rows of a wave>_<output>_<bias>[t]
    linear_m<tiles>_<input>_<output>_<bias>[t]

`t` marks a kernel for a K that ends within a stage.
"""

from emit import emit

from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.linear_prefill import linear_prefill
from mojo_kernels.cdna4.matmul_prefill import matmul_prefill
from mojo_kernels.codec import Rounding

comptime BF16 = DType.bfloat16
comptime F16 = DType.float16
comptime F32 = DType.float32
comptime EVEN = Rounding.EVEN


def main() raises:
    """Emits every kernel."""
    emit[matmul_prefill[8, BF16, NO_BIAS, False]]("matmul_m8_bfloat16_none")
    emit[matmul_prefill[8, F32, Optional(F32), True]]("matmul_m8_float32_float32t")
    emit[matmul_prefill[4, BF16, Optional(BF16), False]]("matmul_m4_bfloat16_bfloat16")
    emit[matmul_prefill[4, BF16, NO_BIAS, True]]("matmul_m4_bfloat16_nonet")
    emit[linear_prefill[8, BF16, BF16, NO_BIAS, EVEN, False]]("linear_m8_bfloat16_bfloat16_none")
    emit[linear_prefill[8, BF16, F32, Optional(F32), EVEN, True]](
        "linear_m8_bfloat16_float32_float32t"
    )
    emit[linear_prefill[8, F32, BF16, NO_BIAS, EVEN, False]]("linear_m8_float32_bfloat16_none")
    emit[linear_prefill[4, BF16, BF16, NO_BIAS, EVEN, False]]("linear_m4_bfloat16_bfloat16_none")
    emit[linear_prefill[4, F16, BF16, Optional(BF16), EVEN, True]](
        "linear_m4_float16_bfloat16_bfloat16t"
    )
