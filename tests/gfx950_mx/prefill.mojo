"""Emits the prefill kernels: `matmul_<scale layout of A>_<output>_<bias>[t]`.

`t` marks a kernel for a K that ends within a stage.
"""

from emit import emit

from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.matmul_prefill import matmul_prefill
from mojo_kernels.cdna4.prefill_activations import PlainScales, PreshuffledScales

comptime BF16 = DType.bfloat16
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
