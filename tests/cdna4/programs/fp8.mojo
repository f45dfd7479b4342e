"""Kernels of products of FP8 with float32 scales: of rows, and of 1 x 128 by 128 x 128.

Decode kernels in every cut that differs in where scales come from: alone, shared, split; any K;
and prefill kernels; those of E5M2, which differ in their elements alone, where waves meet.
`named.mojo` and `named_prefill.mojo` name them. Quantizers are called
`<format>_<input type>_<rounding>`.
"""

from std.os import abort
from std.python import PythonObject

from named import BF16, F32, show_matmul
from named_prefill import show_matmul as show_prefill

from mojo_kernels.bindings.catalogue import catalogue_module
from mojo_kernels.cdna4.catalogue import Catalogue, ListedQuantizer, Visitor
from mojo_kernels.cdna4.epilogue.target import NO_BIAS
from mojo_kernels.cdna4.types import Formats, name_of
from mojo_kernels.numbers.formats import FORMATS, Format
from mojo_kernels.numbers.rounding import Rounding
from mojo_kernels.numbers.scales import Scale

comptime ONE = "m1n1w2t"
comptime ALONE = "m2n2w2k2d2t"
comptime WHOLE = "m1n4w2k2d2"
comptime SPLIT = "m1n4w4s3t"
comptime SHARED = "m2n4w4s2k2d2h2t"
comptime HIGH = "m4n8w4d2h4t"
comptime ROWS = Formats(Format.FP8, Format.FP8)
comptime ROWS_OF_E5M2 = Formats(Format.FP8_E5M2, Format.FP8_E5M2)
comptime BLOCKS = Formats(Format.FP8_BLOCK, Format.FP8_BLOCK_2D)


struct Fp8(Catalogue):
    """Every kernel."""

    @staticmethod
    def walk[V: Visitor](mut visitor: V) raises:
        comptime for formats in [ROWS, BLOCKS, ROWS_OF_E5M2]:
            var prefix = String(name_of(formats.left), "-", name_of(formats.right), "/")
            comptime if formats != ROWS_OF_E5M2:
                show_matmul[ONE, F32, formats=formats](visitor, prefix)
                show_matmul[ALONE, formats=formats](visitor, prefix)
                show_matmul[WHOLE, F32, Optional(F32), formats=formats](visitor, prefix)
                show_matmul[HIGH, formats=formats](visitor, prefix)
            show_matmul[SPLIT, bias=Optional(BF16), formats=formats](visitor, prefix)
            show_matmul[SHARED, F32, formats=formats](visitor, prefix)
            show_prefill[8, BF16, NO_BIAS, False, formats](visitor)
            show_prefill[4, BF16, NO_BIAS, False, formats](visitor)
            show_prefill[8, F32, Optional(F32), True, formats](visitor)
            show_prefill[4, BF16, Optional(BF16), True, formats](visitor)
        comptime for i in range(len(FORMATS)):
            comptime format = FORMATS[i]
            comptime if format.scale != Scale.FLOAT32:
                continue
            comptime for rounding in [Rounding.EVEN, Rounding.RCEIL]:
                comptime rule = Rounding.NAMES[rounding.code]
                visitor.kernel[ListedQuantizer[format, BF16, rounding]](
                    String(format.name(), "_bfloat16_", rule)
                )
            comptime for dtype in [DType.float16, DType.float32]:
                visitor.kernel[ListedQuantizer[format, dtype, Rounding.EVEN]](
                    String(format.name(), "_", dtype, "_even")
                )


@export
def PyInit_fp8() abi("C") -> PythonObject:
    """Creates the module."""
    try:
        return catalogue_module[Fp8]("fp8")
    except error:
        abort(String("cannot create fp8: ", error))
