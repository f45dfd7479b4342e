"""Emits every kernel that the CDNA4 dispatch can choose, for bfloat16, and the quantizer.

    linear_m<tiles>n<tiles>w<waves>s<splits>, matmul_..., quantize
"""

from emit import emit

from mojo_kernels.backend import CDNA4_COMPILE_OPTIONS
from mojo_kernels.cdna4.dispatch import CHOICES
from mojo_kernels.cdna4.epilogue import NO_BIAS
from mojo_kernels.cdna4.matmul_decode import linear_decode, matmul_decode
from mojo_kernels.cdna4.quantize import quantize_rows
from mojo_kernels.codec import Rounding
from mojo_kernels.layouts import Plain

comptime BF16 = DType.bfloat16
comptime EVEN = Rounding.EVEN


def main() raises:
    """Emits them."""
    comptime for i in range(len(CHOICES)):
        comptime shape = CHOICES[i].shape
        var label = String(
            "m", shape.m_tiles, "n", shape.n_tiles, "w", shape.waves, "s", shape.splits
        )
        comptime fused = linear_decode[BF16, BF16, NO_BIAS, EVEN, shape]
        comptime encoded = matmul_decode[BF16, NO_BIAS, shape]
        emit[fused, options=CDNA4_COMPILE_OPTIONS](String("linear_", label))
        emit[encoded, options=CDNA4_COMPILE_OPTIONS](String("matmul_", label))
    emit[quantize_rows[BF16, EVEN, Plain], options=CDNA4_COMPILE_OPTIONS]("quantize")
