"""Emits the quantize kernel: `<input type>_<rounding>_<scale layout>`."""

from emit import emit

from mojo_kernels.cdna4.quantize import quantize_rows
from mojo_kernels.codec import Rounding
from mojo_kernels.layouts import Plain, PreshuffledCdna4


def main() raises:
    """Emits every rounding of every input type, and the preshuffled layout once a type."""
    comptime for dtype in [DType.bfloat16, DType.float16, DType.float32]:
        comptime for code in range(Rounding.COUNT):
            comptime rounding = Rounding(code)
            comptime name = Rounding.NAMES[code]
            emit[quantize_rows[dtype, rounding, Plain]](String(dtype, "_", name, "_plain"))
        emit[quantize_rows[dtype, Rounding.EVEN, PreshuffledCdna4]](
            String(dtype, "_even_preshuffled_cdna4")
        )
